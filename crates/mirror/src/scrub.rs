//! The scrubber: reads everything that the device holds, so that what has rotted is found while another
//! copy is whole, and not when that one is gone.
//!
//! One range at a time, under its range lock, in the order in which the journal lays it out; clients wait for
//! one such read at most. What is damaged is repaired as if a client had met it; a secondary, whom no
//! client asks, tells its primary, and gets the blocks as a write of the stream.
//!
//! Invariants: at most one read of a scrub runs; it stays within `Limits::scrub_bytes` per second; a range
//! counts as done when it was read whole, or when what is damaged in it was given up and counted.
//!
//! Not done here: pages of the map and of checksums, the log, and the copies of the superblock. Their damage
//! shows when they are read. Where a pass was is not remembered beyond the process.

use crate::mirror::Mirror;
use crate::op::{Asker, Op, OpKind, fits};
use crate::replica::{Members, Primary, Replica, Role};
use crate::sync::Sync;
use alloc::collections::{BTreeMap, BTreeSet};
use base::{BLOCK, DeviceId, Duration, GroupId, Mutant, Time, UnitKey, VolumeId, mutant};
use seam::{Buf, Effects, Journal, Note, Walk};
use wire::{Header, Kind, PeerLink};

/// The most that one read takes: long enough for a disk, short enough for a client that waits for it.
const RUN: u32 = 256 << 10;
/// How long until a range is looked at again whose group is not ready, or which is being repaired.
const AGAIN: Duration = Duration::from_millis(100);
/// How often that happens before damage is given up.
const TRIES: u32 = 100;
/// And before a group is passed over.
const WAITS: u32 = 30;

/// What came of scrubbing in this pass, or the last one. All but the counts and times in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubStats {
    /// A pass runs.
    pub running: bool,
    /// What it has read.
    pub done: u64,
    /// What it had to read, as of its beginning.
    pub held: u64,
    /// Passes that came to their end since the process started.
    pub passes: u64,
    /// When the last one did.
    pub ended: Option<Time>,
    /// What it found damaged.
    pub damaged: u64,
    /// Of that, what was written anew.
    pub repaired: u64,
    /// Of that, what nobody else had.
    pub unrepairable: u64,
    /// What it has not read, as this device is not in sync in its group.
    pub skipped: u64,
}

/// The range that is being worked on.
#[derive(Clone, Copy, Debug)]
struct Range {
    group: GroupId,
    unit: UnitKey,
    at: u32,
    end: u32,
    held: u32,
    tries: u32,
    /// Damage that the primary was told of: first block, blocks.
    told: Option<(u16, u16)>,
}

/// The scrubber of one device.
#[derive(Debug, Default)]
pub(crate) struct Scrub {
    /// Where the pass goes on.
    cursor: u64,
    began: Time,
    range: Option<Range>,
    /// The operation that reads it.
    op: Option<u64>,
    /// Groups that this pass has waited for in vain.
    unready: BTreeSet<GroupId>,
    /// When something is to be done.
    due: Option<Time>,
    pub stats: ScrubStats,
    /// The link on which a leader's beacons come.
    leaders: BTreeMap<DeviceId, PeerLink>,
}

impl Scrub {
    /// The scrubber of a device that was just opened.
    pub fn new(first: Option<Time>) -> Scrub {
        Scrub { due: first, ..Scrub::default() }
    }

    /// When `scrub` has something to do.
    pub fn wake_at(&self) -> Option<Time> {
        self.due.filter(|_| self.op.is_none())
    }

    /// A leader's beacon came on this link.
    pub fn heard(&mut self, from: DeviceId, link: PeerLink) {
        self.leaders.insert(from, link);
    }

    /// The operation ended without a result: the configuration changed.
    pub fn dropped(&mut self, key: u64) {
        if self.op == Some(key) {
            self.op = None;
            self.due = Some(Time::ZERO);
        }
    }
}

impl<J: Journal> Mirror<J> {
    /// True for a device whose content can rot unseen.
    fn is_scrubbed(&self) -> bool {
        self.journal.survives() && self.limits.scrub_bytes > 0
    }

    /// What the scrubber has done; nothing for a device that is not scrubbed.
    pub fn scrub_stats(&self) -> Option<ScrubStats> {
        self.is_scrubbed().then_some(self.scrub.stats)
    }

    /// Begins a pass now, over again if one runs: everything that the device holds at this moment will
    /// have been read when it ends.
    pub fn begin_scrub(&mut self, now: Time) {
        if !self.is_scrubbed() {
            return;
        }
        let held = self.journal.used();
        let scrub = &mut self.scrub;
        // A read that still runs is of the pass before, and has no range to count for: this one begins when it ends.
        (scrub.cursor, scrub.began, scrub.range, scrub.due) = (0, now, None, Some(now));
        scrub.unready.clear();
        let ScrubStats { passes, ended, .. } = scrub.stats;
        scrub.stats = ScrubStats { running: true, held, passes, ended, ..ScrubStats::default() };
    }

    /// Goes on, when it is time to.
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
                let op = Op::new(range.group, OpKind::Read, range.unit, at, len, Asker::Scrub);
                let key = self.insert_op(op);
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

    /// The same range, some time later.
    fn scrub_later(&mut self, now: Time) {
        if let Some(range) = &mut self.scrub.range {
            range.tries += 1;
        }
        self.scrub.due = Some(now + AGAIN);
    }

    /// The next range of the walk; none when it has to go on later, or is at its end.
    fn next_range(&mut self, now: Time) -> Option<Range> {
        let scrub = &mut self.scrub;
        match self.journal.walk(scrub.cursor, RUN) {
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

    /// Whether what is held of this group should be a good copy, or is to become the second one. What comes beside two
    /// others is compared as it comes, and what goes is of no use any more.
    fn is_missed(&self, group: GroupId) -> bool {
        let missed = |r: &Replica| r.config.in_sync.contains(&self.me) || r.is_solo();
        self.replicas.get(group).is_some_and(missed)
    }

    /// Whether damage that is found in this group can be repaired now.
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

    /// The range was read, and is whole.
    pub(crate) fn scrubbed(&mut self, now: Time, key: u64, out: &mut Effects) {
        let op = self.remove_op(key).expect("the operation lives");
        self.unlock(op.group, key);
        if self.scrub.op == Some(key) {
            self.scrub.op = None;
            if let Some(range) = self.scrub.range.take() {
                self.scrub.stats.done += u64::from(range.held);
                self.scrub_mended(range.group, range.told, out);
            }
        }
        self.wipe_if_idle(now, op.group, out);
    }

    /// What the primary was told of has come.
    fn scrub_mended(&mut self, group: GroupId, told: Option<(u16, u16)>, out: &mut Effects) {
        let Some((_, blocks)) = told else { return };
        let bytes = u64::from(blocks) * u64::from(BLOCK);
        self.scrub.stats.repaired += bytes;
        self.stats.repaired += bytes;
        out.note(Note::Repaired { group, bytes });
    }

    /// Damage was met. True when the scrub has dealt with it: at a secondary, which gives its range free,
    /// so that the blocks can come. False at a primary: it repairs as for any read.
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
        self.remove_op(key);
        self.unlock(group, key);
        if mine {
            self.scrub.op = None;
            self.tell_damage(now, (group, unit), first, blocks, out);
        }
        self.wipe_if_idle(now, group, out);
        true
    }

    /// Has the primary send the blocks, and reads them again; some day that is given up.
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

    /// The primary asks for blocks that are damaged here: it can't read them either. If it was told of them,
    /// they are read once more, and given up.
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

    /// A primary has the blocks again: from a member.
    pub(crate) fn scrub_repaired(&mut self, bytes: u32) {
        if self.scrub.range.is_some() {
            self.scrub.stats.repaired += u64::from(bytes);
        }
    }

    /// No copy that is in sync has the blocks: the range goes on behind them.
    pub(crate) fn scrub_lost(&mut self, now: Time, key: u64, first: u16, blocks: u16) {
        let op = self.remove_op(key).expect("the caller has it");
        self.unlock(op.group, key);
        if self.scrub.op == Some(key) {
            self.scrub.op = None;
            self.scrub_past(now, first, blocks);
        }
    }

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
        let mut h = self.header(Kind::Damage, group);
        (h.volume, h.unit) = (unit.volume.0.into(), unit.index.into());
        (h.at, h.len) = ((u32::from(first) * BLOCK).into(), (u32::from(blocks) * BLOCK).into());
        out.send(link.id, link.frame(h, &[]), Buf::EMPTY);
    }

    /// A member has damaged blocks: they are read here, and go out as a write of the stream, which leaves
    /// what the content includes as it was.
    pub fn damage_in(&mut self, now: Time, from: DeviceId, h: &Header, out: &mut Effects) {
        let group = GroupId(h.group.get());
        let unit = UnitKey { volume: VolumeId(h.volume.get()), index: h.unit.get() };
        let (at, len) = (h.at.get(), h.len.get());
        let fits = fits::<BLOCK>(at, len);
        let Some(replica) = self.replicas.get(group) else { return };
        let config = &replica.config;
        let present = config.epoch.0 == h.epoch.get() && replica.next.is_none();
        // A joiner does not matter here, unless the group holds back all writes for its seal.
        let holds = |p: &Primary| p.sync.as_ref().is_some_and(Sync::holds_writes);
        let serves = matches!(
            &replica.role,
            Role::Primary(p) if p.active && !holds(p) && p.has_room(&self.limits)
        );
        if !fits || !present || !serves || !config.in_sync.contains(&from) || from == self.me {
            return; // it asks again
        }
        let same =
            |op: &Op| matches!(op.asker, Asker::Mend) && (op.group, op.unit) == (group, unit);
        if self.is_gone(unit.volume) || self.ops.iter().any(|(_, op)| same(op) && op.at == at) {
            return;
        }
        let sent: Members = config.member(from);
        let op = Op::new(group, OpKind::Amend, unit, at, len, Asker::Mend);
        let key = self.insert_op(Op { sent, ..op });
        self.queue(key);
        self.pump(now, out);
    }
}

/// Whether a group can be scrubbed.
enum Ready {
    /// Now.
    Now,
    /// Perhaps in a moment.
    Soon,
    /// Not in this configuration.
    Never,
}
