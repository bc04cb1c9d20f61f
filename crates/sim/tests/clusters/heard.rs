//! A server that only the MDM reaches: the others continue without it, whatever it reports about
//! them, and it returns when they reach it again (rule R12).

use crate::common::{UNITS, alone, ask_every_unit, ms};
use base::Mutant;
use sim::plan::{Action, Plan, Timed, Who};
use sim::run::run;
use sim::trace::Sink;
use std::time::Duration;

/// Returns a plan in which one of `servers` servers is cut off from all others and from the client
/// for 10 s. Meanwhile each unit is read and written.
fn plan(seed: u64, servers: u8) -> Plan {
    let text = format!(
        "gabion-plan 1\nseed {seed}\nsds {servers}\nclients 1\nvolume {UNITS}\ndurable 1\ncapacity 80\ndepth 64\n\
         length 16"
    );
    let mut plan: Plan = text.parse().unwrap();
    let others = (1..servers).map(Who::Sds).chain([Who::Sdc(0)]);
    for other in others {
        for (from, to) in [(other, Who::Sds(0)), (Who::Sds(0), other)] {
            plan.steps.push(Timed { at: ms(2000), action: Action::Block(from, to) });
            plan.steps.push(Timed { at: ms(12_000), action: Action::Open(from, to) });
        }
    }
    ask_every_unit(&mut plan);
    plan
}

/// The 4.1 s of `SPEC.md`, and a tenth, as the servers' clocks may drift.
const PROMISE: Duration = Duration::from_millis(4455);

#[test]
fn a_server_that_only_the_mdm_reaches_is_ejected() {
    let alone = alone();
    for (seed, servers) in [3, 4, 5, 12].iter().flat_map(|n| (1..=4).map(move |seed| (seed, *n))) {
        let outcome = run(&plan(seed, servers), Sink::Off);
        assert!(outcome.failure.is_none(), "seed {seed}: {}", outcome.failure.unwrap());
        let longest = outcome.longest;
        println!("seed {seed}, {servers} servers: the longest request took {longest:?}");
        assert!(longest < PROMISE, "seed {seed}, {servers} servers: {longest:?}");
    }
    let longest = |(seed, servers)| run(&plan(seed, servers), Sink::Off).longest;
    let believed =
        alone.without_rule(Mutant::BelieveAccuser, || [(1, 4), (2, 12)].map(longest).to_vec());
    println!("with its word believed: {believed:?}");
    let late = |longest: &Duration| *longest > Duration::from_secs(9);
    assert!(believed.iter().flatten().all(late), "{believed:?}");
}
