//! Applies commands to the state: the only place where edits are made.

use super::{
    Change, Device, Edits, Sdc, State, Volume, clients, damage, devices, groups, naming, reconcile,
    seats, volumes,
};
use crate::command::{self, Command};
use crate::group::{Doubt, Group};
use crate::objects::Objects;
use crate::recovery::first_number;
use crate::refused::Refused;
use base::{ClusterId, Incarnation, MapVersion, VolumeId};

/// The effect of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// None: the state already is as the command wants it, or the command is outdated.
    Unchanged,
    /// The command changed the state.
    Changed,
    /// None, for this reason, which is for the requester.
    Refused(Refused),
}

impl State {
    /// Applies the log entry with this index, which must be the next one.
    pub fn apply(&mut self, index: u64, command: &Command) -> Outcome {
        assert_eq!(index, self.index + 1, "log entries are applied in order");
        let edits = self.edits(command);
        self.index = index;
        match edits {
            Err(why) => Outcome::Refused(why),
            Ok(edits) if edits.is_empty() => Outcome::Unchanged,
            Ok(edits) => {
                self.commit(edits);
                Outcome::Changed
            }
        }
    }

    /// Makes a change that was computed for this very state, and returns its command. Panics if the
    /// change was computed for another state.
    pub fn make(&mut self, change: Change) -> Command {
        assert_eq!(change.at, self.index, "a change belongs to one state");
        self.index += 1;
        if !change.is_nothing() {
            self.commit(change.edits);
        }
        change.command
    }

    /// Returns the command with what it changes, or the reason why it is refused.
    pub fn change(&self, command: Command) -> Result<Change, Refused> {
        let edits = self.edits(&command)?;
        Ok(Change { command, edits, at: self.index })
    }

    /// Returns the changes that the command would make now.
    pub fn edits(&self, command: &Command) -> Result<Edits, Refused> {
        match command {
            Command::FormCluster(c) => Ok(form(self, c)),
            Command::DeviceUp(c) => Ok(devices::device_up(self, c).unwrap_or_default()),
            Command::DeviceDown(c) => Ok(devices::devices_down(self, core::slice::from_ref(c))),
            Command::DevicesDown(c) => Ok(devices::devices_down(self, &c.list)),
            Command::Suspect(c) => Ok(groups::suspect(self, c)),
            Command::Join(c) => Ok(groups::join(self, c)),
            Command::Admit(c) => Ok(groups::admit(self, c)),
            Command::RegisterSdc(c) => Ok(clients::sdc_up(self, c).unwrap_or_default()),
            Command::CreateVolume(c) => volumes::create_volume(self, c),
            Command::ResizeVolume(c) => volumes::resize_volume(self, c),
            Command::DeleteVolume(c) => volumes::delete_volume(self, c),
            Command::Scrub(c) => Ok(devices::scrub(self, c).unwrap_or_default()),
            Command::Reshape(c) => Ok(groups::reshape(self, c)),
            Command::Intend(c) => Ok(devices::intend(self, c)),
            Command::AddMdm(c) => Ok(Edits { member: self.members.added(c), ..Edits::default() }),
            Command::RemoveMdm(c) => {
                Ok(Edits { member: self.members.removed(c), ..Edits::default() })
            }
            Command::MapVolume(c) => volumes::map_volume(self, c),
            Command::Reserve(c) => volumes::reserve(self, c),
            Command::ClearReservations(c) => volumes::clear_reservations(self, c),
            Command::Seat(c) => Ok(seats::seat(self, c)),
            Command::Rename(c) => naming::rename(self, c),
            Command::PutObject(c) => naming::put_object(self, c),
            Command::DropObject(c) => naming::drop_object(self, c),
            Command::Reconcile(c) => Ok(reconcile::reconcile(self, c)),
            Command::AcceptLoss(c) => Ok(damage::accept_loss(self, c)),
            Command::SetLevel(c) => Ok(set_level(self, c)),
        }
    }

    // Long: one kind of change after the other; the end of a recovery is last, as it touches all.
    fn commit(&mut self, edits: Edits) {
        if edits.is_map() {
            self.version = MapVersion(self.index);
        }
        let changed_at = self.version;
        if let Some(cluster) = edits.cluster {
            self.cluster = cluster;
        }
        self.level = edits.level.unwrap_or(self.level);
        if let Some((id, server)) = edits.server {
            self.servers.insert(id, server);
        }
        if let Some(objects) = edits.objects {
            self.objects = Objects { changed_at, ..objects };
        }
        self.recovery.emptied.extend(edits.emptied);
        for (id, device) in edits.devices {
            if self.recovery.is_above(id.0, self.next_device().0 + 1) {
                self.recovery.device_returned(id.0);
            }
            if self.recovery.emptied.get(&id) == Some(&device.store) {
                self.recovery.emptied.remove(&id); // its content is back
            }
            self.next_incarnation =
                self.next_incarnation.max(Incarnation(device.incarnation.0 + 1));
            self.devices.insert(id, Device { changed_at, ..device });
        }
        match edits.sdc {
            Some((id, Some(sdc))) => {
                let next = Incarnation(sdc.incarnation.0 + 1);
                self.next_incarnation = self.next_incarnation.max(next);
                self.last_sdc = self.last_sdc.max(id);
                self.sdcs.insert(id, Sdc { changed_at, ..sdc });
            }
            Some((id, None)) => {
                self.sdcs.remove(&id);
                if (self.recovery.sdc_known + 1..=self.recovery.sdc).contains(&id.0) {
                    self.removed_sdcs.insert(id.0..id.0 + 1);
                }
                self.sdcs_gone_at = changed_at;
            }
            None => {}
        }
        if let Some((id, member)) = edits.member {
            self.members.set(id, member, changed_at);
        }
        for (id, group) in edits.groups {
            let old = self.groups.get(&id).map(|g| g.replicas.clone());
            if old.as_ref() != Some(&group.replicas) {
                self.group_index.remove(id, old.as_deref().unwrap_or_default());
                self.group_index.insert(id, &group.replicas);
            }
            self.groups.insert(id, Group { changed_at, ..group });
        }
        if let Some(id) = edits.replaced {
            let mine = self.groups_of(id).iter().map(|group| &self.groups[group]);
            let doubtful = mine.filter(|g| g.doubt != Doubt::None).map(|g| g.epoch.0 + 1);
            let since = doubtful.fold(first_number(self.recovery.at), u64::max);
            self.recovery.replaced.insert(id, since);
        }
        for (id, volume) in edits.volumes.into_iter().chain(edits.volume) {
            self.next_volume = self.next_volume.max(VolumeId(id.0 + 1));
            let old = match volume {
                Some(volume) => {
                    self.group_index.insert_volume(&volume);
                    self.volumes.insert(id, Volume { changed_at, ..volume })
                }
                None => {
                    match self.recovery.open {
                        // A later report may have a map of a newer recovery, in which it exists.
                        true => self.recovery.doubt(id),
                        false => self.recovery.forget(id),
                    }
                    self.volumes.remove(&id)
                }
            };
            old.iter().for_each(|v| self.group_index.remove_volume(v));
        }
        if let Some((id, asked)) = edits.asked {
            self.volumes.get_mut(&id).expect("the edit is of this state").asked = asked;
        }
        if let Some(skipped) = edits.skipped {
            reconcile::skip_ids(self, skipped);
        }
        edits.known.into_iter().for_each(|ids| self.recovery.know(ids));
        if let Some(forget) = edits.forget {
            forget.volumes.iter().for_each(|id| self.recovery.forget(VolumeId(*id)));
            self.recovery.forgot = Some(forget);
        }
        let awaited = edits.awaited.iter().map(|a| a.entry());
        self.recovery.awaited.extend(awaited);
        let marked = !self.recovery.emptied.is_empty() || !self.recovery.replaced.is_empty();
        if marked && !self.wants_reports() {
            self.recovery.emptied.clear();
            self.recovery.replaced.clear();
        }
        if let Some(left) = edits.recovered {
            reconcile::close_recovery(self, left);
        }
    }

    /// Returns true if the command would change the state.
    pub fn would_change(&self, command: &Command) -> bool {
        self.edits(command).is_ok_and(|e| !e.is_empty())
    }
}

fn form(state: &State, c: &command::FormCluster) -> Edits {
    let first = state.cluster.0 == 0 && c.cluster != 0;
    Edits { cluster: first.then_some(ClusterId(c.cluster)), ..Edits::default() }
}

/// A level never falls.
fn set_level(state: &State, c: &command::SetLevel) -> Edits {
    let level = Some(c.level).filter(|level| *level > state.level);
    Edits { level, ..Edits::default() }
}
