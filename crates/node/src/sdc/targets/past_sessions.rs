//! The volume properties that iSCSI hosts were told before their sessions ended. A host that logs
//! in again gets a unit attention for each change since then, because Linux does not reread a
//! volume's size by itself.
//!
//! Invariant: one entry per host, session id and volume, and at most [`MOST`]. A host without an
//! entry gets only the unit attention of a new session.

use alloc::collections::VecDeque;
use target::iscsi::Nexus;
use target::scsi::Device;

/// The most remembered sessions: about 600 bytes each.
pub(super) const MOST: usize = 1024;

/// Ended sessions, the oldest first.
#[derive(Debug, Default)]
pub(super) struct PastSessions {
    list: VecDeque<(Nexus, Device)>,
}

/// Returns true if both are sessions of one host's port with one volume.
fn is_same(a: &Nexus, b: &Nexus) -> bool {
    (a.isid, a.volume) == (b.isid, b.volume) && a.initiator == b.initiator
}

impl PastSessions {
    /// Adds the state that the host of a session was told.
    pub(super) fn add(&mut self, nexus: Nexus, device: &Device) {
        drop(self.take(&nexus));
        if self.list.len() == MOST {
            self.list.pop_front();
        }
        self.list.push_back((nexus, device.clone()));
        assert!(self.list.len() <= MOST, "a bounded number of sessions is remembered");
    }

    /// Returns the number of remembered sessions.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Removes and returns the state that this host was told in its previous session.
    pub(super) fn take(&mut self, nexus: &Nexus) -> Option<Device> {
        let at = self.list.iter().position(|(past, _)| is_same(past, nexus))?;
        self.list.remove(at).map(|(_, device)| device)
    }
}
