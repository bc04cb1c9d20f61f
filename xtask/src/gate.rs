//! `cargo xtask gate`: counts instructions and compares them with the committed baseline, as
//! `docs/internals/measuring.md` explains.
//!
//! The measurements are in `crates/gate`, a program that does one of them per run. Each runs under
//! valgrind's callgrind, which counts inside one function only.

mod compare;

use crate::packages::{self, GATE};
use crate::steps::{Steps, cargo};
use crate::{built, target_dir};
use anyhow::{Context, Result, bail};
use clap::Args;
use compare::{Baseline, Count};
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

/// The profile of what is counted.
const PROFILE: &str = "gate";

/// The function inside which valgrind counts, of any generic parameters.
const COUNTED: &str = "*counted_by_valgrind*";

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
    let mut build = cargo(&["build", "--profile", PROFILE, "--package", "gabion-gate"]);
    if !steps.command("build what is counted", build.args(["--bin", "gabion-gate"]))? {
        return Ok(());
    }
    steps.check(TITLE, |steps| {
        let now = Baseline { taken_with: tools()?, counts: count()? };
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

/// Returns the path of callgrind's output for this measurement.
fn profile(name: &str) -> PathBuf {
    target_dir().join("callgrind").join(name)
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

/// Counts the instructions of all measurements.
fn count() -> Result<Vec<Count>> {
    let binary = built(PROFILE, "gabion-gate");
    std::fs::create_dir_all(profile("").as_path())?;
    let names = output(&mut Command::new(&binary))?;
    names.lines().map(|name| count_one(&binary, name)).collect()
}

fn count_one(binary: &Path, name: &str) -> Result<Count> {
    let file = profile(name);
    // Addresses and the environment would change how data is aligned.
    let mut command = Command::new("setarch");
    command.env_clear().args(["--addr-no-randomize", "valgrind", "--tool=callgrind", "--quiet"]);
    command.args(["--collect-atstart=no", &format!("--toggle-collect={COUNTED}")]);
    command.arg(format!("--callgrind-out-file={}", file.display())).arg(binary).arg(name);
    output(&mut command)?;
    let text = std::fs::read_to_string(&file)?;
    let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
    let total: f64 = total.context("callgrind tells no total")?.trim().parse()?;
    if total == 0.0 {
        bail!("{name}: nothing was counted, so {COUNTED} is no function of {}", binary.display());
    }
    // As precise as it is written to the baseline.
    let instructions = (total / OPERATIONS * 10.0).round() / 10.0;
    Ok(Count { name: name.to_owned(), instructions })
}

/// Runs this command and returns what it prints.
fn output(command: &mut Command) -> Result<String> {
    let out = command.output().with_context(|| format!("{command:?}"))?;
    if !out.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&out.stderr));
    }
    Ok(String::from_utf8(out.stdout)?)
}
