//! Lost blocks: blocks whose loss the operator accepted as errors and not as zeros (R10).
//!
//! The group started over without any block. A block without data is an error until it is written
//! whole. So a partial write to such a block is an error, too, and zeros are written as data. Every
//! block counts as allocated, because a program that copies the volume must not take unreadable
//! blocks for zeros.

use crate::op::{Op, Work};
use alloc::collections::BTreeMap;
use base::crc::{ZERO_BLOCK, append_block};
use base::{BLOCK, BlockSet, GroupId, UNIT, UnitKey, VolumeId};
use seam::{Buf, BufPool};

/// By volume and group: the units of the volume below this index have lost blocks.
pub type LostUnits = BTreeMap<(VolumeId, GroupId), u32>;

/// The lost blocks of a shard.
#[derive(Debug, Default)]
pub(crate) struct LostBlocks {
    /// Where blocks without data are errors.
    at: LostUnits,
    /// Zeros of the length of a unit, while writes to lost blocks use them.
    zeros: Option<Buf>,
}

impl LostBlocks {
    /// Sets where blocks without data are errors.
    pub(crate) fn set(&mut self, lost: LostUnits) {
        self.at = lost;
    }

    /// Returns true if no block without data is an error.
    #[inline]
    pub(crate) fn is_nowhere(&self) -> bool {
        self.at.is_empty()
    }

    /// Returns true if blocks of this unit without data are errors.
    #[inline]
    pub(crate) fn contain(&self, group: GroupId, unit: UnitKey) -> bool {
        !self.at.is_empty()
            && self.at.get(&(unit.volume, group)).is_some_and(|units| unit.index < *units)
    }

    /// Returns true if the operation needs the content of a lost block, which is an error. `valid`
    /// returns the blocks of its unit that have data.
    #[inline]
    pub(crate) fn are_met(&self, op: &Op, valid: impl FnOnce() -> BlockSet) -> bool {
        if !self.contain(op.group, op.unit) {
            return false;
        }
        let mut needed = op.blocks();
        if op.work.changes_data() {
            needed.remove(BlockSet::within(op.at, op.len));
        }
        needed.remove(valid());
        !needed.is_empty()
    }

    /// Turns a zeroing of lost blocks into a write of zeros, because a cleared block would be an
    /// error again. All such writes share one buffer.
    pub(crate) fn zeros_as_data(&mut self, op: &mut Op, pool: &BufPool) {
        let inside = self.contain(op.group, op.unit);
        let Work::Write(write) = &mut op.work else { return };
        if !write.zero || !inside {
            return;
        }
        write.zero = false;
        let zeros = self.zeros.get_or_insert_with(|| pool.zeroed(UNIT as usize));
        op.body = zeros.slice(0..op.len as usize);
        op.body_crc = Some(sum_of_zeros(&op.body));
    }

    /// Frees the shared buffer if nothing uses it any more.
    pub(crate) fn drop_zeros(&mut self) {
        self.zeros = self.zeros.take().filter(|zeros| !zeros.is_unique());
    }
}

/// Returns the CRC-32C of these bytes, which are zeros. It does not read the whole blocks.
fn sum_of_zeros(zeros: &Buf) -> u32 {
    let part = zeros.len() % BLOCK as usize;
    let blocks = 0..zeros.len() / BLOCK as usize;
    blocks.fold(base::crc::crc32c(&zeros[..part]), |sum, _| append_block(sum, ZERO_BLOCK))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Requester;
    use base::{LinkId, Time};
    use wire::PeerLink;

    #[test]
    fn a_block_without_data_is_an_error_until_it_is_written_whole() {
        let (group, volume) = (GroupId(1), VolumeId(2));
        let lost = LostBlocks { at: [((volume, group), 3)].into(), zeros: None };
        let unit = |index| UnitKey { volume, index };
        assert!(lost.contain(group, unit(2)) && !lost.contain(group, unit(3)));
        assert!(!lost.contain(GroupId(9), unit(2)));
        let requester = Requester { link: PeerLink::new(LinkId(1), 1), op: 1 };
        let read = Work::Read(requester, Time::ZERO);
        let write = Work::Stream(crate::op::Streamed {
            requester,
            zero: false,
            copy: false,
            yields: false,
            lost: false,
            fresh: false,
        });
        let valid = BlockSet::from_range(0..1);
        for (work, at, len, met) in [
            (read, 0, BLOCK, false),
            (read, 0, BLOCK + 512, true),
            (write, BLOCK, BLOCK, false),
            (write, BLOCK, BLOCK + 512, true),
            (write, 512, 512, false),
        ] {
            let op = |index| Op::new(group, unit(index), at, len, work);
            assert_eq!(lost.are_met(&op(2), || valid), met, "{work:?} {at} {len}");
            assert!(!lost.are_met(&op(3), || valid), "no block of this unit is lost");
        }
    }
}
