//! Assembles a sector whose data is split between PDUs.
//!
//! Invariants:
//! - Data arrives in order, and is passed on as whole sectors in the same order.
//! - Only a split sector is copied, into memory of its own.

use base::SECTOR;
use seam::{Buf, BufPool};

const WHOLE: usize = SECTOR as usize;

/// The start of a sector whose end has not arrived.
#[derive(Default, Debug)]
pub(crate) struct SplitSector {
    data: Buf,
    /// How many of its bytes have arrived: less than a sector.
    len: u32,
}

impl SplitSector {
    /// Takes partial sectors out of data that begins at offset `start` of the command's data, so
    /// that whole sectors are left. Returns the split sector if its end has arrived. The rest of
    /// the data then begins where that sector ends.
    #[inline]
    pub(crate) fn take(&mut self, start: &mut u32, data: &mut Buf, pool: &BufPool) -> Option<Buf> {
        if self.len == 0 && data.len().is_multiple_of(WHOLE) {
            return None;
        }
        self.split(start, data, pool)
    }

    fn split(&mut self, start: &mut u32, data: &mut Buf, pool: &BufPool) -> Option<Buf> {
        let mut sector = None;
        if self.len > 0 {
            let at = self.len as usize;
            let rest = data.len().min(WHOLE - at);
            self.data.as_mut()[at..at + rest].copy_from_slice(&data[..rest]);
            self.len += rest as u32;
            *start += rest as u32;
            *data = data.slice(rest..data.len());
            if self.len < SECTOR {
                return None;
            }
            self.len = 0;
            sector = Some(core::mem::take(&mut self.data));
        }
        let whole = data.len() / WHOLE * WHOLE;
        if whole < data.len() {
            let rest = data.len() - whole;
            self.data = pool.alloc(WHOLE);
            self.data.as_mut()[..rest].copy_from_slice(&data[whole..]);
            self.len = rest as u32;
            *data = data.slice(0..whole);
        }
        sector
    }

    /// Returns the memory of the sector; empty if there is none.
    pub(crate) fn held(&self) -> &Buf {
        &self.data
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// Passes data in parts of these lengths. Returns the offsets and lengths of whole sectors,
    /// whose bytes are those that were passed.
    fn pass(lens: &[usize]) -> Vec<(u32, usize)> {
        let (pool, mut split) = (BufPool::new(1 << 20), SplitSector::default());
        let data: Vec<u8> = (0..lens.iter().sum()).map(|i: usize| (i / 3) as u8).collect();
        let (mut start, mut passed) = (0, Vec::new());
        for len in lens {
            let (mut at, mut part) = (start as u32, pool.copy(&data[start..start + len]));
            let sector = split.take(&mut at, &mut part, &pool);
            let sector = sector.map(|sector| (at - SECTOR, sector));
            for (at, whole) in sector.into_iter().chain([(at, part)]) {
                assert_eq!(whole[..], data[at as usize..][..whole.len()]);
                if !whole.is_empty() {
                    passed.push((at, whole.len()));
                }
            }
            start += len;
            assert_eq!(split.held().is_empty(), start.is_multiple_of(WHOLE));
        }
        drop(split);
        assert_eq!(pool.used(), 0);
        passed
    }

    #[test]
    fn sectors_are_whole_and_in_order_however_data_is_cut() {
        assert_eq!(pass(&[0, 512, 1024]), [(0, 512), (512, 1024)]);
        assert_eq!(pass(&[100, 100, 311]), []);
        assert_eq!(pass(&[100, 0, 100, 312]), [(0, 512)]);
        assert_eq!(pass(&[511, 2, 511]), [(0, 512), (512, 512)]);
        assert_eq!(pass(&[1300, 1300]), [(0, 1024), (1024, 512), (1536, 1024)]);
        assert_eq!(pass(&[1, 1535, 512]), [(0, 512), (512, 1024), (1536, 512)]);
    }

    #[test]
    fn whole_sectors_are_not_copied() {
        let (pool, mut split) = (BufPool::new(1 << 20), SplitSector::default());
        let all = pool.zeroed(2048);
        let (mut start, mut data) = (0, all.clone());
        assert!(split.take(&mut start, &mut data, &pool).is_none());
        assert_eq!((start, data.as_ptr(), data.len()), (0, all.as_ptr(), 2048));
        data = all.slice(0..10);
        assert!(split.take(&mut start, &mut data, &pool).is_none() && data.is_empty());
        (start, data) = (10, all.clone());
        let sector = split.take(&mut start, &mut data, &pool);
        assert_eq!((sector.map(|sector| sector.len()), start), (Some(512), 512));
        assert_eq!((data.as_ptr(), data.len()), (all[502..].as_ptr(), 1536));
    }
}
