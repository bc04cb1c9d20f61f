//! Hands out maps: answers requests for changes, and tells clients of new volumes. Only new volumes
//! are pushed to clients; no other part of a map is sent without a request.
//!
//! Invariant: only committed state is handed out. The caller ensures that.

use super::links::{Link, Links, Peer, Pull};
use crate::link::send_answer;
use alloc::vec::Vec;
use base::{LinkId, MapVersion};
use mdm::state::State;
use prost::Message;
use seam::{Buf, Effects, Note};
use wire::control::MapPage;
use wire::message;

/// The pages of the last map request: most requests come from the same version, at the same time.
#[derive(Default)]
pub(super) struct Maps {
    have: MapVersion,
    version: MapVersion,
    bodies: Vec<Buf>,
    /// The version that was last reported to the driver.
    noted: MapVersion,
    /// As last reported: the number of lost groups that volumes use, and of groups that wait for a
    /// device.
    unserved: (u32, u32),
}

impl Maps {
    /// Answers the requests that wait and are due.
    pub(super) fn hand_out(&mut self, state: &State, links: &mut Links, out: &mut Effects) {
        let (version, open) = (state.version, state.recovery.open);
        let due = |p: &Pull| !p.wait || p.have < version && !open;
        let pulls =
            links.iter_mut().filter_map(|(id, l)| Some((id, l.parked.take_if(|p| due(p))?)));
        for (link, pull) in pulls.collect::<Vec<_>>() {
            match open {
                true => send_nothing(link, pull.op, links, out),
                false => self.send(link, pull, state, links, out),
            }
        }
    }

    /// Tells the driver of a new version. Returns true if there is one.
    pub(super) fn note(&mut self, state: &State, out: &mut Effects) -> bool {
        if self.noted == state.version {
            return false;
        }
        self.noted = state.version;
        out.note(Note::Map { version: state.version });
        let unserved = state.count_unserved();
        if core::mem::replace(&mut self.unserved, unserved) != unserved {
            out.note(Note::Unserved { lost: unserved.0, away: unserved.1 });
        }
        true
    }

    /// Sends clients the volumes that are new to them. Clients ask for a map when they need one,
    /// and may not be able to then: an NBD client attaches a new volume even without an MDM.
    pub(super) fn tell_volumes(&mut self, state: &State, links: &mut Links, out: &mut Effects) {
        let newest = state.volumes.values().map(|v| v.changed_at).max();
        let (Some(newest), false) = (newest, state.recovery.open) else { return };
        let behind = |l: &Link| matches!(l.peer, Peer::Sdc(..)) && l.have.0 > 0 && l.have < newest;
        for link in links.which(behind) {
            let pull = Pull { have: links.open(link).have, op: 0, wait: false };
            self.send(link, pull, state, links, out);
        }
    }

    fn send(
        &mut self,
        link: LinkId,
        pull: Pull,
        state: &State,
        links: &mut Links,
        out: &mut Effects,
    ) {
        // The map of a device counts for fences, so only the device itself reports it.
        let client = links.get_mut(link).filter(|l| matches!(l.peer, Peer::Sdc(..)));
        if let Some(client) = client {
            client.have = state.version;
        }
        if (self.have, self.version) != (pull.have, state.version) || self.bodies.is_empty() {
            let mut list = state.pages_since(pull.have);
            if list.is_empty() {
                list.push(state.page_without_news());
            }
            (self.have, self.version) = (pull.have, state.version);
            self.bodies = list.iter().map(|page| encode(page, out)).collect();
        }
        let link = links.peer_link(link);
        let page = message::MapPage { op: pull.op, map: state.version };
        for body in &self.bodies {
            out.send(link.id, link.frame(page, body), body.clone());
        }
    }
}

/// Answers a map request while there is no map to hand out: with a page that changes nothing.
fn send_nothing(link: LinkId, op: u64, links: &Links, out: &mut Effects) {
    let page = MapPage { last: true, ..Default::default() };
    let frame = message::MapPage { op, map: MapVersion(0) };
    send_answer(links.peer_link(link), frame, &page, out);
}

fn encode(page: &MapPage, out: &mut Effects) -> Buf {
    let mut body = out.alloc(page.encoded_len());
    page.encode(&mut body.as_mut()).expect("the buffer has the encoded length");
    body
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{Incarnation, Prng, SdcId};
    use mdm::command::{Command, FormCluster};
    use seam::{BufPool, Effect};

    fn sent(out: &mut Effects) -> usize {
        out.drain().filter(|effect| matches!(effect, Effect::Send { .. })).count()
    }

    #[test]
    fn a_request_that_waits_is_answered_when_there_is_news() {
        let mut out = Effects::new(BufPool::new(1 << 20), Prng::new(1), None);
        let (mut state, mut links, mut maps) = (State::new(), Links::default(), Maps::default());
        let link = LinkId(1);
        links.add(link);
        links.register(link, Peer::Sdc(SdcId(1), Incarnation(1)), 1);
        let pull = |wait| Some(Pull { have: MapVersion(0), op: 5, wait });
        links.open_mut(link).parked = pull(true);
        maps.hand_out(&state, &mut links, &mut out);
        assert_eq!(sent(&mut out), 0);
        state.apply(1, &Command::FormCluster(FormCluster { cluster: 7 }));
        assert!(maps.note(&state, &mut out) && !maps.note(&state, &mut out));
        out.drain().for_each(drop);
        maps.hand_out(&state, &mut links, &mut out);
        assert_eq!((sent(&mut out), links.open(link).have), (1, state.version));
        maps.hand_out(&state, &mut links, &mut out);
        assert_eq!(sent(&mut out), 0, "it was answered");
        links.open_mut(link).parked = pull(false);
        maps.hand_out(&state, &mut links, &mut out);
        assert_eq!(sent(&mut out), 1);
    }
}
