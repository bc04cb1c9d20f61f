//! Lengths of the lists that an initiator can make longer, for judges, and the bounds of these
//! lengths. `docs/internals/limits.md` explains the bounds.

use super::full::{BESIDE_WINDOW, Full};
use super::wire::Wire;
use base::Limits;

/// Lengths of the lists of a session, or their bounds.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ListLengths {
    /// Outstanding commands.
    pub commands: usize,
    /// Of these, immediate ones.
    pub immediate: usize,
    /// Unanswered task management requests.
    pub management: usize,
    /// Tags of commands that have ended and whose data may still arrive.
    pub strays: usize,
    /// Numbers of commands that were aborted before they arrived.
    pub skipped: usize,
    /// Bytes that R2Ts have asked for and that are not written yet.
    pub solicited: usize,
    /// Bytes that are being read.
    pub reads: usize,
    /// Requests that the volume has.
    pub requests: usize,
}

impl ListLengths {
    /// Returns the largest values that [`super::Session::list_lengths`] may return.
    pub fn most(limits: &Limits) -> ListLengths {
        let window = limits.iscsi_window as usize;
        ListLengths {
            commands: window + BESIDE_WINDOW,
            immediate: BESIDE_WINDOW,
            management: BESIDE_WINDOW,
            strays: window + BESIDE_WINDOW,
            skipped: window,
            solicited: limits.iscsi_solicited as usize,
            reads: 2 * limits.scsi_transfer as usize,
            // Pieces of writes, and one for each other command.
            requests: limits.iscsi_requests as usize + window + BESIDE_WINDOW,
        }
    }

    /// Returns the larger one of each length.
    pub fn longest(self, other: ListLengths) -> ListLengths {
        ListLengths {
            commands: self.commands.max(other.commands),
            immediate: self.immediate.max(other.immediate),
            management: self.management.max(other.management),
            strays: self.strays.max(other.strays),
            skipped: self.skipped.max(other.skipped),
            solicited: self.solicited.max(other.solicited),
            reads: self.reads.max(other.reads),
            requests: self.requests.max(other.requests),
        }
    }

    /// Returns the lengths of a session in full feature phase.
    pub(super) fn of(full: &Full, wire: &Wire) -> ListLengths {
        let (solicited, reads) = full.credit.used();
        ListLengths {
            commands: full.tasks.len(),
            immediate: full.tasks.immediate(),
            management: full.managed.len(),
            strays: full.strays.len(),
            skipped: wire.skipped(),
            solicited: solicited as usize,
            reads: reads as usize,
            requests: full.places.used() as usize,
        }
    }
}
