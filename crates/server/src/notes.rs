//! What a role's process says: one line per notable note, one line per second for the many.
//!
//! A failure changes hundreds of groups at once. Such notes are counted and told once a second;
//! the others are told as they come, up to a limit per second, so that no fault fills a disk. What may go on for days is
//! told once a minute.

use crate::size::Size;
use seam::Note;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

const WINDOW: Duration = Duration::from_secs(1);
/// Lines of one sort in a window.
const LINES: u32 = 10;
/// How often it is said that something goes on.
const REMINDER: Duration = Duration::from_secs(60);

/// How a note is told.
struct Telling {
    /// Sorts notes; also the words of the count.
    sort: &'static str,
    /// The line of its own, if it gets one.
    line: Option<String>,
    /// Bytes that it adds to the sum.
    bytes: u64,
    /// How many things it counts for.
    count: u64,
    /// It goes on until somebody does something about it.
    lasts: bool,
}

/// Counts of the present second.
#[derive(Debug, Default)]
pub struct Notes {
    since: Option<Instant>,
    tally: Vec<Tally>,
    /// When what lasts was told.
    told: Vec<(String, Instant)>,
}

#[derive(Debug)]
struct Tally {
    sort: &'static str,
    lines: u32,
    untold: u64,
    bytes: u64,
}

impl Notes {
    /// Takes one note of a shard; returns the line to write at once, if any.
    pub fn take(&mut self, note: Note) -> Option<String> {
        let telling = tell(note);
        if telling.lasts {
            return telling.line.filter(|line| self.is_due(line, Instant::now()));
        }
        self.since.get_or_insert_with(Instant::now);
        let tally = match self.tally.iter_mut().find(|t| t.sort == telling.sort) {
            Some(tally) => tally,
            None => {
                self.tally.push(Tally { sort: telling.sort, lines: 0, untold: 0, bytes: 0 });
                self.tally.last_mut()?
            }
        };
        if telling.line.is_some() && tally.lines < LINES {
            tally.lines += 1;
            return telling.line;
        }
        tally.untold += telling.count;
        tally.bytes += telling.bytes;
        None
    }

    /// True when this lasting thing is to be told (again).
    fn is_due(&mut self, line: &str, now: Instant) -> bool {
        self.told.retain(|(_, at)| now.duration_since(*at) < REMINDER);
        let due = self.told.iter().all(|(told, _)| told != line);
        if due {
            self.told.push((line.to_owned(), now));
        }
        due
    }

    /// How long until [`Notes::sum_up`] has something to say.
    pub fn due_in(&self) -> Option<Duration> {
        Some(WINDOW.saturating_sub(self.since?.elapsed()))
    }

    /// Ends the second: one line of counts, if there is anything untold.
    pub fn sum_up(&mut self) -> Option<String> {
        self.since = None;
        let mut line = String::new();
        for tally in self.tally.drain(..).filter(|t| t.untold > 0) {
            let comma = if line.is_empty() { "" } else { ", " };
            let _ = write!(line, "{comma}{}: {}", tally.sort, tally.untold);
            if tally.bytes > 0 {
                let _ = write!(line, " ({})", Size(tally.bytes));
            }
        }
        (!line.is_empty()).then_some(line)
    }
}

fn tell(note: Note) -> Telling {
    let counted = |sort| Telling { sort, line: None, bytes: 0, count: 1, lasts: false };
    let told = |sort, line: String| Telling { line: Some(line), ..counted(sort) };
    let lasting = |sort, line: &str| Telling { lasts: true, ..told(sort, line.to_owned()) };
    match note {
        Note::Refused { link, why } => told("links refused", format!("{link} closed: {why}")),
        Note::Garbage { link, why } => told("links with garbage", format!("{link} closed: {why}")),
        Note::Silent { link } => {
            told("links refused", format!("{link} closed: it did not say in time who is there"))
        }
        Note::Crowded => lasting(
            "links of strangers closed",
            "many connections are open that did not say who is there: the oldest are closed. Who \
             opens them? (`ss -tnp`)",
        ),
        Note::NoDescriptors => lasting(
            "times without a file descriptor",
            "no file descriptors are left: connections that did not say who is there are closed. \
             Raise the limit on open files (`LimitNOFILE=`, `ulimit -n`)",
        ),
        Note::Stuck { link, queued, peer } => {
            let who = peer.map_or_else(|| "the other side".to_owned(), |at| at.to_string());
            told(
                "links given up as stuck",
                format!("{link} closed: {who} did not read, and {} wait for it", Size(queued)),
            )
        }
        Note::BadBody { link } => {
            told("damaged bodies", format!("{link}: a frame's body does not match its checksum"))
        }
        Note::Map { version } => told("maps", format!("{version} taken over")),
        Note::Primary { .. } => counted("became primary of groups"),
        Note::Active { alone: false, .. } => counted("serves groups"),
        Note::Active { alone: true, .. } => counted("serves groups alone"),
        Note::StaleEpoch { .. } => counted("refused messages of another epoch"),
        Note::SyncStart { bytes, full, .. } => Telling {
            bytes,
            ..counted(if full { "full copies begun" } else { "comparisons begun" })
        },
        Note::Copied { bytes, .. } => Telling { bytes, ..counted("copies") },
        Note::Sealed { .. } => counted("replicas equal again"),
        Note::LeaseWait { .. } => counted("reads waited for a lease"),
        Note::GraceWait { .. } => counted("groups wait for old leases to end"),
        Note::Deduped { .. } => counted("retries already executed"),
        Note::OldSession { link } => {
            told("old sessions", format!("{link}: a frame of an older session was dropped"))
        }
        Note::Full { device } => Telling {
            lasts: true,
            ..told(
                "writes without space",
                format!(
                    "{device} is full, or has only its spare left: writes wait for space (`gabion status` says what \
                     to do)"
                ),
            )
        },
        Note::Grown { device, from, to } => told(
            "devices that have grown",
            format!("{device} has grown from {} to {}", Size(from), Size(to)),
        ),
        Note::NotGrown { device, used, bytes, why } => told(
            "devices that have not grown",
            format!("{device} uses {} of its {}: {why}", Size(used), Size(bytes)),
        ),
        Note::Dropped { volume, bytes } => {
            let mib = bytes.div_ceil(base::MIB);
            told("volumes dropped", format!("{volume} is gone: gave back {mib} MiB"))
        }
        Note::Discarded { .. } => counted("replicas given up"),
        Note::Repaired { group, bytes } => Telling {
            bytes,
            ..told(
                "repairs",
                format!("{group}: {bytes} damaged bytes were written anew from the other copy"),
            )
        },
        Note::BadMemory { group } => told(
            "bits changed in memory",
            format!("{group}: a write's data had changed in this process's memory: check it"),
        ),
        Note::Unreadable { group, unit, first, blocks } => told(
            "blocks lost",
            format!(
                "{group}: {blocks} blocks from {first} of {} unit {} are damaged, and no other copy is in sync",
                unit.volume, unit.index
            ),
        ),
        Note::NotMended { group, unit, first, blocks } => told(
            "blocks that can't be repaired",
            format!(
                "{group}: {blocks} blocks from {first} of {} unit {} can't be read although they were just written anew",
                unit.volume, unit.index
            ),
        ),
        Note::Lost { group, unit, first, blocks } => told(
            "blocks lost",
            format!(
                "{group}: {blocks} blocks from {first} of {} unit {} are damaged in the copy that this one is made from: write them anew",
                unit.volume, unit.index
            ),
        ),
        Note::DeviceDown { device, proof: true } => {
            told("devices down", format!("{device} is down: its process is dead"))
        }
        Note::DeviceDown { device, proof: false } => {
            told("devices down", format!("{device} is down: it is silent"))
        }
        Note::MassSilence { over: false } => told(
            "alarms",
            "many servers are silent at once: an overload, or the network; none is left out"
                .to_owned(),
        ),
        Note::MassSilence { over: true } => {
            told("alarms", "most servers are heard again".to_owned())
        }
        Note::RebuildHeld { over: false } => told(
            "alarms",
            "too many servers are away for one accident: their data is not rebuilt; bring them back".to_owned(),
        ),
        Note::RebuildHeld { over: true } => {
            told("alarms", "few enough servers are away: lost copies are rebuilt".to_owned())
        }
        Note::Quarantined { device, long } => told(
            "quarantines",
            format!(
                "{device} comes and goes: it gets nothing for {:.1} s. Look at its disk, host and network",
                long.as_secs_f64()
            ),
        ),
        Note::RefusesAlive { device } => told(
            "addresses that refuse",
            format!(
                "{device} is heard, and the address that it gave refuses connections: compare `address` in its \
                 configuration with its host's, and look for a firewall. Nobody can use it like that"
            ),
        ),
        Note::CutOff { device, over: false } => told(
            "devices cut off",
            format!(
                "the other servers do not reach {device}, and the MDM does: they do without it. Look at its data network"
            ),
        ),
        Note::CutOff { device, over: true } => {
            told("devices cut off", format!("{device}: nobody says any more that it is out of reach"))
        }
        Note::Slow { device, took } => told(
            "slow devices",
            format!(
                "{device} is slow: it, or its host, takes {} ms, and the others of its pool don't; they do without it. \
                 Look at its disk, host and network",
                took.as_millis()
            ),
        ),
        Note::DeviceUp { device } => told("devices up", format!("{device} is up")),
        Note::Snapshot { version } => told("snapshots", format!("wrote a snapshot of {version}")),
        Note::Waiting => told(
            "waits",
            "belongs to no cluster yet: `gabion mdm add` takes it into one".to_owned(),
        ),
        Note::GroupsLost { groups: 0 } => {
            told("losses", "no group of this device is lost any more".to_owned())
        }
        Note::GroupsLost { groups } => told(
            "losses",
            format!(
                "{groups} groups of this device are LOST, as every copy is gone: what lies there is an error. \
                 `gabion volume damage NAME` tells which bytes, and `gabion volume accept-loss` serves them again"
            ),
        ),
        Note::Unserved { lost: 0, away: 0 } => {
            told("unserved", "all groups of volumes are served again".to_owned())
        }
        Note::Unserved { lost, away } => told(
            "unserved",
            format!(
                "groups of volumes that nobody serves: {lost} are LOST, as every copy is gone; {away} wait for a device \
                 that is away. `gabion volume damage NAME` tells what lies there"
            ),
        ),
        Note::Recovering { number } => told(
            "recoveries",
            format!("goes on without the other MDMs, by order (recovery {number}): asks servers what they know"),
        ),
        Note::Reconciled { groups } => told(
            "recoveries",
            format!("servers' reports tell who has everything of {groups} groups"),
        ),
        Note::Recovered { number } => told(
            "recoveries",
            format!("recovery {number} is over: the map is handed out again"),
        ),
        Note::Moved { from } => told(
            "moves",
            format!("was at {from}, says its log: asks there whether an MDM with this log still serves"),
        ),
        Note::Leading { term } => told("offices", format!("leads the MDMs (term {term})")),
        Note::Resigned => told("offices lost", "does not lead the MDMs any more".to_owned()),
        Note::Decided { .. } => counted("entries decided"),
        Note::Superseded => told("ends", "a newer process serves in this one's name".to_owned()),
        Note::DeviceFailed => {
            told("ends", "the device failed, and this process can't go on from that".to_owned())
        }
        Note::DeviceRefused => told("ends", "the device can't be used".to_owned()),
        Note::Stopped => told("ends", "everything is in order".to_owned()),
        Note::Retried { ops } => Telling { count: ops.into(), ..counted("operations retried") },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{DeviceId, Epoch, GroupId, LinkId};

    #[test]
    fn many_groups_make_one_line_and_a_failure_its_own() {
        let mut notes = Notes::default();
        for g in 0..300 {
            let note = Note::Primary { group: GroupId(g), epoch: Epoch(2) };
            assert_eq!(notes.take(note), None);
        }
        let down = Note::DeviceDown { device: DeviceId(3), proof: true };
        assert_eq!(notes.take(down).as_deref(), Some("dev3 is down: its process is dead"));
        assert_eq!(notes.sum_up().as_deref(), Some("became primary of groups: 300"));
        assert_eq!((notes.sum_up(), notes.due_in()), (None, None));
    }

    #[test]
    fn who_does_not_read_is_named() {
        let mut notes = Notes::default();
        let peer = Some("10.0.0.7:41234".parse().unwrap());
        let line = notes.take(Note::Stuck { link: LinkId(3), queued: 256 << 20, peer }).unwrap();
        assert!(line.contains("10.0.0.7:41234 did not read, and 256 MiB wait"), "{line}");
        let line = notes.take(Note::Stuck { link: LinkId(4), queued: 256 << 20, peer: None });
        assert!(line.unwrap().contains("the other side did not read"));
    }

    #[test]
    fn a_flood_is_cut_and_counted() {
        let mut notes = Notes::default();
        let up = Note::DeviceUp { device: DeviceId(1) };
        let lines = (0..100).filter_map(|_| notes.take(up)).count();
        assert_eq!(lines, LINES as usize);
        assert_eq!(notes.sum_up().as_deref(), Some("devices up: 90"));
    }

    #[test]
    fn what_lasts_is_told_once_a_minute() {
        let mut notes = Notes::default();
        let full = Note::Full { device: DeviceId(1) };
        let lines: Vec<String> = (0..100).filter_map(|_| notes.take(full)).collect();
        assert_eq!(lines.len(), 1);
        assert_eq!((notes.sum_up(), notes.take(full)), (None, None));
        let told = Instant::now();
        assert!(!notes.is_due(&lines[0], told + REMINDER / 2));
        assert!(notes.is_due(&lines[0], told + REMINDER));
    }
}
