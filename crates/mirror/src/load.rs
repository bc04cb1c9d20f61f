//! The load of a shard with operations of clients that are not answered yet.
//!
//! Only these operations count. Copies have a limit of their own; otherwise a shard full of
//! operations that wait for a settle would never settle. Operations from other primaries are always
//! accepted, because two shards could otherwise wait for each other's room; the limits of those
//! primaries bound them. Writes that are answered and still on their way to a joiner are bounded by
//! that joiner's window.

use base::{Limits, Mutant, mutant};

/// The number of operations, and the bytes of their bodies or answers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    ops: u32,
    bytes: u64,
}

impl Load {
    /// Adds an operation of this many bytes, if it counts.
    pub(crate) fn add(&mut self, counts: Option<u32>) {
        if let Some(bytes) = counts {
            self.ops += 1;
            self.bytes += u64::from(bytes);
        }
    }

    /// Removes an operation that is answered or over, if it counted.
    pub(crate) fn end(&mut self, counts: Option<u32>) {
        if let Some(bytes) = counts {
            assert!(self.ops > 0, "what counts ends once");
            self.ops -= 1;
            self.bytes -= u64::from(bytes);
        }
    }

    /// Returns true if no more operations are accepted.
    pub(crate) fn is_full(&self, limits: &Limits) -> bool {
        let full = self.ops >= limits.shard_ops || self.bytes >= limits.shard_bytes;
        full && !mutant::on(Mutant::EndlessLoad)
    }

    /// Returns the number of operations.
    pub(crate) fn ops(&self) -> u32 {
        self.ops
    }

    /// Returns the bytes of the operations.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}
