//! Orders about hosts: they are answered when nothing that they take away can be done any more.

use super::seats::{Cluster, HOST, V};
use super::*;

const OTHER: &str = "iqn.2026-11.a:c";

/// Sends an order, which must not be answered before the servers know of it. Returns the answer.
fn order(c: &mut Cluster, ask: Ask) -> AdminReply {
    let admin = c.b.say_hello(Role::Admin);
    c.b.order(admin, ask);
    assert!(c.b.take::<AdminReply>(admin, Kind::AdminReply).is_empty(), "nobody has the map");
    c.confirm();
    c.b.take(admin, Kind::AdminReply).pop().unwrap()
}

fn only(host: &str) -> Ask {
    let hosts = vec![MapToHost { host: host.into(), access: 0 }];
    Ask::Map(MapRequest { volume: "v".into(), only: true, hosts, ..MapRequest::default() })
}

fn path(to: &str) -> Ask {
    Ask::MovePath(MovePath { volume: "v".into(), hosts: Vec::new(), to: to.into() })
}

#[test]
fn a_host_is_unmapped_when_all_who_lead_know_of_it_and_gets_no_seat_any_more() {
    let mut c = Cluster::seated();
    let generation = c.seat().unwrap().1;
    let reply = order(&mut c, only(OTHER));
    assert_eq!((reply.error, reply.volume.unwrap().hosts.len()), (0, 1), "{}", reply.text);
    assert_eq!(c.seat(), None);
    assert!(c.b.mdm.state().volumes[&V].generation > generation);
    c.ask(0, 2);
    c.pass(1000, &[0, 1]);
    assert_eq!((c.answer(0), c.seat()), (Some((2, vec![0])), None));
    assert_eq!(order(&mut c, only(HOST)).error, 0);
    c.ask(1, 1);
    c.confirm();
    let (sdc, since) = c.seat().unwrap();
    assert_eq!((c.answer(1), sdc.0), (Some((1, vec![since])), c.g[1].id(&c.b)));
}

#[test]
fn a_path_is_moved_when_all_who_lead_know_of_it_and_stays_there() {
    let mut c = Cluster::seated();
    let reply = order(&mut c, path("gg"));
    assert_eq!(reply.error, 0, "{}", reply.text);
    assert_eq!(reply.volume.unwrap().seats[0].gateway, "gg");
    c.pass(5000, &[0, 1]);
    assert_eq!(c.seat().unwrap().0.0, c.g[1].id(&c.b), "both have the host");
    // The second gateway is without the host.
    let reply = order(&mut c, path("g"));
    assert_eq!(reply.error, 0, "{}", reply.text);
    c.g[1].tell(&mut c.b, &[]);
    let refused = c.b.ask(path("gg"));
    assert!(refused.text.contains("can't use `v` through gg"), "{}", refused.text);
    assert_eq!(c.seat().unwrap().0.0, c.g[0].id(&c.b), "nothing was moved");
    assert_eq!(c.b.ask(path("nobody")).error(), AdminError::NotFound);
}
