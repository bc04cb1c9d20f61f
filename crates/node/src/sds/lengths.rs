//! Lengths of the lists of a shard that peers and strangers can make longer, for judges, and the
//! bounds of these lengths. `docs/internals/limits.md` explains the bounds.

use super::{Sds, claimants, news};
use mdm::refused::MAX_MEMBERS;

/// Lengths of lists, or their bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListLengths {
    /// Hellos that wait for a map.
    pub hellos: usize,
    /// MDMs that say that they lead.
    pub claimants: usize,
    /// Bytes of the answers of the MDM that are kept for other servers.
    pub kept: usize,
    /// Bytes of an answer of the MDM that has not arrived as a whole.
    pub coming: usize,
    /// Bytes of an answer of another server that has not arrived as a whole.
    pub passed_on: usize,
}

impl Sds {
    /// Returns the lengths of the lists.
    pub fn list_lengths(&self) -> ListLengths {
        let (kept, coming, passed_on) = self.news.bytes();
        ListLengths {
            hellos: self.sessions.waiting.len(),
            claimants: self.mdm.claimants.len(),
            kept,
            coming,
            passed_on,
        }
    }

    /// Returns the bounds of the lengths.
    pub fn list_bounds(&self) -> ListLengths {
        ListLengths {
            hellos: self.config.limits.strangers as usize,
            // Attempts at addresses that the newest map no longer names go on.
            claimants: self.mdm.finder.addresses() + MAX_MEMBERS + claimants::STRANGE,
            kept: news::BYTES,
            coming: news::BYTES,
            passed_on: news::BYTES,
        }
    }

    /// Returns the bounds of the lengths of the lists of the replicas here, if all volumes together
    /// have this many units.
    pub fn replica_bounds(&self, units: usize) -> mirror::ListLengths {
        mirror::ListLengths::most(&self.config.limits, units)
    }
}
