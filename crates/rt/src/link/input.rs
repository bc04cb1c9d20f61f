//! Receiving: a staging buffer, from which frames are cut.
//!
//! A link has one only while something is in it: it takes one from the pool when its socket has data,
//! and gives it back when everything is cut and nobody looks at it any more. So idle links cost nothing,
//! and many busy ones use the same memory one after the other, while it is in the cache.
//!
//! A body is a view of the staging buffer: nothing is copied. While such views live, what comes next is
//! received behind them; when little room is left, the next staging buffer takes over what was not
//! cut yet, and the old one goes when its last view does. Large bodies get buffers of their own: as
//! soon as such a body is known to be longer than what has arrived, the rest of it is received straight
//! into its buffer, and only what follows it into the staging buffer, by one scattered receive.
//!
//! The buffer of a body above [`TRUST`] grows as the body arrives: what is only announced costs no memory.
//!
//! Staging buffers start small and grow on links that fill them. A stranger's has room for one frame: 16 KiB at
//! most, as its bodies are short.
//!
//! Invariant: every view of the staging buffer ends at or before `start`; bytes are received from `end`
//! on only, and `start <= end`.

use seam::{Buf, BufPool, FrameError, Framer, Framing, Head};
use std::ptr::null_mut;

/// The first size of a staging buffer, and the largest.
const STAGING: (usize, usize) = (16 << 10, 256 << 10);
/// That of a stranger's first staging buffer.
const SMALL: usize = 4 << 10;
/// Bodies above this size that have not arrived whole get a buffer of their own.
const LARGE: usize = 32 << 10;
/// Bytes that a link may have memory for before they arrive: the largest body that moves all the time.
const TRUST: usize = 1 << 20;

/// One link's receiving side.
pub(crate) struct Input {
    /// The backend is to tell when there is something to receive.
    pub(crate) awaited: bool,
    /// That is told only when the other side has ended the link: it is paused, or was.
    pub(crate) for_end: bool,
    /// The last receive took everything that the socket had.
    pub(crate) drained: bool,
    staging: Buf,
    /// How large the next one is to be.
    size: usize,
    /// It is a stranger's.
    small: bool,
    /// What arrived and was not cut yet: `staging[start..end]`.
    start: usize,
    end: usize,
    /// The framer knows the lengths of the next frame, which is not here whole.
    told: Option<(usize, usize)>,
    filling: Option<Filling>,
}

/// A frame whose body is arriving.
struct Filling {
    head: Head,
    /// Bytes of the whole body.
    whole: usize,
    /// A buffer for all of it, or for its first part.
    body: Buf,
    got: usize,
}

impl Filling {
    fn new(head: &[u8], start: &[u8], whole: usize, pool: &BufPool) -> Filling {
        let mut body = pool.alloc(whole.min(TRUST.max(start.len() * 2)));
        body.as_mut()[..start.len()].copy_from_slice(start);
        Filling { head: Head::new(head), whole, body, got: start.len() }
    }

    /// Makes room for more, if all that there was is used: as much again as has arrived.
    fn grow(&mut self, pool: &BufPool) {
        if self.got == self.body.len() && self.got < self.whole {
            let mut larger = pool.alloc(self.whole.min(self.got * 2));
            larger.as_mut()[..self.got].copy_from_slice(&self.body);
            self.body = larger;
        }
    }

    /// There is room for all of it: what follows is the next frame.
    fn has_room(&self) -> bool {
        self.body.len() == self.whole
    }
}

impl Input {
    /// That of a stranger.
    pub(crate) fn small() -> Input {
        Input { size: SMALL, small: true, ..Input::new() }
    }

    /// The other side is no stranger any more.
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
            told: None,
            filling: None,
        }
    }

    /// Where the next bytes belong: at most two places, the second one maybe empty. Everything that
    /// arrived has been cut before, but for a part of a frame. Good until the next call of any kind.
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

    /// Makes sure that a good part of the staging buffer is free, and that the next frame fits.
    fn make_room(&mut self, pool: &BufPool) {
        let (left, size) = (self.end - self.start, self.staging.len());
        let large = |body: usize| if body > LARGE { 0 } else { body };
        let whole = self.told.map_or(Head::MAX, |(head, body)| head + large(body));
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

    /// `n` bytes have arrived where the last [`Input::prepare`] wanted them. True when that filled
    /// all of it.
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

    /// Everything that is here was cut: gives the staging buffer back if nobody looks at it.
    pub(crate) fn rest(&mut self) {
        if self.start == self.end && self.staging.is_unique() {
            (self.staging, self.start, self.end) = (Buf::EMPTY, 0, 0);
        }
    }

    /// Forgets what has arrived: nobody wants it any more.
    pub(crate) fn discard(&mut self) {
        (self.staging, self.start, self.end) = (Buf::EMPTY, 0, 0);
        (self.told, self.filling) = (None, None);
    }

    /// The next frame that is here whole; a body of more than `most` bytes is refused.
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
        if body > most {
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
        self.filling = Some(Filling::new(&here[..head], &here[head..], body, pool));
        self.start = self.end;
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

    /// What the kernel would do: fills the parts from `stream`, at most `limit` bytes.
    fn kernel(parts: [libc::iovec; 2], stream: &[u8], limit: usize) -> usize {
        let mut done = 0;
        for part in parts.iter().filter(|p| p.iov_len > 0) {
            let n = part.iov_len.min(stream.len() - done).min(limit - done);
            // SAFETY: `prepare` made the parts, and nothing has changed since.
            unsafe {
                part.iov_base.cast::<u8>().copy_from_nonoverlapping(stream[done..].as_ptr(), n);
            }
            done += n;
        }
        done
    }

    /// The longest body that may come.
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
    fn what_is_too_long_is_refused_by_its_head() {
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
