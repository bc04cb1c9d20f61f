//! The session of one initiator's connection: the interface for its owner.
//!
//! Invariants:
//! - A stranger's bytes can end only the stranger's own connection. No frame makes a session panic,
//!   and the memory of a session is bounded: first by the text of a login, and later by the command
//!   window, unsolicited data and R2Ts, and the credit for reads.
//! - A PDU with a trailer takes effect when the trailer has arrived and its digest is right.
//! - No action follows [`Action::Close`](crate::Action::Close).
//!
//! The session does not retry, order or cache anything, and does not wait for durability: a
//! completion means durable (rule R7).

use super::digest;
use super::full::Full;
use super::lengths::ListLengths;
use super::login::{Login, Opening, Outcome, status};
use super::pdu::{Body, Pdu};
use super::proto::*;
use super::reply::{LoginAnswer, Reply};
use super::targets::{Nexus, Targets};
use super::wire::{Turn, Wire};
use crate::piece::TRANSFER_MAX;
use crate::reserve::{Access, Notice};
use crate::scsi::{Device, Unit};
use crate::{Action, Asked, Cleared};
use alloc::boxed::Box;
use alloc::vec::Vec;
use base::{Limits, Time};
use seam::{BlockError, Buf, BufPool};

#[derive(Debug)]
enum Phase {
    Login(Box<Login>),
    Full(Box<Full>),
}

/// The target side of one iSCSI connection, which is a session.
#[derive(Debug)]
pub struct Session {
    phase: Phase,
    wire: Wire,
    /// The head and the data of a PDU whose trailer has not arrived.
    held: Option<([u8; BHS], Buf)>,
    /// The tag of the login request that waits for its answer.
    login_tag: u32,
    /// The time of the first `tick`.
    since: Option<Time>,
    limits: Limits,
}

impl Session {
    /// Creates a session for a connection that was just accepted.
    pub fn new(limits: &Limits, opening: Opening) -> Session {
        assert!(opening.tsih != 0, "0 stands for a new session");
        assert!(limits.scsi_transfer <= TRANSFER_MAX, "a tag has no room for such a transfer");
        Session {
            phase: Phase::Login(Box::new(Login::new(limits, opening))),
            wire: Wire::new(limits.iscsi_window),
            held: None,
            login_tag: NO_TAG,
            since: None,
            limits: limits.clone(),
        }
    }

    /// Handles a frame from [`super::IscsiFramer`].
    pub fn frame(
        &mut self,
        head: &[u8],
        body: Buf,
        targets: &dyn Targets,
        pool: &BufPool,
        out: &mut Vec<Action>,
    ) {
        let mode = self.wire.mode;
        if self.wire.is_closed() {
            return; // frames that were on their way
        }
        if let Some((held, data)) = self.held.take() {
            if head.len() != mode.trailer(data.len()) || !body.is_empty() {
                return self.close("sent something else in place of a digest", pool, out);
            }
            if !digest::is_right(mode, &data, head) {
                return self.close("sent data with a wrong digest", pool, out);
            }
            return self.pdu(&held, data, targets, pool, out);
        }
        let Some(bhs) = head.first_chunk::<BHS>() else {
            return self.close("sent something that is not a PDU", pool, out);
        };
        if head.len() == BHS && usize::from(bhs[4]) > AHS_WORDS {
            return self.long_head(bhs, &body, pool, out);
        }
        if mode.trailer(body.len()) > 0 {
            self.held = Some((*bhs, body));
        } else {
            self.pdu(bhs, body, targets, pool, out);
        }
    }

    /// Handles a PDU with more header segments than a head has room for: they are in the body.
    fn long_head(&mut self, bhs: &[u8; BHS], body: &[u8], pool: &BufPool, out: &mut Vec<Action>) {
        let digest = self.wire.mode.header();
        if body.len() < usize::from(bhs[4]) * 4 + digest {
            return self.close("sent something that is not a PDU", pool, out);
        }
        if digest > 0 && !digest::is_right_head(bhs, body) {
            return self.close("sent a head with a wrong digest", pool, out);
        }
        let mut turn = Turn { wire: &mut self.wire, pool, out };
        match &mut self.phase {
            Phase::Login(_) => refuse(bhs, status::INITIATOR_ERROR, &mut turn),
            Phase::Full(full) => full.malformed(bhs, &mut turn),
        }
    }

    fn pdu(
        &mut self,
        head: &[u8; BHS],
        data: Buf,
        targets: &dyn Targets,
        pool: &BufPool,
        out: &mut Vec<Action>,
    ) {
        let mut turn = Turn { wire: &mut self.wire, pool, out };
        let pdu = Pdu::decode(head, data.len());
        let login = match &mut self.phase {
            Phase::Full(full) => return full.pdu((head, pdu), data, targets, &mut turn),
            Phase::Login(login) => login,
        };
        if login.is_waiting() {
            return turn.close(Some("did not wait for the answer to its login request"));
        }
        let Ok(Pdu { common, body }) = pdu else {
            return refuse(head, status::INITIATOR_ERROR, &mut turn);
        };
        let Body::Login(request) = body else {
            return refuse(head, status::INVALID_DURING_LOGIN, &mut turn);
        };
        if self.login_tag == NO_TAG {
            turn.wire.begin(common.cmd_sn);
        }
        self.login_tag = common.itt;
        let outcome = login.request(&request, &data, targets);
        self.login(outcome, pool, out);
    }

    /// Continues the login with this outcome of a request.
    fn login(&mut self, outcome: Outcome, pool: &BufPool, out: &mut Vec<Action>) {
        let mut turn = Turn { wire: &mut self.wire, pool, out };
        match outcome {
            Outcome::Refresh => turn.ask(Action::Refresh),
            Outcome::Answer(answer, text) => {
                turn.send_small(Reply::login(self.login_tag, &answer), &text);
                if answer.status != status::SUCCESS {
                    turn.close(Some(status::why(answer.status)));
                }
            }
            Outcome::Full(answer, text, entry) => {
                if entry.reinstates {
                    turn.ask(Action::Reinstate);
                }
                turn.send_small(Reply::login(self.login_tag, &answer), &text);
                let mode = entry.params.mode();
                turn.ask(Action::Reframe { mode: mode.number() });
                turn.wire.mode = mode;
                let full = Full::new(*entry, &self.limits);
                self.phase = Phase::Full(Box::new(full));
            }
        }
    }

    /// Answers the request that caused [`Action::Refresh`], from `targets`.
    pub fn refreshed(&mut self, targets: &dyn Targets, pool: &BufPool, out: &mut Vec<Action>) {
        if self.wire.is_closed() {
            return;
        }
        match &mut self.phase {
            Phase::Login(login) => {
                if let Some(outcome) = login.refreshed(targets) {
                    self.login(outcome, pool, out);
                }
            }
            Phase::Full(full) => {
                full.refreshed(targets, &mut Turn { wire: &mut self.wire, pool, out });
            }
        }
    }

    /// Handles the completion of a request. A tag that is not under way (any more) is ignored.
    pub fn done(
        &mut self,
        tag: u64,
        result: Result<Buf, BlockError>,
        pool: &BufPool,
        out: &mut Vec<Action>,
    ) {
        self.full(pool, out, |full, turn| full.done(tag, result, turn));
    }

    /// Handles the end of the requests that [`Action::Withdraw`] named.
    pub fn withdrawn(&mut self, tag: u64, pool: &BufPool, out: &mut Vec<Action>) {
        self.full(pool, out, |full, turn| full.withdrawn(tag, turn));
    }

    /// Handles the answer to a question to the MDM.
    pub fn asked(&mut self, tag: u64, asked: Asked<'_>, pool: &BufPool, out: &mut Vec<Action>) {
        self.full(pool, out, |full, turn| full.asked(tag, asked, turn));
    }

    /// Sets the access that reservations leave to the host, and adds the unit attention about it.
    /// The owner ends requests under way that are not allowed any more with
    /// [`BlockError::Reserved`].
    pub fn reserved(
        &mut self,
        access: Access,
        notice: Option<Notice>,
        pool: &BufPool,
        out: &mut Vec<Action>,
    ) {
        self.full(pool, out, |full, turn| full.reserved(access, notice, turn));
    }

    /// Ends the commands of this session, because their mapping has ended and there is a new one.
    /// The owner ends requests under way with [`BlockError::Forgotten`].
    pub fn remapped(&mut self, pool: &BufPool, out: &mut Vec<Action>) {
        self.full(pool, out, |full, turn| full.remapped(turn));
    }

    /// Ends the commands of this session, because the host of another one asks for it.
    pub fn cleared(&mut self, what: Cleared, pool: &BufPool, out: &mut Vec<Action>) {
        self.full(pool, out, |full, turn| full.cleared(what, turn));
    }

    /// Records that the commands that [`Action::Clear`] named have ended.
    pub fn others_cleared(&mut self, pool: &BufPool, out: &mut Vec<Action>) {
        self.full(pool, out, |full, turn| full.others_cleared(turn));
    }

    /// Takes the changed properties of the volume. The host learns of them with its next command.
    pub fn changed(&mut self, unit: Unit) {
        if let Some(device) = self.device() {
            device.changed(unit);
        }
    }

    /// Returns the logical unit, so that reservations can be applied to it; `None` before the end
    /// of the login, and in a discovery session.
    pub fn device(&mut self) -> Option<&mut Device> {
        match &mut self.phase {
            Phase::Full(full) => full.device.as_mut(),
            Phase::Login(_) => None,
        }
    }

    /// Lets time pass. Call it every few seconds.
    pub fn tick(&mut self, now: Time, pool: &BufPool, out: &mut Vec<Action>) {
        let since = *self.since.get_or_insert(now);
        if matches!(self.phase, Phase::Login(_)) && now.since(since) >= self.limits.login_time {
            return self.close("has not logged in in time", pool, out);
        }
        self.full(pool, out, |full, turn| full.tick(now, turn));
    }

    /// Records that the request with this tag waits for space. May be called repeatedly.
    pub fn waits(&mut self, tag: u64) {
        if let Phase::Full(full) = &mut self.phase {
            full.waits(tag);
        }
    }

    /// Ends the session because its volume was deleted, or is not mapped to this gateway any more.
    /// All commands fail, and the initiator is asked to log out. `tick` closes the connection if it
    /// does not.
    pub fn volume_gone(&mut self, pool: &BufPool, out: &mut Vec<Action>) {
        self.full(pool, out, |full, turn| full.volume_gone(turn));
    }

    /// Ends the session from the target's side: the initiator is asked to log out. Commands under
    /// way end, and new ones are answered "busy". `tick` closes the connection if it stays.
    pub fn shutdown(&mut self, pool: &BufPool, out: &mut Vec<Action>) {
        if matches!(self.phase, Phase::Login(_)) {
            return Turn { wire: &mut self.wire, pool, out }.close(None);
        }
        self.full(pool, out, |full, turn| full.leave(turn));
    }

    /// Returns the host and the session's ids; `None` before the end of the login.
    pub fn nexus(&self) -> Option<&Nexus> {
        match &self.phase {
            Phase::Full(full) => Some(&full.nexus),
            Phase::Login(_) => None,
        }
    }

    /// Returns the number of outstanding commands.
    pub fn in_flight(&self) -> usize {
        match &self.phase {
            Phase::Full(full) => full.tasks.len(),
            Phase::Login(_) => 0,
        }
    }

    /// Returns when the command of the request with this tag arrived, as the last tick before it,
    /// if that is known. The time of a command counts from there, however many requests it needs.
    pub fn since(&self, tag: u64) -> Option<Time> {
        match &self.phase {
            Phase::Full(full) => full.tasks.since(tag as u32),
            Phase::Login(_) => None,
        }
    }

    /// Returns the solicited bytes whose writes are not done, and the bytes that are being read.
    pub fn bytes(&self) -> (u64, u64) {
        match &self.phase {
            Phase::Full(full) => full.credit.used(),
            Phase::Login(_) => (0, 0),
        }
    }

    /// Returns how long the lists are that the initiator can make longer.
    pub fn list_lengths(&self) -> ListLengths {
        match &self.phase {
            Phase::Full(full) => ListLengths::of(full, &self.wire),
            Phase::Login(_) => ListLengths::default(),
        }
    }

    /// Returns the number of requests that the volume has.
    pub fn requests(&self) -> u32 {
        match &self.phase {
            Phase::Full(full) => full.places.used(),
            Phase::Login(_) => 0,
        }
    }

    /// Visits the data that the session holds, except that of its requests. Returns the bytes that
    /// may be added: data that is being read, and data that the initiator may send.
    pub fn memory(&self, visit: &mut dyn FnMut(&Buf)) -> u64 {
        if let Some((_, data)) = &self.held {
            visit(data);
        }
        match &self.phase {
            Phase::Full(full) => full.memory(visit),
            Phase::Login(_) => 0,
        }
    }

    /// Returns true while requests are being withdrawn.
    pub fn is_withdrawing(&self) -> bool {
        match &self.phase {
            Phase::Full(full) => full.managed.is_withdrawing(),
            Phase::Login(_) => false,
        }
    }

    /// Returns true after [`Action::Close`].
    pub fn is_closed(&self) -> bool {
        self.wire.is_closed()
    }

    fn close(&mut self, why: &'static str, pool: &BufPool, out: &mut Vec<Action>) {
        Turn { wire: &mut self.wire, pool, out }.close(Some(why));
    }

    /// Calls the full feature phase, if the session is in it.
    fn full(
        &mut self,
        pool: &BufPool,
        out: &mut Vec<Action>,
        call: impl FnOnce(&mut Full, &mut Turn<'_>),
    ) {
        if let Phase::Full(full) = &mut self.phase
            && !self.wire.is_closed()
        {
            call(full, &mut Turn { wire: &mut self.wire, pool, out });
        }
    }
}

/// Answers a PDU that ends the login before the PDU is decoded.
fn refuse(head: &[u8; BHS], status: u16, turn: &mut Turn<'_>) {
    let answer = LoginAnswer {
        transit: false,
        more: false,
        stages: (head[1] >> 2 & 3, 0),
        isid: core::array::from_fn(|i| head[8 + i]),
        tsih: be16(head, 14),
        status,
    };
    turn.send(Reply::login(be32(head, 16), &answer));
    turn.close(Some(status::why(status)));
}
