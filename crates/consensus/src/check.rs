//! Checks of messages from other members, and of the member's own image from disk.
//!
//! The library trusts every message. A number near the end of its range, a gap between entries, or
//! an entry that replaces a committed one would end the process. By then, the message's term may be
//! on the disk. So each message is compared with what an honest member can send. These checks do
//! not find out who sent a message: the owner does that.

use crate::engine::Consensus;
use crate::records::{Image, Membership, Message};
use raft::StateRole;
use raft::eraftpb::MessageType;

/// A term or an index may be above our own by this much at most. Each term costs an election, and
/// each index an entry, so no honest member is further ahead.
const REACH: u64 = 1 << 32;
/// The same limit for a member that has nothing yet. It is also the highest number that is believed
/// in an image from disk.
const END: u64 = 1 << 48;

/// Why a message was refused. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// The leader knows that this member's log was longer: it has lost entries.
    Behind {
        /// Index of its last entry.
        last: u64,
        /// Index up to which, as the leader knows, this member had entries.
        known: u64,
    },
    /// No honest member sends such a message. The text says why.
    Nonsense(&'static str),
}

impl Image {
    /// Returns the name and the value of a number that no cluster ever reaches, if the image
    /// contains one. The library cannot count on from such a number.
    pub fn implausible(&self) -> Option<(&'static str, u64)> {
        let (index, term) = self.last();
        let numbers = [
            ("term", self.hard.term.max(term)),
            ("entry", index),
            ("commit", self.hard.commit),
            ("vote", self.hard.vote),
        ];
        numbers.into_iter().find(|(_, number)| *number > END)
    }
}

impl Consensus {
    /// Checks that an honest member can send this message to this one.
    pub(crate) fn check(&self, m: &Message) -> Result<(), Wrong> {
        let kind = |kind: MessageType| m.kind == kind as i32;
        if m.from == self.id() || m.from == 0 {
            return Err(Wrong::Nonsense("a message in the name of this member, or of none"));
        }
        // The library takes a message without a term for one of its own.
        if m.term == 0 && !kind(MessageType::MsgReadIndex) {
            return Err(Wrong::Nonsense("a message without a term"));
        }
        self.check_reach(m)?;
        let entries = match () {
            () if kind(MessageType::MsgAppend) => self.check_entries(m),
            () if kind(MessageType::MsgReadIndex) || kind(MessageType::MsgReadIndexResp) => {
                m.entries.len() == 1
            }
            () => m.entries.is_empty(),
        };
        if !entries {
            return Err(Wrong::Nonsense("entries that follow nothing, or are others than decided"));
        }
        if kind(MessageType::MsgSnapshot) != m.base.is_some() {
            return Err(Wrong::Nonsense("a state where none belongs, or none where one does"));
        }
        if m.base.as_ref().is_some_and(|b| b.term > m.term || !is_sound(&b.membership)) {
            return Err(Wrong::Nonsense("a state that no leader has"));
        }
        // A follower has no entry that its leader lacks.
        let answer =
            kind(MessageType::MsgAppendResponse) || kind(MessageType::MsgHeartbeatResponse);
        let leads = self.raw.raft.state == StateRole::Leader && m.term == self.raw.raft.term;
        if answer && leads && m.index.max(m.commit) > self.last() {
            return Err(Wrong::Nonsense("an answer to entries that don't exist"));
        }
        Ok(())
    }

    fn check_reach(&self, m: &Message) -> Result<(), Wrong> {
        let reach = |own: u64| if own == 0 { END } else { own.saturating_add(REACH) };
        let (base_term, base_index) = m.base.as_ref().map_or((0, 0), |b| (b.term, b.index));
        let term = [m.term, m.log_term, m.commit_term, base_term].into_iter().max();
        if term > Some(reach(self.raw.raft.term)) {
            return Err(Wrong::Nonsense("a term that is far above all that was ever there"));
        }
        let hints = m.reject_hint.max(m.request_snapshot);
        let index = [m.index, m.commit, hints, base_index].into_iter().max();
        if index > Some(reach(self.last())) {
            return Err(Wrong::Nonsense(
                "an entry's number that is far above all that were ever there",
            ));
        }
        Ok(())
    }

    /// True if the entries follow the one before them without a gap, if their terms do not fall,
    /// and if they have the terms that this member knows of committed entries.
    fn check_entries(&self, m: &Message) -> bool {
        let (mut index, mut term) = (m.index, m.log_term);
        let decided = self.committed();
        let current = m.term >= self.raw.raft.term;
        m.entries.iter().all(|e| {
            let follows = e.index == index + 1 && e.term >= term && e.term <= m.term;
            (index, term) = (e.index, e.term);
            let known = self.raw.store().term_of(e.index).filter(|_| e.index <= decided);
            follows && (!current || known.is_none_or(|known| known == e.term))
        })
    }
}

/// True if the library accepts this membership.
fn is_sound(m: &Membership) -> bool {
    let once = |list: &[u64]| {
        let mut sorted = list.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        sorted.len() == list.len() && !list.contains(&0)
    };
    let lists = [&m.voters, &m.learners, &m.outgoing, &m.learners_next];
    let votes = |id: &u64| m.voters.contains(id) || m.outgoing.contains(id);
    lists.into_iter().all(|list| once(list))
        && !m.voters.is_empty()
        && !m.learners.iter().any(votes)
        && m.learners_next.iter().all(|id| m.outgoing.contains(id) && !m.voters.contains(id))
        && (!m.outgoing.is_empty() || !m.auto_leave)
}
