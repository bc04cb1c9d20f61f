//! Simulated devices.
//!
//! Fault model: what a *log* or a *file* has not been told to flush is, at a power loss, kept, lost or torn,
//! per write and per sector; a file's sectors may turn to garbage as well. A mere death of the process keeps
//! what had ended. A *memory* device is wiped with its process.
//!
//! On demand a file is damaged: bits of a page rot, its sectors can't be read any more, a write is lost, or
//! goes astray over another page. The *atlas* knows each damaged page and what it should hold, until it is
//! written anew, so that what nobody has found can be taken back before the other copy goes.
//!
//! Fresh bytes are no zeros: what a node shows without having written it must stand out.

use base::{Map, Prng};
use seam::{Buf, BufPool, DiskError};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

const PAGE: u64 = 4096;
const SECTOR: usize = 512;

/// What a device keeps, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskKind {
    /// Memory of a data server.
    Memory,
    /// A file of a data server, under a cache that needs flushes.
    File,
    /// Nothing is kept; reads are zeros.
    Null,
    /// The MDM's file: like `File`, and its sectors are old or new.
    Log,
}

/// How a page is damaged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Damage {
    /// Some of its bits are flipped.
    Rot,
    /// It can't be read.
    Sector,
    /// The next write to the slots is lost, although it ends well.
    Lost,
    /// The next write to the slots lands on this page.
    Astray,
}

/// A damaged page: what it should hold.
#[derive(Debug)]
struct Wrong {
    right: Box<[u8; PAGE as usize]>,
    unreadable: bool,
    /// Writes that had ended before.
    since: u64,
    /// The device has said that it had written it.
    lie: bool,
}

/// After so many more writes a log has another batch: data in the last one that is damaged looks like a write
/// that was never finished, and a store can't tell.
const SETTLED: u64 = 20;

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

    fn each(at: u64, len: usize, mut f: impl FnMut(u64, usize, Range<usize>)) {
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
    /// It was durable when it ended, and is here only since an older one must not land later.
    durable: bool,
    /// Its write-back failed: its pages read well, count as clean, and no flush writes them.
    given_up: bool,
}

impl Unflushed {
    /// It wrote some of these bytes.
    fn touches(&self, at: u64, len: u64) -> bool {
        self.at < at + len && at < self.at + self.data.len() as u64
    }
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
    /// Damaged pages by number.
    atlas: BTreeMap<u64, Wrong>,
    /// Pages that are or were damaged.
    harmed: BTreeSet<u64>,
    /// Pages of reads that have failed although nothing was damaged.
    failed: BTreeSet<u64>,
    /// What becomes of the next write of data.
    trap: Option<Trap>,
}

/// Something that happens to a later write.
#[derive(Clone, Debug)]
struct Trap {
    damage: Damage,
    /// The page that was meant.
    page: u64,
    /// Where data is.
    data: Vec<Range<u64>>,
}

impl Trap {
    fn is_data(&self, at: u64) -> bool {
        self.data.iter().any(|range| range.contains(&at))
    }
}

impl Disk {
    /// An empty device.
    pub fn new(kind: DiskKind, size: u64) -> Disk {
        let fill = if matches!(kind, DiskKind::Memory | DiskKind::File) { 0xdb } else { 0 };
        let pages = Pages::new(fill);
        Disk {
            kind,
            size,
            seen: pages.clone(),
            durable: pages,
            unflushed: Vec::new(),
            ended: 0,
            atlas: BTreeMap::new(),
            harmed: BTreeSet::new(),
            failed: BTreeSet::new(),
            trap: None,
        }
    }

    /// Another device with the same content, as somebody copies it who reads it from its beginning
    /// to its end.
    pub fn copy(&self) -> Disk {
        let (seen, durable) = (self.seen.clone(), self.seen.clone());
        Disk { seen, durable, ..Disk::new(self.kind, self.size) }
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    fn is_cached(&self) -> bool {
        matches!(self.kind, DiskKind::File | DiskKind::Log)
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
        let pages = at / PAGE..(at + len as u64).div_ceil(PAGE);
        if self.atlas.range(pages).any(|(_, w)| w.unreadable) {
            return Err(DiskError::Io);
        }
        let mut buf = pool.alloc(len);
        if self.kind == DiskKind::Null {
            buf.as_mut().fill(0);
        } else {
            self.seen.read(at, buf.as_mut());
        }
        Ok(buf)
    }

    /// The bytes at `at`, for the oracle, without damage.
    pub fn peek(&self, at: u64, into: &mut [u8]) {
        self.seen.read(at, into);
        Pages::each(at, into.len(), |page, start, part| {
            if let Some(wrong) = self.atlas.get(&page) {
                let len = part.len();
                into[part].copy_from_slice(&wrong.right[start..start + len]);
            }
        });
    }

    /// A write ended, durably or not: reads see it.
    pub fn write(&mut self, at: u64, data: &[u8], durable: bool) -> Result<(), DiskError> {
        self.check(at, data.len())?;
        if self.kind == DiskKind::Null {
            return Ok(());
        }
        if let Some(trap) = self.trap.take_if(|trap| trap.is_data(at)) {
            self.go_wrong(&trap, at, data, durable);
            return Ok(());
        }
        self.put(at, data, durable);
        Ok(())
    }

    fn put(&mut self, at: u64, data: &[u8], durable: bool) {
        self.mend(at, data.len());
        self.seen.write(at, data);
        if !self.is_cached() {
            return;
        }
        let len = data.len() as u64;
        if durable && !self.unflushed.iter().any(|w| w.touches(at, len)) {
            self.durable.write(at, data);
        } else {
            let (number, data) = (self.ended, data.to_vec());
            self.unflushed.push(Unflushed { number, at, data, durable, given_up: false });
        }
        self.ended += 1;
    }

    // ---- damage ----

    /// Damages a page that is at rest and whole; false when it is neither, or the damage has to wait for a
    /// write to where data is.
    pub fn damage(
        &mut self,
        damage: Damage,
        at: u64,
        data: Vec<Range<u64>>,
        prng: &mut Prng,
    ) -> bool {
        let page = at / PAGE;
        let busy = self.unflushed.iter().any(|w| w.touches(page * PAGE, PAGE));
        if busy || self.atlas.contains_key(&page) {
            return false;
        }
        match damage {
            Damage::Lost | Damage::Astray => {
                self.trap = Some(Trap { damage, page, data });
                false
            }
            Damage::Sector => {
                let right = self.page(page);
                let since = self.ended;
                self.atlas.insert(page, Wrong { right, unreadable: true, since, lie: false });
                self.harmed.insert(page);
                true
            }
            Damage::Rot => {
                let right = self.page(page);
                let mut wrong = right.clone();
                for _ in 0..prng.range(1, 9) {
                    wrong[prng.below(PAGE) as usize] ^= 1 << prng.below(8);
                }
                if *wrong == *right {
                    wrong[0] ^= 1;
                }
                self.spoil(page, right, &wrong[..], false);
                true
            }
        }
    }

    /// Inverts a byte, for good; once more undoes it. The device is at rest.
    pub fn flip(&mut self, at: u64) {
        for pages in [&mut self.seen, &mut self.durable] {
            let mut byte = [0];
            pages.read(at, &mut byte);
            pages.write(at, &[!byte[0]]);
        }
    }

    /// The device has so many bytes from now on; what is behind them stays, and is out of reach.
    pub fn resize(&mut self, bytes: u64) {
        self.size = bytes;
    }

    fn page(&self, page: u64) -> Box<[u8; PAGE as usize]> {
        let mut bytes = Box::new([0; PAGE as usize]);
        self.seen.read(page * PAGE, &mut bytes[..]);
        bytes
    }

    fn spoil(&mut self, page: u64, right: Box<[u8; PAGE as usize]>, wrong: &[u8], lie: bool) {
        self.seen.write(page * PAGE, wrong);
        self.durable.write(page * PAGE, wrong);
        let since = self.ended;
        self.atlas.insert(page, Wrong { right, unreadable: false, since, lie });
        self.harmed.insert(page);
    }

    /// A write whose end is a lie.
    fn go_wrong(&mut self, trap: &Trap, at: u64, data: &[u8], durable: bool) {
        let whole = at.is_multiple_of(PAGE) && data.len().is_multiple_of(PAGE as usize);
        let page = trap.page;
        let astray = trap.damage == Damage::Astray && trap.is_data(page * PAGE);
        let busy = self.unflushed.iter().any(|w| trap.is_data(w.at));
        if !whole || data.len() as u64 > 4 * PAGE || busy {
            return self.put(at, data, durable);
        }
        self.mend(at, data.len());
        for (i, part) in data.chunks(PAGE as usize).enumerate() {
            let here = at / PAGE + i as u64;
            let old = self.page(here);
            self.spoil(here, part.try_into().map(Box::new).expect("a page"), &old[..], true);
        }
        let hit = (at / PAGE..(at + data.len() as u64) / PAGE).contains(&page);
        if astray && !hit && !self.atlas.contains_key(&page) {
            let right = self.page(page);
            self.spoil(page, right, &data[..PAGE as usize], true);
        }
    }

    /// These bytes are about to be written: what is wrong with them is over.
    fn mend(&mut self, at: u64, len: usize) {
        let pages = at / PAGE..(at + len as u64).div_ceil(PAGE);
        let wrong: Vec<u64> = self.atlas.range(pages).map(|(page, _)| *page).collect();
        wrong.into_iter().for_each(|page| self.heal(page));
    }

    fn heal(&mut self, page: u64) {
        if let Some(wrong) = self.atlas.remove(&page).filter(|w| !w.unreadable) {
            self.seen.write(page * PAGE, &wrong.right[..]);
            self.durable.write(page * PAGE, &wrong.right[..]);
        }
    }

    /// Takes all damage back that was not written over; tells how many pages.
    pub fn heal_all(&mut self) -> usize {
        self.trap = None;
        let pages: Vec<u64> = self.atlas.keys().copied().collect();
        pages.iter().for_each(|page| self.heal(*page));
        pages.len()
    }

    /// The next writes go where they should.
    pub fn disarm(&mut self) {
        self.trap = None;
    }

    /// Takes back the damage of this byte's page.
    pub fn heal_at(&mut self, at: u64) {
        self.heal(at / PAGE);
    }

    /// The process dies: takes back what its next life could not tell from a write that was never finished. If it `rests`,
    /// its log tells that all writes are finished: damage stays, however young the write is.
    pub fn forget_lies(&mut self, rests: bool) {
        self.trap = None;
        let recent = |w: &Wrong| !rests && (w.lie || self.ended - w.since < SETTLED);
        let pages: Vec<u64> =
            self.atlas.iter().filter(|(_, w)| recent(w)).map(|(page, _)| *page).collect();
        pages.into_iter().for_each(|page| self.heal(page));
    }

    /// True while something on it is damaged, or is about to be.
    pub fn is_wrong(&self) -> bool {
        self.trap.is_some() || !self.atlas.is_empty()
    }

    /// True when the page of this byte is damaged. A write that was lost, and would have changed nothing, has
    /// done no harm.
    pub fn is_damaged(&self, at: u64) -> bool {
        let harmed = |w: &Wrong| w.unreadable || w.right != self.page(at / PAGE);
        self.atlas.get(&(at / PAGE)).is_some_and(harmed)
    }

    /// A read fails, whatever is there.
    pub fn fail(&mut self, at: u64, len: usize) {
        self.failed.extend(at / PAGE..(at + len as u64).div_ceil(PAGE));
    }

    /// True when a read of something else than these bytes has failed although nothing was damaged: checksums, for example.
    pub fn has_failed_outside(&self, data: &[Range<u64>]) -> bool {
        let within = |page: &u64| data.iter().any(|range| range.contains(&(page * PAGE)));
        self.failed.iter().any(|page| !within(page))
    }

    /// True when the page of this byte is damaged, or was, or a read of it has failed.
    pub fn is_or_was_damaged(&self, at: u64) -> bool {
        let page = at / PAGE;
        self.harmed.contains(&page) || self.failed.contains(&page)
    }

    /// True when any of it is damaged, or was, or could not be read.
    pub fn was_harmed(&self) -> bool {
        !self.failed.is_empty() || !self.harmed.is_empty()
    }

    /// A flush begins: it will cover the writes that have ended, i.e. those below this number.
    pub fn flush_begins(&self) -> u64 {
        self.ended
    }

    /// That flush ended.
    pub fn flush_ends(&mut self, covers: u64) {
        let durable = &mut self.durable;
        self.unflushed.retain(|w| {
            let keep = w.number >= covers || w.given_up;
            if !keep {
                durable.write(w.at, &w.data);
            }
            keep
        });
    }

    /// That flush failed: what it covers is on the disk, or in the page cache only, for as long as the power lasts.
    pub fn flush_fails(&mut self, covers: u64, prng: &mut Prng) {
        let durable = &mut self.durable;
        self.unflushed.retain_mut(|w| {
            if w.number >= covers || w.given_up {
                return true;
            }
            w.given_up = prng.chance(0.7);
            if !w.given_up {
                durable.write(w.at, &w.data);
            }
            w.given_up
        });
    }

    /// That flush failed, of a device without a page cache: what it should have made durable may be lost, in part or whole, and the device tells nobody
    /// which.
    pub fn flush_drops(&mut self, covers: u64, prng: &mut Prng) {
        let older = |w: &Unflushed| w.number < covers && !w.durable;
        let (dropped, kept) = std::mem::take(&mut self.unflushed).into_iter().partition(older);
        let dropped: Vec<Unflushed> = dropped;
        self.unflushed = kept;
        for w in &dropped {
            tear(w.at, &w.data, false, prng, |at, part| self.durable.write(at, part));
        }
        for w in &dropped {
            let mut now = vec![0; w.data.len()];
            self.durable.read(w.at, &mut now);
            self.seen.write(w.at, &now);
        }
        for w in &self.unflushed {
            self.seen.write(w.at, &w.data);
        }
    }

    /// A write that was in flight when the process died: it may have happened, in part or whole.
    pub fn write_torn(&mut self, at: u64, data: &[u8], prng: &mut Prng) {
        if self.is_cached() && self.check(at, data.len()).is_ok() {
            self.mend(at, data.len());
            tear(at, data, false, prng, |at, part| {
                self.seen.write(at, part);
                let (number, data) = (self.ended, part.to_vec());
                self.unflushed.push(Unflushed {
                    number,
                    at,
                    data,
                    durable: false,
                    given_up: false,
                });
                self.ended += 1;
            });
        }
    }

    /// The power fails: each write that no flush covered is kept, lost, or torn.
    pub fn power_loss(&mut self, prng: &mut Prng) {
        for w in std::mem::take(&mut self.unflushed) {
            if w.given_up {
                continue;
            }
            if w.durable {
                self.durable.write(w.at, &w.data);
                continue;
            }
            let garbage = self.kind == DiskKind::File;
            tear(w.at, &w.data, garbage, prng, |at, part| self.durable.write(at, part));
        }
        if self.is_cached() {
            self.seen = self.durable.clone();
        }
    }

    /// Everything on it is gone.
    pub fn wipe(&mut self) {
        *self = Disk::new(self.kind, self.size);
    }
}

/// Keeps all, nothing, some pages, or some sectors; others become garbage, if that may be.
fn tear(at: u64, data: &[u8], garbage: bool, prng: &mut Prng, mut keep: impl FnMut(u64, &[u8])) {
    match prng.below(if garbage { 5 } else { 3 }) {
        0 => {}
        1 => keep(at, data),
        3 => {
            for (i, page) in data.chunks(PAGE as usize).enumerate() {
                if prng.chance(0.5) {
                    keep(at + (i as u64) * PAGE, page);
                }
            }
        }
        4 => {
            for (i, sector) in data.chunks(SECTOR).enumerate() {
                match prng.below(3) {
                    0 => {}
                    1 => keep(at + (i * SECTOR) as u64, sector),
                    _ => keep(at + (i * SECTOR) as u64, &[prng.next_u64() as u8; SECTOR]),
                }
            }
        }
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
            d.write(4000, &[1; 1024], false).unwrap();
            let covers = d.flush_begins();
            d.write(4000, &[2; 512], false).unwrap();
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
    fn what_was_written_through_survives_whatever_became_of_older_writes() {
        let (mut prng, pool) = (Prng::new(2), BufPool::new(0));
        for _ in 0..100 {
            let mut d = Disk::new(DiskKind::File, 1 << 20);
            d.write(4096, &[1; 8192], false).unwrap();
            d.write(8192, &[2; 4096], true).unwrap();
            d.write(65536, &[3; 4096], true).unwrap();
            d.power_loss(&mut prng);
            assert_eq!(d.read(8192, 4096, &pool).unwrap()[..], [2; 4096]);
            assert_eq!(d.read(65536, 4096, &pool).unwrap()[..], [3; 4096]);
        }
    }

    #[test]
    fn what_a_failed_flush_gave_up_is_seen_and_gone_with_the_power() {
        let (mut prng, pool) = (Prng::new(3), BufPool::new(0));
        let mut gone = 0;
        for _ in 0..100 {
            let mut d = Disk::new(DiskKind::Log, 1 << 20);
            d.write(0, &[1; 512], false).unwrap();
            let covers = d.flush_begins();
            d.flush_fails(covers, &mut prng);
            let covers = d.flush_begins();
            d.flush_ends(covers);
            assert_eq!(d.read(0, 512, &pool).unwrap()[..], [1; 512]);
            d.power_loss(&mut prng);
            gone += u32::from(d.read(0, 512, &pool).unwrap()[0] == 0);
        }
        assert!((50..90).contains(&gone));
    }

    #[test]
    fn a_flush_that_fails_drops_what_it_covers_and_nothing_else() {
        let (mut prng, pool) = (Prng::new(3), BufPool::new(0));
        let mut lost = 0;
        for _ in 0..100 {
            let mut d = Disk::new(DiskKind::File, 1 << 20);
            d.write(0, &[1; 4096], false).unwrap();
            let covers = d.flush_begins();
            d.flush_ends(covers);
            d.write(0, &[2; 4096], false).unwrap();
            let covers = d.flush_begins();
            d.write(8192, &[3; 4096], false).unwrap();
            d.flush_drops(covers, &mut prng);
            let seen = d.read(0, 4096, &pool).unwrap();
            assert!(seen.iter().all(|b| [1, 2].contains(b)));
            assert_eq!(d.read(8192, 4096, &pool).unwrap()[..], [3; 4096]);
            lost += u32::from(seen[0] == 1);
        }
        assert!((20..80).contains(&lost));
    }

    #[test]
    fn a_death_takes_damage_back_only_as_long_as_a_log_can_t_tell_it() {
        let left = |rests: bool, later: u64| {
            let (mut d, mut prng) = (Disk::new(DiskKind::File, 1 << 20), Prng::new(4));
            d.write(0, &[1; 4096], true).unwrap();
            assert!(d.damage(Damage::Rot, 0, Vec::new(), &mut prng));
            let page = |at: u64| std::iter::once(at..at + PAGE).collect();
            // The next write to the second page is lost.
            d.damage(Damage::Lost, 4096, page(4096), &mut prng);
            d.write(4096, &[2; 4096], true).unwrap();
            (0..later).for_each(|_| d.write(65536, &[3; 4096], true).unwrap());
            // And one more would be lost.
            d.damage(Damage::Lost, 8192, page(8192), &mut prng);
            d.forget_lies(rests);
            d.write(8192, &[4; 4096], true).unwrap();
            [0, 4096, 8192].map(|at| d.is_damaged(at))
        };
        assert_eq!(left(true, 0), [true, true, false], "all is told, and nothing goes wrong later");
        assert_eq!(left(false, 0), [false, false, false], "it may never have been finished");
        assert_eq!(
            left(false, SETTLED),
            [true, false, false],
            "a lost write never was, by its log"
        );
    }

    #[test]
    fn ranges_are_checked() {
        let mut d = Disk::new(DiskKind::Memory, 4096);
        assert_eq!(d.write(4095, &[0; 2], false), Err(DiskError::OutOfRange));
        assert_eq!(d.write(u64::MAX, &[0; 2], true), Err(DiskError::OutOfRange));
    }
}
