//! The MDMs that an MDM dials, and what it keeps about them: for how long, and how many.

use super::members::{AWAY, THIRD, disk_of};
use super::*;
use consensus::{Base, HardState, Image};
use mdm::entry::to_bytes;

/// The kind of the message that asks whether the sender would be elected.
const PRE_VOTE: i32 = 17;
const CALLER: &str = "10.0.1.1:7000";

impl Bench {
    /// Creates an MDM with an empty log that waits for a call.
    fn empty() -> Bench {
        let join = Config { join: true, cluster: None, ..config(Limits::TEST_MIN) };
        let mut b = Bench::on_disk(BTreeMap::new(), join);
        b.settle();
        b
    }

    /// Lets the MDM at [`CALLER`] call this one by an id.
    fn call_as(&mut self, to: u32) {
        let link = self.connect();
        let plain = hello(&wire::DIALECT, ClusterId(7), Role::Mdm, "a");
        let address = CALLER.into();
        let hello = Hello { id: 1, to, address, newcomer: true, secret: 9, ..plain };
        self.send(link, Header::new(Kind::Hello), &hello);
    }

    /// Removes the dials that wait, and returns the last one to an address.
    fn dial_to(&mut self, address: &str) -> Option<DialId> {
        let dials = std::mem::take(&mut self.dials).into_iter();
        dials.filter(|(_, to)| to == address).map(|(dial, _)| dial).next_back()
    }
}

/// The removed MDM hears nothing of its removal, so it continues as a member.
#[test]
pub(crate) fn a_removed_mdm_that_campaigns_is_refused_and_ends() {
    let (mut b, members) = Bench::of_three();
    let (membership, last) = {
        let consensus = b.mdm.consensus().unwrap();
        (consensus.membership().clone(), consensus.last())
    };
    let base = Base { index: last, term: b.term(), membership, data: to_bytes(b.mdm.state(), 0) };
    let hard = HardState { term: b.term(), vote: 0, commit: last };
    let image = Image { me: 3, hard, base, entries: Vec::new() };
    let admin = b.say_hello(Role::Admin);
    b.order(admin, Ask::RemoveMdm(RemoveMdm { name: "c".into() }));
    b.until_voters_are(&members[..1], &[1, 2]);
    // For a while after the change it may still be needed.
    while b.mdm.consensus().unwrap().counts(3) {
        b.pass(100, &[]);
        b.all_have_everything(&members[..1]);
    }
    b.pass(100, &[]);
    let (_, link, secret) = members[1];
    assert!(!b.closed.contains(&link));
    let term = b.term();
    b.say_from(3, link, secret, PRE_VOTE, term + 1, last);
    assert_eq!(b.refusal(link).0, RefusalCode::Unexpected);
    assert!(b.notes_say("from elsewhere") && b.term() == term && b.mdm.is_ready());
    // It dials again, and is told why it is refused.
    let its = Config {
        name: "c".into(),
        address: THIRD.parse().unwrap(),
        cluster: None,
        ..config(Limits::TEST_MIN)
    };
    let mut removed = Bench::on_disk(disk_of(&image), its);
    removed.settle();
    removed.pass(100, &[]);
    removed.dials.retain(|(_, to)| to != AWAY);
    let (asking, question) = removed.dial_up();
    let asked = b.connect();
    b.send(asked, Header::new(Kind::Hello), &question);
    let (code, text) = b.refusal(asked);
    assert_eq!(code, RefusalCode::WrongMember);
    removed.send(asking, Header::new(Kind::Refusal), &node::refusals::refusal(code, text));
    let why = removed.mdm.failed().expect("it ends");
    assert!(why.contains("was removed from the cluster"), "{why}");
}

/// An MDM with an empty log drops its id when it is called by another one. Until the new one is
/// durable, it can't greet the caller, which it may be dialling.
#[test]
pub(crate) fn an_mdm_that_is_called_by_another_id_while_it_dials_dials_again() {
    let mut b = Bench::empty();
    b.call_as(3);
    b.pass(100, &[]);
    let dial = b.dial_to(CALLER).expect("it dials the caller");
    b.held = true;
    b.call_as(4);
    assert!(b.mdm.consensus().is_none());
    let link = LinkId(999);
    let up = Event::LinkUp { link, port: Port::Ours, dial: Some(dial), at: None, from: None };
    b.mdm.on(b.now, up, &mut b.out);
    b.settle();
    assert_eq!(b.closed, [link]);
    b.held = false;
    b.settle();
    assert_eq!(b.mdm.consensus().unwrap().id(), 4);
    let most = Limits::TEST_MIN.redial_max * 3 / 2;
    b.pass(most.as_millis() as u64, &[]);
    assert!(b.dial_to(CALLER).is_some());
}

/// A member sends its welcome again, on the same link, when the list of members has changed.
#[test]
pub(crate) fn an_empty_mdm_forgets_those_that_no_call_and_no_welcome_names() {
    let mut b = Bench::empty();
    b.call_as(3);
    b.pass(100, &[]);
    let dial = b.dial_to(CALLER).expect("it dials the caller");
    b.dials.push((dial, CALLER.into()));
    let (way, _) = b.dial_up();
    for round in 0..1000 {
        b.call_as(3);
        let named = |n: u32| MdmInfo {
            id: 10 + round * 7 + n,
            address: format!("10.1.{}.{}:{}", round / 250, round % 250, 7000 + n),
            ..MdmInfo::default()
        };
        let plain = node::link::welcome(ClusterId(7), Role::Mdm, 1);
        let welcome = Welcome { mdms: (0..7).map(named).collect(), ..plain };
        b.send(way, Header::new(Kind::Welcome), &welcome);
        b.pass(50, &[]);
        while !b.dials.is_empty() {
            b.dial_failed(DialError::Unreachable);
        }
        let (is, may) = (b.mdm.list_lengths(), b.mdm.list_bounds());
        assert_eq!(is.contacts, 8, "the caller, and those that it has named last");
        assert!(is.contacts <= may.contacts && is.heard_of <= may.heard_of);
        assert!(is.member_links <= may.member_links, "{}", is.member_links);
    }
    assert!(!b.closed.contains(&way));
}
