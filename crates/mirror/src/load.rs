//! What operations of clients take of a shard as long as they are not answered.
//!
//! Only these count. Copies have their own limit, or a shard full of operations that wait for a settle would never settle.
//! What other leaders send is always taken, or two shards could wait for each other's places: their limits bound it.
//! What is answered and on its way to a joiner is bounded by that one's window.

use base::{Limits, Mutant, mutant};

/// Operations, and bytes that they or their answers take.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    ops: u32,
    bytes: u64,
}

impl Load {
    /// One more, if it counts, with so many bytes.
    pub fn add(&mut self, counts: Option<u32>) {
        if let Some(bytes) = counts {
            self.ops += 1;
            self.bytes += u64::from(bytes);
        }
    }

    /// One that counted is answered, or over.
    pub fn end(&mut self, counts: Option<u32>) {
        if let Some(bytes) = counts {
            self.ops -= 1;
            self.bytes -= u64::from(bytes);
        }
    }

    /// True when no more are taken.
    pub fn is_full(&self, limits: &Limits) -> bool {
        let full = self.ops >= limits.shard_ops || self.bytes >= limits.shard_bytes;
        full && !mutant::on(Mutant::EndlessLoad)
    }

    /// How many there are.
    pub fn ops(&self) -> u32 {
        self.ops
    }

    /// What they take.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}
