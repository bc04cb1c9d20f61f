//! Receiving: a staging buffer, from which frames are cut.
//!
//! Small frames are cut out of the staging buffer, their bodies copied into buffers of their own. As
//! soon as a body is known to be longer than what has arrived, the rest of it is received straight
//! into its buffer, and only what follows it into the staging buffer: one scattered receive.
//!
//! The staging buffer starts small and grows on links that fill it, so that many idle links cost
//! little.

use super::{Pinned, empty_message};
use seam::{Buf, BufPool, FrameError, Framer, Framing, Head};
use std::ptr::null_mut;

/// The first size of a staging buffer, and the largest.
const STAGING: (usize, usize) = (16 << 10, 256 << 10);

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
    /// The framer knows the next frame's lengths, and its head is not here yet.
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
    /// cut before, but for a part of a head.
    ///
    /// What the message points to stays where it is, and is not touched, until [`Input::received`]
    /// or until the kernel has let go of it otherwise; the caller sets `in_flight` meanwhile.
    pub(crate) fn prepare(&mut self, pool: &BufPool) -> *mut libc::msghdr {
        assert!(!self.in_flight, "one receive at a time");
        self.make_room(pool);
        let staging = &mut self.staging.as_mut()[self.end..];
        let staging = libc::iovec { iov_base: staging.as_mut_ptr().cast(), iov_len: staging.len() };
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

    /// Moves the beginning of a head to the front, or takes a larger buffer.
    fn make_room(&mut self, pool: &BufPool) {
        let left = self.end - self.start;
        let size = self.staging.len();
        let grow = size == 0 || (self.full && size < STAGING.1);
        if grow {
            let mut larger = pool.alloc((size * 4).clamp(STAGING.0, STAGING.1));
            larger.as_mut()[..left].copy_from_slice(&self.staging[self.start..self.end]);
            self.staging = larger;
        } else if self.start > 0 {
            self.staging.as_mut().copy_within(self.start..self.end, 0);
        }
        (self.start, self.end, self.full) = (0, left, false);
        assert!(left < self.staging.len(), "everything but a part of a head has been cut");
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
        if here.len() < head {
            self.told = Some((head, body));
            return Ok(None);
        }
        self.told = None;
        let got = body.min(here.len() - head);
        let mut frame = (Head::new(&here[..head]), pool.alloc(body));
        frame.1.as_mut()[..got].copy_from_slice(&here[head..head + got]);
        self.start += head + got;
        if got == body {
            return Ok(Some(frame));
        }
        self.filling = Some(Filling { head: frame.0, body: frame.1, got });
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
                    next += 1;
                }
            }
            assert_eq!(next, frames.len());
        }
    }
}
