//! Volumes that are mapped to hosts by name: the orders, and the end of the seats of those that
//! lose access.

use crate::common::*;
use base::{Duration, Limits, MapVersion, SdcId, Time, VolumeId};
use mdm::command::{MapVolume, RegisterSdc, Reserve, Seat, SeatChange};
use mdm::mapping::{NAMED_HOSTS, Permissions};
use mdm::mapping_orders::{
    clear_reservations_command, map_command, move_path_command, unmap_command,
};
use mdm::observed::Observed;
use mdm::{Command, Outcome, Refused, State, controller, status};
use std::collections::BTreeSet;
use wire::control::Access::{ReadOnly, ReadWrite};
use wire::control::DeviceKind::Durable;
use wire::control::{
    Access, Heartbeat, HostInfo, MapRequest, MapToHost, MovePath, ReserveAction, ReserveChange,
    UnmapRequest,
};

const V: VolumeId = VolumeId(1);
const A: &str = "iqn.2026-11.test:a";
const B: &str = "nqn.2026-11.test:b";

/// Two gateways, a client without hosts, and the volume `v`.
fn state() -> State {
    let mut s = pair(Durable);
    for (sdc, uri) in
        [(1, "iscsi://10.0.0.1:3260"), (2, "nvme-tcp://10.0.0.2:4420"), (3, "nbd://x/")]
    {
        let (name, incarnation) = (format!("c{sdc}"), 10 + u64::from(sdc));
        let uris = vec![uri.into()];
        let c = RegisterSdc { sdc, name, incarnation, uris, ..RegisterSdc::default() };
        assert_eq!(apply(&mut s, &Command::RegisterSdc(c)), Outcome::Changed);
    }
    s
}

fn request(hosts: &[(&str, Access)], only: bool) -> MapRequest {
    let to = |(host, access): &(&str, Access)| MapToHost {
        host: (*host).into(),
        access: *access as i32,
    };
    let hosts = hosts.iter().map(to).collect();
    MapRequest { volume: "v".into(), only, hosts, ..MapRequest::default() }
}

fn map(s: &mut State, hosts: &[(&str, Access)], only: bool) -> Result<(), Refused> {
    let command = map_command(s, &request(hosts, only))?;
    apply(s, &command);
    s.check().unwrap();
    Ok(())
}

fn unmap(s: &mut State, hosts: &[&str]) -> Result<(), Refused> {
    let hosts = hosts.iter().map(|host| (*host).into()).collect();
    let ask = UnmapRequest { volume: "v".into(), hosts, ..UnmapRequest::default() };
    let command = unmap_command(s, &ask)?;
    apply(s, &command);
    s.check().unwrap();
    Ok(())
}

fn seat(s: &mut State, host: &str, from: u32, to: u32) -> Outcome {
    let changes = vec![SeatChange { volume: 1, host: host.into(), from, to }];
    apply(s, &Command::Seat(Seat { changes }))
}

/// What a host may do through client 1: its access, the beginning, and the clients' generation.
fn grant(s: &State, host: &str) -> Option<(Access, u32, u32)> {
    let mapping = &s.volumes[&V].mapping;
    let grant = mapping.host_grant(mapping.grant(SdcId(1))?, host)?;
    Some((grant.access, grant.since, grant.generation))
}

fn seats(s: &State) -> Vec<&str> {
    s.volumes[&V].seats.keys().map(String::as_str).collect()
}

#[test]
pub(crate) fn hosts_that_lose_access_lose_their_seat_behind_a_generation_and_others_keep_theirs() {
    let mut s = state();
    seat(&mut s, A, 0, 1);
    seat(&mut s, B, 0, 1);
    assert_eq!(grant(&s, A), Some((ReadWrite, 1, 1)));
    map(&mut s, &[(A, ReadWrite)], true).unwrap();
    assert_eq!((grant(&s, A), grant(&s, B)), (Some((ReadWrite, 1, 2)), None));
    assert_eq!(seats(&s), [A], "the permission of A goes on");
    assert_eq!(seat(&mut s, B, 0, 1), Outcome::Unchanged, "a stranger gets no seat");
    map(&mut s, &[(B, ReadOnly)], false).unwrap();
    assert_eq!((grant(&s, B), grant(&s, A)), (Some((ReadOnly, 2, 2)), Some((ReadWrite, 1, 2))));
    seat(&mut s, B, 0, 2);
    map(&mut s, &[(A, ReadOnly)], false).unwrap();
    assert_eq!((grant(&s, A), seats(&s)), (Some((ReadOnly, 3, 3)), vec![B]), "it may not write");
    seat(&mut s, A, 0, 1);
    map(&mut s, &[(A, ReadWrite)], false).unwrap();
    assert_eq!(seats(&s), [A, B], "more access ends nothing");
    unmap(&mut s, &[A]).unwrap();
    map(&mut s, &[(A, ReadWrite)], false).unwrap();
    assert_eq!((grant(&s, A), seats(&s)), (Some((ReadWrite, 4, 4)), vec![B]), "it begins anew");
    map(&mut s, &[("", ReadWrite)], false).unwrap();
    assert_eq!((grant(&s, A), grant(&s, B)), (Some((ReadWrite, 4, 4)), Some((ReadWrite, 2, 4))));
    assert_eq!(seats(&s), [B], "all hosts may use it, and those that could keep their permission");
}

#[test]
fn orders_about_hosts_leave_clients_alone_and_the_other_way_round() {
    let mut s = state();
    map(&mut s, &[(A, ReadWrite)], true).unwrap();
    assert!(s.volumes[&V].mapping.all().is_some());
    let to = vec![wire::control::MapTo { sdc: "c1".into(), access: 0 }];
    let one = MapRequest { volume: "v".into(), to, only: true, hosts: Vec::new() };
    let command = map_command(&s, &one).unwrap();
    apply(&mut s, &command);
    assert!(grant(&s, A).is_some() && grant(&s, B).is_none());
    let nobody = UnmapRequest { volume: "v".into(), all: true, ..UnmapRequest::default() };
    let command = unmap_command(&s, &nobody).unwrap();
    apply(&mut s, &command);
    assert!(grant(&s, A).is_none() && s.volumes[&V].mapping.admits(A));
    s.check().unwrap();
}

/// Whoever may log in under any name can log in under many, and take all seats.
#[test]
fn hosts_that_are_named_have_a_seat_each_whoever_came_before() {
    let mut s = state();
    let new = |host: &str| SeatChange { volume: 1, host: host.into(), from: 0, to: 1 };
    let strangers: Vec<_> = (0..NAMED_HOSTS).map(|i| new(&format!("iqn.stranger:{i}"))).collect();
    apply(&mut s, &Command::Seat(Seat { changes: strangers.clone() }));
    assert_eq!(s.volumes[&V].seats.len(), NAMED_HOSTS, "no place is left");
    let names: Vec<String> = (0..NAMED_HOSTS).map(|i| format!("iqn.{i}")).collect();
    let named: Vec<(&str, Access)> = names.iter().map(|host| (&host[..], ReadWrite)).collect();
    map(&mut s, &named, true).unwrap();
    let changes = strangers.into_iter().chain(names.iter().map(|host| new(host))).collect();
    apply(&mut s, &Command::Seat(Seat { changes }));
    s.check().unwrap();
    assert!(s.volumes[&V].seats.keys().eq(&names.iter().cloned().collect::<BTreeSet<_>>()));
}

#[test]
fn wrong_orders_about_hosts_are_refused_with_words() {
    let mut s = state();
    let refused = |result: Result<(), Refused>| result.unwrap_err().to_string();
    assert!(refused(map(&mut s, &[(A, ReadWrite)], false)).contains("is mapped to all hosts"));
    assert!(refused(unmap(&mut s, &[A])).contains("is mapped to all hosts"));
    for name in
        ["db1", "iqn.", "iqn.a b", "iqn.a\nb", "iqn.\u{202e}b", &format!("iqn.{}", "x".repeat(220))]
    {
        let wrong = map(&mut s, &[(name, ReadWrite)], true);
        let is_fine = name == "iqn.";
        assert_eq!(wrong.is_ok(), is_fine, "{name}: {wrong:?}");
    }
    assert!(refused(unmap(&mut s, &[A])).contains("is not mapped to iqn.2026-11.test:a"));
    let many: Vec<String> = (0..=NAMED_HOSTS).map(|i| format!("iqn.{i}")).collect();
    let many: Vec<(&str, Access)> = many.iter().map(|host| (&host[..], ReadWrite)).collect();
    assert!(refused(map(&mut s, &many, true)).contains("128 hosts"));
    map(&mut s, &many[1..], true).unwrap();
    assert!(refused(map(&mut s, &many[..1], false)).contains("128 hosts"));
    let deleted = controller::delete_volume_command(&s, "v", false, |_| Vec::new());
    assert!(deleted.unwrap_err().to_string().contains("is mapped to 128 hosts by name"));
    assert!(controller::delete_volume_command(&s, "v", true, |_| Vec::new()).is_ok());
}

#[test]
fn a_command_that_names_impossible_hosts_changes_nothing() {
    let mut s = state();
    let grant = mdm::mapping::Grant::new(ReadWrite, 0);
    let names = (0..=NAMED_HOSTS).map(|i| (format!("iqn.{i}"), grant));
    for hosts in [names.collect(), [(String::new(), grant)].into()] {
        let mapping = s.volumes[&V].mapping.clone().with_hosts(Permissions::only(hosts));
        let command = MapVolume { volume: 1, mapping: Some(mapping.info()) };
        let outcome = apply(&mut s, &Command::MapVolume(command));
        assert_eq!(outcome, Outcome::Refused(Refused::Outdated));
    }
}

#[test]
fn maps_snapshots_and_the_status_have_the_hosts() {
    let mut s = state();
    map(&mut s, &[(A, ReadOnly), (B, ReadWrite)], true).unwrap();
    let pages = s.pages_since(MapVersion(0));
    let told = pages.last().unwrap().volumes[0].mapping.clone();
    assert_eq!(mdm::mapping::Mapping::of(told), s.volumes[&V].mapping);
    assert_eq!(State::from_bytes(&s.to_bytes()).unwrap().volumes, s.volumes);
    let told = status::volume(&s, &BTreeSet::new(), V, &s.volumes[&V]);
    let told: Vec<_> = told.hosts.iter().map(|to| (&to.host[..], to.access())).collect();
    assert_eq!(told, [(A, ReadOnly), (B, ReadWrite)]);
}

#[test]
fn an_operator_ends_the_reservation_of_hosts_that_are_gone() {
    let mut s = state();
    let clear = wire::control::ClearReservations { volume: "v".into() };
    let none = clear_reservations_command(&s, &clear).unwrap_err();
    assert!(none.to_string().contains("no host is registered"), "{none}");
    let who = HostInfo { name: A.into(), id: vec![1; 6], port: 0 };
    for (number, action, kind) in [(1, ReserveAction::Register, 0), (2, ReserveAction::Reserve, 3)]
    {
        let (key, other) = if number == 1 { (0, 7) } else { (7, 0) };
        let action = action as i32;
        let change = ReserveChange { action, key, other, kind, ..ReserveChange::default() };
        let (volume, sdc, incarnation, who) = (1, 1, 11, who.clone());
        let c = Reserve { volume, sdc, incarnation, number, who, change, notes_losses: true };
        assert_eq!(apply(&mut s, &Command::Reserve(c)), Outcome::Changed);
    }
    let told = status::volume(&s, &BTreeSet::new(), V, &s.volumes[&V]).reservations.unwrap();
    assert_eq!((told.kind, told.registrants.len(), told.generation), (3, 1, 1));
    let generation = s.volumes[&V].generation;
    let command = clear_reservations_command(&s, &clear).unwrap();
    assert_eq!(apply(&mut s, &command), Outcome::Changed);
    s.check().unwrap();
    let volume = &s.volumes[&V];
    assert!(volume.reservations.registrants.is_empty() && volume.reservations.reserved.is_none());
    assert_eq!((volume.reservations.generation, volume.generation), (2, generation));
    assert_eq!(apply(&mut s, &command), Outcome::Unchanged);
}

#[test]
fn a_client_that_is_not_heard_counts_as_down_and_its_connections_as_none() {
    let (s, limits) = (state(), Limits { suspect_after: Duration::from_secs(1), ..limits() });
    let mut seen = Observed::default();
    let at = |secs| Time::ZERO + Duration::from_secs(secs);
    let told = |seen: &Observed, now| {
        let sdc = status::status(&s, seen, &BTreeSet::new(), now, &limits).sdcs.swap_remove(0);
        (sdc.connected, sdc.connections, sdc.iscsi_sessions)
    };
    assert_eq!(told(&seen, at(1)), (false, 0, 0));
    seen.sdcs.entry(SdcId(1)).or_default().came(None);
    assert_eq!(told(&seen, at(9)), (true, 0, 0), "it has just registered");
    let beat = Heartbeat { connections: 2, iscsi_sessions: 3, ..Heartbeat::default() };
    seen.sdcs.get_mut(&SdcId(1)).unwrap().beat(at(10), beat.clone());
    assert_eq!(told(&seen, at(12)), (true, 2, 3));
    assert_eq!(told(&seen, at(13)), (false, 0, 0), "it hangs");
    seen.sdcs.get_mut(&SdcId(1)).unwrap().beat(at(20), beat.clone());
    assert_eq!(told(&seen, at(21)), (true, 2, 3), "it goes on");
    seen.sdcs.get_mut(&SdcId(1)).unwrap().connected = false;
    assert_eq!(told(&seen, at(21)), (false, 0, 0));
    seen.sdcs.get_mut(&SdcId(1)).unwrap().came(None);
    assert!(told(&seen, at(99)).0, "it is back");
}

#[test]
fn hosts_move_to_a_gateway_that_they_can_use_and_all_or_none_do() {
    let mut s = state();
    seat(&mut s, A, 0, 1);
    seat(&mut s, B, 0, 1);
    let path = |to: &str, hosts: &[&str]| MovePath {
        volume: "v".into(),
        hosts: hosts.iter().map(|host| (*host).into()).collect(),
        to: to.into(),
    };
    let order = |s: &State, m: &MovePath, has: &[&str]| {
        let serves = |_, _: &_, sdc: SdcId, host: &str| sdc == SdcId(2) && has.contains(&host);
        move_path_command(s, m, serves)
    };
    let refused = |to: &str, hosts: &[&str], has: &[&str]| {
        order(&s, &path(to, hosts), has).unwrap_err().to_string()
    };
    assert!(refused("c9", &[], &[A, B]).contains("no SDC `c9`"));
    assert!(refused("c3", &[], &[A, B]).contains("is no gateway"));
    assert!(refused("c2", &["iqn.x"], &[A, B]).contains("no SDC serves iqn.x"));
    assert!(refused("c2", &[], &[A]).contains("nqn.2026-11.test:b can't use `v` through c2"));
    let all = order(&s, &path("c2", &[]), &[A, B]).unwrap();
    assert!(matches!(&all, Command::Seat(seat) if seat.changes.len() == 2));
    let one = order(&s, &path("c2", &[A]), &[A]).unwrap();
    assert_eq!(apply(&mut s, &one), Outcome::Changed);
    assert_eq!(s.volumes[&V].seats[A].sdc, SdcId(2));
    assert_eq!(s.volumes[&V].generation, 2, "behind a fence");
    let again = order(&s, &path("c2", &[A]), &[]).unwrap();
    assert_eq!(again, Command::Seat(Seat::default()), "it is there already");
    map(&mut s, &[(B, ReadWrite)], true).unwrap();
    assert!(order(&s, &path("c2", &[A]), &[A]).is_err(), "its seat has ended");
}
