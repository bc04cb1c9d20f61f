//! A link between two processes of a cluster, and the protocol version that they agreed on.
//!
//! The dialling side says in its hello which versions it speaks. The other side answers with the
//! highest one that both speak, and both keep it with the link. `Hello`, `Welcome` and `Refusal`
//! always have [`HANDSHAKE_VERSION`], so that builds of any age can tell each other what is wrong.

use crate::frame::{complete, control_frame, finish};
use crate::header::{Header, Kind, NO_BODY_CRC};
use crate::message::layout::{KIND_AT, VERSION_AT};
use crate::message::{Control, Fault, Malformed};
use base::mutant::{self, Mutant};
use base::{Dialect, LinkId};
use seam::{Buf, BufPool, Head};

/// The version of the frames of a handshake, for ever. It never changes with `VERSION`.
pub const HANDSHAKE_VERSION: u16 = 1;

/// A link whose handshake is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerLink {
    /// The link, as the driver names it.
    pub id: LinkId,
    /// The version of its frames.
    pub version: u16,
}

impl PeerLink {
    /// Creates a link with this version.
    pub fn new(id: LinkId, version: u16) -> PeerLink {
        PeerLink { id, version }
    }

    /// Completes a message for this body, in the version of the link.
    #[inline]
    pub fn frame(self, message: impl Into<Header>, body: &[u8]) -> Head {
        let mut header = message.into();
        header.version = self.version.into();
        complete(&mut header, body)
    }

    /// Completes a message for a body with this checksum, or with none. It is not computed again
    /// from memory, which may have changed.
    #[inline]
    pub fn frame_as(self, message: impl Into<Header>, body: &[u8], crc: Option<u32>) -> Head {
        let mut header = message.into();
        header.version = self.version.into();
        header.body_len = (body.len() as u32).into();
        match crc {
            Some(crc) => header.body_crc = crc.into(),
            None => header.flags |= NO_BODY_CRC,
        }
        finish(&mut header)
    }

    /// Makes a frame with a control message as its body. `message` is what the header says.
    pub fn control<M: Control>(
        self,
        message: impl Into<Header>,
        body: &M,
        pool: &BufPool,
    ) -> (Head, Buf) {
        control_frame(self.version, message, body, pool)
    }
}

/// Checks that a frame has the version of its link, and that the handshake comes before all other
/// frames. `link` is `None` during the handshake.
///
/// A framer can't check this: it takes every version that its build speaks. What a frame says
/// depends on its version alone, so a peer that changes it would give bytes another meaning than
/// the one that was agreed on. Before the handshake is over, no version is agreed on, and the
/// sender may be any process.
#[inline]
pub fn check_link(header: &Header, link: Option<u16>) -> Result<(), Malformed> {
    let version = header.version.get();
    let agreed = match link {
        Some(link) if version == link && link == HANDSHAKE_VERSION => return Ok(()),
        _ if header.kind().is_some_and(Kind::is_handshake) => HANDSHAKE_VERSION,
        Some(link) => link,
        None => return Err(Malformed::new(header, KIND_AT, Fault::Early)),
    };
    match version == agreed || mutant::on(Mutant::AnyHeader) {
        true => Ok(()),
        false => Err(Malformed::new(header, VERSION_AT, Fault::Version)),
    }
}

impl Kind {
    /// True for the frames of a handshake, which always have [`HANDSHAKE_VERSION`].
    pub fn is_handshake(self) -> bool {
        matches!(self, Kind::Hello | Kind::Welcome | Kind::Refusal)
    }
}

/// Returns the highest version that both sides speak; `None` if there is none.
pub fn common_version(ours: &Dialect, min: u32, max: u32) -> Option<u16> {
    let high = max.min(u32::from(ours.wire_max));
    let low = min.max(u32::from(ours.wire_min));
    (low <= high).then_some(high as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DIALECT;

    #[test]
    fn only_frames_of_the_links_version_and_handshakes_pass() {
        let of = |kind, version: u16| {
            let mut header = Header::new(kind);
            header.version = version.into();
            header
        };
        for link in [None, Some(1), Some(2)] {
            for version in 1..=3 {
                let header = of(Kind::Read, version);
                let passes = check_link(&header, link).is_ok();
                assert_eq!(passes, link == Some(version), "{link:?} {version}");
                for kind in [Kind::Hello, Kind::Welcome, Kind::Refusal] {
                    let passes = check_link(&of(kind, version), link).is_ok();
                    assert_eq!(passes, version == HANDSHAKE_VERSION, "{kind:?} on {link:?}");
                }
            }
        }
        let wrong = |at, fault| Err(Malformed { code: Kind::Read as u8, at, fault });
        assert_eq!(check_link(&of(Kind::Read, 1), Some(2)), wrong(16, Fault::Version));
        assert_eq!(check_link(&of(Kind::Read, 1), None), wrong(18, Fault::Early));
    }

    #[test]
    fn two_builds_speak_the_newest_version_that_both_know() {
        let build = |wire_min, wire_max| Dialect { wire_min, wire_max, ..DIALECT };
        let next = build(1, 2);
        assert_eq!(common_version(&next, 1, 1), Some(1));
        assert_eq!(common_version(&next, 1, 2), Some(2));
        assert_eq!(common_version(&next, 2, 3), Some(2));
        assert_eq!(common_version(&next, 3, 4), None);
        assert_eq!(common_version(&build(3, 4), 1, 2), None);
        assert_eq!(common_version(&next, 0, 0), None, "no build has said so");
    }
}
