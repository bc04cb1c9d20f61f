//! Reads and writes: immediate, unsolicited and solicited data, parts, residuals, digests.

use super::initiator::*;
use super::rig::*;
use base::time::Duration;
use base::{Limits, Time};
use seam::{BlockError, BlockKind};

const NOBODY: u32 = 0xffff_ffff;
/// Reads, and has sent all.
const READ: u8 = 0xc0;

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 512 * 3 + i * 5 + 1) as u8).collect()
}

/// Returns the data of a read, and checks numbers and flags of its parts.
fn gathered(answers: &[Pdu], segment: usize, burst: usize) -> Vec<u8> {
    let mut data = Vec::new();
    for (i, part) in answers.iter().enumerate() {
        assert_eq!((part.opcode(), part.u32(36) as usize), (0x25, i));
        assert_eq!(part.u32(40) as usize, data.len());
        assert!(part.data.len() <= segment && !part.data.is_empty());
        data.extend(&part.data);
        let last = i + 1 == answers.len();
        assert_eq!(part.bhs[1] & 1 == 1, last, "the status is in the last part");
        assert_eq!(part.bhs[1] & 0x80 != 0, last || data.len() % burst == 0, "ends of sequences");
    }
    data
}

#[test]
fn a_read_comes_in_parts_with_the_status_in_the_last() {
    for (segment, burst, blocks) in
        [(65536, 1 << 20, 8), (65536, 1 << 20, 1000), (4096, 10240, 99), (1000, 1024, 5)]
    {
        let sizes = [segment.to_string(), burst.to_string()];
        let offers = [
            ("MaxRecvDataSegmentLength", sizes[0].as_str()),
            ("MaxBurstLength", sizes[1].as_str()),
            ("FirstBurstLength", "1024"),
        ];
        let mut rig = Rig::full(&Limits::SHIPPED, &offers);
        let len = usize::from(blocks) * 512;
        rig.ask(Request::command(5, READ, len as u32, &read10(3, blocks)));
        let answers = rig.answers();
        assert_eq!(gathered(&answers, segment, burst), rig.disk[1536..1536 + len]);
        let last = answers.last().unwrap();
        assert_eq!((last.status(), last.residual(), last.itt()), ((0, None), 0, 5));
    }
}

#[test]
fn data_is_not_copied() {
    let mut rig = Rig::full(&Limits::SHIPPED, &[]);
    rig.serves = false;
    rig.write(5, &write10(0, 128), &pattern(65536), 65536);
    let (_, request) = &rig.asked[0];
    assert_eq!((request.kind, request.at, request.len), (BlockKind::Write, 0, 65536));
    assert_eq!(rig.pool.used(), 64 << 10, "the frame's own buffer, and nothing else");
}

#[test]
fn a_write_takes_all_three_ways() {
    for (digests, immediate, unsolicited, segment) in [
        ("None", 4096, 65536, 8192),
        ("None", 0, 8192, 8192),
        ("None", 1000, 3000, 700),
        ("CRC32C", 512, 30000, 4001),
        ("CRC32C", 0, 0, 262_144),
        ("None", 333, 333, 333),
    ] {
        let offers = [("HeaderDigest", digests), ("DataDigest", digests)];
        let mut rig = Rig::full(&Limits::SHIPPED, &offers);
        let data = pattern(2 << 20);
        let flags = if unsolicited > immediate { 0x20 } else { 0xa0 };
        let command = Request::command(5, flags, data.len() as u32, &write10(16, 4096));
        rig.ask(command.data(&data[..immediate]));
        let (mut at, mut data_sn) = (immediate, 0);
        while at < unsolicited {
            let end = (at + segment).min(unsolicited);
            let part = &data[at..end];
            let last = end == unsolicited;
            rig.send(Request::data_out(5, NOBODY, data_sn, at as u32, last, part));
            (at, data_sn) = (end, data_sn + 1);
        }
        // One burst at a time.
        for r2ts in 0.. {
            let answer = rig.answer();
            assert_eq!(answer.u32(36), r2ts, "its number, or how many there were");
            if answer.opcode() == 0x21 {
                assert_eq!((answer.status(), answer.residual()), ((0, None), 0));
                break;
            }
            assert!(answer.u32(44) <= 1 << 20);
            assert_eq!(answer.u32(40) as usize, at);
            at += answer.u32(44) as usize;
            rig.give(&answer, &data, segment);
        }
        assert_eq!(at, data.len());
        let written = &rig.disk[8192..8192 + data.len()];
        assert!(written == data, "{digests} {immediate} {unsolicited} {segment}");
        assert_eq!((rig.session.bytes(), rig.session.in_flight()), ((0, 0), 0));
        assert_eq!(rig.pool.used(), 0);
    }
}

#[test]
fn an_initiator_that_names_no_burst_is_asked_for_no_more_than_our_bound() {
    let limits = Limits::TEST_MIN;
    let mut rig = Rig::new(&limits);
    // MaxBurstLength is 262,144 then (RFC 7143, 13.13).
    let names = [("InitiatorName", HOST), ("TargetName", NAME)];
    rig.send(Request::login(0x87, &names).u32(24, rig.cmd_sn));
    assert_eq!(rig.answer().login_status(), 0);
    rig.ask(Request::command(1, 0x80, 0, &[0; 16]));
    assert_eq!(rig.answer().status(), (2, Some((6, 0x29, 0))), "a new nexus");
    let data = pattern(40960);
    rig.ask(Request::command(5, 0xa0, data.len() as u32, &write10(0, 80)));
    loop {
        let answer = rig.answer();
        if answer.opcode() == 0x21 {
            break assert_eq!(answer.status(), (0, None));
        }
        assert!(answer.u32(44) <= limits.iscsi_max_burst);
        assert!(rig.session.bytes().0 <= limits.iscsi_solicited.into());
        rig.give(&answer, &data, 8192);
    }
    assert_eq!(rig.disk[..data.len()], data);
}

#[test]
fn whole_sectors_are_written_as_they_arrive() {
    let mut rig = Rig::full(&Limits::SHIPPED, &[]);
    rig.serves = false;
    let data = pattern(8192);
    rig.ask(Request::command(5, 0x20, 8192, &write10(0, 16)).data(&data[..1000]));
    rig.send(Request::data_out(5, NOBODY, 0, 1000, false, &data[1000..5000]));
    rig.send(Request::data_out(5, NOBODY, 1, 5000, true, &data[5000..]));
    let pieces: Vec<_> = rig.asked.iter().map(|(_, r)| (r.at, r.len)).collect();
    let expected = [(0, 512), (512, 512), (1024, 3584), (4608, 512), (5120, 3072)];
    assert_eq!(pieces, expected);
    assert_eq!(rig.answers(), []);
    while !rig.asked.is_empty() {
        rig.serve(rig.asked.len() / 2);
    }
    assert_eq!(rig.answer().status(), (0, None));
    assert_eq!(rig.disk[..8192], data);
}

#[test]
fn the_residual_is_the_difference_between_announced_and_moved_bytes() {
    for (blocks, expected, moves, residual) in
        [(1, 0, 0, 512), (1, 10000, 512, -9488), (1, 200, 200, 312), (2, 512, 512, 512)]
    {
        let mut rig = Rig::full(&Limits::SHIPPED, &[]);
        rig.ask(Request::command(5, READ, expected, &read10(0, blocks)));
        let answer = rig.answer();
        assert_eq!((answer.status(), answer.residual()), ((0, None), residual));
        assert_eq!(answer.data.len(), moves);
    }
    for (blocks, expected, moves, residual, status) in [
        (1, 0, 0, 512, (0, None)),
        (1, 10000, 512, -9488, (0, None)),
        (1, 200, 0, 312, (2, Some((5, 0x0e, 3)))),
        (2, 512, 512, 512, (0, None)),
    ] {
        let mut rig = Rig::full(&Limits::SHIPPED, &[]);
        let before = rig.disk.clone();
        let data = pattern(expected as usize);
        rig.write(5, &write10(0, blocks), &data, data.len());
        let answer = rig.answer();
        assert_eq!((answer.status(), answer.residual()), (status, residual));
        assert_eq!(rig.disk[..moves], data[..moves]);
        assert_eq!(rig.disk[moves..], before[moves..]);
    }
}

#[test]
fn a_command_without_data_leaves_all_that_was_announced() {
    let mut rig = Rig::full(&Limits::SHIPPED, &[]);
    for (flags, itt) in [(READ, 5), (0xa0, 6)] {
        let data = if flags == READ { &[][..] } else { &[1; 512] };
        rig.ask(Request::command(itt, flags, 512, &[0; 16]).data(data));
        let answer = rig.answer();
        assert_eq!((answer.status(), answer.residual()), ((0, None), -512));
    }
}

#[test]
fn a_command_that_wants_no_data_waits_for_its_end() {
    let mut rig = Rig::full(&Limits::SHIPPED, &[]);
    // An unknown command with 1,024 bytes to come.
    rig.ask(Request::command(5, 0x20, 1024, &[0xff; 16]).data(&[0; 512]));
    assert_eq!(rig.answers(), []);
    rig.send(Request::data_out(5, NOBODY, 0, 512, true, &[0; 512]));
    let answer = rig.answer();
    assert_eq!((answer.status().0, answer.itt()), (2, 5));
}

#[test]
fn parameters_are_gathered() {
    let mut rig = Rig::full(&Limits::SHIPPED, &[("ImmediateData", "No")]);
    // WRITE SAME(10) of 16 blocks, with a block that comes in three parts.
    let block = pattern(512);
    rig.ask(Request::command(5, 0xa0, 512, &transfer10(0x41, 8, 16)));
    let r2t = rig.answer();
    rig.give(&r2t, &block, 200);
    assert_eq!(rig.answer().status(), (0, None));
    assert_eq!(rig.disk[4096..12288], block.repeat(16));
    assert_eq!(rig.session.bytes(), (0, 0));
}

#[test]
fn a_comparison_finds_the_first_difference() {
    let mut rig = Rig::full(&Limits::SHIPPED, &[]);
    let mut verify = transfer10(0x2f, 8, 16);
    verify[1] = 2;
    let mut data = rig.disk[4096..12288].to_vec();
    rig.write(5, &verify, &data, 8192);
    assert_eq!(rig.answer().status(), (0, None));
    data[5000] ^= 1;
    rig.write(6, &verify, &data, 8192);
    let answer = rig.answer();
    assert_eq!(answer.status(), (2, Some((0xe, 0x1d, 0))));
    assert_eq!(answer.data[2] & 0x80, 0x80);
    assert_eq!(answer.data[5..9], 5000u32.to_be_bytes());
    assert_eq!(rig.pool.used(), 0);
}

#[test]
fn the_failure_with_the_lowest_offset_decides() {
    let mut rig = Rig::full(&Limits::SHIPPED, &[]);
    rig.serves = false;
    let data = pattern(128 << 10);
    rig.write(5, &write10(0, 256), &data, 65536);
    let r2t = rig.answer();
    rig.give(&r2t, &data, 16384);
    assert_eq!(rig.asked.len(), 5);
    rig.fail(2, BlockError::Media);
    rig.fail(0, BlockError::ReadOnly);
    assert_eq!(rig.answers(), []);
    while !rig.asked.is_empty() {
        rig.serve(0);
    }
    // A host takes what lies before the block that the sense data names as written.
    assert_eq!(rig.answer().status(), (2, Some((7, 0x27, 0))));
    assert_eq!((rig.session.in_flight(), rig.session.bytes()), (0, (0, 0)));
    for (error, status) in [
        (BlockError::Lost, (2, Some((3, 0x11, 0)))),
        (BlockError::Busy, (0x28, None)),
        (BlockError::Elsewhere, (2, Some((2, 4, 0x0b)))),
        (BlockError::TimedOut, (2, Some((2, 4, 1)))),
    ] {
        rig.ask(Request::command(6, READ, 512, &read10(0, 1)));
        rig.fail(0, error);
        let answer = rig.answer();
        assert_eq!((answer.status(), answer.residual()), (status, -512), "nothing was read");
    }
}

#[test]
fn an_answer_of_the_wrong_length_is_an_error_not_a_panic() {
    let mut rig = Rig::full(&Limits::SHIPPED, &[]);
    rig.serves = false;
    rig.ask(Request::command(5, READ, 1024, &read10(0, 2)));
    let (tag, _) = rig.asked.remove(0);
    let short = rig.pool.zeroed(512);
    rig.call(|session, _, pool, out| session.done(tag, Ok(short), pool, out));
    assert_eq!(rig.answer().status(), (2, Some((3, 0x11, 0))));
    rig.call(|session, _, pool, out| session.done(tag, Err(BlockError::Media), pool, out));
    assert_eq!(rig.answers(), [], "a late completion finds nothing");
}

#[test]
fn reads_and_solicited_data_keep_within_their_credit() {
    let limits = Limits::TEST_MIN;
    let mut rig = Rig::full(&limits, &[]);
    rig.serves = false;
    // 64 KiB each: two at once.
    for itt in 0..4 {
        rig.ask(Request::command(itt, READ, 65536, &read10(0, 128)));
    }
    assert_eq!((rig.asked.len(), rig.session.bytes().1), (2, 128 << 10));
    rig.serve(0);
    assert_eq!(rig.asked.len(), 2);
    while !rig.asked.is_empty() {
        rig.serve(0);
    }
    rig.answers();
    // Four writes ask for 16 KiB each, of 32 KiB that may be asked for.
    let data = pattern(65536);
    for itt in 0..4 {
        rig.write(itt, &write10(0, 128), &data, 0);
    }
    let mut asked = rig.answers();
    assert_eq!((asked.len(), rig.session.bytes().0), (2, 32 << 10));
    let mut done = 0;
    while done < 4 {
        let Some(r2t) = asked.pop() else { panic!("nothing goes on") };
        rig.give(&r2t, &data, 8192);
        while !rig.asked.is_empty() {
            rig.serve(0);
        }
        for answer in rig.answers() {
            if answer.opcode() == 0x31 { asked.push(answer) } else { done += 1 }
        }
        assert!(rig.session.bytes().0 <= 32 << 10);
    }
    assert_eq!((rig.session.bytes(), rig.pool.used()), ((0, 0), 0));
}

#[test]
fn a_command_that_may_not_begin_is_answered_before_its_host_gives_up() {
    let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
    let tick = |rig: &mut Rig, seconds| {
        rig.call(|session, _, pool, out| session.tick(at(seconds), pool, out));
    };
    let mut rig = Rig::full(&Limits::TEST_MIN, &[]);
    rig.serves = false;
    tick(&mut rig, 100);
    // Of these, two can be asked for data, and two can read.
    let data = pattern(65536);
    for itt in 0..3 {
        rig.write(itt, &write10(0, 128), &data, if itt == 2 { 512 } else { 0 });
    }
    assert_eq!((rig.answers().len(), rig.asked.len()), (2, 1));
    let tag = rig.asked[0].0;
    assert_eq!((rig.session.since(tag), rig.session.since(77)), (Some(at(100)), None));
    tick(&mut rig, 119);
    assert_eq!(rig.session.since(tag), Some(at(100)));
    assert_eq!(rig.answers(), []);
    tick(&mut rig, 120);
    assert_eq!(rig.answers(), [], "a piece of it is under way");
    rig.serve(0);
    let answer = rig.answer();
    assert_eq!((answer.status(), answer.itt()), ((2, Some((2, 4, 1))), 2));

    let mut rig = Rig::full(&Limits::TEST_MIN, &[]);
    rig.serves = false;
    tick(&mut rig, 100);
    for itt in 0..3 {
        rig.ask(Request::command(itt, READ, 65536, &read10(0, 128)));
    }
    assert_eq!(rig.asked.len(), 2);
    tick(&mut rig, 120);
    let answer = rig.answer();
    assert_eq!((answer.status(), answer.itt()), ((2, Some((2, 4, 1))), 2));
    assert_eq!((answer.residual(), rig.asked.len()), (-65536, 2));
    rig.serve(0);
    rig.serve(0);
    assert_eq!((rig.answers().len() > 1, rig.session.bytes()), (true, (0, 0)));
}
