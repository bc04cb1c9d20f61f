//! The log lines of a role's process: one line per notable note, one line per second for the
//! frequent ones.
//!
//! A failure changes hundreds of groups at once. Notes about groups are counted and summed up once
//! per second. Other notes are logged at once, up to a limit per second, so that no fault fills a
//! disk. A condition that may last for days is logged once per minute.

use crate::size::Size;
use seam::{DiskError, Note};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

const WINDOW: Duration = Duration::from_secs(1);
/// Lines of one kind per window.
const LINES: u32 = 10;
/// Interval at which a lasting condition is logged again.
const REMINDER: Duration = Duration::from_secs(60);

/// How a note is logged.
struct Telling {
    /// The kind of the note; also its label in the sum.
    sort: &'static str,
    /// Its own line, if it gets one.
    line: Option<String>,
    /// Bytes that it adds to the sum.
    bytes: u64,
    /// Number of events that it counts for.
    count: u64,
    /// True for a condition that lasts until an operator acts.
    lasts: bool,
}

/// The counts of the current second.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    since: Option<Instant>,
    tally: Vec<Tally>,
    /// Lines about lasting conditions, and when they were logged.
    recent: Vec<(String, Instant)>,
}

#[derive(Debug)]
struct Tally {
    sort: &'static str,
    lines: u32,
    unlogged: u64,
    bytes: u64,
}

impl Notes {
    /// Takes a note. Returns the line to log at once, if any; otherwise counts the note.
    pub(crate) fn take(&mut self, note: Note) -> Option<String> {
        let telling = tell(note);
        if telling.lasts {
            return telling.line.filter(|line| self.is_due(line, Instant::now()));
        }
        self.since.get_or_insert_with(Instant::now);
        let tally = match self.tally.iter_mut().find(|t| t.sort == telling.sort) {
            Some(tally) => tally,
            None => {
                self.tally.push(Tally { sort: telling.sort, lines: 0, unlogged: 0, bytes: 0 });
                self.tally.last_mut()?
            }
        };
        if telling.line.is_some() && tally.lines < LINES {
            tally.lines += 1;
            return telling.line;
        }
        tally.unlogged += telling.count;
        tally.bytes += telling.bytes;
        None
    }

    /// Returns true if the line of a lasting condition is to be logged now, and records that.
    fn is_due(&mut self, line: &str, now: Instant) -> bool {
        self.recent.retain(|(_, at)| now.duration_since(*at) < REMINDER);
        let due = self.recent.iter().all(|(told, _)| told != line);
        if due {
            self.recent.push((line.to_owned(), now));
        }
        due
    }

    /// Returns the time until [`Notes::sum_up`] is to be called; `None` if there is nothing to sum.
    pub(crate) fn due_in(&self) -> Option<Duration> {
        Some(WINDOW.saturating_sub(self.since?.elapsed()))
    }

    /// Ends the second. Returns one line with the counts, if there are any.
    pub(crate) fn sum_up(&mut self) -> Option<String> {
        self.since = None;
        let mut line = String::new();
        for tally in self.tally.drain(..).filter(|t| t.unlogged > 0) {
            let comma = if line.is_empty() { "" } else { ", " };
            let _ = write!(line, "{comma}{}: {}", tally.sort, tally.unlogged);
            if tally.bytes > 0 {
                let _ = write!(line, " ({})", Size(tally.bytes));
            }
        }
        (!line.is_empty()).then_some(line)
    }
}

// Long: one match over all notes.
fn tell(note: Note) -> Telling {
    let counted = |sort| Telling { sort, line: None, bytes: 0, count: 1, lasts: false };
    let told = |sort, line: String| Telling { line: Some(line), ..counted(sort) };
    let lasting = |sort, line: &str| Telling { lasts: true, ..told(sort, line.to_owned()) };
    match note {
        Note::Refused { link, why } => told("links refused", format!("{link} closed: {why}")),
        Note::Malformed { link, kind, at, why } => {
            let text = format!("{link} closed: {why} (kind {kind}, byte {at})");
            told("links refused", text)
        }
        Note::Garbage { link, why } => told("links with garbage", format!("{link} closed: {why}")),
        Note::Silent { link } => {
            told("links refused", format!("{link} closed: it sent no hello in time"))
        }
        Note::Crowded => lasting(
            "links of strangers closed",
            "many connections are open that sent no hello: the oldest are closed. `ss -tnp` shows \
             who opens them",
        ),
        Note::NoDescriptors => lasting(
            "times without a file descriptor",
            "no file descriptors are left: connections that sent no hello are closed. Raise the \
             limit on open files (`LimitNOFILE=`, `ulimit -n`)",
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
        Note::Map { version } => told("maps", format!("{version} is in use now")),
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
                    "{device} is full, or has only its spare left: writes wait for space (`gabion \
                     status` says what to do)"
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
        Note::SpaceKept { device, why: DiskError::Unsupported } => told(
            "devices that keep freed space",
            format!(
                "{device}: its file keeps the space of freed data, because it has all of its \
                 blocks, or because its file system can't punch holes"
            ),
        ),
        Note::SpaceKept { device, why } => told(
            "devices that keep freed space",
            format!(
                "{device}: its file keeps the space of freed data until its server is started \
                 again: the file system failed to punch a hole ({why:?})"
            ),
        ),
        Note::Dropped { volume, bytes } => {
            let mib = bytes.div_ceil(base::MIB);
            told("volumes dropped", format!("{volume} is gone: freed {mib} MiB"))
        }
        Note::Discarded { .. } => counted("replicas given up"),
        Note::Repaired { group, bytes } => Telling {
            bytes,
            ..told(
                "repairs",
                format!("{group}: {bytes} damaged bytes were rewritten from the other copy"),
            )
        },
        Note::BadMemory { group } => told(
            "bits changed in memory",
            format!("{group}: a write's data changed in this process's memory: check the memory"),
        ),
        Note::Unreadable { group, unit, first, blocks } => told(
            "blocks lost",
            format!(
                "{group}: {blocks} blocks from {first} of {} unit {} are damaged, and no other \
                 copy is in sync",
                unit.volume, unit.index
            ),
        ),
        Note::NotMended { group, unit, first, blocks } => told(
            "blocks that can't be repaired",
            format!(
                "{group}: {blocks} blocks from {first} of {} unit {} can't be read although they \
                 were just rewritten",
                unit.volume, unit.index
            ),
        ),
        Note::Lost { group, unit, first, blocks } => told(
            "blocks lost",
            format!(
                "{group}: {blocks} blocks from {first} of {} unit {} are damaged in the copy from \
                 which this one is filled: write them again",
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
            "many servers are silent at once: an overload, or the network; none is declared down"
                .to_owned(),
        ),
        Note::MassSilence { over: true } => {
            told("alarms", "most servers are heard again".to_owned())
        }
        Note::RebuildHeld { over: false } => told(
            "alarms",
            "too many servers are away for a single failure: their data is not rebuilt; bring them \
             back"
            .to_owned(),
        ),
        Note::RebuildHeld { over: true } => {
            told("alarms", "few enough servers are away: lost copies are rebuilt".to_owned())
        }
        Note::Quarantined { device, long } => told(
            "quarantines",
            format!(
                "{device} goes down again and again: it gets no groups for {:.1} s. Check its \
                 disk, host and network",
                long.as_secs_f64()
            ),
        ),
        Note::RefusesAlive { device } => told(
            "addresses that refuse",
            format!(
                "{device} is heard, but the address that it gave refuses connections: compare \
                 `listen` and `advertise` in its configuration with its host's addresses, and look \
                 for a firewall. Nobody can use it like that"
            ),
        ),
        Note::CutOff { device, over: false } => told(
            "devices cut off",
            format!(
                "the MDM reaches {device}, but the other servers don't: they go on without it. \
                 Check its data network"
            ),
        ),
        Note::CutOff { device, over: true } => {
            told("devices cut off", format!("{device} is not reported as out of reach any more"))
        }
        Note::Slow { device, took } => told(
            "slow devices",
            format!(
                "{device} is slow: it, or its host, takes {} ms, unlike the others of its pool; \
                 they go on without it. Check its disk, host and network",
                took.as_millis()
            ),
        ),
        Note::DeviceUp { device } => told("devices up", format!("{device} is up")),
        Note::Snapshot { version } => told("snapshots", format!("wrote a snapshot of {version}")),
        Note::Waiting => told(
            "waits",
            "belongs to no cluster yet: `gabion mdm add` adds it to one. If it was the only MDM of \
             its cluster and lost its log, restore a backup: `gabion mdm restore`"
                .to_owned(),
        ),
        Note::GroupsLost { groups: 0 } => {
            told("losses", "no group of this device is lost any more".to_owned())
        }
        Note::GroupsLost { groups } => told(
            "losses",
            format!(
                "{groups} groups of this device are LOST, as every copy is gone: their I/O ends \
                 with an error. `gabion volume damage NAME` shows the bytes, and `gabion volume \
                 accept-loss` makes them usable again"
            ),
        ),
        Note::Unserved { lost: 0, away: 0 } => {
            told("unserved", "all groups of volumes are served again".to_owned())
        }
        Note::Unserved { lost, away } => told(
            "unserved",
            format!(
                "groups of volumes without service: {lost} are LOST, as every copy is gone; {away} \
                 wait for a device that is away. `gabion volume damage NAME` shows the bytes"
            ),
        ),
        Note::Over => told(
            "ends of this client",
            String::from(
                "this client is over: a newer process has its name, and one of the two needs \
                 another `name`; or it was removed with `gabion sdc remove`. All hosts are \
                 disconnected, and none is served. Start this process again when that is settled",
            ),
        ),
        Note::Recovering { number } => told(
            "recoveries",
            format!(
                "continues without the other MDMs, by order (recovery {number}): asks the servers \
                 what they know"
            ),
        ),
        Note::Reconciled { groups } => told(
            "recoveries",
            format!("the servers' reports decide which replicas have every write of {groups} groups"),
        ),
        Note::Recovered { number } => told(
            "recoveries",
            format!("recovery {number} is over: the map is handed out again"),
        ),
        Note::Moved { from } => told(
            "moves",
            format!(
                "its log says that it was at {from}: asks there whether an MDM with this log still \
                 serves"
            ),
        ),
        Note::Leading { term } => told("elections won", format!("leads the MDMs (term {term})")),
        Note::Resigned => told("leaderships lost", "does not lead the MDMs any more".to_owned()),
        Note::Decided { .. } => counted("entries decided"),
        Note::Superseded => told("ends", "a newer process serves in this one's name".to_owned()),
        Note::DeviceFailed => {
            told("ends", "the device failed, and this process can't continue".to_owned())
        }
        Note::DeviceRefused => told("ends", "the device can't be used".to_owned()),
        Note::Stopped => told("ends", "stopped in good order".to_owned()),
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
    fn a_peer_that_does_not_read_is_named() {
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
    fn a_lasting_condition_is_logged_once_a_minute() {
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
