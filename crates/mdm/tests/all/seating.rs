//! The leader's decision which seats move: what it has heard of gateways and of their hosts.

use crate::common::*;
use base::{Limits, SdcId, Time, VolumeId};
use core::time::Duration;
use mdm::command::{DropObject, MapVolume, RegisterSdc, Seat, SeatChange};
use mdm::mapping::{Grant, Mapping};
use mdm::seat::SEATS;
use mdm::seating::Seating;
use mdm::{Command, Outcome, State};
use std::collections::BTreeMap;
use wire::control::DeviceKind::Durable;
use wire::control::{Access, HostNames, ObjectKind, SeatWish};

const V: VolumeId = VolumeId(1);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn names(list: &[&str]) -> HostNames {
    let names = list.iter().map(|name| (*name).into()).collect();
    HostNames { names, ..HostNames::default() }
}

fn wish(volume: u32, host: &str) -> SeatWish {
    SeatWish { volume, host: host.into(), moves: false }
}

/// Gateways 1 to 3, and their leader, which has led since the start.
struct Bench {
    state: State,
    seating: Seating,
    now: Time,
    limits: Limits,
}

impl Bench {
    fn new() -> Bench {
        let mut state = pair(Durable);
        for sdc in 1..=3 {
            let uris = vec![format!("iscsi://10.0.0.{sdc}:3260")];
            let (name, incarnation) = (format!("c{sdc}"), 10 + u64::from(sdc));
            let register = RegisterSdc { sdc, name, incarnation, uris, ..RegisterSdc::default() };
            apply(&mut state, &Command::RegisterSdc(register));
        }
        let (now, limits) = (Time(1_000_000_000), Limits::SHIPPED);
        let mut seating = Seating::default();
        seating.begin(now);
        Bench { state, seating, now, limits }
    }

    /// These gateways have registered, and have told their hosts.
    fn with(gateways: &[(u32, &[&str])]) -> Bench {
        let mut b = Bench::new();
        for (sdc, hosts) in gateways {
            b.seating.came(b.now, SdcId(*sdc));
            b.tell(*sdc, hosts);
        }
        b
    }

    fn tell(&mut self, sdc: u32, hosts: &[&str]) {
        self.seating.heard(self.now, SdcId(sdc), Some(names(hosts)));
    }

    /// Gives gateway `sdc` the seat of a host.
    fn seat(&mut self, host: &str, sdc: u32) {
        let changes = vec![SeatChange { volume: 1, host: host.into(), from: 0, to: sdc }];
        assert_eq!(apply(&mut self.state, &Command::Seat(Seat { changes })), Outcome::Changed);
        self.seating.look(self.now);
    }

    /// Lets time pass, while these gateways send heartbeats without news. Makes the moves that are
    /// due. Returns them: the host, and the gateways before and after.
    fn pass(&mut self, time: Duration, alive: &[u32]) -> Vec<(String, u32, u32)> {
        let (end, mut beat) = (self.now + time, self.now);
        let mut moved = Vec::new();
        loop {
            if beat <= self.now {
                alive.iter().for_each(|sdc| self.seating.heard(self.now, SdcId(*sdc), None));
                beat = self.now + self.limits.heartbeat_every;
            }
            moved.extend(self.look());
            if self.now == end {
                return moved;
            }
            let due = self.seating.wake_at().unwrap_or(Time::NEVER);
            self.now = due.min(beat).max(self.now).min(end);
        }
    }

    fn look(&mut self) -> Vec<(String, u32, u32)> {
        let Some(seats) = self.seating.moves(self.now, &self.state, &self.limits) else {
            return Vec::new();
        };
        assert!(!seats.changes.is_empty());
        let moved = seats.changes.iter().map(|c| (c.host.clone(), c.from, c.to)).collect();
        assert_eq!(apply(&mut self.state, &Command::Seat(seats)), Outcome::Changed);
        moved
    }

    fn wished(&self, sdc: u32, wishes: &[SeatWish]) -> Vec<(u32, String, u32, u32)> {
        let seats = self.seating.wished(self.now, &self.state, (SdcId(sdc), wishes), &self.limits);
        seats.changes.into_iter().map(|c| (c.volume, c.host, c.from, c.to)).collect()
    }

    /// Maps the volume only to these clients.
    fn map(&mut self, to: &[u32]) {
        let generation = self.state.volumes[&V].generation + 1;
        let grants = to.iter().map(|sdc| (SdcId(*sdc), Grant::new(Access::ReadWrite, generation)));
        let mapping = Some(Mapping::only(grants.collect::<BTreeMap<_, _>>()).info());
        apply(&mut self.state, &Command::MapVolume(MapVolume { volume: 1, mapping }));
    }
}

fn moved(host: &str, from: u32, to: u32) -> Vec<(String, u32, u32)> {
    vec![(host.into(), from, to)]
}

#[test]
fn the_seat_of_a_gateway_that_is_silent_for_a_second_moves_and_no_earlier() {
    let mut b = Bench::with(&[(1, &["a"]), (2, &["a"])]);
    b.seat("a", 1);
    assert_eq!(b.pass(ms(5000), &[1, 2]), []);
    let last = b.now;
    assert_eq!(b.pass(ms(900), &[2]), []);
    assert_eq!(b.pass(ms(400), &[2]), moved("a", 1, 2));
    assert!(b.now.since(last) < ms(1500));
    // It comes back. The seat stays where it is.
    b.tell(1, &["a"]);
    assert_eq!(b.pass(ms(5000), &[1, 2]), []);
}

#[test]
fn the_seat_of_a_gateway_that_the_host_has_left_moves_at_once() {
    let mut b = Bench::with(&[(1, &["a", "b"]), (2, &["a", "b"])]);
    b.seat("a", 1);
    b.seat("b", 1);
    assert_eq!(b.pass(ms(3000), &[1, 2]), []);
    b.tell(1, &["b"]);
    assert_eq!(b.pass(ms(300), &[1, 2]), moved("a", 1, 2));
    // The gateway registers again, and has two seconds to tell its hosts.
    b.seating.came(b.now, SdcId(1));
    assert_eq!(b.pass(ms(1900), &[1, 2]), []);
    assert_eq!(b.pass(ms(400), &[1, 2]), moved("b", 1, 2));
}

#[test]
fn a_restarted_gateway_keeps_its_seats_if_its_hosts_come_back() {
    let mut b = Bench::with(&[(1, &["a", "b"]), (2, &["a", "b"])]);
    b.seat("a", 1);
    b.seat("b", 1);
    b.seating.came(b.now, SdcId(1));
    assert_eq!(b.pass(ms(1000), &[1, 2]), []);
    b.tell(1, &["a"]);
    assert_eq!(b.pass(ms(900), &[1, 2]), []);
    assert_eq!(b.pass(ms(400), &[1, 2]), moved("b", 1, 2));
}

#[test]
fn a_seat_moves_only_to_a_gateway_that_is_heard_has_the_host_and_may_use_the_volume() {
    let mut b = Bench::with(&[(1, &["a"]), (2, &["b"]), (3, &["a"])]);
    b.seat("a", 1);
    assert_eq!(b.pass(ms(5000), &[2]), [], "3 is silent, and 2 has another host");
    b.map(&[1, 2]);
    assert_eq!(b.pass(ms(5000), &[2, 3]), [], "3 may not use it");
    b.map(&[1, 2, 3]);
    assert_eq!(b.pass(ms(400), &[2, 3]), moved("a", 1, 3));
    // Of several, the one with the lowest number gets it, and not the one with the lowest id.
    b.map(&[2, 3]);
    let drop = DropObject { kind: ObjectKind::Sdc as i32, id: 1 };
    assert_eq!(apply(&mut b.state, &Command::DropObject(drop)), Outcome::Changed);
    let uris = vec!["nvme-tcp://10.0.0.4:4420".into()];
    let four =
        RegisterSdc { sdc: 4, name: "c4".into(), incarnation: 20, uris, ..Default::default() };
    apply(&mut b.state, &Command::RegisterSdc(four));
    assert_eq!(b.state.sdcs[&SdcId(4)].gateway, Some(0));
    b.map(&[2, 3, 4]);
    b.seating.came(b.now, SdcId(4));
    b.tell(4, &["a"]);
    b.tell(2, &["a"]);
    assert_eq!(b.pass(ms(2000), &[2, 4]), moved("a", 3, 4));
}

#[test]
fn the_seat_of_a_gateway_that_is_unmapped_or_removed_moves_at_once() {
    let mut b = Bench::with(&[(1, &["a"]), (2, &["a"])]);
    b.seat("a", 1);
    b.map(&[2]);
    assert_eq!(b.pass(ms(400), &[1, 2]), moved("a", 1, 2));
    b.map(&[1, 2]);
    b.tell(2, &[]);
    b.tell(1, &[]);
    assert_eq!(b.pass(ms(5000), &[1, 2]), [], "it is connected nowhere");
    b.map(&[1]);
    let drop = DropObject { kind: ObjectKind::Sdc as i32, id: 2 };
    assert_eq!(apply(&mut b.state, &Command::DropObject(drop)), Outcome::Changed);
    assert_eq!(b.pass(ms(1000), &[1]), []);
    b.tell(1, &["a"]);
    assert_eq!(b.pass(ms(400), &[1]), moved("a", 2, 1));
}

/// The leader knows nothing about gateways that have not registered with it.
#[test]
fn a_new_leader_waits_before_it_judges_a_gateway_that_it_has_not_heard() {
    let led_for_a_while = || {
        let mut b = Bench::with(&[(1, &["a"]), (2, &["a"])]);
        b.seat("a", 1);
        b.seating.begin(b.now);
        b.seating.came(b.now, SdcId(2));
        b.tell(2, &["a"]);
        assert_eq!(b.pass(ms(2900), &[2]), []);
        b
    };
    assert_eq!(led_for_a_while().pass(ms(400), &[2]), moved("a", 1, 2));
    let mut b = led_for_a_while();
    b.seating.came(b.now, SdcId(1));
    b.tell(1, &["a"]);
    assert_eq!(b.pass(ms(5000), &[1, 2]), [], "it has come");
}

/// Frames of the other gateways wait in its sockets.
#[test]
fn an_mdm_that_was_stalled_moves_no_seat() {
    let mut b = Bench::with(&[(1, &["a"]), (2, &["a"])]);
    b.seat("a", 1);
    assert_eq!(b.pass(ms(1000), &[1, 2]), []);
    b.now = b.now + ms(30_000);
    b.seating.heard(b.now, SdcId(2), None);
    assert_eq!(b.pass(ms(500), &[2]), [], "it has heard nobody for 30 s");
    assert_eq!(b.pass(ms(5000), &[1, 2]), []);
    assert_eq!(b.pass(ms(1300), &[2]), moved("a", 1, 2));
}

/// A session of another volume, or one of discovery, is no path.
#[test]
fn only_a_session_that_can_use_the_volume_counts() {
    let mut b = Bench::with(&[(1, &[]), (2, &[]), (3, &[])]);
    let sessions = |list: &[(u32, &str)]| {
        let sessions = list.iter().map(|(volume, host)| wish(*volume, host)).collect();
        Some(HostNames { sessions, ..HostNames::default() })
    };
    b.seating.heard(b.now, SdcId(1), sessions(&[(1, "a"), (2, "a")]));
    b.seating.heard(b.now, SdcId(2), sessions(&[(2, "a")]));
    b.seating.heard(b.now, SdcId(3), sessions(&[(1, "a")]));
    b.seat("a", 1);
    assert_eq!(b.pass(ms(3000), &[1, 2, 3]), []);
    b.seating.heard(b.now, SdcId(1), sessions(&[(2, "a")]));
    assert_eq!(b.pass(ms(400), &[1, 2, 3]), moved("a", 1, 3));
}

/// The question may come before the heartbeat that names the host, or after one without it.
#[test]
fn a_gateway_that_asks_for_a_seat_gets_time_to_name_the_host_and_is_not_believed_for_longer() {
    let mut b = Bench::with(&[(1, &[]), (2, &["a"])]);
    assert_eq!(b.pass(ms(5000), &[1, 2]), []);
    let wishes = [wish(1, "a")];
    b.seating.asked(b.now, SdcId(1), &wishes);
    assert_eq!(b.wished(1, &wishes), [(1, "a".into(), 0, 1)]);
    b.seat("a", 1);
    assert_eq!(b.pass(ms(1900), &[1, 2]), []);
    b.tell(1, &["a"]);
    assert_eq!(b.pass(ms(5000), &[1, 2]), []);
    // The question comes after the heartbeat that the host has left: it is back.
    b.tell(1, &[]);
    b.seating.asked(b.now, SdcId(1), &wishes);
    assert_eq!(b.pass(ms(1000), &[1, 2]), []);
    b.seating.asked(b.now, SdcId(1), &wishes);
    assert_eq!(b.pass(ms(900), &[1, 2]), []);
    assert_eq!(b.pass(ms(400), &[1, 2]), moved("a", 1, 2), "it is a repeated question");
}

/// What it has asked for is for one volume.
#[test]
fn a_gateway_that_has_told_that_a_host_left_is_not_believed_for_other_volumes() {
    let mut b = Bench::with(&[(1, &["a"]), (2, &["a"])]);
    b.seat("a", 1);
    assert_eq!(b.pass(ms(5000), &[1, 2]), []);
    b.tell(1, &[]);
    b.seating.asked(b.now, SdcId(1), &[wish(2, "a")]);
    assert_eq!(b.pass(ms(300), &[1, 2]), moved("a", 1, 2));
}

/// The host may reach only the gateway that asks, which has not named it yet.
#[test]
fn the_seat_of_a_gateway_that_the_host_has_left_moves_to_the_one_that_asks() {
    let mut b = Bench::with(&[(1, &["a"]), (2, &[])]);
    b.seat("a", 1);
    assert_eq!(b.pass(ms(5000), &[1, 2]), []);
    let wishes = [wish(1, "a")];
    let moves = [(1, "a".into(), 1, 2)];
    assert_eq!(b.wished(2, &wishes), [], "it has the host");
    b.tell(1, &[]);
    assert_eq!(b.wished(2, &wishes), moves);
    assert_eq!(b.wished(1, &wishes), [], "it has it");
    // The host comes back to it first.
    b.seating.asked(b.now, SdcId(1), &wishes);
    assert_eq!(b.wished(2, &wishes), []);
    assert_eq!(b.pass(ms(1900), &[1, 2]), []);
    assert_eq!(b.wished(2, &wishes), []);
    assert_eq!(b.pass(ms(100), &[1, 2]), []);
    assert_eq!(b.wished(2, &wishes), moves, "it had two seconds");
    // The same for one that has just registered.
    b.seating.came(b.now, SdcId(1));
    b.seating.heard(b.now, SdcId(1), None);
    assert_eq!(b.pass(ms(1900), &[1, 2]), []);
    assert_eq!(b.wished(2, &wishes), []);
    assert_eq!(b.pass(ms(100), &[1, 2]), []);
    assert_eq!(b.wished(2, &wishes), moves);
}

#[test]
fn the_seat_of_a_gateway_that_is_silent_or_unmapped_moves_to_the_one_that_asks() {
    let mut b = Bench::with(&[(1, &["a"]), (2, &[])]);
    b.seat("a", 1);
    let wishes = [wish(1, "a")];
    let moves = [(1, "a".into(), 1, 2)];
    assert_eq!(b.pass(ms(5000), &[1, 2]), []);
    assert_eq!(b.pass(ms(900), &[2]), []);
    assert_eq!(b.wished(2, &wishes), []);
    assert_eq!(b.pass(ms(100), &[2]), []);
    assert_eq!(b.wished(2, &wishes), moves);
    b.seating.heard(b.now, SdcId(1), None);
    assert_eq!(b.wished(2, &wishes), [], "it is heard again");
    b.map(&[2]);
    assert_eq!(b.wished(2, &wishes), moves);
    b.map(&[1]);
    b.tell(1, &[]);
    assert_eq!(b.wished(2, &wishes), [], "who asks may not use it");
}

/// SET TARGET PORT GROUPS.
#[test]
fn a_seat_that_the_host_wants_to_move_moves_to_the_one_that_asks() {
    let mut b = Bench::with(&[(1, &["a", "b"]), (2, &["a"])]);
    b.seat("a", 1);
    b.seat("b", 1);
    let moves = |host: &str| SeatWish { moves: true, ..wish(1, host) };
    assert_eq!(b.wished(2, &[moves("a"), wish(1, "b")]), [(1, "a".into(), 1, 2)]);
    assert_eq!(b.wished(1, &[moves("a")]), [], "it is there");
    assert_eq!(b.wished(2, &[moves("c")]), [(1, "c".into(), 0, 2)], "nobody had it");
    assert_eq!(b.wished(2, &[wish(1, "a"), moves("a")]), [], "the first one counts");
    b.map(&[1]);
    assert_eq!(b.wished(2, &[moves("a")]), [], "it may not use the volume");
}

#[test]
fn nobody_is_woken_for_seats_while_there_is_none() {
    let mut b = Bench::with(&[(1, &["a"]), (2, &["a"])]);
    assert_eq!(b.seating.wake_at(), Some(b.now), "it has just begun");
    assert_eq!(b.look(), []);
    assert_eq!(b.seating.wake_at(), None);
    b.seat("a", 1);
    assert_eq!(b.seating.wake_at(), Some(b.now));
    assert_eq!(b.look(), []);
    assert_eq!(b.seating.wake_at(), Some(b.now + b.limits.heartbeat_every));
    assert_eq!(b.seating.moves(b.now, &b.state, &b.limits), None, "it is not due");
}

#[test]
fn seats_that_are_free_are_given_and_others_stay() {
    let mut b = Bench::with(&[(1, &["a"]), (2, &["a"])]);
    b.seat("a", 1);
    let list = [wish(1, "a"), wish(1, "b"), wish(1, "b"), wish(7, "b"), wish(1, "c")];
    let given = |host: &str| (1, host.into(), 0, 2);
    assert_eq!(b.wished(2, &list), [given("b"), given("c")]);
    b.map(&[1]);
    assert_eq!(b.wished(2, &list), [], "it may not use the volume");
    assert_eq!(b.wished(9, &list), [], "nobody knows it");
}

#[test]
fn in_a_full_volume_only_seats_of_hosts_that_are_connected_nowhere_end() {
    let all: Vec<String> = (0..SEATS).map(|i| format!("h{i:03}")).collect();
    let all: Vec<&str> = all.iter().map(|host| &host[..]).collect();
    let mut b = Bench::with(&[(1, &all), (2, &["new", "too"])]);
    all.iter().for_each(|host| b.seat(host, 1));
    let both = [wish(1, "new"), wish(1, "too")];
    assert_eq!(b.wished(2, &both), [], "all are connected");
    // A new leader has heard of no gateway but one.
    b.seating.begin(b.now);
    b.seating.came(b.now, SdcId(2));
    b.tell(2, &["new", "too"]);
    assert_eq!(b.pass(ms(2900), &[2]), []);
    assert_eq!(b.wished(2, &both), []);
    assert_eq!(b.pass(ms(200), &[2]), []);
    let hosts: Vec<_> = b.wished(2, &both).into_iter().map(|c| (c.1, c.3)).collect();
    let want = [("h000", 0), ("new", 2), ("h001", 0), ("too", 2)];
    assert_eq!(hosts, want.map(|(host, to)| (host.into(), to)), "1 is gone");
}

#[test]
fn each_new_host_of_a_full_volume_takes_the_seat_of_another_idle_one() {
    let all: Vec<String> = (0..SEATS).map(|i| format!("h{i:03}")).collect();
    let all: Vec<&str> = all.iter().map(|host| &host[..]).collect();
    let mut b = Bench::with(&[(1, &all), (2, &[]), (3, &[])]);
    all.iter().for_each(|host| b.seat(host, 1));
    b.tell(1, &all[2..]);
    b.tell(3, &["h000"]);
    let moves = b.pass(ms(2400), &[1, 2, 3]);
    assert_eq!(moves, moved("h000", 1, 3), "it is at another gateway");
    let three = [wish(1, "new"), wish(1, "too"), wish(1, "h005")];
    let ends = (1, "h001".into(), 1, 0);
    assert_eq!(b.wished(2, &three), [ends, (1, "new".into(), 0, 2)], "one is idle");
    b.tell(1, &all[4..]);
    b.pass(ms(2400), &[1, 2, 3]);
    let changes = b.wished(2, &three);
    let hosts: Vec<_> = changes.iter().map(|c| (&c.1[..], c.3)).collect();
    assert_eq!(hosts, [("h001", 0), ("new", 2), ("h002", 0), ("too", 2)]);
    // The names that a gateway told before it died keep no seat.
    b.pass(ms(1200), &[2, 3]);
    let hosts: Vec<_> = b.wished(2, &three[..1]).into_iter().map(|c| (c.1, c.3)).collect();
    assert_eq!(hosts, [("h001".into(), 0), ("new".into(), 2)]);
    b.seating.came(b.now, SdcId(1));
    b.tell(1, &all[1..]);
    assert_eq!(b.wished(2, &three[..1]), [], "it is back, with all of them");
}

/// An NVMe host reaches all volumes, and a session of iSCSI reaches one.
#[test]
fn a_host_that_is_back_by_the_question_of_its_gateway_may_leave_it_again() {
    for nvme in [true, false] {
        let mut b = Bench::with(&[(1, &[]), (2, &["a"])]);
        let tell = |b: &mut Bench, has: bool| {
            let hosts = match nvme {
                _ if !has => HostNames::default(),
                true => names(&["a"]),
                false => HostNames { sessions: vec![wish(1, "a")], ..HostNames::default() },
            };
            b.seating.heard(b.now, SdcId(1), Some(hosts));
        };
        tell(&mut b, true);
        b.seat("a", 1);
        assert_eq!(b.pass(ms(5000), &[1, 2]), []);
        tell(&mut b, false);
        b.seating.asked(b.now, SdcId(1), &[wish(1, "a")]);
        assert_eq!(b.pass(ms(500), &[1, 2]), []);
        tell(&mut b, true);
        assert_eq!(b.pass(ms(500), &[1, 2]), []);
        tell(&mut b, false);
        assert_eq!(b.pass(ms(300), &[1, 2]), moved("a", 1, 2), "nvme: {nvme}");
    }
}
