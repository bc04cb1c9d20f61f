//! Reservations: what the MDM is asked for, what is reported, and what a host is told of others.

use super::host::*;
use super::rig::*;
use base::{Limits, VolumeId};
use seam::BlockError;
use target::reserve::{Access, Change, Identity, Kind, Notice, Refusal, Registrant, Table};
use target::{Asked, Question};

const CONFLICT: u16 = 0x4083;
const FIELD: u16 = 0x4002;
const REGISTER: u8 = 0x0d;
const REPORT: u8 = 0x0e;
const ACQUIRE: u8 = 0x11;
const RELEASE: u8 = 0x15;
const IGNORE: u32 = 1 << 3;
/// The answer to a command that waits: a notice about reservations.
const NOTICE: u32 = 0x80_0006;

fn io() -> Rig {
    Rig::io(&Limits::SHIPPED, Options::default())
}

fn admin() -> Rig {
    Rig::admin(&Limits::SHIPPED, Options::default())
}

/// A reservation command with these keys.
fn command(opcode: u8, ten: u32, keys: &[u64]) -> Command {
    let keys: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
    Command::new(opcode, 3).nsid(7).dword(10, ten).carries(&keys)
}

/// Reservation Report of this many bytes.
fn report(len: usize) -> Command {
    let command = Command::new(REPORT, 4).nsid(7).dword(10, len as u32 / 4 - 1);
    command.dword(11, 1).at_host(len)
}

fn changes(rig: &mut Rig) -> (u64, Change) {
    match rig.question() {
        (tag, Question::Reserve(change)) => (tag, change),
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_action_asks_for_its_change() {
    let (key, new) = (0x0102_0304_0506_0708, 9);
    let (kind, number) = (Kind::ExclusiveAccessAll, 6 << 8);
    let table = [
        (command(REGISTER, 0, &[key, new]), Change::RegisterNvme { key: new }),
        (command(REGISTER, IGNORE, &[key, new]), Change::RegisterNvme { key: new }),
        (command(REGISTER, 1, &[key, new]), Change::ReplaceNvme { key, new: 0, ignore: false }),
        (command(REGISTER, 2, &[key, new]), Change::ReplaceNvme { key, new, ignore: false }),
        (command(REGISTER, 2 | IGNORE, &[0, 9]), Change::ReplaceNvme { key: 0, new, ignore: true }),
        (command(REGISTER, 3 << 30, &[key, new]), Change::RegisterNvme { key: new }),
        (command(REGISTER, 2 << 30, &[key, new]), Change::RegisterNvme { key: new }),
        (command(ACQUIRE, number, &[key, 0]), Change::Reserve { key, kind }),
        (command(ACQUIRE, number | 1, &[key, 9]), Change::Preempt { key, victim: 9, kind }),
        (command(ACQUIRE, number | 2, &[key, 9]), Change::Preempt { key, victim: 9, kind }),
        (command(RELEASE, number, &[key]), Change::Release { key, kind }),
        (command(RELEASE, 1, &[key]), Change::Clear { key }),
        // Linux sends two keys.
        (command(RELEASE, 1, &[key, 0]), Change::Clear { key }),
    ];
    for (command, change) in table {
        let mut rig = io();
        rig.ask(&command);
        let (tag, asked) = changes(&mut rig);
        assert_eq!(asked, change, "{command:?}");
        assert!(rig.answers().is_empty(), "it is not done yet");
        rig.reply(tag, Asked::Reserved(Ok(())));
        assert_eq!(rig.answer().answer(), (3, 0, 0));
        rig.reply(tag, Asked::Reserved(Ok(())));
        assert!(rig.answers().is_empty() && rig.session.in_flight() == 0, "it is over");
    }
}

#[test]
fn what_is_no_reservation_command_asks_for_nothing() {
    let table = [
        (command(REGISTER, 3, &[1, 2]), FIELD, "no action"),
        (command(REGISTER, 1 << 30, &[1, 2]), FIELD, "a reserved persistence"),
        (command(REGISTER, 0, &[1, 0]), FIELD, "a key of 0"),
        (command(REGISTER, 2, &[1, 0]), FIELD, "a key of 0"),
        (command(ACQUIRE, 3 | 1 << 8, &[1, 2]), FIELD, "no action"),
        (command(ACQUIRE, 0, &[1, 2]), FIELD, "no type"),
        (command(ACQUIRE, 7 << 8, &[1, 2]), FIELD, "no type"),
        (command(ACQUIRE, IGNORE | 1 << 8, &[1, 2]), FIELD, "the key does matter"),
        (command(RELEASE, 2 | 1 << 8, &[1]), FIELD, "no action"),
        (command(RELEASE, 0, &[1]), FIELD, "no type"),
        (command(RELEASE, 1 | IGNORE, &[1]), FIELD, "the key does matter"),
        (command(REGISTER, 0, &[1]), 0x400f, "too little data"),
        (command(RELEASE, 1, &[]), 0x400f, "no data"),
        (command(REGISTER, 0, &[1, 2]).nsid(8), 0x400b, "no such namespace"),
        (command(REGISTER, 0, &[1, 2]).nsid(u32::MAX), 0x400b, "all namespaces"),
        (report(64).dword(11, 0), 0x4018, "a host identifier of 8 bytes"),
        (report(64).at_host(60), 0x400f, "no room"),
        (report((1 << 20) + 4), FIELD, "more than MDTS"),
        (report(64).dword(10, u32::MAX), FIELD, "more than MDTS"),
    ];
    for (command, status, why) in table {
        let mut rig = io();
        assert_eq!(rig.result(&command).0, status, "{why}");
        assert!(rig.told().is_empty() && rig.session.in_flight() == 0, "{why}");
    }
}

/// All hosts without an identifier would be one.
#[test]
fn a_host_without_an_identifier_registers_nowhere() {
    let own = target::ident::nqn(CLUSTER);
    let mut rig = Rig::set_up(&Limits::SHIPPED, Options::default());
    rig.hosts.controller = Some(target::nvme::Controller { host_id: [0; 16], ..controller() });
    let data = connect_data(0, CNTLID, &own, HOST);
    assert_eq!(rig.result(&Command::connect(1, 1, 127, 0).carries(&data)).0, 0);
    for command in [command(REGISTER, 0, &[0, 2]), command(RELEASE, 1, &[2])] {
        assert_eq!(rig.result(&command).0, 0x400c);
    }
    rig.ask(&report(64));
    assert!(matches!(rig.question().1, Question::Report));
}

#[test]
fn refusals_have_their_status() {
    let table = [
        (Refusal::Conflict, CONFLICT),
        (Refusal::NoVictim, FIELD),
        (Refusal::WrongKind, FIELD),
        (Refusal::Full, 0x4006),
    ];
    for (why, status) in table {
        let mut rig = io();
        rig.ask(&command(ACQUIRE, 1 | 1 << 8, &[1, 2]));
        let (tag, _) = rig.question();
        rig.reply(tag, Asked::Reserved(Err(why)));
        assert_eq!(rig.answer().answer(), (3, status, 0), "{why:?}");
    }
    let mut rig = io();
    for command in [command(RELEASE, 1, &[1]), report(64)] {
        rig.ask(&command);
        let (tag, _) = rig.question();
        rig.reply(tag, Asked::Nobody);
        assert_eq!(rig.answer().answer().1, 0x1882, "the host repeats it later");
    }
}

#[test]
fn the_keys_may_come_later() {
    let mut rig = io();
    rig.ask(&Command::new(REGISTER, 3).nsid(7).at_host(16));
    let r2t = rig.answer();
    rig.give(&r2t, &[1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0], 5);
    assert_eq!(changes(&mut rig).1, Change::RegisterNvme { key: 2 });
}

fn three() -> Table {
    let scsi = Identity::Scsi { name: "iqn.a".into(), isid: [1; 6], port: 1 };
    let nvme = |n| Identity::Nvme { host: [n; 16] };
    let registrant = |key, who, holds| Registrant { key, who, holds, since: 0 };
    Table {
        generation: 0x0102_0304,
        reserved: Some(Kind::ExclusiveAccess),
        registrants: vec![
            registrant(10, nvme(1), false),
            registrant(11, scsi, true),
            registrant(12, nvme(2), false),
        ],
        since: 0,
    }
}

#[test]
fn a_report_has_all_registrants_of_both_protocols() {
    let mut rig = io();
    let mut fetch = |len: usize, table: &Table| {
        rig.ask(&report(len));
        let (tag, question) = rig.question();
        assert_eq!((question, rig.session.bytes().1), (Question::Report, len as u64));
        rig.reply(tag, Asked::Table(table));
        let [data, answer] = &rig.answers()[..] else { panic!("no report") };
        assert_eq!((answer.answer(), data.data.len()), ((4, 0, 0), len));
        assert_eq!((rig.session.in_flight(), rig.session.bytes()), (0, (0, 0)));
        data.data.clone()
    };
    let page = fetch(8192, &three());
    assert_eq!(page[..10], [4, 3, 2, 1, 2, 3, 0, 0, 0, 1], "generation, type, number, persistent");
    let record = |n: usize| page[64 * (n + 1)..][..64].to_vec();
    for (n, (key, host, holds)) in [(10, 1, 0), (11, 0, 1), (12, 2, 0)].into_iter().enumerate() {
        let record = record(n);
        assert_eq!(record[..3], [0xff, 0xff, holds], "any controller");
        assert_eq!((record[8], &record[16..32]), (key, &[host; 16][..]));
        assert!(record[32..].iter().all(|byte| *byte == 0));
    }
    assert!(page[256..].iter().all(|byte| *byte == 0));
    // A host that has less room gets a part, and the number of all.
    assert_eq!(fetch(132, &three()), page[..132]);
    assert_eq!(fetch(4, &three()), page[..4]);
    let mut all = three();
    (all.reserved, all.registrants[1].holds) = (Some(Kind::WriteExclusiveAll), false);
    let page = fetch(256, &all);
    assert_eq!([page[4], page[66], page[130], page[194]], [5, 1, 1, 1], "all hold it");
    assert_eq!(fetch(64, &Table::default())[..10], [0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
}

#[test]
fn reports_wait_for_their_turn_like_reads() {
    let mut rig = Rig::io(&Limits::SHIPPED, Options::default());
    for _ in 0..5 {
        rig.ask(&report(1 << 20));
    }
    let asked = rig.told();
    assert_eq!((asked.len(), rig.session.bytes().1), (4, 4 << 20));
    let Told::Ask(tag, _) = asked[0] else { panic!("{asked:?}") };
    rig.reply(tag, Asked::Nobody);
    assert_eq!(rig.answer().answer().1, 0x1882);
    assert!(matches!(rig.question().1, Question::Report), "the fifth");
}

#[test]
fn a_host_that_is_shut_out_does_nothing_more_and_others_notice_nothing() {
    let left = |rig: &mut Rig, read, write| {
        let left = Access { read, write };
        rig.call(|session, _, pool, out| session.reserved(VolumeId(7), left, pool, out));
    };
    let mut rig = io();
    rig.serves = false;
    rig.ask(&Command::write(1, 0, 8));
    let r2t = rig.answer();
    rig.ask(&Command::blocks(0x01, 2, 8, 1).carries(&[1; 512]));
    rig.ask(&Command::read(3, 0, 1));
    rig.ask(&command(REGISTER, 0, &[0, 2]).put(2, &[4]));
    rig.ask(&Command::deallocate(5, &[(0, 8)]));
    let (tag, _) = rig.question();
    left(&mut rig, true, true);
    assert_eq!(rig.asked.len(), 3);
    left(&mut rig, true, false);
    assert!(rig.answers().is_empty());
    // Its data comes, and goes nowhere.
    rig.give(&r2t, &[1; 4096], 1024);
    assert_eq!((rig.answer().answer(), rig.asked.len()), ((1, CONFLICT, 0), 3));
    // The owner ends its requests.
    rig.fail(2, BlockError::Reserved);
    rig.fail(0, BlockError::Reserved);
    rig.serve(0);
    rig.reply(tag, Asked::Reserved(Ok(())));
    let answers: Vec<_> = rig.answers().iter().filter(|a| a.kind() == 5).map(Pdu::answer).collect();
    assert_eq!(answers, [(5, CONFLICT, 0), (2, CONFLICT, 0), (3, 0, 0), (4, 0, 0)]);
    // What has not begun does not begin.
    for first in 0..5 {
        rig.ask(&Command::read(10 + first, 0, 2048));
    }
    assert_eq!(rig.asked.len(), 4);
    left(&mut rig, false, false);
    assert_eq!(rig.answer().answer(), (14, CONFLICT, 0));
    for _ in 0..4 {
        rig.fail(0, BlockError::Reserved);
    }
    let answers: Vec<_> = rig.answers().iter().map(Pdu::answer).collect();
    assert_eq!(answers, [10, 11, 12, 13].map(|cid| (cid, CONFLICT, 0)));
    assert_eq!((rig.session.in_flight(), rig.session.bytes()), (0, (0, 0)));
}

#[test]
fn a_change_under_way_is_answered_even_if_the_mapping_ends() {
    let mut rig = io();
    rig.ask(&command(RELEASE, 1, &[1]));
    let (tag, _) = rig.question();
    rig.call(|session, _, pool, out| session.fenced(VolumeId(7), true, pool, out));
    assert!(rig.answers().is_empty());
    rig.reply(tag, Asked::Reserved(Ok(())));
    assert_eq!(rig.answer().answer(), (3, 0, 0), "it is done");
    rig.ask(&report(64));
    let (tag, _) = rig.question();
    rig.call(|session, _, pool, out| session.fenced(VolumeId(7), false, pool, out));
    rig.reply(tag, Asked::Table(&three()));
    assert_eq!(rig.answer().answer(), (4, 0x400b, 0));
}

fn notify(rig: &mut Rig, volume: u32, notice: Notice) {
    rig.call(|session, _, pool, out| session.notify(VolumeId(volume), notice, pool, out));
}

/// The oldest notice: number, type, how many more, namespace.
fn oldest(rig: &mut Rig, flags: u32) -> (u8, u8, u8, u8) {
    let page = rig.fetch(&Command::log(1, 0x80, flags, 0, 64));
    assert!(page[13..].iter().all(|byte| *byte == 0));
    (page[0], page[8], page[9], page[12])
}

#[test]
fn notices_are_read_one_by_one() {
    const RETAIN: u32 = 1 << 15;
    let mut rig = admin();
    rig.hosts.add(9, 4096);
    assert_eq!(oldest(&mut rig, 0), (0, 0, 0, 0));
    for cid in 50..53 {
        rig.ask(&Command::new(0x0c, cid));
    }
    notify(&mut rig, 7, Notice::RegistrationsPreempted);
    assert_eq!(rig.answer().answer(), (50, 0, NOTICE), "no other feature enables it");
    notify(&mut rig, 9, Notice::ReservationsReleased);
    notify(&mut rig, 7, Notice::ReservationsPreempted);
    assert!(rig.answers().is_empty(), "the host has not read of the first one");
    assert_eq!(oldest(&mut rig, RETAIN), (1, 1, 2, 7));
    rig.ask(&Command::log(1, 0x80, 0, 0, 64));
    let answers = rig.answers();
    assert_eq!(answers[0].data[..10], [1, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
    assert_eq!(answers[2].answer(), (51, 0, NOTICE), "there are more");
    rig.ask(&Command::log(1, 0x80, 0, 0, 64));
    let answers = rig.answers();
    assert_eq!((answers[0].data[0], answers[2].answer()), (2, (52, 0, NOTICE)));
    assert_eq!(oldest(&mut rig, 0), (3, 3, 0, 7));
    assert_eq!(oldest(&mut rig, 0), (0, 0, 0, 0));
    // A reset forgets them.
    notify(&mut rig, 7, Notice::ReservationsPreempted);
    rig.ask(&Command::property_set(2, 0x14, 0x0046_0000));
    rig.call(|session, _, _, _| session.others_cleared());
    rig.ask(&Command::property_set(2, 0x14, 0x0046_0001));
    rig.answers();
    assert_eq!(oldest(&mut rig, 0), (0, 0, 0, 0));
}

#[test]
fn a_host_masks_what_it_does_not_want_to_know() {
    let set = |nsid, mask| Command::set_feature(1, 0x82, mask).nsid(nsid);
    let get = |nsid| Command::get_feature(1, 0x82).nsid(nsid);
    let mut rig = admin();
    rig.hosts.add(9, 4096);
    assert_eq!(rig.result(&get(7)), (0, 0));
    assert_eq!(rig.result(&set(7, 1 << 1)), (0, 0));
    assert_eq!((rig.result(&get(7)), rig.result(&get(9))), ((0, 2), (0, 0)));
    notify(&mut rig, 7, Notice::RegistrationsPreempted);
    notify(&mut rig, 9, Notice::RegistrationsPreempted);
    assert_eq!(oldest(&mut rig, 0), (1, 1, 0, 9));
    assert_eq!(rig.result(&set(u32::MAX, 0x0c)), (0, 0));
    assert_eq!((rig.result(&get(7)), rig.result(&get(9))), ((0, 12), (0, 12)));
    notify(&mut rig, 7, Notice::ReservationsReleased);
    notify(&mut rig, 9, Notice::ReservationsPreempted);
    assert_eq!(oldest(&mut rig, 0), (0, 0, 0, 0));
    assert_eq!(rig.result(&set(7, 1)).0, FIELD);
    assert_eq!(rig.result(&set(7, 0x10)).0, FIELD);
    for nsid in [0, 8] {
        assert_eq!((rig.result(&set(nsid, 0)).0, rig.result(&get(nsid)).0), (0x400b, 0x400b));
    }
    assert_eq!(rig.result(&get(u32::MAX)).0, 0x400b, "each has its own");
    // A namespace that has gone and comes back is a new one.
    rig.hosts.namespaces.remove(&9);
    rig.review();
    rig.hosts.add(9, 4096);
    assert_eq!(rig.result(&get(9)), (0, 0));
}

#[test]
fn reservations_outlive_a_loss_of_power() {
    let mut rig = admin();
    assert_eq!(rig.result(&Command::get_feature(1, 0x83).nsid(7)), (0, 1));
    for nsid in [7, u32::MAX] {
        assert_eq!(rig.result(&Command::set_feature(1, 0x83, 1).nsid(nsid)), (0, 0));
        assert_eq!(rig.result(&Command::set_feature(1, 0x83, 0).nsid(nsid)).0, 0x410e);
    }
    for nsid in [0, 8] {
        assert_eq!(rig.result(&Command::get_feature(1, 0x83).nsid(nsid)).0, 0x400b);
        assert_eq!(rig.result(&Command::set_feature(1, 0x83, 1).nsid(nsid)).0, 0x400b);
    }
    assert_eq!(rig.result(&Command::get_feature(1, 0x83).nsid(u32::MAX)).0, 0x400b);
}

#[test]
fn a_discovery_controller_has_no_reservations() {
    let mut rig = Rig::set_up(&Limits::SHIPPED, Options::default());
    assert_eq!(rig.connect(0, 0xffff, DISCOVERY, Options::default()).0, 0);
    assert_eq!(rig.result(&Command::property_set(2, 0x14, 0x0046_0001)).0, 0);
    rig.ask(&Command::new(0x0c, 50));
    notify(&mut rig, 7, Notice::ReservationsReleased);
    assert!(rig.answers().is_empty());
    assert_eq!(rig.result(&Command::log(1, 0x80, 0, 0, 64)).0, 0x4109);
    assert_eq!(rig.result(&Command::get_feature(1, 0x82).nsid(7)).0, FIELD);
}
