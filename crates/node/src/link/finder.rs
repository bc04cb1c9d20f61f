//! Finds the leading MDM, and keeps the only connection to it.
//!
//! A [`MdmFinder`] tries the known addresses one after the other, each with growing delays. An MDM
//! that does not lead says which one does, and that one is dialled at once. The known addresses are
//! those of the configuration and, as soon as there is a map, those of the MDMs in it. So a cluster
//! is found again after all MDMs of the configuration are gone.

use super::{Callee, Dialer};
use alloc::vec::Vec;
use base::{Limits, LinkId, Prng, Time};
use core::net::SocketAddr;
use seam::{DialId, Effects};

/// See the head of this file.
#[derive(Debug)]
pub struct MdmFinder {
    /// The addresses of the configuration.
    given: Vec<SocketAddr>,
    dialers: Vec<Dialer>,
    current: usize,
    /// The dial that is under way.
    dial: Option<DialId>,
    /// The address to dial after the present attempt has failed, or the present link is down.
    hint: Option<SocketAddr>,
    limits: Limits,
}

impl MdmFinder {
    /// Starts with these addresses, of which there is at least one.
    pub fn new(given: &[SocketAddr], limits: &Limits) -> MdmFinder {
        assert!(!given.is_empty(), "at least one MDM address");
        let dialers = given.iter().map(|to| Dialer::new(*to, Callee::Mdm, limits)).collect();
        let (given, limits) = (given.to_vec(), limits.clone());
        MdmFinder { given, dialers, current: 0, dial: None, hint: None, limits }
    }

    /// Returns the connection that is being tried or used.
    pub fn dialer(&self) -> &Dialer {
        &self.dialers[self.current]
    }

    /// Returns the same connection, mutable.
    pub fn dialer_mut(&mut self) -> &mut Dialer {
        &mut self.dialers[self.current]
    }

    /// Dials if that is due. `next_dial` is the number of the next dial.
    pub fn poll(&mut self, now: Time, next_dial: &mut u64, out: &mut Effects) {
        let dial = DialId(*next_dial);
        if self.dialer_mut().poll(now, dial, out) {
            *next_dial += 1;
            self.dial = Some(dial);
        }
    }

    /// Records that a dial has ended. Returns false if it is not the one under way here.
    pub fn dialled(&mut self, dial: DialId) -> bool {
        self.dial.take_if(|own| *own == dial).is_some()
    }

    /// True if there is more than one address.
    pub fn has_choice(&self) -> bool {
        self.dialers.len() > 1
    }

    /// Returns the number of known addresses.
    pub fn addresses(&self) -> usize {
        self.dialers.len()
    }

    /// True for the addresses of the configuration and of the map, and for those to which an MDM
    /// has referred us.
    pub fn knows(&self, address: SocketAddr) -> bool {
        self.dialers.iter().any(|d| d.address() == address)
    }

    /// Takes over the addresses of the MDMs in the map.
    pub fn learn(&mut self, members: &[SocketAddr]) {
        let present = self.dialer().address();
        let mut all: Vec<SocketAddr> = Vec::new();
        for to in members.iter().chain([&present]).chain(&self.given) {
            if !all.contains(to) {
                all.push(*to);
            }
        }
        let mut old = core::mem::take(&mut self.dialers);
        for to in &all {
            let known = old.iter().position(|d| d.address() == *to);
            let new = || Dialer::new(*to, Callee::Mdm, &self.limits);
            self.dialers.push(known.map_or_else(new, |i| old.swap_remove(i)));
        }
        self.current = all.iter().position(|to| *to == present).expect("it is among them");
    }

    /// Records that the link is down or the dial failed, and moves on to the next address.
    pub fn lost(&mut self, now: Time, prng: &mut Prng) {
        self.dialer_mut().lost(now, prng);
        self.current = (self.current + 1) % self.dialers.len();
        if let Some(leader) = self.hint.take() {
            self.go_to(leader);
        }
    }

    /// Switches to `link`, which was dialled to the MDM at `to` beside the present connection, and
    /// on which the hello was sent.
    pub fn adopt(&mut self, now: Time, to: SocketAddr, link: LinkId, prng: &mut Prng) {
        if !self.dialer().is_down() {
            self.dialer_mut().lost(now, prng);
        }
        (self.hint, self.dial) = (None, None);
        self.turn_to(to);
        self.dialer_mut().greeted(now, link);
    }

    /// Dials the MDM at `leader`, which is said to lead. A present dial or link has to end first,
    /// because a dial cannot be cancelled.
    pub fn go_to(&mut self, leader: SocketAddr) {
        if !self.dialer().is_down() {
            self.hint = Some(leader);
            return;
        }
        self.turn_to(leader);
        self.dialer_mut().hurry();
    }

    fn turn_to(&mut self, to: SocketAddr) {
        let known = self.dialers.iter().position(|d| d.address() == to);
        self.current = known.unwrap_or_else(|| {
            self.dialers.push(Dialer::new(to, Callee::Mdm, &self.limits));
            self.dialers.len() - 1
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Time;

    fn at(i: u8) -> SocketAddr {
        ([10, 0, 0, i], 7000).into()
    }

    #[test]
    fn all_mdms_are_tried_until_the_leader_is_found() {
        let (now, mut prng) = (Time(1_000_000_000), Prng::new(1));
        let mut finder = MdmFinder::new(&[at(1), at(2)], &Limits::SHIPPED);
        finder.lost(now, &mut prng);
        assert_eq!(finder.dialer().address(), at(2));
        finder.learn(&[at(2), at(3)]);
        assert_eq!(finder.dialer().address(), at(2), "a connection is kept");
        finder.lost(now, &mut prng);
        assert_eq!(finder.dialer().address(), at(3));
        finder.lost(now, &mut prng);
        assert_eq!(finder.dialer().address(), at(1), "the configuration's are not forgotten");
        finder.go_to(at(3));
        assert_eq!(
            (finder.dialer().address(), finder.dialer().wake_at()),
            (at(3), Some(Time::ZERO))
        );
    }
}
