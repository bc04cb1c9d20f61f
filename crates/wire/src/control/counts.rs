//! Counts of the block requests that a client has answered: by volume, and by path.
//!
//! They count from the start of the client's process, or of the path. A request counts when it is
//! answered. One that is answered because of an error counts only as failed.

use alloc::string::String;
use alloc::vec::Vec;

/// How long requests took, from their arrival at the client to their answer.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct TimeCounts {
    /// The sum, in microseconds.
    #[prost(uint64, tag = "1")]
    pub total_us: u64,
    /// The ranges of [`base::histogram`] that are not empty, in ascending order. Each takes two
    /// numbers: how many empty ranges come just before it, and its count.
    #[prost(uint64, repeated, tag = "2")]
    pub ranges: Vec<u64>,
}

/// Counts of requests.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct IoCounts {
    /// Reads.
    #[prost(uint64, tag = "1")]
    pub reads: u64,
    /// Bytes of these.
    #[prost(uint64, tag = "2")]
    pub read_bytes: u64,
    /// Writes of data.
    #[prost(uint64, tag = "3")]
    pub writes: u64,
    /// Bytes of these.
    #[prost(uint64, tag = "4")]
    pub written_bytes: u64,
    /// Requests that make a range zero, discards included.
    #[prost(uint64, tag = "5")]
    pub zeroes: u64,
    /// Bytes of these.
    #[prost(uint64, tag = "6")]
    pub zeroed_bytes: u64,
    /// Flushes.
    #[prost(uint64, tag = "7")]
    pub flushes: u64,
    /// Questions which parts of a range hold data.
    #[prost(uint64, tag = "8")]
    pub extents: u64,
    /// Requests that ended with an error, or were given up.
    #[prost(uint64, tag = "9")]
    pub failed: u64,
    /// Requests that are not answered now.
    #[prost(uint32, tag = "10")]
    pub outstanding: u32,
    /// How long the reads took.
    #[prost(message, optional, tag = "11")]
    pub read_times: Option<TimeCounts>,
    /// How long the writes of data took.
    #[prost(message, optional, tag = "12")]
    pub write_times: Option<TimeCounts>,
}

/// Counts of one volume at one client, over all its paths, and of programs that link the library.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct VolumeCounts {
    /// The volume.
    #[prost(uint32, tag = "1")]
    pub volume: u32,
    /// The counts.
    #[prost(message, optional, tag = "2")]
    pub counts: Option<IoCounts>,
}

/// Counts of one volume over one connection of a host.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PathCounts {
    /// The number of the connection in the client's process. It is never used again there.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// The volume; 0: the host has used none yet.
    #[prost(uint32, tag = "2")]
    pub volume: u32,
    /// The protocol, in lower case.
    #[prost(string, tag = "3")]
    pub protocol: String,
    /// The name that the host gives itself; empty if the protocol has no such name.
    #[prost(string, tag = "4")]
    pub host: String,
    /// The host's address, `ip:port`; empty for a unix socket.
    #[prost(string, tag = "5")]
    pub from: String,
    /// The address of the client that the host dialled, `ip:port`; empty for a unix socket.
    #[prost(string, tag = "6")]
    pub at: String,
    /// The counts.
    #[prost(message, optional, tag = "7")]
    pub counts: Option<IoCounts>,
}

/// All counts of one client.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ClientCounts {
    /// When they were taken, in milliseconds on a clock of the client.
    #[prost(uint64, tag = "1")]
    pub at_ms: u64,
    /// Volumes with requests since the process started.
    #[prost(message, repeated, tag = "2")]
    pub volumes: Vec<VolumeCounts>,
    /// Paths that are open now.
    #[prost(message, repeated, tag = "3")]
    pub paths: Vec<PathCounts>,
    /// Number of volumes and paths for which the message has no room.
    #[prost(uint32, tag = "4")]
    pub left_out: u32,
}

impl TimeCounts {
    /// Creates the message from ranges that are not empty, in ascending order, and their counts.
    pub fn new(total_us: u64, ranges: impl Iterator<Item = (usize, u64)>) -> TimeCounts {
        let mut next = 0;
        let pairs = ranges.flat_map(|(range, count)| {
            let passed = range - next;
            next = range + 1;
            [passed as u64, count]
        });
        TimeCounts { total_us, ranges: pairs.collect() }
    }

    /// Iterates over the ranges and their counts. Ranges of a message that is not in order may be
    /// as large as `usize` allows.
    pub fn ranges(&self) -> impl Iterator<Item = (usize, u64)> {
        let mut next = 0usize;
        self.ranges.chunks_exact(2).map(move |pair| {
            let range = next.saturating_add(usize::try_from(pair[0]).unwrap_or(usize::MAX));
            next = range.saturating_add(1);
            (range, pair[1])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_come_back_and_nonsense_is_harmless() {
        let ranges = [(0, 4), (1, 1), (7, 9), (199, 1)];
        let times = TimeCounts::new(12, ranges.into_iter());
        assert_eq!(times.ranges, [0, 4, 0, 1, 5, 9, 191, 1]);
        assert!(times.ranges().eq(ranges));
        let nonsense = TimeCounts { total_us: 0, ranges: alloc::vec![u64::MAX, 1, 5, 2, 3] };
        assert!(nonsense.ranges().eq([(usize::MAX, 1), (usize::MAX, 2)]));
    }
}
