//! Several members, their disks and links driven by hand: they agree, whoever dies, and a member that has
//! forgotten is noticed.

use base::Prng;
use consensus::records::Change;
use consensus::{Behind, Consensus, Image, Meaning, Message, Record};
use prost::Message as _;

/// A member and what its disk holds.
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

    /// Does everything that is to be done; what is written is durable at once.
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
            if let Meaning::Data(data) = entry.meaning {
                self.applied.push((entry.index, data));
            }
        }
        turn.send
    }

    /// One write, if one is due.
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

/// Lets time pass and carries messages between those that live.
fn run(nodes: &mut [Node], alive: &[u64], ticks: usize) -> Option<Behind> {
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
                if let Err(behind) = node.consensus.step(Message::from_bytes(&bytes).unwrap()) {
                    return Some(behind);
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

/// A cluster of one that has grown to three.
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
fn what_was_agreed_survives_the_loss_of_any_one_and_comes_to_who_returns() {
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
        // The dead one starts again from its disk.
        let i = nodes.iter().position(|n| n.image.me == dead).unwrap();
        nodes[i] = Node::new(nodes[i].image.clone());
        run(&mut nodes, &[1, 2, 3], 60);
        assert!(nodes.iter().all(|n| n.last_applied() == Some(&data)), "{said}");
    }
}

#[test]
fn nobody_needs_a_member_that_does_not_count_any_more() {
    let mut nodes = three();
    let mut stay = vec![1, 2, 3];
    for gone in [3, 2] {
        // The first one leads.
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
                    break 'counts; // and nothing more is written
                }
                let Some(waited) = nodes[0].write() else { break };
                sent.extend(waited);
            }
            for message in sent {
                let there = nodes.iter_mut().find(|n| n.image.me == message.to).unwrap();
                there.consensus.step(message).unwrap();
            }
        }
        // Its disk is wiped, and the others start again at that very moment.
        for node in &mut nodes {
            *node = Node::new(node.image.clone());
        }
        run(&mut nodes, &stay, 60);
        leader(&nodes, &stay);
    }
    assert!(nodes[0].consensus.is_alone());
}

#[test]
fn a_leader_without_the_others_steps_down_and_nothing_of_it_is_decided() {
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
    assert!(run(&mut nodes, &[1, 2, 3], 10).is_some());
}

#[test]
fn the_leadership_goes_where_it_is_sent() {
    let mut nodes = three();
    let leads = leader(&nodes, &[1, 2, 3]);
    let to = (leads + 1) % 3;
    let id = nodes[to].image.me;
    nodes[leads].consensus.transfer(id);
    run(&mut nodes, &[1, 2, 3], 5);
    assert!(nodes[to].consensus.role().leads && !nodes[leads].consensus.role().leads);
}
