//! iSCSI connections: the targets that a host sees, the effects of one session on others, and time
//! limits.
//!
//! Each volume that is mapped to this SDC is a target, and the volume is its logical unit 0. All
//! names are derived from the ids of cluster and volume ([`target::ident`]).

use super::past_sessions::PastSessions;
use super::seats::Seats;
use super::{Session, Sessions};
use crate::mapview::{Gateway, MapView, Volume};
use crate::sdc::{Origin, Sdc};
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use base::time::Duration;
use base::{Limits, LinkId, Map, Time, VolumeId};
use core::net::SocketAddr;
use mdm::mapping::Grant;
use mirror::client::Client;
use seam::{BlockError, Buf, BufPool, Effects};
use target::Cleared;
use target::ident::{self, AUTHORITY};
use target::iscsi::{Closed, Credentials, Nexus, Opening, Portal, Stranger, Target, Targets};
use target::reserve;
use target::scsi::{Format, Path, PortGroup, Unit};
use wire::control::Access;

/// Time limit of a login, and of a session without a volume.
pub(super) const DISCOVERY: Duration = Duration::from_secs(60);
/// Interval of the sessions' ticks. It must be short, because hosts that are asked to log out must
/// be gone before the process ends.
const TICK: Duration = Duration::from_millis(500);

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

/// The CHAP credentials of the hosts of an SDC.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chap {
    /// The credentials for hosts that are not in `hosts`. If `None`, they can't log in.
    pub host: Option<Secret>,
    /// The credentials for single hosts, by their iSCSI names.
    pub hosts: BTreeMap<String, Secret>,
    /// The target's own credentials, for mutual CHAP.
    pub own: Option<Secret>,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) session: target::iscsi::Session,
    /// The local address of the connection.
    pub(super) at: Option<SocketAddr>,
    /// Its volume, if the host is known to have a confirmed seat for it.
    pub(super) seated: Vec<VolumeId>,
    logged_in: bool,
}

impl Connection {
    /// Returns the session's identity if its host has just logged in.
    #[inline]
    pub(super) fn take_nexus(&mut self) -> Option<Nexus> {
        if self.logged_in {
            return None;
        }
        let nexus = self.session.nexus()?.clone();
        self.logged_in = true;
        Some(nexus)
    }

    /// Passes on the result of a request. If the mapping under which it was made has ended, but
    /// this client may use the volume under a new one, the host is told to repeat the command. The
    /// answer to the repetition tells it what it may do.
    pub(super) fn done(
        &mut self,
        tag: u64,
        result: Result<Buf, BlockError>,
        map: &MapView,
        (pool, actions): (&BufPool, &mut Vec<target::Action>),
    ) {
        let grant = || {
            let nexus = self.session.nexus()?;
            map.host_grant(map.volumes.get(&nexus.volume?)?, &nexus.initiator)
        };
        let result = match result {
            Err(BlockError::NoSuchVolume) if grant().is_some() => Err(BlockError::Forgotten),
            other => other,
        };
        self.session.done(tag, result, pool, actions);
    }
}

/// The hosts that are logged in.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    nexuses: Map<LinkId, Nexus>,
    /// The handle of the newest session.
    tsih: u16,
    /// The state that logged-out hosts were told.
    past_sessions: PastSessions,
    /// Memory of the commands of all sessions at the last login, in bytes.
    memory: u64,
    /// This process is stopping.
    stopping: bool,
    /// The time of the sessions' next tick; `None` without sessions.
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
        Connection { session, at, seated: Vec::new(), logged_in: false }
    }

    pub(super) fn add(&mut self, link: LinkId, nexus: Nexus) {
        self.nexuses.insert(link, nexus);
    }

    /// Removes a session that has ended.
    pub(super) fn remove(&mut self, link: LinkId, session: &mut target::iscsi::Session) {
        if let Some(nexus) = self.nexuses.remove(&link)
            && let Some(device) = session.device()
        {
            self.past_sessions.add(nexus, device);
        }
    }

    /// Returns the identity of this session, if its host has logged in.
    pub(super) fn nexus(&self, link: LinkId) -> Option<&Nexus> {
        self.nexuses.get(&link)
    }

    /// Returns the name of the host of this session; empty if none has logged in.
    pub(super) fn host(&self, link: LinkId) -> &str {
        self.nexuses.get(&link).map_or("", |nexus| &nexus.initiator)
    }

    /// Returns the volume and the host of each session that has a volume.
    pub(super) fn paths(&self) -> impl Iterator<Item = (VolumeId, &str)> {
        self.nexuses.values().filter_map(|nexus| Some((nexus.volume?, &nexus.initiator[..])))
    }

    /// Returns the number of remembered sessions that have ended.
    pub(super) fn past_sessions(&self) -> usize {
        self.past_sessions.len()
    }

    fn has(&self, tsih: u16) -> bool {
        self.nexuses.values().any(|nexus| nexus.tsih == tsih)
    }
}

/// The view that the session of one link has of this client.
pub(super) struct View<'a> {
    pub(super) map: &'a MapView,
    pub(super) chap: Option<&'a Chap>,
    pub(super) dhchap: Option<&'a super::DhChap>,
    pub(super) format: Format,
    pub(super) limits: &'a Limits,
    /// The number of this gateway; 0 while it has none.
    pub(super) number: u8,
    /// True if there is a map, and it contains this client.
    pub(super) ready: bool,
    pub(super) hosts: &'a Hosts,
    pub(super) nvme: &'a super::nvme::Hosts,
    pub(super) seats: &'a Seats,
    pub(super) link: LinkId,
    /// The local address of the connection.
    pub(super) at: Option<SocketAddr>,
}

/// Returns the properties of a volume for a host that has this grant.
fn unit(
    map: &MapView,
    (limits, format, number): (&Limits, Format, u8),
    (id, volume, grant): (VolumeId, &Volume, Grant),
    (host, seats): (&str, &Seats),
) -> Unit {
    let path = match seats.is_standby(map, (id, volume), host) {
        true => Path::Standby,
        false => Path::Optimized,
    };
    let seat = volume.seats.get(host).map(|seat| seat.sdc);
    let other = |gateway: &Gateway| PortGroup {
        port: ident::port(gateway.number),
        path: if seat == Some(gateway.sdc) { Path::Optimized } else { Path::Standby },
    };
    Unit {
        cluster: map.cluster,
        volume: id,
        size: volume.size,
        read_only: grant.access == Access::ReadOnly,
        format,
        transfer: limits.scsi_transfer,
        target: ident::iqn(AUTHORITY, map.cluster, id),
        port: ident::port(number),
        path,
        others: map.others_of(volume).map(other).collect(),
        asks: true,
    }
}

impl Targets for View<'_> {
    fn group(&self) -> u16 {
        ident::port(self.number)
    }

    fn find(&self, initiator: &str, name: &str) -> Option<Target> {
        let (cluster, id) = ident::ids_of_iqn(AUTHORITY, name)?;
        let volume = self.map.volumes.get(&id).filter(|_| cluster == self.map.cluster)?;
        let of = (self.limits, self.format, self.number);
        let own = self.map.my_grant(volume)?;
        let grant = self.map.host_grant(volume, initiator).unwrap_or(own); // `admits` refuses it
        let unit = unit(self.map, of, (id, volume, grant), (initiator, self.seats));
        Some(Target { unit, alias: volume.name.clone() })
    }

    fn each(&self, initiator: &str, visit: &mut dyn FnMut(&str)) {
        for (id, volume) in &self.map.volumes {
            if self.map.host_grant(volume, initiator).is_some() {
                visit(&ident::iqn(AUTHORITY, self.map.cluster, *id));
            }
        }
    }

    fn portals(&self, name: &str, visit: &mut dyn FnMut(Portal)) {
        if let Some(address) = self.at {
            visit(Portal { address, group: ident::port(self.number) });
        }
        let ids = ident::ids_of_iqn(AUTHORITY, name);
        let Some(volume) = ids.and_then(|(_, id)| self.map.volumes.get(&id)) else { return };
        for gateway in self.map.others_of(volume) {
            let group = ident::port(gateway.number);
            gateway.iscsi.iter().for_each(|at| visit(Portal { address: *at, group }));
        }
    }

    fn admits(&self, initiator: &str, name: &str) -> bool {
        let ids = ident::ids_of_iqn(AUTHORITY, name);
        let volume = ids.and_then(|(_, id)| self.map.volumes.get(&id));
        volume.is_some_and(|volume| self.map.host_grant(volume, initiator).is_some())
    }

    fn credentials(
        &self,
        initiator: &str,
        _: Option<&str>,
    ) -> Result<Option<Credentials<'_>>, Stranger> {
        let Some(chap) = self.chap else { return Ok(None) };
        let own = chap.own.as_ref().map(|own| (own.user.as_str(), own.secret.as_slice()));
        let host = chap.hosts.get(initiator).or(chap.host.as_ref()).ok_or(Stranger)?;
        Ok(Some(Credentials { user: &host.user, secret: &host.secret, own }))
    }

    fn sessions(&self, visit: &mut dyn FnMut(&Nexus)) {
        let others = self.hosts.nexuses.iter().filter(|(link, _)| **link != self.link);
        others.for_each(|(_, nexus)| visit(nexus));
    }

    fn closed(&self, _: &str, _: Option<&str>) -> Option<Closed> {
        if !self.ready {
            return Some(Closed::NotReady);
        }
        if self.hosts.stopping {
            return Some(Closed::Stopping);
        }
        (self.hosts.memory >= self.limits.target_bytes).then_some(Closed::Full)
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
    /// A tick.
    Tick,
    /// The volume was deleted, or is not mapped to this client any more.
    Gone,
    /// The volume is mapped in another way.
    Remapped,
    /// This process is stopping.
    Shutdown,
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
            Call::Tick => session.tick(now, pool, actions),
            Call::Gone => session.volume_gone(pool, actions),
            Call::Remapped => session.remapped(pool, actions),
            Call::Shutdown => session.shutdown(pool, actions),
        }
    }
}

impl Sessions {
    /// Calls the tick of all sessions.
    pub(super) fn iscsi_tick(&mut self, now: Time) {
        if self.iscsi.tick_at.is_none_or(|at| now < at) {
            return;
        }
        let links = self.iscsi_links();
        self.iscsi.tick_at = (!links.is_empty()).then_some(now + TICK);
        self.calls.extend(links.into_iter().map(|link| (link, Call::Tick)));
    }

    /// Applies a changed mapping to the session of this link. The host is told of another access
    /// with its next command. If the former mapping has ended, the commands that came under it end,
    /// too: their data may still come, even after a third mapping. If the volume is gone, the
    /// session ends in order. Returns false if the connection must be closed: the volume was
    /// unmapped and mapped again with the same access, and nothing else would tell the host that
    /// others may have written in between.
    pub(super) fn iscsi_regrant(&mut self, link: LinkId, map: &MapView) -> bool {
        let Some(Session::Iscsi(_)) = self.sessions.get(&link) else { return false };
        let Some((id, old)) = self.permissions.get(&link).copied() else { return false };
        let host = self.host(link);
        match map.volumes.get(&id).and_then(|volume| map.host_grant(volume, host)) {
            None => {
                self.permissions.remove(&link);
                self.calls.push_back((link, Call::Gone));
                true
            }
            Some(new) => {
                self.permissions.insert(link, (id, new));
                if new.since != old.since {
                    self.calls.push_back((link, Call::Remapped));
                }
                new.access != old.access
            }
        }
    }

    /// Gives the session of this link the unit attentions that its host missed before it logged in.
    pub(super) fn iscsi_succeed(&mut self, link: LinkId) {
        let Some(nexus) = self.iscsi.nexuses.get(&link) else { return };
        if let Some(past) = self.iscsi.past_sessions.take(nexus)
            && let Some(Session::Iscsi(iscsi)) = self.sessions.get_mut(&link)
            && let Some(device) = iscsi.session.device()
        {
            device.succeed(&past);
        }
    }

    /// Sets the access that reservations leave to the host of a new session.
    pub(super) fn iscsi_access(&mut self, link: LinkId, access: reserve::Access) {
        if let Some(Session::Iscsi(iscsi)) = self.sessions.get_mut(&link)
            && let Some(device) = iscsi.session.device()
        {
            device.set_access(access);
        }
    }

    /// Asks all hosts to log out, and refuses new logins.
    pub(in crate::sdc) fn iscsi_stop(&mut self) {
        self.iscsi.stopping = true;
        let links = self.iscsi_links();
        self.calls.extend(links.into_iter().map(|link| (link, Call::Shutdown)));
    }

    /// Returns true after [`Sessions::iscsi_stop`].
    pub(in crate::sdc) fn iscsi_is_stopping(&self) -> bool {
        self.iscsi.stopping
    }

    /// Returns true if no host is logged in.
    pub(in crate::sdc) fn iscsi_is_over(&self) -> bool {
        self.iscsi.nexuses.is_empty()
    }

    /// Returns the number of sessions that have a volume.
    pub(in crate::sdc) fn iscsi_connections(&self) -> usize {
        self.iscsi.nexuses.values().filter(|nexus| nexus.volume.is_some()).count()
    }

    /// Updates the memory of all sessions, before a host logs in.
    pub(super) fn iscsi_measure(&mut self, client: &Client<Origin>) {
        self.iscsi.memory = self.iscsi_memory(client);
    }

    /// Returns the memory of all sessions: each buffer with data of a command once, and the data
    /// that commands may still receive.
    pub(super) fn iscsi_memory(&self, client: &Client<Origin>) -> u64 {
        if self.iscsi.nexuses.is_empty() {
            return 0;
        }
        let (mut blocks, mut coming) = (Vec::new(), 0);
        for session in self.iscsi_sessions() {
            coming += session.memory(&mut |data| blocks.extend(data.block()));
        }
        let nexuses = &self.iscsi.nexuses;
        client.visit_data(|origin, data| match origin {
            Origin::Target { link, .. } if nexuses.contains_key(&link) => {
                blocks.extend(data.block());
            }
            _ => {}
        });
        let waiting = self.crowded.iter().flatten();
        let waiting = waiting.filter(|waiting| nexuses.contains_key(&waiting.link));
        blocks.extend(waiting.filter_map(|waiting| waiting.request.body.block()));
        blocks.sort_unstable();
        blocks.dedup();
        coming + blocks.iter().map(|(_, bytes)| *bytes as u64).sum::<u64>()
    }

    /// Returns the sessions of all connections.
    pub(super) fn iscsi_sessions(&self) -> impl Iterator<Item = &target::iscsi::Session> {
        self.sessions.values().filter_map(|session| match session {
            Session::Iscsi(iscsi) => Some(&iscsi.session),
            Session::Nbd(_) | Session::Nvme(_) => None,
        })
    }

    /// Tells sessions about volumes that have grown or become read-only.
    pub(super) fn iscsi_review(&mut self, map: &MapView, of: (&Limits, Format)) {
        let of = (of.0, of.1, self.number.unwrap_or(0));
        for session in self.sessions.values_mut() {
            let Session::Iscsi(iscsi) = session else { continue };
            let Some(nexus) = iscsi.session.nexus() else { continue };
            let Some(id) = nexus.volume else { continue };
            let Some(volume) = map.volumes.get(&id) else { continue };
            if let Some(grant) = map.host_grant(volume, &nexus.initiator) {
                let host = (&nexus.initiator[..], &self.seats);
                iscsi.session.changed(unit(map, of, (id, volume, grant), host));
            }
        }
    }

    /// Ends the commands of the other hosts of a session's volume. When these hosts are told, their
    /// commands can't take effect any more.
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
    /// Ends the requests of commands. A request that has already reached a primary takes effect
    /// before any later request, or never. The requests of all sessions are looked at once, not
    /// once for each command. So a reset costs no more than the end of the sessions whose commands
    /// it ends.
    pub(super) fn iscsi_withdraw(
        &mut self,
        now: Time,
        link: LinkId,
        mut tags: Vec<u64>,
        out: &mut Effects,
    ) {
        for tag in &tags {
            self.targets.reserve_forget((now, self.mdm.link()), (link, Some(*tag)), out);
        }
        tags.sort_unstable_by_key(|tag| *tag as u32);
        let same = |of: LinkId, other: u64| {
            of == link && tags.binary_search_by_key(&(other as u32), |tag| *tag as u32).is_ok()
        };
        for queue in &mut self.targets.crowded {
            queue.retain(|waiting| !same(waiting.link, waiting.tag));
        }
        let gone = |origin| matches!(origin, Origin::Target { link, tag, .. } if same(link, tag));
        self.client(now, out, |client, turn| client.forget(gone, turn));
        let calls = tags.into_iter().map(|tag| (link, Call::Withdrawn(tag)));
        self.targets.calls.extend(calls);
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
            self.targets.iscsi_succeed(link);
        }
    }
}
