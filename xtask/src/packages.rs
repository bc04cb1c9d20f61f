//! The third-party programs that the chores need: clients for the system tests, and valgrind.

use crate::steps::Steps;
use anyhow::Result;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// A program, or a library of one, and the Debian package that contains it.
pub(crate) type Tool = (&'static str, &'static str);

/// The programs that the system tests use.
pub(crate) const SYSTEM: &[Tool] = &[
    ("fio", "fio"),
    ("gcc", "gcc"),
    ("make", "make"),
    ("dpkg-source", "dpkg-dev"),
    ("strip", "binutils"),
    ("nbdinfo", "libnbd-bin"),
    ("nbdcopy", "libnbd-bin"),
    ("nbdkit", "nbdkit"),
    ("qemu-img", "qemu-utils"),
    ("qemu-io", "qemu-utils"),
    ("qemu/block-iscsi.so", "qemu-block-extra"),
    ("iscsi-test-cu", "libiscsi-bin"),
    ("mkfs.ext4", "e2fsprogs"),
    ("e2fsck", "e2fsprogs"),
    ("losetup", "mount"),
    ("fstrim", "util-linux"),
    ("mkfs.xfs", "xfsprogs"),
    ("xfs_repair", "xfsprogs"),
    ("ip", "iproute2"),
    ("ssh", "openssh-client"),
    ("sshd", "openssh-server"),
];

/// Programs that tests can do without, with a message: the packages do not exist for some
/// processors. The tests boot a kernel of their own with them.
pub(crate) const OPTIONAL: &[Tool] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("/usr/share/doc/linux-image-cloud-amd64", "linux-image-cloud-amd64"),
    ("busybox", "busybox-static"),
    ("modprobe", "kmod"),
    ("nvme", "nvme-cli"),
    ("virt-qemu-run", "libvirt-daemon-driver-qemu"),
];

/// The programs that the instruction gate uses.
pub(crate) const GATE: &[Tool] = &[("valgrind", "valgrind")];

/// Ensures that these programs are installed, and installs missing ones if it may. Returns false,
/// after a message, if some are still missing.
pub(crate) fn ensure(steps: &mut Steps, tools: &[Tool]) -> Result<bool> {
    let missing = missing(tools);
    if missing.is_empty() {
        steps.print("all programs are there");
        return Ok(true);
    }
    let packages: Vec<&str> = missing.iter().copied().collect();
    let list = packages.join(" ");
    if !is_root() || !is_there("apt-get") {
        steps.print(&format!(
            "These Debian packages are needed: {list}\n\
             They are not installed for you, as that takes root and apt-get. Run:\n  \
             sudo apt-get install -y {list}"
        ));
        return Ok(false);
    }
    steps.print(&format!("Installing {list}"));
    let mut apt = |args: &[&str]| -> Result<bool> {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive").args(["-q", "-y"]).args(args);
        let out = command.output()?;
        for text in [&out.stdout, &out.stderr] {
            steps.print(String::from_utf8_lossy(text).trim_end());
        }
        Ok(out.status.success())
    };
    let install = [&["install", "--no-install-recommends"], &packages[..]].concat();
    // The package lists of a new machine are old or missing.
    if !apt(&install)? {
        apt(&["update"])?;
        apt(&install)?;
    }
    let missing = self::missing(tools);
    if !missing.is_empty() {
        steps.print(&format!("still missing after the installation: {missing:?}"));
    }
    Ok(missing.is_empty())
}

fn missing(tools: &[Tool]) -> BTreeSet<&'static str> {
    tools.iter().filter(|(tool, _)| !is_there(tool)).map(|(_, package)| *package).collect()
}

fn is_there(tool: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    // Administration programs, which an ordinary user's path may lack, and libraries.
    let machine = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let more = ["/usr/sbin", "/sbin", &machine];
    path.split(':').chain(more).any(|dir| Path::new(dir).join(tool).exists())
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|o| o.stdout.trim_ascii() == b"0")
}
