//! The rule that a `pub` item is used, and not by tests alone: rustc does not tell, because another
//! crate might use it.
//!
//! A textual check of functions, methods, constants, types and traits. An item is unused if its
//! name occurs nowhere in the workspace but where it is defined, where it is implemented (`impl
//! Name`) and where it is passed on (`pub use`). It is there for tests alone if its name occurs
//! elsewhere only in tests and benchmarks. Comments do not count. So an unused item that shares its
//! name with a used one is not found.

use super::File;
use super::shape::NO_PRODUCT;
use super::source::{self, Line};
use std::collections::BTreeMap;

/// Items that are used where this check can't see it, each with the reason.
const USED: &[(&str, &str)] =
    &[("NBD_REP_ERR_POLICY", "an entry of the list of errors of the NBD protocol")];

/// Items of the product that only tests use, each with the reason.
const FOR_TESTS: &[(&str, &str)] = &[
    ("DEADLINE", "the contract of drivers is a test of each of them"),
    ("SCENARIOS", "the contract of drivers is a test of each of them"),
    ("MIRROR", "a list of mutants is for the tests that catch them"),
    ("NODE", "a list of mutants is for the tests that catch them"),
    ("NBD_OPT_EXTENDED_HEADERS", "an entry of the list of options of the NBD protocol"),
];

/// The C header: whatever it declares is for programs in C.
const FOR_C: &str = include_str!("../../../crates/capi/include/gabion.h");

/// Checks all files.
pub(super) fn check(files: &[File]) -> Vec<String> {
    check_with(files, USED, FOR_TESTS, FOR_C)
}

/// How often names occur.
type Count<'a> = BTreeMap<&'a str, usize>;

type Reasons<'a> = &'a [(&'a str, &'a str)];

/// A `pub` item.
struct Item<'a> {
    file: &'a File,
    /// Number of its line.
    line: usize,
    name: &'a str,
    /// It belongs to the product, and so it is not for tests alone.
    product: bool,
}

fn check_with(files: &[File], used: Reasons, for_tests: Reasons, for_c: &str) -> Vec<String> {
    let (mut all, mut product) = (Count::new(), Count::new());
    source::words(for_c).for_each(|word| {
        *all.entry(word).or_default() += 1;
        *product.entry(word).or_default() += 1;
    });
    let mut items = Vec::new();
    for file in files.iter().filter(|f| f.is("rs")) {
        let tests = first_line_of_tests(file);
        let mut state = State::Code;
        for (i, line) in file.lines.iter().enumerate() {
            let names = state.uses(&line.code).into_iter();
            for word in names.chain(source::words(&line.literal)) {
                *all.entry(word).or_default() += 1;
                *product.entry(word).or_default() += usize::from(i < tests);
            }
            let product = i < tests && is_product(file);
            items.extend(item(line).map(|name| Item { file, line: i + 1, name, product }));
        }
    }
    let mut defined: [Count; 2] = Default::default();
    for item in &items {
        *defined[0].entry(item.name).or_default() += 1;
        *defined[1].entry(item.name).or_default() += usize::from(item.product);
    }
    let [defined, of_product] = &defined;
    let named = |list: Reasons, name: &str| list.iter().any(|(other, _)| *other == name);
    let unused = |name: &str| all.get(name) == defined.get(name);
    // An item of the same name in a test counts as a use, and can't hide more than that.
    let only_tested = |name: &str| product.get(name) <= of_product.get(name) && !unused(name);
    let mut found = Vec::new();
    for Item { file, line, name, product } in &items {
        let path = file.path.display();
        if !file.path.starts_with("crates") {
            continue;
        }
        if unused(name) && !named(used, name) {
            found.push(format!("{path}:{line}: `{name}` is used nowhere: delete it"));
        } else if *product && only_tested(name) && !named(for_tests, name) {
            found.push(format!(
                "{path}:{line}: only tests use `{name}`: let them do without it, or say in \
                 xtask/src/tidy/unused.rs why the product has it"
            ));
        }
    }
    let gone = |list: Reasons, holds: &dyn Fn(&str) -> bool| {
        let known = |name: &str| defined.contains_key(name) && holds(name);
        let gone = list.iter().filter(|(name, _)| !known(name));
        gone.map(|(name, _)| name.to_string()).collect::<Vec<_>>()
    };
    let gone = [gone(used, &unused), gone(for_tests, &only_tested)].concat();
    found.extend(gone.iter().map(|name| {
        format!("xtask/src/tidy/unused.rs: `{name}` is used, or gone: take it out of the list")
    }));
    found
}

/// Returns true for the source of a crate of the product.
fn is_product(file: &File) -> bool {
    let mut parts = file.path.iter().map(|part| part.to_string_lossy());
    let first = parts.next();
    let of_product = |name: &str| !NO_PRODUCT.contains(&name);
    first.is_some_and(|first| first == "crates")
        && parts.next().is_some_and(|name| of_product(&name))
}

/// Returns the index of the first line that is part of a test: that of the file, or of its module
/// of tests.
fn first_line_of_tests(file: &File) -> usize {
    let in_folder = file.path.iter().any(|part| part == "tests" || part == "benches");
    if in_folder || file.path.ends_with("tests.rs") {
        return 0;
    }
    let module = file.lines.windows(2).position(|pair| {
        let next = pair[1].code.trim_end();
        pair[0].code.trim() == "#[cfg(test)]" && next.contains("mod ") && next.ends_with('{')
    });
    module.unwrap_or(file.lines.len())
}

/// Where a line begins.
#[derive(Clone, Copy, PartialEq)]
enum State {
    Code,
    /// In the head of an `impl`, in this many pairs of angle brackets.
    Impl(i32),
    /// In a `pub use`.
    PubUse,
}

impl State {
    /// Returns the names that a line uses: not what it implements or passes on.
    fn uses<'a>(&mut self, code: &'a str) -> Vec<&'a str> {
        let text = code.trim_start();
        if *self == State::Code {
            if text.starts_with("impl ") || text.starts_with("impl<") {
                *self = State::Impl(0);
            } else if text.starts_with("pub use ") {
                *self = State::PubUse;
            }
        }
        match *self {
            State::Code => source::words(code).collect(),
            State::PubUse => {
                let renamed = text.split([',', '{', '}', ';']).filter(|part| part.contains(" as "));
                let found = renamed.flat_map(source::words).collect();
                if text.contains(';') {
                    *self = State::Code;
                }
                found
            }
            State::Impl(depth) => self.implements(depth, code),
        }
    }

    /// Returns the names in the angle brackets of the head of an `impl`, and those behind the head.
    /// A line with `where` ends the head.
    fn implements<'a>(&mut self, mut depth: i32, code: &'a str) -> Vec<&'a str> {
        if code.trim() == "where" {
            *self = State::Code;
            return Vec::new();
        }
        let (head, rest) = code.split_once('{').map_or((code, None), |(a, b)| (a, Some(b)));
        let mut found = Vec::new();
        for part in head.split_inclusive(['<', '>']) {
            if depth > 0 {
                found.extend(source::words(part));
            }
            let arrow = part.ends_with("->");
            depth += i32::from(part.ends_with('<')) - i32::from(part.ends_with('>') && !arrow);
        }
        *self = State::Impl(depth);
        if let Some(rest) = rest {
            found.extend(source::words(rest));
            *self = State::Code;
        }
        found
    }
}

/// Returns the name of the `pub` item that this line defines.
fn item(line: &Line) -> Option<&str> {
    const KINDS: [&str; 7] = ["fn", "static", "const", "struct", "enum", "trait", "type"];
    let code = line.code.trim_start().strip_prefix("pub ")?;
    let mut words = code.split_whitespace();
    let kind = words.find(|w| !matches!(*w, "async" | "unsafe" | "extern" | "\"\""))?;
    let name = match (kind, words.next()?) {
        ("const", "fn") | ("const", "unsafe") => words.find(|w| *w != "fn")?,
        (kind, name) if KINDS.contains(&kind) => name,
        _ => return None,
    };
    source::words(name).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(texts: &[(&str, &str)], used: &[(&str, &str)]) -> Vec<String> {
        let file = |(path, text): &(&str, &str)| File::new(*path, *text);
        check_with(&texts.iter().map(file).collect::<Vec<_>>(), used, &[], "int for_c(void);")
    }

    #[test]
    fn unused_items_are_found() {
        let code = "pub fn a() {}\npub const B: u8 = 1;\n    pub const unsafe fn c(&self) {}\n";
        let base = ("crates/base/src/lib.rs", code);
        assert_eq!(findings(&[base], &[]).len(), 3);
        assert!(findings(&[base], &[])[2].starts_with("crates/base/src/lib.rs:3: `c` is used"));
        let user = ("crates/rt/src/x.rs", "// a B c\nfn f() { a(); g(\"{B}\"); x.c() }\n");
        assert_eq!(findings(&[base, user], &[]), [""; 0]);
        let comment = ("crates/base/tests/x.rs", "// a B c\n");
        assert_eq!(findings(&[base, comment], &[]).len(), 3);
        let other = ("crates/sim/src/lib.rs", "pub fn a() {}\n");
        assert_eq!(findings(&[base, other], &[]).len(), 4, "two definitions are no use");
    }

    #[test]
    fn what_only_tests_name_is_found() {
        let base = ("crates/base/src/lib.rs", "pub fn a() {}\npub struct B;\n");
        let test = ("crates/base/tests/x.rs", "fn f(b: B) { a() }\npub fn a() {}\n");
        let found = findings(&[base, test], &[]);
        assert_eq!(found.len(), 2);
        assert!(found[0].starts_with("crates/base/src/lib.rs:1: only tests use `a`"), "{found:?}");
        let inside = "fn c() {}\n#[cfg(test)]\nmod tests {\n    fn f(b: B) { a() }\n}\n";
        assert_eq!(findings(&[base, ("crates/rt/src/x.rs", inside)], &[]).len(), 2);
        let user = ("crates/rt/src/x.rs", "#[cfg(test)]\nmod tests;\nfn f(b: B) { a() }\n");
        assert_eq!(findings(&[base, user, test], &[]), [""; 0]);
        let judge = ("crates/sim/src/lib.rs", base.1);
        let test = ("crates/sim/tests/x.rs", test.1);
        assert_eq!(findings(&[judge, test], &[]), [""; 0], "the simulator is a test");
        let files = [File::new(base.0, base.1), File::new(test.0, test.1)];
        let listed = [("a", "a reason"), ("B", "a reason"), ("c", "a reason")];
        assert_eq!(check_with(&files, &[], &listed, "").len(), 1, "there is no `c`");
    }

    #[test]
    fn an_implementation_and_passing_on_are_no_use() {
        let code = "pub struct A<T>(T);\npub trait B {}\nimpl<T: C> B for A<T>\nwhere\n    \
                    T: D,\n{\n}\nimpl A<E> { fn f() {} }\npub use a::{A, B};\n";
        let base = ("crates/base/src/a.rs", code);
        assert_eq!(findings(&[base], &[]).len(), 2);
        let others = "pub trait C {}\npub trait D {}\npub struct E;\n";
        assert_eq!(findings(&[base, ("crates/base/src/b.rs", others)], &[]).len(), 2);
        let user = ("crates/rt/src/x.rs", "fn f(a: A<u8>) where u8: B {}\n");
        assert_eq!(findings(&[base, user], &[]), [""; 0]);
        let user = ("crates/rt/src/x.rs", "pub use a::{\n    A as C,\n    B as D,\n};\n");
        assert_eq!(findings(&[base, user], &[]), [""; 0]);
    }

    #[test]
    fn only_public_items_count() {
        let code = "pub(crate) fn a() {}\nfn b() {}\nstruct C;\npub use d::E;\npub mod f;\n\
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
