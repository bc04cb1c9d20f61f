//! `gabion inspect DEVICE`: what is on one device, without a cluster and without changing a byte of it.
//!
//! The device is opened for reading, and mounted like at a server's start, with the difference that what
//! replay and checkpoint write stays in memory. So what is shown, verified and exported is what a server
//! would serve from it.

mod export;
mod page;
pub mod report;
mod verify;

use crate::exit::Exit;
use crate::offline::{self, Offline};
use crate::target::Target;
use anyhow::{Context, Result, bail};
use base::VolumeId;
use clap::{Args, Subcommand};
use report::Copies;
use std::path::{Path, PathBuf};
use store::durable::Tuning;

/// Options of `gabion inspect`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  gabion inspect disk1                    what is on it
  gabion inspect /dev/sdb verify          read everything, compare all checksums
  gabion inspect disk1 export --volume 3 --out vol3.img
                                          what it holds of a volume, as a sparse file

The device must not be in use. It is not changed.
docs/reference/inspect.md describes the fields of --json.")]
pub struct InspectArgs {
    /// A file or block device of a data server
    device: PathBuf,
    /// Print one JSON document
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Read all data and compare it with its checksums; exit code 1 when damage is found
    Verify,
    /// Write what the device holds of a volume into a sparse file
    Export {
        /// The volume's number, or its name if its cluster can be asked
        #[arg(long, value_name = "NAME|ID")]
        volume: String,
        /// The file to be made
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
}

/// Runs `gabion inspect`.
pub fn run(target: &Target, args: &InspectArgs) -> Result<Exit> {
    let mut drive = offline::read_only(&args.device)?;
    let (bytes, copies) = (drive.bytes(), Copies::read(&mut drive)?);
    let mounted = Offline::mount(drive, Tuning::SHIPPED);
    let Some(what) = &args.what else {
        return show(args, bytes, &copies, mounted);
    };
    let named = || format!("{}", args.device.display());
    let mut device = mounted.with_context(named)?;
    match what {
        What::Verify => verify::run(&mut device, &args.device, &copies, args.json),
        What::Export { volume, out } => {
            let volume = volume_id(target, volume, &device)?;
            export::run(&mut device, volume, out, args.json)
        }
    }
}

fn show(
    args: &InspectArgs,
    bytes: u64,
    copies: &Copies,
    mounted: Result<Offline, offline::MountFailure>,
) -> Result<Exit> {
    let (store, error) = match &mounted {
        Ok(device) => (Some(device.store()), None),
        Err(error) => (None, Some(error.to_string())),
    };
    let report = report::Report::new(&args.device, bytes, copies, store, error);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", page::of(&report));
    }
    match mounted {
        Ok(_) => Ok(Exit::Ok),
        Err(error) => bail!("{}: {error}", args.device.display()),
    }
}

/// Which volume is meant.
fn volume_id(target: &Target, text: &str, device: &Offline) -> Result<VolumeId> {
    let number = text.strip_prefix("vol").unwrap_or(text).parse::<u32>();
    if let Ok(number) = number {
        return Ok(VolumeId(number));
    }
    let here = report::volumes(device.store());
    let here: Vec<String> = here.iter().map(|v| v.id.to_string()).collect();
    let hint = format!(
        "a device knows volumes by number only, this one has {}: give the number",
        if here.is_empty() { "none".to_owned() } else { here.join(", ") }
    );
    let asked = crate::status::ask(target);
    let report =
        asked.with_context(|| format!("can't ask a cluster which volume is {text}; {hint}"))?;
    match report.volumes.iter().find(|v| v.name == text) {
        Some(volume) => Ok(VolumeId(volume.id)),
        None => bail!("cluster {} has no volume {text}; {hint}", report.cluster),
    }
}

/// How a device is called in a document.
fn name(path: &Path) -> String {
    path.display().to_string()
}
