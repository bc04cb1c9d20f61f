//! The MDM as a node. It connects the links, the disk of the log, the consensus, the failure
//! detector and the state.
//!
//! How a request takes effect: [`intake`] turns a frame or a verdict into an input. `flush` turns
//! inputs into commands against the newest state, applies them, and proposes them as one entry.
//! When the entry is committed, [`outlet`] sends what depended on it: answers, map pages, welcomes.
//!
//! One of the cluster's MDMs leads ([`office`]), and only the leader works on requests. The others
//! apply what was committed, and tell peers where the leader is. [`peers`]: how MDMs talk to each
//! other. [`memory`]: what is written, and when. [`moved`]: what a sole MDM asks first if its log
//! names another address. [`recovery`]: how one MDM continues when the others are lost.
//!
//! Invariants:
//! - Nothing uncommitted leaves: between proposal and commit no answer and no page is sent. At most
//!   one entry of commands is in flight; while there is none, the whole state is committed.
//! - A leader that loses its leadership forgets what it had proposed, and all that it had heard.
//! - An order that changed nothing is answered after a majority has confirmed that this MDM still
//!   leads.
//! - Hellos are not answered before the log is read, nor while this MDM may be about to lead. One
//!   hello per link is kept.
//! - After the log failed, nothing changes any more. The only voter answers orders with the error,
//!   and turns new servers and clients away; those that are connected continue with the map that
//!   they have. If others vote, too, an MDM closes those links, and refuses every hello.
//! - A bad frame ends its link and nothing else. Queues are bounded. If an input does not fit, its
//!   sender repeats it (proposals, heartbeats, registrations) or is told to try again (orders).
//!
//! The MDM does not push maps to peers that did not ask, except new volumes to clients. It keeps no
//! connection of its own to an SDS: its dials only find out whether a process listens, and name the
//! MDM's incarnation, so that a server whose link still leads to an earlier one reconnects at once.

mod cut_off;
mod gather;
mod greet;
mod grown;
mod intake;
mod levels;
mod members;
mod memory;
mod moved;
mod office;
mod outlet;
mod peers;
mod recovery;
mod turned_away;

use crate::link::handshake::send_hello;
use crate::link::{self, hello};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use base::mutant::{self, Mutant};
use base::{ClusterId, DeviceId, Dialect, Incarnation, Limits, LinkId, MapVersion, SdcId, Time};
use consensus::{Consensus, Image};
use core::net::SocketAddr;
use mdm::detector::{Detector, Verdict};
use mdm::healer::Healer;
pub use mdm::log::{AREAS as LOG_AREAS, IMAGE_MAX as LOG_IMAGE_MAX, image_len as log_image_len};
use mdm::log::{Log, LogError, Why};
use mdm::observed::Observed;
use mdm::reach::Reach;
use mdm::recovery::{Word, Words};
use mdm::slowness::Slowness;
use mdm::state::State;
use seam::{
    BlockError, DialError, DialId, DiskError, Effect, Effects, Event, Node, Note, Port, Strangers,
};
use wire::control::{BuildInfo, Hello, Intent, Role};
use wire::{HANDSHAKE_VERSION, PeerFramer, PeerLink};

use gather::Gathered;
pub use grown::ListLengths;
use intake::Input;
use moved::Moved;
use office::Office;
use outlet::{Answer, Pages};
use peers::Peers;

/// The most links of members that the MDM keeps open. Each device and each client has one. Further
/// ones belong to incarnations that are over.
const LINKS: usize = 8192;
/// The most links for orders that it keeps open.
const ADMINS: usize = 512;
/// The most inputs that wait for the disk.
const INPUTS: usize = 4096;
/// The most inputs of one link that wait for the disk.
const INPUTS_PER_LINK: u32 = 16;

/// The settings of an MDM.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its name.
    pub name: String,
    /// The address at which it listens.
    pub address: SocketAddr,
    /// With an empty log: true to wait for a cluster that adds this MDM, false to start a cluster.
    pub join: bool,
    /// The id of the cluster that its log must belong to, or that a new log gets. `None`: any log
    /// is accepted, and the id of a new cluster is drawn at random.
    pub cluster: Option<ClusterId>,
    /// Its limits.
    pub limits: Limits,
    /// The id of its process, for people.
    pub pid: u32,
    /// What its build can do.
    pub dialect: Dialect,
}

/// The peer at the other end of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Peer {
    /// It has not been welcomed.
    Stranger,
    /// It has been welcomed in this role.
    Guest(Role),
    /// This incarnation of a device.
    Device(DeviceId, Incarnation),
    /// This incarnation of a client.
    Sdc(SdcId, Incarnation),
    /// Another MDM.
    Mdm(u32),
}

/// A request for map changes.
#[derive(Clone, Copy, Debug)]
struct Pull {
    have: MapVersion,
    op: u64,
    wait: bool,
}

#[derive(Debug)]
struct Link {
    /// Index of the link. A process's later link has a higher one.
    opened: u64,
    peer: Peer,
    /// The protocol version of its frames, once its hello was accepted.
    version: u16,
    /// The build that another MDM has reported.
    build: Option<BuildInfo>,
    /// Kept until it can be answered.
    hello: Option<Hello>,
    parked: Option<Pull>,
    /// The newest map that the peer said it has.
    have: MapVersion,
    /// Number of its inputs that wait.
    queued: u32,
    /// The parts so far of a message of several parts.
    parts: Vec<u8>,
    /// The secret that another MDM expects in front of each message to it.
    secret: u64,
    /// The reports of this device so far, during a recovery.
    word: Option<Word>,
}

/// The link on which the current incarnation of a process registered.
#[derive(Clone, Copy, Debug)]
struct Session {
    link: LinkId,
    /// The `opened` of the link on which its incarnation first registered. 0 if it registered with
    /// an earlier leader: then nothing is known about which of two processes came first.
    began: u64,
}

/// Why and how this MDM stopped.
#[derive(Debug)]
struct Stop {
    why: String,
    /// It was the only one that votes, so no other one leads now.
    alone: bool,
}

/// The MDM.
pub struct Mdm {
    config: Config,
    log: Log,
    /// The state after the last applied entry, or after the proposed one.
    state: State,
    /// Running checksum of the committed entries.
    chain: u32,
    /// `None` until the log was read and this MDM belongs to a cluster, and after the log failed.
    consensus: Option<Consensus>,
    /// The image that it starts with as soon as that is durable.
    beginning: Option<Image>,
    /// The question whether another MDM has its log, while it is open.
    moved: Option<Moved>,
    /// Its leadership; `None` while it does not lead.
    office: Option<Office>,
    /// When the consensus is to be ticked next.
    tick_at: Time,
    peers: Peers,
    /// True while it leads and the cluster is formed.
    ready: bool,
    /// The result of `is_undecided` at the last flush.
    undecided: bool,
    /// This MDM's incarnation, drawn at random when it begins to serve.
    life: Incarnation,
    failed: Option<Stop>,
    detector: Detector,
    healer: Healer,
    slowness: Slowness,
    reach: Reach,
    /// True if the driver was told that rebuilds are held back, because many servers are away.
    rebuilds_held: bool,
    turned_away: turned_away::TurnedAways,
    /// Groups of volumes that are lost, and groups that wait for a device, as last noted.
    unserved: (u32, u32),
    /// When an answer that waits for a fence may leave, or has to.
    fence_due: Option<Time>,
    /// True if the driver was told that silent servers are not declared lost: too many are silent.
    held_back: bool,
    observed: Observed,
    links: BTreeMap<LinkId, Link>,
    /// Links for orders, the oldest first.
    admins: VecDeque<LinkId>,
    devices: BTreeMap<DeviceId, Session>,
    sdcs: BTreeMap<SdcId, Session>,
    inputs: VecDeque<Input>,
    /// Verdicts that wait for those on the same server's other devices.
    gathered: Gathered,
    /// Devices that are down in the map and sent a heartbeat.
    revived: BTreeSet<DeviceId>,
    answers: Vec<Answer>,
    /// Numbers of questions to the consensus whether this MDM still leads: the last one asked, and
    /// the last one answered.
    questions: (u64, u64),
    pages: Pages,
    /// The reports of devices in their current incarnations, while groups are in doubt.
    words: Words,
    /// When the reports are evaluated next, and until when the recovery waits for devices that have
    /// not reported.
    recovery_due: (Time, Time),
    /// The state's index, and whether the recovery was patient, when the reports last led to no
    /// command.
    nothing_follows: Option<(u64, bool)>,
    opened: u64,
    dials: u64,
    ops: u64,
}

impl Mdm {
    /// Creates an MDM, which first reads its log.
    pub fn new(config: Config) -> Mdm {
        Mdm {
            log: Log::new(config.limits.mdm_log),
            detector: Detector::new(&config.limits),
            healer: Healer::default(),
            slowness: Slowness::default(),
            reach: Reach::default(),
            rebuilds_held: false,
            turned_away: Default::default(),
            unserved: (0, 0),
            fence_due: None,
            held_back: false,
            config,
            state: State::new(),
            chain: 0,
            consensus: None,
            beginning: None,
            moved: None,
            office: None,
            tick_at: Time::ZERO,
            peers: Peers::default(),
            ready: false,
            undecided: true,
            life: Incarnation(0),
            failed: None,
            observed: Observed::default(),
            links: BTreeMap::new(),
            admins: VecDeque::new(),
            devices: BTreeMap::new(),
            sdcs: BTreeMap::new(),
            inputs: VecDeque::new(),
            gathered: Gathered::default(),
            revived: BTreeSet::new(),
            answers: Vec::new(),
            questions: (0, 0),
            pages: Pages::default(),
            words: Words::new(),
            recovery_due: (Time::ZERO, Time::ZERO),
            nothing_follows: None,
            opened: 0,
            dials: 0,
            ops: 0,
        }
    }

    /// Returns what it has heard from devices and clients.
    pub fn observed(&self) -> &Observed {
        &self.observed
    }

    /// Returns the state, for oracles. If [`Mdm::is_settled`], all of it is committed.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Returns the consensus, for oracles.
    pub fn consensus(&self) -> Option<&Consensus> {
        self.consensus.as_ref()
    }

    /// Returns true if the state contains only committed entries.
    pub fn is_decided(&self) -> bool {
        self.consensus.is_some() && self.proposed().is_none()
    }

    /// Returns true if it serves.
    pub fn is_ready(&self) -> bool {
        self.ready && self.failed.is_none()
    }

    /// Returns true if it leads and nothing waits.
    pub fn is_settled(&self) -> bool {
        let written = self.consensus.as_ref().is_some_and(|c| !c.is_due());
        let idle = self.log.is_idle() && self.proposed().is_none() && written;
        self.is_ready() && idle && self.inputs.is_empty() && self.revived.is_empty()
    }

    /// Returns true if every device that is up in the map has registered since this MDM began to
    /// serve, and its link is up.
    pub fn hears_all(&self) -> bool {
        self.state.devices.iter().filter(|(_, d)| d.up).all(|(id, _)| self.devices.contains_key(id))
    }

    /// Returns why it does not serve (any more) and what to do. The process may end with this text.
    pub fn failed(&self) -> Option<&str> {
        self.failed.as_ref().map(|stop| &*stop.why)
    }

    /// Returns true if it cannot continue because the file system of its log is full.
    pub fn lacks_space(&self) -> bool {
        matches!(self.log.failed(), Some(LogError::Disk(_, Why(DiskError::NoSpace))))
    }

    /// Returns a link that a peer dialled, with its protocol version.
    fn peer_link(&self, link: LinkId) -> PeerLink {
        let version = self.links.get(&link).map_or(HANDSHAKE_VERSION, |l| l.version);
        PeerLink::new(link, version)
    }

    /// Returns the version of a link; `None` during its handshake, and on one that another MDM has
    /// to answer, which never says more than that.
    fn version_on(&self, link: LinkId) -> Option<u16> {
        let greeted = |l: &&Link| !matches!(l.peer, Peer::Stranger);
        self.links.get(&link).filter(greeted).map(|l| l.version)
    }

    fn link_up(&mut self, now: Time, link: LinkId, dial: Option<DialId>, out: &mut Effects) {
        if dial.is_some_and(|d| self.asks_by(d)) {
            self.ask_whether_it_serves(link, out);
        } else if let Some((member, counts)) = dial.and_then(|d| self.peers.dialled(d)) {
            match counts {
                true => self.greet_member(now, link, member, out),
                false => out.push(Effect::Close { link }),
            }
        } else if let Some(dial) = dial {
            // A process listens. That was the question.
            self.detector.answered(now, dial.0);
            let mut hello =
                hello(&self.config.dialect, self.state.cluster, Role::Mdm, &self.config.name);
            hello.incarnation = self.life.0;
            hello.address = self.config.address.to_string();
            send_hello(link, &hello, out);
            out.push(Effect::Close { link });
        } else {
            // The driver bounds the links of strangers.
            if self.links.len() >= LINKS {
                self.drop_old_life(out);
            }
            self.opened += 1;
            let link_state = Link {
                opened: self.opened,
                peer: Peer::Stranger,
                version: HANDSHAKE_VERSION,
                build: None,
                hello: None,
                parked: None,
                have: MapVersion(0),
                queued: 0,
                parts: Vec::new(),
                secret: 0,
                word: None,
            };
            self.links.insert(link, link_state);
        }
    }

    /// Closes the oldest link of an incarnation that is over, if there is one. Its process has sent
    /// nothing since the next one registered.
    fn drop_old_life(&mut self, out: &mut Effects) {
        let over = self.links.iter().find(|(link, l)| match l.peer {
            Peer::Device(device, _) => self.devices.get(&device).is_none_or(|s| s.link != **link),
            Peer::Sdc(sdc, _) => self.sdcs.get(&sdc).is_none_or(|s| s.link != **link),
            _ => false,
        });
        if let Some(link) = over.map(|(link, _)| *link) {
            out.note(Note::Crowded);
            out.push(Effect::Close { link });
            self.forget(link, out);
        }
    }

    /// Drops the state of a link that is down or about to be closed.
    fn forget(&mut self, link: LinkId, out: &mut Effects) {
        let Some(gone) = self.links.remove(&link) else { return };
        match gone.peer {
            Peer::Guest(Role::Admin) => self.admins.retain(|l| *l != link),
            Peer::Device(device, _)
                if self.devices.get(&device).is_some_and(|s| s.link == link) =>
            {
                self.devices.remove(&device);
                self.observed.devices.entry(device).or_default().connected = false;
                self.probe(device, out);
            }
            Peer::Sdc(sdc, _) if self.sdcs.get(&sdc).is_some_and(|s| s.link == link) => {
                self.sdcs.remove(&sdc);
                self.observed.sdcs.entry(sdc).or_default().connected = false;
            }
            _ => {}
        }
    }

    /// Finds out whether a process listens at the device's address, unless the device is known to
    /// be dead.
    fn probe(&mut self, device: DeviceId, out: &mut Effects) {
        let Some(to) = self.address(device).filter(|_| self.is_ready()) else { return };
        if self.detector.probe(device, self.dials) {
            self.dial(to, out);
        }
    }

    /// Tells the process at the device's address this MDM's incarnation. A failed dial proves
    /// nothing here: when everything is started at once, a server may not listen yet.
    fn introduce(&mut self, device: DeviceId, out: &mut Effects) {
        if let Some(to) = self.address(device) {
            self.dial(to, out);
        }
    }

    /// Returns the address of a device that is not known to be dead.
    fn address(&self, device: DeviceId) -> Option<SocketAddr> {
        let entry = self.state.devices.get(&device).filter(|d| !d.dead)?;
        entry.address.parse().ok()
    }

    fn dial(&mut self, to: SocketAddr, out: &mut Effects) {
        out.push(Effect::Dial { dial: DialId(self.dials), to, port: Port::Ours });
        self.dials += 1;
    }

    fn dial_failed(&mut self, now: Time, dial: DialId, why: DialError, out: &mut Effects) {
        if self.asks_by(dial) {
            return self.go_on(now, out);
        }
        if let Some((member, counts)) = self.peers.dialled(dial) {
            return if counts {
                self.member_lost(now, member, out)
            };
        }
        if why != DialError::Refused || mutant::on(Mutant::IgnoreRefusal) {
            return self.detector.probe_over(dial.0);
        }
        let Some(verdict) = self.detector.refused(now, dial.0) else { return };
        // A process that has a link is not dead; perhaps it does not listen yet. If it is dead all
        // the same, its link breaks, and that is a reason to dial again. The same holds for a
        // device that is down because others do not reach it: a firewall may refuse in its name
        // while it runs on.
        let linked = self.devices.contains_key(&verdict.device);
        let up = self.state.is_up(verdict.device);
        let here = linked && (up || self.observed.cut_off.contains(&verdict.device));
        let silent = Verdict { dead: false, ..verdict };
        if !here || self.detector.still_silent(now, &silent) {
            self.judge(now, verdict);
        }
    }

    /// Queues an input of this MDM itself. There are few, and they are never dropped.
    fn push(&mut self, input: Input) {
        self.inputs.push_back(input);
    }

    /// Starts to serve. Devices that are up in the map have to be heard from now on; what happened
    /// before is not known. All devices are dialled: if the host of an earlier leader lost power, a
    /// server's link to it may seem to be up for as long as TCP retries, and the server must not be
    /// declared lost because of that.
    fn begin(&mut self, now: Time, out: &mut Effects) {
        self.ready = true;
        self.recovery_due = (now, now + self.config.limits.suspect_after * 5);
        self.nothing_follows = None;
        self.life = Incarnation(out.prng().next_u64() | 1);
        self.detector.silent(now);
        for (id, device) in &self.state.devices {
            let unit = self.state.unit(device.sds);
            self.detector.belongs(unit, self.state.domain_of(device.sds));
            self.detector.watch(now, *id, unit, device.incarnation);
            self.detector.waits(*id, device.intent == Intent::Waiting);
            if !device.up {
                self.detector.unwatch(*id);
            }
        }
        let all: Vec<DeviceId> = self.state.devices.keys().copied().collect();
        all.into_iter().for_each(|device| self.introduce(device, out));
    }
}

impl Node for Mdm {
    type Framer = PeerFramer;

    fn framer(&mut self, _: Port) -> PeerFramer {
        PeerFramer::speaking(&self.config.dialect, self.config.limits.frame_body)
    }

    fn strangers(&self, _: Port) -> Option<Strangers> {
        Some(link::strangers(&self.config.limits))
    }

    fn on(&mut self, now: Time, event: Event<'_>, out: &mut Effects) {
        match event {
            Event::Tick => {
                self.tick(now, out);
                if !self.is_ready() {
                    return;
                }
                let verdicts = self.detector.silent(now);
                verdicts.into_iter().for_each(|v| self.judge(now, v));
                self.release(now);
                let held_back = self.detector.is_held_back();
                if held_back != core::mem::replace(&mut self.held_back, held_back) {
                    out.note(Note::MassSilence { over: !held_back });
                }
                for device in self.detector.quiet(now) {
                    self.probe(device, out);
                }
                for device in self.detector.doubtful(now) {
                    self.probe(device, out);
                }
                for device in self.detector.refusing(now) {
                    out.note(Note::RefusesAlive { device });
                    self.probe(device, out);
                }
            }
            Event::LinkUp { link, dial, .. } => self.link_up(now, link, dial, out),
            Event::LinkDown { link, .. } if self.asks_on(link) => self.go_on(now, out),
            Event::LinkDown { link, .. } if self.peers.has(link) => {
                if let Some(member) = self.peers.lost(link) {
                    self.member_lost(now, member, out);
                }
            }
            Event::LinkDown { link, .. } => self.forget(link, out),
            Event::DialFailed { dial, why } => self.dial_failed(now, dial, why, out),
            Event::Frame { link, head, body } => self.frame(now, link, head, &body, out),
            Event::DiskDone { op, result } => self.disk_done(now, op, result, out),
            Event::Request { id, .. } => {
                out.push(Effect::Reply { id, result: Err(BlockError::NoSuchVolume) });
            }
        }
    }

    fn flush(&mut self, now: Time, out: &mut Effects) {
        self.advance(now, out);
        if self.may_propose() {
            self.propose(now, out);
            self.advance(now, out);
        }
        // Hellos that came while it was open whether this MDM leads are answered now.
        let undecided = self.is_undecided();
        if core::mem::replace(&mut self.undecided, undecided) && !undecided {
            self.settle_hellos(now, out);
        }
        self.let_out(now, out);
        self.write();
        self.disk(out);
    }

    fn wake_at(&self) -> Option<Time> {
        if self.ops == 0 {
            return Some(Time::ZERO); // nothing has begun yet
        }
        if !self.is_ready() {
            return self.tick_due();
        }
        // The healer is asked in any case once something may be proposed.
        let heal = Time::earliest(self.healer.wake_at(), self.slowness.wake_at());
        let heal = Time::earliest(heal, self.reach.wake_at());
        let heal = heal.filter(|_| self.may_propose() && !self.state.recovery.open);
        let own = Time::earliest(self.detector.wake_at(), heal);
        let own = Time::earliest(own, self.gathered.due());
        let own = Time::earliest(own, self.recovery_wake());
        Time::earliest(Time::earliest(own, self.fence_due), self.tick_due())
    }
}
