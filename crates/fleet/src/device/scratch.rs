//! An area to write to without destroying anything: an unlinked file, or a range of a block device
//! whose content is restored afterwards.

use anyhow::{Context, Result, bail};
use rt::{Backend, DiskSpec, OfflineDevice};
use rustix::fs::{FileType, Mode, OFlags, SeekFrom, fdatasync, open, seek, stat, unlink};
use rustix::io::{Errno, pread, pwrite};
use seam::{Buf, BufPool};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Length of the area in bytes.
pub(crate) const BYTES: u64 = 16 << 20;
/// An empty block device has this many zero bytes at its beginning and its end.
const EDGE: u64 = 1 << 20;
const PIECE: usize = 1 << 20;

/// The scratch area.
pub(crate) struct Scratch {
    fd: OwnedFd,
    pool: BufPool,
    /// Start of the area on the device, in bytes.
    at: u64,
    readable: (u64, u64),
    /// It may be written.
    pub writable: bool,
    /// I/O bypasses the page cache.
    pub direct: bool,
    /// The content to restore.
    saved: Vec<u8>,
}

impl Scratch {
    /// Makes a scratch area. For a file, which need not exist, or a folder, it is an unlinked file
    /// beside the file or in the folder. For a block device it is a range of the device, which is
    /// written only if the device is empty, or with `force`.
    pub(crate) fn new(path: &Path, force: bool) -> Result<Scratch> {
        let kind = stat(path).map(|s| FileType::from_raw_mode(s.st_mode));
        match kind {
            Ok(FileType::BlockDevice) => Scratch::block(path, force),
            Ok(FileType::Directory) => Scratch::file(path),
            Err(Errno::NOENT) if !folder(path).is_dir() => {
                bail!("there is no {}, nor a folder that it could lie in", path.display())
            }
            Ok(FileType::RegularFile) | Err(Errno::NOENT) => Scratch::file(&folder(path)),
            Ok(_) => bail!("{} is neither a file, a folder nor a block device", path.display()),
            Err(e) => Err(e).with_context(|| path.display().to_string()),
        }
    }

    fn file(folder: &Path) -> Result<Scratch> {
        let path = folder.join(format!(".gabion-probe-{}", std::process::id()));
        let failed = || format!("can't make a scratch file in {}", folder.display());
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let (fd, direct) = match open(&path, flags | OFlags::DIRECT, mode) {
            Err(Errno::INVAL) => (open(&path, flags, mode), false),
            opened => (opened, true),
        };
        let fd = fd.with_context(failed)?;
        unlink(&path).with_context(failed)?;
        let readable = (0, BYTES);
        let mut scratch = Scratch {
            fd,
            pool: BufPool::new(0),
            at: 0,
            readable,
            writable: true,
            direct,
            saved: Vec::new(),
        };
        scratch.fill(|i| mixed(i as u64)).with_context(failed)?;
        Ok(scratch)
    }

    fn block(path: &Path, force: bool) -> Result<Scratch> {
        // This reports who uses the device, if it is in use.
        let bytes = OfflineDevice::read_only(path)?.bytes();
        let look = OFlags::RDONLY | OFlags::EXCL | OFlags::DIRECT | OFlags::CLOEXEC;
        let open_as = |flags| open(path, flags, Mode::empty());
        let fd = open_as(look).with_context(|| path.display().to_string())?;
        let end = seek(&fd, SeekFrom::End(0))?.min(bytes);
        let at = EDGE.min(end / 4).next_multiple_of(4096);
        let mut scratch = Scratch {
            fd,
            pool: BufPool::new(0),
            at,
            readable: (0, end / 4096 * 4096),
            writable: false,
            direct: true,
            saved: Vec::new(),
        };
        if end < at + BYTES || !(force || scratch.is_empty()?) {
            return Ok(scratch);
        }
        scratch.saved = scratch.save()?;
        // This refuses a read-only device.
        drop(std::mem::replace(&mut scratch.fd, open_as(OFlags::RDONLY)?));
        drop(OfflineDevice::open(&DiskSpec::block(path), Backend::Epoll)?);
        scratch.fd = open_as(OFlags::RDWR | OFlags::EXCL | OFlags::DIRECT | OFlags::CLOEXEC)?;
        scratch.writable = true;
        scratch.fill(|i| mixed(i as u64))?;
        Ok(scratch)
    }

    /// Returns true if the beginning, the end and the area itself are all zeros.
    fn is_empty(&self) -> Result<bool> {
        let end = self.readable.1;
        for (at, bytes) in [(0, EDGE), (self.at, BYTES), (end - EDGE.min(end), EDGE)] {
            for piece in (at..(at + bytes).min(end)).step_by(PIECE) {
                let mut buf = self.pool.alloc(PIECE.min((end - piece) as usize));
                pread(&self.fd, buf.as_mut(), piece)?;
                if buf.iter().any(|b| *b != 0) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn save(&self) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        let mut buf = self.pool.alloc(PIECE);
        for piece in (0..BYTES).step_by(PIECE) {
            pread(&self.fd, buf.as_mut(), self.at + piece)?;
            all.extend_from_slice(&buf);
        }
        Ok(all)
    }

    /// Writes the whole area, so that later measurements include no allocation.
    fn fill(&mut self, with: impl Fn(usize) -> u8) -> Result<()> {
        let mut buf = self.pool.alloc(PIECE);
        for piece in (0..BYTES).step_by(PIECE) {
            let bytes = buf.as_mut().iter_mut().enumerate();
            bytes.for_each(|(i, b)| *b = with(piece as usize + i));
            self.put(piece, &buf)?;
        }
        self.flush()
    }

    /// Returns a buffer for direct I/O with content that no device can compress.
    pub(crate) fn buffer(&self, len: usize) -> Buf {
        let mut buf = self.pool.alloc(len);
        buf.as_mut().iter_mut().enumerate().for_each(|(i, b)| *b = mixed(i as u64 + 77));
        buf
    }

    /// Writes at an offset in the area, in bytes: a multiple of 4 KiB.
    pub(crate) fn put(&self, at: u64, data: &[u8]) -> Result<()> {
        assert!(self.writable, "it may be written");
        assert!(at + data.len() as u64 <= BYTES, "within the scratch area");
        let written = pwrite(&self.fd, data, self.at + at).context("writing")?;
        match written == data.len() {
            true => Ok(()),
            false => bail!("the device took {written} of {} bytes", data.len()),
        }
    }

    /// Restores the saved content durably, as much of it as the device takes. A scratch file has
    /// none. Returns the first error.
    fn restore(&mut self) -> Result<()> {
        let saved = std::mem::take(&mut self.saved);
        if saved.is_empty() {
            return Ok(());
        }
        let pieces = saved.chunks(PIECE).enumerate();
        let put = pieces.map(|(i, piece)| self.put((i * PIECE) as u64, &self.pool.copy(piece)));
        let put = put.fold(Ok(()), Result::and);
        put.and(self.flush())
    }

    /// Makes all writes durable.
    pub(crate) fn flush(&self) -> Result<()> {
        fdatasync(&self.fd).context("flushing")
    }

    /// Returns the readable range of the device: the first byte, and the one after the last.
    pub(crate) fn readable(&self) -> (u64, u64) {
        self.readable
    }

    /// Reads at an offset on the device, in bytes.
    pub(crate) fn get(&self, at: u64, into: &mut Buf) -> Result<()> {
        let read = pread(&self.fd, into.as_mut(), at).context("reading")?;
        match read == into.len() {
            true => Ok(()),
            false => bail!("the device gave {read} of {} bytes", into.len()),
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = self.restore() {
            eprintln!("error: the content of the device could not be restored: {error:#}");
        }
    }
}

/// Returns the folder in which a path lies.
pub(crate) fn folder(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

fn mixed(i: u64) -> u8 {
    base::prng::mix(i / 8).to_le_bytes()[i as usize % 8]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_content_is_restored_or_the_failure_is_reported() {
        let mut scratch = Scratch::new(&std::env::temp_dir(), false).unwrap();
        scratch.saved = (0..2 * PIECE).map(|i| (i / 4096) as u8).collect();
        let saved = scratch.saved.clone();
        scratch.restore().unwrap();
        let mut read = scratch.pool.alloc(saved.len());
        scratch.get(0, &mut read).unwrap();
        assert!(read[..] == saved[..]);
        // A scratch area that takes no writes any more.
        scratch.saved = saved;
        scratch.fd = open("/dev/null", OFlags::RDONLY, Mode::empty()).unwrap();
        assert!(scratch.restore().unwrap_err().to_string().contains("writing"));
        // One that takes writes, and fails to flush.
        scratch.saved = vec![0; PIECE];
        scratch.fd = open("/dev/null", OFlags::RDWR, Mode::empty()).unwrap();
        assert!(scratch.restore().unwrap_err().to_string().contains("flushing"));
    }
}
