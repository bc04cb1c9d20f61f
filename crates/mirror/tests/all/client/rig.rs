//! A client with a map, and everything that the client has requested of its owner.

use base::{
    DeviceId, Epoch, GroupId, Incarnation, Limits, MapVersion, SdcId, Time, UNIT, UnitKey, VolumeId,
};
use core::time::Duration;
use mirror::client::{Action, Client, Leader, Topology, Turn, Usable};
use seam::{BlockError, BlockKind, BlockRequest, Buf, BufPool};
use std::collections::BTreeMap;
use wire::Status;
use wire::message::{Io, Reply, Request, Zero};

pub(crate) const VOLUME: VolumeId = VolumeId(7);
pub(crate) const SDC: SdcId = SdcId(3);
pub(crate) const LIFE: Incarnation = Incarnation(44);

/// A map: unit u of every volume belongs to group u % groups.
#[derive(Clone, Debug)]
pub(crate) struct FakeMap {
    pub version: u64,
    /// The size of each, its generation, and the one at which the permission began.
    pub volumes: BTreeMap<VolumeId, (u64, u32, u32)>,
    pub groups: Vec<Leader>,
    pub read_only: bool,
}

impl FakeMap {
    /// Volume 7 with 16 units; group i is led by device i + 1 in epoch 10.
    pub(crate) fn new(groups: u32) -> FakeMap {
        let lead = |i| Leader::At(DeviceId(i + 1), Epoch(10));
        FakeMap {
            version: 5,
            volumes: BTreeMap::from([(VOLUME, (16 * u64::from(UNIT), 2, 2))]),
            groups: (0..groups).map(lead).collect(),
            read_only: false,
        }
    }
}

impl Topology for FakeMap {
    fn version(&self) -> MapVersion {
        MapVersion(self.version)
    }
    fn volume(&self, id: VolumeId) -> Option<Usable> {
        let (size, generation, since) = *self.volumes.get(&id)?;
        Some(Usable { size, generation, since, writable: !self.read_only })
    }
    fn group_of(&self, unit: UnitKey) -> Option<GroupId> {
        self.volume(unit.volume)?;
        Some(GroupId(unit.index % self.groups.len() as u32))
    }
    fn leader(&self, group: GroupId) -> Leader {
        self.groups[group.0 as usize]
    }
}

/// A frame that the client has sent.
#[derive(Debug)]
pub(crate) struct Sent {
    pub device: DeviceId,
    pub io: Io,
    pub body: Buf,
    /// Its link was closed after it was sent.
    pub lost: bool,
}

impl Sent {
    pub(crate) fn request(&self) -> &Request {
        self.io.request()
    }

    pub(crate) fn op(&self) -> u64 {
        self.request().op
    }

    pub(crate) fn seq(&self) -> u64 {
        self.request().client.seq
    }

    pub(crate) fn floor(&self) -> u64 {
        self.request().client.floor
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.request().epoch.0
    }

    pub(crate) fn unit(&self) -> u32 {
        self.request().range.unit.index
    }

    pub(crate) fn at(&self) -> u32 {
        self.request().range.at
    }

    pub(crate) fn len(&self) -> u32 {
        self.request().range.len
    }

    pub(crate) fn is_retry(&self) -> bool {
        self.io.is_retry()
    }

    pub(crate) fn is_discard(&self) -> bool {
        matches!(self.io, Io::Zero(Zero { hole: true, .. }))
    }
}

pub(crate) type Answer = (u64, Result<Buf, BlockError>);

pub(crate) struct Rig {
    pub client: Client<u64>,
    pub map: FakeMap,
    pub now: Time,
    pub pool: BufPool,
    pub sent: Vec<Sent>,
    pub done: Vec<Answer>,
    /// Requests whose writes are held, as the owner was told.
    pub told_held: Vec<u64>,
    pub dials: Vec<DeviceId>,
    pub hangups: Vec<DeviceId>,
    pub needs: Option<MapVersion>,
}

impl Rig {
    /// Creates a client that has its identity and nothing to do. No device is up.
    pub(crate) fn new(groups: u32, limits: &Limits) -> Rig {
        let mut client = Client::new(limits);
        client.named(SDC, LIFE);
        Rig {
            client,
            map: FakeMap::new(groups),
            now: Time(1_000_000_000),
            pool: BufPool::new(64 << 20),
            sent: Vec::new(),
            told_held: Vec::new(),
            done: Vec::new(),
            dials: Vec::new(),
            hangups: Vec::new(),
            needs: None,
        }
    }

    /// Creates a client that every device has welcomed.
    pub(crate) fn up(groups: u32) -> Rig {
        let mut rig = Rig::new(groups, &Limits::SHIPPED);
        (1..=groups).for_each(|d| rig.link_up(d));
        rig
    }

    fn turn(&mut self, call: impl FnOnce(&mut Client<u64>, &mut Turn<'_, FakeMap, u64>)) {
        let mut out = Vec::new();
        let mut turn = Turn { now: self.now, map: &self.map, pool: &self.pool, out: &mut out };
        call(&mut self.client, &mut turn);
        for action in out {
            match action {
                Action::Send { device, io, body } => {
                    self.sent.push(Sent { device, io, body, lost: false })
                }
                Action::Dial { device } => self.dials.push(device),
                Action::Hangup { device, .. } => {
                    self.sent.iter_mut().filter(|s| s.device == device).for_each(|s| s.lost = true);
                    self.hangups.push(device);
                }
                Action::Held { origin } => self.told_held.push(origin),
                Action::NeedMap { version } => self.needs = self.needs.max(Some(version)),
                Action::Done { origin, result } => self.done.push((origin, result)),
            }
        }
    }

    pub(crate) fn ask(&mut self, origin: u64, kind: BlockKind, at: u64, len: u32, body: Buf) {
        let request = BlockRequest { volume: VOLUME, kind, at, len, body };
        self.turn(|c, t| c.request(origin, request, t));
    }

    pub(crate) fn forget(&mut self, gone: impl Fn(u64) -> bool) {
        self.turn(|c, t| c.forget(gone, t));
    }

    pub(crate) fn read(&mut self, origin: u64, at: u64, len: u32) {
        self.ask(origin, BlockKind::Read, at, len, Buf::EMPTY);
    }

    pub(crate) fn write(&mut self, origin: u64, at: u64, data: &[u8]) {
        let body = self.pool.copy(data);
        self.ask(origin, BlockKind::Write, at, data.len() as u32, body);
    }

    pub(crate) fn link_up(&mut self, device: u32) {
        self.turn(|c, t| c.link_up(DeviceId(device), 1024, 64 << 20, t));
    }

    pub(crate) fn link_up_with(&mut self, device: u32, ops: u32, bytes: u32) {
        self.turn(|c, t| c.link_up(DeviceId(device), ops, bytes, t));
    }

    pub(crate) fn link_down(&mut self, device: DeviceId) {
        self.turn(|c, t| c.link_down(device, t));
    }

    pub(crate) fn new_map(&mut self, change: impl FnOnce(&mut FakeMap)) {
        self.map.version += 1;
        change(&mut self.map);
        self.needs = None;
        self.turn(|c, t| c.map_changed(t));
    }

    pub(crate) fn lead(&mut self, group: u32, device: u32, epoch: u64) {
        self.new_map(|map| map.groups[group as usize] = Leader::At(DeviceId(device), Epoch(epoch)));
    }

    /// Lets time pass, and calls the ticks that the client asks for meanwhile.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.client.wake_at().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.turn(|c, t| c.tick(t));
        }
        self.now = end;
    }

    /// Takes the only frame that was sent.
    pub(crate) fn one(&mut self) -> Sent {
        assert_eq!(self.sent.len(), 1, "{:?}", self.sent);
        self.sent.pop().expect("one")
    }

    /// An answer arrives damaged.
    pub(crate) fn damaged(&mut self, from: DeviceId) {
        self.turn(|c, t| c.bad_reply(from, t));
    }

    /// Answers a frame as its device would.
    pub(crate) fn answer(&mut self, to: &Sent, status: Status, body: &[u8]) {
        self.answer_with(to, status, body, |_| {});
    }

    pub(crate) fn answer_with(
        &mut self,
        to: &Sent,
        status: Status,
        body: &[u8],
        change: impl FnOnce(&mut Reply),
    ) {
        let group = to.request().group;
        let mut reply = Reply::new(to.op(), group, status, MapVersion(self.map.version));
        reply.epoch = to.request().epoch;
        change(&mut reply);
        let body = self.pool.copy(body);
        self.turn(|c, t| c.reply(to.device, &reply, body, t));
    }

    /// Takes the only answer that there is.
    pub(crate) fn result(&mut self) -> Result<Buf, BlockError> {
        assert_eq!(self.done.len(), 1, "{:?}", self.done);
        self.done.pop().expect("one").1
    }
}
