//! The world: processes, hosts, paths and devices in virtual time, moved by one queue of events.
//!
//! It is a driver like `rt`: it delivers events to nodes in batches of random size, ends each batch
//! with `flush`, carries out the effects, and keeps the promises of [`seam::contract`]. It looks
//! into frames only for the trace, for judges and for strangers. Its owner decides between two
//! steps which processes start and die.

use crate::actor::Actor;
use crate::check::executed::Writes;
use crate::clock::Clock;
use crate::disk::Disk;
use crate::inbox::{Item, PendingKind, Process, Strike};
use crate::lies::Liar;
use crate::net::{Conn, Paths};
use crate::queue::Queue;
use crate::trace::{Sink, Trace};
use crate::weather::Weather;
use base::{LinkId, Prng, Time};
use node::sds::Sds;
use seam::{
    BlockError, BlockRequest, Buf, BufPool, DialError, DialId, DiskId, Effect, Effects, Head, Note,
    Port, RequestId,
};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;
use wire::control::Hello;

pub use crate::inbox::ProcState;

/// Identifies a process and its host, which has only this process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProcId(pub usize);

/// A dial in flight.
#[derive(Debug)]
pub(crate) struct Dial {
    pub from: ProcId,
    pub life: u32,
    pub dial: DialId,
    pub to: Option<ProcId>,
    pub address: SocketAddr,
    pub port: Port,
    pub since: Time,
}

/// Events in the queue.
pub(crate) enum What {
    Arrive {
        conn: u32,
        lane: u8,
    },
    Expire {
        conn: u32,
        lane: u8,
        stall: u32,
    },
    Unstall {
        conn: u32,
        lane: u8,
    },
    Syn(Box<Dial>),
    Refused(Box<Dial>),
    DialTimeout {
        conn: u32,
    },
    DialFailed {
        proc: ProcId,
        life: u32,
        dial: DialId,
        why: DialError,
    },
    Run {
        proc: ProcId,
        life: u32,
    },
    Wake {
        proc: ProcId,
        life: u32,
        number: u32,
    },
    Disk {
        proc: ProcId,
        life: u32,
        op: u32,
    },
    Alarm(u64),
    /// The time is over in which a stranger has to send its first frame.
    Hello {
        proc: ProcId,
        life: u32,
        link: LinkId,
        patience: Duration,
    },
}

/// Result of a step.
pub enum Step {
    /// No event is left.
    Idle,
    /// Something happened; see `replies` and `notes`.
    Ran,
    /// An alarm that the owner has set.
    Alarm(u64),
    /// A process died in the middle of its effects.
    Died(ProcId, Box<dyn Actor>),
}

/// An answer to a block request.
#[derive(Debug)]
pub struct Reply {
    /// The process that answered.
    pub proc: ProcId,
    /// Its incarnation; see [`World::life`].
    pub life: u32,
    /// The request.
    pub id: RequestId,
    /// The data, or the error.
    pub result: Result<Buf, BlockError>,
}

/// The simulated world.
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
    link_queue: u64,
    pub(crate) disk_prng: Prng,
    pub(crate) run_prng: Prng,
    seed_prng: Prng,
    steps: u64,
    pub(crate) scratch: Vec<Effect>,
    /// Links that the running node has closed in this batch.
    pub(crate) closed: Vec<LinkId>,
    /// Answers that the owner has not taken yet.
    pub replies: Vec<Reply>,
    /// Notes that the owner has not taken yet.
    pub notes: Vec<(ProcId, Note)>,
    /// Ranges of devices that processes have given back, for a judge.
    pub(crate) punched: Vec<(ProcId, Range<u64>)>,
    /// Frames and bytes that each process has sent.
    pub(crate) sent: Vec<[u64; 2]>,
    /// Processes whose outgoing map pages are copied to `tapped`.
    pub tap: Vec<ProcId>,
    /// Copied map pages, in the order in which they were sent.
    pub tapped: Vec<(Head, Buf)>,
    /// Length in bytes of the longest frame body that any process has waited for.
    pub longest_body: usize,
    /// Writes that clients have sent and that have arrived; for judges.
    pub(crate) writes: Writes,
    /// The newest hellos that a stranger has overheard, each with its receiver.
    pub(crate) overheard: VecDeque<(ProcId, Hello)>,
    pub(crate) forge_prng: Prng,
    /// A stranger that overhears all frames, in plans with lies.
    pub(crate) liar: Option<Liar>,
}

impl World {
    /// Creates an empty world. `link_queue` is the limit of the same name, for processes that
    /// `set_link_queue` does not change.
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
            overheard: VecDeque::new(),
            forge_prng: root.fork("forge"),
            liar: None,
            disk_prng: root.fork("disk"),
            run_prng: root.fork("run"),
            seed_prng: root,
            steps: 0,
            scratch: Vec::new(),
            closed: Vec::new(),
            replies: Vec::new(),
            notes: Vec::new(),
            punched: Vec::new(),
            sent: Vec::new(),
            tap: Vec::new(),
            tapped: Vec::new(),
            longest_body: 0,
            writes: Writes::default(),
        }
    }

    /// Returns the number of processes.
    pub fn processes(&self) -> usize {
        self.procs.len()
    }

    /// Adds a process without starting it.
    pub fn add(&mut self, name: &str, address: Option<SocketAddr>, disks: Vec<Disk>) -> ProcId {
        let id = ProcId(self.procs.len());
        let mut prng = self.seed_prng.fork(name);
        let drift = i64::from(self.weather.drift_ppm);
        let ppm = prng.range(0, 2 * drift as u64) as i64 - drift;
        let clock = Clock::new(prng.range(1, 1 << 40), ppm);
        self.sent.push([0; 2]);
        self.procs.push(Process::new(name, disks, clock, prng, self.link_queue));
        self.paths.resize(self.procs.len());
        if let Some(address) = address {
            self.addresses.insert(address, id);
        }
        id
    }

    /// Gives a process a link queue of its own size, in bytes.
    pub fn set_link_queue(&mut self, proc: ProcId, bytes: u64) {
        self.procs[proc.0].link_queue = bytes;
    }

    /// Replaces the clock of a process. Must be called before its start.
    pub fn set_clock(&mut self, proc: ProcId, clock: Clock) {
        self.procs[proc.0].clock = clock;
    }

    /// Returns the world's time.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Returns the time on the clock of `proc`.
    pub fn local_now(&self, proc: ProcId) -> Time {
        self.procs[proc.0].clock.local(self.now)
    }

    /// Returns the number of steps so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Returns the trace, which contains the fingerprint.
    pub fn trace(&mut self) -> &mut Trace {
        &mut self.trace
    }

    /// Returns the frames and bytes that a process has sent on links that were up.
    pub fn sent(&self, proc: ProcId) -> [u64; 2] {
        self.sent[proc.0]
    }

    /// Returns the name of a process.
    pub fn name(&self, proc: ProcId) -> &str {
        &self.procs[proc.0].name
    }

    /// Returns whether a process runs.
    pub fn state(&self, proc: ProcId) -> ProcState {
        self.procs[proc.0].state
    }

    /// Returns how many times a process has started or died. The number identifies an incarnation
    /// within the simulator; the MDM gives incarnations other numbers.
    pub fn life(&self, proc: ProcId) -> u32 {
        self.procs[proc.0].life
    }

    /// Changes the behaviour of the hardware from now on.
    pub fn set_weather(&mut self, weather: Weather) {
        self.weather = weather;
    }

    /// Returns the behaviour of the hardware.
    pub fn weather(&self) -> &Weather {
        &self.weather
    }

    /// Returns the node of a running process.
    pub fn actor<T: 'static>(&self, proc: ProcId) -> Option<&T> {
        self.procs[proc.0].actor.as_ref()?.as_any().downcast_ref()
    }

    /// Returns the bytes that a process has allocated from its buffer pool. Each
    /// start gets a new pool.
    pub fn pool_used(&self, proc: ProcId) -> usize {
        self.procs[proc.0].out.pool().used()
    }

    /// Returns a device of a process.
    pub fn disk(&mut self, proc: ProcId, disk: DiskId) -> &mut Disk {
        &mut self.procs[proc.0].disks[disk.0 as usize]
    }

    /// Returns a device of a process, for reading.
    pub fn disk_at(&self, proc: ProcId, disk: DiskId) -> &Disk {
        &self.procs[proc.0].disks[disk.0 as usize]
    }

    /// Returns true while a device operation is in flight that began before this time.
    pub fn awaits_disk(&self, since: Time) -> bool {
        let mut pending = self.procs.iter().flat_map(|p| p.pending.values());
        pending.any(|op| op.since < since)
    }

    /// Takes a device out of a dead process, for use in another world.
    pub fn take_disk(&mut self, proc: ProcId, disk: DiskId) -> Disk {
        let place = &mut self.procs[proc.0].disks[disk.0 as usize];
        std::mem::replace(place, Disk::new(place.kind(), 0))
    }

    /// Sets an alarm: `step` returns `token` at time `at`.
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

    /// Numbers the incarnations of a dead process behind those of another process.
    pub fn begin_after(&mut self, id: ProcId, other: ProcId) {
        let lives = self.procs[other.0].life;
        self.procs[id.0].life = self.procs[id.0].life.max(lives + 1);
    }

    /// Returns the number of connections to a process that are still a stranger's.
    pub fn strangers(&self, id: ProcId) -> usize {
        self.procs[id.0].strangers.len()
    }

    /// Draws a number from the process's own random stream, for nonces and the like.
    pub fn draw(&mut self, id: ProcId) -> u64 {
        self.procs[id.0].prng.next_u64()
    }

    /// Kills a process now, between two batches; with `power`, its host loses power as well.
    /// Returns the node with its memory.
    pub fn crash(&mut self, id: ProcId, power: bool) -> Option<Box<dyn Actor>> {
        // Once the log says that all writes are finished, damage can't be taken for
        // an unfinished write.
        let device = self.actor::<Sds>(id).and_then(Sds::device);
        let rests = device.and_then(|d| d.durable()).is_none_or(|d| d.is_settled_on_disk());
        let proc = &mut self.procs[id.0];
        let actor = proc.actor.take()?;
        let name = proc.name.clone();
        self.trace.line(self.now, &name, || {
            format!("dies{}", if power { ", with its host" } else { "" })
        });
        proc.state = ProcState::Dead;
        proc.host_down = power;
        proc.life += 1;
        proc.inbox.clear();
        proc.held.clear();
        proc.strangers.clear();
        proc.wake = None;
        proc.scheduled = false;
        proc.strike = Strike::None;
        // Number of operations since the oldest one that has not ended.
        let pending = proc.pending.keys().next().map_or(0, |first| proc.next_pending - first);
        proc.disks.iter_mut().for_each(|disk| disk.forget_lies(rests, pending.into()));
        for (_, op) in std::mem::take(&mut proc.pending) {
            let disk = &mut proc.disks[op.disk.0 as usize];
            match op.what {
                PendingKind::Write { at, body, .. } => {
                    disk.write_torn(at, &body, &mut self.disk_prng);
                }
                PendingKind::Punch { at, len } => disk.punch_torn(at, len, &mut self.disk_prng),
                _ => {}
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

    /// Kills a process in the middle of its next batch's effects. `step` reports
    /// when that happened.
    pub fn crash_in_effects(&mut self, id: ProcId, power: bool) {
        self.procs[id.0].strike = Strike::Crash { power };
    }

    /// Cancels a strike in the middle of effects.
    pub fn spare(&mut self, id: ProcId) {
        self.procs[id.0].strike = Strike::None;
    }

    /// Stops a process, which keeps its memory and loses time. `in_effects`: it stops in the middle
    /// of its next batch's effects.
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

    /// Lets a paused process run again.
    pub fn resume(&mut self, id: ProcId) {
        let proc = &mut self.procs[id.0];
        if proc.strike == Strike::Pause {
            proc.strike = Strike::None;
        }
        if proc.state != ProcState::Paused {
            return;
        }
        proc.state = ProcState::Running;
        proc.clock.go_on(self.now);
        let name = proc.name.clone();
        let held = std::mem::take(&mut proc.held);
        self.trace.line(self.now, &name, || "goes on".into());
        for effect in held {
            self.carry_out(id, effect);
        }
        self.ask_wake(id);
        self.poke(id);
    }

    /// Stops the virtual machine of a process. Its clock stands still for `time`, and the process
    /// does nothing until it is resumed.
    pub fn halt(&mut self, id: ProcId, time: Duration) {
        self.procs[id.0].clock.stand(self.now, time);
        self.pause(id, false);
    }

    /// Advances the clock of a process.
    pub fn leap(&mut self, id: ProcId, by: Duration) {
        self.procs[id.0].clock.leap(self.now, by);
        self.wake_anew(id);
    }

    /// Sets the drift of the clock of a process, in ppm.
    pub fn drift(&mut self, id: ProcId, ppm: i64) {
        self.procs[id.0].clock.drift(self.now, ppm);
        self.wake_anew(id);
    }

    /// Computes again when a process wakes up by the world's time, after a change of its clock.
    fn wake_anew(&mut self, id: ProcId) {
        self.procs[id.0].wake = None;
        self.ask_wake(id);
    }

    /// Hands a block request to a process. Returns false when the process is dead.
    pub fn request(
        &mut self,
        id: ProcId,
        name: RequestId,
        mut request: BlockRequest,
        body: &[u8],
    ) -> bool {
        let proc = &mut self.procs[id.0];
        if proc.state == ProcState::Dead {
            return false;
        }
        request.body = proc.out.copy(body);
        self.deliver(id, Item::Request { id: name, request });
        true
    }

    /// Withdraws these block requests of a process that lives. The ids are in ascending order.
    pub fn withdraw(&mut self, id: ProcId, ids: Vec<RequestId>) {
        assert!(self.procs[id.0].state != ProcState::Dead, "it lives");
        self.deliver(id, Item::Withdraw { ids });
    }

    /// Handles the next event.
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
            What::Hello { proc, life, link, patience } => {
                if self.procs[proc.0].life == life {
                    self.hello_due(proc, link, patience);
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
}
