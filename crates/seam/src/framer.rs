//! Splits a byte stream into frames, so that the driver does not need to know the protocol.

use core::fmt;

/// Splits the stream of one link into frames.
pub trait Framer {
    /// Looks at the first bytes of the next frame, as many as have arrived (possibly none).
    ///
    /// The result must not depend on how the stream arrived in pieces: more bytes only ever change
    /// a [`Framing::Need`].
    fn frame(&mut self, start: &[u8]) -> Result<Framing, FrameError>;

    /// Takes another mode, which [`crate::Effect::Reframe`] names. It is for protocols whose frames
    /// change by an agreement of both sides.
    fn set_mode(&mut self, _mode: u32) {}
}

/// The result of a framer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Framing {
    /// More bytes are needed: call again when this many have arrived (more than now, at most 128).
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

/// The received data can't be a frame. The link is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameError {
    /// It does not start like a frame of this protocol.
    BadMagic,
    /// The head's checksum is wrong.
    BadHead,
    /// The body is longer than allowed.
    TooLong,
    /// This build does not support its protocol version.
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
