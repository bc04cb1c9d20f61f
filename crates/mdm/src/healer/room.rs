//! Who can take another group: room, and how much each device has to do already.

use crate::group::Group;
use crate::state::State;
use crate::status::Observed;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use base::{
    DeviceId, GroupId, Limits, MAX_REPLICAS, MapVersion, Mutant, PoolId, SdsId, Time, beside_spare,
    mutant,
};
use placement::{Held, Plan};
use wire::control::Intent;

/// Copies that a device has in hand, and about their bytes.
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

#[derive(Debug)]
struct Room {
    /// Its fault unit.
    unit: SdsId,
    pool: PoolId,
    capacity: u64,
    /// What it holds, and what is on its way to it.
    used: u64,
    /// Of everything, what it should have, as a part: among those that can take something.
    part: f64,
    /// Groups that it belongs to, or will.
    groups: u64,
    /// Those of them that no volume uses.
    empty: u64,
    /// Its groups that volumes use: what it holds is theirs; and units that these may hold.
    with_data: u64,
    units: u64,
    /// Devices that it doesn't reach, so that nothing is copied there by it.
    parted: Vec<DeviceId>,
    /// Copies that it makes, and those that it gets.
    makes: Copies,
    gets: Copies,
    /// It is heard, and stays.
    open: bool,
    /// Of capacity, in percent, for rebuilds only.
    spare: u64,
    /// It has told how full it is.
    heard: bool,
    /// The newest map that it has taken over in this life.
    map: MapVersion,
}

impl Room {
    /// It knows that it is no replica of the group: what it may have had of it is deleted. A copy must not meet that.
    fn knows(&self, group: &Group) -> bool {
        self.map >= group.changed_at
    }

    /// It has space for so many bytes more, and can remember one more group.
    fn fits(&self, bytes: u64, spare: bool) -> bool {
        let usable = beside_spare(self.capacity, if spare { 0 } else { self.spare });
        let few = self.groups < MAX_REPLICAS;
        self.open && few && self.used.saturating_add(bytes) < usable
    }
}

/// Where the replica of a group that is on a device should go.
pub(super) type Homes = BTreeMap<(GroupId, DeviceId), DeviceId>;

/// All devices.
#[derive(Debug)]
pub(super) struct Rooms {
    rooms: BTreeMap<DeviceId, Room>,
    /// Copies that one device makes or gets at a time, and how many bytes more of them may have.
    most: u32,
    small: u64,
}

impl Rooms {
    pub fn new(now: Time, state: &State, seen: &Observed, limits: &Limits) -> Rooms {
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
        let mut rooms = Rooms { rooms, most, small };
        rooms.part(state);
        for (id, group) in &state.groups {
            if let Some((to, source)) = group.newcomer().zip(group.primary) {
                rooms.take(state, *id, source, to);
            }
        }
        rooms
    }

    /// Says what each of those that can take something should have.
    fn part(&mut self, state: &State) {
        for pool in state.objects.pools.keys() {
            let mut devices = state.placement(*pool);
            devices.retain(|d| self.rooms.get(&d.id).is_some_and(|room| room.open));
            // Too few of them: then it doesn't matter.
            let parts = placement::parts(&devices).unwrap_or_default();
            for (device, part) in devices.iter().zip(parts) {
                self.rooms.get_mut(&device.id).expect("it was there").part = part;
            }
        }
    }

    /// About as many bytes as a group has: the units of a volume spread evenly over its groups.
    fn bytes(&self, state: &State, id: GroupId) -> u64 {
        let group = &state.groups[&id];
        let held = |d: &DeviceId| self.rooms.get(d).map(|r| r.used / r.with_data.max(1));
        let bytes = group.in_sync.iter().filter_map(held).max().unwrap_or(0);
        if state.is_used(id) { bytes } else { 0 }
    }

    /// True when the device has room for the group; without `spare`, beside the spare.
    pub fn fits(&self, state: &State, id: GroupId, to: DeviceId, spare: bool) -> bool {
        let fits =
            |room: &Room| room.knows(&state.groups[&id]) && room.fits(self.bytes(state, id), spare);
        self.rooms.get(&to).is_some_and(fits)
    }

    /// True for a device that has registered, and has said nothing yet, or lags: it will in a moment.
    pub fn is_awaited(&self, state: &State, id: GroupId, device: DeviceId) -> bool {
        self.rooms.get(&device).is_some_and(|room| !room.heard) || self.lags(state, id, device)
    }

    /// True for a device that may take copies, and doesn't know yet that it has nothing of the group.
    pub fn lags(&self, state: &State, id: GroupId, device: DeviceId) -> bool {
        self.rooms.get(&device).is_some_and(|room| room.open && !room.knows(&state.groups[&id]))
    }

    /// True when neither has too many copies in hand. Small ones go together, as each takes a turn of the MDM.
    pub fn may(&self, state: &State, id: GroupId, source: DeviceId, to: DeviceId) -> bool {
        let bytes = self.bytes(state, id);
        let makes = self.rooms.get(&source).is_some_and(|r| self.are_few(r.makes, bytes));
        makes && self.rooms.get(&to).is_some_and(|r| self.are_few(r.gets, bytes))
    }

    fn are_few(&self, copies: Copies, bytes: u64) -> bool {
        copies.count < self.most || copies.bytes + bytes < self.small
    }

    /// A copy of the group is on its way.
    pub fn take(&mut self, state: &State, id: GroupId, source: DeviceId, to: DeviceId) {
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

    /// Where a replica of the group goes best, in the place of that one: to another fault unit of the
    /// pool than the other replica's, and there to whom has the least for its part. Many devices take the groups of one.
    pub fn best(
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
        let source = self.rooms.get(&group.primary?)?;
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

    /// Where replicas go best that are on devices that don't stay: all of them together, so that no device gets
    /// more than its share, as far as that can be. By group, and where its replica is. Each pool by itself.
    pub fn house(state: &State, lost: &BTreeSet<DeviceId>) -> Homes {
        let mut all = Homes::new();
        for pool in state.objects.pools.keys() {
            let mut devices = devices_of(state, *pool);
            devices.retain(|d| !lost.contains(&d.id));
            let stays: BTreeSet<DeviceId> = devices.iter().map(|d| d.id).collect();
            // Where the others are has to be known: copies that go stay apart from those that are still to go.
            let goes =
                state.devices.iter().filter(|(id, d)| d.pool == *pool && !stays.contains(id));
            devices.extend(goes.filter_map(|(id, _)| {
                let sds = state.unit_of(*id)?;
                Some(placement::Device { id: *id, sds, capacity: 0 })
            }));
            let moves = placement::house(&devices, &held(state, *pool)).unwrap_or_default();
            let moves = moves.into_iter().filter(|_| !mutant::on(Mutant::HouseAnywhere));
            all.extend(moves.map(|m| ((m.group, m.from), m.to)));
        }
        all
    }

    /// What would make all level that is up, each pool by itself.
    pub fn level(state: &State) -> Plan {
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

/// Who may take a pool's groups.
fn devices_of(state: &State, pool: PoolId) -> Vec<placement::Device> {
    state.placement_of(|of| of == pool || mutant::on(Mutant::HealAnywhere))
}

/// The groups of a pool, weighed by the units that they may hold. What volumes have really written changes all day, and
/// moves that chase it would never end.
fn held(state: &State, pool: PoolId) -> Vec<Held> {
    let here = |g: &Group| !g.lost && state.pool_of(g) == Some(pool);
    let units = |id: GroupId| match mutant::on(Mutant::LevelByNumber) {
        true => 0,
        false => state.units_of(id),
    };
    let weigh = |(id, g): (&GroupId, &Group)| {
        Some(Held { group: *id, replicas: g.pair()?, weight: units(*id) })
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
