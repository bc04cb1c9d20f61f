//! A second loss and recovery in a story about a recovery. What the second one begins with may be
//! older than the first recovery, or may have been written while the first one was open.
//!
//! Each story needs the first recovery to be over before the second loss, as the operator does. In
//! many stories the operator ends the first one early, while a server is away or has an older disk.

use super::{Action, Death, Story, Timed, Who};
use std::time::Duration;

/// What the second recovery begins with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// The first backup.
    First,
    /// The newest backup.
    Newest,
    /// The log of an MDM that is left, if there are several MDMs.
    Survivor,
}

impl Story<'_> {
    /// Adds a second loss and recovery.
    pub(super) fn second(&mut self, backup: u64, again: u64) {
        match self.r.below(5) {
            0 => self.same_backup(backup, again),
            1 => self.newer_backup(backup, again),
            2 => self.backup_while_open(backup, again),
            3 => self.doubts(backup, again),
            _ => self.survivors(backup, again),
        }
    }

    /// The same backup is restored twice, or the backup after a recovery with an MDM's own log.
    fn same_backup(&mut self, backup: u64, again: u64) {
        if self.r.chance(0.3) {
            self.exchange(backup, again);
        }
        let over = match self.r.chance(0.6) {
            true => self.end_early(again),
            false => self.end_by_itself(again),
        };
        self.lose_again(over, Source::Newest);
    }

    /// An older backup is restored, and then a newer one, which was written before the first loss;
    /// or the other way round.
    fn newer_backup(&mut self, backup: u64, again: u64) {
        let loss = self.loss(again);
        let newer = self.between(backup + (loss - backup) / 4, loss);
        self.push(newer, Action::Backup);
        if self.r.chance(0.7) {
            let at = self.between(backup, newer);
            self.make_anew(at);
        }
        if self.r.chance(0.3) {
            let at = self.between(backup, newer);
            self.empty(at);
        }
        if self.r.chance(0.3) {
            self.exchange(backup, again);
        }
        if self.r.chance(0.4) {
            // No map tells of volumes that were created after the first backup.
            for i in 0..self.plan.sds {
                let (before, away) = (self.r.below(30_000), self.r.range(1_000, 600_000));
                self.away(loss.saturating_sub(before), i, before + away);
            }
        }
        let (first, second) = match self.r.chance(0.75) {
            true => (Source::First, Source::Newest),
            false => (Source::Newest, Source::First),
        };
        self.begin_with(first);
        let over = match self.r.chance(0.6) {
            true => self.end_early(again),
            false => self.end_by_itself(again),
        };
        self.lose_again(over, second);
    }

    /// A backup is written while the first recovery is open. When it is over, that backup is
    /// restored.
    fn backup_while_open(&mut self, backup: u64, again: u64) {
        match self.r.below(3) {
            0 => self.exchange(backup, again),
            1 => drop(self.newest_away(again)),
            _ => {}
        }
        let over = self.end_early(again);
        let at = self.between(again + 1, over);
        self.push(at, Action::Backup);
        self.lose_again(over, Source::Newest);
    }

    /// The operator ends the first recovery while a server with the newest copies is away, so that
    /// groups stay in doubt. Processes restart meanwhile, or that server is removed. Mostly the logs
    /// are lost again.
    fn doubts(&mut self, backup: u64, again: u64) {
        let i = self.newest_away(again);
        if self.r.chance(0.3) {
            self.exchange(backup, again);
        }
        let over = self.end_early(again);
        self.disturb(over, i);
        if self.r.chance(0.7) {
            let source = *self.r.pick(&[Source::First, Source::Newest, Source::Survivor]);
            self.lose_again(over, source);
        } else {
            self.go_on(over, over + 3_000_000);
        }
    }

    /// Both times an MDM continues with its own log, with groups in doubt in between.
    fn survivors(&mut self, backup: u64, again: u64) {
        if self.plan.mdms > 1 {
            self.begin_with(Source::Survivor);
        }
        let i = self.newest_away(again);
        if self.r.chance(0.3) {
            self.exchange(backup, again);
        }
        let over = self.end_early(again);
        if self.r.chance(0.5) {
            self.disturb(over, i);
        }
        self.lose_again(over, Source::Survivor);
    }

    /// Lets the first recovery begin with this source.
    fn begin_with(&mut self, source: Source) {
        let i = self.r.below(u64::from(self.plan.mdms)) as u8;
        let begins = |a: &Action| matches!(a, Action::Recover | Action::Restore(_));
        let former = self.plan.steps.iter().find_map(|s| match s.action {
            Action::Lose(Some(i)) | Action::Restore(i) => Some(i),
            _ => None,
        });
        for step in &mut self.plan.steps {
            if matches!(step.action, Action::Lose(_)) {
                step.action =
                    Action::Lose((source == Source::Survivor).then(|| former.unwrap_or(i)));
            } else if begins(&step.action) {
                step.action = begin(source, former.unwrap_or(i));
            }
        }
    }

    /// Lets the operator end the first recovery before all that could report have done so. Returns
    /// a time at which it is over.
    fn end_early(&mut self, again: u64) -> u64 {
        let finish = again + self.r.range(50_000, 2_500_000);
        self.push(finish, Action::Finish);
        finish + self.r.range(200_000, 1_500_000)
    }

    /// Returns a time at which the first recovery is over if all servers have reported.
    fn end_by_itself(&mut self, again: u64) -> u64 {
        let open = self.plan.limits.suspect_after.as_micros() as u64 * 6;
        again + open + self.r.range(500_000, 2_000_000)
    }

    /// Takes a server away before the loss, so that another one continues alone. That one is away
    /// from the loss on, mostly for long. Returns it.
    fn newest_away(&mut self, again: u64) -> u8 {
        let loss = self.loss(again);
        let i = self.r.below(u64::from(self.plan.sds)) as u8;
        let other = (i + self.r.range(1, u64::from(self.plan.sds) - 1) as u8) % self.plan.sds;
        let alone = self.r.range(200_000, 1_500_000).min(loss);
        match self.r.chance(0.5) {
            true => self.cut_off(Who::Sds(other), loss - alone, loss),
            false => {
                let late = self.r.below(600_000);
                self.away(loss - alone, other, alone + late);
            }
        }
        let before = self.r.below(20_000).min(loss);
        let away = before + self.r.range(1_000_000, 9_000_000);
        self.away(loss - before, i, away);
        i
    }

    /// Restarts processes while groups may be in doubt. Server `i`, which may have the newest copies,
    /// or another one, is removed, or its disk is replaced.
    fn disturb(&mut self, over: u64, i: u8) {
        for mdm in 0..self.plan.mdms {
            if self.r.chance(0.7) {
                let at = over + self.r.below(600_000);
                self.crash(at, Who::Mdm(mdm), false);
                self.push(at + 30_000, Action::Start(Who::Mdm(mdm)));
            }
        }
        for server in 0..self.plan.sds {
            if self.r.chance(0.4) {
                let (at, away) = (over + self.r.below(900_000), self.r.range(1_000, 800_000));
                self.away(at, server, away);
            }
        }
        let other = self.r.below(u64::from(self.plan.sds)) as u8;
        let which = if self.r.chance(0.6) { i } else { other };
        let at = over + self.r.below(900_000);
        if self.plan.sds > 2 && self.r.chance(0.3) {
            self.push(at, Action::Remove(which));
        } else if self.r.chance(0.4) {
            self.push(at, Action::NewDisk(which));
        }
    }

    /// Loses the logs again some time after the first recovery, and lets the second one begin.
    fn lose_again(&mut self, over: u64, source: Source) {
        let source = match source {
            Source::Survivor if self.plan.mdms < 2 => Source::Newest,
            source => source,
        };
        let loss = over + self.r.range(300_000, 2_500_000);
        self.change_much(over, loss);
        let i = self.r.below(u64::from(self.plan.mdms)) as u8;
        self.push(loss, Action::Lose((source == Source::Survivor).then_some(i)));
        let again = loss + self.r.range(10_000, 700_000);
        if self.r.chance(0.3) {
            let at = self.between(loss, again);
            self.empty(at);
        }
        if self.r.chance(0.3) {
            let (at, i) = (self.between(loss, again), self.r.below(u64::from(self.plan.sds)) as u8);
            self.push(at, Action::OlderDisk(i));
        }
        if self.r.chance(0.2) {
            for i in 0..self.plan.sds {
                let (before, away) = (self.r.below(30_000), self.r.range(1_000, 1_500_000));
                self.away(loss - before, i, before + away);
            }
        }
        self.push(again, begin(source, i));
        if self.r.chance(0.3) {
            let at = again + self.r.range(20_000, 2_000_000);
            self.push(at, Action::Finish);
        }
        self.go_on(over, again + 2_000_000);
    }

    /// Changes the cluster between the two recoveries.
    fn change_much(&mut self, from: u64, to: u64) {
        for _ in 0..self.r.below(4) {
            let (at, i) = (self.between(from, to), self.r.below(u64::from(self.plan.sds)) as u8);
            let away = self.r.range(1_000, 1_500_000);
            self.away(at, i, away);
        }
        if self.r.chance(0.4) {
            let at = self.between(from, to);
            self.make_anew(at);
        }
        if self.r.chance(0.3) {
            let at = self.between(from, to);
            self.empty(at);
        }
        if self.r.chance(0.2) {
            let (at, i) = (self.between(from, to), self.r.below(u64::from(self.plan.sds)) as u8);
            self.push(at, Action::NewDisk(i));
        }
        if self.plan.sds > 2 && self.r.chance(0.15) {
            let (at, i) = (self.between(from, to), self.r.below(u64::from(self.plan.sds)) as u8);
            self.push(at, Action::Remove(i));
        }
        if self.r.chance(0.3) {
            let i = self.r.below(u64::from(self.plan.sds)) as u8;
            let cut = to - self.r.range(50_000, 900_000).min(to - from);
            self.cut_off(Who::Sds(i), cut, to);
        }
    }

    /// Deletes a volume and creates it again.
    fn make_anew(&mut self, at: u64) {
        let v = self.r.below(self.plan.volumes.len() as u64) as u8;
        self.push(at, Action::Delete(v));
        self.push(at + 1000, Action::Create(v, self.plan.volumes[usize::from(v)]));
    }

    /// Restarts a server with an empty disk, if all copies are intact.
    fn empty(&mut self, at: u64) {
        let i = self.r.below(u64::from(self.plan.sds)) as u8;
        let death = Death { careful: true, ..Death::default() };
        self.push(at, Action::Crash(Who::Sds(i), death));
        let away = self.r.range(1_000, 200_000);
        self.push(at + away, Action::Start(Who::Sds(i)));
    }

    /// Repeats the requests of clients from this time on, and lets phase 1 last at least until the
    /// other.
    fn go_on(&mut self, from: u64, until: u64) {
        let from = Duration::from_micros(from);
        let traffic = self.plan.steps.iter().filter(|s| matches!(s.action, Action::Io { .. }));
        let more: Vec<Timed> =
            traffic.map(|s| Timed { at: s.at + from, action: s.action }).collect();
        self.plan.steps.extend(more);
        self.plan.length = (from + self.plan.length).max(Duration::from_micros(until));
    }
}

fn begin(source: Source, i: u8) -> Action {
    match source {
        Source::First => Action::RestoreFirst(i),
        Source::Newest => Action::Restore(i),
        Source::Survivor => Action::Recover,
    }
}
