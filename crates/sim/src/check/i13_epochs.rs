//! I13 and I4: epochs only rise; in each epoch of a group one process is active, in one life; a
//! replica gets into the in-sync set through being a joiner, and a primary is in sync.
//!
//! It watches the map pages that the MDM sends, and what primaries say of themselves.

use super::Failure;
use super::pools::Places;
use crate::world::ProcId;
use base::{DeviceId, Epoch, GroupId, MapVersion};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use wire::control::{GroupInfo, Intent, MapPage};

/// A device, as the last page told.
#[derive(Clone, Debug)]
pub struct Device {
    /// Where it listens.
    pub address: Option<SocketAddr>,
    /// Thought to be alive.
    pub up: bool,
    /// The life that the map knows.
    pub incarnation: u64,
    /// Bytes for data.
    pub capacity: u64,
    /// Its storage pool.
    pub pool: u32,
    /// It is to be removed.
    pub leaves: bool,
    /// It was.
    pub removed: bool,
}

/// The map as an observer of the MDM's links knows it.
#[derive(Default, Debug)]
pub struct Observer {
    /// The newest version seen.
    pub version: MapVersion,
    /// Groups.
    pub groups: BTreeMap<GroupId, GroupInfo>,
    /// Devices.
    pub devices: BTreeMap<DeviceId, Device>,
    /// Volumes: their groups, and bytes.
    pub volumes: BTreeMap<u32, (Vec<u32>, u64)>,
    /// Who is where.
    pub places: Places,
    active: BTreeMap<(GroupId, Epoch), (ProcId, u32)>,
}

impl Observer {
    /// Nothing is known yet.
    pub fn new(places: Places) -> Observer {
        Observer { places, ..Observer::default() }
    }

    /// Takes in a page that the MDM sent.
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
        // A lost group that no volume uses may be formed anew; a page may tell of a volume, too, that
        // was made after that.
        let old = || self.volumes.iter().filter(|(id, _)| before.contains(id));
        let used = |id: GroupId| old().any(|(_, (slots, _))| slots.contains(&id.0));
        match strangers.into_iter().find(|(id, _)| used(*id)) {
            Some((_, failure)) => Err(failure),
            None => Ok(()),
        }
    }

    /// Takes in a group; tells of a replica that got in sync without joining.
    fn group(&mut self, new: GroupInfo) -> Result<Option<(GroupId, Failure)>, Failure> {
        let id = GroupId(new.id);
        let mut suspect = None;
        if new.primary != 0 && !new.in_sync.contains(&new.primary) {
            return Err(Failure::new("I4", format!("the primary is not in sync: {new:?}")));
        }
        match self.groups.get(&id) {
            Some(old) if new.epoch < old.epoch => return Ok(None), // an old answer
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

    /// A primary says that it is active.
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

    /// Who is active in a group's epoch.
    pub fn who_is_active(&self, group: GroupId, epoch: Epoch) -> Option<(ProcId, u32)> {
        self.active.get(&(group, epoch)).copied()
    }
}
