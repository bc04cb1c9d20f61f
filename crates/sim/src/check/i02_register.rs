//! Judges I2: every sector is a linearizable register.
//!
//! A write without an answer, or with an error as the answer, takes effect once or never; it never
//! appears and then vanishes. If it takes effect, it does so before its answer, if there is one,
//! and before the client's next incarnation has completed an operation in the same unit (I9:
//! nothing from a fenced client appears after the fence). A request over a connection that is gone,
//! or of a program that was killed, takes effect before any later request to the same place is
//! answered.
//!
//! I1, that acknowledged writes stay, follows from it, as a run ends with a read of everything.

use super::Failure;
use super::register::{self, Access, Op, Verdict};
use crate::history::{History, Record, SILENT};
use crate::plan::IoKind;
use base::{SECTOR, UNIT, VolumeId};
use seam::BlockError;
use std::collections::BTreeMap;

const UNIT_SECTORS: u32 = UNIT / SECTOR;

/// By (client, volume, unit): the moment of the first answer to each incarnation of the client.
type Fences = BTreeMap<(u8, VolumeId, u32), BTreeMap<u32, u64>>;

fn fences(history: &History) -> Fences {
    let mut fences = Fences::new();
    for op in history.ops.iter().filter(|op| op.is_ok()) {
        let moment = op.answer.expect("it is answered").moment;
        for unit in op.sector / UNIT_SECTORS..=(op.sector + op.sectors - 1) / UNIT_SECTORS {
            let lives = fences.entry((op.client, op.volume, unit)).or_default();
            let first = lives.entry(op.life).or_insert(moment);
            *first = moment.min(*first);
        }
    }
    fences
}

/// Returns what a compare-and-write has seen in a sector: what it expected, if it was done, and in
/// front of the first sector that differs.
fn compared(op: &Record, sector: u32) -> Option<Op> {
    let answer = op.answer.filter(|_| !op.left)?;
    let equal = answer.result.is_ok() || op.miscompared().is_some_and(|differs| sector < differs);
    let access = Access::Read(*op.expected.get((sector - op.sector) as usize)?);
    let (invoked, answered) = (op.invoked, Some(answer.moment));
    equal.then_some(Op { access, invoked, answered, expires: answer.moment })
}

fn access(op: &Record, index: usize, sector: u32) -> Option<Op> {
    // Reads of a volume that was deleted and came back in a recovery may see anything.
    let undone = op.left && !op.is_write();
    if op.is_refused() || op.miscompared().is_some() || undone {
        return None;
    }
    let access = match op.kind {
        IoKind::Write | IoKind::Swap => Access::Write(index as u32 + 1),
        IoKind::Zero | IoKind::Discard => Access::Write(0),
        IoKind::Read | IoKind::Extents => {
            let seen = *op.seen.get((sector - op.sector) as usize)?;
            if seen == SILENT {
                return None;
            }
            Access::Read(seen)
        }
    };
    let answered = op.answer.filter(|a| a.result.is_ok()).map(|a| a.moment);
    // An operation that ended in `NoSuchVolume` may have reached servers that do not know of the
    // unmapping yet, so it expires with the fence. One that took too long, or whose program was
    // killed, may still be in flight.
    let open = took_too_long(op) || op.gone.is_some();
    let over = op.answer.filter(|a| a.result != Err(BlockError::NoSuchVolume) && !open);
    let expires = over.map_or(u64::MAX, |a| a.moment).min(op.cut.unwrap_or(u64::MAX));
    Some(Op { access, invoked: op.invoked, answered, expires })
}

/// Returns true when a time limit or another host's reservation ended the operation: whether it
/// takes effect is unknown.
fn took_too_long(op: &Record) -> bool {
    use BlockError::{Full, Reserved, TimedOut};
    op.answer.is_some_and(|a| matches!(a.result, Err(TimedOut | Full | Reserved)))
}

/// Percentage of sectors whose histories may be too complex to judge.
const UNCLEAR_PERCENT: u64 = 1;

/// Returns when an operation expires that its client has abandoned, because its NBD connection was
/// gone, its program was killed, or it took too long (R16): at the first answer to a later request
/// of the client, of the operations that touch the sector.
fn overtaken(history: &History, record: &Record, touched: &[u32]) -> u64 {
    let late = record.answer.filter(|_| took_too_long(record)).map(|a| a.moment);
    let Some(gone) = record.gone.or(late) else { return u64::MAX };
    let ops = touched.iter().map(|i| &history.ops[*i as usize]);
    let later = ops.filter(|op| op.client == record.client && op.invoked > gone && op.is_ok());
    later.filter_map(|op| op.answer.map(|a| a.moment)).min().unwrap_or(u64::MAX)
}

/// Judges every sector. Returns the number of sectors whose history is too complex to judge.
///
/// # Errors
/// A sector is not a register, or more than [`UNCLEAR_PERCENT`] of the sectors can't be judged.
pub fn check(history: &History) -> Result<u32, Failure> {
    let fences = fences(history);
    let mut volumes: BTreeMap<VolumeId, Vec<Vec<u32>>> = BTreeMap::new();
    for (i, op) in history.ops.iter().enumerate() {
        let sectors = volumes.entry(op.volume).or_default();
        let end = (op.sector + op.sectors) as usize;
        if sectors.len() < end {
            sectors.resize(end, Vec::new());
        }
        sectors[op.sector as usize..end].iter_mut().for_each(|s| s.push(i as u32));
    }
    let (mut unclear, mut all) = (0, 0);
    for (volume, sectors) in &volumes {
        let mut last: (Vec<Op>, u32) = (Vec::new(), u32::MAX);
        for (sector, touched) in sectors.iter().enumerate() {
            let sector = sector as u32;
            all += u64::from(!touched.is_empty());
            let mut names = Vec::with_capacity(touched.len());
            let mut ops = Vec::with_capacity(touched.len());
            for i in touched {
                let record = &history.ops[*i as usize];
                if let Some(op) = compared(record, sector) {
                    names.push(*i);
                    ops.push(op);
                }
                let Some(mut op) = access(record, *i as usize, sector) else { continue };
                let key = (record.client, *volume, sector / UNIT_SECTORS);
                let lives = fences.get(&key);
                let fence = lives.and_then(|l| l.range(record.life + 1..).map(|f| *f.1).min());
                // A former incarnation may hear late of a write that was done before.
                if record.is_write() && op.answered.is_some() {
                    op.answered = op.answered.min(fence.or(op.answered));
                    // So may a program that was killed.
                    if record.gone.is_some() {
                        op.answered = op.answered.min(Some(overtaken(history, record, touched)));
                    }
                }
                if op.answered.is_none() {
                    op.expires = op.expires.min(fence.unwrap_or(u64::MAX));
                    op.expires = op.expires.min(overtaken(history, record, touched));
                }
                names.push(*i);
                ops.push(op);
            }
            if (&ops, sector / UNIT_SECTORS) == (&last.0, last.1) {
                continue; // same history as the sector before
            }
            match register::check(&ops) {
                Verdict::Fine => {}
                Verdict::Unclear => unclear += 1,
                Verdict::Bad(v) => {
                    let culprit = names[v.op];
                    return Err(Failure::new(
                        "I2",
                        explain(history, *volume, sector, &names, culprit, &v),
                    ));
                }
            }
            last = (ops, sector / UNIT_SECTORS);
        }
    }
    if u64::from(unclear) * 100 > all * UNCLEAR_PERCENT {
        let text =
            format!("{unclear} of {all} sectors have histories that are too complex to judge");
        return Err(Failure::new("I2", text));
    }
    Ok(unclear)
}

fn explain(
    history: &History,
    volume: VolumeId,
    sector: u32,
    names: &[u32],
    culprit: u32,
    violation: &register::Violation,
) -> String {
    let bad = &history.ops[culprit as usize];
    let until = bad.answer.map_or(u64::MAX, |a| a.moment);
    let mut text = format!("{volume} sector {sector} (block {}) is no register.", sector / 8);
    let what = |i: u32| {
        let op = &history.ops[i as usize];
        let seen = op.seen.get((sector - op.sector) as usize);
        let value = match (op.is_write(), seen) {
            (true, _) if op.stamps() => format!("writes {}", i + 1),
            (true, _) => "writes 0".to_string(),
            (false, Some(v)) => format!("sees {v}"),
            (false, None) => "sees nothing".to_string(),
        };
        format!("\n    {} {value}: {op}", i + 1)
    };
    text += &format!("\n  The answer that can't be:{}", what(culprit));
    let possible: Vec<u32> = violation.possible.iter().flatten().copied().collect();
    text += &format!("\n  Possible values then: {possible:?}. What happened before, latest last:");
    let mut before: Vec<u32> = names
        .iter()
        .copied()
        .filter(|i| *i != culprit && history.ops[*i as usize].invoked < until)
        .collect();
    let skip = before.len().saturating_sub(14);
    before.drain(..skip);
    before.iter().for_each(|i| text += &what(*i));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Answer;
    use base::Time;

    /// Returns a write to the first sector.
    fn write(client: u8, invoked: u64, moment: u64, result: Result<(), BlockError>) -> Record {
        Record {
            client,
            life: 1,
            answer: Some(Answer { moment, at: Time::ZERO, result }),
            ..Record::asked(VolumeId(1), IoKind::Write, 0..1, invoked, Time::ZERO)
        }
    }

    /// Returns a read of the first sector that sees the write with this index.
    fn read(client: u8, invoked: u64, sees: u32) -> Record {
        let record = write(client, invoked, invoked + 1, Ok(()));
        Record { kind: IoKind::Read, seen: vec![sees + 1], ..record }
    }

    /// Returns a history of writes to one sector that are all in flight at once.
    fn crowded(writes: u64) -> History {
        let mut history = History::default();
        history.ops.extend((0..writes).map(|i| write(0, 1 + i, 1000 + i, Ok(()))));
        history
    }

    #[test]
    fn a_write_beyond_its_time_limit_may_land_until_its_client_goes_on() {
        let verdict = |next: Record| {
            let mut history = History::default();
            history.ops.push(write(0, 1, 10, Err(BlockError::TimedOut)));
            history.ops.push(write(1, 20, 21, Ok(())));
            history.ops.extend([next, read(1, 35, 1), read(1, 40, 0)]);
            check(&history)
        };
        assert_eq!(verdict(read(1, 30, 1)), Ok(0), "another client saw the newer write first");
        assert!(verdict(read(0, 30, 1)).is_err(), "its own client was answered since");
    }

    #[test]
    fn a_withdrawn_write_may_land_until_its_client_goes_on_whatever_the_answer() {
        let verdict = |answer: Option<(u64, Result<(), BlockError>)>, next: Record| {
            let mut history = History::default();
            let mut first = Record { gone: Some(5), ..write(0, 1, 10, Ok(())) };
            first.answer = answer.map(|(moment, result)| Answer { moment, at: Time::ZERO, result });
            history.ops.push(first);
            history.ops.push(write(1, 20, 21, Ok(())));
            history.ops.extend([next, read(1, 35, 1), read(1, 40, 0)]);
            check(&history).is_ok()
        };
        let errors = [BlockError::Busy, BlockError::TimedOut].map(|e| Some((10, Err(e))));
        for answer in [None, errors[0], errors[1], Some((50, Ok(())))] {
            assert!(verdict(answer, read(1, 30, 1)), "another client saw the newer write first");
            assert!(!verdict(answer, read(0, 30, 1)), "its own client was answered since");
        }
        assert!(!verdict(Some((10, Ok(()))), read(1, 30, 1)), "it was done before");
    }

    #[test]
    fn a_former_process_may_be_answered_late_and_changes_nothing_late() {
        let second_life = |r: Record| Record { life: 2, ..r };
        let story = |first: u32, second: u32| {
            let mut history = History::default();
            history.ops.push(write(0, 1, 100, Ok(())));
            history.ops.push(second_life(write(0, 10, 11, Ok(()))));
            history.ops.push(second_life(read(0, 12, first)));
            history.ops.push(second_life(read(0, 14, second)));
            check(&history).is_ok()
        };
        assert!(story(1, 1), "it was done before, or at once written over");
        assert!(!story(1, 0), "it came over what the newer life has written");
    }

    #[test]
    fn a_compare_and_write_has_seen_what_it_expected_and_writes_only_then() {
        let swap = |invoked, expected: u32, result| {
            let record = write(0, invoked, invoked + 1, result);
            Record { kind: IoKind::Swap, expected: vec![expected], ..record }
        };
        let story = |swap: Record, sees: u32| {
            let mut history = History::default();
            history.ops.extend([write(0, 1, 2, Ok(())), write(1, 3, 4, Ok(()))]);
            history.ops.extend([swap, read(1, 10, sees)]);
            check(&history).is_ok()
        };
        assert!(story(swap(5, 2, Ok(())), 2));
        assert!(!story(swap(5, 1, Ok(())), 2), "that was overwritten before");
        assert!(!story(swap(5, 2, Ok(())), 1), "it was done");
        let differs = Err(BlockError::Miscompare(0));
        assert!(story(swap(5, 1, differs), 1));
        assert!(!story(swap(5, 1, differs), 2), "it has written nothing");
        assert!(story(swap(5, 1, Err(BlockError::TimedOut)), 2), "it may be done");
    }

    #[test]
    fn a_history_with_too_many_unclear_sectors_fails() {
        assert_eq!(check(&crowded(100)), Ok(0));
        assert!(check(&crowded(129)).is_err_and(|f| f.text.contains("too complex")));
    }
}
