//! Orders to continue without data that no replica serves: which copy they take.

use crate::common::*;
use base::{DeviceId, GroupId, Time};
use mdm::members::Member;
use mdm::observed::Observed;
use mdm::recovery::{DeviceReport, DeviceReports, JUMP, plan};
use mdm::{Command, Outcome, State};
use wire::control::DeviceKind::{Durable, Ram};
use wire::control::{AcceptLoss, GroupReport, Heartbeat, Report};

/// Returns the order to continue with older copies: the device with which each group begins.
fn begins(
    state: &State,
    reports: &DeviceReports,
) -> Result<(Command, Vec<(u32, u32)>), mdm::Refused> {
    begins_among(state, &all_know(state), reports)
}

/// Returns observations of devices that all have the newest map, with copies that were whole once.
fn all_know(state: &State) -> Observed {
    let mut seen = Observed::default();
    for device in state.devices.keys() {
        let device = seen.devices.entry(*device).or_default();
        device.map = state.version;
        device.beat(Time(1), Heartbeat::default());
    }
    seen
}

fn begins_among(
    state: &State,
    seen: &Observed,
    reports: &DeviceReports,
) -> Result<(Command, Vec<(u32, u32)>), mdm::Refused> {
    let order = AcceptLoss { volumes: vec!["v".into()], stale: true, ..AcceptLoss::default() };
    let command = state.accept_loss_command(&order, seen, reports)?;
    let Command::AcceptLoss(c) = &command else { panic!("{command:?}") };
    let first = c.groups.iter().map(|g| (g.group, g.replicas[0])).collect();
    Ok((command, first))
}

fn report(acted: u64, base: u64) -> DeviceReport {
    let mut report = DeviceReport::default();
    let groups = [1, 2].map(|group| GroupReport { group, acted, base, ..Default::default() });
    assert!(report.add(Report { groups: groups.into(), ..Report::default() }));
    report
}

#[test]
fn a_copy_that_was_never_whole_is_no_older_copy() {
    let mut state = pair(Durable);
    apply(&mut state, &up(3, 3, 13, Durable));
    apply(&mut state, &up(4, 4, 14, Durable));
    apply(&mut state, &down(2, 2, false));
    // dev3 comes in the place of dev2, and has a part of its copy when dev1 dies.
    let epoch = state.groups[&GroupId(1)].epoch.0;
    assert_eq!(apply(&mut state, &reshape(1, epoch, &[1, 3, 2], 2)), Outcome::Changed);
    assert_eq!(apply(&mut state, &join(1, 1, 3)), Outcome::Changed);
    apply(&mut state, &down(1, 1, false));
    let none = DeviceReports::new();
    assert!(begins(&state, &none).is_err(), "dev3 has no copy: dev1 or dev2 is waited for");
    apply(&mut state, &up(2, 9, 12, Durable));
    let (command, first) = begins(&state, &none).unwrap();
    assert_eq!(first, [(1, 2), (2, 2)]);
    assert_eq!(apply(&mut state, &command), Outcome::Changed);
    assert_eq!(State::from_bytes(&state.to_bytes()), Ok(state));
}

#[test]
fn a_copy_of_a_device_that_came_back_empty_is_no_older_copy() {
    let mut state = pair(Ram);
    apply(&mut state, &up(3, 3, 13, Ram));
    apply(&mut state, &up(2, 9, 99, Ram));
    apply(&mut state, &join(1, 1, 2));
    apply(&mut state, &down(1, 1, false));
    assert!(begins(&state, &DeviceReports::new()).is_err());
    // When it has all of it, its copy counts.
    let mut state = pair(Ram);
    apply(&mut state, &up(3, 3, 13, Ram));
    apply(&mut state, &up(2, 9, 99, Ram));
    apply(&mut state, &join(1, 1, 2));
    let epochs = [1, 2].map(|g| state.groups[&GroupId(g)].epoch.0);
    apply(&mut state, &admit(1, epochs[0], 2));
    apply(&mut state, &admit(2, epochs[1], 2));
    apply(&mut state, &suspect(1, 1, 2));
    apply(&mut state, &down(1, 1, false));
    let (_, first) = begins(&state, &DeviceReports::new()).unwrap();
    assert!(first.iter().all(|(_, device)| *device == 2) && !first.is_empty(), "{first:?}");
}

/// The primary alone forgets what another replica lacks, and starts with a full copy: that
/// replica's content is discarded.
#[test]
fn a_copy_that_was_thrown_away_for_a_new_one_is_no_older_copy() {
    let mut state = pair(Durable);
    apply(&mut state, &up(3, 3, 13, Durable));
    apply(&mut state, &down(2, 2, false));
    apply(&mut state, &up(2, 9, 12, Durable));
    apply(&mut state, &join(1, 1, 2));
    apply(&mut state, &down(1, 1, false));
    let none = DeviceReports::new();
    let mut seen = all_know(&state);
    assert_eq!(begins_among(&state, &seen, &none).unwrap().1, [(1, 2), (2, 2)]);
    let dev2 = seen.devices.get_mut(&DeviceId(2)).unwrap();
    dev2.beat(Time(2), Heartbeat { partial: vec![1], ..Heartbeat::default() });
    assert_eq!(begins_among(&state, &seen, &none).unwrap().1, [(2, 2)], "group 1 was thrown away");
    let told = state.damage("v", &seen, &none).unwrap();
    let stale: Vec<_> = told.groups.iter().map(|g| g.stale.clone()).collect();
    assert_eq!(stale, [vec![], vec![2]]);
    // Its next incarnation has not reported what it has.
    let dev2 = seen.devices.get_mut(&DeviceId(2)).unwrap();
    dev2.born();
    assert!(begins_among(&state, &seen, &none).is_err());
}

#[test]
fn a_copy_that_was_being_made_before_a_recovery_is_no_older_copy_after_it() {
    let mut state = pair(Ram);
    apply(&mut state, &up(3, 3, 13, Ram));
    apply(&mut state, &up(2, 9, 99, Ram)); // it came back empty
    apply(&mut state, &join(1, 1, 2));
    let epoch = state.groups[&GroupId(1)].epoch.0.max(state.groups[&GroupId(2)].epoch.0);
    let me = Member { name: "m".into(), address: "10.0.0.9:1".into(), tie_breaker: false };
    state.recover(&state.clone(), 1, me, "me@here", 6000);
    register_all(&mut state);
    let told: DeviceReports =
        [(DeviceId(1), report(epoch, epoch)), (DeviceId(2), report(epoch, 0))].into();
    while let Some(command) = plan(&state, &told, false) {
        assert_eq!(state.apply(state.index + 1, &command), Outcome::Changed);
    }
    apply(&mut state, &down(1, 1, false));
    let mut seen = all_know(&state);
    let dev2 = seen.devices.get_mut(&DeviceId(2)).unwrap();
    dev2.beat(Time(2), Heartbeat { partial: vec![1, 2], ..Heartbeat::default() });
    assert!(begins_among(&state, &seen, &DeviceReports::new()).is_err());
}

#[test]
fn in_doubt_the_newest_copy_that_devices_tell_of_is_taken() {
    let mut state = pair(Durable);
    for (device, life) in [(3, 3), (4, 4), (5, 5)] {
        apply(&mut state, &up(device, life, 10 + life, Durable));
    }
    let me = Member { name: "m".into(), address: "10.0.0.9:1".into(), tie_breaker: false };
    state.recover(&state.clone(), 1, me, "me@here", 6000);
    register_all(&mut state);
    // dev2 continued alone; a copy on dev3 was never whole.
    let told = [(1, report(1, 1)), (2, report(2 * JUMP, 1)), (3, report(2 * JUMP + 1, 0))];
    let mut reports: DeviceReports = told.into_iter().map(|(id, w)| (DeviceId(id), w)).collect();
    reports.insert(DeviceId(4), DeviceReport::default());
    let close = Command::Reconcile(mdm::command::Reconcile { close: true, ..Default::default() });
    state.apply(state.index + 1, &close);
    let told = plan(&state, &reports, false).unwrap();
    assert_eq!(state.apply(state.index + 1, &told), mdm::Outcome::Changed);
    assert!(state.groups.values().all(|g| g.reached().0 == 2 * JUMP + 1), "it is remembered");
    assert_eq!(plan(&state, &reports, false), None, "dev5 is silent");
    let damage = state.damage("v", &all_know(&state), &reports).unwrap();
    assert!(damage.groups.len() == 2 && damage.groups.iter().all(|g| g.stale == [2, 1]));
    let (command, first) = begins(&state, &reports).unwrap();
    assert_eq!(first, [(1, 2), (2, 2)]);
    state.apply(state.index + 1, &command);
    state.check().unwrap();
    for group in state.groups.values() {
        assert!(group.epoch.0 > 2 * JUMP + 1, "nobody took part in a later one: {group:?}");
        assert!(!group.replicas.contains(&DeviceId(3)), "it has something else: {group:?}");
    }
}

/// A device has not deleted what it has of a group before it knows a map without it.
#[test]
fn an_accepted_loss_gives_no_copy_to_a_device_whose_process_has_not_pulled_the_map() {
    let mut state = pair(Durable);
    for (device, life) in [(3, 3), (4, 4)] {
        apply(&mut state, &up(device, life, 10 + life, Durable));
    }
    apply(&mut state, &down(2, 2, false));
    apply(&mut state, &down(1, 1, false));
    apply(&mut state, &up(2, 9, 12, Durable));
    let mut seen = all_know(&state);
    let second = |command: &Command| match command {
        Command::AcceptLoss(c) => c.groups.iter().map(|g| g.replicas[1]).collect::<Vec<_>>(),
        _ => panic!("{command:?}"),
    };
    seen.devices.get_mut(&DeviceId(3)).unwrap().born();
    let (command, _) = begins_among(&state, &seen, &DeviceReports::new()).unwrap();
    assert_eq!(second(&command), [4, 4]);
    seen.devices.get_mut(&DeviceId(4)).unwrap().born();
    assert!(
        begins_among(&state, &seen, &DeviceReports::new()).is_err(),
        "both will have it in a moment"
    );
}

#[test]
pub(crate) fn lost_data_is_an_error_or_zeros_as_the_order_says() {
    let mut state = pair(Ram);
    for (device, life) in [(3, 3), (4, 4)] {
        apply(&mut state, &up(device, life, 10 + life, Ram));
    }
    for device in [1, 2] {
        apply(&mut state, &down(device, device.into(), true));
    }
    assert!(state.groups.values().all(|g| g.lost), "{:?}", state.groups);
    let seen = all_know(&state);
    let order = |errors| {
        let volumes = vec!["v".into()];
        AcceptLoss { volumes, errors, ..AcceptLoss::default() }
    };
    let command = state.accept_loss_command(&order(true), &seen, &DeviceReports::new()).unwrap();
    assert_eq!(apply(&mut state, &command), Outcome::Changed);
    let volume = state.volumes.values().next().unwrap();
    let units = (volume.size / u64::from(base::UNIT)) as u32;
    let all: Vec<(GroupId, u32)> = volume.slots.iter().map(|g| (*g, units)).collect();
    assert_eq!(volume.gaps, all.into_iter().collect());
    assert!(volume.losses[0].errors && state.groups.values().all(|g| !g.lost));
    let told = state.damage("v", &all_know(&state), &DeviceReports::new()).unwrap();
    assert!(told.groups.is_empty() && told.gaps.len() == volume.gaps.len());
    assert_eq!(State::from_bytes(&state.to_bytes()).as_ref(), Ok(&state));
    // Later the operator wants zeros there after all.
    let version = state.version;
    assert!(state.accept_loss_command(&order(true), &seen, &DeviceReports::new()).is_err());
    let command = state.accept_loss_command(&order(false), &seen, &DeviceReports::new()).unwrap();
    assert_eq!(apply(&mut state, &command), Outcome::Changed);
    assert!(state.volumes.values().all(|v| v.gaps.is_empty() && v.losses.len() == 2));
    assert!(state.version > version, "servers hear of it");
    assert!(state.accept_loss_command(&order(false), &seen, &DeviceReports::new()).is_err());
}

/// A primary that serves alone keeps its base. A joiner that was sealed, and then dropped, has a
/// newer base and less data.
#[test]
fn a_leader_has_more_than_its_joiner() {
    let mut state = pair(Durable);
    let me = Member { name: "m".into(), address: "10.0.0.9:1".into(), tie_breaker: false };
    state.recover(&state.clone(), 1, me, "me@here", 6000);
    register_all(&mut state);
    let mut joiner = DeviceReport::default();
    let said = |group| GroupReport { group, acted: 4, base: 4, joiner: true, ..Default::default() };
    assert!(joiner.add(Report { groups: [1, 2].map(said).into(), ..Report::default() }));
    let later = |group| GroupReport { acted: 5, base: 3, ..said(group) };
    let mut of_the_next = DeviceReport::default();
    assert!(of_the_next.add(Report { groups: [1, 2].map(later).into(), ..Report::default() }));
    let reports: DeviceReports = [(DeviceId(1), joiner), (DeviceId(2), report(4, 2))].into();
    let close = Command::Reconcile(mdm::command::Reconcile { close: true, ..Default::default() });
    state.apply(state.index + 1, &close);
    let damage = state.damage("v", &all_know(&state), &reports).unwrap();
    assert!(damage.groups.len() == 2 && damage.groups.iter().all(|g| g.stale == [2, 1]));
    // It was a joiner of the next epoch, which its primary had not recorded yet.
    let reports: DeviceReports = [(DeviceId(1), of_the_next), (DeviceId(2), report(4, 2))].into();
    let damage = state.damage("v", &all_know(&state), &reports).unwrap();
    assert!(damage.groups.len() == 2 && damage.groups.iter().all(|g| g.stale == [2, 1]));
}
