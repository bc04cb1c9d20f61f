//! `cargo xtask tidy`: the house rules that neither rustc nor clippy checks.
//!
//! Every finding is one line with the place, the fault, and the reason for the rule.

mod columns;
mod crates;
mod links;
mod long;
mod mutants;
mod promises;
mod rules;
mod shape;
mod source;
mod tables;
mod text;
mod unused;

use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// Directories without source files of the project. (`target` is one unless it is a crate.)
const SKIPPED: &[&str] = &["target", ".git", "gabion-data", "corpus", "artifacts"];

/// A text file of the project.
struct File {
    /// The path relative to the workspace.
    pub path: PathBuf,
    /// Its content.
    pub text: String,
    /// The parts of its lines, if it is Rust. Most checks look at them, so they are found once.
    pub lines: Vec<source::Line>,
}

impl File {
    fn new(path: impl Into<PathBuf>, text: impl Into<String>) -> Self {
        let mut file = File { path: path.into(), text: text.into(), lines: Vec::new() };
        if file.is("rs") {
            file.lines = source::split(&file.text);
        }
        file
    }

    fn is(&self, extension: &str) -> bool {
        self.path.extension().is_some_and(|e| e == extension)
    }
}

/// Runs `cargo xtask tidy`.
pub(crate) fn run() -> Result<bool> {
    let mut files = Vec::new();
    collect(Path::new("."), &mut files)?;
    let mut findings = text::check(&files);
    findings.extend(links::check(&files));
    findings.extend(rules::check(&files));
    findings.extend(tables::check(&files));
    findings.extend(mutants::check(&files));
    findings.extend(promises::check(&files));
    findings.extend(columns::check(&files));
    findings.extend(long::check(&files));
    findings.extend(shape::check(&files));
    findings.extend(unused::check(&files));
    findings.extend(crates::check(&files)?);
    findings.extend(crate::header::check()?);
    findings.extend(crate::patches::check()?);
    for finding in &findings {
        println!("{finding}");
    }
    println!("tidy: {} files, {} findings", files.len(), findings.len());
    Ok(findings.is_empty())
}

/// Returns the lines of a page outside of code blocks, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fence: Option<&str> = None;
    text.lines().enumerate().filter_map(move |(i, line)| {
        let start = line.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|mark| start.starts_with(mark));
        match (fence, mark) {
            (None, None) => return Some((i + 1, line)),
            (None, mark) => fence = mark,
            (opened, mark) if opened == mark => fence = None,
            _ => {}
        }
        None
    })
}

fn collect(folder: &Path, into: &mut Vec<File>) -> Result<()> {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|e| Ok(e?.path())).collect::<Result<_>>()?;
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let skipped = SKIPPED.contains(&name.as_str()) && !path.join("Cargo.toml").exists();
        if path.is_symlink() || skipped {
            continue;
        }
        if path.is_dir() {
            collect(&path, into)?;
        } else if path.extension().is_some_and(|e| e == "rs" || e == "md" || e == "toml") {
            let text = fs::read_to_string(&path)
                .with_context(|| format!("can't read {}", path.display()))?;
            into.push(File::new(path.strip_prefix(".").unwrap_or(&path), text));
        }
    }
    Ok(())
}
