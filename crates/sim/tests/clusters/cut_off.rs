//! Servers that the MDM does not reach, and all others do: clients' requests to them are
//! answered in about the time that it takes to notice a silence, however many servers there are
//! (rules R4 and R12).

use crate::common::{UNITS, alone, ask_every_unit, ms};
use base::Mutant;
use sim::plan::{Action, Plan, Timed, Who};
use sim::run::run;
use sim::trace::Sink;
use std::time::Duration;

/// Returns a plan with twelve servers of which the MDM does not reach `silent` for 10 s: more than
/// a fifth, so that not all of them are declared lost. Meanwhile another volume is created, and
/// each unit of the first one is read and written.
fn plan(seed: u64, silent: u8) -> Plan {
    let text = format!(
        "gabion-plan 1\nseed {seed}\nsds 12\nclients 1\nvolume {UNITS}\nvolume 1\ndurable 1\ncapacity 80\ndepth 64\n\
         length 16"
    );
    let mut plan: Plan = text.parse().unwrap();
    for i in 0..silent {
        for (from, to) in [(Who::Mdm(0), Who::Sds(i)), (Who::Sds(i), Who::Mdm(0))] {
            let late = u64::from(i) * 150; // the first ones are lost before the rest is silent
            plan.steps.push(Timed { at: ms(2000 + late), action: Action::Block(from, to) });
            plan.steps.push(Timed { at: ms(12_000), action: Action::Open(from, to) });
        }
    }
    plan.steps.push(Timed { at: ms(4000), action: Action::Delete(1) });
    plan.steps.push(Timed { at: ms(6000), action: Action::Create(1, 1) });
    ask_every_unit(&mut plan);
    plan
}

/// `suspect_after`, `grace`, and 750 ms for the rest; and a tenth, as the
/// servers' clocks may drift.
const PROMISE: Duration = Duration::from_millis(3300);

#[test]
fn many_servers_that_only_the_mdm_does_not_reach_go_on_serving() {
    let alone = alone();
    let stories = [5, 8].iter().flat_map(|silent| (1..=8).map(|seed| (seed, *silent)));
    for (seed, silent) in stories {
        let outcome = run(&plan(seed, silent), Sink::Off);
        assert!(outcome.failure.is_none(), "seed {seed}: {}", outcome.failure.unwrap());
        let longest = outcome.longest;
        println!("seed {seed}, {silent} silent: the longest request took {longest:?}");
        assert!(longest < PROMISE, "seed {seed}, {silent} silent: {longest:?}");
    }
    let longest = |seed, silent| run(&plan(seed, silent), Sink::Off).longest;
    let waits = |longest| longest > Duration::from_secs(5);
    let hoard = alone.without_rule(Mutant::HoardMaps, || longest(2, 5));
    assert!(hoard.is_none_or(waits), "they wait for the MDM: {hoard:?}");
    // All silent servers are declared lost, so some groups have no server left that may serve.
    let worst = || (1..=8).map(|seed| longest(seed, 8)).max().expect("eight runs");
    let lost = alone.without_rule(Mutant::NoLossLimit, worst);
    assert!(lost.is_none_or(waits), "none is left: {lost:?}");
}
