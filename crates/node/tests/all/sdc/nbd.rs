//! NBD, from the client's bytes to the servers' and back.

use super::cluster::{Cluster, VOLUME, Who, volume};
use super::nbd_client::{Client, be32};
use base::{Limits, VolumeId};
use core::time::Duration;
use mdm::mapping::{Grant, Mapping};
use target::nbd::proto::*;
use wire::Status;
use wire::control::Access;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

#[test]
fn a_client_reads_what_it_has_written() {
    let mut c = Cluster::ready();
    let mut nbd = Client::attached(&mut c, &Limits::SHIPPED);
    let data: Vec<u8> = (0..8192).map(|i| (i / 7) as u8).collect();
    let at = (1 << 20) - 4096;
    nbd.request(&mut c, NBD_CMD_WRITE, 1, at, 8192, &data);
    assert_eq!(nbd.reply(&mut c, 1), (0, vec![]));
    nbd.request(&mut c, NBD_CMD_FLUSH, 2, 0, 0, &[]);
    assert_eq!(nbd.reply(&mut c, 2), (0, vec![]));
    nbd.request(&mut c, NBD_CMD_READ, 3, at, 8192, &[]);
    assert_eq!(nbd.reply(&mut c, 3), (0, data));
    nbd.request(&mut c, NBD_CMD_TRIM, 4, 0, 4 << 20, &[]);
    assert_eq!(nbd.reply(&mut c, 4).0, 0);
    nbd.request(&mut c, NBD_CMD_READ, 5, at, 512, &[]);
    assert_eq!(nbd.reply(&mut c, 5), (0, vec![0; 512]));
    assert_eq!(c.sdc.connections(), 1);
    nbd.request(&mut c, NBD_CMD_DISC, 6, 0, 0, &[]);
    assert_eq!((c.sdc.connections(), c.log.closed.as_slice()), (0, &[Who::Client][..]));
    assert_eq!(c.pool.used(), 0);
}

#[test]
fn block_status_shows_what_is_written() {
    let mut c = Cluster::ready();
    let mut nbd = Client::connect(&mut c, &Limits::SHIPPED);
    nbd.option(&mut c, NBD_OPT_STRUCTURED_REPLY, &[]);
    let mut query = 4u32.to_be_bytes().to_vec();
    query.extend(b"data");
    query.extend(1u32.to_be_bytes());
    query.extend(15u32.to_be_bytes());
    query.extend(b"base:allocation");
    nbd.option(&mut c, NBD_OPT_SET_META_CONTEXT, &query);
    nbd.go(&mut c, "data");
    nbd.request(&mut c, NBD_CMD_WRITE, 1, (2 << 20) - 8192, 16384, &[3; 16384]);
    nbd.take(&mut c);
    nbd.request(&mut c, NBD_CMD_BLOCK_STATUS, 2, 0, 4 << 20, &[]);
    let reply = nbd.take(&mut c);
    assert_eq!(reply[..4], NBD_STRUCTURED_REPLY_MAGIC.to_be_bytes());
    let runs: Vec<_> = reply[24..].chunks(8).map(|d| (be32(d, 0), be32(d, 4))).collect();
    assert_eq!(runs, [((2 << 20) - 8192, 3), (16384, 0), ((2 << 20) - 8192, 3)]);
}

#[test]
fn a_client_sees_a_volume_that_was_made_a_moment_ago() {
    let mut c = Cluster::ready();
    let mut nbd = Client::connect(&mut c, &Limits::SHIPPED);
    // No pull waits for this map, and the parked pull of a stuck request is in the way.
    c.hold = true;
    c.ask(1, seam::BlockKind::Read, 0, 512, &[]);
    c.pass(ms(300));
    c.map.version += 1;
    c.map.volumes.push(volume(VolumeId(2), "fresh", 1 << 20));
    (c.map.live, c.map.next_volume) = (vec![VOLUME.0, 2], 3);
    nbd.go(&mut c, "fresh");
    let answer = nbd.take(&mut c);
    assert_eq!(answer[answer.len() - 8..][..4], NBD_REP_ACK.to_be_bytes());
}

#[test]
fn without_an_mdm_a_client_waits_half_a_second_and_gets_what_is_known() {
    let mut c = Cluster::ready();
    c.kill(Who::Mdm);
    let mut nbd = Client::connect(&mut c, &Limits::SHIPPED);
    nbd.go(&mut c, "data");
    c.pass(ms(499));
    assert!(nbd.take(&mut c).is_empty());
    c.pass(ms(1));
    let answer = nbd.take(&mut c);
    assert_eq!(answer[answer.len() - 8..][..4], NBD_REP_ACK.to_be_bytes());
}

#[test]
fn a_client_that_disconnects_leaves_nothing_behind() {
    let mut c = Cluster::ready();
    let mut nbd = Client::attached(&mut c, &Limits::SHIPPED);
    c.hold = true;
    nbd.request(&mut c, NBD_CMD_WRITE, 1, 0, 512, &[9; 512]);
    nbd.request(&mut c, NBD_CMD_READ, 2, 4096, 512, &[]);
    c.cut(Who::Client);
    assert_eq!((c.sdc.connections(), c.sdc.outstanding()), (0, 2));
    c.release();
    assert_eq!((c.sdc.outstanding(), c.data[0]), (0, 9), "the write is done nevertheless");
    assert!(nbd.take(&mut c).is_empty());
}

#[test]
fn a_busy_client_is_paused_and_then_goes_on() {
    let mut c = Cluster::ready();
    let mut nbd = Client::attached(&mut c, &Limits::SHIPPED);
    c.hold = true;
    let many = u64::from(Limits::SHIPPED.nbd_requests) + 50;
    for i in 0..many {
        nbd.request(&mut c, NBD_CMD_READ, i, i % 16 * 512, 512, &[]);
    }
    assert_eq!((c.log.pauses, c.log.paused.len()), (1, 1));
    assert_eq!(c.sdc.outstanding(), Limits::SHIPPED.nbd_requests as usize);
    c.hold = false;
    c.release();
    assert_eq!((c.log.paused.len(), c.sdc.outstanding()), (0, 0));
    assert_eq!(nbd.take(&mut c).len() as u64, many * (16 + 512));
}

#[test]
fn nonsense_from_one_client_ends_that_client_only() {
    let mut c = Cluster::ready();
    let mut good = Client::attached(&mut c, &Limits::SHIPPED);
    let mut bad = Client::connect(&mut c, &Limits::SHIPPED);
    bad.request(&mut c, NBD_CMD_READ, 1, 0, 512, &[]); // in the middle of the negotiation
    assert_eq!((c.log.closed.as_slice(), c.sdc.connections()), (&[Who::Client][..], 1));
    good.request(&mut c, NBD_CMD_READ, 1, 0, 512, &[]);
    assert_eq!(good.reply(&mut c, 1).0, 0);
}

/// Maps the volume "data" to these clients.
fn map(c: &mut Cluster, mapping: Mapping) {
    c.map.version += 1;
    c.map.volumes[0].mapping = Some(mapping.info());
}

#[test]
fn an_unmapped_client_gets_an_error_and_is_closed_and_a_reader_is_read_only() {
    let me = Cluster::ready().sdc.identity().unwrap().0;
    let only = |access, generation| Mapping::only([(me, Grant::new(access, generation))].into());
    let mut c = Cluster::ready();
    let mut nbd = Client::attached(&mut c, &Limits::SHIPPED);
    c.pass(ms(1));
    assert_eq!(c.log.attached, [VOLUME.0]);
    map(&mut c, only(Access::ReadWrite, 0));
    c.next_status = Some(Status::NoVolume); // from a server with a newer map, so the SDC pulls it
    nbd.request(&mut c, NBD_CMD_READ, 1, 0, 512, &[]);
    c.pass(ms(50));
    assert_eq!(nbd.reply(&mut c, 1).0, 0, "the same leave, by name");
    map(&mut c, only(Access::ReadOnly, 1));
    c.next_status = Some(Status::NoVolume);
    nbd.request(&mut c, NBD_CMD_READ, 2, 0, 512, &[]);
    c.pass(ms(50));
    assert_eq!(nbd.reply(&mut c, 2).0, NBD_EIO);
    assert_eq!((c.sdc.connections(), c.log.closed.as_slice()), (0, &[Who::Client][..]));
    let mut nbd = Client::attached(&mut c, &Limits::SHIPPED);
    nbd.request(&mut c, NBD_CMD_WRITE, 3, 0, 512, &[9; 512]);
    assert_eq!(nbd.reply(&mut c, 3).0, NBD_EPERM);
    map(&mut c, Mapping::nobody());
    let mut nbd = Client::connect(&mut c, &Limits::SHIPPED);
    nbd.go(&mut c, "data");
    let answer = nbd.take(&mut c);
    assert!(String::from_utf8_lossy(&answer).contains("no volume has this name"));
}

/// Requests that waited when the permission was taken away are not executed under the one that was
/// given afterwards: the order that took it away is a fence.
#[test]
fn requests_that_waited_under_an_ended_permission_are_refused() {
    let limits = Limits { sdc_requests: 8, nbd_requests: 16, ..Limits::SHIPPED };
    let mut c = Cluster::new(limits.clone());
    c.pass(ms(1));
    let me = c.sdc.identity().unwrap().0;
    let only = |generation| {
        let grant = Grant::new(Access::ReadWrite, generation);
        Mapping::only([(me, grant)].into())
    };
    let mut nbd = Client::attached(&mut c, &limits);
    c.hold = true;
    // Some writes are at the server, some wait for a place, and some were not read from the
    // connection.
    for i in 0..30 {
        nbd.request(&mut c, NBD_CMD_WRITE, i, i * 4096, 512, &[7; 512]);
    }
    assert_eq!((c.log.pauses, c.sdc.outstanding()), (1, 6));
    map(&mut c, Mapping::nobody());
    map(&mut c, only(1));
    c.pass(Limits::SHIPPED.stuck_after * 3); // the client asks for a newer map
    let answers = nbd.take(&mut c);
    let errors: Vec<u32> = answers.chunks(16).map(|reply| be32(reply, 4)).collect();
    assert!(errors.len() >= 16 && errors.iter().all(|e| *e == NBD_EIO), "{errors:?}");
    c.release();
    assert!(c.data.chunks(4096).skip(6).all(|block| block[0] == 0), "no write came afterwards");
    assert_eq!((c.sdc.connections(), c.sdc.outstanding()), (0, 0));
}

#[test]
fn a_connection_waits_for_a_place_in_a_busy_client() {
    let limits = Limits { sdc_requests: 8, ..Limits::SHIPPED };
    let mut c = Cluster::new(limits.clone());
    c.pass(ms(1));
    let mut nbd = Client::attached(&mut c, &limits);
    let mut other = Client::attached(&mut c, &limits);
    c.hold = true;
    for i in 0..10 {
        nbd.request(&mut c, NBD_CMD_WRITE, i, i * 4096, 512, &[7; 512]);
        other.request(&mut c, NBD_CMD_READ, i, i * 4096, 512, &[]);
    }
    assert_eq!((nbd.take(&mut c).len(), other.take(&mut c).len()), (0, 0));
    c.hold = false;
    c.release();
    let errors = |bytes: &[u8], len: usize| -> Vec<u32> {
        bytes.chunks(len).map(|reply| be32(reply, 4)).collect()
    };
    assert_eq!(errors(&nbd.take(&mut c), 16), [0; 10]);
    assert_eq!(errors(&other.take(&mut c), 16 + 512), [0; 10]);
    assert_eq!((c.sdc.outstanding(), c.log.paused.len()), (0, 0));
}

#[test]
fn a_thousand_writes_that_wait_for_space_hold_nothing_else_up() {
    let mut c = Cluster::ready();
    let mut nbd = Client::attached(&mut c, &Limits::SHIPPED);
    c.full = true;
    for i in 0..1000 {
        nbd.request(&mut c, NBD_CMD_WRITE, i, i % 1000 * 4096, 4096, &[7; 4096]);
        c.pass(ms(1));
    }
    assert_eq!((c.sdc.held(), c.log.paused.len()), (1000, 0));
    for (cookie, command, len) in
        [(2001, NBD_CMD_READ, 4096), (2002, NBD_CMD_FLUSH, 0), (2003, NBD_CMD_TRIM, 4096)]
    {
        nbd.request(&mut c, command, cookie, 0, len, &[]);
        assert_eq!(nbd.reply(&mut c, cookie).0, 0);
    }
    c.full = false;
    c.pass(Duration::from_secs(5));
    assert_eq!(nbd.take(&mut c).len(), 1000 * 16);
    assert_eq!((c.sdc.held(), c.sdc.outstanding(), c.pool.used()), (0, 0, 0));
}

/// Writes that wait for space leave places for the writes of volumes that have some: half of the
/// requests may wait, of which a write that finds no place is not one.
#[test]
fn writes_that_wait_for_space_are_half_of_the_requests_at_most() {
    let limits = Limits { sdc_requests: 8, nbd_requests: 1, ..Limits::SHIPPED };
    let mut c = Cluster::new(limits.clone());
    c.pass(ms(1));
    let mut full = Client::attached(&mut c, &limits);
    let mut other = Client::attached(&mut c, &limits);
    c.full = true;
    for i in 0..10 {
        full.request(&mut c, NBD_CMD_WRITE, i, i * 4096, 4096, &[7; 4096]);
    }
    c.pass(ms(20));
    let nbd = c.sdc.list_lengths().nbd;
    assert_eq!((nbd.waiting, nbd.requests), (4, 1), "and one counts as in flight");
    assert_eq!((c.sdc.held(), c.log.paused.len()), (5, 1));
    // There is space elsewhere. Nothing of what waits is asked again this soon.
    c.full = false;
    other.request(&mut c, NBD_CMD_WRITE, 1, 1 << 20, 4096, &[8; 4096]);
    assert_eq!(other.reply(&mut c, 1).0, 0, "it has found a place");
    assert_eq!(c.sdc.held(), 5);
    c.pass(Duration::from_secs(5));
    assert_eq!(full.take(&mut c).len(), 10 * 16);
    assert_eq!((c.sdc.held(), c.sdc.outstanding(), c.log.paused.len()), (0, 0, 0));
}

/// Bytes of one request of the two tests below.
const PIECE: u32 = 4096;

fn small_sums() -> Limits {
    let sums = Limits { nbd_flying: 64 << 10, nbd_waiting: 32 << 10, ..Limits::SHIPPED };
    Limits { nbd_payload: 16 << 10, ..sums }
}

/// Connections that come one after the other, while no server answers, share what is in flight.
#[test]
fn requests_in_flight_of_all_connections_are_bounded() {
    const COUNT: u64 = 12;
    let limits = small_sums();
    let mut c = Cluster::new(limits.clone());
    c.pass(ms(1));
    c.hold = true;
    let mut all = Vec::new();
    for _ in 0..COUNT {
        let mut nbd = Client::attached(&mut c, &limits);
        for i in 0..8 {
            nbd.request(&mut c, NBD_CMD_WRITE, i, i * 4096, PIECE, &[7; PIECE as usize]);
        }
        all.push(nbd);
        let (is, may) = (c.sdc.list_lengths().nbd, c.sdc.list_bounds().nbd);
        let most = limits.nbd_flying as usize + all.len() * PIECE as usize;
        assert!(is.all_bytes <= most, "{} connections: {}", all.len(), is.all_bytes);
        assert!(is.all_bytes <= may.all_bytes && is.bytes <= may.bytes, "{is:?} {may:?}");
        assert!(is.all_bytes >= all.len() * PIECE as usize, "each has something: {is:?}");
    }
    c.hold = false;
    c.release();
    for nbd in &mut all {
        assert_eq!(nbd.take(&mut c).len(), 8 * 16);
    }
    assert_eq!((c.sdc.list_lengths().nbd.all_bytes, c.log.paused.len()), (0, 0));
}

/// The requests in flight of connections that are gone leave room for others.
#[test]
fn requests_of_a_closed_connection_do_not_count() {
    let limits = small_sums();
    let mut c = Cluster::new(limits.clone());
    c.pass(ms(1));
    c.hold = true;
    for _ in 0..20 {
        let mut nbd = Client::attached(&mut c, &limits);
        for i in 0..8 {
            nbd.request(&mut c, NBD_CMD_READ, i, i * 4096, PIECE, &[]);
        }
        assert_eq!(c.sdc.list_lengths().nbd.all_bytes, 32 << 10);
        c.cut(Who::Client);
        assert_eq!(c.sdc.list_lengths().nbd.all_bytes, 0);
    }
}

/// The writes of all connections that wait for space have a bound. Beyond it they count as in
/// flight.
#[test]
fn requests_that_wait_for_space_are_bounded_over_all_connections() {
    let limits = small_sums();
    let mut c = Cluster::new(limits.clone());
    c.pass(ms(1));
    c.full = true;
    let mut all: Vec<_> = (0..6).map(|_| Client::attached(&mut c, &limits)).collect();
    for i in 0..6 {
        for nbd in &mut all {
            nbd.request(&mut c, NBD_CMD_WRITE, i, i * 4096, PIECE, &[7; PIECE as usize]);
        }
        c.pass(ms(1));
    }
    let is = c.sdc.list_lengths().nbd;
    assert_eq!((is.waiting, is.waiting_bytes), (8, limits.nbd_waiting as usize));
    assert!(is.all_bytes > 0 && is.all_bytes <= limits.nbd_flying as usize + 6 * 4096, "{is:?}");
    c.full = false;
    c.pass(Duration::from_secs(10));
    for nbd in &mut all {
        assert_eq!(nbd.take(&mut c).len(), 6 * 16);
    }
    let is = c.sdc.list_lengths().nbd;
    assert_eq!((is.waiting_bytes, is.all_bytes, c.sdc.held()), (0, 0, 0));
}

#[test]
fn idle_negotiations_are_closed_and_keep_no_client_out() {
    let mut c = Cluster::ready();
    let mut served = Client::attached(&mut c, &Limits::SHIPPED);
    let silent: Vec<_> = (0..300).map(|_| Client::connect(&mut c, &Limits::SHIPPED)).collect();
    assert_eq!((c.sdc.connections(), c.log.closed.len()), (257, 44), "the oldest go");
    let mut late = Client::attached(&mut c, &Limits::SHIPPED);
    c.pass(Duration::from_millis(4_999));
    assert_eq!(c.sdc.connections(), 257);
    c.pass(ms(1));
    assert_eq!((c.sdc.connections(), c.log.closed.len()), (2, silent.len()));
    for nbd in [&mut served, &mut late] {
        nbd.request(&mut c, NBD_CMD_READ, 1, 0, 512, &[]);
        assert_eq!(nbd.reply(&mut c, 1).0, 0);
    }
}

#[test]
fn attached_connections_are_bounded() {
    const MOST: usize = 4096;
    let mut c = Cluster::ready();
    let mut all: Vec<_> =
        (0..MOST - 1).map(|_| Client::attached(&mut c, &Limits::SHIPPED)).collect();
    Client::connect(&mut c, &Limits::SHIPPED);
    assert_eq!((c.sdc.connections(), c.log.closed.len()), (MOST, 0), "one says nothing");
    all.push(Client::attached(&mut c, &Limits::SHIPPED));
    assert_eq!((c.sdc.connections(), c.log.closed.len()), (MOST, 1), "that one has gone");
    c.accept(node::sdc::NBD);
    assert_eq!((c.sdc.connections(), c.log.closed.len()), (MOST, 2), "all others have a volume");
    let (first, last) = (&mut all[0], MOST as u64);
    first.request(&mut c, NBD_CMD_READ, last, 0, 512, &[]);
    assert_eq!(first.reply(&mut c, last).0, 0);
}
