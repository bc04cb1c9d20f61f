//! Reservations of NVMe hosts, and of hosts of both protocols that shut each other out.

use super::cluster::{Cluster, VOLUME, Who};
use super::iscsi_host::{Host, transfer};
use super::nvme_host::Queue;
use base::Limits;
use core::time::Duration;
use mdm::mapping::Mapping;
use target::reserve::{Change, Identity, Kind};

const CONFLICT: u16 = 0x4083;
const NOT_READY: u16 = 0x0082;
const REGISTER: u8 = 0x0d;
const ACQUIRE: u8 = 0x11;
const RELEASE: u8 = 0x15;
/// The event of a notice about reservations.
const NOTICE: u32 = 0x80_0006;
/// Types: write exclusive, registrants only; exclusive access, registrants only; and in SCSI.
const SHARED: u32 = 3 << 8;
const EXCLUSIVE: u32 = 4 << 8;
const SCSI_SHARED: u8 = 5;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// The host with this identifier: an admin queue, and an I/O queue.
fn host(c: &mut Cluster, id: u8) -> (Queue, Queue) {
    let admin = Queue::admin_of(c, id);
    let io = Queue::io(c, &admin, 1).unwrap();
    (admin, io)
}

/// Sends a reservation command, which is answered at once. Returns its status.
fn status(c: &mut Cluster, io: &mut Queue, opcode: u8, ten: u32, keys: [u64; 2]) -> u16 {
    io.reserve(c, opcode, ten, keys);
    io.answer(c).answer().0
}

fn register(c: &mut Cluster, io: &mut Queue, key: u64) {
    assert_eq!(status(c, io, REGISTER, 0, [0, key]), 0);
}

/// Writes a sector. Returns the status.
fn write(c: &mut Cluster, io: &mut Queue, first: u64, byte: u8) -> u16 {
    io.write(c, first, &[byte; 512]);
    io.answer(c).answer().0
}

/// PERSISTENT RESERVE OUT of an iSCSI host, which is done.
fn scsi(c: &mut Cluster, host: &mut Host, itt: u32, (action, kind): (u8, u8), keys: [u64; 2]) {
    let mut list = [0; 24];
    list[..8].copy_from_slice(&keys[0].to_be_bytes());
    list[8..16].copy_from_slice(&keys[1].to_be_bytes());
    host.command(c, itt, &[0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0], 0, &list);
    assert_eq!(host.answer(c).result(), Ok(()));
}

/// The oldest notice: its type, how many more there are, and the namespace.
fn notice(c: &mut Cluster, admin: &mut Queue) -> (u8, u8, u8) {
    let page = admin.log(c, 0x80);
    (page[8], page[9], page[12])
}

#[test]
pub(crate) fn nothing_of_an_nvme_host_that_was_shut_out_comes_later() {
    let mut c = Cluster::ready();
    c.fences = true;
    let (_a_admin, mut a) = host(&mut c, 1);
    let (mut b_admin, mut b) = host(&mut c, 2);
    let mut b_other = Queue::io(&mut c, &b_admin, 2).unwrap();
    let (_s_admin, mut stranger) = host(&mut c, 3);
    register(&mut c, &mut a, 0xa);
    register(&mut c, &mut b, 0xb);
    assert_eq!(status(&mut c, &mut a, ACQUIRE, SHARED, [0xa, 0]), 0);
    assert_eq!(write(&mut c, &mut stranger, 0, 0xcc), CONFLICT);
    assert_eq!(write(&mut c, &mut b, 0, 0xb1), 0);
    assert_eq!(write(&mut c, &mut b_other, 1, 0xb1), 0, "the host is registered, and not a queue");
    // Writes and a read of both are under way, and one of B's has sent none of its data.
    b.write_later(&mut c, 32, 4096);
    let r2t = b.answer(&mut c);
    c.hold = true;
    b.write(&mut c, 0, &[0xbb; 512]);
    b_other.write(&mut c, 1, &[0xbb; 512]);
    b.read(&mut c, 8, 512);
    a.write(&mut c, 16, &[0xaa; 512]);
    a.reserve(&mut c, ACQUIRE, SHARED | 1, [0xa, 0xb]);
    assert_eq!(a.answer(&mut c).answer().0, 0, "preempted");
    b.give(&mut c, &r2t, &[0xbb; 4096]);
    assert_eq!(b.answer(&mut c).answer().0, CONFLICT);
    assert_eq!(write(&mut c, &mut b_other, 2, 0xbc), CONFLICT);
    c.hold = false;
    c.release();
    c.pass(ms(500));
    let answers = b.answers(&mut c);
    let statuses: Vec<u16> =
        answers.iter().filter(|a| a.header[0] == 5).map(|a| a.answer().0).collect();
    assert_eq!((answers.len(), statuses), (3, vec![CONFLICT, 0]), "the read was done");
    assert_eq!(b_other.answer(&mut c).answer().0, CONFLICT);
    assert_eq!((c.data[0], c.data[512]), (0xb1, 0xb1), "its writes never came");
    assert!(c.data[32 * 512..][..4096].iter().all(|byte| *byte == 0));
    assert_eq!((a.answer(&mut c).answer().0, c.data[16 * 512]), (0, 0xaa));
    b_admin.ask_event(&mut c);
    assert_eq!(b_admin.answer(&mut c).answer(), (0, NOTICE), "it is told");
}

#[test]
fn other_hosts_are_notified_of_a_change_and_its_author_is_not() {
    let mut c = Cluster::ready();
    let (mut a_admin, mut a) = host(&mut c, 1);
    let mut a_second = Queue::admin_of(&mut c, 1);
    let (mut b_admin, mut b) = host(&mut c, 2);
    let (mut s_admin, _stranger) = host(&mut c, 3);
    for admin in [&mut a_admin, &mut a_second, &mut b_admin, &mut s_admin] {
        admin.ask_event(&mut c);
    }
    register(&mut c, &mut a, 0xa);
    register(&mut c, &mut b, 0xb);
    assert_eq!(status(&mut c, &mut a, ACQUIRE, SHARED, [0xa, 0]), 0);
    assert!(b_admin.answers(&mut c).is_empty());
    assert_eq!(status(&mut c, &mut a, RELEASE, SHARED, [0xa, 0]), 0);
    assert_eq!(b_admin.answer(&mut c).answer(), (0, NOTICE));
    assert_eq!(notice(&mut c, &mut b_admin), (2, 0, VOLUME.0 as u8), "released");
    assert_eq!(status(&mut c, &mut a, ACQUIRE, EXCLUSIVE, [0xa, 0]), 0);
    assert_eq!(status(&mut c, &mut a, ACQUIRE, EXCLUSIVE | 2, [0xa, 0xb]), 0);
    b_admin.ask_event(&mut c);
    assert_eq!(b_admin.answer(&mut c).answer(), (0, NOTICE));
    assert_eq!(notice(&mut c, &mut b_admin), (1, 0, VOLUME.0 as u8), "preempted");
    register(&mut c, &mut b, 0xb);
    assert_eq!(status(&mut c, &mut a, RELEASE, 1, [0xa, 0]), 0);
    b_admin.ask_event(&mut c);
    assert_eq!(b_admin.answer(&mut c).answer(), (0, NOTICE));
    assert_eq!(notice(&mut c, &mut b_admin), (3, 0, VOLUME.0 as u8), "all are gone");
    for admin in [&mut a_admin, &mut a_second, &mut s_admin] {
        assert!(admin.answers(&mut c).is_empty());
    }
}

#[test]
fn hosts_of_both_protocols_shut_each_other_out() {
    let mut c = Cluster::ready();
    c.fences = true;
    let (mut n_admin, mut n) = host(&mut c, 1);
    let mut s = Host::attached(&mut c, 1);
    n_admin.ask_event(&mut c);
    register(&mut c, &mut n, 0xa);
    assert_eq!(status(&mut c, &mut n, ACQUIRE, SHARED, [0xa, 0]), 0);
    s.write(&mut c, 1, 0x51);
    assert_eq!(s.answer(&mut c).bhs[3], 0x18, "the NVMe host has it");
    // The iSCSI host registers, and shuts the NVMe host out, whose write is under way.
    scsi(&mut c, &mut s, 2, (0, 0), [0, 0x5]);
    s.write(&mut c, 3, 0x52);
    assert_eq!((s.answer(&mut c).result(), c.data[0]), (Ok(()), 0x52));
    n.report(&mut c);
    let report = n.answers(&mut c).remove(0).data;
    assert_eq!((report[0], report[4], report[5], report[9]), (2, 3, 2, 1));
    let record = |n: usize| &report[64 * (n + 1)..][..64];
    assert_eq!((record(0)[2], record(0)[8], &record(0)[16..32]), (1, 0xa, &[1; 16][..]));
    assert_eq!((record(1)[2], record(1)[8], &record(1)[16..32]), (0, 0x5, &[0; 16][..]));
    c.hold = true;
    n.write(&mut c, 0, &[0xaa; 512]);
    scsi(&mut c, &mut s, 4, (4, SCSI_SHARED), [0x5, 0xa]);
    c.hold = false;
    c.release();
    c.pass(ms(500));
    assert_eq!((n.answer(&mut c).answer().0, c.data[0]), (CONFLICT, 0x52));
    assert_eq!(n_admin.answer(&mut c).answer(), (0, NOTICE));
    assert_eq!(notice(&mut c, &mut n_admin), (1, 0, VOLUME.0 as u8));
    assert_eq!(write(&mut c, &mut n, 0, 0xab), CONFLICT);
    // And the other way round.
    register(&mut c, &mut n, 0xa);
    assert_eq!(status(&mut c, &mut n, ACQUIRE, EXCLUSIVE | 1, [0xa, 0x5]), 0);
    assert_eq!(s.ready(&mut c), Err((6, 0x2a, 5)), "registrations preempted");
    s.command(&mut c, 6, &transfer(0x28, 0, 1), 512, &[]);
    assert_eq!(s.answer(&mut c).bhs[3], 0x18, "it may not even read");
    assert_eq!((write(&mut c, &mut n, 0, 0xac), c.data[0]), (0, 0xac));
}

/// The first map that this client sees has the host as it was before.
#[test]
pub(crate) fn nothing_of_an_nvme_host_that_was_let_in_again_unseen_comes_later() {
    let mut c = Cluster::ready();
    c.fences = true;
    let (mut admin, mut b) = host(&mut c, 2);
    admin.ask_event(&mut c);
    register(&mut c, &mut b, 0xb);
    let other = Identity::Nvme { host: [9; 16] };
    let kind = Kind::WriteExclusiveRegistrants;
    c.reserve_as(&other, &Change::RegisterNvme { key: 9 }).unwrap();
    c.reserve_as(&other, &Change::Reserve { key: 9, kind }).unwrap();
    c.tell();
    c.hold = true;
    b.write(&mut c, 0, &[0xbb; 512]);
    c.reserve_as(&other, &Change::Preempt { key: 9, victim: 0xb, kind }).unwrap();
    register(&mut c, &mut b, 0xb);
    c.hold = false;
    c.release();
    c.pass(ms(500));
    assert_eq!((b.answer(&mut c).answer().0, c.data[0]), (CONFLICT, 0));
    assert_eq!(admin.answer(&mut c).answer(), (0, NOTICE));
    assert_eq!(notice(&mut c, &mut admin).0, 1);
    assert_eq!((write(&mut c, &mut b, 0, 0xbe), c.data[0]), (0, 0xbe));
}

#[test]
fn a_registration_follows_the_rules_of_nvme() {
    let mut c = Cluster::ready();
    let (_admin, mut a) = host(&mut c, 1);
    let ignore = 1 << 3;
    assert_eq!(
        status(&mut c, &mut a, REGISTER, 2 | ignore, [0, 1]),
        CONFLICT,
        "nothing to replace"
    );
    assert_eq!(status(&mut c, &mut a, REGISTER, 1 | ignore, [0, 0]), CONFLICT, "nothing to end");
    register(&mut c, &mut a, 1);
    register(&mut c, &mut a, 1);
    assert_eq!(status(&mut c, &mut a, REGISTER, 0, [1, 2]), CONFLICT, "another key");
    assert_eq!(status(&mut c, &mut a, REGISTER, 2, [3, 2]), CONFLICT, "the wrong key");
    assert_eq!(status(&mut c, &mut a, REGISTER, 2, [1, 2]), 0);
    assert_eq!(status(&mut c, &mut a, ACQUIRE, SHARED, [1, 0]), CONFLICT, "its old key");
    assert_eq!(status(&mut c, &mut a, REGISTER, 1, [2, 0]), 0);
    assert_eq!(status(&mut c, &mut a, ACQUIRE, SHARED, [2, 0]), CONFLICT);
}

#[test]
fn a_change_that_is_not_answered_is_to_be_repeated_and_ends_with_its_queue() {
    let mut c = Cluster::ready();
    let (_admin, mut a) = host(&mut c, 1);
    c.silent = true;
    a.reserve(&mut c, REGISTER, 0, [0, 1]);
    a.report(&mut c);
    assert_eq!(a.answers(&mut c).len(), 2, "the report is not held back");
    c.pass(Limits::SHIPPED.target_patience + ms(1000));
    assert_eq!(a.answer(&mut c).answer().0, NOT_READY);
    a.reserve(&mut c, REGISTER, 0, [0, 1]);
    let link = a.link;
    let before = c.log.asked.len();
    c.cut_link(link);
    c.silent = false;
    c.pass(ms(5000));
    assert_eq!(c.log.asked.len(), before, "nobody waits for it");
    // Without an MDM there is no report.
    let (_admin, mut b) = host(&mut c, 2);
    c.kill(Who::Mdm);
    b.report(&mut c);
    c.pass(Limits::SHIPPED.target_patience + ms(1000));
    assert_eq!(b.answer(&mut c).answer().0, NOT_READY);
}

#[test]
fn a_volume_that_is_not_mapped_any_more_has_no_report() {
    let mut c = Cluster::ready();
    let (_admin, mut a) = host(&mut c, 1);
    // This client hears of it with the report.
    c.change(|map| map.volumes[0].mapping = Some(Mapping::nobody().info()));
    a.report(&mut c);
    assert_eq!(a.answer(&mut c).answer().0, 0x400b);
    a.report(&mut c);
    assert_eq!(a.answer(&mut c).answer().0, 0x400b);
    a.reserve(&mut c, REGISTER, 0, [0, 1]);
    assert_eq!((a.answer(&mut c).answer().0, c.log.asked.len()), (0x400b, 0));
}
