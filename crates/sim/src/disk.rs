//! Simulated devices.
//!
//! Fault model: at a power loss, each write to a *log* or a *file* that was not flushed is kept,
//! lost or torn. A torn write keeps some of its sectors; on a file it may instead keep some of its
//! pages, or leave garbage in some sectors. When only the process dies, all finished operations are
//! kept. A *memory* device is wiped with its process. Space that was given back counts as a write
//! of zeros, of which a power loss may keep some pages.
//!
//! On demand a file is damaged: bits of a page rot, its sectors become unreadable, a write is
//! lost, or a write lands on another page. The *atlas* holds each damaged page and its correct
//! content until the page is rewritten, so that damage nobody has found can be undone before
//! the other copy goes.
//!
//! Fresh bytes are not zeros, so that a node's reads of bytes that it has never written stand out.

use base::{Map, Prng};
use seam::{Buf, BufPool, DiskError};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

const PAGE: u64 = 4096;
const SECTOR: usize = 512;

/// Kind of a device: what it keeps, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskKind {
    /// Memory of a data server.
    Memory,
    /// A file of a data server, with a cache that needs flushes.
    File,
    /// Keeps nothing; reads return zeros.
    Null,
    /// The log file of an MDM: like `File`, but sectors never turn to garbage.
    Log,
}

/// Kind of damage to a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Damage {
    /// Some bits are flipped.
    Rot,
    /// The page can't be read.
    Sector,
    /// The next write to the slots is lost, although it is reported as done.
    Lost,
    /// The next write to the slots lands on this page instead of its own place.
    Astray,
}

/// A damaged page, with its correct content.
#[derive(Clone, Debug)]
struct Wrong {
    right: Box<[u8; PAGE as usize]>,
    unreadable: bool,
    /// Number of writes that had ended before.
    since: u64,
    /// The device has reported a write of this page as done.
    lie: bool,
}

/// After this many more writes a log has another batch. Until then, damage to the data of the last
/// batch looks like an unfinished write, and a store can't tell the two apart.
const SETTLED: u64 = 20;

/// Sparse bytes of a device.
#[derive(Clone, Debug)]
struct Pages {
    /// `None`: zeros, because the page was given back.
    map: Map<u64, Option<Box<[u8; PAGE as usize]>>>,
    /// The content of pages that are not in the map.
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
            Some(Some(p)) => {
                let len = part.len();
                into[part].copy_from_slice(&p[start..start + len]);
            }
            Some(None) => into[part].fill(0),
            None => into[part].fill(self.fill),
        });
    }

    fn write(&mut self, at: u64, data: &[u8]) {
        let fill = self.fill;
        Pages::each(at, data.len(), |page, start, part| {
            let new = || Some(Box::new([fill; PAGE as usize]));
            let p = self.map.entry(page).or_insert_with(new);
            let p = p.get_or_insert_with(|| Box::new([0; PAGE as usize]));
            p[start..start + part.len()].copy_from_slice(&data[part]);
        });
    }

    /// Gives whole pages back.
    fn punch(&mut self, pages: Range<u64>) {
        pages.for_each(|page| drop(self.map.insert(page, None)));
    }
}

/// A write that no flush covers yet.
#[derive(Debug)]
struct Unflushed {
    number: u64,
    at: u64,
    what: Content,
    /// The write was durable when it ended. It is listed only because an older write
    /// must not land later.
    durable: bool,
    /// The write-back of its pages failed: reads return them, they count as clean, and no
    /// flush writes them.
    given_up: bool,
}

/// The content that a write puts into its range.
#[derive(Debug)]
enum Content {
    Data(Vec<u8>),
    /// The space of this many bytes was given back.
    Hole(u64),
}

impl Unflushed {
    /// Returns true when it wrote any of these bytes.
    fn touches(&self, at: u64, len: u64) -> bool {
        self.at < at + len && at < self.at + self.what.len()
    }

    /// Writes all of it.
    fn put(&self, to: &mut Pages) {
        match &self.what {
            Content::Data(data) => to.write(self.at, data),
            Content::Hole(len) => to.punch(pages(self.at, *len)),
        }
    }

    /// Writes what a power loss leaves of it, as [`tear`] says.
    fn put_torn(&self, garbage: bool, prng: &mut Prng, to: &mut Pages) {
        match &self.what {
            Content::Data(data) => {
                tear(self.at, data, garbage, prng, |at, part| to.write(at, part));
            }
            Content::Hole(len) => {
                let all = prng.below(3);
                let keeps = |prng: &mut Prng| all == 1 || all == 2 && prng.chance(0.5);
                for page in pages(self.at, *len) {
                    if keeps(prng) {
                        to.punch(page..page + 1);
                    }
                }
            }
        }
    }
}

impl Content {
    fn len(&self) -> u64 {
        match self {
            Content::Data(data) => data.len() as u64,
            Content::Hole(len) => *len,
        }
    }
}

/// Returns the pages that lie wholly in this range.
fn pages(at: u64, len: u64) -> Range<u64> {
    at.div_ceil(PAGE)..((at + len) / PAGE).max(at.div_ceil(PAGE))
}

/// A simulated device.
#[derive(Debug)]
pub struct Disk {
    kind: DiskKind,
    size: u64,
    /// Content that reads return.
    seen: Pages,
    /// Content that survives a power loss.
    durable: Pages,
    unflushed: Vec<Unflushed>,
    ended: u64,
    /// Damaged pages by page number.
    damaged_pages: BTreeMap<u64, Wrong>,
    /// Pages that are or were damaged.
    harmed: BTreeSet<u64>,
    /// Pages of reads that failed although nothing was damaged.
    failed: BTreeSet<u64>,
    /// Damage that waits for the next write of data.
    trap: Option<Trap>,
}

/// Damage that a later write triggers.
#[derive(Clone, Debug)]
struct Trap {
    damage: Damage,
    /// The page that was chosen.
    page: u64,
    /// Byte ranges that hold data.
    data: Vec<Range<u64>>,
}

impl Trap {
    fn is_data(&self, at: u64) -> bool {
        self.data.iter().any(|range| range.contains(&at))
    }
}

impl Disk {
    /// Creates an empty device.
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
            damaged_pages: BTreeMap::new(),
            harmed: BTreeSet::new(),
            failed: BTreeSet::new(),
            trap: None,
        }
    }

    /// Returns a device with the same content, as a program that copies it from
    /// start to end reads it.
    pub fn copy(&self) -> Disk {
        let (seen, durable) = (self.seen.clone(), self.seen.clone());
        Disk { seen, durable, ..Disk::new(self.kind, self.size) }
    }

    /// Returns the device as it is when it is taken out: with the damage that it has.
    pub fn taken_out(&self) -> Disk {
        let damaged_pages = self.damaged_pages.clone();
        let (harmed, failed) = (self.harmed.clone(), self.failed.clone());
        Disk { damaged_pages, harmed, failed, ended: self.ended, ..self.copy() }
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    fn is_cached(&self) -> bool {
        matches!(self.kind, DiskKind::File | DiskKind::Log)
    }

    /// Returns the kind.
    pub fn kind(&self) -> DiskKind {
        self.kind
    }

    fn check(&self, at: u64, len: usize) -> Result<(), DiskError> {
        match at.checked_add(len as u64) {
            Some(end) if end <= self.size => Ok(()),
            _ => Err(DiskError::OutOfRange),
        }
    }

    /// Returns the bytes at `at`.
    pub fn read(&self, at: u64, len: usize, pool: &BufPool) -> Result<Buf, DiskError> {
        self.check(at, len)?;
        let pages = at / PAGE..(at + len as u64).div_ceil(PAGE);
        if self.damaged_pages.range(pages).any(|(_, w)| w.unreadable) {
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

    /// Returns the bytes at `at` without damage, for judges.
    pub fn peek(&self, at: u64, into: &mut [u8]) {
        self.seen.read(at, into);
        Pages::each(at, into.len(), |page, start, part| {
            if let Some(wrong) = self.damaged_pages.get(&page) {
                let len = part.len();
                into[part].copy_from_slice(&wrong.right[start..start + len]);
            }
        });
    }

    /// Applies a finished write, durable or not: reads see it.
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
            self.is_unflushed(at, Content::Data(data.to_vec()), durable);
        }
        self.ended += 1;
    }

    fn is_unflushed(&mut self, at: u64, what: Content, durable: bool) {
        let number = self.ended;
        self.unflushed.push(Unflushed { number, at, what, durable, given_up: false });
    }

    /// Gives the space of a range back, whole pages of it: they read as zeros. A file or log keeps
    /// its former content until a flush, as for any write.
    pub fn punch(&mut self, at: u64, len: u64) -> Result<(), DiskError> {
        self.check(at, usize::try_from(len).unwrap_or(usize::MAX))?;
        self.mend(at, len as usize);
        self.seen.punch(pages(at, len));
        if self.is_cached() {
            self.is_unflushed(at, Content::Hole(len), false);
            self.ended += 1;
        }
        Ok(())
    }

    /// Gives back a part of a range, or nothing: the operation failed, or its process died.
    pub fn punch_torn(&mut self, at: u64, len: u64, prng: &mut Prng) {
        let all = pages(at, len);
        let end = prng.range(all.start, all.end);
        let _ = self.punch(at, end * PAGE - at.min(end * PAGE));
    }

    // ---- damage ----

    /// Damages a page that is at rest and intact. Returns false if it is not, or if the damage
    /// waits for a later write of data.
    pub fn damage(
        &mut self,
        damage: Damage,
        at: u64,
        data: Vec<Range<u64>>,
        prng: &mut Prng,
    ) -> bool {
        let page = at / PAGE;
        let busy = self.unflushed.iter().any(|w| w.touches(page * PAGE, PAGE));
        if busy || self.damaged_pages.contains_key(&page) {
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
                self.damaged_pages
                    .insert(page, Wrong { right, unreadable: true, since, lie: false });
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

    /// Inverts a byte permanently; a second call undoes it. The device must be at rest.
    pub fn flip(&mut self, at: u64) {
        for pages in [&mut self.seen, &mut self.durable] {
            let mut byte = [0];
            pages.read(at, &mut byte);
            pages.write(at, &[!byte[0]]);
        }
    }

    /// Changes the size. Bytes beyond the new size are kept, but can't be reached.
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
        self.damaged_pages.insert(page, Wrong { right, unreadable: false, since, lie });
        self.harmed.insert(page);
    }

    /// Loses a write, or sends it astray, and reports it as done.
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
        if astray && !hit && !self.damaged_pages.contains_key(&page) {
            let right = self.page(page);
            self.spoil(page, right, &data[..PAGE as usize], true);
        }
    }

    /// Removes damage from bytes that are about to be written.
    fn mend(&mut self, at: u64, len: usize) {
        let pages = at / PAGE..(at + len as u64).div_ceil(PAGE);
        let wrong: Vec<u64> = self.damaged_pages.range(pages).map(|(page, _)| *page).collect();
        wrong.into_iter().for_each(|page| self.heal(page));
    }

    fn heal(&mut self, page: u64) {
        if let Some(wrong) = self.damaged_pages.remove(&page).filter(|w| !w.unreadable) {
            self.seen.write(page * PAGE, &wrong.right[..]);
            self.durable.write(page * PAGE, &wrong.right[..]);
        }
    }

    /// Undoes all damage that was not overwritten. Returns the number of pages.
    pub fn heal_all(&mut self) -> usize {
        self.trap = None;
        let pages: Vec<u64> = self.damaged_pages.keys().copied().collect();
        pages.iter().for_each(|page| self.heal(*page));
        pages.len()
    }

    /// Cancels damage that waits for a later write.
    pub fn disarm(&mut self) {
        self.trap = None;
    }

    /// Undoes the damage of the page at this byte.
    pub fn heal_at(&mut self, at: u64) {
        self.heal(at / PAGE);
    }

    /// Handles the death of the process: undoes damage that its next start could take for an
    /// unfinished write. If the device `rests`, its log says that all writes are finished, and
    /// damage stays even if the write is recent. While one of the last `pending` operations has not
    /// ended, the log calls no later write finished.
    pub fn forget_lies(&mut self, rests: bool, pending: u64) {
        self.trap = None;
        let hangs = pending > SETTLED;
        let recent = |w: &Wrong| !rests && (hangs || w.lie || self.ended - w.since < SETTLED);
        let pages: Vec<u64> =
            self.damaged_pages.iter().filter(|(_, w)| recent(w)).map(|(page, _)| *page).collect();
        pages.into_iter().for_each(|page| self.heal(page));
    }

    /// Returns true while a page is damaged, or damage waits for a later write.
    pub fn is_wrong(&self) -> bool {
        self.trap.is_some() || !self.damaged_pages.is_empty()
    }

    /// Returns true when the page at this byte is damaged. A lost write that would have changed
    /// nothing does not count.
    pub fn is_damaged(&self, at: u64) -> bool {
        let harmed = |w: &Wrong| w.unreadable || w.right != self.page(at / PAGE);
        self.damaged_pages.get(&(at / PAGE)).is_some_and(harmed)
    }

    /// Records a failed read of these bytes.
    pub fn fail(&mut self, at: u64, len: usize) {
        self.failed.extend(at / PAGE..(at + len as u64).div_ceil(PAGE));
    }

    /// Returns true when a read of other bytes than these has failed although nothing was damaged:
    /// of checksums, for example.
    pub fn has_failed_outside(&self, data: &[Range<u64>]) -> bool {
        let within = |page: &u64| data.iter().any(|range| range.contains(&(page * PAGE)));
        self.failed.iter().any(|page| !within(page))
    }

    /// Returns true when the page at this byte is or was damaged, or a read of it has failed.
    pub fn is_or_was_damaged(&self, at: u64) -> bool {
        let page = at / PAGE;
        self.harmed.contains(&page) || self.failed.contains(&page)
    }

    /// Begins a flush. It covers the writes that have ended, which are those with numbers
    /// below the returned one.
    pub fn flush_begins(&self) -> u64 {
        self.ended
    }

    /// Ends that flush.
    pub fn flush_ends(&mut self, covers: u64) {
        let durable = &mut self.durable;
        self.unflushed.retain(|w| {
            let keep = w.number >= covers || w.given_up;
            if !keep {
                w.put(durable);
            }
            keep
        });
    }

    /// Fails that flush on a device with a page cache: each write that it covers is on the disk, or
    /// only in the page cache until the power fails.
    pub fn flush_fails(&mut self, covers: u64, prng: &mut Prng) {
        let durable = &mut self.durable;
        self.unflushed.retain_mut(|w| {
            if w.number >= covers || w.given_up {
                return true;
            }
            w.given_up = prng.chance(0.7);
            if !w.given_up {
                w.put(durable);
            }
            w.given_up
        });
    }

    /// Fails that flush on a device without a page cache: the writes that it covers may be lost,
    /// partly or fully, and the device does not report which.
    pub fn flush_drops(&mut self, covers: u64, prng: &mut Prng) {
        let older = |w: &Unflushed| w.number < covers && !w.durable;
        let (dropped, kept) = std::mem::take(&mut self.unflushed).into_iter().partition(older);
        let dropped: Vec<Unflushed> = dropped;
        self.unflushed = kept;
        for w in &dropped {
            w.put_torn(false, prng, &mut self.durable);
        }
        for w in &dropped {
            let mut now = vec![0; w.what.len() as usize];
            self.durable.read(w.at, &mut now);
            self.seen.write(w.at, &now);
        }
        for w in &self.unflushed {
            w.put(&mut self.seen);
        }
    }

    /// Applies a write that was in flight when the process died: it may have happened partly, fully
    /// or not at all.
    pub fn write_torn(&mut self, at: u64, data: &[u8], prng: &mut Prng) {
        if self.is_cached() && self.check(at, data.len()).is_ok() {
            self.mend(at, data.len());
            tear(at, data, false, prng, |at, part| {
                self.seen.write(at, part);
                let (number, what) = (self.ended, Content::Data(part.to_vec()));
                let new = Unflushed { number, at, what, durable: false, given_up: false };
                self.unflushed.push(new);
                self.ended += 1;
            });
        }
    }

    /// Applies a power loss: each write that no flush covered is kept, lost, or torn.
    pub fn power_loss(&mut self, prng: &mut Prng) {
        for w in std::mem::take(&mut self.unflushed) {
            if w.given_up {
                continue;
            }
            if w.durable {
                w.put(&mut self.durable);
                continue;
            }
            let garbage = self.kind == DiskKind::File;
            w.put_torn(garbage, prng, &mut self.durable);
        }
        if self.is_cached() {
            self.seen = self.durable.clone();
        }
    }

    /// Deletes all content.
    pub fn wipe(&mut self) {
        *self = Disk::new(self.kind, self.size);
    }
}

/// Keeps all, nothing, some pages, or some sectors of a write; with `garbage`, other sectors may
/// turn to garbage.
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
    fn data_written_through_survives_whatever_happens_to_older_writes() {
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
    fn data_dropped_by_a_failed_flush_is_readable_until_the_power_fails() {
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
        let left = |rests: bool, pending: u64, later: u64| {
            let (mut d, mut prng) = (Disk::new(DiskKind::File, 1 << 20), Prng::new(4));
            d.write(0, &[1; 4096], true).unwrap();
            assert!(d.damage(Damage::Rot, 0, Vec::new(), &mut prng));
            let page = |at: u64| std::iter::once(at..at + PAGE).collect();
            // The next write to the second page is lost.
            d.damage(Damage::Lost, 4096, page(4096), &mut prng);
            d.write(4096, &[2; 4096], true).unwrap();
            (0..later).for_each(|_| d.write(65536, &[3; 4096], true).unwrap());
            // One more write would be lost, if the death did not cancel that.
            d.damage(Damage::Lost, 8192, page(8192), &mut prng);
            d.forget_lies(rests, pending);
            d.write(8192, &[4; 4096], true).unwrap();
            [0, 4096, 8192].map(|at| d.is_damaged(at))
        };
        assert_eq!(
            left(true, 0, 0),
            [true, true, false],
            "all is told, and no later write is lost"
        );
        assert_eq!(left(false, 0, 0), [false, false, false], "it may never have been finished");
        let told = left(false, SETTLED, SETTLED);
        assert_eq!(told, [true, false, false], "a lost write never was, by its log");
        let hung = left(false, SETTLED + 1, SETTLED);
        assert_eq!(hung, [false, false, false], "the log waits for an operation that hangs");
    }

    #[test]
    fn a_hole_is_seen_at_once_and_a_power_loss_keeps_any_of_its_pages() {
        let (mut prng, pool) = (Prng::new(5), BufPool::new(0));
        let mut kept = 0;
        for _ in 0..100 {
            let mut d = Disk::new(DiskKind::File, 1 << 20);
            d.write(0, &[1; 5 * 4096], true).unwrap();
            d.punch(4096, 3 * 4096).unwrap();
            let bytes = |d: &Disk| [0, 1, 2, 3, 4].map(|i| d.read(i * 4096, 1, &pool).unwrap()[0]);
            assert_eq!(bytes(&d), [1, 0, 0, 0, 1]);
            // What is written later is there, whatever becomes of the hole.
            d.write(2 * 4096, &[2; 4096], true).unwrap();
            d.power_loss(&mut prng);
            let now = bytes(&d);
            assert!(matches!(now, [1, 0 | 1, 2, 0 | 1, 1]), "{now:?}");
            kept += u32::from(now[1] == 0);
            d.punch(4096, 4096).unwrap();
            let covers = d.flush_begins();
            d.flush_ends(covers);
            d.power_loss(&mut prng);
            assert_eq!(bytes(&d)[1], 0);
        }
        assert!((30..70).contains(&kept), "{kept}");
        let mut d = Disk::new(DiskKind::File, 1 << 20);
        assert_eq!(d.punch(1 << 20, 4096), Err(DiskError::OutOfRange));
        assert_eq!(d.punch(0, u64::MAX), Err(DiskError::OutOfRange));
    }

    #[test]
    fn ranges_are_checked() {
        let mut d = Disk::new(DiskKind::Memory, 4096);
        assert_eq!(d.write(4095, &[0; 2], false), Err(DiskError::OutOfRange));
        assert_eq!(d.write(u64::MAX, &[0; 2], true), Err(DiskError::OutOfRange));
    }
}
