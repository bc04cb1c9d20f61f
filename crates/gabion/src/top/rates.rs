//! Rates per second, computed from the counters of two reports and the time between them.
//!
//! Counters start at 0 with each process, so a counter that went down belongs to a new process.

use super::volumes::{Lately, VolumeRates};
use admin::report::{Device, Report, State, UpDown};
use anyhow::Result;
use daemon::size::Size;
use serde::Serialize;
use std::collections::VecDeque;
use std::time::Instant;

/// Number of samples kept for curves.
const KEPT: usize = 600;

/// Client I/O per second.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize)]
pub(crate) struct Rates {
    #[serde(rename = "reads_per_second")]
    pub reads: f64,
    #[serde(rename = "read_bytes_per_second")]
    pub read_bytes: f64,
    #[serde(rename = "writes_per_second")]
    pub writes: f64,
    #[serde(rename = "written_bytes_per_second")]
    pub written_bytes: f64,
}

/// Bytes to copy to replicas that are out of date.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize)]
pub(crate) struct Resync {
    pub remaining_bytes: u64,
    pub bytes_per_second: u64,
    /// `None` when nothing is left, or nothing moves.
    pub eta_seconds: Option<u64>,
}

/// One server.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Server {
    pub name: String,
    pub state: UpDown,
    #[serde(flatten)]
    pub rates: Rates,
    pub used_bytes: u64,
    pub capacity_bytes: u64,
    pub groups_led: u32,
    pub groups: u32,
    pub resync_remaining_bytes: u64,
}

/// The cluster's state and rates in one sample.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Seen {
    pub state: State,
    pub groups_degraded: u32,
    pub groups_failed: u32,
    /// Rates of the whole cluster.
    #[serde(flatten)]
    pub rates: Rates,
    pub resync: Resync,
    pub protected_bytes: u64,
    pub degraded_bytes: u64,
    pub failed_bytes: u64,
    pub capacity_bytes: u64,
    pub servers: Vec<Server>,
    pub volumes: Vec<VolumeRates>,
}

/// One sample.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Sample {
    /// Time since the beginning.
    pub seconds: f64,
    /// `None` when no MDM answered.
    #[serde(flatten)]
    pub seen: Option<Seen>,
    /// Why no MDM answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The samples so far.
pub(crate) struct History {
    begin: Instant,
    /// The last answer, and the time when it came.
    pub last: (Instant, Report),
    pub samples: VecDeque<Sample>,
    lately: Lately,
}

impl History {
    /// Starts with a first answer, which is not a sample yet.
    pub(crate) fn new(now: Instant, first: Report) -> History {
        History {
            begin: now,
            last: (now, first),
            samples: VecDeque::new(),
            lately: Lately::default(),
        }
    }

    /// Makes a sample from an answer.
    pub(crate) fn take(&mut self, now: Instant, answer: Result<Report>) -> Sample {
        let seconds = now.duration_since(self.begin).as_secs_f64();
        let sample = match answer {
            Ok(report) => {
                let passed = now.duration_since(self.last.0).as_secs_f64().max(1e-3);
                let volumes = self.lately.take(&self.last.1, &report);
                let seen = seen(&self.last.1, &report, passed, volumes);
                self.last = (now, report);
                Sample { seconds, seen: Some(seen), error: None }
            }
            Err(why) => Sample { seconds, seen: None, error: Some(format!("{why:#}")) },
        };
        if self.samples.len() == KEPT {
            self.samples.pop_front();
        }
        self.samples.push_back(sample.clone());
        sample
    }
}

impl std::ops::AddAssign for Rates {
    fn add_assign(&mut self, other: Rates) {
        self.reads += other.reads;
        self.read_bytes += other.read_bytes;
        self.writes += other.writes;
        self.written_bytes += other.written_bytes;
    }
}

impl std::fmt::Display for Resync {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} left", Size(self.remaining_bytes))?;
        match self.eta_seconds {
            Some(eta) => {
                let eta = humantime::format_duration(std::time::Duration::from_secs(eta));
                write!(f, " at {}/s, {eta}", Size(self.bytes_per_second))
            }
            None => write!(f, ", not moving"),
        }
    }
}

fn seen(before: &Report, now: &Report, passed: f64, volumes: Vec<VolumeRates>) -> Seen {
    let old = |id: u32| before.sds.iter().flat_map(|s| &s.devices).find(|d| d.id == id);
    let mut all = Rates::default();
    let mut servers = Vec::new();
    for sds in &now.sds {
        let mut rates = Rates::default();
        for device in &sds.devices {
            rates += difference(old(device.id), device, passed);
        }
        all += rates;
        servers.push(Server {
            name: sds.name.clone(),
            state: sds.state,
            rates,
            used_bytes: sds.used_bytes,
            capacity_bytes: sds.capacity_bytes,
            groups_led: sds.devices.iter().map(|d| d.groups_led).sum(),
            groups: sds.devices.iter().map(|d| d.groups).sum(),
            resync_remaining_bytes: sds.devices.iter().map(|d| d.resync_remaining_bytes).sum(),
        });
    }
    let (left, rate) = (now.resync.remaining_bytes, now.resync.rate_bytes_per_second);
    Seen {
        state: now.state,
        groups_degraded: now.groups.degraded,
        groups_failed: now.groups.failed,
        rates: all,
        resync: Resync {
            remaining_bytes: left,
            bytes_per_second: rate,
            eta_seconds: (left > 0 && rate > 0).then(|| left.div_ceil(rate)),
        },
        protected_bytes: now.capacity.protected_bytes,
        degraded_bytes: now.capacity.degraded_bytes,
        failed_bytes: now.capacity.failed_bytes,
        capacity_bytes: now.capacity.total_bytes,
        servers,
        volumes,
    }
}

/// Returns the rates of one device. They are 0 if it was not there before, or is down now.
fn difference(before: Option<&Device>, now: &Device, passed: f64) -> Rates {
    let Some(before) = before.filter(|_| now.state == UpDown::Up) else { return Rates::default() };
    let rate = |old: u64, new: u64| if new < old { new } else { new - old } as f64 / passed;
    Rates {
        reads: rate(before.reads, now.reads),
        read_bytes: rate(before.read_bytes, now.read_bytes),
        writes: rate(before.writes, now.writes),
        written_bytes: rate(before.written_bytes, now.written_bytes),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::time::Duration;
    use wire::control::{
        ClientCounts, DeviceInfo, DeviceStatus, Heartbeat, IoCounts, SdcStatus, StatusInfo,
        TimeCounts, VolumeCounts, VolumeStatus,
    };

    /// A report of three servers and a client whose counters have this value. The client has
    /// counted at this time, in ms.
    pub(crate) fn report_of(count: u64, at_ms: u64) -> Report {
        let counts = IoCounts {
            reads: count,
            read_bytes: count * 4096,
            writes: count / 2,
            written_bytes: count * 2048,
            outstanding: 3,
            // From 48 to 52 µs.
            read_times: Some(TimeCounts { total_us: count * 50, ranges: vec![28, count] }),
            ..Default::default()
        };
        let counts = ClientCounts {
            at_ms,
            volumes: vec![VolumeCounts { volume: 1, counts: Some(counts) }],
            ..Default::default()
        };
        let device = |id: u32| DeviceStatus {
            info: Some(DeviceInfo {
                id,
                sds: id,
                up: true,
                capacity: 1 << 30,
                ..Default::default()
            }),
            sds: format!("sds{id}"),
            heartbeat: Some(Heartbeat {
                reads: count,
                read_bytes: count * 4096,
                writes: count / 2,
                written_bytes: count * 2048,
                used: 1 << 29,
                ..Default::default()
            }),
            primaries: 4,
            replicas: 8,
            ..Default::default()
        };
        let info = StatusInfo {
            devices: (1..=3).map(device).collect(),
            groups: 12,
            bytes_capacity: 3 << 30,
            resync_remaining: 600 << 20,
            resync_rate: 60 << 20,
            volumes: vec![VolumeStatus { id: 1, name: "vol1".into(), ..Default::default() }],
            sdcs: vec![SdcStatus {
                id: 1,
                connected: true,
                counts: Some(counts),
                ..Default::default()
            }],
            ..Default::default()
        };
        Report::new(&info, "127.0.0.1:7001".parse().unwrap())
    }

    /// The same, counted at once.
    pub(crate) fn report(count: u64) -> Report {
        report_of(count, 1000)
    }

    #[test]
    fn counters_become_rates_and_new_processes_begin_at_nothing() {
        let begin = Instant::now();
        let mut history = History::new(begin, report(1000));
        let sample = history.take(begin + Duration::from_secs(2), Ok(report(1200)));
        let seen = sample.seen.unwrap();
        assert_eq!((seen.rates.reads, seen.rates.writes), (300.0, 150.0));
        assert_eq!(seen.servers[1].rates.read_bytes, 100.0 * 4096.0);
        assert_eq!(seen.resync.eta_seconds, Some(10));
        let sample = history.take(begin + Duration::from_secs(3), Ok(report(50)));
        assert_eq!(sample.seen.unwrap().rates.reads, 150.0);
    }

    #[test]
    fn an_mdm_that_does_not_answer_leaves_a_gap_and_no_wrong_rate() {
        let begin = Instant::now();
        let mut history = History::new(begin, report(0));
        let sample = history.take(begin + Duration::from_secs(1), Err(anyhow::anyhow!("gone")));
        assert_eq!((sample.seen, sample.error.as_deref()), (None, Some("gone")));
        let sample = history.take(begin + Duration::from_secs(10), Ok(report(1000)));
        assert_eq!(sample.seen.unwrap().rates.reads, 300.0);
    }
}
