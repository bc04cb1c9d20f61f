//! The dependencies that each crate may have. The table is the architecture; every ban has its
//! reason.
//!
//! A crate that is not in the table, or a dependency that its row does not name, is a finding: a
//! new edge is a decision, and must be made visible here.

use crate::steps::cargo;
use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// One crate's row.
struct Row {
    name: &'static str,
    /// 0 vocabulary, 1 sans-I/O cores, 2 drivers, 3 edges; see ARCHITECTURE.
    tier: u8,
    /// Allowed crates of the workspace.
    ours: &'static [&'static str],
    /// Allowed libraries.
    libraries: &'static [&'static str],
}

const fn row(
    name: &'static str,
    tier: u8,
    ours: &'static [&'static str],
    libraries: &'static [&'static str],
) -> Row {
    Row { name, tier, ours, libraries }
}

const TABLE: &[Row] = &[
    row("gabion-base", 0, &[], &["crc-fast", "foldhash", "hashbrown"]),
    row("gabion-seam", 0, &["gabion-base"], &[]),
    row("gabion-wire", 0, &["gabion-base", "gabion-seam"], &["prost", "thiserror", "zerocopy"]),
    row("gabion-placement", 1, &["gabion-base"], &[]),
    row("gabion-store", 1, &["gabion-base", "gabion-seam"], &["thiserror", "zerocopy"]),
    row("gabion-mirror", 1, &["gabion-base", "gabion-seam", "gabion-wire"], &["zerocopy"]),
    row(
        "gabion-mdm",
        1,
        &["gabion-base", "gabion-seam", "gabion-wire", "gabion-placement"],
        &["prost", "thiserror"],
    ),
    // raft: a pure state machine. slog: raft requires a logger, and gets one that drops everything.
    row("gabion-consensus", 1, &["gabion-base"], &["prost", "raft", "slog"]),
    row("gabion-target", 1, &["gabion-base", "gabion-seam"], &["thiserror", "zerocopy"]),
    row(
        "gabion-node",
        1,
        &[
            "gabion-base",
            "gabion-seam",
            "gabion-wire",
            "gabion-placement",
            "gabion-store",
            "gabion-mirror",
            "gabion-mdm",
            "gabion-consensus",
            "gabion-target",
        ],
        &["prost", "thiserror", "zerocopy"],
    ),
    row(
        "gabion-rt",
        2,
        &["gabion-base", "gabion-seam"],
        &["io-uring", "libc", "rustix", "socket2", "thiserror"],
    ),
    row(
        "gabion-sim",
        2,
        &[
            "gabion-base",
            "gabion-seam",
            "gabion-wire",
            "gabion-placement",
            "gabion-store",
            "gabion-mirror",
            "gabion-mdm",
            "gabion-target",
            "gabion-node",
        ],
        &["anyhow", "clap", "prost", "serde", "serde_json", "thiserror", "toml", "zerocopy"],
    ),
    // Drives nodes, as `sim` does, without instructions of its own that would distort the counts.
    row("gabion-gate", 2, &["gabion-base", "gabion-seam", "gabion-wire", "gabion-node"], &[]),
    row(
        "gabion-admin",
        3,
        // The node: its handshake and its words for refusals, so that both sides agree.
        &["gabion-base", "gabion-seam", "gabion-wire", "gabion-node"],
        &["anyhow", "humantime", "prost", "serde", "thiserror"],
    ),
    row(
        "gabion-daemon",
        3,
        // The store: a device is examined while no process serves it.
        &["gabion-base", "gabion-seam", "gabion-wire", "gabion-store", "gabion-node", "gabion-rt"],
        &["anyhow", "humantime", "rustix", "serde", "signal-hook", "thiserror", "toml"],
    ),
    row(
        "gabion-daemon",
        3,
        // The store: `content`, `offline` and `inspect` read a device without a node.
        &["gabion-base", "gabion-seam", "gabion-wire", "gabion-store", "gabion-node", "gabion-rt"],
        &["anyhow", "humantime", "rustix", "serde", "signal-hook", "thiserror", "toml"],
    ),
    row(
        "gabion-fleet",
        3,
        // The store: `deploy` and `device` tell what a device holds. The driver: names of backends.
        &[
            "gabion-base",
            "gabion-seam",
            "gabion-wire",
            "gabion-store",
            "gabion-rt",
            "gabion-admin",
            "gabion-daemon",
        ],
        &[
            "anyhow",
            "clap",
            "comfy-table",
            // The latencies of `device probe`.
            "hdrhistogram",
            "rustix",
            "serde",
            "serde_json",
            "signal-hook",
            "toml",
        ],
    ),
    row(
        "gabion-bench",
        3,
        // The node and its driver: a load runs on the shard of an SDC in this process. The store:
        // `bench device` measures it without a node.
        &[
            "gabion-base",
            "gabion-seam",
            "gabion-wire",
            "gabion-store",
            "gabion-node",
            "gabion-rt",
            "gabion-admin",
            "gabion-daemon",
            "gabion-fleet",
        ],
        &[
            "anyhow",
            "clap",
            // Latency percentiles that can be merged over jobs.
            "hdrhistogram",
            "rustix",
            "serde",
            "serde_json",
            "signal-hook",
        ],
    ),
    row(
        "gabion-experiments",
        3,
        &[
            "gabion-base",
            "gabion-rt",
            "gabion-admin",
            "gabion-daemon",
            "gabion-fleet",
            "gabion-bench",
        ],
        &["anyhow", "clap", "rustix", "serde", "serde_json"],
    ),
    row(
        "gabion-server",
        3,
        // The store and the node: `inspect` and `mdm restore` work without a process.
        &[
            "gabion-base",
            "gabion-seam",
            "gabion-wire",
            "gabion-store",
            "gabion-node",
            "gabion-rt",
            "gabion-admin",
            "gabion-daemon",
            "gabion-fleet",
            "gabion-bench",
            "gabion-experiments",
        ],
        &[
            "anyhow",
            "clap",
            "humantime",
            // The screen of `top`.
            "ratatui",
            "serde",
            "serde_json",
        ],
    ),
    row(
        "gabion-capi",
        3,
        // The client's node and its driver: a program links what `gabion sdc run` runs.
        &["gabion-base", "gabion-seam", "gabion-node", "gabion-rt"],
        // libc: error numbers, and a hook that notices a fork. toml: finds the MDM of `gabion up`.
        &["libc", "rustix", "toml"],
    ),
    row("gabion-system-tests", 3, &[], &["anyhow", "fuser", "rustix", "serde_json"]),
    // cbindgen: generates the C header from the Rust source, so that the two can't differ.
    row("xtask", 3, &[], &["anyhow", "cbindgen", "clap", "serde", "serde_json"]),
];

/// Dependencies that would be tempting, each with the reason against it. `*` stands for any crate.
const BANS: &[(&str, &str, &str)] = &[
    (
        "gabion-store",
        "gabion-placement",
        "a store knows no cluster: it must open on its own, offline",
    ),
    ("gabion-store", "gabion-mirror", "a store knows no cluster: it must open on its own, offline"),
    ("gabion-store", "gabion-mdm", "a store knows no cluster: it must open on its own, offline"),
    (
        "gabion-mirror",
        "gabion-store",
        "replication knows no disk format: `node` brings the two together",
    ),
    ("gabion-server", "gabion-sim", "the product must not carry its test bench"),
    ("gabion-server", "gabion-gate", "the product must not carry its test bench"),
    (
        "gabion-gate",
        "gabion-rt",
        "it counts what nodes cost; what the kernel costs differs from machine to machine",
    ),
    (
        "gabion-gate",
        "gabion-sim",
        "sim takes protocol rules out at run time (base::mutant): the counts would be of other code",
    ),
    ("gabion-capi", "gabion-sim", "the product must not carry its test bench"),
    (
        "gabion-capi",
        "gabion-server",
        "programs link it: no command line, no tables, no process that it would start",
    ),
    (
        "gabion-daemon",
        "gabion-admin",
        "a role asks no MDM as an operator does: what it has to know comes to its node",
    ),
    (
        "gabion-system-tests",
        "gabion-*",
        "black box: it sees what a user sees, or it would share our mistakes",
    ),
    (
        "*",
        "tokio",
        "the data path takes no lock and crosses no thread; cores see no clock. Use a Node, or wait for the gateway crate",
    ),
    (
        "*",
        "protobuf",
        "its parser trusts what it reads: only the consensus' library has it, and never for bytes from a link",
    ),
    ("*", "bincode", "it is unmaintained: use zerocopy for fixed layouts, prost for messages"),
    ("*", "rand", "use base::Prng, from a seed that the driver hands out: a run must replay"),
    ("*", "log", "cores emit seam::Note, and the driver decides what becomes of it"),
    ("*", "tracing", "cores emit seam::Note, and the driver decides what becomes of it"),
    ("*", "crc32c", "use base::crc: one checksum for wire and media, twice as fast here"),
];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
    path: Option<String>,
    source: Option<String>,
}

/// Checks all crates of the workspace.
pub fn check() -> Result<Vec<String>> {
    let out = cargo(&["metadata", "--format-version", "1", "--no-deps"]).output()?;
    if !out.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&out.stderr));
    }
    let metadata: Metadata =
        serde_json::from_slice(&out.stdout).context("cargo metadata has changed its shape")?;
    Ok(metadata.packages.iter().flat_map(check_package).collect())
}

fn check_package(package: &Package) -> Vec<String> {
    let Some(row) = TABLE.iter().find(|r| r.name == package.name) else {
        return vec![format!(
            "{}: not in the table of xtask/src/tidy/crates.rs: say there which tier it is in, and in \
             ARCHITECTURE why no existing noun covers it",
            package.name
        )];
    };
    let test_only = |d: &&Dependency| d.kind.as_deref() != Some("dev");
    let mut found = Vec::new();
    for dependency in package.dependencies.iter().filter(test_only) {
        if let Some(why) = breach(row, dependency) {
            found.push(format!("{} must not import {}: {why}", package.name, dependency.name));
        }
    }
    found
}

/// Returns the reason why a crate may not have a dependency, if it may not.
fn breach(row: &Row, dependency: &Dependency) -> Option<String> {
    let name = dependency.name.as_str();
    let applies = |who: &str, whom: &str| {
        (who == "*" || who == row.name)
            && (whom == name || whom.strip_suffix('*').is_some_and(|p| name.starts_with(p)))
    };
    if let Some((.., why)) = BANS.iter().find(|(who, whom, _)| applies(who, whom)) {
        return Some((*why).to_owned());
    }
    if dependency.source.as_deref().is_some_and(|s| s.starts_with("git+")) {
        return Some("only registries are reachable where it is built: no git dependencies".into());
    }
    if dependency.path.is_some() {
        let theirs = TABLE.iter().find(|r| r.name == name).map_or(0, |r| r.tier);
        if row.tier == 2 && theirs == 1 && row.name == "gabion-rt" {
            return Some("rt runs any Node: it must not know one".into());
        }
        if theirs > row.tier {
            return Some(format!("it is of tier {theirs}, above tier {}", row.tier));
        }
        if !row.ours.contains(&name) {
            return Some(NOT_NAMED.into());
        }
    } else if !row.libraries.contains(&name) {
        return Some(NOT_NAMED.into());
    }
    None
}

const NOT_NAMED: &str = "its row in xtask/src/tidy/crates.rs does not name it. If it should, add it \
                         there, in a commit that says why";

#[cfg(test)]
mod tests {
    use super::*;

    fn breaches(who: &str, whom: &str) -> usize {
        let ours = whom.starts_with("gabion-");
        let dependency = Dependency {
            name: whom.into(),
            kind: None,
            path: ours.then(|| format!("/x/{whom}")),
            source: None,
        };
        check_package(&Package { name: who.into(), dependencies: vec![dependency] }).len()
    }

    #[test]
    fn the_table_lets_through_what_it_names_and_nothing_else() {
        for (who, whom) in [("gabion-rt", "gabion-seam"), ("gabion-node", "gabion-mirror")] {
            assert_eq!(breaches(who, whom), 0, "{who} -> {whom}");
        }
        for (who, whom) in [
            ("gabion-rt", "gabion-node"),
            ("gabion-base", "gabion-seam"),
            ("gabion-mirror", "gabion-store"),
            ("gabion-seam", "gabion-rt"),
            ("gabion-system-tests", "gabion-base"),
            ("gabion-mdm", "tokio"),
            ("gabion-mdm", "serde"),
            ("gabion-new", "gabion-base"),
        ] {
            assert_eq!(breaches(who, whom), 1, "{who} -> {whom}");
        }
    }

    #[test]
    fn rows_import_downwards_only() {
        for row in TABLE {
            for name in row.ours {
                let theirs = TABLE.iter().find(|r| r.name == *name).expect("a row for each name");
                assert!(theirs.tier <= row.tier, "{} -> {name}", row.name);
            }
        }
    }
}
