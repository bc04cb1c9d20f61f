//! A shard of a data server as a node, driven by hand: its link to the MDM.

use base::{ClusterId, Limits, LinkId, Prng, Time};
use node::links::hello;
use node::sds::{DeviceConfig, Sds, SdsConfig};
use prost::Message;
use seam::{Buf, BufPool, DialId, Effect, Effects, Event, Node, Port};
use wire::control::{Hello, Registered, Role, Welcome};
use wire::{Header, Kind, control_frame, parse};

const MDM: &str = "10.0.0.1:7000";

/// One shard, and what it did.
struct Bench {
    sds: Sds,
    out: Effects,
    now: Time,
    links: u64,
    dials: Vec<(DialId, String)>,
    sent: Vec<(LinkId, Kind)>,
    /// The map's version in the last frame that was sent.
    map: u64,
    closed: Vec<LinkId>,
}

impl Bench {
    fn new() -> Bench {
        let config = SdsConfig {
            name: "a".into(),
            shard: 0,
            mdm: vec![MDM.parse().unwrap()],
            address: "10.0.1.1:7000".parse().unwrap(),
            device: DeviceConfig::Ram { capacity: 1 << 24 },
            home: Default::default(),
            nonce: 5,
            pid: 1,
            limits: Limits::TEST_MIN,
        };
        let mut bench = Bench {
            sds: Sds::new(config),
            out: Effects::new(BufPool::new(1 << 20), Prng::new(1), None),
            now: Time(1_000_000_000),
            links: 0,
            dials: Vec::new(),
            sent: Vec::new(),
            map: 0,
            closed: Vec::new(),
        };
        bench.settle();
        bench
    }

    fn settle(&mut self) {
        self.sds.flush(self.now, &mut self.out);
        for effect in self.out.drain().collect::<Vec<_>>() {
            match effect {
                Effect::Send { link, head, .. } => {
                    let header = parse(head.as_slice());
                    self.sent.push((link, header.kind().unwrap()));
                    self.map = header.map.get();
                }
                Effect::Close { link } => self.closed.push(link),
                Effect::Dial { dial, to, .. } => self.dials.push((dial, to.to_string())),
                _ => {}
            }
        }
    }

    fn link(&mut self, dial: Option<DialId>) -> LinkId {
        self.links += 1;
        let link = LinkId(self.links);
        self.sds.on(self.now, Event::LinkUp { link, port: Port::Peer, dial }, &mut self.out);
        self.settle();
        link
    }

    fn frame(&mut self, link: LinkId, kind: Kind, message: &impl Message) {
        let (head, body) = control_frame(Header::new(kind), message, self.out.pool());
        self.sds.on(self.now, Event::Frame { link, head: head.as_slice(), body }, &mut self.out);
        self.settle();
    }

    /// The dial that is under way reaches this life of the MDM, which names the shard.
    fn join_mdm(&mut self, life: u64) -> LinkId {
        let (dial, to) = self.dials.remove(0);
        assert_eq!(to, MDM);
        let link = self.link(Some(dial));
        let role = Role::Mdm as i32;
        let welcome = Welcome { cluster: 7, role, incarnation: life, ..Welcome::default() };
        self.frame(link, Kind::Welcome, &welcome);
        assert!(self.sent.contains(&(link, Kind::Register)));
        let registered =
            Registered { cluster: 7, id: 3, incarnation: 9, map: 18, ..Registered::default() };
        self.frame(link, Kind::Registered, &registered);
        link
    }

    /// The MDM asks whether somebody listens.
    fn is_asked(&mut self, cluster: u64, life: u64) {
        let link = self.link(None);
        let ask = Hello { incarnation: life, ..hello(ClusterId(cluster), Role::Mdm, "mdm") };
        self.frame(link, Kind::Hello, &ask);
    }
}

#[test]
fn a_link_to_an_earlier_life_of_the_mdm_is_given_up_when_the_present_one_asks() {
    let mut b = Bench::new();
    let old = b.join_mdm(1);
    b.is_asked(7, 2);
    assert_eq!(b.closed, [old]);
    b.join_mdm(2);
}

#[test]
fn without_a_map_a_lease_is_for_those_who_know_that_this_life_began() {
    let mut b = Bench::new();
    b.join_mdm(1);
    let leader = b.link(None);
    let hello = Hello { id: 4, incarnation: 2, session: 1, ..hello(ClusterId(7), Role::Sds, "b") };
    b.frame(leader, Kind::Hello, &hello);
    let mut beacon = Header::new(Kind::Beacon);
    (beacon.sent, beacon.map, beacon.incarnation) = (1.into(), 17.into(), 2.into());
    let head = wire::frame(beacon, &[]);
    let event = Event::Frame { link: leader, head: head.as_slice(), body: Buf::EMPTY };
    b.sds.on(b.now, event, &mut b.out);
    b.settle();
    assert_eq!((b.sent.last(), b.map), (Some(&(leader, Kind::Grant)), 18));
}

#[test]
fn a_link_to_the_mdm_that_asks_stays() {
    let mut b = Bench::new();
    b.join_mdm(1);
    b.is_asked(7, 1);
    assert_eq!((b.closed.len(), b.dials.len()), (0, 0));
}

#[test]
fn an_mdm_of_another_cluster_changes_nothing() {
    let mut b = Bench::new();
    let link = b.join_mdm(1);
    b.is_asked(8, 2);
    assert!(!b.closed.contains(&link) && b.dials.is_empty());
}
