//! The descriptors of one request: the parts that the device reads, and those that it writes.
//!
//! Invariants:
//! - The number of descriptors that are followed is bounded, so a loop in a chain is detected.
//! - No segment is empty, and each segment was within one region of memory when the chain was read.
//!   A part that reaches from one region into the next is several segments.
//! - The number of segments of a chain is bounded.

use super::{Broken, Memory, Rings, Segment};
use alloc::vec::Vec;

/// Most parts of data in a request.
pub const SEGMENTS: u16 = 126;

/// Segments that a chain may have at least: each part, and the head and the status, may reach into
/// another region once.
const CUT: u16 = 2 * (SEGMENTS + 2);

/// Bytes of a descriptor (2.7.5).
const DESCRIPTOR: u32 = 16;
/// The chain goes on.
const NEXT: u16 = 1;
/// The device writes this part.
const WRITE: u16 = 2;
/// The descriptor refers to an indirect table.
const INDIRECT: u16 = 4;

/// The parts of one chain. It keeps its memory from one chain to the next.
#[derive(Clone, Debug, Default)]
pub struct Chain {
    readable: Vec<Segment>,
    writable: Vec<Segment>,
}

struct Descriptor {
    at: u64,
    len: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    fn read(memory: &impl Memory, table: u64, index: u32) -> Result<Descriptor, Broken> {
        let mut bytes = [0; DESCRIPTOR as usize];
        let from = table.wrapping_add(u64::from(index) * u64::from(DESCRIPTOR));
        if !memory.read(from, &mut bytes) {
            return Err(Broken::Outside);
        }
        let [a, b, c, d, e, f, g, h, len @ .., i, j, k, l] = bytes;
        Ok(Descriptor {
            at: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            len: u32::from_le_bytes(len),
            flags: u16::from_le_bytes([i, j]),
            next: u16::from_le_bytes([k, l]),
        })
    }
}

impl Chain {
    /// Reads the chain that begins with a descriptor.
    pub(super) fn follow(
        &mut self,
        memory: &impl Memory,
        rings: &Rings,
        head: u16,
    ) -> Result<(), Broken> {
        self.readable.clear();
        self.writable.clear();
        // An indirect table from Linux has up to `seg_max` data parts, even if the queue has fewer
        // descriptors.
        let most = u32::from(rings.size.max(SEGMENTS + 2));
        let segments = usize::from(rings.size.max(CUT));
        let (mut table, mut entries) = (rings.descriptors, u32::from(rings.size));
        let (mut index, mut is_indirect) = (u32::from(head), false);
        for _ in 0..=most {
            if index >= entries {
                return Err(Broken::Index(index));
            }
            let part = Descriptor::read(memory, table, index)?;
            if part.flags & INDIRECT != 0 {
                let parts = part.len / DESCRIPTOR;
                let whole = part.len.is_multiple_of(DESCRIPTOR) && (1..=most).contains(&parts);
                if is_indirect || part.flags & NEXT != 0 || !whole {
                    return Err(Broken::Indirect);
                }
                if !memory.has(part.at, part.len.into()) {
                    return Err(Broken::Outside);
                }
                (table, entries, index, is_indirect) = (part.at, parts, 0, true);
                continue;
            }
            self.add(memory, &part, segments)?;
            if part.flags & NEXT == 0 {
                return Ok(());
            }
            index = part.next.into();
        }
        Err(Broken::Long)
    }

    /// Adds a part. There may be `most` segments in all.
    fn add(&mut self, memory: &impl Memory, part: &Descriptor, most: usize) -> Result<(), Broken> {
        let is_written = part.flags & WRITE != 0;
        if !is_written && !self.writable.is_empty() {
            return Err(Broken::Order);
        }
        let (mut at, mut left) = (part.at, part.len);
        while left > 0 {
            let len = u64::from(left).min(memory.left(at)) as u32;
            if len == 0 {
                return Err(Broken::Outside);
            }
            if self.readable.len() + self.writable.len() == most {
                return Err(Broken::Long);
            }
            let to = if is_written { &mut self.writable } else { &mut self.readable };
            to.push(Segment { at, len });
            (at, left) = (at.wrapping_add(len.into()), left - len);
        }
        Ok(())
    }

    /// Removes the first bytes of the part that the device reads.
    pub(super) fn take_head(
        &mut self,
        memory: &impl Memory,
        mut to: &mut [u8],
    ) -> Result<(), Broken> {
        let mut spent = 0;
        for part in &mut self.readable {
            let n = part.len.min(to.len() as u32);
            let (now, later) = to.split_at_mut(n as usize);
            if !memory.read(part.at, now) {
                return Err(Broken::Outside);
            }
            to = later;
            (part.at, part.len) = (part.at.wrapping_add(n.into()), part.len - n);
            if part.len > 0 {
                break;
            }
            spent += 1;
            if to.is_empty() {
                break;
            }
        }
        self.readable.drain(..spent);
        if to.is_empty() { Ok(()) } else { Err(Broken::Short) }
    }

    /// Removes the last byte of the part that the device writes, and returns its address.
    pub(super) fn take_status(&mut self) -> Result<u64, Broken> {
        let last = self.writable.last_mut().ok_or(Broken::Short)?;
        last.len -= 1;
        let at = last.at.wrapping_add(last.len.into());
        if last.len == 0 {
            self.writable.pop();
        }
        Ok(at)
    }

    /// Returns the bytes that are left for the device to read.
    pub fn readable(&self) -> u64 {
        self.readable.iter().map(|part| u64::from(part.len)).sum()
    }

    /// Returns the bytes that are left for the device to write.
    pub fn writable(&self) -> u64 {
        self.writable.iter().map(|part| u64::from(part.len)).sum()
    }

    /// Copies the first bytes that the device reads. Returns false if the memory is gone, or if the
    /// chain has fewer bytes.
    #[must_use]
    pub fn read(&self, memory: &impl Memory, mut to: &mut [u8]) -> bool {
        for part in &self.readable {
            let (now, later) = to.split_at_mut(to.len().min(part.len as usize));
            if !memory.read(part.at, now) {
                return false;
            }
            to = later;
            if to.is_empty() {
                return true;
            }
        }
        to.is_empty()
    }

    /// Copies bytes to the part that the device writes. Returns false if the memory is gone, or if
    /// the chain has too little room.
    #[must_use]
    pub fn write(&self, memory: &impl Memory, mut from: &[u8]) -> bool {
        for part in &self.writable {
            let (now, later) = from.split_at(from.len().min(part.len as usize));
            if !memory.write(part.at, now) {
                return false;
            }
            from = later;
            if from.is_empty() {
                return true;
            }
        }
        from.is_empty()
    }
}
