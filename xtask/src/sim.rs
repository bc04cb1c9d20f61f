//! `cargo xtask sim` and `cargo xtask hunt`: the simulator, built optimised and with all asserts.

use crate::built;
use crate::steps::{Steps, cargo};
use anyhow::Result;
use clap::Args;
use std::process::Command;

/// Options of `cargo xtask sim`.
#[derive(Args)]
pub(crate) struct SimArgs {
    /// Arguments for `gabion-sim`, such as `--seed 7 --trace` or `run --seeds 0..5000`; default:
    /// the sample of seeds that CI runs
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// Options of `cargo xtask hunt`.
#[derive(Args)]
pub(crate) struct HuntArgs {
    /// Arguments for `gabion-sim hunt`, such as `--budget 30m`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// The sample of seeds that CI runs.
pub(crate) const SAMPLE: [&str; 3] = ["run", "--seeds", "0..1000"];

/// Another sample of CI, in which damage may hit every copy: lost data must then be reported.
pub(crate) const LOSSES: [&str; 4] = ["run", "--allow-loss", "--seeds", "0..300"];

/// The profile of what runs for hours: optimised as a release.
const LONG: &str = "hunt";

/// The feature that switches mutants on. Only what is built apart from the product may have it.
pub(crate) const MUTANTS: [&str; 2] = ["--features", "gabion-sim/mutants"];

/// Builds the simulator, with the mutants.
fn build(steps: &mut Steps) -> Result<bool> {
    let package = ["--package", "gabion-sim", "--bin", "gabion-sim"];
    let mut build = cargo(&["build", "--profile", LONG]);
    steps.command("build the simulator", build.args(package).args(MUTANTS))
}

/// Returns a command that runs the simulator of this profile with these arguments.
pub(crate) fn simulator(profile: &str, args: &[&str]) -> Command {
    let mut command = Command::new(built(profile, "gabion-sim"));
    command.args(args);
    command
}

/// Runs `cargo xtask sim`.
pub(crate) fn run(args: &SimArgs) -> Result<bool> {
    let mut simulator = simulator(LONG, &[]);
    if args.args.is_empty() { go(simulator.args(SAMPLE)) } else { go(simulator.args(&args.args)) }
}

/// Runs `cargo xtask hunt`.
pub(crate) fn hunt(args: &HuntArgs) -> Result<bool> {
    go(simulator(LONG, &["hunt"]).args(&args.args))
}

fn go(command: &mut Command) -> Result<bool> {
    let mut steps = Steps::default();
    if build(&mut steps)? {
        steps.command("simulator", command)?;
    }
    Ok(steps.finish())
}
