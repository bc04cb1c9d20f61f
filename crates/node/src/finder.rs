//! Finds the MDM that leads, and keeps the one connection to it.
//!
//! It tries the addresses that it knows, one after the other, each with growing delays. An MDM that doesn't
//! lead says who does: there it goes at once. The addresses are those of the configuration and, once there is a
//! map, of the MDMs in it, so that a cluster is found again whose first MDMs are gone.

use crate::links::Dialer;
use alloc::vec::Vec;
use base::{Limits, LinkId, Prng, Time};
use core::net::SocketAddr;

/// See the file's head.
#[derive(Debug)]
pub struct Finder {
    /// Those of the configuration.
    given: Vec<SocketAddr>,
    dialers: Vec<Dialer>,
    current: usize,
    /// Where to go when the present try has come to nothing.
    hint: Option<SocketAddr>,
    limits: Limits,
}

impl Finder {
    /// Begins with these addresses, of which there is at least one.
    pub fn new(given: &[SocketAddr], limits: &Limits) -> Finder {
        assert!(!given.is_empty(), "at least one MDM address");
        let dialers = given.iter().map(|to| Dialer::to_mdm(*to, limits)).collect();
        Finder { given: given.to_vec(), dialers, current: 0, hint: None, limits: limits.clone() }
    }

    /// The one that is tried, or used.
    pub fn dialer(&self) -> &Dialer {
        &self.dialers[self.current]
    }

    /// The same, to be changed.
    pub fn dialer_mut(&mut self) -> &mut Dialer {
        &mut self.dialers[self.current]
    }

    /// True when there is more than one to try.
    pub fn has_choice(&self) -> bool {
        self.dialers.len() > 1
    }

    /// True for the addresses of the configuration and of the map, and for where one of those has sent us.
    pub fn knows(&self, address: SocketAddr) -> bool {
        self.dialers.iter().any(|d| d.address() == address)
    }

    /// The map names these MDMs.
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
            let new = || Dialer::to_mdm(*to, &self.limits);
            self.dialers.push(known.map_or_else(new, |i| old.swap_remove(i)));
        }
        self.current = all.iter().position(|to| *to == present).expect("it is among them");
    }

    /// The connection is gone, or came to nothing: the next one.
    pub fn lost(&mut self, now: Time, prng: &mut Prng) {
        self.dialer_mut().lost(now, prng);
        self.current = (self.current + 1) % self.dialers.len();
        if let Some(leader) = self.hint.take() {
            self.go_to(leader);
        }
    }

    /// A link to this MDM, which was dialled beside and greeted, becomes the one that is used.
    pub fn adopt(&mut self, now: Time, to: SocketAddr, link: LinkId, prng: &mut Prng) {
        if !self.dialer().is_down() {
            self.dialer_mut().lost(now, prng);
        }
        self.hint = None;
        self.turn_to(to);
        self.dialer_mut().greeted(now, link);
    }

    /// Somebody says that this one leads. It is dialled now, or when the dial that is under way comes to nothing:
    /// a dial is not taken back.
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
            self.dialers.push(Dialer::to_mdm(to, &self.limits));
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
    fn it_tries_all_and_goes_where_the_leader_is() {
        let (now, mut prng) = (Time(1_000_000_000), Prng::new(1));
        let mut finder = Finder::new(&[at(1), at(2)], &Limits::SHIPPED);
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
