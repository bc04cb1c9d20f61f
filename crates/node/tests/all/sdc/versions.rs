//! Links between builds with different protocol versions.

use super::cluster::{Cluster, Who};
use base::{Dialect, Limits, MapVersion};
use seam::{BlockKind, Note};

#[test]
fn a_client_speaks_with_each_server_as_both_of_them_can() {
    let next = Dialect { wire_max: 2, ..wire::DIALECT };
    let mut c = Cluster::of(Limits::SHIPPED, next);
    c.speaks.insert(Who::Server(2), 2);
    c.make_ready();
    c.ask(1, BlockKind::Write, 1 << 19, 2 << 20, &vec![7; 2 << 20]);
    assert!(c.log.replies[0].1.is_ok());
    let of =
        |n: u32| c.log.versions.iter().filter(move |(to, _)| *to == n).map(|(_, version)| *version);
    assert!(of(1).count() > 0 && of(1).all(|v| v == 1));
    assert!(of(2).count() > 0 && of(2).all(|v| v == 2));
    assert!(c.log.handshakes.iter().all(|v| *v == wire::HANDSHAKE_VERSION));
}

/// The notes of refused links.
fn refusals(c: &Cluster) -> Vec<&'static str> {
    let why = |note: &Note| if let Note::Refused { why, .. } = note { Some(*why) } else { None };
    c.log.notes.iter().filter_map(why).collect()
}

#[test]
fn a_map_that_this_build_does_not_understand_is_refused_as_a_whole() {
    let mut c = Cluster::ready();
    let at = c.map_version();
    c.sdc.refresh();
    c.change(|map| map.level = 2);
    c.pass(core::time::Duration::from_millis(1000));
    assert_eq!(c.map_version(), at);
    assert!(refusals(&c).iter().any(|why| why.contains("higher level")), "{:?}", refusals(&c));

    let mut c = Cluster::ready();
    c.sdc.refresh();
    c.change(|map| map.devices[0].intent = 6);
    c.pass(core::time::Duration::from_millis(1000));
    assert_eq!(c.map_version(), MapVersion(5));
    assert!(refusals(&c).iter().any(|why| why.contains("value")), "{:?}", refusals(&c));
}
