//! Clients whose incarnations have ended, and their requests.

use super::*;
use wire::Status;
use wire::message::{Grant, Replicated, Reply, Sealed, Sender, SyncState};

impl Bench {
    /// Device 4 begins to listen, and answers everything with `Ok`.
    fn peer_comes(&mut self) {
        while self.dials.is_empty() {
            self.pass(Duration::from_millis(100));
        }
        let (dial, to) = self.dials.remove(0);
        assert_eq!(to, "10.0.1.4:7000");
        let link = self.link(Some(dial));
        self.asked.clear();
        let role = Role::Sds as i32;
        let welcome =
            Welcome { cluster: 7, role, id: 4, incarnation: 2, version: 1, ..Welcome::default() };
        self.frame(link, Kind::Welcome, &welcome);
        while let Some(asked) = self.asked.pop() {
            let (status, map) = (Status::Ok, self.sds.map().version);
            let sender = Sender { incarnation: Incarnation(0), map };
            let answer: Header = match Frame::try_from(&asked).unwrap() {
                Frame::SyncStart(m) => {
                    let (question, group, epoch, base) = (m.question, m.group, m.epoch, Epoch(0));
                    let (more, all, empty) = (false, false, false);
                    SyncState { status, question, group, epoch, base, sender, more, all, empty }
                        .into()
                }
                Frame::Seal(m) => {
                    let (group, epoch, lsn) = (m.group, m.epoch, m.lsn);
                    Sealed { status, group, epoch, lsn, sender }.into()
                }
                Frame::Replicate(m) => {
                    let (op, group, epoch, lsn) = (m.op, m.group, m.epoch, m.lsn);
                    Replicated { status, op, group, epoch, lsn, sender }.into()
                }
                Frame::Beacon(m) => {
                    Grant { sender: Sender { map: m.sender.map, ..sender }, sent: m.sent }.into()
                }
                _ => continue,
            };
            let head = wire::frame(answer, &[]);
            let event = Event::Frame { link, head: head.as_slice(), body: Buf::EMPTY };
            self.sds.on(self.now, event, &mut self.out);
            self.settle();
            self.pass(Duration::from_millis(5));
        }
    }

    /// Lets time pass until the server dials, and returns the link that this dial makes.
    fn dialled(&mut self) -> LinkId {
        while self.dials.is_empty() {
            self.pass(Duration::from_millis(100));
        }
        let (dial, _) = self.dials.remove(0);
        self.link(Some(dial))
    }
}

#[test]
fn waiting_operations_of_a_client_that_is_cut_off_are_dropped() {
    let mut b = Bench::new();
    let mdm = b.join_mdm(1);
    b.map(mdm, 1, &[3, 4]);
    // Device 4 is not there, so the group can't settle, and the writes have to wait.
    let (gone, stays) = (b.client(5), b.client(6));
    b.io(gone, Kind::Write, 1, 0, &[0xaa; 512]);
    b.io(stays, Kind::Write, 2, 4096, &[0xbb; 512]);
    b.pass(Duration::from_secs(3));
    assert_eq!((b.replies, b.begun.len()), (0, 0));
    let down = Event::LinkDown { link: gone, why: DownReason::Broken };
    b.sds.on(b.now, down, &mut b.out);
    b.settle();
    b.peer_comes();
    assert_eq!(b.begun, [6], "of which clients a write was begun");
}

/// The server's process hangs, and its host still accepts connections.
#[test]
fn a_server_that_answers_no_hello_is_dialled_again() {
    let mut b = Bench::new();
    let mdm = b.join_mdm(1);
    b.map(mdm, 1, &[3, 4]);
    let link = b.dialled();
    let client = b.client(6);
    b.io(client, Kind::Write, 1, 0, &[0xbb; 512]);
    b.pass(Limits::TEST_MIN.hello_within * 2 - Duration::from_millis(1));
    assert!(!b.closed.contains(&link) && b.dials.is_empty());
    b.pass(Duration::from_millis(1));
    assert!(b.closed.contains(&link));
    b.peer_comes();
    assert_eq!(b.begun, [6], "of which clients a write was begun");
}

/// Only the incarnation in the map counts as the replica: an older one must not grant in its name.
#[test]
fn an_older_incarnation_of_a_device_is_refused() {
    for (life, is_it) in [(1, false), (2, true)] {
        let mut b = Bench::new();
        let mdm = b.join_mdm(1);
        b.map(mdm, 1, &[3, 4]);
        let link = b.dialled();
        let role = Role::Sds as i32;
        let welcome = Welcome {
            cluster: 7,
            role,
            id: 4,
            incarnation: life,
            version: 1,
            ..Welcome::default()
        };
        b.frame(link, Kind::Welcome, &welcome);
        assert_eq!(b.closed.contains(&link), !is_it);
        assert_eq!(b.sent.contains(&(link, Kind::SyncStart)), is_it);
    }
}

/// Device 4 was the primary while a newer incarnation of client 5 wrote. Then this device becomes
/// the primary, and its map has never had that incarnation.
#[test]
fn an_older_client_process_is_refused_by_a_server_with_writes_of_the_newer_one() {
    let mut b = Bench::new();
    let mdm = b.join_mdm(1);
    b.map_led(mdm, 1, 4, &[3, 4]);
    let leader = b.link(None);
    let hello = hello(&wire::DIALECT, ClusterId(7), Role::Sds, "b");
    let hello = Hello { id: 4, incarnation: 2, session: 1, map: 21, to: 3, ..hello };
    b.frame(leader, Kind::Hello, &hello);
    let old = b.client(5); // its incarnation is 8
    b.stream(leader, Kind::SyncStart, 0, &[]);
    b.stream(leader, Kind::Seal, 0, &[]);
    b.stream(leader, Kind::Replicate, 9, &[0xbb; 512]);
    b.device_ends();
    b.map_led(mdm, 2, 3, &[3]);
    b.pass(Duration::from_secs(3));
    let before = b.replies;
    b.epoch = 2;
    b.asked.clear();
    b.io(old, Kind::Write, 7, 0, &[0xaa; 512]);
    let status = b.asked.iter().find_map(|h| Reply::try_from(h).ok()).map(|reply| reply.status);
    assert_eq!((b.replies, status), (before + 1, Some(Status::Superseded)));
    let again = b.client(5);
    assert!(b.sent.contains(&(again, Kind::Refusal)) && b.closed.contains(&again));
}

/// The client has a newer incarnation, or was removed.
#[test]
fn a_client_is_refused_when_the_map_ends_its_incarnation() {
    for (sdc, all_sdcs) in [((5, 9), false), ((6, 8), true)] {
        let mut b = Bench::new();
        let mdm = b.join_mdm(1);
        b.map(mdm, 1, &[3]);
        b.pass(Duration::from_secs(3));
        let (over, stays) = (b.client(5), b.client(6));
        b.io(over, Kind::Write, 1, 0, &[0xaa; 512]);
        b.io(stays, Kind::Write, 2, 4096, &[0xbb; 512]);
        b.device_ends();
        assert_eq!(b.replies, 2);
        let page = MapPage {
            version: 40,
            last: true,
            cluster: 7,
            live: vec![1],
            next_volume: 2,
            sdcs: vec![ClientInfo { id: sdc.0, incarnation: sdc.1 }],
            all_sdcs,
            next_life: 20,
            ..MapPage::default()
        };
        b.frame(mdm, Kind::MapPage, &page);
        assert_eq!(b.closed, [over]);
        // A retry on a new link is refused, too.
        let again = b.client(5);
        b.pass(Limits::TEST_MIN.hello_within * 2);
        assert!(
            b.sent.contains(&(again, Kind::Refusal)) && !b.sent.contains(&(again, Kind::Welcome))
        );
        b.io(stays, Kind::Write, 3, 8192, &[0xcc; 512]);
        b.device_ends();
        assert_eq!(b.replies, 3);
    }
}
