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

/// Closes all connections of hosts and NBD clients, and serves no new ones.
pub(in crate::sdc) fn shut(sdc: &mut Sdc, now: Time, out: &mut Effects) {
    sdc.targets.shut = true;
    let mut links: Vec<LinkId> = sdc.targets.sessions.keys().copied().collect();
    links.sort_unstable();
    for link in links {
        sdc.target_close(now, link, None, out);
    }
}

/// Ends what is left when the process stops, as soon as no iSCSI host is logged in. Gateways that
/// take over need not wait for the MDM to miss this one: it is told that no host is here.
pub(in crate::sdc) fn stop(sdc: &mut Sdc, now: Time, out: &mut Effects) {
    let targets = &sdc.targets;
    if targets.iscsi_is_stopping() && !targets.shut && targets.iscsi_is_over() {
        shut(sdc, now, out);
        sdc.run(now, out);
    }
}

impl Sessions {
    /// Returns true if all hosts have left, and the MDM was told so, if it can be told.
    pub(in crate::sdc) fn is_over(&self, mdm: bool) -> bool {
        self.iscsi_is_over() && !(mdm && self.seats.untold)
    }
}
