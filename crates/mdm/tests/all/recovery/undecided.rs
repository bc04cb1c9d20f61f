//! The survivor's log ends with an entry that may not be decided. The lost MDMs may have decided
//! another entry in its place.

use super::*;
use base::SdcId;
use mdm::command::{CreateVolume, DropObject, Intend, MapVolume, NewGroup, PutObject, RegisterSdc};
use mdm::controller::Registration::{Known, New, Superseded};
use wire::control::{GrantInfo, Intent, MappingInfo, ObjectKind};

/// Returns the state with this undecided entry, after its recovery.
fn with_entry(decided: &State, commands: &[Command]) -> State {
    let mut newer = decided.clone();
    for command in commands {
        assert_eq!(newer.apply(newer.index + 1, command), Outcome::Changed, "{command:?}");
    }
    with_recovery_of(decided, newer)
}

#[test]
fn new_devices_come_with_the_ids_that_were_decided() {
    let decided = pair(Durable);
    let entry = [up(3, 3, 13, Durable), up(4, 4, 14, Durable)];
    let mut state = with_entry(&decided, &entry);
    // The lost MDMs decided the ids the other way round.
    let four = control::Register { store: 13, nonce: 3, ..life(4, "sds3", 4) };
    let three = control::Register { store: 14, nonce: 4, ..life(3, "sds4", 3) };
    for (id, process) in [(4, four), (3, three)] {
        let New(device, up) = state.register(&process, false, None) else {
            panic!("dev{id}: {:?}", state.register(&process, false, None))
        };
        assert_eq!((device, state.apply(state.index + 1, &up)), (DeviceId(id), Outcome::Changed));
        state.check().unwrap();
    }
}

#[test]
fn a_process_keeps_the_committed_incarnation_even_if_it_is_an_earlier_one() {
    let mut decided = pair(Durable);
    decided.next_incarnation = base::Incarnation(8);
    let mut state = with_entry(&decided, &[up(1, 9, 11, Durable)]);
    let process = control::Register { nonce: 9, store: 11, ..life(1, "sds1", 8) };
    let New(DeviceId(1), up) = state.register(&process, false, None) else {
        panic!("{:?}", state.register(&process, false, None))
    };
    assert_eq!(state.apply(state.index + 1, &up), Outcome::Changed);
    assert_eq!(state.devices[&DeviceId(1)].incarnation.0, 8);
    assert_eq!(state.register(&process, false, None), Known(DeviceId(1)));
}

/// One of two processes was superseded before the loss. Their decided incarnations tell which one.
#[test]
fn an_uncommitted_incarnation_supersedes_no_process() {
    let decided = pair(Durable);
    let entry = [up(1, 4, 11, Durable), up(2, 3, 12, Durable)];
    let mut state = with_entry(&decided, &entry);
    let one = control::Register { nonce: 4, store: 11, ..life(1, "sds1", 3) };
    let New(_, up) = state.register(&one, false, None) else { panic!("it is not taken in") };
    assert_eq!(state.apply(state.index + 1, &up), Outcome::Changed);
    let older = control::Register { nonce: 5, store: 11, ..life(1, "sds1", 2) };
    assert!(matches!(state.register(&older, false, None), Superseded(_)));
}

fn create(volume: u32, name: &str, groups: &[&[u32]], slots: &[u32], sdc: Option<u32>) -> Command {
    let groups = groups.iter().map(|g| NewGroup { replicas: g.to_vec() }).collect();
    let grant = |sdc| GrantInfo { sdc, access: 1, generation: 0, since: None };
    let mapping = sdc.map(|sdc| MappingInfo { all: None, sdcs: vec![grant(sdc)], hosts: None });
    let (name, slots) = (name.into(), slots.to_vec());
    Command::CreateVolume(CreateVolume {
        volume,
        name,
        size: 1 << 20,
        groups,
        slots,
        mapping,
        ..CreateVolume::default()
    })
}

fn client(sdc: u32, name: &str) -> Command {
    let (incarnation, nonce) = (10, 10);
    let new = RegisterSdc { sdc, name: name.into(), incarnation, nonce, ..Default::default() };
    Command::RegisterSdc(new)
}

#[test]
fn a_volume_on_devices_that_may_not_be_decided_is_unknown_until_a_map_has_it() {
    let decided = pair(Durable);
    let entry = [
        up(3, 3, 13, Durable),
        create(2, "old", &[&[1, 2]], &[3], None),
        create(3, "new", &[&[2, 3]], &[4], None),
    ];
    let mut state = with_entry(&decided, &entry);
    let names = |state: &State| state.volumes.values().map(|v| v.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&state), ["v", "old"], "its groups are on devices that are known");
    assert!(state.recovery.is_unknown(VolumeId(3)) && !state.recovery.is_unknown(VolumeId(2)));
    assert!(!state.groups.contains_key(&GroupId(4)));
    // The entry was decided, and a server has a map of it.
    let mut newer = decided.clone();
    entry.iter().for_each(|c| drop(newer.apply(newer.index + 1, c)));
    let version = newer.version.0;
    let infos = newer.volumes.iter().map(|(id, v)| mdm::publish::volume_info(*id, v));
    let mut two = report(1, 1, None);
    let made = GroupInfo { id: 4, ..moved(1, &[2, 3]) };
    let groups = vec![GroupReport { group: 4, config: Some(made), ..Default::default() }];
    let volumes = infos.collect();
    let part =
        Report { version, told: version, next_volume: 4, volumes, groups, ..Report::default() };
    assert!(two.add(part));
    let New(DeviceId(3), up) = state.register(&life(3, "sds3", 3), false, None) else {
        panic!("it is not taken in")
    };
    assert_eq!(state.apply(state.index + 1, &up), Outcome::Changed);
    let told = reports(vec![(1, report(1, 1, None)), (2, two), (3, DeviceReport::default())]);
    settle(&mut state, &told, false);
    assert_eq!(names(&state), ["v", "old", "new"]);
}

#[test]
fn an_uncommitted_client_id_gives_no_permission() {
    let mut decided = pair(Durable);
    apply(&mut decided, &client(1, "one"));
    let grants = [1, 2].map(|sdc| GrantInfo { sdc, access: 1, generation: 0, since: None });
    let mapping = Some(MappingInfo { all: None, sdcs: grants.to_vec(), hosts: None });
    let entry = [client(2, "two"), Command::MapVolume(MapVolume { volume: 1, mapping })];
    let mut state = with_entry(&decided, &entry);
    let may = |state: &State| {
        let mapping = &state.volumes[&VolumeId(1)].mapping;
        mapping.clients().map(|(id, _)| id.0).collect::<Vec<_>>()
    };
    assert_eq!(may(&state), [1], "the id may be that of another client");
    let process = |name: &str, incarnation: u64| control::RegisterSdc {
        name: name.into(),
        nonce: 3,
        id: 2,
        incarnation,
        ..control::RegisterSdc::default()
    };
    let other = state.register_sdc(&process("other", 9), false);
    assert!(matches!(other, New(SdcId(2), _)), "it was decided otherwise: {other:?}");
    // The entry was decided, and a server has a map of it.
    let mut newer = decided.clone();
    entry.iter().for_each(|c| drop(newer.apply(newer.index + 1, c)));
    let version = newer.version.0;
    let volumes = newer.volumes.iter().map(|(id, v)| mdm::publish::volume_info(*id, v)).collect();
    let mut one = report(1, 1, None);
    let part = Report { version, told: version, next_volume: 2, volumes, ..Report::default() };
    assert!(one.add(part));
    settle(&mut state, &reports(vec![(1, one), (2, report(1, 1, None))]), false);
    assert_eq!(may(&state), [1, 2]);
}

#[test]
fn a_device_and_a_pool_whose_removal_may_be_uncommitted_exist() {
    let mut decided = pair(Durable);
    let kind = ObjectKind::Pool as i32;
    let pool = PutObject { kind, id: 2, name: "fast".into(), domain: 1, ..PutObject::default() };
    apply(&mut decided, &Command::PutObject(pool));
    let Command::DeviceUp(third) = up(3, 3, 13, Durable) else { unreachable!() };
    apply(&mut decided, &Command::DeviceUp(mdm::command::DeviceUp { pool: 2, ..third }));
    let intend = |intent: Intent| Intend { devices: vec![3], intent: intent as i32 };
    apply(&mut decided, &Command::Intend(intend(Intent::Remove)));
    let entry =
        [Command::Intend(intend(Intent::Removed)), Command::DropObject(DropObject { kind, id: 2 })];
    let state = with_entry(&decided, &entry);
    assert_eq!(state.devices[&DeviceId(3)].intent, Intent::Remove);
}
