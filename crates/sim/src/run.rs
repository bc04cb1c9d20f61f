//! One run: setup, phase 1 (the plan), phase 2 (all faults end, and the cluster must recover), the
//! final reads, and the verdict.

use crate::admin::{ALL, Order};
use crate::check::first_success::{self, Probes};
use crate::check::{
    Failure, agreement, bounds, counts, differences, i02_register, i03_mirrors, i10_clean,
    i14_leaks, i15_versions, older, pools, r15_spare, r17_swaps,
};
use crate::history::Record;
use crate::plan::{Action, Death, FinalFault, IoKind, Plan, Who};
use crate::relief::Relief;
use crate::stage::Stage;
use crate::trace::Sink;
use base::{DeviceId, GroupId, MapVersion, Time, UNIT, UnitKey};
use node::sdc::Sdc;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The failure, if a judge found one.
    pub failure: Option<Failure>,
    /// Hash of everything that happened.
    pub fingerprint: u64,
    /// Virtual time of the run.
    pub took: Duration,
    /// Steps of the world.
    pub steps: u64,
    /// Number of operations that clients requested.
    pub ops: usize,
    /// The longest time from a request of a client to its successful answer.
    pub longest: Duration,
    /// Rare paths that were met, with counts.
    pub marks: BTreeMap<String, u64>,
    /// Why losing data was acceptable, if data was lost.
    pub excused: Option<String>,
    /// Sectors whose history could not be judged.
    pub unclear: u32,
    /// Lines of the trace, if it was kept.
    pub lines: Vec<String>,
}

const NEXT: u64 = 1;
const LOOK: u64 = 2;
const END: u64 = 3;
const ASK: u64 = 4;
const SETUP: Duration = Duration::from_secs(30);
/// Longest time until the cluster is healthy again.
const CALM: Duration = Duration::from_secs(60);
/// Longest wait of clients for a joiner whose disk hangs, as a multiple of `suspect_after`.
const HANG: u32 = 8;
/// How often `wait` checks its condition.
const EVERY: Duration = Duration::from_millis(20);
/// Interval between the requests of clients that never pause: a shard counts clients as
/// gone after 100 ms.
const ASK_EVERY: Duration = Duration::from_millis(30);
/// How often the copies of a group are compared in phase 1.
const COMPARE_EVERY: Duration = Duration::from_millis(100);
/// A run with more steps than this is a loop.
const MAX_STEPS: u64 = 20_000_000;
/// Sectors of one read of the final scan.
const SCAN: u32 = 512;

/// Runs a plan.
pub fn run(plan: &Plan, sink: Sink) -> Outcome {
    let mut stage = Stage::new(plan, sink);
    let mut unclear = 0;
    let played = catch_unwind(AssertUnwindSafe(|| play(&mut stage, &mut unclear)));
    let failure = match played {
        Ok(Ok(())) => None,
        Ok(Err(failure)) => Some(failure),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
            let place = crate::panics::take().unwrap_or_default();
            Some(Failure::new("panic", format!("{} {place}", text.unwrap_or_default())))
        }
    };
    if let Some(failure) = &failure {
        let (now, text) = (stage.world.now(), failure.to_string());
        stage.world.trace().line(now, "FAILED", || text);
    }
    let lost = stage.lost > 0 || stage.observer.groups.values().any(|g| g.lost);
    Outcome {
        failure,
        fingerprint: stage.world.trace().fingerprint(),
        took: stage.world.now().since(Time::ZERO),
        steps: stage.world.steps(),
        ops: stage.history.ops.len(),
        longest: longest(&stage.history.ops),
        marks: stage.marks.counts(),
        excused: stage.exposure.excuse.clone().filter(|_| lost),
        unclear,
        lines: stage.world.trace().take_lines(),
    }
}

fn longest(ops: &[Record]) -> Duration {
    let took = |r: &Record| r.answer.filter(|a| a.result.is_ok()).map(|a| a.at.since(r.at));
    ops.iter().filter_map(took).max().unwrap_or_default()
}

fn play(stage: &mut Stage, unclear: &mut u32) -> Result<(), Failure> {
    set_up(stage)?;
    phase_1(stage)?;
    phase_2(stage)?;
    if stage.doubtful().is_empty() {
        without_mdms(stage)?;
        outcast(stage)?;
        unmap(stage)?;
    } else {
        leave_doubt(stage);
    }
    stage.scanning = true;
    scan(stage)?;
    // A scrub would wait long for a group that has no primary.
    if stage.doubtful().is_empty() {
        scrub_well(stage)?;
    }
    stage.heal();
    if !stage.plan.allow_loss {
        stage.forget_mended();
    }
    wait(stage, "I14", CALM, i14_leaks::unmet)?;
    wait(stage, "I12", CALM, i03_mirrors::undeleted)?;
    wait(stage, "R11", CALM, i03_mirrors::foreign)?;
    i03_mirrors::check(stage)?;
    i03_mirrors::apart(stage)?;
    pools::check(stage)?;
    wait(stage, "Mdm", CALM, Stage::mdms_unmet)?;
    wait(stage, "counts", CALM, counts::unmet)?;
    agreement::check(stage)?;
    i15_versions::check(stage)?;
    *unclear = i02_register::check(&stage.history)?;
    r17_swaps::check(&stage.history)?;
    older_copies(stage)
}

fn step(stage: &mut Stage) -> Result<Option<u64>, Failure> {
    if stage.world.steps() > MAX_STEPS {
        return Err(Failure::new("world", format!("more than {MAX_STEPS} steps: a process spins")));
    }
    stage.step()
}

/// Runs until `unmet` returns nothing. Fails if that takes longer than `bound`.
fn wait(
    stage: &mut Stage,
    name: &'static str,
    bound: Duration,
    unmet: impl Fn(&Stage) -> Option<String>,
) -> Result<(), Failure> {
    let end = stage.world.now() + bound;
    let mut seen = None;
    let mut relief = Relief::default();
    stage.world.alarm(stage.world.now(), LOOK);
    loop {
        if step(stage)? != Some(LOOK) {
            continue;
        }
        i10_clean::check(stage)?;
        bounds::check(stage)?;
        r15_spare::check(stage)?;
        relief.look(stage);
        stage.be_patient();
        match unmet(stage) {
            // All conditions are met for the second time with the same map: the state is stable.
            None if seen == Some(stage.observer.version) => return Ok(()),
            None => seen = Some(stage.observer.version),
            Some(text) if stage.world.now() > end => {
                return Err(Failure::new(name, format!("after {bound:?}: {text}")));
            }
            Some(_) => seen = None,
        }
        stage.world.alarm(stage.world.now() + EVERY, LOOK);
    }
}

/// Starts all processes, creates the volumes, and waits until clients know them.
pub(crate) fn set_up(stage: &mut Stage) -> Result<(), Failure> {
    let weather = stage.plan.weather.calmed();
    stage.world.set_weather(weather);
    for who in stage.everybody() {
        stage.start(who);
    }
    stage.start(Who::Admin);
    for i in 1..stage.plan.mdms {
        stage.order(Order::AddMdm(i));
    }
    for i in 0..stage.plan.fault_sets {
        stage.order(Order::FaultSet(i));
    }
    if stage.plan.pools() > 1 {
        stage.order(Order::Pool(2));
    }
    wait(stage, "setup", SETUP, |s| {
        let servers = s.observer.devices.values().filter(|d| d.up).count();
        (servers < s.plan.sds as usize).then(|| format!("{servers} servers have registered"))
    })?;
    for v in 0..stage.volumes.len() {
        let units = stage.volumes[v].units;
        stage.order(Order::Create(v as u8, units, stage.plan.volume_pool(v as u8)));
    }
    wait(stage, "setup", SETUP, Stage::unmet)?;
    // Clients restart to learn of the volumes.
    for i in 0..stage.plan.clients {
        stage.kill(Who::Sdc(i), Default::default());
        stage.start(Who::Sdc(i));
    }
    wait(stage, "setup", SETUP, |s| (0..s.plan.clients).find_map(|i| unready(s, i)))?;
    Ok(())
}

/// Returns why a client can't reach all volumes yet.
fn unready(stage: &Stage, client: u8) -> Option<String> {
    match stage.sdc(client).is_some_and(Sdc::is_ready) {
        true => stage.volumes_unmet(client),
        false => Some(format!("sdc{client} is not ready")),
    }
}

fn phase_1(stage: &mut Stage) -> Result<(), Failure> {
    let weather = stage.plan.weather.clone();
    stage.world.set_weather(weather);
    stage.start_nbd();
    stage.start_hosts();
    if stage.plan.shipped {
        stage.marks.meet("sim: the limits are those that ship");
    }
    let start = stage.world.now();
    let steps = stage.plan.steps.clone();
    stage.world.alarm(start + stage.plan.length, END);
    let mut next = 0;
    let mut compared = start;
    if let Some(first) = steps.first() {
        stage.world.alarm(start + first.at, NEXT);
    }
    loop {
        match step(stage)? {
            Some(END) => return Ok(()),
            Some(NEXT) => {
                i10_clean::check(stage)?;
                bounds::check(stage)?;
                r15_spare::check(stage)?;
                let now = stage.world.now();
                if now.since(compared) >= COMPARE_EVERY {
                    compared = now;
                    differences::check_some(stage)?;
                }
                while let Some(s) = steps.get(next).filter(|s| start + s.at <= now) {
                    next += 1;
                    let text = s.action;
                    stage.world.trace().line(now, "PLAN", || text.to_string());
                    stage.act(s.action);
                }
                if let Some(s) = steps.get(next) {
                    stage.world.alarm(start + s.at, NEXT);
                }
            }
            _ => {}
        }
    }
}

/// Waits until everything is healthy. A device that came and went too often gets nothing for a
/// while (rule R12): everything else must recover without it, and what it lacks must recover when
/// its quarantine is over, unless others take its place before.
fn become_whole(stage: &mut Stage) -> Result<(), Failure> {
    wait(stage, "I8", CALM, |s| s.unmet_beside(&s.held_out().into_keys().collect()))?;
    if stage.unmet().is_none() {
        return Ok(());
    }
    stage.marks.meet("sim: the end of a quarantine was waited for");
    // An ambush that still waits would send a device into the next quarantine.
    stage.ambush = None;
    // A clock may be slow by a tenth.
    let late = |time: Duration| time * 11 / 10 + CALM;
    if stage.are_replaced(&stage.held_out()) {
        let bound = late(stage.plan.limits.rebuild_after);
        wait(stage, "I8", bound, |s| s.groups_unmet(true, &BTreeSet::new()))?;
    }
    let longest = stage.held_out().into_values().max().unwrap_or_default();
    wait(stage, "I8", late(longest), Stage::unmet)
}

/// Ends all faults, and waits until everything is healthy, except groups that nobody can serve.
fn phase_2(stage: &mut Stage) -> Result<(), Failure> {
    let now = stage.world.now();
    stage.world.trace().line(now, "PLAN", || "calm".into());
    mend(stage);
    end_maintenance(stage);
    (0..stage.plan.sds).for_each(|i| stage.newer_disk(i));
    stage.end_rescue();
    let limits = &stage.plan.limits;
    let patience = limits.suspect_after * 6 + Duration::from_secs(2);
    wait(stage, "recovery", CALM, Stage::rescue_unmet)?;
    stage.end_reservations();
    become_whole(stage)?;
    wait(stage, "I8", CALM, |s| s.reservations_unmet().or_else(|| s.hosts_unmet()))?;
    // A device operation may be stuck since phase 1 for longer than clients wait for an answer.
    let hangs = || "a device hangs since the storm".into();
    wait(stage, "I8", CALM, |s| s.world.awaits_disk(now).then(hangs))?;
    if !stage.doubtful().is_empty() {
        // A server that reports late may know more.
        let until = stage.world.now() + patience;
        wait(stage, "I8", CALM, |s| (s.world.now() < until).then(|| "time must pass".into()))?;
        become_whole(stage)?;
    }
    stage.judge_doubts()?;
    stage.forget_unknown()?;
    // A device that was silent until now may still be suspected, and dropped for a moment. That
    // must be over as well.
    let limits = &stage.plan.limits;
    let until = stage.world.now() + limits.suspect_after * 3 + limits.grace;
    wait(stage, "I8", CALM, |s| (s.world.now() < until).then(|| "time must pass".into()))?;
    become_whole(stage)
}

/// Leaves groups in doubt aside. Nobody can serve them, and an order to serve them may give up
/// acknowledged writes. So clients send no more requests to these groups. Everything that does not
/// need them continues, and is judged.
fn leave_doubt(stage: &mut Stage) {
    stage.marks.meet("sim: a group stayed in doubt after a recovery");
    let (now, groups) = (stage.world.now(), stage.doubtful());
    stage.world.trace().line(now, "PLAN", || format!("in doubt: {groups:?}"));
    for who in (0..stage.plan.clients).map(Who::Sdc) {
        stage.kill(who, Death::default());
        stage.start(who);
    }
}

/// Ends the maintenance of all servers.
fn end_maintenance(stage: &mut Stage) {
    let meant = |a: &Action| if let Action::Maintain(i, _) = a { Some(*i) } else { None };
    let those: BTreeSet<u8> = stage.plan.steps.iter().filter_map(|s| meant(&s.action)).collect();
    let those: BTreeSet<u8> = those.into_iter().map(|i| stage.plan.server(i)).collect();
    those.into_iter().for_each(|i| stage.order(Order::Return(i)));
}

/// Ends all faults.
fn mend(stage: &mut Stage) {
    stage.disarm();
    let weather = stage.plan.weather.calmed();
    stage.world.set_weather(weather);
    stage.world.heal();
    for who in stage.everybody() {
        let id = stage.proc(who);
        stage.spare(who);
        stage.world.resume(id);
        stage.start(who);
    }
    (0..stage.plan.clients).for_each(|client| stage.thaw(client));
    (0..stage.plan.sds).for_each(|i| stage.end_former(i));
    stage.map_to_all();
}

/// In a third of the runs, takes all MDMs away at once: each group must answer nevertheless. Then
/// they come back.
fn without_mdms(stage: &mut Stage) -> Result<(), Failure> {
    let within = stage.plan.limits.answer_within;
    // With a shorter time limit than the promise, clients get errors, so these runs are skipped.
    let too_soon = !within.is_zero() && within < first_success::WITHOUT_MDM;
    if !stage.plan.seed.is_multiple_of(3) || stage.is_tight() || too_soon {
        return Ok(());
    }
    // A client that has not used a group lately may not know where its servers are by now.
    probe(stage, first_success::WITHOUT_MDM)?;
    become_whole(stage)?;
    stage.marks.meet("sim: all MDMs were away");
    let frozen = stage.plan.seed.is_multiple_of(2);
    for who in (0..stage.plan.mdms).map(Who::Mdm) {
        match frozen {
            true => stage.act(Action::Pause(who, false)),
            false => stage.kill(who, Death { keep: true, ..Death::default() }),
        }
    }
    let bound = first_success::WITHOUT_MDM;
    probe(stage, bound)?.check(&stage.history.ops, "without an MDM", bound)?;
    mend(stage);
    become_whole(stage)
}

/// In a quarter of the runs, unmaps a volume from all clients while nothing is wrong: the unmap
/// must be confirmed. I9 is judged by confirmed unmaps.
fn unmap(stage: &mut Stage) -> Result<(), Failure> {
    let there = stage.volumes.iter().position(|v| v.id.is_some() && !v.doomed);
    let Some(v) = there.filter(|_| stage.plan.seed.is_multiple_of(4)) else { return Ok(()) };
    let (v, before) = (v as u8, stage.unconfirmed);
    stage.order(Order::Map(v, 0));
    let ordered = |s: &Stage| s.desk.borrow().orders.front().map(|o| format!("{o:?} waits"));
    wait(stage, "I9", CALM, ordered)?;
    if stage.unconfirmed > before {
        return Err(Failure::new("I9", "all servers run, and an unmapping was not confirmed"));
    }
    stage.order(Order::Map(v, ALL));
    become_whole(stage)
}

/// Sends a request to each group now, and runs for this long.
fn probe(stage: &mut Stage, time: Duration) -> Result<Probes, Failure> {
    let turn = stage.plan.seed as usize;
    let probes = Probes::ask(stage, turn);
    stage.world.alarm(stage.world.now() + time, ASK);
    while step(stage)? != Some(ASK) {}
    Ok(probes)
}

/// Takes one server or one of its devices away, or cuts it off partly: the others must serve
/// everything. Then it comes back.
// Long: one match over all faults.
fn outcast(stage: &mut Stage) -> Result<(), Failure> {
    let Some((i, how)) = stage.plan.outcast else { return Ok(()) };
    if stage.has_to_mend() {
        return Ok(());
    }
    if how == FinalFault::HungDisk {
        return under_copies(stage, i);
    }
    let away = stage.plan.away(i);
    if matches!(how, FinalFault::Heard | FinalFault::Deaf) && !stage.can_be_found_cut_off(&away) {
        return Ok(());
    }
    let now = stage.world.now();
    stage.world.trace().line(now, "PLAN", || format!("outcast sds{i} {how:?}"));
    casts_out(stage, &away);
    for who in away.iter().copied().map(Who::Sds) {
        match how {
            FinalFault::Dead => stage.kill(who, Death { keep: true, ..Death::default() }),
            FinalFault::Dark => {
                stage.kill(who, Death { keep: true, power: true, ..Death::default() });
            }
            FinalFault::Frozen => stage.act(Action::Pause(who, false)),
            FinalFault::FailedDisk => {
                let id = stage.proc(who);
                stage.world.break_disks(id);
            }
            FinalFault::Cut
            | FinalFault::Unheard
            | FinalFault::Heard
            | FinalFault::Mute
            | FinalFault::Deaf => {
                let mates = |o: &Who| matches!(o, Who::Sds(j) if away.contains(j));
                let others = stage.everybody().into_iter().filter(|o| !mates(o));
                let mdm = |o: &Who| matches!(o, Who::Mdm(_));
                for other in others.filter(|o| match how {
                    FinalFault::Unheard => mdm(o),
                    FinalFault::Heard => !mdm(o),
                    _ => true,
                }) {
                    if how != FinalFault::Deaf {
                        stage.act(Action::Block(who, other));
                    }
                    if how != FinalFault::Mute {
                        stage.act(Action::Block(other, who));
                    }
                }
            }
            FinalFault::SlowLinks | FinalFault::SlowDisk | FinalFault::HungDisk => {}
        }
    }
    match how.slowness() {
        Some(slow) => without_slow(stage, i, slow)?,
        None => {
            let lives = server_lives(stage);
            first_success(stage, how)?;
            let failed = |i: &u8| server_lives(stage)[usize::from(*i)] != lives[usize::from(*i)];
            if how == FinalFault::FailedDisk && !away.iter().all(failed) {
                // Nothing has used the disk of a device, so nobody can know that it fails.
                stage.marks.meet("sim: a disk failed that nothing used");
                stage.outcasts.clear();
                mend(stage);
                return become_whole(stage);
            }
            ask_everything(stage, 0);
            ask_until_rebuilt(stage)?;
            wait(stage, "I8", CALM, |s| s.unmet_without(i))?;
            rebuilt_in_time(stage, how)?;
            second(stage, i, how)?;
        }
    }
    stage.outcasts.clear();
    mend(stage);
    become_whole(stage)
}

/// Sends a request to each group at the moment of the fault. Each has to answer in time.
fn first_success(stage: &mut Stage, how: FinalFault) -> Result<(), Failure> {
    let Some(bound) = first_success::bound(how, &stage.plan.limits).filter(|_| !stage.is_tight())
    else {
        return Ok(());
    };
    let probes = probe(stage, bound)?;
    let longest = probes.longest(&stage.history.ops).as_millis();
    stage.marks.meet(match longest {
        0..100 => "sim: first success within 100 ms",
        100..1000 => "sim: first success within 1 s",
        _ => "sim: first success within the bound",
    });
    stage.marks.meet(&format!("sim: first success after {how:?}"));
    let now = stage.world.now();
    stage.world.trace().line(now, "PLAN", || format!("first success after {longest} ms"));
    probes.check(&stage.history.ops, &format!("{how:?}"), bound)
}

/// Records that these devices are away from now on.
fn casts_out(stage: &mut Stage, away: &[u8]) {
    let ids = away.iter().filter_map(|i| Some((*i, stage.sds(*i)?.id().0)));
    let ids: Vec<(u8, u32)> = ids.collect();
    stage.outcasts.extend(ids);
}

/// Slows the server down under load. The others must do without it, and must not
/// drop any other server.
fn without_slow(
    stage: &mut Stage,
    i: u8,
    (net, disk): (Duration, Duration),
) -> Result<(), Failure> {
    if !stage.can_be_found_slow(i, disk > Duration::ZERO) {
        return Ok(());
    }
    let id = stage.proc(Who::Sds(i));
    stage.world.slow_down(id, net, disk);
    stage.marks.meet("sim: a server was slow");
    // Observations of the server expire after ten heartbeats, so it gets work twice in that time.
    let turn = stage.plan.limits.heartbeat_every * 5;
    let end = stage.world.now() + CALM;
    // `busy_since` is the time since which the server has got work in every turn.
    let (mut asked, mut busy_since) = (stage.world.writes_asked(id), stage.world.now());
    for n in 0.. {
        ask_everything(stage, n);
        let unmet =
            |s: &Stage| s.ejected.is_none().then(|| format!("sds{i} is slow, and is still in use"));
        let over = wait(stage, "R12", turn, unmet);
        let now = stage.world.now();
        let before = std::mem::replace(&mut asked, stage.world.writes_asked(id));
        if asked == before {
            busy_since = now;
        }
        match over {
            // By now the groups have other primaries.
            Err(failure)
                if failure.name == "R12" && !stage.can_be_found_slow(i, disk > Duration::ZERO) =>
            {
                return Ok(());
            }
            Err(failure) if failure.name == "R12" && now < end => {}
            // The server has got too little work, so nobody waits for it.
            Err(failure)
                if failure.name == "R12"
                    && disk > Duration::ZERO
                    && now.since(busy_since) < CALM / 2 =>
            {
                return Ok(());
            }
            over => return over,
        }
    }
    unreachable!("time passes")
}

/// Lets the server miss some writes, and hangs its disk while it gets these: clients must not
/// wait for it, and that must not depend on the MDM. (The MDM does without the server only
/// after a longer time.)
fn under_copies(stage: &mut Stage, i: u8) -> Result<(), Failure> {
    let (who, id) = (Who::Sds(i), stage.proc(Who::Sds(i)));
    let death = Death { keep: true, ..Death::default() };
    stage.kill(who, death);
    ask_everything(stage, 0);
    wait(stage, "I8", CALM, Stage::answers_unmet)?;
    let (copies, end) = (stage.world.copies_asked(id), stage.world.now() + CALM);
    stage.start(who);
    while stage.world.copies_asked(id) == copies {
        if stage.world.now() > end {
            return become_whole(stage);
        }
        step(stage)?;
    }
    stage.world.slow_down(id, Duration::ZERO, CALM * 60);
    stage.marks.meet("sim: a disk hung under copies");
    let now = stage.world.now();
    stage.world.trace().line(now, "PLAN", || format!("the disk of sds{i} hangs"));
    ask_everything(stage, 0);
    ask_everything(stage, 1);
    wait(stage, "R11", stage.plan.limits.suspect_after * HANG, Stage::answers_unmet)?;
    stage.kill(who, death);
    mend(stage);
    become_whole(stage)
}

/// Checks that copies of a server are rebuilt in time when the MDM surely does not hear it. (With
/// other faults the MDM may hear the server now and then.)
fn rebuilt_in_time(stage: &mut Stage, how: FinalFault) -> Result<(), Failure> {
    let gone = matches!(
        how,
        FinalFault::Dead
            | FinalFault::Dark
            | FinalFault::Frozen
            | FinalFault::Cut
            | FinalFault::Mute
    );
    if !gone || !stage.rebuilds() {
        return Ok(());
    }
    stage.marks.meet("sim: copies of a server that stays away were made anew");
    let limits = &stage.plan.limits;
    stage.outcasts.values().try_for_each(|d| stage.pace.check(DeviceId(*d), limits))
}

/// Kills one more server when the copies of the first one are rebuilt, if enough servers are left
/// to rebuild once more.
fn second(stage: &mut Stage, first: u8, how: FinalFault) -> Result<(), Failure> {
    let plan = &stage.plan;
    let i = (plan.server(first) + 1) % plan.servers();
    let away: Vec<u8> = plan.together(i).collect();
    // True when all groups on this device have two copies again.
    let whole = |i: &u8| {
        let pool = plan.pool(*i);
        let touched = stage.outcasts.keys().any(|o| plan.pool(*o) == pool);
        plan.keeps(Who::Sds(*i)) && (!touched || stage.rebuilds_in(pool))
    };
    let can = stage.rebuilds() && away.iter().all(whole) && !stage.has_to_mend();
    if plan.servers() < 4 || !can {
        return Ok(());
    }
    stage.marks.meet("sim: a second server died");
    let now = stage.world.now();
    stage.world.trace().line(now, "PLAN", || format!("outcast sds{i}, too"));
    casts_out(stage, &away);
    for i in away {
        stage.kill(Who::Sds(i), Death { keep: true, ..Death::default() });
    }
    // A replica that was just made has to wait for leases that a first server which still sends
    // beacons may have.
    let gone = matches!(how, FinalFault::Dead | FinalFault::Dark | FinalFault::FailedDisk);
    first_success(stage, if gone { FinalFault::Dead } else { FinalFault::Cut })?;
    ask_everything(stage, 0);
    wait(stage, "I8", CALM, |s| s.unmet_without(first))
}

/// Sends requests without a pause until the copies are rebuilt: they yield to clients, and must be
/// completed nevertheless.
fn ask_until_rebuilt(stage: &mut Stage) -> Result<(), Failure> {
    if !stage.plan.busy || !stage.rebuilds() {
        return Ok(());
    }
    stage.marks.meet("sim: copies are made anew under load");
    let (end, mut turn) = (stage.world.now() + CALM, 0);
    stage.world.alarm(stage.world.now(), ASK);
    loop {
        if step(stage)? != Some(ASK) {
            continue;
        }
        let Some(unmet) = stage.copies_unmet_without() else { return Ok(()) };
        if stage.world.now() > end {
            return Err(Failure::new("I8", format!("under load, after {CALM:?}: {unmet}")));
        }
        i10_clean::check(stage)?;
        bounds::check(stage)?;
        ask_everything(stage, turn);
        turn += 1;
        stage.world.alarm(stage.world.now() + ASK_EVERY, ASK);
    }
}

/// Lets each client write or read a little in every unit. A client that may have only few requests
/// outstanding reaches all units in turns.
fn ask_everything(stage: &mut Stage, turn: u32) {
    let count = stage.volumes.len();
    for v in (0..count).map(|v| (v + turn as usize) % count) {
        let units = stage.volumes[v].units;
        for client in 0..stage.plan.clients {
            for i in 0..units {
                let unit = (i + turn / 2) % units;
                let odd = u32::from(client) + i + turn;
                let kind = if odd.is_multiple_of(2) { IoKind::Write } else { IoKind::Read };
                let sector = unit * (UNIT / 512) + 8 * u32::from(client);
                stage.act(Action::Io { client, volume: v as u8, kind, sector, sectors: 8 });
            }
        }
    }
}

/// Restarts a client and lets it read everything.
fn scan(stage: &mut Stage) -> Result<(), Failure> {
    // Without space, some copies are never made, so a damaged block may have no other copy.
    if !stage.is_whole() {
        stage.heal();
    }
    let reader = 0;
    stage.kill(Who::Sdc(reader), Default::default());
    stage.start(Who::Sdc(reader));
    wait(stage, "I8", CALM, |s| unready(s, reader))?;
    let doubtful = stage.doubtful();
    read_all(stage, reader, |group| !doubtful.contains(&group))?;
    become_whole(stage)
}

/// Reads all units of the wanted groups.
fn read_all(
    stage: &mut Stage,
    reader: u8,
    wanted: impl Fn(GroupId) -> bool,
) -> Result<(), Failure> {
    for v in stage.volumes.clone() {
        let Some(id) = v.id else { continue };
        let end = v.units * (UNIT / 512);
        for sector in (0..end).step_by(SCAN as usize) {
            let unit = UnitKey { volume: id, index: sector / (UNIT / 512) };
            let group = stage.sdc(reader).and_then(|s| s.map().group_of(unit));
            if group.is_some_and(|g| !wanted(g)) {
                continue;
            }
            let room = stage.plan.limits.sdc_requests.min(8);
            while stage.outstanding[reader as usize] >= room {
                step(stage)?;
            }
            stage.issue(reader, id, IoKind::Read, sector, SCAN.min(end - sector));
        }
    }
    Ok(())
}

/// Serves groups that wait for missing devices from older copies, by order of the operator. Earlier
/// judges don't cover that.
fn older_copies(stage: &mut Stage) -> Result<(), Failure> {
    if stage.doubtful().is_empty() || stage.plan.allow_loss {
        return Ok(());
    }
    stage.use_older();
    let open = |s: &Stage| !s.desk.borrow().orders.is_empty();
    wait(stage, "older copies", CALM, |s| open(s).then(|| "the order is not done".into()))?;
    let served = stage.served_from_older();
    if served.is_empty() {
        return Ok(());
    }
    stage.marks.meet("sim: older copies were used");
    become_whole(stage)?;
    let first = stage.history.ops.len();
    read_all(stage, 0, |group| served.contains(&group))?;
    become_whole(stage)?;
    older::check(&stage.history, first)?;
    i03_mirrors::check(stage)
}

/// Scrubs every device, and checks that all damage is repaired.
fn scrub_well(stage: &mut Stage) -> Result<(), Failure> {
    // The first pass may have read blocks from memory, on their way from the log to their slots.
    scrub(stage)?;
    if i03_mirrors::mended(stage).is_err() {
        scrub(stage)?;
    }
    i03_mirrors::mended(stage)
}

/// Scrubs every device that keeps its content. A server that dies meanwhile forgets its pass, so
/// the order is repeated then.
fn scrub(stage: &mut Stage) -> Result<(), Failure> {
    loop {
        let (asked, lives) = (stage.observer.version, server_lives(stage));
        stage.order(Order::Scrub);
        wait(stage, "R13", CALM, |s| {
            if server_lives(s) != lives {
                return s.unmet();
            }
            unscrubbed(s, asked)
        })?;
        if server_lives(stage) == lives {
            return Ok(());
        }
    }
}

fn server_lives(s: &Stage) -> Vec<u32> {
    (0..s.plan.sds).map(|i| s.world.life(s.proc(Who::Sds(i)))).collect()
}

/// Returns a server that has not finished the scrub that was ordered at map version `asked`.
fn unscrubbed(s: &Stage, asked: MapVersion) -> Option<String> {
    if !s.desk.borrow().orders.is_empty() {
        return Some("the MDM has not heard of the scrub".into());
    }
    (0..s.plan.sds).find_map(|i| {
        let sds = s.sds(i)?;
        let stats = sds.mirror()?.scrub_stats()?;
        // The order was carried out, so the newest map contains it.
        let over = sds.map().version >= s.observer.version && !stats.running;
        (!(over && s.observer.version > asked && stats.passes > 0))
            .then(|| format!("sds{i} was not scrubbed: {stats:?}"))
    })
}
