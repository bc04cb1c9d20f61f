//! The rule that each protocol rule and invariant that a text names is defined, and that each one
//! that is defined is named somewhere.
//!
//! The page of the rules has one heading for each of them, and the name is its first word. A name
//! is a whole word in running text: in a comment of a Rust file, or in a page outside of code.
//! Identifiers, types, strings and anything in backticks are no names.
//!
//! A text that names all of them, as `R1 to R9`, has to name the last one that is defined.

use super::{File, prose, source};
use std::collections::BTreeMap;
use std::path::Path;

/// The page that defines them.
const PAGE: &str = "docs/internals/rules.md";

/// A name in a text: the kind and the number.
type Name = (char, u8);

/// Checks all files.
pub(super) fn check(files: &[File]) -> Vec<String> {
    let Some(page) = files.iter().find(|f| f.path == Path::new(PAGE)) else {
        return vec![format!("{PAGE}: it is not there: it states every rule and invariant")];
    };
    let mut found = Vec::new();
    // Where each one is defined, and how often it is named elsewhere.
    let mut defined: BTreeMap<Name, (usize, usize)> = BTreeMap::new();
    for (i, line) in page.text.lines().enumerate() {
        let Some(name) = heading(line) else { continue };
        if defined.insert(name, (i + 1, 0)).is_some() {
            found.push(format!("{PAGE}:{}: {} is defined twice", i + 1, show(name)));
        }
    }
    for file in files {
        let texts = running_text(file);
        found.extend(wrong_ranges(file, &texts, &defined));
        for (number, text) in texts {
            for Found { name, counts } in names(&text) {
                match defined.get_mut(&name) {
                    Some((_, uses)) if file.path != page.path => *uses += usize::from(counts),
                    Some(_) => {}
                    None => found.push(format!(
                        "{}:{number}: names {}, which {PAGE} does not define",
                        file.path.display(),
                        show(name)
                    )),
                }
            }
        }
    }
    let unused = defined.iter().filter(|(_, (_, uses))| *uses == 0);
    found.extend(unused.map(|(name, (line, _))| {
        format!("{PAGE}:{line}: {} is named nowhere else: code, or a page, keeps it", show(*name))
    }));
    found
}

/// Returns a finding for each `R1 to R9` of which the end is not the last rule. It may be on two
/// lines.
fn wrong_ranges(
    file: &File,
    texts: &[(usize, String)],
    defined: &BTreeMap<Name, (usize, usize)>,
) -> Vec<String> {
    let mut words: Vec<(usize, &str)> = Vec::new();
    for (number, text) in texts {
        let plain = text.split_whitespace().filter(|word| !matches!(*word, "//" | "///" | "//!"));
        words.extend(plain.map(|word| (*number, word)));
    }
    let name = |word: &str| parse(word.trim_matches(|c| !source::is_word(c)));
    let last = |kind: char| defined.keys().filter(|name| name.0 == kind).max().copied();
    let ranges = words.windows(3).filter(|three| three[1].1 == "to");
    let ranges =
        ranges.filter_map(|three| Some((three[0].0, name(three[0].1)?, name(three[2].1)?)));
    let wrong = ranges.filter(|(_, from, to)| from.1 == 1 && last(from.0) != Some(*to));
    let path = file.path.display();
    wrong
        .map(|(number, from, to)| {
            let last = last(from.0).map_or_else(|| "none".to_owned(), show);
            format!("{path}:{number}: {} to {}: the last one is {last}", show(from), show(to))
        })
        .collect()
}

fn show((kind, number): Name) -> String {
    format!("{kind}{number}")
}

/// Returns the name that a heading defines.
fn heading(line: &str) -> Option<Name> {
    let title = line.strip_prefix('#')?.trim_start_matches('#').strip_prefix(' ')?;
    let word = title.split_whitespace().next()?;
    parse(word.trim_end_matches([':', '.']))
}

fn parse(word: &str) -> Option<Name> {
    let kind = word.chars().next().filter(|c| matches!(c, 'R' | 'I'))?;
    let digits = &word[1..];
    let plain = digits.bytes().all(|b| b.is_ascii_digit()) && !digits.starts_with('0');
    let number = digits.parse().ok().filter(|number| *number < 100 && plain)?;
    Some((kind, number))
}

/// Returns the lines of running text, with their numbers, without code in backticks.
fn running_text(file: &File) -> Vec<(usize, String)> {
    if file.is("rs") {
        let lines = file.lines.iter().enumerate();
        return lines.map(|(i, line)| (i + 1, without_code(&line.comment))).collect();
    }
    if file.is("md") {
        return prose(&file.text).map(|(i, line)| (i, without_code(line))).collect();
    }
    Vec::new()
}

fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// A name that a text has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Found {
    name: Name,
    /// The text is about this one. An end of a range only has to be defined.
    counts: bool,
}

fn names(text: &str) -> Vec<Found> {
    let mut found = Vec::new();
    let mut before = ' ';
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c| !source::is_word(c)).unwrap_or(rest.len());
        if end == 0 {
            before = first;
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let (word, after) = rest.split_at(end);
        // A part of a path, of a version or of a member access is no name.
        let apart = !matches!(before, '.' | '/' | '\\' | '$' | '#' | '<');
        if let Some(name) = parse(word).filter(|_| apart) {
            let dash = |c: char| matches!(c, '-' | '\u{2013}');
            let range = dash(before) || after.starts_with(dash);
            found.push(Found { name, counts: !range });
        }
        before = ' ';
        rest = after;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(text: &str) -> Vec<String> {
        names(text).iter().map(|f| show(f.name)).collect()
    }

    #[test]
    fn names_are_whole_words_of_running_text() {
        assert_eq!(named("(R2), R13; rule R4: R11's I9"), ["R2", "R13", "R4", "R11", "I9"]);
        assert_eq!(named("R0 R01 R100 R2D2 I/O MIR1 R_1 x.R1 a/R2 R1x <R1>"), [""; 0]);
        let range: Vec<bool> = names("R1-R9, R4").iter().map(|f| f.counts).collect();
        assert_eq!(range, [false, false, true]);
    }

    fn file(path: &str, text: &str) -> File {
        File::new(path, text)
    }

    fn findings(page: &str, others: &[(&str, &str)]) -> Vec<String> {
        let mut files = vec![file(PAGE, page)];
        files.extend(others.iter().map(|(path, text)| file(path, text)));
        check(&files)
    }

    #[test]
    fn a_name_without_a_definition_is_found_and_so_is_a_definition_without_a_name() {
        let page = "# Rules\n## R1 Ack\nAs in I2.\n### I2: a register\n";
        let code = ("crates/a/src/lib.rs", "//! Keeps R1.\nfn f() {} // I2\n");
        assert_eq!(findings(page, &[code]), [""; 0]);
        // Only the page itself names I2.
        let code = ("crates/a/src/lib.rs", "//! Keeps R1.\n");
        let found = findings(page, &[code]);
        assert!(found.len() == 1 && found[0].starts_with(&format!("{PAGE}:4: I2 is named")));
        for (path, text) in [
            ("crates/a/src/lib.rs", "//! Keeps R1, I2\n/// and R3.\n"),
            ("pages/a.md", "R1, I2\n- and R3\n"),
        ] {
            let found = findings(page, &[(path, text)]);
            assert!(found.len() == 1 && found[0].starts_with(&format!("{path}:2: names R3")));
        }
        assert_eq!(findings("## R1 a\n## R1 b\n", &[("a.md", "R1")]).len(), 1, "defined twice");
        assert_eq!(check(&[file("a.md", "R1")]).len(), 1, "no page");
    }

    #[test]
    fn a_range_from_the_first_one_ends_at_the_last_one() {
        let page = "# R1\n# R2\n# R3\n# I1\n";
        let names = ("a.md", "R1, R2, R3, I1");
        let found = |text: &str| findings(page, &[names, ("a.rs", text)]);
        assert_eq!(found("// (R1 to\n// R3), and R1 to R3. R2 to R3, I1 to I1.\n"), [""; 0]);
        assert_eq!(found("// The rules (R1 to R2)\n"), ["a.rs:1: R1 to R2: the last one is R3"]);
        assert_eq!(found("//! R1 to\n//! R2, R3\n").len(), 1);
    }

    #[test]
    fn code_strings_and_data_name_nothing() {
        let page = "# R1\n";
        let code = "// R1\nstruct R3<I4>(R5);\nfn f() { g(\"R6\", 'R') } // `R7`\n";
        let text = "R1 and `R3`\n```\nR4\n```\n";
        assert_eq!(findings(page, &[("a.rs", code), ("a.md", text), ("a.toml", "R9")]), [""; 0]);
    }
}
