//! The rules about the shape of the product's types and modules:
//!
//! - A struct of more than 20 fields, or with more than 60 methods, says why: in a comment above
//!   it, in the form `// Large: the options of a cluster, which are set in one place.`
//! - Methods of one type that call each other in a circle are in one file.
//! - Of the files of a crate, at most three import each other in a circle.
//!
//! A textual check, and so a lenient one: it sees `self.method(` and paths of imports. Inherent
//! methods count, and those of traits don't. Test modules at the end of a file don't count.
//!
//! Imports of the root of a crate don't count for a circle: it lists the modules, and names again
//! what they define. A call of a method needs no import of the file that has it. So the files with
//! methods of a large type import the type, and its own file imports none of them.

use super::File;
use super::source::{self, Line};
use std::collections::{BTreeMap, BTreeSet};

/// The most fields of a struct without a reason.
const FIELDS: usize = 20;

/// The most methods of a type without a reason.
const METHODS: usize = 60;

/// The most files of a circle of imports.
const FILES: usize = 3;

/// How a reason begins.
const REASON: &str = "// Large: ";

/// Crates that judge or measure the product, and so are no part of it.
pub(super) const NO_PRODUCT: &[&str] = &["sim", "gate"];

/// Checks all files.
pub(super) fn check(files: &[File]) -> Vec<String> {
    let mut crates: BTreeMap<String, Vec<Source>> = BTreeMap::new();
    for file in files.iter().filter(|f| f.is("rs")) {
        let parts: Vec<_> = file.path.iter().map(|part| part.to_string_lossy()).collect();
        if let [first, name, src, ..] = &parts[..]
            && first == "crates"
            && src == "src"
            && !NO_PRODUCT.contains(&&**name)
        {
            crates.entry(name.to_string()).or_default().push(Source::new(file));
        }
    }
    let each = crates.values();
    each.flat_map(|sources| [large(sources), knots(sources), circles(sources)].concat()).collect()
}

/// A file of the product.
struct Source {
    /// The path relative to the workspace.
    path: String,
    /// The lines before the tests.
    lines: Vec<Line>,
    /// The structs with named fields.
    structs: Vec<Struct>,
    /// The methods of inherent `impl` blocks.
    methods: Vec<Method>,
}

struct Struct {
    name: String,
    /// Index of the line with `struct`.
    line: usize,
    fields: usize,
}

struct Method {
    /// The type that it belongs to.
    of: String,
    name: String,
    /// The names that follow `self.` or `Self::` in its body, where an argument list follows.
    calls: BTreeSet<String>,
}

impl Source {
    fn new(file: &File) -> Self {
        let mut lines = file.lines.clone();
        let tests = lines.windows(2).position(|pair| {
            pair[0].code.trim() == "#[cfg(test)]" && pair[1].code.starts_with("mod ")
        });
        lines.truncate(tests.unwrap_or(lines.len()));
        let mut source = Self {
            path: file.path.display().to_string(),
            lines,
            structs: Vec::new(),
            methods: Vec::new(),
        };
        source.find_items();
        source
    }

    /// Finds structs and methods by the indentation that rustfmt gives them.
    fn find_items(&mut self) {
        let mut of: Option<String> = None;
        for (at, line) in self.lines.iter().enumerate() {
            let code = line.code.trim_end();
            if let Some(name) = after(code, "struct ").filter(|_| code.ends_with('{')) {
                let body = block(&self.lines, at);
                let fields = body.iter().filter(|line| is_field(&line.code)).count();
                self.structs.push(Struct { name: name.into(), line: at, fields });
            } else if code.starts_with("impl") {
                of = implemented(&self.lines, at);
            } else if let Some(rest) = code.strip_prefix("    ")
                && let (Some(name), Some(of)) = (after(rest, "fn "), &of)
            {
                let calls = calls(block(&self.lines, at));
                self.methods.push(Method { of: of.clone(), name: name.into(), calls });
            }
        }
    }

    /// Returns true if the file defines an item of this name.
    fn defines(&self, name: &str) -> bool {
        const KINDS: [&str; 8] =
            ["struct ", "enum ", "trait ", "fn ", "const ", "static ", "type ", "macro_rules! "];
        let code = || self.lines.iter().map(|line| &line.code[..]);
        code().any(|code| KINDS.iter().any(|kind| after(code, kind) == Some(name)))
    }

    /// Returns the path of the module within the crate: `["client", "route"]`; empty for the root.
    fn module(&self) -> Vec<&str> {
        let within = self.path.split("/src/").nth(1).unwrap_or_default();
        let mut parts: Vec<&str> = within.trim_end_matches(".rs").split('/').collect();
        if matches!(parts.last(), Some(&("mod" | "lib" | "main"))) {
            parts.pop();
        }
        parts
    }
}

/// Returns the name after a keyword of an item that begins in the first column of `code`, with or
/// without words before it, such as `pub(crate) const`.
fn after<'a>(code: &'a str, keyword: &str) -> Option<&'a str> {
    let (before, rest) = code.split_once(keyword)?;
    let of_item = |word: &str| {
        word.starts_with("pub") || matches!(word, "const" | "unsafe" | "extern" | "async" | "\"\"")
    };
    let starts_here = !before.starts_with(char::is_whitespace);
    let named = starts_here && before.split_whitespace().all(of_item);
    source::words(rest).next().filter(|_| named)
}

/// Returns the lines of the item that begins at line `at`, up to the closing brace in its column.
fn block(lines: &[Line], at: usize) -> &[Line] {
    let indent = |line: &Line| line.code.len() - line.code.trim_start().len();
    let column = indent(&lines[at]);
    let ends = |line: &Line| {
        let code = line.code.trim();
        indent(line) == column && (code.starts_with('}') || code.ends_with([';', '}']))
    };
    if ends(&lines[at]) {
        return &lines[at..=at]; // a method on one line
    }
    let more = lines[at + 1..].iter().position(ends).map_or(0, |more| more + 1);
    &lines[at..=at + more]
}

fn is_field(code: &str) -> bool {
    let Some(code) = code.strip_prefix("    ") else { return false };
    let code = match code.strip_prefix("pub") {
        Some(rest) => rest.split_once(' ').map_or("", |(_, rest)| rest),
        None => code,
    };
    code.split_once(':').is_some_and(|(name, rest)| {
        !name.is_empty() && name.chars().all(source::is_word) && !rest.starts_with(':')
    })
}

/// Returns the type whose inherent methods the block at line `at` holds.
fn implemented(lines: &[Line], at: usize) -> Option<String> {
    let head: String = lines[at..].iter().take(5).map(|line| line.code.trim_end()).collect();
    let head = head.split('{').next().unwrap_or_default();
    let mut depth = 0i32;
    let outside = |c: char| {
        depth += i32::from(c == '<') - i32::from(c == '>');
        if depth > 0 || c == '>' { ' ' } else { c }
    };
    let head: String = head.strip_prefix("impl")?.chars().map(outside).collect();
    let mut words = head.split_whitespace();
    let name = words.next()?;
    (words.next() != Some("for")).then(|| name.to_owned())
}

fn calls(body: &[Line]) -> BTreeSet<String> {
    let text: String = body.iter().map(|line| line.code.trim()).collect();
    let mut found = BTreeSet::new();
    for start in ["self.", "Self::"] {
        for (at, _) in text.match_indices(start) {
            let inside = text[..at].chars().next_back().is_some_and(source::is_word);
            let rest = &text[at + start.len()..];
            let name: String = rest.chars().take_while(|c| source::is_word(*c)).collect();
            if !inside && rest[name.len()..].starts_with(['(', ':']) {
                found.insert(name);
            }
        }
    }
    found
}

fn large(sources: &[Source]) -> Vec<String> {
    let mut methods: BTreeMap<(&str, usize), usize> = BTreeMap::new();
    for source in sources {
        for method in &source.methods {
            *methods.entry(definition(sources, source, &method.of)).or_default() += 1;
        }
    }
    let mut found = Vec::new();
    for source in sources {
        for Struct { name, line, fields } in &source.structs {
            let methods = methods.get(&(&source.path[..], *line)).copied().unwrap_or(0);
            let is_large = *fields > FIELDS || methods > METHODS;
            if is_large && !has_reason(&source.lines[..*line]) {
                let (path, number) = (&source.path, line + 1);
                found.push(format!(
                    "{path}:{number}: `{name}` has {fields} fields and {methods} methods: split \
                     it, or say why not, above it: `{REASON}all options of a cluster.`"
                ));
            }
        }
    }
    found
}

/// Returns the path and line of the struct of this name that is nearest to a file: in the file
/// itself, or else in the modules above it.
fn definition<'a>(sources: &'a [Source], from: &Source, name: &str) -> (&'a str, usize) {
    let common = |source: &Source| {
        let (a, b) = (source.module(), from.module());
        a.iter().zip(b).take_while(|(a, b)| **a == *b).count()
    };
    let all = sources.iter().filter_map(|source| {
        let found = source.structs.iter().find(|s| s.name == name)?;
        Some((common(source), &source.path[..], found.line))
    });
    all.max_by_key(|(common, ..)| *common).map_or(("", 0), |(_, path, line)| (path, line))
}

/// Returns true if the comments and attributes just above say why a struct is large.
fn has_reason(above: &[Line]) -> bool {
    let near = above.iter().rev().take_while(|line| line.is_comment() || line.is_attribute());
    let mut reasons = near.filter_map(|line| line.comment.trim().strip_prefix(REASON));
    reasons.any(|why| why.trim().len() > 1)
}

fn knots(sources: &[Source]) -> Vec<String> {
    let mut types: BTreeMap<&str, BTreeMap<&str, (&Source, &Method)>> = BTreeMap::new();
    for source in sources {
        for method in &source.methods {
            types.entry(&method.of).or_default().insert(&method.name, (source, method));
        }
    }
    let mut found = Vec::new();
    for (of, methods) in types {
        let edges = |name: &&str| methods[name].1.calls.iter().map(|call| &call[..]);
        let graph: Graph<&str> =
            methods.keys().map(|name| (*name, edges(name).collect())).collect();
        for knot in rings(&graph) {
            let files: BTreeSet<&str> = knot.iter().map(|name| &methods[name].0.path[..]).collect();
            if files.len() > 1 {
                let (count, first) = (knot.len(), files.first().unwrap_or(&""));
                found.push(format!(
                    "{first}: {count} methods of `{of}` in {} files call each other in a circle: \
                     let one loop call them, and let them return what is to be done next: {}",
                    files.len(),
                    knot.join(", ")
                ));
            }
        }
    }
    found
}

fn circles(sources: &[Source]) -> Vec<String> {
    let modules: Modules = sources.iter().map(|source| (source.module(), source)).collect();
    let imports = |source: &Source| -> BTreeSet<&str> {
        let others = paths(&source.lines).into_iter().filter_map(|path| {
            let file = resolve(&modules, &source.module(), &path)?;
            // The root lists modules, and names again what they define.
            (!file.module().is_empty()).then_some(&file.path[..])
        });
        others.filter(|path| *path != source.path).collect()
    };
    let graph: Graph<&str> = sources.iter().map(|s| (&s.path[..], imports(s))).collect();
    let large = rings(&graph).into_iter().filter(|ring| ring.len() > FILES);
    let finding = |ring: Vec<&str>| {
        format!(
            "{}: {} files import each other in a circle: move what they share below them: {}",
            ring[0],
            ring.len(),
            ring.join(", ")
        )
    };
    large.map(finding).collect()
}

/// The files of a crate by their modules.
type Modules<'a> = BTreeMap<Vec<&'a str>, &'a Source>;

/// A path of names, such as `["super", "op", "Op"]`.
type Names = Vec<String>;

/// Returns the paths that a file names: those of its `use` items, with lists written out, and
/// those that begin with `crate::` or `super::` elsewhere.
fn paths(lines: &[Line]) -> Vec<Names> {
    let mut found = uses(lines, |before| before.is_empty());
    for line in lines {
        for start in ["crate::", "super::"] {
            for (at, _) in line.code.match_indices(start) {
                let before = &line.code[..at];
                let inside = before.ends_with(|c| source::is_word(c) || c == ':');
                if !inside && !before.ends_with("pub(in ") {
                    expand(&[], &line.code[at..], &mut found);
                }
            }
        }
    }
    found
}

/// Returns the paths of the `use` items, with lists written out, that have such words before them.
fn uses(lines: &[Line], chosen: impl Fn(&str) -> bool) -> Vec<Names> {
    let text: String = lines.iter().map(|line| format!("{}\n", line.code)).collect();
    let mut found = Vec::new();
    for (at, _) in text.match_indices("use ") {
        let before = text[..at].rsplit('\n').next().unwrap_or_default().trim();
        let path = text[at + 4..].split_once(';').filter(|_| chosen(before));
        path.iter().for_each(|(path, _)| expand(&[], path, &mut found));
    }
    found.retain(|path| !path.is_empty());
    found
}

/// Reads a path with its lists in braces, and adds each path that it stands for.
fn expand(before: &[String], text: &str, found: &mut Vec<Names>) {
    let text = text.trim();
    let mut names = before.to_vec();
    let mut rest = text;
    loop {
        let end = rest.find(|c| !source::is_word(c)).unwrap_or(rest.len());
        if end > 0 && &rest[..end] != "self" {
            names.push(rest[..end].into());
        }
        match rest[end..].strip_prefix("::") {
            Some(more) => rest = more,
            None => break rest = &rest[end..],
        }
    }
    let Some(list) = rest.strip_prefix('{') else {
        return found.push(names);
    };
    let (mut depth, mut start) = (0, 0);
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                if !list[start..at].trim().is_empty() {
                    expand(&names, &list[start..at], found);
                }
                start = at + 1;
                if c == '}' {
                    return;
                }
            }
            _ => {}
        }
    }
}

/// Returns the file that defines what a path names. A name that a module takes from another one is
/// looked up there.
fn resolve<'a>(modules: &Modules<'a>, from: &[&str], path: &[String]) -> Option<&'a Source> {
    let up = path.iter().take_while(|part| *part == "super").count();
    let mut at = match &path[0][..] {
        "crate" => Vec::new(),
        _ => from[..from.len().checked_sub(up)?].to_vec(),
    };
    let skipped = up.max(usize::from(path[0] == "crate"));
    let mut names = path[skipped..].iter();
    let item = loop {
        let Some(name) = names.next() else { break None };
        at.push(name);
        if !modules.contains_key(&at) {
            at.pop();
            break Some(name);
        }
    };
    let file = *modules.get(&at)?;
    if skipped == 0 && at.len() == from.len() {
        return None; // of another crate
    }
    let Some(item) = item.filter(|item| !file.defines(item)) else { return Some(file) };
    let all = uses(&file.lines, |before| before.is_empty() || before.starts_with("pub"));
    let taken = all.into_iter().find(|path| path.last() == Some(item));
    let found = taken.filter(|taken| taken != path);
    found.and_then(|taken| resolve(modules, &at, &taken)).or(Some(file))
}

type Graph<T> = BTreeMap<T, BTreeSet<T>>;

/// Returns the sets of more than one node in which each node reaches each other one.
fn rings<'a>(graph: &Graph<&'a str>) -> Vec<Vec<&'a str>> {
    let reach: Graph<&str> = graph.keys().map(|node| (*node, reached(graph, node))).collect();
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for (node, to) in &reach {
        let ring: Vec<&str> =
            to.iter().filter(|other| reach[*other].contains(node)).copied().collect();
        if ring.len() > 1 && ring.iter().all(|other| seen.insert(*other)) {
            found.push(ring);
        }
    }
    found
}

/// Returns the nodes that a node reaches in one step or more.
fn reached<'a>(graph: &Graph<&'a str>, node: &'a str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut open = vec![node];
    while let Some(node) = open.pop() {
        for next in graph[node].iter().filter_map(|next| graph.get_key_value(next)) {
            if found.insert(*next.0) {
                open.push(next.0);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let file = |(name, text): &(&str, &str)| File::new(format!("crates/x/src/{name}"), *text);
        check(&files.iter().map(file).collect::<Vec<_>>())
    }

    fn lines(count: usize, line: impl Fn(usize) -> String) -> String {
        (0..count).map(line).collect()
    }

    #[test]
    fn a_large_struct_needs_a_reason() {
        let fields = |above: &str, count| {
            let fields = lines(count, |i| format!("    /// A field.\n    pub(crate) f{i}: u8,\n"));
            format!("{above}pub struct A<T> {{\n{fields}}}\n")
        };
        let methods = |count| {
            let methods = lines(count, |i| format!("    pub const fn m{i}(&self) {{}}\n"));
            format!("struct A<T> {{\n}}\n\nimpl<T: Into<u8>> A<T> {{\n{methods}}}\n")
        };
        for (text, count) in [
            (fields("", 20), 0),
            (fields("", 21), 1),
            (fields("// Large: it has many.\n#[derive(Debug)]\n", 21), 0),
            (fields("// Large: it has many.\n\n", 21), 1),
            (methods(60), 0),
            (methods(61), 1),
            (methods(61).replace("impl<T: Into<u8>> A<T>", "impl B for A<T>"), 0),
            (format!("#[cfg(test)]\nmod tests {{\n{}}}\n", fields("", 21)), 0),
        ] {
            assert_eq!(findings(&[("a.rs", &text)]).len(), count, "{text}");
        }
        // Of two types with one name, the nearer one has the methods.
        let far = ("b.rs", "struct A {\n}\n");
        let near = methods(30);
        let more = near.replace("struct A<T> {\n}\n", "");
        let all = findings(&[far, ("a.rs", &near), ("a/more.rs", &more)]);
        assert_eq!(all, [""; 0]);
        let more = more.replace("fn m0(", "fn n0(").repeat(2);
        let all = findings(&[far, ("a.rs", &near), ("a/more.rs", &more)]);
        assert!(all.len() == 1 && all[0].starts_with("crates/x/src/a.rs:1: `A` has 0 fields"));
    }

    #[test]
    fn methods_that_call_each_other_are_in_one_file() {
        let method = |name: &str, calls: &str| {
            format!("impl A {{\n    fn {name}(&mut self) {{\n        {calls};\n    }}\n}}\n")
        };
        let of = |a: &str, b: &str| findings(&[("a.rs", a), ("b.rs", b)]).len();
        assert_eq!(of(&method("f", "self.g()"), &method("g", "self.f()")), 1);
        assert_eq!(of(&method("f", "Self::g(1)"), &method("g", "self.h.f()")), 0);
        assert_eq!(of(&method("f", "Self::g(1)"), &method("g", "self\n            .f()")), 1);
        assert_eq!(of(&method("f", "self.g()"), &method("g", "other.f()")), 0);
        assert_eq!(of(&method("f", "self.g()"), &method("h", "self.f()")), 0);
        let both = method("f", "self.g()") + &method("g", "self.f()");
        assert_eq!(of(&both, ""), 0);
    }

    #[test]
    fn few_files_import_each_other() {
        let chain = |last: &str| {
            findings(&[
                ("lib.rs", "mod a;\nmod b;\nmod c;\npub use a::A;\n"),
                ("a.rs", "use crate::b::{self, B};\npub struct A {\n}\n"),
                ("b.rs", "use super::c::{\n    C,\n};\n"),
                ("c/mod.rs", "mod d;\nfn f() {\n    d();\n}\n\nuse d::D;\n"),
                ("c/d.rs", last),
            ])
            .len()
        };
        assert_eq!(chain(""), 0);
        for last in [
            "use crate::A;\n",
            "use super::super::a::A;\n",
            "fn f(a: crate::a::A) {}\n",
            "use crate::A;\n\nimpl A {\n    fn f() {}\n}\n",
        ] {
            assert_eq!(chain(last), 1, "{last}");
        }
        assert_eq!(chain("use crate::c::f;\n"), 0, "two files");
        assert_eq!(chain("// crate::a::A\n"), 0);
    }

    #[test]
    fn code_outside_the_product_is_not_checked() {
        let text = format!("struct A {{\n{}}}\n", lines(21, |i| format!("    f{i}: u8,\n")));
        for (path, count) in
            [("crates/x/src/a.rs", 1), ("crates/x/tests/a.rs", 0), ("crates/sim/src/a.rs", 0)]
        {
            let file = File::new(path, text.clone());
            assert_eq!(check(&[file]).len(), count, "{path}");
        }
    }
}
