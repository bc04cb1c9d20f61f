//! Repairs damaged blocks: blocks that the unit store reports as corrupt are read from another
//! replica and rewritten (rule R13).
//!
//! The primary asks one replica after the other for the blocks until one can read them. It rewrites
//! them whole. [`crate::damage`] repeats the operation that met the damage, or ends it.
//! [`crate::resend`] is for blocks that are damaged at another replica.
//!
//! Meanwhile the operation holds its range exclusively, so no overlapping operation is in flight.
//! (A read that met damage waits for the exclusive range, and reads again.) Therefore any in-sync
//! replica has the right content of the blocks, or their content before this write, which is then
//! executed again. In a settle, either copy's content is valid, together with its list of executed
//! writes.
//!
//! A device that can't read blocks that were just rewritten has failed. This process ends, and the
//! other copy serves.

use crate::executed::from_records;
use crate::jobs::Step;
use crate::op::{Local, Op, Work, Write};
use crate::repairs::Repairs;
use crate::replica::Role;
use crate::shard::Shard;
use alloc::rc::Rc;
use base::{DeviceId, Lsn, Mutant, Time, VolumeId, mutant};
use seam::{Buf, Effects, ExecutedBlocks, Job, Note, Origin, Started, UnitStore, WriteMetadata};
use wire::Status;
use wire::message::{Fetch, Fetched, UnitRange};
use wire::records::{self, Executed};

impl Repairs {
    /// Asks another replica for these damaged blocks.
    pub(crate) fn ask_other<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        key: u64,
        damage: (u16, u16),
        out: &mut Effects,
    ) {
        let op = shard.ops.get_mut(key).expect("the caller has it");
        let (first, blocks) = damage;
        if self.was_in_vain(key, damage) {
            // The device did not store an earlier repair, so another repair would not help. The
            // other copy has all blocks.
            out.note(Note::NotMended { group: op.group, unit: op.unit, first, blocks });
            shard.failures.fail();
            return;
        }
        let replica = shard.replicas.of(op.group);
        let other = replica.config.devices(replica.needed()).next();
        let runs = matches!(op.local, Local::Running | Local::Repairing);
        assert!(!runs, "an operation asks when its job has ended");
        op.local = Local::Asking;
        if op.write().is_some_and(|write| !write.zero) && !op.reserved {
            // The failed job has released its slots.
            op.reserved = shard.store.reserve(op.group, op.unit, op.at, op.len);
        }
        let Some(from) = other else { return shard.jobs.push_step(Step::Unreadable(key, damage)) };
        self.begin(key, from, damage);
        self.send_fetch(shard, now, key, out);
    }

    /// Asks the next replica, because the last one can't read the blocks.
    fn ask_next<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        key: u64,
        out: &mut Effects,
    ) {
        let (Some(repair), Some(op)) = (self.get(key), shard.ops.get(key)) else { return };
        let replica = shard.replicas.of(op.group);
        match self.next_source(key, &replica.config, replica.needed()) {
            Some(_) if !mutant::on(Mutant::IgnoreThird) => self.send_fetch(shard, now, key, out),
            _ => shard.jobs.push_step(Step::Unreadable(key, (repair.first, repair.blocks))),
        }
    }

    fn send_fetch<S: UnitStore>(
        &mut self,
        shard: &Shard<S>,
        now: Time,
        key: u64,
        out: &mut Effects,
    ) {
        let (Some(repair), Some(op)) = (self.ask(now, key), shard.ops.get(key)) else {
            return;
        };
        let (group, epoch) = (op.group, shard.replicas.epoch_of(op.group));
        let range = UnitRange { unit: op.unit, at: repair.at(), len: repair.len() };
        shard.windows.send_frame(
            repair.from,
            Fetch { op: key, group, epoch, range },
            Buf::EMPTY,
            out,
        );
    }

    /// Repeats unanswered requests for blocks: to one device, whose link is new, or to each device
    /// whose last request is a beacon period old.
    pub(crate) fn fetch_again<S: UnitStore>(
        &mut self,
        shard: &Shard<S>,
        now: Time,
        of: Option<DeviceId>,
        out: &mut Effects,
    ) {
        let every = shard.limits.beacon_every;
        let keys = self.of(&shard.ops, |op, repair| {
            let due = of.map_or(repair.asked + every <= now, |device| device == repair.from);
            op.local == Local::Asking && due
        });
        keys.into_iter().for_each(|key| self.send_fetch(shard, now, key, out));
    }

    /// Takes blocks from another replica and writes them whole. In an active group both copies are
    /// equal in them. In a settle they may differ, and a third copy may differ from both: then they
    /// become dirty. Returns false if that gives the loop nothing to do.
    pub(crate) fn fetched_in<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        from: DeviceId,
        m: &Fetched,
        body: Buf,
        out: &mut Effects,
    ) -> bool {
        let (key, group) = (m.op, m.group);
        let Some(repair) = self.get(key).filter(|r| r.from == from) else {
            return false;
        };
        let Some(op) = shard.ops.get_mut(key) else { return false };
        let Some(replica) = shard.replicas.get_mut(group) else { return false };
        let present = replica.config.epoch == m.epoch && replica.next.is_none();
        if op.group != group || op.local != Local::Asking || !present {
            return false;
        }
        // A request that was repeated is answered twice. By then the operation may wait for other
        // blocks.
        if (m.at, m.len) != (repair.at(), repair.len()) {
            return false;
        }
        let len = repair.len() as usize;
        match m.status {
            Status::Ok => {}
            Status::Media => {
                self.ask_next(shard, now, key, out);
                return true;
            }
            _ => return false, // asked again
        }
        let Some(list) = body.get(len..).and_then(records::read::<Executed>) else { return false };
        op.local = Local::Repairing;
        replica.local += 1;
        let unit = op.unit;
        // In a settle, or if the write is in the stream already, others may lack what comes with
        // the blocks.
        let settles = matches!(&replica.role, Role::Primary(primary) if !primary.active);
        let dirty = (settles || op.lsn != Lsn(0)) && !mutant::on(Mutant::MendUnmarked);
        if dirty {
            replica.record.dirty.insert(unit, repair.set());
        }
        // The content may include writes that the other replica has forgotten.
        shard.history.take_forgotten(&mut shard.store, group, list);
        let list: Rc<[ExecutedBlocks]> = from_records(list, &mut 0).entries().into();
        shard.ops.get_mut(key).expect("looked up above").list = Some(list.clone());
        let job = Job::Write { at: repair.at(), body: body.slice(0..len), crc: None };
        let marks = WriteMetadata { dirty, origin: Origin::Copied(list) };
        let started = match mutant::on(Mutant::NoRewrite) {
            false => shard.store.start(key, group, unit, job, marks, out),
            true => Started::Done(Buf::EMPTY),
        };
        match started {
            Started::Pending => {}
            Started::BadBody => unreachable!("it has no checksum of its own"),
            Started::Done(_) => shard.jobs.ended_at_once(key, Ok(Buf::EMPTY)),
            Started::Full => {
                let op = shard.ops.get_mut(key).expect("looked up above");
                op.local = Local::Asking;
                shard.replicas.get_mut(group).expect("looked up above").local -= 1;
                shard.jobs.push_step(Step::Unreadable(key, (repair.first, repair.blocks)));
            }
        }
        true
    }

    /// Handles a write whose blocks can't be read back here, and which another replica needs whole.
    /// The write has caused the damage: its blocks are repaired with their earlier content, and it
    /// is done again.
    pub(crate) fn repair_write<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        key: u64,
        write: u64,
        damage: (u16, u16),
        out: &mut Effects,
    ) {
        let ended = shard.remove_op(key).expect("the caller has it");
        let Some(op) = shard.ops.get_mut(write).and_then(Op::write_mut) else { return };
        assert!(op.whole.running, "the blocks were read for the write");
        op.whole.running = false;
        op.whole.needed.insert(ended.sent);
        self.ask_other(shard, now, write, damage, out);
    }

    /// Repeats operations that wait for blocks of a deleted volume. The blocks may never come: a
    /// replica that knows of the deletion has nothing to answer.
    pub(crate) fn end_repairs<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        volume: VolumeId,
        out: &mut Effects,
    ) {
        let keys =
            self.of(&shard.ops, |op, _| op.unit.volume == volume && op.local == Local::Asking);
        for key in keys {
            self.end(key);
            shard.ops.get_mut(key).expect("looked up above").local = Local::NotStarted;
            shard.start_over(now, key, out);
        }
    }
}

impl<S: UnitStore> Shard<S> {
    /// Makes a read that has met damage wait for its range exclusively, and then repeats it. Other
    /// reads may have met the same damage, and no two may write the blocks at once.
    pub(crate) fn read_alone(&mut self, key: u64) {
        let op = self.ops.get_mut(key).expect("the caller has it");
        op.alone = true;
        let group = op.group;
        self.replicas.unlock(&mut self.ops, group, key);
        self.replicas.queue(&mut self.ops, key);
    }

    /// Repeats an operation that met damage. It has its range; a read may need a lease.
    pub(crate) fn start_over(&mut self, now: Time, key: u64, out: &mut Effects) {
        if self.replicas.has_config_ended(self.ops.get(key)) {
            return self.drop_over(key);
        }
        let op = self.ops.get(key).expect("the caller has it");
        let (work, volume) = (op.work, op.unit.volume);
        let needs_space =
            matches!(work, Work::Write(Write { zero: false, .. })) && !self.known.is_gone(volume);
        match work {
            Work::Read(..) | Work::Compare(_) | Work::Fetch(_) | Work::Scrub | Work::Copy(_) => {
                self.ops.can_start(key);
            }
            _ if needs_space && !self.reserve_again(key) => {}
            _ => self.start_job(now, key, out),
        }
    }

    /// Reserves space again, because the job that met the damage has released its slots. If there
    /// is none, the replicas that may have done the write have to leave the in-sync set, as after
    /// damage that can't be repaired. Nothing is lost by that: the blocks are whole here again.
    fn reserve_again(&mut self, key: u64) -> bool {
        let op = self.ops.get_mut(key).expect("the caller has it");
        op.reserved = op.reserved || self.store.reserve(op.group, op.unit, op.at, op.len);
        if !op.reserved {
            let replica = &self.replicas.of(op.group);
            self.failures.accuse(replica.config.devices(replica.needed()));
        }
        op.reserved
    }
}

#[cfg(test)]
mod tests;
