//! Two replicas of one group, wired to each other by hand: the protocol's main road, step by step.
//! The simulator walks the side roads.

use base::crc::crc32c;
use base::{
    BLOCK, BlockSet, DeviceId, Epoch, GroupId, Incarnation, Limits, LinkId, MapVersion, Prng, Time,
    UNIT, UnitKey, VolumeId,
};
use mirror::{GroupConfig, Mirror};
use seam::{
    Buf, BufPool, Change, DiskError, DiskOp, Effect, Effects, Finished, GroupRecord, Job, Journal,
    Marks, Started, Walk,
};
use std::collections::BTreeMap;
use std::ops::Range;
use wire::{Header, Kind, Status, flag};

const GROUP: GroupId = GroupId(3);
const CLIENT: LinkId = LinkId(1000);
const UNIT0: UnitKey = UnitKey { volume: VolumeId(1), index: 0 };

/// Memory that answers at once, with room for `room` units. Blocks of unit 0 can be damaged.
#[derive(Default)]
struct Memory {
    units: BTreeMap<UnitKey, (BlockSet, Vec<u8>)>,
    room: usize,
    bad: BlockSet,
    ended: Vec<Finished>,
    /// It outlives its process, so it has records and is scrubbed.
    kept: bool,
    /// A bit of what is read next flips before it is sent.
    flips: bool,
    /// What is damaged stays damaged.
    worn: bool,
    /// What has ended is told later.
    late: bool,
}

impl Memory {
    fn room(room: usize) -> Memory {
        Memory { room, bad: BlockSet::EMPTY, ..Memory::default() }
    }

    /// The first damaged block that a job would have to read.
    fn damaged(&self, unit: UnitKey, job: &Job) -> Option<u16> {
        let (at, len) = match job {
            Job::Read { at, len } | Job::Zero { at, len } | Job::Lose { at, len } => (*at, *len),
            Job::Write { at, body, .. } => (*at, body.len() as u32),
        };
        let mut read = BlockSet::touching(at, len);
        if !matches!(job, Job::Read { .. }) {
            read.remove(BlockSet::within(at, len));
        }
        let run = self.bad.and(read).first_run().filter(|_| unit == UNIT0)?;
        Some(run.start as u16)
    }
}

impl Journal for Memory {
    fn start(
        &mut self,
        token: u64,
        _: GroupId,
        unit: UnitKey,
        job: Job,
        _: Marks,
        out: &mut Effects,
    ) -> Started {
        if let Some(first) = self.damaged(unit, &job) {
            let result = Err(DiskError::Corrupt { first, blocks: 1 });
            self.ended.push(Finished { token, result, crc: None });
            return Started::Pending;
        }
        if let Job::Write { body, crc: Some(crc), .. } = &job
            && crc32c(body) != *crc
        {
            return Started::BadBody;
        }
        if let Job::Write { .. } | Job::Lose { .. } = job
            && !self.reserve(GROUP, unit, 0, 0)
        {
            return Started::Full;
        }
        let Some((valid, data)) = self.units.get_mut(&unit) else {
            return match job {
                Job::Read { len, .. } => Started::Done(out.pool().zeroed(len as usize)),
                _ => Started::Done(Buf::EMPTY),
            };
        };
        match job {
            Job::Read { at, len } if std::mem::take(&mut self.flips) => {
                let mut read = data[at as usize..(at + len) as usize].to_vec();
                let crc = Some(crc32c(&read));
                read[0] ^= 1;
                self.ended.push(Finished { token, result: Ok(out.copy(&read)), crc });
                return Started::Pending;
            }
            Job::Read { at, len } => {
                return Started::Done(out.copy(&data[at as usize..(at + len) as usize]));
            }
            Job::Write { at, body, .. } => {
                data[at as usize..at as usize + body.len()].copy_from_slice(&body);
                valid.insert(BlockSet::touching(at, body.len() as u32));
                if !self.worn {
                    self.bad.remove(BlockSet::touching(at, body.len() as u32));
                }
            }
            Job::Zero { at, len } => {
                data[at as usize..(at + len) as usize].fill(0);
                valid.remove(BlockSet::within(at, len));
            }
            Job::Lose { at, len } => {
                valid.insert(BlockSet::within(at, len));
                self.bad.insert(BlockSet::within(at, len));
            }
        }
        Started::Done(Buf::EMPTY)
    }
    fn change(&mut self, token: Option<u64>, _: GroupId, changes: Vec<Change>) {
        let done = token.filter(|_| self.kept);
        self.ended.extend(done.map(|token| Finished { token, result: Ok(Buf::EMPTY), crc: None }));
        if changes.iter().any(|c| matches!(c, Change::Wipe)) {
            self.units.clear();
        }
    }
    fn disk_done(&mut self, _: DiskOp, _: Result<Buf, DiskError>, _: &mut Effects) {}
    fn finished(&mut self) -> Option<Finished> {
        if self.late { None } else { self.ended.pop() }
    }
    fn flush(&mut self, _: &mut Effects) {}
    fn has_space_for(&self, _: GroupId, unit: UnitKey, _: u32, _: u32) -> bool {
        self.units.contains_key(&unit)
    }
    fn reserve(&mut self, _: GroupId, unit: UnitKey, _: u32, _: u32) -> bool {
        if self.units.len() >= self.room && !self.units.contains_key(&unit) {
            return false;
        }
        self.units.entry(unit).or_insert_with(|| (BlockSet::EMPTY, vec![0; UNIT as usize]));
        true
    }
    fn release(&mut self, _: GroupId, unit: UnitKey, _: u32, _: u32) {
        if self.units.get(&unit).is_some_and(|(valid, _)| valid.is_empty()) {
            self.units.remove(&unit);
        }
    }
    fn valid(&self, _: GroupId, unit: UnitKey) -> BlockSet {
        self.units.get(&unit).map_or(BlockSet::EMPTY, |u| u.0)
    }
    fn units(&self, _: GroupId) -> Vec<UnitKey> {
        self.units.keys().copied().collect()
    }
    fn is_empty(&self, _: GroupId) -> bool {
        self.units.is_empty()
    }
    fn volumes(&self) -> Vec<VolumeId> {
        vec![VolumeId(1)]
    }
    fn drop_volume(&mut self, volume: VolumeId) -> u64 {
        let held = self.held_bytes();
        self.units.retain(|unit, _| unit.volume != volume);
        self.bad = if volume == UNIT0.volume { BlockSet::EMPTY } else { self.bad };
        held - self.held_bytes()
    }
    fn records(&self) -> Vec<(GroupId, GroupRecord)> {
        Vec::new()
    }
    fn survives(&self) -> bool {
        self.kept
    }
    fn held_bytes(&self) -> u64 {
        self.units.values().map(|(valid, _)| u64::from(valid.len() * BLOCK)).sum()
    }
    /// 64 KiB at a time.
    fn walk(&self, cursor: u64, _: u32) -> Walk {
        let (index, at) = ((cursor >> 4) as usize, (cursor & 15) as u32 * 65536);
        let Some((unit, (valid, _))) = self.units.iter().nth(index) else { return Walk::End };
        let held = valid.and(BlockSet::touching(at, 65536)).len() * BLOCK;
        let next = cursor + 1;
        if held == 0 {
            return Walk::Nothing { next };
        }
        Walk::Held { group: GROUP, unit: *unit, at, len: 65536, held, next }
    }
}

/// Two devices, 1 and 2; device d dials the other on link d * 10.
struct Pair {
    mirrors: [Mirror<Memory>; 2],
    outs: [Effects; 2],
    now: Time,
    epoch: u64,
    /// Frames between the two are delivered.
    connected: bool,
    replies: Vec<Header>,
    bodies: Vec<Buf>,
    seq: u64,
    /// A bit of the next write of a client, or of the stream, flips after its arrival.
    flips: [bool; 2],
}

impl Pair {
    fn new(rooms: [usize; 2]) -> Pair {
        let pool = BufPool::new(1 << 24);
        let mirror = |i: usize| {
            let (me, media) = (DeviceId(i as u32 + 1), Memory::room(rooms[i]));
            Mirror::new(me, Incarnation(7), Limits::TEST_MIN, media, Time::ZERO)
        };
        Pair {
            mirrors: [mirror(0), mirror(1)],
            outs: [(); 2].map(|()| Effects::new(pool.clone(), Prng::new(1), None)),
            now: Time(10_000_000_000),
            epoch: 0,
            connected: true,
            replies: Vec::new(),
            bodies: Vec::new(),
            seq: 0,
            flips: [false; 2],
        }
    }

    /// A new configuration, learned by the devices in `by`.
    fn configure(&mut self, primary: u32, in_sync: &[u32], joiners: &[u32], by: &[usize]) {
        self.epoch += 1;
        let devices = |of: &[u32]| of.iter().map(|d| DeviceId(*d)).collect::<Vec<_>>();
        let config = GroupConfig {
            epoch: Epoch(self.epoch),
            primary: Some(DeviceId(primary)),
            replicas: devices(&[1, 2]),
            in_sync: devices(in_sync),
            joiners: devices(joiners),
            lost: false,
        };
        for i in by {
            let (mirror, out) = (&mut self.mirrors[*i], &mut self.outs[*i]);
            mirror.set_map(MapVersion(self.epoch), BTreeMap::new());
            mirror.configure(self.now, GROUP, &config, out);
            let (needed, courted) = mirror.wanted();
            mirror.need_leases(self.now, &needed, &courted);
        }
        self.run();
    }

    fn connect(&mut self, connected: bool) {
        self.connected = connected;
        for i in 0..2 {
            let (other, link) = (DeviceId(2 - i as u32), LinkId(10 * (i as u64 + 1)));
            let (mirror, out) = (&mut self.mirrors[i], &mut self.outs[i]);
            if connected {
                mirror.peer_up(self.now, other, link, out);
            } else {
                mirror.peer_down(self.now, other, out);
            }
        }
        self.run();
    }

    /// Lets time pass: ticks and delivers.
    fn wait(&mut self, ms: u64) {
        for _ in 0..ms / 50 {
            self.now = Time(self.now.0 + 50_000_000);
            for i in 0..2 {
                self.mirrors[i].tick(self.now, &mut self.outs[i]);
            }
            self.run();
        }
    }

    fn run(&mut self) {
        loop {
            let mut idle = true;
            for i in 0..2 {
                self.mirrors[i].flush(self.now, &mut self.outs[i]);
                for effect in self.outs[i].drain().collect::<Vec<_>>() {
                    idle = false;
                    if let Effect::Send { link, head, body } = effect {
                        let h = wire::parse(head.as_slice());
                        self.deliver(i, link, &h, body);
                    }
                }
            }
            if idle {
                return;
            }
        }
    }

    fn deliver(&mut self, from: usize, link: LinkId, h: &Header, body: Buf) {
        if link == CLIENT {
            self.replies.push(*h);
            return self.bodies.push(body);
        }
        if !self.connected {
            return;
        }
        let (now, to, sender) = (self.now, 1 - from, DeviceId(from as u32 + 1));
        let flips = h.kind() == Some(Kind::Replicate) && std::mem::take(&mut self.flips[1]);
        let body = if flips { flipped(&body, &mut self.outs[to]) } else { body };
        let (mirror, out) = (&mut self.mirrors[to], &mut self.outs[to]);
        mirror.heard(now, sender, MapVersion(h.map.get()), out);
        match h.kind().unwrap() {
            Kind::Replicate => mirror.replicate_in(now, link, sender, h, body, out),
            Kind::Beacon => mirror.beacon_in(now, link, sender, h, out),
            Kind::Commit => mirror.commit_in(sender, h),
            Kind::SyncStart => mirror.sync_start_in(link, sender, h, &body, out),
            Kind::SyncWipe => mirror.sync_wipe_in(now, link, sender, h, out),
            Kind::Seal => mirror.seal_in(now, link, sender, h, &body, out),
            Kind::Replicated => mirror.replicated(now, sender, h, out),
            Kind::Grant => mirror.grant_in(now, sender, h, out),
            Kind::SyncState => mirror.sync_state_in(now, sender, h, &body, out),
            Kind::Sealed => mirror.sealed_in(now, sender, h, out),
            Kind::Damage => mirror.damage_in(now, sender, h, out),
            Kind::Read => mirror.fetch_in(now, link, sender, h, out),
            Kind::Reply => mirror.fetched_in(now, sender, h, body, out),
            other => panic!("{other:?}"),
        }
    }

    fn client(
        &mut self,
        to: usize,
        kind: Kind,
        unit: u32,
        range: Range<u32>,
        fill: u8,
        flags: u8,
    ) -> Option<Status> {
        if flags & flag::RETRY == 0 {
            self.seq += 1;
        }
        let mut h = Header::new(kind);
        (h.op, h.seq, h.floor, h.sdc, h.incarnation) =
            (self.seq.into(), self.seq.into(), 1.into(), 5.into(), 1.into());
        (h.group, h.epoch, h.volume, h.unit) =
            (GROUP.0.into(), self.epoch.into(), 1.into(), unit.into());
        let len = range.end - range.start;
        (h.at, h.len, h.flags) = (range.start.into(), len.into(), flags);
        let body = if kind == Kind::Write { vec![fill; len as usize] } else { vec![] };
        let h = wire::parse(wire::frame(h, &body).as_slice());
        let mut body = self.outs[to].copy(&body);
        if std::mem::take(&mut self.flips[0]) {
            body = flipped(&body, &mut self.outs[to]);
        }
        self.mirrors[to].client(self.now, CLIENT, &h, body, &mut self.outs[to]);
        let before = self.replies.len();
        self.run();
        (self.replies.len() > before)
            .then(|| Status::from_code(self.replies[before].status.get()).unwrap())
    }

    fn write(&mut self, to: usize, block: u32, fill: u8) -> Option<Status> {
        self.client(to, Kind::Write, 0, block * BLOCK..(block + 1) * BLOCK, fill, 0)
    }

    fn read(&mut self, to: usize, block: u32) -> Option<u8> {
        let status = self.client(to, Kind::Read, 0, block * BLOCK..(block + 1) * BLOCK, 0, 0)?;
        assert_eq!(status, Status::Ok);
        Some(self.bodies.last().unwrap()[0])
    }

    fn assert_equal(&self) {
        let [a, b] = self.mirrors.each_ref().map(|m| &m.journal().units);
        assert!(a == b, "the copies differ");
    }
}

fn flipped(body: &[u8], out: &mut Effects) -> Buf {
    let mut body = body.to_vec();
    body[0] ^= 1;
    out.copy(&body)
}

#[test]
fn a_bit_that_flips_after_a_writes_arrival_is_never_kept() {
    let mut pair = settled();
    assert_eq!(pair.write(0, 0, 7), Some(Status::Ok));
    pair.flips[0] = true;
    assert_eq!(pair.write(0, 0, 8), Some(Status::Damaged), "the client sends it again");
    pair.assert_equal();
    assert_eq!((pair.read(0, 0), pair.mirrors[0].in_flight()), (Some(7), 0));
    pair.flips[1] = true;
    assert_eq!(pair.write(0, 0, 9), Some(Status::Ok), "the secondary gets the blocks anew");
    assert_eq!(pair.flips, [false; 2]);
    pair.assert_equal();
    assert_eq!(pair.read(0, 0), Some(9));
    assert!(!pair.mirrors[0].failed() && !pair.mirrors[1].failed());
}

#[test]
fn a_bit_that_flips_when_the_secondary_may_have_the_write_ends_the_process() {
    let mut pair = settled();
    pair.flips[0] = true;
    assert_eq!(pair.write(0, 0, 7), None, "a first write goes to the secondary first");
    assert!(pair.mirrors[0].failed() || pair.mirrors[1].failed());
}

#[test]
fn a_bit_that_flips_between_store_and_answer_shows_at_the_reader() {
    let mut pair = settled();
    assert_eq!(pair.write(0, 0, 7), Some(Status::Ok));
    pair.mirrors[0].journal_mut().flips = true;
    assert_eq!(pair.read(0, 0), Some(6));
    let (header, body) = (pair.replies.last().unwrap(), pair.bodies.last().unwrap());
    assert!(!wire::body_ok(header, body));
    assert_eq!(pair.read(0, 0), Some(7));
    assert!(wire::body_ok(pair.replies.last().unwrap(), pair.bodies.last().unwrap()));
}

fn settled() -> Pair {
    settle(Pair::new([4, 4]))
}

fn settle(mut pair: Pair) -> Pair {
    pair.connect(true);
    pair.configure(1, &[1, 2], &[], &[0, 1]);
    pair.wait(500);
    assert!(pair.mirrors[0].view(GROUP).unwrap().active);
    pair
}

#[test]
fn writes_reach_both_copies_and_reads_need_a_lease() {
    let mut pair = settled();
    assert_eq!(pair.write(0, 0, 7), Some(Status::Ok));
    pair.assert_equal();
    assert_eq!(pair.read(0, 0), Some(7));
    pair.connected = false;
    pair.wait(1100);
    assert_eq!(pair.read(0, 0), None, "no lease, no read");
    assert_eq!(pair.write(0, 1, 8), None, "no second copy, no answer");
    pair.wait(1000);
    assert!(pair.mirrors[0].suspects(pair.now).contains(&DeviceId(2)));
}

#[test]
fn a_returning_copy_gets_what_it_missed_and_no_more() {
    let mut pair = settled();
    (0..8).for_each(|b| assert_eq!(pair.write(0, b, 1), Some(Status::Ok)));
    pair.wait(500); // the last commit point is told
    pair.connect(false);
    pair.configure(1, &[1], &[], &[0]);
    assert_eq!(pair.write(0, 3, 2), Some(Status::Ok));
    assert_eq!(
        pair.client(0, Kind::Zero, 0, 5 * BLOCK..6 * BLOCK, 0, flag::HOLE),
        Some(Status::Ok)
    );
    assert_eq!(pair.read(0, 3), Some(2));
    pair.connect(true);
    let before = pair.mirrors[0].stats().moved;
    pair.configure(1, &[1], &[2], &[0, 1]);
    pair.wait(500);
    assert_eq!(pair.mirrors[0].admissions(), [(GROUP, Epoch(pair.epoch), DeviceId(2))]);
    assert_eq!(
        pair.mirrors[0].stats().moved - before,
        u64::from(BLOCK),
        "one block of data, one of zeros"
    );
    assert_eq!(pair.write(0, 6, 3), Some(Status::Ok), "in limbo");
    pair.assert_equal();
    pair.configure(1, &[1, 2], &[], &[0, 1]);
    pair.wait(500);
    assert_eq!(pair.mirrors[0].view(GROUP).unwrap().dirty_bytes, 0);
    assert_eq!((pair.read(0, 3), pair.read(0, 5)), (Some(2), Some(0)));
    pair.assert_equal();
}

#[test]
fn a_promoted_secondary_waits_out_its_promises_and_dedupes_retries() {
    let mut pair = settled();
    assert_eq!(pair.write(0, 0, 7), Some(Status::Ok));
    pair.wait(200);
    pair.connect(false);
    pair.configure(2, &[2], &[], &[1]);
    assert_eq!(
        pair.client(1, Kind::Write, 0, 0..BLOCK, 7, flag::RETRY),
        None,
        "held: a lease still runs"
    );
    pair.wait(1300);
    assert_eq!(pair.replies.last().unwrap().status.get(), Status::Ok as u16);
    assert_eq!(pair.write(1, 0, 8), Some(Status::Ok));
    let seq = std::mem::replace(&mut pair.seq, 1);
    assert_eq!(pair.client(1, Kind::Write, 0, 0..BLOCK, 7, flag::RETRY), Some(Status::Ok));
    pair.seq = seq;
    assert_eq!(pair.read(1, 0), Some(8), "the retry was not executed again");
    assert_ne!(pair.write(0, 0, 9), Some(Status::Ok), "the old leader can't answer");
}

#[test]
fn an_empty_joiner_gets_everything_and_a_stranger_is_wiped_first() {
    let mut pair = settled();
    (0..5).for_each(|b| assert_eq!(pair.write(0, b, 1), Some(Status::Ok)));
    pair.connect(false);
    pair.configure(1, &[1], &[], &[0]);
    // Device 2 comes back with foreign content, and without a record.
    let media = Memory::room(4);
    pair.mirrors[1] = Mirror::new(DeviceId(2), Incarnation(8), Limits::TEST_MIN, media, pair.now);
    pair.connect(true);
    pair.configure(1, &[1], &[2], &[0, 1]);
    pair.wait(500);
    pair.configure(1, &[1, 2], &[], &[0, 1]);
    pair.wait(500);
    pair.assert_equal();
    assert_eq!(pair.read(0, 4), Some(1));
}

#[test]
fn a_full_secondary_refuses_before_anything_changed() {
    let mut pair = Pair::new([4, 1]);
    pair.connect(true);
    pair.configure(1, &[1, 2], &[], &[0, 1]);
    pair.wait(500);
    assert_eq!(pair.write(0, 0, 7), Some(Status::Ok));
    assert_eq!(pair.client(0, Kind::Write, 1, 0..BLOCK, 7, 0), Some(Status::Full));
    assert_eq!(pair.replies.last().unwrap().len.get(), 0, "nothing of it was done");
    let full = pair.mirrors.each_ref().map(|m| m.stats().full_at.is_some());
    assert_eq!(full, [false, true], "the one without space says so");
    pair.assert_equal();
    assert_eq!(pair.write(0, 1, 8), Some(Status::Ok), "the stream goes on");
    assert_eq!(pair.mirrors[0].journal().units.keys().copied().collect::<Vec<_>>(), [UNIT0]);
}

#[test]
fn the_new_leader_overwrites_what_was_never_acknowledged() {
    let mut pair = settled();
    assert_eq!(pair.write(0, 0, 1), Some(Status::Ok));
    pair.connected = false;
    assert_eq!(pair.write(0, 0, 2), None, "written at the primary only");
    pair.connect(false);
    pair.configure(2, &[2], &[], &[1]);
    pair.wait(1300);
    assert_eq!(pair.read(1, 0), Some(1));
    pair.connect(true);
    pair.configure(2, &[2], &[1], &[0, 1]);
    pair.wait(500);
    pair.assert_equal();
    assert_eq!(pair.mirrors[0].journal().units[&UNIT0].1[0], 1);
}

/// Damages these blocks of unit 0 of a device.
fn damage(pair: &mut Pair, device: usize, blocks: Range<u32>) {
    pair.mirrors[device].journal_mut().bad.insert(BlockSet::from_range(blocks));
}

#[test]
fn what_is_damaged_at_the_primary_is_read_from_the_other_copy_and_written_anew() {
    let mut pair = settled();
    (0..4).for_each(|b| assert_eq!(pair.write(0, b, 7 + b as u8), Some(Status::Ok)));
    damage(&mut pair, 0, 1..3);
    let all = 0..4 * BLOCK;
    assert_eq!(pair.client(0, Kind::Read, 0, all, 0, 0), Some(Status::Ok));
    let seen: Vec<u8> = pair.bodies.last().unwrap().chunks(BLOCK as usize).map(|b| b[0]).collect();
    assert_eq!(seen, [7, 8, 9, 10]);
    assert_eq!(pair.mirrors[0].stats().repaired, 2 * u64::from(BLOCK));
    assert!(pair.mirrors[0].journal().bad.is_empty());
    damage(&mut pair, 0, 1..2);
    let part = BLOCK + 512..BLOCK + 1024;
    assert_eq!(pair.client(0, Kind::Write, 0, part, 5, 0), Some(Status::Ok));
    assert!(pair.mirrors[0].journal().bad.is_empty());
    pair.assert_equal();
    assert_eq!(pair.mirrors[0].in_flight() + pair.mirrors[1].in_flight(), 0);
}

#[test]
fn a_device_that_cannot_read_what_was_just_written_anew_has_failed() {
    let mut pair = settled();
    (0..4).for_each(|b| assert_eq!(pair.write(0, b, 7), Some(Status::Ok)));
    pair.mirrors[0].journal_mut().worn = true;
    damage(&mut pair, 0, 1..2);
    assert_eq!(pair.read(0, 0), Some(7));
    assert_eq!(
        pair.client(0, Kind::Read, 0, BLOCK..2 * BLOCK, 0, 0),
        None,
        "no error: the other copy has it"
    );
    assert!(pair.mirrors[0].failed() && !pair.mirrors[1].failed());
    assert_eq!(pair.mirrors[0].stats().unreadable, 0);
}

#[test]
fn what_is_damaged_at_a_member_is_sent_whole() {
    let mut pair = settled();
    (0..4).for_each(|b| assert_eq!(pair.write(0, b, 7), Some(Status::Ok)));
    damage(&mut pair, 1, 1..3);
    let part = BLOCK + 512..2 * BLOCK + 512;
    assert_eq!(pair.client(0, Kind::Zero, 0, part, 5, 0), Some(Status::Ok));
    assert!(pair.mirrors[1].journal().bad.is_empty());
    pair.assert_equal();
    assert_eq!(pair.write(0, 2, 9), Some(Status::Ok), "the stream goes on");
    pair.assert_equal();
    assert_eq!(pair.mirrors[0].in_flight() + pair.mirrors[1].in_flight(), 0);
}

/// A device learns that there are no volumes any more.
fn delete(pair: &mut Pair, device: usize) {
    let (mirror, out) = (&mut pair.mirrors[device], &mut pair.outs[device]);
    mirror.set_volumes(pair.now, [].into(), VolumeId(2), out);
    pair.run();
}

#[test]
fn a_copy_whose_volume_is_gone_has_nothing_to_repair_from() {
    let mut pair = settled();
    (0..4).for_each(|b| assert_eq!(pair.write(0, b, 7), Some(Status::Ok)));
    damage(&mut pair, 0, 1..3);
    delete(&mut pair, 1);
    let block = |b: u32| b * BLOCK..(b + 1) * BLOCK;
    assert_eq!(pair.client(0, Kind::Read, 0, block(1), 0, 0), None, "no zeros");
    assert_eq!(pair.client(0, Kind::Write, 0, 2 * BLOCK..2 * BLOCK + 512, 1, 0), None);
    pair.wait(1500);
    assert_eq!(pair.replies.len(), 4);
    delete(&mut pair, 0);
    let answers = pair.replies[4..].iter().map(|h| Status::from_code(h.status.get()));
    assert_eq!(answers.collect::<Vec<_>>(), [Some(Status::Ok), Some(Status::NoVolume)]);
    assert_eq!(pair.mirrors[0].in_flight() + pair.mirrors[1].in_flight(), 0);
}

#[test]
fn damage_that_is_met_while_its_volume_goes_asks_nobody() {
    let mut pair = settled();
    assert_eq!(pair.write(0, 1, 7), Some(Status::Ok));
    damage(&mut pair, 0, 1..2);
    delete(&mut pair, 1);
    pair.mirrors[0].journal_mut().late = true;
    assert_eq!(pair.client(0, Kind::Read, 0, BLOCK..2 * BLOCK, 0, 0), None);
    delete(&mut pair, 0);
    pair.mirrors[0].journal_mut().late = false;
    pair.run();
    let status = pair.replies.last().map(|h| Status::from_code(h.status.get()));
    assert_eq!(status, Some(Some(Status::NoVolume)));
    assert_eq!(pair.mirrors[0].in_flight() + pair.mirrors[1].in_flight(), 0);
}

#[test]
fn a_member_is_not_sent_what_a_volume_that_is_gone_had() {
    let mut pair = settled();
    (0..4).for_each(|b| assert_eq!(pair.write(0, b, 7), Some(Status::Ok)));
    damage(&mut pair, 1, 1..2);
    pair.connect(false);
    assert_eq!(pair.client(0, Kind::Write, 0, BLOCK..BLOCK + 512, 1, 0), None);
    delete(&mut pair, 0);
    pair.connect(true);
    pair.wait(500);
    let answers = pair.replies[4..].iter().map(|h| Status::from_code(h.status.get()));
    assert_eq!(answers.collect::<Vec<_>>(), [Some(Status::NoVolume)], "it isn't there");
    assert_eq!(pair.mirrors[1].journal().units[&UNIT0].1[BLOCK as usize], 7);
    assert_eq!(pair.mirrors[0].in_flight() + pair.mirrors[1].in_flight(), 0);
}

#[test]
fn what_nobody_has_is_an_error_until_it_is_written_anew() {
    let mut pair = settled();
    (0..4).for_each(|b| assert_eq!(pair.write(0, b, 7), Some(Status::Ok)));
    damage(&mut pair, 0, 1..2);
    damage(&mut pair, 1, 1..2);
    let block = |b: u32| b * BLOCK..(b + 1) * BLOCK;
    assert_eq!(pair.client(0, Kind::Read, 0, block(1), 0, 0), Some(Status::Media));
    assert_eq!(pair.read(0, 2), Some(7));
    // In parts it can't be written; the other copy has met the damage, too: nothing was changed.
    assert_eq!(pair.client(0, Kind::Write, 0, BLOCK..BLOCK + 512, 1, 0), Some(Status::Media));
    assert!(pair.mirrors[0].suspects(pair.now).is_empty());
    assert_eq!(pair.write(0, 1, 9), Some(Status::Ok));
    assert_eq!(pair.read(0, 1), Some(9));
    pair.assert_equal();
    assert_eq!(pair.mirrors[0].in_flight() + pair.mirrors[1].in_flight(), 0);
}

#[test]
fn a_joiner_gets_the_damage_of_the_last_copy_and_is_admitted() {
    let mut pair = settled();
    (0..4).for_each(|b| assert_eq!(pair.write(0, b, 7), Some(Status::Ok)));
    pair.configure(1, &[1], &[], &[0]);
    (1..4).for_each(|b| assert_eq!(pair.write(0, b, 8), Some(Status::Ok)));
    damage(&mut pair, 0, 1..3);
    assert_eq!(pair.client(0, Kind::Write, 0, BLOCK..BLOCK + 512, 1, 0), Some(Status::Media));
    pair.configure(1, &[1], &[2], &[0, 1]);
    pair.wait(500);
    assert_eq!(pair.mirrors[0].admissions(), [], "it is tried once more");
    pair.wait(1500);
    assert_eq!(pair.mirrors[0].admissions().len(), 1);
    pair.configure(2, &[1, 2], &[], &[0, 1]);
    pair.wait(1500);
    let read =
        |pair: &mut Pair, b: u32| pair.client(1, Kind::Read, 0, b * BLOCK..(b + 1) * BLOCK, 0, 0);
    assert_eq!(read(&mut pair, 1), Some(Status::Media), "what it had before is never shown");
    assert_eq!(pair.read(1, 3), Some(8));
    // The device that had the blocks can read one of them again: it is repaired as any damage.
    pair.mirrors[0].journal_mut().bad.remove(BlockSet::from_range(1..2));
    assert_eq!(pair.read(1, 1), Some(8));
    assert_eq!(pair.write(1, 2, 9), Some(Status::Ok));
    assert_eq!(pair.read(1, 2), Some(9));
    assert!(pair.mirrors.iter().all(|m| m.journal().bad.is_empty()));
    pair.assert_equal();
    assert_eq!(pair.mirrors[0].in_flight() + pair.mirrors[1].in_flight(), 0);
}

/// Two devices that outlive their processes, with 20 blocks of data each, damaged before a scrub.
fn scrubbed(bad: [&[u32]; 2]) -> Pair {
    let mut pair = Pair::new([4, 4]);
    pair.mirrors = [0, 1].map(|i| {
        let media = Memory { kept: true, ..Memory::room(4) };
        Mirror::new(DeviceId(i + 1), Incarnation(7), Limits::TEST_MIN, media, Time::ZERO)
    });
    let mut pair = settle(pair);
    (0..40).step_by(2).for_each(|b| assert_eq!(pair.write(0, b, b as u8 + 1), Some(Status::Ok)));
    pair.wait(500);
    for (mirror, bad) in pair.mirrors.iter_mut().zip(bad) {
        bad.iter().for_each(|b| mirror.journal_mut().bad.insert(BlockSet::from_range(*b..b + 1)));
        mirror.begin_scrub(pair.now);
    }
    pair
}

#[test]
fn a_scrub_finds_what_nobody_reads_at_both_copies_and_repairs_it() {
    let mut pair = scrubbed([&[0, 2, 34], &[4, 38]]);
    pair.wait(3000);
    let stats = pair.mirrors.each_ref().map(|m| m.scrub_stats().unwrap());
    for (stats, bad) in stats.iter().zip([3, 2]) {
        let bytes = bad * u64::from(BLOCK);
        assert_eq!((stats.running, stats.passes, stats.skipped), (false, 1, 0), "{stats:?}");
        assert_eq!((stats.damaged, stats.repaired, stats.unrepairable), (bytes, bytes, 0));
        assert_eq!((stats.done, stats.held), (20 * u64::from(BLOCK), 20 * u64::from(BLOCK)));
    }
    assert!(pair.mirrors.iter().all(|m| m.journal().bad.is_empty() && m.in_flight() == 0));
    pair.assert_equal();
    assert_eq!(pair.mirrors[1].view(GROUP).unwrap().dirty_bytes, 0);
    (0..40).step_by(2).for_each(|b| assert_eq!(pair.read(0, b), Some(b as u8 + 1)));
}

#[test]
fn a_scrub_gives_up_what_both_copies_have_lost_and_comes_to_its_end() {
    let mut pair = scrubbed([&[6], &[6, 8]]);
    pair.wait(20_000);
    let stats = pair.mirrors.each_ref().map(|m| m.scrub_stats().unwrap());
    assert_eq!(stats.map(|s| (s.passes, s.running)), [(1, false); 2]);
    let block = u64::from(BLOCK);
    assert_eq!(stats.map(|s| s.unrepairable), [block; 2]);
    assert_eq!((stats[1].damaged, stats[1].repaired), (2 * block, block));
    assert!(pair.mirrors[0].suspects(pair.now).is_empty(), "damage is no reason to suspect");
    assert_eq!(pair.write(0, 6, 9), Some(Status::Ok), "it can be written anew");
    assert!(pair.mirrors.iter().all(|m| m.journal().bad.is_empty()));
}

#[test]
fn a_scrub_keeps_to_its_rate_and_begins_anew_by_the_clock_or_when_asked() {
    let mut pair = scrubbed([&[], &[]]);
    pair.mirrors = pair.mirrors.map(|m| {
        let limits = Limits {
            scrub_bytes: 64 << 10,
            scrub_every: std::time::Duration::from_secs(60),
            ..Limits::TEST_MIN
        };
        Mirror::new(DeviceId(1), Incarnation(7), limits, m.into_journal(), pair.now)
    });
    pair.configure(1, &[1], &[], &[0]);
    pair.wait(2000);
    let stats = |pair: &Pair| pair.mirrors[0].scrub_stats().unwrap();
    assert_eq!((stats(&pair).running, stats(&pair).passes), (false, 0));
    let now = pair.now;
    pair.mirrors[0].begin_scrub(now);
    pair.wait(2900);
    assert_eq!(stats(&pair).passes, 0, "3 ranges of 64 KiB at 64 KiB/s");
    let half = pair.now;
    pair.mirrors[0].begin_scrub(half);
    pair.wait(4000);
    assert_eq!(stats(&pair).passes, 1);
    pair.wait(54_000);
    assert_eq!(stats(&pair).passes, 1);
    pair.wait(6000);
    assert_eq!(stats(&pair).passes, 2);
}

#[test]
fn writes_go_on_while_a_scrub_repairs() {
    let mut pair = scrubbed([&[10], &[12, 14]]);
    for round in 0..60u8 {
        for b in [10, 12, 14, 15] {
            assert_eq!(pair.write(0, b, round + 100), Some(Status::Ok));
            let part = b * BLOCK + 512..b * BLOCK + 1024;
            assert_eq!(pair.client(0, Kind::Write, 0, part, round, 0), Some(Status::Ok));
        }
        pair.wait(50);
    }
    assert!(pair.mirrors.iter().all(|m| m.journal().bad.is_empty()));
    pair.assert_equal();
}
