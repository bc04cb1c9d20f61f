//! The project's own chores, run as `cargo xtask CHORE`.
//!
//! There is one file per chore. Each prints the commands that it runs and how long they took, so
//! that they can be repeated by hand; the last line counts what passed and what failed.
#![forbid(unsafe_code)]

mod bench;
mod fix;
mod gate;
mod header;
mod packages;
mod patches;
mod sim;
mod steps;
mod test;
mod tidy;
mod unpacked;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// Builds, checks, simulates and measures Gabion.
#[derive(Parser)]
#[command(name = "cargo xtask", arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Run everything that CI runs: format, tidy, lints, unit, contract, simulation, system. On
    /// demand also what is for the night: instruction counts, mutants, fuzz
    Test(test::TestArgs),
    /// Format, apply what clippy can fix, and write generated files (the C header)
    Fix,
    /// Check the house rules: imports between crates, file sizes and headers, links, generated
    /// files, names of rules, width of comments and pages, long functions, unused items
    Tidy,
    /// Run seeds in the simulator
    Sim(sim::SimArgs),
    /// Search for bugs with the simulator for a limited time
    Hunt(sim::HuntArgs),
    /// Measure the floor, Gabion, the floor again, and print the ratios
    Bench(bench::BenchArgs),
    /// Count instructions, and fail if a count exceeds its baseline
    Gate(gate::GateArgs),
}

fn main() -> ExitCode {
    match run(Cli::parse().chore) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(chore: Chore) -> Result<bool> {
    std::env::set_current_dir(root())?;
    match chore {
        Chore::Test(args) => test::run(&args),
        Chore::Fix => fix::run(),
        Chore::Tidy => tidy::run(),
        Chore::Sim(args) => sim::run(&args),
        Chore::Hunt(args) => sim::hunt(&args),
        Chore::Bench(args) => bench::run(&args),
        Chore::Gate(args) => gate::run(&args),
    }
}

/// Returns the root of the workspace.
fn root() -> PathBuf {
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().map(PathBuf::from).unwrap_or(manifest)
}

/// Returns cargo's target directory.
fn target_dir() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from);
    root().join(target)
}

/// Returns the path of a binary built with this profile.
fn built(profile: &str, binary: &str) -> PathBuf {
    target_dir().join(profile).join(binary)
}
