//! The PDUs of a target.
//!
//! Invariants: a PDU is built in place, without memory of its own. The session adds StatSN,
//! ExpCmdSN and MaxCmdSN when it sends the PDU ([`Reply::numbers`]). [`Reply::counts`] says whether
//! the PDU consumes a StatSN.

use super::pdu::Common;
use super::proto::*;
use super::tasks::Task;
use crate::scsi::{Residual, Status};

/// The basic header segment of a PDU of the target.
#[derive(Clone, Copy)]
pub(crate) struct Reply {
    bytes: [u8; BHS],
    /// True if it consumes a StatSN.
    pub(crate) counts: bool,
    /// True if the field of that number is not used.
    unnumbered: bool,
}

/// The fields of a login response, without its text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LoginAnswer {
    /// The next stage begins.
    pub(crate) transit: bool,
    /// The text goes on in the next answer.
    pub(crate) more: bool,
    /// The present stage, and the one after it.
    pub(crate) stages: (u8, u8),
    /// The initiator's part of the session's id.
    pub(crate) isid: [u8; 6],
    /// The target's part.
    pub(crate) tsih: u16,
    /// Class and detail of the status; 0 is success.
    pub(crate) status: u16,
}

impl Reply {
    #[inline]
    fn new(opcode: u8, flags: u8, itt: u32) -> Reply {
        let mut reply = Reply { bytes: [0; BHS], counts: true, unnumbered: false };
        (reply.bytes[0], reply.bytes[1]) = (opcode, flags);
        reply.u32(16, itt)
    }

    #[inline]
    fn put(mut self, at: usize, bytes: &[u8]) -> Reply {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    fn u8(self, at: usize, value: u8) -> Reply {
        self.put(at, &[value])
    }

    fn u16(self, at: usize, value: u16) -> Reply {
        self.put(at, &value.to_be_bytes())
    }

    fn u32(self, at: usize, value: u32) -> Reply {
        self.put(at, &value.to_be_bytes())
    }

    /// Sets the flags and the field of a residual.
    fn residual(mut self, residual: Residual) -> Reply {
        let (flag, count) = match residual {
            Residual::None => return self,
            Residual::Over(count) => (OVERFLOW, count),
            Residual::Under(count) => (UNDERFLOW, count),
        };
        self.bytes[1] |= flag;
        self.u32(44, count)
    }

    /// Returns the bytes, with the length of the data and the numbers of the session: of this or
    /// the next status, of the next command, and of the last one that may be sent.
    #[inline]
    pub(crate) fn numbers(mut self, data: usize, stat: u32, next: u32, max: u32) -> [u8; BHS] {
        let [_, length @ ..] = (data as u32).to_be_bytes();
        self.bytes[5..8].copy_from_slice(&length);
        if !self.unnumbered {
            self.bytes[24..28].copy_from_slice(&stat.to_be_bytes());
        }
        self.bytes[28..32].copy_from_slice(&next.to_be_bytes());
        self.bytes[32..36].copy_from_slice(&max.to_be_bytes());
        self.bytes
    }

    /// A SCSI response. Its data is the sense data. `r2ts` were sent for the command.
    pub(crate) fn scsi(itt: u32, status: Status, residual: Residual, r2ts: u32) -> Reply {
        let reply = Reply::new(SCSI_RESPONSE, FINAL, itt).u8(3, status as u8).u32(36, r2ts);
        reply.residual(residual)
    }

    /// A part of the data of a read. With `ends`, the last one of a sequence.
    pub(crate) fn data_in(itt: u32, data_sn: u32, offset: u32, ends: bool) -> Reply {
        let flags = if ends { FINAL } else { 0 };
        let reply = Reply::new(DATA_IN, flags, itt).u32(20, NO_TAG);
        Reply { counts: false, unnumbered: true, ..reply.u32(36, data_sn).u32(40, offset) }
    }

    /// The last part of the data of a read, which carries the status.
    pub(crate) fn data_in_status(
        itt: u32,
        data_sn: u32,
        offset: u32,
        status: Status,
        residual: Residual,
    ) -> Reply {
        let reply = Reply::data_in(itt, data_sn, offset, true);
        let mut reply = Reply { counts: true, unnumbered: false, ..reply };
        reply.bytes[1] |= STATUS;
        reply.u8(3, status as u8).residual(residual)
    }

    /// Asks for `len` bytes of data of a command.
    pub(crate) fn r2t(of: &Task, ttt: u32, len: u32) -> Reply {
        let Common { itt, lun, .. } = of.common;
        let reply = Reply::new(R2T, FINAL, itt).put(8, &lun.to_be_bytes());
        let reply = reply.u32(20, ttt).u32(36, of.r2t_sn);
        Reply { counts: false, ..reply.u32(40, of.received).u32(44, len) }
    }

    /// The answer to a request of task management.
    pub(crate) fn management(itt: u32, response: u8) -> Reply {
        Reply::new(TASK_RESPONSE, FINAL, itt).u8(2, response)
    }

    /// The answer to a NOP-Out, with the same data.
    pub(crate) fn nop(of: &Common) -> Reply {
        Reply::new(NOP_IN, FINAL, of.itt).put(8, &of.lun.to_be_bytes()).u32(20, NO_TAG)
    }

    /// A NOP-In that pings the initiator.
    pub(crate) fn ping(ttt: u32) -> Reply {
        Reply { counts: false, ..Reply::new(NOP_IN, FINAL, NO_TAG).u32(20, ttt) }
    }

    /// The answer to a login request. Its data is text.
    pub(crate) fn login(itt: u32, answer: &LoginAnswer) -> Reply {
        let (stage, next) = answer.stages;
        let mut flags = stage << 2;
        if answer.transit {
            flags |= FINAL | next;
        }
        if answer.more {
            flags |= CONTINUE;
        }
        let reply = Reply::new(LOGIN_RESPONSE, flags, itt).put(8, &answer.isid);
        reply.u16(14, answer.tsih).u16(36, answer.status)
    }

    /// The answer to a request in text. `ttt` continues it.
    pub(crate) fn text(itt: u32, ttt: Option<u32>) -> Reply {
        let flags = if ttt.is_some() { 0 } else { FINAL };
        Reply::new(TEXT_RESPONSE, flags, itt).u32(20, ttt.unwrap_or(NO_TAG))
    }

    /// The answer to a logout. Nothing waits or is retained: a session ends with its connection.
    pub(crate) fn logout(itt: u32, response: u8) -> Reply {
        Reply::new(LOGOUT_RESPONSE, FINAL, itt).u8(2, response)
    }

    /// Rejects a PDU. The data is the head of that PDU.
    pub(crate) fn reject(reason: u8) -> Reply {
        Reply::new(REJECT, FINAL, NO_TAG).u8(2, reason)
    }

    /// Asks the initiator to log out within `seconds`.
    pub(crate) fn ask_logout(seconds: u16) -> Reply {
        Reply::new(ASYNC_MESSAGE, FINAL, NO_TAG).u8(36, ASYNC_LOGOUT).u16(42, seconds)
    }
}
