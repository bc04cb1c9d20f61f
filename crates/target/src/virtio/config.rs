//! The features and the configuration space of the disk (VIRTIO 1.2, 5.2.3 and 5.2.4).

use super::{Disk, SECTOR, SEGMENTS};

/// Bytes of the configuration space that the offered features use.
const LEN: usize = 60;

/// Most queues of a disk.
pub const QUEUES: u16 = 16;
/// Longest part of a request in bytes (`size_max`).
const SEGMENT: u32 = 256 << 10;
/// Longest read and write in bytes: the most parts, each of the longest length (31.5 MiB).
pub const TRANSFER: u32 = SEGMENT * SEGMENTS as u32;
/// Longest range that one request frees or fills with zeros, in bytes.
pub const ZEROS: u32 = 1 << 30;
/// Sectors of a block, the unit in which space is freed: 4 KiB.
const BLOCK: u32 = 8;

/// VIRTIO_BLK_F_SIZE_MAX: the configuration has the longest part of a request.
const SIZE_MAX: u64 = 1 << 1;
/// VIRTIO_BLK_F_SEG_MAX: the configuration has the most parts of a request.
const SEG_MAX: u64 = 1 << 2;
/// VIRTIO_BLK_F_RO: the disk is read-only.
const READ_ONLY: u64 = 1 << 5;
/// VIRTIO_BLK_F_BLK_SIZE: the configuration has the size of a block.
const BLK_SIZE: u64 = 1 << 6;
/// VIRTIO_BLK_F_TOPOLOGY: the configuration has the optimal alignment.
const TOPOLOGY: u64 = 1 << 10;
/// Several queues.
const MQ: u64 = 1 << 12;
/// Space can be freed.
const DISCARD: u64 = 1 << 13;
/// Ranges can be filled with zeros.
const WRITE_ZEROES: u64 = 1 << 14;
/// Descriptors in tables of their own.
const INDIRECT_DESC: u64 = 1 << 28;
/// Signals by event indices.
pub const EVENT_IDX: u64 = 1 << 29;
/// Not a legacy device.
const VERSION_1: u64 = 1 << 32;

/// Returns the features that a disk offers. Neither a flush nor a write cache is among them: an
/// answer means durable (R7).
pub fn features(read_only: bool) -> u64 {
    let all = SIZE_MAX | SEG_MAX | BLK_SIZE | TOPOLOGY | MQ | INDIRECT_DESC | EVENT_IDX | VERSION_1;
    match read_only {
        true => all | READ_ONLY,
        false => all | DISCARD | WRITE_ZEROES,
    }
}

/// Copies a part of the configuration space. Beyond its end are zeros.
pub fn read(disk: Disk, from: usize, to: &mut [u8]) {
    let space = space(disk);
    to.fill(0);
    let there = space.get(from..).unwrap_or_default();
    let len = there.len().min(to.len());
    to[..len].copy_from_slice(&there[..len]);
}

fn space(disk: Disk) -> [u8; LEN] {
    let mut space = [0; LEN];
    let mut put = |at: usize, bytes: &[u8]| space[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &(disk.size / SECTOR).to_le_bytes());
    put(8, &SEGMENT.to_le_bytes());
    put(12, &u32::from(SEGMENTS).to_le_bytes());
    put(20, &(SECTOR as u32).to_le_bytes());
    // A physical block is 2^3 sectors, which is also the smallest efficient request.
    put(24, &[BLOCK.trailing_zeros() as u8]);
    put(26, &(BLOCK as u16).to_le_bytes());
    put(34, &QUEUES.to_le_bytes());
    let zeros = ZEROS / SECTOR as u32;
    // For discards and for write zeroes: the most sectors and the most ranges of one request.
    put(36, &zeros.to_le_bytes());
    put(40, &1u32.to_le_bytes());
    put(44, &BLOCK.to_le_bytes());
    put(48, &zeros.to_le_bytes());
    put(52, &1u32.to_le_bytes());
    // Write zeroes may free space.
    put(56, &[1]);
    space
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: Disk = Disk { size: 1 << 30, read_only: false };

    #[test]
    fn the_space_is_as_the_standard_lays_it_out() {
        let mut all = [0xff; 64];
        read(DISK, 0, &mut all);
        let number = |at: usize, len: usize| {
            all[at..at + len].iter().rev().fold(0, |sum, b| sum << 8 | u64::from(*b))
        };
        assert_eq!(number(0, 8), 2 << 20);
        assert_eq!((number(8, 4), number(12, 4)), (256 << 10, 126));
        assert_eq!((number(20, 4), number(24, 1), number(26, 2)), (512, 3, 8));
        assert_eq!(number(34, 2), 16);
        assert_eq!((number(36, 4), number(40, 4), number(44, 4)), (2 << 20, 1, 8));
        assert_eq!((number(48, 4), number(52, 4), number(56, 1)), (2 << 20, 1, 1));
        assert_eq!(number(57, 7), 0, "zeros behind it");
    }

    #[test]
    fn a_part_of_the_space_is_that_part() {
        let mut part = [0xff; 4];
        read(DISK, 12, &mut part);
        assert_eq!(part, 126u32.to_le_bytes());
        for beyond in [LEN, 1000] {
            read(DISK, beyond, &mut part);
            assert_eq!(part, [0; 4]);
        }
    }

    #[test]
    fn a_disk_that_is_read_only_offers_no_change() {
        assert_eq!(features(false) & (READ_ONLY | DISCARD), DISCARD);
        assert_eq!(features(true) & (READ_ONLY | DISCARD | WRITE_ZEROES), READ_ONLY);
    }
}
