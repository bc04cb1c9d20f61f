//! Ids that lost MDMs have given away are never given to another device or client, also when one
//! backup is restored twice.

use super::*;
use base::SdcId;
use mdm::command::DropObject;
use mdm::controller::Registration;
use wire::control::{ObjectKind, RegisterSdc};

/// Registers a device of a new server, and returns its id.
fn id_of_new(state: &mut State) -> Option<DeviceId> {
    let new = control::Register { store: 55, nonce: 55, ..life(0, "new", 0) };
    match state.register(&new, false, None) {
        Registration::New(id, command) => {
            assert_eq!(state.apply(state.index + 1, &command), Outcome::Changed);
            Some(id)
        }
        Registration::Bad(_) => None,
        other => panic!("{other:?}"),
    }
}

fn client(state: &mut State, name: &str, id: u32) -> Option<SdcId> {
    let life = if id > 0 { 41 } else { 0 };
    let m = RegisterSdc {
        name: name.into(),
        nonce: 56,
        id,
        incarnation: life,
        ..RegisterSdc::default()
    };
    match state.register_sdc(&m, false) {
        Registration::New(id, command) => {
            assert_eq!(state.apply(state.index + 1, &command), Outcome::Changed);
            Some(id)
        }
        Registration::Bad(_) => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_device_from_after_an_earlier_restore_of_the_same_backup_keeps_its_id() {
    let mut first = recovered(Durable);
    settle(&mut first, &reports(vec![(1, report(1, 1, None)), (2, report(1, 1, None))]), false);
    let old = id_of_new(&mut first).expect("the recovery is over");
    // The same backup is restored again. New devices wait: the ids that were given away are not
    // known yet.
    let mut state = recovered(Durable);
    assert_eq!(id_of_new(&mut state), None);
    let alone = moved(JUMP + 2, &[1, old.0]);
    let mut told = reports(vec![
        (1, running(report(JUMP + 2, JUMP + 2, Some(alone)))),
        (2, running(report(1, 1, None))),
    ]);
    settle(&mut state, &told, false);
    assert_eq!((state.recovery.open, waits_for(&state, &told)), (true, vec![old.0]));
    assert_eq!(State::from_bytes(&state.to_bytes()), Ok(state.clone()));
    // After the end new devices get other ids: `old` is known to be given away.
    let mut late = state.clone();
    finish(&mut late);
    assert!(id_of_new(&mut late).is_some_and(|id| id > old));
    for mut state in [state, late] {
        let Registration::New(id, command) = state.register(&life(old.0, "sds9", 41), false, None)
        else {
            panic!("it is not let in")
        };
        assert_eq!((id, state.apply(state.index + 1, &command)), (old, Outcome::Changed));
        told.insert(old, running(report(JUMP + 2, JUMP + 2, None)));
        settle(&mut state, &told, false);
        assert_eq!(group(&state, 1).in_sync, [DeviceId(1), old]);
        assert!(!state.recovery.open);
    }
}

#[test]
fn a_device_that_no_map_names_keeps_its_id_after_a_second_restore() {
    let mut state = recovered(Durable);
    let old = state.next_device();
    let Registration::New(id, command) = state.register(&life(old.0, "sds9", 41), false, None)
    else {
        panic!("no map names it, and it has its id")
    };
    assert_eq!((id, state.apply(state.index + 1, &command)), (old, Outcome::Changed));
    let mut told = reports(vec![(1, report(1, 1, None)), (2, report(1, 1, None))]);
    told.insert(old, DeviceReport::default());
    settle(&mut state, &told, false);
    assert!(!state.recovery.open);
    // A device that got an id at the same time comes later.
    let late = state.register(&life(old.0 + 1, "sds10", 42), false, None);
    assert!(matches!(late, Registration::New(id, _) if id.0 == old.0 + 1), "{late:?}");
    assert!(id_of_new(&mut state).is_some_and(|id| id.0 > old.0 + 1));
}

#[test]
fn a_mapping_made_after_an_earlier_restore_is_not_given_to_another_client() {
    let mut first = recovered(Durable);
    settle(&mut first, &reports(vec![(1, report(1, 1, None)), (2, report(1, 1, None))]), false);
    let old = client(&mut first, "one", 0).expect("the recovery is over");
    let mut state = recovered(Durable);
    assert_eq!(client(&mut state, "two", 0), None, "whose ids are whose is not known yet");
    let grants = vec![control::GrantInfo { sdc: old.0, access: 1, generation: 1, since: None }];
    let mapping = control::MappingInfo { sdcs: grants, all: None };
    let volume = mdm::publish::volume_info(VolumeId(1), &state.volumes[&VolumeId(1)]);
    let volume = VolumeInfo { mapping: Some(mapping), ..volume };
    let version = state.version.0 + 5;
    let mut one = report(1, 1, None);
    let volumes = vec![volume];
    let part = Report { version, told: version, next_volume: 2, volumes, ..Report::default() };
    assert!(one.add(part));
    settle(&mut state, &reports(vec![(1, one), (2, report(1, 1, None))]), false);
    assert!(!state.recovery.open);
    let may: Vec<_> = state.volumes[&VolumeId(1)].mapping.clients().map(|(id, _)| id).collect();
    assert_eq!(may, [old]);
    assert!(client(&mut state, "two", 0).is_some_and(|id| id > old));
    assert_eq!(client(&mut state, "one", old.0), Some(old));
}

/// Registers a client and removes it. Returns its id.
fn pass(state: &mut State, name: &str) -> u32 {
    let id = client(state, name, 0).expect("no recovery is open");
    let remove = DropObject { kind: ObjectKind::Sdc as i32, id: id.0 };
    assert_eq!(apply(state, &Command::DropObject(remove)), Outcome::Changed);
    id.0
}

#[test]
fn the_memory_of_removed_clients_is_bounded() {
    let mut state = recovered(Durable);
    let told = reports(vec![(1, report(1, 1, None)), (2, report(1, 1, None))]);
    let mut long = 0;
    for round in 0..4 {
        settle(&mut state, &told, false);
        let first = pass(&mut state, "c");
        let before = state.to_bytes().len();
        let last = (0..300).map(|_| pass(&mut state, "c")).last().unwrap();
        long = state.to_bytes().len();
        assert!(long < before + 100, "{long} bytes, {before} before");
        assert_eq!(State::from_bytes(&state.to_bytes()), Ok(state.clone()));
        state = with_recovery(state);
        // These ids are used up, also after a recovery. Later ones may have been given away.
        let is_over = |id| {
            let m = RegisterSdc { name: "d".into(), nonce: 57, id, ..RegisterSdc::default() };
            matches!(state.register_sdc(&m, false), Registration::Superseded(_))
        };
        assert!(is_over(first) && is_over(last) && !is_over(last + 1), "round {round}");
    }
    assert!(long < State::from_bytes(&pair(Durable).to_bytes()).unwrap().to_bytes().len() + 1000);
}

#[test]
fn a_client_that_the_lost_mdms_removed_stays_removed_and_others_remain() {
    let mut state = recovered(Durable);
    settle(&mut state, &reports(vec![(1, report(1, 1, None)), (2, report(1, 1, None))]), false);
    for id in [5, 7, 6] {
        assert_eq!(client(&mut state, "c", id), Some(SdcId(id)));
        let remove = DropObject { kind: ObjectKind::Sdc as i32, id };
        assert_eq!(apply(&mut state, &Command::DropObject(remove)), Outcome::Changed);
    }
    let state = State::from_bytes(&state.to_bytes()).unwrap();
    let mut other = with_recovery(state.clone());
    for id in [5, 6, 7] {
        let m = RegisterSdc { name: "c".into(), nonce: 57, id, ..RegisterSdc::default() };
        for state in [&state, &other] {
            let came = state.register_sdc(&m, false);
            assert!(matches!(came, Registration::Superseded(_)), "{id}: {came:?}");
        }
    }
    assert_eq!(client(&mut state.clone(), "c", 4), Some(SdcId(4)));
    assert_eq!(client(&mut other, "c", 8), Some(SdcId(8)));
}
