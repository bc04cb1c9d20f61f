//! The floor's servers. One process runs several on one loop; each has its own listening socket and
//! connections.

use super::mesh::{Mesh, Part};
use super::stream::Head;
use super::{CLIENT, Frame, dial};
use anyhow::{Result, bail};
use clap::Args;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// Frames that are kept queued on a connection of the pattern `stream`.
const AHEAD: usize = 2;

/// Options of one server process.
#[derive(Args, Debug)]
pub struct ServerArgs {
    /// Index of its first server
    #[arg(long)]
    first: u32,
    /// Number of servers in this process
    #[arg(long)]
    count: u32,
    /// Ports of all servers of all processes
    #[arg(long, value_delimiter = ',')]
    ports: Vec<u16>,
    /// Connections from the client to each server
    #[arg(long)]
    connections: u32,
    /// Connect the servers with each other
    #[arg(long)]
    peers: bool,
    /// Bytes per payload
    #[arg(long)]
    block: u32,
    /// Poll for a while before sleeping
    #[arg(long)]
    spin: bool,
    /// Process that started this one, and that this one ends with
    #[arg(long)]
    parent: u32,
}

/// The streams of one server, by the other side.
#[derive(Default)]
struct Server {
    peers: Vec<usize>,
    client: Vec<usize>,
}

struct Servers {
    first: u32,
    servers: Vec<Server>,
    block: u32,
    /// Streams that send without requests.
    endless: Vec<bool>,
}

/// Runs the servers of one process until a connection ends.
pub fn serve(args: &ServerArgs) -> Result<()> {
    die_with_parent(args.parent)?;
    let at = |i: u32| SocketAddr::from((Ipv4Addr::LOCALHOST, args.ports[i as usize]));
    let total = args.ports.len() as u32;
    let mine = args.first..args.first + args.count;
    let listeners: Vec<TcpListener> =
        mine.clone().map(|i| TcpListener::bind(at(i))).collect::<Result<_, _>>()?;
    let seed = u64::from(args.first) + 1;
    let mut mesh = Mesh::new(seed, args.block as usize, args.spin)?;
    let mut servers =
        Servers { first: args.first, servers: Vec::new(), block: args.block, endless: Vec::new() };
    for (owner, i) in mine.clone().enumerate() {
        let mut server = Server { peers: vec![usize::MAX; total as usize], client: Vec::new() };
        for peer in if args.peers { 0..i } else { 0..0 } {
            server.peers[peer as usize] = mesh.add(dial(at(peer), i)?, owner as u32)?;
        }
        servers.servers.push(server);
    }
    // The servers with higher indices and the client connect in any order.
    for (owner, (i, listener)) in mine.zip(&listeners).enumerate() {
        let later = if args.peers { total - 1 - i } else { 0 };
        for _ in 0..later + args.connections {
            let (mut socket, _) = listener.accept()?;
            let mut id = [0; 4];
            socket.read_exact(&mut id)?;
            let stream = mesh.add(socket, owner as u32)?;
            match u32::from_le_bytes(id) {
                CLIENT => servers.servers[owner].client.push(stream),
                peer => servers.servers[owner].peers[peer as usize] = stream,
            }
        }
    }
    // Broken connections end a measurement, whether it succeeds or fails; the client knows which.
    let _ = mesh.run(&mut servers);
    Ok(())
}

/// Makes the kernel kill this process with its parent. The parent may be killed before it has
/// connected, or while no server reads from it; nothing else would end this process then. It may
/// even be gone by now, so its process ID is an argument.
fn die_with_parent(parent: u32) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid().is_none_or(|pid| pid.as_raw_nonzero().get() as u32 != parent) {
        bail!("the process that started this server of the floor has ended");
    }
    Ok(())
}

impl Servers {
    /// Draws any other server and returns the stream to it.
    fn other(&self, mesh: &mut Mesh, owner: u32) -> usize {
        let (id, peers) = (self.first + owner, &self.servers[owner as usize].peers);
        let drawn = mesh.prng.below(peers.len() as u64 - 1) as u32;
        peers[(drawn + u32::from(drawn >= id)) as usize]
    }
}

impl Part for Servers {
    fn keeps(&self, _: &Head) -> bool {
        true
    }

    fn frame(&mut self, mesh: &mut Mesh, stream: usize, head: Head, at: usize) {
        let owner = mesh.owner(stream);
        match Frame::of(head.kind) {
            Frame::Read => {
                let at = mesh.place();
                mesh.push(stream, Head { kind: Frame::Done as u32, len: self.block, ..head }, at);
            }
            Frame::Write => mesh.push(stream, Head { kind: Frame::Done as u32, len: 0, ..head }, 0),
            Frame::Mirror => {
                let clients = &self.servers[owner as usize].client;
                let connection = clients.iter().position(|s| *s == stream).unwrap_or(0) as u32;
                let from = self.first + owner;
                let to = self.other(mesh, owner);
                mesh.push(to, Head { kind: Frame::Copy as u32, from, connection, ..head }, at);
            }
            Frame::Copy => {
                mesh.push(stream, Head { kind: Frame::Copied as u32, len: 0, ..head }, 0)
            }
            Frame::Copied => {
                let to = self.servers[owner as usize].client[head.connection as usize];
                mesh.push(to, Head { kind: Frame::Done as u32, len: 0, ..head }, 0);
            }
            Frame::Stream => {
                self.endless.resize(self.endless.len().max(stream + 1), false);
                self.endless[stream] = true;
                self.flushed(mesh, stream);
            }
            Frame::Done => {}
        }
    }

    fn flushed(&mut self, mesh: &mut Mesh, stream: usize) {
        if self.endless.get(stream) != Some(&true) {
            return;
        }
        while mesh.queued(stream) < AHEAD {
            let at = mesh.place();
            let head =
                Head { kind: Frame::Done as u32, len: self.block, slot: 0, from: 0, connection: 0 };
            mesh.push(stream, head, at);
        }
    }
}
