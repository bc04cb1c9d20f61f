//! The rule that every page and file that a text refers to exists.

use super::File;
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
    found
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
}
