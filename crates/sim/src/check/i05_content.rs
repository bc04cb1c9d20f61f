//! Judges I5 at each answer: a sector holds zeros, or a whole value that was written to this very
//! sector. It is not torn, not from another place, and not from the future.

use super::Failure;
use crate::history::{History, Record, SILENT};
use crate::plan::IoKind;
use crate::stamp;
use base::{BLOCK, SECTOR, VolumeId};

const BLOCK_SECTORS: u32 = BLOCK / SECTOR;

/// Returns the values that the answer to a read shows, by sector.
pub fn seen(history: &History, op: usize, data: &[u8]) -> Result<Vec<u32>, Failure> {
    let record = &history.ops[op];
    let bytes = record.sectors as usize * SECTOR as usize;
    if record.kind == IoKind::Extents {
        return extents(record.sector, record.sectors, data)
            .ok_or_else(|| Failure::new("I5", format!("{record} got {} bytes", data.len())));
    }
    if record.kind != IoKind::Read {
        return Ok(Vec::new());
    }
    if data.len() != bytes {
        return Err(Failure::new("I5", format!("{record} got {} bytes", data.len())));
    }
    let sectors = data.chunks_exact(SECTOR as usize).zip(record.sector..);
    sectors.map(|(data, sector)| value(history, data, record.volume, sector, record)).collect()
}

/// Returns the value in one sector's bytes, as an operation saw them.
pub fn value(
    history: &History,
    data: &[u8],
    volume: VolumeId,
    sector: u32,
    by: &Record,
) -> Result<u32, Failure> {
    let fail = |why: String| Failure::new("I5", format!("{by}: sector {sector} {why}"));
    let value = stamp::writer(data, volume, sector).map_err(|damage| fail(damage.to_string()))?;
    if value != 0 {
        let writer =
            history.writer(value).ok_or_else(|| fail(format!("is of the future: {value}")))?;
        let covers = writer.stamps()
            && writer.volume == volume
            && (writer.sector..writer.sector + writer.sectors).contains(&sector);
        if !covers {
            return Err(fail(format!("has the stamp of {writer}")));
        }
    }
    Ok(value)
}

/// Returns 0 for sectors in blocks without data; other sectors are unknown.
fn extents(sector: u32, sectors: u32, data: &[u8]) -> Option<Vec<u32>> {
    let first = sector / BLOCK_SECTORS;
    (sector..sector + sectors)
        .map(|s| {
            let bit = (s / BLOCK_SECTORS - first) as usize;
            let byte = data.get(bit / 8)?;
            Some(if byte >> (bit % 8) & 1 == 1 { SILENT } else { 0 })
        })
        .collect()
}
