//! The driver contract on both backends, with RAM devices, growing files and file devices.

use crate::common;
use rt::{Backend, Config, DiskSpec, ListenAddr, Listener, RtError, Shard, Stop};
use seam::contract::{DEADLINE, Harness, Place, Probe, SCENARIOS, Setup};
use seam::{Effects, Event, Node, Port, Strangers};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const DISK_BYTES: u64 = 64 << 20;

/// The kind of the devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Memory,
    Growing,
    File,
    WriteThrough,
}

/// Runs each probe on its own shard and thread, over TCP on this host.
struct Threads {
    backend: Backend,
    kind: Kind,
    /// The directory of the devices' files.
    dir: PathBuf,
    spin: Duration,
}

/// A probe that stops all shards once the last probe is done.
struct Watched {
    probe: Probe,
    done: bool,
    left: Arc<AtomicUsize>,
    stop: Stop,
}

impl Watched {
    fn look(&mut self) {
        if !self.done && self.probe.is_done() {
            self.done = true;
            if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
                self.stop.stop();
            }
        }
    }
}

impl Node for Watched {
    type Framer = <Probe as Node>::Framer;
    fn framer(&mut self, port: Port) -> Self::Framer {
        self.probe.framer(port)
    }
    fn strangers(&self, port: Port) -> Option<Strangers> {
        self.probe.strangers(port)
    }
    fn on(&mut self, now: base::Time, event: Event<'_>, out: &mut Effects) {
        if self.left.load(Ordering::SeqCst) == 0 {
            return; // the other shards are stopping, which is no part of the scenario
        }
        self.probe.on(now, event, out);
        self.look();
    }
    fn flush(&mut self, now: base::Time, out: &mut Effects) {
        self.probe.flush(now, out);
        self.look();
    }
    fn wake_at(&self) -> Option<base::Time> {
        self.probe.wake_at()
    }
}

impl Threads {
    fn bind(&self, setup: &Setup, i: usize) -> Shard {
        let path = self.dir.join(format!("disk{i}"));
        if self.keeps_disks() && !setup.keep_disks {
            std::fs::write(&path, "").unwrap();
        }
        let size = Some(DISK_BYTES);
        let disk = match self.kind {
            Kind::Memory => DiskSpec::Ram(DISK_BYTES),
            Kind::Growing => DiskSpec::Growing { path },
            Kind::File => DiskSpec::file(path, size),
            Kind::WriteThrough => DiskSpec::File { path, size, write_through: true },
        };
        let at = ListenAddr::Tcp("127.0.0.1:0".parse().unwrap());
        Shard::bind(Config {
            backend: self.backend,
            link_queue: setup.link_queue,
            spin: self.spin,
            seed: i as u64,
            ..Config::of(vec![Listener { port: Port::Ours, at }], vec![disk])
        })
        .unwrap()
    }
}

/// Returns a port that is not in use. Its listener is closed, so another process could take it;
/// that is unlikely soon, because the kernel hands out ports in turn.
fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

impl Harness for Threads {
    fn run(&mut self, setup: &Setup, probes: Vec<Probe>) -> Vec<Probe> {
        let shards: Vec<Shard> = (0..probes.len()).map(|i| self.bind(setup, i)).collect();
        let place = Place {
            peers: shards.iter().map(|s| s.addrs(0)[0].tcp().unwrap()).collect(),
            nobody: nobody(),
            disk_bytes: (self.kind != Kind::Growing).then_some(DISK_BYTES),
            disk_block: if matches!(self.kind, Kind::Memory | Kind::Growing) { 1 } else { 4096 },
            punches: matches!(self.kind, Kind::File | Kind::WriteThrough),
            same_clock: true,
        };
        let (stop, left) = (Stop::new(), Arc::new(AtomicUsize::new(probes.len())));
        // The end of the last shard ends the wait for the deadline.
        let finished = Arc::new((Mutex::new(0), std::sync::Condvar::new()));
        let threads: Vec<_> = shards
            .into_iter()
            .zip(probes)
            .map(|(shard, mut probe)| {
                probe.meet(place.clone());
                let (stop, left, finished) = (stop.clone(), left.clone(), finished.clone());
                std::thread::spawn(move || {
                    let mut node = Watched { probe, done: false, left, stop: stop.clone() };
                    let result: Result<(), RtError> =
                        shard.run(vec![&mut node], &stop, |_, _, _| {});
                    *finished.0.lock().unwrap() += 1;
                    finished.1.notify_all();
                    result.unwrap();
                    node.probe
                })
            })
            .collect();
        let until = Instant::now() + DEADLINE;
        let mut n = finished.0.lock().unwrap();
        while *n < threads.len() && Instant::now() < until {
            n = finished.1.wait_timeout(n, until - Instant::now()).unwrap().0;
        }
        drop(n);
        stop.stop();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    }

    fn keeps_disks(&self) -> bool {
        self.kind != Kind::Memory
    }
}

fn check(backend: Backend, kind: Kind, spin: Duration) {
    let name = format!("gabion-rt-contract-{}-{backend}-{kind:?}", std::process::id());
    let dir = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&dir).unwrap();
    let mut harness = Threads { backend, kind, dir: dir.clone(), spin };
    // Links behave the same with every kind of device.
    let all = matches!(kind, Kind::Memory | Kind::Growing);
    for scenario in SCENARIOS.iter().filter(|s| all || DEVICES.contains(&s.name)) {
        println!("{backend}, {kind:?}: {}", scenario.name);
        scenario.check(&mut harness);
    }
    std::fs::remove_dir_all(dir).unwrap();
}

/// The scenarios about devices.
const DEVICES: [&str; 3] = [
    "device_operations_end_once_and_are_seen",
    "flushed_writes_survive",
    "space_that_was_given_back_reads_as_zeros",
];

/// Returns whether io_uring works here. Many containers forbid it; its tests are then skipped.
fn has_uring() -> bool {
    match Shard::bind(Config { backend: Backend::Uring, ..Config::default() }) {
        Ok(_) => true,
        Err(RtError::NoUring { why }) => {
            common::leave_out(&format!("io_uring: {why}"));
            false
        }
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn the_scenarios_about_devices_are_there() {
    assert!(DEVICES.iter().all(|name| SCENARIOS.iter().any(|s| s.name == *name)));
}

#[test]
fn epoll_keeps_the_contract() {
    check(Backend::Epoll, Kind::Memory, Duration::from_micros(30));
}

#[test]
fn epoll_keeps_the_contract_with_files_and_without_spinning() {
    check(Backend::Epoll, Kind::Growing, Duration::ZERO);
    check(Backend::Epoll, Kind::File, Duration::ZERO);
    check(Backend::Epoll, Kind::WriteThrough, Duration::ZERO);
}

#[test]
fn io_uring_keeps_the_contract() {
    if has_uring() {
        check(Backend::Uring, Kind::Memory, Duration::from_micros(30));
    }
}

#[test]
fn io_uring_keeps_the_contract_with_files_and_without_spinning() {
    if has_uring() {
        check(Backend::Uring, Kind::Growing, Duration::ZERO);
        check(Backend::Uring, Kind::File, Duration::ZERO);
        check(Backend::Uring, Kind::WriteThrough, Duration::ZERO);
    }
}
