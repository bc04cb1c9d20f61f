//! iSCSI connections: which targets a host sees, what one session does to others, and time.
//!
//! Each volume that is mapped to this SDC is a target, and the volume is its logical unit 0. All
//! names are derived from the ids of cluster and volume ([`target::ident`]).

use super::{Session, Sessions};
use crate::mapview::{MapView, Volume};
use crate::sdc::{Origin, Sdc};
use alloc::string::String;
use alloc::vec::Vec;
use base::time::Duration;
use base::{Limits, LinkId, Map, Time, VolumeId};
use core::net::SocketAddr;
use seam::{BufPool, Effects};
use target::Cleared;
use target::ident::{self, AUTHORITY};
use target::iscsi::{Asked, Closed, Credentials, Nexus, Opening, Portal, Target, Targets};
use target::scsi::{Format, Path, Unit};
use wire::control::Access;

/// A session without a volume ends after this time, a login included.
pub(super) const DISCOVERY: Duration = Duration::from_secs(60);
/// Interval at which sessions let time pass.
const TICK: Duration = Duration::from_secs(1);
/// The most bytes that all sessions together may have in flight when a host logs in.
const BYTES: u64 = 512 << 20;
/// The number of this gateway. (There is one gateway per host until an MDM gives numbers.)
const GATEWAY: u8 = 0;

/// A name and a secret for CHAP.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    /// The name.
    pub user: String,
    /// The secret: at least 12 bytes.
    pub secret: Vec<u8>,
}

impl core::fmt::Debug for Secret {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Secret of {}", self.user)
    }
}

/// How the hosts of an SDC show who they are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chap {
    /// What each host has to show.
    pub host: Secret,
    /// What the target shows to a host that asks.
    pub own: Option<Secret>,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) session: target::iscsi::Session,
    /// The address of ours that it came to.
    pub(super) at: Option<SocketAddr>,
    logged_in: bool,
}

impl Connection {
    /// Returns who has logged in, when that has just happened.
    #[inline]
    pub(super) fn take_nexus(&mut self) -> Option<Nexus> {
        if self.logged_in {
            return None;
        }
        let nexus = self.session.nexus()?.clone();
        self.logged_in = true;
        Some(nexus)
    }
}

/// The hosts that are logged in.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    nexuses: Map<LinkId, Nexus>,
    /// The handle of the newest session.
    tsih: u16,
    /// Bytes in flight of all sessions.
    bytes: u64,
    /// When sessions let time pass next; `None` without any.
    pub(super) tick_at: Option<Time>,
}

impl Hosts {
    /// Creates the session of a connection that was just accepted.
    pub(super) fn connect(
        &mut self,
        now: Time,
        at: Option<SocketAddr>,
        limits: &Limits,
        out: &mut Effects,
    ) -> Connection {
        let free = |hosts: &Hosts| hosts.tsih != 0 && !hosts.has(hosts.tsih);
        self.tsih = self.tsih.wrapping_add(1);
        while !free(self) {
            self.tsih = self.tsih.wrapping_add(1);
        }
        self.tick_at.get_or_insert(now + TICK);
        let mut opening = Opening { tsih: self.tsih, secret: [0; 33] };
        out.secret(&mut opening.secret);
        let session = target::iscsi::Session::new(limits, opening);
        Connection { session, at, logged_in: false }
    }

    pub(super) fn add(&mut self, link: LinkId, nexus: Nexus) {
        self.nexuses.insert(link, nexus);
    }

    /// Removes a session that has ended.
    pub(super) fn remove(&mut self, link: LinkId, session: &target::iscsi::Session) {
        self.nexuses.remove(&link);
        self.bytes -= bytes(session);
    }

    /// Returns the bytes in flight of a session that is about to be called.
    #[inline]
    pub(super) fn begin(session: &Session) -> u64 {
        if let Session::Iscsi(iscsi) = session { bytes(&iscsi.session) } else { 0 }
    }

    /// Accounts for what the session had `before` the call, and has now.
    #[inline]
    pub(super) fn end(&mut self, session: &Session, before: u64) {
        self.bytes = self.bytes - before + Hosts::begin(session);
    }

    fn has(&self, tsih: u16) -> bool {
        self.nexuses.values().any(|nexus| nexus.tsih == tsih)
    }
}

/// Returns the bytes that a session has in flight.
fn bytes(session: &target::iscsi::Session) -> u64 {
    let (asked, read) = session.bytes();
    asked + read
}

/// What the session of one link sees.
pub(super) struct View<'a> {
    pub(super) map: &'a MapView,
    pub(super) chap: Option<&'a Chap>,
    pub(super) limits: &'a Limits,
    /// True if the map is there, and knows this client.
    pub(super) ready: bool,
    pub(super) hosts: &'a Hosts,
    pub(super) link: LinkId,
    /// The address of ours that it came to.
    pub(super) at: Option<SocketAddr>,
}

impl View<'_> {
    fn unit(&self, id: VolumeId, volume: &Volume) -> Option<Unit> {
        unit(self.map, self.limits, id, volume)
    }
}

/// Returns what hosts are told of a volume, if it is mapped to this client.
fn unit(map: &MapView, limits: &Limits, id: VolumeId, volume: &Volume) -> Option<Unit> {
    let grant = map.my_grant(volume)?;
    Some(Unit {
        cluster: map.cluster,
        volume: id,
        size: volume.size,
        read_only: grant.access == Access::ReadOnly,
        format: Format::default(),
        transfer: limits.scsi_transfer,
        target: ident::iqn(AUTHORITY, map.cluster, id),
        port: ident::port(GATEWAY),
        path: Path::Optimized,
        reservations: false,
    })
}

impl Targets for View<'_> {
    fn find(&self, name: &str) -> Option<Target> {
        let (cluster, id) = ident::ids_of_iqn(AUTHORITY, name)?;
        let volume = self.map.volumes.get(&id).filter(|_| cluster == self.map.cluster)?;
        Some(Target { unit: self.unit(id, volume)?, alias: volume.name.clone() })
    }

    fn each(&self, _: &str, visit: &mut dyn FnMut(&str)) {
        for (id, volume) in &self.map.volumes {
            if self.map.my_grant(volume).is_some() {
                visit(&ident::iqn(AUTHORITY, self.map.cluster, *id));
            }
        }
    }

    fn portals(&self, _: &str, visit: &mut dyn FnMut(Portal)) {
        if let Some(address) = self.at {
            visit(Portal { address, group: ident::port(GATEWAY) });
        }
    }

    fn admits(&self, _: &str, _: &str) -> bool {
        true
    }

    fn credentials(&self, _: &str, _: Option<&str>) -> Option<Credentials<'_>> {
        let chap = self.chap?;
        let own = chap.own.as_ref().map(|own| (own.user.as_str(), own.secret.as_slice()));
        Some(Credentials { user: &chap.host.user, secret: &chap.host.secret, own })
    }

    fn sessions(&self, visit: &mut dyn FnMut(&Nexus)) {
        let others = self.hosts.nexuses.iter().filter(|(link, _)| **link != self.link);
        others.for_each(|(_, nexus)| visit(nexus));
    }

    fn closed(&self, _: &str, _: Option<&str>) -> Option<Closed> {
        if !self.ready {
            return Some(Closed::NotReady);
        }
        (self.hosts.bytes >= BYTES).then_some(Closed::Full)
    }
}

/// A call of a session.
#[derive(Debug)]
pub(super) enum Call {
    /// The requests of this command have ended.
    Withdrawn(u64),
    /// The host of another session ends the commands.
    Cleared(Cleared),
    /// The commands of the other hosts have ended.
    OthersCleared,
    /// The MDM does not answer the question of this command.
    Unasked(u64),
    /// Time passes.
    Tick,
}

impl Call {
    /// Makes the call.
    pub(super) fn make(
        self,
        session: &mut target::iscsi::Session,
        now: Time,
        pool: &BufPool,
        actions: &mut Vec<target::Action>,
    ) {
        match self {
            Call::Withdrawn(tag) => session.withdrawn(tag, pool, actions),
            Call::Cleared(what) => session.cleared(what, pool, actions),
            Call::OthersCleared => session.others_cleared(pool, actions),
            Call::Unasked(tag) => session.asked(tag, Asked::Nobody, pool, actions),
            Call::Tick => session.tick(now, pool, actions),
        }
    }
}

impl Sessions {
    /// Lets time pass for all sessions.
    pub(super) fn iscsi_tick(&mut self, now: Time) {
        if self.iscsi.tick_at.is_none_or(|at| now < at) {
            return;
        }
        let links = self.iscsi_links();
        self.iscsi.tick_at = (!links.is_empty()).then_some(now + TICK);
        self.calls.extend(links.into_iter().map(|link| (link, Call::Tick)));
    }

    /// Tells the sessions of volumes that have grown, or may only be read from now on.
    pub(super) fn iscsi_review(&mut self, map: &MapView, limits: &Limits) {
        for session in self.sessions.values_mut() {
            let Session::Iscsi(iscsi) = session else { continue };
            let Some(id) = iscsi.session.nexus().and_then(|nexus| nexus.volume) else { continue };
            let Some(volume) = map.volumes.get(&id) else { continue };
            if let Some(unit) = unit(map, limits, id, volume) {
                iscsi.session.changed(unit);
            }
        }
    }

    /// Ends the commands of the other hosts of a session's volume. When they are told, nothing of
    /// their commands can take effect later.
    pub(super) fn iscsi_clear(&mut self, link: LinkId, what: Cleared) {
        let nexuses = &self.iscsi.nexuses;
        let volume = nexuses.get(&link).and_then(|nexus| nexus.volume);
        let same = |(of, nexus): &(&LinkId, &Nexus)| **of != link && nexus.volume == volume;
        let mut others: Vec<LinkId> = nexuses.iter().filter(same).map(|(of, _)| *of).collect();
        others.sort_unstable();
        self.calls.extend(others.into_iter().map(|other| (other, Call::Cleared(what))));
        self.calls.push_back((link, Call::OthersCleared));
    }

    /// Returns the links of iSCSI sessions, in the order of their ids.
    fn iscsi_links(&self) -> Vec<LinkId> {
        let iscsi = self.sessions.iter().filter(|(_, s)| matches!(s, Session::Iscsi(_)));
        let mut links: Vec<LinkId> = iscsi.map(|(link, _)| *link).collect();
        links.sort_unstable();
        links
    }
}

impl Sdc {
    /// Ends the requests of a command. What a primary has of them takes effect before any later
    /// request, or never.
    pub(super) fn iscsi_withdraw(&mut self, now: Time, link: LinkId, tag: u64, out: &Effects) {
        let same = |of: LinkId, other: u64| of == link && other as u32 == tag as u32;
        for queue in &mut self.targets.crowded {
            queue.retain(|waiting| !same(waiting.link, waiting.tag));
        }
        let gone = |origin| matches!(origin, Origin::Target { link, tag } if same(link, tag));
        self.client(now, out, |client, turn| client.forget(gone, turn));
        self.targets.calls.push_back((link, Call::Withdrawn(tag)));
    }

    /// Ends the session that a host had before it logged in with this one. Both may have the same
    /// handle.
    pub(super) fn iscsi_reinstate(&mut self, now: Time, link: LinkId, out: &mut Effects) {
        let nexuses = &self.targets.iscsi.nexuses;
        let Some(new) = nexuses.get(&link) else { return };
        let key = |nexus: &Nexus| (nexus.isid, nexus.volume);
        let before = nexuses.iter().find(|(of, old)| {
            **of != link && key(old) == key(new) && old.initiator == new.initiator
        });
        if let Some(before) = before.map(|(of, _)| *of) {
            self.target_close(now, before, Some("its host has logged in again"), out);
        }
    }
}
