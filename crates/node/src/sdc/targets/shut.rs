//! The end of all sessions: when the MDM says that this process is over, and when the process
//! stops.
//!
//! Invariant: after that no session has a volume. Hosts that connect are told to come back later,
//! and NBD clients are disconnected.

use super::Sessions;
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

    /// Ends what is left when the process stops, as soon as no iSCSI host is logged in. Gateways
    /// that take over need not wait for the MDM to miss this one: it is told that no host is here.
    pub(in crate::sdc) fn targets_stop(&mut self, now: Time, out: &mut Effects) {
        if self.targets.iscsi_is_stopping() && !self.targets.shut && self.targets.iscsi_is_over() {
            self.targets_shut(now, out);
            self.run(now, out);
        }
    }
}

impl Sessions {
    /// Returns true if all hosts have left, and the MDM was told so, if it can be told.
    pub(in crate::sdc) fn is_over(&self, mdm: bool) -> bool {
        self.iscsi_is_over() && !(mdm && self.seats.untold)
    }
}
