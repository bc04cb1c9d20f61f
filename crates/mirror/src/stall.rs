//! Joiners that stall. A primary waits for a joiner that no acknowledgement needs for as long as it
//! answers. It cuts the joiner off when it **stalls**: either clients wait for room and nothing is
//! answered for `suspect_after`, or the same operation of a group is the oldest unacknowledged one
//! for [`STALL_FACTOR`] times as long. The latter matters because copies and the seal hold clients
//! back, too.
//!
//! Invariant: a joiner that was cut off because it answered nothing at all gets no stream before it
//! has told its state in every group in which it had something to do.

use crate::ops::Ops;
use crate::peers::Peers;
use crate::replica::{Primary, Role};
use crate::shard::Shard;
use crate::sync::{ASK_AGAIN, Phase, Sync};
use crate::window::Windows;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use base::{DeviceId, Duration, GroupId, Lsn, Mutant, Time, mutant};
use seam::{Effects, UnitStore};

/// How long a joiner may take for one operation, in multiples of `suspect_after`.
const STALL_FACTOR: u32 = 5;
/// The longest time until a joiner is asked again while it has too much to do, or has stalled in
/// another group.
const ASK_BEHIND: Duration = Duration::from_secs(1);

impl Primary {
    /// Returns true if its joiner stalls, and can be cut off. Only the time since `awake` counts.
    /// `within` is `suspect_after`.
    fn stalls(
        &mut self,
        times @ (now, awake): (Time, Time),
        joiner: DeviceId,
        ops: &Ops,
        windows: &Windows,
        within: Duration,
    ) -> bool {
        let stuck = self.is_stuck(times, joiner, ops, windows, within);
        let awaited = windows.awaited(joiner);
        let mute = awaited.is_some_and(|since| now.since(since.max(awake)) > within);
        (stuck || mute) && self.sync.as_ref().is_some_and(Sync::can_be_cut)
    }

    /// Returns true if the joiner has had the same oldest unacknowledged operation for too long,
    /// and not because of earlier operations: a window may hold more work than the joiner can do in
    /// that time, and its device may do one thing after the other. Operations that wait for room
    /// here have not been sent.
    fn is_stuck(
        &mut self,
        (now, awake): (Time, Time),
        joiner: DeviceId,
        ops: &Ops,
        windows: &Windows,
        within: Duration,
    ) -> bool {
        let Some(sync) = &mut self.sync else { return false };
        let lacks = |key: u64| {
            let op = ops.get(key).expect("an operation of the stream lives");
            op.sent.intersects(sync.members) && !op.acked.intersects(sync.members)
        };
        let number = |key: u64| {
            let sent = ops.get(key).filter(|op| op.in_flight.intersects(sync.members));
            sent.map_or(u64::MAX, |op| op.number)
        };
        let owed = match sync.phase {
            Phase::Seal(lsn) => Some((lsn.next(), sync.sealed_after + 1)),
            _ => {
                let oldest = self.stream.iter().find(|e| !e.done && lacks(e.op));
                oldest.map(|e| (e.lsn, number(e.op)))
            }
        };
        let owed = owed.filter(|(_, number)| !windows.is_before(joiner, *number, now, within));
        let owed = owed.map(|(lsn, _)| lsn);
        let before: Option<(Lsn, Time)> = sync.unacknowledged.filter(|(lsn, _)| owed == Some(*lsn));
        sync.unacknowledged = owed.map(|lsn| before.unwrap_or((lsn, now)));
        let stalls = |(_, since): (Lsn, Time)| now.since(since.max(awake)) > within * STALL_FACTOR;
        before.is_some_and(stalls) && !mutant::on(Mutant::AwaitJoiner)
    }
}

impl Peers {
    /// Starts the stream of a cut-off joiner again, with the next question: the joiner has done
    /// everything that it was sent. No copy of this primary runs; while one does, `ask_again` asks
    /// later.
    pub(crate) fn restart_stream<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        group: GroupId,
        joiner: DeviceId,
        patience: Duration,
        out: &mut Effects,
    ) {
        if shard.windows.is_behind(joiner) {
            // Its stream would find no room, or its device hangs.
            let patience = patience.clamp(ASK_AGAIN * 10, ASK_BEHIND);
            return self.wait_for_answer(shard, now, group, patience);
        }
        // The next answer will take as long as this one.
        self.ask_joiner(shard, now, group, joiner, true, out);
        self.wait_for_answer(shard, now, group, patience);
    }

    /// Cuts off joiners that stall. One that answers nothing at all is cut off in all its groups,
    /// because each group would hold its clients back for as long as the first one. One that
    /// answers other operations stays in the other groups. Time in which this process itself stood
    /// still doesn't count.
    pub(crate) fn cut_stalled<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        out: &mut Effects,
    ) {
        let awake = shard.leases.awake(now);
        let join = |group: GroupId| match &shard.replicas.get(group)?.role {
            Role::Primary(Primary { sync: Some(sync), .. }) => {
                Some((group, sync.joiner?, matches!(sync.phase, Phase::Seal(_))))
            }
            _ => None,
        };
        let joins: Vec<(GroupId, DeviceId, bool)> =
            self.timers.joining().filter_map(join).collect();
        let mut stalled: BTreeMap<DeviceId, GroupId> = BTreeMap::new();
        for &(group, joiner, _) in &joins {
            let (after, times) = (shard.limits.suspect_after, (now, awake));
            let primary = shard.replicas.primary_mut(group).expect("it has a joiner");
            if !primary.stalls(times, joiner, &shard.ops, &shard.windows, after) {
                continue;
            }
            let answers = shard.windows.answers(joiner, now, after);
            match answers || mutant::on(Mutant::StallInTurn) {
                true => self.cut(shard, now, group, out),
                false => drop(stalled.entry(joiner).or_insert(group)),
            }
        }
        for (group, ..) in joins.iter().filter(|(_, joiner, _)| stalled.contains_key(joiner)) {
            self.cut(shard, now, *group, out);
        }
        for (joiner, first) in stalled {
            // It is asked only in groups that it joins. A joiner that seals has no operations to
            // do.
            let unacknowledged = |(group, of, seals): &(GroupId, DeviceId, bool)| {
                let unacknowledged = *seals || shard.windows.has_undone(joiner, *group);
                (*of == joiner && unacknowledged).then_some(*group)
            };
            let mut groups: Vec<GroupId> = joins.iter().filter_map(unacknowledged).collect();
            if groups.is_empty() {
                groups.push(first);
            }
            shard.windows.stalls(joiner, groups.into_iter());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members::ReplicaSet;
    use crate::op::{Op, Work};
    use base::{BLOCK, Limits, LinkId, UnitKey};
    use wire::PeerLink;

    const JOINER: DeviceId = DeviceId(2);
    const MEMBER: ReplicaSet = ReplicaSet(2);
    const WITHIN: Duration = Duration::from_secs(1);
    const LONG: Duration = Duration::from_secs(STALL_FACTOR as u64);

    struct Rig {
        primary: Primary,
        ops: Ops,
        windows: Windows,
    }

    /// Creates a primary with a joiner that gets the stream.
    fn rig() -> Rig {
        let limits = Limits { link_queue: 2000, ..Limits::TEST_MIN };
        let mut windows = Windows::new(&limits);
        windows.connect(JOINER, Some(PeerLink::new(LinkId(1), 1)));
        let mut primary = Primary { active: true, ..Primary::default() };
        primary.ask(MEMBER, Some(JOINER), 0).streaming = true;
        Rig { primary, ops: Ops::default(), windows }
    }

    impl Rig {
        /// Sends an operation to the joiner. Returns its key and its number.
        fn send(&mut self) -> (u64, u64) {
            let op = Op::new(GroupId(1), UnitKey::default(), 0, BLOCK, Work::Whole { of: None });
            let number = self.windows.next_number();
            let op = Op { sent: MEMBER, in_flight: MEMBER, number, ..op };
            let key = self.ops.insert(op);
            self.windows.send(JOINER, key, 100, true).expect("it has its turn");
            self.ops.get_mut(key).unwrap().lsn = self.primary.enter(key, MEMBER);
            (key, number)
        }

        fn acknowledge(&mut self, now: Time, (key, number): (u64, u64)) {
            let op = self.ops.get_mut(key).unwrap();
            op.acked.insert(MEMBER);
            op.in_flight.remove(MEMBER);
            self.windows.answered(now, JOINER, 100, number);
        }

        fn stalls(&mut self, now: Time, awake: Time) -> bool {
            self.primary.stalls((now, awake), JOINER, &self.ops, &self.windows, WITHIN)
        }
    }

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    const LATER: Duration = Duration::from_nanos(1);

    #[test]
    fn a_joiner_without_anything_to_do_does_not_stall() {
        let mut rig = rig();
        assert!(!rig.stalls(at(1), at(0)) && !rig.stalls(at(100), at(0)));
        let sent = rig.send();
        assert!(!rig.stalls(at(101), at(0)));
        rig.acknowledge(at(102), sent);
        assert!(!rig.stalls(at(200), at(0)));
    }

    #[test]
    fn a_joiner_stalls_when_one_operation_takes_too_long() {
        let mut rig = rig();
        let first = rig.send();
        rig.send();
        assert!(!rig.stalls(at(1), at(0)), "it is looked at from now on");
        assert!(!rig.stalls(at(1) + LONG, at(0)));
        assert!(rig.stalls(at(1) + LONG + LATER, at(0)));
        rig.acknowledge(at(7), first);
        assert!(!rig.stalls(at(9), at(0)), "another one is the oldest");
        assert!(!rig.stalls(at(9) + LONG, at(0)));
        assert!(rig.stalls(at(9) + LONG + LATER, at(0)));
    }

    #[test]
    fn work_for_other_groups_that_came_before_is_waited_for() {
        let mut rig = rig();
        let numbers = [(); 3].map(|()| rig.windows.next_number());
        rig.send();
        for (second, number) in (1..).zip(numbers) {
            assert!(!rig.stalls(at(second * 20), at(0)), "{second}");
            rig.windows.answered(at(second * 20), JOINER, 0, number);
            assert!(!rig.stalls(at(second * 20), at(0)), "{second}: it works on what came before");
        }
        assert!(!rig.stalls(at(100), at(0)), "it works on nothing else any more");
        assert!(rig.stalls(at(100) + LONG + LATER, at(0)));
    }

    #[test]
    fn a_joiner_stalls_when_clients_wait_and_it_answers_nothing() {
        let mut rig = rig();
        rig.send();
        assert!(rig.windows.makes_wait(at(10), JOINER, 1000), "there is no room");
        assert!(!rig.stalls(at(10) + WITHIN, at(0)));
        assert!(rig.stalls(at(10) + WITHIN + LATER, at(0)));
        rig.windows.answered(at(11), JOINER, 0, 0);
        assert!(!rig.stalls(at(11) + WITHIN, at(0)), "it has answered something");
    }

    #[test]
    fn time_in_which_this_process_stood_still_does_not_count() {
        let mut rig = rig();
        rig.send();
        rig.windows.makes_wait(at(1), JOINER, 1000);
        rig.stalls(at(1), at(0));
        assert!(rig.stalls(at(60), at(0)) && !rig.stalls(at(60), at(60)));
        assert!(!rig.stalls(at(61), at(60)) && rig.stalls(at(62), at(60)));
    }

    #[test]
    fn a_joiner_that_acknowledgements_need_or_that_gets_nothing_is_not_cut() {
        for (phase, streaming, cut) in
            [(Phase::Copy, true, true), (Phase::Admit, true, false), (Phase::Ask, false, false)]
        {
            let mut rig = rig();
            rig.send();
            rig.windows.makes_wait(at(1), JOINER, 1000);
            let sync = rig.primary.sync.as_mut().unwrap();
            (sync.phase, sync.streaming) = (phase, streaming);
            assert_eq!(rig.stalls(at(60), at(0)), cut, "{phase:?}");
        }
    }

    #[test]
    fn a_seal_that_takes_too_long_stalls() {
        let mut rig = rig();
        let sync = rig.primary.sync.as_mut().unwrap();
        sync.phase = Phase::Seal(Lsn(0));
        assert!(!rig.stalls(at(1), at(0)) && !rig.stalls(at(1) + LONG, at(0)));
        assert!(rig.stalls(at(1) + LONG + LATER, at(0)));
    }

    /// Device 4 is a joiner that has had the oldest operation for too long. Whether it may stall in
    /// other groups as well depends on whether it answers anything.
    #[test]
    fn a_joiner_that_answers_nothing_is_behind_in_all_its_groups() {
        use crate::testing::{NOW, Rig, op, write};
        for (name, long, answers, cut, behind) in [
            ("it has time", false, false, false, false),
            ("it answers nothing", true, false, true, true),
            ("it answers other operations", true, true, true, false),
        ] {
            let joiner = DeviceId(4);
            let mut rig = Rig::filling(&[2], 4);
            rig.send(op(write()), &[2, 4]);
            let step = rig.shard.limits.suspect_after / 2;
            let steps = if long { 2 * STALL_FACTOR + 3 } else { 2 * STALL_FACTOR };
            for n in 0..steps {
                let now = NOW + step * n;
                rig.shard.leases.due(now, |_| ());
                if answers {
                    rig.shard.windows.answered(now, joiner, 0, 99);
                }
                let Rig { shard, flows, out, .. } = &mut rig;
                flows.peers.cut_stalled(shard, now, out);
            }
            assert_eq!(!rig.sync().streaming, cut, "{name}");
            assert_eq!(rig.shard.windows.is_behind(joiner), behind, "{name}");
        }
    }

    /// The stream of a joiner that was cut off begins again when it has done what it was sent.
    #[test]
    fn a_joiner_that_is_behind_gets_no_stream() {
        use crate::testing::{GROUP, NOW, Rig, bits};
        for (behind, left, wait) in
            [(false, "SyncStart to 4", ASK_AGAIN), (true, "", ASK_AGAIN * 10)]
        {
            let joiner = DeviceId(4);
            let mut rig = Rig::leading(&[2], &[4]);
            rig.primary().ask(bits(&[4]), Some(joiner), 0);
            if behind {
                rig.shard.windows.stalls(joiner, [GroupId(8)].into_iter());
            }
            let Rig { shard, flows, out, .. } = &mut rig;
            flows.peers.restart_stream(shard, NOW, GROUP, joiner, ASK_AGAIN, out);
            assert_eq!((&rig.left()[..], rig.sync().streaming), (left, !behind));
            assert_eq!(rig.flows.peers.timers.wake_at(), Some(NOW + wait));
        }
    }
}
