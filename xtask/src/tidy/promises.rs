//! The rule that each test that the page of promises names exists.
//!
//! The last column of its tables names tests in backticks: a module (`sdc::orphans`), or a test
//! with its module in front (`orphans::name`) or without it. Between two semicolons the word
//! "system" says that the tests are system tests. Paths of files are checked by [`super::links`].
//! Names with other characters are commands, plans or mutants.

use super::File;
use std::path::Path;

/// The page of promises.
const PAGE: &str = "SPEC.md";
/// Parts of a path that a name leaves out.
const LEFT_OUT: &[&str] = &["crates", "src", "tests", "all", "mod", "lib", "main"];

/// A test or module that the page names.
struct Named<'a> {
    line: usize,
    name: &'a str,
    system: bool,
}

/// Checks all files.
pub(super) fn check(files: &[File]) -> Vec<String> {
    let page = files.iter().find(|f| f.path == Path::new(PAGE)).map_or("", |f| &*f.text);
    let all: Vec<Vec<&str>> = files.iter().filter(|f| f.is("rs")).flat_map(places).collect();
    let missing = named(page).filter(|Named { name, system, .. }| {
        let parts: Vec<&str> = name.split("::").filter(|part| !LEFT_OUT.contains(part)).collect();
        let mut there = all.iter().filter(|place| !system || place.first() == Some(&"system"));
        !there.any(|place| place.windows(parts.len().max(1)).any(|part| part == parts))
    });
    let finding =
        |n: Named<'_>| format!("{PAGE}:{}: no test and no module is named `{}`", n.line, n.name);
    missing.map(finding).collect()
}

/// Returns what the last column of the tables names.
fn named(page: &str) -> impl Iterator<Item = Named<'_>> {
    let plain = |code: &&str| {
        let part = |part: &str| part.starts_with(|c: char| c.is_ascii_lowercase());
        let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_:".contains(c);
        code.split("::").all(part) && code.chars().all(word)
    };
    let rows = page.lines().enumerate().filter(|(_, line)| line.starts_with('|'));
    let cells = rows.map(|(i, line)| (i + 1, line.trim_end_matches('|').rsplit('|').next()));
    let lists =
        cells.flat_map(|(line, cell)| cell.unwrap_or_default().split(';').map(move |l| (line, l)));
    lists.flat_map(move |(line, list)| {
        let system = list.split('`').next().is_some_and(|words| words.contains("system"));
        let codes = list.split('`').skip(1).step_by(2).filter(plain);
        codes.map(move |name| Named { line, name, system })
    })
}

/// Returns the module of a file, and each of its tests behind that.
fn places(file: &File) -> Vec<Vec<&str>> {
    let path = file.path.to_str().unwrap_or_default().trim_end_matches(".rs");
    let module: Vec<&str> = path.split('/').filter(|part| !LEFT_OUT.contains(part)).collect();
    let name = |test| str::split_once(test, "fn ")?.1.split('(').next();
    let tests = file.text.split("#[test]\n").skip(1).filter_map(name);
    let with = |name| module.iter().copied().chain([name]).collect();
    std::iter::once(module.clone()).chain(tests.map(with)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_or_a_module_that_is_gone_is_found() {
        let file = |path: &str, text: &str| File::new(path, text);
        let findings = |row: &str| {
            let tests =
                "fn help() {}\n#[test]\nfn it_holds() {}\n    #[test]\n    pub fn two() {}\n";
            let page = file(PAGE, &format!("`gone`\n| `gone` | {row} |\n"));
            check(&[
                file("tests/system/tests/all/lost.rs", tests),
                file("crates/node/tests/all/sdc/mod.rs", tests),
                file("crates/rt/src/link/input.rs", tests),
                page,
            ])
        };
        for fine in [
            "system `lost`, `lost::it_holds`; `it_holds`",
            "`node`: `sdc::two`; `link::input`; `input::tests::two`; `rt::link::input`",
            "`crates/rt/src/gone.rs`, `cargo xtask test`, `older-disk`, `Mutant`",
        ] {
            assert_eq!(findings(fine), [""; 0], "{fine}");
        }
        for wrong in
            ["`gone`", "`lost::gone`", "`lost::help`", "`link::it_holds`", "system `lost`, `node`"]
        {
            assert_eq!(findings(wrong).len(), 1, "{wrong}");
        }
    }
}
