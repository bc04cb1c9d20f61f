//! How fast joiners are filled while clients are served: at most so many copies in flight, and so many bytes per
//! second; without limit but that on all copies while no client asks for anything.
//!
//! The three policies that people know are settings of these two numbers: unlimited (0 and 0), a number of
//! copies, and what ships for moves: applications first. A copy that replaces a lost one is more urgent than one
//! that only moves. A settle isn't held back at all: clients wait for it.

use base::{Duration, Limits, Time};

/// For so long after a client's last operation clients count as being served.
const BUSY: Duration = Duration::from_millis(100);

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
    /// What was begun at the rate that counts is done by then.
    due: Time,
}

impl Pace {
    /// A client asks for something.
    pub fn client(&mut self, now: Time) {
        self.client = Some(now);
    }

    /// So many copies, and bytes per second, of this kind at most; 0: any.
    fn bounds(&self, now: Time, purpose: Purpose, limits: &Limits) -> (u32, u64) {
        let busy = self.client.is_some_and(|at| now.since(at) < BUSY);
        match purpose {
            _ if !busy => (0, 0),
            Purpose::Settle => (0, 0),
            Purpose::Rebuild => (limits.rebuild_copies, limits.rebuild_bytes),
            Purpose::Move => (limits.move_copies, limits.move_bytes),
        }
    }

    /// Whether one more may begin beside `copies` others.
    pub fn turn(&self, now: Time, purpose: Purpose, copies: u32, limits: &Limits) -> Turn {
        let (few, bytes) = self.bounds(now, purpose, limits);
        let most = if few == 0 { limits.copies } else { few.min(limits.copies) };
        match () {
            () if copies >= most => Turn::Later,
            () if bytes > 0 && now < self.due => Turn::At(self.due),
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
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn copies_wait_for_clients_and_for_nothing_else() {
        let limits = Limits { copies: 4, move_copies: 1, move_bytes: 1 << 20, ..Limits::SHIPPED };
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
        assert_eq!(turn(&pace, now, Purpose::Rebuild, 0), Turn::Now);
        pace.client(Time(1450 * MS));
        assert_eq!(turn(&pace, due, Purpose::Move, 0), Turn::Now);
        pace.begun(due, Purpose::Move, 1 << 19, &limits);
        assert_eq!(turn(&pace, Time(1550 * MS), Purpose::Move, 3), Turn::Now, "they are gone");
    }
}
