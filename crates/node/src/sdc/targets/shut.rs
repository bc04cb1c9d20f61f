//! The end of all sessions, when the MDM says that this process is over.
//!
//! Invariant: after that no session has a volume. Hosts that connect are told to come back later,
//! and NBD clients are disconnected.

use crate::sdc::Sdc;
use alloc::vec::Vec;
use base::{LinkId, Time};
use seam::Effects;

impl Sdc {
    /// Closes all connections of hosts and NBD clients, and serves no new ones.
    pub(in crate::sdc) fn targets_shut(&mut self, now: Time, out: &mut Effects) {
        self.targets.shut = true;
        let mut links: Vec<LinkId> = self.targets.sessions.keys().copied().collect();
        links.sort_unstable();
        for link in links {
            self.target_close(now, link, None, out);
        }
        self.targets.iscsi_stop(); // a login does not wait for a newer map either
    }
}
