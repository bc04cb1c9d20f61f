//! Replaced disks: a server's disk is replaced by an empty one, which is filled and may
//! continue alone. When all MDMs' logs are lost, the older disk comes back into its place: an
//! earlier backup knows it, and nothing on it shows that it is not the newest one. Later the
//! newer disk is put back.

use crate::disk::Disk;
use crate::plan::{Death, Who};
use crate::stage::Stage;
use mdm::group::Doubt;
use mdm::recovery::JUMP;

/// A server's two disks.
#[derive(Debug)]
pub(crate) struct Replaced {
    /// The disk that is not in the server.
    aside: Disk,
    /// Its content id, if it could be read.
    store: Option<u64>,
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
        let Some(older) = self.store_of(i) else { return };
        self.marks.meet("sim: a disk was replaced");
        // The other servers may have no data of a volume that the MDMs do not know.
        self.lose_last_data(&[who]);
        let aside = self.file(i).taken_out();
        self.kill(who, death);
        self.replaced.insert(i, Replaced { aside, store: Some(older), older, back: false });
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
        let there = self.store_of(i);
        let newer = |r: &Replaced| !r.back && there.is_some_and(|store| store != r.older);
        let comes = self.has_no_mdm() && self.replaced.get(&i).is_some_and(newer);
        if comes && there.is_some_and(|store| !self.servers_naming(i, store).is_empty()) {
            self.marks.meet("sim: an older disk came back");
            self.rescue.device_was_emptied();
            self.lose_last_data(&[Who::Sds(i)]);
            self.exchange(i);
        }
    }

    /// Returns true if only this server's map shows that an older disk came back elsewhere, and no
    /// MDM has heard of it. If the server restarted, the older disk would be believed.
    pub(crate) fn is_last_witness(&self, i: u8) -> bool {
        self.witnesses().iter().any(|(servers, told)| !told && *servers == [i])
    }

    /// Returns true if only the MDMs know that an older disk came back.
    pub(crate) fn is_mdm_last_witness(&self) -> bool {
        self.witnesses().iter().any(|(servers, told)| *told && servers.is_empty())
    }

    /// Returns who knows of each older disk that came back while groups are in doubt: the other
    /// servers whose maps name the newer disk, and whether the MDM waits for it.
    fn witnesses(&self) -> Vec<(Vec<u8>, bool)> {
        let stored = self.mdm().map(|m| &m.state().recovery.awaited);
        let back = self.replaced.iter().filter(|(_, r)| r.back && !self.is_rescued());
        let known = back.filter_map(|(i, replaced)| {
            let (device, newer) = (self.id_of(*i), replaced.store?);
            let servers = self.servers_naming(*i, newer);
            let told = stored.and_then(|all| all.get(&device)).is_some_and(|(_, s)| *s == newer);
            Some((servers, told))
        });
        known.collect()
    }

    /// Returns the other servers that run and whose maps name this content of a server's device. If
    /// there are none, nothing tells that it has replaced another one, so the older one is
    /// believed.
    fn servers_naming(&self, i: u8, store: u64) -> Vec<u8> {
        let device = self.id_of(i);
        let names = |other: &u8| {
            let known = self.sds(*other).and_then(|s| s.map().devices.get(&device));
            known.is_some_and(|d| d.store == store)
        };
        (0..self.plan.sds).filter(|other| *other != i).filter(names).collect()
    }

    /// Returns the content id of the disk that is in a server, if it can be read now.
    fn store_of(&self, i: u8) -> Option<u64> {
        self.durable(i).map(|d| d.identity().uuid[0])
    }

    /// Returns true if a server's newer disk is rightly refused, as the MDM believes the other one:
    /// that one was there when the recovery was over, and the newer one has no newest copy.
    pub(crate) fn is_older_believed(&self, i: u8) -> bool {
        let device = self.id_of(i);
        let believed = self.mdm().and_then(|m| m.state().devices.get(&device)).map(|d| d.store);
        let aside = self.replaced.get(&i).filter(|r| !r.back).and_then(|r| r.store);
        aside.is_some() && aside == believed && !self.has_newest_in_doubt(device)
    }

    /// Returns true if a server's disk is rightly refused, as the MDM relies on the other one: it
    /// has an in-sync copy of a group that is not in doubt.
    pub(crate) fn is_other_in_use(&self, i: u8) -> bool {
        let device = self.id_of(i);
        let groups = self.mdm().into_iter().flat_map(|m| m.state().groups.values());
        let mut settled = groups.filter(|g| g.doubt == Doubt::None);
        self.replaced.contains_key(&i) && settled.any(|g| g.in_sync.contains(&device))
    }

    /// Returns true if the MDM has not noticed yet that the process with the other disk is gone. It
    /// does so soon.
    pub(crate) fn counts_as_up(&self, i: u8) -> bool {
        let device = self.id_of(i);
        self.replaced.contains_key(&i) && self.mdm().is_some_and(|m| m.state().is_up(device))
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
        let there = self.store_of(i);
        self.spare(who);
        self.kill(who, KEEPS);
        let mut replaced = self.replaced.remove(&i).expect("it was looked up");
        replaced.back = !replaced.back;
        replaced.store = there;
        std::mem::swap(&mut replaced.aside, self.file(i));
        self.replaced.insert(i, replaced);
        self.start(who);
    }
}
