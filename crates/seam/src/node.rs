//! The trait of all state machines that make decisions.

use crate::Port;
use crate::effect::Effects;
use crate::event::Event;
use crate::framer::Framer;
use base::Time;
use core::time::Duration;

/// Limits on a stranger: a link that another side dialled, until [`crate::Effect::Welcome`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Strangers {
    /// Most strangers per node and protocol, at least 1. One more replaces the oldest, so that
    /// silent strangers never keep out a peer that has something to send.
    pub most: u32,
    /// Longest body in bytes. A longer one is `Garbage`, and no memory is allocated for it.
    pub body: u32,
    /// Time within which the first whole frame has to arrive.
    pub patience: Duration,
}

/// Limits on unsent data for peers that dialled one protocol of a node and do not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnsentLimits {
    /// Bytes that may wait for one link. Above that, the driver does not read from the link until
    /// only half is left. So a peer that does not take its answers soon can't ask for more.
    pub link: u64,
    /// Bytes that may wait for all of these links. Above that, the driver closes links as stuck
    /// that it has not read for `patience`, starting with the longest pause.
    pub all: u64,
    /// How long a link must not have been read before `all` may close it.
    pub patience: Duration,
}

/// A state machine that a driver runs.
///
/// **Architecture invariant:** nothing behind this trait reads a clock, a random source, the
/// environment, or a map with random order. The same events give the same effects.
pub trait Node {
    /// The type that splits this node's links into frames.
    type Framer: Framer;

    /// Returns the framer for a new link of this protocol.
    fn framer(&mut self, port: Port) -> Self::Framer;

    /// Returns the limits on links of this protocol that another side dialled, until the node
    /// welcomes them. `None`: no limits besides those of all links.
    fn strangers(&self, _port: Port) -> Option<Strangers> {
        None
    }

    /// Returns the limits on unsent data for links of this protocol that another side dialled.
    /// `None`: only `Limits::link_queue` applies.
    fn unsent(&self, _port: Port) -> Option<UnsentLimits> {
        None
    }

    /// Handles one event. Never blocks and does bounded work. `now` is never earlier than the
    /// moment at which the event's data arrived in this process, so lease checks may use `now`.
    fn on(&mut self, now: Time, event: Event<'_>, out: &mut Effects);

    /// Ends a batch of events and sends what `on` deferred. Batching is thus a property of the
    /// node, and the simulator tests it. Called at least once after each batch that had an event
    /// for this node, before the driver waits; and once before the first event.
    fn flush(&mut self, now: Time, out: &mut Effects);

    /// Returns the time of the next [`Event::Tick`], which never comes early. Called after each
    /// `flush`.
    fn wake_at(&self) -> Option<Time>;

    /// Asks the node to prepare for the end of the process. A `flush` follows, and events continue.
    fn stop(&mut self) {}

    /// After [`Node::stop`]: returns true once the node is ready to end. The driver also ends if
    /// that takes some seconds: a crash at any moment must be harmless.
    fn is_stopped(&self) -> bool {
        true
    }
}

impl<N: Node> Node for &mut N {
    type Framer = N::Framer;

    fn framer(&mut self, port: Port) -> N::Framer {
        (**self).framer(port)
    }

    fn strangers(&self, port: Port) -> Option<Strangers> {
        (**self).strangers(port)
    }

    fn unsent(&self, port: Port) -> Option<UnsentLimits> {
        (**self).unsent(port)
    }

    #[inline]
    fn on(&mut self, now: Time, event: Event<'_>, out: &mut Effects) {
        (**self).on(now, event, out);
    }

    #[inline]
    fn flush(&mut self, now: Time, out: &mut Effects) {
        (**self).flush(now, out);
    }

    #[inline]
    fn wake_at(&self) -> Option<Time> {
        (**self).wake_at()
    }

    fn stop(&mut self) {
        (**self).stop();
    }

    fn is_stopped(&self) -> bool {
        (**self).is_stopped()
    }
}
