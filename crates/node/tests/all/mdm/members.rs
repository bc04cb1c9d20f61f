//! Which peers may speak as another MDM: those that the state names, at the addresses in it.

use super::*;
use consensus::{Base, Entry, HardState, Image, Membership};
use mdm::command::{self, Command};
use mdm::entry::{Commands, to_bytes};
use mdm::log::{Io, Log, Progress};
use mdm::object_orders;
use wire::message::Raft;

pub(crate) const AWAY: &str = "10.0.0.2:7000";
pub(crate) const THIRD: &str = "10.0.0.3:7000";
/// The kinds of two messages of the consensus: a heartbeat, and an answer to entries.
const HEARTBEAT: i32 = 8;
const APPENDED: i32 = 4;

impl Bench {
    /// Creates an MDM that leads alone. `b` at [`AWAY`] was added to the list and is silent.
    fn with_a_member() -> Bench {
        let mut b = Bench::new();
        let add = AddMdm { name: "b".into(), address: AWAY.into(), tie_breaker: false };
        assert_eq!(b.ask(Ask::AddMdm(add)).error, 0);
        b.pass(100, &[]);
        b
    }

    pub(super) fn hello_as(&mut self, id: u32, address: &str) -> LinkId {
        self.hello_with(id, address, 9)
    }

    fn hello_with(&mut self, id: u32, address: &str, secret: u64) -> LinkId {
        let link = self.connect();
        let plain = hello(&wire::DIALECT, ClusterId(7), Role::Mdm, "b");
        let hello = Hello { id, to: 1, address: address.into(), secret, ..plain };
        self.send(link, Header::new(Kind::Hello), &hello);
        link
    }

    /// Returns the secrets in front of the messages that this MDM has sent on a link.
    fn secrets_sent(&mut self, link: LinkId) -> Vec<u64> {
        let all = std::mem::take(self.inbox.entry(link).or_default());
        let raft = all.iter().filter(|(h, _)| h.kind() == Some(Kind::Raft));
        raft.map(|(h, _)| Raft::try_from(h).unwrap().secret).collect()
    }

    /// Sends a message of member 2 with this term.
    fn say(&mut self, link: LinkId, secret: u64, term: u64) {
        self.say_of(link, secret, HEARTBEAT, term, 0);
    }

    /// Sends a message of member 2 of this kind, about this entry.
    fn say_of(&mut self, link: LinkId, secret: u64, kind: i32, term: u64, index: u64) {
        self.say_from(2, link, secret, kind, term, index);
    }

    pub(super) fn say_from(
        &mut self,
        from: u64,
        link: LinkId,
        secret: u64,
        kind: i32,
        term: u64,
        index: u64,
    ) {
        let message = consensus::Message { kind, from, to: 1, term, index, ..Default::default() };
        let bytes = message.encode_to_vec();
        self.raw(link, first_part(secret, bytes.len() as u32), &bytes);
    }

    pub(super) fn raw(&mut self, link: LinkId, message: impl Into<Header>, bytes: &[u8]) {
        let body = self.pool.copy(bytes);
        let head = wire::frame(message, bytes);
        let frame = Event::Frame { link, head: head.as_slice(), body };
        self.mdm.on(self.now, frame, &mut self.out);
        self.settle();
    }

    /// Returns the secret that the member at [`AWAY`] has to send, from the hello that reaches it.
    fn secret(&mut self) -> u64 {
        self.dials.retain(|(_, to)| to == AWAY);
        let (_, hello) = self.dial_up();
        assert_eq!((hello.id, hello.to), (1, 2));
        hello.secret
    }

    /// Connects a member. Returns its link, and the secret that it sends.
    pub(super) fn connect_member(&mut self, id: u32, address: &str) -> (LinkId, u64) {
        let at = self.dials.iter().rposition(|(_, to)| to == address).expect("it was dialled");
        let dial = self.dials.remove(at);
        self.dials.push(dial); // `dial_up` takes the last one
        let (way, greeting) = self.dial_up();
        let plain = node::link::welcome(ClusterId(7), Role::Mdm, 1);
        self.send(way, Header::new(Kind::Welcome), &plain);
        (self.hello_as(id, address), greeting.secret)
    }

    /// Connects member 2, which has all entries. Returns its link, and the index of the last entry.
    fn with_all_entries(&mut self) -> (LinkId, u64) {
        let (link, secret) = self.connect_member(2, AWAY);
        self.pass(500, &[]);
        let last = self.mdm.consensus().unwrap().last();
        self.say_of(link, secret, APPENDED, self.term(), last);
        let peers = self.mdm.consensus().unwrap().peers();
        assert!(peers.iter().any(|p| p.id == 2 && p.matched == last), "{peers:?}");
        (link, last)
    }

    /// Lets members get every entry, until these are the voters.
    pub(super) fn until_voters_are(&mut self, members: &[(u64, LinkId, u64)], voters: &[u64]) {
        for _ in 0..50 {
            let now = self.mdm.consensus().unwrap().membership();
            if now.voters == voters && now.outgoing.is_empty() && self.mdm.is_settled() {
                return;
            }
            self.pass(100, &[]);
            self.all_have_everything(members);
        }
        panic!("{:?}", self.mdm.consensus().unwrap().membership());
    }

    pub(super) fn all_have_everything(&mut self, members: &[(u64, LinkId, u64)]) {
        for (id, link, secret) in members {
            let last = self.mdm.consensus().unwrap().last();
            self.say_from(*id, *link, *secret, APPENDED, self.term(), last);
        }
    }

    /// Creates an MDM that leads, and two others that vote, too.
    pub(super) fn of_three() -> (Bench, Vec<(u64, LinkId, u64)>) {
        let mut b = Bench::with_a_member();
        let add = AddMdm { name: "c".into(), address: THIRD.into(), tie_breaker: false };
        assert_eq!(b.ask(Ask::AddMdm(add)).error, 0);
        b.pass(100, &[]);
        let two = b.connect_member(2, AWAY);
        let three = b.connect_member(3, THIRD);
        let members = Vec::from([(2, two.0, two.1), (3, three.0, three.1)]);
        b.until_voters_are(&members, &[1, 2, 3]);
        (b, members)
    }

    pub(super) fn order_domain(&mut self, link: LinkId, name: &str) {
        let kind = ObjectKind::Domain as i32;
        self.order(
            link,
            Ask::CreateObject(CreateObject { kind, name: name.into(), ..Default::default() }),
        );
    }

    /// Ends the write under way with an error.
    fn fail_disk(&mut self) {
        self.held = false;
        self.disk_step(Some(DiskError::NoSpace));
        self.settle();
    }

    /// Returns the only answer on a link that stays.
    fn answer(&mut self, link: LinkId) -> (AdminError, String) {
        let reply: AdminReply = self.take(link, Kind::AdminReply).pop().expect("an answer");
        assert!(!self.closed.contains(&link));
        (reply.error(), reply.text)
    }

    pub(super) fn term(&self) -> u64 {
        self.mdm.consensus().unwrap().role().term
    }

    pub(super) fn notes_say(&self, words: &str) -> bool {
        self.notes.iter().any(|n| matches!(n, Note::Refused { why, .. } if why.contains(words)))
    }
}

/// The proposal is not committed, so there is no other MDM yet that could lead.
#[test]
fn an_mdm_alone_whose_log_fails_while_another_is_added_says_why() {
    let mut b = Bench::new();
    let admin = b.say_hello(Role::Admin);
    b.held = true;
    let add = AddMdm { name: "b".into(), address: AWAY.into(), tie_breaker: false };
    b.order(admin, Ask::AddMdm(add));
    b.held = false;
    b.disk_step(Some(DiskError::NoSpace));
    b.settle();
    let reply: AdminReply = b.take(admin, Kind::AdminReply).pop().expect("an answer");
    assert_eq!(reply.error(), AdminError::Log);
    assert!(reply.text.contains("no space left") && !reply.text.contains("lead"), "{}", reply.text);
    assert!(!b.closed.contains(&admin));
    assert_eq!(b.mdm.state().members.list.len(), 1, "what is not committed is taken back");
    assert_eq!(b.create("w").error(), AdminError::Log);
}

/// Peers look for another leader then. The advice to take this MDM into a cluster would be wrong.
#[test]
fn a_leader_whose_log_fails_says_that_it_does_not_lead() {
    let (mut b, _) = Bench::of_three();
    let server = b.say_hello(Role::Sdc);
    let [admin, asks, waits, proposes] = [0; 4].map(|_| b.say_hello(Role::Admin));
    // Its answer needs a majority that confirms the leader.
    b.order(asks, Ask::Status(StatusRequest {}));
    b.held = true;
    b.order_domain(proposes, "d");
    b.order_domain(waits, "e");
    b.fail_disk();
    let reply: AdminReply = b.take(proposes, Kind::AdminReply).pop().expect("an answer");
    assert_eq!(reply.error(), AdminError::Log);
    let text = reply.text;
    assert!(text.contains("no space left") && text.contains("may have done this"), "{text}");
    for link in [asks, waits] {
        let told: Vec<AdminReply> = b.take(link, Kind::AdminReply);
        assert!(told.is_empty(), "it has not changed anything: the new leader answers: {told:?}");
    }
    for link in [server, admin, asks, waits, proposes] {
        let (code, text) = b.refusal(link);
        assert_eq!(code, RefusalCode::NotLeader);
        assert!(text.starts_with("this MDM does not lead"), "{text}");
    }
}

/// Of two MDMs only one votes, so nobody else leads when its log fails.
#[test]
fn the_only_voter_whose_log_fails_is_alone_whatever_members_there_are() {
    let mut b = Bench::with_a_member();
    b.with_all_entries();
    let server = b.say_hello(Role::Sdc);
    let [proposes, waits, asks] = [0; 3].map(|_| b.say_hello(Role::Admin));
    b.held = true;
    b.order_domain(proposes, "d");
    b.order_domain(waits, "e");
    b.order(asks, Ask::Status(StatusRequest {}));
    b.fail_disk();
    for (link, unsure) in [(proposes, true), (waits, false), (asks, false)] {
        let (error, text) = b.answer(link);
        assert!(error == AdminError::Log && text.contains("no space left"), "{text}");
        assert!(text.contains("may have done this") == unsure && !text.contains("lead"), "{text}");
    }
    assert!(!b.closed.contains(&server), "it continues with the map that it has");
    assert_eq!(b.create("w").error(), AdminError::Log);
    let late = b.say_hello(Role::Sdc);
    assert_eq!(b.refusal(late).0, RefusalCode::Unknown);
}

/// The list has one MDM as soon as the removal of the second one is committed. That one still
/// votes, and may lead.
#[test]
fn a_leader_whose_log_fails_is_not_alone_while_a_removed_one_votes() {
    let (mut b, members) = Bench::of_three();
    let remove = |name: &str| Ask::RemoveMdm(RemoveMdm { name: name.into() });
    let first = b.say_hello(Role::Admin);
    b.order(first, remove("c"));
    b.until_voters_are(&members[..1], &[1, 2]);
    let admin = b.say_hello(Role::Admin);
    b.order(admin, remove("b"));
    b.all_have_everything(&members[..1]);
    assert_eq!(b.mdm.state().members.list.len(), 1);
    assert_eq!(b.mdm.consensus().unwrap().membership().voters, [1, 2]);
    let proposes = b.say_hello(Role::Admin);
    b.held = true;
    b.order_domain(proposes, "d");
    b.fail_disk();
    let reply: AdminReply = b.take(admin, Kind::AdminReply).pop().expect("an answer");
    assert_eq!(reply.error(), AdminError::Unconfirmed, "{}", reply.text);
    assert!(reply.text.starts_with("it is done, but"), "{}", reply.text);
    for link in [admin, proposes] {
        assert_eq!(b.refusal(link).0, RefusalCode::NotLeader);
    }
}

#[test]
fn an_order_that_waits_for_its_fence_is_done_when_the_log_fails() {
    let (mut b, _, _) = Bench::with_volume(DeviceKind::Ram);
    let admin = b.say_hello(Role::Admin);
    let all = UnmapRequest { volume: "v".into(), all: true, ..UnmapRequest::default() };
    b.order(admin, Ask::Unmap(all));
    assert!(b.take::<AdminReply>(admin, Kind::AdminReply).is_empty(), "no device has confirmed it");
    let proposes = b.say_hello(Role::Admin);
    b.held = true;
    b.order_domain(proposes, "d");
    b.fail_disk();
    let (error, text) = b.answer(admin);
    assert_eq!(error, AdminError::Unconfirmed, "{text}");
    assert!(text.starts_with("it is done, but") && text.contains("no space left"), "{text}");
    assert_eq!(b.answer(proposes).0, AdminError::Log);
}

/// A message of the newest build is not understood. Nothing after it may be applied or said.
#[test]
fn an_mdm_that_does_not_understand_an_entry_stops_there() {
    let b = Bench::new();
    let strange = Entry { kind: 0, term: 2, index: 9, data: Vec::from([9]), context: Vec::new() };
    let domain =
        CreateObject { kind: ObjectKind::Domain as i32, name: "d".into(), ..Default::default() };
    let mut commands = Commands::default();
    assert!(
        commands.push(&object_orders::create_object_command(b.mdm.state(), &domain).unwrap(), 1)
    );
    let next = Entry { index: 10, data: commands.into_data(), ..strange.clone() };
    let membership = Membership { voters: vec![1, 2], ..Membership::default() };
    let image = Image {
        me: 1,
        hard: HardState { term: 2, vote: 2, commit: 8 },
        base: Base { index: 8, term: 2, membership, data: to_bytes(b.mdm.state(), 0) },
        entries: Vec::new(),
    };
    let mut state = b.mdm.state().clone();
    let added = MdmInfo { id: 2, name: "b".into(), address: AWAY.into(), tie_breaker: false };
    state.apply(state.index + 1, &Command::AddMdm(added));
    let image = Image { base: Base { data: to_bytes(&state, 0), ..image.base }, ..image };
    let mut b = Bench::on_disk(disk_of(&image), config(Limits::TEST_MIN));
    b.settle();
    b.pass(100, &[]);
    let (link, secret) = b.connect_member(2, AWAY);
    let message = consensus::Message {
        kind: 3, // entries
        from: 2,
        to: 1,
        term: 2,
        log_term: 2,
        index: 8,
        commit: 10,
        entries: vec![strange, next],
        ..Default::default()
    };
    let bytes = message.encode_to_vec();
    b.raw(link, first_part(secret, bytes.len() as u32), &bytes);
    b.pass(100, &[]);
    let why = b.mdm.failed().expect("it must not go on").to_owned();
    assert!(why.contains("update this MDM"), "{why}");
    let decided = b.notes.iter().filter(|n| matches!(n, Note::Decided { index: 9.., .. }));
    assert_eq!(decided.count(), 0, "nothing after it is applied");
    assert_eq!(b.mdm.state().objects.domains.len(), 1);
}

/// Returns the first part of a message of this length.
fn first_part(secret: u64, len: u32) -> Raft {
    Raft { secret, number: 0, at: 0, len }
}

#[test]
fn a_message_counts_from_where_the_member_listens() {
    let mut b = Bench::with_a_member();
    let (secret, term) = (b.secret(), b.term());
    // A stranger knows everything but the secret.
    let forger = b.hello_as(2, AWAY);
    assert_eq!(b.take::<Welcome>(forger, Kind::Welcome).len(), 1);
    b.say(forger, secret ^ 1, term + 1);
    assert_eq!(b.refusal(forger).0, RefusalCode::Unexpected);
    assert!(b.notes_say("from elsewhere") && b.term() == term && b.mdm.is_ready());
    // Nothing that it sends is kept, either.
    let forger = b.hello_as(2, AWAY);
    b.raw(forger, first_part(0, 1 << 30), &[0; 4096]);
    assert_eq!(b.refusal(forger).0, RefusalCode::Unexpected);
    // Messages of the member itself are accepted, and a stranger's link does not replace its own.
    let member = b.hello_as(2, AWAY);
    b.say(member, secret, term);
    let forger = b.hello_as(2, AWAY);
    b.say(member, secret, term);
    assert!(!b.closed.contains(&member) && !b.closed.contains(&forger));
    b.say(member, secret, term + 1);
    assert!(b.term() > term, "that is how one gives way to another leader");
    assert!(!b.closed.contains(&member));
}

#[test]
fn a_member_that_began_anew_is_understood_while_its_earlier_link_seems_up() {
    let mut b = Bench::with_a_member();
    b.dials.retain(|(_, to)| to == AWAY);
    let (way, greeting) = b.dial_up();
    let secret = greeting.secret;
    let plain = node::link::welcome(ClusterId(7), Role::Mdm, 1);
    b.send(way, Header::new(Kind::Welcome), &plain);
    let earlier = b.hello_as(2, AWAY);
    let term = b.term();
    b.say(earlier, secret, term);
    // Its power fails: nothing tells this MDM that the link is gone. The next process draws another
    // secret.
    let later = b.hello_with(2, AWAY, 10);
    b.pass(200, &[]);
    assert!(b.secrets_sent(way).iter().all(|s| *s == 9), "a proven link isn't replaced");
    let why = node::refusals::refusal(RefusalCode::Unexpected, "from elsewhere");
    b.send(way, Header::new(Kind::Refusal), &why);
    b.dials.clear();
    b.pass(2000, &[]);
    let (way, _) = b.dial_up();
    b.send(way, Header::new(Kind::Welcome), &plain);
    b.pass(200, &[]);
    let sent = b.secrets_sent(way);
    assert!(!sent.is_empty() && sent.iter().all(|s| *s == 10), "{sent:?}");
    assert!(!b.closed.contains(&later));
}

/// Any peer may say hello as a member, as often as it likes: the member's own link stays until a
/// message proves which link is the member's.
#[test]
fn hellos_in_a_members_name_do_not_keep_it_out() {
    let mut b = Bench::with_a_member();
    let (secret, term) = (b.secret(), b.term());
    let member = b.hello_as(2, AWAY);
    let forged: Vec<LinkId> = (0..10).map(|i| b.hello_with(2, AWAY, 100 + i)).collect();
    b.say(member, secret, term);
    assert!(!b.closed.contains(&member), "its link was closed before it could say anything");
    assert!(forged.iter().all(|link| b.closed.contains(link)), "one is proven: the others go");
    // Links without proof are bounded.
    let mut b = Bench::with_a_member();
    let all: Vec<LinkId> = (0..100).map(|i| b.hello_with(2, AWAY, 100 + i)).collect();
    assert_eq!(all.iter().filter(|link| !b.closed.contains(link)).count(), 16);
}

/// A member's messages have a bound, and a longer message costs no memory.
#[test]
fn a_message_is_no_longer_than_the_longest_state_and_one_mib() {
    let longest = u32::try_from(mdm::log::IMAGE_MAX + (1 << 20)).unwrap();
    assert!(longest < 1 << 30);
    let mut b = Bench::with_a_member();
    let (secret, term) = (b.secret(), b.term());
    let member = b.hello_as(2, AWAY);
    b.say(member, secret, term);
    let part = |b: &mut Bench, len: u32| {
        b.raw(member, first_part(secret, len), &[0; 4096]);
        b.mdm.list_lengths().all_parts
    };
    assert_eq!(part(&mut b, longest), 4096, "the first part of the longest message");
    let member = b.hello_as(2, AWAY);
    b.say(member, secret, term);
    assert_eq!(b.mdm.list_lengths().all_parts, 0, "another link has taken the place of that one");
    b.raw(member, first_part(secret, longest + 1), &[0; 4096]);
    assert_eq!(b.refusal(member).0, RefusalCode::Unexpected);
    assert_eq!(b.mdm.list_lengths().all_parts, 0);
}

/// A secret that the member refuses is wrong. Sooner or later the right one is tried.
#[test]
fn the_secret_of_a_member_is_found_among_those_that_were_made_up() {
    let mut b = Bench::with_a_member();
    let plain = node::link::welcome(ClusterId(7), Role::Mdm, 1);
    for secret in (100..105).chain([9]).chain(105..110) {
        b.hello_with(2, AWAY, secret);
    }
    for _ in 0..200 {
        b.dials.retain(|(_, to)| to == AWAY);
        let (way, _) = b.dial_up();
        b.send(way, Header::new(Kind::Welcome), &plain);
        b.pass(200, &[]);
        if b.secrets_sent(way).contains(&9) {
            return;
        }
        let why = node::refusals::refusal(RefusalCode::Unexpected, "from elsewhere");
        b.send(way, Header::new(Kind::Refusal), &why);
        b.dials.clear();
        b.pass(2000, &[]);
    }
    panic!("the true secret was never said");
}

/// A member that has followed a newer leader may have dropped entries from an older one. The older
/// leader, which does not know of the newer one yet, must not judge that.
#[test]
fn only_a_leader_that_is_as_new_says_that_a_member_was_set_back() {
    let mut b = Bench::with_a_member();
    let (_, last) = b.with_all_entries();
    let term = b.term();
    let again = |b: &mut Bench, term: u64| {
        let link = b.connect();
        let plain = hello(&wire::DIALECT, ClusterId(7), Role::Mdm, "b");
        let address = AWAY.into();
        let hello = Hello { id: 2, to: 1, address, secret: 9, last: last - 1, term, ..plain };
        b.send(link, Header::new(Kind::Hello), &hello);
        link
    };
    let newer = again(&mut b, term + 1);
    assert_eq!(b.take::<Welcome>(newer, Kind::Welcome).len(), 1, "it followed a newer leader");
    // In the leader's own term, or in an older one, no member loses entries. An earlier build sends
    // no term.
    for term in [term, term - 1, 0] {
        let link = again(&mut b, term);
        let (code, text) = b.refusal(link);
        assert_eq!(code, RefusalCode::WrongMember);
        assert!(text.contains("set back"), "{text}");
    }
}

#[test]
fn an_mdm_tells_the_others_its_term() {
    let mut b = Bench::with_a_member();
    b.dials.retain(|(_, to)| to == AWAY);
    let (_, hello) = b.dial_up();
    assert!(hello.term > 0);
    assert_eq!((hello.term, hello.last), (b.term(), b.mdm.consensus().unwrap().last()));
}

#[test]
fn a_term_that_no_cluster_gets_to_is_refused_even_from_a_member() {
    let mut b = Bench::with_a_member();
    let (secret, term) = (b.secret(), b.term());
    let member = b.hello_as(2, AWAY);
    b.say(member, secret, u64::MAX);
    let (code, text) = b.refusal(member);
    assert_eq!(code, RefusalCode::Unexpected);
    assert!(text.contains("far above"), "{text}");
    assert!(b.notes_say("far above") && b.term() == term && b.mdm.failed().is_none());
    let mut again = Bench::on_disk(core::mem::take(&mut b.disk), config(Limits::TEST_MIN));
    again.settle();
    assert!(again.mdm.is_settled());
}

#[test]
fn a_peer_that_the_state_does_not_name_is_refused_and_not_dialled() {
    let mut b = Bench::with_a_member();
    for (id, address, code) in [
        (9, "10.6.6.6:1", RefusalCode::NotMe),
        (3, "10.6.6.6:1", RefusalCode::NotMe),
        (2, "10.6.6.6:1", RefusalCode::WrongMember),
    ] {
        let link = b.hello_as(id, address);
        assert_eq!(b.refusal(link).0, code, "{id}");
    }
    b.pass(5000, &[]);
    assert!(b.dials.iter().all(|(_, to)| to == AWAY), "{:?}", b.dials);
    // But a member may know of one that was added meanwhile.
    let (link, _) = b.dial_up();
    let named = MdmInfo { id: 3, address: "10.0.0.3:1".into(), ..MdmInfo::default() };
    let plain = node::link::welcome(ClusterId(7), Role::Mdm, 1);
    b.send(link, Header::new(Kind::Welcome), &Welcome { mdms: vec![named], ..plain });
    let third = b.hello_as(3, "10.0.0.3:1");
    assert_eq!(b.take::<Welcome>(third, Kind::Welcome)[0].mdms.len(), 2);
    let elsewhere = b.hello_as(3, "10.6.6.6:1");
    assert_eq!(b.refusal(elsewhere).0, RefusalCode::NotMe);
}

#[test]
fn an_mdm_that_waits_is_taken_in_by_one_cluster() {
    let join = Config { join: true, cluster: None, ..config(Limits::TEST_MIN) };
    let mut b = Bench::on_disk(BTreeMap::new(), join);
    b.settle();
    let call = |b: &mut Bench, id: u32| {
        let link = b.connect();
        let plain = hello(&wire::DIALECT, ClusterId(7), Role::Mdm, "a");
        let address = format!("10.0.1.{id}:7000");
        let hello = Hello { id, to: 5, address, newcomer: true, secret: 9, ..plain };
        b.send(link, Header::new(Kind::Hello), &hello);
        link
    };
    for id in 10..60 {
        call(&mut b, id);
    }
    b.pass(500, &[]);
    let mut dialled: Vec<String> = b.dials.iter().map(|(_, to)| to.clone()).collect();
    dialled.sort();
    dialled.dedup();
    assert!((1..=7).contains(&dialled.len()), "{dialled:?}");
}

/// Returns a disk with the log of an MDM that starts from this image.
pub(crate) fn disk_of(image: &Image) -> BTreeMap<u64, Vec<u8>> {
    let (mut disk, mut log) = (BTreeMap::new(), Log::new(1 << 20));
    loop {
        let Some(io) = log.next() else { return disk };
        let found = match io {
            Io::Read { len, .. } => vec![0; len as usize],
            Io::Write { at, data } => {
                for (i, part) in data.chunks(4096).enumerate() {
                    disk.insert(at / 4096 + i as u64, part.to_vec());
                }
                Vec::new()
            }
            Io::Flush => Vec::new(),
        };
        if matches!(log.done(Ok(&found)), Progress::Recovered(_)) {
            log.switch(&image.encode_to_vec());
        }
    }
}

#[test]
fn a_log_with_a_forged_term_is_refused_with_an_explanation() {
    let mut image = Image::first(1, Vec::new());
    let mut fine = Bench::on_disk(disk_of(&image), config(Limits::TEST_MIN));
    fine.settle();
    assert!(fine.mdm.is_settled());
    image.hard.term = u64::MAX;
    let mut b = Bench::on_disk(disk_of(&image), config(Limits::TEST_MIN));
    b.settle();
    let why = b.mdm.failed().expect("it can't go on");
    assert!(why.contains("term 18446744073709551615") && why.contains("mdm remove"), "{why}");
}

/// A member was removed and still counts: without it no majority can remove it from the consensus.
/// An MDM that restarts then reads from its log first that the member belongs to the cluster, and
/// then that it does not. The member says hello in between, and only once.
#[test]
fn a_removed_member_that_still_counts_is_dialled_after_a_restart() {
    let b = Bench::with_a_member();
    let mut commands = Commands::default();
    assert!(commands.push(&Command::RemoveMdm(command::RemoveMdm { id: 2 }), 1));
    let data = commands.into_data();
    let membership = Membership { voters: vec![1, 2], ..Membership::default() };
    let image = Image {
        me: 1,
        hard: HardState { term: 2, vote: 1, commit: 9 },
        base: Base { index: 8, term: 2, membership, data: to_bytes(b.mdm.state(), 0) },
        entries: vec![Entry { kind: 0, term: 2, index: 9, data, context: Vec::new() }],
    };
    let mut again = Bench::on_disk(disk_of(&image), config(Limits::TEST_MIN));
    again.hello_as(2, AWAY);
    again.pass(500, &[]);
    assert!(again.mdm.state().members.was_removed(2));
    assert!(again.mdm.consensus().unwrap().counts(2));
    assert!(again.dials.iter().any(|(_, to)| to == AWAY), "{:?}", again.dials);
}

/// A proposed entry may be dropped.
#[test]
fn the_others_hear_of_an_mdm_when_its_entry_is_decided() {
    let (mut b, members) = Bench::of_three();
    b.pass(100, &[]);
    let told = |b: &mut Bench, link| {
        b.take::<Welcome>(link, Kind::Welcome).pop().map(|welcome| welcome.mdms.len())
    };
    members.iter().for_each(|(_, link, _)| assert_eq!(told(&mut b, *link), Some(3)));
    let admin = b.say_hello(Role::Admin);
    let address = "10.0.0.4:7000".into();
    b.order(admin, Ask::AddMdm(AddMdm { name: "d".into(), address, tie_breaker: false }));
    b.pass(100, &[]);
    assert_eq!(b.mdm.state().members.list.len(), 4);
    assert!(!b.mdm.is_decided());
    members.iter().for_each(|(_, link, _)| assert_eq!(told(&mut b, *link), None));
    let plain = hello(&wire::DIALECT, ClusterId(7), Role::Mdm, "c");
    let last = b.mdm.consensus().unwrap().last();
    let again = Hello { id: 3, to: 1, address: THIRD.into(), secret: 9, last, ..plain };
    let late = b.connect();
    b.send(late, Header::new(Kind::Hello), &again);
    assert_eq!(told(&mut b, late), Some(3), "a welcome names the list that is decided, too");
    b.all_have_everything(&members);
    b.pass(100, &[]);
    members.iter().for_each(|(_, link, _)| assert_eq!(told(&mut b, *link), Some(4)));
}
