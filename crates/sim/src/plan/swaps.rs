//! Plans whose clients also use compare-and-write, as hosts do to lock a region of a shared disk
//! (rule R17).

use super::generate::is_duel;
use super::{Action, IoKind, Plan, Timed};
use base::{BLOCK, Prng, SECTOR, UNIT};
use std::time::Duration;

const BLOCK_SECTORS: u32 = BLOCK / SECTOR;
const UNIT_BLOCKS: u64 = (UNIT / BLOCK) as u64;

/// Adds such requests to some plans. In a duel, half of the reader's requests become such ones.
pub(super) fn draw(plan: &mut Plan, root: &Prng) {
    let mut r = root.fork("swaps");
    if plan.is_one_story() || plan.copies_devices() {
        return;
    }
    if is_duel(root) {
        if r.chance(0.3) {
            compare_in_the_duel(plan, &mut r);
        }
        return;
    }
    if !r.chance(0.08) {
        return;
    }
    let places: Vec<(u8, u32)> = (0..r.range(1, 3))
        .map(|_| {
            let volume = r.below(plan.volumes.len() as u64) as u8;
            let blocks = u64::from(plan.volumes[usize::from(volume)]) * UNIT_BLOCKS;
            (volume, r.below(blocks) as u32 * BLOCK_SECTORS)
        })
        .collect();
    let gap_us = *r.pick(&[2_000u64, 10_000, 40_000]);
    for client in 0..plan.clients {
        let mut at = Duration::ZERO;
        loop {
            at += Duration::from_micros(if r.chance(0.2) { 0 } else { r.below(2 * gap_us) });
            if at >= plan.length {
                break;
            }
            let (volume, first) = *r.pick(&places);
            let kind = if r.chance(0.7) { IoKind::Swap } else { IoKind::Read };
            let whole = r.chance(0.3);
            let (sector, sectors) = if whole { (first, BLOCK_SECTORS) } else { (first + 1, 1) };
            let action = Action::Io { client, volume, kind, sector, sectors };
            plan.steps.push(Timed { at, action });
        }
    }
}

/// Half of the reads compare instead, often at a primary that is cut off.
fn compare_in_the_duel(plan: &mut Plan, r: &mut Prng) {
    for step in &mut plan.steps {
        if let Action::Io { kind, sectors, .. } = &mut step.action
            && (*kind, *sectors) == (IoKind::Read, BLOCK_SECTORS)
            && r.chance(0.5)
        {
            *kind = IoKind::Swap;
        }
    }
}
