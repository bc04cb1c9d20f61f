//! A world runs random jobs on a store, crashes it, mounts it again, and compares.
//!
//! Jobs that had completed must be there. Other jobs must be there whole, with their metadata, or
//! not at all.

use super::disk::{Disk, Fate};
use super::model::{Model, Record, Unit, sector};
use base::{
    BLOCK, BlockSet, ClusterId, DeviceId, GroupId, Incarnation, Prng, SECTOR, SdcId, UNIT, UnitKey,
    VolumeId,
};
use seam::{
    Buf, BufPool, Change, ClientWrite, DiskError, DiskId, DiskOp, Effect, Effects, Finished, Job,
    Note, Origin, Started, UnitStore, WriteMetadata,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use store::durable::layout::Layout;
use store::durable::{
    Durability, Durable, Expected, Format, Formatting, Identity, Mount, MountError, Mounting,
    Tuning,
};

pub(crate) const SIZE: u64 = 16 << 20;
pub(crate) const CLUSTER: ClusterId = ClusterId(77);

pub(crate) fn identity() -> Identity {
    Identity { cluster: CLUSTER, device: DeviceId(3), uuid: [11, 12] }
}

pub(crate) fn expected() -> Expected {
    Expected { cluster: Some(CLUSTER), device: Some(DeviceId(3)), level_max: 1 }
}

/// Limits as small as possible, so that a short run reaches every one of them.
pub(crate) fn tuning(write_through: bool) -> Tuning {
    let durability = if write_through { Durability::WriteThrough } else { Durability::Flush };
    Tuning {
        durability,
        overlay_bytes: 1200 << 10,
        replay_bytes: 1 << 30,
        fresh_sums: 48,
        cached_pages: 2,
        dirty_units: 1 << 10,
        executed: 64 << 10,
        sweep: 1,
        holes: 0,
    }
}

/// A crash during a mount.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crash {
    /// The number of device operations before it.
    pub after: u64,
    pub fate: Fate,
}

#[derive(Clone, Debug)]
pub(super) enum Ask {
    Read { at: u32, len: u32 },
    Write { stamp: u32, at: u32, len: u32, marks: WriteMetadata },
    Change(Change),
}

#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub group: GroupId,
    pub unit: UnitKey,
    pub ask: Ask,
}

pub(crate) struct World {
    pub disk: Disk,
    pub store: Option<Box<Durable>>,
    pub out: Effects,
    pub prng: Prng,
    pub model: Model,
    pub tuning: Tuning,
    /// Device operations in flight; for a flush, the writes that it covers.
    open: Vec<(Effect, u64)>,
    /// Operations that don't complete.
    held: Vec<(Effect, u64)>,
    pub(super) pending: BTreeMap<u64, Pending>,
    /// Dropped volumes, and the first token after each drop.
    pub(super) drops: Vec<(VolumeId, u64)>,
    pub(super) next: u64,
    pub(super) volume: u32,
    /// Number of device operations that completed.
    pub ops: u64,
    /// Operations complete in the order of their start.
    pub fifo: bool,
    pub ended: u64,
    pub fulls: u64,
    pub corrupt: Vec<(UnitKey, u16, u16)>,
    /// Writes that are neither to the log nor to slots complete last.
    pub slow_metadata: bool,
    /// Writes that the device failed: they may have happened, in part or whole.
    failed_writes: Vec<(u64, Vec<u8>)>,
    /// Reads may find damage, so their data is not compared.
    pub may_be_damaged: bool,
    /// Reads that touch this range fail, as many times as the number says.
    pub unreadable: (Range<u64>, u32),
    /// Largest number of buffer bytes in use during the last mount.
    pub most_used: usize,
    /// The reports of the store.
    pub notes: Vec<Note>,
}

fn take_finished(store: &mut Durable) -> Vec<Finished> {
    std::iter::from_fn(|| store.finished()).collect()
}

impl World {
    /// Makes a formatted device of [`SIZE`], not mounted.
    pub(crate) fn new(seed: u64, write_through: bool) -> World {
        World::sized(seed, write_through, SIZE)
    }

    /// Makes a formatted device of `bytes`, not mounted.
    pub(crate) fn sized(seed: u64, write_through: bool, bytes: u64) -> World {
        let mut world = World {
            disk: Disk::new(bytes, write_through),
            store: None,
            out: Effects::new(BufPool::new(64 << 20), Prng::new(seed), None),
            prng: Prng::new(seed).fork("world"),
            model: Model::default(),
            tuning: tuning(write_through),
            open: Vec::new(),
            held: Vec::new(),
            pending: BTreeMap::new(),
            drops: Vec::new(),
            next: 1,
            volume: 1,
            ops: 0,
            fifo: false,
            ended: 0,
            fulls: 0,
            corrupt: Vec::new(),
            slow_metadata: false,
            failed_writes: Vec::new(),
            may_be_damaged: false,
            unreadable: (0..0, 0),
            most_used: 0,
            notes: Vec::new(),
        };
        world.format(identity(), false).expect("a new device");
        world
    }

    /// Copies the device, which is at rest. The copy is not mounted.
    pub(crate) fn copy(&self) -> World {
        assert!(self.open.is_empty() && self.pending.is_empty());
        let mut copy = World::sized(1, false, self.disk.size);
        (copy.disk, copy.model) = (self.disk.clone(), self.model.clone());
        (copy.next, copy.volume) = (self.next, self.volume);
        copy
    }

    pub(crate) fn format(&mut self, identity: Identity, force: bool) -> Result<(), MountError> {
        let mut format = Format::new(DiskId(0), self.disk.size, identity, force)?;
        format.start(&mut self.out);
        loop {
            let (op, result) = self.end_one();
            match format.disk_done(op, result, &mut self.out) {
                Formatting::Running => {}
                Formatting::Done => return Ok(()),
                Formatting::Failed(error) => {
                    self.open.clear();
                    self.out.drain();
                    return Err(error);
                }
            }
        }
    }

    /// Mounts the device. Returns false when the crash came before the end of the mount.
    pub(crate) fn mount(&mut self, crash: Option<Crash>) -> Result<bool, MountError> {
        self.mount_as(expected(), self.disk.size, crash)
    }

    /// Mounts after a crash that came after `after` operations, and compares the content.
    pub(crate) fn recover(&mut self, after: u64, fate: Fate) {
        self.fifo = false;
        self.mount(None).unwrap_or_else(|e| panic!("after {after}, {fate:?}: {e}"));
        self.compare();
    }

    /// Completes up to three operations. Returns false when `ops` have completed in all.
    pub(crate) fn step_until(&mut self, ops: u64) -> bool {
        for _ in 0..3 {
            if self.ops >= ops {
                return false;
            }
            if self.has_open() {
                self.step();
            }
        }
        true
    }

    pub(crate) fn mount_as(
        &mut self,
        expected: Expected,
        bytes: u64,
        crash: Option<Crash>,
    ) -> Result<bool, MountError> {
        let mut mount = Mount::new(DiskId(0), bytes, expected, self.tuning);
        let mut state = mount.start(&mut self.out);
        let mut ops = 0;
        self.most_used = 0;
        loop {
            self.most_used = self.most_used.max(self.out.pool().used());
            match state {
                Mounting::Running => {}
                Mounting::Done(store) => {
                    self.store = Some(store);
                    return Ok(true);
                }
                Mounting::Failed(error) => {
                    self.open.clear();
                    self.out.drain();
                    return Err(error);
                }
            }
            if let Some(crash) = crash.filter(|c| c.after == ops) {
                self.crash(crash.fate);
                return Ok(false);
            }
            ops += 1;
            let (op, result) = self.end_one();
            state = mount.disk_done(op, result, &mut self.out);
        }
    }

    // ---- the device ----

    fn collect(&mut self) {
        let covers = self.disk.flush_begins();
        for effect in self.out.drain() {
            match effect {
                Effect::Note(note) => self.notes.push(note),
                effect => self.open.push((effect, covers)),
            }
        }
    }

    /// Calls `rest`, as a server does with every heartbeat.
    pub(crate) fn rest(&mut self) {
        self.store.as_mut().expect("mounted").rest(&mut self.out);
        self.collect();
    }

    /// Picks the operation that completes next.
    fn pick(&mut self) -> usize {
        if self.fifo {
            return 0;
        }
        let any = self.prng.below(self.open.len() as u64) as usize;
        if !self.slow_metadata {
            return any;
        }
        let fresh = || Layout::new(self.disk.size).expect("a valid size");
        let layout = self.store.as_ref().map_or_else(fresh, |store| store.layout().clone());
        let pages = layout.extents.iter().flat_map(|e| [e.map, e.sums]);
        let slow: Vec<_> = pages.chain(layout.root).collect();
        let is_slow = |at: u64| slow.iter().any(|a| (a.at..a.end()).contains(&at));
        let fast = |at: u64| at >= layout.log.at && !is_slow(at);
        let is_fast = |(e, _): &(Effect, u64)| match e {
            Effect::Write { at, .. } => fast(*at),
            _ => true,
        };
        let fast: Vec<usize> = (0..self.open.len()).filter(|i| is_fast(&self.open[*i])).collect();
        if fast.is_empty() || self.prng.chance(0.02) { any } else { *self.prng.pick(&fast) }
    }

    /// Completes one operation of the device.
    fn end_one(&mut self) -> (DiskOp, Result<Buf, DiskError>) {
        self.collect();
        assert!(!self.open.is_empty(), "somebody waits, and the device has nothing to do");
        let pick = self.pick();
        self.ops += 1;
        match self.open.remove(pick) {
            (Effect::Read { op, at, len, .. }, _) => {
                let (bad, times) = &mut self.unreadable;
                if *times > 0 && at < bad.end && bad.start < at + u64::from(len) {
                    *times -= 1;
                    return (op, Err(DiskError::Io));
                }
                let mut buf = self.out.alloc(len as usize);
                self.disk.read(at, buf.as_mut());
                (op, Ok(buf))
            }
            (Effect::Write { op, at, body, durable, .. }, _) => {
                self.disk.write(at, &body, durable);
                (op, Ok(Buf::EMPTY))
            }
            (Effect::Punch { op, at, len, .. }, _) => {
                self.disk.punch(at, len);
                (op, Ok(Buf::EMPTY))
            }
            (Effect::Flush { op, .. }, covers) => {
                self.disk.flush_ends(covers);
                (op, Ok(Buf::EMPTY))
            }
            (other, _) => panic!("{other:?}"),
        }
    }

    /// Completes one operation, and the jobs that complete with it.
    pub(crate) fn step(&mut self) {
        let (op, result) = self.end_one();
        let store = self.store.as_mut().expect("mounted");
        store.disk_done(op, result, &mut self.out);
        self.flush();
    }

    /// Completes one operation, or fails it; the caller asks the store for completed jobs. Returns
    /// false when there is no operation.
    pub(crate) fn end_or_fail(&mut self, error: Option<DiskError>) -> bool {
        self.collect();
        if self.open.is_empty() {
            return false;
        }
        let (op, result) = self.end_one();
        let result = error.map_or(result, Err);
        self.store.as_mut().expect("mounted").disk_done(op, result, &mut self.out);
        true
    }

    /// Fails one write or flush, if there is one. All jobs fail, and each may have happened or not.
    pub(crate) fn fail_one(&mut self) {
        self.collect();
        let changes =
            |(e, _): &(Effect, u64)| matches!(e, Effect::Write { .. } | Effect::Flush { .. });
        let Some(pick) = self.open.iter().position(changes) else { return };
        let op = match self.open.remove(pick).0 {
            Effect::Write { op, at, body, .. } => {
                self.failed_writes.push((at, body.to_vec()));
                op
            }
            Effect::Flush { op, .. } => op,
            other => panic!("{other:?}"),
        };
        let before = self.pending.clone();
        let store = self.store.as_mut().expect("mounted");
        store.disk_done(op, Err(DiskError::Io), &mut self.out);
        store.flush(&mut self.out);
        assert_eq!(store.failed(), Some(DiskError::Io));
        for f in take_finished(store) {
            let known = self.pending.remove(&f.token).is_some();
            assert!(known && f.result.is_err(), "{} ended well, or twice", f.token);
        }
        assert!(self.pending.is_empty(), "jobs hang: {:?}", self.pending);
        self.pending = before;
    }

    pub(crate) fn flush(&mut self) {
        let store = self.store.as_mut().expect("mounted");
        store.flush(&mut self.out);
        for f in take_finished(store) {
            self.finish(f);
        }
        self.collect();
    }

    pub(crate) fn has_open(&self) -> bool {
        self.open_len() > 0
    }

    /// Holds the operations that give space back. Returns how many bytes they are about.
    pub(crate) fn hold_punches(&mut self) -> u64 {
        self.collect();
        let punches = |e: &Effect| matches!(e, Effect::Punch { .. });
        let held: Vec<_> = self.open.extract_if(.., |(e, _)| punches(e)).collect();
        let len = |(e, _): &(Effect, u64)| match e {
            Effect::Punch { len, .. } => *len,
            _ => 0,
        };
        let bytes = held.iter().map(len).sum();
        self.held.extend(held);
        bytes
    }

    /// Holds all operations in flight: they don't complete until `release` or a crash.
    pub(crate) fn hold(&mut self) {
        self.collect();
        self.held.append(&mut self.open);
    }

    /// Does the same for writes that begin in this range.
    pub(crate) fn hold_writes(&mut self, range: Range<u64>) {
        self.collect();
        let begins = |e: &Effect| matches!(e, Effect::Write { at, .. } if range.contains(at));
        self.held.extend(self.open.extract_if(.., |(e, _)| begins(e)));
    }

    /// Lets the held operations complete after all.
    pub(crate) fn release(&mut self) {
        self.open.append(&mut self.held);
    }

    /// Returns the number of device operations in flight.
    pub(crate) fn open_len(&self) -> usize {
        self.open.len()
    }

    /// Completes all operations and jobs.
    pub(crate) fn settle(&mut self) {
        self.flush();
        while self.has_open() {
            self.step();
        }
        assert!(self.pending.is_empty(), "jobs hang: {:?}", self.pending);
    }

    /// Cuts the power.
    pub(crate) fn crash(&mut self, fate: Fate) {
        self.collect();
        self.store = None;
        self.release();
        let open = std::mem::take(&mut self.open).into_iter().filter_map(|(e, _)| match e {
            Effect::Write { at, body, .. } => Some((at, body.to_vec())),
            Effect::Punch { at, len, .. } => Some((at, vec![0; len as usize])),
            _ => None,
        });
        let open = open.chain(std::mem::take(&mut self.failed_writes)).collect();
        self.disk.crash(open, fate, &mut self.prng);
    }

    // ---- jobs ----

    fn is_locked(&self, group: GroupId, unit: UnitKey, at: u32, len: u32) -> bool {
        let blocks = BlockSet::touching(at, len);
        self.pending.values().any(|p| match p.ask {
            Ask::Read { at, len } | Ask::Write { at, len, .. } => {
                (p.group, p.unit) == (group, unit)
                    && !BlockSet::touching(at, len).and(blocks).is_empty()
            }
            Ask::Change(Change::Acted(_) | Change::ActedAsJoiner(_) | Change::Base(_)) => false,
            Ask::Change(_) => p.group == group,
        })
    }

    pub(super) fn is_busy(&self, group: GroupId) -> bool {
        self.pending.values().any(|p| p.group == group)
    }

    pub(crate) fn group(unit: UnitKey) -> GroupId {
        GroupId(unit.index % 2)
    }

    fn range(&mut self) -> (u32, u32) {
        let p = &mut self.prng;
        match p.below(10) {
            0 => (0, UNIT),
            1 => {
                let chunk = p.below(12) as u32;
                (chunk * (64 << 10), p.range(1, 4) as u32 * (64 << 10))
            }
            2..=4 => (p.below(48) as u32 * SECTOR, p.range(1, 20) as u32 * SECTOR),
            5 => (p.below(2000) as u32 * SECTOR, p.range(1, 48) as u32 * SECTOR),
            _ => (p.below(40) as u32 * BLOCK, p.range(1, 6) as u32 * BLOCK),
        }
    }

    /// Starts a random job.
    pub(crate) fn ask(&mut self) {
        let index = self.prng.below(5) as u32;
        let unit = UnitKey { volume: VolumeId(self.volume), index };
        let group = World::group(unit);
        match self.prng.below(40) {
            0..=9 => {
                let (at, len) = self.range();
                self.read(group, unit, at, len);
            }
            10..=32 => {
                let (at, len) = self.range();
                self.write(group, unit, at, len, false);
            }
            33..=35 => {
                let (at, len) = self.range();
                self.write(group, unit, at, len, true);
            }
            36 => self.change(group),
            37 => self.store.as_mut().expect("mounted").request_checkpoint(),
            38 if self.prng.chance(0.2) => self.drop_volume(),
            _ => self.reserve(group, unit),
        }
    }

    fn reserve(&mut self, group: GroupId, unit: UnitKey) {
        let store = self.store.as_mut().expect("mounted");
        let used = store.used();
        if store.reserve(group, unit, 0, UNIT) {
            store.release(group, unit, 0, UNIT);
        }
        assert_eq!(store.used(), used, "a reservation leaves nothing");
    }

    pub(super) fn insert(&mut self, group: GroupId, unit: UnitKey, ask: Ask) -> u64 {
        self.next += 1;
        self.pending.insert(self.next, Pending { group, unit, ask });
        self.next
    }

    pub(crate) fn read(&mut self, group: GroupId, unit: UnitKey, at: u32, len: u32) {
        if self.is_locked(group, unit, at, len) {
            return;
        }
        let token = self.insert(group, unit, Ask::Read { at, len });
        self.start(token, group, unit, Job::Read { at, len }, WriteMetadata::default());
    }

    fn marks(&mut self, stamp: u32) -> WriteMetadata {
        let write = ClientWrite {
            sdc: SdcId(1),
            incarnation: Incarnation(1),
            seq: u64::from(stamp),
            floor: 0,
        };
        let named = self.prng.chance(0.5);
        let origin = if named { Origin::Client(write) } else { Origin::Unnamed };
        WriteMetadata { dirty: self.prng.chance(0.5), origin }
    }

    /// Starts a write or a zero, with random metadata.
    pub(crate) fn write(&mut self, group: GroupId, unit: UnitKey, at: u32, len: u32, zero: bool) {
        let len = len.min(UNIT - at);
        if self.is_locked(group, unit, at, len) {
            return;
        }
        let name = self.next as u32 + 1;
        let marks = self.marks(name);
        let stamp = if zero { 0 } else { name };
        let ask = Ask::Write { stamp, at, len, marks: marks.clone() };
        let token = self.insert(group, unit, ask);
        let job = if zero { Job::Zero { at, len } } else { self.body(stamp, unit, at, len) };
        self.start(token, group, unit, job, marks);
    }

    /// Loses whole blocks. The model gives them a stamp that no write has.
    pub(crate) fn lose(&mut self, group: GroupId, unit: UnitKey, at: u32, len: u32) {
        let marks = WriteMetadata::default();
        let token =
            self.insert(group, unit, Ask::Write { stamp: u32::MAX, at, len, marks: marks.clone() });
        self.start(token, group, unit, Job::MarkLost { at, len }, marks);
    }

    fn body(&mut self, stamp: u32, unit: UnitKey, at: u32, len: u32) -> Job {
        let mut body = self.out.alloc(len as usize);
        for (i, bytes) in body.as_mut().chunks_exact_mut(SECTOR as usize).enumerate() {
            bytes.copy_from_slice(&sector(stamp, unit, at / SECTOR + i as u32));
        }
        let crc = Some(base::crc::crc32c(&body));
        Job::Write { at, body, crc }
    }

    fn start(&mut self, token: u64, group: GroupId, unit: UnitKey, job: Job, marks: WriteMetadata) {
        let store = self.store.as_mut().expect("mounted");
        let used = store.used();
        match store.start(token, group, unit, job, marks, &mut self.out) {
            Started::Done(data) => self.finish(Finished { token, result: Ok(data), crc: None }),
            Started::Pending => {}
            Started::BadBody => panic!("the body is the one that came"),
            Started::Full => {
                assert!(store.used() <= used, "full takes nothing");
                self.pending.remove(&token);
                self.fulls += 1;
            }
        }
    }

    // ---- completions ----

    fn finish(&mut self, f: Finished) {
        let Some(p) = self.pending.remove(&f.token) else { panic!("{} ended twice", f.token) };
        self.ended += 1;
        let data = match f.result {
            Ok(data) => data,
            Err(DiskError::Corrupt { first, blocks }) if self.may_be_damaged => {
                return self.corrupt.push((p.unit, first, blocks));
            }
            Err(error) => panic!("{p:?}: {error:?}"),
        };
        if !matches!(p.ask, Ask::Read { .. }) {
            self.drops_are_durable(f.token, &p);
        }
        match &p.ask {
            Ask::Read { at, .. } => {
                let good = self.model.unit(p.group, p.unit).matches(p.unit, *at, &data);
                assert!(good || self.may_be_damaged, "{p:?} reads what nobody wrote");
            }
            _ => World::apply(&mut self.model, &p),
        }
    }

    pub(super) fn forget(&mut self, volume: VolumeId) {
        self.model.units.retain(|(_, u), _| u.volume != volume);
        for record in self.model.records.values_mut() {
            record.dirty.retain(|u, _| u.volume != volume);
        }
    }

    fn apply(model: &mut Model, p: &Pending) {
        match &p.ask {
            Ask::Read { .. } => {}
            Ask::Write { stamp, at, len, marks } => {
                model.unit(p.group, p.unit).write(*stamp, *at, *len);
                let blocks = BlockSet::touching(*at, *len);
                let record = model.record(p.group);
                if marks.dirty {
                    record.mark(p.unit, blocks);
                }
                if let Origin::Client(write) = &marks.origin {
                    record.executed.entry((write.seq, p.unit)).or_default().insert(blocks);
                }
            }
            Ask::Change(change) => World::apply_change(model, p.group, change),
        }
    }

    fn apply_change(model: &mut Model, group: GroupId, change: &Change) {
        let record = model.record(group);
        match change {
            Change::Acted(e) => (record.acted, record.joiner) = (*e, false),
            Change::ActedAsJoiner(e) => (record.acted, record.joiner) = (*e, true),
            Change::Base(e) => record.base = *e,
            Change::Clean(list) => list.iter().for_each(|(u, b)| record.clean(*u, *b)),
            Change::Dirty(list) => list.iter().for_each(|(u, b)| record.mark(*u, *b)),
            Change::CleanAll => record.dirty.clear(),
            Change::Executed(_) => record.executed.clear(),
            Change::Forgotten(_) => {}
            Change::Wipe => {
                let (acted, joiner) = (record.acted, record.joiner);
                *record = Record { acted, joiner, ..Record::default() };
                model.units.retain(|(g, _), _| *g != group);
            }
        }
    }

    // ---- comparing ----

    /// After a mount: decides for each incomplete job whether it is there, and compares everything.
    pub(crate) fn compare(&mut self) {
        let store = self.store.as_ref().expect("mounted");
        let found: BTreeMap<GroupId, Record> = store
            .records()
            .into_iter()
            .map(|(g, r)| {
                assert!(!r.all_dirty);
                let executed = r.executed.by_client().into_iter();
                let executed = executed.map(|e| ((e.write.seq, e.unit), e.blocks)).collect();
                (
                    g,
                    Record {
                        acted: r.acted,
                        joiner: r.joiner,
                        base: r.base,
                        dirty: r.dirty.iter().collect(),
                        executed,
                    },
                )
            })
            .collect();
        let drops = std::mem::take(&mut self.drops);
        for (volume, _) in drops {
            let there = store_has(self.store.as_ref().expect("mounted"), volume);
            let was = self
                .model
                .units
                .iter()
                .any(|((_, u), unit)| u.volume == volume && !unit.valid.is_empty());
            let marked = found.values().any(|r| r.dirty.keys().any(|u| u.volume == volume));
            if !there && (was || !marked) {
                self.forget(volume);
            }
        }
        let pending = std::mem::take(&mut self.pending);
        for p in pending.into_values() {
            self.resolve(&p, &found);
        }
        for (group, record) in &mut self.model.records {
            let empty = Record::default();
            assert_eq!(found.get(group).unwrap_or(&empty), record, "records of {group}");
        }
        self.compare_content();
    }

    /// Decides about an incomplete job: all of it is there, or nothing.
    fn resolve(&mut self, p: &Pending, found: &BTreeMap<GroupId, Record>) {
        let mut with = self.model.clone();
        World::apply(&mut with, p);
        let happened = match &p.ask {
            Ask::Read { .. } => return,
            Ask::Write { stamp, at, len, marks } => {
                let data = self.fetch(p.group, p.unit, *at, *len);
                let old = self.model.unit(p.group, p.unit).clone();
                let valid = self.store.as_ref().expect("mounted").valid(p.group, p.unit);
                let is = |u: &Unit| {
                    let b = BlockSet::touching(*at, *len);
                    u.matches(p.unit, *at, &data) && u.valid.and(b) == valid.and(b)
                };
                let (before, after) = (is(&old), is(with.unit(p.group, p.unit)));
                assert!(before || after, "{p:?} is there in part");
                let named = match &marks.origin {
                    Origin::Client(w) => Some(
                        found
                            .get(&p.group)
                            .is_some_and(|r| r.executed.contains_key(&(w.seq, p.unit))),
                    ),
                    _ => None,
                };
                let _ = stamp;
                match named {
                    Some(there) => {
                        assert!(if there { after } else { before }, "{p:?}: marks and data differ");
                        there
                    }
                    None if before && after => {
                        let blocks = BlockSet::touching(*at, *len);
                        let dirty = found.get(&p.group).and_then(|r| r.dirty.get(&p.unit).copied());
                        marks.dirty && dirty.unwrap_or_default().contains_all(blocks)
                    }
                    None => after,
                }
            }
            Ask::Change(change) => {
                let found = found.get(&p.group).cloned().unwrap_or_default();
                match change {
                    Change::Acted(e) => (found.acted, found.joiner) == (*e, false),
                    Change::ActedAsJoiner(e) => (found.acted, found.joiner) == (*e, true),
                    Change::Base(e) => found.base == *e,
                    // The records may be equal with and without it.
                    Change::Wipe if self.model.has_content(p.group) => {
                        self.store.as_ref().expect("mounted").is_empty(p.group)
                    }
                    _ => found == with.record(p.group).clone(),
                }
            }
        };
        if happened {
            self.model = with;
        }
    }

    /// Returns a range as the store has it now.
    pub(crate) fn fetch(&mut self, group: GroupId, unit: UnitKey, at: u32, len: u32) -> Buf {
        let store = self.store.as_mut().expect("mounted");
        let job = Job::Read { at, len };
        match store.start(0, group, unit, job, WriteMetadata::default(), &mut self.out) {
            Started::Done(data) => data,
            Started::Full | Started::BadBody => panic!("a read needs no space"),
            Started::Pending => loop {
                let store = self.store.as_mut().expect("mounted");
                if let Some(f) = store.finished() {
                    assert_eq!(f.token, 0);
                    break f.result.unwrap_or_else(|e| panic!("{unit:?} {at}+{len}: {e:?}"));
                }
                let (op, result) = self.end_one();
                let store = self.store.as_mut().expect("mounted");
                store.disk_done(op, result, &mut self.out);
                store.flush(&mut self.out);
            },
        }
    }

    /// Checks that content, valid blocks, space and places are those of the model.
    pub(crate) fn compare_content(&mut self) {
        let units: Vec<(GroupId, UnitKey)> = self.model.units.keys().copied().collect();
        for (group, unit) in &units {
            let data = self.fetch(*group, *unit, 0, UNIT);
            let model = self.model.unit(*group, *unit);
            assert!(model.matches(*unit, 0, &data), "{unit:?} of {group} has other content");
        }
        let store = self.store.as_ref().expect("mounted");
        let mut places = BTreeSet::new();
        for (group, unit) in &units {
            let valid = self.model.units[&(*group, *unit)].valid;
            assert_eq!(store.valid(*group, *unit), valid, "valid blocks of {unit:?}");
            for block in (0..256).filter(|b| valid.contains(*b)) {
                let place = store.place(*group, *unit, block).expect("a valid block has a place");
                assert!(places.insert(place), "two blocks at {place}");
            }
        }
        assert_eq!(store.used(), self.model.slots() * (64 << 10), "space");
        for group in [GroupId(0), GroupId(1)] {
            let here =
                |((g, _), u): &(&(GroupId, UnitKey), &Unit)| *g == group && !u.valid.is_empty();
            let model: Vec<UnitKey> =
                self.model.units.iter().filter(here).map(|((_, u), _)| *u).collect();
            assert_eq!(store.units(group), model);
            assert_eq!(store.is_empty(group), model.is_empty());
        }
    }
}

fn store_has(store: &Durable, volume: VolumeId) -> bool {
    store.volumes().contains(&volume)
}
