//! The map from slots to chunks (64 KiB of a unit), in 14.5 bytes per slot, whatever the pattern.
//!
//! There are three arrays by slot (owner and chunk, unit, valid blocks: 10 bytes), and a table of
//! places that finds a slot by its key (4.5 bytes). The table has open addressing over slot
//! numbers. The spare bits of each place hold a tag, so that a wrong place is seldom looked up. An
//! *owner* is a pair of group and volume; there are few of them.
//!
//! Invariants: a slot is found under at most one key, and a key leads to at most one slot; a slot
//! is taken while a block of it is valid, it is pinned, or its space is being given back, and free
//! otherwise; no lookup finds a dropped owner, and its slots with data stay taken until `sweep`.
//!
//! This module does not make anything durable. `dirty` says which pages of the map on the device
//! are out of date.

use super::bits::Bits;
use super::format::MapEntry;
use super::holes::{Holes, share};
use super::layout::{MAP_ENTRIES, SLOT, UNIT_CHUNKS};
use super::unit_index::UnitIndex;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;
use base::prng::mix;
use base::{BLOCK, BlockSet, GroupId, Map, Mutant, UnitKey, VolumeId, mutant};
use core::ops::Range;
use seam::Walk;

/// The owner of a free slot. Each real owner has a lower number: there are fewer than 2^28 pairs of
/// group and volume. Each pair has a slot, so a device of up to 16 TiB can't have more; and the
/// volumes of a cluster make fewer pairs.
const FREE: u32 = u32::MAX;
/// Number of slots that one step of a walk looks at: this takes less than 1 ms.
const WALK: u64 = 64 << 10;
/// In each step, a mount indexes at most one unit per this many slots, and looks at all slots. If
/// units are full, one step is enough. If each slot has a unit of its own, there are this many.
const LISTED: usize = 16;
/// Number of freed slots that are remembered in order: 1 GiB. Further ones are found by a search.
const GIVEN_BACK: usize = 16 << 10;

/// The 64 KiB of a unit that one slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Chunk {
    /// The group.
    pub group: GroupId,
    /// The unit.
    pub unit: UnitKey,
    /// Index of the 64 KiB in the unit, 0 to 15.
    pub chunk: u8,
}

/// The purpose of a pin on a slot.
#[derive(Clone, Copy, Debug)]
pub(super) enum Access {
    /// To read these blocks.
    Read(u16),
    /// To change these blocks. Until the pin ends, no other one may read or change them.
    Change(u16),
    /// To keep the slot.
    Hold,
}

/// A pin on a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pin {
    /// The slot.
    pub slot: u32,
    /// The blocks that it is there to change.
    changes: u16,
}

/// All pins on a slot.
#[derive(Clone, Copy, Debug, Default)]
struct Pins {
    count: u32,
    changes: u16,
}

#[derive(Clone, Copy, Debug)]
struct Owner {
    group: GroupId,
    volume: VolumeId,
    /// Number of slots that are taken in its name.
    slots: u32,
    life: Life,
}

/// State of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Live,
    /// No lookup finds it. It keeps its data until the drop is durable.
    Dropped,
    /// `sweep` clears its slots.
    Swept,
    /// There is no owner; the index is free for the next one.
    Unused,
}

/// There are more pairs of group and volume than fit into the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyOwners;

/// The map of one device.
#[derive(Debug)]
pub(super) struct UnitMap {
    /// Index of the owner times 16, plus the chunk; or `FREE`.
    owner: Vec<u32>,
    unit: Vec<u32>,
    valid: Vec<u16>,
    /// Slot + 1 in the low bits, a tag above. 0: the place is free.
    places: Vec<u32>,
    slot_bits: u32,
    owners: Vec<Owner>,
    owner_of: BTreeMap<(GroupId, VolumeId), u32>,
    unused_owners: Vec<u32>,
    /// Upper bound of the number of owners: one less than fits beside a chunk.
    most_owners: u32,
    /// The owner of the last lookup. Usually the next lookup wants it, too.
    recent: Option<(GroupId, VolumeId, u32)>,
    /// `None` during recovery, which builds it at its end.
    by_owner: Option<UnitIndex>,
    /// Owners with data that `sweep` has to clear. An index may have got a new owner since.
    to_sweep: Vec<u32>,
    taken: Bits,
    /// Number of slots in `taken` that are never used.
    unused: u32,
    /// Freed slots, the oldest first. They are taken first: where data lay before, a file has
    /// blocks in its file system. Elsewhere each write would wait for new ones, and thin files
    /// would grow.
    given_back: VecDeque<u32>,
    /// Where to search for another free slot.
    cursor: u32,
    holes: Holes,
    pins: Map<u32, Pins>,
    dirty: Bits,
}

impl UnitMap {
    /// Makes a map in which all slots are free, except those that are never used.
    pub(super) fn new(slots: u32, unused: impl IntoIterator<Item = u32>) -> UnitMap {
        let mut taken = Bits::new(slots);
        for slot in unused {
            taken.put(slot, true);
        }
        UnitMap {
            unused: taken.count(),
            owner: vec![FREE; slots as usize],
            unit: vec![0; slots as usize],
            valid: vec![0; slots as usize],
            places: vec![0; slots as usize + slots as usize / 8 + 16],
            slot_bits: 32 - slots.leading_zeros(),
            owners: Vec::new(),
            owner_of: BTreeMap::new(),
            unused_owners: Vec::new(),
            most_owners: FREE >> 4,
            recent: None,
            by_owner: Some(UnitIndex::default()),
            to_sweep: Vec::new(),
            taken,
            given_back: VecDeque::new(),
            cursor: 0,
            holes: Holes::new(slots),
            pins: Map::default(),
            dirty: Bits::new(slots.div_ceil(MAP_ENTRIES)),
        }
    }

    fn owner(&self, slot: u32) -> u32 {
        #[cfg(test)]
        tests::count_a_slot();
        self.owner[slot as usize]
    }

    fn set_owner(&mut self, slot: u32, owner: u32) {
        self.owner[slot as usize] = owner;
    }

    // ---- looking up ----

    /// Returns the slot of a chunk.
    pub(super) fn slot(&self, chunk: Chunk) -> Option<u32> {
        let owner = *self.owner_of.get(&(chunk.group, chunk.unit.volume))?;
        self.find(owner << 4 | u32::from(chunk.chunk), chunk.unit.index).ok()
    }

    /// Returns the chunk that a slot holds.
    pub(super) fn chunk(&self, slot: u32) -> Option<Chunk> {
        let owner = self.owner(slot);
        let o = self.owners.get((owner >> 4) as usize).filter(|_| owner != FREE)?;
        let unit = UnitKey { volume: o.volume, index: self.unit[slot as usize] };
        Some(Chunk { group: o.group, unit, chunk: (owner & 15) as u8 })
    }

    /// Returns the blocks of a slot that hold data.
    pub(super) fn valid(&self, slot: u32) -> u16 {
        #[cfg(test)]
        tests::count_a_slot();
        self.valid[slot as usize]
    }

    /// Returns the blocks of a unit that hold data.
    pub(super) fn valid_in(&self, group: GroupId, unit: UnitKey) -> BlockSet {
        let mut set = BlockSet::EMPTY;
        for chunk in 0..UNIT_CHUNKS as u8 {
            if let Some(slot) = self.slot(Chunk { group, unit, chunk }) {
                set.0[chunk as usize / 4] |= u64::from(self.valid(slot)) << (chunk % 4 * 16);
            }
        }
        set
    }

    /// Returns the group's units with data, in order. Looks at these units only, and at no slot.
    pub(super) fn units(&self, group: GroupId) -> Vec<UnitKey> {
        let index = self.by_owner.as_ref().expect("recovery has ended");
        let of = |(volume, owner): (VolumeId, u32)| {
            index.units(owner).map(move |index| UnitKey { volume, index })
        };
        self.owners_of(group).flat_map(of).collect()
    }

    /// True when slots are taken in the group's name.
    pub(super) fn holds(&self, group: GroupId) -> bool {
        self.owners_of(group).any(|(_, owner)| self.owners[owner as usize].slots > 0)
    }

    /// Returns the group's owners by volume, in order.
    fn owners_of(&self, group: GroupId) -> impl Iterator<Item = (VolumeId, u32)> + '_ {
        let all = (group, VolumeId(0))..=(group, VolumeId(u32::MAX));
        self.owner_of.range(all).map(|((_, volume), owner)| (*volume, *owner))
    }

    /// Returns the number of the volume's slots.
    pub(super) fn slots_of(&self, volume: VolumeId) -> u64 {
        let live = self.owners.iter().filter(|o| o.life == Life::Live && o.volume == volume);
        live.map(|o| u64::from(o.slots)).sum()
    }

    /// Returns the volumes with slots, in order.
    pub(super) fn volumes(&self) -> Vec<VolumeId> {
        let live = self.owners.iter().filter(|o| o.life == Life::Live && o.slots > 0);
        let mut volumes: Vec<VolumeId> = live.map(|o| o.volume).collect();
        volumes.sort_unstable();
        volumes.dedup();
        volumes
    }

    /// Makes a step of a walk over the slots, in their order on the device. Slots that are also
    /// neighbours in their unit go together.
    pub(super) fn walk(&self, cursor: u64, most: u32) -> Walk {
        let slots = self.valid.len() as u64;
        let end = slots.min(cursor.saturating_add(WALK));
        let holds = |slot: &u32| self.valid(*slot) != 0 && self.life(*slot) == Life::Live;
        let Some(first) = (cursor.min(end) as u32..end as u32).find(holds) else {
            return if end < slots { Walk::Nothing { next: end } } else { Walk::End };
        };
        let Some(chunk) = self.chunk(first) else {
            return Walk::Nothing { next: u64::from(first) + 1 };
        };
        let follows = |slot: &u32| {
            let next = Chunk { chunk: chunk.chunk + (slot - first) as u8, ..chunk };
            holds(slot) && self.chunk(*slot) == Some(next)
        };
        let room = (most / SLOT as u32).clamp(1, UNIT_CHUNKS - u32::from(chunk.chunk));
        let range = first + 1..(first + room).min(slots as u32);
        let count = 1 + range.take_while(follows).count() as u32;
        let blocks: u32 = (first..first + count).map(|s| self.valid(s).count_ones()).sum();
        Walk::Held {
            group: chunk.group,
            unit: chunk.unit,
            at: u32::from(chunk.chunk) * SLOT as u32,
            len: count * SLOT as u32,
            held: blocks * BLOCK,
            next: u64::from(first + count),
        }
    }

    /// Returns the number of slots that can be taken.
    pub(super) fn free(&self) -> u32 {
        self.owner.len() as u32 - self.taken.count()
    }

    /// Returns the number of slots with an owner.
    pub(super) fn used(&self) -> u32 {
        self.taken.count() - self.unused - self.holes.held().len() as u32
    }

    /// Returns the number of slots, without those that are never used.
    pub(super) fn usable(&self) -> u32 {
        self.owner.len() as u32 - self.unused
    }

    // ---- taking and giving ----

    /// Pins the slot of a chunk. If the chunk has none, takes one, which has no valid blocks.
    pub(super) fn pin(&mut self, chunk: Chunk, access: Access) -> Option<Pin> {
        let slot = match self.slot(chunk) {
            Some(slot) => slot,
            None => {
                let slot = self.take(chunk)?;
                self.link(slot);
                slot
            }
        };
        Some(self.pin_slot(slot, access))
    }

    /// Takes and pins a second slot for a chunk. The chunk stays in the first one until `replace`,
    /// and the pin of that one says which blocks change.
    pub(super) fn pin_second(&mut self, chunk: Chunk) -> Option<Pin> {
        let slot = self.take(chunk)?;
        Some(self.pin_slot(slot, Access::Hold))
    }

    /// Pins a slot that is taken. No job may touch a block that another one changes.
    pub(super) fn pin_slot(&mut self, slot: u32, access: Access) -> Pin {
        let pins = self.pins.entry(slot).or_default();
        let (touches, changes) = match access {
            Access::Read(blocks) => (blocks, 0),
            Access::Change(blocks) => (blocks, blocks),
            Access::Hold => (0, 0),
        };
        assert!(pins.changes & touches == 0, "a job overlaps a change");
        pins.count += 1;
        pins.changes |= changes;
        Pin { slot, changes }
    }

    /// Ends a pin. The slot becomes free when that was its last pin and no block is valid.
    pub(super) fn unpin(&mut self, pin: Pin) {
        let pins = self.pins.get_mut(&pin.slot).expect("a pinned slot");
        assert!(pins.count > 0, "a pin ends once");
        pins.count -= 1;
        pins.changes &= !pin.changes;
        assert!(pins.count > 0 || pins.changes == 0, "a change belongs to a pin");
        if pins.count == 0 {
            self.pins.remove(&pin.slot);
            self.release_if_idle(pin.slot);
        }
    }

    /// Moves a chunk from slot `old` to `slot`. Its owner may be dropped: `sweep` finds the slot.
    pub(super) fn replace(&mut self, old: u32, slot: u32) {
        self.unlink(old);
        self.link(slot);
    }

    /// Marks blocks as holding data, unless their owner was swept.
    pub(super) fn set(&mut self, slot: u32, blocks: u16) {
        if self.life(slot) != Life::Swept {
            self.set_valid(slot, self.valid(slot) | blocks);
        }
    }

    /// Marks blocks as holding no data.
    pub(super) fn clear(&mut self, slot: u32, blocks: u16) {
        self.set_valid(slot, self.valid(slot) & !blocks);
        self.release_if_idle(slot);
    }

    fn set_valid(&mut self, slot: u32, blocks: u16) {
        let before = core::mem::replace(&mut self.valid[slot as usize], blocks);
        self.dirty.put(slot / MAP_ENTRIES, true);
        let (owner, unit) = (self.owner(slot) >> 4, self.unit[slot as usize]);
        match (&mut self.by_owner, before, blocks) {
            (Some(index), 0, 1..) => index.add(owner, unit),
            (Some(index), 1.., 0) => index.remove(owner, unit),
            _ => {}
        }
    }

    /// Drops all owners that `of` accepts: lookups no longer find their chunks. Their data stays
    /// until `sweep`.
    pub(super) fn drop_owners(&mut self, of: impl Fn(GroupId, VolumeId) -> bool) {
        let live = |o: &&mut Owner| o.life == Life::Live && of(o.group, o.volume);
        for owner in self.owners.iter_mut().filter(live) {
            owner.life = Life::Dropped;
            self.owner_of.remove(&(owner.group, owner.volume));
        }
        self.recent = None;
    }

    /// Lets `sweep` free the slots of the dropped owners that `of` accepts.
    pub(super) fn begin_sweep(&mut self, of: impl Fn(GroupId, VolumeId) -> bool) {
        for (index, owner) in (0..).zip(&mut self.owners) {
            if owner.life == Life::Dropped && of(owner.group, owner.volume) {
                owner.life = Life::Swept;
                self.to_sweep.push(index);
            }
        }
    }

    /// True while `entry` may return slots whose owners no longer need them.
    pub(super) fn is_sweeping(&mut self) -> bool {
        self.next_swept().is_some()
    }

    /// Clears the slots of at most `most` units whose owners no longer need them, and calls `each`
    /// for these slots. A slot becomes free at once, or with its last pin.
    pub(super) fn sweep(&mut self, most: u32, mut each: impl FnMut(u32)) {
        for _ in 0..most {
            let Some((owner, unit, mut slots)) = self.next_swept() else { return };
            for chunk in 0..UNIT_CHUNKS {
                let slot = self.find(owner << 4 | chunk, unit).ok();
                let Some(slot) = slot.filter(|slot| self.valid(*slot) != 0) else { continue };
                self.clear(slot, u16::MAX);
                each(slot);
                slots -= 1;
                if slots == 0 {
                    break;
                }
            }
            assert_eq!(slots, 0, "each slot with data has a place");
        }
    }

    /// Returns the owner and the unit that `sweep` clears next, and the number of its slots with
    /// data.
    fn next_swept(&mut self) -> Option<(u32, u32, u8)> {
        let index = self.by_owner.as_ref().expect("recovery has ended");
        while let Some(owner) = self.to_sweep.last().copied() {
            let swept = self.owners[owner as usize].life == Life::Swept;
            if let Some((unit, slots)) = index.first(owner).filter(|_| swept) {
                return Some((owner, unit, slots));
            }
            self.to_sweep.pop();
        }
        None
    }

    /// True when the slot's owner was dropped.
    pub(super) fn is_dropped(&self, slot: u32) -> bool {
        self.life(slot) != Life::Live
    }

    /// True when the slot's owner was dropped, and the drop is durable.
    pub(super) fn is_swept(&self, slot: u32) -> bool {
        self.life(slot) == Life::Swept
    }

    fn life(&self, slot: u32) -> Life {
        let owner = (self.owner(slot) >> 4) as usize;
        self.owners.get(owner).map_or(Life::Live, |o| o.life)
    }

    fn take(&mut self, chunk: Chunk) -> Option<u32> {
        if self.free() == 0 {
            return None;
        }
        let owner = self.owner_index(chunk.group, chunk.unit.volume)?;
        let slot = self.next_free()?;
        let free = self.owner(slot) == FREE && !self.taken.get(slot);
        assert!(free, "a slot has one owner at a time");
        self.assign(slot, owner, chunk);
        Some(slot)
    }

    fn next_free(&mut self) -> Option<u32> {
        while let Some(slot) = self.given_back.pop_front() {
            if self.holes.is_filled(slot) {
                return Some(slot);
            }
        }
        let slot = self.taken.next_clear(self.cursor).or_else(|| self.taken.next_clear(0))?;
        self.cursor = slot + 1;
        Some(slot)
    }

    fn assign(&mut self, slot: u32, owner: u32, chunk: Chunk) {
        self.taken.put(slot, true);
        self.holes.taken(slot);
        self.owners[owner as usize].slots += 1;
        let i = slot as usize;
        self.set_owner(slot, owner << 4 | u32::from(chunk.chunk));
        (self.unit[i], self.valid[i]) = (chunk.unit.index, 0);
    }

    fn release_if_idle(&mut self, slot: u32) {
        let holds = self.valid[slot as usize] != 0 || mutant::on(Mutant::KeepEmpty);
        if holds || self.pins.contains_key(&slot) {
            return;
        }
        self.unlink(slot);
        self.give_back(slot);
    }

    /// Frees a taken slot that no lookup finds. Its owner is removed with the last slot.
    fn give_back(&mut self, slot: u32) {
        assert!(self.owner(slot) != FREE, "a slot becomes free once");
        let owner = self.owner(slot) >> 4;
        self.set_owner(slot, FREE);
        self.taken.put(slot, false);
        self.holes.freed(slot);
        if self.given_back.len() < GIVEN_BACK {
            self.given_back.push_back(slot);
        }
        let o = &mut self.owners[owner as usize];
        assert!(o.slots > 0, "an owner counts its slots");
        o.slots -= 1;
        if o.slots == 0 {
            if o.life == Life::Live {
                self.owner_of.remove(&(o.group, o.volume));
                self.recent = None;
            }
            o.life = Life::Unused;
            self.unused_owners.push(owner);
        }
    }

    /// Returns the index of an owner, which is new if there was none. `None`: there are too many.
    fn owner_index(&mut self, group: GroupId, volume: VolumeId) -> Option<u32> {
        if let Some((_, _, owner)) = self.recent.filter(|r| (r.0, r.1) == (group, volume)) {
            return Some(owner);
        }
        if let Some(owner) = self.owner_of.get(&(group, volume)) {
            self.recent = Some((group, volume, *owner));
            return Some(*owner);
        }
        let new = Owner { group, volume, slots: 0, life: Life::Live };
        let index = match self.unused_owners.pop() {
            Some(index) => {
                self.owners[index as usize] = new;
                index
            }
            None if self.owners.len() as u32 == self.most_owners => return None,
            None => {
                self.owners.push(new);
                self.owners.len() as u32 - 1
            }
        };
        self.owner_of.insert((group, volume), index);
        Some(index)
    }

    // ---- space that is given back ----

    /// Returns which free slots to give back.
    pub(super) fn holes(&mut self) -> &mut Holes {
        &mut self.holes
    }

    /// Begins to give free slots back, if that is due. They can't be taken until
    /// [`UnitMap::end_hole`].
    pub(super) fn begin_hole(&mut self) -> Option<Range<u32>> {
        let run = self.holes.begin(share(self.free()))?;
        let free = |slot: &u32| self.owner[*slot as usize] == FREE && !self.pins.contains_key(slot);
        assert!(run.clone().all(|slot| free(&slot)), "a slot that is given back is free");
        for slot in self.holes.held() {
            self.taken.put(slot, true);
        }
        Some(run)
    }

    /// These slots can be taken again.
    pub(super) fn end_hole(&mut self) {
        for slot in self.holes.end() {
            self.taken.put(slot, false);
        }
    }

    // ---- the table of places ----

    fn hash(&self, owner: u32, unit: u32) -> (usize, u32) {
        let hash = mix(u64::from(owner) << 32 | u64::from(unit));
        let place = (u128::from(hash) * self.places.len() as u128) >> 64;
        (place as usize, (hash as u32).checked_shl(self.slot_bits).unwrap_or(0))
    }

    /// Returns the slot of this key, or the free place where the key belongs.
    fn find(&self, owner: u32, unit: u32) -> Result<u32, usize> {
        let (mut place, tag) = self.hash(owner, unit);
        let low = (1u64 << self.slot_bits) as u32;
        let low = low.wrapping_sub(1);
        loop {
            let value = self.places[place];
            if value == 0 {
                return Err(place);
            }
            let slot = (value & low).wrapping_sub(1);
            if value & !low == tag && self.owner(slot) == owner && self.unit[slot as usize] == unit
            {
                return Ok(slot);
            }
            place = if place + 1 == self.places.len() { 0 } else { place + 1 };
        }
    }

    fn key(&self, slot: u32) -> (u32, u32) {
        (self.owner(slot), self.unit[slot as usize])
    }

    fn link(&mut self, slot: u32) {
        let (owner, unit) = self.key(slot);
        let place = self.find(owner, unit).expect_err("a chunk has one slot");
        self.link_at(place, slot);
    }

    fn link_at(&mut self, place: usize, slot: u32) {
        let (owner, unit) = self.key(slot);
        self.places[place] = self.hash(owner, unit).1 | (slot + 1);
    }

    /// Removes a slot from the table, if it is there, and moves those behind it up.
    fn unlink(&mut self, slot: u32) {
        let (owner, unit) = self.key(slot);
        if self.find(owner, unit) != Ok(slot) {
            return;
        }
        let len = self.places.len();
        let low = ((1u64 << self.slot_bits) - 1) as u32;
        let mut hole = self.hash(owner, unit).0;
        while (self.places[hole] & low) != slot + 1 {
            hole = (hole + 1) % len;
        }
        let mut next = hole;
        loop {
            self.places[hole] = 0;
            loop {
                next = (next + 1) % len;
                let value = self.places[next];
                if value == 0 {
                    return;
                }
                let (owner, unit) = self.key((value & low) - 1);
                let home = self.hash(owner, unit).0;
                // The entry may move to the hole unless its home lies behind the hole.
                if (next + len - home) % len >= (next + len - hole) % len {
                    self.places[hole] = value;
                    hole = next;
                    break;
                }
            }
        }
    }

    // ---- pages of the map, and recovery ----

    /// Returns the pages that differ from those on the device. From now on they count as equal.
    pub(super) fn take_dirty(&mut self) -> Bits {
        let len = (self.owner.len() as u32).div_ceil(MAP_ENTRIES);
        core::mem::replace(&mut self.dirty, Bits::new(len))
    }

    /// Returns the entry of a slot for the device.
    pub(super) fn entry(&self, slot: u32) -> MapEntry {
        let valid = self.valid.get(slot as usize).copied().unwrap_or(0);
        let chunk = if valid == 0 { None } else { self.chunk(slot) };
        match chunk {
            Some(c) => MapEntry {
                group: c.group.0.into(),
                volume: c.unit.volume.0.into(),
                unit: c.unit.index.into(),
                valid: valid.into(),
                chunk: c.chunk,
                reserved: 0,
            },
            None => MapEntry::default(),
        }
    }

    /// Recovery: applies what the map on the device, or a record of the log, says about a slot.
    /// Returns true when the slot was free or held another chunk, whose blocks are removed. Lookups
    /// find nothing until [`UnitMap::index`].
    pub(super) fn recover(
        &mut self,
        slot: u32,
        chunk: Chunk,
        blocks: u16,
    ) -> Result<bool, TooManyOwners> {
        self.by_owner = None;
        let other = !self.is_of(slot, chunk);
        if other {
            if self.owner(slot) != FREE {
                self.give_back(slot);
            }
            let owner = self.recovered_owner(chunk).ok_or(TooManyOwners)?;
            self.assign(slot, owner, chunk);
        }
        self.valid[slot as usize] |= blocks;
        self.dirty.put(slot / MAP_ENTRIES, true);
        Ok(other)
    }

    /// True when the slot holds this chunk, and its owner was not dropped.
    fn is_of(&self, slot: u32, chunk: Chunk) -> bool {
        self.life(slot) == Life::Live && self.chunk(slot) == Some(chunk)
    }

    /// Returns the index of a chunk's owner. If no index is left, dropped owners are removed first,
    /// as a sweep did while the device was in use.
    fn recovered_owner(&mut self, chunk: Chunk) -> Option<u32> {
        let (group, volume) = (chunk.group, chunk.unit.volume);
        if let Some(owner) = self.owner_index(group, volume) {
            return Some(owner);
        }
        self.free_dropped();
        self.owner_index(group, volume)
    }

    /// Recovery: frees all slots of dropped owners.
    fn free_dropped(&mut self) {
        for slot in 0..self.owner.len() as u32 {
            if self.owner(slot) != FREE && self.is_dropped(slot) {
                self.valid[slot as usize] = 0;
                self.dirty.put(slot / MAP_ENTRIES, true);
                self.give_back(slot);
            }
        }
    }

    /// Recovery: marks blocks of a slot as holding no data.
    pub(super) fn recover_clear(&mut self, slot: u32, blocks: u16) {
        self.valid[slot as usize] &= !blocks;
        self.dirty.put(slot / MAP_ENTRIES, true);
        if self.valid[slot as usize] == 0 && self.owner(slot) != FREE {
            self.give_back(slot);
        }
    }

    /// Ends recovery: frees empty slots and those of dropped owners, and makes the others findable.
    /// Fails with a chunk that two slots claim: then the map can't be trusted.
    pub(super) fn index(&mut self) -> Result<(), Chunk> {
        self.free_dropped();
        for slot in 0..self.owner.len() as u32 {
            if self.owner(slot) == FREE {
                continue;
            }
            if self.valid[slot as usize] == 0 {
                self.give_back(slot);
                continue;
            }
            let (owner, unit) = self.key(slot);
            match self.find(owner, unit) {
                Ok(_) => return Err(self.chunk(slot).expect("it is taken")),
                Err(place) => self.link_at(place, slot),
            }
        }
        self.holes.mounted(self.taken.complement());
        let all = || 0..self.owner.len() as u32;
        let taken = || all().filter(|slot| self.owner(*slot) != FREE);
        let keys = || taken().map(|slot| (self.owner(slot) >> 4, self.unit[slot as usize]));
        self.by_owner = Some(UnitIndex::build(keys, self.owner.len() / LISTED + 1));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
