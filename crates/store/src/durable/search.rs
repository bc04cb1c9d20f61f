//! The search for the superblocks of a device, and the choice of the one that counts.
//!
//! Copies 0 and 1 have the same places on every device. If one of them is whole, it says where the
//! other two are: any other place may be a slot, and a volume may hold what looks like a
//! superblock. If neither is whole, copies 2 and 3 are looked for where a device of the present
//! size has them, and they count only if they name that very size.
//!
//! Invariants: a copy counts only where its own layout has one; beside other copies, it counts only
//! with the same uuid and the same extents, as far as both list them; of these copies, the one with
//! the highest sequence counts. This module does not read from the device.

use super::error::MountError;
use super::layout::{Layout, PAGE, SLOT};
use super::superblock::{Content, CopyState, look_as};
use base::{Mutant, level, mutant};
use seam::DiskError;

/// A search, page by page.
#[derive(Clone, Debug)]
pub struct Search {
    /// Size of the device in bytes.
    bytes: u64,
    /// The highest level that the build knows.
    level_max: u32,
    /// Per copy: its place in bytes, and what was found there.
    copies: [Option<(u64, CopyState)>; 4],
    /// The error of a read.
    error: Option<DiskError>,
}

impl Search {
    /// Starts the search on a device of `bytes`, as this release does.
    pub fn new(bytes: u64) -> Search {
        Search::knowing(level::LEVEL, bytes)
    }

    /// Starts the search for a build that knows levels up to this one.
    pub fn knowing(level_max: u32, bytes: u64) -> Search {
        let mut search = Search { bytes, level_max, copies: [const { None }; 4], error: None };
        search.skip();
        search
    }

    /// Returns where to read the next page of 4 KiB, in bytes. `None`: all four were looked for.
    pub fn next(&self) -> Option<u64> {
        Some(self.place(self.missing()?))
    }

    /// Takes the page that [`Search::next`] named, or the reason why it can't be read.
    pub fn take(&mut self, page: Result<&[u8], DiskError>) {
        let Some(copy) = self.missing() else { return };
        let at = self.place(copy);
        let state = match page {
            Ok(page) => look_as(page, self.level_max),
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

    /// Skips copies that would be beyond the end of the device.
    fn skip(&mut self) {
        while let Some(copy) = self.missing()
            && self.place(copy).saturating_add(PAGE) > self.bytes
        {
            self.copies[copy] = Some((self.place(copy), CopyState::Nothing));
        }
    }

    /// Returns the next copy to look at. Copy 3 comes before copy 2 when it has to say where copy 2
    /// is: on a device that grew, copy 2 is not in the middle of the present size.
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

    /// Returns the newest content found so far.
    pub fn newest(&self) -> Option<&Content> {
        self.valid().max_by_key(|c| c.anchor.sequence)
    }

    fn valid(&self) -> impl Iterator<Item = &Content> {
        self.copies().filter_map(|(_, state)| match state {
            CopyState::Valid(content) => Some(content),
            _ => None,
        })
    }

    /// True when a whole copy at this place belongs to this device.
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

    /// Iterates over the copies that were looked for, in the end all four: their places, and what
    /// is there.
    pub fn copies(&self) -> impl Iterator<Item = (u64, &CopyState)> {
        self.copies.iter().flatten().map(|(at, state)| (*at, state))
    }

    /// Returns the content that counts.
    pub fn choose(&self) -> Result<Content, MountError> {
        // A checkpoint may have raised the level, or set a feature, in some of the copies only.
        // Their log needs it, too.
        for state in self.copies[..2].iter().flatten().map(|(_, state)| state) {
            match state {
                CopyState::Level(level) => {
                    return Err(MountError::Level { level: *level, known: self.level_max });
                }
                CopyState::Unknown(features) => {
                    return Err(MountError::Features { unknown: *features });
                }
                _ => {}
            }
        }
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

    /// Returns why no copy counts.
    fn explain(&self) -> MountError {
        let mut error = self.error.map_or(MountError::Unformatted, |error| {
            let what = "reading the superblocks";
            MountError::Device { what, error }
        });
        for (_, state) in self.copies() {
            match state {
                CopyState::Newer(format) => return MountError::Newer { format: *format },
                CopyState::Level(level) => {
                    return MountError::Level { level: *level, known: self.level_max };
                }
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
