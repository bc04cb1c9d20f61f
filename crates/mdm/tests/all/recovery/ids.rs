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
    let mapping = control::MappingInfo { sdcs: grants, all: None, hosts: None };
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

/// Returns the report of a server that has the whole map of this MDM, and data of volume 1.
fn with_map_of(state: &State) -> DeviceReport {
    let pages = state.pages_since(base::MapVersion(0));
    let last = pages.last().expect("there is always one").clone();
    let said = |config: &GroupInfo| GroupReport {
        group: config.id,
        acted: config.epoch,
        base: config.epoch,
        config: Some(config.clone()),
        joiner: false,
    };
    let mut report = took_part(&[(1, 1), (2, 1)]);
    assert!(report.add(Report {
        version: last.version,
        told: last.version,
        next_volume: last.next_volume,
        unknown: last.unknown,
        groups: pages.iter().flat_map(|p| &p.groups).map(said).collect(),
        volumes: pages.iter().flat_map(|p| p.volumes.clone()).collect(),
        held: vec![1],
        ..Report::default()
    }));
    report
}

/// Returns a recovery that begins with a backup without any volume. No server has a map, and two
/// have data of volume 1.
fn without_the_volume() -> State {
    let mut older = State::new();
    apply(&mut older, &Command::FormCluster(mdm::command::FormCluster { cluster: 7 }));
    apply(&mut older, &up(1, 1, 11, Durable));
    apply(&mut older, &up(2, 2, 12, Durable));
    with_recovery(older)
}

/// A second recovery from the same backup ends before the server with the first one's volume has
/// reported.
#[test]
fn two_recoveries_from_one_backup_give_other_ids_to_volumes_and_groups() {
    let mut ids: Vec<(VolumeId, GroupId)> = Vec::new();
    for at in [6000, 6001, 7000] {
        let mut state = pair(Durable);
        let me = Member { name: "m".into(), address: "10.0.0.9:1".into(), tie_breaker: false };
        state.recover(&state.clone(), 1, me, "me@here", at);
        register_all(&mut state);
        finish(&mut state);
        let id = make_volume(&mut state, "w");
        let is_other = |(volume, group): &(VolumeId, GroupId)| {
            state.recovery.is_unknown(*volume) && !state.groups.contains_key(group)
        };
        assert!(ids.iter().filter(|(other, _)| *other < id).all(is_other), "at {at}");
        assert!(ids.iter().all(|(other, _)| *other != id), "at {at}");
        ids.push((id, state.volumes[&id].slots[0]));
    }
}

/// Restores this newer backup a minute later. The servers have this map of the first recovery.
fn recovered_again(mut newer: State, map: &State) -> State {
    let me = Member { name: "m".into(), address: "10.0.0.9:1".into(), tie_breaker: false };
    newer.recover(&newer.clone(), 1, me, "me@here", 6060);
    let report = with_map_of(map);
    settle(&mut newer, &reports(vec![(1, report.clone()), (2, report)]), false);
    newer
}

fn make_volume(state: &mut State, name: &str) -> VolumeId {
    let id = state.next_volume;
    let command = create(state, name, 1 << 20, &limits()).unwrap();
    assert_eq!(apply(state, &command), Outcome::Changed);
    id
}

/// The first recovery begins with an old backup, and does not know the volume, whose data its
/// servers keep. Then a newer backup is restored that has the volume.
#[test]
fn a_newer_backup_keeps_a_volume_that_an_earlier_recovery_did_not_know() {
    let mut first = without_the_volume();
    let held = took_part(&[(1, 1), (2, 1)]);
    settle(&mut first, &reports(vec![(1, held.clone()), (2, held)]), false);
    finish(&mut first);
    assert!(!is_gone(&first, 1));
    let second = recovered_again(pair(Durable), &first);
    assert!(second.volumes.contains_key(&VolumeId(1)) && !is_gone(&second, 1));
    assert!(!second.recovery.open);
    // The operator of the first recovery deleted it, by its number.
    let mut forgot = first.clone();
    let order = RecoverMdm { delete: vec![1], by: "me@here".into(), ..RecoverMdm::default() };
    let order = forgot.forget_command(&order).unwrap();
    assert_eq!(forgot.apply(forgot.index + 1, &order), Outcome::Changed);
    let second = recovered_again(pair(Durable), &forgot);
    assert!(!second.volumes.contains_key(&VolumeId(1)) && is_gone(&second, 1));
}

/// The first recovery took the volume over from a server's map.
#[test]
fn a_volume_that_was_deleted_after_an_earlier_recovery_stays_deleted() {
    let mut first = without_the_volume();
    let report = with_map_of(&pair(Durable));
    settle(&mut first, &reports(vec![(1, report.clone()), (2, report)]), false);
    assert!(first.volumes.contains_key(&VolumeId(1)) && !first.recovery.open);
    let delete = Command::DeleteVolume(DeleteVolume { volume: 1 });
    let mut deleted = first.clone();
    assert_eq!(apply(&mut deleted, &delete), Outcome::Changed);
    // Somebody made another one under its name.
    let anew = make_volume(&mut deleted, "v");
    let second = recovered_again(pair(Durable), &deleted);
    assert!(!second.volumes.contains_key(&VolumeId(1)) && is_gone(&second, 1));
    assert_eq!(second.volumes[&anew].name, "v");
    assert!(!second.recovery.open);
}

/// The lost MDMs deleted the volume, and a user made another one with its name. Only servers' maps
/// tell that. The first recovery begins with an old backup, the second one with a newer backup,
/// which still has the deleted volume.
#[test]
fn a_first_recovery_keeps_what_maps_tell_of_deleted_volumes() {
    let mut lost = pair(Durable);
    let delete = Command::DeleteVolume(DeleteVolume { volume: 1 });
    assert_eq!(apply(&mut lost, &delete), Outcome::Changed);
    let (anew, other) = (make_volume(&mut lost, "v"), make_volume(&mut lost, "w"));
    let mut first = without_the_volume();
    let report = with_map_of(&lost);
    settle(&mut first, &reports(vec![(1, report.clone()), (2, report)]), false);
    assert!(!first.recovery.open && is_gone(&first, 1) && !is_gone(&first, other.0 + 1));
    assert_eq!(first.recovery.unknown.len(), 1, "{:?}", first.recovery.unknown);
    assert_eq!(State::from_bytes(&first.to_bytes()), Ok(first.clone()));
    let second = recovered_again(pair(Durable), &first);
    let names: Vec<_> = second.volumes.iter().map(|(id, v)| (*id, v.name.as_str())).collect();
    assert_eq!((names, second.recovery.open), (vec![(anew, "v"), (other, "w")], false));
}

/// dev1's map is from before a recovery that brought the volume back. dev2's map is of that
/// recovery, and has the volume. Now an older backup is restored.
#[test]
fn a_deletion_counts_only_if_no_newer_map_has_the_volume() {
    let mut deleted = pair(Durable);
    let delete = Command::DeleteVolume(DeleteVolume { volume: 1 });
    assert_eq!(apply(&mut deleted, &delete), Outcome::Changed);
    let mut back = with_recovery(pair(Durable));
    finish(&mut back);
    assert!(back.volumes.contains_key(&VolumeId(1)) && back.version > deleted.version);
    let (older, newer) = (with_map_of(&deleted), with_map_of(&back));
    for (mut state, there) in [(without_the_volume(), false), (recovered(Durable), true)] {
        let me = Member { name: "m".into(), address: "10.0.0.9:1".into(), tie_breaker: false };
        let backup = match there {
            true => pair(Durable),
            false => state.clone(),
        };
        state = backup;
        state.recover(&state.clone(), 1, me, "me@here", 6060);
        register_all(&mut state);
        let first = reports(vec![(1, older.clone())]);
        while let Some(command) = plan(&state, &first, false) {
            assert_eq!(state.apply(state.index + 1, &command), Outcome::Changed);
        }
        assert!(state.recovery.open && state.recovery.is_unknown(VolumeId(1)));
        settle(&mut state, &reports(vec![(1, older.clone()), (2, newer.clone())]), false);
        assert!(state.volumes.contains_key(&VolumeId(1)), "in the backup: {there}");
        assert!(!is_gone(&state, 1) && !state.recovery.open);
    }
}

/// The first recovery from a backup skipped more ids than the second one. Its devices come back
/// after the second one is over, in either order.
#[test]
fn devices_of_an_earlier_recovery_come_back_in_any_order() {
    let recovered_at = |at: u64| {
        let mut state = pair(Durable);
        let me = Member { name: "m".into(), address: "10.0.0.9:1".into(), tie_breaker: false };
        state.recover(&state.clone(), 1, me, "me@here", at);
        register_all(&mut state);
        finish(&mut state);
        state
    };
    let (first, second) = (recovered_at(62), recovered_at(64));
    let old = first.next_device().0;
    assert!(old > second.next_device().0 + 1000);
    for ids in [[old, old + 1], [old + 1, old]] {
        let mut state = second.clone();
        for id in ids {
            let life = control::Register {
                nonce: u64::from(id),
                store: u64::from(id),
                ..life(id, &format!("late{id}"), 41)
            };
            let Registration::New(got, command) = state.register(&life, false, None) else {
                panic!("dev{id} is not let in")
            };
            assert_eq!((got.0, state.apply(state.index + 1, &command)), (id, Outcome::Changed));
            state.check().unwrap();
        }
        assert!(state.next_device().0 > old + 1000, "none of these ids is given again");
        let far = state.next_device().0 + (1 << 20);
        let life = control::Register { nonce: 9, store: 9, ..life(far, "far", 41) };
        assert!(!matches!(state.register(&life, false, None), Registration::New(..)));
    }
}

fn rename(state: &mut State, id: VolumeId, name: &str) {
    let kind = ObjectKind::Volume as i32;
    let rename = mdm::command::Rename { kind, id: id.0, name: name.into() };
    assert_eq!(apply(state, &Command::Rename(rename)), Outcome::Changed);
}

/// After a recovery that did not know the volume, a user made another one with its name.
#[test]
fn of_two_volumes_with_one_name_the_one_of_the_map_is_renamed() {
    let long = "n123456789012345678901234567890";
    let cases: [(&str, &[&str], &[&str], &str); 4] = [
        ("v", &[], &[], "v-3670017"),
        (long, &[], &[], "n1234567890123456789012-3670017"),
        ("a", &["a-3670017"], &["a-2-3670017", "other"], "a-3-3670017"),
        ("b", &["other"], &["b-3670017"], "b-2-3670017"),
    ];
    for (name, of_map, of_backup, renamed) in cases {
        let mut first = without_the_volume();
        finish(&mut first);
        let anew = make_volume(&mut first, name);
        assert_eq!(anew.0, 3670017);
        of_map.iter().for_each(|name| _ = make_volume(&mut first, name));
        let mut newer = pair(Durable);
        if name != "v" {
            rename(&mut newer, VolumeId(1), name);
        }
        of_backup.iter().for_each(|name| _ = make_volume(&mut newer, name));
        let second = recovered_again(newer.clone(), &first);
        let names = |of: &State| of.volumes.values().map(|v| v.name.clone()).collect::<Vec<_>>();
        let mut all = [names(&newer), vec![renamed.into()], names(&first)[1..].to_vec()].concat();
        // Ids in their order: those of the backup, then those of the map.
        assert_eq!(names(&second), all, "{name}");
        assert!(all.iter().all(|name| mdm::refused::check_name(name).is_ok()));
        assert!(!second.recovery.open, "{name}");
        // The operator deletes the older one, and renames the other one.
        let mut free = second;
        apply(&mut free, &Command::DeleteVolume(DeleteVolume { volume: 1 }));
        rename(&mut free, anew, name);
        all.remove(0);
        all[of_backup.len()] = name.into();
        assert_eq!(names(&free), all, "{name}");
    }
}

/// The lost MDMs renamed both volumes, by means of a third name.
#[test]
fn volumes_that_exchanged_their_names_are_both_taken_over() {
    let mut before = pair(Durable);
    let other = make_volume(&mut before, "w");
    let mut lost = before.clone();
    for (id, name) in [(1, "x"), (other.0, "v"), (1, "w")] {
        rename(&mut lost, VolumeId(id), name);
    }
    let mut state = with_recovery(before);
    let report = with_map_of(&lost);
    settle(&mut state, &reports(vec![(1, report.clone()), (2, report)]), false);
    let names: Vec<&str> = state.volumes.values().map(|v| v.name.as_str()).collect();
    assert_eq!((names, state.recovery.open), (vec!["w", "v"], false));
}

/// Servers do not delete a volume because of the map of another server. So a map that comes from
/// servers may have the volume and another one that was made with its name afterwards.
#[test]
fn two_volumes_of_one_map_with_one_name_are_both_taken_over() {
    let mut lost = pair(Durable);
    lost.volumes.get_mut(&VolumeId(1)).unwrap().name = "w".into();
    let anew = make_volume(&mut lost, "v");
    lost.volumes.get_mut(&VolumeId(1)).unwrap().name = "v".into();
    let mut state = without_the_volume();
    let report = with_map_of(&lost);
    settle(&mut state, &reports(vec![(1, report.clone()), (2, report)]), false);
    let names: Vec<&str> = state.volumes.values().map(|v| v.name.as_str()).collect();
    assert_eq!((names, state.recovery.open), (vec!["v", "v-2"], false));
    // A map that comes from an MDM shows that the first one was deleted.
    let mut state = without_the_volume();
    let report = with_map_of(&lost);
    let mut known = lost.clone();
    known.volumes.remove(&VolumeId(1));
    known.version.0 += 1;
    let both = reports(vec![(1, report.clone()), (2, report.clone())]);
    while state.volumes.len() < 2 {
        let command = plan(&state, &both, true).expect("there are volumes");
        assert_eq!(state.apply(state.index + 1, &command), Outcome::Changed);
        state.check().unwrap();
    }
    settle(&mut state, &reports(vec![(1, report), (2, with_map_of(&known))]), false);
    let names: Vec<_> = state.volumes.iter().map(|(id, v)| (*id, v.name.as_str())).collect();
    assert_eq!((names, state.recovery.open), (vec![(anew, "v")], false));
}
