//! Judges R17. The judge of I2 treats a compare-and-write as a read and a write, each at some
//! moment between request and answer. This judge checks that the two are one step:
//!
//! - At most one compare-and-write succeeds in replacing the value of an operation. A sector is
//!   zero once at the beginning, and once more after each operation that zeroes it.
//! - A compare-and-write must not fail with "differs" while the sector certainly holds the expected
//!   value: the write of that value was answered before, and nothing else can have changed the
//!   sector since.

use super::Failure;
use super::register::Value;
use crate::history::{History, Record};
use crate::plan::IoKind;
use base::VolumeId;
use std::collections::BTreeMap;

/// A sector.
type Place = (VolumeId, u32);

/// Judges all compare-and-writes of a run.
///
/// # Errors
/// Two have replaced the same content, or one was told of a difference that was not there.
pub fn check(history: &History) -> Result<(), Failure> {
    let mut replaced: BTreeMap<(Place, Value), Vec<usize>> = BTreeMap::new();
    for (index, op) in swaps(history) {
        if op.is_ok() && !op.left {
            for (value, sector) in op.expected.iter().zip(op.sector..) {
                replaced.entry(((op.volume, sector), *value)).or_default().push(index);
            }
        }
        if let Some(sector) = op.miscompared().filter(|_| !op.left) {
            judge_difference(history, index, op, sector)?;
        }
    }
    for ((place, value), by) in replaced {
        let most = 1 + if value == 0 { zeroings(history, place) } else { 0 };
        if by.len() > most {
            let all: String =
                by.iter().map(|i| format!("\n    {}: {}", i + 1, history.ops[*i])).collect();
            let text = format!(
                "what operation {value} wrote to {} sector {} was replaced by each of these:{all}",
                place.0, place.1
            );
            return Err(Failure::new("R17", text));
        }
    }
    Ok(())
}

fn swaps(history: &History) -> impl Iterator<Item = (usize, &Record)> {
    history.ops.iter().enumerate().filter(|(_, op)| op.kind == IoKind::Swap)
}

fn touches(op: &Record, place: Place) -> bool {
    op.volume == place.0 && (op.sector..op.sector + op.sectors).contains(&place.1)
}

/// Returns how often a sector may have become zeros.
fn zeroings(history: &History, place: Place) -> usize {
    let zeroes = |op: &&Record| {
        matches!(op.kind, IoKind::Zero | IoKind::Discard) && touches(op, place) || op.left
    };
    history.ops.iter().filter(zeroes).count()
}

/// Judges the answer that this sector differs from what the operation expected.
fn judge_difference(
    history: &History,
    index: usize,
    op: &Record,
    sector: u32,
) -> Result<(), Failure> {
    let fail = |why: String| Err(Failure::new("R17", format!("{op}: sector {sector} {why}")));
    let at = sector.checked_sub(op.sector).map(|at| at as usize);
    let Some(expected) = at.and_then(|at| op.expected.get(at)) else {
        return fail("is not one of its own".into());
    };
    let answered = op.answer.map_or(u64::MAX, |answer| answer.moment);
    let over = |other: &Record| other.answer.filter(|a| a.result.is_ok()).map(|a| a.moment);
    let Some(writer) = history.writer(*expected) else { return Ok(()) };
    if over(writer).is_none_or(|moment| moment > op.invoked) {
        return Ok(());
    }
    let may_change = |(i, other): (usize, &Record)| {
        let itself = i == index || i + 1 == *expected as usize;
        let nothing = other.is_refused() || other.miscompared().is_some();
        let before = over(other).is_some_and(|moment| moment < writer.invoked);
        other.is_write()
            && !itself
            && !nothing
            && !before
            && other.invoked < answered
            && touches(other, (op.volume, sector))
    };
    if history.ops.iter().enumerate().any(may_change) {
        return Ok(());
    }
    fail(format!("differs from what operation {expected} wrote, and nothing has changed it since"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Answer;
    use base::Time;
    use seam::BlockError;

    type Told = Option<Result<(), BlockError>>;

    /// Returns an operation on sector 8, which is under way between these moments.
    fn op(kind: IoKind, (invoked, moment): (u64, u64), told: Told, expected: &[Value]) -> Record {
        Record {
            client: 0,
            life: 1,
            volume: VolumeId(1),
            kind,
            sector: 8,
            sectors: 1,
            invoked,
            at: Time::ZERO,
            clock: Time::ZERO,
            answer: told.map(|result| Answer { moment, at: Time::ZERO, result }),
            seen: Vec::new(),
            expected: expected.to_vec(),
            cut: None,
            left: false,
            gone: None,
            host: None,
            barred: false,
            knew: None,
        }
    }

    fn verdict(ops: Vec<Record>) -> bool {
        let mut history = History::default();
        history.ops = ops;
        check(&history).is_ok()
    }

    const OK: Told = Some(Ok(()));
    const DIFFERS: Told = Some(Err(BlockError::Miscompare(0)));

    #[test]
    fn a_written_value_is_swapped_once() {
        let swap = |when, told, expected| op(IoKind::Swap, when, told, &[expected]);
        let write = || op(IoKind::Write, (1, 2), OK, &[]);
        assert!(verdict(vec![write(), swap((3, 4), OK, 1), swap((5, 6), OK, 2)]));
        assert!(!verdict(vec![write(), swap((3, 5), OK, 1), swap((4, 6), OK, 1)]));
        assert!(verdict(vec![write(), swap((3, 5), OK, 1), swap((4, 6), None, 1)]));
        assert!(verdict(vec![write(), swap((3, 5), OK, 1), swap((4, 6), DIFFERS, 1)]));
        let zero = op(IoKind::Zero, (5, 6), OK, &[]);
        let (first, second) = (swap((1, 2), OK, 0), swap((7, 8), OK, 0));
        assert!(verdict(vec![first.clone(), zero, second.clone()]));
        assert!(!verdict(vec![first, second]), "nobody has zeroed it");
    }

    #[test]
    fn a_difference_that_is_surely_not_there_is_noticed() {
        let told = |between: &[Record]| {
            let write = op(IoKind::Write, (1, 2), OK, &[]);
            let swap = op(IoKind::Swap, (20, 30), DIFFERS, &[1]);
            verdict([write].into_iter().chain(between.iter().cloned()).chain([swap]).collect())
        };
        assert!(!told(&[]));
        assert!(told(&[op(IoKind::Write, (3, 4), OK, &[])]));
        assert!(told(&[op(IoKind::Discard, (25, 40), OK, &[])]), "at the same time");
        assert!(told(&[op(IoKind::Write, (3, 4), None, &[])]), "it may be done");
        assert!(!told(&[op(IoKind::Write, (31, 40), OK, &[])]), "it came later");
        assert!(!told(&[op(IoKind::Read, (3, 4), OK, &[])]));
        assert!(!told(&[op(IoKind::Swap, (3, 4), DIFFERS, &[9])]), "it has written nothing");
        let elsewhere = Record { sector: 9, ..op(IoKind::Write, (3, 4), OK, &[]) };
        assert!(!told(&[elsewhere]));
    }

    #[test]
    fn a_difference_is_in_the_range_and_the_writer_is_done() {
        let writes = |told| op(IoKind::Write, (1, 25), told, &[]);
        let swap = |at| op(IoKind::Swap, (20, 30), Some(Err(BlockError::Miscompare(at))), &[1]);
        assert!(verdict(vec![writes(OK), swap(0)]), "it may not have been done yet");
        assert!(verdict(vec![writes(None), swap(0)]));
        assert!(!verdict(vec![writes(OK), swap(512)]), "it has one sector");
    }
}
