//! PERSISTENT RESERVE IN and OUT (SPC-4 6.13, 6.14): what a host asks, and what it is told.

/// What PERSISTENT RESERVE IN asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report {
    pub(super) what: What,
    /// The allocation length of the CDB.
    pub(super) allocation: u32,
    /// Bytes that the host has room for.
    pub(super) room: u32,
}

/// The service action.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum What {
    /// READ KEYS.
    Keys,
    /// READ RESERVATION.
    Reservation,
    /// READ FULL STATUS.
    FullStatus,
}
