//! `gabion mdm run|kill|start`.

use crate::config::{self, MDM_EXAMPLE, MdmConfig};
use crate::exit::Exit;
use crate::target::Target;
use crate::{cluster, role_mdm, runopts::RunArgs};
use anyhow::Result;
use clap::Subcommand;
use std::time::Duration;

const START_TIMEOUT: Duration = Duration::from_secs(30);

/// What to do with the metadata manager.
#[derive(Subcommand, Debug)]
pub enum MdmCommand {
    /// Run a metadata manager (MDM) until SIGTERM
    #[command(after_help = "\
Examples:
  gabion mdm run --example-config > /etc/gabion/mdm.toml
  gabion mdm run --config /etc/gabion/mdm.toml")]
    Run(RunArgs),
    /// Kill the MDM of a cluster started by `up`, with SIGKILL; volumes are served without it
    #[command(after_help = "Example:\n  gabion mdm kill && gabion mdm start")]
    Kill,
    /// Start the MDM of a cluster started by `up` again, with what its log holds
    Start,
}

/// Runs `gabion mdm`.
pub fn run(target: &Target, command: &MdmCommand) -> Result<Exit> {
    match command {
        MdmCommand::Run(args) => {
            let Some(file) = args.config_or_example(MDM_EXAMPLE)? else { return Ok(Exit::Ok) };
            let mut config: MdmConfig = config::read(file)?;
            config.backend.0 = args.backend.unwrap_or(config.backend.0);
            role_mdm::run(config)?;
        }
        MdmCommand::Kill => {
            let pid = cluster::kill(&target.local()?, "mdm")?;
            println!("Killed the MDM, pid {pid}.");
        }
        MdmCommand::Start => {
            let dir = target.local()?;
            let pid = cluster::start(&dir, "mdm", START_TIMEOUT, || target.connect().is_ok())?;
            println!("The MDM runs, pid {pid}.");
        }
    }
    Ok(Exit::Ok)
}
