//! Exit codes of the process. They are part of the interface: `docs/reference/exit-codes.md`.

use std::process::ExitCode;

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Exit {
    /// The command is done; for `status`: healthy.
    Ok = 0,
    /// It failed, or the cluster refused it. (clap uses 2 for a wrong command line.)
    Failed = 1,
    /// `status`: everything is served, some of it from fewer copies than wanted. `volume damage`:
    /// MDMs are being recovered, so it is not known yet what is served.
    Degraded = 3,
    /// `status`, `up --detach`, `volume damage`, `mdm recover`, removals: some data has no copy
    /// that may serve.
    Unserved = 4,
    /// No MDM answers.
    Unreachable = 5,
    /// Something is in use: an address, a log, the directory by another cluster or command, or a
    /// volume that is to be attached or detached.
    InUse = 6,
    /// `bench ratio`, `bench disk`, `bench rebuild`: a ratio misses its promise, or could not be
    /// measured. `experiment`: a must is missed, or a figure could not be taken.
    Missed = 7,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// An error with an exit code of its own.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct Coded {
    exit: Exit,
    text: String,
}

/// Makes an error for people that ends the process with this code.
pub fn coded(exit: Exit, text: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(Coded { exit, text: text.into() })
}

/// Returns the exit code for an error.
pub fn of(error: &anyhow::Error) -> Exit {
    error.chain().find_map(|e| e.downcast_ref::<Coded>()).map_or(Exit::Failed, |c| c.exit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn the_code_survives_context() {
        let error = Err::<(), _>(coded(Exit::InUse, "in use")).context("starting").unwrap_err();
        assert_eq!(of(&error), Exit::InUse);
        assert_eq!(of(&anyhow::anyhow!("plain")), Exit::Failed);
    }
}
