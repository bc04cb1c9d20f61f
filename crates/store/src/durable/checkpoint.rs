//! Checkpoints transfer the content of the log to the map, so that the space of the log can be
//! reused.
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
//! A checkpoint is fuzzy: jobs continue, and pages may be ahead of the log's new start. Replay
//! tolerates that. Pages must not be behind it, so no checkpoint begins while a sweep still has to
//! free slots that an older record gave back. The checkpoint waits for the steps of the sweep until
//! the log exceeds the size that makes a checkpoint due by a quarter; then the sweep is completed
//! at once. No step needs room in the log.

use super::bits::Bits;
use super::job::{Op, Reader};
use super::layout::PAGE;
use super::ops::Ops;
use super::overlay::Run;
use super::store::Durable;
use super::superblock::{CheckpointHead, Content, LogStart};
use alloc::vec::Vec;
use base::crc::crc32c;
use base::{Mutant, mutant};
use seam::{DiskError, Effects};

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

/// The checkpoints of a device: one at a time.
#[derive(Debug)]
pub(super) struct Checkpoints {
    running: Option<Checkpoint>,
    /// A checkpoint is due even if the log does not need one, and a caller waits for it.
    due: bool,
}

/// The numbers that set the pace of a checkpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    /// Bytes of the log that a mount would read.
    pub used: u64,
    /// Bytes ever written to the log.
    pub written: u64,
    /// The value of `used` that makes a checkpoint due.
    pub due_at: u64,
    /// Number of slots whose checksums have changed since the last checkpoint began.
    pub fresh: usize,
    /// The value of `fresh` that makes a checkpoint due.
    pub most_fresh: usize,
}

/// A running checkpoint.
#[derive(Debug)]
struct Checkpoint {
    step: Step,
    start: LogStart,
    /// Pages of the map to save. `next_map` and `next_sum` say where to continue.
    pages: Bits,
    next_map: u32,
    next_sum: u32,
    busy: u32,
    anchor: CheckpointHead,
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

impl Default for Checkpoints {
    /// The state after a mount: the first checkpoint is due.
    fn default() -> Checkpoints {
        Checkpoints { running: None, due: true }
    }
}

impl Checkpoints {
    /// Makes a checkpoint due.
    pub(super) fn request(&mut self) {
        self.due = true;
    }

    /// True when a checkpoint was requested and has not begun.
    pub(super) fn is_requested(&self) -> bool {
        self.due
    }

    /// True while a checkpoint runs or was requested.
    pub(super) fn is_active(&self) -> bool {
        self.due || self.running.is_some()
    }

    /// Makes the running checkpoint go on at full speed.
    pub(super) fn hurry(&mut self) {
        if let Some(c) = &mut self.running {
            c.pace.hurried = true;
        }
    }

    /// True when the checkpoint can't continue before blocks are in their slots. `oldest` is the
    /// oldest record with such a block.
    pub(super) fn want_home(&self, oldest: Option<u64>) -> bool {
        let Some(c) = &self.running else { return false };
        c.step == Step::Home && oldest.is_some_and(|r| r < c.start.record)
    }

    /// True when the checkpoint may send one more block to its slot, or save one more page.
    pub(super) fn may_go_on(&self, now: &Progress) -> bool {
        let Some(Checkpoint { pace, .. }) = &self.running else { return false };
        let span = (now.due_at / 4).max(1);
        let hurried = pace.hurried
            || self.due
            || now.used > now.due_at + 2 * span
            || now.fresh > now.most_fresh / 2;
        let log = now.written - pace.written;
        let hurried = hurried && !mutant::on(Mutant::NoHurry);
        hurried || pace.done < AHEAD + pace.work * log / span
    }

    /// Counts blocks on their way to slots as work, if the checkpoint waits for them.
    pub(super) fn take_home(&mut self, run: &Run) {
        let Some(c) = self.running.as_mut().filter(|c| c.step == Step::Home) else { return };
        let waited = run.blocks.iter().filter(|(_, record)| *record < c.start.record);
        c.pace.done += waited.count() as u64;
    }

    /// Begins a checkpoint from `start` of the log on, which saves these pages of the map. `others`
    /// is the rest of its work: blocks and pages of checksums.
    fn begin(&mut self, start: LogStart, pages: Bits, others: usize, written: u64) {
        assert!(self.running.is_none(), "one checkpoint at a time");
        let hurried = core::mem::take(&mut self.due);
        let work = others as u64 + u64::from(pages.count());
        self.running = Some(Checkpoint {
            step: Step::Home,
            start,
            pages,
            next_map: 0,
            next_sum: 0,
            busy: 0,
            anchor: CheckpointHead::default(),
            next: None,
            pace: Pace { hurried, work, done: 0, written },
        });
    }

    fn running(&mut self) -> &mut Checkpoint {
        self.running.as_mut().expect("a checkpoint runs while its writes do")
    }

    /// Records that a write of the checkpoint has completed. Returns true for the last one.
    pub(super) fn wrote(&mut self) -> bool {
        let c = self.running();
        assert!(c.busy > 0, "each write of a checkpoint ends once");
        c.busy -= 1;
        c.busy == 0
    }

    /// Continues after a step has become durable. After the last one, returns what the superblocks
    /// say now, and where the log begins.
    pub(super) fn durable(&mut self) -> Option<(CheckpointHead, LogStart)> {
        let c = self.running();
        assert!(c.busy == 0, "a step is durable when all of its writes have ended");
        assert!(c.next.is_none(), "one step follows another");
        match c.step {
            Step::Home | Step::Pages => unreachable!("they wait for nothing"),
            Step::Root => c.next = Some(Step::First),
            Step::First => c.next = Some(Step::Second),
            Step::Second => return self.running.take().map(|c| (c.anchor, c.start)),
        }
        None
    }
}

impl Checkpoint {
    /// Writes root or records.
    fn save_bytes(&mut self, at: u64, bytes: &[u8], ops: &mut Ops, out: &mut Effects) {
        for (i, piece) in bytes.chunks(PIECE).enumerate() {
            let mut body = out.pool().zeroed(piece.len().next_multiple_of(PAGE as usize));
            body.as_mut()[..piece.len()].copy_from_slice(piece);
            self.busy += 1;
            ops.write(at + (i * PIECE) as u64, body, Op::CheckpointHead, out);
        }
    }

    /// Writes two of the superblocks, or the other ones.
    fn save_superblocks(
        &mut self,
        step: Step,
        content: &Content,
        ops: &mut Ops,
        out: &mut Effects,
    ) {
        let before = if step == Step::First { Step::Root } else { Step::First };
        assert!(self.step == before, "the superblocks follow the root, two by two");
        self.step = step;
        let content = Content { anchor: self.anchor, ..content.clone() };
        let [first, second, middle, last] = content.layout.places();
        let mut places = Vec::from([first, middle]);
        if step == Step::Second {
            places = content.layout.earlier_ends().chain([second, last]).collect();
        }
        self.busy += places.len() as u32;
        let mut body = out.alloc(PAGE as usize);
        content.encode(body.as_mut());
        places.into_iter().for_each(|at| ops.write(at, body.clone(), Op::CheckpointHead, out));
    }
}

impl Durable {
    /// Makes the running checkpoint go on at full speed.
    pub fn hurry_checkpoint(&mut self) {
        self.checkpoints.hurry();
    }

    /// Returns what sets the pace of checkpoints.
    pub(super) fn progress(&self) -> Progress {
        Progress {
            used: self.log.used(),
            written: self.log.written(),
            due_at: self.tuning.due_at(self.log.ring()),
            fresh: self.pages.sums.fresh(),
            most_fresh: self.tuning.fresh_sums,
        }
    }

    /// Begins a checkpoint if one is due, and continues the running one.
    pub(super) fn run_checkpoint(&mut self, out: &mut Effects) {
        if self.checkpoints.running.is_none() && self.may_begin() {
            self.begin_checkpoint();
        }
        if let Some(step) = self.checkpoints.running.as_mut().and_then(|c| c.next.take()) {
            let c = self.checkpoints.running();
            return c.save_superblocks(step, &self.content, &mut self.ops, out);
        }
        if self.checkpoints.want_home(self.slots.overlay().oldest()) {
            return;
        }
        let Some(c) = &mut self.checkpoints.running else { return };
        if c.step == Step::Home {
            c.step = Step::Pages;
        }
        if c.step == Step::Pages {
            self.save_pages(out);
        }
    }

    /// True when a checkpoint is due and the map has freed the slots that a wipe or drop before the
    /// log's start gave back. Replay won't see that wipe or drop, so the pages must. Usually the
    /// sweep continues step by step. It is completed at once when a checkpoint can't wait for that.
    fn may_begin(&mut self) -> bool {
        let (now, asked) = (self.progress(), self.checkpoints.due);
        if !asked && now.used <= now.due_at && now.fresh <= now.most_fresh {
            return false;
        }
        if mutant::on(Mutant::MidSweep) {
            return true;
        }
        let late = |is: u64, due: u64| is > due + due / 4;
        if asked || late(now.used, now.due_at) || late(now.fresh as u64, now.most_fresh as u64) {
            self.slots.sweep(u32::MAX);
        }
        !self.slots.is_sweeping()
    }

    fn begin_checkpoint(&mut self) {
        self.pages.sums.begin_saving();
        let start = self.log.start();
        if mutant::on(Mutant::EagerTail) {
            self.log.free(start.position);
        }
        let swept = !self.slots.is_sweeping() || mutant::on(Mutant::MidSweep);
        assert!(swept, "no page of a checkpoint has a slot that an earlier record gave back");
        let pages = self.slots.take_changed_pages();
        let blocks = self.slots.overlay().bytes() / base::BLOCK as usize;
        let others = blocks + self.pages.sums.pages_to_save();
        self.checkpoints.begin(start, pages, others, self.log.written());
    }

    fn save_pages(&mut self, out: &mut Effects) {
        loop {
            let may = self.checkpoints.may_go_on(&self.progress());
            let running = &mut self.checkpoints.running;
            let Some(c) = running.as_mut().filter(|c| c.busy < PAGES) else { return };
            let map = c.pages.next_set(c.next_map);
            let sums = self.pages.sums.next_to_save(c.next_sum).filter(|_| map.is_none());
            if map.or(sums).is_some() {
                if !may {
                    return;
                }
                c.pace.done += 1;
            }
            if let Some(page) = map {
                (c.next_map, c.busy) = (page + 1, c.busy + 1);
                self.pages.save_map(
                    page,
                    self.slots.map(),
                    &self.content.layout,
                    &mut self.ops,
                    out,
                );
            } else if let Some(page) = sums {
                (c.next_sum, c.busy) = (page + 1, c.busy + 1);
                if self.pages.sums.page(page).is_some() {
                    self.pages.save_sums(page, &self.content.layout, &mut self.ops, out);
                } else {
                    let reader = Reader::Checkpoint;
                    self.pages.load(page, reader, &self.content.layout, &mut self.ops, out);
                }
            } else if c.busy == 0 {
                return self.save_root(out);
            } else {
                return;
            }
        }
    }

    fn save_root(&mut self, out: &mut Effects) {
        let root = self.pages.root(out);
        let sequence = self.content.anchor.sequence + 1;
        let copy = (sequence & 1) as usize;
        let records = self.groups.encode(self.content.layout.records[copy].len);
        if records.len() as u64 > self.content.layout.records[copy].len {
            return self.fail(DiskError::NoSpace);
        }
        let c = self.checkpoints.running();
        assert!(c.step == Step::Pages && c.busy == 0, "the root follows all pages");
        c.step = Step::Root;
        c.anchor = CheckpointHead {
            sequence,
            life: self.log.life(),
            log: c.start,
            root_crc: crc32c(&root),
            records_len: records.len() as u64,
            records_crc: crc32c(&records),
        };
        c.save_bytes(self.content.layout.root[copy].at, &root, &mut self.ops, out);
        c.save_bytes(self.content.layout.records[copy].at, &records, &mut self.ops, out);
    }
}
