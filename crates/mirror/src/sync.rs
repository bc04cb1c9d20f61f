//! Settle and resync: one machine that makes peers equal to the primary (rules R6 and R11).
//!
//! The primary asks its peers which blocks may differ, copies these blocks to all of them as writes
//! of its own stream, and seals the peers. A *settle* does this with all other in-sync replicas
//! before the epoch is served. A *join* does it with one joiner while clients write, and ends in
//! **limbo**: acknowledgements need the joiner although it is not in the in-sync set yet. See
//! [`Phase`] for the steps.
//!
//! A joiner that can't follow is **cut off**: its link broke, it has no space, or it stalls. It
//! gets nothing any more, everything that it misses is dirty, clients don't wait for it, and the
//! join starts over with the first question. An in-sync replica is never cut off; the primary waits
//! for it until a new configuration removes it.
//!
//! Invariant: of any two in-sync replicas that differ in a block, one has the block in its dirty
//! set. So no peer is sealed, which clears its dirty set, before every peer has everything.

use crate::members::ReplicaSet;
use crate::mirror::Mirror;
use crate::op::{Copying, Local, Op, Work};
use crate::ops::Ops;
use crate::pace::End;
use crate::replica::{Primary, Replica, Role};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use base::{
    BLOCK, BlockSet, DeviceId, Duration, Epoch, GroupId, Lsn, Mutant, Time, UnitKey, VolumeId,
    mutant,
};
use seam::record::Dirty;
use seam::{Buf, Effects, Note, UnitStore};
use wire::message::{Seal, Sealed, SyncStart, SyncState, SyncWipe};
use wire::records::{self, UnitBlocks};
use wire::{Header, PeerLink, Status};
use zerocopy::IntoBytes;

/// How long until an unanswered or refused question is repeated the first time.
pub(crate) const ASK_AGAIN: Duration = Duration::from_millis(10);
/// The longest such time, after it has doubled with each repetition. Each question restarts the
/// peer's stream, and only the answer to the last question counts. So questions must not be faster
/// than answers, and a whole window of other data may be ahead of a question.
const ASK_AT_LAST: Duration = Duration::from_secs(16);
/// The question that is answered when everything is deleted. No other one has this number.
const WIPED: u64 = 0;

/// The steps of a sync.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// The peers have been asked for their state.
    Ask,
    /// The joiner has been asked to delete everything.
    Wipe,
    /// Blocks are being copied.
    Copy,
    /// Everything has been sent; waits until the peers have all of it. New writes wait.
    Drain,
    /// The peers have been told that they are equal up to this lsn; waits until all have recorded
    /// it. New writes wait.
    Seal(Lsn),
    /// Limbo: the joiner's admission has been requested.
    Admit,
}

/// One sync: a join with a joiner, or a settle with all other in-sync replicas at once.
#[derive(Debug)]
pub(crate) struct Sync {
    /// The peers.
    pub members: ReplicaSet,
    /// The joiner, if this is a join.
    pub joiner: Option<DeviceId>,
    pub phase: Phase,
    /// Everything is copied, not only what may differ.
    pub full: bool,
    /// The peers get every new write.
    pub streaming: bool,
    /// Peers that have told their state.
    told: ReplicaSet,
    /// Peers that have recorded that they are equal.
    sealed: ReplicaSet,
    /// The number of the question that the peers have to answer. An answer to any other one says
    /// nothing about this stream. `None`: a joiner that was cut off was not asked again yet.
    question: Option<u64>,
    /// What [`crate::window::Windows::sends`] was when the peers were asked.
    asked_after: u64,
    /// What [`crate::window::Windows::sends`] was when the peers were sealed.
    pub sealed_after: u64,
    /// The last lsn that went to the peers. Later ones may have gone to other replicas.
    pub sent: Lsn,
    /// How long to wait for an answer.
    patience: Duration,
    /// Blocks that are still to be copied.
    pub todo: Dirty,
    /// Blocks that no in-sync replica can read. They will be tried once more.
    pub unreadable: Dirty,
    /// Blocks that were tried once more. If they fail again, the peers are told that they are lost.
    pub tried: Dirty,
    /// The primary's list of executed writes has changed since the peers were told: they are asked
    /// again.
    pub anew: bool,
    /// The oldest operation that the joiner has not acknowledged, and since when that is so.
    pub unacknowledged: Option<(Lsn, Time)>,
    /// Copies in flight.
    copying: u32,
    /// The group is in `Mirror::copy_queue`.
    queued: bool,
}

impl Sync {
    /// Creates a sync with these replicas, which begins with the question of this number. `last` is
    /// the last lsn of the stream, and `sends` is the present [`crate::window::Windows::sends`].
    pub(crate) fn new(
        members: ReplicaSet,
        joiner: Option<DeviceId>,
        question: u64,
        last: Lsn,
        sends: u64,
    ) -> Sync {
        Sync {
            members,
            joiner,
            phase: Phase::Ask,
            full: false,
            streaming: joiner.is_none(),
            told: ReplicaSet::default(),
            sealed: ReplicaSet::default(),
            question: Some(question),
            asked_after: sends,
            sealed_after: sends,
            sent: last,
            patience: ASK_AGAIN,
            todo: Dirty::default(),
            unreadable: Dirty::default(),
            tried: Dirty::default(),
            anew: false,
            unacknowledged: None,
            copying: 0,
            queued: false,
        }
    }

    /// Returns true for a joiner that gets the stream and that no acknowledgement needs.
    pub(crate) fn can_be_cut(&self) -> bool {
        self.joiner.is_some() && self.streaming && self.phase != Phase::Admit
    }

    /// Returns true if acknowledgements and reads need the joiner.
    pub(crate) fn in_limbo(&self) -> bool {
        self.joiner.is_some() && self.phase == Phase::Admit
    }

    /// Returns the peers whose answers the present phase waits for.
    fn unanswered(&self) -> ReplicaSet {
        let answered = match self.phase {
            Phase::Ask => self.told,
            Phase::Seal(_) => self.sealed,
            _ => ReplicaSet::default(),
        };
        self.members.without(answered)
    }

    /// Returns the peers that get nothing and are asked for their state: a joiner that was cut off,
    /// or whose stream has not begun.
    pub(crate) fn asked(&self) -> ReplicaSet {
        if self.streaming { ReplicaSet::default() } else { self.members }
    }

    /// Returns true if it is known what is to be copied.
    pub(crate) fn has_begun(&self) -> bool {
        !matches!(self.phase, Phase::Ask | Phase::Wipe)
    }

    /// Notes that an operation of the stream goes to these replicas.
    pub(crate) fn enters(&mut self, lsn: Lsn, to: ReplicaSet) {
        if to.intersects(self.members) {
            self.sent = lsn;
        }
    }

    /// The blocks that could not be read are tried once more.
    fn read_again(&mut self) {
        let unreadable = core::mem::take(&mut self.unreadable);
        self.todo.extend(&unreadable);
        self.tried.extend(&unreadable);
    }

    /// Returns true if new writes wait for the seal.
    pub(crate) fn holds_writes(&self) -> bool {
        matches!(self.phase, Phase::Drain | Phase::Seal(_))
    }
}

impl Replica {
    /// All peers have told their state: adds to Todo what this side knows. `reaches`: the dirty
    /// sets of both sides reach back far enough to name every difference.
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
        sync.phase = Phase::Copy;
        if reaches {
            sync.todo.extend(&self.record.dirty);
        }
        if sync.full {
            for unit in store.units(group) {
                sync.todo.insert(unit, store.valid(group, unit));
            }
        }
        if mutant::on(Mutant::NoSettle) && sync.joiner.is_none() {
            sync.todo.clear();
        }
        // What is in flight and was not sent to the peer is in no dirty set yet.
        for entry in primary.stream.iter().filter(|e| !e.done) {
            let op = ops.get(entry.op).expect("an operation of the stream lives");
            if !op.sent.intersects(peer) {
                sync.todo.insert(op.unit, BlockSet::touching(op.at, op.len));
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
        // Until it has read and done what it was sent earlier, the joiner only answers, and its
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
        let header: Header = match sync.phase {
            Phase::Ask => {
                let Some(question) = sync.question else { return };
                let (joiner, all) = (sync.joiner.is_some(), replica.record.all_dirty);
                SyncStart { question, group, epoch, after, joiner, all }.into()
            }
            Phase::Wipe => SyncWipe { question: WIPED, group, epoch }.into(),
            Phase::Seal(lsn) => Seal { group, epoch, lsn }.into(),
            Phase::Copy | Phase::Drain | Phase::Admit => return,
        };
        let body = match sync.phase {
            Phase::Wipe => Buf::EMPTY,
            _ => {
                let list = replica.record.executed.entries();
                out.copy(self.history.records(group, list).as_bytes())
            }
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
        (sync.streaming, sync.phase, sync.question) = (false, Phase::Ask, None);
        (sync.told, sync.sealed) = (ReplicaSet::default(), ReplicaSet::default());
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
            let (phase, joiner, idle) = (sync.phase, sync.joiner, sync.copying == 0);
            let patience = (sync.patience * 2).min(ASK_AT_LAST);
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
        sync.patience = patience;
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
        let (streaming, asked_after, patience) = (sync.streaming, sync.asked_after, sync.patience);
        let idle = sync.copying == 0;
        match sync.phase {
            _ if sync.question != Some(m.question) => return,
            Phase::Wipe => return self.ask_joiner(now, group, from, true, out),
            Phase::Ask => {}
            _ => return,
        }
        self.windows.told(from, group, asked_after);
        if !streaming {
            if !m.more && idle {
                self.restart_stream(now, group, from, patience, out);
            }
            return;
        }
        let replica = self.replicas.get_mut(group).expect("looked up above");
        let Role::Primary(primary) = &mut replica.role else { return };
        let Some(sync) = &mut primary.sync else { return };
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
        sync.told.insert(member);
        sync.full |= !reaches || all;
        out.note(Note::SyncStart { group, peer: from, bytes: sync.todo.bytes(), full: !reaches });
        if sync.told != sync.members && !mutant::on(Mutant::SealEarly) {
            return; // waits for the others: what one peer may lack goes to all
        }
        replica.plan_copies(group, member, reaches, &self.ops, &self.store);
        self.timers.ask_no_more(group);
        self.advance(now, group, out);
    }

    /// A peer can't tell its state now: it may not know the epoch yet.
    fn state_refused(&mut self, now: Time, group: GroupId, question: u64, out: &mut Effects) {
        let Some(sync) = self.replicas.sync_mut(group) else { return };
        let present = sync.phase == Phase::Ask && sync.question == Some(question);
        let patience = sync.patience.min(ASK_AGAIN * 10);
        if sync.joiner.is_some() {
            self.cut(now, group, out);
        }
        if present {
            self.wait_for_answer(now, group, patience);
        }
    }

    /// Tells a joiner to delete what it has of the group: nobody knows what differs in it.
    fn wipe_joiner(&mut self, now: Time, group: GroupId, out: &mut Effects) {
        self.cut(now, group, out);
        if let Some(sync) = self.replicas.sync_mut(group) {
            (sync.phase, sync.question) = (Phase::Wipe, Some(WIPED));
        }
        self.send_question(group, out);
    }

    /// Continues the copy phase, or ends it when everything has been copied.
    pub(crate) fn advance(&mut self, now: Time, group: GroupId, out: &mut Effects) {
        let Some(primary) = self.replicas.primary_mut(group) else { return };
        let drained = primary.stream.is_empty();
        let Some(sync) = &mut primary.sync else { return };
        if sync.phase != Phase::Copy {
            return;
        }
        if !sync.todo.is_empty() {
            if !core::mem::replace(&mut sync.queued, true) {
                self.copies.queue(group);
            }
            return;
        }
        if !sync.unreadable.is_empty() {
            return;
        }
        if mutant::on(Mutant::NoDrain) && sync.joiner.is_some() {
            sync.phase = Phase::Admit;
            return;
        }
        if sync.copying > 0 {
            return;
        }
        if sync.anew {
            let members = sync.members;
            return self.ask_members(now, group, members, out);
        }
        sync.phase = Phase::Drain;
        if drained {
            self.seal(now, group, out);
        }
    }

    /// Seals the peers: everything that was sent has been answered, so they are equal.
    pub(crate) fn seal(&mut self, now: Time, group: GroupId, out: &mut Effects) {
        let sends = self.windows.sends();
        let Some(primary) = self.replicas.primary_mut(group) else { return };
        let Some(sync) = &mut primary.sync else { return };
        (sync.phase, sync.sealed_after) = (Phase::Seal(sync.sent), sends);
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
        let Some(sync) = primary.sync.as_mut().filter(|s| s.unanswered().intersects(member)) else {
            return;
        };
        if sync.phase != Phase::Seal(lsn) {
            return;
        }
        sync.sealed.insert(member);
        out.note(Note::Sealed { group, peer: from, lsn });
        if sync.sealed != sync.members {
            return;
        }
        self.timers.ask_no_more(group);
        if sync.joiner.is_some() {
            sync.phase = Phase::Admit;
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
            sync.queued = false;
            if sync.phase != Phase::Copy {
                continue;
            }
            let Some((unit, run)) = sync.todo.pop_run(most) else {
                self.advance(now, group, out); // the rest belonged to a deleted volume
                continue;
            };
            sync.copying += 1;
            if !sync.todo.is_empty() {
                sync.queued = true;
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
        sync.todo.insert(unit, blocks);
        if sync.phase == Phase::Drain {
            sync.phase = Phase::Copy;
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
            sync.copying -= 1;
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

    /// A link that this device dialled to a replica is welcomed: sends again, in order, what the
    /// replica may lack, as far as there is room.
    pub fn peer_up(&mut self, now: Time, device: DeviceId, link: PeerLink, out: &mut Effects) {
        self.windows.connect(device, Some(link));
        self.leases.hurry(device);
        self.fetch_again(Some(device), out);
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

    /// The link to a device is gone. A joiner is cut off, so that clients don't wait for it. An
    /// in-sync replica is waited for.
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
