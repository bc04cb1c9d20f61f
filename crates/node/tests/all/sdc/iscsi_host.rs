//! An iSCSI initiator for the tests: written from the RFC, without digests.

use super::cluster::{Cluster, VOLUME};
use base::{ClusterId, Limits, LinkId};
use node::sdc::{ISCSI, SdcFramer};
use seam::Framer;
use target::ident;

/// One session of a host.
pub(crate) struct Host {
    pub link: LinkId,
    pub name: String,
    framer: SdcFramer,
    cmd_sn: u32,
}

/// A PDU that came.
#[derive(Debug)]
pub(crate) struct Pdu {
    pub bhs: [u8; 48],
    pub data: Vec<u8>,
}

/// Key, code and qualifier of sense data.
pub(crate) type Sense = (u8, u8, u8);

impl Pdu {
    pub(crate) fn u32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.bhs[at..at + 4].try_into().unwrap())
    }

    /// Returns the answer to a command: GOOD, or the sense data.
    pub(crate) fn result(&self) -> Result<(), Sense> {
        assert!(matches!(self.bhs[0], 0x21 | 0x25), "an answer to a command, not {self:?}");
        match self.bhs[3] {
            0 => Ok(()),
            2 => Err((self.data[4] & 15, self.data[14], self.data[15])),
            other => panic!("status {other:#x}"),
        }
    }
}

/// The name of the volume's target.
pub(crate) fn target() -> String {
    ident::iqn(ident::AUTHORITY, ClusterId(9), VOLUME)
}

impl Host {
    pub(crate) fn connect(c: &mut Cluster) -> Host {
        let link = c.accept(ISCSI);
        let framer = SdcFramer::new(ISCSI, &wire::DIALECT, &Limits::SHIPPED);
        Host { link, name: "iqn.2026-11.test:host".into(), framer, cmd_sn: 7 }
    }

    /// Logs in, and fetches the unit attention of a new session.
    pub(crate) fn attached(c: &mut Cluster, isid: u8) -> Host {
        let mut host = Host::connect(c);
        assert_eq!(host.log_in(c, isid), 0);
        let (key, code, _) = host.ready(c).unwrap_err();
        assert_eq!((key, code), (6, 0x29));
        host
    }

    /// Asks whether the unit is ready (TEST UNIT READY).
    pub(crate) fn ready(&mut self, c: &mut Cluster) -> Result<(), Sense> {
        self.command(c, 1, &[0; 6], 0, &[]);
        self.answer(c).result()
    }

    /// Logs in. Returns the status: class and detail.
    pub(crate) fn log_in(&mut self, c: &mut Cluster, isid: u8) -> u16 {
        let text = format!(
            "InitiatorName={}\0TargetName={}\0SessionType=Normal\0\
             InitialR2T=No\0ImmediateData=Yes\0MaxRecvDataSegmentLength=262144\0",
            self.name,
            target()
        );
        let mut bhs = [0; 48];
        (bhs[0], bhs[1], bhs[13]) = (0x43, 0x87, isid);
        bhs[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        self.send(c, bhs, text.as_bytes());
        if c.over {
            c.pass(core::time::Duration::from_millis(500)); // it waits for a newer map in vain
        }
        let answer = self.answer(c);
        assert_eq!(answer.bhs[0], 0x23);
        if let Some(mode) = c.log.reframed.get(&self.link) {
            self.framer.set_mode(*mode);
        }
        u16::from_be_bytes([answer.bhs[36], answer.bhs[37]])
    }

    /// Sends a command with the data that belongs to it, or that reads `expected` bytes.
    pub(crate) fn command(
        &mut self,
        c: &mut Cluster,
        itt: u32,
        cdb: &[u8],
        expected: u32,
        data: &[u8],
    ) {
        let writes = !data.is_empty();
        let flags = 0x80 | if writes { 0x20 } else { 0 } | if expected > 0 { 0x40 } else { 0 };
        let length = if writes { data.len() as u32 } else { expected };
        let bhs = self.head(itt, flags, length, cdb);
        self.send(c, bhs, data);
    }

    /// Returns the head of the next command.
    fn head(&mut self, itt: u32, flags: u8, length: u32, cdb: &[u8]) -> [u8; 48] {
        let mut bhs = [0; 48];
        (bhs[0], bhs[1]) = (0x01, flags);
        bhs[16..20].copy_from_slice(&itt.to_be_bytes());
        bhs[20..24].copy_from_slice(&length.to_be_bytes());
        bhs[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        bhs[32..32 + cdb.len()].copy_from_slice(cdb);
        self.cmd_sn += 1;
        bhs
    }

    /// Writes one block of 512 bytes at the start of the volume.
    pub(crate) fn write(&mut self, c: &mut Cluster, itt: u32, byte: u8) {
        self.command(c, itt, &transfer(0x2a, 0, 1), 0, &[byte; 512]);
    }

    /// Writes `data`, of which the first `part` comes with the command. The rest comes in parts of
    /// that length when it is asked for.
    pub(crate) fn long_write(
        &mut self,
        c: &mut Cluster,
        itt: u32,
        cdb: &[u8],
        data: &[u8],
        part: usize,
    ) {
        let r2t = self.begin_write(c, itt, cdb, data, part);
        self.end_write(c, itt, &r2t, data, part);
    }

    /// The first part of a long write. Returns what asks for the others.
    pub(crate) fn begin_write(
        &mut self,
        c: &mut Cluster,
        itt: u32,
        cdb: &[u8],
        data: &[u8],
        part: usize,
    ) -> Pdu {
        let bhs = self.head(itt, 0xa0, data.len() as u32, cdb);
        self.send(c, bhs, &data[..part]);
        let r2t = self.answer(c);
        let wanted = (r2t.bhs[0], r2t.u32(40) as usize, r2t.u32(44) as usize);
        assert_eq!(wanted, (0x31, part, data.len() - part));
        r2t
    }

    /// The other parts of a long write.
    pub(crate) fn end_write(
        &mut self,
        c: &mut Cluster,
        itt: u32,
        r2t: &Pdu,
        data: &[u8],
        part: usize,
    ) {
        let parts = data[part..].chunks(part);
        let last = parts.len() - 1;
        for (number, bytes) in parts.enumerate() {
            let mut bhs = [0; 48];
            (bhs[0], bhs[1]) = (0x05, if number == last { 0x80 } else { 0 });
            bhs[16..20].copy_from_slice(&itt.to_be_bytes());
            bhs[20..24].copy_from_slice(&r2t.bhs[20..24]);
            bhs[36..40].copy_from_slice(&(number as u32).to_be_bytes());
            bhs[40..44].copy_from_slice(&((part * (number + 1)) as u32).to_be_bytes());
            self.send(c, bhs, bytes);
        }
    }

    /// Asks for task management of the command with this tag, which was the last one.
    pub(crate) fn abort_last(&mut self, c: &mut Cluster, itt: u32, task: u32) {
        let mut bhs = [0; 48];
        (bhs[0], bhs[1]) = (0x42, 0x81);
        bhs[16..20].copy_from_slice(&itt.to_be_bytes());
        bhs[20..24].copy_from_slice(&task.to_be_bytes());
        bhs[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        bhs[32..36].copy_from_slice(&(self.cmd_sn - 1).to_be_bytes());
        self.send(c, bhs, &[]);
    }

    /// Sends a PDU.
    fn send(&mut self, c: &mut Cluster, mut bhs: [u8; 48], data: &[u8]) {
        bhs[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        let mut bytes = bhs.to_vec();
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        c.deliver(self.link, &mut self.framer, &bytes);
    }

    /// Returns the PDUs that came since the last call.
    pub(crate) fn answers(&mut self, c: &mut Cluster) -> Vec<Pdu> {
        let mut stream = &c.received.remove(&self.link).unwrap_or_default()[..];
        let mut pdus = Vec::new();
        while let Some((bhs, rest)) = stream.split_first_chunk::<48>() {
            let len = u32::from_be_bytes([0, bhs[5], bhs[6], bhs[7]]) as usize;
            let (data, rest) = rest.split_at(len.next_multiple_of(4));
            pdus.push(Pdu { bhs: *bhs, data: data[..len].to_vec() });
            stream = rest;
        }
        pdus
    }

    /// Returns the only one.
    pub(crate) fn answer(&mut self, c: &mut Cluster) -> Pdu {
        let mut pdus = self.answers(c);
        assert_eq!(pdus.len(), 1, "{pdus:?}");
        pdus.remove(0)
    }
}

/// READ(10) or WRITE(10).
pub(crate) fn transfer(opcode: u8, lba: u32, blocks: u16) -> [u8; 10] {
    let mut cdb = [0; 10];
    cdb[0] = opcode;
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
    cdb
}
