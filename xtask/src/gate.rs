//! `cargo xtask gate`: counts instructions and compares them with the committed baseline, as
//! `docs/internals/measuring.md` explains.
//!
//! The measurements are in `crates/gate`. They run under valgrind, driven by gungraun's runner. The
//! runner must have exactly the library's version, so it is installed once below the target
//! directory.

mod compare;

use crate::packages::{self, GATE};
use crate::steps::{Steps, cargo};
use crate::target_dir;
use anyhow::{Context, Result, bail};
use clap::Args;
use compare::{Baseline, Count};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Options of `cargo xtask gate`.
#[derive(Args)]
pub(crate) struct GateArgs {
    /// Write the counts as the new baseline
    #[arg(long)]
    update: bool,
}

/// Each count is divided by this: `gate::OPERATIONS`.
const OPERATIONS: f64 = 64.0;

/// The environment variable that tells the library where its runner is.
const RUNNER: &str = "GUNGRAUN_RUNNER";

const BENCH: [&str; 6] =
    ["--profile", "gate", "--package", "gabion-gate", "--bench", "instructions"];

/// Runs `cargo xtask gate`.
pub(crate) fn run(args: &GateArgs) -> Result<bool> {
    let mut steps = Steps::default();
    gate(&mut steps, args.update)?;
    Ok(steps.finish())
}

/// Runs the gate as a part of `cargo xtask test`.
pub(crate) fn part(steps: &mut Steps) -> Result<()> {
    gate(steps, false)
}

fn gate(steps: &mut Steps, update: bool) -> Result<()> {
    const TITLE: &str = "instruction counts";
    if let Some(why) = cannot_compare()? {
        steps.skip(TITLE, &why);
        return Ok(());
    }
    let file = baseline_file();
    if !file.exists() && !update {
        let why = format!("{} is not there: cargo xtask gate --update", file.display());
        steps.skip(TITLE, &why);
        return Ok(());
    }
    if !steps.check("valgrind", |steps| packages::ensure(steps, GATE))? {
        return Ok(());
    }
    let (runner, version) = (target_dir().join("tools/bin/gungraun-runner"), wanted_version()?);
    if !is_version(&runner, &version) {
        let root = target_dir().join("tools");
        // Unoptimised: it only starts valgrind and reads its output.
        let mut install = cargo(&["install", "--quiet", "--debug", "--locked", "--version"]);
        install.env("CARGO_PROFILE_DEV_DEBUG", "false");
        install.args([&version, "--root"]).arg(root).arg("gungraun-runner");
        if !steps.command("install the runner (once)", &mut install)? {
            return Ok(());
        }
    }
    let mut build = cargo(&["bench", "--no-run"]);
    // The build reads it: with another value at run time, cargo would build again.
    build.env(RUNNER, &runner);
    if !steps.command("build what is counted", build.args(BENCH))? {
        return Ok(());
    }
    steps.check(TITLE, |steps| {
        let now = Baseline { taken_with: tools()?, counts: count(&runner)? };
        if update {
            std::fs::write(&file, now.to_text())?;
            let path = file.display();
            steps.print(&format!("{path} is new. Say in the commit why the counts changed."));
            return Ok(true);
        }
        let text = std::fs::read_to_string(&file)?;
        let verdict =
            Baseline::parse(&text).with_context(|| file.display().to_string())?.judge(&now);
        steps.print(&verdict.text);
        for name in verdict.grown {
            steps.print(&format!("Where: callgrind_annotate {}", profile(&name).display()));
        }
        Ok(verdict.passed)
    })?;
    Ok(())
}

fn baseline_file() -> PathBuf {
    format!("crates/gate/baseline/{}.txt", std::env::consts::ARCH).into()
}

/// Returns the path at which the runner leaves callgrind's output.
fn profile(name: &str) -> PathBuf {
    let folder = target_dir().join("gungraun/gabion-gate/instructions/all").join(name);
    folder.join(format!("callgrind.{name}.out"))
}

/// Returns the reason why counts of this machine can't be compared, if there is one. Valgrind
/// presents the same processor to programs on all hosts with AVX2, and a different one on older
/// hosts, where checksums and copies would take other code paths.
fn cannot_compare() -> Result<Option<String>> {
    if std::env::consts::ARCH != "x86_64" {
        return Ok(None);
    }
    let info = std::fs::read_to_string("/proc/cpuinfo")?;
    let flags = info.lines().find(|l| l.starts_with("flags")).unwrap_or_default();
    let lacks = ["avx2", "pclmulqdq"].into_iter().find(|f| !flags.split(' ').any(|g| g == *f));
    Ok(lacks
        .map(|f| format!("this processor lacks {f}, so code goes other ways than the baseline's")))
}

/// Returns the version of the library that the workspace is locked to.
fn wanted_version() -> Result<String> {
    let lock = std::fs::read_to_string("Cargo.lock")?;
    let found = lock.split_once("name = \"gungraun\"\nversion = \"");
    let version = found.and_then(|(_, rest)| rest.split('"').next());
    Ok(version.context("Cargo.lock does not name gungraun")?.to_owned())
}

fn is_version(runner: &Path, version: &str) -> bool {
    first_line(Command::new(runner).arg("--version"))
        .is_ok_and(|line| line.split(' ').next_back() == Some(version))
}

fn first_line(command: &mut Command) -> Result<String> {
    let out = command.output().with_context(|| command.get_program().display().to_string())?;
    Ok(String::from_utf8_lossy(&out.stdout).lines().next().unwrap_or_default().to_owned())
}

/// Returns the tools, besides our code, that influence the counts.
fn tools() -> Result<String> {
    let rustc = first_line(Command::new("rustc").arg("--version"))?;
    let valgrind = first_line(Command::new("valgrind").arg("--version"))?;
    let libc = first_line(Command::new("getconf").arg("GNU_LIBC_VERSION"))?;
    Ok(format!("{rustc}, {valgrind}, {libc}"))
}

/// One line of the runner's output.
#[derive(Deserialize)]
struct Summary {
    function_name: String,
    id: String,
    profiles: Vec<Profile>,
}

#[derive(Deserialize)]
struct Profile {
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    total: Total,
}

#[derive(Deserialize)]
struct Total {
    metrics: BTreeMap<String, Metric>,
}

#[derive(Deserialize)]
struct Metric {
    values: Values,
}

#[derive(Deserialize)]
struct Values {
    new: f64,
}

fn count(runner: &Path) -> Result<Vec<Count>> {
    let mut bench = cargo(&["bench", "--quiet"]);
    bench.args(BENCH).args(["--", "--output-format=json", "--parallel=auto"]);
    let out = bench.env(RUNNER, runner).output()?;
    if !out.status.success() {
        bail!("counting failed: {}", String::from_utf8_lossy(&out.stderr));
    }
    let mut counts = Vec::new();
    for line in String::from_utf8(out.stdout)?.lines() {
        let summary: Summary =
            serde_json::from_str(line).context("the runner prints other summaries now")?;
        let metrics = summary.profiles.first().map(|p| &p.data.total.metrics);
        let instructions = metrics.and_then(|m| m.get("Ir")).context("no instructions counted")?;
        counts.push(Count {
            name: format!("{}.{}", summary.function_name, summary.id),
            // As precise as it is written to the baseline.
            instructions: (instructions.values.new / OPERATIONS * 10.0).round() / 10.0,
        });
    }
    Ok(counts)
}
