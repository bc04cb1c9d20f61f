//! The rule that every page and file that a text refers to exists.
//!
//! A link of a page has the path from the page. Code in backticks names a source file by the end of
//! its path (`mirror/src/lease.rs`, or just `lease.rs`), so it may not leave out a folder in the
//! middle. `*` stands for any one folder.

use super::{File, prose};
use std::path::{Component, Path, PathBuf};

/// Checks all files.
pub(super) fn check(files: &[File]) -> Vec<String> {
    let mut found = Vec::new();
    for file in files {
        let folder = file.path.parent().unwrap_or(Path::new(""));
        for (i, line) in file.text.lines().enumerate() {
            let links = if file.is("md") { markdown(line, folder) } else { Vec::new() };
            for to in links.into_iter().chain(mentioned(line)) {
                if !to.exists() {
                    found.push(format!(
                        "{}:{}: points to {}, which is not there",
                        file.path.display(),
                        i + 1,
                        to.display()
                    ));
                }
            }
        }
    }
    found.extend(files.iter().filter(|file| file.is("md")).flat_map(|file| sources(file, files)));
    found
}

/// Finds the source files and folders that a page names in backticks, and that are not there.
fn sources(page: &File, files: &[File]) -> Vec<String> {
    let named = prose(&page.text).flat_map(|(number, line)| {
        let code = line.split('`').skip(1).step_by(2);
        code.filter(|code| is_source(code)).map(move |code| (number, code))
    });
    let missing = named.filter(|(_, code)| !files.iter().any(|file| is_end_of(code, &file.path)));
    let finding = |(number, code)| {
        format!("{}:{number}: no source file is named `{code}`", page.path.display())
    };
    missing.map(finding).collect()
}

/// Returns true for the path of a Rust file, or of what lies in a crate's `src`.
fn is_source(code: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-*".contains(c);
    code.chars().all(plain) && (code.ends_with(".rs") || code.contains("/src/"))
}

/// Returns true if a file's path, or that of a folder around it, ends with these parts.
fn is_end_of(named: &str, path: &Path) -> bool {
    let named: Vec<&str> = named.split('/').filter(|part| !part.is_empty()).collect();
    path.ancestors().any(|path| {
        let mut parts = path.iter().rev();
        named
            .iter()
            .rev()
            .all(|name| parts.next().is_some_and(|part| *name == "*" || part == *name))
    })
}

/// Returns the targets of `[text](target)` that are files of the project.
fn markdown(line: &str, folder: &Path) -> Vec<PathBuf> {
    line.split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(to, _)| to.split('#').next().unwrap_or(to))
        .filter(|to| !to.is_empty() && !to.contains("://") && !to.starts_with("mailto:"))
        .map(|to| normal(&folder.join(to)))
        .collect()
}

/// Returns pages named in running text or comments, such as `docs/internals/protocol.md`.
fn mentioned(line: &str) -> Vec<PathBuf> {
    line.split(|c: char| !(c.is_ascii_alphanumeric() || "/._-".contains(c)))
        .map(|word| word.trim_end_matches('.'))
        .filter(|word| word.starts_with("docs/") && word.ends_with(".md") && !word.contains("NNNN"))
        .map(PathBuf::from)
        .collect()
}

/// Removes `.` and `..` from a path.
fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(out.pop()),
            Component::CurDir => {}
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_mentions_are_found() {
        let folder = Path::new("docs/internals");
        let line = "See [a](protocol.md#x), [b](../../README.md) and [c](https://e.org/x.md).";
        let paths: Vec<PathBuf> =
            ["docs/internals/protocol.md", "README.md"].map(Into::into).into();
        assert_eq!(markdown(line, folder), paths);
        // Split so that this file does not match itself.
        let page = |name: &str| format!("{}/{name}", "docs");
        let line =
            format!("// As `{}` and {}. say; not docs/d or x/docs/e", page("a/b.md"), page("c.md"));
        assert_eq!(mentioned(&line), [page("a/b.md"), page("c.md")].map(PathBuf::from));
    }

    #[test]
    fn a_source_that_is_not_there_is_found() {
        let file = |path: &str, text: &str| File::new(path, text);
        let files = ["crates/a/src/b/c.rs", "crates/a/tests/d/e.rs"].map(|path| file(path, ""));
        let findings = |text: &str| sources(&file("a.md", text), &files).len();
        for named in ["crates/a/src/b/c.rs", "a/src/b/c.rs", "b/c.rs", "c.rs", "a/tests/*/e.rs"] {
            assert_eq!(findings(&format!("See `{named}`.")), 0, "{named}");
        }
        for folder in ["crates/a/src/b", "a/src/b/"] {
            assert_eq!(findings(&format!("See `{folder}`.")), 0, "{folder}");
        }
        for gone in ["a/b/c.rs", "a/c.rs", "a/src/e", "d.rs", "c/e.rs", "a/*/c.rs"] {
            assert_eq!(findings(&format!("See `x` and `{gone}`.")), 1, "{gone}");
        }
        let other = "See d.rs, `a.b.rs()`, `src`, `x/y`, [`q`](../q.rs).\n```\n`d.rs`\n```\n";
        assert_eq!(findings(other), 0);
    }
}
