//! Verdicts on a server's devices wait a moment for each other: a server that dies with all its devices is one entry of the
//! log, and one map, instead of one for each of them. What its peers suspect waits, too: the verdict says more, and then
//! there is nothing left to say. Verdicts on a server with one device don't wait, and what its peers suspect only does while
//! it is being dialled: which of the two answers is here first is chance, and the second would be one more entry and map.

use super::Mdm;
use super::intake::Input;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use base::{DeviceId, Duration, Mutant, SdsId, Time, mutant};
use mdm::detector::Verdict;
use mdm::state::Device;
use wire::control::Proposal;

/// How many proposals wait; the others' primaries propose again.
const DOUBTS: usize = 4096;

/// What waits.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    /// By server: until when, and what there is already.
    verdicts: BTreeMap<SdsId, (Time, Vec<Verdict>)>,
    /// What peers suspect, and until when that waits.
    doubts: VecDeque<(Time, Proposal)>,
}

impl Gathered {
    /// When the first ones are due.
    pub fn due(&self) -> Option<Time> {
        let verdicts = self.verdicts.values().map(|(due, _)| *due).min();
        Time::earliest(verdicts, self.doubts.front().map(|(due, _)| *due))
    }
}

impl Mdm {
    /// How long a verdict waits for the others. Death shows on all links at once; who is silent is so for one device
    /// after the other, as each has a heartbeat of its own.
    fn patience(&self, verdict: &Verdict) -> Duration {
        let beat = self.config.limits.heartbeat_every;
        if verdict.dead { beat / 8 } else { beat }
    }

    /// A device seems to be gone.
    pub(super) fn judge(&mut self, now: Time, verdict: Verdict) {
        let Some(sds) = self.state.devices.get(&verdict.device).map(|d| d.sds) else { return };
        // Of one that was silent it may be found out later that it is dead.
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

    /// What has waited long enough is worked on.
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

    /// Takes out of a proposal what it suspects of servers with several devices, and of devices that are being dialled, for
    /// later.
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

    /// True when a verdict on the device waits. It says more than a peer that suspects the device, which will say so again.
    pub(super) fn gathers(&self, device: DeviceId) -> bool {
        self.gathered.verdicts.values().any(|(_, list)| list.iter().any(|v| v.device == device))
    }
}
