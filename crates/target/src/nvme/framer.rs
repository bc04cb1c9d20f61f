//! Splits a host's stream into frames. A PDU is one frame or two:
//!
//! | frame | head | body |
//! |---|---|---|
//! | the PDU | header, header digest, padding | data |
//! | its trailer, if data has a digest | data digest: 4 bytes | nothing |
//!
//! The trailer is a frame of its own because buffers come in powers of two: a body of 64 KiB and
//! 4 bytes would take a larger one.
//!
//! Invariants: the result depends only on the bytes, not on how they arrived: the flags of each PDU
//! say which digests it has. A length is used only after the header digest has been checked. Data
//! is never longer than the limits allow.
//!
//! An invalid PDU becomes a frame with only the common header. The session tells the host why
//! ([`fault`]), and closes the connection.

use super::proto::*;
use base::Limits;
use base::crc::crc32c;
use seam::{FrameError, Framer, Framing, Head};

/// Why a PDU is refused, in the terms of a termination request (transport 3.3.2.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    /// The error.
    pub(crate) error: u16,
    /// The offset of the wrong field, if the error is about a field.
    pub(crate) field: u32,
}

impl Fault {
    /// A field of the header is wrong.
    pub(crate) fn field(at: u32) -> Fault {
        Fault { error: FES_FIELD, field: at }
    }

    /// The error is not about a field.
    pub(crate) fn new(error: u16) -> Fault {
        Fault { error, field: 0 }
    }
}

/// Most bytes of data in PDUs of a host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lengths {
    capsule: u32,
    data: u32,
}

impl Lengths {
    pub(crate) fn new(limits: &Limits) -> Lengths {
        Lengths { capsule: limits.nvme_capsule.max(ADMIN_CAPSULE), data: limits.nvme_h2c }
    }
}

/// The parts of a PDU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Shape {
    /// Bytes of the header, without its digest.
    header: usize,
    /// True if the header has a digest.
    digest: bool,
    /// Bytes before the data.
    head: usize,
    /// Bytes of data.
    data: usize,
    /// True if a digest follows the data.
    trailer: bool,
}

impl Shape {
    fn of(common: &[u8; COMMON], lengths: Lengths) -> Result<Shape, Fault> {
        let [kind, flags, hlen, pdo, ..] = *common;
        let (header, most) = match kind {
            ICREQ => (SETUP, 0),
            H2C_TERM => (SHORT, QUOTED as u32),
            CAPSULE_CMD => (CAPSULE, lengths.capsule),
            H2C_DATA => (SHORT, lengths.data),
            _ => return Err(Fault::field(0)),
        };
        if usize::from(hlen) != header {
            return Err(Fault::field(2));
        }
        let plain = matches!(kind, ICREQ | H2C_TERM);
        if plain && flags & (HDGSTF | DDGSTF) != 0 {
            return Err(Fault::field(1));
        }
        let length = le32(common, 4) as usize;
        let digest = flags & HDGSTF != 0;
        let least = header + if digest { DIGEST } else { 0 };
        if length == least && kind != H2C_DATA {
            return Ok(Shape { header, digest, head: least, data: 0, trailer: false });
        }
        let head = if plain { header } else { usize::from(pdo) };
        if head < least || head > Head::MAX || !head.is_multiple_of(4) {
            return Err(Fault::field(3));
        }
        let trailer = flags & DDGSTF != 0;
        let behind = head + if trailer { DIGEST } else { 0 };
        if length <= behind {
            return Err(Fault::field(4));
        }
        let data = length - behind;
        if data > most as usize {
            return Err(Fault::new(FES_LIMIT));
        }
        Ok(Shape { header, digest, head, data, trailer })
    }
}

/// Returns why a frame with only a common header is not a PDU.
pub(crate) fn fault(common: &[u8; COMMON], lengths: Lengths) -> Fault {
    // If the common header is right, the digest of the whole header is not.
    Shape::of(common, lengths).err().unwrap_or(Fault::new(FES_DIGEST))
}

/// The framer of one connection from a host.
#[derive(Clone, Debug)]
pub struct NvmeFramer {
    lengths: Lengths,
    /// The next frame is a trailer.
    trailer: bool,
}

impl NvmeFramer {
    /// Creates a framer for the start of a connection.
    pub fn new(limits: &Limits) -> NvmeFramer {
        NvmeFramer { lengths: Lengths::new(limits), trailer: false }
    }
}

impl Framer for NvmeFramer {
    fn frame(&mut self, start: &[u8]) -> Result<Framing, FrameError> {
        if self.trailer {
            if start.len() < DIGEST {
                return Ok(Framing::Need(DIGEST));
            }
            self.trailer = false;
            return Ok(Framing::Frame { head: DIGEST, body: 0 });
        }
        let Some(common) = start.first_chunk::<COMMON>() else {
            return Ok(Framing::Need(COMMON));
        };
        let Ok(shape) = Shape::of(common, self.lengths) else {
            return Ok(Framing::Frame { head: COMMON, body: 0 });
        };
        if start.len() < shape.head {
            return Ok(Framing::Need(shape.head));
        }
        let (header, behind) = start.split_at(shape.header);
        if shape.digest && crc32c(header).to_le_bytes() != behind[..DIGEST] {
            return Ok(Framing::Frame { head: COMMON, body: 0 });
        }
        self.trailer = shape.trailer;
        Ok(Framing::Frame { head: shape.head, body: shape.data })
    }
}
