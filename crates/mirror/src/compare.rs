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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::History;
    use crate::op::Op;
    use crate::testing::{GROUP, NOW, Rig, UNIT, blocks, named, of_client, op};
    use base::{Incarnation, MapVersion, SECTOR, SdcId};
    use seam::{BufPool, Forgotten};

    #[test]
    fn the_range_lies_in_one_block_and_the_body_has_both_contents() {
        for (at, len, body, sound) in [
            (0, SECTOR, 2 * SECTOR, true),
            (0, BLOCK, 2 * BLOCK, true),
            (3 * BLOCK - SECTOR, SECTOR, 2 * SECTOR, true),
            (3 * BLOCK - SECTOR, 2 * SECTOR, 4 * SECTOR, false), // two blocks
            (BLOCK, 2 * BLOCK, 4 * BLOCK, false),
            (0, SECTOR, SECTOR, false),
            (0, SECTOR, 3 * SECTOR, false),
        ] {
            assert_eq!(is_sound(at, len, body as usize), sound, "{at} {len} {body}");
        }
    }

    /// Creates a compare-and-write of a sector, which expects one byte and writes another one.
    fn comparing(retry: bool, expected: u8, new: u8) -> (Op, Compare) {
        let compare = Compare { requester: of_client(), since: NOW, retry };
        let body = [[expected; SECTOR as usize], [new; SECTOR as usize]].concat();
        let body_crc = Some(crc32c(&body));
        let body = BufPool::new(0).copy(&body);
        let work = Work::Compare(compare);
        (Op { client: named(9), len: SECTOR, body, body_crc, ..op(work) }, compare)
    }

    /// What leaves after the range was read: it holds fives, up to the place where it differs.
    #[test]
    fn equal_data_is_written_over_and_other_data_is_not() {
        for (name, differs, changed, left, jobs) in [
            ("equal", None, false, "Replicate 1 to 2", "Write 0+512"),
            ("the first byte differs", Some(0), false, "Miscompare", ""),
            ("the last byte differs", Some(511), false, "Miscompare", ""),
            ("its own memory has changed", None, true, "Damaged", ""),
            ("so it is not known what differs", Some(3), true, "Damaged", ""),
        ] {
            let mut rig = Rig::leading(&[2], &[]);
            rig.shard.store.valid = blocks(0..1);
            let (mut what, compare) = comparing(false, 5, 6);
            what.local = Local::Done;
            what.body_crc = what.body_crc.map(|sum| sum ^ u32::from(changed));
            let key = rig.hold(what);
            let mut found = [5; SECTOR as usize];
            differs.into_iter().for_each(|at: usize| found[at..].fill(7));
            let Rig { shard, flows, out, .. } = &mut rig;
            flows.clients.compare(shard, NOW, key, compare, &found, out);
            assert_eq!(rig.jobs(), jobs, "{name}");
            assert_eq!(rig.is_over(key), jobs.is_empty(), "{name}");
            if !jobs.is_empty() {
                let op = rig.op(key);
                assert!(op.body.iter().all(|byte| *byte == 6), "{name}");
                assert_eq!(op.body_crc, Some(crc32c(&op.body)), "{name}");
            }
            let frames = rig.frames();
            let body = &frames[0].2;
            let told = if left == "Miscompare" { Reply::miscompared_at(body) } else { None };
            assert_eq!(told, differs.filter(|_| !changed).map(|at| at as u32), "{name}");
            assert_eq!(crate::testing::text(frames[0].0, &frames[0].1), left, "{name}");
            assert_eq!(rig.notes.contains(&Note::BadMemory { group: GROUP }), changed, "{name}");
        }
    }

    #[test]
    fn what_the_content_includes_is_not_compared_again() {
        for (name, retry, done, forgotten, gone, left, jobs) in [
            ("not done before", true, false, false, false, "", "Read 0+512"),
            ("done before", true, true, false, false, "Ok", ""),
            ("done before, and others are forgotten", true, true, true, false, "Ok", ""),
            ("it may be forgotten", true, false, true, false, "Forgotten", ""),
            ("it comes for the first time", false, true, true, false, "", "Read 0+512"),
            ("its volume is deleted", true, true, false, true, "NoVolume", ""),
        ] {
            let mut rig = Rig::leading(&[2], &[]);
            let (second, map) = (crate::testing::SECOND, MapVersion(0));
            rig.shard.leases.granted(NOW, second, NOW, map, map);
            if forgotten {
                let mut known = Forgotten::new(8);
                known.raise(GROUP, SdcId(5), Incarnation(1), 10);
                rig.shard.history = History::new(&rig.shard.limits, Some(&known));
            }
            if done {
                let list = &mut rig.replica().record.executed;
                list.record(named(9), UNIT, blocks(0..1), &mut 0);
            }
            if gone {
                rig.delete_volume();
            }
            let key = rig.hold(comparing(retry, 5, 6).0);
            let Rig { shard, flows, out, .. } = &mut rig;
            flows.clients.start_compare(shard, NOW, key, out);
            assert_eq!((&rig.left()[..], &rig.jobs()[..]), (left, jobs), "{name}");
            assert_eq!(rig.notes.contains(&Note::Deduped { group: GROUP }), left == "Ok", "{name}");
        }
    }
}
