//! `gabion detach`: unmounts, removes the device, and ends the process that served it.
//!
//! It also cleans up after an interrupted `attach`, or after a serving process that has died.

use crate::nvme::Connection;
use crate::record::Place;
use crate::ways::Via;
use crate::{block, holders, nbd, nvme, persist, ublk};
use admin::exit::{Exit, coded};
use anyhow::{Context, Result};
use clap::Args;
use daemon::{files, spec};
use fleet::println;
use rustix::mount::UnmountFlags;
use rustix::process::Signal;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the serving process may take to end.
const ENDING: Duration = Duration::from_secs(10);

/// Options of `gabion detach`.
#[derive(Args, Debug)]
#[command(after_help = "\
This waits until all data is written. If a process uses the volume, nothing is changed, and the \
message names the process (exit code 6). A volume that was attached with --persist is attached \
again at the next boot, unless --forget is given.

Examples:
  gabion detach vol1
  gabion detach vol1 --forget")]
pub struct DetachArgs {
    /// The volume's name
    #[arg(value_parser = spec::volume_name)]
    volume: String,
    /// Don't attach it at the next boot of this machine
    #[arg(long)]
    forget: bool,
    /// With ublk, if the process that served it is gone: lose what was not written
    #[arg(long)]
    give_up: bool,
    /// With --forget: the folder that systemd's files are below
    #[arg(long, hide = true, default_value = "/")]
    root: PathBuf,
}

/// Runs `gabion detach`.
pub fn run(args: &DetachArgs) -> Result<Exit> {
    block::need_root("detach")?;
    let name = &args.volume;
    let forgotten = args.forget && persist::forget(&args.root, name)?;
    if forgotten {
        println!("{name} will not be attached at boot any more.");
    }
    let place = match Place::find(name) {
        Ok(place) => place,
        Err(_) if forgotten => return Ok(Exit::Ok),
        Err(error) => return Err(error),
    };
    let is_fuse = place.record()?.is_some_and(|record| record.via == Via::Fuse.name());
    let lost = is_fuse && place.process().is_none();
    if args.give_up {
        give_up(&place)?;
    }
    take_down(&place)?;
    println!("{name} is detached.");
    if lost {
        println!("The process that served it was gone: what was not written by then is lost.");
    }
    if !forgotten && persist::is_lasting(&args.root, name) {
        println!("It will be attached again at the next boot, unless you use --forget.");
    }
    Ok(Exit::Ok)
}

/// Returns an error that names the object in use, and its users.
fn busy(what: &Path, by: &str, otherwise: &str) -> anyhow::Error {
    let what = what.display();
    let text = match by.is_empty() {
        false => format!("{what} is in use by {by}: end that first"),
        true => format!("{what} is in use, but not by a visible process: {otherwise}"),
    };
    coded(Exit::InUse, text)
}

/// Removes everything that `attach` has made, from the top down. Stops at the first object that is
/// in use.
pub(crate) fn take_down(place: &Place) -> Result<()> {
    undo(place)?;
    place.remove()
}

/// Removes everything that `attach` has made but the volume's folder.
pub(crate) fn undo(place: &Place) -> Result<()> {
    match device(place)? {
        None => {}
        Some(Device::Loop(device)) => {
            release(&device)?;
            if !block::drop_loop(&device)? {
                return Err(elsewhere(&device));
            }
        }
        Some(Device::Nbd(device)) => {
            let claim = claim(&device)?;
            // Otherwise it would connect the device again.
            end_process(place)?;
            nbd::detach(&place.name)?;
            drop(claim);
            if !nbd::wait_gone(&place.name) {
                return Err(elsewhere(&device));
            }
        }
        Some(Device::Ublk(device)) => {
            let path = device.path();
            match place.process() {
                Some(_) if path.exists() => release(&path)?,
                None if path.exists() => {
                    check_served(place, &path)?;
                    let claim = block::claim(&path)?.ok_or_else(|| elsewhere(&path))?;
                    device.stop()?;
                    drop(claim);
                }
                _ => {}
            }
            end_server(place, &path)?;
            device.remove()?;
            files::remove(&place.ublk_file()).context("the device's file")?;
            return Ok(());
        }
        Some(Device::Nvme(device, connection)) => {
            // If the volume was unmapped, only the connection is left.
            let _claim = device.as_deref().map(claim).transpose()?;
            nvme::detach(place, &connection)?;
        }
    }
    end_process(place)
}

/// Ends the process that serves a disk of ublk. It claims the disk before, and removes it.
fn end_server(place: &Place, disk: &Path) -> Result<()> {
    let Some(process) = place.process() else { return Ok(()) };
    process.signal(Signal::TERM)?;
    if process.wait_gone(ENDING) {
        return Ok(());
    }
    let log = fs::read_to_string(place.log()).unwrap_or_default();
    let last = log.lines().last().unwrap_or_default();
    let text = format!(
        "process {}, which serves {}, does not end. It said last: {last}",
        process.pid,
        disk.display()
    );
    Err(coded(Exit::InUse, text))
}

/// Returns an error if a disk of ublk is mounted whose process is gone: to unmount it would wait.
fn check_served(place: &Place, disk: &Path) -> Result<()> {
    let name = &place.name;
    if block::mounts_of(disk)?.is_empty() {
        return Ok(());
    }
    let text = format!(
        "the process that served {name} is gone, and its I/O waits: `gabion attach {name}` lets it \
         go on. To lose what was not written instead: `gabion detach {name} --give-up`"
    );
    Err(coded(Exit::InUse, text))
}

/// Ends a disk of ublk whose process is gone, and unmounts it. Requests that wait fail.
fn give_up(place: &Place) -> Result<()> {
    let Some(Device::Ublk(device)) = device(place)?.filter(|_| place.process().is_none()) else {
        return Ok(());
    };
    let mounts = block::mounts_of(&device.path())?;
    device.stop()?;
    for mount in mounts.iter().rev() {
        // Programs that use it get errors, and keep it until they end.
        rustix::mount::unmount(&mount.at, UnmountFlags::DETACH)
            .with_context(|| format!("can't unmount {}", mount.at.display()))?;
    }
    Ok(())
}

/// Ends the process that serves a volume.
fn end_process(place: &Place) -> Result<()> {
    match place.process() {
        Some(process) => {
            process.signal(Signal::TERM)?;
            if !process.wait_gone(ENDING) {
                let folder = place.volumes();
                let otherwise = "it may be mounted in another mount namespace (a container)";
                return Err(busy(&folder, &users(&folder), otherwise));
            }
        }
        None => clear_dead(&place.volumes())?,
    }
    Ok(())
}

/// The device of a volume.
enum Device {
    Loop(PathBuf),
    Nbd(PathBuf),
    Ublk(ublk::Device),
    Nvme(Option<PathBuf>, Connection),
}

/// Returns the device of a volume: the recorded one, or one that an interrupted attempt made before
/// it could record it. The kernel's numbers are reused, so the device is found by what it is.
fn device(place: &Place) -> Result<Option<Device>> {
    if let Some(device) = nbd::device(&place.name) {
        return Ok(Some(Device::Nbd(device)));
    }
    let record = place.record()?;
    if record.as_ref().is_none_or(|record| record.via == Via::Ublk.name())
        && let Some(device) = ublk::device(place)?
    {
        return Ok(Some(Device::Ublk(device)));
    }
    if let Some(connection) = record.and_then(|record| record.connection) {
        return Ok(Some(Device::Nvme(nvme::device(&connection.uuid), connection)));
    }
    let file = place.file();
    let is_ours = |device: &PathBuf| block::loop_file(device).is_some_and(|f| f == file);
    let entries = fs::read_dir("/sys/block").context("can't list block devices")?;
    let devices = entries.flatten().map(|entry| Path::new("/dev").join(entry.file_name()));
    Ok(devices.into_iter().find(is_ours).map(Device::Loop))
}

/// Unmounts a device that nobody uses.
fn release(device: &Path) -> Result<()> {
    check_unused(device)?;
    unmount_all(device)
}

/// Unmounts a device that nobody uses, and opens it, so that nobody mounts it again. `None`: there
/// is no file for it, as in some containers.
fn claim(device: &Path) -> Result<Option<OwnedFd>> {
    if !device.exists() {
        return Ok(None);
    }
    release(device)?;
    Ok(Some(block::claim(device)?.ok_or_else(|| elsewhere(device))?))
}

/// Returns the error for a device whose user is not visible to this process.
fn elsewhere(device: &Path) -> anyhow::Error {
    let otherwise = "it is mounted in another mount namespace (a container), perhaps. It goes when \
                     that ends; then run `gabion detach` again";
    busy(device, "", otherwise)
}

/// Returns an error if a process uses the device or a mount of it, so that the volume is not half
/// detached.
fn check_unused(device: &Path) -> Result<()> {
    let on_top = block::on_top(device);
    if !on_top.is_empty() {
        let text = format!(
            "{} is in use by the devices {}: remove those first",
            device.display(),
            on_top.join(", ")
        );
        return Err(coded(Exit::InUse, text));
    }
    if let Ok(this) = fs::metadata(device) {
        let by = holders::names(|found| block::is_device(found, &this));
        if !by.is_empty() {
            return Err(busy(device, &by, ""));
        }
    }
    for mount in block::mounts_of(device)? {
        let by = users(&mount.at);
        if !by.is_empty() {
            return Err(busy(&mount.at, &by, ""));
        }
    }
    Ok(())
}

/// Names the processes that use a mount.
fn users(at: &Path) -> String {
    let of = fs::metadata(at).map(|found| found.dev());
    holders::names(|found| of.as_ref().is_ok_and(|dev| *dev == found.dev()))
}

fn unmount_all(device: &Path) -> Result<()> {
    for mount in block::mounts_of(device)?.iter().rev() {
        if !block::unmount(&mount.at)? {
            let kernel = "swap, an NFS export or a mount inside it may use it";
            return Err(busy(&mount.at, &users(&mount.at), kernel));
        }
    }
    Ok(())
}

/// Removes the FUSE mount that a dead process has left.
fn clear_dead(folder: &Path) -> Result<()> {
    if block::mounts()?.iter().any(|mount| mount.at == folder) {
        rustix::mount::unmount(folder, UnmountFlags::DETACH)
            .with_context(|| format!("can't unmount {}", folder.display()))?;
    }
    Ok(())
}
