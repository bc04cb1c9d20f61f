//! The dependencies that each crate may have. The table in ARCHITECTURE.md says which crate imports
//! which other one of the workspace, and why; the table here names the libraries. Every ban has its
//! reason.
//!
//! A dependency that no row names is a finding, and so is a row without its dependency: an edge is
//! a decision, and must be visible. A dependency that no source of the crate names is a finding,
//! too (a textual check).

use super::{File, source};
use crate::steps::cargo;
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// One crate's row.
struct Row {
    name: &'static str,
    /// 0 vocabulary, 1 sans-I/O cores, 2 drivers, 3 edges; see ARCHITECTURE.
    tier: u8,
    /// Allowed libraries.
    libraries: &'static [&'static str],
}

const fn row(name: &'static str, tier: u8, libraries: &'static [&'static str]) -> Row {
    Row { name, tier, libraries }
}

const TABLE: &[Row] = &[
    row("gabion-base", 0, &["crc-fast", "foldhash", "hashbrown"]),
    row("gabion-seam", 0, &[]),
    row("gabion-wire", 0, &["prost", "zerocopy"]),
    row("gabion-placement", 1, &[]),
    row("gabion-store", 1, &["thiserror", "zerocopy"]),
    row("gabion-mirror", 1, &["zerocopy"]),
    row("gabion-mdm", 1, &["prost", "thiserror"]),
    // raft: a pure state machine. slog: raft requires a logger, and gets one that drops everything.
    row("gabion-consensus", 1, &["prost", "raft", "slog"]),
    // md-5, sha2: the digests of CHAP, by which an iSCSI host shows its secret. hmac,
    // crypto-bigint: DH-HMAC-CHAP, the same for an NVMe host.
    row("gabion-target", 1, &["crypto-bigint", "hmac", "md-5", "sha2"]),
    row("gabion-node", 1, &["prost", "thiserror"]),
    row("gabion-rt", 2, &["io-uring", "libc", "rustix", "socket2", "thiserror"]),
    row("gabion-sim", 2, &["anyhow", "clap", "prost"]),
    row("gabion-gate", 2, &[]),
    row("gabion-admin", 3, &["anyhow", "humantime", "prost", "serde", "thiserror"]),
    row(
        "gabion-daemon",
        3,
        &["anyhow", "humantime", "rustix", "serde", "signal-hook", "thiserror", "toml"],
    ),
    // hdrhistogram: the latencies of `device probe`.
    row(
        "gabion-fleet",
        3,
        &[
            "anyhow",
            "clap",
            "comfy-table",
            "hdrhistogram",
            "rustix",
            "serde",
            "serde_json",
            "signal-hook",
            "toml",
        ],
    ),
    row("gabion-attach", 3, &["anyhow", "clap", "rustix", "serde", "serde_json", "signal-hook"]),
    // hdrhistogram: latency percentiles that can be merged over jobs.
    row(
        "gabion-bench",
        3,
        &["anyhow", "clap", "hdrhistogram", "rustix", "serde", "serde_json", "signal-hook"],
    ),
    row("gabion-experiments", 3, &["anyhow", "clap", "rustix", "serde", "serde_json"]),
    // ratatui: the screen of `top`.
    row("gabion", 3, &["anyhow", "clap", "humantime", "ratatui", "serde", "serde_json"]),
    // libc: error numbers, and a hook that notices a fork. toml: finds the MDM of `gabion up`.
    row("gabion-capi", 3, &["libc", "rustix", "toml"]),
    row("gabion-system-tests", 3, &["anyhow", "fuser", "rustix", "serde_json"]),
    // cbindgen: generates the C header from the Rust source, so that the two can't differ.
    row("xtask", 3, &["anyhow", "cbindgen", "clap", "serde", "serde_json"]),
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
    ("gabion", "gabion-sim", "the product must not carry its test bench"),
    ("gabion", "gabion-gate", "the product must not carry its test bench"),
    ("gabion-admin", "gabion-fleet", "a gateway links it: it starts no process and prints nothing"),
    ("gabion-admin", "clap", "a gateway links it: it has no command line"),
    (
        "gabion-daemon",
        "gabion-admin",
        "a role asks no MDM as an operator would: it is a node, and has links of its own",
    ),
    ("gabion-daemon", "gabion-fleet", "a role does not know what started it"),
    ("gabion-fleet", "gabion-bench", "the cluster is measured from outside"),
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
        "gabion-fleet",
        "programs link it: no command line, no tables, no process that it would start",
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
    workspace_root: PathBuf,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    rename: Option<String>,
    kind: Option<String>,
    path: Option<String>,
    source: Option<String>,
}

/// The page with the table of imports.
const PAGE: &str = "ARCHITECTURE.md";
/// The head of that table.
const HEAD: &str = "| crate | imports | because |";

/// One import that the table allows: who may import whom, as names of packages.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Import {
    who: String,
    whom: String,
}

/// Checks all crates of the workspace, of which these are the files.
pub(super) fn check(files: &[File]) -> Result<Vec<String>> {
    let out = cargo(&["metadata", "--format-version", "1", "--no-deps"]).output()?;
    if !out.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&out.stderr));
    }
    let metadata: Metadata =
        serde_json::from_slice(&out.stdout).context("cargo metadata has changed its shape")?;
    let page = std::fs::read_to_string(PAGE).context("can't read ARCHITECTURE.md")?;
    let mut found = check_imports(&metadata.packages, &page);
    found.extend(metadata.packages.iter().flat_map(|package| {
        let folder = package.manifest_path.parent().unwrap_or(Path::new(""));
        check_use(package, folder.strip_prefix(&metadata.workspace_root).unwrap_or(folder), files)
    }));
    Ok(found)
}

fn check_imports(packages: &[Package], page: &str) -> Vec<String> {
    let (allowed, mut found) = imports(page);
    found.extend(packages.iter().flat_map(|package| check_package(package, &allowed)));
    let imported = |import: &&Import| {
        let who = packages.iter().find(|package| package.name == import.who);
        who.is_some_and(|who| shipped(who).any(|d| d.name == import.whom))
    };
    found.extend(allowed.iter().filter(|import| !imported(import)).map(|import| {
        format!("{PAGE}: {} does not import {}: take it out of the table", import.who, import.whom)
    }));
    found
}

/// Returns the imports that the table of a page allows, and what is wrong with its rows.
fn imports(page: &str) -> (Vec<Import>, Vec<String>) {
    let (mut allowed, mut found) = (Vec::new(), Vec::new());
    let rows = page.lines().skip_while(|line| *line != HEAD).skip(2);
    for row in rows.take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [who, whom, why] = cells[..] else {
            found.push(format!("{PAGE}: not a row of three columns: {row}"));
            continue;
        };
        if why.is_empty() {
            found.push(format!("{PAGE}: the row of {who} gives no reason"));
        }
        for whom in whom.split(',') {
            let import = Import { who: package(who), whom: package(whom) };
            if allowed.contains(&import) {
                found.push(format!("{PAGE}: {who} may import {} twice", whom.trim()));
            }
            allowed.push(import);
        }
    }
    if allowed.is_empty() {
        found.push(format!("{PAGE}: there is no table `{HEAD}`"));
    }
    (allowed, found)
}

/// Returns the package of a crate that the table names: the binary's has the name of the product.
fn package(cell: &str) -> String {
    match cell.trim().trim_matches('`') {
        "gabion" => "gabion".to_owned(),
        name => format!("gabion-{name}"),
    }
}

/// Returns the dependencies of a package that are not only for its tests.
fn shipped(package: &Package) -> impl Iterator<Item = &Dependency> {
    package.dependencies.iter().filter(|d| d.kind.as_deref() != Some("dev"))
}

fn check_package(package: &Package, allowed: &[Import]) -> Vec<String> {
    let Some(row) = TABLE.iter().find(|r| r.name == package.name) else {
        return vec![format!(
            "{}: not in the table of xtask/src/tidy/crates.rs: say there which tier it is in, and in \
             ARCHITECTURE why no existing noun covers it",
            package.name
        )];
    };
    let breaches = shipped(package).filter_map(|d| Some((d, breach(row, d, allowed)?)));
    let breaches =
        breaches.map(|(d, why)| format!("{} must not import {}: {why}", row.name, d.name));
    let gone =
        row.libraries.iter().filter(|library| !shipped(package).any(|d| d.name == **library));
    let gone = gone.map(|library| {
        format!(
            "{} does not import {library}: take it out of its row in xtask/src/tidy/crates.rs",
            row.name
        )
    });
    breaches.chain(gone).collect()
}

/// Finds the dependencies that the sources of a package in `folder` do not name: those of its tests
/// anywhere, all others outside of tests, benchmarks and examples.
fn check_use(package: &Package, folder: &Path, files: &[File]) -> Vec<String> {
    let own: Vec<_> = files.iter().filter(|f| f.is("rs") && f.path.starts_with(folder)).collect();
    let is_shipped = |file: &File| {
        let part = file.path.strip_prefix(folder).ok().and_then(|path| path.iter().next());
        !part.is_some_and(|part| ["tests", "benches", "examples"].iter().any(|p| part == *p))
    };
    let unused = package.dependencies.iter().filter(|dependency| {
        let in_tests = dependency.kind.as_deref() == Some("dev");
        let name = dependency.rename.as_ref().unwrap_or(&dependency.name).replace('-', "_");
        !own.iter().any(|file| (in_tests || is_shipped(file)) && names(&file.lines, &name))
    });
    let finding = |d: &Dependency| {
        format!(
            "{}: no source names {}: take it out of the manifest, or make it a dev-dependency if \
             tests do",
            folder.join("Cargo.toml").display(),
            d.name
        )
    };
    unused.map(finding).collect()
}

/// Returns true if code names this crate: in a path, or in `use` or `extern crate`.
fn names(lines: &[source::Line], name: &str) -> bool {
    lines.iter().any(|line| {
        line.code.match_indices(name).any(|(at, _)| {
            let (before, after) = (&line.code[..at], &line.code[at + name.len()..]);
            let whole = !before.ends_with(source::is_word) && !after.starts_with(source::is_word);
            let path = after.starts_with("::") && !before.ends_with("::");
            whole && (path || before.ends_with("use ") || before.ends_with("extern crate "))
        })
    })
}

/// Returns the reason why a crate may not have a dependency, if it may not.
fn breach(row: &Row, dependency: &Dependency, allowed: &[Import]) -> Option<String> {
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
        let theirs = tier(name);
        if theirs > row.tier {
            return Some(format!("it is of tier {theirs}, above tier {}", row.tier));
        }
        if !allowed.iter().any(|import| import.who == row.name && import.whom == name) {
            return Some(format!(
                "no row of the table in {PAGE} allows it. If it should, add it there, with the \
                 reason"
            ));
        }
    } else if !row.libraries.contains(&name) {
        return Some(
            "its row in xtask/src/tidy/crates.rs does not name it. If it should, add it there, in a \
             commit that says why"
                .into(),
        );
    }
    None
}

fn tier(name: &str) -> u8 {
    TABLE.iter().find(|r| r.name == name).map_or(0, |r| r.tier)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = include_str!("../../../ARCHITECTURE.md");

    fn importing(who: &str, whom: &str) -> Package {
        let dependency = Dependency {
            name: whom.into(),
            rename: whom.strip_prefix("gabion-").map(Into::into),
            kind: None,
            path: whom.starts_with("gabion").then(|| format!("/x/{whom}")),
            source: None,
        };
        let manifest_path = "/x/crates/a/Cargo.toml".into();
        Package { name: who.into(), manifest_path, dependencies: vec![dependency] }
    }

    fn breaches(who: &str, whom: &str) -> usize {
        let found = check_package(&importing(who, whom), &imports(OURS).0);
        found.iter().filter(|finding| !finding.contains("does not import")).count()
    }

    #[test]
    fn the_table_lets_through_what_it_names_and_nothing_else() {
        for (who, whom) in [
            ("gabion-rt", "gabion-seam"),
            ("gabion-node", "gabion-mirror"),
            ("gabion-fleet", "gabion-daemon"),
            ("gabion", "gabion-experiments"),
        ] {
            assert_eq!(breaches(who, whom), 0, "{who} -> {whom}");
        }
        for (who, whom) in [
            ("gabion-rt", "gabion-node"),
            ("gabion-base", "gabion-seam"),
            ("gabion-mirror", "gabion-store"),
            ("gabion-seam", "gabion-rt"),
            ("gabion-admin", "gabion-fleet"),
            ("gabion-daemon", "gabion-admin"),
            ("gabion-bench", "gabion-experiments"),
            ("gabion-fleet", "gabion"),
            ("gabion-system-tests", "gabion-base"),
            ("gabion-mdm", "tokio"),
            ("gabion-mdm", "serde"),
            ("gabion-new", "gabion-base"),
        ] {
            assert_eq!(breaches(who, whom), 1, "{who} -> {whom}");
        }
    }

    #[test]
    fn rows_import_downwards_only_and_name_crates() {
        let (allowed, found) = imports(OURS);
        assert_eq!(found, [""; 0]);
        for Import { who, whom } in allowed {
            let named = |name: &str| TABLE.iter().any(|r| r.name == name);
            assert!(named(&who) && named(&whom) && tier(&whom) <= tier(&who), "{who} -> {whom}");
        }
    }

    #[test]
    fn a_row_without_its_import_or_its_reason_is_found() {
        let page = |rows: &str| format!("# A\n\n{HEAD}\n|---|---|---|\n{rows}\n\n| `x` |\n");
        let packages = [importing("gabion-seam", "gabion-base")];
        let findings = |rows: &str| check_imports(&packages, &page(rows)).len();
        assert_eq!(findings("| `seam` | `base` | times |"), 0);
        assert_eq!(findings("| `seam` | `base` | |"), 1);
        assert_eq!(findings("| `seam` | `base`, `base` | times |"), 1);
        assert_eq!(findings("| `seam` | `base`, `wire` | times |"), 1);
        assert_eq!(findings("| `seam` | `base` |"), 3, "no row, so no table, and no import");
        assert_eq!(check_imports(&packages, "").len(), 2);
    }

    #[test]
    fn a_library_that_a_row_names_and_a_manifest_does_not_is_found() {
        let found = check_package(&importing("gabion-mirror", "gabion-base"), &imports(OURS).0);
        assert!(found.len() == 1 && found[0].starts_with("gabion-mirror does not import zerocopy"));
    }

    #[test]
    fn a_dependency_that_no_source_names_is_found() {
        let unused = |kind: Option<&str>, whom: &str, path: &str, text: &str| {
            let mut package = importing("gabion-a", whom);
            package.dependencies[0].kind = kind.map(Into::into);
            check_use(&package, Path::new("crates/a"), &[File::new(path, text)]).len()
        };
        let used = |whom: &str, text: &str| 1 - unused(None, whom, "crates/a/src/lib.rs", text);
        for text in ["use base::Id;", "fn f() -> base::Id {}", "use base;", "extern crate base;"] {
            assert_eq!(used("gabion-base", text), 1, "{text}");
        }
        for text in
            ["// base::Id", "\"base::Id\"", "let base = 1;", "use a::base::B;", "my_base::C"]
        {
            assert_eq!(used("gabion-base", text), 0, "{text}");
        }
        assert_eq!(used("io-uring", "use io_uring::IoUring;"), 1);
        let text = "use base::Id;";
        assert_eq!(unused(None, "gabion-base", "crates/a/tests/b.rs", text), 1);
        assert_eq!(unused(Some("dev"), "gabion-base", "crates/a/tests/b.rs", text), 0);
        assert_eq!(unused(Some("dev"), "gabion-base", "crates/b/tests/b.rs", text), 1);
    }
}
