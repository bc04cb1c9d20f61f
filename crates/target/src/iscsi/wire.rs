//! The connection of a session: sequence numbers, digests, and outgoing PDUs.
//!
//! Invariants:
//! - Commands are accepted in the order of their CmdSN (RFC 7143 4.2.2.1). One that was accepted
//!   already, or that lies beyond the window, is dropped. TCP loses nothing, so a missing number is
//!   an error of the initiator, unless it has aborted that command.
//! - The upper end of the window never moves back: an outstanding command makes the window smaller.
//! - No action follows [`Action::Close`].

use super::digest;
use super::framer::Mode;
use super::proto::*;
use super::reply::Reply;
use crate::Action;
use alloc::vec::Vec;
use base::crc::crc32c;
use seam::{Buf, BufPool, Head};

/// Numbers and digests of a session.
#[derive(Debug)]
pub(crate) struct Wire {
    /// The negotiated digests of heads and data.
    pub(crate) mode: Mode,
    /// The number of the next status (StatSN).
    stat_sn: u32,
    /// The number of the next command (ExpCmdSN).
    next: u32,
    /// Most commands that may be outstanding.
    window: u32,
    /// Commands that are outstanding.
    outstanding: u32,
    /// Numbers of commands that were aborted before they arrived. None is below `next`.
    skipped: Vec<u32>,
    /// `Action::Close` was emitted.
    closed: bool,
}

/// The treatment of a request, by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// Execute it: it is the next one.
    Take,
    /// Drop it: it is outside of the window, or was accepted already.
    Drop,
    /// Close the connection: a request before it is missing.
    Gap,
}

impl Wire {
    /// Creates the numbers of a session that takes `window` commands at once.
    pub(crate) fn new(window: u32) -> Wire {
        Wire {
            mode: Mode::default(),
            stat_sn: 1,
            next: 0,
            window,
            outstanding: 0,
            skipped: Vec::new(),
            closed: false,
        }
    }

    /// Sets the number of the first command, which is that of the first login request.
    pub(crate) fn begin(&mut self, cmd_sn: u32) {
        self.next = cmd_sn;
    }

    /// Returns the number of the last command in the window (MaxCmdSN).
    fn last(&self) -> u32 {
        self.next.wrapping_add(self.window - self.outstanding).wrapping_sub(1)
    }

    /// Returns true if a command with this number may still arrive.
    pub(crate) fn is_expected(&self, cmd_sn: u32) -> bool {
        not_before(cmd_sn, self.next) && not_before(self.last(), cmd_sn)
    }

    /// Takes the number of a request that is not immediate.
    #[inline]
    pub(crate) fn take(&mut self, cmd_sn: u32) -> Order {
        if cmd_sn != self.next {
            let drop = !self.is_expected(cmd_sn) || self.skipped.contains(&cmd_sn);
            return if drop { Order::Drop } else { Order::Gap };
        }
        if self.outstanding >= self.window {
            return Order::Drop; // beyond the window
        }
        self.advance();
        Order::Take
    }

    fn advance(&mut self) {
        self.next = self.next.wrapping_add(1);
        if self.skipped.is_empty() {
            return;
        }
        while let Some(at) = self.skipped.iter().position(|sn| *sn == self.next) {
            self.skipped.swap_remove(at);
            self.next = self.next.wrapping_add(1);
        }
    }

    /// Counts a command that was aborted before it arrived as accepted.
    pub(crate) fn skip(&mut self, cmd_sn: u32) {
        if cmd_sn == self.next {
            self.advance();
        } else if !self.skipped.contains(&cmd_sn) {
            self.skipped.push(cmd_sn);
        }
    }

    /// Returns how many commands that were aborted before they arrived are remembered.
    pub(crate) fn skipped(&self) -> usize {
        self.skipped.len()
    }

    /// Counts an accepted command as outstanding.
    pub(crate) fn opened(&mut self) {
        self.outstanding += 1;
    }

    /// Counts the answer to a command.
    pub(crate) fn ended(&mut self) {
        self.outstanding -= 1;
    }

    /// Returns true after [`Action::Close`] was emitted.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }
}

/// The arguments that a session needs in one call.
pub(crate) struct Turn<'a> {
    /// Its connection.
    pub(crate) wire: &'a mut Wire,
    /// Memory for answers.
    pub(crate) pool: &'a BufPool,
    /// The actions for the owner.
    pub(crate) out: &'a mut Vec<Action>,
}

impl Turn<'_> {
    /// Asks the owner for something.
    #[inline]
    pub(crate) fn ask(&mut self, action: Action) {
        if !self.wire.closed {
            self.out.push(action);
        }
    }

    /// Closes the connection.
    pub(crate) fn close(&mut self, why: Option<&'static str>) {
        self.ask(Action::Close { why });
        self.wire.closed = true;
    }

    /// Returns the header of a PDU, with its numbers and its digest.
    #[inline]
    fn head(&mut self, reply: Reply, data: usize) -> Head {
        let wire = &mut *self.wire;
        let bhs = reply.numbers(data, wire.stat_sn, wire.next, wire.last());
        if reply.counts {
            wire.stat_sn = wire.stat_sn.wrapping_add(1);
        }
        let mut head = Head::new(&bhs);
        if wire.mode.header_digest {
            head.push(&crc32c(&bhs).to_le_bytes());
        }
        head
    }

    /// Sends a PDU without data.
    #[inline]
    pub(crate) fn send(&mut self, reply: Reply) {
        let head = self.head(reply, 0);
        self.ask(Action::Send { head, body: Buf::EMPTY });
    }

    /// Sends a PDU with little data.
    pub(crate) fn send_small(&mut self, reply: Reply, data: &[u8]) {
        let mut head = self.head(reply, data.len());
        if head.len() + data.len() + 3 + DIGEST > Head::MAX {
            self.ask(Action::Send { head, body: self.pool.copy(data) });
            head = Head::EMPTY;
        } else {
            head.push(data);
        }
        digest::end(self.wire.mode, data, &mut head);
        if !head.is_empty() {
            self.ask(Action::Send { head, body: Buf::EMPTY });
        }
    }

    /// Sends a PDU with data, which is not copied.
    #[inline]
    pub(crate) fn send_data(&mut self, reply: Reply, body: Buf) {
        let (mode, ends) = (self.wire.mode, self.wire.mode.trailer(body.len()) > 0);
        let trailer = ends.then(|| digest::trailer(mode, &body));
        let head = self.head(reply, body.len());
        self.ask(Action::Send { head, body });
        if let Some(head) = trailer {
            self.ask(Action::Send { head, body: Buf::EMPTY });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_come_in_order_and_within_the_window() {
        let mut wire = Wire::new(4);
        wire.begin(u32::MAX - 1);
        assert_eq!(wire.take(u32::MAX), Order::Gap);
        assert_eq!(wire.take(2), Order::Drop, "beyond the window");
        for sn in [u32::MAX - 1, u32::MAX, 0, 1] {
            assert_eq!(wire.take(sn), Order::Take);
            wire.opened();
        }
        assert_eq!(wire.take(2), Order::Drop, "four are not answered");
        assert_eq!(wire.take(1), Order::Drop, "taken already");
        wire.ended();
        assert_eq!(wire.take(2), Order::Take);
    }

    #[test]
    fn aborted_commands_leave_no_gap() {
        let mut wire = Wire::new(4);
        wire.begin(10);
        wire.skip(11);
        wire.skip(12);
        assert_eq!(wire.take(11), Order::Drop, "it was aborted");
        assert_eq!(wire.take(10), Order::Take);
        assert_eq!(wire.take(13), Order::Take);
        wire.skip(14);
        assert_eq!(wire.take(15), Order::Take);
        assert!(wire.skipped.is_empty());
    }
}
