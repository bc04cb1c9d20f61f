//! Several members whose disks and links are driven by hand: they agree, whichever of them fails,
//! and they notice a member that has lost entries.

use base::Prng;
use consensus::records::Change;
use consensus::{Base, Consensus, Entry, EntryKind, Image, Membership, Message, Record, Wrong};
use prost::Message as _;

/// A member, the content of its disk, and what it has applied.
struct Node {
    consensus: Consensus,
    image: Image,
    applied: Vec<(u64, Vec<u8>)>,
}

impl Node {
    fn new(image: Image) -> Node {
        let prng = Prng::new(image.me);
        Node { consensus: Consensus::new(image.clone(), false, prng), image, applied: Vec::new() }
    }

    /// Does everything that is due. Writes are durable at once.
    fn work(&mut self) -> Vec<Message> {
        let mut sent = Vec::new();
        loop {
            sent.extend(self.turn());
            match self.write() {
                Some(waited) => sent.extend(waited),
                None => return sent,
            }
        }
    }

    fn turn(&mut self) -> Vec<Message> {
        let turn = self.consensus.turn();
        if let Some(data) = turn.restored {
            self.applied = vec![(0, data)];
        }
        for entry in turn.committed {
            if let EntryKind::Data(data) = entry.meaning {
                self.applied.push((entry.index, data));
            }
        }
        turn.send
    }

    /// Does one write, if one is due.
    fn write(&mut self) -> Option<Vec<Message>> {
        if self.consensus.is_whole_due() || self.consensus.is_image_wanted() {
            self.image = self.consensus.write_image(b"state".to_vec());
        } else if self.consensus.is_due() {
            for record in self.consensus.write_records(100) {
                assert!(self.image.replay(Record::decode(&record[..]).unwrap()));
            }
        } else {
            return None;
        }
        Some(self.consensus.durable())
    }

    fn last_applied(&self) -> Option<&[u8]> {
        self.applied.last().map(|(_, data)| &data[..])
    }
}

/// Advances time, and carries messages between the members in `alive`.
fn run(nodes: &mut [Node], alive: &[u64], ticks: usize) -> Option<Wrong> {
    for _ in 0..ticks {
        for node in nodes.iter_mut().filter(|n| alive.contains(&n.image.me)) {
            node.consensus.tick();
        }
        for _ in 0..20 {
            let mut sent = Vec::new();
            for node in nodes.iter_mut().filter(|n| alive.contains(&n.image.me)) {
                sent.extend(node.work());
            }
            for message in sent {
                let bytes = message.encode_to_vec();
                let there = nodes.iter_mut().find(|n| n.image.me == message.to);
                let Some(node) = there.filter(|n| alive.contains(&n.image.me)) else { continue };
                if let Err(wrong) = node.consensus.step(Message::from_bytes(&bytes).unwrap()) {
                    return Some(wrong);
                }
            }
        }
    }
    None
}

fn leader(nodes: &[Node], alive: &[u64]) -> usize {
    let leads = |n: &&Node| n.consensus.role().leads && alive.contains(&n.image.me);
    let best =
        nodes.iter().filter(leads).max_by_key(|n| n.consensus.role().term).expect("a leader");
    nodes.iter().position(|n| n.image.me == best.image.me).unwrap()
}

/// A cluster that has grown from one member to three.
fn three() -> Vec<Node> {
    let mut nodes = vec![Node::new(Image::first(1, b"begin".to_vec()))];
    nodes[0].consensus.campaign();
    run(&mut nodes, &[1], 1);
    assert!(nodes[0].consensus.role().leads && nodes[0].consensus.is_alone());
    nodes.extend([2, 3].map(|id| Node::new(Image::newcomer(id))));
    for id in [2, 3] {
        nodes[0].consensus.change(&Change { learners: vec![id], ..Change::default() });
        run(&mut nodes, &[1, 2, 3], 10);
    }
    nodes[0].consensus.change(&Change { voters: vec![2, 3], ..Change::default() });
    run(&mut nodes, &[1, 2, 3], 30);
    for node in &nodes {
        let mut voters = node.consensus.membership().voters.clone();
        voters.sort_unstable();
        assert_eq!(voters, [1, 2, 3]);
    }
    nodes
}

#[test]
fn committed_entries_survive_the_loss_of_any_member_and_reach_it_when_it_returns() {
    let mut nodes = three();
    let mut said = 0;
    for dead in [1, 2, 3, 1, 3] {
        let alive: Vec<u64> = [1, 2, 3].into_iter().filter(|id| *id != dead).collect();
        run(&mut nodes, &alive, 60);
        let leads = leader(&nodes, &alive);
        said += 1;
        let data = format!("entry {said}").into_bytes();
        assert!(nodes[leads].consensus.propose(data.clone()).is_some());
        run(&mut nodes, &alive, 10);
        // The dead member starts again from its disk.
        let i = nodes.iter().position(|n| n.image.me == dead).unwrap();
        nodes[i] = Node::new(nodes[i].image.clone());
        run(&mut nodes, &[1, 2, 3], 60);
        assert!(nodes.iter().all(|n| n.last_applied() == Some(&data)), "{said}");
    }
}

/// Returns which other members a leader reports as heard, and which as silent.
fn seen_by(node: &Node) -> (Vec<u64>, Vec<u64>) {
    let peers = node.consensus.peers();
    let ids = |those: fn(&consensus::Peer) -> bool| {
        let others = peers.iter().filter(|p| p.id != node.image.me);
        others.filter(|p| those(p)).map(|p| p.id).collect()
    };
    (ids(|p| p.heard), ids(|p| p.silent))
}

/// A leader checks often whether it hears a majority, and the library then forgets whom it heard. A
/// member that works must not be reported as silent because of that. Just after an election,
/// members are neither heard nor silent.
#[test]
fn a_leader_names_silent_members_after_it_had_time_to_hear_all() {
    let mut nodes = three();
    let leads = leader(&nodes, &[1, 2, 3]);
    for tick in 0..40 {
        run(&mut nodes, &[1, 2, 3], 1);
        // The answers to the next heartbeat are still under way.
        nodes[leads].consensus.tick();
        nodes[leads].work();
        assert_eq!(seen_by(&nodes[leads]), (vec![2, 3], vec![]), "{tick}");
    }
    // The leader fails, and the next one does not hear the third member.
    let alive = [2, 3];
    run(&mut nodes, &alive, 60);
    let leads = leader(&nodes, &alive);
    let (me, other) = (nodes[leads].image.me, 5 - nodes[leads].image.me);
    assert_eq!(seen_by(&nodes[leads]), (vec![other], vec![1]));
    nodes[leads] = Node::new(nodes[leads].image.clone());
    nodes[leads].consensus.campaign();
    let mut ticks = 0;
    while !nodes[leads].consensus.role().leads {
        nodes[leads].consensus.campaign();
        run(&mut nodes, &alive, 1);
        ticks += 1;
        assert!(ticks < 100);
    }
    let (_, silent) = seen_by(&nodes[leads]);
    assert_eq!(silent, [], "{me} has just begun to lead");
    run(&mut nodes, &alive, 10);
    assert_eq!(seen_by(&nodes[leads]), (vec![other], vec![]));
    run(&mut nodes, &alive, 15);
    assert_eq!(seen_by(&nodes[leads]), (vec![other], vec![1]));
}

#[test]
fn a_removed_member_is_not_needed_for_a_majority() {
    let mut nodes = three();
    let mut stay = vec![1, 2, 3];
    for gone in [3, 2] {
        // The first member becomes the leader.
        let leads = leader(&nodes, &stay);
        nodes[leads].consensus.transfer(1);
        run(&mut nodes, &stay, 10);
        assert_eq!(leader(&nodes, &stay), 0);
        stay.retain(|id| *id != gone);
        assert!(nodes[0].consensus.change(&Change { gone: vec![gone], ..Change::default() }));
        'counts: loop {
            let mut sent: Vec<Message> = nodes[1..].iter_mut().flat_map(Node::work).collect();
            loop {
                sent.extend(nodes[0].turn());
                if !nodes[0].consensus.counts(gone) {
                    break 'counts; // and writes nothing more
                }
                let Some(waited) = nodes[0].write() else { break };
                sent.extend(waited);
            }
            for message in sent {
                let there = nodes.iter_mut().find(|n| n.image.me == message.to).unwrap();
                there.consensus.step(message).unwrap();
            }
        }
        // Its disk is wiped, and the others start again at the same moment.
        for node in &mut nodes {
            *node = Node::new(node.image.clone());
        }
        run(&mut nodes, &stay, 60);
        leader(&nodes, &stay);
    }
    assert!(nodes[0].consensus.is_alone());
}

#[test]
fn a_leader_without_a_majority_steps_down_and_commits_nothing() {
    let mut nodes = three();
    let old = leader(&nodes, &[1, 2, 3]);
    let me = nodes[old].image.me;
    nodes[old].consensus.propose(b"never".to_vec()).unwrap();
    run(&mut nodes, &[me], 60);
    assert!(!nodes[old].consensus.role().leads);
    let rest: Vec<u64> = [1, 2, 3].into_iter().filter(|id| *id != me).collect();
    run(&mut nodes, &rest, 60);
    let new = leader(&nodes, &rest);
    nodes[new].consensus.propose(b"instead".to_vec()).unwrap();
    run(&mut nodes, &[1, 2, 3], 60);
    for node in &nodes {
        assert_eq!(node.last_applied(), Some(&b"instead"[..]));
        assert!(!node.applied.iter().any(|(_, data)| data == b"never"));
    }
}

#[test]
fn a_member_that_was_set_back_is_noticed() {
    let mut nodes = three();
    let leads = leader(&nodes, &[1, 2, 3]);
    let back = (leads + 1) % 3;
    let old = nodes[back].image.clone();
    for i in 0..5 {
        nodes[leads].consensus.propose(vec![i]).unwrap();
        run(&mut nodes, &[1, 2, 3], 5);
    }
    nodes[back] = Node::new(old);
    assert!(matches!(run(&mut nodes, &[1, 2, 3], 10), Some(Wrong::Behind { .. })));
}

#[test]
fn leadership_is_transferred_to_the_named_member() {
    let mut nodes = three();
    let leads = leader(&nodes, &[1, 2, 3]);
    let to = (leads + 1) % 3;
    let id = nodes[to].image.me;
    nodes[leads].consensus.transfer(id);
    run(&mut nodes, &[1, 2, 3], 5);
    assert!(nodes[to].consensus.role().leads && !nodes[leads].consensus.role().leads);
}

const APPEND: i32 = 3;
const APPENDED: i32 = 4;
const VOTE: i32 = 5;
const SNAPSHOT: i32 = 7;
const HEARTBEAT: i32 = 8;
const HEARD: i32 = 9;
const READ_INDEX: i32 = 15;

/// Messages that no honest member sends, with `from` as their sender. They know the state of `to`.
fn forged(from: u64, to: &Node) -> Vec<Message> {
    let (term, last) = (to.consensus.role().term, to.consensus.last());
    let plain = |kind| Message { kind, from, to: to.image.me, term, ..Message::default() };
    let entry = |index, term| Entry { index, term, ..Entry::default() };
    let membership = Membership { voters: vec![1, 1], ..Membership::default() };
    let base = |index, term| Base { index, term, membership: membership.clone(), data: vec![] };
    let far = u64::MAX;
    let mut list: Vec<Message> = [APPEND, APPENDED, VOTE, HEARTBEAT, HEARD]
        .map(|kind| Message { term: far, ..plain(kind) })
        .to_vec();
    list.extend([APPEND, APPENDED, HEARTBEAT].map(|kind| Message { term: 0, ..plain(kind) }));
    list.extend([
        Message { index: far, ..plain(APPENDED) },
        Message { index: last + 1, ..plain(APPENDED) },
        Message { index: far, reject: true, reject_hint: far, ..plain(APPENDED) },
        Message { commit: far, ..plain(HEARD) },
        Message { index: far, log_term: far, ..plain(VOTE) },
        Message { commit: far, ..plain(HEARTBEAT) },
        Message { from: to.image.me, ..plain(HEARTBEAT) },
        Message { base: Some(base(far, 1)), term: term + 1, ..plain(SNAPSHOT) },
        Message { base: Some(base(last + 9, 1)), term: term + 1, ..plain(SNAPSHOT) },
        Message { term: term + 1, ..plain(SNAPSHOT) },
        plain(READ_INDEX),
    ]);
    let (index, log_term) = (last, to.image.last().1);
    let follow = Message { index, log_term, term: term + 1, ..plain(APPEND) };
    for entries in [
        vec![entry(last + 2, term)],
        vec![entry(last + 1, term), entry(last + 1, term)],
        vec![entry(last + 1, term + 2)],
        vec![entry(last + 1, term - 1)],
        vec![entry(far, term)],
    ] {
        list.push(Message { entries, ..follow.clone() });
    }
    let decided = entry(last, term + 1);
    list.push(Message { index: last - 1, log_term, entries: vec![decided], ..follow });
    list
}

#[test]
fn messages_that_no_member_sends_are_refused_and_change_nothing() {
    for victim in 0..3 {
        let mut nodes = three();
        let leads = leader(&nodes, &[1, 2, 3]);
        nodes[leads].consensus.propose(b"before".to_vec()).unwrap();
        run(&mut nodes, &[1, 2, 3], 10);
        let from = nodes[(victim + 1) % 3].image.me;
        for message in forged(from, &nodes[victim]) {
            let before = (nodes[victim].consensus.hard(), nodes[victim].consensus.last());
            let wrong = nodes[victim].consensus.step(message.clone());
            let set_back = victim != leads && from == nodes[leads].image.me;
            match wrong {
                Err(Wrong::Nonsense(_)) => {}
                Ok(()) if victim != leads && [APPENDED, HEARD].contains(&message.kind) => {}
                other => panic!("{set_back} {message:?}: {other:?}"),
            }
            nodes[victim].work();
            let after = (nodes[victim].consensus.hard(), nodes[victim].consensus.last());
            assert_eq!(after, before, "{message:?}");
        }
        let leads = leader(&nodes, &[1, 2, 3]);
        nodes[leads].consensus.propose(b"after".to_vec()).unwrap();
        assert_eq!(run(&mut nodes, &[1, 2, 3], 10), None);
        assert!(nodes.iter().all(|n| n.last_applied() == Some(b"after")));
    }
}

#[test]
fn only_a_leader_can_report_that_a_log_was_longer() {
    let mut nodes = three();
    let leads = leader(&nodes, &[1, 2, 3]);
    let (victim, other) = ((leads + 1) % 3, (leads + 2) % 3);
    let (term, last) = (nodes[victim].consensus.role().term, nodes[victim].consensus.last());
    let heartbeat = |from: usize, term| Message {
        kind: HEARTBEAT,
        from: nodes[from].image.me,
        to: nodes[victim].image.me,
        term,
        commit: last + 5,
        ..Message::default()
    };
    let (of_other, newer) = (heartbeat(other, term), heartbeat(other, term + 1));
    let of_leader = heartbeat(leads, term);
    let known = last + 5;
    let v = &mut nodes[victim].consensus;
    assert_eq!(v.step(of_leader), Err(Wrong::Behind { last, known }));
    assert_eq!(v.step(of_other), Ok(()));
    assert_eq!(v.step(newer), Ok(()), "maybe it leads since this moment");
    assert_eq!(v.committed(), last);
}

#[test]
fn a_log_with_an_implausible_term_is_refused() {
    let mut image = three()[0].image.clone();
    assert_eq!(image.implausible(), None);
    image.hard.term = u64::MAX;
    assert_eq!(image.implausible(), Some(("term", u64::MAX)));
}
