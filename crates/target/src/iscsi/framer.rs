//! Splits an initiator's stream into frames. A PDU is one frame or two:
//!
//! | frame | head | body |
//! |---|---|---|
//! | the PDU | header segments, header digest | data segment |
//! | its trailer, if any | padding, data digest: 1 to 7 bytes | nothing |
//!
//! The trailer is a frame of its own because buffers come in powers of two: a body of 64 KiB and
//! 4 bytes would take a larger one.
//!
//! Invariants: the result depends only on the bytes and on the mode, not on how they arrived. A
//! length is used only after the header digest has been checked. A data segment is never longer
//! than the limits allow, which is 8 KiB in the login phase.
//!
//! A PDU with more additional header segments than a head has room for becomes one frame: a head of
//! 48 bytes, and everything else as its body. Its header digest is then in the body, so the framer
//! uses the length unchecked, within the same limits. The session checks the digest and rejects the
//! PDU. The framer knows neither phases nor opcodes; the session sets its mode.

use super::proto::*;
use base::Limits;
use base::crc::crc32c;
use seam::{FrameError, Framer, Framing, Head};

/// The negotiated settings that change where frames end. They hold from the first PDU after the
/// login phase.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Mode {
    /// The login phase is over.
    pub full: bool,
    /// Heads have a digest.
    pub header_digest: bool,
    /// Data has a digest.
    pub data_digest: bool,
}

impl Mode {
    /// Returns the mode as a number, for a driver that does not know the protocol.
    pub fn number(self) -> u32 {
        u32::from(self.full) | u32::from(self.header_digest) << 1 | u32::from(self.data_digest) << 2
    }

    fn of(number: u32) -> Mode {
        let bit = |i: u32| number >> i & 1 == 1;
        Mode { full: bit(0), header_digest: bit(1), data_digest: bit(2) }
    }

    /// Returns the length of the trailer behind `len` bytes of data.
    pub(crate) fn trailer(self, len: usize) -> usize {
        let digest = if self.data_digest && len > 0 { DIGEST } else { 0 };
        padding(len) + digest
    }

    /// Returns the length of a head's digest.
    pub(crate) fn header(self) -> usize {
        if self.header_digest { DIGEST } else { 0 }
    }
}

/// The framer of one connection from an initiator.
#[derive(Clone, Debug)]
pub struct IscsiFramer {
    mode: Mode,
    /// Longest data segment in full feature phase.
    segment: u32,
    /// Length of the trailer that comes next.
    trailer: usize,
}

impl IscsiFramer {
    /// Creates a framer for the start of a connection.
    pub fn new(limits: &Limits) -> IscsiFramer {
        IscsiFramer { mode: Mode::default(), segment: limits.iscsi_segment, trailer: 0 }
    }
}

impl Framer for IscsiFramer {
    fn frame(&mut self, start: &[u8]) -> Result<Framing, FrameError> {
        if self.trailer > 0 {
            if start.len() < self.trailer {
                return Ok(Framing::Need(self.trailer));
            }
            let head = core::mem::take(&mut self.trailer);
            return Ok(Framing::Frame { head, body: 0 });
        }
        if start.len() < BHS {
            return Ok(Framing::Need(BHS));
        }
        let words = usize::from(start[4]);
        let data = be24(start, 5);
        let limit = if self.mode.full { self.segment } else { LOGIN_SEGMENT };
        let digest = self.mode.header();
        if words > AHS_WORDS {
            return if data > limit {
                Err(FrameError::TooLong)
            } else {
                let data = data as usize;
                let body = words * 4 + digest + data + self.mode.trailer(data);
                Ok(Framing::Frame { head: BHS, body })
            };
        }
        let segments = BHS + words * 4;
        let head = segments + digest;
        const { assert!(BHS + AHS_WORDS * 4 + DIGEST <= Head::MAX) };
        if start.len() < head {
            return Ok(Framing::Need(head));
        }
        if digest > 0 && crc32c(&start[..segments]).to_le_bytes() != start[segments..head] {
            return Err(FrameError::BadHead);
        }
        if data > limit {
            return Err(FrameError::TooLong);
        }
        let body = data as usize;
        self.trailer = self.mode.trailer(body);
        Ok(Framing::Frame { head, body })
    }

    /// Changes the mode, as [`Action::Reframe`](crate::Action::Reframe) asks.
    fn set_mode(&mut self, mode: u32) {
        self.mode = Mode::of(mode);
    }
}
