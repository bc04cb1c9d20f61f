//! How one MDM goes on when most others are lost for good, or when all are and a backup is restored.
//!
//! Its state may be older than what the lost ones decided, and servers have acted on that. So a recovery has two steps:
//! - [`State::recover`] makes this MDM the only one. Numbers that the lost ones may have given away (volumes, devices,
//!   groups, clients, lives, versions of the map) are passed over. Every group is in [`Doubt`]: nobody leads it.
//! - Servers report what they know ([`Word`]); [`plan`] makes [`Reconcile`] commands of it. Until the last of them the MDM
//!   hands out no map, so servers and clients go on with the maps that they have, as they do without an MDM.
//!
//! **Who has every acknowledged write of a group?** Take the newest configuration that anybody knows: the state's, or that
//! of a server's map. Whoever leads a later one was in sync in this one, or was let in by somebody who led a later one
//! and was in sync in this one. A replica notes durably in which epoch it takes part before it does. So:
//! 1. If all in sync have reported, and none took part in a later epoch, no later configuration was ever served: they have
//!    every acknowledged write.
//! 2. Otherwise, if all devices of the cluster have reported: those that were sealed in the highest epoch in which
//!    anybody took part. From the seal on every acknowledgement in that epoch needed them, and there was no later one.
//! 3. Otherwise it is not known, and the group waits: for the reports that are missing, or for a person's word.
//!
//! The new epoch is above all that anybody can have seen: a recovery adds [`JUMP`]. docs/design/0005-mdm-cluster.md has
//! the argument.

use crate::command::{Command, Reconcile};
use crate::group::{Doubt, Group};
use crate::members::Member;
use crate::publish::group_info;
use crate::refused::MAX_VOLUMES;
use crate::state::State;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use base::{DeviceId, GroupId, Incarnation, MapVersion, VolumeId};
use wire::control::{GroupInfo, Intent, RecoveryStatus, Report, VolumeInfo};

/// How far a recovery moves epochs, lives and versions of the map on. None of them rises so far by itself.
pub const JUMP: u64 = 1 << 32;
/// How many ids of devices, servers and clients a recovery passes over.
const IDS: u32 = 1000;
/// The same for groups and volumes.
const MANY_IDS: u32 = 1 << 16;
/// Groups that one device may tell of.
const TOLD_GROUPS: usize = 1 << 17;
/// Volumes of which one device may say that it holds data.
const TOLD_HELD: usize = 1 << 17;
/// Groups in one command.
const GROUPS: usize = 2048;
/// Volumes in one command.
const VOLUMES: usize = 64;

/// What is remembered of recoveries.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Recovery {
    /// How many there were.
    pub number: u32,
    /// The last one still collects what servers know: no map is handed out, and no order is taken.
    pub open: bool,
    /// Who ordered it.
    pub by: String,
    /// When: seconds since 1970, UTC.
    pub at: u64,
    /// The map that the MDM had when it began.
    pub version: MapVersion,
    /// Ids of devices up to this one may have been given away.
    pub device: u32,
    /// The same for servers,
    pub server: u32,
    /// groups,
    pub group: u32,
    /// and clients.
    pub sdc: u32,
    /// The first id of a volume that this MDM had not given away itself.
    pub volume: u32,
}

/// What one server's device has told.
#[derive(Clone, Debug, Default)]
pub struct Word {
    version: MapVersion,
    groups: BTreeMap<GroupId, Said>,
    volumes: BTreeMap<VolumeId, VolumeInfo>,
    next_volume: u32,
    held: BTreeSet<u32>,
}

#[derive(Clone, Debug, Default)]
struct Said {
    acted: u64,
    base: u64,
    config: Option<GroupInfo>,
}

impl Word {
    /// Takes in a part of a report; false, and nothing is taken in, if no honest device can have so much to tell.
    #[must_use]
    pub fn add(&mut self, part: Report) -> bool {
        let groups = self.groups.len() + part.groups.len();
        let volumes = self.volumes.len() + part.volumes.len();
        if groups > TOLD_GROUPS
            || volumes > MAX_VOLUMES
            || self.held.len() + part.held.len() > TOLD_HELD
        {
            return false;
        }
        self.version = MapVersion(part.version);
        self.next_volume = part.next_volume;
        self.held.extend(part.held);
        for g in part.groups {
            let said = Said { acted: g.acted, base: g.base, config: g.config };
            self.groups.insert(GroupId(g.group), said);
        }
        self.volumes.extend(part.volumes.into_iter().map(|v| (VolumeId(v.id), v)));
        true
    }

    fn acted(&self, group: GroupId) -> u64 {
        self.groups.get(&group).map_or(0, |s| s.acted)
    }

    fn config(&self, group: GroupId) -> Option<&GroupInfo> {
        self.groups.get(&group)?.config.as_ref()
    }
}

/// What devices have told, each in its present life.
pub type Words = BTreeMap<DeviceId, Word>;

/// What is known of a group in doubt.
#[derive(Clone, PartialEq, Debug)]
enum Verdict {
    /// Those in sync have every acknowledged write.
    Known(GroupInfo),
    /// Reports of these would help.
    WaitsFor(BTreeSet<DeviceId>),
    /// No report helps.
    Stuck,
}

impl State {
    /// This MDM is the only one from now on: `me` is its id. What the others decided last may be unknown here.
    pub fn recover(&mut self, id: u32, me: Member, by: &str, at: u64) {
        let floors =
            (self.next_device().0, self.next_sds().0, self.next_group().0, self.next_sdc().0);
        self.recovery = Recovery {
            number: self.recovery.number + 1,
            open: true,
            by: by.into(),
            at,
            version: self.version,
            device: floors.0 + IDS,
            server: floors.1 + IDS,
            group: floors.2 + MANY_IDS,
            sdc: floors.3 + IDS,
            volume: self.next_volume.0,
        };
        // The clock's part is for a backup that is restored a second time: both must not lead to the same numbers.
        let least = at / 60 * JUMP;
        self.index = least.max(self.index + JUMP);
        self.next_incarnation = Incarnation(least.max(self.next_incarnation.0 + JUMP));
        self.next_volume = VolumeId(self.next_volume.0 + MANY_IDS);
        self.members.last_id = self.members.last_id.max(id) + IDS;
        self.members.list = BTreeMap::from([(id, me)]);
        for group in self.groups.values_mut() {
            group.doubt = Doubt::Reports;
            group.primary = None;
            group.joiners.clear();
        }
    }

    /// Takes the groups from an earlier state, where that has them: what is not known to be decided is no
    /// evidence of who has what.
    pub fn with_groups_of(mut self, decided: &State) -> State {
        for (id, group) in &decided.groups {
            self.groups.insert(*id, group.clone());
        }
        self.index_all();
        self
    }

    /// True while devices are asked for reports.
    pub fn wants_reports(&self) -> bool {
        // Only a recovery leaves doubts: a cluster that never had one doesn't look at its groups.
        let doubts = || self.groups.values().any(|g| g.doubt == Doubt::Reports);
        self.recovery.open || self.recovery.number > 0 && doubts()
    }

    /// Devices that belong to the cluster.
    fn present(&self) -> impl Iterator<Item = DeviceId> + '_ {
        self.devices.iter().filter(|(_, d)| d.intent != Intent::Removed).map(|(id, _)| *id)
    }

    fn judge(&self, words: &Words, id: GroupId, all: bool) -> Verdict {
        let state = self.groups.get(&id).map(|g| group_info(id, g));
        let told = words.values().filter_map(|w| w.config(id).cloned());
        let Some(newest) = state.into_iter().chain(told).max_by_key(|g| g.epoch) else {
            return Verdict::Stuck;
        };
        if self.groups.get(&id).is_some_and(|g| g.doubt == Doubt::Gone) {
            return Verdict::Stuck;
        }
        let in_sync = || newest.in_sync.iter().map(|d| DeviceId(*d));
        let missing: BTreeSet<DeviceId> = in_sync().filter(|d| !words.contains_key(d)).collect();
        let last = words.values().map(|w| w.acted(id)).max().unwrap_or(0);
        let later = match newest.in_sync.is_empty() {
            true => last > newest.epoch,
            false => in_sync().any(|d| words.get(&d).is_some_and(|w| w.acted(id) > newest.epoch)),
        };
        if missing.is_empty() && !later {
            let epoch = newest.epoch.max(last);
            return Verdict::Known(GroupInfo { epoch, ..newest });
        }
        if !all {
            let silent = self.present().filter(|d| !words.contains_key(d));
            return Verdict::WaitsFor(if later { silent.collect() } else { missing });
        }
        let sealed = |(d, w): (&DeviceId, &Word)| {
            let said = w.groups.get(&id)?;
            (said.acted == last && said.base == last).then_some(*d)
        };
        let whole: Vec<DeviceId> = words.iter().filter_map(sealed).collect();
        match last > newest.epoch && (1..=2).contains(&whole.len()) {
            true => Verdict::Known(sealed_in(&newest, last, &whole)),
            false => Verdict::Stuck,
        }
    }

    /// How the last recovery stands, for people.
    pub fn recovery_status(&self, words: &Words) -> Option<RecoveryStatus> {
        let recovery = &self.recovery;
        let mut status = RecoveryStatus {
            number: recovery.number,
            by: recovery.by.clone(),
            at: recovery.at,
            open: recovery.open,
            ..RecoveryStatus::default()
        };
        let all = self.present().all(|d| words.contains_key(&d));
        let mut waits = BTreeSet::new();
        for (id, _) in self.groups.iter().filter(|(_, g)| g.doubt != Doubt::None) {
            status.doubtful += 1;
            match self.judge(words, *id, all) {
                Verdict::WaitsFor(devices) => waits.extend(devices),
                Verdict::Stuck => status.stuck += 1,
                Verdict::Known(_) => {}
            }
        }
        status.waits_for = waits.into_iter().map(|d| d.0).collect();
        status.strange = strange(self, words);
        (recovery.number > 0).then_some(status)
    }
}

/// These were sealed in the last epoch that anybody took part in: with whoever else belongs to the group.
fn sealed_in(newest: &GroupInfo, epoch: u64, whole: &[DeviceId]) -> GroupInfo {
    let mut replicas: Vec<u32> = whole.iter().map(|d| d.0).collect();
    let others = newest.replicas.iter().filter(|d| !whole.contains(&DeviceId(**d)));
    replicas.extend(others);
    replicas.truncate(2);
    let in_sync = whole.iter().map(|d| d.0).collect();
    GroupInfo { epoch, replicas, in_sync, leaving: 0, lost: false, ..newest.clone() }
}

/// The next thing that follows from what was told, if anything does. `patient`: devices may still come that have
/// said nothing.
pub fn plan(state: &State, words: &Words, patient: bool) -> Option<Command> {
    let all = state.present().all(|d| words.contains_key(&d));
    let doubtful =
        state.groups.iter().filter(|(_, g)| g.doubt == Doubt::Reports).map(|(id, _)| *id);
    let told = words.values().flat_map(|w| w.groups.iter());
    let new = told.filter(|(id, s)| {
        state.recovery.open && s.config.is_some() && !state.groups.contains_key(id)
    });
    let ids: BTreeSet<GroupId> = doubtful.chain(new.map(|(id, _)| *id)).collect();
    let (mut groups, mut waits) = (Vec::new(), false);
    for id in ids {
        match state.judge(words, id, all) {
            Verdict::Known(group) if !state.may_settle(&group) => waits |= patient,
            Verdict::Known(group) if groups.len() < GROUPS => groups.push(group),
            Verdict::Known(_) => break,
            Verdict::WaitsFor(_) => waits = true,
            Verdict::Stuck => {}
        }
    }
    let command = Reconcile { groups, ..volumes(state, words) };
    if command != Reconcile::default() {
        return Some(Command::Reconcile(command));
    }
    let over =
        state.recovery.open && !waits && (all || !patient) && strange(state, words).is_empty();
    over.then(|| Command::Reconcile(Reconcile { close: true, ..Reconcile::default() }))
}

/// Volumes of which devices hold data, made after what this MDM knows, and in no map any more. When maps are handed
/// out again they count as deleted: a person has to want that.
fn strange(state: &State, words: &Words) -> Vec<u32> {
    let held: BTreeSet<u32> = words.values().flat_map(|w| &w.held).copied().collect();
    let new =
        |id: &u32| *id >= state.recovery.volume && !state.volumes.contains_key(&VolumeId(*id));
    held.into_iter().filter(|id| state.recovery.open && new(id)).collect()
}

/// Volumes that differ in the newest map that a server has, if that is newer than the state was.
fn volumes(state: &State, words: &Words) -> Reconcile {
    let mut change = Reconcile::default();
    let newest = words.values().max_by_key(|w| w.version);
    let newest = newest.filter(|w| state.recovery.open && w.version > state.recovery.version);
    let Some(word) = newest else { return change };
    let known = |v: &VolumeInfo| v.slots.iter().all(|g| state.groups.contains_key(&GroupId(*g)));
    let other = |v: &&VolumeInfo| known(v) && state.adopted(v).is_some();
    change.volumes = word.volumes.values().filter(other).take(VOLUMES).cloned().collect();
    let gone = |id: &&VolumeId| id.0 < word.next_volume && !word.volumes.contains_key(id);
    change.deleted = state.volumes.keys().filter(gone).take(VOLUMES).map(|id| id.0).collect();
    change
}

impl Group {
    /// Who has every acknowledged write is known: `info` says it, of the newest epoch that anybody has seen.
    pub(crate) fn settled(info: &GroupInfo, up: &impl Fn(DeviceId) -> bool) -> Group {
        let ids = |of: &[u32]| of.iter().map(|d| DeviceId(*d)).collect::<Vec<DeviceId>>();
        let replicas = ids(&info.replicas);
        let mut in_sync = ids(&info.in_sync);
        // Who is away misses what the others are about to take.
        if in_sync.iter().any(|d| up(*d)) {
            in_sync.retain(|d| up(*d));
        }
        let leaving = replicas.last().copied().filter(|_| replicas.len() > 2);
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
