//! Mutants that random plans meet too rarely to be hunted: the plan with which they were found catches them.

use base::mutant::{Mutant, choose};
use sim::plan::Plan;
use sim::run::run;
use sim::trace::Sink;

/// One test: the switch is one for the process.
#[test]
fn a_plan_catches_its_mutant() {
    let plan: Plan = include_str!("../plans/dropped-with-a-lease.plan").parse().unwrap();
    choose(Some(Mutant::PartAtOnce));
    let outcome = run(&plan, Sink::Off);
    choose(None);
    assert_eq!(outcome.failure.map(|failure| failure.name), Some("I2"));
}
