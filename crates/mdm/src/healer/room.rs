//! Finds the devices that can take another group, by their room and by the copies that each has
//! under way.

use crate::controller;
use crate::group::Group;
use crate::observed::Observed;
use crate::state::State;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use base::{
    DeviceId, GroupId, Limits, MAX_REPLICAS, MapVersion, Mutant, PoolId, SdsId, Time, beside_spare,
    mutant,
};
use placement::{PlacedGroup, Plan};
use wire::control::Intent;

/// The copies that a device has under way, and roughly their bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Copies {
    count: u32,
    bytes: u64,
}

impl Copies {
    fn take(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// The room and load of one device.
#[derive(Debug)]
struct Room {
    /// Its fault unit.
    unit: SdsId,
    pool: PoolId,
    capacity: u64,
    /// Bytes that it holds or that are on their way to it.
    used: u64,
    /// The fraction of its pool that it should hold, among the devices that can take something.
    part: f64,
    /// Number of groups that it belongs to, or will belong to.
    groups: u64,
    /// Number of those groups that no volume uses.
    empty: u64,
    /// Number of its groups that volumes use, which have all of its data, and units that all its
    /// groups may hold.
    with_data: u64,
    units: u64,
    /// Devices that it does not reach: it can make no copy there.
    parted: Vec<DeviceId>,
    /// Copies that it makes, and copies that it gets.
    makes: Copies,
    gets: Copies,
    /// It is heard, has room, and stays.
    open: bool,
    /// Percent of its capacity that only rebuilds may use.
    spare: u64,
    /// It has reported how full it is.
    heard: bool,
    /// The newest map that it has taken over in this incarnation.
    map: MapVersion,
}

impl Room {
    /// Returns true if the device knows that it is no replica of the group, so that it has deleted
    /// what it had of it. A new copy must not meet old content.
    fn knows(&self, group: &Group) -> bool {
        self.map >= group.changed_at
    }

    /// Returns true if it has space for this many bytes more, and can remember one more group.
    fn fits(&self, bytes: u64, spare: bool) -> bool {
        let usable = beside_spare(self.capacity, if spare { 0 } else { self.spare });
        let few = self.groups < MAX_REPLICAS;
        self.open && few && self.used.saturating_add(bytes) < usable
    }
}

/// Where the replica of a group that is on a device should go.
pub(super) type Destinations = BTreeMap<(GroupId, DeviceId), DeviceId>;

/// All devices.
#[derive(Debug)]
pub(super) struct Loads {
    rooms: BTreeMap<DeviceId, Room>,
    /// A device makes or gets at most `most` copies at a time, or more while they have less than
    /// `small` bytes together.
    most: u32,
    small: u64,
}

impl Loads {
    pub(super) fn new(now: Time, state: &State, seen: &Observed, limits: &Limits) -> Loads {
        let mut rooms = BTreeMap::new();
        for (id, d) in &state.devices {
            let Some(unit) = state.unit_of(*id) else { continue };
            let held = seen.is_out(*id, now);
            let parted = seen.parted.range((*id, DeviceId(0))..=(*id, DeviceId(u32::MAX)));
            let parted = parted.map(|(_, device)| *device).collect();
            let seen = seen.devices.get(id).filter(|s| s.connected && !held);
            let beat = seen.and_then(|s| s.heartbeat.as_ref());
            let groups = state.groups_of(*id);
            let with_data = groups.iter().filter(|g| state.is_used(**g)).count() as u64;
            let room = Room {
                unit,
                pool: d.pool,
                spare: state.objects.spare(d.pool, limits),
                capacity: d.capacity,
                used: beat.map_or(0, |b| b.used),
                part: 0.0,
                groups: groups.len() as u64,
                empty: groups.len() as u64 - with_data,
                with_data,
                units: groups.iter().map(|g| state.units_of(*g)).sum(),
                parted,
                makes: Copies::default(),
                gets: Copies::default(),
                open: beat.is_some_and(|b| !b.full) && d.up && d.intent == Intent::Normal,
                heard: beat.is_some(),
                map: seen.map_or(MapVersion(0), |s| s.map),
            };
            rooms.insert(*id, room);
        }
        let (most, small) = (limits.moves_per_device, limits.moving_bytes);
        let mut rooms = Loads { rooms, most, small };
        rooms.part(state);
        for (id, group) in &state.groups {
            if let Some((to, source)) = group.newcomer().zip(group.primary) {
                rooms.take(state, *id, source, to);
            }
        }
        rooms
    }

    /// Computes what fraction each device that can take something should hold.
    fn part(&mut self, state: &State) {
        for pool in state.objects.pools.keys() {
            let mut devices = controller::placement(state, *pool);
            devices.retain(|d| self.rooms.get(&d.id).is_some_and(|room| room.open));
            // With too few devices there are no fractions, and none are needed.
            let parts = placement::parts(&devices).unwrap_or_default();
            for (device, part) in devices.iter().zip(parts) {
                self.rooms.get_mut(&device.id).expect("it was there").part = part;
            }
        }
    }

    /// Returns roughly the bytes of a group: the units of a volume are spread evenly over its
    /// groups.
    fn bytes(&self, state: &State, id: GroupId) -> u64 {
        let group = &state.groups[&id];
        let held = |d: &DeviceId| self.rooms.get(d).map(|r| r.used / r.with_data.max(1));
        let bytes = group.in_sync.iter().filter_map(held).max().unwrap_or(0);
        if state.is_used(id) { bytes } else { 0 }
    }

    /// Returns true when the device has room for the group. Without `spare`, the spare stays free.
    pub(super) fn fits(&self, state: &State, id: GroupId, to: DeviceId, spare: bool) -> bool {
        let fits =
            |room: &Room| room.knows(&state.groups[&id]) && room.fits(self.bytes(state, id), spare);
        self.rooms.get(&to).is_some_and(fits)
    }

    /// Returns true for a device that has registered and has not reported yet, or that lags: it
    /// will be ready in a moment.
    pub(super) fn is_awaited(&self, state: &State, id: GroupId, device: DeviceId) -> bool {
        self.rooms.get(&device).is_some_and(|room| !room.heard) || self.lags(state, id, device)
    }

    /// Returns true for a device that may take copies, and does not know yet that it has nothing of
    /// the group.
    pub(super) fn lags(&self, state: &State, id: GroupId, device: DeviceId) -> bool {
        self.rooms.get(&device).is_some_and(|room| room.open && !room.knows(&state.groups[&id]))
    }

    /// Returns true when the source reaches the destination, and neither has too many copies under
    /// way. Small ones may exceed the count, as each takes a round of the MDM.
    pub(super) fn may_copy(
        &self,
        state: &State,
        id: GroupId,
        source: DeviceId,
        to: DeviceId,
    ) -> bool {
        let bytes = self.bytes(state, id);
        let reaches = |r: &Room| !r.parted.contains(&to) || mutant::on(Mutant::LevelBlindly);
        let makes = |r: &Room| reaches(r) && self.are_few(r.makes, bytes);
        self.rooms.get(&source).is_some_and(makes)
            && self.rooms.get(&to).is_some_and(|r| self.are_few(r.gets, bytes))
    }

    fn are_few(&self, copies: Copies, bytes: u64) -> bool {
        copies.count < self.most || copies.bytes + bytes < self.small
    }

    /// Counts a copy of the group as under way.
    pub(super) fn take(&mut self, state: &State, id: GroupId, source: DeviceId, to: DeviceId) {
        let bytes = self.bytes(state, id);
        if let Some(room) = self.rooms.get_mut(&to) {
            room.used = room.used.saturating_add(bytes);
            room.units += state.units_of(id);
            room.groups += 1;
            room.empty += u64::from(!state.is_used(id));
            room.gets.take(bytes);
        }
        if let Some(room) = self.rooms.get_mut(&source) {
            room.makes.take(bytes);
        }
    }

    /// Returns the best device for a replica of the group, in place of the one on `from`. It is in
    /// the pool, not in the fault unit of the other replica, and has the least load for its
    /// fraction. The groups of one device spread over many devices.
    pub(super) fn best(
        &self,
        state: &State,
        id: GroupId,
        group: &Group,
        from: DeviceId,
        spare: bool,
    ) -> Option<DeviceId> {
        let other = group.replicas.iter().find(|d| **d != from)?;
        let Room { unit, pool, .. } = *self.rooms.get(other)?;
        let (bytes, units) = (self.bytes(state, id), state.units_of(id));
        let source = self.rooms.get(&source(state, group, from)?)?;
        if !self.are_few(source.makes, bytes) {
            return None;
        }
        let may = |(to, room): &(&DeviceId, &Room)| {
            let apart = room.unit != unit || mutant::on(Mutant::OneFaultUnit);
            let here = room.pool == pool || mutant::on(Mutant::HealAnywhere);
            let fresh = !group.replicas.contains(to) && here;
            apart
                && fresh
                && room.knows(group)
                && !source.parted.contains(to)
                && room.fits(bytes, spare)
                && self.are_few(room.gets, bytes)
        };
        let load = |room: &Room| match units {
            _ if mutant::on(Mutant::HouseAnywhere) => 0.0,
            0 => (room.empty + 1) as f64 / room.part,
            units => (room.units + units) as f64 / room.part,
        };
        let best = self.rooms.iter().filter(may);
        let best = best.min_by(|(_, a), (_, b)| load(a).total_cmp(&load(b)));
        best.map(|(to, _)| *to)
    }

    /// Returns the best destinations for the replicas on devices that do not stay, by group and
    /// present device. They are planned together, each pool by itself, so that no device gets more
    /// than its share, as far as possible.
    pub(super) fn destinations(state: &State, lost: &BTreeSet<DeviceId>) -> Destinations {
        let mut all = Destinations::new();
        for pool in state.objects.pools.keys() {
            let mut devices = devices_of(state, *pool);
            devices.retain(|d| !lost.contains(&d.id));
            let stays: BTreeSet<DeviceId> = devices.iter().map(|d| d.id).collect();
            // The devices that go are listed, too: a copy must stay apart from a replica that has
            // yet to move.
            let goes =
                state.devices.iter().filter(|(id, d)| d.pool == *pool && !stays.contains(id));
            devices.extend(goes.filter_map(|(id, _)| {
                let sds = state.unit_of(*id)?;
                Some(placement::Device { id: *id, sds, capacity: 0 })
            }));
            let moves =
                placement::place_homeless(&devices, &held(state, *pool)).unwrap_or_default();
            let moves = moves.into_iter().filter(|_| !mutant::on(Mutant::HouseAnywhere));
            all.extend(moves.map(|m| ((m.group, m.from), m.to)));
        }
        all
    }

    /// Returns the moves that would balance all devices that are up, each pool by itself.
    pub(super) fn rebalance(state: &State) -> Plan {
        let mut all = Plan::default();
        let pools = state.objects.pools.keys();
        for pool in pools.take(if mutant::on(Mutant::LevelFirstPool) { 1 } else { usize::MAX }) {
            let mut devices = devices_of(state, *pool);
            devices.retain(|d| state.is_up(d.id));
            let plan = placement::balance(&devices, &held(state, *pool));
            let plan = plan.unwrap_or_default();
            all.moves.extend(plan.moves);
            all.swaps.extend(plan.swaps);
        }
        all
    }
}

/// Returns the device that makes the copy when another one takes the place of `from`: the leader of
/// the group while that move is under way.
pub(super) fn source(state: &State, group: &Group, from: DeviceId) -> Option<DeviceId> {
    group.leader_beside(Some(from), &|d| state.is_up(d))
}

/// Returns the devices that may take a pool's groups.
fn devices_of(state: &State, pool: PoolId) -> Vec<placement::Device> {
    controller::placement_of(state, |of| of == pool || mutant::on(Mutant::HealAnywhere))
}

/// Returns the groups of a pool, weighted by the units that they may hold. The units that volumes
/// have written change all day, and moves that followed them would never end.
fn held(state: &State, pool: PoolId) -> Vec<PlacedGroup> {
    let here = |g: &Group| !g.lost && state.pool_of(g) == Some(pool);
    let units = |id: GroupId| match mutant::on(Mutant::LevelByNumber) {
        true => 0,
        false => state.units_of(id),
    };
    let weigh = |(id, g): (&GroupId, &Group)| {
        Some(PlacedGroup { group: *id, replicas: g.pair()?, weight: units(*id) })
    };
    state.groups.iter().filter(|(_, g)| here(g)).filter_map(weigh).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_takes_as_many_groups_as_it_can_remember() {
        let room = |groups| Room {
            unit: SdsId(1),
            pool: PoolId(1),
            capacity: 1 << 40,
            used: 0,
            part: 0.5,
            groups,
            empty: groups,
            with_data: 0,
            units: 0,
            parted: Vec::new(),
            makes: Copies::default(),
            gets: Copies::default(),
            open: true,
            spare: 0,
            heard: true,
            map: MapVersion(0),
        };
        assert!(room(MAX_REPLICAS - 1).fits(1, true) && !room(MAX_REPLICAS).fits(1, true));
    }
}
