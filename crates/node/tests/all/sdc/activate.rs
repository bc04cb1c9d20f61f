//! Hosts that make a gateway the one that serves them: SET TARGET PORT GROUPS.

use super::cluster::{Cluster, ME, VOLUME, Who};
use super::iscsi_host::Host;
use super::seats::{
    HOST, NO_PRIMARY, OTHER, STANDBY, STATES_CHANGED, answer, answer_with, answering,
    give_and_tell, hosts_of, ms, numbers, silent, states,
};
use base::Limits;
use std::collections::BTreeSet;

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
    // Now the host may have chosen the other gateway.
    c.alive.insert(1);
    c.keeps_seats = false;
    c.pass(ms(5000));
    assert!(!c.log.wished.last().unwrap().seats[0].moves);
    assert!(a.answers(&mut c).is_empty());
    a.write(&mut c, 3, 0xaa);
    assert_eq!(a.answer(&mut c).result(), STANDBY);
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
    assert_eq!(a.ready(&mut c), STANDBY, "the last question did not ask for a move");
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

/// Each command is looked at when it comes, when its host gets a seat and when it has waited too
/// long, and not whenever another one comes. Before, 12,000 of them kept a gateway busy for
/// seconds.
#[test]
fn very_many_commands_wait_and_each_is_answered_once() {
    let mut c = silent();
    let mut hosts: Vec<Host> = Vec::new();
    for n in 0..300 {
        let mut host = Host::connect(&mut c);
        host.name = format!("iqn.2026-11.test:{n}");
        assert_eq!(host.log_in(&mut c, 1), 0);
        let _ = host.ready(&mut c);
        hosts.push(host);
    }
    for host in &mut hosts {
        (2..62).for_each(|itt| activate(&mut c, host, itt));
    }
    c.pass(ms(1500));
    assert!(hosts.iter_mut().all(|host| host.answers(&mut c).is_empty()));
    // Some of them get their seats.
    let asked = c.log.wished.last().unwrap();
    let asked = hosts_of(asked).into_iter().collect::<BTreeSet<_>>().len();
    assert!((1..300).contains(&asked), "{asked}");
    answer(&mut c);
    c.pass(ms(5));
    let done: Vec<usize> = hosts.iter_mut().map(|host| host.answers(&mut c).len()).collect();
    assert!(done.iter().all(|answers| matches!(answers, 0 | 60)), "{done:?}");
    assert_eq!(done.iter().filter(|answers| **answers == 60).count(), asked);
    c.keeps_seats = true;
    c.pass(Limits::SHIPPED.target_patience);
    for (host, done) in hosts.iter_mut().zip(done) {
        let late = host.answers(&mut c);
        assert_eq!(late.len() + done, 60);
        assert!(late.iter().all(|answer| answer.result() == NO_PRIMARY));
    }
}
