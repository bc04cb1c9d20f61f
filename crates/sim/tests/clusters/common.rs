//! The lock that lets one test run at a time, and shared parts of plans that are written by hand: a
//! client that reads and writes every unit of its volume again and again.

use base::mutant::{Mutant, PRESENT, choose};
use sim::plan::{Action, IoKind, Plan, Timed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Units of the volume.
pub(crate) const UNITS: u32 = 16;
/// Sectors per unit.
const UNIT: u32 = 2048;

/// Returns a duration of this many ms.
pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Lets the first client read and write each unit of its first volume from 0.5 s to 15 s, by turns
/// every 250 ms, and sorts all steps.
pub(crate) fn ask_every_unit(plan: &mut Plan) {
    for at in (500..15_000).step_by(250) {
        for unit in 0..UNITS {
            let kind = if (at / 250) % 2 == 0 { IoKind::Read } else { IoKind::Write };
            let (client, volume, sector) = (0, 0, unit * UNIT + 8);
            let action = Action::Io { client, volume, kind, sector, sectors: 8 };
            plan.steps.push(Timed { at: ms(at + u64::from(unit)), action });
        }
    }
    plan.steps.sort_by_key(|s| s.at);
}

/// The right to run plans and to choose mutants. No mutant is on when it ends, even by a panic.
pub(crate) struct Alone {
    _lock: MutexGuard<'static, ()>,
}

/// Waits until no other test runs.
pub(crate) fn alone() -> Alone {
    static LOCK: Mutex<()> = Mutex::new(());
    Alone { _lock: LOCK.lock().unwrap_or_else(PoisonError::into_inner) }
}

impl Alone {
    /// Runs something while the mutant is switched on. `None`: this build contains no mutants.
    pub(crate) fn without_rule<R>(&self, mutant: Mutant, run: impl FnOnce() -> R) -> Option<R> {
        if !PRESENT {
            return None;
        }
        choose(Some(mutant));
        let result = run();
        choose(None);
        Some(result)
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        choose(None);
    }
}
