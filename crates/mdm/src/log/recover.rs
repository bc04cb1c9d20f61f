//! Reads the log: headers, the image of the newest area, its batches, and the blocks after them.

use super::area::{
    self, AREAS, BATCH_MAX, BLOCK, Found, Header, Place, batch_len, read_batch, records,
};
use super::{CHUNK, Found as Held, Io, LogError};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use base::crc::crc32c;

/// The log as it was found.
pub(super) struct Recovered {
    pub found: Held,
    /// The number of the next record.
    pub next: u64,
    pub area: usize,
    pub generation: u64,
    pub start: u64,
    pub end: u64,
    pub chain: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Reading the headers of all areas.
    Headers,
    /// Reading the image.
    Body,
    /// Replaying batches.
    Batches,
    /// Looking for another batch behind the last valid one.
    Behind,
    /// Writing the headers again: one may be missing, and each may be in the page cache only.
    Repair,
    /// Flushing after each header.
    Flush,
}

/// A recovery under way.
pub(super) struct Recovery {
    stage: Stage,
    /// The bytes from `at` on that were read and are not used yet.
    window: Vec<u8>,
    at: u64,
    /// The two headers of each area read so far.
    headers: Vec<[Found; 2]>,
    /// Number of areas to look at.
    areas: usize,
    area: usize,
    header: Header,
    /// Where the header is to be written again; a missing one comes first.
    repair: VecDeque<u64>,
    held: Held,
    next: u64,
    chain: u32,
    start: u64,
    /// The end of the last valid batch.
    end: u64,
}

impl Recovery {
    pub(super) fn new() -> Recovery {
        Recovery {
            stage: Stage::Headers,
            window: Vec::new(),
            at: 0,
            headers: Vec::new(),
            areas: 2,
            area: 0,
            header: Header { generation: 0, body_len: 0, body_crc: 0, limit: 0 },
            repair: VecDeque::new(),
            held: Held::default(),
            next: 1,
            chain: 0,
            start: 0,
            end: 0,
        }
    }

    /// Returns the offset from which on there can be no batch.
    fn bound(&self) -> u64 {
        self.start.saturating_add(self.header.limit).saturating_add(batch_len(BATCH_MAX))
    }

    pub(super) fn next(&mut self) -> Option<Io> {
        let from = self.at + self.window.len() as u64;
        match self.stage {
            Stage::Headers => {
                Some(Io::Read { at: AREAS[self.headers.len()], len: 2 * BLOCK as u32 })
            }
            Stage::Body => {
                let left = self.start - from;
                Some(Io::Read { at: from, len: left.min(CHUNK as u64) as u32 })
            }
            Stage::Batches | Stage::Behind => Some(Io::Read { at: from, len: CHUNK as u32 }),
            Stage::Repair => {
                let at = *self.repair.front().expect("else nothing is to be written");
                Some(Io::Write { at, data: self.header.to_block() })
            }
            Stage::Flush => Some(Io::Flush),
        }
    }

    pub(super) fn read(&mut self, data: &[u8]) -> Result<Option<Recovered>, LogError> {
        match self.stage {
            Stage::Headers => {
                let (first, second) = data.split_at(BLOCK);
                // An area at 1 TiB can exist only if the first area has the old format.
                if self.headers.is_empty() && (Header::is_far(first) || Header::is_far(second)) {
                    self.areas = AREAS.len();
                }
                self.headers.push([Header::read(first), Header::read(second)]);
                if self.headers.len() == self.areas {
                    self.choose()?;
                }
            }
            Stage::Body => {
                self.window.extend_from_slice(data);
                if self.at + self.window.len() as u64 >= self.start {
                    self.body()?;
                }
            }
            Stage::Batches => {
                self.window.extend_from_slice(data);
                self.replay()?;
            }
            Stage::Behind => {
                self.window.extend_from_slice(data);
                self.look_behind()?;
            }
            Stage::Repair => {
                self.repair.pop_front();
                self.stage = Stage::Flush;
            }
            Stage::Flush if !self.repair.is_empty() => self.stage = Stage::Repair,
            Stage::Flush => return Ok(Some(self.finish())),
        }
        Ok(None)
    }

    fn finish(&mut self) -> Recovered {
        Recovered {
            found: core::mem::take(&mut self.held),
            next: self.next,
            area: self.area,
            generation: self.header.generation,
            start: self.start,
            end: self.end,
            chain: self.chain,
        }
    }

    /// Picks the newest area.
    fn choose(&mut self) -> Result<(), LogError> {
        let mut best: Option<(usize, Header)> = None;
        for (area, found) in self.headers.clone().into_iter().enumerate() {
            if let Some(Found::Version(v)) = found.iter().find(|f| matches!(f, Found::Version(_))) {
                return Err(LogError::Version(*v));
            }
            let valid = |f: &Found| if let Found::Header(h) = f { Some(*h) } else { None };
            let newest = found.iter().filter_map(valid).max_by_key(|h| h.generation);
            match newest {
                Some(h) if best.is_none_or(|(_, b)| b.generation < h.generation) => {
                    best = Some((area, h))
                }
                Some(_) => {}
                // The second header is overwritten only after the first one is durable.
                None if found[1] == Found::Garbage => {
                    let at = AREAS[area];
                    return Err(match (area, best) {
                        (0, None) if self.headers[1] == [Found::Zeros; 2] => LogError::Foreign,
                        _ => LogError::Damaged { at, what: "both headers of this area" },
                    });
                }
                None => {}
            }
        }
        let Some((area, header)) = best else {
            self.stage = Stage::Flush;
            return Ok(());
        };
        let lacks = |f: &Found| *f != Found::Header(header);
        let mut which = [0, 1];
        which.sort_by_key(|i| !lacks(&self.headers[area][*i]));
        self.repair = which.into_iter().map(|i| AREAS[area] + (i * BLOCK) as u64).collect();
        self.area = area;
        self.header = header;
        self.at = AREAS[area] + 2 * BLOCK as u64;
        self.start = self.at + header.body_len.next_multiple_of(BLOCK as u64);
        self.end = self.start;
        self.stage = Stage::Body;
        if header.body_len == 0 { self.body() } else { Ok(()) }
    }

    fn body(&mut self) -> Result<(), LogError> {
        let body = &self.window[..self.header.body_len as usize];
        if crc32c(body) != self.header.body_crc {
            return Err(LogError::Damaged { at: self.at, what: "the image" });
        }
        self.held.image = Some(body.to_vec());
        self.chain = self.header.body_crc;
        self.window.clear();
        self.at = self.start;
        self.stage = Stage::Batches;
        Ok(())
    }

    fn replay(&mut self) -> Result<(), LogError> {
        let mut used = 0;
        loop {
            match read_batch(&self.window[used..], self.header.generation) {
                Place::Need => break,
                Place::None => {
                    self.stage = Stage::Behind;
                    break;
                }
                Place::Batch { chain, crc, first, count, payload } => {
                    let at = self.at + used as u64;
                    if chain != self.chain || first != self.next {
                        return Err(LogError::Damaged { at, what: "the chain of records" });
                    }
                    let records = records(payload, count)
                        .ok_or(LogError::Damaged { at, what: "the lengths of records" })?;
                    self.next += records.len() as u64;
                    self.held.records.extend(records.into_iter().map(<[u8]>::to_vec));
                    self.chain = crc;
                    used += batch_len(payload.len()) as usize;
                    self.end = self.at + used as u64;
                }
            }
        }
        self.drop_front(used);
        if self.stage == Stage::Behind { self.look_behind() } else { Ok(()) }
    }

    /// Looks for batches of this generation behind the end, block by block.
    fn look_behind(&mut self) -> Result<(), LogError> {
        let mut used = 0;
        while used < self.window.len() {
            match read_batch(&self.window[used..], self.header.generation) {
                Place::Need if self.at + (self.window.len() as u64) < self.bound() => break,
                Place::Batch { first, .. } if first >= self.next => {
                    return Err(LogError::Damaged {
                        at: self.end,
                        what: "a record, and later ones are there",
                    });
                }
                _ => used += BLOCK,
            }
        }
        self.drop_front(used);
        if self.at >= self.bound() {
            self.stage = Stage::Repair;
        }
        Ok(())
    }

    fn drop_front(&mut self, bytes: usize) {
        self.at += bytes as u64;
        self.window.drain(..bytes);
    }
}

// Whole chunks of blocks are read, so the window never ends inside a block.
const _: () = assert!(CHUNK.is_multiple_of(BLOCK) && area::BATCH_HEAD <= BLOCK);
