//! Replies of the transmission phase (spec: "Simple reply message", "Structured reply chunk
//! message", "Structured reply types").
//!
//! Invariants: one request gets one reply, and each reply is one send: a simple reply, or, once
//! structured replies are negotiated, exactly one chunk, marked as the last. Only a status reply
//! allocates memory, from the pool; errors and their texts fit into the head.

use super::proto::*;
use crate::Action;
use crate::extents::Runs;
use core::fmt::{self, Display, Write};
use seam::{Buf, BufPool, Head};

/// A head under construction.
struct Bytes {
    len: usize,
    bytes: [u8; Head::MAX],
}

impl Bytes {
    fn new() -> Bytes {
        Bytes { len: 0, bytes: [0; Head::MAX] }
    }

    fn put(&mut self, bytes: &[u8]) -> &mut Bytes {
        self.bytes[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
        self
    }

    fn u16(&mut self, value: u16) -> &mut Bytes {
        self.put(&value.to_be_bytes())
    }

    fn u32(&mut self, value: u32) -> &mut Bytes {
        self.put(&value.to_be_bytes())
    }

    fn u64(&mut self, value: u64) -> &mut Bytes {
        self.put(&value.to_be_bytes())
    }

    /// Adds the head of a chunk with `len` bytes of payload, the last one of its reply.
    fn chunk(&mut self, kind: u16, cookie: u64, len: u32) -> &mut Bytes {
        self.u32(NBD_STRUCTURED_REPLY_MAGIC).u16(NBD_REPLY_FLAG_DONE).u16(kind);
        self.u64(cookie).u32(len)
    }

    fn simple(&mut self, error: u32, cookie: u64) -> &mut Bytes {
        self.u32(NBD_SIMPLE_REPLY_MAGIC).u32(error).u64(cookie)
    }

    fn send(&self, body: Buf) -> Action {
        Action::Send { head: Head::new(&self.bytes[..self.len]), body }
    }
}

/// The text of an error, cut to the space after a chunk's head, the error and the length.
struct Text {
    len: usize,
    bytes: [u8; Head::MAX - 26],
}

impl Write for Text {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let room = &mut self.bytes[self.len..];
        let fits = s.floor_char_boundary(room.len());
        room[..fits].copy_from_slice(&s.as_bytes()[..fits]);
        self.len += fits;
        Ok(())
    }
}

/// Creates a reply for success without data.
pub(crate) fn success(structured: bool, cookie: u64) -> Action {
    let mut head = Bytes::new();
    if structured {
        head.chunk(NBD_REPLY_TYPE_NONE, cookie, 0);
    } else {
        head.simple(0, cookie);
    }
    head.send(Buf::EMPTY)
}

/// Creates a reply for a failure. The text reaches the client only with structured replies.
pub(crate) fn failure(structured: bool, cookie: u64, error: u32, why: &dyn Display) -> Action {
    let mut head = Bytes::new();
    if structured {
        let mut text = Text { len: 0, bytes: [0; _] };
        let _ = write!(text, "{why}");
        head.chunk(NBD_REPLY_TYPE_ERROR, cookie, 6 + text.len as u32);
        head.u32(error).u16(text.len as u16).put(&text.bytes[..text.len]);
    } else {
        head.simple(error, cookie);
    }
    head.send(Buf::EMPTY)
}

/// Creates a reply with the data that was read from `at` on.
pub(crate) fn data(structured: bool, cookie: u64, at: u64, body: Buf) -> Action {
    let mut head = Bytes::new();
    if structured {
        head.chunk(NBD_REPLY_TYPE_OFFSET_DATA, cookie, 8 + body.len() as u32).u64(at);
    } else {
        head.simple(0, cookie);
    }
    head.send(body)
}

/// Creates a reply with the `base:allocation` of a range: at most `max` of its runs, at least one.
pub(crate) fn status(cookie: u64, runs: Runs<'_>, max: usize, pool: &BufPool) -> Action {
    let count = runs.clone().take(max.max(1)).count();
    let mut body = pool.alloc(count * 8);
    for (extent, (len, data)) in body.as_mut().chunks_exact_mut(8).zip(runs) {
        let state = if data { 0 } else { NBD_STATE_HOLE | NBD_STATE_ZERO };
        extent[..4].copy_from_slice(&len.to_be_bytes());
        extent[4..].copy_from_slice(&state.to_be_bytes());
    }
    let mut head = Bytes::new();
    head.chunk(NBD_REPLY_TYPE_BLOCK_STATUS, cookie, 4 + body.len() as u32).u32(BASE_ALLOCATION_ID);
    head.send(body)
}
