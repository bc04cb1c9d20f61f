//! Judges groups in doubt that are served from older copies (`accept-loss --use-stale`): each
//! sector has a value that was written there at some time, or zeros. `crate::rescue` judges that
//! only devices are chosen that once had all of the group.

use super::Failure;
use crate::history::{History, SILENT};
use base::VolumeId;
use std::collections::{BTreeMap, BTreeSet};

/// All values that were ever written, by sector.
type Written = BTreeMap<(VolumeId, u32), BTreeSet<u32>>;

/// Judges the reads from the operation with index `first` on.
///
/// # Errors
/// A read saw a value that was never written there.
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
    for (i, op) in history.ops.iter().enumerate().filter(|(_, op)| op.stamps()) {
        for sector in op.sector..op.sector + op.sectors {
            all.entry((op.volume, sector)).or_default().insert(i as u32 + 1);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Answer, Record};
    use crate::plan::IoKind;
    use base::Time;

    fn op(kind: IoKind, sector: u32, seen: Vec<u32>) -> Record {
        let answer = Some(Answer { moment: 1, at: Time(1), result: Ok(()) });
        Record {
            client: 0,
            life: 1,
            volume: VolumeId(1),
            kind,
            sector,
            sectors: 2,
            invoked: 0,
            at: Time(0),
            clock: Time(0),
            answer,
            seen,
            expected: Vec::new(),
            cut: None,
            knew: None,
            left: false,
            gone: None,
            host: None,
            barred: false,
        }
    }

    #[test]
    fn only_earlier_content_may_come_back() {
        let judge = |seen: [u32; 2]| {
            let read = op(IoKind::Read, 0, seen.to_vec());
            let writes = [op(IoKind::Write, 0, Vec::new()), op(IoKind::Write, 8, Vec::new())];
            let mut history = History::default();
            history.ops.extend(writes.into_iter().chain([read]));
            check(&history, 2).is_ok()
        };
        assert!(judge([1, 0]) && judge([0, 0]) && judge([1, SILENT]));
        assert!(!judge([1, 2]), "the second write was somewhere else");
    }
}
