//! `cargo xtask test`: everything that CI runs, and on demand parts that are for the night
//! (`.ci/night`).
//!
//! The code is built once, with the profile `ci` and without the mutants. While the system tests
//! run, which wait more than they compute, everything else but the fuzz targets runs in the
//! background. There the simulator is built first, because its runs need no lock of cargo: the
//! lints are built beside them. Unit tests that read a clock run before the system tests.

use crate::steps::{Steps, cargo};
use crate::unpacked::{self, Unpacked};
use crate::{gate, packages, patches, sim, tidy};
use anyhow::Result;
use clap::{Args, ValueEnum};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Options of `cargo xtask test`.
#[derive(Args)]
pub(crate) struct TestArgs {
    /// Run these parts. Default: all of a landing, which are style, unit, sim and system
    #[arg(value_enum)]
    parts: Vec<Part>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Format, lints, house rules
    Style,
    /// Unit tests of all crates, and the driver contract on all backends
    Unit,
    /// The simulator's own tests, a sample of seeds, the fingerprint check
    Sim,
    /// Black-box tests with real processes and third-party clients
    System,
    /// For the night: instruction counts of a release against their baseline
    Gate,
    /// For the night: do the tests of single crates notice each removed rule?
    Mutants,
    /// For the night: each fuzz target for a minute
    Fuzz,
}

/// The parts of each landing. The others need builds of their own, which take longer than what they
/// run.
const LANDING: [Part; 4] = [Part::Style, Part::Unit, Part::Sim, Part::System];

/// The profile of everything that is tested.
const CI: &str = "ci";

/// All packages that are tested. They are built together, because other selections of packages
/// would need other features of third-party libraries.
const ALL: [&str; 3] = ["--workspace", "--exclude", "xtask"];

/// All but the simulator: what the system tests wait for.
const PRODUCT: [&str; 5] = ["--workspace", "--exclude", "xtask", "--exclude", "gabion-sim"];

/// The folder of the system tests.
const SYSTEM_TESTS: &str = "tests/system";

/// The folder of the simulator.
const SIMULATOR: &str = "crates/sim";

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

/// The crates whose tests read no clock, so that they may run at the lowest priority.
const PURE: [&str; 10] =
    ["base", "seam", "wire", "placement", "store", "mirror", "consensus", "mdm", "target", "node"];

/// How long each fuzz target runs, in seconds.
const FUZZ_SECONDS: u32 = 60;

/// Runs `cargo xtask test`.
pub(crate) fn run(args: &TestArgs) -> Result<bool> {
    let parts = if args.parts.is_empty() { &LANDING[..] } else { &args.parts };
    let wanted = |part| parts.contains(&part);
    let mut steps = Steps::default();
    let (mut built, mut ready, mut unpacked) = (Vec::new(), false, Unpacked::new());
    let first = |steps: &mut Steps| -> Result<()> {
        if wanted(Part::Style) {
            style(steps)?;
        }
        if wanted(Part::Unit) || wanted(Part::System) {
            built = build(steps, "build gabion and its tests", &PRODUCT)?;
        }
        Ok(())
    };
    // The programs are downloaded while the code is compiled.
    let install = |steps: &mut Steps| {
        if wanted(Part::System) {
            (ready, unpacked) = programs(steps)?;
        }
        Ok(())
    };
    steps.beside(first, install)?;
    let (system_tests, unit_tests): (Vec<Binary>, Vec<Binary>) =
        built.into_iter().partition(|binary| binary.folder.ends_with(SYSTEM_TESTS));
    let is_pure = |binary: &Binary| PURE.iter().any(|name| binary.folder.ends_with(name));
    // Nobody waits for system tests if there are none: all unit tests run in the foreground then.
    let (pure, timed): (Vec<Binary>, Vec<Binary>) =
        unit_tests.into_iter().partition(|binary| ready && is_pure(binary));
    let front = |steps: &mut Steps| -> Result<()> {
        if wanted(Part::Unit) {
            run_all(steps, &timed)?;
        }
        if wanted(Part::System) && ready {
            system_tests.iter().try_for_each(|binary| system(steps, binary, &unpacked))?;
        }
        // They are built in a directory of their own, so no build waits for another one.
        if wanted(Part::Fuzz) {
            fuzz(steps)?;
        }
        Ok(())
    };
    let behind = |steps: &mut Steps| -> Result<()> {
        let alone = !wanted(Part::Unit) && !wanted(Part::System);
        let simulator = if wanted(Part::Sim) { simulator(steps, alone)? } else { Vec::new() };
        let lints_and_examples = |steps: &mut Steps| -> Result<()> {
            if wanted(Part::Unit) {
                run_all(steps, &pure)?;
            }
            if wanted(Part::Style) {
                lints(steps)?;
            }
            if wanted(Part::Unit) {
                examples(steps)?;
                chores(steps)?;
            }
            Ok(())
        };
        steps.beside(|steps| simulation(steps, &simulator), lints_and_examples)?;
        if wanted(Part::Mutants) {
            mutants(steps)?;
        }
        if wanted(Part::Gate) {
            gate::part(steps)?;
        }
        Ok(())
    };
    steps.beside(front, behind)?;
    Ok(steps.finish())
}

/// A binary with tests. It does not run through cargo, which would wait for builds beside it.
struct Binary {
    /// The name of the target: `all`, or a crate.
    target: String,
    path: PathBuf,
    /// The folder of its package, where it runs.
    folder: PathBuf,
}

/// Builds these packages and their tests, and returns the binaries of their tests.
fn build(steps: &mut Steps, title: &str, packages: &[&str]) -> Result<Vec<Binary>> {
    // With the targets of the tests, so that the same builds of all libraries serve both.
    let build = |command| {
        let mut build = cargo(&[command, "--profile", CI, "--lib", "--bins", "--tests"]);
        build.args(packages);
        build
    };
    if !steps.command(title, &mut build("build"))? {
        return Ok(Vec::new());
    }
    let mut list = build("test");
    let told = list.args(["--no-run", "--quiet", "--message-format", "json"]).output()?;
    let told = String::from_utf8(told.stdout)?;
    let messages = told.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut binaries: Vec<Binary> = messages.filter_map(|message| binary(&message)).collect();
    // The library of the system tests has no tests.
    binaries.retain(|binary| binary.target != "system");
    anyhow::ensure!(!binaries.is_empty(), "cargo names no binary of: {title}");
    Ok(binaries)
}

/// Returns the test binary that this message of cargo reports, if it reports one.
fn binary(message: &Value) -> Option<Binary> {
    let path = message["executable"].as_str().filter(|_| message["profile"]["test"] == true)?;
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
    Some(Binary {
        target: message["target"]["name"].as_str()?.into(),
        path: path.into(),
        folder: folder.into(),
    })
}

fn style(steps: &mut Steps) -> Result<()> {
    steps.command("format", &mut cargo(&["fmt", "--all", "--check"]))?;
    steps.check("house rules", |_| tidy::run())?;
    Ok(())
}

fn lints(steps: &mut Steps) -> Result<()> {
    // With the profile of everything else, so that the same macros serve all.
    let mut lints = cargo(&["clippy", "--profile", CI, "--workspace", "--all-targets"]);
    lints.args(sim::MUTANTS);
    steps.command("lints", lints.args(["--quiet", "--", "-D", "warnings"]))?;
    Ok(())
}

/// Runs all tests of these binaries.
fn run_all(steps: &mut Steps, binaries: &[Binary]) -> Result<()> {
    for binary in binaries {
        let package = binary.folder.file_name().unwrap_or_default().display();
        let mut tests = Command::new(&binary.path);
        tests.current_dir(&binary.folder);
        steps.command(&format!("tests of {package} ({})", binary.target), &mut tests)?;
    }
    Ok(())
}

/// Runs the examples in the documentation.
fn examples(steps: &mut Steps) -> Result<()> {
    let mut examples = cargo(&["test", "--profile", CI, "--doc"]);
    steps.command("examples in the documentation", examples.args(ALL))?;
    Ok(())
}

/// Runs the tests of the chores.
fn chores(steps: &mut Steps) -> Result<()> {
    let mut chores = cargo(&["test", "--profile", CI, "--package", "xtask"]);
    steps.command("tests of the chores", &mut chores)?;
    Ok(())
}

/// Runs the tests that switch the rules of a crate off one by one, and those of the simulator that
/// do. The mutants must not get into the builds of other tests.
fn mutants(steps: &mut Steps) -> Result<()> {
    const CRATES: [&str; 5] = ["store", "mirror", "node", "mdm", "fleet"];
    // The same packages in both commands, so that the same builds serve both.
    let tests = |target| {
        let mut tests = cargo(&["test", "--profile", CI, "--test", target]);
        tests.args(["--package", "gabion-sim"]).args(sim::MUTANTS);
        for name in CRATES {
            let (package, feature) = (format!("gabion-{name}"), format!("gabion-{name}/mutants"));
            tests.args(["--package", &package, "--features", &feature]);
        }
        tests
    };
    steps.command("mutants of the simulator", &mut tests("clusters"))?;
    // Other tests are in the same binaries, and a mutant is on for the whole process.
    let exact = ["--", "--exact", "every_mutant_is_caught"];
    steps.command("mutants of single crates", tests("mutants").args(exact))?;
    patches::run(steps, CI)
}

/// Builds the simulator and its tests, and returns the binaries of its tests. `alone`: nothing else
/// was built.
fn simulator(steps: &mut Steps, alone: bool) -> Result<Vec<Binary>> {
    let packages = if alone { &["--package", "gabion-sim"][..] } else { &ALL };
    let mut built = build(steps, "build the simulator and its tests", packages)?;
    built.retain(|binary| binary.folder.ends_with(SIMULATOR));
    Ok(built)
}

/// Runs the simulator and its tests.
fn simulation(steps: &mut Steps, tests: &[Binary]) -> Result<()> {
    if !tests.is_empty() {
        run_all(steps, tests)?;
        let simulator = |args| sim::simulator(CI, args);
        steps.command("simulation sample", &mut simulator(&sim::SAMPLE))?;
        steps.command("sample with losses", &mut simulator(&sim::LOSSES))?;
        steps.command("same seed, same run", &mut simulator(&["fingerprint"]))?;
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
        // The crates of the targets have no unsafe code, so a sanitizer would find nothing.
        run.args(["+nightly", "fuzz", "run", "--dev", "--sanitizer", "none", target, "--"]);
        run.args([
            format!("-max_total_time={FUZZ_SECONDS}"),
            "-verbosity=0".into(),
            "-print_funcs=0".into(),
        ]);
        steps.command(&format!("fuzz {target}"), &mut run)?;
    }
    Ok(())
}

/// Installs what the system tests need. Also returns what was unpacked for them.
fn programs(steps: &mut Steps) -> Result<(bool, Unpacked)> {
    let there =
        steps.check("third-party programs", |steps| packages::ensure(steps, packages::SYSTEM))?;
    packages::ensure(steps, packages::OPTIONAL)?;
    Ok((there, unpacked::all(steps)))
}

fn system(steps: &mut Steps, binary: &Binary, unpacked: &Unpacked) -> Result<()> {
    let mut alone = Command::new(&binary.path);
    alone.args(["--test-threads", "1", "--nocapture"]).args(MEASURING);
    let mut others = Command::new(&binary.path);
    others.args(["--test-threads", "4"]);
    MEASURING.iter().for_each(|name| _ = others.args(["--skip", name]));
    for (title, mut command) in [("system tests that measure", alone), ("system tests", others)] {
        command.env("GABION_BIN", crate::built(CI, "gabion")).current_dir(&binary.folder);
        command.envs(unpacked.iter().map(|(variable, folder)| (variable, folder)));
        steps.command(title, &mut command)?;
    }
    Ok(())
}
