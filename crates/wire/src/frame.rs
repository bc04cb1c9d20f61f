//! Creates and checks frames.

use crate::header::{HEADER, Header, Kind, MAGIC, NO_BODY_CRC};
use crate::message::Control;
use crate::{DIALECT, HANDSHAKE_VERSION};
use base::Dialect;
use base::crc::crc32c;
use seam::{Buf, BufPool, FrameError, Framer, Framing, Head};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

impl Header {
    /// Creates a header of this kind in the version of handshakes, with all other fields zero.
    /// [`PeerLink`](crate::PeerLink) sets the version of the link when the frame is sent.
    pub fn new(kind: Kind) -> Header {
        let mut header = Header::new_zeroed();
        header.magic = MAGIC;
        header.version = HANDSHAKE_VERSION.into();
        header.kind = kind as u8;
        header
    }

    /// Returns the kind if this build knows it.
    pub fn kind(&self) -> Option<Kind> {
        Kind::from_code(self.kind)
    }

    /// Returns the code of the kind, whether this build knows it or not.
    pub fn code(&self) -> u8 {
        self.kind
    }

    /// Returns the protocol version of the frame.
    pub fn version(&self) -> u16 {
        self.version.get()
    }

    /// Returns the length of the body, in bytes.
    pub fn body_len(&self) -> u32 {
        self.body_len.get()
    }

    /// Returns true if the body has a checksum.
    pub fn is_summed(&self) -> bool {
        self.flags & NO_BODY_CRC == 0
    }

    /// Returns the 8 bytes at this place, without regard to their meaning. For tests, fuzzing and
    /// simulated strangers: all other code reads messages ([`crate::message`]).
    pub fn raw(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.bytes()[at..at + 8].try_into().expect("8 bytes"))
    }

    /// Overwrites bytes from this place on, without regard to their meaning. For the same purposes.
    pub fn forge(&mut self, at: usize, bytes: &[u8]) {
        self.bytes_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    #[inline(always)]
    pub(crate) fn bytes(&self) -> &[u8; HEADER] {
        self.as_bytes().try_into().expect("a header has this size")
    }

    #[inline(always)]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8; HEADER] {
        self.as_mut_bytes().try_into().expect("a header has this size")
    }
}

/// Seals a header as it is, even if it does not match its body. For tests and simulated strangers.
pub fn seal(mut header: Header) -> Head {
    finish(&mut header)
}

#[inline]
pub(crate) fn finish(header: &mut Header) -> Head {
    header.crc = crc32c(&header.as_bytes()[8..]).into();
    Head::new(header.as_bytes())
}

/// Completes a header for this body with length and checksums.
#[inline]
pub(crate) fn complete(header: &mut Header, body: &[u8]) -> Head {
    header.body_len = (body.len() as u32).into();
    header.body_crc = if !header.is_summed() || body.is_empty() { 0 } else { crc32c(body) }.into();
    finish(header)
}

/// Completes a message for this body with length and checksums.
#[inline]
pub fn frame(message: impl Into<Header>, body: &[u8]) -> Head {
    complete(&mut message.into(), body)
}

/// Creates a frame of this protocol version with a control message as its body. `message` is what
/// the header says.
///
/// # Panics
/// If frames of that kind have other bodies.
pub fn control_frame<M: Control>(
    version: u16,
    message: impl Into<Header>,
    body: &M,
    pool: &BufPool,
) -> (Head, Buf) {
    let mut header = message.into();
    header.version = version.into();
    assert_eq!(header.kind(), Some(M::KIND), "a control message is the body of its own kind");
    let mut bytes = pool.alloc(body.encoded_len());
    body.encode(&mut bytes.as_mut()).expect("the buffer has the encoded length");
    (complete(&mut header, &bytes), bytes)
}

/// Parses the header of a frame that a [`PeerFramer`] delimited.
#[inline]
pub fn parse(head: &[u8]) -> &Header {
    Header::ref_from_bytes(head).expect("the framer cuts heads of 128 bytes")
}

/// Returns true if the body matches its checksum, which is 0 where there is none.
#[inline]
pub fn body_ok(header: &Header, body: &[u8]) -> bool {
    let summed = header.is_summed() && !body.is_empty();
    let crc = if summed { crc32c(body) } else { 0 };
    crc == header.body_crc.get() || base::mutant::on(base::Mutant::NoBodyCheck)
}

/// A body, and its checksum from the frame's header.
#[derive(Clone, Debug)]
pub struct Body {
    /// The bytes.
    pub data: Buf,
    /// The checksum; `None` if it has none, because its data is not kept.
    pub crc: Option<u32>,
}

impl Body {
    /// Returns the body of a frame.
    #[inline]
    pub fn of(header: &Header, data: Buf) -> Body {
        Body { data, crc: header.is_summed().then_some(header.body_crc.get()) }
    }
}

/// Splits the stream of a link between Gabion processes into frames. It takes every version that
/// the build speaks, because it does not know which one the two sides agree on, and handshakes
/// always.
#[derive(Clone, Debug)]
pub struct PeerFramer {
    max_body: u32,
    wire_min: u16,
    wire_max: u16,
}

impl PeerFramer {
    /// Creates a framer of this release that refuses bodies of more than `max_body` bytes.
    pub fn new(max_body: u32) -> PeerFramer {
        PeerFramer::speaking(&DIALECT, max_body)
    }

    /// Creates a framer for a build that speaks other versions.
    pub fn speaking(dialect: &Dialect, max_body: u32) -> PeerFramer {
        PeerFramer { max_body, wire_min: dialect.wire_min, wire_max: dialect.wire_max }
    }

    fn takes(&self, header: &Header) -> bool {
        let version = header.version.get();
        let handshake = || header.kind().is_some_and(Kind::is_handshake);
        (self.wire_min..=self.wire_max).contains(&version)
            || version == HANDSHAKE_VERSION && handshake()
    }
}

impl Framer for PeerFramer {
    #[inline]
    fn frame(&mut self, start: &[u8]) -> Result<Framing, FrameError> {
        if start.get(..4).is_some_and(|magic| magic != MAGIC) {
            return Err(FrameError::BadMagic);
        }
        let Some(head) = start.get(..HEADER) else { return Ok(Framing::Need(HEADER)) };
        let header = parse(head);
        if crc32c(&head[8..]) != header.crc.get() {
            return Err(FrameError::BadHead);
        }
        if !self.takes(header) {
            return Err(FrameError::Version);
        }
        let any = base::mutant::on(base::Mutant::NoFrameLimit);
        if header.body_len.get() > self.max_body && !any {
            return Err(FrameError::TooLong);
        }
        Ok(Framing::Frame { head: HEADER, body: header.body_len.get() as usize })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VERSION;
    use crate::message::{Request, UnitRange, Write};
    use base::{Epoch, GroupId, Incarnation, MapVersion, SdcId, UnitKey, VolumeId};
    use seam::ClientWrite;

    /// The format, byte by byte. A change here is a new protocol version.
    #[test]
    fn golden_header() {
        let write = Write {
            request: Request {
                op: 0x1112_1314_1516_1718,
                group: GroupId(0x2122_2324),
                epoch: Epoch(4),
                range: UnitRange {
                    unit: UnitKey { volume: VolumeId(0x3132_3334), index: 9 },
                    at: 10,
                    len: 11,
                },
                client: ClientWrite {
                    sdc: SdcId(12),
                    incarnation: Incarnation(13),
                    seq: 7,
                    floor: 8,
                },
                map: MapVersion(14),
                generation: 16,
            },
            retry: true,
        };
        let head = frame(write, b"gabion");
        let hex: alloc::string::String =
            head.as_slice().iter().map(|b| alloc::format!("{b:02x}")).collect();
        let golden = concat!(
            "4741424e",
            "f0c0574d",
            "31c1f59c",
            "06000000",
            "01000b04",
            "00000000",
            "1817161514131211",
            "24232221",
            "34333231",
            "0400000000000000",
            "0000000000000000",
            "0000000000000000",
            "0700000000000000",
            "0800000000000000",
            "09000000",
            "0a000000",
            "0b000000",
            "0c000000",
            "0d00000000000000",
            "0e00000000000000",
            "0000000000000000",
            "10000000",
            "00000000",
        );
        assert_eq!(hex, golden);
        let parsed = parse(head.as_slice());
        assert_eq!(Write::try_from(parsed), Ok(write));
        assert!(body_ok(parsed, b"gabion") && !body_ok(parsed, b"gabiom"));
        // Where there is no body, or none with a checksum, the checksum is 0.
        let mut bare = Header::new(Kind::Reply);
        assert!(body_ok(&bare, b""));
        bare.body_crc = 1.into();
        assert!(!body_ok(&bare, b""));
        bare.flags |= NO_BODY_CRC;
        assert!(!body_ok(&bare, b"data"));
    }

    #[test]
    fn every_damaged_bit_of_a_header_is_noticed() {
        let head = frame(Header::new(Kind::Read), b"");
        let mut framer = PeerFramer::new(1 << 20);
        assert_eq!(framer.frame(head.as_slice()), Ok(Framing::Frame { head: 128, body: 0 }));
        for bit in 0..HEADER * 8 {
            let mut bytes = [0u8; HEADER];
            bytes.copy_from_slice(head.as_slice());
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(framer.frame(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn strangers_versions_and_giants_are_told_apart() {
        let mut framer = PeerFramer::new(100);
        assert_eq!(framer.frame(b"GET / HTTP"), Err(FrameError::BadMagic));
        assert_eq!(framer.frame(b"GAB"), Ok(Framing::Need(HEADER)));
        let mut h = Header::new(Kind::Read);
        h.version = (VERSION + 1).into();
        assert_eq!(framer.frame(frame(h, b"").as_slice()), Err(FrameError::Version));
        let whole = Ok(Framing::Frame { head: HEADER, body: 0 });
        let next = Dialect { wire_max: VERSION + 1, ..DIALECT };
        let mut next = PeerFramer::speaking(&next, 100);
        assert_eq!(next.frame(frame(h, b"").as_slice()), whole);
        assert_eq!(next.frame(frame(Header::new(Kind::Read), b"").as_slice()), whole);
        // A build that has forgotten version 1 still understands a handshake.
        let far = Dialect { wire_min: 8, wire_max: 9, ..DIALECT };
        let mut far = PeerFramer::speaking(&far, 100);
        for (kind, taken) in [(Kind::Hello, true), (Kind::Refusal, true), (Kind::Read, false)] {
            let framed = far.frame(frame(Header::new(kind), b"").as_slice());
            assert_eq!(framed.is_ok(), taken, "{kind:?}");
        }
        assert_eq!(
            framer.frame(frame(Header::new(Kind::Write), &[0; 101]).as_slice()),
            Err(FrameError::TooLong)
        );
    }
}
