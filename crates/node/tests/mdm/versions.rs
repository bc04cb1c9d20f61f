//! Links between builds with different protocol versions.

use crate::*;
use base::Dialect;
use wire::control::{StatusAsk, Welcome};

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
