//! Encodes the reservations of volumes for messages, and remembers the last change of each client.
//! [`target::reserve`] has the table and its rules.

use crate::volume::Volume;
use alloc::collections::BTreeMap;
use base::SdcId;
use target::reserve::{Change, Identity, Kind, Refusal, Registrant, Table};
use wire::control::{
    HostInfo, RegistrantInfo, ReservationInfo, ReservationKind, ReserveAction, ReserveChange,
    ReserveOutcome,
};

/// The most registrants of one volume. Not a field of `Limits`, because all MDMs must apply the
/// same number.
pub const REGISTRANTS: usize = 128;

/// The last change of a volume's reservations by a client. If the answer is lost and the client
/// asks again, the result is still known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// The client's incarnation.
    pub incarnation: u64,
    /// Its number for the change.
    pub number: u64,
    /// Its result.
    pub outcome: ReserveOutcome,
}

/// The last changes, by client. Only clients that may use the volume have one.
pub type AllAsked = BTreeMap<SdcId, Asked>;

impl Volume {
    /// Returns the result of a change of this client; `None` if it was not executed.
    pub fn asked(&self, sdc: SdcId, incarnation: u64, number: u64) -> Option<ReserveOutcome> {
        let last = self.asked.get(&sdc)?;
        ((last.incarnation, last.number) == (incarnation, number)).then_some(last.outcome)
    }
}

/// Encodes a table for the map and snapshots; `None` for a table that was never changed.
pub fn table_info(table: &Table) -> Option<ReservationInfo> {
    (*table != Table::default()).then(|| ReservationInfo {
        generation: table.generation,
        kind: kind_number(table.reserved),
        registrants: table.registrants.iter().map(registrant_info).collect(),
        since: table.since,
    })
}

/// Decodes a table that [`table_info`] encoded. `None` if no changes lead to such a table, or if
/// this build does not know the type of its reservation.
pub fn table(info: Option<&ReservationInfo>) -> Option<Table> {
    let Some(info) = info else { return Some(Table::default()) };
    let table = Table {
        generation: info.generation,
        reserved: kind(info.kind)?,
        registrants: info.registrants.iter().map(registrant).collect::<Option<_>>()?,
        since: info.since,
    };
    table.is_sound(REGISTRANTS).then_some(table)
}

fn registrant_info(r: &Registrant) -> RegistrantInfo {
    RegistrantInfo { key: r.key, who: host_info(&r.who), holds: r.holds, since: r.since }
}

fn registrant(info: &RegistrantInfo) -> Option<Registrant> {
    let (key, holds, since) = (info.key, info.holds, info.since);
    Some(Registrant { key, who: host(&info.who)?, holds, since })
}

/// Encodes the identity of a host.
pub fn host_info(who: &Identity) -> HostInfo {
    match who {
        Identity::Scsi { name, isid, port } => {
            HostInfo { name: name.clone(), id: isid.to_vec(), port: u32::from(*port) }
        }
        Identity::Nvme { host } => HostInfo { id: host.to_vec(), ..HostInfo::default() },
    }
}

/// Decodes the identity of a host; `None` if it is invalid.
pub fn host(info: &HostInfo) -> Option<Identity> {
    let who = match info.name.is_empty() {
        false => Identity::Scsi {
            name: info.name.clone(),
            isid: info.id.as_slice().try_into().ok()?,
            port: info.port.try_into().ok()?,
        },
        true if info.port == 0 => Identity::Nvme { host: info.id.as_slice().try_into().ok()? },
        true => return None,
    };
    who.is_sound().then_some(who)
}

/// Returns the number of a type; `None` means no reservation.
fn kind_number(kind: Option<Kind>) -> i32 {
    kind.map_or(ReservationKind::None as i32, |kind| i32::from(kind.nvme()))
}

/// Returns the type with this number; the outer `None` if the number is unknown.
fn kind(number: i32) -> Option<Option<Kind>> {
    match number {
        0 => Some(None),
        number => Kind::from_nvme(number.try_into().ok()?).map(Some),
    }
}

/// Encodes a change.
pub fn change_info(change: &Change) -> ReserveChange {
    let of = |action: ReserveAction, key, other, kind| ReserveChange {
        action: action as i32,
        key,
        other,
        kind: kind_number(kind),
        ..ReserveChange::default()
    };
    match *change {
        Change::Register { key, new, ignore, all_ports } => {
            let register = of(ReserveAction::Register, key, new, None);
            ReserveChange { ignore, all_ports, ..register }
        }
        Change::RegisterNvme { key } => of(ReserveAction::RegisterNvme, key, 0, None),
        Change::ReplaceNvme { key, new, ignore } => {
            ReserveChange { ignore, ..of(ReserveAction::ReplaceNvme, key, new, None) }
        }
        Change::Reserve { key, kind } => of(ReserveAction::Reserve, key, 0, Some(kind)),
        Change::Release { key, kind } => of(ReserveAction::Release, key, 0, Some(kind)),
        Change::Clear { key } => of(ReserveAction::Clear, key, 0, None),
        Change::Preempt { key, victim, kind } => {
            of(ReserveAction::Preempt, key, victim, Some(kind))
        }
    }
}

/// Decodes a change; `None` if it is invalid.
pub fn change(info: &ReserveChange) -> Option<Change> {
    let (key, other) = (info.key, info.other);
    Some(match (info.action(), kind(info.kind)?) {
        (ReserveAction::Register, None) => {
            Change::Register { key, new: other, ignore: info.ignore, all_ports: info.all_ports }
        }
        // A registrant's key is not 0.
        (ReserveAction::RegisterNvme, None) if key != 0 => Change::RegisterNvme { key },
        (ReserveAction::ReplaceNvme, None) => {
            Change::ReplaceNvme { key, new: other, ignore: info.ignore }
        }
        (ReserveAction::Reserve, Some(kind)) => Change::Reserve { key, kind },
        (ReserveAction::Release, Some(kind)) => Change::Release { key, kind },
        (ReserveAction::Clear, None) => Change::Clear { key },
        (ReserveAction::Preempt, Some(kind)) => Change::Preempt { key, victim: other, kind },
        _ => return None,
    })
}

/// Returns the name of a result.
pub fn outcome(result: Result<(), Refusal>) -> ReserveOutcome {
    match result {
        Ok(()) => ReserveOutcome::Done,
        Err(Refusal::Conflict) => ReserveOutcome::Conflict,
        Err(Refusal::NoVictim) => ReserveOutcome::NoVictim,
        Err(Refusal::WrongKind) => ReserveOutcome::WrongKind,
        Err(Refusal::Full) => ReserveOutcome::Full,
    }
}

/// Returns the result with this name; `None` if the change was not executed and may be requested
/// again.
pub fn result(outcome: ReserveOutcome) -> Option<Result<(), Refusal>> {
    match outcome {
        ReserveOutcome::Done => Some(Ok(())),
        ReserveOutcome::Conflict => Some(Err(Refusal::Conflict)),
        ReserveOutcome::NoVictim => Some(Err(Refusal::NoVictim)),
        ReserveOutcome::WrongKind => Some(Err(Refusal::WrongKind)),
        ReserveOutcome::Full => Some(Err(Refusal::Full)),
        ReserveOutcome::NoVolume | ReserveOutcome::Unknown => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn who(port: u16) -> Identity {
        Identity::Scsi { name: "iqn.2026-11.a:b".into(), isid: [1, 2, 3, 4, 5, 6], port }
    }

    #[test]
    fn a_table_comes_back_as_it_was_and_one_that_can_not_be_is_refused() {
        assert_eq!((table_info(&Table::default()), table(None)), (None, Some(Table::default())));
        let nvme = Identity::Nvme { host: [7; 16] };
        let registrants = Vec::from([
            Registrant { key: 1 << 63, who: who(0), holds: true, since: 0 },
            Registrant { key: 2, who: nvme, holds: false, since: u32::MAX },
        ]);
        for reserved in Kind::ALL.into_iter().filter(|kind| !kind.is_held_by_all()) {
            let whole = Table {
                generation: u32::MAX,
                reserved: Some(reserved),
                registrants: registrants.clone(),
                since: 7,
            };
            assert_eq!(table(table_info(&whole).as_ref()), Some(whole));
        }
        let reserved = Some(Kind::ExclusiveAccess);
        let good = Table { generation: 3, reserved, registrants, since: 0 };
        let good = table_info(&good).unwrap();
        let wrong: [fn(&mut ReservationInfo); 8] = [
            |t| t.kind = 7,
            |t| t.kind = 0,
            |t| t.registrants[1].holds = true,
            |t| t.registrants[1].key = 0,
            |t| t.registrants[1].who.port = 1,
            |t| t.registrants[1].who = HostInfo { port: 4, ..host_info(&who(0)) },
            |t| t.registrants[0].who.id.push(0),
            |t| t.registrants[0].who.name = "x".repeat(224),
        ];
        for (i, change) in wrong.into_iter().enumerate() {
            let mut info = good.clone();
            change(&mut info);
            assert_eq!(table(Some(&info)), None, "{i}");
        }
        let many = |n: u64| {
            let one = |i: u64| RegistrantInfo {
                key: 1,
                who: HostInfo { id: Vec::from(u128::from(i).to_be_bytes()), ..HostInfo::default() },
                holds: false,
                since: 0,
            };
            let registrants = (0..n).map(one).collect();
            ReservationInfo { generation: 1, kind: 6, registrants, since: 0 }
        };
        assert!(table(Some(&many(128))).is_some() && table(Some(&many(129))).is_none());
        assert!(table(Some(&many(0))).is_none(), "all of nobody hold it");
    }

    #[test]
    fn a_change_comes_back_as_it_was_and_one_without_meaning_is_refused() {
        let kind = Kind::WriteExclusiveAll;
        let (key, victim) = (u64::MAX, 9);
        for whole in [
            Change::Register { key, new: 0, ignore: true, all_ports: false },
            Change::Register { key: 0, new: 5, ignore: false, all_ports: true },
            Change::RegisterNvme { key },
            Change::ReplaceNvme { key, new: 5, ignore: false },
            Change::ReplaceNvme { key, new: 0, ignore: true },
            Change::Reserve { key, kind },
            Change::Release { key, kind },
            Change::Clear { key },
            Change::Preempt { key, victim, kind },
        ] {
            let info = change_info(&whole);
            assert_eq!((info.check(), change(&info)), (Ok(()), Some(whole)));
            let other = if info.kind == 0 { 6 } else { 0 };
            assert_eq!(change(&ReserveChange { kind: other, ..info }), None, "{whole:?}");
            assert_eq!(change(&ReserveChange { action: 8, ..info }), None);
        }
        let nothing = change_info(&Change::RegisterNvme { key: 0 });
        assert_eq!(change(&nothing), None, "no registrant has the key 0");
    }
}
