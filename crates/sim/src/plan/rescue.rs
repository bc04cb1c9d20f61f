//! Plans in which the MDMs lose their logs, and one continues with its own log or with a restored
//! backup. Decisions made after the backup, or without the survivor, are known only to servers.

mod second;

use super::{Action, Death, Plan, Timed, Who};
use crate::admin::ALL;
use base::Prng;
use std::time::Duration;

/// Turns a few plans into the story of a recovery. Only the requests of the original plan stay.
pub(super) fn draw(plan: &mut Plan, root: &Prng) {
    let mut r = root.fork("rescue");
    let units: u32 = plan.volumes.iter().sum();
    if !r.chance(0.05) || !plan.durable || plan.memory != 0 || plan.capacity < units {
        return;
    }
    let traffic = |a: &Action| matches!(a, Action::Io { .. } | Action::Reset(..));
    plan.steps.retain(|s| traffic(&s.action));
    (plan.outcast, plan.nbd, plan.growth) = (None, 0, 0);
    plan.limits.answer_within = Duration::ZERO;
    let w = &mut plan.weather;
    (w.disk_read_ppm, w.disk_write_ppm, w.disk_stuck_ppm) = (0, 0, 0);
    (w.log_fail_ppm, w.log_stuck_ppm) = (0, 0);
    plan.length = plan.length.max(Duration::from_secs(4));
    let (backup, again) = Story { plan, r: &mut r }.tell();
    let mut r = root.fork("rescue mappings");
    if r.chance(0.5) {
        Story { plan, r: &mut r }.map(backup, again);
    }
    let mut r = root.fork("rescue removals");
    if plan.sds > 2 && r.chance(0.25) {
        let (at, i) = (r.range(backup, again), r.below(u64::from(plan.sds)) as u8);
        Story { plan, r: &mut r }.push(at, Action::Remove(i));
    }
    let mut r = root.fork("rescue doubles");
    if r.chance(0.25) {
        Story { plan, r: &mut r }.double(backup, again);
    }
    let mut r = root.fork("rescue replaced");
    if r.chance(0.25) {
        Story { plan, r: &mut r }.exchange(backup, again);
    }
    let mut r = root.fork("rescue restarts");
    if r.chance(0.2) {
        Story { plan, r: &mut r }.restart_all(again);
    }
    let mut r = root.fork("rescue again");
    if r.chance(0.3) {
        return Story { plan, r: &mut r }.once_more(again);
    }
    let mut r = root.fork("rescue second");
    if r.chance(0.5) {
        Story { plan, r: &mut r }.second(backup, again);
    }
}

struct Story<'a> {
    plan: &'a mut Plan,
    r: &'a mut Prng,
}

impl Story<'_> {
    /// Writes the main story. Returns the times of the backup and of the recovery, in µs.
    fn tell(&mut self) -> (u64, u64) {
        let part = |percent: u64| self.plan.length.as_micros() as u64 * percent / 100;
        let (backup, loss) = (part(self.r.range(5, 30)), part(self.r.range(45, 65)));
        let survivor = (self.plan.mdms > 1 && self.r.chance(0.5))
            .then(|| self.r.below(u64::from(self.plan.mdms)) as u8);
        self.push(backup, Action::Backup);
        if let Some(i) = survivor.filter(|_| self.r.chance(0.5)) {
            // The others continue without it.
            for other in (0..self.plan.mdms).filter(|j| *j != i).map(Who::Mdm) {
                for (a, b) in [(other, Who::Mdm(i)), (Who::Mdm(i), other)] {
                    self.push(backup, Action::Block(a, b));
                    self.push(loss, Action::Open(a, b));
                }
            }
        }
        if self.r.chance(0.6) {
            let v = self.r.below(self.plan.volumes.len() as u64) as u8;
            let at = self.between(backup, loss);
            self.push(at, Action::Delete(v));
            self.push(at + 1000, Action::Create(v, self.plan.volumes[usize::from(v)]));
        }
        for _ in 0..self.r.below(3) {
            let (at, i) =
                (self.between(backup, loss), self.r.below(u64::from(self.plan.sds)) as u8);
            let away = self.r.range(1_000, 2_500_000);
            self.away(at, i, away);
        }
        if self.r.chance(0.3) {
            // All servers forget their maps.
            for i in 0..self.plan.sds {
                let (before, away) = (self.r.below(30_000), self.r.range(1_000, 1_500_000));
                self.away(loss - before, i, before + away);
            }
        }
        if self.plan.sds > 2 && self.r.chance(0.3) {
            self.lose_data(backup, loss);
        }
        self.push(loss, Action::Lose(survivor));
        let again = loss + self.r.range(10_000, 700_000);
        if self.r.chance(0.3) {
            // A server that restarts empty remembers nothing, so it can't report anything.
            let (at, i) = (self.between(loss, again), self.r.below(u64::from(self.plan.sds)) as u8);
            let empty = Death { careful: true, ..Death::default() };
            self.push(at, Action::Crash(Who::Sds(i), empty));
            let away = self.r.range(1_000, 200_000);
            self.push(at + away, Action::Start(Who::Sds(i)));
        }
        let i = survivor.unwrap_or_else(|| self.r.below(u64::from(self.plan.mdms)) as u8);
        self.push(again, if survivor.is_some() { Action::Recover } else { Action::Restore(i) });
        if self.r.chance(0.5) {
            let open = self.plan.limits.suspect_after.as_micros() as u64 * 5;
            let at = again + self.r.range(1_000, open);
            let (power, away) = (self.r.chance(0.3), self.r.range(1_000, 300_000));
            self.crash(at, Who::Mdm(i), power);
            self.push(at + away, Action::Start(Who::Mdm(i)));
        }
        (backup, again)
    }

    /// Takes volumes from clients and gives them back, mostly after the backup.
    fn map(&mut self, backup: u64, again: u64) {
        for _ in 0..self.r.range(1, 5) {
            let v = self.r.below(self.plan.volumes.len() as u64) as u8;
            let some = self.r.below(1 << self.plan.clients) as u8;
            let clients = if self.r.chance(0.2) { ALL } else { some };
            let at = self.between(backup.saturating_sub(200_000), again + 1_000_000);
            self.push(at, Action::Map(v, clients));
        }
    }

    /// Restarts a client after the backup, and then starts it elsewhere. The process between the
    /// two is frozen, and resumes after the loss. The backup knows neither incarnation.
    fn double(&mut self, backup: u64, again: u64) {
        let client = self.r.below(u64::from(self.plan.clients)) as u8;
        let at = self.between(backup, backup.max(self.loss(again).saturating_sub(800_000)) + 1);
        self.crash(at, Who::Sdc(client), false);
        self.push(at + 1000, Action::Start(Who::Sdc(client)));
        let moved = at + self.r.range(100_000, 600_000);
        self.push(moved, Action::Elsewhere(client));
        let thaw = again + self.r.below(2_000_000);
        self.push(thaw, Action::Thaw(client));
    }

    /// Replaces a disk after the backup, and brings the older one back after the loss. Mostly the
    /// newer disk was alone in the end, as its partner was cut off.
    fn exchange(&mut self, backup: u64, again: u64) {
        let i = self.r.below(u64::from(self.plan.sds)) as u8;
        let loss = self.loss(again);
        let at = self.between(backup, backup.max(loss.saturating_sub(1_500_000)) + 1);
        self.push(at, Action::NewDisk(i));
        if self.r.chance(0.7) {
            let cut = loss - self.r.range(50_000, 600_000).min(loss);
            let other = (i + self.r.range(1, u64::from(self.plan.sds) - 1) as u8) % self.plan.sds;
            self.cut_off(Who::Sds(other), cut, loss);
        }
        let at = self.between(loss + 1, again.max(loss + 2));
        self.push(at, Action::OlderDisk(i));
        if self.r.chance(0.5) {
            let at = again + self.r.range(1_000, 3_000_000);
            self.push(at, Action::NewerDisk(i));
        }
    }

    /// Restarts all servers one after the other while the recovery is open, and often the MDMs,
    /// too. Then no process has a map any more. In half of the plans an operator ends the recovery.
    fn restart_all(&mut self, again: u64) {
        let open = self.plan.limits.suspect_after.as_micros() as u64 * 6;
        for i in 0..self.plan.sds {
            let (at, away) = (again + open + self.r.below(500_000), self.r.range(1_000, 100_000));
            self.away(at, i, away);
        }
        for i in 0..self.plan.mdms {
            let at = again + open + self.r.range(500_000, 900_000);
            if self.r.chance(0.5) {
                self.crash(at, Who::Mdm(i), false);
                self.push(at + 50_000, Action::Start(Who::Mdm(i)));
            }
        }
        if self.r.chance(0.5) {
            let at = again + 2 * open + self.r.range(1_000_000, 2_000_000);
            self.push(at, Action::Finish);
        }
    }

    /// Returns the time at which the logs are lost.
    fn loss(&self, again: u64) -> u64 {
        let lost = |s: &Timed| matches!(s.action, Action::Lose(_)).then_some(s.at);
        self.plan.steps.iter().find_map(lost).map_or(again, |at| at.as_micros() as u64)
    }

    /// Cuts a process off from all others for a while.
    fn cut_off(&mut self, who: Who, from: u64, until: u64) {
        let servers = (0..self.plan.sds).map(Who::Sds);
        let mdms = (0..self.plan.mdms).map(Who::Mdm);
        let clients = (0..self.plan.clients).map(Who::Sdc);
        let others: Vec<Who> =
            servers.chain(mdms).chain(clients).filter(|other| *other != who).collect();
        for other in others {
            for (a, b) in [(who, other), (other, who)] {
                self.push(from, Action::Block(a, b));
                self.push(until, Action::Open(a, b));
            }
        }
    }

    /// Loses the logs again when the recovery is over. Then a newer backup is
    /// restored, or the same one.
    fn once_more(&mut self, again: u64) {
        let length = self.plan.length;
        let traffic = self.plan.steps.iter().filter(|s| matches!(s.action, Action::Io { .. }));
        let more: Vec<Timed> =
            traffic.map(|s| Timed { at: s.at + length, action: s.action }).collect();
        self.plan.steps.extend(more);
        let open = self.plan.limits.suspect_after.as_micros() as u64 * 8;
        let backup = again + open + self.r.range(500_000, 2_000_000);
        if self.r.chance(0.6) {
            self.push(backup, Action::Backup);
        }
        if self.r.chance(0.5) {
            let v = self.r.below(self.plan.volumes.len() as u64) as u8;
            self.push(backup + 1000, Action::Delete(v));
            self.push(backup + 2000, Action::Create(v, self.plan.volumes[usize::from(v)]));
        }
        let loss = backup + self.r.range(100_000, 1_500_000);
        let survivor = (self.plan.mdms > 1 && self.r.chance(0.5))
            .then(|| self.r.below(u64::from(self.plan.mdms)) as u8);
        self.push(loss, Action::Lose(survivor));
        let again = loss + self.r.range(10_000, 700_000);
        let i = survivor.unwrap_or_else(|| self.r.below(u64::from(self.plan.mdms)) as u8);
        self.push(again, if survivor.is_some() { Action::Recover } else { Action::Restore(i) });
        self.plan.length = (length * 2).max(Duration::from_micros(again) + length / 2);
    }

    fn between(&mut self, from: u64, to: u64) -> u64 {
        self.r.range(from, to)
    }

    /// Wipes two servers, and accepts the loss, mostly after the backup.
    fn lose_data(&mut self, backup: u64, loss: u64) {
        let at = self.between(backup, backup.max(loss - 900_000) + 1);
        let first = self.r.below(u64::from(self.plan.sds)) as u8;
        for i in [first, (first + 1) % self.plan.sds] {
            self.push(at, Action::Crash(Who::Sds(i), Death::default()));
            let away = self.r.range(1_000, 100_000);
            self.push(at + away, Action::Start(Who::Sds(i)));
        }
        let accept = at + self.r.range(300_000, 600_000);
        if self.r.chance(0.5) {
            let before = self.r.range(1_000, 100_000);
            self.push(accept - before, Action::Backup);
        }
        self.push(accept, Action::Accept);
    }

    /// Takes a server away for this many µs.
    fn away(&mut self, at: u64, i: u8, time: u64) {
        let power = self.r.chance(0.5);
        self.crash(at, Who::Sds(i), power);
        self.push(at + time, Action::Start(Who::Sds(i)));
    }

    fn crash(&mut self, at: u64, who: Who, power: bool) {
        self.push(at, Action::Crash(who, Death { keep: true, power, ..Death::default() }));
    }

    fn push(&mut self, at_us: u64, action: Action) {
        self.plan.steps.push(Timed { at: Duration::from_micros(at_us), action });
    }
}
