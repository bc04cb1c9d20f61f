//! The peers that a role dials, each with one connection.
//!
//! Invariants:
//! - [`Directory::wake_at`] is never later than the next thing to do. Whatever may change a peer
//!   resets it, and [`Directory::dial`] computes it again.
//! - Of the dials to a peer, only the newest one counts, and none to an earlier address.
//! - Each hello to a peer has a higher session number than all earlier ones (rule R8).

use super::session::session_after;
use super::{Callee, Dialer};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use base::ids::Id;
use base::{IdMap, Limits, LinkId, Prng, Time};
use core::net::SocketAddr;
use seam::{DialId, Effects};
use wire::PeerLink;
use wire::control::{Hello, Refusal};

/// A peer that is dialled, and what the role keeps about it.
#[derive(Debug)]
pub struct Peer<T> {
    /// `None` while it has no address.
    dialer: Option<Dialer>,
    /// The newest dial.
    dial: Option<DialId>,
    /// The number of the last session with it.
    session: u64,
    /// The role's own data about it.
    pub about: T,
}

impl<T> Peer<T> {
    /// Returns its address, if it has one.
    pub fn address(&self) -> Option<SocketAddr> {
        self.dialer.as_ref().map(Dialer::address)
    }

    /// Returns the connection, if the peer has an address.
    pub fn dialer(&self) -> Option<&Dialer> {
        self.dialer.as_ref()
    }

    /// Returns the same connection, mutable.
    pub fn dialer_mut(&mut self) -> Option<&mut Dialer> {
        self.dialer.as_mut()
    }

    /// Returns the link and its version if the peer has welcomed this process.
    #[inline]
    pub fn up(&self) -> Option<PeerLink> {
        self.dialer.as_ref()?.up()
    }

    /// Returns the link, whether the peer has welcomed this process or not.
    pub fn link(&self) -> Option<LinkId> {
        self.dialer.as_ref()?.link()
    }

    /// Returns when its connection has something to do.
    pub fn wake_at(&self) -> Option<Time> {
        self.dialer.as_ref()?.wake_at()
    }

    /// Records that the dial succeeded with this link, and sends the hello, with the number of the
    /// new session.
    pub fn link_up(&mut self, now: Time, link: LinkId, hello: Hello, out: &mut Effects) {
        self.session = self.session.saturating_add(1);
        let hello = Hello { session: self.session, ..hello };
        if let Some(dialer) = &mut self.dialer {
            dialer.link_up(now, link, &hello, out);
        }
    }

    /// Records the welcome. Fails as [`Dialer::admitted`] does.
    pub fn welcomed(&mut self, version: u16) -> Result<(), &'static str> {
        self.dialer.as_mut().map_or(Ok(()), |dialer| dialer.welcomed(version))
    }

    /// Records that a newer session with the peer is known there.
    pub fn superseded(&mut self, refusal: &Refusal) {
        self.session = session_after(self.session, refusal.session);
    }

    /// Records that the link is down or the dial failed.
    pub fn lost(&mut self, now: Time, prng: &mut Prng) {
        self.dialer.iter_mut().for_each(|dialer| dialer.lost(now, prng));
    }

    /// Makes the next dial due at once.
    pub fn hurry(&mut self) {
        self.dialer.iter_mut().for_each(Dialer::hurry);
    }
}

/// All peers that are dialled.
#[derive(Debug)]
pub struct Directory<K, T> {
    peers: IdMap<K, Peer<T>>,
    /// The peers of dials that have not ended.
    dials: BTreeMap<DialId, K>,
    wake_at: Option<Time>,
}

impl<K, T> Default for Directory<K, T> {
    fn default() -> Directory<K, T> {
        Directory { peers: IdMap::default(), dials: BTreeMap::new(), wake_at: None }
    }
}

impl<K: Id, T> Directory<K, T> {
    /// Returns a peer.
    #[inline]
    pub fn get(&self, key: K) -> Option<&Peer<T>> {
        self.peers.get(key)
    }

    /// Returns the link to a peer that has welcomed this process.
    #[inline]
    pub fn up(&self, key: K) -> Option<PeerLink> {
        self.get(key)?.up()
    }

    /// Iterates over all peers, in the order in which they were first wanted.
    pub fn iter(&self) -> impl Iterator<Item = (K, &Peer<T>)> {
        self.peers.iter()
    }

    /// Returns a peer that is about to change.
    pub fn change(&mut self, key: K) -> Option<&mut Peer<T>> {
        self.look_again();
        self.peers.get_mut(key)
    }

    /// Adds a peer, if it is missing, and returns it.
    pub fn want(&mut self, key: K, about: impl FnOnce() -> T) -> &mut Peer<T> {
        self.look_again();
        let make = || Peer { dialer: None, dial: None, session: 0, about: about() };
        self.peers.get_or_insert_with(key, make)
    }

    /// Sets the address of a peer. If it is another one than before, the caller has closed the link
    /// to the old one.
    pub fn locate(&mut self, key: K, callee: Callee, to: Option<SocketAddr>, limits: &Limits) {
        let Some(peer) = self.change(key).filter(|peer| peer.address() != to) else { return };
        peer.dial = None;
        peer.dialer = to.map(|to| Dialer::new(to, callee, limits));
    }

    /// Forgets a peer that is not dialled any more. The caller has closed its link.
    pub fn forget(&mut self, key: K) {
        self.peers.remove(key);
        self.look_again();
    }

    /// Makes [`Directory::dial`] look at all peers, because something changed that decides which
    /// ones to dial.
    pub fn look_again(&mut self) {
        self.wake_at = Some(Time::ZERO);
    }

    /// Returns when [`Directory::dial`] or [`Directory::mute`] has something to do.
    pub fn wake_at(&self) -> Option<Time> {
        self.wake_at
    }

    fn is_due(&self, now: Time) -> bool {
        self.wake_at.is_some_and(|at| at <= now)
    }

    /// Returns the links to peers that do not answer.
    pub fn mute(&self, now: Time) -> Vec<LinkId> {
        match self.is_due(now) {
            true => self.peers.values().filter_map(|p| p.dialer.as_ref()?.mute(now)).collect(),
            false => Vec::new(),
        }
    }

    /// Dials each peer that is due. `there` returns true for a peer that is up and at this address.
    /// No other peer is dialled: a process at a device's former address would take the hello for a
    /// new session, and end the rightful one. `next_dial` is the number of the next dial.
    pub fn dial(
        &mut self,
        now: Time,
        next_dial: &mut u64,
        there: impl Fn(K, SocketAddr) -> bool,
        out: &mut Effects,
    ) {
        if !self.is_due(now) {
            return;
        }
        self.wake_at = None;
        for (key, peer) in self.peers.iter_mut() {
            let Some(dialer) = peer.dialer.as_mut().filter(|d| there(key, d.address())) else {
                continue;
            };
            let dial = DialId(*next_dial);
            if dialer.poll(now, dial, out) {
                *next_dial += 1;
                let former = self.dials.insert(dial, key);
                assert!(former.is_none(), "each dial has a number of its own");
                peer.dial = Some(dial);
            }
            self.wake_at = Time::earliest(self.wake_at, peer.wake_at());
        }
    }

    /// Records that a dial has ended. Returns the peer that it was for, if it was for one here, and
    /// true if it counts.
    pub fn dialled(&mut self, dial: DialId) -> Option<(K, bool)> {
        let key = self.dials.remove(&dial)?;
        let peer = self.peers.get_mut(key);
        let counts = peer.is_some_and(|p| p.dial.take_if(|newest| *newest == dial).is_some());
        Some((key, counts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::DeviceId;
    use core::net::Ipv4Addr;
    use seam::{BufPool, Effect};

    struct Bench {
        directory: Directory<DeviceId, ()>,
        next_dial: u64,
        out: Effects,
    }

    impl Bench {
        fn new() -> Bench {
            let out = Effects::new(BufPool::new(1 << 20), Prng::new(1), None);
            Bench { directory: Directory::default(), next_dial: 1, out }
        }

        fn want(&mut self, device: u32, port: u16) {
            let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            self.directory.want(DeviceId(device), || ());
            let device = DeviceId(device);
            self.directory.locate(device, Callee::Device(device), Some(to), &Limits::SHIPPED);
        }

        /// Dials, and returns the ports that were dialled.
        fn dial(&mut self, now: Time, there: impl Fn(u16) -> bool) -> Vec<u16> {
            let Bench { directory, next_dial, out } = self;
            directory.dial(now, next_dial, |_, to| there(to.port()), out);
            let port = |effect| match effect {
                Effect::Dial { to, .. } => to.port(),
                other => panic!("{other:?} is no dial"),
            };
            out.drain().map(port).collect()
        }
    }

    #[test]
    fn peers_that_are_up_and_due_are_dialled_and_none_is_forgotten() {
        let now = Time(1_000_000_000);
        let mut bench = Bench::new();
        (1..3).for_each(|i| bench.want(i, i as u16));
        assert_eq!(bench.dial(now, |_| false), []);
        assert_eq!(bench.directory.wake_at(), None, "none is up");
        bench.directory.look_again();
        assert_eq!(bench.dial(now, |_| true), [1, 2]);
        assert_eq!(bench.directory.wake_at(), None, "both are on their way");
        bench.directory.change(DeviceId(2)).unwrap().lost(now, &mut Prng::new(2));
        assert_eq!(bench.dial(now, |_| true), []);
        let again = bench.directory.wake_at().expect("it is dialled again");
        assert_eq!(bench.dial(again, |_| true), [2]);
    }

    #[test]
    fn a_peer_that_is_forgotten_is_gone_and_a_dial_to_it_does_not_count() {
        let mut bench = Bench::new();
        (1..4).for_each(|i| bench.want(i, i as u16));
        assert_eq!(bench.dial(Time(1), |_| true), [1, 2, 3]);
        bench.directory.forget(DeviceId(2));
        let left: Vec<DeviceId> = bench.directory.iter().map(|(device, _)| device).collect();
        assert_eq!(left, [DeviceId(1), DeviceId(3)]);
        assert!(bench.directory.get(DeviceId(2)).is_none());
        assert_eq!(bench.directory.dialled(DialId(2)), Some((DeviceId(2), false)));
        assert_eq!(bench.directory.dialled(DialId(3)), Some((DeviceId(3), true)));
    }

    #[test]
    fn a_peer_that_has_moved_is_not_dialled_where_it_was() {
        let mut bench = Bench::new();
        bench.want(1, 1);
        assert_eq!(bench.dial(Time(1), |port| port == 2), []);
        bench.directory.look_again();
        assert_eq!(bench.dial(Time(1), |_| true), [1]);
        bench.want(1, 2);
        assert_eq!(bench.dial(Time(1), |port| port == 2), [2]);
        assert_eq!(bench.directory.dialled(DialId(1)), Some((DeviceId(1), false)));
        assert_eq!(bench.directory.dialled(DialId(2)), Some((DeviceId(1), true)));
        assert_eq!(bench.directory.dialled(DialId(2)), None);
    }
}
