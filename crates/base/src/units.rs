//! Sizes that are part of the format, in bytes.

/// The smallest addressable piece of a volume.
pub const SECTOR: u32 = 512;
/// The piece that has its own valid bit, dirty bit and checksum.
pub const BLOCK: u32 = 4096;
/// The piece that is placed and allocated as a whole.
pub const UNIT: u32 = 1 << 20;
/// Blocks in a unit.
pub const BLOCKS_PER_UNIT: u32 = UNIT / BLOCK;
/// One binary kilobyte.
pub const KIB: u64 = 1 << 10;
/// One binary megabyte.
pub const MIB: u64 = 1 << 20;
/// One binary gigabyte.
pub const GIB: u64 = 1 << 30;
/// One binary terabyte.
pub const TIB: u64 = 1 << 40;
/// The largest volume: unit indices are 32 bits wide.
pub const MAX_VOLUME_BYTES: u64 = (u32::MAX as u64) * UNIT as u64;
/// Most groups of which one device holds a replica. The records of this many groups fit into the
/// records area of the smallest device (`docs/internals/limits.md`).
pub const MAX_REPLICAS: u64 = 16 << 10;

/// Returns the bytes of a device without its spare, which is `percent` (0 to 100) of the capacity.
pub fn beside_spare(capacity: u64, percent: u64) -> u64 {
    (u128::from(capacity) * u128::from(100 - percent.min(100)) / 100) as u64
}
