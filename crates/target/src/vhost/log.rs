//! The log of written pages: a bitmap with one bit for each page of the guest's memory. While a
//! virtual machine migrates, its monitor copies the memory, and copies each page again that the log
//! names. The bitmap is a file that the monitor shares. The monitor clears the bits that it has
//! read.
//!
//! Invariant: no mark is beyond the log's length, whatever address is marked.

/// Bytes of a page. The protocol fixes them (VHOST_LOG_PAGE): they are not those of the guest.
const PAGE: u64 = 4096;
/// Pages of one byte of the log.
const PAGES: u64 = 8;

/// Returns the length of a log that has a bit for each page up to the address `last`.
pub fn bytes(last: u64) -> u64 {
    last / PAGE / PAGES + 1
}

/// Returns the marks of a range in a log of `log` bytes: for each byte of the log, in ascending
/// order, the bits to set. Pages that the log does not have are left out.
pub fn marks(at: u64, len: u64, log: u64) -> impl Iterator<Item = (u64, u8)> {
    let (first, last) = (at / PAGE, at.saturating_add(len.saturating_sub(1)) / PAGE);
    let all = if len == 0 { 0..0 } else { first / PAGES..log.min(last / PAGES + 1) };
    all.map(move |byte| {
        let from = first.saturating_sub(byte * PAGES);
        let to = (last - byte * PAGES).min(PAGES - 1);
        (byte, (u8::MAX << from) & (u8::MAX >> (PAGES - 1 - to)))
    })
}
