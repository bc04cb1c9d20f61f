//! Reads: from the device, from what waits for its slot, and zeros.

use super::job::{Fetch, Kind, Piece};
use super::store::Durable;
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
        let pieces = self.pieces(group, unit, BlockSet::touching(at, len));
        if pieces.iter().all(|p| p.ready) {
            return Started::Done(assemble(&pieces, at, len, out));
        }
        let pins = self.pin_present(group, unit, at, len);
        let key = self.insert(Some(token), Kind::Read { at, len }, Fetch::new(unit, pieces), pins);
        self.fetch(key, out);
        Started::Pending
    }

    /// All pieces of a read came.
    pub(super) fn read_fetched(&mut self, key: u64, out: &mut Effects) {
        let result = self.check(key).map(|()| {
            let job = self.jobs.get(key).expect("a job lives until it ends");
            let Kind::Read { at, len } = job.kind else { unreachable!("it is a read") };
            assemble(&job.fetch.pieces, at, len, out)
        });
        self.end(key, result);
    }
}

/// The range `at..at + len`: what the pieces hold, and zeros where there is none.
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
