//! One line on the terminal that shows the progress of a measurement; nothing if stderr is a file.

use std::io::{IsTerminal, Write, stderr};

/// The line. It is erased when this is dropped.
#[derive(Debug)]
pub struct Line {
    title: String,
    shown: bool,
}

impl Line {
    /// Shows a line that begins with `title`.
    pub fn new(title: &str) -> Line {
        let line = Line { title: title.to_owned(), shown: stderr().is_terminal() };
        line.say("");
        line
    }

    /// Replaces the text after the title.
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
