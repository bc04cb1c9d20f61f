//! Cuts what a client sends into frames: once 4 bytes of client flags, then options (a head of 16
//! bytes, and data) and requests (a head of 28 bytes, and for a write its data).
//!
//! Invariants: the cut depends on the bytes alone, not on how they arrived; a body is never longer
//! than the limits say. The framer tells options from requests by their magic and doesn't know the
//! phase: that an option comes where a request belongs is for the session to notice. It doesn't
//! look at anything that no length depends on.

use super::proto::*;
use base::Limits;
use seam::{FrameError, Framer, Framing};

/// The longest data of an option, in bytes. The longest useful one carries an export's name and a
/// few queries, each of at most 4096 bytes.
pub const OPTION_MAX: u32 = 64 << 10;

/// The framer of one connection from an NBD client.
#[derive(Clone, Debug)]
pub struct NbdFramer {
    /// The client flags, which have no magic, were there already.
    greeted: bool,
    payload: u32,
}

impl NbdFramer {
    /// A framer at the connection's start.
    pub fn new(limits: &Limits) -> NbdFramer {
        NbdFramer { greeted: false, payload: limits.nbd_payload }
    }
}

/// The body's length, if it is allowed to be that long.
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
            // The spec would like an error reply to a longer one, but skipping it means to read it,
            // and we told the client the limit: so the connection ends.
            body(be32(start, 24), self.payload)?
        } else {
            0
        };
        Ok(Framing::Frame { head, body })
    }
}
