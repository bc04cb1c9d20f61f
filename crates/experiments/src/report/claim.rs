//! A claim of a publication that can be tested here, and its verdict.
//!
//! A claim that is a *must* decides the exit code. One that differs without being a must is no
//! error. A figure that noise or a short run makes worthless is not judged, and the record says so.

use super::csv;
use super::number::{escape, short};
use serde::Serialize;

/// Where a published value comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Source {
    /// The publication says it.
    Stated,
    /// It follows from what the publication says.
    Derived,
}

/// The value of the publication.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct Published {
    pub value: f64,
    pub unit: &'static str,
    pub source: Source,
}

/// The outcome.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Holds,
    Differs,
    /// With the reason.
    NotJudged(String),
}

/// What a value must be for a claim to hold.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

/// A claim.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Claim {
    /// The seed's number and the statement's, such as `000-44`; `run-` and a word for musts of any
    /// run.
    pub id: &'static str,
    pub text: String,
    pub published: Option<Published>,
    pub ours: Option<f64>,
    /// The unit of ours, and of the limit.
    pub unit: &'static str,
    /// The same figure of the limit that was measured in the same run.
    pub limit: Option<f64>,
    /// How ours is computed.
    pub formula: &'static str,
    pub bound: Option<Bound>,
    pub verdict: Verdict,
    pub must: bool,
}

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            Bound::AtLeast(least) => value >= least,
            Bound::AtMost(most) => value <= most,
        }
    }

    fn text(self) -> String {
        match self {
            Bound::AtLeast(least) => format!("at least {}", digits(least)),
            Bound::AtMost(most) => format!("at most {}", digits(most)),
        }
    }
}

impl Verdict {
    /// Returns the name for reports.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Verdict::Holds => "holds",
            Verdict::Differs => "differs",
            Verdict::NotJudged(_) => "not judged",
        }
    }
}

impl Claim {
    /// Creates a claim that is not judged yet.
    pub(crate) fn new(id: &'static str, text: impl Into<String>) -> Claim {
        Claim {
            id,
            text: text.into(),
            published: None,
            ours: None,
            unit: "",
            limit: None,
            formula: "",
            bound: None,
            verdict: Verdict::NotJudged("it was not measured".into()),
            must: false,
        }
    }

    /// Adds the published value.
    pub(crate) fn published(mut self, value: f64, unit: &'static str, source: Source) -> Claim {
        (self.published, self.unit) = (Some(Published { value, unit, source }), unit);
        self
    }

    /// Says how ours is computed, and in which unit.
    pub(crate) fn by(mut self, formula: &'static str, unit: &'static str) -> Claim {
        (self.formula, self.unit) = (formula, unit);
        self
    }

    /// Adds the limit's figure.
    pub(crate) fn limit(mut self, limit: Option<f64>) -> Claim {
        self.limit = limit;
        self
    }

    /// Makes it a must.
    pub(crate) fn must(mut self) -> Claim {
        self.must = true;
        self
    }

    /// Says why there is no figure.
    pub(crate) fn not_judged(mut self, why: impl Into<String>) -> Claim {
        self.verdict = Verdict::NotJudged(why.into());
        self
    }

    /// Judges our figure, unless there is none, or a doubt about it.
    pub(crate) fn judge(mut self, ours: Option<f64>, bound: Bound, doubt: Option<String>) -> Claim {
        (self.ours, self.bound) = (ours, Some(bound));
        self.verdict = match (ours, doubt) {
            (None, Some(why)) => Verdict::NotJudged(why),
            (None, None) => return self,
            (Some(_), Some(why)) => Verdict::NotJudged(why),
            (Some(value), None) if bound.holds(value) => Verdict::Holds,
            (Some(_), None) => Verdict::Differs,
        };
        self
    }

    /// Returns true if the claim is a must that was missed.
    pub(crate) fn is_missed(&self) -> bool {
        self.must && self.verdict == Verdict::Differs
    }

    /// Returns the claim as one sentence.
    pub(crate) fn sentence(&self) -> String {
        let unit = |unit: &str| if unit.is_empty() { String::new() } else { format!(" {unit}") };
        let ours = self.ours.map(|v| format!("{}{}", digits(v), unit(self.unit)));
        let mut beside = Vec::new();
        if let Some(p) = &self.published {
            let derived = if p.source == Source::Derived { ", derived" } else { "" };
            beside.push(format!("published {}{}{derived}", digits(p.value), unit(p.unit)));
        }
        beside.extend(self.limit.map(|v| format!("limit {}", digits(v))));
        let must = if self.must { "must be" } else { "holds if" };
        beside.extend(self.bound.map(|b| format!("{must} {}", b.text())));
        let beside =
            if beside.is_empty() { String::new() } else { format!(" ({})", beside.join("; ")) };
        let answer = match &self.verdict {
            Verdict::Holds => "yes".to_owned(),
            Verdict::Differs => "no".to_owned(),
            Verdict::NotJudged(why) => format!("not judged, because {why}"),
        };
        let ours = ours.map_or(String::new(), |v| format!("; {v}"));
        format!("{}: {answer}{ours}{beside}.", self.text)
    }

    /// Returns the sentence as HTML.
    pub(crate) fn html(&self) -> String {
        let class = match (&self.verdict, self.must) {
            (Verdict::Holds, _) => "good",
            (Verdict::Differs, true) => "bad",
            _ => "soft",
        };
        let must = if self.must { " (must)" } else { "" };
        format!(
            "<li><span class=\"{class}\">{}{must}</span> {} <span class=\"soft\">{}</span></li>\n",
            self.verdict.name(),
            escape(&self.sentence()),
            self.id
        )
    }
}

/// Formats a value of a claim: ratios with two digits, counts as they are.
fn digits(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 9995.0 { format!("{value:.0}") } else { short(value) }
}

impl Serialize for Claim {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let (least, most) = match self.bound {
            Some(Bound::AtLeast(value)) => (Some(value), None),
            Some(Bound::AtMost(value)) => (None, Some(value)),
            None => (None, None),
        };
        let why = match &self.verdict {
            Verdict::NotJudged(why) => Some(why),
            _ => None,
        };
        let value = serde_json::json!({
            "id": self.id, "text": self.text, "published": self.published, "ours": self.ours,
            "unit": self.unit, "limit": self.limit, "formula": self.formula, "at_least": least,
            "at_most": most, "verdict": self.verdict.name(), "reason": why, "must": self.must,
            "sentence": self.sentence(),
        });
        value.serialize(to)
    }
}

/// Returns `claims.csv`.
pub(crate) fn csv(claims: &[Claim]) -> String {
    let mut out = csv::line([
        "id",
        "text",
        "published",
        "source",
        "ours",
        "unit",
        "limit",
        "bound",
        "formula",
        "verdict",
        "reason",
        "must",
    ]);
    for claim in claims {
        let number = |n: Option<f64>| n.map_or(String::new(), |n| n.to_string());
        let source = match claim.published.map(|p| p.source) {
            Some(Source::Stated) => "stated",
            Some(Source::Derived) => "derived",
            None => "",
        };
        let why = match &claim.verdict {
            Verdict::NotJudged(why) => why.as_str(),
            _ => "",
        };
        out += &csv::line([
            claim.id,
            &claim.text,
            &number(claim.published.map(|p| p.value)),
            source,
            &number(claim.ours),
            claim.unit,
            &number(claim.limit),
            &claim.bound.map_or(String::new(), Bound::text),
            claim.formula,
            claim.verdict.name(),
            why,
            if claim.must { "must" } else { "" },
        ]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn linear() -> Claim {
        Claim::new("000-44", "linear").published(1.0, "", Source::Derived).limit(Some(0.97)).must()
    }

    #[test]
    fn a_claim_is_a_sentence_with_the_published_value_and_the_limit() {
        let claim = linear().judge(Some(0.98), Bound::AtLeast(0.94), None);
        assert_eq!(
            claim.sentence(),
            "linear: yes; 0.98 (published 1, derived; limit 0.97; must be at least 0.94)."
        );
        assert!(!claim.is_missed() && claim.html().contains("class=\"good\""));
        let claim = linear().judge(Some(0.90), Bound::AtLeast(0.94), None);
        assert!(claim.is_missed() && claim.html().contains("class=\"bad\""));
    }

    #[test]
    fn a_claim_without_a_figure_or_with_a_doubt_is_not_judged_and_misses_nothing() {
        let claims = [
            linear().judge(None, Bound::AtLeast(0.94), None),
            linear().judge(Some(0.1), Bound::AtLeast(0.94), Some("the run was short".into())),
            linear().not_judged("there is no such command"),
        ];
        for claim in &claims {
            assert!(matches!(claim.verdict, Verdict::NotJudged(_)) && !claim.is_missed());
        }
        let table = csv(&claims);
        assert_eq!(table.lines().count(), 4);
        assert!(table.contains("the run was short") && table.contains("derived"), "{table}");
        let json = serde_json::to_value(&claims[1]).unwrap();
        assert_eq!(json["reason"], "the run was short");
        assert_eq!(json["published"]["source"], "derived");
        assert_eq!(json["at_least"], 0.94);
    }

    #[test]
    fn a_bound_includes_its_end() {
        assert!(Bound::AtMost(1.0).holds(1.0) && !Bound::AtMost(1.0).holds(1.1));
        assert!(Bound::AtLeast(1.0).holds(1.0) && !Bound::AtLeast(1.0).holds(f64::NAN));
    }
}
