//! One primary as the client sees it: its link, its credit, and the operations that wait for it.

use alloc::collections::VecDeque;

/// A device that operations go to.
#[derive(Debug, Default)]
pub(super) struct Device {
    /// The owner was asked to dial it.
    pub(super) wanted: bool,
    /// It has welcomed this client.
    pub(super) up: bool,
    /// The number of the session: how often it has welcomed this client.
    pub(super) session: u64,
    credit_ops: u32,
    credit_bytes: u32,
    used_ops: u32,
    used_bytes: u32,
    /// Operations that wait for the link or for credit, in order. Some may be gone already.
    pub(super) queue: VecDeque<u64>,
}

impl Device {
    /// Starts a new session with this credit. Nothing is outstanding in it.
    pub(super) fn link_up(&mut self, ops: u32, bytes: u32) {
        self.up = true;
        self.session += 1;
        (self.credit_ops, self.credit_bytes) = (ops.max(1), bytes);
        (self.used_ops, self.used_bytes) = (0, 0);
    }

    /// Takes credit for one operation; false if there is too little. An operation larger than the
    /// whole credit is sent alone.
    pub(super) fn take(&mut self, bytes: u32) -> bool {
        let used = self.used_bytes.saturating_add(bytes);
        let fits =
            self.used_ops < self.credit_ops && (used <= self.credit_bytes || self.used_ops == 0);
        if fits {
            self.used_ops += 1;
            self.used_bytes = used;
        }
        fits
    }

    /// Returns the credit of one operation.
    pub(super) fn give(&mut self, bytes: u32) {
        self.used_ops -= 1;
        self.used_bytes -= bytes;
    }
}
