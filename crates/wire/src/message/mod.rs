//! The content of frames: one struct for each kind.
//!
//! A table for each kind lists its fields, with their places in the [`Header`], and its flags. A
//! receiver reads a frame once, with `try_from`, and works with the struct; a sender makes the
//! struct, and framing takes it (`into_header`).
//!
//! Invariants:
//! - A field has one meaning. Two kinds may use the same bytes, or the same bit, for two things.
//! - **Bytes and flags that a kind does not use are zero, and receivers check that.** So they can
//!   get a meaning later, in a new protocol version, and no older build takes it for another one.
//! - A code that a build does not know is an error. It is never taken for another one.
//!
//! This module does not decide who may send a frame, and when.

mod control;
mod io;
pub(crate) mod layout;
mod lease;
mod replication;
mod room;
mod sync;

pub use control::{
    Admin, AdminReply, Control, Heartbeat, Hello, MapPage, MapPull, Proposal, Raft, Refusal,
    Register, RegisterSdc, Registered, Report, Reserve, Reserved, SeatsTaken, TakeSeats, Welcome,
};
pub use io::{CompareWrite, Extents, Io, Read, Reply, Request, Write, Zero};
pub use layout::{Sender, UnitRange};
pub use lease::{Beacon, Grant};
pub use replication::{Commit, Damage, Fetch, Fetched, Replicate, Replicated};
pub use sync::{Seal, Sealed, SyncStart, SyncState, SyncWipe};

use crate::header::{Header, Kind};
use base::LinkId;
use core::fmt;
use seam::Note;

/// The reason why a header is no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It is of another kind than expected.
    Kind,
    /// This build does not know the kind.
    Unknown,
    /// It comes before the handshake is over, and belongs to none.
    Early,
    /// Its version is not that of the link.
    Version,
    /// It has a body or a checksum of one, and frames of its kind have none.
    Body,
    /// It has a flag that its kind does not have.
    Flag,
    /// A byte that its kind does not use is not zero.
    Unused,
    /// A field has a code without a meaning.
    Code,
}

impl Fault {
    /// Returns the reason in a few words.
    pub fn why(self) -> &'static str {
        match self {
            Fault::Kind => "a frame of another kind than expected",
            Fault::Unknown => "a frame of a kind that this build doesn't know",
            Fault::Early => "a frame before the welcome",
            Fault::Version => "a frame of another version than the link's",
            Fault::Body => "a frame has a body that its kind doesn't have",
            Fault::Flag => "a frame has a flag that its kind doesn't have",
            Fault::Unused => "a frame has a byte that is not zero, and has no meaning",
            Fault::Code => "a frame has a code that has no meaning",
        }
    }
}

/// A header that is no message: of a broken peer, or of one that speaks another format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed {
    /// The code of its kind.
    pub code: u8,
    /// The first byte that is wrong.
    pub at: u8,
    /// The fault.
    pub fault: Fault,
}

impl Malformed {
    #[cold]
    pub(crate) fn new(header: &Header, at: usize, fault: Fault) -> Malformed {
        Malformed { code: header.kind, at: at as u8, fault }
    }

    /// Returns the note about the link on which it came.
    pub fn note(&self, link: LinkId) -> Note {
        Note::Malformed { link, kind: self.code, at: self.at, why: self.fault.why() }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (kind {}, byte {})", self.fault.why(), self.code, self.at)
    }
}

impl core::error::Error for Malformed {}

macro_rules! all_kinds {
    ($($kind:ident)*) => {
        /// The content of any frame's header. Receivers on the data path read only the kinds that
        /// they take; this is for all others.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Frame {
            $(#[doc = concat!("See [`", stringify!($kind), "`].")] $kind($kind),)*
        }

        impl TryFrom<&Header> for Frame {
            type Error = Malformed;
            fn try_from(header: &Header) -> Result<Frame, Malformed> {
                match header.kind() {
                    $(Some(Kind::$kind) => $kind::try_from(header).map(Frame::$kind),)*
                    None => Err(Malformed::new(header, layout::KIND_AT, Fault::Unknown)),
                }
            }
        }

        impl Frame {
            /// Returns the kind.
            pub fn kind(&self) -> Kind {
                match self {
                    $(Frame::$kind(_) => Kind::$kind,)*
                }
            }
        }

        impl From<Frame> for Header {
            fn from(message: Frame) -> Header {
                match message {
                    $(Frame::$kind(m) => m.into_header(),)*
                }
            }
        }

        /// Returns the bits of a header that a kind uses.
        #[cfg(test)]
        fn used(kind: Kind) -> layout::Mask {
            match kind {
                $(Kind::$kind => $kind::USED,)*
            }
        }
    };
}

all_kinds! {
    Hello Welcome Refusal Beacon Grant
    Read Write Zero Extents CompareWrite Reply Fetch Fetched
    Replicate Replicated Commit SyncStart SyncState SyncWipe Seal Sealed Damage
    Register RegisterSdc Registered Heartbeat MapPull MapPage Proposal Report
    Reserve Reserved TakeSeats SeatsTaken
    Admin AdminReply Raft
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::{HEADER, NO_BODY_CRC};
    use alloc::string::ToString;
    use base::Prng;
    use layout::{BODY_AT, FLAGS_AT};

    /// A status of an answer has two bytes, of which most values have no meaning.
    const STATUS: core::ops::Range<usize> = 20..22;

    fn kinds() -> impl Iterator<Item = Kind> {
        (0..=u8::MAX).filter_map(Kind::from_code)
    }

    fn uses(kind: Kind, at: usize) -> bool {
        used(kind)[at / 8] >> (at % 8 * 8) & 0xff == 0xff
    }

    /// Returns the flags of this kind.
    fn known_flags(kind: Kind) -> u8 {
        used(kind)[FLAGS_AT / 8].to_le_bytes()[FLAGS_AT % 8]
    }

    fn wrong(kind: Kind, at: usize, fault: Fault) -> Result<Frame, Malformed> {
        Err(Malformed { code: kind as u8, at: at as u8, fault })
    }

    /// Returns a header of this kind with random numbers in all of its fields.
    fn random(kind: Kind, prng: &mut Prng) -> Header {
        let mut header = Header::new(kind);
        header.flags = prng.next_u64() as u8 & known_flags(kind) & !NO_BODY_CRC;
        for at in FLAGS_AT + 1..HEADER {
            let number = match at {
                _ if !uses(kind, at) => 0,
                at if at == STATUS.start => prng.below(15) as u8,
                at if STATUS.contains(&at) => 0,
                _ => prng.next_u64() as u8,
            };
            header.bytes_mut()[at] = number;
        }
        header
    }

    #[test]
    fn every_kind_comes_back_as_it_was_sent() {
        let mut prng = Prng::new(1);
        for kind in kinds() {
            for _ in 0..100 {
                let header = random(kind, &mut prng);
                let message = Frame::try_from(&header).expect("it is sound");
                assert_eq!(Header::from(message), header, "{message:?}");
            }
            // A header without any field is a message, too.
            assert!(Frame::try_from(&Header::new(kind)).is_ok(), "{kind:?}");
        }
    }

    #[test]
    fn every_unused_byte_and_every_unknown_flag_is_refused() {
        let mut prng = Prng::new(2);
        for kind in kinds() {
            let sound = random(kind, &mut prng);
            for at in (FLAGS_AT + 1..HEADER).filter(|at| !uses(kind, *at)) {
                for value in [1, 128] {
                    let mut header = sound;
                    header.bytes_mut()[at] = value;
                    assert_eq!(Frame::try_from(&header), wrong(kind, at, Fault::Unused));
                }
            }
            for bit in (0..8).map(|bit| 1 << bit).filter(|bit| !known_flags(kind) & bit != 0) {
                let mut header = sound;
                header.flags |= bit;
                assert_eq!(Frame::try_from(&header), wrong(kind, FLAGS_AT, Fault::Flag));
            }
        }
    }

    #[test]
    fn a_kind_without_a_body_has_none_and_only_data_may_lack_a_checksum() {
        let bodyless = kinds().filter(|kind| !uses(*kind, BODY_AT));
        for kind in bodyless {
            for at in [BODY_AT, BODY_AT + 4] {
                let mut header = Header::new(kind);
                header.bytes_mut()[at] = 1;
                assert_eq!(Frame::try_from(&header), wrong(kind, at, Fault::Body));
            }
        }
        let none = |kind: &Kind| !uses(*kind, BODY_AT);
        let of_data = |kind: &Kind| known_flags(*kind) & NO_BODY_CRC != 0;
        assert_eq!(kinds().filter(none).count(), 12);
        assert!(kinds().filter(of_data).eq([Kind::Reply, Kind::Replicate]));
    }

    #[test]
    fn a_code_without_a_meaning_and_a_wrong_kind_are_refused() {
        for kind in kinds().filter(|kind| uses(*kind, STATUS.start)) {
            let mut header = Header::new(kind);
            header.bytes_mut()[STATUS].copy_from_slice(&15u16.to_le_bytes());
            assert_eq!(Frame::try_from(&header), wrong(kind, STATUS.start, Fault::Code));
        }
        let read = Header::new(Kind::Read);
        let other = Malformed { code: Kind::Read as u8, at: 18, fault: Fault::Kind };
        assert_eq!(Write::try_from(&read), Err(other));
        assert_eq!(other.to_string(), "a frame of another kind than expected (kind 10, byte 18)");
        let mut header = Header::new(Kind::Read);
        header.kind = 200;
        let unknown = Malformed { code: 200, at: 18, fault: Fault::Unknown };
        assert_eq!(Frame::try_from(&header), Err(unknown));
    }
}
