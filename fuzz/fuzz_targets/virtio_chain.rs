//! Arbitrary bytes as a guest's memory with a queue of a virtio disk in it, and as messages of its
//! monitor. The guest changes its memory between any two looks at it.
//!
//! Checked: no panic; nothing outside of the guest's regions is reached; no more is under way than
//! the queue has descriptors; what is asked lies within the disk; no mark is beyond the log of
//! written pages.
//!
//! Input: the size of the queue and other choices, a message, then memory, and a script of control
//! bytes at its end.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::cell::{Cell, RefCell};
use target::vhost::{Message, log};
use target::virtio::{Ask, Chain, Disk, Inflight, Memory, Queue, Request, Rings};

/// The guest's regions: first address and length.
const REGIONS: [(u64, u64); 2] = [(0, 0x3000), (0x3000, 0x1000)];
const DISK: Disk = Disk { size: 1 << 20, read_only: false };

struct Ram {
    bytes: RefCell<Vec<u8>>,
    looks: Cell<usize>,
}

impl Ram {
    /// Each look finds another byte changed.
    fn changes(&self) {
        let mut bytes = self.bytes.borrow_mut();
        let (looks, len) = (self.looks.get() + 1, bytes.len());
        self.looks.set(looks);
        if bytes[looks % len] & 1 == 1 {
            bytes[looks * 31 % len] ^= looks as u8;
        }
    }
}

impl Memory for Ram {
    fn left(&self, at: u64) -> u64 {
        let left = |(start, size): &(u64, u64)| size.checked_sub(at.checked_sub(*start)?);
        REGIONS.iter().filter_map(left).max().unwrap_or(0)
    }

    fn read(&self, at: u64, to: &mut [u8]) -> bool {
        self.changes();
        let there = self.has(at, to.len() as u64);
        if there {
            to.copy_from_slice(&self.bytes.borrow()[at as usize..at as usize + to.len()]);
        }
        there
    }

    fn write(&self, at: u64, from: &[u8]) -> bool {
        let there = self.has(at, from.len() as u64);
        if there {
            self.bytes.borrow_mut()[at as usize..at as usize + from.len()].copy_from_slice(from);
        }
        there
    }

    fn load(&self, at: u64) -> Option<u16> {
        let mut two = [0; 2];
        (at.is_multiple_of(2) && self.read(at, &mut two)).then(|| u16::from_le_bytes(two))
    }

    fn store(&self, at: u64, value: u16) -> bool {
        at.is_multiple_of(2) && self.write(at, &value.to_le_bytes())
    }
}

/// Reads what a chain asks for, as a device does.
fn request(ram: &Ram, chain: &mut Chain) {
    let Ok(Request { ask, status }) = Request::parse(ram, chain, DISK) else { return };
    assert!(ram.has(status, 1));
    match ask {
        Ask::Read { at, len } => {
            assert!(at + u64::from(len) <= DISK.size && chain.writable() == len.into());
            let _ = chain.write(ram, &vec![1; len as usize]);
        }
        Ask::Write { at, len } => {
            assert!(at + u64::from(len) <= DISK.size && chain.readable() == len.into());
            let _ = chain.read(ram, &mut vec![0; len as usize]);
        }
        Ask::Zero { at, len, .. } => assert!(at + u64::from(len) <= DISK.size && len > 0),
        Ask::Id | Ask::Answered(_) => {}
    }
}

/// Marks what a monitor names in a log of this many bytes.
fn mark(message: &Message, bytes: u64) {
    let (at, len) = match message {
        Message::SetVringAddr(of) => (of.log.unwrap_or(of.used), of.available),
        Message::SetLogBase(of) => (of.offset, of.len),
        _ => return,
    };
    let mut before = None;
    for (byte, bits) in log::marks(at, len, bytes) {
        assert!(byte < bytes && bits != 0 && before < Some(byte), "{byte} of {bytes}");
        before = Some(byte);
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((&[size, mode, asked, files, len], rest)) = input.split_first_chunk() else { return };
    let (message, rest) = rest.split_at(rest.len().min(len.into()));
    if let Ok(message) = Message::parse(asked.into(), message, (files % 9).into()) {
        mark(&message, mode.into());
    }
    let (script, memory) = rest.split_at(rest.len().min(64));
    let mut bytes = vec![0; 0x4000];
    let there = memory.len().min(bytes.len());
    bytes[..there].copy_from_slice(&memory[..there]);
    let ram = Ram { bytes: RefCell::new(bytes), looks: Cell::new(0) };
    let size = 1 << (size % 8);
    let rings = Rings { size, descriptors: 0, available: 0x100, used: 0x300 };
    let Ok(mut queue) = Queue::new(rings, mode & 1 == 1, mode.into(), &ram) else { return };
    let (mut chain, mut busy) = (Chain::default(), Vec::new());
    if mode & 2 == 2
        && let Some((mut inflight, redo)) = Inflight::open(&ram, 0x800, size, queue.used())
    {
        queue.repeats(redo.len() as u16);
        for head in redo {
            if queue.take(&ram, head, &mut chain).is_ok() {
                busy.push(head);
                let _ = inflight.begins(&ram, head);
                request(&ram, &mut chain);
            }
        }
    }
    for control in script {
        if control.is_multiple_of(4) && !busy.is_empty() {
            let head = busy.swap_remove(usize::from(*control) % busy.len());
            let _ = queue.push(&ram, head, 1);
            let _ = queue.signals(&ram);
        } else if let Ok(Some(head)) = queue.pop(&ram, &mut chain) {
            busy.push(head);
            request(&ram, &mut chain);
        }
        let _ = queue.listen(&ram);
        assert_eq!(usize::from(queue.in_flight()), busy.len());
        assert!(busy.len() <= size.into());
    }
});
