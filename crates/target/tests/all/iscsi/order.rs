//! PDUs that end a connection, PDUs that are rejected, and PDUs that are dropped.

use super::initiator::*;
use super::rig::*;
use base::Limits;
use target::scsi::Attention;

const NOBODY: u32 = 0xffff_ffff;

fn full() -> Rig {
    Rig::full(&Limits::SHIPPED, &[])
}

#[test]
fn commands_outside_of_the_window_are_dropped() {
    let mut rig = Rig::full(&Limits::TEST_MIN, &[]);
    rig.serves = false;
    let read = |itt| Request::command(itt, 0xc0, 512, &read10(0, 1));
    let next = rig.cmd_sn;
    for wrong in [next.wrapping_sub(1), next + 4, next.wrapping_add(1 << 31)] {
        rig.send(read(1).u32(24, wrong));
        assert_eq!((rig.answers(), rig.asked.len()), (vec![], 0), "{wrong}");
    }
    for itt in 0..4 {
        rig.ask(read(itt));
    }
    assert_eq!(rig.asked.len(), 4);
    rig.send(read(9).u32(24, rig.cmd_sn));
    assert_eq!(rig.asked.len(), 4, "the window is full");
    rig.serve(0);
    let answer = rig.answer();
    assert_eq!((answer.u32(28), answer.u32(32)), (rig.cmd_sn, rig.cmd_sn), "room for one");
    rig.ask(read(9));
    assert_eq!(rig.asked.len(), 4);
    assert!(!rig.session.is_closed());
}

#[test]
fn the_data_of_a_dropped_command_is_dropped_too() {
    let mut rig = full();
    let write = Request::command(1, 0x20, 1024, &write10(0, 2)).data(&[1; 512]);
    rig.send(write.u32(24, rig.cmd_sn + 1000));
    rig.send(Request::data_out(1, NOBODY, 0, 512, true, &[1; 512]));
    assert!(rig.answers().is_empty() && !rig.session.is_closed());
}

#[test]
fn a_number_is_not_left_out() {
    let mut rig = full();
    rig.send(Request::command(1, 0x80, 0, &[0; 16]).u32(24, rig.cmd_sn + 1));
    assert!(rig.is_out());
}

#[test]
fn immediate_commands_have_room_beside_the_window() {
    let mut rig = Rig::full(&Limits::TEST_MIN, &[]);
    rig.serves = false;
    for itt in 0..4 {
        rig.ask(Request::command(itt, 0xc0, 512, &read10(0, 1)));
    }
    let immediate = |itt| {
        let request = Request::command(itt, 0xc0, 512, &read10(0, 1));
        Request {
            bhs: {
                let mut bhs = request.bhs;
                bhs[0] |= 0x40;
                bhs
            },
            ..request
        }
    };
    for itt in 10..18 {
        rig.ask(immediate(itt));
    }
    assert_eq!((rig.asked.len(), rig.answers().len()), (12, 0));
    rig.ask(immediate(20));
    let answer = rig.answer();
    assert_eq!((answer.opcode(), answer.bhs[2]), (0x3f, 6), "rejected");
    assert_eq!(answer.data.len(), 48, "with the head that it is about");
}

#[test]
fn wrong_data_ends_the_connection() {
    // A write of 64 KiB with 8 KiB of unsolicited data, 4 KiB of them immediate.
    let out = |ttt, data_sn, offset, last, len| {
        Request::data_out(5, ttt, data_sn, offset, last, &vec![1; len])
    };
    let unsolicited: &[Request] = &[
        out(NOBODY, 0, 8192, true, 4096),                        // its place
        out(NOBODY, 0, 4096, true, 8192),                        // beyond the first burst
        out(7, 0, 4096, true, 4096),                             // nobody asked
        Request::data_out(6, NOBODY, 0, 4096, true, &[1; 4096]), // no such command
    ];
    for wrong in unsolicited {
        let mut rig = Rig::full(&Limits::SHIPPED, &[("FirstBurstLength", "8192")]);
        rig.ask(Request::command(5, 0x20, 65536, &write10(0, 128)).data(&[1; 4096]));
        rig.send(wrong.clone());
        assert!(rig.is_out(), "{:?}", wrong.bhs);
    }
    for wrong in 0..5 {
        let mut rig = full();
        rig.write(5, &write10(0, 256), &[1; 131_072], 4096);
        let r2t = rig.answer();
        let (ttt, offset, len) = (r2t.u32(20), r2t.u32(40), r2t.u32(44));
        assert_eq!((offset, len), (4096, 131_072 - 4096));
        rig.send(match wrong {
            0 => out(ttt, 0, offset, true, 4096),          // ends too soon
            1 => out(ttt, 0, offset + 512, false, 4096),   // leaves a gap
            2 => out(ttt, 0, offset, false, len as usize), // does not end
            3 => out(ttt ^ 1, 0, offset, false, 4096),     // another R2T
            _ => Request::data_out(6, ttt, 0, offset, false, &[1; 4096]), // another command
        });
        assert!(rig.is_out(), "{wrong}");
    }
}

/// The data that libiscsi's `iSCSIDataSnInvalid` sends, before the R2T and after it.
#[test]
fn a_wrong_number_of_data_fails_its_command_and_no_other() {
    const LOST: (u8, Option<(u8, u8, u8)>) = (2, Some((0xb, 0x47, 5)));
    for (first, second) in [(0, 0), (27, 1), (u32::MAX, 0), (1, 0)] {
        for unasked in [true, false] {
            let mut rig = full();
            let before = rig.disk.clone();
            rig.serves = false;
            let flags = if unasked { 0x20 } else { 0xa0 };
            rig.ask(Request::command(5, flags, 1024, &write10(0, 2)));
            let ttt = if unasked { NOBODY } else { rig.answer().u32(20) };
            rig.send(Request::data_out(5, ttt, first, 0, false, &[1; 512]));
            rig.send(Request::data_out(5, ttt, second, 512, true, &[1; 512]));
            // What came before the wrong number may be written, and its end is waited for.
            let began = first == 0;
            assert_eq!(rig.asked.len(), usize::from(began), "{first} {second}");
            if began {
                assert_eq!(rig.answers(), []);
                rig.serve(0);
            }
            let answer = rig.answer();
            assert_eq!((answer.status(), answer.itt()), (LOST, 5), "{first} {second}");
            assert!(rig.asked.is_empty() && rig.disk[512..] == before[512..]);
            assert_eq!((rig.session.bytes(), rig.session.in_flight()), ((0, 0), 0));
            rig.serves = true;
            rig.write(6, &write10(0, 2), &[2; 1024], 1024);
            assert_eq!((rig.answer().status(), rig.disk[1023]), ((0, None), 2));
        }
    }
}

#[test]
fn data_behind_a_wrong_number_is_swallowed_until_its_end() {
    let mut rig = full();
    rig.serves = false;
    rig.write(5, &write10(0, 256), &[1; 131_072], 4096);
    let r2t = rig.answer();
    let (ttt, offset) = (r2t.u32(20), r2t.u32(40));
    rig.send(Request::data_out(5, ttt, 1, offset + 512, false, &[1; 512]));
    rig.send(Request::data_out(5, ttt, 2, offset, false, &[1; 4096]));
    assert!(rig.answers().is_empty() && rig.asked.len() == 1 && !rig.session.is_closed());
    let mut beyond = rig;
    beyond.send(Request::data_out(5, ttt, 3, 131_072, true, &[1; 512]));
    assert!(beyond.is_out(), "more than was asked for");
}

#[test]
fn a_command_that_has_its_answer_keeps_it() {
    let mut rig = full();
    rig.call(|session, _, _, _| session.device().unwrap().attention(Attention::Capacity));
    rig.ask(Request::command(5, 0x20, 512, &write10(0, 1)));
    rig.send(Request::data_out(5, NOBODY, 7, 0, true, &[1; 512]));
    assert_eq!(rig.answer().status(), (2, Some((6, 0x2a, 9))));
    // A parameter list that did not come in order is not used.
    rig.ask(Request::command(5, 0x20, 512, &transfer10(0x41, 8, 16)));
    rig.send(Request::data_out(5, NOBODY, 7, 0, true, &[1; 512]));
    assert_eq!(rig.answer().status(), (2, Some((0xb, 0x47, 5))));
}

#[test]
fn more_data_with_a_command_than_was_agreed_ends_the_connection() {
    let write = |flags, len: usize| {
        Request::command(5, flags, 131_072, &write10(0, 256)).data(&vec![1; len])
    };
    for (offer, request) in [
        (("ImmediateData", "No"), write(0xa0, 512)),
        (("FirstBurstLength", "1024"), write(0xa0, 1536)),
        (("InitialR2T", "Yes"), write(0x20, 512)),
    ] {
        let mut rig = Rig::full(&Limits::SHIPPED, &[offer]);
        rig.ask(request);
        assert!(rig.is_out(), "{offer:?}");
    }
}

#[test]
fn wrong_digests_end_the_connection() {
    let on = [("HeaderDigest", "CRC32C"), ("DataDigest", "CRC32C")];
    for (at, framer) in [(20, true), (48, true), (52, false), (60, false), (56, false)] {
        let mut rig = Rig::full(&Limits::SHIPPED, &on);
        let ping = Request::new(0x40, 0x80, 7).u32(20, NOBODY).u32(24, rig.cmd_sn);
        let mut bytes = ping.data(b"abcde").bytes(rig.digests);
        bytes[at] ^= 4;
        rig.feed(&bytes);
        assert_eq!((rig.input.garbage.is_some(), rig.is_out()), (framer, !framer), "byte {at}");
        assert_eq!(rig.answers(), []);
    }
    // A head that is too long for a frame's head is checked by the session.
    for at in [3, 60, 130] {
        let mut rig = Rig::full(&Limits::SHIPPED, &on);
        let ping = Request { ahs: vec![7; 80], ..Request::new(0x40, 0x80, 7).data(b"abc") };
        let mut bytes = ping.bytes(rig.digests);
        bytes[at] ^= 4;
        rig.feed(&bytes);
        assert!(rig.is_out(), "byte {at}");
    }
}

#[test]
fn unknown_pdus_are_rejected_with_a_reason() {
    let mut rig = full();
    let long = Request { ahs: vec![7; 80], ..Request::command(5, 0x80, 0, &[0; 16]) };
    for (reason, request) in [
        (3, Request::new(0x10, 0x80, 1)),                // SNACK
        (5, Request::new(0x1c, 0x80, 1)),                // a vendor's opcode
        (4, Request::login(0x87, &[])),                  // a login in a session
        (9, Request::new(0x02, 0x80 | 1, 1).data(b"x")), // task management with data
        (9, Request::command(5, 0x00, 0, &[0; 16])),     // data to come of a command without
        (9, long),
    ] {
        rig.ask(request.clone());
        let answer = rig.answer();
        assert_eq!((answer.opcode(), answer.bhs[2]), (0x3f, reason), "{request:?}");
        assert_eq!(answer.data[16..20], request.bhs[16..20]);
        if request.bhs[0] == 0x10 {
            rig.cmd_sn -= 1; // it has no number
        }
    }
    rig.ask(Request::command(5, 0x80, 0, &[0; 16]));
    assert_eq!(rig.answer().status(), (0, None), "the session goes on");
}

#[test]
fn answers_have_numbers_in_order() {
    let mut rig = full();
    let mut next = None;
    for itt in 0..6 {
        match itt % 3 {
            0 => rig.ask(Request::command(itt, 0x80, 0, &[0; 16])),
            1 => rig.ask(Request::command(itt, 0xc0, 512, &read10(0, 1))),
            _ => rig.ask(Request::new(0x00, 0x80, itt).u32(20, NOBODY)),
        }
        let answer = rig.answer();
        let sn = answer.u32(24);
        assert_eq!(next.unwrap_or(sn), sn);
        next = Some(sn + 1);
        assert_eq!((answer.u32(28), answer.u32(32)), (rig.cmd_sn, rig.cmd_sn + 127));
    }
}

#[test]
fn the_tag_of_an_open_command_is_not_used_again() {
    let mut rig = full();
    rig.serves = false;
    rig.ask(Request::command(1, 0xc0, 512, &read10(0, 1)));
    rig.ask(Request::command(1, 0xc0, 512, &read10(0, 1)));
    assert!(rig.is_out());
}

#[test]
fn only_data_of_commands_that_ended_early_is_dropped() {
    let aborted = || {
        let mut rig = full();
        let sn = rig.cmd_sn;
        rig.ask(Request::command(5, 0x20, 1024, &write10(0, 2)).data(&[1; 512]));
        rig.told();
        rig.ask(Request::management(9, 1, 5, sn));
        assert_eq!(rig.answer().bhs[2], 0);
        rig.send(Request::data_out(5, NOBODY, 0, 512, true, &[1; 512]));
        assert!(rig.answers().is_empty() && !rig.session.is_closed());
        rig
    };
    let mut rig = aborted();
    rig.send(Request::data_out(6, NOBODY, 0, 512, true, &[1; 512]));
    assert!(rig.is_out(), "of a command that never was");
    let mut rig = aborted();
    rig.ask(Request::command(5, 0x80, 0, &[0; 16]));
    assert_eq!(rig.answer().status(), (0, None));
    rig.send(Request::data_out(5, NOBODY, 0, 512, true, &[1; 512]));
    assert!(rig.is_out(), "the tag belongs to a newer command");
}
