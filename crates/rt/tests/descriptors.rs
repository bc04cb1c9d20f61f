//! A process that runs out of file descriptors. A separate binary, because the limit is per
//! process.

#[path = "all/common.rs"]
#[allow(dead_code)] // A part of it is used here.
mod common;

use common::{Echo, backends, connect, exchange, frame, spawn};
use rt::{Config, Listener, Shard};
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use seam::{Note, Port, Strangers};
use std::collections::BTreeSet;
use std::io::{BufRead, ErrorKind, Read, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Lets this process open `n` more descriptors, whatever the numbers of the open ones are.
fn leave_room_for(n: u64) -> Rlimit {
    let before = getrlimit(Resource::Nofile);
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let number =
        |e: std::io::Result<std::fs::DirEntry>| e.ok()?.file_name().to_str()?.parse::<u64>().ok();
    let open: BTreeSet<u64> = open.filter_map(number).collect();
    let current = (0..).filter(|fd| !open.contains(fd)).nth(n as usize);
    setrlimit(Resource::Nofile, Rlimit { current, ..before }).unwrap();
    before
}

/// The limit belongs to the process, so the tests run one at a time.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn without_descriptors_a_shard_waits_and_goes_on_when_some_are_free() {
    let _alone = ALONE.lock();
    for backend in backends() {
        let listeners = vec![Listener { port: Port::Ours, at: "127.0.0.1:0".parse().unwrap() }];
        let shard = Shard::bind(Config { backend, ..Config::of(listeners, vec![]) }).unwrap();
        let at = shard.addrs(0)[0].clone();
        // The kernel establishes all of them before the shard accepts any.
        let mut peers: Vec<_> = (0..30).map(|_| connect(&at)).collect();
        let before = leave_room_for(10);
        let running = spawn(shard, Echo::default);
        exchange(&mut peers[0], b"some are accepted");
        peers[29].write_all(&frame(b"accepted at last")).unwrap();
        peers[29].set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let before_that = running.busy();
        let early = peers[29].read(&mut [0]).map_err(|e| e.kind());
        assert_eq!(early, Err(ErrorKind::WouldBlock), "not this one");
        let busy = running.busy() - before_that;
        assert!(busy < Duration::from_millis(30), "{backend}: {busy:?} in 300 ms");
        assert!(running.notes().contains(&Note::NoDescriptors), "{backend}: that is said");
        peers.drain(..20);
        peers[9].set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut back = frame(b"nothing came yet");
        peers[9].read_exact(&mut back).unwrap();
        assert_eq!(back, frame(b"accepted at last"));
        running.end();
        setrlimit(Resource::Nofile, before).unwrap();
    }
}

/// Opens many silent connections: a client that sends a frame is served, even without descriptors.
fn silent_connections_keep_nobody_out(most: u32, silent: usize, descriptors: Option<u64>) {
    for backend in backends() {
        let listeners = vec![Listener { port: Port::Ours, at: "127.0.0.1:0".parse().unwrap() }];
        let shard = Shard::bind(Config { backend, ..Config::of(listeners, vec![]) }).unwrap();
        let at = shard.addrs(0)[0].clone();
        // Without descriptors, the oldest strangers have to go before their time is over.
        let patience = Duration::from_millis(if descriptors.is_some() { 600_000 } else { 500 });
        let strangers = Strangers { most, body: 100, patience };
        let node = || Echo { strangers: Some(strangers), ..Echo::default() };
        // Another process opens them, because their other ends would need descriptors here.
        let mut crowd = StrangerList::of(silent, &at.to_string());
        let mut member = connect(&at);
        let late = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        let before = descriptors.map(leave_room_for);
        let running = spawn(shard, node);
        exchange(&mut member, b"hello");
        crowd.connect();
        let begin = Instant::now();
        exchange(&mut member, b"a member goes on");
        assert!(begin.elapsed() < Duration::from_secs(1), "{backend}: {:?}", begin.elapsed());
        rustix::net::connect(&late, &at.tcp().unwrap()).unwrap();
        let mut late = std::net::TcpStream::from(late);
        late.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        exchange(&mut late, b"so does who comes now");
        if let Some(before) = before {
            assert!(running.notes().contains(&Note::NoDescriptors), "{backend}: that is said");
            setrlimit(Resource::Nofile, before).unwrap();
        } else {
            crowd.all_closed();
        }
        exchange(&mut member, &[7; 100_000]);
        running.end();
        if descriptors.is_some() {
            crowd.all_closed();
        }
    }
}

/// Silent connections from another process, which runs this same binary.
struct StrangerList(std::process::Child, std::io::BufReader<std::process::ChildStdout>);

impl StrangerList {
    fn of(many: usize, at: &str) -> StrangerList {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_crowd", "--ignored", "--nocapture"])
            .env("CROWD", format!("{many} {at}"))
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let out = std::io::BufReader::new(child.stdout.take().unwrap());
        StrangerList(child, out)
    }

    /// Reads the child's output until a line contains `what`.
    fn says(&mut self, what: &str) {
        let mut lines = self.1.by_ref().lines().map(|line| line.unwrap());
        assert!(lines.any(|line| line.contains(what)), "{what}");
    }

    /// Lets them dial, and waits until they have.
    fn connect(&mut self) {
        drop(self.0.stdin.take());
        self.says("all connected");
    }

    fn all_closed(&mut self) {
        self.says("all closed");
        self.says("1 passed");
        assert!(self.0.wait().unwrap().success());
    }
}

#[test]
#[ignore = "run by the others"]
fn the_crowd() {
    let Ok(crowd) = std::env::var("CROWD") else { return };
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let (many, at) = crowd.split_once(' ').unwrap();
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let dial = |_| std::net::TcpStream::connect(at).unwrap();
    let all: Vec<_> = (0..many.parse().unwrap()).map(dial).collect();
    println!("all connected");
    for mut one in all {
        assert!(!matches!(one.read(&mut [0]), Ok(1..)));
    }
    println!("all closed");
}

#[test]
fn thousands_of_silent_connections_keep_no_peer_out() {
    let _alone = ALONE.lock();
    silent_connections_keep_nobody_out(64, 3000, None);
}

#[test]
fn without_descriptors_strangers_make_room() {
    let _alone = ALONE.lock();
    silent_connections_keep_nobody_out(1024, 300, Some(10));
}

/// Returns the number of open descriptors of this process.
fn open() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn strangers_have_a_sixteenth_of_the_descriptors_and_sixteen_at_least() {
    let _alone = ALONE.lock();
    let before = getrlimit(Resource::Nofile);
    for (backend, (limit, most)) in
        backends().into_iter().zip([(320, 20), (96, 16)].into_iter().cycle())
    {
        let listeners = vec![Listener { port: Port::Ours, at: "127.0.0.1:0".parse().unwrap() }];
        let shard = Shard::bind(Config { backend, ..Config::of(listeners, vec![]) }).unwrap();
        let at = shard.addrs(0)[0].clone();
        let strangers = Strangers { most: 1024, body: 100, patience: Duration::from_secs(600) };
        setrlimit(Resource::Nofile, Rlimit { current: Some(limit), ..before }).unwrap();
        let running = spawn(shard, || Echo { strangers: Some(strangers), ..Echo::default() });
        let mut member = connect(&at);
        exchange(&mut member, b"hello");
        let mut crowd = StrangerList::of(60, &at.to_string());
        let alone = open() - 1; // without the crowd's input
        crowd.connect();
        let mut last = connect(&at);
        exchange(&mut last, b"who comes now is served: all before were taken");
        let began = Instant::now();
        // The last client has both ends here and came as a stranger: one of the crowd made room.
        let stay = alone + 2 + most - 1;
        while open() > stay {
            assert!(began.elapsed() < Duration::from_secs(60), "{} are open", open() - alone);
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(open(), stay, "{backend}");
        running.end();
        crowd.all_closed();
        setrlimit(Resource::Nofile, before).unwrap();
    }
}
