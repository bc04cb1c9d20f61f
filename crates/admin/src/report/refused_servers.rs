//! Servers that the MDM refused, as `status --json` publishes them.

use serde::Serialize;

/// A server, or a device of one, that the MDM refused.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RefusedServer {
    /// The name in its configuration.
    pub name: String,
    /// The number of the device in that configuration.
    pub shard: u32,
    /// Its address. Empty if the MDM refused it before it gave its address.
    pub address: String,
    /// The reason, and what to do.
    pub why: String,
    /// Seconds since the last refusal.
    pub seconds_ago: u64,
}

impl From<&wire::control::RefusedServer> for RefusedServer {
    fn from(told: &wire::control::RefusedServer) -> RefusedServer {
        let wire::control::RefusedServer { name, shard, address, why, seconds_ago } = told.clone();
        RefusedServer { name, shard, address, why, seconds_ago }
    }
}
