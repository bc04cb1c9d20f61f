//! Reading blocks of a unit, and comparing them with their checksums.

use super::job::{Op, Piece, Probe, Reader, Span};
use super::layout::SLOT_BLOCKS;
use super::store::Durable;
use base::BLOCK;
use seam::{Buf, DiskError, Effects};

impl Durable {
    /// Reads a job's pieces and the checksums that they need. Returns false when all of it is in
    /// memory, so that the job waits for nothing.
    pub(super) fn fetch(&mut self, key: u64, out: &mut Effects) -> bool {
        let job = self.jobs.at(key);
        let pages = self.pages.resolve(&mut job.fetch);
        job.left += pages.len() as u32;
        for page in &pages {
            self.pages.load(*page, Reader::Job(key), &self.content.layout, &mut self.ops, out);
        }
        let mut waits = !pages.is_empty();
        let mut next = 0;
        while let Some(span) = self.jobs.at(key).next_span(next) {
            self.jobs.at(key).left += 1;
            waits = true;
            self.read_span(key, span, out);
            next = usize::from(span.last) + 1;
        }
        waits
    }

    fn read_span(&mut self, key: u64, span: Span, out: &mut Effects) {
        let pieces = &self.jobs.get(key).expect("it has pieces").fetch.pieces[span.now()];
        let (first, last) = (&pieces[0], &pieces[pieces.len() - 1]);
        let (block, len) = match span.probe {
            Some(probe) => (first.first + u32::from(probe.block), BLOCK),
            None => (first.first, (last.first + last.count - first.first) * BLOCK),
        };
        let slot = first.slot + block / SLOT_BLOCKS - first.first / SLOT_BLOCKS;
        let at = self.content.layout.slot(slot) + u64::from(block % SLOT_BLOCKS * BLOCK);
        self.ops.read(at, len, Op::Fetch { job: key, span }, out);
    }

    /// Takes pieces of a job that were read. Unreadable data counts as damaged: after it is written
    /// again, it can be read again. If several pieces were read together, each one is tried alone.
    /// Then its blocks are tried up to the end of the first unreadable run, because another copy
    /// may lack a block that is whole here. If the bad place holds no data, no block is damaged.
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
                match probe.next(result.is_ok(), p.count as u16) {
                    Ok(next) => {
                        return self.read_span(key, Span { probe: Some(next), ..span }, out);
                    }
                    Err((skip, blocks)) => {
                        let first = p.first as u16 + skip;
                        job.error = job.error.or(Some(DiskError::Corrupt { first, blocks }));
                    }
                }
            }
            ([piece], Ok(data)) => piece.data = data,
            (pieces, Ok(data)) => share(pieces, &data),
            ([p], Err(_)) if p.count > 1 => {
                return self.read_span(key, Span { probe: Some(Probe::default()), ..span }, out);
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

    /// Takes the copies of a page of checksums that were read, for every job and checkpoint that
    /// waits for them.
    pub(super) fn page_read(
        &mut self,
        read: (u32, u32, u32),
        result: Result<Buf, DiskError>,
        out: &mut Effects,
    ) {
        for reader in self.pages.take(read, result, &self.content.layout, &mut self.ops, out) {
            match reader {
                Reader::Job(key) => {
                    if let Some(job) = self.jobs.get_mut(key) {
                        self.pages.resolve(&mut job.fetch);
                    }
                    self.arrived(key, None, out);
                }
                Reader::Checkpoint => {
                    self.pages.save_sums(read.0, &self.content.layout, &mut self.ops, out);
                }
            }
        }
    }
}

/// Gives each piece its part of the data, which reaches from the first piece to the last one.
fn share(pieces: &mut [Piece], data: &Buf) {
    let start = pieces[0].first;
    for p in pieces.iter_mut().filter(|p| !p.ready) {
        let at = ((p.first - start) * BLOCK) as usize;
        p.data = data.slice(at..at + (p.count * BLOCK) as usize);
    }
}
