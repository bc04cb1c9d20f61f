//! A figure of a report: a drawing with a title and a note, and its values as CSV.

use super::bars::Bars;
use super::csv;
use super::number::{escape, short};
use super::plot::Plot;
use super::stand::Stand;
use std::fmt::Write;

/// A figure.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Figure {
    /// Name of its CSV file.
    pub id: String,
    pub title: String,
    /// How to read it.
    pub note: String,
    pub drawing: Drawing,
}

/// What a figure shows.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Drawing {
    Plot(Plot),
    Bars(Bars),
    Stand(Stand),
}

/// A value of a figure.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Value {
    pub series: String,
    pub x: String,
    pub y: f64,
    pub low: f64,
    pub high: f64,
}

impl Figure {
    /// Returns all values. A stand has none.
    pub(crate) fn values(&self) -> Vec<Value> {
        match &self.drawing {
            Drawing::Stand(_) => Vec::new(),
            Drawing::Plot(plot) => {
                let all = plot.series.iter().flat_map(|s| s.points.iter().map(move |p| (s, p)));
                let value = |(s, p): (&super::plot::Series, &super::plot::Spot)| Value {
                    series: s.name.clone(),
                    x: p.x.to_string(),
                    y: p.y,
                    low: p.low,
                    high: p.high,
                };
                all.map(value).collect()
            }
            Drawing::Bars(bars) => {
                let mut all = Vec::new();
                for series in &bars.series {
                    for (group, value) in bars.groups.iter().zip(&series.values) {
                        let Some(y) = *value else { continue };
                        let (series, x) = (series.name.clone(), group.clone());
                        all.push(Value { series, x, y, low: y, high: y });
                    }
                }
                all
            }
        }
    }

    /// Returns true if there is nothing to see.
    pub(crate) fn is_empty(&self) -> bool {
        !matches!(self.drawing, Drawing::Stand(_)) && self.values().is_empty()
    }

    /// Returns the CSV file.
    pub(crate) fn csv(&self) -> String {
        let mut out = csv::line(["series", "x", "y", "low", "high"]);
        for v in self.values() {
            let [y, low, high] = [v.y, v.low, v.high].map(|n| n.to_string());
            out += &csv::line([&v.series, &v.x, &y, &low, &high].map(String::as_str));
        }
        out
    }

    /// Returns the figure as HTML, with its values as a table that can be opened where they are
    /// few.
    pub(crate) fn html(&self) -> String {
        let mut out = format!("<h2>{}</h2>\n", escape(&self.title));
        out += &match &self.drawing {
            Drawing::Plot(plot) => plot.svg(&self.title) + &plot.legend(),
            Drawing::Bars(bars) => bars.svg(&self.title) + &bars.legend(),
            Drawing::Stand(stand) => stand.svg(&self.title),
        };
        if !self.note.is_empty() {
            let _ = writeln!(out, "<p class=\"soft\">{}</p>", escape(&self.note));
        }
        let values = self.values();
        if !values.is_empty() && values.len() <= 120 {
            out += "<details><summary>values</summary><div class=\"scroll\"><table>\n<tr><th>series\
                    </th><th>x</th><th>value</th><th>lowest</th><th>highest</th></tr>\n";
            for v in values {
                let _ = writeln!(
                    out,
                    "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                    escape(&v.series),
                    escape(&v.x),
                    short(v.y),
                    short(v.low),
                    short(v.high)
                );
            }
            out += "</table></div></details>\n";
        }
        out
    }
}
