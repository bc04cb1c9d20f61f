//! Settle and join: one machine that makes peers equal to the primary (rules R6 and R11). It keeps
//! the state of one sync and decides the next step. [`crate::resync`] carries that out, and
//! [`crate::copies`] copies the blocks.
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
//! set. A seal clears the peer's dirty set, so no peer is sealed before every peer has everything.

use crate::members::ReplicaSet;
use base::{BlockSet, DeviceId, Duration, Epoch, GroupId, Lsn, Mutant, Time, UnitKey, mutant};
use core::ops::Range;
use seam::record::Dirty;
use wire::Header;
use wire::message::{Seal, SyncStart, SyncWipe};

/// How long to wait before an unanswered or refused question is repeated the first time.
pub(crate) const ASK_AGAIN: Duration = Duration::from_millis(10);
/// The longest such time, after it has doubled with each repetition. Each question restarts the
/// peer's stream, and only the answer to the last question counts. So questions must not be faster
/// than answers, and a whole window of other data may be ahead of a question.
pub(crate) const ASK_AT_LAST: Duration = Duration::from_secs(16);

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

/// The meaning of an answer to a question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// None: the question was another one.
    Old,
    /// The joiner has deleted everything.
    Wiped,
    /// It is the state of a peer.
    State,
}

/// The next step of a sync.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// It waits.
    Wait,
    /// It queues its group, which takes turns with others to copy.
    Queue,
    /// It asks the peers again.
    Ask,
    /// It seals the peers.
    Seal,
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
    full: bool,
    /// The peers get every new write.
    pub streaming: bool,
    /// Peers that have told their state.
    reported: ReplicaSet,
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
    unreadable: Dirty,
    /// Blocks that were tried once more. If they fail again, the peers are told that they are lost.
    tried: Dirty,
    /// The primary's list of executed writes has changed since the peers were told: they are asked
    /// again.
    anew: bool,
    /// The oldest operation that the joiner has not acknowledged, and since when that is so.
    pub unacknowledged: Option<(Lsn, Time)>,
    /// Copies in flight.
    copying: u32,
    /// The group is in the queue of [`crate::copies::Copies`].
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
            reported: ReplicaSet::default(),
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
    pub(crate) fn unanswered(&self) -> ReplicaSet {
        let answered = match self.phase {
            Phase::Ask => self.reported,
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

    /// Returns true if the blocks to be copied are known.
    pub(crate) fn has_begun(&self) -> bool {
        !matches!(self.phase, Phase::Ask | Phase::Wipe)
    }

    /// Records that an operation of the stream goes to these replicas.
    pub(crate) fn enters(&mut self, lsn: Lsn, to: ReplicaSet) {
        if to.intersects(self.members) {
            assert!(lsn > self.sent, "the peers get their operations in order");
            self.sent = lsn;
        }
    }

    /// Returns true if everything is copied, and not only what may differ.
    pub(crate) fn is_full(&self) -> bool {
        self.full
    }

    // ---- questions ----

    /// Returns the question of the present phase, and whether the list of executed writes comes
    /// with it. `all`: the primary knows nothing of what may differ.
    pub(crate) fn question(
        &self,
        group: GroupId,
        epoch: Epoch,
        after: Lsn,
        all: bool,
    ) -> Option<(Header, bool)> {
        match self.phase {
            Phase::Ask => {
                let (question, joiner) = (self.question?, self.joiner.is_some());
                let start = SyncStart { question, group, epoch, after, joiner, all };
                Some((start.into(), true))
            }
            Phase::Wipe => {
                let question = self.question?;
                Some((SyncWipe { question, group, epoch }.into(), false))
            }
            Phase::Seal(lsn) => Some((Seal { group, epoch, lsn }.into(), true)),
            Phase::Copy | Phase::Drain | Phase::Admit => None,
        }
    }

    /// Returns what an answer to the question of this number means.
    pub(crate) fn answer(&self, question: u64) -> Answer {
        match self.phase {
            _ if self.question != Some(question) => Answer::Old,
            Phase::Wipe => Answer::Wiped,
            Phase::Ask => Answer::State,
            _ => Answer::Old,
        }
    }

    /// Handles a peer that can't tell its state now. Returns how long to wait, if the question of
    /// this number is the present one.
    pub(crate) fn refused(&self, question: u64) -> Option<Duration> {
        let present = self.phase == Phase::Ask && self.question == Some(question);
        present.then(|| self.patience.min(ASK_AGAIN * 10))
    }

    /// Returns what [`crate::window::Windows::sends`] was when the peers were asked.
    pub(crate) fn asked_after(&self) -> u64 {
        self.asked_after
    }

    /// Returns how long the primary waits for the answer.
    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    /// Sets how long the primary waits for the answer.
    pub(crate) fn be_patient(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Records that a peer has told all of its state. `reaches`: the dirty sets of both sides reach
    /// back far enough to name every difference; `all`: one of them names no blocks. Returns true
    /// if copies begin: what one peer may lack goes to all, so copies begin when all have told.
    pub(crate) fn tells(&mut self, peer: ReplicaSet, reaches: bool, all: bool) -> bool {
        assert!(self.phase == Phase::Ask && self.streaming, "only an asked peer tells its state");
        let first = self.members.contains_all(peer) && !self.reported.intersects(peer);
        assert!(first, "a peer tells its state once");
        self.reported.insert(peer);
        self.full |= !reaches || all;
        let reported = self.reported == self.members || mutant::on(Mutant::SealEarly);
        if reported {
            self.phase = Phase::Copy;
        }
        reported
    }

    /// Cuts the joiner off: it gets nothing any more, and its stream begins with a new question.
    pub(crate) fn cut_off(&mut self) {
        assert!(self.can_be_cut(), "an acknowledgement may need the peer");
        assert!(self.question.is_some(), "a joiner gets a stream after it was asked");
        (self.streaming, self.phase, self.question) = (false, Phase::Ask, None);
        (self.reported, self.sealed) = (ReplicaSet::default(), ReplicaSet::default());
    }

    /// Enters the phase in which the joiner, which gets no stream, has to delete what it has. The
    /// order has a number of its own, so no answer to an earlier one counts.
    pub(crate) fn wipe(&mut self, question: u64) {
        assert!(self.joiner.is_some(), "no in-sync replica is ever wiped");
        assert!(!self.streaming, "a joiner that deletes what it has gets no stream");
        (self.phase, self.question) = (Phase::Wipe, Some(question));
    }

    // ---- copies ----

    /// Returns true if none of its copies is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.copying == 0
    }

    /// Decides the next step while blocks are copied. `drained`: nothing is in flight in the
    /// stream.
    pub(crate) fn next(&mut self, drained: bool) -> Next {
        if self.phase != Phase::Copy {
            return Next::Wait;
        }
        if !self.todo.is_empty() {
            let queued = core::mem::replace(&mut self.queued, true);
            return if queued { Next::Wait } else { Next::Queue };
        }
        if !self.unreadable.is_empty() {
            return Next::Wait; // until they are tried once more
        }
        if mutant::on(Mutant::NoDrain) && self.joiner.is_some() {
            self.phase = Phase::Admit;
            return Next::Wait;
        }
        if self.copying > 0 {
            return Next::Wait;
        }
        if self.anew {
            return Next::Ask;
        }
        self.phase = Phase::Drain;
        if drained { Next::Seal } else { Next::Wait }
    }

    /// Takes the group's turn to copy. Returns false if it copies nothing now.
    pub(crate) fn takes_turn(&mut self) -> bool {
        self.queued = false;
        self.phase == Phase::Copy
    }

    /// Begins a copy of at most this many blocks, if any is left. Returns its blocks, and whether
    /// the group has to be queued for more.
    pub(crate) fn begin_copy(&mut self, most: u32) -> Option<(UnitKey, Range<u32>, bool)> {
        assert!(
            self.phase == Phase::Copy,
            "blocks are copied when all peers have told their state"
        );
        let (unit, run) = self.todo.pop_run(most)?;
        self.copying += 1;
        self.queued = !self.todo.is_empty();
        Some((unit, run, self.queued))
    }

    /// Records that a copy has ended, with any result.
    pub(crate) fn end_copy(&mut self) {
        assert!(self.copying > 0, "a copy ends once");
        self.copying -= 1;
    }

    /// Adds blocks to be copied. Returns true if writes that waited for the seal can continue.
    pub(crate) fn add(&mut self, unit: UnitKey, blocks: BlockSet) -> bool {
        let open = !matches!(self.phase, Phase::Seal(_) | Phase::Admit);
        assert!(open || mutant::on(Mutant::NoDrain), "a sealed peer has everything");
        self.todo.insert(unit, blocks);
        let drained = self.phase == Phase::Drain;
        if drained {
            self.phase = Phase::Copy;
        }
        drained
    }

    /// Handles a copy of which no in-sync replica can read the blocks `bad`; the `rest` is copied.
    /// Returns true if the blocks were tried twice, and are lost. Otherwise they are tried once
    /// more.
    pub(crate) fn skip(&mut self, unit: UnitKey, bad: BlockSet, rest: BlockSet) -> bool {
        self.todo.insert(unit, rest);
        let lost = self.tried.contains(unit, bad);
        if !lost {
            self.unreadable.insert(unit, bad);
        }
        lost
    }

    /// Makes the primary ask the peers again when everything is copied, because its list of
    /// executed writes has changed since they got it.
    pub(crate) fn ask_anew(&mut self) {
        self.anew = true;
    }

    /// Adds the blocks that could not be read to those to be copied, for a second try.
    pub(crate) fn read_again(&mut self) {
        let unreadable = core::mem::take(&mut self.unreadable);
        self.todo.extend(&unreadable);
        self.tried.extend(&unreadable);
    }

    // ---- the seal ----

    /// Enters the seal: everything that was sent has been answered, so the peers are equal and have
    /// to record it. `sends` is the present [`crate::window::Windows::sends`].
    pub(crate) fn seal(&mut self, sends: u64) {
        let copied = self.todo.is_empty() && self.unreadable.is_empty() && self.copying == 0;
        assert!(copied, "no peer is sealed before every peer has everything");
        assert!(self.phase == Phase::Drain, "only a sync that drains is sealed");
        let reported = self.reported == self.members || mutant::on(Mutant::SealEarly);
        assert!(reported, "no peer is sealed before every peer has told its state");
        (self.phase, self.sealed_after) = (Phase::Seal(self.sent), sends);
    }

    /// Handles a peer that has recorded that it is equal up to this lsn. Returns whether all have;
    /// `None` if it was not asked to.
    pub(crate) fn confirms(&mut self, peer: ReplicaSet, lsn: Lsn) -> Option<bool> {
        if self.phase != Phase::Seal(lsn) || !self.unanswered().intersects(peer) {
            return None;
        }
        self.sealed.insert(peer);
        Some(self.sealed == self.members)
    }

    /// Enters limbo: the joiner is sealed, and its admission is requested.
    pub(crate) fn admit(&mut self) {
        assert!(
            self.sealed == self.members && self.joiner.is_some(),
            "a joiner is admitted sealed"
        );
        assert!(matches!(self.phase, Phase::Seal(_)), "limbo follows the seal");
        self.phase = Phase::Admit;
    }

    /// Returns true if new writes wait for the seal.
    pub(crate) fn holds_writes(&self) -> bool {
        matches!(self.phase, Phase::Drain | Phase::Seal(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{BLOCK, BLOCKS_PER_UNIT};

    const A: ReplicaSet = ReplicaSet(2);
    const B: ReplicaSet = ReplicaSet(4);
    const UNIT: UnitKey = UnitKey { volume: base::VolumeId(1), index: 0 };

    fn settle() -> Sync {
        Sync::new(ReplicaSet(A.0 | B.0), None, 5, Lsn(9), 0)
    }

    fn join() -> Sync {
        let mut sync = Sync::new(A, Some(DeviceId(2)), 5, Lsn(9), 0);
        sync.streaming = true;
        sync
    }

    fn blocks(first: u32, end: u32) -> BlockSet {
        BlockSet::touching(first * BLOCK, (end - first) * BLOCK)
    }

    /// Copies everything that is to be copied, in one copy.
    fn copy(sync: &mut Sync) {
        assert!(sync.takes_turn());
        let (.., more) = sync.begin_copy(BLOCKS_PER_UNIT).unwrap();
        assert!(!more && !sync.is_idle());
        assert_eq!(sync.next(true), Next::Wait, "a copy is in flight");
        sync.end_copy();
    }

    #[test]
    fn a_settle_waits_for_the_states_and_the_seals_of_all_peers() {
        let mut sync = settle();
        assert_eq!([4, 5].map(|question| sync.answer(question)), [Answer::Old, Answer::State]);
        sync.add(UNIT, blocks(0, 2));
        assert!(!sync.tells(A, true, false) && sync.phase == Phase::Ask);
        assert_eq!(sync.unanswered(), B);
        assert!(sync.tells(B, true, false) && !sync.is_full());
        assert_eq!(sync.next(false), Next::Queue);
        assert_eq!(sync.next(false), Next::Wait, "it is in the queue");
        copy(&mut sync);
        assert_eq!((sync.next(false), sync.holds_writes()), (Next::Wait, true), "not drained");
        sync.seal(17);
        assert_eq!((sync.phase, sync.sealed_after), (Phase::Seal(Lsn(9)), 17));
        assert_eq!(sync.confirms(A, Lsn(8)), None, "another seal");
        assert_eq!(
            [A, A, B].map(|peer| sync.confirms(peer, Lsn(9))),
            [Some(false), None, Some(true)]
        );
    }

    #[test]
    fn a_joiner_is_needed_from_its_seal_on() {
        let mut sync = join();
        assert!(sync.tells(A, false, false) && sync.is_full());
        assert_eq!(sync.next(true), Next::Seal);
        assert!(sync.can_be_cut() && !sync.in_limbo());
        sync.seal(0);
        assert_eq!(sync.confirms(A, Lsn(9)), Some(true));
        sync.admit();
        assert!(sync.in_limbo() && !sync.can_be_cut());
    }

    #[test]
    fn a_joiner_that_is_cut_off_has_to_be_asked_again() {
        let mut sync = join();
        sync.add(UNIT, blocks(0, 2));
        sync.tells(A, true, false);
        sync.cut_off();
        assert_eq!((sync.phase, sync.unanswered(), sync.asked()), (Phase::Ask, A, A));
        assert_eq!(sync.answer(5), Answer::Old, "it will be asked again");
        assert!(sync.question(GroupId(1), Epoch(1), Lsn(9), false).is_none());
        assert!(!sync.can_be_cut() && !sync.takes_turn());
        sync.wipe(6);
        assert_eq!((sync.answer(5), sync.answer(6)), (Answer::Old, Answer::Wiped));
    }

    #[test]
    fn blocks_that_are_found_before_the_seal_are_copied_first() {
        let mut sync = settle();
        [A, B].into_iter().for_each(|peer| assert_eq!(sync.tells(peer, true, false), peer == B));
        assert_eq!((sync.next(false), sync.phase), (Next::Wait, Phase::Drain));
        assert!(sync.add(UNIT, blocks(3, 4)), "writes go on");
        assert_eq!(sync.next(true), Next::Queue);
        copy(&mut sync);
        assert_eq!(sync.next(true), Next::Seal);
    }

    #[test]
    fn blocks_that_can_not_be_read_are_tried_once_more() {
        let mut sync = settle();
        sync.add(UNIT, blocks(0, 4));
        [A, B].into_iter().for_each(|peer| assert_eq!(sync.tells(peer, true, false), peer == B));
        copy(&mut sync);
        let (bad, rest) = (blocks(1, 2), blocks(2, 4));
        assert!(!sync.skip(UNIT, bad, rest));
        copy(&mut sync);
        assert_eq!((sync.next(true), sync.phase), (Next::Wait, Phase::Copy));
        sync.read_again();
        copy(&mut sync);
        assert!(sync.skip(UNIT, bad, BlockSet::EMPTY), "they are lost");
        assert_eq!(sync.next(true), Next::Seal);
    }

    #[test]
    fn peers_are_asked_again_when_the_primary_has_other_content() {
        let mut sync = settle();
        [A, B].into_iter().for_each(|peer| assert_eq!(sync.tells(peer, true, false), peer == B));
        sync.ask_anew();
        assert_eq!((sync.next(true), sync.phase), (Next::Ask, Phase::Copy));
    }

    #[test]
    #[should_panic = "no peer is sealed before"]
    fn a_peer_that_lacks_blocks_is_not_sealed() {
        let mut sync = settle();
        sync.add(UNIT, blocks(0, 1));
        sync.seal(0);
    }
}
