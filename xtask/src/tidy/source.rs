//! Splits Rust source into code, comments and the content of literals, line by line.
//!
//! Just enough of the language for the checks of this folder: comments (nested ones, too), strings
//! of all forms, characters and lifetimes. It never fails: a file that does not compile gives
//! lines that mean little.

/// One line of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    /// The code, with spaces in place of comments and of the content of literals.
    pub code: String,
    /// The text of comments, with their slashes.
    pub comment: String,
    /// The content of strings and characters.
    pub literal: String,
}

impl Line {
    /// Returns true if the line holds nothing but a comment.
    pub(super) fn is_comment(&self) -> bool {
        self.code.trim().is_empty() && self.literal.is_empty() && !self.comment.is_empty()
    }

    /// Returns true for an attribute that begins or ends on this line, and holds nothing else.
    pub(super) fn is_attribute(&self) -> bool {
        let code = self.code.trim();
        code.starts_with("#[") || code == ")]"
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Code,
    LineComment,
    /// A block comment inside this many others.
    BlockComment(u32),
    Text,
    /// A raw string with this many hashes.
    RawText(usize),
}

/// Splits a file.
pub(super) fn split(text: &str) -> Vec<Line> {
    let mut state = State::Code;
    let mut lines = Vec::new();
    for line in text.lines() {
        let chars: Vec<char> = line.chars().collect();
        let mut split = Line::default();
        let mut at = 0;
        while at < chars.len() {
            let taken = step(&mut state, &chars, at, &mut split);
            at += taken;
        }
        if state == State::LineComment {
            state = State::Code;
        }
        lines.push(split);
    }
    lines
}

/// Takes the next characters of a line; returns how many.
fn step(state: &mut State, chars: &[char], at: usize, line: &mut Line) -> usize {
    let rest = &chars[at..];
    let starts = |what: [char; 2]| rest.starts_with(&what);
    match *state {
        State::LineComment => take(rest, rest.len(), &mut line.comment),
        State::BlockComment(depth) => {
            let (next, count) = match () {
                () if starts(['*', '/']) && depth == 0 => (State::Code, 2),
                () if starts(['*', '/']) => (State::BlockComment(depth - 1), 2),
                () if starts(['/', '*']) => (State::BlockComment(depth + 1), 2),
                () => (*state, 1),
            };
            *state = next;
            take(rest, count, &mut line.comment)
        }
        State::Text => match rest[0] {
            '\\' => take(rest, 2, &mut line.literal),
            '"' => {
                *state = State::Code;
                take(rest, 1, &mut line.code)
            }
            _ => take(rest, 1, &mut line.literal),
        },
        State::RawText(hashes) => {
            let ends = rest[0] == '"' && rest[1..].iter().take(hashes).all(|c| *c == '#');
            if ends && rest.len() > hashes {
                *state = State::Code;
                return take(rest, 1 + hashes, &mut line.code);
            }
            take(rest, 1, &mut line.literal)
        }
        State::Code => {
            if starts(['/', '/']) {
                *state = State::LineComment;
                return take(rest, 2, &mut line.comment);
            }
            if starts(['/', '*']) {
                *state = State::BlockComment(0);
                return take(rest, 2, &mut line.comment);
            }
            if let Some((hashes, count)) = raw_start(chars, at) {
                *state = State::RawText(hashes);
                return take(rest, count, &mut line.code);
            }
            match rest[0] {
                '"' => {
                    *state = State::Text;
                    take(rest, 1, &mut line.code)
                }
                '\'' => character(rest, line),
                _ => take(rest, 1, &mut line.code),
            }
        }
    }
}

/// Moves characters into one part of a line; returns how many.
fn take(rest: &[char], count: usize, into: &mut String) -> usize {
    let count = count.min(rest.len());
    into.extend(&rest[..count]);
    count
}

/// Takes a character literal, or the apostrophe of a lifetime.
fn character(rest: &[char], line: &mut Line) -> usize {
    let end = match rest.get(1) {
        Some('\\') => rest.iter().skip(3).position(|c| *c == '\'').map(|end| end + 3),
        _ if rest.get(2) == Some(&'\'') => Some(2),
        _ => None,
    };
    let Some(end) = end else { return take(rest, 1, &mut line.code) };
    line.code.push_str("''");
    line.literal.extend(&rest[1..end]);
    end + 1
}

/// Returns the number of hashes and of characters at the start of a raw string, if one starts here.
fn raw_start(chars: &[char], at: usize) -> Option<(usize, usize)> {
    let inside = at > 0 && is_word(chars[at - 1]);
    let mut count = usize::from(matches!(chars[at], 'b' | 'c'));
    if inside || chars.get(at + count) != Some(&'r') {
        return None;
    }
    count += 1;
    let hashes = chars[at + count..].iter().take_while(|c| **c == '#').count();
    (chars.get(at + count + hashes) == Some(&'"')).then_some((hashes, count + hashes + 1))
}

/// Returns true for a character of a name.
pub(super) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns the names and numbers of a text, in order.
pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c| !is_word(c)).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> (String, String, String) {
        let lines = split(text);
        let part = |of: fn(&Line) -> &str| {
            lines.iter().map(of).collect::<Vec<_>>().join("\n").trim_end().to_owned()
        };
        (part(|l| &l.code), part(|l| &l.comment), part(|l| &l.literal))
    }

    #[test]
    fn code_comments_and_literals_are_told_apart() {
        let (code, comment, literal) = of("let a = \"x // y\"; // z \"w\"");
        assert_eq!((&*code, &*comment, &*literal), ("let a = \"\";", "// z \"w\"", "x // y"));
        let (code, comment, _) = of("a /* b /* c */ d\ne */ f");
        assert_eq!((&*code, &*comment), ("a \n f", "/* b /* c */ d\ne */"));
        let (code, comment, literal) = of("r#\"a \" // b\"# + br\"c\\\"; // d");
        assert_eq!((&*code, &*comment), ("r#\"\"# + br\"\";", "// d"));
        assert_eq!(literal, "a \" // bc\\");
        let (code, _, literal) = of("f('\"', '\\'', '\\u{1}', b'/') as &'a str // '");
        assert_eq!((&*code, &*literal), ("f('', '', '', b'') as &'a str", "\"\\'\\u{1}/"));
        let (code, _, literal) = of("let a = \"b\\\n  c // d\";");
        assert_eq!((&*code, &*literal), ("let a = \"\n\";", "b\\\n  c // d"));
    }

    #[test]
    fn a_line_is_a_comment_or_an_attribute_only_as_a_whole() {
        let lines = split("  // a\nf(); // b\n#[cold]\nlet a = \"#[x]\";\n\" // c\"\n");
        assert_eq!(lines.iter().map(Line::is_comment).filter(|c| *c).count(), 1);
        assert_eq!(lines.iter().map(Line::is_attribute).filter(|a| *a).count(), 1);
        assert_eq!(words("let a_b = c1.d;").collect::<Vec<_>>(), ["let", "a_b", "c1", "d"]);
    }
}
