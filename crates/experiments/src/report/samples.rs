//! `samples.csv`: what was seen every second.

use super::csv;

/// The samples of a run.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Samples {
    pub columns: Vec<&'static str>,
    /// Each as long as `columns`.
    pub rows: Vec<Vec<String>>,
}

impl Samples {
    /// Returns the file.
    pub(crate) fn csv(&self) -> String {
        let rows = self.rows.iter().map(|row| csv::line(row.iter().map(String::as_str)));
        csv::line(self.columns.iter().copied()) + &rows.collect::<String>()
    }
}
