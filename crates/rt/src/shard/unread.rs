//! Bounds the unsent data of links that others dialled, for nodes that set such bounds.
//!
//! Invariant: `Seat::unread` is the sum of the unsent bytes, by protocol, of the links that are not
//! dead and have an [`Unread`].

use super::{Ready, Seat, Shard};
use crate::link::Unread;
use crate::sys::Sys;
use base::Time;
use seam::{Node, Note, Port, UnsentLimits};

impl<N: Node> Seat<N> {
    /// Returns the bound for a new link that another side dialled.
    pub(super) fn bound_unread(&self, port: Port) -> Option<Unread> {
        let bounds = self.node.unsent(port)?;
        Some(Unread { port, most: bounds.link, since: None })
    }
}

impl<N: Node, S: Sys, T: FnMut(usize, Time, Note)> Shard<N, S, T> {
    /// Adds `bytes` to the unsent bytes of a link. A link above its bound is not read.
    pub(super) fn now_waits(&mut self, now: Time, index: u32, bytes: u64) {
        let Some(link) = self.links.get_mut(index) else { return };
        let Some(unread) = &mut link.unread else { return };
        if link.output.queued > unread.most && unread.since.is_none() {
            unread.since = Some(now);
        }
        self.seats[link.seat as usize].unread[unread.port.index()] += bytes;
    }

    /// Subtracts `bytes` that the kernel accepted. At half of its bound a link is read again.
    pub(super) fn was_taken(&mut self, index: u32, bytes: u64) {
        let Some(link) = self.links.get_mut(index) else { return };
        let Some(unread) = &mut link.unread else { return };
        self.seats[link.seat as usize].unread[unread.port.index()] -= bytes;
        if unread.since.is_some() && link.output.queued <= unread.most / 2 {
            unread.since = None;
            self.ready.push_back((link.seat, Ready::Resumed(link.id)));
        }
    }

    /// Returns the bounds of the protocols whose links have too many unsent bytes in total.
    fn over_bounds(&self) -> impl Iterator<Item = (u32, Port, UnsentLimits)> {
        let seats = (0..).zip(&self.seats);
        let all = seats.flat_map(|(i, seat)| Port::ALL.map(|port| (i, seat, port)));
        all.filter_map(|(i, seat, port)| {
            let waits = seat.unread[port.index()];
            let bounds = if waits > 0 { seat.node.unsent(port) } else { None };
            bounds.filter(|bounds| waits > bounds.all).map(|bounds| (i, port, bounds))
        })
    }

    /// Returns the time at which the first link may be closed because the total is too high.
    pub(super) fn next_unread(&self) -> Option<Time> {
        let each = self.over_bounds().filter_map(|(seat, port, bounds)| {
            self.links.longest_unread(seat, port).map(|(_, since)| since + bounds.patience)
        });
        each.min()
    }

    /// Closes links as stuck while the total is too high. Begins with the link that has been unread
    /// for longest.
    pub(super) fn close_unread(&mut self, now: Time) {
        loop {
            let due = self.over_bounds().find_map(|(seat, port, bounds)| {
                let (index, since) = self.links.longest_unread(seat, port)?;
                (since + bounds.patience <= now).then_some(index)
            });
            let Some(index) = due else { return };
            self.stuck(now, index);
        }
    }
}
