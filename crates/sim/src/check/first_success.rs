//! Judges the time to the first success: after one fault, with everything else in order, each group
//! that has a good copy left answers a read or a write within the time that SPEC.md promises for
//! this kind of fault. An error is no success, except for damage that the request met.

use super::Failure;
use crate::history::Record;
use crate::plan::{FinalFault, IoKind};
use crate::stage::Stage;
use base::{GroupId, Limits, MapVersion, Time, UNIT};
use mdm::reach::patience;
use seam::BlockError;
use std::collections::BTreeSet;
use std::time::Duration;

/// Longest stall after a crash that peers notice at once: the promise for `kill -9`.
const CRASH: Duration = Duration::from_secs(1);
/// Longest time of any request while no MDM is there.
pub const WITHOUT_MDM: Duration = Duration::from_secs(1);
/// Longest stall after a silence, beyond the time until the silence counts as a loss and the last
/// lease is over. With the shipped limits this makes the promised 3 s.
const AFTER_SILENCE: Duration = Duration::from_millis(750);
const UNIT_SECTORS: u32 = UNIT / base::SECTOR;

/// Returns how long a fault of this kind may stall a group; `None`: nothing is promised.
pub fn bound(how: FinalFault, limits: &Limits) -> Option<Duration> {
    let silence = limits.suspect_after + limits.grace + AFTER_SILENCE;
    match how {
        // A process ends when its disk fails.
        FinalFault::Dead | FinalFault::FailedDisk => Some(CRASH),
        FinalFault::Cut
        | FinalFault::Unheard
        | FinalFault::Dark
        | FinalFault::Frozen
        | FinalFault::Mute => {
            // A clock may be slow by a tenth.
            Some(silence * 11 / 10)
        }
        FinalFault::Heard | FinalFault::Deaf => Some(unreached(limits) * 11 / 10),
        FinalFault::SlowLinks | FinalFault::SlowDisk | FinalFault::HungDisk => None,
    }
}

/// Returns how long a server that only the MDM hears may stall a group, with exact clocks. Its
/// peers take twice as long as the MDM to miss a server, and report that with their next
/// heartbeats. The MDM waits until all could have reported, and looks twice per heartbeat. With the
/// shipped limits this makes 4.1 s.
fn unreached(limits: &Limits) -> Duration {
    limits.unreached_after() + limits.heartbeat_every * 3 / 2 + patience(limits) + AFTER_SILENCE
}

/// One request to each group, sent at the moment of a fault.
#[derive(Debug)]
pub struct Probes {
    since: Time,
    /// The groups, and the indexes of their requests in the history.
    asked: Vec<(GroupId, usize)>,
    /// The newest map at that moment. A client with an older one may not know the current
    /// state of its volumes.
    newest: MapVersion,
}

impl Probes {
    /// Sends a request to every group that volumes use, in turn a read and a write.
    pub fn ask(stage: &mut Stage, turn: usize) -> Probes {
        let mut asked: Vec<(GroupId, usize)> = Vec::new();
        let mut known = BTreeSet::new();
        let volumes =
            stage.volumes.iter().filter(|v| !v.doomed).filter_map(|v| Some((v.id?, v.units)));
        let volumes: Vec<_> = volumes.collect();
        let room = stage.plan.limits.sdc_requests as usize;
        for (id, unit) in volumes.into_iter().flat_map(|(id, n)| (0..n).map(move |u| (id, u))) {
            let client = (known.len() % usize::from(stage.plan.clients)) as u8;
            let Some(map) = stage.sdc(client).map(|sdc| sdc.map()) else { continue };
            let mine = map.volumes.get(&id).filter(|v| map.my_grant(v).is_some());
            let group = mine.and_then(|v| v.group_of(unit));
            let fits = |g: &GroupId| known.len() < room && !known.contains(g);
            let Some(group) = group.filter(fits) else { continue };
            if stage.observer.groups.get(&group).is_none_or(|g| g.lost) {
                continue;
            }
            let odd = (known.len() + turn).is_multiple_of(2);
            let kind = if odd { IoKind::Read } else { IoKind::Write };
            known.insert(group);
            asked.push((group, stage.history.ops.len()));
            stage.issue(client, id, kind, unit * UNIT_SECTORS, 8);
        }
        Probes { since: stage.world.now(), asked, newest: stage.observer.version }
    }

    /// Returns the first group that was not served within `bound`; `None`: all were.
    pub fn late(&self, ops: &[Record], bound: Duration) -> Option<String> {
        let good = |op: &Record| {
            let answer = op.answer.filter(|a| a.at.since(self.since) <= bound);
            let old = op.knew.is_none_or(|knew| knew < self.newest);
            answer.is_some_and(|a| match a.result {
                Ok(()) | Err(BlockError::Media) => true,
                Err(BlockError::NoSuchVolume | BlockError::OutOfRange) => old,
                Err(_) => false,
            })
        };
        let late = self.asked.iter().find(|(_, op)| !good(&ops[*op]));
        late.map(|(group, op)| format!("{group} was not served within {bound:?}: {}", ops[*op]))
    }

    /// Returns the longest time to an answer, of the groups that were answered.
    pub fn longest(&self, ops: &[Record]) -> Duration {
        let took = |(_, op): &(GroupId, usize)| Some(ops[*op].answer?.at.since(self.since));
        self.asked.iter().filter_map(took).max().unwrap_or_default()
    }

    /// Fails if a group was not served within `bound` of the fault.
    pub fn check(&self, ops: &[Record], fault: &str, bound: Duration) -> Result<(), Failure> {
        let late = self.late(ops, bound);
        late.map_or(Ok(()), |text| Err(Failure::new("first success", format!("{fault}: {text}"))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Answer;
    use base::VolumeId;

    const SECOND: u64 = 1_000_000_000;

    fn record(answer: Option<(u64, Result<(), BlockError>)>) -> Record {
        let answer = answer.map(|(at, result)| Answer { moment: 2, at: Time(at), result });
        Record {
            client: 0,
            life: 1,
            volume: VolumeId(1),
            kind: IoKind::Read,
            sector: 0,
            sectors: 8,
            invoked: 1,
            at: Time(0),
            clock: Time(0),
            answer,
            seen: Vec::new(),
            expected: Vec::new(),
            cut: None,
            left: false,
            gone: None,
            host: None,
            barred: false,
            knew: Some(MapVersion(7)),
        }
    }

    fn probes(since: u64, asked: Vec<(GroupId, usize)>) -> Probes {
        Probes { since: Time(since), asked, newest: MapVersion(7) }
    }

    #[test]
    fn only_a_success_in_time_counts() {
        let probes = probes(5 * SECOND, vec![(GroupId(1), 0)]);
        let late = |answer| probes.late(&[record(answer)], CRASH).is_some();
        assert!(!late(Some((6 * SECOND, Ok(())))));
        assert!(late(Some((6 * SECOND + 1, Ok(())))), "too late");
        assert!(late(None), "never");
        assert!(late(Some((5 * SECOND, Err(BlockError::Busy)))), "an error is no success");
        assert!(!late(Some((5 * SECOND, Err(BlockError::Media)))), "damage that was met");
        assert!(late(Some((5 * SECOND, Err(BlockError::NoSuchVolume)))), "its map was the newest");
    }

    #[test]
    fn every_group_counts() {
        let probes = probes(0, vec![(GroupId(1), 0), (GroupId(2), 1)]);
        let ops = [record(Some((1, Ok(())))), record(Some((2 * SECOND, Ok(()))))];
        assert!(
            probes.late(&ops, CRASH).is_some_and(|text| text.contains(&GroupId(2).to_string()))
        );
        assert_eq!(probes.longest(&ops), Duration::from_secs(2));
    }

    #[test]
    fn the_promises_are_those_of_the_shipped_limits() {
        assert_eq!(bound(FinalFault::Dead, &Limits::SHIPPED), Some(Duration::from_secs(1)));
        let silence = bound(FinalFault::Cut, &Limits::SHIPPED).unwrap() * 10 / 11;
        assert_eq!(silence, Duration::from_secs(3));
        assert!(unreached(&Limits::SHIPPED) <= Duration::from_millis(4100));
    }
}
