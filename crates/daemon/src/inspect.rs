//! The output of `gabion inspect --json`.
//!
//! This is an interface: fields are only added, never changed or removed. It is described in
//! `docs/reference/inspect.md`.

use anyhow::Result;
use base::{BLOCK, BlockSet, GroupId, VolumeId};
use rt::OfflineDevice;
use seam::{Buf, DiskError, DiskId, DiskOp, Effect, Effects, UnitStore};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use store::durable::layout::{self, Layout, NotGrown, PAGE, SLOT};
use store::durable::survey::{CopyState, Search};
use store::durable::{Content, Durable};

/// The version of this document's shape.
const SCHEMA: u32 = 1;

/// The four copies of the superblock: where each one should be, and what is there.
pub struct Copies(Search);

impl Copies {
    /// Reads the copies. One that can't be read is recorded as unreadable.
    pub fn read(drive: &mut OfflineDevice) -> Result<Copies> {
        let mut search = Search::new(drive.bytes());
        while let Some(at) = search.next() {
            let page = page(drive, at)?;
            search.take(page.as_deref().map_err(|error| *error));
        }
        Ok(Copies(search))
    }

    /// Returns the content of the newest intact copy.
    pub fn newest(&self) -> Option<&Content> {
        self.0.newest()
    }

    /// Returns true when there is no copy, not even a damaged one.
    pub fn are_missing(&self) -> bool {
        self.0.copies().all(|(_, state)| matches!(state, CopyState::Nothing))
    }

    /// Returns the copies that are not valid.
    pub fn damaged(&self) -> Vec<Superblock> {
        self.list().into_iter().filter(|c| c.state != "valid").collect()
    }

    fn list(&self) -> Vec<Superblock> {
        let copies = self.0.copies().enumerate();
        copies
            .map(|(copy, (at, state))| {
                let (state, content) = match state {
                    CopyState::Valid(content) => ("valid", Some(content)),
                    CopyState::Newer(_) => ("newer format", None),
                    CopyState::Level(_) => ("higher level", None),
                    CopyState::Unknown(_) => ("unknown features", None),
                    CopyState::Misfit => ("unknown areas", None),
                    CopyState::Damaged => ("damaged", None),
                    CopyState::Unreadable => ("unreadable", None),
                    CopyState::Nothing => ("missing", None),
                };
                Superblock {
                    copy,
                    at,
                    state,
                    checkpoint: content.map(|c| c.anchor.sequence),
                    life: content.map(|c| c.anchor.life),
                }
            })
            .collect()
    }
}

fn page(drive: &mut OfflineDevice, at: u64) -> Result<Result<Buf, DiskError>> {
    let mut out = Effects::new(drive.pool().clone(), base::Prng::new(0), None);
    out.push(Effect::Read { op: DiskOp(0), disk: DiskId(0), at, len: PAGE as u32 });
    drive.begin_all(&mut out);
    Ok(drive.wait()?.map_or(Err(DiskError::Io), |(_, result)| result))
}

/// The content of a device.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The version of this document's shape.
    pub schema: u32,
    /// The path of the device, as it was given.
    pub device: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// The copies of its superblock.
    pub superblocks: Vec<Superblock>,
    /// The identity in an intact superblock.
    pub identity: Option<Id>,
    /// Present if the device is larger than what is used of it.
    pub growth: Option<Growth>,
    /// Its areas, by their position.
    pub areas: Vec<Area>,
    /// Its log, if it could be mounted.
    pub log: Option<Log>,
    /// The use of its space, if it could be mounted.
    pub space: Option<Space>,
    /// Its data of each volume.
    pub volumes: Vec<Volume>,
    /// Its data of each group.
    pub groups: Vec<Group>,
    /// Why a server would refuse the device.
    pub error: Option<String>,
}

/// A copy of the superblock.
#[derive(Clone, Debug, Serialize)]
pub struct Superblock {
    /// Its number, from 0.
    pub copy: usize,
    /// Its position in bytes.
    pub at: u64,
    /// `valid`, or what is wrong with it.
    pub state: &'static str,
    /// The number of the checkpoint that it names.
    pub checkpoint: Option<u64>,
    /// The number of the mount that wrote it.
    pub life: Option<u64>,
}

/// The identity of a device.
#[derive(Clone, Debug, Serialize)]
pub struct Id {
    /// The cluster's id, in 16 hexadecimal digits.
    pub cluster: String,
    /// The device's id in the cluster.
    pub device: u32,
    /// The uuid of the device, in 32 hexadecimal digits.
    pub uuid: String,
    /// The version of its format.
    pub format: u32,
    /// Features of the format that it uses.
    pub features: Vec<String>,
    /// Number of mounts so far.
    pub life: u64,
}

/// How the next start of a server would use the device's size.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Growth {
    /// Bytes used now.
    pub from_bytes: u64,
    /// Bytes used after the next start.
    pub to_bytes: u64,
    /// Why the used size stays the same, if it does.
    pub refused: Option<&'static str>,
}

/// A range of the device.
#[derive(Clone, Debug, Serialize)]
pub struct Area {
    /// Its purpose.
    pub name: &'static str,
    /// 0 for an area from the format; else the number of the growth that added it.
    pub extent: usize,
    /// Its position in bytes.
    pub at: u64,
    /// Its length in bytes.
    pub bytes: u64,
}

/// The log.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Log {
    /// Its length in bytes.
    pub bytes: u64,
    /// Position of the oldest record that is still needed. Positions only rise.
    pub tail: u64,
    /// Position behind the newest record.
    pub head: u64,
    /// Batches between the two.
    pub batches: u64,
    /// Records between the two.
    pub records: u64,
    /// Bytes that a mount reads.
    pub replay_bytes: u64,
    /// Data in the log that is not in its place yet.
    pub waiting_bytes: u64,
    /// Records without their data. They were never acknowledged, and are ignored.
    pub dropped: u64,
}

/// The use of space.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Space {
    /// Bytes of all slots.
    pub capacity_bytes: u64,
    /// Bytes of the slots in use.
    pub used_bytes: u64,
    /// Bytes of the others.
    pub free_bytes: u64,
    /// Bytes in blocks that hold data; the rest of `used_bytes` is in partly filled slots.
    pub data_bytes: u64,
}

/// A device's part of a volume.
#[derive(Clone, Debug, Serialize)]
pub struct Volume {
    /// Its id.
    pub id: u32,
    /// Number of its units that have data here.
    pub units: u64,
    /// Bytes of the slots that they use.
    pub used_bytes: u64,
    /// Bytes in blocks that hold data.
    pub data_bytes: u64,
}

/// A device's part of a group, and its replication record.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Group {
    /// Its id.
    pub id: u32,
    /// Bytes of the slots that it uses.
    pub used_bytes: u64,
    /// The newest epoch in which this replica has acted.
    pub acted: u64,
    /// The base epoch of its dirty set.
    pub base: u64,
    /// Units with dirty blocks.
    pub dirty_units: usize,
    /// Bytes of dirty blocks.
    pub dirty_bytes: u64,
    /// Every block counts as dirty.
    pub all_dirty: bool,
    /// Length of its executed list.
    pub executed: usize,
}

impl Report {
    /// Makes the report. Without a store, it has only what the superblocks say.
    pub fn new(
        path: &Path,
        bytes: u64,
        copies: &Copies,
        store: Option<&Durable>,
        error: Option<String>,
    ) -> Report {
        let content = copies.newest();
        Report {
            schema: SCHEMA,
            device: path.display().to_string(),
            bytes,
            superblocks: copies.list(),
            identity: content.map(identity),
            growth: store.and_then(growth),
            areas: content.map_or_else(Vec::new, |c| areas(&c.layout)),
            log: store.map(log),
            space: store.map(space),
            volumes: store.map_or_else(Vec::new, volumes),
            groups: store.map_or_else(Vec::new, groups),
            error,
        }
    }
}

fn identity(content: &Content) -> Id {
    let Content { identity, anchor, .. } = content;
    let [high, low] = identity.uuid;
    Id {
        cluster: format!("{:016x}", identity.cluster.0),
        device: identity.device.0,
        uuid: format!("{high:016x}{low:016x}"),
        format: store::durable::format::FORMAT,
        features: (content.layout.extents.len() > 1).then(|| "grown".into()).into_iter().collect(),
        life: anchor.life,
    }
}

fn growth(store: &Durable) -> Option<Growth> {
    let found = store.growth();
    found.is_news().then(|| Growth {
        from_bytes: found.from,
        to_bytes: store.layout().size,
        refused: found.refused.map(NotGrown::why),
    })
}

/// Returns the areas in the order of their position.
fn areas(l: &Layout) -> Vec<Area> {
    let last = l.extents.len() - 1;
    let [root0, root1] = [("root 0", last, l.root[0]), ("root 1", last, l.root[1])];
    let records = [("records 0", 0, l.records[0]), ("records 1", 0, l.records[1])];
    let pages =
        l.extents.iter().enumerate().flat_map(|(i, e)| {
            [("map", i, e.map), ("checksums", i, e.sums), ("slots", i, e.slots)]
        });
    let all = [root0, root1].into_iter().chain(records).chain([("log", 0, l.log)]).chain(pages);
    let area = |(name, extent, a): (&'static str, usize, layout::Area)| Area {
        name,
        extent,
        at: a.at,
        bytes: a.len,
    };
    let mut areas: Vec<Area> = all.map(area).collect();
    areas.sort_by_key(|area| area.at);
    areas
}

fn log(store: &Durable) -> Log {
    let found = store.replayed();
    Log {
        bytes: store.layout().log.len,
        tail: found.tail,
        head: found.head,
        batches: found.batches,
        records: found.records,
        replay_bytes: found.head - found.tail,
        waiting_bytes: found.waiting,
        dropped: store.stats().dropped,
    }
}

fn space(store: &Durable) -> Space {
    let (capacity_bytes, used_bytes) = (store.capacity(), store.used());
    let data_bytes = volumes(store).iter().map(|v| v.data_bytes).sum();
    Space { capacity_bytes, used_bytes, free_bytes: capacity_bytes - used_bytes, data_bytes }
}

/// Returns the device's part of each volume, in the order of ids.
pub fn volumes(store: &Durable) -> Vec<Volume> {
    let mut all: BTreeMap<VolumeId, (BTreeSet<u32>, u64, u64)> = BTreeMap::new();
    for held in store.slots() {
        let (units, used, data) = all.entry(held.unit.volume).or_default();
        units.insert(held.unit.index);
        *used += SLOT;
        *data += u64::from(held.valid.count_ones() * BLOCK);
    }
    let volume = |(id, (units, used_bytes, data_bytes)): (VolumeId, (BTreeSet<u32>, u64, u64))| {
        Volume { id: id.0, units: units.len() as u64, used_bytes, data_bytes }
    };
    all.into_iter().map(volume).collect()
}

fn groups(store: &Durable) -> Vec<Group> {
    let mut all: BTreeMap<GroupId, Group> = BTreeMap::new();
    for held in store.slots() {
        all.entry(held.group).or_default().used_bytes += SLOT;
    }
    for (id, record) in store.records() {
        let group = all.entry(id).or_default();
        (group.acted, group.base) = (record.acted.0, record.base.0);
        group.dirty_units = record.dirty.units();
        group.dirty_bytes = record.dirty.bytes();
        (group.all_dirty, group.executed) = (record.all_dirty, record.executed.len());
    }
    all.into_iter().map(|(id, group)| Group { id: id.0, ..group }).collect()
}

/// Returns the bytes of the blocks in a set.
pub fn set_bytes(set: &BlockSet) -> u64 {
    let blocks: u32 = set.0.iter().map(|word| word.count_ones()).sum();
    u64::from(blocks) * u64::from(BLOCK)
}
