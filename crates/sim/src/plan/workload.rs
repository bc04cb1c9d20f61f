//! Requests of a plan's clients.

use super::episode::Episode;
use super::{Action, IoKind, Plan, Timed};
use base::{BLOCK, Prng, SECTOR, UNIT};
use std::time::Duration;

const UNIT_SECTORS: u64 = (UNIT / SECTOR) as u64;
const BLOCK_SECTORS: u64 = (BLOCK / SECTOR) as u64;

/// Adds a workload of reads and writes. Clients prefer hot spots, many of them across the
/// border of two units.
pub(super) fn workload(plan: &mut Plan, r: &mut Prng) {
    let mut spots: Vec<(u8, u64, u64)> = Vec::new();
    for _ in 0..r.range(1, 4) {
        let volume = r.below(plan.volumes.len() as u64) as u8;
        let size = u64::from(plan.volumes[volume as usize]) * UNIT_SECTORS;
        let width = (*r.pick(&[2, 8, 24, 64])).min(size);
        let border = UNIT_SECTORS * r.range(0, size / UNIT_SECTORS);
        let near = if r.chance(0.6) { border.saturating_sub(width / 2) } else { r.below(size) };
        spots.push((volume, near.min(size - width), width));
    }
    let hot = *r.pick(&[0.5, 0.9, 0.99]);
    let (zeros, extents) = (*r.pick(&[0.0, 0.05, 0.2]), *r.pick(&[0.0, 0.03]));
    let bigs = *r.pick(&[0.0, 0.005, 0.02]);
    let gap_us = *r.pick(&[2_000u64, 8_000, 20_000, 60_000]);
    for client in 0..plan.clients {
        let reads = *r.pick(&[0.1, 0.3, 0.5, 0.7, 0.95]);
        let mut at = Duration::ZERO;
        loop {
            // Requests come in bursts. Now and then a pause is longer than a beacon interval.
            let gap = if r.chance(0.01) { r.below(700_000) } else { r.below(2 * gap_us) };
            at += Duration::from_micros(if r.chance(0.3) { 0 } else { gap });
            if at >= plan.length {
                break;
            }
            let x = r.chance(reads);
            let kind = match () {
                () if r.chance(extents) => IoKind::Extents,
                () if x => IoKind::Read,
                () if r.chance(zeros) => *r.pick(&[IoKind::Zero, IoKind::Discard]),
                () => IoKind::Write,
            };
            let (volume, from, width) = *r.pick(&spots);
            let size = u64::from(plan.volumes[volume as usize]) * UNIT_SECTORS;
            let (sector, sectors) = if r.chance(hot) {
                let sector = from + r.below(width);
                (sector, r.range(1, (from + width - sector).min(32)))
            } else if r.chance(bigs) {
                let sectors = r.range(1, size.min(2 * UNIT_SECTORS));
                (r.below(size - sectors + 1), sectors)
            } else {
                let sector = r.below(size);
                (sector, r.range(1, (size - sector).min(64)))
            };
            let (sector, sectors) = if r.chance(0.5) {
                let start = sector / BLOCK_SECTORS * BLOCK_SECTORS;
                (start, sectors.next_multiple_of(BLOCK_SECTORS).min(size - start))
            } else {
                (sector, sectors)
            };
            let (sector, sectors) = (sector as u32, sectors as u32);
            plan.steps
                .push(Timed { at, action: Action::Io { client, volume, kind, sector, sectors } });
        }
    }
}

/// Adds a workload for clusters with too little space: whole units are written one after the other,
/// and some are discarded.
pub(super) fn fill(plan: &mut Plan, r: &mut Prng) {
    let all =
        plan.volumes.iter().enumerate().flat_map(|(v, units)| (0..*units).map(move |u| (v, u)));
    let mut units: Vec<(usize, u32)> = all.collect();
    let count = units.len() as u64;
    units.extend_from_within(..r.below(count) as usize);
    for (i, (volume, unit)) in units.into_iter().enumerate() {
        // Whole microseconds, as the text format of plans keeps no fractions of them.
        let half = plan.length.as_micros() as u64 / 2;
        let at = Duration::from_micros(half * i as u64 / count);
        let late = Duration::from_micros(r.below(half));
        let (sector, sectors) = (unit * UNIT_SECTORS as u32, UNIT_SECTORS as u32);
        for (at, kind, chance) in [(at, IoKind::Write, 0.9), (at + late, IoKind::Discard, 0.3)] {
            let (client, volume) = (r.below(u64::from(plan.clients)) as u8, volume as u8);
            let action = Action::Io { client, volume, kind, sector, sectors };
            if r.chance(chance) {
                plan.steps.push(Timed { at, action });
            }
        }
    }
}

/// Replaces the workload with a duel: one client reads, the others write the same few blocks, and
/// again and again a server is isolated together with the reader. Whether a lease ends in time
/// shows here and hardly anywhere else.
pub(super) fn duel(plan: &mut Plan, r: &mut Prng) {
    plan.clients = plan.clients.max(2);
    (plan.durable, plan.memory) = (true, 0);
    plan.depth = r.range(4, 12) as u32;
    plan.weather.reset_ppm = 0;
    plan.weather.tcp_ms = r.range(2000, 20_000) as u32;
    let lease = plan.limits.lease;
    plan.limits.suspect_after = lease * r.range(80, 120) as u32 / 100;
    let islands = r.range(1, 2) as u32;
    let period = lease * 9;
    plan.length = period * islands;
    let gap_us = lease.as_micros() as u64 / r.range(15, 40);
    let blocks: Vec<u32> = (0..plan.volumes[0]).map(|u| u * UNIT_SECTORS as u32).collect();
    for client in 0..plan.clients {
        let mut at = Duration::ZERO;
        while at < plan.length {
            at += Duration::from_micros(r.below(2 * gap_us) + 1);
            let kind = if client == 0 { IoKind::Read } else { IoKind::Write };
            let sector = *r.pick(&blocks);
            let action = Action::Io { client, volume: 0, kind, sector, sectors: 8 };
            plan.steps.push(Timed { at, action });
        }
    }
    for i in 0..islands {
        let at = period * i + lease * r.range(5, 15) as u32 / 10;
        let mut e = Episode { plan, at, careful: true };
        let who = e.sds(r);
        e.strand(who, lease * r.range(30, 70) as u32 / 10, r);
    }
}
