//! What frames say: one struct for each kind.
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
//! Who may send a frame, and when, is not decided here.

mod control;
mod io;
pub(crate) mod layout;
mod lease;
mod replication;
mod room;
mod sync;

pub use control::{
    Admin, AdminReply, Heartbeat, Hello, MapPage, MapPull, Proposal, Raft, Refusal, Register,
    RegisterSdc, Registered, Report, Welcome,
};
pub use io::{Extents, Io, Read, Reply, Request, Write, Zero};
pub use layout::UnitRange;
pub use lease::{Beacon, Grant};
pub use replication::{Commit, Damage, Fetch, Fetched, Replicate, Replicated};
pub use sync::{Seal, Sealed, SyncStart, SyncState, SyncWipe};

use crate::header::{Header, Kind};
use core::fmt;

/// A header that is no message of the kind: a broken peer, or one that speaks another format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// It is of another kind.
    Kind {
        /// The kind that was to be read.
        wanted: Kind,
        /// The code of its kind.
        code: u8,
    },
    /// It has flags that the kind does not have.
    Flags {
        /// Its kind.
        kind: Kind,
        /// These flags.
        unknown: u8,
    },
    /// A byte that the kind does not use is not zero.
    Unused {
        /// Its kind.
        kind: Kind,
        /// The first such byte of the header.
        at: u8,
    },
    /// A field has a code without a meaning.
    Code {
        /// The code of its kind.
        kind: u8,
        /// The field.
        field: &'static str,
    },
    /// This build does not know the kind.
    Unknown {
        /// Its code.
        code: u8,
    },
}

impl Malformed {
    #[cold]
    pub(crate) fn code(header: &Header, field: &'static str) -> Malformed {
        Malformed::Code { kind: header.kind, field }
    }

    /// Returns the reason in a few words, for a note.
    pub fn why(&self) -> &'static str {
        match self {
            Malformed::Kind { .. } => "a frame of another kind than expected",
            Malformed::Flags { .. } => "a frame has a flag that its kind doesn't have",
            Malformed::Unused { .. } => "a frame has a byte that is not zero, and has no meaning",
            Malformed::Code { .. } => "a frame has a code that has no meaning",
            Malformed::Unknown { .. } => "a frame of a kind that this build doesn't know",
        }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::Kind { wanted, code } => write!(f, "kind {code} instead of {wanted:?}"),
            Malformed::Flags { kind, unknown } => {
                write!(f, "a {kind:?} has the unknown flags {unknown:#04x}")
            }
            Malformed::Unused { kind, at } => {
                write!(f, "byte {at} of a {kind:?} is not zero, and has no meaning")
            }
            Malformed::Code { kind, field } => {
                write!(f, "field `{field}` of a frame of kind {kind} has an unknown code")
            }
            Malformed::Unknown { code } => write!(f, "frames of kind {code} are unknown"),
        }
    }
}

impl core::error::Error for Malformed {}

impl From<Malformed> for &'static str {
    #[cold]
    fn from(malformed: Malformed) -> &'static str {
        malformed.why()
    }
}

macro_rules! all_kinds {
    ($($kind:ident)*) => {
        /// What the header of a frame says, of whatever kind it is. Receivers on the data path read
        /// only the kinds that they take; this is for all others.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Frame {
            $(#[doc = concat!("See [`", stringify!($kind), "`].")] $kind($kind),)*
        }

        impl TryFrom<&Header> for Frame {
            type Error = Malformed;
            fn try_from(header: &Header) -> Result<Frame, Malformed> {
                match header.kind() {
                    $(Some(Kind::$kind) => $kind::try_from(header).map(Frame::$kind),)*
                    None => Err(Malformed::Unknown { code: header.kind }),
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
    Read Write Zero Extents Reply Fetch Fetched
    Replicate Replicated Commit SyncStart SyncState SyncWipe Seal Sealed Damage
    Register RegisterSdc Registered Heartbeat MapPull MapPage Proposal Report
    Admin AdminReply Raft
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::{HEADER, NO_BODY_CRC};
    use alloc::format;
    use alloc::string::ToString;
    use base::Prng;
    use layout::FLAGS_AT;

    /// A status of an answer has two bytes, of which most values have no meaning.
    const STATUS: core::ops::Range<usize> = 20..22;

    fn kinds() -> impl Iterator<Item = Kind> {
        (0..=u8::MAX).filter_map(Kind::from_code)
    }

    fn uses(kind: Kind, at: usize) -> bool {
        used(kind)[at / 8] >> (at % 8 * 8) & 0xff == 0xff
    }

    /// Returns the flags of this kind, without the one of framing.
    fn known_flags(kind: Kind) -> u8 {
        used(kind)[FLAGS_AT / 8].to_le_bytes()[FLAGS_AT % 8] & !NO_BODY_CRC
    }

    /// Returns a header of this kind with random numbers in all of its fields.
    fn random(kind: Kind, prng: &mut Prng) -> Header {
        let mut header = Header::new(kind);
        header.flags = prng.next_u64() as u8 & known_flags(kind);
        for at in FLAGS_AT + 1..HEADER {
            let number = match at {
                _ if !uses(kind, at) => 0,
                at if at == STATUS.start => prng.below(13) as u8,
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
            // Nothing is fine, too.
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
                    let unused = Malformed::Unused { kind, at: at as u8 };
                    assert_eq!(Frame::try_from(&header), Err(unused));
                }
            }
            let unknown = !(known_flags(kind) | NO_BODY_CRC);
            for bit in (0..8).map(|bit| 1 << bit).filter(|bit| unknown & bit != 0) {
                let mut header = sound;
                header.flags |= bit;
                let refused = Malformed::Flags { kind, unknown: bit };
                assert_eq!(Frame::try_from(&header), Err(refused));
            }
        }
    }

    #[test]
    fn a_code_without_a_meaning_and_a_wrong_kind_are_refused() {
        for kind in kinds().filter(|kind| uses(*kind, STATUS.start)) {
            let mut header = Header::new(kind);
            header.bytes_mut()[STATUS].copy_from_slice(&13u16.to_le_bytes());
            let code = Malformed::Code { kind: kind as u8, field: "status" };
            assert_eq!(Frame::try_from(&header), Err(code));
        }
        let header = Header::new(Kind::Read);
        let other = Malformed::Kind { wanted: Kind::Write, code: Kind::Read as u8 };
        assert_eq!(Write::try_from(&header), Err(other));
        assert_eq!(other.to_string(), "kind 10 instead of Write");
        let mut header = Header::new(Kind::Read);
        header.kind = 200;
        assert_eq!(Frame::try_from(&header), Err(Malformed::Unknown { code: 200 }));
        assert!(format!("{}", Malformed::Unknown { code: 200 }).contains("200"));
    }
}
