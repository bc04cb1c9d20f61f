//! Registration, maps and links: how an SDC keeps them up, and which faults it survives.

use super::cluster::{Cluster, VOLUME, Who, device};
use base::{Limits, MapVersion, VolumeId};
use core::time::Duration;
use seam::{BlockError, BlockKind, Event, Note};
use wire::control::{Intent, Refusal, RefusalCode, Registered, Role};
use wire::message::Reply;
use wire::{Header, Kind, Status};

const MIB: u64 = 1 << 20;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

#[test]
fn a_client_registers_pulls_the_map_and_sends_heartbeats() {
    let mut c = Cluster::ready();
    let (who, hello) = &c.log.hellos[0];
    assert_eq!((*who, hello.role(), hello.id, hello.incarnation), (Who::Mdm, Role::Sdc, 0, 0));
    let registration = &c.log.registrations[0];
    assert_eq!((registration.nonce, registration.pid, registration.uris.len()), (77, 5, 1));
    assert_eq!((c.map_version(), c.log.pulls.len(), c.log.heartbeats), (MapVersion(5), 1, 1));
    assert_eq!(c.sdc.volume_by_name("data").map(|(id, v)| (id, v.size)), Some((VOLUME, 8 * MIB)));
    assert!(c.sdc.volume_by_name("none").is_none());
    c.pass(ms(1000));
    assert_eq!((c.log.heartbeats, c.log.pulls.len()), (6, 1), "idle: heartbeats only");
    assert_eq!(c.log.hellos.len(), 1, "no link to a server before it is needed");
}

#[test]
fn the_mdm_is_told_at_once_which_volumes_the_program_has_open() {
    let mut c = Cluster::ready();
    c.pass(ms(1000));
    let told = |c: &mut Cluster| {
        c.on(Event::Withdraw { ids: &[] });
        c.log.attached.clone()
    };
    c.sdc.hold(VOLUME);
    assert_eq!(told(&mut c), [VOLUME.0]);
    c.sdc.hold(VOLUME);
    c.sdc.hold(VolumeId(7));
    assert_eq!(told(&mut c), [VOLUME.0, 7]);
    c.sdc.release(VOLUME);
    assert_eq!(told(&mut c), [VOLUME.0, 7], "it is open once more");
    c.sdc.release(VOLUME);
    c.sdc.release(VolumeId(9));
    assert_eq!(told(&mut c), [7]);
    // A new MDM knows nothing.
    c.log.attached.clear();
    c.cut(Who::Mdm);
    c.pass(ms(1000));
    assert_eq!(c.log.attached, [7]);
}

#[test]
fn requests_go_to_the_right_servers_and_come_back() {
    let mut c = Cluster::ready();
    let data: Vec<u8> = (0..2 * MIB).map(|i| (i / 4096) as u8).collect();
    c.ask(1, BlockKind::Write, MIB / 2, 2 * MIB as u32, &data);
    c.ask(2, BlockKind::Read, MIB / 2, 2 * MIB as u32, &[]);
    c.ask(3, BlockKind::Flush, 0, 0, &[]);
    let results: Vec<_> =
        c.log.replies.iter().map(|(id, r)| (*id, r.as_ref().unwrap().len())).collect();
    assert_eq!(results, [(1, 0), (2, 2 * MIB as usize), (3, 0)]);
    assert_eq!(&c.log.replies[1].1.as_ref().unwrap()[..], &data[..]);
    assert!(c.log.ios.iter().map(|(n, io)| (*n, io.request())).all(|(n, r)| (
        r.group.0,
        r.client.sdc.0,
        r.client.incarnation.0
    ) == (n, 4, 40)));
    let hellos: Vec<_> =
        c.log.hellos[1..].iter().map(|(w, h)| (*w, h.id, h.incarnation, h.session)).collect();
    assert_eq!(hellos, [(Who::Server(1), 4, 40, 1), (Who::Server(2), 4, 40, 1)]);
    assert_eq!(c.sdc.outstanding(), 0);
    drop(c.log.replies);
    assert_eq!(c.pool.used(), 0, "no buffer is kept");
}

#[test]
fn io_goes_on_without_the_mdm_which_is_told_the_same_nonce_again() {
    let mut c = Cluster::ready();
    c.kill(Who::Mdm);
    c.ask(1, BlockKind::Write, 0, 512, &[1; 512]);
    c.pass(ms(3000));
    c.ask(2, BlockKind::Read, 0, 512, &[]);
    assert!(c.log.replies.iter().all(|(_, r)| r.is_ok()) && c.log.replies.len() == 2);
    assert!(c.sdc.is_ready());
    c.alive.insert(1);
    c.pass(ms(1000));
    let (_, hello) = c.log.hellos.last().unwrap();
    assert_eq!((hello.id, hello.incarnation), (4, 40));
    assert_eq!(c.log.registrations.iter().map(|r| r.nonce).collect::<Vec<_>>(), [77, 77]);
}

#[test]
fn an_mdm_that_gives_another_identity_is_not_believed() {
    let mut c = Cluster::ready();
    let link = c.link_of(Who::Mdm).unwrap();
    let other = Registered { cluster: 9, id: 4, incarnation: 41, map: 3, scrub: 0 };
    c.send(link, Header::new(Kind::Registered), &other);
    assert_eq!((c.log.closed.as_slice(), c.sdc.identity().unwrap().1.0), (&[Who::Mdm][..], 40));
}

#[test]
fn an_mdm_that_was_set_back_is_not_followed() {
    let mut c = Cluster::ready();
    c.kill(Who::Mdm);
    c.map.version = 4;
    c.alive.insert(1);
    c.pass(ms(2000));
    let tries = c.log.hellos.iter().filter(|(who, _)| *who == Who::Mdm).count();
    assert!(tries > 2, "it is asked now and then: {tries}");
    assert_eq!((c.log.registrations.len(), c.map_version()), (1, MapVersion(5)));
    c.map.version = 5;
    c.pass(ms(2000));
    assert_eq!(c.log.registrations.len(), 2);
}

/// Its process hangs, and its host still accepts connections.
#[test]
fn a_server_that_answers_no_hello_is_dialled_again() {
    let mut c = Cluster::ready();
    c.mute.insert(1);
    c.ask(1, BlockKind::Write, 0, 4096, &[7; 4096]);
    let patience = Limits::SHIPPED.hello_within * 2;
    c.pass(patience - ms(1));
    assert_eq!(c.log.closed, []);
    c.pass(ms(1));
    assert_eq!(c.log.closed, [Who::Server(1)]);
    // The hung process has ended, and another one listens.
    c.mute.clear();
    c.pass(ms(1000));
    assert_eq!(c.log.hellos.iter().filter(|(who, _)| *who == Who::Server(1)).count(), 2);
    assert!(c.log.replies.len() == 1 && c.log.replies[0].1.is_ok());
}

#[test]
fn a_dead_primary_is_replaced_as_soon_as_the_map_says_so() {
    let mut c = Cluster::ready();
    c.hold = true;
    c.ask(1, BlockKind::Write, 0, 4096, &[7; 4096]);
    c.kill(Who::Server(1));
    c.hold = false;
    let pull = c.log.pulls.last().unwrap();
    assert_eq!((pull.wait, c.log.pulls.len()), (true, 2), "it waits at the MDM for the news");
    c.pass(ms(50));
    assert!(c.log.replies.is_empty());
    c.lead(1, 11, 2);
    assert!(c.log.replies[0].1.is_ok());
    let (n, io) = c.log.ios.last().unwrap();
    let request = io.request();
    assert_eq!((*n, request.epoch.0, io.is_retry(), request.client.seq), (2, 11, true, 1));
    assert!(c.log.notes.contains(&Note::Retried { ops: 1 }));
    assert!(c.log.notes.contains(&Note::Map { version: MapVersion(6) }));
}

#[test]
fn one_pull_waits_at_the_mdm_while_requests_are_stuck() {
    let mut c = Cluster::ready();
    c.hold = true;
    c.ask(1, BlockKind::Read, 0, 512, &[]);
    c.pass(ms(90));
    assert_eq!(c.log.pulls.len(), 1);
    c.pass(ms(100));
    assert_eq!((c.log.pulls.len(), c.log.pulls[1].wait), (2, true));
    c.pass(ms(900));
    assert_eq!(c.log.pulls.len(), 2);
    c.change(|_| {});
    c.pass(ms(60));
    assert_eq!((c.log.pulls.len(), c.log.pulls[2].have.0), (3, 6), "still stuck");
    c.release();
    c.hold = false;
    c.change(|_| {});
    c.pass(ms(5000));
    assert_eq!((c.log.pulls.len(), c.log.replies.len()), (3, 1));
}

/// Requests to a lost group end at once, so no server tells the client that it is served again.
#[test]
fn a_client_hears_that_a_lost_group_is_served_again() {
    let mut c = Cluster::ready();
    c.change(|map| {
        let group = &mut map.groups[0];
        (group.epoch, group.primary, group.lost) = (group.epoch + 1, 0, true);
        group.in_sync.clear();
    });
    c.every_status = Some(Status::Behind);
    c.ask(1, BlockKind::Read, 0, 512, &[]);
    c.every_status = None;
    c.pass(ms(5000));
    assert_eq!(c.log.replies[0].1.as_ref().err(), Some(&BlockError::Lost));
    let pulls = c.log.pulls.len();
    assert!(c.log.pulls.last().unwrap().wait && pulls < 5, "{pulls} pulls");
    c.lead(1, 20, 1);
    c.ask(2, BlockKind::Read, 0, 512, &[]);
    assert!(c.log.replies[1].1.is_ok(), "{:?}", c.log.replies[1]);
    c.pass(ms(5000));
    assert!(c.log.pulls.len() <= pulls + 1, "nothing is lost any more");
}

#[test]
fn a_stale_answer_causes_a_pull_and_then_a_retry() {
    let mut c = Cluster::ready();
    c.ask(1, BlockKind::Read, 0, 512, &[]);
    c.lead(1, 12, 2); // No pull waits for it.
    assert_eq!(c.map_version(), MapVersion(5));
    c.ask(2, BlockKind::Read, 0, 512, &[]);
    assert_eq!((c.map_version(), c.log.replies.len()), (MapVersion(6), 2));
    assert_eq!(c.log.ios.last().unwrap().0, 2);
}

#[test]
fn a_stranger_at_a_servers_address_gets_no_io() {
    let mut c = Cluster::ready();
    c.devices.insert(1, (9, 1));
    c.ask(1, BlockKind::Read, 0, 512, &[]);
    c.pass(ms(100));
    assert!(c.log.ios.is_empty() && c.log.closed.len() > 2);
    c.devices.insert(1, (1, 2));
    c.pass(ms(1000));
    assert!(c.log.replies[0].1.is_ok());
    for to in [Who::Mdm, Who::Server(1)] {
        let hellos = c.log.hellos.iter().filter(|(who, _)| *who == to);
        let sessions: Vec<_> = hellos.map(|(_, h)| h.session).collect();
        assert!(!sessions.is_empty() && sessions.is_sorted_by(|a, b| a < b), "{sessions:?}");
    }
}

#[test]
fn another_process_at_a_servers_address_makes_an_idle_client_ask_for_a_newer_map() {
    let mut c = Cluster::ready();
    c.ask(1, BlockKind::Read, 0, 512, &[]);
    assert_eq!((c.log.replies.len(), c.log.pulls.len()), (1, 1));
    c.kill(Who::Server(1));
    c.devices.insert(1, (9, 1));
    c.alive.insert(101);
    c.pass(ms(500));
    let asked: Vec<_> = c.log.pulls[1..].iter().map(|pull| (pull.have.0, pull.wait)).collect();
    assert_eq!(asked, [(5, true)], "one pull, which waits for a newer map");
}

#[test]
fn a_refused_hello_is_tried_again_later() {
    let mut c = Cluster::ready();
    c.ask(1, BlockKind::Read, 0, 512, &[]);
    let link = c.link_of(Who::Mdm).unwrap();
    let code = RefusalCode::Unexpected as i32;
    let refusal = Refusal { code, text: "no".into(), ..Refusal::default() };
    c.send(link, Header::new(Kind::Refusal), &refusal);
    let told = |n: &Note| matches!(n, Note::Refused { link: l, why: "refused" } if *l == link);
    assert!(c.log.notes.iter().any(told));
    c.pass(ms(100));
    assert_eq!(c.log.registrations.len(), 2);
}

#[test]
fn refusals_by_servers_are_reported_to_the_mdm_until_they_end() {
    let mut c = Cluster::ready();
    c.refusing.insert(1);
    c.ask(1, BlockKind::Read, 0, 512, &[]);
    c.pass(ms(1000));
    assert_eq!((c.log.refused_by.as_slice(), c.log.replies.len()), (&[1][..], 0));
    // The other server is not asked for anything yet, and then it accepts the client.
    c.ask(2, BlockKind::Read, MIB, 512, &[]);
    c.pass(ms(1000));
    assert_eq!((c.log.refused_by.as_slice(), c.log.replies.len()), (&[1][..], 1));
    c.refusing.clear();
    c.pass(ms(5000));
    assert_eq!((c.log.refused_by.as_slice(), c.log.replies.len()), (&[][..], 2));
}

#[test]
pub(crate) fn whose_name_a_newer_process_has_ends_its_io_when_the_mdm_says_so() {
    let mut c = Cluster::ready();
    c.every_status = Some(Status::Behind);
    c.ask(1, BlockKind::Read, 0, 512, &[]);
    c.pass(ms(10));
    let code = RefusalCode::Superseded as i32;
    let refusal = Refusal { code, text: "no".into(), ..Refusal::default() };
    let link = c.link_of(Who::Mdm).unwrap();
    c.send(link, Header::new(Kind::Refusal), &refusal);
    c.every_status = None;
    c.pass(ms(2000));
    c.ask(2, BlockKind::Write, 0, 512, &[7; 512]);
    let results: Vec<_> = c.log.replies.iter().map(|(_, r)| r.clone().err()).collect();
    assert_eq!(results, [Some(BlockError::Superseded); 2]);
}

#[test]
fn damaged_and_malformed_answers_end_the_link_and_are_requested_again() {
    let mut c = Cluster::ready();
    c.damage = true;
    c.ask(1, BlockKind::Read, 0, 512, &[]);
    assert_eq!((c.log.replies.len(), c.log.closed.as_slice()), (0, &[Who::Server(1)][..]));
    assert!(c.log.notes.iter().any(|n| matches!(n, Note::BadBody { .. })));
    c.pass(ms(100));
    assert!(c.log.replies[0].1.is_ok());
    let link = c.link_of(Who::Server(1)).unwrap();
    let head = wire::frame(Header::new(Kind::Beacon), b"");
    c.on(seam::Event::Frame { link, head: head.as_slice(), body: seam::Buf::EMPTY });
    assert_eq!(c.log.closed.len(), 2);
    // A frame on a link that was given up is ignored.
    c.on(seam::Event::Frame { link, head: head.as_slice(), body: seam::Buf::EMPTY });
    assert_eq!(c.log.closed.len(), 2);
}

/// The meaning of a status that this build does not know may be anything. So nothing is concluded
/// from it, and the server is dialled again.
#[test]
fn an_unreadable_answer_ends_the_link_and_is_requested_again() {
    let mut c = Cluster::ready();
    c.hold = true;
    c.ask(1, BlockKind::Read, 0, 512, &[]);
    let link = c.link_of(Who::Server(1)).unwrap();
    let request = *c.log.ios[0].1.request();
    let reply = Reply::new(request.op, request.group, Status::Busy, request.map);
    let mut bytes = wire::frame(reply, b"").as_slice().to_vec();
    bytes[20] = 200;
    c.on(seam::Event::Frame { link, head: &bytes, body: seam::Buf::EMPTY });
    assert_eq!((c.log.replies.len(), c.log.closed.as_slice()), (0, &[Who::Server(1)][..]));
    c.hold = false;
    c.pass(ms(100));
    assert!(c.log.replies[0].1.is_ok());
}

#[test]
fn a_new_incarnation_in_the_map_ends_the_link_to_the_old_one() {
    let mut c = Cluster::ready();
    c.hold = true;
    c.ask(1, BlockKind::Write, 0, 512, &[1; 512]);
    let old = c.link_of(Who::Server(1)).unwrap(); // It hangs: the host stopped without a sign.
    c.pass(ms(200));
    c.hold = false;
    c.devices.insert(1, (1, 8));
    c.change(|map| {
        map.devices[0] = device(1, 8);
        map.groups[0].epoch = 14;
    });
    c.pass(ms(50));
    assert_ne!(c.link_of(Who::Server(1)), Some(old));
    assert!(c.log.replies[0].1.is_ok());
}

#[test]
fn a_removed_device_is_not_dialled_any_more() {
    let mut c = Cluster::ready();
    c.ask(1, BlockKind::Read, 0, 512, &[]);
    assert!(c.link_of(Who::Server(1)).is_some());
    c.change(|map| {
        map.devices[0].up = false;
        map.devices[0].intent = Intent::Removed as i32;
        (map.groups[0].epoch, map.groups[0].primary) = (14, 2);
    });
    c.ask(2, BlockKind::Read, 0, 512, &[]);
    c.pass(ms(2000));
    assert_eq!(c.link_of(Who::Server(1)), None);
    let greeted = |c: &Cluster| c.log.hellos.iter().filter(|(to, _)| *to == Who::Server(1)).count();
    let before = greeted(&c);
    c.pass(ms(5000));
    assert_eq!(greeted(&c), before);
    assert!(c.log.replies[1].1.is_ok());
}

#[test]
fn a_deleted_volume_ends_what_is_under_way() {
    let mut c = Cluster::ready();
    c.hold = true;
    c.ask(1, BlockKind::Write, 0, 512, &[1; 512]);
    c.pass(ms(200));
    c.change(|map| {
        map.volumes.clear();
        map.live.clear();
    });
    assert_eq!(c.log.replies[0].1.as_ref().unwrap_err(), &BlockError::NoSuchVolume);
    c.release();
    assert_eq!((c.log.replies.len(), c.sdc.outstanding()), (1, 0));
}

#[test]
fn requests_before_anything_is_up_wait() {
    let mut c = Cluster::new(Limits::SHIPPED);
    c.alive.remove(&1);
    c.ask(1, BlockKind::Read, 0, 512, &[]);
    c.pass(ms(2000));
    assert!(c.log.replies.is_empty() && !c.sdc.is_ready());
    c.alive.insert(1);
    c.next_status = Some(Status::Busy);
    c.pass(ms(1000));
    assert!(c.log.replies[0].1.is_ok());
}

#[test]
fn a_malformed_header_ends_the_link() {
    // Another version, a flag and a byte that the kinds don't use.
    for (at, value) in [(16, 2), (19, 128), (22, 1)] {
        for (who, kind) in [(Who::Server(1), Kind::Reply), (Who::Mdm, Kind::MapPage)] {
            let mut c = Cluster::ready();
            c.hold = true;
            c.ask(1, BlockKind::Read, 0, 512, &[]);
            let link = c.link_of(who).unwrap();
            let mut header = Header::new(kind);
            header.forge(at, &[value]);
            let head = wire::frame::seal(header);
            c.on(seam::Event::Frame { link, head: head.as_slice(), body: seam::Buf::EMPTY });
            assert_eq!((c.log.replies.len(), c.log.closed.as_slice()), (0, &[who][..]));
            let noted = |n: &Note| {
                matches!(n, Note::Malformed { kind: k, at: a, .. }
                    if (*k, usize::from(*a)) == (kind as u8, at))
            };
            assert!(c.log.notes.iter().any(noted), "{kind:?} {at}: {:?}", c.log.notes);
        }
    }
}
