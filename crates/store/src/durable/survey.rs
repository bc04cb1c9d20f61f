//! The description of a device, for tools that examine it without a cluster.
//!
//! Nothing here changes anything. A mount leaves a [`Durable`] in memory; this module also has
//! those of its calls that only tools need.

use super::layout::{Layout, SLOT_BLOCKS};
use super::store::Durable;
use base::{BLOCK, GroupId, UNIT, UnitKey};

pub use super::search::Search;
pub use super::stats::{Growth, Replayed, Stats};
pub use super::superblock::{CopyState, look};

/// A slot that holds data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldSlot {
    /// Its number.
    pub slot: u32,
    /// Where it begins on the device, in bytes.
    pub at: u64,
    /// The group.
    pub group: GroupId,
    /// The unit.
    pub unit: UnitKey,
    /// The slot's first block in the unit: a multiple of 16.
    pub first: u32,
    /// Blocks that hold data, of 16, lowest bit first.
    pub valid: u16,
}

impl HeldSlot {
    /// Iterates over the runs of blocks that hold data: first block in the unit, number of blocks.
    pub fn runs(&self) -> impl Iterator<Item = (u32, u32)> + use<> {
        let (first, mut left) = (self.first, u32::from(self.valid));
        core::iter::from_fn(move || {
            let skip = left.trailing_zeros();
            if skip >= SLOT_BLOCKS {
                return None;
            }
            let count = (left >> skip).trailing_ones();
            left &= !(((1 << count) - 1) << skip);
            Some((first + skip, count))
        })
    }

    /// Returns where a block of the unit that this slot holds is on the device, in bytes.
    pub fn place(&self, block: u32) -> u64 {
        self.at + u64::from(block - self.first) * u64::from(BLOCK)
    }

    /// Returns where a block of the unit is in the volume, in bytes.
    pub fn place_in_volume(&self, block: u32) -> u64 {
        u64::from(self.unit.index) * u64::from(UNIT) + u64::from(block * BLOCK)
    }
}

impl Durable {
    /// Returns where everything lies.
    pub fn layout(&self) -> &Layout {
        &self.content.layout
    }

    /// Returns what the mount found in the log.
    pub fn replayed(&self) -> Replayed {
        self.replayed
    }

    /// Returns what the mount did about the device's size.
    pub fn growth(&self) -> Growth {
        self.growth
    }

    /// Iterates over the slots that hold data, in their order on the device.
    pub fn slots(&self) -> impl Iterator<Item = HeldSlot> + '_ {
        (0..self.content.layout.slot_count()).filter_map(|slot| self.held(slot))
    }

    /// Returns what a slot holds. `None`: nothing, or there is no such slot.
    pub fn held(&self, slot: u32) -> Option<HeldSlot> {
        if slot >= self.content.layout.slot_count() || self.slots.map().is_dropped(slot) {
            return None;
        }
        let (chunk, valid) = (self.slots.map().chunk(slot)?, self.slots.map().valid(slot));
        let at = self.content.layout.slot(slot);
        let first = u32::from(chunk.chunk) * SLOT_BLOCKS;
        let (group, unit) = (chunk.group, chunk.unit);
        (valid != 0).then_some(HeldSlot { slot, at, group, unit, first, valid })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn runs_are_the_blocks_that_hold_data() {
        let slot = |valid| HeldSlot {
            slot: 0,
            at: 1 << 20,
            group: GroupId(1),
            unit: UnitKey::default(),
            first: 32,
            valid,
        };
        let runs = |valid| slot(valid).runs().collect::<Vec<_>>();
        assert_eq!(runs(0), []);
        assert_eq!(runs(0xffff), [(32, 16)]);
        assert_eq!(runs(0x8001), [(32, 1), (47, 1)]);
        assert_eq!(runs(0b0110_1110), [(33, 3), (37, 2)]);
        assert_eq!(slot(1).place(33), (1 << 20) + 4096);
    }
}
