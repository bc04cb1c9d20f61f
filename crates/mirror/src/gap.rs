//! Data that was lost, and given up, but not as zeros: a person wants an error wherever the lost data would be read. The
//! group began anew without any block; what has none is such an error until it is written whole.
//!
//! So a write to a part of a block without data is an error, too, zeros are written as data, and every block counts as
//! allocated: a copying program must not take what it can't read for zeros.

use crate::mirror::Mirror;
use crate::op::{Op, OpKind};
use alloc::collections::BTreeMap;
use base::crc::{ZERO_BLOCK, append_block};
use base::{BLOCK, BlockSet, GroupId, UNIT, UnitKey, VolumeId};
use seam::{Buf, Effects, Journal};
use wire::flag;

/// By volume and group: units of the volume below this one are meant.
pub type Gaps = BTreeMap<(VolumeId, GroupId), u32>;

impl<J: Journal> Mirror<J> {
    /// Where blocks without data are errors. It has to be known before a group that began anew is configured.
    pub fn set_gaps(&mut self, gaps: Gaps) {
        self.gaps = gaps;
    }

    /// Blocks of this unit that have no data are errors.
    #[inline]
    pub(crate) fn is_gap(&self, group: GroupId, unit: UnitKey) -> bool {
        !self.gaps.is_empty()
            && self.gaps.get(&(unit.volume, group)).is_some_and(|units| unit.index < *units)
    }

    /// The operation needs what blocks hold that have no data, and that is an error.
    #[inline]
    pub(crate) fn meets_gap(&self, op: &Op) -> bool {
        if !self.is_gap(op.group, op.unit) {
            return false;
        }
        let mut needed = BlockSet::touching(op.at, op.len);
        if op.kind.changes_data() {
            needed.remove(BlockSet::within(op.at, op.len));
        }
        needed.remove(self.journal.valid(op.group, op.unit));
        !needed.is_empty()
    }

    /// Zeros in a gap are data: a block that is cleared would be an error again. All share one buffer.
    pub(crate) fn zeros_as_data(&mut self, key: u64, out: &Effects) {
        let op = self.ops.get(key).expect("the operation lives");
        if op.kind != OpKind::Zero || !self.is_gap(op.group, op.unit) {
            return;
        }
        let zeros = self.zeros.get_or_insert_with(|| out.pool().zeroed(UNIT as usize));
        let op = self.ops.get_mut(key).expect("as above");
        op.kind = OpKind::Write;
        op.body = zeros.slice(0..op.len as usize);
        op.body_crc = sum_of_zeros(&op.body);
        op.flags &= !flag::NO_BODY_CRC;
    }

    /// Gives the buffer back that nothing uses any more.
    pub(crate) fn drop_zeros(&mut self) {
        self.zeros = self.zeros.take().filter(|zeros| !zeros.is_unique());
    }
}

/// CRC-32C of these bytes, which are zeros: of whole blocks without a look at them.
fn sum_of_zeros(zeros: &Buf) -> u32 {
    let part = zeros.len() % BLOCK as usize;
    let blocks = 0..zeros.len() / BLOCK as usize;
    blocks.fold(base::crc::crc32c(&zeros[..part]), |sum, _| append_block(sum, ZERO_BLOCK))
}
