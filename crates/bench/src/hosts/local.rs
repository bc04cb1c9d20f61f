//! Loads over a unix socket of this machine: NBD, and a virtio disk (`vhost`). One thread makes
//! requests and waits for their ends; it blocks, and has no shard.

use super::{Ask, Meaning, Nbd, Protocol, Running, Work, figures, requests};
use crate::cpu::Processes;
use crate::figures::Figures;
use crate::load::Shared;
use crate::tally::{Side, Tally};
use crate::workload::Requests;
use anyhow::{Context, Result, bail};
use base::{LinkId, Prng};
use rt::Stop;
use seam::{Buf, BufPool, Effect, Effects, Framer, Framing};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long to wait before the thread looks whether it is to stop.
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// How long an answer of the handshake may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// A disk behind a unix socket.
pub trait Disk {
    /// Starts a request. A write has any data.
    ///
    /// # Errors
    /// The other side is gone, or can't take it.
    fn start(&mut self, ask: Ask) -> Result<()>;

    /// Tells the other side of all requests that were started.
    ///
    /// # Errors
    /// The other side is gone.
    fn submit(&mut self) -> Result<()>;

    /// Waits a moment for requests to end, and adds their slots to `ended`.
    ///
    /// # Errors
    /// A request failed, or the other side is gone.
    fn wait(&mut self, ended: &mut Vec<u32>) -> Result<()>;
}

/// Loads a disk of `size` bytes, and measures. `attach` runs on the thread of the load, because
/// buffers belong to one thread.
pub fn load<D: Disk>(
    title: &str,
    attach: impl FnOnce() -> Result<D> + Send + 'static,
    size: u64,
    work: Work,
    processes: &Processes,
    window: Duration,
) -> Result<Figures> {
    let requests = requests(size, work)?;
    let shared = Arc::new(Shared::default());
    let (tell, stop) = (shared.clone(), Stop::new());
    let halt = stop.clone();
    let thread = std::thread::Builder::new().name("host".into()).spawn(move || {
        let mut tally = Tally::default();
        let ran = attach().and_then(|disk| run(disk, requests, work, &tell, &mut tally, &halt));
        if let Err(why) = ran {
            let _ = tell.error.set(format!("{why:#}"));
        }
        let _ = tell.tally.set(tally);
        Ok(())
    })?;
    figures(title, Running { stop, shared, thread: Some(thread) }, work, processes, window)
}

/// Makes requests until it is stopped.
fn run(
    mut disk: impl Disk,
    mut requests: Requests,
    work: Work,
    shared: &Shared,
    tally: &mut Tally,
    stop: &Stop,
) -> Result<()> {
    let mut slots = vec![(Side::Read, Instant::now()); work.depth as usize];
    let mut due: Vec<u32> = (0..work.depth).collect();
    while !stop.is_set() {
        let now = Instant::now();
        for slot in due.drain(..) {
            let (side, at) = requests.draw();
            slots[slot as usize] = (side, now);
            disk.start(Ask { slot, side, at, len: work.block })?;
        }
        disk.submit()?;
        disk.wait(&mut due)?;
        for slot in &due {
            let (side, since) = slots.get(*slot as usize).context("an unknown request ended")?;
            shared.counters.count(*side, since.elapsed().as_nanos() as u64, tally);
        }
    }
    Ok(())
}

/// An NBD export behind a unix socket. The protocol is that of the loads over TCP.
pub struct LocalNbd {
    stream: UnixStream,
    protocol: Nbd,
    framer: <Nbd as Protocol>::Framer,
    out: Effects,
    /// The data of writes.
    data: Buf,
    /// What has arrived and is no whole frame yet.
    arrived: Vec<u8>,
    /// What is to be sent.
    unsent: Vec<u8>,
}

impl LocalNbd {
    /// The name of its only link.
    const LINK: LinkId = LinkId(1);

    /// Attaches an export at this socket, for requests of `block` bytes.
    ///
    /// # Errors
    /// Nobody listens there, or the export is refused.
    pub fn attach(socket: &Path, export: &str, block: u32) -> Result<LocalNbd> {
        let stream = UnixStream::connect(socket)
            .with_context(|| format!("can't connect to {}", socket.display()))?;
        stream.set_read_timeout(Some(LOOK))?;
        let protocol = Nbd::new(export, block);
        let framer = protocol.framer();
        let out = Effects::new(BufPool::new(64 << 20), Prng::new(daemon::random()?), None);
        let (data, arrived, unsent) = (out.pool().zeroed(block as usize), Vec::new(), Vec::new());
        let mut disk = LocalNbd { stream, protocol, framer, out, data, arrived, unsent };
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        while !disk.turn()?.contains(&Meaning::Attached) {
            if Instant::now() > deadline {
                bail!("{} does not attach {export} within {ANSWER_TIMEOUT:?}", socket.display());
            }
        }
        Ok(disk)
    }

    /// Sends what the protocol has to send, and returns what the frames that arrive mean.
    fn turn(&mut self) -> Result<Vec<Meaning>> {
        self.submit()?;
        let start = self.arrived.len();
        self.arrived.resize(start + (256 << 10), 0);
        let got = match self.stream.read(&mut self.arrived[start..]) {
            Ok(0) => bail!("the server has closed the connection"),
            Ok(got) => got,
            Err(e) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&e.kind()) => 0,
            Err(e) => return Err(e.into()),
        };
        self.arrived.truncate(start + got);
        let (mut meanings, mut at) = (Vec::new(), 0);
        while let Some(len) = self.frame(at, &mut meanings)? {
            at += len;
        }
        self.arrived.drain(..at);
        Ok(meanings)
    }

    /// Takes the frame that begins at this byte. Returns its length if it is there as a whole.
    fn frame(&mut self, at: usize, meanings: &mut Vec<Meaning>) -> Result<Option<usize>> {
        let bytes = &self.arrived[at..];
        // The framer may change its state with a frame, so it is asked when all of it is there.
        let mut framer = self.framer.clone();
        let Framing::Frame { head, body } = framer.frame(bytes)? else { return Ok(None) };
        if bytes.len() < head + body {
            return Ok(None);
        }
        self.framer = framer;
        let meaning = self.protocol.frame(Self::LINK, &bytes[..head], &Buf::EMPTY, &mut self.out);
        meanings.push(meaning.map_err(anyhow::Error::msg)?);
        Ok(Some(head + body))
    }
}

impl Disk for LocalNbd {
    fn start(&mut self, ask: Ask) -> Result<()> {
        self.protocol.ask(Self::LINK, ask, &self.data, &mut self.out);
        Ok(())
    }

    fn submit(&mut self) -> Result<()> {
        for effect in self.out.drain() {
            if let Effect::Send { head, body, .. } = effect {
                self.unsent.extend_from_slice(head.as_slice());
                self.unsent.extend_from_slice(&body);
            }
        }
        self.stream.write_all(&self.unsent)?;
        self.unsent.clear();
        Ok(())
    }

    fn wait(&mut self, ended: &mut Vec<u32>) -> Result<()> {
        let done = |m: Meaning| if let Meaning::Done(slot) = m { Some(slot) } else { None };
        ended.extend(self.turn()?.into_iter().filter_map(done));
        Ok(())
    }
}
