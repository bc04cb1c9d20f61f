//! The leader brings the consensus into line with the list of MDMs in the state, one step at a
//! time, and makes sure that a manager leads. Every step follows from the current state alone, so a
//! new leader continues where the last one stopped.
//!
//! - An MDM in the list that is not in the consensus becomes a learner: it gets every entry, and
//!   does not vote.
//! - Learners that have everything become voters, and the number of voters stays odd: if it is odd,
//!   two become voters at once (by a joint configuration); if it is even, one does. So a second MDM
//!   does not endanger a cluster of one: it waits for a third.
//! - An MDM that is no longer in the list leaves the consensus. If it leads, it hands over first.
//! - A tie-breaker that leads hands over to a manager that has everything.

use super::Journal;
use alloc::string::String;
use alloc::vec::Vec;
use base::Time;
use consensus::records::Change;
use consensus::{Membership, Peer};
use mdm::Refused;
use mdm::members::{Members, Voter, info};
use wire::control::{BuildInfo, MdmStatus, SwitchMdm};

/// A member that lacks at most this many entries counts as up to date: the rest is on its way.
const CLOSE: u64 = 8;

/// The next step.
#[derive(Clone, PartialEq, Debug)]
enum Step {
    Change(Change),
    HandOver(u64),
}

impl Journal {
    /// Returns when to tick the consensus. `serves` says whether this MDM serves as leader.
    pub(in crate::mdm) fn tick_due(&self, serves: bool) -> Option<Time> {
        let consensus = self.consensus.as_ref()?;
        // An MDM that leads alone has no other MDM to watch.
        let alone = consensus.is_alone() && serves && self.state.members.list.len() <= 1;
        (!alone).then_some(self.tick_at)
    }

    /// Ticks the consensus if that is due, and takes the next step, if this MDM serves as leader.
    pub(in crate::mdm) fn tick(&mut self, now: Time, serves: bool) {
        if self.tick_at > now {
            return;
        }
        // One tick, however late: a stall of this process does not count as silence of the others.
        self.tick_at = now + self.every;
        if let Some(consensus) = &mut self.consensus {
            consensus.tick();
        }
        if serves && self.is_decided() {
            self.tidy_members();
        }
    }

    fn tidy_members(&mut self) {
        let Some(consensus) = &mut self.consensus else { return };
        if consensus.is_handing_over() || consensus.applied() < consensus.last() {
            return;
        }
        let step = next(
            consensus.id(),
            &self.state.members,
            consensus.membership(),
            &consensus.peers(),
            consensus.last(),
        );
        match step {
            Some(Step::Change(change)) => {
                consensus.change(&change);
            }
            Some(Step::HandOver(to)) => consensus.transfer(to),
            None => {}
        }
    }

    /// Returns the status of the MDMs. Only the leader knows it. `build_of` returns the build of
    /// one.
    pub(in crate::mdm) fn member_status(
        &self,
        build_of: impl Fn(u32) -> Option<BuildInfo>,
    ) -> Vec<MdmStatus> {
        let Some(consensus) = &self.consensus else { return Vec::new() };
        let (peers, last) = (consensus.peers(), consensus.last());
        let one = |(id, member): (&u32, &mdm::members::Member)| {
            let peer = peers.iter().find(|p| p.id == u64::from(*id));
            MdmStatus {
                info: Some(info(*id, member)),
                leader: consensus.role().leader == u64::from(*id),
                voter: peer.is_some_and(|p| p.voter),
                heard: peer.is_some_and(|p| p.heard),
                build: build_of(*id),
                behind: last.saturating_sub(peer.map_or(0, |p| p.matched)),
            }
        };
        self.state.members.list.iter().map(one).collect()
    }

    /// Returns true while a removed MDM still counts.
    pub(in crate::mdm) fn is_one_leaving(&self) -> bool {
        let Some(consensus) = &self.consensus else { return false };
        let now = consensus.membership();
        let listed = |id: &u64| self.state.members.list.contains_key(&(*id as u32));
        !now.outgoing.is_empty() || !now.all().iter().all(listed)
    }

    /// Returns whether this member is heard, if it has a vote.
    pub(in crate::mdm) fn vote(&self, id: u32) -> Option<Voter> {
        let peers = self.consensus.as_ref()?.peers();
        let peer = peers.iter().find(|p| p.id == u64::from(id) && p.voter)?;
        Some(match (peer.heard, peer.silent) {
            (true, _) => Voter::Heard,
            (_, true) => Voter::Silent,
            _ => Voter::Unclear,
        })
    }

    /// Hands over the leadership, if an order asks for that and nothing is in flight.
    pub(in crate::mdm) fn hand_over(&mut self) {
        if !self.is_decided() {
            return;
        }
        if let (Some(to), Some(consensus)) = (self.successor.take(), &mut self.consensus) {
            consensus.transfer(to);
        }
    }

    /// Chooses the MDM that is to lead as soon as nothing is in flight.
    pub(in crate::mdm) fn switch(&mut self, ask: &SwitchMdm) -> Result<(), Refused> {
        let Some(consensus) = &self.consensus else { return Err(Refused::Outdated) };
        let (me, last) = (consensus.id(), consensus.last());
        let peers = consensus.peers();
        let close = |p: &&Peer| p.voter && p.heard && p.matched + CLOSE >= last;
        let to = match ask.name.is_empty() {
            true => best(me, &self.state.members, &peers, last).ok_or_else(|| {
                Refused::CantLead(
                    String::from("another MDM"),
                    "no other manager works and has everything",
                )
            })?,
            false => {
                let (id, member) = self.state.members.find(&ask.name)?;
                let peer = peers.iter().find(|p| p.id == u64::from(id));
                let cant = |why| Err(Refused::CantLead(member.name.clone(), why));
                match peer.filter(close) {
                    _ if u64::from(id) == me => return Err(Refused::Leads(member.name.clone())),
                    _ if member.tie_breaker => {
                        return cant("it is a tie-breaker, which leads only while no manager can");
                    }
                    None => return cant("it does not work, or has not got everything yet"),
                    Some(peer) => peer.id,
                }
            }
        };
        self.successor = Some(to);
        Ok(())
    }
}

/// Returns the manager that would lead best, other than this MDM.
fn best(me: u64, members: &Members, peers: &[Peer], last: u64) -> Option<u64> {
    let fit = fit(me, members, peers, last).into_iter().filter(|(_, manager)| *manager);
    fit.max_by_key(|(p, _)| p.matched).map(|(p, _)| p.id)
}

/// Returns the MDMs that could lead, other than this one, and whether each is a manager.
fn fit(me: u64, members: &Members, peers: &[Peer], last: u64) -> Vec<(Peer, bool)> {
    let fit = |p: &&Peer| p.voter && p.heard && p.id != me && p.matched + CLOSE >= last;
    let listed = |p: &Peer| Some((*p, !members.list.get(&(p.id as u32))?.tie_breaker));
    peers.iter().filter(fit).filter_map(listed).collect()
}

fn next(me: u64, members: &Members, now: &Membership, peers: &[Peer], last: u64) -> Option<Step> {
    if !now.outgoing.is_empty() || members.list.is_empty() {
        return None;
    }
    let listed = |id: &u64| members.list.contains_key(&(*id as u32));
    let hand_over = || best(me, members, peers, last).map(Step::HandOver);
    let change = |change| Some(Step::Change(change));
    if let Some(gone) = now.all().into_iter().find(|id| !listed(id)) {
        if gone == me {
            // A tie-breaker will do: it only has to remove this MDM.
            let any = fit(me, members, peers, last);
            return hand_over().or_else(|| any.first().map(|(p, _)| Step::HandOver(p.id)));
        }
        return change(Change { gone: Vec::from([gone]), ..Change::default() });
    }
    let new = members.list.keys().map(|id| u64::from(*id)).find(|id| !now.all().contains(id));
    if let Some(new) = new {
        return change(Change { learners: Vec::from([new]), ..Change::default() });
    }
    let is_close = |id: &&u64| {
        peers.iter().any(|p| p.id == **id && p.heard && p.matched > 0 && p.matched + CLOSE >= last)
    };
    let close: Vec<u64> = now.learners.iter().filter(is_close).copied().collect();
    let wanted = if now.voters.len().is_multiple_of(2) { 1 } else { 2 };
    if close.len() >= wanted {
        return change(Change { voters: close[..wanted].to_vec(), ..Change::default() });
    }
    let late = members.list.get(&(me as u32)).is_some_and(|m| m.tie_breaker);
    if late { hand_over() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mdm::members::Member;

    fn members(list: &[(u32, bool)]) -> Members {
        let member = |(id, tie_breaker): &(u32, bool)| {
            let (name, address) = (alloc::format!("m{id}"), alloc::format!("10.0.0.{id}:1"));
            (*id, Member { name, address, tie_breaker: *tie_breaker })
        };
        let last_id = list.iter().map(|(id, _)| *id).max().unwrap_or(0);
        Members { list: list.iter().map(member).collect(), last_id, ..Members::default() }
    }

    fn step(
        me: u64,
        list: &[(u32, bool)],
        voters: &[u64],
        learners: &[u64],
        silent: &[u64],
    ) -> Option<Step> {
        let now = Membership {
            voters: voters.to_vec(),
            learners: learners.to_vec(),
            ..Membership::default()
        };
        let peer = |id: &u64| Peer {
            id: *id,
            matched: if silent.contains(id) { 0 } else { 100 },
            voter: voters.contains(id),
            heard: !silent.contains(id),
            silent: silent.contains(id),
        };
        let peers: Vec<Peer> = now.all().iter().map(peer).collect();
        next(me, &members(list), &now, &peers, 100)
    }

    fn voters(ids: &[u64]) -> Option<Step> {
        Some(Step::Change(Change { voters: ids.to_vec(), ..Change::default() }))
    }

    #[test]
    fn voters_are_an_odd_number_where_that_can_be() {
        let three = [(1, false), (2, false), (3, true)];
        let learner = Change { learners: Vec::from([2]), ..Change::default() };
        assert_eq!(step(1, &three, &[1], &[], &[]), Some(Step::Change(learner)));
        assert_eq!(step(1, &three[..2], &[1], &[2], &[]), None, "a second one waits");
        assert_eq!(step(1, &three, &[1], &[2, 3], &[3]), None, "it isn't there yet");
        assert_eq!(step(1, &three, &[1], &[2, 3], &[]), voters(&[2, 3]));
        let replaced = [(1, false), (2, false), (4, true)];
        assert_eq!(step(1, &replaced, &[1, 2], &[4], &[]), voters(&[4]));
    }

    #[test]
    fn an_unwanted_member_is_removed_and_a_leader_hands_over_first() {
        let rest = [(1, false), (3, true)];
        let gone = Change { gone: Vec::from([2]), ..Change::default() };
        assert_eq!(step(1, &rest, &[1, 2, 3], &[], &[2]), Some(Step::Change(gone)));
        assert_eq!(step(2, &rest, &[1, 2, 3], &[], &[]), Some(Step::HandOver(1)));
    }

    #[test]
    fn a_tie_breaker_hands_over_to_a_manager_that_works() {
        let three = [(1, false), (2, false), (3, true)];
        assert_eq!(step(3, &three, &[1, 2, 3], &[], &[1]), Some(Step::HandOver(2)));
        assert_eq!(step(3, &three, &[1, 2, 3], &[], &[1, 2]), None);
        assert_eq!(step(1, &three, &[1, 2, 3], &[], &[]), None);
    }
}
