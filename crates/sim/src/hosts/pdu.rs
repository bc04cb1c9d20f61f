//! The PDUs of an iSCSI host, written from RFC 7143 and not from the target, and how a target's
//! stream is cut. Without digests.

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
pub struct PduFramer;

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
pub struct Command {
    /// Its name for the owner. No two commands of a host have the same.
    pub id: u32,
    /// Its operation.
    pub cdb: [u8; 16],
    /// Bytes that it reads.
    pub reads: u32,
    /// The data that it brings.
    pub data: Vec<u8>,
}

impl Command {
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
    pub fn read(id: u32, sector: u32, sectors: u32) -> Command {
        let reads = sectors * SECTOR;
        Command { reads, ..Command::ranged(id, 0x88, sector).blocks(sectors) }
    }

    /// WRITE(16).
    pub fn write(id: u32, sector: u32, sectors: u32, data: Vec<u8>) -> Command {
        Command { data, ..Command::ranged(id, 0x8a, sector).blocks(sectors) }
    }

    /// WRITE SAME(16) of zeros, without a data buffer; with `hole`, the space may be freed.
    pub fn zero(id: u32, sector: u32, sectors: u32, hole: bool) -> Command {
        let mut command = Command::ranged(id, 0x93, sector).blocks(sectors);
        command.cdb[1] = 0x01 | u8::from(hole) << 3;
        command
    }

    /// COMPARE AND WRITE: first what is expected, then what is written.
    pub fn compare_and_write(id: u32, sector: u32, sectors: u32, data: Vec<u8>) -> Command {
        let mut command = Command { data, ..Command::ranged(id, 0x89, sector) };
        command.cdb[13] = sectors as u8;
        command
    }

    /// PERSISTENT RESERVE OUT, with the host's key, and another one that the action needs.
    pub fn persist(id: u32, action: u8, kind: u8, [key, other]: [u64; 2]) -> Command {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[2], cdb[8]) = (0x5f, action, kind, 24);
        let mut data = [key.to_be_bytes(), other.to_be_bytes()].concat();
        data.resize(24, 0);
        Command { id, cdb, reads: 0, data }
    }
}

/// Key, code and qualifier of sense data.
pub(crate) type Sense = (u8, u8, u8);

/// How a command ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Told {
    /// The status; 0 is GOOD.
    pub status: u8,
    /// The sense data of a CHECK CONDITION.
    pub sense: Option<Sense>,
    /// The field INFORMATION of the sense data; 0 if there is none.
    pub information: u32,
    /// The data that was read.
    pub data: Vec<u8>,
}

impl Told {
    /// Reads status and sense data of a response.
    pub(super) fn of(bhs: &[u8], data: &[u8]) -> Told {
        let sense = (bhs[3] == 2 && data.len() >= 20).then(|| (data[4] & 15, data[14], data[15]));
        let known = sense.is_some() && data[2] & 0x80 != 0;
        let information = if known { be32(data, 5) } else { 0 };
        Told { status: bhs[3], sense, information, data: Vec::new() }
    }
}

/// Returns the name of a volume's target.
pub(super) fn target(cluster: base::ClusterId, volume: VolumeId) -> String {
    target::ident::iqn(target::ident::AUTHORITY, cluster, volume)
}
