//! A process that runs out of file descriptors. A binary of its own: the limit is the process's.

mod common;

use common::{Echo, backends, connect, exchange, spawn};
use rt::{Config, Listener, Shard};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use seam::Port;
use std::io::{ErrorKind, Read};
use std::time::Duration;

/// Lets this process open `n` more descriptors than the highest one that is open now.
fn leave_room_for(n: u64) -> Rlimit {
    let before = getrlimit(Resource::Nofile);
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let number =
        |e: std::io::Result<std::fs::DirEntry>| e.ok()?.file_name().to_str()?.parse::<u64>().ok();
    let highest = open.filter_map(number).max().unwrap();
    setrlimit(Resource::Nofile, Rlimit { current: Some(highest + 1 + n), ..before }).unwrap();
    before
}

#[test]
fn without_descriptors_a_shard_waits_and_goes_on_when_some_are_free() {
    for backend in backends() {
        let listeners = vec![Listener { port: Port::Peer, at: "127.0.0.1:0".parse().unwrap() }];
        let shard = Shard::bind(Config { backend, ..Config::of(listeners, vec![]) }).unwrap();
        let at = shard.addrs(0)[0].clone();
        // The kernel takes them all, before the shard accepts any.
        let mut peers: Vec<_> = (0..30).map(|_| connect(&at)).collect();
        let before = leave_room_for(10);
        let running = spawn(shard, Echo::default);
        exchange(&mut peers[0], b"some are accepted");
        peers[29].set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let batches = running.batches();
        let early = peers[29].read(&mut [0]).map_err(|e| e.kind());
        assert_eq!(early, Err(ErrorKind::WouldBlock), "not this one");
        let batches = running.batches() - batches;
        assert!(batches < 30, "{backend}: {batches} batches in 300 ms");
        peers.drain(..20);
        peers[9].set_read_timeout(None).unwrap();
        exchange(&mut peers[9], b"accepted at last");
        running.end();
        setrlimit(Resource::Nofile, before).unwrap();
    }
}
