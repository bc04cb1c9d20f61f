//! The figures that ESG Lab published about ScaleIO in 2015: hosts with 20 cores of 2.8 GHz, each a
//! data server and a client at once, 4 KiB at random offsets.

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

/// Returns the processor time per I/O in microseconds, on the assumption that all cores were busy.
pub(crate) fn cpu_us(kind: Kind, nodes: u32) -> Option<f64> {
    Some(CORES * 1e6 * f64::from(nodes) / iops(kind, nodes)?)
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
}
