//! Finding the superblocks of a device, and which of them counts.
//!
//! Copies 0 and 1 are where they are on every device. If one of them is whole, it tells where the other two
//! are: what is at any other place may be a slot, and a volume may hold what looks like a superblock. If
//! neither is, they are looked for where they would be if the device had the size that it has, and count only
//! if they say that it has.
//!
//! Invariants: a copy counts only where its own layout has one, and beside others only with the same uuid and
//! the same extents, as far as both have them; of these, the highest sequence. Not done here: reading.

use super::layout::{Layout, PAGE, SLOT};
use super::mount::MountError;
use super::superblock::{Content, CopyState, look};
use base::{Mutant, mutant};
use seam::DiskError;

/// A search, page by page.
#[derive(Clone, Debug)]
pub struct Search {
    /// The device.
    bytes: u64,
    /// What was found, and where, in bytes.
    copies: [Option<(u64, CopyState)>; 4],
    /// How a read failed.
    error: Option<DiskError>,
}

impl Search {
    /// On a device of `bytes`.
    pub fn new(bytes: u64) -> Search {
        let mut search = Search { bytes, copies: [const { None }; 4], error: None };
        search.skip();
        search
    }

    /// Where the next page of 4 KiB is to be read, in bytes; `None`: all four were looked for.
    pub fn next(&self) -> Option<u64> {
        Some(self.place(self.missing()?))
    }

    /// The page that [`Search::next`] named, or why it can't be read.
    pub fn take(&mut self, page: Result<&[u8], DiskError>) {
        let Some(copy) = self.missing() else { return };
        let at = self.place(copy);
        let state = match page {
            Ok(page) => look(page),
            Err(error) => {
                self.error = Some(error);
                CopyState::Unreadable
            }
        };
        let state = match state {
            CopyState::Valid(content) if !self.believes(copy, at, &content) => CopyState::Nothing,
            state => state,
        };
        self.copies[copy] = Some((at, state));
        self.skip();
    }

    /// What would be behind the device's end is not there.
    fn skip(&mut self) {
        while let Some(copy) = self.missing()
            && self.place(copy).saturating_add(PAGE) > self.bytes
        {
            self.copies[copy] = Some((self.place(copy), CopyState::Nothing));
        }
    }

    /// The copy to be looked at next. The last one comes before the middle one when it has to tell where that
    /// one is: that of a device that grew is not in the middle of what it has become.
    fn missing(&self) -> Option<usize> {
        let order = if self.newest().is_some() { [0, 1, 2, 3] } else { [0, 1, 3, 2] };
        order.into_iter().find(|copy| self.copies[*copy].is_none())
    }

    fn place(&self, copy: usize) -> u64 {
        match self.newest().filter(|_| !mutant::on(Mutant::PresentSize)) {
            Some(content) => content.layout.places()[copy],
            None => Layout::superblocks(self.bytes)[copy],
        }
    }

    /// What the newest of those says that were found so far.
    pub fn newest(&self) -> Option<&Content> {
        self.valid().max_by_key(|c| c.anchor.sequence)
    }

    fn valid(&self) -> impl Iterator<Item = &Content> {
        self.copies().filter_map(|(_, state)| match state {
            CopyState::Valid(content) => Some(content),
            _ => None,
        })
    }

    /// Whether a whole copy at this place is one of this device.
    fn believes(&self, copy: usize, at: u64, content: &Content) -> bool {
        let here = content.layout.places()[copy] == at
            || copy == 3 && content.layout.earlier_ends().any(|end| end == at);
        let same = match self.newest() {
            Some(told) => {
                let (a, b) = (&told.layout.extents, &content.layout.extents);
                told.identity.uuid == content.identity.uuid && a.iter().zip(b).all(|(a, b)| a == b)
            }
            None => copy < 2 || content.layout.size == self.bytes / SLOT * SLOT,
        };
        here && same || mutant::on(Mutant::PresentSize)
    }

    /// Those that were looked for, all four at the end: where each should be, and what is there.
    pub fn copies(&self) -> impl Iterator<Item = (u64, &CopyState)> {
        self.copies.iter().flatten().map(|(at, state)| (*at, state))
    }

    /// The content that counts.
    pub fn choose(&self) -> Result<Content, MountError> {
        let misfit = |(_, state): &(u64, CopyState)| *state == CopyState::Misfit;
        if self.copies[..2].iter().flatten().any(misfit) {
            return Err(MountError::Damaged { what: "the table of areas", at: 0 });
        }
        match self.newest() {
            Some(best) if best.layout.size > self.bytes && !mutant::on(Mutant::MountShrunk) => {
                Err(MountError::Shrunk { was: best.layout.size, is: self.bytes })
            }
            Some(best) => Ok(best.clone()),
            None => Err(self.explain()),
        }
    }

    /// Why none counts.
    fn explain(&self) -> MountError {
        let mut error = self.error.map_or(MountError::Unformatted, |error| {
            let what = "reading the superblocks";
            MountError::Device { what, error }
        });
        for (_, state) in self.copies() {
            match state {
                CopyState::Newer(format) => return MountError::Newer { format: *format },
                CopyState::Unknown(features) => return MountError::Features { unknown: *features },
                CopyState::Damaged | CopyState::Misfit => {
                    error = MountError::Damaged { what: "every superblock", at: 0 };
                }
                CopyState::Unreadable | CopyState::Nothing | CopyState::Valid(_) => {}
            }
        }
        error
    }
}
