//! `cargo xtask test`: everything that CI runs, fast parts first.
//!
//! The code is built once for clippy, and once with the profile `ci` for everything that runs.

use crate::steps::{Steps, cargo};
use crate::{built, gate, packages, root, sim, tidy};
use anyhow::Result;
use clap::{Args, ValueEnum};
use std::process::Command;

/// Options of `cargo xtask test`.
#[derive(Args)]
pub struct TestArgs {
    /// Run only these parts
    #[arg(value_enum)]
    parts: Vec<Part>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Format, lints, house rules
    Style,
    /// Unit tests of all crates, and the driver contract on all backends
    Unit,
    /// Instruction counts against their baseline
    Gate,
    /// The simulator's own tests, a sample of seeds, the fingerprint check
    Sim,
    /// Each fuzz target for 8 seconds
    Fuzz,
    /// Black-box tests with real processes and third-party clients
    System,
}

/// How long each fuzz target runs, in seconds.
const FUZZ_SECONDS: u32 = 8;

/// Runs `cargo xtask test`.
pub fn run(args: &TestArgs) -> Result<bool> {
    let wanted = |part| args.parts.is_empty() || args.parts.contains(&part);
    let mut steps = Steps::default();
    if wanted(Part::Style) {
        style(&mut steps)?;
    }
    if wanted(Part::Unit) {
        unit(&mut steps)?;
    }
    if wanted(Part::Gate) {
        gate::part(&mut steps)?;
    }
    if wanted(Part::Sim) {
        simulation(&mut steps)?;
    }
    if wanted(Part::Fuzz) {
        fuzz(&mut steps)?;
    }
    if wanted(Part::System) {
        system(&mut steps)?;
    }
    Ok(steps.finish())
}

fn style(steps: &mut Steps) -> Result<()> {
    steps.command("format", &mut cargo(&["fmt", "--all", "--check"]))?;
    steps.check("house rules", tidy::run)?;
    let lints = ["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"];
    steps.command("lints", &mut cargo(&lints))?;
    Ok(())
}

fn unit(steps: &mut Steps) -> Result<()> {
    steps.command(
        "unit tests and driver contract",
        &mut cargo(&[
            "test",
            "--profile",
            "ci",
            "--workspace",
            "--exclude",
            "gabion-sim",
            "--exclude",
            "gabion-system-tests",
        ]),
    )?;
    // Separate from the others: the mutants must not get into their builds.
    mutants(steps, "the durable store", "gabion-store", &["--test", "mutants"])?;
    let exactly = ["--test", "pair", "--", "--exact", "mutants::every_mutant_is_caught"];
    mutants(steps, "the mirrors", "gabion-mirror", &exactly)?;
    let exactly = ["--test", "sds", "--", "--exact", "malformed::every_mutant_is_caught"];
    mutants(steps, "the roles", "gabion-node", &exactly)?;
    mutants(steps, "the MDM", "gabion-mdm", &["--test", "mutants", "--test", "balance"])?;
    Ok(())
}

/// Runs the tests that switch the rules of a crate off one by one.
fn mutants(steps: &mut Steps, whose: &str, package: &str, tests: &[&str]) -> Result<()> {
    let mut command = cargo(&["test", "--profile", "ci", "--features", "mutants"]);
    command.args(["--package", package]).args(tests);
    steps.command(&format!("mutants of {whose}"), &mut command)?;
    Ok(())
}

fn simulation(steps: &mut Steps) -> Result<()> {
    let tests = ["test", "--profile", "ci", "--package", "gabion-sim"];
    steps.command("tests of the simulator, committed plans", &mut cargo(&tests))?;
    if sim::build(steps)? {
        steps.command("simulation sample", &mut sim::sample())?;
        steps.command("sample with losses", &mut sim::simulator(&sim::LOSSES))?;
        steps.command("same seed, same run", &mut sim::simulator(&["fingerprint"]))?;
    }
    Ok(())
}

fn fuzz(steps: &mut Steps) -> Result<()> {
    const TITLE: &str = "fuzz targets";
    let works = |command: &mut Command| command.output().is_ok_and(|o| o.status.success());
    if !works(Command::new("cargo").args(["+nightly", "--version"])) {
        steps.skip(TITLE, "no nightly compiler (rustup toolchain install nightly)");
        return Ok(());
    }
    if !works(Command::new("cargo").args(["fuzz", "--version"])) {
        println!("Installing cargo-fuzz");
        if !works(Command::new("cargo").args(["install", "--locked", "cargo-fuzz"])) {
            steps.skip(TITLE, "cargo-fuzz is not there and can't be installed");
            return Ok(());
        }
    }
    let mut list = Command::new("cargo");
    list.args(["+nightly", "fuzz", "list"]);
    let listed = list.output()?;
    for target in String::from_utf8_lossy(&listed.stdout).lines() {
        let mut run = Command::new("cargo");
        run.args(["+nightly", "fuzz", "run", target, "--"]);
        run.args([
            format!("-max_total_time={FUZZ_SECONDS}"),
            "-verbosity=0".into(),
            "-print_funcs=0".into(),
        ]);
        steps.command(&format!("fuzz {target}"), &mut run)?;
    }
    Ok(())
}

fn system(steps: &mut Steps) -> Result<()> {
    if !steps.check("third-party programs", || packages::ensure(packages::SYSTEM))? {
        return Ok(());
    }
    packages::ensure(packages::OPTIONAL)?;
    let mut build = cargo(&["build", "--profile", "ci"]);
    build.args(["--package", "gabion", "--package", "gabion-capi"]);
    if !steps.command("build gabion and its library", &mut build)? {
        return Ok(());
    }
    // One test at a time: they measure stalls, on as few as two cores.
    let tests = ["test", "--profile", "ci", "--package", "gabion-system-tests", "--"];
    let mut command = cargo(&tests);
    command.args(["--test-threads", "1", "--nocapture"]);
    command.env("GABION_BIN", built("gabion")).current_dir(root());
    steps.command("system tests", &mut command)?;
    Ok(())
}
