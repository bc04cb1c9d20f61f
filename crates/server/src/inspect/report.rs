//! What `gabion inspect --json` prints. An interface: fields are only added, never changed or taken away.
//! Described in `docs/reference/inspect.md`.

use super::name;
use anyhow::Result;
use base::{BLOCK, BlockSet, GroupId, VolumeId};
use rt::Drive;
use seam::{DiskId, DiskOp, Effect, Effects, Journal};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use store::durable::layout::{Layout, PAGE, SLOT};
use store::durable::survey::{CopyState, look};
use store::durable::{Content, Durable};

/// The version of this document's shape.
const SCHEMA: u32 = 1;

/// The four copies of the superblock: where each should be, and what is there.
pub struct Copies(pub [(u64, CopyState); 4]);

impl Copies {
    /// Reads them; a copy that can't be read counts as not there.
    pub fn read(drive: &mut Drive) -> Result<Copies> {
        // The first two lie in the same place whatever the size is, and tell it.
        let [first, second, ..] = Layout::superblocks(drive.bytes());
        let (first, second) = (copy(drive, first)?, copy(drive, second)?);
        let told = [&first.1, &second.1].into_iter().find_map(|state| match state {
            CopyState::Valid(content) => Some(content.layout.size),
            _ => None,
        });
        let [_, _, middle, last] = Layout::superblocks(told.unwrap_or(drive.bytes()));
        Ok(Copies([first, second, copy(drive, middle)?, copy(drive, last)?]))
    }

    /// What the newest whole one says.
    pub fn newest(&self) -> Option<&Content> {
        let contents = self.0.iter().filter_map(|(_, state)| match state {
            CopyState::Valid(content) => Some(content),
            _ => None,
        });
        contents.max_by_key(|c| c.anchor.sequence)
    }

    /// Copies that should be whole and are not: number and place.
    pub fn damaged(&self) -> Vec<Superblock> {
        self.list().into_iter().filter(|c| c.state != "valid").collect()
    }

    fn list(&self) -> Vec<Superblock> {
        let copies = self.0.iter().enumerate();
        copies
            .map(|(copy, (at, state))| {
                let (state, content) = match state {
                    CopyState::Valid(content) => ("valid", Some(content)),
                    CopyState::Newer(_) => ("newer format", None),
                    CopyState::Unknown(_) => ("unknown features", None),
                    CopyState::Damaged => ("damaged", None),
                    CopyState::Nothing => ("missing", None),
                };
                Superblock {
                    copy,
                    at: *at,
                    state,
                    checkpoint: content.map(|c| c.anchor.sequence),
                    life: content.map(|c| c.anchor.life),
                }
            })
            .collect()
    }
}

fn copy(drive: &mut Drive, at: u64) -> Result<(u64, CopyState)> {
    let mut out = Effects::new(drive.pool().clone(), base::Prng::new(0), None);
    out.push(Effect::Read { op: DiskOp(0), disk: DiskId(0), at, len: PAGE as u32 });
    drive.begin_all(&mut out);
    let ended = drive.wait()?.and_then(|(_, result)| result.ok());
    Ok((at, look(ended.as_deref().unwrap_or_default())))
}

/// What is on a device.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub schema: u32,
    pub device: String,
    pub bytes: u64,
    pub superblocks: Vec<Superblock>,
    pub identity: Option<Id>,
    pub areas: Vec<Area>,
    pub log: Option<Log>,
    pub space: Option<Space>,
    pub volumes: Vec<Volume>,
    pub groups: Vec<Group>,
    /// Why a server would refuse it.
    pub error: Option<String>,
}

/// A copy of the superblock.
#[derive(Clone, Debug, Serialize)]
pub struct Superblock {
    pub copy: usize,
    pub at: u64,
    pub state: &'static str,
    pub checkpoint: Option<u64>,
    pub life: Option<u64>,
}

/// Which device it is.
#[derive(Clone, Debug, Serialize)]
pub struct Id {
    pub cluster: String,
    pub device: u32,
    pub uuid: String,
    pub format: u32,
    pub features: Vec<String>,
    /// Mounts so far.
    pub life: u64,
}

/// A stretch of the device.
#[derive(Clone, Debug, Serialize)]
pub struct Area {
    pub name: &'static str,
    pub at: u64,
    pub bytes: u64,
}

/// The log.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Log {
    pub bytes: u64,
    /// Positions, which only rise.
    pub tail: u64,
    pub head: u64,
    pub batches: u64,
    pub records: u64,
    /// What a mount reads.
    pub replay_bytes: u64,
    /// Data in the log that is not in its place yet.
    pub waiting_bytes: u64,
    /// Records without their data: never acknowledged, and dropped.
    pub dropped: u64,
}

/// What is taken.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Space {
    pub capacity_bytes: u64,
    pub used_bytes: u64,
    pub free_bytes: u64,
    /// Blocks that hold data; the rest of `used_bytes` is in slots that are not full.
    pub data_bytes: u64,
}

/// What is here of a volume.
#[derive(Clone, Debug, Serialize)]
pub struct Volume {
    pub id: u32,
    pub units: u64,
    pub used_bytes: u64,
    pub data_bytes: u64,
}

/// What is here of a group, and what the replication remembers of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Group {
    pub id: u32,
    pub used_bytes: u64,
    pub acted: u64,
    pub base: u64,
    pub dirty_units: usize,
    pub dirty_bytes: u64,
    pub all_dirty: bool,
    pub executed: usize,
}

impl Report {
    /// What is known of a device; without a store, what its superblocks say.
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
            device: name(path),
            bytes,
            superblocks: copies.list(),
            identity: content.map(identity),
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
        features: Vec::new(),
        life: anchor.life,
    }
}

fn areas(l: &Layout) -> Vec<Area> {
    let all = [
        ("root 0", l.root[0]),
        ("root 1", l.root[1]),
        ("records 0", l.records[0]),
        ("records 1", l.records[1]),
        ("log", l.log),
        ("map", l.map),
        ("checksums", l.sums),
        ("slots", l.slots),
    ];
    all.into_iter().map(|(name, a)| Area { name, at: a.at, bytes: a.len }).collect()
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

/// What is here of each volume, in order.
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
        group.dirty_units = record.dirty.len();
        group.dirty_bytes = record.dirty.values().map(set_bytes).sum();
        (group.all_dirty, group.executed) = (record.all_dirty, record.executed.len());
    }
    all.into_iter().map(|(id, group)| Group { id: id.0, ..group }).collect()
}

/// Bytes of the blocks in a set.
pub fn set_bytes(set: &BlockSet) -> u64 {
    let blocks: u32 = set.0.iter().map(|word| word.count_ones()).sum();
    u64::from(blocks) * u64::from(BLOCK)
}
