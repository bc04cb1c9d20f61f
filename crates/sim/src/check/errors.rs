//! Judges the errors that clients get: an error is allowed only while its cause exists. In the
//! final scan, which checks I1, an existing volume answers every read with data, or with a known
//! loss.

use crate::history::Record;
use base::{MapVersion, VolumeId};
use seam::BlockError;
use std::collections::BTreeMap;

/// Somebody to whom volumes are mapped.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum User {
    /// A client, by its number in the plan.
    Client(u8),
    /// A host, by its number in the plan.
    Host(u8),
}

/// Clients and hosts that may be told that they may not use a volume.
#[derive(Default, Debug)]
pub struct Denials {
    taken: BTreeMap<(User, VolumeId), Option<Back>>,
}

/// The moment at which a volume was mapped to somebody again.
#[derive(Clone, Copy, Debug)]
struct Back {
    /// Position in the order of all requests and answers.
    moment: u64,
    /// Version of the first map with the mapping.
    version: MapVersion,
}

impl Denials {
    /// Records that an order to take a volume from this user was given.
    pub fn take(&mut self, user: User, volume: VolumeId) {
        self.taken.insert((user, volume), None);
    }

    /// Records that the volume was given back at this moment, by this version of the map.
    pub fn give(&mut self, user: User, volume: VolumeId, moment: u64, version: MapVersion) {
        if let Some(back) = self.taken.get_mut(&(user, volume)) {
            *back = Some(Back { moment, version });
        }
    }

    /// Returns true when a server or the client may say that the volume of this operation is not
    /// mapped to the client, or to the host that has sent it.
    fn may_lack(&self, op: &Record) -> bool {
        let Some(knew) = op.knew else { return true };
        op.users()
            .filter_map(|user| self.taken.get(&(user, op.volume)))
            .any(|back| !back.is_some_and(|back| back.moment < op.invoked && back.version <= knew))
    }
}

/// The known facts about an operation that ended in an error.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// The operation.
    pub op: &'a Record,
    /// The volume exists, and no order to delete it was given.
    pub lives: bool,
    /// The operation belongs to the final scan.
    pub scan: bool,
    /// Highest number of bytes of one read or write.
    pub transfer: u32,
    /// The operation touches a group that was lost, and the loss is excused.
    pub lost: bool,
    /// A block of the operation may be damaged where it is read.
    pub damaged: bool,
    /// The client or the host has a time limit.
    pub timed: bool,
    /// The gateway knows that the volume is not mapped to the host, and must say so at once.
    pub barred: bool,
    /// A host may have reserved the volume.
    pub reserved: bool,
    /// The other gateway of the host has had the seat.
    pub elsewhere: bool,
    /// Another process was started under the client's name after the request.
    pub superseded: bool,
    /// The operation may have been done before: a write of it has arrived at servers twice.
    pub repeated: bool,
}

/// Returns true when this error is allowed for the operation.
pub fn in_order(error: BlockError, case: Case<'_>, denials: &Denials) -> bool {
    use crate::plan::IoKind::{Extents, Read, Swap, Write};
    let Case { op, lives, scan, .. } = case;
    match error {
        BlockError::Lost => case.lost,
        BlockError::Media => case.damaged,
        BlockError::NoSuchVolume => !lives || !scan && denials.may_lack(op),
        // The client has not heard yet that the volume has grown.
        BlockError::OutOfRange => !lives || !scan && op.knew.is_none(),
        BlockError::Busy => !scan,
        BlockError::TooBig => {
            !scan && matches!(op.kind, Read | Write) && op.sectors * base::SECTOR > case.transfer
        }
        // Executed lists are short in the simulator. A write that was never done
        // can't be forgotten.
        BlockError::Forgotten => !scan && case.repeated,
        // A write without space waits for as long as its client's time limit allows.
        BlockError::TimedOut | BlockError::Full => !scan && case.timed && !case.barred,
        BlockError::Superseded => case.superseded,
        BlockError::Miscompare(at) => op.kind == Swap && at < op.sectors * base::SECTOR,
        BlockError::Reserved => !scan && case.reserved && !matches!(op.kind, Read | Extents),
        BlockError::Elsewhere => !scan && case.elsewhere,
        BlockError::Misaligned | BlockError::ReadOnly => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::IoKind;
    use base::Time;
    use seam::BlockError::{Busy, Full, NoSuchVolume, OutOfRange, TimedOut, TooBig};

    const VOLUME: VolumeId = VolumeId(3);

    fn op(invoked: u64, knew: Option<u64>) -> Record {
        Record {
            client: 1,
            life: 1,
            volume: VOLUME,
            kind: IoKind::Read,
            sector: 0,
            sectors: 8,
            invoked,
            at: Time::ZERO,
            clock: Time::ZERO,
            answer: None,
            seen: Vec::new(),
            expected: Vec::new(),
            cut: None,
            left: false,
            gone: None,
            knew: knew.map(MapVersion),
            host: None,
            barred: false,
        }
    }

    fn case(op: &Record) -> Case<'_> {
        Case {
            op,
            lives: true,
            scan: false,
            transfer: 4096,
            lost: false,
            damaged: false,
            timed: false,
            barred: false,
            reserved: false,
            elsewhere: false,
            superseded: false,
            repeated: false,
        }
    }

    fn scan(op: &Record) -> Case<'_> {
        Case { scan: true, ..case(op) }
    }

    #[test]
    fn a_volume_is_missed_only_while_it_is_taken_away() {
        let mut denials = Denials::default();
        let fine = |op: &Record, denials: &Denials| in_order(NoSuchVolume, case(op), denials);
        assert!(!fine(&op(1, Some(5)), &denials), "nobody has taken it");
        assert!(fine(&op(1, None), &denials), "its client has not heard of it");
        denials.take(User::Client(1), VOLUME);
        assert!(fine(&op(2, Some(5)), &denials));
        denials.give(User::Client(1), VOLUME, 10, MapVersion(7));
        assert!(fine(&op(9, Some(7)), &denials), "asked before it came back");
        assert!(fine(&op(11, Some(6)), &denials), "asked by a map from before");
        assert!(!fine(&op(11, Some(7)), &denials), "it was there again, and the client knew");
        denials.take(User::Client(1), VOLUME);
        assert!(fine(&op(11, Some(7)), &denials), "and is gone once more");
        denials.give(User::Client(2), VOLUME, 12, MapVersion(9));
        assert!(fine(&op(13, Some(9)), &denials), "another client got it");
    }

    #[test]
    fn a_volume_is_missed_by_the_host_from_which_it_was_taken_and_by_no_other() {
        let mut denials = Denials::default();
        denials.take(User::Host(1), VOLUME);
        let of = |host| Record { host, ..op(11, Some(7)) };
        let fine = |host, denials: &Denials| in_order(NoSuchVolume, case(&of(host)), denials);
        assert_eq!([None, Some(0), Some(1)].map(|host| fine(host, &denials)), [false, false, true]);
        denials.give(User::Host(1), VOLUME, 10, MapVersion(7));
        assert!(!fine(Some(1), &denials), "it was there again, and the client knew");
    }

    #[test]
    fn a_host_without_permission_does_not_wait() {
        let (op, denials) = (op(1, Some(5)), Denials::default());
        let waits =
            |barred| in_order(TimedOut, Case { timed: true, barred, ..case(&op) }, &denials);
        assert_eq!([false, true].map(waits), [true, false]);
    }

    #[test]
    fn the_last_scan_takes_no_excuse_for_a_living_volume() {
        let mut denials = Denials::default();
        denials.take(User::Client(1), VOLUME);
        let op = op(1, None);
        for error in [NoSuchVolume, OutOfRange, Busy, TooBig, Full, TimedOut] {
            assert!(!in_order(error, scan(&op), &denials), "{error:?}");
        }
        assert!(in_order(NoSuchVolume, Case { lives: false, ..scan(&op) }, &denials));
        assert!(!in_order(TimedOut, case(&op), &denials), "it has no limit");
        assert!(in_order(TimedOut, Case { timed: true, ..case(&op) }, &denials));
    }

    #[test]
    fn only_a_former_process_is_told_that_another_one_has_its_name() {
        let (op, denials) = (op(1, Some(5)), Denials::default());
        let superseded = BlockError::Superseded;
        assert!(in_order(superseded, Case { superseded: true, ..case(&op) }, &denials));
        assert!(!in_order(superseded, case(&op), &denials));
    }

    #[test]
    fn small_requests_within_the_volume_are_not_refused() {
        let denials = Denials::default();
        let (known, unknown) = (op(1, Some(5)), op(1, None));
        assert!(!in_order(OutOfRange, case(&known), &denials));
        assert!(in_order(OutOfRange, case(&unknown), &denials));
        let mut big = op(1, Some(5));
        assert!(!in_order(TooBig, case(&big), &denials));
        big.sectors = 9;
        assert!(in_order(TooBig, case(&big), &denials));
        big.kind = IoKind::Discard;
        assert!(!in_order(TooBig, case(&big), &denials), "it has no body");
    }
}
