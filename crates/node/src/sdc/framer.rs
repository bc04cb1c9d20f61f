//! The framers of an SDC's links.

use super::{ISCSI, NVME};
use base::{Dialect, Limits};
use seam::{FrameError, Framer, Framing, Port};
use target::iscsi::IscsiFramer;
use target::nbd::NbdFramer;
use target::nvme::NvmeFramer;
use wire::PeerFramer;

/// Cuts the bytes of one of an SDC's links into frames.
#[derive(Clone, Debug)]
pub enum SdcFramer {
    /// To the MDM and to servers.
    Ours(PeerFramer),
    /// From an NBD client.
    Nbd(NbdFramer),
    /// From an iSCSI initiator.
    Iscsi(IscsiFramer),
    /// From an NVMe host.
    Nvme(NvmeFramer),
}

impl SdcFramer {
    /// Creates the framer of a new link.
    pub fn new(port: Port, dialect: &Dialect, limits: &Limits) -> SdcFramer {
        match port {
            Port::Ours => SdcFramer::Ours(PeerFramer::speaking(dialect, limits.frame_body)),
            ISCSI => SdcFramer::Iscsi(IscsiFramer::new(limits)),
            NVME => SdcFramer::Nvme(NvmeFramer::new(limits)),
            Port::Target(_) => SdcFramer::Nbd(NbdFramer::new(limits)),
        }
    }
}

impl Framer for SdcFramer {
    #[inline]
    fn frame(&mut self, start: &[u8]) -> Result<Framing, FrameError> {
        match self {
            SdcFramer::Ours(framer) => framer.frame(start),
            SdcFramer::Nbd(framer) => framer.frame(start),
            SdcFramer::Iscsi(framer) => framer.frame(start),
            SdcFramer::Nvme(framer) => framer.frame(start),
        }
    }

    fn set_mode(&mut self, mode: u32) {
        match self {
            SdcFramer::Ours(_) | SdcFramer::Nbd(_) | SdcFramer::Nvme(_) => {} // one form
            SdcFramer::Iscsi(framer) => framer.set_mode(mode),
        }
    }
}
