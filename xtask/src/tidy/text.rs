//! Rules for single files.

use super::File;
use std::path::Path;

/// The maximum length of a source file in lines: a longer file describes two things.
const MAX_LINES: usize = 800;

/// Crates that need `unsafe`, for shared buffers without copies, system calls, and pointers from C.
const UNSAFE: &[&str] =
    &["crates/seam/src/lib.rs", "crates/rt/src/lib.rs", "crates/capi/src/lib.rs"];

/// Crates that the simulator runs: they have no clock, no I/O and no threads.
const NO_STD: &[&str] =
    &["base", "seam", "wire", "placement", "store", "mirror", "mdm", "target", "node"];

/// Macros that mark unfinished work. The strings are split so that this file does not match itself.
const UNFINISHED: &[&str] =
    &[concat!("to", "do!("), concat!("db", "g!("), concat!("unimple", "mented!(")];

/// Calls that create, replace or rename a file without making that survive a power cut. Split
/// likewise.
const WRITES: &[&str] = &[
    concat!("fs::wr", "ite("),
    concat!("fs::ren", "ame("),
    concat!("fs::co", "py("),
    concat!("File::cre", "ate("),
    concat!("create_", "dir"),
    concat!(".cre", "ate(true)"),
    concat!(".create_", "new(true)"),
    concat!("OFlags::CRE", "ATE"),
];

/// The file that makes these calls for all others, and files that don't write a cluster's files:
/// devices with flushes of their own, kernel settings, scratch files of benchmarks, and developer
/// tools.
const WRITERS: &[&str] = &[
    "crates/daemon/src/files.rs",
    "crates/rt/src/device.rs",
    "crates/fleet/src/cgroup.rs",
    "crates/fleet/src/device/scratch.rs",
    "crates/bench/src/device.rs",
    "crates/bench/src/disk/fio.rs",
    "crates/sim/src/main.rs",
];

/// Checks all files.
pub(super) fn check(files: &[File]) -> Vec<String> {
    files.iter().flat_map(check_file).collect()
}

fn check_file(file: &File) -> Vec<String> {
    let mut found = Vec::new();
    let mut find = |line: usize, what: &str| {
        found.push(format!("{}:{line}: {what}", file.path.display()));
    };
    let lines = file.text.lines().count();
    for (i, line) in file.text.lines().enumerate() {
        if line.ends_with([' ', '\t']) && !(file.is("md") && line.ends_with("  ")) {
            find(i + 1, "ends with a space");
        }
    }
    if !file.text.is_empty() && !file.text.ends_with('\n') {
        find(lines, "the last line has no end");
    }
    if file.is("rs") {
        if !file.text.starts_with("//!") {
            find(
                1,
                "a file opens with `//!` lines: what it is, its invariants, what it doesn't do",
            );
        }
        if lines > MAX_LINES {
            find(lines, "more than 800 lines: find the second noun in it and move that out");
        }
        for (i, line) in file.text.lines().enumerate() {
            if UNFINISHED.iter().any(|m| line.contains(m)) {
                find(i + 1, "unfinished work: finish it, or say in an issue what is missing");
            }
        }
        if is_shipped(&file.path) && !WRITERS.iter().any(|w| file.path == Path::new(w)) {
            let tests = concat!("#[cfg(te", "st)]");
            let shipped = file.text.lines().take_while(|line| !line.contains(tests));
            for (i, _) in shipped.enumerate().filter(|(_, l)| WRITES.iter().any(|w| l.contains(w)))
            {
                find(
                    i + 1,
                    "files are written by `crates/daemon/src/files.rs`: others would not survive a power cut",
                );
            }
        }
        if is_crate_root(&file.path) {
            check_crate_root(file, &mut find);
        }
    }
    found
}

/// Returns true for the source of a package in `crates`.
fn is_shipped(path: &Path) -> bool {
    path.starts_with("crates") && path.iter().nth(2).is_some_and(|part| part == "src")
}

/// Returns true for the `lib.rs` or `main.rs` of a package in `crates`.
fn is_crate_root(path: &Path) -> bool {
    path.starts_with("crates") && (path.ends_with("src/lib.rs") || path.ends_with("src/main.rs"))
}

fn check_crate_root(file: &File, find: &mut impl FnMut(usize, &str)) {
    let forbids = file.text.contains("#![forbid(unsafe_code)]");
    if !forbids && !UNSAFE.iter().any(|u| file.path == Path::new(u)) {
        find(
            1,
            "#![forbid(unsafe_code)] is missing: only seam (buffers), rt (system calls) and capi (pointers from C) go without",
        );
    }
    let mut parts = file.path.iter().map(|p| p.to_string_lossy());
    let name = parts.nth(1).unwrap_or_default();
    if NO_STD.contains(&name.as_ref()) {
        if !file.text.contains("#![no_std]") {
            find(
                1,
                "#![no_std] is missing: it keeps clocks, sockets and threads out of reach of what the simulator runs",
            );
        }
        if file.text.lines().any(|l| l.trim() == "extern crate std;") {
            find(1, "`extern crate std` gives back what #![no_std] keeps out of reach");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> usize {
        check(&[File::new(path, text)]).len()
    }

    #[test]
    fn each_rule_finds_its_breach() {
        let fine = "//! A core.\n#![no_std]\n#![forbid(unsafe_code)]\n";
        assert_eq!(findings("crates/mdm/src/lib.rs", fine), 0);
        assert_eq!(findings("crates/mdm/src/lib.rs", &fine.replace("#![no_std]\n", "")), 1);
        assert_eq!(
            findings("crates/mdm/src/lib.rs", &fine.replace("#![forbid(unsafe_code)]\n", "")),
            1
        );
        assert_eq!(findings("crates/mdm/src/lib.rs", &format!("{fine}extern crate std;\n")), 1);
        assert_eq!(findings("crates/rt/src/lib.rs", "//! A driver.\n"), 0);
        assert_eq!(findings("crates/rt/src/x.rs", "use a;\n"), 1);
        assert_eq!(findings("crates/rt/src/x.rs", "//! X. \n"), 1);
        assert_eq!(findings("crates/rt/src/x.rs", "//! X."), 1);
        assert_eq!(findings("crates/rt/src/x.rs", &format!("//! X.\n{}", "\n".repeat(800))), 1);
        assert_eq!(
            findings("crates/rt/src/x.rs", &format!("//! X.\nfn f() {{ {}) }}\n", UNFINISHED[0])),
            1
        );
        for write in WRITES {
            let text = format!("//! X.\nfn f() {{ {write} }}\n");
            assert_eq!(findings("crates/fleet/src/x.rs", &text), 1, "{write}");
            assert_eq!(findings("crates/daemon/src/files.rs", &text), 0, "{write}");
            assert_eq!(findings("crates/fleet/tests/x.rs", &text), 0, "{write}");
            let test = format!("//! X.\n#[cfg(test)]\nmod tests {{ {write} }}\n");
            assert_eq!(findings("crates/fleet/src/x.rs", &test), 0, "{write}");
        }
    }
}
