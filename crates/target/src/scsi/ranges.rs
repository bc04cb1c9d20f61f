//! Lists of ranges: the parameter list of UNMAP (SBC-3 5.28), the parameter data of GET LBA STATUS
//! (SBC-3 5.5).

use crate::extents::Runs;
use alloc::vec::Vec;

/// Bytes of the header of either list.
pub(super) const HEAD: usize = 8;
/// Bytes of a descriptor.
pub(super) const DESCRIPTOR: usize = 16;

/// Most descriptors in one UNMAP.
pub(super) const DESCRIPTORS: u32 = 256;

/// A descriptor of UNMAP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Descriptor {
    pub(super) lba: u64,
    pub(super) count: u32,
}

/// Returns the descriptors of UNMAP's parameter list.
pub(super) fn descriptors(list: &[u8]) -> impl Iterator<Item = Descriptor> {
    let len = list.get(2..4).map_or(0, |len| usize::from(u16::from_be_bytes([len[0], len[1]])));
    let all = list.get(HEAD..).unwrap_or_default();
    all[..len.min(all.len())].chunks_exact(DESCRIPTOR).map(|d| Descriptor {
        lba: d[..8].iter().fold(0, |n, byte| n << 8 | u64::from(*byte)),
        count: d[8..12].iter().fold(0, |n, byte| n << 8 | u32::from(*byte)),
    })
}

/// Returns the parameter data of GET LBA STATUS from the bitmap of a range: as many descriptors as
/// the allocation length has room for, and at least one. `None` if the bitmap is too short.
pub(super) fn status(
    bits: &[u8],
    at: u64,
    len: u32,
    block: u32,
    allocation: u32,
) -> Option<Vec<u8>> {
    let room = (allocation as usize).saturating_sub(HEAD) / DESCRIPTOR;
    let mut lba = at / u64::from(block);
    let mut data = Vec::from([0; HEAD]);
    for (bytes, mapped) in Runs::new(bits, at, len)?.take(room.max(1)) {
        let count = bytes / block;
        data.extend_from_slice(&lba.to_be_bytes());
        data.extend_from_slice(&count.to_be_bytes());
        data.extend_from_slice(&[u8::from(!mapped), 0, 0, 0]);
        lba += u64::from(count);
    }
    let rest = (data.len() - 4) as u32;
    data[..4].copy_from_slice(&rest.to_be_bytes());
    Some(data)
}
