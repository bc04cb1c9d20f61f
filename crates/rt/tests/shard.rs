//! What a user of a shard sees beyond the contract: stopping, requests from other threads, files,
//! addresses that are taken, unix sockets, many links at once, a process without descriptors.

mod common;

use common::{Dir, Echo, Fill, backends, connect, exchange, frame, spawn};
use rt::{
    Bytes, Closed, Config, DiskSpec, ListenAddr, Listener, RawBytes, Request, RtError, Shard,
    SubmitError,
};
use seam::{BlockError, BlockKind, DiskId, Port};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

fn tcp() -> Listener {
    Listener { port: Port::Peer, at: "127.0.0.1:0".parse().unwrap() }
}

fn unix(path: std::path::PathBuf) -> Listener {
    Listener { port: Port::Nbd, at: ListenAddr::Unix(path) }
}

#[test]
fn a_sleeping_shard_stops_at_once_and_frees_its_port() {
    for backend in backends() {
        let shard =
            Shard::bind(Config { backend, listeners: vec![tcp()], ..Config::default() }).unwrap();
        let at = shard.addrs()[0].clone();
        let running = spawn(shard, Echo::default);
        // A connection that is served shows that it runs; then it has nothing to do.
        let mut peer = connect(&at);
        exchange(&mut peer, b"hello");
        running.end();
        assert_eq!(peer.read(&mut [0]).unwrap_or(0), 0, "the link is closed");
        TcpListener::bind(at.tcp().unwrap()).expect("the port is free");
    }
}

#[test]
fn stopping_before_the_run_ends_it_at_once() {
    for backend in backends() {
        let shard = Shard::bind(Config { backend, ..Config::default() }).unwrap();
        let stop = rt::Stop::new();
        stop.stop();
        shard.run(&mut Echo::default(), &stop, |_, _| {}).unwrap();
    }
}

#[test]
fn requests_of_other_threads_are_answered_in_bounds() {
    for backend in backends() {
        let shard = Shard::bind(Config {
            backend,
            disks: vec![DiskSpec::Ram(2 << 20)],
            ..Config::default()
        })
        .unwrap();
        let mailbox = shard.mailbox();
        let running = spawn(shard, Echo::default);
        let threads: Vec<_> = (0..4u64)
            .map(|t| {
                let client = mailbox.client(8);
                std::thread::spawn(move || {
                    let (mut tag, mut replies) = (0, Vec::new());
                    while tag < 500 || client.outstanding() > 0 {
                        while tag < 500 {
                            // Echo writes a request's data to its device, and reads from there.
                            let at = t * (256 << 10) + (tag / 2 % 64) * 4096;
                            let (kind, bytes) = match tag % 2 {
                                0 => (BlockKind::Write, vec![tag as u8; 4096]),
                                _ => (BlockKind::Read, Vec::new()),
                            };
                            match client.submit(tag, request(kind, at, 4096, bytes)) {
                                Ok(()) => tag += 1,
                                Err(SubmitError::Full(_)) => break,
                                Err(SubmitError::Closed(_)) => panic!("it has not ended"),
                            }
                        }
                        assert!(client.outstanding() <= 8);
                        client.collect(None, &mut replies).unwrap();
                        for r in replies.drain(..) {
                            r.result.unwrap();
                            let Bytes::Vec(data) = r.bytes else { panic!("what was given") };
                            assert_eq!(data, vec![(r.tag - r.tag % 2) as u8; 4096]);
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());

        let client = mailbox.client(2);
        let mut memory = [7u8; 512];
        // SAFETY: `memory` lives until the reply has been collected, and is not used meanwhile.
        let raw = unsafe { RawBytes::new(memory.as_mut_ptr(), memory.len()) };
        let read = Request {
            bytes: Bytes::Raw(raw),
            ..request(BlockKind::Read, 1500 << 10, 512, Vec::new())
        };
        client.submit(1, read).unwrap();
        let mut replies = Vec::new();
        assert_eq!(client.collect(None, &mut replies), Ok(1));
        assert_eq!((replies[0].result, memory), (Ok(()), [0; 512]));
        client.submit(2, request(BlockKind::Read, 4 << 20, 512, Vec::new())).unwrap();
        assert_eq!(client.collect(None, &mut replies), Ok(1));
        assert_eq!(replies[1].result, Err(BlockError::OutOfRange));
        assert_eq!(client.collect(Some(Duration::ZERO), &mut replies), Ok(0));
        assert_eq!(client.collect(Some(Duration::from_millis(1)), &mut replies), Ok(0));

        let waiter = mailbox.client(1);
        let waiting = std::thread::spawn(move || waiter.collect(None, &mut Vec::new()));
        running.end();
        assert_eq!(waiting.join().unwrap(), Err(Closed), "whoever waits learns the end");
        let late = client.submit(3, request(BlockKind::Flush, 0, 0, Vec::new()));
        assert!(matches!(late, Err(SubmitError::Closed(_))));
        assert_eq!(mailbox.client(1).collect(None, &mut Vec::new()), Err(Closed));
    }
}

fn request(kind: BlockKind, at: u64, len: u32, bytes: Vec<u8>) -> Request {
    Request { volume: base::VolumeId(1), kind, at, len, bytes: Bytes::Vec(bytes) }
}

#[test]
fn a_shard_that_never_ran_closes_its_mailbox() {
    let shard = Shard::bind(Config::default()).unwrap();
    let client = shard.mailbox().client(1);
    client.submit(1, request(BlockKind::Flush, 0, 0, Vec::new())).unwrap();
    drop(shard);
    assert_eq!(client.collect(None, &mut Vec::new()), Err(Closed));
}

#[test]
fn a_file_keeps_its_data_and_has_one_user() {
    let dir = Dir::new("file");
    let path = dir.0.join("disk");
    for backend in backends() {
        let config = || Config {
            backend,
            disks: vec![DiskSpec::File { path: path.clone() }],
            ..Config::default()
        };
        let _ = std::fs::remove_file(&path);
        for (kind, bytes) in [(BlockKind::Write, vec![9; 5000]), (BlockKind::Read, vec![])] {
            let shard = Shard::bind(config()).unwrap();
            let size = if kind == BlockKind::Write { 0 } else { 10_000 + 5000 };
            assert_eq!(shard.disk_bytes(DiskId(0)), Some(size));
            assert_eq!(shard.disk_bytes(DiskId(1)), None);
            let client = shard.mailbox().client(1);
            let running = spawn(shard, Echo::default);
            client.submit(0, request(kind, 10_000, 5000, bytes)).unwrap();
            let mut replies = Vec::new();
            client.collect(None, &mut replies).unwrap();
            assert_eq!(replies[0].result, Ok(()));
            assert!(matches!(Shard::bind(config()), Err(RtError::Locked { .. })));
            running.end();
            let Bytes::Vec(data) = &replies[0].bytes else { panic!("what was given") };
            assert_eq!(data, &vec![9; 5000]);
        }
    }
    let nowhere = DiskSpec::File { path: dir.0.join("none/disk") };
    let error = Shard::bind(Config { disks: vec![nowhere], ..Config::default() }).err().unwrap();
    assert!(error.to_string().contains("make the folder first"), "{error}");
}

#[test]
fn a_full_file_system_is_told_as_such() {
    for backend in backends() {
        // Every write to it fails with ENOSPC.
        let disks = vec![DiskSpec::File { path: "/dev/full".into() }];
        let shard = Shard::bind(Config { backend, disks, ..Config::default() }).unwrap();
        let client = shard.mailbox().client(1);
        let running = spawn(shard, Echo::default);
        client.submit(0, request(BlockKind::Write, 0, 512, vec![1; 512])).unwrap();
        let mut replies = Vec::new();
        client.collect(None, &mut replies).unwrap();
        assert_eq!(replies[0].result, Err(BlockError::Full));
        running.end();
    }
}

#[test]
fn a_port_in_use_is_named_with_what_to_do() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = ListenAddr::Tcp(other.local_addr().unwrap());
    let listeners = vec![Listener { port: Port::Peer, at: at.clone() }];
    let error = Shard::bind(Config { listeners, ..Config::default() }).err().unwrap();
    assert!(matches!(&error, RtError::InUse { at: a } if *a == at));
    let text = error.to_string();
    assert!(text.contains(&at.to_string()) && text.contains("ss -ltnp"), "{text}");
}

#[test]
fn a_unix_socket_is_taken_over_only_from_the_dead() {
    let dir = Dir::new("unix");
    let path = dir.0.join("socket");
    let config =
        |backend| Config { backend, listeners: vec![unix(path.clone())], ..Config::default() };
    for backend in backends() {
        drop(UnixListener::bind(&path).unwrap()); // leaves its file behind
        let shard = Shard::bind(config(backend)).unwrap();
        let taken = Shard::bind(config(backend));
        assert!(matches!(taken, Err(RtError::InUse { .. })));
        let running = spawn(shard, Echo::default);
        let mut peer = UnixStream::connect(&path).unwrap();
        exchange(&mut peer, b"by file");
        exchange(&mut peer, &[3; 300_000]);
        running.end();
        assert!(!path.exists(), "a socket that is gone leaves no file");
    }
    std::fs::write(&path, "precious").unwrap();
    let backend = rt::Backend::Auto;
    assert!(matches!(Shard::bind(config(backend)), Err(RtError::NotASocket { .. })));
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}

#[test]
fn a_core_that_is_not_there_is_an_error_and_a_core_that_is_works() {
    let run = |core| {
        let shard = Shard::bind(Config { pin: Some(core), ..Config::default() }).unwrap();
        let stop = rt::Stop::new();
        stop.stop();
        std::thread::spawn(move || shard.run(&mut Echo::default(), &stop, |_, _| {}))
            .join()
            .unwrap()
    };
    run(0).unwrap();
    for core in [1000, 1 << 20] {
        assert!(matches!(run(core), Err(RtError::Pin { .. })));
    }
}

#[test]
fn many_links_at_once_all_get_their_own_back() {
    for backend in backends() {
        let shard =
            Shard::bind(Config { backend, listeners: vec![tcp()], ..Config::default() }).unwrap();
        let at = shard.addrs()[0].clone();
        let running = spawn(shard, Echo::default);
        let threads: Vec<_> = (0..6u64)
            .map(|t| {
                let at = at.clone();
                std::thread::spawn(move || {
                    let mut rng = base::Prng::new(t);
                    let mut peers: Vec<_> = (0..20).map(|_| Some(connect(&at))).collect();
                    for round in 0..400 {
                        let i = rng.below(20) as usize;
                        let peer = peers[i].get_or_insert_with(|| connect(&at));
                        let len = *rng.pick(&[0, 1, 100, 4096, 4096, 30_000, 200_000]);
                        exchange(peer, &Fill(t ^ round).bytes(len));
                        if rng.chance(0.1) {
                            // In the middle of a frame, with an answer on its way that is not read.
                            let bytes = frame(&Fill(t).bytes(50_000));
                            let peer = peers[i].as_mut().unwrap();
                            peer.write_all(&bytes).unwrap();
                            peer.write_all(&bytes[..20_000]).unwrap();
                            peers[i] = None;
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        running.end();
    }
}

#[test]
fn an_idle_shard_uses_no_processor() {
    for backend in backends() {
        let shard =
            Shard::bind(Config { backend, listeners: vec![tcp()], ..Config::default() }).unwrap();
        let at = shard.addrs()[0].clone();
        let running = spawn(shard, Echo::default);
        let mut peer = connect(&at);
        exchange(&mut peer, b"busy");
        // Echo counts the driver's batches. An idle shard has none.
        let before = running.batches();
        let (tx, rx) = std::sync::mpsc::channel::<()>();
        assert!(rx.recv_timeout(Duration::from_millis(300)).is_err(), "time passes");
        drop(tx);
        let batches = running.batches() - before;
        assert!(batches < 10, "{backend}: {batches} batches in 300 ms of nothing");
        exchange(&mut peer, b"still there");
        running.end();
    }
}

#[test]
fn a_panic_in_the_node_frees_nothing_too_early() {
    for backend in backends() {
        let shard =
            Shard::bind(Config { backend, listeners: vec![tcp()], ..Config::default() }).unwrap();
        let at = shard.addrs()[0].clone();
        let mut peers: Vec<_> = (0..10).map(|_| connect(&at)).collect();
        let began = Instant::now();
        let thread = std::thread::spawn(move || {
            let mut node = Echo { panic_at: Some(5), ..Echo::default() };
            shard.run(&mut node, &rt::Stop::new(), |_, _| {})
        });
        for p in &mut peers {
            let _ = p.write_all(&frame(&[1; 100_000]));
        }
        assert!(thread.join().is_err(), "it panics");
        assert!(began.elapsed() < Duration::from_secs(10), "everything came back from the kernel");
        for mut p in peers {
            // The end, or a reset for what was not read.
            let _ = p.read_to_end(&mut Vec::new());
        }
    }
}
