//! `gabion bench ratio`: the ratio of every promised figure of Gabion to its floor, in one run.

mod hosts;
mod idle;
mod nbd;
pub mod outcome;
pub mod rows;

use crate::figures::Figures;
use crate::io::seconds;
use crate::pair::Rounds;
use crate::test_cluster::{Layout, Ports, TestCluster};
use admin::exit::Exit;
use anyhow::{Result, bail};
use clap::Args;
use outcome::{Outcome, Page};
use rows::{Growth, Plan, Row};
use std::time::Duration;

/// Options of `bench ratio`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Measures the floor, Gabion, the floor, ... and prints the median of the ratios with the lowest and the \
highest. A row fails when its ratio misses the must, or when it can't be measured; then the exit code \
is 7. docs/internals/measuring.md says how to read it.

Rows of many SDSs come in two layouts: all of them in two processes, which on a machine of two cores is \
nearest to hosts that own their cores, and (named -apart) one process per SDS, which pays for context \
switches that real hosts don't have. Each has the floor of its own layout.

Examples:
  gabion bench ratio                              all rows: a quarter of an hour
  gabion bench ratio --only read --only nbd       some of them
  gabion bench ratio --only 'growth*' --rounds 5 --json")]
pub struct RatioArgs {
    /// Measurements of Gabion, each between two of the floor
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Seconds per measurement, after a warm-up
    #[arg(long, default_value_t = 3.0, value_parser = seconds)]
    seconds: f64,
    /// Measure only this row; NAME* stands for all that begin with NAME. May be given several times
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Servers per process in the rows with many SDSs [default: all in two processes]
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u32).range(1..=512))]
    sds_per_process: Option<u32>,
    /// How Gabion talks to the kernel: auto, uring or epoll
    #[arg(long, default_value = "auto")]
    backend: rt::Backend,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs `gabion bench ratio`.
pub fn run(args: &RatioArgs) -> Result<Exit> {
    let mut plan = Plan::new(args.sds_per_process);
    if let Some(name) = args.only.iter().find(|name| !plan.has(name)) {
        bail!("there is no row {name}. The rows are: {}", plan.names().join(", "));
    }
    plan.keep(&args.only);
    let mut page = Page::begin(args.rounds, args.json);
    for layout in plan.layouts() {
        measure(&plan, layout, args, &mut page)?;
    }
    for growth in &plan.growths {
        page.tell(growth_of(growth, &page.results));
    }
    page.results.retain(|o| plan.is_wanted(&o.name));
    page.end()
}

/// Measures all rows of one layout on one cluster.
fn measure(plan: &Plan, layout: Layout, args: &RatioArgs, page: &mut Page) -> Result<()> {
    let (rounds, window) = (args.rounds as usize, Duration::from_secs_f64(args.seconds));
    let serves = layout == rows::BASIC && !plan.hosts.is_empty();
    let ports = if serves { Some(Ports::free()?) } else { None };
    let cluster = TestCluster::serving(layout, args.backend, true, ports)?;
    for planned in plan.pairs.iter().filter(|p| p.pair.floor.layout == layout) {
        let taken = planned.pair.run(&planned.title, &cluster, rounds, window)?;
        planned.rows.iter().for_each(|row| page.tell(judge(row, &planned.title, &taken)));
    }
    if layout != rows::BASIC {
        return Ok(());
    }
    if plan.idle {
        page.tell(idle::measure(&cluster, rounds, window)?);
    }
    if plan.nbd {
        page.tell(nbd::measure(&cluster, rounds, window)?);
    }
    if let Some(ports) = ports {
        for row in &plan.hosts {
            page.tell(hosts::measure(row, &cluster, ports, rounds, window)?);
        }
    }
    Ok(())
}

fn judge(row: &Row, title: &str, taken: &Rounds<Figures>) -> Outcome {
    let ratio = taken.ratio(|f| row.figure.of(f));
    let us = |f: &Figures| row.figure.us(f);
    let figures = [taken.floor(|f| row.figure.of(f)), taken.ours(|f| row.figure.of(f))];
    Outcome {
        process_ratio: Some(taken.ratio(|f| f.process_us_per_io).median),
        machine_ratio: Some(taken.ratio(|f| f.machine_us_per_io).median),
        ..Outcome::new(&row.name, title, row.figure.unit(), row.target)
            .with_figures(figures, [taken.floor(us), taken.ours(us)])
            .with_ratio(ratio)
    }
}

fn growth_of(growth: &Growth, results: &[Outcome]) -> Outcome {
    let of = |name: &str| results.iter().find(|o| o.name == name);
    let outcome = Outcome::new(&growth.name, &growth.title, "x the floor's growth", rows::GROWTH);
    let (Some(start), Some(end)) = (of(&growth.start), of(&growth.end)) else {
        return outcome.not_measured("its smallest and its largest row are missing");
    };
    let grown = |of: fn(&Outcome) -> Option<f64>| Some(of(end)? / of(start)?);
    match (start.spread(), end.spread()) {
        (Some(a), Some(b)) => Outcome {
            floor: grown(|o| o.floor),
            ours: grown(|o| o.ours),
            ..outcome.with_ratio(b.over(&a))
        },
        _ => outcome.not_measured("its smallest or its largest row was not measured"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::sample;
    use rows::{Figure, Target};

    fn rounds(floor: Figures, ours: Figures) -> Rounds<Figures> {
        Rounds::take(3, |_| Ok(floor.clone()), |_| Ok(ours.clone())).unwrap()
    }

    #[test]
    fn a_cost_is_judged_from_above_and_a_rate_from_below() {
        let target = |must, higher| Target { must, aim: None, higher_is_better: higher };
        let taken = rounds(sample(600.0, 2.0), sample(300.0, 3.0));
        let judged = |figure, target| judge(&Row { name: "x".into(), figure, target }, "", &taken);
        let cost = judged(Figure::Machine, target(1.6, false));
        assert_eq!((cost.ratio, cost.ok, cost.floor_us), (Some(1.5), true, Some(2.0)));
        assert!(!judged(Figure::Process, target(1.4, false)).ok);
        assert!(judged(Figure::Iops, target(0.4, true)).ok);
        assert!(!judged(Figure::Iops, target(0.6, true)).ok);
    }

    #[test]
    fn growth_compares_the_ratios_at_both_ends() {
        let plan = Plan::new(None);
        let growth = &plan.growths[0];
        let target = Target { must: 2.0, aim: None, higher_is_better: false };
        let row = |name: &str, ours| {
            let row = Row { name: name.into(), figure: Figure::Process, target };
            judge(&row, "", &rounds(sample(1.0, 2.0), sample(1.0, ours)))
        };
        let results = [row(&growth.start, 3.0), row(&growth.end, 6.0)];
        let outcome = growth_of(growth, &results);
        assert_eq!((outcome.ratio, outcome.ok), (Some(2.0), false));
        assert!(growth_of(growth, &results[..1]).ratio.is_none());
    }
}
