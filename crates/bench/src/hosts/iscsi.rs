//! The host's side of iSCSI, written from RFC 7143: one login without CHAP, then READ(16) and
//! WRITE(16) with immediate data, each in one PDU.
//!
//! The digests of received data are checked: without that, this host would load the data client
//! faster than any real one.

use super::{Ask, Meaning, Protocol, be32, has_digest};
use crate::tally::Side;
use base::LinkId;
use base::crc::crc32c;
use seam::{Buf, Effects, FrameError, Framer, Framing, Head};

const BHS: usize = 48;
const DIGEST: usize = 4;
const LOGIN: u8 = 0x43;
const COMMAND: u8 = 0x01;
const NOP_IN: u8 = 0x20;
const RESPONSE: u8 = 0x21;
const LOGIN_RESPONSE: u8 = 0x23;
const DATA_IN: u8 = 0x25;
/// The tag of the first command, which fetches the unit attention of a new session.
const FIRST: u32 = u32::MAX - 1;
/// Its sense data: data with two bytes of length, then the key in the fourth byte.
const SENSE_KEY: usize = 4;
const UNIT_ATTENTION: u8 = 6;

/// Returns the length of the data of a PDU.
fn data_len(bhs: &[u8]) -> usize {
    be32(bhs, 4) as usize & 0xff_ffff
}

/// A session with a target.
#[derive(Clone, Debug)]
pub struct Iscsi {
    target: String,
    digests: bool,
    logged_in: bool,
    cmd_sn: u32,
    /// The status number that is expected next.
    stat_sn: u32,
}

/// Splits the target's stream.
#[derive(Debug)]
pub struct Pdus {
    /// Digests were offered.
    offered: bool,
    /// They are in use.
    digests: bool,
}

impl Iscsi {
    /// Creates a session that will log in to this target, with digests of heads and data if wanted.
    pub fn new(target: &str, digests: bool) -> Iscsi {
        Iscsi { target: target.to_owned(), digests, logged_in: false, cmd_sn: 1, stat_sn: 0 }
    }

    fn send(&self, link: LinkId, bhs: &mut [u8; BHS], data: Buf, out: &mut Effects) {
        bhs[28..32].copy_from_slice(&self.stat_sn.to_be_bytes());
        bhs[4..8].copy_from_slice(&(data.len() as u32).to_be_bytes());
        let digests = self.digests && self.logged_in;
        let padding = data.len().next_multiple_of(4) - data.len();
        let mut tail = [0; 2 * DIGEST];
        let mut len = padding;
        if digests && !data.is_empty() {
            assert_eq!(padding, 0, "blocks are whole sectors");
            tail[..DIGEST].copy_from_slice(&crc32c(&data).to_le_bytes());
            len = DIGEST;
        }
        let mut head = [0; BHS + DIGEST];
        head[..BHS].copy_from_slice(bhs);
        head[BHS..].copy_from_slice(&crc32c(bhs).to_le_bytes());
        let end = if digests { head.len() } else { BHS };
        out.send(link, Head::new(&head[..end]), data);
        if len > 0 {
            out.send(link, Head::new(&tail[..len]), Buf::EMPTY);
        }
    }

    /// Sends a command. `flags`: that it is the last PDU, and which way data goes.
    fn command(
        &mut self,
        link: LinkId,
        (itt, flags, expected): (u32, u8, u32),
        cdb: &[u8; 16],
        data: Buf,
        out: &mut Effects,
    ) {
        let mut bhs = [0; BHS];
        (bhs[0], bhs[1]) = (COMMAND, flags);
        bhs[16..20].copy_from_slice(&itt.to_be_bytes());
        bhs[20..24].copy_from_slice(&expected.to_be_bytes());
        bhs[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        bhs[32..].copy_from_slice(cdb);
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
        self.send(link, &mut bhs, data, out);
    }

    fn answered(&mut self, head: &[u8], body: &[u8]) -> Result<Meaning, String> {
        self.stat_sn = be32(head, 24).wrapping_add(1);
        let (itt, response, status) = (be32(head, 16), head[2], head[3]);
        if itt == FIRST {
            let attention =
                status == 2 && body.get(SENSE_KEY).map(|b| b & 15) == Some(UNIT_ATTENTION);
            return match status == 0 || attention {
                true => Ok(Meaning::Attached),
                false => Err(format!("the first command failed with status {status:#x}")),
            };
        }
        match (head[0], response, status) {
            (DATA_IN, _, 0) | (RESPONSE, 0, 0) => Ok(Meaning::Done(itt)),
            _ => Err(format!("a command failed: response {response:#x}, status {status:#x}")),
        }
    }

    /// Checks the digests of a PDU, and returns its data.
    fn checked<'a>(&self, head: &[u8], body: &'a [u8]) -> Result<&'a [u8], String> {
        let len = data_len(head);
        if !self.digests || !self.logged_in {
            return Ok(&body[..len]);
        }
        let (bhs, digest) = head.split_at(BHS);
        let (data, rest) = body.split_at(len.next_multiple_of(4));
        if !has_digest(bhs, digest) || (len > 0 && !has_digest(data, rest)) {
            return Err("a digest of the target is wrong".into());
        }
        Ok(&data[..len])
    }
}

impl Protocol for Iscsi {
    type Framer = Pdus;

    fn framer(&self) -> Pdus {
        Pdus { offered: self.digests, digests: false }
    }

    fn begin(&mut self, link: LinkId, out: &mut Effects) {
        let digest = if self.digests { "CRC32C" } else { "None" };
        let text = format!(
            "InitiatorName=iqn.2026-11.io.github.gabion:bench\0SessionType=Normal\0\
             TargetName={}\0HeaderDigest={digest}\0DataDigest={digest}\0InitialR2T=No\0\
             ImmediateData=Yes\0MaxRecvDataSegmentLength=262144\0",
            self.target
        );
        let mut bhs = [0; BHS];
        // From operational negotiation to the full feature phase, in one step.
        (bhs[0], bhs[1]) = (LOGIN, 0x87);
        bhs[8] = 0x80; // an ISID of the kind "random"
        bhs[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        let data = out.copy(text.as_bytes());
        self.send(link, &mut bhs, data, out);
    }

    fn frame(
        &mut self,
        link: LinkId,
        head: &[u8],
        body: &Buf,
        out: &mut Effects,
    ) -> Result<Meaning, String> {
        let data = self.checked(head, body)?;
        match head[0] {
            LOGIN_RESPONSE if be32(head, 36) >> 16 != 0 || head[1] & 0x83 != 0x83 => {
                Err(format!("the login failed with status {:#06x}", be32(head, 36) >> 16))
            }
            LOGIN_RESPONSE => {
                let text = String::from_utf8_lossy(data);
                let agreed = |key| text.contains(&format!("{key}=CRC32C"));
                if self.digests && !(agreed("HeaderDigest") && agreed("DataDigest")) {
                    return Err("the target does without digests".into());
                }
                self.logged_in = true;
                self.stat_sn = be32(head, 24).wrapping_add(1);
                self.command(link, (FIRST, 0x80, 0), &[0; 16], Buf::EMPTY, out);
                Ok(Meaning::Nothing)
            }
            // Status comes with the last data.
            DATA_IN if head[1] & 1 == 0 => Ok(Meaning::Nothing),
            DATA_IN | RESPONSE => self.answered(head, data),
            NOP_IN if be32(head, 20) == u32::MAX => Ok(Meaning::Nothing),
            other => Err(format!("a PDU {other:#x} that a load does not expect")),
        }
    }

    fn ask(&mut self, link: LinkId, ask: Ask, data: &Buf, out: &mut Effects) {
        let (code, flags, data) = match ask.side {
            Side::Read => (0x88, 0xc0, Buf::EMPTY),
            Side::Write => (0x8a, 0xa0, data.clone()),
        };
        let mut cdb = [0; 16];
        cdb[0] = code;
        cdb[2..10].copy_from_slice(&(ask.at / u64::from(base::SECTOR)).to_be_bytes());
        cdb[10..14].copy_from_slice(&(ask.len / base::SECTOR).to_be_bytes());
        self.command(link, (ask.slot, flags, ask.len), &cdb, data, out);
    }
}

impl Framer for Pdus {
    fn frame(&mut self, start: &[u8]) -> Result<Framing, FrameError> {
        let head = if self.digests { BHS + DIGEST } else { BHS };
        if start.len() < head {
            return Ok(Framing::Need(head));
        }
        let data = data_len(start).next_multiple_of(4);
        let digest = if self.digests && data > 0 { DIGEST } else { 0 };
        // The target's last answer of the login is the last PDU without digests.
        if start[0] == LOGIN_RESPONSE && start[1] & 0x83 == 0x83 {
            self.digests = self.offered;
        }
        Ok(Framing::Frame { head, body: data + digest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_framer_cuts_padding_and_digests_after_the_login() {
        let mut framer = Iscsi::new("t", true).framer();
        let mut login = [0; BHS];
        (login[0], login[1], login[7]) = (LOGIN_RESPONSE, 0x87, 5);
        assert_eq!(framer.frame(&login[..9]), Ok(Framing::Need(BHS)));
        assert_eq!(framer.frame(&login), Ok(Framing::Frame { head: BHS, body: 8 }));
        let mut data = [0; BHS + DIGEST];
        (data[0], data[6]) = (DATA_IN, 2);
        let whole = Framing::Frame { head: BHS + DIGEST, body: 512 + DIGEST };
        assert_eq!(framer.frame(&data), Ok(whole));
        data[6] = 0;
        assert_eq!(framer.frame(&data), Ok(Framing::Frame { head: BHS + DIGEST, body: 0 }));
    }
}
