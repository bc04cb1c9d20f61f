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
use crate::members::ReplicaSet;
use crate::mirror::{Caller, Mirror};
use crate::op::{Local, Op, Work, Write, fits};
use crate::replica::{Primary, Role};
use crate::sync::Phase;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use base::{
    BLOCK, BLOCKS_PER_UNIT, BlockSet, DeviceId, Epoch, GroupId, Lsn, Mutant, SECTOR, SdcId, Time,
    mutant,
};
use seam::{Buf, Effects, Note, Started, UnitStore};
use wire::message::{Commit, Io, Replicated};
use wire::{Body, PeerLink, Status};

impl<S: UnitStore> Mirror<S> {
    /// Takes an operation of a client. The caller has checked the session, and the volume against
    /// the map.
    pub fn client(&mut self, now: Time, link: PeerLink, io: &Io, body: Body, out: &mut Effects) {
        let (group, asked) = (io.request().group, io.request().epoch);
        let caller = Caller { link, op: io.request().op, group };
        self.copies.pace.client(now);
        match self.admit(io, &body) {
            Ok(()) => self.accept(now, link, io, body),
            Err(Status::Stale) => {
                let config = self
                    .replicas
                    .get(group)
                    .map(|r| r.next.as_ref().map_or(&r.config, |(next, _)| next));
                let (epoch, leader) = config.map_or((Epoch(0), None), |c| (c.epoch, c.primary));
                out.note(Note::StaleEpoch { group, have: epoch, got: asked });
                self.reply_stale(caller, epoch, leader, out);
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
            let Some(primary) = self.replicas.get_mut(group).and_then(|r| r.primary()) else {
                continue;
            };
            let ops = &self.ops;
            primary.held.retain(|key| ops.get(*key).is_some());
            primary.parked.retain(|key| ops.get(*key).is_some());
        }
        self.pump(now, out);
    }

    /// Checks whether this replica may execute the operation now.
    fn admit(&self, io: &Io, body: &Body) -> Result<(), Status> {
        let request = io.request();
        let epoch = request.epoch;
        let Some(replica) = self.replicas.get(request.group) else {
            return Err(if request.map > self.known.map() {
                Status::Behind
            } else {
                Status::Stale
            });
        };
        let config = replica.next.as_ref().map_or(&replica.config, |(next, _)| next);
        if config.lost {
            return Err(Status::Lost);
        }
        if epoch > config.epoch {
            return Err(Status::Behind);
        }
        if config.primary != Some(self.me)
            || (epoch < config.epoch && !mutant::on(Mutant::NoClientEpoch))
        {
            return Err(Status::Stale);
        }
        let Role::Primary(primary) = &replica.role else {
            return Err(Status::Behind);
        };
        if replica.next.is_some() {
            return Err(Status::Behind);
        }
        let (at, len) = (request.range.at, request.range.len);
        if !fits::<SECTOR>(at, len) {
            return Err(Status::OutOfRange);
        }
        // A forgotten write is described by the number after its own, and there is none after this
        // (R8).
        if request.client.seq == u64::MAX {
            return Err(Status::OutOfRange);
        }
        if matches!(io, Io::Write(_)) && body.data.len() != len as usize {
            return Err(Status::OutOfRange);
        }
        if self.ops.load().is_full(&self.limits) || request.client.sdc.0 == 0 {
            return Err(Status::Busy);
        }
        if matches!(io, Io::Write(_) | Io::Zero(_)) {
            // A discard may make the space that the client's oldest write waits for, so discards
            // have room beyond the window of writes.
            let windows = if matches!(io, Io::Zero(_)) { 2 } else { 1 };
            let most = windows * self.limits.executed_window as usize;
            replica.record.executed.admits(request.client, most).map_err(refusal)?;
            if !primary.has_room(&self.limits) {
                return Err(Status::Busy);
            }
        }
        Ok(())
    }

    fn accept(&mut self, now: Time, link: PeerLink, io: &Io, body: Body) {
        let group = io.request().group;
        let key = self.ops.insert(Op::of_client(io, link, body, now));
        let primary =
            self.replicas.get_mut(group).and_then(|r| r.primary()).expect("`admit` saw a primary");
        if primary.active {
            self.queue(key);
        } else {
            primary.held.push_back(key);
        }
    }

    // ---- reads ----

    /// Returns true if every replica that could be promoted has promised, by a lease, not to act as
    /// the primary for now (rule R3).
    fn may_read(&self, now: Time, group: GroupId) -> bool {
        let replica = &self.replicas[group];
        let needed = replica.needed();
        needed.is_empty()
            || replica.config.devices(needed).all(|device| self.leases.holds(now, device))
    }

    pub(crate) fn start_read(&mut self, now: Time, key: u64, out: &mut Effects) {
        let op = self.ops.get(key).expect("the operation lives");
        let group = op.group;
        if self.is_gone(op.unit.volume) {
            self.finish_client(key, Status::NoVolume, out);
        } else if !self.may_read(now, group) {
            out.note(Note::LeaseWait { group });
            self.park(group, key);
        } else if matches!(op.work, Work::Extents(..)) {
            self.finish_extents(key, out);
        } else if self.meets_gap(op) {
            self.finish_client(key, Status::Media, out);
        } else {
            self.start_job(now, key, out);
        }
    }

    /// Lets an operation that has its range lock wait for a lease, for room, or for the end of a
    /// seal.
    pub(crate) fn park(&mut self, group: GroupId, key: u64) {
        if let Some(primary) = self.replicas.get_mut(group).and_then(|r| r.primary()) {
            primary.parked.push(key);
            self.ops.note_parked(group, true);
        }
    }

    /// Retries operations that wait, because what they wait for may have changed.
    pub(crate) fn unpark(&mut self, group: GroupId) {
        self.ops.note_parked(group, false);
        if let Some(primary) = self.replicas.get_mut(group).and_then(|r| r.primary()) {
            primary.parked.drain(..).for_each(|key| self.ops.can_start(key));
        }
    }

    pub(crate) fn finish_read(&mut self, key: u64, data: Buf, crc: Option<u32>, out: &mut Effects) {
        let op = self.ops.get(key).expect("the operation lives");
        let (group, client) = (op.group, op.work.client());
        let reads = matches!(op.work, Work::Read(..));
        self.discard_op(key);
        self.unlock(group, key);
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
        let valid = match self.is_gap(op.group, op.unit) {
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
        let again = op.write().is_some_and(|write| write.retry);
        if self.is_gone(unit.volume) {
            return self.finish_client(key, Status::NoVolume, out);
        }
        if again && let Some(status) = self.is_executed(key) {
            if status == Status::Ok {
                out.note(Note::Deduped { group });
            }
            return self.finish_client(key, status, out);
        }
        if !self.gaps.is_nowhere() {
            if self.meets_gap(self.ops.get(key).expect("the operation lives")) {
                return self.finish_client(key, Status::Media, out);
            }
            self.zeros_as_data(key, out);
        }
        let op = self.ops.get(key).expect("the operation lives");
        let (at, len, bytes) = (op.at, op.len, self.windows.bytes(op));
        let zero = op.write().is_some_and(|write| write.zero);
        let replica = self.replicas.get_mut(group).expect("the operation's replica is here");
        let to = replica.recipients();
        let sealing =
            replica.primary().and_then(|p| p.sync.as_ref()).is_some_and(|s| s.holds_writes());
        if sealing || self.is_crowded(now, group, to, bytes) {
            return self.park(group, key);
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
        let alone = self.replicas[group].needed().is_empty();
        let now_here = !needs_space || alone || mutant::on(Mutant::ActBeforeReserve);
        let started = now_here.then(|| self.launch(key, false, out));
        if !matches!(started, Some(Started::BadBody)) {
            self.send_write(key, to, out);
        }
        if let Some(started) = started {
            self.launched(now, key, started, out);
        }
    }

    /// Returns the answer to a retried write if nothing of it is left to do now.
    ///
    /// If a part of the write is in the content, the operation is reduced to the first run of
    /// missing blocks, and to no more than that: other clients may have overwritten the blocks
    /// between two such runs. A write with several missing runs is answered `Busy` after each of
    /// them but the last, so the client asks again for the next one.
    fn is_executed(&mut self, key: u64) -> Option<Status> {
        let op = self.ops.get_mut(key).expect("the operation lives");
        if mutant::on(Mutant::NoDedupe) {
            return None;
        }
        let done = self.replicas[op.group].record.executed.blocks(op.client);
        let mut left = BlockSet::touching(op.at, op.len);
        left.remove(done);
        let Work::Write(write) = &mut op.work else { return None };
        let Some(mut first) = left.first_run() else { return Some(write.status_when_done()) };
        if mutant::on(Mutant::RetryWhole) {
            first = 0..BLOCKS_PER_UNIT;
        }
        // It is unknown whether the write was executed, so `Ok` may be wrong, and executing it may
        // be, too.
        if self.history.forgotten().covers(op.group, op.client)
            && !mutant::on(Mutant::ForgetSilently)
        {
            return Some(Status::Forgotten);
        }
        let (from, to) =
            ((first.start * BLOCK).max(op.at), (first.end * BLOCK).min(op.at + op.len));
        left.remove(BlockSet::from_range(first));
        write.more |= !left.is_empty();
        // The operation may wait now, and then come here again with the reduced range.
        write.in_part |= (from, to - from) != (op.at, op.len);
        if !write.zero && (from, to) != (op.at, op.at + op.len) {
            let whole = op.body.clone();
            op.body = whole.slice((from - op.at) as usize..(to - op.at) as usize);
            op.body_crc = op.body_crc.map(|sum| {
                // The checksum of the part is computed first. If the body had changed by then, that
                // of the whole differs, and the part gets a wrong one.
                let part = base::crc::crc32c(&op.body);
                let same = base::crc::crc32c(&whole) == sum;
                if same { part } else { !part }
            });
        }
        (op.at, op.len) = (from, to - from);
        None
    }

    /// Assigns an operation's lsn and sends it to all replicas that need it.
    fn send_write(&mut self, key: u64, to: ReplicaSet, out: &mut Effects) {
        let op = self.ops.get_mut(key).expect("the operation lives");
        let replica = self.replicas.get_mut(op.group).expect("the operation's replica is here");
        let primary = replica.primary().expect("only a primary sends writes");
        op.lsn = primary.enter(key, to);
        primary.told = primary.commit;
        op.sent = to;
        if mutant::on(Mutant::EagerClean) {
            primary.clean.insert(op.unit, BlockSet::touching(op.at, op.len));
            self.untold.clean(op.group);
        }
        if mutant::on(Mutant::LocalTrim) && op.write().is_some_and(|write| write.zero) {
            op.acked = to;
            return;
        }
        self.replicate(key, to, out);
    }

    /// Sends an operation of the stream to these replicas, as far as their windows have room.
    pub(crate) fn replicate(&mut self, key: u64, to: ReplicaSet, out: &mut Effects) {
        if to.is_empty() {
            return;
        }
        self.send_operation(key, to, false, out);
    }

    /// Takes a replica's answer to a `Replicate`.
    pub fn replicated(&mut self, now: Time, from: DeviceId, m: &Replicated, out: &mut Effects) {
        self.heard(now, from, m.sender, out);
        let Replicated { op: key, group, status, .. } = *m;
        let Some(op) = self.ops.get_mut(key) else { return };
        // What has no place in the stream yet was sent to nobody.
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
            _ if !counts => {} // a joiner that was cut off, which only gives room back
            Status::Ok => self.check_sent(now, key, out),
            Status::Full => self.refused(now, key, from, member, out),
            Status::SendWhole => self.damaged_there(now, key, member, out),
            _ if self.replicas[group].config.joiners.contains(&from) => self.cut(now, group, out),
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
        let Some(&Write { answered, whole, since, .. }) = op.write() else { return };
        if !whole.needed.is_empty() && !whole.running && op.local == Local::Done {
            return self.read_whole(now, key, out);
        }
        let (group, reserved) = (op.group, op.reserved);
        let replica = &self.replicas[group];
        let mut needed = replica.needed();
        if mutant::on(Mutant::NoLimbo) {
            needed = replica.others;
        }
        if mutant::on(Mutant::AckAlone) {
            let up = replica.config.devices(needed).all(|d| self.windows.link(d).is_some());
            needed = if up { needed } else { ReplicaSet::default() };
        }
        let met = op.acked.contains_all(needed);
        if reserved && op.local == Local::NotStarted {
            // A replica that needs the blocks whole has had space for the write.
            let mut told = op.acked;
            told.insert(whole.needed);
            if told.contains_all(needed) {
                self.start_job(now, key, out);
            }
            return;
        }
        let here = op.local == Local::Done
            || (mutant::on(Mutant::AckBeforeLocal) && op.local == Local::Running);
        let answers = met && here && !answered;
        if answers {
            self.copies.pace.answered(now, since);
            self.answer_write(key, out);
        }
        let op = self.ops.get(key).expect("the operation lives");
        if (answered || answers) && op.local == Local::Done && op.acked.contains_all(op.sent) {
            let (lsn, unit, at, len) = (op.lsn, op.unit, op.at, op.len);
            self.discard_op(key);
            self.on_all(group, unit, at, len);
            self.leave_stream(now, group, lsn, out);
        }
    }

    /// Acknowledges a write: R1 is met. If no other replica is in sync, the written blocks become
    /// dirty, even if a joiner has them already, because it may come back without them.
    fn answer_write(&mut self, key: u64, out: &mut Effects) {
        // What other replicas still have to do doesn't count as an operation of a client any more.
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
        self.unlock(group, key);
        self.stats.writes += 1;
        self.stats.written_bytes += bytes;
        self.reply(Caller::new(asker, group), status, out);
    }

    /// Ends a client's operation of which nothing, or nothing more, has to be done.
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

    /// Sends the secondaries the commit points that no write has carried to them.
    pub(crate) fn tell_commits(&mut self, out: &mut Effects) {
        for group in self.untold.take_commits() {
            let Some(replica) = self.replicas.get_mut(group) else { continue };
            let needed = replica.needed();
            let Some(primary) = replica.primary() else { continue };
            primary.untold = false;
            if core::mem::replace(&mut primary.told, primary.commit) == primary.commit {
                continue; // a later write has carried it
            }
            let commit = primary.commit;
            let config = &self.replicas[group].config;
            let commit = Commit { group, epoch: config.epoch, commit };
            for device in config.devices(needed) {
                self.send_peer(device, commit, Buf::EMPTY, out);
            }
        }
    }

    // ---- activity ----

    /// Starts an epoch in which this device is the primary: settles with the other in-sync replicas
    /// (R6), then serves.
    pub(crate) fn begin(&mut self, now: Time, group: GroupId, out: &mut Effects) {
        let replica = self.replicas.get(group).expect("the caller has it");
        let first =
            replica.next_in_sync(None, self.me).filter(|_| mutant::on(Mutant::SealOneByOne));
        match first.unwrap_or(replica.others) {
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
            self.queue(key);
        }
        if let Some(joiner) = joiner {
            self.ask_joiner(now, group, joiner, true, out);
        }
    }

    /// Returns the groups of which this device is the primary, in order.
    pub(crate) fn led(&self) -> Vec<GroupId> {
        let mut led: Vec<GroupId> = self
            .replicas
            .iter()
            .filter(|(_, r)| matches!(r.role, Role::Primary(Primary { .. })))
            .map(|(g, _)| g)
            .collect();
        led.sort_unstable();
        led
    }
}
