//! Recoveries: which replicas have every acknowledged write, by the reports of the servers.

mod gone;
mod ids;
mod late;
mod replaced;
mod reservations;
mod strangers;
mod undecided;

use crate::common::*;
use base::{DeviceId, Epoch, GroupId, VolumeId};
use mdm::command::{Command, DeleteVolume};
use mdm::group::{Doubt, Group};
use mdm::members::Member;
use mdm::recovery::{DeviceReport, DeviceReports, JUMP, close, plan};
use mdm::{Outcome, State};
use wire::control::DeviceKind::{Durable, Ram};
use wire::control::StoreInfo;
use wire::control::{self, DeviceKind, GroupInfo, GroupReport, RecoverMdm, Report, VolumeInfo};

fn recovered(kind: DeviceKind) -> State {
    with_recovery(pair(kind))
}

fn with_recovery(state: State) -> State {
    with_recovery_of(&state.clone(), state)
}

/// Recovers a state of which `decided` is the part that certainly was decided.
fn with_recovery_of(decided: &State, mut state: State) -> State {
    let me = Member { name: "m".into(), address: "10.0.0.9:1".into(), tie_breaker: false };
    state.recover(decided, 1, me, "me@here", 6000);
    register_all(&mut state);
    state
}

/// Returns group 1 as a server's map has it.
fn config(epoch: u64, in_sync: &[u32]) -> GroupInfo {
    let replicas = vec![1, 2];
    let primary = in_sync.first().copied().unwrap_or(0);
    GroupInfo { id: 1, epoch, primary, replicas, in_sync: in_sync.to_vec(), ..GroupInfo::default() }
}

/// Returns a device's report about group 1; of group 2 it knows nothing new.
fn report(acted: u64, base: u64, config: Option<GroupInfo>) -> DeviceReport {
    let mut report = DeviceReport::default();
    let groups = vec![GroupReport { group: 1, acted, base, config, joiner: false }];
    assert!(report.add(Report { groups, ..Report::default() }));
    report
}

/// Returns the report of a device that was a joiner in its last epoch.
fn joiner(acted: u64, base: u64) -> DeviceReport {
    let mut report = DeviceReport::default();
    let groups = vec![GroupReport { group: 1, acted, base, joiner: true, ..Default::default() }];
    assert!(report.add(Report { groups, ..Report::default() }));
    report
}

/// Carries out everything that follows from the reports.
fn settle(state: &mut State, reports: &DeviceReports, patient: bool) {
    for _ in 0..20 {
        let Some(command) = plan(state, reports, patient) else { return };
        assert_eq!(state.apply(state.index + 1, &command), Outcome::Changed, "{command:?}");
        state.check().unwrap();
    }
    panic!("a plan without end");
}

fn reports(list: Vec<(u32, DeviceReport)>) -> DeviceReports {
    list.into_iter().map(|(id, w)| (DeviceId(id), w)).collect()
}

fn group(state: &State, id: u32) -> &Group {
    &state.groups[&GroupId(id)]
}

fn life(device: u32, sds: &str, incarnation: u64) -> control::Register {
    control::Register {
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
    }
}

/// Ends the recovery by an operator's order.
fn finish(state: &mut State) {
    let end = Command::Reconcile(mdm::command::Reconcile { close: true, ..Default::default() });
    state.apply(state.index + 1, &end);
    assert!(!state.recovery.open);
}

/// Returns another configuration of group 1: these replicas, all in sync.
fn moved(epoch: u64, replicas: &[u32]) -> GroupInfo {
    GroupInfo { replicas: replicas.to_vec(), ..config(epoch, replicas) }
}

/// Returns the report of a process that has had a map all the time.
fn running(mut report: DeviceReport) -> DeviceReport {
    assert!(report.add(Report { version: 1, next_volume: 2, ..Report::default() }));
    report
}

fn strange(state: &State, reports: &DeviceReports) -> Vec<u32> {
    state.recovery_status(reports, false).unwrap().strange
}

fn waits_for(state: &State, reports: &DeviceReports) -> Vec<u32> {
    state.recovery_status(reports, false).unwrap().waits_for
}

#[test]
// Long: a table of cases, each with its reports and results.
fn only_evidence_shows_which_replica_has_everything() {
    let known = |list: &[u32]| Some(list.iter().map(|d| DeviceId(*d)).collect::<Vec<_>>());
    // Group 1 is in epoch 1 with both replicas in sync. Each case has the reports of both devices,
    // and the replicas in sync then: without an order, and after an operator ended the recovery.
    let cases = [
        (
            "nobody went on",
            Some(report(1, 1, None)),
            Some(report(1, 1, None)),
            known(&[1, 2]),
            known(&[1, 2]),
        ),
        ("one has not said anything", Some(report(1, 1, None)), None, None, None),
        (
            "a map knows that dev1 went on alone, and dev2 is silent",
            Some(report(2, 1, Some(config(2, &[1])))),
            None,
            None,
            known(&[1]),
        ),
        (
            "a map knows that dev1 went on alone",
            Some(report(2, 1, Some(config(2, &[1])))),
            Some(report(1, 1, None)),
            known(&[1]),
            known(&[1]),
        ),
        (
            "a map knows that dev2 went on alone, and dev1 took part later: as who, nobody knows",
            Some(report(3, 1, None)),
            Some(report(2, 1, Some(config(2, &[2])))),
            None,
            None,
        ),
        (
            "both were sealed later",
            Some(report(4, 4, None)),
            Some(report(4, 4, None)),
            known(&[1, 2]),
            known(&[1, 2]),
        ),
        (
            "dev2 was sealed last, with whom?",
            Some(report(3, 3, None)),
            Some(report(4, 4, None)),
            None,
            known(&[2]),
        ),
        (
            "dev2 was a joiner, and may have missed what dev1 acknowledged after its seal",
            Some(report(4, 2, None)),
            Some(joiner(4, 4)),
            None,
            None,
        ),
        (
            "dev1 took part later, in which part nobody knows",
            Some(report(4, 2, None)),
            Some(report(2, 2, None)),
            None,
            None,
        ),
        (
            "both took part, nobody was sealed",
            Some(report(4, 2, None)),
            Some(report(4, 2, None)),
            None,
            None,
        ),
    ];
    for (name, one, two, alone, ordered) in cases {
        let mut state = recovered(Durable);
        let told = [(1, one), (2, two)].into_iter().filter_map(|(id, w)| Some((id, w?)));
        let told = reports(told.collect());
        let found = |state: &State| {
            let g = group(state, 1);
            assert!(g.doubt == Doubt::None || g.primary.is_none(), "{name}: nobody leads in doubt");
            if g.doubt == Doubt::None {
                assert!(g.epoch.0 > JUMP && g.primary.is_some(), "{name}: {g:?}");
            }
            (g.doubt == Doubt::None).then(|| g.in_sync.clone())
        };
        settle(&mut state, &told, true);
        assert_eq!(found(&state), None, "{name}: somebody may come of whom nobody knows");
        assert!(state.recovery.open, "{name}");
        settle(&mut state, &told, false);
        assert_eq!(found(&state), alone, "{name}");
        let all_known = state.groups.values().all(|g| g.doubt == Doubt::None);
        assert!(!all_known || !state.recovery.open, "{name}: it is over when all is known");
        state.apply(state.index + 1, &close(&state, &told, false));
        assert!(!state.recovery.open);
        assert_eq!(found(&state), ordered, "{name}: after an order");
    }
}

#[test]
fn a_loss_that_was_accepted_since_is_not_undone() {
    // dev1 has all of group 1; its server was dead. The operator accepted an older copy on dev3.
    let mut state = pair(Durable);
    apply(&mut state, &up(3, 3, 13, Durable));
    apply(&mut state, &down(2, 2, false));
    let epoch = group(&state, 1).epoch.0;
    let mut state = with_recovery(state);
    let told = reports(vec![
        (1, report(epoch, 1, None)),
        (2, report(1, 1, None)),
        (3, report(epoch + 1, 1, None)),
    ]);
    settle(&mut state, &told, false);
    finish(&mut state);
    settle(&mut state, &told, false);
    let g = group(&state, 1);
    assert!(g.doubt != Doubt::None, "dev3 took part later: {g:?}");
}

#[test]
fn a_recorded_loss_of_a_group_is_no_evidence_of_later_events() {
    let mut state = pair(Ram);
    apply(&mut state, &down(2, 2, false));
    apply(&mut state, &down(1, 1, true));
    assert!(group(&state, 1).lost);
    for (device, life) in [(1, 4), (2, 5), (3, 6), (4, 7)] {
        let store = if device == 2 { 12 } else { 20 + u64::from(device) };
        apply(&mut state, &up(device, life, store, Ram));
    }
    let epoch = group(&state, 1).epoch.0;
    let state = with_recovery(state);
    assert_eq!(plan(&state, &DeviceReports::new(), true), None, "nobody was heard");
    assert_eq!(plan(&state, &DeviceReports::new(), false), None, "nobody was heard");
    // An operator accepted the loss, and other replicas wrote.
    let some = reports(vec![(1, DeviceReport::default()), (2, DeviceReport::default())]);
    let mut early = state.clone();
    settle(&mut early, &some, false);
    finish(&mut early);
    settle(&mut early, &some, false);
    assert_eq!(group(&early, 1).doubt, Doubt::Reports, "dev3 may come");
    let new = running(report(epoch + 1, epoch + 1, Some(moved(epoch + 1, &[3, 4]))));
    let mut all = some.clone();
    all.extend(reports(vec![(3, new), (4, running(report(epoch + 1, epoch + 1, None)))]));
    for mut state in [state.clone(), early] {
        settle(&mut state, &all, false);
        assert_eq!(group(&state, 1).in_sync, [DeviceId(3), DeviceId(4)]);
    }
    // No device has anything of the group: it stays lost.
    let mut state = state;
    let none = [1, 2, 3, 4].map(|id| (id, DeviceReport::default()));
    settle(&mut state, &reports(none.into()), false);
    let g = group(&state, 1);
    assert_eq!((g.doubt, g.lost, state.recovery.open), (Doubt::None, true, false));
}

#[test]
fn an_empty_device_is_no_evidence() {
    // A map says that group 1 had moved to dev3 and dev1; dev3 has come back empty since.
    let mut state = pair(Ram);
    apply(&mut state, &up(3, 3, 13, Ram));
    let mut state = with_recovery(state);
    state.apply(state.index + 1, &up(3, 90, 99, Ram));
    let told = reports(vec![
        (1, running(report(8, 8, Some(moved(8, &[3, 1]))))),
        (2, running(report(1, 1, None))),
        (3, DeviceReport::default()),
    ]);
    settle(&mut state, &told, false);
    finish(&mut state);
    settle(&mut state, &told, false);
    assert!(group(&state, 1).doubt != Doubt::None, "{:?}", group(&state, 1));
    // The entry that empties a device may be the last one of the log, and not decided.
    let decided = pair(Ram);
    let mut newer = decided.clone();
    apply(&mut newer, &up(1, 90, 99, Ram));
    let mut state = with_recovery_of(&decided, newer);
    let told = reports(vec![(1, DeviceReport::default()), (2, running(report(5, 1, None)))]);
    settle(&mut state, &told, false);
    assert_eq!(group(&state, 1).doubt, Doubt::Gone);
    // It is not known after one more recovery either.
    let mut state = with_recovery(state);
    settle(&mut state, &told, false);
    assert_eq!(group(&state, 1).doubt, Doubt::Gone);
}

#[test]
fn a_device_that_the_lost_ones_took_in_is_waited_for_and_let_in() {
    let mut state = recovered(Durable);
    let told = reports(vec![
        (1, running(report(8, 8, Some(moved(8, &[1, 3]))))),
        (2, running(report(1, 1, None))),
    ]);
    settle(&mut state, &told, false);
    assert!(state.recovery.open);
    assert_eq!(waits_for(&state, &told), [3]);
    finish(&mut state);
    settle(&mut state, &told, false);
    let registration = state.register(&life(3, "sds3", 41), false, None);
    let mdm::controller::Registration::New(id, command) = registration else {
        panic!("{registration:?}")
    };
    assert_eq!((id, state.apply(state.index + 1, &command)), (DeviceId(3), Outcome::Changed));
    assert_eq!(state.devices[&id].incarnation.0, 41);
    let mut all = told.clone();
    all.insert(
        DeviceId(3),
        running(report(9, 8, Some(GroupInfo { in_sync: vec![3], ..moved(9, &[1, 3]) }))),
    );
    settle(&mut state, &all, false);
    assert_eq!(group(&state, 1).in_sync, [DeviceId(3)]);
}

#[test]
fn a_volume_made_since_is_kept_where_one_of_its_groups_waits() {
    let mut state = recovered(Durable);
    let mut one = running(report(1, 1, None));
    let made = |id, in_sync: &[u32]| GroupInfo { id, ..config(1, in_sync) };
    let said = |g: GroupInfo| GroupReport {
        group: g.id,
        acted: 1,
        base: 1,
        config: Some(g),
        ..Default::default()
    };
    let volume = VolumeInfo {
        id: 2,
        name: "new".into(),
        size: 1 << 20,
        slots: vec![3, 4],
        mapping: Some(state.volumes[&VolumeId(1)].mapping.info()),
        ..VolumeInfo::default()
    };
    assert!(one.add(Report {
        version: state.version.0 + 5,
        told: state.version.0 + 5,
        next_volume: 3,
        groups: vec![said(made(3, &[1])), said(made(4, &[2]))],
        volumes: vec![
            state.volumes.iter().map(|(id, v)| mdm::publish::volume_info(*id, v)).next().unwrap(),
            volume.clone()
        ],
        held: vec![1, 2],
        ..Report::default()
    }));
    // Another volume lies on a device that nothing else names.
    let mut two = one.clone();
    let lost =
        GroupInfo { id: 5, replicas: vec![8, 9], in_sync: vec![8], primary: 8, ..config(1, &[]) };
    let other = VolumeInfo { id: 3, name: "other".into(), slots: vec![5], ..volume };
    assert!(two.add(Report {
        version: state.version.0 + 5,
        told: state.version.0 + 5,
        next_volume: 4,
        groups: vec![said(lost)],
        volumes: vec![other],
        ..Report::default()
    }));
    let told = reports(vec![(1, two)]);
    let mut open = state.clone();
    settle(&mut open, &told, false);
    assert_eq!(strange(&open, &told), [3], "it can't be taken over, and a person is told");
    let told = reports(vec![(1, one)]);
    settle(&mut state, &told, false);
    assert!(state.recovery.open && strange(&state, &told).is_empty());
    finish(&mut state);
    settle(&mut state, &told, false);
    assert_eq!(state.volumes[&VolumeId(2)].name, "new");
    let doubt = |id| group(&state, id).doubt;
    assert_eq!((doubt(3), doubt(4)), (Doubt::None, Doubt::Reports));
}

#[test]
fn a_group_made_since_enters_also_in_the_middle_of_a_move() {
    let mut before = pair(Durable);
    apply(&mut before, &up(3, 3, 13, Durable));
    let mut state = with_recovery(before);
    let mut one = running(report(1, 1, None));
    // Servers' maps do not name the leaving replica: it is the third one.
    let made = GroupInfo { id: 3, in_sync: vec![1], ..moved(2, &[1, 3, 2]) };
    let mapping = Some(state.volumes[&VolumeId(1)].mapping.info());
    let volume = |id: u32, name: &str, slots: Vec<u32>| VolumeInfo {
        id,
        name: name.into(),
        size: 1 << 20,
        slots,
        mapping: mapping.clone(),
        ..VolumeInfo::default()
    };
    let old = mdm::publish::volume_info(VolumeId(1), &state.volumes[&VolumeId(1)]);
    assert!(one.add(Report {
        version: state.version.0 + 5,
        told: state.version.0 + 5,
        next_volume: 3,
        groups: vec![GroupReport {
            group: 3,
            acted: 2,
            base: 2,
            config: Some(made),
            joiner: false
        }],
        volumes: vec![old, volume(2, "new", vec![3])],
        ..Report::default()
    }));
    let told = reports(vec![(1, one)]);
    settle(&mut state, &told, false);
    assert_eq!(strange(&state, &told), []);
    assert_eq!(state.volumes[&VolumeId(2)].name, "new");
    let made = group(&state, 3);
    assert_eq!((made.doubt, made.leaving), (Doubt::Reports, Some(DeviceId(2))));
}

#[test]
fn a_backup_of_before_the_first_device_waits_for_a_person() {
    let mut state = State::new();
    let form = Command::FormCluster(mdm::command::FormCluster { cluster: 7 });
    apply(&mut state, &form);
    let mut state = with_recovery(state);
    settle(&mut state, &DeviceReports::new(), false);
    assert!(state.recovery.open, "servers have volumes, and come later");
}

#[test]
fn the_resulting_commands_fit_into_an_entry_however_many_clients_are_named() {
    let state = recovered(Durable);
    let grants =
        (1..4000).map(|sdc| control::GrantInfo { sdc, access: 1, generation: 1, since: None });
    let mapping = control::MappingInfo { sdcs: grants.collect(), all: None, hosts: None };
    let volume = |id: u32| VolumeInfo {
        id,
        name: format!("v{id}"),
        size: 1 << 20,
        slots: vec![1, 2],
        mapping: Some(mapping.clone()),
        ..VolumeInfo::default()
    };
    let mut one = report(1, 1, None);
    assert!(one.add(Report {
        version: state.version.0 + 5,
        told: state.version.0 + 5,
        next_volume: 100,
        volumes: (1..90).map(volume).collect(),
        ..Report::default()
    }));
    let told = reports(vec![(1, one), (2, report(1, 1, None))]);
    let command = plan(&state, &told, true).expect("there are volumes");
    assert!(command.to_bytes().len() < mdm::entry::ENTRY_MAX / 4, "{}", command.to_bytes().len());
}

#[test]
fn while_a_group_is_in_doubt_no_decision_changes_it() {
    let mut state = recovered(Durable);
    let before = state.groups.clone();
    for command in [down(1, 1, true), up(1, 90, 11, Durable), suspect(2, 2, 1), join(2, 2, 1)] {
        state.apply(state.index + 1, &command);
        state.check().unwrap();
    }
    assert_eq!(state.groups, before);
    // A group that waits for a report is served when the report comes, also after the recovery.
    let mut told = reports(vec![(1, report(1, 1, None))]);
    finish(&mut state);
    assert!(state.wants_reports());
    settle(&mut state, &told, false);
    assert_eq!(group(&state, 1).doubt, Doubt::Reports);
    told.insert(DeviceId(2), report(1, 1, None));
    settle(&mut state, &told, false);
    assert_eq!((group(&state, 1).doubt, group(&state, 1).in_sync.len()), (Doubt::None, 2));
    assert!(!state.wants_reports());
}

#[test]
fn a_device_that_was_emptied_is_no_evidence() {
    let mut state = recovered(Ram);
    state.apply(state.index + 1, &up(1, 90, 99, Ram));
    settle(
        &mut state,
        &reports(vec![(1, DeviceReport::default()), (2, report(1, 1, None))]),
        false,
    );
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
    // A server's map has volume 2, on a group that this MDM does not know, and not volume 1.
    let mut one = report(1, 1, None);
    let made = GroupInfo { id: 3, ..config(1, &[1, 2]) };
    assert!(one.add(Report {
        version: state.version.0 + 5,
        told: state.version.0 + 5,
        next_volume: 3,
        groups: vec![GroupReport {
            group: 3,
            acted: 1,
            base: 1,
            config: Some(made),
            ..Default::default()
        }],
        volumes: vec![info(2, "new", vec![3, 1])],
        ..Report::default()
    }));
    settle(&mut state, &reports(vec![(1, one), (2, report(1, 1, None))]), false);
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
    // A second recovery of the earlier state: no number is given twice.
    let mut again = recovered(Durable);
    let decided = again.clone();
    again.recover(&decided, 1, again.members.list[&1].clone(), "me", 6060);
    assert!(again.next_incarnation > recovered(Durable).next_incarnation);
    // Each restore of the same backup has its own numbers, whatever time the order names.
    let at = |at: u64| {
        let mut state = pair(Durable);
        let me = recovered(Durable).members.list[&1].clone();
        state.recover(&state.clone(), 1, me, "me", at);
        assert!(state.next_incarnation.0 < 1 << 62);
        (state.index, state.next_incarnation)
    };
    assert!(at(1_800_000_001) > at(1_800_000_000) && at(u64::MAX) >= at(1 << 33));
}

#[test]
fn data_of_unknown_volumes_is_not_deleted_without_an_order() {
    let mut state = recovered(Durable);
    let mut one = report(1, 1, None);
    assert!(one.add(Report { held: vec![1, 2], ..Report::default() }));
    let told = reports(vec![(1, one), (2, report(1, 1, None))]);
    settle(&mut state, &told, false);
    assert!(state.recovery.open);
    assert_eq!(strange(&state, &told), [2]);
    // An operator ends the recovery. That deletes nothing, whatever devices come later.
    state.apply(state.index + 1, &close(&state, &told, false));
    assert_eq!((state.recovery.open, strange(&state, &reports(vec![]))), (false, vec![2]));
    assert!([2, 3].iter().all(|id| !is_gone(&state, *id)));
    let order = |delete: &[u32]| RecoverMdm {
        delete: delete.to_vec(),
        by: "me".into(),
        at: 7000,
        ..RecoverMdm::default()
    };
    assert!(state.forget_command(&order(&[1])).is_err(), "it is served");
    // An order that names the volumes deletes them, and the next map says so.
    let (before, command) = (state.version, state.forget_command(&order(&[2])).unwrap());
    assert_eq!(apply(&mut state, &command), Outcome::Changed);
    assert!(state.version > before && is_gone(&state, 2) && !is_gone(&state, 3));
    assert_eq!(strange(&state, &told), [0; 0]);
    assert_eq!(
        state.recovery.forgot.as_ref().map(|f| (&*f.by, &f.volumes[..])),
        Some(("me", &[2][..]))
    );
    assert!(state.forget_command(&order(&[2])).is_err(), "it is gone");
    assert_eq!(State::from_bytes(&state.to_bytes()), Ok(state));
}

/// Returns true if servers delete what they have of this volume.
fn is_gone(state: &State, id: u32) -> bool {
    let page = state.page_without_news();
    let unknown = page.unknown.iter().any(|r| (r.from..r.to).contains(&id));
    id < page.next_volume && !page.live.contains(&id) && !unknown
}

/// The survivor's log ends with the deletion of a volume. The others may have decided otherwise.
#[test]
fn data_of_a_volume_stays_when_it_is_not_known_whether_it_was_deleted() {
    let decided = pair(Durable);
    let mut newer = decided.clone();
    let delete = Command::DeleteVolume(DeleteVolume { volume: 1 });
    assert_eq!(apply(&mut newer, &delete), Outcome::Changed);
    let mut state = with_recovery_of(&decided, newer);
    let mut one = report(1, 1, None);
    assert!(one.add(Report { held: vec![1], ..Report::default() }));
    let told = reports(vec![(1, one), (2, report(1, 1, None))]);
    settle(&mut state, &told, false);
    assert!(state.recovery.open && strange(&state, &told) == [1]);
    state.apply(state.index + 1, &close(&state, &told, false));
    assert!(!is_gone(&state, 1));
}

#[test]
fn ids_given_out_after_an_earlier_restore_of_the_same_backup_are_not_given_out_again() {
    let mut first = recovered(Durable);
    settle(&mut first, &reports(vec![(1, report(1, 1, None)), (2, report(1, 1, None))]), false);
    assert!(!first.recovery.open);
    let (volume, group) = (first.next_volume, first.next_group());
    // The same backup is restored again: a device has data of a volume that was made in between.
    let mut state = recovered(Durable);
    let mut one = report(JUMP + 1, JUMP + 1, None);
    let made = GroupReport { group: group.0, acted: 1, base: 1, ..Default::default() };
    assert!(one.add(Report { held: vec![volume.0], groups: vec![made], ..Report::default() }));
    let told = reports(vec![(1, one), (2, report(JUMP + 1, JUMP + 1, None))]);
    settle(&mut state, &told, false);
    assert!(state.next_volume > volume && state.next_group() > group);
    assert!(state.recovery.open && strange(&state, &told) == [volume.0]);
    state.apply(state.index + 1, &close(&state, &told, false));
    assert!(!is_gone(&state, volume.0));
    state.check().unwrap();
}

#[test]
fn a_report_without_end_is_refused() {
    let mut report = DeviceReport::default();
    let part = |from: u32| {
        let groups = (from..from + 1000).map(|group| GroupReport { group, ..Default::default() });
        Report { groups: groups.collect(), ..Report::default() }
    };
    let taken = (0..1000).take_while(|i| report.add(part(i * 1000))).count();
    assert!((100..200).contains(&taken), "{taken} thousand groups");
    let of_epoch = |acted| vec![GroupReport { group: 1, acted, ..Default::default() }];
    let told = |groups| DeviceReport::default().add(Report { groups, ..Report::default() });
    assert!(told(of_epoch(JUMP * 9)) && !told(of_epoch(u64::MAX)), "no group comes so far");
}

#[test]
fn a_device_and_an_incarnation_from_the_lost_mdms_remain_valid() {
    let mut state = recovered(Durable);
    for (device, sds, incarnation) in [(1, "sds1", 40), (3, "sds3", 41)] {
        let registration = state.register(&life(device, sds, incarnation), false, None);
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

/// An operator has put another disk into the device's place, and only the lost MDMs knew that.
#[test]
fn a_replacement_device_is_accepted_and_its_former_content_is_no_evidence() {
    let other = |store| control::Register { store, nonce: store, ..life(1, "sds1", 40) };
    let mut state = recovered(Durable);
    let registration = state.register(&other(99), false, Some(&report(1, 1, None)));
    let mdm::controller::Registration::New(id, command) = registration else {
        panic!("{registration:?}")
    };
    assert_eq!((id, state.apply(state.index + 1, &command)), (DeviceId(1), Outcome::Changed));
    let told = reports(vec![(1, report(1, 1, None)), (2, report(1, 1, None))]);
    settle(&mut state, &told, false);
    assert_eq!(group(&state, 1).doubt, Doubt::Gone);
    finish(&mut state);
    let registration = state.register(&other(98), false, None);
    assert!(!matches!(registration, mdm::controller::Registration::New(..)), "{registration:?}");
}

/// Returns a device's report about several groups: the epochs in which it took part.
fn took_part(groups: &[(u32, u64)]) -> DeviceReport {
    let mut report = DeviceReport::default();
    let said = |(group, acted): &(u32, u64)| GroupReport {
        group: *group,
        acted: *acted,
        base: 1,
        ..GroupReport::default()
    };
    let groups = groups.iter().map(said).collect();
    assert!(report.add(Report { groups, ..Report::default() }));
    report
}

#[test]
fn a_disk_that_was_replaced_before_is_not_let_in_by_a_recovery() {
    use mdm::controller::Registration::{Bad, WrongDevice};
    let old = |sds: &str| control::Register { store: 99, nonce: 99, ..life(1, sds, 0) };
    let refused = |state: &State, m: &control::Register, told: &[(u32, u64)]| {
        matches!(state.register(m, false, Some(&took_part(told))), WrongDevice(_) | Bad(_))
    };
    let mut state = pair(Durable);
    let (one, two) = (9, 5);
    for (id, epoch) in [(1, one), (2, two)] {
        state.groups.get_mut(&GroupId(id)).unwrap().epoch = Epoch(epoch);
    }
    let mut state = with_recovery(state);
    let sds1 = old("sds1");
    assert!(!refused(&state, &sds1, &[]), "an older one would remember something");
    assert!(!refused(&state, &sds1, &[(7, 0)]), "and this one took part in nothing");
    assert!(
        refused(&state, &sds1, &[(1, one - 1), (2, two - 1)]),
        "it has less than the MDM knows"
    );
    // It remembers as much of one group: it may have been admitted to it again after it was
    // emptied.
    assert!(!refused(&state, &sds1, &[(1, one)]));
    assert!(!refused(&state, &sds1, &[(1, 0), (2, two)]));
    assert!(!refused(&state, &sds1, &[(7, 1)]), "the group was made since");
    // It registers at another place, and the device is off.
    state.apply(state.index + 1, &down(1, 1, true));
    let newer = [(1, one + 50)];
    assert!(refused(&state, &old("sds2"), &newer) && refused(&state, &old("sds9"), &newer));
}

#[test]
fn epochs_of_one_group_say_nothing_of_another_one() {
    let other = control::Register { store: 99, nonce: 99, ..life(1, "sds1", 0) };
    let mut state = pair(Durable);
    // Group 1 gets to a much later epoch than group 2.
    state.groups.get_mut(&GroupId(1)).unwrap().epoch = Epoch(9);
    let state = with_recovery(state);
    let lets_in = |told: &[(u32, u64)]| {
        let registration = state.register(&other, false, Some(&took_part(told)));
        matches!(registration, mdm::controller::Registration::New(..))
    };
    assert!(lets_in(&[(2, 1)]), "it was emptied since, and is in sync in group 2 again");
    assert!(!lets_in(&[(1, 8)]), "it was replaced before");
}

/// Servers pass maps on, but only report deletions that an MDM has told them.
#[test]
fn a_newer_map_that_a_server_was_passed_on_counts_and_deletes_nothing() {
    let mut state = recovered(Durable);
    let old = state.volumes[&VolumeId(1)].clone();
    let volume = VolumeInfo {
        id: 2,
        name: "new".into(),
        size: old.size,
        slots: vec![1, 2],
        ..VolumeInfo::default()
    };
    let (told, version) = (state.version.0 + 2, state.version.0 + 5);
    let mut one = report(1, 1, None);
    let volumes = vec![volume];
    assert!(one.add(Report { version, told: 0, next_volume: 3, volumes, ..Report::default() }));
    let mut two = report(1, 1, None);
    let first = VolumeInfo { id: 1, name: "v".into(), slots: vec![1, 2], ..VolumeInfo::default() };
    let volumes = vec![VolumeInfo { size: old.size, ..first }];
    assert!(two.add(Report { version: told, told, next_volume: 2, volumes, ..Report::default() }));
    settle(&mut state, &reports(vec![(1, one), (2, two)]), false);
    assert_eq!(state.volumes.keys().map(|v| v.0).collect::<Vec<_>>(), [1, 2]);
}

/// The last entry of the log deletes a volume, and it is unknown whether that was decided.
#[test]
fn a_volume_whose_deletion_no_map_knows_is_there() {
    let decided = pair(Durable);
    let volume = mdm::publish::volume_info(VolumeId(1), &decided.volumes[&VolumeId(1)]);
    let mut newer = decided.clone();
    apply(&mut newer, &Command::DeleteVolume(DeleteVolume { volume: 1 }));
    let says = |told: u64, volumes: Vec<VolumeInfo>| {
        let mut report = report(1, 1, None);
        let held = vec![1];
        let part =
            Report { version: told, told, next_volume: 2, volumes, held, ..Report::default() };
        assert!(report.add(part));
        report
    };
    let (at, then) = (decided.version.0, newer.version.0);
    let has = |told| says(told, vec![volume.clone()]);
    let cases = [
        ("all have the map of before", has(at), has(at), true),
        ("one has an older one", has(at - 1), has(at), true),
        ("one has heard of it, and deletes", has(at), says(then, vec![]), false),
    ];
    for (name, one, two, there) in cases {
        let mut state = with_recovery_of(&decided, newer.clone());
        assert!(!state.volumes.contains_key(&VolumeId(1)));
        let told = reports(vec![(1, one), (2, two)]);
        settle(&mut state, &told, false);
        assert_eq!(state.volumes.contains_key(&VolumeId(1)), there, "{name}");
        assert_eq!((state.recovery.open, is_gone(&state, 1)), (false, !there), "{name}");
    }
}
