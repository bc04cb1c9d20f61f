//! Verdicts on a server's devices wait a moment for each other: the death of a server with all its
//! devices then takes one log entry and one map, instead of one for each device. Suspicions of
//! peers wait, too: a verdict says more, and makes them superfluous. Verdicts on a server with one
//! device do not wait. Suspicions of such a device wait only while it is being dialled: the
//! suspicion may arrive before the result of the dial, and would cost another entry and map.
//!
//! Invariants: a device has at most one verdict that waits, the newest. Suspicions wait in the
//! order in which they came, and at most [`DOUBTS`] proposals of them.

use super::inputs::{Input, Inputs};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use base::{DeviceId, Duration, Mutant, SdsId, Time, mutant};
use mdm::detector::Verdict;
use mdm::state::{Device, State};
use wire::control::Proposal;

/// The most proposals that wait. Further ones are dropped: their primaries propose again.
pub(super) const DOUBTS: usize = 4096;

/// Verdicts and suspicions that wait.
#[derive(Debug, Default)]
pub(super) struct Verdicts {
    /// By server: the time until which its verdicts wait, and the verdicts so far.
    list: BTreeMap<SdsId, (Time, Vec<Verdict>)>,
    /// Suspicions of peers, each with the time until which it waits.
    doubts: VecDeque<(Time, Proposal)>,
}

impl Verdicts {
    /// Returns when the first of them are due.
    pub(super) fn due(&self) -> Option<Time> {
        let verdicts = self.list.values().map(|(due, _)| *due).min();
        Time::earliest(verdicts, self.doubts.front().map(|(due, _)| *due))
    }

    /// Returns the number of verdicts, and that of proposals with suspicions, that wait.
    pub(super) fn waiting(&self) -> (usize, usize) {
        (self.list.values().map(|(_, list)| list.len()).sum(), self.doubts.len())
    }

    /// Adds a verdict: a device seems to be gone. A death shows on all links at once. Silence shows
    /// on one device after the other, as each sends its own heartbeat (every `beat`).
    pub(super) fn add(&mut self, now: Time, verdict: Verdict, beat: Duration, state: &State) {
        let Some(sds) = state.devices.get(&verdict.device).map(|d| d.sds) else { return };
        // A device that was silent may turn out to be dead later.
        let counts = |d: &Device| if verdict.dead { !d.dead } else { d.up };
        let mates = state.devices.values().filter(|d| d.sds == sds && counts(d)).count();
        let due = now + if verdict.dead { beat / 8 } else { beat };
        let (at, list) = self.list.entry(sds).or_insert((due, Vec::new()));
        *at = due.min(*at);
        list.retain(|v| v.device != verdict.device);
        list.push(verdict);
        if list.len() >= mates || mutant::on(Mutant::JudgeAlone) {
            *at = now;
        }
    }

    /// Turns verdicts and suspicions that have waited for long enough into inputs.
    pub(super) fn release(&mut self, now: Time, inputs: &mut Inputs) {
        let due = self.list.extract_if(.., |_, (at, _)| *at <= now);
        due.for_each(|(_, (_, list))| inputs.push(Input::Verdicts(list)));
        while let Some((_, m)) = self.doubts.pop_front_if(|(at, _)| *at <= now) {
            inputs.push(Input::Doubts(m));
        }
    }

    /// Removes from a proposal the suspicions for which this is true, and keeps them until `due`.
    pub(super) fn defer(&mut self, due: Time, m: &mut Proposal, waits: impl Fn(&u32) -> bool) {
        let (later, at_once) = m.suspects.iter().partition(|d| waits(d));
        m.suspects = at_once;
        let later = Proposal { suspects: later, admit: Vec::new(), join: Vec::new(), ..m.clone() };
        if !later.suspects.is_empty() && self.doubts.len() < DOUBTS {
            self.doubts.push_back((due, later));
        }
    }

    /// Returns true when a verdict on the device waits. It says more than a peer's suspicion, which
    /// the peer will repeat.
    pub(super) fn has(&self, device: DeviceId) -> bool {
        self.list.values().any(|(_, list)| list.iter().any(|v| v.device == device))
    }
}

/// Returns true for a device of a server that has several devices which are up.
pub(super) fn is_one_of_several(device: DeviceId, state: &State) -> bool {
    let sds = state.devices.get(&device).map(|d| d.sds);
    state.devices.values().filter(|d| d.up && Some(d.sds) == sds).count() > 1
}

#[cfg(test)]
mod tests {
    use super::super::links::Links;
    use super::*;

    #[test]
    fn suspicions_wait_and_the_rest_of_the_proposal_does_not() {
        let (mut verdicts, mut inputs) = (Verdicts::default(), Inputs::default());
        let mut m = Proposal { device: 1, suspects: [2, 3].into(), ..Proposal::default() };
        m.join = [4].into();
        verdicts.defer(Time(10), &mut m, |device| *device == 3);
        assert_eq!((&m.suspects[..], &m.join[..]), (&[2][..], &[4][..]));
        assert_eq!(verdicts.due(), Some(Time(10)));
        verdicts.release(Time(9), &mut inputs);
        assert!(inputs.is_empty());
        verdicts.release(Time(10), &mut inputs);
        let Some(Input::Doubts(later)) = inputs.next(&mut Links::default()) else { panic!() };
        assert_eq!((&later.suspects[..], later.join.len()), (&[3][..], 0));
        assert_eq!(verdicts.due(), None);
    }
}
