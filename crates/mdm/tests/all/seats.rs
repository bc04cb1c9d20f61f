//! Seats in the state: one gateway serves a host of a volume, and a move is fenced by a generation.

use crate::common::*;
use base::{MapVersion, SdcId, VolumeId};
use mdm::command::{DropObject, MapVolume, RegisterSdc, Seat, SeatChange};
use mdm::mapping::{Grant, Mapping};
use mdm::members::Member;
use mdm::seat::{self, GATEWAYS, SEATS};
use mdm::{Command, Outcome, State};
use std::collections::BTreeMap;
use wire::control::DeviceKind::Durable;
use wire::control::{Access, ObjectKind};

const V: VolumeId = VolumeId(1);

fn register(sdc: u32, uris: &[&str]) -> Command {
    let (name, incarnation) = (format!("c{sdc}"), 10 + u64::from(sdc));
    let uris = uris.iter().map(|uri| (*uri).into()).collect();
    Command::RegisterSdc(RegisterSdc { sdc, name, incarnation, uris, ..RegisterSdc::default() })
}

/// Two gateways, a client without hosts, and the volume.
fn state() -> State {
    let mut s = pair(Durable);
    for (sdc, uri) in
        [(1, "iscsi://10.0.0.1:3260"), (2, "nvme-tcp://10.0.0.2:4420"), (3, "nbd://x/")]
    {
        assert_eq!(apply(&mut s, &register(sdc, &[uri])), Outcome::Changed);
    }
    s
}

fn change(host: &str, from: u32, to: u32) -> SeatChange {
    SeatChange { volume: 1, host: host.into(), from, to }
}

fn seat(s: &mut State, changes: Vec<SeatChange>) -> Outcome {
    let outcome = apply(s, &Command::Seat(Seat { changes }));
    s.check().unwrap();
    outcome
}

/// The gateway of a host and the generation at which it got the seat, and those of the permissions.
fn numbers(s: &State, host: &str) -> (u32, u32, u32, u32) {
    let volume = &s.volumes[&V];
    let seat = volume.seats.get(host).map_or((0, 0), |seat| (seat.sdc.0, seat.since));
    let grant = volume.mapping.grant(SdcId(9)).unwrap();
    (seat.0, seat.1, grant.generation, grant.since)
}

#[test]
pub(crate) fn a_move_raises_the_generation_and_the_first_seat_does_not() {
    let mut s = state();
    assert_eq!(seat(&mut s, vec![change("a", 0, 1)]), Outcome::Changed);
    assert_eq!(numbers(&s, "a"), (1, 1, 1, 1));
    assert_eq!(seat(&mut s, vec![change("a", 1, 2), change("b", 0, 1)]), Outcome::Changed);
    assert_eq!(numbers(&s, "a"), (2, 2, 2, 1));
    assert_eq!(numbers(&s, "b"), (1, 2, 2, 1));
    assert_eq!(seat(&mut s, vec![change("a", 2, 0)]), Outcome::Changed);
    assert_eq!(numbers(&s, "a"), (0, 0, 3, 1));
    assert_eq!(seat(&mut s, vec![change("a", 0, 1)]), Outcome::Changed);
    assert_eq!(numbers(&s, "a"), (1, 3, 3, 1));
}

#[test]
fn a_seat_that_another_gateway_has_by_now_and_one_for_a_stranger_stay_as_they_are() {
    let mut s = state();
    seat(&mut s, vec![change("a", 0, 1)]);
    let long = "x".repeat(seat::HOST_NAME + 1);
    for wrong in [
        change("a", 0, 2),
        change("a", 2, 1),
        change("a", 1, 1),
        change("a", 1, 9),
        change("b", 1, 2),
        change("b", 0, 0),
        change("", 0, 1),
        change(&long, 0, 1),
        SeatChange { volume: 7, ..change("b", 0, 1) },
    ] {
        assert_eq!(seat(&mut s, vec![wrong.clone()]), Outcome::Unchanged, "{wrong:?}");
    }
    let only = BTreeMap::from([(SdcId(1), Grant::new(Access::ReadWrite, 0))]);
    let mapping = Some(Mapping::only(only).info());
    apply(&mut s, &Command::MapVolume(MapVolume { volume: 1, mapping }));
    assert_eq!(seat(&mut s, vec![change("a", 1, 2)]), Outcome::Unchanged, "it is not mapped there");
}

#[test]
fn a_volume_has_as_many_seats_as_it_may_and_not_more() {
    let mut s = state();
    let all = (0..SEATS + 2).map(|i| change(&format!("h{i}"), 0, 1)).collect();
    seat(&mut s, all);
    assert_eq!(s.volumes[&V].seats.len(), SEATS);
    assert_eq!(seat(&mut s, vec![change("h0", 1, 2)]), Outcome::Changed, "it takes no more room");
    let both = vec![change("h0", 2, 0), change("other", 0, 2)];
    assert_eq!(seat(&mut s, both), Outcome::Changed);
    assert_eq!(s.volumes[&V].seats.len(), SEATS);
}

#[test]
fn the_lowest_free_number_is_given_to_a_gateway_which_keeps_it() {
    let mut s = state();
    let number = |s: &State, sdc| s.sdcs[&SdcId(sdc)].gateway;
    assert_eq!([1, 2, 3].map(|sdc| number(&s, sdc)), [Some(0), Some(1), None]);
    let drop = DropObject { kind: ObjectKind::Sdc as i32, id: 1 };
    assert_eq!(apply(&mut s, &Command::DropObject(drop)), Outcome::Changed);
    apply(&mut s, &register(4, &["nbd://x/", "iscsi://10.0.0.4:3260"]));
    apply(&mut s, &register(2, &["nvme-tcp://10.0.0.7:4420"]));
    assert_eq!([2, 4].map(|sdc| number(&s, sdc)), [Some(1), Some(0)]);
    apply(&mut s, &register(4, &["nbd://x/"]));
    assert_eq!(number(&s, 4), None);
    for sdc in 5..5 + u32::from(GATEWAYS) {
        apply(&mut s, &register(sdc, &["iscsi://10.0.0.9:3260"]));
    }
    let none = s.sdcs.iter().filter(|(_, sdc)| sdc.gateway.is_none()).map(|(id, _)| id.0);
    assert_eq!(none.collect::<Vec<_>>(), [3, 4, 4 + u32::from(GATEWAYS)]);
}

#[test]
fn maps_and_snapshots_have_seats_and_gateways() {
    let mut s = state();
    seat(&mut s, vec![change("a", 0, 1)]);
    let pages = s.pages_since(MapVersion(0));
    let last = pages.last().unwrap();
    assert_eq!(seat::seats(last.volumes[0].seats.clone()), s.volumes[&V].seats);
    assert_eq!((last.gateways_at, &last.gateways), (s.sdcs[&SdcId(3)].changed_at.0, &s.gateways()));
    assert_eq!(
        last.gateways.iter().map(|g| (g.sdc, g.number)).collect::<Vec<_>>(),
        [(1, 0), (2, 1)]
    );
    let have = s.version;
    seat(&mut s, vec![change("a", 1, 2)]);
    let last = s.pages_since(have).pop().unwrap();
    assert!(last.gateways_at == 0 && last.gateways.is_empty() && last.volumes.len() == 1);
    assert_eq!(State::from_bytes(&s.to_bytes()).as_ref(), Ok(&s));
}

/// The lost MDMs may have moved seats that the state does not have.
#[test]
pub(crate) fn after_a_recovery_no_seat_is_known_and_each_new_one_is_fenced() {
    let mut s = state();
    seat(&mut s, vec![change("a", 0, 1)]);
    let decided = s.clone();
    let me = Member { name: "m".into(), address: "10.1.0.1:7001".into(), tie_breaker: false };
    s.recover(&decided, 1, me, "test", 1000);
    assert!(s.volumes[&V].seats.is_empty());
    let before = numbers(&s, "a");
    assert_eq!(
        apply(&mut s, &Command::Seat(Seat { changes: vec![change("a", 0, 2)] })),
        Outcome::Changed
    );
    let after = numbers(&s, "a");
    assert!(after.0 == 2 && after.2 > before.2 && after.2 == after.1, "{after:?}");
}
