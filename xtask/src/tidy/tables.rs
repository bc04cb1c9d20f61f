//! The rule that a table which lists all variants of an enumeration, or all modules of a crate, is
//! complete, and lists nothing else.

use super::File;
use super::source;
use std::collections::BTreeSet;
use std::path::Path;

/// A page with a table of all variants of an enumeration. The names are the first words in
/// backticks in the first column.
struct Table {
    page: &'static str,
    /// How the head of the table begins.
    head: &'static str,
    source: &'static str,
    /// The line with which the enumeration begins.
    begins: &'static str,
}

const TABLES: &[Table] = &[
    Table {
        page: "docs/internals/protocol.md",
        head: "| kinds |",
        source: "crates/wire/src/header.rs",
        begins: "Kind: u8 {",
    },
    Table {
        page: "docs/internals/protocol/sessions.md",
        head: "| refusal |",
        source: "crates/wire/src/control.rs",
        begins: "pub enum RefusalCode {",
    },
    Table {
        page: "docs/internals/protocol/mdm.md",
        head: "| command |",
        source: "crates/mdm/src/command.rs",
        begins: "pub enum Command {",
    },
];

/// How the head of a crate's table of its modules begins.
const MODULES: &str = "//! | file |";

/// Checks all files.
pub(super) fn check(files: &[File]) -> Vec<String> {
    let tables = TABLES.iter().flat_map(|table| check_table(files, table));
    let crates = files.iter().filter(|f| f.path.ends_with("src/lib.rs"));
    tables.chain(crates.flat_map(check_modules)).collect()
}

fn check_table(files: &[File], table: &Table) -> Vec<String> {
    let Table { page, head, source, begins } = table;
    let text = |path: &str| {
        let file = files.iter().find(|f| f.path == Path::new(path));
        file.map_or("", |file| &*file.text)
    };
    let listed = rows(text(page).lines(), head);
    let file = files.iter().find(|f| f.path == Path::new(source));
    let defined = file.map_or_else(BTreeSet::new, |file| variants(file, begins));
    if listed.is_empty() || defined.is_empty() {
        return vec![format!("{page}: no table `{head}`, or no `{begins}` in {source}")];
    }
    let missing = defined
        .difference(&listed)
        .map(|name| format!("{page}: the table `{head}` lacks `{name}`, which {source} defines"));
    let gone = listed.difference(&defined).map(|name| {
        format!("{page}: the table `{head}` has `{name}`, which {source} does not define")
    });
    missing.chain(gone).collect()
}

/// Returns the names in the first column of the table with this head.
fn rows<'a>(lines: impl Iterator<Item = &'a str>, head: &str) -> BTreeSet<&'a str> {
    let table = lines.skip_while(|line| !line.starts_with(head)).skip(2);
    let rows = table.map_while(|line| line.trim_start_matches("//! ").strip_prefix('|'));
    let quoted = |row: &'a str| {
        let cell = row.split('|').next().unwrap_or_default();
        cell.split('`').skip(1).step_by(2).filter_map(|name| source::words(name).next())
    };
    rows.flat_map(quoted).collect()
}

/// Returns the variants of the enumeration that begins with this line: rustfmt puts each at the
/// start of a line of its own.
fn variants<'a>(file: &'a File, begins: &str) -> BTreeSet<&'a str> {
    let indent = |code: &str| code.len() - code.trim_start().len();
    let mut lines = file.lines.iter().map(|line| &*line.code);
    let Some(first) = lines.find(|code| code.trim() == begins) else { return BTreeSet::new() };
    let inside = lines.take_while(|code| code.trim() != "}" || indent(code) > indent(first));
    let variants = inside.filter(|code| {
        let starts = code.trim_start().starts_with(|c: char| c.is_uppercase());
        starts && indent(code) == indent(first) + 4
    });
    variants.filter_map(|code| source::words(code).next()).collect()
}

/// Checks the table of modules of a crate that has one.
fn check_modules(file: &File) -> Vec<String> {
    let listed = rows(file.text.lines(), MODULES);
    if listed.is_empty() {
        return Vec::new();
    }
    const KINDS: [&str; 3] = ["mod ", "pub mod ", "pub(crate) mod "];
    let modules = file.lines.iter().filter_map(|line| {
        let code = line.code.trim_end().strip_suffix(';')?;
        KINDS.iter().find_map(|kind| code.strip_prefix(kind))
    });
    let missing = modules.filter(|name| !listed.contains(name));
    let path = file.path.display();
    missing.map(|name| format!("{path}: the table `{MODULES}` lacks `{name}`")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: Table =
        Table { page: "a.md", head: "| kinds |", source: "a.rs", begins: "pub enum Kind {" };

    fn findings(code: &str, page: &str) -> usize {
        check_table(&[File::new("a.rs", code), File::new("a.md", page)], &TABLE).len()
    }

    #[test]
    fn a_table_lists_each_variant_and_nothing_else() {
        let code = "pub enum Kind {\n    /// `Not` one.\n    #[prost(message, tag = \"1\")]\n    \
                    Read(Read),\n    Write {\n        Len: u8,\n    },\n    Zero = 3,\n}\n\
                    enum Other {\n    Not,\n}\n";
        let page = "| `Not` |\n\n| kinds | a |\n|---|---|\n| `Read{a}`, `Write` | `Not` |\n\
                    | `Zero` | |\n\n| `Not` | |\n";
        assert_eq!(findings(code, page), 0);
        assert_eq!(findings(code, &page.replace("| `Zero` | |\n", "")), 1);
        assert_eq!(findings(code, &page.replace("`Zero`", "`Zero`, `Seal`")), 1);
        assert_eq!(findings(code, "no table"), 1);
        assert_eq!(findings("", page), 1);
    }

    #[test]
    fn the_table_of_a_crate_lists_its_modules() {
        let table = "//! | file | contents |\n//! |---|---|\n//! | `a`, `b` | `c` |\nmod a;\n";
        let findings = |text: String| check_modules(&File::new("crates/x/src/lib.rs", text)).len();
        assert_eq!(findings(format!("{table}pub mod b;\n")), 0);
        assert_eq!(findings(format!("{table}pub mod b;\nmod c;\n")), 1);
        assert_eq!(findings("mod a;\n".into()), 0, "no table");
    }
}
