//! What the tables of the flows share: a device with one replica, a unit store that only notes what
//! it is told to do, and short texts for what leaves the device.
//!
//! A row of such a table calls one method of a flow, without the loop, and compares what was sent,
//! which jobs and steps were begun, and the state of the operation. `tests/all/pair` runs whole
//! devices instead.

use crate::flows::Flows;
use crate::jobs::{Step, Task};
use crate::members::{GroupConfig, ReplicaSet};
use crate::mirror::Mirror;
use crate::op::{Compare, Copying, Local, Op, Requester, Streamed, Work, Write};
use crate::replica::{Primary, Replica, Role};
use crate::secondary::Secondary;
use crate::shard::Shard;
use crate::sync::Sync;
use crate::volumes::Volumes;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use base::{
    BLOCK, BlockSet, DeviceId, Duration, Epoch, GroupId, Incarnation, Limits, LinkId, Lsn,
    MapVersion, Prng, SdcId, Time, UnitKey, VolumeId,
};
use seam::{
    Buf, BufPool, Change, ClientWrite, DiskError, DiskOp, Effect, Effects, Finished, Job, Note,
    ReplicaRecord, Started, UnitStore, WriteMetadata,
};
use wire::{Frame, PeerLink};

pub(crate) const GROUP: GroupId = GroupId(7);
pub(crate) const EPOCH: Epoch = Epoch(4);
pub(crate) const UNIT: UnitKey = UnitKey { volume: VolumeId(1), index: 0 };
pub(crate) const NOW: Time = Time(10_000_000_000);
/// The replicas of the group. Tables name devices by their numbers.
const REPLICAS: [u32; 4] = [1, 2, 3, 4];
pub(crate) const ME: DeviceId = DeviceId(1);
pub(crate) const SECOND: DeviceId = DeviceId(2);
const CLIENT: LinkId = LinkId(1000);

/// A unit store that does nothing, and notes what it is told to do.
#[derive(Debug, Default)]
pub(crate) struct Store {
    /// The results of starting the next jobs. All later ones are pending.
    pub started: VecDeque<Started>,
    /// The jobs so far.
    pub jobs: Vec<(u64, Job, WriteMetadata)>,
    /// The changes of records so far, with their tokens.
    pub changes: Vec<(Option<u64>, Vec<Change>)>,
    /// The blocks of [`UNIT`] that hold data.
    pub valid: BlockSet,
    /// There is no space to reserve.
    pub full: bool,
    /// Reservations that were not released.
    pub reserved: i32,
    /// The bytes in use.
    pub used: u64,
    /// The device is empty after its process has died.
    pub volatile: bool,
    /// The device stores nothing.
    pub null: bool,
}

impl UnitStore for Store {
    fn start(
        &mut self,
        token: u64,
        _: GroupId,
        _: UnitKey,
        job: Job,
        marks: WriteMetadata,
        _: &mut Effects,
    ) -> Started {
        self.jobs.push((token, job, marks));
        self.started.pop_front().unwrap_or(Started::Pending)
    }
    fn change(&mut self, token: Option<u64>, _: GroupId, changes: Vec<Change>) {
        self.changes.push((token, changes));
    }
    fn disk_done(&mut self, _: DiskOp, _: Result<Buf, DiskError>, _: &mut Effects) {}
    fn finished(&mut self) -> Option<Finished> {
        None
    }
    fn flush(&mut self, _: &mut Effects) {}
    fn has_space_for(&self, _: GroupId, unit: UnitKey, at: u32, len: u32) -> bool {
        unit == UNIT && self.valid.contains_all(BlockSet::touching(at, len))
    }
    fn reserve(&mut self, _: GroupId, _: UnitKey, _: u32, _: u32) -> bool {
        self.reserved += i32::from(!self.full);
        !self.full
    }
    fn release(&mut self, _: GroupId, _: UnitKey, _: u32, _: u32) {
        self.reserved -= 1;
    }
    fn valid(&self, _: GroupId, unit: UnitKey) -> BlockSet {
        if unit == UNIT { self.valid } else { BlockSet::EMPTY }
    }
    fn units(&self, _: GroupId) -> Vec<UnitKey> {
        (!self.valid.is_empty()).then_some(UNIT).into_iter().collect()
    }
    fn is_empty(&self, _: GroupId) -> bool {
        self.valid.is_empty()
    }
    fn volumes(&self) -> Vec<VolumeId> {
        self.units(GROUP).iter().map(|unit| unit.volume).collect()
    }
    fn drop_volume(&mut self, _: VolumeId) -> u64 {
        u64::from(core::mem::take(&mut self.valid).len() * BLOCK)
    }
    fn used(&self) -> u64 {
        self.used
    }
    fn records(&self) -> Vec<(GroupId, ReplicaRecord)> {
        Vec::new()
    }
    fn keeps_data(&self) -> bool {
        !self.null
    }
    fn survives(&self) -> bool {
        !self.volatile
    }
}

/// A device with a replica of one group, and what has left it.
pub(crate) struct Rig {
    pub shard: Shard<Store>,
    pub flows: Flows,
    pub out: Effects,
    pub notes: Vec<Note>,
}

/// Returns a configuration of the group, led by the first device in sync.
pub(crate) fn config(in_sync: &[u32], joiners: &[u32]) -> GroupConfig {
    let devices = |ids: &[u32]| ids.iter().map(|id| DeviceId(*id)).collect::<Vec<_>>();
    GroupConfig {
        epoch: EPOCH,
        primary: devices(in_sync).first().copied(),
        replicas: devices(&REPLICAS),
        in_sync: devices(in_sync),
        joiners: devices(joiners),
        lost: false,
    }
}

/// Returns the bits of these replicas.
pub(crate) fn bits(devices: &[u32]) -> ReplicaSet {
    let devices: Vec<DeviceId> = devices.iter().map(|id| DeviceId(*id)).collect();
    config(&[], &[]).members(&devices)
}

/// Returns the link that leads to a device.
pub(crate) fn link_to(device: u32) -> PeerLink {
    PeerLink::new(LinkId(u64::from(device)), 1)
}

/// Returns these whole blocks of a unit.
pub(crate) fn blocks(range: core::ops::Range<u32>) -> BlockSet {
    BlockSet::from_range(range)
}

/// Returns the name of a client's write.
pub(crate) fn named(seq: u64) -> ClientWrite {
    ClientWrite { sdc: SdcId(5), incarnation: Incarnation(1), seq, floor: 1 }
}

pub(crate) fn of_client() -> Requester {
    Requester { link: PeerLink::new(CLIENT, 1), op: 99 }
}

pub(crate) fn read() -> Work {
    Work::Read(of_client(), NOW)
}

pub(crate) fn write() -> Work {
    Work::Write(Write::new(of_client(), NOW))
}

pub(crate) fn compare() -> Work {
    Work::Compare(Compare { requester: of_client(), since: NOW, retry: false })
}

pub(crate) fn copy() -> Work {
    Work::Copy(Copying { since: NOW, read: Duration::ZERO, lost: false })
}

pub(crate) fn fetch() -> Work {
    Work::Fetch(Requester { link: link_to(2), op: 99 })
}

pub(crate) fn stream() -> Streamed {
    let requester = Requester { link: link_to(2), op: 99 };
    Streamed { requester, zero: false, copy: false, yields: false, lost: false, fresh: false }
}

/// Returns an operation on the first block, with a body of zeros if its work has one.
pub(crate) fn op(work: Work) -> Op {
    let blocks = match work {
        Work::Write(write) if !write.zero => 1,
        Work::Stream(write) if !write.zero && !write.lost => 1,
        Work::Compare(_) => 2,
        _ => 0,
    };
    let body = BufPool::new(0).zeroed((blocks * BLOCK) as usize);
    Op { body, ..Op::new(GROUP, UNIT, 0, BLOCK, work) }
}

impl Rig {
    fn new(config: GroupConfig, role: Role) -> Rig {
        let boot = Time::ZERO;
        let store = Store::default();
        let Mirror { mut shard, flows } =
            Mirror::new(ME, Incarnation(1), Limits::TEST_MIN, store, boot);
        let mut replica = Replica::new(ReplicaRecord::default());
        replica.enter(config, MapVersion(1), ME);
        replica.role = role;
        *shard.replicas.get_or_new(GROUP) = replica;
        for id in &REPLICAS[1..] {
            shard.windows.connect(DeviceId(*id), Some(link_to(*id)));
        }
        let out = Effects::new(BufPool::new(1 << 20), Prng::new(1), None);
        Rig { shard, flows, out, notes: Vec::new() }
    }

    /// Creates the primary of a group that it serves. It is in sync itself.
    pub(crate) fn leading(others: &[u32], joiners: &[u32]) -> Rig {
        let in_sync: Vec<u32> = [1].iter().chain(others).copied().collect();
        let role = Role::Primary(Primary { active: true, ..Primary::default() });
        Rig::new(config(&in_sync, joiners), role)
    }

    /// Creates a primary that copies blocks to this joiner. The `others` are in sync.
    pub(crate) fn filling(others: &[u32], joiner: u32) -> Rig {
        let mut rig = Rig::leading(others, &[joiner]);
        let member = bits(&[joiner]);
        let sync = rig.primary().ask(member, Some(DeviceId(joiner)), 0);
        sync.streaming = true;
        assert!(sync.tells(member, true, false));
        rig.flows.peers.timers.join(GROUP);
        rig
    }

    /// Creates a primary that settles with these replicas, and copies blocks to them.
    pub(crate) fn settling(others: &[u32]) -> Rig {
        let mut rig = Rig::leading(others, &[]);
        rig.primary().active = false;
        let sync = rig.primary().ask(bits(others), None, 0);
        for device in others {
            sync.tells(bits(&[*device]), true, false);
        }
        rig
    }

    /// Creates a replica that device 2 leads, in sync or a joiner.
    pub(crate) fn following(joins: bool) -> Rig {
        let config = if joins { config(&[2], &[1]) } else { config(&[2, 1], &[]) };
        Rig::new(config, Role::Secondary(Secondary::new(SECOND, joins)))
    }

    /// Calls the outer interface.
    pub(crate) fn call<T>(
        self,
        call: impl FnOnce(&mut Mirror<Store>, &mut Effects) -> T,
    ) -> (Rig, T) {
        let Rig { shard, flows, mut out, notes } = self;
        let mut mirror = Mirror { shard, flows };
        let result = call(&mut mirror, &mut out);
        let Mirror { shard, flows } = mirror;
        (Rig { shard, flows, out, notes }, result)
    }

    // ---- the state before ----

    pub(crate) fn replica(&mut self) -> &mut Replica {
        self.shard.replicas.get_mut(GROUP).unwrap()
    }

    pub(crate) fn primary(&mut self) -> &mut Primary {
        self.replica().primary().unwrap()
    }

    pub(crate) fn sync(&mut self) -> &mut Sync {
        self.primary().sync.as_mut().unwrap()
    }

    /// Adds an operation that has its range.
    pub(crate) fn hold(&mut self, op: Op) -> u64 {
        let key = self.shard.queue(op);
        assert_eq!(self.shard.ops.next(), Some(key), "no other operation has the range");
        key
    }

    /// Adds an operation of the stream that was sent to these replicas.
    pub(crate) fn send(&mut self, op: Op, to: &[u32]) -> u64 {
        let (key, to) = (self.hold(op), bits(to));
        let lsn = self.primary().enter(key, to);
        let op = self.shard.ops.get_mut(key).unwrap();
        (op.lsn, op.sent) = (lsn, to);
        self.shard.send_operation(key, to, false, &mut self.out);
        self.out.drain().for_each(drop);
        key
    }

    /// Adds a copy of the first block, which is being read.
    pub(crate) fn read_to_copy(&mut self) -> u64 {
        let sync = self.sync();
        sync.todo.insert(UNIT, blocks(0..1));
        sync.begin_copy(1).unwrap();
        self.flows.peers.copies.begins();
        self.hold(op(copy()))
    }

    /// Adds a copy of the first block, which was sent to these replicas.
    pub(crate) fn send_copy(&mut self, to: &[u32]) -> u64 {
        let key = self.read_to_copy();
        let (lsn, to) = (self.primary().enter(key, bits(to)), bits(to));
        let op = self.shard.ops.get_mut(key).unwrap();
        (op.lsn, op.sent, op.local) = (lsn, to, Local::Done);
        self.shard.send_operation(key, to, false, &mut self.out);
        self.out.drain().for_each(drop);
        key
    }

    /// Makes clients wait for room in the window of device 2.
    pub(crate) fn crowd(&mut self) {
        let windows = &mut self.shard.windows;
        assert!(windows.send(SECOND, u64::MAX, 1, true).is_some(), "something is in flight");
        assert!(windows.makes_wait(NOW, SECOND, u64::MAX / 2));
    }

    /// Makes the group's configuration end soon.
    pub(crate) fn end_soon(&mut self) {
        let next = GroupConfig { epoch: Epoch(EPOCH.0 + 1), ..self.replica().config.clone() };
        self.replica().next = Some((next, MapVersion(2)));
    }

    /// Deletes the volume of [`UNIT`].
    pub(crate) fn delete_volume(&mut self) {
        let volumes = Volumes { next: VolumeId(2), ..Volumes::default() };
        self.shard.known.take_volumes(volumes);
    }

    // ---- the state after ----

    /// Returns an operation that lives.
    pub(crate) fn op(&mut self, key: u64) -> &mut Op {
        self.shard.ops.get_mut(key).unwrap()
    }

    /// Returns true if the operation is over.
    pub(crate) fn is_over(&self, key: u64) -> bool {
        self.shard.ops.get(key).is_none()
    }

    /// Takes what left: frames with their links and bodies, and links that were closed.
    fn effects(&mut self) -> Vec<Result<(LinkId, Frame, Buf), LinkId>> {
        let mut effects = Vec::new();
        for effect in self.out.drain() {
            let (link, head, body) = match effect {
                Effect::Send { link, head, body } => (link, head, body),
                Effect::SendFirst { link, head } => (link, head, Buf::EMPTY),
                Effect::Close { link } => {
                    effects.push(Err(link));
                    continue;
                }
                Effect::Note(note) => {
                    self.notes.push(note);
                    continue;
                }
                other => panic!("{other:?}"),
            };
            let frame = Frame::try_from(wire::parse(head.as_slice())).unwrap();
            effects.push(Ok((link, frame, body)));
        }
        effects
    }

    /// Takes the frames that left, with their links and bodies. No link was closed.
    pub(crate) fn frames(&mut self) -> Vec<(LinkId, Frame, Buf)> {
        self.effects().into_iter().map(|effect| effect.expect("no link is closed")).collect()
    }

    /// Takes what left, as a text.
    pub(crate) fn left(&mut self) -> String {
        let effects = self.effects().into_iter();
        let texts = effects.map(|effect| match effect {
            Ok((link, frame, _)) => text(link, &frame),
            Err(link) => format!("Close {}", link.0),
        });
        texts.collect::<Vec<_>>().join(", ")
    }

    /// Takes the jobs that were begun, as a text.
    pub(crate) fn jobs(&mut self) -> String {
        let jobs = core::mem::take(&mut self.shard.store.jobs);
        let texts = jobs.iter().map(|(_, job, _)| match job {
            Job::Read { at, len } => format!("Read {at}+{len}"),
            Job::Write { at, body, .. } => format!("Write {at}+{}", body.len()),
            Job::Zero { at, len } => format!("Zero {at}+{len}"),
            Job::MarkLost { at, len } => format!("MarkLost {at}+{len}"),
        });
        texts.collect::<Vec<_>>().join(", ")
    }

    /// Takes the tasks of the loop, as a text.
    pub(crate) fn tasks(&mut self) -> String {
        let tasks = core::iter::from_fn(|| self.shard.jobs.next_task());
        let texts = tasks.map(|task| match task {
            Task::Step(Step::Unreadable(_, (first, n))) => format!("Unreadable {first}+{n}"),
            Task::Step(step) => first_word(&format!("{step:?}")),
            Task::Job(_, Ok(_)) => "Done".into(),
            Task::Job(_, Err(_)) => "Failed".into(),
            Task::Change(_, after) => first_word(&format!("{after:?}")),
        });
        texts.collect::<Vec<_>>().join(", ")
    }

    /// Takes the operations that can start.
    pub(crate) fn ready(&mut self) -> Vec<u64> {
        core::iter::from_fn(|| self.shard.ops.next()).collect()
    }
}

/// Returns the name of a variant.
fn first_word(text: &str) -> String {
    text.split([' ', '(']).next().unwrap_or_default().into()
}

/// Returns a frame as a text: the answer to a client, or the kind of a frame and its receiver.
pub(crate) fn text(link: LinkId, frame: &Frame) -> String {
    let (to, kind) = (link.0, frame.kind());
    match frame {
        Frame::Reply(m) => format!("{:?}", m.status),
        Frame::Replicated(m) => format!("{kind:?} {:?} to {to}", m.status),
        Frame::Fetched(m) => format!("{kind:?} {:?} to {to}", m.status),
        Frame::Sealed(m) => format!("{kind:?} {:?} to {to}", m.status),
        Frame::Replicate(m) => {
            let flags =
                [(m.fresh, " fresh"), (m.zero, " zero"), (m.copy, " copy"), (m.lost, " lost")];
            let flags: String = flags.iter().filter(|(on, _)| *on).map(|(_, name)| *name).collect();
            let Lsn(lsn) = m.lsn;
            format!("{kind:?} {lsn}{flags} to {to}")
        }
        _ => format!("{kind:?} to {to}"),
    }
}
