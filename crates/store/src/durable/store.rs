//! A mounted device: its state, and the calls of [`UnitStore`].
//!
//! This file starts jobs, dispatches completed device operations, and completes jobs. The work
//! itself is in `read`, `write`, `commit` (the log), `destage` and `checkpoint`.

use super::bits::Bits;
use super::checkpoint::Checkpoint;
use super::commit::Commit;
use super::destage::Destage;
use super::groups::Groups;
use super::job::{Fetch, Job, Kind, Op, Reader};
use super::layout::Layout;
use super::log::Log;
use super::overlay::Overlay;
use super::record::{Way, Write};
use super::sums::Sums;
use super::superblock::{Anchor, Identity};
use super::survey::{Growth, Replayed};
use super::unitmap::{Access, Chunk, Pin, UnitMap};
use crate::overlaps_are_judged;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use base::{BlockSet, GroupId, Mutant, Slab, UnitKey, VolumeId, mutant};
use seam::{
    Buf, Change, DiskError, DiskId, DiskOp, Effect, Effects, Finished, Forgotten, Job as Ask,
    Marks, ReplicaRecord, Started, UnitStore, Walk,
};

/// When a write is durable on this device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// After a later flush: the device has a volatile cache.
    Flush,
    /// As soon as the write completes.
    WriteThrough,
}

/// Limits for a mounted device.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// When writes are durable.
    pub durability: Durability,
    /// Bytes of data that may wait in memory for their slots.
    pub overlay_bytes: usize,
    /// Bytes of log after which a checkpoint is due, unless half of the ring is less. A mount reads
    /// that much.
    pub replay_bytes: u64,
    /// Number of slots whose checksums may have changed since the last checkpoint. They are in a
    /// hash table with 73 bytes per place, of which seven in eight are used.
    pub fresh_sums: usize,
    /// Number of pages of checksums to cache, 4 KiB each. One covers 4 MiB of data.
    pub cached_pages: usize,
    /// Number of units that dirty sets may name before they become "all"; 60 bytes each.
    pub dirty_units: usize,
    /// Number of executed client writes to list before the oldest are forgotten; 150 bytes each.
    pub executed: usize,
    /// Number of slots that the sweep after a drop or wipe checks per call of `flush`.
    pub sweep: u32,
}

impl Tuning {
    /// The shipped values. `docs/internals/on-disk.md` adds up the memory.
    pub const SHIPPED: Tuning = Tuning {
        durability: Durability::Flush,
        overlay_bytes: 16 << 20,
        replay_bytes: 512 << 20,
        fresh_sums: 14 << 10,
        cached_pages: 1024,
        dirty_units: 32 << 10,
        executed: 64 << 10,
        sweep: 1 << 20, // about 5 ms
    };
}

/// Counters of a device since its mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Batches written to the log.
    pub batches: u64,
    /// Records in them.
    pub records: u64,
    /// Flushes.
    pub flushes: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Blocks that went from the log to their slots.
    pub destaged: u64,
    /// Jobs that failed with [`DiskError::Corrupt`].
    pub corrupt: u64,
    /// Pages of checksums without a whole copy.
    pub lost_pages: u64,
    /// Records that the mount dropped: their data was not durable, so none was acknowledged.
    pub dropped: u64,
}

/// A mounted device.
#[derive(Debug)]
pub struct Durable {
    pub(super) disk: DiskId,
    pub(super) identity: Identity,
    pub(super) layout: Layout,
    pub(super) tuning: Tuning,
    pub(super) anchor: Anchor,
    /// The level of the cluster, as the next checkpoint writes it.
    pub(super) level: u32,
    pub(super) map: UnitMap,
    pub(super) overlay: Overlay,
    pub(super) sums: Sums,
    pub(super) groups: Groups,
    pub(super) log: Log,
    /// Checksums of the pages of the map, then of the pages of checksums. 0: never written.
    pub(super) root: Vec<u32>,
    /// By page, as in the root: the copy that counts.
    pub(super) copies: Bits,
    pub(super) jobs: Slab<Job>,
    pub(super) ops: Slab<Op>,
    pub(super) loading: BTreeMap<u32, Vec<Reader>>,
    /// Slots that reservations pin.
    reserved: BTreeMap<(GroupId, UnitKey, u32, u32), Vec<Vec<Pin>>>,
    pub(super) commit: Commit,
    pub(super) destage: Destage,
    pub(super) checkpoint: Option<Checkpoint>,
    pub(super) checkpoint_due: bool,
    pub(super) finished: VecDeque<Finished>,
    pub(super) failed: Option<DiskError>,
    pub(super) stats: Stats,
    pub(super) replayed: Replayed,
    pub(super) growth: Growth,
}

/// Upper bound of jobs and operations in flight. The callers stay far below: 2^14 as a primary, and
/// as many for each of 2^11 other primaries. A job has at most 16 operations for slots and 16 for
/// pages of checksums.
const IN_FLIGHT: usize = 1 << 30;

/// The state that a mount has put together.
pub(super) struct Recovered {
    pub disk: DiskId,
    pub identity: Identity,
    pub layout: Layout,
    pub tuning: Tuning,
    pub anchor: Anchor,
    pub level: u32,
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

/// Returns the blocks of the unit's set that lie in one chunk.
fn in_chunk(blocks: BlockSet, chunk: u8) -> u16 {
    (blocks.0[chunk as usize / 4] >> (chunk % 4 * 16)) as u16
}

impl Durable {
    /// Makes a device from what recovery found. A checkpoint is due before the device may be used.
    pub(super) fn new(r: Recovered) -> Durable {
        Durable {
            disk: r.disk,
            identity: r.identity,
            layout: r.layout,
            tuning: r.tuning,
            anchor: r.anchor,
            level: r.level,
            map: r.map,
            overlay: r.overlay,
            sums: r.sums,
            groups: r.groups,
            log: r.log,
            root: r.root,
            copies: r.copies,
            jobs: Slab::new(IN_FLIGHT),
            ops: Slab::new(IN_FLIGHT),
            loading: BTreeMap::new(),
            reserved: BTreeMap::new(),
            commit: Commit::default(),
            destage: Destage::default(),
            checkpoint: None,
            checkpoint_due: true,
            finished: VecDeque::new(),
            failed: None,
            stats: Stats { dropped: r.dropped, ..Stats::default() },
            replayed: r.replayed,
            growth: r.growth,
        }
    }

    /// Returns the identity of the device.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Returns the level of the cluster that the device was written for.
    pub fn level(&self) -> u32 {
        self.level
    }

    /// Takes over a higher level of the cluster. The next checkpoint, which is due now, writes it
    /// to the device; only after that may the device get anything that needs the level.
    pub fn raise_level(&mut self, level: u32) {
        if level > self.level {
            self.level = level;
            self.request_checkpoint();
        }
    }

    /// Returns the number of bytes in slots that are in use.
    pub fn used(&self) -> u64 {
        u64::from(self.map.used()) * super::layout::SLOT
    }

    /// Returns the number of bytes in all slots.
    pub fn capacity(&self) -> u64 {
        self.used() + u64::from(self.map.free()) * super::layout::SLOT
    }

    /// Returns why the device can't go on, if it can't: a write or a flush failed, so its content
    /// is unknown. Jobs get this error. The device has to be mounted again.
    pub fn failed(&self) -> Option<DiskError> {
        self.failed
    }

    /// Returns the counters.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Returns where a block lies on the device, in bytes, if it holds data. For tools and tests.
    pub fn place(&self, group: GroupId, unit: UnitKey, block: u32) -> Option<u64> {
        let slot = self.map.slot(Chunk { group, unit, chunk: (block / 16) as u8 })?;
        let holds = self.map.valid(slot) >> (block % 16) & 1 == 1;
        holds.then(|| self.layout.slot(slot) + u64::from(block % 16) * u64::from(base::BLOCK))
    }

    /// Returns a block's data, if it waits in memory for its slot. For tools and tests.
    pub fn waiting(&self, group: GroupId, unit: UnitKey, block: u32) -> Option<&Buf> {
        let slot = self.map.slot(Chunk { group, unit, chunk: (block / 16) as u8 })?;
        self.overlay.get(slot, block % 16)
    }

    /// Returns the number of bytes that wait in memory for their slots.
    pub fn waiting_bytes(&self) -> usize {
        self.overlay.bytes()
    }

    /// Requests a checkpoint, which begins at the next `flush`. It puts all data into its slots and
    /// the log's content into the map, so that a mount has nothing to replay.
    pub fn request_checkpoint(&mut self) {
        self.checkpoint_due = true;
    }

    /// True while a checkpoint runs or is due.
    pub fn is_checkpointing(&self) -> bool {
        self.checkpoint_due || self.checkpoint.is_some()
    }

    /// Returns the number of executed client writes that are listed, in all groups.
    pub fn executed_len(&self) -> usize {
        self.groups.executed_len()
    }

    /// Returns the upper bound of [`Durable::executed_len`].
    pub fn executed_most(&self) -> usize {
        self.groups.executed_most()
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
    pub fn has_told_all(&self) -> bool {
        self.log.has_told_all() && self.is_idle()
    }

    /// True when no job runs and no device operation is in flight.
    pub fn is_idle(&self) -> bool {
        self.jobs.is_empty() && self.ops.is_empty()
    }

    // ---- operations and completions ----

    pub(super) fn read(&mut self, at: u64, len: u32, op: Op, out: &mut Effects) {
        let op = DiskOp(self.ops.insert(op).expect("callers bound their jobs"));
        out.push(Effect::Read { op, disk: self.disk, at, len });
    }

    /// Writes data that no answer waits for. A later flush makes it durable.
    pub(super) fn write(&mut self, at: u64, body: Buf, op: Op, out: &mut Effects) {
        self.begin_write(at, body, op, false, out);
    }

    /// Writes data that an answer waits for. It is durable when the write completes.
    pub(super) fn write_through(&mut self, at: u64, body: Buf, op: Op, out: &mut Effects) {
        let durable = match op {
            Op::Log => !mutant::on(Mutant::LogUnflushed),
            _ => !mutant::on(Mutant::DataUnflushed),
        };
        self.begin_write(at, body, op, durable, out);
    }

    fn begin_write(&mut self, at: u64, body: Buf, op: Op, durable: bool, out: &mut Effects) {
        let op = DiskOp(self.ops.insert(op).expect("callers bound their jobs"));
        out.push(Effect::Write { op, disk: self.disk, at, body, durable });
    }

    /// Adds a job that has not begun anything yet.
    pub(super) fn insert(
        &mut self,
        token: Option<u64>,
        kind: Kind,
        fetch: Fetch,
        pins: Vec<Pin>,
    ) -> u64 {
        let job = Job { token, kind, fetch, left: 0, error: None, record: None, pins };
        self.jobs.insert(job).expect("callers bound their jobs")
    }

    /// Notes that one thing that a job waited for has arrived. After the last one, the job goes on.
    pub(super) fn arrived(&mut self, key: u64, error: Option<DiskError>, out: &mut Effects) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        job.left -= 1;
        job.error = job.error.or(error);
        if job.left > 0 {
            return;
        }
        match (&job.kind, job.error) {
            (Kind::Read { .. } | Kind::Edges { .. }, Some(error)) => self.end(key, Err(error)),
            (Kind::Read { .. }, None) => self.read_fetched(key, out),
            (Kind::Edges { .. }, None) => self.edges_fetched(key, out),
            _ => self.written(key),
        }
    }

    /// Completes a job.
    pub(super) fn end(&mut self, key: u64, result: Result<Buf, DiskError>) {
        self.end_read(key, result, None);
    }

    /// Completes a job. `crc` is the CRC-32C of its answer.
    pub(super) fn end_read(&mut self, key: u64, result: Result<Buf, DiskError>, crc: Option<u32>) {
        let Some(job) = self.jobs.remove(key) else { return };
        self.commit.dropping &= !self.jobs.is_empty();
        job.pins.iter().for_each(|pin| self.map.unpin(*pin));
        if matches!(result, Err(DiskError::Corrupt { .. })) {
            self.stats.corrupt += 1;
        }
        if let Some(token) = job.token {
            self.finished.push_back(Finished { token, result, crc });
        }
    }

    /// Continues everything that runs. If one step fails the device, all jobs have completed.
    fn go_on(&mut self, out: &mut Effects) {
        let steps = [Durable::run_checkpoint, Durable::run_destage, Durable::run_commit];
        for step in steps {
            if self.failed.is_none() {
                step(self, out);
            }
        }
    }

    /// Fails the device, because a write or flush failed: its content is unknown from now on.
    pub(super) fn fail(&mut self, error: DiskError) {
        self.failed = Some(error);
        let keys: Vec<u64> = self.jobs.iter().map(|(key, _)| key).collect();
        keys.into_iter().for_each(|key| self.end(key, Err(error)));
        self.ops = Slab::new(IN_FLIGHT);
    }

    /// Applies the effects of a job whose record and data are durable.
    pub(super) fn apply(&mut self, key: u64) {
        let job = self.jobs.get_mut(key).expect("a job lives until it ends");
        let Some(record) = job.record else { return };
        let kind = core::mem::replace(&mut job.kind, Kind::Read { at: 0, len: 0 });
        match kind {
            Kind::Write(write) => self.apply_write(record, &write),
            Kind::Change(group, changes) => {
                for change in &changes {
                    self.groups.change(group, change);
                    if matches!(change, Change::Wipe) {
                        self.map.begin_sweep(|g, _| g == group);
                    }
                }
            }
            Kind::Drop(volume) => {
                self.groups.drop_volume(volume);
                self.map.begin_sweep(|_, v| v == volume);
            }
            Kind::Read { .. } | Kind::Edges { .. } => unreachable!("it has no record"),
        }
        self.log.settle(record);
    }

    fn apply_write(&mut self, record: u64, write: &Write) {
        if write.parts.iter().any(|p| self.map.is_swept(p.slot)) {
            return; // the volume was dropped while the job ran
        }
        for part in &write.parts {
            if part.way == Way::Clear {
                self.overlay.clear(part.slot, part.blocks);
                if !mutant::on(Mutant::EagerReuse) {
                    self.map.clear(part.slot, part.blocks);
                }
                continue;
            }
            if part.old != super::format::NO_SLOT {
                self.map.replace(part.old, part.slot);
                self.overlay.clear(part.old, u16::MAX);
                self.map.clear(part.old, u16::MAX);
            }
            if part.way == Way::Lost {
                self.overlay.clear(part.slot, part.blocks);
            }
            self.map.set(part.slot, part.blocks);
            self.sums.put(part.slot, part.blocks, &part.sums);
            if part.way == Way::Inline {
                for (i, block) in part.each().enumerate() {
                    self.overlay.put(part.slot, block, record, part.block(i));
                }
            }
        }
        self.groups.wrote(write);
    }

    pub(super) fn refuse(&mut self, token: u64, error: DiskError) -> Started {
        self.finished.push_back(Finished { token, result: Err(error), crc: None });
        Started::Pending
    }

    fn chunks(group: GroupId, unit: UnitKey, at: u32, len: u32) -> impl Iterator<Item = Chunk> {
        let chunk = super::layout::SLOT as u32;
        let range = at / chunk..(at + len).div_ceil(chunk);
        range.map(move |c| Chunk { group, unit, chunk: c as u8 })
    }

    /// Continues to free the slots of wiped and dropped data, over at most `most` slots.
    pub(super) fn sweep(&mut self, most: u32) {
        self.map.sweep(most, |slot| self.overlay.clear(slot, u16::MAX));
    }

    /// Pins the slots of a range, and takes those that are missing. `None`: there are too few, and
    /// nothing has changed.
    pub(super) fn pin_range(
        &mut self,
        group: GroupId,
        unit: UnitKey,
        at: u32,
        len: u32,
        access: impl Fn(u16) -> Access,
    ) -> Option<Vec<Pin>> {
        let missing =
            Self::chunks(group, unit, at, len).filter(|c| self.map.slot(*c).is_none()).count();
        if missing as u32 > self.map.free() {
            self.sweep(u32::MAX);
        }
        if missing as u32 > self.map.free() {
            return None;
        }
        let touched = BlockSet::touching(at, len);
        let chunks = Self::chunks(group, unit, at, len);
        // Fails at the first chunk or not at all: a unit has one owner, and slots were counted.
        chunks.map(|c| self.map.pin(c, access(in_chunk(touched, c.chunk)))).collect()
    }

    /// Pins those slots of a range that exist.
    pub(super) fn pin_present(
        &mut self,
        group: GroupId,
        unit: UnitKey,
        at: u32,
        len: u32,
        access: impl Fn(u16) -> Access,
    ) -> Vec<Pin> {
        let (touched, map) = (BlockSet::touching(at, len), &mut self.map);
        let pin = |c: Chunk| {
            map.slot(c).map(|slot| map.pin_slot(slot, access(in_chunk(touched, c.chunk))))
        };
        Self::chunks(group, unit, at, len).filter_map(pin).collect()
    }

    /// True when no read in flight needs blocks that a new job changes. Looks at every job, so only
    /// builds with debug assertions call it; that no job touches what another one *changes*, every
    /// build checks (`UnitMap::pin_slot`).
    pub(super) fn is_not_read(&self, unit: UnitKey, at: u32, len: u32, pins: &[Pin]) -> bool {
        let touched = BlockSet::touching(at, len);
        let same_slot = |job: &Job| job.pins.iter().any(|a| pins.iter().any(|b| a.slot == b.slot));
        overlaps_are_judged()
            || self.jobs.iter().all(|(_, job)| match job.kind {
                Kind::Read { at, len } if len > 0 && job.fetch.unit == unit => {
                    BlockSet::touching(at, len).and(touched).is_empty() || !same_slot(job)
                }
                _ => true,
            })
    }
}

impl UnitStore for Durable {
    fn start(
        &mut self,
        token: u64,
        group: GroupId,
        unit: UnitKey,
        job: Ask,
        marks: Marks,
        out: &mut Effects,
    ) -> Started {
        if let Some(error) = self.failed {
            return self.refuse(token, error);
        }
        match job {
            Ask::Read { at, len } => self.start_read(token, group, unit, at, len, out),
            Ask::Write { at, body, crc } => {
                self.start_write(token, group, unit, at, (body, crc), marks, out)
            }
            Ask::Zero { at, len } => self.start_zero(token, group, unit, at, len, marks, out),
            Ask::Lose { at, len } => self.start_lose(token, group, unit, at, len, marks, out),
        }
    }

    fn change(&mut self, token: Option<u64>, group: GroupId, changes: Vec<Change>) {
        if let (Some(error), Some(token)) = (self.failed, token) {
            self.refuse(token, error);
            return;
        }
        if changes.iter().any(|c| matches!(c, Change::Wipe)) {
            self.map.drop_owners(|g, _| g == group);
        }
        self.enqueue_small(token, Kind::Change(group, changes));
    }

    fn disk_done(&mut self, op: DiskOp, result: Result<Buf, DiskError>, out: &mut Effects) {
        let Some(op) = self.ops.remove(op.0) else { return };
        let error = result.as_ref().err().copied();
        match (op, error) {
            (Op::Fetch { job, span }, _) => self.fetched(job, span, result, out),
            (Op::SumPage { page, wanted, tries }, _) => {
                self.page_read(page, wanted, tries, result, out);
            }
            (Op::Flush, Some(_)) if mutant::on(Mutant::BelieveFlush) => self.flushed(),
            (_, Some(error)) => self.fail(error),
            (Op::Data { job }, None) => self.arrived(job, None, out),
            (Op::Log, None) => self.log_written(out),
            (Op::Flush, None) => self.flushed(),
            (Op::Home(pin, blocks), None) => self.home_written(pin, blocks),
            (Op::SaveMap { page, sum }, None) => self.page_saved(page, sum),
            (Op::SaveSums { page, sum, sums }, None) => {
                self.sums.saved(page, sums);
                self.page_saved(self.layout.map_pages() + page, sum);
            }
            (Op::Anchor, None) => self.anchor_written(),
        }
    }

    fn finished(&mut self) -> Option<Finished> {
        self.finished.pop_front()
    }

    fn flush(&mut self, out: &mut Effects) {
        if self.failed.is_some() {
            return;
        }
        self.sweep(self.tuning.sweep);
        self.go_on(out);
        if self.failed.is_none() && (self.destage.wanted || self.checkpoint_due) {
            // A batch found no room, and perhaps no operation in flight will cause another call.
            self.run_checkpoint(out);
            if self.failed.is_none() {
                self.run_destage(out);
            }
        }
    }

    fn rest(&mut self, out: &mut Effects) {
        self.tell_settled(out);
    }

    fn has_space_for(&self, group: GroupId, unit: UnitKey, at: u32, len: u32) -> bool {
        let holds = |slot| self.map.valid(slot) != 0;
        Self::chunks(group, unit, at, len).all(|c| self.map.slot(c).is_some_and(holds))
    }

    fn reserve(&mut self, group: GroupId, unit: UnitKey, at: u32, len: u32) -> bool {
        let hold = |_| Access::Hold;
        let Some(pins) = self.pin_range(group, unit, at, len, hold) else { return false };
        self.reserved.entry((group, unit, at, len)).or_default().push(pins);
        true
    }

    fn release(&mut self, group: GroupId, unit: UnitKey, at: u32, len: u32) {
        let range = (group, unit, at, len);
        let Some(all) = self.reserved.get_mut(&range) else { return };
        let pins = all.pop().unwrap_or_default();
        if all.is_empty() {
            self.reserved.remove(&range);
        }
        pins.into_iter().for_each(|pin| self.map.unpin(pin));
    }

    fn valid(&self, group: GroupId, unit: UnitKey) -> BlockSet {
        self.map.valid_in(group, unit)
    }

    fn units(&self, group: GroupId) -> Vec<UnitKey> {
        self.map.units(group)
    }

    fn volumes(&self) -> Vec<VolumeId> {
        self.map.volumes()
    }

    fn is_empty(&self, group: GroupId) -> bool {
        !self.map.holds(group)
    }

    fn drop_volume(&mut self, volume: VolumeId) -> u64 {
        let slots = self.map.slots_of(volume);
        if self.failed.is_none() {
            self.map.drop_owners(|_, v| v == volume);
            self.commit.dropping = true;
            self.enqueue_small(None, Kind::Drop(volume));
        }
        slots * super::layout::SLOT
    }

    fn walk(&self, cursor: u64, most: u32) -> Walk {
        self.map.walk(cursor, most)
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
