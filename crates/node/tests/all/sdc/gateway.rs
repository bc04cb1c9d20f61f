//! What a gateway tells the MDM of its hosts, and its number.

use super::cluster::{Cluster, ME, VOLUME, Who};
use super::iscsi_host::Host;
use super::nbd_client::Client;
use super::nvme_host::Queue;
use super::seats::{HOST, NVME_HOST, answer_with, answering, give_and_tell, hosts_of, ms, nvme};
use base::Limits;
use node::sdc::{ISCSI, NBD, NVME};
use seam::{BlockKind, Node as _, Note};
use target::nbd::proto::NBD_CMD_WRITE;

#[test]
fn the_mdm_is_told_who_can_use_which_volume_and_not_who_only_looks() {
    let mut c = answering();
    let told = |c: &mut Cluster| {
        c.pass(ms(5));
        (c.log.hosts.clone(), c.log.sessions.clone())
    };
    let _discovery = Queue::discovery(&mut c);
    let admin = Queue::admin(&mut c);
    assert_eq!(told(&mut c), (vec![], vec![]), "it has no I/O queue");
    let io = Queue::io(&mut c, &admin, 1).unwrap();
    let _second = Queue::io(&mut c, &admin, 2).unwrap();
    assert_eq!(told(&mut c), (vec![NVME_HOST.into()], vec![]));
    let (a, b) = (Host::attached(&mut c, 1), Host::attached(&mut c, 2));
    let both = (vec![NVME_HOST.to_string()], vec![(1, HOST.to_string())]);
    assert_eq!(told(&mut c), both, "once for two sessions");
    let count = c.log.host_lists;
    c.pass(ms(5000));
    assert_eq!(c.log.host_lists, count, "nothing has changed");
    c.cut_link(a.link);
    assert_eq!(told(&mut c), both);
    c.cut_link(io.link);
    assert_eq!(told(&mut c), both, "it has another queue");
    c.cut_link(b.link);
    assert_eq!(told(&mut c), (vec![NVME_HOST.into()], vec![]));
    // A new MDM knows nothing.
    let count = c.log.host_lists;
    (c.log.hosts, c.log.sessions) = Default::default();
    c.cut(Who::Mdm);
    c.pass(ms(1000));
    assert_eq!(told(&mut c), (vec![NVME_HOST.into()], vec![]));
    assert_eq!(c.log.host_lists, count + 1);
    c.cut_link(admin.link);
    assert_eq!(told(&mut c), (vec![], vec![]));
}

/// Anybody can connect. Heartbeats come at their own pace then, whatever strangers do.
#[test]
fn strangers_cause_no_messages_to_the_mdm() {
    let mut c = answering();
    let (host, client) = (Host::attached(&mut c, 1), Client::attached(&mut c, &Limits::SHIPPED));
    c.pass(ms(5));
    let count = c.log.heartbeats;
    for port in [NBD, ISCSI, NVME] {
        let link = c.accept(port);
        c.cut_link(link);
    }
    assert_eq!(c.log.heartbeats, count);
    c.cut_link(host.link);
    assert_eq!(c.log.heartbeats, count + 1);
    c.cut_link(client.link);
    assert_eq!(c.log.heartbeats, count + 2);
}

/// The MDM refuses a control message of more than 512 KiB, and closes the link. Of a host that the
/// message leaves out, the MDM believes that it is not here: hosts that are served are never left
/// out for others, whose names may be chosen for that.
#[test]
fn a_heartbeat_is_short_enough_whatever_the_names_of_hosts() {
    let mut c = answering();
    let _served = Host::attached(&mut c, 1);
    nvme(&mut c);
    c.pass(ms(500));
    c.keeps_seats = true; // no seat is left
    for n in 0..1400 {
        let mut host = Host::connect(&mut c);
        host.name = format!("iqn.2026-11.test:{n:0>206}");
        assert_eq!((host.name.len(), host.log_in(&mut c, 1)), (223, 0));
    }
    c.pass(ms(500));
    let told = c.log.sessions.len();
    assert!((1000..1200).contains(&told), "{told}");
    assert_eq!(c.log.hosts_left_out as usize, 1401 - told, "and the MDM knows that");
    assert!(c.log.longest_beat < 512 << 10, "{}", c.log.longest_beat);
    let is_told = |c: &Cluster, host: &str| c.log.sessions.contains(&(VOLUME.0, host.into()));
    assert!(is_told(&c, HOST));
    assert_eq!(c.log.hosts, [NVME_HOST]);
    // One of the others gets a seat.
    let last = format!("iqn.2026-11.test:{:0>206}", 1399);
    assert!(!is_told(&c, &last));
    give_and_tell(&mut c, &last, ME);
    for _ in 0..8 {
        let asked = c.log.wished.last().unwrap();
        let (number, since) = (asked.number, c.map.volumes[0].generation);
        let hosts = hosts_of(asked).into_iter();
        let since: Vec<u32> = hosts.map(|(_, host)| if host == last { since } else { 0 }).collect();
        let version = c.map.version;
        answer_with(&mut c, number, version, &since);
        c.pass(ms(5));
    }
    c.pass(ms(500));
    assert!(is_told(&c, &last) && is_told(&c, HOST));
}

#[test]
fn another_number_of_the_gateway_closes_the_sessions_of_hosts_only() {
    let mut c = answering();
    let a = Host::attached(&mut c, 1);
    let (admin, io) = nvme(&mut c);
    let mut nbd = Client::attached(&mut c, &Limits::SHIPPED);
    let number = |c: &mut Cluster, number: u32| {
        c.map.version += 1;
        c.map.gateways[0].number = number;
        c.map.gateways_at = c.map.version;
        c.tell();
    };
    number(&mut c, 0);
    assert!([a.link, admin.link, io.link].into_iter().all(|link| c.sdc.serves(link)));
    number(&mut c, 5);
    assert!(![a.link, admin.link, io.link].into_iter().any(|link| c.sdc.serves(link)));
    nbd.request(&mut c, NBD_CMD_WRITE, 1, 0, 512, &[7; 512]);
    assert_eq!(nbd.reply(&mut c, 1).0, 0);
    let (admin, _io) = nvme(&mut c);
    assert_eq!(admin.cntlid / 512, 5);
}

#[test]
fn a_client_that_is_over_disconnects_everyone_says_so_once_and_serves_nobody() {
    const BUSY: u16 = 0x0181;
    let mut c = answering();
    let a = Host::attached(&mut c, 1);
    let (admin, io) = nvme(&mut c);
    let nbd = Client::attached(&mut c, &Limits::SHIPPED);
    let stranger = Host::connect(&mut c);
    c.ask(9, BlockKind::Read, 0, 512, &[]);
    let servers = |c: &Cluster| (1..4).filter(|n| c.link_of(Who::Server(*n)).is_some()).count();
    assert_ne!(servers(&c), 0);
    let link = c.link_of(Who::Mdm).unwrap();
    c.end(link);
    assert_eq!(servers(&c), 0, "servers refuse it, too");
    for link in [a.link, admin.link, io.link, nbd.link, stranger.link] {
        assert!(!c.sdc.serves(link), "{link}");
    }
    let (notes, hellos) = (c.log.notes.len(), c.log.hellos.len());
    let over = |note: &Note| *note == Note::Over;
    assert_eq!(c.log.notes.iter().filter(|note| over(note)).count(), 1);
    // It goes on asking, more and more seldom, and says nothing about that.
    c.pass(ms(60_000));
    let dialled = c.log.hellos.len() - hellos;
    assert!((4..=7).contains(&dialled), "{dialled} dials in a minute");
    c.pass(ms(300_000));
    let more = c.log.hellos.len() - hellos - dialled;
    assert!((9..=11).contains(&more), "{more} dials in five minutes");
    assert_eq!((&c.log.notes[notes..], servers(&c)), (&[][..], 0));
    // Hosts are to come back later, as before the first map.
    assert_eq!(Host::connect(&mut c).log_in(&mut c, 2), 0x0301);
    let nqn = target::ident::nqn(base::ClusterId(9));
    assert_eq!(Queue::open(&mut c).connect(&mut c, 0, 0xffff, &nqn), BUSY);
    let nbd = c.accept(node::sdc::NBD);
    assert!(!c.sdc.serves(nbd));
}

#[test]
fn a_process_that_stops_tells_the_mdm_which_hosts_have_left() {
    let mut c = answering();
    let (a, b) = (Host::attached(&mut c, 1), Host::attached(&mut c, 2));
    let mut other = Host::connect(&mut c);
    other.name = "iqn.2026-11.test:other".into();
    assert_eq!(other.log_in(&mut c, 1), 0);
    let (admin, io) = nvme(&mut c);
    let nbd = Client::attached(&mut c, &Limits::SHIPPED);
    c.pass(ms(500));
    let told = |c: &Cluster| (c.log.hosts.len(), c.log.sessions.len());
    assert_eq!((told(&c), c.log.connected), ((1, 2), (1, 3)));
    c.stop();
    c.cut_link(other.link);
    assert_eq!(told(&c), (1, 1), "at once");
    assert!(!c.sdc.is_stopped(), "a host may log out");
    c.cut_link(a.link);
    assert_eq!((told(&c), c.sdc.is_stopped()), ((1, 1), false));
    c.cut_link(b.link);
    assert_eq!((told(&c), c.log.connected), ((0, 0), (0, 0)));
    assert!(
        c.sdc.is_stopped() && ![admin.link, io.link, nbd.link].iter().any(|l| c.sdc.serves(*l))
    );
}

#[test]
fn hosts_of_nvme_do_not_keep_a_process_that_stops() {
    let mut c = answering();
    let (_admin, io) = nvme(&mut c);
    c.pass(ms(500));
    assert_eq!(c.log.hosts.len(), 1);
    c.stop();
    assert_eq!(c.log.hosts.len(), 0, "the MDM knows that the host is gone");
    assert!(c.sdc.is_stopped() && !c.sdc.serves(io.link));
    // Without an MDM, nobody can be told.
    let mut c = answering();
    let _queues = nvme(&mut c);
    c.kill(Who::Mdm);
    c.stop();
    assert!(c.sdc.is_stopped());
}

/// Ids of controllers are told apart by the numbers of gateways.
#[test]
fn a_connection_from_before_the_first_number_gets_no_id_of_another_gateway() {
    let mut c = Cluster::new(Limits::SHIPPED);
    c.map.gateways[0].number = 3;
    let early = Queue::open(&mut c);
    c.make_ready();
    assert!(!c.sdc.serves(early.link), "it has to connect again");
    assert_eq!(Queue::admin(&mut c).cntlid / 512, 3);
}
