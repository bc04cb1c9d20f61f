//! Seats: requests of a host wait until this gateway has a confirmed seat for it, and end when the
//! seat leaves.

use super::cluster::{Cluster, ME, VOLUME, Who, volume};
use super::iscsi_host::{Host, Sense, transfer};
use super::nbd_client::Client;
use super::nvme_host::Queue;
use base::{Limits, VolumeId};
use core::time::Duration;
use mdm::mapping::Mapping;
use target::nbd::proto::NBD_CMD_WRITE;
use target::reserve::{Change, Identity, Kind as Type};
use wire::control::{GatewayInfo, SeatInfo, SeatsTaken, TakeSeats};
use wire::{Header, Kind};

pub(crate) const HOST: &str = "iqn.2026-11.test:host";
pub(crate) const NVME_HOST: &str = "nqn.host";
/// The other gateway.
pub(crate) const OTHER: u32 = 7;
/// Another gateway serves the host: standby, and inaccessible.
pub(crate) const STANDBY: Result<(), Sense> = Err((2, 4, 0x0b));
const INACCESSIBLE: u16 = 0x0302;
/// The states of groups have changed.
pub(crate) const STATES_CHANGED: Result<(), Sense> = Err((6, 0x2a, 6));
/// The event of NVMe: the log of asymmetric access has changed.
const ACCESS_CHANGED: u32 = 0x0c_0302;
/// Repeat it.
pub(crate) const NO_PRIMARY: Result<(), Sense> = Err((2, 4, 1));
const NOT_READY: u16 = 0x0082;

pub(crate) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A cluster with two gateways whose MDM answers no question for seats.
pub(crate) fn silent() -> Cluster {
    let mut c = Cluster::ready();
    c.keeps_seats = true;
    c.change(|map| {
        let uris = vec!["iscsi://10.0.0.8:3260".into(), "nvme-tcp://10.0.0.8:4420".into()];
        map.gateways.push(GatewayInfo { sdc: OTHER, number: 1, uris });
        map.gateways_at = map.version;
    });
    c.tell();
    c
}

/// The same, and each question is answered.
pub(crate) fn answering() -> Cluster {
    let mut c = silent();
    c.keeps_seats = false;
    c.fences = true;
    c
}

fn volume_of(c: &mut Cluster) -> &mut wire::control::VolumeInfo {
    &mut c.map.volumes[0]
}

/// Gives a gateway the seat of a host, as the MDM does when it moves one.
pub(crate) fn give(c: &mut Cluster, host: &str, sdc: u32) {
    c.give(VOLUME.0, host, sdc);
}

/// The same, and the gateways hear of it.
pub(crate) fn give_and_tell(c: &mut Cluster, host: &str, sdc: u32) {
    give(c, host, sdc);
    c.tell();
}

/// The host of NVMe: an admin queue, and an I/O queue.
pub(crate) fn nvme(c: &mut Cluster) -> (Queue, Queue) {
    let admin = Queue::admin(c);
    let io = Queue::io(c, &admin, 1).unwrap();
    (admin, io)
}

/// Answers the last question of the gateway.
pub(crate) fn answer(c: &mut Cluster) {
    let (link, m) = (c.link_of(Who::Mdm).unwrap(), c.log.wished.last().unwrap().clone());
    c.take_seats(link, &m);
}

/// Answers a question with these generations, by a map of this version.
pub(crate) fn answer_with(c: &mut Cluster, number: u64, map: u64, since: &[u32]) {
    let taken = SeatsTaken { number, map, since: since.to_vec(), volume: VOLUME.0 };
    let link = c.link_of(Who::Mdm).unwrap();
    c.send(link, Header::new(Kind::SeatsTaken), &taken);
}

pub(crate) fn numbers(c: &Cluster) -> Vec<u64> {
    c.log.wished.iter().map(|m| m.number).collect()
}

pub(crate) fn hosts_of(m: &TakeSeats) -> Vec<(u32, &str)> {
    m.seats.iter().map(|wish| (wish.volume, &wish.host[..])).collect()
}

#[test]
pub(crate) fn a_request_waits_until_the_seat_is_confirmed() {
    let mut c = silent();
    let mut a = Host::attached(&mut c, 1);
    let at_login = c.log.wished.clone();
    a.write(&mut c, 2, 0xaa);
    // Others do not wait for it.
    let mut nbd = Client::attached(&mut c, &Limits::SHIPPED);
    nbd.request(&mut c, NBD_CMD_WRITE, 1, 4096, 512, &[7; 512]);
    assert_eq!(nbd.reply(&mut c, 1).0, 0, "it has no seat");
    c.pass(ms(5));
    assert!(a.answers(&mut c).is_empty() && c.data[0] == 0);
    assert_eq!(at_login.iter().map(hosts_of).collect::<Vec<_>>(), [[(VOLUME.0, HOST)]]);
    assert!(!at_login[0].seats[0].moves);
    // The map with the seat is no confirmation.
    give_and_tell(&mut c, HOST, ME);
    c.pass(ms(5));
    assert!(a.answers(&mut c).is_empty() && c.data[0] == 0);
    answer(&mut c);
    assert_eq!((a.answer(&mut c).result(), c.data[0]), (Ok(()), 0xaa));
    assert_eq!(c.log.wished.len(), 1, "{:?}", c.log.wished);
    a.write(&mut c, 3, 0xab);
    assert_eq!((a.answer(&mut c).result(), c.data[0]), (Ok(()), 0xab));
    assert_eq!(c.log.wished.len(), 1, "it is not asked for again");
}

#[test]
fn the_question_is_repeated_under_its_number_until_further_hosts_join_it() {
    let mut c = silent();
    let mut a = Host::attached(&mut c, 1);
    a.write(&mut c, 2, 0xaa);
    let (_admin, mut io) = nvme(&mut c);
    io.write(&mut c, 1, &[0xbb; 512]);
    a.write(&mut c, 3, 0xac);
    assert_eq!(numbers(&c), [1]);
    c.pass(ms(2500));
    assert_eq!(numbers(&c), [1, 2, 2], "the second one is about both");
    c.cut(Who::Mdm);
    c.pass(ms(1000));
    assert!(numbers(&c).len() > 3 && numbers(&c)[3..].iter().all(|n| *n == 2), "on the new link");
    let both = [(VOLUME.0, HOST), (VOLUME.0, NVME_HOST)];
    assert!(c.log.wished[1..].iter().all(|m| hosts_of(m) == both));
    c.keeps_seats = false;
    c.pass(ms(1100));
    assert_eq!(a.answers(&mut c).len(), 2);
    assert_eq!(io.answer(&mut c).answer().0, 0);
    assert_eq!((c.data[0], c.data[512]), (0xac, 0xbb));
    let asked = numbers(&c).len();
    c.pass(ms(5000));
    assert_eq!(numbers(&c).len(), asked, "all is answered");
}

#[test]
fn requests_without_a_seat_end_in_time_and_the_host_may_repeat_them() {
    let mut c = silent();
    let mut a = Host::attached(&mut c, 1);
    let (_admin, mut io) = nvme(&mut c);
    a.write(&mut c, 2, 0xaa);
    c.kill(Who::Mdm);
    io.write(&mut c, 1, &[0xbb; 512]);
    c.pass(Limits::SHIPPED.target_patience - ms(100));
    assert!(a.answers(&mut c).is_empty() && io.answers(&mut c).is_empty());
    c.pass(ms(700));
    assert_eq!(a.answer(&mut c).result(), NO_PRIMARY);
    assert_eq!(io.answer(&mut c).answer().0, NOT_READY);
    // They are gone, too: a later confirmation executes nothing of them.
    c.alive.insert(1);
    c.keeps_seats = false;
    c.pass(ms(5000));
    assert!(c.log.ios.is_empty() && c.data[0] == 0);
    a.write(&mut c, 3, 0xab);
    assert_eq!((a.answer(&mut c).result(), c.data[0]), (Ok(()), 0xab));
}

/// The MDM is asked first: the host may have left the other gateway a moment ago. Hosts of NVMe are
/// told so at once.
#[test]
fn a_host_that_another_gateway_serves_is_told_so_when_the_mdm_has_said_it_twice() {
    let mut c = answering();
    give(&mut c, HOST, OTHER);
    give_and_tell(&mut c, NVME_HOST, OTHER);
    let mut a = Host::attached(&mut c, 1);
    assert_eq!(hosts_of(&c.log.wished[0]), [(VOLUME.0, HOST)]);
    a.write(&mut c, 2, 0xaa);
    let (_admin, mut io) = nvme(&mut c);
    io.write(&mut c, 1, &[0xbb; 512]);
    assert_eq!(io.answer(&mut c).answer().0, INACCESSIBLE);
    c.pass(ms(499));
    assert!(a.answers(&mut c).is_empty());
    assert_eq!(numbers(&c), [1]);
    assert_eq!(states(&mut c, &mut a), [(1, 0), (2, 0)], "not known yet");
    c.pass(ms(1));
    assert_eq!((numbers(&c), hosts_of(&c.log.wished[1])), (vec![1, 2], vec![(VOLUME.0, HOST)]));
    assert!(!c.log.wished[1].seats[0].moves);
    assert_eq!(a.answer(&mut c).result(), STANDBY);
    assert_eq!(a.ready(&mut c), STATES_CHANGED);
    assert_eq!(states(&mut c, &mut a), [(1, 2), (2, 0)], "standby, and optimized");
    a.write(&mut c, 3, 0xab);
    assert_eq!(a.answer(&mut c).result(), STANDBY, "at once");
    c.pass(ms(5000));
    assert!(c.log.wished.len() == 2 && c.log.ios.is_empty());
    // The seat comes here. It is confirmed before the host asks for anything.
    c.keeps_seats = true;
    give_and_tell(&mut c, HOST, ME);
    assert_eq!(hosts_of(&c.log.wished[2]), [(VOLUME.0, HOST)]);
    assert_eq!(a.ready(&mut c), STATES_CHANGED);
    assert_eq!(states(&mut c, &mut a), [(1, 0), (2, 2)]);
    a.write(&mut c, 4, 0xac);
    assert!(a.answers(&mut c).is_empty());
    answer(&mut c);
    assert_eq!((a.answer(&mut c).result(), c.data[0]), (Ok(()), 0xac));
    assert_eq!(c.log.wished.len(), 3);
}

/// It has no other path any more. Its commands wait, and none of them fails. It is told that the
/// other gateway is in standby now.
#[test]
fn a_host_that_has_left_the_other_gateway_a_moment_ago_is_served_without_an_error() {
    for told in [true, false] {
        let mut c = answering();
        give_and_tell(&mut c, HOST, OTHER);
        if told {
            c.leavers.insert(HOST.into());
        }
        let mut a = Host::attached(&mut c, 1);
        if told {
            assert_eq!(a.ready(&mut c), STATES_CHANGED);
        }
        a.write(&mut c, 2, 0xaa);
        if !told {
            // The other gateway tells it a bit later.
            assert!(a.answers(&mut c).is_empty() && c.log.ios.is_empty());
            c.pass(ms(300));
            c.leavers.insert(HOST.into());
            c.pass(ms(199));
            assert!(a.answers(&mut c).is_empty() && c.log.ios.is_empty());
            c.pass(ms(1));
        }
        assert_eq!((a.answer(&mut c).result(), c.data[0]), (Ok(()), 0xaa));
        if !told {
            assert_eq!(a.ready(&mut c), STATES_CHANGED);
        }
        assert_eq!(a.ready(&mut c), Ok(()));
        assert_eq!(states(&mut c, &mut a), [(1, 0), (2, 2)]);
        c.pass(ms(5000));
        assert_eq!(numbers(&c), [1, 2][..if told { 1 } else { 2 }]);
    }
}

/// What the MDM said of its former session counts for nothing.
#[test]
fn a_host_that_comes_back_is_asked_for_anew() {
    let mut c = answering();
    give_and_tell(&mut c, HOST, OTHER);
    let a = Host::attached(&mut c, 1);
    c.pass(ms(5000));
    assert_eq!(numbers(&c), [1, 2]);
    c.cut_link(a.link);
    c.leavers.insert(HOST.into());
    let mut a = Host::attached(&mut c, 1);
    assert_eq!(a.ready(&mut c), STATES_CHANGED);
    a.write(&mut c, 2, 0xaa);
    assert_eq!((a.answer(&mut c).result(), c.data[0]), (Ok(()), 0xaa));
    assert_eq!(c.log.wished[2].number, 3);
    // It goes while it is asked for.
    give_and_tell(&mut c, HOST, OTHER);
    (c.leavers, c.keeps_seats) = (Default::default(), true);
    let a = Host::attached(&mut c, 1);
    c.cut_link(a.link);
    answer(&mut c);
    let asked = c.log.wished.len();
    c.pass(ms(5000));
    assert_eq!(c.log.wished.len(), asked, "nobody wants it");
}

/// Its session ends in order, which takes time.
#[test]
fn a_volume_that_is_deleted_while_another_gateway_has_the_seat_is_not_asked_for_again() {
    let mut c = answering();
    give_and_tell(&mut c, HOST, OTHER);
    let _a = Host::attached(&mut c, 1);
    assert_eq!(numbers(&c), [1]);
    c.change(|map| {
        map.volumes.clear();
        map.live.clear();
    });
    c.tell();
    c.pass(ms(5000));
    assert!(numbers(&c).len() <= 2, "{:?}", numbers(&c));
}

/// Requests that wait end when the map says that another gateway has the seat: those of NVMe at
/// once, and those of iSCSI when the MDM has said it, too.
#[test]
fn a_waiting_request_ends_when_another_gateway_gets_the_seat() {
    let mut c = silent();
    let mut a = Host::attached(&mut c, 1);
    let (_admin, mut io) = nvme(&mut c);
    a.write(&mut c, 2, 0xaa);
    io.write(&mut c, 8, &[0xbb; 512]);
    give(&mut c, HOST, OTHER);
    give(&mut c, NVME_HOST, OTHER);
    let version = c.map.version;
    answer_with(&mut c, 1, version, &[0]);
    assert!(c.map_version().0 >= version, "it has asked for the map");
    assert_eq!(io.answer(&mut c).answer().0, INACCESSIBLE);
    // The question of the NVMe host was wanted before.
    assert_eq!((numbers(&c), hosts_of(&c.log.wished[1])), (vec![1, 2], vec![(1, NVME_HOST)]));
    answer(&mut c);
    assert!(a.answers(&mut c).is_empty());
    c.pass(ms(500));
    assert!(a.answers(&mut c).is_empty());
    assert_eq!((numbers(&c), hosts_of(&c.log.wished[2])), (vec![1, 2, 3], vec![(1, HOST)]));
    answer(&mut c);
    assert_eq!(a.answer(&mut c).result(), STANDBY);
    assert_eq!(a.ready(&mut c), STATES_CHANGED);
    a.command(&mut c, 3, &transfer(0x28, 0, 1), 512, &[]);
    assert_eq!(a.answer(&mut c).result(), STANDBY);
    c.pass(ms(5000));
    assert!(c.log.ios.is_empty() && c.log.wished.len() == 3);
}

/// Report of the states of the groups: those of this gateway and of the other one.
pub(crate) fn states(c: &mut Cluster, host: &mut Host) -> Vec<(u16, u8)> {
    host.command(c, 90, &[0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0], 255, &[]);
    let data = host.answer(c).data;
    let mut rest = &data[4..];
    let mut states = Vec::new();
    while rest.len() >= 8 {
        states.push((u16::from_be_bytes([rest[2], rest[3]]), rest[0] & 15));
        rest = &rest[8 + 4 * usize::from(rest[7])..];
    }
    states
}

#[test]
pub(crate) fn nothing_of_a_host_whose_seat_left_comes_later_and_others_notice_nothing() {
    let mut c = answering();
    let mut a = Host::attached(&mut c, 1);
    let (mut admin, mut io) = nvme(&mut c);
    let mut nbd = Client::attached(&mut c, &Limits::SHIPPED);
    a.write(&mut c, 2, 0xa1);
    io.write(&mut c, 8, &[0xb1; 512]);
    assert_eq!((a.answer(&mut c).result(), io.answer(&mut c).answer().0), (Ok(()), 0));
    assert_eq!(states(&mut c, &mut a), [(1, 0), (2, 2)], "optimized, and standby");
    let mut entry = Queue::entry(0x09, 0, false);
    (entry[40], entry[45]) = (0x0b, 0x08);
    admin.send(&mut c, entry, &[]);
    assert_eq!(admin.answer(&mut c).answer().0, 0, "it wants events of asymmetric access");
    admin.ask_event(&mut c);
    // Writes and a read of all are under way, and one of A's has sent only a part of its data.
    let data = vec![0xac; 4096];
    a.begin_write(&mut c, 9, &transfer(0x2a, 32, 8), &data, 512);
    c.hold = true;
    a.write(&mut c, 3, 0xaa);
    a.command(&mut c, 4, &transfer(0x28, 8, 1), 512, &[]);
    io.write(&mut c, 8, &[0xbb; 512]);
    nbd.request(&mut c, NBD_CMD_WRITE, 1, 1 << 15, 512, &[7; 512]);
    give_and_tell(&mut c, HOST, OTHER);
    // It comes back by another session, before anything of the former one has ended.
    let before = a;
    let mut a = Host::attached(&mut c, 2);
    a.write(&mut c, 5, 0xae);
    c.hold = false;
    c.release();
    c.pass(ms(499));
    let later = &c.data[33 * 512..40 * 512];
    assert!(c.data[0] == 0xa1 && later.iter().all(|byte| *byte == 0), "its writes never came");
    assert!(!c.sdc.serves(before.link) && !c.received.contains_key(&before.link), "no answer");
    assert_eq!((io.answer(&mut c).answer().0, c.data[8 * 512]), (0, 0xbb));
    assert_eq!((nbd.reply(&mut c, 1).0, c.data[1 << 15]), (0, 7));
    assert!(admin.answers(&mut c).is_empty(), "its path is as before");
    assert!(c.sdc.serves(admin.link) && c.sdc.serves(io.link) && c.sdc.serves(nbd.link));
    assert!(a.answers(&mut c).is_empty());
    c.pass(ms(1));
    assert_eq!(a.answer(&mut c).result(), STANDBY);
    assert_eq!(a.ready(&mut c), STATES_CHANGED);
    assert_eq!(states(&mut c, &mut a), [(1, 2), (2, 0)]);
    // The same for the other protocol, at once.
    c.hold = true;
    io.write(&mut c, 8, &[0xbc; 512]);
    give_and_tell(&mut c, NVME_HOST, OTHER);
    let before = [admin, io].map(|queue| queue.link);
    let (mut admin, mut io) = nvme(&mut c);
    io.write(&mut c, 8, &[0xbd; 512]);
    assert_eq!(io.answer(&mut c).answer().0, INACCESSIBLE);
    c.hold = false;
    c.release();
    c.pass(ms(500));
    assert_eq!(c.data[8 * 512], 0xbb);
    assert!(!before.iter().any(|link| c.sdc.serves(*link) || c.received.contains_key(link)));
    assert!(c.sdc.serves(a.link) && c.sdc.serves(nbd.link));
    // The seat comes back: the host gets an event.
    admin.send(&mut c, entry, &[]);
    assert_eq!(admin.answer(&mut c).answer().0, 0);
    admin.ask_event(&mut c);
    assert!(admin.answers(&mut c).is_empty());
    give_and_tell(&mut c, NVME_HOST, ME);
    assert_eq!(admin.answer(&mut c).answer(), (0, ACCESS_CHANGED));
    io.write(&mut c, 8, &[0xbe; 512]);
    assert_eq!((io.answer(&mut c).answer().0, c.data[8 * 512]), (0, 0xbe));
}

/// The first map that this gateway sees has the seat here, as the one before. The host may have
/// written through another gateway in between.
#[test]
pub(crate) fn a_seat_that_left_and_came_back_unseen_is_confirmed_again() {
    let mut c = answering();
    for round in 1..3 {
        let mut a = Host::attached(&mut c, round);
        let (admin, mut io) = nvme(&mut c);
        a.write(&mut c, 2, round);
        io.write(&mut c, 8, &[round; 512]);
        assert_eq!((a.answer(&mut c).result(), io.answer(&mut c).answer().0), (Ok(()), 0));
        let asked = c.log.wished.len();
        (c.hold, c.keeps_seats) = (true, true);
        a.write(&mut c, 3, 0xaa);
        io.write(&mut c, 8, &[0xbb; 512]);
        for host in [HOST, NVME_HOST] {
            give(&mut c, host, OTHER);
            give(&mut c, host, ME);
        }
        c.tell();
        // A request that comes from now on waits.
        let before = [a.link, admin.link, io.link];
        let mut a = Host::attached(&mut c, round + 10);
        let (_admin, mut io) = nvme(&mut c);
        a.write(&mut c, 4, 0xac);
        io.write(&mut c, 8, &[0xbc; 512]);
        c.hold = false;
        c.release();
        c.pass(ms(500));
        assert_eq!((c.data[0], c.data[8 * 512]), (round, round), "their writes never came");
        assert!(!before.iter().any(|link| c.sdc.serves(*link) || c.received.contains_key(link)));
        assert!(a.answers(&mut c).is_empty() && io.answers(&mut c).is_empty());
        assert_eq!(hosts_of(&c.log.wished[asked]), [(VOLUME.0, HOST)]);
        answer(&mut c);
        assert_eq!((a.answer(&mut c).result(), c.data[0]), (Ok(()), 0xac));
        assert!(io.answers(&mut c).is_empty() && c.data[8 * 512] == round);
        assert_eq!(hosts_of(&c.log.wished[asked + 1]), [(VOLUME.0, NVME_HOST)]);
        answer(&mut c);
        assert_eq!((io.answer(&mut c).answer().0, c.data[8 * 512]), (0, 0xbc));
        c.keeps_seats = false;
    }
}

/// After a recovery of the MDMs no gateway has a seat. The only path of a host must not fail.
#[test]
fn a_host_whose_seat_is_gone_and_that_no_other_gateway_serves_connects_again_and_goes_on() {
    let mut c = answering();
    let mut a = Host::attached(&mut c, 1);
    a.write(&mut c, 2, 0xa1);
    assert_eq!(a.answer(&mut c).result(), Ok(()));
    c.hold = true;
    a.write(&mut c, 3, 0xaa);
    give(&mut c, HOST, ME);
    volume_of(&mut c).seats.clear();
    c.tell();
    let before = a.link;
    let mut a = Host::attached(&mut c, 2);
    c.hold = false;
    c.release();
    c.pass(ms(500));
    assert_eq!(c.data[0], 0xa1);
    assert!(!c.sdc.serves(before) && !c.received.contains_key(&before));
    a.write(&mut c, 4, 0xab);
    assert_eq!((a.answer(&mut c).result(), c.data[0]), (Ok(()), 0xab));
    assert_eq!(a.ready(&mut c), Ok(()), "it was never in standby");
}

#[test]
fn an_answer_for_an_older_seat_confirms_nothing() {
    let mut c = silent();
    let mut a = Host::attached(&mut c, 1);
    a.write(&mut c, 2, 0xaa);
    give_and_tell(&mut c, HOST, ME);
    let (version, since) = (c.map.version, c.map.volumes[0].generation);
    give(&mut c, HOST, OTHER);
    give_and_tell(&mut c, HOST, ME);
    assert!(!c.sdc.serves(a.link), "the host may have written elsewhere");
    assert!(a.answers(&mut c).is_empty());
    let mut a = Host::attached(&mut c, 1);
    a.write(&mut c, 3, 0xab);
    answer_with(&mut c, 1, version, &[since]);
    c.pass(ms(5));
    assert!(a.answers(&mut c).is_empty() && c.log.ios.is_empty());
    assert_eq!(numbers(&c), [1, 2], "it asks for the newer one");
    // Other wrong answers: of a question that is over, of one to come, too short, too long.
    let since = c.map.volumes[0].generation;
    let version = c.map.version;
    for (number, list) in [(1, vec![since]), (3, vec![since]), (0, vec![since])] {
        answer_with(&mut c, number, version, &list);
    }
    assert!(c.log.ios.is_empty());
    answer_with(&mut c, 2, version, &[since, since, 9]);
    assert_eq!(a.answer(&mut c).result(), Ok(()));
}

/// Its hosts' requests still end in time, and it asks again.
#[test]
fn an_answer_without_the_seats_confirms_nothing() {
    let mut c = silent();
    let mut a = Host::attached(&mut c, 1);
    a.write(&mut c, 2, 0xaa);
    give_and_tell(&mut c, HOST, ME);
    let version = c.map.version;
    answer_with(&mut c, 1, version, &[]);
    c.pass(ms(2500));
    assert!(c.log.ios.is_empty());
    answer(&mut c);
    assert_eq!(a.answer(&mut c).result(), Ok(()));
}

#[test]
fn an_answer_that_comes_before_its_map_waits_for_it() {
    let mut c = silent();
    let mut a = Host::attached(&mut c, 1);
    a.write(&mut c, 2, 0xaa);
    // This map is not told. The gateway asks for it when it knows of it.
    let link = c.link_of(Who::Mdm).unwrap();
    let version = c.map.version + 1;
    let since = c.map.volumes[0].generation + 1;
    let taken = SeatsTaken { number: 1, map: version, since: vec![since], volume: VOLUME.0 };
    c.send(link, Header::new(Kind::SeatsTaken), &taken);
    assert!(a.answers(&mut c).is_empty() && c.log.ios.is_empty());
    assert!(c.log.pulls.last().unwrap().wait);
    c.pass(ms(2500));
    assert_eq!(numbers(&c), [1], "it is answered");
    give_and_tell(&mut c, HOST, ME);
    assert_eq!((a.answer(&mut c).result(), c.data[0]), (Ok(()), 0xaa));
}

/// A volume with no room for a seat, or one that is gone: nobody has the seat, and the MDM does not
/// give it. Each question costs the MDMs a confirmation.
#[test]
fn a_seat_that_is_not_given_is_asked_for_once_a_second() {
    let mut c = silent();
    let mut a = Host::attached(&mut c, 1);
    a.write(&mut c, 2, 0xaa);
    for second in 1..=5 {
        let (number, version) = (c.log.wished.last().unwrap().number, c.map.version);
        assert_eq!((number, c.log.wished.len()), (second, second as usize));
        answer_with(&mut c, number, version, &[0]);
        c.pass(ms(999));
        assert_eq!(c.log.wished.len(), second as usize);
        c.pass(ms(2));
    }
    // Another host does not wait for that.
    let (number, version) = (c.log.wished.last().unwrap().number, c.map.version);
    answer_with(&mut c, number, version, &[0]);
    c.keeps_seats = false;
    let (_admin, mut io) = nvme(&mut c);
    io.write(&mut c, 8, &[0xbb; 512]);
    assert_eq!(io.answer(&mut c).answer().0, 0);
    assert!(a.answers(&mut c).is_empty());
    c.pass(ms(1000));
    assert_eq!(a.answer(&mut c).result(), Ok(()));
}

#[test]
fn an_mdm_that_is_asked_again_and_again_has_one_question_of_as_many_seats_as_it_takes() {
    let mut c = silent();
    let ids = 2..=300;
    c.change(|map| {
        map.volumes.extend(ids.clone().map(|id| volume(VolumeId(id), &format!("v{id}"), 1 << 20)));
        map.live.extend(ids.clone());
        map.next_volume = 301;
    });
    c.tell();
    let admin = Queue::admin(&mut c);
    let mut queues: Vec<Queue> =
        (1..=12).map(|qid| Queue::io(&mut c, &admin, qid).unwrap()).collect();
    for id in ids {
        let mut entry = Queue::entry(0x02, 512, false);
        entry[4..8].copy_from_slice(&id.to_le_bytes());
        queues[id as usize % 12].send(&mut c, entry, &[]);
    }
    assert_eq!((c.log.wished.len(), c.log.wished[0].seats.len()), (1, 1));
    answer(&mut c);
    assert_eq!((c.log.wished.len(), c.log.wished[1].seats.len()), (2, 256));
    c.keeps_seats = false;
    answer(&mut c);
    assert_eq!((c.log.wished.len(), c.log.wished[2].seats.len()), (3, 42));
    let answers: usize = queues.iter_mut().map(|queue| queue.answers(&mut c).len()).sum();
    assert!(answers >= 299, "{answers}");
}

#[test]
fn a_command_that_is_aborted_or_whose_session_ends_while_it_waits_never_comes() {
    let mut c = silent();
    let mut a = Host::attached(&mut c, 1);
    let mut b = Host::attached(&mut c, 2);
    let (admin, mut io) = nvme(&mut c);
    b.write(&mut c, 2, 0xbb);
    io.write(&mut c, 0, &[0xcc; 512]);
    a.write(&mut c, 2, 0xaa);
    a.abort_last(&mut c, 3, 2);
    assert_eq!(a.answer(&mut c).bhs[..3], [0x22, 0x80, 0], "it is over");
    c.cut_link(b.link);
    c.cut_link(admin.link);
    c.keeps_seats = false;
    c.pass(ms(3000));
    assert!(c.log.ios.is_empty() && a.answers(&mut c).is_empty());
    a.write(&mut c, 4, 0xab);
    assert_eq!((a.answer(&mut c).result(), c.data[0]), (Ok(()), 0xab));
}

/// Its answer may come after that. A host that comes back asks anew.
#[test]
fn a_host_that_goes_while_its_seat_is_asked_for_is_asked_for_again_when_it_comes_back() {
    let mut c = silent();
    let mut a = Host::attached(&mut c, 1);
    a.write(&mut c, 2, 0xaa);
    c.cut_link(a.link);
    answer(&mut c);
    assert!(c.log.ios.is_empty());
    c.pass(ms(2000));
    give_and_tell(&mut c, HOST, OTHER);
    give_and_tell(&mut c, HOST, ME);
    let mut a = Host::attached(&mut c, 1);
    a.write(&mut c, 2, 0xab);
    assert!(a.answers(&mut c).is_empty(), "that answer was for an earlier seat");
    answer(&mut c);
    assert_eq!((a.answer(&mut c).result(), c.data[0]), (Ok(()), 0xab));
}

#[test]
fn a_host_that_lost_its_seat_and_its_registration_learns_of_both() {
    let mut c = answering();
    let mut a = Host::attached(&mut c, 1);
    let other = Identity::Scsi { name: "iqn.2026-11.test:other".into(), isid: [9; 6], port: 2 };
    let register = |c: &mut Cluster, who: &Identity, new: u64| {
        let change = Change::Register { key: 0, new, ignore: true, all_ports: false };
        c.reserve_as(who, &change).unwrap();
    };
    let mut list = [0; 24];
    list[15] = 0xa;
    a.command(&mut c, 100, &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], 0, &list);
    assert_eq!(a.answer(&mut c).result(), Ok(()));
    register(&mut c, &other, 9);
    let kind = Type::WriteExclusiveRegistrants;
    c.reserve_as(&other, &Change::Reserve { key: 9, kind }).unwrap();
    c.tell();
    a.write(&mut c, 2, 0xa1);
    assert_eq!((a.answer(&mut c).result(), c.data[0]), (Ok(()), 0xa1), "it is registered");
    c.hold = true;
    a.write(&mut c, 3, 0xaa);
    c.reserve_as(&other, &Change::Preempt { key: 9, victim: 0xa, kind }).unwrap();
    give_and_tell(&mut c, HOST, OTHER);
    c.hold = false;
    c.release();
    c.pass(ms(500));
    assert!(!c.sdc.serves(a.link) && a.answers(&mut c).is_empty());
    assert_eq!(c.data[0], 0xa1, "its write never came");
    // The loss of its session says what it lost here. Its path is in standby.
    let mut a = Host::attached(&mut c, 1);
    c.pass(ms(500));
    assert_eq!(a.ready(&mut c), STATES_CHANGED);
    a.write(&mut c, 3, 0xaa);
    assert_eq!(a.answer(&mut c).result(), STANDBY);
    // Only the seat comes back: the reservation still shuts it out.
    give_and_tell(&mut c, HOST, ME);
    assert_eq!(a.ready(&mut c), STATES_CHANGED);
    a.write(&mut c, 4, 0xab);
    assert_eq!((a.answer(&mut c).bhs[3], c.data[0]), (0x18, 0xa1));
}

/// A request that begins when another one ends counts by the new map, whichever volume it is for.
#[test]
fn two_volumes_whose_seats_leave_with_one_map_are_both_left() {
    let mut c = answering();
    c.change(|map| {
        map.volumes.push(volume(VolumeId(2), "two", 1 << 20));
        map.live.push(2);
        map.next_volume = 3;
    });
    c.tell();
    let (_admin, mut io) = nvme(&mut c);
    let write = |c: &mut Cluster, io: &mut Queue, volume: u32, byte: u8| {
        let mut entry = Queue::entry(0x01, 512, true);
        entry[4..8].copy_from_slice(&volume.to_le_bytes());
        io.send(c, entry, &[byte; 512]);
    };
    for volume in [1, 2] {
        write(&mut c, &mut io, volume, 1);
        assert_eq!(io.answer(&mut c).answer().0, 0);
    }
    let before = c.log.ios.len();
    c.hold = true;
    for _ in 0..8 {
        write(&mut c, &mut io, 1, 2);
        write(&mut c, &mut io, 2, 2);
    }
    c.map.version += 1;
    for volume in &mut c.map.volumes {
        volume.generation += 1;
        let mapping = Mapping::of(volume.mapping.clone()).renewed(volume.generation);
        volume.mapping = Some(mapping.info());
        let since = volume.generation;
        volume.seats = vec![SeatInfo { host: NVME_HOST.into(), sdc: OTHER, since }];
    }
    c.tell();
    let generation = c.map.volumes[0].generation;
    let sent =
        |c: &Cluster| c.log.ios[before..].iter().map(|(_, io)| io.request().generation).max();
    assert!(sent(&c).is_none_or(|g| g < generation));
    c.hold = false;
    c.release();
    c.pass(ms(500));
    assert!(sent(&c).is_none_or(|g| g < generation));
    assert!(!c.sdc.serves(io.link) && io.answers(&mut c).is_empty());
    assert_eq!(c.data[0], 1, "nothing of them came");
    let (_admin, mut io) = nvme(&mut c);
    for volume in [1, 2] {
        write(&mut c, &mut io, volume, 3);
        assert_eq!(io.answer(&mut c).answer().0, INACCESSIBLE);
    }
}
