//! The loads and rows of `bench disk`, and the bound of each row.

use crate::drive::Work;
use crate::load::Data;
use crate::ratio::rows::Target;
use crate::workload::Workload;

/// A load, as Gabion and as fio describe it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// The name of the load.
    pub name: &'static str,
    /// The load for Gabion.
    pub work: Work,
    /// fio's name for the pattern.
    pub fio: &'static str,
    /// The load writes, so its answers are durable.
    pub writes: bool,
}

/// The computation of a row's figure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// The rate of this load over fio's.
    Rate(&'static str),
    /// The processor time of this load, minus that with NULL devices.
    Cpu(&'static str),
    /// The latency on almost full devices over that on half full ones.
    Full,
}

/// One promise.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// The name of the row.
    pub name: &'static str,
    /// A description for people.
    pub title: &'static str,
    /// The unit of its figures.
    pub unit: &'static str,
    /// How its figure is computed.
    pub kind: Kind,
    /// The bound that it must meet.
    pub target: Target,
}

/// The unit of rows that count requests.
const IOPS: &str = "IOPS";
/// The unit of rows that count bytes.
const MIB_PER_S: &str = "MiB/s";

impl Row {
    /// Converts requests per second to the row's unit.
    pub(crate) fn rate(&self, iops: f64, block: u32) -> f64 {
        match self.unit {
            MIB_PER_S => iops * f64::from(block) / f64::from(1 << 20),
            _ => iops,
        }
    }
}

const fn load(
    name: &'static str,
    fio: &'static str,
    workload: Workload,
    block: u32,
    depth: u32,
) -> Load {
    let work = Work { workload, mix: 0, block, depth, rate: None, jobs: 1, data: Data::Shared };
    Load { name, work, fio, writes: matches!(workload, Workload::Randwrite | Workload::Write) }
}

/// All loads.
pub(crate) const LOADS: [Load; 4] = [
    load("write", "randwrite", Workload::Randwrite, base::BLOCK, 32),
    load("read", "randread", Workload::Randread, base::BLOCK, 32),
    load("seq-write", "write", Workload::Write, base::UNIT, 8),
    load("seq-read", "read", Workload::Read, base::UNIT, 8),
];

/// The load for devices with different fill levels.
pub(crate) const OVERWRITE: Work = LOADS[0].work;

const fn row(
    name: &'static str,
    title: &'static str,
    unit: &'static str,
    kind: Kind,
    target: (f64, Option<f64>, bool),
) -> Row {
    let (must, aim, higher_is_better) = target;
    Row { name, title, unit, kind, target: Target { must, aim, higher_is_better } }
}

/// All rows, in the order of their loads.
pub(crate) const ROWS: [Row; 7] = [
    row(
        "write",
        "4 KiB random write, depth 32, two copies",
        IOPS,
        Kind::Rate("write"),
        (0.35, Some(0.5), true),
    ),
    row(
        "write-cpu",
        "4 KiB random write: time above NULL devices",
        "us, the difference",
        Kind::Cpu("write"),
        (8.0, None, false),
    ),
    row("read", "4 KiB random read, depth 32", IOPS, Kind::Rate("read"), (0.8, None, true)),
    row(
        "read-cpu",
        "4 KiB random read: time above NULL devices",
        "us, the difference",
        Kind::Cpu("read"),
        (3.0, None, false),
    ),
    row(
        "seq-write",
        "1 MiB sequential write, depth 8, two copies",
        MIB_PER_S,
        Kind::Rate("seq-write"),
        (0.4, Some(0.5), true),
    ),
    row(
        "seq-read",
        "1 MiB sequential read, depth 8",
        MIB_PER_S,
        Kind::Rate("seq-read"),
        (0.85, None, true),
    ),
    row(
        "full",
        "4 KiB random overwrite, depth 32: 99 % full over 50 %",
        "us median latency",
        Kind::Full,
        (1.3, None, false),
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_in_bytes_count_the_bytes_of_their_requests() {
        let row = |name: &str| ROWS.into_iter().find(|r| r.name == name).unwrap();
        assert_eq!(row("seq-read").rate(100.0, 1 << 20), 100.0);
        assert_eq!(row("seq-read").rate(100.0, 4 << 20), 400.0);
        assert_eq!(row("seq-write").rate(100.0, 4 << 10), 0.390_625);
        assert_eq!(row("read").rate(100.0, 4 << 10), 100.0);
    }

    #[test]
    fn every_row_names_a_load_that_exists() {
        for row in ROWS {
            if let Kind::Rate(name) | Kind::Cpu(name) = row.kind {
                assert!(LOADS.iter().any(|l| l.name == name), "{}", row.name);
            }
        }
    }
}
