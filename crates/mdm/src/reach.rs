//! Finds servers that the other servers cannot reach, although the MDM hears them (rule R12).
//!
//! Primaries report which devices they cannot reach. A broken path is broken for both of its ends.
//! So each report is a line between two devices, and between their servers, no matter which end
//! sent it. If one server is cut off, all lines meet there: it has lines to several servers, and
//! each of those has fewer. Then *its* devices that have lines are taken out, and not the devices
//! that they report.
//!
//! Nothing is decided about a line before all other devices have had time to report theirs. A
//! server is not called cut off if it has a line to one other server only, or to servers that have
//! as many lines: there, one report stands against the other, and the suspicion of the group's
//! primary counts. This is always so in a cluster of two servers.

use crate::detector::loss_limit;
use crate::state::State;
use alloc::collections::{BTreeMap, BTreeSet};
use base::mutant::{self, Mutant};
use base::{DeviceId, DomainId, Duration, Limits, SdsId, Time};

/// A report counts for this many heartbeats. A device repeats it with each heartbeat while it
/// lasts.
const LASTS: u32 = 5;
/// The most devices in one report: more than a device shares groups with.
const NAMED: usize = 1024;

/// The reports of one device.
#[derive(Debug, Default)]
struct Reports {
    /// When it reported last.
    last: Time,
    /// The devices that it cannot reach, and since when it reports them.
    since: BTreeMap<DeviceId, Time>,
}

/// Reports of all devices, and the devices that are cut off by them.
#[derive(Debug, Default)]
pub struct Reach {
    reports: BTreeMap<DeviceId, Reports>,
    /// Devices that count as cut off, and until when, unless they are found again.
    cut_off: BTreeMap<DeviceId, Time>,
    /// Pairs of a device and another one that it has not reached for [`Limits::rebuild_after`], and
    /// until when they count.
    parted: BTreeMap<(DeviceId, DeviceId), Time>,
    due: Option<Time>,
    /// When [`Reach::look`] last examined the reports.
    looked: Time,
}

/// Returns how long a line has to be reported before it counts. By then, all other devices have
/// reported theirs. Their last beacons may have been answered one beacon interval later. The clocks
/// by which they count the silence may be a fifth slower. And they report with their next
/// heartbeats.
pub fn patience(limits: &Limits) -> Duration {
    limits.beacon_every + limits.unreached_after() / 5 + limits.heartbeat_every
}

impl Reach {
    /// Records a report of all devices that this device cannot reach now.
    pub fn report(&mut self, now: Time, by: DeviceId, unreached: &[u32], limits: &Limits) {
        if unreached.is_empty() && !self.reports.contains_key(&by) {
            return;
        }
        let report = self.reports.entry(by).or_default();
        report.last = now;
        let named = unreached.iter().take(NAMED).map(|d| DeviceId(*d));
        let named: BTreeSet<DeviceId> = named.filter(|d| *d != by).collect();
        report.since.retain(|device, _| named.contains(device));
        for device in named {
            report.since.entry(device).or_insert(now);
        }
        let due = now + limits.heartbeat_every / 2;
        self.due = Some(self.due.map_or(due, |at| at.min(due)));
    }

    /// Returns when [`Reach::look`] has something to do.
    pub fn wake_at(&self) -> Option<Time> {
        self.due
    }

    /// Records that one device answers another one: neither is cut off.
    pub fn reached(&mut self, now: Time, by: DeviceId, device: DeviceId) {
        self.parted.remove(&(by, device));
        for end in [by, device] {
            if let Some(until) = self.cut_off.get_mut(&end) {
                *until = now;
                self.due = Some(now);
            }
        }
    }

    /// Returns true if the report that `by` cannot reach the device counts: at the last look, it
    /// had been repeated for long enough, and `by` was not cut off, unless the device was, too.
    pub fn counts(&self, by: DeviceId, device: DeviceId, limits: &Limits) -> bool {
        if mutant::on(Mutant::BelieveAccuser) {
            return true;
        }
        let since = self.reports.get(&by).and_then(|report| report.since.get(&device));
        let old = since.is_none_or(|since| self.looked.since(*since) >= patience(limits));
        old && (!self.cut_off.contains_key(&by) || self.cut_off.contains_key(&device))
    }

    /// Returns the devices that are cut off now; `None` before [`Reach::wake_at`], when there is
    /// nothing to examine.
    ///
    /// For a moment, no primary sends anything to a device that was taken out; after that, it takes
    /// as long as before until the primaries report again that they cannot reach it. For all this
    /// time it counts as cut off, unless some device reaches it. The same holds for
    /// [`Reach::parted`]: the reports end when a group gets another replica in the place of the one
    /// that its primary does not reach.
    pub fn look(
        &mut self,
        now: Time,
        state: &State,
        limits: &Limits,
    ) -> Option<BTreeSet<DeviceId>> {
        if self.due.is_none_or(|due| now < due) {
            return None;
        }
        self.looked = now;
        let lasts = limits.heartbeat_every * LASTS;
        self.reports.retain(|_, report| now.since(report.last) < lasts);
        let until = now + (limits.suspect_after + patience(limits)) * 2;
        let found = self.found(now, state, limits);
        self.cut_off.extend(found.into_iter().map(|device| (device, until)));
        self.cut_off.retain(|_, until| *until > now);
        let until =
            if mutant::on(Mutant::ForgetBrokenPath) { now + limits.heartbeat_every } else { until };
        self.parted.extend(unreached_for(&self.reports, now, limits).map(|pair| (pair, until)));
        self.parted.retain(|_, until| *until > now);
        let idle = self.reports.is_empty() && self.cut_off.is_empty() && self.parted.is_empty();
        self.due = (!idle).then(|| now + limits.heartbeat_every / 2);
        Some(self.cut_off.keys().copied().collect())
    }

    /// Returns the pairs of a reporting device and a device that it has not reached for
    /// [`Limits::rebuild_after`], as of the last look. Reports of devices that are cut off do not
    /// count: they cannot reach any other device either.
    pub fn parted(&self) -> BTreeSet<(DeviceId, DeviceId)> {
        let counts = |(by, _): &&(DeviceId, DeviceId)| !self.cut_off.contains_key(by);
        self.parted.keys().filter(counts).copied().collect()
    }

    fn found(&self, now: Time, state: &State, limits: &Limits) -> BTreeSet<DeviceId> {
        if mutant::on(Mutant::BelieveAccuser) {
            return BTreeSet::new();
        }
        let server = |d: DeviceId| state.devices.get(&d).filter(|d| d.up).map(|d| d.sds);
        // By both ends of each line: whether it was reported for long enough.
        let mut lines: BTreeMap<SdsId, BTreeMap<SdsId, bool>> = BTreeMap::new();
        let mut ends: BTreeSet<DeviceId> = BTreeSet::new();
        for (by, report) in &self.reports {
            for (device, since) in &report.since {
                let (Some(one), Some(other)) = (server(*by), server(*device)) else { continue };
                if one == other {
                    continue;
                }
                let old = now.since(*since) >= patience(limits);
                for (from, to) in [(one, other), (other, one)] {
                    *lines.entry(from).or_default().entry(to).or_default() |= old;
                }
                ends.extend([*by, *device]);
            }
        }
        let meet = |sds: &SdsId| {
            let here = &lines[sds];
            let fewer = here.keys().filter(|to| lines[*to].len() < here.len()).count();
            fewer > 1 && here.values().any(|old| *old)
        };
        let cut_off: BTreeSet<SdsId> = lines.keys().filter(|sds| meet(sds)).copied().collect();
        let is_there = |d: &DeviceId| server(*d).is_some_and(|sds| cut_off.contains(&sds));
        let found: BTreeSet<DeviceId> = ends.into_iter().filter(is_there).collect();
        self.believable(state, found)
    }

    /// Drops the devices in domains where more units are cut off than one accident explains. There
    /// the network is broken, and no device is taken out.
    fn believable(&self, state: &State, mut found: BTreeSet<DeviceId>) -> BTreeSet<DeviceId> {
        let place = |d: &DeviceId| {
            let unit = state.unit_of(*d)?;
            Some((state.domain_of(unit), unit))
        };
        let mut units: BTreeMap<DomainId, BTreeSet<SdsId>> = BTreeMap::new();
        for (domain, unit) in found.iter().filter_map(place) {
            units.entry(domain).or_default().insert(unit);
        }
        found.retain(|d| {
            let Some((domain, _)) = place(d) else { return false };
            units[&domain].len() <= loss_limit(state.units_beside(*d))
        });
        found
    }
}

/// Returns the pairs of a device and another one that it reports for [`Limits::rebuild_after`].
fn unreached_for(
    reports: &BTreeMap<DeviceId, Reports>,
    now: Time,
    limits: &Limits,
) -> impl Iterator<Item = (DeviceId, DeviceId)> {
    let long = move |(_, since): &(&DeviceId, &Time)| now.since(**since) >= limits.rebuild_after;
    reports.iter().flat_map(move |(by, report)| {
        report.since.iter().filter(long).map(|(device, _)| (*by, *device))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Command, DeviceUp, FormCluster};
    use alloc::vec::Vec;
    use wire::control::DeviceKind;

    const LIMITS: Limits = Limits::SHIPPED;

    fn ms(n: u64) -> Time {
        Time(n * 1_000_000)
    }

    /// Returns the state of a cluster with this many servers and devices per server: server 1 has
    /// the devices 1 to `devices`, and so on.
    fn cluster(servers: u32, devices: u32) -> State {
        let mut state = State::new();
        state.apply(1, &Command::FormCluster(FormCluster { cluster: 9 }));
        for id in 1..=servers * devices {
            let (sds, shard) = ((id - 1) / devices + 1, (id - 1) % devices);
            let up = DeviceUp {
                device: id,
                sds,
                name: alloc::format!("s{sds}"),
                shard,
                incarnation: u64::from(id),
                nonce: u64::from(id),
                store: u64::from(id),
                address: alloc::format!("10.0.0.{id}:1"),
                capacity: 1 << 30,
                kind: DeviceKind::Durable as i32,
                domain: 1,
                ..DeviceUp::default()
            };
            let outcome = state.apply(1 + u64::from(id), &Command::DeviceUp(up));
            assert_eq!(outcome, crate::Outcome::Changed);
        }
        state
    }

    /// Returns the devices that are found cut off after these have reported so with each heartbeat
    /// for long enough.
    fn found(state: &State, reports: &[(u32, &[u32])]) -> (Reach, Vec<u32>) {
        let mut reach = Reach::default();
        let mut found = BTreeSet::new();
        for at in (1000..2400).step_by(200) {
            for (by, unreached) in reports {
                reach.report(ms(at), DeviceId(*by), unreached, &LIMITS);
            }
            found = reach.look(ms(at + 100), state, &LIMITS).unwrap_or_default();
        }
        (reach, found.into_iter().map(|d| d.0).collect())
    }

    #[test]
    fn the_device_that_all_broken_paths_share_is_cut_off() {
        let four = cluster(4, 1);
        let told_by_all = [(1, &[2, 3, 4][..]), (2, &[1]), (3, &[1]), (4, &[1])];
        let (reach, cut) = found(&four, &told_by_all);
        assert_eq!(cut, [1]);
        assert!(!reach.counts(DeviceId(1), DeviceId(2), &LIMITS), "its report counts for nothing");
        assert!(reach.counts(DeviceId(2), DeviceId(1), &LIMITS));
        // It does not matter which end reports: a broken path is broken for both ends.
        assert_eq!(found(&four, &told_by_all[..1]).1, [1]);
        assert_eq!(found(&four, &told_by_all[1..3]).1, [1]);
        // Two are cut off, from each other as well.
        assert_eq!(found(&four, &[(1, &[2, 3, 4]), (2, &[1, 3, 4])]).1, [1, 2]);
    }

    #[test]
    fn when_reports_contradict_each_other_the_primary_s_counts() {
        let four = cluster(4, 1);
        // One broken path; two halves that cannot reach each other; no device reaches any other.
        let halves: [(u32, &[u32]); 4] = [(1, &[3, 4]), (2, &[3, 4]), (3, &[1, 2]), (4, &[1, 2])];
        let nobody: [(u32, &[u32]); 2] = [(1, &[2, 3]), (2, &[3])];
        for reports in [&[(1, &[2][..]), (2, &[1])][..], &halves, &nobody] {
            let (reach, cut) = found(&four, reports);
            assert_eq!(cut, [0; 0], "{reports:?}");
            let (by, unreached) = reports[0];
            assert!(reach.counts(DeviceId(by), DeviceId(unreached[0]), &LIMITS));
        }
        // The two devices of one server are on one path.
        assert_eq!(found(&cluster(2, 2), &[(1, &[3, 4]), (3, &[1, 2])]).1, [0; 0]);
        // Both devices of a server are cut off.
        let both: [(u32, &[u32]); 2] = [(1, &[3, 5]), (2, &[4, 6])];
        assert_eq!(found(&cluster(3, 2), &both).1, [1, 2]);
        // One of them shares groups with one server only.
        let both: [(u32, &[u32]); 3] = [(1, &[3]), (2, &[3, 5, 7]), (3, &[1, 2])];
        assert_eq!(found(&cluster(4, 2), &both).1, [1, 2]);
    }

    /// Lets device 1 report that it does not reach device 2, until the pair counts as parted.
    fn parted(state: &State) -> (Reach, Time) {
        let (mut reach, mut at) = (Reach::default(), ms(1000));
        let end = at + LIMITS.rebuild_after;
        while reach.parted().is_empty() {
            assert!(at < end);
            reach.report(at, DeviceId(1), &[2], &LIMITS);
            at = at + LIMITS.heartbeat_every;
            reach.look(at, state, &LIMITS);
        }
        assert_eq!(at, end);
        assert_eq!(reach.parted(), [(DeviceId(1), DeviceId(2))].into());
        (reach, at)
    }

    #[test]
    fn a_path_that_stays_broken_is_reported_but_not_by_a_device_that_is_cut_off() {
        let four = cluster(4, 1);
        let (mut reach, at) = parted(&four);
        reach.report(at, DeviceId(1), &[2, 3, 4], &LIMITS);
        reach.look(at + LIMITS.heartbeat_every, &four, &LIMITS);
        assert!(reach.parted().is_empty(), "device 1 is cut off");
    }

    #[test]
    fn a_broken_path_counts_for_a_while_after_its_reports_end() {
        let four = cluster(4, 1);
        let (mut reach, at) = parted(&four);
        // The group has another replica, so its primary has nothing to report any more.
        reach.report(at, DeviceId(1), &[], &LIMITS);
        let long = LIMITS.suspect_after + patience(&LIMITS);
        reach.look(at + long, &four, &LIMITS);
        assert_eq!(reach.parted().len(), 1);
        reach.look(at + long * 3, &four, &LIMITS);
        assert!(reach.parted().is_empty());
        assert_eq!(reach.wake_at(), None);
        // It ends at once when the device is reached.
        let (mut reach, at) = parted(&four);
        reach.reached(at, DeviceId(1), DeviceId(2));
        assert!(reach.parted().is_empty());
    }

    #[test]
    fn too_many_at_once_are_no_accident() {
        let twelve = cluster(12, 1);
        let rest: Vec<u32> = (4..=12).collect();
        let reports: Vec<(u32, &[u32])> = (1..=2).map(|by| (by, &rest[..])).collect();
        assert_eq!(found(&twelve, &reports).1, [1, 2]);
        let reports: Vec<(u32, &[u32])> = (1..=3).map(|by| (by, &rest[..])).collect();
        assert_eq!(found(&twelve, &reports).1, [0; 0]);
    }

    #[test]
    fn reports_count_after_all_had_time_to_report_and_end_when_one_reaches_the_device() {
        let four = cluster(4, 1);
        let mut reach = Reach::default();
        assert_eq!(reach.look(ms(1), &four, &LIMITS), None);
        reach.report(ms(1000), DeviceId(1), &[2, 3], &LIMITS);
        assert_eq!(reach.look(ms(1050), &four, &LIMITS), None, "there is nothing to look at yet");
        assert_eq!(reach.look(ms(1500), &four, &LIMITS), Some(BTreeSet::new()));
        assert!(!reach.counts(DeviceId(1), DeviceId(2), &LIMITS));
        reach.report(ms(1800), DeviceId(1), &[2, 3], &LIMITS);
        assert_eq!(reach.look(ms(1990), &four, &LIMITS), Some(BTreeSet::new()), "one may be slow");
        assert_eq!(reach.look(ms(2100), &four, &LIMITS), Some([DeviceId(1)].into()));
        // It is taken out, and no device sends to it: it counts as cut off for a while.
        reach.report(ms(2200), DeviceId(1), &[], &LIMITS);
        assert_eq!(reach.look(ms(4000), &four, &LIMITS), Some([DeviceId(1)].into()));
        reach.reached(ms(4001), DeviceId(3), DeviceId(1));
        assert_eq!(reach.look(ms(4001), &four, &LIMITS), Some(BTreeSet::new()));
        assert_eq!(reach.wake_at(), None, "and there is nothing to look at any more");
        // A device that stops reporting has no say.
        reach.report(ms(5000), DeviceId(1), &[2, 3], &LIMITS);
        assert_eq!(reach.look(ms(6000), &four, &LIMITS), Some(BTreeSet::new()));
    }
}
