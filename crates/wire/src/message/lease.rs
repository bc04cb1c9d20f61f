//! Leases between devices (rule R3).

use super::layout::message;
use base::{Incarnation, MapVersion, Time};

message! {
    /// Primary to each device that its groups need: a sign of life, and the request for a lease.
    Beacon {
        /// The incarnation of the sender.
        incarnation: Incarnation, @ 96;
        /// The version of the sender's map.
        map: MapVersion, @ 104;
        /// The sender's clock.
        sent: Time, @ 112;
    }
    flags {}
}

message! {
    /// Grants the lease.
    Grant {
        /// The incarnation of the sender.
        incarnation: Incarnation, @ 96;
        /// The version of the granter's map.
        map: MapVersion, @ 104;
        /// The clock of the beacon's sender, as the beacon said it.
        sent: Time, @ 112;
    }
    flags {}
}
