//! The figures that ESG Lab published about ScaleIO in 2015: hosts with 20 cores of 2.8 GHz, each a
//! data server and a client at once, 4 KiB at random offsets.

use super::slope::slope;
use crate::report::table::Cell;
use serde::Serialize;

/// Cores of each host.
pub(crate) const CORES: f64 = 20.0;
/// IOPS of one host with NULL devices, reads.
pub(crate) const NULL_DEVICE: f64 = 240e3;
/// IOPS of one host with one PCIe flash card, reads.
pub(crate) const FLASH_CARD: f64 = 220e3;
/// IOPS of 128 hosts together, reads.
const READS_AT_128: f64 = 31e6;
/// IOPS with 70 % reads: of 128 hosts together, and per host with fewer hosts.
const MIXED_AT_128: f64 = 23.7e6;
const MIXED: f64 = 220e3;
/// The part of NULL devices' IOPS that flash is to reach.
const FLASH_READ_SHARE: f64 = 0.91;
const FLASH_MIXED_SHARE: f64 = 0.85;
/// IOPS of 128 hosts with flash, as the publication estimates them.
const FLASH_READS_AT_128: f64 = 28.3e6;
const FLASH_MIXED_AT_128: f64 = 20e6;
/// The numbers of hosts that were measured.
pub(crate) const NODES: [u32; 4] = [3, 32, 64, 128];
/// Microseconds of processor time per read, as 20 cores do 240 K reads per second.
pub(crate) const CPU_US_PER_READ: f64 = CORES * 1e6 / NULL_DEVICE;

/// The workload.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// 100 % read.
    Read,
    /// 70 % read, 30 % write.
    Mixed,
}

impl Kind {
    /// Both workloads.
    pub(crate) const ALL: [Kind; 2] = [Kind::Read, Kind::Mixed];

    /// Returns the description for people.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Kind::Read => "100 % read",
            Kind::Mixed => "70 % read, 30 % write",
        }
    }

    /// Returns the name of the workload in row names.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Read => "read",
            Kind::Mixed => "mixed",
        }
    }
}

/// Returns the IOPS of this number of hosts together. For 128 the sum was published. For fewer, the
/// publication says "linear" and "about 220 K per node", so the result is a product. `None` for a
/// number that was not measured.
pub(crate) fn iops(kind: Kind, nodes: u32) -> Option<f64> {
    let n = f64::from(nodes);
    match (kind, nodes) {
        _ if !NODES.contains(&nodes) => None,
        (Kind::Read, 128) => Some(READS_AT_128),
        (Kind::Mixed, 128) => Some(MIXED_AT_128),
        (Kind::Read, _) => Some(NULL_DEVICE * n),
        (Kind::Mixed, _) => Some(MIXED * n),
    }
}

/// Returns the IOPS of this number of hosts with flash cards. For 128 hosts the publication has an
/// estimate, and for three it has measured reads. The others are the share of NULL devices' IOPS.
pub(crate) fn flash_iops(kind: Kind, nodes: u32) -> Option<f64> {
    match (kind, nodes) {
        (Kind::Read, 3) => Some(3.0 * FLASH_CARD),
        (Kind::Read, 128) => Some(FLASH_READS_AT_128),
        (Kind::Mixed, 128) => Some(FLASH_MIXED_AT_128),
        _ => Some(iops(kind, nodes)? * flash_share(kind)),
    }
}

/// Returns the part of NULL devices' IOPS that flash cards are to reach.
pub(crate) fn flash_share(kind: Kind) -> f64 {
    match kind {
        Kind::Read => FLASH_READ_SHARE,
        Kind::Mixed => FLASH_MIXED_SHARE,
    }
}

/// Returns a published sum as the cell of a table: stated for 128 hosts, and for three hosts with
/// flash; else derived.
pub(crate) fn cell(kind: Kind, nodes: u32, flash: bool) -> Cell {
    let value = if flash { flash_iops(kind, nodes) } else { iops(kind, nodes) };
    let stated = nodes == 128 || (flash && kind == Kind::Read && nodes == 3);
    match value {
        Some(value) if stated => Cell::Number(value),
        Some(value) => Cell::Derived(value),
        None => Cell::None,
    }
}

/// Returns the processor time per I/O in microseconds, on the assumption that all cores were busy.
pub(crate) fn cpu_us(kind: Kind, nodes: u32) -> Option<f64> {
    Some(CORES * 1e6 * f64::from(nodes) / iops(kind, nodes)?)
}

/// Returns the slope of the published sums.
pub(crate) fn published_slope(kind: Kind) -> f64 {
    let points: Vec<(f64, f64)> =
        NODES.iter().filter_map(|n| Some((f64::from(*n), iops(kind, *n)?))).collect();
    slope(&points).expect("there are four sizes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_and_sums_agree_with_what_is_published() {
        assert_eq!(CPU_US_PER_READ.round(), 83.0);
        let per_node = |kind, nodes| (iops(kind, nodes).unwrap() / f64::from(nodes) / 1e3).round();
        assert_eq!((per_node(Kind::Read, 3), per_node(Kind::Read, 128)), (240.0, 242.0));
        assert_eq!((per_node(Kind::Mixed, 64), per_node(Kind::Mixed, 128)), (220.0, 185.0));
        assert_eq!(iops(Kind::Read, 6), None);
        assert_eq!(cpu_us(Kind::Mixed, 128).unwrap().round(), 108.0);
    }

    #[test]
    fn what_flash_is_to_reach_agrees_with_the_published_table() {
        let millions = |kind, nodes| (flash_iops(kind, nodes).unwrap() / 1e4).round() / 100.0;
        assert_eq!((millions(Kind::Read, 3), millions(Kind::Mixed, 3)), (0.66, 0.56));
        assert_eq!((millions(Kind::Read, 32), millions(Kind::Read, 64)), (6.99, 13.98));
        assert_eq!((millions(Kind::Mixed, 32), millions(Kind::Mixed, 64)), (5.98, 11.97));
        assert_eq!((FLASH_CARD / NULL_DEVICE * 100.0).round(), 92.0, "stated as 9 % apart");
        assert_eq!(cell(Kind::Mixed, 128, true), Cell::Number(20e6));
        assert_eq!(cell(Kind::Read, 32, false), Cell::Derived(7.68e6));
    }

    #[test]
    fn the_published_sums_have_the_slopes_that_the_text_calls_linear() {
        let hundredths = |kind| (published_slope(kind) * 100.0).round() / 100.0;
        assert_eq!((hundredths(Kind::Read), hundredths(Kind::Mixed)), (1.0, 0.97));
    }
}
