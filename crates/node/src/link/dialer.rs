//! One connection that a role needs: it is dialled, greeted with a hello, and dialled again with
//! growing delays. A [`Dialer`] does not know what the link is for.

use super::handshake::{Answer, Callee, send_hello};
use crate::refusals::TWICE;
use base::{ClusterId, Dialect, Limits, LinkId, Mutant, Prng, Time, mutant};
use core::net::SocketAddr;
use core::time::Duration;
use seam::{DialId, Effect, Effects, Port};
use wire::control::Hello;
use wire::{Frame, PeerLink};

/// The state of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// There is no link. It is dialled at `retry_at`.
    Down { retry_at: Time },
    /// The dial is under way.
    Dialing,
    /// There is a link, and our hello was sent.
    Greeting(LinkId),
    /// The hello was accepted, and the link has a protocol version.
    Up(PeerLink),
}

/// One connection that a role needs.
#[derive(Debug)]
pub struct Dialer {
    to: SocketAddr,
    callee: Callee,
    state: State,
    /// The time by which the peer has to answer the last question.
    answer_by: Option<Time>,
    patience: Duration,
    delay: Duration,
    min: Duration,
    max: Duration,
}

impl Dialer {
    /// Creates a connection to `callee` at this address, which is dialled at the next
    /// [`Dialer::poll`].
    pub fn new(to: SocketAddr, callee: Callee, limits: &Limits) -> Dialer {
        let (min, max) = (limits.redial_min, limits.redial_max);
        let patience = match callee {
            // An MDM has no reason to wait, and there are others.
            Callee::Mdm => limits.hello_within,
            // The server may wait for half of this time until its map has this process.
            Callee::Device(_) => limits.hello_within * 2,
        };
        let state = State::Down { retry_at: Time::ZERO };
        Dialer { to, callee, state, answer_by: None, patience, delay: min, min, max }
    }

    /// Returns the address that is dialled.
    pub fn address(&self) -> SocketAddr {
        self.to
    }

    /// Dials if that is due, and returns true if it did. `dial` identifies the attempt and must
    /// never have been used before.
    pub fn poll(&mut self, now: Time, dial: DialId, out: &mut Effects) -> bool {
        match self.state {
            State::Down { retry_at } if retry_at <= now => {
                self.state = State::Dialing;
                out.push(Effect::Dial { dial, to: self.to, port: Port::Ours });
                true
            }
            _ => false,
        }
    }

    /// Returns when `poll` or [`Dialer::mute`] has something to do. `None` during a dial, and on a
    /// link without an open question.
    pub fn wake_at(&self) -> Option<Time> {
        match self.state {
            State::Down { retry_at } => Some(retry_at),
            _ => self.answer_by.filter(|_| !mutant::on(Mutant::AwaitMute)),
        }
    }

    /// Returns the link if its peer takes too long to answer. The caller closes it, and calls
    /// [`Dialer::lost`]. Either the peer's process hangs while its host still acknowledges data, or
    /// the host was restarted and does not know this connection.
    pub fn mute(&self, now: Time) -> Option<LinkId> {
        let late = self.answer_by.is_some_and(|by| by <= now) && !mutant::on(Mutant::AwaitMute);
        self.link().filter(|_| late)
    }

    /// Records that the dial succeeded with this link, and sends the hello.
    pub fn link_up(&mut self, now: Time, link: LinkId, hello: &Hello, out: &mut Effects) {
        self.greeted(now, link);
        send_hello(link, hello, out);
    }

    /// Records that `link` is the connection, and that our hello was sent.
    pub fn greeted(&mut self, now: Time, link: LinkId) {
        self.state = State::Greeting(link);
        self.asked(now);
    }

    /// Records that the peer was asked something that it has to answer at once.
    pub fn asked(&mut self, now: Time) {
        self.answer_by = Some(now + self.patience);
    }

    /// Reads a frame of the link. `None` if it belongs to no handshake.
    pub fn answer(
        &self,
        dialect: &Dialect,
        cluster: ClusterId,
        frame: &Frame,
        body: &[u8],
    ) -> Option<Answer> {
        self.callee.answer(dialect, cluster, frame, body)
    }

    /// Records a welcome after which nothing else can be refused. `version` is what both sides
    /// speak. Fails as [`Dialer::admitted`] does.
    pub fn welcomed(&mut self, version: u16) -> Result<(), &'static str> {
        self.admitted(version)?;
        self.settled();
        Ok(())
    }

    /// Records a welcome after which the peer may still refuse the next message. The redial delay
    /// keeps growing until [`Dialer::settled`].
    ///
    /// Fails, with the reason for closing the link, if the peer has welcomed this process before:
    /// another welcome would change the version of a link that is in use.
    pub fn admitted(&mut self, version: u16) -> Result<(), &'static str> {
        let State::Greeting(link) = self.state else { return Err(TWICE) };
        self.state = State::Up(PeerLink::new(link, version));
        self.answer_by = None;
        Ok(())
    }

    /// Records that nothing was refused. If this link is lost, the first redial comes soon.
    pub fn settled(&mut self) {
        (self.delay, self.answer_by) = (self.min, None);
    }

    /// Records that the dial failed or the link is down, and schedules the next attempt. The delay
    /// doubles each time and is extended by a random part, up to a half, so that many clients of
    /// one dead server do not return at once.
    pub fn lost(&mut self, now: Time, prng: &mut Prng) {
        let spread = prng.below(self.delay.as_nanos() as u64 / 2 + 1);
        self.state = State::Down { retry_at: now + self.delay + Duration::from_nanos(spread) };
        self.answer_by = None;
        self.delay = (self.delay * 2).min(self.max);
    }

    /// Puts the next dial off until this time.
    pub fn rest(&mut self, until: Time) {
        if let State::Down { retry_at } = &mut self.state {
            *retry_at = until.max(*retry_at);
        }
    }

    /// Makes the next dial due at once, because there is news about the peer.
    pub fn hurry(&mut self) {
        self.delay = self.min;
        if let State::Down { retry_at } = &mut self.state {
            *retry_at = Time::ZERO;
        }
    }

    /// True if there is neither a link nor a dial.
    pub fn is_down(&self) -> bool {
        matches!(self.state, State::Down { .. })
    }

    /// Returns the link and its version if the hello was accepted.
    pub fn up(&self) -> Option<PeerLink> {
        match self.state {
            State::Up(link) => Some(link),
            _ => None,
        }
    }

    /// Returns the link, whether the hello was accepted or not.
    pub fn link(&self) -> Option<LinkId> {
        match self.state {
            State::Greeting(link) => Some(link),
            State::Up(link) => Some(link.id),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seam::BufPool;

    #[test]
    fn a_link_is_welcomed_once() {
        let (now, mut out) = (Time(1), Effects::new(BufPool::new(1 << 16), Prng::new(1), None));
        let mut dialer = Dialer::new(([10, 0, 0, 1], 7000).into(), Callee::Mdm, &Limits::SHIPPED);
        assert_eq!(dialer.welcomed(1), Err(TWICE), "it is not even dialled");
        for link in [LinkId(4), LinkId(5)] {
            dialer.hurry();
            assert!(dialer.poll(now, DialId(link.0), &mut out));
            dialer.link_up(now, link, &Hello::default(), &mut out);
            assert_eq!(dialer.admitted(1), Ok(()));
            assert_eq!((dialer.admitted(2), dialer.welcomed(2)), (Err(TWICE), Err(TWICE)));
            assert_eq!(dialer.up(), Some(PeerLink::new(link, 1)));
            dialer.lost(now, out.prng());
        }
    }
}
