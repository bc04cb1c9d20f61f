//! NVMe/TCP hosts that have to authenticate. The messages are tested in `crates/target`.

use super::cluster::{Cluster, Who};
use super::nvme_host::Queue;
use base::ClusterId;
use core::time::Duration;
use hmac::{Hmac, Mac};
use node::sdc::{DhChap, Key};
use sha2::Sha256;
use std::collections::BTreeMap;
use target::ident;

const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";
const AUTH_REQUIRED: u16 = 0x4191;
const UNKNOWN_HOST: u16 = 0x4184;

/// A key of 32 zeros that is not tied to a name.
fn key() -> Key {
    Key::parse("DHHC-1:00:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAACtVQoZ:").unwrap()
}

/// Only the host with this name has a key.
fn only(name: &str) -> Cluster {
    let hosts = BTreeMap::from([(name.into(), key())]);
    Cluster::with_keys(DhChap { host: None, hosts, own: None })
}

fn subsystem() -> String {
    ident::nqn(ClusterId(9))
}

/// Connects, and has to authenticate.
fn connect(c: &mut Cluster, qid: u16, cntlid: u16) -> Queue {
    let mut queue = Queue::open(c);
    assert_eq!(queue.connect(c, qid, cntlid, &subsystem()), 0);
    assert!(queue.must_authenticate);
    queue
}

/// A command of type 5 (send) or 6 (receive) with so many bytes.
fn entry(kind: u8, len: usize) -> [u8; 64] {
    let mut entry = Queue::entry(0x7f, len, kind == 5);
    entry[4] = kind;
    entry[41..44].copy_from_slice(&[1, 1, 0xe9]);
    entry[44..48].copy_from_slice(&(len as u32).to_le_bytes());
    entry
}

fn tell(c: &mut Cluster, queue: &mut Queue, message: &[u8]) {
    queue.send(c, entry(5, message.len()), message);
    assert_eq!(queue.answer(c).answer().0, 0);
}

fn hear(c: &mut Cluster, queue: &mut Queue) -> Vec<u8> {
    queue.send(c, entry(6, 64), &[]);
    queue.answers(c).into_iter().next().map(|pdu| pdu.data).unwrap_or_default()
}

/// Authenticates by SHA-256, without a group. Returns true if that has succeeded.
fn authenticate(c: &mut Cluster, queue: &mut Queue) -> bool {
    let mut offer = vec![0; 72];
    (offer[7], offer[8], offer[10], offer[11], offer[12]) = (1, 1, 1, 1, 1);
    tell(c, queue, &offer);
    let challenge = hear(c, queue);
    let mut mac = Hmac::<Sha256>::new_from_slice(&[0; 32]).unwrap();
    let name = subsystem();
    let parts = [&challenge[16..48], &challenge[12..16], &[0; 3], b"HostHost", b"nqn.host", &[0]];
    parts.iter().for_each(|part| mac.update(part));
    mac.update(name.as_bytes());
    let mut reply = vec![1, 2, 0, 0, 0, 0, 32];
    reply.resize(16, 0);
    reply.extend(mac.finalize().into_bytes());
    reply.resize(80, 0);
    tell(c, queue, &reply);
    hear(c, queue).starts_with(&[1, 3])
}

#[test]
fn hosts_with_a_key_authenticate_each_queue() {
    let mut c = only("nqn.host");
    let mut admin = connect(&mut c, 0, 0xffff);
    assert_eq!(admin.configure(&mut c, 0x46_0001), AUTH_REQUIRED);
    assert!(!c.log.welcome.contains(&admin.link), "it is a stranger until then");
    let mut early = Queue::open(&mut c);
    assert_eq!(early.connect(&mut c, 1, admin.cntlid, &subsystem()), 0x4182, "no such controller");
    assert!(authenticate(&mut c, &mut admin));
    assert!(c.log.welcome.contains(&admin.link));
    assert_eq!(admin.configure(&mut c, 0x46_0001), 0);
    let mut io = connect(&mut c, 1, admin.cntlid);
    io.read(&mut c, 0, 512);
    assert_eq!(io.answer(&mut c).answer().0, AUTH_REQUIRED);
    assert!(!c.log.welcome.contains(&io.link));
    let mut twice = connect(&mut c, 1, admin.cntlid);
    assert!(authenticate(&mut c, &mut io));
    assert!(c.log.welcome.contains(&io.link));
    io.write(&mut c, 0, &[0xbb; 512]);
    assert_eq!((io.answer(&mut c).answer(), c.data[0]), ((0, 0), 0xbb));
    // Another link has become this queue meanwhile.
    assert!(c.sdc.serves(twice.link));
    assert!(!authenticate(&mut c, &mut twice));
    assert!(!c.sdc.serves(twice.link) && c.sdc.serves(io.link));
}

#[test]
fn hosts_without_a_key_are_refused_where_others_have_one() {
    let mut c = only("nqn.other");
    for name in [subsystem(), DISCOVERY.into()] {
        let mut queue = Queue::open(&mut c);
        assert_eq!(queue.connect(&mut c, 0, 0xffff, &name), UNKNOWN_HOST);
    }
    let all = DhChap { host: Some(key()), hosts: BTreeMap::new(), own: None };
    let mut c = Cluster::with_keys(all);
    let mut admin = connect(&mut c, 0, 0xffff);
    assert!(authenticate(&mut c, &mut admin));
    assert_eq!(admin.configure(&mut c, 0x46_0001), 0);
    assert_eq!(Queue::discovery(&mut c).status(&mut c), 1, "discovery needs none");
}

#[test]
fn links_that_do_not_authenticate_take_no_place_of_hosts() {
    let mut c = only("nqn.host");
    let mut admin = connect(&mut c, 0, 0xffff);
    assert!(authenticate(&mut c, &mut admin));
    // More than there are places for controllers.
    let strangers: Vec<Queue> = (0..600).map(|_| connect(&mut c, 0, 0xffff)).collect();
    let open = strangers.iter().filter(|queue| c.sdc.serves(queue.link)).count();
    assert_eq!(open, 256);
    let mut other = connect(&mut c, 0, 0xffff);
    assert!(authenticate(&mut c, &mut other));
    assert_ne!(other.cntlid, admin.cntlid);
    c.log.closed.clear();
    c.pass(Duration::from_secs(17));
    assert!(strangers.iter().all(|queue| !c.sdc.serves(queue.link)));
    assert!(c.log.closed.iter().all(|who| *who == Who::Client));
    assert!(c.sdc.serves(admin.link) && c.sdc.serves(other.link));
}
