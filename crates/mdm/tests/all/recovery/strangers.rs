//! Devices that wait for an order, and recoveries.

use super::*;
use base::PoolId;
use mdm::controller::Registration::{Full, New};
use mdm::refused::MAX_WAITING;
use wire::control::Intent;

fn stranger(i: u64, device: u32) -> control::Register {
    control::Register {
        sds: format!("stranger{i}"),
        address: "10.0.0.77:7000".into(),
        nonce: 1000 + i,
        store: 2000 + i,
        capacity: 1 << 30,
        kind: Durable as i32,
        device,
        incarnation: if device == 0 { 0 } else { 40 },
        ..control::Register::default()
    }
}

/// Returns two devices with data, in a pool whose new devices wait for an order, and this many of
/// those.
fn by_order(waiting: u64) -> State {
    let mut state = pair(Durable);
    state.objects.pools.get_mut(&PoolId(1)).unwrap().by_order = true;
    for i in 0..waiting {
        let New(id, command) = state.register(&stranger(i, 0), false, None) else { panic!("{i}") };
        assert_eq!(state.apply(state.index + 1, &command), Outcome::Changed);
        assert_eq!(state.devices[&id].intent, Intent::Waiting);
    }
    state
}

#[test]
fn a_recovery_waits_for_no_stranger_unless_a_map_names_it() {
    let state = with_recovery(by_order(1));
    let known = running(report(1, 1, Some(config(1, &[1, 2]))));
    let both = reports(vec![(1, known.clone()), (2, known.clone())]);
    assert_eq!(waits_for(&state, &both), [0; 0]);
    // It was admitted after the backup.
    let named = running(report(4, 4, Some(moved(4, &[1, 3]))));
    let told = reports(vec![(1, named), (2, known)]);
    assert_eq!(waits_for(&state, &told), [3]);
}

#[test]
fn strangers_keep_no_device_with_data_out_of_a_recovery() {
    let state = by_order(MAX_WAITING as u64);
    assert!(matches!(state.register(&stranger(99, 0), false, None), Full(_)));
    let state = with_recovery(state);
    let back = state.register(&stranger(99, 90), false, Some(&took_part(&[(1, 6)])));
    assert!(matches!(back, New(DeviceId(90), _)), "{back:?}");
}

#[test]
fn generations_after_a_restore_begin_far_above_earlier_ones() {
    let mut state = pair(Durable);
    let before = state.volumes[&VolumeId(1)].clone();
    let at = |mut state: State, at: u64| {
        let me = Member { name: "m".into(), address: "10.0.0.9:1".into(), tie_breaker: false };
        state.recover(&state.clone(), 1, me, "me@here", at);
        state.check().unwrap();
        let volume = &state.volumes[&VolumeId(1)];
        assert_eq!(volume.mapping, before.mapping, "who has a leave keeps it");
        volume.generation
    };
    let first = at(state.clone(), 1_800_000_000);
    assert!(first > before.generation + 1000);
    // The same backup again, an hour later: there may have been many orders in between.
    assert!(at(state.clone(), 1_800_003_600) > first + 500);
    state.volumes.get_mut(&VolumeId(1)).unwrap().generation = first + 9;
    assert!(at(state, 1_800_000_001) > first + 1000);
}
