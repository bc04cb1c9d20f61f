//! Sending: a queue that goes out with scattered sends.
//!
//! Heads and small bodies are copied into one run of bytes; large bodies are sent from their own
//! buffers. The batch that the kernel works on (`flying`) is separate from the one that grows
//! (`next`), so nothing moves while the kernel uses it.
//!
//! Waiting frames are kept in rounds of whole frames. A frame that may overtake goes out before the
//! next round: it waits at most for the rest of one round and for what is already in the socket.

use super::{Pinned, empty_message};
use seam::{Buf, Head};
use std::collections::VecDeque;

/// Bodies up to this size are copied behind their heads: that is cheaper than one more part.
const SMALL: usize = 512;
/// Parts per message. The kernel's limit is 1024.
const PARTS: usize = 256;
/// A round with this many bytes ends with its last frame.
const ROUND: u64 = 512 << 10;
/// Unsent bodies may keep blocks of this many bytes in memory. Beyond that, a body that uses less
/// than a fourth of its block is copied, so that a peer that reads nothing can't pin more.
const PINNED: usize = 8 << 20;
/// A run of bytes that grew beyond this in a burst is freed.
const KEEP: usize = 256 << 10;

/// The sending side of one link.
pub(crate) struct Output {
    /// The kernel may read `message` and the memory that it points to.
    pub(crate) in_flight: bool,
    /// The link is in the shard's list of links that have something to send.
    pub(crate) listed: bool,
    /// Unsent bytes, including those in flight.
    pub(crate) queued: u64,
    /// Frames that overtake `rounds` and `next`.
    first: Batch,
    /// Full rounds; the one in `next` follows them.
    rounds: VecDeque<Batch>,
    next: Batch,
    flying: Batch,
    /// An empty batch, kept to reuse its memory.
    spare: Batch,
    /// The first unsent byte of `flying`: the index of its part, and the offset within the part.
    part: usize,
    offset: usize,
    parts: Vec<libc::iovec>,
    message: Pinned<libc::msghdr>,
}

#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    parts: Vec<Part>,
    /// Bytes in all parts.
    len: u64,
    /// The block of the last body, and the bytes of the blocks of all bodies. A block counts again
    /// if a body with another block came between.
    block: usize,
    pinned: usize,
}

enum Part {
    /// `bytes[at..at + len]`
    Copied {
        at: usize,
        len: usize,
    },
    Body(Buf),
}

impl Part {
    fn len(&self) -> usize {
        match self {
            Part::Copied { len, .. } => *len,
            Part::Body(body) => body.len(),
        }
    }
}

impl Batch {
    fn copy(&mut self, data: &[u8]) {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(data);
        self.len += data.len() as u64;
        match self.parts.last_mut() {
            Some(Part::Copied { len, .. }) => *len += data.len(),
            _ => self.parts.push(Part::Copied { at, len: data.len() }),
        }
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.parts.clear();
        (self.len, self.block, self.pinned) = (0, 0, 0);
        if self.bytes.capacity() > KEEP {
            self.bytes = Vec::new();
        }
    }
}

impl Output {
    pub(crate) fn new() -> Output {
        Output {
            in_flight: false,
            listed: false,
            queued: 0,
            first: Batch::default(),
            rounds: VecDeque::new(),
            next: Batch::default(),
            flying: Batch::default(),
            spare: Batch::default(),
            part: 0,
            offset: 0,
            parts: Vec::new(),
            message: Pinned::new(empty_message()),
        }
    }

    /// Queues a frame.
    pub(crate) fn push(&mut self, head: &Head, body: Buf) {
        let head = head.as_slice();
        self.queued += (head.len() + body.len()) as u64;
        if !head.is_empty() {
            if self.next.len >= ROUND {
                let fresh = std::mem::take(&mut self.spare);
                self.rounds.push_back(std::mem::replace(&mut self.next, fresh));
            }
            self.next.copy(head);
        }
        if body.len() <= SMALL {
            if !body.is_empty() {
                self.next.copy(&body);
            }
            return;
        }
        let (block, bytes) = body.block().unwrap_or_default();
        if block != self.next.block {
            if bytes > 4 * body.len() && self.pinned() > PINNED {
                return self.next.copy(&body);
            }
            self.next.block = block;
            self.next.pinned += bytes;
        }
        self.next.len += body.len() as u64;
        self.next.parts.push(Part::Body(body));
    }

    /// Returns the bytes of the blocks that unsent bodies keep in memory.
    fn pinned(&self) -> usize {
        let rounds = self.rounds.iter().map(|round| round.pinned).sum::<usize>();
        self.flying.pinned + rounds + self.next.pinned
    }

    /// Queues a frame without a body ahead of all waiting frames, but behind earlier ones of its
    /// kind.
    pub(crate) fn push_first(&mut self, head: &Head) {
        self.queued += head.as_slice().len() as u64;
        self.first.copy(head.as_slice());
    }

    /// Returns the next message for the kernel; `None` when everything is sent.
    ///
    /// The memory that the message points to stays in place and unmodified until [`Output::sent`],
    /// or until the kernel has released it otherwise; the caller sets `in_flight` for that time.
    pub(crate) fn prepare(&mut self) -> Option<*const libc::msghdr> {
        assert!(!self.in_flight, "one send at a time");
        if self.part == self.flying.parts.len() {
            self.flying.clear();
            if !self.first.parts.is_empty() {
                std::mem::swap(&mut self.first, &mut self.flying);
            } else if let Some(round) = self.rounds.pop_front() {
                self.spare = std::mem::replace(&mut self.flying, round);
            } else if !self.next.parts.is_empty() {
                std::mem::swap(&mut self.next, &mut self.flying);
            } else {
                (self.part, self.offset) = (0, 0);
                return None;
            }
            (self.part, self.offset) = (0, 0);
        }
        self.parts.clear();
        let mut skip = self.offset;
        for part in self.flying.parts[self.part..].iter().take(PARTS) {
            let data = match part {
                Part::Copied { at, len } => &self.flying.bytes[*at..*at + *len],
                Part::Body(body) => &body[..],
            };
            let data = &data[std::mem::take(&mut skip)..];
            self.parts.push(libc::iovec {
                iov_base: data.as_ptr().cast_mut().cast(),
                iov_len: data.len(),
            });
        }
        // SAFETY: no send is in flight, so nothing else uses the message.
        let message = unsafe { &mut *self.message.as_ptr() };
        message.msg_iov = self.parts.as_mut_ptr();
        message.msg_iovlen = self.parts.len();
        Some(self.message.as_ptr())
    }

    /// Records that the kernel took `n` bytes of the last message. Releases bodies that are sent.
    pub(crate) fn sent(&mut self, n: usize) {
        self.queued -= n as u64;
        self.offset += n;
        while let Some(part) = self.flying.parts.get_mut(self.part) {
            if self.offset < part.len() {
                break;
            }
            self.offset -= part.len();
            *part = Part::Copied { at: 0, len: 0 };
            self.part += 1;
        }
    }

    /// Returns true when nothing is unsent.
    pub(crate) fn is_empty(&self) -> bool {
        self.queued == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Prng;
    use seam::BufPool;

    /// Sends one message, or at most `limit` bytes of it, and appends it to `got`.
    fn send(out: &mut Output, limit: usize, got: &mut Vec<u8>) -> bool {
        let Some(message) = out.prepare() else { return false };
        // SAFETY: `prepare` made it, and its parts still exist.
        let parts =
            unsafe { std::slice::from_raw_parts((*message).msg_iov, (*message).msg_iovlen) };
        let mut n = 0;
        for p in parts {
            let take = p.iov_len.min(limit - n);
            // SAFETY: as above.
            got.extend(unsafe { std::slice::from_raw_parts(p.iov_base.cast::<u8>(), take) });
            n += take;
        }
        out.sent(n);
        true
    }

    #[test]
    fn urgent_frames_wait_for_at_most_one_round() {
        let pool = BufPool::new(1 << 20);
        let (mut out, mut got) = (Output::new(), Vec::new());
        for i in 0..100u8 {
            out.push(&Head::new(&[i; 100]), pool.copy(&vec![i; 100_000]));
        }
        assert!(send(&mut out, 1000, &mut got), "the first round has begun");
        out.push_first(&Head::new(&[201; 10]));
        out.push_first(&Head::new(&[202; 10]));
        while send(&mut out, usize::MAX, &mut got) {}
        let at = got.iter().position(|b| *b == 201).unwrap();
        assert!(at as u64 <= ROUND + 100_100, "{at} bytes came before it");
        assert_eq!(at % 100_100, 0, "between two frames");
        assert_eq!(got[at..at + 20], [[201; 10], [202; 10]].concat());
        got.drain(at..at + 20);
        let all: Vec<u8> = (0..100u8).flat_map(|i| vec![i; 100_100]).collect();
        assert!(got == all && out.is_empty());
    }

    #[test]
    fn small_parts_of_large_blocks_that_nobody_reads_keep_little_memory() {
        let pool = BufPool::new(1 << 20);
        let large = || pool.alloc(256 << 10);
        let mut out = Output::new();
        for _ in 0..1000 {
            out.push(&Head::new(&[1; 28]), large().slice(0..1024));
        }
        let most = PINNED + (512 << 10) + 4 * out.queued as usize;
        assert!(pool.used() <= most, "{} bytes for {}", pool.used(), out.queued);
        // Neighbours share a block, and a body that uses most of its own is not copied.
        let before = out.next.bytes.len();
        out.push(&Head::new(&[1; 28]), large().slice(0..128 << 10));
        assert_eq!(out.next.bytes.len(), before + 28);
        let mut out = Output::new();
        let shared = large();
        for i in 0..256 {
            out.push(&Head::new(&[1; 28]), shared.slice(i * 1024..(i + 1) * 1024));
        }
        assert_eq!((out.next.bytes.len(), out.pinned()), (256 * 28, 256 << 10));
        while send(&mut out, usize::MAX, &mut Vec::new()) {}
        assert_eq!(out.pinned(), 0);
    }

    #[test]
    fn everything_goes_out_once_and_in_order_however_little_is_taken() {
        let pool = BufPool::new(1 << 20);
        let mut rng = Prng::new(3);
        let (mut out, mut want, mut got) = (Output::new(), Vec::<u8>::new(), Vec::<u8>::new());
        for round in 0..if cfg!(miri) { 30 } else { 300 } {
            for _ in 0..rng.below(20) {
                let head = Head::new(&vec![round as u8; rng.below(100) as usize]);
                let body =
                    pool.copy(&vec![rng.next_u64() as u8; *rng.pick(&[0, 9, 512, 513, 9000])]);
                want.extend([head.as_slice(), &body[..]].concat());
                out.push(&head, body);
            }
            for _ in 0..rng.below(3) {
                let Some(message) = out.prepare() else { break };
                // SAFETY: `prepare` made it, and its parts still exist.
                let parts = unsafe {
                    std::slice::from_raw_parts((*message).msg_iov, (*message).msg_iovlen)
                };
                let limit = rng.range(1, 60_000) as usize;
                let mut n = 0;
                for p in parts {
                    let take = p.iov_len.min(limit - n);
                    // SAFETY: as above.
                    got.extend(unsafe {
                        std::slice::from_raw_parts(p.iov_base.cast::<u8>(), take)
                    });
                    n += take;
                }
                out.sent(n);
                assert_eq!(out.queued as usize, want.len() - got.len());
            }
        }
        while let Some(message) = out.prepare() {
            // SAFETY: as above.
            let part = unsafe { *(*message).msg_iov };
            // SAFETY: as above.
            got.extend(unsafe {
                std::slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len)
            });
            out.sent(part.iov_len);
        }
        assert!(out.is_empty() && got == want);
        drop(out);
        assert_eq!(pool.used(), 0);
    }
}
