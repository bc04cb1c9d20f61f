//! The measurements. Each function does [`OPERATIONS`] times what its name says; setups are not
//! counted. Setups return boxes, because moving a cluster by value would be counted, byte by byte.
//!
//! A measurement's name in the baseline is `function.case`. The kernel and the driver `rt` are not
//! counted.
// The macros turn these functions into public items, and make a `main` that exits.
#![allow(missing_docs, clippy::disallowed_methods)]

use base::{GroupId, Limits, Map};
use gate::{Cluster, OPERATIONS, Who};
use gungraun::prelude::*;
use seam::BlockKind::{self, Read, Write};
use seam::{BufPool, Framer, Framing};
use std::hint::black_box;
use wire::{PeerFramer, message};

const BLOCK: usize = 4096;

// ---- single functions ----

fn read(op: u64) -> message::Read {
    message::Read { request: message::Request { op, ..Default::default() }, retry: false }
}

fn headers() -> Vec<[u8; 128]> {
    let sealed =
        |op: u64| wire::frame(read(op), &[]).as_slice().try_into().expect("a head has 128 bytes");
    (0..OPERATIONS as u64).map(sealed).collect()
}

// A head on receipt: checked by the framer, then parsed.
#[library_benchmark]
#[bench::check_and_read(headers())]
fn head_in(heads: Vec<[u8; 128]>) {
    let mut framer = PeerFramer::new(4 << 20);
    for head in &heads {
        black_box(framer.frame(black_box(head))).expect("it is sound");
        black_box(wire::parse(black_box(head)));
    }
}

// A head being sent.
#[library_benchmark]
#[bench::seal()]
fn head_out() {
    for op in 0..OPERATIONS as u64 {
        black_box(wire::frame(read(black_box(op)), &[]));
    }
}

#[library_benchmark]
#[bench::of_4k(vec![7; BLOCK])]
fn checksum(block: Vec<u8>) {
    for _ in 0..OPERATIONS {
        black_box(base::crc::crc32c(black_box(&block)));
    }
}

fn stream() -> Vec<u8> {
    headers_with_bodies().concat()
}

fn headers_with_bodies() -> Vec<Vec<u8>> {
    let body = [7; BLOCK];
    let sealed = |op: u64| {
        let write = message::Write { request: read(op).request, retry: false };
        [wire::frame(write, &body).as_slice(), &body[..]].concat()
    };
    (0..OPERATIONS as u64).map(sealed).collect()
}

// A buffer full of frames with bodies of 4 KiB, cut into frames.
#[library_benchmark]
#[bench::cut(stream())]
fn frames(stream: Vec<u8>) {
    let (mut framer, mut at) = (PeerFramer::new(4 << 20), 0);
    while at < stream.len() {
        match black_box(framer.frame(black_box(&stream[at..]))) {
            Ok(Framing::Frame { head, body }) => at += head + body,
            other => panic!("{other:?}"),
        }
    }
}

fn pool() -> BufPool {
    let pool = BufPool::new(64 << 20);
    drop(pool.alloc(BLOCK));
    pool
}

#[library_benchmark]
#[bench::take_and_give_back(pool())]
fn buffer(pool: BufPool) -> BufPool {
    for _ in 0..OPERATIONS {
        drop(black_box(pool.alloc(black_box(BLOCK))));
    }
    pool
}

fn table() -> Map<GroupId, u64> {
    (0..512).map(|i| (GroupId(i), u64::from(i))).collect()
}

#[library_benchmark]
#[bench::lookup(table())]
fn table_of_512(table: Map<GroupId, u64>) {
    for i in 0..OPERATIONS as u32 {
        black_box(table.get(&GroupId(black_box(i * 7))));
    }
}

// Looks up the group of a unit, and its primary.
#[library_benchmark]
#[bench::group_of_unit(Box::new(Cluster::healthy().prepare(Read)))]
fn map(cluster: Box<Cluster>) -> Box<Cluster> {
    let map = cluster.sdc().map();
    for unit in cluster.units() {
        black_box(map.group_of(black_box(unit)).and_then(|g| map.group(g)));
    }
    cluster
}

// ---- one node at a time: a batch of events, the flush, and the effects ----

use Who::{Primary, Sdc, Secondary};

/// Returns the cluster just before the last of these turns, and the participant of that turn.
fn before(kind: BlockKind, turns: &[Who]) -> (Box<Cluster>, Who) {
    let (last, first) = turns.split_last().expect("at least one turn");
    let cluster = Cluster::healthy().led(kind).after(first);
    assert!(cluster.waiting(*last) > 0, "nothing waits for {last:?}");
    (Box::new(cluster), *last)
}

#[library_benchmark]
#[bench::a_client_asks(before(Read, &[Sdc]))]
#[bench::b_primary_starts(before(Read, &[Sdc, Primary]))]
#[bench::c_primary_answers(before(Read, &[Sdc, Primary, Primary]))]
#[bench::d_client_done(before(Read, &[Sdc, Primary, Primary, Sdc]))]
fn read((mut cluster, who): (Box<Cluster>, Who)) -> Box<Cluster> {
    cluster.turn(who);
    cluster
}

#[library_benchmark]
#[bench::a_client_asks(before(Write, &[Sdc]))]
#[bench::b_primary_starts_and_replicates(before(Write, &[Sdc, Primary]))]
#[bench::c_primary_has_written(before(Write, &[Sdc, Primary, Primary]))]
#[bench::d_secondary_starts(before(Write, &[Sdc, Primary, Primary, Secondary]))]
#[bench::e_secondary_acknowledges(before(Write, &[Sdc, Primary, Primary, Secondary, Secondary]))]
#[bench::f_primary_answers(before(
    Write,
    &[Sdc, Primary, Primary, Secondary, Secondary, Primary]
))]
#[bench::g_client_done(before(
    Write,
    &[Sdc, Primary, Primary, Secondary, Secondary, Primary, Sdc]
))]
fn write((mut cluster, who): (Box<Cluster>, Who)) -> Box<Cluster> {
    cluster.turn(who);
    cluster
}

// ---- the whole path, from the program and back ----

#[library_benchmark]
#[bench::read_4k(Box::new(Cluster::healthy().prepare(Read)))]
#[bench::write_4k(Box::new(Cluster::healthy().prepare(Write)))]
fn batched(mut cluster: Box<Cluster>) -> Box<Cluster> {
    cluster.batched();
    cluster
}

#[library_benchmark]
#[bench::read_4k(Box::new(Cluster::healthy().prepare(Read)))]
#[bench::write_4k(Box::new(Cluster::healthy().prepare(Write)))]
fn alone(mut cluster: Box<Cluster>) -> Box<Cluster> {
    cluster.alone();
    cluster
}

// The work of all nodes in one beacon period without I/O: two beacons, two grants, heartbeats.
#[library_benchmark]
#[bench::beacon_period(Box::new(Cluster::healthy()))]
fn idle(mut cluster: Box<Cluster>) -> Box<Cluster> {
    for _ in 0..OPERATIONS {
        cluster.pass(Limits::SHIPPED.beacon_every);
    }
    cluster
}

library_benchmark_group!(
    name = all,
    benchmarks = [
        head_in,
        head_out,
        checksum,
        frames,
        buffer,
        table_of_512,
        map,
        read,
        write,
        batched,
        alone,
        idle
    ]
);

main!(library_benchmark_groups = all);
