//! A device in memory: sparse pages of 4 KiB. Each operation completes at once.

use base::Map;
use seam::{Buf, BufPool};

const PAGE: usize = 4096;

/// Sparse bytes; unwritten ones read as zeros. Operations start at a page, as those of nodes do.
#[derive(Default)]
pub(crate) struct Disk {
    pages: Map<u64, Box<[u8; PAGE]>>,
}

impl Disk {
    /// Returns the bytes at `at` in a new buffer.
    pub(crate) fn read(&self, at: u64, len: u32, pool: &BufPool) -> Buf {
        let mut buf = pool.alloc(len as usize);
        for (number, part) in (page(at)..).zip(buf.as_mut().chunks_mut(PAGE)) {
            match self.pages.get(&number) {
                Some(page) => part.copy_from_slice(&page[..part.len()]),
                None => part.fill(0),
            }
        }
        buf
    }

    /// Stores the bytes at `at`.
    pub(crate) fn write(&mut self, at: u64, bytes: &[u8]) {
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
