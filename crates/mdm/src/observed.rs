//! Reports that an MDM has heard from devices and clients. They are not part of the state: every
//! MDM has its own, and begins with none.

use crate::quarantine::Quarantine;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use base::{DeviceId, GroupId, Limits, MapVersion, SdcId, Time, VolumeId};
use core::time::Duration;
use wire::control::{BuildInfo, Heartbeat};

/// Time over which the resync rate is measured.
const WINDOW: Duration = Duration::from_secs(3);

/// A process without a heartbeat for this time, at least, is not heard any more.
const SILENT: Duration = Duration::from_secs(3);

/// Reports of one process that this MDM has heard since its own start.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// True while it has a session.
    pub connected: bool,
    /// Its last heartbeat.
    pub heartbeat: Option<Heartbeat>,
    /// The build of its process.
    pub build: Option<BuildInfo>,
    /// Its record of departures and returns.
    pub quarantine: Quarantine,
    /// The newest map that this incarnation has reported to have taken over.
    pub map: MapVersion,
    /// Groups of which this device never had a whole copy, by the report of this incarnation.
    partial: Option<BTreeSet<GroupId>>,
    /// The content that it had, and how many records of its log were durable then.
    settled: (u64, u64),
    /// Bytes copied, as reported, in the last seconds.
    moved: VecDeque<(Time, u64)>,
}

impl Seen {
    /// Begins a session of a client, which is heard by that.
    pub fn came(&mut self, build: Option<BuildInfo>) {
        (self.connected, self.build) = (true, build);
        self.moved.clear();
    }

    /// Takes in a heartbeat.
    pub fn beat(&mut self, now: Time, mut heartbeat: Heartbeat) {
        if heartbeat.counts.is_none() {
            heartbeat.counts = self.heartbeat.take().and_then(|before| before.counts);
        }
        self.partial = Some(heartbeat.partial.iter().map(|group| GroupId(*group)).collect());
        let moved = heartbeat.resync_moved;
        if self.moved.back().is_some_and(|(_, before)| *before > moved) {
            self.moved.clear(); // the process was restarted
        }
        self.moved.push_back((now, moved));
        while self.moved.len() > 2
            && (now.since(self.moved[1].0) >= WINDOW || self.moved.len() > 64)
        {
            self.moved.pop_front();
        }
        self.heartbeat = Some(heartbeat);
    }

    /// Records that the first `records` records of the device's log are durable. `store` identifies
    /// its content.
    pub fn has_settled(&mut self, store: u64, records: u64) {
        let before = if self.settled.0 == store { self.settled.1 } else { 0 };
        self.settled = (store, before.max(records));
    }

    /// Returns how many records of its log are known to have been durable while it had this
    /// content.
    pub fn settled(&self, store: u64) -> u64 {
        if self.settled.0 == store { self.settled.1 } else { 0 }
    }

    /// Begins a new incarnation: earlier reports tell neither its counters nor its map.
    pub fn born(&mut self) {
        self.map = MapVersion(0);
        self.partial = None;
        if let Some(beat) = &mut self.heartbeat {
            *beat = Heartbeat { used: beat.used, ..Heartbeat::default() };
        }
    }

    /// Returns true if the process has a session, and was heard lately. One that hangs keeps its
    /// session.
    pub fn is_heard(&self, now: Time, limits: &Limits) -> bool {
        let silent = (limits.suspect_after * 3).max(SILENT);
        self.connected && self.moved.back().is_none_or(|(at, _)| now.since(*at) < silent)
    }

    /// Returns the bytes per second copied lately.
    pub(crate) fn rate(&self, now: Time) -> u64 {
        let (Some((from, before)), Some((_, after))) = (self.moved.front(), self.moved.back())
        else {
            return 0;
        };
        let millis = now.since(*from).as_millis().max(1000) as u64;
        if now.since(*from) > WINDOW * 2 {
            0
        } else {
            (after - before).saturating_mul(1000) / millis
        }
    }
}

/// Reports of all devices and clients that this MDM has heard.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// By device.
    pub devices: BTreeMap<DeviceId, Seen>,
    /// By client.
    pub sdcs: BTreeMap<SdcId, Seen>,
    /// Devices that the other servers do not reach.
    pub cut_off: BTreeSet<DeviceId>,
    /// Pairs of a device and another one that it has not reached for
    /// [`base::Limits::rebuild_after`], although the MDM hears both.
    pub parted: BTreeSet<(DeviceId, DeviceId)>,
}

impl Observed {
    /// Returns true if the primary `leader` can't bring this device up to date: the device is cut
    /// off from all, or the path between them is broken.
    pub fn is_out_of_reach(&self, leader: Option<DeviceId>, device: DeviceId) -> bool {
        self.cut_off.contains(&device) || self.is_parted(leader, device)
    }

    /// Returns true if the path between the primary `leader` and this device is broken.
    pub fn is_parted(&self, leader: Option<DeviceId>, device: DeviceId) -> bool {
        leader.is_some_and(|leader| self.parted.contains(&(leader, device)))
    }

    /// Returns how long this device is still held out because it came and went too often.
    pub fn quarantine(&self, device: DeviceId, now: Time) -> Duration {
        self.devices.get(&device).map_or(Duration::ZERO, |seen| seen.quarantine.remaining(now))
    }

    /// Returns true if this device takes part in nothing now: it is held out, or the other servers
    /// do not reach it.
    pub fn is_out(&self, device: DeviceId, now: Time) -> bool {
        self.cut_off.contains(&device) || self.quarantine(device, now) > Duration::ZERO
    }

    /// Returns true if the present incarnation of this device has reported that its copy of this
    /// group was whole once.
    pub fn was_whole(&self, device: DeviceId, group: GroupId) -> bool {
        let partial = self.devices.get(&device).and_then(|seen| seen.partial.as_ref());
        partial.is_some_and(|partial| !partial.contains(&group))
    }

    /// Returns the bytes that a device had in use when it was last heard.
    pub fn used(&self, device: DeviceId) -> u64 {
        let beat = self.devices.get(&device).and_then(|s| s.heartbeat.as_ref());
        beat.map_or(0, |beat| beat.used)
    }

    /// Returns the connected clients that have the volume attached.
    pub fn attached(&self, volume: VolumeId) -> Vec<SdcId> {
        let has = |s: &Seen| {
            let beat = s.heartbeat.as_ref().filter(|_| s.connected);
            beat.is_some_and(|beat| beat.attached.contains(&volume.0))
        };
        self.sdcs.iter().filter(|(_, seen)| has(seen)).map(|(sdc, _)| *sdc).collect()
    }
}
