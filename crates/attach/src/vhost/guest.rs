//! The memory of a virtual machine, which its monitor shares as regions of files.
//!
//! Invariant: a region was within its file when it was mapped, and no address overflows 64 bits.

use anyhow::{Context, Result, ensure};
use rt::SharedMemory;
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
pub(crate) struct Guest(Vec<Mapped>);

impl Guest {
    /// Maps regions, each from its file.
    pub(crate) fn map(regions: &[Region], files: &[OwnedFd]) -> Result<Guest> {
        let mapped = regions.iter().zip(files).map(|(region, file)| Mapped::new(*region, file));
        Ok(Guest(mapped.collect::<Result<_>>()?))
    }

    /// Maps one range of a file, whose addresses begin with 0.
    pub(crate) fn of_file(file: &OwnedFd, offset: u64, len: u64) -> Result<Guest> {
        let region = Region { guest: 0, len, user: 0, offset };
        Ok(Guest(vec![Mapped::new(region, file)?]))
    }

    /// Returns the guest's address of an address in the monitor's process.
    pub(crate) fn address(&self, user: u64) -> Option<u64> {
        self.0.iter().find_map(|Mapped { region, .. }| {
            let at = user.checked_sub(region.user).filter(|at| *at < region.len)?;
            Some(region.guest + at)
        })
    }

    /// Returns the region that contains an address, the address's offset in it, and the bytes from
    /// there to the region's end.
    fn at(&self, at: u64) -> Option<(&SharedMemory, usize, u64)> {
        self.0.iter().find_map(|Mapped { region, offset, memory }| {
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
        let Some((memory, at)) = self.find(at, from.len() as u64) else { return false };
        memory.write(at, from);
        true
    }

    fn load(&self, at: u64) -> Option<u16> {
        self.find_number(at).map(|(memory, at)| memory.load(at))
    }

    fn store(&self, at: u64, value: u16) -> bool {
        let Some((memory, at)) = self.find_number(at) else { return false };
        memory.store(at, value);
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

    fn region(guest: u64, len: u64, offset: u64) -> Region {
        Region { guest, len, user: guest + (1 << 40), offset }
    }

    #[test]
    fn regions_are_reached_by_their_addresses_and_no_range_leaves_one() {
        let regions = [region(0, 8192, 0), region(8192, 4096, 12288)];
        let guest = Guest::map(&regions, &[file(8192), file(16384)]).unwrap();
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
        let refused = |region| Guest::map(&[region], &[file(8192)]).is_err();
        assert!(!refused(region(0, 4096, 4096)));
        assert!(refused(region(0, 4097, 4096)) && refused(region(0, 0, 0)));
        assert!(refused(region(0, 4096, u64::MAX)) && refused(region(0, u64::MAX, 2)));
        assert!(refused(Region { guest: u64::MAX - 1, len: 4096, user: 0, offset: 0 }));
        assert!(refused(Region { guest: 0, len: 4096, user: u64::MAX, offset: 0 }));
    }

    #[test]
    fn a_region_at_an_odd_place_of_its_file_has_no_numbers() {
        let guest = Guest::of_file(&file(8192), 1, 4096).unwrap();
        assert!(guest.has(0, 4096) && guest.load(0).is_none() && !guest.store(2, 1));
        assert_eq!(guest.load(1), Some(0));
    }
}
