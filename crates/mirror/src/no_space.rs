//! Writes that find no space (rule R15): which replica notices that, and what happens then. Such a
//! write has no effect, and the client holds it until there is space.
//!
//! The primary reserves space before it acts. A secondary refuses before anything is durable there.
//! Then the write leaves the stream without effect, and a joiner that has done it gets the content
//! of the primary instead. A joiner without space starts over later.
//!
//! **The spare**: a part of each device is reserved for copies that replace lost ones. Once the
//! rest is used, a client's write to new space of a thin volume fails as if the device were full.
//! Copies, repairs and thick volumes may use the spare. A secondary refuses a write for its spare
//! only if the primary can still take the write back (`Replicate::fresh`), so a device that keeps
//! its spare is not suspected.

use crate::members::ReplicaSet;
use crate::op::{Caller, Local};
use crate::peers::Peers;
use crate::secondaries::Secondaries;
use crate::shard::Shard;
use base::{BlockSet, DeviceId, Duration, GroupId, Mutant, Time, UnitKey, mutant};
use seam::{Effects, Note, UnitStore};
use wire::Status;
use wire::message::Reply;

/// How long a joiner without space is not asked again.
const FULL_AGAIN: Duration = Duration::from_secs(1);

impl<S: UnitStore> Shard<S> {
    /// Reserves space for a client's write. Returns false, and records that, if there is none or
    /// only the spare.
    pub(crate) fn reserve(
        &mut self,
        now: Time,
        (group, unit, at, len): (GroupId, UnitKey, u32, u32),
        out: &mut Effects,
    ) -> bool {
        let only_spare = self.usable.is_only_spare(self.store.used(), unit.volume);
        let reserved = self.store.reserve(group, unit, at, len);
        if reserved && !only_spare {
            return true;
        }
        if reserved {
            self.store.release(group, unit, at, len);
        }
        let found = match reserved && only_spare {
            true => &mut self.stats.only_spare_at,
            false => &mut self.stats.full_at,
        };
        *found = Some(now);
        out.note(Note::Full { device: self.me });
        false
    }

    /// Answers `Full` to the client, and whether a part of the write is in the content already:
    /// then the write has begun and keeps its number.
    pub(crate) fn finish_full(&mut self, key: u64, out: &mut Effects) {
        let status = if mutant::on(Mutant::AckFull) { Status::Ok } else { Status::Full };
        let op = self.end_op(key);
        if let Some(write) = op.write() {
            let to = Caller::new(write.requester, op.group);
            let reply = self.answer_to(to.op, to.group, status);
            to.send(Reply { part_done: write.in_part, ..reply }, out);
        }
    }
}

impl Secondaries {
    /// Starts a client's write that the primary can still take back, or refuses it if there is no
    /// space except the spare.
    pub(crate) fn start_fresh<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        key: u64,
        out: &mut Effects,
    ) {
        let op = shard.ops.get(key).expect("the operation lives");
        let place @ (group, unit, at, len) = (op.group, op.unit, op.at, op.len);
        if !shard.store.has_space_for(group, unit, at, len) {
            if !shard.reserve(now, place, out) {
                return self.end_replicated(shard, now, key, Status::Full, out);
            }
            shard.store.release(group, unit, at, len);
        }
        shard.start_job(now, key, out);
    }

    /// Handles a job without a reservation that found no space. This happens only at a secondary or
    /// joiner.
    pub(crate) fn no_space<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        key: u64,
        out: &mut Effects,
    ) {
        let op = shard.ops.get_mut(key).expect("the operation lives");
        op.local = Local::NotStarted;
        let (group, len) = (op.group, op.len);
        self.arrivals.end(now, &mut shard.pace, key, len);
        let replica = shard.replicas.get_mut(group).expect("the operation's replica is here");
        assert!(replica.local > 0, "the group counts its jobs");
        replica.local -= 1;
        shard.stats.full_at = Some(now);
        out.note(Note::Full { device: shard.me });
        self.end_replicated(shard, now, key, Status::Full, out);
    }
}

impl Peers {
    /// Handles a replica that has no space for the operation.
    pub(crate) fn refused<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        key: u64,
        from: DeviceId,
        member: ReplicaSet,
        out: &mut Effects,
    ) {
        let op = shard.ops.get_mut(key).expect("the operation lives");
        let (group, unit, at, len) = (op.group, op.unit, op.at, op.len);
        let required = shard.replicas.of(group).needed().intersects(member);
        out.note(Note::Full { device: from });
        if !required {
            // The joiner lacks this write, and maybe more. It starts over when it may have space.
            self.cut(shard, now, group, out);
            self.timers.ask_at(group, now + FULL_AGAIN);
            return;
        }
        // Other replicas may have done the write by now. A joiner gets other content for it; a
        // replica whose answer is needed has to be removed by a new epoch.
        let mut others = op.sent;
        others.remove(member);
        let counts = others.intersects(shard.replicas.of(group).needed());
        let undone = op.reserved && op.local == Local::NotStarted && !counts;
        if op.write().is_some_and(|write| !write.answered) && undone {
            shard.store.release(group, unit, at, len);
            let op = shard.ops.get_mut(key).expect("the operation lives");
            op.reserved = false;
            let lsn = op.lsn;
            shard.finish_full(key, out);
            // Before the write leaves the stream: when the stream is empty, the joiner may be
            // sealed.
            if !others.is_empty() {
                self.copy_again(shard, now, group, unit, BlockSet::touching(at, len), out);
            }
            shard.leave_stream(group, lsn);
            return;
        }
        shard.failures.accuse([from]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{Op, Streamed, Work};
    use crate::testing::{GROUP, ME, NOW, Rig, SECOND, UNIT, bits, blocks, op, stream, write};
    use alloc::collections::BTreeSet;
    use base::BLOCK;
    use wire::Frame;

    #[test]
    fn space_is_reserved_up_to_the_spare_and_beyond_it_for_thick_volumes() {
        for (name, full, used, thick, reserved, reason) in [
            ("there is space", false, 99, false, true, ""),
            ("only the spare is left", false, 100, false, false, "spare"),
            ("the volume may use the spare", false, 100, true, true, ""),
            ("no space", true, 99, false, false, "full"),
            ("no space at all", true, 100, false, false, "full"),
            ("no space for a thick volume", true, 100, true, false, "full"),
        ] {
            let mut rig = Rig::leading(&[2], &[]);
            let volumes = thick.then_some(UNIT.volume).into_iter().collect();
            rig.shard.usable.keep_spare(100, volumes);
            (rig.shard.store.full, rig.shard.store.used) = (full, used);
            let place = (GROUP, UNIT, 0, BLOCK);
            assert_eq!(rig.shard.reserve(NOW, place, &mut rig.out), reserved, "{name}");
            assert_eq!(rig.shard.store.reserved, i32::from(reserved), "{name}");
            let stats = rig.shard.stats;
            let found = [stats.full_at, stats.only_spare_at].map(|at| at == Some(NOW));
            assert_eq!(found, [reason == "full", reason == "spare"], "{name}");
            rig.left();
            assert_eq!(rig.notes.contains(&Note::Full { device: ME }), !reserved, "{name}");
        }
    }

    /// A client keeps the number of a write that has begun.
    #[test]
    fn a_client_learns_whether_a_part_of_its_write_is_there() {
        for part in [false, true] {
            let mut rig = Rig::leading(&[2], &[]);
            let key = rig.hold(op(write()));
            rig.op(key).write_mut().unwrap().in_part = part;
            rig.shard.finish_full(key, &mut rig.out);
            let frames = rig.frames();
            let [(_, Frame::Reply(m), _)] = frames[..] else { panic!("one answer") };
            assert_eq!((m.status, m.part_done, rig.is_over(key)), (Status::Full, part, true));
        }
    }

    /// A write that the primary can still take back.
    #[test]
    fn a_secondary_refuses_before_anything_is_durable() {
        for (name, valid, full, used, left, jobs) in [
            ("it has its space", true, true, 100, "", "Write 0+4096"),
            ("there is space", false, false, 99, "", "Write 0+4096"),
            ("only the spare is left", false, false, 100, "Replicated Full to 2", ""),
            ("no space", false, true, 99, "Replicated Full to 2", ""),
        ] {
            let mut rig = Rig::following(false);
            rig.shard.usable.keep_spare(100, BTreeSet::new());
            (rig.shard.store.full, rig.shard.store.used) = (full, used);
            rig.shard.store.valid = if valid { blocks(0..1) } else { blocks(0..0) };
            let key = rig.hold(op(Work::Stream(Streamed { fresh: true, ..stream() })));
            let Rig { shard, flows, out, .. } = &mut rig;
            flows.secondaries.start_fresh(shard, NOW, key, out);
            assert_eq!((&rig.left()[..], &rig.jobs()[..]), (left, jobs), "{name}");
            assert_eq!(
                (rig.is_over(key), rig.shard.store.reserved),
                (jobs.is_empty(), 0),
                "{name}"
            );
        }
    }

    #[test]
    fn a_job_that_finds_no_space_is_refused_and_counts_no_more() {
        let mut rig = Rig::following(true);
        let key = rig.hold(Op { local: Local::Running, ..op(Work::Stream(stream())) });
        rig.replica().local = 1;
        let Rig { shard, flows, out, .. } = &mut rig;
        flows.secondaries.no_space(shard, NOW, key, out);
        assert_eq!((&rig.left()[..], rig.is_over(key)), ("Replicated Full to 2", true));
        assert_eq!((rig.replica().local, rig.shard.stats.full_at), (0, Some(NOW)));
    }

    /// What follows when a replica has no space for a write: the client's answer, whether the
    /// replica is accused, and whether the joiner's blocks are copied again.
    #[test]
    fn a_write_is_taken_back_only_if_nobody_who_counts_can_have_done_it() {
        for (name, others, from, reserved, left, accused, copied) in [
            ("before it began here", &[2][..], 2, true, "Full", false, false),
            ("when it has begun here", &[2], 2, false, "", true, false),
            ("another one may have it", &[2, 3], 2, true, "", true, false),
            ("only the joiner may have it", &[2, 4], 2, true, "Full", false, true),
            ("the joiner has none", &[2, 4], 4, true, "", false, false),
        ] {
            let joins = others.contains(&4);
            let mut rig = match joins {
                true => Rig::filling(&[2], 4),
                false => Rig::leading(others, &[]),
            };
            let key = rig.send(op(write()), others);
            if reserved {
                (rig.op(key).reserved, rig.shard.store.reserved) = (true, 1);
            } else {
                rig.op(key).local = Local::Running;
            }
            let Rig { shard, flows, out, .. } = &mut rig;
            let device = DeviceId(from);
            flows.peers.refused(shard, NOW, key, device, bits(&[from]), out);
            assert_eq!(rig.left(), left, "{name}");
            let taken_back = !left.is_empty();
            assert_eq!(rig.is_over(key), taken_back, "{name}");
            assert_eq!(rig.primary().stream.is_empty(), taken_back, "{name}");
            assert_eq!(rig.shard.failures.accused().eq([SECOND]), accused, "{name}");
            assert!(rig.notes.contains(&Note::Full { device }), "{name}");
            if !joins {
                continue;
            }
            assert_eq!(rig.sync().todo.contains(UNIT, blocks(0..1)), copied, "{name}");
            assert_eq!(rig.sync().streaming, from != 4, "{name}");
            let again = rig.flows.peers.timers.wake_at();
            assert_eq!(again, (from == 4).then_some(NOW + FULL_AGAIN), "{name}");
        }
    }

    #[test]
    fn a_copy_that_finds_no_space_makes_the_joiner_start_over() {
        let mut rig = Rig::filling(&[2], 4);
        let key = rig.send_copy(&[4]);
        let Rig { shard, flows, out, .. } = &mut rig;
        flows.peers.refused(shard, NOW, key, DeviceId(4), bits(&[4]), out);
        assert!(rig.is_over(key) && !rig.sync().streaming && rig.sync().is_idle());
    }
}
