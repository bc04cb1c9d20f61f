//! Volumes as devices of the kernel's NBD client: `attach --via nbd`.
//!
//! | file | content |
//! |---|---|
//! | `kernel` | orders for the kernel, by netlink |
//! | `remote` | the handshake with a data client |
//! | `keep` | the process that gives the kernel a new socket after the data client has restarted |
//!
//! Requests go from the kernel to the data client of this machine, and through no other process.

pub(crate) mod keep;
mod kernel;
mod remote;

use crate::local::{self, Served};
use crate::record::Place;
use crate::{block, serving};
use anyhow::{Context, Result, bail};
use kernel::Kernel;
use remote::{Allocation, Remote};
use rt::ListenAddr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the kernel may take to end a device.
const GOING: Duration = Duration::from_secs(10);

/// Returns the text by which the kernel knows the device of a volume.
fn backend(volume: &str) -> String {
    format!("gabion/{volume}")
}

/// Returns true if the kernel has a device with this number for this backend.
fn is_of(index: u32, backend: &str) -> bool {
    let file = format!("/sys/block/nbd{index}/backend");
    fs::read_to_string(file).is_ok_and(|text| text.trim_end() == backend)
}

/// Returns the first of these addresses at which a data client serves the volume.
fn address(served: &Served) -> Result<&ListenAddr> {
    let mut why = Vec::new();
    for at in local::need(&served.nbd, "NBD", "nbd")? {
        match Remote::dial(at).and_then(|remote| remote.look(&served.uuid)) {
            Ok(_) => return Ok(at),
            Err(error) => why.push(format!("{error:#}")),
        }
    }
    bail!("{}", why.join("; "))
}

/// Makes a volume a device, and returns the device.
pub(crate) fn attach(place: &Place, served: &Served) -> Result<PathBuf> {
    let at = address(served)?.to_string();
    let volume = place.name.as_str();
    serving::start(
        place,
        &["nbd", "--volume", volume, "--uuid", &served.uuid, "--at", &at],
        || device(volume).is_some(),
    )?;
    let device = device(volume).context("the device has disappeared")?;
    if !device.exists() {
        bail!(
            "there is no {}: a container, perhaps, without the devices of its host",
            device.display()
        );
    }
    Ok(device)
}

/// Returns the device of a volume, if it has one.
pub(crate) fn device(volume: &str) -> Option<PathBuf> {
    let index = index(volume)?;
    Some(Path::new("/dev").join(format!("nbd{index}")))
}

fn index(volume: &str) -> Option<u32> {
    let backend = backend(volume);
    let entries = fs::read_dir("/sys/block").ok()?.flatten();
    let mut numbers =
        entries.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("nbd")?.parse().ok());
    numbers.find(|index| is_of(*index, &backend))
}

/// Ends the device of a volume.
pub(crate) fn detach(volume: &str) -> Result<()> {
    let Some(index) = index(volume) else { return Ok(()) };
    let ended = Kernel::open()?.disconnect(index);
    ended.with_context(|| format!("the kernel does not end /dev/nbd{index}"))
}

/// Waits until the kernel has no device of a volume any more, which it keeps while the device is
/// open. Returns false if it takes too long.
pub(crate) fn wait_gone(volume: &str) -> bool {
    block::wait(GOING, || index(volume).is_none())
}

/// Returns a connection that tells which ranges of a volume hold data, if a data client of this
/// machine serves NBD.
pub(crate) fn allocation(served: &Served) -> Option<Allocation> {
    let at = address(served).ok()?;
    Remote::dial(at).and_then(|remote| remote.allocation(&served.uuid)).ok()
}
