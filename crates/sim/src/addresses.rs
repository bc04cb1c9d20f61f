//! Addresses that change hands: servers stop, and come back at other addresses. A process that
//! knows an old address finds another server there, or none.

use crate::plan::{Death, Who};
use crate::stage::{MDM_PORT, Stage};
use crate::world::{ProcId, ProcState, World};
use std::net::SocketAddr;

impl World {
    /// Returns the address at which a process listens, if it has one.
    pub fn address(&self, id: ProcId) -> Option<SocketAddr> {
        self.addresses.iter().find(|(_, of)| **of == id).map(|(address, _)| *address)
    }

    /// Exchanges the addresses of two processes that don't run.
    fn exchange_addresses(&mut self, a: ProcId, b: ProcId) {
        for of in self.addresses.values_mut() {
            *of = if *of == a {
                b
            } else if *of == b {
                a
            } else {
                *of
            };
        }
    }

    /// Gives another address to a process that does not run. Its former address
    /// belongs to no process.
    fn readdress(&mut self, id: ProcId, address: SocketAddr) {
        self.addresses.retain(|_, of| *of != id);
        self.addresses.insert(address, id);
    }
}

impl Stage {
    /// Stops two servers, and exchanges their addresses. If both are the same one, it
    /// gets a new address.
    pub(crate) fn readdress(&mut self, i: u8, j: u8) {
        let both = [i, j].map(Who::Sds);
        let free = |i: u8| !self.tampered.contains_key(&i) && self.plan.keeps(Who::Sds(i));
        if !free(i) || !free(j) {
            return;
        }
        let death = Death { keep: true, ..Death::default() };
        both.into_iter().for_each(|who| self.crash(who, death));
        let [a, b] = both.map(|who| self.proc(who));
        // A server that is about to die in the middle of its effects still has its address.
        if [a, b].into_iter().any(|id| self.world.state(id) != ProcState::Dead) {
            return;
        }
        self.marks.meet("sim: an address changed hands");
        if a != b {
            return self.world.exchange_addresses(a, b);
        }
        self.readdressed += 1;
        let fresh = SocketAddr::from(([10, 0, 4, self.readdressed], MDM_PORT));
        self.world.readdress(a, fresh);
    }
}
