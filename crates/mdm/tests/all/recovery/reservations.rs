//! Reservations of volumes after a recovery.

use super::*;
use wire::control::{HostInfo, RegistrantInfo, ReservationInfo};

/// Returns volume 1 of this state as a map has it whose grants are of this generation.
fn told(state: &State, generation: u32, reservations: Option<ReservationInfo>) -> DeviceReports {
    let old = &state.volumes[&VolumeId(1)];
    let volume = VolumeInfo {
        id: 1,
        name: "v".into(),
        size: old.size,
        slots: vec![1, 2],
        mapping: Some(old.mapping.renewed(generation).info()),
        reservations,
        ..VolumeInfo::default()
    };
    let version = state.version.0 + 5;
    let volumes = vec![volume];
    let mut one = report(1, 1, None);
    let whole = Report { version, told: version, next_volume: 2, volumes, ..Report::default() };
    assert!(one.add(whole));
    reports(vec![(1, one), (2, report(1, 1, None))])
}

/// Reservations raise generations faster than any clock. What the lost MDMs gave away after the
/// newest map of a server is never given away again.
#[test]
fn generations_begin_above_those_that_a_map_of_lost_mdms_tells() {
    let mut state = recovered(Durable);
    let newest = state.volumes[&VolumeId(1)].generation + 100_000;
    let reports = told(&state, newest, None);
    settle(&mut state, &reports, false);
    let volume = &state.volumes[&VolumeId(1)];
    assert_eq!(volume.mapping.newest(), newest, "who has a permission keeps it");
    assert_eq!(volume.generation, newest + (1 << 16));
}

/// A client that still asks for it would be told that a change is done which this table lacks.
#[test]
fn outcomes_of_changes_are_forgotten_when_another_table_is_adopted() {
    let mut state = pair(Durable);
    let asked =
        mdm::reserve::Asked { incarnation: 4, number: 7, outcome: control::ReserveOutcome::Done };
    state.volumes.get_mut(&VolumeId(1)).unwrap().asked.insert(base::SdcId(1), asked);
    for (generation, left) in [(0, 1), (9, 0)] {
        let mut state = with_recovery(state.clone());
        let other = Some(ReservationInfo { generation, ..ReservationInfo::default() });
        let newest = state.volumes[&VolumeId(1)].generation + 5;
        let reports = told(&state, newest, other);
        settle(&mut state, &reports, false);
        let volume = &state.volumes[&VolumeId(1)];
        assert_eq!((volume.reservations.generation, volume.asked.len()), (generation, left));
    }
}

/// A table that was lost would let in a host that was shut out.
#[test]
fn reservations_come_back_from_the_newest_map_of_a_server() {
    let mut state = recovered(Durable);
    let old = state.volumes[&VolumeId(1)].clone();
    let host = |n: u8| HostInfo { id: vec![n; 16], ..HostInfo::default() };
    let registrant = |n: u8| RegistrantInfo { key: 1, who: host(n), holds: n == 0, since: 0 };
    let registrants = vec![registrant(0)];
    let first = ReservationInfo { generation: 9, kind: 2, registrants, since: 0 };
    let whole = VolumeInfo {
        id: 1,
        name: "v".into(),
        size: old.size,
        slots: vec![1, 2],
        mapping: Some(old.mapping.renewed(1).info()),
        reservations: Some(first.clone()),
        ..VolumeInfo::default()
    };
    let more = |hosts: std::ops::Range<u8>| {
        let registrants = hosts.map(registrant).collect();
        let reservations = Some(ReservationInfo { registrants, ..ReservationInfo::default() });
        VolumeInfo { id: 1, reservations, ..VolumeInfo::default() }
    };
    let version = state.version.0 + 5;
    let told =
        |volumes| Report { version, told: version, next_volume: 2, volumes, ..Report::default() };
    let mut one = report(1, 1, None);
    assert!(one.add(told(vec![whole.clone(), more(1..60)])) && one.add(told(vec![more(60..128)])));
    let mut wrong = report(1, 1, None);
    assert!(!wrong.add(told(vec![whole, more(1..129)])), "more than a volume can have");
    settle(&mut state, &reports(vec![(1, one), (2, report(1, 1, None))]), false);
    let table = &state.volumes[&VolumeId(1)].reservations;
    assert_eq!((table.registrants.len(), table.generation), (128, 9));
    assert!(table.registrants[0].holds && table.reserved.is_some());
}
