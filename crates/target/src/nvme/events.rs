//! Asynchronous events: the changes to report, and the Asynchronous Event Requests that wait for
//! them (base 5.2).
//!
//! Invariants: an event that the host has not enabled is not reported. (Notices about reservations
//! are masked by another feature.) After an event, no other event of its kind is reported until the
//! host has read the log page. The log page is generated at that moment, so it contains all changes
//! up to then.

use super::proto::*;
use super::status::Status;
use alloc::vec::Vec;

/// The most commands that wait for events.
pub(crate) const WAITING: usize = 4;
/// Types of events (base 5.2): notices, and those of the I/O command set.
const NOTICE: u8 = 2;
const COMMAND_SET: u8 = 6;

/// A kind of change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// A namespace was added or removed, or its attributes changed.
    Namespaces,
    /// The state of a path has changed.
    Paths,
    /// The discovery log has changed.
    Discovery,
    /// There is a notice about reservations.
    Reservations,
}

/// How an event is told.
struct Numbers {
    /// Its bit in the feature that enables events; 0 if it is always enabled.
    bit: u32,
    /// The log page.
    page: u8,
    /// Type, and information.
    told: [u8; 2],
}

impl Event {
    const ALL: [Event; 4] =
        [Event::Namespaces, Event::Paths, Event::Discovery, Event::Reservations];

    fn numbers(self) -> Numbers {
        let (bit, page, told) = match self {
            Event::Namespaces => (1 << 8, LOG_CHANGED, [NOTICE, 0x00]),
            Event::Paths => (1 << 11, LOG_ANA, [NOTICE, 0x03]),
            Event::Discovery => (1 << 31, LOG_DISCOVERY, [NOTICE, 0xf0]),
            Event::Reservations => (0, LOG_RESERVATIONS, [COMMAND_SET, 0x00]),
        };
        Numbers { bit, page, told }
    }

    /// Returns the bit in the feature that enables it.
    pub(crate) fn bit(self) -> u32 {
        self.numbers().bit
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
    pending: [bool; Event::ALL.len()],
    /// Reported events whose log page was not read.
    masked: [bool; Event::ALL.len()],
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
        for event in Event::ALL.into_iter().filter(|event| event.numbers().page == page) {
            (self.pending[event as usize], self.masked[event as usize]) = (false, false);
        }
    }

    /// Returns a command to answer, and dword 0 of its answer.
    pub(crate) fn take(&mut self) -> Option<(u16, u32)> {
        let tells = |event: &Event| {
            let i = *event as usize;
            let enabled = event.bit() == 0 || self.enabled & event.bit() != 0;
            self.pending[i] && !self.masked[i] && enabled
        };
        let event = Event::ALL.into_iter().find(tells)?;
        let cid = if self.waiting.is_empty() { None } else { Some(self.waiting.remove(0)) }?;
        let i = event as usize;
        (self.pending[i], self.masked[i]) = (false, true);
        let Numbers { page, told: [kind, information], .. } = event.numbers();
        Some((cid, u32::from_le_bytes([kind, information, page, 0])))
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
        events.happened(Event::Reservations);
        assert_eq!(events.take(), Some((4, 0x0080_0006)), "always enabled");
    }
}
