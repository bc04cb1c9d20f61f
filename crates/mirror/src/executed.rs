//! Executed writes as records of frames, and the answer to a write that a list does not admit.

use base::Incarnation;
use seam::record::{ClientWrite, ExecutedBlocks, ExecutedList, NotAdmitted};
use wire::Status;
use wire::records::Executed;

/// Converts an entry to a record of a frame.
pub(crate) fn wire_entry(e: &ExecutedBlocks) -> Executed {
    Executed::new(e.write.sdc, e.write.incarnation, e.write.seq, e.unit, e.blocks)
}

/// Converts a record of a frame to an entry. The record has no floor, so the entry has floor 0.
pub(crate) fn list_entry(r: &Executed) -> ExecutedBlocks {
    let (sdc, incarnation, seq) = (r.sdc(), Incarnation(r.incarnation.get()), r.seq.get());
    let write = ClientWrite { sdc, incarnation, seq, floor: 0 };
    ExecutedBlocks { write, unit: r.key(), blocks: r.set() }
}

/// Creates a list from the records of a frame. Those without blocks tell of forgotten writes, and
/// are left out.
pub(crate) fn from_records(records: &[Executed], noted: &mut u64) -> ExecutedList {
    ExecutedList::from_entries(records.iter().map(list_entry), noted)
}

/// Returns the answer to a write that a list does not admit.
pub(crate) fn refusal(why: NotAdmitted) -> Status {
    match why {
        NotAdmitted::Superseded => Status::Superseded,
        NotAdmitted::Full => Status::Busy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use base::{BlockSet, SdcId, UnitKey};

    #[test]
    fn a_list_travels_in_records_without_its_floors() {
        let (mut list, blocks) = (ExecutedList::default(), BlockSet::from_range(3..6));
        let write = |seq| ClientWrite { sdc: SdcId(1), incarnation: Incarnation(4), seq, floor: 5 };
        for seq in [9, 7] {
            list.record(write(seq), UnitKey::default(), blocks, &mut 0);
        }
        let records: Vec<Executed> = list.entries().iter().map(wire_entry).collect();
        let told = from_records(&records, &mut 0);
        assert_eq!([7, 8, 9].map(|seq| told.blocks(write(seq))), [blocks, BlockSet::EMPTY, blocks]);
        assert!(told.entries().iter().all(|e| e.write.floor == 0));
    }
}
