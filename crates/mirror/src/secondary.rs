//! The secondary and the joiner: they execute a primary's stream in order, and tell a sync which
//! blocks may differ.
//!
//! A write is *uncertain* while it is above the commit point, because another replica may lack it.
//! When a configuration ends, uncertain writes go to the dirty set.
//!
//! Invariants:
//! - Frames count only if they come from the primary of the present epoch (R2).
//! - Every frame of a stream is taken once, in order of the lsns, and overlapping ones are executed
//!   in that order. After a gap the link is closed, and the primary sends again what was not
//!   answered.
//! - Before its own seal a replica forgets nothing by the commit point (R6).
//! - A seal clears the dirty set only if its lsn is the last one that arrived, and it is answered
//!   when that is durable (R6).
//! - A question begins the stream again. It is answered when every write and every seal before it
//!   is durable, and the answer to an earlier seal is left out.

use crate::executed::from_records;
use crate::jobs::Waiting;
use crate::mirror::Mirror;
use crate::op::{Asker, Op, Streamed, Work, fits};
use crate::replica::Role;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use base::{BLOCK, BlockSet, DeviceId, Epoch, GroupId, Lsn, Mutant, Time, UnitKey, mutant};
use seam::record::{Dirty, ExecutedList};
use seam::{Buf, Change, Effect, Effects, Forgotten, Note, UnitStore};
use wire::message::{
    Commit, Replicate, Replicated, Seal, Sealed, Sender, SyncStart, SyncState, SyncWipe, UnitRange,
};
use wire::records::{self, Executed, UnitBlocks};
use wire::{Body, Header, PeerLink, Status};
use zerocopy::IntoBytes;

/// The reason for closing a link whose stream has a gap. The primary then sends again what was not
/// answered.
pub const GAP: &str = "a gap in the stream of replicated writes";

/// Number of uncertain writes before the seal beyond which they are kept as dirty blocks instead.
pub(crate) const UNCERTAIN_MAX: usize = 256;

/// Where a frame belongs in the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// Before the primary's question, so nothing is known of the stream.
    Early,
    /// It was taken before.
    Again,
    /// Next.
    Next,
    /// Behind frames that have not come.
    Gap,
}

/// The state of a secondary or joiner in one epoch.
#[derive(Debug)]
pub(crate) struct Secondary {
    primary: DeviceId,
    /// A joiner whose seal is not durable yet: it may lack acknowledged writes.
    joiner: bool,
    /// The primary has asked for this replica's state in this epoch, so its stream may come.
    started: bool,
    /// The last lsn that has arrived.
    last: Lsn,
    /// Writes above the commit point, in order; before the seal, all writes.
    uncertain: VecDeque<(Lsn, UnitKey, BlockSet)>,
    /// Writes that are not durable yet, with their operations.
    running: Vec<(Lsn, u64)>,
    /// Writes that were refused, and why: no space, or damaged blocks.
    refused: Vec<(Lsn, Status)>,
    /// The lsn of the seal, when it is durable.
    sealed: Option<Lsn>,
    /// Blocks that every replica has, and that the unit store still has in its dirty set.
    clean: Dirty,
    /// The list of executed writes of the primary, as of the start of the sync.
    source: ExecutedList,
    /// The primary's question for this replica's state. It is answered when everything is done that
    /// came before it.
    asked: Option<(PeerLink, SyncStart)>,
    /// The link on which the primary has asked to delete everything. That waits until no job runs.
    wipe: Option<(PeerLink, u64)>,
}

impl Secondary {
    pub(crate) fn new(primary: DeviceId, joiner: bool) -> Secondary {
        Secondary {
            primary,
            joiner,
            started: false,
            last: Lsn(0),
            uncertain: VecDeque::new(),
            running: Vec::new(),
            refused: Vec::new(),
            sealed: None,
            clean: Dirty::default(),
            source: ExecutedList::default(),
            asked: None,
            wipe: None,
        }
    }

    /// Returns true for the device that is its primary.
    pub(crate) fn follows(&self, device: DeviceId) -> bool {
        self.primary == device
    }

    /// Returns true if it is equal to the primary, except for what is in flight.
    pub(crate) fn is_equal(&self) -> bool {
        self.sealed.is_some() && !self.joiner
    }

    /// Returns true for a joiner that has not recorded yet that it is equal.
    pub(crate) fn is_joiner(&self) -> bool {
        self.joiner
    }

    /// Returns the uncertain writes, in order.
    pub(crate) fn uncertain(&self) -> impl Iterator<Item = (UnitKey, BlockSet)> {
        self.uncertain.iter().map(|(_, unit, blocks)| (*unit, *blocks))
    }

    /// Returns the list of executed writes that copies from the primary bring with them.
    pub(crate) fn source(&self) -> &ExecutedList {
        &self.source
    }

    /// Moves all uncertain writes into the dirty set.
    pub(crate) fn fold(&mut self, dirty: &mut Dirty) {
        self.uncertain.drain(..).for_each(|(_, unit, blocks)| dirty.insert(unit, blocks));
    }

    /// Advances the commit point: writes up to `commit` are on every replica that they were sent
    /// to. Before the seal they stay uncertain, because a replica may lack what another one has.
    /// With `tidy` the unit store is to be told what is clean. Returns true if there is something
    /// to tell.
    fn commit(&mut self, commit: Lsn, tidy: bool) -> bool {
        // The primary doesn't send these again.
        self.refused.retain(|(lsn, _)| *lsn > commit);
        if self.sealed.is_none() {
            return false;
        }
        while let Some((_, unit, blocks)) = self.uncertain.front().filter(|u| u.0 <= commit) {
            if tidy {
                self.clean.insert(*unit, *blocks);
            }
            if mutant::on(Mutant::KeepUncertain) {
                break;
            }
            self.uncertain.pop_front();
        }
        !self.clean.is_empty()
    }

    /// Returns where a frame of the stream belongs.
    fn place(&self, m: &Replicate) -> Place {
        let skipped = if mutant::on(Mutant::OneStream) { 0 } else { u64::from(m.skipped) };
        let before = m.lsn.0.saturating_sub(1 + skipped);
        match m.lsn {
            _ if !self.started => Place::Early,
            lsn if lsn <= self.last => Place::Again,
            _ if before > self.last.max(m.commit).0 => Place::Gap,
            _ => Place::Next,
        }
    }

    /// Takes the next write of the stream, which the operation `op` does. `blocks`: what it changes,
    /// if content is kept. Before the seal, too many uncertain writes become dirty blocks.
    fn take(&mut self, lsn: Lsn, op: u64, blocks: Option<(UnitKey, BlockSet)>, dirty: &mut Dirty) {
        assert!(self.started && lsn > self.last, "a write of the stream is taken once, in order");
        self.last = lsn;
        self.uncertain.extend(blocks.map(|(unit, blocks)| (lsn, unit, blocks)));
        self.running.push((lsn, op));
        if self.sealed.is_none() && self.uncertain.len() > UNCERTAIN_MAX {
            self.fold(dirty);
        }
    }

    /// Takes the blocks that every replica has, except those that are uncertain again.
    pub(crate) fn take_clean(&mut self) -> Dirty {
        let mut clean = core::mem::take(&mut self.clean);
        self.uncertain.iter().for_each(|(_, unit, blocks)| clean.remove(*unit, *blocks));
        clean
    }
}

impl<S: UnitStore> Mirror<S> {
    /// Takes a write of the stream.
    pub fn replicate_in(
        &mut self,
        now: Time,
        link: PeerLink,
        from: DeviceId,
        m: &Replicate,
        body: Body,
        out: &mut Effects,
    ) {
        let (group, lsn) = (m.group, m.lsn);
        let old = mutant::on(Mutant::ReplicaEpoch).then_some(Status::Stale);
        if let Err(status) = self.replicas.check_leader(from, group, m.epoch)
            && Some(status) != old
        {
            out.note(Note::StaleEpoch { group, have: self.replicas.epoch_of(group), got: m.epoch });
            return answer(link, replicated(m, status, self.known.sender()), out);
        }
        let UnitRange { unit, at, len } = m.range;
        let fits = fits::<1>(at, len) && is_whole(m, body.data.len());
        let replica = self.replicas.get_mut(group).expect("checked");
        match replica.secondary().map(|s| s.place(m)) {
            Some(Place::Early) => {
                return answer(link, replicated(m, Status::Behind, self.known.sender()), out);
            }
            Some(Place::Again) => return self.replicate_again(link, m, out),
            Some(Place::Gap) => return close_at_gap(link, out),
            Some(Place::Next) if !fits => return close_at_gap(link, out),
            Some(Place::Next) | None => {}
        }
        let key = self.ops.insert(Op::of_stream(m, link, body));
        if let Role::Secondary(secondary) = &mut replica.role {
            if secondary.commit(m.commit, self.store.survives()) {
                self.untold.clean(group);
            }
            let blocks = self.store.keeps_data().then(|| BlockSet::touching(at, len));
            secondary.take(lsn, key, blocks.map(|b| (unit, b)), &mut replica.record.dirty);
        }
        self.replicas.queue(&mut self.ops, key);
        self.pump(now, out);
    }

    /// Takes a write that arrives a second time because its link broke. Answers it now, or when it
    /// is durable.
    fn replicate_again(&mut self, link: PeerLink, m: &Replicate, out: &mut Effects) {
        let lsn = m.lsn;
        let replica = self.replicas.get_mut(m.group);
        let secondary = replica.and_then(|r| r.secondary()).expect("checked");
        let running = secondary.running.iter().find(|(l, _)| *l == lsn).map(|(_, key)| *key);
        let refused = secondary.refused.iter().find(|(l, _)| *l == lsn).map(|(_, why)| *why);
        match running.and_then(|key| self.ops.get_mut(key)) {
            Some(op) => {
                if let Work::Stream(streamed) = &mut op.work {
                    streamed.asker = Asker { link, op: m.op };
                }
            }
            None => {
                let status = refused.unwrap_or(Status::Ok);
                answer(link, replicated(m, status, self.known.sender()), out);
            }
        }
    }

    /// Refuses a replicated write because there is no space, or because a block that it would
    /// overwrite in part is damaged. Nothing was changed.
    pub(crate) fn refuse(&mut self, now: Time, key: u64, why: Status, out: &mut Effects) {
        let op = self.ops.get(key).expect("the operation lives");
        let (lsn, group) = (op.lsn, op.group);
        if let Some(secondary) = self.replicas.secondary_mut(group) {
            secondary.refused.push((lsn, why));
        }
        self.end_replicated(now, key, why, out);
    }

    /// Ends a replicated write, and answers it: it is durable here, or was refused.
    pub(crate) fn end_replicated(
        &mut self,
        now: Time,
        key: u64,
        status: Status,
        out: &mut Effects,
    ) {
        let op = self.ops.get(key).expect("the operation lives");
        let (group, lsn) = (op.group, op.lsn);
        let asker = match op.work {
            Work::Stream(Streamed { asker, .. }) => Some(asker),
            _ => None,
        };
        self.discard_op(key);
        self.replicas.unlock(&mut self.ops, group, key);
        if let Some(secondary) = self.replicas.secondary_mut(group) {
            secondary.running.retain(|(l, _)| *l != lsn);
        }
        if let Some(Asker { link, op: name }) = asker {
            let epoch = self.replicas.epoch_of(group);
            answer(
                link,
                Replicated { status, op: name, group, epoch, lsn, sender: self.known.sender() },
                out,
            );
        }
        self.answer_asked(group, out);
        self.wipe_if_idle(now, group);
    }

    /// Takes a commit point.
    pub fn commit_in(&mut self, from: DeviceId, m: &Commit) {
        let group = m.group;
        if self.replicas.check_leader(from, group, m.epoch).is_ok()
            && let Some(secondary) = self.replicas.secondary_mut(group)
            && secondary.commit(m.commit, self.store.survives())
        {
            self.untold.clean(group);
        }
    }

    /// Takes the primary's question for this replica's state.
    pub fn sync_start_in(
        &mut self,
        link: PeerLink,
        from: DeviceId,
        m: &SyncStart,
        body: &Buf,
        out: &mut Effects,
    ) {
        let group = m.group;
        if let Err(status) = self.replicas.check_leader(from, group, m.epoch) {
            return answer(
                link,
                state(m.question, group, m.epoch, status, self.known.sender()),
                out,
            );
        }
        let Some(list) = records::read::<Executed>(body) else { return };
        let replica = self.replicas.get_mut(group).expect("checked");
        let Role::Secondary(secondary) = &mut replica.role else { unreachable!("checked") };
        secondary.fold(&mut replica.record.dirty);
        secondary.started = true;
        secondary.sealed = None;
        secondary.last = m.after;
        secondary.refused.clear();
        secondary.source = from_records(list, &mut 0);
        // Copies may include writes that the primary has forgotten.
        self.history.take_forgotten(&mut self.store, group, list);
        let replica = self.replicas.get_mut(group).expect("checked");
        replica.secondary().expect("checked").asked = Some((link, *m));
        self.answer_asked(group, out);
    }

    /// Sends this replica's state, if the primary has asked and everything is done that came before
    /// the question: writes, and the seal of an earlier stream. The answer lets the primary send
    /// more, and a replica whose device hangs would have to hold all of that in memory, and would
    /// hang again in the next seal, for which clients wait.
    pub(crate) fn answer_asked(&mut self, group: GroupId, out: &mut Effects) {
        let secondary = self.replicas.secondary_mut(group);
        let Some(secondary) = secondary else { return };
        let Some((link, asked)) = secondary.asked else { return };
        let writes = secondary.running.iter().any(|(lsn, _)| *lsn <= asked.after)
            && !mutant::on(Mutant::AnswerAtOnce);
        if !writes && (!self.jobs.seals(group) || mutant::on(Mutant::AnswerInSeal)) {
            secondary.asked = None;
            let sender = self.known.sender();
            let state = state(asked.question, group, asked.epoch, Status::Ok, sender);
            self.send_state(link, state, asked.all, asked.joiner, out);
        }
    }

    /// Sends the base epoch and the dirty set, in as many frames as necessary. A replica that
    /// doesn't know what may differ sends all that it holds; likewise if `all` is asked for. A
    /// joiner sends no list then, because it will be told to delete what it holds; while it stalls
    /// it is asked again and again.
    fn send_state(
        &self,
        link: PeerLink,
        state: SyncState,
        all: bool,
        joiner: bool,
        out: &mut Effects,
    ) {
        let group = state.group;
        let record = &self.replicas.of(group).record;
        let mut list: Vec<UnitBlocks> =
            record.dirty.iter().map(|(unit, blocks)| UnitBlocks::new(unit, blocks)).collect();
        let any = record.all_dirty || all;
        if any && joiner {
            list.clear();
        } else if any {
            let units = self.store.units(group).into_iter();
            list.extend(units.map(|u| UnitBlocks::new(u, self.store.valid(group, u))));
        }
        let empty = list.is_empty() && self.store.is_empty(group);
        let all = record.all_dirty || any && joiner;
        let state = SyncState { base: record.base, all, empty, ..state };
        let most = (self.limits.frame_body as usize / size_of::<UnitBlocks>()).max(1);
        let mut pages = list.chunks(most).peekable();
        loop {
            let page = pages.next().unwrap_or(&[]);
            let more = pages.peek().is_some();
            let body = out.copy(page.as_bytes());
            out.send(link.id, link.frame(SyncState { more, ..state }, &body), body);
            if !more {
                return;
            }
        }
    }

    /// Takes the primary's order to delete everything and to start from nothing.
    pub fn sync_wipe_in(
        &mut self,
        now: Time,
        link: PeerLink,
        from: DeviceId,
        m: &SyncWipe,
        out: &mut Effects,
    ) {
        let SyncWipe { question, group, epoch } = *m;
        if let Err(status) = self.replicas.check_leader(from, group, epoch) {
            return answer(link, state(question, group, epoch, status, self.known.sender()), out);
        }
        let replica = self.replicas.get_mut(group).expect("checked");
        // A deletion can't be undone, so an MDM has to have said that this copy is not in sync.
        if replica.config.in_sync.contains(&self.me) || self.known.is_unsure(group) {
            return answer(
                link,
                state(question, group, epoch, Status::Behind, self.known.sender()),
                out,
            );
        }
        let secondary = replica.secondary().expect("checked");
        (secondary.started, secondary.asked) = (false, None);
        secondary.wipe = Some((link, question));
        self.wipe_if_idle(now, group);
        self.pump(now, out);
    }

    /// Deletes the content if the primary has asked for that and no job runs.
    pub(crate) fn wipe_if_idle(&mut self, now: Time, group: GroupId) {
        let Some(replica) = self.replicas.get_mut(group) else { return };
        if replica.local > 0 || !replica.locks.is_empty() || replica.next.is_some() {
            return;
        }
        let epoch = replica.config.epoch;
        let Some(secondary) = replica.secondary() else { return };
        let Some((link, question)) = secondary.wipe.take() else { return };
        let wait = Waiting::Wipe { epoch, question, link };
        if self.jobs.joins(group, wait) {
            return;
        }
        secondary.uncertain.clear();
        replica.record.clean();
        replica.record.executed.clear();
        replica.record.base = Epoch(0);
        self.jobs.change_first(&mut self.store, now, group, alloc::vec![Change::Wipe], wait);
    }

    /// The deletion is durable: answers with the empty state.
    pub(crate) fn wiped(
        &mut self,
        group: GroupId,
        (question, epoch): (u64, Epoch),
        link: PeerLink,
        out: &mut Effects,
    ) {
        if self.replicas.of(group).config.epoch == epoch {
            let state = state(question, group, epoch, Status::Ok, self.known.sender());
            self.send_state(link, state, false, true, out);
        }
    }

    /// Takes a seal: if `lsn` is the last one that arrived, this replica is equal to the primary.
    pub fn seal_in(
        &mut self,
        now: Time,
        link: PeerLink,
        from: DeviceId,
        m: &Seal,
        body: &Buf,
        out: &mut Effects,
    ) {
        let (group, lsn) = (m.group, m.lsn);
        let leads = self.replicas.check_leader(from, group, m.epoch);
        let (Ok(()), Some(list)) = (leads, records::read::<Executed>(body)) else {
            return answer(link, confirmation(*m, Status::Stale, self.known.sender()), out);
        };
        let replica = self.replicas.get_mut(group).expect("checked");
        let Role::Secondary(secondary) = &mut replica.role else { unreachable!("checked") };
        if secondary.sealed == Some(lsn) {
            return answer(link, confirmation(*m, Status::Ok, self.known.sender()), out);
        }
        if !secondary.started || secondary.last != lsn {
            return answer(link, confirmation(*m, Status::Behind, self.known.sender()), out);
        }
        let epoch = replica.config.epoch;
        let wait = Waiting::Seal { epoch, lsn, link };
        if self.jobs.joins(group, wait) {
            return;
        }
        secondary.uncertain.clear();
        replica.record.clean();
        // Beside a second in-sync replica, no replica records what a joiner misses from here on if
        // it is not admitted. So its base must not suggest that it could come back for only that.
        let beside = !replica.config.in_sync.contains(&self.me) && replica.config.in_sync.len() > 1;
        let base = if beside { Epoch(0) } else { epoch };
        replica.record.base = base;
        let executed = &mut replica.record.executed;
        *executed = from_records(list, self.history.noted());
        // The list is as long as at the primary. What has no room here is forgotten before the rest
        // is listed.
        let mut dropped = Forgotten::new(Forgotten::MOST);
        executed.bound(self.limits.executed_group as usize, group, &mut dropped);
        let mut changes = alloc::vec![Change::CleanAll, Change::Base(base)];
        if self.store.survives() {
            changes.push(Change::Executed(executed.entries()));
        }
        self.history.take_forgotten(&mut self.store, group, list);
        self.history.forget(&mut self.store, group, dropped.entries(group));
        self.jobs.change_first(&mut self.store, now, group, changes, wait);
        self.pump(now, out);
    }

    /// The seal is durable: from now on this replica counts as equal, unless the primary has asked
    /// for its state since. Then the stream begins again, and another seal ends it.
    pub(crate) fn sealed(
        &mut self,
        group: GroupId,
        epoch: Epoch,
        lsn: Lsn,
        link: PeerLink,
        out: &mut Effects,
    ) {
        let Some(replica) = self.replicas.get_mut(group) else { return };
        let Role::Secondary(secondary) = &mut replica.role else { return };
        let over = secondary.last != lsn || secondary.asked.is_some();
        if replica.config.epoch != epoch || over {
            return;
        }
        secondary.sealed = Some(lsn);
        secondary.joiner = false;
        let peer = secondary.primary;
        out.note(Note::Sealed { group, peer, lsn });
        let seal = Seal { group, epoch, lsn };
        answer(link, confirmation(seal, Status::Ok, self.known.sender()), out);
    }
}

/// Returns the answer to a write of the stream.
fn replicated(m: &Replicate, status: Status, sender: Sender) -> Replicated {
    let Replicate { op, group, epoch, lsn, .. } = *m;
    Replicated { status, op, group, epoch, lsn, sender }
}

/// Returns the answer to a seal.
fn confirmation(seal: Seal, status: Status, sender: Sender) -> Sealed {
    let Seal { group, epoch, lsn } = seal;
    Sealed { status, group, epoch, lsn, sender }
}

/// Returns the answer to a question for this replica's state, without any state.
fn state(question: u64, group: GroupId, epoch: Epoch, status: Status, sender: Sender) -> SyncState {
    let (base, more, all, empty) = (Epoch(0), false, false, false);
    SyncState { status, question, group, epoch, base, sender, more, all, empty }
}

/// Closes a link on which frames are missing, or one can't be right. The primary sends them again
/// on the next link.
fn close_at_gap(link: PeerLink, out: &mut Effects) {
    out.note(Note::Refused { link: link.id, why: GAP });
    out.push(Effect::Close { link: link.id });
}

/// Returns true if the body is what the flags and the range say. Only copies can be of blocks that
/// their source can't read, and only of whole ones.
fn is_whole(m: &Replicate, body: usize) -> bool {
    let UnitRange { at, len, .. } = m.range;
    match (m.zero, m.lost) {
        (false, false) => body == len as usize,
        (true, false) => body == 0,
        (false, true) => body == 0 && m.copy && fits::<BLOCK>(at, len),
        (true, true) => false,
    }
}

/// Sends an answer without a body.
#[inline(always)]
fn answer(link: PeerLink, message: impl Into<Header>, out: &mut Effects) {
    out.send(link.id, link.frame(message, &[]), Buf::EMPTY);
}

#[cfg(test)]
mod tests {
    use super::*;
    use seam::ClientWrite;

    #[test]
    fn a_body_is_what_flags_and_range_say() {
        let range = UnitRange { len: BLOCK, ..UnitRange::default() };
        let write = Replicate {
            op: 1,
            group: GroupId(1),
            epoch: Epoch(1),
            lsn: Lsn(1),
            commit: Lsn(0),
            range,
            client: ClientWrite::default(),
            skipped: 0,
            fresh: false,
            zero: false,
            yields: false,
            lost: false,
            copy: false,
        };
        let whole = BLOCK as usize;
        assert!(is_whole(&write, whole) && !is_whole(&write, 0) && !is_whole(&write, 512));
        let zero = Replicate { zero: true, ..write };
        assert!(is_whole(&zero, 0) && !is_whole(&zero, whole));
        let lost = Replicate { lost: true, copy: true, ..write };
        assert!(is_whole(&lost, 0) && !is_whole(&lost, whole));
        assert!(!is_whole(&Replicate { copy: false, ..lost }, 0), "only copies are of lost blocks");
        assert!(!is_whole(&Replicate { zero: true, ..lost }, 0));
        let part = UnitRange { len: BLOCK / 2, ..range };
        assert!(!is_whole(&Replicate { range: part, ..lost }, 0), "blocks are lost as a whole");
    }

    #[test]
    fn a_joiner_remembers_no_refusal_that_nobody_will_ask_for() {
        let mut joiner = Secondary::new(DeviceId(1), true);
        joiner.refused.extend([1, 2, 3].map(|lsn| (Lsn(lsn), Status::SendWhole)));
        assert!(!joiner.commit(Lsn(2), true));
        assert_eq!(joiner.refused, [(Lsn(3), Status::SendWhole)]);
    }
}
