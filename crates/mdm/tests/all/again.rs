//! A recovery after an earlier one. The earlier MDM did not know which replicas of a group had
//! everything, and its map has taken the place of the maps that told.

use crate::common::*;
use base::{DeviceId, GroupId, MapVersion};
use mdm::group::{Doubt, Group};
use mdm::members::Member;
use mdm::recovery::{
    DeviceReport, DeviceReports, JUMP, close, emptied_command, may_be_needed, plan,
};
use mdm::{Outcome, State};
use wire::control::DeviceKind::Durable;
use wire::control::{DeviceInfo, GroupInfo, GroupReport, Report, StoreInfo};

/// Time of the first recovery, in seconds since 1970.
const FIRST: u64 = 6000;
/// Time of the second one.
const SECOND: u64 = 6060;
/// The content that replaced that of dev1 after the backup.
const NEWER: u64 = 99;
/// The version of maps of lost MDMs.
const SINCE: u64 = 100;

/// The backup: group 1 is on dev1 and dev2, both in sync in epoch 1. dev3 is there, too.
fn backup() -> State {
    let mut state = pair(Durable);
    apply(&mut state, &up(3, 3, 13, Durable));
    state
}

fn recover(mut state: State, at: u64) -> State {
    let me = Member { name: "m".into(), address: "10.0.0.9:1".into(), tie_breaker: false };
    state.recover(&state.clone(), 1, me, "me@here", at);
    register_all(&mut state);
    state
}

/// Carries out everything that follows from the reports.
fn settle(state: &mut State, reports: &DeviceReports) {
    for _ in 0..20 {
        let Some(command) = plan(state, reports, false) else { return };
        assert_eq!(state.apply(state.index + 1, &command), Outcome::Changed, "{command:?}");
        state.check().unwrap();
        *state = State::from_bytes(&state.to_bytes()).unwrap();
    }
    panic!("a plan without end");
}

/// Ends the recovery by an operator's order, and does what follows then.
fn finish(state: &mut State, reports: &DeviceReports) {
    settle(state, reports);
    assert!(state.recovery.open, "nobody has to end it");
    let end = close(state, reports, false);
    assert_eq!(state.apply(state.index + 1, &end), Outcome::Changed);
    settle(state, reports);
}

fn group(state: &State) -> &Group {
    &state.groups[&GroupId(1)]
}

/// Returns group 1 as a map has it.
fn config(epoch: u64, replicas: &[u32], in_sync: &[u32]) -> GroupInfo {
    let (replicas, in_sync) = (replicas.to_vec(), in_sync.to_vec());
    GroupInfo { id: 1, epoch, primary: in_sync[0], replicas, in_sync, ..GroupInfo::default() }
}

/// Returns the report of a device that took part in group 1 last in this epoch, and was sealed in
/// it. 0: it remembers nothing. Its process has no map.
fn took_part(epoch: u64) -> DeviceReport {
    let mut report = DeviceReport::default();
    let groups = vec![
        GroupReport { group: 1, acted: epoch, base: epoch, ..GroupReport::default() },
        GroupReport { group: 2, acted: 1, base: 1, ..GroupReport::default() },
    ];
    let groups = groups.into_iter().filter(|_| epoch > 0).collect();
    assert!(report.add(Report { groups, ..Report::default() }));
    report
}

/// Returns the same report of a process that has a map with this configuration of group 1 and these
/// contents of devices.
fn with_map(epoch: u64, version: u64, config: &GroupInfo, stores: &[(u32, u64)]) -> DeviceReport {
    let mut report = took_part(epoch);
    let info = |(device, store): &(u32, u64)| StoreInfo {
        device: *device,
        store: *store,
        ..StoreInfo::default()
    };
    let devices = stores.iter().map(info).collect();
    let config = Some(config.clone());
    let groups =
        vec![GroupReport { group: 1, acted: epoch, base: epoch, config, ..Default::default() }];
    let part = Report { version, told: version, groups, devices, ..Report::default() };
    assert!(report.add(part));
    report
}

/// Returns the same report of a process that has the present map of this state.
fn with_map_of(state: &State, epoch: u64) -> DeviceReport {
    let page = state.pages_since(MapVersion(0)).pop().unwrap();
    let config = page.groups.iter().find(|g| g.id == 1).unwrap();
    let mut report = with_map(epoch, state.version.0, config, &[]);
    let info = |d: &DeviceInfo| StoreInfo { device: d.id, store: d.store, awaited: d.awaited };
    let devices = page.devices.iter().map(info).collect();
    let (version, told) = (state.version.0, state.version.0);
    assert!(report.add(Report { version, told, devices, ..Report::default() }));
    report
}

fn reports<const N: usize>(list: [(u32, DeviceReport); N]) -> DeviceReports {
    list.into_iter().map(|(id, w)| (DeviceId(id), w)).collect()
}

/// The first recovery began with the backup. dev2's map named a newer content of dev1 than the one
/// that came back, and the operator ended the waiting.
fn let_an_older_disk_in() -> State {
    let mut state = recover(backup(), FIRST);
    let newest = config(3, &[1, 2], &[1, 2]);
    let partner = with_map(3, SINCE, &newest, &[(1, NEWER), (2, 12)]);
    finish(&mut state, &reports([(1, took_part(1)), (2, partner), (3, took_part(0))]));
    let found = group(&state);
    assert_eq!((found.doubt, found.epoch.0, found.reached().0), (Doubt::Reports, 1, 3));
    state
}

#[test]
pub(crate) fn a_map_names_the_content_that_groups_wait_for() {
    let state = let_an_older_disk_in();
    let named = |state: &State, have| {
        let page = state.pages_since(have).pop().unwrap();
        page.devices.iter().find(|d| d.id == 1).map(|d| (d.store, d.awaited))
    };
    assert_eq!(named(&state, MapVersion(0)), Some((11, NEWER)));
    // It names none when nothing waits any more, also to a server that has the last map.
    let mut over = state.clone();
    over.groups.values_mut().for_each(|g| g.doubt = Doubt::None);
    let have = MapVersion(over.version.0 - 1);
    assert_eq!((named(&state, have), named(&over, have)), (Some((11, NEWER)), Some((11, 0))));
}

#[test]
pub(crate) fn an_older_disk_that_an_earlier_recovery_let_in_is_not_believed_by_the_next_one() {
    let first = let_an_older_disk_in();
    let told = || {
        let (one, two) = (with_map_of(&first, 1), with_map_of(&first, 3));
        reports([(1, one), (2, two), (3, took_part(0))])
    };
    // From the backup, from one that was made while the first recovery was open, and from one that
    // was made after it.
    let mut open = recover(backup(), FIRST);
    let newest = config(3, &[1, 2], &[1, 2]);
    let partner = with_map(3, SINCE, &newest, &[(1, NEWER), (2, 12)]);
    settle(&mut open, &reports([(1, took_part(1)), (2, partner), (3, took_part(0))]));
    assert!(open.recovery.open);
    for state in [backup(), open, first.clone()] {
        let mut state = recover(state, SECOND);
        settle(&mut state, &told());
        if state.recovery.open {
            finish(&mut state, &told());
        }
        assert_ne!(group(&state).doubt, Doubt::None, "{:?}", group(&state));
    }
}

/// Returns the state after a first recovery that knows that the group moved to dev2 and dev3, and
/// that dev3 continued alone. dev3 was silent until the operator ended the recovery.
fn ended_without_the_last_one() -> State {
    let mut state = recover(backup(), FIRST);
    let newest = config(7, &[2, 3], &[3]);
    let two = with_map(1, SINCE, &newest, &[(2, 12), (3, 13)]);
    finish(&mut state, &reports([(1, took_part(1)), (2, two)]));
    let found = group(&state);
    assert_eq!((found.doubt, found.epoch.0, found.reached().0), (Doubt::Reports, 1, 7));
    state
}

/// All servers have its map, and report it to an MDM that has restarted.
#[test]
pub(crate) fn a_map_that_named_the_last_replica_counts_after_the_recovery() {
    let mut state = ended_without_the_last_one();
    let mut told = reports([(1, took_part(1)), (2, with_map_of(&state, 1))]);
    settle(&mut state, &told);
    assert_eq!(group(&state).doubt, Doubt::Reports);
    // The server of dev3 comes.
    told.extend(reports([(3, took_part(7))]));
    settle(&mut state, &told);
    assert_eq!(
        (group(&state).doubt, &group(&state).in_sync[..]),
        (Doubt::None, &[DeviceId(3)][..])
    );
}

/// dev3 took part in the last epoch that any device knows of. Its report is gone with its content.
#[test]
pub(crate) fn the_last_epoch_counts_after_its_device_is_gone() {
    let mut state = backup();
    apply(&mut state, &up(4, 4, 14, Durable));
    let mut state = recover(state, FIRST);
    let mut told = reports([(1, took_part(5)), (2, took_part(1)), (3, took_part(9))]);
    finish(&mut state, &told);
    assert_eq!((group(&state).doubt, group(&state).reached().0), (Doubt::Reports, 9));
    let life = state.next_incarnation.0;
    assert_eq!(state.apply(state.index + 1, &up(3, life, 33, Durable)), Outcome::Changed);
    told.extend(reports([(3, took_part(0)), (4, took_part(0))]));
    settle(&mut state, &told);
    let found = group(&state);
    assert!(found.doubt != Doubt::None, "dev1 does not have what dev3 wrote in epoch 9: {found:?}");
    let status = state.recovery_status(&told, false).unwrap();
    assert_eq!((status.stuck, status.waits_for.len()), (1, 0));
}

#[test]
pub(crate) fn a_device_that_a_group_in_doubt_may_need_is_not_removed() {
    let mut state = backup();
    apply(&mut state, &up(4, 4, 14, Durable));
    let mut state = recover(state, FIRST);
    let told = reports([(1, took_part(5)), (2, took_part(1)), (3, took_part(9))]);
    finish(&mut state, &told);
    let needed = |state: &State, told: &DeviceReports| {
        [1, 2, 3, 4].map(|d| may_be_needed(state, told, DeviceId(d)))
    };
    assert_eq!(needed(&state, &told), [true, true, true, true], "dev4 has not reported");
    let mut all = told.clone();
    all.extend(reports([(4, took_part(0))]));
    assert_eq!(needed(&state, &all), [true, true, true, false]);
    state.groups.values_mut().for_each(|g| g.doubt = Doubt::None);
    assert_eq!(needed(&state, &told), [false; 4]);
}

/// Both maps have the group in one epoch. The earlier recovery knew that dev1 had been emptied.
#[test]
fn the_greater_doubt_counts_at_the_same_epoch() {
    for order in [[1, 2], [2, 1]] {
        let mut state = recover(backup(), SECOND);
        let sure = config(8, &[1, 2], &[1, 2]);
        let gone = GroupInfo { primary: 0, doubt: Doubt::Gone as u32, ..config(8, &[1, 2], &[2]) };
        let known = with_map(8, SINCE, &sure, &[(1, 11), (2, 12)]);
        let doubts = with_map(8, SINCE + 1, &gone, &[(1, 11), (2, 12)]);
        let told = reports([(order[0], known), (order[1], doubts), (3, took_part(0))]);
        settle(&mut state, &told);
        assert_eq!(group(&state).told_doubt(), Doubt::Gone, "{:?}", group(&state));
        assert_eq!(state.recovery_status(&told, false).unwrap().stuck, 1);
    }
}

/// Two recoveries began with one backup. What a server did in the first one must not look as if it
/// had been done in the second one.
#[test]
fn two_recoveries_from_one_backup_lead_to_different_epochs() {
    let told = reports([(1, took_part(1)), (2, took_part(1)), (3, took_part(0))]);
    let settled = |at: u64| {
        let mut state = recover(backup(), at);
        settle(&mut state, &told);
        assert_eq!(group(&state).doubt, Doubt::None);
        group(&state).epoch.0
    };
    let apart = settled(FIRST + 1) - settled(FIRST);
    assert!(apart >= JUMP / 64, "they are {apart} apart");
}

/// dev1's disk was replaced after the backup, and both replicas run. The order in which they
/// register makes no difference: what the first one tells is stored before the other one comes.
#[test]
fn the_order_of_reports_makes_no_difference() {
    let newest = config(4, &[1, 2], &[1, 2]);
    let stores = [(1, NEWER), (2, 12)];
    let told = || [1, 2].map(|d| (d, with_map(4, SINCE, &newest, &stores)));
    for order in [[1, 2], [2, 1]] {
        let mut state = recover(backup(), FIRST);
        let mut heard = reports([(3, took_part(0))]);
        for device in order {
            if device == 1 {
                let life = state.next_incarnation.0;
                let up = up(1, life, NEWER, Durable);
                assert_eq!(state.apply(state.index + 1, &up), Outcome::Changed);
            }
            heard.extend(reports(told()).into_iter().filter(|(d, _)| d.0 == device));
            settle(&mut state, &heard);
        }
        let found = group(&state);
        assert_eq!((found.doubt, found.in_sync.len()), (Doubt::None, 2), "{order:?}: {found:?}");
    }
}

/// The map of a server that the earlier recovery did not hear shows that it was in no doubt about
/// the configuration that the earlier recovery repeats.
#[test]
fn a_sure_map_counts_beside_that_of_an_earlier_recovery_in_either_order() {
    let newest = config(4, &[1, 2], &[1, 2]);
    let repeated = GroupInfo { primary: 0, doubt: Doubt::Reports as u32, ..newest.clone() };
    for order in [[1, 2], [2, 1]] {
        let mut state = recover(backup(), SECOND);
        let stores = [(1, 11), (2, 12)];
        let mut heard = reports([(3, took_part(0))]);
        for device in order {
            let report = match device {
                1 => with_map(4, SINCE, &newest, &stores),
                _ => with_map(4, SINCE + 1, &repeated, &stores),
            };
            heard.extend(reports([(device, report)]));
            settle(&mut state, &heard);
        }
        let found = group(&state);
        assert_eq!((found.doubt, found.in_sync.len()), (Doubt::None, 2), "{order:?}: {found:?}");
    }
}

/// The first recovery knew that dev3 had been in a later epoch, and dev3's disk was replaced then.
/// The second one hears only that the first one was in doubt, and its MDM restarts.
#[test]
fn a_doubt_of_an_earlier_recovery_counts_after_a_restart_of_the_mdm() {
    let mut first = backup();
    apply(&mut first, &up(4, 4, 14, Durable));
    let older = first.clone();
    let mut first = recover(first, FIRST);
    let told = reports([(1, took_part(5)), (2, took_part(1)), (3, took_part(9))]);
    finish(&mut first, &told);
    let mut second = recover(older, SECOND);
    let told = reports([
        (1, with_map_of(&first, 5)),
        (2, with_map_of(&first, 1)),
        (3, with_map_of(&first, 0)),
    ]);
    finish(&mut second, &told);
    let told = [1, 2, 3, 4].map(|d| (d, took_part(if d == 1 { 5 } else { 0 })));
    settle(&mut second, &reports(told));
    assert_ne!(group(&second).doubt, Doubt::None, "{:?}", group(&second));
}

/// dev3 has not reported when its disk is replaced. It is no replica that the state knows, and it
/// may have been the last one. Then its disk comes back.
#[test]
pub(crate) fn a_device_that_was_emptied_before_it_reported_may_have_had_more() {
    let mut state = recover(backup(), FIRST);
    let told = reports([(1, took_part(5)), (2, took_part(1))]);
    finish(&mut state, &told);
    let comes = |state: &mut State, told: &DeviceReports, store: u64| {
        let up = up(3, state.next_incarnation.0, store, Durable);
        if let Some(emptied) = emptied_command(state, told, &up) {
            assert_eq!(state.apply(state.index + 1, &emptied), Outcome::Changed);
        }
        assert_eq!(state.apply(state.index + 1, &up), Outcome::Changed);
        *state = State::from_bytes(&state.to_bytes()).unwrap();
    };
    let mut blank = told.clone();
    comes(&mut state, &blank, 33);
    blank.extend(reports([(3, took_part(0))]));
    settle(&mut state, &blank);
    assert_ne!(group(&state).doubt, Doubt::None, "{:?}", group(&state));
    let mut back = told;
    comes(&mut state, &back, 13);
    back.extend(reports([(3, took_part(4))]));
    settle(&mut state, &back);
    let found = group(&state);
    assert_eq!((found.doubt, &found.in_sync[..]), (Doubt::None, &[DeviceId(1)][..]));
}

/// The first recovery heard nothing of the newer content of dev1, and its map names the older one.
/// The server of dev2 was cut off, and has the map that named the newer one.
#[test]
fn the_map_of_a_recovery_that_knew_less_does_not_overrule_a_sure_one() {
    let mut first = recover(backup(), FIRST);
    finish(&mut first, &reports([(1, took_part(1)), (3, took_part(0))]));
    let newest = config(4, &[1, 2], &[1, 2]);
    let sure = with_map(4, SINCE, &newest, &[(1, NEWER), (2, 12)]);
    let told = reports([(1, with_map_of(&first, 1)), (2, sure), (3, took_part(0))]);
    for state in [backup(), first] {
        let mut state = recover(state, SECOND);
        settle(&mut state, &told);
        if state.recovery.open {
            finish(&mut state, &told);
        }
        assert_ne!(group(&state).doubt, Doubt::None, "{:?}", group(&state));
    }
}

/// dev3 is a replica by the newest map only. It keeps what it has although the recovery's own map
/// does not name it, and dev1, which that newest map does not name, keeps its older copy.
#[test]
fn a_map_after_the_recovery_has_the_configuration_that_the_state_had() {
    let state = ended_without_the_last_one();
    let page = state.pages_since(MapVersion(0)).pop().unwrap();
    let published = page.groups.iter().find(|g| g.id == 1).unwrap();
    assert_eq!((published.epoch, published.reached), (1, 7));
    assert_eq!(published.replicas, [1, 2]);
}

/// dev9 was dropped by an earlier recovery, and is still in the map of dev2. No group needs it.
#[test]
fn a_device_without_a_group_that_only_a_map_knows_is_not_waited_for() {
    let mut state = recover(backup(), FIRST);
    let stores = [(1, 11), (2, 12), (9, 19)];
    let two = with_map(1, SINCE, &config(1, &[1, 2], &[1, 2]), &stores);
    settle(&mut state, &reports([(1, took_part(1)), (2, two), (3, took_part(0))]));
    assert!(!state.recovery.open && state.recovery.awaited.is_empty());
}

/// dev3 shares no group with dev1, and its map named the newer content of dev1. Then all servers
/// restart, and so does the MDM.
#[test]
pub(crate) fn a_disk_that_one_server_named_is_waited_for_after_a_restart() {
    let mut state = recover(backup(), FIRST);
    let mut three = took_part(0);
    let devices = vec![StoreInfo { device: 1, store: NEWER, awaited: 0 }];
    let (version, told) = (SINCE, SINCE);
    assert!(three.add(Report { version, told, devices, ..Report::default() }));
    finish(&mut state, &reports([(2, took_part(1)), (3, three)]));
    let told = reports([(1, took_part(1)), (2, took_part(1)), (3, took_part(0))]);
    settle(&mut state, &told);
    assert_eq!(group(&state).doubt, Doubt::Reports);
    assert_eq!(state.recovery_status(&told, false).unwrap().older, [1]);
}

/// In the first recovery, dev1 came with the newer content that a map names. Group 1 was settled
/// with it, and group 2 stays in doubt. Then all servers restart, and most MDMs are lost.
#[test]
fn a_newer_content_is_the_one_that_later_configurations_are_about() {
    let mut state = recover(backup(), FIRST);
    let newest = config(3, &[1, 2], &[1, 2]);
    let stores = [(1, NEWER), (2, 12)];
    let partner = || with_map(3, SINCE, &newest, &stores);
    settle(&mut state, &reports([(2, partner()), (3, took_part(0))]));
    let life = state.next_incarnation.0;
    apply(&mut state, &up(1, life, NEWER, Durable));
    assert!(state.recovery.replaced.contains_key(&DeviceId(1)));
    let all = reports([(1, partner()), (2, partner()), (3, took_part(0))]);
    settle(&mut state, &all);
    if state.recovery.open {
        finish(&mut state, &all);
    }
    assert_eq!((group(&state).doubt, group(&state).in_sync.len()), (Doubt::None, 2));
    assert_ne!(state.groups[&GroupId(2)].doubt, Doubt::None);
    let epoch = group(&state).epoch.0;
    let mut again = recover(state, SECOND);
    let told = reports([(1, took_part(epoch)), (2, took_part(epoch)), (3, took_part(0))]);
    settle(&mut again, &told);
    assert_eq!((group(&again).doubt, group(&again).in_sync.len()), (Doubt::None, 2));
}
