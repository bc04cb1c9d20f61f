//! Opens files and block devices for exclusive use and, where possible, for direct I/O.
//!
//! Invariants: an open device belongs to this process alone (a lock on a file, `O_EXCL` and a lock
//! on a block device); its size is the one at the open, even if the file changes later; a file is
//! never truncated.
//!
//! There are three kinds. A *growing* file takes any range and has no fixed end: it is for logs. A
//! *file device* and a *block device* have a fixed size and take ranges of whole 4 KiB blocks, so
//! that data moves to and from its buffers without a copy. Operations on devices are started
//! elsewhere (`disk`, `sys`).

use crate::error::RtError;
use rustix::fs::{
    Advice, AtFlags, FileType, FlockOperation, Mode, OFlags, StatxFlags, fadvise, fcntl_getfl,
    fcntl_setfl, flock, fstat, fsync, ftruncate, open, statx,
};
use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, ioctl, opcode};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Ranges on a device are multiples of this, in bytes.
pub(crate) const BLOCK: u64 = 4096;
/// The unit in which the kernel counts the blocks of a file, in bytes.
const SECTOR: u64 = 512;

/// ioctls: the size of a block device in bytes (`BLKGETSIZE64`), and its read-only flag
/// (`BLKROGET`).
const GET_SIZE: Opcode = opcode::read::<usize>(0x12, 114);
const GET_READ_ONLY: Opcode = opcode::none(0x12, 94);

/// How long to wait for the device's present user. A killed process keeps it until the kernel has
/// torn down its io_uring, and device managers open it for a moment to inspect it.
const OWN_PATIENCE: Duration = Duration::from_secs(2);
/// The same when the device is only read.
const LOOK_PATIENCE: Duration = Duration::from_millis(300);
const PAUSE: Duration = Duration::from_millis(10);

/// An open file or block device.
pub(crate) struct Device {
    fd: OwnedFd,
    /// Size in bytes; `None`: a growing file.
    bytes: Option<u64>,
    /// Alignment of memory for direct I/O, in bytes; `None`: I/O uses the page cache.
    direct: Option<usize>,
    /// Each write is durable when it completes.
    pub(crate) write_through: bool,
    /// It is a file that does not have all of its blocks: freed space is given back to its file
    /// system.
    thin: bool,
    /// A notice for the user.
    pub(crate) notice: Option<String>,
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Device {
    /// Opens a file or a block device for reading. Several readers may share a file, but not a
    /// block device, because of `O_EXCL`.
    pub(crate) fn read_only(path: &Path) -> Result<Device, RtError> {
        let failed = failed(path);
        let found = kind(path)?.ok_or_else(|| failed(Errno::NOENT))?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let device = match found {
            FileType::BlockDevice => {
                let fd = exclusive(path, flags, LOOK_PATIENCE)?;
                lock(&fd, FlockOperation::NonBlockingLockShared, path, LOOK_PATIENCE)?;
                Device { bytes: Some(block_bytes(&fd).map_err(failed)?), ..Device::of(fd) }
            }
            FileType::RegularFile => {
                let fd = open(path, flags, Mode::empty()).map_err(&failed)?;
                lock(&fd, FlockOperation::NonBlockingLockShared, path, LOOK_PATIENCE)?;
                let bytes = fstat(&fd).map_err(failed)?.st_size as u64;
                Device { bytes: Some(bytes), ..Device::of(fd) }
            }
            other => return Err(wrong_kind(path, other)),
        };
        device.go_direct(path)
    }

    fn of(fd: OwnedFd) -> Device {
        let (bytes, direct, notice) = (None, None, None);
        Device { fd, bytes, direct, write_through: false, thin: false, notice }
    }

    /// Opens a growing file; creates it if it does not exist.
    pub(crate) fn growing(path: &Path) -> Result<Device, RtError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let fd = open(path, flags, Mode::RUSR | Mode::WUSR).map_err(failed(path))?;
        lock(&fd, FlockOperation::NonBlockingLockExclusive, path, OWN_PATIENCE)?;
        settle(path)?;
        Ok(Device::of(fd))
    }

    /// Opens a file device; a file that is missing or empty is created with `size` bytes.
    pub(crate) fn file(
        path: &Path,
        size: Option<u64>,
        write_through: bool,
    ) -> Result<Device, RtError> {
        let failed = failed(path);
        let mut flags = OFlags::RDWR | OFlags::CLOEXEC;
        match (kind(path)?, size) {
            (Some(FileType::RegularFile), _) => {}
            (Some(other), _) => return Err(wrong_kind(path, other)),
            (None, Some(_)) => flags |= OFlags::CREATE,
            (None, None) if folder(path).is_dir() => {
                return Err(RtError::Missing { path: path.to_owned() });
            }
            (None, None) => return Err(failed(Errno::NOENT)),
        }
        let fd = open(path, flags, Mode::RUSR | Mode::WUSR).map_err(&failed)?;
        lock(&fd, FlockOperation::NonBlockingLockExclusive, path, OWN_PATIENCE)?;
        let found = fstat(&fd).map_err(&failed)?;
        let mut bytes = found.st_size as u64;
        // A file with all of its blocks keeps them: they were reserved on purpose.
        let thin = (found.st_blocks as u64) < bytes.div_ceil(SECTOR) || bytes == 0;
        // A file is also empty after a crash between its creation and the call of `make`.
        if let (0, Some(size)) = (bytes, size) {
            make(&fd, path, size)?;
            bytes = size;
        }
        settle(path)?;
        Device { bytes: Some(bytes), write_through, thin, ..Device::of(fd) }.go_direct(path)
    }

    /// Opens a block device.
    pub(crate) fn block(path: &Path, write_through: bool) -> Result<Device, RtError> {
        match kind(path)? {
            None => return Err(failed(path)(Errno::NOENT)),
            Some(FileType::BlockDevice) => {}
            Some(other) => return Err(wrong_kind(path, other)),
        }
        let fd = exclusive(path, OFlags::RDWR | OFlags::CLOEXEC, OWN_PATIENCE)?;
        lock(&fd, FlockOperation::NonBlockingLockExclusive, path, OWN_PATIENCE)?;
        // SAFETY: this request fills an int, and does nothing else.
        let read_only = unsafe { ioctl(&fd, Getter::<GET_READ_ONLY, i32>::new()) };
        if read_only.map_err(failed(path))? != 0 {
            return Err(RtError::ReadOnly { path: path.to_owned() });
        }
        let bytes = block_bytes(&fd).map_err(failed(path))?;
        Device { bytes: Some(bytes), write_through, ..Device::of(fd) }.go_direct(path)
    }

    /// Switches to direct I/O, if the file system supports it.
    fn go_direct(self, path: &Path) -> Result<Device, RtError> {
        let flags = fcntl_getfl(&self.fd).map_err(failed(path))?;
        let aligns = alignments(&self.fd);
        match fcntl_setfl(&self.fd, flags | OFlags::DIRECT) {
            Ok(()) if aligns.offset > BLOCK => {
                Err(RtError::LargeBlocks { path: path.to_owned(), bytes: aligns.offset })
            }
            Ok(()) => Ok(Device { direct: Some(aligns.memory), ..self }),
            Err(Errno::INVAL) => self.through_cache(path),
            Err(e) => Err(failed(path)(e)),
        }
    }

    /// Prepares a device whose file system has no direct I/O.
    fn through_cache(self, path: &Path) -> Result<Device, RtError> {
        forget_cache(&self.fd).map_err(failed(path))?;
        let notice = Some(format!(
            "device {}: its file system has no direct I/O, so it goes through the page cache, which \
             costs memory and a copy; put it on ext4 or XFS",
            path.display()
        ));
        Ok(Device { notice, ..self })
    }

    /// Returns the size in bytes at open; for a growing file, the present size.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.unwrap_or_else(|| fstat(&self.fd).map_or(0, |s| s.st_size as u64))
    }

    /// Returns true if freed space may be given back.
    pub(crate) fn is_thin(&self) -> bool {
        self.thin
    }

    /// Returns true for a growing file: it takes any range and has no fixed end.
    pub(crate) fn grows(&self) -> bool {
        self.bytes.is_none()
    }

    /// Returns true if the device takes this range.
    pub(crate) fn has(&self, at: u64, len: usize) -> bool {
        let len = len as u64;
        match self.bytes {
            None => at.checked_add(len).is_some_and(|end| end <= i64::MAX as u64),
            Some(bytes) => {
                let whole = at.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK);
                whole && at <= bytes && len <= bytes - at
            }
        }
    }

    /// Returns true if the device can read from, or write to, this memory directly.
    pub(crate) fn takes(&self, memory: *const u8) -> bool {
        self.direct.is_none_or(|align| memory.addr().is_multiple_of(align))
    }
}

/// Alignments that direct I/O requires.
struct Alignments {
    /// Of memory addresses, in bytes.
    memory: usize,
    /// Of offsets and lengths, in bytes.
    offset: u64,
}

fn alignments(fd: &OwnedFd) -> Alignments {
    let info = statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok();
    let info = info.filter(|s| s.stx_mask & StatxFlags::DIOALIGN.bits() != 0);
    match info.map(|s| (s.stx_dio_mem_align, s.stx_dio_offset_align)) {
        Some((memory @ 1.., offset @ 1..)) => {
            Alignments { memory: memory as usize, offset: offset.into() }
        }
        _ => Alignments { memory: BLOCK as usize, offset: BLOCK },
    }
}

fn failed(path: &Path) -> impl Fn(Errno) -> RtError {
    let path = path.to_owned();
    move |e| RtError::Open { path: path.clone(), source: e.into() }
}

fn folder(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Returns the type of the file at `path`; `None`: no file exists.
fn kind(path: &Path) -> Result<Option<FileType>, RtError> {
    match rustix::fs::stat(path) {
        Ok(found) => Ok(Some(FileType::from_raw_mode(found.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(e) => Err(failed(path)(e)),
    }
}

fn wrong_kind(path: &Path, is: FileType) -> RtError {
    let (is, instead) = match is {
        FileType::BlockDevice => ("a block device", "write block:PATH"),
        FileType::RegularFile => ("a file", "write file:PATH"),
        FileType::Directory => ("a folder", "name a file in it"),
        _ => ("neither a file nor a block device", "name one of these"),
    };
    RtError::WrongKind { path: path.to_owned(), is, instead }
}

/// Opens a block device with `O_EXCL`: it fails if the device is mounted or open with `O_EXCL`.
fn exclusive(path: &Path, flags: OFlags, patience: Duration) -> Result<OwnedFd, RtError> {
    let opened =
        patiently(patience, Errno::BUSY, || open(path, flags | OFlags::EXCL, Mode::empty()));
    opened.map_err(|e| match e {
        Errno::BUSY => RtError::Mounted { path: path.to_owned() },
        Errno::ROFS => RtError::ReadOnly { path: path.to_owned() },
        e => failed(path)(e),
    })
}

/// Repeats an attempt that fails with `again`, for at most `patience`.
fn patiently<T>(
    patience: Duration,
    again: Errno,
    mut attempt: impl FnMut() -> Result<T, Errno>,
) -> Result<T, Errno> {
    let until = Instant::now() + patience;
    loop {
        match attempt() {
            Err(e) if e == again && Instant::now() < until => std::thread::sleep(PAUSE),
            result => return result,
        }
    }
}

fn block_bytes(fd: &OwnedFd) -> Result<u64, Errno> {
    // SAFETY: this request fills 64 bits, and does nothing else.
    unsafe { ioctl(fd, Getter::<GET_SIZE, u64>::new()) }
}

fn lock(fd: &OwnedFd, how: FlockOperation, path: &Path, patience: Duration) -> Result<(), RtError> {
    patiently(patience, Errno::WOULDBLOCK, || flock(fd, how)).map_err(|e| match e {
        Errno::WOULDBLOCK => RtError::Locked { path: path.to_owned() },
        e => failed(path)(e),
    })
}

/// Gives a new file its size, and makes that survive a power loss.
fn make(fd: &OwnedFd, path: &Path, size: u64) -> Result<(), RtError> {
    let failed = |e: Errno| RtError::Make { path: path.to_owned(), bytes: size, source: e.into() };
    ftruncate(fd, size).map_err(failed)?;
    fsync(fd).map_err(failed)
}

/// Flushes the directory of a file, so that its name survives a power loss. An existing file needs
/// it too: the process that created it may have died before the flush.
fn settle(path: &Path) -> Result<(), RtError> {
    let failed = failed(path);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = open(folder(path), flags, Mode::empty()).map_err(&failed)?;
    match fsync(folder) {
        // Some file systems can't flush a directory.
        Err(Errno::INVAL) => Ok(()),
        outcome => outcome.map_err(failed),
    }
}

/// Flushes a file and drops it from the page cache, so that later reads come from the disk. After a
/// failed write-back the kernel marks the pages clean: a process that opens the file next would
/// read, and rely on, data that is on no disk.
fn forget_cache(fd: impl AsFd) -> Result<(), Errno> {
    fsync(&fd)?;
    fadvise(fd, 0, None, Advice::DontNeed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::{ReadWriteFlags, preadv2};
    use std::io::{IoSliceMut, Write};

    /// Returns the number of bytes of the first block that are in the page cache.
    fn cached(fd: impl AsFd) -> Result<usize, Errno> {
        let mut block = [0; 4096];
        let read = preadv2(fd, &mut [IoSliceMut::new(&mut block)], 0, ReadWriteFlags::NOWAIT);
        match read {
            Err(Errno::AGAIN) => Ok(0),
            read => read,
        }
    }

    #[test]
    fn data_that_the_page_cache_wrote_is_read_from_the_disk() {
        // Next to this program, because /tmp may be a tmpfs.
        let path = std::env::current_exe().unwrap().with_extension("cache");
        let mut file = std::fs::File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .unwrap();
        file.write_all(&[7; 1 << 20]).unwrap();
        assert_eq!(cached(&file), Ok(4096));
        let device = Device::of(file.into()).through_cache(&path).unwrap();
        assert_eq!(cached(&device), Ok(0));
        assert!(device.notice.is_some_and(|text| text.contains("no direct I/O")));
        std::fs::remove_file(path).unwrap();
    }
}
