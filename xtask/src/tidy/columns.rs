//! The rule that running text is at most 100 columns wide, in comments and in pages.
//!
//! rustfmt keeps code within that; it leaves comments as they are.

use super::{File, prose};

/// The most columns of a line.
const MOST: usize = 100;

/// Checks all files.
pub(super) fn check(files: &[File]) -> Vec<String> {
    files.iter().flat_map(check_file).collect()
}

fn check_file(file: &File) -> Vec<String> {
    let columns = |line: &str| line.chars().count();
    let long: Vec<usize> = if file.is("rs") {
        let lines = file.text.lines().zip(&file.lines).enumerate();
        let long = lines.filter(|(_, (line, parts))| {
            columns(line) > MOST && (parts.is_comment() || !parts.comment.is_empty())
        });
        long.map(|(i, _)| i + 1).collect()
    } else if file.is("md") {
        let long = prose(&file.text).filter(|(_, line)| {
            columns(line) > MOST && !line.trim_start().starts_with('|') && can_break(line)
        });
        long.map(|(number, _)| number).collect()
    } else {
        Vec::new()
    };
    let finding = |number: usize| {
        let path = file.path.display();
        format!("{path}:{number}: more than {MOST} columns of text: break the line")
    };
    long.into_iter().map(finding).collect()
}

/// Returns true if the line has a space at which it could end earlier.
fn can_break(line: &str) -> bool {
    let indent = line.len() - line.trim_start_matches([' ', '-', '*', '>']).len();
    line[indent..].contains(' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> usize {
        check(&[File::new(path, text)]).len()
    }

    #[test]
    fn long_comments_are_found_and_long_code_is_not() {
        let words = "word ".repeat(25);
        for (line, count) in [
            (format!("    /// {words}"), 1),
            (format!("let a = 1; // {words}"), 1),
            (format!("/* a\n{words} */"), 1),
            (format!("let a = \"{words}\";"), 0),
            (format!("let a = \"// {words}\";"), 0),
            (format!("// {}", "x".repeat(97)), 0),
            (format!("// {}", "\u{e4}".repeat(97)), 0),
            (format!("// {}", "x".repeat(98)), 1),
        ] {
            assert_eq!(findings("crates/base/src/x.rs", &line), count, "{line}");
        }
        assert_eq!(findings("a.toml", &format!("# {words}")), 0);
    }

    #[test]
    fn pages_are_checked_but_for_tables_drawings_and_what_has_no_space() {
        let words = "word ".repeat(25);
        let url = format!("https://e.org/{}", "x".repeat(100));
        for (text, count) in [
            (words.clone(), 1),
            (format!("- {words}"), 1),
            (format!("| {words} |"), 0),
            (format!("```text\n{words}\n```\n{words}"), 1),
            (url.clone(), 0),
            (format!("  - {url}"), 0),
            (format!("see {url}"), 1),
        ] {
            assert_eq!(findings("pages/a.md", &text), count, "{text}");
        }
    }
}
