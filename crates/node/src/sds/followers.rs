//! The devices that a shard dials: the secondaries and joiners in groups of which it is the
//! primary.
//!
//! Invariant: `dial_at` is never later than the next dial. Every change of a dialer goes through
//! `change`, `want` or `look_again`, which reset it, and `due` computes it again.

use crate::links::Dialer;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use base::{DeviceId, Limits, LinkId, Time};
use core::net::SocketAddr;
use wire::PeerLink;

/// A device that is dialled.
#[derive(Debug)]
pub(super) struct Follower {
    pub(super) dialer: Dialer,
    /// The last dial was refused.
    pub(super) refused: bool,
    /// The number of the last session with the device.
    pub(super) session: u64,
}

impl Follower {
    fn new(address: SocketAddr, limits: &Limits) -> Follower {
        Follower { dialer: Dialer::new(address, limits), refused: false, session: 0 }
    }
}

/// All devices that are dialled.
#[derive(Debug, Default)]
pub(super) struct Followers {
    followers: BTreeMap<DeviceId, Follower>,
    /// `due` and `mute` have nothing to do before this time.
    pub(super) dial_at: Option<Time>,
}

impl Followers {
    pub(super) fn get(&self, device: DeviceId) -> Option<&Follower> {
        self.followers.get(&device)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (DeviceId, &Follower)> {
        self.followers.iter().map(|(device, follower)| (*device, follower))
    }

    /// Returns a follower that is about to change.
    pub(super) fn change(&mut self, device: DeviceId) -> Option<&mut Follower> {
        self.look_again();
        self.followers.get_mut(&device)
    }

    /// Returns the follower at this address. Creates it if it is missing, or has another address.
    pub(super) fn want(
        &mut self,
        device: DeviceId,
        address: SocketAddr,
        limits: &Limits,
    ) -> &mut Follower {
        self.look_again();
        let make = || Follower::new(address, limits);
        let follower = self.followers.entry(device).or_insert_with(make);
        if follower.dialer.address() != address {
            *follower = make();
        }
        follower
    }

    /// Makes `due` look at all followers, because something changed that decides which ones to
    /// dial.
    pub(super) fn look_again(&mut self) {
        self.dial_at = Some(Time::ZERO);
    }

    /// Returns the link to a device that has welcomed this one.
    pub(super) fn up(&self, device: DeviceId) -> Option<PeerLink> {
        self.get(device)?.dialer.up()
    }

    /// Returns the links to devices that do not answer.
    pub(super) fn mute(&self, now: Time) -> Vec<LinkId> {
        match self.dial_at.is_none_or(|at| at > now) {
            true => Vec::new(),
            false => self.followers.values().filter_map(|f| f.dialer.mute(now)).collect(),
        }
    }

    /// Calls `dial` for each device that is due and `there`, that is up and at this address. A
    /// device that moved and is no longer needed is not dialled: a process at its old address would
    /// take the hello for a new session, and end the rightful one.
    pub(super) fn due(
        &mut self,
        now: Time,
        there: impl Fn(DeviceId, SocketAddr) -> bool,
        mut dial: impl FnMut(DeviceId, &mut Dialer),
    ) {
        if self.dial_at.is_none_or(|at| at > now) {
            return;
        }
        self.dial_at = None;
        let is_there =
            |(device, f): &(&DeviceId, &mut Follower)| there(**device, f.dialer.address());
        for (device, follower) in self.followers.iter_mut().filter(is_there) {
            if follower.dialer.wake_at().is_some_and(|at| at <= now) {
                dial(*device, &mut follower.dialer);
            }
            self.dial_at = Time::earliest(self.dial_at, follower.dialer.wake_at());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Prng;
    use core::net::Ipv4Addr;
    use seam::{BufPool, DialId, Effects};

    #[test]
    fn who_is_up_and_due_is_dialled_and_nobody_is_forgotten() {
        let now = Time(1_000_000_000);
        let mut out = Effects::new(BufPool::new(1 << 20), Prng::new(1), None);
        let mut dialled = |followers: &mut Followers, now, up| {
            let mut all: Vec<u32> = Vec::new();
            followers.due(
                now,
                |_, _| up,
                |device, dialer| {
                    assert!(dialer.poll(now, DialId(1), &mut out));
                    all.push(device.0);
                },
            );
            all
        };
        let mut followers = Followers::default();
        for device in [1, 2] {
            let address = (Ipv4Addr::LOCALHOST, device as u16).into();
            followers.want(DeviceId(device), address, &Limits::SHIPPED);
        }
        assert_eq!(dialled(&mut followers, now, false), []);
        assert_eq!(followers.dial_at, None, "nobody is up");
        followers.look_again();
        assert_eq!(dialled(&mut followers, now, true), [1, 2]);
        assert_eq!(followers.dial_at, None, "both are on their way");
        followers.change(DeviceId(2)).unwrap().dialer.lost(now, &mut Prng::new(2));
        assert_eq!(dialled(&mut followers, now, true), []);
        let again = followers.dial_at.expect("it is dialled again");
        assert_eq!(dialled(&mut followers, again, true), [2]);
    }

    #[test]
    fn who_lives_elsewhere_by_now_is_not_dialled_where_he_was() {
        let [old, new] = [1, 2].map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let mut followers = Followers::default();
        followers.want(DeviceId(1), old, &Limits::SHIPPED);
        let dialled = |followers: &mut Followers| {
            let mut all = Vec::new();
            followers.look_again();
            let there = |_, address| address == new;
            followers.due(Time(1), there, |_, dialer| all.push(dialer.address()));
            all
        };
        assert_eq!(dialled(&mut followers), []);
        followers.want(DeviceId(1), new, &Limits::SHIPPED);
        assert_eq!(dialled(&mut followers), [new]);
    }
}
