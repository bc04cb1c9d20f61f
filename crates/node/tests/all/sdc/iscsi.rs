//! iSCSI sessions of the SDC: what becomes of commands when sessions, volumes and servers change.

use super::cluster::{Cluster, UNITS, VOLUME, Who};
use super::iscsi_host::{Host, transfer};
use base::Limits;
use core::time::Duration;
use mdm::mapping::Mapping;
use seam::Node;
use wire::Status;
use wire::control::Access;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Sense data of a command that had no primary, and of one that had no space. Hosts repeat both.
const NO_PRIMARY: (u8, u8, u8) = (2, 4, 1);
const NO_SPACE: (u8, u8, u8) = (2, 4, 0x14);

fn kill_servers(c: &mut Cluster) {
    [Who::Server(1), Who::Server(2)].into_iter().for_each(|who| c.kill(who));
}

fn start_servers(c: &mut Cluster) {
    c.alive = [1, 101, 102].into();
    c.pass(Duration::from_secs(3));
}

#[test]
fn a_host_logs_in_writes_and_reads() {
    let mut c = Cluster::ready();
    let mut host = Host::attached(&mut c, 1);
    assert!(c.log.welcome.contains(&host.link));
    let data: Vec<u8> = (0..65536u32).map(|i| (i / 7) as u8).collect();
    host.command(&mut c, 2, &transfer(0x2a, 3, 128), 0, &data);
    assert_eq!(host.answer(&mut c).result(), Ok(()));
    assert_eq!(c.data[3 * 512..][..65536], data);
    host.command(&mut c, 3, &transfer(0x28, 3, 128), 65536, &[]);
    let pdus = host.answers(&mut c);
    assert_eq!(pdus.last().unwrap().result(), Ok(()));
    let read: Vec<u8> = pdus.into_iter().flat_map(|pdu| pdu.data).collect();
    assert_eq!(read, data);
    c.pass(ms(500));
    assert_eq!(c.log.attached, [VOLUME.0]);
    c.cut_link(host.link);
    c.pass(ms(500));
    assert!(c.log.attached.is_empty());
}

/// Two hosts lock the same place of a disk, as cluster file systems do.
#[test]
fn of_two_hosts_that_compare_and_write_one_range_one_succeeds() {
    let mut c = Cluster::ready();
    let mut hosts = [1, 2].map(|isid| Host::attached(&mut c, isid));
    let mut cdb = [0; 16];
    (cdb[0], cdb[9], cdb[13]) = (0x89, 5, 1);
    let mut lock = |c: &mut Cluster, host: usize, itt: u32, from: u8, to: u8| {
        let data = [[from; 512], [to; 512]].concat();
        hosts[host].command(c, itt, &cdb, 0, &data);
        let answer = hosts[host].answer(c);
        (answer.result(), answer.data.get(5..9).map(<[u8]>::to_vec))
    };
    const MISCOMPARE: (u8, u8, u8) = (0xe, 0x1d, 0);
    assert_eq!(lock(&mut c, 0, 2, 0, 7), (Ok(()), None));
    assert_eq!(lock(&mut c, 1, 2, 0, 8), (Err(MISCOMPARE), Some(vec![0; 4])));
    assert_eq!(c.data[5 * 512..][..512], [7; 512]);
    c.data[5 * 512 + 300] = 9;
    let at = 300u32.to_be_bytes().to_vec();
    assert_eq!(lock(&mut c, 0, 3, 7, 0), (Err(MISCOMPARE), Some(at)));
    c.next_status = Some(Status::Damaged);
    c.data[5 * 512 + 300] = 7;
    assert_eq!(lock(&mut c, 0, 4, 7, 0), (Ok(()), None));
    assert_eq!(lock(&mut c, 1, 3, 0, 8), (Ok(()), None));
    assert_eq!(c.data[5 * 512..][..512], [8; 512]);
}

#[test]
fn unknown_hosts_are_refused_and_links_without_a_login_are_closed() {
    let mut c = Cluster::ready();
    c.pass(ms(200));
    c.change(|map| {
        map.volumes.clear();
        map.live.clear();
    });
    c.pass(ms(1));
    let mut host = Host::connect(&mut c);
    assert_eq!(host.log_in(&mut c, 1), 0x0203, "no such target");
    assert_eq!(c.log.closed, [Who::Client]);
    let _silent = Host::connect(&mut c);
    c.pass(Duration::from_secs(17));
    assert_eq!(c.log.closed, [Who::Client, Who::Client]);
}

#[test]
fn growth_of_a_volume_is_reported_with_the_next_command() {
    let mut c = Cluster::ready();
    let mut host = Host::attached(&mut c, 1);
    c.pass(ms(200));
    grow(&mut c);
    let capacity: [u8; 10] = [0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    host.command(&mut c, 2, &capacity, 8, &[]);
    assert_eq!(host.answer(&mut c).result(), Err((6, 0x2a, 9)));
    host.command(&mut c, 3, &capacity, 8, &[]);
    let last = u32::from_be_bytes(host.answer(&mut c).data[..4].try_into().unwrap());
    assert_eq!(u64::from(last) + 1, (u64::from(UNITS) << 21) / 512);
}

/// Makes the volume larger, and lets the SDC hear of it.
fn grow(c: &mut Cluster) {
    c.change(|map| map.volumes[0].size = u64::from(UNITS) << 21);
    c.sdc.refresh();
    c.pass(ms(500));
}

#[test]
fn growth_while_a_host_is_away_is_reported_when_it_returns() {
    // The host comes back over a link that was cut, or in place of the session that it has.
    for cut in [true, false] {
        let mut c = Cluster::ready();
        let host = Host::attached(&mut c, 1);
        if cut {
            c.cut_link(host.link);
        }
        grow(&mut c);
        let mut other = Host::attached(&mut c, 2);
        assert_eq!(other.ready(&mut c), Ok(()), "it has seen nothing else");
        let mut host = Host::attached(&mut c, 1);
        assert_eq!(host.ready(&mut c), Err((6, 0x2a, 9)), "cut: {cut}");
        assert_eq!(host.ready(&mut c), Ok(()));
        // It was told, so the next session is not.
        let mut host = Host::attached(&mut c, 1);
        assert_eq!(host.ready(&mut c), Ok(()));
    }
}

/// Maps the volume to this client in this way.
fn map_to(c: &mut Cluster, mapping: &Mapping) {
    c.change(|map| map.volumes[0].mapping = Some(mapping.info()));
    c.sdc.refresh();
    c.pass(ms(10));
}

#[test]
fn a_volume_that_becomes_read_only_keeps_its_sessions() {
    let mut c = Cluster::ready();
    let mut host = Host::attached(&mut c, 1);
    c.hold = true;
    host.write(&mut c, 2, 0xaa);
    c.pass(ms(200));
    map_to(&mut c, &Mapping::to_all(Access::ReadOnly, 1));
    let answer = host.answer(&mut c);
    assert_eq!((answer.bhs[0], answer.bhs[3]), (0x21, 8), "busy: the host repeats it");
    c.hold = false;
    c.release();
    assert!(c.log.closed.is_empty() && host.answers(&mut c).is_empty());
    host.write(&mut c, 3, 0xbb);
    assert_eq!(host.answer(&mut c).result(), Err((6, 0x2a, 1)));
    host.write(&mut c, 4, 0xbb);
    assert_eq!(host.answer(&mut c).result(), Err((7, 0x27, 0)));
    host.command(&mut c, 5, &transfer(0x28, 0, 1), 512, &[]);
    assert_eq!(host.answer(&mut c).result(), Ok(()));
    // A client that keeps its access keeps its generation.
    map_to(&mut c, &Mapping::to_all(Access::ReadWrite, 1));
    assert_eq!(host.ready(&mut c), Err((6, 0x2a, 1)));
    host.write(&mut c, 6, 0xcc);
    assert_eq!((host.answer(&mut c).result(), c.data[0]), (Ok(()), 0xcc));
    // Access that was taken away and given back: others may have written.
    map_to(&mut c, &Mapping::to_all(Access::ReadWrite, 3));
    assert_eq!(c.log.closed, [Who::Client]);
}

/// The volume is unmapped, and mapped for reading before this client looks at the map again. Later
/// it is mapped for writing. Data of a write that began before all of that still comes.
#[test]
fn nothing_of_a_command_appears_under_a_later_mapping() {
    let data = [0xaa; 12288];
    let write = transfer(0x2a, 0, 24);
    for writable_again in [false, true] {
        let mut c = Cluster::ready();
        let mut host = Host::attached(&mut c, 1);
        let r2t = host.begin_write(&mut c, 2, &write, &data, 4096);
        assert_eq!((c.data[0], c.data[4096]), (0xaa, 0), "the first part is written");
        map_to(&mut c, &Mapping::to_all(Access::ReadOnly, 3));
        c.pass(ms(1000)); // until it looks
        if writable_again {
            map_to(&mut c, &Mapping::to_all(Access::ReadWrite, 5));
            c.pass(ms(1000));
        }
        assert!(c.log.closed.is_empty(), "the session stays");
        host.end_write(&mut c, 2, &r2t, &data, 4096);
        let answer = host.answer(&mut c);
        assert_eq!((answer.bhs[0], answer.bhs[3]), (0x21, 8), "busy: the host repeats it");
        assert!(c.data[4096..12288].iter().all(|byte| *byte == 0), "{writable_again}");
        assert_eq!(c.log.ios.len(), 1);
        assert_eq!(host.ready(&mut c), Err((6, 0x2a, 1)), "it is told");
        host.write(&mut c, 3, 0xbb);
        let expected = if writable_again { Ok(()) } else { Err((7, 0x27, 0)) };
        assert_eq!(host.answer(&mut c).result(), expected);
    }
}

#[test]
fn a_volume_that_is_unmapped_ends_its_sessions() {
    let mut c = Cluster::ready();
    let mut host = Host::attached(&mut c, 1);
    c.hold = true;
    host.write(&mut c, 2, 0xaa);
    c.pass(ms(200));
    assert_eq!(c.log.connected, (0, 1));
    map_to(&mut c, &Mapping::nobody());
    let answers = host.answers(&mut c);
    assert_eq!(answers[0].result(), Err((5, 0x25, 0)));
    assert_eq!((answers[1].bhs[0], answers[1].bhs[36], answers.len()), (0x32, 1, 2), "log out");
    // It stays gone for this session, even if it comes back.
    map_to(&mut c, &Mapping::to_all(Access::ReadWrite, 1));
    host.write(&mut c, 3, 0xbb);
    assert_eq!(host.answer(&mut c).result(), Err((5, 0x25, 0)));
    assert!(c.log.closed.is_empty() && c.log.ios.len() == 1);
    map_to(&mut c, &Mapping::nobody());
    c.pass(Duration::from_secs(4));
    assert_eq!((c.log.closed.as_slice(), c.log.connected), (&[Who::Client][..], (0, 0)));
    assert_eq!(Host::connect(&mut c).log_in(&mut c, 1), 0x0203);
}

#[test]
fn a_process_that_stops_asks_its_hosts_to_log_out() {
    let mut c = Cluster::ready();
    assert!(c.sdc.is_stopped(), "nobody is there");
    let mut host = Host::attached(&mut c, 1);
    c.hold = true;
    host.write(&mut c, 2, 0xaa);
    c.stop();
    let message = host.answer(&mut c);
    assert_eq!((message.bhs[0], message.bhs[36]), (0x32, 1));
    assert!(!c.sdc.is_stopped());
    host.write(&mut c, 3, 0xbb);
    assert_eq!(host.answer(&mut c).bhs[3], 8, "busy");
    c.hold = false;
    c.release();
    assert_eq!((host.answer(&mut c).result(), c.data[0]), (Ok(()), 0xaa), "what has begun ends");
    assert_eq!(Host::connect(&mut c).log_in(&mut c, 2), 0x0301);
    c.pass(ms(2_900));
    assert!(c.sdc.is_stopped() && !c.sdc.serves(host.link), "within the 3 s that it has");
}

#[test]
fn a_host_whose_writes_wait_for_space_leaves_places_to_others() {
    let mut c = Cluster::ready();
    let (mut host, mut other) = (Host::attached(&mut c, 1), Host::attached(&mut c, 2));
    c.full = true;
    for itt in 0..Limits::SHIPPED.iscsi_waiting {
        host.write(&mut c, 10 + itt, 0xaa);
    }
    assert!(host.answers(&mut c).is_empty());
    host.write(&mut c, 5, 0xaa);
    assert_eq!(host.answer(&mut c).bhs[3], 0x28, "task set full");
    other.write(&mut c, 5, 0xaa);
    assert!(other.answers(&mut c).is_empty(), "it waits, too");
    host.command(&mut c, 6, &transfer(0x28, 0, 1), 512, &[]);
    assert_eq!(host.answer(&mut c).result(), Ok(()));
    c.full = false;
    c.pass(Duration::from_secs(5));
    assert_eq!(host.answers(&mut c).len(), Limits::SHIPPED.iscsi_waiting as usize);
}

#[test]
fn while_commands_take_too_much_memory_no_new_host_is_let_in() {
    let mut c = Cluster::new(Limits { target_bytes: 256 << 10, ..Limits::SHIPPED });
    c.make_ready();
    let mut host = Host::attached(&mut c, 1);
    c.hold = true;
    host.command(&mut c, 2, &transfer(0x2a, 0, 120), 0, &[7; 120 * 512]);
    let mut second = Host::attached(&mut c, 2);
    // A body of 40 KiB takes a block of 64 KiB, so four are enough.
    for itt in 3..6 {
        second.command(&mut c, itt, &transfer(0x2a, 0, 80), 0, &[7; 80 * 512]);
    }
    assert_eq!(Host::connect(&mut c).log_in(&mut c, 3), 0x0302);
    let again = Host::attached(&mut c, 2);
    assert!(c.sdc.serves(again.link), "it takes the place of its own session");
    c.hold = false;
    c.release();
    assert_eq!(Host::connect(&mut c).log_in(&mut c, 3), 0);
}

/// Both sessions may have the same handle, or another one.
#[test]
fn a_host_that_logs_in_again_ends_its_session_and_what_that_had_not_sent() {
    let mut c = Cluster::ready();
    let mut first = Host::attached(&mut c, 1);
    kill_servers(&mut c);
    first.write(&mut c, 2, 0xaa);
    let other = Host::attached(&mut c, 2);
    let mut second = Host::attached(&mut c, 1);
    assert_eq!((c.log.closed.iter().filter(|who| **who == Who::Client)).count(), 1);
    start_servers(&mut c);
    assert!(c.log.ios.is_empty(), "{:?}", c.log.ios);
    second.write(&mut c, 3, 0xbb);
    assert_eq!(second.answer(&mut c).result(), Ok(()));
    assert_eq!((c.data[0], c.log.ios.len()), (0xbb, 1));
    assert!(c.sdc.serves(other.link) && c.sdc.serves(second.link) && !c.sdc.serves(first.link));
}

#[test]
fn a_write_of_a_session_before_never_lands_on_a_newer_one() {
    let mut c = Cluster::ready();
    let mut first = Host::attached(&mut c, 1);
    c.hold = true;
    first.write(&mut c, 2, 0xaa);
    let mut second = Host::attached(&mut c, 1);
    second.write(&mut c, 3, 0xbb);
    c.hold = false;
    c.release();
    assert_eq!((second.answer(&mut c).result(), c.data[0]), (Ok(()), 0xbb));
    assert_eq!((c.log.ios.len(), c.sdc.outstanding()), (2, 0));
}

#[test]
fn nothing_of_an_aborted_command_appears_later() {
    let mut c = Cluster::ready();
    let mut host = Host::attached(&mut c, 1);
    kill_servers(&mut c);
    host.write(&mut c, 2, 0xaa);
    host.abort_last(&mut c, 3, 2);
    let answer = host.answer(&mut c);
    assert_eq!((answer.bhs[0], answer.bhs[2], answer.u32(16)), (0x22, 0, 3));
    start_servers(&mut c);
    assert!(c.log.ios.is_empty() && host.answers(&mut c).is_empty());
    host.write(&mut c, 4, 0xbb);
    assert_eq!((host.answer(&mut c).result(), c.data[0]), (Ok(()), 0xbb));
}

#[test]
fn a_command_without_a_primary_is_to_be_repeated_after_a_while_and_is_not_done() {
    let mut c = Cluster::ready();
    let mut host = Host::attached(&mut c, 1);
    kill_servers(&mut c);
    host.write(&mut c, 2, 0xaa);
    c.pass(ms(19_900));
    assert!(host.answers(&mut c).is_empty());
    c.pass(ms(200));
    assert_eq!(host.answer(&mut c).result(), Err(NO_PRIMARY));
    assert_eq!(c.sdc.outstanding(), 0);
    start_servers(&mut c);
    assert!(c.log.ios.is_empty(), "{:?}", c.log.ios);
    host.write(&mut c, 3, 0xbb);
    assert_eq!((host.answer(&mut c).result(), c.data[0]), (Ok(()), 0xbb));
}

#[test]
fn a_write_without_space_is_to_be_repeated_after_a_while_and_is_not_done() {
    let mut c = Cluster::ready();
    let mut host = Host::attached(&mut c, 1);
    c.full = true;
    host.write(&mut c, 2, 0xaa);
    c.pass(ms(19_900));
    assert!(host.answers(&mut c).is_empty());
    c.pass(ms(300));
    assert_eq!(host.answer(&mut c).result(), Err(NO_SPACE));
    c.full = false;
    c.pass(Duration::from_secs(10));
    assert!(c.data.iter().all(|byte| *byte == 0));
    host.write(&mut c, 3, 0xbb);
    assert_eq!((host.answer(&mut c).result(), c.data[0]), (Ok(()), 0xbb));
}
