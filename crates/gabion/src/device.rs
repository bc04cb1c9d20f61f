//! `gabion device`: the devices of servers, and whether one can be trusted with data.

use crate::show::{self, Answer, Object};
use admin::exit::Exit;
use anyhow::Result;
use clap::Subcommand;
use daemon::size::Size;
use daemon::spec::DeviceSpec;
use fleet::device::roster::{self, Server};
use fleet::device::{grow, probe, scrub};
use fleet::removal::Removal;
use fleet::target::Target;
use std::path::PathBuf;

/// Subcommands of `gabion device`.
#[derive(Subcommand, Debug)]
pub(crate) enum DeviceCommand {
    /// List all devices
    #[command(after_help = "\
Example:
  gabion device list --json | jq -r '.[] | select(.state == \"down\").id'")]
    List {
        /// Print a JSON array, with the fields of `sds[].devices` in docs/reference/status.md
        #[arg(long)]
        json: bool,
    },
    /// Show one device
    #[command(after_help = "Example:\n  gabion device show 7")]
    Show {
        /// Its number
        #[arg(value_name = "ID", value_parser = id)]
        id: u32,
        /// Print one JSON object, with the fields of `sds[].devices` in docs/reference/status.md
        #[arg(long)]
        json: bool,
    },
    /// Add a device to a server, while it runs
    #[command(after_help = "\
The path must be empty, and the device's flushes must be real (see `gabion device probe`).

Examples:
  gabion device add file:/mnt/ssd1/gabion:200GiB --sds 2
  gabion device add block:/dev/sdb --config /etc/gabion/sds.toml")]
    Add {
        /// file:PATH:SIZE, block:PATH, ram:SIZE or null:SIZE
        #[arg(value_name = "SPEC")]
        spec: DeviceSpec,
        #[command(flatten)]
        server: Server,
        /// Its storage pool; needed where there are several
        #[arg(long)]
        pool: Option<String>,
        /// Replace this device, which is gone for good
        #[arg(long, value_name = "ID", value_parser = id)]
        replace: Option<u32>,
        /// DESTROY what is there, and trust flushes that can't be real
        #[arg(long)]
        force: bool,
    },
    /// Add a device that holds data of this cluster to a server, and use its data
    #[command(after_help = "\
For a disk that was moved from another server, or comes back after `gabion device remove --now`.

Example:
  gabion device import file:/mnt/moved/sds1.0 --sds 2")]
    Import {
        /// file:PATH or block:PATH
        #[arg(value_name = "SPEC")]
        spec: DeviceSpec,
        #[command(flatten)]
        server: Server,
    },
    /// Let a new device get copies, in a pool whose new devices wait (`gabion pool set
    /// --new-devices wait`)
    #[command(after_help = "Example:\n  gabion device admit 7")]
    Admit {
        /// Its number
        #[arg(value_name = "ID", value_parser = id)]
        id: u32,
        #[command(flatten)]
        answer: Answer,
    },
    /// Remove a device; its data moves to others first, with two copies all the time
    #[command(after_help = "\
Refused when the others have no room for it, or would be too few servers. Ctrl-C does not stop the \
removal; --keep cancels it.

With --now it is taken out of its server at once, and its data stays on it: groups with a copy on \
it go on with the other copy, degraded, until it is imported again, or rebuilt elsewhere after a \
minute.

Examples:
  gabion device remove 7 --sds 2
  gabion device remove 7 --sds 2 --keep     it stays after all
  gabion device remove 7 --sds 2 --now      to carry it to another server")]
    Remove {
        /// Its number
        #[arg(value_name = "ID", value_parser = id)]
        id: u32,
        #[command(flatten)]
        server: Server,
        #[command(flatten)]
        removal: Removal,
        /// Remove it at once, with its data on it
        #[arg(long, conflicts_with_all = ["keep", "detach"])]
        now: bool,
        /// Remove it even when data can't be used without it
        #[arg(long, requires = "now")]
        force: bool,
    },
    /// Use more of a device, while its server runs: enlarge a file, or use a disk that has grown
    #[command(after_help = "\
The server opens the device again, which takes a moment; the other copies serve meanwhile. Writes \
that wait for space resume automatically. A device grows by at least 16 MiB at a time, up to 16 \
times, and never shrinks.

Examples:
  gabion device grow 7 40GiB --sds 2      a file: it gets that size
  gabion device grow 7 --sds 2            a block device that was enlarged, as with lvextend")]
    Grow {
        /// Its number
        #[arg(value_name = "ID", value_parser = id)]
        id: u32,
        /// Its new size; leave it out for a block device, whose size the kernel knows
        #[arg(value_name = "SIZE")]
        size: Option<Size>,
        #[command(flatten)]
        server: Server,
        /// Do it even when data can't be used while the device is opened again
        #[arg(long)]
        force: bool,
    },
    /// Read everything that is stored, compare it with its checksums, repair damage
    #[command(after_help = "\
Scrubbing runs regularly in the background. This starts a pass now, and shows its progress; Ctrl-C \
leaves it running.

Exit code 1 when something is damaged that has no other copy, or when a device went down before \
all of it was read.

Examples:
  gabion device scrub
  gabion device scrub 7 --detach")]
    Scrub {
        /// Scrub only this device
        #[arg(value_name = "ID", value_parser = id)]
        id: Option<u32>,
        /// Don't wait until it is done
        #[arg(long)]
        detach: bool,
    },
    /// Find out what a device promises, how fast it is, and whether its flushes can be real
    #[command(after_help = "\
Examples:
  gabion device probe disk1      the file system that disk1 lies on, or would, with a scratch file
                                 beside it
  gabion device probe /dev/sdb   a block device; it is written to only when it is empty

Exit code 1 when its flushes can't be real: data would not survive a power loss. \
docs/reference/probe.md says what can be found out and what can't.")]
    Probe {
        /// A file, which need not exist, a folder, or a block device
        path: PathBuf,
        /// Write to a block device that is not empty; its content is restored at the end
        #[arg(long)]
        force: bool,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
}

impl DeviceCommand {
    /// Returns true when it is about a server that `gabion up` runs here.
    pub(crate) fn is_local(&self) -> bool {
        match self {
            DeviceCommand::Add { server, .. }
            | DeviceCommand::Import { server, .. }
            | DeviceCommand::Remove { server, .. }
            | DeviceCommand::Grow { server, .. } => server.is_local(),
            DeviceCommand::List { .. }
            | DeviceCommand::Show { .. }
            | DeviceCommand::Admit { .. }
            | DeviceCommand::Scrub { .. }
            | DeviceCommand::Probe { .. } => false,
        }
    }
}

/// Parses `7` or `dev7`.
fn id(text: &str) -> Result<u32, String> {
    let number = text.strip_prefix("dev").unwrap_or(text);
    number.parse().map_err(|_| format!("`{text}` is not a device: write a number, as in 7 or dev7"))
}

/// Runs `gabion device`.
pub(crate) fn run(target: &Target, command: &DeviceCommand) -> Result<Exit> {
    match command {
        DeviceCommand::List { json } => roster::list(target, *json),
        DeviceCommand::Add { spec, server, pool, replace, force } => {
            roster::add(target, server, spec, pool.clone(), *replace, *force)
        }
        DeviceCommand::Import { spec, server } => roster::import(target, server, spec),
        DeviceCommand::Remove { id, server, now: true, force, .. } => {
            roster::take_out(target, server, *id, *force)
        }
        DeviceCommand::Remove { id, server, removal, .. } => {
            roster::remove(target, server, *id, *removal)
        }
        DeviceCommand::Show { id, json } => {
            show::show(target, Object::Device(*id), *json)?;
            Ok(Exit::Ok)
        }
        DeviceCommand::Admit { id, answer } => {
            target.connect()?.admit(*id, "")?;
            let text = format!("dev{id} gets copies from now on.");
            answer.print(target, Object::Device(*id), &text)?;
            Ok(Exit::Ok)
        }
        DeviceCommand::Grow { id, size, server, force } => {
            grow::run(target, server, *id, *size, *force)
        }
        DeviceCommand::Scrub { id, detach } => scrub::run(target, *id, *detach),
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
