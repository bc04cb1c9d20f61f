//! Mutants that need more than one changed expression: `crates/*/mutants/*.patch`. The product has
//! no code for them. A patch says in its first lines which rule it removes, and which test fails
//! without the rule:
//!
//! ```text
//! A superblock is written before the data that it points to is durable.
//! Caught by: crash::acknowledged_writes_survive_random_crashes
//! ```

use crate::steps::{Steps, cargo};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the patched code is built.
const FOLDER: &str = "target/mutants";
/// How the line with the test begins.
const CAUGHT_BY: &str = "Caught by: ";

/// A patch that removes a rule.
struct Patch {
    /// The path relative to the workspace.
    path: PathBuf,
    /// The folder name of the crate.
    of: String,
    /// The test in `tests/all` that fails.
    test: String,
}

/// Returns all patches, and what is wrong with the others.
fn all() -> Result<(Vec<Patch>, Vec<String>)> {
    let (mut patches, mut findings) = (Vec::new(), Vec::new());
    for of in list(Path::new("crates"))? {
        let folder = of.join("mutants");
        for path in if folder.is_dir() { list(&folder)? } else { Vec::new() } {
            let text = fs::read_to_string(&path)?;
            let of = of.file_name().unwrap_or_default().to_string_lossy().into_owned();
            match text.lines().find_map(|line| line.strip_prefix(CAUGHT_BY)) {
                Some(test) => patches.push(Patch { path, of, test: test.into() }),
                None => findings.push(format!("{}: no line says {CAUGHT_BY}TEST", path.display())),
            }
        }
    }
    Ok((patches, findings))
}

/// Returns the paths in a folder, sorted.
fn list(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("can't list {}", folder.display()));
    let mut paths = entries?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

/// Checks that each patch can still be applied.
pub(crate) fn check() -> Result<Vec<String>> {
    let (patches, mut findings) = all()?;
    for Patch { path, .. } in patches {
        let applied = Command::new("git").args(["apply", "--check"]).arg(&path).output()?;
        if !applied.status.success() {
            findings.push(format!(
                "{}: it can't be applied any more: make the change again, so that the night's \
                 tests can check that they notice: {}",
                path.display(),
                String::from_utf8_lossy(&applied.stderr).trim()
            ));
        }
    }
    Ok(findings)
}

/// Applies one patch after the other to a copy of the code, and checks that the test fails.
pub(crate) fn run(steps: &mut Steps, profile: &str) -> Result<()> {
    let (patches, _) = all()?;
    // Compiled libraries stay.
    for name in ["crates", "xtask", "tests"] {
        let folder = Path::new(FOLDER).join(name);
        if folder.exists() {
            fs::remove_dir_all(folder)?;
        }
    }
    let prefix = format!("--prefix={FOLDER}/");
    let copied = Command::new("git").args(["checkout-index", "-a", "-f"]).arg(prefix).status()?;
    ensure!(copied.success(), "git can't copy the code to {FOLDER}");
    for patch in &patches {
        steps.check(&format!("mutant {}", patch.path.display()), |steps| {
            apply(patch, false)?;
            let noticed = is_noticed(patch, profile, steps);
            apply(patch, true)?;
            noticed
        })?;
    }
    Ok(())
}

/// Applies the patch to the copy, or takes it back.
fn apply(patch: &Patch, back: bool) -> Result<()> {
    let mut apply = Command::new("git");
    apply.arg("apply").args(back.then_some("-R")).arg(fs::canonicalize(&patch.path)?);
    // Paths are those of the copy, which is in no repository of its own.
    apply.current_dir(FOLDER).env("GIT_CEILING_DIRECTORIES", fs::canonicalize("target")?);
    ensure!(apply.status()?.success(), "{} can't be applied", patch.path.display());
    Ok(())
}

/// Returns true if the test fails. A test that can't be built or found does not count.
fn is_noticed(patch: &Patch, profile: &str, steps: &mut Steps) -> Result<bool> {
    let mut test = cargo(&["test", "--profile", profile, "--test", "all", "--package"]);
    test.arg(format!("gabion-{}", patch.of)).args(["--", "--exact", &patch.test]);
    let target = fs::canonicalize(FOLDER)?.join("target");
    let ended = test.current_dir(FOLDER).env("CARGO_TARGET_DIR", target).output()?;
    let told = String::from_utf8_lossy(&ended.stdout);
    let noticed = told.contains("test result: FAILED. 0 passed; 1 failed");
    if !noticed {
        steps.print(&told);
        steps.print(&String::from_utf8_lossy(&ended.stderr));
        steps.print(&format!("{} passes although the rule is missing", patch.test));
    }
    Ok(noticed)
}
