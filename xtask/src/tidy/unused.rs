//! The rule that a `pub` function, method or constant is used: rustc does not tell, because another
//! crate might use it.
//!
//! A textual check: an item is unused if its name occurs nowhere in the workspace but where it is
//! defined, tests and benchmarks included. Comments do not count. So an unused item that shares its
//! name with a used one is not found.

use super::File;
use super::source::{self, Line};
use std::collections::BTreeMap;

/// Items that are used where this check can't see it, each with the reason.
const USED: &[(&str, &str)] =
    &[("NBD_REP_ERR_POLICY", "an entry of the list of errors of the NBD protocol")];

/// The C header: whatever it declares is for programs in C.
const FOR_C: &str = include_str!("../../../crates/capi/include/gabion.h");

/// Checks all files.
pub(super) fn check(files: &[File]) -> Vec<String> {
    check_with(files, USED, FOR_C)
}

fn check_with(files: &[File], used: &[(&str, &str)], for_c: &str) -> Vec<String> {
    let mut count: BTreeMap<String, usize> = BTreeMap::new();
    let mut add = |text: &str| {
        for word in source::words(text) {
            *count.entry(word.to_owned()).or_default() += 1;
        }
    };
    add(for_c);
    let mut items = Vec::new();
    for file in files.iter().filter(|f| f.is("rs")) {
        let lines = &file.lines;
        for line in lines {
            add(&line.code);
            add(&line.literal);
        }
        let theirs = lines.iter().enumerate().filter_map(|(i, line)| Some((i + 1, item(line)?)));
        items.extend(theirs.map(|(number, name)| (file, number, name.to_owned())));
    }
    let mut defined: BTreeMap<&str, usize> = BTreeMap::new();
    items.iter().for_each(|(.., name)| *defined.entry(name).or_default() += 1);
    let named = |name: &str| used.iter().any(|(other, _)| *other == name);
    let unused = |name: &str| count.get(name) == defined.get(name);
    let mut found = Vec::new();
    for (file, number, name) in &items {
        let looked_at = file.path.starts_with("crates");
        if looked_at && unused(name) && !named(name) {
            found.push(format!(
                "{}:{number}: `{name}` is used nowhere: delete it",
                file.path.display()
            ));
        }
    }
    let known = |name: &str| defined.contains_key(name) && unused(name);
    found.extend(used.iter().filter(|(name, _)| !known(name)).map(|(name, _)| {
        format!("xtask/src/tidy/unused.rs: `{name}` is used, or gone: take it out of the list")
    }));
    found
}

/// Returns the name of the `pub` function or constant that this line defines.
fn item(line: &Line) -> Option<&str> {
    let code = line.code.trim_start().strip_prefix("pub ")?;
    let mut words = code.split_whitespace();
    let kind = words.find(|w| !matches!(*w, "async" | "unsafe" | "extern" | "\"\""))?;
    let name = match (kind, words.next()?) {
        ("const", "fn") | ("const", "unsafe") => words.find(|w| *w != "fn")?,
        ("fn" | "static", name) | ("const", name) => name,
        _ => return None,
    };
    source::words(name).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(texts: &[(&str, &str)], used: &[(&str, &str)]) -> Vec<String> {
        let file = |(path, text): &(&str, &str)| File::new(*path, *text);
        check_with(&texts.iter().map(file).collect::<Vec<_>>(), used, "int for_c(void);")
    }

    #[test]
    fn unused_items_are_found() {
        let code = "pub fn a() {}\npub const B: u8 = 1;\n    pub const unsafe fn c(&self) {}\n";
        let base = ("crates/base/src/lib.rs", code);
        assert_eq!(findings(&[base], &[]).len(), 3);
        assert!(findings(&[base], &[])[2].starts_with("crates/base/src/lib.rs:3: `c` is used"));
        let test = ("crates/base/tests/x.rs", "// a B c\nfn f() { a(); g(\"{B}\"); x.c() }\n");
        assert_eq!(findings(&[base, test], &[]), [""; 0]);
        let comment = ("crates/base/tests/x.rs", "// a B c\n");
        assert_eq!(findings(&[base, comment], &[]).len(), 3);
        let other = ("crates/sim/src/lib.rs", "pub fn a() {}\n");
        assert_eq!(findings(&[base, other], &[]).len(), 4, "two definitions are no use");
    }

    #[test]
    fn only_public_functions_and_constants_count() {
        let code = "pub(crate) fn a() {}\nfn b() {}\npub struct C;\npub use d::E;\npub mod f;\n\
                    pub extern \"C\" fn for_c() {}\n// pub fn g() {}\n";
        assert_eq!(findings(&[("crates/capi/src/lib.rs", code)], &[]), [""; 0]);
        assert_eq!(findings(&[("xtask/src/main.rs", "pub fn a() {}\n")], &[]), [""; 0]);
    }

    #[test]
    fn an_exception_has_to_be_one() {
        let base = ("crates/base/src/lib.rs", "pub fn a() {}\n");
        assert_eq!(findings(&[base], &[("a", "a reason")]), [""; 0]);
        let user = ("crates/rt/src/lib.rs", "fn f() { a() }\n");
        assert_eq!(findings(&[base, user], &[("a", "a reason")]).len(), 1);
        assert_eq!(findings(&[base], &[("a", "a reason"), ("b", "a reason")]).len(), 1);
    }
}
