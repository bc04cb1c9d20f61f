//! A guest's memory, and a driver that puts requests into it.

use std::cell::{Cell, RefCell};
use target::virtio::{Chain, Disk, Memory, Queue, Request, Rings};

/// The two regions of the guest's memory, which are neighbours.
const REGIONS: [(u64, u64); 2] = [(0x1000, 0x1_0000), (0x1_1000, 0x1_0000)];
/// Where the driver keeps data.
pub(super) const DATA: u64 = 0x4000;
/// Where it keeps indirect tables.
pub(super) const TABLE: u64 = 0x3000;

pub(super) const NEXT: u16 = 1;
pub(super) const WRITE: u16 = 2;
pub(super) const INDIRECT: u16 = 4;

pub(super) const DISK: Disk = Disk { size: 1 << 20, read_only: false };

/// A guest's memory, which can fail after some writes.
pub(super) struct Ram {
    bytes: RefCell<Vec<u8>>,
    /// Writes that are left before everything stops, as in a crash.
    pub(super) left: Cell<u32>,
}

impl Ram {
    pub(super) fn new() -> Ram {
        Ram { bytes: RefCell::new(vec![0; 0x2_1000]), left: Cell::new(u32::MAX) }
    }

    pub(super) fn of(bytes: &[u8]) -> Ram {
        let ram = Ram::new();
        for (at, byte) in ram.bytes.borrow_mut().iter_mut().skip(0x1000).enumerate() {
            *byte = bytes[at % bytes.len()];
        }
        ram
    }

    pub(super) fn get(&self, at: u64, len: usize) -> Vec<u8> {
        self.bytes.borrow()[at as usize..at as usize + len].to_vec()
    }

    pub(super) fn put(&self, at: u64, bytes: &[u8]) {
        self.bytes.borrow_mut()[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    }

    pub(super) fn put16(&self, at: u64, value: u16) {
        self.put(at, &value.to_le_bytes());
    }

    pub(super) fn get16(&self, at: u64) -> u16 {
        u16::from_le_bytes(self.get(at, 2).try_into().unwrap())
    }
}

impl Memory for Ram {
    fn left(&self, at: u64) -> u64 {
        let left = |(start, size): &(u64, u64)| size.checked_sub(at.checked_sub(*start)?);
        REGIONS.iter().filter_map(left).max().unwrap_or(0)
    }

    fn read(&self, at: u64, to: &mut [u8]) -> bool {
        let there = self.has(at, to.len() as u64);
        if there {
            to.copy_from_slice(&self.get(at, to.len()));
        }
        there
    }

    fn write(&self, at: u64, from: &[u8]) -> bool {
        let there = self.has(at, from.len() as u64) && self.left.get() > 0;
        if there {
            self.left.set(self.left.get() - 1);
            self.put(at, from);
        }
        there
    }

    fn load(&self, at: u64) -> Option<u16> {
        (at.is_multiple_of(2) && self.has(at, 2)).then(|| self.get16(at))
    }

    fn store(&self, at: u64, value: u16) -> bool {
        at.is_multiple_of(2) && self.write(at, &value.to_le_bytes())
    }
}

/// The driver of one queue.
pub(super) struct Driver {
    pub(super) ram: Ram,
    pub(super) rings: Rings,
    offered: u16,
}

/// A part of a chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) at: u64,
    pub(super) len: u32,
    pub(super) flags: u16,
    pub(super) next: u16,
}

impl Driver {
    pub(super) fn new(size: u16) -> Driver {
        Driver::over(Ram::new(), size)
    }

    pub(super) fn over(ram: Ram, size: u16) -> Driver {
        let rings = Rings { size, descriptors: 0x1000, available: 0x2000, used: 0x2800 };
        Driver { ram, rings, offered: 0 }
    }

    pub(super) fn queue(&self, event_idx: bool) -> Queue {
        Queue::new(self.rings, event_idx, 0, &self.ram).unwrap()
    }

    pub(super) fn descriptor(&self, table: u64, index: u16, part: Part) {
        let at = table + 16 * u64::from(index);
        self.ram.put(at, &part.at.to_le_bytes());
        self.ram.put(at + 8, &part.len.to_le_bytes());
        self.ram.put16(at + 12, part.flags);
        self.ram.put16(at + 14, part.next);
    }

    /// Writes a chain of parts, `(address, length, is written)`, from a descriptor of a table on.
    pub(super) fn chain(&self, table: u64, first: u16, parts: &[(u64, u32, bool)]) {
        for (i, (at, len, written)) in parts.iter().enumerate() {
            let index = first + i as u16;
            let next = if i + 1 < parts.len() { NEXT } else { 0 };
            let flags = next | if *written { WRITE } else { 0 };
            self.descriptor(table, index, Part { at: *at, len: *len, flags, next: index + 1 });
        }
    }

    /// Offers a chain.
    pub(super) fn offer(&mut self, head: u16) {
        let slot = u64::from(self.offered % self.rings.size);
        self.ram.put16(self.rings.available + 4 + 2 * slot, head);
        self.offered = self.offered.wrapping_add(1);
        self.ram.put16(self.rings.available + 2, self.offered);
    }

    /// Returns the entry of the used ring at an index.
    pub(super) fn used(&self, index: u16) -> (u32, u32) {
        let at = self.rings.used + 4 + 8 * u64::from(index % self.rings.size);
        let number = |at| u32::from_le_bytes(self.ram.get(at, 4).try_into().unwrap());
        (number(at), number(at + 4))
    }

    /// Returns the index of the used ring.
    pub(super) fn used_index(&self) -> u16 {
        self.ram.get16(self.rings.used + 2)
    }

    /// Writes the head of a request.
    pub(super) fn head(&self, at: u64, kind: u32, sector: u64) {
        self.ram.put(at, &kind.to_le_bytes());
        self.ram.put(at + 4, &[0; 4]);
        self.ram.put(at + 8, &sector.to_le_bytes());
    }

    /// Offers a request with these parts of data at [`DATA`], and lets the device read it.
    pub(super) fn ask(&mut self, kind: u32, sector: u64, out: u32, into: u32) -> Request {
        self.ask_of(DISK, kind, sector, out, into).0
    }

    pub(super) fn ask_of(
        &mut self,
        disk: Disk,
        kind: u32,
        sector: u64,
        out: u32,
        into: u32,
    ) -> (Request, Chain) {
        self.head(0x3f00, kind, sector);
        let parts =
            [(0x3f00, 16, false), (DATA, out, false), (DATA, into, true), (0x3f80, 1, true)];
        self.chain(self.rings.descriptors, 0, &parts);
        self.offer(0);
        let mut queue = Queue::new(self.rings, false, self.offered - 1, &self.ram).unwrap();
        let mut chain = Chain::default();
        assert_eq!(queue.pop(&self.ram, &mut chain), Ok(Some(0)));
        (Request::parse(&self.ram, &mut chain, disk).unwrap(), chain)
    }
}
