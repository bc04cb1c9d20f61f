//! A device in memory: units, and the jobs that run on them. Everything is lost with the process,
//! so the device keeps no records for replication.

use crate::lost::Lost;
use crate::space::Space;
use crate::units::{Access, Place, Unit, Units};
use alloc::vec::Vec;
use base::{BLOCK, BlockSet, GroupId, Slab, UNIT, UnitKey, VolumeId};
use seam::{
    Buf, Change, DiskError, DiskId, DiskOp, Effect, Effects, Finished, Job, ReplicaRecord, Started,
    UnitStore, WriteMetadata,
};

/// The place of a job's unit.
#[derive(Clone, Copy, Debug)]
struct Pinned {
    /// Where the unit is in the table. A NULL device has no units.
    place: Option<Place>,
    /// Where the unit begins on the device, in bytes.
    start: u64,
    valid: BlockSet,
}

#[derive(Debug)]
struct Running {
    token: u64,
    unit: Option<Place>,
    /// Number of device operations in flight.
    left: u32,
    result: Result<Buf, DiskError>,
    change: Blocks,
}

/// The change that a job makes to the valid blocks when it completes.
#[derive(Clone, Copy, Debug)]
enum Blocks {
    /// A read: nothing. The answer starts at byte `at`, and its blocks in `invalid` are zeros.
    None {
        at: u32,
        len: u32,
        invalid: BlockSet,
    },
    Set(BlockSet),
    /// It clears the blocks that it zeroes whole.
    Clear {
        whole: BlockSet,
        touched: BlockSet,
    },
    /// A job that failed: nothing. These are the blocks that it was to change.
    Failed(BlockSet),
}

/// Everything that one device holds. A clone is what the crash of a process that keeps its memory
/// would leave (the simulator does that). It leaves out jobs in flight.
#[derive(Debug)]
pub struct Memory {
    disk: DiskId,
    keeps: bool,
    space: Space,
    units: Units,
    lost: Lost,
    running: Slab<Running>,
    /// The job that completed last, until the caller asks for it.
    finished: Option<Finished>,
}

impl Clone for Memory {
    fn clone(&self) -> Memory {
        let mut copy = Memory {
            disk: self.disk,
            keeps: self.keeps,
            space: self.space.clone(),
            units: self.units.clone(),
            lost: self.lost.clone(),
            running: Slab::new(JOBS),
            finished: None,
        };
        copy.forget_jobs();
        copy
    }
}

/// Upper bound of jobs in flight. The callers stay far below.
const JOBS: usize = 1 << 20;

impl Memory {
    /// Makes an empty device of `capacity` bytes. One that doesn't keep data (NULL) has no metadata
    /// either: every block counts as valid, and takes no space.
    pub fn new(disk: DiskId, capacity: u64, keeps: bool) -> Memory {
        Memory {
            disk,
            keeps,
            space: Space::new(capacity / u64::from(UNIT)),
            units: Units::default(),
            lost: Lost::default(),
            running: Slab::new(JOBS),
            finished: None,
        }
    }

    /// Returns the number of bytes in slots that are in use.
    pub fn used(&self) -> u64 {
        self.space.used() * u64::from(UNIT)
    }

    /// Returns the number of bytes in all slots.
    pub fn capacity(&self) -> u64 {
        self.space.slots() * u64::from(UNIT)
    }

    /// True for a lost block, which can't be read until it is written or zeroed whole.
    pub fn is_lost(&self, group: GroupId, unit: UnitKey, block: u32) -> bool {
        self.lost.has(group, unit, block)
    }

    /// Returns where the unit's bytes are on the device.
    pub fn place(&self, group: GroupId, unit: UnitKey) -> Option<u64> {
        self.units.get(group, unit).map(Unit::start)
    }

    fn read(
        &mut self,
        token: u64,
        group: GroupId,
        unit: UnitKey,
        at: u32,
        len: u32,
        out: &mut Effects,
    ) -> Started {
        let touched = BlockSet::touching(at, len);
        let pinned = self.pin(group, unit, false, Access::Read(touched));
        let Some(Pinned { place, start, valid }) = pinned else {
            return Started::Done(out.pool().zeroed(len as usize));
        };
        let mut invalid = touched;
        invalid.remove(valid);
        if invalid == touched {
            self.unpin(place, &Blocks::None { at, len, invalid });
            return Started::Done(out.pool().zeroed(len as usize));
        }
        let op = self.run(token, place, 1, Blocks::None { at, len, invalid });
        out.push(Effect::Read { op, disk: self.disk, at: start + u64::from(at), len });
        Started::Pending
    }

    /// Writes a range. An edge block that is not valid yet is written whole, padded with zeros.
    fn write(
        &mut self,
        token: u64,
        group: GroupId,
        unit: UnitKey,
        at: u32,
        body: Buf,
        out: &mut Effects,
    ) -> Started {
        let end = at + body.len() as u32;
        let touched = BlockSet::touching(at, body.len() as u32);
        debug_assert!(self.is_not_read(group, unit, touched), "a change overlaps a read");
        let pinned = self.pin(group, unit, true, Access::Change(touched));
        let Some(Pinned { place, start, valid }) = pinned else { return Started::Full };
        let (first, last) = (at / BLOCK, (end - 1) / BLOCK);
        let from = if valid.contains(first) { at } else { first * BLOCK };
        let to = if valid.contains(last) { end } else { (last + 1) * BLOCK };
        let body = if (from, to) == (at, end) {
            body
        } else {
            let mut whole = out.alloc((to - from) as usize);
            let bytes = whole.as_mut();
            bytes[..(at - from) as usize].fill(0);
            bytes[(at - from) as usize..(end - from) as usize].copy_from_slice(&body);
            bytes[(end - from) as usize..].fill(0);
            whole
        };
        let op = self.run(token, place, 1, Blocks::Set(touched));
        out.push(Effect::Write {
            op,
            disk: self.disk,
            at: start + u64::from(from),
            body,
            durable: false,
        });
        Started::Pending
    }

    /// Zeros a range. Whole blocks lose their valid bit; parts of valid blocks at the edges are
    /// overwritten.
    fn zero(
        &mut self,
        token: u64,
        group: GroupId,
        unit: UnitKey,
        at: u32,
        len: u32,
        out: &mut Effects,
    ) -> Started {
        if !self.keeps {
            return Started::Done(Buf::EMPTY);
        }
        let touched = BlockSet::touching(at, len);
        debug_assert!(self.is_not_read(group, unit, touched), "a change overlaps a read");
        let pinned = self.pin(group, unit, false, Access::Change(touched));
        let Some(Pinned { place, start, valid }) = pinned else {
            return Started::Done(Buf::EMPTY);
        };
        let end = at + len;
        let whole = BlockSet::within(at, len);
        let parts =
            edges(at, end).into_iter().flatten().filter(|(from, _)| valid.contains(from / BLOCK));
        let parts: [Option<(u32, u32)>; 2] = {
            let mut parts = parts;
            [parts.next(), parts.next()]
        };
        let left = parts.iter().flatten().count() as u32;
        if left == 0 {
            self.unpin(place, &Blocks::Clear { whole, touched });
            return Started::Done(Buf::EMPTY);
        }
        let op = self.run(token, place, left, Blocks::Clear { whole, touched });
        for (from, to) in parts.into_iter().flatten() {
            let (at, body) = (start + u64::from(from), out.pool().zeroed((to - from) as usize));
            out.push(Effect::Write { op, disk: self.disk, at, body, durable: false });
        }
        Started::Pending
    }

    fn lose(&mut self, group: GroupId, unit: UnitKey, at: u32, len: u32) -> Started {
        let blocks = BlockSet::within(at, len);
        debug_assert!(self.is_not_read(group, unit, blocks), "a change overlaps a read");
        let pinned = self.pin(group, unit, true, Access::Change(blocks));
        let Some(Pinned { place, .. }) = pinned else { return Started::Full };
        self.unpin(place, &Blocks::Set(blocks));
        if self.keeps {
            self.lost.insert(group, unit, blocks);
        }
        Started::Done(Buf::EMPTY)
    }

    /// Forgets the jobs and reservations of a dead process.
    fn forget_jobs(&mut self) {
        let mut slots: Vec<u64> = Vec::new();
        self.units.retain(|unit| {
            unit.forget_pins();
            if unit.is_idle() {
                slots.push(unit.slot);
            }
            !unit.is_idle()
        });
        self.give(slots);
    }

    /// Gives these slots back, in their order on the device.
    fn give(&mut self, mut slots: Vec<u64>) {
        slots.sort_unstable();
        slots.into_iter().for_each(|slot| self.space.give(slot));
    }

    /// Keeps a completed job. The caller asks for each one at once, so one place is enough.
    #[inline]
    fn end(&mut self, finished: Finished) {
        let before = self.finished.replace(finished);
        assert!(before.is_none(), "`finished` is asked after every call that may end a job");
    }

    fn wipe(&mut self, group: GroupId) {
        self.lost.wipe(group);
        for unit in self.units.wipe(group) {
            assert!(!unit.is_pinned(), "{:?} of {group} is in use", unit.key);
            self.space.give(unit.slot);
        }
    }

    fn run(&mut self, token: u64, unit: Option<Place>, left: u32, change: Blocks) -> DiskOp {
        let running = Running { token, unit, left, result: Ok(Buf::EMPTY), change };
        DiskOp(self.running.insert(running).expect("callers bound their jobs"))
    }

    /// True when no read in flight needs these blocks. Looks at every job, so only builds with
    /// debug assertions call it. Every build checks that no job touches what another one *changes*
    /// ([`Unit::pin`]).
    fn is_not_read(&self, group: GroupId, unit: UnitKey, blocks: BlockSet) -> bool {
        let place = self.units.find(group, unit);
        let apart = |job: &Running| match job.change {
            Blocks::None { at, len, .. } if job.unit == place => {
                BlockSet::touching(at, len).and(blocks).is_empty()
            }
            _ => true,
        };
        !self.keeps || self.running.iter().all(|(_, job)| apart(job))
    }

    /// Pins the unit's slot. With `make`, takes a slot if the unit has none. `None`: there is no
    /// slot. A NULL device has no slots: all its units lie at its start, and all blocks are valid.
    #[inline]
    fn pin(&mut self, group: GroupId, key: UnitKey, make: bool, access: Access) -> Option<Pinned> {
        if !self.keeps {
            return Some(Pinned { place: None, start: 0, valid: BlockSet::FULL });
        }
        let place = match self.units.find(group, key) {
            Some(place) => place,
            None if make => self.units.insert(Unit::new(group, key, self.space.take()?)),
            None => return None,
        };
        let unit = self.units.at(place);
        unit.pin(access);
        Some(Pinned { place: Some(place), start: unit.start(), valid: unit.valid })
    }

    /// Ends a pin, and frees the slot with the last one if the unit needs it no more.
    #[inline]
    fn unpin(&mut self, place: Option<Place>, change: &Blocks) {
        let Some(place) = place else { return };
        let unit = self.units.at(place);
        match change {
            Blocks::None { .. } => unit.unpin(&BlockSet::EMPTY),
            Blocks::Set(blocks) => {
                unit.valid.insert(*blocks);
                unit.unpin(blocks);
            }
            Blocks::Clear { whole, touched } => {
                unit.valid.remove(*whole);
                unit.unpin(touched);
            }
            Blocks::Failed(blocks) => unit.unpin(blocks),
        }
        if unit.is_idle() {
            let unit = self.units.remove(place);
            self.space.give(unit.slot);
        }
    }
}

impl UnitStore for Memory {
    #[inline]
    fn start(
        &mut self,
        token: u64,
        group: GroupId,
        unit: UnitKey,
        job: Job,
        _: WriteMetadata,
        out: &mut Effects,
    ) -> Started {
        if self.lost.stops(token, group, unit, &job) {
            return Started::Pending;
        }
        match job {
            Job::Read { at, len } => self.read(token, group, unit, at, len, out),
            Job::Write { at, body, .. } => self.write(token, group, unit, at, body, out),
            Job::Zero { at, len } => self.zero(token, group, unit, at, len, out),
            Job::MarkLost { at, len } => self.lose(group, unit, at, len),
        }
    }

    fn change(&mut self, token: Option<u64>, group: GroupId, changes: Vec<Change>) {
        if changes.iter().any(|c| matches!(c, Change::Wipe)) {
            self.wipe(group);
        }
        if let Some(token) = token {
            self.end(Finished { token, result: Ok(Buf::EMPTY), crc: None });
        }
    }

    #[inline]
    fn disk_done(&mut self, op: DiskOp, result: Result<Buf, DiskError>, _: &mut Effects) {
        let Some(running) = self.running.get_mut(op.0) else { return };
        assert!(running.left > 0, "a job counts what it waits for");
        running.left -= 1;
        if running.result.is_ok() {
            running.result = result;
        }
        if running.left > 0 {
            return;
        }
        let Some(Running { token, unit, mut result, mut change, .. }) = self.running.remove(op.0)
        else {
            return;
        };
        if let (Blocks::None { at, invalid, .. }, Ok(data)) = (change, &mut result) {
            blank(data, at, invalid);
        }
        if result.is_err()
            && let Blocks::Set(touched) | Blocks::Clear { touched, .. } = change
        {
            change = Blocks::Failed(touched);
        }
        self.unpin(unit, &change);
        self.end(Finished { token, result, crc: None });
    }

    #[inline]
    fn finished(&mut self) -> Option<Finished> {
        self.finished.take().or_else(|| self.lost.refused())
    }

    fn flush(&mut self, _: &mut Effects) {}

    fn has_space_for(&self, group: GroupId, unit: UnitKey, _: u32, _: u32) -> bool {
        !self.keeps || self.units.get(group, unit).is_some_and(|u| !u.valid.is_empty())
    }

    fn reserve(&mut self, group: GroupId, unit: UnitKey, _: u32, _: u32) -> bool {
        !self.keeps || self.pin(group, unit, true, Access::Hold).is_some()
    }

    fn release(&mut self, group: GroupId, unit: UnitKey, _: u32, _: u32) {
        if self.keeps {
            let place = self.units.find(group, unit).expect("a reserved unit is there");
            self.unpin(Some(place), &Blocks::Set(BlockSet::EMPTY));
        }
    }

    fn used(&self) -> u64 {
        Memory::used(self)
    }

    fn valid(&self, group: GroupId, unit: UnitKey) -> BlockSet {
        match self.units.get(group, unit) {
            Some(unit) => unit.valid,
            None if self.keeps => BlockSet::EMPTY,
            None => BlockSet::FULL,
        }
    }

    fn units(&self, group: GroupId) -> Vec<UnitKey> {
        let mut keys: Vec<UnitKey> = self.units.keys(group).collect();
        keys.sort_unstable();
        keys
    }

    fn is_empty(&self, group: GroupId) -> bool {
        self.units.keys(group).next().is_none()
    }

    fn volumes(&self) -> Vec<VolumeId> {
        let mut all: Vec<VolumeId> = self.units.iter().map(|unit| unit.key.volume).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    fn drop_volume(&mut self, volume: VolumeId) -> u64 {
        self.lost.drop_volume(volume);
        let mut slots: Vec<u64> = Vec::new();
        let mut gone = 0;
        self.units.retain(|unit| {
            if unit.key.volume != volume {
                return true;
            }
            gone += u64::from(!unit.doomed);
            unit.doomed = true;
            if !unit.is_pinned() {
                slots.push(unit.slot);
            }
            unit.is_pinned()
        });
        self.give(slots);
        gone * u64::from(UNIT)
    }

    fn records(&self) -> Vec<(GroupId, ReplicaRecord)> {
        Vec::new()
    }

    #[inline]
    fn keeps_data(&self) -> bool {
        self.keeps
    }

    #[inline]
    fn survives(&self) -> bool {
        false
    }
}

/// Returns the parts of blocks at the ends of a range that does not cover them whole.
fn edges(at: u32, end: u32) -> [Option<(u32, u32)>; 2] {
    let head = (!at.is_multiple_of(BLOCK)).then(|| (at, end.min(at.next_multiple_of(BLOCK))));
    let tail_from = end - end % BLOCK;
    let tail = (!end.is_multiple_of(BLOCK) && (tail_from > at || at.is_multiple_of(BLOCK)))
        .then_some((tail_from.max(at), end));
    [head, tail]
}

/// Zeros those parts of `data` that lie in these blocks. `data` starts at byte `at` of its unit.
fn blank(data: &mut Buf, at: u32, invalid: BlockSet) {
    let mut rest = invalid;
    let end = at + data.len() as u32;
    while let Some(run) = rest.first_run() {
        let (from, to) = ((run.start * BLOCK).max(at), (run.end * BLOCK).min(end));
        data.as_mut()[(from - at) as usize..(to - at) as usize].fill(0);
        rest.remove(BlockSet::from_range(run));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use base::Prng;
    use seam::BufPool;

    /// A device in memory that completes its operations in random order.
    struct Rig {
        store: Memory,
        out: Effects,
        bytes: Vec<u8>,
        open: Vec<Effect>,
        prng: Prng,
    }

    const GROUP: GroupId = GroupId(1);

    fn key(index: u32) -> UnitKey {
        UnitKey { volume: VolumeId(1), index }
    }

    impl Rig {
        fn new(slots: u64) -> Rig {
            let capacity = slots * u64::from(UNIT);
            Rig {
                store: Memory::new(DiskId(0), capacity, true),
                out: Effects::new(BufPool::new(1 << 24), Prng::new(1), None),
                bytes: vec![0xee; capacity as usize],
                open: Vec::new(),
                prng: Prng::new(2),
            }
        }

        fn step(&mut self) -> Option<Finished> {
            self.open.extend(self.out.drain());
            let pick = self.prng.below(self.open.len() as u64) as usize;
            let (op, data) = match self.open.swap_remove(pick) {
                Effect::Read { op, at, len, .. } => {
                    let range = at as usize..at as usize + len as usize;
                    (op, self.out.copy(&self.bytes[range]))
                }
                Effect::Write { op, at, body, .. } => {
                    self.bytes[at as usize..at as usize + body.len()].copy_from_slice(&body);
                    (op, Buf::EMPTY)
                }
                other => panic!("{other:?}"),
            };
            self.store.disk_done(op, Ok(data), &mut self.out);
            self.store.finished()
        }

        fn start(&mut self, token: u64, unit: UnitKey, job: Job) -> Started {
            self.store.start(token, GROUP, unit, job, WriteMetadata::default(), &mut self.out)
        }

        fn run(&mut self, unit: UnitKey, job: Job) -> Option<Buf> {
            match self.start(9, unit, job) {
                Started::BadBody => unreachable!("memory looks at no checksum"),
                Started::Done(data) => Some(data),
                Started::Full => None,
                Started::Pending => loop {
                    if let Some(done) = self.step() {
                        assert_eq!(done.token, 9);
                        return done.result.ok();
                    }
                },
            }
        }
    }

    #[test]
    fn reads_equal_a_flat_array_whatever_the_slots_held() {
        let mut rig = Rig::new(3);
        let mut model = vec![vec![0u8; UNIT as usize]; 3];
        let mut prng = Prng::new(3);
        for round in 0..3000u32 {
            let unit = prng.below(3) as usize;
            let len = prng.range(1, 20) as u32 * 512;
            let at = prng.below(u64::from(6 * BLOCK - 512) / 512) as u32 * 512;
            let range = at as usize..(at + len) as usize;
            match prng.below(4) {
                0 => {
                    let data = vec![round as u8 | 1; len as usize];
                    model[unit][range].copy_from_slice(&data);
                    let body = rig.out.copy(&data);
                    assert!(
                        rig.run(key(unit as u32), Job::Write { at, body, crc: None }).is_some()
                    );
                }
                1 => {
                    let (at, len) = if prng.chance(0.1) { (0, UNIT) } else { (at, len) };
                    model[unit][at as usize..(at + len) as usize].fill(0);
                    rig.run(key(unit as u32), Job::Zero { at, len }).unwrap();
                }
                _ => {
                    let data = rig.run(key(unit as u32), Job::Read { at, len }).unwrap();
                    assert_eq!(&data[..], &model[unit][range], "round {round}");
                }
            }
        }
        (0..3).for_each(|u| drop(rig.run(key(u), Job::Zero { at: 0, len: UNIT })));
        assert_eq!((rig.store.used(), rig.out.pool().used()), (0, 0));
    }

    #[test]
    fn a_full_device_changes_nothing_and_drains() {
        let mut rig = Rig::new(1);
        let write = |rig: &mut Rig| Job::Write { at: 0, body: rig.out.copy(&[1; 512]), crc: None };
        let job = write(&mut rig);
        assert!(rig.run(key(0), job).is_some());
        let job = write(&mut rig);
        assert!(rig.run(key(1), job).is_none());
        assert!(!rig.store.reserve(GROUP, key(1), 0, 512));
        assert_eq!(rig.store.drop_volume(VolumeId(1)), u64::from(UNIT));
        assert!(rig.store.reserve(GROUP, key(1), 0, 512));
        rig.store.release(GROUP, key(1), 0, 512);
        assert_eq!(rig.store.used(), 0);
    }

    #[test]
    fn lost_blocks_fail_until_they_are_written_whole() {
        let mut rig = Rig::new(2);
        let fails = |rig: &mut Rig, job: Job| {
            assert!(matches!(rig.start(7, key(0), job), Started::Pending));
            rig.store.finished().expect("it has failed").result.unwrap_err()
        };
        assert!(rig.run(key(0), Job::MarkLost { at: 8 * BLOCK, len: 3 * BLOCK }).is_some());
        assert!(rig.store.valid(GROUP, key(0)) == BlockSet::from_range(8..11));
        let error = fails(&mut rig, Job::Read { at: 0, len: 9 * BLOCK + 512 });
        assert_eq!(error, DiskError::Corrupt { first: 8, blocks: 2 });
        let error = fails(&mut rig, Job::Zero { at: 10 * BLOCK + 512, len: 4 * BLOCK });
        assert_eq!(error, DiskError::Corrupt { first: 10, blocks: 1 });
        assert!(rig.run(key(0), Job::Read { at: 0, len: 8 * BLOCK }).is_some());
        let body = rig.out.copy(&[5; 2 * BLOCK as usize]);
        assert!(rig.run(key(0), Job::Write { at: 8 * BLOCK, body, crc: None }).is_some());
        assert_eq!(rig.run(key(0), Job::Read { at: 9 * BLOCK, len: BLOCK }).unwrap()[0], 5);
        fails(&mut rig, Job::Read { at: 10 * BLOCK, len: 512 });
        assert!(rig.run(key(0), Job::Zero { at: 8 * BLOCK, len: 3 * BLOCK }).is_some());
        assert_eq!(rig.run(key(0), Job::Read { at: 10 * BLOCK, len: 512 }).unwrap()[0], 0);
        assert_eq!(rig.store.used(), 0);
        rig.run(key(1), Job::MarkLost { at: 0, len: BLOCK });
        rig.store.drop_volume(VolumeId(1));
        assert!(rig.run(key(1), Job::Read { at: 0, len: BLOCK }).is_some());
    }

    #[test]
    fn a_place_is_one_when_it_holds_data() {
        let mut rig = Rig::new(2);
        let holds = |rig: &Rig| rig.store.has_space_for(GROUP, key(0), 0, BLOCK);
        assert!(rig.store.reserve(GROUP, key(0), 0, BLOCK) && !holds(&rig));
        rig.store.release(GROUP, key(0), 0, BLOCK);
        let body = rig.out.copy(&[7; 4096]);
        rig.run(key(0), Job::Write { at: 0, body, crc: None });
        assert!(holds(&rig));
    }

    #[test]
    fn a_slot_stays_while_a_write_to_its_unit_runs() {
        let mut rig = Rig::new(2);
        let body = rig.out.copy(&[7; 4096]);
        rig.run(key(0), Job::Write { at: 0, body: body.clone(), crc: None });
        let started = rig.start(5, key(0), Job::Write { at: 8192, body, crc: None });
        assert!(matches!(started, Started::Pending));
        rig.start(6, key(0), Job::Zero { at: 0, len: 4096 });
        assert_eq!(rig.store.used(), u64::from(UNIT), "the write in flight keeps the slot");
        assert_eq!(rig.step().unwrap().token, 5);
        assert_eq!(rig.run(key(0), Job::Read { at: 8192, len: 512 }).unwrap()[0], 7);
        assert!(rig.store.reserve(GROUP, key(0), 0, 512));
        assert_eq!(
            (rig.store.drop_volume(VolumeId(1)), rig.store.drop_volume(VolumeId(1))),
            (u64::from(UNIT), 0)
        );
        rig.store.release(GROUP, key(0), 0, 512);
        assert_eq!(rig.store.used(), 0, "a dropped unit goes with its last pin");
    }
}
