//! Paces the filling of joiners. The storage pool has two policies: one for copies that replace
//! lost ones, and one for copies that only move data. Both ends of a copy apply the policy, each
//! for its own clients: see [`End`].
//!
//! A rest after each copy makes a policy fit every device: where copies take long, because the
//! device is slow or busy with clients, there are fewer of them. A policy that favours clients
//! makes the rest a multiple of the average duration of a copy, so that copies are spread evenly
//! over time. A policy by latency adapts the rest to the latency that clients see.
//!
//! - No rest makes copies slower than the policy's floor, so every copy completes.
//! - Where copies wait long behind clients' writes, the few copies that a policy allows may be
//!   slower than its floor. Then more run at a time.
//! - While no client is active, nothing rests.
//! - Copies of what a returning replica missed don't rest: they are few, and until they are done
//!   the next failure stops service.
//! - A settle isn't held back at all, because clients wait for it.

use base::{Duration, Limits, Mutant, Policy, Time, mutant};

/// Clients count as active for this long after their last operation.
const BUSY: Duration = Duration::from_millis(100);

/// The longest duration that counts. A copy that took longer was delayed by more than a busy
/// device, and counts as this long. A client's operation that took longer doesn't count. No rest is
/// longer, either: the lowest floor is one gentle copy per second.
const LONGEST: Duration = Duration::from_secs(1);

/// Bytes of a copy that is followed by a rest. A request that arrives just after it waits for these
/// bytes.
const GENTLE: u32 = 64 << 10;

/// Copies at a time for a returning replica, if the policy allows fewer and delays them.
const RETURNS: u32 = 4;

/// For a returning replica, the floor is this many times that of the policy.
const URGENT: u64 = 8;

/// An operation shows the latency without copies if no copy has run for this long.
const ALONE: Duration = Duration::from_secs(1);

/// The purpose of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// For a settle, to serve again.
    Settle,
    /// For a returning replica, to have two copies again: only what it has missed.
    Return,
    /// For a new replica, to have two copies again: everything.
    Rebuild,
    /// To move one of the copies to another device.
    Move,
}

impl Purpose {
    /// All of them.
    pub(crate) const ALL: [Purpose; 4] =
        [Purpose::Settle, Purpose::Return, Purpose::Rebuild, Purpose::Move];
}

/// Which end of a copy this device is.
///
/// At the target only a policy by latency delays copies: the receiver has no other signal of
/// overload, and a new server gets everything from others, which rest already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// The copy is read here.
    Source = 0,
    /// The copy is written here.
    Target = 1,
}

/// Whether a copy may begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    Now,
    /// Not before this time.
    At(Time),
    /// When another one has ended.
    Later,
}

/// An estimate of the 99th percentile of recent durations, in nanoseconds. 0: there was none.
#[derive(Clone, Copy, Default, Debug)]
struct Tail {
    ns: u64,
    /// Number of shorter ones in a row.
    below: u64,
}

impl Tail {
    /// Adds a duration. A longer one raises the estimate by 99 parts, a shorter one lowers it by
    /// one part, so it settles where one in a hundred is longer. It falls faster when none was
    /// longer for a long time, because that was another kind of load.
    fn see(&mut self, ns: u64) {
        (self.ns, self.below) = match self.ns {
            0 => (ns.max(1), 0),
            tail if ns > tail => (tail + (tail * 99 / 400).max(1), 0),
            tail => (tail - tail / 400 * (1 + self.below / 256).min(40), self.below + 1),
        };
    }
}

/// Recent copies, and the latency that clients get.
#[derive(Debug)]
pub(crate) struct Pace {
    rebuild: Policy,
    rebalance: Policy,
    /// The arrival of the last operation of a client.
    client: Option<Time>,
    /// By end: the end of the rest after the last copy.
    due: [Time; 2],
    /// By end: the average duration of recent copies at this device.
    took: [Duration; 2],
    /// By end: the average time of recent copies in flight, including waits at their other end.
    lasts: [Duration; 2],
    /// When a copy began or ended last.
    copied: Option<Time>,
    /// The purpose of the copy that began last.
    latest: Purpose,
    /// The latency of clients' operations without copies.
    alone: Tail,
    /// For policies by latency: the rest that keeps clients' operations short beside copies.
    yields: Duration,
    /// Since copies began, no operation has taken too long yet: the right rest is still being
    /// found.
    begins: bool,
}

impl Pace {
    /// Starts with the policies of the limits, until a storage pool sets others.
    pub(crate) fn new(limits: &Limits) -> Pace {
        Pace {
            rebuild: limits.rebuild,
            rebalance: limits.rebalance,
            client: None,
            due: [Time::ZERO; 2],
            took: [Duration::ZERO; 2],
            lasts: [Duration::ZERO; 2],
            copied: None,
            latest: Purpose::Settle,
            alone: Tail::default(),
            yields: Duration::ZERO,
            begins: true,
        }
    }

    /// Sets the storage pool's policies for rebuilds and for moves. Returns true if they have
    /// changed.
    pub(crate) fn set(&mut self, rebuild: Policy, rebalance: Policy) -> bool {
        let news = (self.rebuild, self.rebalance) != (rebuild, rebalance);
        if news {
            (self.rebuild, self.rebalance) = (rebuild, rebalance);
            (self.due, self.yields) = ([Time::ZERO; 2], Duration::ZERO);
        }
        news
    }

    // ---- clients ----

    /// Records that an operation of a client came.
    pub(crate) fn client(&mut self, now: Time) {
        self.client = Some(now);
    }

    /// Records the answer to a client's operation that came at `since`.
    pub(crate) fn answered(&mut self, now: Time, since: Time) {
        const LONGEST_NS: u64 = LONGEST.as_nanos() as u64;
        const ALONE_NS: u64 = ALONE.as_nanos() as u64;
        let ns = now.0.saturating_sub(since.0);
        let wanted = self.rebuild.is_by_latency() || self.rebalance.is_by_latency();
        if !wanted || ns > LONGEST_NS {
            return;
        }
        if self.copied.is_none_or(|at| at.0.saturating_add(ALONE_NS) < since.0) {
            self.alone.see(ns);
        } else {
            self.adapt_rest(Duration::from_nanos(ns));
        }
    }

    /// Adapts the rest to the latency of an operation beside copies. If that was too long, the rest
    /// grows by 99 parts, otherwise it shrinks by one part. So it settles where one operation in a
    /// hundred takes too long.
    fn adapt_rest(&mut self, took: Duration) {
        let policy = *self.policy(self.latest);
        match self.bound_of(&policy) {
            _ if !policy.is_by_latency() => {}
            None => {}
            Some(bound) if took > bound => {
                let [sent, received] = self.took;
                let more = self.yields.max(sent).max(received) * 99 / 400;
                (self.yields, self.begins) = ((self.yields + more).min(LONGEST), false);
            }
            Some(_) => self.yields -= self.yields / if self.begins { 100 } else { 400 },
        }
    }

    /// Returns the duration that one operation in a hundred may exceed. `None` while their latency
    /// without copies is unknown.
    fn bound_of(&self, policy: &Policy) -> Option<Duration> {
        let ns = match policy.micros {
            0 => self.alone.ns / 100 * u64::from(policy.percent),
            us => u64::from(us) * 1000,
        };
        (ns > 0).then(|| Duration::from_nanos(ns))
    }

    fn is_busy(&self, now: Time) -> bool {
        self.client.is_some_and(|at| now.since(at) < BUSY)
    }

    // ---- copies ----

    fn policy(&self, purpose: Purpose) -> &Policy {
        match purpose {
            Purpose::Settle => &Policy::UNLIMITED,
            Purpose::Return | Purpose::Rebuild => &self.rebuild,
            Purpose::Move => &self.rebalance,
        }
    }

    fn rests(&self, now: Time, purpose: Purpose) -> bool {
        self.policy(purpose).rests() && self.is_busy(now) && purpose != Purpose::Return
    }

    /// Returns the largest number of such copies; 0: any number.
    fn bound(&self, now: Time, end: End, purpose: Purpose, limits: &Limits) -> u32 {
        let policy = self.policy(purpose);
        let least = if purpose == Purpose::Return { RETURNS } else { 0 };
        match policy.copies {
            copies if policy.always => copies,
            _ if !self.is_busy(now) => 0,
            copies if policy.rests() => copies.max(least).max(self.enough(end, purpose, limits)),
            copies => copies,
        }
    }

    /// Returns the bytes that have to be in flight to reach the floor.
    fn owed(&self, end: End, purpose: Purpose) -> u64 {
        let floor = self.policy(purpose).floor;
        let floor = if purpose == Purpose::Return { floor * URGENT } else { floor };
        let lasts = self.lasts[end as usize].as_micros() as u64;
        (floor * lasts).div_ceil(1_000_000)
    }

    /// Returns the number of copies that have to be in flight to reach the floor.
    fn enough(&self, end: End, purpose: Purpose, limits: &Limits) -> u32 {
        if mutant::on(Mutant::NoFloor) {
            return 0;
        }
        let (owed, len) = (self.owed(end, purpose), u64::from(self.size(end, purpose, limits)));
        let rests = u64::from(owed > len); // in place of one that is delayed
        (owed.div_ceil(len) + rests).min(limits.copies.into()) as u32
    }

    /// Returns the bytes of a copy while clients are active: few, if that is enough for the floor.
    fn size(&self, end: End, purpose: Purpose, limits: &Limits) -> u32 {
        let gentle = limits.copy_bytes.min(GENTLE);
        let most = u64::from(gentle) * u64::from(limits.copies.saturating_sub(1));
        let few = purpose == Purpose::Return || self.owed(end, purpose) > most;
        if few { limits.copy_bytes } else { gentle }
    }

    /// Returns the largest number of copies in flight. It is above `limits.copies`, so that those
    /// that clients wait for can begin while the others may have to wait at their other end.
    pub(crate) fn most(limits: &Limits) -> u32 {
        limits.copies + limits.copies / 4
    }

    /// Returns whether one more copy may begin beside `copies` others of this end.
    pub(crate) fn turn(
        &self,
        now: Time,
        end: End,
        purpose: Purpose,
        copies: u32,
        limits: &Limits,
    ) -> Turn {
        let (few, due) = (self.bound(now, end, purpose, limits), self.due[end as usize]);
        let most = match (few, end) {
            (0, End::Target) => u32::MAX, // its sources have their limits
            (0, End::Source) if purpose == Purpose::Settle => Pace::most(limits),
            (0, End::Source) => limits.copies,
            _ => few.min(limits.copies),
        };
        match end {
            End::Target if !self.policy(purpose).is_by_latency() => Turn::Now,
            _ if copies >= most => Turn::Later,
            _ if self.rests(now, purpose) && now < due => Turn::At(due),
            _ => Turn::Now,
        }
    }

    /// Returns the bytes of a copy that begins now.
    pub(crate) fn len(&self, now: Time, purpose: Purpose, limits: &Limits) -> u32 {
        let rests = self.rests(now, purpose);
        if rests { self.size(End::Source, purpose, limits) } else { limits.copy_bytes }
    }

    /// Returns true if the latency of clients decides how fast such copies are.
    pub(crate) fn is_by_latency(&self, purpose: Purpose) -> bool {
        self.policy(purpose).is_by_latency()
    }

    /// Records that a copy begins.
    pub(crate) fn begun(&mut self, now: Time, purpose: Purpose) {
        if self.copied.is_none_or(|at| now.since(at) > ALONE) {
            (self.yields, self.begins) = (LONGEST, true);
            self.lasts = [Duration::ZERO; 2];
            if self.rests(now, purpose) && self.policy(purpose).is_by_latency() {
                // The first copies don't come all at once either.
                let rest = u64::from(GENTLE) * 1_000_000_000 / self.policy(purpose).floor;
                self.due = [now + Duration::from_nanos(rest); 2];
            }
        }
        (self.copied, self.latest) = (Some(now), purpose);
    }

    /// Records that a copy of this many bytes has ended. It `took` that long at this device, and
    /// was in flight since `since`.
    pub(crate) fn ended(
        &mut self,
        now: Time,
        end: End,
        purpose: Purpose,
        took: Duration,
        since: Time,
        len: u32,
    ) {
        self.copied = Some(now);
        let end = end as usize;
        mean(&mut self.lasts[end], now.since(since));
        if !self.rests(now, purpose) {
            return;
        }
        mean(&mut self.took[end], took);
        let policy = *self.policy(purpose);
        let whole = (u64::from(len) * 1_000_000_000).checked_div(policy.floor);
        let whole = whole.map_or(LONGEST, Duration::from_nanos);
        let longest = whole.saturating_sub(took);
        let rest = match self.bound_of(&policy) {
            _ if !policy.is_by_latency() => self.took[end] * policy.rest,
            None => self.took[end],
            Some(_) => {
                // Slow operations come in bunches, and each must be weighed against 99 others. So
                // the rest may grow beyond the limit of the floor. Otherwise it would become short
                // again too early. Before the first slow operation it does not need to grow.
                if self.begins {
                    self.yields = self.yields.min(whole * 4);
                }
                self.yields
            }
        };
        let endless = mutant::on(Mutant::NoFloor).then_some(Duration::from_secs(3600));
        self.due[end] = self.due[end].max(now + endless.unwrap_or(rest.min(longest)));
    }
}

/// Adds one duration to an average of recent ones.
fn mean(of: &mut Duration, next: Duration) {
    let next = next.min(LONGEST);
    *of = if of.is_zero() { next } else { (*of * 7 + next) / 8 };
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const MS: u64 = 1_000_000;
    const LEN: u32 = 64 << 10;
    const TOOK: Duration = Duration::from_millis(4);

    fn at(ms: u64) -> Time {
        Time(ms * MS)
    }

    fn limits(rebuild: Policy, rebalance: Policy) -> Limits {
        Limits { copies: 8, copy_bytes: 128 << 10, rebuild, rebalance, ..Limits::SHIPPED }
    }

    #[test]
    fn a_number_of_copies_is_kept_whatever_clients_do() {
        let limits = limits(Policy::concurrent(2), Policy::UNLIMITED);
        let mut pace = Pace::new(&limits);
        for busy in [false, true] {
            if busy {
                pace.client(at(1000));
            }
            let turn = |purpose, copies| pace.turn(at(1000), End::Source, purpose, copies, &limits);
            for purpose in [Purpose::Rebuild, Purpose::Return] {
                assert_eq!(turn(purpose, 1), Turn::Now);
                assert_eq!(turn(purpose, 2), Turn::Later);
            }
            assert_eq!(turn(Purpose::Move, 7), Turn::Now, "unlimited");
            assert_eq!(turn(Purpose::Move, 8), Turn::Later, "but by what a shard can do");
            assert_eq!(turn(Purpose::Settle, 7), Turn::Now, "clients wait for it");
        }
        pace.ended(at(1000), End::Source, Purpose::Rebuild, TOOK, at(1000), LEN);
        assert_eq!(pace.turn(at(1000), End::Source, Purpose::Rebuild, 1, &limits), Turn::Now);
        assert_eq!(pace.len(at(1000), Purpose::Rebuild, &limits), limits.copy_bytes);
    }

    #[test]
    fn copies_rest_while_clients_are_served_and_only_then() {
        let limits = limits(Policy::favour(1, 1 << 20), Policy::favour(3, 1 << 20));
        let (mut pace, now) = (Pace::new(&limits), at(1000));
        pace.ended(now, End::Source, Purpose::Move, TOOK, now, LEN);
        assert_eq!(
            pace.turn(now, End::Source, Purpose::Move, 7, &limits),
            Turn::Now,
            "nobody is there"
        );
        assert_eq!(pace.len(now, Purpose::Move, &limits), limits.copy_bytes);
        pace.client(now);
        let turn = |pace: &Pace, ms, purpose, copies| {
            pace.turn(at(ms), End::Source, purpose, copies, &limits)
        };
        assert_eq!(pace.len(now, Purpose::Rebuild, &limits), GENTLE);
        assert_eq!(turn(&pace, 1000, Purpose::Rebuild, 1), Turn::Later);
        pace.ended(now, End::Source, Purpose::Rebuild, TOOK, now, LEN);
        assert_eq!(turn(&pace, 1000, Purpose::Rebuild, 0), Turn::At(at(1004)));
        assert_eq!(turn(&pace, 1000, Purpose::Settle, 7), Turn::Now);
        assert_eq!(turn(&pace, 1000, Purpose::Return, RETURNS - 1), Turn::Now, "it is urgent");
        assert_eq!(turn(&pace, 1000, Purpose::Return, RETURNS), Turn::Later);
        assert_eq!(pace.len(now, Purpose::Return, &limits), limits.copy_bytes);
        pace.ended(at(1004), End::Source, Purpose::Move, TOOK, at(1004), LEN);
        assert_eq!(turn(&pace, 1004, Purpose::Move, 0), Turn::At(at(1016)), "three times as long");
        assert_eq!(turn(&pace, 1101, Purpose::Move, 7), Turn::Now, "they are gone");
    }

    #[test]
    fn a_rest_follows_the_average_and_keeps_the_floor() {
        let limits = limits(Policy::favour(10, 1 << 20), Policy::UNLIMITED);
        let mut pace = Pace::new(&limits);
        pace.client(at(1000));
        pace.ended(at(1000), End::Source, Purpose::Rebuild, TOOK, at(1000), LEN);
        assert_eq!(
            pace.turn(at(1000), End::Source, Purpose::Rebuild, 0, &limits),
            Turn::At(at(1040))
        );
        pace.client(at(1040));
        pace.ended(at(1040), End::Source, Purpose::Rebuild, TOOK * 9, at(1040), LEN);
        // 64 KiB at 1 MiB/s are 62.5 ms, of which the copy took 36; the average of 8 ms wants 80.
        let due = at(1040) + Duration::from_micros(26_500);
        assert_eq!(pace.turn(at(1040), End::Source, Purpose::Rebuild, 0, &limits), Turn::At(due));
    }

    /// Makes copies that take 1 ms, beside a client whose requests take what `takes` says for a
    /// rest. Returns the rest in the end.
    fn settled(policy: Policy, takes: impl Fn(Duration) -> Duration) -> Duration {
        settled_for(Purpose::Rebuild, limits(policy, Policy::latency_micros(50, 1 << 20)), takes)
    }

    fn settled_for(
        purpose: Purpose,
        limits: Limits,
        takes: impl Fn(Duration) -> Duration,
    ) -> Duration {
        let (mut pace, mut now) = (Pace::new(&limits), at(1000));
        let request = |pace: &mut Pace, now: &mut Time, took| {
            let since = *now;
            pace.client(since);
            *now = since + took;
            pace.answered(*now, since);
        };
        for _ in 0..200 {
            request(&mut pace, &mut now, Duration::from_millis(1));
        }
        let mut rest = Duration::ZERO;
        pace.begun(now, purpose);
        for _ in 0..4000 {
            request(&mut pace, &mut now, takes(rest));
            pace.ended(now, End::Source, purpose, Duration::from_millis(1), now, LEN);
            rest = match pace.turn(now, End::Source, purpose, 0, &limits) {
                Turn::At(due) => due.since(now),
                _ => Duration::ZERO,
            };
        }
        rest
    }

    #[test]
    fn by_latency_copies_rest_as_long_as_requests_need_it() {
        let ms = Duration::from_millis;
        // 1 ms alone; 10 ms beside copies, less when they rest.
        let takes = |rest: Duration| ms(1) + ms(9) * 1000 / (1000 + rest.as_micros() as u32);
        let floor = 1 << 20;
        let twice = settled(Policy::latency_percent(200, floor), takes);
        assert!((ms(5)..ms(11)).contains(&twice), "{twice:?}");
        let absolute = settled(Policy::latency_micros(4000, floor), takes);
        assert!(absolute < twice, "{absolute:?}");
        assert!(settled(Policy::latency_micros(20_000, floor), takes) < ms(1), "they are short");
        let both = limits(Policy::latency_micros(50, floor), Policy::latency_percent(200, floor));
        assert_eq!(settled_for(Purpose::Move, both, takes), twice, "each has its own bound");
        // Requests take too long with and without copies: the floor holds.
        let never = settled(Policy::latency_percent(200, floor), |_| ms(10));
        assert_eq!(never, Duration::from_micros(61_500));
    }

    #[test]
    fn where_copies_come_to_only_latency_holds_them() {
        let by_latency = Policy::latency_micros(50, 1 << 20);
        let limits = limits(by_latency, Policy::favour(3, 1 << 20));
        let (mut pace, now) = (Pace::new(&limits), at(1000));
        let turn =
            |pace: &Pace, purpose, copies| pace.turn(now, End::Target, purpose, copies, &limits);
        assert_eq!(turn(&pace, Purpose::Rebuild, 100), Turn::Now, "nobody is there");
        pace.client(now);
        assert_eq!(turn(&pace, Purpose::Rebuild, 1), Turn::Now);
        assert_eq!(turn(&pace, Purpose::Rebuild, 2), Turn::Later);
        assert_eq!(turn(&pace, Purpose::Move, 100), Turn::Now);
        pace.begun(now, Purpose::Rebuild);
        pace.ended(now, End::Target, Purpose::Rebuild, TOOK, now, LEN);
        assert!(matches!(turn(&pace, Purpose::Rebuild, 0), Turn::At(_)));
        let source = pace.turn(now, End::Source, Purpose::Rebuild, 0, &limits);
        assert!(matches!(source, Turn::At(_)), "the first ones don't leave all at once either");
        assert_eq!(turn(&pace, Purpose::Return, 3), Turn::Now);
    }

    #[test]
    fn another_policy_counts_at_once() {
        let limits = limits(Policy::favour(100, 64 << 10), Policy::UNLIMITED);
        let mut pace = Pace::new(&limits);
        pace.client(at(1000));
        pace.ended(at(1000), End::Source, Purpose::Rebuild, TOOK, at(1000), LEN);
        assert_eq!(
            pace.turn(at(1000), End::Source, Purpose::Rebuild, 0, &limits),
            Turn::At(at(1400))
        );
        assert!(!pace.set(limits.rebuild, limits.rebalance));
        assert_eq!(
            pace.turn(at(1000), End::Source, Purpose::Rebuild, 0, &limits),
            Turn::At(at(1400))
        );
        assert!(pace.set(Policy::UNLIMITED, Policy::UNLIMITED));
        assert_eq!(pace.turn(at(1000), End::Source, Purpose::Rebuild, 7, &limits), Turn::Now);
    }

    /// Returns the bytes per second that are copied while clients are active, each copy takes
    /// `took`, and each request 900 ms.
    fn speed(purpose: Purpose, policy: Policy, took: Duration) -> u64 {
        let limits = Limits { copies: 16, copy_bytes: 128 << 10, ..limits(policy, policy) };
        let (mut pace, mut now) = (Pace::new(&limits), at(1000));
        let mut running: Vec<(Time, Time, u32)> = Vec::new();
        let mut bytes = 0;
        let end = at(31_000);
        while now < end {
            pace.client(now);
            pace.answered(now, Time(now.0 - 900 * MS));
            for (since, _, len) in running.extract_if(.., |(_, until, _)| *until <= now) {
                bytes += u64::from(len);
                pace.ended(now, End::Source, purpose, TOOK, since, len);
            }
            while pace.turn(now, End::Source, purpose, running.len() as u32, &limits) == Turn::Now {
                pace.begun(now, purpose);
                running.push((now, now + took, pace.len(now, purpose, &limits)));
            }
            now = now + Duration::from_millis(1);
        }
        bytes / 30
    }

    #[test]
    fn the_floor_is_kept_where_copies_take_long() {
        let floor = 2 << 20;
        let all = [Policy::latency_percent(150, floor), Policy::favour(3, floor)];
        for (policy, ms) in all.into_iter().flat_map(|p| [20, 100, 400, 800].map(|ms| (p, ms))) {
            let took = Duration::from_millis(ms);
            for purpose in [Purpose::Rebuild, Purpose::Move, Purpose::Return] {
                let speed = speed(purpose, policy, took);
                assert!(speed >= floor * 9 / 10, "{policy}, {purpose:?}, {ms} ms: {speed}");
            }
            assert!(speed(Purpose::Rebuild, policy, took) < floor * 4, "{policy}, {ms} ms");
        }
    }
}
