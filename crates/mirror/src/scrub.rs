//! The scrubber: reads everything that the device holds, so that damage is found while another copy
//! is whole (rule R13).
//!
//! It reads one range at a time, under its range lock, in the order of the unit store. Clients wait
//! for at most one such read. A primary repairs damage as if a client had met it. A secondary, from
//! which clients don't read, reports damage to its primary, and gets the blocks as a write of the
//! stream.
//!
//! Invariants:
//! - At most one read of a scrub runs.
//! - The scrubber reads at most `Limits::scrub_bytes` per second.
//! - A pass leaves a range only when all of it was read, when its damage was given up and counted,
//!   or when its group is skipped.
//!
//! Pages of the map and of checksums, the log, and the copies of the superblock are not scrubbed.
//! Their damage shows when they are read. The position of a pass is not kept beyond the process.

use crate::members::ReplicaSet;
use crate::op::{Op, Work, fits};
use crate::replica::{Primary, Replica, Role};
use crate::shard::Shard;
use crate::sync::Sync;
use alloc::collections::{BTreeMap, BTreeSet};
use base::{BLOCK, DeviceId, Duration, GroupId, Limits, Mutant, Time, UnitKey, mutant};
use seam::{Buf, Effects, UnitStore, Walk};
use wire::PeerLink;
use wire::message::{Damage, UnitRange};

/// Bytes of one read at most: long enough for a disk, short enough for a client that waits for it.
const RUN: u32 = 256 << 10;
/// How long to wait before a range is tried again if its group is not ready, or if it is being
/// repaired.
const AGAIN: Duration = Duration::from_millis(100);
/// Number of such tries before damage is given up.
const TRIES: u32 = 100;
/// Operations for the reports of one device, at most. Its scrubber reports one range at a time, but
/// continues when it has given a range up.
const REPORTS: usize = 8;
/// Number of such tries before a group is skipped.
const WAITS: u32 = 30;

/// Progress and results of this scrub pass, or of the last one, in bytes except for counts and
/// times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubStats {
    /// A pass is running.
    pub running: bool,
    /// Bytes read.
    pub done: u64,
    /// Bytes to read, as of the start of the pass.
    pub held: u64,
    /// Passes completed since the process started.
    pub passes: u64,
    /// When the last pass was completed.
    pub ended: Option<Time>,
    /// Damage that was found.
    pub damaged: u64,
    /// Damage that was repaired.
    pub repaired: u64,
    /// Damage for which no other replica had the blocks.
    pub unrepairable: u64,
    /// Bytes that were not read, because the replica is not in sync or was not ready in time.
    pub skipped: u64,
}

/// The range that is being scrubbed, and the damage that was found in it.
#[derive(Clone, Copy, Debug)]
struct Range {
    group: GroupId,
    unit: UnitKey,
    at: u32,
    end: u32,
    held: u32,
    tries: u32,
    /// Damage that was reported to the primary: first block, number of blocks.
    reported: Option<(u16, u16)>,
}

/// The scrubber of one device.
#[derive(Debug, Default)]
pub(crate) struct Scrub {
    /// Bytes per second; 0 for a device that is not scrubbed.
    speed: u64,
    /// How often a pass begins.
    every: Duration,
    /// Where the pass continues.
    cursor: u64,
    began: Time,
    range: Option<Range>,
    /// The operation that reads the range.
    op: Option<u64>,
    /// Groups that this pass skips, because they were not ready in time.
    unready: BTreeSet<GroupId>,
    /// When there is something to do.
    due: Option<Time>,
    stats: ScrubStats,
    /// By primary: the link on which its beacons come.
    leaders: BTreeMap<DeviceId, PeerLink>,
}

impl Scrub {
    /// Creates the scrubber of a device that was opened at `boot`. It does nothing if the device
    /// does not survive its process, or if scrubbing is disabled.
    pub(crate) fn new(survives: bool, limits: &Limits, boot: Time) -> Scrub {
        let speed = if survives { limits.scrub_bytes } else { 0 };
        let due = (speed > 0).then(|| boot + limits.scrub_first);
        Scrub { speed, every: limits.scrub_every, due, ..Scrub::default() }
    }

    /// Returns what it has done; `None` for a device that is not scrubbed.
    pub(crate) fn stats(&self) -> Option<ScrubStats> {
        (self.speed > 0).then_some(self.stats)
    }

    /// Returns when there is something to do.
    pub(crate) fn wake_at(&self) -> Option<Time> {
        self.due.filter(|_| self.op.is_none())
    }

    // ---- the pass ----

    /// Begins a pass, and restarts one that is running. The device holds this many bytes.
    pub(crate) fn begin(&mut self, now: Time, held: u64) {
        if self.speed == 0 {
            return;
        }
        // A read that still runs is of the pass before and counts for no range. This pass begins
        // when it ends.
        (self.cursor, self.began, self.range, self.due) = (0, now, None, Some(now));
        self.unready.clear();
        let ScrubStats { passes, ended, .. } = self.stats;
        self.stats = ScrubStats { running: true, held, passes, ended, ..ScrubStats::default() };
    }

    /// Returns the group of the range that is to be read next; `None` if the walk has to continue
    /// later, or is at its end.
    fn next_range(&mut self, now: Time, store: &impl UnitStore) -> Option<GroupId> {
        if self.range.is_none() {
            self.range = self.walk(now, store.walk(self.cursor, RUN));
        }
        self.range.map(|range| range.group)
    }

    fn walk(&mut self, now: Time, found: Walk) -> Option<Range> {
        match found {
            Walk::Held { group, unit, at, len, held, next } => {
                self.cursor = next;
                Some(Range { group, unit, at, end: at + len, held, tries: 0, reported: None })
            }
            Walk::Nothing { next } => {
                (self.cursor, self.due) = (next, Some(now));
                None
            }
            Walk::End => {
                (self.stats.running, self.stats.ended) = (false, Some(now));
                self.stats.passes += 1;
                self.due = Some((self.began + self.every).max(now + AGAIN));
                None
            }
        }
    }

    /// Decides what to do with the range. Returns the operation that reads it now. Otherwise the
    /// range is tried again later, or skipped. `missed`: if the range is skipped, its bytes count.
    fn choose(&mut self, now: Time, ready: Ready, missed: bool) -> Option<Op> {
        assert!(self.op.is_none(), "one read of a scrub runs");
        let range = self.range?;
        match ready {
            Ready::Now => {
                assert!(range.at < range.end, "the range has something to read");
                let len = range.end - range.at;
                let pause = u64::from(len) * 1_000_000_000 / self.speed;
                self.due = Some(now + Duration::from_nanos(pause));
                return Some(Op::new(range.group, range.unit, range.at, len, Work::Scrub));
            }
            Ready::Soon if range.tries < WAITS && !self.unready.contains(&range.group) => {
                self.try_later(now);
            }
            Ready::Soon | Ready::Never => {
                self.unready.insert(range.group);
                if missed {
                    self.stats.skipped += u64::from(range.held);
                }
                (self.range, self.due) = (None, Some(now));
            }
        }
        None
    }

    /// Records that this operation reads the range.
    fn reads(&mut self, key: u64) {
        assert!(
            self.op.is_none() && self.range.is_some(),
            "one read of a scrub runs, of its range"
        );
        self.op = Some(key);
    }

    /// Tries the same range again later.
    fn try_later(&mut self, now: Time) {
        if let Some(range) = &mut self.range {
            range.tries += 1;
        }
        self.due = Some(now + AGAIN);
    }

    /// Records that the operation has ended. Returns true if it is the one that reads the range of
    /// this pass.
    fn ends(&mut self, key: u64) -> bool {
        let mine = self.op == Some(key);
        if mine {
            self.op = None;
        }
        mine
    }

    /// Handles an operation that ended without a result, because its configuration ended.
    pub(crate) fn dropped(&mut self, key: u64) {
        if self.ends(key) {
            self.due = Some(Time::ZERO);
        }
    }

    // ---- damage ----

    /// Handles an operation that has read its whole range without damage. Returns the bytes of
    /// damage that was reported to the primary: their repair has arrived.
    fn is_whole(&mut self, key: u64) -> u64 {
        let range = if self.ends(key) { self.range.take() } else { None };
        let Some(range) = range else { return 0 };
        self.stats.done += u64::from(range.held);
        self.count_arrived(range.reported)
    }

    fn count_arrived(&mut self, reported: Option<(u16, u16)>) -> u64 {
        let bytes = reported.map_or(0, |(_, blocks)| u64::from(blocks) * u64::from(BLOCK));
        self.stats.repaired += bytes;
        bytes
    }

    /// Handles an operation that has met damage. Counts the damage if it is new, and returns the
    /// bytes of earlier damage that was reported to the primary: their repair has arrived.
    fn finds(&mut self, key: u64, damage: (u16, u16)) -> u64 {
        let range = self.range.filter(|r| self.op == Some(key) && r.reported != Some(damage));
        let Some(range) = range else { return 0 };
        self.stats.damaged += u64::from(damage.1) * u64::from(BLOCK);
        self.count_arrived(range.reported)
    }

    /// Handles the end of a secondary's operation that has met damage. Returns true if the primary
    /// is to be asked for the blocks, which are read again later. Gives up after [`TRIES`].
    fn asks(&mut self, now: Time, key: u64, damage: (u16, u16)) -> bool {
        if !self.ends(key) {
            return false;
        }
        let Some(range) = &mut self.range else { return false };
        if range.reported != Some(damage) {
            (range.reported, range.tries) = (Some(damage), 0);
        }
        if range.tries >= TRIES {
            self.pass_over(now, damage);
            return false;
        }
        self.try_later(now);
        true
    }

    /// Handles the primary's request for blocks that are damaged here as well. If they were
    /// reported to it, they are read once more and given up.
    pub(crate) fn is_hopeless(&mut self, now: Time, op: &Op, (first, blocks): (u16, u16)) {
        let here = self.range.as_mut().filter(|r| (r.group, r.unit) == (op.group, op.unit));
        let Some(range) = here else { return };
        let asked = first..first + blocks;
        if range.reported.is_some_and(|(at, n)| at < asked.end && asked.start < at + n) {
            range.tries = TRIES;
            self.due = Some(now);
        }
    }

    /// Counts blocks that a primary got from another replica.
    pub(crate) fn count_repaired(&mut self, bytes: u32) {
        if self.range.is_some() {
            self.stats.repaired += u64::from(bytes);
        }
    }

    /// Handles an operation that ends because no in-sync replica has the blocks. The range
    /// continues after them.
    pub(crate) fn gives_up(&mut self, now: Time, key: u64, damage: (u16, u16)) {
        if self.ends(key) {
            self.pass_over(now, damage);
        }
    }

    /// Counts damage that is given up, and continues after it.
    fn pass_over(&mut self, now: Time, (first, blocks): (u16, u16)) {
        self.due = Some(now);
        let Some(range) = &mut self.range else { return };
        self.stats.unrepairable += u64::from(blocks) * u64::from(BLOCK);
        range.at = range.at.max((u32::from(first) + u32::from(blocks)) * BLOCK);
        (range.tries, range.reported) = (0, None);
        if range.at >= range.end {
            self.range = None;
        }
    }

    // ---- the primaries ----

    /// Records that a primary's beacon came on this link.
    pub(crate) fn heard(&mut self, from: DeviceId, link: PeerLink) {
        self.leaders.insert(from, link);
    }

    /// Returns the link to a primary.
    fn leader(&self, primary: DeviceId) -> Option<PeerLink> {
        self.leaders.get(&primary).copied().filter(|_| !mutant::on(Mutant::ScrubLeaders))
    }
}

/// Returns whether damage in the group of this replica can be repaired now.
fn readiness(replica: &Replica, me: DeviceId) -> Ready {
    match &replica.role {
        _ if replica.next.is_some() => Ready::Soon,
        Role::Primary(_) if replica.serves() => Ready::Now,
        Role::Secondary(secondary) if secondary.is_equal() => Ready::Now,
        Role::Primary(_) | Role::Secondary(_) => Ready::Soon,
        Role::Out if replica.config.in_sync.contains(&me) => Ready::Soon,
        Role::Out => Ready::Never,
    }
}

/// Returns true if skipped bytes of this replica count. It should be a good copy then, or is to
/// become the second one. Any other copy is no longer needed, or was just written beside two good
/// ones.
fn counts_if_skipped(replica: &Replica, me: DeviceId) -> bool {
    replica.config.in_sync.contains(&me) || replica.is_only_in_sync()
}

impl Scrub {
    /// Continues the pass when it is due.
    pub(crate) fn go_on<S: UnitStore>(&mut self, shard: &mut Shard<S>, now: Time) {
        if self.wake_at().is_none_or(|at| at > now) {
            return;
        }
        if !self.stats.running {
            return self.begin(now, shard.store.used());
        }
        let Some(group) = self.next_range(now, &shard.store) else { return };
        let replica = shard.replicas.get(group);
        let ready = replica.map_or(Ready::Never, |r| readiness(r, shard.me));
        let missed = replica.is_some_and(|r| counts_if_skipped(r, shard.me));
        let Some(op) = self.choose(now, ready, missed) else { return };
        let key = shard.queue(op);
        self.reads(key);
    }

    /// Ends the read of a range that is whole.
    pub(crate) fn done<S: UnitStore>(&mut self, shard: &mut Shard<S>, key: u64, out: &mut Effects) {
        let op = shard.end_op(key);
        let bytes = self.is_whole(key);
        shard.count_repaired(op.group, bytes, out);
    }

    /// Handles damage. At a secondary, frees the range, so that the blocks can come, and returns
    /// true. Returns false at a primary, which repairs it as for any read.
    pub(crate) fn damaged<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        key: u64,
        damage: (u16, u16),
        out: &mut Effects,
    ) -> bool {
        let group = shard.ops.get(key).expect("the caller has it").group;
        let bytes = self.finds(key, damage);
        shard.count_repaired(group, bytes, out);
        if shard.replicas.secondary_mut(group).is_none() {
            return false;
        }
        let op = shard.end_op(key);
        if self.asks(now, key, damage) {
            self.send_damage(shard, &op, damage, out);
        }
        true
    }

    /// Reports damage to the group's primary.
    fn send_damage<S: UnitStore>(
        &self,
        shard: &Shard<S>,
        op: &Op,
        (first, blocks): (u16, u16),
        out: &mut Effects,
    ) {
        let config = shard.replicas.get(op.group).map(|r| &r.config);
        let primary = config.and_then(|c| Some((c.primary?, c.epoch)));
        let Some((primary, epoch)) = primary else { return };
        let Some(link) = self.leader(primary) else { return };
        let (at, len) = (u32::from(first) * BLOCK, u32::from(blocks) * BLOCK);
        let range = UnitRange { unit: op.unit, at, len };
        let damage = Damage { group: op.group, epoch, range, sender: shard.known.sender() };
        out.send(link.id, link.frame(damage, &[]), Buf::EMPTY);
    }

    /// Takes a secondary's report of damage. The blocks are read here and go out as a write of the
    /// stream that leaves the list of executed writes as it was. Returns false if that gives the
    /// loop nothing to do.
    pub(crate) fn damage_in<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        from: DeviceId,
        m: &Damage,
    ) -> bool {
        let (group, UnitRange { unit, at, len }) = (m.group, m.range);
        let fits = fits::<BLOCK>(at, len);
        let Some(replica) = shard.replicas.get(group) else { return false };
        let config = &replica.config;
        let present = config.epoch == m.epoch && replica.next.is_none();
        // A joiner doesn't matter here, unless all writes wait for its seal.
        let holds = |p: &Primary| p.sync.as_ref().is_some_and(Sync::holds_writes);
        let serves = matches!(
            &replica.role,
            Role::Primary(p) if p.active && !holds(p) && p.has_room(&shard.limits)
        );
        if !fits || !present || !serves || !config.in_sync.contains(&from) || from == shard.me {
            return false; // the secondary asks again
        }
        let reported = |op: &&Op| matches!(op.work, Work::Whole { of: None });
        let same = |op: &Op| (op.group, op.unit, op.at) == (group, unit, at);
        let of_sender = |op: &Op| {
            let replica = shard.replicas.get(op.group);
            replica.is_some_and(|r| r.config.member(from).intersects(op.sent))
        };
        let mut reports = 0;
        for op in shard.ops.iter().map(|(_, op)| op).filter(reported) {
            reports += if same(op) { REPORTS } else { usize::from(of_sender(op)) };
        }
        if shard.known.is_gone(unit.volume) || reports >= REPORTS {
            return false; // the secondary asks again
        }
        let sent: ReplicaSet = config.member(from);
        let op = Op::new(group, unit, at, len, Work::Whole { of: None });
        shard.queue(Op { sent, ..op });
        true
    }
}

/// Whether a group can be scrubbed now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ready {
    /// Now.
    Now,
    /// Perhaps in a moment.
    Soon,
    /// Not in this configuration.
    Never,
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: u64 = 7;
    const GROUP: GroupId = GroupId(1);

    fn scrub() -> Scrub {
        let limits = Limits { scrub_bytes: 1 << 20, ..Limits::TEST_MIN };
        let mut scrub = Scrub::new(true, &limits, Time(0));
        scrub.begin(Time(1), 8 * u64::from(BLOCK));
        let (unit, len) = (UnitKey::default(), 8 * BLOCK);
        let held = Walk::Held { group: GROUP, unit, at: 0, len, held: len, next: 1 };
        scrub.range = scrub.walk(Time(1), held);
        scrub
    }

    fn read(scrub: &mut Scrub, now: Time) {
        assert!(scrub.choose(now, Ready::Now, true).is_some());
        scrub.reads(KEY);
    }

    #[test]
    fn a_range_that_is_not_ready_is_tried_again_and_then_skipped() {
        let mut now = Time(1);
        let mut scrub = scrub();
        for _ in 0..WAITS {
            assert!(scrub.choose(now, Ready::Soon, true).is_none() && scrub.range.is_some());
            now = scrub.wake_at().unwrap();
        }
        assert!(scrub.choose(now, Ready::Soon, true).is_none() && scrub.range.is_none());
        assert_eq!(scrub.stats.skipped, 8 * u64::from(BLOCK));
        assert!(scrub.unready.contains(&GROUP), "this pass waits for the group no more");
    }

    #[test]
    fn a_secondary_reports_damage_and_gives_it_up_when_it_does_not_come() {
        let (mut scrub, damage) = (scrub(), (2, 3));
        for _ in 0..TRIES {
            read(&mut scrub, Time(1));
            scrub.finds(KEY, damage);
            assert!(scrub.asks(Time(1), KEY, damage));
        }
        read(&mut scrub, Time(1));
        assert!(!scrub.asks(Time(1), KEY, damage));
        let bytes = 3 * u64::from(BLOCK);
        assert_eq!((scrub.stats.damaged, scrub.stats.unrepairable), (bytes, bytes));
        assert_eq!(scrub.range.map(|range| range.at), Some(5 * BLOCK), "it goes on behind");
    }

    #[test]
    fn blocks_that_have_come_count_as_repaired() {
        let mut scrub = scrub();
        read(&mut scrub, Time(1));
        assert_eq!(scrub.finds(KEY, (2, 1)), 0);
        assert!(scrub.asks(Time(1), KEY, (2, 1)));
        read(&mut scrub, Time(1));
        assert_eq!(scrub.finds(KEY, (6, 2)), u64::from(BLOCK), "the next damage");
        assert!(scrub.asks(Time(1), KEY, (6, 2)));
        read(&mut scrub, Time(1));
        assert_eq!(scrub.is_whole(KEY), 2 * u64::from(BLOCK));
        assert_eq!(scrub.stats.repaired, 3 * u64::from(BLOCK));
        assert_eq!(scrub.stats.done, 8 * u64::from(BLOCK));
    }

    #[test]
    fn the_read_of_an_earlier_pass_counts_for_no_range() {
        let mut scrub = scrub();
        read(&mut scrub, Time(1));
        scrub.begin(Time(2), 0);
        assert_eq!((scrub.wake_at(), scrub.is_whole(KEY)), (None, 0));
        assert_eq!((scrub.stats.done, scrub.wake_at()), (0, Some(Time(2))));
    }
}
