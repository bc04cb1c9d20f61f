//! The MDM as a node: links, the log's disk, the consensus, the detector and the state, composed.
//!
//! How a wish becomes true: a frame or a verdict is *taken in* as an input ([`intake`]); `flush` turns
//! inputs into commands against the newest state, applies them and proposes them as one entry; when the
//! entry is committed, everything that it made visible is *let out*: answers, map pages, welcomes.
//!
//! One of the cluster's MDMs leads ([`office`]); only it works on wishes. The others apply what was
//! committed, and tell whoever comes where the leader is ([`peers`]: how they talk to each other;
//! [`memory`]: what is written, and when; [`moved`]: what the only one asks first if its log names another place;
//! [`recovery`]: how one goes on when the others are lost).
//!
//! Invariants:
//! - Nothing that isn't committed leaves: between proposal and commit no answer and no page is sent. One
//!   entry of commands is under way at a time, so without one all of the state is committed.
//! - A leader that loses its office forgets what it had proposed, and all that it had heard.
//! - An order that changed nothing is answered when a majority has said that this MDM still leads.
//! - Before the log is read and the cluster formed, nobody is answered; one hello per link is kept.
//! - After the log failed, nothing changes any more: orders are answered with the error, new servers
//!   and clients are turned away, those that are here go on with the map that they have.
//! - A bad frame ends its link, nothing else. Queues are bounded; what doesn't fit is repeated by its
//!   sender (proposals, heartbeats, registrations) or told to try again (orders).
//!
//! It never pushes maps to those who don't ask, and it keeps no connection to an SDS of its own: its
//! dials only find out whether somebody listens, and say which life of the MDM asks, so that a server
//! whose link still leads to an earlier one comes back at once.

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

use crate::links::{self, hello, send_hello};
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
use mdm::reach::Reach;
use mdm::recovery::{Word, Words};
use mdm::slowness::Slowness;
use mdm::state::State;
use mdm::status::Observed;
use seam::{
    BlockError, DialError, DialId, DiskError, Effect, Effects, Event, Node, Note, Port, Strangers,
};
use wire::control::{BuildInfo, Hello, Intent, Role};
use wire::{HANDSHAKE_VERSION, PeerFramer, PeerLink};

use gather::Gathered;
pub use grown::Grown;
use intake::Input;
use moved::Moved;
use office::Office;
use outlet::{Answer, Pages};
use peers::Peers;

/// How many links of members the MDM keeps open. Each device and each client has one; more are of lives that
/// are over.
const LINKS: usize = 8192;
/// How many links for orders it keeps open.
const ADMINS: usize = 512;
/// How many inputs wait for the disk.
const INPUTS: usize = 4096;
/// How many inputs of one link wait for the disk.
const INPUTS_PER_LINK: u32 = 16;

/// What an MDM is told at its start.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its name.
    pub name: String,
    /// Where it listens.
    pub address: SocketAddr,
    /// With an empty log it waits for a cluster that takes it in; else it begins one.
    pub join: bool,
    /// The cluster that its log must belong to, or that a new log begins; `None`: any, or drawn.
    pub cluster: Option<ClusterId>,
    /// Its bounds.
    pub limits: Limits,
    /// Its process, for people.
    pub pid: u32,
    /// What its build can do.
    pub dialect: Dialect,
}

/// Who is at the other end of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Peer {
    /// Has not been welcomed.
    Stranger,
    /// Has been welcomed in this role.
    Guest(Role),
    /// This life of a device.
    Device(DeviceId, Incarnation),
    /// This life of a client.
    Sdc(SdcId, Incarnation),
    /// Another MDM.
    Mdm(u32),
}

/// A "send me what is newer".
#[derive(Clone, Copy, Debug)]
struct Pull {
    have: MapVersion,
    op: u64,
    wait: bool,
}

#[derive(Debug)]
struct Link {
    /// The how-manieth link: a process's later link has a higher number.
    opened: u64,
    peer: Peer,
    /// The protocol version of its frames, once its hello was accepted.
    version: u16,
    /// What another MDM has said of its build.
    build: Option<BuildInfo>,
    /// Kept until the MDM is ready.
    hello: Option<Hello>,
    parked: Option<Pull>,
    /// The newest map that it has said to have.
    have: MapVersion,
    /// Its inputs that wait.
    queued: u32,
    /// What came of a message of several parts.
    parts: Vec<u8>,
    /// What another MDM wants to read in front of each message to it.
    secret: u64,
    /// What this device has told of what it knows.
    word: Option<Word>,
}

/// The link on which the present life of a process registered.
#[derive(Clone, Copy, Debug)]
struct Session {
    link: LinkId,
    /// When the link was opened on which its life began; 0 if an earlier leader took it in, which
    /// says nothing of who came first.
    began: u64,
}

/// The MDM.
pub struct Mdm {
    config: Config,
    log: Log,
    /// As of the last entry, or of the one that is proposed.
    state: State,
    /// A sum over the committed entries.
    chain: u32,
    /// `None` until the log was read and somebody has taken this MDM in, and after the log failed.
    consensus: Option<Consensus>,
    /// What it will begin with when that is durable.
    beginning: Option<Image>,
    /// It asks whether another one has its log.
    moved: Option<Moved>,
    /// It leads.
    office: Option<Office>,
    /// When time passes for the consensus next.
    tick_at: Time,
    peers: Peers,
    /// It leads, and the cluster is formed.
    ready: bool,
    /// It was not known yet whether it will lead.
    undecided: bool,
    /// Drawn when it begins to serve: tells this life of the process from others.
    life: Incarnation,
    failed: Option<String>,
    detector: Detector,
    healer: Healer,
    slowness: Slowness,
    reach: Reach,
    /// So many servers are away that nothing is rebuilt: as last told.
    rebuilds_held: bool,
    turned_away: turned_away::TurnedAways,
    /// Groups of volumes that are lost, and that wait for somebody: as last told.
    unserved: (u32, u32),
    /// When an answer that waits for a fence may leave, or has to.
    fence_due: Option<Time>,
    /// So many servers are silent that none is taken for lost: as last told.
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
    /// Devices that are down and gave a sign of life.
    revived: BTreeSet<DeviceId>,
    answers: Vec<Answer>,
    /// Questions whether it still leads: asked, and answered.
    questions: (u64, u64),
    pages: Pages,
    /// What devices have told, each in its present life: while it is not known who has what.
    words: Words,
    /// When that is looked at next, and until when those that are silent are waited for.
    recovery_due: (Time, Time),
    /// From this entry on, and with or without patience, nothing follows from what was told.
    nothing_follows: Option<(u64, bool)>,
    opened: u64,
    dials: u64,
    ops: u64,
}

impl Mdm {
    /// An MDM that begins with reading its log.
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

    /// What it has heard.
    pub fn observed(&self) -> &Observed {
        &self.observed
    }

    /// The state, for oracles: when [`Mdm::is_settled`], all of it is committed.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The consensus, for oracles.
    pub fn consensus(&self) -> Option<&Consensus> {
        self.consensus.as_ref()
    }

    /// True when the state is what was decided, and nothing more.
    pub fn is_decided(&self) -> bool {
        self.consensus.is_some() && self.proposed().is_none()
    }

    /// True when it serves.
    pub fn is_ready(&self) -> bool {
        self.ready && self.failed.is_none()
    }

    /// True when it leads, and nothing waits.
    pub fn is_settled(&self) -> bool {
        let written = self.consensus.as_ref().is_some_and(|c| !c.is_due());
        let idle = self.log.is_idle() && self.proposed().is_none() && written;
        self.is_ready() && idle && self.inputs.is_empty() && self.revived.is_empty()
    }

    /// True when every device that is up in the map has registered in this life of the MDM, and its link lives.
    pub fn hears_all(&self) -> bool {
        self.state.devices.iter().filter(|(_, d)| d.up).all(|(id, _)| self.devices.contains_key(id))
    }

    /// Why it doesn't serve (any more) and what to do; the process may as well end with this text.
    pub fn failed(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// It can't go on because the file system that its log lies on is full.
    pub fn lacks_space(&self) -> bool {
        matches!(self.log.failed(), Some(LogError::Disk(_, Why(DiskError::NoSpace))))
    }

    /// A link that others dialled, with its version.
    fn peer_link(&self, link: LinkId) -> PeerLink {
        let version = self.links.get(&link).map_or(HANDSHAKE_VERSION, |l| l.version);
        PeerLink::new(link, version)
    }

    fn link_up(&mut self, now: Time, link: LinkId, dial: Option<DialId>, out: &mut Effects) {
        if dial.is_some_and(|d| self.asks_by(d)) {
            self.ask_whether_it_serves(link, out);
        } else if let Some(member) = dial.and_then(|d| self.peers.dialled(d)) {
            self.greet_member(now, link, member, out);
        } else if let Some(dial) = dial {
            // Somebody listens; that was the question.
            self.detector.answered(now, dial.0);
            let mut hello =
                hello(&self.config.dialect, self.state.cluster, Role::Mdm, &self.config.name);
            hello.incarnation = self.life.0;
            hello.address = self.config.address.to_string();
            send_hello(link, &hello, out);
            out.push(Effect::Close { link });
        } else {
            // The driver bounds the links of those that have not said who they are.
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

    /// Closes the oldest link of a life that is over, if there is one: its process has not said anything since.
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

    /// The link is gone, or about to be closed.
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

    /// Finds out whether somebody listens at the device's address, unless its death is known.
    fn probe(&mut self, device: DeviceId, out: &mut Effects) {
        let Some(to) = self.address(device).filter(|_| self.is_ready()) else { return };
        if self.detector.probe(device, self.dials) {
            self.dial(to, out);
        }
    }

    /// Says which life this is to whoever listens at the device's address. That nobody does proves nothing:
    /// when everything is started at once, a server may not listen yet.
    fn introduce(&mut self, device: DeviceId, out: &mut Effects) {
        if let Some(to) = self.address(device) {
            self.dial(to, out);
        }
    }

    /// Where a device is dialled that isn't known to be dead.
    fn address(&self, device: DeviceId) -> Option<SocketAddr> {
        let entry = self.state.devices.get(&device).filter(|d| !d.dead)?;
        entry.address.parse().ok()
    }

    fn dial(&mut self, to: SocketAddr, out: &mut Effects) {
        out.push(Effect::Dial { dial: DialId(self.dials), to, port: Port::Peer });
        self.dials += 1;
    }

    fn dial_failed(&mut self, now: Time, dial: DialId, why: DialError, out: &mut Effects) {
        if self.asks_by(dial) {
            return self.go_on(now, out);
        }
        if let Some(member) = self.peers.dialled(dial) {
            return self.member_lost(now, member, out);
        }
        if why != DialError::Refused || mutant::on(Mutant::IgnoreRefusal) {
            return self.detector.probe_over(dial.0);
        }
        let Some(verdict) = self.detector.refused(now, dial.0) else { return };
        // A process that has just told us that it lives isn't dead; maybe it doesn't listen yet. If it
        // is dead all the same, its link breaks, and that is a reason to dial again. The same holds for one that is down as
        // others don't reach it: a firewall may refuse in its name, and it goes on.
        let linked = self.devices.contains_key(&verdict.device);
        let up = self.state.is_up(verdict.device);
        let here = linked && (up || self.observed.cut_off.contains(&verdict.device));
        let silent = Verdict { dead: false, ..verdict };
        if !here || self.detector.still_silent(now, &silent) {
            self.judge(now, verdict);
        }
    }

    /// Queues an input of our own; those are few and never dropped.
    fn push(&mut self, input: Input) {
        self.inputs.push_back(input);
    }

    /// Who is thought to be alive has from now on to say so; what was before isn't known. All are dialled:
    /// a server's link to an earlier life may seem to be up for as long as TCP tries, if that one's host
    /// lost power, and nobody is to be taken for lost because of that.
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
        Some(links::strangers(&self.config.limits))
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
        // Who came while it wasn't known whether this MDM will lead is not kept waiting when it is.
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
        // The healer speaks when something may be proposed, and is asked then anyway.
        let heal = Time::earliest(self.healer.wake_at(), self.slowness.wake_at());
        let heal = Time::earliest(heal, self.reach.wake_at());
        let heal = heal.filter(|_| self.may_propose() && !self.state.recovery.open);
        let own = Time::earliest(self.detector.wake_at(), heal);
        let own = Time::earliest(own, self.gathered.due());
        let own = Time::earliest(own, self.recovery_wake());
        Time::earliest(Time::earliest(own, self.fence_due), self.tick_due())
    }
}
