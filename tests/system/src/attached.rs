//! Volumes that a test attaches to this machine with `gabion attach`.

use crate::{Cluster, leave_out, secs, shell, wait};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The devices that an attachment needs. It also needs root.
const NEEDED: [&str; 2] = ["/dev/fuse", "/dev/loop-control"];

/// Returns true if this machine can attach volumes; otherwise reports the test as left out.
pub fn works_here() -> Result<bool> {
    let lacks = NEEDED.iter().find(|device| !Path::new(device).exists());
    match lacks {
        _ if !rustix::process::geteuid().is_root() => leave_out("it takes root")?,
        Some(device) => leave_out(&format!("there is no {device}"))?,
        None => return Ok(true),
    }
    Ok(false)
}

/// An attached volume. If the test fails before it detaches the volume, dropping this value removes
/// the attachment by force: a file system without its cluster would hang forever.
#[derive(Debug)]
pub struct Attached {
    volume: &'static str,
    /// The mount point.
    pub at: PathBuf,
    /// The output of `attach --json`.
    pub told: Value,
    detached: bool,
}

impl Attached {
    /// Attaches a volume with these arguments, mounted over a folder of the test with its name.
    pub fn mount(cluster: &Cluster, volume: &'static str, args: &[&str]) -> Result<Attached> {
        let at = cluster.folder.join(volume);
        let folder = at.to_str().context("a temporary path is text")?;
        let more = [&["--at", folder], args].concat();
        Attached::attach(cluster, volume, &more)
    }

    /// Attaches a volume with these arguments.
    pub fn attach(cluster: &Cluster, volume: &'static str, args: &[&str]) -> Result<Attached> {
        let at = cluster.folder.join(volume);
        let mut attached = Attached { volume, at, told: Value::Null, detached: false };
        let ran = cluster.gabion(&[&["attach", volume, "--json"], args].concat())?;
        if ran.code != 0 {
            attached.detached = true; // it has cleaned up
        }
        attached.told = serde_json::from_str(&ran.ok()?)?;
        Ok(attached)
    }

    /// Takes over a volume that the test attached by itself. `told`: the output of `attach --json`,
    /// or null.
    pub fn of(volume: &'static str, at: PathBuf, told: Value) -> Attached {
        Attached { volume, at, told, detached: false }
    }

    /// Records that the test detached the volume by itself.
    pub fn is_gone(mut self) {
        self.detached = true;
    }

    /// The device under the kernel's name.
    pub fn device(&self) -> Result<&str> {
        self.told["device"].as_str().context("a device")
    }

    /// The process that serves it.
    pub fn pid(&self) -> Result<u32> {
        let pid = self.told["pid"].as_u64().context("a pid")?;
        Ok(pid.try_into()?)
    }

    /// Detaches the volume. Mount namespaces of other tests may have copies of its mount, which
    /// keep it in use until they end.
    pub fn detach(mut self) -> Result<String> {
        let said = wait("it is detached", secs(120), || {
            let ran = crate::gabion(["detach", self.volume])?;
            let elsewhere = ran.stderr.contains("it is mounted in another mount namespace");
            if elsewhere { Ok(None) } else { ran.ok().map(Some) }
        })?;
        self.detached = true;
        let device = self.device()?.trim_start_matches("/dev/");
        let backing = format!("/sys/block/{device}/loop/backing_file");
        let file = std::fs::read_to_string(backing).unwrap_or_default();
        ensure!(!file.contains(self.volume), "{device} is still there");
        Ok(said)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if self.detached {
            return;
        }
        let (volume, at) = (self.volume, self.at.display());
        let device = self.device().unwrap_or("none").to_owned();
        // A forced unmount ends waiting I/O with an error.
        let pid = self.pid().map_or(String::new(), |pid| format!("kill -9 {pid};"));
        let _ = shell(&format!(
            "umount -f /run/gabion/attach/{volume}/volumes; {pid} umount -l {at}; \
             losetup -d {device}; umount -l /run/gabion/attach/{volume}/volumes; rm -rf /run/gabion/attach/{volume} \
             /dev/gabion/{volume}"
        ));
    }
}
