//! Blocks that can't be read: which device has them, and which one rewrites them.

use super::*;

/// Damages these blocks of unit 0 at a device.
fn damage(pair: &mut Pair, device: usize, blocks: Range<u32>) {
    pair.mirrors[device].store_mut().bad.insert(BlockSet::from_range(blocks));
}

#[test]
fn damage_at_the_primary_is_repaired_from_the_other_copy() {
    let mut pair = settled();
    (0..4).for_each(|b| assert_eq!(pair.write(0, b, 7 + b as u8), Some(Status::Ok)));
    damage(&mut pair, 0, 1..3);
    let all = 0..4 * BLOCK;
    assert_eq!(pair.client(0, Kind::Read, 0, all, 0, 0), Some(Status::Ok));
    let seen: Vec<u8> = pair.bodies.last().unwrap().chunks(BLOCK as usize).map(|b| b[0]).collect();
    assert_eq!(seen, [7, 8, 9, 10]);
    assert_eq!(pair.mirrors[0].stats().repaired, 2 * u64::from(BLOCK));
    assert!(pair.mirrors[0].store().bad.is_empty());
    damage(&mut pair, 0, 1..2);
    let part = BLOCK + 512..BLOCK + 1024;
    assert_eq!(pair.client(0, Kind::Write, 0, part, 5, 0), Some(Status::Ok));
    assert!(pair.mirrors[0].store().bad.is_empty());
    pair.assert_equal();
    assert_eq!(pair.mirrors[0].in_flight() + pair.mirrors[1].in_flight(), 0);
}

#[test]
fn damage_that_two_reads_find_is_repaired_once() {
    let mut pair = settled();
    (0..4).for_each(|b| assert_eq!(pair.write(0, b, 7 + b as u8), Some(Status::Ok)));
    damage(&mut pair, 0, 1..3);
    pair.mirrors[0].store_mut().late = true;
    for _ in 0..3 {
        assert_eq!(pair.client(0, Kind::Read, 0, 0..4 * BLOCK, 0, 0), None);
    }
    assert_eq!(
        pair.client(0, Kind::Write, 0, BLOCK..2 * BLOCK, 9, 0),
        None,
        "it waits behind them"
    );
    pair.mirrors[0].store_mut().late = false;
    pair.run();
    let ok = |reply: &Reply| reply.status == Status::Ok;
    assert!(pair.replies.len() == 8 && pair.replies.iter().all(ok), "{:?}", pair.replies);
    assert!(pair.mirrors[0].stats().repaired <= 2 * u64::from(BLOCK), "once, not by each");
    assert!(pair.mirrors[0].store().bad.is_empty());
    pair.assert_equal();
    assert_eq!(pair.mirrors[0].in_flight() + pair.mirrors[1].in_flight(), 0);
}

#[test]
fn a_device_that_cannot_read_what_was_just_written_anew_has_failed() {
    let mut pair = settled();
    (0..4).for_each(|b| assert_eq!(pair.write(0, b, 7), Some(Status::Ok)));
    pair.mirrors[0].store_mut().worn = true;
    damage(&mut pair, 0, 1..2);
    assert_eq!(pair.read(0, 0), Some(7));
    assert_eq!(
        pair.client(0, Kind::Read, 0, BLOCK..2 * BLOCK, 0, 0),
        None,
        "no error: the other copy has it"
    );
    assert!(pair.mirrors[0].failed() && !pair.mirrors[1].failed());
    assert_eq!(pair.mirrors[0].stats().unreadable, 0);
}

#[test]
fn a_block_damaged_at_a_member_is_sent_whole() {
    let mut pair = settled();
    (0..4).for_each(|b| assert_eq!(pair.write(0, b, 7), Some(Status::Ok)));
    damage(&mut pair, 1, 1..3);
    let part = BLOCK + 512..2 * BLOCK + 512;
    assert_eq!(pair.client(0, Kind::Zero, 0, part, 5, 0), Some(Status::Ok));
    assert!(pair.mirrors[1].store().bad.is_empty());
    pair.assert_equal();
    assert_eq!(pair.write(0, 2, 9), Some(Status::Ok), "the stream goes on");
    pair.assert_equal();
    assert_eq!(pair.mirrors[0].in_flight() + pair.mirrors[1].in_flight(), 0);
}

/// A device learns that all volumes were deleted.
fn delete(pair: &mut Pair, device: usize) {
    let (mirror, out) = (&mut pair.mirrors[device], &mut pair.outs[device]);
    let none = Volumes { next: VolumeId(2), ..Volumes::default() };
    mirror.set_volumes(pair.now, none, out);
    pair.run();
}

#[test]
fn a_copy_whose_volume_is_gone_has_nothing_to_repair_from() {
    let mut pair = settled();
    (0..4).for_each(|b| assert_eq!(pair.write(0, b, 7), Some(Status::Ok)));
    damage(&mut pair, 0, 1..3);
    delete(&mut pair, 1);
    let block = |b: u32| b * BLOCK..(b + 1) * BLOCK;
    assert_eq!(pair.client(0, Kind::Read, 0, block(1), 0, 0), None, "no zeros");
    assert_eq!(pair.client(0, Kind::Write, 0, 2 * BLOCK..2 * BLOCK + 512, 1, 0), None);
    pair.wait(1500);
    assert_eq!(pair.replies.len(), 4);
    delete(&mut pair, 0);
    let answers = pair.replies[4..].iter().map(|reply| Some(reply.status));
    assert_eq!(answers.collect::<Vec<_>>(), [Some(Status::Ok), Some(Status::NoVolume)]);
    assert_eq!(pair.mirrors[0].in_flight() + pair.mirrors[1].in_flight(), 0);
}

#[test]
fn damage_in_a_volume_that_is_being_deleted_is_not_repaired() {
    let mut pair = settled();
    assert_eq!(pair.write(0, 1, 7), Some(Status::Ok));
    damage(&mut pair, 0, 1..2);
    delete(&mut pair, 1);
    pair.mirrors[0].store_mut().late = true;
    assert_eq!(pair.client(0, Kind::Read, 0, BLOCK..2 * BLOCK, 0, 0), None);
    delete(&mut pair, 0);
    pair.mirrors[0].store_mut().late = false;
    pair.run();
    let status = pair.replies.last().map(|reply| Some(reply.status));
    assert_eq!(status, Some(Some(Status::NoVolume)));
    assert_eq!(pair.mirrors[0].in_flight() + pair.mirrors[1].in_flight(), 0);
}

#[test]
fn a_member_is_not_sent_what_a_volume_that_is_gone_had() {
    let mut pair = settled();
    (0..4).for_each(|b| assert_eq!(pair.write(0, b, 7), Some(Status::Ok)));
    damage(&mut pair, 1, 1..2);
    pair.connect(false);
    assert_eq!(pair.client(0, Kind::Write, 0, BLOCK..BLOCK + 512, 1, 0), None);
    delete(&mut pair, 0);
    pair.connect(true);
    pair.wait(500);
    let answers = pair.replies[4..].iter().map(|reply| Some(reply.status));
    assert_eq!(answers.collect::<Vec<_>>(), [Some(Status::NoVolume)], "it isn't there");
    assert_eq!(pair.mirrors[1].store().units[&UNIT0].1[BLOCK as usize], 7);
    assert_eq!(pair.mirrors[0].in_flight() + pair.mirrors[1].in_flight(), 0);
}

#[test]
fn a_block_without_a_good_copy_is_an_error_until_it_is_rewritten() {
    let mut pair = settled();
    (0..4).for_each(|b| assert_eq!(pair.write(0, b, 7), Some(Status::Ok)));
    damage(&mut pair, 0, 1..2);
    damage(&mut pair, 1, 1..2);
    let block = |b: u32| b * BLOCK..(b + 1) * BLOCK;
    assert_eq!(pair.client(0, Kind::Read, 0, block(1), 0, 0), Some(Status::Media));
    assert_eq!(pair.read(0, 2), Some(7));
    // A partial write fails. The other copy has met the damage, too, so nothing was changed.
    assert_eq!(pair.client(0, Kind::Write, 0, BLOCK..BLOCK + 512, 1, 0), Some(Status::Media));
    assert!(pair.mirrors[0].suspects(pair.now).is_empty());
    assert_eq!(pair.write(0, 1, 9), Some(Status::Ok));
    assert_eq!(pair.read(0, 1), Some(9));
    pair.assert_equal();
    assert_eq!(pair.mirrors[0].in_flight() + pair.mirrors[1].in_flight(), 0);
}

#[test]
fn a_joiner_gets_the_damage_of_the_last_copy_and_is_admitted() {
    let mut pair = settled();
    (0..4).for_each(|b| assert_eq!(pair.write(0, b, 7), Some(Status::Ok)));
    pair.configure(1, &[1], &[], &[0]);
    (1..4).for_each(|b| assert_eq!(pair.write(0, b, 8), Some(Status::Ok)));
    damage(&mut pair, 0, 1..3);
    assert_eq!(pair.client(0, Kind::Write, 0, BLOCK..BLOCK + 512, 1, 0), Some(Status::Media));
    pair.configure(1, &[1], &[2], &[0, 1]);
    pair.wait(500);
    assert_eq!(pair.mirrors[0].admissions(), [], "it is tried once more");
    pair.wait(1500);
    assert_eq!(pair.mirrors[0].admissions().len(), 1);
    pair.configure(2, &[1, 2], &[], &[0, 1]);
    pair.wait(1500);
    let read =
        |pair: &mut Pair, b: u32| pair.client(1, Kind::Read, 0, b * BLOCK..(b + 1) * BLOCK, 0, 0);
    assert_eq!(read(&mut pair, 1), Some(Status::Media), "what it had before is never shown");
    assert_eq!(pair.read(1, 3), Some(8));
    // The device that had the blocks can read one of them again: it is repaired like any damage.
    pair.mirrors[0].store_mut().bad.remove(BlockSet::from_range(1..2));
    assert_eq!(pair.read(1, 1), Some(8));
    assert_eq!(pair.write(1, 2, 9), Some(Status::Ok));
    assert_eq!(pair.read(1, 2), Some(9));
    assert!(pair.mirrors.iter().all(|m| m.store().bad.is_empty()));
    pair.assert_equal();
    assert_eq!(pair.mirrors[0].in_flight() + pair.mirrors[1].in_flight(), 0);
}

/// A copied block flips in the receiver's memory. It is copied once more, and nothing waits for
/// ever.
#[test]
fn a_copy_whose_body_flips_at_the_member_is_sent_again() {
    let mut pair = settled();
    (0..4).for_each(|b| assert_eq!(pair.write(0, b, 7 + b as u8), Some(Status::Ok)));
    pair.replace_second();
    pair.connect(true);
    pair.flips[1] = true;
    pair.configure(1, &[1], &[2], &[0, 1]);
    pair.wait(2000);
    assert!(!pair.flips[1], "something was copied");
    assert_eq!(pair.mirrors[0].admissions().len(), 1);
    pair.assert_equal();
    assert_eq!(pair.write(0, 1, 9), Some(Status::Ok));
    pair.assert_equal();
}

/// The same for a block that is sent whole because the replica's own one is damaged.
#[test]
fn blocks_that_flip_at_the_member_that_needs_them_whole_are_sent_again() {
    let mut pair = settled();
    (0..4).for_each(|b| assert_eq!(pair.write(0, b, 7 + b as u8), Some(Status::Ok)));
    damage(&mut pair, 1, 1..2);
    pair.flips[1] = true;
    assert_eq!(pair.client(0, Kind::Write, 0, BLOCK..BLOCK + 512, 1, 0), Some(Status::Ok));
    assert!(!pair.flips[1], "they were sent");
    pair.assert_equal();
    assert_eq!(pair.mirrors[0].in_flight() + pair.mirrors[1].in_flight(), 0);
}

/// Other writes take the slots of a partial write while its blocks are repaired.
#[test]
fn a_repaired_write_without_space_ends_with_its_configuration() {
    let mut pair = settled();
    (0..4).for_each(|b| assert_eq!(pair.write(0, b, 7), Some(Status::Ok)));
    damage(&mut pair, 0, 1..2);
    // The write's own slots, those of the repaired blocks, its own again, and those of any other
    // request.
    pair.mirrors[0].store_mut().space = [false, true, false, false].into();
    assert_eq!(pair.client(0, Kind::Write, 0, BLOCK..BLOCK + 512, 1, 0), None);
    assert!(pair.mirrors[0].suspects(pair.now).contains(&DeviceId(2)), "it may have done it");
    assert!(pair.mirrors[0].store().bad.is_empty(), "the blocks are whole");
    pair.configure(1, &[1], &[], &[0]);
    assert_eq!(pair.replies.last().unwrap().status, Status::Stale);
    pair.mirrors[0].store_mut().space.clear();
    assert_eq!(pair.read(0, 1), Some(1), "they are what the other copy has");
    pair.configure(1, &[1], &[2], &[0, 1]);
    pair.wait(500);
    assert_eq!(pair.mirrors[0].admissions().len(), 1);
    pair.assert_equal();
    assert_eq!(pair.mirrors[0].in_flight() + pair.mirrors[1].in_flight(), 0);
}

/// The replica that provides the blocks may have done more of the stream than this device. A power
/// cut may come before this device has done it, too.
#[test]
fn blocks_that_repair_a_write_in_the_stream_are_marked_dirty() {
    let mut pair = settled();
    (0..4).for_each(|b| assert_eq!(pair.write(0, b, 7), Some(Status::Ok)));
    damage(&mut pair, 0, 1..2);
    pair.mirrors[0].store_mut().marked = BlockSet::EMPTY;
    let part = BLOCK + 512..BLOCK + 1024;
    assert_eq!(pair.client(0, Kind::Write, 0, part, 5, 0), Some(Status::Ok));
    assert!(pair.mirrors[0].store().marked.contains(1));
    pair.assert_equal();
}

/// The error may pass, but not sooner because a link breaks.
#[test]
fn unreadable_blocks_of_a_settle_are_retried_after_a_second_even_if_a_link_breaks() {
    let mut pair = settled();
    (0..4).for_each(|b| assert_eq!(pair.write(0, b, 7), Some(Status::Ok)));
    pair.connect(false);
    assert_eq!(pair.write(0, 1, 8), None, "it is in flight");
    pair.configure(1, &[1, 2], &[], &[0, 1]);
    [0, 1].into_iter().for_each(|device| damage(&mut pair, device, 1..2));
    pair.connect(true);
    pair.wait(100);
    pair.connect(false);
    pair.connect(true);
    pair.wait(300);
    assert!(!pair.mirrors[0].replicas().view(GROUP).unwrap().active);
    pair.mirrors[0].store_mut().bad = BlockSet::EMPTY;
    pair.wait(2000);
    assert!(pair.mirrors[0].replicas().view(GROUP).unwrap().active);
    assert!(pair.mirrors[1].store().bad.is_empty(), "it was told that the block is lost");
    assert_eq!(pair.read(0, 1), Some(8));
    pair.assert_equal();
}

/// The primary repeats its request, and the other copy's device does not answer.
#[test]
fn blocks_that_are_requested_again_are_read_once() {
    let mut pair = settled();
    (0..4).for_each(|b| assert_eq!(pair.write(0, b, 7), Some(Status::Ok)));
    [0, 1].into_iter().for_each(|device| damage(&mut pair, device, 1..2));
    pair.mirrors[1].store_mut().late = true;
    assert_eq!(pair.client(0, Kind::Read, 0, BLOCK..2 * BLOCK, 0, 0), None);
    pair.wait(5000);
    // The answer goes to the link on which the last request came.
    pair.connect(false);
    pair.connect(true);
    pair.wait(5000);
    assert_eq!(pair.mirrors[1].in_flight(), 1);
    pair.mirrors[1].store_mut().late = false;
    pair.run();
    assert_eq!(pair.replies.last().map(|reply| reply.status), Some(Status::Media));
    assert_eq!(pair.mirrors[0].in_flight() + pair.mirrors[1].in_flight(), 0);
}

/// No honest replica answers what has no place in the stream yet.
#[test]
fn an_answer_to_a_question_that_was_not_sent_is_ignored() {
    let mut pair = settled();
    (0..4).for_each(|b| assert_eq!(pair.write(0, b, 7), Some(Status::Ok)));
    damage(&mut pair, 1, 1..2);
    pair.ask(0, Kind::Write, 0, BLOCK..BLOCK + 512, 1, 0);
    damage(&mut pair, 0, 1..2);
    pair.mirrors[0].store_mut().late = true;
    pair.run();
    assert_eq!(pair.mirrors[0].in_flight(), 2, "the write, and the read of its whole block");
    let (group, epoch, lsn) = (GROUP, Epoch(pair.epoch), base::Lsn(0));
    let sender = Sender { incarnation: Incarnation(7), map: MapVersion(pair.epoch) };
    for op in (0..64 * 64).map(|n| ((n / 64) << 32) | (n % 64)) {
        for status in [Status::SendWhole, Status::Full, Status::Ok] {
            let answer = Replicated { status, op, group, epoch, lsn, sender };
            let (mirror, out) = (&mut pair.mirrors[0], &mut pair.outs[0]);
            mirror.replicated(pair.now, DeviceId(2), &answer, out);
        }
    }
    assert_eq!(pair.mirrors[0].in_flight(), 2);
    assert!(pair.mirrors[0].suspects(pair.now).is_empty());
}
