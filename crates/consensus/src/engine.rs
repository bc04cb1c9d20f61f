//! One member: the library, its memory, and what waits for the disk.

use crate::check::Wrong;
use crate::memory::Memory;
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

/// Ticks without a word of the leader after which a member stands for election, at least.
const ELECTION_TICKS: usize = 10;
/// The election time-out is drawn from this many ticks.
const SPREAD_TICKS: usize = 10;
/// How many ticks later somebody stands who should rather not lead.
const LATE_TICKS: usize = 5;
/// Ticks between two heartbeats.
const HEARTBEAT_TICKS: usize = 2;
/// Ticks without a word after which a leader says that a member doesn't work; five heartbeats go out meanwhile, and more.
const SILENT_TICKS: u64 = 20;
/// Ticks after which a snapshot without an answer is looked after.
const SNAPSHOT_TICKS: u32 = 40;
/// Bytes of entries in one message, about.
const MESSAGE_BYTES: u64 = 1 << 20;
/// Messages with entries that one member is sent without an answer.
const IN_FLIGHT: usize = 64;

/// Who leads, as far as this member knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Role {
    /// The newest term that it knows.
    pub term: u64,
    /// The leader in that term; 0: nobody that it knows of.
    pub leader: u64,
    /// It is this member, and will know it after a restart.
    pub leads: bool,
}

/// What an entry says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Meaning {
    /// Nothing: the first one of a leader.
    Nothing,
    /// The owner's data.
    Data(Vec<u8>),
    /// Who belongs to the cluster from now on. Known here already.
    Members,
}

/// A committed entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Committed {
    /// Its place.
    pub index: u64,
    /// Its term.
    pub term: u64,
    /// What it says.
    pub meaning: Meaning,
}

/// What is to be done, in this order.
#[derive(Default, Debug)]
pub struct Turn {
    /// A leader's state takes the place of the owner's.
    pub restored: Option<Vec<u8>>,
    /// Entries to be applied.
    pub committed: Vec<Committed>,
    /// Messages to be sent.
    pub send: Vec<Message>,
    /// These questions ([`Consensus::confirm`]) are answered: this member led when they were asked.
    pub confirmed: Vec<u64>,
}

/// How a leader sees another member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Who.
    pub id: u64,
    /// It is known to have the entries up to this one.
    pub matched: u64,
    /// It counts.
    pub voter: bool,
    /// It was heard lately, in this term.
    pub heard: bool,
    /// It has said nothing for so long that it doesn't work. Just after an election nobody is heard, and nobody is silent.
    pub silent: bool,
}

/// One member.
pub struct Consensus {
    pub(crate) raw: RawNode<Memory>,
    outbox: Outbox,
    membership: Membership,
    applied: u64,
    /// When this entry is applied, most of the present members know for good that they are it: it was appended after the
    /// change was known to be committed, and that is told and written with it.
    settles: u64,
    /// A leader's state is not durable yet: the library isn't told that it is applied. Until then this member must
    /// not stand for election: the library would look for the entries that the state has replaced.
    restoring: bool,
    late: bool,
    prng: Prng,
    /// The term and role for which the election time-out was drawn, and what it is.
    drawn: (u64, StateRole, usize),
    /// For how many ticks the answer to a snapshot has been waited for.
    snapshots: BTreeMap<u64, u32>,
    /// How often time has passed, and at which of these its term and role began.
    ticks: u64,
    since: u64,
    /// When each member was heard last, since then. (The library knows who was heard since it looked last, which may be
    /// a moment ago.)
    heard: BTreeMap<u64, u64>,
}

impl Consensus {
    /// A member that goes on from what it remembers. `late`: it should rather not lead.
    pub fn new(mut image: Image, late: bool, prng: Prng) -> Consensus {
        image.hard.commit = image.hard.commit.min(image.last().0).max(image.base.index);
        // No entry is of a later term than the one that was written with it.
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
            RawNode::new(&config, Memory::new(image), &logger).expect("the settings are sound");
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

    /// The library draws the election time-out from the system's random numbers: it is drawn again here.
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

    /// Who this is.
    pub fn id(&self) -> u64 {
        self.raw.raft.id
    }

    /// Who leads.
    pub fn role(&self) -> Role {
        let raft = &self.raw.raft;
        let hard = self.raw.store().hard;
        let sure = (hard.term, hard.vote) == (raft.term, raft.vote) && !self.outbox.is_unsure();
        let leads = raft.state == StateRole::Leader && sure;
        Role { term: raft.term, leader: raft.leader_id, leads }
    }

    /// Who belongs to the cluster, as of the last entry that was applied.
    pub fn membership(&self) -> &Membership {
        &self.membership
    }

    /// True while this member may be needed: it belongs to the cluster, or a change by which somebody left may still be
    /// unknown to those who stay when they start again, as a commit index is written with the next entry only. They
    /// would look for the votes of those who were there before.
    pub fn counts(&self, id: u64) -> bool {
        self.membership.all().contains(&id) || self.applied < self.settles
    }

    /// True when nobody else belongs to the cluster.
    pub fn is_alone(&self) -> bool {
        let (me, mut ids) = (self.id(), self.membership.ids());
        ids.next() == Some(me) && ids.all(|id| id == me)
    }

    /// The last entry that was handed out.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// The last entry that is known to be committed.
    pub fn committed(&self) -> u64 {
        self.raw.raft.raft_log.committed
    }

    /// The last entry that it has.
    pub fn last(&self) -> u64 {
        self.raw.raft.raft_log.last_index()
    }

    /// The term of that entry. Of two logs the one with the higher term at its end is the newer one, however long they are.
    pub fn last_term(&self) -> u64 {
        self.raw.raft.raft_log.last_term()
    }

    /// How this leader sees the members; empty when it doesn't lead.
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

    /// Time passes.
    pub fn tick(&mut self) {
        self.ticks += 1;
        // The library wants all entries of a sole voter to be durable when it begins to lead.
        let alone = self.membership.voters == [self.id()];
        let early = alone && !self.role().leads && !self.outbox.is_clean();
        if !(early || self.restoring) {
            self.raw.tick();
        }
        self.resend_snapshots();
        self.draw();
    }

    /// The library waits for the answer to a snapshot without end, and that may be lost on the way back.
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

    /// Stands for election at once; for a sole voter that is the beginning of its office.
    pub fn campaign(&mut self) {
        if !self.restoring {
            let _ = self.raw.campaign();
        }
        self.draw();
    }

    /// Takes a message in. What makes no sense any more is ignored.
    ///
    /// # Errors
    /// Nothing has changed, and whoever sent it is no honest member, or this one is none ([`Wrong::Behind`]).
    pub fn step(&mut self, mut message: Message) -> Result<(), Wrong> {
        self.check(&message)?;
        let last = self.last();
        // Who has nothing yet, not even a configuration, is no voter: maybe it was one, and has forgotten all.
        let asked = [MessageType::MsgRequestVote, MessageType::MsgRequestPreVote];
        if last == 0 && asked.into_iter().any(|kind| message.kind == kind as i32) {
            return Ok(());
        }
        if self.restoring && message.kind == MessageType::MsgTimeoutNow as i32 {
            return Ok(()); // whoever hands over tries again, or goes on
        }
        let told = message.kind == MessageType::MsgHeartbeat as i32;
        // A heartbeat's commit index is at most what its leader knows this member to have. Of somebody who is not
        // known to lead yet it says nothing.
        if told && message.commit > last {
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

    /// Proposes an entry; its index, unless this member does not lead or is handing over.
    pub fn propose(&mut self, data: Vec<u8>) -> Option<u64> {
        let done = self.raw.propose(Vec::new(), data).is_ok();
        (done && self.role().leads).then(|| self.last())
    }

    /// Proposes a change of the configuration. Ignored while another one is under way.
    pub fn change(&mut self, change: &Change) -> bool {
        if self.raw.raft.has_pending_conf() || !self.membership.outgoing.is_empty() {
            return false;
        }
        self.raw.propose_conf_change(change.encode_to_vec(), change.to_raft()).is_ok()
    }

    /// Hands the leadership over, as soon as that member has everything.
    pub fn transfer(&mut self, to: u64) {
        self.raw.transfer_leader(to);
        self.draw();
    }

    /// True while a transfer is under way: nothing can be proposed.
    pub fn is_handing_over(&self) -> bool {
        self.raw.raft.lead_transferee.is_some()
    }

    /// What was sent to a member may be lost.
    pub fn unreachable(&mut self, id: u64) {
        self.raw.report_unreachable(id);
        self.raw.report_snapshot(id, SnapshotStatus::Failure);
    }

    /// Asks whether this member still leads: [`Turn::confirmed`] tells when a majority has said so.
    pub fn confirm(&mut self, question: u64) {
        self.raw.read_index(question.to_le_bytes().to_vec());
    }

    /// What is to be done now.
    pub fn turn(&mut self) -> Turn {
        let mut turn = Turn::default();
        while self.raw.has_ready() {
            self.ready(&mut turn);
        }
        self.draw();
        turn
    }

    fn ready(&mut self, turn: &mut Turn) {
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
        // A leader's messages need not wait for its own disk; but a sole voter leads as soon as it stands for
        // election, and its term must not be heard of by learners before it is durable.
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

    fn commit(&mut self, entry: &raft::eraftpb::Entry, turn: &mut Turn) {
        let meaning = match entry.get_entry_type() {
            EntryType::EntryNormal if entry.data.is_empty() => Meaning::Nothing,
            EntryType::EntryNormal => Meaning::Data(entry.data.to_vec()),
            EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => {
                let change = Change::decode(&entry.context[..]).unwrap_or_default();
                if let Ok(conf) = self.raw.apply_conf_change(&change.to_raft()) {
                    self.membership = membership_of(&conf);
                }
                self.settles = self.last() + 1;
                self.step_down_if_gone();
                if self.raw.raft.state == StateRole::Leader {
                    // If it can't now, whoever leads next begins with an entry.
                    let _ = self.raw.propose(Vec::new(), Vec::new());
                }
                Meaning::Members
            }
        };
        self.applied = entry.index;
        turn.committed.push(Committed { index: entry.index, term: entry.term, meaning });
    }

    /// Who is out of the configuration leads no more; the library would go on.
    fn step_down_if_gone(&mut self) {
        let raft = &mut self.raw.raft;
        let gone = raft.prs().get(raft.id).is_none();
        if gone && raft.state == StateRole::Leader {
            let term = raft.term;
            raft.become_follower(term, 0);
        }
    }

    /// True when the next turn has something to do.
    pub fn is_due_soon(&self) -> bool {
        self.raw.has_ready()
    }

    /// True when something is to be written.
    pub fn is_due(&self) -> bool {
        self.outbox.is_due()
    }

    /// True when that is the whole image ([`Consensus::write_image`]).
    pub fn is_whole_due(&self) -> bool {
        self.outbox.is_whole()
    }

    /// True when a member needs an image that is newer than the present one.
    pub fn is_image_wanted(&self) -> bool {
        self.raw.store().too_old.get()
    }

    /// The records of the next write, of at most about `max` bytes.
    pub fn write_records(&mut self, max: usize) -> Vec<Vec<u8>> {
        self.outbox.begin(max)
    }

    /// The next write is this image; `data` is the owner's state after the last entry that was handed out.
    /// Entries up to there are forgotten.
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

    /// The write that was begun is durable.
    pub fn durable(&mut self) -> Vec<Message> {
        let (number, messages) = self.outbox.durable();
        if number > 0 {
            self.raw.on_persist_ready(number);
            self.restoring &= self.outbox.is_whole();
            self.applied_so_far();
        }
        messages
    }

    /// The owner's state in the base, and the committed entries since that were handed out: what
    /// a state is made of again whose owner was ahead of what was decided.
    pub fn decided(&self) -> (&[u8], Vec<Vec<u8>>) {
        let store = self.raw.store();
        let done = store.entries().iter().take_while(|e| e.index <= self.applied);
        let data =
            done.filter(|e| e.get_entry_type() == EntryType::EntryNormal && !e.data.is_empty());
        (&store.base.data, data.map(|e| e.data.to_vec()).collect())
    }

    /// The data of the entries that it has and that are not known to be committed, in order.
    pub fn undecided(&self) -> Vec<Vec<u8>> {
        let entries = self.raw.store().entries().iter().filter(|e| e.index > self.applied);
        let data =
            entries.filter(|e| e.get_entry_type() == EntryType::EntryNormal && !e.data.is_empty());
        data.map(|e| e.data.to_vec()).collect()
    }

    /// What it must not forget, for oracles.
    pub fn hard(&self) -> HardState {
        self.raw.store().hard
    }
}
