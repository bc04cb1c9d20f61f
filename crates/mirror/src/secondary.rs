//! The secondary or joiner of a group, in one epoch: how much of the primary's stream has arrived,
//! and which blocks may differ from other replicas. [`crate::stream`] takes the frames and executes
//! them.
//!
//! A write is *uncertain* while it is above the commit point, because another replica may lack it.
//! When a configuration ends, uncertain writes go to the dirty set.
//!
//! Invariants:
//! - Every frame of a stream is taken once, in order of the lsns, and overlapping ones are executed
//!   in that order. After a gap the link is closed, and the primary sends again what was not
//!   answered.
//! - Before its own seal a replica forgets nothing by the commit point (R6).
//! - A seal clears the dirty set only if its lsn is the last one that arrived, and it is answered
//!   when that is durable (R6).
//! - A question begins the stream again. It is answered when every write and every seal before it
//!   is durable, and the answer to an earlier seal is left out.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use base::{BlockSet, DeviceId, Lsn, Mutant, UnitKey, mutant};
use seam::record::{Dirty, ExecutedList};
use wire::message::{Replicate, SyncStart};
use wire::{PeerLink, Status};

/// The most uncertain writes before the seal. One more turns all of them into dirty blocks.
pub(crate) const UNCERTAIN_MAX: usize = 256;

/// Where a frame belongs in the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Before the primary's question, so nothing is known of the stream.
    Early,
    /// It was taken before.
    Again,
    /// Next.
    Next,
    /// Behind frames that have not come.
    Gap,
}

/// The result of a write that arrives a second time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Taken {
    /// This operation does it.
    Runs(u64),
    /// It is over, with this status.
    Over(Status),
}

/// What a secondary has to do for a seal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sealing {
    /// It is durable already.
    Done,
    /// Not everything has come, or the stream has begun again.
    Behind,
    /// It has to be made durable now.
    Begin,
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
    /// The list of executed writes of the primary, as of the start of the sync; empty after the
    /// seal.
    source: ExecutedList,
    /// The primary's question for this replica's state. It is answered when everything that came
    /// before it is done.
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

    /// Returns the list of executed writes that comes with copies from the primary.
    pub(crate) fn source(&self) -> &ExecutedList {
        &self.source
    }

    /// Moves all uncertain writes into the dirty set.
    pub(crate) fn fold(&mut self, dirty: &mut Dirty) {
        self.uncertain.drain(..).for_each(|(_, unit, blocks)| dirty.insert(unit, blocks));
    }

    /// Advances the commit point: writes up to `commit` are on every replica that they were sent
    /// to. Before the seal they stay uncertain, because a replica may lack what another one has.
    /// With `tidy` the unit store has to learn which blocks are clean. Returns true if there are
    /// such blocks.
    pub(crate) fn commit(&mut self, commit: Lsn, tidy: bool) -> bool {
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
    pub(crate) fn place(&self, m: &Replicate) -> Place {
        let skipped = if mutant::on(Mutant::OneStream) { 0 } else { u64::from(m.skipped) };
        let before = m.lsn.0.saturating_sub(1 + skipped);
        match m.lsn {
            _ if !self.started => Place::Early,
            lsn if lsn <= self.last => Place::Again,
            _ if before > self.last.max(m.commit).0 => Place::Gap,
            _ => Place::Next,
        }
    }

    /// Takes the next write of the stream, which the operation `op` does. `blocks`: what it
    /// changes, if content is kept. Before the seal, too many uncertain writes become dirty blocks.
    pub(crate) fn take(
        &mut self,
        lsn: Lsn,
        op: u64,
        blocks: Option<(UnitKey, BlockSet)>,
        dirty: &mut Dirty,
    ) {
        assert!(self.started && lsn > self.last, "a write of the stream is taken once, in order");
        self.last = lsn;
        self.uncertain.extend(blocks.map(|(unit, blocks)| (lsn, unit, blocks)));
        self.running.push((lsn, op));
        if self.sealed.is_none() && self.uncertain.len() > UNCERTAIN_MAX {
            self.fold(dirty);
        }
    }

    /// Returns the result of a write that was taken before.
    pub(crate) fn taken(&self, lsn: Lsn) -> Taken {
        let running = self.running.iter().find(|(l, _)| *l == lsn);
        let refused = self.refused.iter().find(|(l, _)| *l == lsn);
        match running {
            Some((_, key)) => Taken::Runs(*key),
            None => Taken::Over(refused.map_or(Status::Ok, |(_, why)| *why)),
        }
    }

    /// Records that a write has ended: it is durable, or was refused.
    pub(crate) fn end(&mut self, lsn: Lsn, status: Status) {
        self.running.retain(|(l, _)| *l != lsn);
        if status != Status::Ok {
            self.refused.push((lsn, status));
        }
    }

    // ---- the sync ----

    /// Handles the primary's question for this replica's state. Its stream begins again, and copies
    /// come with `source`. Uncertain writes become dirty.
    pub(crate) fn ask(
        &mut self,
        link: PeerLink,
        m: &SyncStart,
        source: ExecutedList,
        dirty: &mut Dirty,
    ) {
        self.fold(dirty);
        (self.started, self.sealed, self.last) = (true, None, m.after);
        self.wipe = None; // the primary has started over
        self.refused.clear();
        self.source = source;
        self.asked = Some((link, *m));
    }

    /// Returns true if the primary has asked for this replica's state and was not answered.
    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.is_some()
    }

    /// Takes the primary's question if everything is done that came before it: writes, and the seal
    /// of an earlier stream, which is not durable yet if it `seals`. The answer lets the primary
    /// send more. If the replica's device hangs, it would have to hold all of that in memory, and
    /// would hang again in the next seal, which makes clients wait.
    pub(crate) fn take_question(&mut self, seals: bool) -> Option<(PeerLink, SyncStart)> {
        let (_, asked) = self.asked.as_ref()?;
        let writes = self.running.iter().any(|(lsn, _)| *lsn <= asked.after)
            && !mutant::on(Mutant::AnswerAtOnce);
        let done = !writes && (!seals || mutant::on(Mutant::AnswerInSeal));
        self.asked.take_if(|_| done)
    }

    /// Handles the primary's order to delete everything. Its stream ends.
    pub(crate) fn order_wipe(&mut self, link: PeerLink, question: u64) {
        (self.started, self.asked) = (false, None);
        self.wipe = Some((link, question));
    }

    /// Takes that order, once no job runs.
    pub(crate) fn take_wipe(&mut self) -> Option<(PeerLink, u64)> {
        self.wipe.take()
    }

    /// Returns what has to be done for a seal of this lsn.
    pub(crate) fn sealing(&self, lsn: Lsn) -> Sealing {
        match self.started && self.last == lsn {
            _ if self.sealed == Some(lsn) => Sealing::Done,
            true => Sealing::Begin,
            false => Sealing::Behind,
        }
    }

    /// Drops all uncertain writes: the replica is equal to the primary, or has nothing any more.
    pub(crate) fn clear_uncertain(&mut self) {
        self.uncertain.clear();
    }

    /// Handles a seal that is durable now. Returns the primary if this replica counts as equal from
    /// now on, and `None` if the primary has asked for its state since: then another seal ends the
    /// stream.
    pub(crate) fn seal(&mut self, lsn: Lsn) -> Option<DeviceId> {
        if self.last != lsn || self.asked.is_some() {
            return None;
        }
        (self.sealed, self.joiner) = (Some(lsn), false);
        self.source = ExecutedList::default(); // no copies come after the seal
        Some(self.primary)
    }

    /// Takes the blocks that every replica has, except those that are uncertain again.
    pub(crate) fn take_clean(&mut self) -> Dirty {
        let mut clean = core::mem::take(&mut self.clean);
        self.uncertain.iter().for_each(|(_, unit, blocks)| clean.remove(*unit, *blocks));
        clean
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{Epoch, GroupId, LinkId};
    use wire::message::UnitRange;

    fn link() -> PeerLink {
        PeerLink::new(LinkId(1), 1)
    }

    /// A secondary whose primary has asked, after this lsn.
    fn asked(after: u64) -> Secondary {
        let mut secondary = Secondary::new(DeviceId(1), true);
        ask(&mut secondary, after);
        secondary
    }

    fn ask(secondary: &mut Secondary, after: u64) -> Dirty {
        let (question, group, epoch) = (1, GroupId(1), Epoch(1));
        let m = SyncStart { question, group, epoch, after: Lsn(after), joiner: true, all: false };
        let mut dirty = Dirty::default();
        secondary.ask(link(), &m, ExecutedList::default(), &mut dirty);
        dirty
    }

    fn frame(lsn: u64, commit: u64, skipped: u32) -> Replicate {
        let range = UnitRange::default();
        let write = Replicate::new(1, GroupId(1), Epoch(1), Lsn(lsn), range);
        Replicate { commit: Lsn(commit), skipped, ..write }
    }

    fn take(secondary: &mut Secondary, lsn: u64) -> Dirty {
        let (unit, blocks) = (UnitKey::default(), BlockSet::from_range(0..1));
        let mut dirty = Dirty::default();
        secondary.take(Lsn(lsn), 100 + lsn, Some((unit, blocks)), &mut dirty);
        dirty
    }

    #[test]
    fn every_frame_of_the_stream_is_taken_once_and_in_order() {
        assert_eq!(Secondary::new(DeviceId(1), false).place(&frame(1, 0, 0)), Place::Early);
        let mut secondary = asked(4);
        for (lsn, commit, skipped, place) in [
            (4, 0, 0, Place::Again),
            (5, 0, 0, Place::Next),
            (6, 0, 0, Place::Gap),
            (6, 0, 1, Place::Next), // one was not for this replica
            (7, 6, 0, Place::Next), // it has all that it needs up to there
            (8, 6, 0, Place::Gap),
        ] {
            let found = secondary.place(&frame(lsn, commit, skipped));
            assert_eq!(found, place, "{lsn} {commit} {skipped}");
        }
        take(&mut secondary, 5);
        assert_eq!(secondary.taken(Lsn(5)), Taken::Runs(105));
        secondary.end(Lsn(5), Status::Full);
        assert_eq!(secondary.taken(Lsn(5)), Taken::Over(Status::Full));
        assert_eq!(secondary.taken(Lsn(4)), Taken::Over(Status::Ok));
    }

    #[test]
    #[should_panic = "taken once, in order"]
    fn no_frame_is_taken_twice() {
        let mut secondary = asked(4);
        take(&mut secondary, 5);
        take(&mut secondary, 5);
    }

    #[test]
    fn a_question_is_answered_when_all_before_it_is_done() {
        let mut secondary = asked(4);
        take(&mut secondary, 5);
        let dirty = ask(&mut secondary, 5);
        assert!(!dirty.is_empty(), "what is uncertain becomes dirty");
        assert!(secondary.take_question(false).is_none(), "a write runs");
        secondary.end(Lsn(5), Status::Ok);
        assert!(secondary.take_question(true).is_none(), "a seal is not durable");
        assert!(secondary.take_question(false).is_some() && !secondary.is_asked());
    }

    #[test]
    fn a_seal_counts_if_nothing_has_come_since() {
        let mut secondary = asked(4);
        secondary.take_question(false);
        for (lsn, expected) in [(3, Sealing::Behind), (4, Sealing::Begin), (5, Sealing::Behind)] {
            assert_eq!(secondary.sealing(Lsn(lsn)), expected);
        }
        ask(&mut secondary, 4);
        assert_eq!(secondary.seal(Lsn(4)), None, "the primary has asked again");
        secondary.take_question(false);
        take(&mut secondary, 5);
        assert_eq!(secondary.seal(Lsn(4)), None, "a write has come");
        assert!(!secondary.is_equal());
        assert_eq!(secondary.seal(Lsn(5)), Some(DeviceId(1)));
        assert_eq!((secondary.sealing(Lsn(5)), secondary.is_equal()), (Sealing::Done, true));
    }

    #[test]
    fn before_the_seal_all_writes_stay_uncertain_up_to_a_bound() {
        let mut secondary = asked(0);
        secondary.take_question(false);
        for lsn in 1..=UNCERTAIN_MAX as u64 {
            assert!(take(&mut secondary, lsn).is_empty());
            secondary.commit(Lsn(lsn), false);
        }
        assert_eq!(secondary.uncertain().count(), UNCERTAIN_MAX);
        assert!(!take(&mut secondary, UNCERTAIN_MAX as u64 + 1).is_empty());
        assert_eq!(secondary.uncertain().count(), 0);
    }

    #[test]
    fn a_joiner_remembers_no_refusal_that_will_not_be_requested_again() {
        let mut joiner = Secondary::new(DeviceId(1), true);
        joiner.refused.extend([1, 2, 3].map(|lsn| (Lsn(lsn), Status::SendWhole)));
        assert!(!joiner.commit(Lsn(2), true));
        assert_eq!(joiner.refused, [(Lsn(3), Status::SendWhole)]);
    }
}
