//! One shard of a data server (SDS): one device, its replicas, and its links.
//!
//! This file has the state, the events and the clock. [`control`] talks to the MDM, [`serve`] to
//! clients and to other devices. All decisions about data are made in `mirror`.
//!
//! Invariants: the shard serves nothing before the MDM has given this process an incarnation; the
//! frames of a link count only while the link is in `links`; of the links from each client, and
//! from each other device, only the newest one is in `links`.

mod claimants;
mod control;
mod device;
mod evidence;
mod lengths;
mod news;
mod opening;
mod serve;
mod sessions;

use crate::link::{Directory, MdmFinder};
use crate::mapview::MapView;
use crate::refusals::Reason;
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;
use base::{
    ClusterId, DeviceId, Dialect, GroupId, Incarnation, Limits, LinkId, Map, Mutant, SdcId, Time,
    mutant,
};
use claimants::Claimants;
use core::net::SocketAddr;
use mirror::{GroupView, Mirror};
use news::News;
use opening::Opening;
use seam::{BlockError, DialError, DialId, Effect, Effects, Event, Note, Port, Strangers};
use sessions::Sessions;
use store::durable::{MountError, Tuning};
use wire::PeerFramer;
use wire::control::DeviceKind;

pub use device::Device;
pub use lengths::ListLengths;
pub use opening::Trouble;

/// Settings with which a shard starts.
#[derive(Clone, Debug)]
pub struct SdsConfig {
    /// The server's name, the same for all its shards.
    pub name: String,
    /// Index of the shard in the server, from 0.
    pub shard: u32,
    /// The addresses of the MDMs.
    pub mdm: Vec<SocketAddr>,
    /// The address at which this shard can be reached.
    pub address: SocketAddr,
    /// The kind of its device, and the settings for that kind.
    pub device: DeviceConfig,
    /// Where a new device belongs.
    pub home: Home,
    /// Drawn at random at process start. It also identifies a store in memory, whose content ends
    /// with the process.
    pub nonce: u64,
    /// The process id, for people.
    pub pid: u32,
    /// Its limits.
    pub limits: Limits,
    /// The capabilities of its build.
    pub dialect: Dialect,
}

/// Where a new server and a new device belong, by name; empty where there is no choice. Servers and
/// devices that the MDM knows stay where they are.
#[derive(Clone, Debug, Default)]
pub struct Home {
    /// The server's protection domain.
    pub domain: String,
    /// The server's fault set.
    pub fault_set: String,
    /// The device's storage pool.
    pub pool: String,
}

/// The device in which a shard keeps its data: disk 0 of the driver.
#[derive(Clone, Debug)]
pub enum DeviceConfig {
    /// Memory: empty at every start.
    Ram {
        /// Its size in bytes.
        capacity: u64,
    },
    /// NULL: stores no data, for measurements.
    Null {
        /// The size in bytes that it claims to have.
        capacity: u64,
    },
    /// A file or a block device: survives its process.
    Durable(DurableConfig),
}

impl DeviceConfig {
    /// Returns the device kind that the MDM is told.
    pub fn kind(&self) -> DeviceKind {
        match self {
            DeviceConfig::Ram { .. } => DeviceKind::Ram,
            DeviceConfig::Null { .. } => DeviceKind::Null,
            DeviceConfig::Durable(_) => DeviceKind::Durable,
        }
    }
}

/// Settings for a file or a block device.
#[derive(Clone, Debug)]
pub struct DurableConfig {
    /// Its size in bytes.
    pub bytes: u64,
    /// It may be formatted if it has no format of ours. Set this only for a device that is known to
    /// be new: data of other programs is not recognised.
    pub format: bool,
    /// If the device is formatted, it replaces the device that was here before, whose data is given
    /// up. Without this, the MDM refuses an empty device in the place of one that has data: the
    /// right device may just not have been found.
    pub replace: bool,
    /// Drawn at random at every start. A format gives it to the device.
    pub uuid: [u64; 2],
    /// Limits of the store.
    pub tuning: Tuning,
}

/// The peer of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PeerRole {
    /// A peer that dialled, and whose hello has not been accepted yet.
    Stranger,
    /// The MDM. We dialled it.
    Mdm,
    /// An MDM that says that it leads. We dialled it.
    Claimant,
    /// A secondary or joiner in groups of which this device is the primary. We dialled it.
    Follower(DeviceId),
    /// A device that is the primary of groups with a replica here. It dialled us, and speaks this
    /// protocol version.
    Leader(DeviceId, u16),
    /// A client. It dialled us, and speaks this protocol version.
    Client(SdcId, u16),
}

/// A primary's knowledge about a device that it dials.
#[derive(Debug, Default)]
struct Follower {
    /// The last dial was refused.
    refused: bool,
}

/// The node of one shard.
// Large: the handlers of each frame kind and event, and the lengths and bounds of lists for judges.
pub struct Sds {
    config: SdsConfig,
    cluster: ClusterId,
    /// The device, until it can be used and the MDM has given this process an incarnation.
    opening: Opening,
    mirror: Option<Mirror<Device>>,
    me: DeviceId,
    incarnation: Incarnation,
    map: MapView,
    /// True once the map has this incarnation. Only then do its configurations count.
    named: bool,
    /// Groups with a replica here of which every copy is lost.
    lost: BTreeSet<GroupId>,
    /// Maps for servers that the MDM does not reach.
    news: News,
    mdm: MdmLink,
    links: Map<LinkId, PeerRole>,
    sessions: Sessions,
    /// The devices that this one dials: the secondaries and joiners in groups of which it is the
    /// primary.
    followers: Directory<DeviceId, Follower>,
    /// What the map says of the groups whose primary this device is: the devices that they need,
    /// and the devices that should rejoin them.
    wanted: (BTreeSet<DeviceId>, BTreeSet<DeviceId>),
    next_dial: u64,
    heartbeat_due: Time,
    proposal_due: Time,
    /// Number of ordered scrubs that this shard has begun. Scrubs that were ordered before its
    /// start count as begun.
    scrub: u32,
    end: End,
}

/// The end of a shard. After `stopping` it serves nothing more, and after `ended` it does nothing.
#[derive(Default)]
struct End {
    /// It was asked to stop: it ends when its log is empty.
    stopping: bool,
    /// It was superseded, its device failed, or it has stopped.
    ended: bool,
    /// The reason, if an operator has to fix something.
    trouble: Option<Box<Trouble>>,
}

/// The link to the MDM that is followed, and the MDMs that may take its place.
struct MdmLink {
    finder: MdmFinder,
    /// The number that the MDM drew for its leadership, from the last welcome.
    life: Incarnation,
    /// When the MDM sent a frame last.
    heard: Option<Time>,
    /// Other MDMs that say that they lead.
    claimants: Claimants,
    /// The time since which the MDM has refused this shard because a device in its place counts as
    /// up, and the MDM has not heard that device.
    occupied: Option<Time>,
    /// How often the MDM was asked for its map.
    pulls: u64,
}

impl Sds {
    /// Creates a shard that has not read its device yet.
    pub fn new(config: SdsConfig) -> Sds {
        let mdm = MdmLink {
            finder: MdmFinder::new(&config.mdm, &config.limits),
            life: Incarnation(0),
            heard: None,
            claimants: Claimants::default(),
            occupied: None,
            pulls: 0,
        };
        Sds {
            cluster: ClusterId(0),
            opening: Opening::new(&config.device, config.dialect.level_max),
            mirror: None,
            me: DeviceId(0),
            incarnation: Incarnation(0),
            map: MapView::default(),
            named: false,
            lost: BTreeSet::new(),
            news: News::default(),
            mdm,
            links: Map::default(),
            sessions: Sessions::default(),
            followers: Directory::default(),
            wanted: Default::default(),
            next_dial: 1,
            heartbeat_due: Time::ZERO,
            proposal_due: Time::ZERO,
            scrub: 0,
            end: End::default(),
            config,
        }
    }

    /// Returns this device's id; 0 before the MDM has assigned one.
    pub fn id(&self) -> DeviceId {
        self.me
    }

    /// Returns the incarnation of this process; 0 before the MDM has assigned one.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Returns the map that this shard acts on.
    pub fn map(&self) -> &MapView {
        &self.map
    }

    /// Returns the replicas here, once the shard serves.
    pub fn mirror(&self) -> Option<&Mirror<Device>> {
        self.mirror.as_ref()
    }

    /// True if this process must end.
    pub fn ended(&self) -> bool {
        self.end.ended
    }

    /// Returns this shard's view of the groups that have a replica here.
    pub fn groups(&self) -> Vec<GroupView> {
        let mirror = self.mirror.iter();
        mirror
            .flat_map(|m| m.replicas().groups().into_iter().filter_map(|g| m.replicas().view(g)))
            .collect()
    }

    /// Returns the device, as soon as it is open.
    pub fn device(&self) -> Option<&Device> {
        match &self.mirror {
            Some(mirror) => Some(mirror.store()),
            None => self.opening.ready(),
        }
    }

    /// Returns why this shard has ended, if that needs an operator.
    pub fn trouble(&self) -> Option<&Trouble> {
        self.end.trouble.as_deref()
    }

    /// True if its device, or the memory of this machine, is not reliable.
    pub fn failed(&self) -> bool {
        self.mirror.as_ref().is_some_and(|m| m.failed())
    }

    /// Handles a result of opening the device.
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

    /// Ends for a reason that an operator has to fix.
    fn give_up(&mut self, trouble: Trouble, out: &mut Effects) {
        self.end.trouble = Some(Box::new(trouble));
        self.end(Note::DeviceRefused, out);
    }

    /// True if enough is known about the device to register it with the MDM.
    fn may_register(&self) -> bool {
        self.mirror.is_some() || self.opening.known().is_some()
    }

    /// Waits until running jobs have ended and the log is empty, and then ends.
    fn shut_down(&mut self, now: Time, out: &mut Effects) {
        let Some(mirror) = &mut self.mirror else { return self.end(Note::Stopped, out) };
        mirror.tell_news(out);
        mirror.flush(now, out);
        let over = match mirror.store_mut() {
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
                seam::UnitStore::flush(&mut **durable, out);
                done
            }
        };
        if over {
            self.end(Note::Stopped, out);
        }
    }

    /// Dials the MDM and the devices that are due, and closes links whose peers do not answer.
    fn dial(&mut self, now: Time, out: &mut Effects) {
        let mute = self.followers.mute(now).into_iter().chain(self.mdm.finder.dialer().mute(now));
        for link in mute.collect::<Vec<_>>() {
            self.refuse(now, link, crate::refusals::MUTE, out);
        }
        if self.may_register() {
            self.mdm.finder.poll(now, &mut self.next_dial, out);
        }
        let there = |device, address| {
            let known = self.map.devices.get(&device);
            known.is_some_and(|d| d.up && d.address == Some(address))
        };
        self.followers.dial(now, &mut self.next_dial, there, out);
    }

    fn dial_failed(&mut self, now: Time, dial: DialId, why: DialError, out: &mut Effects) {
        if self.mdm.finder.dialled(dial) {
            return self.mdm.finder.lost(now, out.prng());
        }
        let Some((device, counts)) = self.followers.dialled(dial) else {
            return self.mdm.claimants.failed(dial);
        };
        if let Some(follower) = self.followers.change(device).filter(|_| counts) {
            follower.lost(now, out.prng());
            let refused = why == DialError::Refused;
            let before = follower.about.refused;
            follower.about.refused = refused || (before && mutant::on(Mutant::KeepRefusal));
            if refused && !before {
                self.proposal_due = now;
            }
        }
    }

    fn link_down(&mut self, now: Time, link: LinkId, out: &mut Effects) {
        match self.links.remove(&link) {
            Some(PeerRole::Mdm) => {
                self.map.forget_pages();
                self.news.forget_pages();
                self.mdm.finder.lost(now, out.prng());
            }
            Some(PeerRole::Claimant) => drop(self.mdm.claimants.take(link)),
            Some(PeerRole::Follower(device)) => {
                let follower = self.followers.change(device).filter(|f| f.link() == Some(link));
                if let Some(follower) = follower {
                    let was_up = follower.up().is_some();
                    follower.lost(now, out.prng());
                    if was_up {
                        follower.hurry(); // a redial that is refused proves its death
                    }
                    if let Some(mirror) = &mut self.mirror {
                        mirror.peer_down(now, device, out);
                    }
                }
            }
            Some(PeerRole::Leader(device, _)) => self.sessions.leader_lost(device, link),
            // If this was the client's newest link, operations that came over it and have not begun
            // are dropped: the client sends again what it still needs (rule R16).
            Some(PeerRole::Client(sdc, _)) => {
                if self.sessions.client_lost(sdc, link)
                    && !mutant::on(Mutant::NoSession)
                    && let Some(mirror) = &mut self.mirror
                {
                    mirror.session_over(now, sdc, out);
                }
            }
            Some(PeerRole::Stranger) => self.sessions.forget(link),
            None => {}
        }
    }

    /// Closes a link that we dialled and that turned out to be wrong. It is dialled again later.
    fn drop_link(&mut self, now: Time, link: LinkId, out: &mut Effects) {
        out.push(Effect::Close { link });
        self.link_down(now, link, out);
    }

    /// Closes a link for the reason `why`. If this process dialled it, it is dialled again later.
    #[cold]
    fn refuse(&mut self, now: Time, link: LinkId, why: impl Into<Reason>, out: &mut Effects) {
        out.note(why.into().note(link));
        self.drop_link(now, link, out);
    }

    fn end(&mut self, note: Note, out: &mut Effects) {
        if !core::mem::replace(&mut self.end.ended, true) {
            out.note(note);
        }
    }
}

impl seam::Node for Sds {
    type Framer = PeerFramer;

    fn framer(&mut self, _: Port) -> PeerFramer {
        PeerFramer::speaking(&self.config.dialect, self.config.limits.frame_body)
    }

    fn strangers(&self, _: Port) -> Option<Strangers> {
        Some(crate::link::strangers(&self.config.limits))
    }

    fn on(&mut self, now: Time, event: Event<'_>, out: &mut Effects) {
        self.opening.boot.get_or_insert(now);
        if self.end.ended || (self.end.stopping && !matches!(event, Event::DiskDone { .. })) {
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
            Event::Withdraw { .. } => {}
        }
        if self.failed() {
            self.end(Note::DeviceFailed, out);
        }
    }

    fn flush(&mut self, now: Time, out: &mut Effects) {
        self.opening.boot.get_or_insert(now);
        if self.end.ended {
            return;
        }
        if self.end.stopping {
            return self.shut_down(now, out);
        }
        if self.mirror.is_none() {
            let opened = self.opening.start(out);
            self.opened(now, opened, out);
        }
        if !self.mdm.claimants.is_empty() {
            self.try_claimants(now, out);
        }
        let due = |at: Option<Time>| at.is_some_and(|at| at <= now);
        if due(self.followers.wake_at()) || due(self.mdm.finder.dialer().wake_at()) {
            self.dial(now, out);
        }
        if let Some(mirror) = &mut self.mirror {
            if mirror.is_due(now) {
                mirror.tick(now, out);
            }
            if mirror.take_ready_to_admit() {
                self.proposal_due = now;
            }
        }
        if due(self.sessions.wake_at()) {
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

    /// Stops serving. The shard ends when the log of its device is empty.
    fn stop(&mut self) {
        self.end.stopping = true;
    }

    fn is_stopped(&self) -> bool {
        self.end.ended
    }

    fn wake_at(&self) -> Option<Time> {
        if self.end.ended || self.end.stopping {
            return None;
        }
        let mdm = self.mdm.finder.dialer().wake_at().filter(|_| self.may_register());
        let mut wake = Time::earliest(mdm, self.followers.wake_at());
        wake = Time::earliest(wake, self.sessions.wake_at());
        let claimants = self.mdm.claimants.wake_at();
        wake = Time::earliest(wake, claimants.filter(|_| self.may_register()));
        if let Some(mirror) = &self.mirror {
            wake = Time::earliest(wake, mirror.wake_at());
            wake = Time::earliest(wake, Some(self.proposal_due));
        }
        if self.mdm.finder.dialer().up().is_some() {
            wake = Time::earliest(wake, Some(self.heartbeat_due));
        }
        wake
    }
}
