//! How a shard carries out syncs (rules R6 and R11): the questions to peers and their answers, the
//! copies, the seals, and links that break or come back. [`crate::sync`] decides the next step of a
//! sync.

use crate::members::ReplicaSet;
use crate::mirror::Mirror;
use crate::op::{Copying, Local, Op, Work};
use crate::ops::Ops;
use crate::pace::End;
use crate::replica::{Primary, Replica, Role};
use crate::sync::{ASK_AGAIN, ASK_AT_LAST, Answer, Next, Phase};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use base::{
    BLOCK, BlockSet, DeviceId, Duration, Epoch, GroupId, Mutant, Time, UnitKey, VolumeId, mutant,
};
use seam::{Buf, Effects, Note, UnitStore};
use wire::message::{Sealed, SyncState};
use wire::records::{self, UnitBlocks};
use wire::{PeerLink, Status};
use zerocopy::IntoBytes;

impl Replica {
    /// Adds the blocks that this side knows to `todo`, after all peers have told their state.
    /// `reaches`: the dirty sets of both sides reach back far enough to name every difference.
    fn plan_copies(
        &mut self,
        group: GroupId,
        peer: ReplicaSet,
        reaches: bool,
        ops: &Ops,
        store: &impl UnitStore,
    ) {
        let Role::Primary(primary) = &mut self.role else { return };
        let Some(sync) = &mut primary.sync else { return };
        if reaches {
            sync.todo.extend(&self.record.dirty);
        }
        if sync.is_full() {
            for unit in store.units(group) {
                sync.todo.insert(unit, store.valid(group, unit));
            }
        }
        if mutant::on(Mutant::NoSettle) && sync.joiner.is_none() {
            sync.todo.clear();
        }
        // Writes that are in flight and were not sent to the peer are in no dirty set yet.
        for entry in primary.stream.iter().filter(|e| !e.done) {
            let op = ops.get(entry.op).expect("an operation of the stream lives");
            if !op.sent.intersects(peer) {
                sync.todo.insert(op.unit, op.blocks());
            }
        }
    }
}

impl<S: UnitStore> Mirror<S> {
    /// Starts to fill a joiner, or starts it over. `idle`: the joiner has said that it has done
    /// everything that it was sent in this group.
    pub(crate) fn ask_joiner(
        &mut self,
        now: Time,
        group: GroupId,
        joiner: DeviceId,
        idle: bool,
        out: &mut Effects,
    ) {
        // Until the joiner has read and done all earlier operations, it only answers, and its
        // stream begins with the next question.
        let streaming = idle && self.windows.is_clear(joiner, group);
        let sends = self.windows.sends();
        let Some(replica) = self.replicas.get_mut(group) else { return };
        let member = replica.config.member(joiner);
        let Some(primary) = replica.primary() else { return };
        primary.ask(member, Some(joiner), sends).streaming = streaming;
        self.timers.join(group);
        self.timers.ask_at(group, now + ASK_AGAIN);
        self.send_question(group, out);
    }

    /// Starts to settle with these in-sync replicas.
    pub(crate) fn ask_members(
        &mut self,
        now: Time,
        group: GroupId,
        members: ReplicaSet,
        out: &mut Effects,
    ) {
        let sends = self.windows.sends();
        let Some(primary) = self.replicas.primary_mut(group) else { return };
        primary.ask(members, None, sends);
        self.timers.ask_at(group, now + ASK_AGAIN);
        self.send_question(group, out);
    }

    /// Sends the question of the present phase, or repeats it, to the peers that have not answered.
    fn send_question(&mut self, group: GroupId, out: &mut Effects) {
        let Some(replica) = self.replicas.get(group) else { return };
        let Role::Primary(Primary { sync: Some(sync), last, .. }) = &replica.role else { return };
        let (after, epoch) = (*last, replica.config.epoch);
        let all = replica.record.all_dirty;
        let Some((header, with_list)) = sync.question(group, epoch, after, all) else { return };
        let body = if with_list {
            let list = replica.record.executed.entries();
            out.copy(self.history.records(group, list).as_bytes())
        } else {
            Buf::EMPTY
        };
        for peer in replica.config.devices(sync.unanswered()) {
            self.windows.send_frame(peer, header, body.clone(), out);
        }
    }

    /// Cuts the joiner off because it can't follow: from now on it gets nothing, and everything
    /// that it misses is dirty. Clients don't notice. The joiner is asked again later.
    pub(crate) fn cut(&mut self, now: Time, group: GroupId, out: &mut Effects) {
        let Some(replica) = self.replicas.get_mut(group) else { return };
        let Role::Primary(primary) = &mut replica.role else { return };
        let Some(sync) = &mut primary.sync else { return };
        if !sync.can_be_cut() {
            return;
        }
        let member = sync.members;
        sync.cut_off();
        let pending: Vec<u64> = primary.stream.iter().filter(|e| !e.done).map(|e| e.op).collect();
        for key in pending {
            let op = self.ops.get_mut(key).expect("an operation of the stream lives");
            op.sent.remove(member);
            self.check_sent(now, key, out);
        }
        self.timers.ask_at(group, now + ASK_AGAIN);
        self.replicas.unpark(&mut self.ops, group);
    }

    /// Repeats the questions that were not answered in time.
    pub(crate) fn ask_again(&mut self, now: Time, out: &mut Effects) {
        for group in self.timers.to_ask(now) {
            self.timers.ask_at(group, now + ASK_AGAIN * 10);
            let Some(sync) = self.replicas.sync_mut(group) else {
                self.timers.ask_no_more(group);
                continue;
            };
            let (phase, joiner, idle) = (sync.phase, sync.joiner, sync.is_idle());
            let patience = (sync.patience() * 2).min(ASK_AT_LAST);
            let asked = sync.unanswered();
            let connected = |peer| self.windows.link(peer).is_some();
            if !self.replicas.of(group).config.devices(asked).any(connected) {
                continue;
            }
            match phase {
                Phase::Ask if idle => {
                    match joiner {
                        Some(joiner) => {
                            self.cut(now, group, out);
                            self.ask_joiner(now, group, joiner, false, out);
                        }
                        None => self.send_question(group, out),
                    }
                    self.wait_for_answer(now, group, patience);
                }
                Phase::Ask => {}
                Phase::Wipe | Phase::Seal(_) => self.send_question(group, out),
                Phase::Copy => {
                    self.replicas.sync_mut(group).expect("it is in this phase").read_again();
                    self.timers.ask_no_more(group);
                    self.advance(now, group, out);
                }
                Phase::Drain | Phase::Admit => self.timers.ask_no_more(group),
            }
        }
    }

    /// Has the question repeated after this time.
    pub(crate) fn wait_for_answer(&mut self, now: Time, group: GroupId, patience: Duration) {
        let Some(sync) = self.replicas.sync_mut(group) else { return };
        sync.be_patient(patience);
        self.timers.ask_at(group, now + patience);
    }

    /// Takes a peer's state.
    pub fn sync_state_in(
        &mut self,
        now: Time,
        from: DeviceId,
        m: &SyncState,
        body: &Buf,
        out: &mut Effects,
    ) {
        self.heard(now, from, m.sender, out);
        self.take_state(now, from, m, body, out);
        self.pump(now, out);
    }

    fn take_state(
        &mut self,
        now: Time,
        from: DeviceId,
        m: &SyncState,
        body: &Buf,
        out: &mut Effects,
    ) {
        let group = m.group;
        let told = records::read::<UnitBlocks>(body).unwrap_or(&[]).iter().map(|e| e.key().volume);
        let gone: BTreeSet<VolumeId> = told.filter(|volume| self.known.is_gone(*volume)).collect();
        let Some(replica) = self.replicas.get_mut(group) else { return };
        if replica.config.epoch != m.epoch {
            return;
        }
        let member = replica.config.member(from);
        let Role::Primary(primary) = &mut replica.role else { return };
        let Some(sync) = primary.sync.as_mut().filter(|s| s.unanswered().intersects(member)) else {
            return;
        };
        let Some(list) = records::read::<UnitBlocks>(body) else { return };
        if m.status != Status::Ok {
            return self.state_refused(now, group, m.question, out);
        }
        // The peer acts in this epoch, so it serves no reads by a lease of an older one (rule R4,
        // case b).
        replica.promises.retain(|(device, _)| *device != from);
        match sync.answer(m.question) {
            Answer::Old => return,
            Answer::Wiped => return self.ask_joiner(now, group, from, true, out),
            Answer::State => {}
        }
        self.windows.told(from, group, sync.asked_after());
        if !sync.streaming {
            let patience = sync.patience();
            if !m.more && sync.is_idle() {
                self.restart_stream(now, group, from, patience, out);
            }
            return;
        }
        let settles = sync.joiner.is_none();
        let ignored = if settles { Mutant::IgnorePeerDirty } else { Mutant::IgnoreJoinerDirty };
        for entry in
            list.iter().filter(|e| !gone.contains(&e.key().volume)).filter(|_| !mutant::on(ignored))
        {
            sync.todo.insert(entry.key(), entry.set());
        }
        if m.more {
            return;
        }
        let all = replica.record.all_dirty || m.all;
        let reaches = sync.joiner.is_none()
            || (m.base >= replica.record.base && !all)
            || mutant::on(Mutant::IgnoreBase);
        if !reaches && !m.empty {
            return self.wipe_joiner(now, group, out);
        }
        out.note(Note::SyncStart { group, peer: from, bytes: sync.todo.bytes(), full: !reaches });
        if !sync.tells(member, reaches, all) {
            return;
        }
        replica.plan_copies(group, member, reaches, &self.ops, &self.store);
        self.timers.ask_no_more(group);
        self.advance(now, group, out);
    }

    /// Handles a peer that can't tell its state now: it may not know the epoch yet.
    fn state_refused(&mut self, now: Time, group: GroupId, question: u64, out: &mut Effects) {
        let Some(sync) = self.replicas.sync_mut(group) else { return };
        let patience = sync.refused(question);
        if sync.joiner.is_some() {
            self.cut(now, group, out);
        }
        if let Some(patience) = patience {
            self.wait_for_answer(now, group, patience);
        }
    }

    /// Tells a joiner to delete what it has of the group, because it is unknown what differs in it.
    fn wipe_joiner(&mut self, now: Time, group: GroupId, out: &mut Effects) {
        self.cut(now, group, out);
        let Some(primary) = self.replicas.primary_mut(group) else { return };
        primary.questions += 1;
        if let Some(sync) = &mut primary.sync {
            sync.wipe(primary.questions);
        }
        self.send_question(group, out);
    }

    /// Continues the copy phase, or ends it when everything has been copied.
    pub(crate) fn advance(&mut self, now: Time, group: GroupId, out: &mut Effects) {
        let Some(primary) = self.replicas.primary_mut(group) else { return };
        let drained = primary.stream.is_empty();
        let Some(sync) = &mut primary.sync else { return };
        match sync.next(drained) {
            Next::Wait => {}
            Next::Queue => self.copies.queue(group),
            Next::Ask => {
                let members = sync.members;
                self.ask_members(now, group, members, out);
            }
            Next::Seal => self.seal(now, group, out),
        }
    }

    /// Seals the peers: everything that was sent has been answered, so they are equal.
    pub(crate) fn seal(&mut self, now: Time, group: GroupId, out: &mut Effects) {
        let sends = self.windows.sends();
        let Some(primary) = self.replicas.primary_mut(group) else { return };
        let Some(sync) = &mut primary.sync else { return };
        sync.seal(sends);
        self.timers.ask_at(group, now + ASK_AGAIN);
        self.send_question(group, out);
    }

    /// Takes a peer's confirmation of its seal. When all have confirmed, this replica counts as
    /// equal, too.
    pub fn sealed_in(&mut self, now: Time, from: DeviceId, m: &Sealed, out: &mut Effects) {
        self.heard(now, from, m.sender, out);
        let Sealed { group, lsn, .. } = *m;
        let Some(replica) = self.replicas.get_mut(group) else { return };
        let member = replica.config.member(from);
        if replica.config.epoch != m.epoch || m.status != Status::Ok {
            return;
        }
        let Role::Primary(primary) = &mut replica.role else { return };
        let Some(sync) = &mut primary.sync else { return };
        let Some(all) = sync.confirms(member, lsn) else { return };
        out.note(Note::Sealed { group, peer: from, lsn });
        if !all {
            return;
        }
        self.timers.ask_no_more(group);
        if sync.joiner.is_some() {
            sync.admit();
            self.untold.ready_to_admit();
            self.replicas.unpark(&mut self.ops, group);
            return self.pump(now, out);
        }
        primary.sync = None;
        replica.record.base = replica.config.epoch;
        replica.record.clean();
        self.change_to(group);
        self.activate(now, group, out);
        self.pump(now, out);
    }

    /// Returns the groups whose joiners wait for their admission, with epoch and joiner.
    pub fn admissions(&self) -> Vec<(GroupId, Epoch, DeviceId)> {
        let limbo = |group: GroupId| {
            let replica = self.replicas.get(group)?;
            match &replica.role {
                Role::Primary(Primary { sync: Some(sync), .. }) if sync.in_limbo() => {
                    Some((group, replica.config.epoch, sync.joiner?))
                }
                _ => None,
            }
        };
        self.timers.joining().filter_map(limbo).collect()
    }

    // ---- copies ----

    /// Starts copies, group by group in turn, as far as the limits allow.
    pub(crate) fn start_copies(&mut self, now: Time, out: &mut Effects) {
        loop {
            let (replicas, limits) = (&self.replicas, &self.limits);
            let turn = |group| replicas.turn_to_copy(group, limits);
            let Some((group, purpose)) = self.copies.next(now, limits, turn) else { return };
            let most = (self.copies.pace.len(now, purpose, &self.limits) / BLOCK).max(1);
            let Some(sync) = self.replicas.sync_mut(group) else { continue };
            if !sync.takes_turn() {
                continue;
            }
            let Some((unit, run, more)) = sync.begin_copy(most) else {
                self.advance(now, group, out); // the rest belonged to a deleted volume
                continue;
            };
            if more {
                self.copies.queue(group);
            }
            let (at, len) = (run.start * BLOCK, (run.end - run.start) * BLOCK);
            self.copies.begins(now, purpose);
            let work = Copying { since: now, read: Duration::ZERO, lost: false };
            let key = self.ops.insert(Op::new(group, unit, at, len, Work::Copy(work)));
            self.replicas.queue(&mut self.ops, key);
        }
    }

    /// Copies these blocks to the joiner again: it could not write them because it has damaged
    /// ones, or it may have done a write that was taken back. Clients don't wait for it, so the
    /// write's range may be free and another write in flight there. So the blocks are copied like
    /// all others that may differ.
    pub(crate) fn copy_anew(
        &mut self,
        now: Time,
        group: GroupId,
        unit: UnitKey,
        blocks: BlockSet,
        out: &mut Effects,
    ) {
        let Some(sync) = self.replicas.sync_mut(group) else { return };
        if sync.add(unit, blocks) {
            self.replicas.unpark(&mut self.ops, group);
        }
        self.advance(now, group, out);
    }

    /// Starts a copy that has its range. Blocks without data are sent as zeros; a mixed run is
    /// split.
    pub(crate) fn start_copy(&mut self, now: Time, key: u64, out: &mut Effects) {
        let op = self.ops.get(key).expect("the operation lives");
        let (group, unit, first) = (op.group, op.unit, op.at / BLOCK);
        if self.known.is_gone(unit.volume) {
            self.drop_copy(key);
            return self.advance(now, group, out);
        }
        let op = self.ops.get_mut(key).expect("the operation lives");
        let end = (op.at + op.len) / BLOCK;
        let valid = self.store.valid(group, unit);
        let data = valid.contains(first);
        let split = (first..end).find(|b| valid.contains(*b) != data).unwrap_or(end);
        op.len = (split - first) * BLOCK;
        if let Some(sync) = self.replicas.sync_mut(group) {
            sync.todo.insert(unit, BlockSet::from_range(split..end));
        }
        if data {
            self.start_job(now, key, out);
        } else {
            self.ops.get_mut(key).expect("the operation lives").local = Local::Done;
            self.send_copy(now, key, Buf::EMPTY, None, out);
        }
    }

    /// Puts a copy into the stream and sends it. `data` is empty for zeros.
    pub(crate) fn send_copy(
        &mut self,
        now: Time,
        key: u64,
        data: Buf,
        crc: Option<u32>,
        out: &mut Effects,
    ) {
        let op = self.ops.get_mut(key).expect("the operation lives");
        if let Work::Copy(Copying { since, read, .. }) = &mut op.work {
            *read = now.since(*since);
        }
        let sum = || if data.is_empty() { 0 } else { base::crc::crc32c(&data) };
        op.body_crc = crc.or_else(|| Some(sum()));
        op.body = data;
        let replica = self.replicas.get_mut(op.group).expect("the operation's replica is here");
        let Role::Primary(primary) = &mut replica.role else { return };
        let Some(sync) = &primary.sync else { return };
        let to = if sync.streaming { sync.members } else { ReplicaSet::default() };
        if to.is_empty() {
            // The joiner was cut off while the data was read. The next question starts over.
            return self.drop_copy(key);
        }
        op.lsn = primary.enter(key, to);
        op.sent = to;
        self.send_operation(key, to, false, out);
    }

    /// Drops a copy and frees its range.
    pub(crate) fn drop_copy(&mut self, key: u64) {
        let op = self.end_op(key);
        self.copies.ends();
        if let Some(sync) = self.replicas.sync_mut(op.group) {
            sync.end_copy();
        }
    }

    /// Ends a copy if all peers have it.
    pub(crate) fn check_copy(&mut self, now: Time, key: u64, out: &mut Effects) {
        let op = self.ops.get(key).expect("the operation lives");
        if op.lsn.0 == 0 || !op.acked.contains_all(op.sent) {
            return;
        }
        let (group, lsn, sent, moved) = (op.group, op.lsn, op.sent, op.body.len() as u64);
        if let Work::Copy(Copying { since, read, .. }) = op.work {
            let (purpose, len) = (self.replicas.of(group).purpose(), op.len);
            // Where the receiver sets the pace, its share of the time says nothing about this
            // device.
            let paced = self.copies.pace.is_by_latency(purpose);
            let took = if paced { read } else { now.since(since) };
            self.copies.pace.ended(now, End::Source, purpose, took, since, len);
        }
        self.drop_copy(key);
        for peer in self.replicas.of(group).config.devices(sent).filter(|_| moved > 0) {
            self.stats.moved += moved;
            out.note(Note::Copied { group, peer, bytes: moved });
        }
        self.leave_stream(now, group, lsn, out);
        self.advance(now, group, out);
    }

    // ---- peers ----

    /// Handles the welcome on a link that this device dialled to a replica. Sends again, in order,
    /// what the replica may lack, as far as there is room.
    pub fn peer_up(&mut self, now: Time, device: DeviceId, link: PeerLink, out: &mut Effects) {
        if self.windows.connect(device, Some(link)) {
            self.replicas.unpark_all(&mut self.ops);
        }
        self.leases.hurry(device);
        self.fetch_again(now, Some(device), out);
        for group in self.replicas.led() {
            let replica = self.replicas.get(group).expect("listed");
            let member = replica.config.member(device);
            let Role::Primary(primary) = &replica.role else { continue };
            let mine = primary.sync.as_ref().filter(|s| s.members.intersects(member));
            match mine.map(|s| s.phase) {
                // While copying, the timer is for blocks that the device can't read: a link changes
                // nothing.
                None | Some(Phase::Copy) => {}
                Some(phase) => {
                    self.timers.ask_at(group, now);
                    if phase != Phase::Ask {
                        self.send_question(group, out);
                    }
                }
            }
            let replica = self.replicas.get(group).expect("listed");
            let Role::Primary(primary) = &replica.role else { continue };
            let again = primary.stream.iter().filter(|e| !e.done).map(|e| e.op);
            for key in again.collect::<Vec<u64>>() {
                let op = self.ops.get_mut(key).expect("an operation of the stream lives");
                op.in_flight.remove(member);
                if op.sent.intersects(member) && !op.acked.intersects(member) {
                    self.send_operation(key, member, false, out);
                }
            }
        }
        self.ask_again(now, out);
        self.pump(now, out);
    }

    /// Handles the loss of the link to a device. Cuts a joiner off, so that clients don't wait for
    /// it. Waits for an in-sync replica.
    pub fn peer_down(&mut self, now: Time, device: DeviceId, out: &mut Effects) {
        if self.windows.connect(device, None) {
            self.replicas.unpark_all(&mut self.ops);
        }
        for group in self.replicas.led() {
            if self.replicas.sync_mut(group).is_some_and(|s| s.joiner == Some(device)) {
                self.cut(now, group, out);
            }
        }
        self.pump(now, out);
    }
}
