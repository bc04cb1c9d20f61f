//! Reads: from the device, from blocks that wait in memory for their slots, and zeros.

use super::format::{block_sum, data_crc};
use super::job::{Fetch, Kind, Piece};
use super::layout::SLOT_BLOCKS;
use super::store::Durable;
use super::unitmap::Access;
use base::crc::{ZERO_BLOCK, append_block, crc32c};
use base::{BLOCK, BlockSet, GroupId, Mutant, UnitKey, mutant};
use seam::{Buf, DiskError, Effects, Started};

impl Durable {
    pub(super) fn start_read(
        &mut self,
        token: u64,
        group: GroupId,
        unit: UnitKey,
        at: u32,
        len: u32,
        out: &mut Effects,
    ) -> Started {
        let pieces = self.pieces(group, unit, BlockSet::touching(at, len));
        if pieces.is_empty() {
            return Started::Done(out.pool().zeroed(len as usize));
        }
        let pins = self.pin_present(group, unit, at, len, Access::Read);
        let key = self.insert(Some(token), Kind::Read { at, len }, Fetch::new(unit, pieces), pins);
        if !self.fetch(key, out) {
            self.read_fetched(key, out);
        }
        Started::Pending
    }

    /// Answers a read whose pieces are all there.
    ///
    /// The CRC of the answer is derived from the checksums of its blocks. If it covers blocks in
    /// part, it is computed before the blocks are compared. So a bit that flips in memory at any
    /// time is found here or by the reader.
    pub(super) fn read_fetched(&mut self, key: u64, out: &mut Effects) {
        let job = self.jobs.get(key).expect("a job lives until it ends");
        let Kind::Read { at, len } = job.kind else { unreachable!("it is a read") };
        let answer = assemble(&job.fetch.pieces, at, len, out);
        let whole = at.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK);
        let early = (!whole).then(|| crc32c(&answer));
        match self.check(key).and_then(|()| self.answer_crc(key, at, len)) {
            Ok(crc) => self.end_read(key, Ok(answer), if whole { crc } else { early }),
            Err(error) => self.end(key, Err(error)),
        }
    }

    /// Returns the CRC-32C of the blocks that a read touches, derived from their checksums. Blocks
    /// that wait in memory for their slots are compared with their checksums first. `None`: a
    /// checksum is not at hand.
    fn answer_crc(&mut self, key: u64, at: u32, len: u32) -> Result<Option<u32>, DiskError> {
        let Fetch { unit, pieces, sums } = &self.jobs.get(key).expect("it is being read").fetch;
        let mut fetched = sums.iter().copied();
        let (mut crc, mut known, mut next) = (0, true, at / BLOCK);
        for piece in pieces {
            let home = piece.first / SLOT_BLOCKS;
            for block in piece.first..piece.first + piece.count {
                let slot = piece.slot + block / SLOT_BLOCKS - home;
                let sum = match piece.ready {
                    true => self.sums.get(slot, block % SLOT_BLOCKS),
                    false => fetched.next().flatten(),
                };
                let bad = |sum| piece.ready && block_sum(&piece.data, *unit, block) != sum;
                if sum.is_some_and(bad) {
                    return Err(DiskError::Corrupt { first: block as u16, blocks: 1 });
                }
                crc = (next..block).fold(crc, |crc, _| append_block(crc, ZERO_BLOCK));
                crc = append_block(crc, sum.map_or(0, |sum| data_crc(sum, *unit, block)));
                (known, next) = (known && sum.is_some(), block + 1);
            }
        }
        let end = (at + len).div_ceil(BLOCK);
        crc = (next..end).fold(crc, |crc, _| append_block(crc, ZERO_BLOCK));
        Ok(Some(crc).filter(|_| known && !mutant::on(Mutant::NoSumCheck)))
    }
}

/// Returns the range `at..at + len`: the data of the pieces, and zeros between them.
fn assemble(pieces: &[Piece], at: u32, len: u32, out: &mut Effects) -> Buf {
    let end = at + len;
    if let [p] = pieces
        && p.first * BLOCK <= at
        && (p.first + p.count) * BLOCK >= end
    {
        let from = (at - p.first * BLOCK) as usize;
        return p.data.slice(from..from + len as usize);
    }
    let mut whole = out.pool().zeroed(len as usize);
    let bytes = whole.as_mut();
    for p in pieces {
        let start = p.first * BLOCK;
        let (from, to) = (start.max(at), (start + p.count * BLOCK).min(end));
        bytes[(from - at) as usize..(to - at) as usize]
            .copy_from_slice(&p.data[(from - start) as usize..(to - start) as usize]);
    }
    whole
}
