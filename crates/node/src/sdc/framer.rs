//! The framers of an SDC's links.

use base::{Dialect, Limits};
use seam::{FrameError, Framer, Framing, Port};
use target::nbd::NbdFramer;
use wire::PeerFramer;

/// Cuts the bytes of one of an SDC's links into frames.
#[derive(Clone, Debug)]
pub enum SdcFramer {
    /// To the MDM and to servers.
    Ours(PeerFramer),
    /// From a block client.
    Target(NbdFramer),
}

impl SdcFramer {
    /// Creates the framer of a new link.
    pub fn new(port: Port, dialect: &Dialect, limits: &Limits) -> SdcFramer {
        match port {
            Port::Ours => SdcFramer::Ours(PeerFramer::speaking(dialect, limits.frame_body)),
            Port::Target(_) => SdcFramer::Target(NbdFramer::new(limits)),
        }
    }
}

impl Framer for SdcFramer {
    #[inline]
    fn frame(&mut self, start: &[u8]) -> Result<Framing, FrameError> {
        match self {
            SdcFramer::Ours(framer) => framer.frame(start),
            SdcFramer::Target(framer) => framer.frame(start),
        }
    }

    fn set_mode(&mut self, mode: u32) {
        match self {
            SdcFramer::Ours(framer) => framer.set_mode(mode),
            SdcFramer::Target(framer) => framer.set_mode(mode),
        }
    }
}
