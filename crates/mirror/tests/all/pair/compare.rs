//! Compare-and-write (rule R17): what is compared, when, and what is written.

use super::*;

const BLOCK0: Range<u32> = 0..BLOCK;
const SECTOR: Range<u32> = 512..1024;

/// Sends a compare-and-write, which expects one byte in the whole range and writes another one.
/// Nothing is delivered yet.
fn send(
    pair: &mut Pair,
    to: usize,
    name: ClientWrite,
    range: Range<u32>,
    bytes: (u8, u8),
    flags: u8,
) {
    let len = range.end - range.start;
    let request = request(name.seq, GROUP, pair.epoch, place(0, range.start, len), name);
    let body = [vec![bytes.0; len as usize], vec![bytes.1; len as usize]].concat();
    let mut body = summed(&body, &pair.outs[to]);
    if std::mem::take(&mut pair.flips[0]) {
        body.data = flipped(&body.data, &mut pair.outs[to]);
    }
    let io = io(Kind::CompareWrite, request, flags);
    pair.mirrors[to].client(pair.now, on(CLIENT), &io, body, &mut pair.outs[to]);
}

/// The same, and returns the answer, if there is one.
fn swap(
    pair: &mut Pair,
    to: usize,
    name: ClientWrite,
    range: Range<u32>,
    bytes: (u8, u8),
    flags: u8,
) -> Option<Status> {
    let before = pair.replies.len();
    send(pair, to, name, range, bytes, flags);
    pair.run();
    pair.replies.get(before).map(|reply| reply.status)
}

/// Returns the byte that the last answer names as the first one that differs.
fn differs(pair: &Pair) -> Option<u32> {
    assert_eq!(pair.sound.last(), Some(&true));
    Reply::miscompared_at(pair.bodies.last().expect("an answer"))
}

#[test]
fn equal_data_is_replaced_in_both_copies_and_other_data_is_left_alone() {
    let mut pair = settled();
    for (seq, range, bytes, expected) in [
        (1, BLOCK0, (0, 1), Ok(())),
        (2, SECTOR, (1, 2), Ok(())),
        (3, SECTOR, (1, 3), Err(0)),
        (4, BLOCK0, (1, 3), Err(512)), // the sector in its middle differs
        (5, 1024..BLOCK, (1, 4), Ok(())),
        (6, 0..1536, (1, 5), Err(512)),
        (7, BLOCK..BLOCK + 512, (0, 6), Ok(())),
    ] {
        let before = pair.mirrors[0].store().units.clone();
        let status = swap(&mut pair, 0, named(5, seq, seq), range, bytes, 0);
        match expected {
            Ok(()) => assert_eq!(status, Some(Status::Ok), "{seq}"),
            Err(at) => {
                assert_eq!(status, Some(Status::Miscompare), "{seq}");
                assert_eq!(differs(&pair), Some(at), "{seq}");
                assert!(pair.mirrors[0].store().units == before, "{seq}: something was written");
            }
        }
        pair.assert_equal();
    }
    assert_eq!(pair.mirrors[0].in_flight() + pair.mirrors[1].in_flight(), 0);
    let stats = pair.mirrors[0].stats();
    assert_eq!((stats.writes, stats.written_bytes), (4, u64::from(2 * BLOCK)));
}

#[test]
fn comparisons_that_leave_their_block_or_have_a_wrong_length_are_refused() {
    let mut pair = settled();
    let refused = Some(Status::OutOfRange);
    for range in [BLOCK - 512..BLOCK + 512, 0..BLOCK + 512, 0..2 * BLOCK, 100..612] {
        assert_eq!(swap(&mut pair, 0, named(5, 1, 1), range, (0, 1), 0), refused);
    }
    let (len, name) = (512, named(5, 1, 1));
    for wrong in [0, 512, 1023, 2048] {
        let request = request(1, GROUP, pair.epoch, place(0, 0, len), name);
        let body = summed(&vec![0; wrong], &pair.outs[0]);
        let io = io(Kind::CompareWrite, request, 0);
        pair.mirrors[0].client(pair.now, on(CLIENT), &io, body, &mut pair.outs[0]);
        pair.run();
        assert_eq!(pair.replies.pop().map(|reply| reply.status), refused, "{wrong} bytes");
    }
    assert!(pair.mirrors.iter().all(|m| m.store().units.is_empty()), "nothing was written");
    assert_eq!(swap(&mut pair, 1, name, BLOCK0, (0, 1), 0), Some(Status::Stale), "a secondary");
}

/// Both wait until the group is served, and then for the same block.
#[test]
pub(crate) fn of_two_that_expect_the_same_one_writes() {
    let mut pair = settled();
    pair.connect(false);
    pair.configure(1, &[1, 2], &[], &[0, 1]);
    for (sdc, new) in [(5, 7), (6, 8)] {
        assert_eq!(swap(&mut pair, 0, named(sdc, 1, 1), BLOCK0, (0, new), 0), None);
    }
    pair.connect(true);
    pair.wait(1000);
    let status: Vec<Status> = pair.replies.iter().map(|reply| reply.status).collect();
    assert_eq!(status, [Status::Ok, Status::Miscompare]);
    assert_eq!(pair.read(0, 0), Some(7));
    pair.assert_equal();
}

/// A primary that may have been replaced does not know what the range has now.
#[test]
pub(crate) fn a_primary_without_leases_compares_nothing() {
    let mut pair = settled();
    assert_eq!(pair.write(0, 0, 1), Some(Status::Ok));
    pair.connect(false);
    pair.wait(2000);
    let name = named(6, 1, 1);
    assert_eq!(swap(&mut pair, 0, name, BLOCK0, (9, 2), 0), None, "it may have been replaced");
    let before = pair.replies.len();
    pair.configure(1, &[1], &[], &[0]);
    assert_eq!(pair.replies[before].status, Status::Stale);
    assert_eq!(swap(&mut pair, 0, name, BLOCK0, (1, 2), RETRY), Some(Status::Ok));
    assert_eq!(pair.read(0, 0), Some(2));
}

#[test]
pub(crate) fn what_was_executed_is_not_compared_again() {
    let mut pair = settled();
    let name = named(5, 100, 100);
    assert_eq!(swap(&mut pair, 0, name, SECTOR, (0, 1), 0), Some(Status::Ok));
    assert_eq!(swap(&mut pair, 0, name, SECTOR, (0, 1), RETRY), Some(Status::Ok));
    // Another client has used what it got.
    assert_eq!(swap(&mut pair, 0, named(6, 1, 1), SECTOR, (1, 2), 0), Some(Status::Ok));
    assert_eq!(swap(&mut pair, 0, name, SECTOR, (0, 1), RETRY), Some(Status::Ok));
    pair.configure(2, &[1, 2], &[], &[0, 1]);
    pair.wait(2000);
    assert_eq!(swap(&mut pair, 1, name, SECTOR, (0, 1), RETRY), Some(Status::Ok));
    assert_eq!(swap(&mut pair, 1, named(6, 2, 2), SECTOR, (2, 3), 0), Some(Status::Ok));
    pair.assert_equal();
}

/// The former primary has written it, and nobody else. Meanwhile another client has written.
#[test]
pub(crate) fn what_was_not_executed_is_compared_again() {
    let mut pair = settled();
    assert_eq!(pair.write(0, 0, 1), Some(Status::Ok));
    pair.connect(false);
    let name = named(6, 1, 1);
    assert_eq!(swap(&mut pair, 0, name, SECTOR, (1, 2), 0), None, "the other copy lacks it");
    pair.configure(2, &[2], &[], &[1]);
    pair.wait(2000);
    assert_eq!(pair.client(1, Kind::Write, 0, SECTOR, 3, 0), Some(Status::Ok));
    assert_eq!(swap(&mut pair, 1, name, SECTOR, (1, 2), RETRY), Some(Status::Miscompare));
    assert_eq!(pair.client(1, Kind::Read, 0, SECTOR, 0, 0), Some(Status::Ok));
    assert_eq!(pair.bodies.last().unwrap()[0], 3);
    assert_eq!(swap(&mut pair, 1, named(6, 2, 2), SECTOR, (3, 2), 0), Some(Status::Ok));
}

#[test]
fn damaged_blocks_are_repaired_before_they_are_compared() {
    let mut pair = settled();
    (0..2).for_each(|b| assert_eq!(pair.write(0, b, 7), Some(Status::Ok)));
    let damage = |pair: &mut Pair, device: usize| {
        pair.mirrors[device].store_mut().bad.insert(BlockSet::from_range(0..1));
    };
    damage(&mut pair, 0);
    assert_eq!(swap(&mut pair, 0, named(6, 1, 1), SECTOR, (7, 8), 0), Some(Status::Ok));
    assert!(pair.mirrors[0].store().bad.is_empty());
    pair.assert_equal();
    damage(&mut pair, 1);
    assert_eq!(swap(&mut pair, 0, named(6, 2, 2), SECTOR, (8, 9), 0), Some(Status::Ok));
    pair.assert_equal();
    (0..2).for_each(|device| damage(&mut pair, device));
    let media = Some(Status::Media);
    assert_eq!(swap(&mut pair, 0, named(6, 3, 3), SECTOR, (9, 1), 0), media, "no copy has them");
    assert_eq!(swap(&mut pair, 0, named(6, 4, 4), BLOCK0, (9, 1), 0), media);
    assert_eq!(pair.write(0, 0, 5), Some(Status::Ok), "a whole write makes the block good");
    assert_eq!(swap(&mut pair, 0, named(6, 5, 5), BLOCK0, (5, 6), 0), Some(Status::Ok));
    assert_eq!(pair.mirrors[0].in_flight() + pair.mirrors[1].in_flight(), 0);
}

#[test]
fn lost_blocks_are_errors_and_not_zeros() {
    let mut pair = settled();
    for mirror in &mut pair.mirrors {
        mirror.set_lost_units([((VolumeId(1), GROUP), 1)].into());
    }
    assert_eq!(swap(&mut pair, 0, named(5, 1, 1), BLOCK0, (0, 1), 0), Some(Status::Media));
    assert_eq!(pair.write(0, 0, 1), Some(Status::Ok));
    assert_eq!(swap(&mut pair, 0, named(5, 2, 2), SECTOR, (1, 2), 0), Some(Status::Ok));
}

/// A write that needs space is sent first and written here last.
#[test]
fn without_space_nothing_is_written_and_the_next_attempt_compares_again() {
    let mut pair = settle(Pair::new([4, 0]));
    assert_eq!(swap(&mut pair, 0, named(5, 1, 1), SECTOR, (0, 1), 0), Some(Status::Full));
    assert!(!pair.replies.last().unwrap().part_done, "nothing of it was done");
    assert_eq!(swap(&mut pair, 0, named(5, 2, 2), SECTOR, (9, 1), 0), Some(Status::Miscompare));
    pair.assert_equal();
    pair.mirrors[1].store_mut().room = 4;
    assert_eq!(swap(&mut pair, 0, named(5, 3, 3), SECTOR, (0, 1), 0), Some(Status::Ok));
    pair.assert_equal();
}

#[test]
fn a_body_that_has_changed_in_memory_is_neither_compared_nor_written() {
    let mut pair = settled();
    pair.flips[0] = true;
    let name = named(5, 1, 1);
    assert_eq!(swap(&mut pair, 0, name, SECTOR, (0, 1), 0), Some(Status::Damaged));
    assert_eq!(swap(&mut pair, 0, name, SECTOR, (0, 1), RETRY), Some(Status::Ok));
    pair.assert_equal();
}

/// The session of its client ends while it reads: what has begun goes on, and keeps its range.
#[test]
fn a_comparison_that_has_begun_comes_before_the_next_session() {
    let mut pair = settled();
    assert_eq!(pair.write(0, 0, 1), Some(Status::Ok));
    pair.mirrors[0].store_mut().bad.insert(BlockSet::from_range(0..1));
    pair.mirrors[0].store_mut().late = true;
    let name = named(6, 1, 1);
    assert_eq!(swap(&mut pair, 0, name, SECTOR, (1, 2), 0), None, "it reads");
    pair.mirrors[0].session_over(pair.now, SdcId(6), &mut pair.outs[0]);
    let again = swap(&mut pair, 0, name, SECTOR, (1, 2), RETRY);
    assert_eq!(again, None, "it waits for its range");
    pair.mirrors[0].store_mut().late = false;
    pair.run();
    let status: Vec<Status> = pair.replies.iter().map(|reply| reply.status).collect();
    assert_eq!(status, [Status::Ok; 3], "executed once, and known");
    pair.assert_equal();
}

#[test]
fn a_deleted_volume_has_nothing_to_compare() {
    let mut pair = settled();
    assert_eq!(pair.write(0, 0, 1), Some(Status::Ok));
    let none = Volumes { next: VolumeId(2), ..Volumes::default() };
    pair.mirrors[0].set_volumes(pair.now, none, &mut pair.outs[0]);
    assert_eq!(swap(&mut pair, 0, named(5, 9, 9), SECTOR, (1, 2), 0), Some(Status::NoVolume));
    assert_eq!(pair.mirrors[0].in_flight(), 0);
}
