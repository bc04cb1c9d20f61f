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
use crate::mirror::Mirror;
use crate::op::{Op, Work, fits};
use crate::replica::{Primary, Replica, Role};
use crate::sync::Sync;
use alloc::collections::{BTreeMap, BTreeSet};
use base::{BLOCK, DeviceId, Duration, GroupId, Mutant, Time, UnitKey, mutant};
use seam::{Buf, Effects, Note, UnitStore, Walk};
use wire::PeerLink;
use wire::message::{Damage, UnitRange};

/// Bytes of one read at most: long enough for a disk, short enough for a client that waits for it.
const RUN: u32 = 256 << 10;
/// How long until a range is tried again if its group is not ready, or if it is being repaired.
const AGAIN: Duration = Duration::from_millis(100);
/// Number of such tries before damage is given up.
const TRIES: u32 = 100;
/// Operations for the reports of one device, at most. Its scrubber reports one range at a time,
/// but goes on when it has given a range up.
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

/// The range that is being scrubbed.
#[derive(Clone, Copy, Debug)]
struct Range {
    group: GroupId,
    unit: UnitKey,
    at: u32,
    end: u32,
    held: u32,
    tries: u32,
    /// Damage that was reported to the primary: first block, number of blocks.
    told: Option<(u16, u16)>,
}

/// The scrubber of one device.
#[derive(Debug, Default)]
pub(crate) struct Scrub {
    /// Where the pass continues.
    cursor: u64,
    began: Time,
    range: Option<Range>,
    /// The operation that reads the range.
    op: Option<u64>,
    /// Groups for which this pass has waited in vain.
    unready: BTreeSet<GroupId>,
    /// When there is something to do.
    due: Option<Time>,
    pub stats: ScrubStats,
    /// By primary: the link on which its beacons come.
    leaders: BTreeMap<DeviceId, PeerLink>,
}

impl Scrub {
    /// Creates the scrubber of a device that was just opened. `first`: when the first pass begins.
    pub(crate) fn new(first: Option<Time>) -> Scrub {
        Scrub { due: first, ..Scrub::default() }
    }

    /// Returns when `scrub` has something to do.
    pub(crate) fn wake_at(&self) -> Option<Time> {
        self.due.filter(|_| self.op.is_none())
    }

    /// Notes that a primary's beacon came on this link.
    pub(crate) fn heard(&mut self, from: DeviceId, link: PeerLink) {
        self.leaders.insert(from, link);
    }

    /// Notes that the operation ended without a result, because its configuration ended.
    pub(crate) fn dropped(&mut self, key: u64) {
        if self.op == Some(key) {
            self.op = None;
            self.due = Some(Time::ZERO);
        }
    }
}

impl<S: UnitStore> Mirror<S> {
    /// Returns true for a device that is scrubbed: it survives its process, and scrubbing is not
    /// disabled.
    fn is_scrubbed(&self) -> bool {
        self.store.survives() && self.limits.scrub_bytes > 0
    }

    /// Returns what the scrubber has done; `None` for a device that is not scrubbed.
    pub fn scrub_stats(&self) -> Option<ScrubStats> {
        self.is_scrubbed().then_some(self.scrub.stats)
    }

    /// Begins a pass now, over again if one is running. When it ends, everything has been read that
    /// the device holds at this moment.
    pub fn begin_scrub(&mut self, now: Time) {
        if !self.is_scrubbed() {
            return;
        }
        let held = self.store.used();
        let scrub = &mut self.scrub;
        // A read that still runs is of the pass before and counts for no range. This pass begins
        // when it ends.
        (scrub.cursor, scrub.began, scrub.range, scrub.due) = (0, now, None, Some(now));
        scrub.unready.clear();
        let ScrubStats { passes, ended, .. } = scrub.stats;
        scrub.stats = ScrubStats { running: true, held, passes, ended, ..ScrubStats::default() };
    }

    /// Continues the pass when it is due.
    pub(crate) fn scrub(&mut self, now: Time) {
        if self.scrub.wake_at().is_none_or(|at| at > now) {
            return;
        }
        if !self.scrub.stats.running {
            return self.begin_scrub(now);
        }
        let Some(range) = self.scrub.range.or_else(|| self.next_range(now)) else { return };
        self.scrub.range = Some(range);
        match self.readiness(range.group) {
            Ready::Now => {
                let (at, len) = (range.at, range.end - range.at);
                let op = Op::new(range.group, range.unit, at, len, Work::Scrub);
                let key = self.ops.insert(op);
                self.scrub.op = Some(key);
                let pause = u64::from(len) * 1_000_000_000 / self.limits.scrub_bytes;
                self.scrub.due = Some(now + Duration::from_nanos(pause));
                self.queue(key);
            }
            Ready::Soon if range.tries < WAITS && !self.scrub.unready.contains(&range.group) => {
                self.scrub_later(now);
            }
            Ready::Soon | Ready::Never => {
                self.scrub.unready.insert(range.group);
                if self.is_missed(range.group) {
                    self.scrub.stats.skipped += u64::from(range.held);
                }
                self.scrub.range = None;
                self.scrub.due = Some(now);
            }
        }
    }

    /// Tries the same range again later.
    fn scrub_later(&mut self, now: Time) {
        if let Some(range) = &mut self.scrub.range {
            range.tries += 1;
        }
        self.scrub.due = Some(now + AGAIN);
    }

    /// Returns the next range of the walk; `None` if the walk has to continue later, or is at its
    /// end.
    fn next_range(&mut self, now: Time) -> Option<Range> {
        let scrub = &mut self.scrub;
        match self.store.walk(scrub.cursor, RUN) {
            Walk::Held { group, unit, at, len, held, next } => {
                scrub.cursor = next;
                Some(Range { group, unit, at, end: at + len, held, tries: 0, told: None })
            }
            Walk::Nothing { next } => {
                (scrub.cursor, scrub.due) = (next, Some(now));
                None
            }
            Walk::End => {
                let stats = &mut scrub.stats;
                (stats.running, stats.ended) = (false, Some(now));
                stats.passes += 1;
                scrub.due = Some((scrub.began + self.limits.scrub_every).max(now + AGAIN));
                None
            }
        }
    }

    /// Returns true if this replica should be a good copy, or is to become the second one. Any
    /// other copy is of no use any more, or was just written beside two good ones.
    fn is_missed(&self, group: GroupId) -> bool {
        let missed = |r: &Replica| r.config.in_sync.contains(&self.me) || r.is_only_in_sync();
        self.replicas.get(group).is_some_and(missed)
    }

    /// Returns whether damage in this group can be repaired now.
    fn readiness(&self, group: GroupId) -> Ready {
        let Some(replica) = self.replicas.get(group) else { return Ready::Never };
        match &replica.role {
            _ if replica.next.is_some() => Ready::Soon,
            Role::Primary(primary) if primary.active => Ready::Now,
            Role::Secondary(secondary) if secondary.is_equal() => Ready::Now,
            Role::Primary(_) | Role::Secondary(_) => Ready::Soon,
            Role::Out if replica.config.in_sync.contains(&self.me) => Ready::Soon,
            Role::Out => Ready::Never,
        }
    }

    // ---- ends ----

    /// Ends the read of a range that is whole.
    pub(crate) fn scrubbed(&mut self, now: Time, key: u64, out: &mut Effects) {
        let op = self.end_op(key);
        if self.scrub.op == Some(key) {
            self.scrub.op = None;
            if let Some(range) = self.scrub.range.take() {
                self.scrub.stats.done += u64::from(range.held);
                self.scrub_mended(range.group, range.told, out);
            }
        }
        self.wipe_if_idle(now, op.group);
    }

    /// Counts the blocks that were reported to the primary: they have come.
    fn scrub_mended(&mut self, group: GroupId, told: Option<(u16, u16)>, out: &mut Effects) {
        let Some((_, blocks)) = told else { return };
        let bytes = u64::from(blocks) * u64::from(BLOCK);
        self.scrub.stats.repaired += bytes;
        self.stats.repaired += bytes;
        out.note(Note::Repaired { group, bytes });
    }

    /// Handles damage. At a secondary, frees the range, so that the blocks can come, and returns
    /// true. Returns false at a primary, which repairs it as for any read.
    pub(crate) fn scrub_corrupt(
        &mut self,
        now: Time,
        key: u64,
        first: u16,
        blocks: u16,
        out: &mut Effects,
    ) -> bool {
        let op = self.ops.get(key).expect("the caller has it");
        let (group, unit) = (op.group, op.unit);
        let mine = self.scrub.op == Some(key);
        let secondary = self.replicas.get_mut(group).is_some_and(|r| r.secondary().is_some());
        let range = self.scrub.range.filter(|r| mine && r.told != Some((first, blocks)));
        if let Some(range) = range {
            self.scrub_mended(group, range.told, out);
            self.scrub.stats.damaged += u64::from(blocks) * u64::from(BLOCK);
        }
        if !secondary {
            return false;
        }
        self.end_op(key);
        if mine {
            self.scrub.op = None;
            self.tell_damage(now, (group, unit), first, blocks, out);
        }
        self.wipe_if_idle(now, group);
        true
    }

    /// Asks the primary to send the blocks, and reads them again later. Gives up after [`TRIES`].
    fn tell_damage(
        &mut self,
        now: Time,
        (group, unit): (GroupId, UnitKey),
        first: u16,
        blocks: u16,
        out: &mut Effects,
    ) {
        let Some(range) = &mut self.scrub.range else { return };
        if range.told != Some((first, blocks)) {
            (range.told, range.tries) = (Some((first, blocks)), 0);
        }
        if range.tries < TRIES {
            self.send_damage(group, unit, first, blocks, out);
            self.scrub_later(now);
        } else {
            self.scrub_past(now, first, blocks);
        }
    }

    /// Handles the primary's request for blocks that are damaged here as well. If they were
    /// reported to the primary, they are read once more and given up.
    pub(crate) fn scrub_hopeless(&mut self, now: Time, key: u64, first: u16, blocks: u16) {
        let op = self.ops.get(key).expect("the caller has it");
        let here = self.scrub.range.as_mut().filter(|r| (r.group, r.unit) == (op.group, op.unit));
        let Some(range) = here else { return };
        let asked = first..first + blocks;
        if range.told.is_some_and(|(told, n)| told < asked.end && asked.start < told + n) {
            range.tries = TRIES;
            self.scrub.due = Some(now);
        }
    }

    /// Counts blocks that a primary got from another replica.
    pub(crate) fn scrub_repaired(&mut self, bytes: u32) {
        if self.scrub.range.is_some() {
            self.scrub.stats.repaired += u64::from(bytes);
        }
    }

    /// Gives blocks up that no in-sync replica has: the range continues behind them.
    pub(crate) fn scrub_lost(&mut self, now: Time, key: u64, first: u16, blocks: u16) {
        self.end_op(key);
        if self.scrub.op == Some(key) {
            self.scrub.op = None;
            self.scrub_past(now, first, blocks);
        }
    }

    /// Counts damage that is given up, and continues behind it.
    fn scrub_past(&mut self, now: Time, first: u16, blocks: u16) {
        self.scrub.due = Some(now);
        let Some(range) = &mut self.scrub.range else { return };
        self.scrub.stats.unrepairable += u64::from(blocks) * u64::from(BLOCK);
        range.at = range.at.max((u32::from(first) + u32::from(blocks)) * BLOCK);
        (range.tries, range.told) = (0, None);
        if range.at >= range.end {
            self.scrub.range = None;
        }
    }

    // ---- from the secondary to the primary ----

    /// Reports damage to the group's primary.
    fn send_damage(
        &self,
        group: GroupId,
        unit: UnitKey,
        first: u16,
        blocks: u16,
        out: &mut Effects,
    ) {
        let primary = self.replicas.get(group).and_then(|r| r.config.primary);
        let link = primary.and_then(|p| self.scrub.leaders.get(&p));
        let Some(link) = link.filter(|_| !mutant::on(Mutant::ScrubLeaders)) else { return };
        let (at, len) = (u32::from(first) * BLOCK, u32::from(blocks) * BLOCK);
        let (epoch, range) = (self.epoch_of(group), UnitRange { unit, at, len });
        let damage = Damage { group, epoch, range, sender: self.sender() };
        out.send(link.id, link.frame(damage, &[]), Buf::EMPTY);
    }

    /// Takes a secondary's report of damage. The blocks are read here and go out as a write of the
    /// stream that leaves the list of executed writes as it was.
    pub fn damage_in(&mut self, now: Time, from: DeviceId, m: &Damage, out: &mut Effects) {
        self.heard(now, from, m.sender, out);
        let (group, UnitRange { unit, at, len }) = (m.group, m.range);
        let fits = fits::<BLOCK>(at, len);
        let Some(replica) = self.replicas.get(group) else { return };
        let config = &replica.config;
        let present = config.epoch == m.epoch && replica.next.is_none();
        // A joiner doesn't matter here, unless all writes wait for its seal.
        let holds = |p: &Primary| p.sync.as_ref().is_some_and(Sync::holds_writes);
        let serves = matches!(
            &replica.role,
            Role::Primary(p) if p.active && !holds(p) && p.has_room(&self.limits)
        );
        if !fits || !present || !serves || !config.in_sync.contains(&from) || from == self.me {
            return; // the secondary asks again
        }
        let reported = |op: &&Op| matches!(op.work, Work::Whole { of: None });
        let same = |op: &Op| (op.group, op.unit, op.at) == (group, unit, at);
        let of_sender = |op: &Op| {
            let replica = self.replicas.get(op.group);
            replica.is_some_and(|r| r.config.member(from).intersects(op.sent))
        };
        let mut reports = 0;
        for op in self.ops.iter().map(|(_, op)| op).filter(reported) {
            reports += if same(op) { REPORTS } else { usize::from(of_sender(op)) };
        }
        if self.is_gone(unit.volume) || reports >= REPORTS {
            return; // the secondary asks again
        }
        let sent: ReplicaSet = config.member(from);
        let op = Op::new(group, unit, at, len, Work::Whole { of: None });
        let key = self.ops.insert(Op { sent, ..op });
        self.queue(key);
        self.pump(now, out);
    }
}

/// Whether a group can be scrubbed now.
enum Ready {
    /// Now.
    Now,
    /// Perhaps in a moment.
    Soon,
    /// Not in this configuration.
    Never,
}
