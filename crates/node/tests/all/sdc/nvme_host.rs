//! An NVMe/TCP host for the tests: written from the specification, without digests.

use super::cluster::{Cluster, VOLUME};
use base::{ClusterId, Limits, LinkId};
use node::sdc::{NVME, SdcFramer};
use target::ident;

const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// One queue of a host.
pub(crate) struct Queue {
    pub link: LinkId,
    framer: SdcFramer,
    cid: u16,
    pub cntlid: u16,
    /// All bytes of the host's identifier.
    pub host: u8,
    /// Connect was answered that the host has to authenticate.
    pub must_authenticate: bool,
}

/// An answer, or data, or a request for data.
#[derive(Debug)]
pub(crate) struct Pdu {
    pub header: Vec<u8>,
    pub data: Vec<u8>,
}

impl Pdu {
    pub(crate) fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.header[at..at + 2].try_into().unwrap())
    }

    pub(crate) fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.header[at..at + 4].try_into().unwrap())
    }

    /// Returns the status of an answer, and its dword 0.
    pub(crate) fn answer(&self) -> (u16, u32) {
        assert_eq!(self.header[0], 0x05, "{self:?}");
        (self.u16(22) >> 1, self.u32(8))
    }
}

impl Queue {
    /// Connects, without Connect.
    pub(crate) fn open(c: &mut Cluster) -> Queue {
        let link = c.accept(NVME);
        let framer = SdcFramer::new(NVME, &wire::DIALECT, &Limits::SHIPPED);
        let mut queue =
            Queue { link, framer, cid: 0, cntlid: 0xffff, host: 7, must_authenticate: false };
        let mut set_up = vec![0; 128];
        (set_up[2], set_up[4]) = (128, 128);
        c.deliver(queue.link, &mut queue.framer, &set_up);
        assert_eq!(queue.answers(c)[0].header[0], 0x01);
        queue
    }

    pub(crate) fn connect(&mut self, c: &mut Cluster, qid: u16, cntlid: u16, name: &str) -> u16 {
        let mut data = vec![0; 1024];
        data[..16].fill(self.host);
        data[16..18].copy_from_slice(&cntlid.to_le_bytes());
        data[256..256 + name.len()].copy_from_slice(name.as_bytes());
        data[512..520].copy_from_slice(b"nqn.host");
        let mut entry = Queue::entry(0x7f, 1024, true);
        entry[4] = 1;
        entry[42..44].copy_from_slice(&qid.to_le_bytes());
        entry[44] = 31;
        self.send(c, entry, &data);
        let (status, result) = self.answer(c).answer();
        (self.cntlid, self.must_authenticate) = (result as u16, result & 1 << 17 != 0);
        status
    }

    /// Connects as an admin queue, and enables the controller.
    pub(crate) fn admin(c: &mut Cluster) -> Queue {
        Queue::admin_of(c, 7)
    }

    /// Connects as an admin queue of the host with this identifier.
    pub(crate) fn admin_of(c: &mut Cluster, host: u8) -> Queue {
        let mut queue = Queue { host, ..Queue::open(c) };
        assert_eq!(queue.connect(c, 0, 0xffff, &ident::nqn(ClusterId(9))), 0);
        assert_eq!(queue.configure(c, 0x46_0001), 0);
        queue
    }

    /// Connects as the admin queue of a discovery controller.
    pub(crate) fn discovery(c: &mut Cluster) -> Queue {
        let mut queue = Queue::open(c);
        assert_eq!(queue.connect(c, 0, 0xffff, DISCOVERY), 0);
        assert_eq!(queue.configure(c, 0x46_0001), 0);
        queue
    }

    /// Connects as an I/O queue of this controller.
    pub(crate) fn io(c: &mut Cluster, admin: &Queue, qid: u16) -> Result<Queue, u16> {
        let mut queue = Queue { host: admin.host, ..Queue::open(c) };
        match queue.connect(c, qid, admin.cntlid, &ident::nqn(ClusterId(9))) {
            0 => Ok(queue),
            status => Err(status),
        }
    }

    /// A command with data of this length, in the capsule or not.
    pub(crate) fn entry(opcode: u8, len: usize, carries: bool) -> [u8; 64] {
        let mut entry = [0; 64];
        (entry[0], entry[1], entry[39]) = (opcode, 0x40, if carries { 0x01 } else { 0x5a });
        entry[32..36].copy_from_slice(&(len as u32).to_le_bytes());
        entry
    }

    pub(crate) fn configure(&mut self, c: &mut Cluster, value: u32) -> u16 {
        let mut entry = Queue::entry(0x7f, 0, false);
        entry[44] = 0x14;
        entry[48..52].copy_from_slice(&value.to_le_bytes());
        self.send(c, entry, &[]);
        self.answer(c).answer().0
    }

    /// Returns the status of the controller.
    pub(crate) fn status(&mut self, c: &mut Cluster) -> u32 {
        let mut entry = Queue::entry(0x7f, 0, false);
        (entry[4], entry[44]) = (4, 0x1c);
        self.send(c, entry, &[]);
        self.answer(c).answer().1
    }

    /// Reads a log page of 4096 bytes.
    pub(crate) fn log(&mut self, c: &mut Cluster, page: u8) -> Vec<u8> {
        let mut entry = Queue::entry(0x02, 4096, false);
        entry[40] = page;
        entry[42..44].copy_from_slice(&1023u16.to_le_bytes());
        self.send(c, entry, &[]);
        let mut answers = self.answers(c);
        assert_eq!(answers[1].answer(), (0, 0));
        answers.remove(0).data
    }

    /// Enables events of namespaces, and waits for one.
    pub(crate) fn wait_for_events(&mut self, c: &mut Cluster) {
        let mut entry = Queue::entry(0x09, 0, false);
        (entry[40], entry[45]) = (0x0b, 0x01);
        self.send(c, entry, &[]);
        assert_eq!(self.answer(c).answer().0, 0);
        self.ask_event(c);
        assert!(self.answers(c).is_empty());
    }

    /// Asks for an event.
    pub(crate) fn ask_event(&mut self, c: &mut Cluster) {
        self.send(c, Queue::entry(0x0c, 0, false), &[]);
    }

    /// Sends a reservation command with dword 10, and these keys.
    pub(crate) fn reserve(&mut self, c: &mut Cluster, opcode: u8, ten: u32, keys: [u64; 2]) {
        let mut data = [0; 16];
        data[..8].copy_from_slice(&keys[0].to_le_bytes());
        data[8..].copy_from_slice(&keys[1].to_le_bytes());
        let mut entry = Queue::entry(opcode, data.len(), true);
        entry[4..8].copy_from_slice(&VOLUME.0.to_le_bytes());
        entry[40..44].copy_from_slice(&ten.to_le_bytes());
        self.send(c, entry, &data);
    }

    /// Asks for 512 bytes of the report of reservations.
    pub(crate) fn report(&mut self, c: &mut Cluster) {
        let mut entry = Queue::entry(0x0e, 512, false);
        entry[4..8].copy_from_slice(&VOLUME.0.to_le_bytes());
        (entry[40], entry[44]) = (127, 1);
        self.send(c, entry, &[]);
    }

    fn blocks(opcode: u8, first: u64, len: usize, carries: bool) -> [u8; 64] {
        let mut entry = Queue::entry(opcode, len, carries);
        entry[4..8].copy_from_slice(&VOLUME.0.to_le_bytes());
        entry[40..48].copy_from_slice(&first.to_le_bytes());
        entry[48..50].copy_from_slice(&((len / 512 - 1) as u16).to_le_bytes());
        entry
    }

    /// Writes blocks from the capsule.
    pub(crate) fn write(&mut self, c: &mut Cluster, first: u64, data: &[u8]) {
        self.send(c, Queue::blocks(0x01, first, data.len(), true), data);
    }

    /// Asks to write blocks, whose data follows when it is asked for.
    pub(crate) fn write_later(&mut self, c: &mut Cluster, first: u64, len: usize) {
        self.send(c, Queue::blocks(0x01, first, len, false), &[]);
    }

    pub(crate) fn read(&mut self, c: &mut Cluster, first: u64, len: usize) {
        self.send(c, Queue::blocks(0x02, first, len, false), &[]);
    }

    /// Sends all data that an R2T asks for.
    pub(crate) fn give(&mut self, c: &mut Cluster, r2t: &Pdu, data: &[u8]) {
        assert_eq!((r2t.header[0], r2t.u32(16) as usize), (0x09, data.len()));
        let mut pdu = vec![0; 24];
        (pdu[0], pdu[1], pdu[2], pdu[3]) = (0x06, 0x04, 24, 24);
        pdu[4..8].copy_from_slice(&(24 + data.len() as u32).to_le_bytes());
        pdu[8..12].copy_from_slice(&r2t.header[8..12]);
        pdu[16..20].copy_from_slice(&r2t.header[16..20]);
        pdu.extend(data);
        c.deliver(self.link, &mut self.framer, &pdu);
    }

    pub(crate) fn send(&mut self, c: &mut Cluster, mut entry: [u8; 64], data: &[u8]) {
        self.cid += 1;
        entry[2..4].copy_from_slice(&self.cid.to_le_bytes());
        let mut pdu = vec![0; 8];
        (pdu[0], pdu[2], pdu[3]) = (0x04, 72, if data.is_empty() { 0 } else { 72 });
        pdu[4..8].copy_from_slice(&(72 + data.len() as u32).to_le_bytes());
        pdu.extend(entry);
        pdu.extend(data);
        c.deliver(self.link, &mut self.framer, &pdu);
    }

    /// Returns the PDUs that came since the last call.
    pub(crate) fn answers(&mut self, c: &mut Cluster) -> Vec<Pdu> {
        let mut stream = &c.received.remove(&self.link).unwrap_or_default()[..];
        let mut pdus = Vec::new();
        while let Some(len) = stream.get(4..8) {
            let len = u32::from_le_bytes(len.try_into().unwrap()) as usize;
            let (pdu, rest) = stream.split_at(len);
            let (header, data) = pdu.split_at(usize::from(pdu[2]));
            pdus.push(Pdu { header: header.to_vec(), data: data.to_vec() });
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
