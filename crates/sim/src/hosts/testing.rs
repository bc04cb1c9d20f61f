//! A small run with one host, for tests.

use crate::plan::Plan;
use crate::run;
use crate::stage::Stage;
use crate::trace::Sink;
use std::time::Duration;

/// Token of the tests' own alarms.
const OVER: u64 = 77;

/// Returns a stage with one volume, two clients and this host, which has had 3 s to log in.
pub(super) fn stage(host: &str) -> Stage {
    let text = format!(
        "gabion-plan 1\nsds 2\nclients 2\nvolume 1\ncapacity 8\ndepth 8\nlength 1.0\nhost {host}"
    );
    let plan: Plan = text.parse().unwrap();
    let mut stage = Stage::new(&plan, Sink::Off);
    run::set_up(&mut stage).unwrap();
    stage.start_hosts();
    pass(&mut stage, 3000);
    stage
}

/// Lets time pass.
pub(super) fn pass(stage: &mut Stage, ms: u64) {
    stage.world.alarm(stage.world.now() + Duration::from_millis(ms), OVER);
    while stage.step().unwrap() != Some(OVER) {}
}
