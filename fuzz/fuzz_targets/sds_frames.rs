//! A data server, and what strangers, clients and other servers may send to it: nothing that
//! arrives on a link makes it panic. Headers are well-formed and sealed, with arbitrary fields and
//! bodies; one link sends raw bytes through the framer.
#![no_main]

use base::{Limits, LinkId, Prng, Time};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use node::sds::{DeviceConfig, Sds, SdsConfig};
use prost::Message;
use seam::{Buf, BufPool, DiskError, Effect, Effects, Event, Framer, Framing, Node, Port};
use wire::control::{DeviceInfo, GroupInfo, Hello, MapPage, Registered, Role, VolumeInfo, Welcome};
use wire::{Frame, Header, Kind, PeerFramer};

#[derive(Arbitrary, Debug)]
enum Step {
    Frame {
        link: u8,
        kind: u8,
        flags: u8,
        status: u16,
        small: [u8; 10],
        lens: [u32; 3],
        body: Vec<u8>,
    },
    Raw(Vec<u8>),
    Hello {
        sdc: bool,
        id: u8,
        incarnation: u8,
        session: u8,
    },
    Groups(Vec<(u8, u8, u8, u8)>),
    Later(u16),
    Down(u8),
}

struct Rig {
    sds: Sds,
    out: Effects,
    now: Time,
    links: u64,
    map: u64,
}

impl Rig {
    fn on(&mut self, event: Event<'_>) {
        self.sds.on(self.now, event, &mut self.out);
        self.settle();
    }

    /// Carries out the node's effects as far as they matter here.
    fn settle(&mut self) {
        for _ in 0..1000 {
            self.sds.flush(self.now, &mut self.out);
            let effects: Vec<Effect> = self.out.drain().collect();
            if effects.is_empty() {
                return;
            }
            for effect in effects {
                let event = match effect {
                    Effect::Dial { dial, .. } => {
                        self.links += 1;
                        Event::LinkUp {
                            link: LinkId(self.links),
                            port: Port::Ours,
                            dial: Some(dial),
                            at: None,
                            from: None,
                        }
                    }
                    Effect::Read { op, len, .. } => {
                        let result = Ok(self.out.pool().zeroed(len as usize));
                        Event::DiskDone { op, result }
                    }
                    Effect::Write { op, .. } | Effect::Flush { op, .. } => {
                        Event::DiskDone { op, result: Ok::<Buf, DiskError>(Buf::EMPTY) }
                    }
                    _ => continue,
                };
                self.sds.on(self.now, event, &mut self.out);
            }
        }
    }

    fn frame(&mut self, link: u64, header: Header, body: &[u8]) {
        let head = wire::frame(header, body);
        let body = self.out.copy(body);
        self.on(Event::Frame { link: LinkId(link), head: head.as_slice(), body });
    }

    fn control(&mut self, link: u64, kind: Kind, message: &impl Message) {
        self.frame(link, Header::new(kind), &message.encode_to_vec());
    }

    fn map(&mut self, groups: &[(u8, u8, u8, u8)]) {
        self.map += 1;
        let device = |id: u32| DeviceInfo {
            id,
            sds: id,
            address: format!("10.0.0.{id}:1"),
            incarnation: 1,
            up: true,
            ..DeviceInfo::default()
        };
        let bits = |b: u8| (1..=3).filter(|d| b >> d & 1 == 1).collect::<Vec<u32>>();
        let group = |(id, primary, in_sync, joiners): &(u8, u8, u8, u8)| {
            let in_sync = bits(*in_sync);
            GroupInfo {
                id: u32::from(*id % 4),
                epoch: self.map,
                primary: in_sync.get(usize::from(*primary) % 3).copied().unwrap_or(0),
                replicas: vec![1, 2, 3],
                joiners: bits(*joiners).into_iter().filter(|d| !in_sync.contains(d)).collect(),
                in_sync,
                ..GroupInfo::default()
            }
        };
        let page = MapPage {
            version: self.map,
            last: true,
            cluster: 9,
            devices: vec![device(1), device(2), device(3)],
            groups: groups.iter().map(group).collect(),
            volumes: vec![VolumeInfo {
                id: 1,
                size: 8 << 20,
                slots: vec![0, 1, 2, 3],
                ..VolumeInfo::default()
            }],
            live: vec![1],
            next_volume: 2,
            ..MapPage::default()
        };
        self.control(1, Kind::MapPage, &page);
    }
}

fuzz_target!(|steps: Vec<Step>| {
    let limits = Limits::TEST_MIN;
    let config = SdsConfig {
        name: "sds1".into(),
        shard: 0,
        mdm: vec!["10.0.0.9:1".parse().unwrap()],
        address: "10.0.0.1:1".parse().unwrap(),
        device: DeviceConfig::Ram { capacity: 6 << 20 },
        home: Default::default(),
        nonce: 1,
        pid: 1,
        limits: limits.clone(),
        dialect: wire::DIALECT,
    };
    let out = Effects::new(BufPool::new(1 << 24), Prng::new(1), None);
    let mut rig = Rig { sds: Sds::new(config), out, now: Time(10_000_000_000), links: 0, map: 1 };
    rig.settle();
    rig.control(1, Kind::Welcome, &Welcome { role: Role::Mdm as i32, version: 1, ..Welcome::default() });
    let registered = Registered { cluster: 9, id: 1, incarnation: 1, map: 1, scrub: 0 };
    rig.control(1, Kind::Registered, &registered);
    rig.map(&[(0, 0, 2, 4), (1, 0, 6, 0), (2, 1, 6, 0), (3, 0, 4, 2)]);
    for step in steps.into_iter().take(64) {
        match step {
            Step::Frame { link, kind, flags, status, small, lens, body } => {
                let mut h = Header::new(Kind::Hello);
                h.forge(18, &[kind % 45, flags]);
                let s = small.map(u64::from);
                let (at, len) = match lens[2] & 1 {
                    0 => (lens[0] % 300 * 512, body.len() as u32),
                    _ => (lens[0], lens[1]),
                };
                // Mostly without what its kind does not use, or nothing would get far.
                let numbers: [(usize, usize, u64); 14] = [
                    (20, 2, u64::from(status)),
                    (24, 8, s[8]),
                    (32, 4, s[0] % 5),
                    (36, 4, s[1] % 3),
                    (40, 8, s[3] % 8),
                    (48, 8, s[4] % 8),
                    (56, 8, s[5]),
                    (64, 8, s[6]),
                    (72, 8, s[7]),
                    (80, 4, s[2] % 9),
                    (84, 4, u64::from(at)),
                    (88, 4, u64::from(len)),
                    (96, 8, 1),
                    (104, 8, s[9]),
                ];
                for (place, bytes, number) in numbers {
                    h.forge(place, &number.to_le_bytes()[..bytes]);
                    if Frame::try_from(&h).is_err() && lens[2] & 2 == 0 {
                        h.forge(place, &[0; 8][..bytes]);
                    }
                }
                rig.frame(u64::from(link) % (rig.links + 1), h, &body);
            }
            Step::Raw(bytes) => {
                let mut framer = PeerFramer::new(limits.frame_body);
                let mut rest = &bytes[..];
                while let Ok(Framing::Frame { head, body }) = framer.frame(rest) {
                    if rest.len() < head + body {
                        break;
                    }
                    let data = rig.out.copy(&rest[head..head + body]);
                    rig.on(Event::Frame {
                        link: LinkId(rig.links),
                        head: &rest[..head],
                        body: data,
                    });
                    rest = &rest[head + body..];
                }
            }
            Step::Hello { sdc, id, incarnation, session } => {
                rig.links += 1;
                let (link, port) = (LinkId(rig.links), Port::Ours);
                rig.on(Event::LinkUp { link, port, dial: None, at: None, from: None });
                let role = if sdc { Role::Sdc } else { Role::Sds };
                let hello = Hello {
                    role: role as i32,
                    id: u32::from(id) % 4,
                    incarnation: u64::from(incarnation) % 3,
                    session: u64::from(session),
                    version_min: 1,
                    version_max: 1,
                    ..Hello::default()
                };
                rig.control(rig.links, Kind::Hello, &hello);
            }
            Step::Groups(groups) => rig.map(&groups),
            Step::Later(ms) => {
                rig.now = Time(rig.now.0 + u64::from(ms) * 1_000_000);
                rig.on(Event::Tick);
            }
            Step::Down(link) => {
                let link = LinkId(u64::from(link) % (rig.links + 1));
                rig.on(Event::LinkDown { link, why: seam::DownReason::Closed });
            }
        }
    }
});
