//! Records of the log, in memory and as bytes.
//!
//! ```text
//! write    RecordHead, then per part: PartHead, one crc per block unless they are cleared,
//!          payload if inline; then the executed entries of its metadata
//! drop     RecordHead: the volume
//! change   RecordHead, then per change: ChangeHead, entries
//! ```
//! Every record is a delta whose last writer wins: see [`seam::record`]. A write names for each
//! slot its owner *and* the blocks that become valid, so no record depends on the one before it.

use super::format::{ChangeHead, DiskBlocks, DiskExecuted, NO_SLOT, PartHead, RecordHead};
use super::layout::{SLOT_BLOCKS, UNIT_CHUNKS};
use alloc::rc::Rc;
use alloc::vec::Vec;
use base::{
    BLOCK, BLOCKS_PER_UNIT, BlockSet, Epoch, GroupId, Incarnation, SdcId, UnitKey, VolumeId,
};
use seam::{Buf, BufPool, Change, ClientWrite, ExecutedBlocks, Origin, WriteMetadata};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

const WRITE: u8 = 1;
const DROP: u8 = 2;
const CHANGE: u8 = 3;
const FLAG_DIRTY: u8 = 1;
const FLAG_CLIENT: u8 = 2;
const FLAG_COPIED: u8 = 4;

/// How a part of a write gets to its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteMode {
    /// Straight to blocks that hold nothing, while the record goes to the log.
    Direct = 0,
    /// In the record. The data goes to the slot later.
    Inline = 1,
    /// Nothing is written to the slot: the blocks hold no data from now on.
    Clear = 2,
    /// Nothing is written to the slot: the data of the blocks is lost, and their new checksums
    /// match nothing.
    Lost = 3,
}

/// One slot's share of a write.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// The slot.
    pub slot: u32,
    /// The slot that it replaces, or `NO_SLOT`.
    pub old: u32,
    /// Index of the 64 KiB in the unit.
    pub chunk: u8,
    /// How the data gets to the slot.
    pub way: WriteMode,
    /// Blocks of the slot, lowest bit first.
    pub blocks: u16,
    /// Checksums, by block of the slot. Only those of `blocks` mean something.
    pub sums: [u32; SLOT_BLOCKS as usize],
    /// Data of the blocks, one after another.
    pub data: Buf,
}

impl Part {
    fn len(&self) -> usize {
        let n = self.blocks.count_ones() as usize;
        let per_block = match self.way {
            WriteMode::Direct | WriteMode::Lost => 4,
            WriteMode::Inline => 4 + BLOCK as usize,
            WriteMode::Clear => 0,
        };
        size_of::<PartHead>() + n * per_block
    }

    /// Returns the data of the `i`th block of [`Part::each`].
    pub(crate) fn block(&self, i: usize) -> Buf {
        let len = BLOCK as usize;
        self.data.slice(i * len..(i + 1) * len)
    }

    /// Iterates over the blocks, lowest first.
    pub(crate) fn each(&self) -> impl Iterator<Item = u32> + use<> {
        let blocks = self.blocks;
        (0..SLOT_BLOCKS).filter(move |b| blocks >> b & 1 == 1)
    }
}

/// A write, zero or loss of blocks in one unit.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    /// The group.
    pub group: GroupId,
    /// The unit.
    pub unit: UnitKey,
    /// The first block that it touches.
    pub first: u32,
    /// The block after the last one.
    pub end: u32,
    /// Its metadata.
    pub marks: WriteMetadata,
    /// Its effect on each slot.
    pub parts: Vec<Part>,
}

impl Write {
    /// Returns the blocks that it touches.
    pub(crate) fn touched(&self) -> BlockSet {
        BlockSet::from_range(self.first..self.end)
    }

    /// True when its metadata says anything about the blocks.
    pub(crate) fn is_marked(&self) -> bool {
        self.marks.dirty || !matches!(self.marks.origin, Origin::Unnamed)
    }

    /// True when data of it goes straight to slots.
    pub(crate) fn has_direct(&self) -> bool {
        self.parts.iter().any(|p| p.way == WriteMode::Direct)
    }

    /// Returns the number of payload bytes.
    pub(crate) fn inline_bytes(&self) -> usize {
        let inline = self.parts.iter().filter(|p| p.way == WriteMode::Inline);
        inline.map(|p| p.blocks.count_ones() as usize * BLOCK as usize).sum()
    }
}

/// One record.
#[derive(Clone, Debug)]
pub(crate) enum Record {
    /// See [`Write`].
    Write(Write),
    /// A volume was dropped.
    Drop(VolumeId),
    /// A group's record changes.
    Change(GroupId, Vec<Change>),
}

/// Returns the length of a write as a record, in bytes.
pub(crate) fn write_len(w: &Write) -> usize {
    let executed = match &w.marks.origin {
        Origin::Unnamed => 0,
        Origin::Client(_) => 1,
        Origin::Copied(list) => list.len(),
    };
    let parts: usize = w.parts.iter().map(Part::len).sum();
    size_of::<RecordHead>() + parts + executed * size_of::<DiskExecuted>()
}

/// Returns the length of changes as a record, in bytes.
pub(crate) fn change_len(changes: &[Change]) -> usize {
    let len = |c: &Change| match c {
        Change::Dirty(list) | Change::Clean(list) => list.len() * size_of::<DiskBlocks>(),
        Change::Executed(list) | Change::Forgotten(list) => list.len() * size_of::<DiskExecuted>(),
        _ => 0,
    };
    let changes = changes.iter().map(|c| size_of::<ChangeHead>() + len(c));
    size_of::<RecordHead>() + changes.sum::<usize>()
}

/// Length of a drop as a record, in bytes.
pub(crate) const DROP_LEN: usize = size_of::<RecordHead>();

/// A cursor for encoding.
pub(crate) struct Writer<'a> {
    bytes: &'a mut [u8],
    /// Number of bytes written so far.
    pub at: usize,
}

impl<'a> Writer<'a> {
    /// Starts to write at the beginning of `bytes`.
    pub(crate) fn new(bytes: &'a mut [u8]) -> Writer<'a> {
        Writer { bytes, at: 0 }
    }

    /// Appends bytes.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    /// Appends a struct.
    pub(crate) fn add<T: IntoBytes + Immutable>(&mut self, value: &T) {
        self.put(value.as_bytes());
    }
}

/// Encodes blocks of a unit.
pub(crate) fn disk_blocks(unit: UnitKey, blocks: BlockSet) -> DiskBlocks {
    DiskBlocks {
        volume: unit.volume.0.into(),
        unit: unit.index.into(),
        blocks: blocks.0.map(Into::into),
    }
}

/// Encodes an executed entry.
pub(crate) fn disk_executed(e: &ExecutedBlocks) -> DiskExecuted {
    DiskExecuted {
        sdc: e.write.sdc.0.into(),
        reserved: 0.into(),
        incarnation: e.write.incarnation.0.into(),
        seq: e.write.seq.into(),
        floor: e.write.floor.into(),
        blocks: disk_blocks(e.unit, e.blocks),
    }
}

/// Appends a write.
pub(crate) fn put_write(w: &Write, to: &mut Writer<'_>) {
    let mut head = RecordHead::new_zeroed();
    head.len = (write_len(w) as u32).into();
    head.kind = WRITE;
    head.parts = (w.parts.len() as u16).into();
    (head.group, head.volume, head.unit) =
        (w.group.0.into(), w.unit.volume.0.into(), w.unit.index.into());
    (head.first, head.end) = ((w.first as u16).into(), (w.end as u16).into());
    head.flags = if w.marks.dirty { FLAG_DIRTY } else { 0 };
    match &w.marks.origin {
        Origin::Unnamed => {}
        Origin::Client(_) => (head.flags, head.executed) = (head.flags | FLAG_CLIENT, 1.into()),
        Origin::Copied(list) => {
            head.flags |= FLAG_COPIED;
            head.executed = (list.len() as u32).into();
        }
    }
    to.add(&head);
    w.parts.iter().for_each(|p| put_part(p, to));
    match &w.marks.origin {
        Origin::Unnamed => {}
        Origin::Client(write) => {
            let (unit, blocks) = (w.unit, w.touched());
            to.add(&disk_executed(&ExecutedBlocks { write: *write, unit, blocks }));
        }
        Origin::Copied(list) => list.iter().for_each(|e| to.add(&disk_executed(e))),
    }
}

fn put_part(p: &Part, to: &mut Writer<'_>) {
    to.add(&PartHead {
        slot: p.slot.into(),
        old: p.old.into(),
        chunk: p.chunk,
        way: p.way as u8,
        blocks: p.blocks.into(),
        reserved: 0.into(),
    });
    if p.way != WriteMode::Clear {
        p.each().for_each(|b| to.put(&p.sums[b as usize].to_le_bytes()));
    }
    if p.way == WriteMode::Inline {
        to.put(&p.data);
    }
}

/// Appends a drop.
pub(crate) fn put_drop(volume: VolumeId, to: &mut Writer<'_>) {
    let mut head = RecordHead::new_zeroed();
    (head.len, head.kind, head.volume) = ((DROP_LEN as u32).into(), DROP, volume.0.into());
    to.add(&head);
}

/// Appends changes.
pub(crate) fn put_changes(group: GroupId, changes: &[Change], to: &mut Writer<'_>) {
    let mut head = RecordHead::new_zeroed();
    (head.len, head.kind) = ((change_len(changes) as u32).into(), CHANGE);
    (head.group, head.parts) = (group.0.into(), (changes.len() as u16).into());
    to.add(&head);
    for change in changes {
        let (kind, entries, epoch) = match change {
            Change::Acted(e) => (1, 0, e.0),
            Change::ActedAsJoiner(e) => (1, 1, e.0),
            Change::Base(e) => (2, 0, e.0),
            Change::Dirty(list) => (3, list.len(), 0),
            Change::Clean(list) => (4, list.len(), 0),
            Change::CleanAll => (5, 0, 0),
            Change::Executed(list) => (6, list.len(), 0),
            Change::Wipe => (7, 0, 0),
            Change::Forgotten(list) => (8, list.len(), 0),
        };
        let (kind, entries) = (kind.into(), (entries as u32).into());
        to.add(&ChangeHead { kind, entries, epoch: epoch.into() });
        match change {
            Change::Dirty(list) | Change::Clean(list) => {
                list.iter().for_each(|(unit, blocks)| to.add(&disk_blocks(*unit, *blocks)));
            }
            Change::Executed(list) | Change::Forgotten(list) => {
                list.iter().for_each(|e| to.add(&disk_executed(e)));
            }
            _ => {}
        }
    }
}

/// A cursor for decoding. It checks everything: `None` means that the bytes are no record.
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// Takes the next struct.
    pub(crate) fn take<T: FromBytes + Immutable + KnownLayout + Unaligned>(
        &mut self,
    ) -> Option<&'a T> {
        let (value, rest) = T::ref_from_prefix(self.0).ok()?;
        self.0 = rest;
        Some(value)
    }

    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }
}

/// Decodes blocks of a unit.
pub(crate) fn blocks_of(b: &DiskBlocks) -> (UnitKey, BlockSet) {
    let unit = UnitKey { volume: VolumeId(b.volume.get()), index: b.unit.get() };
    (unit, BlockSet(b.blocks.map(|w| w.get())))
}

/// Decodes an executed entry.
pub(crate) fn executed_of(e: &DiskExecuted) -> ExecutedBlocks {
    let (unit, blocks) = blocks_of(&e.blocks);
    let write = ClientWrite {
        sdc: SdcId(e.sdc.get()),
        incarnation: Incarnation(e.incarnation.get()),
        seq: e.seq.get(),
        floor: e.floor.get(),
    };
    ExecutedBlocks { write, unit, blocks }
}

fn list<T, D>(n: usize, from: &mut Reader<'_>, make: impl Fn(&D) -> T) -> Option<Vec<T>>
where
    D: FromBytes + Immutable + KnownLayout + Unaligned + 'static,
{
    if n > from.0.len() / size_of::<D>() {
        return None;
    }
    (0..n).map(|_| from.take::<D>().map(&make)).collect()
}

/// Reads the next record. `None`: there is no whole one.
pub(crate) fn read(from: &mut Reader<'_>, slots: u32, pool: &BufPool) -> Option<Record> {
    let len = RecordHead::ref_from_prefix(from.0).ok()?.0.len.get() as usize;
    let mut body = Reader(from.bytes(len)?);
    let head = body.take::<RecordHead>()?;
    let record = match head.kind {
        WRITE => Record::Write(read_write(head, &mut body, slots, pool)?),
        DROP => Record::Drop(VolumeId(head.volume.get())),
        CHANGE => {
            let changes = (0..head.parts.get()).map(|_| read_change(&mut body));
            Record::Change(GroupId(head.group.get()), changes.collect::<Option<_>>()?)
        }
        _ => return None,
    };
    body.0.is_empty().then_some(record)
}

fn read_write(
    head: &RecordHead,
    body: &mut Reader<'_>,
    slots: u32,
    pool: &BufPool,
) -> Option<Write> {
    let parts = (0..head.parts.get()).map(|_| read_part(body, slots, pool));
    let parts: Vec<Part> = parts.collect::<Option<_>>()?;
    let executed = list(head.executed.get() as usize, body, executed_of)?;
    let origin = match head.flags & !FLAG_DIRTY {
        0 => Origin::Unnamed,
        FLAG_CLIENT => Origin::Client(executed.first()?.write),
        FLAG_COPIED => Origin::Copied(Rc::from(executed)),
        _ => return None,
    };
    let (first, end) = (u32::from(head.first.get()), u32::from(head.end.get()));
    let unit = UnitKey { volume: VolumeId(head.volume.get()), index: head.unit.get() };
    let marks = WriteMetadata { dirty: head.flags & FLAG_DIRTY != 0, origin };
    let group = GroupId(head.group.get());
    let fits = first < end && end <= BLOCKS_PER_UNIT;
    fits.then_some(Write { group, unit, first, end, marks, parts })
}

fn read_part(body: &mut Reader<'_>, slots: u32, pool: &BufPool) -> Option<Part> {
    let head = body.take::<PartHead>()?;
    let way = match head.way {
        0 => WriteMode::Direct,
        1 => WriteMode::Inline,
        2 => WriteMode::Clear,
        3 => WriteMode::Lost,
        _ => return None,
    };
    let (slot, old, blocks) = (head.slot.get(), head.old.get(), head.blocks.get());
    let known = slot < slots && (old < slots || old == NO_SLOT);
    if !known || blocks == 0 || u32::from(head.chunk) >= UNIT_CHUNKS {
        return None;
    }
    let (data, sums) = (Buf::EMPTY, [0; SLOT_BLOCKS as usize]);
    let mut part = Part { slot, old, chunk: head.chunk, way, blocks, sums, data };
    if way != WriteMode::Clear {
        for b in part.each() {
            let sum = body.bytes(4)?.try_into().expect("four bytes");
            part.sums[b as usize] = u32::from_le_bytes(sum);
        }
    }
    if way == WriteMode::Inline {
        part.data = pool.copy(body.bytes(blocks.count_ones() as usize * BLOCK as usize)?);
    }
    Some(part)
}

fn read_change(body: &mut Reader<'_>) -> Option<Change> {
    let head = body.take::<ChangeHead>()?;
    let (n, epoch) = (head.entries.get() as usize, Epoch(head.epoch.get()));
    Some(match head.kind.get() {
        1 if n == 0 => Change::Acted(epoch),
        1 if n == 1 => Change::ActedAsJoiner(epoch),
        2 => Change::Base(epoch),
        3 => Change::Dirty(list(n, body, blocks_of)?),
        4 => Change::Clean(list(n, body, blocks_of)?),
        5 => Change::CleanAll,
        6 => Change::Executed(list(n, body, executed_of)?),
        7 => Change::Wipe,
        8 => Change::Forgotten(list(n, body, executed_of)?),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(len: usize, put: impl Fn(&mut Writer<'_>)) -> Vec<u8> {
        let mut bytes = alloc::vec![0; len];
        put(&mut Writer::new(&mut bytes));
        bytes
    }

    fn is_read(bytes: &[u8]) -> bool {
        read(&mut Reader(bytes), 100, &BufPool::new(1 << 20)).is_some()
    }

    #[test]
    fn values_that_this_build_does_not_know_are_not_taken_for_others() {
        let changes = [Change::Acted(Epoch(5))];
        let mut acted = bytes(change_len(&changes), |to| put_changes(GroupId(1), &changes, to));
        assert!(is_read(&acted));
        let head = ChangeHead { kind: 1.into(), entries: 2.into(), epoch: 5.into() };
        acted[size_of::<RecordHead>()..].copy_from_slice(head.as_bytes());
        assert!(!is_read(&acted), "a change of epochs with two entries");
        let mut drop = bytes(DROP_LEN, |to| put_drop(VolumeId(1), to));
        let mut head = RecordHead::read_from_bytes(&drop).unwrap();
        (head.kind, head.end) = (WRITE, 1.into());
        for (flags, known) in [(0, true), (FLAG_DIRTY, true), (8, false), (FLAG_DIRTY | 128, false)]
        {
            head.flags = flags;
            drop.copy_from_slice(head.as_bytes());
            assert_eq!(is_read(&drop), known, "flags {flags}");
        }
    }
}
