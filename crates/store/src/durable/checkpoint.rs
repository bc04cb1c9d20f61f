//! Checkpoints: they save in the map what the log says, so that the log can be reused.
//!
//! The steps, in order. Each one is durable before the next one begins where the list says so:
//! 1. *Home*: payloads of records before the new start of the log are durable in their slots.
//! 2. *Pages*: changed pages of map and checksums are written to their other copy.
//! 3. *Root*: root and records are written to their other copy. All of 2 and 3 is made durable.
//! 4. *First*: superblocks 0 and 2 are written and made durable. Now the new checkpoint counts.
//! 5. *Second*: superblocks 1 and 3, and the places where 3 was before the device grew, are written
//!    and made durable. Now the log before the new start is free.
//!
//! The log sets the pace of Home and Pages. For each byte that jobs add to the log, a part of the
//! work is done, so that it is complete when the log has grown by a quarter of the size that made
//! the checkpoint due. If it were done all at once, it would keep jobs from a slow device for as
//! long as it takes. It runs at full speed when a caller waits for it, when the log exceeds that
//! size by half, or when half as many checksums as make a checkpoint due have changed again.
//!
//! A checkpoint is fuzzy: jobs go on, and pages may be ahead of the log's new start. Replay
//! tolerates that. Pages must not be behind it, so no checkpoint begins while a sweep still has to
//! free slots that an older record gave back. The checkpoint waits for the steps of the sweep until
//! the log exceeds the size that makes a checkpoint due by a quarter; then the sweep is completed
//! at once. No step needs room in the log.

use super::bits::Bits;
use super::fetch::empty_page;
use super::format::page_sum;
use super::job::{Op, Reader, Waiter};
use super::layout::{MAP_ENTRIES, PAGE};
use super::overlay::Run;
use super::store::Durable;
use super::superblock::{Anchor, Content, LogStart};
use alloc::boxed::Box;
use alloc::vec::Vec;
use base::crc::crc32c;
use base::{Mutant, mutant};
use seam::{DiskError, Effects};
use zerocopy::IntoBytes;

/// Number of pages that are written at the same time.
const PAGES: u32 = 32;
/// How far the work may be ahead of the pace, in blocks and pages. It comes in batches, because one
/// block or page at a time would cost a system call each.
const AHEAD: u64 = 32;
/// The longest write of root and records, in bytes.
const PIECE: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Home,
    Pages,
    Root,
    First,
    Second,
}

/// A running checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    step: Step,
    start: LogStart,
    /// Pages of the map to save. `next_map` and `next_sum` say where to continue.
    pages: Bits,
    next_map: u32,
    next_sum: u32,
    busy: u32,
    anchor: Anchor,
    /// Superblocks to write next.
    next: Option<Step>,
    pace: Pace,
}

/// Progress of Home and Pages, in blocks and pages.
#[derive(Debug)]
struct Pace {
    /// A caller waits for the checkpoint.
    hurried: bool,
    /// Estimate of the whole work.
    work: u64,
    done: u64,
    /// Bytes ever written to the log when the checkpoint began.
    written: u64,
}

impl Durable {
    /// True when the checkpoint can't go on before blocks are in their slots.
    pub(super) fn checkpoint_wants_home(&self) -> bool {
        let Some(c) = &self.checkpoint else { return false };
        c.step == Step::Home && self.overlay.oldest().is_some_and(|r| r < c.start.record)
    }

    /// Returns the size of the log in bytes beyond which a checkpoint is due.
    fn due_at(&self) -> u64 {
        (self.log.ring() / 2).min(self.tuning.replay_bytes)
    }

    /// Makes the running checkpoint go on at full speed.
    pub fn hurry_checkpoint(&mut self) {
        if let Some(c) = &mut self.checkpoint {
            c.pace.hurried = true;
        }
    }

    /// True when the checkpoint may send one more block to its slot, or save one more page.
    pub(super) fn checkpoint_may_go_on(&self) -> bool {
        let Some(Checkpoint { pace, .. }) = &self.checkpoint else { return false };
        let due = self.due_at();
        let span = (due / 4).max(1);
        let hurried = pace.hurried
            || self.checkpoint_due
            || self.log.used() > due + 2 * span
            || self.sums.fresh() > self.tuning.fresh_sums / 2;
        let log = self.log.written() - pace.written;
        let hurried = hurried && !mutant::on(Mutant::NoHurry);
        hurried || pace.done < AHEAD + pace.work * log / span
    }

    /// Counts blocks on their way to slots as work, if the checkpoint waits for them.
    pub(super) fn checkpoint_takes_home(&mut self, run: &Run) {
        let Some(c) = self.checkpoint.as_mut().filter(|c| c.step == Step::Home) else { return };
        let waited = run.blocks.iter().filter(|(_, record)| *record < c.start.record);
        c.pace.done += waited.count() as u64;
    }

    /// Begins a checkpoint if one is due, and continues the running one.
    pub(super) fn run_checkpoint(&mut self, out: &mut Effects) {
        let due = self.checkpoint_due
            || self.log.used() > self.due_at()
            || self.sums.fresh() > self.tuning.fresh_sums;
        if self.checkpoint.is_none() && due && self.is_swept() {
            self.begin_checkpoint();
        }
        let Some(c) = &mut self.checkpoint else { return };
        if let Some(step) = c.next.take() {
            return self.save_superblocks(step, out);
        }
        if c.step == Step::Home {
            if self.overlay.oldest().is_some_and(|r| r < c.start.record) {
                return;
            }
            c.step = Step::Pages;
        }
        if self.checkpoint.as_ref().is_some_and(|c| c.step == Step::Pages) {
            self.save_pages(out);
        }
    }

    /// True when the map has freed the slots that a wipe or drop before the log's start gave back.
    /// Replay won't see that wipe or drop, so the pages must. Usually the sweep goes on in its
    /// steps; it is completed at once when a checkpoint can't wait for that.
    fn is_swept(&mut self) -> bool {
        if mutant::on(Mutant::MidSweep) {
            return true;
        }
        let late = |is: u64, due: u64| is > due + due / 4;
        let (fresh, most) = (self.sums.fresh() as u64, self.tuning.fresh_sums as u64);
        if self.checkpoint_due || late(self.log.used(), self.due_at()) || late(fresh, most) {
            self.sweep(u32::MAX);
        }
        !self.map.is_sweeping()
    }

    fn begin_checkpoint(&mut self) {
        let hurried = core::mem::take(&mut self.checkpoint_due);
        self.sums.begin_saving();
        let start = self.log.start();
        if mutant::on(Mutant::EagerTail) {
            self.log.free(start.position);
        }
        let pages = self.map.take_dirty();
        let work = self.overlay.bytes() / base::BLOCK as usize
            + pages.count() as usize
            + self.sums.pages_to_save();
        let written = self.log.written();
        self.checkpoint = Some(Checkpoint {
            step: Step::Home,
            start,
            pages,
            next_map: 0,
            next_sum: 0,
            busy: 0,
            anchor: Anchor::default(),
            next: None,
            pace: Pace { hurried, work: work as u64, done: 0, written },
        });
    }

    fn save_pages(&mut self, out: &mut Effects) {
        loop {
            let may = self.checkpoint_may_go_on();
            let Some(c) = self.checkpoint.as_mut().filter(|c| c.busy < PAGES) else { return };
            let map = c.pages.next_set(c.next_map);
            let sums = self.sums.next_to_save(c.next_sum).filter(|_| map.is_none());
            if map.or(sums).is_some() {
                if !may {
                    return;
                }
                c.pace.done += 1;
            }
            if let Some(page) = map {
                (c.next_map, c.busy) = (page + 1, c.busy + 1);
                self.save_map(page, out);
            } else if let Some(page) = sums {
                (c.next_sum, c.busy) = (page + 1, c.busy + 1);
                if self.sums.page(page).is_some() {
                    self.save_sums(page, out);
                } else {
                    self.load_page(page, Reader::Checkpoint, out);
                }
            } else if c.busy == 0 {
                return self.save_root(out);
            } else {
                return;
            }
        }
    }

    /// Returns the place of the copy of a page that doesn't count. `both` is the place of the pair.
    fn other_copy(&self, index: u32, both: u64) -> u64 {
        if self.copies.get(index) { both } else { both + PAGE }
    }

    fn save_map(&mut self, page: u32, out: &mut Effects) {
        let mut body = out.alloc(PAGE as usize);
        let slots = page * MAP_ENTRIES..(page + 1) * MAP_ENTRIES;
        for (bytes, slot) in body.as_mut().chunks_exact_mut(16).zip(slots) {
            bytes.copy_from_slice(self.map.entry(slot).as_bytes());
        }
        let both = self.layout.map_page(page);
        let sum = page_sum(&body, self.identity.uuid, both);
        self.write(self.other_copy(page, both), body, Op::SaveMap { page, sum }, out);
    }

    /// Saves a page of checksums that is in memory.
    pub(super) fn save_sums(&mut self, page: u32, out: &mut Effects) {
        let mut sums = self.sums.page(page).map_or_else(empty_page, |p| Box::new(**p));
        self.sums.merge(page, &mut sums);
        let mut body = out.alloc(PAGE as usize);
        for (bytes, sum) in body.as_mut().chunks_exact_mut(4).zip(sums.iter()) {
            bytes.copy_from_slice(&sum.to_le_bytes());
        }
        let both = self.layout.sum_page(page);
        let sum = page_sum(&body, self.identity.uuid, both);
        let at = self.other_copy(self.layout.map_pages() + page, both);
        self.write(at, body, Op::SaveSums { page, sum, sums }, out);
    }

    /// Notes that a page was written to its other copy. That copy counts from now on: in memory at
    /// once, on the device when the root says so.
    pub(super) fn page_saved(&mut self, index: u32, sum: u32) {
        self.root[index as usize] = sum;
        let other = !self.copies.get(index);
        self.copies.put(index, other);
        self.checkpoint.as_mut().expect("it is a checkpoint's").busy -= 1;
    }

    fn save_root(&mut self, out: &mut Effects) {
        let mut root = out.alloc(self.root.len() * 4);
        for (bytes, sum) in root.as_mut().chunks_exact_mut(4).zip(&self.root) {
            bytes.copy_from_slice(&sum.to_le_bytes());
        }
        let sequence = self.anchor.sequence + 1;
        let copy = (sequence & 1) as usize;
        let records = self.groups.encode(self.layout.records[copy].len);
        if records.len() as u64 > self.layout.records[copy].len {
            return self.fail(DiskError::NoSpace);
        }
        let c = self.checkpoint.as_mut().expect("it runs");
        c.step = Step::Root;
        c.anchor = Anchor {
            sequence,
            life: self.log.life(),
            log: c.start,
            root_crc: crc32c(&root),
            records_len: records.len() as u64,
            records_crc: crc32c(&records),
        };
        self.save_bytes(self.layout.root[copy].at, &root, out);
        self.save_bytes(self.layout.records[copy].at, &records, out);
        if mutant::on(Mutant::EagerSuperblock) {
            self.save_superblocks(Step::First, out);
        }
    }

    fn save_bytes(&mut self, at: u64, bytes: &[u8], out: &mut Effects) {
        for (i, piece) in bytes.chunks(PIECE).enumerate() {
            let mut body = out.pool().zeroed(piece.len().next_multiple_of(PAGE as usize));
            body.as_mut()[..piece.len()].copy_from_slice(piece);
            self.checkpoint.as_mut().expect("it runs").busy += 1;
            self.write(at + (i * PIECE) as u64, body, Op::Anchor, out);
        }
    }

    fn save_superblocks(&mut self, step: Step, out: &mut Effects) {
        let c = self.checkpoint.as_mut().expect("it runs");
        c.step = step;
        let (identity, layout) = (self.identity, self.layout.clone());
        let [first, second, middle, last] = layout.places();
        let mut places = Vec::from([first, middle]);
        if step == Step::Second {
            places = layout.earlier_ends().chain([second, last]).collect();
        }
        c.busy += places.len() as u32;
        let content = Content { identity, layout, anchor: c.anchor, level: self.level };
        let mut body = out.alloc(PAGE as usize);
        content.encode(body.as_mut());
        places.into_iter().for_each(|at| self.write(at, body.clone(), Op::Anchor, out));
    }

    /// Notes that a piece of root or records, or a superblock, was written.
    pub(super) fn anchor_written(&mut self) {
        let c = self.checkpoint.as_mut().expect("it is a checkpoint's");
        c.busy -= 1;
        if c.busy == 0 {
            self.await_flush(Waiter::Checkpoint);
        }
    }

    /// Continues after a step has become durable.
    pub(super) fn checkpoint_durable(&mut self) {
        let c = self.checkpoint.as_mut().expect("it waits");
        match c.step {
            Step::Home | Step::Pages => unreachable!("they wait for nothing"),
            Step::Root => c.next = Some(Step::First),
            Step::First => c.next = Some(Step::Second),
            Step::Second => {
                self.anchor = c.anchor;
                self.log.free(c.start.position);
                self.checkpoint = None;
                self.stats.checkpoints += 1;
            }
        }
    }
}
