//! Asynchronous events: the changes to report, and the Asynchronous Event Requests that wait for
//! them (base 5.2).
//!
//! Invariants: an event that the host has not enabled is not reported. After an event, no other
//! event of its kind is reported until the host has read the log page. The log page is generated at
//! that moment, so it contains all changes up to then.

use super::status::Status;
use alloc::vec::Vec;

/// The most commands that wait for events.
pub(crate) const WAITING: usize = 4;
/// Notices, a type of events (base 5.2).
const NOTICE: u32 = 2;

/// A kind of change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// A namespace was added or removed, or its attributes changed.
    Namespaces,
    /// The state of a path has changed.
    Paths,
    /// The discovery log has changed.
    Discovery,
}

impl Event {
    const ALL: [Event; 3] = [Event::Namespaces, Event::Paths, Event::Discovery];

    /// Returns its bit in the feature that enables events, the log page, and the notice's number.
    fn numbers(self) -> (u32, u8, u8) {
        match self {
            Event::Namespaces => (1 << 8, super::proto::LOG_CHANGED, 0x00),
            Event::Paths => (1 << 11, super::proto::LOG_ANA, 0x03),
            Event::Discovery => (1 << 31, super::proto::LOG_DISCOVERY, 0xf0),
        }
    }

    /// Returns the bit in the feature that enables it.
    pub(crate) fn bit(self) -> u32 {
        self.numbers().0
    }
}

/// The events of a controller.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// The events that the host has enabled.
    pub(crate) enabled: u32,
    /// The waiting commands.
    waiting: Vec<u16>,
    /// Events that have happened and are not reported.
    pending: [bool; 3],
    /// Reported events whose log page was not read.
    masked: [bool; 3],
}

impl Events {
    /// Returns the number of commands that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Adds a command that waits for an event.
    pub(crate) fn wait(&mut self, cid: u16) -> Result<(), Status> {
        if self.waiting.len() >= WAITING {
            return Err(Status::TOO_MANY_EVENTS);
        }
        self.waiting.push(cid);
        Ok(())
    }

    /// Records that something has changed.
    pub(crate) fn happened(&mut self, event: Event) {
        self.pending[event as usize] = true;
    }

    /// Records that the host has read this log page.
    pub(crate) fn read(&mut self, page: u8) {
        for event in Event::ALL.into_iter().filter(|event| event.numbers().1 == page) {
            (self.pending[event as usize], self.masked[event as usize]) = (false, false);
        }
    }

    /// Returns a command to answer, and dword 0 of its answer.
    pub(crate) fn take(&mut self) -> Option<(u16, u32)> {
        let tells = |event: &Event| {
            let i = *event as usize;
            self.pending[i] && !self.masked[i] && self.enabled & event.bit() != 0
        };
        let event = Event::ALL.into_iter().find(tells)?;
        let cid = if self.waiting.is_empty() { None } else { Some(self.waiting.remove(0)) }?;
        let i = event as usize;
        (self.pending[i], self.masked[i]) = (false, true);
        let (_, page, notice) = event.numbers();
        Some((cid, NOTICE | u32::from(notice) << 8 | u32::from(page) << 16))
    }

    /// Forgets everything: the controller is reset.
    pub(crate) fn clear(&mut self) {
        *self = Events::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_told_once_until_its_page_is_read() {
        let mut events = Events { enabled: Event::Namespaces.bit(), ..Events::default() };
        events.happened(Event::Namespaces);
        events.happened(Event::Paths);
        assert_eq!(events.take(), None, "nobody waits");
        for cid in 1..=4 {
            assert_eq!(events.wait(cid), Ok(()));
        }
        assert_eq!(events.wait(5), Err(Status::TOO_MANY_EVENTS));
        assert_eq!(events.take(), Some((1, 0x0004_0002)));
        events.happened(Event::Namespaces);
        assert_eq!(events.take(), None, "masked; and paths are not enabled");
        events.read(super::super::proto::LOG_CHANGED);
        assert_eq!(events.take(), None, "the page had the second change, too");
        events.happened(Event::Namespaces);
        assert_eq!(events.take(), Some((2, 0x0004_0002)));
        events.enabled |= Event::Paths.bit();
        assert_eq!((events.take(), events.waiting()), (Some((3, 0x000c_0302)), 1));
    }
}
