//! A wake-up of a process: a batch of events, then `flush`, then the effects.

use crate::actor::Actor;
use crate::disk::{Disk, DiskKind};
use crate::inbox::{Item, PendingDisk, PendingKind, ProcState, Strike};
use crate::world::{ProcId, Reply, Step, What, World};
use base::{LinkId, Prng, Time};
use seam::{Buf, DiskError, DiskId, DiskOp, Effect, Event};

impl World {
    pub(crate) fn run(&mut self, id: ProcId) -> Step {
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
        let strike = if effects.is_empty() {
            Strike::None
        } else {
            std::mem::replace(&mut proc.strike, Strike::None)
        };
        let until = match strike {
            Strike::None => effects.len(),
            Strike::Crash { .. } | Strike::Pause => {
                self.run_prng.below(effects.len() as u64 + 1) as usize
            }
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

    /// Collects the effects that the node has emitted. Nothing more arrives on a link that it
    /// closes, although effects are carried out at the end of the batch.
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

    pub(crate) fn ask_wake(&mut self, id: ProcId) {
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
            return; // the node has closed the link
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
            Item::LinkUp { link, port, dial, at, from } => {
                Event::LinkUp { link, port, dial, at, from }
            }
            Item::LinkDown { link, why } => {
                proc.links.remove(&link);
                Event::LinkDown { link, why }
            }
            Item::DialFailed { dial, why } => Event::DialFailed { dial, why },
            Item::Frame { link, ref head, body, .. } => {
                return actor.on(
                    now,
                    Event::Frame { link, head: head.as_slice(), body },
                    &mut proc.out,
                );
            }
            Item::DiskDone { op } => {
                let done = proc.pending.remove(&op).expect("a device operation ends once");
                let disk = &mut proc.disks[done.disk.0 as usize];
                let result = match done.what {
                    PendingKind::Ended(result) => result,
                    PendingKind::Read { at, len } => disk.read(at, len as usize, proc.out.pool()),
                    PendingKind::Write { at, body, durable } => {
                        disk.write(at, &body, durable).map(|()| Buf::EMPTY)
                    }
                    PendingKind::Punch { at, len } => disk.punch(at, len).map(|()| Buf::EMPTY),
                    PendingKind::Flush { .. } => Ok(Buf::EMPTY),
                };
                Event::DiskDone { op: done.op, result }
            }
            Item::Request { id, request } => Event::Request { id, request },
            Item::Withdraw { ids } => {
                return actor.on(now, Event::Withdraw { ids: &ids }, &mut proc.out);
            }
        };
        actor.on(now, event, &mut proc.out);
    }

    /// Ends a device operation. On a file it takes effect now, on other devices when
    /// the node hears of it.
    pub(crate) fn disk_ended(&mut self, id: ProcId, op: u32) {
        let proc = &mut self.procs[id.0];
        let pending = proc.pending.get_mut(&op).expect("a device operation ends once");
        let broken = proc.broken;
        let disk = &mut proc.disks[pending.disk.0 as usize];
        if matches!(disk.kind(), DiskKind::Log | DiskKind::File) {
            let trouble = match (&pending.what, disk.kind()) {
                _ if broken => Some(DiskError::Io),
                (PendingKind::Read { .. }, DiskKind::Log) => None,
                (_, DiskKind::Log) => self.weather.log_fails(&mut self.disk_prng),
                (PendingKind::Read { .. }, _) => self.weather.read_fails(&mut self.disk_prng),
                (PendingKind::Punch { .. }, _) => self.weather.hole_fails(&mut self.disk_prng),
                _ => self.weather.write_fails(&mut self.disk_prng),
            };
            if trouble.is_some_and(|e| e != DiskError::Unsupported) {
                fail(disk, &pending.what, &mut self.disk_prng);
            }
            let result = match &pending.what {
                _ if trouble.is_some() => Err(trouble.expect("just checked")),
                PendingKind::Read { at, len } => disk.read(*at, *len as usize, proc.out.pool()),
                PendingKind::Write { at, body, durable } => {
                    disk.write(*at, body, *durable).map(|()| Buf::EMPTY)
                }
                PendingKind::Punch { at, len } => {
                    self.punched.push((id, *at..at + len));
                    disk.punch(*at, *len).map(|()| Buf::EMPTY)
                }
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
        proc.pending.insert(number, PendingDisk { op, disk, since: self.now, what });
        let longer = proc.slow.1;
        let mut at = self.now + self.weather.disk(&mut self.disk_prng) + longer;
        if matches!(proc.pending[&number].what, PendingKind::Punch { .. }) {
            at = at + self.weather.hole(&mut self.disk_prng);
        }
        if proc.disks[disk.0 as usize].kind() == DiskKind::File {
            at = at + self.weather.stuck(&mut self.disk_prng);
        }
        if proc.disks[disk.0 as usize].kind() == DiskKind::Log {
            at = at + self.weather.log_stuck(&mut self.disk_prng);
        }
        self.queue.push(at, What::Disk { proc: id, life: proc.life, op: number });
    }

    pub(crate) fn carry_out(&mut self, id: ProcId, effect: Effect) {
        let peer = match &effect {
            Effect::Send { link, .. } | Effect::SendFirst { link, .. } if self.trace.is_on() => {
                self.peer_name(id, *link)
            }
            _ => String::new(),
        };
        self.trace.effect(self.now, &self.procs[id.0].name, &effect, &peer);
        match effect {
            Effect::Send { link, head, body } => self.send(id, link, head, body),
            Effect::SendFirst { link, head } => self.send_first(id, link, head),
            Effect::Dial { dial, to, port } => self.dial(id, dial, to, port),
            Effect::Close { link } => self.close(id, link),
            Effect::Welcome { link } => self.procs[id.0].strangers.retain(|s| s.link != link),
            Effect::Pause { link } => self.set_reading(id, link, false),
            Effect::Reframe { link, mode } => self.set_mode(id, link, mode),
            Effect::Resume { link } => self.set_reading(id, link, true),
            Effect::Read { op, disk, at, len } => {
                self.start_disk(id, op, disk, PendingKind::Read { at, len })
            }
            Effect::Write { op, disk, at, body, durable } => {
                self.start_disk(id, op, disk, PendingKind::Write { at, body, durable });
            }
            Effect::Flush { op, disk } => {
                let covers = self.procs[id.0].disks[disk.0 as usize].flush_begins();
                self.start_disk(id, op, disk, PendingKind::Flush { covers });
            }
            Effect::Punch { op, disk, at, len } => {
                self.start_disk(id, op, disk, PendingKind::Punch { at, len });
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

/// Applies the side effects of a failed operation: a write may have reached the disk, partly or
/// fully, space may have been given back in part, and a flush may have dropped what it should have
/// made durable.
fn fail(disk: &mut Disk, what: &PendingKind, prng: &mut Prng) {
    let log = disk.kind() == DiskKind::Log;
    match what {
        PendingKind::Read { at, len } => disk.fail(*at, *len as usize),
        PendingKind::Write { at, body, durable } if log => {
            if prng.chance(0.5) {
                let _ = disk.write(*at, body, *durable);
            }
        }
        PendingKind::Write { at, body, .. } => disk.write_torn(*at, body, prng),
        PendingKind::Punch { at, len } => disk.punch_torn(*at, *len, prng),
        PendingKind::Flush { covers } if log => disk.flush_fails(*covers, prng),
        PendingKind::Flush { covers } => disk.flush_drops(*covers, prng),
        PendingKind::Ended(_) => {}
    }
}
