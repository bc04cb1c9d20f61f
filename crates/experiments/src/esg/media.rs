//! Step `media`: three and six nodes with NULL devices, memory and files, in turns. Each data
//! server is a process, as with `bench disk`.

use super::bed::{Bed, Medium, Setup};
use super::published::Kind;
use crate::log::Log;
use anyhow::Result;
use bench::figures::Figures;
use bench::interrupt;
use bench::pair::Spread;
use bench::test_cluster::Layout;
use serde::Serialize;

/// The sizes of the step.
pub(crate) const NODES: [u32; 2] = [3, 6];

/// The results for one size, workload and medium: medians, and where a figure is judged its lowest
/// and highest.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct MediaPoint {
    pub nodes: u32,
    pub workload: Kind,
    pub medium: Medium,
    pub iops: f64,
    pub iops_per_node: f64,
    pub iops_spread: [f64; 2],
    pub cpu_us_per_io: f64,
    pub latency_p50_us: f64,
    pub latency_p99_us: f64,
    pub steal_percent: f64,
    /// What limits it, and the requests per second of that.
    pub limit: &'static str,
    pub limit_iops: f64,
    /// Ours over the limit's.
    pub over_limit: f64,
    pub over_limit_spread: [f64; 2],
    /// Ours over that with NULL devices in the same round, if these were measured.
    pub over_null: Option<f64>,
    pub over_null_spread: Option<[f64; 2]>,
}

/// The measurements of one medium, one per round.
#[derive(Default)]
struct Turns {
    ours: Vec<Figures>,
    limit: Vec<f64>,
}

/// Measures all media at one size. A cluster of each medium runs all the time; each round measures
/// the limit and the cluster of one medium after the other.
pub(crate) fn measure(
    setup: &Setup,
    nodes: u32,
    media: &[Medium],
    log: &mut Log,
) -> Result<Vec<MediaPoint>> {
    let layout = Layout::apart(nodes);
    let beds = media.iter().map(|medium| Bed::start(setup, *medium, layout, log));
    let beds: Vec<Bed> = beds.collect::<Result<_>>()?;
    let mut points = Vec::new();
    for kind in Kind::ALL {
        let mut all: Vec<Turns> = beds.iter().map(|_| Turns::default()).collect();
        for round in 1..=setup.rounds {
            for (bed, turns) in beds.iter().zip(&mut all) {
                let (medium, workload) = (bed.medium.name(), kind.name());
                let title = format!(
                    "media: {nodes} SDSs, {medium}, {workload}, round {round} of {}",
                    setup.rounds
                );
                turns.limit.push(bed.limit(setup, kind, &title, log)?);
                turns.ours.push(bed.ours(setup, kind, &title, log)?);
                interrupt::check()?;
            }
        }
        let null = beds.iter().position(|bed| bed.medium == Medium::Null);
        for (bed, turns) in beds.iter().zip(&all) {
            points.push(point(nodes, kind, bed.medium, turns, null.map(|i| &all[i])));
        }
    }
    for bed in &beds {
        bed.verify(log)?;
        bed.end(log)?;
    }
    Ok(points)
}

fn point(
    nodes: u32,
    workload: Kind,
    medium: Medium,
    turns: &Turns,
    null: Option<&Turns>,
) -> MediaPoint {
    let of = |value: fn(&Figures) -> f64| Spread::of(turns.ours.iter().map(value));
    let ends = |spread: Spread| [spread.low, spread.high];
    let iops = of(|f| f.iops);
    let beside = turns.ours.iter().zip(&turns.limit);
    let over_limit = Spread::of(beside.map(|(ours, limit)| ours.iops / limit));
    let over_null = null.map(|null| {
        let beside = turns.ours.iter().zip(&null.ours);
        Spread::of(beside.map(|(ours, null)| ours.iops / null.iops))
    });
    MediaPoint {
        nodes,
        workload,
        medium,
        iops: iops.median,
        iops_per_node: iops.median / f64::from(nodes),
        iops_spread: ends(iops),
        cpu_us_per_io: of(|f| f.process_us_per_io).median,
        latency_p50_us: of(|f| f.latency_us.p50).median,
        latency_p99_us: of(|f| f.latency_us.p99).median,
        steal_percent: of(|f| f.steal_percent).median,
        limit: medium.limit(),
        limit_iops: Spread::of(turns.limit.iter().copied()).median,
        over_limit: over_limit.median,
        over_limit_spread: ends(over_limit),
        over_null: over_null.map(|s| s.median),
        over_null_spread: over_null.map(ends),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use bench::figures::sample;

    /// Makes points of all media: memory has 0.9 of the IOPS of NULL devices, files 0.5.
    pub(crate) fn example() -> Vec<MediaPoint> {
        let turns = |share: f64, limit: f64| Turns {
            ours: [100e3, 200e3].map(|iops| sample(iops * share, 2.0)).to_vec(),
            limit: [100e3, 200e3].map(|iops| iops * limit).to_vec(),
        };
        let null = turns(1.0, 2.0);
        let mut points = Vec::new();
        for nodes in NODES {
            for kind in Kind::ALL {
                points.push(point(nodes, kind, Medium::Null, &null, Some(&null)));
                points.push(point(nodes, kind, Medium::Ram, &turns(0.9, 2.0), Some(&null)));
                points.push(point(nodes, kind, Medium::File, &turns(0.5, 0.6), Some(&null)));
            }
        }
        points
    }

    #[test]
    fn media_are_compared_with_what_ran_in_the_same_round() {
        // The machine becomes twice as fast between the rounds: the ratios stay.
        let points = example();
        let ram = points.iter().find(|p| p.medium == Medium::Ram).unwrap();
        assert!((ram.over_null.unwrap() - 0.9).abs() < 1e-9);
        assert!((ram.over_limit - 0.45).abs() < 1e-9);
        let [low, high] = ram.over_null_spread.unwrap();
        assert!(high - low < 1e-9 && ram.iops_spread[0] < ram.iops_spread[1]);
        let file = points.iter().find(|p| p.medium == Medium::File).unwrap();
        assert_eq!((file.limit, ram.limit), ("fio on the same disk", "floor"));
    }
}
