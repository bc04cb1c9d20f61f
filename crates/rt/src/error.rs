//! Why a shard could not start or had to end, and what the user can do about it.

use crate::config::ListenAddr;
use std::io;
use std::path::PathBuf;

/// Why a shard could not start, or had to end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RtError {
    /// Somebody else listens there.
    #[error(
        "{at} is in use by another program: stop that one (`ss -ltnp` or `ss -lxp` names it), or listen elsewhere"
    )]
    InUse {
        /// Where.
        at: ListenAddr,
    },
    /// Listening failed otherwise.
    #[error("can't listen on {at}: {source}{}", hint_listen(source))]
    Listen {
        /// Where.
        at: ListenAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// The path of a unix socket is taken by something else.
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
        /// What the kernel said.
        source: io::Error,
    },
    /// Another process has the device.
    #[error(
        "device {} is in use by another process: is a server running on it already?",
        path.display()
    )]
    Locked {
        /// Its path.
        path: PathBuf,
    },
    /// A file that is to be a device is not there.
    #[error("there is no file {}: give it a size (file:PATH:SIZE), and it is made", path.display())]
    Missing {
        /// Its path.
        path: PathBuf,
    },
    /// A new file could not be given its size.
    #[error("can't make {} with {bytes} bytes: {source}{}", path.display(), hint_make(source))]
    Make {
        /// Its path.
        path: PathBuf,
        /// The size in bytes.
        bytes: u64,
        /// What the kernel said.
        source: io::Error,
    },
    /// Another kind of thing has this path.
    #[error("{} is {is}: {instead}", path.display())]
    WrongKind {
        /// The path.
        path: PathBuf,
        /// What is there.
        is: &'static str,
        /// What to do.
        instead: &'static str,
    },
    /// A block device has another user.
    #[error(
        "block device {0} is mounted, or a part of it is, or another program has it: `lsblk {0}` and `fuser -v {0}` show who; unmount it, or choose another",
        path.display()
    )]
    Mounted {
        /// Its path.
        path: PathBuf,
    },
    /// A block device that can't be written.
    #[error(
        "block device {0} is read-only: `blockdev --setrw {0}`, or choose another",
        path.display()
    )]
    ReadOnly {
        /// Its path.
        path: PathBuf,
    },
    /// Its smallest range is more than 4 KiB.
    #[error("device {} takes blocks of {bytes} bytes: choose one that takes 4096", path.display())]
    LargeBlocks {
        /// Its path.
        path: PathBuf,
        /// The smallest range in bytes.
        bytes: u64,
    },
    /// A device in memory could not be made.
    #[error("can't make a device of {bytes} bytes in memory: {source}; choose a smaller size")]
    Memory {
        /// Its size.
        bytes: u64,
        /// What the kernel said.
        source: io::Error,
    },
    /// The size of a NULL device is not possible.
    #[error("a NULL device of {bytes} bytes is too large: at most 2^63")]
    TooLarge {
        /// Its size.
        bytes: u64,
    },
    /// io_uring was asked for and can't be had.
    #[error("io_uring can't be used here: {why}; use --backend epoll (or auto)")]
    NoUring {
        /// Why.
        why: String,
    },
    /// The thread can't be pinned.
    #[error("can't stay on core {core}: {source}; choose one of `taskset -p $$`, or don't pin")]
    Pin {
        /// Which core.
        core: usize,
        /// What the kernel said.
        source: io::Error,
    },
    /// A system call that never fails on a healthy system did.
    #[error("{what} failed: {source}{}", hint_open(source))]
    System {
        /// Which one.
        what: &'static str,
        /// What the kernel said.
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
