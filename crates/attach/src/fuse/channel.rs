//! A mounted FUSE file system: receives the kernel's requests and sends the replies, without
//! blocking.
//!
//! This process mounts the file system itself, which requires root. When the process ends, programs
//! that use the mount get ENOTCONN.

use super::abi::{self, BEFORE_DATA, Start};
use anyhow::{Context, Result};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::CString;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Bytes of the buffer beyond the longest write. The kernel refuses a buffer that is shorter than
/// the longest write and one page.
const ROOM: usize = 8192;

/// The result of a check for a request.
#[derive(Debug)]
pub(crate) enum Received<'a> {
    /// A request.
    Message(&'a [u8]),
    /// No request now.
    Nothing,
    /// The file system is not mounted any more.
    Unmounted,
}

/// A mounted file system.
#[derive(Debug)]
pub(crate) struct Channel {
    device: OwnedFd,
    folder: PathBuf,
    buffer: Vec<u8>,
    mounted: bool,
}

impl Channel {
    /// Mounts over a folder. The kernel's first request arrives soon after.
    pub(crate) fn mount(folder: &Path, start: Start) -> Result<Channel> {
        let folder = folder
            .canonicalize()
            .with_context(|| format!("{} must be an existing folder", folder.display()))?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let device = rustix::fs::open("/dev/fuse", flags, Mode::empty()).context(
            "can't open /dev/fuse: the kernel needs FUSE (`modprobe fuse`), and this needs root",
        )?;
        let options = format!(
            "fd={},rootmode=40555,user_id=0,group_id=0,default_permissions,allow_other,max_read={}",
            device.as_raw_fd(),
            start.transfer
        );
        let options = CString::new(options).context("no zero is in the options")?;
        let how = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
        rustix::mount::mount("gabion", &folder, "fuse.gabion", how, Some(options.as_c_str()))
            .with_context(|| format!("can't mount at {}: this needs root", folder.display()))?;
        let buffer = vec![0; BEFORE_DATA + start.transfer as usize + ROOM];
        Ok(Channel { device, folder, buffer, mounted: true })
    }

    /// Returns the folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Takes the next request.
    pub(crate) fn receive(&mut self) -> Result<Received<'_>> {
        loop {
            return match rustix::io::read(&self.device, &mut self.buffer[..]) {
                Ok(len) => Ok(Received::Message(&self.buffer[..len])),
                // The program that made the request was killed meanwhile.
                Err(Errno::NOENT | Errno::INTR) => continue,
                Err(Errno::AGAIN) => Ok(Received::Nothing),
                Err(Errno::NODEV) => {
                    self.mounted = false;
                    Ok(Received::Unmounted)
                }
                Err(why) => Err(why).context("can't read from /dev/fuse"),
            };
        }
    }

    /// Answers a request with a body.
    pub(crate) fn reply(&self, unique: u64, body: &[u8]) -> Result<()> {
        self.send(unique, 0, body)
    }

    /// Answers a request with an error.
    pub(crate) fn refuse(&self, unique: u64, error: Errno) -> Result<()> {
        self.send(unique, error.raw_os_error(), &[])
    }

    fn send(&self, unique: u64, error: i32, body: &[u8]) -> Result<()> {
        let head = abi::reply_head(unique, error, body.len());
        match rustix::io::writev(&self.device, &[IoSlice::new(&head), IoSlice::new(body)]) {
            Ok(_) => Ok(()),
            // No program waits for this answer any more, or the mount is gone.
            Err(Errno::NOENT | Errno::NODEV) => Ok(()),
            Err(why) => Err(why).context("can't write to /dev/fuse"),
        }
    }

    /// Unmounts it. Returns false if it is in use.
    pub(crate) fn unmount(&mut self) -> Result<bool> {
        match rustix::mount::unmount(&self.folder, UnmountFlags::empty()) {
            Ok(()) => {
                self.mounted = false;
                Ok(true)
            }
            Err(Errno::BUSY) => Ok(false),
            Err(why) => {
                Err(why).with_context(|| format!("can't unmount {}", self.folder.display()))
            }
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if self.mounted {
            // A program that has a file open gets errors from it.
            let _ = rustix::mount::unmount(&self.folder, UnmountFlags::DETACH);
        }
    }
}
