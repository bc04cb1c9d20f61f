//! In-band authentication of a queue: the fabrics commands Authentication Send and Receive (base
//! 2.0, chapter 6), and what a host may do before it is authenticated. The messages are in
//! `dhchap`.
//!
//! Invariants:
//! - A link whose host has a key answers nothing but these commands and Disconnect until the host
//!   is authenticated. Until then the owner does not know the queue: the link counts as a
//!   stranger, and takes no place of a host.
//! - When the host is authenticated, the conditions of Connect are checked again: the controller of
//!   an I/O queue may have ended meanwhile, or another link may have become the same queue.
//! - A transaction ends within `Limits::login_time`, or the connection does. So does the first one
//!   after Connect.
//! - A link that is not authenticated has one message under way.
//!
//! A discovery controller asks for no authentication: it tells where the subsystem is, and has no
//! volumes.

use super::command::Command;
use super::controller::Controller;
use super::dhchap::{DhChap, MESSAGE_MAX, Names, Outcome, Seed};
use super::proto::*;
use super::queue::{Queue, Role};
use super::status::Status;
use super::step::Step;
use super::subsystem::Subsystem;
use super::table::{Gather, Work};
use super::wire::Turn;
use crate::ident;
use alloc::boxed::Box;
use alloc::string::String;
use base::Time;
use seam::Buf;

/// The fields of the security protocol: SPSP0, SPSP1, SECP.
const PROTOCOL: [u8; 3] = [1, 1, 0xe9];

/// The authentication of a queue's host.
#[derive(Debug)]
pub(crate) struct Auth {
    dhchap: DhChap,
    /// The name of the host, and its identifier.
    host: String,
    host_id: [u8; 16],
    /// The first tick since a transaction is due or under way.
    since: Option<Time>,
}

impl Auth {
    /// Creates the authentication of a host that has just connected.
    pub(crate) fn new(seed: Seed, host: &str, host_id: [u8; 16]) -> Box<Auth> {
        Box::new(Auth { dhchap: DhChap::new(seed), host: host.into(), host_id, since: None })
    }

    /// Returns true if this is the controller of the queue's host.
    fn is_host_of(&self, controller: &Controller) -> bool {
        controller.host == self.host && controller.host_id == self.host_id
    }
}

impl Queue {
    /// Returns true if the host is authenticated, or need not be.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.auth.as_ref().is_none_or(|auth| auth.dhchap.has_passed())
    }

    /// Returns true if a host that is not authenticated may not send this command.
    #[inline]
    pub(crate) fn is_shut(&self, command: &Command) -> bool {
        let allowed = || {
            let kind = matches!(command.fabrics_type(), AUTH_SEND | AUTH_RECEIVE | DISCONNECT);
            command.opcode() == FABRICS && command.fuse() == 0 && kind
        };
        !self.is_open() && !allowed()
    }

    /// Begins Authentication Send.
    pub(crate) fn auth_send(&self, command: &Command) -> Result<Step, Status> {
        if self.auth.is_none() {
            return Err(Status::INVALID_OPCODE);
        }
        let len = message_len(command)?;
        if len == 0 || len > MESSAGE_MAX as u32 {
            return Err(Status::INVALID_FIELD);
        }
        if !self.is_open() && self.table.len() > 0 {
            return Err(Status::SEQUENCE);
        }
        Ok(Step::Begin(Work::Gather(Gather::Auth, Buf::EMPTY), len))
    }

    /// Handles a message that has arrived, and answers its command.
    pub(crate) fn auth_message(
        &mut self,
        handle: u32,
        message: &[u8],
        subsystem: &dyn Subsystem,
        turn: &mut Turn<'_>,
    ) {
        let Some(auth) = &mut self.auth else { return };
        let name = ident::nqn(subsystem.cluster());
        let names = Names { host: &auth.host, subsystem: &name };
        let before = auth.dhchap.has_passed();
        let outcome = auth.dhchap.sent(message, names, subsystem.keys(&auth.host));
        if outcome == Outcome::Passed && !before && !self.joins(subsystem, turn) {
            return;
        }
        self.end(handle, Status::SUCCESS, turn);
        if outcome == Outcome::Over {
            turn.close(Some("does not accept how we have authenticated"));
        }
    }

    /// Handles Authentication Receive.
    pub(crate) fn auth_receive(
        &mut self,
        command: &Command,
        subsystem: &dyn Subsystem,
        turn: &mut Turn<'_>,
    ) -> Result<Step, Status> {
        let Some(auth) = &mut self.auth else { return Err(Status::INVALID_OPCODE) };
        let len = message_len(command)?;
        let room = len.min(MESSAGE_MAX as u32) as usize;
        command.room(room)?;
        let before = auth.dhchap.has_passed();
        let (mut message, outcome) = auth.dhchap.fetch(room).ok_or(Status::INVALID_FIELD)?;
        if outcome == Outcome::Passed && !before && !self.joins(subsystem, turn) {
            return Ok(Step::Answered);
        }
        // Hosts expect as many bytes as they have asked for.
        message.resize(room, 0);
        self.send(command.cid(), turn.pool.copy(&message), turn);
        if outcome == Outcome::Over {
            turn.close(Some("has failed to authenticate"));
        }
        Ok(Step::Answered)
    }

    /// Returns true if the link is now the queue that it has connected to. Closes the link if it
    /// can't be that any more.
    fn joins(&mut self, subsystem: &dyn Subsystem, turn: &mut Turn<'_>) -> bool {
        let joins = self.may_join(subsystem);
        if !joins {
            self.role = Role::New;
            turn.close(Some("has authenticated for a queue that it can't have any more"));
        }
        joins
    }

    /// Returns true if the link may still become the queue that it has connected to.
    fn may_join(&self, subsystem: &dyn Subsystem) -> bool {
        let Some(auth) = &self.auth else { return false };
        match &self.role {
            Role::New => false,
            Role::Admin(admin) => {
                subsystem.controller(admin.controller.cntlid).is_none() && !subsystem.is_busy()
            }
            Role::Io { cntlid, qid, .. } => {
                let controller = subsystem.controller(*cntlid);
                let right = controller.is_some_and(|of| of.ready && auth.is_host_of(of));
                right && !subsystem.has_queue(*cntlid, *qid)
            }
        }
    }

    /// Returns true if the host takes too long to authenticate. Call it with each tick.
    pub(crate) fn auth_is_late(&mut self, now: Time) -> bool {
        let Some(auth) = &mut self.auth else { return false };
        if auth.dhchap.has_passed() && !auth.dhchap.is_under_way() {
            auth.since = None;
            return false;
        }
        now.since(*auth.since.get_or_insert(now)) >= self.limits.login_time
    }
}

/// Returns the length of a message, after checking what the two commands have in common.
fn message_len(command: &Command) -> Result<u32, Status> {
    let protocol: [u8; 3] = core::array::from_fn(|i| command.u8(41 + i));
    if protocol == PROTOCOL { Ok(command.dword(11)) } else { Err(Status::INVALID_FIELD) }
}
