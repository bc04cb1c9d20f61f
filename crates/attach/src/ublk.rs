//! Volumes as disks of the kernel's user-space block driver: `attach --via ublk`.
//!
//! A process of its own serves the volume, `gabion ublk`, which is a data client: requests go from
//! the kernel to it, and from there to the servers. If it dies, the disk stays, and its requests
//! wait: `gabion attach` starts another one, which gets them again.
//!
//! Invariants:
//! - The new process has the name of the former one, which the device's file has. So nothing of the
//!   former one can come later (rule R8).
//! - A disk is taken over only with that file: it says which mapping the disk belongs to.

mod claim;
mod server;

use crate::client::{self, Client, Name, Usable};
use crate::record::Place;
use crate::{block, serving, signals};
use admin::exit::Exit;
use anyhow::{Context, Result, bail};
use base::{ClusterId, VolumeId};
use clap::Args;
use daemon::process::Process;
use daemon::{safety, spec};
use fleet::target::Target;
use fleet::{eprintln, println};
use rt::{Ublk, UblkDisk};
use serde::{Deserialize, Serialize};
use server::Server;
use std::path::{Path, PathBuf};

/// Options of `gabion ublk`.
#[derive(Args, Debug)]
pub struct UblkArgs {
    /// The volume's name
    #[arg(value_parser = spec::volume_name)]
    volume: String,
    /// The client's name, where volumes are mapped by name [default: HOST-ublk-VOLUME]
    #[arg(long, value_name = "SDC", value_parser = spec::peer_name)]
    client: Option<String>,
    /// Describe the device in this file
    #[arg(long)]
    device_file: PathBuf,
    /// Write the process id to this file
    #[arg(long)]
    pid_file: PathBuf,
}

/// A device of the driver, as its file describes it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Device {
    number: u32,
    /// The mark of its volume.
    mark: u64,
    /// The cluster, in hexadecimal digits.
    cluster: String,
    /// The generation at which the client's mapping began when the volume was attached.
    since: u32,
    /// The name of the client.
    client: String,
}

impl Device {
    /// Returns the path of its disk.
    pub(crate) fn path(&self) -> PathBuf {
        disk(self.number)
    }

    /// Ends its disk after its process has died: all requests fail.
    pub(crate) fn stop(&self) -> Result<()> {
        Ok(Ublk::stop_orphan(self.number, self.mark)?)
    }

    /// Removes it after its process has died.
    pub(crate) fn remove(&self) -> Result<()> {
        Ok(Ublk::remove_orphan(self.number, self.mark)?)
    }

    /// Returns true if the kernel has it, with a disk.
    fn exists(&self) -> Result<bool> {
        Ok(Ublk::find(self.mark)? == Some((self.number, true)))
    }
}

/// Returns the path of a device's disk.
fn disk(number: u32) -> PathBuf {
    format!("/dev/ublkb{number}").into()
}

/// Returns the number by which the kernel knows the device of a volume. A file of this machine has
/// it, too, so it has 63 bits.
fn mark(cluster: ClusterId, volume: VolumeId) -> u64 {
    (cluster.0 << 32 | u64::from(volume.0)) & (u64::MAX >> 1)
}

/// Starts the process that serves a volume, and returns the disk. If there is one that nobody
/// serves, that one goes on.
pub(crate) fn attach(place: &Place, mdm: &str, client: Option<&str>) -> Result<PathBuf> {
    let file = place.ublk_file();
    let file = file.to_str().context("a folder's path is text")?;
    let mut all = vec!["ublk", &place.name, "--mdm", mdm, "--device-file", file];
    all.extend(client.iter().flat_map(|client| ["--client", client]));
    serving::start(place, &all, || device(place).is_ok_and(|device| device.is_some()))?;
    Ok(device(place)?.context("the device has disappeared")?.path())
}

/// Returns the device of a volume, if it has one.
pub(crate) fn device(place: &Place) -> Result<Option<Device>> {
    read(&place.ublk_file())
}

fn read(file: &Path) -> Result<Option<Device>> {
    match file.exists() {
        true => daemon::config::read(file).map(Some),
        false => Ok(None),
    }
}

/// Returns the client's name: that of the former process, if there was one.
fn name(args: &UblkArgs, former: Option<&Device>) -> Result<Name> {
    match (former, &args.client) {
        (Some(former), Some(given)) if *given != former.client => bail!(
            "{} was attached as {}: leave out --client, or detach it first",
            args.volume,
            former.client
        ),
        (Some(Device { client, .. }), _) | (None, Some(client)) => Name::alone(client),
        (None, None) => Name::of_volume(&args.volume, "ublk"),
    }
}

/// Removes a disk of this volume that no file describes, unless somebody uses it.
fn remove_stray(number: u32, started: bool, mark: u64) -> Result<()> {
    let disk = disk(number);
    let claim = if started && disk.exists() { block::claim(&disk)? } else { None };
    if started && claim.is_none() && disk.exists() {
        bail!("{} is left from before, and is in use: unmount it first", disk.display());
    }
    Ublk::stop_orphan(number, mark)?;
    drop(claim);
    Ok(Ublk::remove_orphan(number, mark)?)
}

/// Returns the size of a disk in bytes, as the kernel knows it.
fn size_of(disk: &Path) -> Result<u64> {
    let text = std::fs::read_to_string(block::sys(disk).join("size")).context("a disk's size")?;
    Ok(text.trim().parse::<u64>().context("a disk's size")? * 512)
}

/// Runs `gabion ublk`.
pub fn run(target: &Target, args: &UblkArgs) -> Result<Exit> {
    let mdm = target.mdms()?;
    let former = match read(&args.device_file)? {
        Some(former) if former.exists()? => Some(former),
        _ => None,
    };
    let name = name(args, former.as_ref())?;
    if let Some(given) = &args.client {
        client::check_free(target, given)?;
    }
    let client_name = name.text().to_owned();
    let mut client = Client::open(&mdm, name)?;
    let volume = client.find(&args.volume)?;
    client.hold(volume.id);
    client.turn()?;
    let mut stop = signals::stop()?;
    let (cluster, mark) = (client.cluster(), mark(client.cluster(), volume.id));
    let cluster = format!("{:016x}", cluster.0);
    let (volume, ublk) = match former {
        Some(former) if former.mark == mark && former.cluster == cluster => {
            let size = size_of(&former.path())?;
            (Usable { since: former.since, size, ..volume }, Ublk::adopt(former.number)?)
        }
        Some(former) => bail!(
            "{} belongs to another volume that had this name: `gabion detach {}` first",
            former.path().display(),
            args.volume
        ),
        None => {
            if let Some((number, started)) = Ublk::find(mark)? {
                remove_stray(number, started, mark)?;
            }
            let disk = UblkDisk { size: volume.size, read_only: volume.read_only, mark };
            let mut ublk = Ublk::add(&disk)?;
            // Before the disk starts, so that it is found even if this process is killed then.
            let (number, since) = (ublk.number(), volume.since);
            let device = Device { number, mark, cluster, since, client: client_name };
            let started =
                daemon::config::write(&args.device_file, &device).and_then(|()| Ok(ublk.start()?));
            if let Err(why) = started {
                ublk.remove()?;
                return Err(why);
            }
            (volume, ublk)
        }
    };
    safety::protect().iter().for_each(|warning| eprintln!("{warning}"));
    let disk = disk(ublk.number());
    let mut server = Server::new(client, volume, ublk);
    server.run(&mut stop, &disk, || {
        println!("{} is {}.", args.volume, disk.display());
        Process::this()?.write(&args.pid_file)
    })?;
    server.remove()?;
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(client: &str) -> Device {
        let (cluster, client) = ("1".into(), client.into());
        Device { number: 4, mark: 1, cluster, since: 1, client }
    }

    #[test]
    fn volumes_of_clusters_have_marks_of_their_own() {
        let of = |cluster, volume| mark(ClusterId(cluster), VolumeId(volume));
        assert_eq!(of(0x1_0000_0002, 3), 0x2_0000_0003);
        assert_ne!(of(1, 2), of(2, 1));
        assert!(i64::try_from(of(u64::MAX, u32::MAX)).is_ok());
        assert_eq!(device("a").path(), Path::new("/dev/ublkb4"));
    }

    #[test]
    fn a_new_process_has_the_name_of_the_former_one() {
        let of = |given: Option<&str>, former: Option<&Device>| {
            let args = UblkArgs {
                volume: "vol1".into(),
                client: given.map(str::to_owned),
                device_file: PathBuf::new(),
                pid_file: PathBuf::new(),
            };
            name(&args, former).map(|name| name.text().to_owned())
        };
        let former = device("gabion-test-ublk-name");
        assert_eq!(of(None, Some(&former)).unwrap(), "gabion-test-ublk-name");
        assert_eq!(of(Some("gabion-test-ublk-name"), Some(&former)).unwrap(), former.client);
        let error = of(Some("another"), Some(&former)).unwrap_err().to_string();
        assert!(error.contains("was attached as gabion-test-ublk-name"), "{error}");
        assert!(of(None, None).unwrap().contains("-ublk-vol1"));
        let held = Name::alone("gabion-test-ublk-name").unwrap();
        let error = of(None, Some(&former)).unwrap_err().to_string();
        assert!(error.contains("another process here"), "{error}");
        drop(held);
    }
}
