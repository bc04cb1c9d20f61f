//! How much of what all sessions share one session takes: places for requests, and memory.

use super::initiator::*;
use super::rig::*;
use base::Limits;
use seam::{BlockError, BlockKind};

const NOBODY: u32 = 0xffff_ffff;
/// TASK SET FULL.
const FULL: (u8, Option<(u8, u8, u8)>) = (0x28, None);

fn full(requests: u32, waiting: u32) -> Rig {
    let limits = Limits { iscsi_requests: requests, iscsi_waiting: waiting, ..Limits::SHIPPED };
    let mut rig = Rig::full(&limits, &[]);
    rig.serves = false;
    rig
}

fn write(rig: &mut Rig, itt: u32) {
    rig.write(itt, &write10(itt, 1), &[7; 512], 512);
}

fn read(rig: &mut Rig, itt: u32) {
    rig.ask(Request::command(itt, 0xc0, 512, &read10(0, 1)));
}

#[test]
fn a_session_has_its_places_and_no_more() {
    let mut rig = full(4, 4);
    (0..4).for_each(|itt| write(&mut rig, itt));
    for itt in [4, 5] {
        if itt == 4 {
            write(&mut rig, itt)
        } else {
            read(&mut rig, itt)
        }
        let answer = rig.answer();
        assert_eq!((answer.status(), answer.itt()), (FULL, itt));
    }
    rig.ask(Request::command(6, 0x80, 0, &[0; 16]));
    assert_eq!(rig.answer().status(), (0, None), "it needs no place");
    assert_eq!((rig.asked.len(), rig.session.requests()), (4, 4));
    rig.serve(0);
    assert_eq!(rig.answer().status(), (0, None));
    write(&mut rig, 7);
    assert_eq!((rig.asked.len(), rig.answers()), (4, vec![]));
}

#[test]
fn a_write_in_many_pieces_fails_and_is_not_done_after_its_answer() {
    let mut rig = full(4, 4);
    rig.ask(Request::command(5, 0x20, 4096, &write10(0, 8)));
    for i in 0..8 {
        let part = [i as u8; 512];
        rig.send(Request::data_out(5, NOBODY, i, i * 512, i == 7, &part));
        if i == 5 {
            rig.serve(0); // There is a place again, and it is too late.
        }
    }
    assert_eq!((rig.asked.len(), rig.answers()), (3, vec![]));
    (0..3).for_each(|_| rig.serve(0));
    assert_eq!(rig.answer().status(), FULL);
    assert_eq!((rig.asked.len(), rig.session.requests(), rig.session.bytes()), (0, 0, (0, 0)));
}

#[test]
fn while_writes_wait_for_space_few_others_begin() {
    let mut rig = full(100, 2);
    (0..5).for_each(|itt| write(&mut rig, itt));
    assert_eq!((rig.asked.len(), rig.answers()), (5, vec![]));
    let tags: Vec<u64> = rig.asked.iter().map(|(tag, _)| *tag).collect();
    // Told again and again, it counts once.
    [0, 0, 1].into_iter().for_each(|i: usize| rig.session.waits(tags[i]));
    write(&mut rig, 6);
    assert_eq!(rig.answer().status(), FULL);
    read(&mut rig, 7);
    rig.write(8, &transfer10(0x41, 8, 16), &[0; 512], 512);
    let made: Vec<BlockKind> = rig.asked[5..].iter().map(|(_, request)| request.kind).collect();
    assert_eq!(made, [BlockKind::Read, BlockKind::Zero { hole: false }], "what makes space");
    rig.fail(0, BlockError::Full);
    rig.fail(0, BlockError::Full);
    rig.answers();
    write(&mut rig, 9);
    assert_eq!(rig.answers(), [], "nothing waits any more");
    while !rig.asked.is_empty() {
        rig.serve(0);
    }
    assert_eq!((rig.session.requests(), rig.session.in_flight()), (0, 0));
}

#[test]
fn an_aborted_write_gives_its_places_back() {
    let mut rig = full(1, 1);
    let sn = rig.cmd_sn;
    write(&mut rig, 1);
    rig.session.waits(rig.asked[0].0);
    rig.ask(Request::management(9, 1, 1, sn));
    let Some(Told::Withdraw(tag)) = rig.told().pop() else { panic!("it withdraws") };
    assert_eq!(rig.session.requests(), 1, "until it has ended");
    rig.withdraw(tag);
    rig.answers();
    write(&mut rig, 2);
    assert_eq!((rig.asked.len(), rig.session.requests(), rig.answers()), (1, 1, vec![]));
}

/// Returns the blocks that the session holds besides its requests, and what may still come.
fn memory(rig: &Rig) -> (Vec<usize>, u64) {
    let mut blocks = Vec::new();
    let coming = rig.session.memory(&mut |data| blocks.extend(data.block().map(|block| block.1)));
    blocks.sort_unstable();
    (blocks, coming)
}

#[test]
fn memory_is_what_is_held_and_what_may_come() {
    let mut rig = full(100, 100);
    assert_eq!(memory(&rig), (vec![], 0));
    read(&mut rig, 1);
    assert_eq!(memory(&rig), (vec![], 512));
    // Of 64 KiB that may come, 1,000 bytes have: one sector went on, and 488 bytes wait.
    rig.ask(Request::command(2, 0x20, 1 << 20, &write10(0, 2048)).data(&[1; 1000]));
    assert_eq!(memory(&rig), (vec![4096], 512 + (64 << 10) - 1000));
    // A parameter list of two PDUs, and data to be compared.
    rig.ask(Request::command(3, 0x20, 512, &transfer10(0x41, 8, 16)).data(&[1; 100]));
    let mut verify = transfer10(0x2f, 8, 16);
    verify[1] = 2;
    rig.write(4, &verify, &[1; 8192], 8192);
    assert_eq!(memory(&rig), (vec![4096, 4096, 16384], 512 + (64 << 10) - 1000 + 412));
}

#[test]
fn a_read_does_not_begin_before_its_host_has_sent_what_it_announced() {
    let limits = Limits::SHIPPED;
    let mut rig = Rig::full(&limits, &[]);
    // READ with the bits R and W, and without F: unsolicited data is to come.
    for itt in 10..20 {
        rig.ask(Request::command(itt, 0x60, 2 << 20, &read10(0, 4096)));
    }
    assert_eq!(rig.answers(), []);
    assert_eq!(rig.pool.used(), 0, "nothing waits for a host that sends no more");
    rig.send(Request::data_out(10, NOBODY, 0, 0, true, &[7; 512]));
    assert_eq!(rig.answers().last().map(|answer| (answer.itt(), answer.status().0)), Some((10, 0)));
}

#[test]
fn small_pieces_keep_no_more_than_one_buffer_per_command() {
    let limits = Limits::SHIPPED;
    let mut rig = Rig::full(&limits, &[]);
    rig.serves = false;
    rig.write(5, &write10(0, 512), &[7; 512 * 512], 0);
    let ttt = rig.answer().u32(20);
    for i in 0..512 {
        let pdu = Request::data_out(5, ttt, i, i * 512, i == 511, &[7; 512]).bytes((false, false));
        rig.call(|session, hosts, pool, out| {
            let received = pool.alloc(256 << 10);
            session.frame(&pdu[..48], received.slice(0..512), hosts, pool, out);
        });
    }
    assert_eq!(rig.asked.len(), 512);
    let most = (limits.iscsi_window as usize + 8) * (256 << 10) + 512 * 4096;
    assert!(rig.pool.used() <= most, "{} bytes", rig.pool.used());
}
