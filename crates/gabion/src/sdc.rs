//! `gabion sdc run|list|rename|remove|kill|start`.

use crate::runopts::RunArgs;
use crate::show::{self, Answer, Object};
use admin::exit::Exit;
use admin::report::Report;
use anyhow::Result;
use clap::Subcommand;
use daemon::config::{self, SDC_EXAMPLE, SdcConfig};
use daemon::role_sdc;
use fleet::cluster;
use fleet::table::{right, table};
use fleet::target::Target;
use std::time::Duration;
use wire::control::{Ask, ObjectKind, RemoveObject};

const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Subcommands of `gabion sdc`.
#[derive(Subcommand, Debug)]
pub(crate) enum SdcCommand {
    /// Run a data client (SDC) that serves volumes over NBD, iSCSI or NVMe/TCP, until SIGTERM
    #[command(after_help = "\
Examples:
  gabion sdc run --example-config > /etc/gabion/sdc.toml
  gabion sdc run --config /etc/gabion/sdc.toml")]
    Run(RunArgs),
    /// Kill the SDC of a cluster started by `up`, with SIGKILL
    #[command(after_help = "Example:\n  gabion sdc kill && gabion sdc start")]
    Kill,
    /// List the data clients
    #[command(after_help = "Example:\n  gabion sdc list")]
    List {
        /// Print a JSON array, with the fields of `sdc` in docs/reference/status.md
        #[arg(long)]
        json: bool,
    },
    /// Show one data client
    #[command(after_help = "Example:\n  gabion sdc show web1")]
    Show {
        /// Its name
        name: String,
        /// Print one JSON object, with the fields of `sdc` in docs/reference/status.md
        #[arg(long)]
        json: bool,
    },
    /// Rename a data client, for people
    #[command(after_help = "\
Its configuration keeps the old name, which identifies it.

Example:
  gabion sdc rename sdc web1")]
    Rename {
        /// Its name
        name: String,
        /// Its new name
        to: String,
        #[command(flatten)]
        answer: Answer,
    },
    /// Remove a data client that is gone for good
    #[command(after_help = "\
It has to be off, and no volume may be mapped to it by name. If its process does run, cut off from \
the MDM, the data servers do nothing for it any more. When it reaches the MDM, it disconnects all \
of its hosts and serves nobody: stop it. A process that is started with its configuration later is \
a new client.

Example:
  gabion sdc remove web1")]
    Remove {
        /// Its name
        name: String,
        #[command(flatten)]
        answer: Answer,
    },
    /// Start the SDC of a cluster started by `up` again
    #[command(after_help = "Example:\n  gabion sdc start")]
    Start,
}

/// Runs `gabion sdc`.
pub(crate) fn run(target: &Target, command: &SdcCommand) -> Result<Exit> {
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
        SdcCommand::List { json } => {
            let report = target.report()?;
            if *json {
                println!("{}", serde_json::to_string_pretty(&report.sdc)?);
            } else {
                println!("{}", clients(&report));
            }
        }
        SdcCommand::Show { name, json } => show::show(target, Object::Sdc(name), *json)?,
        SdcCommand::Rename { name, to, answer } => {
            target.connect()?.rename(ObjectKind::Sdc, name, to)?;
            answer.print(target, Object::Sdc(to), &format!("{name} is called {to} now."))?;
        }
        SdcCommand::Remove { name, answer } => {
            let (kind, name) = (ObjectKind::Sdc as i32, name.clone());
            let ask = Ask::RemoveObject(RemoveObject { kind, name: name.clone() });
            target.connect()?.order(ask)?;
            answer.print_removed(Object::Sdc(&name), &format!("{name} is removed."));
        }
        SdcCommand::Start => {
            let dir = target.local()?;
            let pid = cluster::start(&dir, "sdc", START_TIMEOUT, || {
                let (Some(process), Ok(report)) = (dir.process("sdc"), target.report()) else {
                    return false;
                };
                report.sdc.iter().any(|s| s.pid == process.pid)
            })?;
            println!("The SDC runs, pid {pid}.");
        }
    }
    Ok(Exit::Ok)
}

fn clients(report: &Report) -> String {
    let (nbd, iscsi, nvme) = ("nbd connections", "iscsi sessions", "nvme hosts");
    let mut t = table(&["sdc", "state", "pid", nbd, iscsi, nvme, "volumes mapped", "nbd"]);
    right(&mut t, &[2, 3, 4, 5, 6]);
    for sdc in &report.sdc {
        let mapped = report
            .volumes
            .iter()
            .filter(|v| v.mapped.iter().any(|to| to.all || to.sdc == sdc.name));
        t.add_row([
            sdc.name.clone(),
            sdc.state.to_string(),
            sdc.pid.to_string(),
            sdc.nbd_connections.to_string(),
            sdc.iscsi_sessions.to_string(),
            sdc.nvme_hosts.to_string(),
            mapped.count().to_string(),
            sdc.nbd_uris.first().cloned().unwrap_or_default(),
        ]);
    }
    t.to_string()
}
