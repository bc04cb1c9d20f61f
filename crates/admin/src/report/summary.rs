//! The state of a recovery of the MDMs in words, with what an operator can do.

use super::device_name;
use std::time::{Duration, UNIX_EPOCH};
use wire::control::{RecoveryStatus, StatusInfo};

/// Describes the state of a recovery, and what to do.
pub fn summary(info: &StatusInfo, status: &RecoveryStatus) -> String {
    let names = |ids: Vec<u32>| -> Vec<String> {
        ids.into_iter().map(|id| device_name(info, id)).collect()
    };
    let (older, waits): (Vec<u32>, Vec<u32>) =
        status.waits_for.iter().partition(|id| status.older.contains(id));
    let (older, waits) = (names(older), names(waits));
    let mut text = match status.open {
        true => String::from(
            "The MDM still collects what servers know. I/O goes on, as without an MDM.",
        ),
        false => format!(
            "Recovery {} is over (ordered by {}, {}). Make the MDMs three again: `gabion mdm add`.",
            status.number,
            status.by,
            when(status.at)
        ),
    };
    if status.doubtful > 0 {
        text += &format!(
            " {} groups are not served, because it is not known which copy has every write.",
            status.doubtful
        );
    }
    if !waits.is_empty() {
        text += &format!(" It waits for {}: start them.", waits.join(", "));
    }
    if !older.is_empty() {
        text += &format!(
            " In the place of {} an older disk came back, which was replaced since: put the newer \
             one into its place.",
            older.join(", ")
        );
    }
    if status.alone > 0 {
        text += &format!(
            " Of {} of these groups one device has what was written last, if every device has \
             reported. Is there a server that `gabion status` does not show? Start it.",
            status.alone
        );
    }
    if status.stuck > 0 {
        text += &format!(" Of {} of these groups no server can tell.", status.stuck);
    }
    if !status.strange.is_empty() {
        let ids: Vec<String> = status.strange.iter().map(u32::to_string).collect();
        let ids = ids.join(",");
        text += &format!(
            " Servers hold or know volumes that the MDM does not know (ids {ids}). Their data \
             stays on the devices, and nobody serves it. Start all servers, or restore a newer \
             backup. If nobody needs these volumes: `gabion mdm recover --delete-volumes {ids}`."
        );
    }
    if status.open {
        text += " `gabion mdm recover --finish` goes on without what is missing.";
    }
    text
}

/// Formats a time in seconds since 1970.
pub fn when(seconds: u64) -> impl std::fmt::Display {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(seconds))
}
