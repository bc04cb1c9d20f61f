//! The rule that a function of more than 70 lines says why it is long: in a comment above it, in
//! the form `// Long: one match over all notes.`

use super::File;
use super::source::{self, Line};

/// The most lines of a function without a reason, from `fn` to its last brace.
const MOST: usize = 70;

/// How the reason begins.
const REASON: &str = "// Long: ";

/// Checks all files.
pub(super) fn check(files: &[File]) -> Vec<String> {
    let checked = files.iter().filter(|f| f.is("rs"));
    checked.flat_map(check_file).collect()
}

fn check_file(file: &File) -> Vec<String> {
    let lines = &file.lines;
    let long = functions(lines).into_iter().filter(|f| f.lines > MOST);
    let without = long.filter(|f| !has_reason(&lines[..f.first]));
    let finding = |f: Function| {
        let (path, number) = (file.path.display(), f.first + 1);
        let Function { name, lines, .. } = f;
        format!(
            "{path}:{number}: `{name}` has {lines} lines: split it, or say why not, above it: \
             `{REASON}one match over all notes.`"
        )
    };
    without.map(finding).collect()
}

/// A function with a body.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Function {
    name: String,
    /// Index of the line with `fn`.
    first: usize,
    /// Number of lines up to the closing brace.
    lines: usize,
}

/// Returns all functions, also those within others.
fn functions(lines: &[Line]) -> Vec<Function> {
    let mut found = Vec::new();
    for (first, line) in lines.iter().enumerate() {
        for (at, _) in line.code.match_indices("fn ") {
            let inside = line.code[..at].chars().next_back().is_some_and(source::is_word);
            let Some(name) = source::words(&line.code[at + 3..]).next().filter(|_| !inside) else {
                continue;
            };
            let named = line.code[at + 3..].trim_start().starts_with(name);
            if let Some(last) = end(lines, first, at).filter(|_| named) {
                found.push(Function { name: name.into(), first, lines: last - first + 1 });
            }
        }
    }
    found
}

/// Returns the index of the line with the closing brace of the function that begins here; `None`
/// if it has no body.
fn end(lines: &[Line], first: usize, at: usize) -> Option<usize> {
    // Of brackets before the body, then of braces.
    let (mut brackets, mut braces) = (0i32, 0i32);
    for (i, line) in lines.iter().enumerate().skip(first) {
        let code = if i == first { &line.code[at..] } else { &line.code[..] };
        for c in code.chars() {
            match c {
                '(' | '[' if braces == 0 => brackets += 1,
                ')' | ']' if braces == 0 => brackets -= 1,
                ';' if braces == 0 && brackets == 0 => return None,
                '{' if braces > 0 || brackets == 0 => braces += 1,
                '}' if braces == 1 => return Some(i),
                '}' if braces > 1 => braces -= 1,
                _ => {}
            }
        }
        if braces == 0 && brackets < 0 {
            return None; // a type, such as that of an argument
        }
    }
    None
}

/// Returns true if the comments and attributes just above say why the function is long.
fn has_reason(above: &[Line]) -> bool {
    let near = above.iter().rev().take_while(|line| line.is_comment() || line.is_attribute());
    let reason = |line: &Line| {
        let why = line.comment.trim().strip_prefix(REASON)?;
        Some(why.trim().len() > 1 && why.ends_with('.'))
    };
    near.filter_map(reason).any(|given| given)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A function of this many lines.
    fn function(above: &str, lines: usize) -> String {
        format!("{above}\n    fn f() {{\n{}    }}\n", "        a();\n".repeat(lines - 2))
    }

    fn findings(text: &str) -> usize {
        check(&[File::new("crates/base/src/x.rs", text)]).len()
    }

    #[test]
    fn a_long_function_needs_a_reason() {
        assert_eq!(findings(&function("", 70)), 0);
        assert_eq!(findings(&function("", 71)), 1);
        for (above, count) in [
            ("// Long: one match over all kinds.", 0),
            ("/// Does it.\n// Long: one match.\n#[cold]", 0),
            ("// Long: one match.\n\n", 1),
            ("// Long:", 1),
            ("// Long: one match", 1),
            ("// It is long.", 1),
            ("/// Long: one match.", 1),
        ] {
            assert_eq!(findings(&function(above, 71)), count, "{above}");
        }
        let file = |path: &str| File::new(path, function("", 99));
        assert_eq!(check(&[file("a.md")]).len(), 0);
    }

    #[test]
    fn functions_are_found_and_measured() {
        let of = |text: &str| {
            let all = functions(&source::split(text)).into_iter();
            all.map(|f| format!("{}:{}", f.name, f.lines)).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of("fn a() {}\npub const fn b(\n  x: [u8; 3],\n) -> u8 {\n 1\n}\n"), "a:1 b:5");
        assert_eq!(of("trait T { fn a(&self); fn b() { \"}\"; }\n}\n"), "b:1");
        assert_eq!(of("fn a() {\n fn b() {\n }\n}\n"), "a:4 b:2");
        assert_eq!(of("// fn a() {}\nlet s = \"fn b() {}\"; type F = fn (u8) -> u8;\n"), "");
        assert_eq!(of("fn a(f: impl Fn() -> u8, g: fn(u8) -> [u8; { 1 }]) {\n}\n"), "a:2");
    }
}
