//! The link to the MDM: registration, heartbeats, and when to pull the map.
//!
//! There are two kinds of pulls. A *plain* one asks for the present map: after registration, and
//! for an NBD client that negotiates. A *parked* one waits at the MDM until there is something
//! newer: it is sent while operations need a newer map, or are stuck. An MDM keeps only the newest
//! pull of each link, so a plain one replaces a parked one, which is sent again after the answer.
//! The header's `op`, which the answer repeats, tells them apart.

use super::{Peer, Sdc, decode, links, refusal_note};
use crate::finder::Finder;
use crate::links::send_control;
use crate::mapview::{OF_BEFORE, knows_less, read_page};
use crate::refusals::{MUTE, NOT_OFFERED};
use base::time::Duration;
use base::{ClusterId, Incarnation, Limits, LinkId, MapVersion, SdcId, Time};
use core::net::SocketAddr;
use seam::{Buf, Effects, Note};
use wire::control::{
    BuildInfo, Heartbeat, MapPage, Refusal, RefusalCode, RegisterSdc, Registered, Role, Welcome,
};
use wire::message::MapPull;
use wire::{Frame, Header, PeerLink};

/// A pull that has not been answered for this long is sent again, if it is still needed.
const AGAIN: Duration = Duration::from_secs(1);

/// The link to the MDM.
#[derive(Debug)]
pub(super) struct MdmLink {
    pub(super) finder: Finder,
    /// The link on which we are registered.
    registered: Option<PeerLink>,
    /// The map version at which the MDM knew this incarnation. Older maps must not be acted on.
    pub(super) known_at: MapVersion,
    heartbeat_at: Time,
    /// A map of at least this version is needed.
    wanted: MapVersion,
    /// A plain pull has to be sent.
    ask: bool,
    /// Number of plain pulls that were answered.
    pub(super) refreshed: u64,
    /// `op` of the last pull.
    pulls: u64,
    /// The pull that the MDM has not answered yet.
    out: Option<Pull>,
}

/// A pull that was sent.
#[derive(Clone, Copy, Debug)]
struct Pull {
    op: u64,
    parked: bool,
    since: Time,
}

impl MdmLink {
    pub(super) fn new(addresses: &[SocketAddr], limits: &Limits) -> MdmLink {
        MdmLink {
            finder: Finder::new(addresses, limits),
            registered: None,
            known_at: MapVersion(0),
            heartbeat_at: Time::ZERO,
            wanted: MapVersion(0),
            ask: false,
            refreshed: 0,
            pulls: 0,
            out: None,
        }
    }

    /// True when an MDM knows us on a link that is up.
    pub(super) fn is_up(&self) -> bool {
        self.registered.is_some()
    }

    /// Records that operations need a map of at least this version.
    pub(super) fn want(&mut self, version: MapVersion) {
        self.wanted = self.wanted.max(version);
    }

    /// Makes the next heartbeat due, because its content has changed.
    pub(super) fn heartbeat_soon(&mut self, now: Time) {
        self.heartbeat_at = self.heartbeat_at.min(now);
    }

    /// Requests a plain pull.
    pub(super) fn ask(&mut self) {
        self.ask = true;
    }

    pub(super) fn wake_at(&self) -> Option<Time> {
        let dial = self.finder.dialer().wake_at();
        Time::earliest(dial, self.registered.map(|_| self.heartbeat_at))
    }

    /// Records an answer with this `op`. Returns true if it answers a plain pull.
    fn answered(&mut self, op: u64) -> bool {
        self.out.take_if(|pull| pull.op == op).is_some_and(|pull| !pull.parked)
    }
}

impl Sdc {
    pub(super) fn mdm_tick(&mut self, now: Time, out: &mut Effects) {
        if let Some(link) = self.mdm.finder.dialer().mute(now) {
            self.refuse(now, link, MUTE, out);
        }
        let due = self.mdm.finder.dialer().wake_at();
        if due.is_some_and(|at| at <= now) {
            let dial = self.dial_id(Peer::Mdm);
            self.mdm.finder.dialer_mut().poll(now, dial, out);
        }
        if let Some(link) = self.mdm.registered
            && self.mdm.heartbeat_at <= now
        {
            let ops = self.served;
            let connections = self.nbd.len() as u32;
            let held = self.client.held();
            let attached = self.nbd.attached();
            let refused_by = self.servers.refusing();
            let heartbeat =
                Heartbeat { ops, connections, held, attached, refused_by, ..Heartbeat::default() };
            send_control(link, &heartbeat, out);
            self.mdm.heartbeat_at = now + self.config.limits.heartbeat_every;
        }
    }

    pub(super) fn greet_mdm(&mut self, now: Time, link: LinkId, out: &mut Effects) {
        let mut hello =
            links::hello(&self.config.dialect, self.cluster, Role::Sdc, &self.config.name);
        if let Some((sdc, incarnation)) = self.me {
            (hello.id, hello.incarnation) = (sdc.0, incarnation.0);
        }
        self.session += 1;
        (hello.session, hello.map) = (self.session, self.map.version.0);
        self.mdm.finder.dialer_mut().link_up(now, link, &hello, out);
        self.links.insert(link, Peer::Mdm);
    }

    /// Handles the end of the link, or of a dial that failed: the next MDM is tried.
    pub(super) fn mdm_lost(&mut self, now: Time, out: &mut Effects) {
        let mdm = &mut self.mdm;
        mdm.registered = None;
        mdm.out = None;
        mdm.finder.lost(now, out.prng());
        self.map.forget_pages();
    }

    pub(super) fn mdm_frame(
        &mut self,
        now: Time,
        link: LinkId,
        header: &Header,
        body: Buf,
        out: &mut Effects,
    ) {
        let up = self.mdm.finder.dialer().up().filter(|up| up.id == link);
        let read = wire::check_version(header, up.map(|up| up.version));
        let frame = match read.and_then(|()| Frame::try_from(header)) {
            Ok(frame) => frame,
            Err(why) => return self.refuse_frame(now, link, why, out),
        };
        let known = match frame {
            Frame::Welcome(_) => {
                decode::<Welcome>(header, &body).map(|w| self.mdm_welcome(now, link, &w, out))
            }
            Frame::Registered(_) => {
                decode::<Registered>(header, &body).map(|r| self.registered(now, link, &r, out))
            }
            Frame::MapPage(m) if self.mdm.registered.is_some_and(|to| to.id == link) => {
                match read_page(&body, self.config.dialect.level_max) {
                    _ if !wire::body_ok(header, &body) => None,
                    Ok(page) => {
                        self.map_page(now, m.op, page, out);
                        Some(())
                    }
                    Err(why) => return self.refuse(now, link, why, out),
                }
            }
            Frame::Refusal(_) => {
                self.refuse(now, link, refusal_note(header, &body), out);
                let refusal = decode::<Refusal>(header, &body);
                // Only a refusal by an MDM ends this client: MDMs assign the incarnations, while
                // servers may have believed a stranger.
                if refusal.as_ref().is_some_and(|r| r.code() == RefusalCode::Superseded) {
                    self.client(now, out, |client, turn| client.superseded(turn));
                }
                let leader = refusal.map(|r| r.leader);
                if let Some(leader) = leader.and_then(|l| l.parse().ok()) {
                    self.mdm.finder.go_to(leader);
                }
                Some(())
            }
            _ => None,
        };
        if known.is_none() {
            self.refuse(now, link, "a frame that no MDM sends to a client", out);
        }
    }

    fn mdm_welcome(&mut self, now: Time, link: LinkId, welcome: &Welcome, out: &mut Effects) {
        let ours = self.cluster == ClusterId(0)
            || welcome.cluster == 0
            || ClusterId(welcome.cluster) == self.cluster;
        if welcome.role() != Role::Mdm || !ours {
            return self.refuse(now, link, "welcomed by something else than our MDM", out);
        }
        if knows_less(welcome.map, self.map.version) {
            return self.refuse(now, link, OF_BEFORE, out);
        }
        let Some(version) = links::agreed(&self.config.dialect, welcome) else {
            return self.refuse(now, link, NOT_OFFERED, out);
        };
        self.mdm.finder.dialer_mut().admitted(version);
        let register = RegisterSdc {
            name: self.config.name.clone(),
            nonce: self.config.nonce,
            pid: self.config.pid,
            nbd: self.config.nbd_uris.clone(),
            id: self.me.map_or(0, |(sdc, _)| sdc.0),
            incarnation: self.me.map_or(0, |(_, life)| life.0),
            build: Some(BuildInfo::of(&self.config.dialect)),
        };
        let link = PeerLink::new(link, version);
        send_control(link, &register, out);
        self.mdm.finder.dialer_mut().asked(now);
    }

    fn registered(&mut self, now: Time, link: LinkId, registered: &Registered, out: &mut Effects) {
        let Some(up) = self.mdm.finder.dialer().up().filter(|up| up.id == link) else {
            return self.refuse(now, link, "an answer to a registration that was not sent", out);
        };
        let me = (SdcId(registered.id), Incarnation(registered.incarnation));
        if me.0 == SdcId(0) || self.me.is_some_and(|old| old != me) {
            // Outstanding operations would belong to another client. So keep the old identity, and
            // do without this MDM.
            return self.refuse(now, link, "the MDM gives this process another identity", out);
        }
        if self.me.is_none() {
            self.me = Some(me);
            self.client.named(me.0, me.1);
            self.map.me = Some(me.0);
        }
        self.mdm.finder.dialer_mut().settled();
        self.cluster = ClusterId(registered.cluster);
        self.mdm.registered = Some(up);
        self.mdm.known_at = self.mdm.known_at.max(MapVersion(registered.map));
        self.mdm.want(MapVersion(registered.map));
        self.mdm.heartbeat_at = now;
        self.mdm.ask();
        self.dial_servers(now, out);
    }

    fn map_page(&mut self, now: Time, op: u64, page: MapPage, out: &mut Effects) {
        let last = page.last;
        if let Some(changes) = self.map.page(page) {
            self.cluster = self.map.cluster;
            out.note(Note::Map { version: self.map.version });
            self.mdm.finder.learn(&self.map.mdms);
            self.servers_changed(now, &changes.devices, out);
            self.client(now, out, |client, turn| client.map_changed(turn));
            self.nbd.review = true;
        }
        // If there was another request since this pull, it needs a later answer.
        if last && self.mdm.answered(op) && !self.mdm.ask {
            self.mdm.refreshed += 1;
            self.nbd_refreshed(now, out);
        }
    }

    /// Sends a pull, if one is due.
    pub(super) fn pull(&mut self, now: Time, out: &mut Effects) {
        let Some(link) = self.mdm.registered else { return };
        let late = self.mdm.out.filter(|pull| now.since(pull.since) >= AGAIN);
        let free = self.mdm.out.is_none() || late.is_some();
        // While the MDMs are being recovered, they have no map to hand out. This waits for the
        // first one.
        let none = self.map.version == MapVersion(0);
        let wanted = none || self.mdm.wanted > self.map.version || self.client.is_stuck();
        let due = self.mdm.ask || (wanted && free);
        if !due {
            return;
        }
        if late.is_some_and(|pull| !pull.parked) && self.mdm.finder.has_choice() {
            // Its host may have lost power. A link does not show that for minutes.
            return self.refuse(now, link.id, "an MDM that does not answer", out);
        }
        self.mdm.pulls += 1;
        // A parked pull that led to nothing is followed by a plain one, which an MDM answers at
        // once.
        let parked = !self.mdm.ask && late.is_none();
        let pull = Pull { op: self.mdm.pulls, parked, since: now };
        self.mdm.ask = false;
        self.mdm.out = Some(pull);
        let ask = MapPull { op: pull.op, have: self.map.version, wait: pull.parked };
        out.send(link.id, link.frame(ask, b""), Buf::EMPTY);
    }
}
