//! The failure detector: turns heartbeats, link losses and probe dials into verdicts on devices.
//!
//! Invariants:
//! - A verdict names the incarnation that it is about.
//! - A device is declared lost at most once until it is watched again.
//! - The only proof of death is a refused dial that began in that incarnation.
//! - After a start of the MDM, and after a stall of its own process, all clocks start over.
//! - If so many servers fall silent within a short time that an overload or a broken network is
//!   more likely than their death, none of them is declared lost (rule R12). An MDM that hears no
//!   device at all suspects itself. Neither holds for a device if another process asks for its
//!   place.
//!
//! The detector does not know why a device matters, and it decides nothing by itself: a verdict
//! becomes a command only if the state still agrees.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use base::mutant::{self, Mutant};
use base::{DeviceId, DomainId, Incarnation, Limits, SdsId, Time};
use core::time::Duration;

/// A device seems to be gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// The device.
    pub device: DeviceId,
    /// The incarnation that seems to be over.
    pub incarnation: Incarnation,
    /// True if the death is proven: its address refuses connections.
    pub dead: bool,
}

/// How long a server that was declared lost for its silence counts against the limit for the
/// others.
const WINDOW: Duration = Duration::from_secs(10);
/// From this number of servers on, at most a fifth of them is declared lost for silence within one
/// `WINDOW`. In smaller clusters the number cannot tell a common cause from chance. There, the
/// others are believed dead as long as one server is still heard.
const MANY: usize = 10;

/// Returns how many out of `servers` may be taken for lost, by silence or suspicion, at about the
/// same time.
pub fn loss_limit(servers: usize) -> usize {
    if servers < MANY || mutant::on(Mutant::NoLossLimit) {
        servers.saturating_sub(1)
    } else {
        servers / 5
    }
}

#[derive(Debug)]
struct Watch {
    /// Its fault unit, which one accident may take as a whole.
    server: SdsId,
    incarnation: Incarnation,
    heard: Time,
    /// It was declared lost, and has not been watched again since.
    lost: bool,
    /// The time at which it was declared lost for silence.
    silent_since: Option<Time>,
    /// When [`Detector::doubtful`] returned it last.
    doubted: Time,
    /// The dial under way, and the incarnation that it asks about.
    probe: Option<(u64, Incarnation)>,
    /// When its address first refused a dial, and when it refused one last.
    refuses: Option<(Time, Time)>,
    /// When [`Detector::quiet`] returned it last.
    asked: Time,
    /// When its host last answered a dial.
    answered: Time,
    /// It waits to be admitted: its silence does not count against the other servers.
    waits: bool,
}

impl Watch {
    /// Returns how long the device may be silent. If its host has answered a dial since the last
    /// heartbeat, the process is stalled or short of processor time, and not dead. A stall as long
    /// as `silence` may begin just before a heartbeat was due, and the next heartbeat may come one
    /// interval after it ends: the device gets two heartbeat intervals more.
    fn patience(&self, silence: Duration, beat: Duration) -> Duration {
        let answers = self.answered > self.heard && !mutant::on(Mutant::StopIsLoss);
        if answers { silence + beat * 2 } else { silence }
    }

    /// Returns true if it has been silent for at least its `patience`.
    fn is_silent(&self, now: Time, silence: Duration, beat: Duration) -> bool {
        now.since(self.heard) >= self.patience(silence, beat)
    }

    /// Declares the device lost, once, if it has been silent for too long. It then counts against
    /// the limit for the others.
    fn give_up(
        &mut self,
        now: Time,
        device: DeviceId,
        silence: Duration,
        beat: Duration,
    ) -> Option<Verdict> {
        if self.lost || !self.is_silent(now, silence, beat) {
            return None;
        }
        (self.lost, self.silent_since) = (true, Some(now));
        Some(Verdict { device, incarnation: self.incarnation, dead: false })
    }

    /// Returns true if the address refused a dial and the device was heard so much later that it
    /// cannot have been dead then: refusals prove nothing about this incarnation.
    fn refuses_alive(&self, beat: Duration) -> bool {
        self.refuses.is_some_and(|(since, _)| self.heard >= since + beat * 2)
    }
}

/// The failure detector.
#[derive(Debug)]
pub struct Detector {
    watched: BTreeMap<DeviceId, Watch>,
    /// The protection domains of fault units. The limit of losses applies to each domain by itself.
    domains: BTreeMap<SdsId, DomainId>,
    silence: Duration,
    beat: Duration,
    awake: Time,
    /// More devices are silent than may be declared lost.
    held_back: bool,
}

impl Detector {
    /// Returns a detector that watches no device yet.
    pub fn new(limits: &Limits) -> Detector {
        let times = if mutant::on(Mutant::SuspectLate) { 4 } else { 1 };
        let (silence, beat) = (limits.suspect_after * times, limits.heartbeat_every);
        let (watched, domains) = (BTreeMap::new(), BTreeMap::new());
        Detector { watched, domains, silence, beat, awake: Time::ZERO, held_back: false }
    }

    /// Assigns a fault unit to a domain. Units that were never assigned belong to domain 0.
    pub fn belongs(&mut self, unit: SdsId, domain: DomainId) {
        self.domains.insert(unit, domain);
    }

    fn domain(&self, watch: &Watch) -> DomainId {
        self.domains.get(&watch.server).copied().unwrap_or_default()
    }

    /// Starts to watch this incarnation of the device. It counts as alive at `now`.
    pub fn watch(&mut self, now: Time, device: DeviceId, server: SdsId, incarnation: Incarnation) {
        let probe = self.watched.get(&device).and_then(|w| w.probe);
        let (lost, silent_since) = (false, None);
        let doubted = Time::ZERO;
        let old = self.watched.get(&device).filter(|w| w.incarnation == incarnation);
        let refuses = old.and_then(|w| w.refuses);
        let (heard, asked, answered, waits) = (now, Time::ZERO, Time::ZERO, false);
        let watch = Watch {
            server,
            incarnation,
            heard,
            lost,
            silent_since,
            doubted,
            probe,
            refuses,
            asked,
            answered,
            waits,
        };
        self.watched.insert(device, watch);
    }

    /// Sets whether this device waits to be admitted.
    pub fn waits(&mut self, device: DeviceId, waits: bool) {
        if let Some(watch) = self.watched.get_mut(&device) {
            watch.waits = waits;
        }
    }

    /// Marks the device as lost. It is watched again after the next [`Detector::watch`].
    pub fn unwatch(&mut self, device: DeviceId) {
        if let Some(watch) = self.watched.get_mut(&device) {
            watch.lost = true;
        }
    }

    /// Forgets a device that an operator removed: it never comes back, and its silence says nothing
    /// about other devices.
    pub fn forget(&mut self, device: DeviceId) {
        self.watched.remove(&device);
    }

    /// Records a sign of life. One of another incarnation is ignored.
    pub fn heard(&mut self, now: Time, device: DeviceId, incarnation: Incarnation) {
        if let Some(watch) = self.watched.get_mut(&device).filter(|w| w.incarnation == incarnation)
        {
            watch.heard = watch.heard.max(now);
        }
    }

    /// Asks for a dial to the device, because its link is lost or a peer's dial was refused.
    /// Returns true if the caller should dial it with the id `dial`; false while another dial is
    /// under way.
    pub fn probe(&mut self, device: DeviceId, dial: u64) -> bool {
        let Some(watch) = self.watched.get_mut(&device).filter(|w| w.probe.is_none()) else {
            return false;
        };
        watch.probe = Some((dial, watch.incarnation));
        true
    }

    /// Returns true while a dial to the device is under way.
    pub fn probes(&self, device: DeviceId) -> bool {
        self.watched.get(&device).is_some_and(|w| w.probe.is_some())
    }

    /// Records that a dial succeeded. This does not prove that the device is alive, but from now on
    /// a refusal counts as proof again.
    pub fn answered(&mut self, now: Time, dial: u64) {
        if let Some((_, watch)) = self.dialled(dial) {
            (watch.probe, watch.refuses, watch.answered) = (None, None, now);
        }
    }

    /// Records that a dial ended in another way, which proves nothing.
    pub fn probe_over(&mut self, dial: u64) {
        if let Some((_, watch)) = self.dialled(dial) {
            watch.probe = None;
        }
    }

    /// Returns the device that this dial goes to.
    fn dialled(&mut self, dial: u64) -> Option<(DeviceId, &mut Watch)> {
        let mine = |w: &Watch| w.probe.is_some_and(|(d, _)| d == dial);
        self.watched.iter_mut().find(|(_, w)| mine(w)).map(|(device, watch)| (*device, watch))
    }

    /// Records that a dial was refused. The incarnation that it asked about is dead, unless its
    /// address has refused dials while it was alive and no dial succeeded since. (The device then
    /// gave an address that is not its own, or a firewall refuses in its name.)
    pub fn refused(&mut self, now: Time, dial: u64) -> Option<Verdict> {
        let beat = self.beat;
        let (device, watch) = self.dialled(dial)?;
        let (_, incarnation) = watch.probe.take()?;
        let same = watch.incarnation == incarnation;
        let lives = same && watch.refuses_alive(beat) && !mutant::on(Mutant::RefusalProves);
        if same {
            watch.refuses = Some((watch.refuses.map_or(now, |(since, _)| since), now));
        }
        let over = if mutant::on(Mutant::BelieveAddress) { watch.incarnation } else { incarnation };
        (!lives).then_some(Verdict { device, incarnation: over, dead: true })
    }

    /// Returns the live devices whose addresses have refused a dial, to be dialled again until a
    /// dial succeeds. Each is returned once per `suspect_after`.
    pub fn refusing(&self, now: Time) -> Vec<DeviceId> {
        let due = |w: &Watch| {
            let again = w.refuses.is_some_and(|(_, last)| now.since(last) >= self.silence);
            again && !w.lost && w.probe.is_none() && w.refuses_alive(self.beat)
        };
        self.watched.iter().filter(|(_, w)| due(w)).map(|(id, _)| *id).collect()
    }

    /// Returns devices that have been silent for half of `suspect_after`. The caller dials them,
    /// because it matters whether their hosts answer. Each is returned once per silence. Call it
    /// after [`Detector::silent`].
    pub fn quiet(&mut self, now: Time) -> Vec<DeviceId> {
        let half = self.silence / 2;
        let quiet = |w: &mut Watch| {
            let due = !w.lost && w.asked < w.heard && now.since(w.heard) >= half;
            w.asked = if due { now } else { w.asked };
            due
        };
        self.watched.iter_mut().filter_map(|(d, w)| quiet(w).then_some(*d)).collect()
    }

    /// Returns the devices that have been silent for too long, unless they are too many. Each is
    /// returned once.
    ///
    /// If all devices are silent, the MDM itself is cut off. Taking one replica after the other out
    /// of the groups would help no client, and some group would be left with only the replica that
    /// is really lost. If a large part of many servers is silent, the servers or the network are
    /// overloaded: taking them out would only make more work for the rest.
    pub fn silent(&mut self, now: Time) -> Vec<Verdict> {
        // This process stalled: the heartbeats that it missed prove nothing about the devices.
        if now.since(self.awake) > self.silence / 2 {
            self.watched.values_mut().for_each(|w| w.heard = now);
        }
        self.awake = now;
        let mut verdicts = Vec::new();
        let held = self.too_many(now);
        self.held_back = !held.is_empty();
        let domains = &self.domains;
        for (device, watch) in &mut self.watched {
            let domain = domains.get(&watch.server).copied().unwrap_or_default();
            if held.contains(&domain) {
                continue;
            }
            verdicts.extend(watch.give_up(now, *device, self.silence, self.beat));
        }
        verdicts
    }

    /// Returns true if nothing has been heard since `silent` gave this verdict. A sign of life
    /// since then cancels the verdict.
    pub fn still_silent(&mut self, now: Time, verdict: &Verdict) -> bool {
        let Some(watch) = self.watched.get_mut(&verdict.device) else { return false };
        let silent = watch.is_silent(now, self.silence, self.beat);
        if !silent {
            // It no longer counts against the limit for others.
            (watch.lost, watch.silent_since) = (false, None);
        }
        silent && watch.incarnation == verdict.incarnation
    }

    /// Declares the device lost if it has been silent for too long, however many others are silent.
    /// The caller has heard from another process that asks for the device's place or claims to be
    /// it: so this MDM is not cut off, and the silence of others does not matter.
    pub fn overdue(&mut self, now: Time, device: DeviceId) -> Option<Verdict> {
        // As in `silent`: heartbeats that this process missed during a stall prove nothing.
        let awake = now.since(self.awake) <= self.silence / 2;
        let watch = self.watched.get_mut(&device).filter(|_| awake)?;
        watch.give_up(now, device, self.silence, self.beat)
    }

    /// Returns the domains in which too many servers are silent, or were declared lost for silence
    /// within the last `WINDOW`.
    fn too_many(&self, now: Time) -> BTreeSet<DomainId> {
        let mut all: BTreeMap<DomainId, BTreeSet<SdsId>> = BTreeMap::new();
        let mut silent: BTreeMap<DomainId, BTreeSet<SdsId>> = BTreeMap::new();
        for watch in self.watched.values().filter(|w| !w.waits) {
            let quiet = watch.is_silent(now, self.silence, self.beat);
            let told = watch.silent_since.is_some_and(|at| now.since(at) < WINDOW);
            if (quiet && !watch.lost) || told {
                silent.entry(self.domain(watch)).or_default().insert(watch.server);
            }
            if !watch.lost || told {
                all.entry(self.domain(watch)).or_default().insert(watch.server);
            }
        }
        let known = |domain: &DomainId| all.get(domain).map_or(0, BTreeSet::len);
        let many = silent.iter().filter(|(domain, gone)| gone.len() > loss_limit(known(domain)));
        many.map(|(domain, _)| *domain).collect()
    }

    /// Returns true while silent servers are not declared lost because they are too many.
    pub fn is_held_back(&self) -> bool {
        self.held_back
    }

    /// Returns silent devices that are not declared lost because they are too many. They are to be
    /// dialled, so that the dead ones are found all the same. Each is returned once per
    /// `suspect_after`.
    pub fn doubtful(&mut self, now: Time) -> Vec<DeviceId> {
        let (held_back, silence) = (self.held_back, self.silence);
        let doubt = |w: &mut Watch| {
            let since = w.heard.max(w.doubted);
            let due = held_back && !w.lost && now.since(since) >= silence;
            w.doubted = if due { now } else { w.doubted };
            due
        };
        let doubtful = self.watched.iter_mut().filter_map(|(d, w)| doubt(w).then_some(*d));
        doubtful.collect()
    }

    /// Returns the devices that are silent and were not declared lost, for any reason.
    pub fn unheard(&self, now: Time) -> BTreeSet<DeviceId> {
        let silent = |w: &Watch| !w.lost && now.since(w.heard) >= self.silence;
        self.watched.iter().filter(|(_, w)| silent(w)).map(|(d, _)| *d).collect()
    }

    /// Returns when to call `silent` next: when the first device is due, and often enough to notice
    /// a stall of this process.
    pub fn wake_at(&self) -> Option<Time> {
        let due = |w: &Watch| w.heard + w.patience(self.silence, self.beat);
        let due = self.watched.values().filter(|w| !w.lost).map(due).min()?;
        let beat = self.awake + self.beat;
        Some(if due > self.awake { due.min(beat) } else { beat })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const LIFE: Incarnation = Incarnation(5);
    const DEV: DeviceId = DeviceId(1);
    const OTHER: DeviceId = DeviceId(2);

    fn at(ms: u64) -> Time {
        Time(ms * MS)
    }

    /// Returns a detector that watches `DEV`, and another device that the tests keep alive with
    /// [`round`].
    fn detector() -> Detector {
        let mut d = Detector::new(&Limits::SHIPPED);
        d.silent(at(0));
        d.watch(at(0), DEV, SdsId(1), LIFE);
        d.watch(at(0), OTHER, SdsId(2), LIFE);
        d
    }

    fn round(d: &mut Detector, ms: u64) -> Vec<Verdict> {
        d.heard(at(ms), OTHER, LIFE);
        d.silent(at(ms))
    }

    #[test]
    fn silence_is_reported_once_and_in_time() {
        let mut d = detector();
        let mut told = Vec::new();
        for ms in (200..3000).step_by(200) {
            if ms <= 400 {
                d.heard(at(ms), DEV, LIFE);
            }
            told.extend(round(&mut d, ms).into_iter().map(|v| (ms, v)));
        }
        assert_eq!(told, [(1400, Verdict { device: DEV, incarnation: LIFE, dead: false })]);
        d.watch(at(3000), DEV, SdsId(1), LIFE);
        assert_eq!(d.wake_at(), Some(at(3000)), "the last round was at 2800");
    }

    #[test]
    fn a_paused_server_is_kept_while_its_host_answers() {
        let told = |answers: bool| {
            let mut d = detector();
            d.heard(at(10), DEV, LIFE);
            let mut told = Vec::new();
            for ms in (200..2000).step_by(200) {
                told.extend(round(&mut d, ms).into_iter().map(|_| ms));
                let quiet = d.quiet(at(ms));
                assert_eq!(quiet.len(), usize::from(ms == 600), "{ms}");
                if !quiet.is_empty() {
                    assert!(d.probe(DEV, 7));
                    if answers { d.answered(at(ms), 7) } else { d.probe_over(7) }
                }
                assert!(d.wake_at().is_some_and(|t| t > at(ms)), "no busy loop");
            }
            told
        };
        assert_eq!((told(false), told(true)), ([1200].into(), [1600].into()));
    }

    #[test]
    fn a_detector_that_slept_begins_anew() {
        let mut d = detector();
        assert_eq!(d.silent(at(10_000)), []);
        assert_eq!(round(&mut d, 10_400), []);
        assert_eq!(round(&mut d, 10_800), []);
        assert_eq!(round(&mut d, 11_000).len(), 1);
    }

    #[test]
    fn servers_that_wait_to_be_admitted_hold_no_verdict_back() {
        for (waits, told) in [(true, 1), (false, 0)] {
            let mut d = Detector::new(&Limits::SHIPPED);
            d.silent(at(0));
            (0..40).for_each(|i| d.watch(at(0), DeviceId(i), SdsId(i), LIFE));
            (10..40).for_each(|i| d.waits(DeviceId(i), waits));
            let mut lost = 0;
            for ms in (200..2000).step_by(200) {
                (1..10).for_each(|i| d.heard(at(ms), DeviceId(i), LIFE));
                lost += d.silent(at(ms)).iter().filter(|v| v.device == DeviceId(0)).count();
            }
            assert_eq!(lost, told);
        }
    }

    #[test]
    fn a_few_silent_servers_are_lost_and_many_at_once_are_not() {
        for (silent, told) in [(2, 2), (3, 0)] {
            let mut d = Detector::new(&Limits::SHIPPED);
            d.silent(at(0));
            // Ten servers with two devices each.
            (0..20).for_each(|i| d.watch(at(0), DeviceId(i), SdsId(i / 2), LIFE));
            let mut verdicts = 0;
            for ms in (200..2000).step_by(200) {
                (2 * silent..20).for_each(|i| d.heard(at(ms), DeviceId(i), LIFE));
                verdicts += d.silent(at(ms)).len();
            }
            assert_eq!((verdicts, d.is_held_back()), (told * 2, told == 0));
            let doubtful = d.doubtful(at(1800)).len();
            assert_eq!(doubtful, if told == 0 { 2 * silent as usize } else { 0 });
            assert_eq!(d.doubtful(at(1900)), [], "each once in a while");
            // One more server, soon after: too many by now. Much later: believable again.
            let later = |from: u64, to: u64, d: &mut Detector| {
                let mut verdicts = 0;
                for ms in (from..to).step_by(200) {
                    (2 * silent + 2..20).for_each(|i| d.heard(at(ms), DeviceId(i), LIFE));
                    verdicts += d.silent(at(ms)).len();
                }
                verdicts
            };
            assert_eq!(later(2000, 4000, &mut d), 0);
            if told > 0 {
                assert_eq!(later(4000, 13_000, &mut d), 2);
            }
        }
    }

    #[test]
    fn a_detector_that_hears_no_server_suspects_itself() {
        let mut d = detector();
        for ms in (200..5000).step_by(200) {
            assert_eq!(d.silent(at(ms)), []);
            assert!(d.wake_at().is_some_and(|t| t > at(ms)), "no busy loop");
        }
        assert_eq!(d.unheard(at(5000)), BTreeSet::from([DEV, OTHER]));
        d.heard(at(5000), OTHER, LIFE);
        assert_eq!(d.silent(at(5000)).len(), 1, "as soon as one is back, the others are late");
    }

    #[test]
    fn a_silent_device_whose_place_is_needed_is_lost_although_no_server_is_heard() {
        let mut d = detector();
        for ms in (200..5000).step_by(200) {
            assert_eq!(d.silent(at(ms)), []);
            let late = d.overdue(at(ms), DEV);
            assert_eq!(late.map(|v| v.dead), (ms == 1000).then_some(false), "{ms}: told once");
        }
        d.heard(at(5000), DEV, LIFE);
        assert_eq!(d.overdue(at(5100), DEV), None, "it lives");
        assert_eq!(d.overdue(at(9000), DEV), None, "this process stood still");
        d.unwatch(OTHER);
        assert_eq!(d.overdue(at(5100), OTHER), None, "told already");
        assert_eq!(d.overdue(at(5100), DeviceId(9)), None);
    }

    #[test]
    fn a_device_lost_because_its_place_is_needed_counts_towards_the_limit() {
        let mut d = Detector::new(&Limits::SHIPPED);
        d.silent(at(0));
        (0..10).for_each(|i| d.watch(at(0), DeviceId(i), SdsId(i), LIFE));
        for ms in (200..2000).step_by(200) {
            d.heard(at(ms), DeviceId(9), LIFE);
            assert_eq!(d.silent(at(ms)), [], "nine of ten");
        }
        assert!(d.overdue(at(1800), DeviceId(0)).is_some());
        assert_eq!(d.silent(at(1900)), [], "and that makes the others no more believable");
    }

    #[test]
    fn a_refused_dial_proves_the_death_of_the_life_it_asked_about() {
        let mut d = detector();
        assert!(!d.probes(DEV));
        assert!(d.probe(DEV, 7) && !d.probe(DEV, 8), "one at a time");
        assert!(d.probes(DEV) && !d.probes(OTHER));
        d.watch(at(10), DEV, SdsId(1), Incarnation(6));
        let dead = Some(Verdict { device: DEV, incarnation: LIFE, dead: true });
        assert_eq!(d.refused(at(20), 7), dead);
        assert_eq!(d.refused(at(20), 7), None);
        assert!(d.probe(DEV, 9));
        d.probe_over(9);
        assert!(d.probe(DEV, 10));
    }

    #[test]
    fn a_device_that_refused_dials_while_alive_is_not_dead_because_of_a_refusal() {
        let mut d = detector();
        let dead = Some(Verdict { device: DEV, incarnation: LIFE, dead: true });
        let refused = |d: &mut Detector, ms: u64| {
            assert!(d.probe(DEV, ms));
            d.refused(at(ms), ms)
        };
        // A message sent before its death may arrive a moment after the refusal.
        assert_eq!(refused(&mut d, 1000), dead);
        d.heard(at(1399), DEV, LIFE);
        assert_eq!((refused(&mut d, 1400), d.refusing(at(2400))), (dead, Vec::new()));
        // It is heard as if nothing were wrong: a firewall or another host refuses.
        d.heard(at(1800), DEV, LIFE);
        assert_eq!((d.refusing(at(2399)), d.refusing(at(2400))), (Vec::new(), Vec::from([DEV])));
        assert_eq!(refused(&mut d, 2400), None);
        assert_eq!((d.refusing(at(3399)), d.refusing(at(3400))), (Vec::new(), Vec::from([DEV])));
        // Neither silence nor a new `watch` of the same incarnation makes it dead.
        assert_eq!(refused(&mut d, 9000), None);
        d.watch(at(9000), DEV, SdsId(1), LIFE);
        assert_eq!(refused(&mut d, 9001), None);
        // A dial succeeds: from now on a refusal is proof again.
        assert!(d.probe(DEV, 9500));
        d.answered(at(9500), 9500);
        assert_eq!((d.refusing(at(20_000)), refused(&mut d, 20_000)), (Vec::new(), dead));
        // So it is for the next incarnation.
        d.heard(at(21_000), DEV, LIFE);
        d.watch(at(21_000), DEV, SdsId(1), Incarnation(6));
        assert_eq!(refused(&mut d, 21_001).map(|v| v.dead), Some(true));
    }

    #[test]
    fn a_sign_of_life_withdraws_the_verdict() {
        let mut d = detector();
        let verdict = Verdict { device: DEV, incarnation: LIFE, dead: false };
        (400..=1000).step_by(200).for_each(|ms| drop(round(&mut d, ms)));
        assert!(d.still_silent(at(1000), &verdict));
        d.heard(at(1001), DEV, Incarnation(4));
        assert!(d.still_silent(at(1001), &verdict), "another life's sign");
        d.heard(at(1002), DEV, LIFE);
        assert!(!d.still_silent(at(1002), &verdict));
        let mut later = Vec::new();
        (1200..=2200).step_by(200).for_each(|ms| later.extend(round(&mut d, ms)));
        assert_eq!(later, [verdict], "watched again");
    }

    #[test]
    fn a_withdrawn_verdict_does_not_count_towards_the_limit() {
        let mut d = detector();
        let told: Vec<Verdict> =
            (200..=1000).step_by(200).flat_map(|ms| round(&mut d, ms)).collect();
        // The device is heard while its verdict waits for others.
        d.heard(at(1100), DEV, LIFE);
        assert!(!d.still_silent(at(1200), &told[0]));
        let mut later = Vec::new();
        for ms in (1200..4000).step_by(200) {
            d.heard(at(ms), DEV, LIFE);
            later.extend(d.silent(at(ms)).into_iter().map(|v| v.device));
        }
        assert_eq!((later, d.is_held_back()), (Vec::from([OTHER]), false));
    }
    #[test]
    fn a_removed_device_does_not_count_towards_the_limit() {
        // Two units: the first has another device, which lives.
        let mate = DeviceId(3);
        for removed in [false, true] {
            let mut d = detector();
            d.watch(at(0), mate, SdsId(1), LIFE);
            let mut told = Vec::new();
            for ms in (200..4000).step_by(200) {
                d.heard(at(ms), mate, LIFE);
                if ms <= 1000 {
                    d.heard(at(ms), OTHER, LIFE);
                }
                told.extend(d.silent(at(ms)).into_iter().map(|v| v.device));
                if removed && ms == 1000 {
                    d.forget(DEV);
                }
            }
            let both = if removed { Vec::from([DEV, OTHER]) } else { Vec::from([DEV]) };
            assert_eq!(told, both);
        }
    }
}
