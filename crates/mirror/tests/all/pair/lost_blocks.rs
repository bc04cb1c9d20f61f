//! Lost blocks: reading one is an error until it is written.

use super::*;

/// The first two units of volume 1 have lost blocks in the group.
fn with_losses() -> Pair {
    let mut pair = settled();
    set(&mut pair, 2);
    pair
}

fn set(pair: &mut Pair, units: u32) {
    for mirror in &mut pair.mirrors {
        mirror.set_lost_units([((VolumeId(1), GROUP), units)].into());
    }
}

fn ask(pair: &mut Pair, kind: Kind, unit: u32, range: Range<u32>) -> Status {
    pair.client(0, kind, unit, range, 7, 0).expect("it is answered")
}

#[test]
fn blocks_are_errors_until_they_are_written_whole() {
    let mut pair = with_losses();
    assert_eq!(ask(&mut pair, Kind::Read, 1, 0..BLOCK), Status::Media);
    let part = 512..BLOCK + 512;
    assert_eq!(ask(&mut pair, Kind::Write, 1, part.clone()), Status::Media);
    assert!(pair.mirrors.iter().all(|m| m.store().units.is_empty()), "nothing was changed");
    assert_eq!(ask(&mut pair, Kind::Write, 1, 0..2 * BLOCK), Status::Ok);
    assert_eq!(ask(&mut pair, Kind::Read, 1, part.clone()), Status::Ok);
    assert_eq!(ask(&mut pair, Kind::Write, 1, part), Status::Ok, "it has all of these blocks");
    assert_eq!(ask(&mut pair, Kind::Read, 1, 0..3 * BLOCK), Status::Media);
    assert_eq!(ask(&mut pair, Kind::Read, 2, 0..BLOCK), Status::Ok, "it has no lost blocks");
    pair.assert_equal();
    set(&mut pair, 0);
    assert_eq!(ask(&mut pair, Kind::Read, 1, 0..3 * BLOCK), Status::Ok, "zeros after all");
}

#[test]
fn zeros_are_data() {
    let mut pair = with_losses();
    assert_eq!(ask(&mut pair, Kind::Write, 0, 0..BLOCK), Status::Ok);
    assert_eq!(ask(&mut pair, Kind::Zero, 0, 0..4 * BLOCK), Status::Ok);
    assert_eq!(ask(&mut pair, Kind::Read, 0, 0..4 * BLOCK), Status::Ok);
    assert!(pair.bodies.last().unwrap().iter().all(|byte| *byte == 0));
    assert_eq!(ask(&mut pair, Kind::Zero, 0, 0..5 * BLOCK + 512), Status::Media);
    pair.assert_equal();
}

#[test]
fn all_blocks_count_as_allocated() {
    let mut pair = with_losses();
    for (unit, bits) in [(1, 0xff), (2, 0)] {
        assert_eq!(ask(&mut pair, Kind::Extents, unit, 0..8 * BLOCK), Status::Ok);
        assert_eq!(pair.bodies.last().unwrap()[0], bits);
    }
}

#[test]
fn a_copy_has_the_same_lost_blocks() {
    let mut pair = with_losses();
    assert_eq!(ask(&mut pair, Kind::Write, 0, 0..BLOCK), Status::Ok);
    pair.replace_second();
    set(&mut pair, 2);
    pair.connect(true);
    pair.configure(1, &[1], &[2], &[0, 1]);
    pair.wait(2000);
    pair.configure(2, &[1, 2], &[], &[0, 1]);
    pair.wait(2000);
    assert_eq!(pair.client(1, Kind::Read, 0, 0..BLOCK, 0, 0), Some(Status::Ok));
    assert_eq!(pair.client(1, Kind::Read, 0, 0..2 * BLOCK, 0, 0), Some(Status::Media));
    pair.assert_equal();
}

#[test]
fn zeros_that_are_data_share_one_buffer() {
    let mut pair = settle(Pair::new([40, 40]));
    set(&mut pair, 40);
    pair.connect(false);
    let before = pair.outs[0].pool().used();
    (0..40).for_each(|unit| pair.ask(0, Kind::Zero, unit, 0..UNIT, 0, 0));
    let used = pair.outs[0].pool().used() - before;
    assert!(used <= 2 * UNIT as usize, "{used} bytes of zeros");
    pair.connect(true);
    assert_eq!(pair.client(0, Kind::Zero, 0, 512..3 * BLOCK, 0, 0), Some(Status::Ok));
    pair.wait(1000);
    assert_eq!(pair.outs[0].pool().used(), before, "it is given back");
    let ok = |reply: &Reply| reply.status == Status::Ok;
    assert!(pair.replies.len() == 41 && pair.replies.iter().all(ok), "their sums fit");
    pair.assert_equal();
}
