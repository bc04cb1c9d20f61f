//! Counts the block requests of this client: per volume, and per connection of a host (*path*).
//!
//! A request is counted once, when it is answered. The origin that accompanies it through the
//! client core carries the counted properties ([`Asked`]), so its arrival needs no lookup. Requests
//! of hosts are counted at their path only. When the path ends, its counts are added to those of
//! its volume. So the counts of a volume are the sum of those of programs, of ended paths, and of
//! its present paths. An NVMe connection serves many volumes: it has counts for each volume that it
//! has used.
//!
//! Invariants:
//! - Counting a request allocates no memory, except for the first request of a program or an NVMe
//!   queue to a volume. A connection has the counts of at most [`VOLUMES`] volumes.
//! - The counts of a volume stay until the volume leaves the map; they only grow.
//! - A write over iSCSI or NVMe whose data arrives in several parts counts once, with the bytes of
//!   all parts and the time of the first. (An UNMAP counts once per range.)

use super::{ISCSI, NVME, Origin};
use crate::mapview::MapView;
use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use base::time::Duration;
use base::{Histogram, IdMap, LinkId, Map, Time, VolumeId};
use core::cmp::Reverse;
use core::net::SocketAddr;
use prost::Message;
use seam::{BlockKind, BlockRequest, Port};
use wire::control::{ClientCounts, IoCounts, PathCounts, TimeCounts, VolumeCounts};

/// The most volumes, and the most paths, in one message to the MDM: those with the most requests.
const REPORTED: usize = 256;
/// The most bytes of counts in one message without names of hosts, and in one with names. An MDM
/// refuses a message of more than 512 KiB, and the names may take 256 KiB of it.
const ROOM: [usize; 2] = [416 << 10, 192 << 10];
/// Volumes and paths that can be sent per heartbeat interval. With more, the counts are sent less
/// often, so that a client sends at most about 100 KB of counts per second.
const PER_INTERVAL: usize = 32;
/// The most volumes of one path. Requests to further ones count for their volume only.
const VOLUMES: usize = 32;

/// The counted properties of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Arrival {
    /// The time of its arrival.
    at: Time,
    pub(super) volume: VolumeId,
    len: u32,
    pub(super) kind: BlockKind,
    /// True for the first or only request of a host's command.
    first: bool,
}

impl Arrival {
    /// Describes a request that arrives now.
    #[inline]
    pub(super) fn new(now: Time, request: &BlockRequest, first: bool) -> Arrival {
        let BlockRequest { volume, len, kind, .. } = *request;
        Arrival { at: now, volume, len, kind, first }
    }
}

/// Requests of one kind that transfer data.
#[derive(Clone, Default, Debug)]
struct Transfers {
    count: u64,
    bytes: u64,
    /// The sum of their times, in nanoseconds. (Times of requests that are under way together add
    /// up, so 64 bits might not last.)
    time: u128,
    times: Histogram,
}

impl Transfers {
    #[inline]
    fn add(&mut self, now: Time, arrival: &Arrival) {
        self.bytes += u64::from(arrival.len);
        if arrival.first {
            self.count += 1;
            self.time += u128::from(now.0.saturating_sub(arrival.at.0));
            self.times.record(arrival.at, now);
        }
    }

    fn merge(&mut self, other: &Transfers) {
        self.count += other.count;
        self.bytes += other.bytes;
        self.time += other.time;
        self.times.merge(&other.times);
    }

    fn message(&self) -> TimeCounts {
        TimeCounts::new((self.time / 1000) as u64, self.times.ranges())
    }
}

/// The counts of one volume or path.
#[derive(Clone, Default, Debug)]
struct Counts {
    reads: Transfers,
    writes: Transfers,
    zeroes: u64,
    zeroed_bytes: u64,
    flushes: u64,
    extents: u64,
    failed: u64,
}

impl Counts {
    #[inline]
    fn add(&mut self, now: Time, arrival: &Arrival, ok: bool) {
        match arrival.kind {
            _ if !ok => self.failed += 1,
            BlockKind::Read => self.reads.add(now, arrival),
            BlockKind::Write | BlockKind::CompareWrite => self.writes.add(now, arrival),
            BlockKind::Zero { .. } => {
                self.zeroes += 1;
                self.zeroed_bytes += u64::from(arrival.len);
            }
            BlockKind::Flush => self.flushes += 1,
            BlockKind::Extents => self.extents += 1,
        }
    }

    fn merge(&mut self, other: &Counts) {
        self.reads.merge(&other.reads);
        self.writes.merge(&other.writes);
        self.zeroes += other.zeroes;
        self.zeroed_bytes += other.zeroed_bytes;
        self.flushes += other.flushes;
        self.extents += other.extents;
        self.failed += other.failed;
    }

    /// Returns the number of requests that were answered.
    fn total(&self) -> u64 {
        let answered = self.reads.count + self.writes.count + self.zeroes;
        answered + self.flushes + self.extents + self.failed
    }

    fn message(&self, outstanding: usize) -> IoCounts {
        IoCounts {
            reads: self.reads.count,
            read_bytes: self.reads.bytes,
            writes: self.writes.count,
            written_bytes: self.writes.bytes,
            zeroes: self.zeroes,
            zeroed_bytes: self.zeroed_bytes,
            flushes: self.flushes,
            extents: self.extents,
            failed: self.failed,
            outstanding: outstanding as u32,
            read_times: Some(self.reads.message()),
            write_times: Some(self.writes.message()),
        }
    }
}

/// A connection of a host.
#[derive(Debug)]
struct Path {
    port: Port,
    /// The local address and the host's address. `None` for a unix socket.
    at: Option<SocketAddr>,
    from: Option<SocketAddr>,
    /// The host's own name.
    host: String,
    /// The volumes that it serves, with their counts.
    volumes: Vec<(VolumeId, Box<Counts>)>,
}

impl Path {
    fn message(&self, id: LinkId, volume: VolumeId, counts: IoCounts) -> PathCounts {
        let protocol = match self.port {
            ISCSI => "iscsi",
            NVME => "nvme",
            _ => "nbd",
        };
        let text =
            |address: Option<SocketAddr>| address.map_or_else(String::new, |a| a.to_string());
        PathCounts {
            id: id.0,
            volume: volume.0,
            protocol: protocol.to_owned(),
            host: self.host.clone(),
            from: text(self.from),
            at: text(self.at),
            counts: Some(counts),
        }
    }
}

/// All counts.
#[derive(Default, Debug)]
pub(super) struct Counters {
    paths: Map<LinkId, Path>,
    /// The counts of programs, of ended paths, and of requests of paths beyond their first
    /// [`VOLUMES`] volumes.
    volumes: IdMap<VolumeId, Box<Counts>>,
    /// When they are sent to the MDM next.
    due: Time,
}

impl Counters {
    /// Begins a path.
    pub(super) fn open(
        &mut self,
        link: LinkId,
        port: Port,
        (at, from): (Option<SocketAddr>, Option<SocketAddr>),
    ) {
        let path = Path { port, at, from, host: String::new(), volumes: Vec::new() };
        self.paths.insert(link, path);
    }

    /// Records the name of a path's host.
    pub(super) fn named(&mut self, link: LinkId, host: &str) {
        if let Some(path) = self.paths.get_mut(&link) {
            path.host = host.to_owned();
        }
    }

    /// Records which volume a path serves.
    pub(super) fn attached(&mut self, link: LinkId, volume: VolumeId) {
        if let Some(path) = self.paths.get_mut(&link) {
            path.volumes = vec![(volume, Box::default())];
        }
    }

    /// Ends a path.
    pub(super) fn close(&mut self, link: LinkId) {
        let volumes = self.paths.remove(&link).map(|path| path.volumes);
        for (volume, counts) in volumes.into_iter().flatten() {
            self.volumes.get_or_insert_with(volume, Box::default).merge(&counts);
        }
    }

    /// Counts an answered request. If its path has ended, the answer was dropped.
    #[inline]
    pub(super) fn done(&mut self, now: Time, map: &MapView, origin: &Origin, ok: bool) {
        let (counts, arrival) = match origin {
            Origin::Program { arrival, .. } => (self.volumes.get_mut(arrival.volume), arrival),
            Origin::Target { link, arrival, .. } => {
                let path = self.paths.get_mut(link);
                let mut volumes = path.into_iter().flat_map(|path| &mut path.volumes);
                let own = volumes.find(|(volume, _)| *volume == arrival.volume);
                (own.map(|(_, counts)| counts), arrival)
            }
        };
        match counts {
            Some(counts) => counts.add(now, arrival, ok),
            None => self.first(now, map, origin, ok),
        }
    }

    /// Counts the first request of programs, or of a path, to a volume that exists.
    #[cold]
    fn first(&mut self, now: Time, map: &MapView, origin: &Origin, ok: bool) {
        let (Origin::Program { arrival, .. } | Origin::Target { arrival, .. }) = origin;
        if !map.volumes.contains_key(&arrival.volume) {
            return;
        }
        if let Origin::Target { link, .. } = origin {
            let Some(path) = self.paths.get_mut(link) else { return };
            if path.volumes.len() < VOLUMES {
                let mut counts = Box::<Counts>::default();
                counts.add(now, arrival, ok);
                return path.volumes.push((arrival.volume, counts));
            }
        }
        self.volumes.get_or_insert_with(arrival.volume, Box::default).add(now, arrival, ok);
    }

    /// Makes the next heartbeat carry the counts, because the MDM may not know them.
    pub(super) fn tell(&mut self) {
        self.due = Time::ZERO;
    }

    /// Counts outstanding requests: those of programs, and those of NVMe queues, which do not know
    /// how many of their commands are for which volume.
    fn open_requests(
        &self,
        unanswered: impl Iterator<Item = Origin>,
    ) -> BTreeMap<(Option<LinkId>, VolumeId), usize> {
        let shared = |link| self.paths.get(&link).is_some_and(|path| path.port == NVME);
        let mut open = BTreeMap::new();
        for origin in unanswered {
            let key = match origin {
                Origin::Program { arrival, .. } => (None, arrival.volume),
                Origin::Target { link, arrival, .. } if arrival.first && shared(link) => {
                    (Some(link), arrival.volume)
                }
                Origin::Target { .. } => continue,
            };
            *open.entry(key).or_default() += 1;
        }
        open
    }

    /// Returns the first path of each NVMe host that has used no volume here, as on a path in
    /// standby. So the MDM can show that the host is connected.
    fn idle_hosts(&self) -> impl Iterator<Item = (LinkId, &Path)> {
        let mut first: BTreeMap<&str, (LinkId, &Path)> = BTreeMap::new();
        let named = || self.paths.iter().filter(|(_, p)| p.port == NVME && !p.host.is_empty());
        for (link, path) in named() {
            let of_host = first.entry(&path.host).or_insert((*link, path));
            *of_host = if of_host.0 <= *link { *of_host } else { (*link, path) };
        }
        for (_, path) in named().filter(|(_, path)| !path.volumes.is_empty()) {
            first.remove(path.host.as_str());
        }
        first.into_values()
    }

    /// Returns the message to the MDM, if it is due. `in_flight` returns the number of commands of
    /// a path that are not answered, and `unanswered` are the origins of all requests that are not.
    pub(super) fn report(
        &mut self,
        (now, every): (Time, Duration),
        map: &MapView,
        in_flight: impl Fn(LinkId) -> usize,
        unanswered: impl Iterator<Item = Origin>,
        with_hosts: bool,
    ) -> Option<ClientCounts> {
        if now < self.due {
            return None;
        }
        let there = |volume: &VolumeId| map.volumes.contains_key(volume);
        if !self.volumes.keys().all(|volume| there(&volume)) {
            let all = core::mem::take(&mut self.volumes).into_iter();
            self.volumes = all.filter(|(volume, _)| there(volume)).collect();
        }
        self.paths.values_mut().for_each(|path| path.volumes.retain(|(volume, _)| there(volume)));
        let mut volumes: BTreeMap<VolumeId, (Box<Counts>, usize)> = BTreeMap::new();
        for (volume, counts) in self.volumes.iter() {
            volumes.entry(volume).or_default().0.merge(counts);
        }
        let open = self.open_requests(unanswered);
        for ((_, volume), count) in open.iter().filter(|((link, _), _)| link.is_none()) {
            if there(volume) {
                volumes.entry(*volume).or_default().1 += count;
            }
        }
        let mut paths = Vec::new();
        for (link, path) in &self.paths {
            for (volume, counts) in &path.volumes {
                let outstanding = match path.port {
                    NVME => open.get(&(Some(*link), *volume)).copied().unwrap_or_default(),
                    _ => in_flight(*link),
                };
                let all = volumes.entry(*volume).or_default();
                all.0.merge(counts);
                all.1 += outstanding;
                paths.push((*link, path, *volume, &**counts, outstanding));
            }
        }
        let unused = Counts::default();
        let idle = self.idle_hosts().map(|(link, path)| (link, path, VolumeId(0), &unused, 0));
        paths.extend(idle);
        let mut volumes: Vec<_> = volumes.into_iter().collect();
        let all = volumes.len() + paths.len();
        volumes.sort_by_key(|(_, (counts, _))| Reverse(counts.total()));
        paths.sort_by_key(|(link, _, volume, counts, _)| (Reverse(counts.total()), *link, *volume));
        let room = ROOM[usize::from(with_hosts)] / 2;
        let volumes = fitting(
            room,
            volumes.into_iter().map(|(id, (counts, outstanding))| {
                let counts = Some(counts.message(outstanding));
                VolumeCounts { volume: id.0, counts }
            }),
        );
        let paths = fitting(
            room,
            paths.into_iter().map(|(link, path, volume, counts, outstanding)| {
                path.message(link, volume, counts.message(outstanding))
            }),
        );
        let entries = volumes.len() + paths.len();
        self.due = now + every * (entries / PER_INTERVAL) as u32;
        let (at_ms, left_out) = (now.0 / 1_000_000, (all - entries) as u32);
        Some(ClientCounts { at_ms, volumes, paths, left_out })
    }
}

/// Returns the first of these messages: as many as fit.
fn fitting<M: Message>(mut room: usize, messages: impl Iterator<Item = M>) -> Vec<M> {
    let fits = |message: &M| {
        let bytes = message.encoded_len() + 8; // with its tag and length
        let fits = bytes <= room;
        room = room.saturating_sub(bytes);
        fits
    };
    messages.take(REPORTED).take_while(fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_nvme_host_that_uses_no_volume_is_reported_once() {
        let mut counters = Counters::default();
        for link in [LinkId(3), LinkId(1), LinkId(2), LinkId(4)] {
            counters.open(link, NVME, (None, None));
        }
        [1, 2].iter().for_each(|link| counters.named(LinkId(*link), "nqn.a"));
        counters.named(LinkId(3), "nqn.b");
        let idle = |counters: &Counters| -> Vec<u64> {
            counters.idle_hosts().map(|(link, _)| link.0).collect()
        };
        assert_eq!(idle(&counters), [1, 3], "link 4 is no queue");
        counters.attached(LinkId(2), VolumeId(7));
        assert_eq!(idle(&counters), [3]);
        let (map, every) = (MapView::default(), Duration::from_millis(1));
        let told = counters.report((Time(1), every), &map, |_| 0, core::iter::empty(), false);
        let paths = told.unwrap().paths;
        assert!(paths.iter().all(|path| path.volume == 0 && path.protocol == "nvme"), "{paths:?}");
    }

    #[test]
    fn a_message_has_as_many_counts_as_fit() {
        let path = |bytes: usize| PathCounts { host: "n".repeat(bytes), ..PathCounts::default() };
        let paths = |bytes| core::iter::repeat_with(move || path(bytes)).take(2 * REPORTED);
        assert_eq!(fitting(1 << 20, paths(100)).len(), REPORTED);
        let some = fitting(50 << 10, paths(1000));
        let message = ClientCounts { paths: some.clone(), ..ClientCounts::default() };
        assert!(some.len() > 45 && message.encoded_len() <= 50 << 10, "{}", some.len());
        assert!(ROOM.iter().zip([0, 256 << 10]).all(|(room, names)| room + names < 500 << 10));
    }
}
