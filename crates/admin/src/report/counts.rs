//! Counts of block requests, per volume, data client and path, as `status --json` publishes them.

use base::histogram::{RANGES, begin_us};
use base::{Duration, Histogram};
use serde::Serialize;
use wire::control::{IoCounts, SdcStatus, TimeCounts};

/// How long requests took, from their arrival at the data client to their answer.
#[derive(Clone, Default, PartialEq, Debug, Serialize)]
pub struct Latency {
    /// The mean; `None` if there were no requests.
    pub mean_us: Option<f64>,
    /// The median.
    pub p50_us: Option<f64>,
    /// The time within which 99 % of the requests were answered.
    pub p99_us: Option<f64>,
    /// The sum of the times.
    pub total_us: u64,
    /// The histogram: its ranges that are not empty.
    #[serde(serialize_with = "ranges")]
    pub histogram: Histogram,
}

/// A range of a histogram.
#[derive(Serialize)]
struct Range {
    from_us: u64,
    /// Where it ends; `None` for the last one.
    below_us: Option<u64>,
    count: u64,
}

/// Counts of requests that were answered.
#[derive(Clone, Default, PartialEq, Debug, Serialize)]
pub struct Io {
    /// Reads.
    pub reads: u64,
    /// Bytes of these.
    pub read_bytes: u64,
    /// Writes of data.
    pub writes: u64,
    /// Bytes of these.
    pub written_bytes: u64,
    /// Requests that make a range zero, discards included.
    pub zeroes: u64,
    /// Bytes of these.
    pub zeroed_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Queries for the ranges that hold data.
    pub extents: u64,
    /// Requests that ended with an error, or were given up.
    pub failed: u64,
    /// Outstanding requests.
    pub outstanding: u32,
    /// How long reads took.
    pub read_latency: Latency,
    /// How long writes of data took.
    pub write_latency: Latency,
}

/// Counts of one volume at one data client.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Client {
    /// The client's name.
    pub sdc: String,
    /// The client's id.
    #[serde(skip)]
    pub id: u32,
    /// The time of the counts, in milliseconds on a clock of the client's host.
    pub counted_ms: u64,
    /// The counts.
    #[serde(flatten)]
    pub io: Io,
}

/// Counts of one volume over one connection of a host.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Path {
    /// The data client that the connection goes through.
    pub sdc: String,
    /// Its number there, which is never used again while that process runs.
    pub id: u64,
    /// `nbd`, `iscsi` or `nvme`.
    pub protocol: String,
    /// The host's name: IQN or NQN. `None` if the protocol has no such name.
    pub host: Option<String>,
    /// The host's address; `None` for a unix socket.
    pub host_address: Option<String>,
    /// The address of the data client that the host dialled; `None` for a unix socket.
    pub portal: Option<String>,
    /// The counts since the connection was opened.
    #[serde(flatten)]
    pub io: Io,
}

fn ranges<S: serde::Serializer>(histogram: &Histogram, to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(histogram.ranges().map(|(range, count)| Range {
        from_us: begin_us(range),
        below_us: (range + 1 < RANGES).then(|| begin_us(range + 1)),
        count,
    }))
}

impl Latency {
    /// Creates the latency from a histogram, and the sum of the same times.
    pub fn new(total_us: u64, histogram: Histogram) -> Latency {
        let count = histogram.total();
        let us = |time: Duration| time.as_nanos() as f64 / 1000.0;
        Latency {
            mean_us: (count > 0).then(|| total_us as f64 / count as f64),
            p50_us: histogram.percentile(500).map(us),
            p99_us: histogram.percentile(990).map(us),
            total_us,
            histogram,
        }
    }

    /// Returns the latency since an earlier state.
    pub fn since(&self, earlier: &Latency) -> Latency {
        let total = self.total_us.saturating_sub(earlier.total_us);
        Latency::new(total, self.histogram.since(&earlier.histogram))
    }

    /// Returns the sum of both latencies.
    pub fn plus(&self, other: &Latency) -> Latency {
        let mut histogram = self.histogram.clone();
        histogram.merge(&other.histogram);
        Latency::new(self.total_us.saturating_add(other.total_us), histogram)
    }
}

impl From<&TimeCounts> for Latency {
    fn from(times: &TimeCounts) -> Latency {
        let mut histogram = Histogram::default();
        times.ranges().for_each(|(range, count)| histogram.add(range, count));
        Latency::new(times.total_us, histogram)
    }
}

impl From<&IoCounts> for Io {
    fn from(counts: &IoCounts) -> Io {
        let times = |of: &Option<TimeCounts>| of.as_ref().map_or_else(Latency::default, Into::into);
        Io {
            reads: counts.reads,
            read_bytes: counts.read_bytes,
            writes: counts.writes,
            written_bytes: counts.written_bytes,
            zeroes: counts.zeroes,
            zeroed_bytes: counts.zeroed_bytes,
            flushes: counts.flushes,
            extents: counts.extents,
            failed: counts.failed,
            outstanding: counts.outstanding,
            read_latency: times(&counts.read_times),
            write_latency: times(&counts.write_times),
        }
    }
}

impl Io {
    /// Returns the sum of these counts.
    pub fn sum<'a>(all: impl Iterator<Item = &'a Io>) -> Io {
        all.fold(Io::default(), |sum, io| Io {
            reads: sum.reads.saturating_add(io.reads),
            read_bytes: sum.read_bytes.saturating_add(io.read_bytes),
            writes: sum.writes.saturating_add(io.writes),
            written_bytes: sum.written_bytes.saturating_add(io.written_bytes),
            zeroes: sum.zeroes.saturating_add(io.zeroes),
            zeroed_bytes: sum.zeroed_bytes.saturating_add(io.zeroed_bytes),
            flushes: sum.flushes.saturating_add(io.flushes),
            extents: sum.extents.saturating_add(io.extents),
            failed: sum.failed.saturating_add(io.failed),
            outstanding: sum.outstanding.saturating_add(io.outstanding),
            read_latency: sum.read_latency.plus(&io.read_latency),
            write_latency: sum.write_latency.plus(&io.write_latency),
        })
    }
}

/// Returns the counts of a volume at each data client that is up, and its paths.
pub(super) fn of_volume(volume: u32, sdcs: &[SdcStatus]) -> (Vec<Client>, Vec<Path>) {
    let (mut clients, mut paths) = (Vec::new(), Vec::new());
    let up = sdcs.iter().filter(|sdc| sdc.connected);
    for (counts, sdc) in up.filter_map(|sdc| Some((sdc.counts.as_ref()?, sdc))) {
        for of in counts.volumes.iter().filter(|of| of.volume == volume) {
            clients.push(Client {
                sdc: sdc.name.clone(),
                id: sdc.id,
                counted_ms: counts.at_ms,
                io: of.counts.as_ref().map_or_else(Io::default, Io::from),
            });
        }
        let given = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        for path in counts.paths.iter().filter(|path| path.volume == volume) {
            paths.push(Path {
                sdc: sdc.name.clone(),
                id: path.id,
                protocol: path.protocol.clone(),
                host: given(&path.host),
                host_address: given(&path.from),
                portal: given(&path.at),
                io: path.counts.as_ref().map_or_else(Io::default, Io::from),
            });
        }
    }
    paths.sort_by(|a, b| (&a.host, &a.sdc, a.id).cmp(&(&b.host, &b.sdc, b.id)));
    (clients, paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latency(us: &[u64]) -> Latency {
        let mut histogram = Histogram::default();
        us.iter().for_each(|us| histogram.record(base::Time(0), base::Time(us * 1000)));
        Latency::new(us.iter().sum(), histogram)
    }

    #[test]
    fn latencies_add_up_and_nothing_has_none() {
        let both = latency(&[4, 6]).plus(&latency(&[2]));
        assert_eq!((both.mean_us, both.total_us), (Some(4.0), 12));
        assert_eq!(both.since(&latency(&[4, 6])), latency(&[2]));
        assert_eq!(latency(&[]), Latency::default());
        assert_eq!(Latency::default().p99_us, None);
    }

    #[test]
    fn ranges_have_their_bounds_and_the_last_one_has_no_end() {
        let json = serde_json::to_value(latency(&[5, 5, 1 << 40])).unwrap();
        let range = |i: usize| &json["histogram"][i];
        assert_eq!(range(0), &serde_json::json!({ "from_us": 5, "below_us": 6, "count": 2 }));
        assert_eq!(range(1)["below_us"], serde_json::Value::Null);
    }
}
