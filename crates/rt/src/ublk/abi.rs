//! The interface of the kernel's user-space block driver (`linux/ublk_cmd.h`, Linux 6.12).

/// The most requests under way on a device.
pub(super) const DEPTH: u16 = 128;
/// Most bytes of one read or write.
pub(super) const TRANSFER: u32 = 512 << 10;
/// Most bytes that one request makes zero.
const ZEROES: u32 = 1 << 30;
/// Bytes of a sector, the unit of places and lengths.
pub(super) const SECTOR: u64 = 512;

// Orders for /dev/ublk-control, with the ioctl encoding of Linux 6.4.
pub(super) const GET_INFO: u32 = encode(READS, 0x02, ORDER);
pub(super) const ADD: u32 = encode(READS | WRITES, 0x04, ORDER);
pub(super) const DELETE: u32 = encode(READS | WRITES, 0x05, ORDER);
pub(super) const START: u32 = encode(READS | WRITES, 0x06, ORDER);
pub(super) const STOP: u32 = encode(READS | WRITES, 0x07, ORDER);
pub(super) const SET_PARAMS: u32 = encode(READS | WRITES, 0x08, ORDER);
pub(super) const RECOVER: u32 = encode(READS | WRITES, 0x10, ORDER);
pub(super) const RECOVERED: u32 = encode(READS | WRITES, 0x11, ORDER);
pub(super) const GET_FEATURES: u32 = encode(READS, 0x13, ORDER);
pub(super) const UPDATE_SIZE: u32 = encode(READS | WRITES, 0x15, ORDER);

// Commands for the device of one disk.
pub(super) const FETCH: u32 = encode(READS | WRITES, 0x20, COMMIT_BYTES);
pub(super) const COMMIT: u32 = encode(READS | WRITES, 0x21, COMMIT_BYTES);

const WRITES: u32 = 1;
const READS: u32 = 2;
/// Bytes of an order, and of a command.
const ORDER: u32 = 32;
const COMMIT_BYTES: u32 = 16;

const fn encode(direction: u32, number: u32, bytes: u32) -> u32 {
    direction << 30 | bytes << 16 | (b'u' as u32) << 8 | number
}

/// If the server ends, the device stays, and its requests wait for another server.
const USER_RECOVERY: u64 = 1 << 3;
/// That server gets them again.
const USER_RECOVERY_REISSUE: u64 = 1 << 4;
/// Orders have the ioctl encoding.
const IOCTL_ENCODE: u64 = 1 << 6;
/// The server reads and writes the data of requests with system calls (6.5).
const USER_COPY: u64 = 1 << 7;
/// The size can change (6.16).
pub(super) const UPDATES_SIZE: u64 = 1 << 10;

/// The features that a device needs.
pub(super) const NEEDED: u64 = USER_RECOVERY | USER_RECOVERY_REISSUE | IOCTL_ENCODE | USER_COPY;

/// Bytes of the description of a device.
pub(super) const INFO: usize = 64;
/// Bytes of the properties of a disk: all groups that Linux 6.12 knows up to those of discards.
pub(super) const PARAMS: usize = 8 + 32 + 20;
/// Bytes of the description of a request.
pub(super) const DESCRIPTION: usize = 24;
/// Where the data of requests begins in the file of a device.
const DATA_AT: u64 = 1 << 31;
/// The number of the first bit of the request's number in the place of its data.
const NUMBER_BIT: u32 = 25;

/// The properties of a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UblkDisk {
    /// Its size in bytes: whole sectors of 512 bytes.
    pub size: u64,
    /// It can't be written.
    pub read_only: bool,
    /// A number by which [`Ublk::find`](super::Ublk::find) finds the device.
    pub mark: u64,
}

/// The kind of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UblkOp {
    /// Read data.
    Read,
    /// Write data.
    Write,
    /// Make everything durable that was written.
    Flush,
    /// Make a range read as zeros; if true, its space may be freed.
    Zero(bool),
    /// A request that this program does not know.
    Unknown,
}

/// A request of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UblkRequest {
    /// Its number, below 128. Another request has it only after this one was answered.
    pub tag: u16,
    /// What is to be done.
    pub op: UblkOp,
    /// Where the range begins on the disk, in bytes.
    pub at: u64,
    /// Bytes of the range.
    pub len: u32,
}

/// Writes a number into bytes.
fn put<const N: usize>(to: &mut [u8], at: usize, bytes: [u8; N]) {
    to[at..at + N].copy_from_slice(&bytes);
}

/// Returns the bytes of an order. `data`: the address and the length of what it reads or fills.
pub(super) fn order(device: u32, data: (u64, u16), value: u64) -> [u8; 80] {
    let mut bytes = [0; 80];
    put(&mut bytes, 0, device.to_ne_bytes());
    put(&mut bytes, 4, u16::MAX.to_ne_bytes()); // no queue
    put(&mut bytes, 6, data.1.to_ne_bytes());
    put(&mut bytes, 8, data.0.to_ne_bytes());
    put(&mut bytes, 16, value.to_ne_bytes());
    bytes
}

/// Returns the description of a new device, whose number the kernel chooses.
pub(super) fn info(disk: &UblkDisk, features: u64) -> [u8; INFO] {
    let mut bytes = [0; INFO];
    put(&mut bytes, 0, 1u16.to_ne_bytes()); // queues
    put(&mut bytes, 2, DEPTH.to_ne_bytes());
    put(&mut bytes, 8, TRANSFER.to_ne_bytes());
    put(&mut bytes, 12, u32::MAX.to_ne_bytes());
    put(&mut bytes, 24, (NEEDED | features & UPDATES_SIZE).to_ne_bytes());
    put(&mut bytes, 32, disk.mark.to_ne_bytes());
    bytes
}

/// A device, as the kernel describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Info {
    pub(super) number: u32,
    pub(super) mark: u64,
    /// It has a disk.
    pub(super) started: bool,
}

/// Reads the description of a device.
pub(super) fn read_info(info: &[u8; INFO]) -> Info {
    let number = u32::from_ne_bytes(*info[12..].first_chunk().expect("it is long enough"));
    let mark = u64::from_ne_bytes(*info[32..].first_chunk().expect("it is long enough"));
    Info { number, mark, started: info[4] != 0 }
}

/// Returns the properties of a disk.
pub(super) fn params(disk: &UblkDisk) -> [u8; PARAMS] {
    let mut bytes = [0; PARAMS];
    put(&mut bytes, 0, (PARAMS as u32).to_ne_bytes());
    put(&mut bytes, 4, 3u32.to_ne_bytes()); // the groups: basic, discard
    put(&mut bytes, 8, u32::from(disk.read_only).to_ne_bytes());
    // Logical blocks of 512 bytes, physical ones of 4 KiB, which is also the smallest length of
    // I/O that costs nothing extra; 64 KiB are best.
    put(&mut bytes, 12, [9, 12, 16, 12]);
    put(&mut bytes, 16, (TRANSFER / SECTOR as u32).to_ne_bytes());
    put(&mut bytes, 24, (disk.size / SECTOR).to_ne_bytes());
    put(&mut bytes, 44, 4096u32.to_ne_bytes()); // granularity of discards
    put(&mut bytes, 48, (ZEROES / SECTOR as u32).to_ne_bytes());
    put(&mut bytes, 52, (ZEROES / SECTOR as u32).to_ne_bytes());
    put(&mut bytes, 56, 1u16.to_ne_bytes()); // ranges of one discard
    bytes
}

/// Returns the bytes of a command: the answer to the request with this number, or nothing yet.
pub(super) fn command(tag: u16, result: i32) -> [u8; 16] {
    let mut bytes = [0; 16];
    put(&mut bytes, 2, tag.to_ne_bytes());
    put(&mut bytes, 4, result.to_ne_bytes());
    bytes
}

/// Reads the description of a request.
pub(super) fn request(tag: u16, bytes: &[u8; DESCRIPTION]) -> UblkRequest {
    let word = |at: usize| u32::from_ne_bytes(*bytes[at..].first_chunk().expect("it is there"));
    let start = u64::from_ne_bytes(*bytes[8..].first_chunk().expect("it is there"));
    let (flags, sectors) = (word(0), word(4));
    let keeps_space = flags & 1 << 15 != 0; // REQ_NOUNMAP
    let op = match flags & 0xff {
        0 => UblkOp::Read,
        1 => UblkOp::Write,
        2 => UblkOp::Flush,
        3 => UblkOp::Zero(true),
        5 => UblkOp::Zero(!keeps_space),
        _ => UblkOp::Unknown,
    };
    // The kernel keeps to the bounds of `params`.
    let len = sectors.saturating_mul(SECTOR as u32);
    UblkRequest { tag, op, at: start.saturating_mul(SECTOR), len }
}

/// Returns the place of the data of a request in the file of its device.
pub(super) fn data_at(tag: u16) -> u64 {
    DATA_AT + (u64::from(tag) << NUMBER_BIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: UblkDisk = UblkDisk { size: 1 << 30, read_only: true, mark: 0x1234_5678_9abc };

    #[test]
    fn orders_are_numbered_as_the_kernel_numbers_them() {
        // From the header's macros.
        assert_eq!((ADD, GET_INFO, FETCH), (0xc020_7504, 0x8020_7502, 0xc010_7520));
        let bytes = order(7, (0x1122, 64), 9);
        assert_eq!(bytes[..8], [7, 0, 0, 0, 0xff, 0xff, 64, 0]);
        assert_eq!((bytes[8], bytes[9], bytes[16]), (0x22, 0x11, 9));
    }

    #[test]
    fn a_device_is_described_and_found_by_its_mark() {
        let mut bytes = info(&DISK, u64::MAX);
        assert_eq!(bytes[..4], [1, 0, 128, 0]);
        let found = Info { number: u32::MAX, mark: DISK.mark, started: false };
        assert_eq!(read_info(&bytes), found);
        put(&mut bytes, 12, 3u32.to_ne_bytes());
        put(&mut bytes, 4, 2u16.to_ne_bytes());
        assert_eq!(read_info(&bytes), Info { number: 3, started: true, ..found });
        let params = params(&DISK);
        assert_eq!((params[0], params[4], params[8]), (60, 3, 1), "length, groups, read-only");
        assert_eq!(params[24..28], (2u32 << 20).to_ne_bytes(), "sectors");
    }

    #[test]
    fn requests_are_read_as_the_kernel_describes_them() {
        let mut bytes = [0; DESCRIPTION];
        let mut of = |flags: u32| {
            put(&mut bytes, 0, flags.to_ne_bytes());
            put(&mut bytes, 4, 8u32.to_ne_bytes());
            put(&mut bytes, 8, 16u64.to_ne_bytes());
            request(5, &bytes)
        };
        let read = of(0);
        assert_eq!(read, UblkRequest { tag: 5, op: UblkOp::Read, at: 8192, len: 4096 });
        assert_eq!((of(1 | 1 << 13).op, of(2).op), (UblkOp::Write, UblkOp::Flush));
        assert_eq!((of(3).op, of(5).op), (UblkOp::Zero(true), UblkOp::Zero(true)));
        assert_eq!((of(5 | 1 << 15).op, of(9).op), (UblkOp::Zero(false), UblkOp::Unknown));
        assert_eq!(data_at(1), 0x8200_0000);
    }
}
