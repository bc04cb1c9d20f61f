//! Block devices, file systems and mounts of this machine. Uses the standard programs of Linux.

use crate::content::Fs;
use anyhow::{Context, Result, bail};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::ffi::OsStr;
use std::fs;
use std::io::{ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long the kernel may take to remove a loop device that is not open.
const GOING: Duration = Duration::from_secs(5);

/// Returns an error unless the user is root.
pub(crate) fn need_root(command: &str) -> Result<()> {
    match rustix::process::geteuid().is_root() {
        true => Ok(()),
        false => bail!("`gabion {command}` changes block devices and mounts: run it as root"),
    }
}

/// Runs a program and returns its output. `package`: the package to suggest if it is missing.
pub(crate) fn tool<S: AsRef<OsStr>>(
    program: &str,
    package: &str,
    args: impl IntoIterator<Item = S>,
) -> Result<String> {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(program);
    let ran = command.args(args).env("PATH", format!("{path}:/usr/sbin:/sbin"));
    let out = match ran.stdin(Stdio::null()).output() {
        Ok(out) => out,
        Err(e) if e.kind() == ErrorKind::NotFound => {
            bail!("there is no program `{program}` here: install the package {package}")
        }
        Err(e) => return Err(e).with_context(|| format!("can't run {program}")),
    };
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr);
        bail!("{program} failed: {}", said.trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

/// Writes a setting of the kernel.
pub(crate) fn set(file: &Path, value: &str) -> std::io::Result<()> {
    fs::File::options().write(true).open(file)?.write_all(value.as_bytes())
}

/// Waits until a condition is true. Returns false if that takes too long.
pub(crate) fn wait(limit: Duration, mut is_true: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + limit;
    while !is_true() {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Makes a loop device of a file, with direct I/O, and returns its path.
pub(crate) fn make_loop(file: &Path, read_only: bool) -> Result<PathBuf> {
    let mut args: Vec<&OsStr> = ["--find", "--show", "--direct-io=on"].map(OsStr::new).into();
    if read_only {
        args.push("--read-only".as_ref());
    }
    args.push(file.as_os_str());
    let device = PathBuf::from(tool("losetup", "util-linux", args)?);
    let direct = fs::read_to_string(sys(&device).join("loop/dio")).unwrap_or_default();
    if direct.trim() != "1" {
        // With the page cache, an answer would not mean that data is durable.
        drop_loop(&device)?;
        bail!("this kernel can't make a loop device with direct I/O");
    }
    Ok(device)
}

/// Removes a loop device. Returns false if it is open: then the last close removes it.
pub(crate) fn drop_loop(device: &Path) -> Result<bool> {
    let backing = sys(device).join("loop/backing_file");
    if !backing.exists() {
        return Ok(true);
    }
    tool("losetup", "util-linux", [OsStr::new("--detach"), device.as_os_str()])?;
    Ok(wait(GOING, || !backing.exists()))
}

/// Opens a device so that nobody else can mount it or build on it meanwhile. Returns `None` if it
/// is mounted, also in another mount namespace, or built on.
pub(crate) fn claim(device: &Path) -> Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
    match rustix::fs::open(device, flags, Mode::empty()) {
        Ok(claim) => Ok(Some(claim)),
        Err(Errno::BUSY) => Ok(None),
        Err(why) => Err(why).with_context(|| format!("can't open {}", device.display())),
    }
}

/// Returns true if a device can only be read.
pub(crate) fn is_read_only(device: &Path) -> bool {
    fs::read_to_string(sys(device).join("ro")).is_ok_and(|text| text.trim() == "1")
}

/// Returns the file behind a loop device, if it is one.
pub(crate) fn loop_file(device: &Path) -> Option<PathBuf> {
    let text = fs::read_to_string(sys(device).join("loop/backing_file")).ok()?;
    Some(text.trim_end().into())
}

/// Returns the devices on top of a device (its holders), such as those of LVM.
pub(crate) fn on_top(device: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(sys(device).join("holders")) else { return Vec::new() };
    entries.filter_map(|e| Some(e.ok()?.file_name().to_string_lossy().into_owned())).collect()
}

/// Returns the folder in which the kernel describes a block device.
pub(crate) fn sys(device: &Path) -> PathBuf {
    Path::new("/sys/block").join(device.file_name().unwrap_or_default())
}

/// Returns true if both describe the same block device.
pub(crate) fn is_device(of: &fs::Metadata, device: &fs::Metadata) -> bool {
    of.file_type().is_block_device() && of.rdev() == device.rdev()
}

/// Makes a file system. A volume without data needs no discard before that.
pub(crate) fn make_fs(device: &Path, fs: Fs, over: bool) -> Result<()> {
    let device = device.to_str().context("a device's path is text")?;
    let (program, package, mut args) = match fs {
        // The caller has checked the content already.
        Fs::Ext4 => ("mkfs.ext4", "e2fsprogs", vec!["-q", "-F"]),
        // The store's blocks have 4 KiB: shorter writes cost a read.
        Fs::Xfs => ("mkfs.xfs", "xfsprogs", vec!["-q", "-f", "-s", "size=4096"]),
    };
    if !over {
        args.extend(match fs {
            Fs::Ext4 => &["-E", "nodiscard"][..],
            Fs::Xfs => &["-K"][..],
        });
    }
    args.push(device);
    tool(program, package, args).map(drop)
}

/// Mounts a device.
pub(crate) fn mount(device: &Path, fs: &str, at: &Path, read_only: bool) -> Result<()> {
    let mut args = vec![OsStr::new("-t"), OsStr::new(fs)];
    if read_only {
        args.extend(["-o", "ro"].map(OsStr::new));
    }
    args.extend([device.as_os_str(), at.as_os_str()]);
    tool("mount", "mount", args).map(drop)
}

/// Unmounts. Returns false if it is in use.
pub(crate) fn unmount(at: &Path) -> Result<bool> {
    match rustix::mount::unmount(at, UnmountFlags::empty()) {
        Ok(()) => Ok(true),
        Err(Errno::BUSY) => Ok(false),
        Err(why) => Err(why).with_context(|| format!("can't unmount {}", at.display())),
    }
}

/// A mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mount {
    /// The folder.
    pub(crate) at: PathBuf,
    /// The name of its file system.
    pub(crate) fs: String,
    /// The source, as given to `mount`.
    pub(crate) source: String,
    /// The device's number.
    number: (u32, u32),
}

/// Returns all mounts that this process sees, in the order in which they were made.
pub(crate) fn mounts() -> Result<Vec<Mount>> {
    let text = fs::read_to_string("/proc/self/mountinfo").context("/proc has the mounts")?;
    Ok(text.lines().filter_map(parse_mount).collect())
}

/// Returns the mounts of a block device.
pub(crate) fn mounts_of(device: &Path) -> Result<Vec<Mount>> {
    // If the device is gone, no mount has it.
    let Ok(found) = fs::metadata(device) else { return Ok(Vec::new()) };
    let number = (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev()));
    let mut mounts = mounts()?;
    // Some file systems have a device number of their own: compare the source's name, too.
    mounts.retain(|mount| mount.number == number || Path::new(&mount.source) == device);
    Ok(mounts)
}

/// Parses a line of `mountinfo` (proc_pid_mountinfo(5)).
fn parse_mount(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(2);
    let (major, minor) = left.next()?.split_once(':')?;
    let at = unescape(left.nth(1)?).into();
    let mut right = right.split(' ');
    let (fs, source) = (right.next()?.to_owned(), unescape(right.next()?));
    Some(Mount { at, fs, source, number: (major.parse().ok()?, minor.parse().ok()?) })
}

/// Replaces escapes such as `\040`, which the kernel writes for a space.
fn unescape(text: &str) -> String {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let code = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let code = code.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(byte) if *first == b'\\' => {
                out.push(byte);
                rest = &tail[3..];
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read_as_the_kernel_writes_them() {
        let line = "36 35 7:3 / /mnt/a\\040b rw,noatime master:1 - ext4 /dev/loop3 rw,errors=x";
        let mount = parse_mount(line).unwrap();
        assert_eq!(mount.at, Path::new("/mnt/a b"));
        assert_eq!((mount.fs.as_str(), mount.source.as_str()), ("ext4", "/dev/loop3"));
        assert_eq!(mount.number, (7, 3));
        assert_eq!(parse_mount("36 35 7:3"), None);
        assert_eq!(unescape("a\\134b\\"), "a\\b\\");
        assert!(mounts().unwrap().iter().any(|mount| mount.at == Path::new("/proc")));
    }

    #[test]
    fn waiting_ends_when_the_condition_is_true_or_the_time_is_over() {
        let mut turns = 0;
        assert!(wait(Duration::from_secs(60), || {
            turns += 1;
            turns == 3
        }));
        assert!(!wait(Duration::ZERO, || false));
    }

    #[test]
    fn a_program_that_is_not_there_is_named_with_its_package() {
        let error = tool("gabion-no-such-program", "some-package", ["x"]).unwrap_err();
        assert!(error.to_string().contains("install the package some-package"));
        let error = tool("ls", "coreutils", ["/gabion-no-such-file"]).unwrap_err();
        assert!(error.to_string().contains("/gabion-no-such-file"));
    }
}
