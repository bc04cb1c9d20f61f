//! Layouts of the log: area headers and batches. They are little-endian, and each has a CRC-32C of
//! its own.

use alloc::vec::Vec;
use base::crc::crc32c;

/// Where the areas begin. The first two take turns. The third is where builds before format 3 had
/// their second area: it is read and no longer written.
pub const AREAS: [u64; 3] = [0, 1 << 30, 1 << 40];
/// The longest image. Its area has room behind it for `limit` bytes of batches and one batch more.
pub const IMAGE_MAX: u64 = 768 << 20;
/// Headers, images and batches begin at multiples of this.
pub const BLOCK: usize = 4096;
/// The layout's version.
pub const FORMAT: u32 = 3;
/// The version before it: only the place of the second area differs.
const FORMAT_FAR: u32 = 2;
/// The most bytes of records in one batch.
pub const BATCH_MAX: usize = 2 << 20;
/// Bytes of a batch's header.
pub(super) const BATCH_HEAD: usize = 40;

const MAGIC: [u8; 8] = *b"GABNMDM1";
const BATCH_MAGIC: [u8; 4] = *b"GMLB";
/// The longest image that a valid header may announce.
const BODY_MAX: u64 = 4 << 30;

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// The header of an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    /// Which turn this is; the highest one counts.
    pub generation: u64,
    /// Bytes of the image.
    pub body_len: u64,
    /// Their CRC-32C.
    pub body_crc: u32,
    /// Batches begin at most this many bytes after the end of the image.
    pub limit: u64,
}

/// The content of a header block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Found {
    Header(Header),
    Zeros,
    Version(u32),
    Garbage,
}

impl Header {
    pub(super) fn of(body: &[u8], generation: u64, limit: u64) -> Header {
        Header { generation, body_len: body.len() as u64, body_crc: crc32c(body), limit }
    }

    pub(super) fn to_block(self) -> Vec<u8> {
        let mut block = Vec::with_capacity(BLOCK);
        block.extend(MAGIC);
        block.extend([0; 4]);
        block.extend(FORMAT.to_le_bytes());
        block.extend(self.generation.to_le_bytes());
        block.extend(self.body_len.to_le_bytes());
        block.extend(self.limit.to_le_bytes());
        block.extend(self.body_crc.to_le_bytes());
        block.resize(BLOCK, 0);
        let crc = crc32c(&block[12..]);
        block[8..12].copy_from_slice(&crc.to_le_bytes());
        block
    }

    /// Returns true for the header of a build that had its second area far away, at 1 TiB.
    pub(super) fn is_far(block: &[u8]) -> bool {
        block[..8] == MAGIC && u32_at(block, 12) == FORMAT_FAR
    }

    pub(super) fn read(block: &[u8]) -> Found {
        if block.iter().all(|b| *b == 0) {
            return Found::Zeros;
        }
        if block[..8] != MAGIC || u32_at(block, 8) != crc32c(&block[12..BLOCK]) {
            return Found::Garbage;
        }
        let header = Header {
            generation: u64_at(block, 16),
            body_len: u64_at(block, 24),
            limit: u64_at(block, 32),
            body_crc: u32_at(block, 40),
        };
        match u32_at(block, 12) {
            FORMAT | FORMAT_FAR if header.generation > 0 && header.body_len <= BODY_MAX => {
                Found::Header(header)
            }
            FORMAT | FORMAT_FAR => Found::Garbage,
            version => Found::Version(version),
        }
    }
}

/// Returns the bytes of the image that an area holds, by its header block; 0 if the block is no
/// header.
pub fn image_len(block: &[u8; BLOCK]) -> u64 {
    match Header::read(block) {
        Found::Header(header) => header.body_len,
        _ => 0,
    }
}

/// Records to be written together.
#[derive(Clone, Default, Debug)]
pub struct Batch {
    payload: Vec<u8>,
    count: u32,
}

impl Batch {
    /// Returns the number of records in the batch.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns the bytes of the batch's payload; at most [`BATCH_MAX`].
    pub fn bytes(&self) -> usize {
        self.payload.len()
    }

    /// Returns true when the batch has no record.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds a record. Returns false and adds nothing when the batch is full.
    pub fn push(&mut self, record: &[u8]) -> bool {
        if self.payload.len() + 4 + record.len() > BATCH_MAX {
            return false;
        }
        self.payload.extend((record.len() as u32).to_le_bytes());
        self.payload.extend(record);
        self.count += 1;
        true
    }
}

/// Returns a batch's bytes on the disk, and its crc.
pub(super) fn write_batch(batch: Batch, chain: u32, generation: u64, first: u64) -> (Vec<u8>, u32) {
    let mut data = Vec::with_capacity((BATCH_HEAD + batch.payload.len()).next_multiple_of(BLOCK));
    data.extend(BATCH_MAGIC);
    data.extend([0; 4]);
    data.extend(chain.to_le_bytes());
    data.extend((batch.payload.len() as u32).to_le_bytes());
    data.extend(generation.to_le_bytes());
    data.extend(first.to_le_bytes());
    data.extend(batch.count.to_le_bytes());
    data.extend([0; 4]);
    data.extend(batch.payload);
    let crc = crc32c(&data[8..]);
    data[4..8].copy_from_slice(&crc.to_le_bytes());
    data.resize(data.len().next_multiple_of(BLOCK), 0);
    (data, crc)
}

/// The content of a place where a batch may be.
pub(super) enum Place<'a> {
    /// More bytes are needed to decide.
    Need,
    /// No batch of this generation.
    None,
    /// A batch that is whole and undamaged, by its own crc.
    Batch { chain: u32, crc: u32, first: u64, count: u32, payload: &'a [u8] },
}

/// Examines bytes that begin where a batch may begin.
pub(super) fn read_batch(bytes: &[u8], generation: u64) -> Place<'_> {
    if bytes.len() < BATCH_HEAD {
        return Place::Need;
    }
    let len = u32_at(bytes, 12) as usize;
    if bytes[..4] != BATCH_MAGIC || u64_at(bytes, 16) != generation || len > BATCH_MAX {
        return Place::None;
    }
    let Some(whole) = bytes.get(8..BATCH_HEAD + len) else { return Place::Need };
    let crc = u32_at(bytes, 4);
    if crc32c(whole) != crc {
        return Place::None;
    }
    Place::Batch {
        chain: u32_at(bytes, 8),
        crc,
        first: u64_at(bytes, 24),
        count: u32_at(bytes, 32),
        payload: &bytes[BATCH_HEAD..BATCH_HEAD + len],
    }
}

/// Returns the bytes that a batch with this payload takes on the disk.
pub(super) fn batch_len(payload: usize) -> u64 {
    (BATCH_HEAD + payload).next_multiple_of(BLOCK) as u64
}

/// Splits a payload into its records; `None` when the lengths do not add up.
pub(super) fn records(mut payload: &[u8], count: u32) -> Option<Vec<&[u8]>> {
    let mut records = Vec::new();
    while let Some((len, rest)) = payload.split_at_checked(4) {
        let (record, rest) = rest.split_at_checked(u32_at(len, 0) as usize)?;
        records.push(record);
        payload = rest;
    }
    (payload.is_empty() && records.len() == count as usize).then_some(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_tells_how_long_the_image_is_and_nothing_else_does() {
        let mut block = [0; BLOCK];
        assert_eq!(image_len(&block), 0);
        block.copy_from_slice(&Header::of(&[1; 5000], 7, 0).to_block());
        assert_eq!(image_len(&block), 5000);
        block[30] ^= 1;
        assert_eq!(image_len(&block), 0);
    }
}
