//! The one header: 128 bytes, little-endian, without implicit padding.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a header.
pub const HEADER: usize = 128;
/// The first four bytes of every frame: "GABN".
pub const MAGIC: [u8; 4] = *b"GABN";

/// The fixed header. A field that a kind does not use is zero; unknown bits are refused by nobody,
/// so that they can be given a meaning later.
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
    /// A [`Status`], in replies.
    pub status: U16,
    /// Zero.
    pub reserved: U16,
    /// The sender's name for the operation; a reply carries it back.
    pub op: U64,
    /// The group that the frame is about.
    pub group: U32,
    /// The volume.
    pub volume: U32,
    /// The group's epoch as the sender knows it (rule R2).
    pub epoch: U64,
    /// The write's number in group and epoch.
    pub lsn: U64,
    /// The commit point: every write of this epoch up to here is on all in-sync replicas.
    pub commit: U64,
    /// The client's number of the operation (rule R8).
    pub seq: U64,
    /// The client's lowest number that is not answered yet: lower ones are never retried.
    pub floor: U64,
    /// The unit in the volume.
    pub unit: U32,
    /// Byte offset in the unit.
    pub at: U32,
    /// Bytes of the range.
    pub len: U32,
    /// The client.
    pub sdc: U32,
    /// The incarnation of the client (I/O, replication) or of the sender (all else).
    pub incarnation: U64,
    /// The version of the sender's map.
    pub map: U64,
    /// The sender's clock in ns (beacons; a grant carries the beacon's back).
    pub sent: U64,
    /// The volume's generation, for attach and fencing (rule R8).
    pub generation: U32,
    /// How many lsns before this write's are not for the receiver: copies to others, and what all have by now.
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
            /// The code's meaning; `None` for one that this build does not know.
            pub fn from_code(code: $int) -> Option<$name> {
                match code { $($value => Some($name::$variant),)* _ => None }
            }
        }
    };
}

codes! {
    /// What a frame is. The numbers are part of the format.
    Kind: u8 {
        /// First frame of the side that dialled: who it is. Body: `control::Hello`.
        Hello = 1,
        /// The answer: welcome. Body: `control::Welcome`.
        Welcome = 2,
        /// The answer: no; the link closes after it. Body: `control::Refusal`.
        Refusal = 3,
        /// "I live, and ask for a lease" (rule R3). `sent`, `map`.
        Beacon = 4,
        /// The lease. `sent` of the beacon, `map` of the granter.
        Grant = 5,
        /// Client reads `unit`, `at`, `len`. Primary to secondary: what do these blocks hold there? The
        /// body of that answer ends with `records::Executed` of the blocks.
        Read = 10,
        /// Client writes the body.
        Write = 11,
        /// Client zeroes the range; with flag `HOLE` its space may be given back.
        Zero = 12,
        /// Client asks which blocks hold data; the body of the answer has one bit per touched block.
        Extents = 13,
        /// The answer to the four above.
        Reply = 14,
        /// Primary to secondary or joiner: one write, in the order of `lsn`. With flag `ZERO` it has
        /// no body and makes the range zeros.
        Replicate = 20,
        /// It is durable there; or could not be done, with status `Full` or `Damaged`.
        Replicated = 21,
        /// Primary to secondary: `commit` has advanced and no write carries it.
        Commit = 22,
        /// Primary to secondary or joiner: "we are in this epoch; tell me your state."
        SyncStart = 23,
        /// The answer: base epoch in `lsn`, dirty blocks in the body (`records::UnitBlocks`), in as many
        /// frames as it takes (flag `MORE`). With flag `FULL` nothing is there: copy all.
        SyncState = 24,
        /// Primary to joiner: "forget what you hold of this group", answered by `SyncState`.
        SyncWipe = 25,
        /// Primary: "all up to `lsn` is on both: forget your dirty set." Body: `records::Executed`.
        Seal = 26,
        /// Done, durably.
        Sealed = 27,
        /// Secondary to primary, unasked: these whole blocks are damaged here. They come as a write of the
        /// stream, if the primary can read them.
        Damage = 28,
        /// SDS to MDM: here I am. Body: `control::Register`.
        Register = 30,
        /// SDC to MDM: here I am. Body: `control::RegisterSdc`.
        RegisterSdc = 31,
        /// MDM: your id and incarnation. Body: `control::Registered`.
        Registered = 32,
        /// SDS or SDC to MDM. Body: `control::Heartbeat`.
        Heartbeat = 33,
        /// "Send me what is newer than `map`"; with flag `WAIT` as soon as there is something.
        MapPull = 34,
        /// A part of the answer. Body: `control::MapPage`.
        MapPage = 35,
        /// SDS to MDM: what should change. Body: `control::Proposal`. Repeated until the map shows it.
        Proposal = 36,
        /// SDS to MDM, before it registers, when the welcome asks for it. Body: `control::Report`.
        Report = 37,
        /// Command line or gateway to MDM. Body: `control::AdminRequest`.
        Admin = 40,
        /// The answer. Body: `control::AdminReply`.
        AdminReply = 41,
        /// MDM to MDM, on the link that its sender dialled: a part of a message of the consensus. `seq` is
        /// the message's number on this link, `at` where the part begins, `len` how long the message is.
        Raft = 50,
    }
}

codes! {
    /// How an operation ended. The numbers are part of the format.
    Status: u16 {
        /// Done.
        Ok = 0,
        /// The sender's epoch or map is old: get map `map` or newer, then ask whom it names.
        Stale = 1,
        /// The receiver's own map is older than the sender's: try again soon.
        Behind = 2,
        /// No space.
        Full = 3,
        /// Every copy is lost (rule R10).
        Lost = 4,
        /// No such volume.
        NoVolume = 5,
        /// The range leaves the volume or the unit, or the operation's number is the highest there is.
        OutOfRange = 6,
        /// The device failed.
        Media = 7,
        /// Too much at once: the sender exceeded its credit.
        Busy = 8,
        /// The frame arrived damaged. `Replicated`: blocks that the write would leave in parts are damaged
        /// on the device, and nothing was changed: send them whole.
        Damaged = 9,
        /// The client may only read the volume.
        ReadOnly = 10,
        /// Whether this write was done is not known any more: it is neither done nor called done.
        Forgotten = 11,
        /// A newer process has the client's name: nothing of this one is done any more.
        Superseded = 12,
    }
}

/// Bits of [`Header::flags`].
pub mod flag {
    /// `Zero`: space may be given back.
    pub const HOLE: u8 = 1;
    /// `Replicate`: a zeroing, not a write.
    pub const ZERO: u8 = 2;
    /// `SyncState`: more of the list follows in another frame. The same bit as `HOLE`.
    pub const MORE: u8 = 1;
    /// `Replicate`: a client's write to new space that the primary has not begun, and that nobody else has to have: whoever
    /// receives it may refuse it to keep its spare. The same bit as `HOLE`.
    pub const FRESH: u8 = 1;
    /// `SyncStart`: tell all that you hold, any block may differ. `SyncState`: this is all that is held, any
    /// block may differ. The same bit as `ZERO`.
    pub const ALL: u8 = 2;
    /// I/O: this may be the second time that this (client, seq) arrives somewhere.
    pub const RETRY: u8 = 4;
    /// `MapPull`: answer when there is something newer.
    pub const WAIT: u8 = 8;
    /// `Replicate`, with `COPY`: who receives it may have it wait for its own clients. The same bit as `WAIT`.
    pub const YIELDS: u8 = 8;
    /// `SyncState`: nothing is known, copy all.
    pub const FULL: u8 = 16;
    /// `Replicate`, with `COPY`: whole blocks that can't be read any more where they are copied from. No body.
    /// The same bit as `FULL`.
    pub const LOST: u8 = 16;
    /// `SyncStart`: the receiver is a joiner, not a member of the in-sync set.
    pub const JOINER: u8 = 32;
    /// Any: the body carries no checksum (NULL devices, whose data is not kept).
    pub const NO_BODY_CRC: u8 = 64;
    /// `Replicate`: a resync's copy, not a client's write.
    pub const COPY: u8 = 128;
}
