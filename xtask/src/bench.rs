//! `cargo xtask bench`: ratios against the floor, as `docs/internals/measuring.md` explains.
//!
//! The floor, Gabion, the floor, Gabion, ... the floor: each figure of Gabion is divided by the mean
//! of the floors beside it, so that what else the machine does falls on both. Printed is the median
//! of the ratios with the lowest and the highest.

use crate::steps::{Steps, cargo};
use crate::target_dir;
use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Deserialize;
use std::path::Path;
use std::process::Command;

/// Options of `cargo xtask bench`.
#[derive(Args)]
pub struct BenchArgs {
    /// How often each pattern is measured between two floors
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// How long one measurement takes
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Server processes
    #[arg(long, default_value_t = 3)]
    servers: u32,
    /// Requests under way, at all servers together; may be given several times
    #[arg(long, default_values_t = [1, 64])]
    depth: Vec<u32>,
}

/// What `gabion bench --json` prints.
#[derive(Clone, Copy, Deserialize)]
struct Figures {
    iops: f64,
    process_us_per_op: f64,
    machine_us_per_op: f64,
    latency_mean_us: f64,
}

/// Runs `cargo xtask bench`.
pub fn run(args: &BenchArgs) -> Result<bool> {
    let mut steps = Steps::default();
    if steps.command("build", &mut cargo(&["build", "--release", "--package", "gabion-server"]))? {
        steps.check("figures", || figures(args).map(|()| true))?;
    }
    Ok(steps.finish())
}

fn figures(args: &BenchArgs) -> Result<()> {
    let gabion = target_dir().join("release/gabion");
    println!(
        "4 KiB at random places, {} server processes, one client process, TCP over loopback, NULL \
         devices\n(what is read from them carries no checksum; what is written does). Processor time in us per \
         I/O, with its ratio to the floor.\n",
        args.servers
    );
    let titles =
        ["floor/s", "Gabion/s", "our CPU", "ratio", "machine", "ratio", "latency us", "ratio"];
    print!("{:<16}", "");
    titles.iter().for_each(|t| print!("{t:>13} "));
    println!();
    for pattern in ["read", "write"] {
        for depth in &args.depth {
            let mut floors = vec![one(&gabion, "floor", pattern, *depth, args)?];
            let mut ours = Vec::new();
            for _ in 0..args.rounds {
                ours.push(one(&gabion, "io", pattern, *depth, args)?);
                floors.push(one(&gabion, "floor", pattern, *depth, args)?);
            }
            print!("{:<16}", format!("{pattern}, depth {depth}"));
            print!("{:>13.0} {:>13.0} ", median(&floors, |f| f.iops), median(&ours, |f| f.iops));
            for of in [
                (|f| f.process_us_per_op) as fn(&Figures) -> f64,
                |f| f.machine_us_per_op,
                |f| f.latency_mean_us,
            ] {
                print!("{:>13.2} {:>13} ", median(&ours, of), ratio(&ours, &floors, of));
            }
            println!();
        }
    }
    Ok(())
}

fn one(gabion: &Path, what: &str, pattern: &str, depth: u32, args: &BenchArgs) -> Result<Figures> {
    let out = Command::new(gabion)
        .args(["bench", what, "--json", "--pattern", pattern])
        .args(["--depth", &depth.to_string(), "--servers", &args.servers.to_string()])
        .args(["--seconds", &args.seconds.to_string()])
        .output()?;
    if !out.status.success() {
        bail!("gabion bench {what} failed: {}", String::from_utf8_lossy(&out.stderr));
    }
    serde_json::from_slice(&out.stdout).context("gabion bench --json prints other figures")
}

fn median(of: &[Figures], what: impl Fn(&Figures) -> f64) -> f64 {
    middle(&mut of.iter().map(what).collect::<Vec<f64>>())
}

fn middle(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Each figure over the mean of the floors before and after it: median, lowest, highest.
fn ratio(ours: &[Figures], floors: &[Figures], what: impl Fn(&Figures) -> f64) -> String {
    let beside = floors.windows(2).map(|f| (what(&f[0]) + what(&f[1])) / 2.0);
    let mut ratios: Vec<f64> = ours.iter().zip(beside).map(|(g, floor)| what(g) / floor).collect();
    let middle = middle(&mut ratios);
    let (lowest, highest) = (ratios[0], ratios[ratios.len() - 1]);
    format!("{middle:.1} ({lowest:.1}-{highest:.1})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_is_divided_by_the_floors_beside_it() {
        let figures = |n: f64| Figures {
            iops: n,
            process_us_per_op: n,
            machine_us_per_op: n,
            latency_mean_us: n,
        };
        // The machine gets twice as slow in the middle: the ratio stays.
        let floors = [1.0, 1.0, 2.0, 2.0].map(figures);
        let ours = [2.0, 3.0, 4.0].map(figures);
        assert_eq!(ratio(&ours, &floors, |f| f.iops), "2.0 (2.0-2.0)");
    }
}
