//! A device in memory: sparse pages of 4 KiB, each operation done at once.

use base::Map;
use seam::{Buf, BufPool};

const PAGE: usize = 4096;

/// Sparse bytes; what was never written reads as zeros. Whole pages only: that is what nodes ask for.
#[derive(Default)]
pub struct Disk {
    pages: Map<u64, Box<[u8; PAGE]>>,
}

impl Disk {
    /// The bytes at `at`, in a buffer of their own.
    pub fn read(&self, at: u64, len: u32, pool: &BufPool) -> Buf {
        let mut buf = pool.alloc(len as usize);
        for (number, part) in (page(at)..).zip(buf.as_mut().chunks_mut(PAGE)) {
            match self.pages.get(&number) {
                Some(page) => part.copy_from_slice(&page[..part.len()]),
                None => part.fill(0),
            }
        }
        buf
    }

    /// Keeps the bytes at `at`.
    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        for (number, part) in (page(at)..).zip(bytes.chunks(PAGE)) {
            let page = self.pages.entry(number).or_insert_with(|| Box::new([0; PAGE]));
            page[..part.len()].copy_from_slice(part);
        }
    }
}

fn page(at: u64) -> u64 {
    assert!(at.is_multiple_of(PAGE as u64), "byte {at} does not start a page");
    at / PAGE as u64
}
