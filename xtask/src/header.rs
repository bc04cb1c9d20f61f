//! The C header of libgabion, generated from the Rust source: `fix` writes it, `tidy` compares it.

use anyhow::{Context, Result};
use std::fs;
use std::path::Path;

/// The path of the header that programs include.
const HEADER: &str = "crates/capi/include/gabion.h";
const CRATE: &str = "crates/capi";

/// Generates the text of the header.
fn generate() -> Result<String> {
    let config = cbindgen::Config::from_file(Path::new(CRATE).join("cbindgen.toml"))
        .map_err(|e| anyhow::anyhow!("{CRATE}/cbindgen.toml: {e}"))?;
    let source = Path::new(CRATE).join("src/lib.rs");
    let builder = cbindgen::Builder::new().with_config(config).with_src(source);
    let mut bytes = Vec::new();
    builder.generate().context("the header can't be made")?.write(&mut bytes);
    Ok(for_c(&String::from_utf8(bytes)?))
}

/// Removes headings that only readers of the Rust source need: in C every function has such rules.
fn for_c(text: &str) -> String {
    let lines = text.lines().map(str::trim_end).filter(|l| l.trim_start() != "// # Safety");
    lines.flat_map(|l| [l, "\n"]).collect()
}

/// Writes the header if it has changed.
pub(crate) fn write() -> Result<bool> {
    let text = generate()?;
    if fs::read_to_string(HEADER).unwrap_or_default() != text {
        if let Some(folder) = Path::new(HEADER).parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(HEADER, text)?;
        println!("{HEADER} is written anew");
    }
    Ok(true)
}

/// Returns a finding if the header differs from the Rust source.
pub(crate) fn check() -> Result<Vec<String>> {
    let there = fs::read_to_string(HEADER).unwrap_or_default();
    let current = there == generate()?;
    let finding = || format!("{HEADER}: not what {CRATE}/src says: run `cargo xtask fix`");
    Ok((!current).then(finding).into_iter().collect())
}
