//! Lengths of the lists that iSCSI hosts can make longer, for judges, and the bounds of these
//! lengths. `docs/internals/limits.md` explains the bounds.

use super::{CONNECTIONS, STRANGERS, Session, Sessions, UNSEATED, past_sessions, reserve};
use crate::mapview::MapView;
use crate::sdc::Origin;
use base::{Limits, LinkId};
use mirror::client::Client;
use target::iscsi::ListLengths;

/// Lengths of the lists of iSCSI connections, or their bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IscsiLengths {
    /// Connections.
    pub connections: usize,
    /// Connections whose host has not logged in to a volume.
    pub strangers: usize,
    /// The longest list of each kind of one session.
    pub session: ListLengths,
    /// Memory of the commands of all sessions, in bytes.
    pub memory: usize,
    /// Commands of all hosts that wait for a change of reservations, or for a report of them.
    pub asking: usize,
    /// Changes of reservations that are under way.
    pub changes: usize,
    /// Remembered sessions that have ended.
    pub past_sessions: usize,
    /// Requests of all hosts that wait for a seat.
    pub unseated: usize,
    /// Seats that are confirmed, asked for, or wanted.
    pub seats: usize,
}

/// Returns the most memory of the commands of one session, in bytes: what is being read and what
/// may come, and a block of memory for each request, for each command's part of a sector or its
/// parameters, and for a PDU whose digest has not arrived. A block has up to four times the size
/// that is asked for.
fn memory_most(limits: &Limits) -> usize {
    let most = ListLengths::most(limits);
    let unsolicited = most.commands * limits.iscsi_first_burst as usize;
    let block = 4 * limits.iscsi_segment.max(base::BLOCK) as usize;
    let blocks = most.requests + 2 * most.commands + 1;
    most.reads + most.solicited + unsolicited + blocks * block
}

impl Sessions {
    /// Returns how long the lists are.
    pub(in crate::sdc) fn iscsi_lengths(&self, client: &Client<Origin>) -> IscsiLengths {
        let sessions = || self.iscsi_sessions().map(target::iscsi::Session::list_lengths);
        IscsiLengths {
            connections: sessions().count(),
            strangers: self.strangers[1].len(),
            session: sessions().fold(ListLengths::default(), ListLengths::longest),
            memory: self.iscsi_memory(client) as usize,
            asking: self.reserve.asking(),
            changes: self.reserve.under_way(),
            past_sessions: self.iscsi.past_sessions(),
            unseated: self.crowded[UNSEATED].len(),
            seats: self.seats.known(),
        }
    }

    /// Returns the most requests that a host may have under way. An NVMe command that frees space
    /// has up to 32 at once.
    fn requests_most(&self, link: LinkId, limits: &Limits) -> usize {
        match self.sessions.get(&link) {
            Some(Session::Iscsi(_)) => ListLengths::most(limits).requests,
            Some(Session::Nvme(_)) => limits.nvme_requests as usize + 33 * self.in_flight(link),
            Some(Session::Nbd(_)) | None => 0,
        }
    }

    /// Returns how long the lists may be with these connections.
    pub(in crate::sdc) fn iscsi_bounds(&self, map: &MapView, limits: &Limits) -> IscsiLengths {
        let links = || self.sessions.keys().copied();
        IscsiLengths {
            connections: CONNECTIONS,
            strangers: STRANGERS,
            session: ListLengths::most(limits),
            memory: self.iscsi_sessions().count() * memory_most(limits),
            asking: links().map(|link: LinkId| self.in_flight(link)).sum(),
            changes: reserve::UNDER_WAY,
            past_sessions: past_sessions::MOST,
            unseated: links().map(|link: LinkId| self.requests_most(link, limits)).sum(),
            seats: self.seats_most(map),
        }
    }
}
