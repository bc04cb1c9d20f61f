//! The floor: one client process and N server processes that exchange bare frames by epoll, with one
//! send per connection and batch, as any good implementation of the pattern would.
//!
//! Read: client -> server, server -> client with payload. Write: client -> A with payload, A -> B
//! with payload, B -> A, A -> client. Servers copy payloads into and out of a store of 16 MiB.

use super::measure::{Counters, Figures, measure};
use super::stream::{Head, Stream};
use super::{BenchArgs, Pattern};
use crate::ports;
use anyhow::{Context, Result, bail};
use base::Prng;
use clap::Args;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const READ: u32 = 1;
const WRITE: u32 = 2;
const COPY: u32 = 3;
const COPIED: u32 = 4;
const DONE: u32 = 5;

/// How a connection says that it is the client's.
const CLIENT: u32 = u32::MAX;
const STORE: usize = 16 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// No socket is ready: the loop looks whether it should end.
const IDLE: Duration = Duration::from_millis(100);

/// Options of one server.
#[derive(Args, Debug)]
pub struct ServerArgs {
    /// Which server this is
    #[arg(long)]
    index: u32,
    /// Where all servers listen
    #[arg(long, value_delimiter = ',')]
    ports: Vec<u16>,
    /// Bytes of a payload
    #[arg(long)]
    block: usize,
}

struct Servers(Vec<Child>);

impl Drop for Servers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs the servers and the client, and measures.
pub fn run(args: &BenchArgs) -> Result<Figures> {
    if args.pattern == Pattern::Write && args.servers < 2 {
        bail!("two copies need two servers");
    }
    let addresses = ports::free(args.servers as usize)?;
    let ports: Vec<String> = addresses.iter().map(|a| a.port().to_string()).collect();
    let mut servers = Servers(Vec::new());
    for index in 0..args.servers {
        let child = Command::new(std::env::current_exe()?)
            .args(["bench", "floor-server", "--index", &index.to_string()])
            .args(["--ports", &ports.join(","), "--block", &args.block.0.to_string()])
            .stdin(Stdio::null())
            .spawn()?;
        servers.0.push(child);
    }
    let counters = Arc::new(Counters::default());
    let stop = Arc::new(AtomicBool::new(false));
    let mut client = Mesh::new(CLIENT, args.block.0 as usize)?;
    for address in addresses {
        client.add(dial(address, CLIENT)?, 0)?;
    }
    let (issue, count, halt) = (args.clone(), counters.clone(), stop.clone());
    let thread = std::thread::spawn(move || client.load(&issue, &count, &halt));
    let pids: Vec<u32> = servers.0.iter().map(Child::id).chain([std::process::id()]).collect();
    let figures = measure(&counters, &pids, args.window());
    stop.store(true, Ordering::Relaxed);
    drop(servers);
    // The servers' end is what ends the client, mostly; that error says nothing.
    let _ = thread.join();
    figures
}

/// Runs one server until a connection ends.
pub fn serve(args: &ServerArgs) -> Result<()> {
    let at = |i: u32| SocketAddr::from((Ipv4Addr::LOCALHOST, args.ports[i as usize]));
    let count = args.ports.len() as u32;
    let listener = TcpListener::bind(at(args.index))?;
    let mut mesh = Mesh::new(args.index, args.block)?;
    mesh.peers = vec![usize::MAX; args.ports.len()];
    for i in 0..args.index {
        mesh.add(dial(at(i), args.index)?, i)?;
    }
    // The later servers and the client, in any order.
    for _ in args.index..count {
        let (mut socket, _) = listener.accept()?;
        let mut id = [0; 4];
        socket.read_exact(&mut id)?;
        mesh.add(socket, u32::from_le_bytes(id))?;
    }
    // A connection that breaks is how a measurement ends, as well as how it fails: the client knows.
    let _ = mesh.run(&AtomicBool::new(false), Mesh::answer);
    Ok(())
}

fn dial(address: SocketAddr, id: u32) -> Result<TcpStream> {
    let deadline = Instant::now() + CONNECT_TIMEOUT;
    loop {
        match TcpStream::connect(address) {
            Ok(mut socket) => {
                socket.write_all(&id.to_le_bytes())?;
                return Ok(socket);
            }
            Err(e) if Instant::now() > deadline => {
                return Err(e).context("a server does not listen");
            }
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

/// One process of the floor.
struct Mesh {
    id: u32,
    epoll: OwnedFd,
    streams: Vec<Stream>,
    /// Which stream leads to which server; of a server only.
    peers: Vec<usize>,
    client: usize,
    store: Vec<u8>,
    block: usize,
    prng: Prng,
    dirty: Vec<usize>,
}

impl Mesh {
    fn new(id: u32, block: usize) -> Result<Mesh> {
        Ok(Mesh {
            id,
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            streams: Vec::new(),
            peers: Vec::new(),
            client: usize::MAX,
            store: vec![7; STORE.max(2 * block)],
            block,
            prng: Prng::new(u64::from(id) + 1),
            dirty: Vec::new(),
        })
    }

    fn add(&mut self, socket: TcpStream, from: u32) -> Result<()> {
        let index = self.streams.len();
        if from == CLIENT {
            self.client = index;
        } else if let Some(peer) = self.peers.get_mut(from as usize) {
            *peer = index;
        }
        epoll::add(&self.epoll, &socket, EventData::new_u64(index as u64), EventFlags::IN)?;
        self.streams.push(Stream::new(socket, self.block)?);
        Ok(())
    }

    fn push(&mut self, to: usize, head: Head, at: usize) {
        self.streams[to].push(head, at);
        if !std::mem::replace(&mut self.streams[to].dirty, true) {
            self.dirty.push(to);
        }
    }

    /// A place in the store for one payload.
    fn place(&mut self) -> usize {
        self.prng.below((self.store.len() / self.block) as u64) as usize * self.block
    }

    fn run(
        &mut self,
        stop: &AtomicBool,
        mut message: impl FnMut(&mut Mesh, usize, Head, &[u8]),
    ) -> Result<()> {
        let timeout = rustix::time::Timespec::try_from(IDLE)?;
        let mut events = Vec::with_capacity(256);
        while !stop.load(Ordering::Relaxed) {
            for index in std::mem::take(&mut self.dirty) {
                self.streams[index].dirty = false;
                self.flush(index)?;
            }
            events.clear();
            epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout))?;
            for event in &events {
                let (index, flags) = (event.data.u64() as usize, event.flags);
                if flags.contains(EventFlags::OUT) {
                    self.watch(index, EventFlags::IN)?;
                    self.flush(index)?;
                }
                if !flags.contains(EventFlags::IN) {
                    continue;
                }
                if !self.streams[index].fill()? {
                    return Ok(());
                }
                let input = self.streams[index].take_input();
                while let Some((head, payload)) = self.streams[index].next(&input) {
                    message(self, index, head, &input[payload]);
                }
                self.streams[index].return_input(input);
            }
        }
        Ok(())
    }

    fn flush(&mut self, index: usize) -> Result<()> {
        if !self.streams[index].flush(&self.store)? {
            self.watch(index, EventFlags::IN | EventFlags::OUT)?;
        }
        Ok(())
    }

    fn watch(&self, index: usize, flags: EventFlags) -> Result<()> {
        let data = EventData::new_u64(index as u64);
        Ok(epoll::modify(&self.epoll, &self.streams[index].socket, data, flags)?)
    }

    /// What a server does with a frame.
    fn answer(&mut self, _from: usize, head: Head, payload: &[u8]) {
        match head.kind {
            READ => {
                let at = self.place();
                let head = Head { kind: DONE, len: self.block as u32, ..head };
                self.push(self.client, head, at);
            }
            WRITE => {
                let at = self.keep(payload);
                let others = self.peers.len() as u64 - 1;
                let other = self.prng.below(others.max(1)) as u32;
                let other = if other >= self.id && others > 0 { other + 1 } else { other };
                let head = Head { kind: COPY, from: self.id, ..head };
                self.push(self.peers[other as usize], head, at);
            }
            COPY => {
                self.keep(payload);
                let head = Head { kind: COPIED, len: 0, ..head };
                self.push(self.peers[head.from as usize], head, 0);
            }
            _ => self.push(self.client, Head { kind: DONE, len: 0, ..head }, 0),
        }
    }

    fn keep(&mut self, payload: &[u8]) -> usize {
        let at = self.place();
        self.store[at..at + payload.len()].copy_from_slice(payload);
        at
    }

    /// What the client does: keeps `depth` requests under way.
    fn load(&mut self, args: &BenchArgs, counters: &Counters, stop: &AtomicBool) -> Result<()> {
        let clock = Instant::now();
        let now = || clock.elapsed().as_nanos() as u64;
        let mut since = vec![0u64; args.depth as usize];
        let issue = |mesh: &mut Mesh, slot: u32, since: &mut [u64]| {
            since[slot as usize] = now();
            let to = mesh.prng.below(mesh.streams.len() as u64) as usize;
            let (kind, len) = match args.pattern {
                Pattern::Read => (READ, 0),
                Pattern::Write => (WRITE, mesh.block as u32),
            };
            mesh.push(to, Head { kind, len, slot, from: 0 }, 0);
        };
        (0..args.depth).for_each(|slot| issue(self, slot, &mut since));
        self.run(stop, |mesh, _, head, _| {
            counters.answered(now() - since[head.slot as usize]);
            issue(mesh, head.slot, &mut since);
        })
    }
}
