//! The links of a shard, and those with which it has something to do.
//!
//! Invariants: `to_send` has each link with queued data once (`Output::listed`). `closing` has each
//! link that the node has closed until that link is dead.

use crate::link::{Link, State};
use crate::table::Table;
use base::{LinkId, Time};
use seam::Port;

pub(super) struct Links<F> {
    pub(super) table: Table<Link<F>>,
    /// Links with queued data, and links that may have to be awaited.
    pub(super) to_send: Vec<u32>,
    pub(super) to_receive: Vec<u32>,
    /// Links that the node has closed and that are still open.
    pub(super) closing: Vec<LinkId>,
}

impl<F> Links<F> {
    pub(super) fn new() -> Links<F> {
        let (to_send, to_receive, closing) = Default::default();
        Links { table: Table::new(), to_send, to_receive, closing }
    }

    /// Returns the id and the index of the next link.
    pub(super) fn next(&self) -> (LinkId, u32) {
        let (index, generation) = self.table.next();
        (LinkId((u64::from(generation) << 32 | u64::from(index)) + 1), index)
    }

    /// Returns the link with this id and its index, if it is still in the table.
    pub(super) fn of(&mut self, id: LinkId) -> Option<(u32, &mut Link<F>)> {
        let key = id.0.checked_sub(1)?;
        let (index, generation) = (key as u32, (key >> 32) as u32);
        Some((index, self.table.get_mut_of(index, generation)?))
    }

    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut Link<F>> {
        self.table.get_mut(index)
    }

    /// Makes the next batch send on this link, if it has queued data.
    pub(super) fn list_send(&mut self, index: u32) {
        let Some(link) = self.table.get_mut(index) else { return };
        if !link.output.listed && !link.output.is_empty() {
            link.output.listed = true;
            self.to_send.push(index);
        }
    }

    /// Returns the time at which the first closing link has to end.
    pub(super) fn next_closed(&mut self) -> Option<Time> {
        let mut next = None;
        for i in 0..self.closing.len() {
            let id = self.closing[i];
            if let Some((_, Link { state: State::Closing(t) | State::Finished(t), .. })) =
                self.of(id)
            {
                next = Time::earliest(next, Some(*t));
            }
        }
        next
    }

    /// Returns the link that has not been read for the longest time, and since when.
    pub(super) fn longest_unread(&self, seat: u32, port: Port) -> Option<(u32, Time)> {
        let links = self.table.entries().filter(|(_, link)| link.seat == seat);
        let unread = links.filter_map(|(index, link)| {
            let since = link.unread.filter(|unread| unread.port == port)?.since?;
            (link.state != State::Dead).then_some((index, since))
        });
        unread.min_by_key(|(_, since)| *since)
    }
}
