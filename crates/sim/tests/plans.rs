//! Regressions: every committed plan passes. A new bug becomes a plan file with its fix.

use sim::plan::Plan;
use sim::run::run;
use sim::trace::Sink;

#[test]
fn committed_plans_pass() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/plans");
    let mut paths: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    for path in paths.iter().filter(|p| p.extension().is_some_and(|e| e == "plan")) {
        let plan: Plan = std::fs::read_to_string(path).unwrap().parse().unwrap();
        let outcome = run(&plan, Sink::Off);
        assert!(outcome.failure.is_none(), "{}: {}", path.display(), outcome.failure.unwrap());
    }
}

#[test]
fn a_few_seeds_pass() {
    for seed in 0..20 {
        let outcome = run(&Plan::generate(seed), Sink::Off);
        assert!(outcome.failure.is_none(), "seed {seed}: {}", outcome.failure.unwrap());
    }
}
