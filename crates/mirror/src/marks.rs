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
