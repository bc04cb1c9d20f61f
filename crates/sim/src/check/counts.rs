//! Judges the request counters of clients, which operators see: at rest, the MDM's counters of a
//! client equal the number of requests that the client's present process has answered.
//!
//! A request may count although its answer was lost with the connection of a host. Every answered
//! request must count.

use crate::history::Record;
use crate::plan::{Action, IoKind, Who};
use crate::stage::Stage;
use base::{SECTOR, VolumeId};
use std::ops::RangeInclusive;
use wire::control::IoCounts;

/// Returns a wrong counter. Two kinds of runs are not judged: those in which a client has two
/// processes, which count separately, and those that lose the MDMs, because a volume may be gone
/// for a while.
pub fn unmet(stage: &Stage) -> Option<String> {
    let loses = stage.plan.steps.iter().any(|step| matches!(step.action, Action::Lose(_)));
    if stage.plan.has_doubles() || loses {
        return None;
    }
    (0..stage.plan.clients).find_map(|i| of_client(stage, i))
}

fn of_client(stage: &Stage, i: u8) -> Option<String> {
    let sdc = stage.sdc(i)?;
    let (id, _) = sdc.identity()?;
    let seen = stage.mdm().and_then(|mdm| mdm.observed().sdcs.get(&id));
    let Some(counts) = seen.and_then(|seen| seen.heartbeat.as_ref()?.counts.as_ref()) else {
        return Some(format!("no MDM has the counts of sdc{i}"));
    };
    let volumes = stage.volumes.iter().filter_map(|volume| volume.id);
    volumes.filter(|id| sdc.map().volumes.contains_key(id)).find_map(|volume| {
        let of = counts.volumes.iter().find(|of| of.volume == volume.0);
        let of = of.and_then(|of| of.counts.clone()).unwrap_or_default();
        wrong(stage, i, volume, &of).map(|text| format!("sdc{i} has counted for {volume}: {text}"))
    })
}

fn wrong(stage: &Stage, i: u8, volume: VolumeId, counts: &IoCounts) -> Option<String> {
    let life = stage.world.life(stage.proc(Who::Sdc(i)));
    let own = |(_, op): &(usize, &Record)| op.client == i && op.life == life && op.volume == volume;
    let ops: Vec<(usize, &Record)> = stage.history.ops.iter().enumerate().filter(own).collect();
    let of = |kinds: &[IoKind], weigh: fn(&Record) -> u64| -> RangeInclusive<u64> {
        let sum = |fits: &dyn Fn(usize, &Record) -> bool| {
            let those = ops.iter().filter(|(i, op)| kinds.contains(&op.kind) && fits(*i, op));
            those.map(|(_, op)| weigh(op)).sum::<u64>()
        };
        // Parts of a host's command may be done although the command has failed.
        let partly = |i: usize, op: &Record| op.answer.is_none() || stage.is_hosts(i);
        let answered = sum(&|_, op| op.is_ok());
        answered..=answered + sum(&|i, op| !op.is_ok() && partly(i, op))
    };
    // Each range of a command counts, and an NVMe host may make a hole in two ranges.
    let twice = |(least, most): (u64, u64)| {
        let hole = |(i, op): &&(usize, &Record)| op.kind == IoKind::Discard && stage.is_nvme(*i);
        least..=most + ops.iter().filter(hole).count() as u64
    };
    let one = |_: &Record| 1;
    let bytes = |op: &Record| u64::from(op.sectors) * u64::from(SECTOR);
    let ranges = |times: &Option<wire::control::TimeCounts>| {
        times.iter().flat_map(|times| times.ranges()).map(|(_, count)| count).sum::<u64>()
    };
    const WRITES: [IoKind; 2] = [IoKind::Write, IoKind::Swap];
    const ZEROES: [IoKind; 2] = [IoKind::Zero, IoKind::Discard];
    [
        ("reads", counts.reads, of(&[IoKind::Read], one)),
        ("bytes read", counts.read_bytes, of(&[IoKind::Read], bytes)),
        ("times of reads", ranges(&counts.read_times), counts.reads..=counts.reads),
        ("writes", counts.writes, of(&WRITES, one)),
        ("bytes written", counts.written_bytes, of(&WRITES, bytes)),
        ("times of writes", ranges(&counts.write_times), counts.writes..=counts.writes),
        ("zeroes", counts.zeroes, twice(of(&ZEROES, one).into_inner())),
        ("bytes zeroed", counts.zeroed_bytes, of(&ZEROES, bytes)),
        ("questions for extents", counts.extents, of(&[IoKind::Extents], one)),
    ]
    .into_iter()
    .find(|(_, counted, may)| !may.contains(counted))
    .map(|(what, counted, may)| format!("{counted} {what}, and should have {may:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use crate::run;
    use crate::trace::Sink;
    use std::time::Duration;

    /// Token of the test's own alarms.
    const OVER: u64 = 77;

    fn pass(stage: &mut Stage) {
        stage.world.alarm(stage.world.now() + Duration::from_secs(5), OVER);
        while stage.step().unwrap() != Some(OVER) {}
    }

    #[test]
    fn a_request_that_was_answered_counts_and_one_without_an_answer_may() {
        let text = "gabion-plan 1\nsds 2\nclients 1\nvolume 1\ncapacity 8\ndepth 4\nlength 1.0\n";
        let plan: Plan = text.parse().unwrap();
        let mut stage = Stage::new(&plan, Sink::Off);
        run::set_up(&mut stage).unwrap();
        let volume = stage.volumes[0].id.unwrap();
        for kind in [IoKind::Write, IoKind::Read, IoKind::Zero, IoKind::Discard, IoKind::Extents] {
            stage.issue(0, volume, kind, 8, 16);
            pass(&mut stage);
        }
        assert_eq!(unmet(&stage), None);
        // A request that the client never got.
        let (index, _) = stage.record(0, volume, IoKind::Read, 0, 8);
        assert_eq!(unmet(&stage), None);
        stage.answered(index, Ok(&[0; 8 * 512])).unwrap();
        assert!(unmet(&stage).is_some_and(|text| text.contains("1 reads")), "{:?}", unmet(&stage));
        stage.history.ops[index].life += 1;
        assert_eq!(unmet(&stage), None);
        stage.history.ops[0].life += 1;
        assert!(unmet(&stage).is_some_and(|text| text.contains("1 writes")), "{:?}", unmet(&stage));
    }
}
