//! `cargo xtask bench`: builds the release binary and runs `gabion bench ratio`, which measures
//! Gabion against the floor.
//!
//! `docs/internals/measuring.md` explains the method and the figures.

use crate::steps::cargo;
use crate::target_dir;
use anyhow::{Context, Result};
use clap::Args;
use std::process::Command;

/// Options of `cargo xtask bench`.
#[derive(Args)]
pub(crate) struct BenchArgs {
    /// Options of `gabion bench ratio`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS")]
    options: Vec<String>,
}

/// Runs `cargo xtask bench`.
pub(crate) fn run(args: &BenchArgs) -> Result<bool> {
    let mut build = cargo(&["build", "--release", "--package", "gabion"]);
    if !build.status().context("can't run cargo")?.success() {
        return Ok(false);
    }
    let gabion = target_dir().join("release/gabion");
    let ran = Command::new(&gabion).args(["bench", "ratio"]).args(&args.options).status();
    Ok(ran.with_context(|| format!("can't run {}", gabion.display()))?.success())
}
