//! The link of a simulated host to an SDC, for any protocol: it is dialled, dialled again when it
//! is gone, and left unread for a while.

use base::{LinkId, Time};
use seam::{DialId, Effect, Effects, Port};
use std::net::SocketAddr;
use std::time::Duration;

/// Delay before a lost link is dialled again.
pub(crate) const AGAIN: Duration = Duration::from_millis(3);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Down { dial_at: Time },
    Dialling(DialId),
    Up(LinkId),
}

/// A link, or the intent to have one.
#[derive(Debug)]
pub(crate) struct HostLink {
    to: SocketAddr,
    port: Port,
    state: State,
    deaf_until: Option<Time>,
}

impl HostLink {
    /// Creates a link that is dialled at once.
    pub(crate) fn new(to: SocketAddr, port: Port) -> HostLink {
        HostLink { to, port, state: State::Down { dial_at: Time::ZERO }, deaf_until: None }
    }

    /// Returns its id while it is up.
    pub(crate) fn id(&self) -> Option<LinkId> {
        match self.state {
            State::Up(link) => Some(link),
            State::Down { .. } | State::Dialling(_) => None,
        }
    }

    /// Records that a dial has led to a link. Returns false if it is no dial of this one.
    pub(crate) fn is_up(&mut self, dial: Option<DialId>, link: LinkId) -> bool {
        let ours = dial.map(State::Dialling) == Some(self.state);
        if ours {
            self.state = State::Up(link);
        }
        ours
    }

    /// Records that a dial has failed, if it is one of this link.
    pub(crate) fn dial_failed(&mut self, dial: DialId, now: Time) {
        if self.state == State::Dialling(dial) {
            self.state = State::Down { dial_at: now + AGAIN * 3 };
        }
    }

    /// Gives the link up, and dials again at this time.
    pub(crate) fn give_up(&mut self, dial_at: Time) {
        (self.state, self.deaf_until) = (State::Down { dial_at }, None);
    }

    /// Leaves the link unread until this time, if it is up.
    pub(crate) fn pause(&mut self, until: Time, out: &mut Effects) {
        if let Some(link) = self.id() {
            out.push(Effect::Pause { link });
            self.deaf_until = Some(until);
        }
    }

    /// Reads and dials again when it is time. `dials` is the number of the last dial of the host.
    pub(crate) fn flush(&mut self, now: Time, dials: &mut u64, out: &mut Effects) {
        if self.deaf_until.is_some_and(|until| until <= now) {
            self.deaf_until = None;
            if let Some(link) = self.id() {
                out.push(Effect::Resume { link });
            }
        }
        if let State::Down { dial_at } = self.state
            && dial_at <= now
        {
            *dials += 1;
            let dial = DialId(*dials);
            self.state = State::Dialling(dial);
            out.push(Effect::Dial { dial, to: self.to, port: self.port });
        }
    }

    /// Returns when [`HostLink::flush`] has something to do.
    pub(crate) fn wake_at(&self) -> Option<Time> {
        match self.state {
            State::Down { dial_at } => Some(dial_at),
            _ => self.deaf_until,
        }
    }
}
