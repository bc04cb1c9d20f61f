//! The reasons why a shard could not start or had to stop, and what the user can do about them.

use crate::config::ListenAddr;
use std::io;
use std::path::PathBuf;

/// Why a shard could not start, or had to stop.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RtError {
    /// Another process listens at this address.
    #[error(
        "{at} is in use by another program: stop that one (`ss -ltnp` or `ss -lxp` names it), or listen elsewhere"
    )]
    InUse {
        /// The address.
        at: ListenAddr,
    },
    /// Listening failed for another reason.
    #[error("can't listen on {at}: {source}{}", hint_listen(source))]
    Listen {
        /// The address.
        at: ListenAddr,
        /// The kernel's error.
        source: io::Error,
    },
    /// The path of a unix socket belongs to a file that is no socket.
    #[error("can't listen on {}: there is a file that is not a socket; move it away or choose another path", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// A device could not be opened.
    #[error("can't open device {}: {source}{}", path.display(), hint_open(source))]
    Open {
        /// Its path.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// Another process uses the device.
    #[error(
        "device {} is in use by another process: is a server running on it already?",
        path.display()
    )]
    Locked {
        /// Its path.
        path: PathBuf,
    },
    /// A file to be used as a device does not exist.
    #[error("there is no file {}: give it a size (file:PATH:SIZE), and it is made", path.display())]
    Missing {
        /// Its path.
        path: PathBuf,
    },
    /// A new file could not be extended to its size.
    #[error("can't make {} with {bytes} bytes: {source}{}", path.display(), hint_make(source))]
    Make {
        /// Its path.
        path: PathBuf,
        /// Size in bytes.
        bytes: u64,
        /// The kernel's error.
        source: io::Error,
    },
    /// The path belongs to the wrong kind of file.
    #[error("{} is {is}: {instead}", path.display())]
    WrongKind {
        /// The path.
        path: PathBuf,
        /// The kind of file at the path.
        is: &'static str,
        /// Advice for the user.
        instead: &'static str,
    },
    /// A block device is mounted or in use by another program.
    #[error(
        "block device {0} is mounted, or a part of it is, or another program has it: `lsblk {0}` and `fuser -v {0}` show who; unmount it, or choose another",
        path.display()
    )]
    Mounted {
        /// Its path.
        path: PathBuf,
    },
    /// A block device is read-only.
    #[error(
        "block device {0} is read-only: `blockdev --setrw {0}`, or choose another",
        path.display()
    )]
    ReadOnly {
        /// Its path.
        path: PathBuf,
    },
    /// The device has blocks larger than 4 KiB.
    #[error("device {} takes blocks of {bytes} bytes: choose one that takes 4096", path.display())]
    LargeBlocks {
        /// Its path.
        path: PathBuf,
        /// Block size in bytes.
        bytes: u64,
    },
    /// The memory for a RAM device could not be mapped.
    #[error("can't make a device of {bytes} bytes in memory: {source}; choose a smaller size")]
    Memory {
        /// Size in bytes.
        bytes: u64,
        /// The kernel's error.
        source: io::Error,
    },
    /// A NULL device is larger than 2^63 bytes.
    #[error("a NULL device of {bytes} bytes is too large: at most 2^63")]
    TooLarge {
        /// Size in bytes.
        bytes: u64,
    },
    /// io_uring was requested and is not available.
    #[error("io_uring can't be used here: {why}; use --backend epoll (or auto)")]
    NoUring {
        /// The reason.
        why: String,
    },
    /// The kernel's user-space block driver lacks what this program needs.
    #[error("the kernel's user-space block driver (ublk) is older than Linux 6.5")]
    OldUblk,
    /// The thread can't be pinned.
    #[error("can't stay on core {core}: {source}; choose one of `taskset -p $$`, or don't pin")]
    Pin {
        /// The core.
        core: usize,
        /// The kernel's error.
        source: io::Error,
    },
    /// A system call failed that never fails on a healthy system.
    #[error("{what} failed: {source}{}", hint_open(source))]
    System {
        /// The call.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

impl RtError {
    pub(crate) fn system(what: &'static str) -> impl Fn(io::Error) -> RtError {
        move |source| RtError::System { what, source }
    }
}

fn hint_listen(e: &io::Error) -> &'static str {
    match e.raw_os_error() {
        Some(libc::EACCES) => "; ports below 1024 and this folder need more rights",
        Some(libc::EADDRNOTAVAIL) => "; no interface of this host has that address",
        Some(libc::ENOENT) => "; make the folder first",
        Some(libc::EMFILE | libc::ENFILE) => "; raise the limit on open files (ulimit -n)",
        _ => "",
    }
}

fn hint_make(e: &io::Error) -> &'static str {
    match e.raw_os_error() {
        Some(libc::EFBIG) => "; the file system has no files of that size: choose less",
        Some(libc::ENOSPC | libc::EDQUOT) => "; make room, or choose another folder",
        _ => "",
    }
}

fn hint_open(e: &io::Error) -> &'static str {
    match e.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => "; run as a user who may read and write it",
        Some(libc::ENOENT) => "; make the folder first",
        Some(libc::EROFS) => {
            "; its file system is read-only: mount it for writing (`mount -o remount,rw`)"
        }
        Some(libc::EMFILE | libc::ENFILE) => "; raise the limit on open files (ulimit -n)",
        Some(libc::ENOMEM) => "; free memory, or raise the limit on locked memory (ulimit -l)",
        _ => "",
    }
}
