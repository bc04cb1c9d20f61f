//! Sending: a queue that goes out with one scattered send per batch.
//!
//! Heads and small bodies are copied into one run of bytes; large bodies are sent from their own
//! buffers. What the kernel works on (`flying`) and what is added meanwhile (`next`) are apart, so
//! that nothing moves under the kernel's hands.

use super::{Pinned, empty_message};
use seam::{Buf, Head};

/// Bodies up to this size are copied behind their heads: cheaper than one more part of a message.
const SMALL: usize = 512;
/// Parts of one message. The kernel's limit is 1024.
const PARTS: usize = 256;
/// A run of bytes that grew beyond this in a burst is given back.
const KEEP: usize = 256 << 10;

/// One link's sending side.
pub(crate) struct Output {
    /// The kernel holds `message` and what it points to.
    pub(crate) in_flight: bool,
    /// The link is in the shard's list of links that have something to send.
    pub(crate) listed: bool,
    /// Bytes that wait, those in flight included.
    pub(crate) queued: u64,
    next: Batch,
    flying: Batch,
    /// The first byte of `flying` that is not out: its part, and the place in it.
    part: usize,
    offset: usize,
    parts: Vec<libc::iovec>,
    message: Pinned<libc::msghdr>,
}

#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    parts: Vec<Part>,
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
        match self.parts.last_mut() {
            Some(Part::Copied { len, .. }) => *len += data.len(),
            _ => self.parts.push(Part::Copied { at, len: data.len() }),
        }
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.parts.clear();
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
            next: Batch::default(),
            flying: Batch::default(),
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
            self.next.copy(head);
        }
        if body.len() > SMALL {
            self.next.parts.push(Part::Body(body));
        } else if !body.is_empty() {
            self.next.copy(&body);
        }
    }

    /// What is to be sent next, as a message for the kernel; `None` when everything is out.
    ///
    /// What the message points to stays where it is, and is not touched, until [`Output::sent`] or
    /// until the kernel has let go of it otherwise; the caller sets `in_flight` meanwhile.
    pub(crate) fn prepare(&mut self) -> Option<*const libc::msghdr> {
        assert!(!self.in_flight, "one send at a time");
        if self.part == self.flying.parts.len() {
            if self.next.parts.is_empty() {
                return None;
            }
            self.flying.clear();
            std::mem::swap(&mut self.next, &mut self.flying);
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
        // SAFETY: nobody else looks at the message: no send is in flight.
        let message = unsafe { &mut *self.message.as_ptr() };
        message.msg_iov = self.parts.as_mut_ptr();
        message.msg_iovlen = self.parts.len();
        Some(self.message.as_ptr())
    }

    /// The kernel took `n` bytes of the last message. Bodies that are out are let go.
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

    /// True when nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.queued == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Prng;
    use seam::BufPool;

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
                // SAFETY: `prepare` made it, and its parts are still there.
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
