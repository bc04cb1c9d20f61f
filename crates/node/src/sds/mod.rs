//! One shard of a data server: one device, its replicas, and its connections.
//!
//! This file has the state, the events and the clock; [`control`] talks to the MDM, [`serve`] to
//! clients and to the other devices, [`followers`] are those that are dialled. What is decided about data is decided in `mirror`.
//!
//! Invariants: nothing is served before the MDM has named this life of the process; a link's frames
//! count only while the link is in `links`; of each client, and of each other device, only the newest
//! connection is.

mod control;
mod device;
mod followers;
mod serve;

use crate::links::Dialer;
use crate::mapview::MapView;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use base::{ClusterId, DeviceId, Incarnation, Limits, LinkId, Map, SdcId, Time};
use core::net::SocketAddr;
use followers::Followers;
use mirror::{GroupView, Mirror, Stats};
use seam::{BlockError, DialError, DialId, DiskId, Effect, Effects, Event, Note, Port};
use store::{Kept, Memory};
use wire::PeerFramer;
use wire::control::DeviceKind;

pub use device::Device;

/// What a shard is told at its start.
#[derive(Clone, Debug)]
pub struct SdsConfig {
    /// The server's name, the same for all its shards.
    pub name: String,
    /// Which shard of the server, from 0.
    pub shard: u32,
    /// Where the MDMs listen.
    pub mdm: Vec<SocketAddr>,
    /// Where this shard can be reached.
    pub address: SocketAddr,
    /// What the device is.
    pub kind: DeviceKind,
    /// Bytes of the device.
    pub capacity: u64,
    /// Drawn at process start.
    pub nonce: u64,
    /// Drawn when the store was made: for memory, at process start.
    pub store: u64,
    /// The process, for people.
    pub pid: u32,
    /// Bounds.
    pub limits: Limits,
}

/// Who is at the other end of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Who {
    /// Accepted; its hello has not come.
    Stranger,
    /// The MDM, dialled.
    Mdm,
    /// A device that I lead groups with, dialled.
    Follower(DeviceId),
    /// A device that leads groups with me; it dialled.
    Leader(DeviceId),
    /// A client; it dialled.
    Client(SdcId),
}

/// The newest connection from a client or a leader (rule R8).
#[derive(Clone, Copy, Debug)]
struct Session {
    incarnation: Incarnation,
    number: u64,
    link: Option<LinkId>,
}

/// The node of one shard.
pub struct Sds {
    config: SdsConfig,
    cluster: ClusterId,
    /// Until the MDM has given a name to this life: what an earlier one left.
    unnamed: Option<Device>,
    mirror: Option<Mirror<Device>>,
    me: DeviceId,
    incarnation: Incarnation,
    boot: Option<Time>,
    map: MapView,
    /// The map knows this life: its configurations count.
    named: bool,
    mdm: Dialer,
    mdm_next: usize,
    links: Map<LinkId, Who>,
    clients: BTreeMap<SdcId, Session>,
    leaders: BTreeMap<DeviceId, Session>,
    followers: Followers,
    /// By the map: who is needed for the groups that I lead, and who is to be brought back.
    wanted: (BTreeSet<DeviceId>, BTreeSet<DeviceId>),
    dials: BTreeMap<DialId, Option<DeviceId>>,
    next_dial: u64,
    next_session: u64,
    heartbeat_due: Time,
    proposal_due: Time,
    /// Superseded, or the device failed: does nothing any more.
    ended: bool,
}

impl Sds {
    /// A shard with an empty device.
    pub fn new(config: SdsConfig) -> Sds {
        let keeps = config.kind != DeviceKind::Null;
        let memory = Memory::new(DiskId(0), config.capacity, keeps);
        let device = match config.kind {
            DeviceKind::Durable => Device::Kept(Kept::new(memory)),
            _ => Device::Memory(memory),
        };
        Sds::recover(config, device)
    }

    /// A shard that finds its device as an earlier life left it.
    pub fn recover(config: SdsConfig, device: Device) -> Sds {
        assert!(!config.mdm.is_empty(), "at least one MDM address");
        let mdm = Dialer::new(config.mdm[0], &config.limits);
        Sds {
            cluster: ClusterId(0),
            unnamed: Some(device),
            mirror: None,
            me: DeviceId(0),
            incarnation: Incarnation(0),
            boot: None,
            map: MapView::default(),
            named: false,
            mdm,
            mdm_next: 0,
            links: Map::default(),
            clients: BTreeMap::new(),
            leaders: BTreeMap::new(),
            followers: Followers::default(),
            wanted: Default::default(),
            dials: BTreeMap::new(),
            next_dial: 0,
            next_session: 0,
            heartbeat_due: Time::ZERO,
            proposal_due: Time::ZERO,
            ended: false,
            config,
        }
    }

    /// What would be left if the process died now and the device kept its content.
    pub fn into_kept(self) -> Option<Device> {
        let device = match self.mirror {
            Some(mirror) => Some(mirror.into_journal()),
            None => self.unnamed,
        };
        match device {
            Some(Device::Kept(kept)) => Some(Device::Kept(kept.clone())),
            _ => None,
        }
    }

    /// This device's id; 0 before the MDM has given one.
    pub fn device(&self) -> DeviceId {
        self.me
    }

    /// The life that the MDM has given a number to; 0 before.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The map that this shard acts on.
    pub fn map(&self) -> &MapView {
        &self.map
    }

    /// True when this process must end.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// The groups that have a replica here, as seen from here.
    pub fn groups(&self) -> Vec<GroupView> {
        let mirror = self.mirror.iter();
        mirror.flat_map(|m| m.groups().into_iter().filter_map(|g| m.view(g))).collect()
    }

    /// The device's content.
    pub fn device_content(&self) -> &Device {
        match (&self.mirror, &self.unnamed) {
            (Some(mirror), _) => mirror.journal(),
            (None, Some(device)) => device,
            (None, None) => unreachable!("a shard is unnamed or has a mirror"),
        }
    }

    /// Operations in flight.
    pub fn in_flight(&self) -> usize {
        self.mirror.as_ref().map_or(0, |m| m.in_flight())
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        self.mirror.as_ref().map_or(Stats::default(), |m| m.stats())
    }

    /// Dials what is wanted and due.
    fn dial(&mut self, now: Time, out: &mut Effects) {
        if self.mdm.wake_at().is_some_and(|at| at <= now) {
            self.next_dial += 1;
            let dial = DialId(self.next_dial);
            self.dials.insert(dial, None);
            self.mdm.poll(now, dial, out);
        }
        let up = |device| self.map.devices.get(&device).is_some_and(|d| d.up);
        self.followers.due(now, up, |device, dialer| {
            self.next_dial += 1;
            let dial = DialId(self.next_dial);
            self.dials.insert(dial, Some(device));
            dialer.poll(now, dial, out);
        });
    }

    fn dial_failed(&mut self, now: Time, dial: DialId, why: DialError, out: &mut Effects) {
        match self.dials.remove(&dial) {
            Some(None) => {
                self.next_mdm(now, out);
            }
            Some(Some(device)) => {
                if let Some(follower) = self.followers.change(device) {
                    follower.dialer.lost(now, out.prng());
                    let news = why == DialError::Refused && !follower.refused;
                    follower.refused = why == DialError::Refused;
                    if news {
                        self.proposal_due = now;
                    }
                }
            }
            None => {}
        }
    }

    /// The MDM that was tried does not answer: the next one in the list.
    fn next_mdm(&mut self, now: Time, out: &mut Effects) {
        self.mdm.lost(now, out.prng());
        if self.config.mdm.len() > 1 {
            self.mdm_next = (self.mdm_next + 1) % self.config.mdm.len();
            self.mdm = Dialer::new(self.config.mdm[self.mdm_next], &self.config.limits);
            self.mdm.lost(now, out.prng());
        }
    }

    fn link_down(&mut self, now: Time, link: LinkId, out: &mut Effects) {
        match self.links.remove(&link) {
            Some(Who::Mdm) => {
                self.map.forget_pages();
                self.next_mdm(now, out);
            }
            Some(Who::Follower(device)) => {
                let follower =
                    self.followers.change(device).filter(|f| f.dialer.link() == Some(link));
                if let Some(follower) = follower {
                    let was_up = follower.dialer.up().is_some();
                    follower.dialer.lost(now, out.prng());
                    if was_up {
                        follower.dialer.hurry(); // a refused redial is proof of death
                    }
                    if let Some(mirror) = &mut self.mirror {
                        mirror.peer_down(now, device, out);
                    }
                }
            }
            Some(Who::Leader(device)) => forget_link(self.leaders.get_mut(&device), link),
            Some(Who::Client(sdc)) => forget_link(self.clients.get_mut(&sdc), link),
            Some(Who::Stranger) | None => {}
        }
    }

    /// A link of ours that turned out to be wrong: closed, and dialled again later.
    fn drop_link(&mut self, now: Time, link: LinkId, out: &mut Effects) {
        out.push(Effect::Close { link });
        self.link_down(now, link, out);
    }

    fn end(&mut self, note: Note, out: &mut Effects) {
        if !core::mem::replace(&mut self.ended, true) {
            out.note(note);
        }
    }
}

fn forget_link(session: Option<&mut Session>, link: LinkId) {
    if let Some(session) = session
        && session.link == Some(link)
    {
        session.link = None;
    }
}

impl seam::Node for Sds {
    type Framer = PeerFramer;

    fn framer(&mut self, _: Port) -> PeerFramer {
        PeerFramer::new(self.config.limits.frame_body)
    }

    fn on(&mut self, now: Time, event: Event<'_>, out: &mut Effects) {
        self.boot.get_or_insert(now);
        if self.ended {
            return;
        }
        match event {
            Event::Tick => {}
            Event::LinkUp { link, dial, .. } => self.link_up(now, link, dial, out),
            Event::LinkDown { link, .. } => self.link_down(now, link, out),
            Event::DialFailed { dial, why } => self.dial_failed(now, dial, why, out),
            Event::Frame { link, head, body } => self.frame(now, link, head, body, out),
            Event::DiskDone { op, result } => {
                if let Some(mirror) = &mut self.mirror {
                    mirror.disk_done(now, op, result, out);
                }
            }
            Event::Request { id, .. } => {
                out.push(Effect::Reply { id, result: Err(BlockError::NoSuchVolume) })
            }
        }
        if self.mirror.as_ref().is_some_and(|m| m.failed()) {
            self.end(Note::DeviceFailed, out);
        }
    }

    fn flush(&mut self, now: Time, out: &mut Effects) {
        self.boot.get_or_insert(now);
        if self.ended {
            return;
        }
        self.dial(now, out);
        if let Some(mirror) = &mut self.mirror {
            if mirror.wake_at().is_some_and(|at| at <= now) {
                mirror.tick(now, out);
            }
            if mirror.take_ready_to_admit() {
                self.proposal_due = now;
            }
        }
        self.heartbeat(now, out);
        self.propose(now, out);
        if let Some(mirror) = &mut self.mirror {
            mirror.flush(now, out);
            if mirror.failed() {
                self.end(Note::DeviceFailed, out);
            }
        }
    }

    fn wake_at(&self) -> Option<Time> {
        if self.ended {
            return None;
        }
        let mut wake = Time::earliest(self.mdm.wake_at(), self.followers.dial_at);
        if let Some(mirror) = &self.mirror {
            wake = Time::earliest(wake, mirror.wake_at());
            wake = Time::earliest(wake, Some(self.proposal_due));
        }
        if self.mdm.up().is_some() {
            wake = Time::earliest(wake, Some(self.heartbeat_due));
        }
        wake
    }
}
