//! Compares copies byte for byte, from the device files of a cluster that is down.
//!
//! The content on a device comes from `gabion inspect`, which only knows that one device.

use crate::{Folder, MIB, gabion};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;

/// Number of copies of a unit.
const COPIES: usize = 2;

/// Compares all copies of a volume with each other and with its content. Of each unit that has
/// data, exactly two devices must hold that data, and no device may hold anything else. Returns the
/// number of bytes compared. Images are created in the folder and removed again.
pub fn compare(folder: &Folder, devices: &[String], volume: u64, content: &[u8]) -> Result<u64> {
    let mut images = Vec::new();
    for device in devices {
        let mut image = export(folder, device, volume)?;
        ensure!(image.len() <= content.len(), "{device} has more than the volume");
        image.resize(content.len(), 0);
        images.push(image);
    }
    let mut compared = 0;
    for (unit, expected) in content.chunks(MIB as usize).enumerate() {
        let at = unit * MIB as usize;
        let found = images.iter().map(|image| &image[at..at + expected.len()]);
        let (same, other): (Vec<_>, Vec<_>) = found.partition(|found| *found == expected);
        let wanted = if is_zero(expected) { devices.len() } else { COPIES };
        ensure!(
            same.len() == wanted && other.into_iter().all(is_zero),
            "unit {unit} of volume {volume}: {} of {wanted} devices hold what was read",
            same.len()
        );
        compared += (same.len() * expected.len()) as u64;
    }
    Ok(compared)
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|b| *b == 0)
}

/// Returns a device's content of a volume, up to the end of the last unit that it has.
fn export(folder: &Folder, device: &str, volume: u64) -> Result<Vec<u8>> {
    let name = Path::new(device).file_name().context("a device has a name")?;
    let out = folder.join(&format!("{}-{volume}", name.display()));
    let path = out.to_str().context("text")?;
    gabion(["inspect", device, "export", "--volume", &volume.to_string(), "--out", path])?.ok()?;
    let image = fs::read(&out)?;
    fs::remove_file(out)?;
    Ok(image)
}
