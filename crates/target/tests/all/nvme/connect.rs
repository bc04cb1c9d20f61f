//! Connect, the properties of a controller, and its end.

use super::host::*;
use super::rig::*;
use base::Limits;
use target::ident;

const BUSY: u16 = 0x181;
const FIELD: u16 = 0x4182;
const SEQUENCE: u16 = 0x400c;
/// The offset is in the data.
const IN_DATA: u32 = 1 << 16;

fn set_up() -> Rig {
    let mut rig = Rig::set_up(&Limits::SHIPPED, Options::default());
    rig.hosts.controller = Some(controller());
    rig
}

/// Connects with this command and data.
fn connect(rig: &mut Rig, command: Command, data: &[u8]) -> (u16, u32) {
    rig.result(&command.carries(data))
}

fn data(cntlid: u16) -> Vec<u8> {
    connect_data(HOST_ID, cntlid, &ident::nqn(CLUSTER), HOST)
}

#[test]
fn connect_names_the_field_that_is_wrong() {
    let own = ident::nqn(CLUSTER);
    let admin = || Command::connect(1, 0, 31, 5000);
    let io = || Command::connect(1, 1, 127, 0);
    let to = |subsystem: &str| connect_data(HOST_ID, 0xffff, subsystem, HOST);
    let of = |id, host: &str| connect_data(id, CNTLID, &own, host);
    let endless = vec![b'x'; 1024];
    // The command, its data, the status, and the field.
    let table = [
        (admin().put(40, &[1]), data(0xffff), (0x4180, 0)),
        (admin().put(44, &[0]), data(0xffff), (FIELD, 44)),
        (admin().put(44, &[128]), data(0xffff), (FIELD, 44)),
        (admin(), data(1), (FIELD, IN_DATA | 16)),
        (admin(), to("nqn.2014-08.org.nvmexpress:uuid:other"), (FIELD, IN_DATA | 256)),
        (admin(), to(""), (FIELD, IN_DATA | 256)),
        (admin(), endless, (FIELD, IN_DATA | 512)),
        (admin(), connect_data(HOST_ID, 0xffff, &own, ""), (FIELD, IN_DATA | 512)),
        (admin(), connect_data(HOST_ID, 0xffff, &own, "nqn.\u{1b}[2J"), (FIELD, IN_DATA | 512)),
        (admin(), connect_data(HOST_ID, 0xffff, &own, "nqn.\u{202e}a"), (FIELD, IN_DATA | 512)),
        (
            admin(),
            connect_data(HOST_ID, 0xffff, &own, "iqn.2026-11.test:a"),
            (FIELD, IN_DATA | 512),
        ),
        (admin(), connect_data(HOST_ID, 0xffff, &own, "nqn.stranger"), (0x4184, 0)),
        (io(), data(CNTLID + 1), (FIELD, IN_DATA | 16)),
        (io(), data(0xffff), (FIELD, IN_DATA | 16)),
        (io(), of(1, HOST), (FIELD, IN_DATA)),
        (io().put(42, &[17]), data(CNTLID), (FIELD, 42)),
        (admin(), Vec::new(), (0x400f, 0)),
    ];
    for (command, data, result) in table {
        let mut rig = set_up();
        assert_eq!(connect(&mut rig, command.clone(), &data), result, "{command:02x?}");
        assert!(rig.session.controller().is_none() && rig.session.io_queue().is_none());
        // The link can still become a queue.
        assert_eq!(rig.connect(1, CNTLID, &own, Options::default()), (0, CNTLID.into()));
    }
}

#[test]
fn a_link_becomes_a_queue_once_and_is_nothing_before() {
    let mut rig = set_up();
    assert_eq!(rig.result(&Command::new(0x18, 3)).0, SEQUENCE);
    assert_eq!(rig.result(&Command::property_get(3, 0, 1)).0, SEQUENCE);
    assert_eq!(rig.connect(1, CNTLID, &ident::nqn(CLUSTER), Options::default()).0, 0);
    assert_eq!(rig.session.io_queue(), Some((CNTLID, 1)));
    assert_eq!(rig.connect(2, CNTLID, &ident::nqn(CLUSTER), Options::default()).0, SEQUENCE);
    assert_eq!(rig.session.io_queue(), Some((CNTLID, 1)));
}

#[test]
fn io_queues_need_a_controller_that_is_ready() {
    let mut rig = set_up();
    rig.hosts.controller.as_mut().unwrap().ready = false;
    assert_eq!(rig.connect(1, CNTLID, &ident::nqn(CLUSTER), Options::default()).0, SEQUENCE);
    rig.hosts.controller.as_mut().unwrap().ready = true;
    rig.hosts.queues.push((CNTLID, 1));
    assert_eq!(rig.connect(1, CNTLID, &ident::nqn(CLUSTER), Options::default()).0, SEQUENCE);
    rig.hosts.controller.as_mut().unwrap().discovery = true;
    assert_eq!(rig.connect(2, CNTLID, DISCOVERY, Options::default()), (FIELD, 42));
    rig.hosts.controller.as_mut().unwrap().discovery = false;
    assert_eq!(rig.connect(2, CNTLID, &ident::nqn(CLUSTER), Options::default()).0, 0);
}

#[test]
fn a_busy_gateway_takes_no_new_host() {
    let mut rig = set_up();
    rig.hosts.busy = true;
    let own = ident::nqn(CLUSTER);
    for name in [&own, "a name that the gateway does not have yet"] {
        assert_eq!(rig.connect(0, 0xffff, name, Options::default()).0, BUSY);
    }
    assert_eq!(rig.connect(1, CNTLID, &own, Options::default()).0, 0, "a queue of a host it has");
}

#[test]
fn connect_takes_its_data_also_when_asked_for_it() {
    let mut rig = set_up();
    rig.ask(&Command::connect(9, 1, 127, 0).at_host(1024));
    let r2t = rig.answer();
    rig.give(&r2t, &data(CNTLID), 300);
    assert_eq!(rig.answer().answer(), (9, 0, CNTLID.into()));
    assert_eq!((rig.session.in_flight(), rig.session.bytes()), (0, (0, 0)));
}

#[test]
fn properties_say_what_the_controller_can_do() {
    let mut rig = Rig::admin(&Limits::SHIPPED, Options::default());
    let mut get = |offset, size| {
        rig.ask(&Command::property_get(3, offset, size));
        let answer = rig.answer();
        let (_, status, low) = answer.answer();
        (status, u64::from(answer.u32(12)) << 32 | u64::from(low))
    };
    assert_eq!(get(0x00, 1), (0, 127 | 1 << 16 | 30 << 24 | 1 << 37));
    assert_eq!(get(0x08, 0), (0, 0x10400));
    assert_eq!(get(0x14, 0), (0, 0x46_0001));
    assert_eq!(get(0x1c, 0), (0, 1));
    for (offset, size) in [(0, 0), (8, 1), (0x20, 0), (4, 0)] {
        assert_eq!(get(offset, size).0, 0x4002, "{offset}");
    }
    assert_eq!(rig.result(&Command::property_set(3, 0x1c, 0)).0, 0x4002);
}

fn status(rig: &mut Rig) -> u32 {
    rig.result(&Command::property_get(3, 0x1c, 0)).1
}

#[test]
fn a_controller_is_ready_with_a_configuration_that_it_knows() {
    let own = ident::nqn(CLUSTER);
    for (configuration, expected) in
        [(0x46_0001, 1), (0x46_0081, 2), (0x46_0011, 2), (0x47_0001, 2), (0x46_0801, 2)]
    {
        let mut rig = set_up();
        assert_eq!(rig.connect(0, 0xffff, &own, Options::default()).0, 0);
        assert_eq!((status(&mut rig), rig.session.controller().unwrap().ready), (0, false));
        assert_eq!(rig.result(&Command::identify(4, 1, 0)).0, SEQUENCE, "not enabled");
        rig.result(&Command::property_set(3, 0x14, configuration));
        assert_eq!(status(&mut rig), expected, "{configuration:x}");
        assert_eq!(rig.session.controller().unwrap().ready, expected == 1);
    }
}

#[test]
fn a_reset_is_done_when_the_queues_have_ended() {
    let mut rig = Rig::admin(&Limits::SHIPPED, Options::default());
    rig.ask(&Command::new(0x0c, 9));
    assert!(rig.session.controller().unwrap().ready);
    assert_eq!(rig.result(&Command::property_set(3, 0x14, 0x46_0000)).0, 0);
    assert_eq!(rig.told(), [Told::Clear]);
    assert!(!rig.session.controller().unwrap().ready);
    assert_eq!(status(&mut rig), 1, "commands may still take effect");
    rig.session.others_cleared();
    assert_eq!(status(&mut rig), 0);
    assert_eq!(rig.result(&Command::property_set(3, 0x14, 0x46_0001)).0, 0);
    assert_eq!((status(&mut rig), rig.session.controller().unwrap().ready), (1, true));
    assert_eq!(rig.told(), []);
}

#[test]
fn a_shutdown_is_complete_when_the_queues_have_ended() {
    let mut rig = Rig::admin(&Limits::SHIPPED, Options::default());
    assert_eq!(rig.result(&Command::property_set(3, 0x14, 0x46_4001)).0, 0);
    assert_eq!((rig.told(), status(&mut rig)), (vec![Told::Clear], 1 | 1 << 2));
    assert!(!rig.session.controller().unwrap().ready);
    rig.session.others_cleared();
    assert_eq!(status(&mut rig), 1 | 2 << 2);
    assert_eq!(rig.result(&Command::property_set(3, 0x14, 0x46_4000)).0, 0);
    rig.session.others_cleared();
    assert_eq!(status(&mut rig) & 1, 0);
}

#[test]
fn a_queue_leaves_and_an_admin_queue_does_not() {
    let mut rig = Rig::io(&Limits::SHIPPED, Options::default());
    assert_eq!(rig.result(&Command::fabrics(8, 5)).0, 0);
    assert_eq!(rig.told(), [Told::Close(None)]);
    let mut rig = Rig::admin(&Limits::SHIPPED, Options::default());
    assert_eq!(rig.result(&Command::fabrics(8, 5)).0, 0x4002);
    let mut rig = Rig::io(&Limits::SHIPPED, Options::default());
    assert_eq!(rig.result(&Command::property_get(3, 0, 1)).0, 0x4002, "not on an I/O queue");
}

#[test]
fn time_ends_strangers_and_silent_hosts() {
    let mut rig = set_up();
    rig.tick(10);
    rig.tick(24);
    assert!(!rig.session.is_closed());
    rig.tick(25);
    assert_eq!(rig.told(), [Told::Close(Some("has not connected in time"))]);

    let mut rig = Rig::admin(&Limits::SHIPPED, Options::default());
    for second in [0, 4, 6] {
        rig.tick(second); // a time-out of 5 s, and one more
    }
    assert_eq!(rig.result(&Command::new(0x18, 1)).0, 0);
    for second in [7, 13] {
        rig.tick(second);
    }
    assert!(!rig.session.is_closed());
    rig.tick(14);
    assert_eq!(rig.told(), [Told::Close(Some("sent no keep alive in time"))]);

    let mut rig = Rig::admin(&Limits::SHIPPED, Options::default());
    assert_eq!(rig.result(&Command::set_feature(1, 0x0f, 0)).0, 0);
    rig.tick(0);
    rig.tick(10_000);
    assert!(!rig.session.is_closed(), "the host has no time-out");
    let mut rig = Rig::io(&Limits::SHIPPED, Options::default());
    rig.tick(0);
    rig.tick(10_000);
    assert!(!rig.session.is_closed(), "an I/O queue may be silent");
}

#[test]
fn more_commands_than_entries_end_the_link() {
    let mut rig = Rig::io(&Limits::TEST_MIN, Options::default());
    rig.serves = false;
    for cid in 0..8 {
        rig.ask(&Command::read(cid, 0, 1));
    }
    assert!(!rig.session.is_closed() && rig.session.in_flight() == 8);
    rig.ask(&Command::read(8, 0, 1));
    assert_eq!(rig.fault(), (2, 0));
}
