//! Replaced disks: a server's disk is replaced by an empty one, which is filled and may
//! continue alone. When all MDMs' logs are lost, the older disk comes back into its place: an
//! earlier backup knows it, and nothing on it shows that it is not the newest one. Later the
//! newer disk is put back.

use crate::disk::Disk;
use crate::plan::{Death, Who};
use crate::stage::Stage;
use mdm::recovery::JUMP;

/// A server's two disks.
#[derive(Debug)]
pub(crate) struct Replaced {
    /// The disk that is not in the server.
    aside: Disk,
    /// Content id of the older disk.
    older: u64,
    /// The older disk is in the server.
    back: bool,
}

impl Replaced {
    /// Returns true when the older disk is in the server.
    pub(crate) fn is_back(&self) -> bool {
        self.back
    }
}

/// A death that keeps the content.
const KEEPS: Death =
    Death { keep: true, power: false, midway: false, careful: false, server: false };

impl Stage {
    pub(crate) fn new_disk(&mut self, i: u8) {
        let who = Who::Sds(i);
        let death = Death { careful: true, ..Death::default() };
        let once = !self.replaced.contains_key(&i) && self.written.is_empty();
        let doubtful = self.only_doubts_need(i);
        if !once || !self.can_be_tampered(i) || !doubtful && !self.may_empty(&[who], death) {
            return;
        }
        if doubtful {
            self.marks.meet("sim: a disk with a copy of a group in doubt was replaced");
            self.rescue.device_was_emptied();
        }
        let Some(older) = self.durable(i).map(|d| d.identity().uuid[0]) else { return };
        self.marks.meet("sim: a disk was replaced");
        let aside = self.file(i).taken_out();
        self.kill(who, death);
        self.replaced.insert(i, Replaced { aside, older, back: false });
        self.start(who);
    }

    /// Returns true if a recovery has left groups in doubt, and all other groups can do without
    /// this server. Its disk is kept, so nothing is lost if it is replaced.
    fn only_doubts_need(&self, i: u8) -> bool {
        let (doubtful, device) = (self.doubtful(), self.id_of(i).0);
        let others = self.observer.groups.iter().filter(|(id, _)| !doubtful.contains(*id));
        let mut needs = others.map(|(_, g)| g.in_sync.contains(&device) && g.in_sync.len() < 2);
        !doubtful.is_empty() && !needs.any(|needs| needs)
    }

    pub(crate) fn older_disk(&mut self, i: u8) {
        let there = self.durable(i).map(|d| d.identity().uuid[0]);
        let newer = |r: &Replaced| !r.back && there.is_some_and(|store| store != r.older);
        let comes = self.has_no_mdm() && self.replaced.get(&i).is_some_and(newer);
        if comes && there.is_some_and(|store| self.is_named_elsewhere(i, store)) {
            self.marks.meet("sim: an older disk came back");
            self.rescue.device_was_emptied();
            self.exchange(i);
        }
    }

    /// Returns true if the map of another server that runs names this content of a device. If none
    /// does, nothing tells that it has replaced another one, so the older one is believed.
    fn is_named_elsewhere(&self, i: u8, store: u64) -> bool {
        let device = self.id_of(i);
        let others = (0..self.plan.sds).filter(|other| *other != i);
        let mut maps = others.filter_map(|other| Some(self.sds(other)?.map()));
        maps.any(|map| map.devices.get(&device).is_some_and(|d| d.store == store))
    }

    /// Returns true if a server's newer disk is rightly refused, as the MDM believes the older one:
    /// the older one was there when the recovery was over, and the newer one has no newest copy.
    pub(crate) fn is_older_believed(&self, i: u8) -> bool {
        let device = self.id_of(i);
        let believed = self.mdm().and_then(|m| m.state().devices.get(&device)).map(|d| d.store);
        let aside = self.replaced.get(&i).filter(|r| !r.back).map(|r| r.older);
        aside.is_some() && aside == believed && !self.has_newest_in_doubt(device)
    }

    pub(crate) fn newer_disk(&mut self, i: u8) {
        if self.has_older_disk(i) && !self.is_rescued() && !self.serves_alone(i) {
            self.marks.meet("sim: a newer disk came back");
            self.exchange(i);
        }
    }

    /// Returns true if a group that a recovery has settled has its only in-sync copy on this
    /// server.
    fn serves_alone(&self, i: u8) -> bool {
        let device = self.id_of(i).0;
        let mut settled = self.observer.groups.values().filter(|g| g.epoch > JUMP);
        settled.any(|g| g.in_sync == [device])
    }

    /// Returns true when the older disk is in the server, so that it may be refused.
    pub(crate) fn has_older_disk(&self, i: u8) -> bool {
        self.replaced.get(&i).is_some_and(Replaced::is_back)
    }

    /// Swaps the two disks of a server.
    pub(crate) fn exchange(&mut self, i: u8) {
        let who = Who::Sds(i);
        self.spare(who);
        self.kill(who, KEEPS);
        let mut replaced = self.replaced.remove(&i).expect("it was looked up");
        replaced.back = !replaced.back;
        std::mem::swap(&mut replaced.aside, self.file(i));
        self.replaced.insert(i, replaced);
        self.start(who);
    }
}
