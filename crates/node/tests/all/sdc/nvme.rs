//! NVMe/TCP queues of the SDC: which links belong together, and what becomes of commands when
//! queues, volumes and servers change.

use super::cluster::{Cluster, UNITS, VOLUME, Who, volume};
use super::nvme_host::Queue;
use core::time::Duration;
use mdm::mapping::Mapping;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Repeat it: without a primary, and after a change of permission. Without delays, as this host
/// does not know them.
const NOT_READY: u16 = 0x0082;
const INTERRUPTED: u16 = 0x0021;
const NO_NAMESPACE: u16 = 0x400b;

fn kill_servers(c: &mut Cluster) {
    [Who::Server(1), Who::Server(2)].into_iter().for_each(|who| c.kill(who));
}

fn start_servers(c: &mut Cluster) {
    c.alive = [1, 101, 102].into();
    c.pass(Duration::from_secs(3));
}

/// A host with one I/O queue.
fn connected(c: &mut Cluster) -> (Queue, Queue) {
    let admin = Queue::admin(c);
    let io = Queue::io(c, &admin, 1).unwrap();
    (admin, io)
}

#[test]
fn a_host_connects_writes_and_reads() {
    let mut c = Cluster::ready();
    let (admin, mut io) = connected(&mut c);
    assert!(c.log.welcome.contains(&admin.link) && c.log.welcome.contains(&io.link));
    let data: Vec<u8> = (0..65536u32).map(|i| (i / 7) as u8).collect();
    io.write_later(&mut c, 3, data.len());
    let r2t = io.answer(&mut c);
    io.give(&mut c, &r2t, &data);
    assert_eq!(io.answer(&mut c).answer(), (0, 0));
    assert_eq!(c.data[3 * 512..][..65536], data);
    io.read(&mut c, 3, data.len());
    let pdus = io.answers(&mut c);
    assert_eq!((pdus[0].data == data, pdus[1].answer()), (true, (0, 0)));
    c.pass(ms(500));
    assert_eq!(c.log.attached, [VOLUME.0]);
    c.cut_link(admin.link);
    c.pass(ms(500));
    assert!(c.log.attached.is_empty());
    assert_eq!(c.log.closed, [Who::Client], "its I/O queue ends with it");
}

#[test]
fn a_link_that_is_no_queue_is_closed_and_queues_are_not() {
    let mut c = Cluster::ready();
    let (mut admin, mut io) = connected(&mut c);
    let _discovery = Queue::discovery(&mut c);
    let _silent = Queue::open(&mut c);
    c.pass(Duration::from_secs(17));
    assert_eq!(c.log.closed, [Who::Client]);
    c.pass(Duration::from_secs(100));
    assert_eq!(c.log.closed, [Who::Client]);
    assert_eq!(admin.status(&mut c), 1);
    io.read(&mut c, 0, 512);
    assert_eq!(io.answers(&mut c).len(), 2);
}

#[test]
fn controllers_have_ids_of_their_own() {
    let mut c = Cluster::ready();
    let (one, two) = (Queue::admin(&mut c), Queue::admin(&mut c));
    assert_ne!(one.cntlid, two.cntlid);
    let queue = Queue::io(&mut c, &one, 1).unwrap();
    assert_eq!(Queue::io(&mut c, &one, 1).err(), Some(0x400c), "another link has it");
    assert!(Queue::io(&mut c, &two, 1).is_ok() && Queue::io(&mut c, &one, 2).is_ok());
    c.cut_link(queue.link);
    assert!(Queue::io(&mut c, &one, 1).is_ok());
    c.cut_link(one.link);
    assert_eq!(Queue::io(&mut c, &one, 3).err(), Some(0x4182), "no such controller");
    let three = Queue::admin(&mut c);
    assert!(![one.cntlid, two.cntlid].contains(&three.cntlid), "a host may remember it");
}

#[test]
fn a_reset_ends_the_queues_and_what_they_had_not_sent() {
    let mut c = Cluster::ready();
    let (mut admin, mut io) = connected(&mut c);
    kill_servers(&mut c);
    io.write(&mut c, 0, &[0xaa; 512]);
    assert_eq!(admin.configure(&mut c, 0x46_0000), 0);
    assert_eq!(admin.status(&mut c), 0);
    assert!(c.log.closed.contains(&Who::Client) && !c.sdc.serves(io.link));
    start_servers(&mut c);
    assert!(c.log.ios.is_empty(), "{:?}", c.log.ios);
    assert_eq!(admin.configure(&mut c, 0x46_0001), 0);
    let mut io = Queue::io(&mut c, &admin, 1).unwrap();
    io.write(&mut c, 0, &[0xbb; 512]);
    assert_eq!((io.answer(&mut c).answer(), c.data[0]), ((0, 0), 0xbb));
}

#[test]
fn a_write_of_a_queue_before_never_lands_on_a_newer_one() {
    let mut c = Cluster::ready();
    let (admin, mut io) = connected(&mut c);
    c.hold = true;
    io.write(&mut c, 0, &[0xaa; 512]);
    c.cut_link(admin.link);
    let (_second, mut io) = connected(&mut c);
    io.write(&mut c, 0, &[0xbb; 512]);
    c.hold = false;
    c.release();
    assert_eq!((io.answer(&mut c).answer(), c.data[0]), ((0, 0), 0xbb));
    assert_eq!((c.log.ios.len(), c.sdc.outstanding()), (2, 0));
}

#[test]
fn a_command_without_a_primary_is_to_be_repeated_after_a_while_and_is_not_done() {
    let mut c = Cluster::ready();
    let (_admin, mut io) = connected(&mut c);
    kill_servers(&mut c);
    io.write(&mut c, 0, &[0xaa; 512]);
    c.pass(ms(19_000));
    assert!(io.answers(&mut c).is_empty());
    c.pass(ms(1_200));
    assert_eq!(io.answer(&mut c).answer(), (NOT_READY, 0));
    start_servers(&mut c);
    assert!(c.log.ios.is_empty());
}

#[test]
fn a_volume_that_grows_is_told_by_an_event() {
    let mut c = Cluster::ready();
    let (mut admin, mut io) = connected(&mut c);
    admin.wait_for_events(&mut c);
    let end = u64::from(UNITS) << 11;
    io.read(&mut c, end, 512);
    assert_eq!(io.answer(&mut c).answer().0, 0x4080);
    c.pass(ms(200));
    c.change(|map| map.volumes[0] = volume(VOLUME, "data", u64::from(UNITS) << 21));
    c.sdc.refresh();
    c.pass(ms(500));
    assert_eq!(admin.answer(&mut c).answer(), (0, 0x04_0002));
    assert_eq!(admin.log(&mut c, 0x04)[..8], [1, 0, 0, 0, 0, 0, 0, 0]);
    assert!(c.log.closed.is_empty());
}

#[test]
fn a_volume_that_is_unmapped_is_gone_and_the_queues_stay() {
    let mut c = Cluster::ready();
    let (mut admin, mut io) = connected(&mut c);
    admin.wait_for_events(&mut c);
    kill_servers(&mut c);
    io.write(&mut c, 0, &[0xaa; 512]);
    c.pass(ms(200));
    c.change(|map| map.volumes[0].mapping = Some(Mapping::nobody().info()));
    c.pass(ms(10));
    assert_eq!(io.answer(&mut c).answer(), (NO_NAMESPACE, 0));
    assert_eq!(admin.answer(&mut c).answer(), (0, 0x04_0002));
    io.read(&mut c, 0, 512);
    assert_eq!(io.answer(&mut c).answer(), (NO_NAMESPACE, 0));
    assert!(!c.log.closed.contains(&Who::Client));
    start_servers(&mut c);
    assert!(c.log.ios.is_empty() && c.data[0] == 0);
}

/// An order that takes a permission away is a fence, even if the permission is given again before
/// the client hears of it.
#[test]
fn nothing_of_a_permission_that_has_ended_is_written_under_the_next_one() {
    let mut c = Cluster::ready();
    let (_admin, mut io) = connected(&mut c);
    io.write_later(&mut c, 0, 1024);
    let r2t = io.answer(&mut c);
    kill_servers(&mut c);
    io.write(&mut c, 8, &[0xaa; 512]);
    c.pass(ms(200));
    c.change(|map| map.volumes[0].mapping = Some(Mapping::everyone(1).info()));
    c.pass(ms(10));
    io.give(&mut c, &r2t, &[0xaa; 1024]);
    let mut answers: Vec<_> = io.answers(&mut c).iter().map(|pdu| pdu.answer()).collect();
    answers.sort_unstable();
    assert_eq!(answers, [(INTERRUPTED, 0), (INTERRUPTED, 0)]);
    start_servers(&mut c);
    assert!(c.log.ios.is_empty() && c.data.iter().all(|byte| *byte == 0));
    io.write(&mut c, 8, &[0xbb; 512]);
    assert_eq!((io.answer(&mut c).answer(), c.data[8 * 512]), ((0, 0), 0xbb));
}
