//! One operation: a request of the client to one primary about one unit.

use base::{DeviceId, Epoch, GroupId, Time, UnitKey};
use seam::{BlockKind, BlockRequest};
use wire::message::{CompareWrite, Extents, Io, Read, Request, UnitRange, Write, Zero};

/// The place of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// On its way to one of the other places.
    Loose,
    /// Waits for the device's link or credit.
    Queued(DeviceId),
    /// Sent, and not answered.
    Sent(DeviceId),
    /// Waits for a newer map, or for this time.
    Waiting(Time),
}

/// An operation.
#[derive(Debug)]
pub(super) struct Op {
    /// The key of its request.
    pub(super) request: u64,
    /// Where its range begins in the request.
    pub(super) offset: u32,
    pub(super) unit: u32,
    pub(super) at: u32,
    pub(super) len: u32,
    /// Changes the volume.
    pub(super) writes: bool,
    /// Payload bytes that it takes of the device's credit.
    pub(super) cost: u32,
    pub(super) group: GroupId,
    /// Its number; 0 before it is sent.
    pub(super) seq: u64,
    /// The epoch in which it was sent, or is about to be. It follows the group's epoch while the
    /// device is known to have been the primary all the time.
    pub(super) epoch: Epoch,
    pub(super) place: Place,
    /// When the operation was made.
    pub(super) since: Time,
    /// The device and session in which it may still be executed although it was given up there.
    pub(super) ghost: Option<(DeviceId, u64)>,
    /// Since when it is unknown whether the device still works on it.
    pub(super) doubt: Option<Time>,
    /// How often it was put off.
    pub(super) delays: u8,
    /// There was no space for it when it was last sent.
    pub(super) held: bool,
}

impl Op {
    pub(super) fn new(kind: BlockKind, request: u64, since: Time) -> Op {
        Op {
            request,
            offset: 0,
            unit: 0,
            at: 0,
            len: 0,
            writes: kind.changes(),
            cost: 0,
            group: GroupId(0),
            seq: 0,
            epoch: Epoch(0),
            place: Place::Loose,
            since,
            ghost: None,
            doubt: None,
            delays: 0,
            held: false,
        }
    }

    /// Moves it to a place on this side.
    #[inline]
    pub(super) fn leave_for(&mut self, place: Place) {
        assert!(!matches!(self.place, Place::Sent(_)), "a device has it, and its credit");
        self.place = place;
    }

    /// Returns the range that the operation is about.
    pub(super) fn range(&self, request: &BlockRequest) -> UnitRange {
        let unit = UnitKey { volume: request.volume, index: self.unit };
        UnitRange { unit, at: self.at, len: self.len }
    }
}

/// Returns the message that asks for this. `retry`: a server may have received its number before.
pub(super) fn io(kind: BlockKind, request: Request, retry: bool) -> Io {
    match kind {
        BlockKind::Read => Io::Read(Read { request, retry }),
        BlockKind::Write => Io::Write(Write { request, retry }),
        BlockKind::Zero { hole } => Io::Zero(Zero { request, hole, retry }),
        BlockKind::Extents => Io::Extents(Extents { request, retry }),
        BlockKind::CompareWrite => Io::CompareWrite(CompareWrite { request, retry }),
        BlockKind::Flush => unreachable!("a flush is answered at once"),
    }
}
