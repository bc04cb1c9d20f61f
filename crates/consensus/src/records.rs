//! Entries, messages and configurations as bytes, on the disk and on links.
//!
//! Our own Protocol Buffers, with the fields of the library's: its parser never sees what comes from a
//! link. Tags are part of the format: never reuse one.

use prost::Message as _;
use raft::eraftpb;

/// One entry of the replicated log.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Entry {
    /// 0: data of the owner, or nothing; 2: a change of the configuration.
    #[prost(int32, tag = "1")]
    pub kind: i32,
    /// The term in which it was proposed.
    #[prost(uint64, tag = "2")]
    pub term: u64,
    /// Its place.
    #[prost(uint64, tag = "3")]
    pub index: u64,
    /// What it says.
    #[prost(bytes = "vec", tag = "4")]
    pub data: Vec<u8>,
    /// A change of the configuration, as [`Change`]; empty: the end of a joint one.
    #[prost(bytes = "vec", tag = "6")]
    pub context: Vec<u8>,
}

/// What a member must not forget.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct HardState {
    /// The newest term that it has heard of.
    #[prost(uint64, tag = "1")]
    pub term: u64,
    /// Whom it has voted for in that term; 0: nobody.
    #[prost(uint64, tag = "2")]
    pub vote: u64,
    /// Up to here entries are known to be committed. May be behind the truth.
    #[prost(uint64, tag = "3")]
    pub commit: u64,
}

/// Who belongs to the cluster.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Membership {
    /// Whose agreement counts.
    #[prost(uint64, repeated, tag = "1")]
    pub voters: Vec<u64>,
    /// Those who get everything, and don't count yet.
    #[prost(uint64, repeated, tag = "2")]
    pub learners: Vec<u64>,
    /// While several change at once: who counted before. Both majorities have to agree.
    #[prost(uint64, repeated, tag = "3")]
    pub outgoing: Vec<u64>,
    /// Those who are learners afterwards.
    #[prost(uint64, repeated, tag = "4")]
    pub learners_next: Vec<u64>,
    /// The leader ends it by itself.
    #[prost(bool, tag = "5")]
    pub auto_leave: bool,
}

impl Membership {
    /// Everybody in it; some more than once.
    pub fn ids(&self) -> impl Iterator<Item = u64> {
        let parts = [&self.voters, &self.learners, &self.outgoing, &self.learners_next];
        parts.into_iter().flatten().copied()
    }

    /// Everybody in it, in order.
    pub fn all(&self) -> Vec<u64> {
        let mut all: Vec<u64> = self.ids().collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// A state at some entry, without the entries before.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Base {
    /// The last entry that is in it.
    #[prost(uint64, tag = "1")]
    pub index: u64,
    /// That entry's term.
    #[prost(uint64, tag = "2")]
    pub term: u64,
    /// Who belonged to the cluster.
    #[prost(message, required, tag = "3")]
    pub membership: Membership,
    /// The owner's state.
    #[prost(bytes = "vec", tag = "4")]
    pub data: Vec<u8>,
}

/// Everything that a member remembers.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Image {
    /// Who it is.
    #[prost(uint64, tag = "1")]
    pub me: u64,
    /// What it must not forget.
    #[prost(message, required, tag = "2")]
    pub hard: HardState,
    /// A state,
    #[prost(message, required, tag = "3")]
    pub base: Base,
    /// and the entries since.
    #[prost(message, repeated, tag = "4")]
    pub entries: Vec<Entry>,
}

/// What is written between two images.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Record {
    /// The hard state changed.
    #[prost(message, optional, tag = "1")]
    pub hard: Option<HardState>,
    /// An entry came; those with its index and above are gone.
    #[prost(message, optional, tag = "2")]
    pub entry: Option<Entry>,
}

impl Image {
    /// The beginning of a cluster: a state in which this member is alone. Not at index 0, so that whoever
    /// joins gets the state, and with it the configuration.
    pub fn first(me: u64, data: Vec<u8>) -> Image {
        let membership = Membership { voters: vec![me], ..Membership::default() };
        let base = Base { index: 1, term: 1, membership, data };
        Image { me, hard: HardState { term: 1, vote: 0, commit: 1 }, base, entries: Vec::new() }
    }

    /// A member that knows nothing yet and waits to be told.
    pub fn newcomer(me: u64) -> Image {
        Image { me, ..Image::default() }
    }

    /// Takes in what was written since. False, and nothing is changed, if it can't follow.
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

    /// The index and term of its last entry.
    pub fn last(&self) -> (u64, u64) {
        self.entries.last().map_or((self.base.index, self.base.term), |e| (e.index, e.term))
    }
}

/// A change of the configuration.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Change {
    /// Become voters.
    #[prost(uint64, repeated, tag = "1")]
    pub voters: Vec<u64>,
    /// Become learners.
    #[prost(uint64, repeated, tag = "2")]
    pub learners: Vec<u64>,
    /// Go.
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

/// What members say to each other.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Message {
    /// The library's number of the kind.
    #[prost(int32, tag = "1")]
    pub kind: i32,
    /// To whom.
    #[prost(uint64, tag = "2")]
    pub to: u64,
    /// From whom.
    #[prost(uint64, tag = "3")]
    pub from: u64,
    /// The sender's term.
    #[prost(uint64, tag = "4")]
    pub term: u64,
    /// The term of the entry at `index`.
    #[prost(uint64, tag = "5")]
    pub log_term: u64,
    /// The entry that others follow, the last one of a candidate, or the one that an answer is about.
    #[prost(uint64, tag = "6")]
    pub index: u64,
    /// Entries behind `index`; of a question, its name.
    #[prost(message, repeated, tag = "7")]
    pub entries: Vec<Entry>,
    /// Up to here the sender knows entries to be committed.
    #[prost(uint64, tag = "8")]
    pub commit: u64,
    /// A whole state.
    #[prost(message, optional, tag = "9")]
    pub base: Option<Base>,
    /// A refusal.
    #[prost(bool, tag = "10")]
    pub reject: bool,
    /// With a refusal: where the sender can go on.
    #[prost(uint64, tag = "11")]
    pub reject_hint: u64,
    /// The name of a question, or why somebody stands for election.
    #[prost(bytes = "vec", tag = "12")]
    pub context: Vec<u8>,
    /// The sender wants a state of at least this entry.
    #[prost(uint64, tag = "13")]
    pub request_snapshot: u64,
    /// The term of the entry at `commit`.
    #[prost(uint64, tag = "15")]
    pub commit_term: u64,
    /// A candidate's rank.
    #[prost(sint64, tag = "16")]
    pub priority: i64,
}

impl Message {
    /// The message of these bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Message> {
        let message = Message::decode(bytes).ok()?;
        eraftpb::MessageType::from_i32(message.kind)?;
        let known = |e: &Entry| eraftpb::EntryType::from_i32(e.kind).is_some();
        message.entries.iter().all(known).then_some(message)
    }

    /// What kind it is, for people.
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

    /// True for a whole state, which may be long.
    pub fn is_snapshot(&self) -> bool {
        self.base.is_some()
    }
}

/// The library's enumerations know their numbers only one way.
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
// Those that come from others; the rest are a member's words to itself.
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
    entry.set_entry_type(eraftpb::EntryType::from_i32(e.kind).unwrap_or(EntryNormal));
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
