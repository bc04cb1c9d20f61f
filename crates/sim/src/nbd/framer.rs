//! Cuts the stream of an NBD server into frames: the greeting, answers to options,
//! and simple replies.

use seam::{FrameError, Framer, Framing};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use target::nbd::proto::*;

/// Length of a server's greeting in bytes.
pub(super) const GREETING: usize = 18;
const OPTION_REPLY: usize = 20;
const REPLY: usize = 16;

/// Bytes of data after a successful reply, by cookie.
pub(super) type Lens = Rc<RefCell<BTreeMap<u64, u32>>>;

#[derive(Clone, Copy, Debug)]
enum Phase {
    Greeting,
    Options,
    Replies,
}

/// The client's side of [`target::nbd::NbdFramer`].
#[derive(Debug)]
pub struct ReplyFramer {
    phase: Phase,
    lens: Lens,
}

impl ReplyFramer {
    pub(super) fn new(lens: Lens) -> ReplyFramer {
        ReplyFramer { phase: Phase::Greeting, lens }
    }
}

impl Framer for ReplyFramer {
    fn frame(&mut self, start: &[u8]) -> Result<Framing, FrameError> {
        let be32 = |at: usize| u32::from_be_bytes(start[at..at + 4].try_into().expect("four"));
        let head = match self.phase {
            Phase::Greeting => GREETING,
            Phase::Options => OPTION_REPLY,
            Phase::Replies => REPLY,
        };
        if start.len() < head {
            return Ok(Framing::Need(head));
        }
        let body = match self.phase {
            Phase::Greeting => {
                self.phase = Phase::Options;
                0
            }
            Phase::Options => {
                if be32(12) == NBD_REP_ACK {
                    self.phase = Phase::Replies;
                }
                be32(16)
            }
            Phase::Replies if be32(0) != NBD_SIMPLE_REPLY_MAGIC => {
                return Err(FrameError::BadMagic);
            }
            Phase::Replies => {
                let cookie = u64::from_be_bytes(start[8..16].try_into().expect("eight"));
                let len = self.lens.borrow_mut().remove(&cookie);
                if be32(4) == 0 { len.unwrap_or(0) } else { 0 }
            }
        };
        Ok(Framing::Frame { head, body: body as usize })
    }
}
