//! The third-party programs that the system tests judge us with.

use anyhow::Result;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// A program, and the Debian package that brings it.
const TOOLS: &[(&str, &str)] = &[
    ("fio", "fio"),
    ("nbdinfo", "libnbd-bin"),
    ("nbdcopy", "libnbd-bin"),
    ("nbdkit", "nbdkit"),
    ("qemu-img", "qemu-utils"),
    ("qemu-io", "qemu-utils"),
    ("mkfs.ext4", "e2fsprogs"),
    ("e2fsck", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("xfs_repair", "xfsprogs"),
];

/// Makes sure that all programs are there; installs what is missing when it may. False, after a
/// plain word, when something is missing in the end.
pub fn ensure() -> Result<bool> {
    let missing = missing();
    if missing.is_empty() {
        println!("all programs are there");
        return Ok(true);
    }
    let packages: Vec<&str> = missing.iter().copied().collect();
    let list = packages.join(" ");
    if !is_root() || !is_there("apt-get") {
        println!(
            "The system tests need these Debian packages: {list}\n\
             They are not installed for you, as that takes root and apt-get. Run:\n  \
             sudo apt-get install -y {list}"
        );
        return Ok(false);
    }
    println!("Installing what the system tests need: {list}");
    let apt = |args: &[&str]| -> Result<bool> {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive").args(["-q", "-y"]).args(args);
        Ok(command.status()?.success())
    };
    let install = [&["install", "--no-install-recommends"], &packages[..]].concat();
    // Package lists of a fresh machine are old, or not there.
    if !apt(&install)? {
        apt(&["update"])?;
        apt(&install)?;
    }
    let missing = self::missing();
    if !missing.is_empty() {
        println!("still missing after the installation: {missing:?}");
    }
    Ok(missing.is_empty())
}

fn missing() -> BTreeSet<&'static str> {
    TOOLS.iter().filter(|(tool, _)| !is_there(tool)).map(|(_, package)| *package).collect()
}

fn is_there(tool: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    // Administrators' programs, which an ordinary user's path may lack.
    path.split(':').chain(["/usr/sbin", "/sbin"]).any(|dir| Path::new(dir).join(tool).exists())
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|o| o.stdout.trim_ascii() == b"0")
}
