//! Tests the judges: with one rule of the protocol removed, how many seeds does it take until a
//! judge notices, and which judge is it?
//!
//! A mutant is active for the whole process, so mutants are hunted one after the other. A
//! seed counts only if it passes without the mutant. A mutant that seeds meet too rarely has
//! a plan that catches it.

use crate::campaign::campaign;
use crate::plan::Plan;
use crate::run::run;
use crate::trace::Sink;
use base::Mutant;
use base::mutant::choose;
use std::fmt::{self, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Plans for mutants that only one seed in thousands meets. Hunts found them, and they are shrunk.
const PLANS: [(Mutant, &str, &str); 42] = [
    (
        Mutant::MdmStaleAnswer,
        "answer-of-a-cut-off-leader",
        include_str!("../plans/answer-of-a-cut-off-leader.plan"),
    ),
    (
        Mutant::NoSession,
        "operation-of-an-older-session",
        include_str!("../plans/operation-of-an-older-session.plan"),
    ),
    (
        Mutant::AnyCluster,
        "hello-of-another-cluster",
        include_str!("../plans/hello-of-another-cluster.plan"),
    ),
    (Mutant::StallInTurn, "hung-in-many-groups", include_str!("../plans/hung-in-many-groups.plan")),
    (
        Mutant::QuarantineForever,
        "held-out-for-long",
        include_str!("../plans/held-out-for-long.plan"),
    ),
    (
        Mutant::DropAtOnce,
        "dropped-with-a-lease",
        include_str!("../plans/dropped-with-a-lease.plan"),
    ),
    (
        Mutant::NoWriteOver,
        "write-astray-beside-damage",
        include_str!("../plans/write-astray-beside-damage.plan"),
    ),
    (Mutant::BelieveFlush, "failed-flush", include_str!("../plans/failed-flush.plan")),
    (
        Mutant::ForgetNamed,
        "rot-behind-a-slow-write",
        include_str!("../plans/rot-behind-a-slow-write.plan"),
    ),
    (
        Mutant::CloseUnheard,
        "recovery-from-an-older-backup",
        include_str!("../plans/recovery-from-an-older-backup.plan"),
    ),
    (
        Mutant::BelieveDoubtful,
        "same-backup-while-a-group-is-stuck",
        include_str!("../plans/same-backup-while-a-group-is-stuck.plan"),
    ),
    (
        Mutant::ForgetDeletions,
        "deleted-volume-in-a-newer-backup",
        include_str!("../plans/deleted-volume-in-a-newer-backup.plan"),
    ),
    (
        Mutant::BelieveNewer,
        "both-copies-wiped-after-the-backup",
        include_str!("../plans/both-copies-wiped-after-the-backup.plan"),
    ),
    (
        Mutant::KeepLost,
        "idle-client-after-a-loss",
        include_str!("../plans/idle-client-after-a-loss.plan"),
    ),
    (
        Mutant::IgnoreActed,
        "recovery-after-a-blackout",
        include_str!("../plans/recovery-after-a-blackout.plan"),
    ),
    (
        Mutant::IgnoreReports,
        "recovery-after-a-return",
        include_str!("../plans/recovery-after-a-return.plan"),
    ),
    (
        Mutant::ForgetMapping,
        "mapping-after-the-backup",
        include_str!("../plans/mapping-after-the-backup.plan"),
    ),
    (
        Mutant::DropUnknown,
        "volume-that-nobody-knows",
        include_str!("../plans/volume-that-nobody-knows.plan"),
    ),
    (
        Mutant::SettleLost,
        "loss-accepted-after-the-backup",
        include_str!("../plans/loss-accepted-after-the-backup.plan"),
    ),
    (Mutant::ReuseGeneration, "reused-generation", include_str!("../plans/reused-generation.plan")),
    (
        Mutant::OldIncarnation,
        "client-started-elsewhere",
        include_str!("../plans/client-started-elsewhere.plan"),
    ),
    (
        Mutant::OldDisk,
        "older-disk-after-the-backup",
        include_str!("../plans/older-disk-after-the-backup.plan"),
    ),
    (
        Mutant::EarlierLife,
        "older-process-comes-first",
        include_str!("../plans/older-process-comes-first.plan"),
    ),
    (
        Mutant::ForgetLevel,
        "level-after-the-backup",
        include_str!("../plans/level-after-the-backup.plan"),
    ),
    (
        Mutant::OneIncarnation,
        "two-lives-of-a-server",
        include_str!("../plans/two-lives-of-a-server.plan"),
    ),
    (
        Mutant::KeepPermission,
        "asked-before-unmapped",
        include_str!("../plans/asked-before-unmapped.plan"),
    ),
    (Mutant::ForgetSilently, "forgotten-write", include_str!("../plans/forgotten-write.plan")),
    (
        Mutant::ForgetEverywhere,
        "forgotten-elsewhere",
        include_str!("../plans/forgotten-elsewhere.plan"),
    ),
    (
        Mutant::OrphansLive,
        "write-of-a-gone-connection",
        include_str!("../plans/write-of-a-gone-connection.plan"),
    ),
    (
        Mutant::QueuesLive,
        "queue-that-outlives-its-controller",
        include_str!("../plans/queue-that-outlives-its-controller.plan"),
    ),
    (
        Mutant::KeepSeats,
        "write-of-an-unmapped-host",
        include_str!("../plans/write-of-an-unmapped-host.plan"),
    ),
    (
        Mutant::ServeStrangers,
        "host-without-permission",
        include_str!("../plans/host-without-permission.plan"),
    ),
    (
        Mutant::MoveUnfenced,
        "write-behind-a-moved-path",
        include_str!("../plans/write-behind-a-moved-path.plan"),
    ),
    (Mutant::ReserveBlindly, "host-that-leaves", include_str!("../plans/host-that-leaves.plan")),
    (
        Mutant::NoCompareAndSwap,
        "report-of-an-older-epoch",
        include_str!("../plans/report-of-an-older-epoch.plan"),
    ),
    (
        Mutant::MdmVoteUnwritten,
        "vote-before-a-power-failure",
        include_str!("../plans/vote-before-a-power-failure.plan"),
    ),
    (
        Mutant::TakeCopy,
        "copy-beside-the-original",
        include_str!("../plans/copy-beside-the-original.plan"),
    ),
    (
        Mutant::ForgetBrokenPath,
        "path-that-stays-broken",
        include_str!("../plans/path-that-stays-broken.plan"),
    ),
    (
        Mutant::LevelBlindly,
        "share-of-a-cut-off-server",
        include_str!("../plans/share-of-a-cut-off-server.plan"),
    ),
    (Mutant::EndlessList, "list-that-grows", include_str!("../plans/list-that-grows.plan")),
    (
        Mutant::LossAsZeros,
        "loss-that-reads-as-zeros",
        include_str!("../plans/loss-that-reads-as-zeros.plan"),
    ),
    (
        Mutant::NoRestartGrace,
        "lease-from-before-a-restart",
        include_str!("../plans/lease-from-before-a-restart.plan"),
    ),
];

/// The plan that caught a mutant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// The plan of this seed.
    Seed(u64),
    /// The committed plan of this name.
    Plan(&'static str),
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Found::Seed(seed) => write!(f, "{seed}"),
            Found::Plan(name) => write!(f, "plan `{name}`"),
        }
    }
}

/// Result of the hunt for one mutant.
#[derive(Clone, Debug)]
pub struct Catch {
    /// The mutant.
    pub mutant: Mutant,
    /// Number of runs until it was caught, or until the budget was spent.
    pub runs: u64,
    /// The plan that caught it, and the judge's message.
    pub caught: Option<(Found, String)>,
    /// Real time of the hunt.
    pub took: Duration,
}

/// Returns the mutant with this name; the case of letters does not matter.
pub fn by_name(name: &str) -> Option<Mutant> {
    Mutant::ALL.iter().copied().find(|m| format!("{m:?}").eq_ignore_ascii_case(name))
}

/// Hunts one mutant with up to `max_seeds` seeds.
pub fn hunt(mutant: Mutant, from: u64, max_seeds: u64, jobs: usize) -> Catch {
    let start = Instant::now();
    if let Some(caught) = by_plan(mutant) {
        return Catch { mutant, runs: 1, caught: Some(caught), took: start.elapsed() };
    }
    let mut first = from;
    let end = from + max_seeds;
    loop {
        let caught: Mutex<Vec<(u64, String)>> = Mutex::new(Vec::new());
        choose(Some(mutant));
        campaign(
            first,
            jobs,
            Plan::generate,
            |seed, totals| seed >= end || !totals.failed.is_empty(),
            |seed, outcome, _| {
                if let Some(f) = &outcome.failure {
                    caught.lock().expect("no thread dies with it").push((seed, f.to_string()));
                }
            },
        );
        choose(None);
        let mut caught = caught.into_inner().expect("no thread died with it");
        caught.sort();
        let runs_until = |seed: u64| seed + 1 - from;
        let Some(last) = caught.last().map(|c| c.0) else {
            return Catch { mutant, runs: max_seeds, caught: None, took: start.elapsed() };
        };
        for (seed, text) in caught {
            if run(&Plan::generate(seed), Sink::Off).failure.is_none() {
                let (runs, took) = (runs_until(seed), start.elapsed());
                let caught = Some((Found::Seed(seed), text));
                return Catch { mutant, runs, caught, took };
            }
        }
        first = last + 1;
    }
}

/// Runs the mutant's own plan, if there is one. Returns the failure, if the plan passes
/// without the mutant.
fn by_plan(mutant: Mutant) -> Option<(Found, String)> {
    let (_, name, text) = PLANS.iter().find(|(of, ..)| *of == mutant)?;
    let plan: Plan = text.parse().expect("a committed plan can be read");
    choose(Some(mutant));
    let failure = run(&plan, Sink::Off).failure;
    choose(None);
    let passes = run(&plan, Sink::Off).failure.is_none();
    failure.filter(|_| passes).map(|failure| (Found::Plan(name), failure.to_string()))
}

/// Formats the results as a table for `docs/internals/simulator.md`.
pub fn markdown(catches: &[Catch]) -> String {
    let mut s = String::from(
        "| rule removed | seeds until caught | seed | caught by |\n|---|---|---|---|\n",
    );
    for c in catches {
        let (runs, seed, by) = match &c.caught {
            Some((found, text)) => {
                let by = text.split(':').next().unwrap_or_default();
                (c.runs.to_string(), found.to_string(), by.to_string())
            }
            None => (format!("not within {}", c.runs), "-".into(), "-".into()),
        };
        writeln!(s, "| {:?} | {runs} | {seed} | {by} |", c.mutant).expect("strings can be written");
    }
    s
}
