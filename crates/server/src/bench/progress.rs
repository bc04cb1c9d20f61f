//! One line on the terminal that says how far a measurement is; nothing when stderr is a file.

use std::io::{IsTerminal, Write, stderr};

/// The line; wiped when dropped.
#[derive(Debug)]
pub struct Line {
    title: String,
    shown: bool,
}

impl Line {
    /// A line that begins with `title`.
    pub fn new(title: &str) -> Line {
        let line = Line { title: title.to_owned(), shown: stderr().is_terminal() };
        line.say("");
        line
    }

    /// Replaces what it says.
    pub fn say(&self, text: &str) {
        if self.shown {
            let _ = write!(stderr(), "\r\x1b[K{}  {text}", self.title);
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}
