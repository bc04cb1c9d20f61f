//! The exclusive use of a disk that is to end.
//!
//! The process that serves a disk must not open it itself: the kernel may read from the disk then,
//! and wait for this process. So a thread does that.

use crate::block;
use anyhow::{Result, anyhow};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::JoinHandle;

/// A disk that is being claimed.
pub(super) struct Claiming {
    /// Readable when the thread has ended.
    ended: UnixStream,
    thread: JoinHandle<Result<Option<OwnedFd>>>,
}

impl Claiming {
    /// Begins to claim a disk.
    pub(super) fn begin(disk: &Path) -> Result<Claiming> {
        let (ended, mut tell) = UnixStream::pair()?;
        let disk = disk.to_owned();
        let thread = std::thread::Builder::new().spawn(move || {
            let claim = block::claim(&disk);
            // If nobody reads it, nobody waits for it.
            let _ = tell.write_all(&[0]);
            claim
        })?;
        Ok(Claiming { ended, thread })
    }

    /// Readable when the thread has ended.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// Returns the claim, after [`Claiming::fd`] is readable. `None`: the disk is mounted, also in
    /// another mount namespace, or a part of it is, or another device is built on it.
    pub(super) fn end(self) -> Result<Option<OwnedFd>> {
        self.thread.join().map_err(|_| anyhow!("the thread that opens the disk has failed"))?
    }
}
