//! Writes and zeros: how the data of each slot gets there, and what the record contains.
//!
//! - No block of the part holds data: **direct**. Data goes to the slot and the record to the log
//!   at the same time. Nothing old is overwritten, so their order does not matter.
//! - The part is a whole slot, and another slot is free: direct, to that slot. The record gives the
//!   old slot back.
//! - Anything else is **inline**: the record carries the data.
//! - Zeroed blocks are **cleared**: only the record says so.
//! - **Lost** blocks get checksums that match nothing, also in the record alone.
//!
//! Blocks that are written in part are completed first: with zeros, or with what they hold.
//!
//! The checksums that will be kept are compared with the one that came with the body. So there is
//! no moment at which data with a flipped bit in memory could get a valid checksum.

use super::format::{NO_SLOT, block_sum, data_crc, lost_sum};
use super::job::{Fetch, Kind, Op};
use super::layout::SLOT_BLOCKS;
use super::record::{Part, Way, Write};
use super::store::Durable;
use super::unitmap::{Access, Chunk, Pin};
use alloc::vec::Vec;
use base::crc::{append_block, crc32c};
use base::{BLOCK, BlockSet, GroupId, Mutant, UnitKey, mutant};
use seam::buf::ALIGN;
use seam::{Buf, DiskError, Effects, Marks, Started};

impl Durable {
    #[allow(clippy::too_many_arguments)]
    pub(super) fn start_write(
        &mut self,
        token: u64,
        group: GroupId,
        unit: UnitKey,
        at: u32,
        (body, crc): (Buf, Option<u32>),
        marks: Marks,
        out: &mut Effects,
    ) -> Started {
        let len = body.len() as u32;
        let change = Access::Change;
        let Some(pins) = self.pin_range(group, unit, at, len, change) else {
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
        marks: Marks,
        out: &mut Effects,
    ) -> Started {
        let write = new_write(group, unit, at, len, marks);
        let pins = self.pin_present(group, unit, at, len, Access::Change);
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
        marks: Marks,
        out: &mut Effects,
    ) -> Started {
        let change = Access::Change;
        let Some(pins) = self.pin_range(group, unit, at, len, change) else {
            return Started::Full;
        };
        debug_assert!(self.is_not_read(unit, at, len, &pins), "a change overlaps a read");
        let mut write = new_write(group, unit, at, len, marks);
        for ((chunk, first, end), pin) in shares(&write).zip(&pins) {
            let blocks = mask(first % SLOT_BLOCKS, end - chunk * SLOT_BLOCKS);
            let mut part = new_part(pin.slot, chunk as u8, Way::Lost, blocks);
            for block in first..end {
                part.sums[(block % SLOT_BLOCKS) as usize] = lost_sum(unit, block);
            }
            write.parts.push(part);
        }
        let key =
            self.insert(Some(token), Kind::Read { at, len }, Fetch::new(unit, Vec::new()), pins);
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
        debug_assert!(self.is_not_read(unit, at, len, &pins), "a change overlaps a read");
        let pieces = self.pieces(group, unit, edges);
        let (body, crc) = body.map_or((None, None), |(body, crc)| (Some(body), crc));
        let kind = Kind::Edges { write, at, len, body, crc };
        let key = self.insert(Some(token), kind, Fetch::new(unit, pieces), pins);
        if self.fetch(key, out) {
            return Started::Pending;
        }
        match self.place_parts(key, out) {
            Ok(()) => Started::Pending,
            Err(_) => {
                self.jobs.get_mut(key).expect("it has not ended").token = None;
                self.end(key, Ok(Buf::EMPTY));
                Started::BadBody
            }
        }
    }

    /// Continues a write after the rest of the blocks at its ends was read.
    pub(super) fn edges_fetched(&mut self, key: u64, out: &mut Effects) {
        if let Err(error) = self.check(key).and_then(|()| self.place_parts(key, out)) {
            self.end(key, Err(error));
        }
    }

    /// Decides how each part is written, sends data to fresh space, and queues the record. Fails if
    /// the body does not match its checksum; then nothing was begun.
    fn place_parts(&mut self, key: u64, out: &mut Effects) -> Result<(), DiskError> {
        let job = self.jobs.get_mut(key).expect("a job lives until it ends");
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
                // Direct I/O needs it aligned in memory as well.
                let data = match blocks {
                    true if (body.as_ptr() as usize).is_multiple_of(ALIGN) => body.clone(),
                    true => out.copy(body),
                    false => whole(write.first, write.end, out),
                };
                self.place_data(key, &mut write, &data);
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
                self.place_clears(key, &mut write, BlockSet::within(at, len));
                for block in pieces.iter().flat_map(|p| p.first..p.first + p.count) {
                    let data = whole(block, block + 1, out);
                    self.place_inline(&mut write, block, data);
                }
            }
        }
        self.send(key, write, out);
        Ok(())
    }

    /// Makes one part per slot for a write with this data.
    fn place_data(&mut self, key: u64, write: &mut Write, data: &Buf) {
        let (group, unit) = (write.group, write.unit);
        let job = self.jobs.get_mut(key).expect("a job lives until it ends");
        let mut pins = core::mem::take(&mut job.pins);
        for (i, (chunk, first, end)) in shares(write).enumerate() {
            let slot = pins[i].slot;
            let start = chunk * SLOT_BLOCKS;
            let blocks = mask(first - start, end - start);
            let at = ((first - write.first) * BLOCK) as usize;
            let data = data.slice(at..at + ((end - first) * BLOCK) as usize);
            let fresh = self.map.valid(slot) & blocks == 0;
            let (mut part, name) = (
                new_part(slot, chunk as u8, Way::Inline, blocks),
                Chunk { group, unit, chunk: chunk as u8 },
            );
            if fresh && !self.overlay.is_writing(slot, blocks) {
                part.way = Way::Direct;
            } else if blocks == u16::MAX
                && !self.map.is_dropped(slot)
                && let Some(other) = self.map.pin_second(name)
            {
                pins.push(other);
                (part.slot, part.old, part.way) = (other.slot, slot, Way::Direct);
            }
            sum(&mut part, &data, unit, first);
            part.data = data;
            write.parts.push(part);
        }
        self.jobs.get_mut(key).expect("a job lives until it ends").pins = pins;
    }

    /// Makes one part per slot for those blocks that are zeroed whole and hold data.
    fn place_clears(&mut self, key: u64, write: &mut Write, blocks: BlockSet) {
        for chunk in 0..super::layout::UNIT_CHUNKS as u8 {
            let zeroed = (blocks.0[chunk as usize / 4] >> (chunk % 4 * 16)) as u16;
            let name = Chunk { group: write.group, unit: write.unit, chunk };
            let Some(slot) = self.map.slot(name).filter(|_| zeroed != 0) else { continue };
            let blocks = zeroed & self.map.valid(slot);
            if blocks == 0 {
                continue;
            }
            write.parts.push(new_part(slot, chunk, Way::Clear, blocks));
            if mutant::on(Mutant::EagerReuse) {
                let pins = &mut self.jobs.get_mut(key).expect("it lives").pins;
                let pin = pins.iter().position(|p| p.slot == slot).expect("it is pinned");
                let pin = pins.remove(pin);
                self.overlay.clear(slot, blocks);
                self.map.clear(slot, blocks);
                self.map.unpin(pin);
            }
        }
    }

    /// Makes a part for one block that holds data.
    fn place_inline(&mut self, write: &mut Write, block: u32, data: Buf) {
        let chunk = (block / SLOT_BLOCKS) as u8;
        let name = Chunk { group: write.group, unit: write.unit, chunk };
        let Some(slot) = self.map.slot(name) else { return };
        let in_slot = block % SLOT_BLOCKS;
        let mut part = new_part(slot, chunk, Way::Inline, mask(in_slot, in_slot + 1));
        sum(&mut part, &data, write.unit, block);
        part.data = data;
        write.parts.push(part);
    }

    /// Sends the data of direct parts in as few writes as possible, and queues the record.
    fn send(&mut self, key: u64, mut write: Write, out: &mut Effects) {
        if write.parts.is_empty() && !write.is_marked() {
            return self.end(key, Ok(Buf::EMPTY));
        }
        let mut runs: Vec<(u64, Vec<Buf>)> = Vec::new();
        let mut end = 0;
        for part in write.parts.iter_mut().filter(|p| p.way == Way::Direct) {
            let data = core::mem::take(&mut part.data);
            let at = self.layout.slot(part.slot) + u64::from(part.blocks.trailing_zeros() * BLOCK);
            let len = data.len() as u64;
            match runs.last_mut() {
                Some((_, run)) if at == end => run.push(data),
                _ => runs.push((at, alloc::vec![data])),
            }
            end = at + len;
        }
        let job = self.jobs.get_mut(key).expect("a job lives until it ends");
        job.left += runs.len() as u32;
        job.kind = Kind::Write(write);
        for (at, data) in runs {
            let body = join(data, out);
            self.write_through(at, body, Op::Data { job: key }, out);
        }
        self.enqueue(key);
    }
}

fn new_write(group: GroupId, unit: UnitKey, at: u32, len: u32, marks: Marks) -> Write {
    let (first, end) = (at / BLOCK, (at + len).div_ceil(BLOCK));
    Write { group, unit, first, end, marks, parts: Vec::new() }
}

/// Iterates over the slots that a write touches: the chunk, the first block that is written there,
/// and the block after the last one.
fn shares(write: &Write) -> impl Iterator<Item = (u32, u32, u32)> + use<> {
    let (first, end) = (write.first, write.end);
    (first / SLOT_BLOCKS..end.div_ceil(SLOT_BLOCKS)).map(move |chunk| {
        let start = chunk * SLOT_BLOCKS;
        (chunk, first.max(start), end.min(start + SLOT_BLOCKS))
    })
}

fn new_part(slot: u32, chunk: u8, way: Way, blocks: u16) -> Part {
    let (sums, data) = ([0; SLOT_BLOCKS as usize], Buf::EMPTY);
    Part { slot, old: NO_SLOT, chunk, way, blocks, sums, data }
}

/// Computes the checksums of a part whose data begins with block `first` of the unit.
fn sum(part: &mut Part, data: &[u8], unit: UnitKey, first: u32) {
    for (i, bytes) in data.chunks_exact(BLOCK as usize).enumerate() {
        let block = first + i as u32;
        part.sums[(block % SLOT_BLOCKS) as usize] = block_sum(bytes, unit, block);
    }
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

fn mask(first: u32, end: u32) -> u16 {
    (((1u32 << end) - 1) & !((1u32 << first) - 1)) as u16
}

/// Joins neighbours into one buffer. There is no copy when they are neighbours in memory as well,
/// like the slots' shares of one long write.
pub(super) fn join(parts: Vec<Buf>, out: &mut Effects) -> Buf {
    let (first, rest) = parts.split_first().expect("a run has a part");
    let one = rest.iter().try_fold(first.clone(), |all, part| all.followed_by(part));
    if let Some(one) = one {
        return one;
    }
    let mut whole = out.alloc(parts.iter().map(|p| p.len()).sum());
    let mut rest = whole.as_mut();
    for part in &parts {
        let (here, behind) = rest.split_at_mut(part.len());
        here.copy_from_slice(part);
        rest = behind;
    }
    whole
}
