//! Checks the hellos of other MDMs: decides which MDM is a member, and which one has to stop.
//!
//! A member states its id, its address, the id of the member that it calls, and the end of its log.
//! A member that was set back to an older log, was removed, or takes another one's place, is
//! refused, and its process ends. Only a leader whose term is not older than the member's may find
//! that it was set back.

use super::{Peers, set_back};
use crate::mdm::journal::Journal;
use crate::refusals::refusal;
use alloc::format;
use core::net::SocketAddr;
use mdm::refused::MAX_MEMBERS;
use wire::control::{Hello, Refusal, RefusalCode};

impl Peers {
    /// Checks the hello of another MDM. Returns true if it is welcome, and false if its hello has
    /// to wait.
    // Long: one check after the other, each with the text of its refusal.
    pub(in crate::mdm) fn hello(
        &mut self,
        hello: &Hello,
        journal: &mut Journal,
    ) -> Result<bool, Refusal> {
        let wrong = |text| Err(refusal(RefusalCode::WrongMember, text));
        let address: Option<SocketAddr> = hello.address.parse().ok();
        let (Some(address), true) = (address, hello.id != 0 && hello.to != 0) else {
            return Err(refusal(
                RefusalCode::NotMe,
                "this is an MDM, and serves no MDM of another cluster",
            ));
        };
        let me = journal.id();
        let Some(consensus) = journal.consensus() else {
            if journal.is_beginning() {
                return Ok(false);
            }
            if !hello.newcomer || !journal.is_idle() {
                let text = format!(
                    "this MDM belongs to no cluster, and MDM {} does: has its log gone? Remove it from the \
                     cluster (`gabion mdm remove`), and add it anew",
                    hello.to
                );
                return Err(refusal(RefusalCode::NotMe, text));
            }
            journal.begin_as(u64::from(hello.to));
            return Ok(false);
        };
        // An MDM with an empty log has promised nothing. The id by which it was called may be out
        // of use by now.
        if journal.is_empty() && hello.newcomer && hello.to > me && journal.is_idle() {
            journal.begin_as(u64::from(hello.to));
            return Ok(false);
        }
        if hello.to != me {
            let text = format!(
                "this is MDM {me}, not {}: its log is of another member. If it is to be a new one, stop it, \
                 remove its log, and start it again",
                hello.to
            );
            return Err(refusal(RefusalCode::NotMe, text));
        }
        let (id, members) = (hello.id, &journal.state().members);
        let known = members.list.get(&id);
        if id == me || known.is_some_and(|m| m.address != hello.address) {
            let there = known.map_or("", |m| &m.address);
            let how = match members.list.len() {
                1 => "to move the MDM, stop the one there first",
                _ => "to move an MDM, remove it and add it anew",
            };
            return wrong(format!(
                "MDM {id} is the one at {there}: this one, at {}, has a copy of its log. Stop it; {how}",
                hello.address
            ));
        }
        // A proposed removal may still be dropped, and a removed member that still counts is needed
        // until that is over.
        let counts = consensus.counts(u64::from(id));
        if journal.is_decided() && !counts && members.was_removed(id) {
            return wrong(format!(
                "MDM {id} was removed from the cluster: to use it again, stop it, remove its log, start it, and \
                 add it anew"
            ));
        }
        // A member with a newer term may have replaced entries of this leader by entries of a newer
        // one.
        let judges = hello.term <= consensus.role().term;
        let peers = consensus.peers().into_iter();
        let matched = peers.filter(|_| judges).find(|p| p.id == u64::from(id));
        if let Some(peer) = matched.filter(|p| p.matched > hello.last) {
            return wrong(set_back(id, hello.last, peer.matched));
        }
        match self.is_expected(id, address, hello.newcomer, journal) {
            true => Ok(true),
            false => {
                let text = format!(
                    "MDM {me} knows of no MDM {id} at {address}: neither its own list of MDMs nor that of another MDM \
                     names it. If it belongs to this cluster and this lasts, stop MDM {me}, remove it from the \
                     cluster (`gabion mdm remove`), remove its log, and add it anew"
                );
                Err(refusal(RefusalCode::NotMe, text))
            }
        }
    }

    /// Returns true if this may be a member, by the rules at the head of this file.
    fn is_expected(
        &mut self,
        id: u32,
        address: SocketAddr,
        newcomer: bool,
        journal: &Journal,
    ) -> bool {
        let (members, empty) = (&journal.state().members, journal.is_empty());
        let mut named = self.named.values().flatten();
        let listed = members.list.contains_key(&id) || named.any(|n| *n == (id, address));
        let needed = members.was_removed(id) && journal.counts(u64::from(id));
        let calls = empty && newcomer;
        if self.heard_of.get(&id) == Some(&address) {
            return true;
        }
        let room = needed || self.heard_of.len() < MAX_MEMBERS;
        let new = (needed || calls) && room;
        // A listed member may be removed by the next entry before it is dialled, and it says hello
        // only once.
        if new || (listed && !empty) {
            self.heard_of.insert(id, address);
        }
        listed || new
    }
}
