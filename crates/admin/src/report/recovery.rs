//! Progress of the last recovery of the MDMs, as `status --json` publishes it.

use super::summary::summary;
use serde::Serialize;
use wire::control::{RecoveryStatus, StatusInfo};

/// The last recovery, ordered after most MDMs were lost.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Recovery {
    /// Recoveries so far, this one included.
    pub number: u32,
    /// Who ordered it, as `user@host`.
    pub ordered_by: String,
    /// Seconds since 1970, UTC.
    pub ordered_at_seconds: u64,
    /// The MDM is still collecting reports from the servers.
    pub open: bool,
    /// Groups in doubt: it is not known which replica has every acknowledged write.
    pub doubtful_groups: u32,
    /// Groups in doubt that no report can decide.
    pub undecidable_groups: u32,
    /// Groups in doubt that the operator has to confirm: one device has the latest writes, provided
    /// that every device has reported.
    pub unconfirmed_groups: u32,
    /// Devices whose reports are missing.
    pub waits_for: Vec<u32>,
    /// Those of `waits_for` in whose place an older disk came back.
    pub older_disks: Vec<u32>,
    /// Volumes that the MDM can't take over, although a device has their data, or a server's map
    /// has them.
    pub unknown_volumes: Vec<u32>,
    /// A summary for people.
    #[serde(skip)]
    pub text: String,
}

impl Recovery {
    /// Makes the report from an MDM's status.
    pub fn new(info: &StatusInfo, r: &RecoveryStatus) -> Recovery {
        Recovery {
            number: r.number,
            ordered_by: r.by.clone(),
            ordered_at_seconds: r.at,
            open: r.open,
            doubtful_groups: r.doubtful,
            undecidable_groups: r.stuck,
            unconfirmed_groups: r.alone,
            waits_for: r.waits_for.clone(),
            older_disks: r.older.clone(),
            unknown_volumes: r.strange.clone(),
            text: summary(info, r),
        }
    }
}
