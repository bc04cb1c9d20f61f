//! Bounds strangers: links that others dialled and that their node has not welcomed yet. There may
//! be few of them, and each only for a short time.
//!
//! Invariant: `StrangerList::here` counts the links in the table that have a [`Stranger`],
//! including those being closed: a socket counts as long as it is open.

use super::links::Links;
use super::{Seat, Shard};
use crate::link::{Link, State, Stranger};
use crate::sys::Sys;
use base::{LinkId, Time};
use rustix::process::{Resource, getrlimit};
use seam::{DownReason, Node, Note, Port, Strangers};
use std::collections::VecDeque;
use std::time::Duration;

/// Links closed at once when the process runs out of descriptors.
const CLOSED_AT_ONCE: usize = 8;
/// How long to pause a listener after that, because closing takes a moment.
const MOMENT: Duration = Duration::from_millis(1);
/// The strangers of one node and protocol may use one in this many of the process's descriptors.
const SHARE: u64 = 16;
/// This many strangers are allowed even if there are few descriptors.
const LEAST: u64 = 16;

/// The strangers of one node on one protocol.
#[derive(Default)]
pub(super) struct StrangerList {
    /// The oldest first. Some entries are gone, or no longer strangers.
    order: VecDeque<LinkId>,
    /// Those whose first frame has not arrived, and some others.
    silent: VecDeque<LinkId>,
    here: usize,
}

impl StrangerList {
    /// Adds a link.
    fn add(&mut self, id: LinkId) {
        self.here += 1;
        self.order.push_back(id);
        self.silent.push_back(id);
    }

    /// Drops ids of links that are no longer strangers, when there are many.
    fn forget<F>(&mut self, links: &mut Links<F>) {
        if self.order.len() > self.here * 2 + LEAST as usize {
            let is_one = |id: &LinkId| links.of(*id).is_some_and(|(_, l)| l.stranger.is_some());
            self.order.retain(is_one);
        }
    }

    /// Removes the oldest stranger, and returns the index of its link.
    fn oldest<F>(&mut self, links: &mut Links<F>) -> Option<u32> {
        while let Some(id) = self.order.pop_front() {
            let Some((index, link)) = links.of(id) else { continue };
            if link.stranger.is_some() && link.state != State::Dead {
                return Some(index);
            }
        }
        None
    }

    /// Returns the stranger that has been silent for longest, and its deadline.
    fn next_silent<F>(&mut self, links: &mut Links<F>) -> Option<(LinkId, Time)> {
        loop {
            let id = *self.silent.front()?;
            let up = |l: &&mut Link<F>| l.state == State::Up;
            let link = links.of(id).map(|(_, link)| link).filter(up);
            match link.and_then(|link| link.stranger?.until) {
                Some(until) => return Some((id, until)),
                None => drop(self.silent.pop_front()),
            }
        }
    }
}

impl<N> Seat<N> {
    /// Accounts for a stranger's link that has left the table, or was welcomed.
    pub(super) fn stranger_left(&mut self, stranger: Stranger) {
        self.crowds[stranger.port.index()].here -= 1;
    }
}

impl<N: Node, S: Sys, T: FnMut(usize, Time, Note)> Shard<N, S, T> {
    /// Closes the oldest stranger if a new link would make too many.
    pub(super) fn make_room(&mut self, now: Time, seat: u32, port: Port) {
        let here = &self.seats[seat as usize];
        let Some(bounds) = here.node.strangers(port) else { return };
        if here.crowds[port.index()].here >= most(bounds) && self.close_oldest(seat, port) {
            (self.on_note)(seat as usize, now, Note::Crowded);
        }
    }

    /// Makes a new link a stranger's, if the node bounds strangers.
    pub(super) fn take_stranger(
        &mut self,
        now: Time,
        port: Port,
        link: Link<N::Framer>,
    ) -> Link<N::Framer> {
        let seat = &mut self.seats[link.seat as usize];
        let Some(bounds) = seat.node.strangers(port) else { return link };
        let crowd = &mut seat.crowds[port.index()];
        crowd.forget(&mut self.links);
        crowd.add(link.id);
        link.of_stranger(now, port, bounds)
    }

    /// Ends the limits of a stranger: the node has welcomed it.
    pub(super) fn welcome(&mut self, id: LinkId) {
        if let Some((_, link)) = self.links.of(id)
            && let Some(stranger) = link.welcome()
        {
            self.seats[link.seat as usize].stranger_left(stranger);
        }
    }

    /// Closes the oldest stranger. Returns false if there is none.
    fn close_oldest(&mut self, seat: u32, port: Port) -> bool {
        let oldest = self.seats[seat as usize].crowds[port.index()].oldest(&mut self.links);
        oldest.map(|index| self.down(index, DownReason::Stranger)).is_some()
    }

    /// Returns the earliest deadline of a silent stranger's first frame.
    pub(super) fn next_stranger(&mut self) -> Option<Time> {
        let crowds = self.seats.iter_mut().flat_map(|seat| &mut seat.crowds);
        let silent = crowds.filter_map(|crowd| crowd.next_silent(&mut self.links));
        silent.map(|(_, until)| until).min()
    }

    /// Closes strangers whose first frame has not arrived in time.
    pub(super) fn close_silent(&mut self, now: Time) {
        for seat in 0..self.seats.len() {
            for port in Port::ALL {
                while let crowd = &mut self.seats[seat].crowds[port.index()]
                    && let Some((id, until)) = crowd.next_silent(&mut self.links)
                    && until <= now
                    && let Some((index, _)) = self.links.of(id)
                {
                    (self.on_note)(seat, now, Note::Silent { link: id });
                    self.down(index, DownReason::Stranger);
                }
            }
        }
    }

    /// Handles a lack of descriptors, or of memory for another socket: closes a few of the oldest
    /// strangers. Returns how long to pause the listener until that has freed something.
    pub(super) fn no_descriptors(&mut self, now: Time, seat: u32) -> Duration {
        (self.on_note)(seat as usize, now, Note::NoDescriptors);
        let mut closed = 0;
        for seat in 0..self.seats.len() as u32 {
            for port in Port::ALL {
                while closed < CLOSED_AT_ONCE && self.close_oldest(seat, port) {
                    closed += 1;
                }
            }
        }
        if closed > 0 { MOMENT } else { super::ACCEPT_PAUSE }
    }
}

/// Returns how many strangers are allowed: most descriptors are kept for other links.
fn most(bounds: Strangers) -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    u64::from(bounds.most).min((descriptors / SHARE).max(LEAST)).max(1) as usize
}
