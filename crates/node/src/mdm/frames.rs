//! Frames: which peer may send what. Requests to the state are queued.
//!
//! Handlers return the reason why a link is closed, and [`Mdm::frame`] closes it: a bad frame ends
//! its link and nothing else.

use super::inputs::Input;
use super::links::{Peer, Pull};
use super::peers::Unwelcome;
use super::{Mdm, reports};
use crate::link::handshake::read_hello;
use crate::link::send_answer;
use crate::refusals::{self, Writer, refusal, refuse};
use alloc::format;
use alloc::string::String;
use base::mutant::{self, Mutant};
use base::{DeviceId, LinkId, Time};
use mdm::controller::superseded;
use mdm::reserve::{change, host};
use mdm::seat::is_host_name;
use prost::Message;
use seam::{Effect, Effects, Note};
use wire::control::{
    AdminError, AdminReply, AdminRequest, Heartbeat, Intent, Proposal, Refusal, RefusalCode,
    Register, RegisterSdc, Report, Reserve, Role, SEATS_PER_MESSAGE, TakeSeats,
};
use wire::{Fault, Frame, Malformed, message};

/// The longest control message that an MDM accepts, in bytes.
const MESSAGE: usize = 512 << 10;

/// Why a link is closed.
enum End {
    /// The body of a frame does not match its checksum.
    Damaged,
    /// The peer is refused; the note is for the log.
    Refused(Refusal, &'static str),
    /// A member that this MDM dialled does not welcome it.
    Unwelcome(Unwelcome),
}

impl From<Refusal> for End {
    fn from(why: Refusal) -> End {
        let note = refusals::note(why.code(), Writer::Mdm);
        End::Refused(why, note)
    }
}

impl Mdm {
    /// Handles a frame, and closes its link if the handler returns a reason.
    pub(super) fn frame(
        &mut self,
        now: Time,
        link: LinkId,
        head: &[u8],
        body: &[u8],
        out: &mut Effects,
    ) {
        let header = wire::parse(head);
        let read = wire::check_link(header, self.links.version_on(link));
        let frame = read.and_then(|()| Frame::try_from(header));
        if self.asks_on(link) {
            return self.answered_there(now, frame.ok(), body, out);
        }
        let ours = self.peers.has(link);
        if !ours && !self.links.has(link) {
            return; // closed by this MDM; the frame was already in flight
        }
        let done = match (wire::body_ok(header, body), ours) {
            (false, _) => Err(End::Damaged),
            (true, true) => {
                let place = (&self.config, self.state().cluster);
                self.peers.frame(link, frame.ok(), body, place).map_err(End::Unwelcome)
            }
            (true, false) => self.take(now, link, frame, body, out),
        };
        if let Err(why) = done {
            self.end(now, link, why, out);
        }
    }

    /// Closes a link.
    fn end(&mut self, now: Time, link: LinkId, why: End, out: &mut Effects) {
        match why {
            End::Damaged => {
                out.note(Note::BadBody { link });
                out.push(Effect::Close { link });
                match self.peers.has(link) {
                    true => self.peers.down(now, link, &mut self.journal, out),
                    false => self.forget(link, out),
                }
            }
            // Such a refusal makes the server's process end. It is sent only when the state that it
            // depends on is committed, and if this MDM still leads then.
            End::Refused(why, _)
                if why.code() == RefusalCode::WrongDevice
                    && !mutant::on(Mutant::MdmAnswerEarly) =>
            {
                self.answers.refuse(link, why);
            }
            End::Refused(why, note) => {
                out.note(Note::Refused { link, why: note });
                refuse(link, &why, out);
                self.forget(link, out);
            }
            End::Unwelcome(why) => {
                out.push(Effect::Close { link });
                self.peers.unwelcome(link, &why, &self.links, out);
                self.peers.down(now, link, &mut self.journal, out);
                match why {
                    Unwelcome::Refused(why) if self.must_stop(why.code()) => {
                        self.fail(why.text, out);
                    }
                    Unwelcome::Wrong(wrong) => out.note(Note::Refused { link, why: wrong.why() }),
                    Unwelcome::Refused(_) | Unwelcome::NoAnswer => {}
                }
            }
        }
    }

    /// Returns true if this MDM has to stop because another one refuses it. Its process ends with
    /// the reason, for an operator to read.
    fn must_stop(&self, why: RefusalCode) -> bool {
        match why {
            // An MDM with an empty log may have been called by an id that is out of use by now. It
            // waits to be called again.
            RefusalCode::WrongMember => !self.journal.is_empty(),
            // The members agree on the level, so an MDM that is too old for one of them is too old
            // for all.
            RefusalCode::TooOld => true,
            _ => false,
        }
    }

    /// Ends a link with a refusal.
    pub(super) fn refuse(&mut self, link: LinkId, why: &Refusal, out: &mut Effects) {
        out.note(Note::Refused { link, why: refusals::note(why.code(), Writer::Mdm) });
        refuse(link, why, out);
        self.forget(link, out);
    }

    /// Handles a frame on a link that the peer dialled.
    // Long: one match over all kinds of frames and the roles that may send them.
    fn take(
        &mut self,
        now: Time,
        link: LinkId,
        frame: Result<Frame, Malformed>,
        body: &[u8],
        out: &mut Effects,
    ) -> Result<(), End> {
        let peer = self.links.open(link).peer;
        if let (Ok(Frame::Raft(part)), Peer::Mdm(member)) = (frame, peer) {
            let place = (&mut self.journal, &mut self.links);
            let stop = self.peers.part((link, member), part, body, place, out);
            let stop = stop.map_err(|why| End::Refused(unexpected(why), why))?;
            stop.into_iter().for_each(|why| self.fail(why, out));
            return Ok(());
        }
        if body.len() > MESSAGE {
            let text = format!("a control message has at most {MESSAGE} bytes");
            return Err(unexpected(text).into());
        }
        match (frame, peer.role()) {
            (frame, None) => {
                let hello = read_hello(frame, body)?;
                match &self.moved {
                    Some(moved) if moved.is_own(&hello) => self.go_on(now, out),
                    _ => self.first_hello(now, link, hello, out)?,
                }
            }
            (Ok(Frame::Report(_)), Some(Role::Sds)) => {
                let report = decode::<Report>(body)?;
                report.check().map_err(|unknown| {
                    unexpected(format!("this MDM doesn't know {unknown} in a report: update it"))
                })?;
                let state = self.journal.state();
                if !reports::add_part(self.links.get_mut(link), report, state) {
                    let text = "a report of more groups or volumes than there can be";
                    return Err(unexpected(text).into());
                }
            }
            (Ok(Frame::Register(_)), Some(Role::Sds)) => {
                self.queue(Input::Register(link, decode::<Register>(body)?));
            }
            (Ok(Frame::RegisterSdc(_)), Some(Role::Sdc)) => {
                self.queue(Input::RegisterSdc(link, decode::<RegisterSdc>(body)?));
            }
            (Ok(Frame::Reserve(_)), Some(Role::Sdc)) => self.reserve(link, decode(body)?)?,
            (Ok(Frame::TakeSeats(_)), Some(Role::Sdc)) => {
                self.queue(Input::TakeSeats(link, read_seats(body)?));
            }
            (Ok(Frame::Heartbeat(_)), Some(Role::Sds | Role::Sdc)) => {
                self.heartbeat(now, peer, decode(body)?)?;
            }
            (Ok(Frame::MapPull(message::MapPull { have, op, wait })), Some(_)) => {
                let pull = Pull { have, op, wait };
                let link = self.links.open_mut(link);
                (link.parked, link.have) = (Some(pull), have);
                if let Peer::Device(device, _) = peer {
                    self.watch.device_has(device, have);
                }
            }
            (Ok(Frame::Proposal(_)), Some(Role::Sds)) => {
                self.proposal(now, link, decode(body)?, out)?;
            }
            (Ok(Frame::Admin(message::Admin { op })), Some(Role::Admin)) => {
                self.order(link, op, decode(body)?, out)?;
            }
            (Ok(frame), Some(role)) => {
                let kind = frame.kind();
                return Err(unexpected(format!("an MDM takes no {kind:?} from an {role:?}")).into());
            }
            (Err(Malformed { fault: Fault::Unknown, code, .. }), _) => {
                let text = format!("this MDM doesn't know frames of kind {code}: update it");
                return Err(unexpected(text).into());
            }
            (Err(why), _) => {
                return Err(unexpected(format!("this MDM can't read a frame: {why}")).into());
            }
        }
        Ok(())
    }

    fn heartbeat(&mut self, now: Time, peer: Peer, heartbeat: Heartbeat) -> Result<(), Refusal> {
        let state = self.journal.state();
        match peer {
            Peer::Device(device, life) => {
                self.check_life(device, life.0)?;
                self.watch.device_beats(now, (device, life), heartbeat, state);
            }
            Peer::Sdc(sdc, life) => {
                let Some(entry) = state.sdcs.get(&sdc) else {
                    return Err(unexpected(format!("this cluster has no {sdc}: register first")));
                };
                if entry.incarnation > life {
                    return Err(refusal(RefusalCode::Superseded, superseded(&entry.name)));
                }
                self.watch.sdc_beats(now, sdc, heartbeat);
            }
            // Its registration still waits for the disk.
            Peer::Stranger | Peer::Guest(_) | Peer::Mdm(_) => {}
        }
        Ok(())
    }

    /// Refuses a process whose incarnation is over according to the map.
    fn check_life(&self, device: DeviceId, life: u64) -> Result<(), Refusal> {
        let Some(entry) = self.state().devices.get(&device) else {
            return Err(unexpected(format!("this cluster has no {device}: register first")));
        };
        if entry.intent == Intent::Removed {
            let text = format!("{device} was removed from this cluster: what it held is on others");
            return Err(refusal(RefusalCode::WrongDevice, text));
        }
        if entry.incarnation.0 < life {
            // Another MDM leads by now, and has given this incarnation.
            return Err(unexpected(format!("this MDM does not know that incarnation of {device}")));
        }
        if entry.incarnation.0 != life {
            let name = self.state().servers.get(&entry.sds).map_or("?", |s| &s.own);
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
        let Peer::Device(device, life) = self.links.open(link).peer else { return Ok(()) };
        self.check_life(device, life.0)?;
        if (m.device, m.incarnation) != (device.0, life.0) {
            return Err(unexpected(format!("{device} can't propose for dev{}", m.device)));
        }
        self.watch.heard(now, device, life);
        let state = self.journal.state();
        for refused in m.refused.iter().take(state.devices.len()) {
            self.watch.probe(DeviceId(*refused), state, &mut self.dials, out);
        }
        self.queue(Input::Proposal(link, m));
        Ok(())
    }

    fn reserve(&mut self, link: LinkId, m: Reserve) -> Result<(), Refusal> {
        m.change.check().map_err(|unknown| {
            unexpected(format!("this MDM doesn't know {unknown} in a reservation: update it"))
        })?;
        if host(&m.who).is_none() || change(&m.change).is_none() {
            return Err(unexpected("a reservation for a host, or of a kind, that can't be"));
        }
        self.queue(Input::Reserve(link, m));
        Ok(())
    }

    fn order(
        &mut self,
        link: LinkId,
        op: u64,
        request: AdminRequest,
        out: &mut Effects,
    ) -> Result<(), Refusal> {
        let (needs, has) = (request.level, self.state().level);
        let (error, text) = if needs > has {
            let text = format!(
                "this order needs level {needs}, and the cluster has level {has}: when everything is \
                 updated, `gabion system level {needs}` raises it"
            );
            (AdminError::Other, text)
        } else if !self.watch.serves() && self.failed.is_none() {
            return self.order_here(link, op, request.ask, out);
        } else if self.queue(Input::Order(link, op, request.ask)) {
            return Ok(());
        } else {
            let busy = String::from("too many orders wait: try again in a moment");
            let stop = self.failed.as_ref().map(|stop| (AdminError::Log, stop.why.clone()));
            stop.unwrap_or((AdminError::Other, busy))
        };
        let reply = AdminReply { error: error as i32, text, ..AdminReply::default() };
        send_answer(self.links.peer_link(link), message::AdminReply { op }, &reply, out);
        Ok(())
    }

    /// Queues an input of a link. Returns false if there is no room.
    fn queue(&mut self, input: Input) -> bool {
        self.failed.is_none() && self.inputs.offer(input, &mut self.links)
    }
}

fn decode<M: Message + Default>(body: &[u8]) -> Result<M, Refusal> {
    M::decode(body).map_err(|e| unexpected(format!("a control message is damaged ({e})")))
}

fn unexpected(text: impl Into<String>) -> Refusal {
    refusal(RefusalCode::Unexpected, text)
}

fn read_seats(body: &[u8]) -> Result<TakeSeats, Refusal> {
    let m: TakeSeats = decode(body)?;
    let sound = m.seats.len() <= SEATS_PER_MESSAGE && m.seats.iter().all(|s| is_host_name(&s.host));
    let wrong = || unexpected("seats of more hosts, or of other names, than there can be");
    if sound { Ok(m) } else { Err(wrong()) }
}
