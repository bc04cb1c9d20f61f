//! Clients: their incarnations, what they hear of volumes, and when an unmapped one has no access.

use super::*;

#[test]
fn a_restarted_client_gets_a_new_incarnation() {
    let mut b = Bench::new();
    let say = |b: &mut Bench, nonce| {
        let link = b.say_hello(Role::Sdc);
        let uris = vec!["nbd://x".into()];
        let m = RegisterSdc { name: "c".into(), nonce, pid: 5, uris, ..RegisterSdc::default() };
        b.send(link, Header::new(Kind::RegisterSdc), &m);
        (link, b.take::<Registered>(link, Kind::Registered)[0].clone())
    };
    let (old, first) = say(&mut b, 1);
    let (new, second) = say(&mut b, 2);
    assert_eq!((first.id, second.id), (1, 1));
    assert!(second.incarnation > first.incarnation);
    b.send(
        new,
        Header::new(Kind::Heartbeat),
        &Heartbeat { connections: 3, ..Heartbeat::default() },
    );
    b.send(old, Header::new(Kind::Heartbeat), &Heartbeat::default());
    assert_eq!(b.refusal(old).0, RefusalCode::Superseded);
    let status = b.ask(Ask::Status(StatusRequest {})).status.unwrap();
    assert_eq!((status.sdcs[0].connections, status.sdcs[0].connected), (3, true));
    assert_eq!(status.sdcs[0].uris, ["nbd://x"]);
}

#[test]
fn a_known_process_that_registers_again_does_not_count_as_newer() {
    let mut b = Bench::new();
    let register = |b: &mut Bench, link, nonce| {
        let m = RegisterSdc { name: "c".into(), nonce, pid: 5, ..RegisterSdc::default() };
        b.send(link, Header::new(Kind::RegisterSdc), &m);
    };
    let first = b.say_hello(Role::Sdc);
    register(&mut b, first, 1);
    b.drop_link(first);
    // Both connect, the newer process first.
    let (young, old) = (b.say_hello(Role::Sdc), b.say_hello(Role::Sdc));
    register(&mut b, old, 1);
    register(&mut b, young, 2);
    assert_eq!(b.take::<Registered>(young, Kind::Registered).len(), 1);
}

#[test]
fn clients_hear_of_volumes_that_they_have_not_asked_for() {
    let (mut b, _, _) = Bench::with_volume(DeviceKind::Ram);
    let link = b.say_hello(Role::Sdc);
    let m = RegisterSdc { name: "c".into(), nonce: 1, pid: 5, ..RegisterSdc::default() };
    b.send(link, Header::new(Kind::RegisterSdc), &m);
    assert_eq!(b.create("early").error, 0);
    assert_eq!(b.take::<MapPage>(link, Kind::MapPage).len(), 0, "it has no map yet");
    assert_eq!(b.pull(link, MapVersion(0), false)[0].volumes.len(), 2);
    assert_eq!(b.create("late").error, 0);
    let told: Vec<MapPage> = b.take(link, Kind::MapPage);
    assert_eq!((told.len(), told[0].volumes.len()), (1, 1), "what is new, and once: {told:?}");
    assert_eq!((told[0].volumes[0].name.as_str(), told[0].last), ("late", true));
    assert_eq!(b.ask(Ask::Status(StatusRequest {})).error, 0);
    assert_eq!(b.take::<MapPage>(link, Kind::MapPage).len(), 0);
}

#[test]
fn an_unmapping_is_answered_when_all_primaries_know_of_it() {
    let unmap = || {
        let (volume, sdcs) = ("v".into(), Vec::new());
        Ask::Unmap(UnmapRequest { volume, sdcs, all: true, hosts: Vec::new() })
    };
    let (mut b, one, two) = Bench::with_volume(DeviceKind::Ram);
    for link in [one, two] {
        b.pull(link, b.mdm.state().version, true);
    }
    b.pass(1500, &[one, two]);
    let admin = b.say_hello(Role::Admin);
    b.order(admin, unmap());
    assert!(b.take::<AdminReply>(admin, Kind::AdminReply).is_empty(), "nobody has the map");
    let version = b.mdm.state().version;
    b.pull(one, version, true);
    b.pull(two, MapVersion(version.0 - 1), true);
    assert!(b.take::<AdminReply>(admin, Kind::AdminReply).is_empty(), "one has an older one");
    b.pull(two, version, true);
    let reply: AdminReply = b.take(admin, Kind::AdminReply).pop().unwrap();
    assert_eq!((reply.error, reply.volume.unwrap().mapped.len()), (0, 0), "{}", reply.text);

    // A device that does not confirm is named after a while.
    b.order(
        admin,
        Ask::Map(MapRequest {
            volume: "v".into(),
            to: vec![MapTo::default()],
            ..Default::default()
        }),
    );
    b.pass(6000, &[one, two]);
    let reply: AdminReply = b.take(admin, Kind::AdminReply).pop().unwrap();
    assert_eq!(reply.error(), AdminError::Unconfirmed);
    assert!(reply.text.contains("has not confirmed"), "{}", reply.text);
    // The device is surely dead: its next incarnation begins with the newest map.
    b.order(admin, unmap());
    b.pull(one, b.mdm.state().version, true);
    assert!(b.take::<AdminReply>(admin, Kind::AdminReply).is_empty());
    b.drop_link(two);
    b.dial_failed(DialError::Refused);
    b.pull(one, b.mdm.state().version, true);
    assert_eq!(b.take::<AdminReply>(admin, Kind::AdminReply).pop().unwrap().error, 0);
}

/// The older process may hold leases that the other device has granted it, for as long as they last
/// from the moment at which that device knows of the newer one.
#[test]
pub(crate) fn what_a_newer_process_confirms_does_not_count_for_the_older_one() {
    let unmap = || Ask::Unmap(UnmapRequest { volume: "v".into(), all: true, ..Default::default() });
    let (mut b, one, old) = Bench::with_volume(DeviceKind::Ram);
    for link in [one, old] {
        b.pull(link, b.mdm.state().version, true);
    }
    b.pass(1500, &[one, old]);
    let (new, _) = b.sds("bb", 3, 13, DeviceKind::Ram);
    let admin = b.say_hello(Role::Admin);
    b.order(admin, unmap());
    let version = b.mdm.state().version;
    b.pull(one, version, true);
    b.pull(new, version, true);
    assert!(b.take::<AdminReply>(admin, Kind::AdminReply).is_empty(), "the older one may serve");
    b.pass(1200, &[one, new]);
    assert!(b.take::<AdminReply>(admin, Kind::AdminReply).is_empty(), "the leases last 1.25 s");
    b.pass(200, &[one, new]);
    assert_eq!(b.take::<AdminReply>(admin, Kind::AdminReply).pop().unwrap().error, 0);
    // From now on only this process serves.
    b.order(
        admin,
        Ask::Map(MapRequest {
            volume: "v".into(),
            to: vec![MapTo::default()],
            ..Default::default()
        }),
    );
    b.order(admin, unmap());
    b.pull(one, b.mdm.state().version, true);
    b.pull(new, b.mdm.state().version, true);
    assert_eq!(b.take::<AdminReply>(admin, Kind::AdminReply).pop().unwrap().error, 0);
}

#[test]
fn a_client_that_servers_refuse_is_in_the_status() {
    let mut b = Bench::new();
    let link = b.say_hello(Role::Sdc);
    let m = RegisterSdc { name: "c".into(), nonce: 1, pid: 5, ..RegisterSdc::default() };
    b.send(link, Header::new(Kind::RegisterSdc), &m);
    for refused_by in [vec![3, 7], vec![]] {
        let beat = Heartbeat { refused_by: refused_by.clone(), ..Heartbeat::default() };
        b.send(link, Header::new(Kind::Heartbeat), &beat);
        let status = b.ask(Ask::Status(StatusRequest {})).status.unwrap();
        assert_eq!(status.sdcs[0].refused_by, refused_by);
    }
}

/// A process whose host lost power leaves a link that no side closes. There is room for many.
#[test]
fn of_too_many_links_the_oldest_of_an_ended_incarnation_is_closed() {
    let mut b = Bench::new();
    let mut lives = Vec::new();
    for nonce in 1..=3 {
        let link = b.say_hello(Role::Sdc);
        let m = RegisterSdc { name: "c".into(), nonce, pid: 5, ..RegisterSdc::default() };
        b.send(link, Header::new(Kind::RegisterSdc), &m);
        lives.push(link);
    }
    for _ in lives.len()..8192 {
        b.connect();
    }
    b.settle();
    assert_eq!(b.closed, []);
    for closed in [1, 2, 2] {
        b.connect();
        b.settle();
        assert_eq!(b.closed, lives[..closed], "whose life goes on stays");
    }
    assert_eq!(b.notes.iter().filter(|n| **n == Note::Crowded).count(), 2);
    b.send(lives[2], Header::new(Kind::Heartbeat), &Heartbeat::default());
    assert_eq!(b.closed, lives[..2]);
}
