//! Reservations of volumes after a recovery.

use super::*;
use wire::control::{HostInfo, RegistrantInfo, ReservationInfo};

/// A table that was lost would let in a host that was shut out.
#[test]
fn reservations_come_back_from_the_newest_map_of_a_server() {
    let mut state = recovered(Durable);
    let old = state.volumes[&VolumeId(1)].clone();
    let host = |n: u8| HostInfo { id: vec![n; 16], ..HostInfo::default() };
    let registrant = |n: u8| RegistrantInfo { key: 1, who: host(n), holds: n == 0 };
    let first = ReservationInfo { generation: 9, kind: 2, registrants: vec![registrant(0)] };
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
