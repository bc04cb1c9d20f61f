//! Jobs in flight, and what a device operation is for.

use super::layout::SLOT_BLOCKS;
use super::record::Write;
use super::sums::SumPage;
use alloc::vec;
use alloc::vec::Vec;
use base::{GroupId, UnitKey, VolumeId};
use seam::{Buf, Change, DiskError};

/// Neighbouring blocks on the device, or one block from memory.
#[derive(Debug)]
pub struct Piece {
    /// The first block in the unit.
    pub first: u32,
    /// How many.
    pub count: u32,
    /// The slot of the first one; the next slots follow on the device.
    pub slot: u32,
    /// In memory: nothing is read or compared.
    pub ready: bool,
    /// What was found.
    pub data: Buf,
}

impl Piece {
    /// The slot of the last block.
    fn last_slot(&self) -> u32 {
        self.slot + (self.first + self.count - 1) / SLOT_BLOCKS - self.first / SLOT_BLOCKS
    }
}

/// Pieces that are read together. Those that are in memory are passed over.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// The first piece.
    pub first: u16,
    /// The last one.
    pub last: u16,
    /// It could not be read as one: the first piece is read for itself, then the next one.
    pub singly: bool,
}

impl Span {
    /// The piece that is read now.
    pub fn now(self) -> core::ops::RangeInclusive<usize> {
        let last = if self.singly { self.first } else { self.last };
        self.first.into()..=last.into()
    }
}

/// Blocks of one unit to be read and compared with their checksums.
#[derive(Debug)]
pub struct Fetch {
    /// Which unit.
    pub unit: UnitKey,
    /// Where they are.
    pub pieces: Vec<Piece>,
    /// Their checksums, as far as they are known: of the blocks of all pieces that are read, in order.
    /// They can't change meanwhile: nobody else writes these blocks.
    pub sums: Vec<Option<u32>>,
}

impl Fetch {
    /// These pieces of a unit.
    pub fn new(unit: UnitKey, pieces: Vec<Piece>) -> Fetch {
        let read = pieces.iter().filter(|p| !p.ready);
        let blocks = read.map(|p| p.count as usize).sum();
        Fetch { unit, pieces, sums: vec![None; blocks] }
    }
}

impl Fetch {
    /// The pieces from this one on that one operation reads: in each slot all, whatever lies between them.
    pub fn span(&self, first: usize) -> Span {
        let mut last = first;
        for (i, piece) in self.pieces.iter().enumerate().skip(first + 1) {
            if piece.slot != self.pieces[last].last_slot() {
                break;
            }
            if !piece.ready {
                last = i;
            }
        }
        Span { first: first as u16, last: last as u16, singly: false }
    }
}

/// What a job is to do.
#[derive(Debug)]
pub enum Kind {
    /// Answer with a range.
    Read {
        /// From this byte of the unit.
        at: u32,
        /// Bytes.
        len: u32,
    },
    /// Read what is left of the blocks at the ends; then write.
    Edges {
        /// The record, without parts yet.
        write: Write,
        /// From this byte of the unit.
        at: u32,
        /// Bytes.
        len: u32,
        /// The data; `None` for zeros.
        body: Option<Buf>,
        /// The CRC-32C that came with it.
        crc: Option<u32>,
    },
    /// In the log's queue, or being written.
    Write(Write),
    /// A change of a group's record.
    Change(GroupId, Vec<Change>),
    /// A volume goes.
    Drop(VolumeId),
}

/// A job in flight.
#[derive(Debug)]
pub struct Job {
    /// The caller's name for it, if it wants to know of the end.
    pub token: Option<u64>,
    /// What to do.
    pub kind: Kind,
    /// What has to be read for it.
    pub fetch: Fetch,
    /// What it waits for.
    pub left: u32,
    /// What went wrong.
    pub error: Option<DiskError>,
    /// Its number in the log.
    pub record: Option<u64>,
    /// Slots that it keeps.
    pub pins: Vec<u32>,
}

/// What a device operation is for.
#[derive(Debug)]
pub enum Op {
    /// Pieces of a job's fetch.
    Fetch {
        /// Whose.
        job: u64,
        /// Which.
        span: Span,
    },
    /// Data of a job on its way to fresh space.
    Data {
        /// Whose.
        job: u64,
    },
    /// Both copies of a page of checksums.
    SumPage {
        /// Which page.
        page: u32,
        /// Its entry in the root when it was asked for.
        wanted: u32,
        /// How often it was read in vain.
        tries: u32,
    },
    /// A batch of the log, or a part of it.
    Log,
    /// A flush.
    Flush,
    /// A run on its way to its slot: slot, block, record.
    Home(Vec<(u32, u32, u64)>),
    /// A page of the map, of a checkpoint.
    SaveMap {
        /// Which page.
        page: u32,
        /// Its entry in the root.
        sum: u32,
    },
    /// A page of checksums, of a checkpoint.
    SaveSums {
        /// Which page.
        page: u32,
        /// Its entry in the root.
        sum: u32,
        /// Its content.
        sums: SumPage,
    },
    /// Root, records or superblock, of a checkpoint.
    Anchor,
}

/// Who waits for a page of checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// A job.
    Job(u64),
    /// The checkpoint.
    Checkpoint,
}

/// Who waits for a flush.
#[derive(Debug)]
pub enum Waiter {
    /// Blocks that are in their slots: slot, block, record.
    Home(Vec<(u32, u32, u64)>),
    /// The checkpoint.
    Checkpoint,
}
