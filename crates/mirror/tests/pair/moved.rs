//! A group that belongs to other devices: what is here of it goes when an MDM has said so.

use super::*;

#[test]
fn what_another_server_says_of_a_group_deletes_nothing() {
    let mut pair = settle(Pair::new([4, 4]));
    assert_eq!(pair.write(0, 0, 7), Some(Status::Ok));
    let devices = |of: &[u32]| of.iter().map(|d| DeviceId(*d)).collect::<Vec<_>>();
    let epoch = pair.epoch + 1;
    let moved = GroupConfig {
        epoch: Epoch(epoch),
        primary: Some(DeviceId(1)),
        replicas: devices(&[1, 3]),
        in_sync: devices(&[1]),
        joiners: Vec::new(),
        lost: false,
    };
    let is_kept = |pair: &mut Pair, told: bool| {
        let (mirror, out) = (&mut pair.mirrors[1], &mut pair.outs[1]);
        mirror.set_map(MapVersion(epoch), BTreeMap::new());
        mirror.configure(pair.now, GROUP, &moved, told, out);
        pair.run();
        !pair.mirrors[1].journal().is_empty(GROUP)
    };
    assert!(is_kept(&mut pair, false) && is_kept(&mut pair, false), "no MDM has said it");
    assert!(!is_kept(&mut pair, true));
}

/// A joiner that starts from nothing has lost what it had.
#[test]
fn what_another_server_says_of_a_group_wipes_nothing() {
    let mut pair = settle(Pair::new([4, 4]));
    assert_eq!(pair.write(0, 0, 7), Some(Status::Ok));
    let devices = |of: &[u32]| of.iter().map(|d| DeviceId(*d)).collect::<Vec<_>>();
    let epoch = pair.epoch + 1;
    let joins = GroupConfig {
        epoch: Epoch(epoch),
        primary: Some(DeviceId(1)),
        replicas: devices(&[1, 2]),
        in_sync: devices(&[1]),
        joiners: devices(&[2]),
        lost: false,
    };
    let wiped = |pair: &mut Pair, told: bool| {
        let (mirror, out) = (&mut pair.mirrors[1], &mut pair.outs[1]);
        mirror.set_map(MapVersion(epoch), BTreeMap::new());
        mirror.configure(pair.now, GROUP, &joins, told, out);
        let mut h = Header::new(Kind::SyncWipe);
        (h.group, h.epoch) = (GROUP.0.into(), epoch.into());
        mirror.sync_wipe_in(pair.now, LinkId(20), DeviceId(1), &h, out);
        pair.mirrors[1].journal().is_empty(GROUP)
    };
    assert!(!wiped(&mut pair, false), "no MDM has said it");
    assert!(wiped(&mut pair, true));
}

#[test]
fn a_leader_outside_the_set_in_sync_is_named_by_no_mdm() {
    let mut pair = settle(Pair::new([4, 4]));
    let config = GroupConfig {
        epoch: Epoch(pair.epoch + 1),
        primary: Some(DeviceId(2)),
        replicas: vec![DeviceId(1), DeviceId(2)],
        in_sync: vec![DeviceId(1)],
        joiners: Vec::new(),
        lost: false,
    };
    pair.mirrors[1].configure(pair.now, GROUP, &config, false, &mut pair.outs[1]);
    assert_eq!(pair.write(0, 0, 7), Some(Status::Ok), "nothing has changed");
}

/// The MDM makes the same epoch, and another configuration of it.
#[test]
fn what_an_mdm_says_of_an_epoch_counts_and_not_what_another_server_has_said() {
    let mut pair = settle(Pair::new([4, 4]));
    assert_eq!(pair.write(0, 0, 7), Some(Status::Ok));
    let forged = GroupConfig {
        epoch: Epoch(pair.epoch + 1),
        primary: Some(DeviceId(1)),
        replicas: vec![DeviceId(1), DeviceId(3)],
        in_sync: vec![DeviceId(1)],
        joiners: Vec::new(),
        lost: false,
    };
    pair.mirrors[1].configure(pair.now, GROUP, &forged, false, &mut pair.outs[1]);
    pair.configure(1, &[1, 2], &[], &[0, 1]);
    pair.wait(1500);
    assert!(!pair.mirrors[1].journal().is_empty(GROUP), "it is a member");
    assert_eq!(pair.write(0, 1, 8), Some(Status::Ok));
    pair.assert_equal();
}
