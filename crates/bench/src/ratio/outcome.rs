//! The result of one row, and the page of all rows.

use super::rows::Target;
use crate::pair::Spread;
use admin::exit::Exit;
use anyhow::Result;
use serde::Serialize;

/// The results: printed row by row for people, or as one document with `--json`.
#[derive(Debug, Serialize)]
pub struct Page {
    /// Number of rounds per row.
    pub rounds: u32,
    /// The rows.
    pub results: Vec<Outcome>,
    #[serde(skip)]
    json: bool,
}

/// The result of one row, measured or not.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Its name, for `--only`.
    pub name: String,
    /// Its title for people.
    pub title: String,
    /// The unit of `floor` and `ours`.
    pub unit: &'static str,
    /// The floor's figure: the median of the rounds.
    pub floor: Option<f64>,
    /// Gabion's figure, likewise.
    pub ours: Option<f64>,
    /// The same figures as microseconds per I/O.
    pub floor_us: Option<f64>,
    /// The same of Gabion.
    pub ours_us: Option<f64>,
    /// Gabion's figure over the floor's: the median of the rounds.
    pub ratio: Option<f64>,
    /// The lowest and the highest ratio.
    pub spread: Option<[f64; 2]>,
    /// The ratio that is promised.
    pub must: f64,
    /// A better ratio that is aimed at.
    pub aim: Option<f64>,
    /// A ratio above the bounds meets them; otherwise, one below.
    pub higher_is_better: bool,
    /// The ratio keeps the promise.
    pub ok: bool,
    /// The ratio of all processes' time per I/O, whatever figure this row compares.
    pub process_ratio: Option<f64>,
    /// The ratio of the machine's busy time per I/O.
    pub machine_ratio: Option<f64>,
    /// Why the row could not be measured, or a remark.
    pub note: Option<String>,
}

impl Outcome {
    /// Creates a row without figures.
    pub fn new(name: &str, title: &str, unit: &'static str, target: Target) -> Outcome {
        Outcome {
            name: name.to_owned(),
            title: title.to_owned(),
            unit,
            floor: None,
            ours: None,
            floor_us: None,
            ours_us: None,
            ratio: None,
            spread: None,
            must: target.must,
            aim: target.aim,
            higher_is_better: target.higher_is_better,
            ok: false,
            process_ratio: None,
            machine_ratio: None,
            note: None,
        }
    }

    /// Adds the ratio, and judges whether it keeps the promise.
    pub fn with_ratio(self, ratio: Spread) -> Outcome {
        let (median, must) = (ratio.median, self.must);
        let ok = if self.higher_is_better { median >= must } else { median <= must };
        Outcome { ratio: Some(median), spread: Some([ratio.low, ratio.high]), ok, ..self }
    }

    /// Adds the figures of the floor and of Gabion, as they are and as microseconds per I/O.
    pub fn with_figures(self, [floor, ours]: [f64; 2], [floor_us, ours_us]: [f64; 2]) -> Outcome {
        Outcome {
            floor: Some(floor),
            ours: Some(ours),
            floor_us: Some(floor_us),
            ours_us: Some(ours_us),
            ..self
        }
    }

    /// Adds the reason why there is no ratio.
    pub fn not_measured(self, why: &str) -> Outcome {
        Outcome { note: Some(why.to_owned()), ..self }
    }

    /// Returns the spread of the ratio; `None` if the row was not measured.
    pub fn spread(&self) -> Option<Spread> {
        let ([low, high], median) = (self.spread?, self.ratio?);
        Some(Spread { median, low, high })
    }

    /// Returns the row as one line for people.
    pub fn line(&self) -> String {
        let Some(s) = self.spread() else {
            let why = self.note.as_deref().unwrap_or_default();
            return format!("{:<20} not measured: {why}", self.name);
        };
        let number = |n: Option<f64>| match n {
            None => String::new(),
            Some(n) if n.abs() >= 1000.0 => format!("{n:.0}"),
            Some(n) => format!("{n:.2}"),
        };
        let sign = if self.higher_is_better { ">" } else { "<" };
        let goal = |n: Option<f64>| n.map_or(String::new(), |n| format!("{sign} {n:.2}"));
        let spread = format!("({:.2}-{:.2})", s.low, s.high);
        format!(
            "{:<20} {:>9} {:>9} {:<21} {:>6.2} {spread:<13} {:>7} {:>7}  {:<6} {:>5} {:>5}",
            self.name,
            number(self.floor),
            number(self.ours),
            self.unit,
            s.median,
            goal(Some(self.must)),
            goal(self.aim),
            if self.ok { "ok" } else { "MISSED" },
            number(self.process_ratio),
            number(self.machine_ratio)
        )
    }
}

impl Page {
    /// Starts a page. The last two columns are ratios of processor time.
    pub fn begin(rounds: u32, json: bool) -> Page {
        if !json {
            println!(
                "{:<20} {:>9} {:>9} {:<21} {:>6} {:<13} {:>7} {:>7}  {:<6} {:>5} {:>5}",
                "row",
                "floor",
                "Gabion",
                "",
                "ratio",
                "(spread)",
                "must",
                "aim",
                "",
                "proc",
                "mach"
            );
        }
        Page { rounds, results: Vec::new(), json }
    }

    /// Adds a row.
    pub fn tell(&mut self, outcome: Outcome) {
        if !self.json {
            println!("{}", outcome.line());
        }
        self.results.push(outcome);
    }

    /// Ends the page and names the rows that missed their promise.
    pub fn end(&self) -> Result<Exit> {
        if self.json {
            println!("{}", serde_json::to_string_pretty(self)?);
        }
        let missed = self.results.iter().filter(|o| !o.ok);
        let missed: Vec<&str> = missed.map(|o| o.name.as_str()).collect();
        if missed.is_empty() {
            return Ok(Exit::Ok);
        }
        eprintln!("missed or not measured: {}", missed.join(", "));
        Ok(Exit::Missed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published format. This test may only be extended.
    #[test]
    fn the_published_fields_are_all_there() {
        let target = Target { must: 2.0, aim: Some(1.5), higher_is_better: false };
        let spread = Spread { median: 1.7, low: 1.6, high: 1.9 };
        let measured = Outcome::new("read-64", "reads", "us", target).with_ratio(spread);
        let missing = Outcome::new("nbd", "NBD", "us", target).not_measured("no fio");
        assert!(measured.line().contains("1.70") && missing.line().contains("no fio"));
        let json =
            serde_json::to_value(Page { rounds: 3, results: vec![measured, missing], json: true });
        let json = json.unwrap();
        assert_eq!(json["rounds"], 3);
        for field in ["name", "floor_us", "ours_us", "ratio", "spread", "must", "aim", "ok"] {
            assert!(json["results"][0].get(field).is_some(), "{field} in {json}");
        }
        assert_eq!(
            (&json["results"][0]["ok"], &json["results"][1]["ok"]),
            (&true.into(), &false.into())
        );
    }
}
