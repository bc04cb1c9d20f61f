//! Data of writes: in capsules, by R2T, in any pieces, with digests, and what breaks the rules.

use super::host::*;
use super::rig::*;
use base::{Limits, VolumeId};
use seam::BlockError;

fn io() -> Rig {
    Rig::io(&Limits::SHIPPED, Options::default())
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 512 + i * 5) as u8).collect()
}

#[test]
fn a_capsule_carries_16_kib() {
    let mut rig = io();
    let data = bytes(16 << 10);
    assert_eq!(rig.result(&Command::blocks(0x01, 1, 3, 32).carries(&data)).0, 0);
    assert_eq!(rig.disk[1536..][..16 << 10], data);
    let mut rig = io();
    rig.ask(&Command::blocks(0x01, 1, 3, 33).carries(&bytes(33 * 512)));
    assert_eq!(rig.fault(), (5, 0), "a longer one is no PDU");
    // An admin queue carries less: its capsules are cut alike, and refused.
    let mut rig = Rig::admin(&Limits::SHIPPED, Options::default());
    let mut long = bytes(512);
    long.resize(8193, 0);
    let command = Command::set_feature(1, 0x16, 0).carries(&long).u32(32, 512);
    assert_eq!(rig.result(&command).0, 0x400f);
}

#[test]
fn data_may_begin_anywhere_in_a_capsule() {
    let mut rig = io();
    let data = bytes(1024);
    let command = Command::blocks(0x01, 1, 0, 1).carries(&data).u32(32, 512).u32(24, 512);
    assert_eq!(rig.result(&command).0, 0);
    assert_eq!(rig.disk[..512], data[512..]);
}

#[test]
fn one_r2t_asks_for_everything_and_pieces_go_on_as_they_come() {
    let mut rig = io();
    rig.serves = false;
    rig.ask(&Command::write(1, 0, 512));
    let r2t = rig.answer();
    let data = bytes(512 * 512);
    let ids = r2t.ids();
    rig.send(&Request::host_data(ids, 0, false, &data[..65536]));
    assert_eq!((rig.asked.len(), rig.asked[0].1.len), (1, 65536), "it is not gathered");
    rig.serve(0);
    rig.send(&Request::host_data(ids, 65536, true, &data[65536..]));
    rig.serve(0);
    assert_eq!(rig.answer().answer(), (1, 0, 0));
    assert_eq!(rig.disk[..data.len()], data);
}

#[test]
fn a_write_in_too_many_pieces_fails_and_is_not_done_after_its_answer() {
    let limits = Limits { nvme_requests: 4, ..Limits::SHIPPED };
    let mut rig = Rig::io(&limits, Options::default());
    rig.serves = false;
    rig.ask(&Command::write(1, 0, 8));
    let ids = rig.answer().ids();
    for i in 0..8 {
        let part = [i as u8; 512];
        rig.send(&Request::host_data(ids, i * 512, i == 7, &part));
        if i == 5 {
            rig.serve(0); // There is room again, and it is too late.
        }
    }
    assert_eq!((rig.asked.len(), rig.session.requests()), (3, 3));
    // Other commands have room of their own.
    rig.ask(&Command::read(2, 0, 1));
    rig.serve(3);
    assert_eq!(rig.answers().len(), 2);
    (0..3).for_each(|_| rig.serve(0));
    assert_eq!(rig.answer().answer(), (1, 0x0821, 0));
    assert_eq!((rig.session.requests(), rig.session.bytes()), (0, (0, 0)));
}

#[test]
fn data_is_found_by_the_tag_of_the_r2t() {
    let mut rig = io();
    rig.ask(&Command::write(1, 0, 1));
    rig.ask(&Command::write(2, 1, 1));
    let r2ts = rig.answers();
    let [(one, tag), (two, other)] = [r2ts[0].ids(), r2ts[1].ids()];
    assert_eq!((one, two, tag == other), (1, 2, false));
    rig.send(&Request::host_data((two, other), 0, true, &[2; 512]));
    assert_eq!(rig.answer().answer(), (2, 0, 0));
    rig.send(&Request::host_data((one, tag), 0, true, &[1; 512]));
    assert_eq!(rig.answer().answer(), (1, 0, 0));
    assert_eq!((rig.disk[0], rig.disk[512]), (1, 2));
    rig.send(&Request::host_data((one, tag), 0, true, &[9; 512]));
    assert_eq!(rig.fault(), (1, 10), "its command is answered");
}

#[test]
fn data_with_the_id_of_another_command_ends_the_link_and_is_not_written() {
    for id in [2, 3] {
        let mut rig = io();
        let before = rig.disk.clone();
        rig.ask(&Command::write(1, 0, 1));
        rig.ask(&Command::write(2, 1, 1));
        let (_, tag) = rig.answers()[0].ids();
        rig.send(&Request::host_data((id, tag), 0, true, &[9; 512]));
        assert_eq!(rig.fault(), (1, 8), "{id}");
        assert!(rig.disk == before);
    }
}

#[test]
fn data_in_odd_pieces_is_put_together() {
    for part in [1, 100, 511, 513, 700, 5000] {
        let mut rig = io();
        let data = bytes(9 * 512);
        rig.ask(&Command::write(1, 2, 9));
        let r2t = rig.answer();
        rig.give(&r2t, &data, part);
        assert_eq!(rig.answer().answer(), (1, 0, 0), "{part}");
        assert_eq!(rig.disk[1024..][..data.len()], data);
    }
}

#[test]
fn data_that_was_not_asked_for_ends_the_link() {
    // What is sent for a write of 8 blocks: offset, length, last; the error, and the field.
    let table = [
        (512, 512, false, (4, 0)),      // not the start
        (0, 4608, true, (4, 0)),        // more than was asked for
        (0, 512, true, (2, 0)),         // an end that is none
        (0, 4096, false, (2, 0)),       // no end where it has to be
        (u32::MAX, 4096, true, (4, 0)), // an overflow
    ];
    for (offset, len, last, fault) in table {
        let mut rig = io();
        rig.ask(&Command::write(1, 0, 8));
        let ids = rig.answer().ids();
        rig.send(&Request::host_data(ids, offset, last, &bytes(len)));
        assert_eq!(rig.fault(), fault, "{offset}, {len}");
    }
    let mut rig = io();
    rig.ask(&Command::write(1, 0, 8));
    let ids = rig.answer().ids();
    rig.send(&Request::host_data(ids, 0, true, &bytes(4096)).put(16, &[1]));
    assert_eq!(rig.fault(), (1, 16), "another length than that of the PDU");
    let mut rig = io();
    rig.serves = false;
    rig.ask(&Command::read(1, 0, 8));
    let ids = (1, 0);
    rig.send(&Request::host_data(ids, 0, true, &bytes(4096)));
    assert_eq!(rig.fault(), (1, 10), "a read wants none");
}

#[test]
fn damaged_data_fails_its_command_and_nothing_else() {
    let digests = (true, true);
    let mut rig = Rig::io(&Limits::SHIPPED, Options { digests, ..Options::default() });
    let before = rig.disk.clone();
    let mut carried = Command::blocks(0x01, 1, 0, 1).carries(&[9; 512]);
    carried.damaged = true;
    assert_eq!(rig.result(&carried).0, 0x0022);
    rig.ask(&Command::write(2, 8, 2));
    let ids = rig.answer().ids();
    let mut damaged = Request::host_data(ids, 0, false, &[9; 512]);
    damaged.damaged = true;
    rig.send(&damaged);
    assert!(rig.answers().is_empty(), "the rest is still to come");
    rig.send(&Request::host_data(ids, 512, true, &[9; 512]));
    assert_eq!(rig.answer().answer(), (2, 0x0022, 0));
    assert!(rig.disk == before);
    assert_eq!((rig.session.in_flight(), rig.session.bytes()), (0, (0, 0)));
    rig.fetch(&Command::read(3, 0, 1));
}

#[test]
fn what_was_asked_for_is_bounded_and_commands_take_turns() {
    let mut rig = io();
    rig.serves = false;
    for cid in 0..6 {
        rig.ask(&Command::write(cid, 0, 2048));
    }
    let r2ts = rig.answers();
    assert_eq!(r2ts.len(), 4, "4 MiB");
    assert_eq!(rig.session.bytes(), (4 << 20, 0));
    let data = bytes(1 << 20);
    rig.give(&r2ts[1], &data, 256 << 10);
    assert!(rig.answers().is_empty(), "the writes are not done");
    for _ in 0..4 {
        rig.serve(0);
    }
    let next = rig.answers();
    assert_eq!((next[0].kind(), next[0].u16(8)), (9, 4), "the oldest that waits");
    assert_eq!((next[1].answer(), next.len()), ((1, 0, 0), 2));
    assert_eq!(rig.session.bytes(), (4 << 20, 0));
}

#[test]
fn reads_are_bounded_and_take_turns() {
    let mut rig = io();
    rig.serves = false;
    for cid in 0..6 {
        rig.ask(&Command::read(cid, 0, 2048));
    }
    assert_eq!((rig.asked.len(), rig.session.bytes()), (4, (0, 4 << 20)));
    rig.serve(2);
    assert_eq!(rig.asked.len(), 4);
    while !rig.asked.is_empty() {
        rig.serve(0);
    }
    let done: Vec<u16> =
        rig.answers().iter().filter(|pdu| pdu.kind() == 5).map(|pdu| pdu.answer().0).collect();
    assert_eq!(done, [2, 0, 1, 3, 4, 5]);
    assert_eq!(rig.session.bytes(), (0, 0));
}

#[test]
fn commands_that_wait_for_a_turn_are_answered_in_time() {
    let mut rig = io();
    rig.serves = false;
    rig.tick(0);
    for cid in 0..5 {
        rig.ask(&Command::write(cid, 0, 2048));
        rig.ask(&Command::read(10 + cid, 0, 2048));
    }
    rig.answers();
    rig.tick(19);
    assert!(rig.answers().is_empty());
    rig.tick(20);
    let mut late: Vec<_> = rig.answers().iter().map(Pdu::answer).collect();
    late.sort_unstable();
    assert_eq!(late, [(4, 0x1882, 0), (14, 0x1882, 0)], "the others are the owner's");
    assert_eq!(rig.session.since(rig.asked[0].0), Some(base::Time::ZERO));
}

#[test]
fn the_first_failure_in_the_data_decides_and_no_data_follows_it() {
    let mut rig = io();
    rig.serves = false;
    rig.ask(&Command::write(1, 0, 32));
    let ids = rig.answer().ids();
    for i in 0..3 {
        rig.send(&Request::host_data(ids, i * 4096, false, &[7; 4096]));
    }
    rig.fail(1, BlockError::TimedOut);
    rig.fail(0, BlockError::Media);
    rig.send(&Request::host_data(ids, 12288, true, &[7; 4096]));
    assert_eq!(rig.asked.len(), 1, "the last part is not written");
    assert!(rig.answers().is_empty());
    rig.serve(0);
    assert_eq!(rig.answer().answer(), (1, 0x4280, 0));
    assert_eq!(rig.session.bytes(), (0, 0));
}

#[test]
fn a_fence_ends_the_commands_of_its_volume() {
    for (there, status) in [(true, 0x0821), (false, 0x400b)] {
        let mut rig = io();
        rig.serves = false;
        let fence = |rig: &mut Rig, id| {
            rig.call(|session, _, pool, out| session.fenced(VolumeId(id), there, pool, out));
        };
        // One of each kind under way, and reads and writes that wait for their turn.
        (0..4).for_each(|cid| rig.ask(&Command::write(cid, 0, 2048)));
        (4..8).for_each(|cid| rig.ask(&Command::read(cid, 0, 2048)));
        rig.ask(&Command::write(8, 0, 8));
        rig.ask(&Command::read(9, 0, 8));
        rig.ask(&Command::blocks(0x01, 10, 0, 1).carries(&[9; 512]));
        rig.ask(&Command::blocks(0x05, 11, 0, 1).carries(&[9; 512]));
        rig.ask(&Command::blocks(0x08, 12, 0, 8));
        rig.ask(&Command::deallocate(13, &[(0, 8); 40]));
        let r2ts = rig.answers();
        fence(&mut rig, 8);
        assert!(rig.answers().is_empty(), "another volume");
        fence(&mut rig, 7);
        let ended: Vec<_> = rig.answers().iter().map(Pdu::answer).collect();
        assert_eq!(ended, [(8, status, 0), (9, status, 0)], "nothing of them is under way");
        let asked = rig.asked.len();
        for r2t in &r2ts {
            rig.give(r2t, &vec![9; 1 << 20], 256 << 10);
        }
        assert_eq!(rig.asked.len(), asked, "nothing new is written");
        while !rig.asked.is_empty() {
            rig.serve(0);
        }
        let mut ended: Vec<_> = rig.answers().iter().map(Pdu::answer).collect();
        ended.sort_unstable();
        let all: Vec<_> = (0..8).chain(10..14).map(|cid| (cid, status, 0)).collect();
        assert_eq!(ended, all);
        assert_eq!((rig.session.in_flight(), rig.session.bytes()), (0, (0, 0)));
    }
}

#[test]
fn small_pieces_keep_no_more_than_one_buffer_per_command() {
    let mut rig = io();
    rig.serves = false;
    rig.ask(&Command::write(1, 0, 512));
    let ids = rig.answer().ids();
    for i in 0..512 {
        let pdu = Request::host_data(ids, i * 512, i == 511, &[7; 512]).bytes((false, false));
        rig.call(|session, hosts, pool, out| {
            let received = pool.alloc(256 << 10);
            session.frame(&pdu[..24], received.slice(0..512), hosts, pool, out);
        });
    }
    assert_eq!(rig.asked.len(), 512);
    assert!(rig.pool.used() <= 136 * (256 << 10) + 512 * 4096, "{} bytes", rig.pool.used());
}
