//! Content of a superblock, and its encoding.
//!
//! A checkpoint writes copies 0 and 2, flushes, writes copies 1 and 3, and flushes again, so two
//! copies are whole at every moment. `search` knows where the copies are, and which one counts.

use super::format::{DiskArea, FORMAT, GROWN, MAGIC, SUPERBLOCK_BYTES, Superblock, superblock_crc};
use super::layout::{Area, GROWTHS, Layout, PAGE};
use base::{ClusterId, DeviceId, Mutant, level, mutant};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Identity of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster that the device belongs to.
    pub cluster: ClusterId,
    /// Its id in the cluster.
    pub device: DeviceId,
    /// Drawn at random when the device is formatted.
    pub uuid: [u64; 2],
}

/// The fields that a checkpoint writes into the superblock: which root and records count, and the
/// log's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckpointHead {
    /// Number of the checkpoint. Its lowest bit says which copy of root and records counts.
    pub sequence: u64,
    /// Number of the mount.
    pub life: u64,
    /// Where the log begins.
    pub log: LogStart,
    /// CRC-32C of the root.
    pub root_crc: u32,
    /// Length of the records in bytes.
    pub records_len: u64,
    /// CRC-32C of the records.
    pub records_crc: u32,
}

/// A position in the log between two batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStart {
    /// The position. Positions only rise.
    pub position: u64,
    /// Number of the first record after it.
    pub record: u64,
    /// CRC of the batch before it.
    pub chain: u32,
}

/// The content of a superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// Which device this is.
    pub identity: Identity,
    /// Where everything lies.
    pub layout: Layout,
    /// The last checkpoint.
    pub anchor: CheckpointHead,
    /// The level of the cluster.
    pub level: u32,
}

/// Returns the layout as a superblock stores it: the areas, and the range that each growth added.
fn table(l: &Layout) -> ([DiskArea; 8], [DiskArea; GROWTHS]) {
    let disk = |a: Area| DiskArea { at: a.at.into(), len: a.len.into() };
    let first = &l.extents[0];
    let areas = [l.root[0], l.root[1], l.records[0], l.records[1], l.log];
    let areas = [&areas[..], &[first.map, first.sums, first.slots]].concat();
    let mut growths = [DiskArea::default(); GROWTHS];
    for (to, pair) in growths.iter_mut().zip(l.extents.windows(2)) {
        let (at, end) = (pair[0].end, pair[1].end);
        *to = disk(Area { at, len: end - at });
    }
    (core::array::from_fn(|i| disk(areas[i])), growths)
}

/// Returns the layout that a superblock describes. `None`: this build would lay it out differently.
fn layout(sb: &Superblock) -> Option<Layout> {
    let grown = || sb.growths.iter().take_while(|a| a.len.get() != 0);
    let first = grown().next().map_or(sb.size.get(), |a| a.at.get());
    let mut layout = Layout::new(first).ok()?;
    for area in grown() {
        layout = layout.extended(area.at.get().checked_add(area.len.get())?)?;
    }
    let same = table(&layout) == (sb.areas, sb.growths) && layout.size == sb.size.get();
    same.then_some(layout)
}

impl Content {
    /// Writes the superblock into a page.
    pub fn encode(&self, page: &mut [u8]) {
        let Content { identity, layout, anchor, level } = self;
        let mut sb = Superblock::new_zeroed();
        sb.magic = MAGIC;
        let features = if layout.extents.len() > 1 { GROWN } else { 0 };
        let needed = level::of_features(features).expect("this build knows what it writes");
        assert!(needed <= *level, "features {features:#x} need level {needed}");
        sb.level = if *level > level::FIRST { *level } else { 0 }.into();
        (sb.format, sb.features) = (FORMAT.into(), features.into());
        (sb.cluster, sb.device) = (identity.cluster.0.into(), identity.device.0.into());
        sb.uuid = identity.uuid.map(Into::into);
        (sb.size, sb.sequence, sb.life) =
            (layout.size.into(), anchor.sequence.into(), anchor.life.into());
        sb.log_position = anchor.log.position.into();
        (sb.log_record, sb.log_chain) = (anchor.log.record.into(), anchor.log.chain.into());
        sb.root_crc = anchor.root_crc.into();
        sb.records_len = anchor.records_len.into();
        sb.records_crc = anchor.records_crc.into();
        (sb.areas, sb.growths) = table(layout);
        page[..PAGE as usize].fill(0);
        page[..size_of::<Superblock>()].copy_from_slice(sb.as_bytes());
        let crc = superblock_crc(page);
        page[12..16].copy_from_slice(&crc.to_le_bytes());
    }

    fn decode(sb: &Superblock) -> Option<Content> {
        Some(Content {
            identity: Identity {
                cluster: ClusterId(sb.cluster.get()),
                device: DeviceId(sb.device.get()),
                uuid: sb.uuid.map(|w| w.get()),
            },
            layout: layout(sb)?,
            anchor: CheckpointHead {
                sequence: sb.sequence.get(),
                life: sb.life.get(),
                log: LogStart {
                    position: sb.log_position.get(),
                    record: sb.log_record.get(),
                    chain: sb.log_chain.get(),
                },
                root_crc: sb.root_crc.get(),
                records_len: sb.records_len.get(),
                records_crc: sb.records_crc.get(),
            },
            level: sb.level.get().max(level::FIRST),
        })
    }
}

/// The state of one copy of the superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // four of them, on the stack
pub enum CopyState {
    /// The copy is whole.
    Valid(Content),
    /// A newer build wrote it, in this format.
    Newer(u32),
    /// It is of a cluster of this level, which this build does not know.
    Level(u32),
    /// A newer build wrote it, with these features that this build doesn't know.
    Unknown(u64),
    /// The copy is whole, but this build would not make its table of areas.
    Misfit,
    /// The copy has our magic, but its checksum is wrong.
    Damaged,
    /// The device failed to read it.
    Unreadable,
    /// There is no superblock here, or not one of this device.
    Nothing,
}

/// Classifies a page that lies where a copy of the superblock should be, as this release does.
pub fn look(page: &[u8]) -> CopyState {
    look_as(page, level::LEVEL)
}

/// Classifies such a page, as a build does that knows levels up to this one.
pub(super) fn look_as(page: &[u8], level_max: u32) -> CopyState {
    let Ok((sb, _)) = Superblock::ref_from_prefix(page) else { return CopyState::Nothing };
    if sb.magic != MAGIC || page.len() < SUPERBLOCK_BYTES {
        return CopyState::Nothing;
    }
    // A later format may compute its checksum differently, so the format is looked at first.
    if sb.format.get() > FORMAT {
        return CopyState::Newer(sb.format.get());
    }
    if sb.crc.get() != superblock_crc(page) && !mutant::on(Mutant::NoSuperblockCheck) {
        return CopyState::Damaged;
    }
    if sb.level.get() > level_max {
        return CopyState::Level(sb.level.get());
    }
    // A feature of a higher level is refused, too, and so is one that the device's own level lacks.
    let of = sb.level.get().max(level::FIRST).min(level_max);
    match sb.features.get() & !level::features(of) {
        0 => Content::decode(sb).map_or(CopyState::Misfit, CopyState::Valid),
        unknown => CopyState::Unknown(unknown),
    }
}
