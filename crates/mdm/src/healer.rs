//! The healer decides which groups get other replicas, and when (rule R11).
//!
//! In each round it turns the operator's intents (devices that are to be removed), the map and the
//! heartbeats into one command with all changes that are due, group by group, each compared with
//! the group's epoch (rule R4). Between rounds it remembers only since when devices have been away,
//! which dropped replicas may still serve, how many groups were moving after its last plan to
//! rebalance, and when to look again. So a new leader continues from the replicated state.
//!
//! In order of importance, it:
//! 1. ends moves that are complete or have become pointless;
//! 2. rebuilds lost copies elsewhere when their device has been away, or out of the primary's
//!    reach, for [`Limits::rebuild_after`];
//! 3. hands over the groups that servers in maintenance lead;
//! 4. moves copies off devices that are to be removed, and off fault units that have both copies of
//!    a group;
//! 5. rebalances the devices.
//!
//! Invariants:
//! - A bounded number of groups moves at a time, per device and in all.
//! - No copy goes to a device that is not heard, that has no room, or that the copy's source does
//!   not reach. Only a rebuild uses the spare.
//! - Nothing moves for balance while anything is degraded or a server is in maintenance.
//! - Nothing is rebuilt for a server in maintenance, nor while more servers are away than one
//!   accident explains (rule R12).
//!
//! The healer does not know how a copy is made, and it decides nothing by itself: `State::apply`
//! does, by the epochs.

mod departures;
mod room;

use crate::command::{self, Command};
use crate::detector::loss_limit;
use crate::group::Group;
use crate::observed::Observed;
use crate::state::groups;
use crate::state::{Device, State, survives};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use base::mutant::{self, Mutant};
use base::{DeviceId, DomainId, GroupId, Limits, MapVersion, SdsId, Time};
use departures::Departures;
use room::{Destinations, Loads};
use wire::control::{Intent, MoveStatus};

/// The healer's memory between two rounds.
#[derive(Debug, Default)]
pub struct Healer {
    /// The time since which each device has been down, as far as this MDM has seen since its start.
    away: BTreeMap<DeviceId, Time>,
    due: Time,
    /// The map version at which there was nothing to do and nothing to wait for.
    quiet: Option<MapVersion>,
    /// Replicas that are to be dropped and may still serve by an older map.
    departures: Departures,
    /// Domains in which nothing is rebuilt, because too many of their servers are away.
    held_back: BTreeSet<DomainId>,
    /// The map version at which all devices were balanced.
    balanced: MapVersion,
    /// After a plan could not be carried out: the time of the next plan to rebalance.
    rebalance_at: Time,
    /// Number of groups that were moving after the last plan to rebalance. The next plan is made
    /// when a quarter of them is done. A later plan would leave devices idle, and an earlier one
    /// costs more, because each plan weighs all groups.
    wave: usize,
}

/// The result of an attempt to rebalance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Balance {
    /// There is nothing to do.
    Even,
    /// Something else comes first, or moves are under way, or a device that should take a copy was
    /// not heard yet.
    Busy,
    /// A device that should take a copy has no room.
    Stuck,
}

impl Healer {
    /// Returns when to call [`Healer::work`] next; `None`: just after the next change of the state.
    pub fn wake_at(&self) -> Option<Time> {
        self.quiet.is_none().then_some(self.due)
    }

    /// Returns true while nothing is rebuilt in some domain because too many of its servers are
    /// away.
    pub fn is_held_back(&self) -> bool {
        !self.held_back.is_empty()
    }

    /// Schedules a round soon, because a change may end a move. Several changes share one round.
    pub fn hurry(&mut self, now: Time, limits: &Limits) {
        self.due = self.due.min(now + limits.heartbeat_every / 8);
    }

    /// Returns the commands that are due now: at most one for groups, one for devices that were
    /// admitted, and one for devices that have become empty.
    pub fn work(
        &mut self,
        now: Time,
        state: &State,
        seen: &Observed,
        limits: &Limits,
    ) -> Vec<Command> {
        self.quiet = self.quiet.filter(|map| *map == state.version);
        if now < self.due || self.quiet.is_some() {
            return Vec::new();
        }
        self.due = now + limits.heartbeat_every;
        self.look(now, state, seen, limits);
        self.departures.look(now, state, seen, limits);
        let late = if mutant::on(Mutant::RebuildLate) { 5 } else { 1 };
        let overdue = |since: &Time| now.since(*since) >= limits.rebuild_after * late;
        let domain = |id: &DeviceId| state.devices.get(id).map(|d| state.domain_of(d.sds));
        let held = |id: &DeviceId| domain(id).is_some_and(|d| self.held_back.contains(&d));
        let lost = self.away.iter().filter(|(id, since)| !held(id) && overdue(since));
        let lost: BTreeSet<DeviceId> = lost.map(|(device, _)| *device).collect();
        let mut round = Round::new(now, state, seen, limits, &lost);
        round.finish(&self.departures);
        round.rebuild();
        round.hand_over();
        round.clear();
        let some_done = round.moving * 4 <= self.wave * 3;
        if self.balanced < state.version && self.rebalance_at <= now && some_done {
            let balance = round.rebalance();
            self.wave = round.moving;
            match balance {
                Balance::Even => self.balanced = state.version,
                Balance::Stuck => self.rebalance_at = now + limits.heartbeat_every * 10,
                Balance::Busy => {}
            }
        }
        let still = round.moving == 0 && self.balanced == state.version;
        let commands = round.commands();
        let missed = |id: &DeviceId| !state.groups_of(*id).is_empty();
        let leaves = state.devices.values().any(|d| d.intent.empties());
        // Two copies on one fault unit are separated when a device elsewhere has room.
        let together = groups::groups_together(state).any(|g| !state.groups[&g].lost);
        let waits = leaves || together || self.away.keys().any(missed);
        self.quiet = (still && !waits && commands.is_empty()).then_some(state.version);
        commands
    }

    /// Finds the devices that are away, in quarantine or cut off, and the domains where too many
    /// servers are away to believe that they died.
    fn look(&mut self, now: Time, state: &State, seen: &Observed, limits: &Limits) {
        let there = |id: &DeviceId| state.devices.get(id).filter(|d| d.intent.counts());
        let worked_on =
            |d: &Device| d.intent == Intent::Maintain && !mutant::on(Mutant::RebuildMaintained);
        let held = |id: &DeviceId| seen.is_out(*id, now);
        let down = |id: &DeviceId| there(id).is_some_and(|d| (!d.up || held(id)) && !worked_on(d));
        self.away.retain(|id, _| down(id));
        for id in state.devices.keys().filter(|id| down(id)) {
            self.away.entry(*id).or_insert(now);
        }
        let gone = |id: &DeviceId| {
            self.away.get(id).is_some_and(|at| now.since(*at) >= limits.rebuild_after)
        };
        // One accident may take a whole fault unit; each domain is judged by its own units.
        let mut units: BTreeMap<DomainId, BTreeMap<SdsId, bool>> = BTreeMap::new();
        for (id, d) in state.devices.iter().filter(|(_, d)| d.intent.counts()) {
            let Some(server) = state.servers.get(&d.sds) else { continue };
            let domain = units.entry(server.domain).or_default();
            *domain.entry(server.unit).or_insert(true) &= gone(id);
        }
        let away = |domain: &BTreeMap<SdsId, bool>| domain.values().filter(|away| **away).count();
        let held = units.iter().filter(|(_, domain)| away(domain) > loss_limit(domain.len()));
        self.held_back = held.map(|(domain, _)| *domain).collect();
    }
}

/// One round of planning.
struct Round<'a> {
    state: &'a State,
    seen: &'a Observed,
    limits: &'a Limits,
    now: Time,
    /// Computed on first use, as it looks at all groups.
    rooms: Option<Loads>,
    /// Number of groups that are moving. A group without a primary is not counted: its move may
    /// wait forever.
    moving: usize,
    shapes: BTreeMap<GroupId, command::Shape>,
    /// Devices that have been away for too long.
    lost: &'a BTreeSet<DeviceId>,
    /// The destinations of replicas that cannot stay. Computed on first use, as it weighs all
    /// groups.
    homes: Option<Destinations>,
}

impl<'a> Round<'a> {
    fn new(
        now: Time,
        state: &'a State,
        seen: &'a Observed,
        limits: &'a Limits,
        lost: &'a BTreeSet<DeviceId>,
    ) -> Round<'a> {
        let moves = |g: &&Group| g.leaving.is_some() && g.primary.is_some();
        let moving = state.groups.values().filter(moves).count();
        Round {
            state,
            seen,
            limits,
            now,
            rooms: None,
            moving,
            shapes: BTreeMap::new(),
            lost,
            homes: None,
        }
    }

    fn rooms(&mut self) -> &mut Loads {
        let (now, state, seen, limits) = (self.now, self.state, self.seen, self.limits);
        self.rooms.get_or_insert_with(|| Loads::new(now, state, seen, limits))
    }

    fn commands(self) -> Vec<Command> {
        let mut commands = Vec::new();
        let list: Vec<command::Shape> = self.shapes.into_values().collect();
        if !list.is_empty() {
            commands.push(Command::Reshape(command::Reshape { list }));
        }
        // A waiting device that has copies was admitted after the state was made that a recovery
        // began with.
        let waits = self.state.devices.iter().filter(|(_, d)| d.intent == Intent::Waiting);
        let admitted = waits.filter(|(id, _)| !self.state.groups_of(**id).is_empty());
        let devices: Vec<u32> = admitted.map(|(id, _)| id.0).collect();
        if !devices.is_empty() {
            let intent = Intent::Normal as i32;
            commands.push(Command::Intend(command::Intend { devices, intent }));
        }
        let empty = |id: &DeviceId| self.state.groups_of(*id).is_empty();
        let goes = self.state.devices.iter().filter(|(_, d)| d.intent == Intent::Remove);
        let devices: Vec<u32> = goes.filter(|(id, _)| empty(id)).map(|(id, _)| id.0).collect();
        if !devices.is_empty() {
            let intent = Intent::Removed as i32;
            commands.push(Command::Intend(command::Intend { devices, intent }));
        }
        commands
    }

    fn shape(&mut self, id: GroupId, replicas: Vec<DeviceId>, leaving: Option<DeviceId>) {
        let shape = command::Shape {
            group: id.0,
            epoch: self.state.groups[&id].epoch.0,
            replicas: replicas.iter().map(|d| d.0).collect(),
            leaving: leaving.map_or(0, |d| d.0),
            acted: 0,
        };
        self.shapes.insert(id, shape);
    }

    /// Ends moves whose newcomer is in sync, and moves that have become pointless. In a pointless
    /// move, the leaving replica takes a place back, unless the remaining two would share a fault
    /// unit: then another newcomer replaces the one that is lost or has to go. A replica that may
    /// still serve by an older map is not dropped yet.
    fn finish(&mut self, departures: &Departures) {
        let (state, lost) = (self.state, self.lost);
        let leaves = |d: &DeviceId| state.devices.get(d).is_none_or(|d| d.intent.empties());
        for (id, group) in state.groups.iter().filter(|(_, g)| g.primary.is_some()) {
            let Some(leaving) = group.leaving else { continue };
            if group.newcomer().is_none() || mutant::on(Mutant::DropEarly) {
                if departures.is_over(*id, leaving) {
                    self.shape(*id, group.staying().collect(), None);
                }
                continue;
            }
            let gone = |d: &DeviceId| {
                !group.in_sync.contains(d)
                    && self.is_pointless(*id, group, *d, leaving)
                    && departures.is_over(*id, *d)
            };
            let gone: Vec<DeviceId> = group.staying().filter(gone).collect();
            let goes = |d: &DeviceId| {
                lost.contains(d) || leaves(d) || self.seen.is_parted(group.primary, *d)
            };
            let with = |from: DeviceId, to: DeviceId| {
                group.staying().map(|d| if d == from { to } else { d }).collect::<Vec<_>>()
            };
            let apart = |pair: &[DeviceId]| {
                pair.iter().map(|d| state.unit_of(*d)).collect::<BTreeSet<_>>().len() == 2
            };
            let back = gone.iter().map(|d| with(*d, leaving)).find(|pair| apart(pair));
            if let Some(pair) = back {
                self.shape(*id, pair, None);
            } else if let Some(from) = gone.iter().find(|d| goes(d))
                && let Some(to) =
                    self.rooms().best(state, *id, group, *from, group.in_sync.len() < 2)
            {
                self.rooms().take(state, *id, room::source(state, group, *from).unwrap_or(to), to);
                let replicas = with(*from, to).into_iter().chain([leaving]).collect();
                self.shape(*id, replicas, Some(leaving));
            }
        }
    }

    /// Returns true if a copy should not continue. Either the newcomer is lost together with its
    /// part of the copy, or it has been out for too long, or it has no room for the rest. Or the
    /// device whose place it takes has come back and lacks less than the newcomer: then that device
    /// is brought up to date instead. The primary reports how much each of them lacks. If it has
    /// not begun the copy, the device that is back certainly lacks less.
    fn is_pointless(
        &self,
        id: GroupId,
        group: &Group,
        newcomer: DeviceId,
        leaving: DeviceId,
    ) -> bool {
        let entry = |d: DeviceId| self.state.devices.get(&d);
        let beat = self.seen.devices.get(&newcomer).and_then(|s| s.heartbeat.as_ref());
        if entry(newcomer).is_none_or(|d| !d.up || d.intent != Intent::Normal)
            || self.lost.contains(&newcomer)
            || self.seen.is_out_of_reach(group.primary, newcomer)
            || beat.is_some_and(|b| b.full)
        {
            return true;
        }
        let back = entry(leaving).is_some_and(|d| d.up && d.intent == Intent::Normal)
            && !self.seen.is_out_of_reach(group.primary, leaving);
        if !back || group.in_sync.contains(&leaving) {
            return false;
        }
        let kept = entry(leaving).is_some_and(|d| survives(d.kind));
        match self.told(id, group) {
            None => kept,
            Some(told) => kept && told.missed < told.todo,
        }
    }

    /// Returns what the primary reports about the group's copy.
    fn told(&self, id: GroupId, group: &Group) -> Option<&MoveStatus> {
        let beat = self.seen.devices.get(&group.primary?)?.heartbeat.as_ref()?;
        beat.moves.iter().find(|m| m.group == id.0)
    }

    /// Returns the groups of these devices, in order. A round must not look at all groups to find a
    /// few.
    fn groups_of(&self, which: impl Fn(DeviceId, Intent) -> bool) -> BTreeSet<GroupId> {
        let devices = self.state.devices.iter().filter(|(id, d)| which(**id, d.intent));
        devices.flat_map(|(id, _)| self.state.groups_of(*id)).copied().collect()
    }

    /// Rebuilds lost copies.
    fn rebuild(&mut self) {
        let (state, seen, lost) = (self.state, self.seen, self.lost);
        let goes = |d: DeviceId, intent: Intent| lost.contains(&d) || intent.empties();
        let is_gone = |d: &DeviceId| state.devices.get(d).is_none_or(|e| goes(*d, e.intent));
        let mut groups = self.groups_of(goes);
        // A broken path affects the groups that have replicas on both of its ends.
        for (leader, device) in &seen.parted {
            let led = |id: &&GroupId| state.groups[id].primary == Some(*leader);
            groups.extend(state.groups_of(*device).iter().filter(led));
        }
        // Groups with data come first.
        let (used, empty): (Vec<GroupId>, Vec<GroupId>) =
            groups.into_iter().partition(|id| state.is_used(*id));
        for id in used.into_iter().chain(empty) {
            let group = &state.groups[&id];
            let degraded = group.leaving.is_none() && group.primary.is_some() && !group.is_whole();
            let stays =
                |d: &DeviceId| state.devices.get(d).is_some_and(|e| e.intent == Intent::Maintain);
            let parted = |d: &DeviceId| seen.is_parted(group.primary, *d) && !stays(d);
            let gone = |d: &DeviceId| !group.in_sync.contains(d) && (is_gone(d) || parted(d));
            let gone = group.replicas.iter().copied().find(gone);
            if let Some(gone) = gone.filter(|_| degraded) {
                self.replace(id, group, gone, true);
            }
        }
    }

    /// Makes other servers the primaries of the groups that a server in maintenance leads, before
    /// it goes.
    fn hand_over(&mut self) {
        let state = self.state;
        let is = |d: &DeviceId, wanted: Intent| {
            state.devices.get(d).is_some_and(|d| d.up && d.intent == wanted)
        };
        let groups = self.groups_of(|_, intent| intent == Intent::Maintain);
        let groups = groups.iter().map(|id| (id, &state.groups[id]));
        let led = groups.filter(|(_, g)| g.leaving.is_none());
        let led = led.filter(|(_, g)| g.primary.is_some_and(|p| is(&p, Intent::Maintain)));
        let most = self.limits.moves as usize;
        for (id, group) in led.take(most) {
            let other = group.in_sync.iter().copied().find(|d| is(d, Intent::Normal));
            let Some(other) = other.filter(|_| !self.shapes.contains_key(id)) else { continue };
            let rest = group.replicas.iter().copied().filter(|d| *d != other);
            self.shape(*id, [other].into_iter().chain(rest).collect(), None);
        }
    }

    /// Moves copies off devices that are to be emptied, and one of two copies that are on one fault
    /// unit.
    fn clear(&mut self) {
        let state = self.state;
        if mutant::on(Mutant::ClearUnlost) && state.groups.values().any(|g| g.lost) {
            return;
        }
        let leaves = |d: &DeviceId| state.devices.get(d).is_some_and(|d| d.intent.empties());
        let mut groups = self.groups_of(|_, intent| intent.empties());
        groups.extend(groups::groups_together(state));
        for id in groups {
            let group = &state.groups[&id];
            let together = group.pair().is_some_and(|[a, b]| state.unit_of(a) == state.unit_of(b));
            let from = group.replicas.iter().copied().find(leaves);
            let from = from.or_else(|| group.replicas.last().copied().filter(|_| together));
            if let Some(from) = from.filter(|_| group.is_whole() && group.leaving.is_none()) {
                self.replace(id, group, from, false);
            }
        }
    }

    /// Begins to move one replica to its planned home, or, if there is no room, to the device where
    /// it fits best. With `spare`, it may use the spare.
    fn replace(&mut self, id: GroupId, group: &Group, from: DeviceId, spare: bool) {
        if self.moving >= self.limits.moves as usize || self.shapes.contains_key(&id) {
            return;
        }
        let (state, lost) = (self.state, self.lost);
        let homes = self.homes.get_or_insert_with(|| Loads::destinations(state, lost));
        let home = homes.get(&(id, from)).copied();
        let source = room::source(state, group, from);
        let home = home.filter(|to| !self.seen.is_parted(source, *to));
        if home.is_some_and(|to| self.rooms().lags(state, id, to)) {
            return;
        }
        let home = home.filter(|to| self.rooms().fits(state, id, *to, spare));
        if let Some(to) = home.or_else(|| self.rooms().best(state, id, group, from, spare)) {
            self.begin(id, group, from, to);
        }
    }

    /// Begins a move, unless too many are under way, or its source does not reach `to`: that move
    /// would end before it is done. Returns true if it did.
    fn begin(&mut self, id: GroupId, group: &Group, from: DeviceId, to: DeviceId) -> bool {
        let state = self.state;
        let source = room::source(state, group, from).unwrap_or(from);
        let most = self.limits.moves as usize;
        if self.moving >= most
            || self.shapes.contains_key(&id)
            || !self.rooms().may_copy(state, id, source, to)
        {
            return false;
        }
        let place = |d: &DeviceId| if *d == from { to } else { *d };
        let replicas = group.replicas.iter().map(place).chain([from]).collect();
        self.rooms().take(state, id, source, to);
        self.shape(id, replicas, Some(from));
        self.moving += 1;
        true
    }

    /// Rebalances the devices, if no other moves are left to do. A copy under way counts at its
    /// destination.
    fn rebalance(&mut self) -> Balance {
        let state = self.state;
        let busy = |(id, g): (&GroupId, &Group)| !g.is_whole() && (!g.lost || state.is_used(*id));
        // A device that is away and has no groups left is not waited for: it may never come back.
        let waits = |id: &DeviceId| !state.groups_of(*id).is_empty();
        let missed =
            |(id, d): (&DeviceId, &Device)| !d.up && d.intent == Intent::Normal && waits(id);
        let away = state.devices.iter().any(missed);
        let stays =
            |d: &Device| matches!(d.intent, Intent::Normal | Intent::Removed | Intent::Waiting);
        let leaves = !state.devices.values().all(stays);
        let begun = self.shapes.values().any(|shape| shape.leaving != 0);
        if away || leaves || begun || state.groups.iter().any(busy) {
            return Balance::Busy;
        }
        let plan = Loads::rebalance(state);
        for m in &plan.moves {
            let group = &state.groups[&m.group];
            if group.leaving.is_none() && self.rooms().fits(state, m.group, m.to, false) {
                self.begin(m.group, group, m.from, m.to);
            }
        }
        if self.moving > 0 {
            return Balance::Busy;
        }
        // A change of primaries takes a moment only, but each one holds I/O for that long.
        for id in
            plan.swaps.iter().filter(|_| plan.moves.is_empty()).take(self.limits.moves as usize)
        {
            let replicas = state.groups[id].replicas.iter().rev().copied().collect();
            self.shape(*id, replicas, None);
        }
        match () {
            () if !self.shapes.is_empty() => Balance::Busy,
            () if plan.moves.is_empty() => Balance::Even,
            () if plan.moves.iter().any(|m| self.rooms().is_awaited(state, m.group, m.to)) => {
                Balance::Busy
            }
            () => Balance::Stuck,
        }
    }
}
