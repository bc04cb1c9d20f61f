//! The host's side of NVMe/TCP, written from the TCP transport 1.0, NVMe over Fabrics 1.1 and the
//! base specification 1.4: an admin queue that enables the controller, then one I/O queue.
//!
//! It does what Linux does by default: the I/O queue has flow control, so a read is answered by its
//! data and by a response, and a write has its data in the capsule, up to the 16 KiB that a capsule
//! of the data client may carry. There is no keep-alive time-out, so the admin queue stays silent.
//!
//! The digests of received data are checked: without that, this host would load the data client
//! faster than any real one.

use super::{Ask, Meaning, Protocol, has_digest};
use crate::tally::Side;
use base::LinkId;
use base::crc::crc32c;
use seam::{Buf, Effects, FrameError, Framer, Framing, Head};

const COMMON: usize = 8;
const DIGEST: usize = 4;
const CAPSULE: usize = 72;
const SETUP: usize = 128;
/// Bytes of the header of everything that comes after the set-up.
const SHORT: usize = 24;
/// Bytes of a submission queue entry, which is a command.
const ENTRY: usize = 64;

const ICREQ: u8 = 0;
const ICRESP: u8 = 1;
const C2H_TERM: u8 = 3;
const CAPSULE_CMD: u8 = 4;
const CAPSULE_RESP: u8 = 5;
const C2H_DATA: u8 = 7;
/// Flags of a PDU: its header has a digest, its data has one.
const HDGSTF: u8 = 1;
const DDGSTF: u8 = 2;

/// Where the data of a command is: in the capsule, or where the transport moves it.
const IN_CAPSULE: u8 = 0x01;
const TRANSPORT: u8 = 0x5a;

const WRITE: u8 = 1;
const READ: u8 = 2;
const FABRICS: u8 = 0x7f;
/// Types of fabrics commands.
const PROPERTY_SET: u8 = 0;
const CONNECT: u8 = 1;
const PROPERTY_GET: u8 = 4;
/// Offsets of properties, and what a controller that works has in them.
const CC: u32 = 0x14;
const CSTS: u32 = 0x1c;
/// EN, and entries of 64 and 16 bytes.
const ENABLED: u32 = 0x0046_0001;
const READY: u64 = 1;

/// Ids of the commands that make the queues ready. Those of requests are their slots.
const CONNECTING: u16 = 0xffff;
const ENABLING: u16 = 0xfffe;
const WAITING: u16 = 0xfffd;
/// Entries of a queue minus one, as Connect counts them. The data client offers no more.
const SIZE: u16 = 127;
const HOST: &str = "nqn.2026-11.io.github.gabion:bench";

fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// A host with a controller and one I/O queue.
#[derive(Clone, Debug)]
pub struct Nvme {
    subsystem: String,
    namespace: u32,
    digests: bool,
    /// The connection of the admin queue, which is the first one.
    admin: Option<LinkId>,
    /// The id of the controller; any, until it has told its id.
    controller: u16,
}

/// Splits the controller's stream. Each PDU says what it consists of.
#[derive(Debug)]
pub struct Pdus;

impl Nvme {
    /// Creates a host that will use this namespace, with digests of headers and data if wanted.
    pub fn new(subsystem: &str, namespace: u32, digests: bool) -> Nvme {
        let subsystem = subsystem.to_owned();
        Nvme { subsystem, namespace, digests, admin: None, controller: 0xffff }
    }

    /// Sends a command, with its data in the capsule.
    fn send(&self, link: LinkId, entry: &[u8; ENTRY], data: Buf, out: &mut Effects) {
        let digest = if self.digests { DIGEST } else { 0 };
        let trailer = if data.is_empty() { 0 } else { digest };
        let mut head = [0; CAPSULE + DIGEST];
        let len = CAPSULE + digest;
        (head[0], head[2]) = (CAPSULE_CMD, CAPSULE as u8);
        head[1] = if digest > 0 { HDGSTF } else { 0 } | if trailer > 0 { DDGSTF } else { 0 };
        head[3] = if data.is_empty() { 0 } else { len as u8 };
        head[4..8].copy_from_slice(&((len + data.len() + trailer) as u32).to_le_bytes());
        head[COMMON..CAPSULE].copy_from_slice(entry);
        let sum = crc32c(&head[..CAPSULE]);
        head[CAPSULE..].copy_from_slice(&sum.to_le_bytes());
        let tail = (trailer > 0).then(|| Head::new(&crc32c(&data).to_le_bytes()));
        out.send(link, Head::new(&head[..len]), data);
        if let Some(tail) = tail {
            out.send(link, tail, Buf::EMPTY);
        }
    }

    /// Makes a connection a queue: 0 is the admin queue.
    fn connect(&self, link: LinkId, queue: u16, out: &mut Effects) {
        let mut data = [0; 1024];
        data[16..18].copy_from_slice(&self.controller.to_le_bytes());
        for (at, name) in [(256, self.subsystem.as_str()), (512, HOST)] {
            data[at..at + name.len()].copy_from_slice(name.as_bytes());
        }
        let mut entry = fabrics(CONNECT, CONNECTING);
        entry[32..36].copy_from_slice(&(data.len() as u32).to_le_bytes());
        entry[39] = IN_CAPSULE;
        entry[42..44].copy_from_slice(&queue.to_le_bytes());
        entry[44..46].copy_from_slice(&SIZE.to_le_bytes());
        let data = out.copy(&data);
        self.send(link, &entry, data, out);
    }

    /// Reads or sets a property.
    fn property(&self, link: LinkId, (kind, cid): (u8, u16), at: u32, to: u32, out: &mut Effects) {
        let mut entry = fabrics(kind, cid);
        entry[44..48].copy_from_slice(&at.to_le_bytes());
        entry[48..52].copy_from_slice(&to.to_le_bytes());
        self.send(link, &entry, Buf::EMPTY, out);
    }

    fn answered(&mut self, link: LinkId, pdu: &[u8], out: &mut Effects) -> Result<Meaning, String> {
        let (result, cid, status) = (le64(pdu, 8), le16(pdu, 20), le16(pdu, 22) >> 1);
        if status != 0 {
            return Err(format!("NVMe command {cid:#x} failed with status {status:#x}"));
        }
        match cid {
            CONNECTING if self.admin != Some(link) => return Ok(Meaning::Attached),
            CONNECTING => {
                self.controller = result as u16;
                self.property(link, (PROPERTY_SET, ENABLING), CC, ENABLED, out);
            }
            WAITING if result & READY != 0 => return Ok(Meaning::Dial),
            ENABLING | WAITING => self.property(link, (PROPERTY_GET, WAITING), CSTS, 0, out),
            slot => return Ok(Meaning::Done(slot.into())),
        }
        Ok(Meaning::Nothing)
    }

    /// Checks the digests of a PDU.
    fn check(&self, head: &[u8], body: &[u8]) -> Result<(), String> {
        let (data, digest) = body.split_at(body.len().saturating_sub(DIGEST));
        let flags = HDGSTF | if body.is_empty() { 0 } else { DDGSTF };
        let right = head[1] & flags == flags
            && has_digest(&head[..SHORT], head.get(SHORT..SHORT + DIGEST).unwrap_or_default())
            && (body.is_empty() || has_digest(data, digest));
        if right { Ok(()) } else { Err("a digest of the controller is missing or wrong".into()) }
    }
}

fn command(opcode: u8, cid: u16) -> [u8; ENTRY] {
    let mut entry = [0; ENTRY];
    // The second byte: data is described by an SGL.
    (entry[0], entry[1]) = (opcode, 0x40);
    entry[2..4].copy_from_slice(&cid.to_le_bytes());
    entry
}

fn fabrics(kind: u8, cid: u16) -> [u8; ENTRY] {
    let mut entry = command(FABRICS, cid);
    entry[4] = kind;
    entry
}

impl Protocol for Nvme {
    type Framer = Pdus;

    fn framer(&self) -> Pdus {
        Pdus
    }

    fn begin(&mut self, link: LinkId, out: &mut Effects) {
        self.admin.get_or_insert(link);
        let mut head = [0; SETUP];
        (head[0], head[2], head[4]) = (ICREQ, SETUP as u8, SETUP as u8);
        head[11] = if self.digests { 3 } else { 0 };
        out.send(link, Head::new(&head), Buf::EMPTY);
    }

    fn frame(
        &mut self,
        link: LinkId,
        head: &[u8],
        body: &Buf,
        out: &mut Effects,
    ) -> Result<Meaning, String> {
        if self.digests && !matches!(head[0], ICRESP | C2H_TERM) {
            self.check(head, body)?;
        }
        match head[0] {
            ICRESP => {
                let queue = if self.admin == Some(link) { 0 } else { 1 };
                self.connect(link, queue, out);
                Ok(Meaning::Nothing)
            }
            C2H_DATA => Ok(Meaning::Nothing), // the response follows
            CAPSULE_RESP => self.answered(link, head, out),
            C2H_TERM => Err(format!("the controller ends the connection: {}", le16(head, 8))),
            other => Err(format!("a PDU {other:#x} that a load does not expect")),
        }
    }

    fn ask(&mut self, link: LinkId, ask: Ask, data: &Buf, out: &mut Effects) {
        let (opcode, place, data) = match ask.side {
            Side::Read => (READ, TRANSPORT, Buf::EMPTY),
            Side::Write => (WRITE, IN_CAPSULE, data.clone()),
        };
        let mut entry = command(opcode, ask.slot as u16);
        entry[4..8].copy_from_slice(&self.namespace.to_le_bytes());
        entry[32..36].copy_from_slice(&ask.len.to_le_bytes());
        entry[39] = place;
        entry[40..48].copy_from_slice(&(ask.at / u64::from(base::SECTOR)).to_le_bytes());
        let blocks = (ask.len / base::SECTOR - 1) as u16;
        entry[48..50].copy_from_slice(&blocks.to_le_bytes());
        self.send(link, &entry, data, out);
    }
}

impl Framer for Pdus {
    fn frame(&mut self, start: &[u8]) -> Result<Framing, FrameError> {
        let Some(&[kind, flags, header, pdo, ref length @ ..]) = start.first_chunk::<COMMON>()
        else {
            return Ok(Framing::Need(COMMON));
        };
        let least = if kind == ICRESP { SETUP } else { SHORT };
        let digest = if flags & HDGSTF != 0 { DIGEST } else { 0 };
        let head = if kind == C2H_DATA { usize::from(pdo) } else { least + digest };
        let length = u32::from_le_bytes(*length) as usize;
        if usize::from(header) != least || !(least..=length.min(Head::MAX)).contains(&head) {
            return Err(FrameError::BadMagic);
        }
        match start.len() < head {
            true => Ok(Framing::Need(head)),
            false => Ok(Framing::Frame { head, body: length - head }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_framer_cuts_pdus_as_their_headers_say() {
        let mut pdu = [0; SETUP];
        (pdu[0], pdu[2], pdu[4]) = (ICRESP, SETUP as u8, SETUP as u8);
        assert_eq!(Pdus.frame(&pdu[..7]), Ok(Framing::Need(COMMON)));
        assert_eq!(Pdus.frame(&pdu[..COMMON]), Ok(Framing::Need(SETUP)));
        assert_eq!(Pdus.frame(&pdu), Ok(Framing::Frame { head: SETUP, body: 0 }));
        let short = |pdu: [u8; COMMON]| {
            let mut start = [0; SETUP];
            start[..COMMON].copy_from_slice(&pdu);
            Pdus.frame(&start)
        };
        let response = short([CAPSULE_RESP, HDGSTF, 24, 0, 28, 0, 0, 0]);
        assert_eq!(response, Ok(Framing::Frame { head: 28, body: 0 }));
        // Data of 4 KiB with both digests, aligned to 32 bytes.
        let data = short([C2H_DATA, HDGSTF | DDGSTF, 24, 32, 36, 16, 0, 0]);
        assert_eq!(data, Ok(Framing::Frame { head: 32, body: 4096 + DIGEST }));
        for wrong in [[CAPSULE_RESP, 0, 25, 0, 25, 0, 0, 0], [C2H_DATA, 0, 24, 24, 23, 0, 0, 0]] {
            assert_eq!(short(wrong), Err(FrameError::BadMagic));
        }
    }

    #[test]
    fn a_digest_that_is_missing_or_wrong_is_noticed() {
        let host = Nvme::new("subsystem", 1, true);
        let mut head = [0; SHORT + DIGEST];
        (head[0], head[1]) = (CAPSULE_RESP, HDGSTF);
        let sum = crc32c(&head[..SHORT]).to_le_bytes();
        head[SHORT..].copy_from_slice(&sum);
        assert_eq!(host.check(&head, &[]), Ok(()));
        assert!(host.check(&head[..SHORT], &[]).is_err());
        assert!(host.check(&head, &[0; 8]).is_err(), "data without a digest");
        head[9] = 1;
        assert!(host.check(&head, &[]).is_err());
    }
}
