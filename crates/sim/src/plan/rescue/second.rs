//! A second loss and recovery in a story about a recovery. What the second one begins with may be
//! older than the first recovery, or may have been written while the first one was open.
//!
//! Each story needs the first recovery to be over before the second loss, as the operator does. In
//! many stories the operator ends the first one early, while a server is away or has an older disk.

use super::{Action, Death, Story, Timed, Who};
use crate::plan::IoKind;
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
            self.replace_alone(backup, again);
        }
        let over = self.end(again);
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
            self.replace_alone(backup, again);
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
        let over = self.end(again);
        self.lose_again(over, second);
    }

    /// A backup is written while the first recovery is open. When it is over, that backup is
    /// restored.
    fn backup_while_open(&mut self, backup: u64, again: u64) {
        match self.r.below(3) {
            0 => self.replace_alone(backup, again),
            1 => drop(self.newest_away(again)),
            _ => {}
        }
        let over = self.end_early(again);
        let at = self.between(again + 1, over);
        self.push(at, Action::Backup);
        self.lose_again(over, Source::Newest);
    }

    /// The operator ends the first recovery while a server with the newest copies is away, so that
    /// groups stay in doubt. Processes restart meanwhile, or that server is removed. Mostly the
    /// logs are lost again.
    fn doubts(&mut self, backup: u64, again: u64) {
        let i = self.newest_away(again);
        if self.r.chance(0.3) {
            self.replace_alone(backup, again);
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
            self.replace_alone(backup, again);
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

    /// Ends the first recovery, mostly by the operator's order. Returns a time when it is over.
    fn end(&mut self, again: u64) -> u64 {
        match self.r.chance(0.6) {
            true => self.end_early(again),
            false => self.end_by_itself(again),
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

    /// Lets a server continue alone before the loss, as another one is away. Then it has the newest
    /// copies. Returns it.
    fn newest_alone(&mut self, again: u64) -> u8 {
        let loss = self.loss(again);
        let i = self.r.below(u64::from(self.plan.sds)) as u8;
        self.alone(i, loss);
        i
    }

    /// Takes servers away for some time before the loss, so that this one continues without them.
    fn alone(&mut self, i: u8, loss: u64) {
        let noticed = self.plan.limits.suspect_after.as_micros() as u64;
        let from = loss - (noticed + self.r.range(300_000, 2_000_000)).min(loss);
        let others: Vec<u8> = (0..self.plan.sds).filter(|other| *other != i).collect();
        let one = *self.r.pick(&others);
        let all = self.r.chance(0.3);
        for other in others.into_iter().filter(|other| all || *other == one) {
            match self.r.chance(0.5) {
                true => self.cut_off(Who::Sds(other), from, loss),
                false => {
                    let late = self.r.below(600_000);
                    self.away(from, other, loss - from + late);
                }
            }
        }
        self.write_between(from, loss);
    }

    /// The server with the newest copies is away from the loss on, mostly for long; or it is
    /// emptied after the loss; or it keeps running. Returns it.
    fn newest_away(&mut self, again: u64) -> u8 {
        let loss = self.loss(again);
        let i = self.newest_alone(again);
        match self.r.below(3) {
            0 => {
                let at = self.between(loss + 1, again.max(loss + 2));
                self.push(at, Action::Crash(Who::Sds(i), Death::default()));
                let away = self.r.range(1_000, 600_000);
                self.push(at + away, Action::Start(Who::Sds(i)));
            }
            1 => {}
            _ => {
                let before = self.r.below(20_000).min(loss);
                let away = before + self.r.range(1_000_000, 9_000_000);
                match self.r.chance(0.5) {
                    true => self.cut_off(Who::Sds(i), loss - before, loss - before + away),
                    false => self.away(loss - before, i, away),
                }
            }
        }
        i
    }

    /// Replaces a disk after the backup. The server continues alone with the newer disk, and has
    /// the older one again after the loss.
    fn replace_alone(&mut self, backup: u64, again: u64) {
        let i = self.newest_alone(again);
        let loss = self.loss(again);
        let at = self.between(backup, backup.max(loss.saturating_sub(2_500_000)) + 1);
        self.push(at, Action::NewDisk(i));
        let at = self.between(loss + 1, again.max(loss + 2));
        self.push(at, Action::OlderDisk(i));
        if self.r.chance(0.3) {
            let at = again + self.r.range(1_000, 5_000_000);
            self.push(at, Action::NewerDisk(i));
        }
    }

    /// Repeats some requests of clients in this time.
    fn write_between(&mut self, from: u64, to: u64) {
        let writes = |a: &Action| matches!(a, Action::Io { kind: IoKind::Write, .. });
        let all: Vec<Action> =
            self.plan.steps.iter().map(|s| s.action).filter(|a| writes(a)).collect();
        for _ in 0..self.r.range(5, 30) {
            if !all.is_empty() {
                let (at, action) = (self.between(from, to), *self.r.pick(&all));
                self.push(at, action);
            }
        }
    }

    /// Restarts processes while groups may be in doubt. Server `i`, which may have the newest
    /// copies, or another one, is removed, or its disk is replaced.
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
        if self.r.chance(0.3) {
            self.keep_a_map(again);
        }
        self.push(again, begin(source, i));
        if self.r.chance(0.5) {
            let at = again + self.r.range(20_000, 2_000_000);
            self.push(at, Action::Finish);
        }
        // Often until the MDM no longer waits for devices that nothing names.
        let patience = self.plan.limits.suspect_after.as_micros() as u64 * 5;
        let more = if self.r.chance(0.5) { patience } else { 0 };
        self.go_on(over, again + more + 2_000_000);
    }

    /// Cuts a server off from the MDMs alone, so that it keeps its map while another server
    /// restarts and reports.
    fn keep_a_map(&mut self, again: u64) {
        let i = self.r.below(u64::from(self.plan.sds)) as u8;
        let other = (i + self.r.range(1, u64::from(self.plan.sds) - 1) as u8) % self.plan.sds;
        let (from, until) =
            (again.saturating_sub(50_000), again + self.r.range(300_000, 4_000_000));
        for mdm in (0..self.plan.mdms).map(Who::Mdm) {
            for (a, b) in [(Who::Sds(i), mdm), (mdm, Who::Sds(i))] {
                self.push(from, Action::Block(a, b));
                self.push(until, Action::Open(a, b));
            }
        }
        let (at, away) =
            (again.saturating_sub(self.r.below(100_000)), self.r.range(1_000, 300_000));
        self.away(at, other, away);
        self.write_between(again, until);
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
        if self.r.chance(0.4) {
            let i = self.r.below(u64::from(self.plan.sds)) as u8;
            self.alone(i, to);
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
