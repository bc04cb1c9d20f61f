//! MDMs that a server must not follow: of another cluster, and set back to an earlier state.

use super::*;

#[test]
fn an_mdm_of_another_cluster_changes_nothing() {
    let mut b = Bench::new();
    let link = b.join_mdm(1);
    b.is_asked(8, 2, MDM);
    assert!(!b.closed.contains(&link) && b.dials.is_empty());
}

/// An MDM that has lost its log starts another cluster at a known address. A shard that serves
/// continues, and keeps the only map.
#[test]
fn a_server_that_serves_outlives_an_mdm_of_another_cluster() {
    let wrong = Refusal { code: RefusalCode::WrongCluster as i32, ..Refusal::default() };
    let mut b = Bench::durable();
    b.join_mdm(1);
    b.sds.on(b.now, Event::LinkDown { link: LinkId(1), why: DownReason::Broken }, &mut b.out);
    b.pass(Duration::from_secs(2));
    b.settle();
    let (dial, _) = b.dials.remove(0);
    let link = b.link(Some(dial));
    b.frame(link, Kind::Refusal, &wrong);
    assert!(!b.sds.ended() && b.closed == [link]);
    b.pass(Duration::from_secs(2));
    b.settle();
    b.join_mdm(2);
    // A shard that has not begun to serve was given a wrong device, or a wrong MDM.
    let mut begins = Bench::durable();
    let (dial, _) = begins.dials.remove(0);
    let link = begins.link(Some(dial));
    begins.frame(link, Kind::Refusal, &wrong);
    assert!(begins.sds.ended() && begins.sds.trouble().is_some());
}

/// The MDM's disk was set back: it lacks changes that it has published.
#[test]
pub(crate) fn an_mdm_that_was_set_back_is_not_followed() {
    let mut b = Bench::new();
    let mdm = b.join_mdm(1);
    b.map(mdm, 5, &[3]); // version 25
    b.pass(Duration::from_secs(3));
    b.sds.on(b.now, Event::LinkDown { link: mdm, why: DownReason::Broken }, &mut b.out);
    b.settle();
    for (map, follows) in [(24, false), (25, true)] {
        b.pass(Duration::from_secs(1));
        let (dial, _) = b.dials.pop().unwrap();
        let link = b.link(Some(dial));
        b.sent.clear();
        let welcome = Welcome {
            cluster: 7,
            role: Role::Mdm as i32,
            incarnation: 2,
            map,
            version: 1,
            ..Welcome::default()
        };
        b.frame(link, Kind::Welcome, &welcome);
        assert_eq!(b.sent.contains(&(link, Kind::Register)), follows);
        assert_eq!(b.closed.contains(&link), !follows);
    }
    // A map in which the epoch is lower than one in which this device has acted also comes from
    // such an MDM.
    assert!(!b.sds.failed());
    let mut b = Bench::new();
    let mdm = b.join_mdm(1);
    b.map(mdm, 5, &[3]);
    b.pass(Duration::from_secs(3));
    let group = GroupInfo {
        id: 1,
        epoch: 4,
        primary: 3,
        replicas: vec![3, 4],
        in_sync: vec![3],
        ..Default::default()
    };
    let page = MapPage {
        version: 90,
        last: true,
        cluster: 7,
        groups: vec![group],
        live: vec![1],
        next_volume: 2,
        ..MapPage::default()
    };
    b.frame(mdm, Kind::MapPage, &page);
    assert!(matches!(b.sds.trouble(), Some(Trouble::Refused(text)) if text.contains("set back")));
}

#[test]
fn a_link_to_the_mdm_that_asks_stays() {
    let mut b = Bench::new();
    b.join_mdm(1);
    b.is_asked(7, 1, MDM);
    assert_eq!((b.closed.len(), b.dials.len()), (0, 0));
}
