//! Repairs damaged blocks: blocks that the unit store reports as corrupt are read from another
//! replica and rewritten (rule R13).
//!
//! The primary asks one replica after the other for the blocks until one can read them. It rewrites
//! them whole and repeats the operation that met the damage. A secondary that can't complete a
//! partial write says so. It gets the blocks whole, as another write of the stream under the name
//! of the same client write.
//!
//! Both happen while the operation has its range exclusively, so nothing that overlaps is in
//! flight. (A read that met damage waits for the exclusive range, and reads again.) Therefore any
//! in-sync replica has the right content of the blocks, or the content before this very write,
//! which is then done again. In a settle either copy's content will do, together with its list of
//! executed writes. For a joiner that no acknowledgement needs, no range is held: the sync copies
//! the blocks to it.
//!
//! If no in-sync replica has the blocks, the read or write ends with a media error, and the write
//! has changed nothing. A sync copies damage like content, for two reasons: damage must not keep a
//! joiner out for ever, and two copies must not differ once both can be read again.
//!
//! A device that can't read blocks that were just rewritten has failed. This process ends, and the
//! other copy serves.

use crate::executed::from_records;
use crate::members::ReplicaSet;
use crate::mirror::Mirror;
use crate::op::{Asker, Local, Op, Work, Write, fits};
use crate::replica::Role;
use alloc::rc::Rc;
use base::{BLOCK, BlockSet, DeviceId, Duration, GroupId, Lsn, Mutant, Time, VolumeId, mutant};
use seam::{
    Buf, DiskError, Effects, ExecutedBlocks, Job, Note, Origin, Started, UnitStore, WriteMetadata,
};
use wire::message::{Fetch, Fetched, UnitRange};
use wire::records::{self, Executed};
use wire::{PeerLink, Status};
use zerocopy::IntoBytes;

/// How long to wait before a copy of unreadable blocks is tried once more.
const READ_AGAIN: Duration = Duration::from_secs(1);

impl<S: UnitStore> Mirror<S> {
    /// Handles a job that failed. It does not run any more.
    pub(crate) fn job_failed(&mut self, now: Time, key: u64, error: DiskError, out: &mut Effects) {
        if error == DiskError::BadBody {
            return self.bad_body(now, key, out);
        }
        let DiskError::Corrupt { first, blocks } = error else {
            // The content of the device is unknown now: this process must not continue.
            self.failures.fail();
            return;
        };
        let op = self.ops.get_mut(key).expect("an operation lives while its job runs");
        op.local = Local::NotStarted;
        let (work, group, volume, shares) = (op.work, op.group, op.unit.volume, op.shares());
        if self.replicas.are_past(self.ops.get(key)) || self.known.is_gone(volume) {
            return self.start_over(now, key, out);
        }
        let leads = matches!(self.replicas.of(group).role, Role::Primary(_));
        if shares && leads && !mutant::on(Mutant::MendShared) {
            return self.read_alone(key);
        }
        match work {
            Work::Stream(_) => self.end_replicated(now, key, Status::SendWhole, out),
            Work::Fetch(asker) => {
                let op = self.ops.get(key).expect("as above");
                self.scrub.is_hopeless(now, op, (first, blocks));
                self.end_fetch(key, asker, Status::Media, out);
            }
            Work::Scrub if self.scrub_corrupt(now, key, (first, blocks), out) => {}
            Work::Whole { of: Some(write) } => {
                self.write_over(now, key, write, (first, blocks), out)
            }
            _ => self.ask_other(now, key, (first, blocks), out),
        }
    }

    /// Counts damaged blocks that were rewritten.
    pub(crate) fn count_repaired(&mut self, group: GroupId, bytes: u64, out: &mut Effects) {
        if bytes > 0 {
            self.stats.repaired += bytes;
            out.note(Note::Repaired { group, bytes });
        }
    }

    /// Makes a read that has met damage wait for its range exclusively, and then repeats it. Other
    /// reads may have met the same damage, and no two may write the blocks at once.
    fn read_alone(&mut self, key: u64) {
        let op = self.ops.get_mut(key).expect("the caller has it");
        op.alone = true;
        let group = op.group;
        self.replicas.unlock(&mut self.ops, group, key);
        self.replicas.queue(&mut self.ops, key);
    }

    /// Handles a write whose body has changed in memory since it came. If no other replica may have
    /// done the write, its sender has to send it again. Otherwise it is unknown what else has
    /// changed in this memory, and this process must not continue.
    fn bad_body(&mut self, now: Time, key: u64, out: &mut Effects) {
        let op = self.ops.get_mut(key).expect("an operation lives while its job runs");
        op.local = Local::NotStarted;
        let (group, lsn, work, sent) = (op.group, op.lsn, op.work, op.sent);
        out.note(Note::BadMemory { group });
        if self.replicas.are_past(self.ops.get(key)) {
            return self.drop_over(now, key, out);
        }
        match work {
            Work::Stream(_) => self.end_replicated(now, key, Status::SendWhole, out),
            Work::Write(_) if sent.is_empty() => {
                self.finish_client(key, Status::Damaged, out);
                if lsn.0 > 0 {
                    self.leave_stream(now, group, lsn, out);
                }
            }
            _ => self.failures.fail(),
        }
    }

    /// Drops an operation whose configuration has ended.
    pub(crate) fn drop_over(&mut self, now: Time, key: u64, out: &mut Effects) {
        let op = self.end_op(key);
        self.enter(now, op.group, out);
    }

    // ---- at the primary: its own copy is damaged ----

    /// Asks another replica for these damaged blocks.
    fn ask_other(&mut self, now: Time, key: u64, damage: (u16, u16), out: &mut Effects) {
        let op = self.ops.get_mut(key).expect("the caller has it");
        let (first, blocks) = damage;
        if self.repairs.was_in_vain(key, damage) {
            // The device has not kept a repair, so another repair would not help. The other copy
            // has all blocks.
            out.note(Note::NotMended { group: op.group, unit: op.unit, first, blocks });
            self.failures.fail();
            return;
        }
        let replica = self.replicas.of(op.group);
        let other = replica.config.devices(replica.needed()).next();
        op.local = Local::Asking;
        if op.write().is_some_and(|write| !write.zero) && !op.reserved {
            // The failed job has released its slots.
            op.reserved = self.store.reserve(op.group, op.unit, op.at, op.len);
        }
        let Some(from) = other else { return self.unreadable(now, key, damage, out) };
        self.repairs.begin(key, from, damage);
        self.send_fetch(now, key, out);
    }

    /// Asks the next replica, because the last one can't read the blocks.
    fn ask_next(&mut self, now: Time, key: u64, out: &mut Effects) {
        let (Some(repair), Some(op)) = (self.repairs.get(key), self.ops.get(key)) else { return };
        let replica = self.replicas.of(op.group);
        match self.repairs.ask_next(key, &replica.config, replica.needed()) {
            Some(_) => self.send_fetch(now, key, out),
            None => self.unreadable(now, key, (repair.first, repair.blocks), out),
        }
    }

    fn send_fetch(&mut self, now: Time, key: u64, out: &mut Effects) {
        let (Some(repair), Some(op)) = (self.repairs.ask(now, key), self.ops.get(key)) else {
            return;
        };
        let (group, epoch) = (op.group, self.replicas.epoch_of(op.group));
        let range = UnitRange { unit: op.unit, at: repair.at(), len: repair.len() };
        self.windows.send_frame(
            repair.from,
            Fetch { op: key, group, epoch, range },
            Buf::EMPTY,
            out,
        );
    }

    /// Repeats requests for blocks that have not come: to one device, whose link is new, or to
    /// each device that was not asked for a beacon period.
    pub(crate) fn fetch_again(&mut self, now: Time, of: Option<DeviceId>, out: &mut Effects) {
        let every = self.limits.beacon_every;
        let keys = self.repairs.of(&self.ops, |op, repair| {
            let due = of.map_or(repair.asked + every <= now, |device| device == repair.from);
            op.local == Local::Asking && due
        });
        keys.into_iter().for_each(|key| self.send_fetch(now, key, out));
    }

    /// Takes blocks from another replica and writes them whole. In an active group both copies are
    /// equal in them. In a settle they may differ, and a third copy may differ from both: then they
    /// become dirty.
    pub fn fetched_in(
        &mut self,
        now: Time,
        from: DeviceId,
        m: &Fetched,
        body: Buf,
        out: &mut Effects,
    ) {
        self.heard(now, from, m.sender, out);
        let (key, group) = (m.op, m.group);
        let Some(repair) = self.repairs.get(key).filter(|r| r.from == from) else {
            return;
        };
        let Some(op) = self.ops.get_mut(key) else { return };
        let Some(replica) = self.replicas.get_mut(group) else { return };
        let present = replica.config.epoch == m.epoch && replica.next.is_none();
        if op.group != group || op.local != Local::Asking || !present {
            return;
        }
        // A request that was repeated is answered twice. By then the operation may wait for other
        // blocks.
        if (m.at, m.len) != (repair.at(), repair.len()) {
            return;
        }
        let len = repair.len() as usize;
        match m.status {
            Status::Ok => {}
            Status::Media => {
                self.ask_next(now, key, out);
                return self.pump(now, out);
            }
            _ => return, // asked again
        }
        let Some(list) = body.get(len..).and_then(records::read::<Executed>) else { return };
        op.local = Local::Mending;
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
        self.history.take_forgotten(&mut self.store, group, list);
        let list: Rc<[ExecutedBlocks]> = from_records(list, &mut 0).entries().into();
        self.ops.get_mut(key).expect("looked up above").list = Some(list.clone());
        let job = Job::Write { at: repair.at(), body: body.slice(0..len), crc: None };
        let marks = WriteMetadata { dirty, origin: Origin::Copied(list) };
        let started = match mutant::on(Mutant::NoRewrite) {
            false => self.store.start(key, group, unit, job, marks, out),
            true => Started::Done(Buf::EMPTY),
        };
        match started {
            Started::Pending => {}
            Started::BadBody => unreachable!("it has no checksum of its own"),
            Started::Done(_) => self.job_done(now, key, Ok(Buf::EMPTY), None, out),
            Started::Full => {
                let op = self.ops.get_mut(key).expect("looked up above");
                op.local = Local::Asking;
                self.replicas.get_mut(group).expect("looked up above").local -= 1;
                self.unreadable(now, key, (repair.first, repair.blocks), out);
            }
        }
        self.pump(now, out);
    }

    /// The blocks are repaired: repeats the operation that met the damage.
    pub(crate) fn mended(&mut self, now: Time, key: u64, out: &mut Effects) {
        let op = self.ops.get_mut(key).expect("an operation lives while its job runs");
        op.local = Local::NotStarted;
        let (group, unit) = (op.group, op.unit);
        let (repair, list) = (self.repairs.get(key), op.list.take());
        let repair = repair.expect("the operation waited for it");
        if let Some(theirs) = list
            && let Some(replica) = self.replicas.get_mut(group)
        {
            let place = (unit, repair.set());
            self.history.overwrite(&mut replica.record.executed, group, place, &theirs);
            self.history.bound_lists(&mut self.replicas, group, &self.limits);
        }
        self.count_repaired(group, repair.len().into(), out);
        let op = self.ops.get_mut(key).expect("as above");
        match &op.work {
            Work::Scrub => self.scrub.count_repaired(repair.len()),
            Work::Write(w) if !w.whole.sent.is_empty() && mutant::on(Mutant::NoWriteOver) => {
                op.local = Local::Done;
                return self.check_write(now, key, out);
            }
            _ => {}
        }
        if matches!(op.work, Work::Copy(_))
            && let Some(sync) = self.replicas.sync_mut(group)
            && sync.joiner.is_none()
        {
            // In a settle, repaired blocks may have other content than before, and the peers have
            // this replica's former list of executed writes.
            sync.ask_anew();
            self.drop_copy(key);
            return self.advance(now, group, out);
        }
        self.start_over(now, key, out);
    }

    /// Handles a write whose blocks can't be read back here, and which another replica needs whole.
    /// The write has caused the damage: its blocks are repaired with their earlier content, and it
    /// is done again.
    fn write_over(
        &mut self,
        now: Time,
        key: u64,
        write: u64,
        damage: (u16, u16),
        out: &mut Effects,
    ) {
        let ended = self.remove_op(key).expect("the caller has it");
        let Some(op) = self.ops.get_mut(write).and_then(Op::write_mut) else { return };
        op.whole.running = false;
        op.whole.needed.insert(ended.sent);
        self.ask_other(now, write, damage, out);
    }

    /// Repeats an operation that met damage. It has its range; a read may need a lease.
    fn start_over(&mut self, now: Time, key: u64, out: &mut Effects) {
        if self.replicas.are_past(self.ops.get(key)) {
            return self.drop_over(now, key, out);
        }
        let op = self.ops.get(key).expect("the caller has it");
        let (work, volume) = (op.work, op.unit.volume);
        let needs_space =
            matches!(work, Work::Write(Write { zero: false, .. })) && !self.known.is_gone(volume);
        match work {
            Work::Read(..) | Work::Fetch(_) | Work::Scrub | Work::Copy(_) => {
                self.ops.can_start(key);
            }
            _ if needs_space && !self.reserve_again(key) => {}
            _ => self.start_job(now, key, out),
        }
    }

    /// Reserves space again, because the job that met the damage has released its slots. If there
    /// is none, the replicas that may have done the write have to leave the in-sync set, as after
    /// damage that can't be repaired. They may, because the blocks are whole here again.
    fn reserve_again(&mut self, key: u64) -> bool {
        let op = self.ops.get_mut(key).expect("the caller has it");
        op.reserved = op.reserved || self.store.reserve(op.group, op.unit, op.at, op.len);
        if !op.reserved {
            let replica = &self.replicas.of(op.group);
            self.failures.accuse(replica.config.devices(replica.needed()));
        }
        op.reserved
    }

    /// Repeats operations that wait for blocks of a deleted volume. The blocks may never come: a
    /// replica that knows of the deletion has nothing to answer.
    pub(crate) fn end_repairs(&mut self, now: Time, volume: VolumeId, out: &mut Effects) {
        let keys = self
            .repairs
            .of(&self.ops, |op, _| op.unit.volume == volume && op.local == Local::Asking);
        for key in keys {
            self.repairs.end(key);
            self.ops.get_mut(key).expect("looked up above").local = Local::NotStarted;
            self.start_over(now, key, out);
        }
        self.pump(now, out);
    }

    /// Ends an operation because no in-sync replica has the blocks.
    fn unreadable(&mut self, now: Time, key: u64, damage: (u16, u16), out: &mut Effects) {
        let (first, blocks) = damage;
        self.repairs.end(key);
        let op = self.ops.get_mut(key).expect("the caller has it");
        let (group, work, unit, lsn) = (op.group, op.work, op.unit, op.lsn);
        out.note(Note::Unreadable { group, unit, first, blocks });
        self.stats.unreadable += 1;
        let needed = self.replicas.of(group).needed();
        match work {
            Work::Scrub => {
                self.end_op(key);
                self.scrub.gives_up(now, key, damage);
            }
            // The blocks are damaged here as well: the secondary asks again, and gives up in the
            // end.
            Work::Whole { of: None } => self.drop_over(now, key, out),
            Work::Read(..) => self.finish_client(key, Status::Media, out),
            Work::Copy(_) => {
                let bad = BlockSet::from_range(first.into()..(first + blocks).into());
                self.skip_copy(now, key, bad, out);
            }
            // A replica may have done the write although others can't. It has to leave the in-sync
            // set before this write is answered.
            Work::Write(Write { whole, .. })
                if !whole.sent.is_empty() || !whole.needed.contains_all(needed) =>
            {
                self.failures.accuse(self.replicas.of(group).config.devices(needed));
            }
            // Replicas that met the damage, too, have changed nothing.
            Work::Write(_) => {
                self.cut(now, group, out);
                let op = self.ops.get_mut(key).expect("nothing has ended it");
                if core::mem::take(&mut op.reserved) {
                    let (at, len) = (op.at, op.len);
                    self.store.release(group, unit, at, len);
                }
                self.finish_client(key, Status::Media, out);
                self.leave_stream(now, group, lsn, out);
            }
            work => unreachable!("{work:?} asks no other replica for blocks"),
        }
    }

    /// Skips blocks of a copy that the source can't read; in a settle the other copy is damaged as
    /// well. They are tried once more, because the error may pass. Then the peers are told of the
    /// damage.
    fn skip_copy(&mut self, now: Time, key: u64, bad: BlockSet, out: &mut Effects) {
        let op = self.ops.get(key).expect("the caller has it");
        let (group, unit) = (op.group, op.unit);
        let mut rest = BlockSet::touching(op.at, op.len);
        rest.remove(bad);
        let Some(sync) = self.replicas.sync_mut(group) else { return self.drop_copy(key) };
        if sync.skip(unit, bad, rest) {
            return self.copy_loss(now, key, bad, out);
        }
        self.timers.ask_at(group, now + READ_AGAIN);
        self.drop_copy(key);
        self.advance(now, group, out);
    }

    /// Tells the peers that these blocks can't be read. Damage is copied like content, so that no
    /// peer has another content than the primary. If the primary can read the blocks some day,
    /// those of the peers are repaired like any others.
    fn copy_loss(&mut self, now: Time, key: u64, bad: BlockSet, out: &mut Effects) {
        let run = bad.first_run().expect("something is damaged");
        let op = self.ops.get_mut(key).expect("the caller has it");
        (op.at, op.len) = (run.start * BLOCK, (run.end - run.start) * BLOCK);
        op.local = Local::Done;
        if let Work::Copy(copy) = &mut op.work {
            copy.lost = !mutant::on(Mutant::LossAsZeros);
        }
        self.send_copy(now, key, Buf::EMPTY, None, out);
    }

    // ---- at a secondary: the primary's copy is damaged ----

    /// Takes the primary's request for blocks that are damaged there. One that it repeats is
    /// answered once, on the newest link.
    pub fn fetch_in(
        &mut self,
        now: Time,
        link: PeerLink,
        from: DeviceId,
        m: &Fetch,
        out: &mut Effects,
    ) {
        match self.replicas.check_leader(from, m.group, m.epoch) {
            Ok(()) if fits::<BLOCK>(m.range.at, m.range.len) => {
                let fetch = Op::of_fetch(m, link);
                let known = self.ops.iter().find(|(_, op)| op.is_same_fetch(&fetch));
                if let Some((known, _)) = known {
                    self.ops.get_mut(known).expect("just found").work = fetch.work;
                    return;
                }
                let key = self.ops.insert(fetch);
                self.replicas.queue(&mut self.ops, key);
                self.pump(now, out);
            }
            Ok(()) => {}
            Err(status) => {
                let answer =
                    Fetched { status, ..self.fetched(m.op, (m.group, m.range.at, m.range.len)) };
                out.send(link.id, link.frame(answer, &[]), Buf::EMPTY);
            }
        }
    }

    /// Reads the requested blocks, which have their range lock. The data of a deleted volume is
    /// gone here, so zeros would be a wrong answer.
    pub(crate) fn start_fetch(&mut self, now: Time, key: u64, out: &mut Effects) {
        let op = self.ops.get(key).expect("the operation lives");
        if let Work::Fetch(asker) = op.work
            && self.known.is_gone(op.unit.volume)
        {
            return self.end_fetch(key, asker, Status::NoVolume, out);
        }
        self.start_job(now, key, out);
    }

    /// Answers that this replica can't provide the blocks.
    fn end_fetch(&mut self, key: u64, to: Asker, why: Status, out: &mut Effects) {
        let op = self.end_op(key);
        let answer = Fetched { status: why, ..self.fetched(to.op, (op.group, op.at, op.len)) };
        out.send(to.link.id, to.link.frame(answer, &[]), Buf::EMPTY);
    }

    /// Sends the blocks, with their entries of the list of executed writes.
    pub(crate) fn fetched_here(
        &mut self,
        now: Time,
        key: u64,
        to: Asker,
        data: Buf,
        out: &mut Effects,
    ) {
        let op = self.end_op(key);
        let blocks = BlockSet::touching(op.at, op.len);
        let entries = self.replicas.of(op.group).record.executed.of(op.unit, blocks);
        let list = self.history.records(op.group, entries);
        let mut body = out.alloc(data.len() + list.as_bytes().len());
        body.as_mut()[..data.len()].copy_from_slice(&data);
        body.as_mut()[data.len()..].copy_from_slice(list.as_bytes());
        let answer = self.fetched(to.op, (op.group, op.at, op.len));
        out.send(to.link.id, to.link.frame(answer, &body), body);
        self.wipe_if_idle(now, op.group);
    }

    /// Returns the answer to a request for these blocks.
    fn fetched(&self, op: u64, (group, at, len): (GroupId, u32, u32)) -> Fetched {
        let (epoch, sender) = (self.replicas.epoch_of(group), self.known.sender());
        Fetched { status: Status::Ok, op, group, epoch, at, len, sender }
    }

    // ---- at the primary: another copy is damaged ----

    /// Handles a replica that could not do an operation: blocks that a write overwrites in part are
    /// damaged there, or the body has changed in its memory. A replica whose answer is needed is
    /// sent whole blocks, while the write has its range. The sync of a joiner copies them again.
    pub(crate) fn damaged_there(
        &mut self,
        now: Time,
        key: u64,
        member: ReplicaSet,
        out: &mut Effects,
    ) {
        let op = self.ops.get_mut(key).expect("the caller has it");
        let done = op.acked.intersects(member);
        match &mut op.work {
            Work::Write(write) if done || write.whole.sent.intersects(member) => return,
            Work::Write(write) if self.replicas.of(op.group).needed().intersects(member) => {
                write.whole.add(member);
                return self.check_write(now, key, out);
            }
            Work::Whole { of } if !done => {
                let of = *of;
                return self.send_whole_again(now, key, of, out);
            }
            Work::Write(_) => {}
            Work::Copy(_) if !done => {}
            _ => return,
        }
        op.acked.insert(member);
        let (group, unit, blocks) = (op.group, op.unit, BlockSet::touching(op.at, op.len));
        self.copy_anew(now, group, unit, blocks, out);
        self.check_sent(now, key, out);
    }

    /// Reads and sends the whole blocks once more, to all replicas that have not answered: the
    /// blocks have changed in a replica's memory and were not written. A secondary whose scrubber
    /// has asked for them asks again.
    fn send_whole_again(&mut self, now: Time, key: u64, of: Option<u64>, out: &mut Effects) {
        let op = self.end_op(key);
        let left = op.sent.without(op.acked);
        self.leave_stream(now, op.group, op.lsn, out);
        let Some(write) = of.and_then(|of| self.ops.get_mut(of)) else { return };
        write.acked.insert(op.sent.without(left));
        if let Some(Write { whole, .. }) = write.write_mut() {
            whole.end(left);
        }
        self.check_sent(now, of.expect("it has one"), out);
    }

    /// Reads the blocks of a write whole for the replicas that need them. The write is done here.
    pub(crate) fn read_whole(&mut self, now: Time, key: u64, out: &mut Effects) {
        let op = self.ops.get_mut(key).expect("the caller has it");
        let write = op.write_mut().expect("only a write needs more than its own range");
        let to = write.whole.begin();
        let first = op.at / BLOCK * BLOCK;
        let len = (op.at + op.len).next_multiple_of(BLOCK) - first;
        let (group, unit, client) = (op.group, op.unit, op.client);
        let whole = Op::new(group, unit, first, len, Work::Whole { of: Some(key) });
        let whole = self.ops.insert(Op { client, sent: to, ..whole });
        self.start_job(now, whole, out);
    }

    /// Sends whole blocks, which were read, as another write of the stream.
    pub(crate) fn send_whole(
        &mut self,
        now: Time,
        key: u64,
        data: Buf,
        crc: Option<u32>,
        out: &mut Effects,
    ) {
        if self.replicas.are_past(self.ops.get(key)) {
            return self.drop_over(now, key, out);
        }
        if self.known.is_gone(self.ops.get(key).expect("the caller has it").unit.volume) {
            return self.end_whole(now, key, out);
        }
        let op = self.ops.get_mut(key).expect("the caller has it");
        let replica = self.replicas.get_mut(op.group).expect("the operation's replica is here");
        let to = ReplicaSet(op.sent.0 & replica.recipients().0);
        // Acknowledgements need these replicas, and none that they need is ever cut off.
        assert!(!to.is_empty(), "blocks were read whole for nobody");
        let primary = replica.primary().expect("only a primary reads blocks whole for others");
        op.body_crc = crc.or_else(|| Some(base::crc::crc32c(&data)));
        (op.body, op.sent) = (data, to);
        op.lsn = primary.enter(key, to);
        self.send_operation(key, to, false, out);
    }

    /// Ends a write of a deleted volume: there is nothing to send, and it must not be acknowledged
    /// as if the other replica had it.
    fn end_whole(&mut self, now: Time, key: u64, out: &mut Effects) {
        let op = self.end_op(key);
        let Work::Whole { of: Some(of) } = op.work else { return };
        if let Some(lsn) = self.ops.get(of).map(|write| write.lsn) {
            self.finish_client(of, Status::NoVolume, out);
            self.leave_stream(now, op.group, lsn, out);
        }
    }

    /// Ends the sending of whole blocks when all replicas have them, and continues the write that
    /// they belong to: the replicas have that now, too.
    pub(crate) fn check_whole(&mut self, now: Time, key: u64, of: Option<u64>, out: &mut Effects) {
        let op = self.ops.get(key).expect("the caller has it");
        if op.lsn.0 == 0 || !op.acked.contains_all(op.sent) {
            return;
        }
        let (group, lsn, sent, bytes) = (op.group, op.lsn, op.sent, op.len);
        self.remove_op(key);
        let Some(of) = of else {
            self.replicas.unlock(&mut self.ops, group, key); // the secondary counts it as repaired
            return self.leave_stream(now, group, lsn, out);
        };
        self.count_repaired(group, bytes.into(), out);
        self.leave_stream(now, group, lsn, out);
        let Some(write) = self.ops.get_mut(of) else { return };
        write.acked.insert(sent);
        if let Some(Write { whole, .. }) = write.write_mut() {
            whole.end(ReplicaSet::default());
        }
        self.check_write(now, of, out);
    }
}
