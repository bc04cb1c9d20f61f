//! The device operations in flight, each with its purpose.
//!
//! Invariant: each operation that was emitted is in the table until it completes or the device
//! fails. After that its completion finds nothing.

use super::job::{IN_FLIGHT, Op};
use alloc::vec::Vec;
use base::{Mutant, Slab, mutant};
use seam::{Buf, DiskId, DiskOp, Effect, Effects};

/// All operations in flight on one device.
#[derive(Debug)]
pub(super) struct Ops {
    disk: DiskId,
    table: Slab<Op>,
}

impl Ops {
    /// Makes the state in which nothing is in flight.
    pub(super) fn new(disk: DiskId) -> Ops {
        Ops { disk, table: Slab::new(IN_FLIGHT) }
    }

    fn insert(&mut self, op: Op) -> DiskOp {
        DiskOp(self.table.insert(op).expect("callers bound their jobs"))
    }

    /// Reads from the device.
    pub(super) fn read(&mut self, at: u64, len: u32, op: Op, out: &mut Effects) {
        let op = self.insert(op);
        out.push(Effect::Read { op, disk: self.disk, at, len });
    }

    /// Writes data that no answer waits for. A later flush makes it durable.
    pub(super) fn write(&mut self, at: u64, body: Buf, op: Op, out: &mut Effects) {
        self.begin_write(at, body, op, false, out);
    }

    /// Writes data that an answer waits for. It is durable when the write completes.
    pub(super) fn write_through(&mut self, at: u64, body: Buf, op: Op, out: &mut Effects) {
        let durable = match op {
            Op::Log => !mutant::on(Mutant::LogUnflushed),
            _ => !mutant::on(Mutant::DataUnflushed),
        };
        self.begin_write(at, body, op, durable, out);
    }

    fn begin_write(&mut self, at: u64, body: Buf, op: Op, durable: bool, out: &mut Effects) {
        let op = self.insert(op);
        out.push(Effect::Write { op, disk: self.disk, at, body, durable });
    }

    /// Makes completed writes durable.
    pub(super) fn flush(&mut self, out: &mut Effects) {
        let op = self.insert(Op::Flush);
        out.push(Effect::Flush { op, disk: self.disk });
    }

    /// Gives the space of a range back to what lies below the device.
    pub(super) fn punch(&mut self, at: u64, len: u64, out: &mut Effects) {
        let op = self.insert(Op::Hole { bytes: len });
        out.push(Effect::Punch { op, disk: self.disk, at, len });
    }

    /// Takes an operation that completed. `None`: it began before the device failed.
    pub(super) fn end(&mut self, op: DiskOp) -> Option<Op> {
        self.table.remove(op.0)
    }

    /// Forgets everything in flight, because the device has failed.
    pub(super) fn forget(&mut self) {
        self.table = Slab::new(IN_FLIGHT);
    }

    /// True when nothing is in flight.
    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}

/// Joins neighbours into one buffer. There is no copy when they are neighbours in memory as well,
/// like the slots' shares of one long write.
pub(super) fn join(parts: Vec<Buf>, out: &mut Effects) -> Buf {
    let (first, rest) = parts.split_first().expect("a run has a part");
    let one = rest.iter().try_fold(first.clone(), |all, part| all.followed_by(part));
    if let Some(one) = one {
        return one;
    }
    let mut whole = out.alloc(parts.iter().map(|p| p.len()).sum());
    let mut rest = whole.as_mut();
    for part in &parts {
        let (here, behind) = rest.split_at_mut(part.len());
        here.copy_from_slice(part);
        rest = behind;
    }
    whole
}
