//! The commands of an I/O queue.

use super::host::*;
use super::rig::*;
use crate::shared::SIZE;
use base::Limits;
use seam::{BlockError, BlockKind};
use target::nvme::Path;
use target::reserve::Access;

const SUCCESS: u16 = 0;
const FIELD: u16 = 0x4002;
const RANGE: u16 = 0x4080;

fn io() -> Rig {
    Rig::io(&Limits::SHIPPED, Options::default())
}

fn sectors(rig: &Rig, first: usize, count: usize) -> Vec<u8> {
    rig.disk[first * 512..(first + count) * 512].to_vec()
}

#[test]
fn reads_and_writes_move_the_blocks_that_they_name() {
    for digests in [(false, false), (true, false), (false, true), (true, true)] {
        let mut rig = Rig::io(&Limits::SHIPPED, Options { digests, ..Options::default() });
        for (first, blocks) in [(0, 1), (5, 8), (100, 300), (6143, 1), (4096, 2048)] {
            let expected = sectors(&rig, first, blocks);
            let read = Command::read(3, first as u64, blocks as u32);
            assert_eq!(rig.fetch(&read), expected, "{first}");
            let data: Vec<u8> = expected.iter().map(|byte| !byte).collect();
            rig.ask(&Command::write(4, first as u64, blocks as u32));
            let r2t = rig.answer();
            rig.give(&r2t, &data, 128 << 10);
            assert_eq!(rig.answer().answer(), (4, SUCCESS, 0));
            assert_eq!(sectors(&rig, first, blocks), data);
        }
        assert_eq!((rig.session.in_flight(), rig.session.bytes()), (0, (0, 0)));
    }
}

#[test]
fn without_flow_control_data_is_the_answer() {
    let mut rig = Rig::io(&Limits::SHIPPED, Options { no_flow: true, ..Options::default() });
    rig.ask(&Command::read(3, 1, 2));
    let data = rig.answer();
    assert_eq!((data.kind(), data.header[1] & 0x0c), (7, 0x0c), "last, and success");
    assert_eq!(data.data, sectors(&rig, 1, 2));
    rig.ask(&Command::new(0x00, 4).nsid(7));
    assert_eq!(rig.answer().u16(16), 0xffff, "the head of the queue stands still");
}

#[test]
fn the_head_of_the_queue_counts_answers() {
    let mut rig = Rig::io(&Limits::TEST_MIN, Options::default());
    let heads: Vec<u16> = (0..9)
        .map(|cid| {
            rig.ask(&Command::new(0x00, cid).nsid(7));
            let answer = rig.answer();
            assert_eq!(answer.u16(18), 1, "the queue's id");
            answer.u16(16)
        })
        .collect();
    assert_eq!(heads, [2, 3, 4, 5, 6, 7, 0, 1, 2], "Connect was the first");
}

#[test]
fn data_begins_where_the_host_wants_it() {
    for align in [0, 1, 15, 31] {
        for digests in [(false, true), (true, true)] {
            let mut rig = Rig::io(&Limits::SHIPPED, Options { align, digests, no_flow: false });
            let expected = sectors(&rig, 9, 3);
            assert_eq!(rig.fetch(&Command::read(1, 9, 3)), expected); // the rig checks the place
        }
    }
}

#[test]
fn commands_that_are_wrong_do_nothing() {
    let end = (SIZE / 512) as u64;
    let table = [
        (Command::new(0x04, 1).nsid(7), 0x4001, "Write Uncorrectable"),
        (Command::new(0x0c, 1).nsid(7), 0x4001, "Verify"),
        (Command::new(0x18, 1), 0x4001, "an admin command"),
        (Command::read(1, 0, 1).nsid(8), 0x400b, "no such namespace"),
        (Command::read(1, 0, 1).nsid(0), 0x400b, "no namespace"),
        (Command::read(1, 0, 1).nsid(u32::MAX), 0x400b, "all namespaces"),
        (Command::read(1, end, 1), RANGE, "behind the end"),
        (Command::read(1, end - 1, 2), RANGE, "across the end"),
        (Command::read(1, u64::MAX, 1), RANGE, "an overflow"),
        (Command::write(1, end, 1), RANGE, "behind the end"),
        (Command::blocks(0x08, 1, end - 1, 2), RANGE, "zeroes across the end"),
        (Command::blocks(0x05, 1, end, 1).at_host(512), RANGE, "compare behind the end"),
        (Command::read(1, 0, 2049), FIELD, "more than MDTS"),
        (Command::write(1, 0, 2049), FIELD, "more than MDTS"),
        (Command::read(1, 0, 1).put(1, &[0x41]), FIELD, "a read can't be fused"),
        (Command::read(1, 0, 1).put(1, &[0x43]), FIELD, "the third of two fused"),
        (Command::read(1, 0, 1).put(1, &[0]), FIELD, "PRPs"),
        (Command::read(1, 0, 1).dword(12, 1 << 26), FIELD, "protection information"),
        (Command::write(1, 0, 1).dword(12, 1 << 20), FIELD, "a directive"),
        (Command::read(1, 0, 2).at_host(512), 0x400f, "a room that is too small"),
        (Command::write(1, 0, 2).at_host(512), 0x400f, "too little data"),
        (Command::write(1, 0, 2).at_host(2048), 0x400f, "too much data"),
        (Command::read(1, 0, 1).put(39, &[1]), 0x4011, "a read into the capsule"),
        (Command::write(1, 0, 1).put(39, &[0]), 0x4011, "another descriptor"),
        (Command::blocks(0x01, 1, 0, 1).carries(&[1; 512]).put(24, &[1]), 0x4016, "an offset"),
        (Command::blocks(0x01, 1, 0, 1).carries(&[1; 512]).put(31, &[255]), 0x4016, "an offset"),
    ];
    for (command, status, why) in table {
        let mut rig = io();
        let before = rig.disk.clone();
        assert_eq!(rig.result(&command).0, status, "{why}");
        assert!(rig.disk == before && rig.session.in_flight() == 0, "{why}");
    }
}

#[test]
fn a_namespace_may_be_read_only() {
    let writes = [
        Command::write(1, 0, 1),
        Command::blocks(0x08, 1, 0, 1),
        Command::deallocate(1, &[(0, 8)]),
    ];
    for write in &writes {
        let mut rig = io();
        rig.hosts.seven().read_only = true;
        assert_eq!(rig.result(write).0, 0x4020);
        assert_eq!(rig.result(&Command::new(0x00, 1).nsid(7)).0, SUCCESS);
    }
}

/// Base 8.20.3: all I/O commands about a namespace, those about reservations, too.
#[test]
fn a_path_that_does_not_serve_executes_no_command() {
    let keys = [[1; 8], [2; 8]].concat();
    let commands = [
        Command::new(0x00, 1).nsid(7),
        Command::write(1, 0, 1),
        Command::read(1, 0, 1),
        Command::blocks(0x05, 1, 0, 1).carries(&[1; 512]),
        Command::blocks(0x08, 1, 0, 1),
        Command::deallocate(1, &[(0, 8)]),
        Command::new(0x09, 1).nsid(7).at_host(16),
        Command::new(0x0d, 1).nsid(7).carries(&keys),
        Command::new(0x0e, 1).nsid(7).dword(10, 15).dword(11, 1).at_host(64),
        Command::new(0x11, 1).nsid(7).dword(10, 1 << 8).carries(&keys),
        Command::new(0x15, 1).nsid(7).dword(10, 1 << 8).carries(&keys[..8]),
        Command::read(1, u64::MAX, 1),
    ];
    for command in &commands {
        let mut rig = io();
        // The path comes before reservations and write protection.
        rig.hosts.seven().path = Path::Inaccessible;
        rig.hosts.seven().read_only = true;
        rig.hosts.seven().access = Access { read: false, write: false };
        let before = rig.disk.clone();
        assert_eq!(rig.result(command).0, 0x0302, "{command:?}");
        assert!(rig.disk == before && rig.told.is_empty() && rig.session.in_flight() == 0);
        // Every answered write is durable, whichever path it took.
        assert_eq!(rig.result(&Command::new(0x00, 1).nsid(u32::MAX)).0, SUCCESS, "a flush of all");
        assert_eq!(rig.result(&Command::new(0x0c, 1).nsid(7)).0, 0x4001, "Verify is not built");
        rig.hosts.seven().path = Path::Optimized;
        rig.hosts.seven().access = Access::FULL;
        drop(rig.fetch(&Command::read(1, 0, 1)));
    }
}

#[test]
fn what_another_host_has_reserved_is_refused() {
    let writes = [
        Command::write(1, 0, 1),
        Command::blocks(0x08, 1, 0, 1),
        Command::deallocate(1, &[(0, 8)]),
    ];
    for (read, write) in [(true, false), (false, false)] {
        let mut rig = io();
        rig.hosts.seven().access = Access { read, write };
        let before = rig.disk.clone();
        assert!(writes.iter().all(|write| rig.result(write).0 == 0x4083));
        match read {
            true => drop(rig.fetch(&Command::read(1, 0, 1))),
            false => assert_eq!(rig.result(&Command::read(1, 0, 1)).0, 0x4083),
        }
        assert_eq!(rig.result(&Command::new(0x00, 1).nsid(7)).0, 0x4083, "a flush");
        assert!(rig.disk == before);
    }
}

#[test]
fn a_last_part_of_a_volume_that_fills_no_block_is_not_there() {
    let mut rig = io();
    rig.hosts.seven().size = 512 * 4 + 100;
    assert_eq!(rig.result(&Command::read(1, 4, 1)).0, RANGE);
    rig.fetch(&Command::read(1, 3, 1));
}

#[test]
fn flush_is_answered_at_once() {
    let mut rig = io();
    rig.serves = false;
    for nsid in [7, u32::MAX] {
        assert_eq!(rig.result(&Command::new(0x00, 1).nsid(nsid)).0, SUCCESS);
    }
    assert_eq!(rig.result(&Command::new(0x00, 1).nsid(8)).0, 0x400b);
}

#[test]
fn write_zeroes_frees_space_if_it_may() {
    for (flag, hole) in [(0, false), (1 << 25, true)] {
        let mut rig = io();
        rig.serves = false;
        rig.ask(&Command::blocks(0x08, 1, 16, 40).dword(12, 39 | flag));
        let request = &rig.asked[0].1;
        assert_eq!(
            (request.kind, request.at, request.len),
            (BlockKind::Zero { hole }, 8192, 20480)
        );
        rig.serve(0);
        assert_eq!(rig.answer().answer(), (1, SUCCESS, 0));
    }
}

#[test]
fn compare_finds_the_same_and_other_data() {
    let mut rig = io();
    let mut data = sectors(&rig, 20, 600);
    let compare = Command::blocks(0x05, 1, 20, 600).at_host(data.len());
    let run = |rig: &mut Rig, data: &[u8]| {
        rig.ask(&compare);
        let r2t = rig.answer();
        rig.give(&r2t, data, 100_000);
        rig.answer().answer().1
    };
    assert_eq!(run(&mut rig, &data), SUCCESS);
    *data.last_mut().unwrap() ^= 1;
    assert_eq!(run(&mut rig, &data), 0x4285);
    let carried = Command::blocks(0x05, 1, 20, 1).carries(&data[..512]);
    assert_eq!(rig.result(&carried).0, SUCCESS);
    assert_eq!(rig.session.bytes(), (0, 0));
}

#[test]
fn a_compare_that_can_not_read_is_a_read_error() {
    let mut rig = io();
    rig.serves = false;
    rig.ask(&Command::blocks(0x05, 1, 0, 1).carries(&[0; 512]));
    rig.fail(0, BlockError::Media);
    assert_eq!(rig.answer().answer().1, 0x4281);
}

#[test]
fn deallocate_frees_all_ranges_or_none() {
    let mut rig = io();
    let end = (SIZE / 512) as u64;
    rig.serves = false;
    rig.ask(&Command::deallocate(1, &[(8, 8), (0, 0), (end, 0), (100, 3)]));
    let asked: Vec<_> = rig.asked.iter().map(|(_, r)| (r.kind, r.at, r.len)).collect();
    let hole = BlockKind::Zero { hole: true };
    assert_eq!(asked, [(hole, 4096, 4096), (hole, 51200, 1536)]);
    rig.serve(1);
    assert!(rig.answers().is_empty());
    rig.serve(0);
    assert_eq!(rig.answer().answer(), (1, SUCCESS, 0));
    let before = rig.disk.clone();
    for bad in [(end, 1), (u64::MAX, 1), (0, u32::MAX)] {
        assert_eq!(rig.result(&Command::deallocate(1, &[(0, 8), bad])).0, RANGE);
    }
    assert!(rig.disk == before && rig.asked.is_empty());
    // Linux sends room for all ranges, and says how many there are.
    let mut list = [0xff; 4096];
    list[..16].copy_from_slice(&[0, 0, 0, 0, 8, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0]);
    let one = Command::deallocate(3, &[(0, 0)]).carries(&list);
    rig.ask(&one);
    assert_eq!((rig.asked.len(), rig.asked[0].1.at, rig.asked[0].1.len), (1, 8192, 4096));
    rig.serve(0);
    assert_eq!(rig.answer().answer(), (3, SUCCESS, 0));
    for (ranges, sent) in [(2, 16), (1, 4112)] {
        let command = Command::deallocate(4, &vec![(0, 8); ranges]).u32(32, sent);
        assert_eq!(rig.result(&command).0, 0x400f, "{sent} bytes");
    }
    // Other attributes are hints.
    let hint = Command::deallocate(1, &[(0, 8)]).dword(11, 3);
    assert_eq!(rig.result(&hint).0, SUCCESS);
    // All 256 ranges fit into a capsule; so many requests are made at once.
    let all: Vec<_> = (0..256).map(|i| (i * 8, 8)).collect();
    rig.ask(&Command::deallocate(2, &all));
    assert_eq!(rig.asked.len(), 8);
    while !rig.asked.is_empty() {
        rig.serve(0);
        assert!(rig.asked.len() <= 8);
    }
    assert_eq!(rig.answer().answer(), (2, SUCCESS, 0));
}

#[test]
fn deallocate_in_parts_ends_early_when_it_fails_or_takes_long() {
    let big = |rig: &mut Rig| {
        rig.serves = false;
        rig.tick(100);
        let all: Vec<_> = (0..256).map(|i| (i * 8, 8)).collect();
        rig.ask(&Command::deallocate(2, &all));
    };
    let mut rig = io();
    big(&mut rig);
    rig.fail(0, BlockError::Lost);
    assert_eq!(rig.asked.len(), 7, "no more after a failure");
    while !rig.asked.is_empty() {
        rig.serve(0);
    }
    assert_eq!(rig.answer().answer(), (2, 0x4280, 0));
    let mut rig = io();
    big(&mut rig);
    rig.tick(110);
    while !rig.asked.is_empty() {
        rig.serve(0);
    }
    assert_eq!(rig.answer().answer(), (2, SUCCESS, 0), "it is a hint");
    assert_ne!(rig.disk[255 * 4096], 0);
}

#[test]
fn errors_of_the_volume_have_their_status() {
    let table = [
        (BlockError::NoSuchVolume, 0x400b, 0x400b),
        (BlockError::ReadOnly, 0x4020, 0x4020),
        (BlockError::Lost, 0x4281, 0x4280),
        (BlockError::Media, 0x4281, 0x4280),
        (BlockError::Busy, 0x0821, 0x0821),
        (BlockError::TimedOut, 0x1882, 0x1882),
        (BlockError::Full, 0x1882, 0x1882),
        (BlockError::Superseded, 0x0302, 0x0302),
        (BlockError::Elsewhere, 0x0302, 0x0302),
    ];
    for (error, reading, writing) in table {
        let mut rig = io();
        rig.serves = false;
        rig.ask(&Command::read(1, 0, 8));
        rig.fail(0, error);
        assert_eq!(rig.answer().answer(), (1, reading, 0), "{error}");
        rig.ask(&Command::blocks(0x01, 2, 0, 8).carries(&[0; 4096]));
        rig.fail(0, error);
        assert_eq!(rig.answer().answer(), (2, writing, 0), "{error}");
        assert!(!rig.session.is_closed(), "other namespaces go on");
    }
    // A host that does not understand delays gets none.
    let mut rig = Rig::set_up(&Limits::SHIPPED, Options::default());
    rig.hosts.controller = Some(target::nvme::Controller { delays: false, ..controller() });
    rig.connect(1, CNTLID, &target::ident::nqn(CLUSTER), Options::default());
    rig.serves = false;
    rig.ask(&Command::read(1, 0, 8));
    rig.fail(0, BlockError::TimedOut);
    assert_eq!(rig.answer().answer(), (1, 0x0082, 0));
}

#[test]
fn a_volume_that_returns_too_little_is_a_read_error() {
    let mut rig = io();
    rig.serves = false;
    rig.ask(&Command::read(1, 0, 8));
    let (tag, _) = rig.asked.remove(0);
    rig.call(|session, _, pool, out| session.done(tag, Ok(pool.zeroed(512)), pool, out));
    assert_eq!(rig.answer().answer(), (1, 0x4281, 0));
}

#[test]
fn commands_that_free_space_take_no_more_places_than_writes() {
    let mut rig = io();
    rig.serves = false;
    let ranges: Vec<(u64, u32)> = (0..32).map(|i| (i * 8, 8)).collect();
    (1..=100).for_each(|cid| rig.ask(&Command::deallocate(cid, &ranges)));
    assert!(rig.asked.len() <= Limits::SHIPPED.nvme_requests as usize, "{}", rig.asked.len());
}
