//! An MDM that hangs while its host accepts connections: a client or a server that starts at that
//! time, and dials it first, moves on to another MDM in time.

use crate::common::alone;
use base::Mutant;
use sim::plan::Plan;
use sim::run::run;
use sim::trace::Sink;
use std::time::Duration;

/// Returns a plan in which the first MDM of all lists hangs for 27 s, and another process is
/// restarted meanwhile.
fn plan(seed: u64, restarted: &str) -> Plan {
    let text = format!(
        "gabion-plan 1\nseed {seed}\nsds 2\nclients 2\nmdms 3\nvolume 2\ndurable 0\ncapacity 24\ndepth 8\nlength 30\n\
         at 1 write 0 0 0 8\n\
         at 2 pause mdm0\n\
         at 5 crash {restarted}\n\
         at 5.5 start {restarted}\n\
         at 7 write 0 0 0 8\n\
         at 8 read 0 0 0 8\n\
         at 29 resume mdm0\n"
    );
    text.parse().unwrap()
}

/// `hello_within` from the dial on, and the time to find the leader.
const PROMISE: Duration = Duration::from_secs(7);

#[test]
fn a_hanging_mdm_delays_no_client() {
    let alone = alone();
    for (seed, who) in (1..=4).flat_map(|seed| [(seed, "sdc0"), (seed, "sds0")]) {
        let outcome = run(&plan(seed, who), Sink::Off);
        assert!(outcome.failure.is_none(), "seed {seed}: {}", outcome.failure.unwrap());
        println!("seed {seed}, {who}: the longest request took {:?}", outcome.longest);
        assert!(outcome.longest < PROMISE, "seed {seed}, {who}: {:?}", outcome.longest);
    }
    let longest = || run(&plan(1, "sdc0"), Sink::Off).longest;
    let patient = alone.without_rule(Mutant::AwaitMute, longest);
    println!("with patience: {patient:?}");
    assert!(patient.is_none_or(|longest| longest > Duration::from_secs(15)), "{patient:?}");
}
