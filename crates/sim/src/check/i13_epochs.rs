//! Judges I13 and I4: epochs only rise; in each epoch of a group, only one incarnation of one
//! process is active; a replica joins before it is in sync; and a primary is in sync.
//!
//! The judge watches the map pages that the MDMs send, and the notes of primaries.

use super::Failure;
use super::pools::Places;
use crate::world::ProcId;
use base::{DeviceId, Epoch, GroupId, MapVersion, SdcId, VolumeId};
use mdm::group::Doubt;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use wire::control::{GroupInfo, Intent, MapPage};

/// A device, as the last page described it.
#[derive(Clone, Debug)]
pub struct Device {
    /// Its address.
    pub address: Option<SocketAddr>,
    /// The MDM takes it for alive.
    pub up: bool,
    /// Its incarnation by the map.
    pub incarnation: u64,
    /// Bytes for data.
    pub capacity: u64,
    /// Its storage pool.
    pub pool: u32,
    /// The device is to be removed.
    pub leaves: bool,
    /// The device was removed.
    pub removed: bool,
}

/// The map, as the pages of the MDMs show it.
#[derive(Default, Debug)]
pub struct Observer {
    /// The newest version.
    pub version: MapVersion,
    /// Groups.
    pub groups: BTreeMap<GroupId, GroupInfo>,
    /// Devices.
    pub devices: BTreeMap<DeviceId, Device>,
    /// Groups and size in bytes of each volume.
    pub volumes: BTreeMap<u32, (Vec<u32>, u64)>,
    /// Gateways that have had a seat, by volume.
    pub seated: BTreeSet<(VolumeId, SdcId)>,
    /// Servers and pools of devices and groups.
    pub places: Places,
    active: BTreeMap<(GroupId, Epoch), (ProcId, u32)>,
}

impl Observer {
    /// Creates an observer that has seen no page.
    pub fn new(places: Places) -> Observer {
        Observer { places, ..Observer::default() }
    }

    /// Processes a page that an MDM sent.
    pub fn page(&mut self, page: MapPage) -> Result<(), Failure> {
        self.places.page(&page)?;
        let version = MapVersion(page.version);
        let newest = version >= self.version;
        self.version = self.version.max(version);
        let strangers: Vec<(GroupId, Failure)> = page
            .groups
            .into_iter()
            .map(|g| self.group(g))
            .collect::<Result<Vec<_>, _>>()?
            .into_iter()
            .flatten()
            .collect();
        for v in &page.volumes {
            self.seated.extend(v.seats.iter().map(|seat| (VolumeId(v.id), SdcId(seat.sdc))));
        }
        let before: Vec<u32> = self.volumes.keys().copied().collect();
        if newest {
            for d in page.devices {
                let device = Device {
                    address: d.address.parse().ok(),
                    up: d.up,
                    incarnation: d.incarnation,
                    capacity: d.capacity,
                    pool: d.pool,
                    leaves: d.intent() == Intent::Remove,
                    removed: d.intent() == Intent::Removed,
                };
                self.devices.insert(DeviceId(d.id), device);
            }
            for v in page.volumes {
                self.volumes.insert(v.id, (v.slots, v.size));
            }
            if page.last {
                self.volumes.retain(|id, _| page.live.contains(id));
            }
        }
        // A lost group that no volume uses may be formed again, and the same page may contain a
        // volume that was made after that.
        let old = || self.volumes.iter().filter(|(id, _)| before.contains(id));
        let used = |id: GroupId| old().any(|(_, (slots, _))| slots.contains(&id.0));
        match strangers.into_iter().find(|(id, _)| used(*id)) {
            Some((_, failure)) => Err(failure),
            None => Ok(()),
        }
    }

    /// Processes a group of a page. Returns a replica that got in sync without joining.
    fn group(&mut self, new: GroupInfo) -> Result<Option<(GroupId, Failure)>, Failure> {
        let id = GroupId(new.id);
        let mut suspect = None;
        if new.primary != 0 && !new.in_sync.contains(&new.primary) {
            return Err(Failure::new("I4", format!("the primary is not in sync: {new:?}")));
        }
        match self.groups.get_mut(&id) {
            // A recovery may know only an older configuration, or can't tell whether
            // the newest one holds.
            Some(old) if is_doubted(old, &new) => {
                old.doubt = new.doubt;
                return Ok(None);
            }
            Some(old) if new.epoch < old.epoch => return Ok(None), // an older page
            Some(old) if new.epoch == old.epoch && *old != new => {
                let text = format!("one epoch, two configurations: {old:?} and {new:?}");
                return Err(Failure::new("I13", text));
            }
            Some(old) if new.epoch == old.epoch + 1 && !old.lost => {
                let dropped = old.in_sync.iter().find(|d| !new.replicas.contains(d));
                if let Some(d) = dropped.filter(|_| new.in_sync.len() < new.replicas.len().min(2)) {
                    let text = format!("device {d} was dropped too early: {old:?}, then {new:?}");
                    return Err(Failure::new("R11", text));
                }
                let stranger = new
                    .in_sync
                    .iter()
                    .find(|d| !old.in_sync.contains(d) && !old.joiners.contains(d));
                if let Some(d) = stranger {
                    let text =
                        format!("device {d} got in sync without joining: {old:?}, then {new:?}");
                    suspect = Some((id, Failure::new("I4", text)));
                }
            }
            _ => {}
        }
        self.groups.insert(id, new);
        Ok(suspect)
    }

    /// Processes the note of a primary that it is active.
    pub fn active(
        &mut self,
        who: ProcId,
        life: u32,
        group: GroupId,
        epoch: Epoch,
    ) -> Result<(), Failure> {
        match self.active.insert((group, epoch), (who, life)) {
            Some(other) if other != (who, life) => {
                let text =
                    format!("{group} {epoch}: {other:?} and {:?} are both active", (who, life));
                Err(Failure::new("I13", text))
            }
            _ => Ok(()),
        }
    }

    /// Returns which incarnation of which process is active in this epoch of a group.
    pub fn who_is_active(&self, group: GroupId, epoch: Epoch) -> Option<(ProcId, u32)> {
        self.active.get(&(group, epoch)).copied()
    }
}

/// Returns true when a recovery publishes a present or earlier configuration of a group as
/// in doubt, without a primary and without joiners. Devices that were emptied meanwhile
/// may be missing in it.
fn is_doubted(old: &GroupInfo, new: &GroupInfo) -> bool {
    let emptied = new.doubt == Doubt::Gone as u32;
    let part = emptied && new.in_sync.iter().all(|d| old.in_sync.contains(d));
    let as_before = GroupInfo {
        primary: old.primary,
        joiners: old.joiners.clone(),
        in_sync: if part { &old.in_sync } else { &new.in_sync }.clone(),
        doubt: old.doubt,
        reached: old.reached,
        ..new.clone()
    };
    let as_before = new.epoch < old.epoch || as_before == *old;
    new.doubt != 0 && new.primary == 0 && new.joiners.is_empty() && as_before
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(groups: [GroupInfo; 2]) -> Result<(), Failure> {
        let mut observer = Observer::default();
        groups.into_iter().try_for_each(|g| observer.group(g).map(|_| ()))
    }

    #[test]
    fn an_epoch_has_one_configuration_and_may_come_into_doubt() {
        let led = || GroupInfo {
            id: 3,
            epoch: 1,
            primary: 1,
            replicas: vec![1, 5],
            in_sync: vec![1, 5],
            ..GroupInfo::default()
        };
        let doubted = || GroupInfo { primary: 0, doubt: 1, ..led() };
        assert_eq!(told([led(), doubted()]), Ok(()));
        assert!(told([led(), GroupInfo { doubt: 0, ..doubted() }]).is_err(), "nobody doubts it");
        assert!(told([led(), GroupInfo { primary: 5, ..doubted() }]).is_err(), "another one leads");
        let one = || GroupInfo { in_sync: vec![1], ..doubted() };
        assert!(told([led(), one()]).is_err(), "nobody was emptied");
        let gone = Doubt::Gone as u32;
        assert_eq!(told([led(), GroupInfo { doubt: gone, ..one() }]), Ok(()));
        let other = GroupInfo { in_sync: vec![1, 6], doubt: gone, ..doubted() };
        assert!(told([led(), other]).is_err());
        let solo = GroupInfo { epoch: 2, in_sync: vec![1], ..led() };
        assert_eq!(told([solo, doubted()]), Ok(()), "a backup knows an older one");
    }
}
