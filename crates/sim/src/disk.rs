//! Simulated devices.
//!
//! Fault model: a device never damages what is durable. What a *log* device has not been told to
//! flush is kept, lost or torn at a power loss, per write and per sector; a mere death of the process
//! keeps what had ended. A *memory* device applies a write in the step in which the node learns of
//! its end, so that bytes and the node's own records change as one (rule R5); it is wiped with its
//! process, or kept together with the node's durable records. Its fresh bytes are no zeros: what a
//! node shows without having written it must stand out.

use base::{Map, Prng};
use seam::{Buf, BufPool, DiskError};

const PAGE: u64 = 4096;
const SECTOR: usize = 512;

/// What a device keeps, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskKind {
    /// Memory of a data server.
    Memory,
    /// Nothing is kept; reads are zeros.
    Null,
    /// A file that survives, under a cache that needs flushes.
    Log,
}

/// Sparse bytes.
#[derive(Clone, Debug)]
struct Pages {
    map: Map<u64, Box<[u8; PAGE as usize]>>,
    fill: u8,
}

impl Pages {
    fn new(fill: u8) -> Pages {
        Pages { map: Map::default(), fill }
    }

    fn each(at: u64, len: usize, mut f: impl FnMut(u64, usize, std::ops::Range<usize>)) {
        let mut done = 0;
        while done < len {
            let here = at + done as u64;
            let start = (here % PAGE) as usize;
            let take = (PAGE as usize - start).min(len - done);
            f(here / PAGE, start, done..done + take);
            done += take;
        }
    }

    fn read(&self, at: u64, into: &mut [u8]) {
        Pages::each(at, into.len(), |page, start, part| match self.map.get(&page) {
            Some(p) => {
                let len = part.len();
                into[part].copy_from_slice(&p[start..start + len]);
            }
            None => into[part].fill(self.fill),
        });
    }

    fn write(&mut self, at: u64, data: &[u8]) {
        let fill = self.fill;
        Pages::each(at, data.len(), |page, start, part| {
            let p = self.map.entry(page).or_insert_with(|| Box::new([fill; PAGE as usize]));
            p[start..start + part.len()].copy_from_slice(&data[part]);
        });
    }
}

/// A write that no flush covers yet.
#[derive(Debug)]
struct Unflushed {
    number: u64,
    at: u64,
    data: Vec<u8>,
}

/// One device.
#[derive(Debug)]
pub struct Disk {
    kind: DiskKind,
    size: u64,
    /// What reads see.
    seen: Pages,
    /// Log: what survives a power loss.
    durable: Pages,
    unflushed: Vec<Unflushed>,
    ended: u64,
}

impl Disk {
    /// An empty device.
    pub fn new(kind: DiskKind, size: u64) -> Disk {
        let fill = if kind == DiskKind::Memory { 0xdb } else { 0 };
        let pages = Pages::new(fill);
        Disk { kind, size, seen: pages.clone(), durable: pages, unflushed: Vec::new(), ended: 0 }
    }

    /// Its kind.
    pub fn kind(&self) -> DiskKind {
        self.kind
    }

    fn check(&self, at: u64, len: usize) -> Result<(), DiskError> {
        match at.checked_add(len as u64) {
            Some(end) if end <= self.size => Ok(()),
            _ => Err(DiskError::OutOfRange),
        }
    }

    /// The bytes at `at`.
    pub fn read(&self, at: u64, len: usize, pool: &BufPool) -> Result<Buf, DiskError> {
        self.check(at, len)?;
        let mut buf = pool.alloc(len);
        if self.kind == DiskKind::Null {
            buf.as_mut().fill(0);
        } else {
            self.seen.read(at, buf.as_mut());
        }
        Ok(buf)
    }

    /// The bytes at `at`, for the oracle.
    pub fn peek(&self, at: u64, into: &mut [u8]) {
        self.seen.read(at, into);
    }

    /// A write ended: reads see it.
    pub fn write(&mut self, at: u64, data: &[u8]) -> Result<(), DiskError> {
        self.check(at, data.len())?;
        if self.kind == DiskKind::Null {
            return Ok(());
        }
        self.seen.write(at, data);
        if self.kind == DiskKind::Log {
            self.unflushed.push(Unflushed { number: self.ended, at, data: data.to_vec() });
            self.ended += 1;
        }
        Ok(())
    }

    /// A flush begins: it will cover the writes that have ended, i.e. those below this number.
    pub fn flush_begins(&self) -> u64 {
        self.ended
    }

    /// That flush ended.
    pub fn flush_ends(&mut self, covers: u64) {
        let durable = &mut self.durable;
        self.unflushed.retain(|w| {
            let keep = w.number >= covers;
            if !keep {
                durable.write(w.at, &w.data);
            }
            keep
        });
    }

    /// A write that was in flight when the process died: it may have happened, in part or whole.
    pub fn write_torn(&mut self, at: u64, data: &[u8], prng: &mut Prng) {
        if self.kind == DiskKind::Log && self.check(at, data.len()).is_ok() {
            tear(at, data, prng, |at, part| {
                self.seen.write(at, part);
                self.unflushed.push(Unflushed { number: self.ended, at, data: part.to_vec() });
                self.ended += 1;
            });
        }
    }

    /// The power fails: each write that no flush covered is kept, lost, or torn.
    pub fn power_loss(&mut self, prng: &mut Prng) {
        for w in std::mem::take(&mut self.unflushed) {
            tear(w.at, &w.data, prng, |at, part| self.durable.write(at, part));
        }
        if self.kind == DiskKind::Log {
            self.seen = self.durable.clone();
        }
    }

    /// Everything on it is gone.
    pub fn wipe(&mut self) {
        *self = Disk::new(self.kind, self.size);
    }
}

/// Keeps all, nothing, or some sectors.
fn tear(at: u64, data: &[u8], prng: &mut Prng, mut keep: impl FnMut(u64, &[u8])) {
    match prng.below(3) {
        0 => {}
        1 => keep(at, data),
        _ => {
            for (i, sector) in data.chunks(SECTOR).enumerate() {
                if prng.chance(0.5) {
                    keep(at + (i * SECTOR) as u64, sector);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushed_survives_and_unflushed_is_seen_until_the_power_fails() {
        let (mut prng, pool) = (Prng::new(1), BufPool::new(0));
        let mut lost = 0;
        for _ in 0..100 {
            let mut d = Disk::new(DiskKind::Log, 1 << 20);
            d.write(4000, &[1; 1024]).unwrap();
            let covers = d.flush_begins();
            d.write(4000, &[2; 512]).unwrap();
            d.flush_ends(covers);
            assert_eq!(d.read(4000, 512, &pool).unwrap()[..], [2; 512]);
            d.power_loss(&mut prng);
            let now = d.read(4000, 1024, &pool).unwrap();
            assert!(now[..512] == [1; 512] || now[..512] == [2; 512]);
            assert_eq!(now[512..], [1; 512]);
            lost += u32::from(now[0] == 1);
        }
        assert!((20..80).contains(&lost));
    }

    #[test]
    fn ranges_are_checked() {
        let mut d = Disk::new(DiskKind::Memory, 4096);
        assert_eq!(d.write(4095, &[0; 2]), Err(DiskError::OutOfRange));
        assert_eq!(d.write(u64::MAX, &[0; 2]), Err(DiskError::OutOfRange));
    }
}
