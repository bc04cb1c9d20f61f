//! What ESG Lab published about ScaleIO in 2015: hosts with 20 cores of 2.8 GHz, each a data server
//! and a client at once, 4 KiB at random places.

use serde::Serialize;

/// Cores of each host, and their clock.
pub const CORES: f64 = 20.0;
/// IOPS of one host with NULL devices, reads.
pub const NULL_DEVICE: f64 = 240e3;
/// The same with one PCIe flash card.
pub const FLASH_CARD: f64 = 220e3;
/// All reads of 128 hosts.
const READS_AT_128: f64 = 31e6;
/// All reads and writes of 128 hosts, 70/30; and per host with fewer.
const MIXED_AT_128: f64 = 23.7e6;
const MIXED: f64 = 220e3;
/// The sizes that were measured.
pub const NODES: [u32; 4] = [3, 32, 64, 128];
/// Microseconds of processor time per read: 20 cores do 240 K of them.
pub const CPU_US_PER_READ: f64 = CORES * 1e6 / NULL_DEVICE;

/// What is done to the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// 100 % read.
    Read,
    /// 70 % read, 30 % write.
    Mixed,
}

impl Kind {
    /// Both.
    pub const ALL: [Kind; 2] = [Kind::Read, Kind::Mixed];

    /// For people.
    pub fn title(self) -> &'static str {
        match self {
            Kind::Read => "100 % read",
            Kind::Mixed => "70 % read, 30 % write",
        }
    }

    /// In names.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Read => "read",
            Kind::Mixed => "mixed",
        }
    }
}

/// What so many hosts did in all. At 128 that is the published sum; below, "linear" and "about 220 K per
/// node" are what is published, so those are products; `None` for a size that was not measured.
pub fn iops(kind: Kind, nodes: u32) -> Option<f64> {
    let n = f64::from(nodes);
    match (kind, nodes) {
        _ if !NODES.contains(&nodes) => None,
        (Kind::Read, 128) => Some(READS_AT_128),
        (Kind::Mixed, 128) => Some(MIXED_AT_128),
        (Kind::Read, _) => Some(NULL_DEVICE * n),
        (Kind::Mixed, _) => Some(MIXED * n),
    }
}

/// Processor time per I/O, in microseconds, if one believes that all cores were busy.
pub fn cpu_us(kind: Kind, nodes: u32) -> Option<f64> {
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
