//! Damaged blocks: what the journal calls corrupt is read from another copy, and written anew (rule
//! R13).
//!
//! The primary asks one member after the other for the blocks, until one can read them, writes them
//! whole, and starts over what had met the damage. A member that can't complete a write in parts
//! says so, and gets the blocks whole, as another write of the stream in the name of the same
//! client write. Both while the operation has its range to itself (a read that met damage waits for
//! that, and reads again): nothing overlapping is in flight, so any copy that is in sync has what
//! the blocks should hold, or what they held before this very write, which is done over then; in
//! settling either copy's content will do, with its list of executed writes. For a joiner that
//! nobody waits for no range is held: the sync copies it the blocks.
//!
//! If no copy that is in sync has the blocks, a read ends in a media error, a write as well,
//! without having changed anything. A sync copies the damage as it copies all else: it can't keep a
//! joiner out for ever, nor can two copies differ when both can be read again.
//!
//! A device that can't read what was just written anew has failed: this process ends, and the other
//! copy serves.

use crate::executed::{ExecutedList, wire_entry};
use crate::mirror::{Caller, Mirror};
use crate::op::{Asker, Local, Op, OpKind, fits};
use crate::replica::{Members, Role};
use alloc::rc::Rc;
use alloc::vec::Vec;
use base::{BLOCK, BlockSet, DeviceId, Duration, GroupId, Lsn, Mutant, Time, VolumeId, mutant};
use seam::{Buf, DiskError, Effects, ExecutedBlocks, Job, Journal, Marks, Note, Origin, Started};
use wire::records::{self, Executed};
use wire::{Header, Kind, PeerLink, Status, flag};
use zerocopy::IntoBytes;

/// Rounds of repair that one operation gets; each mends one run of blocks.
const ROUNDS: u32 = 256;
/// How long until a copy of what nobody can read is tried once more.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// Blocks that an operation waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Repair {
    from: DeviceId,
    /// Members that can't read them either.
    damaged: Members,
    first: u16,
    blocks: u16,
    round: u32,
}

impl Repair {
    fn at(&self) -> u32 {
        u32::from(self.first) * BLOCK
    }

    fn len(&self) -> u32 {
        u32::from(self.blocks) * BLOCK
    }

    fn set(&self) -> BlockSet {
        BlockSet::touching(self.at(), self.len())
    }
}

impl<J: Journal> Mirror<J> {
    /// A job failed. It does not run any more.
    pub(crate) fn job_failed(&mut self, now: Time, key: u64, error: DiskError, out: &mut Effects) {
        if error == DiskError::BadBody {
            return self.bad_body(now, key, out);
        }
        let DiskError::Corrupt { first, blocks } = error else {
            // What is on the device now? Nobody knows: this process must not go on.
            self.failed = true;
            return;
        };
        let op = self.ops.get_mut(key).expect("an operation lives while its job runs");
        op.local = Local::NotStarted;
        let (asker, changes, volume) = (op.asker, op.kind.changes_data(), op.unit.volume);
        let (group, shares) = (op.group, op.kind.shares() && !op.alone);
        if self.is_over(key) || self.is_gone(volume) {
            return self.start_over(now, key, out);
        }
        let leads = matches!(self.replicas[group].role, Role::Primary(_));
        if shares && leads && !mutant::on(Mutant::MendShared) {
            return self.read_alone(key);
        }
        match asker {
            Asker::Primary { .. } if changes => self.refuse(now, key, Status::Damaged, out),
            Asker::Primary { .. } => {
                self.scrub_hopeless(now, key, first, blocks);
                self.end_fetch(key, Status::Media, out);
            }
            Asker::Scrub if self.scrub_corrupt(now, key, first, blocks, out) => {}
            Asker::Amend { of } => self.write_over(now, key, of, (first, blocks), out),
            _ => self.ask_other(now, key, first, blocks, out),
        }
    }

    /// A read that shares its range has met damage: it starts over when it has the range to itself. Others may have
    /// met it as well, and no two may write the blocks at once.
    fn read_alone(&mut self, key: u64) {
        let op = self.ops.get_mut(key).expect("the caller has it");
        op.alone = true;
        let group = op.group;
        self.unlock(group, key);
        self.queue(key);
    }

    /// The body of a write has changed in memory since it came. Whoever sent it sends it again, unless
    /// others may have done it by now: then nobody knows what else has changed in here, and this process
    /// must not go on.
    fn bad_body(&mut self, now: Time, key: u64, out: &mut Effects) {
        let op = self.ops.get_mut(key).expect("an operation lives while its job runs");
        op.local = Local::NotStarted;
        let (group, lsn, asker, sent) = (op.group, op.lsn, op.asker, op.sent);
        out.note(Note::BadMemory { group });
        if self.is_over(key) {
            return self.drop_over(now, key, out);
        }
        match asker {
            Asker::Primary { .. } => self.refuse(now, key, Status::Damaged, out),
            Asker::Client { .. } if sent.is_empty() => {
                self.finish_client(key, Status::Damaged, out);
                if lsn.0 > 0 {
                    self.leave_stream(now, group, lsn, out);
                }
            }
            _ => self.failed = true,
        }
    }

    /// True when the configuration has changed since the operation began.
    pub(crate) fn is_over(&self, key: u64) -> bool {
        let op = self.ops.get(key).expect("the caller has it");
        let changing = self.replicas.get(op.group).is_none_or(|r| r.next.is_some());
        let ours = matches!(op.asker, Asker::Amend { .. } | Asker::Mend);
        matches!(op.asker, Asker::Nobody) || (ours && changing)
    }

    /// Forgets an operation whose configuration is over.
    pub(crate) fn drop_over(&mut self, now: Time, key: u64, out: &mut Effects) {
        let op = self.remove_op(key).expect("the caller has it");
        self.unlock(op.group, key);
        self.enter(now, op.group, out);
    }

    // ---- at the primary: its own copy is damaged ----

    fn ask_other(&mut self, now: Time, key: u64, first: u16, blocks: u16, out: &mut Effects) {
        let op = self.ops.get_mut(key).expect("the caller has it");
        let bad = BlockSet::from_range(first.into()..(first + blocks).into());
        if self.repairs.get(&key).is_some_and(|mended| !mended.set().and(bad).is_empty()) {
            // Nor would the next round help. All of it is in the copy that it was mended from.
            out.note(Note::NotMended { group: op.group, unit: op.unit, first, blocks });
            self.failed = true;
            return;
        }
        let replica = &self.replicas[op.group];
        let round = self.repairs.get(&key).map_or(1, |r| r.round + 1);
        let other = replica.config.devices(replica.needed()).next();
        let damaged = Members::default();
        op.local = Local::Asking;
        if op.kind == OpKind::Write && !op.reserved {
            // The failed job has given its slots back.
            op.reserved = self.journal.reserve(op.group, op.unit, op.at, op.len);
        }
        let Some(from) = other.filter(|_| round <= ROUNDS) else {
            return self.unreadable(now, key, first, blocks, out);
        };
        self.repairs.insert(key, Repair { from, damaged, first, blocks, round });
        self.send_fetch(key, out);
    }

    /// The member that was asked can't read the blocks: the next one is asked.
    fn ask_next(&mut self, now: Time, key: u64, out: &mut Effects) {
        let (Some(repair), Some(op)) = (self.repairs.get_mut(&key), self.ops.get(key)) else {
            return;
        };
        let replica = &self.replicas[op.group];
        repair.damaged.insert(replica.config.member(repair.from));
        let left = replica.needed().without(repair.damaged);
        let (next, first, blocks) =
            (replica.config.devices(left).next(), repair.first, repair.blocks);
        let Some(next) = next else { return self.unreadable(now, key, first, blocks, out) };
        repair.from = next;
        self.send_fetch(key, out);
    }

    fn send_fetch(&self, key: u64, out: &mut Effects) {
        let (Some(repair), Some(op)) = (self.repairs.get(&key), self.ops.get(key)) else { return };
        let mut h = self.header(Kind::Read, op.group);
        h.op = key.into();
        h.volume = op.unit.volume.0.into();
        (h.unit, h.at, h.len) = (op.unit.index.into(), repair.at().into(), repair.len().into());
        self.send_peer(repair.from, h, Buf::EMPTY, out);
    }

    /// Asks again for what has not come; of one device, or of all.
    pub(crate) fn fetch_again(&mut self, of: Option<DeviceId>, out: &mut Effects) {
        if self.repairs.is_empty() {
            return;
        }
        let ops = &self.ops;
        self.repairs.retain(|key, _| ops.get(*key).is_some());
        let waits = |(key, r): (&u64, &Repair)| {
            let asking = self.ops.get(*key).is_some_and(|op| op.local == Local::Asking);
            (asking && of.is_none_or(|d| d == r.from)).then_some(*key)
        };
        let keys: Vec<u64> = self.repairs.iter().filter_map(waits).collect();
        keys.into_iter().for_each(|key| self.send_fetch(key, out));
    }

    /// The blocks came: they are written whole. In a group that is active both copies are equal there. In a settle
    /// they may not be, and a third one may differ from both: then they are marked.
    pub fn fetched_in(
        &mut self,
        now: Time,
        from: DeviceId,
        h: &Header,
        body: Buf,
        out: &mut Effects,
    ) {
        let (key, group) = (h.op.get(), GroupId(h.group.get()));
        let Some(repair) = self.repairs.get(&key).copied().filter(|r| r.from == from) else {
            return;
        };
        let Some(op) = self.ops.get_mut(key) else { return };
        let Some(replica) = self.replicas.get_mut(group) else { return };
        let present = replica.config.epoch.0 == h.epoch.get() && replica.next.is_none();
        if op.group != group || op.local != Local::Asking || !present {
            return;
        }
        let len = repair.len() as usize;
        match Status::from_code(h.status.get()) {
            Some(Status::Ok) => {}
            Some(Status::Media) => {
                self.ask_next(now, key, out);
                return self.pump(now, out);
            }
            _ => return, // asked again
        }
        let list = body.get(len..).and_then(records::read::<Executed>);
        let (Some(list), true) = (list, h.at.get() == repair.at() && h.len.get() as usize == len)
        else {
            return;
        };
        op.local = Local::Mending;
        replica.local += 1;
        let unit = op.unit;
        // While it settles, or mends for a write that is in the stream, others may lack what comes with this.
        let settles = matches!(&replica.role, Role::Primary(primary) if !primary.active);
        let dirty = (settles || op.lsn != Lsn(0)) && !mutant::on(Mutant::MendUnmarked);
        if dirty {
            replica.record.dirty.insert(unit, repair.set());
        }
        // The content may include what that replica has forgotten.
        self.take_forgotten(group, list);
        let list: Rc<[ExecutedBlocks]> = ExecutedList::from_records(list, &mut 0).entries().into();
        self.copied.insert(key, list.clone());
        if mutant::on(Mutant::NoRewrite) {
            return self.job_done(now, key, Ok(Buf::EMPTY), None, out);
        }
        let place = (unit, repair.at(), repair.len());
        debug_assert!(self.is_apart(key, group, place, true), "jobs overlap");
        let job = Job::Write { at: repair.at(), body: body.slice(0..len), crc: None };
        let marks = Marks { dirty, origin: Origin::Copied(list) };
        match self.journal.start(key, group, unit, job, marks, out) {
            Started::Pending => {}
            Started::BadBody => unreachable!("it has no checksum of its own"),
            Started::Done(_) => self.job_done(now, key, Ok(Buf::EMPTY), None, out),
            Started::Full => {
                let op = self.ops.get_mut(key).expect("looked up above");
                op.local = Local::Asking;
                self.replicas.get_mut(group).expect("looked up above").local -= 1;
                self.unreadable(now, key, repair.first, repair.blocks, out);
            }
        }
        self.pump(now, out);
    }

    /// The blocks are whole again: what had met the damage starts over.
    pub(crate) fn mended(&mut self, now: Time, key: u64, out: &mut Effects) {
        let op = self.ops.get_mut(key).expect("an operation lives while its job runs");
        op.local = Local::NotStarted;
        let (group, unit) = (op.group, op.unit);
        let (repair, list) = (self.repairs[&key], self.copied.remove(&key));
        if let Some(list) = list {
            self.overwritten(group, unit, repair.set(), &list);
        }
        self.stats.repaired += u64::from(repair.len());
        out.note(Note::Repaired { group, bytes: repair.len().into() });
        let op = self.ops.get_mut(key).expect("as above");
        if matches!(op.asker, Asker::Scrub) {
            self.scrub_repaired(repair.len());
        } else if !op.amended.is_empty() && mutant::on(Mutant::NoWriteOver) {
            op.local = Local::Done;
            return self.check_write(now, key, out);
        }
        if !self.is_over(key) && self.is_settle_copy(key) {
            // The peers' lists would get what this side's said before.
            self.drop_copy(key);
            self.sync_mut(group).expect("a settle is under way").anew = true;
            return self.advance(now, group, out);
        }
        self.start_over(now, key, out);
    }

    /// A copy for members in sync, in settling: who mends it may have had another content there.
    fn is_settle_copy(&mut self, key: u64) -> bool {
        let op = self.ops.get(key).expect("the caller has it");
        let (group, copies) = (op.group, op.kind == OpKind::Copy);
        copies && self.sync_mut(group).is_some_and(|sync| sync.joiner.is_none())
    }

    /// What a write has left here can't be read, and who needs it whole hasn't got it. The damage is the write's:
    /// its blocks are mended with what they held before it, and it is done over.
    fn write_over(
        &mut self,
        now: Time,
        amend: u64,
        write: u64,
        (first, blocks): (u16, u16),
        out: &mut Effects,
    ) {
        let amend = self.remove_op(amend).expect("the caller has it");
        let Some(op) = self.ops.get_mut(write) else { return };
        op.damaged.insert(amend.sent);
        self.ask_other(now, write, first, blocks, out);
    }

    /// What had met damage begins anew. It has its range; a read may need a lease.
    fn start_over(&mut self, now: Time, key: u64, out: &mut Effects) {
        if self.is_over(key) {
            return self.drop_over(now, key, out);
        }
        let op = self.ops.get(key).expect("the caller has it");
        let kind = op.kind;
        let needs_space = kind == OpKind::Write && !self.is_gone(op.unit.volume);
        match kind {
            OpKind::Read | OpKind::Copy => self.ready.push_back(key),
            _ if needs_space && !self.reserve_again(key) => {}
            _ => self.start_job(now, key, out),
        }
    }

    /// The job that met the damage has given its slots back. If there are none now, the members that may have done the
    /// write have to go, as after damage that nobody can mend. They can: the blocks are whole here again.
    fn reserve_again(&mut self, key: u64) -> bool {
        let op = self.ops.get_mut(key).expect("the caller has it");
        op.reserved = op.reserved || self.journal.reserve(op.group, op.unit, op.at, op.len);
        if !op.reserved {
            let replica = &self.replicas[op.group];
            self.suspects.extend(replica.config.devices(replica.needed()));
        }
        op.reserved
    }

    /// A volume is gone, and the damage with it: what waits for another copy of its blocks starts over. None may
    /// come: who knows that the volume is gone has nothing to answer.
    pub(crate) fn end_repairs(&mut self, now: Time, volume: VolumeId, out: &mut Effects) {
        let waits = |key: &u64| {
            let op = self.ops.get(*key);
            op.is_some_and(|op| op.unit.volume == volume && op.local == Local::Asking)
        };
        let keys: Vec<u64> = self.repairs.keys().copied().filter(waits).collect();
        for key in keys {
            self.repairs.remove(&key);
            self.ops.get_mut(key).expect("looked up above").local = Local::NotStarted;
            self.start_over(now, key, out);
        }
        self.pump(now, out);
    }

    /// No copy that is in sync has the blocks.
    fn unreadable(&mut self, now: Time, key: u64, first: u16, blocks: u16, out: &mut Effects) {
        self.repairs.remove(&key);
        let op = self.ops.get_mut(key).expect("the caller has it");
        let (group, kind, unit, lsn) = (op.group, op.kind, op.unit, op.lsn);
        let (asker, refused, sent_whole) = (op.asker, op.damaged, !op.amended.is_empty());
        out.note(Note::Unreadable { group, unit, first, blocks });
        self.stats.unreadable += 1;
        let needed = self.replicas[group].needed();
        match kind {
            _ if matches!(asker, Asker::Scrub) => self.scrub_lost(now, key, first, blocks),
            // Damaged here as well: the member asks again, and gives up.
            _ if matches!(asker, Asker::Mend) => self.drop_over(now, key, out),
            OpKind::Read | OpKind::Extents => self.finish_client(key, Status::Media, out),
            OpKind::Copy => {
                let bad = BlockSet::from_range(first.into()..(first + blocks).into());
                self.skip_copy(now, key, bad, out);
            }
            OpKind::Amend => unreachable!("its damage is the write's"),
            // Somebody may have done what can't be done elsewhere: the members have to go before this is answered.
            OpKind::Write | OpKind::Zero if sent_whole || !refused.contains_all(needed) => {
                self.suspects.extend(self.replicas[group].config.devices(needed));
            }
            // Who met the damage, too, has changed nothing.
            OpKind::Write | OpKind::Zero => {
                self.cut(now, group, out);
                let op = self.ops.get_mut(key).expect("nothing has ended it");
                if core::mem::take(&mut op.reserved) {
                    let (at, len) = (op.at, op.len);
                    self.journal.release(group, unit, at, len);
                }
                self.finish_client(key, Status::Media, out);
                self.leave_stream(now, group, lsn, out);
            }
        }
    }

    /// A copy whose source can't be read; in settling the other copy is damaged as well. It is tried once more,
    /// as it may have been the device's bad moment; then the peer is told of the damage.
    fn skip_copy(&mut self, now: Time, key: u64, bad: BlockSet, out: &mut Effects) {
        let op = self.ops.get(key).expect("the caller has it");
        let (group, unit) = (op.group, op.unit);
        let mut rest = BlockSet::touching(op.at, op.len);
        rest.remove(bad);
        let Some(sync) = self.sync_mut(group) else { return self.drop_copy(key) };
        sync.todo.insert(unit, rest);
        if sync.tried.contains(unit, bad) {
            return self.copy_loss(now, key, bad, out);
        }
        sync.unreadable.insert(unit, bad);
        self.asking.insert(group, now + READ_AGAIN);
        self.drop_copy(key);
        self.advance(now, group, out);
    }

    /// The peer gets to know that these blocks can't be read: damage is copied like content, so that it can't
    /// have another one than the primary. Should the primary read them some day, the peer's are repaired as
    /// any others.
    fn copy_loss(&mut self, now: Time, key: u64, bad: BlockSet, out: &mut Effects) {
        let run = bad.first_run().expect("something is damaged");
        let op = self.ops.get_mut(key).expect("the caller has it");
        (op.at, op.len) = (run.start * BLOCK, (run.end - run.start) * BLOCK);
        op.local = Local::Done;
        if !mutant::on(Mutant::LossAsZeros) {
            op.flags |= flag::LOST;
        }
        self.send_copy(now, key, Buf::EMPTY, None, out);
    }

    /// Tries once more to copy what could not be read.
    pub(crate) fn read_again(&mut self, now: Time, group: GroupId, out: &mut Effects) {
        let Some(sync) = self.sync_mut(group) else { return };
        let unreadable = core::mem::take(&mut sync.unreadable);
        sync.todo.extend(&unreadable);
        sync.tried.extend(&unreadable);
        self.asking.remove(&group);
        self.advance(now, group, out);
    }

    // ---- at a member: the primary's copy is damaged ----

    /// The primary wants to know what blocks hold here.
    pub fn fetch_in(
        &mut self,
        now: Time,
        link: PeerLink,
        from: DeviceId,
        h: &Header,
        out: &mut Effects,
    ) {
        let group = GroupId(h.group.get());
        match self.check_leader(from, h) {
            Ok(()) if fits::<BLOCK>(h.at.get(), h.len.get()) => {
                let asker = Asker::Primary { link, op: h.op.get() };
                let key = self.insert_op(Op::from_frame(h, OpKind::Read, asker, Buf::EMPTY));
                self.queue(key);
                self.pump(now, out);
            }
            Ok(()) => {}
            Err(status) => {
                self.reply(Caller { link, op: h.op.get(), group }, status, Buf::EMPTY, out);
            }
        }
    }

    /// They have their range. What a volume that is gone held isn't here any more: that is no content.
    pub(crate) fn start_fetch(&mut self, now: Time, key: u64, out: &mut Effects) {
        let op = self.ops.get(key).expect("the operation lives");
        if self.is_gone(op.unit.volume) {
            return self.end_fetch(key, Status::NoVolume, out);
        }
        self.start_job(now, key, out);
    }

    /// They can't be had here.
    fn end_fetch(&mut self, key: u64, why: Status, out: &mut Effects) {
        let op = self.remove_op(key).expect("the operation lives");
        self.unlock(op.group, key);
        if let Asker::Primary { link, op: name } = op.asker {
            self.reply(Caller { link, op: name, group: op.group }, why, Buf::EMPTY, out);
        }
    }

    /// They are read: with them go the entries of the list of executed writes.
    pub(crate) fn fetched_here(&mut self, now: Time, key: u64, data: Buf, out: &mut Effects) {
        let op = self.remove_op(key).expect("the operation lives");
        self.unlock(op.group, key);
        let Asker::Primary { link, op: name } = op.asker else { return };
        let blocks = BlockSet::touching(op.at, op.len);
        let entries = self.replicas[op.group].record.executed.of(op.unit, blocks);
        let list: Vec<Executed> =
            self.forgotten.entries(op.group).chain(entries).map(|e| wire_entry(&e)).collect();
        let mut body = out.alloc(data.len() + list.as_bytes().len());
        body.as_mut()[..data.len()].copy_from_slice(&data);
        body.as_mut()[data.len()..].copy_from_slice(list.as_bytes());
        let mut header = self.header(Kind::Reply, op.group);
        (header.op, header.at, header.len) = (name.into(), op.at.into(), op.len.into());
        out.send(link.id, link.frame(header, &body), body);
        self.wipe_if_idle(now, op.group, out);
    }

    // ---- at the primary: a member's copy is damaged ----

    /// A member can't complete this write, as what it would leave of its blocks is damaged there.
    pub(crate) fn damaged_there(
        &mut self,
        now: Time,
        key: u64,
        member: Members,
        out: &mut Effects,
    ) {
        let op = self.ops.get_mut(key).expect("the caller has it");
        if op.kind == OpKind::Copy && !op.acked.intersects(member) {
            return self.copy_once_more(now, key, member, out);
        }
        if op.kind == OpKind::Amend && !op.acked.intersects(member) {
            return self.amend_once_more(now, key, out);
        }
        if !op.kind.changes_data() || op.amended.intersects(member) {
            return;
        }
        if self.replicas[op.group].needed().intersects(member) {
            op.damaged.insert(member);
        } else {
            op.acked.insert(member);
            let (group, unit, blocks) = (op.group, op.unit, BlockSet::touching(op.at, op.len));
            self.copy_anew(now, group, unit, blocks, out);
        }
        self.check_write(now, key, out);
    }

    /// The blocks that a member needs whole have changed in its memory, and were not written there. They are read and sent once
    /// more, to all who have not answered; a member whose scrubber has asked for them asks again.
    fn amend_once_more(&mut self, now: Time, key: u64, out: &mut Effects) {
        let op = self.remove_op(key).expect("the caller has it");
        let left = op.sent.without(op.acked);
        self.unlock(op.group, key);
        self.leave_stream(now, op.group, op.lsn, out);
        let Asker::Amend { of } = op.asker else { return };
        let Some(write) = self.ops.get_mut(of) else { return };
        write.acked.insert(op.sent.without(left));
        write.amended.remove(left);
        write.damaged.insert(left);
        self.check_write(now, of, out);
    }

    /// What was copied has changed in the member's memory, and was not written there.
    fn copy_once_more(&mut self, now: Time, key: u64, member: Members, out: &mut Effects) {
        let op = self.ops.get_mut(key).expect("the caller has it");
        op.acked.insert(member);
        let (group, unit, blocks) = (op.group, op.unit, BlockSet::touching(op.at, op.len));
        if let Some(sync) = self.sync_mut(group) {
            sync.todo.insert(unit, blocks);
        }
        self.check_copy(now, key, out);
    }

    /// The write is done here: the blocks that it touched are read whole, for those who need them.
    pub(crate) fn amend(&mut self, now: Time, key: u64, out: &mut Effects) {
        let op = self.ops.get_mut(key).expect("the caller has it");
        let to = core::mem::take(&mut op.damaged);
        op.amended.insert(to);
        let first = op.at / BLOCK * BLOCK;
        let len = (op.at + op.len).next_multiple_of(BLOCK) - first;
        let (group, unit, client) = (op.group, op.unit, op.client);
        let amend = Op::new(group, OpKind::Amend, unit, first, len, Asker::Amend { of: key });
        let amend = self.insert_op(Op { client, sent: to, ..amend });
        self.start_job(now, amend, out);
    }

    /// They are read: they go out as another write of the stream.
    pub(crate) fn send_amend(
        &mut self,
        now: Time,
        key: u64,
        data: Buf,
        crc: Option<u32>,
        out: &mut Effects,
    ) {
        if self.is_over(key) {
            return self.drop_over(now, key, out);
        }
        if self.is_gone(self.ops.get(key).expect("the caller has it").unit.volume) {
            return self.end_amend(now, key, out);
        }
        let op = self.ops.get_mut(key).expect("the caller has it");
        let replica = self.replicas.get_mut(op.group).expect("the operation's replica is here");
        let to = Members(op.sent.0 & replica.recipients().0);
        let Some(primary) = replica.primary().filter(|_| !to.is_empty()) else {
            let group = op.group;
            self.remove_op(key); // a joiner that was cut off
            return self.unlock(group, key);
        };
        op.body_crc = crc.unwrap_or_else(|| base::crc::crc32c(&data));
        (op.body, op.sent) = (data, to);
        op.lsn = primary.enter(key, to);
        self.replicate(key, to, out);
    }

    /// The volume is gone, so there is nothing to send: the write isn't answered as if the member had it.
    fn end_amend(&mut self, now: Time, key: u64, out: &mut Effects) {
        let op = self.remove_op(key).expect("the caller has it");
        self.unlock(op.group, key);
        let Asker::Amend { of } = op.asker else { return };
        if let Some(lsn) = self.ops.get(of).map(|write| write.lsn) {
            self.finish_client(of, Status::NoVolume, out);
            self.leave_stream(now, op.group, lsn, out);
        }
    }

    /// The blocks may be there now: then the write is, too.
    pub(crate) fn check_amend(&mut self, now: Time, key: u64, out: &mut Effects) {
        let op = self.ops.get(key).expect("the caller has it");
        let of = match op.asker {
            Asker::Amend { of } => Some(of),
            Asker::Mend => None,
            _ => return,
        };
        if op.lsn.0 == 0 || !op.acked.contains_all(op.sent) {
            return;
        }
        let (group, lsn, sent, bytes) = (op.group, op.lsn, op.sent, op.len);
        self.remove_op(key);
        let Some(of) = of else {
            self.unlock(group, key); // the member counts it
            return self.leave_stream(now, group, lsn, out);
        };
        self.stats.repaired += u64::from(bytes);
        out.note(Note::Repaired { group, bytes: bytes.into() });
        if let Some(write) = self.ops.get_mut(of) {
            write.acked.insert(sent);
            self.check_write(now, of, out);
        }
        self.leave_stream(now, group, lsn, out);
    }
}
