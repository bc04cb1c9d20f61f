//! Blocks that a secondary reads for its primary, whose copy of them is damaged (rule R13).

use crate::op::{Op, Requester, Work, fits};
use crate::secondaries::Secondaries;
use crate::shard::Shard;
use base::{BLOCK, BlockSet, DeviceId, GroupId, Time};
use seam::{Buf, Effects, UnitStore};
use wire::message::{Fetch, Fetched};
use wire::{PeerLink, Status};
use zerocopy::IntoBytes;

impl Secondaries {
    /// Takes the primary's request for blocks that are damaged there. One that it repeats is
    /// answered once, on the newest link. Returns false if that gives the loop nothing to do.
    pub(crate) fn fetch_in<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        link: PeerLink,
        from: DeviceId,
        m: &Fetch,
        out: &mut Effects,
    ) -> bool {
        match shard.replicas.check_leader(from, m.group, m.epoch) {
            Ok(()) if fits::<BLOCK>(m.range.at, m.range.len) => {
                let fetch = Op::of_fetch(m, link);
                let known = shard.ops.iter().find(|(_, op)| op.is_same_fetch(&fetch));
                if let Some((known, _)) = known {
                    shard.ops.get_mut(known).expect("just found").work = fetch.work;
                    return false;
                }
                shard.queue(fetch);
                return true;
            }
            Ok(()) => {}
            Err(status) => {
                let answer =
                    Fetched { status, ..fetched(shard, m.op, m.group, (m.range.at, m.range.len)) };
                out.send(link.id, link.frame(answer, &[]), Buf::EMPTY);
            }
        }
        false
    }

    /// Reads the requested blocks, under their range lock. Refuses to read blocks of a deleted
    /// volume: their data is gone here, so zeros would be a wrong answer.
    pub(crate) fn start_fetch<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        key: u64,
        out: &mut Effects,
    ) {
        let op = shard.ops.get(key).expect("the operation lives");
        if let Work::Fetch(requester) = op.work
            && shard.known.is_gone(op.unit.volume)
        {
            return self.end_fetch(shard, key, requester, Status::NoVolume, out);
        }
        shard.start_job(now, key, out);
    }

    /// Answers that this replica can't provide the blocks.
    pub(crate) fn end_fetch<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        key: u64,
        to: Requester,
        why: Status,
        out: &mut Effects,
    ) {
        let op = shard.end_op(key);
        let answer = Fetched { status: why, ..fetched(shard, to.op, op.group, (op.at, op.len)) };
        out.send(to.link.id, to.link.frame(answer, &[]), Buf::EMPTY);
    }

    /// Sends the blocks, with their entries of the list of executed writes.
    pub(crate) fn fetched_here<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        key: u64,
        to: Requester,
        data: Buf,
        out: &mut Effects,
    ) {
        let op = shard.end_op(key);
        let blocks = BlockSet::touching(op.at, op.len);
        let entries = shard.replicas.of(op.group).record.executed.of(op.unit, blocks);
        let list = shard.history.records(op.group, entries);
        let mut body = out.alloc(data.len() + list.as_bytes().len());
        body.as_mut()[..data.len()].copy_from_slice(&data);
        body.as_mut()[data.len()..].copy_from_slice(list.as_bytes());
        let answer = fetched(shard, to.op, op.group, (op.at, op.len));
        out.send(to.link.id, to.link.frame(answer, &body), body);
        self.wipe_if_idle(shard, now, op.group);
    }
}

/// Returns the answer to a request for these blocks.
fn fetched<S>(shard: &Shard<S>, op: u64, group: GroupId, (at, len): (u32, u32)) -> Fetched {
    let (epoch, sender) = (shard.replicas.epoch_of(group), shard.known.sender());
    Fetched { status: Status::Ok, op, group, epoch, at, len, sender }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{EPOCH, GROUP, NOW, Rig, SECOND, UNIT, blocks, fetch, link_to, named, op};
    use base::{BLOCKS_PER_UNIT, Epoch, SECTOR};
    use wire::Frame;
    use wire::message::UnitRange;
    use wire::records::{self, Executed};

    fn question(at: u32, len: u32) -> Fetch {
        Fetch { op: 99, group: GROUP, epoch: EPOCH, range: UnitRange { unit: UNIT, at, len } }
    }

    fn ask(rig: &mut Rig, link: u32, from: DeviceId, m: &Fetch) -> bool {
        let Rig { shard, flows, out, .. } = rig;
        flows.secondaries.fetch_in(shard, link_to(link), from, m, out)
    }

    /// What a question leaves, and whether the blocks are read.
    #[test]
    fn only_the_primary_of_the_present_epoch_gets_whole_blocks() {
        let present = question(0, BLOCK);
        let whole = question(0, BLOCKS_PER_UNIT * BLOCK);
        let elsewhere = Fetch { group: GroupId(8), ..present };
        for (name, from, m, left, read) in [
            ("a block", SECOND, present, "", true),
            ("a unit", SECOND, whole, "", true),
            ("it is not aligned", SECOND, question(SECTOR, BLOCK), "", false),
            ("a part of a block", SECOND, question(0, SECTOR), "", false),
            ("it leaves the unit", SECOND, question(BLOCK, BLOCKS_PER_UNIT * BLOCK), "", false),
            ("nothing", SECOND, question(0, 0), "", false),
            ("another device", DeviceId(3), present, "Fetched Behind to 2", false),
            ("older", SECOND, Fetch { epoch: Epoch(3), ..present }, "Fetched Stale to 2", false),
            ("newer", SECOND, Fetch { epoch: Epoch(5), ..present }, "Fetched Behind to 2", false),
            ("another group", SECOND, elsewhere, "Fetched Behind to 2", false),
        ] {
            let mut rig = Rig::following(false);
            assert_eq!(ask(&mut rig, 2, from, &m), read, "{name}");
            assert_eq!((&rig.left()[..], rig.ready().len()), (left, usize::from(read)), "{name}");
        }
    }

    #[test]
    fn a_question_that_is_repeated_is_answered_once_on_the_newest_link() {
        let first = question(0, BLOCK);
        for (name, second, known) in [
            ("the same", first, true),
            ("of another operation", Fetch { op: 98, ..first }, false),
            ("for other blocks", question(BLOCK, BLOCK), false),
        ] {
            let mut rig = Rig::following(false);
            assert!(ask(&mut rig, 2, SECOND, &first));
            assert_eq!(ask(&mut rig, 3, SECOND, &second), !known, "{name}");
            assert_eq!(rig.shard.ops.len(), if known { 1 } else { 2 }, "{name}");
            let first = rig.ready()[0];
            let link = match rig.op(first).work {
                Work::Fetch(requester) => requester.link,
                other => panic!("{other:?}"),
            };
            assert_eq!(link, link_to(if known { 3 } else { 2 }), "{name}");
        }
    }

    /// Zeros would be a wrong answer.
    #[test]
    fn blocks_of_a_deleted_volume_are_not_read() {
        for (gone, left, jobs) in [(false, "", "Read 0+4096"), (true, "Fetched NoVolume to 2", "")]
        {
            let mut rig = Rig::following(false);
            let key = rig.hold(op(fetch()));
            if gone {
                rig.delete_volume();
            }
            let Rig { shard, flows, out, .. } = &mut rig;
            flows.secondaries.start_fetch(shard, NOW, key, out);
            assert_eq!((&rig.left()[..], &rig.jobs()[..], rig.is_over(key)), (left, jobs, gone));
        }
    }

    #[test]
    fn blocks_go_with_what_the_list_says_of_them_and_no_more() {
        let mut rig = Rig::following(false);
        for (seq, block) in [(3, 0), (4, 5)] {
            let list = &mut rig.replica().record.executed;
            list.record(named(seq), UNIT, blocks(block..block + 1), &mut 0);
        }
        let key = rig.hold(op(fetch()));
        let data = out_of(&[7; BLOCK as usize]);
        let Work::Fetch(to) = rig.op(key).work else { unreachable!("it is one") };
        let Rig { shard, flows, out, .. } = &mut rig;
        flows.secondaries.fetched_here(shard, NOW, key, to, data.clone(), out);
        let frames = rig.frames();
        let [(_, Frame::Fetched(m), body)] = &frames[..] else { panic!("one answer") };
        let (op, at, len, epoch) = (m.op, m.at, m.len, m.epoch);
        assert_eq!((m.status, op, at, len, epoch), (Status::Ok, 99, 0, BLOCK, EPOCH));
        assert_eq!(body[..BLOCK as usize], data[..]);
        let list = records::read::<Executed>(&body[BLOCK as usize..]).unwrap();
        assert_eq!(list.iter().map(|e| e.seq.get()).collect::<alloc::vec::Vec<_>>(), [3]);
        assert!(rig.is_over(key));
    }

    fn out_of(bytes: &[u8]) -> Buf {
        seam::BufPool::new(0).copy(bytes)
    }
}
