//! Limits of a process in an experiment: memory, and bytes per second of its disk, by control
//! groups (version 1 or 2).

use anyhow::{Context, Result, bail};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Mount point of control groups.
const ROOT: &str = "/sys/fs/cgroup";

/// The limits of one server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes of memory.
    pub memory: u64,
    /// Limit in bytes per second for reads of its disk, and the same for writes.
    pub disk: u64,
}

/// A control group, which is removed when this value is dropped.
#[derive(Debug)]
pub struct Group(Vec<PathBuf>);

impl Group {
    /// Makes a group for processes whose files are in `folder`.
    pub fn new(name: &str, limits: Limits, folder: &Path) -> Result<Group> {
        let (major, minor) = disk(folder)?;
        let rate = |bytes: u64| format!("{major}:{minor} {bytes}");
        if Path::new(ROOT).join("cgroup.controllers").exists() {
            let group = Group(vec![Path::new(ROOT).join(name)]);
            group.make()?;
            let disk = format!("{major}:{minor} rbps={0} wbps={0}", limits.disk);
            group.set(0, "memory.max", &limits.memory.to_string())?;
            group.set(0, "io.max", &disk)?;
            return Ok(group);
        }
        let part = |controller: &str| Path::new(ROOT).join(controller).join(name);
        let group = Group(vec![part("memory"), part("blkio")]);
        group.make()?;
        group.set(0, "memory.limit_in_bytes", &limits.memory.to_string())?;
        group.set(1, "blkio.throttle.read_bps_device", &rate(limits.disk))?;
        group.set(1, "blkio.throttle.write_bps_device", &rate(limits.disk))?;
        Ok(group)
    }

    fn make(&self) -> Result<()> {
        self.0.iter().try_for_each(|folder| {
            fs::create_dir_all(folder)
                .with_context(|| format!("can't make the control group {}", folder.display()))
        })
    }

    fn set(&self, part: usize, file: &str, value: &str) -> Result<()> {
        let file = self.0[part].join(file);
        fs::write(&file, value).with_context(|| {
            format!("can't write `{value}` to {}: this kernel can't limit that", file.display())
        })
    }

    /// Puts a process into the group.
    pub fn add(&self, pid: u32) -> Result<()> {
        (0..self.0.len()).try_for_each(|part| self.set(part, "cgroup.procs", &pid.to_string()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A group can be removed only after its last process is gone.
        self.0.iter().for_each(|folder| drop(fs::remove_dir(folder)));
    }
}

/// Returns the device number of the disk under a folder: of the whole disk, not of a partition.
fn disk(folder: &Path) -> Result<(u32, u32)> {
    let device = fs::metadata(folder).with_context(|| format!("{}", folder.display()))?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let known = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    if !known.exists() {
        bail!(
            "{} is on no disk of its own: its speed can't be limited. Choose another folder",
            folder.display()
        );
    }
    let whole =
        if known.join("partition").exists() { known.join("../dev") } else { known.join("dev") };
    let text = fs::read_to_string(&whole).with_context(|| format!("{}", whole.display()))?;
    let (major, minor) = text.trim().split_once(':').context("a device's number")?;
    Ok((major.parse()?, minor.parse()?))
}
