//! The client role (SDC): sends block requests, from programs and over NBD, iSCSI and NVMe/TCP, to
//! the primaries of their groups.
//!
//! [`mirror::client`] decides which device is asked for what. This module has the links that it
//! needs (one to each device that a request has gone to), the registration with the MDM, the map,
//! and the sessions of block clients. I/O continues while the MDM is away.
//!
//! Invariants:
//! - Frames count only on the present link of a device. Frames on a link that was given up are
//!   ignored.
//! - A link to a device carries I/O only after a welcome from the device that was meant. Each link
//!   has a higher session number than all earlier ones to the same device (rule R8).
//! - The identity that the MDM gave first stays until the process ends. Operations are numbered
//!   under it.
//!
//! | file | content |
//! |---|---|
//! | `mdm` | the link to the MDM: registration, heartbeats, pulls |
//! | `servers` | the links to devices |
//! | `counters` | what was requested of each volume, by whom, and how long it took |
//! | `targets` | the sessions of block clients: NBD, iSCSI, NVMe/TCP |
//! | `topology` | the map as the client core and the sessions of NBD see it |
//! | `holds` | the volumes that the program has open |
//! | `framer` | the framers of all kinds of links |

mod counters;
mod framer;
mod holds;
mod mdm;
mod servers;
mod targets;
mod topology;

use crate::link;
use crate::mapview::{MapView, Volume};
use crate::refusals::Reason;
use alloc::string::String;
use alloc::vec::Vec;
use base::mutant::{self, Mutant};
use base::{
    ClusterId, DeviceId, Dialect, Incarnation, Limits, LinkId, Map, MapVersion, SdcId, Time,
    VolumeId,
};
use core::net::SocketAddr;
use counters::{Arrival, Counters};
use mirror::client::{Action, Client, Hangup, Turn};
use seam::{
    BlockError, Buf, DialId, Effect, Effects, Event, Node, Note, Port, RequestId, Strangers,
    UnsentLimits,
};

pub use framer::SdcFramer;
pub use target::nvme::Key;
pub use target::scsi::Format;
pub use targets::{Chap, DhChap, IscsiLengths, NbdLengths, Secret};

/// The port of NBD clients.
pub const NBD: Port = Port::Target(0);
/// The port of iSCSI initiators.
pub const ISCSI: Port = Port::Target(1);
/// The port of NVMe/TCP hosts.
pub const NVME: Port = Port::Target(2);

/// Settings with which an SDC starts.
#[derive(Clone, Debug)]
pub struct SdcConfig {
    /// Its name, by which the MDM knows it.
    pub name: String,
    /// The addresses of the MDMs. They are tried in turn.
    pub mdm: Vec<SocketAddr>,
    /// The addresses at which it serves NBD, iSCSI and NVMe/TCP, as URIs without the name of a
    /// volume: for people, in `status`.
    pub uris: Vec<String>,
    /// How iSCSI hosts show who they are; with `None`, all of them are let in.
    pub chap: Option<Chap>,
    /// How NVMe hosts show who they are; with `None`, all of them are let in.
    pub dhchap: Option<DhChap>,
    /// The sizes of blocks that iSCSI hosts are told.
    pub format: Format,
    /// Drawn at random at process start.
    pub nonce: u64,
    /// The process id, for people.
    pub pid: u32,
    /// Its limits.
    pub limits: Limits,
    /// The capabilities of its build.
    pub dialect: Dialect,
}

impl SdcConfig {
    /// Settings of a client that serves no hosts: the program that runs it makes its requests.
    pub fn program(name: String, mdm: Vec<SocketAddr>, nonce: u64, pid: u32) -> SdcConfig {
        SdcConfig {
            name,
            mdm,
            uris: Vec::new(),
            chap: None,
            dhchap: None,
            format: Format::default(),
            nonce,
            pid,
            limits: Limits::SHIPPED,
            dialect: wire::DIALECT,
        }
    }
}

/// The origin of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Origin {
    /// The program that runs this node.
    Program { id: RequestId, arrival: Arrival },
    /// A block client.
    Target { link: LinkId, tag: u64, arrival: Arrival },
}

/// The purpose of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Link {
    /// To the MDM.
    Mdm,
    /// To a device.
    Server(DeviceId),
    /// From a block client.
    Target,
}

/// Lengths of the lists of a client, or their bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListLengths {
    /// Requests that are not answered, orphans included.
    pub requests: usize,
    /// Those that write data.
    pub writes: usize,
    /// Operations of all requests.
    pub ops: usize,
    /// Lists of NBD connections.
    pub nbd: NbdLengths,
    /// Lists of iSCSI connections.
    pub iscsi: IscsiLengths,
}

/// A data client.
#[derive(Debug)]
pub struct Sdc {
    config: SdcConfig,
    cluster: ClusterId,
    me: Option<(SdcId, Incarnation)>,
    map: MapView,
    client: Client<Origin>,
    mdm: mdm::MdmLink,
    servers: servers::Servers,
    targets: targets::Sessions,
    counters: Counters,
    holds: holds::Holds,
    links: Map<LinkId, Link>,
    next_dial: u64,
    /// Session number of the last hello to an MDM.
    session: u64,
    /// Number of block requests that were answered.
    served: u64,
    actions: Vec<Action<Origin>>,
    spare: Vec<Action<Origin>>,
}

impl Sdc {
    /// Creates an SDC that has just started. It dials the MDM at its first tick.
    pub fn new(config: SdcConfig) -> Sdc {
        Sdc {
            cluster: ClusterId(0),
            me: None,
            map: MapView::default(),
            client: Client::new(&config.limits),
            mdm: mdm::MdmLink::new(&config.mdm, &config.limits),
            servers: servers::Servers::default(),
            targets: targets::Sessions::new(&config.limits),
            counters: Counters::default(),
            holds: holds::Holds::default(),
            links: Map::default(),
            next_dial: 1,
            session: 0,
            served: 0,
            actions: Vec::new(),
            spare: Vec::new(),
            config,
        }
    }

    /// Returns the number of block requests that are not answered yet.
    pub fn outstanding(&self) -> usize {
        self.client.outstanding()
    }

    /// Returns the number of operations that wait for space.
    pub fn held(&self) -> u32 {
        self.client.held()
    }

    /// Returns how long the lists are that programs and block clients make grow.
    pub fn list_lengths(&self) -> ListLengths {
        ListLengths {
            requests: self.client.outstanding(),
            writes: self.client.writes(),
            ops: self.client.ops(),
            nbd: self.targets.nbd_lengths(),
            iscsi: self.targets.iscsi_lengths(&self.client),
        }
    }

    /// Returns the bounds of these lengths (`docs/internals/limits.md`).
    pub fn list_bounds(&self) -> ListLengths {
        let limits = &self.config.limits;
        let requests = limits.sdc_requests as usize;
        ListLengths {
            requests,
            writes: requests - requests / 4,
            ops: requests * 3,
            nbd: self.targets.nbd_bounds(limits),
            iscsi: self.targets.iscsi_bounds(&self.map, limits),
        }
    }

    /// Returns the version of the map; 0 before the first one.
    pub fn map_version(&self) -> MapVersion {
        self.map.version
    }

    /// True if it has an identity, and a map that knows this identity. Requests wait until then.
    pub fn is_ready(&self) -> bool {
        self.me.is_some()
            && self.map.version >= self.mdm.known_at
            && self.map.version > MapVersion(0)
    }

    /// Returns the volume with this name, as the map has it, if it is mapped to this client.
    pub fn volume_by_name(&self, name: &str) -> Option<(VolumeId, &Volume)> {
        let (id, volume) = self.map.volumes.iter().find(|(_, v)| v.name == name)?;
        self.map.my_grant(volume).map(|_| (*id, volume))
    }

    /// Makes the next `flush` ask the MDM for its newest map. The answer has come when
    /// [`Sdc::refreshed`] is at least the number that this returns.
    pub fn refresh(&mut self) -> u64 {
        self.mdm.ask();
        self.mdm.refreshed + 1
    }

    /// Returns how often the MDM has answered such a question.
    pub fn refreshed(&self) -> u64 {
        self.mdm.refreshed
    }

    /// Records that the program has opened this volume, once more. The MDM does not delete it
    /// until [`Sdc::release`] was called as often. The next `flush` tells the MDM.
    pub fn hold(&mut self, volume: VolumeId) {
        if self.holds.add(volume) {
            self.mdm.heartbeat_soon(Time::ZERO);
        }
    }

    /// Records that the program has closed this volume.
    pub fn release(&mut self, volume: VolumeId) {
        if self.holds.remove(volume) {
            self.mdm.heartbeat_soon(Time::ZERO);
        }
    }

    /// Returns the map.
    pub fn map(&self) -> &MapView {
        &self.map
    }

    /// Returns its identity, as soon as the MDM has assigned one.
    pub fn identity(&self) -> Option<(SdcId, Incarnation)> {
        self.me
    }

    /// Returns the highest level that its build knows.
    pub fn level_max(&self) -> u32 {
        self.config.dialect.level_max
    }

    /// Returns the number of NBD connections.
    pub fn connections(&self) -> usize {
        self.targets.nbd_connections()
    }

    /// True while this link is a connection of a block client: NBD, iSCSI or NVMe/TCP.
    pub fn serves(&self, link: LinkId) -> bool {
        self.links.get(&link) == Some(&Link::Target)
    }

    /// Calls the client core. Its actions are carried out by `run`.
    fn client<R>(
        &mut self,
        now: Time,
        out: &Effects,
        call: impl FnOnce(&mut Client<Origin>, &mut Turn<'_, MapView, Origin>) -> R,
    ) -> R {
        let (map, pool) = (&self.map, out.pool());
        call(&mut self.client, &mut Turn { now, map, pool, out: &mut self.actions })
    }

    /// Carries out the actions of the client core until none is left. Requests of block clients
    /// that wait for a place are passed on even if there is no action: the end of an operation that
    /// was answered before, as timed out, frees a place and causes no action.
    fn run(&mut self, now: Time, out: &mut Effects) {
        if self.targets.has_work() {
            self.targets_work(now, out);
        }
        while !self.actions.is_empty() || self.targets.has_calls() {
            let mut batch = core::mem::replace(&mut self.actions, core::mem::take(&mut self.spare));
            for action in batch.drain(..) {
                self.execute(now, action, out);
            }
            self.spare = batch;
            if self.targets.has_work() {
                self.targets_work(now, out);
            }
        }
    }

    fn execute(&mut self, now: Time, action: Action<Origin>, out: &mut Effects) {
        match action {
            Action::Send { device, io, body } => {
                if let Some(link) = self.servers.up(device) {
                    out.send(link.id, link.frame(&io, &body), body);
                }
            }
            Action::Done { origin, result } => {
                self.served += 1;
                self.counters.done(now, &self.map, &origin, result.is_ok());
                match origin {
                    Origin::Program { id, .. } => out.push(Effect::Reply { id, result }),
                    Origin::Target { link, tag, .. } => {
                        self.target_done(now, link, tag, result, out);
                    }
                }
            }
            Action::Held { origin: Origin::Target { link, tag, .. } } => {
                self.target_waits(now, link, tag, out);
            }
            Action::Held { origin: Origin::Program { .. } } => {}
            Action::Dial { device } => servers::want(self, now, device, out),
            Action::Hangup { device, why } => {
                if let Some(link) = self.servers.up(device) {
                    out.note(match why {
                        Hangup::BadBody => Note::BadBody { link: link.id },
                        Hangup::Nonsense => {
                            Note::Refused { link: link.id, why: "an answer that fits no question" }
                        }
                        Hangup::Unanswered => {
                            Note::Refused { link: link.id, why: "a write that may be alive there" }
                        }
                    });
                }
                self.drop_server(now, device, out);
            }
            Action::NeedMap { version } => self.mdm.want(version),
        }
    }

    fn link_up(
        &mut self,
        now: Time,
        link: LinkId,
        (port, at, from): (Port, Option<SocketAddr>, Option<SocketAddr>),
        dial: Option<DialId>,
        out: &mut Effects,
    ) {
        match (port, dial) {
            (NBD | ISCSI | NVME, None) => {
                self.counters.open(link, port, (at, from));
                self.target_open(now, (link, port, at), out);
            }
            (Port::Ours, Some(dial)) if self.mdm.finder.dialled(dial) => {
                self.greet_mdm(now, link, out)
            }
            (Port::Ours, Some(dial)) if let Some(server) = self.servers.dialled(dial) => {
                self.greet_server(now, server, link, out)
            }
            _ => out.push(Effect::Close { link }),
        }
    }

    fn link_down(&mut self, now: Time, link: LinkId, out: &mut Effects) {
        match self.links.remove(&link) {
            Some(Link::Mdm) => self.mdm_lost(now, out),
            Some(Link::Server(device)) => self.server_lost(now, device, out),
            Some(Link::Target) => self.target_gone(now, link, out),
            None => {}
        }
    }

    fn frame(&mut self, now: Time, link: LinkId, head: &[u8], body: Buf, out: &mut Effects) {
        let done = match self.links.get(&link) {
            Some(Link::Server(device)) => {
                self.server_frame(now, *device, link, wire::parse(head), body, out)
            }
            Some(Link::Target) => return self.target_frame(now, link, head, body, out),
            Some(Link::Mdm) => self.mdm_frame(now, link, wire::parse(head), &body, out),
            None => return,
        };
        if let Err(why) = done {
            self.refuse(now, link, why, out);
        }
    }

    /// Closes a link for the reason `why`, and continues as if it had broken.
    #[cold]
    fn refuse(&mut self, now: Time, link: LinkId, why: impl Into<Reason>, out: &mut Effects) {
        // A process that is over has said so once, and goes on asking.
        if !(self.mdm.is_over() && self.links.get(&link) == Some(&Link::Mdm)) {
            out.note(why.into().note(link));
        }
        out.push(Effect::Close { link });
        self.link_down(now, link, out);
    }
}

impl Node for Sdc {
    type Framer = SdcFramer;

    fn framer(&mut self, port: Port) -> SdcFramer {
        SdcFramer::new(port, &self.config.dialect, &self.config.limits)
    }

    fn strangers(&self, _: Port) -> Option<Strangers> {
        Some(link::strangers(&self.config.limits))
    }

    fn unsent(&self, port: Port) -> Option<UnsentLimits> {
        targets::unsent(port)
    }

    fn on(&mut self, now: Time, event: Event<'_>, out: &mut Effects) {
        match event {
            Event::Frame { link, head, body } => self.frame(now, link, head, body, out),
            Event::Request { id, .. } if mutant::on(Mutant::NeedMdm) && !self.mdm.is_up() => {
                out.push(Effect::Reply { id, result: Err(BlockError::Busy) });
            }
            Event::Request { id, request } => {
                let origin = Origin::Program { id, arrival: Arrival::new(now, &request, true) };
                if self.targets.reserve_forbids(&self.map, request.volume, request.kind) {
                    let result = Err(BlockError::Reserved);
                    self.actions.push(Action::Done { origin, result });
                } else {
                    self.client(now, out, |client, turn| client.request(origin, request, turn));
                }
            }
            Event::Withdraw { .. } if mutant::on(Mutant::KeepWithdrawn) => {}
            // None of them takes effect after a request that comes from now on (rule R16).
            Event::Withdraw { ids } => {
                assert!(ids.is_sorted(), "ids are in ascending order");
                let gone = |origin| match origin {
                    Origin::Program { id, .. } => ids.binary_search(&id).is_ok(),
                    Origin::Target { .. } => false,
                };
                self.client(now, out, |client, turn| client.forget(gone, turn));
            }
            Event::Tick => self.tick(now, out),
            Event::LinkUp { link, port, dial, at, from } => {
                self.link_up(now, link, (port, at, from), dial, out)
            }
            Event::LinkDown { link, .. } => self.link_down(now, link, out),
            Event::DialFailed { dial, .. } => dial_failed(self, now, dial, out),
            Event::DiskDone { .. } => {}
        }
        self.run(now, out);
        if core::mem::take(&mut self.targets.review) {
            self.targets_review(now, out);
            self.run(now, out);
        }
    }

    fn flush(&mut self, now: Time, out: &mut Effects) {
        if self.targets.has_calls() {
            self.run(now, out); // only `stop` leaves calls behind
        }
        targets::shut::stop(self, now, out);
        let retried = self.client.take_retried();
        if retried > 0 {
            out.note(Note::Retried { ops: retried });
        }
        mdm::heartbeat(self, now, out);
        if self.targets.has_seat_question() {
            targets::seats::ask(self, now, out);
        }
        self.pull(now, out);
    }

    fn stop(&mut self) {
        self.targets.iscsi_stop();
    }

    fn is_stopped(&self) -> bool {
        self.targets.is_over(self.mdm.is_up())
    }

    fn wake_at(&self) -> Option<Time> {
        let links = Time::earliest(self.mdm.wake_at(), self.servers.wake_at());
        let targets = self.targets.wake_at(&self.config.limits);
        Time::earliest(links, Time::earliest(targets, self.client.wake_at()))
    }
}

impl Sdc {
    fn tick(&mut self, now: Time, out: &mut Effects) {
        if self.client.wake_at().is_some_and(|at| at <= now) {
            self.client(now, out, |client, turn| client.tick(turn));
            self.targets_late(now, out);
        }
        if self.servers.wake_at().is_some_and(|at| at <= now) {
            self.dial_servers(now, out);
        }
        self.mdm_tick(now, out);
        if self.targets.wake_at(&self.config.limits).is_some_and(|at| at <= now) {
            self.targets_tick(now, out);
        }
    }
}

/// Handles a dial that failed.
fn dial_failed(sdc: &mut Sdc, now: Time, dial: DialId, out: &mut Effects) {
    if sdc.mdm.finder.dialled(dial) {
        sdc.mdm_lost(now, out);
    } else if let Some((device, true)) = sdc.servers.dialled(dial) {
        sdc.server_lost(now, device, out);
    }
}
