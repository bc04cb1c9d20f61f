//! Links between builds with different protocol versions.

use crate::cluster::{Cluster, Who};
use base::{Dialect, Limits};
use seam::BlockKind;

#[test]
fn a_client_speaks_with_each_server_as_both_of_them_can() {
    let next = Dialect { wire_max: 2, ..wire::DIALECT };
    let mut c = Cluster::of(Limits::TEST_MIN, next);
    c.speaks.insert(Who::Server(2), 2);
    c.make_ready();
    c.ask(1, BlockKind::Write, 0, 4 << 20, &vec![7; 4 << 20]);
    assert!(c.log.replies[0].1.is_ok());
    let of = |n: u32| c.log.ios.iter().filter(move |(to, _)| *to == n).map(|(_, h)| h.version);
    assert!(of(1).count() > 0 && of(1).all(|v| v == 1));
    assert!(of(2).count() > 0 && of(2).all(|v| v == 2));
    assert!(c.log.handshakes.iter().all(|v| *v == wire::HANDSHAKE_VERSION));
}
