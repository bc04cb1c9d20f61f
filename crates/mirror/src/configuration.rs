//! The change of a group from one configuration to the next (rules R2, R4 and R6).
//!
//! A replica stops first: it adds what is in flight to the dirty set, and ends operations with
//! `Stale`. It enters the next configuration when no job of the group runs any more and its record
//! says durably that it acts in that epoch.
//!
//! Invariants:
//! - From the moment a newer configuration is known, nothing is answered under the old one.
//! - A group becomes active when it has settled (R6) and when no lease that this device has granted
//!   to another replica can count any more (R4).

use crate::flows::Flows;
use crate::jobs::AfterChange;
use crate::lease::Leases;
use crate::marks;
use crate::members::GroupConfig;
use crate::op::{Caller, Local, Work};
use crate::peers::Peers;
use crate::replica::{Primary, Replica, Role};
use crate::secondary::Secondary;
use crate::shard::Shard;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use base::{DeviceId, Epoch, GroupId, Mutant, Time, mutant};
use seam::{Change, Effects, Note, UnitStore};

/// The epochs of the shard's groups: how they end and begin.
#[derive(Debug, Default)]
pub(crate) struct Epochs {
    /// Groups that this device leads and that wait for the end of leases that it has granted, each
    /// with that time. [`Epochs::stop`] removes a group whose configuration has ended, because only
    /// a primary can be activated.
    grace: BTreeMap<GroupId, Time>,
}

/// How a configuration compares with the newest one that a replica knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum News {
    /// It is not newer.
    None,
    /// It confirms what only another server had said.
    Confirmed,
    /// It is newer, or it replaces one from another server that was wrong.
    New,
}

impl Replica {
    /// Compares a configuration with the newest known one. `sure`: this one comes from an MDM, and
    /// the newest one came only from another server.
    fn judge(&self, config: &GroupConfig, sure: bool) -> News {
        let known = self.newest();
        let confirms = sure && config.epoch == known.epoch;
        let old_epoch = config.epoch <= self.record.acted && !mutant::on(Mutant::ResumeSameEpoch);
        match config.epoch > known.epoch || confirms {
            false => News::None,
            true if confirms && config == known => News::Confirmed,
            // R2: after a restart only a newer epoch counts.
            true if old_epoch && self.config.epoch.0 == 0 => News::None,
            true => News::New,
        }
    }

    /// Records, before `next` takes effect, which other devices may still serve reads by leases of
    /// this one: replicas that leave, and all others if this device becomes the primary.
    fn remember_promises(&mut self, next: &GroupConfig, me: DeviceId, now: Time, leases: &Leases) {
        let before = self.newest();
        let led = before.primary;
        let gone = before.replicas.iter().filter(|d| !next.replicas.contains(d));
        let mut former: Vec<DeviceId> = self.former.iter().chain(gone).copied().collect();
        former.retain(|d| !next.replicas.contains(d) && leases.promised(*d) > now);
        former.sort_unstable();
        former.dedup();
        self.former = former;
        if next.primary == Some(me) && led != Some(me) {
            let others = next.replicas.iter().chain(&self.former).filter(|d| **d != me);
            self.promises = others.map(|d| (*d, leases.promised(*d))).collect();
        }
    }
}

impl Flows {
    /// Takes over a group's configuration if it is newer than the newest known one. `from_mdm`: it
    /// comes from an MDM, and not only from another server. Returns false if that gives the loop
    /// nothing to do.
    pub(crate) fn configure<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        group: GroupId,
        config: &GroupConfig,
        from_mdm: bool,
        out: &mut Effects,
    ) -> bool {
        // Steps name no epoch.
        assert!(!shard.jobs.has_step(), "no step outlives its configuration");
        match self.epochs.take(shard, now, group, config, from_mdm) {
            News::None => return false,
            News::Confirmed => self.epochs.enter_again(shard, &mut self.peers, now, group, out),
            News::New => {
                self.end_epoch(shard, group, config, out);
                let replica = shard.replicas.get_mut(group).expect("it was taken over");
                let stopped = matches!(replica.role, Role::Out);
                assert!(stopped, "a replica stops before it gets its next configuration");
                replica.next = Some((config.clone(), shard.known.map()));
                self.epochs.enter(shard, &mut self.peers, now, group, out);
            }
        }
        true
    }

    /// Ends the present configuration of a group. From now on no operation is answered under it.
    fn end_epoch<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        group: GroupId,
        next: &GroupConfig,
        out: &mut Effects,
    ) {
        let mut ops = shard.end_role(group, next);
        ops.extend(self.repairs.of(&shard.ops, |op, _| op.group == group));
        ops.sort_unstable();
        ops.dedup();
        for key in ops {
            let Some(work) = shard.abort(key, next, out) else { continue };
            self.scrub.dropped(key);
            if matches!(work, Work::Copy(_)) {
                self.peers.copies.ends();
            }
        }
        // A replica that is not asked for its state in `next` will not tell what it has done.
        let leads = next.primary == Some(shard.me);
        let asks = |d| next.in_sync.contains(&d) || next.joiners.first() == Some(&d);
        shard.windows.ask_no_more(group, |device| leads && asks(device));
        self.peers.timers.stop(group);
        self.epochs.stop(group);
        shard.ops.note_blocked(group, false);
    }
}

impl<S: UnitStore> Shard<S> {
    /// Ends the role of a replica: what is in flight becomes dirty. Returns its operations, except
    /// those that wait for a repair.
    fn end_role(&mut self, group: GroupId, next: &GroupConfig) -> Vec<u64> {
        let replica = self.replicas.get_mut(group).expect("the caller has it");
        let admitted = replica.fold_admitted(next, self.me);
        if self.store.keeps_data() {
            replica.fold_uncertain(&self.ops);
        }
        if admitted {
            self.change_to(group);
        }
        let replica = self.replicas.get_mut(group).expect("just seen");
        let role = core::mem::replace(&mut replica.role, Role::Out);
        let locks = core::mem::take(&mut replica.locks);
        let mut ops: Vec<u64> = locks.ops().collect();
        if let Role::Primary(primary) = role {
            ops.extend(primary.waiting_for_service);
            ops.extend(primary.stream.iter().filter(|e| !e.done).map(|e| e.op));
        }
        ops
    }

    /// Ends an operation without doing it, or leaves only its media job. A client is told to ask
    /// again. Returns the work that it had.
    fn abort(&mut self, key: u64, next: &GroupConfig, out: &mut Effects) -> Option<Work> {
        let op = self.ops.get_mut(key)?;
        let (group, unit) = (op.group, op.unit);
        if op.is_orphan() {
            return None; // the configuration has changed once before while the job runs
        }
        let work = op.orphan();
        let in_flight = core::mem::take(&mut op.in_flight);
        let taken = (self.windows.bytes(op), op.number);
        self.windows.give_room(self.replicas.of(group), group, in_flight, taken);
        let (at, len) = (op.at, op.len);
        if core::mem::take(&mut op.reserved) {
            self.store.release(group, unit, at, len);
        }
        if !matches!(op.local, Local::Running | Local::Repairing) {
            self.remove_op(key);
        }
        if let Some(client) = work.client() {
            let (epoch, leader) = (next.epoch, next.primary);
            let caller = Caller::new(client, group);
            caller.send(self.known.stale(caller, epoch, leader), out);
        }
        Some(work)
    }
}

impl Epochs {
    /// Takes over a group's configuration if it is newer than the newest known one, or confirms it.
    /// `from_mdm`: it comes from an MDM, and not only from another server.
    fn take<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        group: GroupId,
        config: &GroupConfig,
        from_mdm: bool,
    ) -> News {
        let member = config.replicas.contains(&shard.me);
        if !member && shard.replicas.get(group).is_none() {
            return News::None;
        }
        if !from_mdm && !config.is_sound() {
            return News::None; // the other server is wrong
        }
        let replica = shard.replicas.get_or_new(group);
        let news = replica.judge(config, from_mdm && shard.known.is_unsure(group));
        match news {
            News::None => {}
            News::Confirmed => shard.known.heard_of(group, true),
            News::New => {
                shard.known.heard_of(group, from_mdm);
                replica.remember_promises(config, shard.me, now, &shard.leases);
            }
        }
        news
    }

    /// Enters the next configuration once no job of the last one runs, and once the unit store has
    /// recorded that this replica acts in it (rule R2). Until then nothing is answered.
    pub(crate) fn enter<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        peers: &mut Peers,
        now: Time,
        group: GroupId,
        out: &mut Effects,
    ) {
        let me = shard.me;
        let Some(replica) = shard.replicas.get_mut(group) else { return };
        if replica.local > 0 {
            return;
        }
        let Some((next, _)) = &replica.next else { return };
        let epoch = next.epoch;
        let (acts, joins) = (Replica::acts_in(next, me), !next.in_sync.contains(&me));
        let unknown = replica.record.base == Epoch(0) && next.in_sync == [me];
        if acts && unknown {
            // This replica doesn't know the content of others: its dirty set covers no earlier
            // epoch.
            replica.record.base = epoch;
            marks::change(&mut shard.store, group, alloc::vec![Change::Base(epoch)]);
        }
        let Some(replica) = shard.replicas.get_mut(group) else { return };
        if acts && shard.store.survives() && replica.record.acted < epoch {
            if replica.noted < epoch {
                replica.noted = epoch;
                let acts = if joins { Change::ActedAsJoiner(epoch) } else { Change::Acted(epoch) };
                let wait = AfterChange::Entry { epoch, joins };
                shard.jobs.change_first(&mut shard.store, now, group, alloc::vec![acts], wait);
            }
            return;
        }
        let Some((config, map)) = replica.next.take() else { return };
        replica.enter(config, map, me);
        let config = &replica.config;
        let new = replica.record.acted <= config.epoch || mutant::on(Mutant::ResumeSameEpoch);
        assert!(new, "{group}: no replica acts in an epoch after a newer one (R2)");
        if !config.replicas.contains(&me) || mutant::on(Mutant::WipeReplica) && !acts {
            // A deletion can't be undone, so the configuration has to come from an MDM.
            if !shard.known.is_unsure(group) {
                self.discard(shard, now, group, out);
            }
            return;
        }
        if config.lost || config.primary.is_none() {
            return;
        }
        if config.primary == Some(me) {
            assert!(config.in_sync.contains(&me), "{group} is led from outside its in-sync set");
            (replica.record.acted, replica.record.joiner) = (config.epoch, false);
            replica.role = Role::Primary(Primary::default());
            out.note(Note::Primary { group, epoch: config.epoch });
            self.begin(shard, peers, now, group, out);
        } else if config.in_sync.contains(&me) || config.joiners.contains(&me) {
            let joiner = !config.in_sync.contains(&me);
            let primary = config.primary.expect("checked above");
            (replica.record.acted, replica.record.joiner) = (config.epoch, joiner);
            replica.role = Role::Secondary(Secondary::new(primary, joiner));
        }
    }

    /// Drops everything about a group whose configuration ends.
    fn stop(&mut self, group: GroupId) {
        self.grace.remove(&group);
    }

    // ---- the primary ----

    /// Starts an epoch in which this device is the primary: settles with the other in-sync replicas
    /// (R6), then serves.
    pub(crate) fn begin<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        peers: &mut Peers,
        now: Time,
        group: GroupId,
        out: &mut Effects,
    ) {
        match shard.replicas.of(group).others {
            others if others.is_empty() => self.activate(shard, peers, now, group, out),
            others => peers.ask_members(shard, now, group, others, out),
        }
    }

    /// Serves, as soon as no lease that this device has granted to a former primary can count any
    /// more (rule R4).
    pub(crate) fn activate<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        peers: &mut Peers,
        now: Time,
        group: GroupId,
        out: &mut Effects,
    ) {
        let replica = shard.replicas.get(group).expect("the caller has it");
        let over = |(device, promised): &(DeviceId, Time)| {
            let state = shard.known.peer(*device);
            shard.leases.is_over(now, *device, replica.map, state, *promised)
        };
        let wait = replica.promises.iter().filter(|p| !over(p)).map(|(_, until)| *until).max();
        if let Some(until) = wait {
            if self.wait_grace(group, until) {
                out.note(Note::GraceWait { group });
            }
            return;
        }
        self.grace.remove(&group);
        let (epoch, alone) = (replica.config.epoch, replica.config.in_sync.len() == 1);
        let joiner = replica.config.joiners.first().copied();
        let replica = shard.replicas.get_mut(group).expect("as above");
        assert!(replica.next.is_none(), "{group}: nothing is served under an old configuration");
        let primary = replica.primary().expect("only a primary gets active");
        assert!(!primary.active, "{group}: a primary gets active once");
        assert!(primary.sync.is_none(), "{group}: a primary gets active when it has settled (R6)");
        primary.active = true;
        out.note(Note::Active { group, epoch, alone });
        for key in core::mem::take(&mut primary.waiting_for_service) {
            shard.replicas.queue(&mut shard.ops, key);
        }
        if let Some(joiner) = joiner {
            peers.ask_joiner(shard, now, group, joiner, true, out);
        }
    }

    /// Makes the group wait until this time. Returns true if it did not wait before.
    fn wait_grace(&mut self, group: GroupId, until: Time) -> bool {
        self.grace.insert(group, until).is_none()
    }

    /// Activates the groups that need not wait for leases any more.
    pub(crate) fn try_waiting<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        peers: &mut Peers,
        now: Time,
        out: &mut Effects,
    ) {
        for group in self.grace.keys().copied().collect::<Vec<_>>() {
            self.activate(shard, peers, now, group, out);
        }
    }

    /// Returns true if no group waits for leases of a former primary.
    #[inline]
    pub(crate) fn none_wait(&self) -> bool {
        self.grace.is_empty()
    }

    /// Returns the earliest time at which leases of a former primary have run out.
    pub(crate) fn wake_at(&self) -> Option<Time> {
        self.grace.values().min().copied()
    }

    /// Returns true if such a time has come.
    pub(crate) fn is_grace_over(&self, now: Time) -> bool {
        self.grace.values().any(|until| *until <= now)
    }
}

#[cfg(test)]
mod tests;
