//! Loss of the MDMs' logs, and the recovery, in which one MDM continues with its own log or with a
//! backup. Judges that:
//!
//! - a volume on the map of a running server is known afterwards, unless its deletion was known;
//! - data of a volume that is unknown to the MDMs is kept until an order deletes it;
//! - a group is left in doubt only if a server was down or emptied meanwhile.

mod accepted;
mod backups;
mod doubts;
mod known;
mod mappings;

pub(crate) use self::backups::Which;

use self::backups::Kept;
use self::known::{Before, Has, Known};
use crate::admin::{self, ALL, Order};
use crate::check::Failure;
use crate::check::agreement::Agreement;
use crate::check::doubt;
use crate::history::Record;
use crate::plan::{Death, IoKind, Who};
use crate::stage::{NEXT, Stage, Volume};
use crate::world::{ProcId, ProcState};
use base::{DeviceId, GroupId, MapVersion, SECTOR, Time, UNIT, UnitKey, VolumeId};
use mdm::State;
use mdm::group::Doubt;
use mdm::mapping::Mapping;
use node::mapview::MapView;
use node::mdm::Mdm;
use node::sds::Sds;
use placement::slot_of;
use seam::{DiskId, UnitStore};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use store::durable::Identity;
use wire::control::Intent;

/// Time at the start of the world in seconds since 1970, for backups and orders.
const SECONDS: u64 = 60_000;
/// How long a recovery stays open before the operator ends it, as a multiple of `suspect_after`.
const PATIENCE: u32 = 10;

/// Progress of loss and recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Phase {
    /// Nothing is lost.
    #[default]
    Whole,
    /// The logs are lost. Only this MDM still has its log; `None`: no MDM has.
    Lost(Option<u8>),
    /// This MDM was told to continue alone, or has started from the backup.
    Begun(u8),
    /// The recovery is over: maps are handed out again.
    Over,
}

/// The loss of the MDMs' logs.
#[derive(Default, Debug)]
pub(crate) struct Rescue {
    phase: Phase,
    first: Option<Kept>,
    newest: Option<Kept>,
    /// What was there when the logs were lost.
    before: Before,
    /// The volumes that were known at the loss.
    known: Known,
    /// By server: its incarnation at the loss, if it had a map.
    lives: Vec<Option<u32>>,
    /// Maps of the servers that ran when the recovery began: their versions, and the permissions of
    /// clients by volume.
    maps: Vec<(MapVersion, BTreeMap<VolumeId, Mapping>)>,
    /// Volumes that are unknown since the recovery.
    unknown: BTreeSet<VolumeId>,
    /// Volumes that had lost all their data with their groups before the logs were lost.
    without_data: BTreeSet<VolumeId>,
    /// Since when all processes run while the recovery is open.
    open_since: Option<Time>,
    /// Indexes in the history of zero operations that stand for an accepted loss whose
    /// order is not done yet.
    accepting: Vec<usize>,
    /// Content id of each device, by the log that the recovery begins with.
    stores: BTreeSet<(DeviceId, u64)>,
    /// Groups that are lost, by the log that the recovery begins with.
    lost_groups: BTreeSet<GroupId>,
    /// A server was emptied and the backup, or the log that the recovery begins
    /// with, does not know it.
    emptied: bool,
    /// The last recovery that has begun.
    begun: u32,
    /// The last recovery whose mappings were judged.
    judged: u32,
    /// Volumes that this recovery did not know.
    lost: Vec<VolumeId>,
    /// The operator has ended this recovery: no other server will report.
    ended_early: bool,
    /// Servers that can have reported to this recovery before it was over.
    heard: BTreeSet<u8>,
    /// Volumes with groups on devices that had not come when the operator ended this recovery.
    cut_off: BTreeSet<VolumeId>,
    /// Groups that were in doubt after an earlier recovery. Maps of servers may still say so.
    doubted: BTreeSet<GroupId>,
    /// Groups that have been in doubt after this recovery.
    in_doubt: BTreeSet<GroupId>,
    /// Volumes whose deletion was confirmed.
    pub deleted: BTreeSet<VolumeId>,
    /// Groups that may be served from older copies, and the devices that once had all of each.
    older: BTreeMap<GroupId, BTreeSet<DeviceId>>,
    /// Groups that were served from older copies.
    served: BTreeSet<GroupId>,
}

impl Rescue {
    /// Returns true when no log is lost, or maps are handed out again.
    fn is_whole(&self) -> bool {
        matches!(self.phase, Phase::Whole | Phase::Over)
    }

    /// Records that a device loses its content, or gets an older one. No log knows that yet.
    pub(crate) fn device_was_emptied(&mut self) {
        self.emptied = true;
        let kept = self.first.iter_mut().chain(&mut self.newest);
        kept.for_each(|kept| kept.emptied = true);
    }

    /// Notes with which log the recovery begins. What the judges expect follows from it.
    fn begin_with(&mut self, log: Has) {
        let before = &self.before;
        self.known = Known::new(&before.ids, &before.servers, Some(&log))
            .with(before.some_off, before.earlier.clone());
        let other = |(device, store): (&DeviceId, &u64)| has_other(&log.stores, *device, *store);
        self.emptied |= before.contents.iter().any(other);
        (self.stores, self.lost_groups) = (log.stores, log.lost);
    }

    /// Checks the state after an entry: a group that is now served from an older copy uses one that
    /// was once complete.
    ///
    /// # Errors
    /// No in-sync device of the group ever had all of it.
    pub(crate) fn judge_older(&mut self, state: &State) -> Result<(), Failure> {
        if !state.recovery.open {
            let doubtful = state.groups.iter().filter(|(_, g)| g.doubt != Doubt::None);
            self.in_doubt.extend(doubtful.map(|(id, _)| *id));
        }
        // Groups that no volume uses start again, empty.
        let is_served = |id: &GroupId| {
            let group = state.groups.get(id).filter(|_| state.is_used(*id));
            group.filter(|g| g.doubt == Doubt::None && !g.in_sync.is_empty())
        };
        let served = self.older.iter().filter_map(|(id, had)| Some((*id, is_served(id)?, had)));
        for (id, group, had) in served {
            if !group.in_sync.iter().any(|d| had.contains(d)) {
                let text = format!("{id} is served, and only {had:?} had all of it: {group:?}");
                return Err(Failure::new("older copies", text));
            }
            self.served.insert(id);
        }
        self.older.retain(|id, _| !self.served.contains(id));
        Ok(())
    }
}

impl Stage {
    /// Kills the MDMs and deletes their logs, except the survivor's.
    pub(crate) fn lose_mdms(&mut self, survivor: Option<u8>) {
        let has_log = |i: u8| {
            // An MDM that was just added may not know the cluster yet.
            let mdm = self.mdm_at(i).filter(|mdm| mdm.state().cluster.0 != 0);
            let consensus = mdm.and_then(|mdm| mdm.consensus());
            self.plan.mdms > 1 && consensus.is_some_and(|c| c.last() > 0)
        };
        let possible = survivor.map_or(self.rescue.newest.is_some(), has_log);
        if !self.rescue.is_whole() || !possible || self.is_mdm_last_witness() {
            return;
        }
        self.marks.meet(match self.rescue.phase {
            Phase::Over => "sim: the MDMs' logs were lost again",
            _ => "sim: the MDMs' logs were lost",
        });
        let doubted = std::mem::take(&mut self.rescue.in_doubt);
        if !doubted.is_empty() {
            self.marks.meet("sim: logs were lost while groups were in doubt");
        }
        self.rescue.doubted.extend(doubted);
        if self.rescue.phase == Phase::Over && self.rescue.doubted.is_empty() {
            // The first recovery has accepted these older disks.
            self.replaced.retain(|_, replaced| !replaced.is_back());
        }
        (self.rescue.begun, self.rescue.judged, self.rescue.ended_early) = (0, 0, false);
        self.rescue.heard.clear();
        self.rescue.phase = Phase::Lost(survivor);
        self.remember_what_is_known(survivor);
        for i in 0..self.plan.mdms {
            self.end_mdm(i);
            if survivor != Some(i) {
                let id = self.proc(Who::Mdm(i));
                self.world.disk(id, DiskId(0)).wipe();
            }
        }
        // Entries and terms start over, so the administrator that compares answers restarts, too.
        self.agreement = Agreement::default();
        self.kill(Who::Admin, Death::default());
        let of_mdms =
            |o: &Order| matches!(o, Order::AddMdm(_) | Order::RemoveMdm(_) | Order::SwitchMdm);
        let mut desk = self.desk.borrow_mut();
        desk.applied = (0, 0);
        // An order to accept losses is dropped: it must not apply to other losses than before.
        desk.orders.retain(|o| !of_mdms(o) && !matches!(o, Order::Accept(_)));
        drop(desk);
        self.start(Who::Admin);
    }

    /// Notes that these servers lose their content. Volumes may have data there that no other
    /// device has.
    pub(crate) fn lose_last_data(&mut self, those: &[Who]) {
        let held = |i: u8| self.sds(i).and_then(Sds::device).into_iter().flat_map(|d| d.volumes());
        let (lost, rest): (Vec<u8>, Vec<u8>) =
            (0..self.plan.sds).partition(|i| those.contains(&Who::Sds(*i)));
        let rest: BTreeSet<VolumeId> = rest.into_iter().flat_map(held).collect();
        // A server that has just started has not read its device yet.
        let is_read = |i: &u8| self.sds(*i).is_some_and(|s| s.device().is_some() && s.id().0 != 0);
        let lost: Vec<VolumeId> = match lost.iter().all(is_read) {
            true => lost.into_iter().flat_map(held).collect(),
            false => self.written().into_iter().collect(),
        };
        let last = lost.into_iter().filter(|id| !rest.contains(id));
        self.rescue.without_data.extend(last.collect::<Vec<_>>());
    }

    fn end_mdm(&mut self, i: u8) {
        let (who, id) = (Who::Mdm(i), self.proc(Who::Mdm(i)));
        self.spare(who);
        self.world.resume(id);
        self.kill(who, Death { keep: true, ..Death::default() });
    }

    /// Returns the volumes that were written only in groups whose copies are all gone.
    fn without_data(&self) -> BTreeSet<VolumeId> {
        let group = |unit: &UnitKey| {
            let mut states = (0..self.plan.mdms).filter_map(|i| Some(self.mdm_at(i)?.state()));
            let slots = states.find_map(|s| Some(&s.volumes.get(&unit.volume)?.slots))?;
            Some(slots[slot_of(unit.index, slots.len())])
        };
        let is_lost = |unit: &UnitKey| group(unit).is_some_and(|g| self.losses.is_without_data(g));
        known::without_data(&self.written_units(), is_lost)
    }

    fn remember_what_is_known(&mut self, survivor: Option<u8>) {
        let without_data = self.without_data();
        self.rescue.without_data.extend(without_data);
        let ours = self.volumes.iter().filter_map(|v| v.id);
        let ids: BTreeSet<VolumeId> = ours.chain(self.rescue.unknown.iter().copied()).collect();
        let running = |i: &u8| self.world.state(self.proc(Who::Sds(*i))) != ProcState::Dead;
        let life = |i: u8| self.world.life(self.proc(Who::Sds(i)));
        let has_map = |i: u8| Some(((i, life(i)), self.map_of(i)?));
        let servers: Vec<_> = (0..self.plan.sds).filter(running).filter_map(has_map).collect();
        let contents = (0..self.plan.sds).filter_map(|i| self.identity(i));
        let contents = contents.map(|own| (own.device, own.uuid[0])).collect();
        let mapped = |i: &u8| self.sds(*i).is_some_and(|sds| sds.map().version.0 > 0);
        let lives = (0..self.plan.sds).map(|i| Some(life(i)).filter(|_| mapped(&i))).collect();
        let map = |i| {
            let map = self.sds(i)?.map();
            let mappings = map.volumes.iter().map(|(id, v)| (*id, v.mapping.clone()));
            Some((map.version, mappings.collect()))
        };
        let maps = (0..self.plan.sds).filter(running).filter_map(map).collect();
        let some_off = !(0..self.plan.sds).all(|i| running(&i));
        let log = survivor.map(|i| self.mdm_at(i).map(has_log).unwrap_or_default());
        let earlier = self.rescue.unknown.clone();
        self.rescue.before = Before { ids, servers, earlier, some_off, contents };
        (self.rescue.lives, self.rescue.maps) = (lives, maps);
        // A backup may bring them back without their data.
        let doomed = self.volumes.iter().filter(|v| v.doomed).filter_map(|v| v.id);
        self.rescue.deleted.extend(doomed);
        if let Some(log) = log {
            self.rescue.begin_with(log);
        }
    }

    /// Returns the content of a server's map and device.
    fn map_of(&self, i: u8) -> Option<Has> {
        let sds = self.sds(i)?;
        let map = sds.map();
        let volumes = map.volumes.iter().map(|(id, v)| (*id, v.slots.clone())).collect();
        let groups = map.groups_of(sds.id()).into_iter().collect();
        let held = sds.device().into_iter().flat_map(|d| d.volumes()).collect();
        let (next, unknown) = (map.next_volume, map.unknown.clone());
        Some(Has { volumes, next, unknown, groups, held, ..Has::default() })
    }

    /// Returns the identity that is written on a server's device; `None` if it can't be read now.
    fn identity(&self, i: u8) -> Option<Identity> {
        Some(self.sds(i)?.device()?.durable()?.identity())
    }

    /// Returns true if a server's device can be read, and has the content that a log knows for it.
    fn is_content(&self, i: u8, log: &Has) -> bool {
        let own = self.identity(i);
        own.is_some_and(|own| log.stores.contains(&(own.device, own.uuid[0])))
    }

    /// Returns volumes that devices must hold data of: they were written, and never
    /// zeroed or discarded.
    fn written(&self) -> BTreeSet<VolumeId> {
        let back = |r: &&Record| matches!(r.kind, IoKind::Zero | IoKind::Discard);
        let back = self.history.ops.iter().filter(back).map(|r| r.volume);
        let back: BTreeSet<VolumeId> = back.collect();
        let written = self.written_units().into_iter().map(|unit| unit.volume);
        written.filter(|id| !back.contains(id)).collect()
    }

    /// Returns the units that writes have reached.
    fn written_units(&self) -> BTreeSet<UnitKey> {
        let sectors = UNIT / SECTOR;
        let written = self.history.ops.iter().filter(|r| r.stamps() && r.is_ok());
        let units = written.flat_map(|r| {
            let (first, end) = (r.sector / sectors, (r.sector + r.sectors).div_ceil(sectors));
            (first..end).map(|index| UnitKey { volume: r.volume, index })
        });
        units.collect()
    }

    fn seconds(&self) -> u64 {
        SECONDS + self.world.now().0 / 1_000_000_000
    }

    /// Lets the MDM that still has its log continue alone.
    pub(crate) fn recover_mdms(&mut self) {
        let Phase::Lost(Some(i)) = self.rescue.phase else { return };
        self.rescue.phase = Phase::Begun(i);
        self.marks.meet("sim: an MDM was told to go on alone");
        self.start(Who::Mdm(i));
        self.desk.borrow_mut().orders.push_front(Order::Recover(i));
    }

    /// Adds the other MDMs again, with empty logs.
    fn add_others(&mut self, i: u8) {
        for j in (0..self.plan.mdms).filter(|j| *j != i) {
            self.start(Who::Mdm(j));
            self.order(Order::AddMdm(j));
        }
    }

    /// Returns true for an MDM without a log, which stays away until the recovery is over.
    pub(crate) fn stays_away(&self, who: Who) -> bool {
        match (who, self.rescue.phase) {
            (Who::Mdm(_), Phase::Lost(_)) => true,
            (Who::Mdm(i), Phase::Begun(chosen)) => i != chosen,
            _ => false,
        }
    }

    /// Returns true if the MDMs have lost their logs at some time.
    pub(crate) fn has_lost_logs(&self) -> bool {
        self.rescue.phase != Phase::Whole
    }

    /// Returns true while the logs are lost and the recovery has not begun.
    pub(crate) fn has_no_mdm(&self) -> bool {
        matches!(self.rescue.phase, Phase::Lost(_))
    }

    /// Ends an open recovery by order of the operator: no other server will report.
    pub(crate) fn finish_recovery(&mut self) {
        if matches!(self.rescue.phase, Phase::Begun(_)) {
            let mut desk = self.desk.borrow_mut();
            // The recovery has to begin before it can end.
            let waits = matches!(desk.orders.front(), Some(Order::Recover(_)));
            desk.orders.insert(usize::from(waits), Order::Finish);
            drop(desk);
            self.rescue.ended_early = true;
            let admin = self.proc(Who::Admin);
            self.world.poke(admin);
        }
    }

    /// Returns true when a recovery is over and no group is in doubt: the cluster now relies on the
    /// present content of the devices.
    pub(crate) fn is_rescued(&self) -> bool {
        self.rescue.phase == Phase::Over && self.doubtful().is_empty()
    }

    /// Checks whether the recovery is over, and judges the result.
    pub(crate) fn look_at_rescue(&mut self) -> Result<(), Failure> {
        let Phase::Begun(chosen) = self.rescue.phase else { return Ok(()) };
        let Some(mdm) = self.mdm() else { return Ok(()) };
        let (state, number) = (mdm.state(), mdm.state().recovery.number);
        if number > self.rescue.begun {
            // The last entries of a survivor's log may not count as decided.
            let stores = state.devices.iter().map(|(id, d)| (*id, d.store));
            let stores: Vec<(DeviceId, u64)> = stores.collect();
            self.rescue.stores.extend(stores);
            self.rescue.begun = number;
            return Ok(());
        }
        if number == 0 || state.recovery.open {
            // Servers that register while the end is being decided were not heard. (A recovery
            // begins with all devices down.)
            let up = |i: &u8| self.sds(*i).is_some_and(|sds| state.is_up(sds.id()));
            let heard = |i: &u8| up(i) && self.has_registered(*i, chosen);
            self.rescue.heard = (0..self.plan.sds).filter(heard).collect();
            return Ok(());
        }
        if self.rescue.judged < number {
            return self.note_result(number);
        }
        if !mdm.is_decided() {
            return Ok(());
        }
        let lost = self.rescue.lost.clone();
        let kept = |id: VolumeId| state.recovery.is_unknown(id);
        let ran = |(i, life): &(u8, u32)| {
            self.world.life(self.proc(Who::Sds(*i))) == *life && self.rescue.heard.contains(i)
        };
        let came = |id: &VolumeId| !self.rescue.cut_off.contains(id);
        let could_come: Vec<VolumeId> = lost.iter().copied().filter(came).collect();
        let judged = self.rescue.known.judge(&could_come, ran, kept);
        judged.map_err(|text| Failure::new("recovery", text))?;
        let stays = |id: &VolumeId| kept(*id) && !self.rescue.known.is_deleted(*id);
        let unknown: Vec<VolumeId> = lost.iter().copied().filter(stays).collect();
        self.rescue.phase = Phase::Over;
        if !self.doubtful().is_empty() {
            self.marks.meet("sim: a recovery was over, with groups in doubt");
        }
        for volume in self.volumes.iter_mut().filter(|v| v.id.is_some_and(|id| lost.contains(&id)))
        {
            volume.id = None;
        }
        if !lost.is_empty() {
            self.marks.meet("sim: a volume was not known any more after a recovery");
        }
        self.rescue.unknown.extend(unknown);
        self.leave_renamed();
        self.take_back_volumes();
        self.heed_mappings();
        self.remove_again();
        self.forget_groups();
        self.add_others(chosen);
        Ok(())
    }

    /// Judges the mappings, and notes what the recovery with this number has not taken over.
    fn note_result(&mut self, number: u32) -> Result<(), Failure> {
        let Some(state) = self.mdm().map(|m| m.state()) else { return Ok(()) };
        let counts = |i: &u8| !self.rescue.ended_early || self.rescue.heard.contains(i);
        let heard: BTreeSet<u8> = (0..self.plan.sds).filter(counts).collect();
        // Judge mappings now: waiting orders may change them before the end is decided.
        self.judge_mappings(state, &heard)?;
        let lost = |id: &VolumeId| !state.volumes.contains_key(id);
        let lost: Vec<VolumeId> = self.rescue.before.ids.iter().copied().filter(lost).collect();
        let devices = heard.iter().filter_map(|i| self.sds(*i).and_then(Sds::device));
        let held: Vec<VolumeId> = devices.flat_map(|d| d.volumes()).collect();
        // Ids that no server has reported may be given away again.
        let mut written = self.written();
        written.retain(|id| *id < state.next_volume);
        let cut_off = self.cut_off_volumes(state, &lost);
        // A page of a lost MDM may have been on its way at the loss.
        let maps: Vec<Has> = (0..self.plan.sds).filter_map(|i| self.map_of(i)).collect();
        let deleted = |id: &&VolumeId| maps.iter().any(|map| map.is_deleted(**id));
        let deleted: Vec<VolumeId> = lost.iter().filter(deleted).copied().collect();
        self.rescue.known.learn(held, &written);
        self.rescue.known.learn_deleted(deleted);
        (self.rescue.judged, self.rescue.lost, self.rescue.heard) = (number, lost, heard);
        self.rescue.cut_off = cut_off;
        Ok(())
    }

    /// Leaves volumes alone whose names a recovery has given back to older ones.
    fn leave_renamed(&mut self) {
        let Some(state) = self.mdm().map(|m| m.state()) else { return };
        let named = |v: usize| state.volume_named(&admin::name(v as u8)).map(|(id, _)| id);
        let renamed = |v: &usize| {
            let ours = self.volumes[*v].id.filter(|id| state.volumes.contains_key(id));
            ours.is_some() && named(*v).is_some() && named(*v) != ours
        };
        let renamed: Vec<usize> = (0..self.volumes.len()).filter(renamed).collect();
        for v in renamed {
            self.marks.meet("sim: a volume was renamed by a recovery");
            self.volumes[v].id = None;
        }
    }

    /// Takes back volumes that an earlier recovery did not know, and that this one knows.
    fn take_back_volumes(&mut self) {
        let Some(state) = self.mdm().map(|m| m.state()) else { return };
        let known = |id: &VolumeId| Some((*id, state.volumes.get(id)?.clone()));
        let known: Vec<_> = self.rescue.unknown.iter().filter_map(known).collect();
        for (id, known) in known {
            self.rescue.unknown.remove(&id);
            self.marks.meet("sim: a volume that a recovery did not know came back with a backup");
            let v = (0..self.volumes.len() as u8).find(|v| admin::name(*v) == known.name);
            let Some(v) = v.filter(|v| !self.is_ordered(*v, |o| matches!(o, Order::Create(..))))
            else {
                continue;
            };
            let volume = &mut self.volumes[usize::from(v)];
            if volume.id.is_none() {
                let units = (known.size / u64::from(UNIT)) as u32;
                *volume = Volume { id: Some(id), units, doomed: false, mapped: true };
                self.order(Order::Map(v, ALL));
            }
        }
    }

    /// Returns those of these volumes that have groups on devices that the MDM does not know. It
    /// can't take them over. That is right only if the operator has ended the recovery.
    fn cut_off_volumes(&self, state: &State, lost: &[VolumeId]) -> BTreeSet<VolumeId> {
        let strange = |map: &MapView, group: &GroupId| {
            let config = map.group_info(*group);
            let mut replicas = config.iter().flat_map(|g| &g.replicas);
            replicas.any(|d| !state.devices.contains_key(&DeviceId(*d)))
        };
        let maps = || (0..self.plan.sds).filter_map(|i| self.sds(i)).map(Sds::map);
        let is_cut_off = |id: &VolumeId| {
            let slots =
                |map: &MapView| map.volumes.get(id).map_or_else(Vec::new, |v| v.slots.clone());
            maps().any(|map| slots(map).iter().any(|group| strange(map, group)))
        };
        let ended = self.rescue.ended_early;
        lost.iter().copied().filter(|id| ended && is_cut_off(id)).collect()
    }

    /// Returns true if the MDM has heard of this server, in the present incarnation of both.
    fn has_registered(&self, i: u8, mdm: u8) -> bool {
        self.world.has_registered(self.proc(Who::Sds(i)), self.proc(Who::Mdm(mdm)))
    }

    /// Forgets groups that are unknown since the recovery, as they were made after the backup.
    fn forget_groups(&mut self) {
        let groups = self.mdm().map(|m| m.state().groups.keys().copied());
        let known: BTreeSet<GroupId> = groups.into_iter().flatten().collect();
        self.observer.groups.retain(|id, _| known.contains(id));
    }

    /// Deletes a volume that a backup has brought back without its data, and creates it again.
    pub(crate) fn bury_again(&mut self, v: u8, units: u32) {
        self.marks.meet("sim: a deleted volume came back with a backup");
        self.order(Order::Delete(v));
        self.order(Order::Create(v, units, self.plan.volume_pool(v)));
    }

    /// Returns true when a device is rightly refused after a recovery. The MDM expects the content
    /// that its log knows, but the device was emptied since, and may have done less than the former
    /// content. The refusal is right if the device has no newest copy of a group in doubt, and no
    /// MDM has named its process yet.
    fn is_taken_for_older(&self, i: u8, why: &str) -> bool {
        let begun = matches!(self.rescue.phase, Phase::Begun(_) | Phase::Over);
        let (Some(own), Some(mdm)) = (self.identity(i), self.mdm()) else { return false };
        let state = mdm.state();
        let believed = state.devices.get(&own.device).map(|d| d.store);
        let of_log = |store: u64| self.rescue.stores.contains(&(own.device, store));
        let emptied = believed.is_some_and(|store| store != own.uuid[0] && of_log(store));
        let named = self.sds(i).is_some_and(|sds| sds.id().0 != 0);
        let counts = named || self.has_newest_in_doubt(own.device);
        begun && emptied && why.contains("was replaced since") && !counts
    }

    /// Returns true if a device has a newest copy of a group that the MDM has in doubt. It has none
    /// if the MDM knows a newer configuration in which the device is not in sync.
    pub(crate) fn has_newest_in_doubt(&self, device: DeviceId) -> bool {
        let groups = self.mdm().into_iter().flat_map(|m| &m.state().groups);
        let mut doubtful = groups.filter(|(_, g)| g.doubt != Doubt::None);
        doubtful.any(|(id, group)| {
            let copies = self.copies(*id);
            let mut own = copies.iter().filter(|c| c.device == device.0);
            let current = own.any(|c| c.acted >= group.epoch.0) || group.in_sync.contains(&device);
            current && doubt::is_newest(&copies, device.0)
        })
    }

    /// Returns true when a device is rightly refused after a recovery that does not know it. An
    /// earlier recovery has admitted it, and the operator has ended this one before it came. The
    /// refusal is right if the device has no newest copy of any group.
    fn is_unknown_device(&self, i: u8, why: &str) -> bool {
        let (Some(own), Some(mdm)) = (self.identity(i), self.mdm()) else { return false };
        let state = mdm.state();
        let newest = |id: &GroupId| doubt::is_newest(&self.copies(*id), own.device.0);
        self.rescue.phase == Phase::Over
            && why.contains("this cluster has no")
            && !state.devices.contains_key(&own.device)
            && !state.groups.keys().any(newest)
    }

    /// Returns true when a recovery has refused a device that has nothing that counts.
    pub(crate) fn is_to_be_added_anew(&self, i: u8, why: &str) -> bool {
        self.is_taken_for_older(i, why) || self.is_unknown_device(i, why)
    }

    /// Follows the advice of such a refusal: empties the device, and lets it come back as new.
    pub(crate) fn add_anew(&mut self, id: ProcId) {
        self.marks.meet("sim: a device was added anew after a recovery");
        self.spare(self.who(id));
        self.world.crash(id, false);
        self.world.disk(id, DiskId(0)).wipe();
        self.start_soon(id);
    }

    /// Removes devices again that were removed since the backup.
    fn remove_again(&mut self) {
        let Some(state) = self.mdm().map(|m| m.state()) else { return };
        let there = |d: &DeviceId| state.devices.get(d).is_some_and(|d| d.intent == Intent::Normal);
        let gone: Vec<DeviceId> = self.removed.iter().copied().filter(there).collect();
        for device in gone {
            self.marks.meet("sim: a removal was undone by a recovery");
            self.order(Order::RemoveDevice(device));
        }
    }

    /// Begins the recovery in phase 2 if it has not begun: with the log that is
    /// left, or the backup.
    pub(crate) fn end_rescue(&mut self) {
        match self.rescue.phase {
            Phase::Lost(Some(_)) => self.recover_mdms(),
            Phase::Lost(None) => self.restore_mdms(0, Which::Newest),
            _ => {}
        }
    }

    /// Returns why maps are not handed out again yet.
    pub(crate) fn rescue_unmet(&self) -> Option<String> {
        let phase = self.rescue.phase;
        (!self.rescue.is_whole()).then(|| format!("the recovery is not over: {phase:?}"))
    }

    /// Ends a recovery that stays open for long, as the operator would. Called while
    /// all processes run.
    pub(crate) fn be_patient(&mut self) {
        let open = matches!(self.rescue.phase, Phase::Begun(_))
            && self.mdm().is_some_and(|m| m.state().recovery.open);
        let ordered = self.desk.borrow().orders.contains(&Order::Finish);
        if !open || ordered {
            return self.rescue.open_since = None;
        }
        let now = self.world.now();
        let since = *self.rescue.open_since.get_or_insert(now);
        if now.since(since) > self.plan.limits.suspect_after * PATIENCE + Duration::from_secs(2) {
            self.marks.meet("sim: a recovery was ended by a person");
            self.rescue.open_since = None;
            self.finish_recovery();
        }
    }

    /// Returns true for a volume whose content is judged. A volume that a backup brought back after
    /// its deletion has no content.
    pub(crate) fn is_there(&self, id: VolumeId) -> bool {
        let gone = |doomed: bool| doomed && self.rescue.deleted.contains(&id);
        let ours = self.volumes.iter().any(|v| v.id == Some(id) && !gone(v.doomed));
        ours && self.observer.volumes.contains_key(&id.0)
    }

    /// Orders groups that wait for devices to be served from older copies.
    pub(crate) fn use_older(&mut self) {
        let whole = |id: &GroupId| {
            let copies = self.copies(*id).into_iter().filter(|c| c.base > 0);
            copies.map(|c| DeviceId(c.device)).collect()
        };
        self.rescue.older = self.doubtful().iter().map(|id| (*id, whole(id))).collect();
        let there = (0..self.volumes.len().min(8)).filter(|v| self.volumes[*v].id.is_some());
        let volumes = there.fold(0, |bits, v| bits | 1 << v);
        self.order(Order::UseStale(volumes));
        // While these groups waited, no device could be removed that might have their newest copy.
        self.remove_again();
    }

    /// Returns the groups that were served from older copies since that order.
    pub(crate) fn served_from_older(&self) -> BTreeSet<GroupId> {
        self.rescue.served.clone()
    }

    /// Checks that data of unknown volumes is still there, and orders its deletion.
    pub(crate) fn forget_unknown(&mut self) -> Result<(), Failure> {
        let unknown = std::mem::take(&mut self.rescue.unknown);
        let devices = (0..self.plan.sds).filter_map(|i| self.sds(i).and_then(Sds::device));
        let held: BTreeSet<VolumeId> = devices.flat_map(|d| d.volumes()).collect();
        let written = self.written();
        let without_data = &self.rescue.without_data;
        let must_hold = |id: &&VolumeId| written.contains(id) && !without_data.contains(id);
        if let Some(id) = unknown.iter().filter(must_hold).find(|id| !held.contains(id)) {
            let text =
                format!("nobody knows what became of {id}, and its data was deleted unasked");
            return Err(Failure::new("recovery", text));
        }
        // A volume that was deleted before the loss may be unknown, too.
        let recovery = self.mdm().map(|mdm| &mdm.state().recovery);
        let deleted = held.into_iter().filter(|id| recovery.is_some_and(|r| r.is_unknown(*id)));
        let all: BTreeSet<VolumeId> = unknown.into_iter().chain(deleted).collect();
        all.into_iter().for_each(|id| self.order(Order::Forget(id)));
        Ok(())
    }
}

/// Returns true if a log knows another content of this device than this one.
fn has_other(stores: &BTreeSet<(DeviceId, u64)>, device: DeviceId, store: u64) -> bool {
    stores.iter().any(|(known, other)| *known == device && *other != store)
}

/// Returns the content of an MDM's state.
fn has(state: &State) -> Has {
    let volumes = state.volumes.iter().map(|(id, v)| (*id, v.slots.clone())).collect();
    let groups = state.groups.keys().copied().collect();
    let lost = state.groups.iter().filter(|(_, g)| g.lost).map(|(id, _)| *id).collect();
    let stores = state.devices.iter().map(|(id, d)| (*id, d.store)).collect();
    let (next, unknown) = (state.next_volume, state.recovery.unknown.clone());
    Has { volumes, next, unknown, groups, lost, stores, ..Has::default() }
}

/// Returns the content of an MDM's log, including entries that may not be decided.
fn has_log(mdm: &Mdm) -> Has {
    let mut state = mdm.state().clone();
    for entry in mdm.consensus().map_or_else(Vec::new, |c| c.undecided()) {
        mdm::entry::apply(&mut state, &entry, NEXT.level_max).expect("this build wrote it");
    }
    let mut log = has(&state);
    log.stores.extend(has(mdm.state()).stores);
    log
}
