//! Unit attentions (SAM-5 5.14): conditions that a host must be told before its next command.
//!
//! Invariant: each kind is pending at most once, and the oldest is reported first.

use super::sense::Sense;

/// The number of kinds.
const KINDS: usize = 11;

/// One kind of unit attention.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attention {
    /// This nexus is new: power on, reset, or bus device reset occurred.
    NewNexus,
    /// A logical unit reset, for every nexus.
    Reset,
    /// The former nexus of this initiator port was lost.
    NexusLoss,
    /// Mode parameters changed: the volume is writable now, or not any more.
    Mode,
    /// Another host has cleared all reservations.
    ReservationsPreempted,
    /// A reservation that this host shared is released.
    ReservationsReleased,
    /// Another host has removed this host's registration.
    RegistrationsPreempted,
    /// The access state of a path changed.
    Path,
    /// The volume has another size.
    Capacity,
    /// Another host has cleared the commands of this one.
    Cleared,
    /// INQUIRY data changed.
    Inquiry,
}

impl Attention {
    const ALL: [Attention; KINDS] = [
        Attention::NewNexus,
        Attention::Reset,
        Attention::NexusLoss,
        Attention::Mode,
        Attention::ReservationsPreempted,
        Attention::ReservationsReleased,
        Attention::RegistrationsPreempted,
        Attention::Path,
        Attention::Capacity,
        Attention::Cleared,
        Attention::Inquiry,
    ];

    /// Returns the unit attention that this sense data reports.
    pub(super) fn of(sense: &Sense) -> Option<Attention> {
        Attention::ALL.into_iter().find(|attention| attention.sense() == *sense)
    }

    /// Returns true if it is about the volume, and false if it is about the nexus or its commands.
    pub(super) fn is_of_unit(self) -> bool {
        use Attention::*;
        !matches!(self, NewNexus | Reset | NexusLoss | Cleared)
    }

    /// Returns its sense data.
    pub fn sense(self) -> Sense {
        let (asc, ascq) = match self {
            Attention::NewNexus => (0x29, 0x00),
            Attention::Reset => (0x29, 0x03),
            Attention::NexusLoss => (0x29, 0x07),
            Attention::Mode => (0x2a, 0x01),
            Attention::ReservationsPreempted => (0x2a, 0x03),
            Attention::ReservationsReleased => (0x2a, 0x04),
            Attention::RegistrationsPreempted => (0x2a, 0x05),
            Attention::Path => (0x2a, 0x06),
            Attention::Capacity => (0x2a, 0x09),
            Attention::Cleared => (0x2f, 0x00),
            Attention::Inquiry => (0x3f, 0x03),
        };
        Sense::new(6, asc, ascq)
    }
}

impl From<crate::reserve::Notice> for Attention {
    fn from(notice: crate::reserve::Notice) -> Attention {
        match notice {
            crate::reserve::Notice::ReservationsPreempted => Attention::ReservationsPreempted,
            crate::reserve::Notice::ReservationsReleased => Attention::ReservationsReleased,
            crate::reserve::Notice::RegistrationsPreempted => Attention::RegistrationsPreempted,
        }
    }
}

/// The pending unit attentions of one nexus.
#[derive(Clone, Default, Debug)]
pub(super) struct Attentions {
    waiting: [Option<Attention>; KINDS],
    len: usize,
}

impl Attentions {
    /// Adds one, unless its kind is pending already.
    pub(super) fn add(&mut self, attention: Attention) {
        if !self.waiting[..self.len].contains(&Some(attention)) {
            self.waiting[self.len] = Some(attention);
            self.len += 1;
        }
    }

    /// Takes back one that was not reported after all. It is the oldest again.
    pub(super) fn put_back(&mut self, attention: Attention) {
        if !self.waiting[..self.len].contains(&Some(attention)) {
            self.waiting.rotate_right(1);
            self.waiting[0] = Some(attention);
            self.len += 1;
        }
    }

    /// Returns the pending ones, the oldest first.
    pub(super) fn all(&self) -> impl Iterator<Item = Attention> {
        self.waiting[..self.len].iter().flatten().copied()
    }

    /// Returns the oldest.
    pub(super) fn first(&self) -> Option<Attention> {
        self.waiting[0]
    }

    /// Removes and returns the oldest.
    pub(super) fn take(&mut self) -> Option<Attention> {
        let oldest = self.waiting[0].take()?;
        self.waiting.rotate_left(1);
        self.len -= 1;
        Some(oldest)
    }
}
