//! Aligned, pooled, reference-counted buffers. A payload stays in one from socket to device.
//!
//! A [`Buf`] is a view of a block of memory that starts on a 4 KiB boundary. Clones and slices
//! share the block. When the last view is dropped, the block returns to its pool. A pool belongs to
//! one shard: neither pools nor buffers can leave their thread.

use alloc::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::fmt;
use core::ops::{Deref, Range};
use core::ptr::NonNull;

/// Alignment of blocks, in bytes, as devices require it for direct I/O.
pub const ALIGN: usize = 4096;

/// The block sizes that the pool keeps, in bytes. Larger blocks are allocated and freed each time.
const CLASSES: [usize; 6] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 2 << 20];

struct Block {
    refs: Cell<u32>,
    class: u8, // CLASSES.len() = not pooled
    capacity: usize,
    data: NonNull<u8>,
    /// Counted in the `Rc` while the block is in use, not while it is in a free list.
    pool: *const Shared,
}

struct Shared {
    free: [RefCell<Vec<NonNull<Block>>>; CLASSES.len()],
    kept: Cell<usize>,
    keep: usize,
    used: Cell<usize>,
}

/// A pool of buffers.
#[derive(Clone)]
pub struct BufPool(Rc<Shared>);

impl BufPool {
    /// Creates a pool that keeps at most `keep` bytes of free memory for reuse.
    pub fn new(keep: usize) -> BufPool {
        BufPool(Rc::new(Shared {
            free: Default::default(),
            kept: Cell::new(0),
            keep,
            used: Cell::new(0),
        }))
    }

    /// Returns a buffer of `len` bytes with arbitrary (but initialised) content.
    pub fn alloc(&self, len: usize) -> Buf {
        if len == 0 {
            return Buf::EMPTY;
        }
        assert!(len <= u32::MAX as usize, "a buffer of {len} bytes");
        let class = CLASSES.iter().position(|c| *c >= len).unwrap_or(CLASSES.len());
        let shared = &self.0;
        let reused = shared.free.get(class).and_then(|f| f.borrow_mut().pop());
        let block = match reused {
            Some(block) => {
                shared.kept.set(shared.kept.get() - CLASSES[class]);
                block
            }
            None => {
                let capacity = CLASSES.get(class).copied().unwrap_or(len.next_multiple_of(ALIGN));
                Block::allocate(capacity, class as u8, Rc::as_ptr(shared))
            }
        };
        // SAFETY: the block is live, and a reused one has no views left.
        let b = unsafe { block.as_ref() };
        b.refs.set(1);
        // SAFETY: the pointer is this very `Rc`'s.
        unsafe { Rc::increment_strong_count(b.pool) };
        shared.used.set(shared.used.get() + b.capacity);
        Buf { block: Some(block), at: 0, len: len as u32 }
    }

    /// Returns a buffer of zeros.
    pub fn zeroed(&self, len: usize) -> Buf {
        let mut buf = self.alloc(len);
        buf.as_mut().fill(0);
        buf
    }

    /// Returns a buffer with a copy of `data`.
    pub fn copy(&self, data: &[u8]) -> Buf {
        let mut buf = self.alloc(data.len());
        buf.as_mut().copy_from_slice(data);
        buf
    }

    /// Returns the number of bytes in blocks in use. The simulator checks that all blocks return.
    pub fn used(&self) -> usize {
        self.0.used.get()
    }
}

impl fmt::Debug for BufPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufPool({} bytes out)", self.used())
    }
}

impl Block {
    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, ALIGN).expect("capacity fits an allocation")
    }

    fn allocate(capacity: usize, class: u8, pool: *const Shared) -> NonNull<Block> {
        let layout = Block::layout(capacity);
        // SAFETY: the layout's size is not zero.
        let data = unsafe { alloc(layout) };
        let data = NonNull::new(data).unwrap_or_else(|| handle_alloc_error(layout));
        // Initialised once, so that no view ever shows uninitialised memory.
        // SAFETY: `data` points to `capacity` writable bytes.
        unsafe { data.write_bytes(0, capacity) };
        let block = Box::new(Block { refs: Cell::new(0), class, capacity, data, pool });
        NonNull::from(Box::leak(block))
    }

    /// Ends a view. The block of the last one returns to its pool, or is freed.
    fn unview(block: NonNull<Block>) {
        // SAFETY: the block lives as long as this view.
        let b = unsafe { block.as_ref() };
        b.refs.set(b.refs.get() - 1);
        if b.refs.get() > 0 {
            return;
        }
        let pool = b.pool;
        // SAFETY: this block is counted in the pool's `Rc`, so the pool lives until the last line.
        let shared = unsafe { &*pool };
        shared.used.set(shared.used.get() - b.capacity);
        let class = b.class as usize;
        if class == CLASSES.len() || shared.kept.get() + b.capacity > shared.keep {
            Block::release(block);
        } else {
            shared.kept.set(shared.kept.get() + b.capacity);
            shared.free[class].borrow_mut().push(block);
        }
        // SAFETY: `BufPool::alloc` incremented it, and only this line decrements it.
        unsafe { Rc::decrement_strong_count(pool) };
    }

    /// Frees the memory.
    fn release(block: NonNull<Block>) {
        // SAFETY: it came from `Box::leak`, and no view or free list holds it any more.
        let b = unsafe { Box::from_raw(block.as_ptr()) };
        // SAFETY: `data` was allocated with this very layout.
        unsafe { dealloc(b.data.as_ptr(), Block::layout(b.capacity)) };
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for list in &self.free {
            list.borrow_mut().drain(..).for_each(Block::release);
        }
    }
}

/// A view of bytes in a pooled block; cheap to clone and to slice.
pub struct Buf {
    block: Option<NonNull<Block>>,
    at: u32,
    len: u32,
}

impl Buf {
    /// No bytes, no memory.
    pub const EMPTY: Buf = Buf { block: None, at: 0, len: 0 };

    /// Returns the number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns true if there are no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a view of a part of this view. Panics if `range` leaves the view.
    #[inline]
    pub fn slice(&self, range: Range<usize>) -> Buf {
        if range.is_empty() { self.none(range) } else { self.clone().cut(range) }
    }

    /// Returns this view, cut to a part of it. Panics if `range` leaves the view.
    #[inline]
    pub fn cut(mut self, range: Range<usize>) -> Buf {
        if range.is_empty() || range.end > self.len as usize {
            return self.none(range);
        }
        self.at += range.start as u32;
        self.len = (range.end - range.start) as u32;
        self
    }

    /// Returns no bytes. Panics if `range` leaves the view.
    #[cold]
    fn none(&self, range: Range<usize>) -> Buf {
        assert!(
            range.start <= range.end && range.end <= self.len as usize,
            "{range:?} leaves {self:?}"
        );
        Buf::EMPTY
    }

    /// Returns one view of this view and `next` if `next` directly follows in the same block.
    pub fn followed_by(&self, next: &Buf) -> Option<Buf> {
        if self.block.is_none() || self.block != next.block || self.at + self.len != next.at {
            return None;
        }
        let mut both = self.clone();
        both.len += next.len;
        Some(both)
    }

    /// Returns the bytes for writing. Panics if another view shares the block: data that may be on
    /// its way to a socket or device never changes.
    #[allow(clippy::should_implement_trait)]
    pub fn as_mut(&mut self) -> &mut [u8] {
        let Some(block) = self.block else { return &mut [] };
        // SAFETY: the block lives as long as this view, and the assertion excludes other views.
        let b = unsafe { block.as_ref() };
        assert_eq!(b.refs.get(), 1, "a shared buffer can't be written");
        // SAFETY: `at + len` is within the capacity, by construction.
        unsafe {
            core::slice::from_raw_parts_mut(
                b.data.as_ptr().add(self.at as usize),
                self.len as usize,
            )
        }
    }

    /// Returns a pointer to the view's byte `at`, for a caller that fills a block piece by piece
    /// while views of its filled part exist already. Writing there is sound only where no other
    /// view reaches. Panics beyond the view's end.
    pub fn at(&self, at: usize) -> *mut u8 {
        assert!(at <= self.len as usize, "{at} leaves {self:?}");
        match self.block {
            // SAFETY: the block lives as long as this view, which lies within its capacity.
            Some(block) => unsafe { block.as_ref().data.as_ptr().add(self.at as usize + at) },
            None => core::ptr::null_mut(),
        }
    }

    /// Returns the block that this view keeps in memory: an address that no other block has
    /// meanwhile, and its bytes. `None` for a view of nothing.
    pub fn block(&self) -> Option<(usize, usize)> {
        // SAFETY: the block lives as long as this view.
        self.block.map(|b| (b.as_ptr().addr(), unsafe { b.as_ref() }.capacity))
    }

    /// Returns true if no other view shares the block.
    pub fn is_unique(&self) -> bool {
        // SAFETY: the block lives as long as this view.
        self.block.is_none_or(|b| unsafe { b.as_ref() }.refs.get() == 1)
    }
}

impl Deref for Buf {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        let Some(block) = self.block else { return &[] };
        // SAFETY: the block lives as long as this view, `at + len` is within its capacity, it is
        // initialised, and it is written only through a view that has no others beside it.
        unsafe {
            let data = block.as_ref().data.as_ptr().add(self.at as usize);
            core::slice::from_raw_parts(data, self.len as usize)
        }
    }
}

impl Clone for Buf {
    #[inline]
    fn clone(&self) -> Buf {
        if let Some(block) = self.block {
            // SAFETY: the block lives as long as this view.
            let refs = unsafe { &block.as_ref().refs };
            refs.set(refs.get().checked_add(1).expect("fewer than 2^32 views"));
        }
        Buf { block: self.block, at: self.at, len: self.len }
    }
}

impl Drop for Buf {
    #[inline]
    fn drop(&mut self) {
        // Most buffers on the way of a request are empty.
        if let Some(block) = self.block {
            Block::unview(block);
        }
    }
}

impl Default for Buf {
    fn default() -> Buf {
        Buf::EMPTY
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_share_and_the_last_one_gives_back() {
        let pool = BufPool::new(1 << 20);
        let mut buf = pool.alloc(5000);
        assert_eq!(buf.as_ptr() as usize % ALIGN, 0);
        buf.as_mut().fill(3);
        let part = buf.slice(4096..4100);
        assert!(!buf.is_unique());
        drop(buf);
        assert_eq!((&part[..], pool.used()), (&[3u8; 4][..], 16 << 10));
        drop(part);
        assert_eq!(pool.used(), 0);
        assert_eq!(pool.alloc(16 << 10)[0], 3, "reused");
    }

    #[test]
    fn only_neighbours_in_one_block_become_one_view() {
        let pool = BufPool::new(1 << 20);
        let (a, other) = (pool.copy(b"abcdef"), pool.copy(b"abcdef"));
        let both = a.slice(1..3).followed_by(&a.slice(3..5));
        assert_eq!(both.as_deref(), Some(&b"bcde"[..]));
        assert!(a.slice(1..3).followed_by(&a.slice(4..5)).is_none());
        assert!(a.slice(1..3).followed_by(&other.slice(3..5)).is_none());
        assert!(Buf::EMPTY.followed_by(&Buf::EMPTY).is_none());
    }

    #[test]
    fn buffers_outlive_their_pool() {
        let pool = BufPool::new(1 << 20);
        let (a, big) = (pool.copy(b"abc"), pool.zeroed(5 << 20));
        drop(pool);
        assert_eq!((&a[..], big.len()), (&b"abc"[..], 5 << 20));
    }

    #[test]
    #[should_panic(expected = "shared")]
    fn shared_data_cannot_change() {
        let mut a = BufPool::new(0).copy(b"abc");
        let _b = a.clone();
        a.as_mut()[0] = 0;
    }
}
