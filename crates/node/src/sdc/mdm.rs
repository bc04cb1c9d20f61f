//! The link to the MDM: registration, heartbeats, and when to pull the map.
//!
//! There are two kinds of pulls. A *plain* one asks for the present map: after registration, and
//! for an NBD client that negotiates. A *parked* one waits at the MDM until there is something
//! newer: it is sent while operations need a newer map or are stuck, or a group is lost that they
//! needed. An MDM keeps only the newest pull of each link, so a plain one replaces a parked one,
//! which is sent again after the answer. The header's `op`, which the answer repeats, tells them
//! apart.

use super::servers::{self, refusing};
use super::targets::{seats, shut};
use super::{Link, Sdc};
use crate::link::{Answer, MdmFinder, Welcomed, hello, send_control};
use crate::mapview::{OF_BEFORE, knows_less, read_page};
use crate::refusals::{MUTE, Reason, Writer};
use base::time::Duration;
use base::{ClusterId, Incarnation, Limits, LinkId, MapVersion, Mutant, SdcId, Time, mutant};
use core::net::SocketAddr;
use prost::Message;
use seam::{Buf, Effects, Note};
use wire::control::{
    BuildInfo, Heartbeat, Hello, MapPage, RefusalCode, RegisterSdc, Registered, Reserved, Role,
    SeatsTaken,
};
use wire::message::MapPull;
use wire::{Frame, Header, PeerLink};

/// A pull that has not been answered for this long is sent again, if it is still needed.
const AGAIN: Duration = Duration::from_secs(1);
/// The first and the longest pause between two dials of a process that is over.
const OVER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// The link to the MDM.
#[derive(Debug)]
pub(super) struct MdmLink {
    pub(super) finder: MdmFinder,
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
    /// The MDM has said that this process is over; then this is the pause before the next dial.
    over: Option<Duration>,
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
            finder: MdmFinder::new(addresses, limits),
            registered: None,
            known_at: MapVersion(0),
            heartbeat_at: Time::ZERO,
            wanted: MapVersion(0),
            ask: false,
            refreshed: 0,
            pulls: 0,
            out: None,
            over: None,
        }
    }

    /// True when an MDM knows us on a link that is up.
    pub(super) fn is_up(&self) -> bool {
        self.registered.is_some()
    }

    /// True when an MDM has said that this process is over. It never serves again.
    pub(super) fn is_over(&self) -> bool {
        self.over.is_some()
    }

    /// Returns the link on which an MDM knows us.
    pub(super) fn link(&self) -> Option<PeerLink> {
        self.registered
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
        self.mdm.finder.poll(now, &mut self.next_dial, out);
    }

    pub(super) fn greet_mdm(&mut self, now: Time, link: LinkId, out: &mut Effects) {
        self.session += 1;
        let (id, incarnation) = self.me.unwrap_or_default();
        let hello = Hello {
            id: id.0,
            incarnation: incarnation.0,
            session: self.session,
            map: self.map.version.0,
            ..hello(&self.config.dialect, self.cluster, Role::Sdc, &self.config.name)
        };
        self.mdm.finder.dialer_mut().link_up(now, link, &hello, out);
        self.links.insert(link, Link::Mdm);
    }

    /// Handles the end of the link, or of a dial that failed: the next MDM is tried.
    pub(super) fn mdm_lost(&mut self, now: Time, out: &mut Effects) {
        let mdm = &mut self.mdm;
        mdm.registered = None;
        mdm.out = None;
        mdm.finder.lost(now, out.prng());
        if let Some(pause) = &mut mdm.over {
            mdm.finder.dialer_mut().rest(now + *pause);
            *pause = (*pause * 2).min(OVER.1);
        }
        self.map.forget_pages();
    }

    /// Handles a frame from the MDM. An error is the reason for closing the link.
    pub(super) fn mdm_frame(
        &mut self,
        now: Time,
        link: LinkId,
        header: &Header,
        body: &[u8],
        out: &mut Effects,
    ) -> Result<(), Reason> {
        const STRANGE: &str = "a frame that no MDM sends to a client";
        let up = self.mdm.finder.dialer().up().filter(|up| up.id == link);
        wire::check_link(header, up.map(|up| up.version))?;
        let frame = Frame::try_from(header)?;
        if !wire::body_ok(header, body) {
            return Err(STRANGE.into());
        }
        let (dialect, cluster) = (&self.config.dialect, self.cluster);
        if let Some(answer) = self.mdm.finder.dialer().answer(dialect, cluster, &frame, body) {
            return self.mdm_answer(now, link, &answer, out);
        }
        match frame {
            Frame::Registered(_) => {
                let registered = Registered::decode(body).map_err(|_| STRANGE)?;
                self.registered(now, link, &registered, out)
            }
            Frame::Reserved(_) if self.mdm.registered.is_some_and(|to| to.id == link) => {
                let m = Reserved::decode(body).map_err(|_| STRANGE)?;
                let (at, here) = ((now, self.mdm.link()), self.map.version);
                if let Some(version) = self.targets.reserve_answer(at, &m, here, out) {
                    self.mdm.want(version);
                }
                Ok(())
            }
            Frame::SeatsTaken(_) if self.mdm.registered.is_some_and(|to| to.id == link) => {
                let m = SeatsTaken::decode(body).map_err(|_| STRANGE)?;
                if let Some(version) = seats::answer(self, now, m) {
                    self.mdm.want(version);
                }
                Ok(())
            }
            Frame::MapPage(m) if self.mdm.registered.is_some_and(|to| to.id == link) => {
                let page = read_page(body, dialect.level_max)?;
                self.map_page(now, m.op, page, out);
                Ok(())
            }
            _ => Err(STRANGE.into()),
        }
    }

    /// Handles the MDM's answer to a hello. An MDM may also refuse a client later.
    fn mdm_answer(
        &mut self,
        now: Time,
        link: LinkId,
        answer: &Answer,
        out: &mut Effects,
    ) -> Result<(), Reason> {
        match answer {
            Answer::Welcome(welcomed) => self.mdm_welcome(now, link, welcomed, out)?,
            Answer::Refusal(refusal) => {
                // Only a refusal by an MDM ends this client: MDMs assign the incarnations, while
                // servers may have believed a stranger.
                let superseded = refusal.code() == RefusalCode::Superseded;
                if superseded && !mutant::on(Mutant::IgnoreSuccessor) {
                    end(self, now, out);
                }
                if let Ok(leader) = refusal.leader.parse()
                    && !self.mdm.is_over()
                {
                    self.mdm.finder.go_to(leader);
                }
            }
            Answer::Wrong(_) => {}
        }
        answer.why(Writer::Sdc).map_or(Ok(()), |why| Err(why.into()))
    }

    fn mdm_welcome(
        &mut self,
        now: Time,
        link: LinkId,
        welcomed: &Welcomed,
        out: &mut Effects,
    ) -> Result<(), Reason> {
        if knows_less(welcomed.message.map, self.map.version) {
            return Err(OF_BEFORE.into());
        }
        let version = welcomed.version;
        self.mdm.finder.dialer_mut().admitted(version)?;
        let register = RegisterSdc {
            name: self.config.name.clone(),
            nonce: self.config.nonce,
            pid: self.config.pid,
            uris: self.config.uris.clone(),
            id: self.me.map_or(0, |(sdc, _)| sdc.0),
            incarnation: self.me.map_or(0, |(_, life)| life.0),
            build: Some(BuildInfo::of(&self.config.dialect)),
        };
        let link = PeerLink::new(link, version);
        send_control(link, &register, out);
        self.mdm.finder.dialer_mut().asked(now);
        Ok(())
    }

    fn registered(
        &mut self,
        now: Time,
        link: LinkId,
        registered: &Registered,
        out: &mut Effects,
    ) -> Result<(), Reason> {
        let Some(up) = self.mdm.finder.dialer().up().filter(|up| up.id == link) else {
            return Err("an answer to a registration that was not sent".into());
        };
        let me = (SdcId(registered.id), Incarnation(registered.incarnation));
        if me.0 == SdcId(0) || self.me.is_some_and(|old| old != me) {
            // Outstanding operations would belong to another client. So keep the old identity, and
            // do without this MDM.
            return Err("the MDM gives this process another identity".into());
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
        self.counters.tell();
        self.mdm.ask();
        self.targets.reserve_again((now, self.mdm.link()), out);
        self.targets.seats_tell();
        seats::again(self, now, out);
        self.servers.look_again();
        self.dial_servers(now, out);
        Ok(())
    }

    fn map_page(&mut self, now: Time, op: u64, page: MapPage, out: &mut Effects) {
        let last = page.last;
        if let Some(changes) = self.map.page(page) {
            self.cluster = self.map.cluster;
            out.note(Note::Map { version: self.map.version });
            self.mdm.finder.learn(&self.map.mdms);
            self.servers_changed(now, &changes.devices, out);
            seats::gateway_number(self, now, out);
            seats::fence(self, now, &changes.seated, out);
            self.reserve_fence(now, &changes.reserved, out);
            self.nvme_fence(now, &changes.hosts, out);
            self.client(now, out, |client, turn| client.map_changed(turn));
            self.targets.review = true;
        }
        // If there was another request since this pull, it needs a later answer.
        if last && self.mdm.answered(op) && !self.mdm.ask {
            self.mdm.refreshed += 1;
            self.targets_refreshed(now, out);
            self.targets.reserve_refreshed(&self.map);
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
        // Requests to a lost group end at once, so no server tells that it is served again. One
        // parked pull does.
        let lost = self.client.has_met_loss() && self.map.has_lost();
        let lost = lost && !mutant::on(Mutant::KeepLost);
        let due = self.mdm.ask || (wanted && free) || (lost && self.mdm.out.is_none());
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

/// Sends a heartbeat, if one is due.
pub(super) fn heartbeat(sdc: &mut Sdc, now: Time, out: &mut Effects) {
    let Some(link) = sdc.mdm.registered.filter(|_| sdc.mdm.heartbeat_at <= now) else { return };
    let mut attached = sdc.targets.attached();
    attached.extend(sdc.holds.volumes().map(|volume| volume.0));
    let every = sdc.config.limits.heartbeat_every;
    let hosts = sdc.targets.seats_hosts();
    let (targets, unanswered) = (&sdc.targets, sdc.client.origins());
    let in_flight = |link| targets.in_flight(link);
    let with_hosts = hosts.is_some();
    let counts = sdc.counters.report((now, every), &sdc.map, in_flight, unanswered, with_hosts);
    let heartbeat = Heartbeat {
        hosts,
        hosts_left_out: targets.seats_left_out() as u32,
        ops: sdc.served,
        connections: sdc.targets.nbd_connections() as u32,
        iscsi_sessions: sdc.targets.iscsi_connections() as u32,
        held: sdc.client.held(),
        attached: attached.into_iter().collect(),
        refused_by: refusing(&sdc.servers),
        counts,
        ..Heartbeat::default()
    };
    send_control(link, &heartbeat, out);
    sdc.mdm.heartbeat_at = now + every;
}

/// Ends this client: all I/O, the links to servers, and all connections of hosts. Its process
/// stays, as two processes with one name would end each other for ever if something started them
/// again.
fn end(sdc: &mut Sdc, now: Time, out: &mut Effects) {
    sdc.client(now, out, |client, turn| client.superseded(turn));
    if !sdc.mdm.is_over() {
        sdc.mdm.over = Some(OVER.0);
        out.note(Note::Over);
        servers::end(sdc, now, out);
        shut::shut(sdc, now, out);
    }
}
