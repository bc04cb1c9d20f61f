//! The status codes of commands.
//!
//! Invariants: a temporary failure never gets a status with "do not retry". A status asks for a
//! retry delay only if the host has enabled that ([`Status::without_delay`]).

use seam::BlockError;

/// The status field of a completion (base 4.6.1), without the phase tag: the code in bits 7:0, its
/// type in bits 10:8, the delay in bits 12:11, "do not retry" in bit 14.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status(pub u16);

const DNR: u16 = 1 << 14;
const DELAY: u16 = 3 << 11;

const fn status(kind: u16, code: u16) -> Status {
    Status(kind << 8 | code)
}

const fn refused(kind: u16, code: u16) -> Status {
    Status(DNR | kind << 8 | code)
}

/// Repeat the command after the delay with this number (CRDT1 to CRDT3).
const fn later(code: u16, delay: u16) -> Status {
    Status(delay << 11 | code)
}

impl Status {
    pub(crate) const SUCCESS: Status = status(0, 0);
    pub(crate) const INVALID_OPCODE: Status = refused(0, 0x01);
    pub(crate) const INVALID_FIELD: Status = refused(0, 0x02);
    /// "Internal error": there is no room.
    pub(crate) const INTERNAL: Status = refused(0, 0x06);
    /// The other one of two fused commands has failed.
    pub(crate) const FAILED_FUSED: Status = status(0, 0x09);
    /// The other one of two fused commands is not there.
    pub(crate) const MISSING_FUSED: Status = refused(0, 0x0a);
    pub(crate) const NO_NAMESPACE: Status = refused(0, 0x0b);
    pub(crate) const SEQUENCE: Status = refused(0, 0x0c);
    /// The length of the data is not what the command needs.
    pub(crate) const SGL_LENGTH: Status = refused(0, 0x0f);
    pub(crate) const SGL_TYPE: Status = refused(0, 0x11);
    pub(crate) const SGL_OFFSET: Status = refused(0, 0x16);
    /// "Host identifier inconsistent format".
    pub(crate) const HOST_ID_FORMAT: Status = refused(0, 0x18);
    pub(crate) const WRITE_PROTECTED: Status = refused(0, 0x20);
    pub(crate) const INTERRUPTED: Status = later(0x21, 1);
    /// The data did not arrive as it was sent.
    pub(crate) const TRANSPORT: Status = status(0, 0x22);
    pub(crate) const OUT_OF_RANGE: Status = refused(0, 0x80);
    /// "Namespace not ready".
    pub(crate) const NOT_READY: Status = later(0x82, 3);
    pub(crate) const TOO_MANY_EVENTS: Status = refused(1, 0x05);
    pub(crate) const INVALID_LOG: Status = refused(1, 0x09);
    pub(crate) const NOT_SAVEABLE: Status = refused(1, 0x0d);
    pub(crate) const NOT_CHANGEABLE: Status = refused(1, 0x0e);
    pub(crate) const CONNECT_FORMAT: Status = refused(1, 0x80);
    pub(crate) const CONNECT_BUSY: Status = status(1, 0x81);
    pub(crate) const CONNECT_FIELD: Status = refused(1, 0x82);
    pub(crate) const CONNECT_HOST: Status = refused(1, 0x84);
    pub(crate) const AUTH_REQUIRED: Status = refused(1, 0x91);
    pub(crate) const WRITE_FAULT: Status = refused(2, 0x80);
    pub(crate) const READ_ERROR: Status = refused(2, 0x81);
    pub(crate) const MISCOMPARE: Status = refused(2, 0x85);
    /// Another host has reserved the namespace.
    pub(crate) const RESERVATION_CONFLICT: Status = refused(0, 0x83);
    /// Another gateway serves this host.
    pub(crate) const INACCESSIBLE: Status = status(3, 0x02);

    /// Returns the status of a command whose request failed. `writes` says what it did.
    pub(crate) fn of(error: BlockError, writes: bool) -> Status {
        match error {
            BlockError::OutOfRange => Status::OUT_OF_RANGE,
            BlockError::Misaligned | BlockError::TooBig => Status::INVALID_FIELD,
            BlockError::ReadOnly => Status::WRITE_PROTECTED,
            BlockError::Reserved => Status::RESERVATION_CONFLICT,
            BlockError::NoSuchVolume => Status::NO_NAMESPACE,
            BlockError::Lost | BlockError::Media if writes => Status::WRITE_FAULT,
            BlockError::Lost | BlockError::Media => Status::READ_ERROR,
            // A forgotten write won't take effect later (rule R8), so the host may repeat it.
            BlockError::Busy | BlockError::Forgotten => Status::INTERRUPTED,
            BlockError::Full | BlockError::TimedOut => Status::NOT_READY,
            BlockError::Superseded | BlockError::Elsewhere => Status::INACCESSIBLE,
            BlockError::Miscompare(_) => Status::MISCOMPARE,
        }
    }

    /// Returns the same without a delay, for hosts that have not enabled that (base 5.21.1.22).
    pub(crate) fn without_delay(self) -> Status {
        Status(self.0 & !DELAY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_heals_is_repeated() {
        let errors = [
            BlockError::NoSuchVolume,
            BlockError::ReadOnly,
            BlockError::OutOfRange,
            BlockError::Misaligned,
            BlockError::TooBig,
            BlockError::Full,
            BlockError::Lost,
            BlockError::Media,
            BlockError::Busy,
            BlockError::Forgotten,
            BlockError::Superseded,
            BlockError::Elsewhere,
            BlockError::TimedOut,
            BlockError::Reserved,
        ];
        let codes = |writes| errors.map(|error| Status::of(error, writes).0);
        let reads = [
            0x400b, 0x4020, 0x4080, 0x4002, 0x4002, 0x1882, 0x4281, 0x4281, 0x0821, 0x0821, 0x0302,
            0x0302, 0x1882, 0x4083,
        ];
        assert_eq!(codes(false), reads);
        let mut writes = reads;
        (writes[6], writes[7]) = (0x4280, 0x4280);
        assert_eq!(codes(true), writes);
        assert_eq!(Status(0x1882).without_delay(), Status(0x0082));
    }
}
