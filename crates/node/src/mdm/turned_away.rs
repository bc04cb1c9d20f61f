//! Servers that were turned away lately, for the status: they are in no other list.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use base::Time;
use base::time::Duration;
use wire::control::TurnedAway;

/// So many are kept, the latest ones.
pub(super) const MOST: usize = 16;
/// How long one is told.
const TOLD: Duration = Duration::from_secs(600);

/// Those of this leader's time.
#[derive(Debug, Default)]
pub(super) struct TurnedAways {
    list: VecDeque<(Time, TurnedAway)>,
}

impl TurnedAways {
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// One was turned away. It takes the place of what was said about the same server before.
    pub(super) fn put(&mut self, now: Time, name: &str, shard: u32, address: &str, why: &str) {
        self.came(name, shard);
        if self.list.len() == MOST {
            self.list.pop_front();
        }
        let (name, why) = (String::from(name), String::from(why));
        let address = String::from(address);
        self.list.push_back((now, TurnedAway { name, shard, address, why, seconds_ago: 0 }));
    }

    /// This one was taken in.
    pub(super) fn came(&mut self, name: &str, shard: u32) {
        self.list.retain(|(_, old)| (old.name.as_str(), old.shard) != (name, shard));
    }

    /// Those of the last ten minutes, the earliest first.
    pub(super) fn lately(&self, now: Time) -> Vec<TurnedAway> {
        let told = self.list.iter().filter(|(at, _)| now.since(*at) < TOLD);
        let aged = |(at, one): &(Time, TurnedAway)| TurnedAway {
            seconds_ago: now.since(*at).as_secs(),
            ..one.clone()
        };
        told.map(aged).collect()
    }
}
