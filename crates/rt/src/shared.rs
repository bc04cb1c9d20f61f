//! A file that this process shares with others as memory, such as the memory of a virtual machine.
//!
//! Others write to it at any moment, so no reference to its bytes exists: they are copied out and
//! in, and single numbers are atomic.
//!
//! Invariant: no call reaches beyond the length with which the file was mapped. If another process
//! truncates the file below that length afterwards, the kernel kills this process (SIGBUS).

use crate::error::RtError;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, Ordering};

/// A mapped file.
#[derive(Debug)]
pub struct SharedMemory {
    start: NonNull<u8>,
    len: usize,
}

impl SharedMemory {
    /// Maps the first `len` bytes of a file, which has at least as many.
    pub fn map(file: impl AsFd, len: usize) -> Result<SharedMemory, RtError> {
        let failed = |e: rustix::io::Errno| RtError::Memory { bytes: len as u64, source: e.into() };
        let there = rustix::fs::fstat(&file).map_err(failed)?.st_size;
        if len == 0 || u64::try_from(there).unwrap_or(0) < len as u64 {
            return Err(failed(rustix::io::Errno::INVAL));
        }
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the kernel chooses the address, so nothing that is mapped is replaced.
        let start = unsafe { mmap(std::ptr::null_mut(), len, rights, flags, file, 0) };
        let start = NonNull::new(start.map_err(failed)?.cast()).ok_or(rustix::io::Errno::INVAL);
        Ok(SharedMemory { start: start.map_err(failed)?, len })
    }

    /// Returns a pointer to `len` bytes at `at`.
    ///
    /// # Panics
    /// When the range leaves the mapping.
    fn range(&self, at: usize, len: usize) -> NonNull<u8> {
        let end = at.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len), "{at} + {len} leaves {}", self.len);
        // SAFETY: the offset lies within the mapping, as was just checked.
        unsafe { self.start.add(at) }
    }

    /// Copies bytes out. Where others write meanwhile, old and new bytes may be mixed.
    ///
    /// # Panics
    /// When the range leaves the mapping.
    pub fn read(&self, at: usize, to: &mut [u8]) {
        let from = self.range(at, to.len());
        // SAFETY: both ranges are mapped. They don't overlap, because `to` is exclusive, and no
        // reference to the mapping exists. The bytes have no meaning to the compiler, so a write by
        // another process can't break one.
        unsafe { from.as_ptr().copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// When the range leaves the mapping.
    pub fn write(&self, at: usize, from: &[u8]) {
        let to = self.range(at, from.len());
        // SAFETY: as in `read`.
        unsafe { to.as_ptr().copy_from_nonoverlapping(from.as_ptr(), from.len()) };
    }

    /// Reads a number (little endian) as a whole. What is read after it is at least as new.
    ///
    /// # Panics
    /// When the range leaves the mapping, or `at` is odd.
    pub fn load(&self, at: usize) -> u16 {
        u16::from_le(self.atomic(at).load(Ordering::Acquire))
    }

    /// Writes a number (little endian) as a whole, after everything that was written before.
    ///
    /// # Panics
    /// When the range leaves the mapping, or `at` is odd.
    pub fn store(&self, at: usize, value: u16) {
        self.atomic(at).store(value.to_le(), Ordering::Release);
    }

    /// Sets bits of a byte, and leaves its other bits as they are, after everything that was
    /// written before.
    ///
    /// # Panics
    /// When the byte is outside of the mapping.
    pub fn set_bits(&self, at: usize, bits: u8) {
        let pointer = self.range(at, 1).cast::<AtomicU8>();
        // SAFETY: it is mapped for as long as `self` lives. Other accesses at the same time are
        // those of other processes, or of this thread.
        unsafe { pointer.as_ref() }.fetch_or(bits, Ordering::Release);
    }

    fn atomic(&self, at: usize) -> &AtomicU16 {
        assert!(at.is_multiple_of(2), "{at} is odd");
        let pointer = self.range(at, 2).cast::<AtomicU16>();
        // SAFETY: it is mapped for as long as `self` lives, and aligned: mappings begin at a page.
        // Other accesses at the same time are those of other processes, or of this thread.
        unsafe { pointer.as_ref() }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no reference to it outlives the value.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::os::fd::OwnedFd;

    fn file(len: u64) -> OwnedFd {
        let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, len).unwrap();
        file
    }

    #[test]
    fn writes_through_one_mapping_are_visible_through_another() {
        let file = file(8192);
        let (a, b) = (SharedMemory::map(&file, 8192), SharedMemory::map(&file, 5000));
        let (a, b) = (a.unwrap(), b.unwrap());
        a.write(4990, &[7; 20]);
        let mut there = [0; 10];
        b.read(4990, &mut there);
        assert_eq!(there, [7; 10]);
        b.store(100, 0x1234);
        a.read(100, &mut there[..2]);
        assert_eq!((&there[..2], a.load(100)), (&[0x34, 0x12][..], 0x1234));
        a.set_bits(101, 0x41);
        assert_eq!(b.load(100), 0x5334, "other bits and other bytes stay");
    }

    #[test]
    fn no_more_is_mapped_than_the_file_has() {
        let file = file(4096);
        assert!(SharedMemory::map(&file, 4097).is_err() && SharedMemory::map(&file, 0).is_err());
    }

    #[test]
    fn nothing_beyond_the_mapping_is_reached() {
        let memory = SharedMemory::map(file(8192), 4096).unwrap();
        let panics =
            |call: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err();
        assert!(panics(&|| memory.read(4095, &mut [0; 2])));
        assert!(panics(&|| memory.write(usize::MAX, &[0; 2])));
        assert!(panics(&|| assert_eq!(memory.load(4095), 0)));
        assert!(panics(&|| assert_eq!(memory.load(1), 0)));
        assert!(panics(&|| memory.store(4096, 1)));
        assert!(panics(&|| memory.set_bits(4096, 1)));
        memory.store(4094, 1);
        memory.set_bits(4095, 1);
    }
}
