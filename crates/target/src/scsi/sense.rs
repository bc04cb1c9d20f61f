//! Sense data (SPC-4 4.5): the reason why a command failed.
//!
//! Invariant: a field that is not valid is zero.

/// Where in a CDB or in a parameter list the wrong field is (SPC-4 4.5.2.4.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// True for the CDB, false for the parameter list.
    pub in_cdb: bool,
    /// The byte.
    pub byte: u16,
    /// The highest bit of the field; `None` for the whole byte.
    pub bit: Option<u8>,
}

/// Sense data of one failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sense {
    /// The sense key.
    pub key: u8,
    /// The additional sense code.
    pub asc: u8,
    /// The additional sense code qualifier.
    pub ascq: u8,
    /// The INFORMATION field; `None` if it is not valid.
    pub information: Option<u64>,
    /// The field that is wrong.
    pub field: Option<Field>,
}

impl Sense {
    /// Nothing to report.
    pub const NONE: Sense = Sense::new(0, 0x00, 0x00);
    /// NOT READY, in process of becoming ready: no primary, or a change of reservations that is not
    /// confirmed. Hosts repeat the command.
    pub const NO_PRIMARY: Sense = Sense::new(2, 0x04, 0x01);
    /// NOT READY, target port in standby state.
    pub const STANDBY: Sense = Sense::new(2, 0x04, 0x0b);
    /// NOT READY, space allocation in progress: the pool is full. Hosts repeat the command.
    pub const NO_SPACE_YET: Sense = Sense::new(2, 0x04, 0x14);
    /// MEDIUM ERROR, unrecovered read error.
    pub const READ_ERROR: Sense = Sense::new(3, 0x11, 0x00);
    /// MEDIUM ERROR, write error.
    pub const WRITE_ERROR: Sense = Sense::new(3, 0x0c, 0x00);
    /// MEDIUM ERROR, write error, auto reallocation failed: every copy is lost (rule R10).
    pub const WRITE_LOST: Sense = Sense::new(3, 0x0c, 0x02);
    /// ILLEGAL REQUEST, invalid field in command information unit: the length that the host
    /// announced does not go with the command.
    pub const WRONG_LENGTH: Sense = Sense::new(5, 0x0e, 0x03);
    /// ILLEGAL REQUEST, parameter list length error.
    pub const LIST_LENGTH: Sense = Sense::new(5, 0x1a, 0x00);
    /// ILLEGAL REQUEST, invalid command operation code.
    pub const OPCODE: Sense = Sense::new(5, 0x20, 0x00);
    /// ILLEGAL REQUEST, logical block address out of range.
    pub const OUT_OF_RANGE: Sense = Sense::new(5, 0x21, 0x00);
    /// ILLEGAL REQUEST, invalid field in CDB.
    pub const IN_CDB: Sense = Sense::new(5, 0x24, 0x00);
    /// ILLEGAL REQUEST, logical unit not supported.
    pub const NO_UNIT: Sense = Sense::new(5, 0x25, 0x00);
    /// ILLEGAL REQUEST, invalid field in parameter list.
    pub const IN_LIST: Sense = Sense::new(5, 0x26, 0x00);
    /// ILLEGAL REQUEST, invalid release of persistent reservation.
    pub const INVALID_RELEASE: Sense = Sense::new(5, 0x26, 0x04);
    /// ILLEGAL REQUEST, saving parameters not supported.
    pub const NO_SAVING: Sense = Sense::new(5, 0x39, 0x00);
    /// ILLEGAL REQUEST, insufficient registration resources.
    pub const REGISTRATIONS_FULL: Sense = Sense::new(5, 0x55, 0x04);
    /// DATA PROTECT, write protected.
    pub const WRITE_PROTECTED: Sense = Sense::new(7, 0x27, 0x00);
    /// ABORTED COMMAND, protocol service CRC error: data of the command did not arrive, or not in
    /// order (RFC 7143 11.4.7.2). Hosts repeat the command.
    pub const DATA_LOST: Sense = Sense::new(0xb, 0x47, 0x05);
    /// ABORTED COMMAND, invalid message error: a task attribute that this device does not know.
    pub const ATTRIBUTE: Sense = Sense::new(0xb, 0x49, 0x00);
    /// MISCOMPARE, miscompare during verify operation.
    pub const MISCOMPARE: Sense = Sense::new(0xe, 0x1d, 0x00);

    /// Creates sense data from key, additional sense code and qualifier.
    pub const fn new(key: u8, asc: u8, ascq: u8) -> Sense {
        Sense { key, asc, ascq, information: None, field: None }
    }

    /// Returns the same with the INFORMATION field.
    pub const fn about(self, information: u64) -> Sense {
        Sense { information: Some(information), ..self }
    }

    /// Returns "invalid field in CDB", pointing to a bit of a byte.
    pub const fn cdb(byte: u16, bit: u8) -> Sense {
        Sense { field: Some(Field { in_cdb: true, byte, bit: Some(bit) }), ..Sense::IN_CDB }
    }

    /// Returns "invalid field in parameter list", pointing to a byte.
    pub const fn list(byte: u16) -> Sense {
        Sense { field: Some(Field { in_cdb: false, byte, bit: None }), ..Sense::IN_LIST }
    }

    /// Returns the fixed format (SPC-4 4.5.3), which answers use: D_SENSE is 0. An INFORMATION of
    /// more than 32 bits is not valid there.
    pub fn fixed(&self) -> [u8; Sense::FIXED] {
        let mut bytes = [0; Sense::FIXED];
        bytes[0] = 0x70;
        bytes[2] = self.key;
        if let Some(information) = self.information.and_then(|i| u32::try_from(i).ok()) {
            bytes[0] |= 0x80;
            bytes[3..7].copy_from_slice(&information.to_be_bytes());
        }
        bytes[7] = (Sense::FIXED - 8) as u8;
        bytes[12] = self.asc;
        bytes[13] = self.ascq;
        bytes[15..18].copy_from_slice(&self.pointer());
        bytes
    }

    /// Bytes of the fixed format.
    pub const FIXED: usize = 18;

    /// Returns the descriptor format (SPC-4 4.5.2), for hosts that ask for it in REQUEST SENSE,
    /// and how many of the bytes it has.
    pub fn descriptor(&self) -> ([u8; Sense::DESCRIPTOR], usize) {
        let (mut bytes, mut len) = ([0; Sense::DESCRIPTOR], 8);
        bytes[..4].copy_from_slice(&[0x72, self.key, self.asc, self.ascq]);
        if let Some(information) = self.information {
            bytes[len..len + 3].copy_from_slice(&[0x00, 0x0a, 0x80]);
            bytes[len + 4..len + 12].copy_from_slice(&information.to_be_bytes());
            len += 12;
        }
        if self.field.is_some() {
            bytes[len..len + 2].copy_from_slice(&[0x02, 0x06]);
            bytes[len + 4..len + 7].copy_from_slice(&self.pointer());
            len += 8;
        }
        bytes[7] = (len - 8) as u8;
        (bytes, len)
    }

    /// Most bytes of the descriptor format.
    pub const DESCRIPTOR: usize = 28;

    /// Returns the field pointer, or zeros.
    fn pointer(&self) -> [u8; 3] {
        let Some(field) = self.field else { return [0; 3] };
        let bit = field.bit.map_or(0, |bit| 0x08 | bit & 7);
        let [high, low] = field.byte.to_be_bytes();
        [0x80 | u8::from(field.in_cdb) << 6 | bit, high, low]
    }
}
