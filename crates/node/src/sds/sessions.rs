//! The peers that dialled this shard: hellos that wait, and the newest session of each client and
//! of each primary (rule R8).
//!
//! Invariant: only the link of the newest session counts, and hellos wait in the order in which
//! they came.

use crate::link::session::Session;
use crate::mapview::MapView;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use base::{DeviceId, LinkId, SdcId, Time};
use wire::control::Hello;

/// A hello with an incarnation that the map does not have yet. Anyone can claim one, so it waits:
/// if the claim is true, a map with that incarnation is on its way.
pub(super) struct Waiting {
    pub(super) link: LinkId,
    /// When the hello is refused.
    pub(super) until: Time,
    pub(super) hello: Hello,
}

/// See the head of this file.
#[derive(Default)]
pub(super) struct Sessions {
    pub(super) waiting: Vec<Waiting>,
    pub(super) clients: BTreeMap<SdcId, Session>,
    pub(super) leaders: BTreeMap<DeviceId, Session>,
}

impl Sessions {
    /// Returns when the first hello has waited for too long.
    pub(super) fn wake_at(&self) -> Option<Time> {
        self.waiting.first().map(|w| w.until)
    }

    /// Returns true if a hello on this link waits.
    pub(super) fn waits(&self, link: LinkId) -> bool {
        self.waiting.iter().any(|w| w.link == link)
    }

    /// Drops the hello on this link, if one waits.
    pub(super) fn forget(&mut self, link: LinkId) {
        self.waiting.retain(|w| w.link != link);
    }

    /// Records that a client's link is down. Returns true if it was the newest one.
    pub(super) fn client_lost(&mut self, sdc: SdcId, link: LinkId) -> bool {
        self.clients.get_mut(&sdc).is_some_and(|session| session.lost(link))
    }

    /// Records that a primary's link is down.
    pub(super) fn leader_lost(&mut self, device: DeviceId, link: LinkId) {
        if let Some(session) = self.leaders.get_mut(&device) {
            session.lost(link);
        }
    }

    /// Removes the sessions of client incarnations that have ended according to the map.
    pub(super) fn over(&mut self, map: &MapView) -> Vec<(SdcId, Session)> {
        let over = |sdc: &SdcId, session: &mut Session| map.is_over(*sdc, session.incarnation);
        self.clients.extract_if(.., over).collect()
    }
}
