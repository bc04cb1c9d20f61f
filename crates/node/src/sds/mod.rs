//! One shard of a data server: one device, its replicas, and its connections.
//!
//! This file has the state, the events and the clock; [`control`] talks to the MDM, [`serve`] to
//! clients and to the other devices, [`followers`] are those that are dialled. What is decided about data is decided in `mirror`.
//!
//! Invariants: nothing is served before the MDM has named this life of the process; a link's frames
//! count only while the link is in `links`; of each client, and of each other device, only the newest
//! connection is.

mod claimants;
mod control;
mod device;
mod evidence;
mod followers;
mod news;
mod opening;
mod serve;

use crate::finder::Finder;
use crate::mapview::MapView;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use base::{
    ClusterId, DeviceId, GroupId, Incarnation, Limits, LinkId, Map, MapVersion, Mutant, SdcId,
    Time, mutant,
};
use core::net::SocketAddr;
use followers::Followers;
use mirror::{GroupView, Grown, Mirror, ScrubStats, Standing, Stats};
use news::News;
use opening::Opening;
use seam::{BlockError, DialError, DialId, Effect, Effects, Event, Note, Port, Strangers};
use store::durable::{MountError, Tuning};
use wire::PeerFramer;
use wire::control::DeviceKind;

pub use device::Device;
pub use opening::Trouble;

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
    pub device: DeviceConfig,
    /// Where it belongs when it is new.
    pub home: Home,
    /// Drawn at process start. It names a store in memory, too: what lies there is gone with the process.
    pub nonce: u64,
    /// The process, for people.
    pub pid: u32,
    /// Bounds.
    pub limits: Limits,
}

/// Where a new server, and a new device, belong; by name, empty where there is no choice. What the MDM knows
/// already stays where it is.
#[derive(Clone, Debug, Default)]
pub struct Home {
    /// The server's protection domain.
    pub domain: String,
    /// The server's fault set.
    pub fault_set: String,
    /// The device's storage pool.
    pub pool: String,
}

/// What a shard keeps its data in: the driver's disk 0.
#[derive(Clone, Debug)]
pub enum DeviceConfig {
    /// Memory: empty at every start.
    Ram {
        /// Bytes.
        capacity: u64,
    },
    /// Nothing: keeps no data, for measuring.
    Null {
        /// Bytes that it pretends to have.
        capacity: u64,
    },
    /// A file or a block device: survives.
    Durable(DurableConfig),
}

impl DeviceConfig {
    /// What the MDM calls it.
    pub fn kind(&self) -> DeviceKind {
        match self {
            DeviceConfig::Ram { .. } => DeviceKind::Ram,
            DeviceConfig::Null { .. } => DeviceKind::Null,
            DeviceConfig::Durable(_) => DeviceKind::Durable,
        }
    }
}

/// A file or a block device.
#[derive(Clone, Debug)]
pub struct DurableConfig {
    /// Its size in bytes.
    pub bytes: u64,
    /// It may be formatted, if nothing of ours is on it. Say so only of what is known to be new: other
    /// people's data is not recognised.
    pub format: bool,
    /// If it is formatted: the device that was here before is gone for good, and this one takes its place.
    /// Without this, an empty device in the place of one that has data is refused: maybe it was not found.
    pub replace: bool,
    /// Drawn at random at every start; the device gets it when it is formatted.
    pub uuid: [u64; 2],
    /// What the store may use.
    pub tuning: Tuning,
}

/// Who is at the other end of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Who {
    /// Accepted; its hello has not come.
    Stranger,
    /// The MDM, dialled.
    Mdm,
    /// One that says that it leads, dialled.
    Claimant,
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
    /// Until it can be used, and the MDM has given a name to this life.
    opening: Opening,
    mirror: Option<Mirror<Device>>,
    me: DeviceId,
    incarnation: Incarnation,
    boot: Option<Time>,
    map: MapView,
    /// The map's version when the MDM had named this life.
    named_at: MapVersion,
    /// The map knows this life: its configurations count.
    named: bool,
    /// Groups that this device belongs to and of which every copy is gone.
    lost: BTreeSet<GroupId>,
    /// The version of the map with which an MDM that recovers was told what this shard knows. Until that MDM hands out
    /// a map no other one counts.
    told_at: Option<MapVersion>,
    /// Maps for servers that the MDM doesn't reach.
    news: News,
    mdm: Finder,
    /// The life of the MDM that welcomed it last.
    mdm_life: Incarnation,
    /// When it said something last.
    mdm_heard: Option<Time>,
    /// Others that say that they lead.
    claimants: Vec<claimants::Claimant>,
    /// Since when the MDM refuses it, as somebody who was not heard counts as up in its place.
    occupied: Option<Time>,
    links: Map<LinkId, Who>,
    /// Hellos that wait for a newer map.
    waiting: Vec<serve::Waiting>,
    clients: BTreeMap<SdcId, Session>,
    leaders: BTreeMap<DeviceId, Session>,
    followers: Followers,
    /// By the map: who is needed for the groups that I lead, and who is to be brought back.
    wanted: (BTreeSet<DeviceId>, BTreeSet<DeviceId>),
    dials: BTreeMap<DialId, Option<DeviceId>>,
    next_dial: u64,
    heartbeat_due: Time,
    proposal_due: Time,
    /// How often the device was asked to be scrubbed, as far as that is done, or was asked of an earlier life.
    scrub: u32,
    /// Asked to end in order: serves nobody any more, and leaves an empty log behind.
    stopping: bool,
    /// Superseded, or the device failed, or stopped in order: does nothing any more.
    ended: bool,
    trouble: Option<Box<Trouble>>,
}

impl Sds {
    /// A shard that has not looked at its device yet.
    pub fn new(config: SdsConfig) -> Sds {
        let mdm = Finder::new(&config.mdm, &config.limits);
        Sds {
            cluster: ClusterId(0),
            opening: Opening::new(&config.device),
            mirror: None,
            me: DeviceId(0),
            incarnation: Incarnation(0),
            boot: None,
            map: MapView::default(),
            named_at: MapVersion(0),
            named: false,
            lost: BTreeSet::new(),
            told_at: None,
            news: News::default(),
            mdm,
            mdm_life: Incarnation(0),
            mdm_heard: None,
            claimants: Vec::new(),
            occupied: None,
            links: Map::default(),
            waiting: Vec::new(),
            clients: BTreeMap::new(),
            leaders: BTreeMap::new(),
            followers: Followers::default(),
            wanted: Default::default(),
            dials: BTreeMap::new(),
            next_dial: 0,
            heartbeat_due: Time::ZERO,
            proposal_due: Time::ZERO,
            scrub: 0,
            stopping: false,
            ended: false,
            trouble: None,
            config,
        }
    }

    /// This device's id; 0 before the MDM has given one.
    pub fn id(&self) -> DeviceId {
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

    /// How long the lists of the replicas here are.
    pub fn grown(&self) -> Option<Grown> {
        self.mirror.as_ref().map(|m| m.grown())
    }

    /// How long they may be.
    pub fn may_grow(&self) -> Grown {
        Mirror::<Device>::may_grow(&self.config.limits)
    }

    /// What the replica of a group here knows of its content.
    pub fn standing(&self, group: GroupId) -> Option<Standing> {
        self.mirror.as_ref()?.standing(group)
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

    /// The device, once it is open.
    pub fn device(&self) -> Option<&Device> {
        match &self.mirror {
            Some(mirror) => Some(mirror.journal()),
            None => self.opening.ready(),
        }
    }

    /// Why this process has ended, if something is to be done about it.
    pub fn trouble(&self) -> Option<&Trouble> {
        self.trouble.as_deref()
    }

    /// Its device, or this machine's memory, can't be relied on.
    pub fn failed(&self) -> bool {
        self.mirror.as_ref().is_some_and(|m| m.failed())
    }

    /// Operations in flight.
    pub fn in_flight(&self) -> usize {
        self.mirror.as_ref().map_or(0, |m| m.in_flight())
    }

    /// What the scrubber has done, if the device is scrubbed.
    pub fn scrub_stats(&self) -> Option<ScrubStats> {
        self.mirror.as_ref().and_then(|m| m.scrub_stats())
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        self.mirror.as_ref().map_or(Stats::default(), |m| m.stats())
    }

    /// What came of opening the device.
    fn opened(&mut self, now: Time, opened: Result<(), MountError>, out: &mut Effects) {
        if let Err(error) = opened {
            return self.give_up(Trouble::Device(error), out);
        }
        if let Some(durable) = self.opening.ready().and_then(Device::durable) {
            self.cluster = durable.identity().cluster;
        }
        if self.me != DeviceId(0) {
            self.serve(now, out);
        }
    }

    /// Ends because of something that people have to mend.
    fn give_up(&mut self, trouble: Trouble, out: &mut Effects) {
        self.trouble = Some(Box::new(trouble));
        self.end(Note::DeviceRefused, out);
    }

    /// True when there is something to tell the MDM.
    fn may_register(&self) -> bool {
        self.mirror.is_some() || self.opening.known().is_some()
    }

    /// Lets running jobs end and the log become empty, then ends.
    fn wind_up(&mut self, now: Time, out: &mut Effects) {
        let Some(mirror) = &mut self.mirror else { return self.end(Note::Stopped, out) };
        mirror.flush(now, out);
        let over = match mirror.journal_mut() {
            Device::Memory(_) => true,
            Device::Durable(durable) if durable.failed().is_some() => true,
            Device::Durable(durable) if durable.has_jobs() => false,
            Device::Durable(durable) => {
                let checkpoint = durable.is_checkpointing();
                let done = !checkpoint && durable.is_log_empty();
                if checkpoint {
                    durable.hurry_checkpoint();
                } else if !done {
                    durable.request_checkpoint();
                }
                seam::Journal::flush(&mut **durable, out);
                done
            }
        };
        if over {
            self.end(Note::Stopped, out);
        }
    }

    /// Dials what is wanted and due.
    fn dial(&mut self, now: Time, out: &mut Effects) {
        let mute = self.followers.mute(now).into_iter().chain(self.mdm.dialer().mute(now));
        for link in mute.collect::<Vec<_>>() {
            out.note(Note::Refused { link, why: crate::links::MUTE });
            self.drop_link(now, link, out);
        }
        if self.may_register() && self.mdm.dialer().wake_at().is_some_and(|at| at <= now) {
            self.next_dial += 1;
            let dial = DialId(self.next_dial);
            self.dials.insert(dial, None);
            self.mdm.dialer_mut().poll(now, dial, out);
        }
        let there = |device, address| {
            let known = self.map.devices.get(&device);
            known.is_some_and(|d| d.up && d.address == Some(address))
        };
        self.followers.due(now, there, |device, dialer| {
            self.next_dial += 1;
            let dial = DialId(self.next_dial);
            self.dials.insert(dial, Some(device));
            dialer.poll(now, dial, out);
        });
    }

    fn dial_failed(&mut self, now: Time, dial: DialId, why: DialError, out: &mut Effects) {
        match self.dials.remove(&dial) {
            Some(None) => self.mdm.lost(now, out.prng()),
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
            None => self.claimant_failed(dial),
        }
    }

    fn link_down(&mut self, now: Time, link: LinkId, out: &mut Effects) {
        match self.links.remove(&link) {
            Some(Who::Mdm) => {
                self.map.forget_pages();
                self.news.forget_pages();
                self.mdm.lost(now, out.prng());
            }
            Some(Who::Claimant) => self.claimant_lost(link),
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
            Some(Who::Client(sdc)) => self.client_lost(now, sdc, link, out),
            Some(Who::Stranger) => self.waiting.retain(|w| !w.is_on(link)),
            None => {}
        }
    }

    /// A client's link is gone. If it was the newest, what was asked on it and is not begun is not done: the
    /// client asks again for what it still wants (rule R16).
    fn client_lost(&mut self, now: Time, sdc: SdcId, link: LinkId, out: &mut Effects) {
        let newest = self.clients.get(&sdc).is_some_and(|s| s.link == Some(link));
        if newest
            && !mutant::on(Mutant::NoSession)
            && let Some(mirror) = &mut self.mirror
        {
            mirror.session_over(now, sdc, out);
        }
        forget_link(self.clients.get_mut(&sdc), link);
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

    fn strangers(&self, _: Port) -> Option<Strangers> {
        Some(crate::links::strangers(&self.config.limits))
    }

    fn on(&mut self, now: Time, event: Event<'_>, out: &mut Effects) {
        self.boot.get_or_insert(now);
        if self.ended || (self.stopping && !matches!(event, Event::DiskDone { .. })) {
            return;
        }
        match event {
            Event::Tick => {}
            Event::LinkUp { link, dial, .. } => self.link_up(now, link, dial, out),
            Event::LinkDown { link, .. } => self.link_down(now, link, out),
            Event::DialFailed { dial, why } => self.dial_failed(now, dial, why, out),
            Event::Frame { link, head, body } => self.frame(now, link, head, body, out),
            Event::DiskDone { op, result } => match &mut self.mirror {
                Some(mirror) => mirror.disk_done(now, op, result, out),
                None => {
                    let opened = self.opening.disk_done(op, result, out);
                    self.opened(now, opened, out);
                }
            },
            Event::Request { id, .. } => {
                out.push(Effect::Reply { id, result: Err(BlockError::NoSuchVolume) })
            }
        }
        if self.failed() {
            self.end(Note::DeviceFailed, out);
        }
    }

    fn flush(&mut self, now: Time, out: &mut Effects) {
        self.boot.get_or_insert(now);
        if self.ended {
            return;
        }
        if self.stopping {
            return self.wind_up(now, out);
        }
        if self.mirror.is_none() {
            let opened = self.opening.start(out);
            self.opened(now, opened, out);
        }
        self.try_claimants(now, out);
        self.dial(now, out);
        if let Some(mirror) = &mut self.mirror {
            if mirror.wake_at().is_some_and(|at| at <= now) {
                mirror.tick(now, out);
            }
            if mirror.take_ready_to_admit() {
                self.proposal_due = now;
            }
        }
        if self.waiting.first().is_some_and(|w| w.until <= now) {
            self.greet_waiting(now, out);
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

    /// Nobody is served any more; everything is in order when the device has an empty log.
    fn stop(&mut self) {
        self.stopping = true;
    }

    fn is_stopped(&self) -> bool {
        self.ended
    }

    fn wake_at(&self) -> Option<Time> {
        if self.ended || self.stopping {
            return None;
        }
        let mdm = self.mdm.dialer().wake_at().filter(|_| self.may_register());
        let mut wake = Time::earliest(mdm, self.followers.dial_at);
        wake = Time::earliest(wake, self.waiting.first().map(|w| w.until));
        let claimants = self.claimants.iter().filter_map(|c| c.wake_at()).min();
        wake = Time::earliest(wake, claimants.filter(|_| self.may_register()));
        if let Some(mirror) = &self.mirror {
            wake = Time::earliest(wake, mirror.wake_at());
            wake = Time::earliest(wake, Some(self.proposal_due));
        }
        if self.mdm.dialer().up().is_some() {
            wake = Time::earliest(wake, Some(self.heartbeat_due));
        }
        wake
    }
}
