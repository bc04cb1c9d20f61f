//! A node that loads the SDC that it wraps: requests are made and answered on the shard's own thread,
//! so what is measured is the SDC library's path, without a hop between threads.

use super::Pattern;
use super::measure::Counters;
use base::{Prng, Time, UNIT, VolumeId};
use node::sdc::Sdc;
use seam::{
    BlockError, BlockKind, BlockRequest, Buf, Effect, Effects, Event, Node, Port, RequestId,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What to do.
#[derive(Clone, Debug)]
pub struct Load {
    /// The volume's name.
    pub volume: String,
    /// Read or write.
    pub pattern: Pattern,
    /// Bytes of a request.
    pub block: u32,
    /// Requests under way.
    pub depth: u32,
}

/// What the load tells.
#[derive(Debug, Default)]
pub struct Progress {
    /// Requests answered.
    pub counters: Counters,
    /// Set once every block of the volume has been written.
    pub filled: AtomicBool,
}

/// The wrapper.
pub struct Loader {
    sdc: Sdc,
    load: Load,
    progress: Arc<Progress>,
    /// The volume, once the map is here.
    volume: Option<(VolumeId, u64)>,
    /// The unit that is filled next, while the volume is being filled.
    fill: u64,
    filling: u32,
    since: Vec<Time>,
    /// Requests to be issued at the end of the batch.
    due: Vec<u32>,
    spare: Vec<Effect>,
    prng: Prng,
    data: Buf,
    unit: Buf,
}

impl Loader {
    /// Loads this SDC.
    pub fn new(sdc: Sdc, load: Load, progress: Arc<Progress>, seed: u64) -> Loader {
        Loader {
            sdc,
            since: vec![Time::ZERO; load.depth as usize],
            load,
            progress,
            volume: None,
            fill: 0,
            filling: 0,
            due: Vec::new(),
            spare: Vec::new(),
            prng: Prng::new(seed),
            data: Buf::EMPTY,
            unit: Buf::EMPTY,
        }
    }

    /// Takes the answers to our requests out of what the SDC wants done. The driver carries effects
    /// out after each call, so this ends each call, too.
    fn harvest(&mut self, now: Time, out: &mut Effects) {
        out.swap(&mut self.spare);
        for effect in std::mem::take(&mut self.spare).drain(..) {
            match effect {
                Effect::Reply { id, result } => self.answered(now, id, result),
                other => out.push(other),
            }
        }
    }

    fn answered(&mut self, now: Time, id: RequestId, result: Result<Buf, BlockError>) {
        if let Err(why) = result {
            panic!("a request of the benchmark failed: {why}");
        }
        if id.0 >= u64::from(self.load.depth) {
            self.filling -= 1;
            return;
        }
        let slot = id.0 as usize;
        self.progress.counters.answered(now.since(self.since[slot]).as_nanos() as u64);
        self.due.push(slot as u32);
    }

    /// Writes every block once, so that reads find something, then begins.
    fn prepare(&mut self, now: Time, out: &mut Effects) {
        let Some((volume, size)) = self.volume else {
            self.volume = self.sdc.volume_by_name(&self.load.volume).map(|(id, v)| (id, v.size));
            self.unit = out.pool().zeroed(UNIT as usize);
            self.data = out.pool().zeroed(self.load.block as usize);
            return;
        };
        let units = size / u64::from(UNIT);
        while self.fill < units && self.filling < 16 {
            let request = BlockRequest {
                volume,
                kind: BlockKind::Write,
                at: self.fill * u64::from(UNIT),
                len: UNIT,
                body: self.unit.clone(),
            };
            self.fill += 1;
            self.filling += 1;
            let id = RequestId(u64::from(self.load.depth) + self.fill);
            self.sdc.on(now, Event::Request { id, request }, out);
        }
        if self.fill == units && self.filling == 0 {
            self.due.extend(0..self.load.depth);
            self.progress.filled.store(true, Ordering::Relaxed);
        }
    }

    fn issue(&mut self, now: Time, slot: u32, out: &mut Effects) {
        let Some((volume, size)) = self.volume else { return };
        let len = self.load.block;
        let (kind, body) = match self.load.pattern {
            Pattern::Read => (BlockKind::Read, Buf::EMPTY),
            Pattern::Write => (BlockKind::Write, self.data.clone()),
        };
        let at = self.prng.below(size / u64::from(len)) * u64::from(len);
        self.since[slot as usize] = now;
        let request = BlockRequest { volume, kind, at, len, body };
        self.sdc.on(now, Event::Request { id: RequestId(slot.into()), request }, out);
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
        if !self.progress.filled.load(Ordering::Relaxed) {
            self.prepare(now, out);
        }
        let mut due = std::mem::take(&mut self.due);
        due.drain(..).for_each(|slot| self.issue(now, slot, out));
        self.due = due;
        self.sdc.flush(now, out);
        self.harvest(now, out);
    }

    fn wake_at(&self) -> Option<Time> {
        if self.due.is_empty() { self.sdc.wake_at() } else { Some(Time::ZERO) }
    }
}
