//! Servers, and MDMs that are too old, that this leader has refused lately. The status shows them,
//! because no other list has the reason.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use base::Time;
use base::time::Duration;
use wire::control::RefusedServer;

/// The most servers that are kept: the latest ones.
pub(super) const MOST: usize = 16;
/// How long each of them is shown.
const SHOWN_FOR: Duration = Duration::from_secs(600);

/// The servers that this leader has refused.
#[derive(Debug, Default)]
pub(super) struct RefusedServers {
    list: VecDeque<(Time, RefusedServer)>,
}

impl RefusedServers {
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Records that a server was refused. The entry replaces an earlier one of the same shard.
    pub(super) fn put(&mut self, now: Time, name: &str, shard: u32, address: &str, why: &str) {
        self.remove(name, shard);
        if self.list.len() == MOST {
            self.list.pop_front();
        }
        let (name, why) = (String::from(name), String::from(why));
        let address = String::from(address);
        self.list.push_back((now, RefusedServer { name, shard, address, why, seconds_ago: 0 }));
    }

    /// Removes the entry of a shard that was accepted.
    pub(super) fn remove(&mut self, name: &str, shard: u32) {
        self.list.retain(|(_, old)| (old.name.as_str(), old.shard) != (name, shard));
    }

    /// Returns the entries of the last ten minutes, the earliest first.
    pub(super) fn lately(&self, now: Time) -> Vec<RefusedServer> {
        let recent = self.list.iter().filter(|(at, _)| now.since(*at) < SHOWN_FOR);
        let aged = |(at, one): &(Time, RefusedServer)| RefusedServer {
            seconds_ago: now.since(*at).as_secs(),
            ..one.clone()
        };
        recent.map(aged).collect()
    }
}
