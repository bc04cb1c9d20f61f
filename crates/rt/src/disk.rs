//! Operations on devices: RAM, NULL, files and block devices.
//!
//! RAM and NULL devices answer at once; the shard delivers the answer as an event of its own. A
//! file operation is a [`FileOp`]. It owns its buffer until the kernel has completed it, and
//! continues after a short read or write. A growing file reads as zeros beyond its end. On any
//! other device, a read beyond the present end fails, because the device has shrunk since it was
//! opened.

use crate::config::DiskSpec;
use crate::device::Device;
use crate::error::RtError;
use crate::sys::FileCall;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use seam::{Buf, BufPool, DiskError, DiskOp};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::ptr::{NonNull, null_mut};

/// A device.
pub(crate) enum Disk {
    Ram(Ram),
    Null(u64),
    File(Device),
}

impl Disk {
    pub(crate) fn open(spec: &DiskSpec) -> Result<Disk, RtError> {
        match spec {
            DiskSpec::Ram(bytes) => Ram::new(*bytes).map(Disk::Ram),
            DiskSpec::Null(bytes) if *bytes > 1 << 63 => Err(RtError::TooLarge { bytes: *bytes }),
            DiskSpec::Null(bytes) => Ok(Disk::Null(*bytes)),
            DiskSpec::Growing { path } => Device::growing(path).map(Disk::File),
            DiskSpec::File { path, size, write_through } => {
                Device::file(path, *size, *write_through).map(Disk::File)
            }
            DiskSpec::Block { path, write_through } => {
                Device::block(path, *write_through).map(Disk::File)
            }
        }
    }

    /// Returns the size in bytes; for a growing file, the present size.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Disk::Ram(ram) => ram.len as u64,
            Disk::Null(bytes) => *bytes,
            Disk::File(device) => device.bytes(),
        }
    }

    /// Returns true if the device takes this range.
    pub(crate) fn has(&self, at: u64, len: usize) -> bool {
        match self {
            Disk::Ram(ram) => check(at, len, ram.len as u64).is_ok(),
            Disk::Null(bytes) => check(at, len, *bytes).is_ok(),
            Disk::File(device) => device.has(at, len),
        }
    }

    /// Returns a notice about this device for the user, if there is one.
    pub(crate) fn notice(&self) -> Option<&str> {
        match self {
            Disk::Ram(_) | Disk::Null(_) => None,
            Disk::File(device) => device.notice.as_deref(),
        }
    }
}

/// A device in memory. Pages that were never written take no memory.
pub(crate) struct Ram {
    map: NonNull<u8>,
    len: usize,
}

// SAFETY: it owns its mapping, and nothing in it is tied to a thread.
unsafe impl Send for Ram {}

impl Ram {
    fn new(bytes: u64) -> Result<Ram, RtError> {
        let fail = |e: rustix::io::Errno| RtError::Memory { bytes, source: e.into() };
        let Ok(len) = usize::try_from(bytes) else { return Err(fail(rustix::io::Errno::NOMEM)) };
        if len == 0 {
            return Ok(Ram { map: NonNull::dangling(), len });
        }
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let map =
            unsafe { mmap_anonymous(null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) };
        let map = NonNull::new(map.map_err(fail)?.cast())
            .ok_or_else(|| fail(rustix::io::Errno::NOMEM))?;
        Ok(Ram { map, len })
    }

    fn range(&self, at: u64, len: usize) -> Result<*mut u8, DiskError> {
        match usize::try_from(at) {
            Ok(at) if at <= self.len && len <= self.len - at => {
                // SAFETY: the range is within the mapping.
                Ok(unsafe { self.map.as_ptr().add(at) })
            }
            _ => Err(DiskError::OutOfRange),
        }
    }

    fn read(&self, at: u64, len: usize, pool: &BufPool) -> Result<Buf, DiskError> {
        let from = self.range(at, len)?;
        let mut buf = pool.alloc(len);
        // SAFETY: `from` has `len` bytes, so has the buffer, and they don't overlap.
        unsafe { buf.as_mut().as_mut_ptr().copy_from_nonoverlapping(from, len) };
        Ok(buf)
    }

    fn write(&mut self, at: u64, body: &[u8]) -> Result<Buf, DiskError> {
        let to = self.range(at, body.len())?;
        // SAFETY: `to` has room for `body`, and they don't overlap.
        unsafe { to.copy_from_nonoverlapping(body.as_ptr(), body.len()) };
        Ok(Buf::EMPTY)
    }
}

impl Drop for Ram {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: the mapping is ours, and nothing borrows from it.
            let _ = unsafe { munmap(self.map.as_ptr().cast(), self.len) };
        }
    }
}

/// An operation on a device.
pub(crate) enum Act {
    Read { at: u64, len: u32 },
    Write { at: u64, body: Buf, durable: bool },
    Flush,
    Punch { at: u64, len: u64 },
}

/// A started operation: it ended at once, or continues as a file operation.
pub(crate) enum Begun {
    Ended(Result<Buf, DiskError>),
    File(FileOp),
}

/// The zeros that a NULL device returns: all reads share one buffer.
#[derive(Default)]
pub(crate) struct Zeros(Buf);

impl Zeros {
    fn get(&mut self, len: usize, pool: &BufPool) -> Buf {
        if self.0.len() < len {
            self.0 = pool.zeroed(len.next_power_of_two().max(1 << 20).min(u32::MAX as usize));
        }
        self.0.slice(0..len)
    }
}

/// Starts an operation.
pub(crate) fn begin(
    disk: &mut Disk,
    op: DiskOp,
    act: Act,
    pool: &BufPool,
    zeros: &mut Zeros,
) -> Begun {
    let ended = match (disk, act) {
        (Disk::Ram(ram), Act::Read { at, len }) => ram.read(at, len as usize, pool),
        (Disk::Ram(ram), Act::Write { at, body, .. }) => ram.write(at, &body),
        (Disk::Null(size), Act::Read { at, len }) => {
            check(at, len as usize, *size).map(|()| zeros.get(len as usize, pool))
        }
        (Disk::Null(size), Act::Write { at, body, .. }) => {
            check(at, body.len(), *size).map(|()| Buf::EMPTY)
        }
        (Disk::Ram(_) | Disk::Null(_), Act::Flush) => Ok(Buf::EMPTY),
        (Disk::Ram(Ram { len: size, .. }), Act::Punch { at, len }) => {
            check(at, len as usize, *size as u64).and(Err(DiskError::Unsupported))
        }
        (Disk::Null(size), Act::Punch { at, len }) => {
            check(at, len as usize, *size).and(Err(DiskError::Unsupported))
        }
        (Disk::File(device), act) => return begin_file(device, op, act, pool),
    };
    Begun::Ended(ended)
}

fn check(at: u64, len: usize, size: u64) -> Result<(), DiskError> {
    if at <= size && len as u64 <= size - at { Ok(()) } else { Err(DiskError::OutOfRange) }
}

fn begin_file(device: &Device, op: DiskOp, act: Act, pool: &BufPool) -> Begun {
    let (kind, at, len) = match &act {
        Act::Read { at, len } => (Kind::Read, *at, *len as usize),
        Act::Write { at, body, .. } => (Kind::Write, *at, body.len()),
        Act::Flush => (Kind::Flush, 0, 0),
        Act::Punch { at, len } => (Kind::Punch(*len), *at, *len as usize),
    };
    if !device.has(at, len) {
        return Begun::Ended(Err(DiskError::OutOfRange));
    }
    if len == 0 && kind != Kind::Flush {
        return Begun::Ended(Ok(Buf::EMPTY));
    }
    if matches!(kind, Kind::Punch(_)) && !device.is_thin() {
        return Begun::Ended(Err(DiskError::Unsupported));
    }
    let durable = device.write_through || matches!(act, Act::Write { durable: true, .. });
    let buf = match act {
        Act::Read { .. } => pool.alloc(len),
        Act::Write { body, .. } if device.takes(body.as_ptr()) => body,
        Act::Write { body, .. } => pool.copy(&body),
        Act::Flush | Act::Punch { .. } => Buf::EMPTY,
    };
    let fd = device.as_fd().as_raw_fd();
    let grows = device.grows();
    Begun::File(FileOp { op, fd, kind, grows, durable, at, buf, done: 0 })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Flush,
    /// The length in bytes.
    Punch(u64),
}

/// An operation on a file.
pub(crate) struct FileOp {
    pub(crate) op: DiskOp,
    pub(crate) fd: RawFd,
    kind: Kind,
    /// The file is a growing one: reads beyond its end return zeros.
    grows: bool,
    /// A write is durable when it completes.
    durable: bool,
    pub(crate) at: u64,
    buf: Buf,
    done: usize,
}

impl FileOp {
    /// Returns the next system call for the kernel. Its memory is this operation's buffer.
    pub(crate) fn call(&mut self) -> FileCall {
        let at = self.at + self.done as u64;
        let len = (self.buf.len() - self.done) as u32;
        match self.kind {
            Kind::Read => {
                FileCall::Read { to: self.buf.as_mut()[self.done..].as_mut_ptr(), len, at }
            }
            Kind::Write => {
                let from = self.buf[self.done..].as_ptr();
                FileCall::Write { from, len, at, durable: self.durable }
            }
            Kind::Flush => FileCall::Sync,
            Kind::Punch(len) => FileCall::Punch { at, len },
        }
    }

    /// Takes the result of the last [`FileOp::call`]. `None`: there is more to do.
    pub(crate) fn completed(&mut self, result: i32) -> Option<Result<Buf, DiskError>> {
        if result < 0 {
            let is_punch = matches!(self.kind, Kind::Punch(_));
            return match -result {
                libc::EINTR | libc::EAGAIN => None,
                // The file system can't do it, or io_uring of this kernel can't.
                libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL if is_punch => {
                    Some(Err(DiskError::Unsupported))
                }
                libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Some(Err(DiskError::NoSpace)),
                _ => Some(Err(DiskError::Io)),
            };
        }
        self.done += result as usize;
        match self.kind {
            Kind::Read if result == 0 && self.done < self.buf.len() => {
                if !self.grows {
                    return Some(Err(DiskError::Io)); // the device has shrunk
                }
                self.buf.as_mut()[self.done..].fill(0);
                Some(Ok(std::mem::take(&mut self.buf)))
            }
            Kind::Read if self.done == self.buf.len() => Some(Ok(std::mem::take(&mut self.buf))),
            Kind::Write if result == 0 => Some(Err(DiskError::NoSpace)),
            Kind::Write if self.done == self.buf.len() => Some(Ok(Buf::EMPTY)),
            Kind::Flush | Kind::Punch(_) => Some(Ok(Buf::EMPTY)),
            Kind::Read | Kind::Write => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(disk: &mut Disk, act: Act, pool: &BufPool) -> Result<Buf, DiskError> {
        match begin(disk, DiskOp(0), act, pool, &mut Zeros::default()) {
            Begun::Ended(result) => result,
            Begun::File(_) => panic!("not a file"),
        }
    }

    #[test]
    fn memory_remembers_null_forgets_and_both_have_an_end() {
        let pool = BufPool::new(1 << 20);
        let mut ram = Disk::open(&DiskSpec::Ram(1 << 40)).unwrap();
        let mut null = Disk::open(&DiskSpec::Null(1 << 63)).unwrap();
        let body = pool.copy(b"hello");
        let at = (1 << 40) - 5;
        assert!(
            now(&mut ram, Act::Write { at, body: body.clone(), durable: false }, &pool).is_ok()
        );
        assert_eq!(&now(&mut ram, Act::Read { at, len: 5 }, &pool).unwrap()[..], b"hello");
        assert_eq!(&now(&mut ram, Act::Read { at: 7, len: 3 }, &pool).unwrap()[..], [0; 3]);
        let over =
            now(&mut ram, Act::Write { at: at + 1, body: body.clone(), durable: false }, &pool);
        assert_eq!(over.unwrap_err(), DiskError::OutOfRange);
        let at = (1 << 63) - 5;
        assert!(now(&mut null, Act::Write { at, body, durable: false }, &pool).is_ok());
        assert_eq!(&now(&mut null, Act::Read { at, len: 5 }, &pool).unwrap()[..], [0; 5]);
        assert!(now(&mut null, Act::Read { at: at + 1, len: 5 }, &pool).is_err());
        assert!(now(&mut null, Act::Read { at: u64::MAX, len: 5 }, &pool).is_err());
        assert!(Disk::open(&DiskSpec::Null((1 << 63) + 1)).is_err());
        let mut none = Disk::open(&DiskSpec::Ram(0)).unwrap();
        assert!(now(&mut none, Act::Flush, &pool).is_ok());
        assert!(now(&mut none, Act::Read { at: 0, len: 1 }, &pool).is_err());
    }

    fn op(grows: bool, kind: Kind, buf: Buf) -> FileOp {
        FileOp { op: DiskOp(1), fd: 0, kind, grows, durable: false, at: 100, buf, done: 0 }
    }

    #[test]
    fn short_results_go_on_where_they_stopped() {
        let pool = BufPool::new(1 << 20);
        let nines = || pool.copy(&[9; 10]);
        let mut read = op(true, Kind::Read, nines());
        assert!(read.completed(-libc::EINTR).is_none() && read.completed(4).is_none());
        assert!(matches!(read.call(), FileCall::Read { len: 6, at: 104, .. }));
        assert_eq!(&read.completed(0).unwrap().unwrap()[..], [9, 9, 9, 9, 0, 0, 0, 0, 0, 0]);
        let mut write = op(true, Kind::Write, nines());
        assert!(write.completed(3).is_none());
        assert!(matches!(write.call(), FileCall::Write { len: 7, at: 103, .. }));
        assert!(matches!(write.completed(-libc::ENOSPC), Some(Err(DiskError::NoSpace))));
    }

    #[test]
    fn a_device_that_has_shrunk_reads_no_zeros() {
        let pool = BufPool::new(1 << 20);
        let mut read = op(false, Kind::Read, pool.copy(&[9; 10]));
        assert!(read.completed(4).is_none());
        assert_eq!(read.completed(0).unwrap().unwrap_err(), DiskError::Io);
    }
}
