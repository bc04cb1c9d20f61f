//! Free slots of one device.

use alloc::vec::Vec;

/// Hands out slots `0..slots`: one that was given back, else the lowest one that was never used.
#[derive(Clone, Debug)]
pub struct Space {
    slots: u64,
    fresh: u64,
    returned: Vec<u64>,
}

impl Space {
    /// Starts with all `slots` free.
    pub fn new(slots: u64) -> Space {
        Space { slots, fresh: 0, returned: Vec::new() }
    }

    /// Takes a slot; `None` when the device is full.
    pub fn take(&mut self) -> Option<u64> {
        self.returned.pop().or_else(|| {
            let slot = self.fresh;
            (slot < self.slots).then(|| {
                self.fresh += 1;
                slot
            })
        })
    }

    /// Gives a slot back.
    pub fn give(&mut self, slot: u64) {
        debug_assert!(
            slot < self.fresh && !self.returned.contains(&slot),
            "slot {slot} was not taken"
        );
        assert!((self.returned.len() as u64) < self.fresh, "no more slots are free than were used");
        self.returned.push(slot);
    }

    /// Returns the number of all slots.
    pub fn slots(&self) -> u64 {
        self.slots
    }

    /// Returns the number of slots in use.
    pub fn used(&self) -> u64 {
        self.fresh - self.returned.len() as u64
    }
}
