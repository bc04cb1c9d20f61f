//! The effect of each command, case by case.

use crate::common::{self, *};
use base::{DeviceId, MapVersion, VolumeId};
use mdm::command::*;
use mdm::controller;
use mdm::controller::Registration;
use mdm::{Command, Outcome, Refused, State};
use wire::control::DeviceKind::{Durable, Ram};
use wire::control::{self, DeviceKind};

/// Commands, then the expected group 1 (preferred primary dev1, other replica dev2), as `short`
/// gives it.
type Case = (&'static str, DeviceKind, Vec<Command>, (u64, u32, Vec<u32>, Vec<u32>, bool));

#[test]
// Long: a table of cases, each with its commands and result.
fn group_transitions() {
    let cases: Vec<Case> = vec![
        ("new", Durable, vec![], (1, 1, vec![1, 2], vec![], false)),
        ("secondary down", Durable, vec![down(2, 2, false)], (2, 1, vec![1], vec![], false)),
        ("primary down", Durable, vec![down(1, 1, true)], (2, 2, vec![2], vec![], false)),
        (
            "an older life's end",
            Durable,
            vec![up(2, 3, 12, Durable), down(2, 2, true)],
            (2, 1, vec![1, 2], vec![], false),
        ),
        (
            "both down: the last one stays",
            Durable,
            vec![down(2, 2, true), down(1, 1, true)],
            (3, 0, vec![1], vec![], false),
        ),
        (
            "RAM, both dead",
            Ram,
            vec![down(2, 2, true), down(1, 1, true)],
            (3, 0, vec![], vec![], true),
        ),
        (
            "RAM, the last one only silent",
            Ram,
            vec![down(2, 2, true), down(1, 1, false)],
            (3, 0, vec![1], vec![], false),
        ),
        (
            "RAM, silence turns out to be death",
            Ram,
            vec![down(2, 2, true), down(1, 1, false), down(1, 1, true)],
            (4, 0, vec![], vec![], true),
        ),
        (
            "down twice is down",
            Durable,
            vec![down(2, 2, false), down(2, 2, false)],
            (2, 1, vec![1], vec![], false),
        ),
        (
            "silence ends",
            Durable,
            vec![down(2, 2, false), down(1, 1, false), up(1, 1, 11, Durable)],
            (4, 1, vec![1], vec![], false),
        ),
        (
            "the one out of sync can't lead",
            Durable,
            vec![down(2, 2, false), down(1, 1, false), up(2, 2, 12, Durable)],
            (3, 0, vec![1], vec![], false),
        ),
        (
            "silence ends, somebody else leads",
            Durable,
            vec![down(1, 1, false), up(1, 1, 11, Durable)],
            (2, 2, vec![2], vec![], false),
        ),
        (
            "quick restart with its store",
            Durable,
            vec![up(1, 3, 11, Durable)],
            (2, 1, vec![1, 2], vec![], false),
        ),
        (
            "a replica out of sync restarts",
            Durable,
            vec![down(2, 2, true), up(2, 3, 12, Durable)],
            (3, 1, vec![1], vec![], false),
        ),
        (
            "the only one in sync restarts with its store",
            Durable,
            vec![down(2, 2, true), down(1, 1, true), up(1, 3, 11, Durable)],
            (4, 1, vec![1], vec![], false),
        ),
        ("secondary restarts empty", Ram, vec![up(2, 3, 99, Ram)], (2, 1, vec![1], vec![], false)),
        ("primary restarts empty", Ram, vec![up(1, 3, 99, Ram)], (2, 2, vec![2], vec![], false)),
        (
            "the only one restarts empty",
            Ram,
            vec![down(2, 2, true), up(1, 3, 99, Ram)],
            (3, 0, vec![], vec![], true),
        ),
        (
            "lost stays lost",
            Ram,
            vec![down(2, 2, true), up(1, 3, 99, Ram), up(2, 4, 98, Ram)],
            (4, 0, vec![], vec![], true),
        ),
        ("suspect", Durable, vec![suspect(1, 1, 2)], (2, 1, vec![1], vec![], false)),
        (
            "a secondary can't suspect",
            Durable,
            vec![suspect(2, 2, 1)],
            (1, 1, vec![1, 2], vec![], false),
        ),
        (
            "an older life can't suspect",
            Durable,
            vec![up(1, 3, 11, Durable), suspect(1, 1, 2)],
            (2, 1, vec![1, 2], vec![], false),
        ),
        (
            "nobody suspects himself",
            Durable,
            vec![suspect(1, 1, 1)],
            (1, 1, vec![1, 2], vec![], false),
        ),
        ("join", Durable, vec![suspect(1, 1, 2), join(1, 1, 2)], (3, 1, vec![1], vec![2], false)),
        (
            "join twice is join",
            Durable,
            vec![suspect(1, 1, 2), join(1, 1, 2), join(1, 1, 2)],
            (3, 1, vec![1], vec![2], false),
        ),
        (
            "who is in sync can't join",
            Durable,
            vec![join(1, 1, 2)],
            (1, 1, vec![1, 2], vec![], false),
        ),
        (
            "who is down can't join",
            Durable,
            vec![down(2, 2, false), join(1, 1, 2)],
            (2, 1, vec![1], vec![], false),
        ),
        (
            "a joiner is suspected",
            Durable,
            vec![suspect(1, 1, 2), join(1, 1, 2), suspect(1, 1, 2)],
            (4, 1, vec![1], vec![], false),
        ),
        (
            "a joiner goes down",
            Durable,
            vec![suspect(1, 1, 2), join(1, 1, 2), down(2, 2, false)],
            (4, 1, vec![1], vec![], false),
        ),
        (
            "a joiner restarts",
            Durable,
            vec![suspect(1, 1, 2), join(1, 1, 2), up(2, 3, 12, Durable)],
            (4, 1, vec![1], vec![], false),
        ),
        (
            "a joiner's primary goes down",
            Durable,
            vec![suspect(1, 1, 2), join(1, 1, 2), down(1, 1, true)],
            (4, 0, vec![1], vec![], false),
        ),
        (
            "admit",
            Durable,
            vec![suspect(1, 1, 2), join(1, 1, 2), admit(1, 3, 2)],
            (4, 1, vec![1, 2], vec![], false),
        ),
        (
            "admit in an older epoch",
            Durable,
            vec![suspect(1, 1, 2), join(1, 1, 2), suspect(1, 1, 2), join(1, 1, 2), admit(1, 3, 2)],
            (5, 1, vec![1], vec![2], false),
        ),
        (
            "admit twice",
            Durable,
            vec![suspect(1, 1, 2), join(1, 1, 2), admit(1, 3, 2), admit(1, 3, 2)],
            (4, 1, vec![1, 2], vec![], false),
        ),
        (
            "admit of nobody's joiner",
            Durable,
            vec![suspect(1, 1, 2), admit(1, 2, 2)],
            (2, 1, vec![1], vec![], false),
        ),
        (
            "the preferred primary leads again",
            Durable,
            vec![down(1, 1, true), up(1, 3, 11, Durable), join(2, 2, 1), admit(1, 4, 1)],
            (5, 1, vec![1, 2], vec![], false),
        ),
    ];
    for (name, kind, commands, want) in cases {
        let mut state = pair(kind);
        commands.iter().for_each(|c| drop(apply(&mut state, c)));
        assert_eq!(short(&state, 1), want, "{name}");
    }
}

#[test]
fn one_command_changes_all_groups_of_a_device() {
    let mut state = pair(Durable);
    apply(&mut state, &down(1, 1, true));
    assert_eq!((short(&state, 1).1, short(&state, 2).1), (2, 2));
    let d = &state.devices[&DeviceId(1)];
    assert_eq!((d.up, d.dead), (false, true));
    assert_eq!(state.version, MapVersion(state.index));
}

#[test]
fn registrations_tell_lives_apart() {
    let mut state = pair(Durable);
    let m = |nonce| control::Register {
        sds: "sds1".into(),
        nonce,
        store: 11,
        address: "10.0.0.1:7000".into(),
        capacity: 1 << 30,
        kind: Durable as i32,
        pid: 1,
        device: 1,
        ..control::Register::default()
    };
    assert_eq!(state.register(&m(1), false, None), Registration::Known(DeviceId(1)));
    assert!(
        matches!(state.register(&m(5), true, None), Registration::Superseded(_)),
        "an older link"
    );
    let Registration::New(DeviceId(1), command) = state.register(&m(5), false, None) else {
        panic!()
    };
    apply(&mut state, &command);
    assert_eq!(state.devices[&DeviceId(1)].incarnation.0, 3);
    assert!(
        matches!(state.register(&m(1), false, None), Registration::Superseded(_)),
        "an earlier life"
    );
    assert_eq!(state.register(&m(5), true, None), Registration::Known(DeviceId(1)));
    apply(&mut state, &down(1, 3, false));
    let Registration::New(_, command) = state.register(&m(5), false, None) else { panic!() };
    apply(&mut state, &command);
    assert_eq!(state.devices[&DeviceId(1)].incarnation.0, 3, "the same life");
    assert_eq!(state.revive(DeviceId(1)), None);

    let bad = control::Register { address: "nowhere".into(), ..m(1) };
    assert!(matches!(state.register(&bad, false, None), Registration::Bad(_)));
    let bad = control::Register { sds: "x".repeat(65), ..m(1) };
    assert!(matches!(state.register(&bad, false, None), Registration::Bad(_)));
    let sdc = control::RegisterSdc { name: "c".into(), nonce: 8, ..Default::default() };
    let Registration::New(id, command) = state.register_sdc(&sdc, false) else { panic!() };
    let version = state.version;
    apply(&mut state, &command);
    assert_eq!(state.register_sdc(&sdc, false), Registration::Known(id));
    // Servers believe a client's incarnation that their map names.
    let incarnation = state.sdcs[&id].incarnation.0;
    let page = state.pages_since(version).pop().expect("a new client is a new map");
    assert_eq!(page.sdcs, [control::ClientInfo { id: id.0, incarnation }]);
}

#[test]
fn a_device_that_has_grown_counts_with_its_new_size() {
    let mut state = pair(Durable);
    let version = state.version;
    let larger = control::Register {
        sds: "sds1".into(),
        nonce: 5,
        store: 11,
        address: "10.0.0.1:7000".into(),
        capacity: 3 << 30,
        kind: Durable as i32,
        device: 1,
        ..control::Register::default()
    };
    let Registration::New(DeviceId(1), command) = state.register(&larger, false, None) else {
        panic!()
    };
    assert_eq!(apply(&mut state, &command), Outcome::Changed);
    assert_eq!(state.devices[&DeviceId(1)].capacity, 3 << 30);
    assert!(state.version > version, "everybody hears of it");
    assert_eq!(short(&state, 1).2, [1, 2], "it is the same device, with its data");
    // Also when it is only heard again.
    apply(&mut state, &down(1, 3, false));
    let command = state.revive(DeviceId(1)).expect("it is down");
    apply(&mut state, &command);
    assert_eq!(state.devices[&DeviceId(1)].capacity, 3 << 30);
}

#[test]
fn a_device_is_known_by_what_is_written_on_it() {
    let mut state = pair(Durable);
    let moved = |sds: &str, shard, nonce| control::Register {
        sds: sds.into(),
        shard,
        nonce,
        store: 11,
        address: "10.0.0.9:7000".into(),
        capacity: 1 << 30,
        kind: Durable as i32,
        device: 1,
        ..control::Register::default()
    };
    let refused = |state: &State, m: &control::Register, words: &str| {
        let Registration::WrongDevice(text) = state.register(m, false, None) else {
            panic!("{words}")
        };
        assert!(text.contains(words), "{text}");
    };
    refused(&state, &moved("sds2", 7, 77), "stop that one first");
    apply(&mut state, &down(1, 1, true));
    refused(&state, &moved("sds2", 0, 77), "dev2, which counts as up");
    let Registration::New(DeviceId(1), command) =
        state.register(&moved("sds2", 7, 77), false, None)
    else {
        panic!("a device that was moved")
    };
    apply(&mut state, &command);
    let d = &state.devices[&DeviceId(1)];
    assert_eq!((d.sds, d.shard, d.up), (base::SdsId(2), 7, true));
    // An empty device is not taken for the earlier one, unless the operator says so.
    let empty = control::Register { device: 0, store: 99, ..moved("sds2", 7, 78) };
    let life = state.devices[&DeviceId(1)].incarnation.0;
    apply(&mut state, &down(1, life, true));
    refused(&state, &empty, "--replace 1");
    let meant = control::Register { replace: true, ..empty };
    let Registration::New(DeviceId(1), command) = state.register(&meant, false, None) else {
        panic!("a device that is replaced")
    };
    apply(&mut state, &command);
    assert_eq!(state.devices[&DeviceId(1)].store, 99);
    let unnamed = control::Register { replace: false, ..meant };
    assert_eq!(
        state.register(&unnamed, false, None),
        Registration::Known(DeviceId(1)),
        "the same life"
    );
    refused(&state, &moved("sds1", 0, 79), "was replaced");
    refused(&state, &control::Register { device: 55, ..moved("sds1", 0, 80) }, "no dev55");
    let set_back = control::Register { store: 99, acted: 1000, ..moved("sds2", 7, 78) };
    refused(&state, &set_back, "set back");
    let next_volume = state.next_volume.0;
    let set_back = control::Register { acted: 0, next_volume: next_volume + 1, ..set_back };
    refused(&state, &set_back, "holds data of a volume");
    let held = control::Register { next_volume, ..set_back };
    assert!(!matches!(state.register(&held, false, None), Registration::WrongDevice(_)));
}

#[test]
fn repeated_proposals_change_nothing() {
    let mut state = pair(Durable);
    let m =
        control::Proposal { device: 1, incarnation: 1, suspects: vec![2, 2], ..Default::default() };
    let commands = controller::proposed(&m);
    assert_eq!(commands.len(), 1);
    assert!(state.would_change(&commands[0]));
    apply(&mut state, &commands[0]);
    assert!(!state.would_change(&commands[0]));
}

fn create(state: &mut State, name: &str, size: u64) -> Result<(), Refused> {
    let command = common::create(state, name, size, &limits())?;
    assert_eq!(apply(state, &command), Outcome::Changed);
    Ok(())
}

#[test]
fn volumes_are_created_grown_and_deleted() {
    let mut state = State::new();
    apply(&mut state, &Command::FormCluster(FormCluster { cluster: 7 }));
    apply(&mut state, &up(1, 1, 11, Ram));
    assert_eq!(create(&mut state, "a", 1), Err(Refused::TooFewServers { up: 1, known: 1 }));
    apply(&mut state, &up(2, 2, 12, Ram));
    apply(&mut state, &down(2, 2, false));
    assert_eq!(create(&mut state, "a", 1), Err(Refused::TooFewServers { up: 1, known: 2 }));
    apply(&mut state, &up(2, 2, 12, Ram));
    assert_eq!(create(&mut state, "a", 1), Ok(()));
    assert_eq!(state.volumes[&VolumeId(1)].size, 1 << 20, "rounded up");
    assert_eq!(create(&mut state, "a", 1), Err(Refused::Taken("a".into())));
    assert_eq!(create(&mut state, "a b", 1), Err(Refused::Name("a b".into())));
    assert_eq!(create(&mut state, "b", 0), Err(Refused::Empty));
    assert!(matches!(create(&mut state, "b", u64::MAX), Err(Refused::TooBig(_))));
    assert_eq!(create(&mut state, "b", base::MAX_VOLUME_BYTES), Ok(()));
    assert_eq!(state.groups.len(), 4, "the second volume uses the first one's groups");

    assert_eq!(
        controller::resize_volume_command(&state, "c", 1, &limits(), &|_| 0),
        Err(Refused::NotFound("c".into()))
    );
    let shrink = controller::resize_volume_command(&state, "b", 1, &limits(), &|_| 0);
    assert!(matches!(shrink, Err(Refused::Shrink { .. })));
    let grow = controller::resize_volume_command(&state, "a", 3 << 20, &limits(), &|_| 0).unwrap();
    assert_eq!(apply(&mut state, &grow), Outcome::Changed);
    assert_eq!(apply(&mut state, &grow), Outcome::Unchanged);
    let delete = controller::delete_volume_command(&state, "a", false, |_| Vec::new()).unwrap();
    assert_eq!(apply(&mut state, &delete), Outcome::Changed);
    assert!(matches!(apply(&mut state, &delete), Outcome::Refused(Refused::NotFound(_))));
    assert_eq!(create(&mut state, "a", 1), Ok(()));
    assert!(state.volumes.contains_key(&VolumeId(3)), "the id never comes back");
    assert_eq!(state.page_without_news().live, [2, 3]);
}

#[test]
fn lost_groups_are_formed_anew_when_no_volume_uses_them() {
    let mut state = pair(Ram);
    apply(&mut state, &down(2, 2, true));
    apply(&mut state, &down(1, 1, true));
    apply(&mut state, &up(1, 3, 21, Ram));
    apply(&mut state, &up(2, 4, 22, Ram));
    assert!(short(&state, 1).4 && short(&state, 2).4);
    // While they are in use, a new volume gets new groups.
    let command = common::create(&state, "w", 1, &limits()).unwrap();
    apply(&mut state, &command);
    assert!(state.volumes[&VolumeId(2)].slots.iter().all(|g| g.0 > 2));
    let before = short(&state, 1).0;
    let delete = controller::delete_volume_command(&state, "v", false, |_| Vec::new()).unwrap();
    apply(&mut state, &delete);
    assert_eq!(short(&state, 1), (before + 1, 1, vec![1, 2], vec![], false));
    // If they are lost while unused, they are formed again as soon as a replica is there.
    let mut state = pair(Ram);
    let delete = controller::delete_volume_command(&state, "v", false, |_| Vec::new()).unwrap();
    apply(&mut state, &delete);
    apply(&mut state, &down(2, 2, true));
    apply(&mut state, &down(1, 1, true));
    assert!(short(&state, 1).4);
    apply(&mut state, &up(2, 4, 22, Ram));
    assert_eq!(short(&state, 1), (4, 2, vec![2], vec![], false));
}

#[test]
fn commands_that_do_not_fit_change_nothing() {
    let mut state = pair(Durable);
    for command in [
        Command::FormCluster(FormCluster { cluster: 8 }),
        up(9, 9, 9, Durable),
        up(1, 0, 11, Durable),
        down(5, 1, true),
        admit(77, 1, 1),
        Command::DeviceUp(DeviceUp {
            device: 1,
            sds: 2,
            name: "sds2".into(),
            incarnation: 9,
            ..Default::default()
        }),
        Command::RegisterSdc(RegisterSdc {
            sdc: 4,
            name: "x".into(),
            incarnation: 9,
            ..Default::default()
        }),
    ] {
        assert_eq!(apply(&mut state, &command), Outcome::Unchanged, "{command:?}");
    }
    let volume = |groups, slots| {
        let name = "w".into();
        Command::CreateVolume(CreateVolume {
            volume: 2,
            name,
            size: 1 << 20,
            groups,
            slots,
            ..CreateVolume::default()
        })
    };
    for command in [
        volume(vec![], vec![]),
        volume(vec![], vec![9]),
        volume(vec![NewGroup { replicas: vec![1, 1] }], vec![3]),
        volume(vec![NewGroup { replicas: vec![1] }], vec![3]),
        volume(vec![NewGroup { replicas: vec![1, 7] }], vec![3]),
    ] {
        assert_eq!(apply(&mut state, &command), Outcome::Refused(Refused::Outdated), "{command:?}");
    }
}

#[test]
fn a_server_that_is_gone_with_its_devices_is_one_command_and_one_epoch() {
    let mut s = pair(DeviceKind::Ram);
    let Command::DeviceUp(c) = up(3, 3, 13, DeviceKind::Ram) else { unreachable!() };
    let twin = DeviceUp { sds: 1, name: "sds1".into(), shard: 1, ..c };
    apply(&mut s, &Command::DeviceUp(twin));
    apply(&mut s, &reshape(1, 1, &[2, 3, 1], 1));
    assert_eq!(short(&s, 1), (2, 2, vec![2, 1], vec![], false));
    let gone = |device, incarnation| DeviceDown { device, incarnation, dead: true };
    // The entry of the second device names another incarnation.
    let list = vec![gone(1, 1), gone(3, 2)];
    apply(&mut s.clone(), &Command::DevicesDown(DevicesDown { list }));
    let list = vec![gone(1, 1), gone(3, 3)];
    apply(&mut s, &Command::DevicesDown(DevicesDown { list }));
    assert_eq!(short(&s, 1), (3, 2, vec![2], vec![], false));
    assert!(!s.is_up(DeviceId(1)) && !s.is_up(DeviceId(3)));
}
