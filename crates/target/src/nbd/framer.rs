//! Splits a client's stream into frames: first 4 bytes of client flags, then options (a head of 16
//! bytes, and data) and requests (a head of 28 bytes, and for a write its data).
//!
//! Invariants: the result depends only on the bytes, not on how they arrived; a body is never
//! longer than the limits allow. The framer distinguishes options from requests by their magic and
//! does not know the phase: the session detects an option in place of a request. It only reads
//! fields that determine lengths.

use super::proto::*;
use base::Limits;
use seam::{FrameError, Framer, Framing};

/// The longest data of an option, in bytes. The longest useful data has the name of an export and a
/// few queries, each of at most 4096 bytes.
pub const OPTION_MAX: u32 = 64 << 10;

/// The framer of one connection from an NBD client.
#[derive(Clone, Debug)]
pub struct NbdFramer {
    /// True after the client flags, which have no magic.
    greeted: bool,
    payload: u32,
}

impl NbdFramer {
    /// Creates a framer for the start of a connection.
    pub fn new(limits: &Limits) -> NbdFramer {
        NbdFramer { greeted: false, payload: limits.nbd_payload }
    }
}

/// Returns the length of the body if it is allowed.
fn body(len: u32, limit: u32) -> Result<usize, FrameError> {
    if len > limit { Err(FrameError::TooLong) } else { Ok(len as usize) }
}

impl Framer for NbdFramer {
    fn frame(&mut self, start: &[u8]) -> Result<Framing, FrameError> {
        if start.len() < 4 {
            return Ok(Framing::Need(4));
        }
        if !self.greeted {
            self.greeted = true;
            return Ok(Framing::Frame { head: 4, body: 0 });
        }
        let magic = be32(start, 0);
        let head = if magic == (IHAVEOPT >> 32) as u32 {
            OPTION_HEAD
        } else if magic == NBD_REQUEST_MAGIC {
            REQUEST_HEAD
        } else {
            return Err(FrameError::BadMagic);
        };
        if start.len() < head {
            return Ok(Framing::Need(head));
        }
        let body = if head == OPTION_HEAD {
            if be64(start, 0) != IHAVEOPT {
                return Err(FrameError::BadMagic);
            }
            body(be32(start, 12), OPTION_MAX)?
        } else if be16(start, 6) == NBD_CMD_WRITE {
            // The spec asks for an error reply to a longer one, but the server would have to read
            // all of it to skip it, and the client knows the limit. So the connection ends.
            body(be32(start, 24), self.payload)?
        } else {
            0
        };
        Ok(Framing::Frame { head, body })
    }
}
