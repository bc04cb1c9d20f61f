//! How a primary carries out syncs (rules R6 and R11): the questions to peers, their answers, and
//! the seals. [`crate::sync`] decides the next step of a sync, and [`crate::copies`] copies blocks.

use crate::jobs::Step;
use crate::members::ReplicaSet;
use crate::ops::Ops;
use crate::peers::Peers;
use crate::replica::{Primary, Replica, Role};
use crate::shard::Shard;
use crate::sync::{ASK_AGAIN, ASK_AT_LAST, Answer, Next, Phase};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use base::{DeviceId, Duration, Epoch, GroupId, Mutant, Time, VolumeId, mutant};
use seam::{Buf, Effects, Note, UnitStore};
use wire::Status;
use wire::message::{Sealed, SyncState};
use wire::records::{self, UnitBlocks};
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
        let ignored = sync.joiner.is_none() && mutant::on(Mutant::IgnoreOwnDirty);
        if reaches && !ignored {
            sync.todo.extend(&self.record.dirty);
        }
        if sync.is_full() {
            for unit in store.units(group) {
                sync.todo.insert(unit, store.valid(group, unit));
            }
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

impl Peers {
    /// Starts to fill a joiner, or starts it over. `idle`: the joiner has said that it has done
    /// everything that it was sent in this group.
    pub(crate) fn ask_joiner<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        group: GroupId,
        joiner: DeviceId,
        idle: bool,
        out: &mut Effects,
    ) {
        // Until the joiner has read and done all earlier operations, it only answers, and its
        // stream begins with the next question.
        let streaming = idle && shard.windows.is_clear(joiner, group);
        let sends = shard.windows.sends();
        let Some(replica) = shard.replicas.get_mut(group) else { return };
        let member = replica.config.member(joiner);
        let Some(primary) = replica.primary() else { return };
        primary.ask(member, Some(joiner), sends).streaming = streaming;
        self.timers.join(group);
        self.timers.ask_at(group, now + ASK_AGAIN);
        self.send_question(shard, group, out);
    }

    /// Starts to settle with these in-sync replicas.
    pub(crate) fn ask_members<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        group: GroupId,
        members: ReplicaSet,
        out: &mut Effects,
    ) {
        assert!(!members.is_empty(), "{group} settles with its other in-sync replicas");
        let sends = shard.windows.sends();
        let Some(primary) = shard.replicas.primary_mut(group) else { return };
        primary.ask(members, None, sends);
        self.timers.ask_at(group, now + ASK_AGAIN);
        self.send_question(shard, group, out);
    }

    /// Sends the question of the present phase, or repeats it, to the peers that have not answered.
    pub(crate) fn send_question<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        group: GroupId,
        out: &mut Effects,
    ) {
        let Some(replica) = shard.replicas.get(group) else { return };
        let Role::Primary(Primary { sync: Some(sync), last, .. }) = &replica.role else { return };
        let (after, epoch) = (*last, replica.config.epoch);
        let all = replica.record.all_dirty;
        let Some((header, with_list)) = sync.question(group, epoch, after, all) else { return };
        let body = if with_list {
            let list = replica.record.executed.entries();
            out.copy(shard.history.records(group, list).as_bytes())
        } else {
            Buf::EMPTY
        };
        for peer in replica.config.devices(sync.unanswered()) {
            shard.windows.send_frame(peer, header, body.clone(), out);
        }
    }

    /// Cuts the joiner off because it can't follow: from now on it gets nothing, and everything
    /// that it misses is dirty. Clients don't notice. The joiner is asked again later.
    pub(crate) fn cut<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        group: GroupId,
        out: &mut Effects,
    ) {
        let Some(replica) = shard.replicas.get_mut(group) else { return };
        let Role::Primary(primary) = &mut replica.role else { return };
        let Some(sync) = &mut primary.sync else { return };
        if !sync.can_be_cut() {
            return;
        }
        let member = sync.members;
        sync.cut_off();
        let pending: Vec<u64> = primary.stream.iter().filter(|e| !e.done).map(|e| e.op).collect();
        for key in pending {
            let op = shard.ops.get_mut(key).expect("an operation of the stream lives");
            op.sent.remove(member);
            self.check_sent(shard, now, key, out);
        }
        self.timers.ask_at(group, now + ASK_AGAIN);
        shard.replicas.retry(&mut shard.ops, group);
    }

    /// Repeats the questions that were not answered in time.
    pub(crate) fn ask_again<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        out: &mut Effects,
    ) {
        for group in self.timers.to_ask(now) {
            self.timers.ask_at(group, now + ASK_AGAIN * 10);
            let Some(sync) = shard.replicas.sync_mut(group) else {
                self.timers.ask_no_more(group);
                continue;
            };
            let (phase, joiner, idle) = (sync.phase, sync.joiner, sync.is_idle());
            let patience = (sync.patience() * 2).min(ASK_AT_LAST);
            let asked = sync.unanswered();
            let connected = |peer| shard.windows.link(peer).is_some();
            if !shard.replicas.of(group).config.devices(asked).any(connected) {
                continue;
            }
            match phase {
                Phase::Ask if idle => {
                    match joiner {
                        Some(joiner) => {
                            self.cut(shard, now, group, out);
                            self.ask_joiner(shard, now, group, joiner, false, out);
                        }
                        None => self.send_question(shard, group, out),
                    }
                    self.wait_for_answer(shard, now, group, patience);
                }
                Phase::Ask => {}
                Phase::Wipe | Phase::Seal(_) => self.send_question(shard, group, out),
                Phase::Copy => {
                    shard.replicas.sync_mut(group).expect("it is in this phase").read_again();
                    self.timers.ask_no_more(group);
                    self.advance(shard, now, group, out);
                }
                Phase::Drain | Phase::Admit => self.timers.ask_no_more(group),
            }
        }
    }

    /// Has the question repeated after this time.
    pub(crate) fn wait_for_answer<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        group: GroupId,
        patience: Duration,
    ) {
        let Some(sync) = shard.replicas.sync_mut(group) else { return };
        sync.be_patient(patience);
        self.timers.ask_at(group, now + patience);
    }

    /// Takes a peer's state.
    pub(crate) fn take_state<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        from: DeviceId,
        m: &SyncState,
        body: &Buf,
        out: &mut Effects,
    ) {
        let group = m.group;
        let told = records::read::<UnitBlocks>(body).unwrap_or(&[]).iter().map(|e| e.key().volume);
        let gone: BTreeSet<VolumeId> = told.filter(|volume| shard.known.is_gone(*volume)).collect();
        let Some(replica) = shard.replicas.get_mut(group) else { return };
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
            return self.state_refused(shard, now, group, m.question, out);
        }
        // The peer acts in this epoch, so it serves no reads by a lease of an older one (rule R4,
        // case b).
        replica.promises.retain(|(device, _)| *device != from);
        match sync.answer(m.question) {
            Answer::Old => return,
            Answer::Wiped => return self.ask_joiner(shard, now, group, from, true, out),
            Answer::State => {}
        }
        shard.windows.state_reported(from, group, sync.asked_after());
        if !sync.streaming {
            let patience = sync.patience();
            if !m.more && sync.is_idle() {
                self.restart_stream(shard, now, group, from, patience, out);
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
            return self.wipe_joiner(shard, now, group, out);
        }
        out.note(Note::SyncStart { group, peer: from, bytes: sync.todo.bytes(), full: !reaches });
        if !sync.tells(member, reaches, all) {
            return;
        }
        replica.plan_copies(group, member, reaches, &shard.ops, &shard.store);
        self.timers.ask_no_more(group);
        self.advance(shard, now, group, out);
    }

    /// Handles a peer that can't tell its state now: it may not know the epoch yet.
    fn state_refused<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        group: GroupId,
        question: u64,
        out: &mut Effects,
    ) {
        let Some(sync) = shard.replicas.sync_mut(group) else { return };
        let patience = sync.refused(question);
        if sync.joiner.is_some() {
            self.cut(shard, now, group, out);
        }
        if let Some(patience) = patience {
            self.wait_for_answer(shard, now, group, patience);
        }
    }

    /// Tells a joiner to delete what it has of the group, because it is unknown what differs in it.
    fn wipe_joiner<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        group: GroupId,
        out: &mut Effects,
    ) {
        self.cut(shard, now, group, out);
        let Some(primary) = shard.replicas.primary_mut(group) else { return };
        primary.questions += 1;
        if let Some(sync) = &mut primary.sync {
            sync.wipe(primary.questions);
        }
        self.send_question(shard, group, out);
    }

    /// Continues the copy phase, or ends it when everything has been copied.
    pub(crate) fn advance<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        group: GroupId,
        out: &mut Effects,
    ) {
        let Some(primary) = shard.replicas.primary_mut(group) else { return };
        let drained = primary.stream.is_empty();
        let Some(sync) = &mut primary.sync else { return };
        match sync.next(drained) {
            Next::Wait => {}
            Next::Queue => self.copies.queue(group),
            Next::Ask => {
                let members = sync.members;
                self.ask_members(shard, now, group, members, out);
            }
            Next::Seal => self.seal(shard, now, group, out),
        }
    }

    /// Seals the peers: everything that was sent has been answered, so they are equal. Does nothing
    /// if the sync doesn't drain any more, or if operations have come since.
    pub(crate) fn seal<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        group: GroupId,
        out: &mut Effects,
    ) {
        let sends = shard.windows.sends();
        let Some(primary) = shard.replicas.primary_mut(group) else { return };
        let Some(sync) = &mut primary.sync else { return };
        if sync.phase != Phase::Drain || !primary.stream.is_empty() {
            return;
        }
        sync.seal(sends);
        self.timers.ask_at(group, now + ASK_AGAIN);
        self.send_question(shard, group, out);
    }

    /// Takes a peer's confirmation of its seal. When all have confirmed, this replica counts as
    /// equal, too. Returns false if that gives the loop nothing to do.
    pub(crate) fn sealed_in<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        from: DeviceId,
        m: &Sealed,
        out: &mut Effects,
    ) -> bool {
        let Sealed { group, lsn, .. } = *m;
        let Some(replica) = shard.replicas.get_mut(group) else { return false };
        let member = replica.config.member(from);
        if replica.config.epoch != m.epoch || m.status != Status::Ok {
            return false;
        }
        let Role::Primary(primary) = &mut replica.role else { return false };
        let Some(sync) = &mut primary.sync else { return false };
        let Some(all) = sync.confirms(member, lsn) else { return false };
        out.note(Note::Sealed { group, peer: from, lsn });
        if !all {
            return false;
        }
        self.timers.ask_no_more(group);
        if sync.joiner.is_some() {
            sync.admit();
            self.ready_to_admit = true;
            shard.replicas.retry(&mut shard.ops, group);
            return true;
        }
        assert!(!primary.active, "{group} settles before it is served (R6)");
        primary.sync = None;
        replica.record.base = replica.config.epoch;
        replica.record.clean();
        shard.change_to(group);
        shard.jobs.push_step(Step::Activate(group));
        true
    }

    // ---- reports ----

    /// Returns the groups in which a new replica is being filled while another one is out of sync,
    /// with the bytes that are still to be copied and the bytes that the other one lacks.
    pub(crate) fn moves<S: UnitStore>(&self, shard: &Shard<S>) -> Vec<(GroupId, u64, u64)> {
        let told = |group: GroupId| {
            let r = shard.replicas.get(group)?;
            let Role::Primary(Primary { sync: Some(sync), .. }) = &r.role else { return None };
            let begun = sync.joiner.is_some()
                && sync.has_begun()
                && r.is_only_in_sync()
                && r.config.replicas.len() > 2;
            let missed = if r.record.all_dirty { u64::MAX } else { r.record.dirty.bytes() };
            begun.then(|| (group, sync.todo.bytes(), missed))
        };
        self.timers.joining().filter_map(told).collect()
    }

    /// Returns the groups whose joiners wait for their admission, with epoch and joiner.
    pub(crate) fn admissions<S: UnitStore>(
        &self,
        shard: &Shard<S>,
    ) -> Vec<(GroupId, Epoch, DeviceId)> {
        let limbo = |group: GroupId| {
            let replica = shard.replicas.get(group)?;
            match &replica.role {
                Role::Primary(Primary { sync: Some(sync), .. }) if sync.in_limbo() => {
                    Some((group, replica.config.epoch, sync.joiner?))
                }
                _ => None,
            }
        };
        self.timers.joining().filter_map(limbo).collect()
    }
}
