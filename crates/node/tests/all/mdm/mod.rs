//! The MDM as a node, driven by hand in virtual time: registration, maps, verdicts, orders, and its
//! disk.

pub(crate) mod clients;
pub(crate) mod contacts;
mod copies;
mod hosts;
mod malformed;
mod members;
mod recovery;
mod registration;
pub(crate) mod reservations;
pub(crate) mod seats;
mod versions;

use base::{ClusterId, DeviceId, Limits, LinkId, MapVersion, Prng, Time};
use core::time::Duration;
use node::link::hello;
use node::mapview::MapView;
use node::mdm::{Config, Mdm};
use prost::Message;
use seam::{
    Buf, BufPool, DialError, DialId, DiskError, DiskOp, DownReason, Effect, Effects, Event, Node,
    Note, Port,
};
use std::collections::BTreeMap;
use wire::control::*;
use wire::{Control, HANDSHAKE_VERSION, Header, Kind, control_frame, parse};

/// One MDM, its disk, and the peers.
struct Bench {
    mdm: Mdm,
    out: Effects,
    pool: BufPool,
    now: Time,
    disk: BTreeMap<u64, Vec<u8>>,
    /// Disk operations that wait. They end at once unless the disk is held.
    waiting: Vec<Effect>,
    held: bool,
    /// Frames that arrived on each link, decoded later.
    inbox: BTreeMap<LinkId, Vec<(Header, Vec<u8>)>>,
    closed: Vec<LinkId>,
    /// Links that are no longer strangers.
    welcome: Vec<LinkId>,
    dials: Vec<(DialId, String)>,
    notes: Vec<Note>,
    links: u64,
    writes: u32,
    /// The version of the frames to the MDM.
    speaks: u16,
}

fn config(limits: Limits) -> Config {
    let address = "10.0.0.1:7000".parse().unwrap();
    let (name, cluster) = ("mdm".into(), Some(ClusterId(7)));
    Config { name, address, join: false, cluster, limits, pid: 42, dialect: wire::DIALECT }
}

impl Bench {
    fn new() -> Bench {
        let mut bench = Bench::on_disk(BTreeMap::new(), config(Limits::TEST_MIN));
        bench.settle();
        assert!(bench.mdm.is_settled());
        bench
    }

    fn on_disk(disk: BTreeMap<u64, Vec<u8>>, config: Config) -> Bench {
        let pool = BufPool::new(1 << 20);
        Bench {
            mdm: Mdm::new(config),
            out: Effects::new(pool.clone(), Prng::new(1), None),
            pool,
            now: Time(1_000_000_000),
            disk,
            waiting: Vec::new(),
            held: false,
            inbox: BTreeMap::new(),
            closed: Vec::new(),
            welcome: Vec::new(),
            dials: Vec::new(),
            notes: Vec::new(),
            links: 0,
            writes: 0,
            speaks: HANDSHAKE_VERSION,
        }
    }

    /// Lets the MDM work until it has nothing to do.
    fn settle(&mut self) {
        loop {
            self.mdm.flush(self.now, &mut self.out);
            let effects: Vec<Effect> = self.out.drain().collect();
            effects.into_iter().for_each(|e| self.effect(e));
            if self.held || self.waiting.is_empty() {
                return;
            }
            self.disk_step(None);
        }
    }

    fn effect(&mut self, effect: Effect) {
        match effect {
            Effect::Send { link, head, body } => {
                let frame = (*parse(head.as_slice()), body.to_vec());
                self.inbox.entry(link).or_default().push(frame);
            }
            Effect::Close { link } => self.closed.push(link),
            Effect::Dial { dial, to, .. } => self.dials.push((dial, to.to_string())),
            Effect::Note(note) => self.notes.push(note),
            Effect::Welcome { link } => self.welcome.push(link),
            e @ (Effect::Read { .. } | Effect::Write { .. } | Effect::Flush { .. }) => {
                self.waiting.push(e)
            }
            other => panic!("{other:?}"),
        }
    }

    /// Ends the oldest disk operation.
    fn disk_step(&mut self, error: Option<DiskError>) {
        let (op, result): (DiskOp, Buf) = match self.waiting.remove(0) {
            Effect::Read { op, at, len, .. } => {
                let mut buf = self.pool.zeroed(len as usize);
                for (i, part) in buf.as_mut().chunks_mut(4096).enumerate() {
                    if let Some(block) = self.disk.get(&(at / 4096 + i as u64)) {
                        part.copy_from_slice(block);
                    }
                }
                (op, buf)
            }
            Effect::Write { op, at, body, .. } => {
                for (i, part) in body.chunks(4096).enumerate() {
                    self.disk.insert(at / 4096 + i as u64, part.to_vec());
                }
                self.writes += 1;
                (op, Buf::EMPTY)
            }
            Effect::Flush { op, .. } => (op, Buf::EMPTY),
            other => panic!("{other:?}"),
        };
        let result = error.map_or(Ok(result), Err);
        self.mdm.on(self.now, Event::DiskDone { op, result }, &mut self.out);
    }

    fn connect(&mut self) -> LinkId {
        self.links += 1;
        let link = LinkId(self.links);
        self.mdm.on(
            self.now,
            Event::LinkUp { link, port: Port::Ours, dial: None, at: None, from: None },
            &mut self.out,
        );
        link
    }

    fn send(&mut self, link: LinkId, header: Header, message: &impl Control) {
        let handshake = header.kind().is_some_and(Kind::is_handshake);
        let version = if handshake { HANDSHAKE_VERSION } else { self.speaks };
        let (head, body) = control_frame(version, header, message, &self.pool);
        self.mdm.on(self.now, Event::Frame { link, head: head.as_slice(), body }, &mut self.out);
        self.settle();
    }

    fn say_hello(&mut self, role: Role) -> LinkId {
        let link = self.connect();
        self.send(
            link,
            Header::new(Kind::Hello),
            &hello(&wire::DIALECT, ClusterId(0), role, "someone"),
        );
        link
    }

    /// Takes the frames of this kind that arrived on a link.
    fn take<M: Message + Default>(&mut self, link: LinkId, kind: Kind) -> Vec<M> {
        let all = std::mem::take(self.inbox.entry(link).or_default());
        let (mine, rest) = all.into_iter().partition(|(h, _): &(Header, _)| h.kind() == Some(kind));
        self.inbox.insert(link, rest);
        let mine: Vec<(Header, Vec<u8>)> = mine;
        mine.iter().map(|(_, body)| M::decode(&body[..]).unwrap()).collect()
    }

    fn refusal(&mut self, link: LinkId) -> (RefusalCode, String) {
        let refusal: Refusal = self.take(link, Kind::Refusal).pop().expect("a refusal");
        assert!(self.closed.contains(&link), "and then the link is closed");
        (refusal.code(), refusal.text)
    }

    /// Registers an SDS on a new link.
    fn sds(
        &mut self,
        name: &str,
        nonce: u64,
        store: u64,
        kind: DeviceKind,
    ) -> (LinkId, Registered) {
        let link = self.say_hello(Role::Sds);
        self.register(link, name, nonce, store, kind);
        let registered = self.take(link, Kind::Registered).pop().expect("registered");
        (link, registered)
    }

    fn register(&mut self, link: LinkId, name: &str, nonce: u64, store: u64, kind: DeviceKind) {
        let message = Register {
            sds: name.into(),
            nonce,
            store,
            address: format!("10.0.0.{}:7000", name.len()),
            capacity: 1 << 30,
            kind: kind as i32,
            ..Register::default()
        };
        self.send(link, Header::new(Kind::Register), &message);
    }

    fn beat(&mut self, links: &[LinkId]) {
        for link in links {
            let beat = Heartbeat { used: 1000, ..Heartbeat::default() };
            self.send(*link, Header::new(Kind::Heartbeat), &beat);
        }
    }

    /// Lets time pass, while the peers on these links send heartbeats.
    fn pass(&mut self, ms: u64, alive: &[LinkId]) {
        let end = self.now + Duration::from_millis(ms);
        let mut next_beat = self.now;
        while self.now < end {
            let wake = self.mdm.wake_at().unwrap_or(Time::NEVER);
            self.now = self.now.max(wake.min(next_beat)).min(end);
            if self.now >= wake {
                self.mdm.on(self.now, Event::Tick, &mut self.out);
            }
            if self.now >= next_beat {
                self.beat(alive);
                next_beat = self.now + Duration::from_millis(200);
            }
            self.settle();
        }
    }

    fn ask(&mut self, ask: Ask) -> AdminReply {
        let link = self.say_hello(Role::Admin);
        self.order(link, ask);
        self.take(link, Kind::AdminReply).pop().expect("an answer")
    }

    fn order(&mut self, link: LinkId, ask: Ask) {
        self.send(link, Header::new(Kind::Admin), &AdminRequest::of(ask));
    }

    fn create(&mut self, name: &str) -> AdminReply {
        self.ask(Ask::CreateVolume(CreateVolume {
            name: name.into(),
            size: 1 << 20,
            ..CreateVolume::default()
        }))
    }

    fn pull(&mut self, link: LinkId, have: MapVersion, wait: bool) -> Vec<MapPage> {
        let head = wire::frame(wire::message::MapPull { op: 0, have, wait }, b"");
        let pull = Event::Frame { link, head: head.as_slice(), body: Buf::EMPTY };
        self.mdm.on(self.now, pull, &mut self.out);
        self.settle();
        self.take(link, Kind::MapPage)
    }

    fn drop_link(&mut self, link: LinkId) {
        self.mdm.on(self.now, Event::LinkDown { link, why: DownReason::Closed }, &mut self.out);
        self.settle();
    }

    fn dial_failed(&mut self, why: DialError) {
        let (dial, _) = self.dials.pop().expect("a dial");
        self.mdm.on(self.now, Event::DialFailed { dial, why }, &mut self.out);
        self.settle();
    }

    fn device(&self, id: u32) -> (bool, bool, u64) {
        let d = &self.mdm.state().devices[&DeviceId(id)];
        (d.up, d.dead, d.incarnation.0)
    }

    /// Creates an MDM with two servers and a volume.
    fn with_volume(kind: DeviceKind) -> (Bench, LinkId, LinkId) {
        let mut b = Bench::new();
        let (one, _) = b.sds("a", 1, 11, kind);
        let (two, _) = b.sds("bb", 2, 12, kind);
        let reply = b.create("v");
        assert_eq!((reply.error, reply.volume.unwrap().groups), (0, 4), "{}", reply.text);
        (b, one, two)
    }
}

#[test]
fn a_cluster_forms_registers_and_makes_volumes() {
    let (mut b, one, _) = Bench::with_volume(DeviceKind::Ram);
    assert_eq!(b.mdm.state().cluster, ClusterId(7));
    let mut view = MapView::default();
    for page in b.pull(one, MapVersion(0), true) {
        view.page(page);
    }
    assert_eq!(view.version, b.mdm.state().version);
    assert_eq!((view.devices.len(), view.volumes.len()), (2, 1));
    b.beat(&[one]);
    let status = b.ask(Ask::Status(StatusRequest {})).status.unwrap();
    assert_eq!((status.groups, status.groups_degraded, status.groups_failed), (4, 0, 0));
    assert_eq!((status.bytes_protected, status.mdm_pid), (1000, 42));
    assert!(status.devices.iter().all(|d| d.connected && d.primaries == 2 && d.replicas == 4));
}

#[test]
fn pulls_wait_for_news_one_per_link_and_see_nothing_that_is_not_durable() {
    let (mut b, one, two) = Bench::with_volume(DeviceKind::Ram);
    let version = b.mdm.state().version;
    assert!(b.pull(one, version, true).is_empty() && b.pull(one, version, true).is_empty());
    let now = b.pull(two, version, false);
    assert_eq!(
        (now.len(), now[0].last, now[0].version),
        (1, true, version.0),
        "nothing new, said at once"
    );
    b.held = true;
    let admin = b.say_hello(Role::Admin);
    b.order(
        admin,
        Ask::CreateVolume(CreateVolume { name: "w".into(), size: 1, ..CreateVolume::default() }),
    );
    assert!(b.mdm.state().version > version, "applied");
    let early = b.pull(two, MapVersion(0), false);
    assert!(
        early.is_empty() && b.take::<AdminReply>(admin, Kind::AdminReply).is_empty(),
        "but not durable"
    );
    b.held = false;
    b.settle();
    assert_eq!(b.take::<AdminReply>(admin, Kind::AdminReply).len(), 1);
    assert_eq!(b.take::<MapPage>(one, Kind::MapPage).len(), 1);
    assert_eq!(b.take::<MapPage>(two, Kind::MapPage).len(), 1);
    assert!(b.mdm.is_settled());
}

#[test]
fn a_killed_server_is_known_to_be_dead_as_soon_as_its_address_refuses() {
    let (mut b, one, _) = Bench::with_volume(DeviceKind::Ram);
    b.drop_link(one);
    assert_eq!(b.dials.last().unwrap().1, "10.0.0.1:7000");
    assert_eq!(b.device(1), (true, false, 1), "a lost link alone proves nothing");
    b.dial_failed(DialError::Refused);
    assert_eq!(b.device(1), (false, true, 1));
    assert!(b.notes.contains(&Note::DeviceDown { device: DeviceId(1), proof: true }));
    let status = b.ask(Ask::Status(StatusRequest {})).status.unwrap();
    assert_eq!((status.groups_degraded, status.groups_failed), (4, 0));
}

#[test]
fn a_server_that_is_heard_is_not_dead_because_its_address_refuses() {
    let (mut b, one, two) = Bench::with_volume(DeviceKind::Ram);
    let (three, _) = b.sds("ccc", 3, 13, DeviceKind::Ram);
    let m = Proposal { device: 1, incarnation: 1, refused: vec![3], ..Proposal::default() };
    b.send(one, Header::new(Kind::Proposal), &m);
    assert_eq!(b.dials.last().unwrap().1, "10.0.0.3:7000", "another server says that it refuses");
    b.dial_failed(DialError::Refused);
    b.pass(1500, &[one, two, three]);
    assert!(b.notes.contains(&Note::RefusesAlive { device: DeviceId(3) }));
    b.dial_failed(DialError::Refused);
    b.drop_link(three);
    b.dial_failed(DialError::Refused);
    assert_eq!(b.device(3), (true, false, 3), "a refusal says nothing here");
    b.pass(1300, &[one, two]);
    b.dial_failed(DialError::Refused);
    assert_eq!(b.device(3), (false, false, 3), "it is silent, and no more is known");
}

#[test]
fn silence_is_noticed_and_a_heartbeat_ends_it() {
    let (mut b, one, two) = Bench::with_volume(DeviceKind::Durable);
    b.pass(3000, &[one, two]);
    assert_eq!((b.device(1), b.device(2)), ((true, false, 1), (true, false, 2)));
    b.pass(1300, &[one]);
    assert_eq!((b.device(1), b.device(2)), ((true, false, 1), (false, false, 2)));
    b.dial_failed(DialError::Unreachable);
    b.beat(&[two]);
    assert_eq!(b.device(2), (true, false, 2));
    let index = b.mdm.state().index;
    b.pass(3000, &[one, two]);
    assert_eq!(b.mdm.state().index, index, "quiet again");
}

#[test]
fn an_mdm_that_was_paused_suspects_no_server() {
    let (mut b, one, two) = Bench::with_volume(DeviceKind::Durable);
    b.pass(500, &[one, two]);
    b.now = b.now + Duration::from_secs(30);
    b.pass(900, &[]);
    assert!(b.device(1).0 && b.device(2).0);
    b.pass(400, &[]);
    assert!(b.device(1).0 && b.device(2).0, "nor as long as it hears nobody");
    b.pass(1200, &[one]);
    assert!(b.device(1).0 && !b.device(2).0);
}

#[test]
fn proposals_change_the_map_once() {
    let (mut b, one, _) = Bench::with_volume(DeviceKind::Durable);
    let m = Proposal {
        device: 1,
        incarnation: 1,
        suspects: vec![2],
        refused: vec![2],
        ..Proposal::default()
    };
    b.send(one, Header::new(Kind::Proposal), &m);
    let (index, writes) = (b.mdm.state().index, b.writes);
    for _ in 0..10 {
        b.send(one, Header::new(Kind::Proposal), &m);
    }
    assert_eq!((b.mdm.state().index, b.writes), (index, writes), "the log doesn't grow");
    assert_eq!(b.dials.len(), 1, "one dial at a time");
    b.dial_failed(DialError::Refused);
    assert_eq!(b.device(2), (true, false, 2), "it is connected and not silent: not dead");
    let foreign = Proposal { device: 2, incarnation: 2, ..m };
    b.send(one, Header::new(Kind::Proposal), &foreign);
    assert_eq!(b.refusal(one).0, RefusalCode::Unexpected);
}

#[test]
fn everything_is_there_after_a_restart_and_clocks_begin_anew() {
    let (mut b, _, _) = Bench::with_volume(DeviceKind::Ram);
    let before = b.mdm.state().clone();
    let mut again = Bench::on_disk(std::mem::take(&mut b.disk), config(Limits::TEST_MIN));
    again.held = true;
    again.settle();
    let early = again.say_hello(Role::Sds);
    assert!(again.inbox.is_empty(), "nobody is answered before the log is read");
    again.held = false;
    again.settle();
    assert_eq!(again.mdm.state(), &before);
    assert_eq!(again.take::<Welcome>(early, Kind::Welcome).len(), 1);
    assert_eq!(again.dials.len(), 2, "it says who it is");
    again.dial_failed(DialError::Refused);
    again.dial_failed(DialError::Refused);
    again.pass(900, &[]);
    assert!(again.device(1).0 && again.device(2).0, "who isn't there yet may be starting, too");
    again.pass(200, &[]);
    assert!(again.device(1).0 && again.device(2).0, "who hears nobody suspects itself");
    assert_eq!(again.dials.len(), 2, "silent, or dead?");
    again.dial_failed(DialError::Refused);
    again.dial_failed(DialError::Refused);
    let status = again.ask(Ask::Status(StatusRequest {})).status.unwrap();
    assert_eq!((status.groups, status.groups_failed), (4, 4), "memory is lost");
    assert_eq!(status.devices.iter().filter(|d| d.info.as_ref().unwrap().dead).count(), 2);
}

#[test]
fn a_starting_mdm_tells_every_server_its_incarnation() {
    let (mut b, _, _) = Bench::with_volume(DeviceKind::Ram);
    let mut again = Bench::on_disk(std::mem::take(&mut b.disk), config(Limits::TEST_MIN));
    again.settle();
    let dials = std::mem::take(&mut again.dials);
    let addresses: Vec<&str> = dials.iter().map(|(_, to)| to.as_str()).collect();
    assert_eq!(addresses, ["10.0.0.1:7000", "10.0.0.2:7000"]);
    let link = LinkId(99);
    let dial = Some(dials[0].0);
    again.mdm.on(
        again.now,
        Event::LinkUp { link, port: Port::Ours, dial, at: None, from: None },
        &mut again.out,
    );
    again.settle();
    let told = again.take::<Hello>(link, Kind::Hello).remove(0);
    assert_eq!((told.role(), told.cluster), (Role::Mdm, 7));
    assert_eq!(again.closed, [link], "it wants nothing else");
    let server = again.say_hello(Role::Sds);
    let welcome = again.take::<Welcome>(server, Kind::Welcome).remove(0);
    assert_eq!(welcome.incarnation, told.incarnation);
    assert_ne!(welcome.incarnation, 0);
}

#[test]
fn a_log_of_another_cluster_and_garbage_are_refused_with_an_explanation() {
    let (mut b, _, _) = Bench::with_volume(DeviceKind::Ram);
    let other = Config { cluster: Some(ClusterId(8)), ..config(Limits::TEST_MIN) };
    let mut again = Bench::on_disk(std::mem::take(&mut b.disk), other);
    again.settle();
    assert!(again.mdm.failed().unwrap().contains("cluster 0000000000000007"));
    let mut again =
        Bench::on_disk((0..9).map(|i| (i, vec![b'x'; 4096])).collect(), config(Limits::TEST_MIN));
    again.settle();
    assert!(again.mdm.failed().is_some());
    let reply = again.create("v");
    assert_eq!(reply.error(), AdminError::Log);
    assert!(reply.text.contains("not an MDM's log"));
    let sds = again.say_hello(Role::Sds);
    assert!(again.refusal(sds).1.contains("not an MDM's log"));
}

/// Creates an MDM with a copy of this one's log at another address. It has dialled this one's.
fn copy_of(original: &Bench) -> (Bench, LinkId) {
    let moved = Config { address: "10.0.0.9:7000".parse().unwrap(), ..config(Limits::TEST_MIN) };
    let mut copy = Bench::on_disk(original.disk.clone(), moved);
    copy.settle();
    let early = copy.say_hello(Role::Sds);
    assert!(copy.inbox.is_empty() && !copy.mdm.is_ready(), "nobody is answered before it knows");
    assert_eq!(copy.dials.last().unwrap().1, "10.0.0.1:7000");
    (copy, early)
}

impl Bench {
    /// Lets the dial succeed. Returns the link, and the hello that was sent on it.
    fn dial_up(&mut self) -> (LinkId, Hello) {
        let (dial, _) = self.dials.pop().expect("a dial");
        self.links += 1;
        let link = LinkId(self.links);
        let up = Event::LinkUp { link, port: Port::Ours, dial: Some(dial), at: None, from: None };
        self.mdm.on(self.now, up, &mut self.out);
        self.settle();
        (link, self.take::<Hello>(link, Kind::Hello).remove(0))
    }

    fn leads_at(&self, address: &str) -> bool {
        self.mdm.is_settled() && self.mdm.state().members.list[&1].address == address
    }
}

#[test]
fn a_copy_of_the_only_mdms_log_does_not_lead_beside_it() {
    let (mut b, _, _) = Bench::with_volume(DeviceKind::Ram);
    let (mut copy, early) = copy_of(&b);
    let (asking, question) = copy.dial_up();
    let asked = b.connect();
    b.send(asked, Header::new(Kind::Hello), &question);
    let (code, text) = b.refusal(asked);
    assert_eq!(code, RefusalCode::WrongMember);
    copy.send(asking, Header::new(Kind::Refusal), &node::refusals::refusal(code, text.clone()));
    assert!(text.contains("stop the one there first"), "{text}");
    assert_eq!(copy.mdm.failed(), Some(&text[..]));
    assert_eq!(copy.refusal(early).1, text, "servers are told, too");
    assert!(b.leads_at("10.0.0.1:7000"));
}

#[test]
fn an_mdm_that_was_moved_leads_where_it_is_now() {
    let (b, _, _) = Bench::with_volume(DeviceKind::Ram);
    let here = "10.0.0.9:7000";
    for why in [DialError::Refused, DialError::Unreachable] {
        let (mut moved, early) = copy_of(&b);
        moved.dial_failed(why);
        assert!(moved.leads_at(here), "nobody listens there");
        assert_eq!(moved.take::<Welcome>(early, Kind::Welcome).len(), 1);
    }
    let (mut moved, _) = copy_of(&b);
    let (asking, _) = moved.dial_up();
    moved.pass(10_000, &[]);
    assert!(!moved.mdm.is_ready(), "who says nothing may be the one, standing still");
    moved.drop_link(asking);
    assert!(moved.leads_at(here), "no MDM ends such a link without a word");
    let (mut moved, _) = copy_of(&b);
    let (asking, _) = moved.dial_up();
    let other = node::refusals::refusal(RefusalCode::WrongCluster, "this is cluster 8");
    moved.send(asking, Header::new(Kind::Refusal), &other);
    assert!(moved.leads_at(here), "an MDM of another cluster is there now");
    let (mut moved, _) = copy_of(&b);
    let (_, question) = moved.dial_up();
    let own = moved.connect();
    moved.send(own, Header::new(Kind::Hello), &question);
    assert!(moved.leads_at(here), "it listens there as well");
    let mut again = Bench::on_disk(
        std::mem::take(&mut moved.disk),
        Config { address: here.parse().unwrap(), ..config(Limits::TEST_MIN) },
    );
    again.settle();
    assert!(again.leads_at(here), "from then on that is where it is");
}

#[test]
fn a_disk_error_stops_everything_with_a_clear_error() {
    let (mut b, one, two) = Bench::with_volume(DeviceKind::Ram);
    let version = b.mdm.state().version;
    b.held = true;
    let admin = b.say_hello(Role::Admin);
    b.order(admin, Ask::DeleteVolume(DeleteVolume { name: "v".into(), unmap: false }));
    b.order(admin, Ask::DeleteVolume(DeleteVolume { name: "v".into(), unmap: false }));
    b.held = false;
    b.disk_step(Some(DiskError::NoSpace));
    b.settle();
    let replies: Vec<AdminReply> = b.take(admin, Kind::AdminReply);
    assert_eq!(replies.len(), 2);
    assert!(
        replies.iter().all(|r| r.error() == AdminError::Log && r.text.contains("no space left"))
    );
    assert!(b.pull(one, version, false).is_empty(), "nothing undurable is told");
    b.pass(5000, &[two]);
    assert_eq!(b.create("w").error(), AdminError::Log);
    assert!(b.waiting.is_empty() && b.mdm.wake_at().is_none());
}

#[test]
fn strangers_and_garbage_end_their_own_link_only() {
    let (mut b, one, _) = Bench::with_volume(DeviceKind::Ram);
    let link = b.connect();
    b.send(link, Header::new(Kind::Heartbeat), &Heartbeat::default());
    assert_eq!(b.refusal(link).0, RefusalCode::Unexpected);
    for (cluster, role, code) in [
        (8, Role::Sds, RefusalCode::WrongCluster),
        (7, Role::Mdm, RefusalCode::NotMe),
        (7, Role::Unknown, RefusalCode::NotMe),
    ] {
        let link = b.connect();
        b.send(
            link,
            Header::new(Kind::Hello),
            &hello(&wire::DIALECT, ClusterId(cluster), role, "x"),
        );
        assert_eq!(b.refusal(link).0, code);
    }
    let frames: [(Role, Kind, &[u8]); 5] = [
        (Role::Sdc, Kind::Proposal, b""),
        (Role::Sds, Kind::Register, b"\xff\xff\xff"),
        (Role::Admin, Kind::Admin, b"\x12\x7f"),
        (Role::Sds, Kind::Write, b"data"),
        (Role::Sdc, Kind::RegisterSdc, &[0; 600 << 10]),
    ];
    for (role, kind, bytes) in frames {
        let link = b.say_hello(role);
        let body = b.pool.copy(bytes);
        let head = wire::frame(Header::new(kind), bytes);
        b.mdm.on(b.now, Event::Frame { link, head: head.as_slice(), body }, &mut b.out);
        b.settle();
        let (code, text) = b.refusal(link);
        assert_eq!(code, RefusalCode::Unexpected, "{kind:?}: {text}");
    }
    let link = b.say_hello(Role::Sds);
    let head = wire::frame(Header::new(Kind::Register), b"abc");
    let body = b.pool.copy(b"abd");
    b.mdm.on(b.now, Event::Frame { link, head: head.as_slice(), body }, &mut b.out);
    b.settle();
    assert!(b.notes.contains(&Note::BadBody { link }) && b.closed.contains(&link));
    b.beat(&[one]);
    assert!(!b.closed.contains(&one));
    let reply = b.ask(Ask::CreateVolume(CreateVolume {
        name: "x".repeat(1000),
        size: 1,
        ..CreateVolume::default()
    }));
    assert_eq!(reply.error(), AdminError::Invalid);
    assert!(reply.text.len() < 300);
    let link = b.say_hello(Role::Admin);
    b.send(link, Header::new(Kind::Admin), &AdminRequest::default());
    assert_eq!(b.take::<AdminReply>(link, Kind::AdminReply)[0].error(), AdminError::Other);
}

#[test]
fn queues_are_bounded() {
    let (mut b, _, _) = Bench::with_volume(DeviceKind::Ram);
    b.held = true;
    let admin = b.say_hello(Role::Admin);
    let ask =
        || Ask::CreateVolume(CreateVolume { name: "w".into(), size: 1, ..CreateVolume::default() });
    (0..100).for_each(|_| b.order(admin, ask()));
    let early: Vec<AdminReply> = b.take(admin, Kind::AdminReply);
    assert!(early.len() > 80 && early.iter().all(|r| r.text.contains("try again")));
    b.held = false;
    b.settle();
    let late: Vec<AdminReply> = b.take(admin, Kind::AdminReply);
    assert_eq!(early.len() + late.len(), 100);
    assert_eq!(late.iter().filter(|r| r.error() == AdminError::None).count(), 1);
    assert!(late[1..].iter().all(|r| r.error() == AdminError::NameTaken));
}

#[test]
fn a_peer_that_has_not_registered_is_a_stranger() {
    let mut b = Bench::new();
    let link = b.say_hello(Role::Sds);
    assert!(!b.welcome.contains(&link), "a hello alone says nothing: anybody can send one");
    b.register(link, "a", 1, 11, DeviceKind::Ram);
    assert!(b.welcome.contains(&link));
}

#[test]
fn of_too_many_links_for_orders_the_oldest_is_closed_and_members_stay() {
    let mut b = Bench::new();
    let (server, _) = b.sds("a", 1, 11, DeviceKind::Ram);
    let links: Vec<LinkId> = (0..600).map(|_| b.say_hello(Role::Admin)).collect();
    assert_eq!(b.closed, links[..600 - 512]);
    assert!(links.iter().all(|link| b.welcome.contains(link)));
    b.beat(&[server]);
    assert!(!b.closed.contains(&server));
    let status = b.ask(Ask::Status(StatusRequest {})).status.expect("orders are answered");
    assert!(status.devices[0].connected);
}
