//! The bytes on the device, format 1: fixed little-endian structs, and how each is sealed.
//!
//! `docs/internals/on-disk.md` draws them. A change of anything here is a new format: the golden bytes
//! in `tests/format.rs` notice.

use super::layout::GROWTHS;
use base::UnitKey;
use base::crc::{ZERO_BLOCK, crc32c};
use base::prng::mix;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The format that this build writes, and the newest that it reads.
pub const FORMAT: u32 = 1;
/// The features that this build knows: a device with others is refused.
pub const FEATURES: u64 = GROWN;
/// The feature of a device that has grown since it was formatted.
pub const GROWN: u64 = 1;
/// First bytes of a superblock.
pub const MAGIC: [u8; 8] = *b"GABNDEV1";
/// First bytes of a batch of the log.
pub const BATCH_MAGIC: u32 = u32::from_le_bytes(*b"GLB1");
/// "No slot" in a part of a write.
pub const NO_SLOT: u32 = u32::MAX;

/// A range of the device: 16 bytes.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct DiskArea {
    /// Where it begins, in bytes.
    pub at: U64,
    /// Its bytes.
    pub len: U64,
}

/// What a device is, and where to begin to read it: 504 bytes, the rest of 512 is zero. All of it lies
/// in one sector, so a torn superblock is an old or a new one.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Superblock {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`FORMAT`].
    pub format: U32,
    /// Of the 512 bytes with this field as zero.
    pub crc: U32,
    /// What a reader must know to read it.
    pub features: U64,
    /// The cluster.
    pub cluster: U64,
    /// The device's id in it.
    pub device: U32,
    /// Zero.
    pub reserved: U32,
    /// Drawn at random by each format: nothing older on the device counts.
    pub uuid: [U64; 2],
    /// Bytes of the device, rounded down to 64 KiB.
    pub size: U64,
    /// Rises by one with every checkpoint; its lowest bit says which copy of root and records counts.
    pub sequence: U64,
    /// Rises by one with every mount; batches of other lives are not this log's.
    pub life: U64,
    /// Where the log begins: a position that only rises; modulo the ring's length it is an offset.
    pub log_position: U64,
    /// The number of the first record there.
    pub log_record: U64,
    /// The crc of the batch before.
    pub log_chain: U32,
    /// Of the root.
    pub root_crc: U32,
    /// Bytes of the records.
    pub records_len: U64,
    /// Of these bytes.
    pub records_crc: U32,
    /// Zero.
    pub reserved2: U32,
    /// Root 0, root 1, records 0, records 1, log; map, sums and slots of the first extent.
    pub areas: [DiskArea; 8],
    /// What each growth has added, up to the first empty one.
    pub growths: [DiskArea; GROWTHS],
}

/// Bytes that a superblock's crc covers.
pub const SUPERBLOCK_BYTES: usize = 512;

/// The head of a batch of the log: 64 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct BatchHead {
    /// [`BATCH_MAGIC`].
    pub magic: U32,
    /// Of all that follows in the batch, this head's rest included; seeded by the device's uuid.
    pub crc: U32,
    /// Bytes of head and records; the batch is padded to 4 KiB.
    pub len: U32,
    /// The crc of the batch before: chains them.
    pub chain: U32,
    /// Where it begins, as in the superblock.
    pub position: U64,
    /// The number of its first record; the others follow without gaps.
    pub record: U64,
    /// The device's life, as in the superblock.
    pub life: U64,
    /// Every record below has its data durable.
    pub settled: U64,
    /// Every payload of a record below is durable in its slot.
    pub destaged: U64,
    /// Records in it.
    pub count: U32,
    /// Zero.
    pub reserved: U32,
}

/// The head of a record: 32 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RecordHead {
    /// Bytes of the whole record.
    pub len: U32,
    /// See [`super::record`].
    pub kind: u8,
    /// See [`super::record`].
    pub flags: u8,
    /// Parts of a write; changes of a change.
    pub parts: U16,
    /// The group.
    pub group: U32,
    /// The volume.
    pub volume: U32,
    /// The unit in the volume.
    pub unit: U32,
    /// Executed entries that follow the parts.
    pub executed: U32,
    /// The blocks that it touches: from this one,
    pub first: U16,
    /// to before this one.
    pub end: U16,
    /// Zero.
    pub reserved: U32,
}

/// One slot's share of a write: 16 bytes; its checksums follow, then its payload, if it has one.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PartHead {
    /// The slot.
    pub slot: U32,
    /// The slot that it replaces, or [`NO_SLOT`].
    pub old: U32,
    /// Which 64 KiB of the unit.
    pub chunk: u8,
    /// See [`super::record::Way`].
    pub way: u8,
    /// Which blocks of the slot, lowest bit first.
    pub blocks: U16,
    /// Zero.
    pub reserved: U32,
}

/// One change of a group's record: 16 bytes; its entries follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ChangeHead {
    /// See [`super::record`].
    pub kind: U32,
    /// How many entries follow.
    pub entries: U32,
    /// An epoch, or zero.
    pub epoch: U64,
}

/// Blocks of one unit: 40 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiskBlocks {
    /// The volume.
    pub volume: U32,
    /// The unit in the volume.
    pub unit: U32,
    /// One bit per block.
    pub blocks: [U64; 4],
}

/// A client's write and the blocks that include it: 72 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiskExecuted {
    /// The client.
    pub sdc: U32,
    /// Zero.
    pub reserved: U32,
    /// Its life.
    pub incarnation: U64,
    /// Its number of the write.
    pub seq: U64,
    /// Its lowest unanswered number.
    pub floor: U64,
    /// Where.
    pub blocks: DiskBlocks,
}

/// The head of what one group remembers, in the area of records: 32 bytes; its dirty blocks follow,
/// then its executed entries.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct GroupHead {
    /// The group.
    pub group: U32,
    /// 1: all blocks are dirty. 2: in `acted` it was a joiner.
    pub flags: U32,
    /// The highest epoch in which it took part.
    pub acted: U64,
    /// The last epoch at whose seal it was equal to another.
    pub base: U64,
    /// Dirty units.
    pub dirty: U32,
    /// Executed entries.
    pub executed: U32,
}

/// Whose a slot is: 16 bytes. All zero: nobody's.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct MapEntry {
    /// The group.
    pub group: U32,
    /// The volume.
    pub volume: U32,
    /// The unit in the volume.
    pub unit: U32,
    /// Which blocks hold data.
    pub valid: U16,
    /// Which 64 KiB of the unit.
    pub chunk: u8,
    /// Zero.
    pub reserved: u8,
}

/// The checksum of a block: CRC-32C of its 4 KiB, mixed with its address, so that the right data in the
/// wrong place fails.
pub fn block_sum(data: &[u8], unit: UnitKey, block: u32) -> u32 {
    crc32c(data) ^ address(unit, block)
}

/// The CRC-32C of a block's data, from its checksum.
pub fn data_crc(sum: u32, unit: UnitKey, block: u32) -> u32 {
    sum ^ address(unit, block)
}

/// The checksum of a block whose data nobody has: what the slot happens to hold fails it, as surely as
/// damage fails any checksum.
pub fn lost_sum(unit: UnitKey, block: u32) -> u32 {
    !(ZERO_BLOCK ^ address(unit, block))
}

fn address(unit: UnitKey, block: u32) -> u32 {
    let at = u64::from(unit.volume.0) << 32 | u64::from(unit.index);
    mix(mix(at) ^ u64::from(block)) as u32
}

/// The checksum of a page in the root: never 0, which stands for a page that was never written.
pub fn page_sum(page: &[u8], uuid: [u64; 2], at: u64) -> u32 {
    (crc32c(page) ^ mix(uuid[0] ^ mix(at)) as u32).max(1)
}

/// The crc of a batch: of everything behind its `crc` field, tied to the device.
pub fn batch_crc(batch: &[u8], uuid: [u64; 2]) -> u32 {
    crc32c(&batch[8..]) ^ mix(uuid[0]) as u32
}

/// The crc of a superblock's 512 bytes.
pub fn superblock_crc(bytes: &[u8]) -> u32 {
    let mut copy = [0; SUPERBLOCK_BYTES];
    copy.copy_from_slice(&bytes[..SUPERBLOCK_BYTES]);
    copy[12..16].fill(0);
    crc32c(&copy)
}

const _: () = {
    assert!(size_of::<Superblock>() == 504);
    assert!(size_of::<Superblock>() <= SUPERBLOCK_BYTES);
    assert!(size_of::<BatchHead>() == 64);
    assert!(size_of::<RecordHead>() == 32);
    assert!(size_of::<PartHead>() == 16);
    assert!(size_of::<ChangeHead>() == 16);
    assert!(size_of::<DiskBlocks>() == 40);
    assert!(size_of::<DiskExecuted>() == 72);
    assert!(size_of::<GroupHead>() == 32);
    assert!(size_of::<MapEntry>() == 16);
};
