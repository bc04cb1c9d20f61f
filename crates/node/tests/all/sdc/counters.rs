//! The counts of requests that an SDC keeps, and reports to the MDM.

use super::cluster::{Cluster, VOLUME, Who};
use super::iscsi_host::{Host, transfer};
use super::nbd_client::Client;
use super::nvme_host::Queue;
use base::{Histogram, Limits};
use core::time::Duration;
use seam::BlockKind;
use std::collections::BTreeSet;
use target::nbd::proto::*;
use wire::Status;
use wire::control::{IoCounts, PathCounts, TimeCounts};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Returns the counts of the volume, as the MDM was told after a while.
fn volume(c: &mut Cluster) -> IoCounts {
    c.pass(ms(500));
    let mut volumes = c.log.counts.volumes.iter().filter(|of| of.volume == VOLUME.0);
    let counts = volumes.next().map_or_else(IoCounts::default, |of| of.counts.clone().unwrap());
    assert!(volumes.next().is_none(), "once");
    counts
}

fn path(c: &mut Cluster) -> PathCounts {
    c.pass(ms(500));
    assert_eq!(c.log.counts.paths.len(), 1);
    c.log.counts.paths[0].clone()
}

/// Returns the counts without the times.
fn numbers(counts: &IoCounts) -> IoCounts {
    IoCounts { read_times: None, write_times: None, ..counts.clone() }
}

fn times(times: &Option<TimeCounts>) -> (u64, Histogram) {
    let (mut all, times) = (Histogram::default(), times.as_ref().unwrap());
    times.ranges().for_each(|(range, count)| all.add(range, count));
    (times.total_us, all)
}

#[test]
fn requests_of_programs_count_when_they_are_answered() {
    let mut c = Cluster::ready();
    assert_eq!(volume(&mut c), IoCounts::default());
    c.ask(1, BlockKind::Write, 0, 8192, &[1; 8192]);
    c.ask(2, BlockKind::Read, (1 << 20) - 512, 1024, &[]); // two units, one request
    c.ask(3, BlockKind::Zero { hole: true }, 0, 4096, &[]);
    c.ask(4, BlockKind::Zero { hole: false }, 0, 512, &[]);
    c.ask(5, BlockKind::Flush, 0, 0, &[]);
    c.ask(6, BlockKind::Extents, 0, 4096, &[]);
    c.ask(7, BlockKind::Read, 0, 100, &[]); // not whole sectors
    c.next_status = Some(Status::Media);
    c.ask(8, BlockKind::Write, 0, 512, &[1; 512]);
    c.hold = true;
    c.ask(9, BlockKind::Read, 0, 512, &[]);
    let expected = IoCounts {
        reads: 1,
        read_bytes: 1024,
        writes: 1,
        written_bytes: 8192,
        zeroes: 2,
        zeroed_bytes: 4608,
        flushes: 1,
        extents: 1,
        failed: 2,
        outstanding: 1,
        ..IoCounts::default()
    };
    assert_eq!(numbers(&volume(&mut c)), expected);
    assert!(c.log.counts.paths.is_empty());
    c.hold = false;
    c.release();
    let counts = volume(&mut c);
    assert_eq!((counts.reads, counts.read_bytes, counts.outstanding), (2, 1536, 0));
    let (total, all) = times(&counts.read_times);
    let slow = all.ranges().last().map(|(range, count)| (base::histogram::begin_us(range), count));
    // One read took no time, and the other one 500 ms, in a range of an eighth of that.
    assert!((500_000..502_000).contains(&total), "{total}");
    assert!(slow.is_some_and(|(us, count)| (440_000..=500_000).contains(&us) && count == 1));
    assert_eq!(all.total(), 2);
}

#[test]
fn a_volume_that_does_not_exist_leaves_no_counts() {
    let mut c = Cluster::ready();
    c.change(|map| {
        map.volumes.clear();
        map.live.clear();
    });
    c.sdc.refresh();
    c.pass(ms(500));
    c.ask(1, BlockKind::Read, 0, 512, &[]);
    assert!(c.log.replies[0].1.is_err());
    c.pass(ms(500));
    assert!(c.log.counts.volumes.is_empty());
}

#[test]
fn requests_over_nbd_count_at_their_path_and_stay_when_it_ends() {
    let mut c = Cluster::ready();
    let mut nbd = Client::attached(&mut c, &Limits::SHIPPED);
    nbd.request(&mut c, NBD_CMD_WRITE, 1, 0, 4096, &[7; 4096]);
    nbd.request(&mut c, NBD_CMD_READ, 2, 0, 4096, &[]);
    nbd.request(&mut c, NBD_CMD_FLUSH, 3, 0, 0, &[]);
    c.ask(1, BlockKind::Read, 0, 512, &[]);
    c.hold = true;
    nbd.request(&mut c, NBD_CMD_READ, 4, 0, 4096, &[]);
    let one = path(&mut c);
    assert_eq!((one.id, one.volume, one.protocol.as_str()), (nbd.link.0, VOLUME.0, "nbd"));
    let counts = one.counts.unwrap();
    let seen = (counts.reads, counts.writes, counts.flushes, counts.outstanding);
    assert_eq!(seen, (1, 1, 1, 1));
    let all = volume(&mut c);
    assert_eq!((all.reads, all.read_bytes, all.outstanding), (2, 4096 + 512, 1));
    // The answer to the last one goes nowhere.
    c.cut_link(nbd.link);
    c.hold = false;
    c.release();
    let left = volume(&mut c);
    assert_eq!((left.reads, left.writes, left.flushes, left.outstanding), (2, 1, 1, 0));
    assert!(c.log.counts.paths.is_empty());
}

#[test]
fn a_host_of_iscsi_is_named_and_its_long_writes_count_once() {
    let mut c = Cluster::ready();
    let mut host = Host::attached(&mut c, 1);
    // The first 64 KiB come with the command, the rest when it is asked for, in two parts.
    let all: Vec<u8> = (0..64 * 1024 * 3u32).map(|i| (i / 3) as u8).collect();
    let blocks = (all.len() / 512) as u16;
    host.long_write(&mut c, 2, &transfer(0x2a, 0, blocks), &all, 64 << 10);
    assert_eq!(host.answers(&mut c).last().unwrap().result(), Ok(()));
    assert_eq!(c.data[..all.len()], all);
    assert!(c.log.ios.len() >= 3);
    host.command(&mut c, 3, &transfer(0x28, 0, 8), 4096, &[]);
    let one = path(&mut c);
    assert_eq!((one.protocol.as_str(), one.host.as_str()), ("iscsi", "iqn.2026-11.test:host"));
    let counts = one.counts.unwrap();
    assert_eq!((counts.writes, counts.written_bytes), (1, all.len() as u64));
    assert_eq!((counts.reads, counts.read_bytes, counts.failed), (1, 4096, 0));
    assert_eq!(times(&counts.write_times).1.total(), 1);
    assert_eq!(numbers(&volume(&mut c)), numbers(&counts));
}

#[test]
fn a_queue_of_nvme_has_counts_of_each_volume_that_it_uses() {
    let mut c = Cluster::ready();
    let admin = Queue::admin(&mut c);
    let mut io = Queue::io(&mut c, &admin, 1).unwrap();
    c.pass(ms(500));
    let idle: Vec<_> = c.log.counts.paths.iter().map(|path| (path.volume, &*path.host)).collect();
    assert!(matches!(idle[..], [(0, host)] if host.starts_with("nqn.")), "{idle:?}");
    io.write(&mut c, 0, &[7; 4096]);
    io.read(&mut c, 0, 8192);
    c.hold = true;
    io.read(&mut c, 0, 512);
    let one = path(&mut c);
    assert_eq!((one.id, one.volume, one.protocol.as_str()), (io.link.0, VOLUME.0, "nvme"));
    assert!(one.host.starts_with("nqn."), "{one:?}");
    let counts = one.counts.unwrap();
    assert_eq!((counts.writes, counts.written_bytes), (1, 4096));
    assert_eq!((counts.reads, counts.read_bytes, counts.outstanding), (1, 8192, 1));
    assert_eq!(numbers(&volume(&mut c)), numbers(&counts));
    c.cut_link(admin.link);
    let left = volume(&mut c);
    assert_eq!((left.writes, left.reads, left.outstanding), (1, 1, 0));
    assert!(c.log.counts.paths.is_empty());
}

#[test]
fn a_new_mdm_gets_the_counts_at_once() {
    let mut c = Cluster::ready();
    c.ask(1, BlockKind::Write, 0, 512, &[1; 512]);
    c.pass(ms(500));
    c.cut(Who::Mdm);
    c.log.counts = Default::default();
    c.pass(Duration::from_secs(3));
    assert_eq!(volume(&mut c).writes, 1);
    assert!(c.log.counts.at_ms > 0);
}

#[test]
fn many_paths_are_reported_less_often_and_the_busiest_first() {
    let mut c = Cluster::ready();
    let mut clients: Vec<Client> =
        (0..300).map(|_| Client::attached(&mut c, &Limits::SHIPPED)).collect();
    let last = clients.last_mut().unwrap();
    last.request(&mut c, NBD_CMD_READ, 1, 0, 512, &[]);
    c.pass(Duration::from_secs(3));
    let counts = c.log.counts.clone();
    assert_eq!((counts.paths.len(), counts.left_out), (256, 44));
    assert_eq!(counts.paths[0].id, clients.last().unwrap().link.0);
    let (beats, mut told) = (c.log.heartbeats, BTreeSet::new());
    for _ in 0..80 {
        c.pass(ms(100));
        told.insert(c.log.counts.at_ms);
    }
    // Eight heartbeats of 200 ms are one interval.
    assert!(c.log.heartbeats - beats >= 35 && (4..=7).contains(&told.len()), "{told:?}");
}
