//! A group that has moved to other devices: its content here is deleted when an MDM has said so.

use super::*;
use wire::message::SyncWipe;

/// Returns a configuration of the group in this epoch.
pub(crate) fn config(
    epoch: u64,
    primary: u32,
    replicas: &[u32],
    in_sync: &[u32],
    joiners: &[u32],
) -> GroupConfig {
    let devices = |of: &[u32]| of.iter().map(|d| DeviceId(*d)).collect();
    GroupConfig {
        epoch: Epoch(epoch),
        primary: Some(DeviceId(primary)),
        replicas: devices(replicas),
        in_sync: devices(in_sync),
        joiners: devices(joiners),
        lost: false,
    }
}

#[test]
fn a_map_from_another_server_deletes_no_group() {
    let mut pair = settle(Pair::new([4, 4]));
    assert_eq!(pair.write(0, 0, 7), Some(Status::Ok));
    let epoch = pair.epoch + 1;
    let moved = config(epoch, 1, &[1, 3], &[1], &[]);
    let is_kept = |pair: &mut Pair, told: bool| {
        let (mirror, out) = (&mut pair.mirrors[1], &mut pair.outs[1]);
        mirror.set_map(MapVersion(epoch), BTreeMap::new());
        mirror.configure(pair.now, GROUP, &moved, told, out);
        pair.run();
        !pair.mirrors[1].store().is_empty(GROUP)
    };
    assert!(is_kept(&mut pair, false) && is_kept(&mut pair, false), "no MDM has said it");
    assert!(!is_kept(&mut pair, true));
}

/// A joiner that starts from nothing has lost what it had.
#[test]
fn a_map_from_another_server_wipes_no_replica() {
    let mut pair = settle(Pair::new([4, 4]));
    assert_eq!(pair.write(0, 0, 7), Some(Status::Ok));
    let epoch = pair.epoch + 1;
    let joins = config(epoch, 1, &[1, 2], &[1], &[2]);
    let wiped = |pair: &mut Pair, told: bool| {
        let (mirror, out) = (&mut pair.mirrors[1], &mut pair.outs[1]);
        mirror.set_map(MapVersion(epoch), BTreeMap::new());
        mirror.configure(pair.now, GROUP, &joins, told, out);
        let wipe = SyncWipe { question: 1, group: GROUP, epoch: Epoch(epoch) };
        mirror.sync_wipe_in(pair.now, on(LinkId(20)), DeviceId(1), &wipe, out);
        pair.mirrors[1].store().is_empty(GROUP)
    };
    assert!(!wiped(&mut pair, false), "no MDM has said it");
    assert!(wiped(&mut pair, true));
}

#[test]
fn a_leader_outside_the_set_in_sync_is_named_by_no_mdm() {
    let mut pair = settle(Pair::new([4, 4]));
    let config = config(pair.epoch + 1, 2, &[1, 2], &[1], &[]);
    pair.mirrors[1].configure(pair.now, GROUP, &config, false, &mut pair.outs[1]);
    assert_eq!(pair.write(0, 0, 7), Some(Status::Ok), "nothing has changed");
}

/// An MDM makes another configuration of the same epoch.
#[test]
fn a_configuration_from_an_mdm_overrides_one_from_another_server() {
    let mut pair = settle(Pair::new([4, 4]));
    assert_eq!(pair.write(0, 0, 7), Some(Status::Ok));
    let forged = config(pair.epoch + 1, 1, &[1, 3], &[1], &[]);
    pair.mirrors[1].configure(pair.now, GROUP, &forged, false, &mut pair.outs[1]);
    pair.configure(1, &[1, 2], &[], &[0, 1]);
    pair.wait(1500);
    assert!(!pair.mirrors[1].store().is_empty(GROUP), "it is a member");
    assert_eq!(pair.write(0, 1, 8), Some(Status::Ok));
    pair.assert_equal();
}
