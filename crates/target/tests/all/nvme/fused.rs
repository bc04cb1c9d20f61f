//! A Compare and a Write that are fused: one step of the volume, and what becomes of one without
//! the other.

use super::host::*;
use super::rig::*;
use base::{Limits, VolumeId};
use seam::{BlockError, BlockKind};
use target::nvme::Path;
use target::reserve::Access;

const FIELD: u16 = 0x4002;
const FAILED: u16 = 0x0009;
const MISSING: u16 = 0x400a;
const FIRST: u8 = 0x41;
const SECOND: u8 = 0x42;

fn io() -> Rig {
    Rig::io(&Limits::SHIPPED, Options::default())
}

fn compare(cid: u16, first: u64, data: &[u8]) -> Command {
    Command::blocks(0x05, cid, first, data.len() as u32 / 512).carries(data).put(1, &[FIRST])
}

fn write(cid: u16, first: u64, data: &[u8]) -> Command {
    Command::blocks(0x01, cid, first, data.len() as u32 / 512).carries(data).put(1, &[SECOND])
}

/// The same, with data that the target has to ask for.
fn later(command: Command) -> Command {
    let len = command.data.len();
    Command { data: Vec::new(), ..command.at_host(len) }
}

/// Id and status of each answer that has come.
fn answers(rig: &mut Rig) -> Vec<(u16, u16)> {
    let all = rig.answers();
    all.iter().filter(|pdu| pdu.kind() == 5).map(|a| (a.answer().0, a.answer().1)).collect()
}

#[test]
fn the_write_is_done_if_the_compare_has_found_its_data() {
    for digests in [(false, false), (true, true)] {
        let mut rig = Rig::io(&Limits::SHIPPED, Options { digests, ..Options::default() });
        for (first, blocks) in [(0, 1), (7, 1), (8, 8), (21, 3)] {
            let old = rig.disk[first as usize * 512..][..blocks * 512].to_vec();
            let new: Vec<u8> = old.iter().map(|byte| !byte).collect();
            rig.ask(&compare(1, first, &old));
            assert!(rig.answers().is_empty() && rig.session.in_flight() == 1);
            rig.ask(&write(2, first, &new));
            assert_eq!(answers(&mut rig), [(1, 0), (2, 0)]);
            assert_eq!(rig.disk[first as usize * 512..][..new.len()], new);
            // The second host comes too late.
            rig.ask(&compare(3, first, &old));
            rig.ask(&write(4, first, &[9; 4096][..old.len()]));
            assert_eq!(answers(&mut rig), [(3, 0x4285), (4, FAILED)]);
            assert_eq!(rig.disk[first as usize * 512..][..new.len()], new);
        }
        assert_eq!((rig.session.in_flight(), rig.session.bytes()), (0, (0, 0)));
    }
}

#[test]
fn both_are_one_request() {
    let mut rig = io();
    rig.serves = false;
    rig.ask(&compare(1, 16, &[1; 1024]));
    assert!(rig.asked.is_empty());
    rig.ask(&write(2, 16, &[2; 1024]));
    let request = &rig.asked[0].1;
    assert_eq!((request.kind, request.at, request.len), (BlockKind::CompareWrite, 8192, 1024));
    assert_eq!(request.body[..], [[1; 1024], [2; 1024]].concat());
    assert_eq!((rig.asked.len(), rig.session.in_flight()), (1, 2));
    // Others are not held back.
    assert_eq!(rig.result(&Command::new(0x00, 3).nsid(7)).0, 0);
    rig.fail(0, BlockError::TimedOut);
    assert_eq!(answers(&mut rig), [(1, 0x1882), (2, FAILED)]);
}

#[test]
fn data_may_come_later_and_in_any_order() {
    let new = [0xee; 4096];
    for (order, part) in [([0, 1], 4096), ([1, 0], 700)] {
        let mut rig = io();
        let old = rig.disk[..4096].to_vec();
        rig.ask(&later(compare(1, 0, &old)));
        rig.ask(&later(write(2, 0, &new)));
        let r2ts = rig.answers();
        assert_eq!((r2ts.len(), rig.session.bytes().0), (2, 8192));
        for index in order {
            assert!(rig.answers().is_empty());
            rig.give(&r2ts[index], [&old[..], &new[..]][index], part);
        }
        assert_eq!(answers(&mut rig), [(1, 0), (2, 0)]);
        assert_eq!((&rig.disk[..4096], rig.session.bytes()), (&new[..], (0, 0)));
    }
}

#[test]
fn one_without_the_other_is_aborted() {
    let mut rig = io();
    let before = rig.disk.clone();
    let old = before[..512].to_vec();
    rig.ask(&write(1, 0, &[1; 512]));
    assert_eq!(answers(&mut rig), [(1, MISSING)]);
    // Something else follows: it is executed.
    rig.ask(&compare(2, 0, &old));
    rig.ask(&Command::new(0x00, 3).nsid(7));
    assert_eq!(answers(&mut rig), [(2, MISSING), (3, 0)]);
    rig.ask(&write(4, 0, &[1; 512]));
    assert_eq!(answers(&mut rig), [(4, MISSING)], "not adjacent");
    // Another first one follows, which has its second.
    rig.ask(&compare(5, 0, &old));
    rig.ask(&compare(6, 0, &old));
    assert_eq!(answers(&mut rig), [(5, MISSING)]);
    rig.ask(&write(7, 0, &old));
    assert_eq!(answers(&mut rig), [(6, 0), (7, 0)]);
    // Its data is still on its way.
    rig.ask(&later(compare(8, 0, &old)));
    let r2t = rig.answer();
    rig.ask(&Command::new(0x00, 9).nsid(7));
    assert_eq!(answers(&mut rig), [(9, 0)]);
    rig.give(&r2t, &old, 512);
    assert_eq!(answers(&mut rig), [(8, MISSING)]);
    assert!(rig.disk == before && rig.session.in_flight() == 0);
}

#[test]
fn one_that_waits_too_long_for_the_other_is_aborted() {
    let mut rig = io();
    rig.tick(100);
    rig.ask(&compare(1, 0, &[0; 512]));
    rig.tick(119);
    assert!(rig.answers().is_empty());
    rig.tick(120);
    assert_eq!(answers(&mut rig), [(1, 0x1882)]);
    rig.ask(&write(2, 0, &[0; 512]));
    assert_eq!(answers(&mut rig), [(2, FAILED)]);
    rig.ask(&write(3, 0, &[0; 512]));
    assert_eq!(answers(&mut rig), [(3, MISSING)]);
}

#[test]
fn if_one_is_refused_the_other_one_fails() {
    let (good, new) = (compare(1, 8, &[1; 512]), write(2, 8, &[2; 512]));
    let end = (crate::shared::SIZE / 512) as u64;
    let table = [
        (compare(1, 15, &[1; 1024]), new.clone(), (FIELD, FAILED), "two blocks of the store"),
        (compare(1, 8, &[1; 4608]), new.clone(), (FIELD, FAILED), "more than a block"),
        (compare(1, end, &[1; 512]), new.clone(), (0x4080, FAILED), "behind the end"),
        (good.clone().nsid(8), new.clone(), (0x400b, FAILED), "no such namespace"),
        (good.clone().dword(12, 1 << 26), new.clone(), (FIELD, FAILED), "protection information"),
        (good.clone().put(39, &[0]), new.clone(), (0x4011, FAILED), "another descriptor"),
        (Command { damaged: true, ..good.clone() }, new.clone(), (0x0022, FAILED), "damaged"),
        (good.clone().put(0, &[0x01]), new.clone(), (FIELD, FAILED), "not a Compare"),
        (good.clone(), write(2, 9, &[2; 512]), (FAILED, FIELD), "another range"),
        (good.clone(), write(2, 8, &[2; 1024]), (FAILED, FIELD), "another length"),
        (good.clone(), new.clone().nsid(9), (FAILED, 0x400b), "another namespace"),
        (good.clone(), new.clone().put(39, &[0]), (FAILED, 0x4011), "another descriptor"),
        (good.clone(), Command { damaged: true, ..new.clone() }, (FAILED, 0x0022), "damaged"),
        (good.clone(), new.clone().put(0, &[0x05]), (FAILED, FIELD), "not a Write"),
    ];
    for (first, second, statuses, why) in table {
        let mut rig =
            Rig::io(&Limits::SHIPPED, Options { digests: (true, true), ..Options::default() });
        let before = rig.disk.clone();
        rig.ask(&first);
        rig.ask(&second);
        let (one, two) = statuses;
        assert_eq!(answers(&mut rig), [(1, one), (2, two)], "{why}");
        assert!(rig.disk == before && rig.session.in_flight() == 0, "{why}");
        // The next pair is not disturbed.
        rig.ask(&compare(3, 8, &before[4096..4608]));
        rig.ask(&write(4, 8, &[2; 512]));
        assert_eq!(answers(&mut rig), [(3, 0), (4, 0)], "{why}");
    }
    // The second namespace has the same range, and is not the same.
    let mut rig = io();
    rig.hosts.add(9, 1 << 20);
    rig.ask(&good);
    rig.ask(&new.clone().nsid(9));
    assert_eq!(answers(&mut rig), [(1, FAILED), (2, FIELD)]);
    // What the second one may not do.
    rig.hosts.seven().read_only = true;
    rig.ask(&good);
    rig.ask(&new);
    assert_eq!(answers(&mut rig), [(1, FAILED), (2, 0x4020)]);
    rig.hosts.seven().access = Access { read: true, write: false };
    rig.ask(&good);
    rig.ask(&new);
    assert_eq!(answers(&mut rig), [(1, FAILED), (2, 0x4083)]);
    rig.hosts.seven().path = Path::Inaccessible;
    rig.ask(&good);
    rig.ask(&new);
    assert_eq!(answers(&mut rig), [(1, 0x0302), (2, FAILED)]);
}

#[test]
fn damaged_data_fails_both_when_all_data_has_come() {
    let mut rig =
        Rig::io(&Limits::SHIPPED, Options { digests: (true, true), ..Options::default() });
    rig.ask(&later(compare(1, 0, &[1; 512])));
    rig.ask(&later(write(2, 0, &[2; 512])));
    let r2ts = rig.answers();
    let damaged = Request::host_data(r2ts[0].ids(), 0, true, &[1; 512]);
    rig.send(&Request { damaged: true, ..damaged });
    assert!(rig.answers().is_empty());
    rig.give(&r2ts[1], &[2; 512], 512);
    assert_eq!(answers(&mut rig), [(1, 0x0022), (2, FAILED)]);
}

/// A completed write is reported as done. Otherwise the host would not know that it has a lock.
#[test]
fn a_host_that_is_shut_out_or_fenced_knows_what_was_done() {
    let shut = |rig: &mut Rig| {
        let left = Access { read: true, write: false };
        rig.call(|session, _, pool, out| session.reserved(VolumeId(7), left, pool, out));
    };
    let begun = |limits: &Limits| {
        let mut rig = Rig::io(limits, Options::default());
        rig.serves = false;
        let old = rig.disk[..512].to_vec();
        rig.ask(&compare(1, 0, &old));
        rig.ask(&write(2, 0, &[2; 512]));
        rig
    };
    let mut rig = begun(&Limits::SHIPPED);
    shut(&mut rig);
    assert!(rig.answers().is_empty());
    rig.serve(0);
    assert_eq!((answers(&mut rig), rig.disk[0]), (vec![(1, 0), (2, 0)], 2));
    let mut rig = begun(&Limits::SHIPPED);
    rig.call(|session, _, pool, out| session.fenced(VolumeId(7), true, pool, out));
    rig.serve(0);
    assert_eq!(answers(&mut rig), [(1, 0), (2, 0)]);
    let mut rig = begun(&Limits::SHIPPED);
    shut(&mut rig);
    rig.fail(0, BlockError::Reserved);
    assert_eq!(answers(&mut rig), [(1, 0x4083), (2, 0x4083)]);
    // Nothing has begun.
    let mut rig = io();
    rig.ask(&compare(1, 0, &[0; 512]));
    shut(&mut rig);
    assert_eq!(answers(&mut rig), [(1, 0x4083)]);
    rig.ask(&write(2, 0, &[2; 512]));
    assert_eq!(answers(&mut rig), [(2, FAILED)]);
    rig.ask(&later(compare(3, 0, &[0; 512])));
    rig.ask(&later(write(4, 0, &[0; 512])));
    let r2ts = rig.answers();
    shut(&mut rig);
    rig.give(&r2ts[0], &[0; 512], 512);
    assert!(rig.answers().is_empty());
    rig.give(&r2ts[1], &[0; 512], 512);
    assert_eq!(answers(&mut rig), [(3, 0x4083), (4, 0x4083)]);
    assert_eq!((rig.session.in_flight(), rig.session.bytes()), (0, (0, 0)));
}

#[test]
fn those_that_wait_for_credit_end_together() {
    let mut rig = io();
    rig.serves = false;
    rig.tick(100);
    for cid in 10..14 {
        rig.ask(&Command::write(cid, 0, 2048));
    }
    assert_eq!((rig.answers().len(), rig.session.bytes().0), (4, 4 << 20));
    rig.ask(&later(compare(1, 0, &[0; 512])));
    rig.ask(&later(write(2, 0, &[0; 512])));
    assert!(rig.answers().is_empty());
    rig.tick(120);
    assert_eq!(answers(&mut rig), [(1, 0x1882), (2, FAILED)]);
}

#[test]
fn an_admin_queue_has_no_fused_commands() {
    let mut rig = Rig::admin(&Limits::SHIPPED, Options::default());
    for flags in [FIRST, SECOND] {
        assert_eq!(rig.result(&Command::identify(1, 1, 0).put(1, &[flags])).0, expected(flags));
    }
    assert_eq!(rig.result(&compare(1, 0, &[0; 512])).0, FIELD);
    rig.fetch(&Command::identify(1, 1, 0));
}

/// The second of two, after a first one that has failed.
fn expected(flags: u8) -> u16 {
    if flags == FIRST { FIELD } else { FAILED }
}
