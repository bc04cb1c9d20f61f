//! The log of the pages that this process writes in a virtual machine's memory. The monitor needs
//! it while the machine migrates: it copies each page again that was written after its last copy.
//!
//! Invariants:
//! - A page is marked after it was written. So a monitor that clears a mark and then copies the
//!   page copies what was written.
//! - Marks are set atomically, because the monitor clears them at any moment.
//! - No mark is beyond the log.

use anyhow::{Context, Result, ensure};
use rt::SharedMemory;
use std::os::fd::OwnedFd;
use target::vhost::log;
use target::vhost::message;

/// A log that is mapped.
#[derive(Debug)]
pub(crate) struct Log {
    /// Where it begins in the mapping.
    offset: usize,
    len: u64,
    memory: SharedMemory,
}

impl Log {
    /// Maps a log from its file.
    pub(crate) fn open(of: message::Log, file: &OwnedFd) -> Result<Log> {
        let end = of.offset.checked_add(of.len).context("a log without an end")?;
        ensure!(of.len > 0, "a log without a byte");
        // From the start of the file, because the offset may not be a multiple of a page.
        let all = usize::try_from(end).context("a longer log than this machine has memory")?;
        let memory = SharedMemory::map(file, all).context("the log of written pages")?;
        Ok(Log { offset: of.offset as usize, len: of.len, memory })
    }

    /// Returns true if it has a mark for each page up to this address.
    pub(crate) fn covers(&self, last: u64) -> bool {
        log::bytes(last) <= self.len
    }

    /// Marks the pages of a range that was written, if the log has them.
    pub(crate) fn mark(&self, at: u64, len: u64) {
        for (byte, bits) in log::marks(at, len, self.len) {
            self.memory.set_bits(self.offset + byte as usize, bits);
        }
    }
}
