//! The primary: operations of clients from their arrival on (rules R3 and R8). Reads end here.
//! [`crate::progress`] continues a write that was sent.
//!
//! Once the group is active, every operation first gets its range lock, in order of arrival. Then a
//! read waits for the leases that it needs and reads from this device. A write gets the next lsn,
//! is written here, and is sent to all other in-sync replicas and joiners, in one step. Only a
//! write that needs new space is sent first and written here when every other in-sync replica has
//! it, so that they can refuse it (R15).
//!
//! Invariants:
//! - A read is started only while every other in-sync replica, and a joiner in limbo, has granted a
//!   lease that still runs (R3).
//! - A retry of a write that the content includes is not executed again (R8).
//! - Nothing is served before [`crate::configuration`] has activated the group.

use crate::compare;
use crate::executed::refusal;
use crate::lease::Leases;
use crate::lost_blocks::LostBlocks;
use crate::members::ReplicaSet;
use crate::op::{Caller, Local, Op, Work, fits};
use crate::replica::{Replica, Role};
use crate::shard::Shard;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use base::{
    BLOCK, BlockSet, DeviceId, Epoch, GroupId, Limits, Lsn, Mutant, SECTOR, SdcId, Time, mutant,
};
use seam::{Buf, Effects, Note, Started, UnitStore};
use wire::message::Io;
use wire::{Body, PeerLink, Status};

/// The operations of clients, at the primaries of their groups.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    /// Blocks whose loss was accepted as errors.
    pub lost_blocks: LostBlocks,
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
        let sound = match io {
            Io::Write(_) => body.data.len() == len as usize,
            Io::CompareWrite(_) => compare::is_sound(at, len, body.data.len()),
            Io::Read(_) | Io::Zero(_) | Io::Extents(_) => true,
        };
        if !sound {
            return Err(Status::OutOfRange);
        }
        if full || request.client.sdc.0 == 0 {
            return Err(Status::Busy);
        }
        if io.writes() {
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
    pub(crate) fn may_read(&self, now: Time, leases: &Leases) -> bool {
        let needed = self.needed();
        needed.is_empty() || self.config.devices(needed).all(|device| leases.holds(now, device))
    }
}

impl Clients {
    /// Takes an operation of a client. The caller has checked the session, and the volume against
    /// the map.
    pub(crate) fn client<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        link: PeerLink,
        io: &Io,
        body: Body,
        out: &mut Effects,
    ) {
        let (group, asked) = (io.request().group, io.request().epoch);
        let caller = Caller { link, op: io.request().op, group };
        shard.pace.client(now);
        let full = shard.ops.load().is_full(&shard.limits);
        let verdict = match shard.replicas.get(group) {
            Some(replica) => replica.admits(shard.me, io, &body, &shard.limits, full),
            None if io.request().map > shard.known.map() => Err(Status::Behind),
            None => Err(Status::Stale),
        };
        match verdict {
            Ok(()) => self.accept(shard, now, link, io, body),
            Err(Status::Stale) => {
                let config = shard.replicas.get(group).map(Replica::newest);
                let (epoch, leader) = config.map_or((Epoch(0), None), |c| (c.epoch, c.primary));
                out.note(Note::StaleEpoch { group, have: epoch, got: asked });
                caller.send(shard.known.stale(caller, epoch, leader), out);
            }
            Err(status) => shard.reply(caller, status, out),
        }
    }

    /// Drops a client's operations that have not begun, because its session is over or has been
    /// replaced (rule R8). Those that have begun hold their ranges, so operations of a new session
    /// come after them.
    ///
    /// Otherwise a write that waits here could be executed after the client, or its next
    /// incarnation, has overwritten it, and the list of executed writes, which knows only the
    /// newest incarnation, would not recognise a retry. A write may wait long: for its range, for a
    /// lease, or until its group is served. Meanwhile it would take room from other clients.
    pub(crate) fn session_over<S: UnitStore>(&mut self, shard: &mut Shard<S>, sdc: SdcId) {
        let is_over = |op: &Op| {
            let begun = op.local != Local::NotStarted || op.lsn != Lsn(0);
            op.work.client().is_some() && op.client.sdc == sdc && !begun
        };
        let over = shard.ops.iter().filter(|(_, op)| is_over(op));
        let over: Vec<(u64, GroupId)> = over.map(|(key, op)| (key, op.group)).collect();
        for (key, _) in &over {
            shard.end_op(*key);
        }
        for group in over.iter().map(|(_, group)| *group).collect::<BTreeSet<_>>() {
            let Some(primary) = shard.replicas.primary_mut(group) else {
                continue;
            };
            let ops = &shard.ops;
            primary.waiting_for_service.retain(|key| ops.get(*key).is_some());
            primary.blocked.retain(|key| ops.get(*key).is_some());
        }
    }

    fn accept<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        link: PeerLink,
        io: &Io,
        body: Body,
    ) {
        let group = io.request().group;
        let key = shard.ops.insert(Op::of_client(io, link, body, now));
        let primary = shard.replicas.primary_mut(group).expect("`admit` saw a primary");
        if primary.active {
            shard.replicas.queue(&mut shard.ops, key);
        } else {
            primary.waiting_for_service.push_back(key);
        }
    }

    // ---- reads ----

    /// Starts a read, or the comparison of a compare-and-write, that has its range.
    pub(crate) fn start_read<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        key: u64,
        out: &mut Effects,
    ) {
        let op = shard.ops.get(key).expect("the operation lives");
        let group = op.group;
        let replica = shard.replicas.of(group);
        assert!(replica.serves(), "nothing is read before the group is served");
        let leased = replica.may_read(now, &shard.leases)
            || matches!(op.work, Work::Compare(..)) && mutant::on(Mutant::CompareUnleased);
        if shard.known.is_gone(op.unit.volume) {
            shard.finish_client(key, Status::NoVolume, out);
        } else if !leased {
            out.note(Note::LeaseWait { group });
            shard.replicas.block(&mut shard.ops, group, key);
        } else if matches!(op.work, Work::Extents(..)) {
            self.finish_extents(shard, key, out);
        } else if self.lost_blocks.are_met(op, || shard.store.valid(group, op.unit)) {
            shard.finish_client(key, Status::Media, out);
        } else {
            shard.start_job(now, key, out);
        }
    }

    pub(crate) fn finish_read<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        key: u64,
        data: Buf,
        crc: Option<u32>,
        out: &mut Effects,
    ) {
        let op = shard.ops.get(key).expect("the operation lives");
        let (group, client) = (op.group, op.work.client());
        let reads = matches!(op.work, Work::Read(..));
        shard.discard_op(key);
        shard.replicas.unlock(&mut shard.ops, group, key);
        if let Some(client) = client {
            if reads {
                shard.stats.reads += 1;
                shard.stats.read_bytes += data.len() as u64;
            }
            shard.reply_data(Caller::new(client, group), data, crc, out);
        }
    }

    fn finish_extents<S: UnitStore>(&mut self, shard: &mut Shard<S>, key: u64, out: &mut Effects) {
        let op = shard.ops.get(key).expect("the operation lives");
        let (first, end) = (op.at / BLOCK, (op.at + op.len).div_ceil(BLOCK));
        let valid = match self.lost_blocks.contain(op.group, op.unit) {
            true => BlockSet::FULL,
            false => shard.store.valid(op.group, op.unit),
        };
        let mut bits = out.pool().zeroed((end - first).div_ceil(8) as usize);
        let bytes = bits.as_mut();
        for block in (first..end).filter(|b| valid.contains(*b)) {
            bytes[((block - first) / 8) as usize] |= 1 << ((block - first) % 8);
        }
        self.finish_read(shard, key, bits, None, out);
    }

    // ---- writes ----

    /// Starts a write that has its range: assigns its lsn, sends it, and writes it here.
    pub(crate) fn start_write<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        key: u64,
        out: &mut Effects,
    ) {
        let op = shard.ops.get(key).expect("the operation lives");
        let (group, unit) = (op.group, op.unit);
        let again = op.write().is_some_and(|write| write.retry) && !mutant::on(Mutant::NoDedupe);
        if shard.known.is_gone(unit.volume) {
            return shard.finish_client(key, Status::NoVolume, out);
        }
        if again {
            let op = shard.ops.get_mut(key).expect("the operation lives");
            let list = &shard.replicas.of(group).record.executed;
            if let Some(status) = shard.history.reduce(op, list) {
                if status == Status::Ok {
                    out.note(Note::Deduped { group });
                }
                return shard.finish_client(key, status, out);
            }
        }
        if !self.lost_blocks.is_nowhere() {
            let op = shard.ops.get_mut(key).expect("the operation lives");
            if self.lost_blocks.are_met(op, || shard.store.valid(group, unit)) {
                return shard.finish_client(key, Status::Media, out);
            }
            self.lost_blocks.zeros_as_data(op, out.pool());
        }
        let op = shard.ops.get(key).expect("the operation lives");
        let (at, len, bytes) = (op.at, op.len, shard.windows.bytes(op));
        let zero = op.write().is_some_and(|write| write.zero);
        let replica = shard.replicas.get_mut(group).expect("the operation's replica is here");
        let to = replica.recipients();
        let sealing =
            replica.primary().and_then(|p| p.sync.as_ref()).is_some_and(|s| s.holds_writes());
        if sealing || shard.windows.are_crowded(now, replica.config.devices(to), bytes) {
            return shard.replicas.block(&mut shard.ops, group, key);
        }
        let needs_space = !zero && !shard.store.has_space_for(group, unit, at, len);
        let place = (group, unit, at, len);
        if needs_space && (out.chaos("no space") || !shard.reserve(now, place, out)) {
            return shard.finish_full(key, out);
        }
        shard.ops.get_mut(key).expect("the operation lives").reserved = needs_space;
        // A write that needs new space: a secondary without space must be able to refuse before
        // anything has changed here. All others run in parallel, the job first, as it checks the
        // body's checksum.
        let alone = shard.replicas.of(group).needed().is_empty();
        let now_here = !needs_space || alone || mutant::on(Mutant::ActBeforeReserve);
        let started = now_here.then(|| shard.launch(key, false, out));
        if !matches!(started, Some(Started::BadBody)) {
            self.send_write(shard, key, to, out);
        }
        if let Some(started) = started {
            shard.launched(now, key, started);
        }
    }

    /// Assigns an operation's lsn and sends it to all replicas that need it.
    fn send_write<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        key: u64,
        to: ReplicaSet,
        out: &mut Effects,
    ) {
        let op = shard.ops.get_mut(key).expect("the operation lives");
        let replica = shard.replicas.get_mut(op.group).expect("the operation's replica is here");
        let primary = replica.primary().expect("only a primary sends writes");
        assert!(primary.active, "nothing is written before the group is served");
        assert!(op.lsn == Lsn(0), "a write gets one place in the stream");
        op.lsn = primary.enter(key, to);
        primary.commit_sent = primary.commit;
        op.sent = to;
        shard.send_operation(key, to, false, out);
    }
}

#[cfg(test)]
mod tests;
