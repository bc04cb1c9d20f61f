//! Seats that another gateway has: when a path is in standby, hosts that have left the other gateway,
//! and hosts that want to be served here.

use super::cluster::{Cluster, ME, VOLUME, Who};
use super::iscsi_host::{Host, transfer};
use super::seats::*;
use base::Limits;

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

/// SET TARGET PORT GROUPS: this gateway becomes the optimized one.
fn activate(c: &mut Cluster, host: &mut Host, itt: u32) {
    let cdb = [0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0];
    host.command(c, itt, &cdb, 0, &[0, 0, 0, 0, 0, 0, 0, 1]);
}

/// A host at a gateway in standby.
fn in_standby(c: &mut Cluster) -> Host {
    c.keeps_seats = false;
    give_and_tell(c, HOST, OTHER);
    let mut a = Host::attached(c, 1);
    c.pass(ms(500));
    assert_eq!(a.ready(c), STATES_CHANGED);
    c.keeps_seats = true;
    a
}

#[test]
fn a_host_that_activates_this_gateway_gets_its_answer_when_the_seat_is_confirmed() {
    let mut c = answering();
    let mut a = in_standby(&mut c);
    activate(&mut c, &mut a, 2);
    let last = c.log.wished.last().unwrap().clone();
    assert_eq!((last.number, hosts_of(&last)), (3, vec![(VOLUME.0, HOST)]));
    assert!(last.seats[0].moves);
    c.pass(ms(2500));
    assert!(c.log.wished[3..].iter().all(|m| *m == last), "the same question again");
    assert_eq!(c.log.wished.len(), 5);
    // A seat that is here, and not confirmed, is not enough.
    give_and_tell(&mut c, HOST, ME);
    c.pass(ms(5));
    assert!(a.answers(&mut c).is_empty());
    answer(&mut c);
    assert_eq!(a.answer(&mut c).result(), Ok(()));
    assert_eq!(a.ready(&mut c), STATES_CHANGED);
    assert_eq!(states(&mut c, &mut a), [(1, 0), (2, 2)]);
    a.write(&mut c, 3, 0xaa);
    assert_eq!((a.answer(&mut c).result(), c.data[0]), (Ok(()), 0xaa));
}

#[test]
fn a_host_that_activates_this_gateway_gets_the_seat_of_the_other_one() {
    let mut c = answering();
    let mut a = in_standby(&mut c);
    c.keeps_seats = false;
    activate(&mut c, &mut a, 2);
    assert_eq!(a.answer(&mut c).result(), Ok(()));
    let seats = &c.map.volumes[0].seats;
    assert_eq!(seats.iter().map(|seat| seat.sdc).collect::<Vec<_>>(), [ME]);
    assert_eq!(a.ready(&mut c), STATES_CHANGED);
    a.write(&mut c, 3, 0xaa);
    assert_eq!((a.answer(&mut c).result(), c.data[0]), (Ok(()), 0xaa));
    // Once it is seated, it is seated.
    activate(&mut c, &mut a, 4);
    assert_eq!(a.answer(&mut c).result(), Ok(()));
    assert_eq!(a.ready(&mut c), Ok(()));
}

/// The wish of the host goes along with the next question.
#[test]
fn a_question_without_the_wish_that_is_under_way_is_followed_by_one_with_it() {
    let mut c = silent();
    let mut a = Host::attached(&mut c, 1);
    activate(&mut c, &mut a, 2);
    assert_eq!(numbers(&c), [1]);
    give_and_tell(&mut c, HOST, OTHER);
    let version = c.map.version;
    answer_with(&mut c, 1, version, &[0]);
    assert_eq!((numbers(&c), c.log.wished[1].seats[0].moves), (vec![1, 2], true));
    answer(&mut c);
    assert_eq!(a.answer(&mut c).result(), Ok(()));
    assert_eq!(a.ready(&mut c), STATES_CHANGED);
    a.write(&mut c, 3, 0xaa);
    assert_eq!((a.answer(&mut c).result(), c.data[0]), (Ok(()), 0xaa));
}

#[test]
fn a_host_that_activates_this_gateway_in_vain_is_told_so_in_time() {
    let mut c = answering();
    let mut a = in_standby(&mut c);
    c.kill(Who::Mdm);
    activate(&mut c, &mut a, 2);
    c.pass(Limits::SHIPPED.target_patience - ms(1));
    assert!(a.answers(&mut c).is_empty());
    c.pass(ms(1));
    assert_eq!(a.answer(&mut c).result(), NO_PRIMARY);
    // Its late confirmation is no answer to anything.
    c.alive.insert(1);
    c.keeps_seats = false;
    c.pass(ms(5000));
    assert!(c.log.wished.last().unwrap().seats[0].moves);
    assert!(a.answers(&mut c).is_empty());
    assert_eq!(a.ready(&mut c), STATES_CHANGED, "the seat came all the same");
    a.write(&mut c, 3, 0xaa);
    assert_eq!((a.answer(&mut c).result(), c.data[0]), (Ok(()), 0xaa));
}

#[test]
fn an_activation_that_is_aborted_or_whose_session_ends_is_forgotten() {
    let mut c = answering();
    let mut a = in_standby(&mut c);
    activate(&mut c, &mut a, 2);
    a.abort_last(&mut c, 3, 2);
    assert_eq!(a.answer(&mut c).bhs[..3], [0x22, 0x80, 0], "it is over");
    c.pass(Limits::SHIPPED.target_patience + ms(1000));
    assert!(a.answers(&mut c).is_empty(), "no answer that it was in vain");
    answer(&mut c);
    assert!(a.answers(&mut c).is_empty(), "and none that it was not");
    assert_eq!(a.ready(&mut c), STATES_CHANGED);
    // The same with the session.
    c.cut_link(a.link);
    let mut a = in_standby(&mut c);
    activate(&mut c, &mut a, 2);
    c.cut_link(a.link);
    let mut a = Host::attached(&mut c, 1);
    answer(&mut c);
    c.pass(Limits::SHIPPED.target_patience + ms(1000));
    assert!(a.answers(&mut c).is_empty());
}
