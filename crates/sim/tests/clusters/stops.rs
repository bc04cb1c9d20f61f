//! A process that is stopped for 1 s keeps its copies: its host answers, so it may be
//! back at any moment.

use crate::common::{UNITS, alone, ask_every_unit, ms};
use base::Mutant;
use sim::plan::{Action, Plan, Timed, Who};
use sim::run::run;
use sim::trace::Sink;

/// Stops one of `servers` servers for `stop` ms while each unit is read and written. Returns how
/// many times a device went down.
fn downs(seed: u64, servers: u8, stop: u64) -> u64 {
    let text = format!(
        "gabion-plan 1\nseed {seed}\nsds {servers}\nclients 1\nvolume {UNITS}\ndurable 1\ncapacity 80\ndepth 64\n\
         length 16"
    );
    let mut plan: Plan = text.parse().unwrap();
    let at = 4000 + 37 * seed;
    plan.steps.push(Timed { at: ms(at), action: Action::Pause(Who::Sds(0), false) });
    plan.steps.push(Timed { at: ms(at + stop), action: Action::Resume(Who::Sds(0)) });
    ask_every_unit(&mut plan);
    let outcome = run(&plan, Sink::Off);
    assert!(outcome.failure.is_none(), "seed {seed}: {}", outcome.failure.unwrap());
    println!("seed {seed}, {servers} servers, {stop} ms: at most {:?}", outcome.longest);
    outcome.marks.get("DeviceDown").copied().unwrap_or(0)
}

#[test]
fn a_server_paused_for_a_second_keeps_its_copies() {
    let alone = alone();
    let stories: Vec<(u64, u8)> =
        [2, 3, 5].iter().flat_map(|n| (1..=6).map(move |s| (s, *n))).collect();
    let all = |stop| stories.iter().map(|(seed, n)| downs(*seed, *n, stop)).collect::<Vec<_>>();
    assert!(all(1000).iter().all(|n| *n == 0));
    assert!(all(1700).iter().all(|n| *n > 0), "who doesn't come back is done without");
    let lost = alone.without_rule(Mutant::StopIsLoss, || all(1000));
    assert!(lost.as_ref().is_none_or(|lost| lost.iter().any(|n| *n > 0)), "{lost:?}");
}
