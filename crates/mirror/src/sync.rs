//! Settling and resync: one machine that makes a peer equal (rules R6 and R11).
//!
//! The primary asks its peers what may differ, copies that to all of them as writes of its own stream, and
//! seals. Settling does it with all other in-sync members before the epoch is served; a join does it with one
//! device while clients write, and ends in limbo: acknowledgements need the joiner although it isn't in the set yet.
//!
//! Invariant: of any two in-sync members whose content differs in a block, one has the block in its dirty set. So
//! nobody is sealed, and forgets its dirty set, before every peer has everything.

use crate::dirty::Dirty;
use crate::mirror::Mirror;
use crate::op::{Asker, Local, Op, OpKind};
use crate::pace::{End, Pace, Purpose, Turn};
use crate::replica::{Members, Primary, Role};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use base::{
    BLOCK, BlockSet, DeviceId, Duration, Epoch, GroupId, Lsn, Mutant, Time, UnitKey, VolumeId,
    mutant,
};
use seam::{Buf, Effects, Journal, Note};
use wire::records::{self, UnitBlocks};
use wire::{Header, Kind, PeerLink, Status, flag};
use zerocopy::IntoBytes;

/// How long until an unanswered or refused question is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(10);
/// The same, where no answer came again and again: each question begins the peer's stream anew, and an answer that takes longer
/// than until the next one says nothing of that. A whole window of other data may be before the question.
const ASK_AT_LAST: Duration = Duration::from_secs(16);

/// How far a sync is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// The peers were asked for their state.
    Ask,
    /// The joiner was asked to forget everything.
    Wipe,
    /// Blocks are being copied.
    Copy,
    /// All is sent; waiting until all of it is there. New writes wait.
    Drain,
    /// "You are equal": waiting until all peers have noted it. New writes wait.
    Seal(Lsn),
    /// A joiner's admission is asked for: limbo.
    Admit,
}

/// One sync: with a joiner, or, in settling, with all other in-sync members at once.
#[derive(Debug)]
pub(crate) struct Sync {
    /// The peers.
    pub members: Members,
    /// The peer is a joiner: this one.
    pub joiner: Option<DeviceId>,
    pub phase: Phase,
    /// All is copied, not only what may differ.
    pub full: bool,
    /// The peers get every new write.
    pub streaming: bool,
    /// Peers that have told their state, and those that have noted that they are equal.
    told: Members,
    sealed: Members,
    /// The last lsn when the peers were asked: their stream begins behind it.
    asked: Lsn,
    /// What [`Mirror::sends`] was then.
    asked_after: u64,
    /// What it was when they were sealed.
    pub sealed_after: u64,
    /// The last one that went to the peers. Others may have gone to other members since.
    pub sent: Lsn,
    /// How long the answer is waited for.
    patience: Duration,
    /// What is still to be copied.
    pub todo: Dirty,
    /// What can't be read here, while nobody in sync has it: tried once more.
    pub unreadable: Dirty,
    /// What was tried once more: the next time, the peers are told that it is lost.
    pub tried: Dirty,
    /// The list of executed writes that the peers were told is not this side's any more: they are asked anew.
    pub anew: bool,
    /// The oldest operation that a joiner has not answered, and when that was seen first.
    pub owes: Option<(Lsn, Time)>,
    /// Copies in flight.
    copying: u32,
    queued: bool,
}

impl Sync {
    /// One with these members of the group; `last` is the stream's last operation, `sends` what [`Mirror::sends`] is.
    pub fn new(members: Members, joiner: Option<DeviceId>, last: Lsn, sends: u64) -> Sync {
        Sync {
            members,
            joiner,
            phase: Phase::Ask,
            full: false,
            streaming: joiner.is_none(),
            told: Members::default(),
            sealed: Members::default(),
            asked: last,
            asked_after: sends,
            sealed_after: sends,
            sent: last,
            patience: ASK_AGAIN,
            todo: Dirty::default(),
            unreadable: Dirty::default(),
            tried: Dirty::default(),
            anew: false,
            owes: None,
            copying: 0,
            queued: false,
        }
    }

    /// Acknowledgements and reads need the joiner.
    pub fn in_limbo(&self) -> bool {
        self.joiner.is_some() && self.phase == Phase::Admit
    }

    /// Peers whose answer the present phase waits for.
    fn unanswered(&self) -> Members {
        let answered = match self.phase {
            Phase::Ask => self.told,
            Phase::Seal(_) => self.sealed,
            _ => Members::default(),
        };
        self.members.without(answered)
    }

    /// Peers that get nothing, and are asked for their state: a joiner that was cut off.
    pub fn asked(&self) -> Members {
        if self.streaming { Members::default() } else { self.members }
    }

    /// What is to be copied is known.
    pub fn has_begun(&self) -> bool {
        !matches!(self.phase, Phase::Ask | Phase::Wipe)
    }

    /// An operation of the stream goes to these members.
    pub fn enters(&mut self, lsn: Lsn, to: Members) {
        if to.intersects(self.members) {
            self.sent = lsn;
        }
    }

    /// New writes wait for the seal.
    pub fn holds_writes(&self) -> bool {
        matches!(self.phase, Phase::Drain | Phase::Seal(_))
    }
}

impl<J: Journal> Mirror<J> {
    pub(crate) fn sync_mut(&mut self, group: GroupId) -> Option<&mut Sync> {
        self.replicas.get_mut(group)?.primary()?.sync.as_mut()
    }

    /// Starts to bring a joiner up to date, or starts it over. `idle`: it has done what it was sent in this group, as it
    /// has said.
    pub(crate) fn ask_joiner(
        &mut self,
        now: Time,
        group: GroupId,
        joiner: DeviceId,
        idle: bool,
        out: &mut Effects,
    ) {
        // Before it has read, and done, what it was sent earlier it only answers: its stream begins with the next question.
        let (streaming, sends) = (idle && self.is_clear(joiner, group), self.sends);
        let Some(replica) = self.replicas.get_mut(group) else { return };
        let member = replica.config.member(joiner);
        let Some(primary) = replica.primary() else { return };
        let sync = Sync::new(member, Some(joiner), primary.last, sends);
        primary.sync = Some(Sync { streaming, ..sync });
        self.joining.insert(group);
        self.asking.insert(group, now + ASK_AGAIN);
        self.send_question(group, out);
    }

    /// Starts to settle with these in-sync members.
    pub(crate) fn ask_members(
        &mut self,
        now: Time,
        group: GroupId,
        members: Members,
        out: &mut Effects,
    ) {
        let sends = self.sends;
        let Some(primary) = self.replicas.get_mut(group).and_then(|r| r.primary()) else { return };
        primary.sync = Some(Sync::new(members, None, primary.last, sends));
        self.asking.insert(group, now + ASK_AGAIN);
        self.send_question(group, out);
    }

    /// Sends, or sends again, what the present phase waits for, to those who have not answered.
    fn send_question(&mut self, group: GroupId, out: &mut Effects) {
        let Some(replica) = self.replicas.get(group) else { return };
        let Role::Primary(Primary { sync: Some(sync), last, .. }) = &replica.role else { return };
        let last = *last;
        let (mut header, body) = match sync.phase {
            Phase::Ask => {
                let mut header = self.header(Kind::SyncStart, group);
                header.flags = if sync.joiner.is_some() { flag::JOINER } else { 0 }
                    | if replica.record.all_dirty { flag::ALL } else { 0 };
                header.lsn = last.0.into();
                let records = self.executed_records(group);
                (header, out.copy(records.as_bytes()))
            }
            Phase::Wipe => (self.header(Kind::SyncWipe, group), Buf::EMPTY),
            Phase::Seal(lsn) => {
                let records = self.executed_records(group);
                let mut header = self.header(Kind::Seal, group);
                header.lsn = lsn.0.into();
                (header, out.copy(records.as_bytes()))
            }
            Phase::Copy | Phase::Drain | Phase::Admit => return,
        };
        header.op = last.0.into();
        for peer in replica.config.devices(sync.unanswered()) {
            self.send_peer(peer, header, body.clone(), out);
        }
    }

    /// The joiner can't follow: from now on it gets nothing, and everything that it misses is dirty.
    /// Clients don't notice. Asks again.
    pub(crate) fn cut(&mut self, now: Time, group: GroupId, out: &mut Effects) {
        let Some(replica) = self.replicas.get_mut(group) else { return };
        let Role::Primary(primary) = &mut replica.role else { return };
        let Some(sync) = &mut primary.sync else { return };
        if sync.joiner.is_none() || sync.phase == Phase::Admit || !sync.streaming {
            return;
        }
        let member = sync.members;
        (sync.streaming, sync.phase) = (false, Phase::Ask);
        (sync.told, sync.sealed) = (Members::default(), Members::default());
        let pending: Vec<u64> = primary.stream.iter().filter(|e| !e.done).map(|e| e.op).collect();
        for key in pending {
            let op = self.ops.get_mut(key).expect("an operation of the stream lives");
            op.sent.remove(member);
            self.check_write(now, key, out);
        }
        self.asking.insert(group, now + ASK_AGAIN);
        self.unpark(group);
    }

    /// Asks again where no answer came.
    pub(crate) fn ask_again(&mut self, now: Time, out: &mut Effects) {
        let due: Vec<GroupId> =
            self.asking.iter().filter(|(_, at)| **at <= now).map(|(g, _)| *g).collect();
        for group in due {
            self.asking.insert(group, now + ASK_AGAIN * 10);
            let Some(sync) = self.sync_mut(group) else {
                self.asking.remove(&group);
                continue;
            };
            let (phase, joiner, idle) = (sync.phase, sync.joiner, sync.copying == 0);
            let patience = (sync.patience * 2).min(ASK_AT_LAST);
            let asked = sync.unanswered();
            let connected = |peer| self.is_linked(peer);
            if !self.replicas[group].config.devices(asked).any(connected) {
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
                Phase::Copy => self.read_again(now, group, out),
                Phase::Drain | Phase::Admit => drop(self.asking.remove(&group)),
            }
        }
    }

    /// The question is asked again after this time.
    fn wait_for_answer(&mut self, now: Time, group: GroupId, patience: Duration) {
        let Some(sync) = self.sync_mut(group) else { return };
        sync.patience = patience;
        self.asking.insert(group, now + patience);
    }

    /// A peer told its state.
    pub fn sync_state_in(
        &mut self,
        now: Time,
        from: DeviceId,
        h: &Header,
        body: &Buf,
        out: &mut Effects,
    ) {
        let group = GroupId(h.group.get());
        let told = records::read::<UnitBlocks>(body).unwrap_or(&[]).iter().map(|e| e.key().volume);
        let gone: BTreeSet<VolumeId> = told.filter(|volume| self.is_gone(*volume)).collect();
        let Some(replica) = self.replicas.get_mut(group) else { return };
        if replica.config.epoch.0 != h.epoch.get() {
            return;
        }
        let member = replica.config.member(from);
        let Role::Primary(primary) = &mut replica.role else { return };
        let Some(sync) = primary.sync.as_mut().filter(|s| s.unanswered().intersects(member)) else {
            return;
        };
        let Some(list) = records::read::<UnitBlocks>(body) else { return };
        if h.status.get() != Status::Ok as u16 {
            let present = sync.phase == Phase::Ask && h.op.get() == sync.asked.0;
            let patience = sync.patience.min(ASK_AGAIN * 10);
            if sync.joiner.is_some() {
                self.cut(now, group, out);
            }
            if present {
                self.wait_for_answer(now, group, patience); // it doesn't know this epoch yet
            }
            return;
        }
        // It follows me in this epoch, so it serves by no lease of an older one (rule R4, case b).
        replica.promises.retain(|(device, _)| *device != from);
        let (streaming, asked_after, patience) = (sync.streaming, sync.asked_after, sync.patience);
        let idle = sync.copying == 0;
        match sync.phase {
            Phase::Wipe => return self.ask_joiner(now, group, from, true, out),
            // An answer to an older question says nothing of this stream.
            Phase::Ask if h.op.get() == sync.asked.0 => {}
            _ => return,
        }
        self.has_told(from, group, asked_after);
        if !streaming {
            // Copies of before end in this sync. `ask_again` asks when they have.
            if !h.has(flag::MORE) && idle && self.is_behind(from) {
                self.wait_for_answer(now, group, ASK_AGAIN * 10); // its stream would find no room
            } else if !h.has(flag::MORE) && idle {
                // This answer took as long as the next one will.
                self.ask_joiner(now, group, from, true, out);
                self.wait_for_answer(now, group, patience);
            }
            return self.pump(now, out);
        }
        let replica = self.replicas.get_mut(group).expect("looked up above");
        let Role::Primary(primary) = &mut replica.role else { return };
        let Some(sync) = &mut primary.sync else { return };
        let forget = mutant::on(match sync.joiner {
            Some(_) => Mutant::IgnoreJoinerDirty,
            None => Mutant::IgnorePeerDirty,
        });
        for entry in list.iter().filter(|e| !forget && !gone.contains(&e.key().volume)) {
            sync.todo.insert(entry.key(), entry.set());
        }
        if h.has(flag::MORE) {
            return;
        }
        let empty = h.has(flag::FULL);
        let all = replica.record.all_dirty || h.has(flag::ALL);
        let reaches = sync.joiner.is_none()
            || (Epoch(h.lsn.get()) >= replica.record.base && !all)
            || mutant::on(Mutant::IgnoreBase);
        if !reaches && !empty {
            self.cut(now, group, out);
            if let Some(sync) = self.sync_mut(group) {
                sync.phase = Phase::Wipe;
            }
            return self.send_question(group, out);
        }
        sync.told.insert(member);
        sync.full |= !reaches || all;
        out.note(Note::SyncStart { group, peer: from, bytes: sync.todo.bytes(), full: !reaches });
        if sync.told != sync.members {
            return; // what any of them may lack goes to all
        }
        sync.phase = Phase::Copy;
        if reaches {
            sync.todo.extend(&replica.record.dirty);
        }
        if sync.full {
            for unit in self.journal.units(group) {
                sync.todo.insert(unit, self.journal.valid(group, unit));
            }
        }
        if mutant::on(Mutant::NoSettle) && sync.joiner.is_none() {
            sync.todo.clear();
        }
        // What is in flight and was not sent to the peer is in no dirty set yet.
        for entry in primary.stream.iter().filter(|e| !e.done) {
            let op = self.ops.get(entry.op).expect("an operation of the stream lives");
            if !op.sent.intersects(member) {
                sync.todo.insert(op.unit, BlockSet::touching(op.at, op.len));
            }
        }
        self.asking.remove(&group);
        self.advance(now, group, out);
        self.pump(now, out);
    }

    /// Goes on when a phase may be over.
    pub(crate) fn advance(&mut self, now: Time, group: GroupId, out: &mut Effects) {
        let Some(primary) = self.replicas.get_mut(group).and_then(|r| r.primary()) else { return };
        let drained = primary.stream.is_empty();
        let Some(sync) = &mut primary.sync else { return };
        if sync.phase != Phase::Copy {
            return;
        }
        if !sync.todo.is_empty() {
            if !core::mem::replace(&mut sync.queued, true) {
                self.copy_queue.push_back(group);
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

    /// Everything that was sent is there: all peers are equal.
    pub(crate) fn seal(&mut self, now: Time, group: GroupId, out: &mut Effects) {
        let sends = self.sends;
        let Some(primary) = self.replicas.get_mut(group).and_then(|r| r.primary()) else { return };
        let Some(sync) = &mut primary.sync else { return };
        (sync.phase, sync.sealed_after) = (Phase::Seal(sync.sent), sends);
        self.asking.insert(group, now + ASK_AGAIN);
        self.send_question(group, out);
    }

    /// A peer has noted that it is equal. When all have, so does this one.
    pub fn sealed_in(&mut self, now: Time, from: DeviceId, h: &Header, out: &mut Effects) {
        let group = GroupId(h.group.get());
        let Some(replica) = self.replicas.get_mut(group) else { return };
        let member = replica.config.member(from);
        if replica.config.epoch.0 != h.epoch.get() || h.status.get() != Status::Ok as u16 {
            return;
        }
        let Role::Primary(primary) = &mut replica.role else { return };
        let Some(sync) = primary.sync.as_mut().filter(|s| s.unanswered().intersects(member)) else {
            return;
        };
        if sync.phase != Phase::Seal(Lsn(h.lsn.get())) {
            return;
        }
        sync.sealed.insert(member);
        out.note(Note::Sealed { group, peer: from, lsn: Lsn(h.lsn.get()) });
        if sync.sealed != sync.members {
            return;
        }
        self.asking.remove(&group);
        if sync.joiner.is_some() {
            sync.phase = Phase::Admit;
            self.ready_to_admit = true;
            self.unpark(group);
            return self.pump(now, out);
        }
        primary.sync = None;
        if mutant::on(Mutant::SealOneByOne)
            && let Some(next) = replica.next_in_sync(Some(from), self.me)
        {
            return self.ask_members(now, group, next, out);
        }
        replica.record.base = replica.config.epoch;
        replica.record.clean();
        self.change_to(group);
        self.activate(now, group, out);
    }

    /// Groups whose joiners wait to be admitted, with epoch and joiner.
    pub fn admissions(&self) -> Vec<(GroupId, Epoch, DeviceId)> {
        let limbo = |r: &crate::replica::Replica| match &r.role {
            Role::Primary(Primary { sync: Some(sync), .. }) if sync.in_limbo() => {
                sync.joiner.map(|joiner| (r.config.epoch, joiner))
            }
            _ => None,
        };
        let mut all: Vec<_> = self
            .replicas
            .iter()
            .filter_map(|(group, r)| limbo(r).map(|(epoch, peer)| (group, epoch, peer)))
            .collect();
        all.sort_unstable();
        all
    }

    // ---- copies ----

    /// The first group in turn whose copies aren't held back, and what they are for. A group whose stream is full waits:
    /// what is copied stays in it until the oldest write is done.
    fn next_to_copy(&mut self, now: Time) -> Option<(GroupId, Purpose)> {
        self.copy_at = None;
        if self.copy_queue.is_empty() || self.copies >= Pace::most(&self.limits) {
            return None;
        }
        let turns = Purpose::ALL
            .map(|p| (p, self.pace.turn(now, End::Source, p, self.copies, &self.limits)));
        let turn = |purpose| turns.iter().find(|t| t.0 == purpose).map(|t| t.1);
        let waits = |group: &GroupId| match self.replicas.get(*group).map(|r| &r.role) {
            Some(Role::Primary(primary)) => !primary.has_room(&self.limits),
            _ => false,
        };
        let may = |group: &GroupId| turn(self.purpose(*group)) == Some(Turn::Now) && !waits(group);
        let place = self.copy_queue.iter().position(may);
        if place.is_none() {
            let at = |t: &(Purpose, Turn)| if let Turn::At(at) = t.1 { Some(at) } else { None };
            self.copy_at = turns.iter().filter_map(at).min();
        }
        let group = self.copy_queue.remove(place?)?;
        Some((group, self.purpose(group)))
    }

    fn purpose(&self, group: GroupId) -> Purpose {
        let Some(replica) = self.replicas.get(group) else { return Purpose::Settle };
        match &replica.role {
            Role::Primary(Primary { sync: Some(sync), .. }) if sync.joiner.is_some() => {
                match sync.full {
                    _ if !replica.is_solo() => Purpose::Move,
                    true => Purpose::Rebuild,
                    false => Purpose::Return,
                }
            }
            _ => Purpose::Settle,
        }
    }

    /// True where copies may wait for clients of who receives them.
    pub(crate) fn yields(&self, group: GroupId) -> bool {
        matches!(self.purpose(group), Purpose::Rebuild | Purpose::Move)
    }

    /// Starts copies, group by group in turn, as far as the limits allow.
    pub(crate) fn start_copies(&mut self, now: Time, out: &mut Effects) {
        while let Some((group, purpose)) = self.next_to_copy(now) {
            let most = (self.pace.len(now, purpose, &self.limits) / BLOCK).max(1);
            let Some(sync) = self.sync_mut(group) else { continue };
            sync.queued = false;
            if sync.phase != Phase::Copy {
                continue;
            }
            let Some((unit, run)) = sync.todo.pop_run(most) else {
                self.advance(now, group, out); // a deleted volume took the rest
                continue;
            };
            sync.copying += 1;
            if !sync.todo.is_empty() {
                sync.queued = true;
                self.copy_queue.push_back(group);
            }
            self.copies += 1;
            let (at, len) = (run.start * BLOCK, (run.end - run.start) * BLOCK);
            self.pace.begun(now, purpose);
            let op = Op::new(
                group,
                OpKind::Copy,
                unit,
                at,
                len,
                Asker::Sync { since: now, read: Duration::ZERO },
            );
            let key = self.insert_op(op);
            self.queue(key);
        }
    }

    /// The joiner could not write these blocks, of which it has damaged ones. Clients don't wait for it, so the
    /// write's range may be free, and another write under way there: they are copied, as what else may differ.
    pub(crate) fn copy_anew(
        &mut self,
        now: Time,
        group: GroupId,
        unit: UnitKey,
        blocks: BlockSet,
        out: &mut Effects,
    ) {
        let Some(sync) = self.sync_mut(group) else { return };
        sync.todo.insert(unit, blocks);
        if sync.phase == Phase::Drain {
            sync.phase = Phase::Copy;
            self.unpark(group);
        }
        self.advance(now, group, out);
    }

    /// A copy has its range. Blocks without data are sent as zeros; a mixed run is split.
    pub(crate) fn start_copy(&mut self, now: Time, key: u64, out: &mut Effects) {
        let op = self.ops.get(key).expect("the operation lives");
        let (group, unit, first) = (op.group, op.unit, op.at / BLOCK);
        if self.is_gone(unit.volume) {
            self.drop_copy(key);
            return self.advance(now, group, out);
        }
        let op = self.ops.get_mut(key).expect("the operation lives");
        let end = (op.at + op.len) / BLOCK;
        let valid = self.journal.valid(group, unit);
        let data = valid.contains(first);
        let split = (first..end).find(|b| valid.contains(*b) != data).unwrap_or(end);
        op.len = (split - first) * BLOCK;
        if let Some(sync) = self.sync_mut(group) {
            sync.todo.insert(unit, BlockSet::from_range(split..end));
        }
        if data {
            self.start_job(now, key, out);
        } else {
            self.ops.get_mut(key).expect("the operation lives").local = Local::Done;
            self.send_copy(now, key, Buf::EMPTY, None, out);
        }
    }

    /// The copy's data is here (empty: zeros): it takes its place in the stream.
    pub(crate) fn send_copy(
        &mut self,
        now: Time,
        key: u64,
        data: Buf,
        crc: Option<u32>,
        out: &mut Effects,
    ) {
        let op = self.ops.get_mut(key).expect("the operation lives");
        if let Asker::Sync { since, read } = &mut op.asker {
            *read = now.since(*since);
        }
        let sum = || if data.is_empty() { 0 } else { base::crc::crc32c(&data) };
        op.body_crc = crc.unwrap_or_else(sum);
        op.body = data;
        let replica = self.replicas.get_mut(op.group).expect("the operation's replica is here");
        let Role::Primary(primary) = &mut replica.role else { return };
        let Some(sync) = &primary.sync else { return };
        let to = if sync.streaming { sync.members } else { Members::default() };
        if to.is_empty() {
            // Cut off while the data was read: start over with the next question.
            return self.drop_copy(key);
        }
        op.lsn = primary.enter(key, to);
        op.sent = to;
        self.replicate(key, to, out);
    }

    pub(crate) fn drop_copy(&mut self, key: u64) {
        let op = self.remove_op(key).expect("the operation lives");
        self.copies -= 1;
        self.unlock(op.group, key);
        if let Some(sync) = self.sync_mut(op.group) {
            sync.copying -= 1;
        }
    }

    /// A copy may be there now.
    pub(crate) fn check_copy(&mut self, now: Time, key: u64, out: &mut Effects) {
        let op = self.ops.get(key).expect("the operation lives");
        if op.lsn.0 == 0 || !op.acked.contains_all(op.sent) {
            return;
        }
        let (group, lsn, sent, moved) = (op.group, op.lsn, op.sent, op.body.len() as u64);
        if let Asker::Sync { since, read } = op.asker {
            let (purpose, len) = (self.purpose(group), op.len);
            // Where the other end keeps its own pace, what passes there says nothing of this device.
            let paced = self.pace.is_by_latency(purpose);
            let took = if paced { read } else { now.since(since) };
            self.pace.ended(now, End::Source, purpose, took, since, len);
        }
        self.drop_copy(key);
        for peer in self.replicas[group].config.devices(sent).filter(|_| moved > 0) {
            self.stats.moved += moved;
            out.note(Note::Copied { group, peer, bytes: moved });
        }
        self.leave_stream(now, group, lsn, out);
        self.advance(now, group, out);
    }

    // ---- peers ----

    /// A link that I dialled to a member is welcomed: sends again what it may not have, as its answers make room.
    pub fn peer_up(&mut self, now: Time, device: DeviceId, link: PeerLink, out: &mut Effects) {
        self.link_peer(device, Some(link));
        self.leases.hurry(device);
        self.fetch_again(Some(device), out);
        for group in self.led() {
            let replica = self.replicas.get(group).expect("listed");
            let member = replica.config.member(device);
            let Role::Primary(primary) = &replica.role else { continue };
            let mine = primary.sync.as_ref().filter(|s| s.members.intersects(member));
            match mine.map(|s| s.phase) {
                // What can't be read has its own time, and it is the device's.
                None | Some(Phase::Copy) => {}
                Some(phase) => {
                    self.asking.insert(group, now);
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
                op.flying.remove(member);
                if op.sent.intersects(member) && !op.acked.intersects(member) {
                    self.replicate(key, member, out);
                }
            }
        }
        self.ask_again(now, out);
        self.pump(now, out);
    }

    /// That link is gone. A joiner is cut off, so that clients don't wait for it; an in-sync member is
    /// waited for.
    pub fn peer_down(&mut self, now: Time, device: DeviceId, out: &mut Effects) {
        if self.link_peer(device, None) {
            self.unpark_all();
        }
        for group in self.led() {
            if self.sync_mut(group).is_some_and(|s| s.joiner == Some(device)) {
                self.cut(now, group, out);
            }
        }
        self.pump(now, out);
    }
}
