//! Two replicas of one group, connected by hand: the main paths of the protocol, step by step. The
//! simulator covers the others.

pub(crate) mod compare;
mod damage;
pub(crate) mod executed;
pub(crate) mod lives;
mod lost_blocks;
mod moved;
mod no_space;
mod scenes;
mod scrub;
pub(crate) mod stall;
pub(crate) mod trio;
pub(crate) mod window;

use base::crc::crc32c;
use base::{
    BLOCK, BlockSet, DeviceId, Dialect, Epoch, GroupId, Incarnation, Limits, LinkId, MapVersion,
    Prng, SdcId, Time, UNIT, UnitKey, VolumeId,
};
use mirror::{GroupConfig, Mirror, Volumes};
use seam::{
    Buf, BufPool, Change, ClientWrite, DiskError, DiskOp, Effect, Effects, ExecutedBlocks,
    Finished, Forgotten, Framer, Framing, Job, ReplicaRecord, Started, UnitStore, Walk,
    WriteMetadata,
};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use wire::header::HEADER;
use wire::message::{Io, Replicated, Reply, Request, Sender, SyncState, UnitRange};
use wire::{Body, Frame, Header, Kind, PeerFramer, PeerLink, Status};

const GROUP: GroupId = GroupId(3);
const CLIENT: LinkId = LinkId(1000);
/// A link after its handshake. Links have different versions, and every frame has to carry that of
/// its link (`run` and `collect` check it).
fn on(link: LinkId) -> PeerLink {
    PeerLink::new(link, 1 + (link.0 / 10 + link.0 % 10) as u16 % 2)
}

/// The build of these tests: it speaks two versions.
const TWO: Dialect = Dialect { wire_max: 2, ..wire::DIALECT };

const UNIT0: UnitKey = UnitKey { volume: VolumeId(1), index: 0 };

/// A unit store in memory that answers at once, with room for `room` units. Blocks of unit 0 can be
/// damaged.
#[derive(Default)]
struct Memory {
    units: BTreeMap<UnitKey, (BlockSet, Vec<u8>)>,
    room: usize,
    bad: BlockSet,
    ended: Vec<Finished>,
    /// It survives its process, so it has records and is scrubbed.
    kept: bool,
    /// A bit of what is read next flips before it is sent.
    flips: bool,
    /// Damaged blocks stay damaged.
    worn: bool,
    /// Results are returned later.
    late: bool,
    /// Jobs that change data don't end, and wait in `held`.
    hangs: bool,
    held: Vec<(u64, UnitKey, Job)>,
    /// Blocks of unit 0 that it was told are clean.
    clean: BlockSet,
    /// Answers to the next reservations; then `room` decides.
    space: VecDeque<bool>,
    /// Blocks of unit 0 that were written as dirty.
    marked: BlockSet,
    /// What it was told is forgotten, if it keeps that, and the lists of executed writes that
    /// replaced its own afterwards.
    forgotten: Option<Forgotten>,
    lists: Vec<(Forgotten, Vec<ExecutedBlocks>)>,
}

impl Memory {
    fn room(room: usize) -> Memory {
        Memory { room, bad: BlockSet::EMPTY, ..Memory::default() }
    }

    /// Returns the first damaged block that a job would have to read.
    fn damaged(&self, unit: UnitKey, job: &Job) -> Option<u16> {
        let (at, len) = match job {
            Job::Read { at, len } | Job::Zero { at, len } | Job::MarkLost { at, len } => {
                (*at, *len)
            }
            Job::Write { at, body, .. } => (*at, body.len() as u32),
        };
        let mut read = BlockSet::touching(at, len);
        if !matches!(job, Job::Read { .. }) {
            read.remove(BlockSet::within(at, len));
        }
        let run = self.bad.and(read).first_run().filter(|_| unit == UNIT0)?;
        Some(run.start as u16)
    }

    /// Does a job that changes data.
    fn write(&mut self, unit: UnitKey, job: Job) {
        let Some((valid, data)) = self.units.get_mut(&unit) else { return };
        match job {
            Job::Read { .. } => unreachable!("it changes nothing"),
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
            Job::MarkLost { at, len } => {
                valid.insert(BlockSet::within(at, len));
                self.bad.insert(BlockSet::within(at, len));
            }
        }
    }
}

impl UnitStore for Memory {
    fn start(
        &mut self,
        token: u64,
        _: GroupId,
        unit: UnitKey,
        job: Job,
        marks: WriteMetadata,
        out: &mut Effects,
    ) -> Started {
        if let Job::Write { at, body, .. } = &job
            && unit == UNIT0
            && marks.dirty
        {
            self.marked.insert(BlockSet::touching(*at, body.len() as u32));
        }
        if self.hangs && !matches!(job, Job::Read { .. }) {
            self.held.push((token, unit, job));
            return Started::Pending;
        }
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
        if let Job::Write { .. } | Job::MarkLost { .. } = job
            && !self.reserve(GROUP, unit, 0, 0)
        {
            return Started::Full;
        }
        let Job::Read { at, len } = job else {
            self.write(unit, job);
            return Started::Done(Buf::EMPTY);
        };
        let Some((_, data)) = self.units.get(&unit) else {
            return Started::Done(out.pool().zeroed(len as usize));
        };
        if !std::mem::take(&mut self.flips) {
            return Started::Done(out.copy(&data[at as usize..(at + len) as usize]));
        }
        let mut read = data[at as usize..(at + len) as usize].to_vec();
        let crc = Some(crc32c(&read));
        read[0] ^= 1;
        self.ended.push(Finished { token, result: Ok(out.copy(&read)), crc });
        Started::Pending
    }
    fn change(&mut self, token: Option<u64>, group: GroupId, changes: Vec<Change>) {
        let done = token.filter(|_| self.kept);
        self.ended.extend(done.map(|token| Finished { token, result: Ok(Buf::EMPTY), crc: None }));
        for change in changes {
            match change {
                Change::Wipe => self.units.clear(),
                Change::Clean(list) => {
                    let here = list.into_iter().filter(|(unit, _)| *unit == UNIT0);
                    here.for_each(|(_, blocks)| self.clean.insert(blocks));
                }
                Change::Forgotten(list) => {
                    let forgotten = self.forgotten.iter_mut();
                    forgotten.for_each(|f| list.iter().for_each(|e| assert!(f.take(group, e))));
                }
                Change::Executed(list) => {
                    self.lists.extend(self.forgotten.clone().map(|known| (known, list)));
                }
                _ => {}
            }
        }
    }
    fn disk_done(&mut self, _: DiskOp, _: Result<Buf, DiskError>, _: &mut Effects) {}
    fn finished(&mut self) -> Option<Finished> {
        if !self.hangs && !self.held.is_empty() {
            let (token, unit, job) = self.held.remove(0);
            self.reserve(GROUP, unit, 0, 0);
            self.write(unit, job);
            return Some(Finished { token, result: Ok(Buf::EMPTY), crc: None });
        }
        if self.late { None } else { self.ended.pop() }
    }
    fn flush(&mut self, _: &mut Effects) {}
    fn has_space_for(&self, _: GroupId, unit: UnitKey, _: u32, _: u32) -> bool {
        self.units.get(&unit).is_some_and(|(valid, _)| !valid.is_empty())
    }
    fn reserve(&mut self, _: GroupId, unit: UnitKey, _: u32, _: u32) -> bool {
        if !self.space.pop_front().unwrap_or(true) {
            return false;
        }
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
        let held = self.used();
        self.units.retain(|unit, _| unit.volume != volume);
        self.bad = if volume == UNIT0.volume { BlockSet::EMPTY } else { self.bad };
        held - self.used()
    }
    fn records(&self) -> Vec<(GroupId, ReplicaRecord)> {
        Vec::new()
    }
    fn forgotten(&self) -> Option<&Forgotten> {
        self.forgotten.as_ref()
    }
    fn survives(&self) -> bool {
        self.kept
    }
    fn used(&self) -> u64 {
        self.units.values().map(|(valid, _)| u64::from(valid.len() * BLOCK)).sum()
    }
    /// Takes steps of 64 KiB.
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

/// Two devices, 1 and 2. Device d dials the other one on link d * 10.
struct Pair {
    mirrors: [Mirror<Memory>; 2],
    outs: [Effects; 2],
    now: Time,
    epoch: u64,
    /// Frames between the two are delivered.
    connected: bool,
    /// Questions and orders to joiners of syncs, delivered or not.
    asked: Vec<Frame>,
    replies: Vec<Reply>,
    bodies: Vec<Buf>,
    /// The bodies of the answers match their checksums.
    sound: Vec<bool>,
    seq: u64,
    /// A bit flips after arrival, in the next write of a client, and in the stream's next write of
    /// whole blocks.
    flips: [bool; 2],
    /// Length of the longest body that was sent.
    longest: usize,
    /// The last state that one device has told the other.
    state: Option<(SyncState, Buf)>,
    /// Answers to operations of this group's stream are lost.
    mute: Option<GroupId>,
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
            asked: Vec::new(),
            replies: Vec::new(),
            bodies: Vec::new(),
            sound: Vec::new(),
            seq: 0,
            flips: [false; 2],
            longest: 0,
            state: None,
            mute: None,
        }
    }

    /// Makes a new configuration, which the devices in `by` learn.
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
            mirror.configure(self.now, GROUP, &config, true, out);
            let (needed, candidates) = mirror.replicas().wanted();
            mirror.need_leases(self.now, &needed, &candidates);
        }
        self.run();
    }

    /// Cuts device 2 off, and replaces it by an empty device.
    fn replace_second(&mut self) {
        self.connect(false);
        self.configure(1, &[1], &[], &[0]);
        let (media, limits) = (Memory::room(4), Limits::TEST_MIN);
        self.mirrors[1] = Mirror::new(DeviceId(2), Incarnation(8), limits, media, self.now);
    }

    fn connect(&mut self, connected: bool) {
        self.connected = connected;
        for i in 0..2 {
            let (other, link) = (DeviceId(2 - i as u32), LinkId(10 * (i as u64 + 1)));
            let (mirror, out) = (&mut self.mirrors[i], &mut self.outs[i]);
            if connected {
                mirror.peer_up(self.now, other, on(link), out);
            } else {
                mirror.peer_down(self.now, other, out);
            }
        }
        self.run();
    }

    /// Lets time pass: calls the ticks, and delivers.
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
                    let effect = match effect {
                        Effect::SendFirst { link, head } => {
                            Effect::Send { link, head, body: Buf::EMPTY }
                        }
                        other => other,
                    };
                    if let Effect::Send { link, head, body } = effect {
                        let h = wire::parse(head.as_slice());
                        assert_eq!(h.version(), on(link).version, "{:?}", h.kind());
                        self.longest = self.longest.max(body.len());
                        let framed = PeerFramer::speaking(&TWO, Limits::SHIPPED.frame_body)
                            .frame(head.as_slice());
                        let whole = Framing::Frame { head: HEADER, body: body.len() };
                        assert_eq!(framed, Ok(whole), "{:?}: its receiver reads it", h.kind());
                        self.deliver(i, link, h, body);
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
            self.replies.push(Reply::try_from(h).unwrap());
            self.sound.push(wire::body_ok(h, &body));
            return self.bodies.push(body);
        }
        if let Ok(frame @ (Frame::SyncStart(_) | Frame::SyncWipe(_))) = Frame::try_from(h) {
            self.asked.push(frame);
        }
        if !self.connected {
            return;
        }
        if let Ok(state) = SyncState::try_from(h) {
            self.state = Some((state, body.clone()));
        }
        if Replicated::try_from(h).is_ok_and(|m| self.mute == Some(m.group)) {
            return;
        }
        let (now, to, sender) = (self.now, 1 - from, DeviceId(from as u32 + 1));
        let whole = h.kind() == Some(Kind::Replicate) && body.len() >= BLOCK as usize;
        let flips = whole && std::mem::take(&mut self.flips[1]);
        let body = if flips { flipped(&body, &mut self.outs[to]) } else { body };
        deliver_to(&mut self.mirrors[to], now, on(link), sender, h, body, &mut self.outs[to]);
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
        let before = self.replies.len();
        self.ask(to, kind, unit, range, fill, flags);
        self.run();
        self.replies.get(before).map(|reply| reply.status)
    }

    /// Like `client`, but nothing is delivered yet.
    fn ask(&mut self, to: usize, kind: Kind, unit: u32, range: Range<u32>, fill: u8, flags: u8) {
        if flags & RETRY == 0 {
            self.seq += 1;
        }
        let len = range.end - range.start;
        let client = named(5, self.seq, self.seq);
        let range = place(unit, range.start, len);
        let request = request(self.seq, GROUP, self.epoch, range, client);
        let body = if kind == Kind::Write { vec![fill; len as usize] } else { vec![] };
        let mut body = summed(&body, &self.outs[to]);
        if std::mem::take(&mut self.flips[0]) {
            body.data = flipped(&body.data, &mut self.outs[to]);
        }
        let io = io(kind, request, flags);
        self.mirrors[to].client(self.now, on(CLIENT), &io, body, &mut self.outs[to]);
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
        let [a, b] = self.mirrors.each_ref().map(|m| &m.store().units);
        assert!(a == b, "the copies differ");
    }
}

/// Flags of operations in tests.
const RETRY: u8 = 1;
const HOLE: u8 = 2;

/// Returns a range of a unit of volume 1.
fn place(unit: u32, at: u32, len: u32) -> UnitRange {
    UnitRange { unit: UnitKey { volume: VolumeId(1), index: unit }, at, len }
}

/// Returns a client's name for its operation.
fn named(sdc: u32, seq: u64, floor: u64) -> ClientWrite {
    ClientWrite { sdc: SdcId(sdc), incarnation: Incarnation(1), seq, floor }
}

/// Returns what a client asks.
fn request(op: u64, group: GroupId, epoch: u64, range: UnitRange, client: ClientWrite) -> Request {
    let (epoch, map) = (Epoch(epoch), MapVersion(0));
    Request { op, group, epoch, range, client, map, generation: 0 }
}

/// Returns the operation of this kind.
fn io(kind: Kind, request: Request, flags: u8) -> Io {
    use wire::message::{CompareWrite, Extents, Read, Write, Zero};
    let (retry, hole) = (flags & RETRY != 0, flags & HOLE != 0);
    match kind {
        Kind::Read => Io::Read(Read { request, retry }),
        Kind::Write => Io::Write(Write { request, retry }),
        Kind::Zero => Io::Zero(Zero { request, retry, hole }),
        Kind::Extents => Io::Extents(Extents { request, retry }),
        Kind::CompareWrite => Io::CompareWrite(CompareWrite { request, retry }),
        other => panic!("{other:?} is no operation of a client"),
    }
}

/// Returns a body with its checksum.
fn summed(bytes: &[u8], out: &Effects) -> Body {
    Body { data: out.pool().copy(bytes), crc: Some(base::crc::crc32c(bytes)) }
}

/// Hands a frame to its receiver.
fn deliver_to(
    mirror: &mut Mirror<Memory>,
    now: Time,
    link: PeerLink,
    sender: DeviceId,
    h: &Header,
    body: Buf,
    out: &mut Effects,
) {
    match Frame::try_from(h).unwrap() {
        Frame::Replicate(m) => mirror.replicate_in(now, link, sender, &m, Body::of(h, body), out),
        Frame::Beacon(m) => mirror.beacon_in(now, link, sender, &m, out),
        Frame::Commit(m) => mirror.commit_in(sender, &m),
        Frame::SyncStart(m) => mirror.sync_start_in(link, sender, &m, &body, out),
        Frame::SyncWipe(m) => mirror.sync_wipe_in(now, link, sender, &m, out),
        Frame::Seal(m) => mirror.seal_in(now, link, sender, &m, &body, out),
        Frame::Fetch(m) => mirror.fetch_in(now, link, sender, &m, out),
        Frame::Replicated(m) => mirror.replicated(now, sender, &m, out),
        Frame::Grant(m) => mirror.grant_in(now, sender, &m, out),
        Frame::SyncState(m) => mirror.sync_state_in(now, sender, &m, &body, out),
        Frame::Sealed(m) => mirror.sealed_in(now, sender, &m, out),
        Frame::Damage(m) => mirror.damage_in(now, sender, &m, out),
        Frame::Fetched(m) => mirror.fetched_in(now, sender, &m, body, out),
        other => panic!("{other:?}"),
    }
}

fn flipped(body: &[u8], out: &mut Effects) -> Buf {
    let mut body = body.to_vec();
    body[0] ^= 1;
    out.copy(&body)
}

fn settled() -> Pair {
    settle(Pair::new([4, 4]))
}

fn settle(mut pair: Pair) -> Pair {
    pair.connect(true);
    pair.configure(1, &[1, 2], &[], &[0, 1]);
    pair.wait(500);
    assert!(pair.mirrors[0].replicas().view(GROUP).unwrap().active);
    pair
}
