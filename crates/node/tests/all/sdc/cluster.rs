//! A driver, an MDM and servers in one struct, in virtual time. Frames arrive at once and in order,
//! unless a test holds them back or breaks a link.

use base::{
    BLOCK, DeviceId, Dialect, GroupId, Limits, LinkId, MapVersion, Prng, Time, UNIT, VolumeId,
};
use core::time::Duration;
use mdm::mapping::Mapping;
use node::sdc::{DhChap, Sdc, SdcConfig};
use prost::Message;
use seam::{
    BlockError, BlockKind, BlockRequest, Buf, BufPool, DialError, DialId, DownReason, Effect,
    Effects, Event, Node, Note, Port, RequestId,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use wire::control::{
    ClientCounts, DeviceInfo, GatewayInfo, GroupInfo, Heartbeat, Hello, MapPage, Refusal,
    RefusalCode, RegisterSdc, Registered, Reserve, Reserved, Role, SeatInfo, SeatsTaken, TakeSeats,
    VolumeInfo, Welcome,
};
use wire::message::{self, Io, MapPull, Reply, Request};
use wire::{Control, HANDSHAKE_VERSION, Header, Kind, PeerLink, Status, control_frame};

pub(crate) const VOLUME: VolumeId = VolumeId(1);
pub(crate) const UNITS: u32 = 8;
/// The id of the client.
pub(crate) const ME: u32 = 4;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Who {
    Mdm,
    Server(u32),
    /// A block client.
    Client,
}

/// Events that a test may check.
#[derive(Default)]
pub(crate) struct Log {
    pub hellos: Vec<(Who, Hello)>,
    /// The versions of the frames in which hellos came.
    pub handshakes: Vec<u16>,
    pub registrations: Vec<RegisterSdc>,
    pub heartbeats: u32,
    /// Volumes that are attached, according to the last heartbeat.
    pub attached: Vec<u32>,
    /// NBD connections and iSCSI sessions, according to the last heartbeat.
    pub connected: (u32, u32),
    /// Devices that refuse this client, according to the last heartbeat.
    pub refused_by: Vec<u32>,
    /// The last counts of requests.
    pub counts: ClientCounts,
    pub pulls: Vec<MapPull>,
    /// Changes of reservations that were asked for.
    pub asked: Vec<Reserve>,
    /// Seats that were asked for.
    pub wished: Vec<TakeSeats>,
    /// The hosts of all volumes and those of one, according to the last heartbeat that had them.
    pub hosts: Vec<String>,
    pub sessions: Vec<(u32, String)>,
    /// Heartbeats that had hosts.
    pub host_lists: u32,
    /// Hosts that the last heartbeat did not name.
    pub hosts_left_out: u32,
    /// The bytes of the longest heartbeat.
    pub longest_beat: usize,
    pub ios: Vec<(u32, Io)>,
    /// The protocol versions of their frames.
    pub versions: Vec<(u32, u16)>,
    pub replies: Vec<(u64, Result<Buf, BlockError>)>,
    pub notes: Vec<Note>,
    pub closed: Vec<Who>,
    pub paused: BTreeSet<LinkId>,
    /// Links that are no longer strangers.
    pub welcome: BTreeSet<LinkId>,
    /// The modes of framers.
    pub reframed: BTreeMap<LinkId, u32>,
    pub pauses: u32,
}

pub(crate) struct Cluster {
    pub sdc: Sdc,
    pub now: Time,
    pub pool: BufPool,
    out: Effects,
    links: BTreeMap<LinkId, Who>,
    next_link: u64,
    dials: VecDeque<(DialId, SocketAddr)>,
    /// Ports that accept a dial.
    pub alive: BTreeSet<u16>,
    pub map: MapPage,
    parked: Option<(LinkId, MapPull)>,
    /// The device that answers at server n's address, and its incarnation.
    pub devices: BTreeMap<u32, (u32, u64)>,
    pub data: Vec<u8>,
    pub written: BTreeSet<u32>,
    /// Servers that refuse every hello.
    pub refusing: BTreeSet<u32>,
    /// Servers that receive a hello and never answer it.
    pub mute: BTreeSet<u32>,
    /// The MDM says that this client is over.
    pub over: bool,
    /// While this is set, the MDM answers no change of reservations.
    pub silent: bool,
    /// While this is set, the MDM answers no question for seats.
    pub keeps_seats: bool,
    /// Hosts that have left the other gateways: the MDM moves their seats to who asks.
    pub leavers: BTreeSet<String>,
    /// Servers refuse I/O of an older generation than the map has.
    pub fences: bool,
    /// While this is set, all servers hold their I/O back.
    pub hold: bool,
    /// This server holds its I/O back.
    pub holds: Option<u32>,
    held: VecDeque<(LinkId, Io, Buf)>,
    /// The next I/O is answered with this status.
    pub next_status: Option<Status>,
    /// While this is set, every I/O is answered with this status.
    pub every_status: Option<Status>,
    /// Servers have no space for any write.
    pub full: bool,
    /// The body of the next answer is damaged on its way.
    pub damage: bool,
    /// The protocol version that a peer answers with, if it is not 1.
    pub speaks: BTreeMap<Who, u16>,
    /// Bytes that each NBD client has received.
    pub received: BTreeMap<LinkId, Vec<u8>>,
    pub log: Log,
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

impl Cluster {
    /// Creates an SDC that has not started, two servers, and one volume "data" in two groups.
    pub(crate) fn new(limits: Limits) -> Cluster {
        Cluster::of(limits, wire::DIALECT)
    }

    /// Creates a cluster whose SDC is of this build.
    pub(crate) fn of(limits: Limits, dialect: Dialect) -> Cluster {
        Cluster::with(limits, dialect, None)
    }

    /// Creates a cluster whose NVMe hosts have these keys.
    pub(crate) fn with_keys(dhchap: DhChap) -> Cluster {
        let mut cluster = Cluster::with(Limits::SHIPPED, wire::DIALECT, Some(dhchap));
        cluster.make_ready();
        cluster
    }

    fn with(limits: Limits, dialect: Dialect, dhchap: Option<DhChap>) -> Cluster {
        let config = SdcConfig {
            name: "client".into(),
            mdm: vec![address(1)],
            uris: vec!["iscsi://10.0.0.9:3260".into()],
            chap: None,
            dhchap,
            format: Default::default(),
            nonce: 77,
            pid: 5,
            limits,
            dialect,
        };
        let pool = BufPool::new(64 << 20);
        let devices = (1..=2).map(|d| device(d, 1)).collect();
        let groups = (1..=2).map(|g| group(g, 10, g)).collect();
        let volumes = vec![volume(VOLUME, "data", u64::from(UNITS) << 20)];
        Cluster {
            sdc: Sdc::new(config),
            now: Time(5_000_000_000),
            out: Effects::new(pool.clone(), Prng::new(1), None),
            pool,
            links: BTreeMap::new(),
            next_link: 0,
            dials: VecDeque::new(),
            alive: [1, 101, 102].into(),
            map: MapPage {
                version: 5,
                last: true,
                cluster: 9,
                devices,
                groups,
                volumes,
                live: vec![VOLUME.0],
                next_volume: 2,
                gateways: vec![GatewayInfo { sdc: ME, number: 0, uris: Vec::new() }],
                gateways_at: 5,
                ..MapPage::default()
            },
            parked: None,
            devices: [(1, (1, 1)), (2, (2, 1))].into(),
            data: vec![0; (UNITS * UNIT) as usize],
            written: BTreeSet::new(),
            refusing: BTreeSet::new(),
            mute: BTreeSet::new(),
            over: false,
            silent: false,
            keeps_seats: false,
            leavers: BTreeSet::new(),
            fences: false,
            hold: false,
            holds: None,
            held: VecDeque::new(),
            next_status: None,
            every_status: None,
            full: false,
            damage: false,
            speaks: BTreeMap::new(),
            received: BTreeMap::new(),
            log: Log::default(),
        }
    }

    /// Creates a cluster whose SDC is ready.
    pub(crate) fn ready() -> Cluster {
        let mut cluster = Cluster::new(Limits::SHIPPED);
        cluster.make_ready();
        cluster
    }

    pub(crate) fn make_ready(&mut self) {
        self.pass(Duration::from_millis(1));
        assert!(self.sdc.is_ready());
    }

    pub(crate) fn on(&mut self, event: Event<'_>) {
        self.sdc.on(self.now, event, &mut self.out);
        self.finish();
    }

    /// Ends the batch and executes its effects, and those that follow from them.
    fn finish(&mut self) {
        self.sdc.flush(self.now, &mut self.out);
        let effects: Vec<_> = self.out.drain().collect();
        for effect in effects {
            self.execute(effect);
        }
        if let Some((dial, to)) = self.dials.pop_front() {
            self.connect(dial, to);
        }
    }

    fn connect(&mut self, dial: DialId, to: SocketAddr) {
        if !self.alive.contains(&to.port()) {
            return self.on(Event::DialFailed { dial, why: DialError::Refused });
        }
        let who = if to.port() == 1 { Who::Mdm } else { Who::Server(u32::from(to.port()) - 100) };
        let link = self.open(who);
        self.on(Event::LinkUp { link, port: Port::Ours, dial: Some(dial), at: None, from: None });
    }

    fn open(&mut self, who: Who) -> LinkId {
        self.next_link += 1;
        self.links.insert(LinkId(self.next_link), who);
        LinkId(self.next_link)
    }

    fn execute(&mut self, effect: Effect) {
        match effect {
            Effect::Dial { dial, to, .. } => self.dials.push_back((dial, to)),
            Effect::Send { link, head, body } => match self.links.get(&link).copied() {
                Some(Who::Client) => {
                    let bytes = self.received.entry(link).or_default();
                    bytes.extend_from_slice(head.as_slice());
                    bytes.extend_from_slice(&body);
                }
                Some(Who::Mdm) => self.mdm(link, *wire::parse(head.as_slice()), &body),
                Some(Who::Server(n)) => self.server(n, link, *wire::parse(head.as_slice()), body),
                None => {}
            },
            Effect::Close { link } => {
                self.log.closed.extend(self.links.remove(&link));
                self.held.retain(|(l, ..)| *l != link);
            }
            Effect::Pause { link } => {
                self.log.pauses += 1;
                self.log.paused.insert(link);
            }
            Effect::Resume { link } => assert!(self.log.paused.remove(&link)),
            Effect::Reply { id, result } => self.log.replies.push((id.0, result)),
            Effect::SendFirst { .. } => panic!("an SDC has no leases"),
            Effect::Reframe { link, mode } => drop(self.log.reframed.insert(link, mode)),
            Effect::Welcome { link } => drop(self.log.welcome.insert(link)),
            Effect::Note(note) => self.log.notes.push(note),
            Effect::Read { .. }
            | Effect::Write { .. }
            | Effect::Flush { .. }
            | Effect::Punch { .. } => panic!("an SDC has no disk"),
        }
    }

    /// Returns the version that the peer of a link answers with.
    fn version_of(&self, link: LinkId) -> u16 {
        let who = self.links.get(&link);
        who.and_then(|who| self.speaks.get(who)).copied().unwrap_or(HANDSHAKE_VERSION)
    }

    pub(crate) fn send(&mut self, link: LinkId, header: impl Into<Header>, message: &impl Control) {
        let (head, body) = control_frame(HANDSHAKE_VERSION, header, message, &self.pool.clone());
        self.on(Event::Frame { link, head: head.as_slice(), body });
    }

    fn mdm(&mut self, link: LinkId, header: Header, body: &[u8]) {
        match header.kind().unwrap() {
            Kind::Hello => {
                self.log.handshakes.push(header.version());
                self.log.hellos.push((Who::Mdm, Hello::decode(body).unwrap()));
                if self.over {
                    return self.end(link);
                }
                let welcome = Welcome {
                    cluster: 9,
                    role: Role::Mdm as i32,
                    version: 1,
                    map: self.map.version,
                    ..Welcome::default()
                };
                self.send(link, Header::new(Kind::Welcome), &welcome);
            }
            Kind::RegisterSdc => {
                self.log.registrations.push(RegisterSdc::decode(body).unwrap());
                let registered =
                    Registered { cluster: 9, id: ME, incarnation: 40, map: 3, scrub: 0 };
                self.send(link, Header::new(Kind::Registered), &registered);
            }
            Kind::Heartbeat => {
                self.log.heartbeats += 1;
                let beat = Heartbeat::decode(body).unwrap();
                self.log.counts = beat.counts.unwrap_or(core::mem::take(&mut self.log.counts));
                (self.log.attached, self.log.refused_by) = (beat.attached, beat.refused_by);
                self.log.hosts_left_out = beat.hosts_left_out;
                self.log.longest_beat = self.log.longest_beat.max(body.len());
                if let Some(hosts) = beat.hosts {
                    self.log.host_lists += 1;
                    self.log.hosts = hosts.names;
                    let sessions = hosts.sessions.into_iter();
                    self.log.sessions = sessions.map(|wish| (wish.volume, wish.host)).collect();
                }
                self.log.connected = (beat.connections, beat.iscsi_sessions);
            }
            Kind::MapPull => {
                let pull = MapPull::try_from(&header).unwrap();
                self.log.pulls.push(pull);
                self.parked = Some((link, pull)); // one per link: the newest
                self.publish();
            }
            Kind::Reserve => {
                let m = Reserve::decode(body).unwrap();
                self.log.asked.push(m.clone());
                if !self.silent {
                    self.reserve(link, &m);
                }
            }
            Kind::TakeSeats => {
                let m = TakeSeats::decode(body).unwrap();
                self.log.wished.push(m.clone());
                if !self.keeps_seats {
                    self.take_seats(link, &m);
                }
            }
            other => panic!("{other:?}"),
        }
    }

    /// Says on this link that the client is over, from now on.
    pub(crate) fn end(&mut self, link: LinkId) {
        self.over = true;
        let code = RefusalCode::Superseded as i32;
        let refusal = Refusal { code, text: "no".into(), ..Refusal::default() };
        self.send(link, Header::new(Kind::Refusal), &refusal);
    }

    /// Gives the client the seats that no other one has, and those that move to it, tells the map
    /// and confirms them.
    pub(crate) fn take_seats(&mut self, link: LinkId, m: &TakeSeats) {
        let mut answers: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for wish in &m.seats {
            let since = answers.entry(wish.volume).or_default();
            let Some(volume) = self.map.volumes.iter_mut().find(|v| v.id == wish.volume) else {
                since.push(0); // it is gone
                continue;
            };
            let seat = volume.seats.iter().find(|seat| seat.host == wish.host);
            match seat.map(|seat| seat.sdc) {
                None => {
                    let (host, since) = (wish.host.clone(), volume.generation.max(1));
                    volume.seats.push(SeatInfo { host, sdc: ME, since });
                    self.map.version += 1;
                }
                Some(ME) => {}
                Some(_) if wish.moves || self.leavers.contains(&wish.host) => {
                    self.give(wish.volume, &wish.host, ME);
                }
                Some(_) => {}
            }
            let volume = self.map.volumes.iter().find(|v| v.id == wish.volume).unwrap();
            let seat = volume.seats.iter().find(|seat| seat.host == wish.host).unwrap();
            since.push(if seat.sdc == ME { seat.since } else { 0 });
        }
        self.tell();
        let (number, map) = (m.number, self.map.version);
        for (volume, since) in answers {
            let taken = SeatsTaken { number, map, since, volume };
            self.send(link, Header::new(Kind::SeatsTaken), &taken);
        }
    }

    /// Gives a gateway the seat of a host, as the MDM does when it moves one.
    pub(crate) fn give(&mut self, id: u32, host: &str, sdc: u32) {
        self.map.version += 1;
        let volume = self.map.volumes.iter_mut().find(|v| v.id == id).unwrap();
        volume.generation += 1;
        let mapping = Mapping::of(volume.mapping.clone()).renewed(volume.generation);
        volume.mapping = Some(mapping.info());
        volume.seats.retain(|seat| seat.host != host);
        let since = volume.generation;
        volume.seats.push(SeatInfo { host: host.into(), sdc, since });
    }

    /// Does a change of reservations. The map is told when it is asked for.
    fn reserve(&mut self, link: LinkId, m: &Reserve) {
        let who = mdm::reserve::host(&m.who).unwrap();
        let change = mdm::reserve::change(&m.change).unwrap();
        let outcome = mdm::reserve::outcome(self.reserve_as(&who, &change)) as i32;
        let (volume, number, map) = (m.volume, m.number, self.map.version);
        let reserved = Reserved { volume, number, outcome, map };
        self.send(link, Header::new(Kind::Reserved), &reserved);
    }

    /// Sends the map, as an MDM does when a volume has changed.
    pub(crate) fn tell(&mut self) {
        if let Some(link) = self.link_of(Who::Mdm) {
            let page = message::MapPage { op: 0, map: MapVersion(self.map.version) };
            self.send(link, page, &self.map.clone());
        }
    }

    /// Answers the pull that waits at the MDM, if possible.
    fn publish(&mut self) {
        let ready =
            |(_, pull): &mut (LinkId, MapPull)| !pull.wait || pull.have.0 < self.map.version;
        if let Some((link, pull)) = self.parked.take_if(ready) {
            let page = message::MapPage { op: pull.op, map: MapVersion(0) };
            self.send(link, page, &self.map.clone());
        }
    }

    /// Changes the map, and answers a pull that waits for that.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut MapPage)) {
        self.map.version += 1;
        change(&mut self.map);
        self.publish();
    }

    /// Makes server `to` the primary of a group.
    pub(crate) fn lead(&mut self, id: u32, epoch: u64, to: u32) {
        self.change(|map| map.groups[id as usize - 1] = group(id, epoch, to));
    }

    fn server(&mut self, n: u32, link: LinkId, header: Header, body: Buf) {
        if header.kind() == Some(Kind::Hello) {
            self.log.handshakes.push(header.version());
            self.log.hellos.push((Who::Server(n), Hello::decode(&body[..]).unwrap()));
            if self.mute.contains(&n) {
                return;
            }
            if self.refusing.contains(&n) {
                let code = RefusalCode::Superseded as i32;
                let refusal = Refusal { code, ..Refusal::default() };
                return self.send(link, Header::new(Kind::Refusal), &refusal);
            }
            let (id, incarnation) = self.devices[&n];
            let welcome = Welcome {
                cluster: 9,
                role: Role::Sds as i32,
                id,
                incarnation,
                version: self.version_of(link).into(),
                map: self.map.version,
                credit_ops: 64,
                credit_bytes: 8 << 20,
                ..Welcome::default()
            };
            return self.send(link, Header::new(Kind::Welcome), &welcome);
        }
        let io = Io::of(&header).expect("only operations follow a hello").unwrap();
        self.log.ios.push((n, io));
        self.log.versions.push((n, header.version()));
        assert!(wire::body_ok(&header, &body));
        self.held.push_back((link, io, body));
        if !self.hold {
            self.release();
        }
    }

    /// Makes the servers answer the I/O that they have held back.
    pub(crate) fn release(&mut self) {
        let mut kept = VecDeque::new();
        while let Some((link, io, body)) = self.held.pop_front() {
            let Request { op, group, epoch, .. } = *io.request();
            let device = match self.links[&link] {
                Who::Server(n) if self.holds == Some(n) => {
                    kept.push_back((link, io, body));
                    continue;
                }
                Who::Server(n) => self.devices[&n].0,
                other => panic!("{other:?}"),
            };
            let leads = self
                .map
                .groups
                .iter()
                .any(|g| (g.id, g.epoch, g.primary) == (group.0, epoch.0, device));
            let full = self.full && io.body_len() > 0;
            let volume = self.map.volumes.first().filter(|_| self.fences);
            let grant = volume.and_then(|v| Mapping::of(v.mapping.clone()).all());
            let old = grant.is_some_and(|g| io.request().generation < g.generation);
            let status = self.next_status.take().or(self.every_status);
            let status = status.or(old.then_some(Status::Stale));
            let status = status.or(full.then_some(Status::Full));
            let status = status.unwrap_or(if leads { Status::Ok } else { Status::Stale });
            let (status, answer) = match status {
                Status::Ok => self.io(&io, &body),
                _ => (status, Vec::new()),
            };
            let reply = Reply::new(op, group, status, MapVersion(self.map.version));
            let version = self.version_of(link);
            let head = PeerLink::new(link, version).frame(Reply { epoch, ..reply }, &answer);
            let mut body = self.pool.copy(&answer);
            if core::mem::take(&mut self.damage) {
                body.as_mut()[0] ^= 1;
            }
            self.on(Event::Frame { link, head: head.as_slice(), body });
        }
        self.held.extend(kept);
    }

    fn io(&mut self, io: &Io, body: &[u8]) -> (Status, Vec<u8>) {
        let range = io.request().range;
        let from = range.unit.index * UNIT + range.at;
        let blocks = from / BLOCK..(from + range.len).div_ceil(BLOCK);
        let range = from as usize..(from + range.len) as usize;
        let answer = match io {
            Io::Read(_) => self.data[range].to_vec(),
            Io::Write(_) => {
                self.data[range].copy_from_slice(body);
                self.written.extend(blocks);
                Vec::new()
            }
            Io::Zero(_) => {
                self.data[range].fill(0);
                self.written.retain(|b| !blocks.contains(b));
                Vec::new()
            }
            Io::Extents(_) => {
                let mut bits = vec![0; blocks.len().div_ceil(8)];
                for (i, block) in blocks.enumerate().filter(|(_, b)| self.written.contains(b)) {
                    let _ = block;
                    bits[i / 8] |= 1 << (i % 8);
                }
                bits
            }
            Io::CompareWrite(_) => {
                let (expected, new) = body.split_at(range.len());
                let stored = &mut self.data[range];
                if let Some(at) = stored.iter().zip(expected).position(|(a, b)| a != b) {
                    return (Status::Miscompare, (at as u32).to_le_bytes().to_vec());
                }
                stored.copy_from_slice(new);
                self.written.extend(blocks);
                Vec::new()
            }
        };
        (Status::Ok, answer)
    }

    /// Lets time pass, and delivers the ticks that are due in it.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        let mut ticks = 0;
        while let Some(at) = self.sdc.wake_at().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.on(Event::Tick);
            ticks += 1;
            assert!(ticks < 100_000, "it never sleeps");
        }
        self.now = end;
    }

    pub(crate) fn ask(&mut self, id: u64, kind: BlockKind, at: u64, len: u32, data: &[u8]) {
        let body = self.pool.copy(data);
        let request = BlockRequest { volume: VOLUME, kind, at, len, body };
        self.on(Event::Request { id: RequestId(id), request });
    }

    pub(crate) fn link_of(&self, who: Who) -> Option<LinkId> {
        self.links.iter().find(|(_, w)| **w == who).map(|(l, _)| *l)
    }

    /// Kills the process behind a link: the link breaks, and dials are refused.
    pub(crate) fn kill(&mut self, who: Who) {
        let port = if let Who::Server(n) = who { 100 + n as u16 } else { 1 };
        self.alive.remove(&port);
        self.cut(who);
    }

    /// Breaks the links to this peer.
    pub(crate) fn cut(&mut self, who: Who) {
        while let Some(link) = self.link_of(who) {
            self.links.remove(&link);
            self.held.retain(|(l, ..)| *l != link);
            self.parked.take_if(|(l, _)| *l == link);
            self.on(Event::LinkDown { link, why: DownReason::Broken });
        }
    }

    /// Breaks one link.
    pub(crate) fn cut_link(&mut self, link: LinkId) {
        self.links.remove(&link);
        self.on(Event::LinkDown { link, why: DownReason::Broken });
    }

    /// Tells the SDC that its process stops.
    pub(crate) fn stop(&mut self) {
        self.sdc.stop();
        self.finish();
    }

    /// Connects a block client to this port.
    pub(crate) fn accept(&mut self, port: Port) -> LinkId {
        let link = self.open(Who::Client);
        self.on(Event::LinkUp { link, port, dial: None, at: None, from: None });
        link
    }

    /// Delivers the bytes that a block client sends, cut into frames by the SDC's own framer.
    pub(crate) fn deliver(
        &mut self,
        link: LinkId,
        framer: &mut impl seam::Framer,
        mut bytes: &[u8],
    ) {
        while !bytes.is_empty() {
            let seam::Framing::Frame { head, body } = framer.frame(bytes).unwrap() else {
                panic!("only whole frames are sent");
            };
            let (frame, rest) = bytes.split_at(head + body);
            let body = self.pool.copy(&frame[head..]);
            self.on(Event::Frame { link, head: &frame[..head], body });
            bytes = rest;
        }
    }

    pub(crate) fn map_version(&self) -> MapVersion {
        self.sdc.map_version()
    }
}

pub(crate) fn device(id: u32, incarnation: u64) -> DeviceInfo {
    let address = address(100 + id as u16).to_string();
    DeviceInfo { id, sds: id, address, incarnation, up: true, ..DeviceInfo::default() }
}

pub(crate) fn group(id: u32, epoch: u64, primary: u32) -> GroupInfo {
    let (replicas, in_sync) = (vec![1, 2], vec![1, 2]);
    GroupInfo {
        id: GroupId(id).0,
        epoch,
        primary: DeviceId(primary).0,
        replicas,
        in_sync,
        ..GroupInfo::default()
    }
}

pub(crate) fn volume(id: VolumeId, name: &str, size: u64) -> VolumeInfo {
    VolumeInfo { id: id.0, name: name.into(), size, slots: vec![1, 2], ..VolumeInfo::default() }
}
