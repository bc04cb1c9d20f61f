//! `cargo xtask fix`: automatic repairs.

use crate::header;
use crate::steps::{Steps, cargo};
use anyhow::Result;

/// Runs `cargo xtask fix`.
pub(crate) fn run() -> Result<bool> {
    let mut steps = Steps::default();
    steps.command(
        "clippy",
        &mut cargo(&[
            "clippy",
            "--profile",
            "ci",
            "--workspace",
            "--all-targets",
            "--fix",
            "--allow-dirty",
            "--allow-staged",
        ]),
    )?;
    steps.command("format", &mut cargo(&["fmt", "--all"]))?;
    steps.check("C header", |_| header::write())?;
    Ok(steps.finish())
}
