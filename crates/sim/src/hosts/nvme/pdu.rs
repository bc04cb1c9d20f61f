//! The PDUs of an NVMe/TCP host, written from the specifications and not from the target, and how a
//! target's stream is cut. Without digests.

use crate::hosts::{Command, What};
use base::{SECTOR, VolumeId};
use seam::{FrameError, Framer, Framing};

/// Bytes of a command.
const ENTRY: usize = 64;
/// Bytes of the common header of a PDU.
const COMMON: usize = 8;
/// Bytes of the PDUs that set a connection up.
const SETUP: usize = 128;
/// Bytes that Connect brings.
const CONNECT: usize = 1024;
/// The controller id that means "any" in Connect.
const ANY: u16 = 0xffff;
/// "Disable flow control of the submission queue".
const NO_FLOW: u8 = 1 << 2;

/// Types of a target's PDUs.
pub(super) mod from_target {
    pub(crate) const SETUP: u8 = 0x01;
    pub(crate) const RESPONSE: u8 = 0x05;
    pub(crate) const DATA: u8 = 0x07;
    pub(crate) const R2T: u8 = 0x09;
}

/// Cuts a target's stream: a PDU is one frame, whose body is its data.
#[derive(Debug)]
pub(crate) struct PduFramer;

impl Framer for PduFramer {
    fn frame(&mut self, start: &[u8]) -> Result<Framing, FrameError> {
        if start.len() < COMMON {
            return Ok(Framing::Need(COMMON));
        }
        let head = usize::from(start[2].max(start[3]));
        match (le32(start, 4) as usize).checked_sub(head) {
            Some(body) if head >= COMMON => Ok(Framing::Frame { head, body }),
            _ => Err(FrameError::BadHead),
        }
    }
}

pub(super) fn le16(from: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(from[at..at + 2].try_into().expect("two bytes"))
}

pub(super) fn le32(from: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(from[at..at + 4].try_into().expect("four bytes"))
}

/// A PDU to send.
#[derive(Clone, Debug)]
pub(super) struct Pdu {
    pub(super) head: Vec<u8>,
    pub(super) data: Vec<u8>,
}

impl Pdu {
    /// Creates a PDU whose header has this length.
    fn new(kind: u8, flags: u8, header: usize, data: Vec<u8>) -> Pdu {
        let mut head = vec![0; header];
        (head[0], head[1], head[2]) = (kind, flags, header as u8);
        head[3] = if data.is_empty() { 0 } else { header as u8 };
        head[4..8].copy_from_slice(&((header + data.len()) as u32).to_le_bytes());
        Pdu { head, data }
    }

    fn put(mut self, at: usize, bytes: &[u8]) -> Pdu {
        self.head[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    /// The first PDU of a connection.
    pub(super) fn set_up() -> Pdu {
        Pdu::new(0x00, 0, SETUP, Vec::new())
    }

    /// A command with this id, and the data that comes with it.
    pub(super) fn capsule(entry: Entry, cid: u16, data: Vec<u8>) -> Pdu {
        let entry = entry.put(2, &cid.to_le_bytes());
        Pdu::new(0x04, 0, COMMON + ENTRY, data).put(COMMON, &entry.0)
    }

    /// Data that the target has asked for by an R2T.
    pub(super) fn data(r2t: &[u8], at: u32, data: &[u8], last: bool) -> Pdu {
        let flags = if last { 0x04 } else { 0 };
        let pdu = Pdu::new(0x06, flags, 24, data.to_vec()).put(8, &r2t[8..12]);
        pdu.put(12, &at.to_le_bytes()).put(16, &(data.len() as u32).to_le_bytes())
    }
}

/// A command, without its id.
#[derive(Clone, Debug)]
pub(super) struct Entry([u8; ENTRY]);

impl Entry {
    fn new(opcode: u8) -> Entry {
        let mut bytes = [0; ENTRY];
        // Data is described by an SGL, and moved by the transport.
        (bytes[0], bytes[1], bytes[39]) = (opcode, 0x40, 0x5a);
        Entry(bytes)
    }

    fn put(mut self, at: usize, bytes: &[u8]) -> Entry {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    /// Sets a command dword.
    fn dword(self, number: usize, value: u32) -> Entry {
        self.put(4 * number, &value.to_le_bytes())
    }

    /// Sets the length of the data.
    fn moves(self, len: usize) -> Entry {
        self.dword(8, len as u32)
    }

    /// The data comes with the command.
    pub(super) fn in_capsule(self) -> Entry {
        self.put(39, &[0x01])
    }

    /// Connect, and its data. `cntlid` is that of an I/O queue's controller.
    pub(super) fn connect(
        host: &Host,
        qid: u16,
        cntlid: Option<u16>,
        (entries, flow): (u16, bool),
    ) -> (Entry, Vec<u8>) {
        let mut data = vec![0; CONNECT];
        data[..16].fill(host.id);
        data[16..18].copy_from_slice(&cntlid.unwrap_or(ANY).to_le_bytes());
        for (at, name) in [(256, &host.subsystem), (512, &host.name)] {
            data[at..at + name.len()].copy_from_slice(name.as_bytes());
        }
        let attributes = if flow { 0 } else { NO_FLOW };
        let entry = Entry::new(0x7f).put(4, &[1]).put(42, &qid.to_le_bytes());
        let entry = entry.put(44, &(entries - 1).to_le_bytes()).put(46, &[attributes]);
        (entry.dword(12, host.keep_alive_ms).moves(CONNECT).in_capsule(), data)
    }

    /// Property Set of the configuration (CC).
    pub(super) fn configure(value: u32) -> Entry {
        Entry::new(0x7f).dword(11, 0x14).dword(12, value)
    }

    /// Property Get of the capabilities (CAP), which are 8 bytes.
    pub(super) fn capabilities() -> Entry {
        Entry::new(0x7f).put(4, &[4]).put(40, &[1])
    }

    /// Property Get of the status (CSTS).
    pub(super) fn status() -> Entry {
        Entry::new(0x7f).put(4, &[4]).dword(11, 0x1c)
    }

    /// Identify of the controller.
    pub(super) fn identify() -> Entry {
        Entry::new(0x06).dword(10, 1).moves(4096)
    }

    /// Set Features: one I/O queue.
    pub(super) fn one_queue() -> Entry {
        Entry::new(0x09).dword(10, 0x07)
    }

    /// Keep Alive.
    pub(super) fn keep_alive() -> Entry {
        Entry::new(0x18)
    }

    /// Abort of a command of queue 1.
    pub(super) fn abort(cid: u16) -> Entry {
        Entry::new(0x08).dword(10, 1 | u32::from(cid) << 16)
    }

    fn blocks(opcode: u8, volume: VolumeId, command: &Command) -> Entry {
        let entry = Entry::new(opcode).dword(1, volume.0).dword(10, command.sector);
        entry.dword(12, command.sectors - 1)
    }
}

/// A command of a volume: its entry, the data that it brings, and the bytes that it reads.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) entry: Entry,
    pub(super) data: Vec<u8>,
    pub(super) reads: usize,
}

impl Part {
    fn with(entry: Entry, data: Vec<u8>) -> Part {
        Part { entry: entry.moves(data.len()), data, reads: 0 }
    }

    /// Returns the commands that carry out what the owner wants: two fused ones for a
    /// compare-and-write. A hole is made by Dataset Management, or by Write Zeroes that may
    /// deallocate.
    pub(super) fn all_of(volume: VolumeId, command: Command) -> Vec<Part> {
        let blocks = |opcode| Entry::blocks(opcode, volume, &command);
        match command.what {
            What::Read => {
                let reads = (command.sectors * SECTOR) as usize;
                vec![Part { entry: blocks(0x02).moves(reads), data: Vec::new(), reads }]
            }
            What::Write => vec![Part::with(blocks(0x01), command.data)],
            What::Zero { hole: true } if command.id.is_multiple_of(2) => {
                vec![Part::deallocate(volume, (command.sector, command.sectors))]
            }
            What::Zero { hole } => {
                let flags = (command.sectors - 1) | if hole { 1 << 25 } else { 0 };
                vec![Part::with(blocks(0x08).dword(12, flags), Vec::new())]
            }
            What::Swap => {
                let (old, new) = command.data.split_at(command.data.len() / 2);
                vec![
                    Part::with(blocks(0x05).put(1, &[0x41]), old.to_vec()),
                    Part::with(blocks(0x01).put(1, &[0x42]), new.to_vec()),
                ]
            }
            What::Reserve(_) => unreachable!("a host with one gateway reserves nothing"),
        }
    }

    /// Dataset Management, "deallocate". Longer ranges are divided in two.
    fn deallocate(volume: VolumeId, (sector, sectors): (u32, u32)) -> Part {
        let half = if sectors > 8 { sectors / 2 } else { sectors };
        let both = [(sector, half), (sector + half, sectors - half)];
        let ranges: Vec<_> = both.into_iter().filter(|(_, len)| *len > 0).collect();
        let entry = Entry::new(0x09).dword(1, volume.0).dword(10, ranges.len() as u32 - 1);
        let range = |(first, len): &(u32, u32)| {
            let (len, first) = (len.to_le_bytes(), u64::from(*first).to_le_bytes());
            [&[0; 4][..], &len, &first].concat()
        };
        Part::with(entry.dword(11, 1 << 2), ranges.iter().flat_map(range).collect())
    }
}

/// Who connects, and to what.
#[derive(Clone, Debug)]
pub(super) struct Host {
    /// The name of the host.
    pub(super) name: String,
    /// All bytes of its identifier.
    pub(super) id: u8,
    /// The name of the subsystem.
    pub(super) subsystem: String,
    /// The keep-alive time-out.
    pub(super) keep_alive_ms: u32,
}
