//! Mounting a device. A mount reads superblock, root, records, map and log. Then it makes a
//! checkpoint, so that the device comes into use with an empty log.
//!
//! A device that has become larger grows here: in memory as soon as its root was read, on the
//! device with that checkpoint. Until then nothing is in the new extent, so a crash leads back to
//! the old size.
//!
//! The first step is a flush: a process that was killed may have left a superblock in the device's
//! cache. Suppose that the mount took that superblock as the last one, and overwrote the copies
//! that it no longer names. A power loss would then bring the previous superblock back, but not
//! what that one names.
//!
//! There is one operation at a time until the checkpoint. Apart from copies of the superblock,
//! nothing is written before the log was read to its end. Later writes destroy nothing that a
//! second mount would need, so a crash while mounting leads to the same state.

use super::bits::Bits;
use super::error::MountError;
use super::format::MapEntry;
use super::groups::{Groups, Room};
use super::layout::{Layout, MAP_ENTRIES, PAGE, SMALLEST};
use super::pages::whole_copy;
use super::replay::Replay;
use super::search::Search;
use super::stats::Growth;
use super::store::Durable;
use super::superblock::{Content, CopyState};
use super::tuning::Tuning;
use super::unitmap::{Chunk, TooManyOwners, UnitMap};
use alloc::boxed::Box;
use alloc::vec::Vec;
use base::crc::crc32c;
use base::{ClusterId, DeviceId, GroupId, Mutant, UnitKey, VolumeId, mutant};
use seam::{Buf, DiskError, DiskId, DiskOp, Effect, Effects, UnitStore};
use zerocopy::FromBytes;

impl From<TooManyOwners> for MountError {
    fn from(_: TooManyOwners) -> MountError {
        MountError::TooManyOwners
    }
}

/// The caller's knowledge about the device.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// Cluster of the device. `None`: any (for an offline tool).
    pub cluster: Option<ClusterId>,
    /// Id of the device. `None`: any.
    pub device: Option<DeviceId>,
    /// The highest level of a cluster that this build knows.
    pub level_max: u32,
}

/// State of a mount after an operation has completed.
#[derive(Debug)]
pub enum Mounting {
    /// There is more to do.
    Running,
    /// The device can be used.
    Done(Box<Durable>),
    /// The device can't be mounted.
    Failed(MountError),
}

enum Step {
    Flush,
    Superblocks(Box<Search>),
    /// The superblock that counts, the other places that it has to be written to, and whether the
    /// flush after that is running.
    Mend(Content, Vec<u64>, bool),
    Root(Content),
    Records,
    Map(u32),
    Replay(Box<Replay>),
    Settle(Box<Durable>),
    Over,
}

/// The state that was read so far.
pub(super) struct Parts {
    pub disk: DiskId,
    pub tuning: Tuning,
    pub content: Content,
    pub growth: Growth,
    pub root: Vec<u32>,
    pub copies: Bits,
    pub map: UnitMap,
    pub groups: Groups,
}

impl Parts {
    /// Makes the state that follows from superblock and root on a device of `bytes`.
    fn new(
        disk: DiskId,
        bytes: u64,
        tuning: Tuning,
        mut content: Content,
        root: Vec<u32>,
    ) -> Parts {
        let before = content.layout.clone();
        let grown = before.grown(bytes);
        let growth = Growth { from: before.size, bytes, refused: grown.as_ref().err().copied() };
        content.layout = grown.unwrap_or(before.clone());
        let layout = &content.layout;
        let hole = layout.hole();
        let unused = layout.unused().filter(|s| Some(*s) == hole || !mutant::on(Mutant::GrownGap));
        Parts {
            disk,
            tuning,
            growth,
            root: root_of(&root, &before, layout),
            copies: Bits::new(layout.map_pages() + layout.sum_pages()),
            map: UnitMap::new(layout.slot_count(), unused),
            groups: Groups::new(Room::default()),
            content,
        }
    }
}

/// Returns the root of a device that may have grown. Its new pages were never written.
fn root_of(root: &[u32], before: &Layout, layout: &Layout) -> Vec<u32> {
    let (map, sums) = root.split_at(before.map_pages() as usize);
    let mut all = map.to_vec();
    all.resize(layout.map_pages() as usize, 0);
    all.extend_from_slice(sums);
    all.resize(all.len() + (layout.sum_pages() - before.sum_pages()) as usize, 0);
    all
}

/// A mount in progress.
pub struct Mount {
    disk: DiskId,
    bytes: u64,
    expected: Expected,
    tuning: Tuning,
    step: Step,
    parts: Option<Parts>,
    /// A range that is being read in pieces, and the bytes read so far.
    range: (u64, u64),
    got: Vec<u8>,
}

/// The longest read, in bytes.
const PIECE: u64 = 1 << 20;
/// A shorter device does not even have room for superblock 1.
const SHORTEST: u64 = 2 << 20;

impl Mount {
    /// Prepares the mount of a device of `bytes`.
    pub fn new(disk: DiskId, bytes: u64, expected: Expected, tuning: Tuning) -> Mount {
        let (range, got) = ((0, 0), Vec::new());
        let step = Step::Flush;
        Mount { disk, bytes, expected, tuning, step, parts: None, range, got }
    }

    /// Emits the first operation.
    pub fn start(&mut self, out: &mut Effects) -> Mounting {
        if self.bytes < SHORTEST {
            return self.failed(MountError::TooSmall { bytes: self.bytes, needed: SMALLEST });
        }
        out.push(Effect::Flush { op: DiskOp(0), disk: self.disk });
        Mounting::Running
    }

    /// Takes a completed operation, and emits the next one.
    pub fn disk_done(
        &mut self,
        op: DiskOp,
        result: Result<Buf, DiskError>,
        out: &mut Effects,
    ) -> Mounting {
        match self.go_on(op, result, out) {
            Ok(true) => match core::mem::replace(&mut self.step, Step::Over) {
                Step::Settle(store) => Mounting::Done(store),
                _ => unreachable!("only a store that has settled is done"),
            },
            Ok(false) => Mounting::Running,
            Err(error) => self.failed(error),
        }
    }

    fn failed(&mut self, error: MountError) -> Mounting {
        self.step = Step::Over;
        Mounting::Failed(error)
    }

    fn read(&mut self, at: u64, len: u64, out: &mut Effects) {
        out.push(Effect::Read { op: DiskOp(0), disk: self.disk, at, len: len as u32 });
    }

    /// Starts to read a range into `got`. Returns false when there is nothing to read.
    fn read_range(&mut self, at: u64, len: u64, out: &mut Effects) -> bool {
        self.range = (at, len);
        self.got.clear();
        self.more(out)
    }

    fn more(&mut self, out: &mut Effects) -> bool {
        let (at, len) = self.range;
        let done = self.got.len() as u64;
        if done < len {
            self.read(at + done, (len - done).min(PIECE).next_multiple_of(PAGE), out);
        }
        done < len
    }

    fn go_on(
        &mut self,
        op: DiskOp,
        result: Result<Buf, DiskError>,
        out: &mut Effects,
    ) -> Result<bool, MountError> {
        match &mut self.step {
            Step::Flush => {
                let what = "flushing the device";
                result.map_err(|error| MountError::Device { what, error })?;
                let search = Search::knowing(self.expected.level_max, self.bytes);
                let first = search.next().expect("nothing was looked at yet");
                self.step = Step::Superblocks(Box::new(search));
                self.read(first, PAGE, out);
                Ok(false)
            }
            Step::Superblocks(_) => self.superblock(result, out).map(|()| false),
            Step::Mend(_, _, flushing) => {
                // If a place can't be written, the other copies have to do.
                let what = "flushing the device";
                let done = result.map_err(|error| MountError::Device { what, error });
                done.map(drop).or_else(|error| if *flushing { Err(error) } else { Ok(()) })?;
                self.mend(out);
                Ok(false)
            }
            Step::Settle(store) => {
                store.disk_done(op, result, out);
                Self::settle(store, out)
            }
            Step::Replay(_) => self.replay(result, out),
            Step::Over => Ok(false),
            Step::Root(_) | Step::Records | Step::Map(_) => {
                let what = "reading the device";
                let data = result.map_err(|error| MountError::Device { what, error })?;
                self.got.extend_from_slice(&data);
                if self.more(out) {
                    return Ok(false);
                }
                self.got.truncate(self.range.1 as usize);
                self.range_read(out)
            }
        }
    }

    /// Takes a superblock. If it can't be read, the other copies have to do.
    fn superblock(
        &mut self,
        result: Result<Buf, DiskError>,
        out: &mut Effects,
    ) -> Result<(), MountError> {
        let Step::Superblocks(search) = &mut self.step else { unreachable!("checked") };
        search.take(result.as_deref().map_err(|error| *error));
        if let Some(at) = search.next() {
            self.read(at, PAGE, out);
            return Ok(());
        }
        let content = match search.choose() {
            Err(MountError::Unformatted) if self.bytes < SMALLEST => {
                return Err(MountError::TooSmall { bytes: self.bytes, needed: SMALLEST });
            }
            content => content?,
        };
        let Content { identity, layout, anchor, .. } = &content;
        if let Some(wanted) = self.expected.cluster.filter(|c| *c != identity.cluster) {
            return Err(MountError::OtherCluster { found: identity.cluster, wanted });
        }
        if let Some(wanted) = self.expected.device.filter(|d| *d != identity.device) {
            return Err(MountError::OtherDevice { found: identity.device, wanted });
        }
        // An older copy names a root that the next checkpoint overwrites, and a checkpoint writes
        // two copies at a time, so both may be torn. So all copies are made equal first.
        let (sequence, search) = (anchor.sequence, &*search);
        let same = |state: &CopyState| matches!(state, CopyState::Valid(c) if c.anchor.sequence == sequence);
        let others: Vec<u64> =
            search.copies().filter(|(_, state)| !same(state)).map(|(at, _)| at).collect();
        let fits = |at: &u64| layout.places().contains(at) && at + PAGE <= self.bytes;
        let stale: Vec<u64> = others.into_iter().filter(fits).collect();
        if stale.is_empty() {
            self.read_root(content, out);
        } else {
            self.step = Step::Mend(content, stale, false);
            self.mend(out);
        }
        Ok(())
    }

    /// Writes the superblock that counts to the next place, and flushes after the last one.
    fn mend(&mut self, out: &mut Effects) {
        let (op, disk) = (DiskOp(0), self.disk);
        match core::mem::replace(&mut self.step, Step::Over) {
            Step::Mend(content, mut places, false) => {
                let Some(at) = places.pop() else {
                    self.step = Step::Mend(content, places, true);
                    return out.push(Effect::Flush { op, disk });
                };
                let mut body = out.alloc(PAGE as usize);
                content.encode(body.as_mut());
                out.push(Effect::Write { op, disk, at, body, durable: false });
                self.step = Step::Mend(content, places, false);
            }
            Step::Mend(content, ..) => self.read_root(content, out),
            _ => unreachable!("the caller looked"),
        }
    }

    fn read_root(&mut self, content: Content, out: &mut Effects) {
        let Content { layout, anchor, .. } = &content;
        let (at, len) = (layout.root[(anchor.sequence & 1) as usize].at, layout.root_len() as u64);
        self.step = Step::Root(content);
        self.read_range(at, len, out);
    }

    fn range_read(&mut self, out: &mut Effects) -> Result<bool, MountError> {
        let damaged = |what| MountError::Damaged { what, at: self.range.0 };
        match &self.step {
            Step::Root(content) => {
                if crc32c(&self.got) != content.anchor.root_crc {
                    return Err(damaged("the root"));
                }
                let word = |b: &[u8]| u32::from_le_bytes(b.try_into().expect("four bytes"));
                let root = self.got.chunks_exact(4).map(word).collect();
                let parts = Parts::new(self.disk, self.bytes, self.tuning, content.clone(), root);
                let Content { layout, anchor, .. } = &parts.content;
                let at = layout.records[(anchor.sequence & 1) as usize].at;
                let len = anchor.records_len;
                self.parts = Some(parts);
                self.step = Step::Records;
                if self.read_range(at, len, out) {
                    return Ok(false);
                }
                self.range_read(out)
            }
            Step::Records => {
                let parts = self.parts.as_mut().expect("the root was read");
                let most = room(&parts.content.layout, self.tuning);
                let groups = Groups::decode(&self.got, most);
                match groups.filter(|_| crc32c(&self.got) == parts.content.anchor.records_crc) {
                    Some(groups) => parts.groups = groups,
                    None => return Err(damaged("the records of the replication")),
                }
                self.next_map(0, out)
            }
            _ => {
                let Step::Map(first) = self.step else { unreachable!("checked by the caller") };
                let parts = self.parts.as_mut().expect("the root was read");
                let next = take_map(parts, first, &self.got)?;
                self.next_map(next, out)
            }
        }
    }

    /// Reads map pages from `first` on, and skips those that were never written.
    fn next_map(&mut self, first: u32, out: &mut Effects) -> Result<bool, MountError> {
        let parts = self.parts.as_ref().expect("the root was read");
        let layout = &parts.content.layout;
        let pages = &parts.root[..layout.map_pages() as usize];
        let Some(skip) = pages[first as usize..].iter().position(|sum| *sum != 0) else {
            let parts = self.parts.take().expect("it is there");
            self.step = Step::Replay(Box::new(Replay::new(parts)));
            return self.replay(Ok(Buf::EMPTY), out);
        };
        let first = first + skip as u32;
        let most = first + (PIECE / (2 * PAGE)) as u32;
        let run = &pages[first as usize..layout.map_run_end(first).min(most) as usize];
        let len = run.iter().rposition(|sum| *sum != 0).expect("the first one") + 1;
        let at = layout.map_page(first);
        self.step = Step::Map(first);
        self.read_range(at, len as u64 * 2 * PAGE, out);
        Ok(false)
    }

    fn replay(
        &mut self,
        result: Result<Buf, DiskError>,
        out: &mut Effects,
    ) -> Result<bool, MountError> {
        let Step::Replay(replay) = &mut self.step else { unreachable!("checked by the caller") };
        let data = result.as_deref().map_err(|error| *error);
        if let Some((at, len)) = replay.go_on(data, out)? {
            self.read(at, len, out);
            return Ok(false);
        }
        let Step::Replay(replay) = core::mem::replace(&mut self.step, Step::Over) else {
            unreachable!("checked above")
        };
        let mut store = Box::new(Durable::new(replay.finish()?));
        let done = Self::settle(&mut store, out)?;
        self.step = Step::Settle(store);
        Ok(done)
    }

    fn settle(store: &mut Durable, out: &mut Effects) -> Result<bool, MountError> {
        store.flush(out);
        let what = "writing the first checkpoint";
        match store.failed() {
            Some(error) => Err(MountError::Device { what, error }),
            None => Ok(!store.is_checkpointing()),
        }
    }
}

/// Returns the room for records that memory and the records area allow.
fn room(layout: &Layout, tuning: Tuning) -> Room {
    Room::of(layout.records[0].len, tuning.dirty_units, tuning.executed)
}

/// Takes over pages of the map; `bytes` has both copies of each. Returns the page after them.
fn take_map(parts: &mut Parts, first: u32, bytes: &[u8]) -> Result<u32, MountError> {
    let uuid = parts.content.identity.uuid;
    let mut page = first;
    for both in bytes.chunks_exact(2 * PAGE as usize) {
        let wanted = parts.root[page as usize];
        let at = parts.content.layout.map_page(page);
        if wanted != 0 {
            let Some(copy) = whole_copy(both, wanted, uuid, at) else {
                return Err(MountError::Damaged { what: "a page of the map", at });
            };
            parts.copies.put(page, copy == 1);
            let entries = &both[copy * PAGE as usize..][..PAGE as usize];
            take_entries(parts, page, entries)?;
        }
        page += 1;
    }
    Ok(page)
}

fn take_entries(parts: &mut Parts, page: u32, bytes: &[u8]) -> Result<(), MountError> {
    let entries = <[MapEntry]>::ref_from_bytes(bytes).expect("a page is whole entries");
    for (slot, e) in (page * MAP_ENTRIES..).zip(entries) {
        if e.valid.get() == 0 {
            continue;
        }
        if !parts.content.layout.has_slot(slot) || e.chunk > 15 {
            let at = parts.content.layout.map_page(page);
            return Err(MountError::Damaged { what: "an entry of the map", at });
        }
        let unit = UnitKey { volume: VolumeId(e.volume.get()), index: e.unit.get() };
        let chunk = Chunk { group: GroupId(e.group.get()), unit, chunk: e.chunk };
        parts.map.recover(slot, chunk, e.valid.get())?;
    }
    Ok(())
}
