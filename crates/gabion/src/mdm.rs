//! `gabion mdm run|list|add|remove|switch|backup|recover|restore|kill|start`.

pub(crate) mod recovery;
mod roster;

use crate::runopts::RunArgs;
use crate::show::{self, Object};
use admin::Admin;
use admin::exit::Exit;
use anyhow::Result;
use clap::Subcommand;
use daemon::config::{self, MDM_EXAMPLE, MdmConfig};
use daemon::{lost_log, role_mdm};
use fleet::cluster;
use fleet::statedir::StateDir;
use fleet::target::Target;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Subcommands of `gabion mdm`.
#[derive(Subcommand, Debug)]
pub(crate) enum MdmCommand {
    /// Run a metadata manager (MDM) until SIGTERM
    #[command(after_help = "\
Examples:
  gabion mdm run --example-config > /etc/gabion/mdm.toml
  gabion mdm run --config /etc/gabion/mdm.toml")]
    Run(RunArgs),
    /// List the MDMs of the cluster, as the leader sees them
    #[command(
        after_help = "Example:\n  gabion mdm list --json | jq -r '.[] | select(.leads).name'"
    )]
    List {
        /// Print a JSON array
        #[arg(long)]
        json: bool,
    },
    /// Show one MDM
    #[command(after_help = "Example:\n  gabion mdm show mdm2")]
    Show {
        /// Its name
        name: String,
        /// Print one JSON object, with the fields of `mdm` in docs/reference/status.md
        #[arg(long)]
        json: bool,
    },
    /// Add an MDM to the cluster; it has to run with `join = true` and an empty log
    #[command(after_help = "\
Examples:
  gabion mdm add mdm2 192.168.1.11:7001
  gabion mdm add mdm3 192.168.1.12:7001 --tie-breaker

MDMs vote, and more than half of them have to work. Three survive the loss of one, five the loss \
of two; an even number survives no more than one fewer. So the second one waits until there is a \
third.")]
    Add {
        /// Its name
        name: String,
        /// Where it listens, as HOST:PORT
        #[arg(value_parser = fleet::target::address)]
        address: SocketAddr,
        /// Make it a tie-breaker: it votes, and leads only while no other one can
        #[arg(long)]
        tie_breaker: bool,
    },
    /// Remove an MDM from the cluster, whether it works or not
    #[command(after_help = "Example:\n  gabion mdm remove mdm2")]
    Remove {
        /// Its name
        name: String,
    },
    /// Transfer leadership to another MDM
    #[command(after_help = "Example:\n  gabion mdm switch mdm2")]
    Switch {
        /// Its name [default: the best of the others]
        name: Option<String>,
    },
    /// Write everything that the MDMs know into a file, while they serve
    #[command(after_help = "Example:\n  gabion mdm backup /backup/gabion-$(date +%F).mdm")]
    Backup {
        /// The file; it must not exist yet
        file: PathBuf,
    },
    /// Let one MDM go on alone when most of them are lost for good
    #[command(after_help = "\
Examples:
  gabion mdm recover --mdm 192.168.1.11:7001     stop and clear the lost ones first, if anything is
                                                 left of them
  gabion mdm recover --finish                    don't wait any more for servers that don't report
  gabion mdm recover --delete-volumes 7,9        delete what servers hold of volumes that no MDM
                                                 knows any more

Refused while most MDMs work. This one may not know the last decisions of the lost ones; it asks \
all servers what they know of them. Afterwards `gabion mdm add` brings the others back. \
docs/operate/managers.md tells which way is right when.")]
    Recover {
        /// Don't ask
        #[arg(long)]
        yes: bool,
        /// End a recovery without the servers that it waits for: groups that only they can decide
        /// are not served until they come, or are given up
        #[arg(long)]
        finish: bool,
        /// Delete the data of volumes that the MDM does not know, by their ids in `gabion status`
        #[arg(long, value_name = "ID", value_delimiter = ',', conflicts_with = "finish")]
        delete_volumes: Vec<u32>,
    },
    /// Create the log of a new MDM from a backup, when all MDMs are lost for good
    #[command(after_help = "\
Example:
  gabion mdm restore /backup/gabion-2026-11-23.mdm --config /etc/gabion/mdm.toml
  systemctl start gabion-mdm")]
    Restore {
        /// The backup
        file: PathBuf,
        /// The configuration of the MDM that gets the log [default: that of the first MDM of a
        /// cluster started by `up`]
        #[arg(long)]
        config: Option<PathBuf>,
        /// Don't ask
        #[arg(long)]
        yes: bool,
    },
    /// Kill an MDM of a cluster started by `up`, with SIGKILL; volumes are served without it
    #[command(after_help = "Example:\n  gabion mdm kill && gabion mdm start")]
    Kill {
        /// Which one, as `2` or `mdm2` [default: the first]
        name: Option<String>,
    },
    /// Start an MDM of a cluster started by `up` again, with what its log holds
    #[command(after_help = "Example:\n  gabion mdm start 2")]
    Start {
        /// Which one, as `2` or `mdm2` [default: the first]
        name: Option<String>,
    },
}

/// Runs `gabion mdm start`. If too few MDMs run for one to lead, prints which ones are missing.
fn start(target: &Target, dir: &StateDir, name: &str) -> Result<()> {
    let all: Vec<String> = dir.configured()?.into_iter().filter(|n| n.starts_with("mdm")).collect();
    let own = config::read::<MdmConfig>(&dir.config_file(name))?.listen;
    let missing =
        || -> Vec<String> { all.iter().filter(|n| dir.process(n).is_none()).cloned().collect() };
    // After a recovery or a restoration it may be the only MDM.
    let alone = || Admin::direct(own).is_ok_and(|(_, welcome)| welcome.mdms.len() == 1);
    let too_few = || (all.len() - missing().len()) * 2 <= all.len() && !alone();
    let serves = || match too_few() {
        true => Admin::answers(own),
        false => target.connect().is_ok(),
    };
    let pid = cluster::start(dir, name, START_TIMEOUT, serves)?;
    if !too_few() {
        println!("The MDM runs, pid {pid}.");
        return Ok(());
    }
    let (back, gone): (Vec<_>, Vec<_>) =
        missing().into_iter().partition(|name| dir.mdm_log(name).exists());
    let option = target.dir_option();
    let mut what = String::new();
    if !back.is_empty() {
        what += &format!(" `gabion mdm start` starts these: {}.", back.join(", "));
    }
    if !gone.is_empty() {
        what += &format!(
            " The logs of these are gone: {}. If too few are left without them: `gabion mdm \
             recover{option}`.",
            gone.join(", ")
        );
    }
    println!(
        "{name} runs, pid {pid}, and waits for others: {} of {} MDMs have to run before one of \
         them leads.{what} Running servers serve volumes meanwhile.",
        all.len() / 2 + 1,
        all.len(),
    );
    Ok(())
}

/// Runs `gabion mdm`.
pub(crate) fn run(target: &Target, command: &MdmCommand) -> Result<Exit> {
    match command {
        MdmCommand::Run(args) => {
            let Some(file) = args.config_or_example(MDM_EXAMPLE)? else { return Ok(Exit::Ok) };
            let mut config: MdmConfig = config::read(file)?;
            lost_log::refuse_another(&config, file, false)?;
            config.backend.0 = args.backend.unwrap_or(config.backend.0);
            role_mdm::run(&config)?;
        }
        MdmCommand::List { json } => roster::list(target, *json)?,
        MdmCommand::Show { name, json } => show::show(target, Object::Mdm(name), *json)?,
        MdmCommand::Add { name, address, tie_breaker } => {
            roster::add(target, name, *address, *tie_breaker)?;
        }
        MdmCommand::Remove { name } => roster::remove(target, name)?,
        MdmCommand::Switch { name } => roster::switch(target, name.as_deref())?,
        MdmCommand::Backup { file } => recovery::backup(target, file)?,
        MdmCommand::Recover { finish: true, yes, .. } => return recovery::finish(target, *yes),
        MdmCommand::Recover { yes, delete_volumes: ids, .. } if !ids.is_empty() => {
            recovery::delete(target, ids, *yes)?;
        }
        MdmCommand::Recover { yes, .. } => return recovery::recover(target, *yes),
        MdmCommand::Restore { file, config, yes } => {
            recovery::restore(target, file, config.as_deref(), *yes)?;
        }
        MdmCommand::Kill { name } => {
            let dir = target.local()?;
            let name = cluster::mdm_name(&dir, name.as_deref())?;
            let pid = cluster::kill(&dir, &name)?;
            println!("Killed {name}, pid {pid}.");
        }
        MdmCommand::Start { name } => {
            let dir = target.local()?;
            let name = cluster::mdm_name(&dir, name.as_deref())?;
            let file = dir.config_file(&name);
            lost_log::refuse_another(&config::read(&file)?, &file, true)?;
            start(target, &dir, &name)?;
        }
    }
    Ok(Exit::Ok)
}
