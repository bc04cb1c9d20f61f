//! The baseline, and the comparison with it. Knows nothing about how counts are made.

use anyhow::{Context, Result};
use std::fmt::Write;

/// Growth by more than this percentage fails; shrinkage by more than this gets a note.
const TOLERANCE: f64 = 5.0;

/// Goals: how many instructions something may need more than something else.
const BESIDE: [(&str, &str, f64); 4] = [
    ("iscsi.read_4k", "nbd.read_4k", 500.0),
    ("iscsi.write_4k", "nbd.write_4k", 500.0),
    ("nvme.read_4k", "nbd.read_4k", 500.0),
    ("nvme.write_4k", "nbd.write_4k", 500.0),
];

const TAKEN_WITH: &str = "# taken with: ";

/// The cost of one measurement.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Count {
    /// The name of the measurement.
    pub name: String,
    /// Instructions per operation.
    pub instructions: f64,
}

/// The costs of all measurements.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Baseline {
    /// The compiler and the tools, for people.
    pub taken_with: String,
    /// In the order of counting.
    pub counts: Vec<Count>,
}

/// The result of a comparison.
#[derive(Debug)]
pub(super) struct Verdict {
    /// Nothing grew, and both sides have the same measurements.
    pub passed: bool,
    /// A table, and advice on what to do.
    pub text: String,
    /// The measurements that grew.
    pub grown: Vec<String>,
}

impl Baseline {
    /// Parses the output of [`Baseline::to_text`].
    pub(super) fn parse(text: &str) -> Result<Baseline> {
        let mut baseline = Baseline::default();
        for line in text.lines() {
            if let Some(tools) = line.strip_prefix(TAKEN_WITH) {
                baseline.taken_with = tools.to_owned();
            } else if !line.is_empty() && !line.starts_with('#') {
                let wrong = || format!("neither a comment nor a name and a count: {line:?}");
                let (name, count) = line.split_once(' ').with_context(wrong)?;
                let instructions = count.trim().parse().with_context(wrong)?;
                baseline.counts.push(Count { name: name.to_owned(), instructions });
            }
        }
        Ok(baseline)
    }

    /// Returns the text that is committed.
    pub(super) fn to_text(&self) -> String {
        let mut text = format!(
            "# Instructions per operation, written by `cargo xtask gate --update`.\n{TAKEN_WITH}{}\n",
            self.taken_with
        );
        for count in &self.counts {
            let _ = writeln!(text, "{:<40} {:>9.1}", count.name, count.instructions);
        }
        text
    }

    fn find(&self, name: &str) -> Option<f64> {
        self.counts.iter().find(|c| c.name == name).map(|c| c.instructions)
    }

    /// Compares with the counts of this run.
    pub(super) fn judge(&self, now: &Baseline) -> Verdict {
        let (mut grown, mut shrunk, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
        let mut text =
            format!("{:<40} {:>9} {:>9} {:>8}\n", "per operation", "baseline", "now", "change");
        for Count { name, instructions } in &now.counts {
            let Some(before) = self.find(name) else {
                let _ = writeln!(text, "{name:<40} {:>9} {instructions:>9.1}", "-");
                unknown.push(name.clone());
                continue;
            };
            let change = (instructions - before) / before * 100.0;
            let mark = if change > TOLERANCE { "  GROWN" } else { "" };
            let _ = writeln!(
                text,
                "{name:<40} {before:>9.1} {instructions:>9.1} {change:>+7.1}%{mark}"
            );
            if change > TOLERANCE {
                grown.push(name.clone());
            } else if change < -TOLERANCE {
                shrunk.push(name.clone());
            }
        }
        let gone = self.counts.iter().map(|c| &c.name).filter(|n| now.find(n).is_none());
        unknown.extend(gone.cloned());
        if !grown.is_empty() {
            let _ = write!(
                text,
                "\nMore than {TOLERANCE} % more instructions: {}.\nIf that is worth it, run `cargo xtask gate \
                 --update` and say in the commit why.",
                grown.join(", ")
            );
            if self.taken_with != now.taken_with {
                let _ = write!(
                    text,
                    "\nIt may not be our code: the baseline was taken with {}; here are {}.",
                    self.taken_with, now.taken_with
                );
            }
        }
        if !unknown.is_empty() {
            let _ = write!(
                text,
                "\nOnly in the baseline, or without one: {}.\nRun `cargo xtask gate --update`.",
                unknown.join(", ")
            );
        }
        for (name, other, more, most) in now.beyond() {
            let _ = write!(
                text,
                "\nMissed goal: {name} needs {more:.1} instructions more than {other}, not {most}."
            );
        }
        if !shrunk.is_empty() {
            let _ = write!(
                text,
                "\nNote: more than {TOLERANCE} % fewer instructions: {}.\n`cargo xtask gate --update` keeps that.",
                shrunk.join(", ")
            );
        }
        let passed = grown.is_empty() && unknown.is_empty();
        Verdict { passed, text, grown }
    }

    /// Returns the measurements that miss their goals, with the other one, the excess and the goal.
    fn beyond(&self) -> Vec<(&'static str, &'static str, f64, f64)> {
        let judge = |(name, other, most)| {
            let more = self.find(name)? - self.find(other)?;
            (more > most).then_some((name, other, more, most))
        };
        BESIDE.into_iter().filter_map(judge).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(of: &[(&str, f64)]) -> Baseline {
        let count = |(name, instructions): &(&str, f64)| Count {
            name: (*name).to_owned(),
            instructions: *instructions,
        };
        Baseline { taken_with: "rustc 1".into(), counts: of.iter().map(count).collect() }
    }

    #[test]
    fn growth_beyond_the_tolerance_fails_and_says_what_to_do() {
        let verdict =
            counts(&[("a", 1000.0), ("b", 10.0)]).judge(&counts(&[("a", 1060.0), ("b", 10.0)]));
        assert!(!verdict.passed);
        assert_eq!(verdict.grown, ["a"]);
        assert!(verdict.text.contains("--update"), "{}", verdict.text);
        assert!(!verdict.text.contains("may not be our code"), "{}", verdict.text);
    }

    #[test]
    fn growth_with_another_compiler_names_both() {
        let newer = Baseline { taken_with: "rustc 2".into(), ..counts(&[("a", 106.0)]) };
        let text = counts(&[("a", 100.0)]).judge(&newer).text;
        assert!(text.contains("rustc 1") && text.contains("rustc 2"), "{text}");
    }

    #[test]
    fn growth_within_the_tolerance_passes() {
        let verdict = counts(&[("a", 1000.0)]).judge(&counts(&[("a", 1040.0)]));
        assert!(verdict.passed && !verdict.text.contains("--update"), "{}", verdict.text);
    }

    #[test]
    fn shrinking_passes_with_a_note() {
        let verdict = counts(&[("a", 1000.0)]).judge(&counts(&[("a", 940.0)]));
        assert!(
            verdict.passed && verdict.text.contains("fewer instructions: a."),
            "{}",
            verdict.text
        );
    }

    #[test]
    fn a_missed_goal_is_reported_with_any_baseline() {
        for (iscsi, missed) in [(1500.0, false), (1501.0, true)] {
            let now = counts(&[("nbd.read_4k", 1000.0), ("iscsi.read_4k", iscsi)]);
            let verdict = now.judge(&now);
            assert!(verdict.passed, "{}", verdict.text);
            assert_eq!(verdict.text.contains("501.0 instructions more"), missed);
        }
    }

    #[test]
    fn operations_without_a_baseline_or_without_a_count_fail() {
        for (baseline, now) in
            [(counts(&[]), counts(&[("a", 1.0)])), (counts(&[("a", 1.0)]), counts(&[]))]
        {
            let verdict = baseline.judge(&now);
            assert!(
                !verdict.passed && verdict.text.contains("without one: a."),
                "{}",
                verdict.text
            );
        }
    }

    #[test]
    fn a_baseline_reads_back_as_it_was_written_and_damage_is_named() {
        let baseline = counts(&[("a.b", 1000.5), ("c", 7.0)]);
        assert_eq!(Baseline::parse(&baseline.to_text()).unwrap(), baseline);
        assert!(Baseline::parse("a b").unwrap_err().to_string().contains("\"a b\""));
    }
}
