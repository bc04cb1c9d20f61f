//! `cargo xtask test`: everything that CI runs, fast parts first.
//!
//! The code is built once with the profile `ci` for everything that runs, and what contains the
//! mutants is built apart. While the system tests run, which wait more than they compute,
//! everything else but the fuzz targets runs in the background, the lints first.

use crate::steps::{Steps, cargo};
use crate::{built, gate, packages, root, sim, tidy};
use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Options of `cargo xtask test`.
#[derive(Args)]
pub(crate) struct TestArgs {
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

/// The packages that are built as a release has them, without the mutants.
const PRODUCT: [&str; 7] = [
    "--workspace",
    "--exclude",
    "gabion-sim",
    "--exclude",
    "gabion-system-tests",
    "--exclude",
    "xtask",
];

/// Names of the system tests that measure how long something stalls: one runs at a time.
const MEASURING: [&str; 7] = [
    "bench::",
    "failover::",
    "large_writes::",
    "mdm_restart::",
    "scale::",
    "storm::",
    "strangers::",
];

/// How long each fuzz target runs, in seconds.
const FUZZ_SECONDS: u32 = 8;

/// Runs `cargo xtask test`.
pub(crate) fn run(args: &TestArgs) -> Result<bool> {
    let wanted = |part| args.parts.is_empty() || args.parts.contains(&part);
    let mut steps = Steps::default();
    let first = |steps: &mut Steps| -> Result<()> {
        if wanted(Part::Style) {
            style(steps)?;
        }
        if wanted(Part::Unit) {
            unit(steps)?;
        }
        Ok(())
    };
    let mut ready = false;
    if wanted(Part::System) {
        // They are downloaded while the other parts are compiled.
        let install = |steps: &mut Steps| {
            ready = programs(steps)?;
            Ok(())
        };
        steps.beside(first, install)?;
    } else {
        first(&mut steps)?;
    }
    let others = |steps: &mut Steps| -> Result<()> {
        if wanted(Part::Style) {
            lints(steps)?;
        }
        if wanted(Part::Sim) {
            simulation(steps)?;
        }
        if wanted(Part::Unit) {
            mutants(steps)?;
        }
        if wanted(Part::Gate) {
            gate::part(steps)?;
        }
        Ok(())
    };
    // The fuzz targets are built in a directory of their own, so no build waits for another one.
    let last = |steps: &mut Steps| if wanted(Part::Fuzz) { fuzz(steps) } else { Ok(()) };
    match if ready { build_system(&mut steps)? } else { None } {
        Some(binary) => {
            let front = |steps: &mut Steps| system(steps, &binary).and_then(|()| last(steps));
            steps.beside(front, others)?;
        }
        None => others(&mut steps).and_then(|()| last(&mut steps))?,
    }
    Ok(steps.finish())
}

fn style(steps: &mut Steps) -> Result<()> {
    steps.command("format", &mut cargo(&["fmt", "--all", "--check"]))?;
    steps.check("house rules", |_| tidy::run())?;
    Ok(())
}

fn lints(steps: &mut Steps) -> Result<()> {
    // With the profile of everything else, so that the same macros serve all.
    let mut lints = cargo(&["clippy", "--profile", "ci", "--workspace", "--all-targets"]);
    steps.command("lints", lints.args(["--quiet", "--", "-D", "warnings"]))?;
    Ok(())
}

fn unit(steps: &mut Steps) -> Result<()> {
    let mut tests = cargo(&["test", "--profile", "ci"]);
    steps.command("unit tests and driver contract", tests.args(PRODUCT))?;
    let mut chores = cargo(&["test", "--profile", "ci", "--package", "xtask"]);
    steps.command("tests of the chores", &mut chores)?;
    Ok(())
}

/// Runs the tests that switch the rules of a crate off one by one. The mutants must not get into
/// the builds of other tests.
fn mutants(steps: &mut Steps) -> Result<()> {
    let mut command = cargo(&["test", "--profile", "ci", "--test", "mutants"]);
    // With the simulator, so that the same builds of all libraries serve both.
    command.args(["--package", "gabion-sim"]);
    for package in ["gabion-store", "gabion-mirror", "gabion-node", "gabion-mdm"] {
        command.args(["--package", package, "--features", &format!("{package}/mutants")]);
    }
    // Other tests are in the same binaries, and a mutant is on for the whole process.
    command.args(["--", "--exact", "every_mutant_is_caught"]);
    steps.command("mutants of single crates", &mut command)?;
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
        steps.print("Installing cargo-fuzz");
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
        // The crates of the targets have no unsafe code, so a sanitizer would find nothing. Without
        // one, and with less optimisation, the build takes 40 % less time.
        run.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1");
        run.args(["+nightly", "fuzz", "run", "--sanitizer", "none", target, "--"]);
        run.args([
            format!("-max_total_time={FUZZ_SECONDS}"),
            "-verbosity=0".into(),
            "-print_funcs=0".into(),
        ]);
        steps.command(&format!("fuzz {target}"), &mut run)?;
    }
    Ok(())
}

/// Installs what the system tests and the instruction gate need, as only one installation can run
/// at a time.
fn programs(steps: &mut Steps) -> Result<bool> {
    let there = steps.check("third-party programs", |steps| {
        let system = packages::ensure(steps, packages::SYSTEM)?;
        Ok(system && packages::ensure(steps, packages::GATE)?)
    })?;
    packages::ensure(steps, packages::OPTIONAL)?;
    Ok(there)
}

/// Builds what the system tests run, and the tests themselves. Returns the tests' binary.
fn build_system(steps: &mut Steps) -> Result<Option<PathBuf>> {
    // With the targets of the unit tests, so that the same builds of all libraries serve both.
    let mut build = cargo(&["build", "--profile", "ci", "--lib", "--bins", "--tests"]);
    if !steps.command("build gabion and its library", build.args(PRODUCT))? {
        return Ok(None);
    }
    let tests = ["test", "--profile", "ci", "--package", "gabion-system-tests", "--no-run"];
    if !steps.command("build the system tests", &mut cargo(&tests))? {
        return Ok(None);
    }
    let told = cargo(&tests).args(["--quiet", "--message-format", "json"]).output()?;
    let told = String::from_utf8(told.stdout)?;
    let messages = told.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let binary = messages.filter_map(|m| Some(m["executable"].as_str()?.into())).next_back();
    Ok(Some(binary.context("cargo names no binary of the system tests")?))
}

/// Runs the system tests. Not through cargo, which would wait for builds in the background.
fn system(steps: &mut Steps, binary: &Path) -> Result<()> {
    let mut alone = Command::new(binary);
    alone.args(["--test-threads", "1", "--nocapture"]).args(MEASURING);
    let mut others = Command::new(binary);
    others.args(["--test-threads", "3"]);
    MEASURING.iter().for_each(|name| _ = others.args(["--skip", name]));
    for (title, mut command) in [("system tests that measure", alone), ("system tests", others)] {
        command.env("GABION_BIN", built("gabion")).current_dir(root().join("tests/system"));
        steps.command(title, &mut command)?;
    }
    Ok(())
}
