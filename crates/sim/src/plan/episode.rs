//! Faults that begin at random moments, and their ends.

use super::{Action, Death, IoKind, Plan, Timed, Who};
use crate::disk::Damage;
use base::Prng;
use std::time::Duration;

/// Kinds of faults that a plan may have.
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

/// Adds faults to a plan: first draws which kinds are on, then when each strikes.
pub(super) fn trouble(plan: &mut Plan, r: &mut Prng) {
    // Some runs have one kind of fault only, as others would cut its long stories short.
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
        let at = plan.moment(r);
        let mut e = Episode { plan, at, careful };
        e.add(*r.pick(&on), r);
    }
}

/// One fault and its end.
pub(super) struct Episode<'a> {
    /// The plan that the fault is added to.
    pub plan: &'a mut Plan,
    /// Start of the fault.
    pub at: Duration,
    /// The fault must not destroy a last copy.
    pub careful: bool,
}

impl Episode<'_> {
    pub(super) fn push(&mut self, after: Duration, action: Action) {
        let at = self.at + after;
        self.plan.steps.push(Timed { at, action });
    }

    /// Blocks the path from one process to another for this long.
    pub(super) fn block(&mut self, from: Who, to: Who, time: Duration) {
        self.push(Duration::ZERO, Action::Block(from, to));
        self.push(time, Action::Open(from, to));
    }

    pub(super) fn sds(&self, r: &mut Prng) -> Who {
        Who::Sds(r.below(u64::from(self.plan.sds)) as u8)
    }

    pub(super) fn sdc(&self, r: &mut Prng) -> Who {
        Who::Sdc(r.below(u64::from(self.plan.clients)) as u8)
    }

    pub(super) fn mdm(&self, r: &mut Prng) -> Who {
        match self.plan.mdms {
            1 => Who::Mdm(0),
            n => Who::Mdm(r.below(u64::from(n)) as u8),
        }
    }

    /// Cuts an MDM off from the other MDMs, or from all processes if `all`.
    pub(super) fn apart(
        &mut self,
        who: Who,
        inward: bool,
        outward: bool,
        time: Duration,
        all: bool,
    ) {
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

    /// Picks a process: mostly a server, often an MDM, sometimes a client.
    fn anybody(&self, r: &mut Prng) -> Who {
        match r.below(10) {
            0..=5 => self.sds(r),
            6 | 7 => self.mdm(r),
            _ => self.sdc(r),
        }
    }

    pub(super) fn everybody(&self) -> Vec<Who> {
        let sds = (0..self.plan.sds).map(Who::Sds);
        let clients = (0..self.plan.clients).map(Who::Sdc);
        (0..self.plan.mdms).map(Who::Mdm).chain(sds).chain(clients).collect()
    }

    pub(super) fn crash(&mut self, who: Who, keep: bool, away: Duration, r: &mut Prng) {
        let sds = matches!(who, Who::Sds(_));
        let keep = keep && (self.plan.keeps(who) || !sds);
        let careful = self.careful && !keep && sds;
        let (power, midway) = (r.chance(0.25), r.chance(0.5));
        let death = Death { keep, power, midway, careful, server: false };
        self.push(Duration::ZERO, Action::Crash(who, death));
        self.push(away, Action::Start(who));
    }

    pub(super) fn cut(&mut self, who: Who, inward: bool, outward: bool, time: Duration) {
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

    // Long: one match over all kinds of faults.
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

    /// Isolates a server from the MDM while some clients still reach it. It must stop serving them
    /// in time. These clients mostly read.
    fn island(&mut self, r: &mut Prng) {
        let who = self.sds(r);
        let time = Duration::from_micros(r.range(200_000, 4_000_000));
        // Other servers: reachable; cut off; or their frames arrive late (old grants) and its own
        // frames do not get through.
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
                    // Requests of this client arrive when the server may lead again.
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

    /// Leaves a server alone with client 0: cut off from the MDM, and from other servers partly,
    /// with a delay, or fully.
    pub(super) fn strand(&mut self, who: Who, time: Duration, r: &mut Prng) {
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
                // Only the MDM is out of reach. A server that restarts has forgotten its promises.
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

    /// Cuts a client off from everything but this server, so that it does not hear of a new map.
    fn castaway(&mut self, client: Who, with: Who, time: Duration) {
        let others = self.everybody();
        for other in others.into_iter().filter(|o| *o != with && !matches!(o, Who::Sdc(_))) {
            for (from, to) in [(client, other), (other, client)] {
                self.push(Duration::ZERO, Action::Block(from, to));
                self.push(time, Action::Open(from, to));
            }
        }
    }

    /// Turns most writes of a client in this time into reads.
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

/// Draws the length of an outage: from 50 µs to several leases.
pub(super) fn while_away(r: &mut Prng) -> Duration {
    Duration::from_micros(match r.below(4) {
        0 => r.range(50, 5_000),
        1 => r.range(5_000, 200_000),
        2 => r.range(200_000, 1_500_000),
        _ => r.range(1_000_000, 4_000_000),
    })
}
