//! The report of an experiment: one page, and the same for programs.
//!
//! `report.html` needs nothing but a browser. `report.json` has the figures, claims and tables;
//! `claims.csv`, `tables/` and `figures/` have them as CSV; `samples.csv` has what was seen every
//! second, and `transcript.txt` what was done. Nothing is written before the run has ended, so an
//! interrupted run leaves an earlier report as it was.

pub(crate) mod axis;
pub(crate) mod bars;
pub(crate) mod claim;
mod csv;
pub(crate) mod figure;
pub(crate) mod machine;
pub(crate) mod number;
pub(crate) mod page;
pub(crate) mod plot;
pub(crate) mod samples;
pub(crate) mod stand;
pub(crate) mod table;
pub(crate) mod transcript;

use admin::exit::Exit;
use anyhow::{Context, Result};
use claim::{Claim, Verdict};
use daemon::files;
use figure::Figure;
use machine::Machine;
use samples::Samples;
use serde::Serialize;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use table::Table;
use transcript::Transcript;

/// A report.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    /// Name of the experiment on the command line.
    pub name: &'static str,
    pub title: String,
    /// Paragraphs above everything else.
    pub introduction: Vec<String>,
    pub machine: Machine,
    pub claims: Vec<Claim>,
    /// Figures and tables, in the order of the page.
    pub sections: Vec<Section>,
    /// Explanations of what the method can't show.
    pub limits: Vec<String>,
    /// Figures that could not be taken, each with the reason.
    pub missing: Vec<String>,
    pub samples: Samples,
    pub transcript: Transcript,
}

/// A part of the page.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Section {
    Figure(Figure),
    Table(Table),
}

/// The directory of a report. If it was made for a run that then failed, it is removed again.
pub(crate) struct Folder {
    path: PathBuf,
    /// The run made the directory, and has written nothing yet.
    fresh: bool,
}

impl Folder {
    /// Makes the directory, if it is missing.
    pub(crate) fn make(path: &Path) -> Result<Folder> {
        let fresh = !path.exists();
        files::make_folder(path)
            .with_context(|| format!("can't make the directory {}", path.display()))?;
        Ok(Folder { path: path.to_owned(), fresh })
    }

    /// Writes a file.
    pub(crate) fn write(&mut self, name: &str, text: &str) -> Result<()> {
        self.fresh = false;
        let file = self.path.join(name);
        files::write(&file, text).with_context(|| format!("can't write {}", file.display()))
    }

    fn make_inner(&self, name: &str) -> Result<()> {
        let path = self.path.join(name);
        files::make_folder(&path)
            .with_context(|| format!("can't make the directory {}", path.display()))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.fresh {
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}

impl Report {
    fn figures(&self) -> impl Iterator<Item = &Figure> {
        self.sections.iter().filter_map(|section| match section {
            Section::Figure(figure) => Some(figure),
            Section::Table(_) => None,
        })
    }

    fn tables(&self) -> impl Iterator<Item = &Table> {
        self.sections.iter().filter_map(|section| match section {
            Section::Table(table) => Some(table),
            Section::Figure(_) => None,
        })
    }

    /// Adds a figure. An empty one is a figure that could not be taken.
    pub(crate) fn add_figure(&mut self, figure: Figure) {
        if figure.is_empty() {
            self.missing.push(format!("nothing of {} was measured", figure.title));
        }
        self.sections.push(Section::Figure(figure));
    }

    /// Adds a table.
    pub(crate) fn add_table(&mut self, table: Table) {
        self.sections.push(Section::Table(table));
    }

    /// Returns `report.json`: the fields of the experiment's own document, and those of every
    /// report.
    pub(crate) fn json(&self, own: &impl Serialize) -> Result<Value> {
        let mut document = serde_json::to_value(own)?;
        let figures = self.figures().map(|f| {
            let csv = format!("figures/{}.csv", f.id);
            json!({ "id": f.id, "title": f.title, "note": f.note, "csv": csv })
        });
        let common = json!({
            "experiment": self.name,
            "title": self.title,
            "gabion": env!("CARGO_PKG_VERSION"),
            "machine": self.machine,
            "claims": self.claims,
            "figures": figures.collect::<Vec<_>>(),
            "tables": self.tables().collect::<Vec<_>>(),
            "limits": self.limits,
            "not_measured": self.missing,
        });
        let fields = document.as_object_mut().context("a document has fields")?;
        if let Value::Object(common) = common {
            fields.extend(common);
        }
        Ok(document)
    }

    /// Writes all files. `json` is the content of `report.json`.
    pub(crate) fn write(&self, folder: &mut Folder, json: &Value) -> Result<()> {
        for name in ["tables", "figures"] {
            folder.make_inner(name)?;
        }
        for table in self.tables() {
            folder.write(&format!("tables/{}.csv", table.id), &table.csv())?;
        }
        for figure in self.figures() {
            folder.write(&format!("figures/{}.csv", figure.id), &figure.csv())?;
        }
        folder.write("claims.csv", &claim::csv(&self.claims))?;
        folder.write("samples.csv", &self.samples.csv())?;
        folder.write("transcript.txt", &self.transcript.text())?;
        folder.write("report.json", &format!("{}\n", serde_json::to_string_pretty(json)?))?;
        folder.write("report.html", &page::html(self))
    }

    /// Returns the claims as text for people, one sentence a line.
    pub(crate) fn sentences(&self) -> String {
        self.claims.iter().map(Claim::sentence).collect::<Vec<_>>().join("\n")
    }

    /// Returns the musts that were missed, and what was not measured, as one line; `None` if there
    /// is neither.
    pub(crate) fn complaint(&self) -> Option<String> {
        let missed: Vec<&str> =
            self.claims.iter().filter(|c| c.is_missed()).map(|c| c.text.as_str()).collect();
        let mut parts = Vec::new();
        if !missed.is_empty() {
            parts.push(format!("missed: {}", missed.join("; ")));
        }
        if !self.missing.is_empty() {
            parts.push(format!("not measured: {}", self.missing.join("; ")));
        }
        (!parts.is_empty()).then(|| parts.join(". "))
    }

    /// Returns the exit code.
    pub(crate) fn exit(&self) -> Exit {
        if self.complaint().is_some() { Exit::Missed } else { Exit::Ok }
    }

    /// Counts the verdicts: those that hold, differ, and are not judged.
    pub(crate) fn counts(&self) -> [usize; 3] {
        let count =
            |of: fn(&Verdict) -> bool| self.claims.iter().filter(|c| of(&c.verdict)).count();
        [
            count(|v| *v == Verdict::Holds),
            count(|v| *v == Verdict::Differs),
            count(|v| matches!(v, Verdict::NotJudged(_))),
        ]
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::axis::Axis;
    use super::claim::Bound;
    use super::plot::{Plot, Series, Spot};
    use super::*;

    /// Checks that a page needs no other file, and that its elements are closed.
    pub(crate) fn check_page(html: &str) {
        for outside in ["http:", "https:", "src=", "href=", "@import", "url(", "<script", "NaN"] {
            assert!(!html.contains(outside), "{outside}");
        }
        assert!(html.contains("prefers-color-scheme: dark") && html.contains("<!DOCTYPE html>"));
        for tag in ["svg", "table", "div", "ul", "li", "p", "h2", "span", "details", "tr", "td"] {
            let open = html.matches(&format!("<{tag}>")).count()
                + html.matches(&format!("<{tag} ")).count();
            assert_eq!(open, html.matches(&format!("</{tag}>")).count(), "{tag}");
        }
    }

    fn example(points: Vec<Spot>) -> Report {
        let series = Series { name: "ours".into(), colour: 1, dashed: false, points };
        let (x, y) = (Axis::log("nodes"), Axis::log("IOPS"));
        let plot = Plot { x, y, series: vec![series], bands: Vec::new() };
        let mut report = Report {
            name: "example",
            title: "An <example>".into(),
            introduction: vec!["How & why".into()],
            machine: Machine::this(rt::Backend::Auto),
            claims: vec![Claim::new("run-1", "it runs").must()],
            sections: Vec::new(),
            limits: vec!["nothing".into()],
            missing: Vec::new(),
            samples: Samples { columns: vec!["seconds"], rows: vec![vec!["1".into()]] },
            transcript: Transcript::begin(),
        };
        report.add_figure(Figure {
            id: "figure-1".into(),
            title: "IOPS".into(),
            note: String::new(),
            drawing: figure::Drawing::Plot(plot),
        });
        report.add_table(Table {
            id: "one",
            title: "One".into(),
            columns: vec!["a"],
            rows: vec![vec![1.0.into()]],
            note: String::new(),
        });
        report
    }

    #[test]
    fn a_report_is_files_that_agree_with_each_other() {
        let path = std::env::temp_dir().join(format!("gabion-report-{}", std::process::id()));
        let mut report = example(vec![Spot { x: 3.0, y: 5.0, low: 4.0, high: 6.0 }]);
        report.transcript.add("gabion up");
        let json = report.json(&json!({ "own": 7 })).unwrap();
        report.write(&mut Folder::make(&path).unwrap(), &json).unwrap();
        let read = |name: &str| std::fs::read_to_string(path.join(name)).unwrap();
        check_page(&read("report.html"));
        assert!(read("report.html").contains("An &lt;example&gt;"));
        assert_eq!(serde_json::from_str::<Value>(&read("report.json")).unwrap(), json);
        assert_eq!((&json["own"], &json["claims"][0]["must"]), (&json!(7), &json!(true)));
        assert_eq!(read("figures/figure-1.csv"), "series,x,y,low,high\nours,3,5,4,6\n");
        assert_eq!(read("tables/one.csv"), "a,derived\n1,\n");
        assert_eq!(read("samples.csv"), "seconds\n1\n");
        assert!(read("transcript.txt").contains("gabion up"));
        assert_eq!(read("claims.csv").lines().count(), 2);
        std::fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn a_missed_must_and_an_empty_figure_decide_the_exit_code() {
        let spot = vec![Spot::new(3.0, 5.0)];
        let mut report = example(spot.clone());
        assert_eq!((report.exit(), report.counts()), (Exit::Ok, [0, 0, 1]));
        report.claims[0] = report.claims[0].clone().judge(Some(1.0), Bound::AtMost(0.0), None);
        assert_eq!((report.exit(), report.counts()), (Exit::Missed, [0, 1, 0]));
        assert_eq!(report.complaint().as_deref(), Some("missed: it runs"));
        assert_eq!(example(Vec::new()).exit(), Exit::Missed);
        assert_eq!(example(spot).complaint(), None);
    }

    #[test]
    fn a_run_that_fails_leaves_no_empty_directory() {
        let path = std::env::temp_dir().join(format!("gabion-fresh-{}", std::process::id()));
        drop(Folder::make(&path).unwrap());
        assert!(!path.exists());
        std::fs::create_dir(&path).unwrap();
        drop(Folder::make(&path).unwrap());
        assert!(path.exists(), "it was there before");
        std::fs::remove_dir(&path).unwrap();
    }
}
