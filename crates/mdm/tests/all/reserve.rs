//! Reservations in the state: a change is done once, and what it takes is fenced by a generation.

use crate::common::*;
use base::{MapVersion, SdcId, VolumeId};
use mdm::command::{MapVolume, RegisterSdc, Reserve};
use mdm::mapping::Mapping;
use mdm::reserve::{change_info, host_info, table};
use mdm::{Command, Outcome, State};
use target::reserve::{Access, Change, Identity, Kind, Registrant};
use wire::control::DeviceKind::Durable;
use wire::control::{Access as Leave, ReserveOutcome};

const V: VolumeId = VolumeId(1);
const SHARED: Kind = Kind::WriteExclusiveRegistrants;

fn host(n: u8) -> Identity {
    Identity::Scsi { name: format!("iqn.host{n}"), isid: [n; 6], port: 1 }
}

fn register(key: u64, new: u64) -> Change {
    Change::Register { key, new, ignore: false, all_ports: false }
}

/// Two clients, with incarnations 11 and 12, and the volume.
fn state() -> State {
    let mut s = pair(Durable);
    for sdc in [1, 2] {
        let incarnation = 10 + u64::from(sdc);
        let m = RegisterSdc { sdc, name: format!("c{sdc}"), incarnation, ..Default::default() };
        assert_eq!(apply(&mut s, &Command::RegisterSdc(m)), Outcome::Changed);
    }
    s
}

fn command(sdc: u32, number: u64, who: u8, change: &Change) -> Command {
    let (incarnation, who, change) =
        (10 + u64::from(sdc), host_info(&host(who)), change_info(change));
    let notes_losses = true;
    Command::Reserve(Reserve { volume: 1, sdc, incarnation, number, who, change, notes_losses })
}

/// Host `who` asks for a change, at client `sdc`. Returns the outcome.
fn ask(s: &mut State, sdc: u32, number: u64, who: u8, change: &Change) -> ReserveOutcome {
    assert_eq!(apply(s, &command(sdc, number, who, change)), Outcome::Changed, "{change:?}");
    s.volumes[&V].asked(SdcId(sdc), 10 + u64::from(sdc), number).expect("it is known")
}

/// The generation of the volume, and for a client that of its grant and its beginning.
fn numbers(s: &State) -> (u32, u32, u32) {
    let volume = &s.volumes[&V];
    let grant = volume.mapping.grant(SdcId(1)).unwrap();
    (volume.generation, grant.generation, grant.since)
}

/// Hosts 1 and 2 are registered, with their numbers as keys, and host 1 holds the reservation.
fn reserved() -> State {
    let mut s = state();
    assert_eq!(ask(&mut s, 1, 1, 1, &register(0, 1)), ReserveOutcome::Done);
    assert_eq!(ask(&mut s, 2, 1, 2, &register(0, 2)), ReserveOutcome::Done);
    assert_eq!(numbers(&s), (1, 1, 1), "a registration takes access from nobody");
    let reserve = Change::Reserve { key: 1, kind: SHARED };
    assert_eq!(ask(&mut s, 1, 2, 1, &reserve), ReserveOutcome::Done);
    s
}

#[test]
fn a_change_that_takes_access_raises_all_generations_and_ends_no_permission() {
    let mut s = reserved();
    assert_eq!(numbers(&s), (2, 2, 1), "strangers write no more");
    assert_eq!(s.volumes[&V].mapping.all().map(|g| (g.generation, g.since)), Some((2, 1)));
    let reader = Access { read: true, write: false };
    assert_eq!(s.volumes[&V].reservations.access_of_strangers(), reader);
    let preempt = Change::Preempt { key: 1, victim: 2, kind: SHARED };
    assert_eq!(ask(&mut s, 1, 3, 1, &preempt), ReserveOutcome::Done);
    assert_eq!((numbers(&s), s.volumes[&V].reservations.access(&host(2))), ((3, 3, 1), reader));
    let release = Change::Release { key: 1, kind: SHARED };
    assert_eq!(ask(&mut s, 1, 4, 1, &release), ReserveOutcome::Done);
    assert_eq!(numbers(&s), (3, 3, 1), "a release takes nothing");
    // An unmap ends the permission, and what follows is a new one.
    for (mapping, want) in [(Mapping::nobody(), None), (Mapping::everyone(0), Some((4, 4)))] {
        let m = MapVolume { volume: 1, mapping: Some(mapping.info()) };
        assert_eq!(apply(&mut s, &Command::MapVolume(m)), Outcome::Changed);
        let grant = s.volumes[&V].mapping.grant(SdcId(1));
        assert_eq!(grant.map(|g| (g.generation, g.since)), want);
    }
    assert_eq!(s.volumes[&V].reservations.registrants.len(), 1, "hosts stay registered");
}

#[test]
pub(crate) fn a_change_that_comes_again_is_done_once() {
    let mut s = reserved();
    let preempt = Change::Preempt { key: 1, victim: 2, kind: SHARED };
    assert_eq!(ask(&mut s, 1, 3, 1, &preempt), ReserveOutcome::Done);
    let before = s.clone();
    let again = s.change(command(1, 3, 1, &preempt)).unwrap();
    assert!(again.is_nothing(), "done again it would be a conflict");
    // A number below the last one is of a frame that comes late.
    assert_eq!(apply(&mut s, &command(1, 2, 1, &Change::Clear { key: 1 })), Outcome::Unchanged);
    s.index = before.index;
    assert_eq!(s, before);
    // The next number is another change, and so is the same number of another client.
    assert_eq!(ask(&mut s, 1, 4, 1, &preempt), ReserveOutcome::Conflict);
    assert_eq!(ask(&mut s, 2, 3, 2, &register(0, 2)), ReserveOutcome::Done);
    assert_eq!(s.volumes[&V].asked(SdcId(1), 11, 3), None, "only the last one is known");
}

#[test]
fn a_refused_change_changes_only_its_record() {
    let mut s = reserved();
    let before = s.volumes[&V].clone();
    let cases = [
        (register(5, 6), ReserveOutcome::Conflict),
        (Change::Release { key: 1, kind: Kind::ExclusiveAccess }, ReserveOutcome::WrongKind),
        (Change::Preempt { key: 1, victim: 0, kind: SHARED }, ReserveOutcome::NoVictim),
        (Change::Reserve { key: 1, kind: Kind::ExclusiveAccess }, ReserveOutcome::Conflict),
    ];
    for (i, (change, want)) in cases.iter().enumerate() {
        assert_eq!(ask(&mut s, 1, 10 + i as u64, 1, change), *want, "{change:?}");
    }
    let after = &s.volumes[&V];
    assert_eq!((&after.reservations, after.generation), (&before.reservations, 2));
    for n in 3..=128u8 {
        assert_eq!(ask(&mut s, 2, u64::from(n), n, &register(0, 9)), ReserveOutcome::Done);
    }
    assert_eq!(ask(&mut s, 2, 129, 129, &register(0, 9)), ReserveOutcome::Full);
}

/// It would be pushed to every client, with the whole table, as often as a host asks.
#[test]
fn a_change_without_effect_is_logged_and_makes_no_map() {
    let mut s = reserved();
    let before = (s.version, s.volumes[&V].changed_at);
    let index = s.index;
    let again = Change::Reserve { key: 1, kind: SHARED };
    let cases = [
        (2, register(5, 6), ReserveOutcome::Conflict),
        (1, again, ReserveOutcome::Done),
        (1, Change::Release { key: 1, kind: Kind::ExclusiveAccess }, ReserveOutcome::WrongKind),
        (2, Change::Release { key: 2, kind: Kind::ExclusiveAccess }, ReserveOutcome::Done),
    ];
    for (number, (who, change, want)) in (10..).zip(&cases) {
        assert_eq!(ask(&mut s, u32::from(*who), number, *who, change), *want, "{change:?}");
        assert_eq!((s.version, s.volumes[&V].changed_at), before, "{change:?}");
        assert!(s.change(command(u32::from(*who), number, *who, change)).unwrap().is_nothing());
    }
    assert_eq!(s.index, index + 4);
    assert_eq!(State::from_bytes(&s.to_bytes()), Ok(s.clone()), "it is in snapshots");
    assert_eq!(ask(&mut s, 2, 20, 2, &register(2, 3)), ReserveOutcome::Done);
    assert!(s.version > before.0);
}

#[test]
fn a_host_that_registers_again_is_known_to_have_been_shut_out() {
    let mut s = reserved();
    let since = |s: &State, n| s.volumes[&V].reservations.since(&host(n));
    assert_eq!((since(&s, 1), since(&s, 2), since(&s, 3)), (0, 0, 2), "strangers lost it");
    let preempt = Change::Preempt { key: 1, victim: 2, kind: SHARED };
    assert_eq!(ask(&mut s, 1, 3, 1, &preempt), ReserveOutcome::Done);
    assert_eq!(ask(&mut s, 2, 2, 2, &register(0, 2)), ReserveOutcome::Done);
    assert_eq!(numbers(&s), (3, 3, 1));
    assert_eq!((since(&s, 1), since(&s, 2)), (0, 3), "as before, but not the same");
    assert_eq!(ask(&mut s, 2, 3, 2, &register(2, 4)), ReserveOutcome::Done);
    assert_eq!(since(&s, 2), 3, "another key is no new registration");
    assert_eq!(State::from_bytes(&s.to_bytes()), Ok(s));
}

#[test]
fn no_generation_is_beyond_the_last_one() {
    let mut s = reserved();
    s.volumes.get_mut(&V).unwrap().generation = u32::MAX;
    let before = s.clone();
    let preempt = Change::Preempt { key: 1, victim: 2, kind: SHARED };
    let refused = Outcome::Refused(mdm::refused::Refused::LastGeneration("v".into()));
    assert!(s.change(command(1, 3, 1, &preempt)).is_err(), "it is not logged");
    assert_eq!(apply(&mut s, &command(1, 3, 1, &preempt)), refused);
    let unmap = MapVolume { volume: 1, mapping: Some(Mapping::nobody().info()) };
    assert_eq!(apply(&mut s, &Command::MapVolume(unmap)), refused);
    assert_eq!(s.volumes, before.volumes);
    assert_eq!(ask(&mut s, 1, 3, 1, &register(1, 5)), ReserveOutcome::Done, "it takes nothing");
}

#[test]
fn a_client_that_may_not_use_the_volume_changes_nothing() {
    let mut s = reserved();
    let only = |sdc| {
        let grant = mdm::mapping::Grant::new(Leave::ReadWrite, 0);
        let mapping = Some(Mapping::only([(SdcId(sdc), grant)].into()).info());
        Command::MapVolume(MapVolume { volume: 1, mapping })
    };
    apply(&mut s, &only(2));
    let clear = Change::Clear { key: 1 };
    assert!(matches!(apply(&mut s, &command(1, 9, 1, &clear)), Outcome::Refused(_)));
    let Command::Reserve(c) = command(2, 9, 2, &register(2, 3)) else { unreachable!() };
    let wrong = [
        Reserve { incarnation: 11, ..c.clone() },
        Reserve { volume: 2, ..c.clone() },
        Reserve { sdc: 3, ..c.clone() },
        Reserve { who: Default::default(), ..c.clone() },
        Reserve { change: Default::default(), ..c.clone() },
    ];
    for c in wrong {
        let outcome = apply(&mut s, &Command::Reserve(c.clone()));
        assert!(matches!(outcome, Outcome::Refused(_)), "{c:?}");
    }
    assert_eq!(s.volumes[&V].asked.len(), 2);
    assert_eq!(ask(&mut s, 2, 9, 2, &register(2, 3)), ReserveOutcome::Done);
    assert_eq!(s.volumes[&V].asked.keys().copied().collect::<Vec<_>>(), [SdcId(2)]);
    // A new process of the client counts from the beginning.
    let m = RegisterSdc { sdc: 2, name: "c2".into(), incarnation: 30, ..Default::default() };
    apply(&mut s, &Command::RegisterSdc(m));
    let Command::Reserve(c) = command(2, 1, 2, &register(3, 4)) else { unreachable!() };
    let c = Command::Reserve(Reserve { incarnation: 30, ..c });
    assert_eq!(apply(&mut s, &c), Outcome::Changed);
    assert_eq!(s.volumes[&V].asked(SdcId(2), 30, 1), Some(ReserveOutcome::Done));
}

#[test]
fn a_snapshot_has_all_of_it_and_the_map_has_the_table() {
    let mut s = reserved();
    ask(&mut s, 2, 7, 2, &register(5, 6));
    assert_eq!(State::from_bytes(&s.to_bytes()), Ok(s.clone()));
    let pages = s.pages_since(MapVersion(0));
    let info = pages[0].volumes[0].reservations.as_ref().expect("they are told");
    assert_eq!(table(Some(info)).as_ref(), Some(&s.volumes[&V].reservations));
    assert_eq!(pair(Durable).pages_since(MapVersion(0))[0].volumes[0].reservations, None);
    // A table that can't be is no state.
    s.volumes.get_mut(&V).unwrap().reservations.registrants.clear();
    assert!(State::from_bytes(&s.to_bytes()).unwrap_err().contains("reservations"));
}

#[test]
fn the_tables_of_many_volumes_fit_into_pages() {
    let mut s = state();
    let limits = limits();
    for i in 0..60 {
        let create = create(&s, &format!("w{i}"), 1 << 20, &limits).unwrap();
        apply(&mut s, &create);
    }
    let who =
        |n: u32| Identity::Scsi { name: format!("{n:0223}"), isid: [n as u8; 6], port: u16::MAX };
    let host = |n| Registrant { key: u64::MAX, who: who(n), holds: false, since: u32::MAX };
    let full = target::reserve::Table {
        generation: u32::MAX,
        reserved: Some(Kind::ExclusiveAccessAll),
        registrants: (0..128).map(host).collect(),
        since: u32::MAX,
    };
    s.volumes.values_mut().for_each(|v| v.reservations = full.clone());
    s.check().unwrap();
    let pages = s.pages_since(MapVersion(0));
    let bytes = |page| prost::Message::encoded_len(page);
    assert!(pages.len() > 1 && pages.iter().map(bytes).all(|len| len < 3 << 19), "{}", pages.len());
    assert_eq!(pages.iter().map(|p| p.volumes.len()).sum::<usize>(), 61);
}
