//! The roles that probes play.

mod disk;
mod hole;
mod link;
mod reframe;
mod strangers;
mod stream;

pub(super) use disk::Writer;
pub(super) use hole::Puncher;
pub(super) use link::{Churner, Closer, Dialer, Flooder, Teller, Ticker, Torn};
pub(super) use reframe::{Answerer, Asker};
pub(super) use strangers::{Guest, Host};
pub(super) use stream::{Pauser, Stream};

use super::probe::Stage;
use crate::event::Event;
use crate::node::Strangers;
use alloc::string::String;
use base::Time;

/// A role in a scenario. `start` comes with the first tick; links may come up before that.
pub(super) trait Role: Send {
    fn start(&mut self, _stage: &mut Stage<'_>) {}
    fn on(&mut self, event: Event<'_>, stage: &mut Stage<'_>);
    fn flush(&mut self, _stage: &mut Stage<'_>) {}
    fn strangers(&self) -> Option<Strangers> {
        None
    }
    fn wake_at(&self) -> Option<Time> {
        None
    }
    fn is_done(&self) -> bool;
    /// Returns the progress in a few words.
    fn status(&self) -> String;
}
