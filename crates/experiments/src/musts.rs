//! The musts of every run.

use crate::log::Log;
use crate::report::claim::{Bound, Claim};

/// Returns the claims about errors and about the end of the clusters.
pub(crate) fn of(log: &Log) -> Vec<Claim> {
    let none = |id, text: String, formula, count: usize| {
        let claim = Claim::new(id, text).by(formula, "").must();
        claim.judge(Some(count as f64), Bound::AtMost(0.0), None)
    };
    let with = |text: &str, found: &[String]| match found {
        [] => text.to_owned(),
        found => format!("{text} ({})", found.join("; ")),
    };
    vec![
        none(
            "run-errors",
            with("no request fails, and every byte that is compared is right", &log.failed),
            "loads that ended with an error",
            log.failed.len(),
        ),
        none(
            "run-healthy",
            with("every cluster has all copies at its end", &log.unhealthy),
            "clusters that lack copies",
            log.unhealthy.len(),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_load_is_a_missed_must_that_says_why() {
        let mut log = Log::begin();
        assert!(of(&log).iter().all(|c| !c.is_missed()));
        let failed = log.note_failure::<()>("read", Err(anyhow::anyhow!("wrong data")));
        assert!(failed.is_err());
        let missed: Vec<Claim> = of(&log).into_iter().filter(Claim::is_missed).collect();
        assert_eq!(missed.len(), 1);
        assert!(missed[0].text.contains("read: wrong data"), "{missed:?}");
    }
}
