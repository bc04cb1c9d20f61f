//! The PDUs of an iSCSI host, written from RFC 7143 and not from the target, and how a target's
//! stream is cut. Without digests.

use crate::hosts::{self, Reserve, Told, What};
use base::{SECTOR, VolumeId};
use seam::{FrameError, Framer, Framing};

/// Bytes of a basic header segment.
pub(super) const BHS: usize = 48;
/// The value of a tag that names nothing.
pub(super) const NO_TAG: u32 = u32::MAX;

/// Opcodes of a target's PDUs.
pub(super) mod from_target {
    pub(crate) const NOP: u8 = 0x20;
    pub(crate) const RESPONSE: u8 = 0x21;
    pub(crate) const MANAGED: u8 = 0x22;
    pub(crate) const LOGIN: u8 = 0x23;
    pub(crate) const DATA: u8 = 0x25;
    pub(crate) const R2T: u8 = 0x31;
    pub(crate) const ASYNC: u8 = 0x32;
}

/// Cuts a target's stream: a PDU is one frame, whose body is the data segment with its padding.
#[derive(Debug)]
pub(crate) struct PduFramer;

impl Framer for PduFramer {
    fn frame(&mut self, start: &[u8]) -> Result<Framing, FrameError> {
        if start.len() < BHS {
            return Ok(Framing::Need(BHS));
        }
        match start[4] {
            0 => Ok(Framing::Frame { head: BHS, body: data_len(start).next_multiple_of(4) }),
            _ => Err(FrameError::BadHead),
        }
    }
}

/// Returns the length of the data segment.
pub(super) fn data_len(bhs: &[u8]) -> usize {
    be32(bhs, 4) as usize & 0xff_ffff
}

pub(super) fn be32(bhs: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bhs[at..at + 4].try_into().expect("four bytes"))
}

/// A PDU to send.
#[derive(Clone, Debug)]
pub(super) struct Pdu {
    pub(super) bhs: [u8; BHS],
    pub(super) data: Vec<u8>,
}

impl Pdu {
    /// Creates a PDU with this opcode, these flags and this tag.
    pub(super) fn new(opcode: u8, flags: u8, tag: u32) -> Pdu {
        let mut bhs = [0; BHS];
        (bhs[0], bhs[1]) = (opcode, flags);
        Pdu { bhs, data: Vec::new() }.u32(16, tag)
    }

    pub(super) fn put(mut self, at: usize, bytes: &[u8]) -> Pdu {
        self.bhs[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    pub(super) fn u32(self, at: usize, value: u32) -> Pdu {
        self.put(at, &value.to_be_bytes())
    }

    /// Adds the data segment, with its padding.
    pub(super) fn with(mut self, data: &[u8]) -> Pdu {
        self.bhs[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        self.data = data.to_vec();
        self.data.resize(data.len().next_multiple_of(4), 0);
        self
    }

    /// The only request of a login without authentication. `port` makes the host's session id.
    pub(super) fn login(host: &str, port: u8, target: &str) -> Pdu {
        let text = format!(
            "InitiatorName={host}\0TargetName={target}\0SessionType=Normal\0InitialR2T=Yes\0\
             ImmediateData=Yes\0FirstBurstLength=65536\0MaxRecvDataSegmentLength=65536\0"
        );
        // An immediate request; from the operational stage to the full feature phase.
        Pdu::new(0x43, 0x87, 1).put(8, &[0x80, 0, 0, 0, 0, port]).u32(24, 1).with(text.as_bytes())
    }
}

/// Returns the number under a key of a text.
pub(super) fn number(text: &[u8], key: &str) -> Option<usize> {
    let pairs = text.split(|byte| *byte == 0).filter_map(|pair| std::str::from_utf8(pair).ok());
    let mut values = pairs.filter_map(|pair| pair.split_once('=').filter(|(k, _)| *k == key));
    values.next()?.1.parse().ok()
}

/// A SCSI command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Command {
    /// The owner's name of it.
    pub(super) id: u32,
    /// Its operation.
    pub(super) cdb: [u8; 16],
    /// Bytes that it reads.
    pub(super) reads: u32,
    /// The data that it brings.
    pub(super) data: Vec<u8>,
}

impl Command {
    /// Returns the command for what the owner wants.
    pub(super) fn of(command: hosts::Command) -> Command {
        let hosts::Command { id, what, sector, sectors, data } = command;
        match what {
            What::Read => Command::read(id, sector, sectors),
            What::Write => Command::write(id, sector, sectors, data),
            What::Zero { hole } => Command::zero(id, sector, sectors, hole),
            What::Swap => Command::compare_and_write(id, sector, sectors, data),
            What::Reserve(reserve) => Command::persist(id, reserve),
        }
    }

    fn ranged(id: u32, opcode: u8, sector: u32) -> Command {
        let mut cdb = [0; 16];
        cdb[0] = opcode;
        cdb[2..10].copy_from_slice(&u64::from(sector).to_be_bytes());
        Command { id, cdb, reads: 0, data: Vec::new() }
    }

    fn blocks(mut self, sectors: u32) -> Command {
        self.cdb[10..14].copy_from_slice(&sectors.to_be_bytes());
        self
    }

    /// READ(16).
    pub(super) fn read(id: u32, sector: u32, sectors: u32) -> Command {
        let reads = sectors * SECTOR;
        Command { reads, ..Command::ranged(id, 0x88, sector).blocks(sectors) }
    }

    /// WRITE(16).
    pub(super) fn write(id: u32, sector: u32, sectors: u32, data: Vec<u8>) -> Command {
        Command { data, ..Command::ranged(id, 0x8a, sector).blocks(sectors) }
    }

    /// WRITE SAME(16) of zeros, without a data buffer; with `hole`, the space may be freed.
    fn zero(id: u32, sector: u32, sectors: u32, hole: bool) -> Command {
        let mut command = Command::ranged(id, 0x93, sector).blocks(sectors);
        command.cdb[1] = 0x01 | u8::from(hole) << 3;
        command
    }

    /// COMPARE AND WRITE: first what is expected, then what is written.
    fn compare_and_write(id: u32, sector: u32, sectors: u32, data: Vec<u8>) -> Command {
        let mut command = Command { data, ..Command::ranged(id, 0x89, sector) };
        command.cdb[13] = sectors as u8;
        command
    }

    /// PERSISTENT RESERVE OUT.
    fn persist(id: u32, Reserve { action, kind, keys: [key, other] }: Reserve) -> Command {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[2], cdb[8]) = (0x5f, action, kind, 24);
        let mut data = [key.to_be_bytes(), other.to_be_bytes()].concat();
        data.resize(24, 0);
        Command { id, cdb, reads: 0, data }
    }
}

/// The status of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Status {
    status: u8,
    /// Key, code and qualifier of the sense data of a CHECK CONDITION.
    sense: Option<(u8, u8, u8)>,
    /// The field INFORMATION of the sense data; 0 if there is none.
    information: u32,
}

impl Status {
    /// Reads status and sense data of a response.
    pub(super) fn of(bhs: &[u8], data: &[u8]) -> Status {
        let sense = (bhs[3] == 2 && data.len() >= 20).then(|| (data[4] & 15, data[14], data[15]));
        let known = sense.is_some() && data[2] & 0x80 != 0;
        let information = if known { be32(data, 5) } else { 0 };
        Status { status: bhs[3], sense, information }
    }

    /// Returns true if the command is done.
    pub(super) fn is_good(self) -> bool {
        self.status == 0
    }

    /// Returns how a command ended, and the data that it has read.
    pub(super) fn told(self, data: Vec<u8>) -> Told {
        match (self.status, self.sense) {
            (0, _) => Told::Done(data),
            (0x18, _) => Told::Conflict,
            (0x08 | 0x28, _) | (2, Some((2, 0x04, 0x01))) => Told::Later,
            (2, Some((2, 0x04, 0x14))) => Told::Full,
            (2, Some((6, ..))) => Told::Attention,
            (2, Some((3, ..))) => Told::Unreadable,
            (2, Some((5, 0x25, 0x00))) => Told::NoVolume,
            (2, Some((5, 0x21, 0x00))) => Told::OutOfRange,
            (2, Some((0xe, 0x1d, 0x00))) => Told::Differs(Some(self.information)),
            (status, sense) => Told::Strange(format!("status {status:#x} with {sense:x?}")),
        }
    }
}

/// Returns the name of a volume's target.
pub(super) fn target(cluster: base::ClusterId, volume: VolumeId) -> String {
    target::ident::iqn(target::ident::AUTHORITY, cluster, volume)
}
