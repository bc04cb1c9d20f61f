//! What the reports tell of one group in doubt: its verdict, and the knowledge that must not get
//! lost while it stays in doubt.
//!
//! A map of an MDM that was sure about a group is evidence: its configuration and the contents that
//! it names for the replicas. A map of an earlier recovery that was in doubt about the group proves
//! nothing. It repeats a configuration, and names the contents that came back. It only tells that
//! something may have happened to devices that this recovery does not know.
//!
//! Invariant: while a group stays in doubt, its entry in the state has everything that follows from
//! the reports ([`news`]). Servers get another map when the recovery ends, and their old map, which
//! may be the only evidence, is gone then.

use super::device_report::{self, DeviceReport, DeviceReports, Map};
use super::{Heard, disks, record::first_number};
use crate::command::Doubtful;
use crate::group::{Doubt, Group};
use crate::publish::group_info;
use crate::state::{State, reconcile};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use base::{DeviceId, GroupId, Mutant, mutant};
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

/// What the state and the maps of lost MDMs tell of a group in doubt.
struct Evidence<'a> {
    /// The newest configuration that the state has, or the map of an MDM that was sure.
    newest: GroupInfo,
    /// The newest map that has it.
    map: Option<&'a Map>,
    /// The newest configuration of which an earlier recovery was in doubt, unless `newest` is
    /// later. This recovery does not know what happened to devices meanwhile.
    doubted: Option<&'a GroupInfo>,
    /// The highest epoch that the group is known to have reached.
    reached: u64,
}

impl Evidence<'_> {
    fn of<'a>(
        state: &'a State,
        reports: &'a DeviceReports,
        id: GroupId,
        group: &Group,
    ) -> Evidence<'a> {
        let told = || {
            device_report::lost_maps(state, reports).filter_map(|m| Some((m.configs.get(&id)?, m)))
        };
        let sure = told().filter(|(g, _)| is_sure(g)).max_by_key(|(g, m)| (g.epoch, m.version));
        let sure = sure.filter(|(g, _)| g.epoch >= group.epoch.0);
        let newer = sure.filter(|(g, _)| g.epoch > group.epoch.0);
        let newest = newer.map_or_else(|| group_info(id, group), |(g, _)| g.clone());
        let doubted = told().filter(|(g, m)| !is_sure(g) && disks::is_news(state, m.version));
        let doubted = doubted.map(|(g, _)| g).max_by_key(|g| (g.epoch, g.doubt));
        let acted = reports.values().map(|w| w.acted(id)).max().unwrap_or(0);
        let reached = acted.max(group.reached.0);
        Evidence {
            map: sure.map(|(_, map)| map),
            doubted: doubted.filter(|g| g.epoch >= newest.epoch),
            newest,
            reached: if mutant::on(Mutant::IgnoreActed) { 0 } else { reached },
        }
    }

    /// Returns true if an earlier recovery was in doubt about a later configuration than those that
    /// are sure, or knew that a device was emptied which may have had more.
    fn is_gone(&self) -> bool {
        let gone = |g: &GroupInfo| g.epoch > self.newest.epoch || g.doubt == Doubt::Gone as u32;
        self.doubted.is_some_and(gone)
    }

    /// Returns true if the device has the content that the newest configuration is about.
    fn has_content(&self, state: &State, device: DeviceId) -> bool {
        self.map.is_none_or(|map| disks::is_content_of(state, map, device))
    }

    /// Returns the replicas of the newest configuration.
    fn members(&self) -> BTreeSet<DeviceId> {
        let ids = self.newest.replicas.iter().chain(&self.newest.in_sync);
        ids.map(|d| DeviceId(*d)).collect()
    }
}

/// Returns true if the MDM that made this configuration knew which replicas have everything.
fn is_sure(info: &GroupInfo) -> bool {
    info.doubt == Doubt::None as u32 || mutant::on(Mutant::BelieveDoubtful)
}

/// Returns what the reports tell of a group in doubt.
pub(super) fn judge(state: &State, reports: &DeviceReports, id: GroupId, heard: &Heard) -> Verdict {
    let Some(group) = state.groups.get(&id) else { return Verdict::Stuck };
    if group.in_sync.is_empty() && mutant::on(Mutant::SettleLost) {
        return Verdict::Known(group_info(id, group));
    }
    let evidence = Evidence::of(state, reports, id, group);
    if group.doubt == Doubt::Gone {
        return judge_emptied(state, reports, (id, group), &evidence, heard);
    }
    if evidence.is_gone() {
        return match heard.is_complete() {
            true => Verdict::Stuck,
            false => Verdict::WaitsFor(heard.silent.clone()),
        };
    }
    let newest = &evidence.newest;
    let same = |d: DeviceId| evidence.has_content(state, d);
    let is_here = |d: &DeviceId| reports.contains_key(d) && !heard.older.contains(d) && same(*d);
    let in_sync = || newest.in_sync.iter().map(|d| DeviceId(*d));
    let missing: BTreeSet<DeviceId> = in_sync().filter(|d| !is_here(d)).collect();
    let last = evidence.reached;
    let later = last > newest.epoch;
    let blank = may_be_emptied(state, reports, newest, in_sync());
    if missing.is_empty() && !later && !blank {
        let waits = state.recovery.open || newest.in_sync.is_empty();
        return match waits && !heard.is_complete() {
            true => Verdict::WaitsFor(heard.silent.clone()),
            false => Verdict::Known(above_all(state, newest.clone(), last)),
        };
    }
    if !heard.is_complete() {
        let all = later || blank || missing.is_disjoint(&heard.silent);
        return Verdict::WaitsFor(if all { heard.silent.clone() } else { missing });
    }
    // The earlier content of such a device may have taken part in a later epoch.
    let members = evidence.members();
    let other = members.iter().any(|d| reports.contains_key(d) && !same(*d));
    let emptied = may_be_emptied(state, reports, newest, members.into_iter());
    if evidence.doubted.is_some() || other || emptied {
        return Verdict::Stuck;
    }
    let sealed = |(d, w): (&DeviceId, &DeviceReport)| {
        let said = w.groups.get(&id)?;
        (said.acted == last && said.base == last && !said.joiner).then_some(*d)
    };
    let whole: Vec<DeviceId> = reports.iter().filter_map(sealed).collect();
    let known = |whole| above_all(state, sealed_in(newest, whole), last);
    match (later, whole.len()) {
        (true, 1) if state.recovery.open => Verdict::Alone(known(whole)),
        (true, 1..=3) if !mutant::on(Mutant::IgnoreReports) => Verdict::Known(known(whole)),
        _ => Verdict::Stuck,
    }
}

/// Returns true if one of these replicas may have been emptied after it served alone: it remembers
/// nothing of a group that others remember. It was not emptied if a map with this newest
/// configuration names its present content, and the MDM of that map was sure.
fn may_be_emptied(
    state: &State,
    reports: &DeviceReports,
    newest: &GroupInfo,
    mut replicas: impl Iterator<Item = DeviceId>,
) -> bool {
    let id = GroupId(newest.id);
    let maps = || device_report::lost_maps(state, reports);
    let has = |m: &&Map| m.configs.get(&id).is_some_and(|g| g.epoch == newest.epoch && is_sure(g));
    let sure: Vec<&Map> = maps().filter(has).collect();
    let kept = |d: DeviceId| sure.iter().any(|map| disks::has_content_of(state, map, d));
    let is_blank = |d: DeviceId| {
        reports.get(&d).is_some_and(|w| w.is_blank(id, state.recovery.began)) && !kept(d)
    };
    let touched = reports.values().any(|w| w.groups.contains_key(&id))
        || maps().any(|m| m.configs.contains_key(&id));
    touched && replicas.any(is_blank)
}

/// Judges a group with a replica that is empty although the state says that it has data. The
/// replica may have been emptied long ago. That is certain if it is a witness of a newer
/// configuration that has a primary: the MDM that made that one was not in doubt. Then the replicas
/// in sync there have everything if all have reported and no device took part in a later epoch.
fn judge_emptied(
    state: &State,
    reports: &DeviceReports,
    (id, known): (GroupId, &Group),
    evidence: &Evidence,
    heard: &Heard,
) -> Verdict {
    let newest = &evidence.newest;
    let mut members = evidence.members();
    members.extend(&known.replicas);
    let is_silent = |d: &DeviceId| !reports.contains_key(d) || heard.older.contains(d);
    let (silent, came): (Vec<DeviceId>, Vec<_>) = members.iter().partition(|d| is_silent(d));
    let began = state.recovery.began;
    let is_witness = |d: &&DeviceId| {
        evidence.has_content(state, **d) && reports[*d].is_witness(id, newest, began)
    };
    let (witnesses, silent) = (came.iter().filter(is_witness).count(), silent.len());
    let later = evidence.reached > newest.epoch || evidence.is_gone();
    let newer = newest.epoch > known.epoch.0 && newest.primary != 0;
    let may = newer && !newest.in_sync.is_empty() && !later;
    let waits = state.recovery.open && !heard.is_complete();
    match may && witnesses + silent == members.len() {
        false => Verdict::Stuck,
        true if silent > 0 || waits => Verdict::WaitsFor(heard.silent.clone()),
        true => Verdict::Known(above_all(state, newest.clone(), evidence.reached)),
    }
}

/// Returns what the reports add to the state's knowledge of a group that stays in doubt. A group
/// that is `Gone` keeps its configuration, since only a newer one may end that doubt.
pub(super) fn news(
    state: &State,
    reports: &DeviceReports,
    id: GroupId,
    verdict: &Verdict,
) -> Option<Doubtful> {
    let group = state.groups.get(&id)?;
    let evidence = Evidence::of(state, reports, id, group);
    let gone = evidence.is_gone() || *verdict == Verdict::Stuck;
    let config = match evidence.doubted.filter(|_| gone) {
        Some(doubted) => GroupInfo { doubt: Doubt::Gone as u32, ..doubted.clone() },
        None if group.doubt == Doubt::Gone => group_info(id, group),
        None => GroupInfo { doubt: Doubt::Reports as u32, ..evidence.newest.clone() },
    };
    let reached = evidence.reached.max(evidence.newest.epoch).max(config.epoch);
    let told = Doubtful { config, reached };
    let adds = reconcile::doubted(state, &told).is_some() && !mutant::on(Mutant::ForgetDoubts);
    adds.then_some(told)
}

/// Returns this configuration with an epoch that is at least the last one that the group has
/// reached. It is also above those of an earlier recovery that this one does not know.
fn above_all(state: &State, info: GroupInfo, last: u64) -> GroupInfo {
    let epoch = info.epoch.max(last).max(first_number(state.recovery.at));
    GroupInfo { epoch, ..info }
}

/// Returns the configuration in which these replicas are in sync: they were sealed in the last
/// epoch that any device took part in. Other replicas of the group fill it up to two.
fn sealed_in(newest: &GroupInfo, mut whole: Vec<DeviceId>) -> GroupInfo {
    whole.truncate(2); // a move has three
    let mut replicas: Vec<u32> = whole.iter().map(|d| d.0).collect();
    let in_sync = replicas.clone();
    let others = newest.replicas.iter().filter(|d| !whole.contains(&DeviceId(**d)));
    replicas.extend(others);
    replicas.truncate(2);
    GroupInfo { replicas, in_sync, leaving: 0, lost: false, ..newest.clone() }
}
