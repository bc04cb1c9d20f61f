//! Task management, logout, and how a session ends.

use super::initiator::*;
use super::rig::*;
use crate::shared::SIZE;
use base::time::Duration;
use base::{Limits, Time};
use seam::BlockError;
use target::scsi::{Attention, Path, PortGroup, Unit};
use target::{Cleared, Question};

const NOBODY: u32 = 0xffff_ffff;

fn full() -> Rig {
    let mut rig = Rig::full(&Limits::SHIPPED, &[]);
    rig.serves = false;
    rig
}

fn read(rig: &mut Rig, itt: u32) -> u32 {
    let sn = rig.cmd_sn;
    rig.ask(Request::command(itt, 0xc0, 512, &read10(0, 1)));
    sn
}

/// Returns the response to a request of task management.
fn response(pdu: &Pdu) -> u8 {
    assert_eq!(pdu.opcode(), 0x22, "{pdu:?}");
    pdu.bhs[2]
}

/// Returns the tag that is to be withdrawn, and nothing else is told.
fn withdrawn(rig: &mut Rig) -> u64 {
    let told = rig.told();
    let [Told::Withdraw(tag)] = told[..] else { panic!("{told:?}") };
    tag
}

#[test]
fn an_aborted_command_has_no_answer() {
    let mut rig = full();
    let sn = read(&mut rig, 5);
    rig.ask(Request::management(9, 1, 5, sn));
    let tag = withdrawn(&mut rig);
    assert_eq!(rig.answers(), [], "not before it is withdrawn");
    rig.withdraw(tag);
    let answer = rig.answer();
    assert_eq!((response(&answer), answer.itt()), (0, 9));
    rig.call(|session, _, pool, out| session.done(tag, Err(BlockError::Media), pool, out));
    assert_eq!((rig.answers(), rig.session.in_flight()), (vec![], 0));
    assert_eq!(rig.session.bytes(), (0, 0));
}

#[test]
fn an_answered_command_is_not_aborted() {
    let mut rig = full();
    let sn = read(&mut rig, 5);
    rig.serve(0);
    rig.answers();
    rig.ask(Request::management(9, 1, 5, sn));
    assert_eq!(response(&rig.answer()), 1, "no such task");
    // The tag belongs to a newer command.
    read(&mut rig, 5);
    rig.ask(Request::management(9, 1, 5, sn));
    assert_eq!(response(&rig.answer()), 255);
    rig.serve(0);
    assert_eq!(rig.answer().status(), (0, None));
}

#[test]
fn a_command_that_never_came_leaves_no_gap() {
    let mut rig = full();
    let lost = rig.cmd_sn;
    rig.cmd_sn += 1;
    rig.ask(Request::management(9, 1, 5, lost));
    assert_eq!(response(&rig.answer()), 0);
    // It is dropped if it comes nevertheless, and the next one goes on.
    rig.send(Request::command(5, 0xc0, 512, &read10(0, 1)).u32(24, lost));
    assert!(rig.asked.is_empty());
    read(&mut rig, 6);
    assert_eq!(rig.asked.len(), 1);
    rig.ask(Request::management(9, 1, 7, rig.cmd_sn + 500));
    assert_eq!(response(&rig.answer()), 1, "outside of the window");
}

#[test]
fn data_of_an_aborted_write_is_dropped() {
    let mut rig = full();
    let data = [1; 131_072];
    let sn = rig.cmd_sn;
    rig.write(5, &write10(0, 256), &data, 65536);
    let r2t = rig.answer();
    let asked = rig.session.bytes().0;
    assert_eq!(asked, 65536);
    rig.ask(Request::management(9, 1, 5, sn));
    let tag = withdrawn(&mut rig);
    rig.give(&r2t, &data, 8192);
    rig.withdraw(tag);
    assert_eq!(response(&rig.answer()), 0);
    assert_eq!((rig.session.bytes(), rig.pool.used()), ((0, 0), 0));
    // A command that has begun nothing is gone at once, and its data is dropped, too.
    let sn = rig.cmd_sn;
    rig.write(6, &write10(0, 256), &data, 0);
    let r2t = rig.answer();
    rig.ask(Request::management(9, 1, 6, sn));
    assert_eq!(response(&rig.answer()), 0);
    rig.give(&r2t, &data, 8192);
    assert!(rig.asked.is_empty() && !rig.session.is_closed());
    assert_eq!((rig.session.bytes(), rig.pool.used()), ((0, 0), 0));
}

#[test]
fn an_abort_makes_room_for_others() {
    let mut rig = Rig::full(&Limits::TEST_MIN, &[]);
    rig.serves = false;
    let first = rig.cmd_sn;
    for itt in 0..3 {
        rig.write(itt, &write10(0, 128), &[1; 65536], 0);
    }
    assert_eq!(rig.answers().len(), 2, "the third one has to wait");
    rig.ask(Request::management(9, 1, 0, first));
    let answers = rig.answers();
    assert_eq!((answers[0].opcode(), answers[0].itt()), (0x31, 2));
    assert_eq!(response(&answers[1]), 0);
}

#[test]
fn functions_have_their_responses() {
    let other = Request::management(9, 1, 5, 0).put(8, &[0, 1]);
    for (request, expected) in [
        (Request::management(9, 2, NOBODY, 0), 0),
        (Request::management(9, 3, NOBODY, 0), 5),
        (Request::management(9, 8, 5, 0), 4),
        (Request::management(9, 0, 5, 0), 5),
        (Request::management(9, 14, 5, 0), 5),
        (other, 2),
        (Request::management(9, 5, NOBODY, 0).put(8, &[0, 9]), 2),
    ] {
        let mut rig = full();
        rig.ask(request.clone());
        assert_eq!(response(&rig.answer()), expected, "{request:?}");
    }
}

#[test]
fn an_abort_of_the_set_takes_all_of_this_host() {
    let mut rig = full();
    read(&mut rig, 5);
    read(&mut rig, 6);
    rig.ask(Request::management(9, 2, NOBODY, 0));
    let told = rig.told();
    assert_eq!(told.len(), 2);
    assert!(rig.session.is_withdrawing());
    for tell in told {
        let Told::Withdraw(tag) = tell else { panic!("{tell:?}") };
        assert_eq!(rig.answers(), []);
        rig.withdraw(tag);
    }
    assert_eq!(response(&rig.answer()), 0);
}

#[test]
fn a_reset_waits_for_all_hosts_and_is_told_to_all() {
    for (function, what) in [(4, Cleared::Tasks), (5, Cleared::Unit), (6, Cleared::Unit)] {
        let mut rig = full();
        read(&mut rig, 5);
        rig.ask(Request::management(9, function, NOBODY, 0));
        let told = rig.told();
        let [Told::Withdraw(tag), Told::Clear(cleared)] = told[..] else { panic!("{told:?}") };
        assert_eq!(cleared, what);
        rig.call(|session, _, pool, out| session.others_cleared(pool, out));
        assert_eq!(rig.answers(), []);
        rig.withdraw(tag);
        assert_eq!(response(&rig.answer()), 0);
        rig.ask(Request::command(7, 0x80, 0, &[0; 16]));
        let expected = if function == 4 { (0, None) } else { (2, Some((6, 0x29, 3))) };
        assert_eq!(rig.answer().status(), expected);
    }
}

#[test]
fn another_host_s_reset_ends_commands_and_is_told() {
    for (what, busy, sense) in [
        (Cleared::Tasks, true, Some((6, 0x2f, 0))),
        (Cleared::Tasks, false, None),
        (Cleared::Unit, false, Some((6, 0x29, 3))),
    ] {
        let mut rig = full();
        if busy {
            read(&mut rig, 5);
        }
        rig.call(|session, _, pool, out| session.cleared(what, pool, out));
        if busy {
            let tag = withdrawn(&mut rig);
            rig.withdraw(tag);
        }
        assert_eq!((rig.answers(), rig.session.in_flight()), (vec![], 0));
        rig.ask(Request::command(7, 0x80, 0, &[0; 16]));
        let status = if sense.is_some() { 2 } else { 0 };
        assert_eq!(rig.answer().status(), (status, sense));
    }
    let mut rig = full();
    rig.call(|session, _, pool, out| session.cleared(Cleared::Target, pool, out));
    assert_eq!(rig.told(), [Told::Close(None)]);
}

#[test]
fn a_cold_reset_closes_after_its_answer() {
    let mut rig = full();
    rig.ask(Request::management(9, 7, NOBODY, 0));
    assert_eq!(rig.told(), [Told::Clear(Cleared::Target)]);
    rig.call(|session, _, pool, out| session.others_cleared(pool, out));
    assert_eq!(response(&rig.answer()), 0);
    assert_eq!(rig.told(), [Told::Close(None)]);
}

#[test]
fn a_logout_ends_commands_and_then_the_connection() {
    let mut rig = full();
    read(&mut rig, 5);
    rig.ask(Request::new(0x46, 0x80 | 2, 8));
    let answer = rig.answer();
    assert_eq!((answer.opcode(), answer.bhs[2]), (0x26, 2), "no recovery");
    rig.ask(Request::new(0x46, 0x80 | 1, 8).u16(20, 4));
    assert_eq!(rig.answer().bhs[2], 1, "no such connection");
    rig.ask(Request::new(0x06, 0x80, 8));
    let tag = withdrawn(&mut rig);
    assert_eq!(rig.answers(), []);
    rig.withdraw(tag);
    let answer = rig.answer();
    assert_eq!((answer.opcode(), answer.bhs[2], answer.itt()), (0x26, 0, 8));
    assert_eq!(rig.told(), [Told::Close(None)]);
}

#[test]
fn a_host_is_asked_to_leave_before_it_is_closed() {
    let mut rig = full();
    read(&mut rig, 5);
    rig.call(|session, _, pool, out| session.shutdown(pool, out));
    let message = rig.answer();
    assert_eq!((message.opcode(), message.bhs[36], message.itt()), (0x32, 1, NOBODY));
    rig.serve(0);
    assert_eq!(rig.answer().status(), (0, None), "what has begun ends");
    rig.ask(Request::command(6, 0x80, 0, &[0; 16]));
    assert_eq!(rig.answer().status(), (8, None), "busy");
    let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
    rig.call(|session, _, pool, out| session.tick(at(10), pool, out));
    assert_eq!(rig.told(), []);
    rig.call(|session, _, pool, out| session.tick(at(15), pool, out));
    assert_eq!(rig.told(), [Told::Close(None)]);
}

#[test]
fn a_volume_that_is_gone_ends_the_session() {
    let mut rig = full();
    read(&mut rig, 5);
    rig.fail(0, BlockError::NoSuchVolume);
    let answers = rig.answers();
    assert_eq!(answers[0].status(), (2, Some((5, 0x25, 0))));
    assert_eq!((answers.len(), answers[1].opcode(), answers[1].bhs[36]), (2, 0x32, 1));
}

/// Nothing of a command is asked for after the volume has gone, even if it comes back.
#[test]
fn commands_under_way_end_with_their_volume() {
    let mut rig = Rig::full(&Limits::TEST_MIN, &[]);
    rig.serves = false;
    let data = [7; 65536];
    for itt in 0..3 {
        rig.write(itt, &write10(0, 128), &data, 512);
    }
    let r2ts = rig.answers();
    assert_eq!((r2ts.len(), rig.asked.len()), (2, 3), "the third one waits for its turn");
    rig.call(|session, _, pool, out| session.volume_gone(pool, out));
    rig.call(|session, _, pool, out| session.volume_gone(pool, out));
    let message = rig.answer();
    assert_eq!((message.opcode(), message.bhs[36]), (0x32, 1), "once");
    r2ts.iter().for_each(|r2t| rig.give(r2t, &data, 8192));
    assert_eq!((rig.asked.len(), rig.answers()), (3, vec![]));
    for _ in 0..3 {
        rig.serve(0);
        assert_eq!(rig.answer().status(), (2, Some((5, 0x25, 0))));
    }
    rig.ask(Request::command(6, 0x80, 0, &[0; 16]));
    assert_eq!(rig.answer().status(), (2, Some((5, 0x25, 0))));
    rig.ask(Request::command(7, 0xc0, 36, &[0x12, 0, 0, 0, 36, 0]));
    let inquiry = rig.answer();
    assert_eq!((inquiry.status(), inquiry.data[0]), ((0, None), 0x7f), "no unit at this number");
    assert_eq!((rig.session.in_flight(), rig.session.bytes(), rig.asked.len()), (0, (0, 0), 0));
}

#[test]
fn a_host_that_comes_back_hears_what_it_was_not_told() {
    let mut rig = full();
    rig.call(|session, _, _, _| {
        session.device().unwrap().attention(Attention::RegistrationsPreempted)
    });
    rig.call(|session, _, _, _| session.device().unwrap().attention(Attention::Reset));
    let former = rig.session.device().unwrap().clone();
    let mut rig = Rig::new(&Limits::SHIPPED);
    rig.hosts.unit.size *= 2;
    rig.hosts.unit.read_only = true;
    rig.log_in(&[]);
    rig.session.device().unwrap().succeed(&former);
    for (itt, told) in (1..).zip([(0x29, 0), (0x2a, 5), (0x2a, 9), (0x2a, 1)]) {
        rig.ask(Request::command(itt, 0x80, 0, &[0; 16]));
        assert_eq!(rig.answer().status(), (2, Some((6, told.0, told.1))));
    }
    rig.ask(Request::command(9, 0x80, 0, &[0; 16]));
    assert_eq!(rig.answer().status(), (0, None));
    assert_eq!(rig.session.device().unwrap().unit().size, 2 * SIZE as u64);
}

#[test]
fn changes_of_a_volume_are_reported() {
    let mut rig = full();
    let unit = target::scsi::Unit { size: SIZE as u64 / 2, ..rig.hosts.unit.clone() };
    rig.call(|session, _, _, _| session.changed(unit));
    rig.ask(Request::command(5, 0x80, 0, &[0; 16]));
    assert_eq!(rig.answer().status(), (2, Some((6, 0x2a, 9))));
    rig.ask(Request::command(6, 0xc0, 512, &read10(SIZE as u32 / 1024, 1)));
    assert_eq!(rig.answer().status(), (2, Some((5, 0x21, 0))));
}

#[test]
fn reservations_are_the_matter_of_the_mdm() {
    use target::Asked;
    let mut rig = full();
    // PERSISTENT RESERVE OUT, REGISTER, and PERSISTENT RESERVE IN, READ KEYS.
    let mut list = [0; 24];
    list[15] = 7;
    let mut register = [0; 16];
    (register[0], register[8]) = (0x5f, 24);
    rig.write(5, &register, &list, 24);
    let told = rig.told();
    let [Told::Ask(tag, Question::Reserve(_))] = told[..] else { panic!("{told:?}") };
    rig.call(|session, _, pool, out| session.asked(tag, Asked::Reserved(Ok(())), pool, out));
    assert_eq!(rig.answer().status(), (0, None));
    let mut keys = [0; 16];
    (keys[0], keys[8]) = (0x5e, 255);
    for asked in [Asked::Table(&target::reserve::Table::default()), Asked::Nobody] {
        rig.ask(Request::command(6, 0xc0, 255, &keys));
        let told = rig.told();
        let [Told::Ask(tag, Question::Report)] = told[..] else { panic!("{told:?}") };
        rig.call(|session, _, pool, out| session.asked(tag, asked, pool, out));
        let answer = rig.answer();
        assert_eq!(answer.status().0, if matches!(asked, Asked::Nobody) { 8 } else { 0 });
    }
}

#[test]
fn task_management_that_does_not_fit_is_refused_at_once() {
    let mut rig = full();
    read(&mut rig, 5);
    for itt in 20..28 {
        rig.ask(Request::management(itt, 2, NOBODY, 0));
    }
    let tag = withdrawn(&mut rig);
    assert_eq!(rig.answers(), []);
    rig.ask(Request::management(30, 2, NOBODY, 0));
    let answer = rig.answer();
    assert_eq!((response(&answer), answer.itt()), (255, 30));
    rig.withdraw(tag);
    let tags: Vec<u32> = rig.answers().iter().map(Pdu::itt).collect();
    assert_eq!(tags, (20..28).collect::<Vec<_>>());
}

#[test]
fn a_second_logout_is_rejected() {
    let mut rig = full();
    read(&mut rig, 5);
    rig.ask(Request::new(0x06, 0x80, 8));
    let tag = withdrawn(&mut rig);
    rig.ask(Request::new(0x06, 0x80, 9));
    let answer = rig.answer();
    assert_eq!((answer.opcode(), answer.bhs[2]), (0x3f, 4));
    rig.withdraw(tag);
    let answer = rig.answer();
    assert_eq!((answer.opcode(), answer.itt()), (0x26, 8));
}

#[test]
fn an_aborted_command_has_not_told_its_unit_attention() {
    let mut rig = Rig::new(&Limits::SHIPPED);
    rig.log_in(&[]);
    let sn = rig.cmd_sn;
    rig.ask(Request::command(5, 0x20, 1024, &write10(0, 2)).data(&[1; 512]));
    rig.ask(Request::management(9, 1, 5, sn));
    assert_eq!(response(&rig.answer()), 0);
    for expected in [(2, Some((6, 0x29, 0))), (0, None)] {
        rig.ask(Request::command(6, 0x80, 0, &[0; 16]));
        assert_eq!(rig.answer().status(), expected);
    }
}

/// What a host meets when the MDM moves its seat to another gateway, and back.
#[test]
fn a_host_that_is_served_elsewhere_learns_of_it() {
    let mut rig = full();
    let others = |path| vec![PortGroup { port: 4, path }];
    let changed = |rig: &mut Rig, path, other| {
        let unit = Unit { path, others: others(other), ..rig.hosts.unit.clone() };
        rig.call(|session, _, _, _| session.changed(unit.clone()));
        rig.call(|session, _, _, _| session.changed(unit));
    };
    let status = |rig: &mut Rig, cdb: &[u8], len| {
        rig.ask(Request::command(6, if len > 0 { 0xc0 } else { 0x80 }, len, cdb));
        rig.answer().status()
    };
    let (ready, elsewhere) = ([0; 16], (2, Some((2, 4, 0x0b))));
    read(&mut rig, 5);
    changed(&mut rig, Path::Standby, Path::Optimized);
    assert_eq!(rig.answers(), [], "the owner ends what is under way");
    rig.fail(0, BlockError::Elsewhere);
    assert_eq!(rig.answer().status(), elsewhere);
    assert_eq!(status(&mut rig, &ready, 0), (2, Some((6, 0x2a, 6))));
    assert_eq!(status(&mut rig, &ready, 0), elsewhere);
    assert_eq!(status(&mut rig, &read10(0, 1), 512), elsewhere);
    rig.ask(Request::command(7, 0xc0, 255, &[0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0]));
    let groups: Vec<_> = rig.answers()[0].data[4..].chunks(12).map(|g| (g[0], g[3])).collect();
    assert_eq!(groups, [(2, 3), (0, 4)], "the state and the number of each");
    changed(&mut rig, Path::Optimized, Path::Standby);
    assert_eq!(status(&mut rig, &ready, 0), (2, Some((6, 0x2a, 6))));
    assert_eq!(status(&mut rig, &ready, 0), (0, None));
    assert!(rig.asked.is_empty());
}
