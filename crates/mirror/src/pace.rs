//! How fast joiners are filled while clients are served: at most so many copies in flight, so many bytes per
//! second, and after each copy that only moves a rest that is as many times as long as it took; without limit but that
//! on all copies while no client asks for anything.
//!
//! The rest is what makes it fit every device: where a copy takes long, because the device is slow or clients keep it
//! busy, there are fewer of them. A copy that replaces a lost one doesn't rest: until it is there, the next loss stops
//! service. The three policies that people know are settings of these numbers: unlimited (all 0), a number of copies,
//! and what ships for moves: applications first. A settle isn't held back at all: clients wait for it.

use base::{Duration, Limits, Time};

/// For so long after a client's last operation clients count as being served.
const BUSY: Duration = Duration::from_millis(100);

/// A copy that took longer has met something else than a busy device.
const LONGEST: Duration = Duration::from_secs(1);

/// Bytes of a copy while clients are served: what a request waits for that comes just behind it.
const GENTLE: u32 = 64 << 10;

/// What a copy is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// To serve again.
    Settle,
    /// To have two copies again.
    Rebuild,
    /// To have one of them elsewhere.
    Move,
}

impl Purpose {
    /// All of them.
    pub const ALL: [Purpose; 3] = [Purpose::Settle, Purpose::Rebuild, Purpose::Move];
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

/// What was copied lately, and whether clients are there.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// A client's last operation.
    client: Option<Time>,
    /// What was begun at the rate that counts is done by then, and the rest after the last copy over.
    due: Time,
}

impl Pace {
    /// A client asks for something.
    pub fn client(&mut self, now: Time) {
        self.client = Some(now);
    }

    fn is_busy(&self, now: Time) -> bool {
        self.client.is_some_and(|at| now.since(at) < BUSY)
    }

    fn rests(&self, now: Time, purpose: Purpose) -> bool {
        self.is_busy(now) && purpose == Purpose::Move
    }

    /// So many copies, and bytes per second, of this kind at most; 0: any.
    fn bounds(&self, now: Time, purpose: Purpose, limits: &Limits) -> (u32, u64) {
        match purpose {
            _ if !self.is_busy(now) => (0, 0),
            Purpose::Settle => (0, 0),
            Purpose::Rebuild => (limits.rebuild_copies, limits.rebuild_bytes),
            Purpose::Move => (limits.move_copies, limits.move_bytes),
        }
    }

    /// Whether one more may begin beside `copies` others.
    pub fn turn(&self, now: Time, purpose: Purpose, copies: u32, limits: &Limits) -> Turn {
        let (few, bytes) = self.bounds(now, purpose, limits);
        let held = bytes > 0 || self.rests(now, purpose);
        let most = if few == 0 { limits.copies } else { few.min(limits.copies) };
        match () {
            () if copies >= most => Turn::Later,
            () if held && now < self.due => Turn::At(self.due),
            () => Turn::Now,
        }
    }

    /// A copy of so many bytes begins.
    pub fn begun(&mut self, now: Time, purpose: Purpose, len: u32, limits: &Limits) {
        let (_, bytes) = self.bounds(now, purpose, limits);
        if let Some(ns) = (u64::from(len) * 1_000_000_000).checked_div(bytes) {
            self.due = self.due.max(now) + Duration::from_nanos(ns);
        }
    }

    /// Bytes of a copy that begins now.
    pub fn len(&self, now: Time, purpose: Purpose, limits: &Limits) -> u32 {
        if self.rests(now, purpose) { limits.copy_bytes.min(GENTLE) } else { limits.copy_bytes }
    }

    /// A copy of so many bytes has ended that took so long.
    pub fn ended(
        &mut self,
        now: Time,
        purpose: Purpose,
        took: Duration,
        len: u32,
        limits: &Limits,
    ) {
        if !self.rests(now, purpose) {
            return;
        }
        let rest = took.min(LONGEST) * limits.copy_rest;
        let whole = (u64::from(len) * 1_000_000_000).checked_div(limits.copy_floor);
        let longest = whole.map(|ns| Duration::from_nanos(ns).saturating_sub(took));
        self.due = self.due.max(now + longest.map_or(rest, |longest| rest.min(longest)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn copies_wait_for_clients_and_for_nothing_else() {
        let (copies, rebuild_copies) = (4, 4);
        let limits = Limits {
            copies,
            rebuild_copies,
            move_copies: 1,
            move_bytes: 1 << 20,
            ..Limits::SHIPPED
        };
        let mut pace = Pace::default();
        let now = Time(1000 * MS);
        let turn = |pace: &Pace, at, purpose, copies| pace.turn(at, purpose, copies, &limits);
        pace.begun(now, Purpose::Move, 1 << 20, &limits);
        assert_eq!(turn(&pace, now, Purpose::Move, 3), Turn::Now, "nobody is there");
        assert_eq!(turn(&pace, now, Purpose::Move, 4), Turn::Later);
        pace.client(now);
        assert_eq!(turn(&pace, now, Purpose::Move, 1), Turn::Later);
        assert_eq!(turn(&pace, now, Purpose::Settle, 3), Turn::Now);
        pace.begun(now, Purpose::Move, 1 << 19, &limits);
        let due = Time(1500 * MS);
        assert_eq!(turn(&pace, now, Purpose::Move, 0), Turn::At(due), "half a second's bytes");
        assert_eq!(turn(&pace, now, Purpose::Settle, 0), Turn::Now);
        pace.client(Time(1450 * MS));
        assert_eq!(turn(&pace, due, Purpose::Move, 0), Turn::Now);
        pace.begun(due, Purpose::Move, 1 << 19, &limits);
        assert_eq!(turn(&pace, Time(1550 * MS), Purpose::Move, 3), Turn::Now, "they are gone");
    }

    #[test]
    fn after_a_copy_clients_have_the_devices_for_as_long_as_it_took_and_longer() {
        let (rebuild_copies, rebuild_bytes, copy_rest) = (1, 0, 3);
        let limits = Limits {
            rebuild_copies,
            rebuild_bytes,
            copy_rest,
            copy_floor: 1 << 20,
            ..Limits::SHIPPED
        };
        let len = 256 << 10;
        let (mut pace, now) = (Pace::default(), Time(1000 * MS));
        let took = Duration::from_millis(20);
        pace.ended(now, Purpose::Move, took, len, &limits);
        assert_eq!(pace.turn(now, Purpose::Move, 0, &limits), Turn::Now, "nobody is there");
        assert_eq!(pace.len(now, Purpose::Move, &limits), limits.copy_bytes);
        pace.client(now);
        assert_eq!(pace.len(now, Purpose::Move, &limits), GENTLE);
        assert_eq!(pace.len(now, Purpose::Rebuild, &limits), limits.copy_bytes);
        assert_eq!(pace.len(now, Purpose::Settle, &limits), limits.copy_bytes);
        pace.ended(now, Purpose::Move, took, len, &limits);
        let due = Time(1060 * MS);
        assert_eq!(pace.turn(now, Purpose::Move, 0, &limits), Turn::At(due));
        assert_eq!(pace.turn(now, Purpose::Settle, 0, &limits), Turn::Now, "clients wait for it");
        assert_eq!(pace.turn(now, Purpose::Rebuild, 0, &limits), Turn::Now, "a loss is urgent");
        assert_eq!(pace.turn(due, Purpose::Move, 0, &limits), Turn::Now);
        pace.client(due);
        // A quarter of a MiB in 200 ms: the floor leaves 50 ms of a rest of 600.
        pace.ended(due, Purpose::Move, Duration::from_millis(200), len, &limits);
        let due = due + Duration::from_millis(50);
        assert_eq!(pace.turn(Time(1061 * MS), Purpose::Move, 0, &limits), Turn::At(due));
        pace.client(due);
        pace.ended(due, Purpose::Move, Duration::from_secs(60), len, &limits);
        assert_eq!(pace.turn(due, Purpose::Move, 0, &limits), Turn::Now);
    }
}
