//! The cost of an idle cluster: percentage of one core, of all daemons together.

use super::outcome::Outcome;
use super::rows::IDLE;
use crate::cpu::Reading;
use crate::interrupt::sleep;
use crate::pair::Spread;
use crate::test_cluster::TestCluster;
use anyhow::Result;
use fleet::progress::Line;
use std::time::Duration;

/// Wait before measuring: after a load, shards still poll and clients stay registered for a moment.
const SETTLE: Duration = Duration::from_secs(1);

/// Measures for `window` in each round.
pub(crate) fn measure(cluster: &TestCluster, rounds: usize, window: Duration) -> Result<Outcome> {
    let daemons = cluster.processes.daemons();
    let mut percents = Vec::new();
    sleep(SETTLE)?;
    for round in 1..=rounds {
        let _line = Line::new(&format!("idle, round {round} of {rounds}"));
        let start = Reading::take(&daemons)?;
        sleep(window)?;
        let spent = start.until(&Reading::take(&daemons)?);
        percents.push(spent.processes() / 1e4 / spent.seconds);
    }
    let percent = Spread::of(percents.into_iter());
    let title = "idle cluster of 3 SDSs";
    let outcome = Outcome::new("idle", title, "percent of one core", IDLE).with_ratio(percent);
    Ok(Outcome { ours: Some(percent.median), ..outcome })
}
