//! The header of all frames: 128 bytes, little-endian, without implicit padding.

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a header.
pub const HEADER: usize = 128;
/// The first four bytes of every frame: "GABN".
pub const MAGIC: [u8; 4] = *b"GABN";

/// A frame's header as it is sent. Its first 20 bytes are the same for all kinds: framing reads
/// them. The others belong to the kind: [`crate::message`] has a struct for each, and knows where
/// its fields are.
///
/// Bytes and flags that a kind does not use are zero, and receivers check that. A new meaning is a
/// new protocol version. Only this crate writes the first 20 bytes.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub(crate) magic: [u8; 4],
    /// CRC-32C of header bytes 8..128.
    pub(crate) crc: U32,
    /// CRC-32C of the body; 0 with flag [`NO_BODY_CRC`].
    pub(crate) body_crc: U32,
    /// Bytes of body that follow.
    pub(crate) body_len: U32,
    /// Protocol version of this frame.
    pub(crate) version: U16,
    /// A [`Kind`].
    pub(crate) kind: u8,
    /// [`NO_BODY_CRC`], and the flags of the kind.
    pub(crate) flags: u8,
    /// The fields of the kind.
    fields: [u8; HEADER - 20],
}

/// The body has no checksum, because its data is not kept (NULL devices). A flag of the kinds whose
/// body is `data`.
pub(crate) const NO_BODY_CRC: u8 = 64;

const _: () = assert!(size_of::<Header>() == HEADER);

macro_rules! codes {
    ($(#[$doc:meta])* $name:ident: $int:ty { $($(#[$vdoc:meta])* $variant:ident = $value:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        #[repr($int)]
        pub enum $name { $($(#[$vdoc])* $variant = $value,)* }
        impl $name {
            /// Returns the meaning of a code; `None` if this build does not know it.
            pub fn from_code(code: $int) -> Option<$name> {
                match code { $($value => Some($name::$variant),)* _ => None }
            }
        }
    };
}

codes! {
    /// Kind of a frame. The numbers are part of the format. [`crate::message`] says what each one
    /// carries.
    Kind: u8 {
        /// First frame from the side that dialled; identifies it. Body: `control::Hello`.
        Hello = 1,
        /// Answer to a hello that is accepted. Body: `control::Welcome`.
        Welcome = 2,
        /// Answer to a hello that is refused; the link closes after it. Body: `control::Refusal`.
        Refusal = 3,
        /// Sign of life and request for a lease (rule R3).
        Beacon = 4,
        /// Grants the lease.
        Grant = 5,
        /// From a client: read a range.
        Read = 10,
        /// From a client: write the body.
        Write = 11,
        /// From a client: zero a range.
        Zero = 12,
        /// From a client: report which blocks hold data.
        Extents = 13,
        /// Answer to `Read`, `Write`, `Zero`, `Extents` and `CompareWrite`.
        Reply = 14,
        /// From a primary to a secondary: return the secondary's content of these blocks.
        Fetch = 15,
        /// Answer: the blocks, and `records::Executed` of the blocks.
        Fetched = 16,
        /// From a client: write the second half of the body if the range equals the first half.
        CompareWrite = 17,
        /// Primary to secondary or joiner: one write, in the order of the stream.
        Replicate = 20,
        /// Answer: the write is durable there, or could not be done.
        Replicated = 21,
        /// Primary to secondary: the commit point has advanced.
        Commit = 22,
        /// Primary to secondary or joiner: asks for its state in this epoch.
        SyncStart = 23,
        /// Answer: the base epoch and the dirty blocks.
        SyncState = 24,
        /// Primary to joiner: delete all data of a group. Answered by `SyncState`.
        SyncWipe = 25,
        /// Primary to a peer: it is equal, and may clear its dirty set.
        Seal = 26,
        /// Answer: the seal is durable.
        Sealed = 27,
        /// Secondary to primary, unasked: these whole blocks are damaged here.
        Damage = 28,
        /// SDS to MDM: registration. Body: `control::Register`.
        Register = 30,
        /// SDC to MDM: registration. Body: `control::RegisterSdc`.
        RegisterSdc = 31,
        /// MDM: answer to a registration, with id and incarnation. Body: `control::Registered`.
        Registered = 32,
        /// SDS or SDC to MDM. Body: `control::Heartbeat`.
        Heartbeat = 33,
        /// Asks for everything newer than the sender's map.
        MapPull = 34,
        /// Answer, or a part of it. Body: `control::MapPage`.
        MapPage = 35,
        /// SDS to MDM: proposes changes, until the map shows them. Body: `control::Proposal`.
        Proposal = 36,
        /// SDS to MDM, before it registers, if the welcome asks for it. Body: `control::Report`.
        Report = 37,
        /// SDC to MDM: changes the reservations of a volume. Body: `control::Reserve`.
        Reserve = 38,
        /// Answer to `Reserve`. Body: `control::Reserved`.
        Reserved = 39,
        /// Command line or gateway to MDM. Body: `control::AdminRequest`.
        Admin = 40,
        /// Answer to `Admin`. Body: `control::AdminReply`.
        AdminReply = 41,
        /// SDC to MDM: asks for seats of hosts. Body: `control::TakeSeats`.
        TakeSeats = 42,
        /// Answer to `TakeSeats`. Body: `control::SeatsTaken`.
        SeatsTaken = 43,
        /// MDM to MDM, on the link that the sender dialled: a part of a consensus message.
        Raft = 50,
    }
}

codes! {
    /// Result of an operation. The numbers are part of the format.
    Status: u16 {
        /// Done.
        Ok = 0,
        /// The sender's epoch or map is old: get the map that the answer names or a newer one, then
        /// ask the primary.
        Stale = 1,
        /// The receiver's own map is older than the sender's: try again soon.
        Behind = 2,
        /// No space.
        Full = 3,
        /// Every copy is lost (rule R10).
        Lost = 4,
        /// No such volume.
        NoVolume = 5,
        /// The range leaves the volume or the unit, the unit is not in the group, or the operation
        /// has the highest possible number.
        OutOfRange = 6,
        /// The device failed.
        Media = 7,
        /// There is no room for the operation, or a retry has more to do: try again soon.
        Busy = 8,
        /// The body arrived damaged, or has changed in memory: send it again.
        Damaged = 9,
        /// The volume is read-only for the client.
        ReadOnly = 10,
        /// It is unknown whether this write was done. It was neither executed nor acknowledged now.
        Forgotten = 11,
        /// A newer process has the client's name: requests of this one are no longer executed.
        Superseded = 12,
        /// In `Replicated`: the write was not done, because blocks that it covers only in part are
        /// damaged on the device, or because its body has changed in memory. Send its blocks whole.
        SendWhole = 13,
        /// The range differs from what a compare-and-write expected, so nothing was written.
        Miscompare = 14,
    }
}
