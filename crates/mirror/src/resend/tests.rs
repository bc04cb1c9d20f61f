//! Tables of blocks that are sent again.

use super::*;
use crate::op::WholeBlocks;
use crate::sync::Phase;
use crate::testing::{GROUP, NOW, Rig, UNIT, bits, blocks, named, op, write};
use base::{SECTOR, UNIT as UNIT_BYTES};
use seam::BufPool;
use wire::Frame;

type Change = fn(&mut Rig, u64);

/// Handles this replica, which could not do the operation.
fn resend(rig: &mut Rig, key: u64, device: u32) {
    let Rig { shard, flows, out, .. } = rig;
    flows.peers.resend(shard, NOW, key, bits(&[device]), out);
}

fn whole(rig: &mut Rig, write: u64) -> &mut WholeBlocks {
    &mut rig.op(write).write_mut().unwrap().whole
}

/// Adds the operation that sends the blocks of a write whole to device 2. The write is done here.
fn send_whole_of(rig: &mut Rig, write: u64) -> u64 {
    let key = read_whole_of(rig, write);
    let lsn = rig.primary().enter(key, bits(&[2]));
    (rig.op(key).lsn, rig.op(key).local) = (lsn, Local::Done);
    key
}

/// The same, while the blocks are read.
fn read_whole_of(rig: &mut Rig, write: u64) -> u64 {
    rig.op(write).local = Local::Done;
    whole(rig, write).add(bits(&[2]));
    let sent = whole(rig, write).begin();
    rig.shard.ops.insert(Op { client: named(9), sent, ..op(Work::Whole { of: Some(write) }) })
}

/// A write that was sent to device 2, which is in sync, and to the joiner 4, which is being filled.
#[test]
fn a_replica_that_counts_gets_whole_blocks_and_a_joiner_gets_copies() {
    let (none, two, four) = (bits(&[]), bits(&[2]), bits(&[4]));
    let job = |local: Local| move |rig: &mut Rig, key: u64| rig.op(key).local = local;
    let (runs, done) = (job(Local::Running), job(Local::Done));
    let reserved = |rig: &mut Rig, key: u64| rig.op(key).reserved = true;
    let acked = |device: u32| {
        move |rig: &mut Rig, key: u64| {
            rig.op(key).local = Local::Running;
            rig.op(key).acked.insert(bits(&[device]));
        }
    };
    let (acked2, acked4) = (acked(2), acked(4));
    let sent = |rig: &mut Rig, key: u64| whole(rig, key).sent.insert(bits(&[2]));
    let limbo = |rig: &mut Rig, key: u64| {
        rig.op(key).local = Local::Running;
        rig.sync().phase = Phase::Admit;
    };
    type Before<'a> = &'a dyn Fn(&mut Rig, u64);
    // What is needed whole, what was sent whole, what has answered, what is copied again.
    type Row<'a> = (&'a str, u32, Before<'a>, [ReplicaSet; 3], bool, &'a str);
    let rows: &[Row] = &[
        ("2, while it runs here", 2, &runs, [two, none, none], false, ""),
        ("2, when it is done here", 2, &done, [none, two, none], false, "Read 0+4096"),
        ("2, before it began here", 2, &reserved, [two, none, none], false, "Write 0+4096"),
        ("2, which has done it", 2, &acked2, [none, none, two], false, ""),
        ("2, which was sent them", 2, &sent, [none, two, none], false, ""),
        ("4, while it runs here", 4, &runs, [none, none, four], true, ""),
        ("4, which has done it", 4, &acked4, [none, none, four], false, ""),
        ("4 in limbo", 4, &limbo, [four, none, none], false, ""),
    ];
    for (name, device, before, [needed, was_sent, answered], copied, jobs) in rows {
        let mut rig = Rig::filling(&[2], 4);
        let key = rig.send(op(write()), &[2, 4]);
        before(&mut rig, key);
        resend(&mut rig, key, *device);
        assert_eq!((rig.left(), &rig.jobs()[..]), ("".into(), *jobs), "{name}");
        let (acked, blocks) = (rig.op(key).acked, *whole(&mut rig, key));
        assert_eq!([blocks.needed, blocks.sent, acked], [*needed, *was_sent, *answered], "{name}");
        assert_eq!(!rig.sync().todo.is_empty(), *copied, "{name}");
    }
}

#[test]
fn a_write_ends_when_only_a_joiner_could_not_do_it() {
    let mut rig = Rig::filling(&[2], 4);
    let key = rig.send(op(write()), &[2, 4]);
    (rig.op(key).local, rig.op(key).acked) = (Local::Done, bits(&[2]));
    resend(&mut rig, key, 4);
    assert_eq!((&rig.left()[..], rig.is_over(key)), ("Ok", true));
    assert_eq!(rig.sync().todo.blocks(UNIT), blocks(0..1));
    assert!(rig.primary().stream.is_empty());
}

/// A copy that the joiner could not write ends, and its blocks are copied again.
#[test]
fn a_copy_that_could_not_be_written_is_made_again() {
    for (acked, ends) in [(false, true), (true, false)] {
        let mut rig = Rig::filling(&[2], 4);
        let key = rig.send_copy(&[4]);
        if acked {
            rig.op(key).acked = bits(&[4]);
        }
        resend(&mut rig, key, 4);
        assert_eq!((rig.is_over(key), rig.sync().is_idle()), (ends, ends));
        assert_eq!(rig.sync().todo.blocks(UNIT), if ends { blocks(0..1) } else { blocks(0..0) });
    }
}

#[test]
fn whole_blocks_that_could_not_be_written_are_read_and_sent_again() {
    for acked in [false, true] {
        let mut rig = Rig::leading(&[2], &[]);
        let write = rig.send(op(write()), &[2]);
        let key = send_whole_of(&mut rig, write);
        if acked {
            rig.op(key).acked = bits(&[2]);
        }
        resend(&mut rig, key, 2);
        let again = if acked { "" } else { "Read 0+4096" };
        assert_eq!((rig.is_over(key), &rig.jobs()[..]), (!acked, again));
        let WholeBlocks { needed, sent, running } = *whole(&mut rig, write);
        assert_eq!((needed, sent, running), (bits(&[]), bits(&[2]), true));
    }
}

/// The secondary's scrubber asks again.
#[test]
fn whole_blocks_for_a_scrubber_are_sent_once() {
    let mut rig = Rig::leading(&[2], &[]);
    let key = rig.send(op(Work::Whole { of: None }), &[2]);
    resend(&mut rig, key, 2);
    assert_eq!((rig.is_over(key), rig.jobs(), rig.left()), (true, "".into(), "".into()));
    assert!(rig.primary().stream.is_empty() && rig.replica().locks.is_empty());
}

#[test]
fn the_blocks_of_a_write_are_read_whole() {
    for (at, len, expected) in [
        (0, SECTOR, "Read 0+4096"),
        (SECTOR, BLOCK, "Read 0+8192"),
        (BLOCK - SECTOR, SECTOR, "Read 0+4096"),
        (2 * BLOCK, BLOCK, "Read 8192+4096"),
        (UNIT_BYTES - SECTOR, SECTOR, "Read 1044480+4096"),
    ] {
        let mut rig = Rig::leading(&[2], &[]);
        let key = rig.send(Op { at, len, ..op(write()) }, &[2]);
        rig.op(key).local = Local::Done;
        resend(&mut rig, key, 2);
        assert_eq!(rig.jobs(), expected, "{at}+{len}");
    }
}

/// What happens to whole blocks that were read, and to the write that they belong to.
#[test]
fn whole_blocks_go_out_under_the_name_of_the_write_while_it_counts() {
    let rows: &[(&str, bool, Change, &str, &str, bool)] = &[
        ("of a write", true, |_, _| {}, "Replicate 2 to 2", "", false),
        ("for a scrubber", false, |_, _| {}, "Replicate 1 to 2", "", false),
        ("of an epoch that ends", true, |r, _| r.end_soon(), "", "Enter", false),
        ("the same, for a scrubber", false, |r, _| r.end_soon(), "", "Enter", false),
        ("of a deleted volume", true, |r, _| r.delete_volume(), "NoVolume", "", true),
        ("the same, for a scrubber", false, |r, _| r.delete_volume(), "", "", false),
    ];
    for (name, of_write, change, left, tasks, write_ends) in rows {
        let mut rig = Rig::leading(&[2], &[]);
        let write = of_write.then(|| rig.send(op(write()), &[2]));
        let key = match write {
            Some(write) => read_whole_of(&mut rig, write),
            None => rig.hold(Op { sent: bits(&[2]), ..op(Work::Whole { of: None }) }),
        };
        change(&mut rig, key);
        let data = BufPool::new(0).zeroed(BLOCK as usize);
        rig.shard.send_whole(key, data, Some(77), &mut rig.out);
        let frames = rig.frames();
        let texts: alloc::vec::Vec<_> =
            frames.iter().map(|(link, frame, _)| crate::testing::text(*link, frame)).collect();
        assert_eq!((&texts.join(", ")[..], &rig.tasks()[..]), (*left, *tasks), "{name}");
        let sends = left.starts_with("Replicate");
        assert_eq!(rig.is_over(key), !sends, "{name}");
        assert_eq!(write.is_some_and(|write| rig.is_over(write)), *write_ends, "{name}");
        if let Some((_, Frame::Replicate(m), _)) = frames.first() {
            let client = if *of_write { named(9) } else { Default::default() };
            assert_eq!((m.client, rig.op(key).body_crc), (client, Some(77)), "{name}");
        }
    }
}

#[test]
fn a_write_goes_on_when_all_that_needed_its_blocks_whole_have_them() {
    for (acked, left, repaired) in [(false, "", 0), (true, "Ok", u64::from(BLOCK))] {
        let mut rig = Rig::leading(&[2], &[]);
        let write = rig.send(op(write()), &[2]);
        let key = send_whole_of(&mut rig, write);
        if acked {
            rig.op(key).acked = bits(&[2]);
        }
        rig.shard.check_whole(NOW, key, Some(write), &mut rig.out);
        assert_eq!((&rig.left()[..], rig.shard.stats.repaired), (left, repaired));
        assert_eq!([key, write].map(|key| rig.is_over(key)), [acked; 2]);
        assert_eq!(rig.primary().stream.is_empty(), acked);
    }
}

/// The secondary counts these blocks as repaired.
#[test]
fn whole_blocks_for_a_scrubber_end_when_they_are_there() {
    for acked in [false, true] {
        let mut rig = Rig::leading(&[2], &[]);
        let key = rig.send(op(Work::Whole { of: None }), &[2]);
        if acked {
            rig.op(key).acked = bits(&[2]);
        }
        rig.shard.check_whole(NOW, key, None, &mut rig.out);
        assert_eq!((rig.is_over(key), rig.replica().locks.is_empty()), (acked, acked));
        assert_eq!((rig.shard.stats.repaired, rig.primary().stream.is_empty()), (0, acked));
    }
}

#[test]
fn blocks_for_a_joiner_are_copied_before_it_is_sealed() {
    for (phase, expected, copies) in [
        (Phase::Ask, Phase::Ask, false),
        (Phase::Copy, Phase::Copy, true),
        (Phase::Drain, Phase::Copy, true),
    ] {
        let mut rig = Rig::filling(&[2], 4);
        rig.sync().phase = phase;
        let waits = rig.hold(op(write()));
        rig.shard.replicas.block(&mut rig.shard.ops, GROUP, waits);
        let Rig { shard, flows, out, .. } = &mut rig;
        flows.peers.copy_again(shard, NOW, GROUP, UNIT, blocks(3..5), out);
        assert_eq!((rig.sync().phase, rig.sync().todo.blocks(UNIT)), (expected, blocks(3..5)));
        assert_eq!(!rig.flows.peers.copies.none_wait(), copies, "{phase:?}");
        let goes_on = phase == Phase::Drain;
        assert_eq!(rig.ready().contains(&waits), goes_on, "writes have waited for the seal");
    }
}
