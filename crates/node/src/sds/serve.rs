//! A shard's side of the protocol with clients and other devices: handshakes, sessions, and the
//! dispatch of frames.

use super::sessions::Waiting;
use super::{PeerRole, Sds};
use crate::link::handshake::{check_hello, read_hello, send_welcome};
use crate::link::session::Session;
use crate::link::{Answer, PeerId, welcome};
use crate::mapview::MapView;
use crate::refusals::{self, Reason, refusal, refuse};
use base::{DeviceId, Incarnation, LinkId, MapVersion, Mutant, SdcId, Time, UNIT, mutant};
use seam::{Buf, DialId, Effect, Effects, Note};
use wire::control::{Access, Hello, Refusal, RefusalCode, Role};
use wire::message::{
    Beacon, Damage, Fetched, Grant, Io, MapPage, MapPull, Replicated, Reply, Request, Sealed,
    Sender, SyncState, UnitRange,
};
use wire::{Body, Frame, Header, Kind, Malformed, PeerLink, Status};

/// Text of the refusal if no map with the peer's incarnation came in time.
const UNHEARD_OF: &str =
    "this server does not know your incarnation yet: it may be cut off from the MDM. Try again";

/// Returns the sender of a frame about maps, which names no incarnation.
fn unsaid(map: MapVersion) -> Sender {
    Sender { incarnation: Incarnation(0), map }
}

impl PeerRole {
    /// Returns the version of the peer's link; `None` during the handshake.
    #[inline]
    fn version(self, sds: &Sds, link: LinkId) -> Option<u16> {
        let dialled = match self {
            PeerRole::Client(_, version) | PeerRole::Leader(_, version) => return Some(version),
            PeerRole::Follower(device) => sds.followers.up(device),
            PeerRole::Mdm => sds.mdm.finder.dialer().up(),
            PeerRole::Claimant | PeerRole::Stranger => None,
        };
        dialled.filter(|up| up.id == link).map(|up| up.version)
    }
}

impl Sds {
    pub(super) fn link_up(
        &mut self,
        now: Time,
        link: LinkId,
        dial: Option<DialId>,
        out: &mut Effects,
    ) {
        let Some(dial) = dial else {
            self.links.insert(link, PeerRole::Stranger);
            return;
        };
        if self.mdm.finder.dialled(dial) {
            self.links.insert(link, PeerRole::Mdm);
            let hello = self.own_hello();
            return self.mdm.finder.dialer_mut().link_up(now, link, &hello, out);
        }
        match self.followers.dialled(dial) {
            Some((device, true)) => {
                self.links.insert(link, PeerRole::Follower(device));
                let hello = Hello { to: device.0, ..self.own_hello() };
                let follower = self.followers.change(device).expect("it was dialled");
                follower.about.refused = false;
                follower.link_up(now, link, hello, out);
            }
            None if self.greet_claimant(now, link, dial, out) => {}
            _ => self.drop_link(now, link, out),
        }
    }

    pub(super) fn frame(
        &mut self,
        now: Time,
        link: LinkId,
        head: &[u8],
        body: Buf,
        out: &mut Effects,
    ) {
        let h = wire::parse(head);
        let Some(who) = self.links.get(&link).copied() else { return };
        let checked = wire::check_link(h, who.version(self, link));
        if let Err(why) = checked
            && who != PeerRole::Stranger
        {
            return self.refuse(now, link, why, out);
        }
        if !wire::body_ok(h, &body) {
            out.note(Note::BadBody { link });
            // A client can send its data again. Every other link starts over.
            return match (who, Io::of(h)) {
                (PeerRole::Client(_, version), Some(Ok(io))) if io.body_len() > 0 => {
                    let link = PeerLink::new(link, version);
                    self.answer(link, io.request(), Status::Damaged, out)
                }
                _ => self.drop_link(now, link, out),
            };
        }
        let done = match who {
            PeerRole::Client(sdc, version) => {
                self.client_frame(now, PeerLink::new(link, version), sdc, h, body, out)
            }
            PeerRole::Leader(device, version) => {
                self.leader_frame(now, PeerLink::new(link, version), device, h, body, out)
            }
            PeerRole::Follower(device) => self.follower_frame(now, link, device, h, &body, out),
            PeerRole::Mdm => self.mdm_frame(now, link, h, &body, out),
            PeerRole::Claimant => self.claimant_frame(now, link, h, &body, out),
            PeerRole::Stranger => {
                let frame = checked.and_then(|()| Frame::try_from(h));
                self.greeted(now, link, frame, &body, out);
                Ok(())
            }
        };
        if let Err(why) = done {
            self.refuse(now, link, why, out);
        }
    }

    // ---- handshakes ----

    fn greeted(
        &mut self,
        now: Time,
        link: LinkId,
        frame: Result<Frame, Malformed>,
        body: &Buf,
        out: &mut Effects,
    ) {
        let hello = match self.sessions.waits(link) {
            true => Err(refusal(RefusalCode::Unexpected, "a hello has to be answered first")),
            false => read_hello(frame, body),
        };
        if let Err(why) = hello.and_then(|hello| self.take_hello(now, link, &hello, out)) {
            self.refuse_hello(link, &why, out);
        }
    }

    fn refuse_hello(&mut self, link: LinkId, why: &Refusal, out: &mut Effects) {
        out.note(Note::Refused { link, why: refusals::HELLO });
        self.links.remove(&link);
        self.sessions.forget(link);
        refuse(link, why, out);
    }

    // Long: one check after the other, each with its refusal.
    fn take_hello(
        &mut self,
        now: Time,
        link: LinkId,
        hello: &Hello,
        out: &mut Effects,
    ) -> Result<(), Refusal> {
        let (peer, version) = check_hello(&self.config.dialect, hello, self.cluster)?;
        if let PeerId::Mdm(_) = peer {
            self.mdm_asks(now, hello, out);
            return Ok(()); // it closes the link
        }
        let Some(mirror) = &mut self.mirror else {
            return Err(refusal(
                RefusalCode::Unknown,
                "this server is not registered with its MDM yet: try again",
            ));
        };
        if hello.to != 0 && hello.to != self.me.0 && !mutant::on(Mutant::AnyDevice) {
            // If it counted as a new session, it would end that of the rightful process.
            let (me, meant) = (self.me, DeviceId(hello.to));
            let text = alloc::format!("this is {me}, not {meant}: an MDM knows where that is");
            return Err(refusal(RefusalCode::NotMe, text));
        }
        let (incarnation, known) = match peer {
            PeerId::Client(sdc, life) => (life, self.map.sdcs.get(&sdc).copied()),
            PeerId::Device(device, _) if device == self.me => {
                return Err(refusal(RefusalCode::NotMe, "this process is the device itself"));
            }
            PeerId::Device(device, life) => {
                (life, self.map.devices.get(&device).map(|d| d.incarnation))
            }
            _ => return Err(refusal(RefusalCode::Unexpected, "this is a data server: ask an MDM")),
        };
        let known = known.unwrap_or(Incarnation(0));
        let let_in = hello.role() == Role::Sdc && mutant::on(Mutant::OldIncarnation);
        if incarnation < known && !let_in {
            let text = "a newer process serves in your name";
            return Err(refusal(RefusalCode::Superseded, text));
        }
        if incarnation > known && !mutant::on(Mutant::BelieveHello) {
            let until = now + self.config.limits.hello_within;
            self.sessions.waiting.push(Waiting { link, until, hello: hello.clone() });
            return Ok(());
        }
        let old = match peer {
            PeerId::Client(sdc, _) => {
                // R8: this process may not have heard of the client's newer incarnation, but the
                // writes of that incarnation are listed with the data.
                if incarnation < mirror.replicas().newest_life(sdc)
                    && !mutant::on(Mutant::OldIncarnation)
                {
                    let text = "a newer process has this client's name";
                    return Err(refusal(RefusalCode::Superseded, text));
                }
                let session =
                    Session::newer(self.sessions.clients.get(&sdc).copied(), hello, link)?;
                if !mutant::on(Mutant::NoSession) {
                    mirror.session_over(now, sdc, out);
                }
                self.links.insert(link, PeerRole::Client(sdc, version));
                self.sessions.clients.insert(sdc, session)
            }
            _ => {
                let device = DeviceId(hello.id);
                let session =
                    Session::newer(self.sessions.leaders.get(&device).copied(), hello, link)?;
                self.links.insert(link, PeerRole::Leader(device, version));
                self.sessions.leaders.insert(device, session)
            }
        };
        out.push(Effect::Welcome { link });
        // R8: operations of an older connection of the same sender no longer count.
        let old = old.and_then(|session| session.link);
        if let Some(old) = old.filter(|_| !mutant::on(Mutant::NoSession)) {
            self.links.remove(&old);
            out.note(Note::OldSession { link: old });
            out.push(Effect::Close { link: old });
        }
        let mut welcome = welcome(self.cluster, Role::Sds, version);
        (welcome.id, welcome.incarnation, welcome.map) =
            (self.me.0, self.incarnation.0, self.map.version.0);
        welcome.credit_ops = self.config.limits.client_ops;
        welcome.credit_bytes = self.config.limits.client_bytes;
        send_welcome(link, &welcome, out);
        Ok(())
    }

    /// Answers the hellos that wait, as far as possible, after the map has changed or time has
    /// passed.
    pub(super) fn greet_waiting(&mut self, now: Time, out: &mut Effects) {
        for waiting in core::mem::take(&mut self.sessions.waiting) {
            let Waiting { link, until, hello } = waiting;
            let answer = match until <= now {
                true => Err(refusal(RefusalCode::Unknown, UNHEARD_OF)),
                false => self.take_hello(now, link, &hello, out),
            };
            if let Err(why) = answer {
                self.refuse_hello(link, &why, out);
            } else if let Some(again) = self.sessions.waiting.iter_mut().find(|w| w.link == link) {
                again.until = until;
            }
        }
    }

    /// Ends sessions of client incarnations that have ended according to the map. Their links are
    /// closed, and their operations that have not begun are dropped.
    pub(super) fn end_lives(&mut self, now: Time, out: &mut Effects) {
        let blind = mutant::on(Mutant::NoSession) || mutant::on(Mutant::OldIncarnation);
        let Some(mirror) = self.mirror.as_mut().filter(|_| !blind) else { return };
        for (sdc, session) in self.sessions.over(&self.map) {
            mirror.session_over(now, sdc, out);
            if let Some(link) = session.link {
                self.links.remove(&link);
                out.note(Note::OldSession { link });
                out.push(Effect::Close { link });
            }
        }
    }

    // ---- frames ----

    fn client_frame(
        &mut self,
        now: Time,
        link: PeerLink,
        sdc: SdcId,
        h: &Header,
        body: Buf,
        out: &mut Effects,
    ) -> Result<(), Reason> {
        let Some(session) = self.sessions.clients.get(&sdc) else { return Ok(()) };
        let mut io = Io::of(h).ok_or("a client sent a frame that is not an I/O")??;
        let client = &mut io.request_mut().client;
        (client.sdc, client.incarnation) = (sdc, session.incarnation);
        match may_do(&self.map, &io, sdc) {
            Err(status) => self.answer(link, io.request(), status, out),
            Ok(()) => {
                let mirror = self.mirror.as_mut().expect("clients are welcomed by a named shard");
                mirror.client(now, link, &io, Body::of(h, body), out);
            }
        }
        Ok(())
    }

    fn answer(&self, link: PeerLink, request: &Request, status: Status, out: &mut Effects) {
        let reply = Reply::new(request.op, request.group, status, self.map.version);
        out.send(link.id, link.frame(reply, &[]), Buf::EMPTY);
    }

    /// Handles a frame from a primary. An error is the reason for closing the link.
    fn leader_frame(
        &mut self,
        now: Time,
        link: PeerLink,
        from: DeviceId,
        h: &Header,
        body: Buf,
        out: &mut Effects,
    ) -> Result<(), Reason> {
        let mirror = self.mirror.as_mut().expect("leaders are welcomed by a named shard");
        match h.kind() {
            Some(Kind::Replicate) => {
                mirror.replicate_in(now, link, from, &h.try_into()?, Body::of(h, body), out)
            }
            Some(Kind::Beacon) => {
                let beacon = Beacon::try_from(h)?;
                mirror.beacon_in(now, link, from, &beacon, out);
                self.look_for_news(now, link, from, beacon.sender.map, out);
            }
            Some(Kind::Fetch) => mirror.fetch_in(now, link, from, &h.try_into()?, out),
            Some(Kind::Commit) => mirror.commit_in(from, &h.try_into()?),
            Some(Kind::SyncStart) => mirror.sync_start_in(link, from, &h.try_into()?, &body, out),
            Some(Kind::SyncWipe) => mirror.sync_wipe_in(now, link, from, &h.try_into()?, out),
            Some(Kind::Seal) => mirror.seal_in(now, link, from, &h.try_into()?, &body, out),
            Some(Kind::MapPull) => self.pass_on(link, &h.try_into()?, out),
            Some(Kind::MapPage) => self.page_of_server(now, from, &h.try_into()?, &body, out)?,
            _ => return Err("a server sent a frame that is not for a follower".into()),
        }
        Ok(())
    }

    /// Handles a frame from a device that this one has dialled. An error is the reason for closing
    /// the link.
    fn follower_frame(
        &mut self,
        now: Time,
        link: LinkId,
        from: DeviceId,
        h: &Header,
        body: &Buf,
        out: &mut Effects,
    ) -> Result<(), Reason> {
        let mirror = self.mirror.as_mut().expect("followers are dialled by a named shard");
        match h.kind() {
            Some(Kind::Replicated) => {
                let m = Replicated::try_from(h)?;
                mirror.replicated(now, from, &m, out);
            }
            Some(Kind::Grant) => {
                let m = Grant::try_from(h)?;
                mirror.grant_in(now, from, &m, out);
                if let Some(link) = self.followers.up(from) {
                    self.look_for_news(now, link, from, m.sender.map, out);
                }
            }
            Some(Kind::MapPull) => {
                let m = MapPull::try_from(h)?;
                mirror.heard(now, from, unsaid(m.have), out);
                if let Some(link) = self.followers.up(from) {
                    self.pass_on(link, &m, out);
                }
            }
            Some(Kind::MapPage) => {
                let m = MapPage::try_from(h)?;
                mirror.heard(now, from, unsaid(m.map), out);
                self.page_of_server(now, from, &m, body, out)?;
            }
            Some(Kind::SyncState) => {
                let m = SyncState::try_from(h)?;
                mirror.sync_state_in(now, from, &m, body, out);
            }
            Some(Kind::Sealed) => {
                let m = Sealed::try_from(h)?;
                mirror.sealed_in(now, from, &m, out);
            }
            Some(Kind::Damage) => {
                let m = Damage::try_from(h)?;
                mirror.damage_in(now, from, &m, out);
            }
            Some(Kind::Fetched) => {
                let m = Fetched::try_from(h)?;
                mirror.fetched_in(now, from, &m, body.clone(), out);
            }
            Some(Kind::Welcome | Kind::Refusal) => {
                return self.follower_answer(now, link, from, &h.try_into()?, body, out);
            }
            _ => return Err("a server sent a frame that is not for a primary".into()),
        }
        Ok(())
    }

    /// Handles the answer of a device to a hello.
    fn follower_answer(
        &mut self,
        now: Time,
        link: LinkId,
        from: DeviceId,
        frame: &Frame,
        body: &Buf,
        out: &mut Effects,
    ) -> Result<(), Reason> {
        const STALE: &str = "welcomed on a link that is no longer needed";
        // An earlier process may still run where the device was. It has promised nothing, and its
        // grants bind no process.
        const EARLIER: &str = "welcomed by an earlier process than the map has";
        let follower = self.followers.change(from).filter(|f| f.link() == Some(link));
        let follower = follower.ok_or(STALE)?;
        let dialer = follower.dialer().expect("it has a link");
        match dialer.answer(&self.config.dialect, self.cluster, frame, body).ok_or(STALE)? {
            Answer::Welcome(welcomed) => {
                let known = self.map.devices.get(&from).map_or(Incarnation(0), |d| d.incarnation);
                if welcomed.message.incarnation < known.0 {
                    return Err(EARLIER.into());
                }
                follower.welcomed(welcomed.version)?;
                let link = PeerLink::new(link, welcomed.version);
                self.mirror.as_mut().expect("checked").peer_up(now, from, link, out);
                Ok(())
            }
            Answer::Refusal(refusal) => {
                if refusal.code() == RefusalCode::Superseded {
                    follower.superseded(&refusal);
                }
                Err(refusals::BY_SERVER.into())
            }
            Answer::Wrong(wrong) => Err(wrong.why().into()),
        }
    }
}

/// Checks that the map has the volume, that this client may do this with it, that the range is in
/// the volume, and that the unit belongs to this group.
fn may_do(map: &MapView, io: &Io, sdc: SdcId) -> Result<(), Status> {
    let request = io.request();
    let UnitRange { unit, at, len } = request.range;
    let newer = request.map > map.version;
    let Some(volume) = map.volumes.get(&unit.volume) else {
        let gone = map.is_deleted(unit.volume);
        return Err(if newer && !gone { Status::Behind } else { Status::NoVolume });
    };
    let Some(grant) = volume.mapping.grant(sdc) else {
        return Err(if newer { Status::Behind } else { Status::NoVolume });
    };
    if io.writes() && grant.access == Access::ReadOnly {
        return Err(if newer { Status::Behind } else { Status::ReadOnly });
    }
    let end = u64::from(unit.index) * u64::from(UNIT) + u64::from(at) + u64::from(len);
    if end > volume.size {
        return Err(if newer { Status::Behind } else { Status::OutOfRange });
    }
    if request.generation < grant.generation {
        return Err(Status::Stale);
    }
    if volume.group_of(unit.index) != Some(request.group) {
        return Err(Status::OutOfRange);
    }
    Ok(())
}
