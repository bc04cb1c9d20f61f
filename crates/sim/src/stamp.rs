//! Content of the workload's writes: each 512-byte sector repeats its writer and its own address 32
//! times, so that a read shows who wrote a sector, and whether it is torn or misplaced.

use crate::check::register::Value;
use base::{SECTOR, VolumeId};
use std::fmt;

const RECORD: usize = 16;

/// A defect of a sector that no write of the workload can have left behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Damage {
    /// Its parts are of different origin.
    Torn,
    /// It holds bytes that no write contains.
    Garbage,
    /// It holds a sector that was written to another address.
    Misplaced {
        /// The write that it is from.
        writer: Value,
        /// The volume of that write.
        volume: VolumeId,
        /// The sector's address in that volume.
        sector: u32,
    },
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::Torn => write!(f, "is torn"),
            Damage::Garbage => write!(f, "holds what nobody wrote"),
            Damage::Misplaced { writer, volume, sector } => {
                write!(f, "holds what operation {writer} wrote to {volume} sector {sector}")
            }
        }
    }
}

fn record(writer: Value, volume: VolumeId, sector: u32) -> [u8; RECORD] {
    let words = [writer, volume.0, sector, check(writer, volume, sector)];
    let mut bytes = [0; RECORD];
    for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn check(writer: Value, volume: VolumeId, sector: u32) -> u32 {
    let key = u64::from(writer) << 32 | u64::from(sector);
    base::prng::mix(key ^ u64::from(volume.0) << 48) as u32
}

/// Fills the body of a write that starts at `sector`.
pub fn fill(writer: Value, volume: VolumeId, sector: u32, body: &mut [u8]) {
    for (i, part) in body.chunks_exact_mut(SECTOR as usize).enumerate() {
        let record = record(writer, volume, sector + i as u32);
        part.chunks_exact_mut(RECORD).for_each(|p| p.copy_from_slice(&record));
    }
}

/// Appends the content of sectors that these operations have written; 0 stands for zeros.
pub fn sectors(writers: &[Value], volume: VolumeId, first: u32, body: &mut Vec<u8>) {
    for (writer, sector) in writers.iter().zip(first..) {
        let from = body.len();
        body.resize(from + SECTOR as usize, 0);
        if *writer != 0 {
            fill(*writer, volume, sector, &mut body[from..]);
        }
    }
}

/// Returns the writer of a sector; 0 for zeros.
pub fn writer(data: &[u8], volume: VolumeId, sector: u32) -> Result<Value, Damage> {
    if data[RECORD..] != data[..data.len() - RECORD] {
        return Err(Damage::Torn);
    }
    let word =
        |i: usize| u32::from_le_bytes(data[4 * i..4 * i + 4].try_into().expect("four bytes"));
    let (by, of, at, sum) = (word(0), VolumeId(word(1)), word(2), word(3));
    if data[..RECORD] == [0; RECORD] {
        Ok(0)
    } else if sum != check(by, of, at) || by == 0 {
        Err(Damage::Garbage)
    } else if (of, at) != (volume, sector) {
        Err(Damage::Misplaced { writer: by, volume: of, sector: at })
    } else {
        Ok(by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_tell_writer_tearing_and_place() {
        let mut body = [0; 1024];
        assert_eq!(writer(&body[..512], VolumeId(1), 9), Ok(0));
        fill(7, VolumeId(1), 8, &mut body);
        assert_eq!(writer(&body[512..], VolumeId(1), 9), Ok(7));
        let misplaced = Damage::Misplaced { writer: 7, volume: VolumeId(1), sector: 8 };
        assert_eq!(writer(&body[..512], VolumeId(1), 9), Err(misplaced));
        assert_eq!(writer(&body[256..768], VolumeId(1), 9), Err(Damage::Torn));
        assert_eq!(writer(&[0xdb; 512], VolumeId(1), 9), Err(Damage::Garbage));
    }
}
