//! Decodes the request in a chain (VIRTIO 1.2, 5.2.6).
//!
//! Invariant: the range of a decoded request is within the disk, consists of whole sectors, and is
//! not longer than a request may be. Everything else is refused here.

use super::{Broken, Chain, Memory, SECTOR, config};

/// Bytes of a request's header.
const HEAD: usize = 16;
/// Bytes of the disk's name, as `GET_ID` returns it.
pub const ID: usize = 20;

const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;
/// Of a range of zeros: its space may be freed.
const UNMAP: u32 = 1;

/// The last byte of a request (5.2.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Status {
    /// The request was done.
    Ok = 0,
    /// The request failed.
    IoError = 1,
    /// The device has no such request.
    Unsupported = 2,
}

/// The properties of the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Disk {
    /// Its size in bytes.
    pub size: u64,
    /// It can't be written.
    pub read_only: bool,
}

/// The operation of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// Read into the part that the device writes.
    Read {
        /// Start of the range in bytes.
        at: u64,
        /// Its length in bytes.
        len: u32,
    },
    /// Write the part that the device reads.
    Write {
        /// Start of the range in bytes.
        at: u64,
        /// Its length in bytes.
        len: u32,
    },
    /// Make a range read as zeros.
    Zero {
        /// Start of the range in bytes.
        at: u64,
        /// Its length in bytes.
        len: u32,
        /// Its space may be freed.
        hole: bool,
    },
    /// The disk's name, of at most [`ID`] bytes.
    Id,
    /// The status is known already. A flush is done at once: an answer means durable (R7).
    Answered(Status),
}

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The operation of a request.
    pub ask: Ask,
    /// The address of its status.
    pub status: u64,
}

impl Request {
    /// Decodes a request. The rest of the chain is its data.
    pub fn parse(memory: &impl Memory, chain: &mut Chain, disk: Disk) -> Result<Request, Broken> {
        let mut head = [0; HEAD];
        chain.take_head(memory, &mut head)?;
        let status = chain.take_status()?;
        let [a, b, c, d, _, _, _, _, sector @ ..] = head;
        let (kind, sector) = (u32::from_le_bytes([a, b, c, d]), u64::from_le_bytes(sector));
        let ask = match kind {
            IN => disk
                .range(sector, chain.writable(), config::TRANSFER)
                .map(|(at, len)| Ask::Read { at, len }),
            OUT => disk
                .changed(sector, chain.readable(), config::TRANSFER)
                .map(|(at, len)| Ask::Write { at, len }),
            FLUSH => Err(Status::Ok),
            GET_ID => Ok(Ask::Id),
            DISCARD | WRITE_ZEROES => {
                let mut range = [0; 16];
                if chain.readable() != range.len() as u64 || !chain.read(memory, &mut range) {
                    Err(Status::IoError)
                } else {
                    zero(kind, range, disk)
                }
            }
            _ => Err(Status::Unsupported),
        };
        Ok(Request { ask: ask.unwrap_or_else(Ask::Answered), status })
    }
}

/// Decodes the range of a discard or write zeroes request.
fn zero(kind: u32, range: [u8; 16], disk: Disk) -> Result<Ask, Status> {
    let [sector @ .., a, b, c, d, e, f, g, h] = range;
    let (sectors, flags) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
    let hole = match (kind, flags) {
        (DISCARD, 0) | (WRITE_ZEROES, UNMAP) => true,
        (WRITE_ZEROES, 0) => false,
        _ => return Err(Status::Unsupported),
    };
    let bytes = u64::from(sectors) * SECTOR;
    let (at, len) = disk.changed(u64::from_le_bytes(sector), bytes, config::ZEROS)?;
    Ok(Ask::Zero { at, len, hole })
}

impl Disk {
    /// Checks a range that begins with a sector.
    fn range(self, sector: u64, len: u64, most: u32) -> Result<(u64, u32), Status> {
        let at = sector.checked_mul(SECTOR).ok_or(Status::IoError)?;
        let end = at.checked_add(len).ok_or(Status::IoError)?;
        let fine = len > 0 && len.is_multiple_of(SECTOR) && len <= most.into() && end <= self.size;
        if fine { Ok((at, len as u32)) } else { Err(Status::IoError) }
    }

    /// Checks a range that a request would change.
    fn changed(self, sector: u64, len: u64, most: u32) -> Result<(u64, u32), Status> {
        if self.read_only { Err(Status::IoError) } else { self.range(sector, len, most) }
    }
}
