//! Rates and latencies of volumes, computed from the counts of their data clients.
//!
//! A client reports its counts from time to time, with the time at which they were taken. So a rate
//! covers the time between a client's last two reports, and stays until the next report.

use super::rates::Rates;
use admin::report::{Client, Latency, Report, Sdc, Volume};
use serde::Serialize;
use std::collections::BTreeMap;

/// One volume.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct VolumeRates {
    pub name: String,
    #[serde(flatten)]
    pub rates: Rates,
    /// Mean and 99th percentile of the requests that were counted; `None` if there were none.
    pub read_mean_us: Option<f64>,
    pub read_p99_us: Option<f64>,
    pub write_mean_us: Option<f64>,
    pub write_p99_us: Option<f64>,
    /// Requests that are not answered now.
    pub outstanding: u32,
}

/// What a client has counted of a volume between two times.
#[derive(Clone, Default)]
struct Passed {
    rates: Rates,
    reads: Latency,
    writes: Latency,
}

/// What all clients have counted lately, by the ids of volume and client.
#[derive(Default)]
pub(crate) struct Lately(BTreeMap<(u32, u32), Passed>);

impl Lately {
    /// Takes an answer of the MDM, which follows another one. Returns the volumes.
    pub(crate) fn take(&mut self, before: &Report, now: &Report) -> Vec<VolumeRates> {
        let mut passed = BTreeMap::new();
        let volumes = now.volumes.iter().map(|volume| {
            let mut rates = Rates::default();
            let (mut reads, mut writes) = (Latency::default(), Latency::default());
            for client in &volume.clients {
                let key = (volume.id, client.id);
                let one = difference(earlier(before, now, volume, client), client)
                    .or_else(|| self.0.remove(&key))
                    .unwrap_or_default();
                rates += one.rates;
                (reads, writes) = (reads.plus(&one.reads), writes.plus(&one.writes));
                passed.insert(key, one);
            }
            VolumeRates {
                name: volume.name.clone(),
                rates,
                read_mean_us: reads.mean_us,
                read_p99_us: reads.p99_us,
                write_mean_us: writes.mean_us,
                write_p99_us: writes.p99_us,
                outstanding: volume.io.outstanding,
            }
        });
        let volumes = volumes.collect();
        self.0 = passed;
        volumes
    }
}

/// Returns the earlier counts of the same process.
fn earlier<'a>(
    before: &'a Report,
    now: &Report,
    volume: &Volume,
    client: &Client,
) -> Option<&'a Client> {
    let process = |report: &Report| {
        let of = |sdc: &&Sdc| sdc.id == client.id;
        report.sdc.iter().find(of).map(|sdc| sdc.pid)
    };
    if process(before) != process(now) {
        return None;
    }
    let volume = before.volumes.iter().find(|old| old.id == volume.id)?;
    volume.clients.iter().find(|old| old.id == client.id)
}

/// Returns what was counted between these times; `None` if the counts are the same ones.
fn difference(before: Option<&Client>, now: &Client) -> Option<Passed> {
    let before = before.filter(|before| before.counted_ms <= now.counted_ms)?;
    let seconds = (now.counted_ms - before.counted_ms) as f64 / 1000.0;
    if seconds == 0.0 {
        return None;
    }
    let (before, now) = (&before.io, &now.io);
    let rate = |old: u64, new: u64| new.saturating_sub(old) as f64 / seconds;
    Some(Passed {
        rates: Rates {
            reads: rate(before.reads, now.reads),
            read_bytes: rate(before.read_bytes, now.read_bytes),
            writes: rate(before.writes, now.writes),
            written_bytes: rate(before.written_bytes, now.written_bytes),
        },
        reads: now.read_latency.since(&before.read_latency),
        writes: now.write_latency.since(&before.write_latency),
    })
}

#[cfg(test)]
mod tests {
    use super::super::rates::tests::{report, report_of};
    use super::*;

    fn one(lately: &mut Lately, before: &Report, now: &Report) -> VolumeRates {
        lately.take(before, now).remove(0)
    }

    #[test]
    fn a_rate_is_that_of_the_time_between_two_counts_and_stays_until_new_ones_come() {
        let mut lately = Lately::default();
        let first = one(&mut lately, &report_of(100, 1000), &report_of(300, 1400));
        assert_eq!((first.rates.reads, first.rates.read_bytes), (500.0, 500.0 * 4096.0));
        assert_eq!((first.rates.writes, first.outstanding), (250.0, 3));
        assert_eq!((first.read_mean_us, first.write_mean_us), (Some(50.0), None));
        let p99 = first.read_p99_us.unwrap();
        assert!((48.0..=52.0).contains(&p99), "{p99}");
        assert_eq!(one(&mut lately, &report_of(300, 1400), &report_of(300, 1400)), first);
        let idle = one(&mut lately, &report_of(300, 1400), &report_of(300, 1600));
        assert_eq!((idle.rates, idle.read_p99_us), (Rates::default(), None));
    }

    #[test]
    fn a_new_process_begins_without_a_rate() {
        let (mut lately, before, mut now) =
            (Lately::default(), report_of(300, 1400), report_of(500, 1600));
        now.sdc[0].pid += 1;
        assert_eq!(one(&mut lately, &before, &now).rates, Rates::default());
        assert_eq!(one(&mut lately, &now, &report(0)).rates, Rates::default());
    }
}
