//! One replica of one group: its configuration, what it must remember, and the part that it plays.

use crate::dirty::Dirty;
use crate::executed::ExecutedList;
use crate::lock::Locks;
use crate::secondary::Secondary;
use crate::sync::Sync;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use base::{DeviceId, Epoch, Limits, Lsn, MapVersion, Time};
use seam::GroupRecord;

/// A group's configuration, as the map has it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct GroupConfig {
    /// Its number.
    pub epoch: Epoch,
    /// Who serves; `None` when no in-sync replica is up.
    pub primary: Option<DeviceId>,
    /// Members, the preferred primary first; at most 8.
    pub replicas: Vec<DeviceId>,
    /// Those that hold every acknowledged write.
    pub in_sync: Vec<DeviceId>,
    /// Those that are being brought up to date.
    pub joiners: Vec<DeviceId>,
    /// Every copy is gone (rule R10).
    pub lost: bool,
}

/// Some of a group's members, one bit by place in `GroupConfig::replicas`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Members(pub u8);

impl Members {
    pub fn contains_all(self, other: Members) -> bool {
        other.0 & !self.0 == 0
    }

    pub fn insert(&mut self, other: Members) {
        self.0 |= other.0;
    }

    pub fn remove(&mut self, other: Members) {
        self.0 &= !other.0;
    }

    pub fn without(self, other: Members) -> Members {
        Members(self.0 & !other.0)
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn is_one(self) -> bool {
        self.0.is_power_of_two()
    }

    pub fn intersects(self, other: Members) -> bool {
        self.0 & other.0 != 0
    }
}

impl GroupConfig {
    /// The bit of a member; none for a stranger.
    pub(crate) fn member(&self, device: DeviceId) -> Members {
        Members(self.replicas.iter().position(|r| *r == device).map_or(0, |i| 1 << i))
    }

    pub(crate) fn members(&self, devices: &[DeviceId]) -> Members {
        Members(devices.iter().fold(0, |bits, d| bits | self.member(*d).0))
    }

    pub(crate) fn devices(&self, members: Members) -> impl Iterator<Item = DeviceId> {
        self.each(members).map(|(_, device)| device)
    }

    /// The same, and each one's bit.
    pub(crate) fn each(&self, members: Members) -> impl Iterator<Item = (Members, DeviceId)> {
        let places = self.replicas.iter().enumerate();
        places.map(|(i, d)| (Members(1 << i), *d)).filter(move |(m, _)| members.intersects(*m))
    }
}

/// What a replica must remember over a restart, together with its content (rule R5).
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    /// The highest epoch in which it took, or may take, part; after a restart it never takes part in it
    /// again (R2).
    pub acted: Epoch,
    /// In that one it was a joiner.
    pub joiner: bool,
    /// The last epoch at whose seal it was equal to another in-sync member.
    pub base: Epoch,
    /// Blocks that may differ from the other copy.
    pub dirty: Dirty,
    /// Any block may: the journal had no room for all of them.
    pub all_dirty: bool,
    /// Client writes that the content includes.
    pub executed: ExecutedList,
}

impl Record {
    /// What a journal remembered. `noted` counts the entries of the device's lists.
    pub fn new(found: &GroupRecord, noted: &mut u64) -> Record {
        let mut executed = found.executed.clone();
        executed.sort_by_key(|e| (e.write.incarnation, e.write.seq));
        let mut dirty = Dirty::default();
        found.dirty.iter().for_each(|(unit, blocks)| dirty.insert(*unit, *blocks));
        Record {
            acted: found.acted,
            joiner: found.joiner,
            base: found.base,
            dirty,
            all_dirty: found.all_dirty,
            executed: ExecutedList::from_entries(&executed, noted),
        }
    }

    /// No block differs.
    pub fn clean(&mut self) {
        self.dirty.clear();
        self.all_dirty = false;
    }
}

/// The part that a replica plays in its present epoch.
#[derive(Debug)]
pub(crate) enum Role {
    /// None: not in sync, or the group is down, or the configuration is about to change.
    Out,
    Primary(Primary),
    Secondary(Secondary),
}

/// A leader's state in one epoch.
#[derive(Debug, Default)]
pub(crate) struct Primary {
    /// Serving. Before: settling, or waiting for old promises to run out.
    pub active: bool,
    /// The last lsn given out.
    pub last: Lsn,
    /// Operations with an lsn, from the oldest that is not finished; lsns are consecutive.
    pub stream: VecDeque<StreamEntry>,
    /// Operations that wait for `active`, in order of arrival, without locks.
    pub held: VecDeque<u64>,
    /// Operations that have their lock and wait for a lease, or for a seal to end.
    pub parked: Vec<u64>,
    /// Up to here every write is on all in-sync members; what they were told of it.
    pub commit: Lsn,
    pub told: Lsn,
    /// The group is in the list of those whose members are to be told.
    pub untold: bool,
    /// Settling or bringing a joiner up to date.
    pub sync: Option<Sync>,
    /// Blocks that every member has, and that the journal takes for dirty.
    pub clean: Dirty,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamEntry {
    pub lsn: Lsn,
    pub op: u64,
    /// Whom it was sent to.
    pub to: Members,
    pub done: bool,
}

impl Primary {
    /// Gives out the next lsn, to an operation that goes to these members.
    pub fn enter(&mut self, op: u64, to: Members) -> Lsn {
        self.last = self.last.next();
        self.stream.push_back(StreamEntry { lsn: self.last, op, to, done: false });
        if let Some(sync) = &mut self.sync {
            sync.enters(self.last, to);
        }
        self.last
    }

    /// True when the stream takes what is not in flight yet. What is done stays behind the oldest in flight.
    pub fn has_room(&self, limits: &Limits) -> bool {
        self.stream.len() < limits.stream as usize
    }

    /// How many operations lie between this one of the stream and the one before it that went to the member, too; if
    /// there is none, and the member has what it needs of the others, all back to the commit point.
    pub fn skipped(&self, lsn: Lsn, member: Members) -> u32 {
        let Some(front) = self.stream.front() else { return 0 };
        let before = (lsn.0 - front.lsn.0) as usize;
        if before == 0 || self.stream[before - 1].to.intersects(member) {
            return 0;
        }
        let others = self.stream.range(..before).rev().take_while(|e| !e.to.intersects(member));
        others.count() as u32
    }

    /// An operation is finished everywhere: the commit point moves when it was the oldest.
    pub fn leave(&mut self, lsn: Lsn) {
        let Some(front) = self.stream.front() else { return };
        let index = (lsn.0 - front.lsn.0) as usize;
        self.stream[index].done = true;
        while self.stream.front().is_some_and(|e| e.done) {
            self.stream.pop_front();
        }
        self.commit = self.stream.front().map_or(self.last, |e| Lsn(e.lsn.0 - 1));
    }
}

/// One replica of one group.
#[derive(Debug)]
pub(crate) struct Replica {
    pub config: GroupConfig,
    /// The in-sync members but for me.
    pub others: Members,
    /// The map that the configuration came with.
    pub map: MapVersion,
    pub record: Record,
    pub role: Role,
    pub locks: Locks,
    /// Until when each other member may serve by leases that I had granted when I learned that I
    /// lead.
    pub promises: Vec<(DeviceId, Time)>,
    /// Who was a member in configurations of before, and is none any more: it may have led, and serve by a
    /// lease that I had granted.
    pub former: Vec<DeviceId>,
    /// Jobs that run on the media.
    pub local: u32,
    /// What comes next, as soon as no job runs, and it is durable that it acts then.
    pub next: Option<(GroupConfig, MapVersion)>,
    /// The highest epoch of which the journal was told that it acts in it.
    pub noted: Epoch,
}

impl Replica {
    pub fn new(record: Record) -> Replica {
        Replica {
            config: GroupConfig::default(),
            others: Members::default(),
            map: MapVersion(0),
            record,
            role: Role::Out,
            locks: Locks::default(),
            promises: Vec::new(),
            former: Vec::new(),
            local: 0,
            next: None,
            noted: Epoch(0),
        }
    }

    pub fn primary(&mut self) -> Option<&mut Primary> {
        match &mut self.role {
            Role::Primary(primary) => Some(primary),
            _ => None,
        }
    }

    pub fn secondary(&mut self) -> Option<&mut Secondary> {
        match &mut self.role {
            Role::Secondary(secondary) => Some(secondary),
            _ => None,
        }
    }

    /// Enters this configuration, which came with this map; the part to play is the caller's choice.
    pub fn enter(&mut self, config: GroupConfig, map: MapVersion, me: DeviceId) {
        self.others = config.members(&config.in_sync);
        self.others.remove(config.member(me));
        (self.config, self.map, self.locks) = (config, map, Locks::default());
    }

    /// True when a configuration gives this device a part to play.
    pub fn acts_in(config: &GroupConfig, me: DeviceId) -> bool {
        let member = config.in_sync.contains(&me) || config.joiners.contains(&me);
        !config.lost && config.primary.is_some() && member
    }

    /// What is written is missing from members that may come back for just that: this one is the only one in
    /// sync. While there are two, whoever else comes gets everything.
    pub fn is_solo(&self) -> bool {
        self.config.in_sync.len() < self.config.replicas.len().min(2)
    }

    /// The in-sync member after this one, or the first, but for `me`. (A mutant's way to settle.)
    pub fn next_in_sync(&self, after: Option<DeviceId>, me: DeviceId) -> Option<Members> {
        let in_sync = &self.config.in_sync;
        let place = in_sync.iter().position(|d| Some(*d) == after).map_or(0, |i| i + 1);
        in_sync[place..].iter().find(|d| **d != me).map(|d| self.config.member(*d))
    }

    /// The members whose answer an acknowledgement needs, and whose lease a read needs.
    pub fn needed(&self) -> Members {
        let mut needed = self.others;
        if let Role::Primary(Primary { sync: Some(sync), .. }) = &self.role
            && sync.in_limbo()
        {
            needed.insert(sync.members);
        }
        needed
    }

    /// The members that get every new write.
    pub fn recipients(&self) -> Members {
        let mut to = self.needed();
        if let Role::Primary(Primary { sync: Some(sync), .. }) = &self.role
            && sync.streaming
        {
            to.insert(sync.members);
        }
        to
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_told_how_many_of_the_stream_are_not_for_it() {
        let (second, joiner) = (Members(2), Members(4));
        let mut primary = Primary::default();
        let mut enter =
            |op, to: &[Members]| primary.enter(op, Members(to.iter().fold(0, |all, m| all | m.0)));
        let write = enter(1, &[second, joiner]);
        let copies = [enter(2, &[joiner]), enter(3, &[joiner])];
        let next = enter(4, &[second, joiner]);
        assert_eq!((primary.skipped(next, second), primary.skipped(next, joiner)), (2, 0));
        assert_eq!(primary.skipped(copies[1], joiner), 0);
        // What left the stream everybody has: the commit point covers it.
        [write, copies[0], copies[1]].into_iter().for_each(|lsn| primary.leave(lsn));
        assert_eq!((primary.commit, primary.skipped(next, second)), (copies[1], 0));
    }

    #[test]
    fn a_seal_names_the_last_that_went_to_the_joiner() {
        let (second, joiner) = (Members(2), Members(4));
        let sync = Sync::new(joiner, Some(DeviceId(3)), Lsn(0), 0);
        let mut primary = Primary { sync: Some(sync), ..Primary::default() };
        let write = primary.enter(1, Members(second.0 | joiner.0));
        let whole = primary.enter(2, second); // its copy was damaged
        [write, whole].into_iter().for_each(|lsn| primary.leave(lsn));
        let sent = primary.sync.map(|sync| sync.sent);
        assert_eq!((sent, primary.commit), (Some(write), whole));
    }
}
