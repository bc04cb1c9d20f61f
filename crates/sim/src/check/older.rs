//! What an operator gets who has groups in doubt served from older copies (`accept-loss --use-stale`): each sector has
//! something that was written there at some time, or nothing, and a device that never had all of a group is not chosen.

use super::Failure;
use crate::history::{History, SILENT};
use crate::plan::IoKind;
use base::VolumeId;
use std::collections::{BTreeMap, BTreeSet};

/// What was ever written, by place; 0 is nothing.
type Written = BTreeMap<(VolumeId, u32), BTreeSet<u32>>;

/// Judges the reads from `first` on.
///
/// # Errors
/// One of them saw what was never written there.
pub fn check(history: &History, first: usize) -> Result<(), Failure> {
    let written = written(history);
    for op in &history.ops[first..] {
        let Some(answer) = op.answer.filter(|a| a.result.is_ok()) else { continue };
        for (i, seen) in op.seen.iter().enumerate().filter(|(_, seen)| **seen != SILENT) {
            let sector = op.sector + i as u32;
            let known = written.get(&(op.volume, sector)).is_some_and(|all| all.contains(seen));
            if *seen != 0 && !known {
                let (volume, at) = (op.volume, answer.at);
                let text =
                    format!("{volume} sector {sector} had never {seen}, and is read so at {at:?}");
                return Err(Failure::new("older copies", text));
            }
        }
    }
    Ok(())
}

fn written(history: &History) -> Written {
    let mut all = Written::new();
    for (i, op) in history.ops.iter().enumerate().filter(|(_, op)| op.kind == IoKind::Write) {
        for sector in op.sector..op.sector + op.sectors {
            all.entry((op.volume, sector)).or_default().insert(i as u32 + 1);
        }
    }
    all
}
