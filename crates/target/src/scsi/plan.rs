//! Block requests that one command needs one after another, and the answer at their end.

use super::sense::Failure;
use super::step::Answer;
use seam::{BlockKind, Buf, BufPool};

/// What to do with a range of the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// This, as it is.
    Block(BlockKind),
    /// Compare the first half of the body with the range, which lies in one 4 KiB block, and if
    /// they are equal write the second half, both as one step of the volume.
    CompareWrite,
}

/// A request to the volume.
#[derive(Clone, Debug)]
pub struct Request {
    /// What to do.
    pub op: Op,
    /// Start of the range in bytes. A multiple of 512.
    pub at: u64,
    /// Length of the range in bytes. A multiple of 512.
    pub len: u32,
    /// The data of a write (`len` bytes) or of a compare and write (`2 * len` bytes).
    pub body: Buf,
}

/// Requests of one command. At any time exactly one of them is under way.
#[derive(Clone, Debug)]
pub struct Plan {
    work: Work,
}

#[derive(Clone, Debug)]
enum Work {}

impl Plan {
    /// Returns the request that is due.
    pub fn request(&self) -> Request {
        match self.work {}
    }

    /// Takes the result of that request: the data of a read, or the bitmap of extents. Returns the
    /// answer of the command, or `None` if another request is due.
    pub fn done(&mut self, result: Result<Buf, Failure>, pool: &BufPool) -> Option<Answer> {
        let _ = (result, pool);
        match self.work {}
    }
}
