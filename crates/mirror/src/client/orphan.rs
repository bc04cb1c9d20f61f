//! Requests whose asker is gone: an NBD connection that broke, say. Whoever connects next may repeat
//! them, or write something else, and nothing of the old ones may appear after that (rule R16).
//!
//! An **orphan** is an operation of such a request that a primary has, and has not answered.
//!
//! - What no primary has ends at once: it was never sent, or was answered that nothing of it is done.
//! - **An orphan is never sent again.** Any answer ends it, the end of the session, and another leader.
//! - So all that is left is one frame. What is asked later comes after it: on the same session by the
//!   order of arrival at the primary's range lock; in a later session, as its hello ends what was not
//!   begun before it; at another leader, as the frame names an epoch that is over, and the new leader
//!   has settled what was begun in it (rules R2, R6, R8).
//! - A primary that doesn't answer an orphan for [`PATIENCE`] loses the session. A client that is cut
//!   off does so, too, long before its path heals. Of one that only reads nothing appears later, but it has
//!   a place here and in the server: that may take [`READS_PATIENCE`].

use super::op::Place;
use super::request::Request;
use super::{Action, Client, Hangup, Topology, Turn};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use base::mutant::{self, Mutant};
use base::time::Duration;
use base::{DeviceId, Time};
use seam::{BlockError, Buf};

/// How long a primary may keep an orphan without an answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// The same of one that only reads: all others lose the session, too.
const READS_PATIENCE: Duration = Duration::from_secs(10);

impl<T: Copy> Client<T> {
    /// A newer process has this client's name, says the MDM: nothing is asked any more, and what was is over.
    pub fn superseded<M: Topology>(&mut self, turn: &mut Turn<'_, M, T>) {
        self.superseded = true;
        for request in self.requests.values_mut() {
            request.error.get_or_insert(BlockError::Superseded);
        }
        self.early.clear();
        self.forget(|_| true, turn);
    }

    /// Nobody wants the answers to these requests any more: nothing of them is asked again.
    pub fn forget<M: Topology>(&mut self, gone: impl Fn(T) -> bool, turn: &mut Turn<'_, M, T>) {
        let mut over = Vec::new();
        for (key, request) in self.requests.iter() {
            if gone(request.origin) && request.gone.is_none() {
                over.push(key);
            }
        }
        if mutant::on(Mutant::OrphansLive) {
            let held = |key: &u64| self.ops.iter().any(|(_, op)| op.held && op.request == *key);
            over.retain(held);
        }
        self.orphan(&over, BlockError::Busy, turn);
    }

    /// Answers the requests that have taken longer than the user allows. What a primary has of
    /// them is an orphan from then on: its effect is not known, and comes before that of anything
    /// that is asked later, or never.
    pub(super) fn end_late<M: Topology>(&mut self, turn: &mut Turn<'_, M, T>) {
        if self.answer_within.is_zero() {
            return;
        }
        let late =
            |r: &Request<T>| r.gone.is_none() && turn.now.since(r.since) >= self.answer_within;
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
            request.answered = true;
            let error = request.error.unwrap_or(BlockError::TimedOut);
            turn.out.push(Action::Done { origin: request.origin, result: Err(error) });
        }
    }

    /// Nothing of these requests is sent any more.
    fn orphan<M: Topology>(&mut self, over: &[u64], why: BlockError, turn: &mut Turn<'_, M, T>) {
        if over.is_empty() {
            return;
        }
        for key in over {
            let request = self.requests.get_mut(*key).expect("just seen");
            request.gone = Some(turn.now);
            request.error.get_or_insert(why);
            request.request.body = Buf::EMPTY; // A frame that is out has its own share of it.
            request.data = Buf::EMPTY;
        }
        // Of these alone: an operation of an earlier one may be on its way to its end.
        let over: BTreeSet<u64> = over.iter().copied().collect();
        self.drop_unsent(|key| over.contains(&key));
        for key in &over {
            self.proceed(*key, turn);
        }
    }

    /// Ends the sessions in which an orphan was left without an answer for too long.
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
