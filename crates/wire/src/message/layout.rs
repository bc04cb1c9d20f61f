//! Where the fields of a message are in the header: the macro that reads the tables, and the check
//! that all other bytes are zero.
//!
//! A table names the first byte of each field. The compiler checks that no two fields share a byte.

use crate::header::{HEADER, Header, Kind, NO_BODY_CRC, Status};
use crate::message::{Fault, Malformed};
use base::mutant::{self, Mutant};
use base::{
    DeviceId, Epoch, GroupId, Incarnation, Lsn, MapVersion, SdcId, Time, UnitKey, VolumeId,
};
use seam::ClientWrite;

/// One bit for each bit of a header.
pub(crate) type Mask = [u64; HEADER / 8];

/// The first byte that belongs to a kind: its flags.
pub(crate) const FLAGS_AT: usize = 19;

/// The part of every header that framing uses: everything in front of the flags, without the fields
/// of the body's length and checksum.
const FRAMING: Mask = both(span(0, BODY_AT), span(VERSION_AT, 3));

/// The first byte of the checksum of the body; its length follows.
pub(crate) const BODY_AT: usize = 8;
/// The first byte of the version; the code of the kind follows.
pub(crate) const VERSION_AT: usize = 16;
/// The code of the kind.
pub(crate) const KIND_AT: usize = 18;

/// Frames without a body.
pub(crate) const NONE: Mask = FRAMING;
/// Frames that may have a body, which then has a checksum.
pub(crate) const SUMMED: Mask = both(FRAMING, span(BODY_AT, 8));
/// Frames that may have a body, which may lack a checksum because its data is not kept.
pub(crate) const DATA: Mask = both(SUMMED, flags(NO_BODY_CRC));

/// Returns the mask of these bytes.
pub(crate) const fn span(at: usize, len: usize) -> Mask {
    assert!(at + len <= HEADER, "a field leaves the header");
    let mut mask = [0; HEADER / 8];
    let mut byte = at;
    while byte < at + len {
        mask[byte / 8] |= 0xff << (byte % 8 * 8);
        byte += 1;
    }
    mask
}

/// Returns the mask of these flags.
pub(crate) const fn flags(bits: u8) -> Mask {
    let mut mask = [0; HEADER / 8];
    mask[FLAGS_AT / 8] = (bits as u64) << (FLAGS_AT % 8 * 8);
    mask
}

/// Returns the mask of two fields. They share no byte.
pub(crate) const fn both(mut mask: Mask, other: Mask) -> Mask {
    let mut word = 0;
    while word < mask.len() {
        assert!(mask[word] & other[word] == 0, "two fields share a byte");
        mask[word] |= other[word];
        word += 1;
    }
    mask
}

/// Returns the bits of a header that are set and not in the mask. All words are combined into one.
#[inline(always)]
fn stray(bytes: &[u8; HEADER], used: &Mask) -> u64 {
    let words = bytes.chunks_exact(8).zip(used);
    words.fold(0, |stray, (word, used)| {
        stray | u64::from_le_bytes(word.try_into().expect("8 bytes")) & !used
    })
}

/// Checks that a header is of this kind, and that all bits which the kind does not use are zero.
#[inline(always)]
pub(crate) fn check(header: &Header, kind: Kind, used: &Mask) -> Result<(), Malformed> {
    let sound = stray(header.bytes(), used) == 0 || mutant::on(Mutant::AnyHeader);
    if header.kind != kind as u8 || !sound {
        return Err(reason(header, kind, used));
    }
    Ok(())
}

#[cold]
fn reason(header: &Header, kind: Kind, used: &Mask) -> Malformed {
    if header.kind != kind as u8 {
        return Malformed::new(header, KIND_AT, Fault::Kind);
    }
    let is_stray = |at: &usize| {
        let known = used[at / 8].to_le_bytes()[at % 8];
        header.bytes()[*at] & !known != 0
    };
    let at = (0..HEADER).find(is_stray).expect("the caller has found one");
    let fault = match at {
        ..VERSION_AT => Fault::Body,
        FLAGS_AT => Fault::Flag,
        _ => Fault::Unused,
    };
    Malformed::new(header, at, fault)
}

/// A type of a field.
pub(crate) trait Field: Sized {
    /// Bytes in the header.
    const BYTES: usize;
    /// Reads the field at this byte; `None` if its code has no meaning.
    fn get(header: &Header, at: usize) -> Option<Self>;
    /// Writes the field at this byte.
    fn put(self, header: &mut Header, at: usize);
}

macro_rules! numbers {
    ($($int:ty)*) => { $(
        impl Field for $int {
            const BYTES: usize = size_of::<$int>();
            #[inline(always)]
            fn get(header: &Header, at: usize) -> Option<$int> {
                let bytes = &header.bytes()[at..at + size_of::<$int>()];
                Some(<$int>::from_le_bytes(bytes.try_into().expect("as many bytes")))
            }
            #[inline(always)]
            fn put(self, header: &mut Header, at: usize) {
                let bytes = &mut header.bytes_mut()[at..at + size_of::<$int>()];
                bytes.copy_from_slice(&self.to_le_bytes());
            }
        }
    )* };
}

numbers!(u16 u32 u64);

macro_rules! ids {
    ($($id:ident: $int:ty,)*) => { $(
        impl Field for $id {
            const BYTES: usize = <$int>::BYTES;
            #[inline(always)]
            fn get(header: &Header, at: usize) -> Option<$id> {
                <$int>::get(header, at).map($id)
            }
            #[inline(always)]
            fn put(self, header: &mut Header, at: usize) {
                self.0.put(header, at);
            }
        }
    )* };
}

ids! {
    VolumeId: u32,
    SdcId: u32,
    GroupId: u32,
    Epoch: u64,
    Lsn: u64,
    Incarnation: u64,
    MapVersion: u64,
    Time: u64,
}

/// 0 is none.
impl Field for Option<DeviceId> {
    const BYTES: usize = 4;
    #[inline(always)]
    fn get(header: &Header, at: usize) -> Option<Option<DeviceId>> {
        u32::get(header, at).map(|id| (id != 0).then_some(DeviceId(id)))
    }
    #[inline(always)]
    fn put(self, header: &mut Header, at: usize) {
        self.map_or(0, |device| device.0).put(header, at);
    }
}

impl Field for Status {
    const BYTES: usize = 2;
    #[inline(always)]
    fn get(header: &Header, at: usize) -> Option<Status> {
        Status::from_code(u16::get(header, at)?)
    }
    #[inline(always)]
    fn put(self, header: &mut Header, at: usize) {
        (self as u16).put(header, at);
    }
}

/// Several fields that belong together, at the same bytes in every kind that has them.
pub(crate) trait Part: Sized {
    /// Their bytes.
    const USED: Mask;
    /// Reads them.
    fn take(header: &Header) -> Result<Self, Malformed>;
    /// Writes them.
    fn put(self, header: &mut Header);
}

/// A range of a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UnitRange {
    /// The unit.
    pub unit: UnitKey,
    /// Offset in the unit, in bytes.
    pub at: u32,
    /// Length in bytes.
    pub len: u32,
}

/// The sender's fields in most frames between devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sender {
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// The version of its map.
    pub map: MapVersion,
}

/// Makes a part of the fields of a type that is defined elsewhere.
macro_rules! part_of {
    ($name:ty { $($($field:ident).+: $ty:ty, @ $at:literal;)* }) => {
        impl Part for $name {
            const USED: Mask = {
                let used = [0; HEADER / 8];
                $(let used = both(used, span($at, <$ty as Field>::BYTES));)*
                used
            };
            #[inline(always)]
            fn take(header: &Header) -> Result<$name, Malformed> {
                let mut part = <$name>::default();
                $(part.$($field).+ = <$ty as Field>::get(header, $at).expect("any number");)*
                Ok(part)
            }
            #[inline(always)]
            fn put(self, header: &mut Header) {
                $(Field::put(self.$($field).+, header, $at);)*
            }
        }
    };
}

part_of! {
    UnitRange {
        unit.volume: VolumeId, @ 36;
        unit.index: u32, @ 80;
        at: u32, @ 84;
        len: u32, @ 88;
    }
}

part_of! {
    Sender {
        incarnation: Incarnation, @ 96;
        map: MapVersion, @ 104;
    }
}

part_of! {
    ClientWrite {
        seq: u64, @ 64;
        floor: u64, @ 72;
        sdc: SdcId, @ 92;
        incarnation: Incarnation, @ 96;
    }
}

/// Reads a table of fields. A line without a place is a [`Part`].
macro_rules! fields {
    (used $ty:ty) => {
        <$ty as $crate::message::layout::Part>::USED
    };
    (used $ty:ty, $at:literal) => {
        $crate::message::layout::span($at, <$ty as $crate::message::layout::Field>::BYTES)
    };
    (take $h:ident $name:ident $ty:ty) => {
        <$ty as $crate::message::layout::Part>::take($h)?
    };
    (take $h:ident $name:ident $ty:ty, $at:literal) => {
        match <$ty as $crate::message::layout::Field>::get($h, $at) {
            Some(value) => value,
            None => {
                return Err($crate::message::Malformed::new($h, $at, $crate::message::Fault::Code))
            }
        }
    };
    (put $h:ident $value:expr, $ty:ty) => {
        $crate::message::layout::Part::put($value, $h)
    };
    (put $h:ident $value:expr, $ty:ty, $at:literal) => {
        $crate::message::layout::Field::put($value, $h, $at)
    };
}

/// Makes a part of its table.
macro_rules! part {
    (
        $(#[$doc:meta])*
        $name:ident { $($(#[$fdoc:meta])* $field:ident: $ty:ty $(, @ $at:literal)?;)* }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty,)* }

        impl $crate::message::layout::Part for $name {
            const USED: $crate::message::layout::Mask = {
                let used = [0; $crate::header::HEADER / 8];
                $(let used = $crate::message::layout::both(
                    used,
                    $crate::message::layout::fields!(used $ty $(, $at)?),
                );)*
                used
            };
            #[inline(always)]
            fn take(header: &$crate::Header) -> Result<$name, $crate::message::Malformed> {
                Ok($name {
                    $($field: $crate::message::layout::fields!(take header $field $ty $(, $at)?),)*
                })
            }
            #[inline(always)]
            fn put(self, header: &mut $crate::Header) {
                $($crate::message::layout::fields!(put header self.$field, $ty $(, $at)?);)*
            }
        }
    };
}

/// Makes a message of its table. Each line of the first part is a field: its name, its type and its
/// first byte in the header; a line without a place is a [`Part`], which has its own table. Each
/// line of the second part is a flag, with its bit. The last line says which body it may have:
/// [`NONE`], [`SUMMED`] or [`DATA`].
macro_rules! message {
    (
        $(#[$doc:meta])*
        $name:ident { $($(#[$fdoc:meta])* $field:ident: $ty:ty $(, @ $at:literal)?;)* }
        flags { $($(#[$bdoc:meta])* $flag:ident: $bit:literal;)* }
        body: $body:ident
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $name {
            $($(#[$fdoc])* pub $field: $ty,)*
            $($(#[$bdoc])* pub $flag: bool,)*
        }

        impl $name {
            /// The bits of a header that this kind uses.
            pub(crate) const USED: $crate::message::layout::Mask = {
                let used = $crate::message::layout::$body;
                $(let used = $crate::message::layout::both(
                    used,
                    $crate::message::layout::flags($bit),
                );)*
                $(let used = $crate::message::layout::both(
                    used,
                    $crate::message::layout::fields!(used $ty $(, $at)?),
                );)*
                used
            };

            /// Returns the bits of the flags.
            #[inline(always)]
            pub(crate) fn flags(&self) -> u8 {
                0 $(| if self.$flag { $bit } else { 0 })*
            }

            /// Returns the header of this message, complete except for what framing adds.
            #[inline(always)]
            pub fn into_header(self) -> $crate::Header {
                let mut whole = $crate::Header::new($crate::Kind::$name);
                let _header = &mut whole;
                _header.flags = self.flags();
                $($crate::message::layout::fields!(put _header self.$field, $ty $(, $at)?);)*
                whole
            }
        }

        impl TryFrom<&$crate::Header> for $name {
            type Error = $crate::message::Malformed;
            #[inline]
            fn try_from(header: &$crate::Header) -> Result<$name, $crate::message::Malformed> {
                $crate::message::layout::check(header, $crate::Kind::$name, &$name::USED)?;
                Ok($name {
                    $($field: $crate::message::layout::fields!(take header $field $ty $(, $at)?),)*
                    $($flag: header.flags & $bit != 0,)*
                })
            }
        }

        impl From<$name> for $crate::Header {
            #[inline(always)]
            fn from(message: $name) -> $crate::Header {
                message.into_header()
            }
        }
    };
}

pub(crate) use {fields, message, part};
