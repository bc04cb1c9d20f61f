//! Changes of a group's replicas, step by step, and the changes that are refused.

use crate::common::*;
use base::{DeviceId, GroupId};
use mdm::command::*;
use mdm::{Command, Outcome, State};
use wire::control::{DeviceKind, Intent};

type Short = (u64, u32, Vec<u32>, Vec<u32>, bool);

/// A pair, and a third server that has no groups.
fn three() -> State {
    let mut state = pair(DeviceKind::Durable);
    apply(&mut state, &up(3, 3, 13, DeviceKind::Durable));
    state
}

/// Returns group 1, which begins as [1, 2] in epoch 1, after these commands: its replicas, the
/// leaving one, and its short form.
fn run(commands: &[Command]) -> (Vec<u32>, u32, Short) {
    let mut state = three();
    commands.iter().for_each(|c| drop(apply(&mut state, c)));
    let group = &state.groups[&GroupId(1)];
    let replicas = group.replicas.iter().map(|d| d.0).collect();
    (replicas, group.leaving.map_or(0, |d| d.0), short(&state, 1))
}

#[test]
fn a_lost_replica_is_replaced() {
    let name = [down(2, 2, true), reshape(1, 2, &[1, 3, 2], 2)];
    assert_eq!(run(&name), (vec![1, 3, 2], 2, (3, 1, vec![1], vec![], false)));
    let copy = [&name[..], &[join(1, 1, 3), admit(1, 4, 3)]].concat();
    assert_eq!(run(&copy), (vec![1, 3, 2], 2, (5, 1, vec![1, 3], vec![], false)));
    let drop = [&copy[..], &[reshape(1, 5, &[1, 3], 0)]].concat();
    assert_eq!(run(&drop), (vec![1, 3], 0, (6, 1, vec![1, 3], vec![], false)));
}

#[test]
fn a_replica_moves_and_both_copies_stay_meanwhile() {
    let name = [reshape(1, 1, &[1, 3, 2], 2), join(1, 1, 3)];
    assert_eq!(run(&name), (vec![1, 3, 2], 2, (3, 1, vec![1, 2], vec![3], false)));
    let copied = [&name[..], &[admit(1, 3, 3)]].concat();
    assert_eq!(run(&copied), (vec![1, 3, 2], 2, (4, 1, vec![1, 3, 2], vec![], false)));
    let early = [&name[..], &[reshape(1, 3, &[1, 3], 0)]].concat();
    assert_eq!(run(&early), run(&name), "nobody in sync goes before the others are");
    let back = [&name[..], &[reshape(1, 3, &[1, 2], 0)]].concat();
    assert_eq!(run(&back), (vec![1, 2], 0, (4, 1, vec![1, 2], vec![], false)), "an abort");
}

#[test]
fn the_primary_moves_and_hands_over_at_once() {
    let name = [reshape(1, 1, &[3, 2, 1], 1), join(2, 2, 3)];
    assert_eq!(run(&name), (vec![3, 2, 1], 1, (3, 2, vec![2, 1], vec![3], false)));
    let copied = [&name[..], &[admit(1, 3, 3)]].concat();
    assert_eq!(run(&copied), (vec![3, 2, 1], 1, (4, 3, vec![3, 2, 1], vec![], false)));
    let dropped = [&copied[..], &[reshape(1, 4, &[3, 2], 0)]].concat();
    assert_eq!(run(&dropped), (vec![3, 2], 0, (5, 3, vec![3, 2], vec![], false)));
}

#[test]
fn a_leaving_replica_does_not_join_and_the_preferred_primary_leads() {
    let away = [down(2, 2, true), reshape(1, 2, &[1, 3, 2], 2), up(2, 4, 12, DeviceKind::Durable)];
    assert_eq!(run(&[&away[..], &[join(1, 1, 2)]].concat()), run(&away));
    assert_eq!(run(&[reshape(1, 1, &[2, 1], 0)]).2, (2, 2, vec![2, 1], vec![], false));
}

#[test]
fn commands_that_do_not_match_the_state_change_nothing() {
    let refused = [
        reshape(1, 2, &[1, 3, 2], 2),
        reshape(1, 1, &[1, 3], 0),
        reshape(1, 1, &[1, 3, 2], 1),
        reshape(1, 1, &[1, 3, 2], 0),
        reshape(1, 1, &[1, 2, 2], 2),
        reshape(1, 1, &[1, 4, 2], 2),
        reshape(1, 1, &[1], 0),
        reshape(1, 1, &[1, 2], 2),
        reshape(9, 1, &[1, 3, 2], 2),
    ];
    for command in refused {
        assert_eq!(apply(&mut three(), &command), Outcome::Unchanged, "{command:?}");
    }
    let mut state = three();
    apply(&mut state, &down(3, 3, true));
    assert_eq!(
        apply(&mut state, &reshape(1, 1, &[1, 3, 2], 2)),
        Outcome::Unchanged,
        "dev3 is down"
    );
    let mut state = three();
    apply(&mut state, &down(1, 1, true));
    apply(&mut state, &down(2, 2, true));
    assert_eq!(
        apply(&mut state, &reshape(1, 3, &[3, 2, 1], 1)),
        Outcome::Unchanged,
        "nobody has a copy"
    );
}

#[test]
fn two_copies_never_get_onto_one_server() {
    let mut state = three();
    let twin = DeviceUp { sds: 1, name: "sds1".into(), shard: 1, ..device_up(4, 4) };
    apply(&mut state, &Command::DeviceUp(twin));
    assert_eq!(apply(&mut state, &reshape(1, 1, &[1, 4, 2], 2)), Outcome::Unchanged);
    assert_eq!(apply(&mut state, &reshape(1, 1, &[4, 2, 1], 1)), Outcome::Changed);
}

fn device_up(device: u32, incarnation: u64) -> DeviceUp {
    match up(device, incarnation, incarnation, DeviceKind::Durable) {
        Command::DeviceUp(c) => c,
        _ => unreachable!(),
    }
}

fn intend(device: u32, intent: Intent) -> Command {
    Command::Intend(Intend { devices: vec![device], intent: intent as i32 })
}

#[test]
fn a_device_is_removed_when_it_has_nothing_and_never_comes_back() {
    let mut state = three();
    assert_eq!(apply(&mut state, &intend(1, Intent::Removed)), Outcome::Unchanged, "not intended");
    apply(&mut state, &intend(1, Intent::Remove));
    assert_eq!(apply(&mut state, &intend(1, Intent::Removed)), Outcome::Unchanged, "it has groups");
    apply(&mut state, &intend(1, Intent::Normal));
    apply(&mut state, &intend(3, Intent::Remove));
    assert_eq!(apply(&mut state, &reshape(1, 1, &[1, 3, 2], 2)), Outcome::Unchanged, "it goes");
    assert_eq!(apply(&mut state, &intend(3, Intent::Removed)), Outcome::Changed);
    assert!(!state.devices[&DeviceId(3)].up);
    let again = up(3, 9, 13, DeviceKind::Durable);
    assert_eq!(apply(&mut state, &again), Outcome::Unchanged);
    assert_eq!(state.next_device(), DeviceId(4), "its id stays its own");
}
