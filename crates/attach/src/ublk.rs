//! Volumes as disks of the kernel's user-space block driver: `attach --via ublk`.
//!
//! A process of its own serves the volume, `gabion ublk`, which is a data client: requests go from
//! the kernel to it, and from there to the servers. If it dies, the disk stays, and its requests
//! wait: `gabion attach` starts another one, which gets them again. The new process has the name of
//! the former one, so nothing of the former one can come later (rule R8).

mod server;

use crate::client::{Client, Name, Usable};
use crate::record::Place;
use crate::serving;
use admin::exit::Exit;
use anyhow::{Context, Result};
use base::{ClusterId, VolumeId};
use clap::Args;
use daemon::process::Process;
use daemon::{safety, spec};
use fleet::target::Target;
use fleet::{eprintln, println};
use rt::{Ublk, UblkDisk};
use serde::{Deserialize, Serialize};
use server::Server;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// Options of `gabion ublk`.
#[derive(Args, Debug)]
pub struct UblkArgs {
    /// The volume's name
    #[arg(value_parser = spec::volume_name)]
    volume: String,
    /// The client's name, where volumes are mapped by name [default: HOST-ublk-VOLUME]
    #[arg(long, value_name = "SDC")]
    client: Option<String>,
    /// Write the device's number to this file
    #[arg(long)]
    device_file: PathBuf,
    /// Write the process id to this file
    #[arg(long)]
    pid_file: PathBuf,
}

/// A device of the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Device {
    number: u32,
    /// The mark of its volume.
    mark: u64,
    /// The generation at which the client's mapping began when the volume was attached.
    since: u32,
}

impl Device {
    /// Returns the path of its disk.
    pub(crate) fn path(self) -> PathBuf {
        format!("/dev/ublkb{}", self.number).into()
    }

    /// Ends its disk after its process has died: all requests fail.
    pub(crate) fn stop(self) -> Result<()> {
        Ok(Ublk::stop_orphan(self.number, self.mark)?)
    }

    /// Removes it after its process has died.
    pub(crate) fn remove(self) -> Result<()> {
        Ok(Ublk::remove_orphan(self.number, self.mark)?)
    }
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
    let file = place.ublk_file();
    match file.exists() {
        true => daemon::config::read(&file).map(Some),
        false => Ok(None),
    }
}

/// Runs `gabion ublk`.
pub fn run(target: &Target, args: &UblkArgs) -> Result<Exit> {
    let mdm = target.mdms()?;
    let name = Name::of_volume(args.client.as_deref(), &args.volume, "ublk")?;
    let mut client = Client::open(&mdm, name)?;
    let volume = client.find(&args.volume)?;
    let (mut stop, signals) = UnixStream::pair().context("can't make a pair of sockets")?;
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::low_level::pipe::register(signal, signals.try_clone()?)
            .context("can't handle signals")?;
    }
    let mark = mark(client.cluster(), volume.id);
    let (ublk, since) = match Ublk::find(mark)? {
        Some(orphan) => {
            let former = daemon::config::read(&args.device_file).ok();
            let since = former.filter(|of: &Device| of.mark == mark).map(|of| of.since);
            (Ublk::adopt(orphan)?, since.unwrap_or(volume.since))
        }
        None => {
            let disk = UblkDisk { size: volume.size, read_only: volume.read_only, mark };
            (Ublk::add(&disk)?, volume.since)
        }
    };
    let volume = Usable { since, ..volume };
    let device = Device { number: ublk.number(), mark, since };
    // Before the disk starts, so that it is found even if this process is killed meanwhile.
    daemon::config::write(&args.device_file, &device)?;
    safety::protect().iter().for_each(|warning| eprintln!("{warning}"));
    let mut server = Server::new(client, volume, ublk);
    let disk = device.path();
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

    #[test]
    fn volumes_of_clusters_have_marks_of_their_own() {
        let of = |cluster, volume| mark(ClusterId(cluster), VolumeId(volume));
        assert_eq!(of(0x1_0000_0002, 3), 0x2_0000_0003);
        assert_ne!(of(1, 2), of(2, 1));
        assert!(i64::try_from(of(u64::MAX, u32::MAX)).is_ok());
        let path = Device { number: 4, mark: 0, since: 1 }.path();
        assert_eq!(path, std::path::Path::new("/dev/ublkb4"));
    }
}
