//! Compare-and-write at the primary (rule R17): compares a range of one block with what the client
//! expects, and writes it if they are equal, as one step.
//!
//! The operation has its range exclusively from before the comparison until the write is
//! acknowledged. Nothing else changes the range meanwhile: if another device becomes the primary,
//! this configuration ends, and the client asks there, where it is compared again.
//!
//! Invariants:
//! - A comparison reads what a read of a client would be answered with: under the leases of R3, and
//!   when no write to its block is in flight.
//! - What the content includes already is not compared again. A settle copies block by block, and
//!   the list of executed writes knows blocks, so a range of one block is in the content as a whole
//!   or not at all.

use crate::op::{Caller, Compare, Local, Requester, Work, Write};
use crate::primary::Clients;
use crate::shard::Shard;
use base::crc::crc32c;
use base::{BLOCK, Mutant, Time, mutant};
use seam::{Buf, Effects, Note, UnitStore};
use wire::Status;
use wire::message::Reply;

/// Returns true for a range within one block, and a body of twice its length.
pub(crate) fn is_sound(at: u32, len: u32, body: usize) -> bool {
    at % BLOCK + len <= BLOCK && body == 2 * len as usize
}

impl Clients {
    /// Starts a compare-and-write that has its range: reads what is there.
    pub(crate) fn start_compare<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        key: u64,
        out: &mut Effects,
    ) {
        let op = shard.ops.get(key).expect("the operation lives");
        let retry = matches!(op.work, Work::Compare(Compare { retry: true, .. }));
        let gone = shard.known.is_gone(op.unit.volume);
        if retry && !gone && !mutant::on(Mutant::CompareAgain) {
            let group = op.group;
            let list = &shard.replicas.of(group).record.executed;
            if let Some(status) = shard.history.done_before(op, list) {
                if status == Status::Ok {
                    out.note(Note::Deduped { group });
                }
                return shard.finish_client(key, status, out);
            }
        }
        self.start_read(shard, now, key, out);
    }

    /// Compares what was read with what the client expects. If they are equal the operation goes on
    /// as a write of its own range, which it keeps.
    pub(crate) fn compare<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        key: u64,
        compare: Compare,
        found: &[u8],
        out: &mut Effects,
    ) {
        let op = shard.ops.get_mut(key).expect("the caller has it");
        let group = op.group;
        let whole = core::mem::replace(&mut op.body, Buf::EMPTY);
        let len = whole.len() / 2;
        let new = whole.slice(len..2 * len);
        // Computed first: the unit store notices what changes in memory after that.
        let sum = crc32c(&new);
        if op.body_crc.is_some_and(|whole_sum| crc32c(&whole) != whole_sum) {
            out.note(Note::BadMemory { group });
            return shard.finish_client(key, Status::Damaged, out);
        }
        let differs = whole.iter().zip(found).position(|(expected, found)| expected != found);
        let blind = compare.retry && mutant::on(Mutant::CompareOnce);
        if let Some(at) = differs.filter(|_| !blind) {
            shard.pace.answered(now, compare.since);
            return shard.miscompared(key, compare.requester, at as u32, out);
        }
        op.work = Work::Write(Write::new(compare.requester, compare.since));
        (op.body, op.body_crc, op.local) = (new, Some(sum), Local::NotStarted);
        self.start_write(shard, now, key, out);
    }
}

impl<S: UnitStore> Shard<S> {
    /// Answers that the byte at this offset is the first one that differs. Nothing was written.
    fn miscompared(&mut self, key: u64, to: Requester, at: u32, out: &mut Effects) {
        let group = self.end_op(key).group;
        let to = Caller::new(to, group);
        let reply = self.answer_to(to.op, group, Status::Miscompare);
        let body = Reply::miscompare_body(at, out.pool());
        out.send(to.link.id, to.link.frame(reply, &body), body);
    }
}
