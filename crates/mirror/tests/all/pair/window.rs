//! A link's queue is never filled, neither by writes nor by what is sent again when the link is
//! back.

use super::*;
use base::Duration;
use wire::message::{SyncStart, SyncWipe};

/// Bytes that a link's queue takes. The window is half of that.
const QUEUE: u64 = 64 << 10;

/// Creates device 1 with such a queue, and device 2.
fn narrow() -> Pair {
    let mut pair = Pair::new([4, 4]);
    let limits = Limits { link_queue: QUEUE, ..Limits::TEST_MIN };
    pair.mirrors[0] = Mirror::new(DeviceId(1), Incarnation(7), limits, Memory::room(4), Time::ZERO);
    pair
}

pub(super) fn write(pair: &mut Pair, block: u32, fill: u8) {
    pair.ask(0, Kind::Write, 0, block * BLOCK..(block + 1) * BLOCK, fill, 0);
}

/// Takes what device 1 has sent. Returns the bytes of its writes.
fn sent(pair: &mut Pair) -> u64 {
    let mut bytes = 0;
    pair.mirrors[0].flush(pair.now, &mut pair.outs[0]);
    for effect in pair.outs[0].drain() {
        if let Effect::Send { link, head, body } = effect
            && wire::parse(head.as_slice()).kind() == Some(Kind::Replicate)
        {
            assert_eq!(link, LinkId(10));
            bytes += (head.as_slice().len() + body.len()) as u64;
        }
    }
    bytes
}

pub(super) fn answered(pair: &Pair) -> usize {
    let ok = |reply: &&Reply| reply.status == Status::Ok;
    pair.replies.iter().filter(ok).count()
}

#[test]
fn unanswered_writes_are_sent_again_as_answers_make_room() {
    let mut pair = settle(narrow());
    assert_eq!(pair.write(0, 0, 1), Some(Status::Ok));
    pair.connect(false);
    (0..40).for_each(|block| write(&mut pair, block, 7));
    pair.run();
    assert_eq!(answered(&pair), 1);
    pair.connected = true;
    pair.mirrors[0].peer_up(pair.now, DeviceId(2), on(LinkId(10)), &mut pair.outs[0]);
    let first = sent(&mut pair);
    assert!((QUEUE / 4..=QUEUE / 2).contains(&first), "{first} bytes in one event");
    // They were lost with that link; on the next one everything arrives.
    pair.connect(true);
    assert_eq!(answered(&pair), 41);
    pair.assert_equal();
    assert_eq!(pair.mirrors[0].in_flight() + pair.mirrors[1].in_flight(), 0);
}

#[test]
fn clients_wait_while_a_member_has_much_to_answer() {
    let mut pair = settle(narrow());
    assert_eq!(pair.write(0, 0, 1), Some(Status::Ok));
    (0..40).for_each(|block| write(&mut pair, block, 7));
    let first = sent(&mut pair);
    assert!((QUEUE / 4..=QUEUE / 2).contains(&first), "{first} bytes wait for an answer");
    // They were lost with that link.
    pair.connect(false);
    pair.connect(true);
    assert_eq!(answered(&pair), 41);
    pair.assert_equal();
    assert_eq!(pair.mirrors[0].in_flight() + pair.mirrors[1].in_flight(), 0);
}

#[test]
fn clients_wait_for_a_joiner_as_long_as_it_answers() {
    let mut pair = narrow();
    pair.connect(true);
    pair.configure(1, &[1], &[], &[0]);
    pair.wait(3000);
    (0..40).for_each(|block| assert_eq!(pair.write(0, block, 1), Some(Status::Ok)));
    pair.configure(1, &[1], &[2], &[0, 1]);
    pair.connected = false; // nothing gets through, and nobody has noticed
    (0..40).for_each(|block| write(&mut pair, block, 7));
    pair.run();
    let before = answered(&pair);
    assert!(before < 80, "all were taken");
    pair.wait(3000);
    assert_eq!(answered(&pair), 80, "a joiner that stands still is cut off");
    pair.connect(false);
    pair.connect(true);
    pair.wait(3000);
    assert_eq!(pair.mirrors[0].admissions().len(), 1);
    pair.assert_equal();
}

/// Device 1 is alone in sync, and device 2 reads nothing. Returns the bytes that are sent to device
/// 2 in three seconds of writes.
fn sent_to_a_deaf_joiner(pair: &mut Pair) -> u64 {
    let mut bytes = sent(pair);
    for round in 0..60u32 {
        write(pair, round % 40, 8);
        pair.now = Time(pair.now.0 + 50_000_000);
        pair.mirrors[0].tick(pair.now, &mut pair.outs[0]);
        bytes += sent(pair);
    }
    bytes
}

#[test]
fn unread_frames_of_a_joiner_take_room_even_after_a_new_question() {
    let mut pair = narrow();
    pair.connect(true);
    pair.configure(1, &[1], &[], &[0]);
    pair.wait(3000);
    (0..40).for_each(|block| assert_eq!(pair.write(0, block, 1), Some(Status::Ok)));
    pair.connected = false; // nothing gets through, and nobody has noticed
    pair.configure(1, &[1], &[2], &[0, 1]);
    let bytes = sent_to_a_deaf_joiner(&mut pair);
    assert!(bytes <= QUEUE / 2, "{bytes} bytes wait in its queue");
    // They were lost with that link.
    pair.connect(false);
    pair.connect(true);
    pair.wait(3000);
    assert_eq!(pair.mirrors[0].admissions().len(), 1);
    pair.assert_equal();
}

#[test]
fn unread_frames_of_a_member_take_room_even_when_it_is_a_joiner_again() {
    let mut pair = settle(narrow());
    assert_eq!(pair.write(0, 0, 1), Some(Status::Ok));
    (0..40).for_each(|block| write(&mut pair, block, 7));
    let before = sent(&mut pair);
    assert!(before > QUEUE / 4, "{before} bytes wait in its queue");
    pair.connected = false;
    pair.configure(1, &[1], &[], &[0]);
    pair.configure(1, &[1], &[2], &[0]);
    let bytes = before + sent_to_a_deaf_joiner(&mut pair);
    assert!(bytes <= QUEUE / 2, "{bytes} bytes wait in its queue");
}

#[test]
fn operations_of_all_clients_together_take_a_bounded_part_of_memory() {
    let limits = Limits { shard_bytes: u64::from(8 * BLOCK), ..Limits::TEST_MIN };
    let mut pair = Pair::new([4, 4]);
    pair.mirrors[0] = Mirror::new(DeviceId(1), Incarnation(7), limits, Memory::room(4), Time::ZERO);
    let mut pair = settle(pair);
    pair.connect(false);
    let busy = |pair: &Pair| {
        let busy = |reply: &&Reply| reply.status == Status::Busy;
        pair.replies.iter().filter(busy).count()
    };
    (0..10).for_each(|block| write(&mut pair, block, 7));
    assert_eq!(pair.client(0, Kind::Read, 0, 0..BLOCK, 0, 0), Some(Status::Busy));
    assert_eq!(busy(&pair), 3);
    pair.connect(true);
    assert_eq!(answered(&pair), 8);
    // The future answer of a read counts, too. These reads wait for a lease.
    pair.connect(false);
    pair.wait(3000);
    let read = |pair: &mut Pair| pair.client(0, Kind::Read, 0, 0..4 * BLOCK, 0, 0);
    assert_eq!([(); 3].map(|()| read(&mut pair)), [None, None, Some(Status::Busy)]);
    pair.connect(true);
    pair.wait(500);
    assert_eq!((answered(&pair), pair.mirrors[0].grown().client_bytes), (10, 0));
}

/// A client that connects again and again behind a write that hangs takes the room of that write,
/// and no more.
#[test]
fn waiting_operations_of_a_session_end_with_it() {
    let mut pair = settled();
    pair.connected = false;
    write(&mut pair, 0, 1);
    let over = |pair: &mut Pair, sdc| {
        pair.mirrors[0].session_over(pair.now, SdcId(sdc), &mut pair.outs[0]);
        pair.run();
    };
    for _ in 0..5 {
        write(&mut pair, 0, 2);
        over(&mut pair, 5);
    }
    assert_eq!(pair.mirrors[0].grown().client_bytes, BLOCK as usize, "one write is begun");
    // What waited behind such a write goes on at once.
    write_of_another(&mut pair, 2, 0);
    assert_eq!(pair.client(0, Kind::Read, 0, BLOCK..2 * BLOCK, 0, 0), None);
    over(&mut pair, 6);
    assert_eq!(answered(&pair), 1);
    // Reads that wait for a lease.
    pair.connect(false);
    pair.wait(3000);
    assert_eq!(pair.client(0, Kind::Read, 0, 4 * BLOCK..8 * BLOCK, 0, 0), None);
    over(&mut pair, 5);
    assert_eq!(pair.mirrors[0].grown().client_bytes, BLOCK as usize, "one write is begun");
    pair.connect(true);
    pair.wait(500);
    assert_eq!(pair.read(0, 0), Some(1));
    assert_eq!(pair.mirrors[0].in_flight() + pair.mirrors[1].in_flight(), 0);
}

/// Device 1 is alone in sync and has written 40 blocks that the joiner has missed. The joiner reads
/// everything that it is sent, and no job of its device ends.
pub(super) fn with_a_joiner_that_hangs(limits: Limits) -> Pair {
    let mut pair = Pair::new([4, 4]);
    pair.mirrors[0] = Mirror::new(DeviceId(1), Incarnation(7), limits, Memory::room(4), Time::ZERO);
    let mut pair = settle(pair);
    pair.configure(1, &[1], &[], &[0]);
    pair.wait(3000);
    (0..40).for_each(|block| assert_eq!(pair.write(0, block, 1), Some(Status::Ok)));
    pair.mirrors[1].store_mut().hangs = true;
    pair.configure(1, &[1], &[2], &[0, 1]);
    assert!(!pair.mirrors[1].store().held.is_empty(), "copies have come");
    pair
}

/// The joiner's device works again, and the joiner gets everything.
pub(super) fn go_on(pair: &mut Pair) {
    (pair.mirrors[1].store_mut().hangs, pair.mirrors[1].store_mut().late) = (false, false);
    pair.wait(40_000);
    assert_eq!(pair.mirrors[0].admissions().len(), 1);
    pair.assert_equal();
    assert_eq!(pair.mirrors[0].in_flight() + pair.mirrors[1].in_flight(), 0);
}

#[test]
fn clients_do_not_wait_for_copies_to_a_joiner_whose_device_hangs() {
    let mut pair = with_a_joiner_that_hangs(Limits::TEST_MIN);
    assert_eq!(
        pair.client(0, Kind::Read, 0, 0..40 * BLOCK, 0, 0),
        None,
        "copies have ranges of it"
    );
    write(&mut pair, 0, 2);
    pair.wait(8000);
    assert_eq!(answered(&pair), 42);
    go_on(&mut pair);
}

/// Everything before the operation that hangs is done, so answers to other operations are no
/// excuse.
#[test]
fn a_joiner_is_cut_off_for_one_operation_that_hangs_while_others_go_on() {
    let mut pair = with_a_joiner_that_hangs(Limits::TEST_MIN);
    assert_eq!(pair.client(0, Kind::Read, 0, 0..40 * BLOCK, 0, 0), None);
    let later = |(_, _, job): &(u64, UnitKey, Job)| matches!(job, Job::Write { at, .. } if *at == 60 * BLOCK);
    for _ in 0..16 {
        write(&mut pair, 60, 2);
        pair.run();
        let store = pair.mirrors[1].store_mut();
        if let Some(place) = store.held.iter().position(later) {
            let (token, ..) = store.held.remove(place);
            store.ended.push(Finished { token, result: Ok(Buf::EMPTY), crc: None });
        }
        pair.wait(500);
    }
    assert_eq!(answered(&pair), 40 + 16 + 1);
    pair.mirrors[1].store_mut().hangs = false;
    pair.wait(40_000);
    assert_eq!(pair.mirrors[0].admissions().len(), 1);
}

/// The primary asked for nothing meanwhile, and did not read answers that had arrived.
#[test]
fn time_in_which_the_leader_stood_still_cuts_no_joiner_off() {
    for link_queue in [Limits::TEST_MIN.link_queue, QUEUE] {
        let limits = Limits { link_queue, ..Limits::TEST_MIN };
        let mut pair = with_a_joiner_that_hangs(limits);
        let clients_wait = link_queue == QUEUE;
        (50..90).filter(|_| clients_wait).for_each(|block| write(&mut pair, block, 7));
        pair.wait(500);
        assert!(!clients_wait || answered(&pair) < 80, "they wait for room");
        pair.state = None;
        pair.now = Time(pair.now.0 + 10_000_000_000);
        pair.wait(50);
        go_on(&mut pair);
        assert!(pair.state.is_none(), "it was asked anew");
    }
}

#[test]
fn clients_do_not_wait_for_the_seal_of_a_joiner_whose_device_hangs() {
    let mut pair = with_a_joiner_that_hangs(Limits::TEST_MIN);
    let store = pair.mirrors[1].store_mut();
    (store.hangs, store.late, store.kept) = (false, true, true);
    pair.wait(50);
    write(&mut pair, 0, 2);
    pair.run();
    assert_eq!(answered(&pair), 40, "it waits for the seal");
    pair.wait(8000);
    assert_eq!(answered(&pair), 41);
    go_on(&mut pair);
}

/// A primary repeats its questions until they are answered.
#[test]
fn a_seal_that_is_asked_for_again_is_one_change() {
    let mut pair = with_a_joiner_that_hangs(Limits::TEST_MIN);
    let store = pair.mirrors[1].store_mut();
    (store.hangs, store.late, store.kept) = (false, true, true);
    pair.wait(4000);
    assert_eq!(pair.mirrors[1].store().ended.len(), 1, "the seal is under way");
    pair.wait(20_000);
    let changes = pair.mirrors[1].store().ended.len();
    assert!(changes <= 5, "{changes} changes for the seals of 24 seconds");
    go_on(&mut pair);
}

#[test]
fn a_wipe_that_is_asked_for_again_is_one_change() {
    let mut pair = settle(Pair::new([4, 4]));
    pair.configure(1, &[1], &[2], &[1]);
    let store = pair.mirrors[1].store_mut();
    (store.late, store.kept) = (true, true);
    let wipe = SyncWipe { question: 1, group: GROUP, epoch: Epoch(pair.epoch) };
    for _ in 0..20 {
        let (mirror, out) = (&mut pair.mirrors[1], &mut pair.outs[1]);
        mirror.sync_wipe_in(pair.now, on(LinkId(20)), DeviceId(1), &wipe, out);
    }
    assert_eq!(pair.mirrors[1].store().ended.len(), 1);
}

/// All groups of the device begin an epoch at once. No job runs that would be timed.
#[test]
fn a_device_that_hangs_in_a_change_is_slow() {
    let mut pair = settle(Pair::new([4, 4]));
    let store = pair.mirrors[1].store_mut();
    (store.late, store.kept) = (true, true);
    pair.configure(1, &[1, 2], &[], &[0, 1]);
    pair.wait(2000);
    let slow = pair.mirrors[1].slow(pair.now, Duration::from_secs(1));
    assert!(slow.iter().any(|(device, _)| *device == DeviceId(2)), "{slow:?}");
    let stalled = pair.mirrors[1].stalled_for(pair.now);
    assert!(stalled >= Duration::from_secs(1), "{stalled:?}");
}

#[test]
fn operations_that_only_a_joiner_lacks_take_no_room_of_clients() {
    let link_queue = Limits::SHIPPED.link_queue;
    let limits = Limits { shard_ops: 32, link_queue, ..Limits::TEST_MIN };
    let mut pair = with_a_joiner_that_hangs(limits);
    (50..90).for_each(|block| write(&mut pair, block, 7));
    pair.run();
    assert!(answered(&pair) >= 40 + 28, "only {} of 80 are answered", answered(&pair));
    assert_eq!(pair.read(0, 39), Some(1), "what nobody waits for is served");
    pair.wait(2000);
    assert_eq!(answered(&pair), 81);
    go_on(&mut pair);
}

/// Ends the oldest job of the joiner's device. Returns true if it copied the first block.
fn end_one(pair: &mut Pair) -> bool {
    let store = pair.mirrors[1].store_mut();
    if store.held.is_empty() {
        return false;
    }
    let (token, unit, job) = store.held.remove(0);
    let first = matches!(&job, Job::Write { at: 0, .. });
    store.reserve(GROUP, unit, 0, 0);
    store.write(unit, job);
    store.ended.push(Finished { token, result: Ok(Buf::EMPTY), crc: None });
    first
}

/// The joiner's device does one thing after the other, and has more than five seconds of work.
#[test]
fn a_working_joiner_is_not_cut_off_for_operations_behind_other_work() {
    let mut pair = settle(narrow());
    (0..4).for_each(|block| assert_eq!(pair.write(0, block, 1), Some(Status::Ok)));
    pair.configure(1, &[1], &[], &[0]);
    pair.wait(3000);
    pair.configure(1, &[1], &[2], &[0, 1]);
    pair.wait(500);
    assert_eq!(pair.mirrors[0].admissions().len(), 1, "the first group waits for it");
    pair.mirrors[1].store_mut().hangs = true;
    (50..57).for_each(|block| write(&mut pair, block, 7));
    pair.run();
    let other = moved::config(pair.epoch, 1, &[1, 2], &[1], &[2]);
    for i in [1, 0] {
        let (mirror, out) = (&mut pair.mirrors[i], &mut pair.outs[i]);
        mirror.configure(pair.now, GroupId(4), &other, true, out);
    }
    let mut copies = 0;
    for _ in 0..30 {
        pair.wait(1000);
        copies += usize::from(end_one(&mut pair));
    }
    assert_eq!(copies, 1, "the same block was copied again");
}

/// The joiner has nothing to do in another group, so questions there are answered.
#[test]
fn answers_in_another_group_open_no_stream_to_a_joiner_whose_device_hangs() {
    let limits = Limits { link_queue: QUEUE, ..Limits::TEST_MIN };
    let mut pair = with_a_joiner_that_hangs(limits);
    let most = (QUEUE / 2 / u64::from(BLOCK)) as usize;
    let idle = GroupConfig {
        epoch: Epoch(pair.epoch),
        primary: Some(DeviceId(1)),
        replicas: vec![DeviceId(1), DeviceId(2)],
        in_sync: vec![DeviceId(1)],
        joiners: vec![DeviceId(2)],
        lost: false,
    };
    for round in 1..=3 {
        (50..90).for_each(|block| write(&mut pair, block, 7));
        pair.wait(4000);
        for i in [1, 0] {
            // The join starts over in this group.
            let idle = GroupConfig { epoch: Epoch(pair.epoch + round), ..idle.clone() };
            let (mirror, out) = (&mut pair.mirrors[i], &mut pair.outs[i]);
            mirror.configure(pair.now, GroupId(4), &idle, true, out);
        }
        pair.wait(4000);
        let held = pair.mirrors[1].in_flight();
        assert!(held <= most, "{held} operations wait for its device after {round} cuts");
    }
}

/// Another client writes to this unit of group 4.
pub(super) fn write_to_other(pair: &mut Pair, epoch: u64, unit: u32, block: u32) {
    pair.seq += 1;
    let (client, range) = (named(7, pair.seq, pair.seq), place(unit, block * BLOCK, BLOCK));
    let request = request(pair.seq, GroupId(4), epoch, range, client);
    let body = summed(&[3; BLOCK as usize], &pair.outs[0]);
    let write = io(Kind::Write, request, 0);
    pair.mirrors[0].client(pair.now, on(CLIENT), &write, body, &mut pair.outs[0]);
}

/// Clients of the first group write again as soon as they are answered, and always want more than
/// the window takes. A write to the second group is among them.
#[test]
fn a_group_with_a_high_number_gets_its_turn_in_the_window() {
    let mut pair = settle(narrow());
    let epoch = pair.epoch + 1;
    let other = moved::config(epoch, 1, &[1, 2], &[1, 2], &[]);
    for i in [1, 0] {
        let (mirror, out) = (&mut pair.mirrors[i], &mut pair.outs[i]);
        mirror.configure(pair.now, GroupId(4), &other, true, out);
    }
    pair.wait(500);
    let most = (QUEUE / 2 / u64::from(BLOCK)) as usize;
    let wanted = 4 * most;
    let before = pair.replies.len();
    (0..wanted as u32).for_each(|block| write(&mut pair, block, 7));
    write_to_other(&mut pair, epoch, 1, 0);
    let last = pair.seq;
    let mut asked = wanted as u32;
    while !pair.replies[before..].iter().any(|reply| reply.op == last) {
        let answered = pair.replies.len();
        assert!(answered - before <= 2 * wanted, "{} others were answered", answered - before);
        pair.now = Time(pair.now.0 + 1_000_000);
        // One way, and back: `run` would end all that has been asked.
        for from in [0, 1] {
            pair.mirrors[from].flush(pair.now, &mut pair.outs[from]);
            for effect in pair.outs[from].drain().collect::<Vec<_>>() {
                if let Effect::Send { link, head, body } = effect {
                    pair.deliver(from, link, wire::parse(head.as_slice()), body);
                }
            }
        }
        for _ in answered..pair.replies.len() {
            write(&mut pair, asked % 40, 7);
            asked += 1;
        }
    }
    pair.run();
    pair.assert_equal();
}

/// Clients write to one group after the other, and in each one the joiner's device hangs.
#[test]
fn a_joiner_whose_device_hangs_takes_one_window_for_all_groups() {
    let limits = Limits { link_queue: QUEUE, ..Limits::TEST_MIN };
    let mut pair = with_a_joiner_that_hangs(limits);
    let most = (QUEUE / 2 / u64::from(BLOCK)) as usize;
    (50..90).for_each(|block| write(&mut pair, block, 7));
    pair.wait(4000);
    let epoch = pair.epoch + 1;
    let other = moved::config(epoch, 1, &[1, 2], &[1], &[2]);
    for i in [1, 0] {
        let (mirror, out) = (&mut pair.mirrors[i], &mut pair.outs[i]);
        mirror.configure(pair.now, GroupId(4), &other, true, out);
    }
    pair.wait(1000);
    for round in 0..3 {
        (0..20).for_each(|block| write_to_other(&mut pair, epoch, 1, block));
        pair.run();
        assert_eq!(answered(&pair), 80 + (round + 1) * 20, "no client waits for the joiner");
        pair.wait(4000);
        let held = pair.mirrors[1].in_flight();
        assert!(held <= most, "{held} operations wait for its device");
    }
    pair.mirrors[1].store_mut().hangs = false;
    pair.wait(40_000);
    assert_eq!(pair.mirrors[0].admissions().len(), 2);
    assert_eq!(pair.mirrors[0].in_flight() + pair.mirrors[1].in_flight(), 0);
}

/// Copies of few groups run at once. Each group in turn would hold its clients' writes for as long
/// as the first one did. (The store of this rig has the same units in all groups.)
#[test]
fn a_joiner_that_stalled_in_one_group_is_sent_nothing_of_another_one() {
    let mut pair = with_a_joiner_that_hangs(Limits::TEST_MIN);
    let epoch = pair.epoch + 1;
    let configure = |pair: &mut Pair, epoch, joiners: &[u32]| {
        let other = moved::config(epoch, 1, &[1, 2], &[1], joiners);
        for i in [1, 0] {
            let (mirror, out) = (&mut pair.mirrors[i], &mut pair.outs[i]);
            mirror.configure(pair.now, GroupId(4), &other, true, out);
        }
        pair.wait(500);
    };
    configure(&mut pair, epoch, &[]);
    (0..20).for_each(|block| write_to_other(&mut pair, epoch, 1, block));
    pair.wait(500);
    assert_eq!(answered(&pair), 40 + 20);
    configure(&mut pair, epoch + 1, &[2]);
    pair.wait(6000);
    for round in 2..5 {
        (0..20).for_each(|block| write_to_other(&mut pair, epoch + 1, 0, block));
        write(&mut pair, 0, 2);
        pair.run();
        assert_eq!(answered(&pair), 40 + round * 20 + round - 1, "no client waits");
        pair.wait(2000);
    }
    pair.mirrors[1].store_mut().hangs = false;
    pair.wait(40_000);
    assert_eq!(pair.mirrors[0].admissions().len(), 2);
    assert_eq!(pair.mirrors[0].in_flight() + pair.mirrors[1].in_flight(), 0);
}

/// Writes that wait for room in the joiner's window need no timer then.
#[test]
fn a_joiner_that_refuses_to_tell_its_state_lets_clients_go_on_at_once() {
    let limits = Limits { link_queue: QUEUE, ..Limits::TEST_MIN };
    let mut pair = with_a_joiner_that_hangs(limits);
    (50..90).for_each(|block| write(&mut pair, block, 7));
    pair.run();
    assert!(answered(&pair) < 80, "clients wait for room");
    let (told, list) = pair.state.clone().expect("the joiner has told its state");
    let refused = SyncState { status: Status::Behind, ..told };
    let (mirror, out) = (&mut pair.mirrors[0], &mut pair.outs[0]);
    mirror.sync_state_in(pair.now, DeviceId(2), &refused, &list, out);
    mirror.flush(pair.now, out);
    pair.run();
    assert_eq!(answered(&pair), 80);
    go_on(&mut pair);
}

/// Such a joiner is wiped, whatever the list says. While it stalls it is asked every second, and
/// the answers of all groups would fill the queue of its link.
#[test]
fn a_joiner_that_is_asked_for_everything_sends_no_list() {
    let mut pair = settle(Pair::new([4, 4]));
    (0..4).for_each(|block| assert_eq!(pair.write(0, block, 1), Some(Status::Ok)));
    pair.configure(1, &[1], &[2], &[1]);
    for joiner in [true, false] {
        let (group, epoch, after) = (GROUP, Epoch(pair.epoch), base::Lsn(0));
        let ask = SyncStart { question: 1, group, epoch, after, joiner, all: true };
        let (mirror, out) = (&mut pair.mirrors[1], &mut pair.outs[1]);
        mirror.sync_start_in(on(LinkId(10)), DeviceId(1), &ask, &Buf::EMPTY, out);
        pair.run();
        let (state, body) = pair.state.take().expect("an answer");
        assert!(!state.empty);
        assert_eq!(body.is_empty(), joiner);
    }
}

#[test]
pub(crate) fn a_joiner_takes_no_more_before_it_has_written_what_it_was_sent() {
    let limits = Limits { link_queue: QUEUE, ..Limits::TEST_MIN };
    let mut pair = with_a_joiner_that_hangs(limits);
    let most = (QUEUE / 2 / u64::from(BLOCK)) as usize;
    for round in 1..=3 {
        (50..90).for_each(|block| write(&mut pair, block, 7));
        pair.wait(8000);
        assert_eq!(answered(&pair), 40 + round * 40);
        let held = pair.mirrors[1].in_flight();
        assert!(held <= most, "{held} operations wait for its device after {round} cuts");
    }
    go_on(&mut pair);
}

/// Another client writes to the first blocks of the volume, or retries that.
fn write_of_another(pair: &mut Pair, blocks: u32, flags: u8) {
    let range = place(0, 0, blocks * BLOCK);
    let request = request(1, GROUP, pair.epoch, range, named(6, 1, 1));
    let body = summed(&vec![9; (blocks * BLOCK) as usize], &pair.outs[0]);
    let write = io(Kind::Write, request, flags);
    pair.mirrors[0].client(pair.now, on(CLIENT), &write, body, &mut pair.outs[0]);
}

/// A retry of a write of which a part is done is told so, even if the rest waits before it finds no
/// space.
#[test]
fn a_part_that_is_done_is_not_forgotten_while_the_rest_waits() {
    let mut pair = settle(narrow());
    write_of_another(&mut pair, 1, 0);
    assert_eq!(pair.client(0, Kind::Write, 1, 0..BLOCK, 7, 0), Some(Status::Ok));
    assert_eq!(answered(&pair), 2);
    let fill = |pair: &mut Pair, b: u32| {
        pair.ask(0, Kind::Write, 1, b * BLOCK..(b + 1) * BLOCK, 7, 0);
    };
    (1..40).for_each(|block| fill(&mut pair, block));
    assert!(sent(&mut pair) >= QUEUE / 4, "the window is full");
    write_of_another(&mut pair, 2, RETRY);
    // The space of the block that is there goes to others.
    let memory = pair.mirrors[0].store_mut();
    memory.units.remove(&UNIT0);
    memory.room = 0;
    pair.connect(false);
    pair.connect(true);
    let full = |reply: &&Reply| reply.status == Status::Full;
    let refused: Vec<_> = pair.replies.iter().filter(full).collect();
    assert_eq!(refused.len(), 1, "{:?}", pair.replies);
    assert!(refused[0].part_done);
    assert_eq!(pair.mirrors[0].in_flight() + pair.mirrors[1].in_flight(), 0);
}

/// The clients wait for answers that were lost with the link before.
#[test]
fn clients_that_wait_for_room_go_on_when_a_link_is_up_in_place_of_another() {
    let mut pair = settle(narrow());
    assert_eq!(pair.write(0, 0, 1), Some(Status::Ok));
    (0..40).for_each(|block| write(&mut pair, block, 7));
    assert!(sent(&mut pair) <= QUEUE / 2, "the others wait");
    pair.mirrors[0].peer_up(pair.now, DeviceId(2), on(LinkId(10)), &mut pair.outs[0]);
    pair.run();
    assert_eq!(answered(&pair), 41, "no grant has come, and the clock stands still");
    pair.assert_equal();
}
