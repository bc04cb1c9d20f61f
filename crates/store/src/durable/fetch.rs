//! Reading blocks of a unit, and comparing them with their checksums.

use super::format::{block_sum, page_sum};
use super::job::{Fetch, Kind, Op, Piece, Reader, Span};
use super::layout::{PAGE, SLOT_BLOCKS, SUM_ENTRIES};
use super::store::Durable;
use super::sums::SumPage;
use super::unitmap::Chunk;
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use base::{BLOCK, BlockSet, GroupId, Mutant, UnitKey, mutant};
use seam::{Buf, DiskError, Effects};

/// Number of reads of single copies of a page, in turn, after the device failed to read both.
const TRIES: u32 = 6;

impl Durable {
    /// Returns the pieces for those of these blocks that hold data, in order.
    pub(super) fn pieces(&self, group: GroupId, unit: UnitKey, blocks: BlockSet) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut rest = blocks;
        while let Some(run) = rest.first_run() {
            rest.remove(BlockSet::from_range(run.clone()));
            for chunk in run.start / SLOT_BLOCKS..run.end.div_ceil(SLOT_BLOCKS) {
                let Some(slot) = self.map.slot(Chunk { group, unit, chunk: chunk as u8 }) else {
                    continue;
                };
                let first = chunk * SLOT_BLOCKS;
                let range = run.start.max(first)..run.end.min(first + SLOT_BLOCKS);
                range.for_each(|b| self.add_block(&mut pieces, b, slot));
            }
        }
        pieces
    }

    fn add_block(&self, pieces: &mut Vec<Piece>, block: u32, slot: u32) {
        let in_slot = block % SLOT_BLOCKS;
        if self.map.valid(slot) >> in_slot & 1 == 0 {
            return;
        }
        if let Some(data) = self.overlay.get(slot, in_slot) {
            let data = data.clone();
            return pieces.push(Piece { first: block, count: 1, slot, ready: true, data });
        }
        if let Some(p) = pieces.last_mut()
            && !p.ready
            && p.first + p.count == block
            && p.slot + block / SLOT_BLOCKS - p.first / SLOT_BLOCKS == slot
        {
            p.count += 1;
            return;
        }
        pieces.push(Piece { first: block, count: 1, slot, ready: false, data: Buf::EMPTY });
    }

    /// Reads a job's pieces and the checksums that they need. Returns false when all of it is in
    /// memory, so that the job waits for nothing.
    pub(super) fn fetch(&mut self, key: u64, out: &mut Effects) -> bool {
        let mut waits = self.fetch_sums(key, out);
        let mut next = 0;
        while let Some(span) = self.next_span(key, next) {
            self.jobs.get_mut(key).expect("it has pieces").left += 1;
            waits = true;
            self.read_span(key, span, out);
            next = usize::from(span.last) + 1;
        }
        waits
    }

    /// Returns what one operation reads of a job's pieces from `from` on. A read may have a hundred
    /// pieces. A write has two blocks to complete at most, and nothing between them is read.
    fn next_span(&self, key: u64, from: usize) -> Option<Span> {
        let job = self.jobs.get(key)?;
        let first = from + job.fetch.pieces.get(from..)?.iter().position(|p| !p.ready)?;
        Some(match job.kind {
            Kind::Read { .. } => job.fetch.span(first),
            _ => Span { first: first as u16, last: first as u16, singly: false, probe: None },
        })
    }

    fn read_span(&mut self, key: u64, span: Span, out: &mut Effects) {
        let pieces = &self.jobs.get(key).expect("it has pieces").fetch.pieces[span.now()];
        let (first, last) = (&pieces[0], &pieces[pieces.len() - 1]);
        let (block, len) = match span.probe {
            Some(probe) => (first.first + u32::from(probe), BLOCK),
            None => (first.first, (last.first + last.count - first.first) * BLOCK),
        };
        let slot = first.slot + block / SLOT_BLOCKS - first.first / SLOT_BLOCKS;
        let at = self.layout.slot(slot) + u64::from(block % SLOT_BLOCKS * BLOCK);
        self.read(at, len, Op::Fetch { job: key, span }, out);
    }

    /// Takes pieces of a job that were read. Unreadable data counts as damaged: after it is written
    /// again, it can be read again. If several pieces were read together, each one is tried alone,
    /// and then each block: another copy may lack one that is whole here. The bad place may hold no
    /// data, and then no block is damaged.
    pub(super) fn fetched(
        &mut self,
        key: u64,
        span: Span,
        result: Result<Buf, DiskError>,
        out: &mut Effects,
    ) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        match (&mut job.fetch.pieces[span.now()], result) {
            ([p], result) if span.probe.is_some() => {
                let probe = span.probe.unwrap_or_default();
                let (mut first, mut blocks) = (p.first as u16, p.count as u16);
                if result.is_err() {
                    (first, blocks) = (first + probe, 1);
                } else if probe + 1 < blocks {
                    return self.read_span(key, Span { probe: Some(probe + 1), ..span }, out);
                }
                // If each block can be read alone, it is unknown which one failed before.
                job.error = job.error.or(Some(DiskError::Corrupt { first, blocks }));
            }
            ([piece], Ok(data)) => piece.data = data,
            (pieces, Ok(data)) => share(pieces, &data),
            ([p], Err(_)) if p.count > 1 => {
                return self.read_span(key, Span { probe: Some(0), ..span }, out);
            }
            ([p], Err(_)) => {
                let (first, blocks) = (p.first as u16, p.count as u16);
                job.error = job.error.or(Some(DiskError::Corrupt { first, blocks }));
            }
            (_, Err(_)) => return self.read_span(key, Span { singly: true, ..span }, out),
        }
        let behind = usize::from(span.first) + 1..usize::from(span.last) + 1;
        if span.singly
            && let Some(skip) = job.fetch.pieces[behind.clone()].iter().position(|p| !p.ready)
        {
            let first = (behind.start + skip) as u16;
            return self.read_span(key, Span { first, probe: None, ..span }, out);
        }
        self.arrived(key, None, out);
    }

    /// Requests the pages of checksums that a job needs and that are not in memory. Returns false
    /// if there are none.
    fn fetch_sums(&mut self, key: u64, out: &mut Effects) -> bool {
        let pages = self.resolve(key);
        for page in &pages {
            self.jobs.get_mut(key).expect("it has missing pages").left += 1;
            self.load_page(*page, Reader::Job(key), out);
        }
        !pages.is_empty()
    }

    /// Notes the checksums of a job's blocks that are in memory. Returns the pages of the others.
    fn resolve(&mut self, key: u64) -> Vec<u32> {
        let mut missing: Vec<u32> = Vec::new();
        let Some(job) = self.jobs.get_mut(key) else { return missing };
        let Fetch { pieces, sums, .. } = &mut job.fetch;
        let all = pieces.iter().filter(|p| !p.ready).flat_map(blocks);
        for (sum, (slot, block)) in sums.iter_mut().zip(all).filter(|(sum, _)| sum.is_none()) {
            *sum = self.sums.get(slot, block);
            if sum.is_none() {
                missing.push(slot / SUM_ENTRIES);
            }
        }
        missing.sort_unstable();
        missing.dedup();
        missing
    }

    /// Compares a job's fetched blocks with their checksums. The error names the first bad run.
    pub(super) fn check(&self, key: u64) -> Result<(), DiskError> {
        let job = self.jobs.get(key).expect("a job lives until it ends");
        let Fetch { unit, pieces, sums } = &job.fetch;
        let read = pieces.iter().filter(|p| !p.ready);
        let data = read.flat_map(|p| (p.first..).zip(p.data.chunks_exact(BLOCK as usize)));
        let mut bad: Option<(u32, u32)> = None;
        for ((block, data), sum) in data.zip(sums) {
            if *sum == Some(block_sum(data, *unit, block)) || mutant::on(Mutant::NoSumCheck) {
                continue;
            }
            match &mut bad {
                None => bad = Some((block, 1)),
                Some((first, count)) if *first + *count == block => *count += 1,
                Some(_) => {}
            }
        }
        bad.map_or(Ok(()), |(first, count)| {
            Err(DiskError::Corrupt { first: first as u16, blocks: count as u16 })
        })
    }

    // ---- pages of checksums ----

    /// Reads a page of checksums for a waiting reader.
    pub(super) fn load_page(&mut self, page: u32, reader: Reader, out: &mut Effects) {
        let readers = self.loading.entry(page).or_default();
        readers.push(reader);
        if readers.len() == 1 {
            self.read_page(page, 0, out);
        }
    }

    /// Reads both copies of a page, or one of them on a retry.
    fn read_page(&mut self, page: u32, tries: u32, out: &mut Effects) {
        let wanted = self.root[(self.layout.map_pages() + page) as usize];
        let (first, count) = copies_of(tries);
        let at = self.layout.sum_page(page) + first as u64 * PAGE;
        let op = Op::SumPage { page, wanted, tries };
        self.read(at, count * PAGE as u32, op, out);
    }

    /// Takes the copies of a page that were read. If the device failed to read them, each copy is
    /// tried alone, several times, because the next checkpoint would save a page that counts as
    /// lost. If neither copy is the one that the root names, the checksums of its blocks are
    /// unknown. These blocks will fail their checks, and be repaired one by one.
    pub(super) fn page_read(
        &mut self,
        page: u32,
        asked: u32,
        tries: u32,
        result: Result<Buf, DiskError>,
        out: &mut Effects,
    ) {
        let index = self.layout.map_pages() + page;
        let wanted = self.root[index as usize];
        if self.sums.page(page).is_none() {
            if wanted != asked {
                return self.read_page(page, 0, out); // saved and evicted while it was read
            }
            let found = self.find_page(page, wanted, tries, result.as_deref().unwrap_or(&[]));
            let again = found.is_none() && (result.is_err() || tries > 0) && tries < TRIES;
            if again {
                return self.read_page(page, tries + 1, out);
            }
            self.stats.lost_pages += u64::from(found.is_none());
            self.sums.insert(page, found.unwrap_or_else(empty_page));
        }
        for reader in self.loading.remove(&page).unwrap_or_default() {
            match reader {
                Reader::Job(key) => {
                    self.resolve(key);
                    self.arrived(key, None, out);
                }
                Reader::Checkpoint => self.save_sums(page, out),
            }
        }
    }
}

impl Durable {
    /// Returns the copy that counts, if it was among those that were read.
    fn find_page(&mut self, page: u32, wanted: u32, tries: u32, read: &[u8]) -> Option<SumPage> {
        let mut sums = empty_page();
        if wanted == 0 {
            return Some(sums);
        }
        let at = self.layout.sum_page(page);
        let found = whole_copy(read, wanted, self.identity.uuid, at)?;
        let copy = copies_of(tries).0 + found;
        self.copies.put(self.layout.map_pages() + page, copy == 1);
        let bytes = &read[found * PAGE as usize..][..PAGE as usize];
        for (sum, b) in sums.iter_mut().zip(bytes.chunks_exact(4)) {
            *sum = u32::from_le_bytes(b.try_into().expect("four bytes"));
        }
        Some(sums)
    }
}

/// Returns the copies of a page that this try reads: the first one, and how many.
fn copies_of(tries: u32) -> (usize, u32) {
    match tries {
        0 => (0, 2),
        _ => (1 - tries as usize % 2, 1),
    }
}

/// Returns a page that was never written.
pub fn empty_page() -> SumPage {
    let page: Box<[u32]> = vec![0; (SUM_ENTRIES * SLOT_BLOCKS) as usize].into_boxed_slice();
    page.try_into().expect("as long as a page")
}

/// Returns which of two copies, side by side at `at`, has this checksum.
pub fn whole_copy(both: &[u8], wanted: u32, uuid: [u64; 2], at: u64) -> Option<usize> {
    both.chunks_exact(PAGE as usize).position(|copy| page_sum(copy, uuid, at) == wanted)
}

/// Gives each piece its part of the data, which reaches from the first piece to the last one.
fn share(pieces: &mut [Piece], data: &Buf) {
    let start = pieces[0].first;
    for p in pieces.iter_mut().filter(|p| !p.ready) {
        let at = ((p.first - start) * BLOCK) as usize;
        p.data = data.slice(at..at + (p.count * BLOCK) as usize);
    }
}

/// Iterates over the blocks of a piece: the slot, and the block in the slot.
fn blocks(piece: &Piece) -> impl Iterator<Item = (u32, u32)> + use<> {
    let (first, slot) = (piece.first, piece.slot);
    let home = first / SLOT_BLOCKS;
    (first..first + piece.count).map(move |b| (slot + b / SLOT_BLOCKS - home, b % SLOT_BLOCKS))
}
