//! The limits of a mounted device, and the values that ship.

/// Limit for what one slow operation may hold back, in multiples of [`Tuning::overlay_bytes`]. It
/// applies to the log behind the first unsettled record, and to payload that went to its slots
/// before an older one did. The next mount has to keep both in memory. Beyond the limit, jobs wait
/// as they do for a full ring.
pub(super) const HELD: u64 = 8;

/// When a write is durable on this device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// After a later flush: the device has a volatile cache.
    Flush,
    /// As soon as the write completes.
    WriteThrough,
}

/// Limits for a mounted device.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// When writes are durable.
    pub durability: Durability,
    /// Bytes of data that may wait in memory for their slots.
    pub overlay_bytes: usize,
    /// Bytes of log after which a checkpoint is due, unless half of the ring is less. A mount reads
    /// that much.
    pub replay_bytes: u64,
    /// Number of slots whose checksums may have changed since the last checkpoint. They are in a
    /// hash table with 73 bytes per place, of which seven in eight are used.
    pub fresh_sums: usize,
    /// Number of pages of checksums to cache, 4 KiB each. One covers 4 MiB of data.
    pub cached_pages: usize,
    /// Number of units that dirty sets may name before they become "all"; 60 bytes each.
    pub dirty_units: usize,
    /// Number of executed client writes to list before the oldest are forgotten; 150 bytes each.
    pub executed: usize,
    /// Number of units whose slots the sweep after a drop or wipe frees per call of `flush`.
    pub sweep: u32,
    /// Number of calls of [`seam::UnitStore::rest`] for which slots have to be left over before
    /// their space is given back to the file system below the device. 0: it never is.
    pub holes: u32,
}

impl Tuning {
    /// The shipped values. `docs/internals/on-disk.md` adds up the memory.
    pub const SHIPPED: Tuning = Tuning {
        durability: Durability::Flush,
        overlay_bytes: 16 << 20,
        replay_bytes: 512 << 20,
        fresh_sums: 14 << 10,
        cached_pages: 1024,
        dirty_units: 32 << 10,
        executed: 64 << 10,
        sweep: 256,
        holes: 8,
    };

    /// Returns the size of the log in bytes beyond which a checkpoint is due, in a ring of `ring`.
    pub fn due_at(&self, ring: u64) -> u64 {
        (ring / 2).min(self.replay_bytes)
    }
}
