//! A node that sends everything back, and helpers to talk to it.

use rt::{Backend, Config, ListenAddr, RtError, Shard, Stop};
use seam::{
    BlockError, BlockKind, DiskError, DiskId, DiskOp, Effect, Effects, Event, FrameError, Framer,
    Framing, Head, Node, Note, Port, RequestId, Strangers, UnsentLimits,
};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Says that a test leaves something out, because this machine lacks or forbids something. Panics
/// if the environment has `GABION_ALL=1`. `cargo xtask test` lists it at its end: the line bypasses
/// the capture of output of tests that pass.
pub(crate) fn leave_out(why: &str) {
    let all = std::env::var("GABION_ALL").is_ok_and(|all| !all.is_empty() && all != "0");
    assert!(!all, "GABION_ALL is set, and this was left out: {why}");
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let _ = writeln!(std::io::stdout(), "\nLEFT OUT: {test}: {why}");
}

/// Returns the backends that work here. `GABION_EPOLL_ONLY=1` leaves out io_uring, which valgrind
/// can't run.
pub(crate) fn backends() -> Vec<Backend> {
    if std::env::var_os("GABION_EPOLL_ONLY").is_some() {
        return vec![Backend::Epoll];
    }
    match Shard::bind(Config { backend: Backend::Uring, ..Config::default() }) {
        Ok(_) => vec![Backend::Epoll, Backend::Uring],
        Err(RtError::NoUring { why }) => {
            leave_out(&format!("io_uring: {why}"));
            vec![Backend::Epoll]
        }
        Err(e) => panic!("{e}"),
    }
}

/// Frames of a length followed by that many bytes.
pub(crate) struct Lengths;

impl Framer for Lengths {
    fn frame(&mut self, start: &[u8]) -> Result<Framing, FrameError> {
        match start.first_chunk::<4>() {
            None => Ok(Framing::Need(4)),
            Some(len) => Ok(Framing::Frame { head: 4, body: u32::from_le_bytes(*len) as usize }),
        }
    }
}

/// Sends each frame back. Requests go to its first device.
#[derive(Default)]
pub(crate) struct Echo {
    pub frames: u64,
    pub panic_at: Option<u64>,
    /// Bytes of the shard's buffers in use.
    pub memory: Arc<AtomicU64>,
    pub requests: BTreeMap<u64, RequestId>,
    pub next: u64,
    /// Its limits for strangers.
    pub strangers: Option<Strangers>,
    /// Its bounds on unsent data.
    pub unsent: Option<UnsentLimits>,
}

impl Node for Echo {
    type Framer = Lengths;

    fn framer(&mut self, _: Port) -> Lengths {
        Lengths
    }

    fn strangers(&self, _: Port) -> Option<Strangers> {
        self.strangers
    }

    fn unsent(&self, _: Port) -> Option<UnsentLimits> {
        self.unsent
    }

    fn on(&mut self, _: base::Time, event: Event<'_>, out: &mut Effects) {
        match event {
            Event::Frame { link, head, body } => {
                self.frames += 1;
                assert_ne!(Some(self.frames), self.panic_at, "as ordered");
                out.push(Effect::Welcome { link });
                out.send(link, Head::new(head), body);
            }
            Event::Request { id, request } => {
                let (op, disk) = (DiskOp(self.next), DiskId(0));
                self.next += 1;
                self.requests.insert(op.0, id);
                out.push(match request.kind {
                    BlockKind::Read => Effect::Read { op, disk, at: request.at, len: request.len },
                    BlockKind::Write => Effect::Write {
                        op,
                        disk,
                        at: request.at,
                        body: request.body,
                        durable: false,
                    },
                    _ => Effect::Flush { op, disk },
                });
            }
            Event::DiskDone { op, result } => {
                let id = self.requests.remove(&op.0).expect("an operation that was begun");
                let result = result.map_err(|e| match e {
                    DiskError::OutOfRange => BlockError::OutOfRange,
                    DiskError::NoSpace => BlockError::Full,
                    DiskError::Io
                    | DiskError::Unsupported
                    | DiskError::Corrupt { .. }
                    | DiskError::BadBody => BlockError::Media,
                });
                out.push(Effect::Reply { id, result });
            }
            _ => {}
        }
    }

    fn flush(&mut self, _: base::Time, out: &mut Effects) {
        self.memory.store(out.pool().used() as u64, Ordering::Relaxed);
    }

    fn wake_at(&self) -> Option<base::Time> {
        None
    }
}

/// A shard on a thread.
pub(crate) struct Running {
    stop: Stop,
    /// The kernel's information about its thread.
    stat: File,
    notes: Arc<Mutex<Vec<Note>>>,
    memory: Arc<AtomicU64>,
    thread: JoinHandle<Result<(), RtError>>,
}

pub(crate) fn spawn(shard: Shard, make: impl FnOnce() -> Echo) -> Running {
    let mut node = make();
    let (stop, memory) = (Stop::new(), node.memory.clone());
    let for_thread = stop.clone();
    let notes: Arc<Mutex<Vec<Note>>> = Arc::default();
    let told = notes.clone();
    let on_note = move |_, _, note| told.lock().unwrap().push(note);
    let (tell, told) = channel();
    let thread = std::thread::spawn(move || {
        tell.send(File::open("/proc/thread-self/stat").unwrap()).unwrap();
        shard.run(vec![&mut node], &for_thread, on_note)
    });
    let stat = told.recv().unwrap();
    Running { stop, stat, memory, notes, thread }
}

impl Running {
    /// Returns how long the thread has used a processor so far, to 10 ms.
    pub(crate) fn busy(&self) -> Duration {
        let mut stat = [0; 1024];
        let len = self.stat.read_at(&mut stat, 0).unwrap();
        let stat = std::str::from_utf8(&stat[..len]).unwrap();
        // After the name in brackets: user and system time, in ticks of 10 ms.
        let (_, words) = stat.rsplit_once(')').unwrap();
        let ticks = words.split_whitespace().skip(11).take(2).map(|n| n.parse::<u64>().unwrap());
        Duration::from_millis(10 * ticks.sum::<u64>())
    }

    /// Returns the notes so far.
    pub(crate) fn notes(&self) -> Vec<Note> {
        self.notes.lock().unwrap().clone()
    }

    /// Returns the bytes of buffers in use when the node was called last.
    pub(crate) fn memory(&self) -> u64 {
        self.memory.load(Ordering::Relaxed)
    }

    pub(crate) fn end(self) {
        self.stop.stop();
        self.thread.join().unwrap().unwrap();
    }
}

pub(crate) fn connect(at: &ListenAddr) -> TcpStream {
    TcpStream::connect(at.tcp().expect("a TCP address")).unwrap()
}

pub(crate) fn frame(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32).to_le_bytes()[..], body].concat()
}

/// Sends one frame and checks that it comes back.
pub(crate) fn exchange(peer: &mut (impl Read + Write), body: &[u8]) {
    let sent = frame(body);
    peer.write_all(&sent).unwrap();
    let mut back = vec![0; sent.len()];
    peer.read_exact(&mut back).unwrap();
    assert!(back == sent, "{} bytes came back changed", body.len());
}

/// Bytes that depend on a number.
pub(crate) struct Fill(pub u64);

impl Fill {
    pub(crate) fn bytes(&self, len: usize) -> Vec<u8> {
        let mut rng = base::Prng::new(self.0);
        let mut bytes = vec![0; len];
        bytes
            .chunks_mut(8)
            .for_each(|c| c.copy_from_slice(&rng.next_u64().to_le_bytes()[..c.len()]));
        bytes
    }
}

/// A directory that is removed with the test.
pub(crate) struct Dir(pub PathBuf);

impl Dir {
    pub(crate) fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("gabion-rt-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
