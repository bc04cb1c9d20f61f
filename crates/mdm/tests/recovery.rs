//! One MDM goes on where the others are lost: who has every acknowledged write, by what servers tell.

mod common;

use base::{DeviceId, Epoch, GroupId, VolumeId};
use common::*;
use mdm::command::Command;
use mdm::group::{Doubt, Group};
use mdm::members::Member;
use mdm::recovery::{JUMP, Word, Words, plan};
use mdm::{Outcome, State};
use wire::control::DeviceKind::{Durable, Ram};
use wire::control::{self, DeviceKind, GroupInfo, GroupReport, Report, VolumeInfo};

fn recovered(kind: DeviceKind) -> State {
    let mut state = pair(kind);
    let me = Member { name: "m".into(), address: "10.0.0.9:1".into(), tie_breaker: false };
    state.recover(1, me, "me@here", 6000);
    state.check().unwrap();
    state
}

/// Group 1 as a server's map has it.
fn config(epoch: u64, in_sync: &[u32]) -> GroupInfo {
    let replicas = vec![1, 2];
    let primary = in_sync.first().copied().unwrap_or(0);
    GroupInfo { id: 1, epoch, primary, replicas, in_sync: in_sync.to_vec(), ..GroupInfo::default() }
}

/// What a device says of group 1; of group 2 it knows nothing new.
fn word(acted: u64, base: u64, config: Option<GroupInfo>) -> Word {
    let mut word = Word::default();
    let groups = vec![GroupReport { group: 1, acted, base, config }];
    assert!(word.add(Report { groups, ..Report::default() }));
    word
}

/// Does all that follows from what was told.
fn settle(state: &mut State, words: &Words, patient: bool) {
    for _ in 0..20 {
        let Some(command) = plan(state, words, patient) else { return };
        assert_eq!(state.apply(state.index + 1, &command), Outcome::Changed, "{command:?}");
        state.check().unwrap();
    }
    panic!("a plan without end");
}

fn words(list: Vec<(u32, Word)>) -> Words {
    list.into_iter().map(|(id, w)| (DeviceId(id), w)).collect()
}

fn group(state: &State, id: u32) -> &Group {
    &state.groups[&GroupId(id)]
}

#[test]
fn who_has_everything_is_told_by_evidence_or_not_at_all() {
    let known = |list: &[u32]| Some(list.iter().map(|d| DeviceId(*d)).collect::<Vec<_>>());
    // What each of both tells of group 1, which is in epoch 1 with both in sync; who is in sync then.
    let cases = [
        ("nobody went on", Some(word(1, 1, None)), Some(word(1, 1, None)), known(&[1, 2])),
        ("one has not said anything", Some(word(1, 1, None)), None, None),
        (
            "a map knows that dev1 went on alone",
            Some(word(2, 1, Some(config(2, &[1])))),
            None,
            known(&[1]),
        ),
        (
            "a map knows that dev2 went on alone, and dev1 began to join",
            Some(word(3, 1, None)),
            Some(word(2, 1, Some(config(2, &[2])))),
            known(&[2]),
        ),
        ("both were sealed later", Some(word(4, 4, None)), Some(word(4, 4, None)), known(&[1, 2])),
        ("dev2 was sealed last", Some(word(3, 3, None)), Some(word(4, 4, None)), known(&[2])),
        (
            "dev1 took part later, in which part nobody knows",
            Some(word(4, 2, None)),
            Some(word(2, 2, None)),
            None,
        ),
        ("both took part, nobody was sealed", Some(word(4, 2, None)), Some(word(4, 2, None)), None),
    ];
    for (name, one, two, expected) in cases {
        let mut state = recovered(Durable);
        let told = [(1, one), (2, two)].into_iter().filter_map(|(id, w)| Some((id, w?)));
        settle(&mut state, &words(told.collect()), true);
        let g = group(&state, 1);
        let found = (g.doubt == Doubt::None).then(|| g.in_sync.clone());
        assert_eq!(found, expected, "{name}: {g:?}");
        assert!(g.doubt == Doubt::None || g.primary.is_none(), "{name}: nobody leads in doubt");
        if g.doubt == Doubt::None {
            assert!(g.epoch.0 > JUMP && g.primary.is_some(), "{name}: {g:?}");
        }
        let all_known = state.groups.values().all(|g| g.doubt == Doubt::None);
        assert!(!all_known || !state.recovery.open, "{name}: it is over when all is known");
    }
}

#[test]
fn what_is_decided_while_it_is_not_known_changes_no_group() {
    let mut state = recovered(Durable);
    let before = state.groups.clone();
    for command in [down(1, 1, true), up(1, 90, 11, Durable), suspect(2, 2, 1), join(2, 2, 1)] {
        state.apply(state.index + 1, &command);
        state.check().unwrap();
    }
    assert_eq!(state.groups, before);
    // One that waits for a report is served when it comes, also after the end of the recovery.
    let mut told = words(vec![(1, word(1, 1, None))]);
    let close = Command::Reconcile(mdm::command::Reconcile { close: true, ..Default::default() });
    state.apply(state.index + 1, &close);
    assert!(!state.recovery.open && state.wants_reports());
    settle(&mut state, &told, false);
    assert_eq!(group(&state, 1).doubt, Doubt::Reports);
    told.insert(DeviceId(2), word(1, 1, None));
    settle(&mut state, &told, false);
    assert_eq!((group(&state, 1).doubt, group(&state, 1).in_sync.len()), (Doubt::None, 2));
    assert!(!state.wants_reports());
}

#[test]
fn a_device_that_was_emptied_is_no_evidence() {
    let mut state = recovered(Ram);
    state.apply(state.index + 1, &up(1, 90, 99, Ram));
    settle(&mut state, &words(vec![(1, Word::default()), (2, word(1, 1, None))]), false);
    let g = group(&state, 1);
    assert_eq!((g.doubt, g.primary), (Doubt::Gone, None), "dev1 may have gone on alone: {g:?}");
}

#[test]
fn numbers_never_come_back_and_newer_maps_are_believed() {
    let before = pair(Durable);
    let mut state = recovered(Durable);
    assert!(state.next_volume.0 > before.next_volume.0 + 1000);
    assert!(state.next_incarnation.0 > before.next_incarnation.0 + JUMP - 1);
    assert!(state.next_device().0 > before.next_device().0 + 100);
    let old = before.volumes[&VolumeId(1)].clone();
    let info = |id: u32, name: &str, slots: Vec<u32>| VolumeInfo {
        id,
        name: name.into(),
        size: old.size,
        slots,
        mapping: Some(old.mapping.info()),
        ..VolumeInfo::default()
    };
    // A server's map has volume 2, on a group that this MDM never heard of, and volume 1 no more.
    let mut one = word(1, 1, None);
    let made = GroupInfo { id: 3, ..config(1, &[1, 2]) };
    assert!(one.add(Report {
        version: state.version.0 + 5,
        next_volume: 3,
        groups: vec![GroupReport { group: 3, acted: 1, base: 1, config: Some(made) }],
        volumes: vec![info(2, "new", vec![3, 1])],
        ..Report::default()
    }));
    settle(&mut state, &words(vec![(1, one), (2, word(1, 1, None))]), true);
    assert!(!state.recovery.open, "{:?}", state.groups);
    let names: Vec<&str> = state.volumes.values().map(|v| &*v.name).collect();
    assert_eq!((names, state.volumes.len()), (vec!["new"], 1));
    assert_eq!(group(&state, 3).in_sync.len(), 2);
    assert!(
        state
            .pages_since(base::MapVersion(state.version.0 - 1))
            .iter()
            .any(|p| p.devices.len() == 2)
    );
    assert_eq!(State::from_bytes(&state.to_bytes()), Ok(state.clone()));
    // Again, from the state of before: no number is given twice.
    let mut again = recovered(Durable);
    again.recover(1, again.members.list[&1].clone(), "me", 6060);
    assert!(again.next_incarnation > recovered(Durable).next_incarnation);
}

#[test]
fn data_of_volumes_that_nobody_knows_is_not_deleted_without_a_word() {
    let mut state = recovered(Durable);
    let mut one = word(1, 1, None);
    assert!(one.add(Report { held: vec![1, 2], ..Report::default() }));
    let told = words(vec![(1, one), (2, word(1, 1, None))]);
    settle(&mut state, &told, false);
    assert!(state.recovery.open);
    assert_eq!(state.recovery_status(&told).unwrap().strange, [2]);
}

#[test]
fn a_report_without_end_is_refused() {
    let mut word = Word::default();
    let part = |from: u32| {
        let groups = (from..from + 1000).map(|group| GroupReport { group, ..Default::default() });
        Report { groups: groups.collect(), ..Report::default() }
    };
    let taken = (0..1000).take_while(|i| word.add(part(i * 1000))).count();
    assert!((100..200).contains(&taken), "{taken} thousand groups");
}

#[test]
fn a_device_and_a_life_that_the_lost_ones_gave_go_on() {
    let mut state = recovered(Durable);
    let life = |device: u32, sds: &str, incarnation| control::Register {
        sds: sds.into(),
        device,
        address: "10.0.0.7:7000".into(),
        nonce: 77,
        store: if device == 1 { 11 } else { 13 },
        capacity: 1 << 30,
        kind: Durable as i32,
        incarnation,
        acted: 50,
        ..control::Register::default()
    };
    for (device, sds, incarnation) in [(1, "sds1", 40), (3, "sds3", 41)] {
        let registration = state.register(&life(device, sds, incarnation), false);
        let mdm::controller::Registration::New(id, command) = registration else {
            panic!("{registration:?}")
        };
        assert_eq!(id, DeviceId(device));
        state.apply(state.index + 1, &command);
        state.check().unwrap();
        assert_eq!(state.devices[&id].incarnation.0, incarnation);
    }
    assert_eq!(group(&state, 1).epoch, Epoch(1), "it is evidence");
}
