//! Which client writes a replica's content includes (rule R8), so that a retry of one is not executed
//! a second time, over what came after it.
//!
//! Bounded: a client says with every write which number is its lowest unanswered one; lower ones are
//! never retried, and forgotten.

use alloc::vec::Vec;
use base::{Incarnation, SdcId};

#[derive(Clone, Debug, PartialEq, Eq)]
struct Client {
    sdc: SdcId,
    incarnation: Incarnation,
    floor: u64,
    seqs: Vec<u64>,
    prune_at: usize,
}

/// Executed writes by client; only the newest life of each client counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecutedList {
    clients: Vec<Client>,
}

impl ExecutedList {
    /// Remembers a write.
    pub fn record(&mut self, sdc: SdcId, incarnation: Incarnation, seq: u64, floor: u64) {
        let index = self.clients.iter().position(|c| c.sdc == sdc).unwrap_or_else(|| {
            self.clients.push(Client { sdc, incarnation, floor, seqs: Vec::new(), prune_at: 32 });
            self.clients.len() - 1
        });
        let client = &mut self.clients[index];
        if client.incarnation != incarnation {
            if client.incarnation > incarnation {
                return;
            }
            *client = Client { sdc, incarnation, floor, seqs: Vec::new(), prune_at: 32 };
        }
        client.floor = client.floor.max(floor);
        if seq < client.floor {
            return;
        }
        if client.seqs.len() >= client.prune_at {
            let floor = client.floor;
            client.seqs.retain(|s| *s >= floor);
            client.prune_at = (client.seqs.len() * 2).max(32);
        }
        client.seqs.push(seq);
    }

    /// True when this write is part of the content.
    pub fn contains(&self, sdc: SdcId, incarnation: Incarnation, seq: u64) -> bool {
        let client = self.clients.iter().find(|c| c.sdc == sdc && c.incarnation == incarnation);
        client.is_some_and(|c| c.seqs.contains(&seq))
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (SdcId, Incarnation, u64)> {
        self.clients.iter().flat_map(|c| c.seqs.iter().map(|seq| (c.sdc, c.incarnation, *seq)))
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.clients.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_what_may_be_retried_and_no_more() {
        let (mut list, sdc, life) = (ExecutedList::default(), SdcId(1), Incarnation(5));
        for seq in 1..10_000 {
            list.record(sdc, life, seq, seq.saturating_sub(4));
        }
        assert!((9_995..10_000).all(|seq| list.contains(sdc, life, seq)));
        assert!(list.clients[0].seqs.len() <= 64);
        list.record(sdc, Incarnation(6), 1, 1);
        assert!(list.contains(sdc, Incarnation(6), 1) && !list.contains(sdc, life, 9_999));
        list.record(sdc, life, 2, 1);
        assert!(!list.contains(sdc, life, 2), "an older life counts no more");
    }
}
