//! NBD connections: the limit on each connection's bytes in flight, and writes that wait for space.

use super::{CONNECTIONS, STRANGERS, Session, Sessions};
use crate::sdc::Sdc;
use base::time::Duration;
use base::{Limits, LinkId, Time, VolumeId};
use seam::Effects;

/// A connection must attach a volume within this time.
pub(super) const NEGOTIATION: Duration = Duration::from_secs(5);

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) session: target::nbd::Session,
    attached: bool,
}

impl Connection {
    /// Creates the session of a connection that was just accepted.
    pub(super) fn new(limits: &Limits) -> Connection {
        Connection { session: target::nbd::Session::new(limits), attached: false }
    }

    /// Returns the volume when it has just been attached.
    pub(super) fn take_attached(&mut self) -> Option<VolumeId> {
        if self.attached {
            return None;
        }
        let (volume, _) = self.session.attached()?;
        self.attached = true;
        Some(volume)
    }
}

/// Bytes of requests in flight that do not wait for space, of all connections together.
#[derive(Debug)]
pub(super) struct Shares {
    flying: u64,
    most: u64,
}

impl Shares {
    pub(super) fn new(limits: &Limits) -> Shares {
        Shares { flying: 0, most: limits.nbd_flying }
    }

    /// Tells a session how many bytes it may add, before it is called. Returns its bytes.
    #[inline]
    pub(super) fn begin(&self, session: &mut Session) -> u64 {
        let Session::Nbd(nbd) = session else { return 0 };
        nbd.session.leave(self.most.saturating_sub(self.flying));
        nbd.session.flying_bytes()
    }

    /// Updates the total from a session's bytes `before` the call and now.
    #[inline]
    pub(super) fn end(&mut self, session: &Session, before: u64) {
        if let Session::Nbd(nbd) = session {
            assert!(self.flying >= before, "the sum has the bytes of each session");
            self.flying = self.flying - before + nbd.session.flying_bytes();
        }
    }

    /// Removes an ended session from the total.
    pub(super) fn left(&mut self, session: &target::nbd::Session) {
        assert!(self.flying >= session.flying_bytes(), "the sum has the bytes of each session");
        self.flying -= session.flying_bytes();
    }
}

/// Lengths of the lists of NBD connections, and their bounds (`docs/internals/limits.md`).
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct NbdLengths {
    /// Connections.
    pub connections: usize,
    /// Connections that have attached no volume.
    pub strangers: usize,
    /// Requests of one connection in flight that do not wait for space.
    pub requests: usize,
    /// Bytes of these.
    pub bytes: usize,
    /// The same bytes, of all connections together.
    pub all_bytes: usize,
    /// Writes that wait for space, of all connections together.
    pub waiting: usize,
    /// Bytes of these.
    pub waiting_bytes: usize,
}

impl Sessions {
    fn nbd_sessions(&self) -> impl Iterator<Item = &target::nbd::Session> {
        self.sessions.values().filter_map(|session| match session {
            Session::Nbd(nbd) => Some(&nbd.session),
            Session::Iscsi(_) | Session::Nvme(_) => None,
        })
    }

    /// Returns the number of NBD connections.
    pub(in crate::sdc) fn nbd_connections(&self) -> usize {
        self.nbd_sessions().count()
    }

    /// Returns how long the lists are.
    pub(in crate::sdc) fn nbd_lengths(&self) -> NbdLengths {
        let all = || self.nbd_sessions();
        let flying = |session: &target::nbd::Session| session.flying_bytes() as usize;
        NbdLengths {
            connections: self.nbd_connections(),
            strangers: self.strangers[0].len(),
            requests: all().map(target::nbd::Session::active).max().unwrap_or(0),
            bytes: all().map(flying).max().unwrap_or(0),
            all_bytes: all().map(flying).sum(),
            waiting: all().map(target::nbd::Session::waiting).sum(),
            waiting_bytes: all().map(|session| session.waiting_bytes() as usize).sum(),
        }
    }

    /// Returns how long the lists may be with these connections.
    pub(in crate::sdc) fn nbd_bounds(&self, limits: &Limits) -> NbdLengths {
        let one = limits.nbd_payload as usize;
        NbdLengths {
            connections: CONNECTIONS,
            strangers: STRANGERS,
            requests: limits.nbd_requests.max(1) as usize,
            bytes: 3 * one,
            all_bytes: limits.nbd_flying as usize + self.nbd_connections() * one,
            waiting: waiting_most(limits),
            waiting_bytes: limits.nbd_waiting as usize,
        }
    }

    /// Divides the bytes in flight again, after a connection has attached a volume or has ended.
    pub(super) fn share(&mut self) {
        let nbd = |link: &&LinkId| matches!(self.sessions.get(*link), Some(Session::Nbd(_)));
        let share = self.nbd.most / self.permissions.keys().filter(nbd).count().max(1) as u64;
        for session in self.sessions.values_mut() {
            if let Session::Nbd(nbd) = session {
                nbd.session.share(share);
            }
        }
    }
}

/// Returns how many writes may wait for space without counting as in flight: half of the requests,
/// so that the writes of volumes that have space find places.
fn waiting_most(limits: &Limits) -> usize {
    (limits.sdc_requests / 2) as usize
}

impl Sdc {
    /// Tells the session that a write waits for space, unless the session knows.
    pub(in crate::sdc) fn target_waits(
        &mut self,
        now: Time,
        link: LinkId,
        tag: u64,
        out: &mut Effects,
    ) {
        let nbd = match self.targets.sessions.get_mut(&link) {
            Some(Session::Nbd(nbd)) => nbd,
            Some(Session::Iscsi(iscsi)) => return iscsi.session.waits(tag),
            Some(Session::Nvme(_)) | None => return,
        };
        if nbd.session.knows_wait(tag) {
            return;
        }
        let sessions = || self.targets.nbd_sessions();
        let all: u64 = sessions().map(target::nbd::Session::waiting_bytes).sum();
        let writes: usize = sessions().map(target::nbd::Session::waiting).sum();
        // Other volumes may have space, and their writes need places, too.
        let limits = &self.config.limits;
        let room = writes < waiting_most(limits);
        let most = if room { limits.nbd_waiting.saturating_sub(all) } else { 0 };
        self.target_session(now, link, out, |session, _, out, actions| match session {
            Session::Nbd(nbd) => nbd.session.waits(tag, most, out.pool(), actions),
            Session::Iscsi(_) | Session::Nvme(_) => {}
        });
    }
}
