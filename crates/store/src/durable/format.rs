//! The bytes on the device, format 1: fixed little-endian structs, and their checksums.
//!
//! `docs/internals/on-disk.md` draws them. Any change here makes a new format: the golden bytes in
//! `tests/all/format.rs` catch it.

use super::layout::GROWTHS;
use base::UnitKey;
use base::crc::{ZERO_BLOCK, crc32c};
use base::prng::mix;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The format that this build writes, and the newest one that it reads.
pub const FORMAT: u32 = 1;
/// Feature bit of a device that has grown since it was formatted. `base::level` says which features
/// a device may have at which level.
pub const GROWN: u64 = 1;
/// Magic of a superblock: its first 8 bytes.
pub const MAGIC: [u8; 8] = *b"GABNDEV1";
/// Magic of a log batch: its first 4 bytes.
pub const BATCH_MAGIC: u32 = u32::from_le_bytes(*b"GLB1");
/// Means "no slot" in a part of a write.
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
    /// Start, in bytes from the start of the device.
    pub at: U64,
    /// Length in bytes.
    pub len: U64,
}

/// Identity of a device, and where to start reading it: 504 bytes; the rest of the 512 bytes is
/// zero. All of it lies in one sector, so a torn superblock is either the old or the new one.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Superblock {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`FORMAT`].
    pub format: U32,
    /// CRC-32C of the 512 bytes, with this field as zero.
    pub crc: U32,
    /// Features that a reader must know.
    pub features: U64,
    /// Id of the cluster.
    pub cluster: U64,
    /// Id of the device in the cluster.
    pub device: U32,
    /// The level of the cluster that wrote it; 0 means 1, as before there were levels. A build that
    /// knows no such level reads nothing else of the device.
    pub level: U32,
    /// Drawn at random by each format. Nothing of an earlier format on the device counts.
    pub uuid: [U64; 2],
    /// Size of the device when it was formatted or last grew, in bytes, rounded down to 64 KiB.
    pub size: U64,
    /// Rises by one with every checkpoint. Its lowest bit says which root and records count.
    pub sequence: U64,
    /// Number of the mount: rises by one with every mount. A batch with another number does not
    /// belong to this log.
    pub life: U64,
    /// Where the log begins. Positions only rise; modulo the ring's length they are offsets.
    pub log_position: U64,
    /// Number of the first record there.
    pub log_record: U64,
    /// CRC of the batch before that position.
    pub log_chain: U32,
    /// CRC-32C of the root.
    pub root_crc: U32,
    /// Length of the records in bytes.
    pub records_len: U64,
    /// CRC-32C of the records.
    pub records_crc: U32,
    /// Zero.
    pub reserved2: U32,
    /// Root 0, root 1, records 0, records 1, log; map, sums and slots of the first extent.
    pub areas: [DiskArea; 8],
    /// Range that each growth added. The first empty entry ends the list.
    pub growths: [DiskArea; GROWTHS],
}

/// Number of bytes that a superblock's CRC covers.
pub const SUPERBLOCK_BYTES: usize = 512;

/// Head of a log batch: 64 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct BatchHead {
    /// [`BATCH_MAGIC`].
    pub magic: U32,
    /// CRC of everything after this field, up to `len`, mixed with the device's uuid.
    pub crc: U32,
    /// Length of head and records in bytes. On the device, a batch is padded to 4 KiB.
    pub len: U32,
    /// CRC of the previous batch: it chains the batches.
    pub chain: U32,
    /// Position of this batch, counted as in the superblock.
    pub position: U64,
    /// Number of its first record. The others follow without gaps.
    pub record: U64,
    /// Number of the mount, as in the superblock.
    pub life: U64,
    /// Every record with a lower number has its data durable.
    pub settled: U64,
    /// Every payload of a record with a lower number is durable in its slot.
    pub destaged: U64,
    /// Number of records in the batch.
    pub count: U32,
    /// How many records are named behind the batch's own: eight bytes with the number of each.
    /// Their data is durable, although that of an older record is not.
    pub named: U32,
}

/// Head of a record: 32 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RecordHead {
    /// Length of the whole record in bytes.
    pub len: U32,
    /// Kind of the record; see [`super::record`].
    pub kind: u8,
    /// See [`super::record`].
    pub flags: u8,
    /// Number of parts of a write, or of changes of a change.
    pub parts: U16,
    /// The group.
    pub group: U32,
    /// The volume.
    pub volume: U32,
    /// The unit in the volume.
    pub unit: U32,
    /// Number of executed entries that follow the parts.
    pub executed: U32,
    /// First block that the write touches.
    pub first: U16,
    /// The block after the last one.
    pub end: U16,
    /// Zero.
    pub reserved: U32,
}

/// One slot's share of a write: 16 bytes. A checksum per block follows (none for
/// [`super::record::WriteMode::Clear`]), then the payload, if the record carries it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PartHead {
    /// The slot.
    pub slot: U32,
    /// The slot that it replaces, or [`NO_SLOT`].
    pub old: U32,
    /// Index of the 64 KiB in the unit.
    pub chunk: u8,
    /// How the data gets to the slot; see [`super::record::WriteMode`].
    pub way: u8,
    /// Blocks of the slot, lowest bit first.
    pub blocks: U16,
    /// Zero.
    pub reserved: U32,
}

/// One change of a group's record: 16 bytes; its entries follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ChangeHead {
    /// Kind of the change; see [`super::record`].
    pub kind: U32,
    /// Number of entries that follow. Kind 1 has none: here, 1 means that the replica is a joiner.
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

/// A client's write, and blocks whose content includes it: 72 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiskExecuted {
    /// The client.
    pub sdc: U32,
    /// Zero.
    pub reserved: U32,
    /// Incarnation of the client.
    pub incarnation: U64,
    /// The client's number of the write.
    pub seq: U64,
    /// The client's lowest unanswered number in this group.
    pub floor: U64,
    /// The unit and the blocks.
    pub blocks: DiskBlocks,
}

/// Head of one group's record in the records area: 32 bytes. Its dirty blocks follow, then its
/// executed entries.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct GroupHead {
    /// The group.
    pub group: U32,
    /// 1: all blocks are dirty. 2: the replica was a joiner in `acted`.
    pub flags: U32,
    /// Highest epoch in which the replica took part.
    pub acted: U64,
    /// Last epoch at whose seal the replica was equal to another one in sync.
    pub base: U64,
    /// Number of dirty units that follow.
    pub dirty: U32,
    /// Number of executed entries that follow.
    pub executed: U32,
}

/// Owner of a slot: 16 bytes. All zeros: the slot has no owner.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct MapEntry {
    /// The group.
    pub group: U32,
    /// The volume.
    pub volume: U32,
    /// The unit in the volume.
    pub unit: U32,
    /// Blocks that hold data, lowest bit first.
    pub valid: U16,
    /// Index of the 64 KiB in the unit.
    pub chunk: u8,
    /// Zero.
    pub reserved: u8,
}

/// Returns the checksum of a block: the CRC-32C of its 4 KiB, mixed with its address, so that the
/// right data in the wrong place fails the check.
pub fn block_sum(data: &[u8], unit: UnitKey, block: u32) -> u32 {
    crc32c(data) ^ address(unit, block)
}

/// Returns the CRC-32C of a block's data, given its checksum.
pub fn data_crc(sum: u32, unit: UnitKey, block: u32) -> u32 {
    sum ^ address(unit, block)
}

/// Returns the checksum of a block whose data is lost. The content of the slot fails it, as surely
/// as damaged data fails any checksum.
pub fn unmatchable_sum(unit: UnitKey, block: u32) -> u32 {
    !(ZERO_BLOCK ^ address(unit, block))
}

fn address(unit: UnitKey, block: u32) -> u32 {
    let at = u64::from(unit.volume.0) << 32 | u64::from(unit.index);
    mix(mix(at) ^ u64::from(block)) as u32
}

/// Returns the checksum of a page for the root. `at` is the position of the page's first copy. The
/// result is never 0, which stands for a page that was never written.
pub fn page_sum(page: &[u8], uuid: [u64; 2], at: u64) -> u32 {
    (crc32c(page) ^ mix(uuid[0] ^ mix(at)) as u32).max(1)
}

/// Returns the CRC of a batch: of everything after its `crc` field, mixed with the device's uuid.
pub fn batch_crc(batch: &[u8], uuid: [u64; 2]) -> u32 {
    crc32c(&batch[8..]) ^ mix(uuid[0]) as u32
}

/// Returns the CRC of a superblock's 512 bytes, with the `crc` field as zero.
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
