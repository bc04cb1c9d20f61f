//! Frames: which peer may send what. Decides which links stay, and queues requests to the state.

use super::intake::Input;
use super::outlet::Answer;
use super::{ADMINS, INPUTS, INPUTS_PER_LINK, Mdm, Peer, Pull};
use crate::link::handshake::{check_hello, read_hello, send_welcome};
use crate::link::{PeerId, send_control, welcome};
use crate::refusals::{self, Writer, refusal, refuse};
use alloc::format;
use alloc::string::String;
use base::mutant::{self, Mutant};
use base::{DeviceId, LinkId, Time};
use mdm::controller::superseded;
use prost::Message;
use seam::{Buf, Effect, Effects, Head, Note};
use wire::control::{
    AdminError, AdminReply, AdminRequest, Heartbeat, Hello, Intent, Proposal, Refusal, RefusalCode,
    Register, RegisterSdc, Report, Role,
};
use wire::{Frame, Malformed, message};

/// The longest control message that an MDM accepts, in bytes.
const MESSAGE: usize = 512 << 10;

impl Mdm {
    pub(super) fn frame(
        &mut self,
        now: Time,
        link: LinkId,
        head: &[u8],
        body: &[u8],
        out: &mut Effects,
    ) {
        let header = wire::parse(head);
        let frame = Frame::try_from(header);
        if self.asks_on(link) {
            return self.answered(now, frame.ok(), body, out);
        }
        let ours = self.peers.has(link);
        if !ours && !self.links.contains_key(&link) {
            return; // closed by this MDM; the frame was already in flight
        }
        if !wire::body_ok(header, body) {
            out.note(Note::BadBody { link });
            out.push(Effect::Close { link });
            return match (ours, self.peers.lost(link)) {
                (_, Some(member)) => self.member_lost(now, member, out),
                (true, None) => {}
                (false, None) => self.forget(link, out),
            };
        }
        if ours {
            return self.member_frame(now, link, frame.ok(), body, out);
        }
        match self.take(now, link, frame, body, out) {
            Err(why) if why.code() == RefusalCode::WrongDevice => self.expel(link, why, out),
            Err(why) => self.refuse(link, &why, out),
            Ok(()) => {}
        }
    }

    /// Ends a link with a refusal that also makes the server's process end. It leaves only if this
    /// MDM still leads, and when the state that it rests on is committed.
    pub(super) fn expel(&mut self, link: LinkId, why: Refusal, out: &mut Effects) {
        if mutant::on(Mutant::MdmAnswerEarly) {
            return self.refuse(link, &why, out);
        }
        if !self.answers.iter().any(|a| a.link == link && a.refusal.is_some()) {
            let nothing = Answer::frame(link, Head::EMPTY, Buf::EMPTY);
            self.answers.push(Answer { refusal: Some(why), question: u64::MAX, ..nothing });
        }
    }

    /// Ends a link with a refusal.
    pub(super) fn refuse(&mut self, link: LinkId, why: &Refusal, out: &mut Effects) {
        let note = refusals::note(why.code(), Writer::Mdm);
        self.refuse_for(link, why, note, out);
    }

    /// Ends a link with a refusal for the other side, and a reason for the log.
    fn refuse_for(&mut self, link: LinkId, why: &Refusal, note: &'static str, out: &mut Effects) {
        out.note(Note::Refused { link, why: note });
        refuse(link, why, out);
        self.forget(link, out);
    }

    // Long: one match over all kinds of frames and the roles that may send them.
    fn take(
        &mut self,
        now: Time,
        link: LinkId,
        frame: Result<Frame, Malformed>,
        body: &[u8],
        out: &mut Effects,
    ) -> Result<(), Refusal> {
        let peer = self.links[&link].peer;
        if let (Ok(Frame::Raft(part)), Peer::Mdm(member)) = (frame, peer) {
            if let Err((why, note)) = self.part(link, member, part, body, out) {
                self.refuse_for(link, &why, note, out);
            }
            return Ok(());
        }
        if body.len() > MESSAGE {
            return Err(unexpected(format!("a control message has at most {MESSAGE} bytes")));
        }
        let role = match peer {
            Peer::Stranger => None,
            Peer::Guest(role) => Some(role),
            Peer::Device(..) => Some(Role::Sds),
            Peer::Sdc(..) => Some(Role::Sdc),
            Peer::Mdm(_) => Some(Role::Mdm),
        };
        match (frame, role) {
            (frame, None) => match read_hello(frame, body)? {
                own if self.is_own(&own) => {
                    self.go_on(now, out);
                    Ok(())
                }
                hello => {
                    let (name, role) = (hello.name.clone(), hello.role());
                    self.hello(link, hello, out).inspect_err(|why| {
                        let shown = matches!(
                            (role, why.code()),
                            (Role::Sds, RefusalCode::WrongCluster | RefusalCode::WrongVersion)
                                | (Role::Mdm, RefusalCode::TooOld)
                        );
                        if shown {
                            self.turned_away.put(now, &name, 0, "", &why.text);
                        }
                    })
                }
            },
            (Ok(Frame::Report(_)), Some(Role::Sds)) => {
                let report = decode::<Report>(body)?;
                report.check().map_err(|unknown| {
                    unexpected(format!("this MDM doesn't know {unknown} in a report: update it"))
                })?;
                match self.report(link, report) {
                    true => Ok(()),
                    false => {
                        Err(unexpected("a report of more groups or volumes than there can be"))
                    }
                }
            }
            (Ok(Frame::Register(_)), Some(Role::Sds)) => {
                self.queue(link, Input::Register(link, decode::<Register>(body)?));
                Ok(())
            }
            (Ok(Frame::RegisterSdc(_)), Some(Role::Sdc)) => {
                self.queue(link, Input::RegisterSdc(link, decode::<RegisterSdc>(body)?));
                Ok(())
            }
            (Ok(Frame::Heartbeat(_)), Some(Role::Sds | Role::Sdc)) => {
                self.heartbeat(now, peer, decode(body)?)
            }
            (Ok(Frame::MapPull(message::MapPull { have, op, wait })), Some(_)) => {
                let pull = Pull { have, op, wait };
                let link = self.links.get_mut(&link).expect("looked up above");
                (link.parked, link.have) = (Some(pull), have);
                if let Peer::Device(device, _) = peer {
                    let seen = self.observed.devices.entry(device).or_default();
                    seen.map = seen.map.max(have);
                }
                Ok(())
            }
            (Ok(Frame::Proposal(_)), Some(Role::Sds)) => {
                self.proposal(now, link, decode(body)?, out)
            }
            (Ok(Frame::Admin(message::Admin { op })), Some(Role::Admin)) => {
                self.order(link, op, decode(body)?, out);
                Ok(())
            }
            (Ok(frame), Some(role)) => {
                let kind = frame.kind();
                Err(unexpected(format!("an MDM takes no {kind:?} from an {role:?}")))
            }
            (Err(Malformed::Unknown { code }), _) => {
                Err(unexpected(format!("this MDM doesn't know frames of kind {code}: update it")))
            }
            (Err(why), _) => Err(unexpected(format!("this MDM can't read a frame: {why}"))),
        }
    }

    pub(super) fn hello(
        &mut self,
        link: LinkId,
        hello: Hello,
        out: &mut Effects,
    ) -> Result<(), Refusal> {
        if self.failed.is_some() {
            return self.greet(link, &hello, out);
        }
        let member = hello.role() == Role::Mdm;
        let wait = match member {
            true => self.log.is_recovering() || self.moved.is_some(),
            false => self.is_undecided(),
        };
        if wait {
            self.links.get_mut(&link).expect("looked up above").hello = Some(hello);
            return Ok(());
        }
        if member {
            return self.greet_other(link, hello, out);
        }
        if !self.ready {
            check_hello(&self.config.dialect, &hello, self.state.cluster)?;
            if hello.role() == Role::Admin && hello.direct && self.consensus.is_some() {
                return self.greet(link, &hello, out);
            }
            return Err(self.not_leader());
        }
        self.greet(link, &hello, out)
    }

    /// Answers another MDM's hello.
    fn greet_other(
        &mut self,
        link: LinkId,
        hello: Hello,
        out: &mut Effects,
    ) -> Result<(), Refusal> {
        let (_, version) = check_hello(&self.config.dialect, &hello, self.state.cluster)?;
        // A proposed entry may still be dropped.
        if self.proposed().is_none() {
            self.check_build(&hello.name, hello.build.as_ref())?;
            self.turned_away.came(&hello.name, 0);
        }
        if !self.hello_of_member(&hello)? {
            self.links.get_mut(&link).expect("it said hello").hello = Some(hello);
            return Ok(());
        }
        self.links.get_mut(&link).expect("it said hello").version = version;
        self.note_build(link, hello.build);
        self.seat_member(link, hello.id, hello.secret, out);
        out.push(Effect::Welcome { link });
        self.welcome_member(link, out);
        Ok(())
    }

    /// Answers a hello.
    pub(super) fn greet(
        &mut self,
        link: LinkId,
        hello: &Hello,
        out: &mut Effects,
    ) -> Result<(), Refusal> {
        let (peer, version) = check_hello(&self.config.dialect, hello, self.state.cluster)?;
        let role = hello.role();
        let stop = self.failed.as_ref().filter(|stop| role != Role::Admin || !stop.alone);
        if let Some(stop) = stop {
            return Err(refusal(RefusalCode::Unknown, stop.why.clone()));
        }
        let newest = match peer {
            PeerId::Device(device, _) => self.state.devices.get(&device).map(|d| d.incarnation),
            PeerId::Client(sdc, _) => self.state.sdcs.get(&sdc).map(|s| s.incarnation),
            PeerId::Admin => None,
            PeerId::Unknown | PeerId::Mdm(_) => {
                return Err(refusal(
                    RefusalCode::NotMe,
                    "this is an MDM; it serves SDSs, SDCs and orders",
                ));
            }
        };
        if hello.incarnation != 0 && newest.is_some_and(|i| hello.incarnation < i.0) {
            return Err(refusal(RefusalCode::Superseded, superseded(&hello.name)));
        }
        let guest = self.links.get_mut(&link).expect("it said hello");
        (guest.peer, guest.version) = (Peer::Guest(role), version);
        if role == Role::Admin {
            self.take_admin(link, out);
        }
        let mut answer = welcome(self.state.cluster, Role::Mdm, version);
        (answer.incarnation, answer.map) = (self.life.0, self.state.version.0);
        if self.state.recovery.open {
            answer.map = self.state.index; // no map has this version yet
        }
        answer.recovers = role == Role::Sds && self.state.wants_reports();
        if role == Role::Admin {
            let end = self.consensus.as_ref().map(|c| (c.last_term(), c.last()));
            (answer.last_term, answer.last) = end.unwrap_or_default();
            answer.mdms = self.state.members.infos();
        }
        send_welcome(link, &answer, out);
        Ok(())
    }

    /// Welcomes a link for orders. Any peer may give orders, so when there are too many such links,
    /// the oldest is closed. Servers and clients are strangers until they have registered.
    fn take_admin(&mut self, link: LinkId, out: &mut Effects) {
        if self.admins.len() >= ADMINS
            && let Some(oldest) = self.admins.pop_front()
        {
            out.note(Note::Crowded);
            out.push(Effect::Close { link: oldest });
            self.forget(oldest, out);
        }
        self.admins.push_back(link);
        out.push(Effect::Welcome { link });
    }

    fn heartbeat(&mut self, now: Time, peer: Peer, heartbeat: Heartbeat) -> Result<(), Refusal> {
        match peer {
            Peer::Device(device, life) => {
                self.check_life(device, life.0)?;
                self.detector.heard(now, device, life);
                if !heartbeat.slow.is_empty() {
                    self.slowness.hurry(now);
                }
                let seen = self.observed.devices.entry(device).or_default();
                if let Some(entry) = self.state.devices.get(&device) {
                    seen.has_settled(entry.store, heartbeat.settled);
                }
                seen.beat(now, heartbeat);
                if !self.state.is_up(device) {
                    self.revived.insert(device);
                }
            }
            Peer::Sdc(sdc, life) => {
                let Some(entry) = self.state.sdcs.get(&sdc) else {
                    return Err(unexpected(format!("this cluster has no {sdc}: register first")));
                };
                if entry.incarnation > life {
                    return Err(refusal(RefusalCode::Superseded, superseded(&entry.name)));
                }
                self.observed.sdcs.entry(sdc).or_default().beat(now, heartbeat);
            }
            // Its registration still waits for the disk.
            Peer::Stranger | Peer::Guest(_) | Peer::Mdm(_) => {}
        }
        Ok(())
    }

    /// Refuses a process whose incarnation is over according to the map.
    fn check_life(&self, device: DeviceId, life: u64) -> Result<(), Refusal> {
        let Some(entry) = self.state.devices.get(&device) else {
            return Err(unexpected(format!("this cluster has no {device}: register first")));
        };
        if entry.intent == Intent::Removed {
            let text = format!("{device} was removed from this cluster: what it held is on others");
            return Err(refusal(RefusalCode::WrongDevice, text));
        }
        if entry.incarnation.0 < life {
            // Another MDM leads, and has given this incarnation.
            return Err(unexpected(format!("this MDM does not know that life of {device}")));
        }
        if entry.incarnation.0 != life {
            let name = self.state.servers.get(&entry.sds).map_or("?", |s| &s.own);
            return Err(refusal(RefusalCode::Superseded, superseded(name)));
        }
        Ok(())
    }

    fn proposal(
        &mut self,
        now: Time,
        link: LinkId,
        m: Proposal,
        out: &mut Effects,
    ) -> Result<(), Refusal> {
        let Peer::Device(device, life) = self.links[&link].peer else { return Ok(()) };
        self.check_life(device, life.0)?;
        if (m.device, m.incarnation) != (device.0, life.0) {
            return Err(unexpected(format!("{device} can't propose for dev{}", m.device)));
        }
        self.detector.heard(now, device, life);
        for refused in m.refused.iter().take(self.state.devices.len()) {
            self.probe(DeviceId(*refused), out);
        }
        self.queue(link, Input::Proposal(link, m));
        Ok(())
    }

    fn order(&mut self, link: LinkId, op: u64, request: AdminRequest, out: &mut Effects) {
        let (needs, has) = (request.level, self.state.level);
        if needs > has {
            let text = format!(
                "this order needs level {needs}, and the cluster has level {has}: when everything is \
                 updated, `gabion system level {needs}` raises it"
            );
            return self.reply_error(link, op, AdminError::Other, text, out);
        }
        if !self.ready && self.failed.is_none() {
            return self.order_here(link, op, request.ask, out);
        }
        if self.queue(link, Input::Order(link, op, request.ask)) {
            return;
        }
        let busy = (AdminError::Other, String::from("too many orders wait: try again in a moment"));
        let (error, text) =
            self.failed.as_ref().map_or(busy, |stop| (AdminError::Log, stop.why.clone()));
        self.reply_error(link, op, error, text, out);
    }

    fn reply_error(
        &self,
        link: LinkId,
        op: u64,
        error: AdminError,
        text: String,
        out: &mut Effects,
    ) {
        let reply = AdminReply { error: error as i32, text, ..AdminReply::default() };
        send_control(self.peer_link(link), message::AdminReply { op }, &reply, out);
    }

    /// Queues an input of this link. Returns false if there is no room.
    fn queue(&mut self, link: LinkId, input: Input) -> bool {
        let Some(from) = self.links.get_mut(&link) else { return false };
        if self.failed.is_some() || self.inputs.len() >= INPUTS || from.queued >= INPUTS_PER_LINK {
            return false;
        }
        from.queued += 1;
        self.inputs.push_back(input);
        true
    }
}

fn decode<M: Message + Default>(body: &[u8]) -> Result<M, Refusal> {
    M::decode(body).map_err(|e| unexpected(format!("a control message is damaged ({e})")))
}

fn unexpected(text: impl Into<String>) -> Refusal {
    refusal(RefusalCode::Unexpected, text)
}
