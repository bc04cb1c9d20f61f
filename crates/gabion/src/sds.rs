//! `gabion sds run|list|show|kill|maintain|remove|rename|start`.

use crate::show::{self, Answer, Object};
use crate::{runopts::RunArgs, status};
use admin::exit::Exit;
use admin::report::UpDown;
use anyhow::Result;
use clap::Subcommand;
use daemon::config::SDS_EXAMPLE;
use daemon::role_sds;
use fleet::cluster;
use fleet::maintenance::Maintenance;
use fleet::removal::{Removal, What};
use fleet::target::Target;
use std::time::Duration;
use wire::control::ObjectKind;

const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Subcommands of `gabion sds`.
#[derive(Subcommand, Debug)]
pub(crate) enum SdsCommand {
    /// Run a data server (SDS) until SIGTERM; with several --config, several on one thread
    #[command(after_help = "\
Examples:
  gabion sds run --example-config > /etc/gabion/sds.toml
  gabion sds run --config /etc/gabion/sds.toml
  gabion sds run --config a.toml --config b.toml     two servers that share a process and its end")]
    Run(RunArgs),
    /// List the data servers and their devices
    #[command(after_help = "\
Example:
  gabion sds list --json | jq -r '.[] | select(.state == \"down\").name'")]
    List {
        /// Print a JSON array, with the fields of `sds` in docs/reference/status.md
        #[arg(long)]
        json: bool,
    },
    /// Show one data server
    #[command(after_help = "Example:\n  gabion sds show 2")]
    Show {
        /// Its number or name
        #[arg(value_name = "N")]
        which: String,
        /// Print one JSON object, with the fields of `sds` in docs/reference/status.md
        #[arg(long)]
        json: bool,
    },
    /// Kill an SDS of a cluster started by `up`, with SIGKILL: its RAM devices are lost
    #[command(after_help = "\
With `up --sds-per-process` this kills the process, and every SDS that shares it.

Example:
  gabion sds kill 2")]
    Kill {
        /// Its number or name
        #[arg(value_name = "N")]
        which: String,
    },
    /// Put a server into maintenance before it is turned off for a while, or end the maintenance
    #[command(after_help = "\
Others take over the groups that it leads, so turning it off disturbs no client. Its copies are \
not rebuilt elsewhere, however long it is off; when it is back it gets the writes that it has \
missed. Until then there is one copy of what it holds, unless --protected has moved its data to \
others first. One server at a time; refused when something would not be served without it.

Examples:
  gabion sds maintain 2                 then turn it off, work on it, turn it on
  gabion sds maintain 2 --end
  gabion sds maintain 2 --protected     two copies all the time, for the price of moving its data")]
    Maintain {
        /// Its number or name
        #[arg(value_name = "N")]
        which: String,
        #[command(flatten)]
        maintenance: Maintenance,
    },
    /// Let the new devices of a server get copies, in pools whose new devices wait
    #[command(after_help = "Example:\n  gabion sds admit 4")]
    Admit {
        /// Its number or name
        #[arg(value_name = "N")]
        which: String,
        #[command(flatten)]
        answer: Answer,
    },
    /// Remove a server; its data moves to others first, with two copies all the time
    #[command(after_help = "\
Refused when the others have no room for it, or would be too few. Ctrl-C does not stop the \
removal; --keep cancels it. After it the server's process can be stopped; it is not part of the \
cluster any more.

Examples:
  gabion sds remove 2
  gabion sds remove 2 --keep     it stays after all")]
    Remove {
        /// Its number or name
        #[arg(value_name = "N")]
        which: String,
        #[command(flatten)]
        removal: Removal,
    },
    /// Rename a data server, for people
    #[command(after_help = "\
Its configuration keeps the old name, which identifies it.

Example:
  gabion sds rename sds1 rack1-node1")]
    Rename {
        /// Its name
        name: String,
        /// Its new name
        to: String,
        #[command(flatten)]
        answer: Answer,
    },
    /// Start a killed SDS of a cluster started by `up` again; it is filled from the other copies
    #[command(after_help = "Example:\n  gabion sds start 2")]
    Start {
        /// Its number or name
        #[arg(value_name = "N")]
        which: String,
    },
}

/// Runs `gabion sds`.
pub(crate) fn run(target: &Target, command: &SdsCommand) -> Result<Exit> {
    match command {
        SdsCommand::Run(args) => {
            let Some(files) = args.configs_or_example(SDS_EXAMPLE) else { return Ok(Exit::Ok) };
            role_sds::run(files, args.backend)?;
        }
        SdsCommand::List { json } => {
            let report = target.report()?;
            if *json {
                println!("{}", serde_json::to_string_pretty(&report.sds)?);
            } else {
                println!("{}", status::servers(&report));
            }
        }
        SdsCommand::Show { which, json } => {
            show::show(target, Object::Sds(&named(which)), *json)?;
        }
        SdsCommand::Kill { which } => {
            let dir = target.local()?;
            let name = cluster::sds_name(&dir, which)?;
            let pid = cluster::kill(&dir, &name)?;
            println!("Killed {name}, pid {pid}.{}", shared(&dir, &name, "are gone, too")?);
        }
        SdsCommand::Maintain { which, maintenance } => maintenance.run(target, &named(which))?,
        SdsCommand::Remove { which, removal } => {
            let name = named(which);
            if removal.run(target, What::Server(&name))? {
                println!(
                    "{name} is removed, and holds nothing that is needed any more: stop it \
                     (`gabion sds kill {which}`, if `gabion up` runs it)."
                );
            }
        }
        SdsCommand::Admit { which, answer } => {
            let name = named(which);
            target.connect()?.admit(0, &name)?;
            let text = format!("The new devices of {name} get copies from now on.");
            answer.print(target, Object::Sds(&name), &text)?;
        }
        SdsCommand::Rename { name, to, answer } => {
            target.connect()?.rename(ObjectKind::Sds, name, to)?;
            answer.print(target, Object::Sds(to), &format!("{name} is called {to} now."))?;
        }
        SdsCommand::Start { which } => {
            let dir = target.local()?;
            let name = cluster::sds_name(&dir, which)?;
            let all = cluster::sharing_process(&dir, &name)?;
            let ready = || all.iter().all(|name| is_up(target, &dir, name));
            let pid = cluster::start(&dir, &name, START_TIMEOUT, ready)?;
            all.iter().try_for_each(|name| cluster::forget_replaced(&dir.config_file(name)))?;
            println!("{name} runs, pid {pid}.{}", shared(&dir, &name, "run again, too")?);
        }
    }
    Ok(Exit::Ok)
}

/// Returns the name of a server, which need not be one that `up` runs.
fn named(which: &str) -> String {
    which.parse::<u32>().map_or_else(|_| which.to_owned(), |n| format!("sds{n}"))
}

/// Returns a sentence about the servers that share a server's process, if there are any.
fn shared(dir: &fleet::statedir::StateDir, name: &str, what: &str) -> Result<String> {
    let others: Vec<String> =
        cluster::sharing_process(dir, name)?.into_iter().filter(|other| other != name).collect();
    if others.is_empty() {
        return Ok(String::new());
    }
    Ok(format!(" Sharing its process, these {what}: {}.", others.join(", ")))
}

/// Returns true when the MDM knows the process that runs under this name now.
fn is_up(target: &Target, dir: &fleet::statedir::StateDir, name: &str) -> bool {
    let (Some(process), Ok(report)) = (dir.process(name), target.report()) else {
        return false;
    };
    report
        .sds
        .iter()
        .any(|s| s.process_name == name && s.pid == process.pid && s.state == UpDown::Up)
}
