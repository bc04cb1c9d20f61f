//! Gaps: data that was lost, and whose loss the operator accepted as errors and not as zeros (R10).
//!
//! The group started over without any block. A block without data is an error until it is written
//! whole. So a partial write to such a block is an error, too, and zeros are written as data. Every
//! block counts as allocated, because a program that copies the volume must not take unreadable
//! blocks for zeros.

use crate::mirror::Mirror;
use crate::op::Op;
use alloc::collections::BTreeMap;
use base::crc::{ZERO_BLOCK, append_block};
use base::{BLOCK, BlockSet, GroupId, UNIT, UnitKey, VolumeId};
use seam::{Buf, Effects, UnitStore};

/// By volume and group: the units of the volume below this index have gaps.
pub type Gaps = BTreeMap<(VolumeId, GroupId), u32>;

/// The gaps of a shard.
#[derive(Debug, Default)]
pub(crate) struct Lost {
    /// Where blocks without data are errors.
    at: Gaps,
    /// Zeros of the length of a unit, while writes in gaps use them.
    zeros: Option<Buf>,
}

impl Lost {
    /// Returns true if no block without data is an error.
    #[inline]
    pub(crate) fn is_nowhere(&self) -> bool {
        self.at.is_empty()
    }
}

impl<S: UnitStore> Mirror<S> {
    /// Sets where blocks without data are errors. Call it before a group that started over is
    /// configured.
    pub fn set_gaps(&mut self, gaps: Gaps) {
        self.gaps.at = gaps;
    }

    /// Returns true if blocks of this unit without data are errors.
    #[inline]
    pub(crate) fn is_gap(&self, group: GroupId, unit: UnitKey) -> bool {
        !self.gaps.at.is_empty()
            && self.gaps.at.get(&(unit.volume, group)).is_some_and(|units| unit.index < *units)
    }

    /// Returns true if the operation needs the content of a block without data in a gap, which is
    /// an error.
    #[inline]
    pub(crate) fn meets_gap(&self, op: &Op) -> bool {
        if !self.is_gap(op.group, op.unit) {
            return false;
        }
        let mut needed = BlockSet::touching(op.at, op.len);
        if op.work.changes_data() {
            needed.remove(BlockSet::within(op.at, op.len));
        }
        needed.remove(self.store.valid(op.group, op.unit));
        !needed.is_empty()
    }

    /// Turns a zeroing in a gap into a write of zeros, because a cleared block would be an error
    /// again. All such writes share one buffer.
    pub(crate) fn zeros_as_data(&mut self, key: u64, out: &Effects) {
        let op = self.ops.get(key).expect("the operation lives");
        let zero = op.write().is_some_and(|write| write.zero);
        if !zero || !self.is_gap(op.group, op.unit) {
            return;
        }
        let zeros = self.gaps.zeros.get_or_insert_with(|| out.pool().zeroed(UNIT as usize));
        let op = self.ops.get_mut(key).expect("as above");
        op.body = zeros.slice(0..op.len as usize);
        op.body_crc = Some(sum_of_zeros(&op.body));
        op.write_mut().expect("as above").zero = false;
    }

    /// Frees the shared buffer if nothing uses it any more.
    pub(crate) fn drop_zeros(&mut self) {
        self.gaps.zeros = self.gaps.zeros.take().filter(|zeros| !zeros.is_unique());
    }
}

/// Returns the CRC-32C of these bytes, which are zeros. It does not read the whole blocks.
fn sum_of_zeros(zeros: &Buf) -> u32 {
    let part = zeros.len() % BLOCK as usize;
    let blocks = 0..zeros.len() / BLOCK as usize;
    blocks.fold(base::crc::crc32c(&zeros[..part]), |sum, _| append_block(sum, ZERO_BLOCK))
}
