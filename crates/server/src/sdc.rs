//! `gabion sdc run|kill|start`.

use crate::config::{self, SDC_EXAMPLE, SdcConfig};
use crate::exit::Exit;
use crate::target::Target;
use crate::{cluster, role_sdc, runopts::RunArgs, status};
use anyhow::Result;
use clap::Subcommand;
use std::time::Duration;

const START_TIMEOUT: Duration = Duration::from_secs(30);

/// What to do with the data client.
#[derive(Subcommand, Debug)]
pub enum SdcCommand {
    /// Run a data client (SDC) that serves volumes over NBD, until SIGTERM
    #[command(after_help = "\
Examples:
  gabion sdc run --example-config > /etc/gabion/sdc.toml
  gabion sdc run --config /etc/gabion/sdc.toml")]
    Run(RunArgs),
    /// Kill the SDC of a cluster started by `up`, with SIGKILL
    #[command(after_help = "Example:\n  gabion sdc kill && gabion sdc start")]
    Kill,
    /// Start the SDC of a cluster started by `up` again
    Start,
}

/// Runs `gabion sdc`.
pub fn run(target: &Target, command: &SdcCommand) -> Result<Exit> {
    match command {
        SdcCommand::Run(args) => {
            let Some(file) = args.config_or_example(SDC_EXAMPLE)? else { return Ok(Exit::Ok) };
            let mut config: SdcConfig = config::read(file)?;
            config.backend.0 = args.backend.unwrap_or(config.backend.0);
            role_sdc::run(config)?;
        }
        SdcCommand::Kill => {
            let pid = cluster::kill(&target.local()?, "sdc")?;
            println!("Killed the SDC, pid {pid}.");
        }
        SdcCommand::Start => {
            let dir = target.local()?;
            let pid = cluster::start(&dir, "sdc", START_TIMEOUT, || {
                let (Some(process), Ok(report)) = (dir.process("sdc"), status::ask(target)) else {
                    return false;
                };
                report.sdc.iter().any(|s| s.pid == process.pid)
            })?;
            println!("The SDC runs, pid {pid}.");
        }
    }
    Ok(Exit::Ok)
}
