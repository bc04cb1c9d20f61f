//! `gabion vhost`: serves a volume to virtual machines as a virtio disk (vhost-user-blk).
//!
//! | file | content |
//! |---|---|
//! | `socket` | messages and file descriptors on a unix socket |
//! | `guest` | the memory of a virtual machine |
//! | `log` | the pages of that memory that were written, for a migration |
//! | `ring` | one queue, with the event descriptors of both sides |
//! | `connection` | one virtual machine: negotiated features, memory and rings |
//! | `slots` | the requests under way |
//! | `server` | the loop |

mod connection;
mod guest;
mod log;
mod ring;
mod server;
mod slots;
mod socket;

use crate::client::{Client, Name};
use crate::signals;
use admin::exit::{Exit, coded};
use anyhow::{Context, Result};
use clap::Args;
use daemon::process::Process;
use daemon::spec;
use fleet::println;
use fleet::target::Target;
use rt::{Listening, RtError};
use rustix::fs::Mode;
use server::Server;
use std::path::PathBuf;

/// Options of `gabion vhost`.
#[derive(Args, Debug)]
#[command(after_help = "\
This runs in the foreground until it is stopped. The virtual machine needs shared memory, and \
waits while this process is down (reconnect=1):

  qemu-system-x86_64 -m 2G \\
    -object memory-backend-memfd,id=mem,size=2G,share=on -machine memory-backend=mem \\
    -chardev socket,id=vol1,path=/run/gabion/vol1.sock,reconnect=1 \\
    -device vhost-user-blk-pci,chardev=vol1

Examples:
  gabion vhost vol1 --socket /run/gabion/vol1.sock
  gabion vhost vol1 --socket /run/gabion/vol1.sock --mode 660")]
pub struct VhostArgs {
    /// The volume
    volume: String,
    /// The unix socket at which virtual machines connect
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Permissions of the socket: who may connect
    #[arg(long, value_name = "OCTAL", default_value = "600", value_parser = mode)]
    mode: u32,
    /// The client's name, where volumes are mapped by name; no running client may have it
    /// [default: HOST-vhost-VOLUME]
    #[arg(long, value_name = "SDC", value_parser = spec::peer_name)]
    client: Option<String>,
    /// Write the process id to this file
    #[arg(long, hide = true)]
    pid_file: Option<PathBuf>,
}

/// Reads the rights of a file.
fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "write it as for `chmod`, such as 660".into())
}

/// Listens at a socket that only this user may connect to at first.
fn listen(args: &VhostArgs) -> Result<Listening> {
    let before = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let listening = Listening::unix(&args.socket);
    rustix::process::umask(before);
    let listening = listening.map_err(|why| match why {
        RtError::InUse { .. } => coded(Exit::InUse, why.to_string()),
        _ => why.into(),
    })?;
    rustix::fs::chmod(&args.socket, Mode::from_raw_mode(args.mode))
        .with_context(|| format!("can't change the rights of {}", args.socket.display()))?;
    rustix::io::ioctl_fionbio(&listening, true).context("can't listen without waiting")?;
    Ok(listening)
}

/// Runs `gabion vhost`.
pub fn run(target: &Target, args: &VhostArgs) -> Result<Exit> {
    let mdm = target.mdms()?;
    let name = Name::of(target, args.client.as_deref(), (&args.volume, "vhost"))?;
    let mut client = Client::open(&mdm, name)?;
    let volume = client.find(&args.volume)?;
    client.hold(volume.id);
    client.turn()?;
    let mut stop = signals::stop()?;
    let mut server = Server::new(client, volume.id, listen(args)?);
    if let Some(file) = &args.pid_file {
        Process::this()?.write(file)?;
    }
    println!("Serving {} to virtual machines at {}.", args.volume, args.socket.display());
    server.run(&mut stop)?;
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_written_as_for_chmod() {
        assert_eq!((mode("660"), mode("0600")), (Ok(0o660), Ok(0o600)));
        assert!(mode("rw").is_err() && mode("1777").is_err() && mode("68").is_err());
    }
}
