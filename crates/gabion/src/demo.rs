//! `gabion demo`: another name of an experiment.

use admin::exit::Exit;
use anyhow::Result;
use clap::Subcommand;
use experiments::{command as experiment, exaforge};
use fleet::target::Target;

/// The experiments.
#[derive(Subcommand, Debug)]
pub(crate) enum DemoCommand {
    /// The same as `experiment exaforge`
    Exaforge(exaforge::ExaforgeArgs),
}

/// Runs `gabion demo`.
pub(crate) fn run(target: &Target, command: &DemoCommand) -> Result<Exit> {
    match command {
        DemoCommand::Exaforge(args) => experiment::exaforge(target, args),
    }
}
