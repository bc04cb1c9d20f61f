//! The service actions that change a table (SPC-4 5.13.7 to 5.13.11, 6.14), the actions of NVMe
//! that differ from them (base 6.11), and what a change means for other hosts.
//!
//! Invariants: a change that is refused leaves the table as it was. The result depends on nothing
//! but the arguments. PRgeneration rises with each successful change of registrations, and with
//! nothing else.

use super::table::{Access, Identity, Kind, Registrant, Table};

/// A change that one host asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// REGISTER, and REGISTER AND IGNORE EXISTING KEY.
    Register {
        /// The key under which the host is registered; 0 if it is not.
        key: u64,
        /// Its key from now on; 0 removes the registration.
        new: u64,
        /// True for REGISTER AND IGNORE EXISTING KEY.
        ignore: bool,
        /// True if the registration applies to all ports of the target (ALL_TG_PT).
        all_ports: bool,
    },
    /// Reservation Register of NVMe, action "register": a host that is registered under this key
    /// registers again, and one that is registered under another key is refused.
    RegisterNvme {
        /// The key: not 0.
        key: u64,
    },
    /// Reservation Register of NVMe, actions "unregister" and "replace": a host that is not
    /// registered is refused.
    ReplaceNvme {
        /// The key under which the host is registered.
        key: u64,
        /// Its key from now on; 0 removes the registration.
        new: u64,
        /// True if `key` does not matter (IEKEY).
        ignore: bool,
    },
    /// RESERVE.
    Reserve {
        /// The host's key.
        key: u64,
        /// The type.
        kind: Kind,
    },
    /// RELEASE.
    Release {
        /// The host's key.
        key: u64,
        /// The type of the reservation.
        kind: Kind,
    },
    /// CLEAR: removes the reservation and all registrations.
    Clear {
        /// The host's key.
        key: u64,
    },
    /// PREEMPT, and PREEMPT AND ABORT. Both are the same here: after the fence, no command of a
    /// preempted host can take effect.
    Preempt {
        /// The host's key.
        key: u64,
        /// The key of the registrants that lose their registrations.
        victim: u64,
        /// The type of the reservation, if the host takes it over.
        kind: Kind,
    },
}

/// The reason why a change is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The key is wrong, or another host's reservation is in the way.
    Conflict,
    /// The key is 0, which this change does not allow.
    NoVictim,
    /// RELEASE with another type than that of the reservation.
    WrongKind,
    /// The volume already has the maximum number of registrants.
    Full,
}

/// Applies a change of `who` to the table, which has room for `most` registrants.
pub fn step(
    table: &mut Table,
    who: &Identity,
    change: &Change,
    most: usize,
) -> Result<(), Refusal> {
    match *change {
        Change::Register { key, new, ignore, all_ports } => {
            register(table, who, (!ignore).then_some(key), new, all_ports, most)
        }
        Change::RegisterNvme { key } => {
            if table.find(who).is_some_and(|index| table.registrants[index].key != key) {
                return Err(Refusal::Conflict);
            }
            register(table, who, None, key, false, most)
        }
        Change::ReplaceNvme { key, new, ignore } => {
            let index = table.find(who).ok_or(Refusal::Conflict)?;
            let present = table.registrants[index].key;
            register(table, who, Some(if ignore { present } else { key }), new, false, most)
        }
        Change::Reserve { key, kind } => reserve(table, who, key, kind),
        Change::Release { key, kind } => release(table, who, key, kind),
        Change::Clear { key } => {
            registered(table, who, key)?;
            table.clear();
            Ok(())
        }
        Change::Preempt { key, victim, kind } => {
            let own = registered(table, who, key)?;
            preempt(table, own, victim, kind)
        }
    }
}

/// Returns the index of `who`, if it is registered under this key.
fn registered(table: &Table, who: &Identity, key: u64) -> Result<usize, Refusal> {
    let index = table.find(who).ok_or(Refusal::Conflict)?;
    if table.registrants[index].key == key { Ok(index) } else { Err(Refusal::Conflict) }
}

impl Table {
    /// Ends the reservation and all registrations. It takes access from nobody.
    pub fn clear(&mut self) {
        self.registrants.clear();
        self.reserved = None;
        self.generation = self.generation.wrapping_add(1);
    }
}

/// Ends a successful change of registrations.
fn count(table: &mut Table) -> Result<(), Refusal> {
    table.generation = table.generation.wrapping_add(1);
    Ok(())
}

/// Drops the reservation if nobody holds it any more.
fn settle(table: &mut Table) {
    let held = match table.reserved {
        Some(kind) if kind.is_held_by_all() => !table.registrants.is_empty(),
        _ => table.registrants.iter().any(|r| r.holds),
    };
    if !held {
        table.reserved = None;
    }
}

fn register(
    table: &mut Table,
    who: &Identity,
    key: Option<u64>,
    new: u64,
    all_ports: bool,
    most: usize,
) -> Result<(), Refusal> {
    let index = table.find(who);
    let present = index.map_or(0, |i| table.registrants[i].key);
    if key.is_some_and(|key| key != present) {
        return Err(Refusal::Conflict);
    }
    match index {
        None if new == 0 => {}
        Some(index) if new == 0 => {
            table.registrants.remove(index);
            settle(table);
        }
        _ => {
            let who = match index {
                _ if all_ports => who.at_all_ports(),
                Some(index) => table.registrants[index].who.clone(),
                None => who.clone(),
            };
            // A registration at all ports replaces those at single ports of the same initiator.
            let replaced = |r: &Registrant| who.covers(&r.who);
            let holds = table.registrants.iter().any(|r| r.holds && replaced(r));
            let rest = table.registrants.iter().filter(|r| !replaced(r)).count();
            if rest >= most {
                return Err(Refusal::Full);
            }
            table.registrants.retain(|r| !replaced(r));
            // `note_losses` knows since when.
            table.registrants.push(Registrant { key: new, who, holds, since: 0 });
        }
    }
    count(table)
}

fn reserve(table: &mut Table, who: &Identity, key: u64, kind: Kind) -> Result<(), Refusal> {
    let index = registered(table, who, key)?;
    if let Some(present) = table.reserved {
        let same = present == kind && table.holds(index);
        return if same { Ok(()) } else { Err(Refusal::Conflict) };
    }
    table.reserved = Some(kind);
    table.registrants[index].holds = !kind.is_held_by_all();
    Ok(())
}

fn release(table: &mut Table, who: &Identity, key: u64, kind: Kind) -> Result<(), Refusal> {
    let index = registered(table, who, key)?;
    let Some(present) = table.reserved else { return Ok(()) };
    if !table.holds(index) {
        return Ok(());
    }
    if present != kind {
        return Err(Refusal::WrongKind);
    }
    table.reserved = None;
    table.registrants[index].holds = false;
    Ok(())
}

/// SPC-4 5.13.11.4. A host that preempts its own key keeps its registration if it takes over the
/// reservation, and loses it otherwise.
fn preempt(table: &mut Table, own: usize, victim: u64, kind: Kind) -> Result<(), Refusal> {
    let takes_over = match table.reserved {
        Some(present) if present.is_held_by_all() => victim == 0,
        Some(_) => table.registrants.iter().any(|r| r.holds && r.key == victim),
        None => false,
    };
    if takes_over {
        let mut index = 0;
        table.registrants.retain_mut(|r| {
            let (own, lost) = (index == own, victim == 0 || r.key == victim);
            index += 1;
            r.holds = own && !kind.is_held_by_all();
            own || !lost
        });
        table.reserved = Some(kind);
        return count(table);
    }
    if victim == 0 {
        return Err(Refusal::NoVictim);
    }
    if table.registrants.iter().all(|r| r.key != victim) {
        return Err(Refusal::Conflict);
    }
    table.registrants.retain(|r| r.key != victim);
    settle(table);
    count(table)
}

/// The notice to a host about a change by another host (SPC-4 5.13.7 to 5.13.11).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// All registrations were cleared, this host's among them.
    ReservationsPreempted,
    /// A reservation that this host shared is gone, or has another type.
    ReservationsReleased,
    /// This host's registration was removed.
    RegistrationsPreempted,
}

/// Returns true if the change from `before` to `after` takes access away from any host. Such a
/// change may be confirmed only when no command under the old access can take effect any more.
pub fn fences(before: &Table, after: &Table) -> bool {
    let strangers = before.access_of_strangers().is_within(after.access_of_strangers());
    let mut known = before.registrants.iter();
    !strangers || known.any(|r| !before.access(&r.who).is_within(after.access(&r.who)))
}

/// Records in `after` the hosts that have lost the right to write by the change from `before`,
/// which has led to this generation of the volume. The generation that is recorded for a host
/// ([`Table::since`]) never falls, whether the host is registered or not.
pub fn note_losses(before: &Table, after: &mut Table, generation: u32) {
    let lost = |old: Access, new: Access| old.write && !new.write;
    if lost(before.access_of_strangers(), after.access_of_strangers()) {
        after.since = generation;
    }
    for old in &before.registrants {
        let lost = lost(before.access(&old.who), after.access(&old.who));
        let since = if lost { generation } else { old.since };
        // The generation of a host whose registration is gone then holds for all hosts without one.
        let index = after.find(&old.who);
        let at = index.map_or(&mut after.since, |index| &mut after.registrants[index].since);
        *at = since.max(*at);
    }
    for new in &mut after.registrants {
        if before.registrants.iter().all(|old| old.who != new.who) {
            new.since = new.since.max(before.since); // it had no registration
        }
    }
}

/// Returns what `who` has to be told of the change from `before` to `after`. Not for the host that
/// asked for the change.
pub fn notice(before: &Table, after: &Table, who: &Identity) -> Option<Notice> {
    before.find(who)?;
    if after.find(who).is_none() {
        let cleared = after.registrants.is_empty();
        return Some(if cleared {
            Notice::ReservationsPreempted
        } else {
            Notice::RegistrationsPreempted
        });
    }
    let shared = before.reserved.is_some_and(Kind::admits_registrants);
    (shared && before.reserved != after.reserved).then_some(Notice::ReservationsReleased)
}
