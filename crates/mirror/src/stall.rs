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
