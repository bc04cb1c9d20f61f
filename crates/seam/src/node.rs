//! The trait of everything that decides.

use crate::Port;
use crate::effect::Effects;
use crate::event::Event;
use crate::framer::Framer;
use base::Time;

/// A state machine that a driver runs.
///
/// **Architecture invariant:** nothing behind this trait reads a clock, a random source, the
/// environment, or a map with random order; the same events give the same effects.
pub trait Node {
    /// Cuts this node's links into frames.
    type Framer: Framer;

    /// The framer for a new link of this protocol.
    fn framer(&mut self, port: Port) -> Self::Framer;

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
