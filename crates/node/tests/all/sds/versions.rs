//! Links between builds with different protocol versions.

use super::*;
use base::Dialect;

const NEXT: Dialect = Dialect { wire_max: 2, ..wire::DIALECT };

fn versions(b: &Bench, kind: Kind) -> Vec<u16> {
    let of = b.asked.iter().filter(|h| h.kind() == Some(kind));
    of.map(|h| h.version()).collect()
}

#[test]
fn a_shard_speaks_with_each_peer_as_both_of_them_can() {
    let mut b = Bench::of(NEXT);
    let (dial, _) = b.dials.remove(0);
    let mdm = b.link(Some(dial));
    assert_eq!(versions(&b, Kind::Hello), [wire::HANDSHAKE_VERSION]);
    let welcome = Welcome { cluster: 7, role: Role::Mdm as i32, version: 2, ..Welcome::default() };
    b.frame(mdm, Kind::Welcome, &welcome);
    b.speaks = 2;
    assert_eq!(versions(&b, Kind::Register), [2]);
    let registered =
        Registered { cluster: 7, id: 3, incarnation: 9, map: 18, ..Registered::default() };
    b.frame(mdm, Kind::Registered, &registered);
    b.map_of(mdm, 19, &[(3, 9)], &[(5, 8), (6, 8)]);
    assert!(versions(&b, Kind::MapPull).iter().all(|v| *v == 2));
    for (id, dialect, version) in [(5, wire::DIALECT, 1u16), (6, NEXT, 2)] {
        let link = b.link(None);
        let hello = hello(&dialect, ClusterId(7), Role::Sdc, "c");
        b.asked.clear();
        b.frame(link, Kind::Hello, &Hello { id, incarnation: 8, session: 1, ..hello });
        assert_eq!(versions(&b, Kind::Welcome), [wire::HANDSHAKE_VERSION]);
        let mut read = Header::new(Kind::Read);
        read.forge(16, &version.to_le_bytes());
        let head = wire::frame(read, b"");
        let read = Event::Frame { link, head: head.as_slice(), body: Buf::EMPTY };
        b.sds.on(b.now, read, &mut b.out);
        b.settle();
        assert_eq!(versions(&b, Kind::Reply), [version], "client {id}");
    }
}

#[test]
fn a_version_that_was_not_offered_ends_the_link() {
    for version in [0, 2, 7] {
        let mut b = Bench::of(wire::DIALECT);
        let (dial, _) = b.dials.remove(0);
        let mdm = b.link(Some(dial));
        let welcome = Welcome { cluster: 7, role: Role::Mdm as i32, version, ..Welcome::default() };
        b.frame(mdm, Kind::Welcome, &welcome);
        assert!(b.closed.contains(&mdm) && versions(&b, Kind::Register).is_empty(), "{version}");
    }
}

#[test]
fn a_map_that_this_build_does_not_understand_is_refused_as_a_whole() {
    for (level, intent) in [(2, 0), (1, 6)] {
        let mut b = Bench::of(wire::DIALECT);
        let mdm = b.join_mdm(1);
        let device = DeviceInfo { id: 3, incarnation: 9, intent, ..DeviceInfo::default() };
        let page = MapPage { version: 19, last: true, cluster: 7, level, ..MapPage::default() };
        b.frame(mdm, Kind::MapPage, &MapPage { devices: vec![device.clone()], ..page.clone() });
        assert!(b.closed.contains(&mdm) && b.sds.map().version == MapVersion(0), "{level}");
        // A build that knows the level takes it.
        let mut b = Bench::of(Dialect { level_max: 2, ..wire::DIALECT });
        let mdm = b.join_mdm(1);
        b.frame(mdm, Kind::MapPage, &MapPage { devices: vec![device], ..page });
        assert_eq!(b.sds.map().level, if intent == 0 { 2 } else { 0 });
    }
}
