//! A node that wraps an SDC and loads it. Requests are made and answered on the shard's own thread,
//! so the measurement covers the path of the SDC library without a hop between threads.
//!
//! A failed request ends the load and stores its error in [`Shared`].

use crate::tally::{Counters, Side, Tally};
use crate::workload::Requests;
use base::{Duration, Time, VolumeId};
use node::sdc::Sdc;
use seam::{
    BlockError, BlockKind, BlockRequest, Buf, Effect, Effects, Event, Node, Port, RequestId,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// How the load handles the data of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Data {
    /// All writes share one block of zeros; the data of reads is ignored.
    Shared,
    /// Data is copied from and to separate memory for each request, as in programs that call
    /// libgabion.
    Copied,
    /// Every 8 bytes encode their offset; the data of reads is compared with that.
    Checked,
}

/// A load.
#[derive(Debug)]
pub struct Load {
    /// The volume's name.
    pub volume: String,
    /// The requests.
    pub requests: Requests,
    /// Bytes per request.
    pub block: u32,
    /// Requests in flight.
    pub depth: u32,
    /// How data is handled.
    pub data: Data,
    /// Requests to start per second. The latency of a request that starts late counts from its
    /// scheduled time. `None`: each answer starts the next request.
    pub rate: Option<u32>,
    /// Requests to make in all; `None`: the load continues until it is stopped.
    pub total: Option<u64>,
}

/// The state of a load that its owner sees.
#[derive(Debug, Default)]
pub struct Shared {
    /// Requests answered.
    pub counters: Arc<Counters>,
    /// Set when all requests of a load with a `total` are answered.
    pub done: AtomicBool,
    /// The error that ended the load, if a request failed.
    pub error: OnceLock<String>,
    /// The recorded latencies, set when the load has ended.
    pub tally: OnceLock<Tally>,
}

/// The node.
pub struct Loader {
    sdc: Sdc,
    load: Load,
    shared: Arc<Shared>,
    tally: Tally,
    /// The volume, once the map has arrived.
    volume: Option<VolumeId>,
    issued: u64,
    answered: u64,
    /// The request of each slot: kind, offset, and the time from which its latency counts.
    slots: Vec<(Side, u64, Time)>,
    /// Free slots. Their next requests start at the end of the batch, or at their scheduled times.
    due: Vec<u32>,
    /// With a rate: the scheduled time of the next request.
    next: Time,
    spare: Vec<Effect>,
    data: Buf,
    /// With [`Data::Copied`]: one block per slot.
    memory: Vec<u8>,
}

impl Loader {
    /// Wraps this SDC.
    pub fn new(sdc: Sdc, load: Load, shared: Arc<Shared>) -> Loader {
        Loader {
            sdc,
            slots: vec![(Side::Read, 0, Time::ZERO); load.depth as usize],
            memory: vec![
                0;
                if load.data == Data::Copied { bytes(load.depth, load.block) } else { 0 }
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

    /// Takes the answers to our requests out of the SDC's effects. The driver carries out effects
    /// after each call, so every call ends with this.
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

    /// Returns the load's own memory for a slot's data.
    fn place(&mut self, slot: u32) -> &mut [u8] {
        let block = self.load.block as usize;
        &mut self.memory[slot as usize * block..][..block]
    }

    /// Starts the load once the volume is known.
    fn begin(&mut self, now: Time, out: &Effects) {
        self.volume = self.sdc.volume_by_name(&self.load.volume).map(|(id, _)| id);
        if self.volume.is_some() {
            self.data = out.pool().zeroed(self.load.block as usize);
            self.due.extend(0..self.load.depth);
            self.next = now;
        }
    }

    /// Returns the data of a write.
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

    /// Starts a request whose latency counts from `since`.
    fn issue(&mut self, now: Time, since: Time, slot: u32, out: &mut Effects) {
        let Some(volume) = self.volume else { return };
        let over = self.load.total.is_some_and(|total| self.issued == total);
        if over || self.shared.error.get().is_some() {
            return;
        }
        self.issued += 1;
        let (side, at) = self.load.requests.draw();
        let (kind, body) = match side {
            Side::Read => (BlockKind::Read, Buf::EMPTY),
            Side::Write => (BlockKind::Write, self.body(slot, at, out)),
        };
        self.slots[slot as usize] = (side, at, since);
        let request = BlockRequest { volume, kind, at, len: self.load.block, body };
        self.sdc.on(now, Event::Request { id: RequestId(slot.into()), request }, out);
    }
}

/// Returns the number of bytes of all slots, which may be more than 4 GiB.
fn bytes(depth: u32, block: u32) -> usize {
    depth as usize * block as usize
}

/// Returns the content of [`Data::Checked`] from an offset on, 8 bytes at a time. It is never zero.
fn words(at: u64) -> impl Iterator<Item = [u8; 8]> {
    (at + 1..).step_by(8).map(u64::to_le_bytes)
}

impl Drop for Loader {
    /// Publishes the latencies. The shard keeps the node until it has stopped.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_deep_load_of_large_blocks_is_counted_in_full() {
        assert_eq!(bytes(1024, 4 << 20), 4 << 30);
    }
}
