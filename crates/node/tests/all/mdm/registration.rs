//! Servers register, and some are refused.

use super::*;

#[test]
fn the_newer_process_wins_and_the_older_one_is_told() {
    let (mut b, old, _) = Bench::with_volume(DeviceKind::Ram);
    let (new, registered) = b.sds("a", 9, 99, DeviceKind::Ram);
    assert_eq!((registered.id, registered.incarnation), (1, 3));
    b.beat(&[new]);
    b.beat(&[old]);
    let (code, text) = b.refusal(old);
    assert_eq!((code, &*text), (RefusalCode::Superseded, "another process serves as a: stop one"));
    // It comes back with its former incarnation, or as if it were new.
    let link = b.connect();
    let mut again = hello(&wire::DIALECT, ClusterId(7), Role::Sds, "a");
    (again.id, again.incarnation) = (1, 1);
    b.send(link, Header::new(Kind::Hello), &again);
    assert_eq!(b.refusal(link).0, RefusalCode::Superseded);
    let link = b.say_hello(Role::Sds);
    b.register(link, "a", 1, 11, DeviceKind::Ram);
    assert_eq!(b.refusal(link).0, RefusalCode::Superseded);
    assert_eq!(b.device(1), (true, false, 3));
    // The same incarnation on a new link keeps its number, and the old link is closed.
    let index = b.mdm.state().index;
    let (newer, registered) = b.sds("a", 9, 99, DeviceKind::Ram);
    assert_eq!((registered.incarnation, b.mdm.state().index), (3, index));
    assert!(b.closed.contains(&new) && !b.closed.contains(&newer));
}

#[test]
fn counters_of_a_process_do_not_carry_over_to_the_next_one() {
    let (mut b, one, _) = Bench::with_volume(DeviceKind::Ram);
    let scrub = Some(ScrubStatus { passes: 3, ..ScrubStatus::default() });
    let beat = Heartbeat { used: 5, ops: 7, scrub, ..Heartbeat::default() };
    b.send(one, Header::new(Kind::Heartbeat), &beat);
    b.settle();
    let told = |b: &mut Bench| {
        let status = b.ask(Ask::Status(StatusRequest {})).status.unwrap();
        status.devices[0].heartbeat.clone().unwrap()
    };
    assert_eq!(told(&mut b), beat);
    b.sds("a", 9, 99, DeviceKind::Ram);
    assert_eq!(told(&mut b), Heartbeat { used: 5, ..Heartbeat::default() });
}

/// The session of the first one would stay when the link is gone.
#[test]
fn a_link_registers_one_process() {
    let (mut b, one, _) = Bench::with_volume(DeviceKind::Ram);
    b.register(one, "ccc", 3, 13, DeviceKind::Ram);
    assert_eq!(b.refusal(one).0, RefusalCode::Unexpected);
    assert_eq!(b.mdm.state().devices.len(), 2);
    let client = b.say_hello(Role::Sdc);
    for (name, nonce) in [("c", 1), ("d", 2)] {
        let register = RegisterSdc { name: name.into(), nonce, ..RegisterSdc::default() };
        b.send(client, Header::new(Kind::RegisterSdc), &register);
    }
    assert_eq!(b.refusal(client).0, RefusalCode::Unexpected);
    assert_eq!(b.mdm.state().sdcs.len(), 1);
    let status = b.ask(Ask::Status(StatusRequest {})).status.unwrap();
    let connected: Vec<bool> = status.devices.iter().map(|d| d.connected).collect();
    assert_eq!(connected, [false, true]);
    assert!(status.sdcs.iter().all(|s| !s.connected));
}

#[test]
fn a_registration_that_was_on_its_way_for_long_does_not_win() {
    let mut b = Bench::new();
    let slow = b.say_hello(Role::Sds);
    b.sds("a", 2, 12, DeviceKind::Ram);
    b.register(slow, "a", 1, 11, DeviceKind::Ram);
    assert_eq!(b.refusal(slow).0, RefusalCode::Superseded);
}

#[test]
fn a_server_that_is_refused_is_in_the_status_until_it_is_taken_in() {
    let (mut b, _, _) = Bench::with_volume(DeviceKind::Ram);
    let knock = |b: &mut Bench, domain: &str| {
        let link = b.say_hello(Role::Sds);
        let m = Register {
            sds: "new".into(),
            address: "10.0.0.9:7072".into(),
            nonce: 9,
            store: 9,
            capacity: 1 << 30,
            kind: DeviceKind::Ram as i32,
            domain: domain.into(),
            ..Register::default()
        };
        b.send(link, Header::new(Kind::Register), &m);
        b.ask(Ask::Status(StatusRequest {})).status.unwrap().refused_servers
    };
    let told = knock(&mut b, "elsewhere");
    assert_eq!(told.len(), 1);
    assert_eq!((told[0].name.as_str(), told[0].address.as_str()), ("new", "10.0.0.9:7072"));
    assert!(told[0].why.contains("elsewhere"), "{}", told[0].why);
    assert_eq!(knock(&mut b, "elsewhere").len(), 1, "the same one, once");
    assert_eq!(knock(&mut b, ""), []);
}

#[test]
fn a_server_for_which_there_is_no_room_is_in_the_status() {
    let mut b = Bench::new();
    let room = mdm::refused::MAX_DEVICES as u64;
    for n in 0..=room {
        let link = b.say_hello(Role::Sds);
        let message = Register {
            sds: format!("s{n}"),
            address: format!("10.0.{}.{}:7072", n / 250, n % 250),
            nonce: n + 1,
            store: n + 1,
            capacity: 1 << 30,
            ..Register::default()
        };
        b.send(link, Header::new(Kind::Register), &message);
    }
    let told = b.ask(Ask::Status(StatusRequest {})).status.unwrap().refused_servers;
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].name == format!("s{room}") && told[0].why.contains("`gabion sds remove`"),
        "{told:?}"
    );
}
