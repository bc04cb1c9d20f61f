//! Links between builds with different protocol versions.

use crate::*;
use base::Dialect;
use wire::control::{
    BuildInfo, MapAsk, MapTo, RegisterSdc, SetLevelAsk, StatusAsk, StatusInfo, Welcome,
};

fn build(wire_min: u16, wire_max: u16) -> Dialect {
    Dialect { wire_min, wire_max, ..wire::DIALECT }
}

fn bench(dialect: Dialect) -> Bench {
    let config = Config { dialect, ..config(Limits::TEST_MIN) };
    let mut b = Bench::on_disk(BTreeMap::new(), config);
    b.settle();
    b
}

#[test]
fn a_link_has_the_newest_version_that_both_sides_speak() {
    for (mine, theirs, version) in [(1, 1, 1), (1, 2, 1), (2, 1, 1), (2, 2, 2)] {
        let mut b = bench(build(1, mine));
        let says = |b: &mut Bench, role| {
            let link = b.connect();
            let hello = hello(&build(1, theirs), ClusterId(0), role, "a");
            b.send(link, Header::new(Kind::Hello), &hello);
            link
        };
        let (server, admin) = (says(&mut b, Role::Sds), says(&mut b, Role::Admin));
        b.register(server, "a", 1, 1, DeviceKind::Ram);
        b.order(admin, Ask::Status(StatusAsk {}));
        b.order(admin, Ask::DeleteVolume(Default::default()));
        let head = wire::frame(Header::new(Kind::MapPull), b"");
        let pull = Event::Frame { link: server, head: head.as_slice(), body: Buf::EMPTY };
        b.mdm.on(b.now, pull, &mut b.out);
        b.settle();
        let mut kinds = Vec::new();
        for (header, body) in [server, admin].iter().flat_map(|link| &b.inbox[link]) {
            let kind = header.kind().unwrap();
            let is_welcome = kind == Kind::Welcome;
            let expected = if is_welcome { wire::HANDSHAKE_VERSION } else { version };
            assert_eq!(header.version.get(), expected, "{kind:?} between {mine} and {theirs}");
            if is_welcome {
                let welcome = Welcome::decode(&body[..]).unwrap();
                assert_eq!(welcome.version, u32::from(version));
            }
            kinds.push(kind);
        }
        for kind in [Kind::Welcome, Kind::Registered, Kind::MapPage, Kind::AdminReply] {
            assert!(kinds.contains(&kind), "{kind:?}: {kinds:?}");
        }
    }
}

#[test]
fn builds_without_a_common_version_can_still_say_so() {
    let mut b = bench(build(3, 4));
    let link = b.connect();
    b.send(link, Header::new(Kind::Hello), &hello(&build(1, 2), ClusterId(0), Role::Sdc, "old"));
    let version = b.inbox[&link][0].0.version.get();
    let (code, text) = b.refusal(link);
    assert_eq!((code, version), (RefusalCode::WrongVersion, wire::HANDSHAKE_VERSION));
    assert!(text.contains("3 to 4, `old` speaks 1 to 2: update the older one"), "{text}");
}

/// A build that knows the next level.
const NEXT: Dialect = Dialect { release: "0.9.0", level_max: 2, ..wire::DIALECT };

/// Registers a server of this build with one device.
fn server(b: &mut Bench, name: &str, dialect: Option<Dialect>) -> LinkId {
    let link = b.say_hello(Role::Sds);
    let message = Register {
        sds: name.into(),
        nonce: name.len() as u64 + dialect.map_or(0, |d| 100 * u64::from(d.level_max)),
        store: name.len() as u64,
        address: format!("10.0.0.{}:7000", name.len()),
        capacity: 1 << 30,
        kind: DeviceKind::Ram as i32,
        build: dialect.as_ref().map(BuildInfo::of),
        ..Register::default()
    };
    b.send(link, Header::new(Kind::Register), &message);
    link
}

fn client(b: &mut Bench, name: &str, dialect: Dialect) -> LinkId {
    let link = b.say_hello(Role::Sdc);
    let build = Some(BuildInfo::of(&dialect));
    let m = RegisterSdc { name: name.into(), nonce: 7, build, ..RegisterSdc::default() };
    b.send(link, Header::new(Kind::RegisterSdc), &m);
    link
}

fn raise(b: &mut Bench, level: u32, without: &[&str]) -> Result<(), String> {
    let without = without.iter().map(|name| (*name).to_owned()).collect();
    let reply = b.ask(Ask::SetLevel(SetLevelAsk { level, without }));
    if reply.error == 0 { Ok(()) } else { Err(reply.text) }
}

fn status(b: &mut Bench) -> StatusInfo {
    b.ask(Ask::Status(StatusAsk {})).status.expect("a status")
}

#[test]
fn the_status_has_the_build_of_each_process() {
    let mut b = bench(NEXT);
    server(&mut b, "a", Some(wire::DIALECT));
    server(&mut b, "bb", None);
    client(&mut b, "c", NEXT);
    let s = status(&mut b);
    let release = |build: &Option<BuildInfo>| build.as_ref().map(|b| b.release.clone());
    assert_eq!(s.level, 1);
    assert_eq!(release(&s.mdms[0].build).as_deref(), Some("0.9.0"));
    assert_eq!(release(&s.devices[0].build).as_deref(), Some(wire::DIALECT.release));
    assert_eq!(release(&s.devices[1].build), None, "a build that says nothing of itself");
    let build = s.sdcs[0].build.as_ref().unwrap();
    assert_eq!((build.level_max, build.version_min, build.version_max), (2, 1, 1));
}

#[test]
fn the_level_rises_only_when_everybody_can_follow_and_who_cannot_is_refused_then() {
    let mut b = bench(NEXT);
    let old = server(&mut b, "a", Some(wire::DIALECT));
    let new = server(&mut b, "bb", Some(NEXT));
    let old_client = client(&mut b, "c", wire::DIALECT);
    let why = raise(&mut b, 2, &[]).unwrap_err();
    assert!(why.contains("`a` (release 0.1.0, up to level 1), `c` (release"), "{why}");
    assert!(raise(&mut b, 2, &["a"]).unwrap_err().contains("`a` is up"), "only who is down");
    b.drop_link(old_client);
    b.drop_link(old);
    assert!(raise(&mut b, 2, &[]).unwrap_err().contains("`a` (down)"), "it may be of any build");
    assert!(raise(&mut b, 3, &["a"]).unwrap_err().contains("update the MDMs first"));
    raise(&mut b, 2, &["a"]).unwrap();
    assert_eq!(status(&mut b).level, 2);
    let pages = b.pull(new, MapVersion(0), false);
    assert!(pages.iter().all(|page| page.level == 2));
    assert!(raise(&mut b, 1, &[]).unwrap_err().contains("never falls"));
    for dialect in [None, Some(wire::DIALECT)] {
        let old = server(&mut b, "a", dialect);
        let (code, text) = b.refusal(old);
        assert!(code == RefusalCode::TooOld && text.contains("update it"), "{text}");
    }
    let old = client(&mut b, "c", wire::DIALECT);
    assert_eq!(b.refusal(old).0, RefusalCode::TooOld);
    let updated = server(&mut b, "a", Some(NEXT));
    assert_eq!(b.take::<Registered>(updated, Kind::Registered).len(), 1);
    // What belongs to level 2 is used now: releases are in the state.
    b.settle();
    let s = b.mdm.state();
    assert!(s.devices.values().any(|d| d.release == "0.9.0"));
}

#[test]
fn a_log_of_a_higher_level_is_refused_and_kept() {
    let mut b = bench(NEXT);
    raise(&mut b, 2, &[]).unwrap();
    let config = |dialect| Config { dialect, ..config(Limits::TEST_MIN) };
    // First the log has an entry that raises the level, then an image of that level.
    for _ in 0..2 {
        let mut old = Bench::on_disk(b.disk.clone(), config(wire::DIALECT));
        old.settle();
        let why = old.mdm.failed().expect("it must not go on").to_owned();
        assert!(why.contains("level 2") && why.contains("update"), "{why}");
        assert_eq!(old.disk, b.disk, "nothing is changed");
        let mut new = Bench::on_disk(b.disk.clone(), config(NEXT));
        new.settle();
        assert!(new.mdm.is_ready() && new.mdm.state().level == 2);
        b = new;
    }
}

#[test]
fn what_this_build_does_not_know_is_not_taken_for_something_else() {
    let mut b = bench(wire::DIALECT);
    let link = b.say_hello(Role::Sds);
    b.register(link, "a", 1, 1, DeviceKind::Ram);
    let link = b.say_hello(Role::Sds);
    let m = Register { sds: "bb".into(), kind: 9, ..Register::default() };
    b.send(link, Header::new(Kind::Register), &m);
    let (_, text) = b.refusal(link);
    assert!(text.contains("DeviceKind 9") && text.contains("update"), "{text}");
    b.create("v");
    let to = vec![MapTo { sdc: String::new(), access: 2 }];
    let reply = b.ask(Ask::Map(MapAsk { volume: "v".into(), to, only: false }));
    assert!(reply.text.contains("doesn't know that order: update it"), "{}", reply.text);
}
