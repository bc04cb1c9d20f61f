//! Reads: from the device, from blocks that wait in memory for their slots, and zeros.

use super::job::{Fetch, Kind, Piece};
use super::store::Durable;
use super::unitmap::Access;
use base::crc::crc32c;
use base::{BLOCK, BlockSet, GroupId, UnitKey};
use seam::{Buf, Effects, Started};

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
        let pieces = self.slots.pieces(group, unit, BlockSet::touching(at, len));
        if pieces.is_empty() {
            return Started::Done(out.pool().zeroed(len as usize));
        }
        let pins = self.slots.pin_present((group, unit, at, len), Access::Read);
        let key =
            self.jobs.begin(Some(token), Kind::Read { at, len }, Fetch::new(unit, pieces), pins);
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
        let newest = &mut self.pages.sums;
        let fetch = &self.jobs.at(key).fetch;
        match fetch.check().and_then(|()| fetch.answer_crc(at, len, newest)) {
            Ok(crc) => self.end_read(key, Ok(answer), if whole { crc } else { early }),
            Err(error) => self.end(key, Err(error)),
        }
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
