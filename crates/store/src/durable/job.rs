//! Jobs in flight, and the purpose of each device operation.

use super::format::{block_sum, data_crc};
use super::layout::SLOT_BLOCKS;
use super::record::{self, Write, Writer};
use super::sums::{SumPage, Sums};
use super::unitmap::Pin;
use alloc::vec;
use alloc::vec::Vec;
use base::crc::{ZERO_BLOCK, append_block};
use base::{BLOCK, GroupId, Mutant, UnitKey, VolumeId, mutant};
use seam::{Buf, Change, DiskError};

/// Upper bound of jobs and operations in flight. The callers stay far below: 2^14 as a primary, and
/// as many for each of 2^11 other primaries. A job has at most 16 operations for slots and 16 for
/// pages of checksums.
pub(super) const IN_FLIGHT: usize = 1 << 30;

/// Blocks that are neighbours on the device, or one block in memory.
#[derive(Debug)]
pub(super) struct Piece {
    /// The first block in the unit.
    pub first: u32,
    /// Number of blocks.
    pub count: u32,
    /// The slot of the first one; the next slots follow on the device.
    pub slot: u32,
    /// The data is in memory already: nothing is read.
    pub ready: bool,
    /// The data that was found.
    pub data: Buf,
}

impl Piece {
    /// The slot of the last block.
    fn last_slot(&self) -> u32 {
        self.slot + (self.first + self.count - 1) / SLOT_BLOCKS - self.first / SLOT_BLOCKS
    }
}

/// Pieces that one operation reads. It skips those in between that are in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// The first piece.
    pub first: u16,
    /// The last one.
    pub last: u16,
    /// The read of all of them failed, so the pieces are read one by one.
    pub singly: bool,
    /// The first piece can't be read as a whole, so its blocks are read one by one.
    pub probe: Option<Probe>,
}

/// A search for the first run of unreadable blocks of a piece. Blocks count from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Probe {
    /// The block that is read now.
    pub block: u16,
    /// Number of unreadable blocks directly in front of it.
    run: u16,
}

impl Probe {
    /// Takes the result of reading the block, in a piece of `blocks` blocks. Returns the next step,
    /// or the first unreadable block and the length of the run. If each block can be read alone, it
    /// is unknown which one failed before: then all of them count.
    pub(super) fn next(self, readable: bool, blocks: u16) -> Result<Probe, (u16, u16)> {
        let Probe { block, run } = self;
        let next = Probe { block: block + 1, run: if readable { 0 } else { run + 1 } };
        match next.run {
            0 if run > 0 => Err((block - run, run)),
            _ if next.block < blocks => Ok(next),
            0 => Err((0, blocks)),
            run => Err((next.block - run, run)),
        }
    }
}

impl Span {
    /// Returns the pieces that are read now.
    pub(super) fn now(self) -> core::ops::RangeInclusive<usize> {
        let alone = self.singly || self.probe.is_some();
        let last = if alone { self.first } else { self.last };
        self.first.into()..=last.into()
    }
}

/// Blocks of one unit to be read and compared with their checksums.
#[derive(Debug)]
pub(super) struct Fetch {
    /// Which unit.
    pub unit: UnitKey,
    /// Where they are.
    pub pieces: Vec<Piece>,
    /// Checksums of the blocks of all pieces that are read, in order, as far as they are known.
    /// They can't change meanwhile, because no other job writes these blocks.
    pub sums: Vec<Option<u32>>,
}

impl Fetch {
    /// Makes a fetch of these pieces of a unit.
    pub(super) fn new(unit: UnitKey, pieces: Vec<Piece>) -> Fetch {
        let read = pieces.iter().filter(|p| !p.ready);
        let blocks = read.map(|p| p.count as usize).sum();
        Fetch { unit, pieces, sums: vec![None; blocks] }
    }

    /// Returns the pieces from `first` on that one operation reads: all pieces in a slot, including
    /// any gaps between them.
    pub(super) fn span(&self, first: usize) -> Span {
        let mut last = first;
        for (i, piece) in self.pieces.iter().enumerate().skip(first + 1) {
            if piece.slot != self.pieces[last].last_slot() {
                break;
            }
            if !piece.ready {
                last = i;
            }
        }
        Span { first: first as u16, last: last as u16, singly: false, probe: None }
    }

    /// Compares the blocks that were read with their checksums. The error names the first bad run.
    pub(super) fn check(&self) -> Result<(), DiskError> {
        let Fetch { unit, pieces, sums } = self;
        let read = pieces.iter().filter(|p| !p.ready);
        let data = read.flat_map(|p| (p.first..).zip(p.data.chunks_exact(BLOCK as usize)));
        let mut bad: Option<(u32, u32)> = None;
        for ((block, data), sum) in data.zip(sums) {
            if *sum == Some(block_sum(data, *unit, block)) || mutant::on(Mutant::NoSumCheck) {
                continue;
            }
            match &mut bad {
                None => bad = Some((block, 1)),
                Some((first, count)) if *first + *count == block => *count += 1,
                Some(_) => {}
            }
        }
        bad.map_or(Ok(()), |(first, count)| {
            Err(DiskError::Corrupt { first: first as u16, blocks: count as u16 })
        })
    }

    /// Returns the CRC-32C of the blocks that a read touches, derived from their checksums. Blocks
    /// that wait in memory for their slots are compared with their checksums first. `None`: a
    /// checksum is not in memory.
    pub(super) fn answer_crc(
        &self,
        at: u32,
        len: u32,
        newest: &mut Sums,
    ) -> Result<Option<u32>, DiskError> {
        let Fetch { unit, pieces, sums } = self;
        let mut fetched = sums.iter().copied();
        let (mut crc, mut known, mut next) = (0, true, at / BLOCK);
        for piece in pieces {
            let home = piece.first / SLOT_BLOCKS;
            for block in piece.first..piece.first + piece.count {
                let slot = piece.slot + block / SLOT_BLOCKS - home;
                let sum = match piece.ready {
                    true => newest.get(slot, block % SLOT_BLOCKS),
                    false => fetched.next().flatten(),
                };
                let bad = |sum| piece.ready && block_sum(&piece.data, *unit, block) != sum;
                if sum.is_some_and(bad) {
                    return Err(DiskError::Corrupt { first: block as u16, blocks: 1 });
                }
                crc = (next..block).fold(crc, |crc, _| append_block(crc, ZERO_BLOCK));
                crc = append_block(crc, sum.map_or(0, |sum| data_crc(sum, *unit, block)));
                (known, next) = (known && sum.is_some(), block + 1);
            }
        }
        let end = (at + len).div_ceil(BLOCK);
        crc = (next..end).fold(crc, |crc, _| append_block(crc, ZERO_BLOCK));
        Ok(Some(crc).filter(|_| known && !mutant::on(Mutant::NoSumCheck)))
    }
}

/// The work of a job.
#[derive(Debug)]
pub(super) enum Kind {
    /// Answer with the data of a range.
    Read {
        /// From this byte of the unit.
        at: u32,
        /// Bytes.
        len: u32,
    },
    /// Read the rest of the blocks that the range covers in part, then write.
    Edges {
        /// The record, still without parts.
        write: Write,
        /// From this byte of the unit.
        at: u32,
        /// Bytes.
        len: u32,
        /// The data; `None` for zeros.
        body: Option<Buf>,
        /// CRC-32C that came with the data.
        crc: Option<u32>,
    },
    /// A write whose record is in the log's queue, or is being written.
    Write(Write),
    /// A change of a group's record.
    Change(GroupId, Vec<Change>),
    /// The drop of a volume.
    Drop(VolumeId),
}

impl Kind {
    /// Returns the length of its record in bytes.
    pub(super) fn record_len(&self) -> usize {
        match self {
            Kind::Write(write) => record::write_len(write),
            Kind::Change(_, changes) => record::change_len(changes),
            Kind::Drop(_) => record::DROP_LEN,
            Kind::Read { .. } | Kind::Edges { .. } => unreachable!("it has no record"),
        }
    }

    /// Writes its record.
    pub(super) fn put_record(&self, to: &mut Writer<'_>) {
        match self {
            Kind::Write(write) => record::put_write(write, to),
            Kind::Change(group, changes) => record::put_changes(*group, changes, to),
            Kind::Drop(volume) => record::put_drop(*volume, to),
            Kind::Read { .. } | Kind::Edges { .. } => unreachable!("it has no record"),
        }
    }

    /// Returns the bytes of data in its record.
    pub(super) fn payload(&self) -> usize {
        if let Kind::Write(write) = self { write.inline_bytes() } else { 0 }
    }
}

/// A job in flight.
#[derive(Debug)]
pub(super) struct Job {
    /// The caller's name for the job. `None`: the caller does not want to know when it completes.
    pub token: Option<u64>,
    /// The operation.
    pub kind: Kind,
    /// Blocks that have to be read for it.
    pub fetch: Fetch,
    /// Number of operations and records that it still waits for.
    pub left: u32,
    /// The first error.
    pub error: Option<DiskError>,
    /// Number of its record in the log.
    pub record: Option<u64>,
    /// Its pins on slots.
    pub pins: Vec<Pin>,
}

impl Job {
    /// Returns the pieces from `from` on that one operation reads. A read may have a hundred
    /// pieces. A write has at most two blocks to complete, and nothing between them is read.
    pub(super) fn next_span(&self, from: usize) -> Option<Span> {
        let first = from + self.fetch.pieces.get(from..)?.iter().position(|p| !p.ready)?;
        Some(match self.kind {
            Kind::Read { .. } => self.fetch.span(first),
            _ => Span { first: first as u16, last: first as u16, singly: false, probe: None },
        })
    }
}

/// Purpose of a device operation.
#[derive(Debug)]
pub(super) enum Op {
    /// Pieces of a job's fetch.
    Fetch {
        /// The job.
        job: u64,
        /// The pieces.
        span: Span,
    },
    /// Data of a job that goes to fresh space.
    Data {
        /// The job.
        job: u64,
    },
    /// A page of checksums: both copies, or one of them when the read of both failed.
    SumPage {
        /// Which page.
        page: u32,
        /// Its entry in the root when the read started.
        wanted: u32,
        /// Number of failed reads so far.
        tries: u32,
    },
    /// A batch of the log, or a part of it.
    Log,
    /// A flush.
    Flush,
    /// A run of blocks that goes to its slot: per block, the slot, the block and the record.
    Home(Pin, Vec<(u32, u32, u64)>),
    /// A page of the map, for a checkpoint.
    SaveMap {
        /// Which page.
        page: u32,
        /// Its entry in the root.
        sum: u32,
    },
    /// A page of checksums, for a checkpoint.
    SaveSums {
        /// Which page.
        page: u32,
        /// Its entry in the root.
        sum: u32,
        /// Its content.
        sums: SumPage,
    },
    /// Root, records or superblock, for a checkpoint.
    CheckpointHead,
    /// Free slots whose space is given back.
    Hole {
        /// Their number of bytes.
        bytes: u64,
    },
}

/// A job or checkpoint that waits for a page of checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reader {
    /// A job.
    Job(u64),
    /// The checkpoint.
    Checkpoint,
}

/// Blocks or a checkpoint that wait for a flush.
#[derive(Debug)]
pub(super) enum Waiter {
    /// Blocks that were written to their slots: per block, the slot, the block and the record.
    Home(Vec<(u32, u32, u64)>),
    /// The checkpoint.
    Checkpoint,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Probes a piece, `#` marks its unreadable blocks, and returns the run that was found and the
    /// number of reads.
    fn found(piece: &str) -> ((u16, u16), usize) {
        let blocks = piece.len() as u16;
        let (mut probe, mut reads) = (Probe::default(), 0);
        loop {
            reads += 1;
            let readable = piece.as_bytes()[usize::from(probe.block)] != b'#';
            match probe.next(readable, blocks) {
                Ok(next) => probe = next,
                Err(run) => return (run, reads),
            }
        }
    }

    #[test]
    fn a_probe_finds_the_first_run_of_unreadable_blocks() {
        for (piece, run, reads) in [
            ("#...", (0, 1), 2),
            (".##.#", (1, 2), 4),
            ("..##", (2, 2), 4),
            ("...#", (3, 1), 4),
            ("####", (0, 4), 4),
            ("....", (0, 4), 4),
        ] {
            assert_eq!(found(piece), (run, reads), "{piece}");
        }
    }
}
