//! Log pages, and events when namespaces and ports change.

use super::host::*;
use super::rig::*;
use base::Limits;
use target::ident;
use target::nvme::Path;

/// "Retain asynchronous event".
const RETAIN: u32 = 1 << 15;
/// The answers to commands that wait: an attribute of a namespace, a path, a port.
const NAMESPACES: u32 = 0x04_0002;
const PATHS: u32 = 0x0c_0302;
const PORTS: u32 = 0x70_f002;

fn admin() -> Rig {
    let mut rig = Rig::admin(&Limits::SHIPPED, Options::default());
    assert_eq!(rig.result(&Command::set_feature(1, 0x0b, 0x900)).0, 0);
    rig
}

fn wait(rig: &mut Rig, cid: u16) {
    rig.ask(&Command::new(0x0c, cid));
    assert!(rig.answers().is_empty());
}

fn ids(page: &[u8]) -> Vec<u32> {
    let ids = page.chunks(4).map(|id| u32::from_le_bytes(id.try_into().unwrap()));
    ids.take_while(|id| *id > 0).collect()
}

fn changed(cid: u16, flags: u32) -> Command {
    Command::log(cid, 0x04, flags, 0, 4096)
}

#[test]
fn a_change_of_namespaces_is_told_once_and_listed_completely() {
    let mut rig = admin();
    wait(&mut rig, 50);
    wait(&mut rig, 51);
    rig.review();
    assert!(rig.answers().is_empty(), "nothing has changed");
    rig.hosts.add(9, 4096);
    rig.review();
    assert_eq!(rig.answer().answer(), (50, 0, NAMESPACES));
    rig.hosts.seven().size += 4096;
    rig.review();
    assert!(rig.answers().is_empty(), "the host has not read of the first one");
    assert_eq!(ids(&rig.fetch(&changed(1, RETAIN))), [7, 9]);
    rig.hosts.namespaces.remove(&9);
    assert_eq!(ids(&rig.fetch(&changed(1, 0))), [7, 9], "as things are when it is read");
    rig.review();
    assert!(rig.answers().is_empty());
    assert!(ids(&rig.fetch(&changed(1, 0))).is_empty());
    rig.hosts.seven().read_only = true;
    rig.review();
    assert_eq!(rig.answer().answer(), (51, 0, NAMESPACES));
    assert_eq!(ids(&rig.fetch(&changed(1, 0))), [7]);
}

#[test]
fn a_change_before_anybody_waits_is_told_later() {
    let mut rig = admin();
    rig.hosts.add(9, 4096);
    rig.review();
    assert!(rig.answers().is_empty());
    rig.ask(&Command::new(0x0c, 50));
    assert_eq!(rig.answer().answer(), (50, 0, NAMESPACES));
}

#[test]
fn events_that_the_host_did_not_enable_are_not_told() {
    let mut rig = Rig::admin(&Limits::SHIPPED, Options::default());
    wait(&mut rig, 50);
    rig.hosts.add(9, 4096);
    rig.hosts.seven().path = Path::Inaccessible;
    rig.review();
    assert!(rig.answers().is_empty());
    rig.ask(&Command::set_feature(1, 0x0b, 0x100));
    let answers: Vec<_> = rig.answers().iter().map(Pdu::answer).collect();
    assert_eq!(answers, [(1, 0, 0), (50, 0, NAMESPACES)]);
}

#[test]
fn four_commands_wait_and_not_more() {
    let mut rig = admin();
    for cid in 50..54 {
        wait(&mut rig, cid);
    }
    assert_eq!(rig.result(&Command::new(0x0c, 54)).0, 0x4105);
}

#[test]
fn many_changes_are_told_as_many() {
    let mut rig = admin();
    let page = |rig: &mut Rig| ids(&rig.fetch(&changed(1, 0)));
    (1000..2023).for_each(|id| rig.hosts.add(id, 4096));
    assert_eq!(page(&mut rig).len(), 1023);
    rig.hosts.namespaces.values_mut().for_each(|ns| ns.size += 512);
    assert_eq!(page(&mut rig).len(), 1024);
    rig.hosts.namespaces.values_mut().for_each(|ns| ns.size += 512);
    rig.review();
    rig.hosts.namespaces.remove(&1000);
    rig.hosts.add(3000, 512);
    assert_eq!(page(&mut rig), [u32::MAX], "1025 have changed");
    assert!(page(&mut rig).is_empty());
}

#[test]
fn ways_are_groups_of_one_namespace() {
    let mut rig = admin();
    rig.hosts.add(9, 4096);
    rig.hosts.seven().path = Path::Inaccessible;
    let groups = |page: &[u8], len: usize| {
        let count = u16::from_le_bytes([page[8], page[9]]);
        let groups = page[16..].chunks(len).take(count.into());
        groups.map(|g| (ids(&g[..4])[0], g[4], g[16], ids(&g[32..]))).collect::<Vec<_>>()
    };
    let page = rig.fetch(&Command::log(1, 0x0c, 0, 0, 16 + 2 * 36));
    assert_eq!(groups(&page, 36), [(7, 1, 3, vec![7]), (9, 1, 1, vec![9])]);
    let page = rig.fetch(&Command::log(1, 0x0c, 1 << 8, 0, 16 + 2 * 32));
    assert_eq!(groups(&page, 32), [(7, 0, 3, vec![]), (9, 0, 1, vec![])]);
    rig.fetch(&changed(1, 0));
}

/// Reads the ANA log. Returns its change count, and the state of each group.
fn ways(rig: &mut Rig, flags: u32) -> (u64, Vec<(u32, u8)>) {
    let page = rig.fetch(&Command::log(1, 0x0c, flags, 0, 16 + 3 * 36));
    let count = u64::from_le_bytes(page[..8].try_into().unwrap());
    let groups = usize::from(u16::from_le_bytes([page[8], page[9]]));
    let groups: Vec<_> = page[16..].chunks(36).take(groups).collect();
    assert!(groups.iter().all(|g| g[8..16] == page[..8]), "each group has the count");
    (count, groups.iter().map(|g| (ids(&g[..4])[0], g[16])).collect())
}

#[test]
fn a_change_of_a_path_is_told_once_until_the_page_is_read() {
    const SERVES: u8 = 1;
    const ELSEWHERE: u8 = 3;
    let mut rig = admin();
    rig.hosts.add(9, 4096);
    let (mut count, before) = ways(&mut rig, 0);
    assert_eq!(before, [(7, SERVES), (9, SERVES)]);
    rig.fetch(&changed(1, 0));
    let (mut cid, mut waits) = (50, false);
    // A path of a namespace, whether this is told, how the host reads the page, and what it reads.
    for (id, path, told, flags, states) in [
        (7, Path::Inaccessible, true, 0, [ELSEWHERE, SERVES]),
        (7, Path::Inaccessible, false, 0, [ELSEWHERE, SERVES]),
        (9, Path::Inaccessible, true, 0, [ELSEWHERE, ELSEWHERE]),
        (7, Path::Optimized, true, RETAIN, [SERVES, ELSEWHERE]),
        (9, Path::Optimized, false, 0, [SERVES, SERVES]),
        (9, Path::Inaccessible, true, 0, [SERVES, ELSEWHERE]),
    ] {
        if !waits {
            wait(&mut rig, cid);
        }
        waits = !told;
        let moves = rig.hosts.namespaces[&id].path != path;
        rig.hosts.namespaces.get_mut(&id).unwrap().path = path;
        rig.review();
        let answers: Vec<_> = rig.answers().iter().map(Pdu::answer).collect();
        assert_eq!(answers, if told { vec![(cid, 0, PATHS)] } else { vec![] }, "{id} {path:?}");
        rig.review();
        assert!(rig.answers().is_empty(), "nothing has changed since");
        cid += u16::from(told);
        let now = ways(&mut rig, flags);
        count += u64::from(moves);
        assert_eq!(now, (count, vec![(7, states[0]), (9, states[1])]), "{id} {path:?}");
        assert!(ids(&rig.fetch(&changed(1, 0))).is_empty(), "no attribute has changed");
    }
}

#[test]
fn a_namespace_that_comes_is_not_told_as_a_change_of_a_path() {
    let mut rig = admin();
    wait(&mut rig, 50);
    wait(&mut rig, 51);
    let (count, _) = ways(&mut rig, 0);
    rig.hosts.add(9, 4096);
    rig.hosts.namespaces.get_mut(&9).unwrap().path = Path::Inaccessible;
    rig.review();
    assert_eq!(rig.answer().answer(), (50, 0, NAMESPACES));
    assert_eq!(ways(&mut rig, 0), (count + 1, vec![(7, 1), (9, 3)]), "the page has changed");
    rig.hosts.namespaces.remove(&9);
    assert_eq!(ways(&mut rig, 0), (count + 2, vec![(7, 1)]));
}

/// A discovery controller whose host wants to know of changes.
fn discovery() -> Rig {
    let mut rig = Rig::set_up(&Limits::SHIPPED, Options::default());
    assert_eq!(rig.connect(0, 0xffff, DISCOVERY, Options::default()).0, 0);
    assert_eq!(rig.result(&Command::property_set(2, 0x14, 0x0046_0001)).0, 0);
    assert_eq!(rig.result(&Command::set_feature(1, 0x0b, 1 << 31)).0, 0);
    rig
}

#[test]
fn the_discovery_log_names_each_port_twice() {
    let mut rig = discovery();
    let head = rig.fetch(&Command::log(1, 0x70, 0, 0, 16));
    assert_eq!((head[0], head[8], head.iter().map(|b| u32::from(*b)).sum::<u32>()), (5, 4, 9));
    let page = rig.fetch(&Command::log(1, 0x70, 0, 0, 5 * 1024));
    let text = |record: &[u8], at: usize, len: usize| {
        let text = String::from_utf8(record[at..at + len].to_vec()).unwrap();
        text.trim_end_matches(['\0', ' ']).to_string()
    };
    let records: Vec<_> = page[1024..]
        .chunks(1024)
        .map(|r| (r[1], r[2], text(r, 32, 32), text(r, 256, 256), text(r, 512, 256)))
        .collect();
    let (own, all) = (ident::nqn(CLUSTER), DISCOVERY.to_string());
    let four = |kind, name: &String| (1, kind, "4420".into(), name.clone(), "10.0.0.1".into());
    let six = |kind, name: &String| (2, kind, "8009".into(), name.clone(), "::1".into());
    assert_eq!(records, [four(2, &own), four(3, &all), six(2, &own), six(3, &all)]);
    for record in page[1024..].chunks(1024) {
        let gateway = if record[1] == 1 { 1 } else { 127 };
        let expected = (3, &[gateway, 0, 0xff, 0xff][..]);
        assert_eq!((record[0], &record[4..8]), expected, "TCP, port, any controller");
    }
    // In parts, as hosts with little memory read it.
    let part = rig.fetch(&Command::log(1, 0x70, 0, 2048, 1024));
    assert_eq!(part, page[2048..3072]);
}

#[test]
fn a_change_of_ports_is_told_once_until_the_log_is_read() {
    let mut rig = discovery();
    let read = |rig: &mut Rig, flags| {
        let head = rig.fetch(&Command::log(1, 0x70, flags, 0, 16));
        [0, 8].map(|at| u64::from_le_bytes(head[at..at + 8].try_into().unwrap()))
    };
    let third = portal("10.0.1.1:4420", 2);
    // Before anybody waits.
    rig.hosts.portals.push(third);
    rig.hosts.version = 6;
    rig.review();
    rig.ask(&Command::new(0x0c, 50));
    assert_eq!(rig.answer().answer(), (50, 0, PORTS));
    // Again, before the log was read.
    wait(&mut rig, 51);
    rig.hosts.portals.clear();
    rig.hosts.version = 7;
    rig.review();
    assert!(rig.answers().is_empty());
    assert_eq!(read(&mut rig, RETAIN), [7, 0]);
    assert_eq!(rig.answers().len(), 0, "the host keeps the event");
    assert_eq!(read(&mut rig, 0), [7, 0]);
    rig.review();
    assert!(rig.answers().is_empty(), "the log had the second change, too");
    // After it was read.
    rig.hosts.portals.push(third);
    rig.hosts.version = 8;
    rig.review();
    assert_eq!(rig.answer().answer(), (51, 0, PORTS));
    assert_eq!(read(&mut rig, 0), [8, 2]);
}

#[test]
fn a_host_that_does_not_enable_the_event_learns_of_ports_by_reading() {
    let mut rig = discovery();
    assert_eq!(rig.result(&Command::set_feature(1, 0x0b, 0)).0, 0);
    wait(&mut rig, 50);
    rig.hosts.version = 6;
    rig.review();
    assert!(rig.answers().is_empty());
    assert_eq!(rig.fetch(&Command::log(1, 0x70, 0, 0, 16))[0], 6);
}

#[test]
fn other_pages_are_those_of_a_healthy_controller() {
    let mut rig = admin();
    assert!(rig.fetch(&Command::log(1, 0x01, 0, 0, 64)).iter().all(|byte| *byte == 0));
    let health = rig.fetch(&Command::log(1, 0x02, 0, 0, 512));
    assert_eq!((health[0], health[3]), (0, 100));
    let firmware = rig.fetch(&Command::log(1, 0x03, 0, 0, 512));
    assert_eq!((firmware[0], &firmware[8..10]), (1, &b"0."[..]));
    let effects = rig.fetch(&Command::log(1, 0x05, 0, 0, 4096));
    let supported = |at: usize| {
        let opcodes = effects[at..at + 1024].chunks(4).enumerate();
        opcodes.filter(|(_, e)| e[0] > 0).map(|(o, e)| (o, e[0])).collect::<Vec<_>>()
    };
    let admin: Vec<_> = [2, 6, 8, 9, 10, 12, 24].map(|opcode| (opcode, 1)).into();
    assert_eq!(supported(0), admin);
    let reservations = [(13, 1), (14, 1), (17, 1), (21, 1)];
    assert_eq!(supported(1024)[..6], [(0, 1), (1, 3), (2, 1), (5, 1), (8, 3), (9, 3)]);
    assert_eq!(supported(1024)[6..], reservations);
}

#[test]
fn pages_that_are_not_there_are_refused() {
    let mut rig = admin();
    for page in [0x00, 0x06, 0x0d, 0x70, 0x81, 0xff] {
        assert_eq!(rig.result(&Command::log(1, page, 0, 0, 512)).0, 0x4109, "{page}");
    }
    let health = |offset, len| Command::log(1, 2, 0, offset, len);
    assert_eq!(rig.result(&health(0, (1 << 20) + 4)).0, 0x4002, "more than MDTS");
    assert_eq!(rig.result(&health(2, 512)).0, 0x4002, "not a dword");
    assert_eq!(rig.result(&health(516, 4)).0, 0x4002, "behind the end");
    assert_eq!(rig.result(&health(u64::MAX - 3, 4)).0, 0x4002);
    assert_eq!(rig.result(&health(0, 512).dword(14, 1 << 23)).0, 0x4002, "an index");
    assert_eq!(rig.fetch(&health(508, 8)), [0; 8], "the rest is zeros");
    let endless = health(0, 512).dword(10, 0xffff_0002).dword(11, 0xffff);
    assert_eq!(rig.result(&endless).0, 0x4002);
}
