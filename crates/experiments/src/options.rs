//! The options that all experiments have.

use clap::Args;
use std::path::PathBuf;

/// Options of every experiment.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Run everything in its smallest form, in less than two minutes; no speed is judged
    #[arg(long, conflicts_with = "full")]
    pub short: bool,
    /// Run at the size of the publication, as far as this machine can
    #[arg(long)]
    pub full: bool,
    /// Directory for the report, created if it is missing [default: gabion- and the experiment's
    /// name]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Also print report.json
    #[arg(long)]
    pub json: bool,
    /// Run only this step; may be given several times
    #[arg(long, value_name = "STEP")]
    pub only: Vec<String>,
    /// Print the steps, their time, and what they need, and end
    #[arg(long)]
    pub plan: bool,
}

/// The size of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// Everything runs; no speed is judged.
    Short,
    /// Some minutes, judged.
    Default,
    /// The publication's own size.
    Full,
}

impl Options {
    /// Returns the size of the run.
    pub(crate) fn mode(&self) -> Mode {
        match (self.short, self.full) {
            (true, _) => Mode::Short,
            (_, true) => Mode::Full,
            _ => Mode::Default,
        }
    }

    /// Returns the directory for the report of an experiment.
    pub(crate) fn out(&self, name: &str) -> PathBuf {
        self.out.clone().unwrap_or_else(|| format!("gabion-{name}").into())
    }

    /// Returns true if a step is to run.
    pub(crate) fn wants(&self, step: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == step)
    }
}

impl Mode {
    /// Returns the name for reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::Short => "short",
            Mode::Default => "default",
            Mode::Full => "full",
        }
    }

    /// Returns why speed is not judged; `None` if it is.
    pub(crate) fn doubt(self) -> Option<String> {
        (self == Mode::Short).then(|| "a short run judges no speed".to_owned())
    }
}
