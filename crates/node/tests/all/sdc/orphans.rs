//! Requests of a connection that is gone, and those that took too long: they never overwrite later
//! ones.

use super::cluster::{Cluster, Who};
use super::nbd_client::Client;
use base::Limits;
use core::time::Duration;
use seam::{BlockError, BlockKind, Event, RequestId};
use target::nbd::proto::*;
use wire::Status;

const LEN: u32 = 4096;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn write(c: &mut Cluster, nbd: &mut Client, cookie: u64, value: u8) {
    nbd.request(c, NBD_CMD_WRITE, cookie, 0, LEN, &[value; LEN as usize]);
}

#[test]
fn a_write_that_is_asked_again_ends_with_its_connection() {
    let mut c = Cluster::ready();
    let mut first = Client::attached(&mut c, &Limits::SHIPPED);
    c.every_status = Some(Status::Behind);
    write(&mut c, &mut first, 1, 0xaa);
    c.pass(ms(150)); // Six attempts: the next one comes 50 ms after the last one.
    assert!(c.log.ios.len() >= 6, "{}", c.log.ios.len());
    c.cut_link(first.link);
    c.every_status = None;
    let mut second = Client::attached(&mut c, &Limits::SHIPPED);
    write(&mut c, &mut second, 1, 0xbb);
    assert_eq!(second.reply(&mut c, 1).0, 0);
    let asked = c.log.ios.len();
    c.pass(ms(60));
    assert_eq!(c.data[..LEN as usize], [0xbb; LEN as usize], "the old write lies over the new one");
    assert_eq!((c.log.ios.len(), c.sdc.outstanding()), (asked, 0));
}

#[test]
fn a_write_that_was_sent_is_not_sent_again_after_its_connection_is_gone() {
    let mut c = Cluster::ready();
    let mut first = Client::attached(&mut c, &Limits::SHIPPED);
    c.hold = true;
    write(&mut c, &mut first, 1, 0xaa);
    c.cut_link(first.link);
    // The server's link breaks, and the server drops what it has read with the session.
    c.cut(Who::Server(1));
    c.hold = false;
    let mut second = Client::attached(&mut c, &Limits::SHIPPED);
    write(&mut c, &mut second, 1, 0xbb);
    c.pass(ms(600));
    assert_eq!(second.reply(&mut c, 1).0, 0);
    assert_eq!(c.data[..LEN as usize], [0xbb; LEN as usize]);
    assert_eq!(c.log.ios.len(), 2, "{:?}", c.log.ios);
}

#[test]
fn a_client_that_was_cut_off_writes_nothing_later_for_a_program_that_is_gone() {
    let mut c = Cluster::ready();
    let mut nbd = Client::attached(&mut c, &Limits::SHIPPED);
    c.hold = true;
    write(&mut c, &mut nbd, 1, 0xaa);
    [Who::Server(1), Who::Server(2), Who::Mdm].into_iter().for_each(|who| c.kill(who));
    nbd.request(&mut c, NBD_CMD_WRITE, 2, 1 << 20, LEN, &[0xaa; LEN as usize]);
    nbd.request(&mut c, NBD_CMD_READ, 3, 0, LEN, &[]);
    c.cut_link(nbd.link);
    c.hold = false;
    c.pass(Duration::from_secs(3600));
    c.alive = [1, 101, 102].into();
    c.pass(Duration::from_secs(2));
    assert_eq!((c.log.ios.len(), c.sdc.outstanding()), (1, 0));
    assert!(c.data.iter().all(|b| *b == 0), "it was written for nobody");
}

#[test]
fn a_server_that_keeps_a_write_for_a_connection_that_is_gone_loses_the_session() {
    let mut c = Cluster::ready();
    let mut first = Client::attached(&mut c, &Limits::SHIPPED);
    c.hold = true;
    write(&mut c, &mut first, 1, 0xaa);
    c.cut_link(first.link);
    c.pass(ms(900));
    assert_eq!(c.log.closed, []);
    c.pass(ms(400));
    assert_eq!((c.log.closed.as_slice(), c.sdc.outstanding()), (&[Who::Server(1)][..], 0));
    c.hold = false;
    c.pass(Duration::from_secs(2));
    assert!(c.data.iter().all(|b| *b == 0));
}

/// A cluster whose requests may take five seconds.
fn impatient() -> Cluster {
    let mut c = Cluster::new(Limits { answer_within: Duration::from_secs(5), ..Limits::SHIPPED });
    c.pass(ms(1));
    c
}

#[test]
fn a_request_beyond_its_time_limit_is_an_error_and_is_never_sent_again() {
    let mut c = impatient();
    let mut nbd = Client::attached(&mut c, &Limits::SHIPPED);
    [Who::Server(1), Who::Server(2)].into_iter().for_each(|who| c.kill(who));
    write(&mut c, &mut nbd, 1, 0xaa);
    c.pass(ms(4900));
    assert_eq!(nbd.take(&mut c), []);
    c.pass(ms(200));
    assert_eq!(nbd.reply(&mut c, 1).0, NBD_EIO);
    nbd.request(&mut c, NBD_CMD_READ, 2, 0, LEN, &[]);
    c.pass(ms(5100));
    assert_eq!((nbd.reply(&mut c, 2).0, c.sdc.outstanding()), (NBD_EIO, 0));
    c.alive = [1, 101, 102].into();
    c.pass(Duration::from_secs(5));
    assert!(c.log.ios.is_empty(), "{:?}", c.log.ios);
    write(&mut c, &mut nbd, 3, 0xbb);
    c.pass(ms(1));
    assert_eq!(nbd.reply(&mut c, 3).0, 0);
}

#[test]
fn a_sent_write_beyond_its_time_limit_lands_before_later_requests_or_never() {
    let mut c = impatient();
    let mut nbd = Client::attached(&mut c, &Limits::SHIPPED);
    c.hold = true;
    write(&mut c, &mut nbd, 1, 0xaa);
    c.pass(ms(5100));
    assert_eq!(nbd.reply(&mut c, 1).0, NBD_EIO);
    // The server still has it. The next write comes after it, in the same session.
    write(&mut c, &mut nbd, 2, 0xbb);
    c.hold = false;
    c.release();
    assert_eq!(nbd.reply(&mut c, 2).0, 0);
    assert_eq!((c.data[0], c.log.ios.len(), c.sdc.outstanding()), (0xbb, 2, 0));
}

#[test]
fn a_server_that_keeps_a_write_that_took_too_long_loses_the_session() {
    let mut c = impatient();
    let mut nbd = Client::attached(&mut c, &Limits::SHIPPED);
    c.hold = true;
    write(&mut c, &mut nbd, 1, 0xaa);
    c.pass(ms(5100));
    assert_eq!((nbd.reply(&mut c, 1).0, c.log.closed.as_slice()), (NBD_EIO, &[][..]));
    c.pass(ms(1200));
    assert_eq!((c.log.closed.as_slice(), c.sdc.outstanding()), (&[Who::Server(1)][..], 0));
    c.hold = false;
    c.pass(Duration::from_secs(2));
    assert!(c.data.iter().all(|b| *b == 0), "it was written after its error");
}

#[test]
fn a_write_that_waits_for_space_waits_as_long_as_the_user_allows() {
    let mut c = impatient();
    let mut nbd = Client::attached(&mut c, &Limits::SHIPPED);
    c.full = true;
    write(&mut c, &mut nbd, 1, 0xaa);
    c.pass(ms(5200));
    assert_eq!(nbd.reply(&mut c, 1).0, NBD_ENOSPC);
    c.full = false;
    c.pass(Duration::from_secs(10));
    assert!(c.data.iter().all(|b| *b == 0));
}

#[test]
fn the_time_limit_covers_the_wait_for_a_place_in_a_busy_client() {
    let mut c = Cluster::new(Limits {
        answer_within: Duration::from_secs(5),
        sdc_requests: 4,
        ..Limits::SHIPPED
    });
    c.pass(ms(1));
    let mut nbd = Client::attached(&mut c, &Limits::SHIPPED);
    c.hold = true;
    for cookie in 1..=8 {
        nbd.request(&mut c, NBD_CMD_READ, cookie, 0, LEN, &[]);
    }
    c.pass(ms(5200));
    let answers = nbd.take(&mut c);
    assert_eq!(answers.len(), 8 * 16, "eight answers without data");
    assert!(answers.chunks(16).all(|a| super::nbd_client::be32(a, 4) == NBD_EIO));
}

#[test]
fn a_request_beyond_its_time_limit_makes_room_for_the_next_one() {
    let mut c = Cluster::new(Limits {
        answer_within: Duration::from_secs(5),
        sdc_requests: 4,
        ..Limits::SHIPPED
    });
    c.pass(ms(1));
    let mut nbd = Client::attached(&mut c, &Limits::SHIPPED);
    c.hold = true;
    (1..=3).for_each(|cookie| write(&mut c, &mut nbd, cookie, 0xaa));
    c.pass(ms(5200));
    assert_eq!(nbd.take(&mut c).len(), 3 * 16, "three answers");
    // The server still has them. Its answers are dropped, but they free the places.
    write(&mut c, &mut nbd, 4, 0xbb);
    assert_eq!(nbd.take(&mut c), []);
    c.hold = false;
    c.release();
    assert_eq!(nbd.reply(&mut c, 4).0, 0);
    assert_eq!((c.data[0], c.sdc.outstanding()), (0xbb, 0));
}

/// One of two servers has answered its part of a read, and the other one does not answer.
#[test]
fn a_read_for_a_connection_that_is_gone_keeps_no_data_and_ends_in_the_end() {
    let mut c = Cluster::ready();
    let mut nbd = Client::attached(&mut c, &Limits::SHIPPED);
    for (i, holder) in [1, 2].into_iter().enumerate() {
        c.holds = Some(holder);
        nbd.request(&mut c, NBD_CMD_READ, 1 + i as u64, 0, 2 << 20, &[]);
        assert!(
            c.pool.used() >= 2 << 20,
            "server {holder} has answered nothing: {}",
            c.pool.used()
        );
    }
    c.cut_link(nbd.link);
    c.pass(ms(100));
    assert!(c.pool.used() < 1 << 20, "{} bytes are kept for nobody", c.pool.used());
    c.pass(Duration::from_secs(12));
    assert_eq!((c.sdc.outstanding(), c.pool.used()), (0, 0));
}

/// A request of the program that runs the client.
fn program_writes(c: &mut Cluster, id: u64, at: u64, value: u8) {
    c.ask(id, BlockKind::Write, at, LEN, &[value; LEN as usize]);
}

fn withdraw(c: &mut Cluster, ids: &[u64]) {
    let ids: Vec<_> = ids.iter().copied().map(RequestId).collect();
    c.on(Event::Withdraw { ids: &ids });
}

/// The answers that the program has got, with the lengths of their data.
fn answers(c: &Cluster) -> Vec<(u64, Result<usize, BlockError>)> {
    let one = |(id, result): &(u64, Result<seam::Buf, BlockError>)| {
        (*id, result.as_ref().map(|data| data.len()).map_err(|why| *why))
    };
    c.log.replies.iter().map(one).collect()
}

#[test]
fn a_write_that_waits_for_space_is_not_sent_after_its_program_has_withdrawn_it() {
    let mut c = Cluster::ready();
    c.full = true;
    program_writes(&mut c, 1, 0, 0xaa);
    c.pass(ms(100));
    assert_eq!((c.sdc.held(), c.log.replies.len()), (1, 0));
    withdraw(&mut c, &[1]);
    let asked = c.log.ios.len();
    c.full = false;
    c.pass(Duration::from_secs(10));
    assert_eq!((c.log.ios.len(), c.sdc.outstanding(), c.sdc.held()), (asked, 0, 0));
    assert!(c.data.iter().all(|b| *b == 0), "it was written for nobody");
    assert_eq!(answers(&c), [(1, Err(BlockError::Busy))], "its number is free");
}

#[test]
fn withdrawn_writes_that_wait_for_a_primary_are_never_sent() {
    let mut c = Cluster::ready();
    [Who::Server(1), Who::Server(2)].into_iter().for_each(|who| c.kill(who));
    let mut nbd = Client::attached(&mut c, &Limits::SHIPPED);
    write(&mut c, &mut nbd, 1, 0xdd);
    for id in 1..=4 {
        program_writes(&mut c, id, id << 12, 0xaa);
    }
    c.pass(ms(300));
    withdraw(&mut c, &[1, 3, 9]);
    assert_eq!(answers(&c), [1, 3].map(|id| (id, Err(BlockError::Busy))), "at once");
    program_writes(&mut c, 1, 1 << 12, 0xbb);
    c.alive = [1, 101, 102].into();
    c.pass(Duration::from_secs(2));
    let blocks: Vec<u8> = c.data.chunks(LEN as usize).take(5).map(|block| block[0]).collect();
    assert_eq!(blocks, [0xdd, 0xbb, 0xaa, 0, 0xaa]);
    assert_eq!((c.log.replies.len(), c.log.ios.len(), c.sdc.outstanding()), (5, 4, 0));
}

#[test]
fn a_write_that_was_sent_and_withdrawn_is_answered_and_never_sent_again() {
    let mut c = Cluster::ready();
    c.hold = true;
    program_writes(&mut c, 1, 0, 0xaa);
    withdraw(&mut c, &[1]);
    assert_eq!(answers(&c), [], "the server may still execute it");
    // The server's link breaks, and the server drops what it has read with the session.
    c.cut(Who::Server(1));
    c.hold = false;
    program_writes(&mut c, 2, 0, 0xbb);
    c.pass(ms(600));
    assert_eq!(answers(&c), [(1, Err(BlockError::Busy)), (2, Ok(0))]);
    assert_eq!((c.data[0], c.log.ios.len(), c.sdc.outstanding()), (0xbb, 2, 0));
}
