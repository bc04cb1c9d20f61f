//! The list of executed writes has bounds. A write that drops out is neither executed twice nor
//! acknowledged again.

use super::*;
use wire::records::Executed;
use zerocopy::IntoBytes;

/// Creates a settled pair with these limits.
fn pair(limits: Limits) -> Pair {
    let mut pair = Pair::new([4, 4]);
    for (i, mirror) in pair.mirrors.iter_mut().enumerate() {
        let (me, media) = (DeviceId(i as u32 + 1), Memory::room(4));
        *mirror = Mirror::new(me, Incarnation(7), limits.clone(), media, Time::ZERO);
    }
    settle(pair)
}

/// Sends a client's write of one block.
fn write(
    pair: &mut Pair,
    to: usize,
    name: ClientWrite,
    block: u32,
    fill: u8,
    flags: u8,
) -> Option<Status> {
    write_of(pair, (to, GROUP), name, block, fill, flags)
}

/// The same, to a unit of this group.
fn write_of(
    pair: &mut Pair,
    to: (usize, GroupId),
    name: ClientWrite,
    block: u32,
    fill: u8,
    flags: u8,
) -> Option<Status> {
    let body = vec![fill; BLOCK as usize];
    ask(pair, to, name, block, (Kind::Write, &body), flags)
}

fn ask(
    pair: &mut Pair,
    (to, group): (usize, GroupId),
    name: ClientWrite,
    block: u32,
    (kind, body): (Kind, &[u8]),
    flags: u8,
) -> Option<Status> {
    let len = if body.is_empty() { BLOCK } else { body.len() as u32 };
    let range = place(group.0 - GROUP.0, block * BLOCK, len);
    let request = request(1, group, pair.epoch, range, name);
    let body = summed(body, &pair.outs[to]);
    let before = pair.replies.len();
    let io = io(kind, request, flags);
    pair.mirrors[to].client(pair.now, on(CLIENT), &io, body, &mut pair.outs[to]);
    pair.run();
    pair.replies.get(before).map(|reply| reply.status)
}

/// 70,000 writes of clients whose floors stand still. The lists stay so short that a settle can
/// hand them over in frames that are accepted, and what is not listed any more is refused.
#[test]
fn however_many_writes_stay_unanswered_a_group_settles() {
    let limits = Limits::SHIPPED;
    let mut pair = pair(limits.clone());
    let (clients, each) = (20, 3500);
    for seq in 2..each + 2 {
        for sdc in 1..=clients {
            let block = (seq % 200) as u32;
            let done = write(&mut pair, 0, named(sdc, seq, 1), block, sdc as u8, 0);
            assert_eq!(done, Some(Status::Ok));
        }
    }
    for mirror in &pair.mirrors {
        assert!(mirror.replicas().executed_len() <= limits.executed_group as usize);
    }
    pair.connect(false);
    pair.configure(1, &[1], &[], &[0]);
    pair.connect(true);
    pair.configure(1, &[1], &[2], &[0, 1]);
    pair.wait(1000);
    pair.configure(2, &[1, 2], &[], &[0, 1]);
    pair.wait(1000);
    assert!(pair.mirrors[1].replicas().view(GROUP).unwrap().active, "it has settled, twice");
    assert!(pair.longest > 1 << 20, "lists have gone over the link: {} bytes", pair.longest);
    let retry = |pair: &mut Pair, sdc, seq| {
        write(pair, 1, named(sdc, seq, 1), (seq % 200) as u32, 99, RETRY)
    };
    assert_eq!(retry(&mut pair, 3, each + 1), Some(Status::Ok), "a young one is known");
    for seq in [2, 3, 400, 1700] {
        assert_eq!(retry(&mut pair, 3, seq), Some(Status::Forgotten));
    }
    for block in 0..200 {
        assert_ne!(pair.read(1, block), Some(99), "an old write was done again");
    }
    pair.assert_equal();
}

/// What one replica has forgotten, the other one refuses, too, once it has the content of the
/// first.
#[test]
fn forgotten_writes_stay_forgotten_under_the_next_primary() {
    let mut limits = Limits::TEST_MIN;
    (limits.executed_group, limits.executed_window) = (8, 100);
    let mut pair = pair(limits.clone());
    pair.connect(false);
    pair.configure(1, &[1], &[], &[0]);
    for seq in 1..=30 {
        assert_eq!(write(&mut pair, 0, named(5, seq, 1), 0, seq as u8, 0), Some(Status::Ok));
    }
    pair.connect(true);
    pair.configure(1, &[1], &[2], &[0, 1]);
    pair.wait(1000);
    pair.configure(2, &[1, 2], &[], &[0, 1]);
    pair.wait(1000);
    let retry = |pair: &mut Pair, seq| write(pair, 1, named(5, seq, 1), 0, 99, RETRY);
    assert_eq!(retry(&mut pair, 30), Some(Status::Ok));
    assert_eq!(retry(&mut pair, 1), Some(Status::Forgotten));
    assert_eq!(pair.read(1, 0), Some(30));
    assert_eq!(retry(&mut pair, 31), Some(Status::Ok), "it was never done, and is done now");
    assert_eq!(pair.read(1, 0), Some(99));
}

/// The list that a seal hands over is longer than there is room for at the receiver. The receiver's
/// device knows what is not listed there before it knows the list.
#[test]
fn writes_without_room_in_a_seal_are_forgotten_first() {
    let mut limits = Limits::TEST_MIN;
    (limits.executed_group, limits.executed_window) = (100, 100);
    let mut pair = pair(limits.clone());
    pair.replace_second();
    limits.executed_group = 8;
    let media = Memory { kept: true, forgotten: Some(Forgotten::new(64)), ..Memory::room(4) };
    pair.mirrors[1] = Mirror::new(DeviceId(2), Incarnation(8), limits, media, pair.now);
    for seq in 1..=30 {
        assert_eq!(write(&mut pair, 0, named(5, seq, 1), 0, seq as u8, 0), Some(Status::Ok));
    }
    pair.connect(true);
    pair.configure(1, &[1], &[2], &[0, 1]);
    pair.wait(1000);
    let (known, list) = pair.mirrors[1].store().lists.last().expect("it was sealed");
    assert!(!list.is_empty() && list.len() <= 8);
    for seq in 1..=30 {
        let listed = list.iter().any(|e| e.write.seq == seq);
        assert!(
            listed || known.covers(GROUP, named(5, seq, 1)),
            "{seq} is neither listed nor forgotten"
        );
    }
}

/// Clients number their writes across all groups. What is forgotten in a busy group says nothing
/// about another one whose writes have waited meanwhile, even after these have been sent to another
/// device.
#[test]
fn forgotten_writes_of_one_group_fail_no_write_of_another_one() {
    let mut limits = Limits::TEST_MIN;
    (limits.executed_group, limits.executed_device, limits.executed_window) = (4096, 256, 4096);
    let mut pair = pair(limits);
    let devices = |of: &[u32]| of.iter().map(|d| DeviceId(*d)).collect::<Vec<_>>();
    let (replicas, busy) = (devices(&[1, 2]), GroupId(GROUP.0 + 1));
    let (epoch, primary, in_sync) = (Epoch(pair.epoch), Some(DeviceId(1)), devices(&[1, 2]));
    let config = GroupConfig { epoch, primary, replicas, in_sync, joiners: vec![], lost: false };
    for (mirror, out) in pair.mirrors.iter_mut().zip(&mut pair.outs) {
        mirror.configure(pair.now, busy, &config, true, out);
    }
    pair.wait(500);
    for seq in 10..1000 {
        let name = named(5, seq, 10);
        assert_eq!(write_of(&mut pair, (0, busy), name, 0, 7, 0), Some(Status::Ok));
    }
    let forgotten = write_of(&mut pair, (0, busy), named(5, 10, 10), 0, 8, RETRY);
    assert_eq!(forgotten, Some(Status::Forgotten));
    for (leads, block) in [(1, 0), (2, 1)] {
        pair.configure(leads, &[1, 2], &[], &[0, 1]);
        pair.wait(500);
        let waited = named(5, u64::from(leads), 1);
        let done = write(&mut pair, leads as usize - 1, waited, block, 9, RETRY);
        assert_eq!(done, Some(Status::Ok), "it was never done");
    }
}

#[test]
fn with_its_lowest_write_open_a_client_gets_one_window_of_writes_and_then_that_one() {
    let limits = Limits { executed_window: 50, ..Limits::SHIPPED };
    let mut pair = pair(limits);
    for seq in 2..52 {
        assert_eq!(write(&mut pair, 0, named(5, seq, 1), 0, 7, 0), Some(Status::Ok));
    }
    for seq in [52, 53] {
        assert_eq!(write(&mut pair, 0, named(5, seq, 0), 0, 8, 0), Some(Status::Busy));
        assert_eq!(write(&mut pair, 0, named(5, seq, 1), 0, 8, RETRY), Some(Status::Busy));
    }
    assert_eq!(write(&mut pair, 0, named(6, 52, 0), 0, 8, 0), Some(Status::Ok), "another client");
    assert_eq!(write(&mut pair, 0, named(5, 1, 1), 0, 9, RETRY), Some(Status::Ok));
    assert_eq!(write(&mut pair, 0, named(5, 52, 52), 0, 10, RETRY), Some(Status::Ok));
    assert_eq!(write(&mut pair, 0, named(5, 53, 52), 0, 11, RETRY), Some(Status::Ok));
    pair.assert_equal();
}

/// The client's lowest write may wait for space, and a discard makes some.
#[test]
fn a_client_whose_window_is_full_can_discard() {
    let limits = Limits { executed_window: 50, ..Limits::SHIPPED };
    let mut pair = pair(limits);
    for seq in 2..52 {
        assert_eq!(write(&mut pair, 0, named(5, seq, 1), 0, 7, 0), Some(Status::Ok));
    }
    let discard = |pair: &mut Pair, seq| {
        ask(pair, (0, GROUP), named(5, seq, 1), 0, (Kind::Zero, &[]), 0).expect("an answer")
    };
    for seq in 52..102 {
        assert_eq!(write(&mut pair, 0, named(5, seq, 1), 0, 8, 0), Some(Status::Busy));
        assert_eq!(discard(&mut pair, seq), Status::Ok);
    }
    assert_eq!(discard(&mut pair, 102), Status::Busy, "nor is there room for any number of these");
}

/// A client with a false floor fills its own window, and nothing more.
#[test]
fn a_floor_that_stays_at_zero_fills_a_window_and_no_more() {
    let limits = Limits { executed_window: 50, ..Limits::SHIPPED };
    let mut pair = pair(limits);
    let mut done = 0;
    for seq in 1..=500 {
        done += u32::from(write(&mut pair, 0, named(5, seq, 0), 0, 7, 0) == Some(Status::Ok));
    }
    assert_eq!(done, 50);
    assert!(pair.mirrors.iter().all(|m| m.replicas().executed_len() <= 50));
}

/// There is no higher number, so writes above forgotten ones could not be distinguished any more.
#[test]
fn the_highest_number_there_is_is_refused() {
    let mut pair = pair(Limits::TEST_MIN);
    let refused = Some(Status::OutOfRange);
    assert_eq!(write(&mut pair, 0, named(5, u64::MAX, 0), 0, 7, 0), refused);
    assert_eq!(write(&mut pair, 0, named(5, u64::MAX, 0), 0, 7, RETRY), refused);
    assert_eq!(write(&mut pair, 0, named(5, 1, 0), 0, 8, 0), Some(Status::Ok));
    assert_eq!(pair.read(0, 0), Some(8));
}

/// Operations of a client that is gone take no room from others, although their group isn't served.
#[test]
fn a_client_that_is_gone_leaves_its_room_to_others() {
    let mut pair = pair(Limits::TEST_MIN);
    pair.connect(false);
    pair.configure(1, &[1, 2], &[], &[0]);
    let busy = |pair: &mut Pair, sdc, seq| {
        write(pair, 0, named(sdc, seq, seq), 0, 7, 0) == Some(Status::Busy)
    };
    let asked = (1..100_000).take_while(|seq| !busy(&mut pair, 5, *seq)).count();
    assert!(asked > 0 && busy(&mut pair, 6, 1), "it waits, and there is no room");
    pair.mirrors[0].session_over(pair.now, SdcId(5), &mut pair.outs[0]);
    assert!(!busy(&mut pair, 6, 1));
}

/// Lists have entries that are never retried, because they are pruned only now and then. If there
/// is too little room, these go first. Here they alone are more than there is room for.
#[test]
fn writes_that_are_never_retried_are_forgotten_first() {
    let mut limits = Limits::TEST_MIN;
    (limits.executed_group, limits.executed_device) = (4096, 256);
    let mut pair = pair(limits);
    assert_eq!(write(&mut pair, 0, named(6, 1, 1), 0, 7, 0), Some(Status::Ok));
    for seq in 1..=40 {
        for sdc in 10..26 {
            assert_eq!(write(&mut pair, 0, named(sdc, seq, seq), 1, 8, 0), Some(Status::Ok));
        }
    }
    assert_eq!(write(&mut pair, 0, named(6, 1, 1), 0, 9, RETRY), Some(Status::Ok));
    assert_eq!(pair.read(0, 0), Some(7), "it was done already");
}

/// A settle copies in runs, and one that breaks off can leave the middle of a write at the replica
/// that serves next. Other clients may have seen and overwritten that middle.
#[test]
pub(crate) fn a_retry_writes_nothing_over_what_was_done_between_its_missing_parts() {
    let mut pair = settled();
    (0..6).for_each(|b| assert_eq!(pair.write(0, b, 1), Some(Status::Ok)));
    pair.connect(false);
    let (name, whole) = (named(7, 100, 1), vec![2; 6 * BLOCK as usize]);
    let ask_whole =
        |pair: &mut Pair, to, flags| ask(pair, (to, GROUP), name, 0, (Kind::Write, &whole), flags);
    assert_eq!(ask_whole(&mut pair, 0, 0), None, "the other copy lacks it");
    pair.configure(1, &[1, 2], &[], &[0, 1]);
    for mirror in &mut pair.mirrors {
        let bad = &mut mirror.store_mut().bad;
        bad.insert(BlockSet::from_range(0..1));
        bad.insert(BlockSet::from_range(5..6));
    }
    pair.connect(true);
    pair.wait(100);
    pair.connect(false);
    pair.mirrors[1].store_mut().bad = BlockSet::EMPTY;
    pair.configure(2, &[2], &[], &[1]);
    pair.wait(2000);
    assert_eq!(pair.read(1, 0), Some(1), "the ends were not copied");
    assert_eq!(pair.read(1, 2), Some(2), "the middle was");
    let other = write(&mut pair, 1, named(6, 1, 1), 2, 3, 0);
    assert_eq!(other, Some(Status::Ok));
    let mut answers = Vec::new();
    while answers.last() != Some(&Some(Status::Ok)) && answers.len() < 5 {
        answers.push(ask_whole(&mut pair, 1, RETRY));
    }
    assert_eq!(answers, [Some(Status::Busy), Some(Status::Ok)], "one part at a time");
    let blocks: Vec<_> = (0..6).map(|b| pair.read(1, b).expect("served")).collect();
    assert_eq!(blocks, [2, 2, 3, 2, 2, 2]);
}

/// Each primary bounds its own lists. A device is a replica of many primaries.
#[test]
fn lists_that_come_with_seals_take_no_more_than_a_device_has_for_them() {
    use wire::message::{Seal, SyncStart};
    let mut limits = Limits::TEST_MIN;
    (limits.executed_group, limits.executed_device) = (200, 256);
    let mut pair = pair(limits);
    let (epoch, lsn, mirror, out) =
        (Epoch(9), base::Lsn(0), &mut pair.mirrors[1], &mut pair.outs[1]);
    let (link, primary) = (on(LinkId(10)), DeviceId(1));
    let mut sources = Vec::new();
    for group in [4, 5, 6].map(GroupId) {
        let config = moved::config(epoch.0, 1, &[1, 2], &[1], &[2]);
        mirror.configure(pair.now, group, &config, true, out);
        let blocks = BlockSet::from_range(0..1);
        let entry = |seq| Executed::new(SdcId(5), Incarnation(1), seq, UNIT0, blocks);
        let list: Vec<Executed> = (1..=200).map(entry).collect();
        let list = out.copy(list.as_bytes());
        let start = SyncStart { question: 1, group, epoch, after: lsn, joiner: true, all: false };
        mirror.sync_start_in(link, primary, &start, &list, out);
        sources.push(mirror.grown().source);
        let seal = Seal { group, epoch, lsn };
        mirror.seal_in(pair.now, link, primary, &seal, &list, out);
        mirror.flush(pair.now, out);
        sources.push(mirror.grown().source);
    }
    let entries = mirror.grown().executed;
    assert!(entries <= 260, "{entries} entries");
    assert_eq!(sources, [200, 0].repeat(3), "copies come before the seal");
}
