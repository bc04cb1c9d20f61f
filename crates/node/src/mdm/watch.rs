//! The leader's watch over devices and clients: it records which ones it hears, and detects devices
//! that are lost, slow or cut off. It also asks the healer which groups need other replicas.
//!
//! The watch returns commands. It does not change the state: [`super::work`] does. A device that is
//! up in the map counts as heard when this MDM begins to lead, because its earlier silence is not
//! known.
//!
//! [`healing`]: the commands that follow for devices that are slow or cut off, and for groups.
//!
//! Invariants: nothing is dialled unless this MDM serves. All of this state belongs to one
//! leadership, and is forgotten with it.
//!
//! The watch keeps no connection to an SDS. A dial finds out whether a process listens, and tells
//! the server the MDM's incarnation. A server whose link still leads to an earlier leader then
//! reconnects at once.

mod healing;

use super::dials::Dials;
use super::inputs::Inputs;
use super::links::{Gone, Links};
use super::verdicts::{self, Verdicts};
use alloc::collections::BTreeSet;
use base::mutant::{self, Mutant};
use base::{DeviceId, Incarnation, Limits, LinkId, MapVersion, SdcId, Time};
use core::net::SocketAddr;
use mdm::command::{Command, DeviceDown};
use mdm::detector::{Detector, Verdict};
use mdm::healer::Healer;
use mdm::observed::Observed;
use mdm::reach::Reach;
use mdm::seating::Seating;
use mdm::slowness::Slowness;
use mdm::state::State;
use seam::{DialError, DialId, Effects, Note};
use wire::control::{BuildInfo, Heartbeat, Intent, Proposal, Register};

/// The leader's knowledge of devices and clients.
pub(super) struct Watch {
    limits: Limits,
    /// True while this MDM leads and the cluster is formed.
    serves: bool,
    detector: Detector,
    healer: Healer,
    slowness: Slowness,
    reach: Reach,
    observed: Observed,
    /// Gateways, their hosts, and the seats that move.
    pub(super) seating: Seating,
    /// Devices that are down in the map and sent a heartbeat.
    revived: BTreeSet<DeviceId>,
    /// Verdicts that wait for those on the same server's other devices.
    verdicts: Verdicts,
    /// True if the driver was told that rebuilds are held back, because many servers are away.
    rebuilds_held: bool,
    /// True if the driver was told that silent servers are not declared lost: too many are silent.
    held_back: bool,
}

/// Returns the devices that this command declares down.
fn downs(command: &Command) -> &[DeviceDown] {
    match command {
        Command::DeviceDown(c) => core::slice::from_ref(c),
        Command::DevicesDown(c) => &c.list,
        _ => &[],
    }
}

impl Watch {
    /// Creates the watch of a new leader, which has heard no process.
    pub(super) fn new(limits: &Limits) -> Watch {
        Watch {
            limits: limits.clone(),
            serves: false,
            detector: Detector::new(limits),
            healer: Healer::default(),
            slowness: Slowness::default(),
            reach: Reach::default(),
            observed: Observed::default(),
            seating: Seating::default(),
            revived: BTreeSet::new(),
            verdicts: Verdicts::default(),
            rebuilds_held: false,
            held_back: false,
        }
    }

    /// Begins to serve. All devices are dialled: if the host of an earlier leader lost power, a
    /// server's link to it may seem to be up for as long as TCP retries, and the server must not be
    /// declared lost because of that. A failed dial proves nothing here: when everything is started
    /// at once, a server may not listen yet.
    pub(super) fn begin(&mut self, now: Time, state: &State, dials: &mut Dials, out: &mut Effects) {
        self.serves = true;
        self.seating.begin(now);
        self.detector.silent(now);
        for (id, device) in &state.devices {
            self.watch(now, *id, state);
            if !device.up {
                self.detector.unwatch(*id);
            }
        }
        for device in state.devices.keys() {
            if let Some(to) = address(*device, state) {
                dials.dial(to, out);
            }
        }
    }

    /// Stops serving.
    pub(super) fn stop(&mut self) {
        self.serves = false;
        self.revived.clear();
    }

    /// Returns true while this MDM leads and the cluster is formed.
    pub(super) fn serves(&self) -> bool {
        self.serves
    }

    /// Returns the number of verdicts, and that of proposals with suspicions, that wait.
    pub(super) fn waiting(&self) -> (usize, usize) {
        self.verdicts.waiting()
    }

    fn watch(&mut self, now: Time, id: DeviceId, state: &State) {
        let device = &state.devices[&id];
        let unit = state.unit(device.sds);
        self.detector.belongs(unit, state.domain_of(device.sds));
        self.detector.watch(now, id, unit, device.incarnation);
        self.detector.waits(id, device.intent == Intent::Waiting);
    }

    /// Does the work that is due.
    pub(super) fn tick(
        &mut self,
        now: Time,
        state: &State,
        (dials, inputs): (&mut Dials, &mut Inputs),
        out: &mut Effects,
    ) {
        for verdict in self.detector.silent(now) {
            self.judge(now, verdict, state, inputs);
        }
        self.verdicts.release(now, inputs);
        let held_back = self.detector.is_held_back();
        if held_back != core::mem::replace(&mut self.held_back, held_back) {
            out.note(Note::MassSilence { over: !held_back });
        }
        for device in self.detector.quiet(now) {
            self.probe(device, state, dials, out);
        }
        for device in self.detector.doubtful(now) {
            self.probe(device, state, dials, out);
        }
        for device in self.detector.refusing(now) {
            out.note(Note::RefusesAlive { device });
            self.probe(device, state, dials, out);
        }
    }

    /// Returns when something is due. The healer's time counts only if something may be proposed
    /// (`may_heal`): the healer is asked anyway as soon as that is so.
    pub(super) fn wake_at(&self, may_heal: bool) -> Option<Time> {
        let heal = Time::earliest(self.healer.wake_at(), self.slowness.wake_at());
        let heal = Time::earliest(heal, self.reach.wake_at());
        let heal = Time::earliest(heal, self.seating.wake_at()).filter(|_| may_heal);
        Time::earliest(Time::earliest(self.detector.wake_at(), heal), self.verdicts.due())
    }

    // ---- heartbeats ----

    /// Records a heartbeat of a device, from the incarnation that the state has.
    pub(super) fn device_beats(
        &mut self,
        now: Time,
        (device, life): (DeviceId, Incarnation),
        heartbeat: Heartbeat,
        state: &State,
    ) {
        self.detector.heard(now, device, life);
        if !heartbeat.slow.is_empty() {
            self.slowness.hurry(now);
        }
        let seen = self.observed.devices.entry(device).or_default();
        if let Some(entry) = state.devices.get(&device) {
            seen.has_settled(entry.store, heartbeat.settled);
        }
        seen.beat(now, heartbeat);
        if !state.is_up(device) {
            self.revived.insert(device);
        }
    }

    /// Records a heartbeat of a client.
    pub(super) fn sdc_beats(&mut self, now: Time, sdc: SdcId, mut heartbeat: Heartbeat) {
        let hosts = heartbeat.hosts.take();
        self.seating.heard(now, sdc, hosts);
        self.observed.sdcs.entry(sdc).or_default().beat(now, heartbeat);
    }

    /// Returns what this MDM has heard from devices and clients.
    pub(super) fn observed(&self) -> &Observed {
        &self.observed
    }

    /// Returns the devices that are silent and were not declared lost.
    pub(super) fn unheard(&self, now: Time) -> BTreeSet<DeviceId> {
        self.detector.unheard(now)
    }

    /// Returns a device that is down in the map and has sent a heartbeat, and forgets that.
    pub(super) fn take_revived(&mut self) -> Option<DeviceId> {
        self.revived.pop_first()
    }

    /// Returns true if no device is to be revived.
    pub(super) fn is_idle(&self) -> bool {
        self.revived.is_empty()
    }

    /// Records that a device has sent something.
    pub(super) fn heard(&mut self, now: Time, device: DeviceId, life: Incarnation) {
        self.detector.heard(now, device, life);
    }

    /// Records that a device has the map of this version.
    pub(super) fn device_has(&mut self, device: DeviceId, map: MapVersion) {
        let seen = self.observed.devices.entry(device).or_default();
        seen.map = seen.map.max(map);
    }

    /// Records that a new incarnation of a device begins.
    pub(super) fn born(&mut self, device: DeviceId) {
        self.observed.devices.entry(device).or_default().born();
    }

    /// Records that a device has registered.
    pub(super) fn device_came(
        &mut self,
        now: Time,
        (device, life): (DeviceId, Incarnation),
        build: Option<BuildInfo>,
    ) {
        self.detector.heard(now, device, life);
        let seen = self.observed.devices.entry(device).or_default();
        (seen.connected, seen.build) = (true, build);
    }

    /// Records that a client has registered.
    pub(super) fn sdc_came(&mut self, now: Time, sdc: SdcId, build: Option<BuildInfo>) {
        self.seating.came(now, sdc);
        self.observed.sdcs.entry(sdc).or_default().came(build);
    }

    /// Drops the state of a link that is down or about to be closed. If a device had registered on
    /// it, the device is dialled to find the reason.
    pub(super) fn lost(
        &mut self,
        link: LinkId,
        (links, state): (&mut Links, &State),
        dials: &mut Dials,
        out: &mut Effects,
    ) {
        match links.remove(link) {
            Some(Gone::Device(device)) => {
                self.observed.devices.entry(device).or_default().connected = false;
                self.probe(device, state, dials, out);
            }
            Some(Gone::Sdc(sdc)) => {
                self.observed.sdcs.entry(sdc).or_default().connected = false;
            }
            None => {}
        }
    }

    /// Returns how many log records the device is known to have made durable, if it still has the
    /// content that it had then; else 0.
    pub(super) fn settled(&self, m: &Register) -> u64 {
        let seen = self.observed.devices.get(&DeviceId(m.device));
        seen.map_or(0, |seen| seen.settled(m.store))
    }

    // ---- lost devices ----

    /// Dials the device to find out whether a process listens at its address, unless the device is
    /// known to be dead.
    pub(super) fn probe(
        &mut self,
        device: DeviceId,
        state: &State,
        dials: &mut Dials,
        out: &mut Effects,
    ) {
        let Some(to) = address(device, state).filter(|_| self.serves) else { return };
        if self.detector.probe(device, dials.next) {
            dials.dial(to, out);
        }
    }

    /// Records that a process listens at a device's address.
    pub(super) fn answered(&mut self, now: Time, dial: DialId) {
        self.detector.answered(now, dial.0);
    }

    /// Records that a dial to a device has failed.
    pub(super) fn dial_failed(
        &mut self,
        now: Time,
        (dial, why): (DialId, DialError),
        (state, links): (&State, &Links),
        inputs: &mut Inputs,
    ) {
        if why != DialError::Refused || mutant::on(Mutant::IgnoreRefusal) {
            return self.detector.probe_over(dial.0);
        }
        let Some(verdict) = self.detector.refused(now, dial.0) else { return };
        // A process that has a link is not dead; perhaps it does not listen yet. If it is dead
        // after all, its link breaks, which leads to another dial. The same holds for a device that
        // is down because others do not reach it: a firewall may refuse dials to a process that
        // runs.
        let linked = links.has_device(verdict.device);
        let up = state.is_up(verdict.device);
        let here = linked && (up || self.observed.cut_off.contains(&verdict.device));
        let silent = Verdict { dead: false, ..verdict };
        if !here || self.detector.still_silent(now, &silent) {
            self.judge(now, verdict, state, inputs);
        }
    }

    /// Handles a verdict: a device seems to be gone.
    fn judge(&mut self, now: Time, verdict: Verdict, state: &State, inputs: &mut Inputs) {
        if state.devices.contains_key(&verdict.device) {
            self.verdicts.add(now, verdict, self.limits.heartbeat_every, state);
            self.verdicts.release(now, inputs);
        }
    }

    /// Returns the verdict on a device that was silent for too long, even if no other device is
    /// heard.
    pub(super) fn overdue(&mut self, now: Time, device: DeviceId) -> Option<Verdict> {
        self.detector.overdue(now, device)
    }

    /// Returns true if the verdict is still true.
    pub(super) fn holds(&mut self, now: Time, verdict: &Verdict) -> bool {
        verdict.dead || self.detector.still_silent(now, verdict)
    }

    /// Removes the parts of a proposal that do not count, or do not count yet. The sender repeats
    /// them with each heartbeat. Suspicions of a server with several devices wait for verdicts, and
    /// so does a suspicion of a device that is being dialled.
    pub(super) fn weigh(&mut self, now: Time, m: &mut Proposal, state: &State) {
        let (by, limits) = (DeviceId(m.device), &self.limits);
        self.reach.report(now, by, &m.unreached, limits);
        m.join.iter().for_each(|device| self.reach.reached(now, by, DeviceId(*device)));
        let (reach, unreached) = (&self.reach, &m.unreached);
        m.suspects.retain(|d| !unreached.contains(d) || reach.counts(by, DeviceId(*d), limits));
        let due = now + limits.heartbeat_every / 8;
        self.verdicts.defer(due, m, |device| {
            let device = DeviceId(*device);
            verdicts::is_one_of_several(device, state) || self.detector.probes(device)
        });
    }

    /// Returns true when a verdict on the device waits.
    pub(super) fn has_verdict(&self, device: DeviceId) -> bool {
        self.verdicts.has(device)
    }

    // ---- effects of commands ----

    /// Counts how often devices leave, before the command takes effect. A device that leaves too
    /// often is held out when it comes back. Absences during maintenance do not count.
    pub(super) fn count_absences(
        &mut self,
        now: Time,
        command: &Command,
        state: &State,
        out: &mut Effects,
    ) {
        if let Command::DeviceUp(c) = command {
            self.count_absence(now, DeviceId(c.device), Some(c.incarnation), state, out);
        }
        for c in downs(command) {
            self.count_absence(now, DeviceId(c.device), None, state, out);
        }
    }

    fn count_absence(
        &mut self,
        now: Time,
        device: DeviceId,
        returned: Option<u64>,
        state: &State,
        out: &mut Effects,
    ) {
        let first = self.limits.quarantine;
        let Some(old) = state.devices.get(&device) else { return };
        let record = &mut self.observed.devices.entry(device).or_default().quarantine;
        let again = returned.is_some_and(|life| life > old.incarnation.0);
        if old.up && (returned.is_none() || again) && !old.intent.maintains() {
            record.left(now, first);
        }
        let held = returned.filter(|_| !old.up || again).and_then(|_| record.returned(now, first));
        if let Some(long) = held {
            out.note(Note::Quarantined { device, long });
        }
    }

    /// Updates what is watched after a command has taken effect.
    pub(super) fn changed(
        &mut self,
        now: Time,
        command: &Command,
        state: &State,
        out: &mut Effects,
    ) {
        match command {
            Command::DeviceUp(c) => {
                let device = DeviceId(c.device);
                self.watch(now, device, state);
                out.note(Note::DeviceUp { device });
            }
            Command::DeviceDown(_) | Command::DevicesDown(_) => {
                for c in downs(command) {
                    let device = DeviceId(c.device);
                    self.detector.unwatch(device);
                    out.note(Note::DeviceDown { device, proof: c.dead });
                }
            }
            Command::Intend(c) if c.intent() == Intent::Removed => {
                c.devices.iter().for_each(|device| self.detector.forget(DeviceId(*device)));
            }
            Command::Intend(c) => {
                c.devices.iter().for_each(|device| self.detector.waits(DeviceId(*device), false));
            }
            _ => {}
        }
    }
}

/// Returns the address of a device that is not known to be dead.
fn address(device: DeviceId, state: &State) -> Option<SocketAddr> {
    let entry = state.devices.get(&device).filter(|d| !d.dead)?;
    entry.address.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Prng;
    use mdm::command::DeviceUp;
    use seam::{BufPool, Effect};

    fn effects() -> Effects {
        Effects::new(BufPool::new(1 << 20), Prng::new(1), None)
    }

    fn one_device() -> State {
        let mut state = State::new();
        let (name, address) = ("a".into(), "10.0.0.1:7000".into());
        let up =
            DeviceUp { device: 1, sds: 1, incarnation: 1, name, address, ..Default::default() };
        state.apply(1, &Command::DeviceUp(up));
        state
    }

    fn dials(out: &mut Effects) -> usize {
        out.drain().filter(|effect| matches!(effect, Effect::Dial { .. })).count()
    }

    #[test]
    fn nothing_is_dialled_unless_this_mdm_serves() {
        let (state, mut out, mut dialled) = (one_device(), effects(), Dials::default());
        let mut watch = Watch::new(&Limits::TEST_MIN);
        watch.probe(DeviceId(1), &state, &mut dialled, &mut out);
        assert_eq!(dials(&mut out), 0);
        watch.begin(Time(1), &state, &mut dialled, &mut out);
        assert_eq!(dials(&mut out), 1, "it says who it is");
        watch.probe(DeviceId(1), &state, &mut dialled, &mut out);
        watch.probe(DeviceId(1), &state, &mut dialled, &mut out);
        assert_eq!(dials(&mut out), 1, "one dial to a device at a time");
        watch.stop();
        watch.dial_failed(
            Time(2),
            (DialId(1), DialError::Unreachable),
            (&state, &Links::default()),
            &mut Inputs::default(),
        );
        watch.probe(DeviceId(1), &state, &mut dialled, &mut out);
        assert_eq!(dials(&mut out), 0);
    }

    #[test]
    fn a_device_that_is_down_and_beats_is_to_be_revived() {
        let mut state = one_device();
        let down = DeviceDown { device: 1, incarnation: 1, dead: false };
        state.apply(2, &Command::DeviceDown(down));
        let mut watch = Watch::new(&Limits::TEST_MIN);
        let life = (DeviceId(1), Incarnation(1));
        watch.device_beats(Time(1), life, Heartbeat::default(), &state);
        assert!(watch.revived.contains(&DeviceId(1)));
        watch.stop();
        assert!(watch.revived.is_empty());
    }
}
