//! After any additions and removals, each device has its share of the data, and hardly more is
//! copied than necessary.
//!
//! The real healer plans against the real state; only the copies themselves take no time. The data
//! of a group is its part of the units of the volumes that use it, as these spread evenly over a
//! volume's groups. `SEEDS=80` plays more sequences.

use crate::common;
use base::{DeviceId, GroupId, Limits, Prng, SdsId, Time};
use mdm::command::*;
use mdm::healer::Healer;
use mdm::observed::Observed;
use mdm::{Command, State};
use std::collections::{BTreeMap, BTreeSet};
use wire::control::{DeviceKind, Heartbeat, Intent, ObjectKind};

const TIB: u64 = 1 << 40;

/// A domain, its MDM's healer, and what was copied.
struct Domain {
    state: State,
    seen: Observed,
    healer: Healer,
    limits: Limits,
    now: Time,
    /// Bytes that were copied, and the least bytes that had to be: what each device had to gain.
    copied: f64,
    least: f64,
}

impl Domain {
    fn new(fault_sets: u32, limits: Limits) -> Domain {
        let mut domain = Domain {
            state: State::new(),
            seen: Observed::default(),
            healer: Healer::default(),
            limits,
            now: Time(1_000_000_000),
            copied: 0.0,
            least: 0.0,
        };
        domain.apply(&Command::FormCluster(FormCluster { cluster: 7 }));
        for id in 1..=fault_sets {
            let (kind, name) = (ObjectKind::FaultSet as i32, format!("rack{id}"));
            let put = PutObject { kind, id, name, domain: 1, ..PutObject::default() };
            domain.apply(&Command::PutObject(put));
        }
        domain
    }

    fn apply(&mut self, command: &Command) {
        self.state.apply(self.state.index + 1, command);
    }

    /// Adds a device to this server.
    fn add(&mut self, sds: u32, fault_set: u32, capacity: u64) {
        let device = self.state.next_device().0;
        let shard = self.state.devices.values().filter(|d| d.sds.0 == sds).count() as u32;
        let life = self.state.next_incarnation.0;
        self.apply(&Command::DeviceUp(DeviceUp {
            device,
            sds,
            name: format!("sds{sds}"),
            shard,
            incarnation: life,
            nonce: life,
            store: u64::from(device),
            address: format!("10.0.0.1:{}", 7000 + device),
            capacity,
            kind: DeviceKind::Durable as i32,
            pid: 1,
            fault_set,
            ..DeviceUp::default()
        }));
        assert!(self.state.is_up(DeviceId(device)), "dev{device} was not taken");
    }

    fn create(&mut self, size: u64) {
        let name = format!("v{}", self.state.next_volume.0);
        let command = common::create(&self.state, &name, size, &self.limits).unwrap();
        self.apply(&command);
    }

    /// Returns the bytes of each group.
    fn bytes(&self) -> BTreeMap<GroupId, u64> {
        let mut bytes: BTreeMap<GroupId, u64> =
            self.state.groups.keys().map(|id| (*id, 0)).collect();
        for volume in self.state.volumes.values() {
            let part = volume.size / volume.slots.len() as u64;
            volume.slots.iter().for_each(|g| *bytes.get_mut(g).unwrap() += part);
        }
        bytes
    }

    /// Returns the bytes of each device, and its number of groups that no volume uses.
    fn loads(&self) -> BTreeMap<DeviceId, [f64; 2]> {
        let bytes = self.bytes();
        let mut loads: BTreeMap<DeviceId, [f64; 2]> = BTreeMap::new();
        for (id, group) in &self.state.groups {
            for device in group.pair().unwrap() {
                let load = loads.entry(device).or_default();
                load[0] += bytes[id] as f64;
                load[1] += f64::from(u8::from(bytes[id] == 0));
            }
        }
        loads
    }

    /// Returns the devices that are to hold something, and the fraction of everything that each
    /// should hold: by capacity, but at most half per fault unit.
    fn parts(&self) -> BTreeMap<DeviceId, f64> {
        let here = || self.state.devices.iter().filter(|(_, d)| d.up && d.intent == Intent::Normal);
        let mut units: BTreeMap<SdsId, f64> = BTreeMap::new();
        here().for_each(|(_, d)| {
            *units.entry(self.state.unit(d.sds)).or_default() += d.capacity as f64
        });
        let all: f64 = units.values().sum();
        let most = units.values().copied().fold(0.0, f64::max);
        let part = |(id, d): (&DeviceId, &mdm::state::Device)| {
            let own = units[&self.state.unit(d.sds)];
            let of_all = match own {
                _ if 2.0 * most < all => own / all,
                own if own == most => 0.5,
                own => own / (all - most) / 2.0,
            };
            (*id, of_all * d.capacity as f64 / own)
        };
        here().map(part).collect()
    }

    /// Returns the bytes and unused groups that each device should have.
    fn shares(&self) -> BTreeMap<DeviceId, [f64; 2]> {
        let sum = |all: [f64; 2], one: &[f64; 2]| [all[0] + one[0], all[1] + one[1]];
        let all = self.loads().values().fold([0.0; 2], sum);
        self.parts().into_iter().map(|(id, part)| (id, all.map(|a| a * part))).collect()
    }

    fn beats(&mut self) {
        let loads = self.loads();
        for id in self.state.devices.keys().copied().collect::<Vec<_>>() {
            let used = loads.get(&id).map_or(0.0, |l| l[0]) as u64;
            let seen = self.seen.devices.entry(id).or_default();
            seen.connected = self.state.is_up(id);
            seen.map = self.state.version;
            seen.beat(self.now, Heartbeat { used, ..Heartbeat::default() });
        }
    }

    /// Plays rounds until nothing is left to do. Every copy ends at once.
    fn settle(&mut self) {
        let mut idle = 0;
        for _ in 0..3000 {
            self.now = self.now + self.limits.heartbeat_every;
            self.beats();
            let commands = self.healer.work(self.now, &self.state, &self.seen, &self.limits);
            idle = if commands.is_empty() { idle + 1 } else { 0 };
            if idle > 20 {
                return;
            }
            commands.iter().for_each(|c| self.apply(c));
            self.copy();
        }
        panic!("it never ends");
    }

    fn copy(&mut self) {
        let newcomer =
            |(id, g): (&GroupId, &mdm::group::Group)| Some((*id, g.primary?, g.newcomer()?));
        let moving: Vec<_> = self.state.groups.iter().filter_map(newcomer).collect();
        let pairs: BTreeSet<_> = moving.iter().map(|(_, from, to)| (*from, *to)).collect();
        for (from, to) in pairs {
            let life = self.state.devices[&from].incarnation.0;
            self.apply(&common::join(from.0, life, to.0));
        }
        let bytes = self.bytes();
        let admission = |(id, _, to): &(GroupId, DeviceId, DeviceId)| Admission {
            group: id.0,
            epoch: self.state.groups[id].epoch.0,
            device: to.0,
        };
        let list: Vec<Admission> = moving.iter().map(admission).collect();
        self.apply(&Command::Admit(Admit { list }));
        self.copied += moving.iter().map(|(id, ..)| bytes[id] as f64).sum::<f64>();
    }

    /// Adds to `least` what must be copied from now on.
    fn owe(&mut self) {
        let loads = self.loads();
        let gain = |(id, share): (&DeviceId, &[f64; 2])| {
            (share[0] - loads.get(id).map_or(0.0, |l| l[0])).max(0.0)
        };
        self.least += self.shares().iter().map(gain).sum::<f64>();
    }

    /// Returns what is wrong if a device does not have its share. Bytes and unused groups may be
    /// off by 5 %, or by one group if that is more.
    fn uneven(&self) -> Option<String> {
        let loads = self.loads();
        let heaviest = *self.bytes().values().max()? as f64;
        for (id, share) in self.shares() {
            let has = loads.get(&id).copied().unwrap_or_default();
            for (i, grain, what) in [(0, heaviest, "bytes"), (1, 1.0, "empty groups")] {
                let off = (has[i] - share[i]).abs();
                if off > (0.05 * share[i]).max(1.01 * grain) {
                    return Some(format!("{id} has {:e} of {:e} {what}", has[i], share[i]));
                }
            }
        }
        let together = |g: &mdm::group::Group| {
            g.pair().is_none_or(|[a, b]| self.state.unit_of(a) == self.state.unit_of(b))
        };
        self.state.groups.values().find(|g| together(g)).map(|g| format!("one fault unit: {g:?}"))
    }

    /// Returns the devices of a random server that is to hold something.
    fn any_server(&self, r: &mut Prng) -> Vec<DeviceId> {
        let here: Vec<DeviceId> = self.parts().into_keys().collect();
        let sds = self.state.devices[r.pick(&here)].sds;
        here.into_iter().filter(|d| self.state.devices[d].sds == sds).collect()
    }

    fn intend(&mut self, devices: &[DeviceId], intent: Intent) {
        let devices = devices.iter().map(|d| d.0).collect();
        self.apply(&Command::Intend(Intend { devices, intent: intent as i32 }));
    }

    fn fault_units(&self) -> usize {
        let here = self.parts();
        here.keys().map(|d| self.state.unit_of(*d)).collect::<BTreeSet<_>>().len()
    }

    /// Adds a server with up to three devices, each of half a TiB to 2 TiB.
    fn add_server(&mut self, r: &mut Prng) {
        let sds = self.state.next_sds().0;
        let sets = self.state.objects.fault_sets.len() as u32;
        let set = if sets > 0 { 1 + (sds - 1) % sets } else { 0 };
        (0..r.range(1, 3)).for_each(|_| self.add(sds, set, TIB / 4 * r.range(2, 8)));
    }

    fn change(&mut self, r: &mut Prng) {
        let server = self.any_server(r);
        let check_can_remove = self.fault_units() > 3 && self.parts().len() > 6;
        match r.below(6) {
            0 if check_can_remove => self.intend(&server, Intent::Remove),
            1 if check_can_remove => {
                for id in &server {
                    let life = self.state.devices[id].incarnation.0;
                    self.apply(&common::down(id.0, life, true));
                }
                self.owe();
                self.settle();
                self.now = self.now + self.limits.rebuild_after;
                self.settle();
                // Nothing is levelled before it is clear that the server does not come back.
                self.intend(&server, Intent::Remove);
                self.settle();
                return;
            }
            2 => self.intend(&server[..1], Intent::Protect),
            3 => self.add(self.state.devices[&server[0]].sds.0, 0, TIB / 4 * r.range(2, 8)),
            4 => self.create((32 << 30) * r.range(1, 4)),
            _ => self.add_server(r),
        }
        self.owe();
        self.settle();
        if self.state.devices[&server[0]].intent == Intent::Protect {
            self.intend(&server[..1], Intent::Normal);
            self.owe();
            self.settle();
        }
    }
}

/// Plays changes of a domain whose servers have devices of different sizes, and volumes that use
/// some of the groups. Returns how much was copied and how much had to be, or what is wrong.
pub(crate) fn play(seed: u64) -> Result<(f64, f64), String> {
    let mut r = Prng::new(seed);
    let mut domain = Domain::new(*r.pick(&[0, 0, 4, 5]), Limits::SHIPPED);
    (0..r.range(5, 8)).for_each(|_| domain.add_server(&mut r));
    (0..r.range(1, 3)).for_each(|_| domain.create((32 << 30) * r.range(1, 4)));
    domain.settle();
    (domain.copied, domain.least) = (0.0, 0.0);
    for step in 0..10 {
        domain.change(&mut r);
        domain.state.check()?;
        if let Some(what) = domain.uneven() {
            return Err(format!("seed {seed}, step {step}: {what}"));
        }
    }
    match domain.copied <= 1.1 * domain.least {
        true => Ok((domain.copied, domain.least)),
        false => Err(format!("seed {seed}: {:e} copied, of {:e}", domain.copied, domain.least)),
    }
}

#[test]
fn any_sequence_of_adds_and_removes_ends_in_balance() {
    let seeds = std::env::var("SEEDS").map_or(8, |s| s.parse().expect("a number"));
    let (mut sum, mut worst) = ((0.0, 0.0), 0.0f64);
    for seed in 0..seeds {
        let (copied, least) = play(seed).unwrap();
        sum = (sum.0 + copied, sum.1 + least);
        worst = worst.max(copied / least);
    }
    println!("{seeds} sequences: {:.3} of what had to, at most {worst:.3}", sum.0 / sum.1);
}
