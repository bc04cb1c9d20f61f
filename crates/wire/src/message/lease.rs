//! Leases between devices (rule R3).

use super::layout::{Sender, message};
use base::Time;

message! {
    /// Primary to each device that its groups need: a sign of life, and the request for a lease.
    Beacon {
        /// The sender, and the version of its map.
        sender: Sender;
        /// The sender's clock.
        sent: Time, @ 112;
    }
    flags {}
    body: NONE
}

message! {
    /// Grants the lease.
    Grant {
        /// The granter, and the version of its map.
        sender: Sender;
        /// The clock of the beacon's sender, as the beacon said it.
        sent: Time, @ 112;
    }
    flags {}
    body: NONE
}
