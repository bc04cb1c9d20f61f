//! The primary: operations of clients from arrival to answer (rules R1, R3, R8).
//!
//! Once the group is active, every operation first gets its range lock, in order of arrival. Then a
//! read waits for the leases that it needs and reads from this device. A write gets the next lsn,
//! is written here, and is sent to all other in-sync replicas and joiners, in one step. Only a
//! write that needs new space is sent first and written here when every other in-sync replica has
//! it, so that they can refuse it (R15).
//!
//! Invariants:
//! - A write is acknowledged only when it is durable here and at every other in-sync replica, and
//!   at a joiner in limbo. If one of them fails, the configuration ends, and the client asks again
//!   (R1).
//! - A read is started only while every other in-sync replica, and a joiner in limbo, has granted a
//!   lease that still runs (R3).
//! - A retry of a write that the content includes is not executed again (R8).
//! - Nothing is served before the group is active. It becomes active when it has settled (R6) and
//!   when no lease that this device has granted to another replica can count any more (R4).

use crate::executed::refusal;
use crate::lease::Leases;
use crate::members::ReplicaSet;
use crate::mirror::Mirror;
use crate::op::{Caller, Local, Op, Work, Write, fits};
use crate::replica::{Replica, Role};
use crate::sync::Phase;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use base::{
    BLOCK, BlockSet, DeviceId, Epoch, GroupId, Limits, Lsn, Mutant, SECTOR, SdcId, Time, mutant,
};
use seam::{Buf, Effects, Note, Started, UnitStore};
use wire::message::{Io, Replicated};
use wire::{Body, PeerLink, Status};

/// The progress of a client's write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Progress {
    /// It waits, and changes nothing yet.
    Waits,
    /// It is written here, and other replicas need its blocks whole.
    NeedsWhole,
    /// It can be written here: every needed replica has space for it.
    Starts,
    /// `answered`: the client has to be answered now. `over`: nothing is left to do.
    Is { answered: bool, over: bool },
}

impl Op {
    /// Returns the progress of a client's write. `needed`: the replicas whose answers an
    /// acknowledgement needs; `met`: all of them have answered (R1).
    #[inline]
    fn progress(&self, needed: ReplicaSet, met: bool) -> Progress {
        let &Write { answered, whole, .. } = self.write().expect("it is a write");
        if !whole.needed.is_empty() && !whole.running && self.local == Local::Done {
            return Progress::NeedsWhole;
        }
        if self.reserved && self.local == Local::NotStarted {
            // A replica that needs the blocks whole has had space for the write.
            let mut told = self.acked;
            told.insert(whole.needed);
            let starts = told.contains_all(needed);
            return if starts { Progress::Starts } else { Progress::Waits };
        }
        let here = self.local == Local::Done
            || (mutant::on(Mutant::AckBeforeLocal) && self.local == Local::Running);
        let answers = met && here && !answered;
        let everywhere = self.local == Local::Done && self.acked.contains_all(self.sent);
        Progress::Is { answered: answers, over: (answered || answers) && everywhere }
    }
}

impl Replica {
    /// Checks whether this replica may execute the operation of a client now. `full`: the shard
    /// takes no more of them.
    fn admits(
        &self,
        me: DeviceId,
        io: &Io,
        body: &Body,
        limits: &Limits,
        full: bool,
    ) -> Result<(), Status> {
        let (request, config) = (io.request(), self.newest());
        let epoch = request.epoch;
        if config.lost {
            return Err(Status::Lost);
        }
        if epoch > config.epoch {
            return Err(Status::Behind);
        }
        if config.primary != Some(me)
            || (epoch < config.epoch && !mutant::on(Mutant::NoClientEpoch))
        {
            return Err(Status::Stale);
        }
        let Role::Primary(primary) = &self.role else {
            return Err(Status::Behind);
        };
        if self.next.is_some() {
            return Err(Status::Behind);
        }
        let (at, len) = (request.range.at, request.range.len);
        if !fits::<SECTOR>(at, len) {
            return Err(Status::OutOfRange);
        }
        // A forgotten write is described by the number after its own, and no number comes after
        // this one (R8).
        if request.client.seq == u64::MAX {
            return Err(Status::OutOfRange);
        }
        if matches!(io, Io::Write(_)) && body.data.len() != len as usize {
            return Err(Status::OutOfRange);
        }
        if full || request.client.sdc.0 == 0 {
            return Err(Status::Busy);
        }
        if matches!(io, Io::Write(_) | Io::Zero(_)) {
            // A discard may make the space that the client's oldest write waits for, so discards
            // have room beyond the window of writes.
            let windows = if matches!(io, Io::Zero(_)) { 2 } else { 1 };
            let most = windows * limits.executed_window as usize;
            self.record.executed.admits(request.client, most).map_err(refusal)?;
            if !primary.has_room(limits) {
                return Err(Status::Busy);
            }
        }
        Ok(())
    }

    /// Returns true if every replica that could be promoted has promised, by a lease, not to act as
    /// the primary for now (rule R3).
    fn may_read(&self, now: Time, leases: &Leases) -> bool {
        let needed = self.needed();
        needed.is_empty() || self.config.devices(needed).all(|device| leases.holds(now, device))
    }
}

impl<S: UnitStore> Mirror<S> {
    /// Takes an operation of a client. The caller has checked the session, and the volume against
    /// the map.
    pub fn client(&mut self, now: Time, link: PeerLink, io: &Io, body: Body, out: &mut Effects) {
        let (group, asked) = (io.request().group, io.request().epoch);
        let caller = Caller { link, op: io.request().op, group };
        self.copies.pace.client(now);
        let full = self.ops.load().is_full(&self.limits);
        let verdict = match self.replicas.get(group) {
            Some(replica) => replica.admits(self.me, io, &body, &self.limits, full),
            None if io.request().map > self.known.map() => Err(Status::Behind),
            None => Err(Status::Stale),
        };
        match verdict {
            Ok(()) => self.accept(now, link, io, body),
            Err(Status::Stale) => {
                let config = self.replicas.get(group).map(Replica::newest);
                let (epoch, leader) = config.map_or((Epoch(0), None), |c| (c.epoch, c.primary));
                out.note(Note::StaleEpoch { group, have: epoch, got: asked });
                caller.send(self.known.stale(caller, epoch, leader), out);
            }
            Err(status) => self.reply(caller, status, out),
        }
        self.pump(now, out);
    }

    /// Drops a client's operations that have not begun, because its session is over or has been
    /// replaced (rule R8). Those that have begun hold their ranges, so operations of a new session
    /// come after them.
    ///
    /// Otherwise a write that waits here could be executed after the client, or its next
    /// incarnation, has overwritten it, and the list of executed writes, which knows only the
    /// newest incarnation, would not recognise a retry. A write may wait long: for its range, for a
    /// lease, or until its group is served. Meanwhile it would take room from other clients.
    pub fn session_over(&mut self, now: Time, sdc: SdcId, out: &mut Effects) {
        let is_over = |op: &Op| {
            let begun = op.local != Local::NotStarted || op.lsn != Lsn(0);
            op.work.client().is_some() && op.client.sdc == sdc && !begun
        };
        let over = self.ops.iter().filter(|(_, op)| is_over(op));
        let over: Vec<(u64, GroupId)> = over.map(|(key, op)| (key, op.group)).collect();
        for (key, _) in &over {
            self.end_op(*key);
        }
        for group in over.iter().map(|(_, group)| *group).collect::<BTreeSet<_>>() {
            let Some(primary) = self.replicas.primary_mut(group) else {
                continue;
            };
            let ops = &self.ops;
            primary.held.retain(|key| ops.get(*key).is_some());
            primary.parked.retain(|key| ops.get(*key).is_some());
        }
        self.pump(now, out);
    }

    fn accept(&mut self, now: Time, link: PeerLink, io: &Io, body: Body) {
        let group = io.request().group;
        let key = self.ops.insert(Op::of_client(io, link, body, now));
        let primary = self.replicas.primary_mut(group).expect("`admit` saw a primary");
        if primary.active {
            self.replicas.queue(&mut self.ops, key);
        } else {
            primary.held.push_back(key);
        }
    }

    // ---- reads ----

    pub(crate) fn start_read(&mut self, now: Time, key: u64, out: &mut Effects) {
        let op = self.ops.get(key).expect("the operation lives");
        let group = op.group;
        if self.known.is_gone(op.unit.volume) {
            self.finish_client(key, Status::NoVolume, out);
        } else if !self.replicas.of(group).may_read(now, &self.leases) {
            out.note(Note::LeaseWait { group });
            self.replicas.park(&mut self.ops, group, key);
        } else if matches!(op.work, Work::Extents(..)) {
            self.finish_extents(key, out);
        } else if self.gaps.are_met(op, || self.store.valid(group, op.unit)) {
            self.finish_client(key, Status::Media, out);
        } else {
            self.start_job(now, key, out);
        }
    }

    pub(crate) fn finish_read(&mut self, key: u64, data: Buf, crc: Option<u32>, out: &mut Effects) {
        let op = self.ops.get(key).expect("the operation lives");
        let (group, client) = (op.group, op.work.client());
        let reads = matches!(op.work, Work::Read(..));
        self.discard_op(key);
        self.replicas.unlock(&mut self.ops, group, key);
        if let Some(client) = client {
            if reads {
                self.stats.reads += 1;
                self.stats.read_bytes += data.len() as u64;
            }
            self.reply_data(Caller::new(client, group), data, crc, out);
        }
    }

    fn finish_extents(&mut self, key: u64, out: &mut Effects) {
        let op = self.ops.get(key).expect("the operation lives");
        let (first, end) = (op.at / BLOCK, (op.at + op.len).div_ceil(BLOCK));
        let valid = match self.gaps.contain(op.group, op.unit) {
            true => BlockSet::FULL,
            false => self.store.valid(op.group, op.unit),
        };
        let mut bits = out.pool().zeroed((end - first).div_ceil(8) as usize);
        let bytes = bits.as_mut();
        for block in (first..end).filter(|b| valid.contains(*b)) {
            bytes[((block - first) / 8) as usize] |= 1 << ((block - first) % 8);
        }
        self.finish_read(key, bits, None, out);
    }

    // ---- writes ----

    /// Starts a write that has its range: assigns its lsn, sends it, and writes it here.
    pub(crate) fn start_write(&mut self, now: Time, key: u64, out: &mut Effects) {
        let op = self.ops.get(key).expect("the operation lives");
        let (group, unit) = (op.group, op.unit);
        let again = op.write().is_some_and(|write| write.retry) && !mutant::on(Mutant::NoDedupe);
        if self.known.is_gone(unit.volume) {
            return self.finish_client(key, Status::NoVolume, out);
        }
        if again {
            let op = self.ops.get_mut(key).expect("the operation lives");
            let list = &self.replicas.of(group).record.executed;
            if let Some(status) = self.history.reduce(op, list) {
                if status == Status::Ok {
                    out.note(Note::Deduped { group });
                }
                return self.finish_client(key, status, out);
            }
        }
        if !self.gaps.is_nowhere() {
            let op = self.ops.get_mut(key).expect("the operation lives");
            if self.gaps.are_met(op, || self.store.valid(group, unit)) {
                return self.finish_client(key, Status::Media, out);
            }
            self.gaps.zeros_as_data(op, out.pool());
        }
        let op = self.ops.get(key).expect("the operation lives");
        let (at, len, bytes) = (op.at, op.len, self.windows.bytes(op));
        let zero = op.write().is_some_and(|write| write.zero);
        let replica = self.replicas.get_mut(group).expect("the operation's replica is here");
        let to = replica.recipients();
        let sealing =
            replica.primary().and_then(|p| p.sync.as_ref()).is_some_and(|s| s.holds_writes());
        if sealing || self.windows.are_crowded(now, replica.config.devices(to), bytes) {
            return self.replicas.park(&mut self.ops, group, key);
        }
        let needs_space = !zero && !self.store.has_space_for(group, unit, at, len);
        let place = (group, unit, at, len);
        if needs_space && (out.chaos("no space") || !self.reserve(now, place, out)) {
            return self.finish_full(key, out);
        }
        self.ops.get_mut(key).expect("the operation lives").reserved = needs_space;
        // A write that needs new space: a secondary without space must be able to refuse before
        // anything has changed here. All others run in parallel, the job first, as it checks the
        // body's checksum.
        let alone = self.replicas.of(group).needed().is_empty();
        let now_here = !needs_space || alone || mutant::on(Mutant::ActBeforeReserve);
        let started = now_here.then(|| self.launch(key, false, out));
        if !matches!(started, Some(Started::BadBody)) {
            self.send_write(key, to, out);
        }
        if let Some(started) = started {
            self.launched(now, key, started, out);
        }
    }

    /// Assigns an operation's lsn and sends it to all replicas that need it.
    fn send_write(&mut self, key: u64, to: ReplicaSet, out: &mut Effects) {
        let op = self.ops.get_mut(key).expect("the operation lives");
        let replica = self.replicas.get_mut(op.group).expect("the operation's replica is here");
        let primary = replica.primary().expect("only a primary sends writes");
        op.lsn = primary.enter(key, to);
        primary.told = primary.commit;
        op.sent = to;
        self.send_operation(key, to, false, out);
    }

    /// Takes a replica's answer to a `Replicate`.
    pub fn replicated(&mut self, now: Time, from: DeviceId, m: &Replicated, out: &mut Effects) {
        self.heard(now, from, m.sender, out);
        let Replicated { op: key, group, status, .. } = *m;
        let Some(op) = self.ops.get_mut(key) else { return };
        // An operation without a place in the stream was sent to no replica.
        if op.group != group || op.lsn != m.lsn || m.lsn == Lsn(0) || op.is_orphan() {
            return;
        }
        let Some(replica) = self.replicas.get(group) else { return };
        if replica.config.epoch != m.epoch {
            return;
        }
        let member = replica.config.member(from);
        let counts = op.sent.intersects(member);
        if counts && status == Status::Ok {
            op.acked.insert(member);
        }
        if op.in_flight.intersects(member) {
            op.in_flight.remove(member);
            let (bytes, number) = (self.windows.bytes(op), op.number);
            self.windows.answered(now, from, bytes, number);
        }
        match status {
            _ if !counts => {} // a joiner that was cut off: its answer only frees room
            Status::Ok => self.check_sent(now, key, out),
            Status::Full => self.refused(now, key, from, member, out),
            Status::SendWhole => self.damaged_there(now, key, member, out),
            _ if self.replicas.of(group).config.joiners.contains(&from) => {
                self.cut(now, group, out)
            }
            _ => {}
        }
        self.pump(now, out);
    }

    /// Continues an operation of the stream after an answer of a replica, or when it no longer
    /// needs one.
    pub(crate) fn check_sent(&mut self, now: Time, key: u64, out: &mut Effects) {
        let Some(op) = self.ops.get(key) else { return };
        match op.work {
            Work::Write(_) => self.check_write(now, key, out),
            Work::Copy(_) => self.check_copy(now, key, out),
            Work::Whole { of } => self.check_whole(now, key, of, out),
            _ => {}
        }
    }

    /// Continues a write after its local job or an answer of a replica: acknowledges it when R1 is
    /// met, and removes it when nothing is left to do.
    pub(crate) fn check_write(&mut self, now: Time, key: u64, out: &mut Effects) {
        let Some(op) = self.ops.get(key) else { return };
        let Some(&Write { since, .. }) = op.write() else { return };
        let group = op.group;
        let replica = self.replicas.of(group);
        let limbo = !mutant::on(Mutant::NoLimbo);
        let needed = if limbo { replica.needed() } else { replica.others };
        let down = |device| self.windows.link(device).is_none();
        let met = op.acked.contains_all(needed)
            || mutant::on(Mutant::AckAlone) && replica.config.devices(needed).any(down);
        let (answers, ends) = match op.progress(needed, met) {
            Progress::Waits => return,
            Progress::NeedsWhole => return self.read_whole(now, key, out),
            Progress::Starts => return self.start_job(now, key, out),
            Progress::Is { answered, over } => (answered, over),
        };
        let (lsn, unit, at, len) = (op.lsn, op.unit, op.at, op.len);
        if answers {
            self.copies.pace.answered(now, since);
            self.answer_write(key, out);
        }
        if ends {
            self.discard_op(key);
            if self.store.survives() {
                let replica =
                    self.replicas.get_mut(group).expect("the operation's replica is here");
                if replica.on_all(unit, BlockSet::touching(at, len)) {
                    self.untold.clean(group);
                }
            }
            self.leave_stream(now, group, lsn, out);
        }
    }

    /// Acknowledges a write: R1 is met. If no other replica is in sync, the written blocks become
    /// dirty, even if a joiner has them already, because it may come back without them.
    fn answer_write(&mut self, key: u64, out: &mut Effects) {
        // From here on, the work of other replicas doesn't count as an operation of a client.
        let op = self.ops.answered(key).expect("the operation lives");
        let (unit, at, len) = (op.unit, op.at, op.len);
        let (group, bytes) = (op.group, op.body.len() as u64);
        let write = op.write_mut().expect("only writes are acknowledged");
        write.answered = true;
        let (asker, status) = (write.asker, write.status_when_done());
        let replica = self.replicas.get_mut(group).expect("the operation's replica is here");
        let missed = replica.is_only_in_sync();
        if missed && self.store.keeps_data() && !mutant::on(Mutant::NoSoloDirty) {
            replica.record.dirty.insert(unit, BlockSet::touching(at, len));
        }
        self.replicas.unlock(&mut self.ops, group, key);
        self.stats.writes += 1;
        self.stats.written_bytes += bytes;
        self.reply(Caller::new(asker, group), status, out);
    }

    /// Ends a client's operation, for which nothing is left to do.
    pub(crate) fn finish_client(&mut self, key: u64, status: Status, out: &mut Effects) {
        let op = self.end_op(key);
        if let Some(client) = op.work.client() {
            self.reply(Caller::new(client, op.group), status, out);
        }
    }

    /// Takes an operation that is finished everywhere out of the stream.
    pub(crate) fn leave_stream(&mut self, now: Time, group: GroupId, lsn: Lsn, out: &mut Effects) {
        let Some(replica) = self.replicas.get_mut(group) else { return };
        let Some(primary) = replica.primary() else { return };
        primary.leave(lsn);
        let drained = primary.stream.is_empty();
        let draining = primary.sync.as_ref().is_some_and(|s| s.phase == Phase::Drain);
        let news = primary.commit > primary.told;
        if news && !core::mem::replace(&mut primary.untold, true) {
            self.untold.commit(group);
        }
        if drained && draining {
            self.seal(now, group, out);
        }
    }

    // ---- activity ----

    /// Starts an epoch in which this device is the primary: settles with the other in-sync replicas
    /// (R6), then serves.
    pub(crate) fn begin(&mut self, now: Time, group: GroupId, out: &mut Effects) {
        match self.replicas.of(group).others {
            others if others.is_empty() => self.activate(now, group, out),
            others => self.ask_members(now, group, others, out),
        }
    }

    /// Serves, as soon as no lease that this device has granted to a former primary can count any
    /// more (rule R4).
    pub(crate) fn activate(&mut self, now: Time, group: GroupId, out: &mut Effects) {
        let replica = self.replicas.get(group).expect("the caller has it");
        let over = |(device, promised): &(DeviceId, Time)| {
            let fate = self.known.fate(*device);
            self.leases.is_over(now, *device, replica.map, fate, *promised)
        };
        let wait = replica.promises.iter().filter(|p| !over(p)).map(|(_, until)| *until).max();
        if let Some(until) = wait {
            if self.timers.wait_grace(group, until) {
                out.note(Note::GraceWait { group });
            }
            return;
        }
        self.timers.end_grace(group);
        let (epoch, alone) = (replica.config.epoch, replica.config.in_sync.len() == 1);
        let joiner = replica.config.joiners.first().copied();
        let replica = self.replicas.get_mut(group).expect("as above");
        let primary = replica.primary().expect("only a primary gets active");
        primary.active = true;
        out.note(Note::Active { group, epoch, alone });
        for key in core::mem::take(&mut primary.held) {
            self.replicas.queue(&mut self.ops, key);
        }
        if let Some(joiner) = joiner {
            self.ask_joiner(now, group, joiner, true, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{Asker, WholeBlocks};
    use base::{LinkId, UnitKey};

    const SECOND: ReplicaSet = ReplicaSet(2);
    const JOINER: ReplicaSet = ReplicaSet(4);
    const NONE: ReplicaSet = ReplicaSet(0);

    /// Creates a write that was sent to a secondary and a joiner.
    fn write(local: Local, acked: ReplicaSet, answered: bool) -> Op {
        let asker = Asker { link: PeerLink::new(LinkId(1), 1), op: 1 };
        let (zero, retry, in_part, more) = (false, false, false, false);
        let (since, whole) = (Time::ZERO, WholeBlocks::default());
        let work = Work::Write(Write { asker, since, zero, retry, in_part, more, answered, whole });
        let sent = ReplicaSet(SECOND.0 | JOINER.0);
        let op = Op::new(GroupId(1), UnitKey::default(), 0, BLOCK, work);
        Op { local, acked, sent, ..op }
    }

    fn progress(op: &Op) -> Progress {
        op.progress(SECOND, op.acked.contains_all(SECOND))
    }

    #[test]
    fn a_write_is_answered_once_when_all_that_count_have_it() {
        let both = ReplicaSet(SECOND.0 | JOINER.0);
        for (local, acked, answered, now, over) in [
            (Local::Running, SECOND, false, false, false),
            (Local::Done, NONE, false, false, false),
            (Local::Done, JOINER, false, false, false),
            (Local::Done, SECOND, false, true, false), // the joiner still has to do it
            (Local::Done, SECOND, true, false, false),
            (Local::Done, both, true, false, true),
            (Local::Done, both, false, true, true),
            (Local::Asking, both, false, false, false),
        ] {
            let expected = Progress::Is { answered: now, over };
            assert_eq!(progress(&write(local, acked, answered)), expected, "{local:?} {acked:?}");
        }
    }

    #[test]
    fn a_write_that_needs_space_starts_here_when_the_others_have_space() {
        let fresh = |acked| Op { reserved: true, ..write(Local::NotStarted, acked, false) };
        assert_eq!(progress(&fresh(JOINER)), Progress::Waits);
        assert_eq!(progress(&fresh(SECOND)), Progress::Starts);
        let mut damaged = fresh(NONE);
        damaged.write_mut().unwrap().whole.add(SECOND);
        assert_eq!(progress(&damaged), Progress::Starts, "it has had space");
    }

    #[test]
    fn whole_blocks_are_sent_when_the_write_is_done_here_and_by_one_operation() {
        for (local, expected) in [
            (Local::Running, Progress::Is { answered: false, over: false }),
            (Local::Done, Progress::NeedsWhole),
        ] {
            let mut op = write(local, NONE, false);
            op.write_mut().unwrap().whole.add(SECOND);
            assert_eq!(progress(&op), expected);
        }
        let mut op = write(Local::Done, NONE, false);
        let whole = &mut op.write_mut().unwrap().whole;
        whole.add(SECOND);
        assert_eq!(whole.begin(), SECOND);
        whole.add(JOINER);
        assert_eq!(progress(&op), Progress::Is { answered: false, over: false }, "one runs");
        op.write_mut().unwrap().whole.end(SECOND);
        assert_eq!(progress(&op), Progress::NeedsWhole);
        assert_eq!(op.write_mut().unwrap().whole.begin(), ReplicaSet(SECOND.0 | JOINER.0));
    }
}
