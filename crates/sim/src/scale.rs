//! Large domains: does everything that holds for three servers also hold for a hundred,
//! and for a thousand?
//!
//! The shipped nodes run with the shipped limits (except for [`REBUILD_AFTER`]), in fair weather,
//! with one MDM and one client. All servers register, each domain gets a volume, and some units are
//! written. Then a server dies with all its devices, another one falls silent, and their copies are
//! rebuilt. The cost of all that, and its bounds, are in `figures`.
//!
//! These runs look for no races and cause no damage: that is up to the plans.

mod asker;
mod figures;

use crate::disk::{Disk, DiskKind};
use crate::trace::Sink;
use crate::weather::Weather;
use crate::world::{ProcId, Step, World};
use anyhow::{Context, Result, bail, ensure};
use asker::{Asker, Desk};
use base::{DeviceId, Limits, MapVersion, UNIT, VolumeId};
pub use figures::{Failure, Figures};
use node::mdm::Mdm;
use node::sdc::{Sdc, SdcConfig};
use node::sds::{DeviceConfig, Home, Sds, SdsConfig};
use seam::{BlockKind, BlockRequest, Buf, Note, RequestId};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;
use wire::control::{Ask, CreateObject, CreateVolume, ObjectKind};

/// Shorter than shipped, to save time. The length does not change later events.
pub const REBUILD_AFTER: Duration = Duration::from_secs(5);
/// The MDM is idle when it has decided nothing for this long.
const LEVEL: Duration = Duration::from_secs(1);
/// Longest time until a crash is noticed.
const CRASH: Duration = Duration::from_secs(1);
/// Longest time until a silence is noticed.
const SILENCE: Duration = Duration::from_secs(3);
/// Bytes for data on a device.
const CAPACITY: u64 = 1 << 30;
/// Number of units that are written in each volume, one block in each.
const WRITTEN: u32 = 128;
/// Address of the MDM.
const MDM: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 7000);

/// Size of a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Number of data servers in all domains.
    pub servers: u32,
    /// Devices per server.
    pub devices: u32,
    /// Number of protection domains; the servers are distributed over them in turn.
    pub domains: u32,
}

impl Shape {
    /// Runs a cluster of this size, and checks the figures.
    pub fn run(self) -> Result<Figures> {
        ensure!(
            self.servers >= 8 * self.domains && self.devices > 0,
            "eight servers per domain, at least"
        );
        let mut scale = Scale::new(self);
        scale.register()?;
        scale.volumes()?;
        scale.figures.crash = scale.fails(2 * self.domains, false).context("a server dies")?;
        scale.until_level()?;
        scale.figures.silence =
            scale.fails(3 * self.domains, true).context("a server is cut off")?;
        scale.read_all()?;
        scale.figures.steps = scale.world.steps();
        scale.figures.check()?;
        Ok(scale.figures)
    }
}

/// State of a run.
struct Scale {
    shape: Shape,
    world: World,
    desk: Rc<RefCell<Desk>>,
    /// By process: the newest map that it has reported.
    maps: Vec<MapVersion>,
    /// Number of entries that the MDM has reported.
    entries: u64,
    /// Answers to the client, by request: true for success.
    answers: BTreeMap<u64, bool>,
    volumes: Vec<VolumeId>,
    gone: BTreeSet<ProcId>,
    figures: Figures,
}

impl Scale {
    fn new(shape: Shape) -> Scale {
        let limits = Scale::limits();
        let mut world = World::new(1, Weather::FAIR, limits.link_queue, Sink::Off);
        let mdm = world.add("mdm", Some(MDM), vec![Disk::new(DiskKind::Log, 1 << 42)]);
        let desk: Rc<RefCell<Desk>> = Rc::default();
        let admin = world.add("admin", None, Vec::new());
        world.add("sdc", None, Vec::new());
        for place in 0..shape.servers * shape.devices {
            let disk = Disk::new(DiskKind::Memory, CAPACITY);
            world.add(&format!("sds{place}"), Some(shape.address(place)), vec![disk]);
        }
        let config = node::mdm::Config {
            name: "mdm".into(),
            address: MDM,
            join: false,
            cluster: None,
            limits: limits.clone(),
            pid: 1,
            dialect: wire::DIALECT,
        };
        world.boot(mdm, Box::new(Mdm::new(config)));
        world.boot(admin, Box::new(Asker::new(desk.clone(), MDM, limits.clone())));
        let maps = vec![MapVersion(0); 3 + (shape.servers * shape.devices) as usize];
        Scale {
            shape,
            world,
            desk,
            maps,
            entries: 0,
            answers: BTreeMap::new(),
            volumes: Vec::new(),
            gone: BTreeSet::new(),
            figures: Figures::default(),
        }
    }

    fn limits() -> Limits {
        Limits { rebuild_after: REBUILD_AFTER, ..Limits::SHIPPED }
    }

    fn mdm(&self) -> &Mdm {
        self.world.actor(ProcId(0)).expect("the MDM runs")
    }

    /// Returns the processes of devices that are left. (A client asks for a newer map
    /// when it needs one.)
    fn nodes(&self) -> impl Iterator<Item = ProcId> {
        (3..self.maps.len()).map(ProcId).filter(|id| !self.gone.contains(id))
    }

    /// Runs until `so` returns true. Fails if that takes longer than `within`.
    fn until(
        &mut self,
        what: &str,
        within: Duration,
        mut so: impl FnMut(&Scale) -> bool,
    ) -> Result<Duration> {
        let begin = self.world.now();
        let mut look = begin;
        loop {
            // A check costs more than a step.
            if self.world.now() >= look {
                if so(self) {
                    return Ok(self.world.now().since(begin));
                }
                look = self.world.now() + Duration::from_micros(200);
            }
            if self.world.now().since(begin) > within {
                bail!("{what} takes more than {within:?}");
            }
            if let Step::Idle = self.world.step() {
                bail!("{what}: nothing is left to happen");
            }
            for (proc, note) in std::mem::take(&mut self.world.notes) {
                match note {
                    Note::Map { version } => self.maps[proc.0] = version,
                    Note::Decided { .. } => self.entries += 1,
                    _ => {}
                }
            }
            for reply in std::mem::take(&mut self.world.replies) {
                self.answers.insert(reply.id.0, reply.result.is_ok());
            }
        }
    }

    fn order(&mut self, ask: Ask) -> Result<Duration> {
        let done = self.desk.borrow().replies.len();
        self.desk.borrow_mut().orders.push_back(ask);
        self.world.poke(ProcId(1));
        let took = self
            .until("an order", Duration::from_secs(20), |s| s.desk.borrow().replies.len() > done)?;
        let reply = self.desk.borrow().replies[done].clone();
        ensure!(reply.error == 0, "{}", reply.text);
        self.volumes.extend(reply.volume.map(|v| VolumeId(v.id)));
        Ok(took)
    }

    /// Starts all servers at once, and waits until they are registered.
    fn register(&mut self) -> Result<()> {
        let object = |kind: ObjectKind, name: String, domain: String| {
            let kind = kind as i32;
            Ask::CreateObject(CreateObject { kind, name, domain, ..CreateObject::default() })
        };
        for n in 1..self.shape.domains {
            self.order(object(ObjectKind::Domain, domain(n), String::new()))?;
            self.order(object(ObjectKind::Pool, pool(n), domain(n)))?;
        }
        let entries = self.entries;
        let all = self.shape.servers * self.shape.devices;
        for place in 0..all {
            let id = ProcId(3 + place as usize);
            let nonce = self.world.draw(id);
            let config = self.shape.config(place, nonce);
            self.world.boot(id, Box::new(Sds::new(config)));
        }
        let all = all as usize;
        let took = self.until("registration", Duration::from_secs(30), |s| {
            s.mdm().state().devices.values().filter(|d| d.up).count() == all
        })?;
        self.until_known("the devices' map")?;
        self.figures.registered = took;
        self.figures.registered_entries = self.entries - entries;
        self.figures.devices = all;
        self.figures.empty_bytes = self.mdm().state().to_bytes().len();
        Ok(())
    }

    /// Waits until every device process that is left has the MDM's map.
    fn until_known(&mut self, what: &str) -> Result<Duration> {
        let version = self.mdm().state().version;
        let known = |s: &Scale| s.nodes().all(|id| s.maps[id.0] >= version);
        let took = self.until(what, Duration::from_secs(30), known);
        let late = self.nodes().find(|id| self.maps[id.0] < version);
        let late = late.map(|id| (self.world.name(id).to_string(), self.maps[id.0]));
        took.with_context(|| format!("waiting for {late:?} to have {version}"))
    }

    /// Creates a volume in each domain, and writes a block in some of its units.
    fn volumes(&mut self) -> Result<()> {
        for n in 0..self.shape.domains {
            let size = u64::from(WRITTEN) * 16 * u64::from(UNIT);
            let pool = if n == 0 { "default".into() } else { pool(n) };
            let ask = CreateVolume { name: format!("v{n}"), size, pool, ..CreateVolume::default() };
            let took = self.order(Ask::CreateVolume(ask))?;
            if n == 0 {
                self.figures.created = took;
                self.figures.known = took + self.until_known("the first volume's map")?;
            }
        }
        self.until_known("the volumes' map")?;
        let nonce = self.world.draw(ProcId(2));
        let config = SdcConfig {
            limits: Scale::limits(),
            ..SdcConfig::program("sdc".into(), vec![MDM], nonce, 1)
        };
        self.world.boot(ProcId(2), Box::new(Sdc::new(config)));
        self.until("the client's map", Duration::from_secs(5), |s| s.maps[2] > MapVersion(0))?;
        self.ask_all(BlockKind::Write)?;
        self.until_whole()?;
        let state = self.mdm().state();
        (self.figures.groups, self.figures.bytes) = (state.groups.len(), state.to_bytes().len());
        let groups = |id: ProcId| self.world.actor::<Sds>(id).map_or(0, |s| s.map().groups_known());
        self.figures.map_groups = self.nodes().map(groups).max().unwrap_or(0);
        Ok(())
    }

    fn ask_all(&mut self, kind: BlockKind) -> Result<()> {
        self.answers.clear();
        let mut asked = 0;
        for volume in self.volumes.clone() {
            for unit in 0..WRITTEN {
                let at = u64::from(unit) * 16 * u64::from(UNIT);
                let body = if kind == BlockKind::Write { &[7u8; 4096][..] } else { &[] };
                let request = BlockRequest { volume, kind, at, len: 4096, body: Buf::EMPTY };
                ensure!(self.world.request(ProcId(2), RequestId(asked), request, body));
                asked += 1;
            }
        }
        self.until("I/O", Duration::from_secs(10), |s| s.answers.len() as u64 == asked)?;
        ensure!(self.answers.values().all(|ok| *ok), "some I/O failed");
        Ok(())
    }

    fn read_all(&mut self) -> Result<()> {
        self.ask_all(BlockKind::Read)
    }

    /// Waits until every group has two copies on servers that are up, and nothing moves.
    fn until_whole(&mut self) -> Result<Duration> {
        self.until("to be whole", Duration::from_secs(60), |s| {
            let state = s.mdm().state();
            let there = |d: &DeviceId| state.is_up(*d);
            let whole = |g: &mdm::group::Group| {
                g.is_whole() && g.leaving.is_none() && g.replicas.iter().all(there)
            };
            state.groups.values().all(whole)
        })
    }

    /// Waits until nothing was decided for a while: rebuilt copies are balanced afterwards, which
    /// is not part of a failure.
    fn until_level(&mut self) -> Result<()> {
        for _ in 0..60 {
            let (before, end) = (self.entries, self.world.now() + LEVEL);
            self.until("time", LEVEL * 2, |s| s.world.now() >= end)?;
            if self.entries == before {
                return self.until_whole().map(drop);
            }
        }
        bail!("levelling never ends")
    }

    /// Kills a server or cuts it off, and waits until its copies are rebuilt elsewhere.
    fn fails(&mut self, server: u32, silent: bool) -> Result<Failure> {
        let places = self.shape.devices * server..self.shape.devices * (server + 1);
        let procs: Vec<ProcId> = places.map(|place| ProcId(3 + place as usize)).collect();
        let devices: Vec<DeviceId> =
            procs.iter().filter_map(|id| Some(self.world.actor::<Sds>(*id)?.id())).collect();
        let state = self.mdm().state();
        let lost = || devices.iter().flat_map(|d| state.groups_of(*d));
        let groups = lost().count();
        let sharing: BTreeSet<&DeviceId> = lost().flat_map(|g| &state.groups[g].replicas).collect();
        let partners = sharing.len().saturating_sub(devices.len());
        let (index, entries) = (self.mdm().state().index, self.entries);
        let [frames, bytes] = self.world.sent(ProcId(0));
        for id in &procs {
            if silent {
                for other in (0..self.maps.len()).map(ProcId).filter(|other| !procs.contains(other))
                {
                    self.world.set_blocked(*id, other, true);
                    self.world.set_blocked(other, *id, true);
                }
            } else {
                self.world.crash(*id, false);
            }
            self.gone.insert(*id);
        }
        let out = |s: &Scale| devices.iter().all(|d| !s.mdm().state().is_up(*d));
        let noticed = self.until("to be noticed", if silent { SILENCE } else { CRASH }, out)?;
        let commands = self.mdm().state().index - index;
        let converged = self.until_known("the map without it")?;
        let settled = self.until("the entry", Duration::from_secs(1), |s| s.mdm().is_decided())?;
        let sent = self.world.sent(ProcId(0));
        let mut failure = Failure {
            noticed,
            entries: self.entries - entries,
            commands,
            partners,
            nodes: self.nodes().count(),
            converged: converged.max(settled),
            frames: sent[0] - frames,
            bytes: sent[1] - bytes,
            groups,
            ..Failure::default()
        };
        let entries = self.entries;
        let begin = self.world.now();
        self.until_whole()?;
        failure.rebuilt = noticed + self.world.now().since(begin);
        failure.rebuild_entries = self.entries - entries;
        Ok(failure)
    }
}

fn domain(n: u32) -> String {
    format!("domain{n}")
}

fn pool(n: u32) -> String {
    format!("pool{n}")
}

impl Shape {
    /// Returns the address of a device; `place` is its number, counted over all servers.
    fn address(self, place: u32) -> SocketAddr {
        let server = place / self.devices;
        let ip = Ipv4Addr::new(10, 1, (server / 250) as u8, (server % 250 + 1) as u8);
        (ip, 7000 + (place % self.devices) as u16).into()
    }

    fn config(self, place: u32, nonce: u64) -> SdsConfig {
        let server = place / self.devices;
        let home = match server % self.domains {
            0 => Home::default(),
            n => Home { domain: domain(n), pool: pool(n), ..Home::default() },
        };
        // With several domains, the default one has to be named.
        let home = match (server % self.domains, self.domains) {
            (0, 2..) => Home { domain: "default".into(), pool: "default".into(), ..home },
            _ => home,
        };
        SdsConfig {
            name: format!("sds{server}"),
            shard: place % self.devices,
            mdm: vec![MDM],
            address: self.address(place),
            device: DeviceConfig::Ram { capacity: CAPACITY },
            home,
            nonce,
            pid: 1,
            limits: Scale::limits(),
            dialect: wire::DIALECT,
        }
    }
}
