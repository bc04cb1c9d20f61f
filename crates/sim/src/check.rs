//! The judges, one file per invariant, and the code that they share.

pub mod agreement;
pub mod bounds;
pub mod counts;
pub mod deaths;
pub mod differences;
pub mod doubt;
pub mod errors;
pub mod executed;
pub mod first_success;
pub mod i02_register;
pub mod i03_mirrors;
pub mod i05_content;
pub mod i10_clean;
pub mod i13_epochs;
pub mod i14_leaks;
pub mod i15_versions;
pub mod i17_holes;
pub mod losses;
pub mod older;
pub mod pace;
pub mod pools;
pub mod r15_spare;
pub mod r17_swaps;
pub mod register;
mod told;
pub mod upkeep;

use std::fmt;

/// A violation that a judge has found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The violated invariant, or another short name of the failure.
    pub name: &'static str,
    /// The observation of the judge.
    pub text: String,
}

impl Failure {
    /// Creates a failure of this invariant.
    pub fn new(name: &'static str, text: impl Into<String>) -> Failure {
        Failure { name, text: text.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.text)
    }
}
