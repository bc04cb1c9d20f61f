//! How the last recovery of the MDMs stands, as `status --json` shows it.

use serde::Serialize;
use wire::control::{RecoveryStatus, StatusInfo};

/// The last recovery of the MDMs, of which most were lost.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Recovery {
    /// How many there were.
    pub number: u32,
    pub ordered_by: String,
    /// Since 1970, UTC.
    pub ordered_at_seconds: u64,
    /// The MDM still asks servers what they know.
    pub open: bool,
    /// Groups of which it is not known who has everything.
    pub doubtful_groups: u32,
    /// Of these, those of which no server can tell.
    pub undecidable_groups: u32,
    /// And those that a person has to confirm: one device has what was written last, if every device has reported.
    pub unconfirmed_groups: u32,
    /// Devices whose reports are missing.
    pub waits_for: Vec<u32>,
    /// Of these, those in whose place an older disk came back.
    pub older_disks: Vec<u32>,
    /// Volumes of which there is data, or which a server's map has, and that the MDM can't take over.
    pub unknown_volumes: Vec<u32>,
    /// For people.
    #[serde(skip)]
    pub text: String,
}

impl Recovery {
    /// What an MDM told.
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
            text: crate::mdm::recovery::summary(info, r),
        }
    }
}
