//! A device was replaced since the backup was made, and the old disk comes back while the new one
//! is away.

use super::*;
use mdm::controller::Registration::{self, Superseded};

/// The content that replaced that of dev1 after the backup.
const NEWER: u64 = 99;

/// A map version above that of `pair`, and below those after a recovery.
const SINCE: u64 = 100;

/// Returns the report of a process whose map names the content of these devices.
fn knows(report: DeviceReport, devices: &[(u32, u64)]) -> DeviceReport {
    knows_at(SINCE, report, devices)
}

/// Returns the same report with a map of this version.
fn knows_at(version: u64, mut report: DeviceReport, devices: &[(u32, u64)]) -> DeviceReport {
    let info =
        |(device, store): &(u32, u64)| StoreInfo { device: *device, store: *store, awaited: 0 };
    let devices = devices.iter().map(info).collect();
    assert!(report.add(Report { version, devices, next_volume: 2, ..Report::default() }));
    report
}

/// dev2 was in sync with the newer dev1 in epoch 3.
fn partner() -> DeviceReport {
    knows(report(3, 3, Some(config(3, &[1, 2]))), &[(1, NEWER), (2, 12)])
}

#[test]
fn an_older_disk_does_not_stand_for_the_one_that_replaced_it() {
    for partner in [partner(), knows(report(4, 3, Some(config(3, &[1, 2]))), &[(1, NEWER)])] {
        let mut state = recovered(Durable);
        let told = reports(vec![(1, report(1, 1, None)), (2, partner)]);
        settle(&mut state, &told, false);
        assert!(state.recovery.open && group(&state, 1).doubt == Doubt::Reports);
        assert_eq!(waits_for(&state, &told), [1], "the newer disk may come");
        assert_eq!(state.recovery_status(&told, false).unwrap().older, [1]);
        // The operator does not wait for it. Then dev2 restarts, and no report names it any more.
        let end = close(&state, &told, false);
        assert_eq!(state.apply(state.index + 1, &end), Outcome::Changed);
        state.check().unwrap();
        let told = reports(vec![(1, report(1, 1, None)), (2, report(4, 4, None))]);
        settle(&mut state, &told, false);
        assert_ne!(group(&state, 1).doubt, Doubt::None);
    }
}

#[test]
fn the_newer_disk_ends_the_waiting() {
    let mut state = recovered(Durable);
    let newer = control::Register { store: NEWER, nonce: 98, ..life(1, "sds1", 0) };
    let Registration::New(_, up) = state.register(&newer, false, Some(&report(3, 3, None))) else {
        panic!("it is not taken in");
    };
    assert_eq!(state.apply(state.index + 1, &up), Outcome::Changed);
    let told = reports(vec![(1, report(3, 3, None)), (2, partner())]);
    settle(&mut state, &told, false);
    assert!(!state.recovery.open);
    let found = group(&state, 1);
    assert_eq!((found.doubt, &found.in_sync[..]), (Doubt::None, &[DeviceId(1), DeviceId(2)][..]));
}

#[test]
fn a_map_that_names_the_present_content_delays_nothing() {
    let mut state = recovered(Durable);
    let partner = knows(report(3, 3, Some(config(3, &[1, 2]))), &[(1, 11), (2, 12)]);
    settle(&mut state, &reports(vec![(1, report(3, 3, None)), (2, partner)]), false);
    assert!(!state.recovery.open && group(&state, 1).doubt == Doubt::None);
}

/// Returns a volume that uses group 3.
fn user_of_3() -> VolumeInfo {
    let (name, slots) = ("new".into(), vec![3]);
    VolumeInfo { id: 2, name, size: 1 << 20, slots, ..VolumeInfo::default() }
}

/// The state does not have group 3. dev2 led it in epoch 4, with dev1 in sync, and names the
/// content of dev1; dev1 remembers nothing of the group.
fn told_of_a_blank(store: u64) -> State {
    let mut state = recovered(Durable);
    let made = GroupInfo { id: 3, ..config(4, &[2, 1]) };
    let group_3 = GroupReport { group: 3, acted: 4, base: 4, config: Some(made), joiner: false };
    let mut partner = knows(DeviceReport::default(), &[(1, store)]);
    let groups = vec![group_3];
    let volumes = vec![user_of_3()];
    let part = Report { version: SINCE, groups, volumes, next_volume: 3, ..Report::default() };
    assert!(partner.add(part));
    let told = reports(vec![(1, DeviceReport::default()), (2, partner)]);
    settle(&mut state, &told, false);
    assert!(!state.recovery.open, "{:?}", state.recovery_status(&told, false));
    state
}

#[test]
fn a_disk_that_is_empty_is_waited_for_no_longer_and_proves_nothing() {
    let state = told_of_a_blank(NEWER);
    assert_eq!(group(&state, 3).doubt, Doubt::Reports, "dev1 may have been alone, and emptied");
}

/// The MDM of the earlier recovery was in doubt about group 3. Its map repeats the configuration,
/// and names the content that dev1 came back with.
#[test]
fn a_map_of_an_mdm_in_doubt_does_not_show_that_a_disk_was_not_emptied() {
    let earlier = told_of_a_blank(NEWER);
    let version = earlier.version.0;
    let mut state = with_recovery(earlier);
    let repeated = GroupInfo { id: 3, doubt: Doubt::Reports as u32, ..config(4, &[2, 1]) };
    let group_3 =
        GroupReport { group: 3, acted: 4, base: 4, config: Some(repeated), joiner: false };
    let mut partner = knows_at(version, DeviceReport::default(), &[(1, 11)]);
    let groups = vec![group_3];
    assert!(partner.add(Report { version, groups, next_volume: 3, ..Report::default() }));
    let told = reports(vec![(1, DeviceReport::default()), (2, partner)]);
    settle(&mut state, &told, false);
    assert_eq!(group(&state, 3).doubt, Doubt::Reports);
}

/// The same backup is restored once more. It knows nothing of the earlier recovery, whose map dev1
/// has got since it came back empty.
#[test]
fn a_map_of_an_mdm_in_doubt_is_no_memory_of_a_disk_that_was_emptied() {
    let version = told_of_a_blank(NEWER).version.0;
    let process = |acted| {
        let doubt = Doubt::Reports as u32;
        let config = Some(GroupInfo { id: 3, primary: 0, doubt, ..config(4, &[2, 1]) });
        let groups = vec![GroupReport { group: 3, acted, base: acted, config, joiner: false }];
        let mut report = knows_at(version, DeviceReport::default(), &[(1, 11), (2, 12)]);
        let volumes = vec![user_of_3()];
        let part = Report { version, groups, volumes, next_volume: 3, ..Report::default() };
        assert!(report.add(part));
        report
    };
    let mut state = pair(Durable);
    let me = Member { name: "m".into(), address: "10.0.0.9:1".into(), tie_breaker: false };
    // A minute later than the earlier recovery.
    state.recover(&state.clone(), 1, me, "me@here", 6060);
    settle(&mut state, &reports(vec![(1, process(0)), (2, process(4))]), false);
    assert_ne!(group(&state, 3).doubt, Doubt::None);
}

/// dev1 was down when the group was formed, and then up for too short a time to hear of it.
#[test]
fn an_original_disk_without_records_never_took_part() {
    let state = told_of_a_blank(11);
    let found = group(&state, 3);
    assert_eq!((found.doubt, &found.in_sync[..]), (Doubt::None, &[DeviceId(2), DeviceId(1)][..]));
}

#[test]
fn a_process_that_was_superseded_before_the_loss_does_not_come_back() {
    let state = recovered(Durable);
    let comes = |state: &State, nonce: u64, incarnation: u64| {
        let process = control::Register { nonce, store: 11, ..life(1, "sds1", incarnation) };
        state.register(&process, false, None)
    };
    let mut state = state;
    let Registration::New(_, newer) = comes(&state, 72, 42) else { panic!("it is not taken in") };
    assert_eq!(state.apply(state.index + 1, &newer), Outcome::Changed);
    assert!(matches!(comes(&state, 71, 41), Superseded(_)), "42 came after it");
    let Registration::New(_, third) = comes(&state, 73, 0) else { panic!("it is not taken in") };
    assert_eq!(state.apply(state.index + 1, &third), Outcome::Changed);
    assert!(matches!(comes(&state, 71, 41), Superseded(_)));
}

#[test]
fn the_newer_of_two_processes_wins_in_either_order() {
    let mut state = recovered(Durable);
    let process = |nonce: u64, incarnation: u64| control::Register {
        nonce,
        store: 11,
        ..life(1, "sds1", incarnation)
    };
    let first = state.register(&process(71, 41), false, None);
    let Registration::New(_, first) = first else { panic!("it is not taken in: {first:?}") };
    assert_eq!(state.apply(state.index + 1, &first), Outcome::Changed);
    // Its connection was there before the one on which the other process registered.
    let newer = state.register(&process(72, 42), true, None);
    assert!(matches!(newer, Registration::New(..)), "{newer:?}");
    let unnamed = state.register(&process(73, 0), true, None);
    assert!(matches!(unnamed, Superseded(_)), "{unnamed:?}");
}

/// The survivor had proposed an incarnation for it. That was not decided, and the lost MDMs gave it
/// a later one.
#[test]
fn a_process_keeps_the_life_that_the_lost_ones_gave_it() {
    let mut state = recovered(Durable);
    let same = state.devices[&DeviceId(1)].nonce;
    let process = |incarnation: u64| control::Register {
        nonce: same,
        store: 11,
        ..life(1, "sds1", incarnation)
    };
    let known = state.devices[&DeviceId(1)].incarnation.0;
    let Registration::New(DeviceId(1), up) = state.register(&process(known + 5), false, None)
    else {
        panic!("its life is not taken over")
    };
    assert_eq!(state.apply(state.index + 1, &up), Outcome::Changed);
    state.check().unwrap();
    assert_eq!(state.devices[&DeviceId(1)].incarnation.0, known + 5);
    let again = state.register(&process(known + 5), false, None);
    assert_eq!(again, Registration::Known(DeviceId(1)));
}

#[test]
fn a_doubt_of_an_earlier_recovery_hides_no_older_disk() {
    let mut state = recovered(Durable);
    state.groups.get_mut(&GroupId(2)).unwrap().doubt = Doubt::Gone;
    settle(&mut state, &reports(vec![(1, report(1, 1, None)), (2, report(1, 1, None))]), false);
    if state.recovery.open {
        finish(&mut state);
    }
    assert_eq!((group(&state, 1).doubt, group(&state, 2).doubt), (Doubt::None, Doubt::Gone));
    // This state is the backup. Then the disk of dev1 is replaced, and the newer one serves alone.
    let (version, acted) = (state.version.0 + 10, group(&state, 1).epoch.0);
    let state = with_recovery(state);
    assert!(state.recovery.began.0 < version && version < state.index);
    let partner = knows_at(version, report(acted, acted, None), &[(1, NEWER)]);
    let told = reports(vec![(1, report(acted, acted, None)), (2, partner)]);
    let mut state = state;
    settle(&mut state, &told, false);
    assert_eq!(waits_for(&state, &told), [1]);
    assert_eq!(state.recovery_status(&told, false).unwrap().older, [1]);
    assert_eq!(group(&state, 1).doubt, Doubt::Reports);
}

/// Returns a cluster with `count` more groups on dev2 and dev3, and the reports of all devices.
fn with_many_groups(count: u32) -> (State, DeviceReports) {
    let mut state = pair(Durable);
    apply(&mut state, &up(3, 3, 13, Durable));
    for id in 3..3 + count {
        let replicas = vec![DeviceId(2), DeviceId(3)];
        let mut new = Group { epoch: Epoch(1), ..Group::new(replicas, &|_| true) };
        new.changed_at = state.version;
        state.groups.insert(GroupId(id), new);
    }
    let state = State::from_bytes(&state.to_bytes()).unwrap();
    let told: Vec<(u32, u64)> = (1..3 + count).map(|id| (id, 1)).collect();
    let two = knows(took_part(&told), &[(1, NEWER)]);
    let told =
        reports(vec![(1, took_part(&[(1, 1), (2, 1)])), (2, two), (3, took_part(&told[2..]))]);
    (with_recovery(state), told)
}

#[test]
fn groups_beyond_the_first_command_do_not_suffer_from_an_older_disk_elsewhere() {
    let (mut state, told) = with_many_groups(3000);
    settle(&mut state, &told, false);
    assert_eq!(waits_for(&state, &told), [1]);
    let end = close(&state, &told, false);
    assert_eq!(state.apply(state.index + 1, &end), Outcome::Changed);
    settle(&mut state, &told, false);
    let elsewhere = state.groups.values().filter(|g| !g.replicas.contains(&DeviceId(1)));
    assert_eq!(elsewhere.filter(|g| g.doubt != Doubt::None).count(), 0);
    assert!([1, 2].iter().all(|id| group(&state, *id).doubt != Doubt::None));
}

#[test]
fn a_map_that_is_older_than_the_state_names_no_older_disk() {
    let mut state = pair(Durable);
    apply(&mut state, &up(3, 3, 13, Durable));
    // The disk of dev1 was replaced and filled again. dev3 was cut off before that.
    apply(&mut state, &up(1, 90, NEWER, Durable));
    for id in [1, 2] {
        apply(&mut state, &join(2, 2, 1));
        let epoch = group(&state, id).epoch.0;
        apply(&mut state, &admit(id, epoch, 1));
        assert_eq!(group(&state, id).in_sync.len(), 2);
    }
    let epochs = [1, 2].map(|id| (id, group(&state, id).epoch.0));
    let mut state = with_recovery(state);
    let behind = knows_at(1, DeviceReport::default(), &[(1, 11)]);
    let told = reports(vec![(1, took_part(&epochs)), (2, took_part(&epochs)), (3, behind)]);
    settle(&mut state, &told, false);
    assert!(!state.recovery.open, "{:?}", state.recovery_status(&told, false));
    assert_eq!(group(&state, 1).in_sync.len(), 2);
}

/// A group waits for dev3. Meanwhile the disk of dev1 is replaced, and serves other groups.
#[test]
fn a_disk_that_was_replaced_after_the_recovery_is_no_older_one() {
    let mut state = pair(Durable);
    apply(&mut state, &up(3, 3, 13, Durable));
    let replicas = vec![DeviceId(2), DeviceId(3)];
    let third = Group { epoch: Epoch(1), ..Group::new(replicas, &|_| true) };
    state.groups.insert(GroupId(3), third);
    let state = State::from_bytes(&state.to_bytes()).unwrap();
    let mut state = with_recovery(state);
    let two = knows(took_part(&[(1, 1), (2, 1), (3, 1)]), &[(1, 11)]);
    let mut told = reports(vec![(1, took_part(&[(1, 1), (2, 1)])), (2, two)]);
    let end = close(&state, &told, false);
    assert_eq!(state.apply(state.index + 1, &end), Outcome::Changed);
    settle(&mut state, &told, false);
    assert_eq!(group(&state, 3).doubt, Doubt::Reports);
    let life = state.next_incarnation.0;
    assert_eq!(state.apply(state.index + 1, &up(1, life, NEWER, Durable)), Outcome::Changed);
    let epoch = group(&state, 1).epoch.0;
    told.insert(DeviceId(1), took_part(&[(1, epoch), (2, epoch)]));
    settle(&mut state, &told, false);
    assert_eq!(waits_for(&state, &told), [3]);
    assert_eq!(state.recovery_status(&told, false).unwrap().older, [0; 0]);
    // dev3 wrote alone.
    told.insert(DeviceId(3), took_part(&[(3, 5)]));
    settle(&mut state, &told, false);
    assert_eq!(waits_for(&state, &told), [0; 0], "{:?}", group(&state, 3));
}

/// dev2 reported the newer disk, and dev1 was silent until an operator ended the recovery.
fn ended_without_dev1() -> State {
    let mut state = recovered(Durable);
    let told = reports(vec![(2, knows(report(1, 1, None), &[(1, NEWER)]))]);
    settle(&mut state, &told, false);
    let end = close(&state, &told, false);
    assert_eq!(state.apply(state.index + 1, &end), Outcome::Changed);
    state.check().unwrap();
    State::from_bytes(&state.to_bytes()).unwrap()
}

#[test]
fn a_late_older_disk_is_recognised_by_what_no_report_has_any_more() {
    let mut state = ended_without_dev1();
    let told = reports(vec![(1, report(1, 1, None)), (2, report(1, 1, None))]);
    settle(&mut state, &told, false);
    assert_eq!(group(&state, 1).doubt, Doubt::Reports);
    assert_eq!(state.recovery_status(&told, false).unwrap().older, [1]);
    // The next recovery does not know of the newer disk.
    let mut again = with_recovery(state);
    settle(&mut again, &told, false);
    assert_eq!(group(&again, 1).doubt, Doubt::Gone);
}

#[test]
fn reports_to_an_open_recovery_count_in_the_next_one() {
    let mut state = recovered(Durable);
    let told = reports(vec![(2, knows(report(1, 1, None), &[(1, NEWER)]))]);
    settle(&mut state, &told, false);
    let told = reports(vec![(1, report(1, 1, None)), (2, report(1, 1, None))]);
    let mut next = with_recovery(state.clone());
    settle(&mut next, &told, false);
    assert_eq!(waits_for(&next, &told), [1]);
    // A map from before both recoveries counts, too, if it is reported only now.
    let told =
        reports(vec![(1, report(1, 1, None)), (2, knows(report(1, 1, None), &[(1, NEWER)]))]);
    let mut next = with_recovery(recovered(Durable));
    settle(&mut next, &told, false);
    assert_eq!(waits_for(&next, &told), [1]);
}

/// The map of dev2 named dev3. Then the process of dev2 restarts.
#[test]
fn a_reported_map_stays_valid_after_its_process_is_gone() {
    let mut state = recovered(Durable);
    let mut told = DeviceReports::new();
    state.heed(&mut told, DeviceId(1), report(1, 1, None));
    let known = running(report(4, 4, Some(moved(4, &[2, 3]))));
    state.heed(&mut told, DeviceId(2), known);
    for _ in 0..3 {
        assert_eq!(waits_for(&state, &told), [3]);
        state.heed(&mut told, DeviceId(2), report(4, 4, None));
    }
    // A map of this MDM does not replace it.
    finish(&mut state);
    let mut new = report(4, 4, None);
    let version = state.version.0;
    assert!(new.add(Report { version, ..Report::default() }));
    state.heed(&mut told, DeviceId(2), new);
    assert_eq!(waits_for(&state, &told), [3]);
}
