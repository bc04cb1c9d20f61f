//! `gabion demo`: re-enacts published experiments on this machine.

use admin::exit::Exit;
use anyhow::Result;
use clap::Subcommand;
use experiments::exaforge;
use fleet::target::Target;

/// The experiments.
#[derive(Subcommand, Debug)]
pub(crate) enum DemoCommand {
    /// Three small servers: throughput, removal, return, loss and rebuild (ScaleIO, 2013)
    Exaforge(exaforge::ExaforgeArgs),
}

/// Runs `gabion demo`.
pub(crate) fn run(target: &Target, command: &DemoCommand) -> Result<Exit> {
    match command {
        DemoCommand::Exaforge(args) => exaforge::run(target, args),
    }
}
