//! `gabion nbd`: makes the device, and gives the kernel a new socket whenever the data client has
//! closed the last one, for example because it was restarted. `gabion attach` starts it.
//!
//! The process also tells the kernel when the volume has grown. It has no part in I/O. When it
//! ends, the device stays.
//!
//! Invariant: the kernel gets a new socket only after the other side has closed the former one, so
//! no request of the former one can come later (rules R8 and R16).

use super::kernel::Kernel;
use super::remote::{Export, Remote};
use super::{backend, is_of};
use crate::{block, signals};
use admin::exit::Exit;
use anyhow::{Context, Result, bail};
use clap::Args;
use daemon::process::Process;
use daemon::{safety, spec};
use fleet::{eprintln, println};
use rt::ListenAddr;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;
use target::nbd::proto::{NBD_FLAG_SEND_FLUSH, NBD_FLAG_SEND_FUA};

/// The time between two looks at the volume's size.
const LOOK: Duration = Duration::from_secs(5);
/// The time between two attempts to reach the data client.
const AGAIN: Duration = Duration::from_millis(200);
/// How often a new socket is handed over. If the kernel has not noticed yet that the former socket
/// is dead, it drops the new one without an error. To hand over a socket twice does no harm.
const TIMES: u32 = 5;
/// How long the kernel waits for an answer before it checks whether a request must be repeated over
/// a new socket, in milliseconds. A request takes at most this long after the data client is back.
/// (`io_timeout` of the block layer. The kernel fails no request because of it.)
const CHECK_MS: u32 = 5000;
/// Longest request of the kernel, in KiB.
const TRANSFER_KIB: u32 = 1024;

/// Options of `gabion nbd`.
#[derive(Args, Debug)]
pub struct NbdArgs {
    /// The volume's name, when it was attached
    #[arg(long, value_parser = spec::volume_name)]
    volume: String,
    /// Its UUID
    #[arg(long)]
    uuid: String,
    /// Where a data client serves NBD
    #[arg(long, value_name = "ADDRESS")]
    at: ListenAddr,
    /// Write the process id to this file
    #[arg(long)]
    pid_file: PathBuf,
}

/// A device, and the socket that the kernel uses.
struct Kept<'a> {
    args: &'a NbdArgs,
    backend: String,
    kernel: Kernel,
    index: u32,
    socket: File,
    size: u64,
    /// Readable after a signal.
    stop: UnixStream,
}

/// What happened to the socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Woken {
    /// Nothing, for a while.
    Quiet,
    /// It is closed.
    Closed,
    /// This process was told to end.
    Stop,
}

/// Runs `gabion nbd`.
pub fn run(args: &NbdArgs) -> Result<Exit> {
    let stop = signals::stop()?;
    let mut kernel = Kernel::open()?;
    let (socket, export) = Remote::dial(&args.at)?.attach(&args.uuid)?;
    let backend = backend(&args.volume);
    let index = kernel.connect(&socket, export.size, flags(export), &backend)?;
    if !is_of(index, &backend) {
        kernel.disconnect(index).context("the kernel can't end the device")?;
        bail!("the kernel does not tell its devices apart: this needs Linux 5.14 or later");
    }
    tune(index, export)?;
    safety::protect().iter().for_each(|warning| eprintln!("{warning}"));
    Process::this()?.write(&args.pid_file)?;
    println!("{} is /dev/nbd{index}, served at {}.", args.volume, args.at);
    let size = export.size;
    Kept { args, backend, kernel, index, socket, size, stop }.run()?;
    Ok(Exit::Ok)
}

/// Returns the flags for the kernel. An answer means durable (rule R7), so there is no write cache
/// to flush.
fn flags(export: Export) -> u16 {
    export.flags & !(NBD_FLAG_SEND_FLUSH | NBD_FLAG_SEND_FUA)
}

/// Sets the properties of the device that netlink has no attributes for.
fn tune(index: u32, export: Export) -> Result<()> {
    let device = PathBuf::from(format!("/dev/nbd{index}"));
    let transfer = TRANSFER_KIB.min(export.payload >> 10);
    for (file, value) in [("io_timeout", CHECK_MS), ("max_sectors_kb", transfer)] {
        let file = block::sys(&device).join("queue").join(file);
        block::set(&file, &value.to_string())
            .with_context(|| format!("can't set {}", file.display()))?;
    }
    Ok(())
}

impl Kept<'_> {
    fn run(&mut self) -> Result<()> {
        while self.is_there() {
            match self.wait(Some(&self.socket), LOOK)? {
                Woken::Quiet => self.look(),
                Woken::Closed if !self.is_there() => break,
                Woken::Closed => {
                    eprintln!("the data client at {} has closed the connection", self.args.at);
                    if !self.reconnect()? {
                        return Ok(());
                    }
                }
                Woken::Stop => return Ok(()),
            }
        }
        println!("The device is gone.");
        Ok(())
    }

    /// Returns true unless the device was ended.
    fn is_there(&self) -> bool {
        is_of(self.index, &self.backend)
    }

    /// Waits for a signal, and for the end of the socket if there is one.
    fn wait(&self, socket: Option<&File>, time: Duration) -> Result<Woken> {
        let mut all = vec![PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN)];
        all.extend(socket.map(|socket| PollFd::new(socket, PollFlags::RDHUP)));
        let time = Timespec::try_from(time).context("a short time")?;
        match rustix::event::poll(&mut all, Some(&time)) {
            Ok(0) | Err(Errno::INTR) => Ok(Woken::Quiet),
            Ok(_) if !all[0].revents().is_empty() => Ok(Woken::Stop),
            Ok(_) => Ok(Woken::Closed),
            Err(why) => Err(why).context("can't wait"),
        }
    }

    /// Dials until the data client serves the volume again, and gives the kernel the new socket.
    /// Returns false if the device is gone, or after a signal.
    fn reconnect(&mut self) -> Result<bool> {
        let mut told = String::new();
        while self.is_there() {
            match Remote::dial(&self.args.at).and_then(|remote| remote.attach(&self.args.uuid)) {
                Ok((socket, export)) => return self.hand_over(socket, export),
                Err(error) => {
                    let why = format!("{error:#}");
                    if why != told {
                        eprintln!("I/O waits: {why}");
                        told = why;
                    }
                }
            }
            if self.wait(None, AGAIN)? == Woken::Stop {
                return Ok(false);
            }
        }
        Ok(false)
    }

    /// Gives the kernel a socket. Returns false if the device is gone, or after a signal.
    fn hand_over(&mut self, socket: File, export: Export) -> Result<bool> {
        self.socket = socket;
        for _ in 0..TIMES {
            if let Err(why) = self.kernel.hand_over(self.index, &self.backend, &self.socket) {
                if self.is_there() {
                    return Err(why).context("the kernel does not take a new socket");
                }
                return Ok(false);
            }
            match self.wait(Some(&self.socket), AGAIN)? {
                Woken::Quiet => {}
                Woken::Closed => return Ok(true), // and the next turn dials again
                Woken::Stop => return Ok(false),
            }
        }
        eprintln!("connected again");
        self.grow(export);
        Ok(true)
    }

    /// Checks whether the volume has grown. If the data client does not answer, the next check
    /// finds out.
    fn look(&mut self) {
        let found = Remote::dial(&self.args.at).and_then(|remote| remote.look(&self.args.uuid));
        if let Ok(export) = found {
            self.grow(export);
        }
    }

    fn grow(&mut self, export: Export) {
        if export.size <= self.size {
            return;
        }
        match self.kernel.resize(self.index, &self.backend, export.size) {
            Ok(()) => {
                println!("The volume has grown to {} bytes.", export.size);
                self.size = export.size;
            }
            Err(why) => eprintln!("the kernel does not take the new size: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_told_of_no_write_cache() {
        let export = Export { size: 512, flags: 0x96d, payload: 1 << 20 };
        assert_eq!(flags(export), 0x961);
    }
}
