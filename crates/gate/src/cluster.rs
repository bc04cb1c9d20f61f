//! An MDM, two data servers, a client, the links between them, and a program that makes requests.

use crate::place::{Item, Place, Post};
use base::{BLOCK, ClusterId, Limits, LinkId, MIB, Prng, Time, UNIT, UnitKey, VolumeId};
use node::link::hello;
use node::mdm::{Config, Mdm};
use node::sdc::{Sdc, SdcConfig};
use node::sds::{DeviceConfig, Sds, SdsConfig};
use seam::{BlockKind, BlockRequest, Buf, BufPool, DialId, RequestId};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use wire::control::{AdminRequest, Ask, CreateVolume, Role};
use wire::{HANDSHAKE_VERSION, control_frame, message};

/// Operations per measurement; each count is divided by this.
pub const OPERATIONS: usize = 64;

/// Size of the volume in units.
const UNITS: u32 = 64;
const VOLUME: &str = "data";

/// A participant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Who {
    /// The metadata manager.
    Mdm,
    /// The client.
    Sdc,
    /// The data server that is the primary of the groups that [`Cluster::led`] chooses.
    Primary,
    /// The other data server.
    Secondary,
    /// The administrator that creates the volume.
    Admin,
}

impl Who {
    fn address(self) -> SocketAddr {
        (Ipv4Addr::new(10, 0, 0, 1), 7000 + self as u16).into()
    }

    fn at(address: SocketAddr) -> Option<Who> {
        [Who::Mdm, Who::Primary, Who::Secondary].into_iter().find(|w| w.address() == address)
    }
}

/// The participants and the links between them.
pub struct Cluster {
    /// Advances only in [`Cluster::pass`].
    now: Time,
    mdm: Place<Mdm>,
    sdc: Place<Sdc>,
    primary: Place<Sds>,
    secondary: Place<Sds>,
    /// By link: the participant at the other side, and the link's id there.
    ends: Vec<Option<(Who, LinkId)>>,
    posts: Vec<(Who, Post)>,
    volume: VolumeId,
    /// The pool of the program's buffers.
    pool: BufPool,
    asked: u64,
    /// The operations to be counted.
    requests: Vec<BlockRequest>,
}

impl Cluster {
    /// Returns a healthy cluster with one volume.
    pub fn healthy() -> Cluster {
        let limits = Limits::SHIPPED;
        let address = "10.0.0.1:7000".parse().expect("an address");
        let (name, cluster) = ("mdm".into(), Some(ClusterId(7)));
        let mdm =
            Config { name, address, join: false, cluster, limits, pid: 1, dialect: wire::DIALECT };
        let mut cluster = Cluster {
            now: Time(1_000_000_000),
            mdm: Place::new(Mdm::new(mdm), 1),
            sdc: Place::new(Sdc::new(sdc()), 2),
            primary: Place::new(Sds::new(sds(Who::Primary)), 3),
            secondary: Place::new(Sds::new(sds(Who::Secondary)), 4),
            ends: Vec::new(),
            posts: Vec::new(),
            volume: VolumeId(0),
            pool: BufPool::new(64 << 20),
            asked: 0,
            requests: Vec::new(),
        };
        // A client learns of volumes at its start, so it starts last.
        let start = cluster.sdc.wake.take();
        cluster.pass(Duration::from_millis(500));
        cluster.make_volume();
        cluster.sdc.wake = start;
        cluster.pass(Duration::from_secs(3));
        cluster.volume = cluster.sdc.node.volume_by_name(VOLUME).expect("it was ordered").0;
        cluster
    }

    fn make_volume(&mut self) {
        let link = self.connect(Who::Admin, Who::Mdm);
        let size = u64::from(UNITS) * u64::from(UNIT);
        let ask = Ask::CreateVolume(CreateVolume {
            name: VOLUME.into(),
            size,
            ..CreateVolume::default()
        });
        let order = AdminRequest::of(ask);
        let hello = hello(&wire::DIALECT, ClusterId(0), Role::Admin, "admin");
        let frames = [
            control_frame(HANDSHAKE_VERSION, message::Hello {}, &hello, &self.pool),
            control_frame(HANDSHAKE_VERSION, message::Admin { op: 0 }, &order, &self.pool),
        ];
        for (head, body) in frames {
            self.mdm.inbox.push_back(Item::Frame(link, head, body));
            self.settle();
        }
    }

    // ---- measured operations ----

    /// Prepares [`OPERATIONS`] requests of 4 KiB for different blocks anywhere in the volume.
    /// Executes them several times first, so that tables have grown, pools are filled and reads
    /// find data.
    pub fn prepare(mut self, kind: BlockKind) -> Cluster {
        self.choose(kind, |_, _| true);
        self
    }

    /// Prepares requests likewise, for blocks of groups whose primary is [`Who::Primary`].
    pub fn led(mut self, kind: BlockKind) -> Cluster {
        self.choose(kind, |cluster, unit| {
            let map = cluster.sdc.node.map();
            let group = map.group_of(unit).and_then(|g| map.group(g)).expect("the map has it");
            group.primary == Some(cluster.primary.node.id())
        });
        self
    }

    fn choose(&mut self, kind: BlockKind, fits: impl Fn(&Cluster, UnitKey) -> bool) {
        let (mut prng, mut blocks) = (Prng::new(5), BTreeSet::new());
        let all = u64::from(UNITS) * u64::from(UNIT / BLOCK);
        let mut order = Vec::new();
        while order.len() < OPERATIONS {
            let at = prng.below(all) * u64::from(BLOCK);
            let unit = UnitKey { volume: self.volume, index: (at / u64::from(UNIT)) as u32 };
            if fits(self, unit) && blocks.insert(at) {
                order.push(at);
            }
        }
        let mut chosen = |cluster: &Cluster, kind| {
            let request = |at: &u64| cluster.request(kind, *at, prng.next_u64());
            order.iter().map(request).collect::<Vec<_>>()
        };
        self.requests = chosen(self, BlockKind::Write);
        self.batched();
        for _ in 0..3 {
            self.requests = chosen(self, kind);
            self.batched();
            self.requests = chosen(self, kind);
            self.alone();
            // Lets the nodes clear the state of finished writes; no beacon is due while counting.
            self.pass(Duration::from_millis(1000));
        }
        self.requests = chosen(self, kind);
        self.sdc.served = 0;
    }

    fn request(&self, kind: BlockKind, at: u64, fill: u64) -> BlockRequest {
        let body = if kind == BlockKind::Write {
            let mut body = self.pool.alloc(BLOCK as usize);
            body.as_mut().fill(fill as u8);
            body
        } else {
            Buf::EMPTY
        };
        BlockRequest { volume: self.volume, kind, at, len: BLOCK, body }
    }

    fn ask(&mut self, request: BlockRequest) {
        self.asked += 1;
        self.sdc.inbox.push_back(Item::Request(RequestId(self.asked), request));
    }

    /// Makes all prepared requests.
    pub fn ask_all(&mut self) {
        for request in std::mem::take(&mut self.requests) {
            self.ask(request);
        }
    }

    /// Makes all prepared requests at once, and runs until all are answered.
    pub fn batched(&mut self) {
        let before = self.sdc.served;
        self.ask_all();
        self.settle();
        assert_eq!(self.sdc.served - before, OPERATIONS, "answered without waiting for anything");
    }

    /// Executes the prepared requests one after the other.
    pub fn alone(&mut self) {
        let before = self.sdc.served;
        for request in std::mem::take(&mut self.requests) {
            self.ask(request);
            self.settle();
        }
        assert_eq!(self.sdc.served - before, OPERATIONS, "answered without waiting for anything");
    }

    /// Makes all prepared requests, and runs one turn of each of these participants.
    pub fn after(mut self, turns: &[Who]) -> Cluster {
        self.ask_all();
        for who in turns {
            self.turn(*who);
            self.carry();
        }
        self
    }

    /// Runs one batch of one node. The frames it sends stay where they are until
    /// [`Cluster::carry`].
    pub fn turn(&mut self, who: Who) {
        let now = self.now;
        match who {
            Who::Sdc => self.sdc.turn(now),
            Who::Primary => self.primary.turn(now),
            Who::Secondary => self.secondary.turn(now),
            Who::Mdm => self.mdm.turn(now),
            Who::Admin => {}
        }
    }

    /// Returns the number of events that wait for a participant.
    pub fn waiting(&self, who: Who) -> usize {
        match who {
            Who::Sdc => self.sdc.inbox.len(),
            Who::Primary => self.primary.inbox.len(),
            Who::Secondary => self.secondary.inbox.len(),
            Who::Mdm => self.mdm.inbox.len(),
            Who::Admin => 0,
        }
    }

    /// Returns the number of block requests answered since the preparation.
    pub fn served(&self) -> usize {
        self.sdc.served
    }

    /// Returns the client.
    pub fn sdc(&self) -> &Sdc {
        &self.sdc.node
    }

    /// Returns the unit of each prepared request.
    pub fn units(&self) -> Vec<UnitKey> {
        let index = |r: &BlockRequest| (r.at / u64::from(UNIT)) as u32;
        self.requests.iter().map(|r| UnitKey { volume: r.volume, index: index(r) }).collect()
    }

    // ---- the driver ----

    /// Runs turns until no events are waiting; time stands still.
    pub fn settle(&mut self) {
        const ALL: [Who; 4] = [Who::Sdc, Who::Primary, Who::Secondary, Who::Mdm];
        loop {
            let mut idle = true;
            for who in ALL {
                if self.waiting(who) > 0 {
                    self.turn(who);
                    self.carry();
                    idle = false;
                }
            }
            if idle {
                return;
            }
        }
    }

    /// Advances time, and runs the nodes whose ticks fall due.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.settle();
            let wakes = [self.mdm.wake, self.sdc.wake, self.primary.wake, self.secondary.wake];
            let next = wakes.into_iter().flatten().min().unwrap_or(end);
            if next > end {
                break;
            }
            self.now = self.now.max(next);
            for (who, wake) in
                [Who::Mdm, Who::Sdc, Who::Primary, Who::Secondary].into_iter().zip(wakes)
            {
                if wake.is_some_and(|at| at <= self.now) {
                    self.turn(who);
                    self.carry();
                }
            }
            if next == end {
                break;
            }
        }
        self.now = end;
        self.settle();
    }

    /// Moves everything that was sent to its recipients.
    pub fn carry(&mut self) {
        let mut posts = std::mem::take(&mut self.posts);
        posts.extend(self.sdc.posts.drain(..).map(|p| (Who::Sdc, p)));
        posts.extend(self.primary.posts.drain(..).map(|p| (Who::Primary, p)));
        posts.extend(self.secondary.posts.drain(..).map(|p| (Who::Secondary, p)));
        posts.extend(self.mdm.posts.drain(..).map(|p| (Who::Mdm, p)));
        for (from, post) in posts.drain(..) {
            match post {
                Post::Frame(link, head, body) => {
                    if let Some((to, theirs)) = self.ends[link.0 as usize] {
                        self.put(to, Item::Frame(theirs, head, body));
                    }
                }
                Post::Dial(dial, to) => self.dial(from, dial, to),
                Post::Close(link) => {
                    if let Some((to, theirs)) = self.ends[link.0 as usize].take() {
                        self.ends[theirs.0 as usize] = None;
                        self.put(to, Item::Down(theirs));
                    }
                }
            }
        }
        self.posts = posts;
    }

    fn put(&mut self, to: Who, item: Item) {
        match to {
            Who::Sdc => self.sdc.inbox.push_back(item),
            Who::Primary => self.primary.inbox.push_back(item),
            Who::Secondary => self.secondary.inbox.push_back(item),
            Who::Mdm => self.mdm.inbox.push_back(item),
            Who::Admin => {}
        }
    }

    fn dial(&mut self, from: Who, dial: DialId, to: SocketAddr) {
        let Some(to) = Who::at(to) else { return self.put(from, Item::Refused(dial)) };
        let theirs = self.connect(from, to);
        let (_, mine) = self.ends[theirs.0 as usize].expect("just made");
        self.put(from, Item::Up(mine, Some(dial)));
    }

    /// Connects two participants; returns the link's id at `to`, which gets the `LinkUp`.
    fn connect(&mut self, from: Who, to: Who) -> LinkId {
        let mine = LinkId(self.ends.len() as u64);
        let theirs = LinkId(mine.0 + 1);
        self.ends.extend([Some((to, theirs)), Some((from, mine))]);
        self.put(to, Item::Up(theirs, None));
        theirs
    }
}

fn sdc() -> SdcConfig {
    SdcConfig::program("client".into(), vec![Who::Mdm.address()], 11, 1)
}

fn sds(who: Who) -> SdsConfig {
    SdsConfig {
        name: format!("server{}", who as u8),
        shard: 0,
        mdm: vec![Who::Mdm.address()],
        address: who.address(),
        device: DeviceConfig::Ram { capacity: 1024 * MIB },
        home: Default::default(),
        nonce: 20 + who as u64,
        pid: 1,
        limits: Limits::SHIPPED,
        dialect: wire::DIALECT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use BlockKind::{Read, Write};

    #[test]
    fn prepared_operations_are_answered_without_waiting() {
        for kind in [Read, Write] {
            let mut cluster = Cluster::healthy().prepare(kind);
            cluster.batched();
            assert_eq!(cluster.served(), OPERATIONS);
            let mut cluster = Cluster::healthy().prepare(kind);
            cluster.alone();
            assert_eq!(cluster.served(), OPERATIONS);
        }
    }

    /// The stages that are counted separately add up to the whole path.
    #[test]
    fn every_stage_has_work_and_the_last_one_answers() {
        use Who::{Primary, Sdc, Secondary};
        let read: &[Who] = &[Sdc, Primary, Primary, Sdc];
        let write: &[Who] = &[Sdc, Primary, Primary, Secondary, Secondary, Primary, Sdc];
        for (kind, stages) in [(Read, read), (Write, write)] {
            let mut cluster = Cluster::healthy().led(kind).after(&[]);
            for who in stages {
                assert_eq!(cluster.waiting(*who), OPERATIONS, "{kind:?}, {who:?}");
                cluster.turn(*who);
                cluster.carry();
            }
            assert_eq!(cluster.served(), OPERATIONS);
        }
    }
}
