//! Finds devices that are so slow that the cluster is better off without them (rule R12): a disk
//! that retries, a link that loses packets, a host without processor time. Nothing fails, and every
//! write waits for the device.
//!
//! Servers report devices that take long: their own by their operations, others by the time from a
//! beacon to its grant. A device's report about itself suffices. Reports of others count only if
//! most of the primaries that send it beacons agree, and at least two of them: a device that is
//! slow itself finds all others slow.
//!
//! A device is slow if it is constantly slower than the others of its pool. A pool that is
//! overloaded as a whole has no slow devices. A slow device is ejected only if no group needs it
//! and it neither makes nor gets copies (they are work that the MDM gave it). At most one fault
//! unit is out at a time in small domains, a fifth in large ones.
//!
//! There is one exception: a device that reports that none of its operations has ended for
//! `slow_for` is ejected even if it makes or gets copies, because it makes no progress with them.
//! The latency of operations shows such a stall later: it includes the time in the queue, which
//! copies make long. So only a latency of several `slow_for` proves that one operation hangs while
//! others end.

use crate::maintenance;
use crate::observed::Observed;
use crate::state::{Device, State};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use base::mutant::{self, Mutant};
use base::{DeviceId, Duration, Limits, SdsId, Time};
use wire::control::Intent;

/// A device is slow when it takes this many times as long as the others.
const TIMES: u32 = 4;
/// One operation may take this many times `slow_for` while copies are made and other operations
/// end.
const HANGS: u32 = 3;
/// A finding stays valid for this many heartbeats without a new report.
const LASTS: u32 = 10;

/// The devices that are slow.
#[derive(Debug, Default)]
pub struct Slowness {
    /// For each slow device: since when it has been slow, and when it was last found slow.
    slow: BTreeMap<DeviceId, (Time, Time)>,
    due: Option<Time>,
}

/// Returns the latency of devices, as reported by most of the devices that can measure it. Devices
/// not listed were fast.
pub fn delays(state: &State, seen: &Observed) -> BTreeMap<DeviceId, Duration> {
    let mut told: BTreeMap<DeviceId, BTreeMap<DeviceId, Duration>> = BTreeMap::new();
    for (by, seen) in seen.devices.iter().filter(|(_, s)| s.connected) {
        for slow in seen.heartbeat.iter().flat_map(|beat| &beat.slow) {
            let took = Duration::from_millis(slow.ms.into());
            told.entry(DeviceId(slow.device)).or_default().insert(*by, took);
        }
    }
    let delay = |(device, told): (DeviceId, BTreeMap<DeviceId, Duration>)| {
        let own = told.get(&device).copied();
        let asks = |g: &base::GroupId| state.groups[g].primary.filter(|p| *p != device);
        let ask: BTreeSet<DeviceId> = state.groups_of(device).iter().filter_map(asks).collect();
        let words = ask.iter().filter_map(|by| told.get(by));
        let (least, words) = (words.clone().min().copied(), words.count());
        let proven = words >= 2 && words * 2 > ask.len() || mutant::on(Mutant::TrustOneWord);
        let delay = own.max(least.filter(|_| proven))?;
        Some((device, delay))
    };
    told.into_iter().filter_map(delay).collect()
}

/// Returns true for a device that reports that none of its operations has ended for `long`.
fn is_stalled(device: DeviceId, seen: &Observed, long: Duration) -> bool {
    let beat = seen.devices.get(&device).filter(|s| s.connected).and_then(|s| s.heartbeat.as_ref());
    let own = beat.and_then(|beat| beat.slow.iter().find(|slow| slow.device == device.0));
    own.is_some_and(|own| Duration::from_millis(own.stands_ms.into()) >= long)
}

impl Slowness {
    /// Schedules a check, because a heartbeat has reported a slow device.
    pub fn hurry(&mut self, now: Time) {
        self.due = Some(self.due.map_or(now, |due| due.min(now)));
    }

    /// Returns when [`Slowness::look`] has something to do.
    pub fn wake_at(&self) -> Option<Time> {
        self.due
    }

    /// Returns the devices of one fault unit that are to be ejected now, each with the time that it
    /// takes.
    pub fn look(
        &mut self,
        now: Time,
        state: &State,
        seen: &Observed,
        limits: &Limits,
    ) -> Vec<(DeviceId, Duration)> {
        if self.due.is_none_or(|due| now < due) {
            return Vec::new();
        }
        let delays = delays(state, seen);
        let held = |d: &DeviceId| seen.is_out(*d, now);
        let slow = delays.keys().filter(|d| !held(d) && is_slow(**d, &delays, state, limits));
        for device in slow {
            self.slow.entry(*device).or_insert((now, now)).1 = now;
        }
        let lasts = limits.heartbeat_every * LASTS;
        self.slow.retain(|_, (_, last)| now.since(*last) < lasts);
        self.due = (!self.slow.is_empty()).then(|| now + limits.heartbeat_every);
        let proven = |(_, (since, last)): &(&DeviceId, &(Time, Time))| {
            *last == now && now.since(*since) >= limits.slow_for
        };
        let mut units: BTreeMap<SdsId, BTreeSet<DeviceId>> = BTreeMap::new();
        for (device, _) in self.slow.iter().filter(proven) {
            if let Some(unit) = state.unit_of(*device) {
                units.entry(unit).or_default().insert(*device);
            }
        }
        let works = |d: &DeviceId| {
            !is_stalled(*d, seen, limits.slow_for) && delays[d] < limits.slow_for * HANGS
        };
        let copies = |d: &DeviceId| works(d) && has_copies(*d, state);
        let may = |devices: &BTreeSet<DeviceId>| {
            !devices.iter().any(copies) && can_do_without(devices, now, state, seen)
        };
        let ends = units.into_values().find(may);
        let ends = ends.into_iter().flatten();
        ends.map(|device| {
            self.slow.remove(&device);
            (device, delays[&device])
        })
        .collect()
    }
}

/// Returns true if the device's latency is high, and many times that of most of its pool.
fn is_slow(
    device: DeviceId,
    delays: &BTreeMap<DeviceId, Duration>,
    state: &State,
    limits: &Limits,
) -> bool {
    let (delay, pool) = (delays[&device], state.devices.get(&device).map(|d| d.pool));
    let compares = |d: &Device| d.up && Some(d.pool) == pool && d.intent != Intent::Waiting;
    let others = state.devices.iter().filter(|(id, d)| **id != device && compares(d));
    let mut others: Vec<Duration> =
        others.map(|(id, _)| delays.get(id).copied().unwrap_or_default()).collect();
    others.sort_unstable();
    let usual = others.get(others.len() / 2).copied().unwrap_or(delay);
    delay >= limits.slow && delay >= usual * TIMES
}

/// Returns true if the device makes or gets copies. A group without a primary makes none.
fn has_copies(device: DeviceId, state: &State) -> bool {
    let of = |g: &crate::group::Group| {
        let gets = g.newcomer() == Some(device) || g.joiners.contains(&device);
        let makes = g.primary == Some(device) && !g.joiners.is_empty();
        g.primary.is_some() && gets || makes
    };
    state.groups_of(device).iter().any(|g| of(&state.groups[g]))
}

/// Returns true if all groups are served without these devices, and not too many units are out
/// already.
fn can_do_without(devices: &BTreeSet<DeviceId>, now: Time, state: &State, seen: &Observed) -> bool {
    let normal =
        |d: &DeviceId| state.devices.get(d).is_some_and(|d| d.up && d.intent == Intent::Normal);
    if !devices.iter().all(normal) || maintenance::only_on(state, devices) > 0 {
        return false;
    }
    let Some(unit) = devices.first().and_then(|d| state.unit_of(*d)) else { return false };
    let domain = state.domain_of(unit);
    let (mut all, mut out) = (BTreeSet::from([unit]), BTreeSet::new());
    for (id, d) in state.devices.iter().filter(|(_, d)| d.intent.counts()) {
        if state.domain_of(d.sds) == domain && state.unit(d.sds) != unit {
            all.insert(state.unit(d.sds));
            if !d.up || seen.is_out(*id, now) {
                out.insert(state.unit(d.sds));
            }
        }
    }
    out.len() < (all.len() / 5).max(1)
}
