//! Bounds strangers: links that others dialled and that their node has not welcomed yet. There may
//! be few of them, and each only for a short time.
//!
//! Invariant: `Crowd::here` counts the links in the table that have a [`Stranger`], including those
//! being closed: a socket counts as long as it is open.

use super::Shard;
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
pub(super) struct Crowd {
    /// The oldest first. Some entries are gone, or no longer strangers.
    order: VecDeque<LinkId>,
    /// Those whose first frame has not arrived, and some others.
    silent: VecDeque<LinkId>,
    here: usize,
}

impl<N: Node, S: Sys, T: FnMut(usize, Time, Note)> Shard<N, S, T> {
    fn crowd(&mut self, seat: u32, port: Port) -> &mut Crowd {
        &mut self.seats[seat as usize].crowds[port as usize]
    }

    /// Closes the oldest stranger if a new link would make too many.
    pub(super) fn make_room(&mut self, now: Time, seat: u32, port: Port) {
        let Some(bounds) = self.seats[seat as usize].node.strangers(port) else { return };
        if self.crowd(seat, port).here >= most(bounds) && self.close_oldest(seat, port) {
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
        let seat = link.seat;
        let Some(bounds) = self.seats[seat as usize].node.strangers(port) else { return link };
        self.forget_strangers(seat, port);
        let crowd = self.crowd(seat, port);
        crowd.here += 1;
        crowd.order.push_back(link.id);
        crowd.silent.push_back(link.id);
        link.of_stranger(now, port, bounds)
    }

    /// Ends the limits of a stranger: the node has welcomed it.
    pub(super) fn welcome(&mut self, id: LinkId) {
        if let Some((_, link)) = self.link(id) {
            let seat = link.seat;
            if let Some(stranger) = link.welcome() {
                self.crowd(seat, stranger.port).here -= 1;
            }
        }
    }

    /// Accounts for a stranger's link that has left the table.
    pub(super) fn stranger_left(&mut self, seat: u32, stranger: Stranger) {
        self.crowd(seat, stranger.port).here -= 1;
    }

    /// Drops ids of links that are no longer strangers, when there are many.
    fn forget_strangers(&mut self, seat: u32, port: Port) {
        let crowd = self.crowd(seat, port);
        if crowd.order.len() <= crowd.here * 2 + LEAST as usize {
            return;
        }
        let mut order = std::mem::take(&mut crowd.order);
        order.retain(|id| self.stranger(*id).is_some());
        self.crowd(seat, port).order = order;
    }

    fn stranger(&mut self, id: LinkId) -> Option<Stranger> {
        self.link(id)?.1.stranger
    }

    /// Closes the oldest stranger. Returns false if there is none.
    fn close_oldest(&mut self, seat: u32, port: Port) -> bool {
        while let Some(id) = self.crowd(seat, port).order.pop_front() {
            let Some((index, link)) = self.link(id) else { continue };
            if link.stranger.is_some() && link.state != State::Dead {
                self.down(index, DownReason::Stranger);
                return true;
            }
        }
        false
    }

    /// Returns the earliest deadline of a silent stranger's first frame.
    pub(super) fn next_stranger(&mut self) -> Option<Time> {
        let mut next = None;
        for seat in 0..self.seats.len() as u32 {
            for port in Port::ALL {
                next = Time::earliest(next, self.next_silent(seat, port).map(|(_, until)| until));
            }
        }
        next
    }

    /// Returns the stranger that has been silent for longest, and its deadline.
    fn next_silent(&mut self, seat: u32, port: Port) -> Option<(LinkId, Time)> {
        loop {
            let id = *self.crowd(seat, port).silent.front()?;
            let up = |l: &&mut Link<N::Framer>| l.state == State::Up;
            let link = self.link(id).map(|(_, link)| link).filter(up);
            match link.and_then(|link| link.stranger?.until) {
                Some(until) => return Some((id, until)),
                None => drop(self.crowd(seat, port).silent.pop_front()),
            }
        }
    }

    /// Closes strangers whose first frame has not arrived in time.
    pub(super) fn close_silent(&mut self, now: Time) {
        for seat in 0..self.seats.len() as u32 {
            for port in Port::ALL {
                while let Some((id, until)) = self.next_silent(seat, port)
                    && until <= now
                    && let Some((index, _)) = self.link(id)
                {
                    (self.on_note)(seat as usize, now, Note::Silent { link: id });
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
