//! A shard of a data server as a node, driven by hand: its link to the MDM, and which peers it
//! believes.

mod clients;
pub(crate) mod malformed;
pub(crate) mod recovering;
pub(crate) mod refusing;
mod versions;
pub(crate) mod wrong_mdms;

use base::{
    ClusterId, Epoch, GroupId, Incarnation, Limits, LinkId, Lsn, MapVersion, Prng, SdcId, Time,
    UnitKey, VolumeId,
};
use core::time::Duration;
use node::link::hello;
use node::sds::{DeviceConfig, DurableConfig, Sds, SdsConfig, Trouble};
use prost::Message;
use seam::{
    Buf, BufPool, ClientWrite, DialId, DiskOp, DownReason, Effect, Effects, Event, Head, Node,
    Note, Port,
};
use store::durable::Tuning;
use wire::control::{
    ClientInfo, DeviceInfo, GroupInfo, Hello, IdRange, MapPage, MdmInfo, Proposal, Refusal,
    RefusalCode, Registered, Report, Role, VolumeInfo, Welcome,
};
use wire::message::{
    self, Beacon, Io, Read, Replicate, Request, Seal, Sender, SyncStart, UnitRange, Write,
};
use wire::{Control, Frame, HANDSHAKE_VERSION, Header, Kind, control_frame, parse};

const MDM: &str = "10.0.0.1:7000";

/// One shard, and its effects so far.
struct Bench {
    sds: Sds,
    out: Effects,
    now: Time,
    links: u64,
    /// The version of the frames to the shard.
    speaks: u16,
    dials: Vec<(DialId, String)>,
    sent: Vec<(LinkId, Kind)>,
    /// The headers of the frames that were sent, newest first.
    asked: Vec<Header>,
    /// Questions for a map: the link, the number of the question, and the version of the map here.
    pulls: Vec<(LinkId, u64, u64)>,
    /// The parts of the reports to a recovering MDM.
    reports: Vec<Report>,
    /// The last report of the configuration to the MDM.
    proposal: Option<Proposal>,
    /// Number of answers to clients.
    replies: u32,
    /// The clients whose writes were sent to the other replica.
    begun: Vec<u32>,
    /// The map's version in the last frame that was sent.
    map: u64,
    closed: Vec<LinkId>,
    /// Malformed frames that the shard reported: their kinds, and the first wrong byte.
    malformed: Vec<(u8, u8)>,
    /// Links that are no longer strangers.
    welcome: Vec<LinkId>,
    /// The session number in the last refusal.
    refused: u64,
    /// The epoch that clients send.
    epoch: u64,
    /// Writes of the device that have not ended.
    writing: Vec<DiskOp>,
    /// The content of a durable device, whose operations end at once.
    disk: Vec<u8>,
}

/// Returns the version of the map that a frame names; 0 if it names none.
fn map_of(header: &Header) -> u64 {
    match Frame::try_from(header).unwrap() {
        Frame::Beacon(m) => m.sender.map.0,
        Frame::Grant(m) => m.sender.map.0,
        Frame::Reply(m) => m.map.0,
        Frame::MapPull(m) => m.have.0,
        Frame::MapPage(m) => m.map.0,
        _ => 0,
    }
}

/// Returns the head of a beacon.
fn beacon(sent: u64, map: u64, life: u64) -> Head {
    let (incarnation, map) = (Incarnation(life), MapVersion(map));
    wire::frame(Beacon { sender: Sender { incarnation, map }, sent: Time(sent) }, &[])
}

impl Bench {
    fn new() -> Bench {
        Bench::of(wire::DIALECT)
    }

    /// Creates a shard of this build in memory.
    fn of(dialect: base::Dialect) -> Bench {
        Bench::with(dialect, DeviceConfig::Ram { capacity: 1 << 24 }, Vec::new())
    }

    /// Creates a shard with a new durable device.
    fn durable() -> Bench {
        let (bytes, uuid, tuning) = (16 << 20, [1, 2], Tuning::SHIPPED);
        let device = DurableConfig { bytes, format: true, replace: false, uuid, tuning };
        Bench::on(DeviceConfig::Durable(device), vec![0; bytes as usize])
    }

    fn on(device: DeviceConfig, disk: Vec<u8>) -> Bench {
        Bench::with(wire::DIALECT, device, disk)
    }

    fn with(dialect: base::Dialect, device: DeviceConfig, disk: Vec<u8>) -> Bench {
        let config = SdsConfig {
            name: "a".into(),
            shard: 0,
            mdm: vec![MDM.parse().unwrap()],
            address: "10.0.1.1:7000".parse().unwrap(),
            device,
            home: Default::default(),
            nonce: 5,
            pid: 1,
            limits: Limits::TEST_MIN,
            dialect,
        };
        let mut bench = Bench {
            sds: Sds::new(config),
            out: Effects::new(BufPool::new(1 << 20), Prng::new(1), None),
            now: Time(1_000_000_000),
            links: 0,
            speaks: HANDSHAKE_VERSION,
            malformed: Vec::new(),
            dials: Vec::new(),
            sent: Vec::new(),
            asked: Vec::new(),
            pulls: Vec::new(),
            reports: Vec::new(),
            proposal: None,
            replies: 0,
            begun: Vec::new(),
            map: 0,
            closed: Vec::new(),
            welcome: Vec::new(),
            refused: 0,
            epoch: 1,
            writing: Vec::new(),
            disk,
        };
        bench.settle();
        bench
    }

    fn settle(&mut self) {
        while !self.step().is_empty() {}
    }

    /// Executes the effects once. Returns the device operations that have ended.
    fn step(&mut self) -> Vec<DiskOp> {
        let mut ended = Vec::new();
        self.sds.flush(self.now, &mut self.out);
        for effect in self.out.drain().collect::<Vec<_>>() {
            match effect {
                Effect::SendFirst { link, head } => {
                    let header = *parse(head.as_slice());
                    self.sent.push((link, header.kind().unwrap()));
                    self.map = map_of(&header);
                    self.asked.insert(0, header);
                }
                Effect::Welcome { link } => self.welcome.push(link),
                Effect::Send { link, head, body } => {
                    let header = *parse(head.as_slice());
                    if header.kind() == Some(Kind::Refusal) {
                        self.refused = Refusal::decode(&body[..]).unwrap().session;
                    }
                    if header.kind() == Some(Kind::Report) {
                        self.reports.push(Report::decode(&body[..]).unwrap());
                    }
                    if header.kind() == Some(Kind::Proposal) {
                        self.proposal = Some(Proposal::decode(&body[..]).unwrap());
                    }
                    self.sent.push((link, header.kind().unwrap()));
                    self.map = map_of(&header);
                    self.asked.insert(0, header);
                    match Frame::try_from(&header).unwrap() {
                        Frame::Reply(_) => self.replies += 1,
                        Frame::Replicate(m) => self.begun.push(m.client.sdc.0),
                        Frame::MapPull(m) => self.pulls.push((link, m.op, m.have.0)),
                        _ => {}
                    }
                }
                Effect::Close { link } => self.closed.push(link),
                Effect::Note(Note::Malformed { kind, at, .. }) => self.malformed.push((kind, at)),
                Effect::Write { op, at, body, .. } if !self.disk.is_empty() => {
                    self.disk[at as usize..][..body.len()].copy_from_slice(&body);
                    ended.push((op, Buf::EMPTY));
                }
                Effect::Read { op, at, len, .. } => {
                    let data = &self.disk[at as usize..][..len as usize];
                    ended.push((op, self.out.pool().copy(data)));
                }
                Effect::Flush { op, .. } => ended.push((op, Buf::EMPTY)),
                Effect::Write { op, .. } => self.writing.push(op),
                Effect::Dial { dial, to, .. } => self.dials.push((dial, to.to_string())),
                _ => {}
            }
        }
        let ops = ended.iter().map(|(op, _)| *op).collect();
        for (op, data) in ended {
            self.sds.on(self.now, Event::DiskDone { op, result: Ok(data) }, &mut self.out);
        }
        ops
    }

    fn link(&mut self, dial: Option<DialId>) -> LinkId {
        self.links += 1;
        let link = LinkId(self.links);
        self.sds.on(
            self.now,
            Event::LinkUp { link, port: Port::Ours, dial, at: None, from: None },
            &mut self.out,
        );
        self.settle();
        link
    }

    fn frame(&mut self, link: LinkId, kind: Kind, message: &impl Control) {
        let version = if kind.is_handshake() { HANDSHAKE_VERSION } else { self.speaks };
        let (head, body) = control_frame(version, Header::new(kind), message, self.out.pool());
        self.sds.on(self.now, Event::Frame { link, head: head.as_slice(), body }, &mut self.out);
        self.settle();
    }

    /// Lets the dial under way reach the MDM with this incarnation, which registers the shard.
    fn join_mdm(&mut self, life: u64) -> LinkId {
        let (dial, to) = self.dials.remove(0);
        assert_eq!(to, MDM);
        let link = self.link(Some(dial));
        let role = Role::Mdm as i32;
        let welcome =
            Welcome { cluster: 7, role, incarnation: life, version: 1, ..Welcome::default() };
        self.frame(link, Kind::Welcome, &welcome);
        assert!(self.sent.contains(&(link, Kind::Register)));
        let registered =
            Registered { cluster: 7, id: 3, incarnation: 9, map: 18, ..Registered::default() };
        self.frame(link, Kind::Registered, &registered);
        link
    }

    /// Lets a peer dial that claims to be this incarnation of a device or client.
    fn says(&mut self, role: Role, id: u32, incarnation: u64, session: u64) -> LinkId {
        let link = self.link(None);
        let hello = hello(&wire::DIALECT, ClusterId(7), role, "b");
        self.frame(link, Kind::Hello, &Hello { id, incarnation, session, map: 1 << 60, ..hello });
        link
    }

    /// Delivers a map from the MDM with these incarnations of devices and clients.
    fn map_of(&mut self, link: LinkId, version: u64, devices: &[(u32, u64)], sdcs: &[(u32, u64)]) {
        let device = |&(id, incarnation): &(u32, u64)| {
            let address = format!("10.0.1.{id}:7000");
            DeviceInfo { id, incarnation, address, up: true, ..DeviceInfo::default() }
        };
        let sdc = |&(id, incarnation): &(u32, u64)| ClientInfo { id, incarnation };
        let page = MapPage {
            version,
            last: true,
            cluster: 7,
            devices: devices.iter().map(device).collect(),
            sdcs: sdcs.iter().map(sdc).collect(),
            ..MapPage::default()
        };
        self.frame(link, Kind::MapPage, &page);
    }

    /// Lets an MDM dial that claims to listen at `address`, to find out whether this server is
    /// alive.
    fn is_asked(&mut self, cluster: u64, life: u64, address: &str) {
        let link = self.link(None);
        let ask = hello(&wire::DIALECT, ClusterId(cluster), Role::Mdm, "mdm");
        let ask = Hello { incarnation: life, address: address.into(), ..ask };
        self.frame(link, Kind::Hello, &ask);
    }

    /// Lets the dial to this address succeed, and an MDM with this incarnation welcome the shard
    /// there.
    fn reaches(&mut self, address: &str, life: u64) -> LinkId {
        let at = self.dials.iter().position(|(_, to)| to == address).expect("it is dialled");
        let (dial, _) = self.dials.remove(at);
        let link = self.link(Some(dial));
        let role = Role::Mdm as i32;
        let welcome = Welcome {
            cluster: 7,
            role,
            incarnation: life,
            map: self.sds.map().version.0,
            version: 1,
            ..Welcome::default()
        };
        self.frame(link, Kind::Welcome, &welcome);
        link
    }

    /// Delivers the MDM's answer that there is nothing new.
    fn mdm_answers(&mut self, link: LinkId) {
        self.frame(link, Kind::MapPage, &MapPage { last: true, ..MapPage::default() });
    }
}

#[test]
fn a_link_to_an_earlier_mdm_process_is_closed_when_the_present_one_welcomes() {
    let mut b = Bench::new();
    let old = b.join_mdm(1);
    b.is_asked(7, 2, MDM);
    assert_eq!(b.closed, []);
    let new = b.reaches(MDM, 2);
    assert_eq!(b.closed, [old]);
    assert!(b.sent.contains(&(new, Kind::Register)));
}

/// Anyone can claim to lead, and name any address.
#[test]
fn a_stranger_takes_no_server_away_from_its_mdm() {
    let mut b = Bench::new();
    let mdm = b.join_mdm(1);
    b.map_of(mdm, 18, &[(3, 9)], &[]);
    for round in 0..20 {
        for (cluster, address) in [(0, "10.9.9.9:1"), (7, "10.9.9.8:1"), (7, "10.9.9.7:1")] {
            b.is_asked(cluster, 100 + round, address);
        }
        assert_eq!(
            b.sent.iter().filter(|s| **s == (mdm, Kind::MapPull)).count() as u64,
            3 + round * 2
        );
        b.pass(Limits::TEST_MIN.suspect_after / 2);
        b.mdm_answers(mdm);
    }
    assert_eq!((b.closed.as_slice(), b.dials.as_slice()), ([].as_slice(), [].as_slice()));
    // An MDM that listens at the named address changes nothing if it is the followed one.
    b.is_asked(7, 500, MDM);
    let beside = b.reaches(MDM, 1);
    assert_eq!(b.closed, [beside]);
}

/// No map has the address of an MDM that has moved. It is followed when the former one is silent.
#[test]
fn an_mdm_at_a_new_address_is_followed_when_the_former_one_is_silent() {
    const NEW: &str = "10.0.0.9:7000";
    let mut b = Bench::new();
    let old = b.join_mdm(1);
    b.map_of(old, 18, &[(3, 9)], &[]);
    b.pass(Limits::TEST_MIN.suspect_after * 2);
    b.is_asked(7, 2, NEW);
    assert!(b.dials.is_empty());
    b.pass(Limits::TEST_MIN.suspect_after);
    b.settle();
    assert_eq!(b.closed, []);
    let new = b.reaches(NEW, 2);
    assert_eq!(b.closed, [old]);
    assert!(b.sent.contains(&(new, Kind::Register)));
    // A refusal at the former address is no sign of life of the MDM that was there.
    let mut b = Bench::new();
    let old = b.join_mdm(1);
    let down = Event::LinkDown { link: old, why: DownReason::Broken };
    b.sds.on(b.now, down, &mut b.out);
    b.is_asked(7, 2, NEW);
    for _ in 0..5 {
        b.pass(Limits::TEST_MIN.suspect_after / 4);
        b.settle();
        let Some(at) = b.dials.iter().position(|(_, to)| to == MDM) else { continue };
        let (dial, _) = b.dials.remove(at);
        let link = b.link(Some(dial));
        let wrong = Refusal { code: RefusalCode::WrongCluster as i32, ..Refusal::default() };
        b.frame(link, Kind::Refusal, &wrong);
    }
    let new = b.reaches(NEW, 2);
    assert!(b.sent.contains(&(new, Kind::Register)));
    // If the link is down, and the MDM has been silent for that long already, there is no wait.
    let mut b = Bench::new();
    let old = b.join_mdm(1);
    b.pass(Limits::TEST_MIN.suspect_after);
    let down = Event::LinkDown { link: old, why: DownReason::Broken };
    b.sds.on(b.now, down, &mut b.out);
    b.is_asked(7, 2, NEW);
    let new = b.reaches(NEW, 2);
    assert!(b.sent.contains(&(new, Kind::Register)));
}

/// A claimant that is dialled and sends nothing, or something other than a welcome, is given up.
#[test]
fn claimants_that_send_no_welcome_change_nothing() {
    let mut b = Bench::new();
    let mdm = b.join_mdm(1);
    let other = "10.0.0.2:7000";
    let mdms =
        [MDM, other].map(|address| MdmInfo { address: address.into(), ..MdmInfo::default() });
    let page =
        MapPage { version: 18, last: true, cluster: 7, mdms: mdms.into(), ..MapPage::default() };
    b.frame(mdm, Kind::MapPage, &page);
    b.is_asked(7, 2, other);
    b.is_asked(7, 3, other);
    assert_eq!(b.dials.len(), 1, "one at a time");
    let (dial, _) = b.dials.remove(0);
    let silent = b.link(Some(dial));
    b.pass(Limits::TEST_MIN.hello_within);
    b.settle();
    assert_eq!(b.closed, [silent]);
    b.is_asked(7, 4, other);
    let (dial, _) = b.dials.remove(0);
    let follower = b.link(Some(dial));
    b.frame(follower, Kind::Refusal, &Refusal::default());
    assert_eq!(b.closed, [silent, follower]);
    b.is_asked(7, 5, other);
    let leader = b.reaches(other, 5);
    assert_eq!(b.closed, [silent, follower, mdm]);
    assert!(b.sent.contains(&(leader, Kind::Register)));
}

#[test]
fn of_claimants_without_a_known_address_the_newest_four_are_tried() {
    let mut b = Bench::new();
    b.join_mdm(1);
    for host in 1..=9 {
        b.is_asked(7, 100 + host, &format!("10.9.9.{host}:1"));
    }
    assert_eq!(b.dials, []);
    // The followed MDM sends nothing.
    b.pass(Limits::TEST_MIN.suspect_after);
    let mut dialled: Vec<&str> = b.dials.iter().map(|(_, to)| to.as_str()).collect();
    dialled.sort_unstable();
    assert_eq!(dialled, ["10.9.9.6:1", "10.9.9.7:1", "10.9.9.8:1", "10.9.9.9:1"]);
}

#[test]
fn without_a_map_no_peer_is_believed_and_leases_need_peers_that_know_this_incarnation() {
    let mut b = Bench::new();
    let mdm = b.join_mdm(1);
    let leader = b.says(Role::Sds, 4, 2, 1);
    assert!(!b.sent.contains(&(leader, Kind::Welcome)));
    b.map_of(mdm, 18, &[(4, 2)], &[]);
    assert!(b.sent.contains(&(leader, Kind::Welcome)));
    let head = beacon(1, 17, 2);
    let event = Event::Frame { link: leader, head: head.as_slice(), body: Buf::EMPTY };
    b.sds.on(b.now, event, &mut b.out);
    b.settle();
    assert_eq!((b.sent.last(), b.map), (Some(&(leader, Kind::Grant)), 18));
}

/// A hello in another process's name, with an incarnation that was never assigned, does not keep
/// the rightful process out.
#[test]
fn an_incarnation_that_no_map_names_is_not_believed() {
    for (role, id, life) in [(Role::Sdc, 1, 5), (Role::Sds, 4, 2)] {
        let mut b = Bench::new();
        let mdm = b.join_mdm(1);
        b.map_of(mdm, 18, &[(3, 9), (4, 2)], &[(1, 5)]);
        let forged: Vec<LinkId> =
            [life + 1, life + 1000, 1 << 62].map(|life| b.says(role, id, life, 1)).into();
        let stranger = b.says(role, 77, 1, 1);
        assert!(b.sent.iter().all(|(_, kind)| *kind != Kind::Welcome) && b.closed.is_empty());
        let true_one = b.says(role, id, life, 1);
        assert_eq!(b.sent.last(), Some(&(true_one, Kind::Welcome)));
        assert_eq!(b.welcome, [true_one], "{role:?}");
        // A new incarnation is accepted as soon as the map has it. Those that were made up are
        // refused.
        b.map_of(mdm, 19, &[(4, life + 1)], &[(1, life + 1)]);
        assert!(b.sent.contains(&(forged[0], Kind::Welcome)), "{role:?}");
        b.now = b.now + Limits::TEST_MIN.hello_within;
        b.settle();
        for link in [forged[1], forged[2], stranger] {
            assert!(b.sent.contains(&(link, Kind::Refusal)) && b.closed.contains(&link));
        }
    }
}

/// A peer that sends more than a hello before it is answered is refused: its link stays
/// refused, even if newer maps come.
#[test]
fn a_hello_that_waits_is_forgotten_with_its_link() {
    for kind in [Kind::Beacon, Kind::Hello] {
        let mut b = Bench::new();
        let mdm = b.join_mdm(1);
        b.map_of(mdm, 18, &[(3, 9), (4, 2)], &[]);
        let link = b.says(Role::Sds, 4, 3, 1);
        let head = wire::frame(Header::new(kind), b"");
        let frame = Event::Frame { link, head: head.as_slice(), body: Buf::EMPTY };
        b.sds.on(b.now, frame, &mut b.out);
        b.settle();
        assert_eq!(b.closed, [link], "{kind:?}");
        let said = b.sent.iter().filter(|(to, _)| *to == link).count();
        b.map_of(mdm, 19, &[(3, 9), (4, 3)], &[]);
        assert!(!b.welcome.contains(&link), "{kind:?}");
        assert_eq!(b.sent.iter().filter(|(to, _)| *to == link).count(), said, "{kind:?}");
        let true_one = b.says(Role::Sds, 4, 3, 1);
        assert_eq!(b.sent.last(), Some(&(true_one, Kind::Welcome)), "{kind:?}");
    }
}

/// A peer that takes a session number leaves room for the next ones, and a peer that is refused is
/// told which number to continue from.
#[test]
fn no_session_uses_up_the_numbers() {
    let mut b = Bench::new();
    let mdm = b.join_mdm(1);
    b.map_of(mdm, 18, &[(3, 9)], &[(1, 5)]);
    let all = b.says(Role::Sdc, 1, 5, u64::MAX);
    assert_eq!(b.sent.last(), Some(&(all, Kind::Refusal)));
    let far = b.says(Role::Sdc, 1, 5, 1 << 31);
    assert_eq!(b.sent.last(), Some(&(far, Kind::Welcome)));
    let late = b.says(Role::Sdc, 1, 5, 2);
    assert_eq!((b.sent.last(), b.refused), (Some(&(late, Kind::Refusal)), 1 << 31));
    let next = b.says(Role::Sdc, 1, 5, b.refused + 1);
    assert_eq!(b.sent.last(), Some(&(next, Kind::Welcome)));
}

/// Anyone can dial and claim to be a server. Its map does not make a server follow a recovery of
/// which no MDM has told, and deletes nothing.
#[test]
fn a_server_s_word_is_not_enough_for_a_recovery_or_a_deletion() {
    let mut b = Bench::new();
    let mdm = b.join_mdm(1);
    let volume = VolumeInfo { id: 1, size: 1 << 20, ..VolumeInfo::default() };
    let device = |id: u32, incarnation| {
        let address = format!("10.0.1.{id}:7000");
        DeviceInfo { id, incarnation, address, up: true, ..DeviceInfo::default() }
    };
    let page = MapPage { version: 18, last: true, cluster: 7, ..MapPage::default() };
    let devices = vec![device(3, 9), device(4, 2)];
    let (volumes, live) = (vec![volume], vec![1]);
    let unknown = vec![IdRange { from: 2, to: 5 }];
    let first = MapPage { devices, volumes, live, unknown, next_volume: 6, ..page.clone() };
    b.frame(mdm, Kind::MapPage, &first);
    let other = b.says(Role::Sds, 4, 2, 1);
    // It is asked for each map that it claims to have, and answers.
    let told = |b: &mut Bench, version: u64| {
        for _ in 0..20 {
            let head = beacon(1, version, 2);
            let event = Event::Frame { link: other, head: head.as_slice(), body: Buf::EMPTY };
            b.sds.on(b.now, event, &mut b.out);
            b.settle();
            b.pass(Duration::from_millis(100));
        }
        let last = b.pulls.iter().rfind(|(link, ..)| *link == other).copied();
        let op = last.map_or(1, |(_, op, _)| op);
        let answer = message::MapPage { op, map: MapVersion(0) };
        let page = MapPage { version, next_volume: 1 << 30, ..page.clone() };
        let (head, body) = control_frame(HANDSHAKE_VERSION, answer, &page, b.out.pool());
        let event = Event::Frame { link: other, head: head.as_slice(), body };
        b.sds.on(b.now, event, &mut b.out);
        b.settle();
        last.is_some()
    };
    assert!(!told(&mut b, u64::MAX) && !told(&mut b, 1 << 32), "a recovery");
    assert_eq!(b.sds.map().version.0, 18);
    assert!(told(&mut b, 20), "a newer map");
    assert_eq!(b.sds.map().version.0, 20);
    let gone = |b: &Bench| {
        let ids = (1..6).filter(|id| b.sds.map().is_deleted(base::VolumeId(*id)));
        ids.collect::<Vec<u32>>()
    };
    assert_eq!(gone(&b), [5], "only an MDM says that");
    // The MDM is asked for what it has not sent itself, and its answer counts.
    b.frame(mdm, Kind::MapPage, &MapPage { version: 19, live: vec![1], ..page.clone() });
    assert!(b.sds.map().version.0 == 20 && gone(&b) == [5], "that is older");
    assert_eq!(b.pulls.last(), Some(&(mdm, 3, 19)));
    b.frame(mdm, Kind::MapPage, &MapPage { version: 20, next_volume: 6, ..page.clone() });
    assert_eq!(gone(&b), [1, 2, 3, 4, 5]);
    assert_eq!(b.pulls.last(), Some(&(mdm, 4, 20)));
}

impl Bench {
    /// Delivers a map in which device 3 is the primary of the only group, with these devices in
    /// sync.
    fn map(&mut self, mdm: LinkId, epoch: u64, in_sync: &[u32]) {
        self.map_led(mdm, epoch, 3, in_sync);
    }

    fn map_led(&mut self, mdm: LinkId, epoch: u64, primary: u32, in_sync: &[u32]) {
        let device = |id: u32, incarnation| DeviceInfo {
            id,
            sds: id,
            address: format!("10.0.1.{id}:7000"),
            incarnation,
            up: true,
            ..DeviceInfo::default()
        };
        let group = GroupInfo {
            id: 1,
            epoch,
            primary,
            replicas: vec![3, 4],
            in_sync: in_sync.to_vec(),
            ..GroupInfo::default()
        };
        let volume = VolumeInfo {
            id: 1,
            name: "v".into(),
            size: 1 << 20,
            slots: vec![1],
            ..VolumeInfo::default()
        };
        let page = MapPage {
            version: 20 + epoch,
            last: true,
            cluster: 7,
            devices: vec![device(3, 9), device(4, 2)],
            groups: vec![group],
            volumes: vec![volume],
            live: vec![1],
            next_volume: 2,
            sdcs: (1..10).map(|id| ClientInfo { id, incarnation: 8 }).collect(),
            ..MapPage::default()
        };
        self.frame(mdm, Kind::MapPage, &page);
    }

    fn client(&mut self, id: u32) -> LinkId {
        let link = self.link(None);
        let hello = hello(&wire::DIALECT, ClusterId(7), Role::Sdc, "c");
        self.frame(link, Kind::Hello, &Hello { id, incarnation: 8, session: 1, ..hello });
        link
    }

    /// Lets all writes of the device end.
    fn device_ends(&mut self) {
        for op in std::mem::take(&mut self.writing) {
            let ended = Event::DiskDone { op, result: Ok(Buf::EMPTY) };
            self.sds.on(self.now, ended, &mut self.out);
            self.settle();
        }
    }

    /// Delivers a frame of device 4, which is the primary in epoch 1. A write is one of client 5,
    /// with incarnation `life`.
    fn stream(&mut self, link: LinkId, kind: Kind, life: u64, body: &[u8]) {
        let (group, epoch, lsn) = (GroupId(1), Epoch(1), Lsn(1));
        let h: Header = match kind {
            Kind::SyncStart => {
                let (question, after, all, joiner) = (0, Lsn(0), false, false);
                SyncStart { question, group, epoch, after, all, joiner }.into()
            }
            Kind::Seal => Seal { group, epoch, lsn: Lsn(0) }.into(),
            Kind::Replicate => {
                let unit = UnitKey { volume: VolumeId(1), index: 0 };
                let incarnation = Incarnation(life);
                let range = UnitRange { unit, at: 0, len: 512 };
                let client = ClientWrite { sdc: SdcId(5), incarnation, seq: 1, floor: 1 };
                Replicate { client, ..Replicate::new(1, group, epoch, lsn, range) }.into()
            }
            other => panic!("no {other:?} of a stream"),
        };
        let (head, body) = (wire::frame(h, body), self.out.pool().copy(body));
        self.sds.on(self.now, Event::Frame { link, head: head.as_slice(), body }, &mut self.out);
        self.settle();
    }

    fn io(&mut self, link: LinkId, kind: Kind, op: u64, at: u32, body: &[u8]) {
        let unit = UnitKey { volume: VolumeId(1), index: 0 };
        let (sdc, incarnation) = (SdcId(0), Incarnation(0));
        let request = Request {
            op,
            group: GroupId(1),
            epoch: Epoch(self.epoch),
            range: UnitRange { unit, at, len: 512 },
            client: ClientWrite { sdc, incarnation, seq: op, floor: op },
            ..Request::default()
        };
        let io = match kind {
            Kind::Read => Io::Read(Read { request, retry: false }),
            Kind::Write => Io::Write(Write { request, retry: false }),
            other => panic!("no {other:?}"),
        };
        let (head, body) = (wire::frame(&io, body), self.out.pool().copy(body));
        self.sds.on(self.now, Event::Frame { link, head: head.as_slice(), body }, &mut self.out);
        self.settle();
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.sds.wake_at().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.sds.on(self.now, Event::Tick, &mut self.out);
            self.settle();
        }
        self.now = end;
    }
}
