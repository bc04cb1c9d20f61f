//! One member: the library, its memory, and the messages that wait for the disk.

use crate::check::Wrong;
use crate::memory::LogStorage;
use crate::outbox::Outbox;
use crate::records::{
    Base, Change, Entry, HardState, Image, Membership, Message, base_of, entry_of, hard_of,
    membership_of, message_of, message_to,
};
use base::Prng;
use prost::Message as _;
use raft::eraftpb::{EntryType, MessageType};
use raft::{RawNode, SnapshotStatus, StateRole};
use std::collections::BTreeMap;

/// A member that hears no leader stands for election after at least this many ticks.
const ELECTION_TICKS: usize = 10;
/// A random number of ticks below this one is added to the election timeout.
const SPREAD_TICKS: usize = 10;
/// Added to the election timeout of a member that should rather not lead.
const LATE_TICKS: usize = 5;
/// Ticks between two heartbeats.
const HEARTBEAT_TICKS: usize = 2;
/// A leader reports a member as silent after this many ticks without a message from it. Ten
/// heartbeats go out in that time.
const SILENT_TICKS: u64 = 20;
/// After this many ticks a leader stops waiting for the answer to a snapshot.
const SNAPSHOT_TICKS: u32 = 40;
/// Approximate limit of the bytes of entries in one message.
const MESSAGE_BYTES: u64 = 1 << 20;
/// Limit of the messages with entries that one member has not answered.
const IN_FLIGHT: usize = 64;

/// The leader, as far as this member knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Leadership {
    /// The newest term that this member knows.
    pub term: u64,
    /// The leader in that term; 0 if this member knows none.
    pub leader: u64,
    /// This member is the leader, and its term and vote are durable.
    pub leads: bool,
}

/// Content of an entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EntryKind {
    /// Empty: a leader's first entry, or its first one after a change of the membership.
    Nothing,
    /// The owner's data.
    Data(Vec<u8>),
    /// A change of the membership. It is in effect here already.
    Members,
}

/// A committed entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Committed {
    /// Its index in the log.
    pub index: u64,
    /// Its term.
    pub term: u64,
    /// Its content.
    pub meaning: EntryKind,
}

/// The tasks of the owner, in this order.
#[derive(Default, Debug)]
pub struct Output {
    /// A leader's state, which replaces the owner's.
    pub restored: Option<Vec<u8>>,
    /// Entries to apply.
    pub committed: Vec<Committed>,
    /// Messages to send.
    pub send: Vec<Message>,
    /// Answered questions ([`Consensus::confirm`]): this member was the leader when they were
    /// asked.
    pub confirmed: Vec<u64>,
}

/// How a leader sees a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Id of the member.
    pub id: u64,
    /// The member is known to have all entries up to this index.
    pub matched: u64,
    /// Its vote counts.
    pub voter: bool,
    /// It has sent a message of this term, and is not silent. The leader itself counts as heard.
    pub heard: bool,
    /// It has sent nothing for so long that it counts as down. Just after an election, a member is
    /// neither heard nor silent.
    pub silent: bool,
}

/// One member.
pub struct Consensus {
    pub(crate) raw: RawNode<LogStorage>,
    outbox: Outbox,
    membership: Membership,
    applied: u64,
    /// When this entry is applied, a majority of the present members durably know the present
    /// membership. The entry was appended after the change was known to be committed, and that
    /// knowledge is sent and written with it.
    settles: u64,
    /// A leader's state arrived and is not durable yet, so the library is not told that it is
    /// applied. Until then this member must not stand for election: the library would look for the
    /// entries that the state replaced.
    restoring: bool,
    late: bool,
    prng: Prng,
    /// The term and role for which the election timeout was drawn, and the timeout in ticks.
    drawn: (u64, StateRole, usize),
    /// Per member: for how many ticks this leader has been waiting for the answer to a snapshot.
    snapshots: BTreeMap<u64, u32>,
    /// Number of ticks so far.
    ticks: u64,
    /// The tick at which the present term and role began.
    since: u64,
    /// The last tick at which each member was heard, in the present term and role. (The library
    /// only knows which members it heard since its last quorum check, which may be a moment ago.)
    heard: BTreeMap<u64, u64>,
}

impl Consensus {
    /// Creates a member that continues from `image`. With `late`, it should rather not lead.
    pub fn new(mut image: Image, late: bool, prng: Prng) -> Consensus {
        image.hard.commit = image.hard.commit.min(image.last().0).max(image.base.index);
        // The term is never lower than that of the last entry.
        image.hard.term = image.hard.term.max(image.last().1);
        let (applied, membership) = (image.base.index, image.base.membership.clone());
        let config = raft::Config {
            id: image.me,
            election_tick: ELECTION_TICKS,
            heartbeat_tick: HEARTBEAT_TICKS,
            applied,
            max_size_per_msg: MESSAGE_BYTES,
            max_inflight_msgs: IN_FLIGHT,
            check_quorum: true,
            pre_vote: true,
            min_election_tick: ELECTION_TICKS,
            max_election_tick: ELECTION_TICKS + SPREAD_TICKS + LATE_TICKS,
            ..raft::Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let raw =
            RawNode::new(&config, LogStorage::new(image), &logger).expect("the settings are sound");
        let drawn = (0, StateRole::Follower, 0);
        let outbox = Outbox::default();
        let restoring = false;
        let snapshots = BTreeMap::new();
        let settles = 0;
        let mut new = Consensus {
            raw,
            outbox,
            membership,
            applied,
            settles,
            restoring,
            late,
            prng,
            drawn,
            snapshots,
            ticks: 0,
            since: 0,
            heard: BTreeMap::new(),
        };
        new.settles = new.last() + 1;
        new.draw();
        new
    }

    /// Sets the election timeout from our own generator. The library draws it from the system's
    /// random numbers, so this runs after each step.
    fn draw(&mut self) {
        let now = (self.raw.raft.term, self.raw.raft.state);
        if (self.drawn.0, self.drawn.1) != now || self.drawn.2 == 0 {
            let late = if self.late { LATE_TICKS } else { 0 };
            let ticks = ELECTION_TICKS + late + self.prng.below(SPREAD_TICKS as u64) as usize;
            self.drawn = (now.0, now.1, ticks);
            self.since = self.ticks;
            self.heard.clear();
        }
        self.raw.raft.set_randomized_election_timeout(self.drawn.2);
    }

    /// Returns this member's id.
    pub fn id(&self) -> u64 {
        self.raw.raft.id
    }

    /// Returns the term and the leader.
    pub fn role(&self) -> Leadership {
        let raft = &self.raw.raft;
        let hard = self.raw.store().hard;
        let sure = (hard.term, hard.vote) == (raft.term, raft.vote) && !self.outbox.is_unsure();
        let leads = raft.state == StateRole::Leader && sure;
        Leadership { term: raft.term, leader: raft.leader_id, leads }
    }

    /// Returns the membership as of the last entry that was applied.
    pub fn membership(&self) -> &Membership {
        &self.membership
    }

    /// True while member `id` may be needed. That is the case while it belongs to the cluster, and
    /// also for a while after its removal. A commit index is only written with the next entry, so
    /// the remaining members may not know of the removal when they start again. They would then ask
    /// for the votes of the former members.
    pub fn counts(&self, id: u64) -> bool {
        self.membership.all().contains(&id) || self.applied < self.settles
    }

    /// True if this member is the only one of the cluster.
    pub fn is_alone(&self) -> bool {
        let (me, mut ids) = (self.id(), self.membership.ids());
        ids.next() == Some(me) && ids.all(|id| id == me)
    }

    /// True if this member decides without the others: it is the only one that votes.
    pub fn is_only_voter(&self) -> bool {
        self.membership.voters == [self.id()] && self.membership.outgoing.is_empty()
    }

    /// Returns the index of the last entry that was handed out.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// Returns the index of the last entry that is known to be committed.
    pub fn committed(&self) -> u64 {
        self.raw.raft.raft_log.committed
    }

    /// Returns the index of the last entry that this member has.
    pub fn last(&self) -> u64 {
        self.raw.raft.raft_log.last_index()
    }

    /// Returns the term of the last entry. Of two logs, the one with the higher term at its end is
    /// the newer one, whatever their lengths are.
    pub fn last_term(&self) -> u64 {
        self.raw.raft.raft_log.last_term()
    }

    /// Returns how this leader sees all members, itself included; empty if it does not lead.
    pub fn peers(&self) -> Vec<Peer> {
        let raft = &self.raw.raft;
        if raft.state != StateRole::Leader {
            return Vec::new();
        }
        let voters = [&self.membership.voters, &self.membership.outgoing];
        let one = |(id, p): (&u64, &raft::Progress)| {
            let heard = self.heard.get(id);
            let late = self.ticks - heard.unwrap_or(&self.since) > SILENT_TICKS;
            let me = *id == raft.id;
            Peer {
                id: *id,
                matched: p.matched,
                voter: voters.iter().any(|v| v.contains(id)),
                heard: me || (heard.is_some() && !late),
                silent: !me && late,
            }
        };
        let mut peers: Vec<Peer> = raft.prs().iter().map(one).collect();
        peers.sort_by_key(|p| p.id);
        peers
    }

    /// Advances time by one tick.
    pub fn tick(&mut self) {
        self.ticks += 1;
        // When a sole voter begins to lead, the library requires that all its entries are durable.
        let alone = self.membership.voters == [self.id()];
        let early = alone && !self.role().leads && !self.outbox.is_clean();
        if !(early || self.restoring) {
            self.raw.tick();
        }
        self.resend_snapshots();
        self.draw();
    }

    /// Stops waiting for the answers to old snapshots. The library waits for an answer forever, but
    /// it may get lost on its way back.
    fn resend_snapshots(&mut self) {
        let waits = |(id, p): (&u64, &raft::Progress)| {
            (p.state == raft::ProgressState::Snapshot).then_some(*id)
        };
        let raft = &self.raw.raft;
        let waiting: Vec<u64> = match raft.state {
            StateRole::Leader => raft.prs().iter().filter_map(waits).collect(),
            _ => Vec::new(),
        };
        self.snapshots.retain(|id, _| waiting.contains(id));
        for id in waiting {
            let ticks = self.snapshots.entry(id).or_default();
            *ticks += 1;
            if *ticks > SNAPSHOT_TICKS {
                *ticks = 0;
                self.raw.report_snapshot(id, SnapshotStatus::Finish);
            }
        }
    }

    /// Stands for election at once. A sole voter becomes the leader with that.
    pub fn campaign(&mut self) {
        if !self.restoring {
            let _ = self.raw.campaign();
        }
        self.draw();
    }

    /// Processes a message. Outdated messages are ignored.
    ///
    /// # Errors
    /// Returns an error, and changes nothing, if no honest member sends such a message, or if this
    /// member's log has lost entries ([`Wrong::Behind`]).
    pub fn step(&mut self, mut message: Message) -> Result<(), Wrong> {
        self.check(&message)?;
        let last = self.last();
        // A member with an empty log does not vote: it may have voted before, and lost its log
        // since.
        let asked = [MessageType::MsgRequestVote, MessageType::MsgRequestPreVote];
        if last == 0 && asked.into_iter().any(|kind| message.kind == kind as i32) {
            return Ok(());
        }
        if self.restoring && message.kind == MessageType::MsgTimeoutNow as i32 {
            return Ok(()); // the leader that hands over tries again, or continues to lead
        }
        let heartbeat = message.kind == MessageType::MsgHeartbeat as i32;
        // A heartbeat's commit index is at most what the leader knows this member to have. If the
        // sender is not known to be the leader, the index proves nothing.
        if heartbeat && message.commit > last {
            let raft = &self.raw.raft;
            if (message.from, message.term) == (raft.leader_id, raft.term) {
                return Err(Wrong::Behind { last, known: message.commit });
            }
            message.commit = last;
        }
        let (from, term) = (message.from, message.term);
        let _ = self.raw.step(message_to(message));
        self.draw();
        if term == self.raw.raft.term {
            self.heard.insert(from, self.ticks);
        }
        Ok(())
    }

    /// Proposes an entry, and returns its index. Returns `None` if this member does not lead, or is
    /// handing over.
    pub fn propose(&mut self, data: Vec<u8>) -> Option<u64> {
        let done = self.raw.propose(Vec::new(), data).is_ok();
        (done && self.role().leads).then(|| self.last())
    }

    /// Proposes a change of the membership. Returns false while another change is under way.
    pub fn change(&mut self, change: &Change) -> bool {
        if self.raw.raft.has_pending_conf() || !self.membership.outgoing.is_empty() {
            return false;
        }
        self.raw.propose_conf_change(change.encode_to_vec(), change.to_raft()).is_ok()
    }

    /// Hands the leadership over to `to`, as soon as that member has all entries.
    pub fn transfer(&mut self, to: u64) {
        self.raw.transfer_leader(to);
        self.draw();
    }

    /// True while a handover is under way. Meanwhile nothing can be proposed.
    pub fn is_handing_over(&self) -> bool {
        self.raw.raft.lead_transferee.is_some()
    }

    /// Reports that messages to member `id` may have been lost.
    pub fn unreachable(&mut self, id: u64) {
        self.raw.report_unreachable(id);
        self.raw.report_snapshot(id, SnapshotStatus::Failure);
    }

    /// Asks whether this member still leads. [`Output::confirmed`] contains `question` as soon as a
    /// majority has confirmed it.
    pub fn confirm(&mut self, question: u64) {
        self.raw.read_index(question.to_le_bytes().to_vec());
    }

    /// Returns what the owner has to do now.
    pub fn turn(&mut self) -> Output {
        let mut turn = Output::default();
        while self.raw.has_ready() {
            self.ready(&mut turn);
        }
        self.draw();
        turn
    }

    fn ready(&mut self, turn: &mut Output) {
        let mut ready = self.raw.ready();
        let question = |s: raft::ReadState| s.request_ctx.as_slice().try_into().ok();
        let asked = ready.take_read_states().into_iter().filter_map(question);
        turn.confirmed.extend(asked.map(u64::from_le_bytes));
        if let Some(hard) = ready.hs() {
            let (old, new) = (self.raw.store().hard, hard_of(hard));
            self.outbox.hard(new, (new.term, new.vote) != (old.term, old.vote));
            self.raw.mut_store().hard = new;
        }
        if !ready.snapshot().is_empty() {
            let base = base_of(ready.snapshot());
            turn.committed.clear();
            turn.restored = Some(base.data.clone());
            (self.membership, self.applied) = (base.membership.clone(), base.index);
            self.settles = base.index + 1;
            self.raw.mut_store().restore(base);
            self.outbox.everything();
            self.restoring = true;
        }
        self.raw.mut_store().append(ready.entries());
        ready.entries().iter().for_each(|e| self.outbox.entry(entry_of(e)));
        // A leader's messages need not wait for its own disk. But a sole voter leads as soon as it
        // stands for election, and learners must not hear of its term before the term is durable.
        let mut promises: Vec<Message> = Vec::new();
        let messages = ready.take_messages();
        let free = messages.iter().map(message_of);
        match self.outbox.is_unsure() {
            true => promises.extend(free),
            false => turn.send.extend(free),
        }
        promises.extend(ready.take_persisted_messages().iter().map(message_of));
        let number = ready.number();
        turn.send.extend(self.outbox.wait(number, promises));
        let committed = ready.take_committed_entries();
        self.raw.advance_append_async(ready);
        if self.outbox.is_clean() {
            self.raw.on_persist_ready(number);
        }
        committed.iter().for_each(|e| self.commit(e, turn));
        self.applied_so_far();
    }

    fn applied_so_far(&mut self) {
        self.restoring &= self.outbox.is_whole() || !self.outbox.is_clean();
        if !self.restoring {
            self.raw.advance_apply_to(self.applied);
        }
    }

    fn commit(&mut self, entry: &raft::eraftpb::Entry, turn: &mut Output) {
        let meaning = match entry.get_entry_type() {
            EntryType::EntryNormal if entry.data.is_empty() => EntryKind::Nothing,
            EntryType::EntryNormal => EntryKind::Data(entry.data.to_vec()),
            EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => {
                let change = Change::decode(&entry.context[..]).unwrap_or_default();
                if let Ok(conf) = self.raw.apply_conf_change(&change.to_raft()) {
                    self.membership = membership_of(&conf);
                }
                self.settles = self.last() + 1;
                self.step_down_if_gone();
                if self.raw.raft.state == StateRole::Leader {
                    // If this fails, the next leader begins with an entry of its own.
                    let _ = self.raw.propose(Vec::new(), Vec::new());
                }
                EntryKind::Members
            }
        };
        self.applied = entry.index;
        turn.committed.push(Committed { index: entry.index, term: entry.term, meaning });
    }

    /// Makes a leader step down that has left the membership. The library would let it continue.
    fn step_down_if_gone(&mut self) {
        let raft = &mut self.raw.raft;
        let gone = raft.prs().get(raft.id).is_none();
        if gone && raft.state == StateRole::Leader {
            let term = raft.term;
            raft.become_follower(term, 0);
        }
    }

    /// True if the next [`Consensus::turn`] has something to do.
    pub fn is_due_soon(&self) -> bool {
        self.raw.has_ready()
    }

    /// True if something has to be written.
    pub fn is_due(&self) -> bool {
        self.outbox.is_due()
    }

    /// True if the next write has to be a whole image ([`Consensus::write_image`]).
    pub fn is_whole_due(&self) -> bool {
        self.outbox.is_whole()
    }

    /// True if a member needs an image that is newer than the present one.
    pub fn is_image_wanted(&self) -> bool {
        self.raw.store().too_old.get()
    }

    /// Returns the records of the next write: about `max` bytes at most, but at least one record.
    pub fn write_records(&mut self, max: usize) -> Vec<Vec<u8>> {
        self.outbox.begin(max)
    }

    /// Makes an image the next write, and returns it. `data` is the owner's state after the last
    /// entry that was handed out. Entries up to that one are dropped.
    pub fn write_image(&mut self, data: Vec<u8>) -> Image {
        let store = self.raw.store();
        let term = store.term_of(self.applied).expect("it was read lately");
        let membership = self.membership.clone();
        let base = Base { index: self.applied, term, membership, data };
        self.raw.mut_store().rebase(base);
        self.outbox.begin_whole();
        let store = self.raw.store();
        let entries: Vec<Entry> = store.entries().iter().map(entry_of).collect();
        Image { me: self.id(), hard: store.hard, base: store.base.clone(), entries }
    }

    /// Reports that the write that was begun is durable. Returns the messages that waited for it.
    pub fn durable(&mut self) -> Vec<Message> {
        let (number, messages) = self.outbox.durable();
        if number > 0 {
            self.raw.on_persist_ready(number);
            self.restoring &= self.outbox.is_whole();
            self.applied_so_far();
        }
        messages
    }

    /// Returns the owner's state in the base, and the data of the entries since then that were
    /// handed out. An owner that has applied more than was decided rebuilds its state from them.
    pub fn decided(&self) -> (&[u8], Vec<Vec<u8>>) {
        let store = self.raw.store();
        let done = store.entries().iter().take_while(|e| e.index <= self.applied);
        let data =
            done.filter(|e| e.get_entry_type() == EntryType::EntryNormal && !e.data.is_empty());
        (&store.base.data, data.map(|e| e.data.to_vec()).collect())
    }

    /// Returns the data of the entries that this member has and that are not known to be committed,
    /// in order.
    pub fn undecided(&self) -> Vec<Vec<u8>> {
        let entries = self.raw.store().entries().iter().filter(|e| e.index > self.applied);
        let data =
            entries.filter(|e| e.get_entry_type() == EntryType::EntryNormal && !e.data.is_empty());
        data.map(|e| e.data.to_vec()).collect()
    }

    /// Returns the state that has to survive a restart: term, vote and commit index.
    pub fn hard(&self) -> HardState {
        self.raw.store().hard
    }
}
