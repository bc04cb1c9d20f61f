//! Requests whose sender is gone, for example because an NBD connection broke. A program that
//! connects later may repeat them or write something else, and nothing of the old ones may appear
//! after that (rule R16).
//!
//! An **orphan** is an operation of such a request that a primary has and has not answered.
//!
//! - An operation that no primary has ends at once: it was never sent, or an answer has said that
//!   nothing of it is done.
//! - **An orphan is never sent again.** It ends with any answer, with the end of its session, or
//!   when another device becomes the primary.
//! - So only one frame is left of it, and later requests take effect after that frame. In the same
//!   session, the order of arrival at the primary's range lock ensures that. In a later session,
//!   the hello ends operations that were not begun before it. At another primary, the frame names
//!   an epoch that is over, and the new primary has settled the operations that were begun in that
//!   epoch (rules R2, R6, R8).
//! - A primary that doesn't answer an orphaned write for [`PATIENCE`] loses the session. A client
//!   that is cut off also ends the session in this way, long before its path heals. An orphaned
//!   read has no effect later, but it takes room here and at the server: it may take
//!   [`READS_PATIENCE`].

use super::op::Place;
use super::request::Request;
use super::{Client, Hangup, Topology, Turn};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use base::mutant::{self, Mutant};
use base::time::Duration;
use base::{DeviceId, Time};
use seam::{BlockError, Buf};

/// How long a primary may leave an orphaned write unanswered.
const PATIENCE: Duration = Duration::from_secs(1);
/// The same for a read. It is longer because all other operations lose the session, too.
const READS_PATIENCE: Duration = Duration::from_secs(10);

impl<T: Copy> Client<T> {
    /// Ends all requests, and sends nothing any more: the MDM says that a newer process has this
    /// client's name.
    pub fn superseded<M: Topology>(&mut self, turn: &mut Turn<'_, M, T>) {
        self.superseded = true;
        for request in self.requests.values_mut() {
            request.error.get_or_insert(BlockError::Superseded);
        }
        self.early.clear();
        self.forget(|_| true, turn);
    }

    /// Ends the requests that `gone` picks, because nothing wants their answers any more. Nothing
    /// of them is sent again.
    pub fn forget<M: Topology>(&mut self, gone: impl Fn(T) -> bool, turn: &mut Turn<'_, M, T>) {
        self.end(gone, BlockError::Busy, turn);
    }

    /// Ends the requests that `gone` picks with this error: what they asked for is not allowed any
    /// more. Nothing of them is sent again. Each is answered when no primary has a part of it.
    pub fn end<M: Topology>(
        &mut self,
        gone: impl Fn(T) -> bool,
        why: BlockError,
        turn: &mut Turn<'_, M, T>,
    ) {
        let mut over = Vec::new();
        for (key, request) in self.requests.iter() {
            let counts = request.held || !mutant::on(Mutant::OrphansLive);
            if gone(request.origin) && request.gone.is_none() && counts {
                over.push(key);
            }
        }
        self.orphan(&over, why, turn);
    }

    /// Answers the requests that have exceeded their time limit. Operations of them that a
    /// primary has are orphans from then on. Their effect is unknown, and comes before the effect
    /// of any later request, or never.
    pub(super) fn end_late<M: Topology>(&mut self, turn: &mut Turn<'_, M, T>) {
        let late = |r: &Request<T>| r.until <= turn.now && r.gone.is_none();
        let late: Vec<u64> =
            self.requests.iter().filter(|(_, r)| late(r)).map(|(key, _)| key).collect();
        for key in &late {
            let request = self.requests.get_mut(*key).expect("just seen");
            let error = if request.held { BlockError::Full } else { BlockError::TimedOut };
            request.error.get_or_insert(error);
        }
        self.orphan(&late, BlockError::TimedOut, turn);
        for key in late {
            let Some(request) = self.requests.get_mut(key).filter(|r| !r.answered) else {
                continue;
            };
            let error = request.error.unwrap_or(BlockError::TimedOut);
            turn.out.push(request.answer_early(Err(error)));
        }
    }

    /// Sends nothing of these requests any more.
    fn orphan<M: Topology>(&mut self, over: &[u64], why: BlockError, turn: &mut Turn<'_, M, T>) {
        if over.is_empty() {
            return;
        }
        for key in over {
            let request = self.requests.get_mut(*key).expect("just seen");
            request.gone = Some(turn.now);
            request.error.get_or_insert(why);
            request.request.body = Buf::EMPTY; // a frame in flight has its own reference to it
            request.data = Buf::EMPTY;
        }
        // Only operations of these requests: one of an earlier request may be about to end.
        let over: BTreeSet<u64> = over.iter().copied().collect();
        self.drop_unsent(|key| over.contains(&key));
        for key in &over {
            self.proceed(*key, turn);
        }
    }

    /// Ends the sessions in which an orphan was left unanswered for too long.
    pub(super) fn end_orphans<M: Topology>(&mut self, turn: &mut Turn<'_, M, T>) {
        let patience = |writes: bool| if writes { PATIENCE } else { READS_PATIENCE };
        let late = |gone: Time, writes: bool| turn.now.since(gone) >= patience(writes);
        let mut devices: Vec<DeviceId> = Vec::new();
        for (_, op) in self.ops.iter() {
            let gone = self.requests.get(op.request).and_then(|r| r.gone);
            if let Place::Sent(device) = op.place
                && gone.is_some_and(|gone| late(gone, op.writes))
                && !devices.contains(&device)
            {
                devices.push(device);
            }
        }
        for device in devices {
            self.hang_up(device, Hangup::Unanswered, turn);
        }
    }
}
