//! A replica that is none any more: what it had is deleted (rule R11).
//!
//! Invariant: nothing is deleted but by a configuration of this very group that was entered, doesn't name
//! this device, and was told by an MDM: another server may lie. A crash on the way leaves the content, or none of it; the next life's map says the same again.
//! The epoch in which it acted is kept: should it become a replica again, it acts in a newer one only.

use crate::marks::Waiting;
use crate::mirror::Mirror;
use alloc::vec;
use base::{Epoch, GroupId, Mutant, Time, mutant};
use seam::{Change, Effects, Journal, Note};

impl<J: Journal> Mirror<J> {
    /// Deletes what is here of a group to which this device doesn't belong. Nothing else begins in the group
    /// until that is durable: it counts as a job.
    pub(crate) fn discard(&mut self, now: Time, group: GroupId, out: &mut Effects) {
        let Some(replica) = self.replicas.get_mut(group) else { return };
        let record = &replica.record;
        let marked = !record.dirty.is_empty() || record.all_dirty || record.base > Epoch(0);
        let empty = self.journal.is_empty(group) && !marked;
        if empty || mutant::on(Mutant::KeepForeign) {
            return;
        }
        replica.record.clean();
        replica.record.executed.clear();
        replica.record.base = Epoch(0);
        replica.local += 1;
        out.note(Note::Discarded { group });
        self.change_first(now, group, vec![Change::Wipe], Waiting::Discard, out);
    }

    /// It is gone, durably.
    pub(crate) fn discarded(&mut self, now: Time, group: GroupId, out: &mut Effects) {
        let Some(replica) = self.replicas.get_mut(group) else { return };
        replica.local -= 1;
        self.enter(now, group, out);
        self.pump(now, out);
    }

    /// What only another server has said of this group, an MDM has said, too: now it may cost what is here.
    pub(crate) fn enter_again(&mut self, now: Time, group: GroupId, out: &mut Effects) {
        let Some(replica) = self.replicas.get_mut(group) else { return };
        if replica.next.is_none() && !replica.config.replicas.contains(&self.me) {
            replica.next = Some((replica.config.clone(), replica.map));
            self.enter(now, group, out);
        }
    }
}
