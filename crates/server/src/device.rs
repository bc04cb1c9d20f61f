//! `gabion device probe`: whether a device can be trusted with data, and how fast it is.

pub mod medium;
pub mod probe;
pub mod scratch;
pub mod verdict;

use crate::exit::Exit;
use anyhow::Result;
use clap::Subcommand;
use std::path::PathBuf;

/// What to do with devices.
#[derive(Subcommand, Debug)]
pub enum DeviceCommand {
    /// Find out what a device promises, how fast it is, and whether its flushes can be true
    #[command(after_help = "\
Examples:
  gabion device probe disk1      the file system that disk1 lies on, with a scratch file beside it
  gabion device probe /dev/sdb   a block device; it is written to only when it is empty

Exit code 1 when its flushes can't be true: data would not survive a power loss.
docs/reference/probe.md says what can be found out and what can't.")]
    Probe {
        /// A file, a folder or a block device
        path: PathBuf,
        /// Write to a block device that is not empty: what is overwritten is put back at the end
        #[arg(long)]
        force: bool,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
}

/// Runs `gabion device`.
pub fn run(command: &DeviceCommand) -> Result<Exit> {
    match command {
        DeviceCommand::Probe { path, force, json } => {
            let found = probe::probe(path, *force)?;
            if *json {
                println!("{}", serde_json::to_string_pretty(&found)?);
            } else {
                print!("{}", found.text());
            }
            Ok(if found.verdict.is_refused() { Exit::Failed } else { Exit::Ok })
        }
    }
}
