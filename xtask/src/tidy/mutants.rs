//! The rule that each mutant has a row in the page of the simulator, and that a mutant of a
//! protocol rule is named where the page of the rules proves that rule. A row of a mutant that is
//! gone is a finding, too.

use super::File;
use std::path::Path;

/// The file that defines the mutants.
const MUTANTS: &str = "crates/base/src/mutant.rs";
/// The page with a row for each.
const ROWS: &str = "docs/internals/simulator.md";
/// The head of the table of those rows.
const HEAD: &str = "| rule removed |";
/// The page with a section for each rule.
const RULES: &str = "docs/internals/rules.md";

/// A switch: its name, and the rule that its comment begins with (`R3`, `Store`), if it has one.
#[derive(PartialEq, Eq, Debug)]
struct Mutant<'a> {
    name: &'a str,
    rule: Option<&'a str>,
}

/// Checks all files.
pub(super) fn check(files: &[File]) -> Vec<String> {
    let text = |path: &str| {
        let file = files.iter().find(|file| file.path == Path::new(path));
        file.map_or("", |file| &*file.text)
    };
    check_texts(text(MUTANTS), text(ROWS), text(RULES))
}

fn check_texts(source: &str, rows: &str, rules: &str) -> Vec<String> {
    let mutants = mutants(source);
    if mutants.is_empty() {
        return vec![format!("{MUTANTS}: it defines no mutant")];
    }
    let mut found = Vec::new();
    for mutant in &mutants {
        let quoted = format!("`{}`", mutant.name);
        if !rows.lines().any(|line| line.starts_with('|') && line.contains(&quoted)) {
            found.push(format!("{ROWS}: no row says what catches {quoted}"));
        }
        let section = mutant.rule.and_then(|rule| section(rules, rule));
        if section.is_some_and(|section| !section.contains(&quoted)) {
            let rule = mutant.rule.unwrap_or_default();
            found.push(format!("{RULES}: {rule} does not name its mutant {quoted}"));
        }
    }
    let table = rows.lines().skip_while(|line| !line.starts_with(HEAD)).skip(2);
    let named = table.take_while(|line| line.starts_with('|')).filter_map(first_code);
    let gone = named.filter(|name| !mutants.iter().any(|mutant| mutant.name == *name));
    found.extend(gone.map(|name| format!("{ROWS}: `{name}` is no mutant: delete its row")));
    found
}

/// Returns the variants of the enumeration.
fn mutants(source: &str) -> Vec<Mutant<'_>> {
    let body = source.lines().map(str::trim).skip_while(|line| *line != "pub enum Mutant {");
    let (mut mutants, mut rule, mut commented) = (Vec::new(), None, false);
    for line in body.skip(1).take_while(|line| *line != "}") {
        if let Some(comment) = line.strip_prefix("/// ") {
            let first = !std::mem::replace(&mut commented, true);
            if first {
                rule = comment.split_once(": ").map(|(rule, _)| rule);
            }
        } else if let Some(name) = line.split([' ', ',']).next().filter(|name| !name.is_empty()) {
            mutants.push(Mutant { name, rule: rule.take() });
            commented = false;
        }
    }
    mutants
}

/// Returns the section of a rule: up to the next heading.
fn section<'a>(rules: &'a str, rule: &str) -> Option<&'a str> {
    let (_, rest) = rules.split_once(&format!("\n### {rule} "))?;
    Some(rest.split("\n#").next().unwrap_or(rest))
}

/// Returns the first code in backticks of a line.
fn first_code(line: &str) -> Option<&str> {
    line.split('`').nth(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "\
/// Not this one.
pub enum Mutant {
    /// R1: nothing is
    /// kept: ever.
    Forget = 1,
    /// Kept for nobody.
    Keep,
}
impl Mutant {}
";

    #[test]
    fn variants_have_the_rule_that_their_comment_begins_with() {
        let mutant = |name, rule| Mutant { name, rule };
        assert_eq!(mutants(SOURCE), [mutant("Forget", Some("R1")), mutant("Keep", None)]);
    }

    #[test]
    fn a_mutant_without_its_row_or_its_rule_is_found() {
        let row =
            |rows: &str| format!("`Keep` is no row.\n\n{HEAD} a |\n|---|\n{rows}\n\n| `X` |\n");
        let (forget, keep) = ("| R1 `Forget` | `a.rs` |\n", "| - `Keep` | |");
        let rules = "# Rules\n### R1 A\nProof: `Forget`.\n### R2 B\n";
        let findings = |rows: &str, rules: &str| check_texts(SOURCE, &row(rows), rules).len();
        assert_eq!(findings(&format!("{forget}{keep}"), rules), 0);
        assert_eq!(findings(keep, rules), 1);
        assert_eq!(findings("", rules), 2);
        assert_eq!(findings(&format!("{forget}{keep}"), "\n### R1 A\n### R2 B\n`Forget`"), 1);
        assert_eq!(findings(&format!("{forget}{keep}\n| `Gone` | |"), rules), 1);
    }
}
