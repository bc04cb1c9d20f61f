//! One block request: its checks, its pieces, and the assembly of their answers.

use super::Action;
use super::op::Op;
use super::topology::Topology;
use base::{BLOCK, SECTOR, Time, UNIT, UnitKey};
use seam::{BlockError, BlockKind, BlockRequest, Buf, BufPool};

/// Operations of one request that are in flight at once.
pub(super) const WINDOW: u32 = 32;

/// A request that is not answered yet.
#[derive(Debug)]
pub(super) struct Request<T> {
    pub(super) origin: T,
    pub(super) request: BlockRequest,
    pub(super) generation: u32,
    /// Where the part begins that has no operation yet.
    pub(super) next: u32,
    /// Bytes that are done.
    pub(super) done: u32,
    /// Operations in flight.
    pub(super) live: u32,
    /// What was read so far if there are several pieces; otherwise the answer to the only one.
    pub(super) data: Buf,
    /// The request has failed, and waits for the rest of its operations.
    pub(super) error: Option<BlockError>,
    /// The owner was told that it waits for space.
    pub(super) held: bool,
    /// Its time limit: a later answer is too late.
    pub(super) until: Time,
    /// When its answer ceased to be wanted. From then on nothing of it is sent again.
    pub(super) gone: Option<Time>,
    /// True if it was answered while a part of it was still in flight.
    pub(super) answered: bool,
}

/// The part of a request that lies in one unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    pub(super) unit: u32,
    pub(super) at: u32,
    pub(super) len: u32,
}

/// Checks what can be checked without a map.
pub(super) fn check(request: &BlockRequest, transfer: u32) -> Result<(), BlockError> {
    let sector = u64::from(SECTOR);
    if !request.at.is_multiple_of(sector) || !request.len.is_multiple_of(SECTOR) {
        return Err(BlockError::Misaligned);
    }
    if request.body.len() != request.kind.body_len(request.len) {
        return Err(BlockError::Misaligned);
    }
    let in_block = || request.at % u64::from(BLOCK) + u64::from(request.len) <= u64::from(BLOCK);
    match request.kind {
        BlockKind::CompareWrite if !in_block() => Err(BlockError::Misaligned),
        BlockKind::Read | BlockKind::Write if request.len > transfer => Err(BlockError::TooBig),
        _ => Ok(()),
    }
}

/// Checks a request against the map, and returns the generation of the client's permission.
pub(super) fn place(request: &BlockRequest, map: &impl Topology) -> Result<u32, BlockError> {
    let volume = map.volume(request.volume).ok_or(BlockError::NoSuchVolume)?;
    if !volume.writable && request.kind.changes() {
        return Err(BlockError::ReadOnly);
    }
    match request.at.checked_add(u64::from(request.len)) {
        Some(end) if end <= volume.size => Ok(volume.generation),
        _ => Err(BlockError::OutOfRange),
    }
}

impl<T: Copy> Request<T> {
    pub(super) fn new(
        origin: T,
        mut request: BlockRequest,
        generation: u32,
        until: Time,
    ) -> Request<T> {
        if request.kind == BlockKind::Flush {
            request.len = 0;
        }
        let (data, error) = (Buf::EMPTY, None);
        Request {
            origin,
            request,
            generation,
            next: 0,
            done: 0,
            live: 0,
            data,
            error,
            held: false,
            until,
            gone: None,
            answered: false,
        }
    }

    /// Checks a request that came before there was a map.
    pub(super) fn take_place(&mut self, map: &impl Topology) -> Result<(), BlockError> {
        self.generation = place(&self.request, map)?;
        Ok(())
    }

    /// Returns the piece that begins `next` bytes into the request.
    pub(super) fn piece(&self) -> Piece {
        let from = self.request.at + u64::from(self.next);
        let at = (from % u64::from(UNIT)) as u32;
        let len = (self.request.len - self.next).min(UNIT - at);
        Piece { unit: (from / u64::from(UNIT)) as u32, at, len }
    }

    pub(super) fn unit_key(&self, piece: Piece) -> UnitKey {
        UnitKey { volume: self.request.volume, index: piece.unit }
    }

    /// Returns true if every byte is done, or if the request has failed and nothing is in flight.
    pub(super) fn is_over(&self) -> bool {
        self.live == 0 && (self.error.is_some() || self.done == self.request.len)
    }

    /// Returns the length of the body of an operation's good answer.
    pub(super) fn answer_len(&self, op: &Op) -> usize {
        match self.request.kind {
            BlockKind::Read => op.len as usize,
            BlockKind::Extents => blocks(op).div_ceil(8) as usize,
            _ => 0,
        }
    }

    /// Takes an operation's good answer, whose length has been checked.
    pub(super) fn gather(&mut self, op: &Op, body: Buf, pool: &BufPool) {
        assert!(self.done + op.len <= self.request.len, "each byte of a request is done once");
        self.done += op.len;
        if self.gone.is_some() {
            return; // its answer is not wanted any more
        }
        if op.len == self.request.len {
            self.data = body;
            return;
        }
        match self.request.kind {
            BlockKind::Read => {
                if self.data.is_empty() {
                    self.data = pool.alloc(self.request.len as usize);
                }
                let from = op.offset as usize;
                self.data.as_mut()[from..from + body.len()].copy_from_slice(&body);
            }
            BlockKind::Extents => {
                let first = self.request.at / u64::from(BLOCK);
                if self.data.is_empty() {
                    let end =
                        (self.request.at + u64::from(self.request.len)).div_ceil(u64::from(BLOCK));
                    self.data = pool.zeroed((end - first).div_ceil(8) as usize);
                }
                let block = (self.request.at + u64::from(op.offset)) / u64::from(BLOCK);
                put_bits(self.data.as_mut(), (block - first) as usize, &body, blocks(op) as usize);
            }
            _ => {}
        }
    }

    /// Answers the request although a part of it is in flight.
    pub(super) fn answer_early(&mut self, result: Result<Buf, BlockError>) -> Action<T> {
        assert!(!self.answered, "a request is answered once");
        self.answered = true;
        Action::Done { origin: self.origin, result }
    }

    /// Returns the answer to the request.
    pub(super) fn result(self) -> (T, Result<Buf, BlockError>) {
        (self.origin, self.error.map_or(Ok(self.data), Err))
    }
}

/// Returns the number of blocks that an operation touches.
fn blocks(op: &Op) -> u32 {
    (op.at + op.len).div_ceil(BLOCK) - op.at / BLOCK
}

/// Copies the lowest `count` bits of `from` to `to`, beginning at bit `at`. These bits of `to` must
/// be zero.
fn put_bits(to: &mut [u8], at: usize, from: &[u8], count: usize) {
    for (i, byte) in from.iter().enumerate() {
        let left = count - i * 8;
        let bits = u16::from(if left < 8 { byte & ((1 << left) - 1) } else { *byte }) << (at % 8);
        let place = at / 8 + i;
        to[place] |= bits as u8;
        if bits > 0xff {
            to[place + 1] |= (bits >> 8) as u8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::put_bits;

    #[test]
    fn bits_land_where_they_belong_and_strays_do_not() {
        let mut to = [0u8; 3];
        put_bits(&mut to, 3, &[0b1000_0001, 0b1111_1110], 10);
        assert_eq!(to, [0b0000_1000, 0b0001_0100, 0]);
    }
}
