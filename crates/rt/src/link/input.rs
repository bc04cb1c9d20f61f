//! Receiving: a staging buffer, from which frames are cut.
//!
//! A link has a staging buffer only while the buffer holds data. The link takes one from the pool
//! when its socket has data, and returns it when everything is cut and no body refers to it. So
//! idle links cost no memory, and many busy ones use the same memory in turn while it is in the
//! cache.
//!
//! A body is a view of the staging buffer, without a copy. While such views live, later data is
//! received behind them. When little room is left, a new staging buffer takes over the uncut data,
//! and the old one is freed with its last view. Large bodies get buffers of their own: as soon as
//! such a body is known to be longer than the data that has arrived, the rest of it is received
//! directly into its buffer, and only the data after it into the staging buffer, with one scattered
//! receive.
//!
//! The buffer of a body above [`TRUST`] grows as the body arrives: an announced length alone costs
//! no memory.
//!
//! Staging buffers start small and grow on links that fill them. A stranger's has room for one
//! frame: 16 KiB at most, because its bodies are short.
//!
//! Invariant: every view of the staging buffer ends at or before `start`; data is received only
//! from `end` on, and `start <= end`.

use seam::{Buf, BufPool, FrameError, Framer, Framing, Head};
use std::ptr::null_mut;

/// The initial and the largest size of a staging buffer.
const STAGING: (usize, usize) = (16 << 10, 256 << 10);
/// The initial size for a stranger.
const SMALL: usize = 4 << 10;
/// Bodies above this size that have not arrived completely get a buffer of their own.
const LARGE: usize = 32 << 10;
/// Memory in bytes that a link may allocate for a body before its data arrives: the largest body
/// that is common.
const TRUST: usize = 1 << 20;

/// The receiving side of one link.
pub(crate) struct Input {
    /// The backend has been asked to report input, or the end of the link.
    pub(crate) awaited: bool,
    /// It has been asked only for the end: the link is paused, or was.
    pub(crate) for_end: bool,
    /// The last receive emptied the socket.
    pub(crate) drained: bool,
    staging: Buf,
    /// Size of the next staging buffer.
    size: usize,
    /// The other side is a stranger.
    small: bool,
    /// Data that has arrived and is not cut: `staging[start..end]`.
    start: usize,
    end: usize,
    /// Lengths of head and body of the next frame, which has not arrived completely.
    next_lengths: Option<(usize, usize)>,
    filling: Option<Filling>,
}

/// A frame whose body is arriving.
struct Filling {
    head: Head,
    /// Length of the whole body in bytes.
    whole: usize,
    /// A buffer for the whole body, or for its first part.
    body: Buf,
    got: usize,
}

impl Filling {
    fn new(head: &[u8], start: &[u8], whole: usize, pool: &BufPool) -> Filling {
        let mut body = pool.alloc(whole.min(TRUST.max(start.len() * 2)));
        body.as_mut()[..start.len()].copy_from_slice(start);
        Filling { head: Head::new(head), whole, body, got: start.len() }
    }

    /// Doubles the buffer when it is full and the body is longer.
    fn grow(&mut self, pool: &BufPool) {
        if self.got == self.body.len() && self.got < self.whole {
            let mut larger = pool.alloc(self.whole.min(self.got * 2));
            larger.as_mut()[..self.got].copy_from_slice(&self.body);
            self.body = larger;
        }
    }

    /// Returns true if the buffer has room for the whole body; the data after it is the next frame.
    fn has_room(&self) -> bool {
        self.body.len() == self.whole
    }
}

impl Input {
    /// Returns an input for a stranger.
    pub(crate) fn small() -> Input {
        Input { size: SMALL, small: true, ..Input::new() }
    }

    /// Ends the limits of a stranger.
    pub(crate) fn widen(&mut self) {
        self.size = self.size.max(STAGING.0);
        self.small = false;
    }

    pub(crate) fn new() -> Input {
        Input {
            awaited: false,
            for_end: false,
            drained: false,
            staging: Buf::EMPTY,
            size: STAGING.0,
            small: false,
            start: 0,
            end: 0,
            next_lengths: None,
            filling: None,
        }
    }

    /// Returns the buffers for the next bytes: at most two, of which the second may be empty. All
    /// frames that arrived have been cut before, except for a part of one. The buffers are valid
    /// until the next call of any method.
    pub(crate) fn prepare(&mut self, pool: &BufPool) -> [libc::iovec; 2] {
        self.make_room(pool);
        let staging = libc::iovec {
            iov_base: self.staging.at(self.end).cast(),
            iov_len: self.staging.len() - self.end,
        };
        let nothing = libc::iovec { iov_base: null_mut(), iov_len: 0 };
        match &mut self.filling {
            Some(f) => {
                f.grow(pool);
                let behind = if f.has_room() { staging } else { nothing };
                let rest = &mut f.body.as_mut()[f.got..];
                [libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() }, behind]
            }
            None => [staging, nothing],
        }
    }

    /// Ensures that a good part of the staging buffer is free, and that the next frame fits.
    fn make_room(&mut self, pool: &BufPool) {
        let (left, size) = (self.end - self.start, self.staging.len());
        let large = |body: usize| if body > LARGE { 0 } else { body };
        let whole = self.next_lengths.map_or(Head::MAX, |(head, body)| head + large(body));
        let unused = self.staging.is_unique();
        let tight = size - self.end < size / 4 || self.start + whole > size;
        if size < self.size || (tight && (!unused || whole > size)) {
            let ahead = if self.small { whole } else { whole * 2 };
            let mut next = pool.alloc(self.size.max(ahead).min(STAGING.1));
            next.as_mut()[..left].copy_from_slice(&self.staging[self.start..self.end]);
            self.staging = next;
            (self.start, self.end) = (0, left);
        } else if tight {
            self.staging.as_mut().copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, left);
        }
        assert!(self.end < self.staging.len(), "the next frame fits");
    }

    /// Records that `n` bytes have arrived in the buffers of the last [`Input::prepare`]. Returns
    /// true if they filled all of it.
    pub(crate) fn received(&mut self, n: usize) -> bool {
        let mut n = n;
        if let Some(f) = &mut self.filling {
            let part = n.min(f.body.len() - f.got);
            f.got += part;
            n -= part;
            if !f.has_room() {
                assert_eq!(n, 0, "no more than there was room for");
                return f.got == f.body.len();
            }
        }
        self.end += n;
        assert!(self.end <= self.staging.len(), "no more than there was room for");
        let full = self.end == self.staging.len();
        if full {
            let most = if self.small { STAGING.0 } else { STAGING.1 };
            self.size = (self.staging.len() * 4).min(most);
        }
        full
    }

    /// Returns the staging buffer to the pool if everything is cut and no body refers to it.
    pub(crate) fn rest(&mut self) {
        if self.start == self.end && self.staging.is_unique() {
            (self.staging, self.start, self.end) = (Buf::EMPTY, 0, 0);
        }
    }

    /// Discards all data that has arrived.
    pub(crate) fn discard(&mut self) {
        (self.staging, self.start, self.end) = (Buf::EMPTY, 0, 0);
        (self.next_lengths, self.filling) = (None, None);
    }

    /// Cuts the next frame, if it has arrived completely. A body of more than `most` bytes is an
    /// error.
    pub(crate) fn cut<F: Framer>(
        &mut self,
        framer: &mut F,
        pool: &BufPool,
        most: usize,
    ) -> Result<Option<(Head, Buf)>, FrameError> {
        if let Some(f) = self.filling.take() {
            if f.got == f.whole {
                return Ok(Some((f.head, f.body)));
            }
            self.filling = Some(f);
            return Ok(None);
        }
        let here = &self.staging[self.start..self.end];
        if here.is_empty() {
            return Ok(None);
        }
        let (head, body) = match self.next_lengths {
            Some(lengths) => lengths,
            None => match framer.frame(here)? {
                Framing::Need(n) => {
                    assert!(n > here.len() && n <= Head::MAX, "a framer that can be satisfied");
                    return Ok(None);
                }
                Framing::Frame { head, body } => (head, body),
            },
        };
        assert!((1..=Head::MAX).contains(&head), "a head of {head} bytes");
        if body > most {
            return Err(FrameError::TooLong);
        }
        let whole = head + body;
        if here.len() >= whole {
            self.next_lengths = None;
            let frame = Head::new(&here[..head]);
            let body = self.staging.slice(self.start + head..self.start + whole);
            self.start += whole;
            return Ok(Some((frame, body)));
        }
        if body <= LARGE || here.len() < head {
            self.next_lengths = Some((head, body));
            return Ok(None);
        }
        self.next_lengths = None;
        self.filling = Some(Filling::new(&here[..head], &here[head..], body, pool));
        self.start = self.end;
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Prng;

    /// Head: 1 byte with the head's length, 4 bytes with the body's length, then padding.
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

    /// Does the kernel's part: fills the buffers with at most `limit` bytes of `stream`.
    fn kernel(parts: [libc::iovec; 2], stream: &[u8], limit: usize) -> usize {
        let mut done = 0;
        for part in parts.iter().filter(|p| p.iov_len > 0) {
            let n = part.iov_len.min(stream.len() - done).min(limit - done);
            // SAFETY: `prepare` returned the buffers, and nothing has changed since.
            unsafe {
                part.iov_base.cast::<u8>().copy_from_nonoverlapping(stream[done..].as_ptr(), n);
            }
            done += n;
        }
        done
    }

    /// The longest body in these tests.
    const MOST: usize = 32 << 20;

    fn announced(len: u32) -> Vec<u8> {
        [&[5][..], &len.to_le_bytes()].concat()
    }

    #[test]
    fn memory_for_a_body_grows_as_it_arrives() {
        let pool = BufPool::new(0);
        let mut input = Input::new();
        let stream = [announced(32 << 20), vec![7; 32 << 20]].concat();
        let (mut at, mut whole) = (0, None);
        while whole.is_none() {
            let parts = input.prepare(&pool);
            let n = kernel(parts, &stream[at..], 300_000);
            at += n;
            input.received(n);
            whole = input.cut(&mut Lengths, &pool, MOST).unwrap();
            let most = TRUST + STAGING.1 + 4 * at;
            assert!(pool.used() <= most, "{} bytes of memory for {at} bytes", pool.used());
        }
        let (_, body) = whole.unwrap();
        assert!(body.len() == 32 << 20 && body.iter().all(|b| *b == 7));
    }

    #[test]
    fn an_oversized_frame_is_refused_by_its_header() {
        let pool = BufPool::new(0);
        let mut input = Input::small();
        let parts = input.prepare(&pool);
        input.received(kernel(parts, &announced(1001), 100));
        assert_eq!(input.cut(&mut Lengths, &pool, 1000).err(), Some(FrameError::TooLong));
        assert!(pool.used() <= SMALL);
    }

    #[test]
    fn frames_come_out_whole_however_the_stream_is_cut() {
        let pool = BufPool::new(1 << 20);
        for seed in 0..if cfg!(miri) { 3 } else { 60 } {
            let mut rng = Prng::new(seed);
            let mut frames = Vec::new();
            let mut stream = Vec::new();
            for _ in 0..30 {
                let len = *rng.pick(&[0, 1, 100, 4096, 5000, 20_000, 70_000, 400_000, 5_000_000]);
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
                let parts = input.prepare(&pool);
                let limit = *rng.pick(&[1, 7, 3000, 16 << 10, 1 << 20]);
                let n = kernel(parts, &stream[at..], limit);
                at += n;
                input.received(n);
                while let Some((head, body)) = input.cut(&mut Lengths, &pool, MOST).unwrap() {
                    assert_eq!(
                        (head.as_slice(), &body[..]),
                        (&frames[next].0[..], &frames[next].1[..])
                    );
                    held.push((body, next));
                    next += 1;
                }
                input.rest();
                // Some bodies are kept for long: data that arrives later must not overwrite them.
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
