//! The requests under way, noted in memory that outlives the process. The next process executes
//! them again. The layout is that of vhost-user's in-flight region for split queues ("Inflight I/O
//! tracking"). The frontend owns the memory, so its content is untrusted.
//!
//! Invariant: a request is noted before it begins, and its note is cleared after it was given back.
//! So after a crash, each request is either noted or given back. One request can be both: the used
//! index tells that it was given back.

use super::{Memory, QUEUE_MAX};
use alloc::vec::Vec;

/// Bytes before the notes: features (8), version, descriptors, last head, used index (2 each).
const HEAD: u64 = 16;
/// Bytes of a note: under way (1), reserved (5), next (2), counter (8).
const NOTE: u64 = 16;
/// The offset of the version.
const VERSION: u64 = 8;
/// The offset of the number of descriptors.
const DESCRIPTORS: u64 = 10;
/// The offset of the head of the last request that was given back.
const LAST: u64 = 12;
/// The offset of the used index after which all notes are right.
const USED: u64 = 14;

/// The notes of one queue. Addresses are those of the region's memory.
#[derive(Debug)]
pub struct Inflight {
    at: u64,
    size: u16,
    /// The number of the next request. Numbers give the order of requests.
    counter: u64,
}

impl Inflight {
    /// Returns the size in bytes of the notes of one queue. The queues' notes are consecutive.
    pub fn bytes(size: u16) -> u64 {
        (HEAD + u64::from(size) * NOTE).next_multiple_of(64)
    }

    /// Opens the notes of a queue whose used ring is at this index. Also returns the heads of the
    /// requests to execute again, in their order. `None`: the memory has no valid notes.
    pub fn open(
        memory: &impl Memory,
        at: u64,
        size: u16,
        used: u16,
    ) -> Option<(Inflight, Vec<u16>)> {
        let fits = (1..=QUEUE_MAX).contains(&size) && memory.has(at, Inflight::bytes(size));
        if !fits {
            return None;
        }
        let mut notes = Inflight { at, size, counter: 1 };
        let old = memory.load(at + VERSION)? == 1 && memory.load(at + DESCRIPTORS)? == size;
        if !old {
            notes.begin(memory, used)?;
            return Some((notes, Vec::new()));
        }
        if memory.load(at + USED)? != used {
            // The last one was given back, and its note was not cleared.
            let last = memory.load(at + LAST)?;
            if last < size {
                notes.clear(memory, last)?;
            }
            notes.set(memory, USED, used)?;
        }
        let mut found = Vec::new();
        for head in 0..size {
            let mut note = [0; NOTE as usize];
            memory.read(notes.note(head), &mut note).then_some(())?;
            let [is_busy, _, _, _, _, _, _, _, counter @ ..] = note;
            if is_busy != 0 {
                found.push((u64::from_le_bytes(counter), head));
            }
        }
        found.sort_unstable();
        notes.counter = found.last().map_or(1, |(counter, _)| counter.wrapping_add(1));
        Some((notes, found.into_iter().map(|(_, head)| head).collect()))
    }

    /// Forgets the requests that are noted for a queue, because its driver has forgotten them. No
    /// process executes them again, and the next [`Inflight::open`] creates empty notes. `None`:
    /// the memory does not contain the notes.
    pub fn forget(memory: &impl Memory, at: u64) -> Option<()> {
        memory.store(at + VERSION, 0).then_some(())
    }

    /// Creates empty notes.
    fn begin(&self, memory: &impl Memory, used: u16) -> Option<()> {
        (0..self.size).try_for_each(|head| self.clear(memory, head))?;
        self.set(memory, DESCRIPTORS, self.size)?;
        self.set(memory, USED, used)?;
        self.set(memory, VERSION, 1)
    }

    /// Notes a request that is about to begin.
    pub fn begins(&mut self, memory: &impl Memory, head: u16) -> Option<()> {
        let at = self.note(head);
        memory.write(at + 8, &self.counter.to_le_bytes()).then_some(())?;
        self.counter = self.counter.wrapping_add(1);
        memory.store(at, 1).then_some(())
    }

    /// Notes a request that is about to be given back.
    pub fn ends(&self, memory: &impl Memory, head: u16) -> Option<()> {
        self.set(memory, LAST, head)
    }

    /// Clears the note of a request that was given back.
    pub fn ended(&self, memory: &impl Memory, head: u16, used: u16) -> Option<()> {
        self.clear(memory, head)?;
        self.set(memory, USED, used)
    }

    fn note(&self, head: u16) -> u64 {
        self.at + HEAD + u64::from(head) * NOTE
    }

    fn clear(&self, memory: &impl Memory, head: u16) -> Option<()> {
        memory.store(self.note(head), 0).then_some(())
    }

    fn set(&self, memory: &impl Memory, field: u64, value: u16) -> Option<()> {
        memory.store(self.at + field, value).then_some(())
    }
}
