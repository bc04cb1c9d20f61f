//! Sets the text of `gabion --version`: the release, and the commit that the binary was built from.
//!
//! The commit is that of the git tree to which this file belongs, or the value of `GABION_COMMIT`.
//! Without either, as in an archive of the source, the text is the release alone. It has no time,
//! so two builds of one commit have the same text. Changes that are not committed do not show.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=GABION_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    let release = std::env::var("CARGO_PKG_VERSION").expect("cargo sets the release");
    let text = match commit() {
        Some(commit) => format!("{release} ({commit})"),
        None => release,
    };
    println!("cargo::rustc-env=GABION_VERSION={text}");
}

/// Returns the commit, if it is known.
fn commit() -> Option<String> {
    if let Ok(commit) = std::env::var("GABION_COMMIT") {
        return Some(commit).filter(|commit| !commit.is_empty());
    }
    // An archive may have been unpacked within the tree of another project.
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    // These files change with each commit and with each checkout.
    for file in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", file])?;
        if std::path::Path::new(&path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    let commit = git(&["rev-parse", "HEAD"])?;
    commit.get(..12).map(str::to_owned)
}

/// Returns what git prints; `None` if it fails or is not installed.
fn git(args: &[&str]) -> Option<String> {
    let run = Command::new("git").args(args).output().ok()?;
    let text = String::from_utf8(run.stdout).ok()?;
    run.status.success().then(|| text.trim().to_owned())
}
