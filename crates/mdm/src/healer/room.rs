//! Who can take another group: room, and how much each device has to do already.

use crate::group::Group;
use crate::state::State;
use crate::status::Observed;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use base::{DeviceId, Duration, GroupId, Limits, Mutant, PoolId, SdsId, Time, mutant};
use placement::Plan;
use wire::control::Intent;

#[derive(Debug)]
struct Room {
    /// Its fault unit.
    unit: SdsId,
    pool: PoolId,
    capacity: u64,
    /// What it holds, and what is on its way to it.
    used: u64,
    /// Groups that it belongs to, or will.
    groups: u64,
    /// Its groups that volumes use: what it holds is theirs.
    with_data: u64,
    /// Copies that it makes or gets, and about their bytes.
    moving: u32,
    moving_bytes: u64,
    /// It is heard, and stays.
    open: bool,
    /// Of capacity, in percent, for rebuilds only.
    spare: u64,
    /// It has told how full it is.
    heard: bool,
}

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
            let held = seen.quarantine(*id, now) > Duration::ZERO;
            let seen = seen.devices.get(id).filter(|s| s.connected && !held);
            let beat = seen.and_then(|s| s.heartbeat.as_ref());
            let groups = state.groups_of(*id);
            let room = Room {
                unit: state.unit(d.sds),
                pool: d.pool,
                spare: state.objects.spare(d.pool, limits),
                capacity: d.capacity,
                used: beat.map_or(0, |b| b.used),
                groups: groups.len() as u64,
                with_data: groups.iter().filter(|g| state.is_used(**g)).count() as u64,
                moving: 0,
                moving_bytes: 0,
                open: beat.is_some_and(|b| !b.full) && d.up && d.intent == Intent::Normal,
                heard: beat.is_some(),
            };
            rooms.insert(*id, room);
        }
        let (most, small) = (limits.moves_per_device, limits.moving_bytes);
        let mut rooms = Rooms { rooms, most, small };
        for (id, group) in &state.groups {
            if let Some((to, source)) = group.newcomer().zip(group.primary) {
                rooms.take(state, *id, source, to);
            }
        }
        rooms
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
        let Some(room) = self.rooms.get(&to) else { return false };
        let kept = if spare { 0 } else { room.spare.min(100) };
        let usable = (u128::from(room.capacity) * u128::from(100 - kept) / 100) as u64;
        room.open && room.used.saturating_add(self.bytes(state, id)) < usable
    }

    /// True for a device that has registered, and said nothing yet: it will in a moment.
    pub fn is_awaited(&self, device: DeviceId) -> bool {
        self.rooms.get(&device).is_some_and(|room| !room.heard)
    }

    /// True when neither has too many copies in hand. Small ones go together, as each takes a turn of the MDM.
    pub fn may(&self, state: &State, id: GroupId, source: DeviceId, to: DeviceId) -> bool {
        let bytes = self.bytes(state, id);
        let few = |r: &Room| r.moving < self.most || r.moving_bytes + bytes < self.small;
        [source, to].iter().all(|d| self.rooms.get(d).is_some_and(few))
    }

    /// A copy of the group is on its way.
    pub fn take(&mut self, state: &State, id: GroupId, source: DeviceId, to: DeviceId) {
        let bytes = self.bytes(state, id);
        if let Some(room) = self.rooms.get_mut(&to) {
            room.used = room.used.saturating_add(bytes);
            room.groups += 1;
        }
        for device in [source, to] {
            if let Some(room) = self.rooms.get_mut(&device) {
                room.moving += 1;
                room.moving_bytes = room.moving_bytes.saturating_add(bytes);
            }
        }
    }

    /// Where a replica of the group goes best, in the place of that one: to another fault unit of the
    /// pool than the other replica's, and there to whom has the fewest groups for its capacity. Many devices take the groups of one.
    pub fn best(
        &self,
        state: &State,
        id: GroupId,
        group: &Group,
        from: DeviceId,
        spare: bool,
    ) -> Option<DeviceId> {
        let source = group.primary?;
        let other = group.replicas.iter().find(|d| **d != from)?;
        let Room { unit, pool, .. } = *self.rooms.get(other)?;
        let may = |(to, room): &(&DeviceId, &Room)| {
            let apart = room.unit != unit || mutant::on(Mutant::OneFaultUnit);
            let fresh = !group.replicas.contains(to) && room.pool == pool;
            apart && fresh && self.may(state, id, source, **to) && self.fits(state, id, **to, spare)
        };
        let load =
            |room: &Room| (u128::from(room.groups + 1) << 64) / u128::from(room.capacity.max(1));
        let best = self.rooms.iter().filter(may).min_by_key(|(to, room)| (load(room), **to));
        best.map(|(to, _)| *to)
    }

    /// What would make all level, each pool by itself.
    pub fn level(&self, state: &State) -> Plan {
        let mut all = Plan::default();
        for pool in state.objects.pools.keys() {
            let here = |(id, room): &(&DeviceId, &Room)| {
                room.pool == *pool && state.devices[id].intent == Intent::Normal
            };
            let devices = self.rooms.iter().filter(here);
            let devices: Vec<placement::Device> = devices
                .map(|(id, r)| placement::Device { id: *id, sds: r.unit, capacity: r.capacity })
                .collect();
            let of_pool = |g: &Group| !g.lost && state.pool_of(g) == Some(*pool);
            let held = state.groups.iter().filter(|(_, g)| of_pool(g));
            let held: Vec<placement::Held> = held
                .filter_map(|(id, g)| {
                    Some(placement::Held { group: *id, replicas: g.pair()?, weight: 1 })
                })
                .collect();
            let plan = placement::balance(&devices, &held).unwrap_or_default();
            all.moves.extend(plan.moves);
            all.swaps.extend(plan.swaps);
        }
        all
    }
}
