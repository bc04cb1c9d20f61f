//! The memory of a virtual machine, which its monitor shares as regions of files.
//!
//! Invariants:
//! - A region was within its file when it was mapped, and no address overflows 64 bits.
//! - While the machine migrates, each page that is written is marked in the log of its monitor. The
//!   log has a mark for each page.

use super::log::Log;
use super::ring::wake;
use anyhow::{Context, Result, ensure};
use rt::SharedMemory;
use std::cell::Cell;
use std::os::fd::OwnedFd;
use target::vhost::message::Region;
use target::virtio::Memory;

/// A region that is mapped.
#[derive(Debug)]
struct Mapped {
    region: Region,
    /// Where it begins in the mapping.
    offset: usize,
    memory: SharedMemory,
}

/// Memory that is shared with another process.
#[derive(Debug, Default)]
pub(crate) struct Guest {
    regions: Vec<Mapped>,
    /// The machine migrates: what is written has to be marked.
    logs: bool,
    log: Option<Log>,
    /// The event that is signalled after pages were marked, if the monitor wants that.
    log_event: Option<OwnedFd>,
    /// Pages were marked since the event.
    marked: Cell<bool>,
}

impl Guest {
    /// Maps regions, each from its file, in place of the present ones. The log stays.
    pub(crate) fn replace(&mut self, regions: &[Region], files: &[OwnedFd]) -> Result<()> {
        let mapped = regions.iter().zip(files).map(|(region, file)| Mapped::new(*region, file));
        let mapped: Vec<Mapped> = mapped.collect::<Result<_>>()?;
        check(self.log.as_ref().filter(|_| self.logs), &mapped)?;
        self.regions = mapped;
        Ok(())
    }

    /// Maps one range of a file, whose addresses begin with 0.
    pub(crate) fn of_file(file: &OwnedFd, offset: u64, len: u64) -> Result<Guest> {
        let region = Region { guest: 0, len, user: 0, offset };
        Ok(Guest { regions: vec![Mapped::new(region, file)?], ..Guest::default() })
    }

    /// Sets the log of written pages, in place of the present one.
    pub(crate) fn set_log(&mut self, log: Log) -> Result<()> {
        if self.logs {
            check(Some(&log), &self.regions)?;
            if self.log.is_none() {
                // It was switched on before it was there, as after a crash of this process. Nobody
                // knows what was written until now.
                self.regions.iter().for_each(|one| log.mark(one.region.guest, one.region.len));
            }
        }
        self.log = Some(log);
        Ok(())
    }

    /// Begins or ends to mark what is written. A log is that of one migration.
    pub(crate) fn set_logging(&mut self, on: bool) -> Result<()> {
        if on {
            check(self.log.as_ref(), &self.regions)?;
        } else if self.logs {
            self.log = None;
        }
        self.logs = on;
        Ok(())
    }

    /// Sets the event that is signalled after pages were marked.
    pub(crate) fn set_log_event(&mut self, event: OwnedFd) {
        self.log_event = Some(event);
    }

    /// Signals the monitor that pages were marked, if it wants that.
    pub(crate) fn signal(&self) {
        if self.marked.replace(false) {
            wake(self.log_event.as_ref());
        }
    }

    /// Marks a range that was written, if the machine migrates.
    pub(crate) fn mark(&self, at: u64, len: u64) {
        if let Some(log) = self.log.as_ref().filter(|_| self.logs) {
            log.mark(at, len);
            self.marked.set(true);
        }
    }

    /// Returns the guest's address of an address in the monitor's process.
    pub(crate) fn address(&self, user: u64) -> Option<u64> {
        self.regions.iter().find_map(|Mapped { region, .. }| {
            let at = user.checked_sub(region.user).filter(|at| *at < region.len)?;
            Some(region.guest + at)
        })
    }

    /// Returns the region that contains an address, the address's offset in it, and the bytes from
    /// there to the region's end.
    fn at(&self, at: u64) -> Option<(&SharedMemory, usize, u64)> {
        self.regions.iter().find_map(|Mapped { region, offset, memory }| {
            let from = at.checked_sub(region.guest).filter(|from| *from < region.len)?;
            Some((memory, offset + from as usize, region.len - from))
        })
    }

    /// Returns the region that contains a range, and the range's offset in it.
    fn find(&self, at: u64, len: u64) -> Option<(&SharedMemory, usize)> {
        let (memory, at, left) = self.at(at)?;
        (len <= left).then_some((memory, at))
    }

    /// Returns the region that contains a number of two bytes, and the number's offset in it. Such
    /// a number has an even address.
    fn find_number(&self, at: u64) -> Option<(&SharedMemory, usize)> {
        self.find(at, 2).filter(|(_, at)| at.is_multiple_of(2))
    }
}

/// Checks that a log, if there is one, has a mark for each page of these regions. A page without a
/// mark would be lost in a migration.
fn check(log: Option<&Log>, regions: &[Mapped]) -> Result<()> {
    let mut last = regions.iter().map(|one| one.region.guest + (one.region.len - 1));
    let covers = log.is_none_or(|log| last.all(|last| log.covers(last)));
    ensure!(covers, "a log of written pages that is shorter than the memory");
    Ok(())
}

impl Mapped {
    fn new(region: Region, file: &OwnedFd) -> Result<Mapped> {
        let Region { guest, len, user, offset } = region;
        let ends = [guest, user, offset].map(|start| start.checked_add(len));
        ensure!(len > 0 && !ends.contains(&None), "a region of memory has no end: {region:?}");
        // From the start of the file, because the offset may not be a multiple of a page.
        let all = usize::try_from(offset + len).context("more memory than this machine has")?;
        let memory = SharedMemory::map(file, all).context("a region of the guest's memory")?;
        Ok(Mapped { region, offset: offset as usize, memory })
    }
}

impl Memory for Guest {
    fn left(&self, at: u64) -> u64 {
        self.at(at).map_or(0, |(_, _, left)| left)
    }

    fn read(&self, at: u64, to: &mut [u8]) -> bool {
        let Some((memory, at)) = self.find(at, to.len() as u64) else { return false };
        memory.read(at, to);
        true
    }

    fn write(&self, at: u64, from: &[u8]) -> bool {
        let Some((memory, place)) = self.find(at, from.len() as u64) else { return false };
        memory.write(place, from);
        self.mark(at, from.len() as u64);
        true
    }

    fn load(&self, at: u64) -> Option<u16> {
        self.find_number(at).map(|(memory, at)| memory.load(at))
    }

    fn store(&self, at: u64, value: u16) -> bool {
        let Some((memory, place)) = self.find_number(at) else { return false };
        memory.store(place, value);
        self.mark(at, 2);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    fn file(len: u64) -> OwnedFd {
        let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, len).unwrap();
        file
    }

    fn map(regions: &[Region], files: &[OwnedFd]) -> Result<Guest> {
        let mut guest = Guest::default();
        guest.replace(regions, files).map(|()| guest)
    }

    fn region(guest: u64, len: u64, offset: u64) -> Region {
        Region { guest, len, user: guest + (1 << 40), offset }
    }

    #[test]
    fn regions_are_reached_by_their_addresses_and_no_range_leaves_one() {
        let regions = [region(0, 8192, 0), region(8192, 4096, 12288)];
        let guest = map(&regions, &[file(8192), file(16384)]).unwrap();
        assert!(guest.write(8190, &[1, 2]) && guest.write(8192, &[3, 4]));
        assert!(!guest.write(8191, &[0; 2]), "it would reach from one region into the next");
        assert_eq!((guest.left(8191), guest.left(8192), guest.left(12288)), (1, 4096, 0));
        assert!(guest.has(12287, 1) && !guest.has(12287, 2) && !guest.has(u64::MAX, 2));
        let mut two = [0; 2];
        assert!(guest.read(8192, &mut two) && two == [3, 4]);
        assert_eq!(
            (guest.load(8190), guest.load(8191), guest.load(12288)),
            (Some(513), None, None)
        );
        assert!(guest.store(12286, 7) && !guest.store(12287, 7));
        assert_eq!(guest.address((1 << 40) + 8200), Some(8200));
        assert_eq!((guest.address(0), guest.address((1 << 40) + 12288)), (None, None));
    }

    #[test]
    fn a_region_that_its_file_lacks_or_that_has_no_end_is_refused() {
        let refused = |region| map(&[region], &[file(8192)]).is_err();
        assert!(!refused(region(0, 4096, 4096)));
        assert!(refused(region(0, 4097, 4096)) && refused(region(0, 0, 0)));
        assert!(refused(region(0, 4096, u64::MAX)) && refused(region(0, u64::MAX, 2)));
        assert!(refused(Region { guest: u64::MAX - 1, len: 4096, user: 0, offset: 0 }));
        assert!(refused(Region { guest: 0, len: 4096, user: u64::MAX, offset: 0 }));
    }

    /// Reads and clears a log, as a monitor does, and returns the numbers of the marked pages.
    fn collect(log: &OwnedFd, offset: u64, len: usize) -> Vec<u64> {
        let mut bytes = vec![0; len];
        rustix::io::pread(log, &mut bytes, offset).unwrap();
        rustix::io::pwrite(log, &vec![0; len], offset).unwrap();
        let set = (0..8 * len).filter(|page| bytes[page / 8] >> (page % 8) & 1 == 1);
        set.map(|page| page as u64).collect()
    }

    fn log(file: &OwnedFd, offset: u64, len: u64) -> Log {
        Log::open(target::vhost::message::Log { len, offset }, file).unwrap()
    }

    /// A guest with 16 pages from page 8 on, and two pages from page 32 on.
    fn guest() -> Guest {
        let regions = [region(8 << 12, 16 << 12, 0), region(32 << 12, 2 << 12, 0)];
        map(&regions, &[file(16 << 12), file(2 << 12)]).unwrap()
    }

    #[test]
    fn each_page_that_is_written_is_marked_while_the_log_is_on() {
        let (mut guest, pages) = (guest(), file(4096));
        let write = |guest: &Guest| {
            assert!(guest.write((9 << 12) - 1, &[1; 4098]) && guest.store(33 << 12, 5));
            assert!(guest.read(20 << 12, &mut [0; 8]) && guest.load(21 << 12) == Some(0));
            assert!(!guest.write(24 << 12, &[0; 1]) && !guest.store((12 << 12) + 1, 1));
        };
        guest.set_log(log(&pages, 3, 5)).unwrap();
        write(&guest);
        assert_eq!(collect(&pages, 3, 5), [0; 0], "it is not on yet");
        guest.set_logging(true).unwrap();
        for _ in 0..2 {
            write(&guest);
            assert_eq!(collect(&pages, 3, 5), [8, 9, 10, 33]);
        }
        guest.set_logging(false).unwrap();
        write(&guest);
        assert_eq!(collect(&pages, 0, 4096), [0; 0], "it is off, or a mark is beyond it");
    }

    #[test]
    fn a_log_stays_when_the_memory_changes_and_is_replaced_as_a_whole() {
        let (mut guest, old, new) = (guest(), file(64), file(64));
        guest.set_log(log(&old, 0, 5)).unwrap();
        guest.set_logging(true).unwrap();
        let more = [region(0, 4096, 0), region(39 << 12, 4096, 0)];
        let files = || [file(4096), file(4096)];
        guest.replace(&more, &files()).unwrap();
        assert!(guest.write(39 << 12, &[1]));
        assert_eq!(collect(&old, 0, 64), [39]);
        assert!(guest.replace(&[region(40 << 12, 4096, 0), more[0]], &files()).is_err());
        assert!(guest.set_log(log(&new, 0, 4)).is_err() && guest.has(39 << 12, 1));
        guest.set_log(log(&new, 0, 5)).unwrap();
        assert!(guest.write(0, &[1]));
        assert_eq!((collect(&old, 0, 64), collect(&new, 0, 64)), (vec![], vec![0]));
        // One that is not in use may have any length.
        guest.set_logging(false).unwrap();
        guest.set_log(log(&new, 0, 1)).unwrap();
        assert!(guest.set_logging(true).is_err() && guest.write(0, &[1]));
        assert_eq!(collect(&new, 0, 64), [0; 0]);
    }

    #[test]
    fn a_log_that_comes_after_it_was_switched_on_has_all_pages() {
        let (mut guest, pages) = (guest(), file(64));
        guest.set_logging(true).unwrap();
        assert!(guest.write(8 << 12, &[1]), "without a log");
        guest.set_log(log(&pages, 0, 5)).unwrap();
        let all: Vec<u64> = (8..24).chain([32, 33]).collect();
        assert_eq!(collect(&pages, 0, 64), all);
        guest.set_log(log(&pages, 0, 6)).unwrap();
        assert_eq!(collect(&pages, 0, 64), [0; 0], "the one before had everything");
    }

    #[test]
    fn a_hostile_mark_stays_within_the_log() {
        let (mut guest, pages) = (guest(), file(4096));
        guest.set_log(log(&pages, 1, 5)).unwrap();
        guest.set_logging(true).unwrap();
        for at in [40 << 12, 1 << 40, u64::MAX - 1, u64::MAX] {
            guest.mark(at, 8198);
        }
        guest.mark(39 << 12, u64::MAX);
        assert_eq!(collect(&pages, 0, 4096), [8 + 39], "a byte before it, and none behind it");
        let refused = |offset, len| {
            Log::open(target::vhost::message::Log { len, offset }, &file(4096)).is_err()
        };
        assert!(!refused(4095, 1) && refused(4095, 2) && refused(0, 0));
        assert!(refused(u64::MAX, 1) && refused(1, u64::MAX) && refused(0, 1 << 60));
    }

    #[test]
    fn a_monitor_that_wants_to_know_of_marks_is_told_once_for_all() {
        use rustix::event::{EventfdFlags, eventfd};
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let told = || rustix::io::read(&event, &mut [0; 8]).is_ok();
        let mut guest = guest();
        guest.set_log(log(&file(64), 0, 5)).unwrap();
        guest.set_log_event(event.try_clone().unwrap());
        assert!(guest.write(8 << 12, &[1]));
        guest.signal();
        assert!(!told(), "nothing was marked");
        guest.set_logging(true).unwrap();
        assert!(guest.write(8 << 12, &[1]) && guest.write(9 << 12, &[1]));
        guest.signal();
        assert!(told());
        guest.signal();
        assert!(!told());
    }

    #[test]
    fn a_region_at_an_odd_place_of_its_file_has_no_numbers() {
        let guest = Guest::of_file(&file(8192), 1, 4096).unwrap();
        assert!(guest.has(0, 4096) && guest.load(0).is_none() && !guest.store(2, 1));
        assert_eq!(guest.load(1), Some(0));
    }
}
