//! Processor time of processes, by kind, and of the whole machine.
//!
//! The kernel's network work is charged to whatever process runs, and some of it to none, so both
//! are measured. The total of a process is exact (`schedstat`) unless some of its threads have
//! ended: their time is only in `stat`, in units of 10 ms. The split into user and system time is
//! the kernel's estimate (`stat`). `steal` is the time that the host of this virtual machine took
//! away.

use anyhow::{Context, Result};
use serde::Serialize;
use std::fs;
use std::time::Instant;

/// The kind of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// This process, which makes the load.
    Client,
    /// Data servers.
    Sds,
    /// Metadata managers.
    Mdm,
    /// Data clients other than the one that makes the load.
    Sdc,
    /// Servers of the floor.
    Server,
}

/// The participating processes, by kind.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Processes {
    groups: Vec<(Kind, Vec<u32>)>,
    /// Kinds with processes on other hosts, whose time is in no figure.
    pub unseen: Vec<Kind>,
}

impl Processes {
    /// Returns only this process.
    pub fn client() -> Processes {
        Processes { groups: vec![(Kind::Client, vec![std::process::id()])], unseen: Vec::new() }
    }

    /// Adds processes. Each counts once, even if several servers share it.
    pub fn add(&mut self, kind: Kind, pids: impl IntoIterator<Item = u32>) {
        let mut pids: Vec<u32> = pids.into_iter().collect();
        pids.sort_unstable();
        pids.dedup();
        if !pids.is_empty() {
            self.groups.push((kind, pids));
        }
    }

    /// Returns all processes except this one.
    pub fn daemons(&self) -> Processes {
        let groups = self.groups.iter().filter(|(kind, _)| *kind != Kind::Client).cloned();
        Processes { groups: groups.collect(), unseen: self.unseen.clone() }
    }
}

/// Readings of all clocks at one moment.
#[derive(Debug)]
pub struct Reading {
    at: Instant,
    machine: Machine,
    /// Total, user and system time of each process in each group, in microseconds; the latter two
    /// are estimates. `None` for a client that has ended.
    groups: Vec<(Kind, Vec<Option<[f64; 3]>>)>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct Machine {
    busy: f64,
    steal: f64,
    all: f64,
}

/// The time spent between two readings, in microseconds where not stated otherwise.
#[derive(Clone, Debug)]
pub struct Spent {
    /// The length of the period in seconds.
    pub seconds: f64,
    /// Busy time of all cores: user, nice, system, interrupts.
    pub machine: f64,
    /// Percentage of all cores' time that the host of this virtual machine gave to others.
    pub steal_percent: f64,
    /// The time by kind of process.
    pub kinds: Vec<KindSpent>,
}

/// The time spent by the processes of one kind, in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct KindSpent {
    /// The kind.
    pub kind: Kind,
    /// Number of its processes.
    pub processes: usize,
    /// User and system time together.
    pub total: f64,
    /// Time in the processes themselves.
    pub user: f64,
    /// Time in the kernel on their behalf.
    pub system: f64,
}

impl Reading {
    /// Reads all clocks now.
    pub fn take(processes: &Processes) -> Result<Reading> {
        let mut groups = Vec::new();
        let machine = machine(&fs::read_to_string("/proc/stat")?)?;
        for (kind, pids) in &processes.groups {
            let times = pids.iter().map(|pid| match process(*pid) {
                // Other clients may end at any time.
                Err(_) if *kind == Kind::Sdc => Ok(None),
                times => times.map(Some),
            });
            groups.push((*kind, times.collect::<Result<_>>()?));
        }
        Ok(Reading { at: Instant::now(), machine, groups })
    }

    /// Returns the time spent between this reading and a later one of the same processes.
    pub fn until(&self, later: &Reading) -> Spent {
        let all = (later.machine.all - self.machine.all).max(1.0);
        let kinds = self.groups.iter().zip(&later.groups).map(|((kind, first), (_, last))| {
            let both =
                || first.iter().zip(last).filter_map(|(a, b)| Some((a.as_ref()?, b.as_ref()?)));
            let [total, user, system] =
                [0, 1, 2].map(|i| both().map(|(a, b)| b[i] - a[i]).sum::<f64>().max(0.0));
            let share = if user + system > 0.0 { user / (user + system) } else { 0.0 };
            let user = total * share;
            KindSpent { kind: *kind, processes: first.len(), total, user, system: total - user }
        });
        Spent {
            seconds: later.at.duration_since(self.at).as_secs_f64(),
            machine: later.machine.busy - self.machine.busy,
            steal_percent: 100.0 * (later.machine.steal - self.machine.steal) / all,
            kinds: kinds.collect(),
        }
    }
}

impl Spent {
    /// Returns the processor time of all processes that were read.
    pub fn processes(&self) -> f64 {
        self.kinds.iter().map(|k| k.total).sum()
    }
}

/// Microseconds per tick: the kernel counts in units of 10 ms on every Linux that we run on.
const TICK_US: f64 = 1e4;

fn machine(stat: &str) -> Result<Machine> {
    let line = stat.lines().next().context("/proc/stat is empty")?;
    let fields: Vec<u64> = line.split_whitespace().skip(1).map_while(|f| f.parse().ok()).collect();
    let sum = |of: &[usize]| of.iter().filter_map(|i| fields.get(*i)).sum::<u64>() as f64 * TICK_US;
    // user nice system idle iowait irq softirq steal; the later fields are already part of user.
    Ok(Machine {
        busy: sum(&[0, 1, 2, 5, 6]),
        steal: sum(&[7]),
        all: sum(&[0, 1, 2, 3, 4, 5, 6, 7]),
    })
}

/// Returns the total, user and system time of a process in microseconds.
fn process(pid: u32) -> Result<[f64; 3]> {
    let ended = || format!("process {pid} has ended");
    let mut ns = 0u64;
    for task in fs::read_dir(format!("/proc/{pid}/task")).with_context(ended)? {
        // A thread may end between the listing and the reading.
        let text = fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
        ns += text.split(' ').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    }
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).with_context(ended)?;
    // The name in parentheses may contain anything; after it come the fields from the third on.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut ticks = fields.split_whitespace().skip(11).map_while(|f| f.parse::<f64>().ok());
    let (user, system) = (ticks.next().unwrap_or(0.0), ticks.next().unwrap_or(0.0));
    let (user, system) = (user * TICK_US, system * TICK_US);
    Ok([(ns as f64 / 1e3).max(user + system), user, system])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_busy_in_user_system_and_interrupts() {
        let read = |text: &str| machine(text).unwrap();
        let m = read("cpu  1 2 4 8 16 32 64 128 0 0\ncpu0 1 1 1\n");
        assert_eq!((m.busy, m.steal, m.all), (103.0 * 1e4, 128.0 * 1e4, 255.0 * 1e4));
        assert!(machine("").is_err());
    }

    #[test]
    fn our_own_work_is_seen() {
        let mut processes = Processes::client();
        processes.add(Kind::Sds, []);
        assert_eq!(processes.groups.len(), 1, "an empty kind is none");
        let start = Reading::take(&processes).unwrap();
        let begun = Instant::now();
        // On a busy machine it may take a while until this thread gets processor time.
        while start.until(&Reading::take(&processes).unwrap()).processes() <= 100.0 {
            assert!(begun.elapsed().as_secs() < 60, "our own work is not seen");
        }
        let start = Reading::take(&processes).unwrap();
        let work = || (0..100_000_000u64).fold(0, |sum, n| std::hint::black_box(sum + n));
        std::thread::spawn(work).join().unwrap();
        let spent = start.until(&Reading::take(&processes).unwrap());
        assert!(spent.processes() > 1e4, "that of a thread that has ended is, too: {spent:?}");
        assert!(processes.daemons().groups.is_empty());
        processes.add(Kind::Sdc, [u32::MAX]);
        assert!(Reading::take(&processes).is_ok(), "a client may end when it likes");
        processes.add(Kind::Sds, [u32::MAX]);
        assert!(Reading::take(&processes).is_err(), "there is no such process");
    }
}
