//! Replaying the log after a crash: which records count, and what state they leave.
//!
//! The log ends where no valid batch follows. If a later batch of the same mount is valid, the
//! batch before it was durable once and is damaged. The device is refused then, because going on
//! would lose acknowledged writes.
//!
//! A record counts when it is settled (a later batch says below which number all records are, and
//! names others), when a later record shows that its job had completed (the caller starts nothing
//! on the same blocks before that), or when the data that it put into fresh space is there. Other
//! records are dropped: they were never acknowledged. Data that can't be read may be there, and may
//! have been acknowledged. Its record counts, and reads of it find damage.

use super::error::MountError;
use super::format::{BATCH_MAGIC, BatchHead, NO_SLOT, batch_crc, block_sum};
use super::layout::{PAGE, SLOT_BLOCKS};
use super::log::{BATCH_BYTES, Log, longest_batch, place};
use super::mount::Parts;
use super::overlay::Overlay;
use super::record::{Part, Reader, Record, Write, WriteMode, read};
use super::stats::Replayed;
use super::store::Recovered;
use super::sums::Sums;
use super::superblock::LogStart;
use super::unitmap::Chunk;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use base::{BLOCK, BlockSet, GroupId, Mutant, UnitKey, mutant};
use seam::{Change, DiskError, Effects};
use zerocopy::FromBytes;
use zerocopy::byteorder::little_endian::U64;

/// The longest read, in bytes.
const PIECE: u64 = 1 << 20;
/// How far behind the log's end to look for a valid batch: as far as the missing batch can reach,
/// and the next one.
const BEHIND: u64 = 2 * (BATCH_BYTES as u64 + (2 << 20));

/// A record that is not applied yet.
struct Open {
    number: u64,
    record: Record,
    /// A later batch names it: it is settled. An unnamed one may not count.
    named: bool,
}

/// The replay of one log.
pub(super) struct Replay {
    parts: Parts,
    start: u64,
    next: LogStart,
    /// Bytes from `next.position` on.
    bytes: Vec<u8>,
    ended: bool,
    destaged: u64,
    /// The records from the first one on that is not known to be settled.
    open: VecDeque<Open>,
    /// Parts to compare with their data: index in `open`, index of the part.
    checks: VecDeque<(usize, usize)>,
    bad: BTreeSet<usize>,
    checking: bool,
    overlay: Overlay,
    sums: Sums,
    dropped: u64,
    batches: u64,
}

impl Replay {
    pub(super) fn new(mut parts: Parts) -> Replay {
        parts.map.take_dirty(); // the map equals the one on the device
        let next = parts.content.anchor.log;
        Replay {
            start: next.position,
            next,
            bytes: Vec::new(),
            ended: false,
            destaged: 0,
            open: VecDeque::new(),
            checks: VecDeque::new(),
            bad: BTreeSet::new(),
            checking: false,
            overlay: Overlay::default(),
            sums: Sums::new(parts.tuning.cached_pages.max(1)),
            dropped: 0,
            batches: 0,
            parts,
        }
    }

    /// Takes what was read last. Returns what to read next, as offset and length in bytes. `None`:
    /// everything was read.
    pub(super) fn go_on(
        &mut self,
        data: Result<&[u8], DiskError>,
        out: &mut Effects,
    ) -> Result<Option<(u64, u64)>, MountError> {
        if self.checking {
            self.check(data);
            return Ok(self.next_check());
        }
        let what = "reading the log";
        self.bytes.extend_from_slice(data.map_err(|error| MountError::Device { what, error })?);
        if !self.ended {
            if let Some(read) = self.take_batches(out)? {
                return Ok(Some(read));
            }
            self.ended = true;
        }
        if let Some(read) = self.more(BEHIND as usize) {
            return Ok(Some(read));
        }
        self.look_behind()?;
        self.bytes = Vec::new();
        self.plan_checks();
        self.checking = true;
        Ok(self.next_check())
    }

    /// Returns what to read until `wanted` bytes are there. `None`: they are, or the ring ends.
    fn more(&self, wanted: usize) -> Option<(u64, u64)> {
        let area = self.parts.content.layout.log;
        let at = self.next.position + self.bytes.len() as u64;
        let left = self.start + area.len - at;
        if self.bytes.len() >= wanted || left == 0 {
            return None;
        }
        let (place, room) = place(area, at);
        Some((place, room.min(left).min(PIECE)))
    }

    /// Takes batches from `bytes`. Returns what to read if the next one is incomplete. `None`: the
    /// log ends here.
    fn take_batches(&mut self, out: &mut Effects) -> Result<Option<(u64, u64)>, MountError> {
        let longest = longest_batch(self.parts.content.layout.log);
        let bytes = core::mem::take(&mut self.bytes);
        let mut rest = &bytes[..];
        let wanted = loop {
            let Ok((head, _)) = BatchHead::read_from_prefix(rest) else {
                break Some(PAGE as usize);
            };
            let len = head.len.get() as usize;
            if !self.is_next(&head) || len < size_of::<BatchHead>() || len > longest {
                break None;
            }
            let padded = len.next_multiple_of(PAGE as usize);
            if rest.len() < padded {
                break Some(padded);
            }
            let crc = batch_crc(&rest[..len], self.parts.content.identity.uuid);
            if crc != head.crc.get() && !mutant::on(Mutant::TornTail) {
                break None;
            }
            self.take_batch(&head, &rest[size_of::<BatchHead>()..len], out)?;
            self.next.position += padded as u64;
            self.next.chain = crc;
            rest = &rest[padded..];
        };
        let taken = bytes.len() - rest.len();
        self.bytes = bytes;
        self.bytes.drain(..taken);
        Ok(wanted.and_then(|wanted| self.more(wanted)))
    }

    fn is_next(&self, head: &BatchHead) -> bool {
        head.magic.get() == BATCH_MAGIC
            && head.life.get() == self.parts.content.anchor.life
            && head.position.get() == self.next.position
            && head.record.get() == self.next.record
            && (head.chain.get() == self.next.chain || mutant::on(Mutant::TornTail))
    }

    fn take_batch(
        &mut self,
        head: &BatchHead,
        body: &[u8],
        out: &mut Effects,
    ) -> Result<(), MountError> {
        let slots = self.parts.content.layout.slot_count();
        let mut from = Reader(body);
        let at = place(self.parts.content.layout.log, self.next.position).0;
        let damaged = MountError::Damaged { what: "a record of the log", at };
        for _ in 0..head.count.get() {
            let Some(record) = read(&mut from, slots, out.pool()) else { return Err(damaged) };
            self.open.push_back(Open { number: self.next.record, record, named: false });
            self.next.record += 1;
        }
        if self.take_names(head, from).is_none() {
            return Err(damaged);
        }
        self.batches += 1;
        self.destaged = self.destaged.max(head.destaged.get());
        while self.open.front().is_some_and(|open| open.number < head.settled.get()) {
            let open = self.open.pop_front().expect("it is there");
            self.apply(open.number, open.record)?;
        }
        self.overlay.forget_before(self.destaged);
        Ok(())
    }

    /// Takes the names of settled records, which end a batch. `None`: these are none.
    fn take_names(&mut self, head: &BatchHead, mut from: Reader<'_>) -> Option<()> {
        let first = self.open.front().map_or(self.next.record, |open| open.number);
        for _ in 0..head.named.get() {
            let name = from.take::<U64>()?.get();
            if name <= head.settled.get() || name >= head.record.get() {
                return None;
            }
            // The log may begin behind it.
            if let Some(i) = name.checked_sub(first) {
                self.open[i as usize].named = true;
            }
        }
        from.0.is_empty().then_some(())
    }

    /// Fails when a valid batch behind the end shows that the log did not end here.
    fn look_behind(&self) -> Result<(), MountError> {
        let anchor = self.parts.content.anchor;
        for at in (0..self.bytes.len()).step_by(PAGE as usize).skip(1) {
            let Ok((head, _)) = BatchHead::read_from_prefix(&self.bytes[at..]) else { break };
            let len = head.len.get() as usize;
            let named = head.magic.get() == BATCH_MAGIC
                && head.life.get() == anchor.life
                && head.position.get() == self.next.position + at as u64
                && (size_of::<BatchHead>()..=self.bytes.len() - at).contains(&len);
            let uuid = self.parts.content.identity.uuid;
            if named && batch_crc(&self.bytes[at..at + len], uuid) == head.crc.get() {
                let at = place(self.parts.content.layout.log, self.next.position).0;
                return Err(MountError::Damaged { what: "the log", at });
            }
        }
        Ok(())
    }

    // ---- records that may not count ----

    fn plan_checks(&mut self) {
        if mutant::on(Mutant::NoDataCheck) {
            return;
        }
        let mut later = Later::default();
        for (i, open) in self.open.iter().enumerate().rev() {
            let Record::Write(write) = &open.record else { continue };
            let settled = open.named && !mutant::on(Mutant::ForgetNamed);
            if !settled && !later.show_end(write) {
                let direct =
                    write.parts.iter().enumerate().filter(|(_, p)| p.way == WriteMode::Direct);
                direct.rev().for_each(|(part, _)| self.checks.push_front((i, part)));
            }
            later.add(write);
        }
    }

    fn part(&self, (record, part): (usize, usize)) -> (&Write, &Part) {
        let Record::Write(write) = &self.open[record].record else {
            unreachable!("planned for writes")
        };
        (write, &write.parts[part])
    }

    /// Returns the place of the data of the next part to compare.
    fn next_check(&self) -> Option<(u64, u64)> {
        let (_, part) = self.part(*self.checks.front()?);
        let (first, end) = (part.blocks.trailing_zeros(), 16 - part.blocks.leading_zeros());
        let at = self.parts.content.layout.slot(part.slot) + u64::from(first * BLOCK);
        Some((at, u64::from((end - first) * BLOCK)))
    }

    fn check(&mut self, data: Result<&[u8], DiskError>) {
        let Some(check) = self.checks.pop_front() else { return };
        let Ok(data) = data else { return };
        let (write, part) = self.part(check);
        let first = part.blocks.trailing_zeros();
        let good = part.each().all(|b| {
            let bytes = &data[((b - first) * BLOCK) as usize..][..BLOCK as usize];
            let block = u32::from(part.chunk) * SLOT_BLOCKS + b;
            block_sum(bytes, write.unit, block) == part.sums[b as usize]
        });
        if !good {
            self.bad.insert(check.0);
        }
    }

    // ---- effects of records ----

    fn apply(&mut self, number: u64, record: Record) -> Result<(), MountError> {
        match record {
            Record::Write(write) => {
                for part in &write.parts {
                    self.apply_part(number, &write, part)?;
                }
                self.parts.groups.wrote(&write);
            }
            Record::Drop(volume) => {
                self.parts.map.drop_owners(|_, v| v == volume);
                self.parts.groups.drop_volume(volume);
            }
            Record::Change(group, changes) => {
                for change in changes {
                    if matches!(change, Change::Wipe) {
                        self.parts.map.drop_owners(|g, _| g == group);
                    }
                    self.parts.groups.change(group, &change);
                }
            }
        }
        Ok(())
    }

    fn apply_part(&mut self, number: u64, write: &Write, part: &Part) -> Result<(), MountError> {
        let map = &mut self.parts.map;
        if part.way == WriteMode::Clear {
            if !mutant::on(Mutant::StaleValid) {
                map.recover_clear(part.slot, part.blocks);
                self.overlay.clear(part.slot, part.blocks);
            }
            return Ok(());
        }
        if part.old != NO_SLOT {
            map.recover_clear(part.old, u16::MAX);
            self.overlay.clear(part.old, u16::MAX);
        }
        let chunk = Chunk { group: write.group, unit: write.unit, chunk: part.chunk };
        if map.recover(part.slot, chunk, part.blocks)? {
            self.overlay.clear(part.slot, u16::MAX);
        }
        self.overlay.clear(part.slot, part.blocks);
        self.sums.put(part.slot, part.blocks, &part.sums);
        for (i, block) in part.each().enumerate() {
            if part.way == WriteMode::Inline && number >= self.destaged {
                self.overlay.put(part.slot, block, number, part.block(i));
            }
        }
        Ok(())
    }

    /// Returns the state that the log leaves.
    pub(super) fn finish(mut self) -> Result<Recovered, MountError> {
        let open = core::mem::take(&mut self.open);
        for (i, Open { number, record, named }) in open.into_iter().enumerate() {
            if self.bad.contains(&i) {
                assert!(!named || mutant::on(Mutant::ForgetNamed), "a named record is settled");
                self.dropped += 1;
            } else {
                self.apply(number, record)?;
            }
        }
        self.overlay.forget_before(self.destaged);
        let replayed = self.replayed();
        let Parts { disk, tuning, content, growth, root, copies, mut map, groups } = self.parts;
        if map.index().is_err() {
            let at = content.layout.map_page(0);
            return Err(MountError::Damaged { what: "the map (a unit has two slots)", at });
        }
        self.overlay.retain(|slot, block| map.valid(slot) >> block & 1 == 1);
        let head = LogStart { chain: 0, ..self.next };
        let uuid = content.identity.uuid;
        let log = Log::new(content.layout.log, uuid, content.anchor.life + 1, head);
        Ok(Recovered {
            disk,
            content,
            tuning,
            map,
            overlay: self.overlay,
            sums: self.sums,
            groups,
            log,
            root,
            copies,
            dropped: self.dropped,
            replayed,
            growth,
        })
    }

    fn replayed(&self) -> Replayed {
        Replayed {
            tail: self.start,
            head: self.next.position,
            batches: self.batches,
            records: self.next.record - self.parts.content.anchor.log.record,
            waiting: self.overlay.bytes() as u64,
        }
    }
}

/// The blocks that later writes touch.
#[derive(Default)]
struct Later {
    blocks: BTreeMap<(GroupId, UnitKey), BlockSet>,
    slots: BTreeSet<u32>,
}

impl Later {
    /// True when a later record shows that this write's job had completed: it touches the same
    /// blocks, or uses a slot that this write gave back.
    fn show_end(&self, write: &Write) -> bool {
        let touched = |set: &BlockSet| !set.and(write.touched()).is_empty();
        self.blocks.get(&(write.group, write.unit)).is_some_and(touched)
            || write.parts.iter().any(|p| self.slots.contains(&p.old))
    }

    fn add(&mut self, write: &Write) {
        self.blocks.entry((write.group, write.unit)).or_default().insert(write.touched());
        self.slots.extend(write.parts.iter().map(|p| p.slot));
    }
}
