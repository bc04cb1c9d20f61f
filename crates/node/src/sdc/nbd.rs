//! The NBD sessions of an SDC: one per link.
//!
//! Requests go to the client core under the name (link, tag). When a link is gone its session is
//! dropped, and nothing that it had asked for is asked again: the client will connect and repeat it, or
//! write something else, and an old write must not come after that (rule R16). What a primary has already
//! is done, or not; the answers find nobody.

use super::{Origin, Peer, Sdc};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use base::time::Duration;
use base::{LinkId, Map, Time, VolumeId};
use mdm::mapping::Grant;
use seam::{BlockError, Buf, Effect, Effects, Note};
use target::nbd::{Action, Session};

/// How long a negotiation waits for a fresh map before it shows what is known.
const REFRESH: Duration = Duration::from_millis(500);

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    sessions: Map<LinkId, Session>,
    /// Links whose negotiation waits for a fresh map.
    refreshing: Vec<LinkId>,
    /// When the first of them has waited long enough: then all are answered.
    pub(super) refresh_by: Option<Time>,
    spare: Vec<Action>,
    /// What each client that has attached a volume may do with it.
    leaves: Map<LinkId, (VolumeId, Grant)>,
    /// The map is another one: who may not go on as it was told?
    pub(super) review: bool,
}

impl Sessions {
    pub(super) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// The volumes that are attached, each once.
    pub(super) fn attached(&self) -> Vec<u32> {
        let volumes: BTreeSet<u32> = self.leaves.values().map(|(volume, _)| volume.0).collect();
        volumes.into_iter().collect()
    }

    pub(super) fn remove(&mut self, link: LinkId) {
        self.sessions.remove(&link);
        self.leaves.remove(&link);
        self.refreshing.retain(|l| *l != link);
        if self.refreshing.is_empty() {
            self.refresh_by = None;
        }
    }
}

impl Sdc {
    pub(super) fn nbd_open(&mut self, now: Time, link: LinkId, out: &mut Effects) {
        self.links.insert(link, Peer::Nbd);
        self.nbd.sessions.insert(link, Session::new(&self.config.limits));
        self.nbd_session(now, link, out, |session, _, actions| session.greet(actions));
    }

    /// A connection is over.
    pub(super) fn nbd_gone(&mut self, now: Time, link: LinkId, out: &Effects) {
        self.nbd.remove(link);
        self.mdm.heartbeat_soon(now);
        let gone = |origin| matches!(origin, Origin::Nbd { link: of, .. } if of == link);
        self.client(now, out, |client, turn| client.forget(gone, turn));
    }

    pub(super) fn nbd_frame(
        &mut self,
        now: Time,
        link: LinkId,
        head: &[u8],
        body: Buf,
        out: &mut Effects,
    ) {
        self.nbd_session(now, link, out, |session, out, actions| {
            session.frame(head, body, out.pool(), actions);
        });
    }

    pub(super) fn nbd_done(
        &mut self,
        now: Time,
        link: LinkId,
        tag: u64,
        result: Result<Buf, BlockError>,
        out: &mut Effects,
    ) {
        self.nbd_session(now, link, out, |session, out, actions| {
            session.done(tag, result, out.pool(), actions);
        });
    }

    /// The map is as fresh as can be had: goes on with the negotiations that wait for it.
    pub(super) fn nbd_refreshed(&mut self, now: Time, out: &mut Effects) {
        self.nbd.refresh_by = None;
        for link in core::mem::take(&mut self.nbd.refreshing) {
            let Some(mut session) = self.nbd.sessions.remove(&link) else { continue };
            let mut actions = core::mem::take(&mut self.nbd.spare);
            session.refreshed(&self.map, out.pool(), &mut actions);
            let volume = session.attached().and_then(|(v, _)| Some((v, self.map.volumes.get(&v)?)));
            if let Some((id, volume)) = volume
                && let Some(grant) = self.map.my_grant(volume)
            {
                self.nbd.leaves.insert(link, (id, grant));
                out.push(Effect::Welcome { link });
                self.mdm.heartbeat_soon(now);
            }
            self.nbd.sessions.insert(link, session);
            self.nbd_execute(now, link, actions, out);
        }
    }

    /// Closes the connections to volumes that this client may not use any more, or otherwise than it did: who
    /// connects again is told what it may. What was asked is answered before.
    pub(super) fn nbd_review(&mut self, now: Time, out: &mut Effects) {
        let other = |(link, (id, old)): (&LinkId, &(VolumeId, Grant))| {
            let volume = self.map.volumes.get(id)?;
            (self.map.my_grant(volume) != Some(*old)).then_some(*link)
        };
        let mut over: Vec<LinkId> = self.nbd.leaves.iter().filter_map(other).collect();
        over.sort_unstable();
        for link in over {
            out.note(Note::Refused { link, why: "its volume is mapped otherwise from now on" });
            out.push(Effect::Close { link });
            self.links.remove(&link);
            self.nbd_gone(now, link, out);
        }
    }

    /// Lets a session act, if it is still there, and does what it wants done.
    fn nbd_session(
        &mut self,
        now: Time,
        link: LinkId,
        out: &mut Effects,
        call: impl FnOnce(&mut Session, &mut Effects, &mut Vec<Action>),
    ) {
        let Some(session) = self.nbd.sessions.get_mut(&link) else { return };
        let mut actions = core::mem::take(&mut self.nbd.spare);
        call(session, out, &mut actions);
        self.nbd_execute(now, link, actions, out);
    }

    fn nbd_execute(
        &mut self,
        now: Time,
        link: LinkId,
        mut actions: Vec<Action>,
        out: &mut Effects,
    ) {
        for action in actions.drain(..) {
            match action {
                Action::Send { head, body } => out.send(link, head, body),
                Action::Request { tag, request } => {
                    let origin = Origin::Nbd { link, tag };
                    self.client(now, out, |client, turn| client.request(origin, request, turn));
                }
                Action::Refresh => {
                    self.nbd.refreshing.push(link);
                    self.nbd.refresh_by = Time::earliest(self.nbd.refresh_by, Some(now + REFRESH));
                    self.mdm.ask();
                }
                Action::Pause => out.push(Effect::Pause { link }),
                Action::Resume => out.push(Effect::Resume { link }),
                Action::Close { why } => {
                    if let Some(why) = why {
                        out.note(Note::Refused { link, why });
                    }
                    out.push(Effect::Close { link });
                    self.links.remove(&link);
                    self.nbd_gone(now, link, out);
                }
            }
        }
        self.nbd.spare = actions;
    }
}
