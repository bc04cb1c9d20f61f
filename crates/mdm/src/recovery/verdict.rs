//! What the reports tell of one group in doubt: its verdict, and the knowledge that must not get
//! lost while it stays in doubt.
//!
//! A map of an MDM that was sure about a group is evidence: its configuration, and the contents
//! that it names for the replicas. A map of an earlier recovery that was in doubt about the group
//! repeats a configuration. It tells which epoch the group has reached, and that this recovery does
//! not know what happened to devices meanwhile: rule 2 does not count.
//!
//! Invariant: while a group stays in doubt, its entry in the state has everything that follows from
//! the maps and records in the reports ([`Evidence::news`]). Servers get another map when the
//! recovery ends, and their old map, which may be the only evidence, is gone then. The new map has
//! the group as the state had it: a configuration that was only told would let devices delete their
//! copies.

use super::device_report::{self, DeviceReport, DeviceReports, Map};
use super::{Heard, above_all, disks};
use crate::command::{Doubtful, Told};
use crate::group::{Doubt, Group};
use crate::publish::{group_info, store_info};
use crate::state::{State, reconcile};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use base::{DeviceId, GroupId, MapVersion, Mutant, mutant};
use wire::control::GroupInfo;

/// The result of the reports for a group in doubt.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Verdict {
    /// The replicas in sync have every acknowledged write.
    Known(GroupInfo),
    /// The one replica in sync has every acknowledged write unless an unknown device is away: an
    /// operator has to decide.
    Alone(GroupInfo),
    /// Reports of these devices would help. An empty set means devices that nothing has named yet.
    WaitsFor(BTreeSet<DeviceId>),
    /// No report helps.
    Stuck,
}

/// What the map of an MDM that was sure tells of a group.
#[derive(Clone)]
struct SureMap {
    config: GroupInfo,
    version: MapVersion,
    /// The contents that it names for the replicas.
    stores: BTreeMap<DeviceId, u64>,
}

impl SureMap {
    fn of(config: &GroupInfo, map: &Map) -> SureMap {
        let ids = config.replicas.iter().chain(&config.in_sync).map(|d| DeviceId(*d));
        let stores = ids.filter_map(|d| Some((d, *map.stores.get(&d)?))).collect();
        SureMap { config: config.clone(), version: map.version, stores }
    }

    /// Returns what the state has stored of such a map.
    fn stored(told: &Told) -> Option<SureMap> {
        let stores = told.stores.iter().map(|s| (DeviceId(s.device), s.store)).collect();
        let (config, version) = (told.config.clone()?, MapVersion(told.version));
        Some(SureMap { config, version, stores })
    }
}

/// A group in doubt, and everything that the state, maps and devices tell of it.
pub(super) struct Evidence<'a> {
    state: &'a State,
    reports: &'a DeviceReports,
    id: GroupId,
    group: &'a Group,
    /// The newest configuration that the state has, or the map of an MDM that was sure.
    newest: GroupInfo,
    /// The newest such map with a configuration that is as new as the state's, or newer.
    sure: Option<SureMap>,
    /// The version of the newest map of an earlier recovery that was in doubt about the group, if
    /// that map is newer than `sure`: it is unknown what happened to devices since. 0: there
    /// is none.
    doubted_at: u64,
    /// The newest configuration of which such a map said that a device was emptied, unless `newest`
    /// is later. 0: there is none.
    gone: u64,
    /// The highest epoch that the group is known to have reached.
    reached: u64,
}

/// Returns true if the MDM that made this configuration knew which replicas have everything.
fn is_sure(info: &GroupInfo) -> bool {
    info.doubt == Doubt::None as u32 || mutant::on(Mutant::BelieveDoubtful)
}

impl Evidence<'_> {
    /// Collects what is known of this group. `None`: there is no such group.
    pub(super) fn of<'a>(
        state: &'a State,
        reports: &'a DeviceReports,
        id: GroupId,
    ) -> Option<Evidence<'a>> {
        let group = state.groups.get(&id)?;
        let stored = group.told.as_deref().cloned().unwrap_or_default();
        let told: Vec<(&GroupInfo, &Map)> = device_report::lost_maps(state, reports)
            .filter_map(|m| Some((m.configs.get(&id)?, m)))
            .collect();
        let rank = |t: &SureMap| (t.config.epoch, t.version);
        let sure = told.iter().filter(|(g, _)| is_sure(g) && g.epoch >= group.epoch.0);
        let sure = sure.max_by_key(|(g, m)| (g.epoch, m.version));
        let sure = sure.map(|(config, map)| SureMap::of(config, map));
        let sure = sure.into_iter().chain(SureMap::stored(&stored)).max_by_key(rank);
        let newest = match &sure {
            Some(sure) if sure.config.epoch > group.epoch.0 => sure.config.clone(),
            _ => GroupInfo { doubt: group.doubt as u32, reached: 0, ..group_info(id, group) },
        };
        let since = sure.as_ref().map_or(0, |sure| sure.version.0);
        let counts = |(g, m): &&(&GroupInfo, &Map)| {
            !is_sure(g) && disks::is_news(state, m.version) && m.version.0 > since
        };
        let doubted = || told.iter().filter(counts);
        let emptied = doubted().filter(|(g, _)| g.doubt == Doubt::Gone as u32);
        let gone = emptied.map(|(g, _)| g.epoch).fold(stored.gone, u64::max);
        let gone = if gone >= newest.epoch { gone } else { 0 };
        let doubted_at = doubted().map(|(_, m)| m.version.0).fold(stored.doubted_at, u64::max);
        let acted = reports.values().map(|w| w.acted(id));
        let reached = acted.chain(doubted().map(|(g, _)| g.epoch.max(g.reached)));
        let reached = reached.fold(stored.reached, u64::max);
        let doubted_at = if doubted_at > since { doubted_at } else { 0 };
        let reached = if mutant::on(Mutant::IgnoreActed) { 0 } else { reached };
        Some(Evidence { state, reports, id, group, newest, sure, doubted_at, gone, reached })
    }

    /// Returns true if the device has the content that the newest configuration is about: the one
    /// that the sure map names. (When the content of a replica changes, the epoch rises.)
    fn has_content(&self, heard: &Heard, device: DeviceId) -> bool {
        let named = self.sure.as_ref().and_then(|sure| sure.stores.get(&device).copied());
        if named.is_none() && self.is_replaced(device) {
            return false;
        }
        let other = || heard.contents.get(&device).map(|(_, store)| *store);
        named
            .or_else(other)
            .is_none_or(|store| disks::is_registered_with(self.state, device, store))
    }

    /// Returns true if the newest configuration is the state's, and the device has a newer content
    /// than the one that this configuration is about.
    fn is_replaced(&self, device: DeviceId) -> bool {
        let own = self.newest.epoch == self.group.epoch.0;
        let since = self.state.recovery.replaced.get(&device);
        own && since.is_some_and(|since| self.newest.epoch < *since)
            && !mutant::on(Mutant::BelieveNewer)
    }

    /// Returns true if the device is here with that content.
    fn is_here(&self, heard: &Heard, device: DeviceId) -> bool {
        self.reports.contains_key(&device) && self.has_content(heard, device)
    }

    /// Returns the replicas of the newest configuration.
    fn members(&self) -> BTreeSet<DeviceId> {
        let ids = self.newest.replicas.iter().chain(&self.newest.in_sync);
        ids.map(|d| DeviceId(*d)).collect()
    }

    fn in_sync(&self) -> impl Iterator<Item = DeviceId> + '_ {
        self.newest.in_sync.iter().map(|d| DeviceId(*d))
    }

    /// Returns what follows from everything that is known.
    pub(super) fn verdict(&self, heard: &Heard) -> Verdict {
        if self.group.in_sync.is_empty() && mutant::on(Mutant::SettleLost) {
            return Verdict::Known(group_info(self.id, self.group));
        }
        if self.group.doubt == Doubt::Gone || self.gone > 0 {
            return self.of_emptied(heard);
        }
        let missing: BTreeSet<DeviceId> =
            self.in_sync().filter(|d| !self.is_here(heard, *d)).collect();
        let later = self.reached > self.newest.epoch;
        let blank = self.may_be_emptied(self.in_sync());
        if missing.is_empty() && !later && !blank {
            return match self.waits_for_all() && !heard.is_complete() {
                true => Verdict::WaitsFor(heard.silent.clone()),
                false => Verdict::Known(self.in_new_epoch(self.newest.clone())),
            };
        }
        if !heard.is_complete() {
            let all = later || blank || missing.is_disjoint(&heard.silent);
            return Verdict::WaitsFor(if all { heard.silent.clone() } else { missing });
        }
        // The earlier content of such a device may have taken part in a later epoch. (The state
        // itself knows when a replica of its own configuration comes with another content.)
        // If the newer content took part in the group, that was in a later epoch than any in which
        // the older one did, and a primary that had everything led it.
        let took_part = |d: &DeviceId| self.is_replaced(*d) && self.reports[d].acted(self.id) > 0;
        let other = |d: &DeviceId| {
            self.reports.contains_key(d) && !self.has_content(heard, *d) && !took_part(d)
        };
        let members = self.members();
        let is_told = self.newest.epoch > self.group.epoch.0;
        let emptied =
            members.iter().any(other) || is_told && self.may_be_emptied(members.into_iter());
        let misses_records = !self.state.recovery.emptied.is_empty();
        if emptied || self.doubted_at > 0 || misses_records {
            return Verdict::Stuck;
        }
        let last = self.reached;
        let sealed = |(d, w): (&DeviceId, &DeviceReport)| {
            let said = w.groups.get(&self.id)?;
            (said.acted == last && said.base == last && !said.joiner).then_some(*d)
        };
        let whole: Vec<DeviceId> = self.reports.iter().filter_map(sealed).collect();
        let known = |whole| self.in_new_epoch(sealed_in(self.state, &self.newest, whole));
        match (later, whole.len()) {
            (true, 1) if self.state.recovery.open => Verdict::Alone(known(whole)),
            (true, 1..=3) if !mutant::on(Mutant::IgnoreReports) => Verdict::Known(known(whole)),
            _ => Verdict::Stuck,
        }
    }

    /// Returns true if one of these replicas may have been emptied after it served alone: it
    /// remembers nothing of a group that others remember. It was not emptied if a map with this
    /// newest configuration names its present content, and the MDM of that map was sure.
    fn may_be_emptied(&self, mut replicas: impl Iterator<Item = DeviceId>) -> bool {
        let Evidence { state, reports, id, .. } = *self;
        let maps = || device_report::lost_maps(state, reports);
        let has = |m: &&Map| {
            let config = m.configs.get(&id);
            config.is_some_and(|g| g.epoch == self.newest.epoch && is_sure(g))
        };
        let sure: Vec<&Map> = maps().filter(has).collect();
        let stored = self.sure.as_ref().filter(|s| s.config.epoch == self.newest.epoch);
        let names = |d: DeviceId| stored.and_then(|s| s.stores.get(&d));
        let kept = |d: DeviceId| {
            sure.iter().any(|map| disks::has_content_of(state, map, d))
                || names(d).is_some_and(|store| disks::is_registered_with(state, d, *store))
        };
        let (began, lost) = (state.recovery.began, state.recovery.lost.start);
        let is_blank =
            |d: DeviceId| reports.get(&d).is_some_and(|w| w.is_blank(id, began, lost)) && !kept(d);
        let touched = self.reached > 0
            || reports.values().any(|w| w.groups.contains_key(&id))
            || maps().any(|m| m.configs.contains_key(&id));
        touched && replicas.any(is_blank)
    }

    /// Judges a group with a replica that is empty although the state says that it has data. The
    /// replica may have been emptied long ago. That is certain if it is a witness of a newer
    /// configuration, of an MDM that was not in doubt. Then the replicas in sync there have
    /// everything if all have reported and no device took part in a later epoch. If none was in
    /// sync there, the group was lost before.
    fn of_emptied(&self, heard: &Heard) -> Verdict {
        let newest = &self.newest;
        let mut members = self.members();
        members.extend(&self.group.replicas);
        let is_silent = |d: &DeviceId| !self.reports.contains_key(d) || heard.older.contains(d);
        let (silent, came): (Vec<DeviceId>, Vec<_>) = members.iter().partition(|d| is_silent(d));
        let began = self.state.recovery.began;
        let is_witness = |d: &&DeviceId| {
            let report = &self.reports[*d];
            self.has_content(heard, **d) && report.is_witness(self.id, newest, began)
        };
        let (witnesses, silent) = (came.iter().filter(is_witness).count(), silent.len());
        // The state's own configuration is not newer than itself: this one is from a sure map.
        let newer = newest.epoch > self.group.epoch.0.max(self.gone);
        let later = self.reached > newest.epoch;
        let waits = self.waits_for_all() && !heard.is_complete();
        match newer && !later && witnesses + silent == members.len() {
            false => Verdict::Stuck,
            true if silent > 0 || waits => Verdict::WaitsFor(heard.silent.clone()),
            true => Verdict::Known(self.in_new_epoch(newest.clone())),
        }
    }

    /// Returns true if reports of the replicas in sync are not enough.
    fn waits_for_all(&self) -> bool {
        self.state.recovery.open || self.newest.in_sync.is_empty()
    }

    /// Returns what the reports add to the state's knowledge of this group, which stays in doubt.
    pub(super) fn news(&self) -> Option<Doubtful> {
        let mut told = Told {
            doubted_at: self.doubted_at,
            gone: self.gone,
            reached: self.reached,
            ..Told::default()
        };
        if let Some(sure) = &self.sure {
            told.stores = sure.stores.iter().map(|(d, store)| store_info(*d, *store)).collect();
            (told.config, told.version) = (Some(sure.config.clone()), sure.version.0);
            told.reached = told.reached.max(sure.config.epoch);
        }
        // A map that says the same as an older one is no news.
        if let Some(stored) = self.group.told.as_deref().filter(|_| self.doubted_at == 0)
            && (&stored.config, &stored.stores) == (&told.config, &told.stores)
        {
            told.version = stored.version;
        }
        if told.reached <= self.group.epoch.0 {
            told.reached = 0;
        }
        let told = Doubtful { group: self.id.0, told };
        let adds = reconcile::doubted(self.state, &told).is_some();
        (adds && !mutant::on(Mutant::ForgetDoubts)).then_some(told)
    }

    /// Returns what has to be stored before the group starts again, empty: that it has reached an
    /// epoch above all that any device may know. `None`: it is stored.
    pub(super) fn raised(&self) -> Option<Doubtful> {
        let reached = above_all(self.state, self.reached.max(self.newest.epoch));
        let told = Doubtful { group: self.id.0, told: Told { reached, ..Told::default() } };
        reconcile::doubted(self.state, &told).is_some().then_some(told)
    }

    /// Returns this configuration in an epoch that no device has reached.
    fn in_new_epoch(&self, info: GroupInfo) -> GroupInfo {
        let epoch = above_all(self.state, info.epoch.max(self.reached));
        GroupInfo { epoch, reached: 0, ..info }
    }
}

/// Returns the configuration in which these replicas are in sync: they were sealed in the last
/// epoch that any device took part in. A move that was under way goes on: the new replica may be on
/// the server of the one that leaves. Otherwise, other replicas of the group fill it up to two.
fn sealed_in(state: &State, newest: &GroupInfo, mut whole: Vec<DeviceId>) -> GroupInfo {
    let place = |d: &DeviceId| newest.replicas.iter().position(|r| *r == d.0);
    whole.sort_by_key(|d| place(d).unwrap_or(usize::MAX));
    let ids = |of: &[DeviceId]| of.iter().map(|d| d.0).collect::<Vec<u32>>();
    if newest.replicas.len() > 2 && whole.iter().all(|d| place(d).is_some()) {
        return GroupInfo { in_sync: ids(&whole), lost: false, ..newest.clone() };
    }
    let unit = |d: DeviceId| state.unit_of(d);
    let config = |replicas: Vec<u32>, in_sync| GroupInfo {
        replicas,
        in_sync,
        leaving: 0,
        lost: false,
        ..newest.clone()
    };
    // Two that are apart stay. If all are on one server, one of them leaves.
    let first = whole.first().copied();
    let apart = whole.iter().copied().find(|d| first.is_some_and(|f| unit(*d) != unit(f)));
    if let (Some(first), Some(other)) = (first, apart) {
        whole = Vec::from([first, other]);
    } else if let [leaves, new, ..] = whole[..]
        && let Some(stays) = newest.replicas.iter().find(|d| unit(DeviceId(**d)) != unit(new))
    {
        return config(Vec::from([*stays, new.0, leaves.0]), ids(&[new, leaves]));
    }
    whole.truncate(2);
    let mut replicas = ids(&whole);
    replicas.extend(newest.replicas.iter().filter(|d| !whole.contains(&DeviceId(**d))));
    replicas.truncate(2);
    config(replicas, ids(&whole))
}
