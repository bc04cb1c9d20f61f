//! Changes of groups' records on their way to the unit store, and what continues when they are
//! durable.

use alloc::collections::{BTreeMap, BTreeSet};
use base::{Epoch, GroupId, Lsn};
use seam::{Buf, DiskError};
use wire::PeerLink;

/// What continues when a change is durable.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Waiting {
    /// Entering the configuration of this epoch, as a joiner or not.
    Entry { epoch: Epoch, joins: bool },
    /// The answer to a seal of this epoch, on this link.
    Seal { epoch: Epoch, lsn: Lsn, link: PeerLink },
    /// The answer to a wipe in this epoch, on this link.
    Wipe { epoch: Epoch, question: u64, link: PeerLink },
    /// The end of deleting a replica that left its group.
    Discard,
}

/// Changes that are not durable yet, and what the unit store has not been told yet.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub waiting: BTreeMap<u64, (GroupId, Waiting)>,
    pub next: u64,
    /// Groups with clean blocks that the unit store has not been told.
    pub untidy: BTreeSet<GroupId>,
}

impl Changes {
    /// Returns true while a seal of the group is not durable.
    pub fn seals(&self, group: GroupId) -> bool {
        let seals =
            |(of, what): &(GroupId, Waiting)| *of == group && matches!(what, Waiting::Seal { .. });
        self.waiting.values().any(seals)
    }

    /// Returns true if the last change in progress for the group is the same: it will be answered
    /// to the newest question. A primary repeats its question until it is answered, and a device
    /// that hangs would get a change for each.
    pub fn joins(&mut self, group: GroupId, asked: Waiting) -> bool {
        let last = self.waiting.values_mut().rev().find(|known| known.0 == group);
        let Some((_, known)) = last else { return false };
        let same = match (*known, asked) {
            (Waiting::Seal { epoch: e, lsn: l, .. }, Waiting::Seal { epoch, lsn, .. }) => {
                (e, l) == (epoch, lsn)
            }
            (Waiting::Wipe { epoch: e, .. }, Waiting::Wipe { epoch, .. }) => e == epoch,
            _ => false,
        };
        if same {
            *known = asked;
        }
        same
    }
}

/// Something that ended in the call that began it, without the device.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The media job of an operation, with its result.
    Job(u64, Result<Buf, DiskError>),
    /// A change of a group's record.
    Change(GroupId, Waiting),
}
