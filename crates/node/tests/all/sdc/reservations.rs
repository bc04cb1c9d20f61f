//! Reservations: hosts that shut others out, and what becomes of the others' requests.

use super::cluster::{Cluster, VOLUME, Who};
use super::iscsi_host::{Host, transfer};
use super::nbd_client::Client;
use base::Limits;
use core::time::Duration;
use mdm::mapping::Mapping;
use seam::{BlockError, BlockKind};
use target::nbd::proto::{NBD_CMD_READ, NBD_CMD_WRITE, NBD_EPERM};
use target::reserve::{Change, Identity, Kind, Table, note_losses, step};

const CONFLICT: u8 = 0x18;
/// Write exclusive, registrants only.
const SHARED: u8 = 5;
/// Exclusive access, registrants only.
const EXCLUSIVE: u8 = 6;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// PERSISTENT RESERVE OUT.
fn ask(c: &mut Cluster, host: &mut Host, itt: u32, action: u8, kind: u8, keys: [u64; 2]) {
    let mut list = [0; 24];
    list[..8].copy_from_slice(&keys[0].to_be_bytes());
    list[8..16].copy_from_slice(&keys[1].to_be_bytes());
    host.command(c, itt, &[0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0], 0, &list);
}

/// The same, and it is done.
fn done(c: &mut Cluster, host: &mut Host, itt: u32, action: u8, kind: u8, keys: [u64; 2]) {
    ask(c, host, itt, action, kind, keys);
    assert_eq!(host.answer(c).result(), Ok(()));
}

fn register(c: &mut Cluster, host: &mut Host, key: u64) {
    done(c, host, 100, 0, 0, [0, key]);
}

fn reserve(c: &mut Cluster, host: &mut Host, kind: u8, key: u64) {
    done(c, host, 101, 1, kind, [key, 0]);
}

/// Another client's host, which this one's map tells of.
fn other() -> Identity {
    Identity::Scsi { name: "iqn.2026-11.test:other".into(), isid: [9; 6], port: 1 }
}

/// A host of another client registers with key 9 and does more.
fn others(c: &mut Cluster, changes: &[Change]) {
    let register = Change::Register { key: 0, new: 9, ignore: true, all_ports: false };
    c.reserve_as(&other(), &register).unwrap();
    changes.iter().for_each(|change| assert!(c.reserve_as(&other(), change).is_ok()));
    c.tell();
}

#[test]
pub(crate) fn nothing_of_a_host_that_was_shut_out_comes_later_and_others_notice_nothing() {
    let mut c = Cluster::ready();
    c.fences = true;
    let (mut a, mut b) = (Host::attached(&mut c, 1), Host::attached(&mut c, 2));
    register(&mut c, &mut a, 0xa);
    register(&mut c, &mut b, 0xb);
    reserve(&mut c, &mut a, SHARED, 0xa);
    b.write(&mut c, 1, 0xb1);
    assert_eq!((b.answer(&mut c).result(), c.data[0]), (Ok(()), 0xb1), "it is registered");
    // Writes and a read of both are under way, and one of B's has sent only a part of its data.
    c.hold = true;
    b.write(&mut c, 2, 0xbb);
    b.command(&mut c, 3, &transfer(0x28, 8, 1), 512, &[]);
    a.command(&mut c, 2, &transfer(0x2a, 16, 1), 0, &[0xaa; 512]);
    done(&mut c, &mut a, 3, 4, SHARED, [0xa, 0xb]);
    b.write(&mut c, 4, 0xbc);
    assert_eq!(b.answer(&mut c).result(), Err((6, 0x2a, 5)), "registrations preempted");
    b.write(&mut c, 5, 0xbd);
    assert_eq!(b.answer(&mut c).bhs[3], CONFLICT);
    c.hold = false;
    c.release();
    c.pass(ms(500));
    let answers = b.answers(&mut c);
    let status = |itt| answers.iter().find(|pdu| pdu.u32(16) == itt).map(|pdu| pdu.bhs[3]);
    assert_eq!((answers.len(), status(2), status(3)), (2, Some(CONFLICT), Some(0)));
    assert_eq!(c.data[0], 0xb1, "its write never came");
    assert_eq!((a.answer(&mut c).result(), c.data[16 * 512]), (Ok(()), 0xaa));
    // It registers again.
    register(&mut c, &mut b, 0xb);
    b.write(&mut c, 6, 0xbe);
    assert_eq!((b.answer(&mut c).result(), c.data[0]), (Ok(()), 0xbe));
}

/// The first map that this client sees has the host with its former access. The host's requests end
/// all the same, because the host that shut it out had its answer in between.
#[test]
pub(crate) fn nothing_of_a_host_that_was_shut_out_and_let_in_again_unseen_comes_later() {
    let mut c = Cluster::ready();
    c.fences = true;
    let (mut a, mut b) = (Host::attached(&mut c, 1), Host::attached(&mut c, 2));
    register(&mut c, &mut a, 0xa);
    register(&mut c, &mut b, 0xb);
    let kind = Kind::WriteExclusiveRegistrants;
    others(&mut c, &[Change::Reserve { key: 9, kind }]);
    let mut nbd = Client::attached(&mut c, &Limits::SHIPPED);
    let data = vec![0xbc; 4096];
    let r2t = b.begin_write(&mut c, 3, &transfer(0x2a, 32, 8), &data, 512);
    c.hold = true;
    b.write(&mut c, 2, 0xbb);
    a.command(&mut c, 2, &transfer(0x2a, 16, 1), 0, &[0xaa; 512]);
    nbd.request(&mut c, NBD_CMD_READ, 5, 0, 512, &[]);
    // B registers again before this client has a map without it.
    c.reserve_as(&other(), &Change::Preempt { key: 9, victim: 0xb, kind }).unwrap();
    done(&mut c, &mut b, 4, 6, 0, [0, 0xb]);
    assert_eq!(b.ready(&mut c), Err((6, 0x2a, 5)), "registrations preempted");
    b.end_write(&mut c, 3, &r2t, &data, 512);
    assert_eq!(b.answer(&mut c).bhs[3], CONFLICT);
    c.hold = false;
    c.release();
    c.pass(ms(500));
    assert_eq!(b.answer(&mut c).bhs[3], CONFLICT);
    assert!(c.data[..512].iter().chain(&c.data[16896..20480]).all(|byte| *byte == 0));
    assert_eq!((a.answer(&mut c).result(), c.data[16 * 512]), (Ok(()), 0xaa));
    assert_eq!(nbd.reply(&mut c, 5).0, 0, "it lost nothing");
    assert_eq!(a.ready(&mut c), Ok(()), "it notices nothing");
    b.write(&mut c, 6, 0xbe);
    assert_eq!((b.answer(&mut c).result(), c.data[0]), (Ok(()), 0xbe));
    // A program's write comes from before a reservation that is gone again.
    c.hold = true;
    c.reserve_as(&other(), &Change::Release { key: 9, kind }).unwrap();
    c.tell();
    c.ask(1, BlockKind::Write, 4096, 512, &[8; 512]);
    c.reserve_as(&other(), &Change::Reserve { key: 9, kind }).unwrap();
    c.reserve_as(&other(), &Change::Clear { key: 9 }).unwrap();
    c.tell();
    c.hold = false;
    c.release();
    c.pass(ms(500));
    assert_eq!(c.log.replies.last().map(|r| r.1.is_ok()), Some(false));
    assert_eq!(c.data[4096], 0);
}

/// Its registration ends while another change of its own is under way.
#[test]
fn a_host_that_registers_again_is_told_that_it_was_shut_out() {
    let mut c = Cluster::ready();
    let mut b = Host::attached(&mut c, 2);
    register(&mut c, &mut b, 0xb);
    let kind = Kind::WriteExclusiveRegistrants;
    others(&mut c, &[Change::Reserve { key: 9, kind }]);
    c.silent = true;
    ask(&mut c, &mut b, 2, 6, 0, [0, 0xb]);
    others(&mut c, &[Change::Preempt { key: 9, victim: 0xb, kind }]);
    c.silent = false;
    c.pass(ms(1500));
    assert_eq!(b.answer(&mut c).result(), Ok(()));
    assert_eq!(b.ready(&mut c), Err((6, 0x2a, 5)), "registrations preempted");
}

#[test]
fn data_that_comes_after_its_host_was_shut_out_goes_nowhere() {
    let mut c = Cluster::ready();
    let mut b = Host::attached(&mut c, 2);
    let data = vec![0xbb; 4096];
    let r2t = b.begin_write(&mut c, 2, &transfer(0x2a, 0, 8), &data, 512);
    others(&mut c, &[Change::Reserve { key: 9, kind: Kind::ExclusiveAccess }]);
    b.end_write(&mut c, 2, &r2t, &data, 512);
    assert_eq!(b.answer(&mut c).bhs[3], CONFLICT);
    assert!(c.data[512..4096].iter().all(|byte| *byte == 0));
}

#[test]
fn a_change_is_asked_for_again_under_its_number_and_given_up_in_the_end() {
    let mut c = Cluster::ready();
    let mut a = Host::attached(&mut c, 1);
    c.silent = true;
    ask(&mut c, &mut a, 2, 0, 0, [0, 0xa]);
    let numbers = |c: &Cluster| c.log.asked.iter().map(|m| m.number).collect::<Vec<_>>();
    assert_eq!(numbers(&c), [1]);
    c.pass(ms(2500));
    assert_eq!(numbers(&c), [1, 1, 1]);
    c.cut(Who::Mdm);
    c.pass(ms(1000));
    assert!(numbers(&c).len() > 3 && numbers(&c).iter().all(|n| *n == 1), "on the new link");
    c.silent = false;
    c.pass(ms(1000));
    assert_eq!(a.answer(&mut c).result(), Ok(()));
    assert_eq!(c.table().registrants.len(), 1);
    // A second change waits for the first one, of whichever host.
    c.silent = true;
    let mut b = Host::attached(&mut c, 2);
    ask(&mut c, &mut a, 3, 1, SHARED, [0xa, 0]);
    ask(&mut c, &mut b, 2, 0, 0, [0, 0xb]);
    c.pass(ms(5000));
    assert_eq!(numbers(&c).last(), Some(&2));
    c.pass(Limits::SHIPPED.target_patience);
    assert_eq!(a.answer(&mut c).result(), Err((2, 4, 1)), "the host repeats it");
    assert_eq!(b.answer(&mut c).result(), Err((2, 4, 1)));
    c.silent = false;
    reserve(&mut c, &mut a, SHARED, 0xa);
    assert!(numbers(&c).last() > Some(&2), "a change of its own");
}

#[test]
fn a_change_that_was_aborted_is_not_asked_for_any_more() {
    let mut c = Cluster::ready();
    let mut a = Host::attached(&mut c, 1);
    c.silent = true;
    ask(&mut c, &mut a, 2, 0, 0, [0, 0xa]);
    a.abort_last(&mut c, 3, 2);
    assert_eq!(a.answer(&mut c).bhs[..3], [0x22, 0x80, 0], "it is over");
    let before = c.log.asked.len();
    c.silent = false;
    c.pass(ms(5000));
    assert_eq!((c.log.asked.len(), a.answers(&mut c).len()), (before, 0));
}

#[test]
fn a_report_has_the_newest_table() {
    let mut c = Cluster::ready();
    let mut a = Host::attached(&mut c, 1);
    others(&mut c, &[]);
    let pulls = c.log.pulls.len();
    let keys = [0x5e, 0, 0, 0, 0, 0, 0, 0, 64, 0];
    a.command(&mut c, 2, &keys, 64, &[]);
    let answer = a.answer(&mut c);
    assert_eq!(answer.data[..16], [0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 9]);
    assert!(c.log.pulls[pulls..].iter().any(|pull| !pull.wait));
    c.kill(Who::Mdm);
    a.command(&mut c, 3, &keys, 64, &[]);
    c.pass(Limits::SHIPPED.target_patience - ms(1000));
    assert!(a.answers(&mut c).is_empty());
    c.pass(ms(2000));
    assert_eq!(a.answer(&mut c).bhs[3], 8, "busy: the host repeats it");
}

#[test]
fn other_hosts_are_notified_and_a_later_host_is_bound_too() {
    let mut c = Cluster::ready();
    let (mut a, mut b) = (Host::attached(&mut c, 1), Host::attached(&mut c, 2));
    register(&mut c, &mut a, 0xa);
    register(&mut c, &mut b, 0xb);
    reserve(&mut c, &mut a, EXCLUSIVE, 0xa);
    done(&mut c, &mut a, 4, 2, EXCLUSIVE, [0xa, 0]);
    assert_eq!(b.ready(&mut c), Err((6, 0x2a, 4)), "a shared reservation was released");
    assert_eq!(a.ready(&mut c), Ok(()), "it knows");
    reserve(&mut c, &mut a, EXCLUSIVE, 0xa);
    let mut late = Host::attached(&mut c, 3);
    late.command(&mut c, 2, &transfer(0x28, 0, 1), 512, &[]);
    assert_eq!(late.answer(&mut c).bhs[3], CONFLICT);
    done(&mut c, &mut a, 5, 3, 0, [0xa, 0]);
    assert_eq!(b.ready(&mut c), Err((6, 0x2a, 3)), "all registrations are gone");
    late.command(&mut c, 3, &transfer(0x28, 0, 1), 512, &[]);
    assert_eq!(late.answer(&mut c).result(), Ok(()));
}

#[test]
fn programs_and_clients_of_nbd_are_strangers() {
    let mut c = Cluster::ready();
    c.fences = true;
    let mut nbd = Client::attached(&mut c, &Limits::SHIPPED);
    c.hold = true;
    nbd.request(&mut c, NBD_CMD_WRITE, 1, 0, 512, &[7; 512]);
    c.ask(1, BlockKind::Write, 4096, 512, &[8; 512]);
    c.ask(2, BlockKind::Read, 4096, 512, &[]);
    others(&mut c, &[Change::Reserve { key: 9, kind: Kind::WriteExclusive }]);
    c.pass(ms(1));
    c.hold = false;
    c.release();
    c.pass(ms(500));
    assert_eq!(nbd.reply(&mut c, 1).0, NBD_EPERM);
    let result = |c: &Cluster, id| c.log.replies.iter().find(|r| r.0 == id).map(|r| r.1.is_ok());
    assert_eq!((result(&c, 1), result(&c, 2)), (Some(false), Some(true)), "it only reads");
    assert!(c.data.iter().all(|byte| *byte == 0));
    c.ask(3, BlockKind::Write, 0, 512, &[8; 512]);
    assert_eq!(c.log.replies.last().unwrap().1.as_ref().unwrap_err(), &BlockError::Reserved);
    nbd.request(&mut c, NBD_CMD_WRITE, 4, 0, 512, &[7; 512]);
    assert_eq!(nbd.reply(&mut c, 4).0, NBD_EPERM);
    nbd.request(&mut c, NBD_CMD_READ, 5, 0, 512, &[]);
    assert_eq!(nbd.reply(&mut c, 5).0, 0);
    c.reserve_as(&other(), &Change::Clear { key: 9 }).unwrap();
    c.tell();
    c.pass(ms(1));
    nbd.request(&mut c, NBD_CMD_WRITE, 6, 0, 512, &[7; 512]);
    assert_eq!((nbd.reply(&mut c, 6).0, c.data[0]), (0, 7));
    c.ask(7, BlockKind::Write, 0, 512, &[8; 512]);
    assert_eq!((result(&c, 7), c.data[0]), (Some(true), 8));
    assert_eq!((c.sdc.connections(), VOLUME.0), (1, 1), "the connection was never closed");
}

impl Cluster {
    /// Returns the reservations of the volume, by the MDM.
    fn table(&self) -> Table {
        mdm::reserve::table(self.map.volumes[0].reservations.as_ref()).unwrap()
    }

    /// Changes the reservations of the volume in the MDM, as the MDM does it.
    pub(crate) fn reserve_as(
        &mut self,
        who: &Identity,
        change: &Change,
    ) -> Result<(), target::reserve::Refusal> {
        let (before, mut after) = (self.table(), self.table());
        let result = step(&mut after, who, change, 128);
        let volume = &mut self.map.volumes[0];
        if target::reserve::fences(&before, &after) {
            volume.generation += 1;
            let mapping = Mapping::of(volume.mapping.clone()).renewed(volume.generation);
            volume.mapping = Some(mapping.info());
        }
        note_losses(&before, &mut after, volume.generation);
        volume.reservations = mdm::reserve::table_info(&after);
        self.map.version += 1;
        result
    }
}
