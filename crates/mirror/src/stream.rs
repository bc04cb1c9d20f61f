//! The primary's stream at a secondary or joiner: takes the frames, and sends the answers.
//! [`crate::secondary`] keeps the state.
//!
//! Invariant: frames count only if they come from the primary of the present epoch (R2).

use crate::executed::from_records;
use crate::jobs::AfterChange;
use crate::op::{Op, Requester, Streamed, Work, fits};
use crate::replica::Role;
use crate::secondaries::Secondaries;
use crate::secondary::{Place, Sealing, Taken};
use crate::shard::Shard;
use alloc::vec::Vec;
use base::{BLOCK, BlockSet, DeviceId, Epoch, GroupId, Lsn, Mutant, Time, mutant};
use seam::{Buf, Change, Effect, Effects, Forgotten, Note, UnitStore};
use wire::message::{
    Commit, Replicate, Replicated, Seal, Sealed, Sender, SyncStart, SyncState, SyncWipe, UnitRange,
};
use wire::records::{self, Executed, UnitBlocks};
use wire::{Body, Header, PeerLink, Status};
use zerocopy::IntoBytes;

/// The reason for closing a link whose stream has a gap. The primary then sends all unanswered
/// frames again.
pub const GAP: &str = "a gap in the stream of replicated writes";

impl Secondaries {
    /// Takes a write of the stream. Returns false if that gives the loop nothing to do.
    pub(crate) fn replicate_in<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        link: PeerLink,
        from: DeviceId,
        m: &Replicate,
        body: Body,
        out: &mut Effects,
    ) -> bool {
        let (group, lsn) = (m.group, m.lsn);
        let old = mutant::on(Mutant::ReplicaEpoch).then_some(Status::Stale);
        if let Err(status) = shard.replicas.check_leader(from, group, m.epoch)
            && Some(status) != old
        {
            out.note(Note::StaleEpoch {
                group,
                have: shard.replicas.epoch_of(group),
                got: m.epoch,
            });
            answer(link, replicated(m, status, shard.known.sender()), out);
            return false;
        }
        let UnitRange { unit, at, len } = m.range;
        let fits = fits::<1>(at, len) && is_whole(m, body.data.len());
        let replica = shard.replicas.get_mut(group).expect("checked");
        match replica.secondary().map(|s| s.place(m)) {
            Some(Place::Early) => {
                answer(link, replicated(m, Status::Behind, shard.known.sender()), out);
                return false;
            }
            Some(Place::Again) => {
                self.replicate_again(shard, link, m, out);
                return false;
            }
            Some(Place::Gap) => {
                close_at_gap(link, out);
                return false;
            }
            Some(Place::Next) if !fits => {
                close_at_gap(link, out);
                return false;
            }
            Some(Place::Next) | None => {}
        }
        let key = shard.ops.insert(Op::of_stream(m, link, body));
        if let Role::Secondary(secondary) = &mut replica.role {
            if secondary.commit(m.commit, shard.store.survives()) {
                shard.unsent.clean(group);
            }
            let blocks = shard.store.keeps_data().then(|| BlockSet::touching(at, len));
            secondary.take(lsn, key, blocks.map(|b| (unit, b)), &mut replica.record.dirty);
        }
        shard.replicas.queue(&mut shard.ops, key);
        true
    }

    /// Takes a write that arrives a second time because its link broke. Answers it now, or when it
    /// is durable.
    fn replicate_again<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        link: PeerLink,
        m: &Replicate,
        out: &mut Effects,
    ) {
        match shard.replicas.secondary_mut(m.group).expect("checked").taken(m.lsn) {
            Taken::Runs(key) => {
                let op = shard.ops.get_mut(key).expect("an operation that runs lives");
                if let Work::Stream(streamed) = &mut op.work {
                    streamed.requester = Requester { link, op: m.op };
                }
            }
            Taken::Over(status) => {
                answer(link, replicated(m, status, shard.known.sender()), out);
            }
        }
    }

    /// Ends a replicated write, and answers it: it is durable here, or it was refused. A write is
    /// refused, and changes nothing, when there is no space, or when a block that it would
    /// overwrite in part is damaged.
    pub(crate) fn end_replicated<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        key: u64,
        status: Status,
        out: &mut Effects,
    ) {
        let op = shard.ops.get(key).expect("the operation lives");
        let (group, lsn) = (op.group, op.lsn);
        let requester = match op.work {
            Work::Stream(Streamed { requester, .. }) => Some(requester),
            _ => None,
        };
        shard.discard_op(key);
        shard.replicas.unlock(&mut shard.ops, group, key);
        if let Some(secondary) = shard.replicas.secondary_mut(group) {
            secondary.end(lsn, status);
        }
        if let Some(Requester { link, op: name }) = requester {
            let epoch = shard.replicas.epoch_of(group);
            answer(
                link,
                Replicated { status, op: name, group, epoch, lsn, sender: shard.known.sender() },
                out,
            );
        }
        self.answer_asked(shard, group, out);
        self.wipe_if_idle(shard, now, group);
    }

    /// Takes a commit point.
    pub(crate) fn commit_in<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        from: DeviceId,
        m: &Commit,
    ) {
        let group = m.group;
        if shard.replicas.check_leader(from, group, m.epoch).is_ok()
            && let Some(secondary) = shard.replicas.secondary_mut(group)
            && secondary.commit(m.commit, shard.store.survives())
        {
            shard.unsent.clean(group);
        }
    }

    // ---- the sync ----

    /// Takes the primary's question for this replica's state.
    pub(crate) fn sync_start_in<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        link: PeerLink,
        from: DeviceId,
        m: &SyncStart,
        body: &Buf,
        out: &mut Effects,
    ) {
        let group = m.group;
        if let Err(status) = shard.replicas.check_leader(from, group, m.epoch) {
            return answer(
                link,
                state(m.question, group, m.epoch, status, shard.known.sender()),
                out,
            );
        }
        let Some(list) = records::read::<Executed>(body) else { return };
        let replica = shard.replicas.get_mut(group).expect("checked");
        let Role::Secondary(secondary) = &mut replica.role else { unreachable!("checked") };
        secondary.ask(link, m, from_records(list, &mut 0), &mut replica.record.dirty);
        // Copies may include writes that the primary has forgotten.
        shard.history.take_forgotten(&mut shard.store, group, list);
        self.answer_asked(shard, group, out);
    }

    /// Sends this replica's state, if the primary has asked for it and everything before the
    /// question is done.
    pub(crate) fn answer_asked<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        group: GroupId,
        out: &mut Effects,
    ) {
        let Some(secondary) = shard.replicas.secondary_mut(group) else { return };
        if !secondary.is_asked() {
            return;
        }
        let seals = shard.jobs.seals(group);
        if let Some((link, asked)) = secondary.take_question(seals) {
            let sender = shard.known.sender();
            let state = state(asked.question, group, asked.epoch, Status::Ok, sender);
            self.send_state(shard, link, state, asked.all, asked.joiner, out);
        }
    }

    /// Sends the base epoch and the dirty set, in as many frames as necessary. A replica that
    /// doesn't know what may differ sends all that it holds; likewise if `all` is asked for. A
    /// joiner sends no list then, because it will be told to delete what it holds; while it stalls
    /// it is asked again and again.
    fn send_state<S: UnitStore>(
        &self,
        shard: &Shard<S>,
        link: PeerLink,
        state: SyncState,
        all: bool,
        joiner: bool,
        out: &mut Effects,
    ) {
        let group = state.group;
        let record = &shard.replicas.of(group).record;
        let mut list: Vec<UnitBlocks> =
            record.dirty.iter().map(|(unit, blocks)| UnitBlocks::new(unit, blocks)).collect();
        let any = record.all_dirty || all;
        if any && joiner {
            list.clear();
        } else if any {
            let units = shard.store.units(group).into_iter();
            list.extend(units.map(|u| UnitBlocks::new(u, shard.store.valid(group, u))));
        }
        let empty = list.is_empty() && shard.store.is_empty(group);
        let all = record.all_dirty || any && joiner;
        let state = SyncState { base: record.base, all, empty, ..state };
        let most = (shard.limits.frame_body as usize / size_of::<UnitBlocks>()).max(1);
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

    /// Takes the primary's order to delete everything and to start from nothing. Returns false if
    /// that gives the loop nothing to do.
    pub(crate) fn sync_wipe_in<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        link: PeerLink,
        from: DeviceId,
        m: &SyncWipe,
        out: &mut Effects,
    ) -> bool {
        let SyncWipe { question, group, epoch } = *m;
        if let Err(status) = shard.replicas.check_leader(from, group, epoch) {
            answer(link, state(question, group, epoch, status, shard.known.sender()), out);
            return false;
        }
        let replica = shard.replicas.get_mut(group).expect("checked");
        // A deletion can't be undone, so an MDM has to have said that this copy is not in sync.
        if replica.config.in_sync.contains(&shard.me) || shard.known.is_unsure(group) {
            let answered = state(question, group, epoch, Status::Behind, shard.known.sender());
            answer(link, answered, out);
            return false;
        }
        replica.secondary().expect("checked").order_wipe(link, question);
        self.wipe_if_idle(shard, now, group);
        true
    }

    /// Deletes the content if the primary has asked for that and no job runs.
    pub(crate) fn wipe_if_idle<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        group: GroupId,
    ) {
        let Some(replica) = shard.replicas.get_mut(group) else { return };
        if replica.local > 0 || !replica.locks.is_empty() || replica.next.is_some() {
            return;
        }
        let epoch = replica.config.epoch;
        let Role::Secondary(secondary) = &mut replica.role else { return };
        let Some((link, question)) = secondary.take_wipe() else { return };
        let in_sync = replica.config.in_sync.contains(&shard.me);
        assert!(!in_sync, "{group}: an in-sync copy is never deleted");
        let wait = AfterChange::Wipe { epoch, question, link };
        if shard.jobs.joins(group, wait) {
            return;
        }
        secondary.clear_uncertain();
        replica.record.clean();
        replica.record.executed.clear();
        replica.record.base = Epoch(0);
        shard.jobs.change_first(&mut shard.store, now, group, alloc::vec![Change::Wipe], wait);
    }

    /// Answers with the empty state, because the deletion is durable.
    pub(crate) fn wiped<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        group: GroupId,
        (question, epoch): (u64, Epoch),
        link: PeerLink,
        out: &mut Effects,
    ) {
        if shard.replicas.of(group).config.epoch == epoch {
            let state = state(question, group, epoch, Status::Ok, shard.known.sender());
            self.send_state(shard, link, state, false, true, out);
        }
    }

    /// Takes a seal: if `lsn` is the last one that arrived, this replica is equal to the primary.
    /// Returns false if that gives the loop nothing to do.
    pub(crate) fn seal_in<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        (link, from): (PeerLink, DeviceId),
        m: &Seal,
        body: &Buf,
        out: &mut Effects,
    ) -> bool {
        let (group, lsn) = (m.group, m.lsn);
        let leads = shard.replicas.check_leader(from, group, m.epoch);
        let (Ok(()), Some(list)) = (leads, records::read::<Executed>(body)) else {
            answer(link, confirmation(*m, Status::Stale, shard.known.sender()), out);
            return false;
        };
        let replica = shard.replicas.get_mut(group).expect("checked");
        let Role::Secondary(secondary) = &mut replica.role else { unreachable!("checked") };
        let status = match secondary.sealing(lsn) {
            Sealing::Begin => None,
            Sealing::Done => Some(Status::Ok),
            Sealing::Behind => Some(Status::Behind),
        };
        if let Some(status) = status {
            answer(link, confirmation(*m, status, shard.known.sender()), out);
            return false;
        }
        let epoch = replica.config.epoch;
        let wait = AfterChange::Seal { epoch, lsn, link };
        if shard.jobs.joins(group, wait) {
            return false;
        }
        secondary.clear_uncertain();
        replica.record.clean();
        // Beside a second in-sync replica, no replica records what a joiner misses from here on if
        // it is not admitted. So its base must not suggest that it could come back for only that.
        let beside =
            !replica.config.in_sync.contains(&shard.me) && replica.config.in_sync.len() > 1;
        let base = if beside { Epoch(0) } else { epoch };
        replica.record.base = base;
        let executed = &mut replica.record.executed;
        *executed = from_records(list, shard.history.noted());
        // The list is as long as at the primary. Entries that have no room here are forgotten
        // before the rest is listed.
        let mut dropped = Forgotten::new(Forgotten::MOST);
        executed.bound(shard.limits.executed_group as usize, group, &mut dropped);
        let mut changes = alloc::vec![Change::CleanAll, Change::Base(base)];
        if shard.store.survives() {
            changes.push(Change::Executed(executed.entries()));
        }
        shard.history.take_forgotten(&mut shard.store, group, list);
        shard.history.forget(&mut shard.store, group, dropped.entries(group));
        shard.history.bound_lists(&mut shard.replicas, group, &shard.limits);
        shard.jobs.change_first(&mut shard.store, now, group, changes, wait);
        true
    }

    /// Handles a seal that is durable. From now on this replica counts as equal, unless the primary
    /// has asked for its state since. Then the stream begins again, and another seal ends it.
    pub(crate) fn sealed<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        group: GroupId,
        epoch: Epoch,
        lsn: Lsn,
        link: PeerLink,
        out: &mut Effects,
    ) {
        let Some(replica) = shard.replicas.get_mut(group) else { return };
        let Role::Secondary(secondary) = &mut replica.role else { return };
        if replica.config.epoch != epoch {
            return;
        }
        let Some(peer) = secondary.seal(lsn) else { return };
        out.note(Note::Sealed { group, peer, lsn });
        let seal = Seal { group, epoch, lsn };
        answer(link, confirmation(seal, Status::Ok, shard.known.sender()), out);
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

/// Closes a link on which frames are missing, or a frame is wrong. The primary sends them again on
/// the next link.
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
mod tests;
