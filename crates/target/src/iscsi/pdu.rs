//! The PDUs of an initiator, decoded and checked as far as a PDU can be checked alone.
//!
//! Invariants: no two fields of a decoded PDU contradict each other. The session checks whatever
//! depends on its state. The PDUs of the target are in `reply`.

use super::proto::*;
use crate::scsi::Attribute;

/// The fields that all PDUs of an initiator have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Common {
    /// The request is immediate: the command window does not count it.
    pub(crate) immediate: bool,
    /// The last PDU of a sequence.
    pub(crate) last: bool,
    /// The logical unit number.
    pub(crate) lun: u64,
    /// The initiator task tag.
    pub(crate) itt: u32,
    /// The number of the command. Not in Data-Out and SNACK.
    pub(crate) cmd_sn: u32,
}

/// A SCSI command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Command<'a> {
    /// The initiator says that it has room for data (R).
    pub(crate) reads: bool,
    /// The initiator says that it has data for the target (W).
    pub(crate) writes: bool,
    /// The order of the command among others.
    pub(crate) attribute: Attribute,
    /// Bytes to transfer, as the initiator expects.
    pub(crate) expected: u32,
    /// The command itself.
    pub(crate) cdb: &'a [u8; 16],
}

/// A task management request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Management {
    /// The function.
    pub(crate) function: u8,
    /// The tag of the task that it is about.
    pub(crate) task: u32,
    /// The number of that task's command.
    pub(crate) task_sn: u32,
}

/// A request of the login phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Login {
    /// The initiator wants to go to `next`.
    pub(crate) transit: bool,
    /// The text goes on in the next request.
    pub(crate) more: bool,
    /// The present stage.
    pub(crate) stage: u8,
    /// The stage after it.
    pub(crate) next: u8,
    /// The lowest version that the initiator speaks.
    pub(crate) version_min: u8,
    /// The initiator's part of the session's id.
    pub(crate) isid: [u8; 6],
    /// The target's part; 0 for a new session.
    pub(crate) tsih: u16,
    /// The connection.
    pub(crate) cid: u16,
}

/// Data of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DataOut {
    /// The tag of the R2T that asked for it.
    pub(crate) ttt: u32,
    /// The number of the PDU in the sequence.
    pub(crate) data_sn: u32,
    /// Where the data belongs in that of the command.
    pub(crate) offset: u32,
}

/// The body of a decoded PDU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Body<'a> {
    /// A NOP-Out: a ping, or the answer to one.
    NopOut {
        /// The tag of the NOP-In that it answers.
        ttt: u32,
    },
    /// A SCSI command.
    Command(Command<'a>),
    /// A task management request.
    Management(Management),
    /// A request of the login phase.
    Login(Login),
    /// A text request.
    Text {
        /// The text goes on in the next request.
        more: bool,
        /// The tag of the answer that it continues.
        ttt: u32,
    },
    /// Data of a write.
    DataOut(DataOut),
    /// The end of a connection or of the session.
    Logout {
        /// The reason code.
        reason: u8,
        /// The connection.
        cid: u16,
    },
    /// A SNACK: a request to send something again.
    Snack,
    /// An opcode that no initiator has, or one that is not supported.
    Unknown,
}

/// A decoded PDU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pdu<'a> {
    /// The common fields of all PDUs.
    pub(crate) common: Common,
    /// The rest.
    pub(crate) body: Body<'a>,
}

/// The PDU contradicts itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Malformed;

impl Pdu<'_> {
    /// Decodes the head of a PDU with `data` bytes of data. Additional header segments are ignored:
    /// only commands have them, and no supported command has a long CDB or moves data both ways.
    #[inline]
    pub(crate) fn decode(head: &[u8; BHS], data: usize) -> Result<Pdu<'_>, Malformed> {
        if be24(head, 5) as usize != data {
            return Err(Malformed);
        }
        let opcode = head[0] & OPCODE;
        if head[4] > 0 && opcode != SCSI_COMMAND {
            return Err(Malformed);
        }
        let common = Common {
            immediate: head[0] & IMMEDIATE != 0,
            last: head[1] & FINAL != 0,
            lun: be64(head, 8),
            itt: be32(head, 16),
            cmd_sn: be32(head, 24),
        };
        let body = match opcode {
            SCSI_COMMAND => command(head, data, &common)?,
            DATA_OUT => Body::DataOut(DataOut {
                ttt: be32(head, 20),
                data_sn: be32(head, 36),
                offset: be32(head, 40),
            }),
            NOP_OUT => nop_out(head, &common)?,
            TASK_REQUEST if data > 0 || !common.last => return Err(Malformed),
            TASK_REQUEST => Body::Management(Management {
                function: head[1] & !FINAL,
                task: be32(head, 20),
                task_sn: be32(head, 32),
            }),
            LOGIN_REQUEST => login(head)?,
            TEXT_REQUEST => {
                let more = head[1] & CONTINUE != 0;
                if more && common.last {
                    return Err(Malformed);
                }
                Body::Text { more, ttt: be32(head, 20) }
            }
            LOGOUT_REQUEST if data > 0 || !common.last => return Err(Malformed),
            LOGOUT_REQUEST => Body::Logout { reason: head[1] & !FINAL, cid: be16(head, 20) },
            SNACK => Body::Snack,
            _ => Body::Unknown,
        };
        if common.itt == NO_TAG && !matches!(body, Body::NopOut { .. } | Body::Unknown) {
            return Err(Malformed);
        }
        Ok(Pdu { common, body })
    }
}

#[inline]
fn command<'a>(head: &'a [u8; BHS], data: usize, common: &Common) -> Result<Body<'a>, Malformed> {
    let writes = head[1] & WRITE != 0;
    let expected = be32(head, 20);
    // 11.3.1: a non-final command PDU has W. Immediate data needs W, and fits the expected length.
    let surplus = data > 0 && (!writes || data as u64 > u64::from(expected));
    if surplus || (!common.last && !writes) {
        return Err(Malformed);
    }
    let attribute = match head[1] & ATTRIBUTE {
        0 | 1 => Attribute::Simple,
        2 => Attribute::Ordered,
        3 => Attribute::HeadOfQueue,
        4 => Attribute::Aca,
        _ => return Err(Malformed),
    };
    let cdb = head.last_chunk().expect("a head is longer than a CDB");
    Ok(Body::Command(Command { reads: head[1] & READ != 0, writes, attribute, expected, cdb }))
}

fn nop_out<'a>(head: &[u8; BHS], common: &Common) -> Result<Body<'a>, Malformed> {
    let ttt = be32(head, 20);
    // 11.18: a NOP-Out without a task tag asks for no answer, and is immediate.
    if !common.last || (common.itt == NO_TAG && !common.immediate) {
        return Err(Malformed);
    }
    Ok(Body::NopOut { ttt })
}

fn login<'a>(head: &[u8; BHS]) -> Result<Body<'a>, Malformed> {
    let login = Login {
        transit: head[1] & FINAL != 0,
        more: head[1] & CONTINUE != 0,
        stage: head[1] >> 2 & 3,
        next: head[1] & 3,
        version_min: head[3],
        isid: core::array::from_fn(|i| head[8 + i]),
        tsih: be16(head, 14),
        cid: be16(head, 20),
    };
    let onward = !login.transit
        || matches!(
            (login.stage, login.next),
            (STAGE_SECURITY, STAGE_OPERATIONAL | STAGE_FULL) | (STAGE_OPERATIONAL, STAGE_FULL)
        );
    let known = matches!(login.stage, STAGE_SECURITY | STAGE_OPERATIONAL);
    // 11.12.2: a request whose text goes on can't leave the stage.
    if !known || !onward || (login.transit && login.more) {
        return Err(Malformed);
    }
    Ok(Body::Login(login))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(opcode: u8, flags: u8, data: u8) -> [u8; BHS] {
        let mut head = [0; BHS];
        (head[0], head[1], head[7]) = (opcode, flags, data);
        head
    }

    #[test]
    fn contradictions_are_malformed() {
        let decode = |opcode, flags, data: u8| {
            Pdu::decode(&head(opcode, flags, data), data as usize).map(|_| ())
        };
        assert_eq!(decode(SCSI_COMMAND, FINAL | READ, 0), Ok(()));
        for (opcode, flags, data) in [
            (SCSI_COMMAND, FINAL, 4),            // data without the flag
            (SCSI_COMMAND, FINAL | WRITE, 4),    // more data than expected
            (SCSI_COMMAND, READ, 0),             // data to come without the flag
            (SCSI_COMMAND, FINAL | READ | 5, 0), // no such attribute
            (TASK_REQUEST, FINAL | 1, 1),
            (TASK_REQUEST, 1, 0),
            (LOGOUT_REQUEST, 0, 0),
            (TEXT_REQUEST, FINAL | CONTINUE, 0),
            (LOGIN_REQUEST, FINAL | CONTINUE | 1, 0),
            (LOGIN_REQUEST, FINAL, 0),  // from a stage to itself
            (LOGIN_REQUEST, 2 << 2, 0), // no such stage
            (NOP_OUT, 0, 0),
        ] {
            assert_eq!(decode(opcode, flags, data), Err(Malformed), "{opcode:x} {flags:x} {data}");
        }
        assert_eq!(Pdu::decode(&head(NOP_OUT, FINAL, 1), 0), Err(Malformed), "another length");
    }

    #[test]
    fn fields_lie_where_the_rfc_has_them() {
        let mut bytes: [u8; BHS] = core::array::from_fn(|i| i as u8);
        (bytes[0], bytes[1]) = (SCSI_COMMAND | IMMEDIATE, FINAL | WRITE | READ | 2);
        bytes[4..8].copy_from_slice(&[0, 0, 0, 8]);
        let pdu = Pdu::decode(&bytes, 8).unwrap();
        let common = Common {
            immediate: true,
            last: true,
            lun: 0x0809_0a0b_0c0d_0e0f,
            itt: 0x1011_1213,
            cmd_sn: 0x1819_1a1b,
        };
        assert_eq!(pdu.common, common);
        let Body::Command(command) = pdu.body else { panic!("{pdu:?}") };
        assert_eq!((command.reads, command.writes, command.expected), (true, true, 0x1415_1617));
        assert_eq!(command.attribute, Attribute::Ordered);
        assert_eq!(command.cdb, &core::array::from_fn(|i| 32 + i as u8));
        (bytes[0], bytes[1]) = (LOGIN_REQUEST, FINAL | 3);
        let login = Login {
            transit: true,
            more: false,
            stage: 0,
            next: 3,
            version_min: 3,
            isid: [8, 9, 10, 11, 12, 13],
            tsih: 0x0e0f,
            cid: 0x1415,
        };
        assert_eq!(Pdu::decode(&bytes, 8).unwrap().body, Body::Login(login));
    }
}
