//! What is to be written, and the messages that wait for it.
//!
//! Invariant: a message that promises something leaves when all that was asked to be written before it is
//! durable. One write is under way at a time; what comes meanwhile goes with the next one.

use crate::records::{HardState, Message, Record};
use base::mutant::{self, Mutant};
use prost::Message as _;
use raft::eraftpb::MessageType;

/// See the file's head.
#[derive(Default)]
pub(crate) struct Outbox {
    records: Vec<Vec<u8>>,
    /// The whole image is to be written, as a leader's state came.
    whole: bool,
    /// The last request that is in `records`, and the messages that wait for it.
    number: u64,
    waiting: Vec<Message>,
    /// The same of what is being written.
    under_way: Option<(u64, Vec<Message>)>,
    /// A hard state of which only the commit index is new: it goes with the next write.
    lazy: Option<HardState>,
    /// Terms or votes are among what isn't durable yet.
    unsure: bool,
    unsure_under_way: bool,
}

impl Outbox {
    /// A hard state to be written; in time, if nobody relies on it.
    pub fn hard(&mut self, hard: HardState, must: bool) {
        if must {
            self.lazy = None;
            self.unsure = true;
            let record = Record { hard: Some(hard), entry: None };
            self.records.push(record.encode_to_vec());
        } else {
            self.lazy = Some(hard);
        }
    }

    /// An entry to be written.
    pub fn entry(&mut self, entry: crate::Entry) {
        self.records.push(Record { hard: None, entry: Some(entry) }.encode_to_vec());
    }

    /// Everything is to be written anew.
    pub fn everything(&mut self) {
        self.whole = true;
        self.records.clear();
    }

    /// Messages that wait for request `number`; gives back those that can go at once.
    pub fn wait(&mut self, number: u64, messages: Vec<Message>) -> Vec<Message> {
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

    /// True when nothing is to be written, nor under way.
    pub fn is_clean(&self) -> bool {
        !self.is_due() && self.under_way.is_none()
    }

    /// True while a term or a vote is not durable.
    pub fn is_unsure(&self) -> bool {
        self.unsure || self.unsure_under_way
    }

    /// True when something is to be written.
    pub fn is_due(&self) -> bool {
        self.whole || !self.records.is_empty()
    }

    /// True when that is the whole image.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// The records of the next write, of at most about `max` bytes, but one at least.
    pub fn begin(&mut self, max: usize) -> Vec<Vec<u8>> {
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
                // It is 30 bytes at most, for which `max` has room.
                list.extend(lazy.map(|r| r.encode_to_vec()));
                self.take_over();
            }
            false => {
                // A term that the first part says is not to be relied on before the last part is there.
                self.unsure_under_way = self.unsure;
                self.under_way = Some((0, Vec::new()));
            }
        }
        list
    }

    /// The next write is the whole image.
    pub fn begin_whole(&mut self) {
        assert!(self.under_way.is_none(), "one write at a time");
        self.records.clear();
        (self.whole, self.lazy) = (false, None);
        self.take_over();
    }

    fn take_over(&mut self) {
        self.unsure_under_way = core::mem::take(&mut self.unsure);
        self.under_way = Some((self.number, core::mem::take(&mut self.waiting)));
    }

    /// The write that was under way is durable: tells which requests are done, and what may leave.
    pub fn durable(&mut self) -> (u64, Vec<Message>) {
        self.unsure_under_way = false;
        let (mut number, mut messages) = self.under_way.take().expect("a write was under way");
        if !self.is_due() {
            // What was asked meanwhile needs no write of its own.
            number = self.number;
            messages.append(&mut self.waiting);
        }
        (number, messages)
    }
}

/// True for a message that doesn't say that anything is durable; those of a term that isn't durable itself
/// do so by their term.
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
