//! The measurements, one per run. `gabion-gate NAME` executes the operation of that measurement
//! [`OPERATIONS`] times; without a name, the program lists all names. `cargo xtask gate` runs it
//! under valgrind's callgrind, which counts inside [`counted_by_valgrind`] only.
//!
//! The kernel and the driver `rt` are not counted. Clusters are in boxes, because moving one by
//! value would be counted, byte by byte.
#![forbid(unsafe_code)]

use base::{GroupId, Limits, Map};
use gate::Who::{self, Primary, Sdc, Secondary};
use gate::{Cluster, Host, Iscsi, Nbd, Nvme, OPERATIONS, Protocol};
use seam::BlockKind::{self, Read, Write};
use seam::{BufPool, Framer, Framing};
use std::hint::black_box;
use std::process::ExitCode;
use wire::{PeerFramer, message};

const BLOCK: usize = 4096;

/// All measurements, by the names that the baseline has.
const ALL: [(&str, fn()); 29] = [
    ("head_in.check_and_read", || count(headers(), head_in)),
    ("head_out.seal", || count((), head_out)),
    ("checksum.of_4k", || count(vec![7; BLOCK], checksum)),
    ("frames.cut", || count(stream(), frames)),
    ("buffer.take_and_give_back", || count(pool(), buffer)),
    ("table_of_512.lookup", || count(table(), table_of_512)),
    ("map.group_of_unit", || count(cluster(Read), map)),
    // One node at a time: a batch of events, the flush, and the effects.
    ("read.a_client_asks", || turn(Read, &[Sdc])),
    ("read.b_primary_starts", || turn(Read, &[Sdc, Primary])),
    ("read.c_primary_answers", || turn(Read, &[Sdc, Primary, Primary])),
    ("read.d_client_done", || turn(Read, &[Sdc, Primary, Primary, Sdc])),
    ("write.a_client_asks", || turn(Write, &WRITE[..1])),
    ("write.b_primary_starts_and_replicates", || turn(Write, &WRITE[..2])),
    ("write.c_primary_has_written", || turn(Write, &WRITE[..3])),
    ("write.d_secondary_starts", || turn(Write, &WRITE[..4])),
    ("write.e_secondary_acknowledges", || turn(Write, &WRITE[..5])),
    ("write.f_primary_answers", || turn(Write, &WRITE[..6])),
    ("write.g_client_done", || turn(Write, &WRITE)),
    // The whole path, from the program and back.
    ("batched.read_4k", || count(cluster(Read), batched)),
    ("batched.write_4k", || count(cluster(Write), batched)),
    ("alone.read_4k", || count(cluster(Read), alone)),
    ("alone.write_4k", || count(cluster(Write), alone)),
    // The session of a host alone, from the frame of a request to its answer.
    ("nbd.read_4k", || count(host::<Nbd>(Read), session)),
    ("nbd.write_4k", || count(host::<Nbd>(Write), session)),
    ("iscsi.read_4k", || count(host::<Iscsi>(Read), session)),
    ("iscsi.write_4k", || count(host::<Iscsi>(Write), session)),
    ("nvme.read_4k", || count(host::<Nvme>(Read), session)),
    ("nvme.write_4k", || count(host::<Nvme>(Write), session)),
    ("idle.beacon_period", || count(Box::new(Cluster::healthy()), idle)),
];

/// The turns of a write, in order.
const WRITE: [Who; 7] = [Sdc, Primary, Primary, Secondary, Secondary, Primary, Sdc];

fn main() -> ExitCode {
    let Some(name) = std::env::args().nth(1) else {
        ALL.iter().for_each(|(name, _)| println!("{name}"));
        return ExitCode::SUCCESS;
    };
    let Some((_, measure)) = ALL.iter().find(|(known, _)| *known == name) else {
        eprintln!("no measurement has the name {name:?}; without a name, this program lists all");
        return ExitCode::FAILURE;
    };
    measure();
    ExitCode::SUCCESS
}

/// Does the work on what was set up, and counts that only.
fn count<S, R>(set_up: S, work: impl FnOnce(S) -> R) {
    drop(black_box(counted_by_valgrind(black_box(set_up), work)));
}

/// Callgrind starts to count where this function begins, and stops where it ends: `xtask` gives it
/// this name. So the compiler must not inline it.
#[inline(never)]
fn counted_by_valgrind<S, R>(set_up: S, work: impl FnOnce(S) -> R) -> R {
    work(set_up)
}

/// Counts the last of these turns.
fn turn(kind: BlockKind, turns: &[Who]) {
    let (last, first) = turns.split_last().expect("at least one turn");
    let cluster = Cluster::healthy().led(kind).after(first);
    assert!(cluster.waiting(*last) > 0, "nothing waits for {last:?}");
    count(Box::new(cluster), |mut cluster| {
        cluster.turn(*last);
        cluster
    });
}

/// Returns a cluster with operations that are ready to begin.
fn cluster(kind: BlockKind) -> Box<Cluster> {
    Box::new(Cluster::healthy().prepare(kind))
}

/// Returns a host with requests that are ready to begin.
fn host<S: Protocol>(kind: BlockKind) -> Box<Host<S>> {
    Box::new(Host::ready(kind))
}

fn read(op: u64) -> message::Read {
    message::Read { request: message::Request { op, ..Default::default() }, retry: false }
}

fn headers() -> Vec<[u8; 128]> {
    let sealed =
        |op: u64| wire::frame(read(op), &[]).as_slice().try_into().expect("a head has 128 bytes");
    (0..OPERATIONS as u64).map(sealed).collect()
}

// A head on receipt: checked by the framer, then parsed.
fn head_in(heads: Vec<[u8; 128]>) {
    let mut framer = PeerFramer::new(4 << 20);
    for head in &heads {
        black_box(framer.frame(black_box(head))).expect("it is sound");
        black_box(wire::parse(black_box(head)));
    }
}

// A head being sent.
fn head_out((): ()) {
    for op in 0..OPERATIONS as u64 {
        black_box(wire::frame(read(black_box(op)), &[]));
    }
}

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

fn buffer(pool: BufPool) -> BufPool {
    for _ in 0..OPERATIONS {
        drop(black_box(pool.alloc(black_box(BLOCK))));
    }
    pool
}

fn table() -> Map<GroupId, u64> {
    (0..512).map(|i| (GroupId(i), u64::from(i))).collect()
}

fn table_of_512(table: Map<GroupId, u64>) {
    for i in 0..OPERATIONS as u32 {
        black_box(table.get(&GroupId(black_box(i * 7))));
    }
}

// Looks up the group of a unit, and its primary.
fn map(cluster: Box<Cluster>) -> Box<Cluster> {
    let map = cluster.sdc().map();
    for unit in cluster.units() {
        black_box(map.group_of(black_box(unit)).and_then(|g| map.group(g)));
    }
    cluster
}

// The operations of all programs at once.
fn batched(mut cluster: Box<Cluster>) -> Box<Cluster> {
    cluster.batched();
    cluster
}

// One operation after the other.
fn alone(mut cluster: Box<Cluster>) -> Box<Cluster> {
    cluster.alone();
    cluster
}

// The requests of a host at once, and then their results.
fn session<S: Protocol>(mut host: Box<Host<S>>) -> Box<Host<S>> {
    host.serve();
    host
}

// The work of all nodes in one beacon period without I/O: two beacons, two grants, heartbeats.
fn idle(mut cluster: Box<Cluster>) -> Box<Cluster> {
    for _ in 0..OPERATIONS {
        cluster.pass(Limits::SHIPPED.beacon_every);
    }
    cluster
}
