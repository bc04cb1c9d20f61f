//! Metadata for the unit store (rule R5): that of each write, and changes of a group's record.
//!
//! The dirty set in memory and the one in the unit store differ. The one in memory is exact, and
//! counts while this process runs. The one in the unit store is for the time after a crash: it
//! includes what is in flight, and blocks leave it late. A device that does not survive its process
//! has only the first one.
//!
//! Invariant: the unit store's dirty set of a group includes the one in memory.

use crate::op::Op;
use crate::replica::Replica;
use alloc::rc::Rc;
use alloc::vec::Vec;
use base::{Epoch, GroupId, Mutant, mutant};
use seam::record::Dirty;
use seam::{Change, ExecutedBlocks, Origin, UnitStore, WriteMetadata};

/// Units in one change at most: 320 KiB of entries on a device.
const UNITS: usize = 8192;

/// Returns the metadata of a write to a device that survives its process or not. `copied`: the
/// entries that come with another replica's content.
#[inline]
pub(crate) fn metadata(
    op: &Op,
    replica: &Replica,
    survives: bool,
    copied: Option<&Rc<[ExecutedBlocks]>>,
) -> WriteMetadata {
    if !survives || !op.work.changes_data() || mutant::on(Mutant::NoMarks) {
        return WriteMetadata::default();
    }
    let origin = match copied {
        Some(list) => Origin::Copied(list.clone()),
        None if op.client.sdc.0 != 0 => Origin::Client(op.client),
        None => Origin::Unnamed,
    };
    let dirty = !(replica.is_only_in_sync() && mutant::on(Mutant::NoSoloDirty));
    WriteMetadata { dirty, origin }
}

/// Changes a group's record. Nothing waits for it.
pub(crate) fn change(store: &mut impl UnitStore, group: GroupId, changes: Vec<Change>) {
    if store.survives() {
        store.change(None, group, changes);
    }
}

/// Tells the unit store that these blocks of a group are clean.
pub(crate) fn tell_clean(store: &mut impl UnitStore, group: GroupId, clean: &Dirty) {
    let list: Vec<_> = clean.iter().collect();
    for part in list.chunks(UNITS) {
        change(store, group, alloc::vec![Change::Clean(part.to_vec())]);
    }
}

/// Replaces the unit store's dirty set of a group by this one, and its base epoch.
pub(crate) fn set_dirty(store: &mut impl UnitStore, group: GroupId, dirty: &Dirty, base: Epoch) {
    let list: Vec<_> = dirty.iter().collect();
    if list.len() <= UNITS {
        let changes = alloc::vec![Change::CleanAll, Change::Base(base), Change::Dirty(list)];
        return change(store, group, changes);
    }
    // There are too many for one step, and a crash between two steps would leave too small a set.
    // So everything in the unit store's set stays dirty until the next seal, which is safe.
    for part in list.chunks(UNITS) {
        change(store, group, alloc::vec![Change::Dirty(part.to_vec())]);
    }
    change(store, group, alloc::vec![Change::Base(base)]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Work;
    use crate::testing::{GROUP, Rig, Store, UNIT, blocks, named, op, read, stream, write};
    use alloc::string::String;
    use base::UnitKey;

    /// What a write marks on the device: whether its blocks may differ, and where they come from.
    #[test]
    fn what_changes_content_marks_it_on_a_device_that_survives() {
        let list: Rc<[ExecutedBlocks]> = [].into();
        let (unnamed, client) = (Default::default(), named(3));
        for (name, work, client, copied, survives, dirty, origin) in [
            ("a write", write(), client, None, true, true, "Client"),
            ("of the stream", Work::Stream(stream()), client, None, true, true, "Client"),
            ("of no client", Work::Stream(stream()), unnamed, None, true, true, "Unnamed"),
            ("a copy", Work::Stream(stream()), unnamed, Some(&list), true, true, "Copied"),
            ("a read", read(), client, None, true, false, "Unnamed"),
            ("a scrub", Work::Scrub, unnamed, None, true, false, "Unnamed"),
            ("a device that does not survive", write(), client, None, false, false, "Unnamed"),
        ] {
            let mut rig = Rig::leading(&[2], &[]);
            let what = Op { client, ..op(work) };
            let marks = metadata(&what, rig.replica(), survives, copied);
            let found = alloc::format!("{:?}", marks.origin);
            assert_eq!((marks.dirty, found.starts_with(origin)), (dirty, true), "{name}: {found}");
        }
    }

    /// Returns the changes so far, in short.
    fn changes(store: &Store) -> Vec<String> {
        let all = store.changes.iter().map(|(_, changes)| {
            let one = |change: &Change| match change {
                Change::Dirty(list) => alloc::format!("Dirty {}", list.len()),
                Change::Clean(list) => alloc::format!("Clean {}", list.len()),
                other => alloc::format!("{other:?}"),
            };
            changes.iter().map(one).collect::<Vec<_>>().join(", ")
        });
        all.collect()
    }

    fn dirty(units: usize) -> Dirty {
        let mut dirty = Dirty::default();
        for index in 0..units as u32 {
            dirty.insert(UnitKey { index, ..UNIT }, blocks(0..1));
        }
        dirty
    }

    /// A crash between two steps must not leave too small a set.
    #[test]
    fn a_dirty_set_is_replaced_in_one_step_or_only_grows() {
        for (units, expected) in [
            (0, &["CleanAll, Base(e4), Dirty 0"][..]),
            (UNITS, &["CleanAll, Base(e4), Dirty 8192"]),
            (UNITS + 1, &["Dirty 8192", "Dirty 1", "Base(e4)"]),
        ] {
            let mut store = Store::default();
            set_dirty(&mut store, GROUP, &dirty(units), Epoch(4));
            let base = alloc::format!("{:?}", Change::Base(Epoch(4)));
            let expected: Vec<_> = expected.iter().map(|e| e.replace("Base(e4)", &base)).collect();
            assert_eq!(changes(&store), expected, "{units}");
        }
    }

    #[test]
    fn clean_blocks_are_told_in_steps_that_a_log_has_room_for() {
        for (units, expected) in
            [(0, &[][..]), (1, &["Clean 1"]), (UNITS + 2, &["Clean 8192", "Clean 2"])]
        {
            let mut store = Store::default();
            tell_clean(&mut store, GROUP, &dirty(units));
            assert_eq!(changes(&store), expected, "{units}");
        }
    }
}
