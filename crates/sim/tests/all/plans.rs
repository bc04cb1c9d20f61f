//! Regressions: every committed plan passes. A fix of a new bug comes with a plan file.

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

/// The queue of a link fills: the link is given up, and its client is served over a new one.
#[test]
fn a_link_whose_queue_is_full_is_given_up_and_its_client_served() {
    let text = include_str!("../../plans/answers-that-nobody-reads.plan");
    let outcome = run(&text.parse::<Plan>().unwrap(), Sink::Off);
    assert!(outcome.failure.is_none(), "{}", outcome.failure.unwrap());
    assert!(outcome.marks.get("Stuck").is_some_and(|n| *n >= 2), "{:?}", outcome.marks);
}

/// Beside a loss that can't be accepted, the operator accepts the one that can.
#[test]
fn a_loss_is_accepted_where_that_is_possible() {
    let text = include_str!("../../plans/loss-in-a-pool-of-two.plan");
    let outcome = run(&text.parse::<Plan>().unwrap(), Sink::Off);
    assert!(outcome.failure.is_none(), "{}", outcome.failure.unwrap());
    assert_eq!(outcome.marks.get("sim: a loss was accepted"), Some(&1), "{:?}", outcome.marks);
}

#[test]
fn a_few_seeds_pass() {
    for seed in 0..20 {
        let outcome = run(&Plan::generate(seed), Sink::Off);
        assert!(outcome.failure.is_none(), "seed {seed}: {}", outcome.failure.unwrap());
    }
}
