//! A mounted device: its parts, and the calls of [`UnitStore`].
//!
//! Each part keeps its own rules: `slots` (what each slot holds, and what waits for it), `pages`
//! (map and checksums on the device), `groups` (the records of replication), `log` and `commit`
//! (what becomes durable), `flushes`, `destage`, `checkpoint`, `holes`, `jobs` and `ops`. No part
//! knows of the device. This file starts jobs, dispatches completed operations, and completes jobs;
//! the ways of a job through the parts are in `read`, `write`, `fetch` and `commit`.

use super::bits::Bits;
use super::checkpoint::Checkpoints;
use super::commit::Commit;
use super::destage::{self, Destage};
use super::flushes::Flushes;
use super::groups::Groups;
use super::job::{Kind, Op, Waiter};
use super::jobs::Jobs;
use super::log::Log;
use super::ops::Ops;
use super::overlay::Overlay;
use super::pages::Pages;
use super::slots::Slots;
use super::stats::{Growth, Replayed, Stats};
use super::sums::Sums;
use super::superblock::{Content, Identity};
use super::tuning::Tuning;
use super::unitmap::UnitMap;
use alloc::vec::Vec;
use base::{BlockSet, GroupId, Mutant, UnitKey, VolumeId, mutant};
use seam::{
    Buf, Change, DiskError, DiskId, DiskOp, Effects, Finished, Forgotten, Job as Ask,
    ReplicaRecord, Started, UnitStore, Walk, WriteMetadata,
};

/// A mounted device.
// Large: each of the store's operations, and the length and bound of each list for judges.
#[derive(Debug)]
pub struct Durable {
    /// The content of the superblocks. The level may be higher: the next checkpoint writes it.
    pub(super) content: Content,
    pub(super) tuning: Tuning,
    pub(super) slots: Slots,
    pub(super) pages: Pages,
    pub(super) groups: Groups,
    pub(super) log: Log,
    pub(super) jobs: Jobs,
    pub(super) ops: Ops,
    pub(super) commit: Commit,
    pub(super) destage: Destage,
    pub(super) flushes: Flushes,
    pub(super) checkpoints: Checkpoints,
    pub(super) failed: Option<DiskError>,
    pub(super) stats: Stats,
    pub(super) replayed: Replayed,
    pub(super) growth: Growth,
}

/// The state that a mount has put together.
pub(super) struct Recovered {
    pub disk: DiskId,
    pub content: Content,
    pub tuning: Tuning,
    pub map: UnitMap,
    pub overlay: Overlay,
    pub sums: Sums,
    pub groups: Groups,
    pub log: Log,
    pub root: Vec<u32>,
    pub copies: Bits,
    pub dropped: u64,
    pub replayed: Replayed,
    pub growth: Growth,
}

impl Durable {
    /// Makes a device from what recovery found. A checkpoint is due before the device may be used.
    pub(super) fn new(r: Recovered) -> Durable {
        let uuid = r.content.identity.uuid;
        Durable {
            content: r.content,
            tuning: r.tuning,
            slots: Slots::new(r.map, r.overlay),
            pages: Pages::new(uuid, r.root, r.copies, r.sums),
            groups: r.groups,
            log: r.log,
            jobs: Jobs::default(),
            ops: Ops::new(r.disk),
            commit: Commit::default(),
            destage: Destage::default(),
            flushes: Flushes::default(),
            checkpoints: Checkpoints::default(),
            failed: None,
            stats: Stats { dropped: r.dropped, ..Stats::default() },
            replayed: r.replayed,
            growth: r.growth,
        }
    }

    /// Returns the identity of the device.
    pub fn identity(&self) -> Identity {
        self.content.identity
    }

    /// Returns the level of the cluster that the device was written for.
    pub fn level(&self) -> u32 {
        self.content.level
    }

    /// Takes over a higher level of the cluster. The next checkpoint, which is due now, writes it
    /// to the device; only after that may the device get anything that needs the level.
    pub fn raise_level(&mut self, level: u32) {
        if level > self.content.level {
            self.content.level = level;
            self.request_checkpoint();
        }
    }

    /// Returns the number of bytes in slots that are in use.
    pub fn used(&self) -> u64 {
        u64::from(self.slots.map().used()) * super::layout::SLOT
    }

    /// Returns the number of bytes in all slots.
    pub fn capacity(&self) -> u64 {
        u64::from(self.slots.map().usable()) * super::layout::SLOT
    }

    /// Returns the error that stopped the device, if one did: a write or a flush failed, so its
    /// content is unknown. Jobs get this error. The device has to be mounted again.
    pub fn failed(&self) -> Option<DiskError> {
        self.failed
    }

    /// Returns the counters.
    pub fn stats(&self) -> Stats {
        Stats { lost_pages: self.pages.lost(), ..self.stats }
    }

    /// Returns where a block lies on the device, in bytes, if it holds data. For tools and tests.
    pub fn place(&self, group: GroupId, unit: UnitKey, block: u32) -> Option<u64> {
        let slot = self.slots.slot_of(group, unit, block)?;
        let holds = self.slots.map().valid(slot) >> (block % 16) & 1 == 1;
        holds.then(|| {
            self.content.layout.slot(slot) + u64::from(block % 16) * u64::from(base::BLOCK)
        })
    }

    /// Returns a block's data, if it waits in memory for its slot. For tools and tests.
    pub fn waiting(&self, group: GroupId, unit: UnitKey, block: u32) -> Option<&Buf> {
        let slot = self.slots.slot_of(group, unit, block)?;
        self.slots.overlay().get(slot, block % 16)
    }

    /// Returns the number of bytes that wait in memory for their slots.
    pub fn waiting_bytes(&self) -> usize {
        self.slots.overlay().bytes()
    }

    /// Requests a checkpoint, which begins at the next `flush`. It puts all data into its slots and
    /// the log's content into the map, so that a mount has nothing to replay.
    pub fn request_checkpoint(&mut self) {
        self.checkpoints.request();
    }

    /// True while a checkpoint runs or is due.
    pub fn is_checkpointing(&self) -> bool {
        self.checkpoints.is_active()
    }

    /// Returns the number of executed client writes that are listed, in all groups.
    pub fn executed_len(&self) -> usize {
        self.groups.executed_len()
    }

    /// Returns the upper bound of [`Durable::executed_len`].
    pub fn executed_most(&self) -> usize {
        self.groups.executed_most()
    }

    /// Returns the number of units that the dirty sets of all groups name.
    pub fn dirty_len(&self) -> usize {
        self.groups.dirty_len()
    }

    /// Returns the upper bound of [`Durable::dirty_len`].
    pub fn dirty_most(&self) -> usize {
        self.groups.dirty_most()
    }

    /// True while a job runs.
    pub fn has_jobs(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// Returns how many records the log has had over all mounts of the device.
    pub fn records_written(&self) -> u64 {
        self.log.next_record()
    }

    /// Returns how many of these records, from the first one on, are durable with their data. No
    /// later mount has fewer.
    pub fn records_settled(&self) -> u64 {
        self.log.settled()
    }

    /// True when a mount would have nothing to replay.
    pub fn is_log_empty(&self) -> bool {
        self.log.used() == 0
    }

    /// True when the log on the device says that all of its records are settled. From then on,
    /// damage can't be mistaken for a write that a crash cut short.
    pub fn is_settled_on_disk(&self) -> bool {
        self.log.is_settled_on_disk() && self.is_idle()
    }

    /// True when no job runs and no device operation is in flight.
    pub fn is_idle(&self) -> bool {
        self.jobs.is_empty() && self.ops.is_empty()
    }

    // ---- operations and completions ----

    /// Records that an operation or record that a job waits for is complete. Continues the job if
    /// it was the last one.
    pub(super) fn arrived(&mut self, key: u64, error: Option<DiskError>, out: &mut Effects) {
        let Some(job) = self.jobs.arrived(key, error) else { return };
        match (&job.kind, job.error) {
            (Kind::Read { .. } | Kind::Edges { .. }, Some(error)) => self.end(key, Err(error)),
            (Kind::Read { .. }, None) => self.read_fetched(key, out),
            (Kind::Edges { .. }, None) => {
                let whole = job.fetch.check();
                if let Err(error) = whole.and_then(|()| self.place_parts(key, out)) {
                    self.end(key, Err(error));
                }
            }
            _ => self.written(key),
        }
    }

    /// Completes a job.
    pub(super) fn end(&mut self, key: u64, result: Result<Buf, DiskError>) {
        self.end_read(key, result, None);
    }

    /// Completes a job. `crc` is the CRC-32C of its answer.
    pub(super) fn end_read(&mut self, key: u64, result: Result<Buf, DiskError>, crc: Option<u32>) {
        let corrupt = matches!(result, Err(DiskError::Corrupt { .. }));
        let Some(job) = self.jobs.end(key, result, crc) else { return };
        self.stats.corrupt += u64::from(corrupt);
        self.commit.dropping &= !self.jobs.is_empty();
        job.pins.iter().for_each(|pin| self.slots.unpin(*pin));
    }

    /// Fails the device, because a write or flush failed: its content is unknown from now on.
    pub(super) fn fail(&mut self, error: DiskError) {
        self.failed = Some(error);
        self.jobs.keys().into_iter().for_each(|key| self.end(key, Err(error)));
        assert!(self.jobs.is_empty(), "no job survives the failure of its device");
        self.ops.forget();
    }

    /// Applies the effects of a job whose record and data are durable.
    pub(super) fn apply(&mut self, key: u64) {
        let job = self.jobs.at(key);
        let Some(record) = job.record else { return };
        let kind = core::mem::replace(&mut job.kind, Kind::Read { at: 0, len: 0 });
        let data = matches!(&kind, Kind::Write(write) if write.has_direct());
        match kind {
            Kind::Write(write) => {
                if self.slots.apply(record, &write, &mut self.pages.sums) {
                    self.groups.wrote(&write);
                }
            }
            Kind::Change(group, changes) => {
                for change in &changes {
                    self.groups.change(group, change);
                    if matches!(change, Change::Wipe) {
                        self.slots.begin_sweep(|g, _| g == group);
                    }
                }
            }
            Kind::Drop(volume) => {
                self.groups.drop_volume(volume);
                self.slots.begin_sweep(|_, v| v == volume);
            }
            Kind::Read { .. } | Kind::Edges { .. } => unreachable!("it has no record"),
        }
        self.log.settle(record, data);
    }

    /// Sends runs to their slots, if destaging is due.
    fn run_destage(&mut self, out: &mut Effects) {
        let most = self.tuning.overlay_bytes;
        let Some(due) = self.destage.begin(self.slots.overlay(), most) else { return };
        while self.destage.has_room() {
            let wanted = self.checkpoints.want_home(self.slots.overlay().oldest());
            if !(due || wanted && self.checkpoints.may_go_on(&self.progress())) {
                return;
            }
            let Some(next) = self.destage.next(&mut self.slots) else { return };
            self.checkpoints.take_home(&next.0);
            destage::write(next, &self.content.layout, &mut self.ops, out);
        }
    }
}

impl UnitStore for Durable {
    fn start(
        &mut self,
        token: u64,
        group: GroupId,
        unit: UnitKey,
        job: Ask,
        marks: WriteMetadata,
        out: &mut Effects,
    ) -> Started {
        if let Some(error) = self.failed {
            return self.jobs.refuse(token, error);
        }
        match job {
            Ask::Read { at, len } => self.start_read(token, group, unit, at, len, out),
            Ask::Write { at, body, crc } => {
                self.start_write(token, group, unit, at, (body, crc), marks, out)
            }
            Ask::Zero { at, len } => self.start_zero(token, group, unit, at, len, marks, out),
            Ask::MarkLost { at, len } => self.start_lose(token, group, unit, at, len, marks, out),
        }
    }

    fn change(&mut self, token: Option<u64>, group: GroupId, changes: Vec<Change>) {
        if let (Some(error), Some(token)) = (self.failed, token) {
            self.jobs.refuse(token, error);
            return;
        }
        if changes.iter().any(|c| matches!(c, Change::Wipe)) {
            self.slots.drop_owners(|g, _| g == group);
        }
        self.enqueue_small(token, Kind::Change(group, changes));
    }

    fn disk_done(&mut self, op: DiskOp, result: Result<Buf, DiskError>, out: &mut Effects) {
        let Some(op) = self.ops.end(op) else { return };
        let error = result.as_ref().err().copied();
        match (op, error) {
            (Op::Hole { bytes }, error) => self.end_hole(bytes, error, out),
            (Op::Fetch { job, span }, _) => self.fetched(job, span, result, out),
            (Op::SumPage { page, wanted, tries }, _) => {
                self.page_read((page, wanted, tries), result, out);
            }
            (Op::Flush, Some(_)) if mutant::on(Mutant::BelieveFlush) => self.flushed(),
            (Op::Flush, Some(error)) => self.fail(error),
            (_, Some(error)) if !mutant::on(Mutant::BelieveWrite) => self.fail(error),
            (Op::Data { job }, _) => self.arrived(job, None, out),
            (Op::Log, _) => self.log_written(out),
            (Op::Flush, None) => self.flushed(),
            (Op::Home(pin, blocks), _) => {
                self.destage.wrote();
                self.slots.wrote(pin, &blocks);
                self.await_flush(Waiter::Home(blocks));
            }
            (Op::SaveMap { page, sum }, _) => {
                self.pages.saved(page, sum);
                self.checkpoints.wrote();
            }
            (Op::SaveSums { page, sum, sums }, _) => {
                self.pages.sums.saved(page, sums);
                self.pages.saved(self.content.layout.map_pages() + page, sum);
                self.checkpoints.wrote();
            }
            (Op::CheckpointHead, _) => {
                if self.checkpoints.wrote() {
                    self.await_flush(Waiter::Checkpoint);
                }
            }
        }
    }

    fn finished(&mut self) -> Option<Finished> {
        self.jobs.finished()
    }

    fn flush(&mut self, out: &mut Effects) {
        if self.failed.is_some() {
            return;
        }
        self.slots.sweep(self.tuning.sweep);
        // If one step fails the device, all jobs have completed.
        let steps = [Durable::run_checkpoint, Durable::run_destage, Durable::run_commit];
        for step in steps {
            if self.failed.is_none() {
                step(self, out);
            }
        }
        if self.failed.is_none() && (self.destage.wanted || self.checkpoints.is_requested()) {
            // A batch found no room, and perhaps no operation in flight will cause another call.
            self.run_checkpoint(out);
            if self.failed.is_none() {
                self.run_destage(out);
            }
        }
    }

    fn rest(&mut self, out: &mut Effects) {
        let rests = self.commit.rests(self.stats.batches);
        if rests && self.failed.is_none() && self.log.needs_settled_batch() {
            self.write_settled(out);
        }
        if self.failed.is_none() {
            self.begin_holes(rests, out);
        }
    }

    fn has_space_for(&self, group: GroupId, unit: UnitKey, at: u32, len: u32) -> bool {
        self.slots.hold(group, unit, at, len)
    }

    fn reserve(&mut self, group: GroupId, unit: UnitKey, at: u32, len: u32) -> bool {
        self.slots.reserve((group, unit, at, len))
    }

    fn release(&mut self, group: GroupId, unit: UnitKey, at: u32, len: u32) {
        self.slots.release((group, unit, at, len));
    }

    fn valid(&self, group: GroupId, unit: UnitKey) -> BlockSet {
        self.slots.map().valid_in(group, unit)
    }

    fn units(&self, group: GroupId) -> Vec<UnitKey> {
        self.slots.map().units(group)
    }

    fn volumes(&self) -> Vec<VolumeId> {
        self.slots.map().volumes()
    }

    fn is_empty(&self, group: GroupId) -> bool {
        !self.slots.map().holds(group)
    }

    fn drop_volume(&mut self, volume: VolumeId) -> u64 {
        let slots = self.slots.map().slots_of(volume);
        if self.failed.is_none() {
            self.slots.drop_owners(|_, v| v == volume);
            self.commit.dropping = true;
            self.enqueue_small(None, Kind::Drop(volume));
        }
        slots * super::layout::SLOT
    }

    fn walk(&self, cursor: u64, most: u32) -> Walk {
        self.slots.map().walk(cursor, most)
    }

    fn used(&self) -> u64 {
        Durable::used(self)
    }

    fn records(&self) -> Vec<(GroupId, ReplicaRecord)> {
        self.groups.records()
    }

    fn forgotten(&self) -> Option<&Forgotten> {
        Some(self.groups.forgotten())
    }

    fn failed(&self) -> Option<DiskError> {
        self.failed
    }
}
