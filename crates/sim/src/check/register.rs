//! Checks whether the history of one 512-byte sector is that of a linearizable register (I2).
//!
//! Every written value is unique, except zero. The search goes through the answers in order and
//! keeps all states that the register may be in. It is lazy: an operation takes effect no earlier
//! than an answer demands, because an operation that takes effect early can as well wait. Two
//! exceptions are tried out. At each answer, any values that reads in flight will return may have
//! been visible for a moment before. And a write whose value nobody sees may have been overwritten
//! at once by the latest visible change, if it was in flight then. So a state consists of the
//! value, the time of its last change, the writes in flight that have been visible, and the reads
//! in flight that have their value.

use std::fmt;

/// Value of a sector: 0 for zeros, else the number of the write.
pub type Value = u32;

/// Effect of an operation on the sector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// It saw this value. A history has no unanswered reads.
    Read(Value),
    /// It wrote this value.
    Write(Value),
}

/// One operation on the sector. Moments are positions in one total order; no two are equal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Op {
    /// Effect of the operation.
    pub access: Access,
    /// Moment of the request.
    pub invoked: u64,
    /// Moment of the answer; `None`: there is none, or the outcome is unknown.
    pub answered: Option<u64>,
    /// If the outcome is unknown: the operation took effect before this moment, or never will.
    /// `u64::MAX`: no limit.
    pub expires: u64,
}

/// Proof that a history is not that of a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The operation whose answer is impossible.
    pub op: usize,
    /// Some of the values that the register could have had instead.
    pub possible: [Option<Value>; 4],
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let possible: Vec<Value> = self.possible.iter().flatten().copied().collect();
        write!(
            f,
            "operation {} can't have been answered so; possible values: {possible:?}",
            self.op
        )
    }
}

/// Verdict on a history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// A register could have this history.
    Fine,
    /// No register could have this history.
    Bad(Violation),
    /// There are too many possibilities to check.
    Unclear,
}

const MAX_STATES: usize = 1 << 13;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct State {
    value: Value,
    /// By slot: writes in flight that have been visible, and reads in flight that have their value.
    done: u128,
    /// Moment of the last visible change.
    changed: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Invoke,
    Expire,
    Answer,
}

struct Search<'a> {
    ops: &'a [Op],
    states: Vec<State>,
    next: Vec<State>,
    /// Operations in flight by slot.
    flying: Vec<Option<usize>>,
    /// By write: the last moment at which a read of its value is answered; 0: never.
    seen_until: Vec<u64>,
}

/// Judges a history. The register starts with zeros.
pub fn check(ops: &[Op]) -> Verdict {
    let seen_until = seen_until(ops);
    let mut moments: Vec<(u64, Kind, usize)> = Vec::with_capacity(ops.len() * 2);
    for (i, op) in ops.iter().enumerate() {
        let is_write = matches!(op.access, Access::Write(_));
        if op.answered.is_none() && is_write && seen_until[i] < op.invoked {
            continue; // it may never have happened, and nobody saw it
        }
        moments.push((op.invoked, Kind::Invoke, i));
        match op.answered {
            Some(at) => moments.push((at, Kind::Answer, i)),
            None if op.expires < u64::MAX => moments.push((op.expires, Kind::Expire, i)),
            None => {}
        }
    }
    moments.sort_unstable();
    let first = State { value: 0, done: 0, changed: 0 };
    let mut s =
        Search { ops, states: vec![first], next: Vec::new(), flying: Vec::new(), seen_until };
    for (now, kind, op) in moments {
        match kind {
            Kind::Invoke => {
                if !s.invoke(op) {
                    return Verdict::Unclear;
                }
                continue;
            }
            Kind::Answer => match s.ops[op].access {
                Access::Read(value) => s.read_answered(now, op, value),
                Access::Write(_) => s.write_answered(now, op),
            },
            Kind::Expire => s.write_expires(now, op),
        }
        s.next.sort_unstable_by_key(|s| (s.value, s.done, std::cmp::Reverse(s.changed)));
        s.next.dedup_by_key(|s| (s.value, s.done));
        if s.next.is_empty() {
            return Verdict::Bad(s.violation(op));
        }
        if s.next.len() > MAX_STATES {
            return Verdict::Unclear;
        }
        std::mem::swap(&mut s.states, &mut s.next);
        s.next.clear();
    }
    Verdict::Fine
}

fn seen_until(ops: &[Op]) -> Vec<u64> {
    let mut reads: Vec<(Value, u64)> = Vec::new();
    for op in ops {
        if let (Access::Read(value), Some(at)) = (op.access, op.answered) {
            reads.push((value, at));
        }
    }
    reads.sort_unstable();
    let last = |value: Value| {
        let end = reads.partition_point(|r| r.0 <= value);
        reads[..end].last().filter(|r| r.0 == value).map_or(0, |r| r.1)
    };
    let of = |op: &Op| if let Access::Write(value) = op.access { last(value) } else { 0 };
    ops.iter().map(of).collect()
}

impl Search<'_> {
    fn invoke(&mut self, op: usize) -> bool {
        let free = self.flying.iter().position(Option::is_none);
        let slot = free.unwrap_or_else(|| {
            self.flying.push(None);
            self.flying.len() - 1
        });
        if slot >= 128 {
            return false;
        }
        self.flying[slot] = Some(op);
        if let Access::Read(value) = self.ops[op].access {
            for s in &mut self.states {
                s.done |= u128::from(s.value == value) << slot;
            }
        }
        true
    }

    fn slot(&self, op: usize) -> usize {
        self.flying.iter().position(|f| *f == Some(op)).expect("the operation is in flight")
    }

    /// Ends the operation: its slot is free, and its mark is cleared in every next state.
    fn land(&mut self, slot: usize) {
        self.flying[slot] = None;
        self.next.iter_mut().for_each(|s| s.done &= !(1 << slot));
    }

    fn read_answered(&mut self, now: u64, op: usize, value: Value) {
        let slot = self.slot(op);
        for s in std::mem::take(&mut self.states) {
            if s.done >> slot & 1 == 1 {
                self.next.push(s);
            } else if let Some(write) = self.writer(&s, value) {
                self.show(now, s, write);
            }
        }
        self.land(slot);
    }

    fn write_answered(&mut self, now: u64, op: usize) {
        let slot = self.slot(op);
        for s in std::mem::take(&mut self.states) {
            if s.done >> slot & 1 == 1 {
                self.next.push(s);
                continue;
            }
            let hidden = s.changed > self.ops[op].invoked;
            if hidden {
                self.next.push(s);
            }
            if !hidden || self.seen_until[op] > self.ops[op].invoked {
                self.show(now, s, slot);
            }
        }
        self.land(slot);
    }

    fn write_expires(&mut self, now: u64, op: usize) {
        let slot = self.slot(op);
        for s in std::mem::take(&mut self.states) {
            self.next.push(s);
            if s.done >> slot & 1 == 0 {
                self.show(now, s, slot);
            }
        }
        self.land(slot);
    }

    /// Returns the slot of a write of `value` that may become visible now. Of several writes of
    /// zeros, returns the one with the earliest deadline.
    fn writer(&self, s: &State, value: Value) -> Option<usize> {
        let usable = |(slot, op): (usize, &Option<usize>)| {
            let op = &self.ops[(*op)?];
            let fits = op.access == Access::Write(value) && s.done >> slot & 1 == 0;
            fits.then_some((op.answered.unwrap_or(op.expires), slot))
        };
        self.flying.iter().enumerate().filter_map(usable).min().map(|(_, slot)| slot)
    }

    /// Makes the write in `slot` visible. Before it, any values that reads in flight wait for may
    /// be visible for a moment.
    fn show(&mut self, now: u64, from: State, slot: usize) {
        let op = self.flying[slot].expect("a write in flight");
        let Access::Write(value) = self.ops[op].access else {
            unreachable!("only writes are shown")
        };
        let mut wanted: Vec<Value> = Vec::new();
        for (i, f) in self.flying.iter().enumerate() {
            if let Some(op) = f
                && let Access::Read(v) = self.ops[*op].access
                && from.done >> i & 1 == 0
                && v != value
                && !wanted.contains(&v)
            {
                wanted.push(v);
            }
        }
        let mut states = vec![State { done: from.done | 1 << slot, ..from }];
        for v in wanted {
            for i in 0..states.len() {
                if let Some(write) = self.writer(&states[i], v) {
                    let mut s = states[i];
                    s.done |= 1 << write;
                    self.satisfy(&mut s, v);
                    states.push(s);
                }
            }
        }
        for mut s in states {
            s.value = value;
            s.changed = now;
            self.satisfy(&mut s, value);
            self.next.push(s);
        }
    }

    /// Gives this value to the reads in flight that wait for it.
    fn satisfy(&self, s: &mut State, value: Value) {
        for (i, f) in self.flying.iter().enumerate() {
            if f.is_some_and(|op| self.ops[op].access == Access::Read(value)) {
                s.done |= 1 << i;
            }
        }
    }

    fn violation(&self, op: usize) -> Violation {
        let mut values: Vec<Value> = self.states.iter().map(|s| s.value).collect();
        values.sort_unstable();
        values.dedup();
        let mut possible = [None; 4];
        possible.iter_mut().zip(values).for_each(|(p, v)| *p = Some(v));
        Violation { op, possible }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Prng;

    fn write(value: Value, invoked: u64, answered: u64) -> Op {
        Op { access: Access::Write(value), invoked, answered: Some(answered), expires: u64::MAX }
    }

    fn unknown(value: Value, invoked: u64, expires: u64) -> Op {
        Op { access: Access::Write(value), invoked, answered: None, expires }
    }

    fn read(value: Value, invoked: u64, answered: u64) -> Op {
        Op { access: Access::Read(value), invoked, answered: Some(answered), expires: u64::MAX }
    }

    fn bad(ops: &[Op]) -> bool {
        matches!(check(ops), Verdict::Bad(_))
    }

    #[test]
    fn known_good_and_known_bad_histories() {
        assert!(!bad(&[write(1, 1, 2), read(1, 3, 4)]));
        assert!(bad(&[write(1, 1, 2), read(0, 3, 4)]), "a stale read");
        assert!(!bad(&[write(1, 1, 5), read(1, 2, 3), read(1, 4, 6)]));
        assert!(bad(&[write(1, 1, 6), read(1, 2, 3), read(0, 4, 5)]), "seen, then gone");
        assert!(!bad(&[unknown(1, 1, u64::MAX), read(0, 2, 3), read(1, 4, 5)]));
        assert!(
            bad(&[unknown(1, 1, u64::MAX), read(1, 2, 3), read(0, 4, 5)]),
            "appears and vanishes"
        );
        assert!(
            bad(&[write(1, 1, 2), unknown(2, 3, 4), read(1, 5, 6), read(2, 7, 8)]),
            "after the fence"
        );
        assert!(!bad(&[write(1, 1, 2), unknown(2, 3, 4), read(2, 5, 6)]));
        assert!(
            bad(&[write(1, 1, 2), write(2, 3, 4), read(2, 5, 6), read(1, 7, 8)]),
            "a write takes effect twice"
        );
        assert!(!bad(&[
            write(1, 1, 10),
            write(2, 2, 11),
            read(1, 3, 12),
            read(2, 4, 5),
            read(1, 13, 14)
        ]));
        assert!(bad(&[
            write(1, 1, 2),
            write(2, 3, 4),
            write(0, 5, 6),
            read(0, 7, 8),
            read(2, 9, 10)
        ]));
    }

    /// Tries every order of the operations.
    fn brute(ops: &[Op], done: u32, value: Value) -> bool {
        let needed = |i: usize| ops[i].answered.is_some();
        if (0..ops.len()).all(|i| done >> i & 1 == 1 || !needed(i)) {
            return true;
        }
        // The next operation must not begin after the deadline of another one
        // that is still to come.
        let end = |o: &Op| o.answered.unwrap_or(o.expires);
        (0..ops.len()).filter(|i| done >> i & 1 == 0).any(|i| {
            let late = (0..ops.len()).any(|j| {
                j != i && done >> j & 1 == 0 && needed(j) && end(&ops[j]) < ops[i].invoked
            });
            let expired =
                (0..ops.len()).any(|j| done >> j & 1 == 1 && ops[j].invoked > end(&ops[i]));
            !late
                && !expired
                && match ops[i].access {
                    Access::Read(v) => v == value && brute(ops, done | 1 << i, value),
                    Access::Write(v) => brute(ops, done | 1 << i, v),
                }
        })
    }

    #[test]
    fn agrees_with_trying_every_order() {
        let mut prng = Prng::new(7);
        let (mut good, mut wrong) = (0, 0);
        for _ in 0..60_000 {
            let n = prng.range(2, 7) as usize;
            let mut moments: Vec<u64> = (1..=2 * n as u64).collect();
            (1..moments.len())
                .rev()
                .for_each(|i| moments.swap(i, prng.below(i as u64 + 1) as usize));
            let ops: Vec<Op> = (0..n)
                .map(|i| {
                    let (a, b) = (moments[2 * i], moments[2 * i + 1]);
                    let (a, b) = (a.min(b), a.max(b));
                    let value = if prng.chance(0.3) { 0 } else { i as u32 + 1 };
                    match prng.below(5) {
                        0 | 1 => read(prng.below(n as u64 + 1) as u32, a, b),
                        2 => unknown(value, a, if prng.chance(0.5) { b } else { u64::MAX }),
                        _ => write(value, a, b),
                    }
                })
                .collect();
            let expect = brute(&ops, 0, 0);
            assert_eq!(check(&ops) == Verdict::Fine, expect, "{ops:?}");
            if expect { good += 1 } else { wrong += 1 }
        }
        assert!(good > 1000 && wrong > 1000, "{good} good, {wrong} bad");
    }
}
