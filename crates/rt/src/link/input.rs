//! Receiving: a staging buffer, from which frames are cut.
//!
//! A body is a view of the staging buffer: nothing is copied. While such views live, the kernel goes
//! on writing behind them; when little room is left, the next staging buffer takes over what was not
//! cut yet, and the old one goes when its last view does. Large bodies get buffers of their own: as
//! soon as such a body is known to be longer than what has arrived, the rest of it is received straight
//! into its buffer, and only what follows it into the staging buffer, by one scattered receive.
//!
//! The staging buffer starts small and grows on links that fill it, so that many idle links cost
//! little.
//!
//! Invariant: every view of the staging buffer ends at or before `start`; the kernel writes from `end`
//! on only, and `start <= end`.

use super::{Pinned, empty_message};
use seam::{Buf, BufPool, FrameError, Framer, Framing, Head};
use std::ptr::null_mut;

/// The first size of a staging buffer, and the largest.
const STAGING: (usize, usize) = (16 << 10, 256 << 10);
/// Bodies above this size that have not arrived whole get a buffer of their own.
const LARGE: usize = 32 << 10;

/// One link's receiving side.
pub(crate) struct Input {
    /// The kernel holds `message` and what it points to.
    pub(crate) in_flight: bool,
    /// The last receive left data in the socket, as far as the kernel told.
    pub(crate) more: bool,
    staging: Buf,
    /// What arrived and was not cut yet: `staging[start..end]`.
    start: usize,
    end: usize,
    /// The last receive filled everything: the staging buffer is small for this link.
    full: bool,
    /// The framer knows the lengths of the next frame, which is not here whole.
    told: Option<(usize, usize)>,
    filling: Option<Filling>,
    message: Pinned<Message>,
}

/// A frame whose body is arriving.
struct Filling {
    head: Head,
    body: Buf,
    got: usize,
}

struct Message {
    header: libc::msghdr,
    parts: [libc::iovec; 2],
}

impl Input {
    pub(crate) fn new() -> Input {
        let none = libc::iovec { iov_base: null_mut(), iov_len: 0 };
        Input {
            in_flight: false,
            more: true,
            staging: Buf::EMPTY,
            start: 0,
            end: 0,
            full: false,
            told: None,
            filling: None,
            message: Pinned::new(Message { header: empty_message(), parts: [none; 2] }),
        }
    }

    /// Where the next bytes belong, as a message for the kernel. Everything that arrived has been
    /// cut before, but for a part of a frame.
    ///
    /// What the message points to stays where it is, and is not touched, until [`Input::received`]
    /// or until the kernel has let go of it otherwise; the caller sets `in_flight` meanwhile.
    pub(crate) fn prepare(&mut self, pool: &BufPool) -> *mut libc::msghdr {
        assert!(!self.in_flight, "one receive at a time");
        self.make_room(pool);
        let staging = libc::iovec {
            iov_base: self.staging.at(self.end).cast(),
            iov_len: self.staging.len() - self.end,
        };
        // SAFETY: nobody else looks at the message: no receive is in flight.
        let message = unsafe { &mut *self.message.as_ptr() };
        let count = match &mut self.filling {
            Some(f) => {
                let rest = &mut f.body.as_mut()[f.got..];
                message.parts = [
                    libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() },
                    staging,
                ];
                2
            }
            None => {
                message.parts[0] = staging;
                1
            }
        };
        message.header.msg_iovlen = count;
        let at = self.message.as_ptr();
        // SAFETY: `at` points to a live message.
        unsafe {
            (*at).header.msg_iov = (&raw mut (*at).parts).cast();
            &raw mut (*at).header
        }
    }

    /// Makes sure that a good part of the staging buffer is free, and that the next frame fits.
    fn make_room(&mut self, pool: &BufPool) {
        let (left, size) = (self.end - self.start, self.staging.len());
        let large = |body: usize| if body > LARGE { 0 } else { body };
        let whole = self.told.map_or(Head::MAX, |(head, body)| head + large(body));
        let unused = self.staging.is_unique();
        if left == 0 && unused {
            (self.start, self.end) = (0, 0);
        }
        let grow = size == 0 || (self.full && size < STAGING.1);
        let tight = size - self.end < size / 4 || self.start + whole > size;
        if grow || (tight && (!unused || whole > size)) {
            let want = if grow { size * 4 } else { size };
            let mut next = pool.alloc(want.max(whole * 2).clamp(STAGING.0, STAGING.1));
            next.as_mut()[..left].copy_from_slice(&self.staging[self.start..self.end]);
            self.staging = next;
            (self.start, self.end) = (0, left);
        } else if tight {
            self.staging.as_mut().copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, left);
        }
        self.full = false;
        assert!(self.end < self.staging.len(), "the next frame fits");
    }

    /// `n` bytes have arrived where the last [`Input::prepare`] wanted them.
    pub(crate) fn received(&mut self, n: usize) {
        let mut n = n;
        if let Some(f) = &mut self.filling {
            let part = n.min(f.body.len() - f.got);
            f.got += part;
            n -= part;
        }
        self.end += n;
        assert!(self.end <= self.staging.len(), "the kernel filled what it was given");
        self.full = self.end == self.staging.len();
    }

    /// Forgets what has arrived: nobody wants it any more.
    pub(crate) fn discard(&mut self) {
        if !self.staging.is_unique() {
            self.staging = Buf::EMPTY;
        }
        (self.start, self.end, self.told, self.filling) = (0, 0, None, None);
    }

    /// The next frame that is here whole.
    pub(crate) fn cut<F: Framer>(
        &mut self,
        framer: &mut F,
        pool: &BufPool,
    ) -> Result<Option<(Head, Buf)>, FrameError> {
        assert!(!self.in_flight, "nothing is cut while the kernel writes");
        if let Some(f) = self.filling.take() {
            if f.got == f.body.len() {
                return Ok(Some((f.head, f.body)));
            }
            self.filling = Some(f);
            return Ok(None);
        }
        let here = &self.staging[self.start..self.end];
        if here.is_empty() {
            return Ok(None);
        }
        let (head, body) = match self.told {
            Some(told) => told,
            None => match framer.frame(here)? {
                Framing::Need(n) => {
                    assert!(n > here.len() && n <= Head::MAX, "a framer that can be satisfied");
                    return Ok(None);
                }
                Framing::Frame { head, body } => (head, body),
            },
        };
        assert!((1..=Head::MAX).contains(&head), "a head of {head} bytes");
        if body > u32::MAX as usize {
            return Err(FrameError::TooLong);
        }
        let whole = head + body;
        if here.len() >= whole {
            self.told = None;
            let frame = Head::new(&here[..head]);
            let body = self.staging.slice(self.start + head..self.start + whole);
            self.start += whole;
            return Ok(Some((frame, body)));
        }
        if body <= LARGE || here.len() < head {
            self.told = Some((head, body));
            return Ok(None);
        }
        self.told = None;
        let got = here.len() - head;
        let mut filling = Filling { head: Head::new(&here[..head]), body: pool.alloc(body), got };
        filling.body.as_mut()[..got].copy_from_slice(&here[head..]);
        self.start = self.end;
        self.filling = Some(filling);
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Prng;

    /// Head: 1 byte, the head's length; 4 bytes, the body's length; then filling.
    struct Lengths;
    impl Framer for Lengths {
        fn frame(&mut self, start: &[u8]) -> Result<Framing, FrameError> {
            if start.len() < 5 {
                return Ok(Framing::Need(5));
            }
            let body = u32::from_le_bytes(start[1..5].try_into().unwrap()) as usize;
            Ok(Framing::Frame { head: start[0] as usize, body })
        }
    }

    /// What the kernel would do: fills the message's parts from `stream`, at most `limit` bytes.
    fn kernel(message: *mut libc::msghdr, stream: &[u8], limit: usize) -> usize {
        let mut done = 0;
        // SAFETY: `prepare` made the message, and its parts are still there.
        unsafe {
            for i in 0..(*message).msg_iovlen {
                let part = *(*message).msg_iov.add(i);
                let n = part.iov_len.min(stream.len() - done).min(limit - done);
                part.iov_base.cast::<u8>().copy_from_nonoverlapping(stream[done..].as_ptr(), n);
                done += n;
            }
        }
        done
    }

    #[test]
    fn frames_come_out_whole_however_the_stream_is_cut() {
        let pool = BufPool::new(1 << 20);
        for seed in 0..if cfg!(miri) { 3 } else { 60 } {
            let mut rng = Prng::new(seed);
            let mut frames = Vec::new();
            let mut stream = Vec::new();
            for _ in 0..30 {
                let len = *rng.pick(&[0, 1, 100, 4096, 5000, 20_000, 70_000, 400_000]);
                let mut head = vec![rng.next_u64() as u8; rng.range(5, 128) as usize];
                head[0] = head.len() as u8;
                head[1..5].copy_from_slice(&(len as u32).to_le_bytes());
                let body: Vec<u8> = (0..len).map(|i| (i as u64 * seed) as u8).collect();
                stream.extend([&head[..], &body[..]].concat());
                frames.push((head, body));
            }
            let mut input = Input::new();
            let (mut at, mut next) = (0, 0);
            let mut held: Vec<(Buf, usize)> = Vec::new();
            while at < stream.len() {
                let message = input.prepare(&pool);
                let limit = *rng.pick(&[1, 7, 3000, 16 << 10, 1 << 20]);
                let n = kernel(message, &stream[at..], limit);
                at += n;
                input.received(n);
                while let Some((head, body)) = input.cut(&mut Lengths, &pool).unwrap() {
                    assert_eq!(
                        (head.as_slice(), &body[..]),
                        (&frames[next].0[..], &frames[next].1[..])
                    );
                    held.push((body, next));
                    next += 1;
                }
                // Some bodies are used for long: what arrives later must not touch them.
                while !held.is_empty() && rng.chance(0.5) {
                    let (body, of) = held.swap_remove(rng.below(held.len() as u64) as usize);
                    assert!(body[..] == frames[of].1[..], "frame {of} has changed");
                }
            }
            assert_eq!(next, frames.len());
            assert!(held.iter().all(|(body, of)| body[..] == frames[*of].1[..]));
        }
    }
}
