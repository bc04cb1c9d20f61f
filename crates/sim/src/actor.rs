//! [`Node`]s as trait objects, so that one world runs all roles.

use base::Time;
use seam::{Effects, Event, Framer, Node, Port, Strangers};
use std::any::Any;

/// A [`Node`] behind a trait object, which can be downcast to its type.
pub trait Actor: Any {
    /// See [`Node::framer`].
    fn framer(&mut self, port: Port) -> Box<dyn Framer>;
    /// See [`Node::strangers`].
    fn strangers(&self, port: Port) -> Option<Strangers>;
    /// See [`Node::on`].
    fn on(&mut self, now: Time, event: Event<'_>, out: &mut Effects);
    /// See [`Node::flush`].
    fn flush(&mut self, now: Time, out: &mut Effects);
    /// See [`Node::wake_at`].
    fn wake_at(&self) -> Option<Time>;
    /// Returns the node as `Any`, to look into it.
    fn as_any(&self) -> &dyn Any;
    /// Returns the node as `Any`, to take it over.
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

impl<N: Node + 'static> Actor for N
where
    N::Framer: 'static,
{
    fn framer(&mut self, port: Port) -> Box<dyn Framer> {
        Box::new(Node::framer(self, port))
    }
    fn strangers(&self, port: Port) -> Option<Strangers> {
        Node::strangers(self, port)
    }
    fn on(&mut self, now: Time, event: Event<'_>, out: &mut Effects) {
        Node::on(self, now, event, out);
    }
    fn flush(&mut self, now: Time, out: &mut Effects) {
        Node::flush(self, now, out);
    }
    fn wake_at(&self) -> Option<Time> {
        Node::wake_at(self)
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
