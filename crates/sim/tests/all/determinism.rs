//! The same seed gives the same run: twice in a process, with and without a trace,
//! and in two processes.

use sim::plan::Plan;
use sim::run::run;
use sim::trace::Sink;
use std::process::Command;

#[test]
fn a_seed_gives_the_same_run_again() {
    for seed in 0..6 {
        let plan = Plan::generate(seed);
        let (a, b) = (run(&plan, Sink::Off), run(&plan, Sink::Keep(Vec::new())));
        assert_eq!(
            (a.fingerprint, a.steps, a.took),
            (b.fingerprint, b.steps, b.took),
            "seed {seed}"
        );
        assert!(a.lines.is_empty() && !b.lines.is_empty());
    }
}

#[test]
fn two_processes_agree() {
    let print = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gabion-sim"));
        let out = command.args(["fingerprint", "--print", "--seeds", "0..6"]).output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    };
    let (a, b) = (print(), print());
    assert!(a.lines().count() > 6, "{a}");
    assert_eq!(a, b);
}

#[test]
fn another_seed_gives_another_run() {
    let of = |seed| run(&Plan::generate(seed), Sink::Off).fingerprint;
    assert_ne!(of(1), of(2));
}
