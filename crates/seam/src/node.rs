//! The trait of everything that decides.

use crate::Port;
use crate::effect::Effects;
use crate::event::Event;
use crate::framer::Framer;
use base::Time;
use core::time::Duration;

/// What a driver allows a stranger: a link that another side dialled, until [`crate::Effect::Welcome`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Strangers {
    /// How many there may be at one node and protocol. When one more comes, the oldest goes: so those
    /// that say nothing never keep out who has something to say. At least 1.
    pub most: u32,
    /// Bytes of a body. A longer one is garbage, and no memory is spent on it.
    pub body: u32,
    /// The time in which the first whole frame has to come.
    pub patience: Duration,
}

/// What may wait for those who dialled one protocol of a node and don't take what is sent to them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unsent {
    /// Bytes that may wait for one link. While there are more, and until half of that is left, nothing
    /// is read from it: so whoever asks and takes no answers soon can't ask any more.
    pub link: u64,
    /// Bytes that may wait for all of these links. While there are more, those links that have not been
    /// read for `patience` are given up as stuck, the longest first.
    pub all: u64,
    /// See `all`.
    pub patience: Duration,
}

/// A state machine that a driver runs.
///
/// **Architecture invariant:** nothing behind this trait reads a clock, a random source, the
/// environment, or a map with random order; the same events give the same effects.
pub trait Node {
    /// Cuts this node's links into frames.
    type Framer: Framer;

    /// The framer for a new link of this protocol.
    fn framer(&mut self, port: Port) -> Self::Framer;

    /// What links of this protocol may do that another side dialled, until the node welcomes them.
    /// `None`: whatever any link may.
    fn strangers(&self, _port: Port) -> Option<Strangers> {
        None
    }

    /// What may wait for links of this protocol that another side dialled. `None`: only
    /// `Limits::link_queue` bounds it.
    fn unsent(&self, _port: Port) -> Option<Unsent> {
        None
    }

    /// Consumes one event. Never blocks, does bounded work. `now` is never earlier than the moment
    /// at which the event's data arrived in this process: a lease check against `now` counts.
    fn on(&mut self, now: Time, event: Event<'_>, out: &mut Effects);

    /// Ends a batch of events: sends what `on` put off, so that batching is a property of the core
    /// and the simulator tests it. Called at least once after each batch that had an event for this
    /// node, before the driver waits; and once before the first event.
    fn flush(&mut self, now: Time, out: &mut Effects);

    /// When the driver must deliver [`Event::Tick`] next; it asks after each `flush`. Never early.
    fn wake_at(&self) -> Option<Time>;

    /// The process is to end: put things in order. A `flush` follows, and events as before.
    fn stop(&mut self) {}

    /// After [`Node::stop`]: true when everything is in order, and the driver may end. It also does when
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

    fn unsent(&self, port: Port) -> Option<Unsent> {
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
