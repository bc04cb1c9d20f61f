//! `gabion bench floor`: measures what the kernel costs. One client and N servers exchange bare
//! frames over epoll, with one send per connection and batch, as any good implementation of the
//! pattern would.
//!
//! Heads are as long as Gabion's. Servers copy payloads into and out of 16 MiB of memory per
//! process, at random offsets; the client discards what it reads. There is no product logic.

mod client;
mod mesh;
mod server;
mod stream;

use crate::cpu::{Kind, Processes};
use crate::figures::{Figures, measure};
use crate::interrupt;
use crate::io::{block, seconds};
use crate::test_cluster::Layout;
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use client::Client;
use daemon::size::Size;
use fleet::ports;
use serde::Serialize;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub use server::{ServerArgs, serve};

/// The id by which a connection identifies itself as the client's.
const CLIENT: u32 = u32::MAX;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// Options of `bench floor`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  gabion bench floor                                            what reads of 4 KiB cost
  gabion bench floor --pattern mirror --servers 16 --servers-per-process 8 --depth 256
  gabion bench floor --depth 1 --spin                           the latency of a polling echo
  gabion bench floor --pattern stream --bs 1MiB                 bytes per second, unasked")]
pub struct FloorArgs {
    /// The path of the frames
    #[arg(long, value_enum, default_value_t = Pattern::Read)]
    pattern: Pattern,
    /// Percentage of reads in a mix
    #[arg(long, default_value_t = 70, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=100))]
    mix: u32,
    /// Number of servers
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=512))]
    servers: u32,
    /// Servers per process; they share one loop
    #[arg(long, default_value_t = 1, value_name = "P", value_parser = clap::value_parser!(u32).range(1..=512))]
    servers_per_process: u32,
    /// Connections from the client to each server
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    connections: u32,
    /// Requests in flight, at all servers together
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    depth: u32,
    /// Size of a payload
    #[arg(long, default_value = "4KiB", value_name = "SIZE", value_parser = block)]
    bs: Size,
    /// Poll for up to 30 us before sleeping, on both sides, as Gabion does
    #[arg(long)]
    spin: bool,
    /// Seconds to measure, after a warm-up
    #[arg(long, default_value_t = 5.0, value_parser = seconds)]
    seconds: f64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The path of the frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Pattern {
    /// Client -> server, then server -> client with the payload
    Read,
    /// Client -> server with the payload, then server -> client
    Write,
    /// Client -> A -> B with the payload on both hops, then B -> A -> client
    Mirror,
    /// A mix of read and mirror
    Mix,
    /// Servers send payloads as fast as the client takes them, without requests
    Stream,
}

/// The parameters of one measurement of the floor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Floor {
    /// The path of the frames.
    pub pattern: Pattern,
    /// Percentage of reads in a mix.
    pub mix: u32,
    /// The number of servers and their processes.
    pub layout: Layout,
    /// Connections from the client to each server.
    pub connections: u32,
    /// Requests in flight.
    pub depth: u32,
    /// Bytes per payload.
    pub block: u32,
    /// Both sides poll before they sleep.
    pub spin: bool,
}

/// The type of a frame, in its head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
enum Frame {
    Read = 1,
    Write,
    Mirror,
    Copy,
    Copied,
    Stream,
    Done,
}

impl Frame {
    fn of(kind: u32) -> Frame {
        use Frame::{Copied, Copy, Done, Mirror, Read, Stream, Write};
        let known = [Read, Write, Mirror, Copy, Copied, Stream];
        known.into_iter().find(|f| *f as u32 == kind).unwrap_or(Done)
    }
}

/// The output of `--json`.
#[derive(Serialize)]
struct Document<'a> {
    pattern: String,
    servers: u32,
    servers_per_process: u32,
    connections: u32,
    depth: u32,
    block_bytes: u32,
    spin: bool,
    #[serde(flatten)]
    figures: &'a Figures,
}

struct Servers(Vec<Child>);

impl Drop for Servers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}

/// Runs `gabion bench floor`.
pub fn run(args: &FloorArgs) -> Result<()> {
    let floor = Floor {
        pattern: args.pattern,
        mix: args.mix,
        layout: Layout { servers: args.servers, per_process: args.servers_per_process },
        connections: args.connections,
        depth: args.depth,
        block: u32::try_from(args.bs.0).context("a payload has less than 4 GiB")?,
        spin: args.spin,
    };
    let title = floor.to_string();
    let figures = floor.measure(&title, Duration::from_secs_f64(args.seconds))?;
    if !args.json {
        println!("{title}: {}", figures.page());
        return Ok(());
    }
    let document = Document {
        pattern: floor.pattern.to_string(),
        servers: args.servers,
        servers_per_process: args.servers_per_process,
        connections: args.connections,
        depth: args.depth,
        block_bytes: floor.block,
        spin: args.spin,
        figures: &figures,
    };
    println!("{}", serde_json::to_string_pretty(&document)?);
    Ok(())
}

impl Floor {
    /// Returns true if servers are connected with each other.
    fn has_peers(&self) -> bool {
        matches!(self.pattern, Pattern::Mirror | Pattern::Mix)
    }

    /// Starts the servers and the client, and measures.
    pub fn measure(&self, title: &str, window: Duration) -> Result<Figures> {
        let count = self.layout.servers;
        if self.has_peers() && count < 2 {
            bail!("two copies need two servers: --servers 2, or --pattern read or write");
        }
        let addresses = ports::free(count as usize)?;
        let servers = self.spawn(&addresses)?;
        let mut client = Client::new(self)?;
        for address in addresses {
            for _ in 0..self.connections {
                client.add(dial(address, CLIENT)?)?;
            }
        }
        let mut processes = Processes::client();
        processes.add(Kind::Server, servers.0.iter().map(Child::id));
        let load = client.start()?;
        let counters = [load.counters.clone()];
        let window = measure(title, &counters, &processes, window, || load.check())?;
        Figures::new(&window, &load.end()?, self.block.into())
    }

    fn spawn(&self, addresses: &[SocketAddr]) -> Result<Servers> {
        let ports: Vec<String> = addresses.iter().map(|a| a.port().to_string()).collect();
        let mut servers = Servers(Vec::new());
        let Layout { servers: all, per_process } = self.layout;
        for first in (0..all).step_by(per_process as usize) {
            let mut command = Command::new(std::env::current_exe()?);
            let count = per_process.min(all - first);
            command
                .args(["bench", "floor-server", "--first", &first.to_string()])
                .args(["--count", &count.to_string(), "--ports", &ports.join(",")])
                .args(["--connections", &self.connections.to_string()])
                .args(["--block", &self.block.to_string()])
                .args(["--parent", &std::process::id().to_string()])
                .args(self.has_peers().then_some("--peers"))
                .args(self.spin.then_some("--spin"));
            servers.0.push(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?);
        }
        Ok(servers)
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Pattern::Read => "read",
            Pattern::Write => "write",
            Pattern::Mirror => "mirror",
            Pattern::Mix => "mix",
            Pattern::Stream => "stream",
        })
    }
}

impl std::fmt::Display for Floor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Layout { servers, .. } = self.layout;
        write!(
            f,
            "floor: {} of {}, {servers} servers in {} processes, depth {}",
            self.pattern,
            Size(self.block.into()),
            self.layout.processes(),
            self.depth
        )
    }
}

/// Connects to a server that may not be listening yet.
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
            Err(_) => interrupt::sleep(Duration::from_millis(2))?,
        }
    }
}
