//! What a change of reservations means for hosts other than the one that asked for it.

use super::table::{Identity, Kind, Table};

/// What a host learns of a change that another host has made (SPC-4 5.13.7 to 5.13.11).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// All registrations were cleared, this host's among them.
    ReservationsPreempted,
    /// A reservation that this host shared is gone, or has another type.
    ReservationsReleased,
    /// This host's registration was removed.
    RegistrationsPreempted,
}

/// Returns true if the change from `before` to `after` takes access from anybody. Then it may be
/// confirmed only when nothing of the old access can appear any more.
pub fn fences(before: &Table, after: &Table) -> bool {
    let strangers = before.access_of_strangers().is_within(after.access_of_strangers());
    let mut known = before.registrants.iter();
    !strangers || known.any(|r| !before.access(&r.who).is_within(after.access(&r.who)))
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
