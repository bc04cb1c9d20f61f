//! `report.html`: one self-contained file, with light and dark styles and without any script.

use super::number::escape;
use super::{Report, Section};
use std::fmt::Write;

const STYLE: &str = include_str!("style.css");

/// Returns the page of a report.
pub(crate) fn html(report: &Report) -> String {
    let mut out = head(&report.title);
    for paragraph in &report.introduction {
        let _ = writeln!(out, "<p>{}</p>", escape(paragraph));
    }
    let _ = writeln!(out, "<p class=\"soft\">{}</p>", escape(&report.machine.sentence()));
    out += "<h2>Claims</h2>\n<ul>\n";
    report.claims.iter().for_each(|claim| out += &claim.html());
    out += "</ul>\n";
    for reason in &report.missing {
        let _ = writeln!(out, "<p class=\"bad\">Not measured: {}</p>", escape(reason));
    }
    for section in &report.sections {
        out += &match section {
            Section::Figure(figure) => figure.html(),
            Section::Table(table) => table.html(),
        };
    }
    out += "<h2>What this can't show</h2>\n<ul>\n";
    for limit in &report.limits {
        let _ = writeln!(out, "<li>{}</li>", escape(limit));
    }
    out + "</ul>\n</body>\n</html>\n"
}

/// Opens a page.
pub(crate) fn head(title: &str) -> String {
    let title = escape(title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Gabion: {title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
    )
}
