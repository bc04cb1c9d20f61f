//! Builds of processes, as `status --json` publishes them.

use serde::Serialize;
use wire::control::BuildInfo;

/// The build of a process.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct Build {
    /// Its release, as `0.N.P`.
    pub release: String,
    /// The highest level of a cluster that it can belong to.
    pub level_max: u32,
    /// The oldest protocol version that it speaks.
    pub wire_min: u32,
    /// The newest protocol version that it speaks.
    pub wire_max: u32,
}

impl From<&BuildInfo> for Build {
    fn from(said: &BuildInfo) -> Build {
        let BuildInfo { release, level_max, version_min, version_max } = said.clone();
        Build { release, level_max, wire_min: version_min, wire_max: version_max }
    }
}
