//! `gabion-sim`: runs plans, hunts for bugs, and shrinks plans that fail.

#![forbid(unsafe_code)]

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use sim::campaign::{Totals, campaign};
use sim::mutants;
use sim::plan::Plan;
use sim::run::{Outcome, run};
use sim::scale::Shape;
use sim::shrink::{Shrinker, fails_like};
use sim::trace::Sink;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The simulator.
#[derive(Parser)]
#[command(version, about = "Runs Gabion's nodes in virtual time, under faults, and judges them")]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    one: One,
}

/// Arguments of a single run.
#[derive(Args)]
struct One {
    /// Run the plan of this seed.
    #[arg(long)]
    seed: Option<u64>,
    /// Run a plan from a file.
    #[arg(long, conflicts_with = "seed")]
    plan: Option<PathBuf>,
    /// Let damage strike any copy, also the last intact one: losses must be reported as errors.
    #[arg(long)]
    allow_loss: bool,
    /// Print one line per event and effect.
    #[arg(long)]
    trace: bool,
    /// Print the plan.
    #[arg(long)]
    show: bool,
    /// If the run fails, look for a smaller plan that fails in the same way for this
    /// long, and write it.
    #[arg(long, value_parser = span)]
    shrink: Option<Duration>,
    /// Where to write the smaller plan.
    #[arg(long, default_value = "shrunk.plan")]
    out: PathBuf,
    /// Remove the rule that this mutant stands for.
    #[arg(long)]
    mutant: Option<String>,
}

#[derive(Subcommand)]
enum Command {
    /// Run a range of seeds.
    Run {
        /// Seeds as FROM..TO, TO excluded.
        #[arg(long, value_parser = range)]
        seeds: (u64, u64),
        /// Let damage strike any copy, also the last intact one: losses must be reported as errors.
        #[arg(long)]
        allow_loss: bool,
        /// Number of threads.
        #[arg(long, default_value_t = 2)]
        jobs: usize,
    },
    /// Run new seeds for a while.
    Hunt {
        /// Run time: 90s, 30m, 2h.
        #[arg(long, value_parser = span)]
        budget: Duration,
        /// Let damage strike any copy, also the last intact one: losses must be reported as errors.
        #[arg(long)]
        allow_loss: bool,
        /// The first seed; by default taken from the clock.
        #[arg(long)]
        from: Option<u64>,
        /// Number of threads.
        #[arg(long, default_value_t = 2)]
        jobs: usize,
    },
    /// Remove one rule of the protocol at a time, and count the seeds until a judge notices.
    Mutants {
        /// Highest number of seeds per mutant.
        #[arg(long, default_value_t = 20_000)]
        max_seeds: u64,
        /// The first seed.
        #[arg(long, default_value_t = 0)]
        from: u64,
        /// Names of the mutants to hunt; by default all.
        #[arg(long)]
        only: Vec<String>,
        /// Number of threads.
        #[arg(long, default_value_t = 2)]
        jobs: usize,
    },
    /// Run large domains: do all servers register, is a failure noticed in time, and what
    /// does the repair cost?
    Scale {
        /// Number of data servers.
        #[arg(long, default_value_t = 128)]
        servers: u32,
        /// Devices per server.
        #[arg(long, default_value_t = 10)]
        devices: u32,
        /// Number of protection domains that share the servers.
        #[arg(long, default_value_t = 1)]
        domains: u32,
        /// Print the figures as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Run a sample of seeds twice, and compare the fingerprints.
    Fingerprint {
        /// Seeds as FROM..TO, TO excluded.
        #[arg(long, value_parser = range, default_value = "0..20")]
        seeds: (u64, u64),
        /// Print each fingerprint instead, to compare processes and machines.
        #[arg(long)]
        print: bool,
    },
}

fn range(s: &str) -> Result<(u64, u64)> {
    let (from, to) = s.split_once("..").context("write FROM..TO")?;
    Ok((from.parse()?, to.parse()?))
}

fn span(s: &str) -> Result<Duration> {
    let split = s.find(|c: char| !c.is_ascii_digit()).context("write a number and s, m or h")?;
    let number: u64 = s[..split].parse()?;
    let unit = match &s[split..] {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        other => anyhow::bail!("{other:?} is no unit of time: write s, m or h"),
    };
    Ok(Duration::from_secs(number * unit))
}

fn main() -> Result<ExitCode> {
    let cli = Cli::parse();
    match cli.command {
        None => one(cli.one),
        Some(Command::Run { seeds, allow_loss, jobs }) => {
            let start = Instant::now();
            let totals = campaign(
                seeds.0,
                jobs,
                |seed| plan_of(seed, allow_loss),
                |seed, _| seed >= seeds.1,
                |seed, outcome, _| print_failure(seed, allow_loss, outcome),
            );
            Ok(summary(&totals, start.elapsed(), allow_loss))
        }
        Some(Command::Hunt { budget, allow_loss, from, jobs }) => {
            let start = Instant::now();
            let from = from.unwrap_or_else(|| {
                let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
                now.unwrap_or_default().as_secs() << 20
            });
            println!("seeds from {from}");
            let last = std::sync::Mutex::new(Instant::now());
            let totals = campaign(
                from,
                jobs,
                |seed| plan_of(seed, allow_loss),
                |_, _| start.elapsed() >= budget,
                |seed, outcome, totals| {
                    print_failure(seed, allow_loss, outcome);
                    let mut last = last.lock().expect("no thread dies with it");
                    if last.elapsed() > Duration::from_secs(20) {
                        *last = Instant::now();
                        progress(totals, start.elapsed());
                    }
                },
            );
            Ok(summary(&totals, start.elapsed(), allow_loss))
        }
        Some(Command::Mutants { max_seeds, from, only, jobs }) => {
            mutants(max_seeds, from, &only, jobs)
        }
        Some(Command::Scale { servers, devices, domains, json }) => {
            scale(Shape { servers, devices, domains }, json)
        }
        Some(Command::Fingerprint { seeds, print }) => Ok(fingerprint(seeds, print)),
    }
}

fn mutants(max_seeds: u64, from: u64, only: &[String], jobs: usize) -> Result<ExitCode> {
    has_mutants()?;
    let mut list = base::Mutant::ALL.to_vec();
    if !only.is_empty() {
        list = only
            .iter()
            .map(|n| mutants::by_name(n).with_context(|| format!("no mutant {n:?}")))
            .collect::<Result<_>>()?;
    }
    let mut catches = Vec::new();
    for mutant in list {
        let c = mutants::hunt(mutant, from, max_seeds, jobs);
        match &c.caught {
            Some((found, text)) => {
                let line = text.lines().next().unwrap_or_default();
                println!(
                    "{mutant:?}: caught after {} runs ({:.0?}), by {found}: {line}",
                    c.runs, c.took
                );
            }
            None => println!("{mutant:?}: NOT caught within {} seeds ({:.0?})", c.runs, c.took),
        }
        catches.push(c);
    }
    println!("\n{}", mutants::markdown(&catches));
    let caught = catches.iter().filter(|c| c.caught.is_some()).count();
    println!("{caught} passed, {} failed", catches.len() - caught);
    Ok(if caught == catches.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn has_mutants() -> Result<()> {
    anyhow::ensure!(base::mutant::PRESENT, "this build has no mutants: use cargo xtask sim");
    Ok(())
}

fn scale(shape: Shape, json: bool) -> Result<ExitCode> {
    let start = Instant::now();
    let figures = shape.run()?;
    match json {
        true => println!("{}", figures.json()),
        false => {
            println!("{figures}{:.1} s, {} steps", start.elapsed().as_secs_f64(), figures.steps)
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn fingerprint(seeds: (u64, u64), print: bool) -> ExitCode {
    sim::panics::hook();
    let mut different = 0;
    for seed in seeds.0..seeds.1 {
        let plan = Plan::generate(seed);
        let first = run(&plan, Sink::Off).fingerprint;
        if print {
            println!("{seed} {first:016x}");
            continue;
        }
        // The second run is traced, as a trace must not change anything.
        let second = run(&plan, Sink::Keep(Vec::new())).fingerprint;
        if first != second {
            different += 1;
            println!("seed {seed} FAILED: {first:016x}, then {second:016x}");
        }
    }
    println!("{} passed, {different} failed", seeds.1 - seeds.0 - different);
    if different == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn plan_of(seed: u64, allow_loss: bool) -> Plan {
    let plan = Plan::generate(seed);
    if allow_loss { plan.with_loss(seed) } else { plan }
}

fn one(one: One) -> Result<ExitCode> {
    let plan = match (&one.plan, one.seed) {
        (Some(path), _) => std::fs::read_to_string(path)
            .with_context(|| format!("can't read the plan {}", path.display()))?
            .parse()
            .with_context(|| format!("in {}", path.display()))?,
        (None, Some(seed)) => plan_of(seed, one.allow_loss),
        (None, None) => {
            anyhow::bail!("say what to run: --seed N, --plan FILE, or a command (see --help)")
        }
    };
    if one.show {
        print!("{plan}");
        return Ok(ExitCode::SUCCESS);
    }
    sim::panics::hook();
    if let Some(name) = &one.mutant {
        has_mutants()?;
        base::mutant::choose(Some(
            mutants::by_name(name).with_context(|| format!("no mutant {name:?}"))?,
        ));
    }
    let start = Instant::now();
    let outcome = run(&plan, if one.trace { Sink::Print } else { Sink::Off });
    println!(
        "fingerprint {:016x}, {:.3} s of virtual time, {} steps, {} operations, {:.3} s",
        outcome.fingerprint,
        outcome.took.as_secs_f64(),
        outcome.steps,
        outcome.ops,
        start.elapsed().as_secs_f64()
    );
    if let Some(why) = &outcome.excused {
        println!("excused: data was lost, because {why}");
    }
    if let Some(failure) = &outcome.failure {
        println!("FAILED {failure}");
        if let Some(budget) = one.shrink {
            let mut shrinker = Shrinker::new(fails_like(failure), budget);
            let small = shrinker.shrink(&plan);
            std::fs::write(&one.out, small.to_string())
                .with_context(|| format!("can't write {}", one.out.display()))?;
            println!(
                "shrunk from {} to {} actions in {} tries: replay with cargo xtask sim --plan {}",
                plan.steps.len(),
                small.steps.len(),
                shrinker.tries,
                one.out.display()
            );
        }
        println!("0 passed, 1 failed");
        return Ok(ExitCode::FAILURE);
    }
    println!("1 passed, 0 failed");
    Ok(ExitCode::SUCCESS)
}

fn print_failure(seed: u64, allow_loss: bool, outcome: &Outcome) {
    if let Some(failure) = &outcome.failure {
        let loss = if allow_loss { " --allow-loss" } else { "" };
        println!("seed {seed} FAILED {failure}");
        println!("    replay: cargo xtask sim --seed {seed}{loss} --trace");
    }
}

fn progress(t: &Totals, elapsed: Duration) {
    let runs = t.passed + t.failed.len() as u64;
    println!(
        "{:>6.0} s: {runs} seeds, {:.1}/s, {:.2} virtual hours, {} failed, {} excused, never met: {:?}",
        elapsed.as_secs_f64(),
        runs as f64 / elapsed.as_secs_f64(),
        t.took.as_secs_f64() / 3600.0,
        t.failed.len(),
        t.excused.len(),
        t.missing()
    );
}

fn summary(t: &Totals, elapsed: Duration, allow_loss: bool) -> ExitCode {
    let runs = t.passed + t.failed.len() as u64;
    println!(
        "{runs} seeds in {:.1} s ({:.1}/s), {:.2} virtual hours, {} operations, {:.1} million steps",
        elapsed.as_secs_f64(),
        runs as f64 / elapsed.as_secs_f64(),
        t.took.as_secs_f64() / 3600.0,
        t.ops,
        t.steps as f64 / 1e6
    );
    println!("excused losses: {} {:?}", t.excused.len(), &t.excused[..t.excused.len().min(20)]);
    if t.unclear > 0 {
        println!("{} sectors had histories too wild to judge", t.unclear);
    }
    println!("met: {:?}", t.marks);
    println!("never met: {:?}", t.missing());
    let mut kinds = std::collections::BTreeMap::<&str, u64>::new();
    for (_, text) in &t.failed {
        *kinds.entry(text.split(':').next().unwrap_or_default()).or_default() += 1;
    }
    if !t.failed.is_empty() {
        println!("failures by kind: {kinds:?}");
    }
    println!("{} passed, {} failed", t.passed, t.failed.len());
    // Where losses are allowed, plans have no outcast, so some marks can't be met.
    let good = if allow_loss { t.failed.is_empty() } else { t.is_good() };
    if t.failed.is_empty() && !good {
        println!("FAILED: so many runs have to meet all of that, or judges have nothing to judge");
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
