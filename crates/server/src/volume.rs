//! `gabion volume create|list|resize|delete`.

use crate::exit::Exit;
use crate::report::Volume;
use crate::size::Size;
use crate::target::Target;
use crate::{spec, status};
use anyhow::{Result, bail};
use clap::Subcommand;
use std::io::{IsTerminal, Write, stdin, stdout};

/// What to do with volumes.
#[derive(Subcommand, Debug)]
pub enum VolumeCommand {
    /// Make a volume; it takes space only as it is written
    #[command(after_help = "Example:\n  gabion volume create db1 20GiB")]
    Create {
        /// 1 to 31 of the characters a-z A-Z 0-9 - _ .
        #[arg(value_parser = spec::volume_name)]
        name: String,
        /// As in 20GiB; rounded up to 1 MiB
        #[arg(value_parser = spec::volume_size)]
        size: Size,
    },
    /// List the volumes
    #[command(after_help = "Example:\n  gabion volume list --json | jq -r '.[].nbd_uris[0]'")]
    List {
        /// Print a JSON array, with the fields of `volumes` in docs/reference/status.md
        #[arg(long)]
        json: bool,
    },
    /// Grow a volume while it is in use; clients see the new size when they connect again
    #[command(after_help = "Example:\n  gabion volume resize db1 40GiB")]
    Resize {
        /// Which volume
        name: String,
        /// Its new size, not below the present one; rounded up to 1 MiB
        #[arg(value_parser = spec::volume_size)]
        size: Size,
    },
    /// Delete a volume and all its data
    #[command(after_help = "Example:\n  gabion volume delete db1 --yes")]
    Delete {
        /// Which volume
        name: String,
        /// Don't ask
        #[arg(long)]
        yes: bool,
    },
}

/// Runs `gabion volume`.
pub fn run(target: &Target, command: &VolumeCommand) -> Result<Exit> {
    match command {
        VolumeCommand::Create { name, size } => {
            let made = target.connect()?.create_volume(name, size.0)?;
            println!("Volume {} of {} is there.", made.name, Size(made.size));
            let volumes = status::ask(target)?.volumes;
            if let Some(uri) = volumes.iter().find(|v| v.name == *name).and_then(uri) {
                println!("Attach it as {uri}");
            }
        }
        VolumeCommand::List { json } => {
            let report = status::ask(target)?;
            if *json {
                println!("{}", serde_json::to_string_pretty(&report.volumes)?);
            } else {
                println!("{}", status::volumes(&report));
            }
        }
        VolumeCommand::Resize { name, size } => {
            let grown = target.connect()?.resize_volume(name, size.0)?;
            println!("Volume {} has {} now.", grown.name, Size(grown.size));
        }
        VolumeCommand::Delete { name, yes } => {
            if !yes {
                confirm(name)?;
            }
            target.connect()?.delete_volume(name)?;
            println!("Volume {name} is deleted.");
        }
    }
    Ok(Exit::Ok)
}

fn uri(volume: &Volume) -> Option<&String> {
    volume.nbd_uris.first()
}

fn confirm(name: &str) -> Result<()> {
    if !stdin().is_terminal() {
        bail!("deleting {name} destroys its data: say so with --yes");
    }
    print!("This destroys all data of {name}. Type its name to go on: ");
    stdout().flush()?;
    let mut answer = String::new();
    stdin().read_line(&mut answer)?;
    if answer.trim() != name {
        bail!("{name} was not deleted");
    }
    Ok(())
}
