//! Judges the errors that clients get: an error is allowed only while its cause exists. In the
//! final scan, which checks I1, an existing volume answers every read with data, or with a known
//! loss.

use crate::history::Record;
use base::{MapVersion, VolumeId};
use seam::BlockError;
use std::collections::BTreeMap;

/// Clients that may be told that they may not use a volume.
#[derive(Default, Debug)]
pub struct Denials {
    taken: BTreeMap<(u8, VolumeId), Option<Back>>,
}

/// The moment at which a volume was mapped to a client again.
#[derive(Clone, Copy, Debug)]
struct Back {
    /// Position in the order of all requests and answers.
    moment: u64,
    /// Version of the first map with the mapping.
    version: MapVersion,
}

impl Denials {
    /// Records that an order to take a volume from this client was given.
    pub fn take(&mut self, client: u8, volume: VolumeId) {
        self.taken.insert((client, volume), None);
    }

    /// Records that the volume was given back at this moment, by this version of the map.
    pub fn give(&mut self, client: u8, volume: VolumeId, moment: u64, version: MapVersion) {
        if let Some(back) = self.taken.get_mut(&(client, volume)) {
            *back = Some(Back { moment, version });
        }
    }

    /// Returns true when a server or the client may say that the volume of this operation is not
    /// mapped to the client.
    fn may_lack(&self, op: &Record) -> bool {
        let Some(knew) = op.knew else { return true };
        let taken = self.taken.get(&(op.client, op.volume));
        taken.is_some_and(|back| {
            !back.is_some_and(|back| back.moment < op.invoked && back.version <= knew)
        })
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
        BlockError::TimedOut | BlockError::Full => !scan && case.timed,
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
        denials.take(1, VOLUME);
        assert!(fine(&op(2, Some(5)), &denials));
        denials.give(1, VOLUME, 10, MapVersion(7));
        assert!(fine(&op(9, Some(7)), &denials), "asked before it came back");
        assert!(fine(&op(11, Some(6)), &denials), "asked by a map from before");
        assert!(!fine(&op(11, Some(7)), &denials), "it was there again, and the client knew");
        denials.take(1, VOLUME);
        assert!(fine(&op(11, Some(7)), &denials), "and is gone once more");
        denials.give(2, VOLUME, 12, MapVersion(9));
        assert!(fine(&op(13, Some(9)), &denials), "another client got it");
    }

    #[test]
    fn the_last_scan_takes_no_excuse_for_a_living_volume() {
        let mut denials = Denials::default();
        denials.take(1, VOLUME);
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
