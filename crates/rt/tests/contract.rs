//! The driver contract, on both backends, with devices in memory and in files.

use rt::{Backend, Config, DiskSpec, ListenAddr, Listener, RtError, Shard, Stop};
use seam::contract::{DEADLINE, Harness, Place, Probe, SCENARIOS, Setup};
use seam::{Effects, Event, Node, Port};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const DISK_BYTES: u64 = 64 << 20;

/// Runs each probe on a shard and a thread of its own, over TCP on this host.
struct Threads {
    backend: Backend,
    /// Where the devices' files are; `None`: devices in memory.
    files: Option<PathBuf>,
    spin: Duration,
}

/// A probe that tells when it is done.
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
    fn on(&mut self, now: base::Time, event: Event<'_>, out: &mut Effects) {
        if self.left.load(Ordering::SeqCst) == 0 {
            return; // the other shards are ending: what one hears of it is no part of the play
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
        let disk = match &self.files {
            None => DiskSpec::Ram(DISK_BYTES),
            Some(dir) => {
                let path = dir.join(format!("disk{i}"));
                if !setup.keep_disks {
                    std::fs::write(&path, "").unwrap();
                }
                DiskSpec::File { path }
            }
        };
        let at = ListenAddr::Tcp("127.0.0.1:0".parse().unwrap());
        Shard::bind(Config {
            backend: self.backend,
            link_queue: setup.link_queue,
            spin: self.spin,
            seed: i as u64,
            ..Config::of(vec![Listener { port: Port::Peer, at }], vec![disk])
        })
        .unwrap()
    }
}

/// A port that is not in use. The listener has to go, so it could be taken by somebody else; not
/// soon, for the kernel hands ports out in turn.
fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

impl Harness for Threads {
    fn run(&mut self, setup: &Setup, probes: Vec<Probe>) -> Vec<Probe> {
        let shards: Vec<Shard> = (0..probes.len()).map(|i| self.bind(setup, i)).collect();
        let place = Place {
            peers: shards.iter().map(|s| s.addrs(0)[0].tcp().unwrap()).collect(),
            nobody: nobody(),
            disk_bytes: self.files.is_none().then_some(DISK_BYTES),
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
        self.files.is_some()
    }
}

fn check(backend: Backend, files: bool, spin: Duration) {
    let dir = files.then(|| {
        let dir = std::env::temp_dir()
            .join(format!("gabion-rt-contract-{}-{backend}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        dir
    });
    let mut harness = Threads { backend, files: dir.clone(), spin };
    for scenario in SCENARIOS {
        println!("{backend}: {}", scenario.name);
        scenario.check(&mut harness);
    }
    if let Some(dir) = dir {
        std::fs::remove_dir_all(dir).unwrap();
    }
}

/// io_uring is forbidden in many containers; then there is nothing to test.
fn has_uring() -> bool {
    match Shard::bind(Config { backend: Backend::Uring, ..Config::default() }) {
        Ok(_) => true,
        Err(RtError::NoUring { why }) => {
            eprintln!("skipped: {why}");
            false
        }
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn epoll_keeps_the_contract() {
    check(Backend::Epoll, false, Duration::from_micros(30));
}

#[test]
fn epoll_keeps_the_contract_with_files_and_without_spinning() {
    check(Backend::Epoll, true, Duration::ZERO);
}

#[test]
fn io_uring_keeps_the_contract() {
    if has_uring() {
        check(Backend::Uring, false, Duration::from_micros(30));
    }
}

#[test]
fn io_uring_keeps_the_contract_with_files_and_without_spinning() {
    if has_uring() {
        check(Backend::Uring, true, Duration::ZERO);
    }
}
