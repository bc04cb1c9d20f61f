//! Entries, messages and membership as bytes, on the disk and on links.
//!
//! These are our own Protocol Buffers, with the fields of the library's: its parser never sees
//! bytes that come from a link. Tags are part of the format: never reuse one.

use prost::Message as _;
use raft::eraftpb;

/// One entry of the replicated log.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Entry {
    /// 0: the owner's data, or empty. 2: a change of the membership.
    #[prost(int32, tag = "1")]
    pub kind: i32,
    /// The term in which it was proposed.
    #[prost(uint64, tag = "2")]
    pub term: u64,
    /// Its index in the log.
    #[prost(uint64, tag = "3")]
    pub index: u64,
    /// The owner's data, or empty. In a change of the membership, this is the library's encoding of
    /// it.
    #[prost(bytes = "vec", tag = "4")]
    pub data: Vec<u8>,
    /// A change of the membership, as [`Change`]. Empty for the end of a joint change.
    #[prost(bytes = "vec", tag = "6")]
    pub context: Vec<u8>,
}

/// The state of a member that has to survive a restart.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct HardState {
    /// The newest term that the member has heard of.
    #[prost(uint64, tag = "1")]
    pub term: u64,
    /// The member for which it voted in that term; 0 if it has not voted.
    #[prost(uint64, tag = "2")]
    pub vote: u64,
    /// Entries up to this index are known to be committed. It may be behind the truth.
    #[prost(uint64, tag = "3")]
    pub commit: u64,
}

/// The members of the cluster.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Membership {
    /// Members whose votes count.
    #[prost(uint64, repeated, tag = "1")]
    pub voters: Vec<u64>,
    /// Members that receive everything, and have no vote yet.
    #[prost(uint64, repeated, tag = "2")]
    pub learners: Vec<u64>,
    /// During a joint change: the voters before it. Both majorities have to agree.
    #[prost(uint64, repeated, tag = "3")]
    pub outgoing: Vec<u64>,
    /// Outgoing voters that are learners after the joint change.
    #[prost(uint64, repeated, tag = "4")]
    pub learners_next: Vec<u64>,
    /// The leader ends the joint change by itself.
    #[prost(bool, tag = "5")]
    pub auto_leave: bool,
}

impl Membership {
    /// Iterates over all members. Some may occur more than once.
    pub fn ids(&self) -> impl Iterator<Item = u64> {
        let parts = [&self.voters, &self.learners, &self.outgoing, &self.learners_next];
        parts.into_iter().flatten().copied()
    }

    /// Returns all members, sorted, each of them once.
    pub fn all(&self) -> Vec<u64> {
        let mut all: Vec<u64> = self.ids().collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// A state as of some entry. It replaces the entries up to that one.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Base {
    /// Index of the last entry that the state contains.
    #[prost(uint64, tag = "1")]
    pub index: u64,
    /// Term of that entry.
    #[prost(uint64, tag = "2")]
    pub term: u64,
    /// The membership as of that entry.
    #[prost(message, required, tag = "3")]
    pub membership: Membership,
    /// The owner's state.
    #[prost(bytes = "vec", tag = "4")]
    pub data: Vec<u8>,
}

/// Everything that a member remembers.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Image {
    /// Id of the member.
    #[prost(uint64, tag = "1")]
    pub me: u64,
    /// Term, vote and commit index.
    #[prost(message, required, tag = "2")]
    pub hard: HardState,
    /// The owner's state as of some entry.
    #[prost(message, required, tag = "3")]
    pub base: Base,
    /// The entries after that state.
    #[prost(message, repeated, tag = "4")]
    pub entries: Vec<Entry>,
}

/// A record that is written between two images.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Record {
    /// The new hard state.
    #[prost(message, optional, tag = "1")]
    pub hard: Option<HardState>,
    /// A new entry. It replaces entries with the same or a higher index.
    #[prost(message, optional, tag = "2")]
    pub entry: Option<Entry>,
}

impl Entry {
    /// Returns true if this build knows what kind of entry it is.
    pub fn is_known(&self) -> bool {
        eraftpb::EntryType::from_i32(self.kind).is_some()
    }
}

impl Image {
    /// Returns the first image of a new cluster: a state in which this member is the only one. Its
    /// index is not 0, so that joining members are sent the state, and with it the membership.
    pub fn first(me: u64, data: Vec<u8>) -> Image {
        let membership = Membership { voters: vec![me], ..Membership::default() };
        let base = Base { index: 1, term: 1, membership, data };
        Image { me, hard: HardState { term: 1, vote: 0, commit: 1 }, base, entries: Vec::new() }
    }

    /// Returns the image of a member that knows nothing yet, and waits for a leader.
    pub fn newcomer(me: u64) -> Image {
        Image { me, ..Image::default() }
    }

    /// Applies a record that was written after this image. Returns false, and changes nothing, if
    /// the record leaves a gap.
    pub fn replay(&mut self, record: Record) -> bool {
        if let Some(entry) = record.entry {
            let first = self.base.index + 1;
            if entry.index < first || entry.index > first + self.entries.len() as u64 {
                return false;
            }
            self.entries.truncate((entry.index - first) as usize);
            self.entries.push(entry);
        }
        if let Some(hard) = record.hard {
            self.hard = hard;
        }
        true
    }

    /// Returns the index and the term of the last entry.
    pub fn last(&self) -> (u64, u64) {
        self.entries.last().map_or((self.base.index, self.base.term), |e| (e.index, e.term))
    }
}

/// A change of the membership.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Change {
    /// Members that become voters.
    #[prost(uint64, repeated, tag = "1")]
    pub voters: Vec<u64>,
    /// Members that become learners.
    #[prost(uint64, repeated, tag = "2")]
    pub learners: Vec<u64>,
    /// Members that leave.
    #[prost(uint64, repeated, tag = "3")]
    pub gone: Vec<u64>,
}

impl Change {
    pub(crate) fn to_raft(&self) -> eraftpb::ConfChangeV2 {
        use eraftpb::ConfChangeType::{AddLearnerNode, AddNode, RemoveNode};
        let kinds =
            [(AddNode, &self.voters), (AddLearnerNode, &self.learners), (RemoveNode, &self.gone)];
        let mut changes = Vec::new();
        for (kind, ids) in kinds {
            for id in ids {
                let mut one = eraftpb::ConfChangeSingle::default();
                one.set_change_type(kind);
                one.node_id = *id;
                changes.push(one);
            }
        }
        let mut all = eraftpb::ConfChangeV2::default();
        all.set_changes(changes.into());
        all
    }
}

/// A message between members.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Message {
    /// Kind of the message: the number that the library gives it.
    #[prost(int32, tag = "1")]
    pub kind: i32,
    /// Id of the receiver.
    #[prost(uint64, tag = "2")]
    pub to: u64,
    /// Id of the sender.
    #[prost(uint64, tag = "3")]
    pub from: u64,
    /// The sender's term.
    #[prost(uint64, tag = "4")]
    pub term: u64,
    /// The term of the entry at `index`.
    #[prost(uint64, tag = "5")]
    pub log_term: u64,
    /// The entry before `entries`, the last entry of a candidate, or the entry that an answer is
    /// about.
    #[prost(uint64, tag = "6")]
    pub index: u64,
    /// Entries after `index`. In a question (read index), one entry whose data is the question's
    /// id.
    #[prost(message, repeated, tag = "7")]
    pub entries: Vec<Entry>,
    /// The sender knows that entries up to this index are committed.
    #[prost(uint64, tag = "8")]
    pub commit: u64,
    /// A whole state (a snapshot).
    #[prost(message, optional, tag = "9")]
    pub base: Option<Base>,
    /// This answer is a refusal.
    #[prost(bool, tag = "10")]
    pub reject: bool,
    /// In a refusal: the index from which the sender of the refusal can continue.
    #[prost(uint64, tag = "11")]
    pub reject_hint: u64,
    /// The id of a question, or the reason for an election.
    #[prost(bytes = "vec", tag = "12")]
    pub context: Vec<u8>,
    /// The sender wants a snapshot of this entry or a later one.
    #[prost(uint64, tag = "13")]
    pub request_snapshot: u64,
    /// The term of the entry at `commit`.
    #[prost(uint64, tag = "15")]
    pub commit_term: u64,
    /// The priority of a candidate.
    #[prost(sint64, tag = "16")]
    pub priority: i64,
}

impl Message {
    /// Decodes a message. Returns `None` if the bytes are malformed, or of an unknown kind.
    pub fn from_bytes(bytes: &[u8]) -> Option<Message> {
        let message = Message::decode(bytes).ok()?;
        eraftpb::MessageType::from_i32(message.kind)?;
        message.entries.iter().all(Entry::is_known).then_some(message)
    }

    /// Returns the name of its kind, for people.
    pub fn name(&self) -> &'static str {
        use eraftpb::MessageType::*;
        match eraftpb::MessageType::from_i32(self.kind) {
            Some(MsgAppend) => "append",
            Some(MsgAppendResponse) => "appended",
            Some(MsgRequestVote) => "vote?",
            Some(MsgRequestVoteResponse) => "vote",
            Some(MsgRequestPreVote) => "would you vote?",
            Some(MsgRequestPreVoteResponse) => "would vote",
            Some(MsgSnapshot) => "snapshot",
            Some(MsgHeartbeat) => "heartbeat",
            Some(MsgHeartbeatResponse) => "heard",
            Some(MsgTimeoutNow) => "lead now",
            _ => "other",
        }
    }
}

/// Conversion from numbers: the library's enumerations only convert to numbers.
trait FromNumber: Sized {
    fn from_i32(number: i32) -> Option<Self>;
}

macro_rules! from_number {
    ($name:ty, $values:expr) => {
        impl FromNumber for $name {
            fn from_i32(number: i32) -> Option<Self> {
                $values.into_iter().find(|v| *v as i32 == number)
            }
        }
    };
}

use eraftpb::EntryType::*;
use eraftpb::MessageType::*;
from_number!(eraftpb::EntryType, [EntryNormal, EntryConfChange, EntryConfChangeV2]);
// The kinds that come from other members. The rest stay within a member, except for proposals: a
// member that does not lead would forward them, but owners propose only while they lead.
from_number!(
    eraftpb::MessageType,
    [
        MsgAppend,
        MsgAppendResponse,
        MsgRequestVote,
        MsgRequestVoteResponse,
        MsgSnapshot,
        MsgHeartbeat,
        MsgHeartbeatResponse,
        MsgTransferLeader,
        MsgTimeoutNow,
        MsgReadIndex,
        MsgReadIndexResp,
        MsgRequestPreVote,
        MsgRequestPreVoteResponse,
    ]
);

pub(crate) fn entry_of(e: &eraftpb::Entry) -> Entry {
    Entry {
        kind: e.get_entry_type() as i32,
        term: e.term,
        index: e.index,
        data: e.data.to_vec(),
        context: e.context.to_vec(),
    }
}

pub(crate) fn entry_to(e: Entry) -> eraftpb::Entry {
    let mut entry = eraftpb::Entry::default();
    let kind = eraftpb::EntryType::from_i32(e.kind).expect("unknown kinds are refused when read");
    entry.set_entry_type(kind);
    (entry.term, entry.index) = (e.term, e.index);
    (entry.data, entry.context) = (e.data.into(), e.context.into());
    entry
}

pub(crate) fn hard_of(h: &eraftpb::HardState) -> HardState {
    HardState { term: h.term, vote: h.vote, commit: h.commit }
}

pub(crate) fn hard_to(h: HardState) -> eraftpb::HardState {
    let mut hard = eraftpb::HardState::default();
    (hard.term, hard.vote, hard.commit) = (h.term, h.vote, h.commit);
    hard
}

pub(crate) fn membership_of(c: &eraftpb::ConfState) -> Membership {
    Membership {
        voters: c.voters.to_vec(),
        learners: c.learners.to_vec(),
        outgoing: c.voters_outgoing.to_vec(),
        learners_next: c.learners_next.to_vec(),
        auto_leave: c.auto_leave,
    }
}

pub(crate) fn membership_to(m: &Membership) -> eraftpb::ConfState {
    eraftpb::ConfState {
        voters: m.voters.clone(),
        learners: m.learners.clone(),
        voters_outgoing: m.outgoing.clone(),
        learners_next: m.learners_next.clone(),
        auto_leave: m.auto_leave,
        ..eraftpb::ConfState::default()
    }
}

pub(crate) fn base_of(s: &eraftpb::Snapshot) -> Base {
    let meta = s.get_metadata();
    let membership = membership_of(meta.get_conf_state());
    Base { index: meta.index, term: meta.term, membership, data: s.data.to_vec() }
}

pub(crate) fn base_to(b: &Base) -> eraftpb::Snapshot {
    let data = b.data.clone().into();
    let mut snapshot = eraftpb::Snapshot { data, ..eraftpb::Snapshot::default() };
    let meta = snapshot.mut_metadata();
    (meta.index, meta.term) = (b.index, b.term);
    meta.set_conf_state(membership_to(&b.membership));
    snapshot
}

pub(crate) fn message_of(m: &eraftpb::Message) -> Message {
    Message {
        kind: m.get_msg_type() as i32,
        to: m.to,
        from: m.from,
        term: m.term,
        log_term: m.log_term,
        index: m.index,
        entries: m.entries.iter().map(entry_of).collect(),
        commit: m.commit,
        base: (m.get_msg_type() == MsgSnapshot).then(|| base_of(m.get_snapshot())),
        reject: m.reject,
        reject_hint: m.reject_hint,
        context: m.context.to_vec(),
        request_snapshot: m.request_snapshot,
        commit_term: m.commit_term,
        priority: m.priority,
    }
}

pub(crate) fn message_to(m: Message) -> eraftpb::Message {
    let mut to = eraftpb::Message::default();
    to.set_msg_type(eraftpb::MessageType::from_i32(m.kind).expect("checked when it was read"));
    (to.to, to.from, to.term) = (m.to, m.from, m.term);
    (to.log_term, to.index, to.commit) = (m.log_term, m.index, m.commit);
    to.set_entries(m.entries.into_iter().map(entry_to).collect::<Vec<_>>().into());
    if let Some(base) = &m.base {
        to.set_snapshot(base_to(base));
    }
    (to.reject, to.reject_hint) = (m.reject, m.reject_hint);
    to.context = m.context.into();
    (to.request_snapshot, to.commit_term) = (m.request_snapshot, m.commit_term);
    to.priority = m.priority;
    to
}
