//! A device is empty, and the MDM's state counts on its content. Maps of running servers may know
//! which replicas have been in sync since.

use super::*;
use wire::control::Intent;

/// Group 1 is on dev1 and dev2. dev1 was emptied since, at a time that this MDM does not know; it
/// has registered, and is up.
fn emptied() -> State {
    let mut state = with_recovery(pair(Ram));
    state.apply(state.index + 1, &up(1, 90, 99, Ram));
    assert_eq!(group(&state, 1).doubt, Doubt::Gone);
    state
}

/// Returns the in-sync replicas after everything that follows from the reports, if they are known.
fn found(mut state: State, told: &DeviceReports) -> Option<Vec<u32>> {
    settle(&mut state, told, false);
    if state.recovery.open {
        finish(&mut state);
        settle(&mut state, told, false);
    }
    let g = group(&state, 1);
    (g.doubt == Doubt::None).then(|| g.in_sync.iter().map(|d| d.0).collect())
}

#[test]
fn the_newer_map_of_running_servers_counts_although_one_was_emptied_before() {
    let told = reports(vec![
        (1, running(report(8, 8, Some(moved(8, &[1, 2]))))),
        (2, running(report(8, 8, Some(moved(8, &[1, 2]))))),
    ]);
    assert_eq!(found(emptied(), &told), Some(vec![1, 2]));
    // It has taken part since it was emptied. Its process is new, so its map does not count.
    let kept =
        reports(vec![(1, report(8, 8, None)), (2, running(report(8, 8, Some(moved(8, &[1, 2])))))]);
    assert_eq!(found(emptied(), &kept), Some(vec![1, 2]));
    // The operator does not wait for dev3. All replicas in sync have reported, and no device took
    // part later.
    let mut state = pair(Ram);
    apply(&mut state, &up(3, 3, 13, Ram));
    let mut state = with_recovery(state);
    state.apply(state.index + 1, &up(1, 90, 99, Ram));
    settle(&mut state, &kept, false);
    assert_eq!((state.recovery.open, group(&state, 1).doubt), (true, Doubt::Gone));
    assert_eq!(found(state, &kept), Some(vec![1, 2]));
}

/// The lost MDMs knew that both devices had been emptied, and that all data was lost.
#[test]
fn the_newer_map_of_running_servers_tells_that_a_group_is_lost() {
    let lost = || GroupInfo { primary: 0, lost: true, ..moved(8, &[]) };
    let map = GroupInfo { replicas: vec![1, 2], ..lost() };
    let knows = |acted| running(report(acted, 0, Some(map.clone())));
    let told = reports(vec![(1, knows(0)), (2, knows(0))]);
    assert_eq!(found(emptied(), &told), Some(vec![]));
    let cases = [
        ("dev2 took part later: an operator had accepted the loss", knows(0), knows(9)),
        ("dev1 may have taken part later, and been emptied", DeviceReport::default(), knows(0)),
    ];
    for (name, one, two) in cases {
        assert_eq!(found(emptied(), &reports(vec![(1, one), (2, two)])), None, "{name}");
    }
    assert_eq!(found(emptied(), &reports(vec![(1, knows(0))])), None, "dev2 may know more");
}

#[test]
fn a_device_that_may_have_been_emptied_after_the_newest_map_keeps_the_group_waiting() {
    let map = |in_sync: &[u32]| Some(GroupInfo { replicas: vec![1, 2], ..config(8, in_sync) });
    let two = |acted, in_sync: &[u32]| running(report(acted, 8, map(in_sync)));
    let cases = [
        (
            "dev1 went on alone after this map, and was emptied then",
            DeviceReport::default(),
            two(8, &[1, 2]),
        ),
        (
            "dev1 was let in after this map, and went on alone",
            DeviceReport::default(),
            two(8, &[2]),
        ),
        ("somebody took part later", running(report(8, 8, None)), two(9, &[1, 2])),
        (
            "no map is newer",
            running(report(1, 1, None)),
            running(report(1, 1, Some(config(1, &[1, 2])))),
        ),
    ];
    for (name, one, two) in cases {
        assert_eq!(found(emptied(), &reports(vec![(1, one), (2, two)])), None, "{name}");
    }
    // dev1 itself is silent, or a replica that the state does not know is empty.
    let told = reports(vec![(2, two(8, &[2]))]);
    assert_eq!(found(emptied(), &told), None);
    let told = reports(vec![
        (1, running(report(8, 8, None))),
        (2, running(report(8, 8, Some(moved(8, &[2, 3]))))),
        (3, DeviceReport::default()),
    ]);
    let mut state = emptied();
    state.apply(state.index + 1, &up(3, 91, 13, Ram));
    assert_eq!(found(state, &told), None);
}

/// The emptied device gets a map when the recovery is over, and reports it when its link breaks.
#[test]
fn a_map_from_after_the_recovery_is_no_evidence() {
    let mut state = pair(Ram);
    apply(&mut state, &up(3, 3, 13, Ram));
    let mut state = with_recovery(state);
    state.apply(state.index + 1, &up(3, 90, 99, Ram));
    let mut told = reports(vec![
        (1, running(report(8, 8, Some(moved(8, &[3, 1]))))),
        (2, running(report(1, 1, None))),
        (3, DeviceReport::default()),
    ]);
    settle(&mut state, &told, false);
    finish(&mut state);
    let mut late = DeviceReport::default();
    let version = state.version.0;
    assert!(late.add(Report { version, told: version, next_volume: 2, ..Report::default() }));
    told.insert(DeviceId(3), late);
    settle(&mut state, &told, false);
    assert_eq!(group(&state, 1).doubt, Doubt::Reports, "{:?}", group(&state, 1));
}

/// Returns the report of a process that has a map of lost MDMs.
fn since(mut report: DeviceReport) -> DeviceReport {
    assert!(report.add(Report { version: 100, next_volume: 2, ..Report::default() }));
    report
}

/// Another, older backup is restored after that: the maps of running servers say that the doubt
/// exists. The earlier recovery may have let an older disk in, or may have let devices go.
#[test]
fn a_doubt_survives_another_recovery_with_an_older_backup() {
    // In the first recovery group 1 was on dev1 and dev3, and dev3 had been emptied. The older
    // backup has the group elsewhere.
    for (doubt, known) in [(0, true), (1, false), (2, false)] {
        let left = GroupInfo { primary: 0, doubt, ..moved(8, &[1, 3]) };
        let left = GroupInfo { in_sync: vec![1], ..left };
        let mut state = pair(Ram);
        apply(&mut state, &up(3, 3, 13, Ram));
        let mut state = with_recovery(state);
        state.apply(state.index + 1, &up(3, 90, 99, Ram));
        let told = reports(vec![
            (1, since(report(7, 7, Some(left.clone())))),
            (2, since(report(1, 1, None))),
            (3, since(report(0, 0, Some(left)))),
        ]);
        assert_eq!(found(state, &told).is_some(), known, "doubt {doubt}");
    }
    // The maps also say so of a group that the older backup does not have.
    let mut state = with_recovery(pair(Ram));
    let left = GroupInfo { id: 9, primary: 0, doubt: 2, in_sync: vec![1], ..moved(8, &[1, 2]) };
    let mut report = DeviceReport::default();
    let groups =
        vec![GroupReport { group: 9, acted: 7, base: 7, config: Some(left), joiner: false }];
    let held = vec![7]; // an unknown volume, which may be in this group
    assert!(report.add(Report { groups, version: 1, held, ..Report::default() }));
    let told = reports(vec![(1, report), (2, running(DeviceReport::default()))]);
    settle(&mut state, &told, false);
    finish(&mut state);
    settle(&mut state, &told, false);
    assert_eq!(group(&state, 9).doubt, Doubt::Gone);
}

/// The last volume of the group is deleted while it is unknown which replica has everything.
#[test]
fn a_group_in_doubt_is_formed_anew_in_an_unused_epoch_when_its_last_volume_is_deleted() {
    let mut state = recovered(Durable);
    for id in [1, 2] {
        let group = state.groups.get_mut(&GroupId(id)).unwrap();
        (group.doubt, group.lost, group.in_sync) = (Doubt::Gone, true, Vec::new());
    }
    finish(&mut state);
    let told = reports(vec![(1, report(1, 1, None)), (2, report(1, 1, None))]);
    settle(&mut state, &told, false);
    assert_eq!(group(&state, 1).doubt, Doubt::Gone, "a volume uses it");
    let mut kept = state.clone();
    let delete = Command::DeleteVolume(DeleteVolume { volume: 1 });
    assert_eq!(state.apply(state.index + 1, &delete), Outcome::Changed);
    settle(&mut state, &told, false);
    let found = group(&state, 1);
    assert!(found.doubt == Doubt::None && found.primary.is_some());
    assert!(found.epoch.0 > JUMP, "lost MDMs may have given away {:?}", found.epoch);
    // Servers hold data of an unknown volume: it may be in this group.
    kept.recovery.left = vec![9];
    kept.apply(kept.index + 1, &delete);
    settle(&mut kept, &told, false);
    let found = group(&kept, 1);
    assert!(found.doubt == Doubt::Gone && found.primary.is_none());
}

/// An operator has ended the recovery while dev2 was silent. In epoch 2 dev2 alone wrote data of a
/// volume that no MDM knows.
#[test]
fn a_group_stays_in_doubt_while_a_device_may_have_data_of_an_unknown_volume() {
    for late in [false, true] {
        let mut state = recovered(Durable);
        let mut told = reports(vec![(1, report(1, 1, None))]);
        settle(&mut state, &told, false);
        let end = close(&state, &told, false);
        assert_eq!(state.apply(state.index + 1, &end), Outcome::Changed);
        assert!(state.recovery.left.is_empty());
        let mut two = report(2, 1, None);
        assert!(two.add(Report { held: vec![1, 9], ..Report::default() }));
        let delete = Command::DeleteVolume(DeleteVolume { volume: 1 });
        if !late {
            told.insert(DeviceId(2), two.clone());
            settle(&mut state, &told, false);
        }
        assert_eq!(state.apply(state.index + 1, &delete), Outcome::Changed);
        settle(&mut state, &told, false);
        told.insert(DeviceId(2), two);
        settle(&mut state, &told, false);
        state.check().unwrap();
        let found = group(&state, 1);
        assert!(found.doubt != Doubt::None && found.primary.is_none(), "late {late}: {found:?}");
    }
}

/// The operator removes a dead device, so the recovery does not wait for its data.
#[test]
fn removing_a_device_ends_the_doubt_of_unused_groups() {
    let mut state = recovered(Durable);
    let told = reports(vec![(1, report(1, 1, None))]);
    let end = close(&state, &told, false);
    state.apply(state.index + 1, &end);
    state.apply(state.index + 1, &down(2, 2, true));
    state.apply(state.index + 1, &Command::DeleteVolume(DeleteVolume { volume: 1 }));
    settle(&mut state, &told, false);
    assert_eq!(group(&state, 1).doubt, Doubt::Reports, "dev2 may have a volume that nobody knows");
    let remove = mdm::command::Intend { devices: vec![2], intent: Intent::Remove as i32 };
    assert_eq!(state.apply(state.index + 1, &Command::Intend(remove)), Outcome::Changed);
    settle(&mut state, &told, false);
    let found = group(&state, 1);
    assert_eq!((found.doubt, &found.in_sync[..]), (Doubt::None, &[DeviceId(1)][..]));
}
