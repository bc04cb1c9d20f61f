//! What a run did, with times: the commands that it ran, and the steps that it took itself.

use std::time::Instant;

/// The lines so far.
#[derive(Clone, Debug)]
pub(crate) struct Transcript {
    begun: Instant,
    lines: Vec<(f64, String)>,
}

impl Transcript {
    /// Begins; times count from now.
    pub(crate) fn begin() -> Transcript {
        Transcript { begun: Instant::now(), lines: Vec::new() }
    }

    /// Adds a line with the present time.
    pub(crate) fn add(&mut self, line: impl Into<String>) {
        self.lines.push((self.seconds(), line.into()));
    }

    /// Returns the seconds since the beginning.
    pub(crate) fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// Returns `transcript.txt`.
    pub(crate) fn text(&self) -> String {
        self.lines.iter().map(|(at, line)| format!("{at:>9.2} s  {line}\n")).collect()
    }
}
