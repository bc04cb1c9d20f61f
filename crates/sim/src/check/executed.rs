//! Judges R8: writes in an executed list are in the content, so each sector holds that write, or a
//! later one. A retry of a listed write is answered without being executed, so a wrong list loses
//! an acknowledged write.

use super::Failure;
use super::i03_mirrors::block;
use crate::check::register::Value;
use crate::history::{History, Record};
use crate::plan::IoKind;
use crate::stage::Stage;
use crate::stamp;
use base::{BLOCK, BLOCKS_PER_UNIT, BlockSet, GroupId, SECTOR, UNIT, UnitKey};
use mirror::Standing;
use seam::{ClientWrite, ExecutedBlocks};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use wire::message::Request;

const BLOCK_SECTORS: u32 = BLOCK / SECTOR;

/// The value of an operation, and the sectors that one write has of it.
type Part = (Value, Range<u32>);

/// Maps clients' writes to operations of the workload. Keys are (group, client, incarnation, seq).
#[derive(Default, Debug)]
pub struct Writes {
    values: BTreeMap<(GroupId, u32, u64, u64), Part>,
    /// Writes that have arrived at a server, and the operations of those that
    /// arrived more than once.
    arrived: BTreeSet<(GroupId, u32, u64, u64)>,
    again: BTreeSet<Value>,
}

impl Writes {
    /// Records that a client sends a write with this body.
    pub fn sent(&mut self, request: &Request, body: &[u8]) {
        let Some(value) = body.first_chunk::<4>() else { return };
        let write = request.client;
        let key = (request.group, write.sdc.0, write.incarnation.0, write.seq);
        let first = request.range.unit.index * (UNIT / SECTOR) + request.range.at / SECTOR;
        let sectors = first..first + body.len() as u32 / SECTOR;
        self.values.insert(key, (Value::from_le_bytes(*value), sectors));
    }

    /// Records that a client's write has arrived at a server.
    pub fn arrived(&mut self, group: GroupId, write: ClientWrite) {
        let key = (group, write.sdc.0, write.incarnation.0, write.seq);
        let again = !self.arrived.insert(key);
        if let Some((value, _)) = self.values.get(&key).filter(|_| again) {
            self.again.insert(*value);
        }
    }

    /// Returns true when a write of this operation has arrived twice: the first one may
    /// have been executed.
    pub fn may_be_done(&self, value: Value) -> bool {
        self.again.contains(&value)
    }

    /// Returns the operation of a write, and the sectors that it has of it. (An iSCSI command has
    /// several writes.)
    fn of(&self, group: GroupId, write: ClientWrite) -> Option<Part> {
        self.values.get(&(group, write.sdc.0, write.incarnation.0, write.seq)).cloned()
    }
}

/// Compares a replica's executed list with its content.
///
/// # Errors
/// A sector of a listed write holds a value that is surely older.
pub fn check(stage: &mut Stage, i: u8, group: GroupId, standing: &Standing) -> Result<(), Failure> {
    for entry in &standing.executed {
        let Some(written) = stage.world.writes.of(group, entry.write) else { continue };
        // A recovery may bring a volume back whose deletion had begun.
        let id = entry.unit.volume;
        let recovered = stage.mdm().is_none_or(|mdm| mdm.state().recovery.number > 0);
        let doomed = recovered && stage.volumes.iter().any(|v| v.id == Some(id) && v.doomed);
        if doomed || !stage.is_there(id) {
            continue;
        }
        for index in (0..BLOCKS_PER_UNIT).filter(|index| entry.blocks.contains(*index)) {
            let one = BlockSet::from_range(index..index + 1);
            let lost = stage.lost_copies.contains(&(i, entry.unit, index));
            let harmed = stage.is_harmed(entry.unit, index);
            if !lost && !harmed && !standing.busy.contains(entry.unit, one) {
                look(stage, i, group, entry, &written, index)?;
            }
        }
    }
    Ok(())
}

fn look(
    stage: &mut Stage,
    i: u8,
    group: GroupId,
    entry: &ExecutedBlocks,
    (value, sectors): &Part,
    index: u32,
) -> Result<(), Failure> {
    let mut bytes = [0; BLOCK as usize];
    block(stage, i, group, entry.unit, index, &mut bytes);
    let first = sector_of(entry.unit, index);
    for (bytes, sector) in bytes.chunks_exact(SECTOR as usize).zip(first..) {
        // Sectors without a valid stamp are judged when they are read.
        let Ok(found) = stamp::writer(bytes, entry.unit.volume, sector) else { continue };
        if sectors.contains(&sector) && lacks(&stage.history, *value, found, sector) {
            let text = format!(
                "{group}: sds{i} lists operation {value} as executed, and its sector {sector} of {} holds what {found} wrote before",
                entry.unit.volume
            );
            return Err(Failure::new("R8", text));
        }
    }
    Ok(())
}

fn sector_of(unit: UnitKey, block: u32) -> u32 {
    (unit.index * BLOCKS_PER_UNIT + block) * BLOCK_SECTORS
}

/// Returns true when `found` can't be in a sector that this operation wrote, as the write of
/// `found` was over before.
pub fn lacks(history: &History, value: Value, found: Value, sector: u32) -> bool {
    let covers = |op: &Record| (op.sector..op.sector + op.sectors).contains(&sector);
    let Some(op) = history.writer(value).filter(|op| covers(op)) else { return false };
    if found == value {
        return false;
    }
    let over = |other: &Record| {
        other.is_ok() && other.answer.is_some_and(|answer| answer.moment < op.invoked)
    };
    match history.writer(found) {
        Some(other) => over(other),
        // Zeros are the initial content, or a later operation has zeroed the sector.
        None => {
            let zeroes = |o: &&Record| {
                o.volume == op.volume
                    && matches!(o.kind, IoKind::Zero | IoKind::Discard)
                    && covers(o)
            };
            history.ops.iter().filter(zeroes).all(over)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Answer;
    use base::{Epoch, MapVersion, Time, VolumeId};
    use wire::message::UnitRange;

    fn record(kind: IoKind, invoked: u64, answered: Option<u64>) -> Record {
        let answer = answered.map(|moment| Answer { moment, at: Time::ZERO, result: Ok(()) });
        Record {
            client: 0,
            life: 1,
            volume: VolumeId(1),
            kind,
            sector: 0,
            sectors: 8,
            invoked,
            at: Time::ZERO,
            clock: Time::ZERO,
            answer,
            seen: Vec::new(),
            expected: Vec::new(),
            cut: None,
            left: false,
            gone: None,
            host: None,
            barred: false,
            knew: None,
        }
    }

    fn history(ops: &[(IoKind, u64, Option<u64>)]) -> History {
        let mut history = History::default();
        history.ops = ops.iter().map(|(kind, from, to)| record(*kind, *from, *to)).collect();
        history
    }

    /// A request without content.
    const NOTHING: Request = Request {
        op: 0,
        group: GroupId(0),
        epoch: Epoch(0),
        range: UnitRange { unit: UnitKey { volume: VolumeId(0), index: 0 }, at: 0, len: 0 },
        client: ClientWrite {
            sdc: base::SdcId(0),
            incarnation: base::Incarnation(0),
            seq: 0,
            floor: 0,
        },
        map: MapVersion(0),
        generation: 0,
    };

    #[test]
    fn a_retry_may_already_be_executed_when_it_arrives() {
        let mut writes = Writes::default();
        let write = |seq| ClientWrite {
            sdc: base::SdcId(1),
            incarnation: base::Incarnation(1),
            seq,
            floor: 0,
        };
        let request = |group| Request { group: GroupId(group), client: write(1), ..NOTHING };
        writes.sent(&request(1), &7u32.to_le_bytes());
        writes.sent(&request(2), &8u32.to_le_bytes());
        writes.arrived(GroupId(1), write(1));
        writes.arrived(GroupId(2), write(1));
        writes.arrived(GroupId(1), write(2));
        assert!(!writes.may_be_done(7) && !writes.may_be_done(8));
        writes.arrived(GroupId(1), write(1));
        assert!(writes.may_be_done(7) && !writes.may_be_done(8));
    }

    #[test]
    fn only_what_was_surely_over_before_is_missed() {
        use IoKind::{Write, Zero};
        let two = history(&[(Write, 1, Some(2)), (Write, 3, Some(4))]);
        assert!(lacks(&two, 2, 1, 0), "the first one was over");
        assert!(!lacks(&two, 2, 2, 0) && !lacks(&two, 1, 2, 0), "it is there, or written over");
        assert!(!lacks(&two, 2, 1, 8), "another sector");
        assert!(lacks(&two, 2, 0, 0), "nobody has zeroed it");
        let beside = history(&[(Write, 1, None), (Write, 3, Some(4))]);
        assert!(!lacks(&beside, 2, 1, 0), "it may have come later");
        let zeroed = history(&[(Zero, 1, Some(2)), (Write, 3, Some(4)), (Zero, 5, None)]);
        assert!(!lacks(&zeroed, 2, 0, 0), "it may be zeroed since");
        let before = history(&[(Zero, 1, Some(2)), (Write, 3, Some(4))]);
        assert!(lacks(&before, 2, 0, 0), "it was zeroed before");
    }
}
