//! What the status of an NVMe command means to a host.

use super::pdu::le16;
use crate::hosts::Told;

/// "Do not retry".
const DNR: u16 = 1 << 14;
/// The type and the code of a status.
const CODE: u16 = 0x7ff;
/// The other one of two fused commands has failed.
const FAILED_FUSED: u16 = 0x009;

/// The status of a command, without the phase tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Status(pub(super) u16);

impl Status {
    /// Reads the status of an answer.
    pub(super) fn of(head: &[u8]) -> Status {
        Status(le16(head, 22) >> 1)
    }

    /// Returns true if the command is done.
    pub(super) fn is_success(self) -> bool {
        self.0 == 0
    }

    /// Returns how a command ended, and the data that it has read. Linux repeats a command without
    /// "do not retry", over another path if the status is about the path.
    pub(super) fn told(self, data: Vec<u8>) -> Told {
        match (self.0 & CODE, self.0 & DNR != 0) {
            (0x000, _) => Told::Done(data),
            // The namespace is not ready, or the command was interrupted. Parts of the command may
            // be done.
            (0x082 | 0x021, false) => Told::Later,
            (0x302, false) => Told::Elsewhere,
            (0x083, true) => Told::Conflict,
            (0x00b, true) => Told::NoVolume,
            (0x080, true) => Told::OutOfRange,
            (0x280 | 0x281, true) => Told::Unreadable,
            (0x285, true) => Told::Differs(None),
            _ => Told::Strange(format!("status {:#x}", self.0)),
        }
    }

    /// Returns how two fused commands ended: both are done, or none of them is.
    pub(super) fn of_both(both: [Status; 2]) -> Told {
        let failed = both.iter().filter(|of| of.0 & CODE != FAILED_FUSED);
        match both.iter().filter(|of| of.is_success()).count() {
            1 => Told::Strange(format!("{both:x?} to two fused commands")),
            _ => failed.map(|of| of.told(Vec::new())).next().unwrap_or_else(|| {
                Told::Strange("two fused commands that have failed because of each other".into())
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_heals_is_repeated_and_no_temporary_failure_is_final() {
        for status in [0x082, 0x1882, 0x021, 0x821, 0x302] {
            let told = if status == 0x302 { Told::Elsewhere } else { Told::Later };
            assert_eq!(Status(status).told(Vec::new()), told);
            let never = Status(status | DNR).told(Vec::new());
            assert!(matches!(never, Told::Strange(_)), "{status:#x}: {never:?}");
        }
        assert_eq!(Status(0).told(vec![7]), Told::Done(vec![7]));
    }

    #[test]
    fn fused_commands_are_done_together() {
        let told = |both: [u16; 2]| Status::of_both(both.map(Status));
        assert_eq!(told([0, 0]), Told::Done(Vec::new()));
        assert_eq!(told([0x4285, 0x009]), Told::Differs(None));
        assert_eq!(told([0x009, 0x021]), Told::Later);
        for both in [[0, 0x009], [0x021, 0], [0x009, 0x009]] {
            assert!(matches!(told(both), Told::Strange(_)), "{both:x?}");
        }
    }
}
