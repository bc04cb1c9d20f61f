//! The world: processes, hosts, paths and devices in virtual time, moved by one queue of events.
//!
//! It is a driver like `rt`: it delivers events to nodes in batches of random size, ends each batch
//! with `flush`, carries the effects out, and promises what [`seam::contract`] demands. It knows no
//! protocol of ours, except that the trace can name frames. Who starts, kills or judges what is
//! decided by its owner between two steps.

use crate::actor::Actor;
use crate::clock::Clock;
use crate::disk::{Disk, DiskKind};
use crate::inbox::{Item, PendingDisk, PendingKind, Process, Strike};
use crate::net::{Conn, Paths};
use crate::queue::Queue;
use crate::trace::{Sink, Trace};
use crate::weather::Weather;
use base::{LinkId, Prng, Time};
use seam::{
    BlockError, BlockRequest, Buf, BufPool, DialError, DialId, DiskId, DiskOp, Effect, Effects, Event, Head,
    Note, Port, RequestId,
};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

pub use crate::inbox::ProcState;

/// Names a process (and its host: one each).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProcId(pub usize);

/// A dial on its way.
#[derive(Debug)]
pub(crate) struct Dial {
    pub from: ProcId,
    pub life: u32,
    pub dial: DialId,
    pub to: Option<ProcId>,
    pub port: Port,
    pub since: Time,
}

/// What the queue holds.
pub(crate) enum What {
    Arrive { conn: u32, lane: u8 },
    Expire { conn: u32, lane: u8, stall: u32 },
    Unstall { conn: u32, lane: u8 },
    Syn(Box<Dial>),
    Refused(Box<Dial>),
    DialTimeout { conn: u32 },
    DialFailed { proc: ProcId, life: u32, dial: DialId, why: DialError },
    Run { proc: ProcId, life: u32 },
    Wake { proc: ProcId, life: u32, number: u32 },
    Disk { proc: ProcId, life: u32, op: u32 },
    Alarm(u64),
}

/// What a step came to, as far as the owner has to know.
pub enum Step {
    /// Nothing is left to happen.
    Idle,
    /// Something happened; look at `replies` and `notes`.
    Ran,
    /// The owner's own alarm.
    Alarm(u64),
    /// A process was struck in the middle of its effects and is dead.
    Died(ProcId, Box<dyn Actor>),
}

/// An answer to a block request.
#[derive(Debug)]
pub struct Reply {
    /// Who answered.
    pub proc: ProcId,
    /// In which life.
    pub life: u32,
    /// Which request.
    pub id: RequestId,
    /// The data, or why not.
    pub result: Result<Buf, BlockError>,
}

/// The world.
pub struct World {
    pub(crate) now: Time,
    pub(crate) queue: Queue<What>,
    pub(crate) procs: Vec<Process>,
    pub(crate) conns: Vec<Option<Box<Conn>>>,
    pub(crate) paths: Paths,
    pub(crate) weather: Weather,
    pub(crate) net_prng: Prng,
    pub(crate) addresses: BTreeMap<SocketAddr, ProcId>,
    pub(crate) trace: Trace,
    pub(crate) link_queue: u64,
    disk_prng: Prng,
    run_prng: Prng,
    seed_prng: Prng,
    steps: u64,
    scratch: Vec<Effect>,
    /// Links that the running node has closed in this batch.
    closed: Vec<LinkId>,
    /// Answers that the owner has not taken yet.
    pub replies: Vec<Reply>,
    /// Notes that the owner has not taken yet.
    pub notes: Vec<(ProcId, Note)>,
    /// Whose sent map pages are copied to `tapped`.
    pub tap: Option<ProcId>,
    /// Map pages, as they were sent.
    pub tapped: Vec<(Head, Buf)>,
}

impl World {
    /// An empty world. `link_queue` is the limit of the same name.
    pub fn new(seed: u64, weather: Weather, link_queue: u64, sink: Sink) -> World {
        let root = Prng::new(seed).fork("world");
        World {
            now: Time::ZERO,
            queue: Queue::new(root.fork("ties")),
            procs: Vec::new(),
            conns: Vec::new(),
            paths: Paths::new(),
            weather,
            net_prng: root.fork("net"),
            addresses: BTreeMap::new(),
            trace: Trace::new(sink),
            link_queue,
            disk_prng: root.fork("disk"),
            run_prng: root.fork("run"),
            seed_prng: root,
            steps: 0,
            scratch: Vec::new(),
            closed: Vec::new(),
            replies: Vec::new(),
            notes: Vec::new(),
            tap: None,
            tapped: Vec::new(),
        }
    }

    /// Adds a process that is not started yet.
    pub fn add(&mut self, name: &str, address: Option<SocketAddr>, disks: Vec<Disk>) -> ProcId {
        let id = ProcId(self.procs.len());
        let mut prng = self.seed_prng.fork(name);
        let drift = i64::from(self.weather.drift_ppm);
        let ppm = prng.range(0, 2 * drift as u64) as i64 - drift;
        let clock = Clock::new(prng.range(1, 1 << 40), ppm);
        self.procs.push(Process::new(name, disks, clock, prng));
        self.paths.resize(self.procs.len());
        if let Some(address) = address {
            self.addresses.insert(address, id);
        }
        id
    }

    /// Gives a process another clock; before its start.
    pub fn set_clock(&mut self, proc: ProcId, clock: Clock) {
        self.procs[proc.0].clock = clock;
    }

    /// The world's time.
    pub fn now(&self) -> Time {
        self.now
    }

    /// What `proc`'s clock shows.
    pub fn local_now(&self, proc: ProcId) -> Time {
        self.procs[proc.0].clock.local(self.now)
    }

    /// How many steps were taken.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The fingerprint, and the trace.
    pub fn trace(&mut self) -> &mut Trace {
        &mut self.trace
    }

    /// The name of a process.
    pub fn name(&self, proc: ProcId) -> &str {
        &self.procs[proc.0].name
    }

    /// Whether it runs.
    pub fn state(&self, proc: ProcId) -> ProcState {
        self.procs[proc.0].state
    }

    /// How many times it was started or died; names a life.
    pub fn life(&self, proc: ProcId) -> u32 {
        self.procs[proc.0].life
    }

    /// Changes how the hardware behaves from now on.
    pub fn set_weather(&mut self, weather: Weather) {
        self.weather = weather;
    }

    /// The hardware's behaviour.
    pub fn weather(&self) -> &Weather {
        &self.weather
    }

    /// The node of a running process.
    pub fn actor<T: 'static>(&self, proc: ProcId) -> Option<&T> {
        self.procs[proc.0].actor.as_ref()?.as_any().downcast_ref()
    }

    /// The buffer pool that a process's next life will get is new; this one's bytes are out.
    pub fn pool_used(&self, proc: ProcId) -> usize {
        self.procs[proc.0].out.pool().used()
    }

    /// A process's device.
    pub fn disk(&mut self, proc: ProcId, disk: DiskId) -> &mut Disk {
        &mut self.procs[proc.0].disks[disk.0 as usize]
    }

    /// Takes a device out of a process that is dead, for another world.
    pub fn take_disk(&mut self, proc: ProcId, disk: DiskId) -> Disk {
        let place = &mut self.procs[proc.0].disks[disk.0 as usize];
        std::mem::replace(place, Disk::new(place.kind(), 0))
    }

    /// Lets the owner hear of `token` at `at`.
    pub fn alarm(&mut self, at: Time, token: u64) {
        self.queue.push(at, What::Alarm(token));
    }

    /// Starts a process.
    pub fn boot(&mut self, id: ProcId, actor: Box<dyn Actor>) {
        let chaos = self.weather.chaos != 0;
        let proc = &mut self.procs[id.0];
        assert_eq!(proc.state, ProcState::Dead, "{} runs already", proc.name);
        proc.state = ProcState::Running;
        proc.life += 1;
        proc.actor = Some(actor);
        let prng = proc.prng.fork(&format!("life {}", proc.life));
        let chaos = chaos.then(|| prng.fork("chaos"));
        proc.out = Effects::new(BufPool::new(8 << 20), prng, chaos);
        let back = std::mem::take(&mut proc.host_down);
        let name = proc.name.clone();
        self.trace.line(self.now, &name, || "starts".into());
        if back {
            self.host_is_back(id);
        }
        self.poke(id);
    }

    /// A number from the process's own stream, for nonces and the like.
    pub fn draw(&mut self, id: ProcId) -> u64 {
        self.procs[id.0].prng.next_u64()
    }

    /// Kills a process now, between two batches; with `power` its host goes dark as well. Gives the
    /// node's memory back.
    pub fn crash(&mut self, id: ProcId, power: bool) -> Option<Box<dyn Actor>> {
        let proc = &mut self.procs[id.0];
        let actor = proc.actor.take()?;
        let name = proc.name.clone();
        self.trace.line(self.now, &name, || format!("dies{}", if power { ", with its host" } else { "" }));
        proc.state = ProcState::Dead;
        proc.host_down = power;
        proc.life += 1;
        proc.inbox.clear();
        proc.held.clear();
        proc.wake = None;
        proc.scheduled = false;
        proc.strike = Strike::None;
        for (_, op) in std::mem::take(&mut proc.pending) {
            if let PendingKind::Write { at, body } = op.what {
                proc.disks[op.disk.0 as usize].write_torn(at, &body, &mut self.disk_prng);
            }
        }
        if power {
            for disk in &mut proc.disks {
                disk.power_loss(&mut self.disk_prng);
            }
        }
        self.drop_links(id, power);
        Some(actor)
    }

    /// Kills a process in the middle of its next batch's effects; `step` tells when it happened.
    pub fn crash_in_effects(&mut self, id: ProcId, power: bool) {
        self.procs[id.0].strike = Strike::Crash { power };
    }

    /// Stops a process: it keeps its memory and loses time. `in_effects`: it stops with the effects
    /// of its next batch in hand.
    pub fn pause(&mut self, id: ProcId, in_effects: bool) {
        let proc = &mut self.procs[id.0];
        if proc.state == ProcState::Running {
            if in_effects {
                proc.strike = Strike::Pause;
            } else {
                proc.state = ProcState::Paused;
                let name = proc.name.clone();
                self.trace.line(self.now, &name, || "stops".into());
            }
        }
    }

    /// Lets a paused process go on.
    pub fn resume(&mut self, id: ProcId) {
        let proc = &mut self.procs[id.0];
        if proc.strike == Strike::Pause {
            proc.strike = Strike::None;
        }
        if proc.state != ProcState::Paused {
            return;
        }
        proc.state = ProcState::Running;
        let name = proc.name.clone();
        let held = std::mem::take(&mut proc.held);
        self.trace.line(self.now, &name, || "goes on".into());
        for effect in held {
            self.carry_out(id, effect);
        }
        self.ask_wake(id);
        self.poke(id);
    }

    /// Hands a block request to a process. False when it does not run.
    pub fn request(&mut self, id: ProcId, name: RequestId, mut request: BlockRequest, body: &[u8]) -> bool {
        let proc = &mut self.procs[id.0];
        if proc.state == ProcState::Dead {
            return false;
        }
        request.body = proc.out.copy(body);
        self.deliver(id, Item::Request { id: name, request });
        true
    }

    /// Lets the next thing happen.
    pub fn step(&mut self) -> Step {
        let Some((at, what)) = self.queue.pop() else { return Step::Idle };
        assert!(at >= self.now, "time runs backwards");
        self.now = at;
        self.steps += 1;
        match what {
            What::Arrive { conn, lane } => self.arrive(conn, lane as usize),
            What::Expire { conn, lane, stall } => self.expire(conn, lane as usize, stall),
            What::Unstall { conn, lane } => self.unstall(conn, lane as usize),
            What::Syn(dial) => self.syn(dial),
            What::Refused(dial) => self.refused(*dial),
            What::DialTimeout { conn } => self.dial_timeout(conn),
            What::DialFailed { proc, life, dial, why } => {
                if self.procs[proc.0].life == life {
                    self.deliver(proc, Item::DialFailed { dial, why });
                }
            }
            What::Run { proc, life } => {
                if self.procs[proc.0].life == life {
                    return self.run(proc);
                }
            }
            What::Wake { proc, life, number } => {
                let p = &mut self.procs[proc.0];
                if p.life == life && p.wake_number == number {
                    p.wake = None;
                    self.poke(proc);
                }
            }
            What::Disk { proc, life, op } => {
                if self.procs[proc.0].life == life {
                    self.disk_ended(proc, op);
                }
            }
            What::Alarm(token) => return Step::Alarm(token),
        }
        Step::Ran
    }

    pub(crate) fn deliver(&mut self, id: ProcId, item: Item) {
        self.procs[id.0].inbox.push_back(item);
        self.poke(id);
    }

    pub(crate) fn poke(&mut self, id: ProcId) {
        let proc = &mut self.procs[id.0];
        if proc.state == ProcState::Running && !proc.scheduled {
            proc.scheduled = true;
            let at = self.now + Duration::from_nanos(100) + self.weather.run(&mut self.run_prng);
            self.queue.push(at, What::Run { proc: id, life: proc.life });
        }
    }

    fn run(&mut self, id: ProcId) -> Step {
        let proc = &mut self.procs[id.0];
        proc.scheduled = false;
        if proc.state != ProcState::Running {
            return Step::Ran;
        }
        let now = proc.clock.local(self.now);
        let mut actor = proc.actor.take().expect("a running process has a node");
        let batch = 1 + self.run_prng.below(u64::from(self.weather.batch.max(1)));
        let tick_first = self.run_prng.chance(0.5);
        if tick_first {
            self.tick(id, &mut *actor, now);
        }
        for _ in 0..batch {
            let Some(item) = self.procs[id.0].inbox.pop_front() else { break };
            self.hand_over(id, &mut *actor, now, item);
            self.note_closed(id);
        }
        if !tick_first {
            self.tick(id, &mut *actor, now);
        }
        actor.flush(now, &mut self.procs[id.0].out);
        self.note_closed(id);
        self.closed.clear();
        let proc = &mut self.procs[id.0];
        let mut effects = std::mem::take(&mut self.scratch);
        proc.actor = Some(actor);
        let strike = if effects.is_empty() { Strike::None } else { std::mem::replace(&mut proc.strike, Strike::None) };
        let until = match strike {
            Strike::None => effects.len(),
            Strike::Crash { .. } | Strike::Pause => self.run_prng.below(effects.len() as u64 + 1) as usize,
        };
        let mut rest = effects.drain(..);
        for effect in rest.by_ref().take(until) {
            self.carry_out(id, effect);
        }
        match strike {
            Strike::None => drop(rest),
            Strike::Crash { power } => {
                drop(rest);
                self.scratch = effects;
                let actor = self.crash(id, power).expect("it runs");
                return Step::Died(id, actor);
            }
            Strike::Pause => {
                self.procs[id.0].held.extend(rest);
                self.scratch = effects;
                self.pause(id, false);
                return Step::Ran;
            }
        }
        self.scratch = effects;
        self.ask_wake(id);
        if !self.procs[id.0].inbox.is_empty() {
            self.poke(id);
        }
        Step::Ran
    }

    /// Collects what the node has emitted. A link that it closes is silent from then on, although
    /// effects are carried out at the end of the batch.
    fn note_closed(&mut self, id: ProcId) {
        for effect in self.procs[id.0].out.drain() {
            if let Effect::Close { link } = &effect {
                self.closed.push(*link);
            }
            self.scratch.push(effect);
        }
    }

    fn tick(&mut self, id: ProcId, actor: &mut dyn Actor, now: Time) {
        if actor.wake_at().is_some_and(|at| at <= now) {
            self.trace.words(&[30, self.now.0, id.0 as u64]);
            actor.on(now, Event::Tick, &mut self.procs[id.0].out);
        }
    }

    fn ask_wake(&mut self, id: ProcId) {
        let proc = &mut self.procs[id.0];
        let Some(actor) = &proc.actor else { return };
        let wake = actor.wake_at();
        if wake == proc.wake {
            return;
        }
        proc.wake = wake;
        proc.wake_number += 1;
        if let Some(local) = wake {
            let at = proc.clock.world(local).max(self.now);
            if local != Time::NEVER {
                let what = What::Wake { proc: id, life: proc.life, number: proc.wake_number };
                self.queue.push(at, what);
            }
        }
    }

    fn hand_over(&mut self, id: ProcId, actor: &mut dyn Actor, now: Time, item: Item) {
        if let Item::Frame { conn, lane, bytes, .. } = item
            && let Some(conn) = &mut self.conns[conn as usize]
        {
            conn.lanes[lane as usize].bytes -= bytes;
        }
        let known = match &item {
            Item::LinkUp { link, .. } | Item::LinkDown { link, .. } | Item::Frame { link, .. } => {
                self.procs[id.0].links.contains_key(link) && !self.closed.contains(link)
            }
            _ => true,
        };
        if !known {
            return; // the node has closed it
        }
        let peer = match &item {
            Item::LinkUp { link, .. } | Item::LinkDown { link, .. } | Item::Frame { link, .. } => {
                self.peer_name(id, *link)
            }
            _ => String::new(),
        };
        let proc = &mut self.procs[id.0];
        self.trace.item(self.now, &proc.name, id.0, &item, &peer);
        let event = match item {
            Item::LinkUp { link, port, dial } => Event::LinkUp { link, port, dial },
            Item::LinkDown { link, why } => {
                proc.links.remove(&link);
                Event::LinkDown { link, why }
            }
            Item::DialFailed { dial, why } => Event::DialFailed { dial, why },
            Item::Frame { link, ref head, body, .. } => {
                return actor.on(now, Event::Frame { link, head: head.as_slice(), body }, &mut proc.out);
            }
            Item::DiskDone { op } => {
                let done = proc.pending.remove(&op).expect("a device operation ends once");
                let disk = &mut proc.disks[done.disk.0 as usize];
                let result = match done.what {
                    PendingKind::Ended(result) => result,
                    PendingKind::Read { at, len } => disk.read(at, len as usize, proc.out.pool()),
                    PendingKind::Write { at, body } => disk.write(at, &body).map(|()| Buf::EMPTY),
                    PendingKind::Flush { .. } => Ok(Buf::EMPTY),
                };
                Event::DiskDone { op: done.op, result }
            }
            Item::Request { id, request } => Event::Request { id, request },
        };
        actor.on(now, event, &mut proc.out);
    }

    /// A device operation ends. A log's takes place now; a memory's when the node hears of it.
    fn disk_ended(&mut self, id: ProcId, op: u32) {
        let proc = &mut self.procs[id.0];
        let pending = proc.pending.get_mut(&op).expect("a device operation ends once");
        let disk = &mut proc.disks[pending.disk.0 as usize];
        if disk.kind() == DiskKind::Log {
            let result = match &pending.what {
                PendingKind::Read { at, len } => disk.read(*at, *len as usize, proc.out.pool()),
                PendingKind::Write { at, body } => disk.write(*at, body).map(|()| Buf::EMPTY),
                PendingKind::Flush { covers } => {
                    disk.flush_ends(*covers);
                    Ok(Buf::EMPTY)
                }
                PendingKind::Ended(_) => unreachable!("a device operation ends once"),
            };
            pending.what = PendingKind::Ended(result);
        }
        self.deliver(id, Item::DiskDone { op });
    }

    fn start_disk(&mut self, id: ProcId, op: DiskOp, disk: DiskId, what: PendingKind) {
        let proc = &mut self.procs[id.0];
        let number = proc.next_pending;
        proc.next_pending += 1;
        proc.pending.insert(number, PendingDisk { op, disk, what });
        let at = self.now + self.weather.disk(&mut self.disk_prng);
        self.queue.push(at, What::Disk { proc: id, life: proc.life, op: number });
    }

    fn carry_out(&mut self, id: ProcId, effect: Effect) {
        let peer = match &effect {
            Effect::Send { link, .. } if self.trace.is_on() => self.peer_name(id, *link),
            _ => String::new(),
        };
        self.trace.effect(self.now, &self.procs[id.0].name, &effect, &peer);
        match effect {
            Effect::Send { link, head, body } => self.send(id, link, head, body),
            Effect::Dial { dial, to, port } => self.dial(id, dial, to, port),
            Effect::Close { link } => self.close(id, link),
            Effect::Pause { link } => self.set_reading(id, link, false),
            Effect::Resume { link } => self.set_reading(id, link, true),
            Effect::Read { op, disk, at, len } => self.start_disk(id, op, disk, PendingKind::Read { at, len }),
            Effect::Write { op, disk, at, body } => {
                self.start_disk(id, op, disk, PendingKind::Write { at, body });
            }
            Effect::Flush { op, disk } => {
                let covers = self.procs[id.0].disks[disk.0 as usize].flush_begins();
                self.start_disk(id, op, disk, PendingKind::Flush { covers });
            }
            Effect::Reply { id: name, result } => {
                let life = self.procs[id.0].life;
                self.replies.push(Reply { proc: id, life, id: name, result });
            }
            Effect::Note(note) => self.notes.push((id, note)),
        }
    }

    fn peer_name(&self, id: ProcId, link: LinkId) -> String {
        if !self.trace.is_on() {
            return String::new();
        }
        let Some(&(conn, side)) = self.procs[id.0].links.get(&link) else { return "?".into() };
        match &self.conns[conn as usize] {
            Some(conn) => self.procs[conn.ends[1 - side as usize].proc.0].name.clone(),
            None => "?".into(),
        }
    }
}
