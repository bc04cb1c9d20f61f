//! `gabion mdm run|list|add|remove|switch|kill|start`.

mod roster;

use crate::config::{self, MDM_EXAMPLE, MdmConfig};
use crate::exit::Exit;
use crate::target::Target;
use crate::{cluster, role_mdm, runopts::RunArgs};
use anyhow::Result;
use clap::Subcommand;
use std::net::SocketAddr;
use std::time::Duration;

const START_TIMEOUT: Duration = Duration::from_secs(30);

/// What to do with metadata managers.
#[derive(Subcommand, Debug)]
pub enum MdmCommand {
    /// Run a metadata manager (MDM) until SIGTERM
    #[command(after_help = "\
Examples:
  gabion mdm run --example-config > /etc/gabion/mdm.toml
  gabion mdm run --config /etc/gabion/mdm.toml")]
    Run(RunArgs),
    /// List the MDMs of the cluster, as the leading one sees them
    #[command(
        after_help = "Example:\n  gabion mdm list --json | jq -r '.[] | select(.leads).name'"
    )]
    List {
        /// Print a JSON array
        #[arg(long)]
        json: bool,
    },
    /// Take an MDM into the cluster that runs with `join = true` and an empty log
    #[command(after_help = "\
Examples:
  gabion mdm add mdm2 192.168.1.11:7001
  gabion mdm add mdm3 192.168.1.12:7001 --tie-breaker

MDMs vote, and more than half of them have to work. Three bear the loss of one, five the loss of two; an
even number bears no more than one fewer. So the second one waits until there is a third.")]
    Add {
        /// Its name
        name: String,
        /// Where it listens
        address: SocketAddr,
        /// It votes, and leads only while no other one can
        #[arg(long)]
        tie_breaker: bool,
    },
    /// Do without an MDM from now on, whether it works or not
    #[command(after_help = "Example:\n  gabion mdm remove mdm2")]
    Remove {
        /// Which one
        name: String,
    },
    /// Let another MDM lead
    #[command(after_help = "Example:\n  gabion mdm switch mdm2")]
    Switch {
        /// Which one [default: the best of the others]
        name: Option<String>,
    },
    /// Kill an MDM of a cluster started by `up`, with SIGKILL; volumes are served without it
    #[command(after_help = "Example:\n  gabion mdm kill && gabion mdm start")]
    Kill {
        /// Which one, as `2` or `mdm2` [default: the first]
        name: Option<String>,
    },
    /// Start an MDM of a cluster started by `up` again, with what its log holds
    Start {
        /// Which one, as `2` or `mdm2` [default: the first]
        name: Option<String>,
    },
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
        MdmCommand::List { json } => roster::list(target, *json)?,
        MdmCommand::Add { name, address, tie_breaker } => {
            roster::add(target, name, *address, *tie_breaker)?;
        }
        MdmCommand::Remove { name } => roster::remove(target, name)?,
        MdmCommand::Switch { name } => roster::switch(target, name.as_deref())?,
        MdmCommand::Kill { name } => {
            let dir = target.local()?;
            let name = cluster::mdm_name(&dir, name.as_deref())?;
            let pid = cluster::kill(&dir, &name)?;
            println!("Killed the MDM, pid {pid}.");
        }
        MdmCommand::Start { name } => {
            let dir = target.local()?;
            let name = cluster::mdm_name(&dir, name.as_deref())?;
            let pid = cluster::start(&dir, &name, START_TIMEOUT, || target.connect().is_ok())?;
            println!("The MDM runs, pid {pid}.");
        }
    }
    Ok(Exit::Ok)
}
