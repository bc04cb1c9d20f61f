//! A table of a report. A figure has two columns, the published one and ours, and a cell says where
//! its value comes from: a published figure is stated or derived, and ours is measured or computed.

use super::csv;
use super::number::{escape, short};
use serde::Serialize;
use std::fmt::Write;

/// A table.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Table {
    /// Name of its CSV file.
    pub id: &'static str,
    pub title: String,
    pub columns: Vec<&'static str>,
    /// Each as long as `columns`.
    pub rows: Vec<Vec<Cell>>,
    /// How to read it.
    pub note: String,
}

/// A cell.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Cell {
    Text(String),
    /// Stated by the publication, or measured here.
    Number(f64),
    /// Computed from stated figures; never measured.
    Derived(f64),
    /// There is no such figure.
    None,
}

impl Cell {
    /// Creates a cell of a value that may be missing.
    pub(crate) fn maybe(value: Option<f64>) -> Cell {
        value.map_or(Cell::None, Cell::Number)
    }

    fn html(&self) -> String {
        match self {
            Cell::Text(text) => escape(text),
            Cell::Number(n) => short(*n),
            Cell::Derived(n) => format!("{} <span class=\"soft\">derived</span>", short(*n)),
            Cell::None => "-".into(),
        }
    }

    fn plain(&self) -> String {
        match self {
            Cell::Text(text) => text.clone(),
            Cell::Number(n) | Cell::Derived(n) => n.to_string(),
            Cell::None => String::new(),
        }
    }
}

impl Serialize for Cell {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Cell::Text(text) => to.serialize_str(text),
            Cell::Number(n) | Cell::Derived(n) => to.serialize_f64(*n),
            Cell::None => to.serialize_none(),
        }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell::Text(text)
    }
}

impl From<f64> for Cell {
    fn from(n: f64) -> Cell {
        Cell::Number(n)
    }
}

impl Table {
    /// Returns the table as HTML, with its title.
    pub(crate) fn html(&self) -> String {
        let mut out = format!("<h2>{}</h2>\n", escape(&self.title));
        out += "<div class=\"scroll\">\n<table>\n<tr>";
        self.columns.iter().for_each(|c| _ = write!(out, "<th>{}</th>", escape(c)));
        out += "</tr>\n";
        for row in &self.rows {
            out += "<tr>";
            row.iter().for_each(|cell| _ = write!(out, "<td>{}</td>", cell.html()));
            out += "</tr>\n";
        }
        out += "</table>\n</div>\n";
        if !self.note.is_empty() {
            let _ = writeln!(out, "<p class=\"soft\">{}</p>", escape(&self.note));
        }
        out
    }

    /// Returns the table as CSV. Its last column names the columns whose value in this row is
    /// derived.
    pub(crate) fn csv(&self) -> String {
        let head = self.columns.iter().copied().chain(["derived"]);
        let mut out = csv::line(head);
        for row in &self.rows {
            let cells = row.iter().zip(&self.columns);
            let derived: Vec<&str> = cells
                .filter(|(c, _)| matches!(c, Cell::Derived(_)))
                .map(|(_, name)| *name)
                .collect();
            let mut fields: Vec<String> = row.iter().map(Cell::plain).collect();
            fields.push(derived.join("; "));
            out += &csv::line(fields.iter().map(String::as_str));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_derived_figure_is_marked_on_the_page_and_in_the_file() {
        let table = Table {
            id: "t",
            title: "a < b".into(),
            columns: vec!["nodes", "published", "ours"],
            rows: vec![
                vec!["3".into(), Cell::Derived(720e3), 5.0.into()],
                vec!["x, \"y\"".into(), 31e6.into(), Cell::None],
            ],
            note: "how".into(),
        };
        let html = table.html();
        assert!(html.contains("720 K <span class=\"soft\">derived</span>"), "{html}");
        assert!(html.contains("a &lt; b") && html.contains("<td>-</td>"), "{html}");
        let lines =
            "nodes,published,ours,derived\n3,720000,5,published\n\"x, \"\"y\"\"\",31000000,,\n";
        assert_eq!(table.csv(), lines);
    }
}
