//! The table of reservations beside a naive model, and its invariants.

use super::rig::cases;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;
use target::reserve::*;

fn host(n: u8) -> Identity {
    if n < 3 {
        Identity::Scsi { name: format!("iqn.host{n}"), isid: [n; 6], port: 1 }
    } else {
        Identity::Nvme { host: [n; 16] }
    }
}

/// Returns the registration of SCSI that does what this one of NVMe asks for, if it is one.
fn nvme(own: Option<u64>, change: &Change) -> Result<Option<Change>, Refusal> {
    let all_ports = false;
    match *change {
        Change::RegisterNvme { key } if own.is_none_or(|own| own == key) => {
            Ok(Some(Change::Register { key: 0, new: key, ignore: true, all_ports }))
        }
        Change::ReplaceNvme { key, new, ignore } if own.is_some() => {
            Ok(Some(Change::Register { key, new, ignore, all_ports }))
        }
        Change::RegisterNvme { .. } | Change::ReplaceNvme { .. } => Err(Refusal::Conflict),
        _ => Ok(None),
    }
}

/// The same rules as plain statements over maps. Hosts are numbers, and ports do not exist.
#[derive(Clone, Default)]
struct Model {
    generation: u32,
    keys: BTreeMap<u8, u64>,
    /// The type, and the holder; with "all registrants" the holder says nothing.
    held: Option<(Kind, u8)>,
}

impl Model {
    fn holds(&self, who: u8) -> bool {
        self.keys.contains_key(&who)
            && self.held.is_some_and(|(kind, h)| kind.is_held_by_all() || h == who)
    }

    fn drop_unheld(&mut self) {
        let keys = &self.keys;
        self.held = self.held.filter(|(kind, holder)| {
            if kind.is_held_by_all() { !keys.is_empty() } else { keys.contains_key(holder) }
        });
    }

    fn step(&mut self, who: u8, change: &Change, most: usize) -> Result<(), Refusal> {
        let own = self.keys.get(&who).copied();
        if let Change::Register { key, new, ignore, .. } = *change {
            if !ignore && own.unwrap_or(0) != key {
                return Err(Refusal::Conflict);
            }
            if new == 0 {
                self.keys.remove(&who);
                self.drop_unheld();
            } else if own.is_none() && self.keys.len() >= most {
                return Err(Refusal::Full);
            } else {
                self.keys.insert(who, new);
            }
            self.generation += 1;
            return Ok(());
        }
        if let Some(change) = nvme(own, change)? {
            return self.step(who, &change, most);
        }
        let (Change::Reserve { key, .. }
        | Change::Release { key, .. }
        | Change::Clear { key }
        | Change::Preempt { key, .. }
        | Change::RegisterNvme { key }
        | Change::ReplaceNvme { key, .. }
        | Change::Register { key, .. }) = *change;
        if own != Some(key) {
            return Err(Refusal::Conflict);
        }
        match *change {
            Change::Reserve { kind, .. } => match self.held {
                None => self.held = Some((kind, who)),
                Some((present, _)) if present == kind && self.holds(who) => {}
                Some(_) => return Err(Refusal::Conflict),
            },
            Change::Release { kind, .. } if self.holds(who) => {
                if self.held.map(|h| h.0) != Some(kind) {
                    return Err(Refusal::WrongKind);
                }
                self.held = None;
            }
            Change::Clear { .. } => {
                self.keys.clear();
                self.held = None;
                self.generation += 1;
            }
            Change::Preempt { victim, kind, .. } => {
                let takes = match self.held {
                    Some((present, _)) if present.is_held_by_all() => victim == 0,
                    Some((_, holder)) => self.keys[&holder] == victim,
                    None => false,
                };
                if takes {
                    self.keys.retain(|h, k| *h == who || (victim != 0 && *k != victim));
                    self.held = Some((kind, who));
                } else if victim == 0 {
                    return Err(Refusal::NoVictim);
                } else if self.keys.values().all(|k| *k != victim) {
                    return Err(Refusal::Conflict);
                } else {
                    self.keys.retain(|_, k| *k != victim);
                    self.drop_unheld();
                }
                self.generation += 1;
            }
            _ => {}
        }
        Ok(())
    }

    /// SPC-4 5.13.1, table 65, for reading and writing.
    fn access(&self, who: u8) -> Access {
        use Kind::*;
        let Some((kind, _)) = self.held else { return Access::FULL };
        let registered = self.keys.contains_key(&who);
        let (read, write) = match (self.holds(who), registered, kind) {
            (true, _, _) => (true, true),
            (_, _, WriteExclusive) => (true, false),
            (_, _, ExclusiveAccess) => (false, false),
            (_, true, _) => (true, true),
            (_, false, WriteExclusiveRegistrants | WriteExclusiveAll) => (true, false),
            (_, false, ExclusiveAccessRegistrants | ExclusiveAccessAll) => (false, false),
        };
        Access { read, write }
    }
}

fn change() -> impl Strategy<Value = Change> {
    let key = 0u64..4;
    let kind = (0usize..6).prop_map(|i| Kind::ALL[i]);
    prop_oneof![
        4 => (key.clone(), key.clone(), any::<bool>()).prop_map(|(key, new, ignore)| {
            Change::Register { key, new, ignore, all_ports: false }
        }),
        2 => (1u64..4).prop_map(|key| Change::RegisterNvme { key }),
        2 => (key.clone(), key.clone(), any::<bool>()).prop_map(|(key, new, ignore)| {
            Change::ReplaceNvme { key, new, ignore }
        }),
        2 => (key.clone(), kind.clone()).prop_map(|(key, kind)| Change::Reserve { key, kind }),
        1 => (key.clone(), kind.clone()).prop_map(|(key, kind)| Change::Release { key, kind }),
        1 => key.clone().prop_map(|key| Change::Clear { key }),
        2 => (key.clone(), key, kind).prop_map(|(key, victim, kind)| {
            Change::Preempt { key, victim, kind }
        }),
    ]
}

fn check_invariants(table: &Table) {
    let marked = table.registrants.iter().filter(|r| r.holds).count();
    match table.reserved {
        None => assert_eq!(marked, 0),
        Some(kind) if kind.is_held_by_all() => {
            assert_eq!(marked, 0);
            assert!(!table.registrants.is_empty());
        }
        Some(_) => assert_eq!(marked, 1),
    }
    assert!(table.is_sound(table.registrants.len()));
    for (i, a) in table.registrants.iter().enumerate() {
        assert_ne!(a.key, 0);
        assert!(table.registrants[i + 1..].iter().all(|b| !a.who.covers(&b.who)));
        assert!(table.registrants[i + 1..].iter().all(|b| !b.who.covers(&a.who)));
    }
}

proptest! {
    #![proptest_config(cases(1024))]

    #[test]
    fn the_table_is_the_naive_model(steps in vec((0u8..5, change()), 0..40)) {
        let (mut table, mut model) = (Table::default(), Model::default());
        for (who, change) in steps {
            let before = table.clone();
            let result = step(&mut table, &host(who), &change, 3);
            prop_assert_eq!(result, model.step(who, &change, 3), "{:?} of {}", change, who);
            check_invariants(&table);
            prop_assert_eq!(table.generation, model.generation);
            prop_assert_eq!(table.reserved, model.held.map(|h| h.0));
            prop_assert_eq!(table.registrants.len(), model.keys.len());
            let mut lost = !before.access_of_strangers().is_within(table.access_of_strangers());
            for n in 0..5 {
                prop_assert_eq!(table.access(&host(n)), model.access(n), "access of {}", n);
                let key = table.find(&host(n)).map(|i| table.registrants[i].key);
                prop_assert_eq!(key, model.keys.get(&n).copied());
                lost |= !before.access(&host(n)).is_within(table.access(&host(n)));
            }
            prop_assert_eq!(fences(&before, &table), lost, "{:?} of {}", change, who);
            if result.is_err() {
                prop_assert!(table == before, "refused, so unchanged");
            }
        }
    }

    /// Beside a record of when each host could write no more.
    #[test]
    fn every_host_keeps_the_number_of_its_last_loss(steps in vec((0u8..5, change()), 0..40)) {
        let (mut table, mut generation, mut lost) = (Table::default(), 1, [0; 5]);
        for (who, change) in steps {
            let before = table.clone();
            let _ = step(&mut table, &host(who), &change, 3);
            generation += u32::from(fences(&before, &table));
            note_losses(&before, &mut table, generation);
            for (n, lost) in (0..5).zip(&mut lost) {
                let who = host(n);
                if before.access(&who).write && !table.access(&who).write {
                    *lost = generation;
                }
                let (old, since) = (before.since(&who), table.since(&who));
                prop_assert!((*lost).max(old) <= since && since <= generation, "{change:?}");
                // A host that stays registered does not notice changes of others.
                let stays = before.find(&who).is_some() && table.find(&who).is_some();
                if stays && *lost < generation {
                    prop_assert_eq!(since, old, "{:?}", change);
                }
            }
            let mut again = table.clone();
            note_losses(&table, &mut again, generation);
            prop_assert_eq!(&again, &table, "nothing has changed");
        }
    }

    #[test]
    fn registrations_at_all_ports_keep_the_invariants(
        steps in vec((0u8..2, 1u16..4, change(), any::<bool>()), 0..40)
    ) {
        let mut table = Table::default();
        for (n, port, mut change, all) in steps {
            let who = Identity::Scsi { name: format!("iqn.host{n}"), isid: [n; 6], port };
            if let Change::Register { all_ports, .. } = &mut change {
                *all_ports = all;
            }
            let ok = step(&mut table, &who, &change, 4).is_ok();
            check_invariants(&table);
            prop_assert!(table.registrants.len() <= 4);
            if let Change::Register { new, all_ports: true, .. } = change && ok && new != 0 {
                for port in 1..4 {
                    let other = Identity::Scsi { name: format!("iqn.host{n}"), isid: [n; 6], port };
                    let index = table.find(&other).expect("registered at all ports");
                    prop_assert_eq!(table.registrants[index].key, new);
                }
            }
        }
    }
}

fn registered(hosts: &[(u8, u64)]) -> Table {
    let mut table = Table::default();
    for (n, key) in hosts {
        let change = Change::Register { key: 0, new: *key, ignore: false, all_ports: false };
        step(&mut table, &host(*n), &change, 128).expect("registers");
    }
    table
}

#[test]
fn hosts_that_lose_access_are_notified() {
    let told = |table: &Table, who: u8, change: Change, to: u8| {
        let mut after = table.clone();
        step(&mut after, &host(who), &change, 128).expect("is done");
        notice(table, &after, &host(to))
    };
    let mut table = registered(&[(0, 10), (1, 11), (2, 12)]);
    let clear = Change::Clear { key: 10 };
    assert_eq!(told(&table, 0, clear, 1), Some(Notice::ReservationsPreempted));
    assert_eq!(told(&table, 0, clear, 4), None, "a stranger");
    let preempt = Change::Preempt { key: 10, victim: 11, kind: Kind::WriteExclusive };
    assert_eq!(told(&table, 0, preempt, 1), Some(Notice::RegistrationsPreempted));
    assert_eq!(told(&table, 0, preempt, 2), None);
    for kind in Kind::ALL {
        table.reserved = None;
        table.registrants.iter_mut().for_each(|r| r.holds = false);
        step(&mut table, &host(0), &Change::Reserve { key: 10, kind }, 128).expect("reserves");
        let shared = kind.admits_registrants().then_some(Notice::ReservationsReleased);
        assert_eq!(told(&table, 0, Change::Release { key: 10, kind }, 1), shared, "{kind:?}");
        let leaves = Change::Register { key: 10, new: 0, ignore: false, all_ports: false };
        let gone = shared.filter(|_| !kind.is_held_by_all());
        assert_eq!(told(&table, 0, leaves, 1), gone, "{kind:?}");
    }
}

#[test]
fn numbers_of_types_are_those_of_the_standards() {
    let scsi: Vec<u8> = Kind::ALL.iter().map(|kind| kind.scsi()).collect();
    let nvme: Vec<u8> = Kind::ALL.iter().map(|kind| kind.nvme()).collect();
    assert_eq!((scsi, nvme), (vec![1, 3, 5, 6, 7, 8], vec![1, 2, 3, 4, 5, 6]));
    for number in 0..=255 {
        assert!(Kind::from_scsi(number).is_none_or(|kind| kind.scsi() == number));
        assert!(Kind::from_nvme(number).is_none_or(|kind| kind.nvme() == number));
    }
}
