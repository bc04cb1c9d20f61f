//! The four superblocks: which one counts, and what it says.
//!
//! A checkpoint writes copies 0 and 2, flushes, writes 1 and 3, and flushes: at every moment two are
//! whole. The valid one with the highest sequence counts.

use super::format::{
    DiskArea, FEATURES, FORMAT, MAGIC, SUPERBLOCK_BYTES, Superblock, superblock_crc,
};
use super::layout::{Area, Layout, PAGE};
use super::mount::MountError;
use base::{ClusterId, DeviceId, Mutant, mutant};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Which device it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster that it belongs to.
    pub cluster: ClusterId,
    /// Its id there.
    pub device: DeviceId,
    /// Drawn at random when it is formatted.
    pub uuid: [u64; 2],
}

/// What a checkpoint points to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Anchor {
    /// The checkpoint's number; its lowest bit says which copy of root and records counts.
    pub sequence: u64,
    /// The mount's number.
    pub life: u64,
    /// Where the log begins.
    pub log: LogStart,
    /// The root's crc.
    pub root_crc: u32,
    /// The records' bytes.
    pub records_len: u64,
    /// Their crc.
    pub records_crc: u32,
}

/// A place in the log between two batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStart {
    /// A position that only rises.
    pub position: u64,
    /// The number of the record there.
    pub record: u64,
    /// The crc of the batch before.
    pub chain: u32,
}

/// The content of a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// Which device.
    pub identity: Identity,
    /// Where what lies.
    pub layout: Layout,
    /// The last checkpoint.
    pub anchor: Anchor,
}

fn areas(l: &Layout) -> [Area; 8] {
    [l.root[0], l.root[1], l.records[0], l.records[1], l.log, l.map, l.sums, l.slots]
}

impl Content {
    /// Writes a superblock into a page.
    pub fn encode(&self, page: &mut [u8]) {
        let Content { identity, layout, anchor } = self;
        let mut sb = Superblock::new_zeroed();
        sb.magic = MAGIC;
        (sb.format, sb.features) = (FORMAT.into(), FEATURES.into());
        (sb.cluster, sb.device) = (identity.cluster.0.into(), identity.device.0.into());
        sb.uuid = identity.uuid.map(Into::into);
        (sb.size, sb.sequence, sb.life) =
            (layout.size.into(), anchor.sequence.into(), anchor.life.into());
        sb.log_position = anchor.log.position.into();
        (sb.log_record, sb.log_chain) = (anchor.log.record.into(), anchor.log.chain.into());
        sb.root_crc = anchor.root_crc.into();
        sb.records_len = anchor.records_len.into();
        sb.records_crc = anchor.records_crc.into();
        sb.areas = areas(layout).map(|a| DiskArea { at: a.at.into(), len: a.len.into() });
        page[..PAGE as usize].fill(0);
        page[..size_of::<Superblock>()].copy_from_slice(sb.as_bytes());
        let crc = superblock_crc(page);
        page[12..16].copy_from_slice(&crc.to_le_bytes());
    }

    fn decode(sb: &Superblock) -> Content {
        let area = |i: usize| Area { at: sb.areas[i].at.get(), len: sb.areas[i].len.get() };
        Content {
            identity: Identity {
                cluster: ClusterId(sb.cluster.get()),
                device: DeviceId(sb.device.get()),
                uuid: sb.uuid.map(|w| w.get()),
            },
            layout: Layout {
                size: sb.size.get(),
                root: [area(0), area(1)],
                records: [area(2), area(3)],
                log: area(4),
                map: area(5),
                sums: area(6),
                slots: area(7),
            },
            anchor: Anchor {
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
        }
    }
}

/// What one copy of the superblock turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // four of them, on the stack
pub enum CopyState {
    /// It is whole.
    Valid(Content),
    /// A newer build wrote it, in this format.
    Newer(u32),
    /// A newer build wrote it, with features that this one doesn't know.
    Unknown(u64),
    /// It is ours, and its checksum is wrong.
    Damaged,
    /// There is none here.
    Nothing,
}

/// What a page is, if it is where a copy of the superblock should be. A page that can't be read: give
/// nothing.
pub fn look(page: &[u8]) -> CopyState {
    let Ok((sb, _)) = Superblock::ref_from_prefix(page) else { return CopyState::Nothing };
    if sb.magic != MAGIC || page.len() < SUPERBLOCK_BYTES {
        return CopyState::Nothing;
    }
    // A later format may sum its superblock in another way: so this is looked at first.
    if sb.format.get() > FORMAT {
        return CopyState::Newer(sb.format.get());
    }
    if sb.crc.get() != superblock_crc(page) && !mutant::on(Mutant::NoSuperblockCheck) {
        return CopyState::Damaged;
    }
    match sb.features.get() & !FEATURES {
        0 => CopyState::Valid(Content::decode(sb)),
        unknown => CopyState::Unknown(unknown),
    }
}

/// The content that counts. Copies that could not be read come as empty.
pub fn choose(copies: [&[u8]; 4], bytes: u64) -> Result<Content, MountError> {
    let looked = copies.map(look);
    let valid =
        looked.iter().filter_map(|c| if let CopyState::Valid(c) = c { Some(*c) } else { None });
    let Some(best) = valid.max_by_key(|c| c.anchor.sequence) else {
        return Err(explain(&looked));
    };
    if best.layout.size > bytes && !mutant::on(Mutant::MountShrunk) {
        return Err(MountError::Shrunk { was: best.layout.size, is: bytes });
    }
    if Layout::new(best.layout.size) != Ok(best.layout) {
        return Err(MountError::Damaged { what: "the table of areas", at: 0 });
    }
    Ok(best)
}

fn explain(looked: &[CopyState; 4]) -> MountError {
    let mut error = MountError::Unformatted;
    for copy in looked {
        match copy {
            CopyState::Newer(format) => return MountError::Newer { format: *format },
            CopyState::Unknown(features) => return MountError::Features { unknown: *features },
            CopyState::Damaged => error = MountError::Damaged { what: "every superblock", at: 0 },
            CopyState::Nothing | CopyState::Valid(_) => {}
        }
    }
    error
}
