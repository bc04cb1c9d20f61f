//! Accepted losses: how many are remembered, and how many groups one order takes.

use crate::common::*;
use base::{DeviceId, GroupId, VolumeId};
use mdm::command::{CreateVolume, NewGroup};
use mdm::observed::Observed;
use mdm::recovery::DeviceReports;
use mdm::{Command, Outcome, Refused, State};
use wire::control::AcceptLoss;
use wire::control::DeviceKind::Ram;

/// Returns what the MDM observes when all devices have the newest map.
fn all_know(state: &State) -> Observed {
    let mut seen = Observed::default();
    for device in state.devices.keys() {
        seen.devices.entry(*device).or_default().map = state.version;
    }
    seen
}

/// Losses that happen again and again must not fill the state.
#[test]
fn the_last_sixteen_losses_of_a_volume_are_remembered() {
    let mut state = pair(Ram);
    let mut life = 100;
    let mut begin = |state: &mut State, devices: [u32; 2]| {
        for device in devices {
            life += 1;
            apply(state, &up(device, life, life, Ram));
        }
    };
    begin(&mut state, [3, 4]);
    for round in 0..20 {
        let (gone, others) = if round % 2 == 0 { ([1, 2], [3, 4]) } else { ([3, 4], [1, 2]) };
        for device in gone {
            let life = state.devices[&DeviceId(device)].incarnation.0;
            apply(&mut state, &down(device, life, true));
        }
        let order = AcceptLoss { volumes: vec!["v".into()], at: round, ..AcceptLoss::default() };
        let seen = all_know(&state);
        let command = state.accept_loss_command(&order, &seen, &DeviceReports::new()).unwrap();
        assert_eq!(apply(&mut state, &command), Outcome::Changed);
        assert!(state.groups.values().all(|g| others.contains(&g.primary.unwrap().0)));
        begin(&mut state, gone);
    }
    let at: Vec<u64> = state.volumes[&VolumeId(1)].losses.iter().map(|loss| loss.at).collect();
    assert_eq!(at, (4..20).collect::<Vec<_>>());
}

#[test]
fn one_order_accepts_the_loss_of_8192_groups_and_the_next_one_of_the_rest() {
    let mut state = pair(Ram);
    for (device, life) in [(3, 3), (4, 4)] {
        apply(&mut state, &up(device, life, 10 + life, Ram));
    }
    let mut names = vec!["v".to_owned()];
    for volume in 2..=18 {
        let first = state.groups.len() as u32 + 1;
        let create = CreateVolume {
            volume,
            name: format!("v{volume}"),
            size: 1 << 30,
            groups: (0..512).map(|_| NewGroup { replicas: vec![1, 2] }).collect(),
            slots: (first..first + 512).collect(),
            ..CreateVolume::default()
        };
        let create = Command::CreateVolume(create);
        assert_eq!(state.apply(state.index + 1, &create), Outcome::Changed);
        names.push(format!("v{volume}"));
    }
    for device in [1, 2] {
        let down = down(device, device.into(), true);
        assert_eq!(state.apply(state.index + 1, &down), Outcome::Changed);
    }
    let seen = all_know(&state);
    let order = AcceptLoss { volumes: names, ..AcceptLoss::default() };
    let all = state.groups.len();
    assert_eq!(all, 2 + 17 * 512);
    for accepted in [8192, all - 8192] {
        let command = state.accept_loss_command(&order, &seen, &DeviceReports::new()).unwrap();
        let Command::AcceptLoss(c) = &command else { panic!("{command:?}") };
        assert_eq!(c.groups.len(), accepted);
        assert_eq!(state.apply(state.index + 1, &command), Outcome::Changed);
    }
    state.check().unwrap();
    assert!(state.groups.values().all(|g| !g.lost));
}

/// A device that belongs to a group does not delete what it has of it. So a lost group needs
/// another one, however many of its own devices are there, and that one may come at any time.
#[test]
fn a_loss_is_accepted_as_soon_as_the_pool_has_a_device_outside_of_the_group() {
    let accept = |state: &State| {
        let order = AcceptLoss { volumes: vec!["v".into()], ..AcceptLoss::default() };
        state.accept_loss_command(&order, &all_know(state), &DeviceReports::new())
    };
    for moves in [false, true] {
        let mut state = pair(Ram);
        let mut own = vec![1, 2];
        if moves {
            // dev3 is about to take the place of dev2: until then all three belong to each group.
            own.push(3);
            apply(&mut state, &up(3, 3, 13, Ram));
            apply(&mut state, &down(2, 2, false));
            for group in [1, 2] {
                let epoch = state.groups[&GroupId(group)].epoch.0;
                let step = reshape(group, epoch, &[1, 3, 2], 2);
                assert_eq!(apply(&mut state, &step), Outcome::Changed);
            }
        }
        for device in &own {
            apply(&mut state, &down(*device, u64::from(*device), true));
        }
        assert!(state.groups.values().all(|g| g.lost), "{:?}", state.groups);
        for device in &own {
            apply(&mut state, &up(*device, 10, 20 + u64::from(*device), Ram));
            assert_eq!(accept(&state), Err(Refused::NobodyEmpty));
        }
        let other = own.len() as u32 + 1;
        apply(&mut state, &up(other, 4, 24, Ram));
        let command = accept(&state).unwrap();
        assert_eq!(apply(&mut state, &command), Outcome::Changed);
        assert!(state.groups.values().all(|g| !g.lost && g.primary == Some(DeviceId(other))));
    }
}
