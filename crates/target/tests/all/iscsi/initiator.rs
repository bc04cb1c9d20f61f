//! The initiator's side of the protocol, written from the RFC and not from the target: PDUs to
//! send, and PDUs that came.

use base::crc::crc32c;

/// A PDU to send.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub bhs: [u8; 48],
    pub ahs: Vec<u8>,
    pub data: Vec<u8>,
}

impl Request {
    /// Creates a PDU with this opcode (and the bit of immediate ones) and these flags.
    pub(crate) fn new(opcode: u8, flags: u8, itt: u32) -> Request {
        let mut bhs = [0; 48];
        (bhs[0], bhs[1]) = (opcode, flags);
        Request { bhs, ahs: Vec::new(), data: Vec::new() }.u32(16, itt)
    }

    pub(crate) fn put(mut self, at: usize, bytes: &[u8]) -> Request {
        self.bhs[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    pub(crate) fn u32(self, at: usize, value: u32) -> Request {
        self.put(at, &value.to_be_bytes())
    }

    pub(crate) fn u16(self, at: usize, value: u16) -> Request {
        self.put(at, &value.to_be_bytes())
    }

    pub(crate) fn data(self, data: &[u8]) -> Request {
        Request { data: data.to_vec(), ..self }
    }

    /// A SCSI command.
    pub(crate) fn command(itt: u32, flags: u8, expected: u32, cdb: &[u8]) -> Request {
        Request::new(0x01, flags, itt).u32(20, expected).put(32, cdb)
    }

    /// Data of a write.
    pub(crate) fn data_out(
        itt: u32,
        ttt: u32,
        data_sn: u32,
        offset: u32,
        last: bool,
        data: &[u8],
    ) -> Request {
        let request = Request::new(0x05, if last { 0x80 } else { 0 }, itt).u32(20, ttt);
        request.u32(36, data_sn).u32(40, offset).data(data)
    }

    /// A request of task management.
    pub(crate) fn management(itt: u32, function: u8, task: u32, task_sn: u32) -> Request {
        Request::new(0x42, 0x80 | function, itt).u32(20, task).u32(32, task_sn)
    }

    /// A login request: flags, and pairs of text.
    pub(crate) fn login(flags: u8, pairs: &[(&str, &str)]) -> Request {
        let request = Request::new(0x43, flags, 0x55).put(8, &[0x40, 1, 2, 3, 4, 5]);
        request.data(&text(pairs))
    }

    /// A request in text.
    pub(crate) fn text(itt: u32, ttt: u32, pairs: &[(&str, &str)]) -> Request {
        Request::new(0x44, 0x80, itt).u32(20, ttt).data(&text(pairs))
    }

    /// Returns the bytes on the wire.
    pub(crate) fn bytes(&self, (header, data): (bool, bool)) -> Vec<u8> {
        let mut bhs = self.bhs;
        assert!(self.ahs.len().is_multiple_of(4));
        bhs[4] = (self.ahs.len() / 4) as u8;
        bhs[5..8].copy_from_slice(&(self.data.len() as u32).to_be_bytes()[1..]);
        let mut bytes = [&bhs[..], &self.ahs].concat();
        if header {
            bytes.extend(crc32c(&bytes).to_le_bytes());
        }
        let mut segment = self.data.clone();
        segment.resize(segment.len().next_multiple_of(4), 0);
        let sum = crc32c(&segment).to_le_bytes();
        let digest: &[u8] = if data && !segment.is_empty() { &sum } else { &[] };
        bytes.extend(&segment);
        bytes.extend(digest);
        bytes
    }
}

/// Returns pairs as text.
pub(crate) fn text(pairs: &[(&str, &str)]) -> Vec<u8> {
    pairs.iter().flat_map(|(key, value)| format!("{key}={value}\0").into_bytes()).collect()
}

/// A PDU that came.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Pdu {
    pub bhs: [u8; 48],
    pub data: Vec<u8>,
}

impl std::fmt::Debug for Pdu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Pdu { bhs, data } = self;
        write!(f, "Pdu({:#x}, flags {:#x}, tag {:#x}", bhs[0], bhs[1], self.u32(16))?;
        write!(f, ", {} bytes)", data.len())
    }
}

impl Pdu {
    /// Splits the first PDU off a target's stream, and checks its digests.
    pub(crate) fn take(stream: &mut Vec<u8>, (header, data): (bool, bool)) -> Option<Pdu> {
        if stream.len() < 48 {
            assert!(stream.is_empty(), "the target sends whole PDUs");
            return None;
        }
        let bhs: [u8; 48] = stream[..48].try_into().unwrap();
        assert_eq!(bhs[4], 0, "no additional header segments");
        let len = u32::from_be_bytes([0, bhs[5], bhs[6], bhs[7]]) as usize;
        let padded = len.next_multiple_of(4);
        let mut at = 48;
        if header {
            assert_eq!(stream[at..at + 4], crc32c(&bhs).to_le_bytes(), "the header digest");
            at += 4;
        }
        let segment = stream[at..at + padded].to_vec();
        assert!(segment[len..].iter().all(|byte| *byte == 0), "padding is zeros");
        at += padded;
        if data && len > 0 {
            assert_eq!(stream[at..at + 4], crc32c(&segment).to_le_bytes(), "the data digest");
            at += 4;
        }
        stream.drain(..at);
        Some(Pdu { bhs, data: segment[..len].to_vec() })
    }

    pub(crate) fn u32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.bhs[at..at + 4].try_into().unwrap())
    }

    pub(crate) fn opcode(&self) -> u8 {
        self.bhs[0]
    }

    pub(crate) fn itt(&self) -> u32 {
        self.u32(16)
    }

    /// Returns the pairs of a text.
    pub(crate) fn pairs(&self) -> Vec<(String, String)> {
        pairs(&self.data)
    }

    /// Returns the value of a key in a text.
    pub(crate) fn value(&self, key: &str) -> Option<String> {
        self.pairs().into_iter().find(|pair| pair.0 == key).map(|pair| pair.1)
    }

    /// Returns class and detail of a login answer.
    pub(crate) fn login_status(&self) -> u16 {
        assert_eq!(self.opcode(), 0x23, "a login answer, not {self:?}");
        u16::from_be_bytes([self.bhs[36], self.bhs[37]])
    }

    /// Returns the status of a SCSI response, and key, code and qualifier of its sense data.
    pub(crate) fn status(&self) -> (u8, Option<(u8, u8, u8)>) {
        assert!(matches!(self.opcode(), 0x21 | 0x25), "an answer to a command, not {self:?}");
        let sense = self.opcode() == 0x21 && !self.data.is_empty();
        let sense = sense.then(|| {
            let sense = &self.data[2..];
            assert_eq!(u16::from_be_bytes([self.data[0], self.data[1]]) as usize, sense.len());
            (sense[2] & 15, sense[12], sense[13])
        });
        (self.bhs[3], sense)
    }

    /// Returns the residual: positive if there was more to transfer than announced.
    pub(crate) fn residual(&self) -> i64 {
        let count = i64::from(self.u32(44));
        match self.bhs[1] & 6 {
            0 => 0,
            4 => count,
            2 => -count,
            _ => panic!("overflow and underflow at once"),
        }
    }
}

/// Returns the pairs of a text.
pub(crate) fn pairs(text: &[u8]) -> Vec<(String, String)> {
    let pairs = text.split(|byte| *byte == 0).filter(|pair| !pair.is_empty());
    let split = |pair: &[u8]| {
        let (key, value) = std::str::from_utf8(pair).unwrap().split_once('=').unwrap();
        (key.to_string(), value.to_string())
    };
    pairs.map(split).collect()
}

/// READ(10).
pub(crate) fn read10(lba: u32, blocks: u16) -> [u8; 16] {
    transfer10(0x28, lba, blocks)
}

/// WRITE(10).
pub(crate) fn write10(lba: u32, blocks: u16) -> [u8; 16] {
    transfer10(0x2a, lba, blocks)
}

/// A command of ten bytes with an address and a number of blocks.
pub(crate) fn transfer10(opcode: u8, lba: u32, blocks: u16) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = opcode;
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
    cdb
}
