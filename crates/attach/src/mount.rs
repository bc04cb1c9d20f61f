//! `gabion mount`: shows volumes as files, until the folder is unmounted or the process is
//! signalled.

use crate::client::{Client, Name};
use crate::folder::Shown;
use crate::serve::Server;
use crate::signals;
use admin::exit::Exit;
use anyhow::Result;
use clap::Args;
use daemon::process::Process;
use daemon::{safety, spec};
use fleet::target::Target;
use fleet::{eprintln, println};
use std::path::PathBuf;

/// Options of `gabion mount`.
#[derive(Args, Debug)]
#[command(after_help = "\
Each file is a volume: it has the volume's size, and programs write it in whole sectors of 512 \
bytes. Punching holes gives space back. The files are for programs that use disk images, such as \
QEMU; for a file system, use `gabion attach`.

Examples:
  gabion mount /mnt/volumes
  gabion mount /mnt/volumes --volume vol1
  umount /mnt/volumes               ends it")]
pub struct MountArgs {
    /// An existing folder
    folder: PathBuf,
    /// Show only this volume
    #[arg(long, value_name = "NAME")]
    volume: Option<String>,
    /// The client's name, where volumes are mapped by name; no running client may have it
    /// [default: HOST-mount-N]
    #[arg(long, value_name = "SDC", value_parser = spec::peer_name)]
    client: Option<String>,
    /// Write the process id to this file
    #[arg(long, hide = true)]
    pid_file: Option<PathBuf>,
}

/// Runs `gabion mount`.
pub fn run(target: &Target, args: &MountArgs) -> Result<Exit> {
    let mdm = target.mdms()?;
    let mut client = Client::open(&mdm, Name::numbered(target, args.client.as_deref())?)?;
    let shown = match &args.volume {
        None => Shown::All,
        Some(name) => {
            let volume = client.find(name)?.id;
            client.hold(volume);
            client.turn()?;
            Shown::One(volume)
        }
    };
    let mut stop = signals::stop()?;
    let mut server = Server::mount(client, &args.folder, shown)?;
    safety::protect().iter().for_each(|warning| eprintln!("{warning}"));
    if let Some(file) = &args.pid_file {
        Process::this()?.write(file)?;
    }
    println!("The volumes are now files in {}.", args.folder.display());
    server.run(&mut stop)?;
    Ok(Exit::Ok)
}
