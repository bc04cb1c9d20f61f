//! Entries and hard states to be written, and the messages that wait for these writes.
//!
//! Invariant: a message that promises something is sent only when everything that was queued for
//! writing before it is durable. One write is under way at a time. Entries that are queued
//! meanwhile go into the next one.

use crate::records::{HardState, Message, Record};
use base::mutant::{self, Mutant};
use prost::Message as _;
use raft::eraftpb::MessageType;

/// See the head of this file.
#[derive(Default)]
pub(crate) struct Outbox {
    records: Vec<Vec<u8>>,
    /// The whole image has to be written, because a leader's state arrived.
    whole: bool,
    /// Number of the last `Ready` of the library whose data is in `records`.
    number: u64,
    /// The messages that wait for `records`.
    waiting: Vec<Message>,
    /// Number and messages of the write that is under way.
    under_way: Option<(u64, Vec<Message>)>,
    /// A hard state in which only the commit index is new. It is written with the next write.
    lazy: Option<HardState>,
    /// `records` contains terms or votes.
    unsure: bool,
    /// The write that is under way contains terms or votes.
    unsure_under_way: bool,
}

impl Outbox {
    /// Queues a hard state. Only with `must` does it cause a write; otherwise it goes along with
    /// the next one.
    pub(crate) fn hard(&mut self, hard: HardState, must: bool) {
        if must {
            self.lazy = None;
            self.unsure = true;
            let record = Record { hard: Some(hard), entry: None };
            self.records.push(record.encode_to_vec());
        } else {
            self.lazy = Some(hard);
        }
    }

    /// Queues an entry for writing.
    pub(crate) fn entry(&mut self, entry: crate::Entry) {
        self.records.push(Record { hard: None, entry: Some(entry) }.encode_to_vec());
    }

    /// Makes the next write a whole image.
    pub(crate) fn everything(&mut self) {
        self.whole = true;
        self.records.clear();
    }

    /// Queues messages until the library's `Ready` with this number is durable. Returns those that
    /// can leave at once.
    pub(crate) fn wait(&mut self, number: u64, messages: Vec<Message>) -> Vec<Message> {
        self.number = number;
        if self.is_clean() {
            return messages;
        }
        let unsure = self.is_unsure();
        let (go, wait) = messages.into_iter().partition(|m| promises_nothing(m, unsure));
        let wait: Vec<Message> = wait;
        self.waiting.extend(wait);
        go
    }

    /// True if nothing has to be written, and no write is under way.
    pub(crate) fn is_clean(&self) -> bool {
        !self.is_due() && self.under_way.is_none()
    }

    /// True while a term or a vote is not durable.
    pub(crate) fn is_unsure(&self) -> bool {
        self.unsure || self.unsure_under_way
    }

    /// True if something has to be written.
    pub(crate) fn is_due(&self) -> bool {
        self.whole || !self.records.is_empty()
    }

    /// True if the next write has to be a whole image.
    pub(crate) fn is_whole(&self) -> bool {
        self.whole
    }

    /// Begins a write. Returns its records: about `max` bytes at most, but at least one record.
    pub(crate) fn begin(&mut self, max: usize) -> Vec<Vec<u8>> {
        assert!(self.under_way.is_none() && !self.whole, "one write at a time");
        let mut bytes = 0;
        let fits = |r: &&Vec<u8>| {
            bytes += r.len() + 4;
            bytes <= max
        };
        let count = self.records.iter().take_while(fits).count().max(1);
        let mut list: Vec<Vec<u8>> = self.records.drain(..count).collect();
        match self.records.is_empty() {
            true => {
                let lazy = self.lazy.take().map(|hard| Record { hard: Some(hard), entry: None });
                // A hard state takes at most 30 bytes, for which `max` has room.
                list.extend(lazy.map(|r| r.encode_to_vec()));
                self.take_over();
            }
            false => {
                // A term in this write does not count as durable before the rest is durable, too.
                self.unsure_under_way = self.unsure;
                self.under_way = Some((0, Vec::new()));
            }
        }
        list
    }

    /// Begins a write of the whole image.
    pub(crate) fn begin_whole(&mut self) {
        assert!(self.under_way.is_none(), "one write at a time");
        self.records.clear();
        (self.whole, self.lazy) = (false, None);
        self.take_over();
    }

    fn take_over(&mut self) {
        self.unsure_under_way = core::mem::take(&mut self.unsure);
        self.under_way = Some((self.number, core::mem::take(&mut self.waiting)));
    }

    /// Ends the write that was under way, as it is durable. Returns the number of the last `Ready`
    /// that is durable (0 if more parts of it follow), and the messages that may leave.
    pub(crate) fn durable(&mut self) -> (u64, Vec<Message>) {
        self.unsure_under_way = false;
        let (mut number, mut messages) = self.under_way.take().expect("a write was under way");
        if !self.is_due() {
            // The data that was queued meanwhile needs no write.
            number = self.number;
            messages.append(&mut self.waiting);
        }
        (number, messages)
    }
}

/// True for a message that does not promise that anything is durable. While a term is not durable,
/// none counts as such: each message of that term promises the term.
fn promises_nothing(m: &Message, unsure: bool) -> bool {
    const FREE: [MessageType; 4] = [
        MessageType::MsgHeartbeatResponse,
        MessageType::MsgRequestPreVote,
        MessageType::MsgRequestPreVoteResponse,
        MessageType::MsgReadIndexResp,
    ];
    let is = |kind: MessageType| m.kind == kind as i32;
    let vote = is(MessageType::MsgRequestVote) || is(MessageType::MsgRequestVoteResponse);
    (!unsure && FREE.into_iter().any(is))
        || (vote && mutant::on(Mutant::MdmVoteUnwritten))
        || (is(MessageType::MsgAppendResponse) && mutant::on(Mutant::MdmEntryUnwritten))
}
