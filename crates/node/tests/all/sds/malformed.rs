//! Frames whose headers are not what their kinds say: their links end, and nothing of them is
//! believed.

use super::*;

impl Bench {
    /// Sends a frame with one byte of its header changed.
    fn forged(&mut self, link: LinkId, mut header: Header, at: usize, value: u8) {
        header.forge(at, &[value]);
        let head = wire::frame::seal(header);
        let event = Event::Frame { link, head: head.as_slice(), body: Buf::EMPTY };
        self.sds.on(self.now, event, &mut self.out);
        self.settle();
    }

    /// Connects another data server.
    fn leader(&mut self) -> LinkId {
        let link = self.link(None);
        let hello = hello(&wire::DIALECT, ClusterId(7), Role::Sds, "s");
        self.frame(link, Kind::Hello, &Hello { id: 4, incarnation: 2, session: 1, ..hello });
        link
    }
}

/// Connects a peer that the shard accepts.
type Connect = fn(&mut Bench, LinkId) -> LinkId;

#[test]
pub(crate) fn a_malformed_header_ends_the_link_of_any_peer() {
    let peers: [(Connect, Kind); 3] = [
        (|b, _| b.client(5), Kind::Read),
        (|b, _| b.leader(), Kind::Beacon),
        (|_, mdm| mdm, Kind::MapPage),
    ];
    for (connect, kind) in peers {
        // Another version; a flag and a byte that none of these kinds uses; and a body.
        for (at, value) in [(16, 2), (19, 128), (22, 1), (12, 1)] {
            if kind == Kind::MapPage && at == 12 {
                continue; // its frames have bodies
            }
            let mut b = Bench::new();
            let mdm = b.join_mdm(1);
            b.map_of(mdm, 18, &[(3, 9), (4, 2)], &[(5, 8)]);
            let link = connect(&mut b, mdm);
            assert!(!b.closed.contains(&link), "{kind:?}");
            b.asked.clear();
            b.forged(link, Header::new(kind), at, value);
            assert_eq!(b.malformed, [(kind as u8, at as u8)], "{kind:?}");
            assert!(b.closed.contains(&link) && b.replies == 0, "{kind:?} {at}");
            let answers = b.asked.iter().filter(|h| h.kind() == Some(Kind::Grant));
            assert_eq!(answers.count(), 0, "{kind:?} {at}");
        }
    }
}

/// The peer that was dialled may promise something only after it has said who it is.
#[test]
fn a_frame_before_the_welcome_and_a_second_welcome_end_the_link() {
    let mut b = Bench::new();
    let mdm = b.join_mdm(1);
    let welcome = Welcome {
        cluster: 7,
        role: Role::Mdm as i32,
        incarnation: 1,
        version: 1,
        ..Welcome::default()
    };
    b.map(mdm, 1, &[3, 4]);
    for (kind, at_once) in [(Kind::Grant, true), (Kind::MapPage, true), (Kind::Grant, false)] {
        let link = b.dials_secondary();
        if !at_once {
            let role = Role::Sds as i32;
            b.frame(
                link,
                Kind::Welcome,
                &Welcome { role, id: 4, incarnation: 2, ..welcome.clone() },
            );
        }
        let head = wire::frame::seal(Header::new(kind));
        let event = Event::Frame { link, head: head.as_slice(), body: Buf::EMPTY };
        b.sds.on(b.now, event, &mut b.out);
        b.settle();
        assert_eq!(b.closed.contains(&link), at_once, "{kind:?} {at_once}");
    }
    assert!(!b.closed.contains(&mdm));
    b.frame(mdm, Kind::Welcome, &welcome);
    assert!(b.closed.contains(&mdm));
}
