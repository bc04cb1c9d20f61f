//! Plans from seeds. Swarm testing: the seed draws the shape, the limits and *which fault kinds are
//! on at all*, then how often and when each strikes.

use super::{Action, Death, IoKind, Outcast, Plan, Timed, Who, policies};
use crate::admin::ALL;
use crate::disk::Damage;
use crate::tamper::Tamper;
use crate::weather::Weather;
use base::{BLOCK, Limits, Prng, SECTOR, UNIT};
use std::time::Duration;

const UNIT_SECTORS: u64 = (UNIT / SECTOR) as u64;
const BLOCK_SECTORS: u64 = (BLOCK / SECTOR) as u64;

/// Kinds of trouble that a plan may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trouble {
    Wipe,
    Keep,
    Mdm,
    Client,
    Pause,
    Cut,
    Island,
    Block,
    Clog,
    Reset,
    Flap,
    Volumes,
    Blackout,
    Damage,
}

const TROUBLES: [Trouble; 14] = [
    Trouble::Wipe,
    Trouble::Keep,
    Trouble::Mdm,
    Trouble::Client,
    Trouble::Pause,
    Trouble::Cut,
    Trouble::Island,
    Trouble::Block,
    Trouble::Clog,
    Trouble::Reset,
    Trouble::Flap,
    Trouble::Volumes,
    Trouble::Blackout,
    Trouble::Damage,
];

impl Plan {
    /// The plan of this seed.
    pub fn generate(seed: u64) -> Plan {
        let root = Prng::new(seed).fork("plan");
        let mut r = root.fork("shape");
        let sds = *r.pick(&[2, 2, 2, 3, 3, 4, 5]);
        let clients = *r.pick(&[1, 2, 2, 3]);
        let mut volumes: Vec<u32> = (0..r.range(1, 2)).map(|_| r.range(1, 4) as u32).collect();
        let mut units: u32 = volumes.iter().sum();
        // Space for every unit twice on each server; in some runs too little, also on the smallest file.
        let tight = r.chance(0.08);
        let mut sds = sds;
        if tight {
            let mut r = root.fork("tight");
            sds = if r.chance(0.7) { 2 } else { sds };
            volumes[0] += r.range(7, 10) as u32;
            units = volumes.iter().sum();
        }
        let capacity = if tight { units.div_ceil(2) } else { 4 * units + 8 };
        let length = Duration::from_millis(r.range(1500, 9000));
        let depth = r.range(1, 12) as u32;
        let mut plan = Plan {
            seed,
            mdms: *root.fork("mdms").pick(&[1, 1, 1, 3, 3, 5]),
            sds,
            mates: Vec::new(),
            second_pool: 0,
            second_pool_volumes: 0,
            fault_sets: 0,
            clients,
            volumes,
            durable: r.chance(0.7),
            memory: 0,
            allow_loss: false,
            capacity,
            growth: 0,
            depth,
            limits: limits(&mut root.fork("limits")),
            weather: weather(&mut root.fork("weather")),
            outcast: None,
            busy: false,
            length,
            steps: Vec::new(),
        };
        let mut r = root.fork("among the mdms");
        if plan.mdms > 1 {
            plan.limits.mdm_tick = Duration::from_millis(r.range(4, 50));
        }
        let mut r = root.fork("devices");
        if plan.durable && r.chance(0.2) {
            plan.memory = r.below(1 << plan.sds) as u8;
        }
        let mut r = root.fork("outcast");
        if r.chance(0.4) {
            let who = r.below(u64::from(plan.sds)) as u8;
            let how = *r.pick(&[Outcast::Dead, Outcast::Cut, Outcast::Unheard]);
            let stays = how != Outcast::Dead || plan.keeps(Who::Sds(who));
            plan.outcast = stays.then_some((who, how));
        }
        if root.fork("kind").chance(0.15) {
            duel(&mut plan, &mut root.fork("duel"));
        } else {
            workload(&mut plan, &mut root.fork("workload"));
            trouble(&mut plan, &mut root.fork("chaos"));
        }
        if plan.mdms > 1 {
            among_mdms(&mut plan, &mut root.fork("mdm trouble"));
        }
        if plan.capacity < units {
            fill(&mut plan, &mut root.fork("space"));
        }
        let mut r = root.fork("tamper");
        if plan.durable && r.chance(0.12) {
            tamper(&mut plan, &mut r);
        }
        let mut r = root.fork("grow");
        let tight = plan.capacity < units;
        if plan.durable && r.chance(if tight { 0.6 } else { 0.1 }) {
            plan.growth = if tight { r.range(16, 40) as u32 } else { 0 };
            grow(&mut plan, &mut r);
        }
        let mut r = root.fork("removal");
        let tampers = plan.steps.iter().any(|s| matches!(s.action, Action::Tamper(..)));
        if plan.sds > 2 && !tampers && !tight && r.chance(0.3) {
            removal(&mut plan, &mut r);
        }
        let mut r = root.fork("maintenance");
        if plan.sds > 2 && !tampers && !tight && r.chance(0.25) {
            maintenance(&mut plan, &mut r);
        }
        // Each set has two servers at least: a lost copy has somewhere to go.
        if plan.sds > 3 && !tight && root.fork("fault sets").chance(0.5) {
            plan.fault_sets = 2;
        }
        let mut r = root.fork("mapping");
        if r.chance(0.3) {
            mapping(&mut plan, &mut r);
        }
        policies::draw(&mut plan, &mut root.fork("policies"));
        let mut r = root.fork("slow");
        if plan.sds > 2 && !tight && plan.outcast.is_none() && r.chance(0.2) {
            super::slow::slow(&mut plan, &mut r);
        }
        let slow = plan.outcast.is_some_and(|(_, how)| how.slowness().is_some());
        if !tight && !slow {
            super::pools::draw(&mut plan, &root);
        }
        if tight {
            plan.limits.spare_percent = *root.fork("spare").pick(&[0, 0, 34, 50]);
        }
        plan.steps.sort_by_key(|s| s.at);
        plan
    }
}

/// Servers are removed, and others come in their places; now and then one stays after all.
fn removal(plan: &mut Plan, r: &mut Prng) {
    for _ in 0..r.range(1, 4) {
        let at = Duration::from_micros(r.below(plan.length.as_micros() as u64));
        let i = r.below(u64::from(plan.sds)) as u8;
        plan.steps.push(Timed { at, action: Action::Remove(i) });
        if r.chance(0.3) {
            let at = at + Duration::from_micros(r.below(1_000_000));
            plan.steps.push(Timed { at, action: Action::Keep(i) });
        }
    }
}

/// What strikes a cluster of MDMs: one or more of them are away or apart, somebody else is to lead, or one is
/// replaced.
fn among_mdms(plan: &mut Plan, r: &mut Prng) {
    let busy = *r.pick(&[0.0, 0.5, 2.0, 6.0]);
    let count = (plan.length.as_secs_f64() * busy).ceil() as u64;
    for _ in 0..count {
        let at = Duration::from_micros(r.below(plan.length.as_micros() as u64));
        let mut e = Episode { plan, at, careful: true };
        let (who, time) = (e.mdm(r), while_away(r));
        match r.below(10) {
            0..=3 => e.crash(who, true, time, r),
            4 => {
                e.push(Duration::ZERO, Action::Pause(who, r.chance(0.5)));
                e.push(time, Action::Resume(who));
            }
            5 | 6 => {
                let ways = [(true, true), (true, true), (true, false), (false, true)];
                let (inward, outward) = *r.pick(&ways);
                e.apart(who, inward, outward, time, r.chance(0.5));
            }
            7 => {
                let other = Who::Mdm(r.below(u64::from(e.plan.mdms)) as u8);
                e.push(Duration::ZERO, Action::Reset(who, other));
            }
            8 => e.push(Duration::ZERO, Action::Switch),
            _ => {
                let Who::Mdm(i) = who else { continue };
                e.push(Duration::ZERO, Action::Replace(i));
            }
        }
    }
}

/// Servers are put into maintenance, mostly turned off for a while, and mostly put back to work before the end.
fn maintenance(plan: &mut Plan, r: &mut Prng) {
    for _ in 0..r.range(1, 4) {
        let at = Duration::from_micros(r.below(plan.length.as_micros() as u64));
        let i = r.below(u64::from(plan.sds)) as u8;
        plan.steps.push(Timed { at, action: Action::Maintain(i, r.chance(0.4)) });
        let soon = Duration::from_micros(r.range(500, 300_000));
        let away = Duration::from_micros(r.range(1000, 3_000_000));
        if r.chance(0.8) && plan.keeps(Who::Sds(i)) {
            Episode { plan, at: at + soon, careful: true }.crash(Who::Sds(i), true, away, r);
        }
        if r.chance(0.8) {
            plan.steps.push(Timed { at: at + soon + away, action: Action::Return(i) });
        }
    }
}

/// Now and then a server's device becomes larger, mostly a moment before its next life.
fn grow(plan: &mut Plan, r: &mut Prng) {
    for _ in 0..r.range(0, 4) {
        let at = Duration::from_micros(r.below(plan.length.as_micros() as u64));
        let i = r.below(u64::from(plan.sds)) as u8;
        plan.steps.push(Timed { at, action: Action::Grow(i, r.range(8, 40) as u32) });
        let mut e =
            Episode { plan, at: at + Duration::from_micros(r.below(50_000)), careful: true };
        if r.chance(0.8) && e.plan.keeps(Who::Sds(i)) {
            let away = Duration::from_micros(r.range(50, 30_000));
            e.crash(Who::Sds(i), true, away, r);
            // Often once more, while it is on the way.
            e.at += away + Duration::from_micros(r.range(100, 30_000));
            if r.chance(0.5) {
                e.crash(Who::Sds(i), true, away, r);
            }
        }
    }
}

/// A few times somebody does something to a server's device.
fn tamper(plan: &mut Plan, r: &mut Prng) {
    for _ in 0..r.range(1, 4) {
        let at = Duration::from_micros(r.below(plan.length.as_micros() as u64));
        let i = r.below(u64::from(plan.sds)) as u8;
        let other = (i + r.range(1, u64::from(plan.sds)) as u8) % plan.sds;
        let all = [Tamper::Superblock, Tamper::Superblocks, Tamper::Shrunk, Tamper::Swapped(other)];
        plan.steps.push(Timed { at, action: Action::Tamper(i, *r.pick(&all)) });
    }
}

fn limits(r: &mut Prng) -> Limits {
    let mut l = Limits::TEST_MIN;
    if r.chance(0.5) {
        let lease = r.range(150, 1000);
        let ms = Duration::from_millis;
        l.lease = ms(lease);
        l.grace = ms(lease * 5 / 4);
        l.beacon_every = ms(lease * r.range(20, 41) / 100);
        l.heartbeat_every = ms(lease / 5);
        l.suspect_after = ms(lease * r.range(80, 300) / 100);
        l.stuck_after = ms(r.range(20, 200));
        l.redial_max = ms(r.range(20, 500));
    }
    l.client_ops = r.range(1, 8) as u32;
    l.sdc_requests = r.range(12, 24) as u32;
    l.shard_ops = r.range(16, 64) as u32;
    l.groups_per_device = r.range(1, 4) as u32;
    l.stripe_width = r.range(1, 4) as u32;
    l.copies = r.range(1, 4) as u32;
    l.copy_bytes = *r.pick(&[4 << 10, 8 << 10, 64 << 10, 256 << 10]);
    l.mdm_log = *r.pick(&[4 << 10, 16 << 10, 64 << 10]);
    // Often about as long as a server is away; sometimes so long that everybody is waited for.
    let soon = Duration::from_millis(r.range(100, 3000));
    l.rebuild_after = if r.chance(0.8) { soon } else { Limits::SHIPPED.rebuild_after * 60 };
    l.moves = r.range(1, 16) as u32;
    l.moves_per_device = r.range(1, 4) as u32;
    l.moving_bytes = r.below(5) << 20;
    // Three draws whose limits are gone keep the place of what follows.
    let _ = [r.next_u64(), r.next_u64(), r.next_u64()];
    l.quarantine = Duration::from_millis(*r.pick(&[0, 0, 10, 30]));
    l
}

fn weather(r: &mut Prng) -> Weather {
    let mut w = Weather::FAIR;
    let mut sometimes = |p: f64, f: &mut dyn FnMut(&mut Weather, &mut Prng)| {
        if r.chance(p) {
            f(&mut w, r);
        }
    };
    sometimes(0.5, &mut |w, r| {
        w.net_us = r.range(5, 500) as u32;
        w.net_jitter_us = r.range(0, 2000) as u32;
    });
    sometimes(0.4, &mut |w, r| {
        w.net_tail_ppm = r.range(100, 50_000) as u32;
        w.net_tail_ms = r.range(1, 300) as u32;
    });
    sometimes(0.5, &mut |w, r| {
        w.disk_us = r.range(1, 300) as u32;
        w.disk_jitter_us = r.range(0, 5000) as u32;
    });
    sometimes(0.4, &mut |w, r| {
        w.disk_tail_ppm = r.range(100, 50_000) as u32;
        w.disk_tail_ms = r.range(1, 300) as u32;
    });
    sometimes(0.1, &mut |w, r| w.disk_stuck_ppm = r.range(10, 500) as u32);
    sometimes(0.15, &mut |w, r| w.disk_read_ppm = r.range(10, 3000) as u32);
    sometimes(0.1, &mut |w, r| w.disk_write_ppm = r.range(10, 300) as u32);
    sometimes(0.3, &mut |w, r| {
        w.run_tail_ppm = r.range(100, 20_000) as u32;
        w.run_tail_ms = r.range(1, 100) as u32;
    });
    sometimes(0.5, &mut |w, r| w.batch = r.range(1, 40) as u32);
    sometimes(0.3, &mut |w, r| w.split_ppm = r.range(1000, 300_000) as u32);
    sometimes(0.3, &mut |w, r| w.flip_ppm = r.range(50, 2000) as u32);
    sometimes(0.3, &mut |w, r| w.reset_ppm = r.range(50, 2000) as u32);
    sometimes(0.7, &mut |w, r| w.drift_ppm = r.range(1, 100_000) as u32);
    sometimes(0.5, &mut |w, r| w.tcp_ms = r.range(300, 6000) as u32);
    sometimes(0.5, &mut |w, _| w.chaos = 1);
    w
}

/// Volumes are taken from clients under load, and given back, soon or late.
fn mapping(plan: &mut Plan, r: &mut Prng) {
    let length = plan.length.as_micros() as u64;
    for _ in 0..r.range(1, 8) {
        let v = r.below(plan.volumes.len() as u64) as u8;
        let mut at = Duration::from_micros(r.below(length));
        for _ in 0..r.range(1, 4) {
            let some = r.below(1 << plan.clients) as u8;
            let clients = if r.chance(0.3) { ALL } else { some };
            if r.chance(0.4) {
                // A server that hears of it late.
                let i = Who::Sds(r.below(u64::from(plan.sds)) as u8);
                let ms = r.range(10, 400) as u32;
                let at = at.saturating_sub(Duration::from_micros(200));
                let mdm = Who::Mdm(r.below(u64::from(plan.mdms)) as u8);
                plan.steps.push(Timed { at, action: Action::Clog(mdm, i, ms) });
            }
            plan.steps.push(Timed { at, action: Action::Map(v, clients) });
            at += Duration::from_micros(r.range(500, 150_000));
        }
    }
    plan.steps.sort_by_key(|s| s.at);
}

/// Where the clients like to go: hot spots, many of them across the border of two units.
fn workload(plan: &mut Plan, r: &mut Prng) {
    let mut spots: Vec<(u8, u64, u64)> = Vec::new();
    for _ in 0..r.range(1, 4) {
        let volume = r.below(plan.volumes.len() as u64) as u8;
        let size = u64::from(plan.volumes[volume as usize]) * UNIT_SECTORS;
        let width = (*r.pick(&[2, 8, 24, 64])).min(size);
        let border = UNIT_SECTORS * r.range(0, size / UNIT_SECTORS);
        let near = if r.chance(0.6) { border.saturating_sub(width / 2) } else { r.below(size) };
        spots.push((volume, near.min(size - width), width));
    }
    let hot = *r.pick(&[0.5, 0.9, 0.99]);
    let (zeros, extents) = (*r.pick(&[0.0, 0.05, 0.2]), *r.pick(&[0.0, 0.03]));
    let bigs = *r.pick(&[0.0, 0.005, 0.02]);
    let gap_us = *r.pick(&[2_000u64, 8_000, 20_000, 60_000]);
    for client in 0..plan.clients {
        let reads = *r.pick(&[0.1, 0.3, 0.5, 0.7, 0.95]);
        let mut at = Duration::ZERO;
        loop {
            // Bursts, and now and then a rest that is longer than a beacon.
            let gap = if r.chance(0.01) { r.below(700_000) } else { r.below(2 * gap_us) };
            at += Duration::from_micros(if r.chance(0.3) { 0 } else { gap });
            if at >= plan.length {
                break;
            }
            let x = r.chance(reads);
            let kind = match () {
                () if r.chance(extents) => IoKind::Extents,
                () if x => IoKind::Read,
                () if r.chance(zeros) => *r.pick(&[IoKind::Zero, IoKind::Discard]),
                () => IoKind::Write,
            };
            let (volume, from, width) = *r.pick(&spots);
            let size = u64::from(plan.volumes[volume as usize]) * UNIT_SECTORS;
            let (sector, sectors) = if r.chance(hot) {
                let sector = from + r.below(width);
                (sector, r.range(1, (from + width - sector).min(32)))
            } else if r.chance(bigs) {
                let sectors = r.range(1, size.min(2 * UNIT_SECTORS));
                (r.below(size - sectors + 1), sectors)
            } else {
                let sector = r.below(size);
                (sector, r.range(1, (size - sector).min(64)))
            };
            let (sector, sectors) = if r.chance(0.5) {
                let start = sector / BLOCK_SECTORS * BLOCK_SECTORS;
                (start, sectors.next_multiple_of(BLOCK_SECTORS).min(size - start))
            } else {
                (sector, sectors)
            };
            let (sector, sectors) = (sector as u32, sectors as u32);
            plan.steps
                .push(Timed { at, action: Action::Io { client, volume, kind, sector, sectors } });
        }
    }
}

/// Where there is too little space: whole units are written, one after the other, and some are given back.
fn fill(plan: &mut Plan, r: &mut Prng) {
    let all =
        plan.volumes.iter().enumerate().flat_map(|(v, units)| (0..*units).map(move |u| (v, u)));
    let mut units: Vec<(usize, u32)> = all.collect();
    let count = units.len() as u64;
    units.extend_from_within(..r.below(count) as usize);
    for (i, (volume, unit)) in units.into_iter().enumerate() {
        // Whole microseconds: that is what a written plan keeps.
        let half = plan.length.as_micros() as u64 / 2;
        let at = Duration::from_micros(half * i as u64 / count);
        let late = Duration::from_micros(r.below(half));
        let (sector, sectors) = (unit * UNIT_SECTORS as u32, UNIT_SECTORS as u32);
        for (at, kind, chance) in [(at, IoKind::Write, 0.9), (at + late, IoKind::Discard, 0.3)] {
            let (client, volume) = (r.below(u64::from(plan.clients)) as u8, volume as u8);
            let action = Action::Io { client, volume, kind, sector, sectors };
            if r.chance(chance) {
                plan.steps.push(Timed { at, action });
            }
        }
    }
}

/// One client reads, the others write the same few blocks, and again and again a server and the reader
/// are on an island. Whether a lease ends in time shows here and hardly anywhere else.
fn duel(plan: &mut Plan, r: &mut Prng) {
    plan.clients = plan.clients.max(2);
    (plan.durable, plan.memory) = (true, 0);
    plan.depth = r.range(4, 12) as u32;
    plan.weather.reset_ppm = 0;
    plan.weather.tcp_ms = r.range(2000, 20_000) as u32;
    let lease = plan.limits.lease;
    plan.limits.suspect_after = lease * r.range(80, 120) as u32 / 100;
    let islands = r.range(1, 2) as u32;
    let period = lease * 9;
    plan.length = period * islands;
    let gap_us = lease.as_micros() as u64 / r.range(15, 40);
    let blocks: Vec<u32> = (0..plan.volumes[0]).map(|u| u * UNIT_SECTORS as u32).collect();
    for client in 0..plan.clients {
        let mut at = Duration::ZERO;
        while at < plan.length {
            at += Duration::from_micros(r.below(2 * gap_us) + 1);
            let kind = if client == 0 { IoKind::Read } else { IoKind::Write };
            let sector = *r.pick(&blocks);
            let action = Action::Io { client, volume: 0, kind, sector, sectors: 8 };
            plan.steps.push(Timed { at, action });
        }
    }
    for i in 0..islands {
        let at = period * i + lease * r.range(5, 15) as u32 / 10;
        let mut e = Episode { plan, at, careful: true };
        let who = e.sds(r);
        e.strand(who, lease * r.range(30, 70) as u32 / 10, r);
    }
}

fn trouble(plan: &mut Plan, r: &mut Prng) {
    // Some runs have one kind of trouble only: others would cut its long stories short.
    let on: Vec<Trouble> = if r.chance(0.3) {
        vec![*r.pick(&TROUBLES)]
    } else {
        TROUBLES.iter().copied().filter(|_| r.chance(0.35)).collect()
    };
    if on.is_empty() {
        return;
    }
    let careful = !r.chance(0.1);
    let per_second = *r.pick(&[0.3, 1.0, 3.0, 8.0]);
    let count = (plan.length.as_secs_f64() * per_second).ceil() as u64;
    for _ in 0..count {
        let at = Duration::from_micros(r.below(plan.length.as_micros() as u64));
        let mut e = Episode { plan, at, careful };
        e.add(*r.pick(&on), r);
    }
}

struct Episode<'a> {
    plan: &'a mut Plan,
    at: Duration,
    careful: bool,
}

impl Episode<'_> {
    fn push(&mut self, after: Duration, action: Action) {
        let at = self.at + after;
        self.plan.steps.push(Timed { at, action });
    }

    fn sds(&self, r: &mut Prng) -> Who {
        Who::Sds(r.below(u64::from(self.plan.sds)) as u8)
    }

    fn sdc(&self, r: &mut Prng) -> Who {
        Who::Sdc(r.below(u64::from(self.plan.clients)) as u8)
    }

    fn mdm(&self, r: &mut Prng) -> Who {
        match self.plan.mdms {
            1 => Who::Mdm(0),
            n => Who::Mdm(r.below(u64::from(n)) as u8),
        }
    }

    /// Cuts an MDM off from the others, and from everybody else if `all`.
    fn apart(&mut self, who: Who, inward: bool, outward: bool, time: Duration, all: bool) {
        let mdm = |o: &Who| matches!(o, Who::Mdm(_));
        for other in self.everybody().into_iter().filter(|o| *o != who && (all || mdm(o))) {
            for (from, to, cut) in [(other, who, inward), (who, other, outward)] {
                if cut {
                    self.push(Duration::ZERO, Action::Block(from, to));
                    self.push(time, Action::Open(from, to));
                }
            }
        }
    }

    /// Mostly servers, often the MDM, sometimes a client.
    fn anybody(&self, r: &mut Prng) -> Who {
        match r.below(10) {
            0..=5 => self.sds(r),
            6 | 7 => self.mdm(r),
            _ => self.sdc(r),
        }
    }

    fn everybody(&self) -> Vec<Who> {
        let sds = (0..self.plan.sds).map(Who::Sds);
        let clients = (0..self.plan.clients).map(Who::Sdc);
        (0..self.plan.mdms).map(Who::Mdm).chain(sds).chain(clients).collect()
    }

    fn crash(&mut self, who: Who, keep: bool, away: Duration, r: &mut Prng) {
        let sds = matches!(who, Who::Sds(_));
        let keep = keep && (self.plan.keeps(who) || !sds);
        let careful = self.careful && !keep && sds;
        let (power, midway) = (r.chance(0.25), r.chance(0.5));
        let death = Death { keep, power, midway, careful, server: false };
        self.push(Duration::ZERO, Action::Crash(who, death));
        self.push(away, Action::Start(who));
    }

    fn cut(&mut self, who: Who, inward: bool, outward: bool, time: Duration) {
        for other in self.everybody().into_iter().filter(|o| *o != who) {
            if inward {
                self.push(Duration::ZERO, Action::Block(other, who));
                self.push(time, Action::Open(other, who));
            }
            if outward {
                self.push(Duration::ZERO, Action::Block(who, other));
                self.push(time, Action::Open(who, other));
            }
        }
    }

    fn add(&mut self, trouble: Trouble, r: &mut Prng) {
        match trouble {
            Trouble::Wipe => {
                let (who, away) = (self.sds(r), while_away(r));
                self.crash(who, false, away, r);
            }
            Trouble::Keep => {
                let (who, away) = (self.sds(r), while_away(r));
                self.crash(who, true, away, r);
            }
            Trouble::Mdm => {
                let (who, away) = (self.mdm(r), while_away(r));
                self.crash(who, true, away, r);
            }
            Trouble::Client => {
                let (who, away) = (self.sdc(r), while_away(r));
                self.crash(who, false, away, r);
            }
            Trouble::Pause => {
                let (who, time) = (self.anybody(r), while_away(r));
                self.push(Duration::ZERO, Action::Pause(who, r.chance(0.5)));
                self.push(time, Action::Resume(who));
            }
            Trouble::Cut => {
                let (who, time) = (self.anybody(r), while_away(r));
                let (inward, outward) =
                    *r.pick(&[(true, true), (true, true), (true, false), (false, true)]);
                self.cut(who, inward, outward, time);
            }
            Trouble::Island => self.island(r),
            Trouble::Block => {
                let (a, b) = self.two(r);
                let time = while_away(r);
                self.push(Duration::ZERO, Action::Block(a, b));
                self.push(time, Action::Open(a, b));
                if r.chance(0.6) {
                    self.push(Duration::ZERO, Action::Block(b, a));
                    self.push(time, Action::Open(b, a));
                }
            }
            Trouble::Clog => {
                let (a, b) = self.two(r);
                self.push(Duration::ZERO, Action::Clog(a, b, while_away(r).as_millis() as u32));
            }
            Trouble::Reset => {
                let (a, b) = self.two(r);
                self.push(Duration::ZERO, Action::Reset(a, b));
            }
            Trouble::Flap => {
                let who = self.sds(r);
                for _ in 0..r.range(2, 5) {
                    let away = Duration::from_micros(r.range(50, 30_000));
                    self.crash(who, true, away, r);
                    self.at += away + Duration::from_micros(r.range(100, 200_000));
                }
            }
            Trouble::Volumes => {
                let v = r.below(self.plan.volumes.len() as u64) as u8;
                let units = self.plan.volumes[v as usize];
                if r.chance(0.4) {
                    self.push(Duration::ZERO, Action::Resize(v, units + r.range(1, 2) as u32));
                } else {
                    self.push(Duration::ZERO, Action::Delete(v));
                    self.push(Duration::from_micros(r.below(800_000)), Action::Create(v, units));
                }
            }
            Trouble::Blackout => {
                for who in self.everybody() {
                    let away = Duration::from_micros(r.range(1_000, 1_500_000));
                    let sds = matches!(who, Who::Sds(_));
                    if sds && (!self.plan.durable || self.plan.memory != 0) {
                        continue;
                    }
                    let keep = sds || matches!(who, Who::Mdm(_));
                    let power = r.chance(0.7);
                    let death = Death { keep, power, ..Death::default() };
                    self.push(Duration::from_micros(r.below(3)), Action::Crash(who, death));
                    self.push(away, Action::Start(who));
                }
            }
            Trouble::Damage => {
                let kinds =
                    [Damage::Rot, Damage::Rot, Damage::Sector, Damage::Lost, Damage::Astray];
                let i = r.below(u64::from(self.plan.sds)) as u8;
                for _ in 0..r.range(1, 8) {
                    let after = Duration::from_micros(r.below(300_000));
                    self.push(after, Action::Damage(i, *r.pick(&kinds)));
                }
                if r.chance(0.5) {
                    self.push(Duration::from_micros(r.below(600_000)), Action::Scrub);
                }
            }
        }
    }

    /// A server that some clients still reach, and the MDM does not: it must stop in time to serve
    /// them. What they mostly do there is read.
    fn island(&mut self, r: &mut Prng) {
        let who = self.sds(r);
        let time = Duration::from_micros(r.range(200_000, 4_000_000));
        // Other servers: within reach, cut off, or heard late and not reached (grants that are old).
        let (alone, late) = *r.pick(&[(false, false), (true, false), (true, false), (false, true)]);
        let (inward, outward) =
            *r.pick(&[(true, true), (true, true), (true, false), (false, true)]);
        for other in self.everybody().into_iter().filter(|o| *o != who) {
            if let (Who::Sds(_), true) = (other, late) {
                let lease_ms = self.plan.limits.lease.as_millis() as u64;
                let (clog, block) =
                    (r.range(lease_ms / 2, 3 * lease_ms), r.range(lease_ms / 4, lease_ms));
                self.push(Duration::ZERO, Action::Clog(other, who, clog as u32));
                self.push(Duration::from_millis(block), Action::Block(who, other));
                self.push(time.max(Duration::from_millis(block + 1)), Action::Open(who, other));
            }
            let apart = match other {
                Who::Mdm(_) => true,
                Who::Sds(_) => alone,
                _ => r.chance(0.5),
            };
            if let (Who::Sdc(i), false) = (other, apart) {
                if r.chance(0.7) {
                    self.read_only(i, time, r);
                    if r.chance(0.8) {
                        self.castaway(other, who, time);
                    }
                } else if r.chance(0.6) {
                    // What it has sent arrives when the server may lead again.
                    let ms = (time.as_millis() as u64 + r.below(1500)) as u32;
                    self.push(Duration::ZERO, Action::Clog(other, who, ms));
                }
            }
            let both = matches!(other, Who::Sdc(_));
            for (from, to, cut) in [(other, who, inward || both), (who, other, outward || both)] {
                if apart && cut {
                    self.push(Duration::ZERO, Action::Block(from, to));
                    self.push(time, Action::Open(from, to));
                }
            }
        }
        if r.chance(0.3) {
            let after = Duration::from_micros(r.below(500_000));
            self.push(after, Action::Pause(who, r.chance(0.5)));
            self.push(after + Duration::from_micros(r.below(2_500_000)), Action::Resume(who));
        }
    }

    /// Leaves a server alone with client 0: cut off from the MDM, heard late or not at all by others.
    fn strand(&mut self, who: Who, time: Duration, r: &mut Prng) {
        let lease = self.plan.limits.lease;
        let part = |r: &mut Prng, low: u64, high: u64| lease * r.range(low, high) as u32 / 100;
        let cut = |e: &mut Episode<'_>, after: Duration, from: Who, to: Who| {
            e.push(after, Action::Block(from, to));
            e.push(time.max(after), Action::Open(from, to));
        };
        let mode = r.below(4);
        for other in self.everybody().into_iter().filter(|o| *o != who && *o != Who::Sdc(0)) {
            let server = matches!(other, Who::Sds(_));
            if server && mode == 0 {
                // Only the MDM is out of reach. A server that starts again has forgotten its promises.
                if r.chance(0.5) {
                    let after = part(r, 60, 180);
                    let death = Death { keep: true, midway: r.chance(0.3), ..Death::default() };
                    self.push(after, Action::Crash(other, death));
                    let away = Duration::from_micros(r.range(100, 30_000));
                    self.push(after + away, Action::Start(other));
                }
                continue;
            }
            if server && mode == 1 {
                let late = part(r, 50, 350).as_millis() as u32;
                self.push(Duration::ZERO, Action::Clog(other, who, late));
                cut(self, part(r, 20, 100), who, other);
                continue;
            }
            cut(self, Duration::ZERO, who, other);
            cut(self, Duration::ZERO, other, who);
        }
        self.castaway(Who::Sdc(0), who, time);
        if mode == 2 {
            self.push(part(r, 0, 50), Action::Pause(who, r.chance(0.5)));
            self.push(part(r, 50, 400), Action::Resume(who));
        }
    }

    /// A client that reaches nobody but this server, so that it does not hear of a new map.
    fn castaway(&mut self, client: Who, with: Who, time: Duration) {
        let others = self.everybody();
        for other in others.into_iter().filter(|o| *o != with && !matches!(o, Who::Sdc(_))) {
            for (from, to) in [(client, other), (other, client)] {
                self.push(Duration::ZERO, Action::Block(from, to));
                self.push(time, Action::Open(from, to));
            }
        }
    }

    /// Turns most of what a client writes meanwhile into reads.
    fn read_only(&mut self, who: u8, time: Duration, r: &mut Prng) {
        let (from, to) = (self.at, self.at + time);
        for step in self.plan.steps.iter_mut().filter(|s| (from..to).contains(&s.at)) {
            if let Action::Io { client, kind, .. } = &mut step.action
                && *client == who
                && *kind != IoKind::Read
                && r.chance(0.95)
            {
                *kind = IoKind::Read;
            }
        }
    }

    fn two(&self, r: &mut Prng) -> (Who, Who) {
        let a = self.anybody(r);
        loop {
            let b = self.anybody(r);
            if b != a {
                return (a, b);
            }
        }
    }
}

/// How long something is away: from a blink to several leases.
fn while_away(r: &mut Prng) -> Duration {
    Duration::from_micros(match r.below(4) {
        0 => r.range(50, 5_000),
        1 => r.range(5_000, 200_000),
        2 => r.range(200_000, 1_500_000),
        _ => r.range(1_000_000, 4_000_000),
    })
}
