//! Clusters for tests.

use base::{DeviceId, GroupId, Limits};
use mdm::command::*;
use mdm::controller;
use mdm::group::Group;
use mdm::{Command, Outcome, State};
use wire::control::{DeviceKind, Intent};

/// Limits with few groups per device and few slots.
pub(crate) fn limits() -> Limits {
    Limits { groups_per_device: 4, stripe_width: 4, ..Limits::TEST_MIN }
}

/// The start of a device's process: its first or a later incarnation.
pub(crate) fn up(device: u32, incarnation: u64, store: u64, kind: DeviceKind) -> Command {
    Command::DeviceUp(DeviceUp {
        device,
        sds: device,
        name: format!("sds{device}"),
        shard: 0,
        incarnation,
        nonce: incarnation,
        store,
        address: format!("10.0.0.{device}:7000"),
        capacity: 1 << 30,
        kind: kind as i32,
        pid: 1,
        ..DeviceUp::default()
    })
}

pub(crate) fn down(device: u32, incarnation: u64, dead: bool) -> Command {
    Command::DeviceDown(DeviceDown { device, incarnation, dead })
}

pub(crate) fn suspect(by: u32, incarnation: u64, device: u32) -> Command {
    Command::Suspect(Suspect { by, incarnation, device })
}

pub(crate) fn join(by: u32, incarnation: u64, device: u32) -> Command {
    Command::Join(Join { by, incarnation, device })
}

pub(crate) fn admit(group: u32, epoch: u64, device: u32) -> Command {
    Command::Admit(Admit { list: vec![Admission { group, epoch, device }] })
}

/// Applies the next command and checks the invariants.
pub(crate) fn apply(state: &mut State, command: &Command) -> Outcome {
    let before = state.clone();
    let would = state.would_change(command);
    let outcome = state.apply(state.index + 1, command);
    assert_eq!(would, outcome == Outcome::Changed, "{command:?}: {outcome:?}");
    if let Ok(change) = before.change(command.clone()) {
        let mut maker = before.clone();
        maker.make(change);
        assert_eq!(maker, *state, "{command:?}: made and applied");
    }
    state.check().unwrap_or_else(|what| panic!("after {command:?}: {what}"));
    for (id, group) in &before.groups {
        let after = &state.groups[id];
        let same = Group { changed_at: group.changed_at, ..after.clone() } == *group;
        let rise = after.epoch.0 - group.epoch.0;
        assert_eq!(rise, u64::from(!same), "{command:?} on {group:?} gave {after:?}");
    }
    outcome
}

/// Two servers with one device each (incarnations 1 and 2, stores 11 and 12), and one volume `v` on
/// two groups: dev1 is the preferred primary of the first one, dev2 of the second one.
pub(crate) fn pair(kind: DeviceKind) -> State {
    let mut s = State::new();
    apply(&mut s, &Command::FormCluster(FormCluster { cluster: 7 }));
    apply(&mut s, &up(1, 1, 11, kind));
    apply(&mut s, &up(2, 2, 12, kind));
    let groups = vec![NewGroup { replicas: vec![1, 2] }, NewGroup { replicas: vec![2, 1] }];
    let create = CreateVolume {
        volume: 1,
        name: "v".into(),
        size: 1 << 20,
        groups,
        slots: vec![1, 2],
        ..CreateVolume::default()
    };
    assert_eq!(apply(&mut s, &Command::CreateVolume(create)), Outcome::Changed);
    s
}

/// Lets all devices that a recovery knows register again, in the same incarnations.
pub(crate) fn register_all(state: &mut State) {
    assert!(state.devices.values().all(|d| !d.up));
    state.devices.values_mut().filter(|d| d.intent != Intent::Removed).for_each(|d| d.up = true);
    state.check().unwrap();
}

/// A short form of a group: epoch, primary, in sync, joiners, lost.
pub(crate) fn short(state: &State, group: u32) -> (u64, u32, Vec<u32>, Vec<u32>, bool) {
    let g = &state.groups[&GroupId(group)];
    let ids = |of: &[DeviceId]| of.iter().map(|d| d.0).collect();
    (g.epoch.0, g.primary.map_or(0, |p| p.0), ids(&g.in_sync), ids(&g.joiners), g.lost)
}

/// New replicas for a group; `leaving` is the one that is dropped at the end (0: none).
pub(crate) fn reshape(group: u32, epoch: u64, replicas: &[u32], leaving: u32) -> Command {
    Command::Reshape(Reshape {
        list: vec![Shape { group, epoch, replicas: replicas.to_vec(), leaving, acted: 0 }],
    })
}

/// Returns the command that creates a volume, as for an operator's request.
pub(crate) fn create(
    state: &State,
    name: &str,
    size: u64,
    limits: &base::Limits,
) -> Result<Command, mdm::Refused> {
    let ask = wire::control::CreateVolume { name: name.into(), size, ..Default::default() };
    controller::create_volume_command(state, &ask, limits, &|_| 0).map(|change| (*change).clone())
}
