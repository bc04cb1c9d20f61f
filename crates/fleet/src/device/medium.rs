//! The kernel's description of the device under a path.
//!
//! The kernel repeats what the device claims. Nothing here measures.

use anyhow::{Context, Result};
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, major, minor, stat, statfs, statx};
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// File systems in memory: tmpfs and ramfs.
const MEMORY_FS: [i64; 2] = [0x0102_1994, 0x8584_58f6];
/// `STATX_WRITE_ATOMIC`.
const WRITE_ATOMIC: u32 = 0x1_0000;

/// The kind of medium under a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Memory, which is lost with the power.
    Memory,
    /// Platters.
    Rotating,
    /// Flash, or something that claims to be.
    Solid,
    /// A disk that a host provides. The medium under it is unknown.
    Virtual,
    /// The kernel does not say.
    Unknown,
}

/// Where a write is when the device completes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cache {
    /// Possibly in a volatile cache: a flush makes it durable.
    WriteBack,
    /// On durable media, or so the device claims.
    WriteThrough,
}

/// A device, as the kernel describes it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Medium {
    /// The kernel's name, such as `sda`.
    pub name: Option<String>,
    pub kind: Kind,
    pub cache: Option<Cache>,
    /// True if a single write can be made durable without a flush of everything.
    pub fua: Option<bool>,
    pub logical_block: Option<u32>,
    pub physical_block: Option<u32>,
    /// The largest write that is never torn, in bytes; 0 if none is promised.
    pub atomic_write: Option<u32>,
}

/// Returns the device under a file, a folder or a block device.
pub(crate) fn beneath(path: &Path) -> Result<Medium> {
    let found = stat(path).with_context(|| path.display().to_string())?;
    let is_block = FileType::from_raw_mode(found.st_mode) == FileType::BlockDevice;
    let device = if is_block { found.st_rdev } else { found.st_dev };
    let in_memory =
        !is_block && statfs(path).is_ok_and(|fs| MEMORY_FS.contains(&(fs.f_type & 0xffff_ffff)));
    let mut medium = match sysfs(major(device), minor(device)) {
        Some(folder) => read(&folder),
        None => Medium { kind: Kind::Unknown, ..read(Path::new("/nowhere")) },
    };
    if in_memory {
        medium.kind = Kind::Memory;
    }
    if let Some(bytes) = atomic_of_file(path) {
        medium.atomic_write = Some(bytes);
    }
    Ok(medium)
}

/// Returns the atomic write size of the file system, which may be less than the device's.
fn atomic_of_file(path: &Path) -> Option<u32> {
    let wanted = StatxFlags::from_bits_retain(WRITE_ATOMIC);
    let info = statx(CWD, path, AtFlags::empty(), wanted).ok()?;
    (info.stx_mask & WRITE_ATOMIC != 0).then_some(info.stx_atomic_write_unit_max)
}

/// Returns the sysfs folder of a device's disk.
fn sysfs(major: u32, minor: u32) -> Option<PathBuf> {
    let folder = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok();
    let folder = folder.or_else(|| {
        // A file system with a device number of its own (btrfs): find the device it is mounted
        // from.
        let source = mounted_from(&fs::read_to_string("/proc/self/mountinfo").ok()?, major, minor)?;
        let device = stat(source.as_str()).ok()?.st_rdev;
        let at =
            format!("/sys/dev/block/{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
        fs::canonicalize(at).ok()
    })?;
    whole_disk(&folder)
}

/// Returns the disk of a partition, or the folder itself if it is not a partition.
fn whole_disk(folder: &Path) -> Option<PathBuf> {
    match folder.join("partition").exists() {
        true => folder.parent().map(Path::to_owned),
        false => Some(folder.to_owned()),
    }
}

/// Returns the device from which the file system with this device number is mounted.
fn mounted_from(mounts: &str, major: u32, minor: u32) -> Option<String> {
    let number = format!("{major}:{minor}");
    let line = mounts.lines().find(|l| l.split(' ').nth(2) == Some(&number))?;
    let source = line.split(" - ").nth(1)?.split(' ').nth(1)?;
    source.starts_with("/dev/").then(|| source.to_owned())
}

fn read(disk: &Path) -> Medium {
    let name = disk.file_name().map(|n| n.to_string_lossy().into_owned());
    let get = |what: &str| {
        let text = fs::read_to_string(disk.join("queue").join(what)).ok()?;
        Some(text.trim().to_owned())
    };
    let number = |what: &str| get(what)?.parse::<u32>().ok();
    let in_memory = name.as_deref().is_some_and(|n| n.starts_with("ram") || n.starts_with("zram"));
    let kind = match number("rotational") {
        _ if in_memory => Kind::Memory,
        // Virtual disks count as rotating unless the host says otherwise, which it seldom does.
        _ if is_virtual(disk) => Kind::Virtual,
        Some(0) => Kind::Solid,
        Some(_) => Kind::Rotating,
        None => Kind::Unknown,
    };
    Medium {
        kind,
        cache: get("write_cache").and_then(|text| match text.as_str() {
            "write back" => Some(Cache::WriteBack),
            "write through" => Some(Cache::WriteThrough),
            _ => None,
        }),
        fua: number("fua").map(|n| n == 1),
        logical_block: number("logical_block_size"),
        physical_block: number("physical_block_size"),
        atomic_write: number("atomic_write_unit_max_bytes"),
        name: name.filter(|_| disk.is_dir()),
    }
}

/// Returns true for a virtual disk, or one made of virtual disks: an LVM volume on a virtual disk
/// repeats the claims of that disk.
fn is_virtual(disk: &Path) -> bool {
    let name = disk.file_name().unwrap_or_default().to_string_lossy();
    if ["loop", "nbd", "rbd"].iter().any(|v| name.starts_with(v)) {
        return true;
    }
    let below = fs::read_dir(disk.join("slaves")).into_iter().flatten().flatten();
    if below.filter_map(|d| whole_disk(&fs::canonicalize(d.path()).ok()?)).any(|d| is_virtual(&d)) {
        return true;
    }
    let driver = fs::canonicalize(disk.join("device/driver")).unwrap_or_default();
    let driver = driver.file_name().unwrap_or_default().to_string_lossy();
    ["virtio", "vbd", "xen", "hv_"].iter().any(|v| driver.starts_with(v))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_of_a_file_system_is_found_in_the_list_of_mounts() {
        let mounts = "\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
40 22 0:33 /sub /data rw,noatime shared:7 master:2 - btrfs /dev/sdb1 rw,space_cache
41 22 0:34 / /run rw - tmpfs tmpfs rw";
        assert_eq!(mounted_from(mounts, 0, 33).as_deref(), Some("/dev/sdb1"));
        assert_eq!(mounted_from(mounts, 0, 34), None);
        assert_eq!(mounted_from(mounts, 0, 3), None);
    }

    #[test]
    fn a_folder_has_a_medium() {
        let medium = beneath(&std::env::temp_dir()).unwrap();
        assert_eq!(medium.name.is_some(), medium.logical_block.is_some(), "{medium:?}");
        assert!(beneath(Path::new("/nowhere/at/all")).is_err());
    }
}
