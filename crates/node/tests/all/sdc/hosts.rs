//! Volumes that are mapped to hosts by name: who is let in, and what happens to the commands of a
//! host that loses access.

use super::cluster::{Cluster, ME, VOLUME, Who, volume};
use super::iscsi_host::{Host, Sense};
use super::nbd_client::Client;
use super::nvme_host::Queue;
use super::seats::{HOST, NVME_HOST, answering, give, ms, nvme, silent};
use base::{Limits, VolumeId};
use mdm::mapping::{Grant, Mapping, Permissions};
use target::nbd::proto::NBD_CMD_WRITE;
use wire::control::Access::{self, ReadOnly, ReadWrite};

/// Login: the host is not authorized.
const FORBIDDEN: u16 = 0x0202;
/// The namespace is invalid; do not retry.
const NO_NAMESPACE: u16 = 0x400b;
const WRITE_PROTECTED: Result<(), Sense> = Err((7, 0x27, 0));
/// Mode parameters have changed.
const MODE_CHANGED: Result<(), Sense> = Err((6, 0x2a, 1));

/// Maps the volume to these hosts only, as the MDM does, and ends the seats of those that lose
/// access. `None`: to all hosts.
fn only(c: &mut Cluster, hosts: Option<&[(&str, Access)]>) {
    c.map.version += 1;
    let volume = &mut c.map.volumes[0];
    let old = Mapping::of(volume.mapping.clone());
    let grant = |(host, access): &(&str, Access)| ((*host).into(), Grant::new(*access, 0));
    let wish = match hosts {
        Some(hosts) => Permissions::only(hosts.iter().map(grant).collect()),
        None => Permissions::to_all(ReadWrite, 0),
    };
    let (new, generation) = old.replaced(&old.clone().with_hosts(wish), volume.generation);
    let since = |mapping: &Mapping, host: &str| mapping.hosts().get(host).map(|g| g.since);
    volume.seats.retain(|seat| since(&old, &seat.host) == since(&new, &seat.host));
    (volume.generation, volume.mapping) = (generation, Some(new.info()));
}

fn only_and_tell(c: &mut Cluster, hosts: Option<&[(&str, Access)]>) {
    only(c, hosts);
    c.tell();
}

fn namespaces(c: &mut Cluster, admin: &mut Queue) -> Vec<u32> {
    let mut entry = Queue::entry(0x06, 4096, false);
    entry[40] = 0x02;
    admin.send(c, entry, &[]);
    let answers = admin.answers(c);
    let list = answers[0].data.chunks(4).map(|id| u32::from_le_bytes(id.try_into().unwrap()));
    list.take_while(|id| *id > 0).collect()
}

#[test]
fn only_named_hosts_are_let_in_and_nbd_clients_are_no_hosts() {
    let mut c = answering();
    only_and_tell(&mut c, Some(&[("iqn.2026-11.test:other", ReadWrite)]));
    let mut stranger = Host::connect(&mut c);
    assert_eq!(stranger.log_in(&mut c, 1), FORBIDDEN);
    let mut other = Host::connect(&mut c);
    other.name = "iqn.2026-11.test:other".into();
    assert_eq!(other.log_in(&mut c, 1), 0);
    let (mut admin, mut io) = nvme(&mut c);
    assert!(namespaces(&mut c, &mut admin).is_empty());
    io.write(&mut c, 0, &[1; 512]);
    assert_eq!(io.answer(&mut c).answer().0, NO_NAMESPACE);
    let mut nbd = Client::attached(&mut c, &Limits::SHIPPED);
    nbd.request(&mut c, NBD_CMD_WRITE, 1, 4096, 512, &[7; 512]);
    assert_eq!(nbd.reply(&mut c, 1).0, 0);
    assert!(c.log.wished.iter().flat_map(|m| &m.seats).all(|wish| wish.host == other.name));
}

/// A host of NVMe that may use another volume sees that one only, and hears of a change.
#[test]
fn hosts_of_nvme_see_the_volumes_that_are_mapped_to_them() {
    let mut c = answering();
    c.change(|map| {
        map.volumes.push(volume(VolumeId(2), "more", 8 << 20));
        (map.live, map.next_volume) = (vec![1, 2], 3);
    });
    c.tell();
    let (mut admin, mut io) = nvme(&mut c);
    assert_eq!(namespaces(&mut c, &mut admin), [1, 2]);
    only_and_tell(&mut c, Some(&[]));
    assert_eq!(namespaces(&mut c, &mut admin), [2], "it had no seat, so its queues stay");
    io.write(&mut c, 0, &[1; 512]);
    assert_eq!(io.answer(&mut c).answer().0, NO_NAMESPACE);
    only_and_tell(&mut c, Some(&[(NVME_HOST, ReadOnly)]));
    assert_eq!(namespaces(&mut c, &mut admin), [1, 2]);
    io.write(&mut c, 0, &[1; 512]);
    assert_eq!(io.answer(&mut c).answer().0, 0x4020, "write protected");
    io.read(&mut c, 0, 512);
    assert_eq!(io.answers(&mut c).len(), 2, "data, and the response");
    only_and_tell(&mut c, None);
    io.write(&mut c, 0, &[1; 512]);
    assert_eq!(io.answer(&mut c).answer().0, 0, "more access ends nothing");
}

#[test]
pub(crate) fn a_host_that_loses_access_is_cut_off_before_its_commands_get_the_new_generation() {
    let mut c = answering();
    let mut a = Host::attached(&mut c, 1);
    let (_admin, mut io) = nvme(&mut c);
    a.write(&mut c, 2, 0xaa);
    io.write(&mut c, 1, &[0xbb; 512]);
    assert!(a.answer(&mut c).result().is_ok() && io.answer(&mut c).answer().0 == 0);
    c.hold = true;
    a.write(&mut c, 3, 0xac);
    io.write(&mut c, 1, &[0xbc; 512]);
    let sent = c.log.ios.len();
    only_and_tell(&mut c, Some(&[("iqn.2026-11.test:other", ReadWrite)]));
    let closed = c.log.closed.iter().filter(|who| **who == Who::Client).count();
    assert_eq!(closed, 3, "the session, and both queues");
    c.release();
    c.pass(ms(3000));
    assert_eq!((c.data[0], c.data[512]), (0xaa, 0xbb), "servers refused them");
    assert_eq!(c.log.ios.len(), sent, "they are not repeated under the new generation");
    assert_eq!(Host::connect(&mut c).log_in(&mut c, 1), FORBIDDEN);
}

/// The commands waited for a seat. They belong to a permission that has ended.
#[test]
fn waiting_commands_of_a_host_that_loses_access_end_at_once_even_if_it_gets_access_again() {
    for again in [false, true] {
        let mut c = silent();
        let mut a = Host::attached(&mut c, 1);
        let (_admin, mut io) = nvme(&mut c);
        a.write(&mut c, 2, 0xaa);
        io.write(&mut c, 1, &[0xbb; 512]);
        only(&mut c, Some(&[]));
        if again {
            only(&mut c, Some(&[(HOST, ReadWrite), (NVME_HOST, ReadWrite)]));
        }
        c.tell();
        c.pass(ms(100));
        assert_eq!(io.answer(&mut c).answer().0 & 0xff, if again { 0x21 } else { 0x0b });
        give(&mut c, HOST, ME);
        give(&mut c, NVME_HOST, ME);
        c.keeps_seats = false;
        c.tell();
        c.pass(ms(5000));
        assert!(c.log.ios.is_empty(), "{again}: {:?}", c.log.ios);
        assert!(c.log.closed.contains(&Who::Client) || !a.answers(&mut c).is_empty());
    }
}

#[test]
fn a_host_that_may_only_read_from_now_on_logs_in_again() {
    let mut c = answering();
    let mut a = Host::attached(&mut c, 1);
    a.write(&mut c, 2, 0xaa);
    assert!(a.answer(&mut c).result().is_ok());
    only_and_tell(&mut c, Some(&[(HOST, ReadOnly)]));
    assert!(c.log.closed.contains(&Who::Client));
    let mut a = Host::attached(&mut c, 1);
    assert_eq!(a.ready(&mut c), MODE_CHANGED, "it has missed that");
    a.write(&mut c, 2, 0xab);
    assert_eq!(a.answer(&mut c).result(), WRITE_PROTECTED);
    only_and_tell(&mut c, Some(&[(HOST, ReadWrite)]));
    assert_eq!(a.ready(&mut c), MODE_CHANGED);
    a.write(&mut c, 3, 0xac);
    assert_eq!((a.answer(&mut c).result(), c.data[0]), (Ok(()), 0xac));
    assert_eq!(c.map.volumes[0].id, VOLUME.0);
}
