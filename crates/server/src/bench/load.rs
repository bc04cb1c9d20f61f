//! A node that loads the SDC that it wraps: requests are made and answered on the shard's own thread,
//! so what is measured is the SDC library's path, without a hop between threads.
//!
//! A request that fails ends the load, with its error in [`Shared`].

use super::tally::{Counters, Side, Tally};
use super::workload::Requests;
use base::{Duration, Time, VolumeId};
use node::sdc::Sdc;
use seam::{
    BlockError, BlockKind, BlockRequest, Buf, Effect, Effects, Event, Node, Port, RequestId,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Where the data of requests comes from and goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Data {
    /// One block of zeros is written by all; what is read is not looked at.
    Shared,
    /// It goes through memory of the load's own, a place per request, as it does in programs that call
    /// libgabion.
    Copied,
    /// Each 8 bytes hold their place: what is read is compared with that.
    Checked,
}

/// What to do.
#[derive(Debug)]
pub struct Load {
    /// The volume's name.
    pub volume: String,
    /// The requests.
    pub requests: Requests,
    /// Bytes of each.
    pub block: u32,
    /// How many are under way.
    pub depth: u32,
    /// Its data.
    pub data: Data,
    /// How many to begin per second, at most; what can't begin at its time counts from then. Without it, each answer makes
    /// room for the next request.
    pub rate: Option<u32>,
    /// How many to make in all; without it, the load goes on until it is stopped.
    pub total: Option<u64>,
}

/// What the load tells.
#[derive(Debug, Default)]
pub struct Shared {
    /// Requests answered.
    pub counters: Arc<Counters>,
    /// Set when all requests of a load with a `total` are answered.
    pub done: AtomicBool,
    /// Why the load has ended, when a request failed.
    pub error: OnceLock<String>,
    /// The latencies that were recorded, once the load has ended.
    pub tally: OnceLock<Tally>,
}

/// The wrapper.
pub struct Loader {
    sdc: Sdc,
    load: Load,
    shared: Arc<Shared>,
    tally: Tally,
    /// The volume, once the map is here.
    volume: Option<VolumeId>,
    issued: u64,
    answered: u64,
    /// What is under way in each slot, and since when.
    slots: Vec<(Side, u64, Time)>,
    /// Slots whose next request is issued at the end of the batch, or when its time has come.
    due: Vec<u32>,
    /// With a rate: when the next request is to begin.
    next: Time,
    spare: Vec<Effect>,
    data: Buf,
    /// With [`Data::Copied`]: a block for each slot.
    memory: Vec<u8>,
}

impl Loader {
    /// Loads this SDC.
    pub fn new(sdc: Sdc, load: Load, shared: Arc<Shared>) -> Loader {
        Loader {
            sdc,
            slots: vec![(Side::Read, 0, Time::ZERO); load.depth as usize],
            memory: vec![
                0;
                if load.data == Data::Copied {
                    (load.depth * load.block) as usize
                } else {
                    0
                }
            ],
            load,
            shared,
            tally: Tally::default(),
            volume: None,
            issued: 0,
            answered: 0,
            due: Vec::new(),
            next: Time::ZERO,
            spare: Vec::new(),
            data: Buf::EMPTY,
        }
    }

    /// Takes the answers to our requests out of what the SDC wants done. The driver carries effects
    /// out after each call, so this ends each call, too.
    fn harvest(&mut self, now: Time, out: &mut Effects) {
        out.swap(&mut self.spare);
        let mut effects = std::mem::take(&mut self.spare);
        for effect in effects.drain(..) {
            match effect {
                Effect::Reply { id, result } => self.answered(now, id, result),
                other => out.push(other),
            }
        }
        self.spare = effects;
    }

    fn answered(&mut self, now: Time, id: RequestId, result: Result<Buf, BlockError>) {
        let (side, at, since) = self.slots[id.0 as usize];
        let data = match result {
            Ok(data) => data,
            Err(why) => return self.failed(side, at, why),
        };
        match self.load.data {
            Data::Shared => {}
            Data::Copied => self.place(id.0 as u32)[..data.len()].copy_from_slice(&data),
            Data::Checked if side == Side::Write => {}
            Data::Checked => {
                if let Some(wrong) = words(at).zip(data.chunks(8)).position(|(w, d)| w != d) {
                    let text = format!("what was read at {} is wrong", at + 8 * wrong as u64);
                    let _ = self.shared.error.set(text);
                    return;
                }
            }
        }
        self.answered += 1;
        let latency = now.since(since).as_nanos() as u64;
        self.shared.counters.count(side, latency, &mut self.tally);
        if self.load.total.is_none_or(|total| self.issued < total) {
            self.due.push(id.0 as u32);
        } else if self.load.total == Some(self.answered) {
            self.shared.done.store(true, Ordering::Relaxed);
        }
    }

    fn failed(&mut self, side: Side, at: u64, why: BlockError) {
        let what = if side == Side::Read { "reading" } else { "writing" };
        let (len, volume) = (self.load.block, &self.load.volume);
        let text = format!("{what} {len} bytes at {at} of volume {volume} failed: {why}");
        let _ = self.shared.error.set(text);
    }

    /// The load's own memory for a slot's data.
    fn place(&mut self, slot: u32) -> &mut [u8] {
        let block = self.load.block as usize;
        &mut self.memory[slot as usize * block..][..block]
    }

    /// Begins once the volume is known.
    fn begin(&mut self, now: Time, out: &Effects) {
        self.volume = self.sdc.volume_by_name(&self.load.volume).map(|(id, _)| id);
        if self.volume.is_some() {
            self.data = out.pool().zeroed(self.load.block as usize);
            self.due.extend(0..self.load.depth);
            self.next = now;
        }
    }

    /// What a write writes.
    fn body(&mut self, slot: u32, at: u64, out: &mut Effects) -> Buf {
        match self.load.data {
            Data::Shared => self.data.clone(),
            Data::Copied => out.copy(self.place(slot)),
            Data::Checked => {
                let mut body = out.alloc(self.load.block as usize);
                words(at).zip(body.as_mut().chunks_mut(8)).for_each(|(w, d)| d.copy_from_slice(&w));
                body
            }
        }
    }

    /// Begins a request that counts from `since` on.
    fn issue(&mut self, now: Time, since: Time, slot: u32, out: &mut Effects) {
        let Some(volume) = self.volume else { return };
        let over = self.load.total.is_some_and(|total| self.issued == total);
        if over || self.shared.error.get().is_some() {
            return;
        }
        self.issued += 1;
        let (side, at) = self.load.requests.next();
        let (kind, body) = match side {
            Side::Read => (BlockKind::Read, Buf::EMPTY),
            Side::Write => (BlockKind::Write, self.body(slot, at, out)),
        };
        self.slots[slot as usize] = (side, at, since);
        let request = BlockRequest { volume, kind, at, len: self.load.block, body };
        self.sdc.on(now, Event::Request { id: RequestId(slot.into()), request }, out);
    }
}

/// What [`Data::Checked`] has at a place, 8 bytes at a time; nowhere zeros.
fn words(at: u64) -> impl Iterator<Item = [u8; 8]> {
    (at + 1..).step_by(8).map(u64::to_le_bytes)
}

impl Drop for Loader {
    /// The shard that ran it keeps it to the end.
    fn drop(&mut self) {
        let _ = self.shared.tally.set(std::mem::take(&mut self.tally));
    }
}

impl Node for Loader {
    type Framer = <Sdc as Node>::Framer;

    fn framer(&mut self, port: Port) -> Self::Framer {
        self.sdc.framer(port)
    }

    fn on(&mut self, now: Time, event: Event<'_>, out: &mut Effects) {
        self.sdc.on(now, event, out);
        self.harvest(now, out);
    }

    fn flush(&mut self, now: Time, out: &mut Effects) {
        if self.volume.is_none() {
            self.begin(now, out);
        }
        match self.load.rate {
            None => {
                let mut due = std::mem::take(&mut self.due);
                due.drain(..).for_each(|slot| self.issue(now, now, slot, out));
                self.due = due;
            }
            Some(rate) => {
                while let Some(slot) = self.due.pop_if(|_| self.next <= now) {
                    let since = self.next;
                    self.next = self.next + Duration::from_secs(1) / rate;
                    self.issue(now, since, slot, out);
                }
            }
        }
        self.sdc.flush(now, out);
        self.harvest(now, out);
    }

    fn wake_at(&self) -> Option<Time> {
        match self.load.rate {
            _ if self.due.is_empty() => self.sdc.wake_at(),
            None => Some(Time::ZERO),
            Some(_) => Time::earliest(self.sdc.wake_at(), Some(self.next)),
        }
    }
}
