//! Writes and zeros, from their start until the record is queued. `placement` decides how the data
//! of each slot gets there.
//!
//! Blocks that are written in part are completed first: with zeros, or with what they hold.
//!
//! The checksums that will be kept are compared with the one that came with the body. So there is
//! no moment at which data with a flipped bit in memory could get a valid checksum.

use super::format::data_crc;
use super::job::{Fetch, Kind, Op};
use super::layout::SLOT_BLOCKS;
use super::ops::join;
use super::placement::place_lost;
use super::record::{Write, WriteMode};
use super::store::Durable;
use super::unitmap::{Access, Pin};
use alloc::vec::Vec;
use base::crc::{append_block, crc32c};
use base::{BLOCK, BLOCKS_PER_UNIT, BlockSet, GroupId, Mutant, UnitKey, mutant};
use seam::buf::ALIGN;
use seam::{Buf, DiskError, Effects, Started, WriteMetadata};

impl Durable {
    #[allow(clippy::too_many_arguments)]
    pub(super) fn start_write(
        &mut self,
        token: u64,
        group: GroupId,
        unit: UnitKey,
        at: u32,
        (body, crc): (Buf, Option<u32>),
        marks: WriteMetadata,
        out: &mut Effects,
    ) -> Started {
        let len = body.len() as u32;
        let change = Access::Change;
        let Some(pins) = self.slots.pin_range((group, unit, at, len), change) else {
            return Started::Full;
        };
        let write = new_write(group, unit, at, len, marks);
        self.start_change(token, write, at, len, Some((body, crc)), pins, out)
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn start_zero(
        &mut self,
        token: u64,
        group: GroupId,
        unit: UnitKey,
        at: u32,
        len: u32,
        marks: WriteMetadata,
        out: &mut Effects,
    ) -> Started {
        let write = new_write(group, unit, at, len, marks);
        let pins = self.slots.pin_present((group, unit, at, len), Access::Change);
        if pins.is_empty() && !write.is_marked() {
            return Started::Done(Buf::EMPTY);
        }
        self.start_change(token, write, at, len, None, pins, out)
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn start_lose(
        &mut self,
        token: u64,
        group: GroupId,
        unit: UnitKey,
        at: u32,
        len: u32,
        marks: WriteMetadata,
        out: &mut Effects,
    ) -> Started {
        let change = Access::Change;
        let Some(pins) = self.slots.pin_range((group, unit, at, len), change) else {
            return Started::Full;
        };
        debug_assert!(self.jobs.is_not_read(unit, at, len, &pins), "a change overlaps a read");
        let mut write = new_write(group, unit, at, len, marks);
        place_lost(&pins, &mut write);
        let key = self.jobs.begin(
            Some(token),
            Kind::Read { at, len },
            Fetch::new(unit, Vec::new()),
            pins,
        );
        self.send(key, write, out);
        Started::Pending
    }

    #[allow(clippy::too_many_arguments)]
    fn start_change(
        &mut self,
        token: u64,
        write: Write,
        at: u32,
        len: u32,
        body: Option<(Buf, Option<u32>)>,
        pins: Vec<Pin>,
        out: &mut Effects,
    ) -> Started {
        let mut edges = write.touched();
        edges.remove(BlockSet::within(at, len));
        let (group, unit) = (write.group, write.unit);
        debug_assert!(self.jobs.is_not_read(unit, at, len, &pins), "a change overlaps a read");
        let pieces = self.slots.pieces(group, unit, edges);
        let (body, crc) = body.map_or((None, None), |(body, crc)| (Some(body), crc));
        let kind = Kind::Edges { write, at, len, body, crc };
        let key = self.jobs.begin(Some(token), kind, Fetch::new(unit, pieces), pins);
        if self.fetch(key, out) {
            return Started::Pending;
        }
        match self.place_parts(key, out) {
            Ok(()) => Started::Pending,
            Err(_) => {
                self.jobs.at(key).token = None;
                self.end(key, Ok(Buf::EMPTY));
                Started::BadBody
            }
        }
    }

    /// Decides how each part is written, sends data to fresh space, and queues the record. Fails if
    /// the body does not match its checksum; then nothing was begun.
    pub(super) fn place_parts(&mut self, key: u64, out: &mut Effects) -> Result<(), DiskError> {
        let job = self.jobs.at(key);
        let kind = core::mem::replace(&mut job.kind, Kind::Read { at: 0, len: 0 });
        let Kind::Edges { mut write, at, len, body, crc } = kind else {
            unreachable!("not placed yet")
        };
        let pieces = core::mem::take(&mut job.fetch.pieces);
        let whole = |first: u32, end: u32, out: &mut Effects| {
            let mut data = out.pool().zeroed(((end - first) * BLOCK) as usize);
            let bytes = data.as_mut();
            let start = first * BLOCK;
            for p in &pieces {
                let blocks = p.first.max(first)..(p.first + p.count).min(end);
                for block in blocks {
                    let (to, from) = (block - first, block - p.first);
                    bytes[(to * BLOCK) as usize..][..BLOCK as usize]
                        .copy_from_slice(&p.data[(from * BLOCK) as usize..][..BLOCK as usize]);
                }
            }
            let (from, to) = (at.max(start), (at + len).min(end * BLOCK));
            let place = (from - start) as usize..(to - start) as usize;
            match &body {
                Some(body) => {
                    bytes[place].copy_from_slice(&body[(from - at) as usize..(to - at) as usize])
                }
                None => bytes[place].fill(0),
            }
            data
        };
        match &body {
            Some(body) => {
                let blocks = at.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK);
                // Direct I/O needs the data aligned in memory as well.
                let data = match blocks {
                    true if (body.as_ptr() as usize).is_multiple_of(ALIGN) => body.clone(),
                    true => out.copy(body),
                    false => whole(write.first, write.end, out),
                };
                let mut pins = core::mem::take(&mut self.jobs.at(key).pins);
                self.slots.place_data(&mut pins, &mut write, &data);
                self.jobs.at(key).pins = pins;
                let first = (at - write.first * BLOCK) as usize;
                let now = || match blocks {
                    true => body_crc(&write),
                    false => crc32c(&data[first..first + len as usize]),
                };
                if crc.is_some_and(|crc| crc != now()) && !mutant::on(Mutant::BlessBody) {
                    return Err(DiskError::BadBody);
                }
            }
            None => {
                self.slots.place_clears(&mut write, BlockSet::within(at, len));
                for block in pieces.iter().flat_map(|p| p.first..p.first + p.count) {
                    let data = whole(block, block + 1, out);
                    self.slots.place_inline(&mut write, block, data);
                }
            }
        }
        self.send(key, write, out);
        Ok(())
    }

    /// Sends the data of direct parts in as few writes as possible, and queues the record.
    fn send(&mut self, key: u64, mut write: Write, out: &mut Effects) {
        if write.parts.is_empty() && !write.is_marked() {
            return self.end(key, Ok(Buf::EMPTY));
        }
        let mut runs: Vec<(u64, Vec<Buf>)> = Vec::new();
        let mut end = 0;
        for part in write.parts.iter_mut().filter(|p| p.way == WriteMode::Direct) {
            let data = core::mem::take(&mut part.data);
            let at = self.content.layout.slot(part.slot)
                + u64::from(part.blocks.trailing_zeros() * BLOCK);
            let len = data.len() as u64;
            match runs.last_mut() {
                Some((_, run)) if at == end => run.push(data),
                _ => runs.push((at, alloc::vec![data])),
            }
            end = at + len;
        }
        let job = self.jobs.at(key);
        job.left += runs.len() as u32;
        job.kind = Kind::Write(write);
        for (at, data) in runs {
            let body = join(data, out);
            self.ops.write_through(at, body, Op::Data { job: key }, out);
        }
        self.commit.enqueue(key, &mut self.jobs);
    }
}

fn new_write(group: GroupId, unit: UnitKey, at: u32, len: u32, marks: WriteMetadata) -> Write {
    let (first, end) = (at / BLOCK, (at + len).div_ceil(BLOCK));
    assert!(first < end && end <= BLOCKS_PER_UNIT, "a write is of blocks of one unit");
    Write { group, unit, first, end, marks, parts: Vec::new() }
}

/// Returns the CRC-32C of the data of a write of whole blocks, derived from the checksums that will
/// be kept. They were computed before this comparison with the CRC that came. So data that changed
/// in memory earlier is found here, and data that changes later is found when the block is read.
fn body_crc(write: &Write) -> u32 {
    let blocks = write.parts.iter().flat_map(|p| {
        let first = u32::from(p.chunk) * SLOT_BLOCKS;
        p.each().map(move |b| data_crc(p.sums[b as usize], write.unit, first + b))
    });
    blocks.fold(0, append_block)
}
