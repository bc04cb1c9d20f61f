//! No space (R15), and the spare.

use super::*;

#[test]
fn a_full_secondary_refuses_before_anything_changed() {
    let mut pair = settle(Pair::new([4, 1]));
    assert_eq!(pair.write(0, 0, 7), Some(Status::Ok));
    assert_eq!(pair.client(0, Kind::Write, 1, 0..BLOCK, 7, 0), Some(Status::Full));
    assert!(!pair.replies.last().unwrap().part_done, "nothing of it was done");
    let full = pair.mirrors.each_ref().map(|m| m.stats().full_at.is_some());
    assert_eq!(full, [false, true], "the one without space says so");
    pair.assert_equal();
    assert_eq!(pair.write(0, 1, 8), Some(Status::Ok), "the stream goes on");
    assert_eq!(pair.mirrors[0].store().units.keys().copied().collect::<Vec<_>>(), [UNIT0]);
}

/// From now on the device keeps everything beyond this many blocks as its spare.
fn keep(pair: &mut Pair, device: usize, blocks: u32, thick: &[u32]) {
    let thick = thick.iter().map(|v| VolumeId(*v)).collect();
    pair.mirrors[device].keep_spare(u64::from(blocks * BLOCK), thick);
}

fn first_write(pair: &mut Pair, unit: u32) -> Option<Status> {
    pair.client(0, Kind::Write, unit, 0..BLOCK, 7, 0)
}

fn kept(pair: &Pair) -> [bool; 2] {
    let stats = pair.mirrors.each_ref().map(|m| m.stats());
    assert!(stats.iter().all(|s| s.full_at.is_none()), "there is room for copies");
    stats.map(|s| s.only_spare_at.is_some())
}

#[test]
fn a_primary_keeps_its_spare_and_takes_what_needs_no_space() {
    let mut pair = settled();
    keep(&mut pair, 0, 2, &[]);
    assert_eq!(pair.write(0, 0, 7), Some(Status::Ok));
    assert_eq!(first_write(&mut pair, 1), Some(Status::Ok), "one block is left");
    assert_eq!(first_write(&mut pair, 2), Some(Status::Full));
    assert_eq!((pair.replies.last().unwrap().part_done, kept(&pair)), (false, [true, false]));
    assert_eq!(pair.write(0, 1, 8), Some(Status::Ok), "its place is there");
    assert_eq!(pair.client(0, Kind::Zero, 1, 0..UNIT, 0, 0), Some(Status::Ok));
    pair.assert_equal();
    keep(&mut pair, 0, 3, &[]);
    assert_eq!(first_write(&mut pair, 2), Some(Status::Ok));
    pair.assert_equal();
}

#[test]
fn a_secondary_keeps_its_spare_and_is_no_suspect() {
    let mut pair = settled();
    assert_eq!(pair.write(0, 0, 7), Some(Status::Ok));
    keep(&mut pair, 1, 1, &[]);
    assert_eq!(first_write(&mut pair, 1), Some(Status::Full));
    assert_eq!((pair.replies.last().unwrap().part_done, kept(&pair)), (false, [false, true]));
    assert!(pair.mirrors[0].suspects(pair.now).is_empty());
    pair.assert_equal();
    assert_eq!(pair.write(0, 1, 8), Some(Status::Ok), "the stream goes on");
    // The primary has space for this write already and has begun, so it can't be taken back.
    let other = UnitKey { index: 1, ..UNIT0 };
    let place = (BlockSet::from_range(9..10), vec![0; UNIT as usize]);
    pair.mirrors[0].store_mut().units.insert(other, place);
    assert_eq!(first_write(&mut pair, 1), Some(Status::Ok));
    assert!(pair.mirrors[0].suspects(pair.now).is_empty());
    assert_eq!(pair.mirrors[1].store().units[&other].1[..BLOCK as usize], [7; BLOCK as usize]);
    assert_eq!(pair.mirrors[0].in_flight() + pair.mirrors[1].in_flight(), 0);
}

#[test]
fn two_first_writes_to_a_place_at_once_are_both_refused() {
    let mut pair = settle(Pair::new([4, 1]));
    assert_eq!(pair.write(0, 0, 7), Some(Status::Ok));
    let before = pair.replies.len();
    // What the first one has reserved is no space for the second one.
    (0..2).for_each(|b| pair.ask(0, Kind::Write, 1, b * BLOCK..(b + 1) * BLOCK, 7, 0));
    pair.run();
    let answers = pair.replies[before..].iter().map(|reply| Some(reply.status));
    assert_eq!(answers.collect::<Vec<_>>(), [Some(Status::Full); 2]);
    assert!(pair.mirrors[0].suspects(pair.now).is_empty());
    pair.assert_equal();
}

#[test]
fn a_device_that_is_full_says_that_and_not_that_it_keeps_its_spare() {
    for full in [0, 1] {
        let mut pair = settle(Pair::new([4 - 3 * (1 - full), 1 + 3 * (1 - full)]));
        assert_eq!(pair.write(0, 0, 7), Some(Status::Ok));
        keep(&mut pair, full, 1, &[]);
        assert_eq!(first_write(&mut pair, 1), Some(Status::Full));
        let stats = pair.mirrors[full].stats();
        assert!(stats.full_at.is_some() && stats.only_spare_at.is_none());
        assert!(pair.mirrors[0].suspects(pair.now).is_empty());
    }
}

#[test]
fn a_thick_volume_has_its_space_also_when_only_the_spare_is_left() {
    let mut pair = settled();
    (0..2).for_each(|i| keep(&mut pair, i, 0, &[UNIT0.volume.0]));
    assert_eq!(pair.write(0, 0, 7), Some(Status::Ok));
    assert_eq!(kept(&pair), [false; 2]);
    pair.assert_equal();
}

#[test]
fn copies_take_the_spare_and_so_does_what_a_joiner_gets() {
    let mut pair = settled();
    (0..3).for_each(|b| assert_eq!(pair.write(0, b, 7), Some(Status::Ok)));
    pair.replace_second();
    keep(&mut pair, 1, 0, &[]);
    pair.connect(true);
    pair.configure(1, &[1], &[2], &[0, 1]);
    assert_eq!(first_write(&mut pair, 1), Some(Status::Ok), "it isn't turned away");
    pair.wait(500);
    pair.configure(1, &[1, 2], &[], &[0, 1]);
    pair.wait(500);
    pair.assert_equal();
    assert_eq!(kept(&pair), [false; 2]);
    assert_eq!(first_write(&mut pair, 2), Some(Status::Full), "in sync, it keeps its spare");
    pair.assert_equal();
}
