//! The links that peers dialled: the peer of each link, and what it waits for. Also the sessions of
//! devices and clients: a session is the link on which the current incarnation has registered.
//!
//! Invariants:
//! - A session lasts until its link is removed, or until its process registers on another link. A
//!   link has one session at most.
//! - At most [`ADMINS`] links for orders are open. Any peer may give orders, so when there are too
//!   many, the oldest link is closed.
//! - At most [`INPUTS_PER_LINK`] inputs of a link wait.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use base::{DeviceId, Incarnation, LinkId, MapVersion, SdcId};
use mdm::recovery::DeviceReport;
use wire::control::{BuildInfo, Hello, Role};
use wire::{HANDSHAKE_VERSION, PeerLink};

/// From this number of links on, each new one closes a link of an incarnation that is over. All
/// devices and clients together need fewer.
const LINKS: usize = 8192;
/// The most links for orders that it keeps open.
pub(super) const ADMINS: usize = 512;
/// The most inputs of one link that wait for the disk.
pub(super) const INPUTS_PER_LINK: u32 = 16;

/// The peer at the other end of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Peer {
    /// It has not been welcomed.
    Stranger,
    /// It has been welcomed in this role.
    Guest(Role),
    /// This incarnation of a device.
    Device(DeviceId, Incarnation),
    /// This incarnation of a client.
    Sdc(SdcId, Incarnation),
    /// Another MDM.
    Mdm(u32),
}

impl Peer {
    /// Returns the role in which it was welcomed.
    pub(super) fn role(self) -> Option<Role> {
        match self {
            Peer::Stranger => None,
            Peer::Guest(role) => Some(role),
            Peer::Device(..) => Some(Role::Sds),
            Peer::Sdc(..) => Some(Role::Sdc),
            Peer::Mdm(_) => Some(Role::Mdm),
        }
    }
}

/// A request for map changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pull {
    pub have: MapVersion,
    pub op: u64,
    pub wait: bool,
}

/// A link that a peer dialled.
#[derive(Debug)]
pub(super) struct Link {
    /// Index of the link. A process's later link has a higher one.
    pub opened: u64,
    pub peer: Peer,
    /// The protocol version of its frames, once its hello was accepted.
    pub version: u16,
    /// The build that another MDM has reported.
    pub build: Option<BuildInfo>,
    /// The hello of the peer, kept until it can be answered.
    pub hello: Option<Hello>,
    pub parked: Option<Pull>,
    /// The newest map that the peer said it has.
    pub have: MapVersion,
    /// Number of its inputs that wait.
    queued: u32,
    /// The parts so far of a message of several parts.
    pub parts: Vec<u8>,
    /// The secret that another MDM expects in front of each message to it.
    pub secret: u64,
    /// The reports of this device so far, during a recovery.
    pub report: Option<DeviceReport>,
}

/// The link on which the current incarnation of a process registered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Session {
    pub link: LinkId,
    /// The `opened` of the link on which its incarnation first registered. It is 0 if the
    /// incarnation registered with an earlier leader: then it is unknown which of two processes
    /// came first.
    pub began: u64,
}

/// A session that has ended with its link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Gone {
    Device(DeviceId),
    Sdc(SdcId),
}

/// All links that peers dialled.
#[derive(Debug, Default)]
pub(super) struct Links {
    all: BTreeMap<LinkId, Link>,
    /// Links for orders, the oldest first.
    admins: VecDeque<LinkId>,
    devices: BTreeMap<DeviceId, Session>,
    sdcs: BTreeMap<SdcId, Session>,
    opened: u64,
}

impl Links {
    pub(super) fn has(&self, link: LinkId) -> bool {
        self.all.contains_key(&link)
    }

    pub(super) fn get(&self, link: LinkId) -> Option<&Link> {
        self.all.get(&link)
    }

    pub(super) fn get_mut(&mut self, link: LinkId) -> Option<&mut Link> {
        self.all.get_mut(&link)
    }

    /// Returns a link that is known to be open.
    pub(super) fn open(&self, link: LinkId) -> &Link {
        self.get(link).expect("the link is open")
    }

    /// Returns a link that is known to be open, for changes.
    pub(super) fn open_mut(&mut self, link: LinkId) -> &mut Link {
        self.get_mut(link).expect("the link is open")
    }

    /// Iterates over all links, in the order of their ids.
    pub(super) fn iter(&self) -> impl Iterator<Item = (LinkId, &Link)> {
        self.all.iter().map(|(id, link)| (*id, link))
    }

    /// Iterates over all links, for changes.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (LinkId, &mut Link)> {
        self.all.iter_mut().map(|(id, link)| (*id, link))
    }

    /// Returns the ids of the links for which this is true.
    pub(super) fn which(&self, is: impl Fn(&Link) -> bool) -> Vec<LinkId> {
        self.iter().filter(|(_, link)| is(link)).map(|(id, _)| id).collect()
    }

    /// Returns a link with its protocol version.
    pub(super) fn peer_link(&self, link: LinkId) -> PeerLink {
        let version = self.get(link).map_or(HANDSHAKE_VERSION, |l| l.version);
        PeerLink::new(link, version)
    }

    /// Returns the version of a link. It is `None` during the handshake, and on a link that this
    /// MDM dialled, where the peer sends no frames but those of the handshake.
    pub(super) fn version_on(&self, link: LinkId) -> Option<u16> {
        let greeted = |l: &&Link| !matches!(l.peer, Peer::Stranger);
        self.get(link).filter(greeted).map(|l| l.version)
    }

    /// Adds the link of a stranger.
    pub(super) fn add(&mut self, link: LinkId) {
        self.opened += 1;
        let state = Link {
            opened: self.opened,
            peer: Peer::Stranger,
            version: HANDSHAKE_VERSION,
            build: None,
            hello: None,
            parked: None,
            have: MapVersion(0),
            queued: 0,
            parts: Vec::new(),
            secret: 0,
            report: None,
        };
        let former = self.all.insert(link, state);
        assert!(former.is_none(), "each link is added once");
    }

    /// Returns the link to close before one more is opened, if there are too many: the oldest one
    /// of an incarnation that is over. Its process has sent nothing since the next one registered.
    pub(super) fn superfluous(&self) -> Option<LinkId> {
        let over = |(link, l): &(&LinkId, &Link)| match l.peer {
            Peer::Device(device, _) => self.devices.get(&device).is_none_or(|s| s.link != **link),
            Peer::Sdc(sdc, _) => self.sdcs.get(&sdc).is_none_or(|s| s.link != **link),
            _ => false,
        };
        let full = self.all.len() >= LINKS;
        full.then(|| self.all.iter().find(over).map(|(link, _)| *link)).flatten()
    }

    /// Drops the state of a link that is down or about to be closed. Returns the session that has
    /// ended with it.
    pub(super) fn remove(&mut self, link: LinkId) -> Option<Gone> {
        match self.all.remove(&link)?.peer {
            Peer::Guest(Role::Admin) => {
                self.admins.retain(|l| *l != link);
                None
            }
            Peer::Device(device, _) => {
                self.devices.get(&device).filter(|s| s.link == link)?;
                self.devices.remove(&device);
                Some(Gone::Device(device))
            }
            Peer::Sdc(sdc, _) => {
                self.sdcs.get(&sdc).filter(|s| s.link == link)?;
                self.sdcs.remove(&sdc);
                Some(Gone::Sdc(sdc))
            }
            _ => None,
        }
    }

    /// Returns the link for orders to close before one more is welcomed, if there are too many.
    pub(super) fn oldest_admin(&self) -> Option<LinkId> {
        self.admins.front().copied().filter(|_| self.admins.len() >= ADMINS)
    }

    /// Makes a link one for orders.
    pub(super) fn add_admin(&mut self, link: LinkId) {
        assert!(self.admins.len() < ADMINS, "the oldest one was closed");
        self.open_mut(link).peer = Peer::Guest(Role::Admin);
        self.admins.push_back(link);
    }

    // ---- sessions ----

    pub(super) fn device(&self, device: DeviceId) -> Option<Session> {
        self.devices.get(&device).copied()
    }

    pub(super) fn has_device(&self, device: DeviceId) -> bool {
        self.devices.contains_key(&device)
    }

    pub(super) fn sdc(&self, sdc: SdcId) -> Option<Session> {
        self.sdcs.get(&sdc).copied()
    }

    /// Returns all clients that have registered.
    pub(super) fn sdcs(&self) -> impl Iterator<Item = SdcId> {
        self.sdcs.keys().copied()
    }

    /// Starts a session of this incarnation of a device or client on the link. Returns the link of
    /// the incarnation's former session, which is to be closed. The link of an earlier incarnation
    /// stays open until its process sends something and is refused.
    pub(super) fn register(&mut self, link: LinkId, peer: Peer, began: u64) -> Option<LinkId> {
        let session = Session { link, began };
        let guest = matches!(self.open(link).peer, Peer::Stranger | Peer::Guest(_));
        assert!(guest, "a link registers one process");
        let before = match peer {
            Peer::Device(device, _) => self.devices.insert(device, session),
            Peer::Sdc(sdc, _) => self.sdcs.insert(sdc, session),
            other => panic!("{other:?} registers nothing"),
        };
        self.open_mut(link).peer = peer;
        let old = before?.link;
        let same = self.get(old).is_some_and(|l| l.peer == peer);
        same.then(|| self.all.remove(&old).map(|_| old)).flatten()
    }

    /// Ends all sessions: this MDM does not lead any more.
    pub(super) fn end_sessions(&mut self) {
        self.devices.clear();
        self.sdcs.clear();
    }

    // ---- inputs that wait ----

    /// Counts one more waiting input of this link. Returns false if there is no room.
    pub(super) fn queue(&mut self, link: LinkId) -> bool {
        let from = self.get_mut(link).filter(|l| l.queued < INPUTS_PER_LINK);
        from.map(|l| l.queued += 1).is_some()
    }

    /// Counts one waiting input of this link less. Returns false if the link is gone.
    pub(super) fn unqueue(&mut self, link: LinkId) -> bool {
        let Some(from) = self.get_mut(link) else { return false };
        assert!(from.queued > 0, "a link counts its inputs that wait");
        from.queued -= 1;
        true
    }

    // ---- other MDMs ----

    /// Returns the links in the name of another MDM, except `but`.
    pub(super) fn of_member(&self, member: u32, but: Option<LinkId>) -> Vec<LinkId> {
        let links = self.iter().filter(|(_, l)| l.peer == Peer::Mdm(member));
        links.map(|(link, _)| link).filter(|link| Some(*link) != but).collect()
    }

    /// Returns the build of another MDM, as reported on a link that is up.
    pub(super) fn build_of(&self, member: u32) -> Option<BuildInfo> {
        let of = |l: &&Link| l.peer == Peer::Mdm(member);
        let newest = self.all.values().filter(of).max_by_key(|l| l.opened)?;
        Some(newest.build.clone().unwrap_or_default())
    }

    // ---- lengths, for judges ----

    pub(super) fn admins(&self) -> usize {
        self.admins.len()
    }

    /// Returns the numbers of inputs that wait, by link.
    pub(super) fn queued(&self) -> impl Iterator<Item = usize> {
        self.all.values().map(|l| l.queued as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(links: u64) -> Links {
        let mut all = Links::default();
        (1..=links).for_each(|link| all.add(LinkId(link)));
        all
    }

    #[test]
    fn a_session_ends_with_its_own_link_only() {
        let mut links = with(3);
        let first = Peer::Device(DeviceId(7), Incarnation(1));
        assert_eq!(links.register(LinkId(1), first, 1), None);
        assert_eq!(links.register(LinkId(2), first, 1), Some(LinkId(1)), "the same incarnation");
        assert!(!links.has(LinkId(1)) && links.remove(LinkId(1)).is_none());
        let next = Peer::Device(DeviceId(7), Incarnation(2));
        assert_eq!(links.register(LinkId(3), next, 3), None, "it stays until it says something");
        assert_eq!(links.remove(LinkId(2)), None);
        assert_eq!(links.device(DeviceId(7)).map(|s| s.link), Some(LinkId(3)));
        assert_eq!(links.remove(LinkId(3)), Some(Gone::Device(DeviceId(7))));
        assert!(!links.has_device(DeviceId(7)));
    }

    #[test]
    fn of_too_many_links_the_oldest_of_an_ended_incarnation_is_superfluous() {
        let mut links = with(LINKS as u64 - 1);
        for (link, life) in [(1, 1), (2, 2), (3, 3)] {
            links.register(LinkId(link), Peer::Sdc(SdcId(1), Incarnation(life)), link);
        }
        assert_eq!(links.superfluous(), None);
        links.add(LinkId(LINKS as u64));
        assert_eq!(links.superfluous(), Some(LinkId(1)));
        links.remove(LinkId(1));
        links.add(LinkId(LINKS as u64 + 1));
        assert_eq!(links.superfluous(), Some(LinkId(2)));
    }

    #[test]
    fn a_link_queues_as_many_inputs_as_it_may() {
        let mut links = with(1);
        assert_eq!((0..20).filter(|_| links.queue(LinkId(1))).count(), INPUTS_PER_LINK as usize);
        assert!(links.unqueue(LinkId(1)) && links.queue(LinkId(1)) && !links.queue(LinkId(1)));
        assert!(!links.queue(LinkId(2)) && !links.unqueue(LinkId(2)));
    }
}
