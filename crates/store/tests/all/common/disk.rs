//! A simulated device with a volatile cache, for crashes.
//!
//! Fault model: at a crash, a write that no flush covers is kept, dropped or torn at 512 bytes
//! (each sector is old, new or garbage). The same applies to a write that had not completed. Places
//! that were never written read as garbage. Space that is given back counts as a write of zeros. On
//! request, bits rot, and writes are lost or land elsewhere although the device reported success.

use base::Prng;
use std::collections::{BTreeMap, BTreeSet};

const PAGE: usize = 4096;
const SECTOR: usize = 512;

#[derive(Clone, Default)]
struct Pages(BTreeMap<u64, Box<[u8; PAGE]>>);

impl Pages {
    fn each(at: u64, len: usize, mut f: impl FnMut(u64, usize, std::ops::Range<usize>)) {
        let mut done = 0;
        while done < len {
            let (page, start) =
                ((at + done as u64) / PAGE as u64, ((at + done as u64) % PAGE as u64) as usize);
            let take = (PAGE - start).min(len - done);
            f(page, start, done..done + take);
            done += take;
        }
    }

    fn read(&self, at: u64, into: &mut [u8]) {
        Pages::each(at, into.len(), |page, start, part| match self.0.get(&page) {
            Some(p) => {
                let len = part.len();
                into[part].copy_from_slice(&p[start..start + len]);
            }
            None => into[part].fill(0xdb),
        });
    }

    fn write(&mut self, at: u64, data: &[u8]) {
        Pages::each(at, data.len(), |page, start, part| {
            let p = self.0.entry(page).or_insert_with(|| Box::new([0xdb; PAGE]));
            p[start..start + part.len()].copy_from_slice(&data[part]);
        });
    }
}

/// Fate of the writes that no flush covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// All of them are lost.
    Dropped,
    /// All of them are kept.
    Kept,
    /// Each one on its own: kept, lost, or torn.
    Random,
}

/// A simulated device.
#[derive(Clone)]
pub(crate) struct Disk {
    pub size: u64,
    seen: Pages,
    durable: Pages,
    /// Writes that no flush covers, in order: number, place, data, and whether the write was
    /// durable when it completed.
    unflushed: Vec<(u64, u64, Vec<u8>, bool)>,
    ended: u64,
    /// Every write is durable when it completes.
    pub write_through: bool,
    /// Pages whose space was given back, and that were not written since.
    holes: BTreeSet<u64>,
}

impl Disk {
    pub(crate) fn new(size: u64, write_through: bool) -> Disk {
        let (seen, durable) = (Pages::default(), Pages::default());
        let (unflushed, holes) = (Vec::new(), BTreeSet::new());
        Disk { size, seen, durable, unflushed, ended: 0, write_through, holes }
    }

    /// Gives space back: it reads as zeros. Until a flush, a crash may undo that.
    pub(crate) fn punch(&mut self, at: u64, len: u64) {
        self.write(at, &vec![0; len as usize], false);
        self.holes.extend(at / PAGE as u64..(at + len) / PAGE as u64);
    }

    /// Returns the number of bytes without space.
    pub(crate) fn holes(&self) -> u64 {
        (self.holes.len() * PAGE) as u64
    }

    pub(crate) fn read(&self, at: u64, into: &mut [u8]) {
        assert!(at + into.len() as u64 <= self.size, "a read beyond the end");
        self.seen.read(at, into);
    }

    pub(crate) fn write(&mut self, at: u64, data: &[u8], durable: bool) {
        assert!(at + data.len() as u64 <= self.size, "a write beyond the end");
        assert!(at.is_multiple_of(512) && data.len().is_multiple_of(512));
        self.seen.write(at, data);
        let pages = at / PAGE as u64..(at + data.len() as u64).div_ceil(PAGE as u64);
        for page in pages {
            self.holes.remove(&page);
        }
        if self.write_through {
            self.durable.write(at, data);
        } else {
            self.unflushed.push((self.ended, at, data.to_vec(), durable));
        }
        self.ended += 1;
    }

    /// Returns the number of the first write that a flush does not cover if it is emitted now.
    pub(crate) fn flush_begins(&self) -> u64 {
        self.ended
    }

    pub(crate) fn flush_ends(&mut self, covers: u64) {
        let durable = &mut self.durable;
        self.unflushed.retain(|(number, at, data, _)| {
            if *number < covers {
                durable.write(*at, data);
            }
            *number >= covers
        });
    }

    /// Cuts the power. `open` are writes that had not completed.
    pub(crate) fn crash(&mut self, open: Vec<(u64, Vec<u8>)>, fate: Fate, prng: &mut Prng) {
        let ended = std::mem::take(&mut self.unflushed).into_iter();
        let ended = ended.map(|(_, at, data, durable)| (at, data, durable));
        for (at, data, durable) in ended.chain(open.into_iter().map(|(at, data)| (at, data, false)))
        {
            let choice = match fate {
                _ if durable => 1,
                Fate::Dropped => 0,
                Fate::Kept => 1,
                Fate::Random => prng.below(5),
            };
            match choice {
                0 => {}
                1 => self.durable.write(at, &data),
                // Only the first sector is there: this resembles a batch most.
                2 => self.durable.write(at, &data[..SECTOR]),
                _ => {
                    for (i, sector) in data.chunks(SECTOR).enumerate() {
                        let at = at + (i * SECTOR) as u64;
                        match prng.below(if choice == 3 { 2 } else { 5 }) {
                            0 | 3 => self.durable.write(at, sector),
                            4 => self.durable.write(at, &[prng.next_u64() as u8; SECTOR]),
                            _ => {}
                        }
                    }
                }
            }
        }
        self.seen = self.durable.clone();
    }

    /// Flips some bits of the byte at `at`.
    pub(crate) fn rot(&mut self, at: u64) {
        let mut byte = [0];
        self.seen.read(at, &mut byte);
        self.seen.write(at, &[byte[0] ^ 0x41]);
        self.durable.write(at, &[byte[0] ^ 0x41]);
    }
}
