//! Lengths of the lists that peers, clients and strangers can make longer, for judges, and the
//! bounds of these lengths. `docs/internals/limits.md` explains the bounds.

use super::inputs::INPUTS;
use super::links::{ADMINS, INPUTS_PER_LINK, Peer};
use super::peers::{MESSAGE_MAX, UNPROVEN};
use super::verdicts::DOUBTS;
use super::{Mdm, refused_servers};
use alloc::collections::BTreeMap;
use mdm::refused::{MAX_DEVICES, MAX_MEMBERS};

/// The most MDMs that called before the state named them. Removed members are kept until they no
/// longer count.
const HEARD_OF: usize = 2 * MAX_MEMBERS;

/// Returns the most MDMs that one MDM dials: those that the state names, those that called, those
/// that any of these names, and removed members until they no longer count.
const fn contacts_max() -> usize {
    let known = MAX_MEMBERS + HEARD_OF;
    known + known * MAX_MEMBERS + MAX_MEMBERS
}

/// Lengths of lists, or their bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListLengths {
    /// Links for orders.
    pub admins: usize,
    /// Inputs of links that wait for the disk.
    pub inputs: usize,
    /// Inputs of one link that wait for the disk.
    pub link_inputs: usize,
    /// Links in the name of one other MDM.
    pub member_links: usize,
    /// Bytes of a message of another MDM that has not arrived as a whole.
    pub parts: usize,
    /// Bytes of all such messages.
    pub all_parts: usize,
    /// MDMs that this one dials.
    pub contacts: usize,
    /// MDMs that called before the state named them.
    pub heard_of: usize,
    /// Devices that have reported to a recovering MDM.
    pub device_reports: usize,
    /// Servers that were refused lately.
    pub refused_servers: usize,
    /// Verdicts on devices that wait for others.
    pub verdicts: usize,
    /// Proposals whose suspicions wait for a verdict.
    pub doubts: usize,
}

impl Mdm {
    /// Returns the lengths of the lists.
    pub fn list_lengths(&self) -> ListLengths {
        let mut members: BTreeMap<u32, usize> = BTreeMap::new();
        for (_, link) in self.links.iter() {
            if let Peer::Mdm(member) = link.peer {
                *members.entry(member).or_default() += 1;
            }
        }
        let (verdicts, doubts) = self.watch.waiting();
        let parts = || self.links.iter().map(|(_, l)| l.parts.len());
        ListLengths {
            admins: self.links.admins(),
            inputs: self.links.queued().sum(),
            link_inputs: self.links.queued().max().unwrap_or(0),
            member_links: members.into_values().max().unwrap_or(0),
            parts: parts().max().unwrap_or(0),
            all_parts: parts().sum(),
            contacts: self.peers.contacts(),
            heard_of: self.peers.heard_of(),
            device_reports: self.reports.len(),
            refused_servers: self.refused_servers.len(),
            verdicts,
            doubts,
        }
    }

    /// Returns the bounds of the lengths.
    pub fn list_bounds(&self) -> ListLengths {
        ListLengths {
            admins: ADMINS,
            inputs: INPUTS,
            link_inputs: INPUTS_PER_LINK as usize,
            // The proven link is one more.
            member_links: UNPROVEN + 1,
            parts: MESSAGE_MAX,
            all_parts: MAX_MEMBERS * MESSAGE_MAX,
            contacts: contacts_max(),
            heard_of: HEARD_OF,
            device_reports: self.state().devices.len(),
            refused_servers: refused_servers::MOST,
            // At most one for each device.
            verdicts: MAX_DEVICES,
            doubts: DOUBTS,
        }
    }
}
