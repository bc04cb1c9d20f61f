//! Links between builds with different protocol versions.

use super::members::{AWAY, disk_of};
use super::recovery::begun_as;
use super::*;
use base::Dialect;
use consensus::{Base, Entry, HardState, Image, Membership};
use wire::control::{
    BuildInfo, MapRequest, MapTo, RegisterSdc, SetLevelRequest, StatusInfo, StatusRequest, Welcome,
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
    for (mine, theirs, version) in [(1, 1, 1u16), (1, 2, 1), (2, 1, 1), (2, 2, 2)] {
        let mut b = bench(build(1, mine));
        let says = |b: &mut Bench, role| {
            let link = b.connect();
            let hello = hello(&build(1, theirs), ClusterId(0), role, "a");
            b.send(link, Header::new(Kind::Hello), &hello);
            link
        };
        let (server, admin) = (says(&mut b, Role::Sds), says(&mut b, Role::Admin));
        b.speaks = version;
        b.register(server, "a", 1, 1, DeviceKind::Ram);
        b.order(admin, Ask::Status(StatusRequest {}));
        b.order(admin, Ask::DeleteVolume(Default::default()));
        let mut pull = Header::new(Kind::MapPull);
        pull.forge(16, &version.to_le_bytes());
        let head = wire::frame(pull, b"");
        let pull = Event::Frame { link: server, head: head.as_slice(), body: Buf::EMPTY };
        b.mdm.on(b.now, pull, &mut b.out);
        b.settle();
        let mut kinds = Vec::new();
        for (header, body) in [server, admin].iter().flat_map(|link| &b.inbox[link]) {
            let kind = header.kind().unwrap();
            let is_welcome = kind == Kind::Welcome;
            let expected = if is_welcome { wire::HANDSHAKE_VERSION } else { version };
            assert_eq!(header.version(), expected, "{kind:?} between {mine} and {theirs}");
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
    let version = b.inbox[&link][0].0.version();
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
    let reply = b.ask(Ask::SetLevel(SetLevelRequest { level, without }));
    if reply.error == 0 { Ok(()) } else { Err(reply.text) }
}

fn status(b: &mut Bench) -> StatusInfo {
    b.ask(Ask::Status(StatusRequest {})).status.expect("a status")
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
fn the_level_rises_when_all_processes_support_it_and_others_are_refused_then() {
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
fn unknown_values_are_not_taken_for_known_ones() {
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
    let reply = b.ask(Ask::Map(MapRequest { volume: "v".into(), to, ..Default::default() }));
    assert!(reply.text.contains("doesn't know that order: update it"), "{}", reply.text);
}

/// Adds an MDM `b` at [`AWAY`], which is silent.
fn add_member(b: &mut Bench) {
    let add = AddMdm { name: "b".into(), address: AWAY.into(), tie_breaker: false };
    assert_eq!(b.ask(Ask::AddMdm(add)).error, 0);
    b.pass(100, &[]);
}

/// Says hello as that MDM, of this build.
fn member(b: &mut Bench, dialect: &Dialect) -> LinkId {
    let link = b.connect();
    let hello = Hello {
        id: 2,
        to: 1,
        address: AWAY.into(),
        secret: 9,
        build: Some(BuildInfo::of(dialect)),
        ..hello(dialect, ClusterId(7), Role::Mdm, "b")
    };
    b.send(link, Header::new(Kind::Hello), &hello);
    link
}

#[test]
fn an_mdm_that_was_down_when_the_level_rose_is_refused_until_it_is_updated() {
    let mut b = bench(NEXT);
    add_member(&mut b);
    let why = raise(&mut b, 2, &[]).unwrap_err();
    assert!(why.contains("`b` (down)"), "{why}");
    raise(&mut b, 2, &["b"]).unwrap();
    let old = member(&mut b, &wire::DIALECT);
    let (code, text) = b.refusal(old);
    let says = "the cluster has level 2, and `b` knows levels up to 1: update it";
    assert_eq!((code, text.as_str()), (RefusalCode::TooOld, says));
    let shown = |b: &mut Bench| -> Vec<(String, String)> {
        status(b).refused_servers.into_iter().map(|t| (t.name, t.why)).collect()
    };
    assert_eq!(shown(&mut b), [("b".into(), says.into())], "the operator of the cluster reads it");
    let new = member(&mut b, &NEXT);
    assert_eq!(b.take::<Welcome>(new, Kind::Welcome).len(), 1);
    assert_eq!(shown(&mut b), [], "it was updated");
}

#[test]
fn an_mdm_that_is_too_old_says_so_to_its_peers() {
    let mut b = bench(wire::DIALECT);
    add_member(&mut b);
    let before = b.disk.clone();
    b.dials.retain(|(_, to)| to == AWAY);
    let (way, _) = b.dial_up();
    let text = "the cluster has level 2, and `mdm` knows levels up to 1: update it";
    b.send(way, Header::new(Kind::Refusal), &node::refusals::refusal(RefusalCode::TooOld, text));
    assert_eq!(b.mdm.failed(), Some(text));
    let server = b.say_hello(Role::Sds);
    assert!(b.refusal(server).1.contains(text));
    let reply = b.create("w");
    assert!(reply.error() == AdminError::Log && reply.text.contains(text), "{}", reply.text);
    assert_eq!(b.disk, before, "it changes nothing");
}

/// Sends the registration of a server that has seen the cluster at this level.
fn returns(b: &mut Bench, name: &str, device: u32, level: u32, dialect: &Dialect) -> LinkId {
    let link = b.say_hello(Role::Sds);
    b.send(link, Header::new(Kind::Report), &Report::default());
    let m = Register {
        sds: name.into(),
        device,
        nonce: 80 + u64::from(device),
        store: b.mdm.state().devices[&DeviceId(device)].store,
        address: format!("10.0.0.{}:7000", name.len()),
        capacity: 1 << 30,
        kind: DeviceKind::Durable as i32,
        build: Some(BuildInfo::of(dialect)),
        level,
        ..Register::default()
    };
    b.send(link, Header::new(Kind::Register), &m);
    link
}

/// The level that lost MDMs had raised is in force again when a server tells of it.
fn gets_its_level_back(mut b: Bench) {
    assert!(b.mdm.state().recovery.open);
    assert_eq!(b.mdm.state().level, 1);
    let early = returns(&mut b, "bb", 2, 1, &NEXT);
    assert_eq!(b.take::<Registered>(early, Kind::Registered).len(), 1);
    assert_eq!(b.mdm.state().level, 1, "this server was away when the level rose");
    let server = returns(&mut b, "a", 1, 2, &NEXT);
    assert_eq!(b.take::<Registered>(server, Kind::Registered).len(), 1);
    assert_eq!(b.mdm.state().level, 2);
    let old = returns(&mut b, "bb", 2, 1, &wire::DIALECT);
    assert_eq!(b.refusal(old).0, RefusalCode::TooOld);
    let limits = Limits { mdm_log: Limits::SHIPPED.mdm_log, ..Limits::TEST_MIN };
    let mut again = Bench::on_disk(b.disk, Config { dialect: NEXT, ..config(limits) });
    again.settle();
    assert_eq!(again.mdm.state().level, 2, "it is in the log");
}

#[test]
fn a_restored_backup_gets_the_level_back_from_the_servers() {
    let (b, ..) = Bench::with_volume(DeviceKind::Durable);
    gets_its_level_back(begun_as(b.mdm.state(), NEXT));
    // A build that does not know the level waits for its update.
    let mut b = begun_as(b.mdm.state(), wire::DIALECT);
    let server = returns(&mut b, "a", 1, 2, &NEXT);
    let (_, text) = b.refusal(server);
    assert!(text.contains("at level 2") && text.contains("up to 1: update it"), "{text}");
    assert_eq!(b.mdm.state().level, 1);
}

/// Creates an MDM of three whose log ends with this entry, and which finds no other.
fn survivor(state: &mdm::State, entry: Vec<u8>) -> Bench {
    let membership = Membership { voters: vec![1, 2, 3], ..Membership::default() };
    let image = Image {
        me: 1,
        hard: HardState { term: 2, vote: 1, commit: 8 },
        base: Base { index: 8, term: 2, membership, data: mdm::entry::to_bytes(state, 0) },
        entries: vec![Entry { kind: 0, term: 2, index: 9, data: entry, context: Vec::new() }],
    };
    let limits = Limits { mdm_log: Limits::SHIPPED.mdm_log, ..Limits::TEST_MIN };
    let mut b = Bench::on_disk(disk_of(&image), Config { dialect: NEXT, ..config(limits) });
    b.settle();
    b
}

fn recover(b: &mut Bench) {
    let link = b.connect();
    let direct = Hello { direct: true, ..hello(&NEXT, ClusterId(0), Role::Admin, "me") };
    b.send(link, Header::new(Kind::Hello), &direct);
    b.order(link, Ask::RecoverMdm(RecoverMdm { by: "me".into(), at: 9, ..Default::default() }));
    b.pass(100, &[]);
    let reply: AdminReply = b.take(link, Kind::AdminReply).pop().expect("an answer");
    assert_eq!(reply.error, 0, "{}", reply.text);
}

#[test]
fn a_surviving_mdm_gets_the_level_back_from_the_servers() {
    let (b, ..) = Bench::with_volume(DeviceKind::Durable);
    let mut one = survivor(b.mdm.state(), mdm::entry::Commands::default().into_data());
    recover(&mut one);
    gets_its_level_back(one);
    // The entry that raises the level is in its log, and was never known to be decided.
    let mut list = mdm::entry::Commands::default();
    let set = mdm::command::SetLevel { level: 2 };
    assert!(list.push(&mdm::Command::SetLevel(set), 1));
    let mut one = survivor(b.mdm.state(), list.into_data());
    recover(&mut one);
    assert_eq!(one.mdm.state().level, 2);
}

#[test]
fn a_server_does_not_raise_the_level_over_an_mdm_that_does_not_know_it() {
    let (b, ..) = Bench::with_volume(DeviceKind::Durable);
    let mut b = begun_as(b.mdm.state(), NEXT);
    let finish = RecoverMdm { finish: true, ..RecoverMdm::default() };
    assert_eq!(b.ask(Ask::RecoverMdm(finish)).error, 0);
    let add = AddMdm { name: "b".into(), address: AWAY.into(), tie_breaker: false };
    assert_eq!(b.ask(Ask::AddMdm(add)).error, 0);
    b.pass(100, &[]);
    let id = *b.mdm.state().members.list.keys().max().unwrap();
    let me = b.mdm.consensus().unwrap().id() as u32;
    let says = |b: &mut Bench, dialect: &Dialect| {
        let link = b.connect();
        let plain = hello(dialect, ClusterId(7), Role::Mdm, "b");
        let (address, build) = (AWAY.into(), Some(BuildInfo::of(dialect)));
        let hello = Hello { id, to: me, address, secret: 9, build, ..plain };
        b.send(link, Header::new(Kind::Hello), &hello);
        assert_eq!(b.take::<Welcome>(link, Kind::Welcome).len(), 1);
        link
    };
    let old = says(&mut b, &wire::DIALECT);
    let server = returns(&mut b, "a", 1, 2, &NEXT);
    let (_, text) = b.refusal(server);
    assert!(text.contains("the MDM `b` does not know that level: update"), "{text}");
    assert_eq!(b.mdm.state().level, 1, "half of the MDMs would stop");
    b.drop_link(old);
    says(&mut b, &NEXT);
    let server = returns(&mut b, "a", 1, 2, &NEXT);
    assert_eq!(b.take::<Registered>(server, Kind::Registered).len(), 1);
    assert_eq!(b.mdm.state().level, 2);
}

/// A value that got into the log would stop every MDM.
#[test]
fn a_report_with_an_unknown_value_is_refused() {
    let (b, ..) = Bench::with_volume(DeviceKind::Durable);
    let mut b = begun_as(b.mdm.state(), wire::DIALECT);
    let link = b.say_hello(Role::Sds);
    let config = Some(GroupInfo { id: 1, doubt: 3, ..GroupInfo::default() });
    let groups = vec![GroupReport { group: 1, config, ..GroupReport::default() }];
    b.send(link, Header::new(Kind::Report), &Report { groups, ..Report::default() });
    let (_, text) = b.refusal(link);
    assert!(text.contains("Doubt 3") && text.contains("update it"), "{text}");
}

/// An entry of a later kind must not be taken for commands, or left out.
#[test]
fn a_log_with_an_unknown_kind_of_entry_is_refused_and_kept() {
    let b = Bench::new();
    let membership = Membership { voters: vec![1], ..Membership::default() };
    let image = Image {
        me: 1,
        hard: HardState { term: 2, vote: 1, commit: 9 },
        base: Base { index: 8, term: 2, membership, data: mdm::entry::to_bytes(b.mdm.state(), 0) },
        entries: vec![Entry { kind: 3, term: 2, index: 9, ..Entry::default() }],
    };
    let mut b = Bench::on_disk(disk_of(&image), config(Limits::TEST_MIN));
    let before = b.disk.clone();
    b.settle();
    let why = b.mdm.failed().expect("it must not go on").to_owned();
    assert!(why.contains("entry 9: its kind is 3"), "{why}");
    assert_eq!(b.disk, before);
}

/// A build skips the fields of an order that it does not know, and must not do the rest.
#[test]
fn an_order_of_a_higher_level_is_refused_as_a_whole() {
    for (level, may) in [(0, true), (1, true), (2, false)] {
        let mut b = bench(wire::DIALECT);
        let link = b.say_hello(Role::Admin);
        let kind = ObjectKind::Domain as i32;
        let domain = CreateObject { kind, name: "d".into(), ..CreateObject::default() };
        let ask = Some(Ask::CreateObject(domain));
        b.send(link, Header::new(Kind::Admin), &AdminRequest { ask, level });
        let reply: AdminReply = b.take(link, Kind::AdminReply).pop().expect("an answer");
        assert_eq!(reply.error == 0, may, "{}", reply.text);
        assert_eq!(b.mdm.state().objects.domains.len(), if may { 2 } else { 1 });
        assert!(may || reply.text.contains("needs level 2, and the cluster has level 1"));
    }
}
