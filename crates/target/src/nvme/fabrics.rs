//! The fabrics commands: Connect, which makes a link a queue, and the properties of a controller.
//!
//! Invariants:
//! - A link becomes one queue, once. Before, it answers nothing but Connect, and then what belongs
//!   to the authentication of its host, if that has a key.
//! - An I/O queue belongs to a controller of the same host, which is ready. No two links have the
//!   same queue.
//! - A controller that is reset or shut down is not ready from that moment on. It reports the end
//!   of the reset or shutdown when its I/O queues have ended, and their commands can't take effect
//!   any more.

use super::admin::Admin;
use super::auth::Auth;
use super::command::Command;
use super::controller::{Controller, Request};
use super::notices::Notices;
use super::proto::*;
use super::queue::{Queue, Role};
use super::status::Status;
use super::step::Step;
use super::subsystem::Subsystem;
use super::table::{Gather, Work};
use super::wire::Turn;
use crate::ident::{self, is_nvme_name};
use crate::{Action, Cleared};
use alloc::boxed::Box;
use seam::Buf;

/// Bytes of the data of Connect (fabrics 3.3).
const CONNECT_DATA: u32 = 1024;
/// The controller id that means "any" in Connect.
const DYNAMIC: u16 = 0xffff;
/// "Disable flow control of the submission queue", an attribute of Connect.
const NO_FLOW: u8 = 1 << 2;
/// "The host has to authenticate", in the result of Connect.
const MUST_AUTHENTICATE: u64 = 1 << 17;
/// Time that a controller may take to become ready, in units of 500 ms.
const TIMEOUT: u64 = 30;

// Offsets of fields: a refusal names the wrong field by its offset
const QID: u64 = 42;
const SQSIZE: u64 = 44;
/// Says that the offset is in the data.
const IN_DATA: u64 = 1 << 16;
const CNTLID: usize = 16;
const SUBNQN: usize = 256;
const HOSTNQN: usize = 512;

impl Queue {
    /// Handles a fabrics command.
    pub(crate) fn fabrics(
        &mut self,
        command: &Command,
        subsystem: &dyn Subsystem,
        turn: &mut Turn<'_>,
    ) -> Result<Step, Status> {
        match (command.fabrics_type(), &mut self.role) {
            (CONNECT, Role::New) => {
                if command.u16(40) != 0 {
                    return Err(Status::CONNECT_FORMAT);
                }
                let request = Request {
                    qid: command.u16(42),
                    size: command.u16(44),
                    attributes: command.u8(46),
                    keep_alive: command.dword(12),
                };
                let gather = Work::Gather(Gather::Connect(request), Buf::EMPTY);
                Ok(Step::Begin(gather, CONNECT_DATA))
            }
            (CONNECT, _) | (_, Role::New) => Err(Status::SEQUENCE),
            (PROPERTY_GET, Role::Admin(admin)) => {
                let entries = self.limits.nvme_entries;
                admin.property(command.dword(11), command.u8(40), entries).map(Step::Answer)
            }
            (PROPERTY_SET, Role::Admin(admin)) => {
                if command.dword(11) != CC || command.u8(40) & 7 != 0 {
                    return Err(Status::INVALID_FIELD);
                }
                if admin.configure(command.dword(12), subsystem) {
                    turn.ask(Action::Clear { what: Cleared::Target });
                }
                Ok(Step::Answer(0))
            }
            (AUTH_SEND, _) => self.auth_send(command),
            (AUTH_RECEIVE, _) => self.auth_receive(command, subsystem, turn),
            (DISCONNECT, Role::Io { .. }) if command.u16(40) == 0 => Ok(Step::Leave),
            (PROPERTY_GET | PROPERTY_SET | DISCONNECT, _) => Err(Status::INVALID_FIELD),
            _ => Err(Status::INVALID_OPCODE),
        }
    }

    /// Makes the link a queue. Returns the result of the answer, also with a refusal.
    pub(crate) fn connect(
        &mut self,
        request: &Request,
        data: &[u8],
        subsystem: &dyn Subsystem,
        turn: &mut Turn<'_>,
    ) -> Result<u64, (Status, u64)> {
        if request.size == 0 || u32::from(request.size) >= self.limits.nvme_entries {
            return Err(field(SQSIZE));
        }
        // A gateway without a map does not know its own name yet. A host whose Connect is refused
        // because of a name would not come again.
        if request.qid == 0 && subsystem.is_busy() {
            return Err((Status::CONNECT_BUSY, 0));
        }
        let host = name(data, HOSTNQN).ok_or(in_data(HOSTNQN))?;
        let asked = name(data, SUBNQN).ok_or(in_data(SUBNQN))?;
        let discovery = asked == DISCOVERY_NQN;
        if !discovery && asked != ident::nqn(subsystem.cluster()) {
            return Err(in_data(SUBNQN));
        }
        let host_id: [u8; 16] = core::array::from_fn(|i| data[i]);
        if !subsystem.admits(host, &host_id) {
            return Err((Status::CONNECT_HOST, 0));
        }
        let cntlid = le16(data, CNTLID);
        if request.qid == 0 {
            if cntlid != DYNAMIC {
                return Err(in_data(CNTLID));
            }
            let controller = Controller {
                cntlid: self.opening.cntlid,
                host: host.into(),
                host_id,
                discovery,
                ready: false,
                delays: false,
            };
            let admin = Admin::new(controller, request.keep_alive, self.now);
            self.role = Role::Admin(Box::new(admin));
        } else {
            self.connect_io(request.qid, cntlid, (host, host_id), subsystem)?;
        }
        self.entries = request.size + 1;
        turn.wire.flow = (request.attributes & NO_FLOW == 0).then_some((self.entries, 0));
        let cntlid = match &self.role {
            Role::Admin(admin) => admin.controller.cntlid,
            Role::New | Role::Io { .. } => cntlid,
        };
        if discovery || subsystem.keys(host).is_none() {
            return Ok(cntlid.into());
        }
        self.auth = Some(Auth::new(self.opening.seed, host, host_id));
        Ok(u64::from(cntlid) | MUST_AUTHENTICATE)
    }

    /// Makes the link an I/O queue of this controller. Returns the result of a refusal.
    fn connect_io(
        &mut self,
        qid: u16,
        cntlid: u16,
        (host, host_id): (&str, [u8; 16]),
        subsystem: &dyn Subsystem,
    ) -> Result<(), (Status, u64)> {
        let controller = subsystem.controller(cntlid).ok_or(in_data(CNTLID))?;
        if controller.host != host {
            return Err(in_data(HOSTNQN));
        }
        if controller.host_id != host_id {
            return Err(in_data(0));
        }
        let queues = if controller.discovery { 0 } else { self.limits.nvme_queues };
        if u32::from(qid) > queues {
            return Err(field(QID));
        }
        if !controller.ready || subsystem.has_queue(cntlid, qid) {
            return Err((Status::SEQUENCE, 0));
        }
        self.delays = controller.delays;
        self.role = Role::Io { cntlid, qid, named: host_id != [0; 16] };
        Ok(())
    }
}

/// Returns the refusal of a field of Connect, which begins at this byte of the command.
fn field(at: u64) -> (Status, u64) {
    (Status::CONNECT_FIELD, at)
}

/// Returns the refusal of a field of Connect, which begins at this byte of the data.
fn in_data(at: usize) -> (Status, u64) {
    field(at as u64 | IN_DATA)
}

/// Returns the name at this place of the data of Connect.
fn name(data: &[u8], at: usize) -> Option<&str> {
    let field = &data[at..at + NQN_MAX + 1];
    let len = field.iter().position(|byte| *byte == 0).filter(|len| *len > 0)?;
    core::str::from_utf8(&field[..len]).ok().filter(|name| is_nvme_name(name))
}

impl Admin {
    /// Returns a property. `size` is 0 for 4 bytes and 1 for 8.
    fn property(&self, offset: u32, size: u8, entries: u32) -> Result<u64, Status> {
        match (offset, size & 7) {
            // Contiguous queues, the NVM command set, pages of 4 KiB.
            (CAP, 1) => Ok(u64::from(entries - 1) | 1 << 16 | TIMEOUT << 24 | 1 << 37),
            (VS, 0) => Ok(VERSION.into()),
            (CC, 0) => Ok(self.configuration.into()),
            (CSTS, 0) => Ok(self.status.into()),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// Sets the property CC. Returns true if the I/O queues have to end.
    fn configure(&mut self, value: u32, subsystem: &dyn Subsystem) -> bool {
        let before = core::mem::replace(&mut self.configuration, value);
        let is_new = |bits: u32| before & bits == 0 && value & bits != 0;
        let mut ends = false;
        if is_new(CC_EN) {
            // Entries of 64 and 16 bytes, pages of 4 KiB, the NVM command set, round robin.
            let sizes = value >> 16 & 0xff;
            let right = value & 0x3ff0 == 0 && (sizes == 0x46 || self.controller.discovery);
            self.status = if right { CSTS_RDY } else { CSTS_CFS };
            self.enabled(subsystem);
        }
        if before & CC_EN != 0 && value & CC_EN == 0 {
            self.events.clear();
            self.notices = Notices::default();
            ends = true;
        }
        if is_new(CC_SHN) {
            self.status = self.status & !CSTS_SHST | SHST_GOING_ON;
            ends = true;
        }
        let on = value & (CC_EN | CC_SHN) == CC_EN;
        self.controller.ready = on && self.status & CSTS_RDY != 0;
        ends
    }

    /// Records that the I/O queues have ended.
    pub(crate) fn others_cleared(&mut self) {
        if self.configuration & CC_EN == 0 {
            self.status &= !(CSTS_RDY | CSTS_CFS);
        }
        if self.status & CSTS_SHST == SHST_GOING_ON {
            self.status = self.status & !CSTS_SHST | SHST_COMPLETE;
        } else if self.configuration & CC_EN == 0 {
            self.status = 0;
        }
    }
}
