//! Verdicts on a server's devices wait a moment for each other: a server that dies with all its
//! devices takes one log entry and one map, instead of one for each device. Suspicions of its peers
//! wait, too: the verdict says more, and makes them superfluous. Verdicts on a server with one
//! device do not wait. Suspicions of such a device wait only while it is being dialled: either
//! answer may arrive first, and the second one would cost another entry and map.

use super::Mdm;
use super::intake::Input;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use base::{DeviceId, Duration, Mutant, SdsId, Time, mutant};
use mdm::detector::Verdict;
use mdm::state::Device;
use wire::control::Proposal;

/// The most proposals that wait. Further ones are dropped: their primaries propose again.
const DOUBTS: usize = 4096;

/// Verdicts and suspicions that wait.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    /// By server: until when its verdicts wait, and the verdicts so far.
    verdicts: BTreeMap<SdsId, (Time, Vec<Verdict>)>,
    /// Suspicions of peers, and until when each waits.
    doubts: VecDeque<(Time, Proposal)>,
}

impl Gathered {
    /// Returns when the first of them are due.
    pub(super) fn due(&self) -> Option<Time> {
        let verdicts = self.verdicts.values().map(|(due, _)| *due).min();
        Time::earliest(verdicts, self.doubts.front().map(|(due, _)| *due))
    }
}

impl Mdm {
    /// Returns how long a verdict waits for the others. A death shows on all links at once. Silence
    /// shows for one device after the other, as each has its own heartbeat.
    fn patience(&self, verdict: &Verdict) -> Duration {
        let beat = self.config.limits.heartbeat_every;
        if verdict.dead { beat / 8 } else { beat }
    }

    /// Handles a verdict: a device seems to be gone.
    pub(super) fn judge(&mut self, now: Time, verdict: Verdict) {
        let Some(sds) = self.state.devices.get(&verdict.device).map(|d| d.sds) else { return };
        // A device that was silent may turn out to be dead later.
        let told = |d: &Device| if verdict.dead { !d.dead } else { d.up };
        let mates = self.state.devices.values().filter(|d| d.sds == sds && told(d)).count();
        let due = now + self.patience(&verdict);
        let (at, list) = self.gathered.verdicts.entry(sds).or_insert((due, Vec::new()));
        *at = due.min(*at);
        list.retain(|v| v.device != verdict.device);
        list.push(verdict);
        if list.len() >= mates || mutant::on(Mutant::JudgeAlone) {
            *at = now;
        }
        self.release(now);
    }

    /// Passes on what has waited for long enough.
    pub(super) fn release(&mut self, now: Time) {
        let mut due = Vec::new();
        self.gathered.verdicts.retain(|_, (at, list)| {
            let ready = *at <= now;
            if ready {
                due.push(core::mem::take(list));
            }
            !ready
        });
        due.into_iter().for_each(|list| self.push(Input::Verdicts(list)));
        while let Some((_, m)) = self.gathered.doubts.pop_front_if(|(at, _)| *at <= now) {
            self.push(Input::Doubts(m));
        }
    }

    /// Removes from a proposal, for later, its suspicions of servers with several devices and of
    /// devices that are being dialled.
    pub(super) fn defer(&mut self, now: Time, m: &mut Proposal) {
        let shared = |device: &u32| {
            let sds = self.state.devices.get(&DeviceId(*device)).map(|d| d.sds);
            self.state.devices.values().filter(|d| d.up && Some(d.sds) == sds).count() > 1
        };
        let asked = |device: &u32| self.detector.probes(DeviceId(*device));
        let (later, at_once) = m.suspects.iter().partition(|d| shared(d) || asked(d));
        m.suspects = at_once;
        let later = Proposal { suspects: later, admit: Vec::new(), join: Vec::new(), ..m.clone() };
        if !later.suspects.is_empty() && self.gathered.doubts.len() < DOUBTS {
            let due = now + self.config.limits.heartbeat_every / 8;
            self.gathered.doubts.push_back((due, later));
        }
    }

    /// Returns true when a verdict on the device waits. It says more than a peer's suspicion, which
    /// the peer will repeat.
    pub(super) fn gathers(&self, device: DeviceId) -> bool {
        self.gathered.verdicts.values().any(|(_, list)| list.iter().any(|v| v.device == device))
    }
}
