//! A shard's side of the protocol with clients and other devices: handshakes, sessions, and the
//! dispatch of frames.

use super::{Sds, Session, Who};
use crate::links::{
    SESSION_LEAP, agreed, check_hello, hello, send_welcome, session_after, welcome,
};
use crate::refusals::{self, NOT_OFFERED, refusal, refuse};
use base::{DeviceId, Incarnation, LinkId, MapVersion, Mutant, SdcId, Time, UNIT, mutant};
use prost::Message;
use seam::{Buf, DialId, Effect, Effects, Note};
use wire::control::{Access, Hello, Refusal, RefusalCode, Role, Welcome};
use wire::message::{
    self, Beacon, Damage, Fetched, Grant, Io, MapPage, MapPull, Replicated, Reply, Request, Sealed,
    Sender, SyncState, UnitRange,
};
use wire::{Body, Header, Kind, Malformed, PeerLink, Status};

/// Text of the refusal if no map with the peer's incarnation came in time.
const UNHEARD_OF: &str =
    "this server has not heard of that life of yours: it may be cut off from the MDM. Try again";

/// Returns the sender of a frame about maps, which says no incarnation.
fn unsaid(map: MapVersion) -> Sender {
    Sender { incarnation: Incarnation(0), map }
}

/// A hello with an incarnation that the map does not have yet.
pub(super) struct Waiting {
    link: LinkId,
    /// When the hello is refused.
    pub(super) until: Time,
    hello: Hello,
}

impl Waiting {
    pub(super) fn is_on(&self, link: LinkId) -> bool {
        self.link == link
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
        if dial.is_some_and(|dial| self.greet_claimant(now, link, dial, out)) {
            return;
        }
        match dial.map(|dial| self.dials.remove(&dial)) {
            None => drop(self.links.insert(link, Who::Stranger)),
            Some(Some(None)) => self.greet_mdm(now, link, out),
            Some(Some(Some(device))) if self.followers.get(device).is_some() => {
                self.links.insert(link, Who::Follower(device));
                let mut hello =
                    hello(&self.config.dialect, self.cluster, Role::Sds, &self.config.name);
                (hello.id, hello.incarnation) = (self.me.0, self.incarnation.0);
                let follower = self.followers.change(device).expect("checked");
                follower.refused = false;
                follower.session = follower.session.saturating_add(1);
                (hello.session, hello.map) = (follower.session, self.map.version.0);
                hello.to = device.0;
                follower.dialer.link_up(now, link, &hello, out);
            }
            Some(_) => self.drop_link(now, link, out),
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
        if let Err(why) = wire::check_version(h, self.version_on(link, who)) {
            return self.refuse_frame(now, link, why, out);
        }
        if !wire::body_ok(h, &body) {
            out.note(Note::BadBody { link });
            return self.damaged(now, link, who, h, out);
        }
        match who {
            Who::Client(sdc, version) => {
                self.client_frame(now, PeerLink::new(link, version), sdc, h, body, out)
            }
            Who::Leader(device, version) => {
                self.leader_frame(now, PeerLink::new(link, version), device, h, body, out)
            }
            Who::Follower(device) => self.follower_frame(now, link, device, h, &body, out),
            Who::Mdm => self.mdm_frame(now, link, h, &body, out),
            Who::Claimant => self.claimant_frame(now, link, h, &body, out),
            Who::Stranger => self.greeted(now, link, h, &body, out),
        }
    }

    /// Returns the version of a link; `None` during its handshake.
    #[inline]
    fn version_on(&self, link: LinkId, who: Who) -> Option<u16> {
        let dialled = match who {
            Who::Client(_, version) | Who::Leader(_, version) => return Some(version),
            Who::Follower(device) => self.followers.up(device),
            Who::Mdm => self.mdm.dialer().up(),
            Who::Claimant | Who::Stranger => None,
        };
        dialled.filter(|up| up.id == link).map(|up| up.version)
    }

    /// Handles a damaged frame. A client can send its data again. Every other link starts over.
    fn damaged(&mut self, now: Time, link: LinkId, who: Who, h: &Header, out: &mut Effects) {
        if let (Who::Client(_, version), Ok(write)) = (who, message::Write::try_from(h)) {
            let link = PeerLink::new(link, version);
            return self.answer_client(link, &write.request, Status::Damaged, out);
        }
        self.drop_link(now, link, out);
    }

    // ---- handshakes ----

    fn greeted(&mut self, now: Time, link: LinkId, h: &Header, body: &Buf, out: &mut Effects) {
        // A peer whose hello waits must not send anything before it is answered.
        let waits = self.waiting.iter().any(|w| w.is_on(link));
        let hello = match (message::Hello::try_from(h), Hello::decode(&body[..])) {
            (Ok(_), Ok(hello)) if !waits => hello,
            _ => {
                out.note(Note::Refused { link, why: "the first frame was not a hello" });
                self.links.remove(&link);
                self.waiting.retain(|w| !w.is_on(link));
                return refuse(link, &refusal(RefusalCode::Unexpected, "say hello first"), out);
            }
        };
        if let Err(refusal) = self.take_hello(now, link, &hello, out) {
            out.note(Note::Refused { link, why: refusals::HELLO });
            self.links.remove(&link);
            refuse(link, &refusal, out);
        }
    }

    // Long: one check after the other, each with its refusal.
    fn take_hello(
        &mut self,
        now: Time,
        link: LinkId,
        hello: &Hello,
        out: &mut Effects,
    ) -> Result<(), Refusal> {
        let version = check_hello(&self.config.dialect, hello, self.cluster)?;
        if hello.role() == Role::Mdm {
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
        let incarnation = Incarnation(hello.incarnation);
        let known = match hello.role() {
            Role::Sdc => self.map.sdcs.get(&SdcId(hello.id)).copied(),
            Role::Sds if hello.id == self.me.0 => {
                return Err(refusal(RefusalCode::NotMe, "nobody else is this device"));
            }
            Role::Sds => self.map.devices.get(&DeviceId(hello.id)).map(|d| d.incarnation),
            _ => return Err(refusal(RefusalCode::Unexpected, "this is a data server: ask an MDM")),
        };
        let known = known.unwrap_or(Incarnation(0));
        let let_in = hello.role() == Role::Sdc && mutant::on(Mutant::OldLife);
        if incarnation < known && !let_in {
            let text = "a newer process serves in your name";
            return Err(refusal(RefusalCode::Superseded, text));
        }
        if incarnation > known && !mutant::on(Mutant::BelieveHello) {
            self.wait_for_map(now, link, hello);
            return Ok(());
        }
        let sessions_link = match hello.role() {
            Role::Sdc => {
                let sdc = SdcId(hello.id);
                let old = self.clients.get(&sdc).copied();
                // R8: this process may not have seen the newer incarnation, but its writes are
                // listed with the data.
                if incarnation < mirror.newest_life(sdc) && !mutant::on(Mutant::OldLife) {
                    let text = "a newer process has this client's name";
                    return Err(refusal(RefusalCode::Superseded, text));
                }
                let session = newer(old, incarnation, hello, link)?;
                if !mutant::on(Mutant::NoSession) {
                    mirror.session_over(now, sdc, out);
                }
                self.clients.insert(sdc, session);
                self.links.insert(link, Who::Client(sdc, version));
                old.and_then(|s| s.link)
            }
            _ => {
                let device = DeviceId(hello.id);
                let old = self.leaders.get(&device).copied();
                let session = newer(old, incarnation, hello, link)?;
                self.leaders.insert(device, session);
                self.links.insert(link, Who::Leader(device, version));
                if mutant::on(Mutant::BelieveHello) {
                    let map = MapVersion(hello.map);
                    mirror.heard(now, device, Sender { incarnation, map }, out);
                }
                old.and_then(|s| s.link)
            }
        };
        out.push(Effect::Welcome { link });
        // R8: operations of an older connection of the same sender no longer count.
        if let Some(old) = sessions_link.filter(|_| !mutant::on(Mutant::NoSession)) {
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

    /// Keeps a hello with an incarnation that the map does not have, as anyone can claim one. If
    /// the claim is true, a map with that incarnation is on its way.
    fn wait_for_map(&mut self, now: Time, link: LinkId, hello: &Hello) {
        let until = now + self.config.limits.hello_within;
        self.waiting.push(Waiting { link, until, hello: hello.clone() });
    }

    /// Answers the hellos that wait, as far as possible, after the map has changed or time has
    /// passed.
    pub(super) fn greet_waiting(&mut self, now: Time, out: &mut Effects) {
        for waiting in core::mem::take(&mut self.waiting) {
            let Waiting { link, until, hello } = waiting;
            let answer = match until <= now {
                true => Err(refusal(RefusalCode::Unknown, UNHEARD_OF)),
                false => self.take_hello(now, link, &hello, out),
            };
            if let Err(refusal) = answer {
                out.note(Note::Refused { link, why: refusals::HELLO });
                self.links.remove(&link);
                refuse(link, &refusal, out);
            } else if let Some(again) = self.waiting.iter_mut().find(|w| w.link == link) {
                again.until = until;
            }
        }
    }

    /// Ends sessions of client incarnations that have ended according to the map. Their links are
    /// closed, and their operations that have not begun are dropped.
    pub(super) fn end_lives(&mut self, now: Time, out: &mut Effects) {
        let blind = mutant::on(Mutant::NoSession) || mutant::on(Mutant::OldLife);
        let Some(mirror) = self.mirror.as_mut().filter(|_| !blind) else { return };
        let map = &self.map;
        let over =
            self.clients.extract_if(.., |sdc, session| map.is_over(*sdc, session.incarnation));
        for (sdc, session) in over {
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
    ) {
        let Some(session) = self.clients.get(&sdc) else { return };
        let mut io = match Io::of(h) {
            Some(Ok(io)) => io,
            Some(Err(why)) => return self.refuse_frame(now, link.id, why, out),
            None => {
                let why = "a client sent a frame that is not an I/O";
                out.note(Note::Refused { link: link.id, why });
                return self.drop_link(now, link.id, out);
            }
        };
        let client = &mut io.request_mut().client;
        (client.sdc, client.incarnation) = (sdc, session.incarnation);
        match self.check_volume(&io, sdc) {
            Err(status) => self.answer_client(link, io.request(), status, out),
            Ok(()) => {
                let mirror = self.mirror.as_mut().expect("clients are welcomed by a named shard");
                mirror.client(now, link, &io, Body::of(h, body), out);
            }
        }
    }

    /// Closes a link on which a frame came that can't be read.
    #[cold]
    pub(super) fn refuse_frame(
        &mut self,
        now: Time,
        link: LinkId,
        why: Malformed,
        out: &mut Effects,
    ) {
        out.note(why.note(link));
        self.drop_link(now, link, out);
    }

    /// Checks that the map has the volume, that this client may do this with it, that the range is
    /// in the volume, and that the unit belongs to this group.
    fn check_volume(&self, io: &Io, sdc: SdcId) -> Result<(), Status> {
        let request = io.request();
        let UnitRange { unit, at, len } = request.range;
        let newer = request.map > self.map.version;
        let Some(volume) = self.map.volumes.get(&unit.volume) else {
            let gone = self.map.is_deleted(unit.volume);
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

    fn answer_client(
        &mut self,
        link: PeerLink,
        request: &Request,
        status: Status,
        out: &mut Effects,
    ) {
        let reply = Reply::new(request.op, request.group, status, self.map.version);
        out.send(link.id, link.frame(reply, &[]), Buf::EMPTY);
    }

    fn leader_frame(
        &mut self,
        now: Time,
        link: PeerLink,
        from: DeviceId,
        h: &Header,
        body: Buf,
        out: &mut Effects,
    ) {
        if let Err(why) = self.take_of_leader(now, link, from, h, body, out) {
            self.refuse_frame(now, link.id, why, out);
        }
    }

    /// Reads a frame from a primary and hands it on.
    fn take_of_leader(
        &mut self,
        now: Time,
        link: PeerLink,
        from: DeviceId,
        h: &Header,
        body: Buf,
        out: &mut Effects,
    ) -> Result<(), Malformed> {
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
            Some(Kind::MapPage) => {
                self.page_of_server(now, link.id, from, &h.try_into()?, &body, out)
            }
            _ => {
                let why = "a server sent a frame that is not for a follower";
                out.note(Note::Refused { link: link.id, why });
                self.drop_link(now, link.id, out);
            }
        }
        Ok(())
    }

    fn follower_frame(
        &mut self,
        now: Time,
        link: LinkId,
        from: DeviceId,
        h: &Header,
        body: &Buf,
        out: &mut Effects,
    ) {
        if let Err(why) = self.take_of_follower(now, link, from, h, body, out) {
            self.refuse_frame(now, link, why, out);
        }
    }

    /// Reads a frame from a device that this one has dialled, and hands it on.
    fn take_of_follower(
        &mut self,
        now: Time,
        link: LinkId,
        from: DeviceId,
        h: &Header,
        body: &Buf,
        out: &mut Effects,
    ) -> Result<(), Malformed> {
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
                self.page_of_server(now, link, from, &m, body, out);
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
            Some(Kind::Welcome) => {
                message::Welcome::try_from(h)?;
                self.welcomed(now, link, from, body, out);
            }
            Some(Kind::Refusal) => {
                message::Refusal::try_from(h)?;
                self.refused_by_server(now, link, from, body, out);
            }
            _ => self.drop_link(now, link, out),
        }
        Ok(())
    }

    fn refused_by_server(
        &mut self,
        now: Time,
        link: LinkId,
        from: DeviceId,
        body: &Buf,
        out: &mut Effects,
    ) {
        let refusal = Refusal::decode(&body[..]).ok();
        let told = refusal.filter(|r| r.code() == RefusalCode::Superseded);
        if let Some((refusal, follower)) = told.zip(self.followers.change(from)) {
            follower.session = session_after(follower.session, refusal.session);
        }
        out.note(Note::Refused { link, why: refusals::BY_SERVER });
        self.drop_link(now, link, out);
    }

    fn welcomed(
        &mut self,
        now: Time,
        link: LinkId,
        device: DeviceId,
        body: &Buf,
        out: &mut Effects,
    ) {
        // An earlier process may still run where the device was. It has promised nothing, and its
        // grants bind nobody.
        let known = self.map.devices.get(&device).map_or(0, |d| d.incarnation.0);
        let welcome = Welcome::decode(&body[..]).ok();
        let welcome =
            welcome.filter(|w| w.role() == Role::Sds && w.id == device.0 && w.incarnation >= known);
        let version = welcome.as_ref().and_then(|w| agreed(&self.config.dialect, w));
        if welcome.is_some() && version.is_none() {
            out.note(Note::Refused { link, why: NOT_OFFERED });
        }
        let follower = self.followers.change(device).filter(|f| f.dialer.link() == Some(link));
        let (Some(version), Some(follower), Some(mirror)) = (version, follower, &mut self.mirror)
        else {
            return self.drop_link(now, link, out);
        };
        follower.dialer.welcomed(version);
        mirror.peer_up(now, device, PeerLink::new(link, version), out);
    }
}

/// Returns the session that this hello opens, if it is newer than the known one.
fn newer(
    old: Option<Session>,
    incarnation: Incarnation,
    hello: &Hello,
    link: LinkId,
) -> Result<Session, Refusal> {
    let last = old.filter(|s| s.incarnation == incarnation).map_or(0, |s| s.number);
    let stale = old.is_some_and(|s| (incarnation, hello.session) <= (s.incarnation, s.number));
    let wild = hello.session > last.saturating_add(SESSION_LEAP);
    if hello.id == 0 || incarnation.0 == 0 || (stale && !mutant::on(Mutant::NoSession)) || wild {
        let text = "a newer connection of the same process is here, or it has no id yet";
        let refusal = refusal(RefusalCode::Superseded, text);
        return Err(Refusal { session: if stale { last } else { 0 }, ..refusal });
    }
    Ok(Session { incarnation, number: hello.session, link: Some(link) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: Incarnation = Incarnation(5);

    fn hello_of(session: u64) -> Hello {
        Hello { id: 1, incarnation: LIFE.0, session, ..Hello::default() }
    }

    /// Dials until the hello is accepted, and returns the number of dials.
    fn dials(server: &mut Option<Session>, own: &mut u64) -> usize {
        for dial in 1..100 {
            *own += 1;
            match newer(*server, LIFE, &hello_of(*own), LinkId(1)) {
                Ok(session) => {
                    *server = Some(session);
                    return dial;
                }
                Err(refusal) => *own = session_after(*own, refusal.session),
            }
        }
        panic!("it never gets in, and says {own}");
    }

    /// The rightful process is soon accepted again, whatever session numbers a stranger has used in
    /// its name, and also after a restart of the server.
    #[test]
    fn a_wild_session_keeps_the_true_process_out_of_nothing() {
        let (mut a, mut b) = (None, None);
        let (mut own_a, mut own_b) = (0, 0);
        assert_eq!((dials(&mut a, &mut own_a), dials(&mut b, &mut own_b)), (1, 1));
        for _ in 0..3 {
            let forged = a.map_or(0, |s: Session| s.number) + SESSION_LEAP;
            a = Some(newer(a, LIFE, &hello_of(forged), LinkId(2)).expect("a leap is let in"));
        }
        assert!(dials(&mut a, &mut own_a) < 6);
        // The other server hears nothing of that, and the numbers of each may start again.
        b = None;
        assert_eq!(dials(&mut b, &mut own_b), 1);
        a = None;
        assert!(dials(&mut a, &mut own_a) <= 2);
        assert_eq!(session_after(7, u64::MAX), 7 + SESSION_LEAP, "no far end uses up the numbers");
        assert!(session_after(u64::MAX, u64::MAX) == u64::MAX);
    }
}
