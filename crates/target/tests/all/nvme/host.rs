//! The host's side of the protocol, written from the specification and not from the target: PDUs to
//! send, and PDUs that came.

use base::crc::crc32c;

/// Which digests a connection has: of heads, of data.
pub(crate) type Digests = (bool, bool);

/// A PDU to send, without its digests.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub header: Vec<u8>,
    pub data: Vec<u8>,
    /// The bit of the data digest is wrong.
    pub damaged: bool,
}

impl Request {
    pub(crate) fn new(kind: u8, flags: u8, len: usize) -> Request {
        let mut header = vec![0; len];
        (header[0], header[1], header[2]) = (kind, flags, len as u8);
        Request { header, data: Vec::new(), damaged: false }
    }

    pub(crate) fn put(mut self, at: usize, bytes: &[u8]) -> Request {
        self.header[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    pub(crate) fn data(self, data: &[u8]) -> Request {
        Request { data: data.to_vec(), ..self }
    }

    /// The request to set up a connection. `align` is HPDA.
    pub(crate) fn set_up(align: u8, digests: Digests) -> Request {
        let flags = u8::from(digests.0) | u8::from(digests.1) << 1;
        Request::new(0x00, 0, 128).put(10, &[align, flags])
    }

    /// Data of the command with this id, which an R2T with this tag has asked for.
    pub(crate) fn host_data(
        (cid, ttag): (u16, u16),
        offset: u32,
        last: bool,
        data: &[u8],
    ) -> Request {
        let request = Request::new(0x06, if last { 4 } else { 0 }, 24);
        let request = request
            .put(8, &cid.to_le_bytes())
            .put(10, &ttag.to_le_bytes())
            .put(12, &offset.to_le_bytes());
        request.put(16, &(data.len() as u32).to_le_bytes()).data(data)
    }

    /// Returns the bytes on the wire.
    pub(crate) fn bytes(&self, digests: Digests) -> Vec<u8> {
        let digests = if matches!(self.header[0], 0 | 2) { (false, false) } else { digests };
        let mut header = self.header.clone();
        let has_data = !self.data.is_empty();
        header[1] |= u8::from(digests.0) | u8::from(digests.1 && has_data) << 1;
        let pdo = header.len() + if digests.0 { 4 } else { 0 };
        if has_data {
            header[3] = pdo as u8;
        }
        let len = pdo + self.data.len() + if digests.1 && has_data { 4 } else { 0 };
        header[4..8].copy_from_slice(&(len as u32).to_le_bytes());
        let mut bytes = header.clone();
        if digests.0 {
            bytes.extend(crc32c(&header).to_le_bytes());
        }
        bytes.extend(&self.data);
        if digests.1 && has_data {
            bytes.extend((crc32c(&self.data) ^ u32::from(self.damaged)).to_le_bytes());
        }
        bytes
    }
}

/// A command.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    pub entry: [u8; 64],
    pub data: Vec<u8>,
    pub damaged: bool,
}

impl Command {
    /// Creates a command without data.
    pub(crate) fn new(opcode: u8, cid: u16) -> Command {
        let mut entry = [0; 64];
        (entry[0], entry[1]) = (opcode, 0x40);
        entry[2..4].copy_from_slice(&cid.to_le_bytes());
        entry[39] = 0x5a;
        Command { entry, data: Vec::new(), damaged: false }
    }

    pub(crate) fn put(mut self, at: usize, bytes: &[u8]) -> Command {
        self.entry[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    pub(crate) fn u32(self, at: usize, value: u32) -> Command {
        self.put(at, &value.to_le_bytes())
    }

    pub(crate) fn dword(self, number: usize, value: u32) -> Command {
        self.u32(number * 4, value)
    }

    pub(crate) fn nsid(self, nsid: u32) -> Command {
        self.u32(4, nsid)
    }

    /// The command has this much data somewhere at the host.
    pub(crate) fn at_host(self, len: usize) -> Command {
        self.u32(32, len as u32).put(39, &[0x5a])
    }

    /// The command has its data in the capsule.
    pub(crate) fn carries(self, data: &[u8]) -> Command {
        let command = self.u32(32, data.len() as u32).put(39, &[0x01]);
        Command { data: data.to_vec(), ..command }
    }

    pub(crate) fn request(&self) -> Request {
        let request = Request::new(0x04, 0, 72).put(8, &self.entry).data(&self.data);
        Request { damaged: self.damaged, ..request }
    }

    /// A fabrics command of this type.
    pub(crate) fn fabrics(kind: u8, cid: u16) -> Command {
        Command::new(0x7f, cid).put(4, &[kind])
    }

    /// Connect, without its data.
    pub(crate) fn connect(cid: u16, qid: u16, size: u16, keep_alive: u32) -> Command {
        let command = Command::fabrics(1, cid).put(42, &qid.to_le_bytes());
        command.put(44, &size.to_le_bytes()).u32(48, keep_alive)
    }

    pub(crate) fn property_get(cid: u16, offset: u32, size: u8) -> Command {
        Command::fabrics(4, cid).put(40, &[size]).u32(44, offset)
    }

    pub(crate) fn property_set(cid: u16, offset: u32, value: u32) -> Command {
        Command::fabrics(0, cid).u32(44, offset).u32(48, value)
    }

    pub(crate) fn identify(cid: u16, cns: u8, nsid: u32) -> Command {
        Command::new(0x06, cid).nsid(nsid).dword(10, cns.into()).at_host(4096)
    }

    /// Get Log Page: `len` bytes from `offset` on.
    pub(crate) fn log(cid: u16, page: u8, flags: u32, offset: u64, len: usize) -> Command {
        let dwords = len as u32 / 4 - 1;
        let command = Command::new(0x02, cid).dword(10, dwords << 16 | flags | u32::from(page));
        let command = command.dword(11, dwords >> 16).put(48, &offset.to_le_bytes());
        command.nsid(u32::MAX).at_host(len)
    }

    pub(crate) fn get_feature(cid: u16, feature: u8) -> Command {
        Command::new(0x0a, cid).dword(10, feature.into())
    }

    pub(crate) fn set_feature(cid: u16, feature: u8, value: u32) -> Command {
        Command::new(0x09, cid).dword(10, feature.into()).dword(11, value)
    }

    /// A command with a range of blocks, on namespace 7.
    pub(crate) fn blocks(opcode: u8, cid: u16, first: u64, blocks: u32) -> Command {
        let command = Command::new(opcode, cid).nsid(7).put(40, &first.to_le_bytes());
        command.dword(12, blocks - 1)
    }

    pub(crate) fn read(cid: u16, first: u64, blocks: u32) -> Command {
        Command::blocks(0x02, cid, first, blocks).at_host(blocks as usize * 512)
    }

    /// A write of data that the target has to ask for.
    pub(crate) fn write(cid: u16, first: u64, blocks: u32) -> Command {
        Command::blocks(0x01, cid, first, blocks).at_host(blocks as usize * 512)
    }

    /// Dataset Management with "deallocate" of these ranges: first block, and number of blocks.
    pub(crate) fn deallocate(cid: u16, ranges: &[(u64, u32)]) -> Command {
        let mut list = Vec::new();
        for (first, blocks) in ranges {
            list.extend([0; 4]);
            list.extend(blocks.to_le_bytes());
            list.extend(first.to_le_bytes());
        }
        let command = Command::new(0x09, cid).nsid(7).dword(10, ranges.len() as u32 - 1);
        command.dword(11, 4).carries(&list)
    }
}

/// The data of Connect.
pub(crate) fn connect_data(id: u8, cntlid: u16, subsystem: &str, host: &str) -> Vec<u8> {
    let mut data = vec![0; 1024];
    data[..16].fill(id);
    data[16..18].copy_from_slice(&cntlid.to_le_bytes());
    data[256..256 + subsystem.len()].copy_from_slice(subsystem.as_bytes());
    data[512..512 + host.len()].copy_from_slice(host.as_bytes());
    data
}

/// A PDU that came.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Pdu {
    pub header: Vec<u8>,
    pub data: Vec<u8>,
}

impl std::fmt::Debug for Pdu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pdu({:#x}, {:02x?}, {} bytes)", self.kind(), &self.header[8..], self.data.len())
    }
}

impl Pdu {
    /// Splits the first PDU off a target's stream, and checks its digests. Data begins at a
    /// multiple of `align`.
    pub(crate) fn take(stream: &mut Vec<u8>, digests: Digests, align: usize) -> Option<Pdu> {
        if stream.is_empty() {
            return None;
        }
        assert!(stream.len() >= 8, "the target sends whole PDUs");
        let (kind, flags, header) = (stream[0], stream[1], usize::from(stream[2]));
        let len = u32::from_le_bytes(stream[4..8].try_into().unwrap()) as usize;
        let pdu: Vec<u8> = stream.drain(..len).collect();
        let plain = matches!(kind, 0x01 | 0x03);
        let digests = if plain { (false, false) } else { digests };
        assert_eq!(flags & 1 != 0, digests.0);
        let mut behind = header;
        if digests.0 {
            assert_eq!(pdu[header..header + 4], crc32c(&pdu[..header]).to_le_bytes());
            behind += 4;
        }
        let mut data = Vec::new();
        match kind {
            0x07 => {
                assert_eq!(flags & 2 != 0, digests.1);
                let at = usize::from(pdu[3]);
                assert!(at >= behind && at.is_multiple_of(align));
                assert!(pdu[behind..at].iter().all(|byte| *byte == 0));
                let end = len - if digests.1 { 4 } else { 0 };
                data = pdu[at..end].to_vec();
                if digests.1 {
                    assert_eq!(pdu[end..], crc32c(&data).to_le_bytes());
                }
            }
            0x03 => data = pdu[behind..].to_vec(),
            _ => assert_eq!(len, behind, "no data"),
        }
        Some(Pdu { header: pdu[..header].to_vec(), data })
    }

    pub(crate) fn kind(&self) -> u8 {
        self.header[0]
    }

    pub(crate) fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.header[at..at + 2].try_into().unwrap())
    }

    pub(crate) fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.header[at..at + 4].try_into().unwrap())
    }

    /// Returns the id and the tag of an R2T.
    pub(crate) fn ids(&self) -> (u16, u16) {
        assert_eq!(self.kind(), 0x09, "an R2T, not {self:?}");
        (self.u16(8), self.u16(10))
    }

    /// Returns the id and the status of an answer, and its dword 0.
    pub(crate) fn answer(&self) -> (u16, u16, u32) {
        assert_eq!(self.kind(), 0x05, "an answer, not {self:?}");
        assert_eq!(self.u16(22) & 1, 0, "no phase tag");
        (self.u16(20), self.u16(22) >> 1, self.u32(8))
    }

    /// Returns the error and the field of a request to terminate.
    pub(crate) fn fault(&self) -> (u16, u32) {
        assert_eq!(self.kind(), 0x03, "a request to terminate, not {self:?}");
        assert!(self.data.len() <= 128);
        (self.u16(8), self.u32(10))
    }
}
