//! Recovery: how one MDM continues when most others are lost for good, or when all are lost and a
//! backup is restored.
//!
//! Its state may be older than what the lost MDMs decided, and servers have acted on those
//! decisions. So a recovery has two steps:
//! - [`State::recover`] makes this MDM the only one. It skips all numbers that the lost MDMs may
//!   have given away: ids of volumes, devices, groups and clients, incarnations, map versions.
//!   Every group is in [`Doubt`] and has no primary.
//! - Devices report what they know ([`DeviceReport`]), and [`plan`] turns the reports into
//!   [`Reconcile`] commands. Until the last of these commands, the MDM hands out no map. So servers
//!   and clients continue with the maps that they have, as they do without an MDM.
//!
//! **Which replicas have every acknowledged write of a group?** Take the newest configuration that
//! the state or the map of any server has. The primary of a later configuration was in sync in this
//! one, or it was admitted by the primary of a later one for which the same holds, unless an
//! operator has accepted a loss. A replica records durably that it takes part in an epoch before it
//! does. So:
//! 1. If all replicas in sync have reported, and no device took part in a later epoch, no later
//!    configuration was ever served: they have every acknowledged write.
//! 2. Otherwise, if all devices of the cluster have reported, take the highest epoch in which any
//!    device took part: the replicas that were in sync there and sealed in it have every
//!    acknowledged write. From the seal on, each acknowledgement in that epoch needed them, and
//!    there was no later epoch. A joiner's seal proves nothing: its primary may have dropped it
//!    since.
//! 3. Otherwise it is unknown, and the group waits for the missing reports or for the operator's
//!    decision.
//!
//! A device that is empty may have had more before ([`Doubt::Gone`]). Then rule 1 holds only for a
//! configuration that is newer than the state's, and only if each device that may have been emptied
//! was emptied before that configuration was made ([`DeviceReport::is_witness`]). Rule 2 never
//! applies then. What the maps of an earlier recovery prove, which was in doubt itself, and what is
//! stored of a group that stays in doubt, is in [`verdict`].
//!
//! Limit: a recovery can't recognise a device that was admitted after the state was made, served
//! alone, and was then emptied. Its store looks like that of a new device.
//! docs/design/0005-mdm-cluster.md describes the consequences.
//!
//! A device that was replaced since the state was made may come back with its older disk. Maps of
//! lost MDMs name the content of devices, so the newest map tells which disk is the right one
//! ([`disks`]). An older disk is no evidence. The recovery waits for the newer disk; if an operator
//! ends the recovery, the groups that need the newer disk still wait for it. Conversely, if a map
//! names the content that a device has, the device was not emptied since.
//!
//! All participants are known when all devices have reported: those of the state, and those that a
//! server's map names ([`Heard`]). Devices that are named by neither get some time to register.
//! Only an operator can end the recovery while one is silent.
//!
//! The new epoch of a group is above all epochs that a device can have seen: a recovery adds
//! [`JUMP`]. docs/design/0005-mdm-cluster.md has the argument.

mod device_report;
mod disks;
mod record;
mod undecided;
mod verdict;
mod volumes;

pub use device_report::{DeviceReport, DeviceReports};
pub use record::{Contents, JUMP, Recovery};
use record::{IDS, ids, many_ids};
pub(crate) use record::{IDS_END, SkippedIds, first_generation, first_number};

use crate::command::{Command, Reconcile};
use crate::group::{Doubt, Group};
use crate::members::Member;
use crate::publish::store_info;
use crate::refused::MAX_VOLUMES;
use crate::state::reconcile;
use crate::state::{Device, State};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use base::{DeviceId, GroupId, Incarnation, MapVersion, Mutant, VolumeId, mutant};
use core::cmp::Reverse;
use core::mem::take;
use device_report::{Map, Remembered};
use verdict::{Evidence, Verdict};
use wire::control::{GroupInfo, Intent, RecoveryStatus};

/// Step by which a recovery raises the generation of each volume, above what it knew itself and
/// above the map of a server that it takes over: the lost MDMs may have taken access away this many
/// times, and no report tells.
const GENERATIONS: u32 = 1 << 16;
/// Maximum number of groups in one command.
const GROUPS: usize = 2048;

/// The copies of a group in doubt, by the devices' reports.
#[derive(Default)]
pub(crate) struct Copies {
    /// Devices that are up and were in sync once, the newest copy first.
    pub whole: Vec<DeviceId>,
    /// Devices that have any part of the group.
    pub any: BTreeSet<DeviceId>,
    /// An epoch that no device has exceeded.
    pub acted: u64,
}

/// The devices that can still report something.
#[derive(Default)]
struct Heard {
    /// Devices that the state has or a server's map names, and that have not reported or reported
    /// with an older content.
    silent: BTreeSet<DeviceId>,
    /// Those of `silent` that reported with an older content.
    older: BTreeSet<DeviceId>,
    /// Contents of devices by the maps of lost MDMs.
    contents: Contents,
    /// Devices that nothing has named may still register.
    patient: bool,
}

impl Heard {
    /// Returns true if no further report is expected.
    fn is_complete(&self) -> bool {
        self.silent.is_empty() && !self.patient
    }
}

impl State {
    /// Makes this MDM, `me`, the only one. The lost MDMs may have decided more than it knows.
    /// `decided` is the state after the entries that certainly were decided.
    pub fn recover(&mut self, decided: &State, id: u32, me: Member, by: &str, at: u64) {
        let floors =
            (self.next_device().0, self.next_sds().0, self.next_group().0, self.next_sdc().0);
        undecided::go_back_to(self, decided);
        let sdc_known = match self.recovery.number {
            0 => self.last_sdc.0,
            _ => self.recovery.sdc_known,
        };
        if self.recovery.number > 0 && !self.recovery.open {
            self.removed_sdcs.insert(self.recovery.sdc + 1..self.last_sdc.0 + 1);
        }
        let (ids, many_ids) = (ids(at), many_ids(at));
        let next = VolumeId(self.next_volume.0 + many_ids);
        let earlier = self.wants_reports().then_some(self.recovery.began);
        let waits_no_more = !decided.recovery.open && disks::awaits_any(self);
        let (lost, awaited) = disks::maps_since(decided);
        let mut unknown = take(&mut self.recovery.unknown);
        unknown.push(self.next_volume..next);
        self.recovery = Recovery {
            number: self.recovery.number + 1,
            open: true,
            by: by.into(),
            at,
            version: self.version,
            began: MapVersion(0),
            lost,
            awaited,
            emptied: earlier.map_or_else(BTreeMap::new, |_| take(&mut self.recovery.emptied)),
            replaced: earlier.map_or_else(BTreeMap::new, |_| take(&mut self.recovery.replaced)),
            device: floors.0 + ids,
            server: floors.1 + ids,
            group: floors.2 + many_ids,
            sdc: floors.3 + ids,
            sdc_known,
            unknown,
            left: Vec::new(),
            forgot: self.recovery.forgot.take(),
        };
        // The time is part of the numbers, so that two restores of one backup lead to different
        // ones.
        let least = first_number(at);
        self.index = least.max(self.index + JUMP);
        self.recovery.lost.end = MapVersion(self.index);
        self.recovery.began = earlier.unwrap_or(self.recovery.lost.end);
        self.next_incarnation = Incarnation(least.max(self.next_incarnation.0 + JUMP));
        self.next_volume = next;
        self.members.last_id = self.members.last_id.max(id) + IDS;
        self.members.list = BTreeMap::from([(id, me)]);
        // The lost MDMs may have raised the generations, and no report tells whose permission
        // ended.
        let generation = first_generation(at);
        for volume in self.volumes.values_mut() {
            volume.generation = generation.max(volume.generation.saturating_add(GENERATIONS));
            // The lost MDMs may have moved seats.
            volume.seats.clear();
        }
        // This MDM has heard of no device. A device that the lost MDMs put in the place of another
        // one would be refused while that one counts as up.
        self.devices.values_mut().for_each(|d| d.up = false);
        for group in self.groups.values_mut() {
            // The doubt `Gone` of an earlier recovery stays. Groups that the earlier one left in
            // doubt while it waited for a disk get it, too: this recovery does not know of that
            // disk.
            let waited = waits_no_more && group.doubt == Doubt::Reports;
            let lost = waited || group.doubt == Doubt::Gone;
            group.doubt = if lost { Doubt::Gone } else { Doubt::Reports };
            group.primary = None;
            group.joiners.clear();
        }
    }

    /// True while devices are asked for reports.
    pub fn wants_reports(&self) -> bool {
        // Only a recovery leaves doubts: a cluster without one does not look at its groups.
        let doubts = || self.groups.values().any(|g| g.doubt != Doubt::None);
        self.recovery.open || self.recovery.number > 0 && doubts()
    }

    /// Returns the progress of the last recovery, for people.
    pub fn recovery_status(
        &self,
        reports: &DeviceReports,
        patient: bool,
    ) -> Option<RecoveryStatus> {
        let recovery = &self.recovery;
        let mut status = RecoveryStatus {
            number: recovery.number,
            by: recovery.by.clone(),
            at: recovery.at,
            open: recovery.open,
            ..RecoveryStatus::default()
        };
        let heard = heard(self, reports, patient);
        let mut waits = BTreeSet::new();
        for (id, _) in self.groups.iter().filter(|(_, g)| g.doubt != Doubt::None) {
            status.doubtful += 1;
            let Some(evidence) = Evidence::of(self, reports, *id) else { continue };
            match evidence.verdict(&heard) {
                Verdict::WaitsFor(devices) => waits.extend(devices),
                Verdict::Alone(_) => status.alone += 1,
                Verdict::Known(group) if reconcile::may_settle(self, &group) => {}
                Verdict::Known(_) | Verdict::Stuck => status.stuck += 1,
            }
        }
        if recovery.open {
            waits.extend(&heard.silent);
        }
        status.older = waits.intersection(&heard.older).map(|d| d.0).collect();
        status.waits_for = waits.into_iter().map(|d| d.0).collect();
        status.strange = match recovery.open {
            true => strange(self, reports),
            false => recovery.left.clone(),
        };
        (recovery.number > 0).then_some(status)
    }
}

fn heard(state: &State, reports: &DeviceReports, patient: bool) -> Heard {
    if mutant::on(Mutant::CloseUnheard) {
        return Heard::default();
    }
    let contents = disks::contents(state, reports);
    let told = device_report::lost_maps(state, reports).flat_map(|m| m.configs.values());
    let stored = state.groups.values().filter_map(|g| g.told.as_ref()?.config.as_ref());
    let mut named: BTreeSet<DeviceId> =
        told.chain(stored).flat_map(|g| &g.replicas).map(|d| DeviceId(*d)).collect();
    // Maps may still have devices that an earlier recovery has dropped: without a group, nothing
    // needs them.
    let unknown = named.iter().chain(state.recovery.awaited.keys()).copied();
    let unknown: Vec<DeviceId> = unknown.filter(|d| !state.devices.contains_key(d)).collect();
    named.extend(contents.keys());
    // A waiting device has nothing, unless it was admitted since, and a server's map names it.
    let counts = |(id, d): (&DeviceId, &Device)| match d.intent {
        Intent::Removed => None,
        Intent::Waiting if !named.contains(id) => None,
        _ => Some(*id),
    };
    let all = state.devices.iter().filter_map(counts).chain(unknown);
    let mut silent: BTreeSet<DeviceId> = all.filter(|d| !reports.contains_key(d)).collect();
    let older = disks::older(state, reports, &contents);
    silent.extend(&older);
    // A state without devices is older than all of them: it can't tell whether all have reported.
    let patient = patient || state.recovery.open && state.devices.is_empty();
    Heard { silent, older, contents, patient }
}

/// Returns what devices have reported of a group in doubt.
pub(crate) fn copies(state: &State, reports: &DeviceReports, id: GroupId) -> Copies {
    let said = reports.iter().filter_map(|(d, w)| Some((*d, w.groups.get(&id)?)));
    let said: Vec<(DeviceId, &Remembered)> =
        said.filter(|(_, s)| s.acted > 0 || s.base > 0).collect();
    let mut whole: Vec<_> = said.iter().filter(|(d, s)| s.base > 0 && state.is_up(*d)).collect();
    let group = state.groups.get(&id);
    let in_sync = group.map_or(&[][..], |g| &g.in_sync);
    let known = group.map_or(0, |g| g.reached().0);
    let order = |d: &DeviceId| in_sync.iter().position(|i| i == d).unwrap_or(usize::MAX);
    // A primary that serves alone keeps its earlier base. A joiner that took part in an epoch
    // has only what it was sealed with: less than a primary that served alone in that epoch.
    let has = |s: &Remembered| if s.joiner { s.base } else { s.acted };
    whole.sort_by_key(|(d, s)| (Reverse((has(s), !s.joiner, s.base)), order(d), *d));
    Copies {
        whole: whole.into_iter().map(|(d, _)| *d).collect(),
        any: said.iter().map(|(d, _)| *d).collect(),
        acted: above_all(state, said.iter().map(|(_, s)| s.acted).fold(known, u64::max)),
    }
}

/// Returns true if this device may have the newest copy of a group in doubt. Then it can't be
/// removed yet. That is so if it remembers such a group, or has not reported.
pub fn may_be_needed(state: &State, reports: &DeviceReports, device: DeviceId) -> bool {
    let in_doubt = |id: GroupId| state.groups.get(&id).is_some_and(|g| g.doubt != Doubt::None);
    let needed = |w: &DeviceReport| w.took_part().any(|(id, acted)| acted > 0 && in_doubt(id));
    let needed = state.wants_reports() && reports.get(&device).is_none_or(needed);
    needed && !mutant::on(Mutant::RemoveWitness)
}

/// Returns an epoch that is at least this one, and differs from those that another recovery from
/// the same backup leads to: a silent device may know these. The seconds of the recovery's time,
/// modulo 2^16, are part of the number.
fn above_all(state: &State, epoch: u64) -> u64 {
    let at = state.recovery.at;
    let rest = at % (1 << 16) * (JUMP >> 16);
    match epoch >= first_number(at) && epoch % JUMP == rest {
        true => epoch,
        false => epoch.max(first_number(at)).next_multiple_of(JUMP) + rest,
    }
}

/// Returns the command that records, before a device is registered with another content, that what
/// it had is gone. `None`: no group in doubt can need it, or the device has reported it.
pub fn emptied_command(state: &State, reports: &DeviceReports, up: &Command) -> Option<Command> {
    let Command::DeviceUp(up) = up else { return None };
    let id = DeviceId(up.device);
    let known = state.devices.get(&id).filter(|d| d.store != up.store)?;
    let awaited = state.recovery.is_awaited(id, up.store);
    let heard = reports.contains_key(&id) || state.recovery.emptied.contains_key(&id);
    if state.recovery.open || awaited || heard || !state.wants_reports() {
        return None;
    }
    let emptied = Vec::from([store_info(id, known.store)]);
    Some(Command::Reconcile(Reconcile { emptied, ..Reconcile::default() }))
}

/// Returns true if no device has data of an unknown volume: all have reported, except devices
/// that are down and that the operator is removing.
fn knows_all_volumes(state: &State, reports: &DeviceReports, heard: &Heard) -> bool {
    let leaves = |d: &Device| d.intent == Intent::Remove && !d.up;
    let may_come = |d: &DeviceId| !state.devices.get(d).is_some_and(leaves);
    let mut held = reports.values().flat_map(|w| &w.held);
    let waits = heard.patient || heard.silent.iter().any(may_come);
    let known = state.recovery.left.is_empty() && !held.any(|id| is_strange(state, *id));
    !state.recovery.open && !waits && known
}

/// Returns true for the id of a volume that may exist and that this MDM does not know.
fn is_strange(state: &State, id: u32) -> bool {
    let id = VolumeId(id);
    let unknown = state.recovery.is_unknown(id) || id >= state.next_volume;
    unknown && !state.volumes.contains_key(&id)
}

/// Returns the command that ends the recovery. It also settles the groups in doubt that the reports
/// can settle once the recovery counts as ended.
pub fn close(state: &State, reports: &DeviceReports, patient: bool) -> Command {
    let mut closed = state.clone();
    closed.recovery.open = false;
    let known = match plan(&closed, reports, patient) {
        Some(Command::Reconcile(known)) => known,
        _ => Reconcile::default(),
    };
    let mut left = strange(state, reports);
    // All named devices have reported, and no other one comes.
    let all = heard(state, reports, patient).silent.is_empty();
    let ids = if all { volumes::volumes(state, reports).known } else { Vec::new() };
    left.retain(|id| !ids.iter().any(|range| range.ids().contains(&VolumeId(*id))));
    left.truncate(MAX_VOLUMES); // the list is for people, and has to fit into an entry
    // The next plan finds the groups that no volume uses: it sees the volumes of this command.
    let unused = Vec::new();
    Command::Reconcile(Reconcile { close: true, left, unused, known: ids, ..known })
}

/// Returns the next command that follows from the reports, if any. `patient`: devices that nothing
/// has named may still register.
pub fn plan(state: &State, reports: &DeviceReports, patient: bool) -> Option<Command> {
    let heard = heard(state, reports, patient);
    let open = state.recovery.open;
    let all_known = knows_all_volumes(state, reports, &heard);
    let (mut groups, mut unused, mut doubts) = (Vec::new(), Vec::new(), Vec::new());
    let mut waits = false;
    let doubtful = state.groups.iter().filter(|(_, g)| g.doubt != Doubt::None);
    for (id, _) in doubtful {
        if groups.len() + unused.len() + doubts.len() >= GROUPS {
            break;
        }
        let Some(evidence) = Evidence::of(state, reports, *id) else { continue };
        match evidence.verdict(&heard) {
            // Whether a volume uses the group is known at the end.
            Verdict::Known(group)
                if open && group.in_sync.is_empty() && !mutant::on(Mutant::SettleLost) => {}
            Verdict::Known(group) if reconcile::may_settle(state, &group) => {
                groups.push(group);
                continue;
            }
            _ if all_known && !state.is_used(*id) => {
                match evidence.raised() {
                    Some(raised) => doubts.push(raised),
                    None => unused.push(id.0),
                }
                continue;
            }
            Verdict::WaitsFor(_) | Verdict::Alone(_) => waits = true,
            Verdict::Known(_) | Verdict::Stuck => {}
        }
        doubts.extend(evidence.news());
    }
    let awaited = disks::newly_awaited(state, &heard);
    let SkippedIds { device, group, sdc, next_volume } = skipped_ids(state, reports);
    let made = made_since(state, reports);
    let mut changes = volumes::volumes(state, reports);
    if !heard.is_complete() {
        // A further report may have the map of a newer recovery, in which such a volume exists.
        changes.known.clear();
    }
    let skips = Reconcile { device, group, sdc, next_volume, ..changes };
    let command = Reconcile { groups, made, unused, awaited, doubts, ..skips };
    if command != Reconcile::default() {
        return Some(Command::Reconcile(command));
    }
    let over = open && !waits && heard.is_complete() && strange(state, reports).is_empty();
    over.then(|| close(state, reports, patient))
}

/// Returns the last ids to skip, if lost MDMs have given away ids above those that were skipped so
/// far: this happens when the same state was recovered before. As many further ids are skipped as
/// at the beginning, for those that no report names. 0: there are none.
fn skipped_ids(state: &State, reports: &DeviceReports) -> SkippedIds {
    if !state.recovery.open {
        return SkippedIds::default();
    }
    let (ids, many_ids) = (ids(state.recovery.at), many_ids(state.recovery.at));
    let sane = |id: &u32| *id < IDS_END;
    let newest = |told: &mut dyn Iterator<Item = u32>, last: u32, more: u32| {
        let newest = told.filter(sane).max();
        newest.filter(|id| *id > last).map_or(0, |id| id + more)
    };
    let maps = || device_report::lost_maps(state, reports);
    let configs = maps().flat_map(|m| m.configs.values());
    let members = configs.flat_map(|g| g.replicas.iter().chain(&g.in_sync).chain(&g.joiners));
    let own = state.devices.keys().next_back().map(|d| d.0);
    let grants = maps().flat_map(|m| m.volumes.values()).filter_map(|v| v.mapping.as_ref());
    let clients = grants.flat_map(|m| &m.sdcs).map(|g| g.sdc);
    let held = reports.values().flat_map(|w| &w.held).map(|id| id.saturating_add(1));
    let volumes = held.chain(maps().map(|m| m.next_volume));
    let groups = reports.values().flat_map(|w| w.groups.keys());
    let groups = groups.chain(maps().flat_map(|m| m.configs.keys()));
    SkippedIds {
        device: newest(&mut members.copied().chain(own), state.recovery.device, ids),
        group: newest(&mut groups.map(|g| g.0), state.next_group().0 - 1, many_ids),
        sdc: newest(&mut clients.chain([state.last_sdc.0]), state.recovery.sdc, ids),
        next_volume: newest(&mut { volumes }, state.next_volume.0, many_ids),
    }
}

/// Returns groups of servers' maps that the state does not have. They enter the state in doubt, so
/// that volumes can use them.
fn made_since(state: &State, reports: &DeviceReports) -> Vec<GroupInfo> {
    let mut new: BTreeMap<u32, &GroupInfo> = BTreeMap::new();
    for told in device_report::lost_maps(state, reports).flat_map(|m| m.configs.values()) {
        let entry = new.entry(told.id).or_insert(told);
        // What an earlier recovery was in doubt about counts only without a sure configuration.
        let rank = |g: &GroupInfo| (g.epoch, Reverse(g.doubt));
        if rank(told) > rank(entry) {
            *entry = told;
        }
    }
    let enter = new.into_values().filter(|g| reconcile::may_enter(state, g)).take(GROUPS);
    enter.map(|g| GroupInfo { reached: 0, ..g.clone() }).collect()
}

/// Returns the volumes that this MDM does not have and does not know to be deleted. Devices hold
/// data of them, or the newest map has them on groups that can't be taken over. A newer backup may
/// know them.
fn strange(state: &State, reports: &DeviceReports) -> Vec<u32> {
    if !state.recovery.open {
        return Vec::new();
    }
    let held = reports.values().flat_map(|w| &w.held).copied();
    let named =
        newest_map(state, reports).into_iter().flat_map(|w| w.volumes.keys()).map(|id| id.0);
    let all: BTreeSet<u32> = held.chain(named).filter(|id| is_strange(state, *id)).collect();
    all.into_iter().collect()
}

/// Returns the newest map of the lost MDMs, if the state may lack a part of it.
fn newest_map<'a>(state: &'a State, reports: &'a DeviceReports) -> Option<&'a Map> {
    newest(state, reports, |m| m.version)
}

fn newest<'a>(
    state: &'a State,
    reports: &'a DeviceReports,
    of: impl Fn(&Map) -> MapVersion,
) -> Option<&'a Map> {
    let newest = device_report::lost_maps(state, reports).max_by_key(|m| of(m));
    newest.filter(|m| state.recovery.open && of(m) >= state.recovery.version)
}

/// Returns the replica that leaves: the last one of three. Reported maps do not name it.
fn leaving(replicas: &[DeviceId]) -> Option<DeviceId> {
    replicas.last().copied().filter(|_| replicas.len() > 2)
}

impl Group {
    /// Returns a group that only a server's map names, in doubt.
    pub(crate) fn doubtful(info: &GroupInfo) -> Group {
        let ids = |of: &[u32]| of.iter().map(|d| DeviceId(*d)).collect::<Vec<DeviceId>>();
        let replicas = ids(&info.replicas);
        let leaving = leaving(&replicas);
        Group {
            epoch: base::Epoch(info.epoch),
            replicas,
            in_sync: ids(&info.in_sync),
            leaving,
            lost: info.in_sync.is_empty(),
            doubt: if info.doubt == Doubt::Gone as u32 { Doubt::Gone } else { Doubt::Reports },
            ..Group::default()
        }
    }

    /// Returns a group whose in-sync replicas are known: those of `info`. Its epoch is the newest
    /// that any device has seen.
    pub(crate) fn settled(info: &GroupInfo, up: &impl Fn(DeviceId) -> bool) -> Group {
        let ids = |of: &[u32]| of.iter().map(|d| DeviceId(*d)).collect::<Vec<DeviceId>>();
        let replicas = ids(&info.replicas);
        let mut in_sync = ids(&info.in_sync);
        // A replica that is down will miss the next writes of the others.
        if in_sync.iter().any(|d| up(*d)) {
            in_sync.retain(|d| up(*d));
        }
        let leaving = leaving(&replicas);
        let primary = in_sync.iter().copied().find(|d| up(*d));
        let epoch = base::Epoch(info.epoch + JUMP);
        Group {
            epoch,
            primary,
            replicas,
            lost: in_sync.is_empty(),
            in_sync,
            leaving,
            ..Group::default()
        }
    }
}
