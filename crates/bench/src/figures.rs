//! Measures a period under load, and computes figures per I/O.

use crate::cpu::{Kind, Processes, Reading, Spent};
use crate::interrupt;
use crate::tally::{Counters, Latency, Side, Tally};
use anyhow::{Result, bail};
use fleet::progress::Line;
use serde::Serialize;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the load runs before the measurement starts.
const WARM_UP: Duration = Duration::from_millis(700);
/// How often the load is checked.
const LOOK: Duration = Duration::from_millis(100);

/// The counts between two moments.
#[derive(Debug)]
pub struct Window {
    /// Reads and writes.
    ops: [u64; 2],
    spent: Spent,
    unseen: Vec<Kind>,
}

/// The result of a measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Length of the measurement.
    pub seconds: f64,
    /// Requests answered.
    pub ops: u64,
    /// Requests answered per second.
    pub iops: f64,
    /// Millions of bytes per second.
    pub mb_per_s: f64,
    /// Of reads and writes together.
    pub latency_us: Latency,
    /// Of reads alone, if there were any.
    pub read: Option<SideFigures>,
    /// Of writes alone, if there were any.
    pub write: Option<SideFigures>,
    /// User and system time of all processes in `cpu`.
    pub process_us_per_io: f64,
    /// Busy time of all cores, no matter which process used it.
    pub machine_us_per_io: f64,
    /// Percentage of the cores' time that the host of this virtual machine gave to others.
    pub steal_percent: f64,
    /// Processor time of each kind of process.
    pub cpu: Vec<KindFigures>,
    /// Kinds with processes on other hosts, whose time is in no figure.
    pub unseen: Vec<Kind>,
}

/// Figures of reads, or of writes.
#[derive(Clone, Debug, Serialize)]
pub struct SideFigures {
    /// Requests answered.
    pub ops: u64,
    /// Requests answered per second.
    pub iops: f64,
    /// Millions of bytes per second.
    pub mb_per_s: f64,
    /// Their latency.
    pub latency_us: Latency,
}

/// Figures of one kind of process, in microseconds per I/O.
#[derive(Clone, Debug, Serialize)]
pub struct KindFigures {
    /// The kind.
    pub kind: Kind,
    /// Number of its processes.
    pub processes: usize,
    /// User and system time together.
    pub us_per_io: f64,
    /// User time.
    pub user_us_per_io: f64,
    /// System time.
    pub system_us_per_io: f64,
}

/// Warms up, then counts for `window`. Fails when `check` does, which watches the load.
pub fn measure(
    title: &str,
    counters: &[Arc<Counters>],
    processes: &Processes,
    window: Duration,
    mut check: impl FnMut() -> Result<()>,
) -> Result<Window> {
    let line = Line::new(title);
    let sum = || {
        let all = counters.iter().map(|c| c.answered());
        all.fold([0, 0], |[r, w], [reads, writes]| [r + reads, w + writes])
    };
    interrupt::sleep(WARM_UP)?;
    counters.iter().for_each(|c| c.record(true));
    let (first, start) = (sum(), Reading::take(processes)?);
    let (begun, mut last) = (Instant::now(), first);
    while let Some(left) = window.checked_sub(begun.elapsed()).filter(|l| !l.is_zero()) {
        check()?;
        interrupt::sleep(left.min(LOOK))?;
        let now = sum();
        let done = (now[0] + now[1] - last[0] - last[1]) as f64 / LOOK.as_secs_f64();
        line.say(&format!(
            "{:.1} of {:.1} s, {:.0} per second",
            begun.elapsed().as_secs_f64(),
            window.as_secs_f64(),
            done
        ));
        last = now;
    }
    let (end, after) = (Reading::take(processes)?, sum());
    counters.iter().for_each(|c| c.record(false));
    check()?;
    let ops = [after[0] - first[0], after[1] - first[1]];
    Ok(Window { ops, spent: start.until(&end), unseen: processes.unseen.clone() })
}

impl Figures {
    /// Computes the figures of a window from its counts and latencies, at `block` bytes per
    /// request.
    pub fn new(window: &Window, tally: &Tally, block: u64) -> Result<Figures> {
        let Window { ops: [reads, writes], spent, unseen } = window;
        let (seconds, ops) = (spent.seconds, reads + writes);
        let Some(latency_us) = tally.both().filter(|_| ops > 0) else {
            bail!(
                "not one request was answered in {seconds:.1} s. See `gabion status`: does it serve? \
                 Else measure for longer (--seconds), at a smaller depth"
            );
        };
        let per_io = |us: f64| us / ops as f64;
        let side = |side: Side, ops: u64| {
            let iops = ops as f64 / seconds;
            let mb_per_s = iops * block as f64 / 1e6;
            tally.latency(side).map(|latency_us| SideFigures { ops, iops, mb_per_s, latency_us })
        };
        let kinds = spent.kinds.iter().map(|k| KindFigures {
            kind: k.kind,
            processes: k.processes,
            us_per_io: per_io(k.total),
            user_us_per_io: per_io(k.user),
            system_us_per_io: per_io(k.system),
        });
        Ok(Figures {
            seconds,
            ops,
            iops: ops as f64 / seconds,
            mb_per_s: ops as f64 / seconds * block as f64 / 1e6,
            latency_us,
            read: side(Side::Read, *reads),
            write: side(Side::Write, *writes),
            process_us_per_io: per_io(spent.processes()),
            machine_us_per_io: per_io(spent.machine),
            steal_percent: spent.steal_percent,
            cpu: kinds.collect(),
            unseen: unseen.clone(),
        })
    }

    /// Returns the figures as text for people.
    pub fn page(&self) -> String {
        let mut page = format!(
            "{:.0} IOPS, {:.1} MB/s, over {:.1} s\n\nlatency, us  {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}\n",
            self.iops,
            self.mb_per_s,
            self.seconds,
            "mean",
            "50 %",
            "90 %",
            "99 %",
            "99.9 %",
            "99.99 %",
            "max"
        );
        for (name, side) in [("read", &self.read), ("write", &self.write)] {
            let Some(side) = side else { continue };
            let l = &side.latency_us;
            page += &format!("{name:<12}");
            for n in [l.mean, l.p50, l.p90, l.p99, l.p999, l.p9999, l.max] {
                page += &format!(" {n:>9.1}");
            }
            page += &format!("  ({:.0} IOPS, {:.1} MB/s)\n", side.iops, side.mb_per_s);
        }
        page += &format!("\nCPU per I/O, us {:>9} {:>9} {:>9}\n", "user", "system", "total");
        for k in &self.cpu {
            let name = format!("{} x {}", k.processes, k.kind.name());
            page += &format!(
                "{name:<15} {:>9.2} {:>9.2} {:>9.2}\n",
                k.user_us_per_io, k.system_us_per_io, k.us_per_io
            );
        }
        page += &format!(
            "all of them     {:>29.2}\nwhole machine   {:>29.2}   steal {:.1} %\n",
            self.process_us_per_io, self.machine_us_per_io, self.steal_percent
        );
        if !self.unseen.is_empty() {
            let kinds: Vec<&str> = self.unseen.iter().map(|k| k.name()).collect();
            page += &format!("not included, as they run on other hosts: {}\n", kinds.join(", "));
        }
        page
    }
}

impl Kind {
    /// Returns the name for people.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Client => "client",
            Kind::Sds => "SDS",
            Kind::Mdm => "MDM",
            Kind::Sdc => "other SDC",
            Kind::Server => "server",
        }
    }
}

/// Returns figures for tests that compare them, here and in `experiments`.
#[doc(hidden)]
pub fn sample(iops: f64, us: f64) -> Figures {
    let counters = Counters::default();
    let mut tally = Tally::default();
    counters.record(true);
    counters.count(Side::Read, (us * 1e3) as u64, &mut tally);
    let spent = Spent { seconds: 1.0, machine: 1.0, steal_percent: 0.0, kinds: Vec::new() };
    let window = Window { ops: [1, 0], spent, unseen: Vec::new() };
    let figures = Figures::new(&window, &tally, 4096).expect("one request was answered");
    Figures { iops, process_us_per_io: us, machine_us_per_io: us, ..figures }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_per_io_and_name_what_is_not_in_them() {
        let mut figures = sample(1000.0, 2.0);
        figures.unseen = vec![Kind::Sds];
        let json = serde_json::to_value(&figures).unwrap();
        for path in [
            "/iops",
            "/mb_per_s",
            "/latency_us/p99.99",
            "/read/latency_us/p50",
            "/process_us_per_io",
            "/machine_us_per_io",
            "/steal_percent",
            "/cpu",
            "/unseen/0",
        ] {
            assert!(json.pointer(path).is_some(), "{path} in {json}");
        }
        assert!(json["write"].is_null());
        assert!(figures.page().contains("other hosts: SDS"));
    }

    #[test]
    fn a_load_without_an_answer_is_an_error() {
        let spent = Spent { seconds: 1.0, machine: 1.0, steal_percent: 0.0, kinds: Vec::new() };
        let window = Window { ops: [0, 0], spent, unseen: Vec::new() };
        assert!(Figures::new(&window, &Tally::default(), 4096).is_err());
    }
}
