//! The header of all frames: 128 bytes, little-endian, without implicit padding.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a header.
pub const HEADER: usize = 128;
/// The first four bytes of every frame: "GABN".
pub const MAGIC: [u8; 4] = *b"GABN";

/// The fixed header. Fields that a kind does not use are zero. No receiver refuses unknown bits, so
/// that they can be given a meaning later.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: [u8; 4],
    /// CRC-32C of header bytes 8..128.
    pub crc: U32,
    /// CRC-32C of the body; 0 with flag `NO_BODY_CRC`.
    pub body_crc: U32,
    /// Bytes of body that follow.
    pub body_len: U32,
    /// Protocol version of this frame.
    pub version: U16,
    /// A [`Kind`].
    pub kind: u8,
    /// Bits of [`flag`].
    pub flags: u8,
    /// A [`Status`], in answers.
    pub status: U16,
    /// Zero.
    pub reserved: U16,
    /// The sender's id for the operation. The answer carries the same.
    pub op: U64,
    /// The group that the frame is about.
    pub group: U32,
    /// The volume.
    pub volume: U32,
    /// The group's epoch as the sender knows it (rule R2).
    pub epoch: U64,
    /// The write's sequence number in its group and epoch.
    pub lsn: U64,
    /// The commit point: every write of this epoch up to here is on all in-sync replicas.
    pub commit: U64,
    /// The client's number for the operation (rule R8).
    pub seq: U64,
    /// The client's lowest unanswered number. Lower ones are never retried.
    pub floor: U64,
    /// The unit in the volume.
    pub unit: U32,
    /// Offset in the unit, in bytes.
    pub at: U32,
    /// Length of the range in bytes.
    pub len: U32,
    /// The client.
    pub sdc: U32,
    /// The incarnation of the client (I/O, replication) or of the sender (all else).
    pub incarnation: U64,
    /// The version of the sender's map.
    pub map: U64,
    /// Beacon: the sender's clock in ns. Grant: the value of the beacon.
    pub sent: U64,
    /// The generation of the volume's mapping that the request was sent under (rule R8).
    pub generation: U32,
    /// Number of sequence numbers just below `lsn` that the receiver does not get: copies to other
    /// replicas, and operations that all replicas have by now.
    pub skipped: U32,
}

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
    /// Kind of a frame. The numbers are part of the format.
    Kind: u8 {
        /// First frame from the side that dialled; identifies it. Body: `control::Hello`.
        Hello = 1,
        /// Answer to a hello that is accepted. Body: `control::Welcome`.
        Welcome = 2,
        /// Answer to a hello that is refused; the link closes after it. Body: `control::Refusal`.
        Refusal = 3,
        /// Sign of life and request for a lease (rule R3). Uses `sent` and `map`.
        Beacon = 4,
        /// Grants the lease. `sent` is the beacon's, `map` is the granter's.
        Grant = 5,
        /// From a client: read `unit`, `at`, `len`. From a primary to a secondary: return the
        /// secondary's content of these blocks; the body of that answer ends with
        /// `records::Executed` of the blocks.
        Read = 10,
        /// From a client: write the body.
        Write = 11,
        /// From a client: zero the range. With flag `HOLE` its space may be freed.
        Zero = 12,
        /// From a client: report which blocks hold data. The body of the answer has one bit per
        /// touched block.
        Extents = 13,
        /// Answer to `Read`, `Write`, `Zero` and `Extents`.
        Reply = 14,
        /// Primary to secondary or joiner: one write, in the order of `lsn`. With flag `ZERO` it
        /// has no body and zeros the range.
        Replicate = 20,
        /// Answer: the write is durable there; or it could not be done, with status `Full` or
        /// `Damaged`.
        Replicated = 21,
        /// Primary to secondary: `commit` has advanced, and no write is due that would carry it.
        Commit = 22,
        /// Primary to secondary or joiner: asks for its state in this epoch.
        SyncStart = 23,
        /// Answer: base epoch in `lsn`, dirty blocks in the body (`records::UnitBlocks`), in as
        /// many frames as necessary (flag `MORE`). With flag `FULL` the replica has nothing.
        SyncState = 24,
        /// Primary to joiner: delete all data of this group. Answered by `SyncState`.
        SyncWipe = 25,
        /// Primary to a peer: it has everything up to `lsn` and may clear its dirty set. Body:
        /// `records::Executed`.
        Seal = 26,
        /// Answer: the seal is durable.
        Sealed = 27,
        /// Secondary to primary, unasked: these whole blocks are damaged here. The primary sends
        /// them as a write of the stream if it can read them.
        Damage = 28,
        /// SDS to MDM: registration. Body: `control::Register`.
        Register = 30,
        /// SDC to MDM: registration. Body: `control::RegisterSdc`.
        RegisterSdc = 31,
        /// MDM: answer to a registration, with id and incarnation. Body: `control::Registered`.
        Registered = 32,
        /// SDS or SDC to MDM. Body: `control::Heartbeat`.
        Heartbeat = 33,
        /// Asks for everything newer than `map`. With flag `WAIT` the answer waits for news.
        MapPull = 34,
        /// Answer, or a part of it. Body: `control::MapPage`.
        MapPage = 35,
        /// SDS to MDM: proposes changes, until the map shows them. Body: `control::Proposal`.
        Proposal = 36,
        /// SDS to MDM, before it registers, if the welcome asks for it. Body: `control::Report`.
        Report = 37,
        /// Command line or gateway to MDM. Body: `control::AdminRequest`.
        Admin = 40,
        /// Answer to `Admin`. Body: `control::AdminReply`.
        AdminReply = 41,
        /// MDM to MDM, on the link that the sender dialled: a part of a consensus message. `seq` is
        /// the number of the message on this link, `at` the offset of the part, `len` its length.
        Raft = 50,
    }
}

codes! {
    /// Result of an operation. The numbers are part of the format.
    Status: u16 {
        /// Done.
        Ok = 0,
        /// The sender's epoch or map is old: get map `map` or a newer one, then ask the primary
        /// that it names.
        Stale = 1,
        /// The receiver's own map is older than the sender's: try again soon.
        Behind = 2,
        /// No space.
        Full = 3,
        /// Every copy is lost (rule R10).
        Lost = 4,
        /// No such volume.
        NoVolume = 5,
        /// The range leaves the volume or unit, or the operation has the highest possible number.
        OutOfRange = 6,
        /// The device failed.
        Media = 7,
        /// The sender has too many operations outstanding and exceeded its credit.
        Busy = 8,
        /// The frame arrived damaged. In `Replicated`: blocks that the write covers only in part
        /// are damaged on the device, and nothing was changed: send them whole.
        Damaged = 9,
        /// The volume is read-only for the client.
        ReadOnly = 10,
        /// It is unknown whether this write was done. It was neither executed nor acknowledged now.
        Forgotten = 11,
        /// A newer process has the client's name: requests of this one are no longer executed.
        Superseded = 12,
    }
}

/// Bits of [`Header::flags`].
pub mod flag {
    /// `Zero`: the space may be freed.
    pub const HOLE: u8 = 1;
    /// `Replicate`: zeroes the range and has no body.
    pub const ZERO: u8 = 2;
    /// `SyncState`: another frame continues the list. The same bit as `HOLE`.
    pub const MORE: u8 = 1;
    /// `Replicate`: a client's write to new space that the primary has not begun, and that no third
    /// replica needs. The receiver may refuse it to keep its spare. The same bit as `HOLE`.
    pub const FRESH: u8 = 1;
    /// `SyncStart`: return everything that you hold, any block may differ. `SyncState`: this is
    /// everything that is held, any block may differ. The same bit as `ZERO`.
    pub const ALL: u8 = 2;
    /// I/O: this (client, seq) may have arrived somewhere before.
    pub const RETRY: u8 = 4;
    /// `MapPull`: answer once there is something newer.
    pub const WAIT: u8 = 8;
    /// `Replicate`, with `COPY`: the receiver may delay it in favour of its own clients. The same
    /// bit as `WAIT`.
    pub const YIELDS: u8 = 8;
    /// `SyncState`: the replica has nothing, copy everything.
    pub const FULL: u8 = 16;
    /// `Replicate`, with `COPY`: whole blocks that the source can't read any more. No body. The
    /// same bit as `FULL`.
    pub const LOST: u8 = 16;
    /// `SyncStart`: the receiver is a joiner and not in the in-sync set.
    pub const JOINER: u8 = 32;
    /// Any kind: the body has no checksum (NULL devices, whose data is not kept).
    pub const NO_BODY_CRC: u8 = 64;
    /// `Replicate`: a copy of a resync and not a client's write.
    pub const COPY: u8 = 128;
}
