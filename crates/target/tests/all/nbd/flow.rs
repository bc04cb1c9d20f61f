//! Requests in flight: limits, order, and all ways to end.

use super::rig::*;
use base::Limits;
use seam::BlockError;
use target::nbd::proto::*;

fn read(cookie: u64) -> Vec<u8> {
    request(0, NBD_CMD_READ, cookie, 0, 512)
}

fn cookies(rig: &mut Rig) -> Vec<u64> {
    replies(&rig.sent(), &|_| 512).iter().map(|r| r.cookie).collect()
}

#[test]
fn replies_come_in_order_of_completion() {
    let mut rig = Rig::serving(false, &Limits::SHIPPED);
    (1..=3).for_each(|c| rig.feed(&read(c)));
    let tags: Vec<u64> = rig.asked.drain(..).map(|(tag, _)| tag).collect();
    for i in [2, 0, 1] {
        rig.done_tag(tags[i], Ok(&[0; 512]));
        rig.done_tag(tags[i], Ok(&[0; 512])); // the second completion is ignored
    }
    assert_eq!(cookies(&mut rig), [3, 1, 2]);
}

#[test]
fn too_many_requests_pause_and_half_of_them_resumes() {
    let mut rig = Rig::serving(false, &Limits::TEST_MIN); // 4 requests
    (1..=3).for_each(|c| rig.feed(&read(c)));
    assert_eq!(rig.told(), []);
    (4..=7).for_each(|c| rig.feed(&read(c)));
    assert_eq!((rig.told(), rig.asked.len()), (vec![Told::Pause], 4), "the rest waits here");
    for _ in 0..3 {
        rig.done(Ok(&[0; 512]));
    }
    assert_eq!((rig.told(), rig.asked.len()), (vec![], 4));
    rig.done(Ok(&[0; 512]));
    assert_eq!(rig.told(), []);
    rig.done(Ok(&[0; 512]));
    assert_eq!((rig.told(), rig.asked.len()), (vec![Told::Resume], 2));
    rig.done(Ok(&[0; 512]));
    rig.done(Ok(&[0; 512]));
    assert_eq!(cookies(&mut rig), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(rig.told(), []);
}

#[test]
fn too_many_bytes_pause_too() {
    let limits = Limits { nbd_requests: 100, ..Limits::TEST_MIN }; // 2 x 1 MiB
    let mut rig = Rig::serving(false, &limits);
    rig.feed(&request(0, NBD_CMD_WRITE, 1, 0, 1 << 20));
    rig.feed(&request(0, NBD_CMD_READ, 2, 0, (1 << 20) - 512));
    assert_eq!(rig.told(), []);
    rig.feed(&read(3));
    rig.feed(&read(4));
    assert_eq!((rig.told(), rig.asked.len()), (vec![Told::Pause], 3));
    rig.done(Ok(&[]));
    assert_eq!((rig.told(), rig.asked.len()), (vec![], 3), "1 MiB and a sector are in flight");
    rig.done(Ok(&vec![0; (1 << 20) - 512]));
    assert_eq!(rig.told(), [Told::Resume]);
}

#[test]
fn a_backlog_without_end_closes() {
    let mut rig = Rig::serving(false, &Limits::TEST_MIN);
    while !rig.session.is_closed() {
        rig.feed(&read(1));
        assert!(rig.pool.used() == 0);
    }
    let too_much = "sends far more than one connection may have outstanding";
    assert_eq!(rig.told(), [Told::Pause, Told::Close(Some(too_much))]);

    let mut rig = Rig::serving(false, &Limits::TEST_MIN);
    for cookie in 0..100 {
        rig.feed(&request(0, NBD_CMD_WRITE, cookie, 0, 1 << 20));
    }
    assert!(rig.session.is_closed());
    assert!(rig.pool.used() <= 8 << 20, "{:?}", rig.pool);
}

#[test]
fn a_disconnect_waits_for_what_is_in_flight() {
    let mut rig = Rig::serving(false, &Limits::TEST_MIN);
    (1..=5).for_each(|c| rig.feed(&read(c)));
    rig.feed(&request(0, NBD_CMD_DISC, 6, 0, 0));
    rig.feed(&read(7));
    rig.told();
    for _ in 0..4 {
        assert!(!rig.session.is_closed());
        rig.done(Ok(&[0; 512]));
    }
    // The fifth request waited. It came before the disconnect, so it is served; later ones are not.
    rig.done(Ok(&[0; 512]));
    assert_eq!((rig.told(), rig.asked.len()), (vec![Told::Close(None)], 0));
    assert_eq!(cookies(&mut rig), [1, 2, 3, 4, 5]);

    let mut rig = Rig::serving(true, &Limits::SHIPPED);
    rig.feed(&request(0, NBD_CMD_DISC, 1, 0, 0));
    assert_eq!((rig.told(), rig.sent()), (vec![Told::Close(None)], vec![]));
}

#[test]
fn a_shutdown_ends_what_is_in_flight_and_refuses_the_rest() {
    let mut rig = Rig::serving(true, &Limits::TEST_MIN);
    (1..=5).for_each(|c| rig.feed(&read(c)));
    rig.shutdown();
    rig.feed(&read(6));
    let why = "the server is shutting down";
    let refused = [5, 6].map(|c| error_chunk(c, NBD_ESHUTDOWN, why)).concat();
    assert_eq!(rig.sent(), refused);
    rig.told();
    for _ in 0..3 {
        rig.done(Err(BlockError::Lost));
    }
    assert!(!rig.session.is_closed());
    rig.done(Ok(&[0; 512]));
    assert_eq!(rig.told(), [Told::Resume, Told::Close(None)], "reads on, to refuse");
}

#[test]
fn a_shutdown_in_negotiation_answers_the_option_that_waits() {
    let mut rig = Rig::haggling();
    rig.refreshes = false;
    rig.feed(&option(NBD_OPT_LIST, &[]));
    rig.shutdown();
    let expected = option_reply(3, NBD_REP_ERR_SHUTDOWN, b"the server is shutting down");
    assert_eq!(rig.sent(), expected);
    assert_eq!(rig.told(), [Told::Refresh, Told::Close(None)]);
    rig.refresh();
    rig.shutdown();
    assert_eq!((rig.told(), rig.sent()), (vec![], vec![]));
}

#[test]
fn memory_comes_back_when_the_session_goes() {
    let mut rig = Rig::serving(true, &Limits::TEST_MIN);
    for cookie in 0..6 {
        rig.feed(&request(0, NBD_CMD_WRITE, cookie, 0, 4096));
    }
    assert!(rig.pool.used() > 0);
    let pool = rig.pool.clone();
    drop(rig);
    assert_eq!(pool.used(), 0);
}

#[test]
fn writes_that_wait_for_space_leave_the_window_to_others() {
    let mut rig = Rig::serving(false, &Limits::TEST_MIN); // 4 requests
    (1..=4).for_each(|c| rig.feed(&request(0, NBD_CMD_WRITE, c, 0, 512)));
    rig.feed(&read(5));
    assert_eq!((rig.told(), rig.asked.len()), (vec![Told::Pause], 4));
    let tags: Vec<u64> = rig.asked.drain(..).map(|(tag, _)| tag).collect();
    rig.waits(tags[0], 511);
    assert_eq!(rig.asked.len(), 0, "there is no room for it among those that wait");
    tags[..3].iter().for_each(|tag| rig.waits(*tag, 512));
    rig.waits(tags[0], 512);
    assert_eq!(
        (rig.told(), rig.asked.len(), rig.session.waiting_bytes()),
        (vec![Told::Resume], 1, 1536)
    );
    rig.done(Ok(&[0; 512]));
    tags.iter().for_each(|tag| rig.done_tag(*tag, Ok(&[])));
    let len = |cookie| if cookie == 5 { 512 } else { 0 };
    let order: Vec<u64> = replies(&rig.sent(), &len).iter().map(|r| r.cookie).collect();
    assert_eq!(order, [5, 1, 2, 3, 4]);
    assert_eq!((rig.session.waiting_bytes(), rig.session.in_flight()), (0, 0));
}

#[test]
fn writes_do_not_wait_for_space_without_limit() {
    let mut rig = Rig::serving(false, &Limits::TEST_MIN);
    let mut asked = 0;
    while rig.told().is_empty() {
        rig.feed(&request(0, NBD_CMD_WRITE, 1, 0, 512));
        for (tag, _) in rig.asked.drain(..).collect::<Vec<_>>() {
            asked += 1;
            rig.waits(tag, u64::MAX);
        }
    }
    assert_eq!(asked, target::nbd::WAITING + 4);
}

/// Eight times `nbd_payload`, which is 256 MiB as shipped.
#[test]
fn bytes_of_writes_that_wait_for_space_are_bounded() {
    let limits = Limits { nbd_payload: 4096, ..Limits::TEST_MIN };
    let mut rig = Rig::serving(false, &limits);
    let most = 8 * u64::from(limits.nbd_payload);
    let mut asked = 0;
    while rig.told().is_empty() {
        rig.feed(&request(0, NBD_CMD_WRITE, 1, 0, 4096));
        for (tag, _) in rig.asked.drain(..).collect::<Vec<_>>() {
            asked += 1;
            rig.waits(tag, u64::MAX);
            assert!(rig.session.waiting_bytes() <= most);
        }
    }
    assert_eq!((rig.session.waiting_bytes(), asked), (most, 8 + 2), "the others are in flight");
    let shipped = u64::from(Limits::SHIPPED.nbd_payload);
    assert_eq!(8 * shipped, 256 << 20);
}

#[test]
fn a_smaller_share_lets_one_request_fly_at_a_time() {
    let mut rig = Rig::serving(false, &Limits::TEST_MIN);
    rig.session.share(4096);
    for cookie in 1..=3 {
        rig.feed(&request(0, NBD_CMD_READ, cookie, 0, 1 << 20));
    }
    assert_eq!((rig.told(), rig.asked.len()), (vec![Told::Pause], 1));
    rig.done(Ok(&vec![0; 1 << 20]));
    assert_eq!(rig.asked.len(), 1, "the next one has its turn");
    rig.session.share(u64::MAX);
    rig.done(Ok(&vec![0; 1 << 20]));
    assert_eq!((rig.told(), rig.asked.len()), (vec![Told::Resume], 1));
}

#[test]
fn little_waits_while_an_option_waits() {
    let mut rig = Rig::haggling();
    rig.refreshes = false;
    rig.feed(&option(NBD_OPT_GO, &info(b"a", &[])));
    for _ in 0..4 {
        rig.feed(&option(99, &[0; 64 << 10]));
    }
    assert_eq!(rig.told(), [Told::Refresh, Told::Pause]);
    rig.feed(&option(99, &[0]));
    assert!(rig.session.is_closed());
    assert_eq!(rig.pool.used(), 0);
}
