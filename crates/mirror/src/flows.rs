//! The flows of a shard, and the one loop that calls them: it starts the operations that can
//! start, and continues what has ended.
//!
//! A flow is the code for one part of the protocol, with the state that only this part has. The
//! replicas and operations are in the [`Shard`], which all flows change. A flow may call `peers`,
//! but no other flow. If it needs another one, it queues a [`Step`], which the loop executes before
//! anything else. So no flow is called while it runs.

use crate::arrival;
use crate::configuration::Epochs;
use crate::jobs::{AfterChange, Jobs, Step, Task};
use crate::op::{Local, Work};
use crate::peers::Peers;
use crate::primary::Clients;
use crate::repairs::Repairs;
use crate::scrub::Scrub;
use crate::secondaries::Secondaries;
use crate::shard::Shard;
use crate::volumes::Volumes;
use alloc::vec::Vec;
use base::{BlockSet, DeviceId, GroupId, Time, VolumeId};
use seam::{Buf, DiskError, Effects, Finished, Note, UnitStore};
use wire::{PeerLink, Status};

/// The flows of a shard.
#[derive(Debug)]
pub(crate) struct Flows {
    pub clients: Clients,
    pub peers: Peers,
    pub secondaries: Secondaries,
    pub epochs: Epochs,
    pub repairs: Repairs,
    pub scrub: Scrub,
}

impl Flows {
    /// Does all work that can be done now. A call from outside that leaves work ends with this.
    // Inlined: most calls from outside leave no work.
    #[inline(always)]
    pub(crate) fn pump<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        out: &mut Effects,
    ) {
        // As a rule an answer leaves nothing to do.
        if shard.has_work() || self.copies_wait() || shard.windows.have_room() {
            self.pump_all(shard, now, out);
        }
    }

    fn pump_all<S: UnitStore>(&mut self, shard: &mut Shard<S>, now: Time, out: &mut Effects) {
        loop {
            self.work(shard, now, out);
            self.peers.start_copies(shard, now, out);
            while !self.secondaries.arrivals.is_empty()
                && let Some(key) = self.secondaries.next_arrival(shard, now)
            {
                shard.start_job(now, key, out);
                self.steps(shard, now, out);
            }
            if shard.windows.have_room() {
                shard.use_room(out);
            }
            if !shard.has_work() {
                return;
            }
        }
    }

    /// Does the tasks, and starts the operations that can start.
    fn work<S: UnitStore>(&mut self, shard: &mut Shard<S>, now: Time, out: &mut Effects) {
        loop {
            match shard.jobs.next_task() {
                Some(Task::Step(step)) => self.step(shard, now, step, out),
                Some(Task::Job(key, result)) => {
                    self.job_done_at_once(shard, now, key, result, out);
                }
                Some(Task::Change(group, what)) => self.changed(shard, now, group, what, out),
                None => match shard.ops.next() {
                    Some(key) => self.start_op(shard, now, key, out),
                    None => return,
                },
            }
        }
    }

    /// Does the steps that come first among the tasks.
    // Inlined: as a rule there is none after a job.
    #[inline(always)]
    fn steps<S: UnitStore>(&mut self, shard: &mut Shard<S>, now: Time, out: &mut Effects) {
        while shard.jobs.has_step()
            && let Some(Task::Step(step)) = shard.jobs.next_task()
        {
            self.step(shard, now, step, out);
        }
    }

    #[cold]
    fn step<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        step: Step,
        out: &mut Effects,
    ) {
        match step {
            Step::Seal(group) => self.peers.seal(shard, now, group, out),
            Step::Activate(group) => {
                self.epochs.activate(shard, &mut self.peers, now, group, out);
            }
            Step::Enter(group) => self.epochs.enter(shard, &mut self.peers, now, group, out),
            Step::Refuse(key) => self.secondaries.no_space(shard, now, key, out),
            Step::Unreadable(key, damage) => self.unreadable(shard, now, key, damage, out),
        }
    }

    /// Starts an operation that has its range.
    fn start_op<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        key: u64,
        out: &mut Effects,
    ) {
        let Some(op) = shard.ops.get(key) else { return };
        match &op.work {
            Work::Read(..) | Work::Extents(..) => self.clients.start_read(shard, now, key, out),
            Work::Write(_) => self.clients.start_write(shard, now, key, out),
            Work::Compare(_) => self.clients.start_compare(shard, now, key, out),
            Work::Stream(s) if !s.zero && arrival::yields(s) => {
                self.secondaries.arrivals.add(now, key)
            }
            Work::Stream(s) if !s.zero && s.fresh => {
                self.secondaries.start_fresh(shard, now, key, out)
            }
            Work::Stream(_) | Work::Whole { .. } | Work::Scrub => shard.start_job(now, key, out),
            Work::Fetch(_) => self.secondaries.start_fetch(shard, now, key, out),
            Work::Copy(_) => self.peers.start_copy(shard, now, key, out),
            Work::Orphan { .. } => {}
        }
    }

    /// Takes the results of finished work of the unit store. Returns false if there were none.
    pub(crate) fn reap<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        out: &mut Effects,
    ) -> bool {
        let mut any = false;
        while let Some(finished) = shard.store.finished() {
            any = true;
            shard.jobs.ends(now, finished.token);
            if !Jobs::is_change(finished.token) {
                self.job_done(shard, now, finished, out);
            } else if let Some((group, after)) = shard.jobs.take_change(finished.token) {
                match finished.result {
                    Ok(_) => self.changed(shard, now, group, after, out),
                    Err(_) => shard.failures.fail(),
                }
            }
            self.steps(shard, now, out);
        }
        any
    }

    /// Continues an operation whose media job has ended in the call that began it.
    // Not inlined: `job_done` is compiled into `reap`, and once more only here.
    #[inline(never)]
    fn job_done_at_once<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        token: u64,
        result: Result<Buf, DiskError>,
        out: &mut Effects,
    ) {
        self.job_done(shard, now, Finished { token, result, crc: None }, out);
    }

    /// Continues an operation whose media job has ended.
    // Inlined: a call for each device operation would cost 2 % of what follows it.
    #[inline(always)]
    fn job_done<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        finished: Finished,
        out: &mut Effects,
    ) {
        let Finished { token: key, result, crc } = finished;
        let op = shard.ops.get_mut(key).expect("an operation lives while its job runs");
        let before = core::mem::replace(&mut op.local, Local::Done);
        let repairing = before == Local::Repairing;
        assert!(repairing || before == Local::Running, "only a job that runs ends");
        let (unit, at, len) = (op.unit, op.at, op.len);
        let list = if repairing { None } else { op.list.take() };
        let (group, client, changes) = (op.group, op.client, op.work.changes_data());
        if list.is_some() {
            self.secondaries.arrivals.end(now, &mut shard.pace, key, len);
        }
        let replica = shard.replicas.get_mut(group).expect("the operation's replica is here");
        assert!(replica.local > 0, "the group counts its jobs");
        replica.local -= 1;
        let data = match result {
            Ok(_) if repairing => return self.repaired(shard, now, key, out),
            Ok(data) => data,
            Err(error) => return self.job_failed(shard, now, key, error, out),
        };
        if client.sdc.0 != 0 && changes {
            let list = &mut replica.record.executed;
            if shard.history.record(list, client, unit, BlockSet::touching(at, len)) {
                shard.history.bound_lists(&mut shard.replicas, group, &shard.limits);
            }
        }
        if let Some(theirs) = list {
            shard.take_list(group, (unit, BlockSet::touching(at, len)), &theirs);
        }
        match shard.ops.get(key).expect("as above").work {
            Work::Read(_, since) => {
                shard.pace.answered(now, since);
                self.clients.finish_read(shard, key, data, crc, out);
            }
            Work::Extents(..) => unreachable!("it has no job"),
            Work::Write(_) => shard.check_write(now, key, out),
            Work::Compare(compare) => self.clients.compare(shard, now, key, compare, &data, out),
            Work::Stream(_) => self.secondaries.end_replicated(shard, now, key, Status::Ok, out),
            Work::Fetch(requester) => {
                self.secondaries.fetched_here(shard, now, key, requester, data, out)
            }
            Work::Copy(_) => self.peers.send_copy(shard, now, key, data, crc, out),
            Work::Whole { .. } => shard.send_whole(key, data, crc, out),
            Work::Scrub => {
                self.scrub.done(shard, key, out);
                self.secondaries.wipe_if_idle(shard, now, group);
            }
            Work::Orphan { .. } => {
                shard.end_op(key);
                self.epochs.enter(shard, &mut self.peers, now, group, out);
            }
        }
    }

    /// Continues after a change that is durable.
    pub(crate) fn changed<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        group: GroupId,
        after: AfterChange,
        out: &mut Effects,
    ) {
        match after {
            AfterChange::Entry { epoch, joins } => {
                let Some(replica) = shard.replicas.get_mut(group) else { return };
                // Another configuration may be the next one by now, but what is durable counts.
                if replica.record.acted < epoch {
                    (replica.record.acted, replica.record.joiner) = (epoch, joins);
                }
                self.epochs.enter(shard, &mut self.peers, now, group, out);
            }
            AfterChange::Seal { epoch, lsn, link } => {
                self.secondaries.sealed(shard, group, epoch, lsn, link, out);
                self.secondaries.answer_asked(shard, group, out);
            }
            AfterChange::Wipe { epoch, question, link } => {
                self.secondaries.wiped(shard, group, (question, epoch), link, out)
            }
            AfterChange::Discard => self.epochs.discarded(shard, &mut self.peers, now, group, out),
        }
    }

    /// Handles the welcome on a link that this device dialled to a replica.
    pub(crate) fn connected<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        device: DeviceId,
        link: PeerLink,
        out: &mut Effects,
    ) {
        if shard.windows.connect(device, Some(link)) {
            shard.replicas.retry_all(&mut shard.ops);
        }
        shard.leases.hurry(device);
        self.repairs.fetch_again(shard, now, Some(device), out);
        self.peers.connected(shard, now, device, out);
    }

    /// Sets the volumes that exist, and drops the data of those that were deleted (rule R9).
    pub(crate) fn set_volumes<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        volumes: Volumes,
        out: &mut Effects,
    ) {
        shard.known.take_volumes(volumes);
        let mut stored: Vec<VolumeId> = shard.store.volumes();
        stored.retain(|volume| shard.known.is_gone(*volume));
        for volume in stored {
            shard.replicas.drop_volume(volume);
            let bytes = shard.store.drop_volume(volume);
            if bytes > 0 {
                out.note(Note::Dropped { volume, bytes });
            }
            self.repairs.end_repairs(shard, now, volume, out);
            self.pump(shard, now, out);
        }
    }

    /// Returns true if the loop would find nothing to do, except for what the clock brings.
    pub(crate) fn is_done<S: UnitStore>(&self, shard: &Shard<S>) -> bool {
        !shard.has_work() && !shard.windows.have_room() && self.peers.copies.is_settled()
    }

    /// Returns true if copies wait, here as the source or as the target.
    #[inline]
    fn copies_wait(&self) -> bool {
        !self.peers.copies.none_wait() || !self.secondaries.arrivals.is_empty()
    }
}

#[cfg(test)]
mod tests;
