//! Behaviour of a shard beyond the contract: stopping, driving it from outside, several nodes,
//! files, addresses in use, unix sockets, many links at once, memory and bounds of greedy peers.

use crate::common::{Dir, Echo, Fill, Running, backends, connect, exchange, frame, spawn};
use rt::{Config, DiskSpec, ListenAddr, Listener, Reactor, RtError, Seat, Shard, Stop};
use rustix::event::{PollFd, PollFlags, poll};
use seam::{
    BlockError, BlockKind, BlockRequest, Buf, DiskId, Note, Port, RequestId, Strangers,
    UnsentLimits,
};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::BorrowedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

fn tcp() -> Listener {
    Listener { port: Port::Ours, at: "127.0.0.1:0".parse().unwrap() }
}

fn unix(path: std::path::PathBuf) -> Listener {
    Listener { port: Port::Target(0), at: ListenAddr::Unix(path) }
}

#[test]
fn a_sleeping_shard_stops_at_once_and_frees_its_port() {
    for backend in backends() {
        let shard = Shard::bind(Config { backend, ..Config::of(vec![tcp()], vec![]) }).unwrap();
        let at = shard.addrs(0)[0].clone();
        let running = spawn(shard, Echo::default);
        // An exchange shows that the shard runs; after that it has nothing to do.
        let mut peer = connect(&at);
        exchange(&mut peer, b"hello");
        running.end();
        assert_eq!(peer.read(&mut [0]).unwrap_or(0), 0, "the link is closed");
        TcpListener::bind(at.tcp().unwrap()).expect("the port is free");
    }
}

#[test]
fn a_peer_that_does_not_read_is_named_when_its_link_is_closed() {
    for backend in backends() {
        let config = Config { backend, link_queue: 1 << 16, ..Config::of(vec![tcp()], vec![]) };
        let shard = Shard::bind(config).unwrap();
        let at = shard.addrs(0)[0].clone();
        let running = spawn(shard, Echo::default);
        let mut peer = connect(&at);
        let own = peer.local_addr().unwrap();
        let one = frame(&[7; 1 << 20]);
        while peer.write_all(&one).is_ok() {}
        let named = |n: &Note| matches!(n, Note::Stuck { peer: Some(at), .. } if *at == own);
        let notes = running.notes();
        assert!(notes.iter().any(named), "{backend}: {notes:?}");
        running.end();
    }
}

#[test]
fn stopping_before_the_run_ends_it_at_once() {
    for backend in backends() {
        let shard = Shard::bind(Config { backend, ..Config::default() }).unwrap();
        let stop = rt::Stop::new();
        stop.stop();
        shard.run(vec![&mut Echo::default()], &stop, |_, _, _| {}).unwrap();
    }
}

fn start(config: Config) -> Reactor<Echo, impl FnMut(usize, base::Time, seam::Note)> {
    let nodes = config.seats.iter().map(|_| Echo::default()).collect();
    Shard::bind(config).unwrap().start(nodes, |_, _, _| {}).unwrap()
}

type Answer = Result<Vec<u8>, BlockError>;

/// Makes one request to a seat's device, and turns the loop until it is answered.
fn ask<T: FnMut(usize, base::Time, seam::Note)>(
    reactor: &mut Reactor<Echo, T>,
    seat: usize,
    kind: BlockKind,
    at: u64,
    bytes: &[u8],
) -> Answer {
    let mut body = reactor.alloc(bytes.len());
    body.as_mut().copy_from_slice(bytes);
    let body = if kind == BlockKind::Write { body } else { Buf::EMPTY };
    let (id, len) = (RequestId(at), bytes.len() as u32);
    let request = BlockRequest { volume: base::VolumeId(1), kind, at, len, body };
    reactor.request(seat, id, request);
    loop {
        if let Some((answered, result)) = reactor.answers().next() {
            assert_eq!(answered, id);
            return result.map(|data| data.to_vec());
        }
        reactor.turn(None).unwrap();
    }
}

#[test]
fn a_driven_shard_answers_each_seat_from_its_own_device() {
    for backend in backends() {
        let seat = |bytes| Seat { listeners: vec![tcp()], disks: vec![DiskSpec::Ram(bytes)] };
        let seats = vec![seat(1 << 20), seat(2 << 20)];
        let mut reactor = start(Config { backend, seats, ..Config::default() });
        for (seat, fill) in [(0, 3), (1, 5)] {
            assert_eq!(ask(&mut reactor, seat, BlockKind::Write, 8192, &[fill; 4096]), Ok(vec![]));
        }
        for (seat, fill) in [(0, 3), (1, 5)] {
            let read = ask(&mut reactor, seat, BlockKind::Read, 8192, &[0; 4096]);
            assert_eq!(read, Ok(vec![fill; 4096]));
        }
        let beyond = |r: &mut _, seat| ask(r, seat, BlockKind::Read, 1 << 20, &[0; 512]);
        assert_eq!(beyond(&mut reactor, 0), Err(BlockError::OutOfRange));
        assert_eq!(beyond(&mut reactor, 1), Ok(vec![0; 512]));
    }
}

#[test]
fn links_belong_to_the_seat_whose_address_was_dialled() {
    for backend in backends() {
        let seat = || Seat { listeners: vec![tcp()], disks: vec![] };
        let shard =
            Shard::bind(Config { backend, seats: vec![seat(), seat()], ..Config::default() })
                .unwrap();
        let at = [shard.addrs(0)[0].clone(), shard.addrs(1)[0].clone()];
        let stop = Stop::new();
        let for_thread = stop.clone();
        let thread = std::thread::spawn(move || {
            let (mut a, mut b) = (Echo::default(), Echo::default());
            shard.run(vec![&mut a, &mut b], &for_thread, |_, _, _| {}).unwrap();
            (a.frames, b.frames)
        });
        for (at, frames) in at.iter().zip([3, 4]) {
            let mut peer = connect(at);
            (0..frames).for_each(|n| exchange(&mut peer, &Fill(n).bytes(5000)));
        }
        stop.stop();
        assert_eq!(thread.join().unwrap(), (3, 4));
    }
}

/// Returns true if the descriptor becomes readable within this time.
fn readable(fd: BorrowedFd<'_>, within: Duration) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let time = rustix::time::Timespec::try_from(within).unwrap();
    poll(&mut fds, Some(&time)).unwrap() > 0
}

#[test]
fn an_armed_shard_is_readable_exactly_when_there_is_something_to_do() {
    for backend in backends() {
        let config = Config { backend, ..Config::of(vec![tcp()], vec![]) };
        let shard = Shard::bind(config).unwrap();
        let at = shard.addrs(0)[0].clone();
        let mut reactor = shard.start(vec![Echo::default()], |_, _, _| {}).unwrap();
        let settle = |reactor: &mut Reactor<Echo, _>| {
            while !reactor.arm().unwrap() {
                reactor.turn(Some(Duration::ZERO)).unwrap();
            }
        };
        settle(&mut reactor);
        assert!(!readable(reactor.fd(), Duration::from_millis(20)), "nothing to do");
        let mut peer = connect(&at);
        peer.write_all(&frame(&[7; 5000])).unwrap();
        while reactor.node(0).frames == 0 {
            settle(&mut reactor);
            if reactor.node(0).frames == 0 {
                assert!(readable(reactor.fd(), Duration::from_secs(20)), "a frame came");
            }
            reactor.turn(Some(Duration::ZERO)).unwrap();
        }
        settle(&mut reactor);
        let mut back = vec![0; 5004];
        peer.read_exact(&mut back).unwrap();
        assert_eq!(back, frame(&[7; 5000]));
    }
}

#[test]
fn an_armed_shard_misses_no_frame_while_its_thread_polls() {
    const FRAMES: u64 = 100;
    for backend in backends() {
        let config = Config { backend, ..Config::of(vec![tcp()], vec![]) };
        let shard = Shard::bind(config).unwrap();
        let at = shard.addrs(0)[0].clone();
        let mut reactor = shard.start(vec![Echo::default()], |_, _, _| {}).unwrap();
        let sender = std::thread::spawn(move || {
            let mut peer = connect(&at);
            for n in 0..FRAMES {
                // The reactor's thread sleeps by then.
                std::thread::sleep(Duration::from_millis(5));
                exchange(&mut peer, &Fill(n).bytes(100));
            }
        });
        while !sender.is_finished() {
            while !reactor.arm().unwrap() {
                reactor.turn(Some(Duration::ZERO)).unwrap();
            }
            let comes = readable(reactor.fd(), Duration::from_secs(5)) || sender.is_finished();
            assert!(comes, "{backend}: nothing came after {} frames", reactor.node(0).frames);
            reactor.turn(Some(Duration::ZERO)).unwrap();
        }
        sender.join().unwrap();
    }
}

#[test]
fn a_file_keeps_its_data_and_has_one_user() {
    let dir = Dir::new("file");
    let path = dir.0.join("disk");
    for backend in backends() {
        let config = || {
            let disks = vec![DiskSpec::Growing { path: path.clone() }];
            Config { backend, ..Config::of(vec![], disks) }
        };
        let _ = std::fs::remove_file(&path);
        for (kind, before, answer) in
            [(BlockKind::Write, 0, vec![]), (BlockKind::Read, 15_000, vec![9; 5000])]
        {
            let shard = Shard::bind(config()).unwrap();
            assert_eq!(shard.disk_bytes(0, DiskId(0)), Some(before));
            assert_eq!(shard.disk_bytes(0, DiskId(1)), None);
            let mut reactor = shard.start(vec![Echo::default()], |_, _, _| {}).unwrap();
            assert_eq!(ask(&mut reactor, 0, kind, 10_000, &[9; 5000]), Ok(answer));
            assert!(matches!(Shard::bind(config()), Err(RtError::Locked { .. })));
        }
    }
    let nowhere = DiskSpec::Growing { path: dir.0.join("none/disk") };
    let error = Shard::bind(Config::of(vec![], vec![nowhere])).err().unwrap();
    assert!(error.to_string().contains("make the folder first"), "{error}");
}

#[test]
fn a_full_file_system_is_reported_as_such() {
    for backend in backends() {
        // Every write to it fails with ENOSPC.
        let disks = vec![DiskSpec::Growing { path: "/dev/full".into() }];
        let mut reactor = start(Config { backend, ..Config::of(vec![], disks) });
        let answer = ask(&mut reactor, 0, BlockKind::Write, 0, &[1; 512]);
        assert_eq!(answer, Err(BlockError::Full));
    }
}

#[test]
fn a_port_in_use_is_named_with_what_to_do() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = ListenAddr::Tcp(other.local_addr().unwrap());
    let listeners = vec![Listener { port: Port::Ours, at: at.clone() }];
    let error = Shard::bind(Config::of(listeners, vec![])).err().unwrap();
    assert!(matches!(&error, RtError::InUse { at: a } if *a == at));
    let text = error.to_string();
    assert!(text.contains(&at.to_string()) && text.contains("ss -ltnp"), "{text}");
}

#[test]
fn a_unix_socket_is_taken_over_only_from_the_dead() {
    let dir = Dir::new("unix");
    let path = dir.0.join("socket");
    let config = |backend| Config { backend, ..Config::of(vec![unix(path.clone())], vec![]) };
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
        std::thread::spawn(move || shard.run(vec![&mut Echo::default()], &stop, |_, _, _| {}))
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
        let shard = Shard::bind(Config { backend, ..Config::of(vec![tcp()], vec![]) }).unwrap();
        let at = shard.addrs(0)[0].clone();
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
                            // Closes in the middle of a frame, with an unread answer on its way.
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
        let shard = Shard::bind(Config { backend, ..Config::of(vec![tcp()], vec![]) }).unwrap();
        let at = shard.addrs(0)[0].clone();
        let running = spawn(shard, Echo::default);
        let mut peer = connect(&at);
        exchange(&mut peer, b"busy");
        let before = running.busy();
        let (tx, rx) = std::sync::mpsc::channel::<()>();
        assert!(rx.recv_timeout(Duration::from_millis(300)).is_err(), "time passes");
        drop(tx);
        let busy = running.busy() - before;
        assert!(busy < Duration::from_millis(30), "{backend}: {busy:?} in 300 ms of nothing");
        exchange(&mut peer, b"still there");
        running.end();
    }
}

/// Talks to the shard until `reached` accepts the number of buffer bytes in use, and returns it.
fn until(running: &Running, member: &mut TcpStream, reached: impl Fn(u64) -> bool) -> u64 {
    let began = Instant::now();
    loop {
        exchange(member, b"go on");
        let used = running.memory();
        if reached(used) {
            return used;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{used} bytes are in use");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn frames_of_strangers_cost_little_memory_and_none_when_they_are_gone() {
    const MANY: u64 = 60;
    // Three bytes of a head, or all but one byte of the longest allowed frame.
    let almost = frame(&[1; 8 << 10]);
    let (short, long) = (&[0; 3][..], &almost[..almost.len() - 1]);
    let strangers = Strangers { most: 64, body: 8 << 10, patience: Duration::from_secs(600) };
    for backend in backends() {
        let shard = Shard::bind(Config { backend, ..Config::of(vec![tcp()], vec![]) }).unwrap();
        let at = shard.addrs(0)[0].clone();
        let running = spawn(shard, || Echo { strangers: Some(strangers), ..Echo::default() });
        let mut member = connect(&at);
        let alone = until(&running, &mut member, |_| true);
        for (part, least, most) in [(short, 4 << 10, 4 << 10), (long, 8 << 10, 16 << 10)] {
            let mut crowd: Vec<_> = (0..MANY).map(|_| connect(&at)).collect();
            crowd.iter_mut().for_each(|one| one.write_all(part).unwrap());
            let used = until(&running, &mut member, |used| used >= alone + MANY * least);
            assert!(used <= alone + (MANY + 4) * most, "{backend:?}: {used} bytes are in use");
            drop(crowd);
            until(&running, &mut member, |used| used < alone + MANY / 2 * least);
        }
        running.end();
    }
}

#[test]
fn a_panic_in_the_node_frees_nothing_too_early() {
    for backend in backends() {
        let shard = Shard::bind(Config { backend, ..Config::of(vec![tcp()], vec![]) }).unwrap();
        let at = shard.addrs(0)[0].clone();
        let mut peers: Vec<_> = (0..10).map(|_| connect(&at)).collect();
        let began = Instant::now();
        let thread = std::thread::spawn(move || {
            let mut node = Echo { panic_at: Some(5), ..Echo::default() };
            shard.run(vec![&mut node], &rt::Stop::new(), |_, _, _| {})
        });
        for p in &mut peers {
            let _ = p.write_all(&frame(&[1; 100_000]));
        }
        assert!(thread.join().is_err(), "it panics");
        assert!(began.elapsed() < Duration::from_secs(10), "everything came back from the kernel");
        for mut p in peers {
            // The end of the stream, or a reset because of unread data.
            let _ = p.read_to_end(&mut Vec::new());
        }
    }
}

/// Frames that one greedy client sends, and bytes in the body of each.
const ASKED: u64 = 4096;
const EACH: usize = 16 << 10;

/// A client that sends many frames without reading; `sent` counts them.
struct Greedy {
    stream: TcpStream,
    sent: Arc<AtomicU64>,
    writer: JoinHandle<std::io::Result<()>>,
}

impl Greedy {
    fn start(at: &ListenAddr) -> Greedy {
        let (stream, sent) = (connect(at), Arc::<AtomicU64>::default());
        let (mut to, count) = (stream.try_clone().unwrap(), sent.clone());
        let writer = std::thread::spawn(move || {
            for n in 0..ASKED {
                to.write_all(&frame(&Fill(n).bytes(EACH)))?;
                count.store(n + 1, Ordering::Relaxed);
            }
            Ok(())
        });
        Greedy { stream, sent, writer }
    }

    /// Waits until the client can't send more, and returns how many frames it has sent.
    fn wait_stopped(&self) -> u64 {
        let mut before = 0;
        loop {
            std::thread::sleep(Duration::from_millis(300));
            let sent = self.sent.load(Ordering::Relaxed);
            if sent > 0 && sent == before {
                return sent;
            }
            before = sent;
        }
    }

    /// Reads all answers.
    fn read_all(mut self) {
        for n in 0..ASKED {
            let mut got = vec![0; 4 + EACH];
            self.stream.read_exact(&mut got).unwrap();
            assert_eq!(got, frame(&Fill(n).bytes(EACH)), "answer {n}");
        }
        self.writer.join().unwrap().unwrap();
    }
}

fn echo_that_bounds(unsent: UnsentLimits) -> impl FnOnce() -> Echo {
    move || Echo { unsent: Some(unsent), ..Echo::default() }
}

#[test]
fn a_peer_that_reads_no_answers_is_paused_until_it_does() {
    let unsent = UnsentLimits { link: 64 << 10, all: u64::MAX, patience: Duration::ZERO };
    for backend in backends() {
        let shard = Shard::bind(Config { backend, ..Config::of(vec![tcp()], vec![]) }).unwrap();
        let at = shard.addrs(0)[0].clone();
        let running = spawn(shard, echo_that_bounds(unsent));
        let (greedy, mut other) = (Greedy::start(&at), connect(&at));
        let sent = greedy.wait_stopped();
        assert!(sent < ASKED, "{backend:?}: the kernel alone doesn't hold {sent} frames");
        exchange(&mut other, b"hello");
        greedy.read_all();
        exchange(&mut other, b"hello");
        running.end();
    }
}

#[test]
fn when_too_much_output_waits_the_longest_idle_peer_is_closed() {
    let patience = Duration::from_millis(200);
    // A link that is not read has 32 to 80 KiB unsent: one is within the bound, three never are.
    let unsent = UnsentLimits { link: 64 << 10, all: 88 << 10, patience };
    for backend in backends() {
        let shard = Shard::bind(Config { backend, ..Config::of(vec![tcp()], vec![]) }).unwrap();
        let at = shard.addrs(0)[0].clone();
        let running = spawn(shard, echo_that_bounds(unsent));
        let mut other = connect(&at);
        let mut greedy: Vec<Greedy> = (0..4).map(|_| Greedy::start(&at)).collect();
        let mut without_those_gone = |greedy: &mut Vec<Greedy>| {
            exchange(&mut other, b"hello");
            while let Some(i) = greedy.iter().position(|g| g.writer.is_finished()) {
                let gone = greedy.remove(i);
                assert!(gone.writer.join().unwrap().is_err(), "{backend:?}: it sent everything");
            }
        };
        let began = Instant::now();
        while greedy.len() > 2 {
            assert!(began.elapsed() < Duration::from_secs(60), "{backend:?}: nobody goes");
            without_those_gone(&mut greedy);
            std::thread::sleep(Duration::from_millis(10));
        }
        // Two may exceed the bound, so one of them may go.
        std::thread::sleep(patience * 5);
        without_those_gone(&mut greedy);
        greedy.truncate(1);
        greedy.pop().unwrap().read_all();
        exchange(&mut other, b"hello");
        running.end();
    }
}
