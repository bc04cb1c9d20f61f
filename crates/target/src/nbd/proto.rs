//! The constants of the protocol under the names of the spec; each group names its section there.
//! Everything on the wire is big-endian. No logic here.
#![allow(missing_docs)] // The spec defines the names and their meaning.

// "Newstyle negotiation"
/// ASCII `NBDMAGIC`; the spec also calls it `INIT_PASSWD`.
pub const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
/// ASCII `IHAVEOPT`: the second half of the greeting, and the start of every option.
pub const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
/// Number of zeros at the end of the answer to `NBD_OPT_EXPORT_NAME`, without
/// `NBD_FLAG_C_NO_ZEROES`.
pub const EXPORT_NAME_ZEROES: usize = 124;
/// Bytes of an option's head: magic, option, length.
pub const OPTION_HEAD: usize = 16;

// "Fixed newstyle negotiation"
/// Start of every reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

// "Transmission", "Request message" and the following sections
pub const NBD_REQUEST_MAGIC: u32 = 0x2560_9513;
pub const NBD_SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub const NBD_STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// Bytes of a request's head.
pub const REQUEST_HEAD: usize = 28;

// "Terminology" on strings: the longest string
pub const STRING_MAX: usize = 4096;

// "Handshake flags" and "Client flags"
pub const NBD_FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
pub const NBD_FLAG_NO_ZEROES: u16 = 1 << 1;
pub const NBD_FLAG_C_FIXED_NEWSTYLE: u32 = 1 << 0;
pub const NBD_FLAG_C_NO_ZEROES: u32 = 1 << 1;

// "Transmission flags"
pub const NBD_FLAG_HAS_FLAGS: u16 = 1 << 0;
pub const NBD_FLAG_READ_ONLY: u16 = 1 << 1;
pub const NBD_FLAG_SEND_FLUSH: u16 = 1 << 2;
pub const NBD_FLAG_SEND_FUA: u16 = 1 << 3;
pub const NBD_FLAG_SEND_TRIM: u16 = 1 << 5;
pub const NBD_FLAG_SEND_WRITE_ZEROES: u16 = 1 << 6;
pub const NBD_FLAG_SEND_DF: u16 = 1 << 7;
pub const NBD_FLAG_CAN_MULTI_CONN: u16 = 1 << 8;
pub const NBD_FLAG_SEND_FAST_ZERO: u16 = 1 << 11;

// "Option types"
pub const NBD_OPT_EXPORT_NAME: u32 = 1;
pub const NBD_OPT_ABORT: u32 = 2;
pub const NBD_OPT_LIST: u32 = 3;
pub const NBD_OPT_STARTTLS: u32 = 5;
pub const NBD_OPT_INFO: u32 = 6;
pub const NBD_OPT_GO: u32 = 7;
pub const NBD_OPT_STRUCTURED_REPLY: u32 = 8;
pub const NBD_OPT_LIST_META_CONTEXT: u32 = 9;
pub const NBD_OPT_SET_META_CONTEXT: u32 = 10;
pub const NBD_OPT_EXTENDED_HEADERS: u32 = 11;

// "Option reply types"
pub const NBD_REP_ACK: u32 = 1;
pub const NBD_REP_SERVER: u32 = 2;
pub const NBD_REP_INFO: u32 = 3;
pub const NBD_REP_META_CONTEXT: u32 = 4;
pub const NBD_REP_ERR_UNSUP: u32 = 1 << 31 | 1;
pub const NBD_REP_ERR_POLICY: u32 = 1 << 31 | 2;
pub const NBD_REP_ERR_INVALID: u32 = 1 << 31 | 3;
pub const NBD_REP_ERR_UNKNOWN: u32 = 1 << 31 | 6;
pub const NBD_REP_ERR_SHUTDOWN: u32 = 1 << 31 | 7;

// "Option reply types", at NBD_REP_INFO
pub const NBD_INFO_EXPORT: u16 = 0;
pub const NBD_INFO_NAME: u16 = 1;
pub const NBD_INFO_DESCRIPTION: u16 = 2;
pub const NBD_INFO_BLOCK_SIZE: u16 = 3;

// "Command flags"
pub const NBD_CMD_FLAG_FUA: u16 = 1 << 0;
pub const NBD_CMD_FLAG_NO_HOLE: u16 = 1 << 1;
pub const NBD_CMD_FLAG_DF: u16 = 1 << 2;
pub const NBD_CMD_FLAG_REQ_ONE: u16 = 1 << 3;
pub const NBD_CMD_FLAG_FAST_ZERO: u16 = 1 << 4;

// "Request types"
pub const NBD_CMD_READ: u16 = 0;
pub const NBD_CMD_WRITE: u16 = 1;
pub const NBD_CMD_DISC: u16 = 2;
pub const NBD_CMD_FLUSH: u16 = 3;
pub const NBD_CMD_TRIM: u16 = 4;
pub const NBD_CMD_CACHE: u16 = 5;
pub const NBD_CMD_WRITE_ZEROES: u16 = 6;
pub const NBD_CMD_BLOCK_STATUS: u16 = 7;

// "Structured reply flags" and "Structured reply types"
pub const NBD_REPLY_FLAG_DONE: u16 = 1 << 0;
pub const NBD_REPLY_TYPE_NONE: u16 = 0;
pub const NBD_REPLY_TYPE_OFFSET_DATA: u16 = 1;
pub const NBD_REPLY_TYPE_BLOCK_STATUS: u16 = 5;
pub const NBD_REPLY_TYPE_ERROR: u16 = 1 << 15 | 1;

// "Error values"
pub const NBD_EPERM: u32 = 1;
pub const NBD_EIO: u32 = 5;
pub const NBD_ENOMEM: u32 = 12;
pub const NBD_EINVAL: u32 = 22;
pub const NBD_ENOSPC: u32 = 28;
pub const NBD_EOVERFLOW: u32 = 75;
pub const NBD_ESHUTDOWN: u32 = 108;

// "The `base:` metadata namespace"
/// The only metadata context: which ranges hold data.
pub const BASE_ALLOCATION: &[u8] = b"base:allocation";
/// Its number in status replies; the value is arbitrary.
pub const BASE_ALLOCATION_ID: u32 = 1;
pub const NBD_STATE_HOLE: u32 = 1 << 0;
pub const NBD_STATE_ZERO: u32 = 1 << 1;

/// Returns the two bytes at `at`, which the caller knows to exist.
pub(crate) fn be16(from: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(*from[at..].first_chunk().expect("two bytes"))
}

/// Returns the four bytes at `at`, which the caller knows to exist.
pub(crate) fn be32(from: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(*from[at..].first_chunk().expect("four bytes"))
}

/// Returns the eight bytes at `at`, which the caller knows to exist.
pub(crate) fn be64(from: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(*from[at..].first_chunk().expect("eight bytes"))
}
