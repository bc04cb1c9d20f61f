//! The constants of iSCSI under the names of RFC 7143; each group names its section there.
//! Everything on the wire is big-endian. No logic here, except reading and writing integers.

pub(crate) use crate::nbd::proto::{be16, be32, be64};

/// Bytes of a basic header segment (11.2.1).
pub const BHS: usize = 48;
/// Bytes of a digest of a head or of data (13.1).
pub const DIGEST: usize = 4;
/// Longest additional header segments, in words of 4 bytes, that a frame's head has room for.
pub const AHS_WORDS: usize = 19;
/// The value of a tag that names nothing (11.2.1.8).
pub const NO_TAG: u32 = 0xffff_ffff;
/// Data of a PDU of the login phase, and of a side that has declared nothing (13.12).
pub const LOGIN_SEGMENT: u32 = 8192;

// 11.2.1.2: opcodes of the initiator
pub(crate) const NOP_OUT: u8 = 0x00;
pub(crate) const SCSI_COMMAND: u8 = 0x01;
pub(crate) const TASK_REQUEST: u8 = 0x02;
pub(crate) const LOGIN_REQUEST: u8 = 0x03;
pub(crate) const TEXT_REQUEST: u8 = 0x04;
pub(crate) const DATA_OUT: u8 = 0x05;
pub(crate) const LOGOUT_REQUEST: u8 = 0x06;
pub(crate) const SNACK: u8 = 0x10;

// 11.2.1.2: opcodes of the target
pub(crate) const NOP_IN: u8 = 0x20;
pub(crate) const SCSI_RESPONSE: u8 = 0x21;
pub(crate) const TASK_RESPONSE: u8 = 0x22;
pub(crate) const LOGIN_RESPONSE: u8 = 0x23;
pub(crate) const TEXT_RESPONSE: u8 = 0x24;
pub(crate) const DATA_IN: u8 = 0x25;
pub(crate) const LOGOUT_RESPONSE: u8 = 0x26;
pub(crate) const R2T: u8 = 0x31;
pub(crate) const ASYNC_MESSAGE: u8 = 0x32;
pub(crate) const REJECT: u8 = 0x3f;

/// Marks an immediate request, in the byte of the opcode.
pub(crate) const IMMEDIATE: u8 = 0x40;
/// The opcode's bits of that byte.
pub(crate) const OPCODE: u8 = 0x3f;
/// The final PDU of a sequence (11.2.1.3); in the login phase: transit to the next stage (11.12.1).
pub(crate) const FINAL: u8 = 0x80;
/// The text goes on in the next PDU (11.10.2, 11.12.2).
pub(crate) const CONTINUE: u8 = 0x40;

// 11.3.1: flags of a command
pub(crate) const READ: u8 = 0x40;
pub(crate) const WRITE: u8 = 0x20;
pub(crate) const ATTRIBUTE: u8 = 0x07;

// 11.4.1, 11.7.2: flags of a response and of the last data
pub(crate) const OVERFLOW: u8 = 0x04;
pub(crate) const UNDERFLOW: u8 = 0x02;
pub(crate) const STATUS: u8 = 0x01;

// 11.5.1: functions of task management
pub(crate) const ABORT_TASK: u8 = 1;
pub(crate) const ABORT_TASK_SET: u8 = 2;
pub(crate) const CLEAR_ACA: u8 = 3;
pub(crate) const CLEAR_TASK_SET: u8 = 4;
pub(crate) const LOGICAL_UNIT_RESET: u8 = 5;
pub(crate) const TARGET_WARM_RESET: u8 = 6;
pub(crate) const TARGET_COLD_RESET: u8 = 7;
pub(crate) const TASK_REASSIGN: u8 = 8;

// 11.6.1: responses to them
pub(crate) const FUNCTION_COMPLETE: u8 = 0;
pub(crate) const TASK_DOES_NOT_EXIST: u8 = 1;
pub(crate) const LUN_DOES_NOT_EXIST: u8 = 2;
pub(crate) const REASSIGN_NOT_SUPPORTED: u8 = 4;
pub(crate) const FUNCTION_NOT_SUPPORTED: u8 = 5;
pub(crate) const FUNCTION_REJECTED: u8 = 255;

// 11.9.1: events of an asynchronous message
/// The target asks for a logout.
pub(crate) const ASYNC_LOGOUT: u8 = 1;

// 11.12.3: stages of the login phase
pub(crate) const STAGE_SECURITY: u8 = 0;
pub(crate) const STAGE_OPERATIONAL: u8 = 1;
pub(crate) const STAGE_FULL: u8 = 3;

// 11.14.1, 11.15.1: reasons of a logout, and responses
pub(crate) const LOGOUT_RECOVERY: u8 = 2;
pub(crate) const LOGGED_OUT: u8 = 0;
pub(crate) const CID_NOT_FOUND: u8 = 1;
pub(crate) const RECOVERY_NOT_SUPPORTED: u8 = 2;

// 11.17.1: reasons of a reject
pub(crate) const REJECT_SNACK: u8 = 0x03;
pub(crate) const REJECT_PROTOCOL: u8 = 0x04;
pub(crate) const REJECT_UNSUPPORTED: u8 = 0x05;
pub(crate) const REJECT_IMMEDIATE: u8 = 0x06;
pub(crate) const REJECT_FIELD: u8 = 0x09;

/// Returns the three bytes at `at`, which the caller knows to exist.
pub(crate) fn be24(from: &[u8], at: usize) -> u32 {
    be32(from, at - 1) & 0x00ff_ffff
}

/// Returns true if serial number `a` is not before `b` (RFC 1982, as 4.2.2 wants it).
pub(crate) fn not_before(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) < 1 << 31
}

/// Returns how many bytes of padding follow `len` bytes.
pub(crate) fn padding(len: usize) -> usize {
    len.wrapping_neg() & 3
}
