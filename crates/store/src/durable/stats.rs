//! The results of a mount, and what a device has done since.

use super::layout::{NotGrown, SMALLEST_GROWTH};

/// Counters of a device since its mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Batches written to the log.
    pub batches: u64,
    /// Records in them.
    pub records: u64,
    /// Flushes.
    pub flushes: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Blocks that went from the log to their slots.
    pub destaged: u64,
    /// Jobs that failed with [`DiskError::Corrupt`].
    pub corrupt: u64,
    /// Pages of checksums without a whole copy.
    pub lost_pages: u64,
    /// Records that the mount dropped: their data was not durable, so none was acknowledged.
    pub dropped: u64,
    /// Bytes of free slots whose space was given back to the file system below.
    pub given_back: u64,
}

/// The content of the log that a mount has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Position where the log began. The last checkpoint does not have what lies behind it.
    pub tail: u64,
    /// Position where the log ended.
    pub head: u64,
    /// Number of batches.
    pub batches: u64,
    /// Number of records in them.
    pub records: u64,
    /// Bytes of data that were not in their slots yet.
    pub waiting: u64,
}

/// The change of a device's size by a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// Bytes that were used before the mount.
    pub from: u64,
    /// Size of the device in bytes.
    pub bytes: u64,
    /// Why the device is used with its earlier size. `None`: it has grown.
    pub refused: Option<NotGrown>,
}

impl Growth {
    /// True when the operator should hear of it: the device has grown, or is larger by so much that
    /// it could have grown.
    pub fn is_news(&self) -> bool {
        self.refused.is_none() || self.bytes.saturating_sub(self.from) >= SMALLEST_GROWTH
    }
}
