//! How a byte stream is cut into frames, without the driver knowing the protocol.

use core::fmt;

/// Cuts one link's stream into frames.
pub trait Framer {
    /// Looks at the first bytes of the next frame, as many as are there (maybe none).
    ///
    /// Must not depend on how the stream arrived in pieces: more bytes never change an answer other
    /// than [`Framing::Need`].
    fn frame(&mut self, start: &[u8]) -> Result<Framing, FrameError>;
}

/// What a framer says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Framing {
    /// Can't tell yet: ask again when this many bytes are there (more than now, at most 128).
    Need(usize),
    /// The next frame: a head of 1 to 128 bytes, then a body. The driver calls once per frame that
    /// it delivers, so a framer may change its state here.
    Frame {
        /// Bytes of the head.
        head: usize,
        /// Bytes of the body.
        body: usize,
    },
}

/// What came can't be a frame; the link is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameError {
    /// It does not start as a frame of this protocol does.
    BadMagic,
    /// The head's checksum is wrong.
    BadHead,
    /// The body is longer than allowed.
    TooLong,
    /// It is of a protocol version that this build does not speak.
    Version,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FrameError::BadMagic => "not our protocol: is this the right port?",
            FrameError::BadHead => "a frame head arrived damaged",
            FrameError::TooLong => "a frame is longer than the limit",
            FrameError::Version => {
                "the other side speaks another protocol version: update the older one"
            }
        })
    }
}

impl core::error::Error for FrameError {}
