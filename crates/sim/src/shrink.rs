//! Makes a failing plan smaller as long as it fails in the same way: cuts the tail, removes actions
//! in ever smaller groups, calms the weather, and removes clients, servers and volumes.

use crate::check::Failure;
use crate::plan::{Action, Plan, Who};
use crate::run::run;
use crate::tamper::Tamper;
use crate::trace::Sink;
use crate::weather::Weather;
use base::Limits;
use std::time::{Duration, Instant};

/// Shrinks plans that fail.
pub struct Shrinker<F> {
    /// Returns true when a plan still fails as the first one did.
    fails: F,
    until: Instant,
    /// Number of plans tried.
    pub tries: u32,
}

/// Returns a test for failures of the same kind; for panics, of the same place.
pub fn fails_like(failure: &Failure) -> impl Fn(&Plan) -> bool {
    let place = |f: &Failure| match f.name {
        "panic" => f.text.rsplit(" at ").next().map(String::from),
        _ => None,
    };
    let like = (failure.name, place(failure));
    move |plan| run(plan, Sink::Off).failure.is_some_and(|f| (f.name, place(&f)) == like)
}

impl<F: Fn(&Plan) -> bool> Shrinker<F> {
    /// Creates a shrinker that runs for at most `budget` of real time.
    pub fn new(fails: F, budget: Duration) -> Shrinker<F> {
        Shrinker { fails, until: Instant::now() + budget, tries: 0 }
    }

    /// Returns the smallest failing plan found.
    pub fn shrink(&mut self, plan: &Plan) -> Plan {
        let mut best = plan.clone();
        loop {
            let before = size(&best);
            self.cut_tail(&mut best);
            self.drop_kinds(&mut best);
            self.drop_steps(&mut best);
            self.calm(&mut best);
            self.drop_parts(&mut best);
            self.drop_limits(&mut best);
            if size(&best) >= before || Instant::now() >= self.until {
                return best;
            }
        }
    }

    fn try_plan(&mut self, best: &mut Plan, candidate: Plan) -> bool {
        if candidate == *best || Instant::now() >= self.until {
            return false;
        }
        self.tries += 1;
        let fails = (self.fails)(&candidate);
        if fails {
            *best = candidate;
        }
        fails
    }

    /// Finds by bisection how many of the first actions are needed, and ends phase 1 100 ms after
    /// the last of them.
    fn cut_tail(&mut self, best: &mut Plan) {
        let mut keep = best.steps.len() / 2;
        let mut end = best.steps.len();
        while keep < end {
            let mut candidate = best.clone();
            candidate.steps.truncate(keep);
            if self.try_plan(best, candidate) {
                end = keep;
                keep /= 2;
            } else {
                keep += (end - keep).div_ceil(2).max(1);
            }
        }
        let last = best.steps.last().map_or(Duration::ZERO, |s| s.at);
        let mut candidate = best.clone();
        candidate.length = last + Duration::from_millis(100);
        if candidate.length < best.length {
            self.try_plan(best, candidate);
        }
    }

    /// Removes all actions of one kind at once.
    fn drop_kinds(&mut self, best: &mut Plan) {
        let kind = |a: &Action| {
            let text = a.to_string();
            text.split(' ').next().unwrap_or_default().to_string()
        };
        let mut kinds: Vec<String> = best.steps.iter().map(|s| kind(&s.action)).collect();
        kinds.sort();
        kinds.dedup();
        for k in kinds {
            let mut candidate = best.clone();
            candidate.steps.retain(|s| kind(&s.action) != k);
            self.try_plan(best, candidate);
        }
    }

    /// Removes groups of actions, from large groups down to single actions.
    fn drop_steps(&mut self, best: &mut Plan) {
        let mut group = (best.steps.len() / 2).max(1);
        loop {
            let mut at = 0;
            while at < best.steps.len() && Instant::now() < self.until {
                let mut candidate = best.clone();
                let end = (at + group).min(candidate.steps.len());
                candidate.steps.drain(at..end);
                if !self.try_plan(best, candidate) {
                    at += group;
                }
            }
            if group == 1 {
                return;
            }
            group = (group / 2).max(1);
        }
    }

    /// Sets each parameter of the weather back to fair.
    fn calm(&mut self, best: &mut Plan) {
        let mut candidate = best.clone();
        candidate.weather = Weather::FAIR;
        if self.try_plan(best, candidate) {
            return;
        }
        for (name, value) in Weather::FAIR.fields() {
            let mut candidate = best.clone();
            candidate.weather.set(name, value);
            self.try_plan(best, candidate);
        }
    }

    /// Removes clients, servers and volumes that are not needed.
    fn drop_parts(&mut self, best: &mut Plan) {
        while best.clients > 1 {
            let mut candidate = best.clone();
            candidate.clients -= 1;
            let gone = candidate.clients;
            candidate.steps.retain(|s| !names(&s.action, Who::Sdc(gone)));
            candidate.hosts.retain(|host| !host.gateways.contains(&gone));
            if !self.try_plan(best, candidate) {
                break;
            }
        }
        while let Some((_, fewer)) = best.hosts.split_last() {
            let candidate = Plan { hosts: fewer.to_vec(), ..best.clone() };
            if !self.try_plan(best, candidate) {
                break;
            }
        }
        let candidate = Plan { outcast: None, ..best.clone() };
        self.try_plan(best, candidate);
        let candidate = Plan { second_pool: 0, second_pool_volumes: 0, ..best.clone() };
        self.try_plan(best, candidate);
        while best.sds > 2 {
            let mut candidate = best.clone();
            candidate.sds -= 1;
            candidate.mates.pop();
            candidate.second_pool &= !(1 << candidate.sds);
            let gone = Who::Sds(candidate.sds);
            candidate.outcast = candidate.outcast.filter(|o| Who::Sds(o.0) != gone);
            candidate.steps.retain(|s| !names(&s.action, gone));
            if !self.try_plan(best, candidate) {
                break;
            }
        }
        while best.volumes.len() > 1 {
            let mut candidate = best.clone();
            candidate.volumes.pop();
            let gone = candidate.volumes.len() as u8;
            candidate.hosts.retain(|host| host.volume != gone);
            candidate.steps.retain(|s| match s.action {
                Action::Io { volume, .. } => volume != gone,
                Action::Create(v, _)
                | Action::Resize(v, _)
                | Action::Map(v, _)
                | Action::Hosts(v, _)
                | Action::Withdraw(_, v)
                | Action::Delete(v) => v != gone,
                _ => true,
            });
            if !self.try_plan(best, candidate) {
                break;
            }
        }
    }

    fn drop_limits(&mut self, best: &mut Plan) {
        let mut candidate = best.clone();
        candidate.limits = Limits::TEST_MIN;
        self.try_plan(best, candidate);
    }
}

/// Returns true when the action needs this process.
fn names(action: &Action, who: Who) -> bool {
    // Every kind of action is listed here, so that no new one escapes.
    match *action {
        Action::Crash(w, _)
        | Action::Start(w)
        | Action::Become(w, _)
        | Action::Pause(w, _)
        | Action::Resume(w)
        | Action::Lie(w, _)
        | Action::Idle(w, _)
        | Action::Overlong(w, _)
        | Action::Halt(w, _)
        | Action::Leap(w, _)
        | Action::Drift(w, _) => w == who,
        Action::Block(a, b) | Action::Open(a, b) | Action::Clog(a, b, _) | Action::Reset(a, b) => {
            a == who || b == who
        }
        Action::Tamper(i, Tamper::Swapped(j) | Tamper::CopyOf(j)) | Action::Readdress(i, j) => {
            Who::Sds(i) == who || Who::Sds(j) == who
        }
        Action::Tamper(i, _)
        | Action::Damage(i, _)
        | Action::Grow(i, _)
        | Action::Snapshot(i)
        | Action::Remove(i)
        | Action::RemoveDevice(i)
        | Action::Keep(i)
        | Action::Maintain(i, _)
        | Action::Return(i)
        | Action::Forge(i, _)
        | Action::Reject(i, _)
        | Action::Double(i)
        | Action::Wake(i)
        | Action::NewDisk(i)
        | Action::OlderDisk(i)
        | Action::NewerDisk(i) => Who::Sds(i) == who,
        Action::Io { client: i, .. }
        | Action::CloseNbd(i, _)
        | Action::Deaf(i, ..)
        | Action::Withdraw(i, _)
        | Action::Elsewhere(i)
        | Action::Thaw(i) => Who::Sdc(i) == who,
        Action::Replace(i)
        | Action::Restore(i)
        | Action::RestoreFirst(i)
        | Action::Lose(Some(i)) => Who::Mdm(i) == who,
        Action::Create(..)
        | Action::Resize(..)
        | Action::Delete(_)
        | Action::Map(..)
        | Action::Hosts(..)
        | Action::UnmapHost(_)
        | Action::MovePath(..)
        | Action::Switch
        | Action::Backup
        | Action::Level
        | Action::Lose(None)
        | Action::Recover
        | Action::Finish
        | Action::Accept
        | Action::Scrub
        | Action::Path(..)
        | Action::Ambush(..)
        | Action::Policies(..) => false,
    }
}

fn size(plan: &Plan) -> usize {
    plan.to_string().len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::IoKind;

    #[test]
    fn an_artificial_failure_shrinks_to_its_core() {
        // The plan "fails" when a discard comes some time after a crash of sds1.
        let guilty = |plan: &Plan| {
            let crash =
                plan.steps.iter().position(|s| matches!(s.action, Action::Crash(Who::Sds(1), _)));
            let after = &plan.steps[crash.map_or(plan.steps.len(), |c| c)..];
            after.iter().any(|s| matches!(s.action, Action::Io { kind: IoKind::Discard, .. }))
        };
        let plan = (0..)
            .map(Plan::generate)
            .find(|p| guilty(p) && p.sds > 2 && p.clients > 1)
            .expect("some seed");
        let small = Shrinker::new(guilty, Duration::from_secs(20)).shrink(&plan);
        assert!(guilty(&small));
        assert_eq!(small.steps.len(), 2, "{small}");
        assert_eq!((small.sds, small.weather), (2, Weather::FAIR));
    }

    /// Every action here needs a part that is removed.
    const OF_REMOVED_PARTS: &str = "
        at 0.1 crash sds2 keep
        at 0.1 pause sds2
        at 0.1 clog sds0 sds2 5
        at 0.1 idle sds2 3
        at 0.1 overlong sds2
        at 0.1 halt sds2 1000
        at 0.1 leap sdc1 10
        at 0.1 drift sdc1 100
        at 0.1 tamper 1 swapped 2
        at 0.1 readdress 2 0
        at 0.1 damage 2 rot
        at 0.1 grow 2 4
        at 0.1 snapshot 2
        at 0.1 remove 2
        at 0.1 remove-device 2
        at 0.1 keep 2
        at 0.1 maintain 2
        at 0.1 return 2
        at 0.1 forge 2 replay
        at 0.1 reject 2 100
        at 0.1 double 2
        at 0.1 wake 2
        at 0.1 new-disk 2
        at 0.1 older-disk 2
        at 0.1 newer-disk 2
        at 0.1 write 1 0 0 8
        at 0.1 close-nbd 1 0
        at 0.1 deaf 1 0 5
        at 0.1 withdraw 1 0
        at 0.1 withdraw 0 1
        at 0.1 elsewhere 1
        at 0.1 thaw 1
        at 0.1 read 0 1 0 8
        at 0.1 create 1 2
        at 0.1 resize 1 3
        at 0.1 map 1 1
        at 0.1 delete 1";

    #[test]
    fn no_action_stays_whose_server_client_or_volume_is_removed() {
        let text = format!(
            "gabion-plan 1\nsds 3\nclients 2\nvolume 2\nvolume 2\ndurable 1\ncapacity 24\n\
             depth 4\nlength 1.0\nat 0.2 read 0 0 0 8\n{}",
            OF_REMOVED_PARTS.replace("        ", "")
        );
        let mut plan: Plan = text.parse().unwrap();
        Shrinker::new(|_: &Plan| true, Duration::from_secs(20)).drop_parts(&mut plan);
        assert_eq!((plan.sds, plan.clients, plan.volumes.len()), (2, 1, 1));
        let left: Vec<String> = plan.steps.iter().map(|s| s.action.to_string()).collect();
        assert_eq!(left, ["read 0 0 0 8"]);
    }
}
