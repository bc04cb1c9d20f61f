//! The floor's client: keeps a fixed number of requests in flight, on its own thread.

use super::mesh::{Mesh, Part, Stopper};
use super::stream::Head;
use super::{Floor, Frame, Pattern};
use crate::tally::{Counters, Side, Tally};
use anyhow::{Result, bail};
use std::net::TcpStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

/// A client before its start.
pub(crate) struct Client {
    mesh: Mesh,
    connections: usize,
    floor: Floor,
}

/// A running client.
pub(crate) struct Load {
    /// Its results so far.
    pub counters: Arc<Counters>,
    stop: Stopper,
    thread: JoinHandle<Result<Tally>>,
}

struct Requests {
    floor: Floor,
    connections: usize,
    clock: Instant,
    /// Type of the request in each slot, and its start in nanoseconds.
    slots: Vec<(Frame, u64)>,
    counters: Arc<Counters>,
    tally: Tally,
}

impl Client {
    /// Creates a client without connections.
    pub(crate) fn new(floor: &Floor) -> Result<Client> {
        let mesh = Mesh::new(u64::from(super::CLIENT), floor.block as usize, floor.spin)?;
        Ok(Client { mesh, connections: 0, floor: *floor })
    }

    /// Adds a connection to a server.
    pub(crate) fn add(&mut self, socket: TcpStream) -> Result<()> {
        self.mesh.add(socket, 0)?;
        self.connections += 1;
        Ok(())
    }

    /// Starts the client.
    pub(crate) fn start(mut self) -> Result<Load> {
        let (counters, stop) = (Arc::new(Counters::default()), self.mesh.stopper()?);
        let mut requests = Requests {
            floor: self.floor,
            connections: self.connections,
            clock: Instant::now(),
            slots: vec![(Frame::Done, 0); self.floor.depth as usize],
            counters: counters.clone(),
            tally: Tally::default(),
        };
        let thread = std::thread::Builder::new().name("floor".into()).spawn(move || {
            if self.floor.pattern == Pattern::Stream {
                (0..self.connections)
                    .for_each(|to| self.mesh.push(to, head(Frame::Stream, 0, 0), 0));
            } else {
                (0..self.floor.depth)
                    .for_each(|slot| requests.issue(&mut self.mesh, slot, requests.now()));
            }
            self.mesh.run(&mut requests)?;
            Ok(requests.tally)
        })?;
        Ok(Load { counters, stop, thread })
    }
}

impl Load {
    /// Returns an error if the client has ended.
    pub(crate) fn check(&self) -> Result<()> {
        if self.thread.is_finished() {
            bail!("a server of the floor has ended before its time; its message is above");
        }
        Ok(())
    }

    /// Stops the client and returns the recorded latencies.
    pub(crate) fn end(self) -> Result<Tally> {
        self.stop.stop();
        match self.thread.join() {
            Ok(tally) => tally,
            Err(_) => bail!("the floor's client panicked; its message is above. Please report it"),
        }
    }
}

fn head(kind: Frame, len: u32, slot: u32) -> Head {
    Head { kind: kind as u32, len, slot, from: 0, connection: 0 }
}

impl Requests {
    fn now(&self) -> u64 {
        self.clock.elapsed().as_nanos() as u64
    }

    fn issue(&mut self, mesh: &mut Mesh, slot: u32, now: u64) {
        let kind = match self.floor.pattern {
            Pattern::Read | Pattern::Stream => Frame::Read,
            Pattern::Write => Frame::Write,
            Pattern::Mirror => Frame::Mirror,
            Pattern::Mix if mesh.prng.below(100) < u64::from(self.floor.mix) => Frame::Read,
            Pattern::Mix => Frame::Mirror,
        };
        let len = if kind == Frame::Read { 0 } else { self.floor.block };
        let to = mesh.prng.below(self.connections as u64) as usize;
        self.slots[slot as usize] = (kind, now);
        mesh.push(to, head(kind, len, slot), 0);
    }
}

impl Part for Requests {
    fn keeps(&self, _: &Head) -> bool {
        false
    }

    fn frame(&mut self, mesh: &mut Mesh, _stream: usize, head: Head, _at: usize) {
        let now = self.now();
        if self.floor.pattern == Pattern::Stream {
            // There are no requests, so the time since the last frame counts as latency.
            let since = std::mem::replace(&mut self.slots[0].1, now);
            return self.counters.count(Side::Read, now - since, &mut self.tally);
        }
        let (kind, since) = self.slots[head.slot as usize];
        let side = if kind == Frame::Read { Side::Read } else { Side::Write };
        self.counters.count(side, now - since, &mut self.tally);
        self.issue(mesh, head.slot, now);
    }
}
