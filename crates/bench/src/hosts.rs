//! Hosts that load a volume over a standard protocol: initiators of our own, on one shard of this
//! process. So NBD, iSCSI and NVMe/TCP are loaded by the same program, and the processor time of
//! the data client that serves them can be compared.
//!
//! `nbd`, `iscsi` and `nvme` are the protocols: they make and read frames. The node here has the
//! requests, as [`crate::load`] has them for a data client. [`local`] loads NBD over a unix socket,
//! and the virtio disk of a virtual machine (`vhost`).

mod iscsi;
pub mod local;
mod nbd;
mod nvme;
mod vhost;

use crate::cpu::Processes;
use crate::figures::{Figures, measure};
use crate::interrupt;
use crate::load::Shared;
use crate::tally::{Side, Tally};
use crate::workload::{Requests, Workload};
use anyhow::{Context, Result, bail};
use base::crc::crc32c;
use base::{LinkId, Time};
use rt::{RtError, Stop};
use seam::{Buf, DialId, Effect, Effects, Event, Framer, Node, Port};
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use iscsi::Iscsi;
pub use nbd::Nbd;
pub use nvme::Nvme;
pub use vhost::Vhost;

/// How long the first answer may take.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(30);

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Returns true if these bytes have this digest (CRC-32C), in iSCSI as in NVMe/TCP.
fn has_digest(bytes: &[u8], digest: &[u8]) -> bool {
    crc32c(bytes).to_le_bytes() == digest
}

/// A request of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    /// Its slot: at most one request of a slot is under way.
    pub slot: u32,
    /// A read, or a write.
    pub side: Side,
    /// The first byte.
    pub at: u64,
    /// Number of bytes.
    pub len: u32,
}

/// What a frame of the other side means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Meaning {
    /// Nothing that the load has to know.
    Nothing,
    /// The protocol needs another connection to the same address.
    Dial,
    /// The volume is attached, at the connection that was made last.
    Attached,
    /// The request of this slot is done.
    Done(u32),
}

/// The host's side of all connections to a volume. It does no I/O, and has no clock.
pub trait Protocol: Send + 'static {
    /// Splits what the other side sends.
    type Framer: Framer;

    /// Creates the framer of a connection.
    fn framer(&self) -> Self::Framer;

    /// Speaks first, when a connection is up.
    fn begin(&mut self, link: LinkId, out: &mut Effects);

    /// Takes a frame.
    ///
    /// # Errors
    /// The other side refuses something, or breaks the protocol: the text says what.
    fn frame(
        &mut self,
        link: LinkId,
        head: &[u8],
        body: &Buf,
        out: &mut Effects,
    ) -> Result<Meaning, String>;

    /// Sends a request. `data` has its length, and is sent if it is a write.
    fn ask(&mut self, link: LinkId, ask: Ask, data: &Buf, out: &mut Effects);
}

/// The load of one connection.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Work {
    /// Percentage of reads.
    pub mix: u32,
    /// Bytes per request.
    pub block: u32,
    /// Requests under way.
    pub depth: u32,
}

/// The node.
struct Host<P> {
    protocol: P,
    to: SocketAddr,
    requests: Requests,
    work: Work,
    shared: Arc<Shared>,
    tally: Tally,
    /// How often it has dialled.
    dials: u64,
    /// The connection that was made last.
    link: Option<LinkId>,
    /// What each slot does, and since when.
    slots: Vec<(Side, Time)>,
    /// Slots that are free.
    due: Vec<u32>,
    data: Buf,
}

impl<P: Protocol> Host<P> {
    fn fail(&self, why: String) {
        let _ = self.shared.error.set(why);
    }

    fn dial(&mut self, out: &mut Effects) {
        self.dials += 1;
        out.push(Effect::Dial { dial: DialId(self.dials), to: self.to, port: Port::Target(0) });
    }

    fn told(&mut self, now: Time, told: Meaning, out: &mut Effects) {
        match told {
            Meaning::Nothing => {}
            Meaning::Dial => self.dial(out),
            Meaning::Attached => {
                self.data = out.pool().zeroed(self.work.block as usize);
                self.due.extend(0..self.work.depth);
            }
            Meaning::Done(slot) => match self.slots.get(slot as usize).copied() {
                Some((side, since)) => {
                    let latency = now.since(since).as_nanos() as u64;
                    self.shared.counters.count(side, latency, &mut self.tally);
                    self.due.push(slot);
                }
                None => self.fail("an answer to a request that was not made".into()),
            },
        }
    }
}

impl<P: Protocol> Node for Host<P> {
    type Framer = P::Framer;

    fn framer(&mut self, _: Port) -> P::Framer {
        self.protocol.framer()
    }

    fn on(&mut self, now: Time, event: Event<'_>, out: &mut Effects) {
        match event {
            Event::LinkUp { link, .. } => {
                self.link = Some(link);
                self.protocol.begin(link, out);
            }
            Event::Frame { link, head, body } => {
                match self.protocol.frame(link, head, &body, out) {
                    Ok(told) => self.told(now, told, out),
                    Err(why) => self.fail(why),
                }
            }
            Event::LinkDown { why, .. } => {
                self.link = None;
                self.fail(format!("{} has closed the connection: {why:?}", self.to));
            }
            Event::DialFailed { why, .. } => {
                self.fail(format!("{} can't be reached: {why:?}", self.to));
            }
            Event::Tick
            | Event::Request { .. }
            | Event::Withdraw { .. }
            | Event::DiskDone { .. } => {}
        }
    }

    fn flush(&mut self, now: Time, out: &mut Effects) {
        if self.dials == 0 {
            self.dial(out);
        }
        let Some(link) = self.link.filter(|_| self.shared.error.get().is_none()) else { return };
        for slot in self.due.drain(..) {
            let (side, at) = self.requests.draw();
            self.slots[slot as usize] = (side, now);
            let ask = Ask { slot, side, at, len: self.work.block };
            self.protocol.ask(link, ask, &self.data, out);
        }
    }

    fn wake_at(&self) -> Option<Time> {
        (self.dials == 0).then_some(Time::ZERO)
    }
}

impl<P> Drop for Host<P> {
    /// Publishes the latencies. The shard keeps the node until it has stopped.
    fn drop(&mut self) {
        let _ = self.shared.tally.set(std::mem::take(&mut self.tally));
    }
}

/// The thread of a host. It is stopped when this is dropped.
struct Running {
    stop: Stop,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<(), RtError>>>,
}

impl Running {
    fn check(&self) -> Result<()> {
        if let Some(why) = self.shared.error.get() {
            bail!("{why}");
        }
        if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
            bail!("the loading thread has ended before its time; its message is above");
        }
        Ok(())
    }

    fn wait_begun(&self) -> Result<()> {
        let deadline = Instant::now() + BEGIN_TIMEOUT;
        while self.shared.counters.answered() == [0, 0] {
            self.check()?;
            if Instant::now() > deadline {
                bail!("no request was answered within {BEGIN_TIMEOUT:?}");
            }
            interrupt::sleep(Duration::from_millis(5))?;
        }
        Ok(())
    }

    fn end(&mut self) -> Result<Tally> {
        self.stop.stop();
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(outcome)) => outcome?,
            Some(Err(_)) => bail!("the load panicked; its message is above. Please report it"),
            None => {}
        }
        Ok(self.shared.tally.get().cloned().unwrap_or_default())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Loads the volume of `size` bytes that this host attaches at `to`, and measures.
pub fn load<P: Protocol>(
    title: &str,
    protocol: P,
    (to, size): (SocketAddr, u64),
    work: Work,
    processes: &Processes,
    window: Duration,
) -> Result<Figures> {
    let requests = requests(size, work)?;
    let shared = Arc::new(Shared::default());
    let (tell, stop) = (shared.clone(), Stop::new());
    let halt = stop.clone();
    let shard = rt::Shard::bind(rt::Config {
        local: false,
        seed: daemon::random()?,
        ..rt::Config::default()
    })?;
    let node = move || Host {
        protocol,
        to,
        requests,
        work,
        shared: tell,
        tally: Tally::default(),
        dials: 0,
        link: None,
        slots: vec![(Side::Read, Time::ZERO); work.depth as usize],
        due: Vec::new(),
        data: Buf::EMPTY,
    };
    // Buffers belong to one thread, so the node is made there.
    let thread = std::thread::Builder::new()
        .name("host".into())
        .spawn(move || shard.run(vec![node()], &halt, |_, _, _| {}))?;
    figures(title, Running { stop, shared, thread: Some(thread) }, work, processes, window)
}

/// Returns random requests to a volume of `size` bytes.
fn requests(size: u64, work: Work) -> Result<Requests> {
    let seed = daemon::random()?;
    let made = Requests::new(Workload::Randrw, work.mix, work.block, size, (0, 1), seed);
    made.with_context(|| {
        format!("a volume of {size} bytes has no room for a request of {} bytes", work.block)
    })
}

/// Measures a load that has been started, and ends it.
fn figures(
    title: &str,
    mut running: Running,
    work: Work,
    processes: &Processes,
    window: Duration,
) -> Result<Figures> {
    running.wait_begun()?;
    let counters = [running.shared.counters.clone()];
    let window = measure(title, &counters, processes, window, || running.check())?;
    Figures::new(&window, &running.end()?, work.block.into())
}
