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
