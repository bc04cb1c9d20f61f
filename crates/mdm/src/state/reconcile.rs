//! The commands of a recovery of the MDMs: the reports of devices become part of the state.

use super::{Edits, IDS_END, State, Volume};
use crate::command::{self, Awaited, Command, Forget};
use crate::group::{Doubt, Group};
use crate::mapping::Mapping;
use crate::publish::gaps;
use crate::recovery::{Given, JUMP, first_generation, first_number};
use crate::refused::Refused;
use crate::state::check_size;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use base::mutant::{self, Mutant};
use base::{DeviceId, Epoch, GroupId, MapVersion, PoolId, SdcId, VolumeId};
use wire::control::{GroupInfo, RecoverMdm, VolumeInfo};

impl State {
    pub(super) fn reconcile(&self, c: &command::Reconcile) -> Edits {
        let mut groups: BTreeMap<GroupId, Group> = BTreeMap::new();
        for info in c.made.iter().filter(|info| self.may_enter(info)) {
            groups.insert(GroupId(info.id), Group::doubtful(info));
        }
        for info in c.groups.iter().filter(|info| self.may_settle(info)) {
            let mut group = Group::settled(info, &|d| self.is_up(d));
            if !self.users.contains_key(&GroupId(info.id)) {
                group.form(&|d| self.is_up(d));
            }
            groups.insert(GroupId(info.id), group);
        }
        let open = self.recovery.open;
        let anew = c.unused.iter().filter_map(|id| self.emptied_unused(GroupId(*id)));
        groups.extend(anew);
        let mut volumes: Vec<(VolumeId, Option<Volume>)> = Vec::new();
        for info in c.volumes.iter().filter(|_| open) {
            volumes.extend(self.adopted(info).map(|v| (VolumeId(info.id), Some(v))));
        }
        let gone = c.deleted.iter().map(|id| VolumeId(*id)).filter(|_| open);
        volumes.extend(gone.filter(|id| self.volumes.contains_key(id)).map(|id| (id, None)));
        let groups = groups.into_iter().collect();
        let given = Some(Given::of(c)).filter(|g| open && *g != Given::default());
        let forget = c.forget.clone().filter(|f| f.volumes.iter().all(|id| self.is_kept(*id)));
        let recovered = (open && c.close).then(|| c.left.clone());
        let awaited = c.awaited.iter().filter(|a| self.may_await(a)).copied().collect();
        Edits { groups, volumes, given, forget, recovered, awaited, ..Edits::default() }
    }

    /// Returns true if the fate of this volume is unknown, so that its data is kept.
    fn is_kept(&self, id: u32) -> bool {
        let id = VolumeId(id);
        self.recovery.is_unknown(id) && !self.volumes.contains_key(&id)
    }

    /// Returns the command that deletes the data of these unknown volumes from all devices.
    pub fn forget_command(&self, order: &RecoverMdm) -> Result<Command, Refused> {
        match order.delete.iter().find(|id| !self.is_kept(**id)) {
            Some(id) => Err(Refused::NotUnknown(*id)),
            None => {
                let volumes = order.delete.clone();
                let forget = Forget { volumes, by: order.by.clone(), at: order.at };
                let forget = Some(forget);
                Ok(Command::Reconcile(command::Reconcile { forget, ..Default::default() }))
            }
        }
    }

    /// Returns a group in doubt that no volume uses, empty, in an epoch above all epochs in which a
    /// device may have taken part.
    fn emptied_unused(&self, id: GroupId) -> Option<(GroupId, Group)> {
        let old = self.groups.get(&id).filter(|g| g.doubt != Doubt::None)?;
        if self.recovery.open || self.is_used(id) {
            return None;
        }
        let epoch = Epoch((old.epoch.0 + JUMP).max(first_number(self.recovery.at)));
        let in_sync = Vec::new();
        let mut group = Group { epoch, in_sync, doubt: Doubt::None, lost: true, ..old.clone() };
        group.form(&|d| self.is_up(d));
        Some((id, group))
    }

    /// True for news of a map that lost MDMs made.
    fn may_await(&self, a: &Awaited) -> bool {
        let known = self.recovery.awaited.get(&DeviceId(a.device));
        let named = (MapVersion(a.version), a.store);
        self.wants_reports() && self.recovery.lost.contains(&named.0) && known < Some(&named)
    }

    /// Returns true for a group that the lost MDMs made and that this state does not have.
    pub(crate) fn may_enter(&self, info: &GroupInfo) -> bool {
        let new = self.recovery.open && !self.groups.contains_key(&GroupId(info.id));
        let number = info.epoch > 0 && (1..IDS_END).contains(&info.id);
        let group = Group::doubtful(info);
        new && number && self.in_one_pool(info) && group.check(&|_| false).is_ok()
    }

    fn in_one_pool(&self, info: &GroupInfo) -> bool {
        let pool = |d: &u32| self.devices.get(&DeviceId(*d)).map(|d| d.pool);
        let first = info.replicas.first().and_then(pool);
        first.is_some() && info.replicas.iter().all(|d| pool(d) == first)
    }

    /// Returns true if this configuration ends a doubt, or is a group that the lost MDMs made.
    pub(crate) fn may_settle(&self, info: &GroupInfo) -> bool {
        let doubtful = match self.groups.get(&GroupId(info.id)) {
            Some(group) if group.doubt == Doubt::Gone => info.epoch > group.epoch.0,
            Some(group) => group.doubt == Doubt::Reports,
            None => self.recovery.open && info.id <= self.recovery.group,
        };
        let group = Group::settled(info, &|d| self.is_up(d));
        doubtful && self.in_one_pool(info) && group.check(&|d| self.is_up(d)).is_ok()
    }

    /// Returns the volume as a server's map has it; `None` if the state has the same, or if it
    /// can't be.
    pub(crate) fn adopted(&self, info: &VolumeInfo) -> Option<Volume> {
        let slots: Vec<GroupId> = info.slots.iter().map(|g| GroupId(*g)).collect();
        let pool = |g: &GroupId| self.groups.get(g).and_then(|g| self.pool_of(g));
        let home: PoolId = slots.first().and_then(pool)?;
        let old = self.volumes.get(&VolumeId(info.id));
        let mut told = info.mapping.clone().unwrap_or_default();
        told.sdcs
            .retain(|g| self.may_be_client(SdcId(g.sdc)) && !mutant::on(Mutant::ForgetMapping));
        let mapping =
            info.mapping.as_ref().map_or_else(|| Mapping::everyone(1), |_| Mapping::of(Some(told)));
        let first = || first_generation(self.recovery.at).max(mapping.newest()).max(1);
        let generation = old.map_or_else(first, |v| v.generation.max(mapping.newest()));
        let volume = Volume {
            name: info.name.clone(),
            size: info.size,
            generation,
            mapping,
            pool: home,
            thick: info.thick,
            slots,
            losses: old.map_or_else(Vec::new, |v| v.losses.clone()),
            gaps: gaps(&info.gaps),
            changed_at: old.map_or(MapVersion(0), |v| v.changed_at),
        };
        let other = |(id, v): (&VolumeId, &Volume)| id.0 != info.id && v.name == volume.name;
        let may = volume.slots.iter().all(|g| pool(g) == Some(home))
            && check_size(volume.size).is_ok()
            && (old.is_some() || self.recovery.is_unknown(VolumeId(info.id)))
            && VolumeId(info.id) < self.next_volume
            && !self.volumes.iter().any(other);
        (may && old != Some(&volume)).then_some(volume)
    }

    /// Returns true for a client, and for an id that only lost MDMs may have given away: that
    /// client may still register.
    pub(crate) fn may_be_client(&self, id: SdcId) -> bool {
        self.sdcs.contains_key(&id) || self.may_be_lost(id)
    }

    /// Skips ids that lost MDMs have given away.
    pub(super) fn give_away(&mut self, given: Given) {
        let (recovery, next_volume) = (&mut self.recovery, VolumeId(given.next_volume));
        recovery.device = recovery.device.max(given.device);
        recovery.group = recovery.group.max(given.group);
        recovery.sdc = recovery.sdc.max(given.sdc);
        if next_volume > self.next_volume {
            self.recovery.unknown.push(self.next_volume..next_volume);
            self.next_volume = next_volume;
        }
    }

    /// Ends the recovery. Every peer gets the whole map: its own may come from lost decisions.
    pub(super) fn close_recovery(&mut self, left: Vec<u32>) {
        self.recovery.open = false;
        self.recovery.left = left;
        let at = self.version;
        self.devices.values_mut().for_each(|d| d.changed_at = at);
        self.groups.values_mut().for_each(|g| g.changed_at = at);
        self.volumes.values_mut().for_each(|v| v.changed_at = at);
        self.sdcs.values_mut().for_each(|s| s.changed_at = at);
        (self.objects.changed_at, self.members.changed_at) = (at, at);
    }
}
