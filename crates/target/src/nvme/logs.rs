//! Log pages (base 5.14, fabrics 5).
//!
//! Invariant: a page is generated when it is read, from the state at that moment.

use super::admin::Admin;
use super::command::Command;
use super::events::Event;
use super::identify::revision;
use super::proto::*;
use super::status::Status;
use super::step::Step;
use super::subsystem::{Path, Portal, Subsystem};
use crate::ident;
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use base::Limits;
use seam::BufPool;

/// "Retain asynchronous event", in dword 10.
const RETAIN: u32 = 1 << 15;
/// "Return groups only", in dword 10, of the ANA log page.
const GROUPS_ONLY: u32 = 1 << 8;
/// "Offset type" and an index of a vendor, in dword 14: not supported.
const OFFSET_TYPE: u32 = 1 << 23 | 0x7f;
/// Bytes of a record of the discovery log, and of what is before the first one (fabrics 5.3).
const RECORD: usize = 1024;

/// The type of a subsystem in the discovery log.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The subsystem with the namespaces.
    Namespaces = 2,
    /// The discovery subsystem.
    Discovery = 3,
}

impl Admin {
    /// Handles Get Log Page.
    pub(crate) fn log_page(
        &mut self,
        command: &Command,
        subsystem: &dyn Subsystem,
        limits: &Limits,
        pool: &BufPool,
    ) -> Result<Step, Status> {
        let (ten, eleven) = (command.dword(10), command.dword(11));
        let len = (u64::from(eleven & 0xffff) << 16 | u64::from(ten >> 16)).saturating_add(1) * 4;
        let offset = command.u64(48);
        if len > limits.nvme_mdts.into()
            || !offset.is_multiple_of(4)
            || command.dword(14) & OFFSET_TYPE != 0
        {
            return Err(Status::INVALID_FIELD);
        }
        let id = ten as u8;
        self.review(subsystem);
        let reads = ten & RETAIN == 0;
        let page = match id {
            LOG_DISCOVERY if self.controller.discovery => discovery(subsystem),
            _ if self.controller.discovery => return Err(Status::INVALID_LOG),
            LOG_ERRORS => vec![0; 64],
            LOG_SMART => smart(),
            LOG_FIRMWARE => firmware(),
            LOG_CHANGED => changed(&self.changes(reads)),
            LOG_EFFECTS => effects(),
            LOG_ANA => self.ways(ten & GROUPS_ONLY != 0),
            LOG_RESERVATIONS => self.notices.page().into(),
            _ => return Err(Status::INVALID_LOG),
        };
        let from = usize::try_from(offset).ok().filter(|from| *from <= page.len());
        let rest = from.map(|from| &page[from..]).ok_or(Status::INVALID_FIELD)?;
        let mut body = pool.zeroed(len as usize);
        let there = rest.len().min(len as usize);
        body.as_mut()[..there].copy_from_slice(&rest[..there]);
        if reads {
            self.events.read(id);
            if id == LOG_RESERVATIONS && self.notices.read() {
                self.events.happened(Event::Reservations);
            }
        }
        Ok(Step::Send(body))
    }

    /// The ANA states: each namespace is an ANA group of its own (base 5.14.1.12).
    fn ways(&self, groups_only: bool) -> Vec<u8> {
        let all = self.namespaces();
        let mut page = vec![0; 16];
        let changes = self.path_changes.to_le_bytes();
        page[..8].copy_from_slice(&changes);
        page[8..10].copy_from_slice(&(all.len() as u16).to_le_bytes());
        for namespace in all {
            let id = namespace.volume.0.to_le_bytes();
            let ids = u32::from(!groups_only);
            let state = match namespace.path {
                Path::Optimized => 0x01,
                Path::Inaccessible => 0x03,
            };
            page.extend(id);
            page.extend(ids.to_le_bytes());
            page.extend(changes);
            page.push(state);
            page.extend([0; 15]);
            if !groups_only {
                page.extend(id);
            }
        }
        page
    }
}

/// The SMART / health log (base 5.14.1.2): there is no wear and no temperature.
fn smart() -> Vec<u8> {
    let mut page = vec![0; 512];
    page[3] = 100; // available spare, in percent
    page
}

/// The only slot of firmware (base 5.14.1.3).
fn firmware() -> Vec<u8> {
    let mut page = vec![0; 512];
    page[0] = 1;
    page[8..16].copy_from_slice(&revision());
    page
}

/// The namespaces that have changed (base 5.14.1.4).
fn changed(ids: &[u32]) -> Vec<u8> {
    let mut page = vec![0; ACTIVE as usize * 4];
    let many = [ALL];
    let ids = if ids.len() > ACTIVE as usize { &many[..] } else { ids };
    for (entry, id) in page.chunks_exact_mut(4).zip(ids) {
        entry.copy_from_slice(&id.to_le_bytes());
    }
    page
}

/// The commands, and what they change (base 5.14.1.5).
fn effects() -> Vec<u8> {
    const SUPPORTED: u8 = 1;
    const CHANGES_DATA: u8 = 2;
    let mut page = vec![0; 4096];
    let admin =
        [GET_LOG_PAGE, IDENTIFY, ABORT, SET_FEATURES, GET_FEATURES, ASYNC_EVENT, KEEP_ALIVE];
    for opcode in admin {
        page[usize::from(opcode) * 4] = SUPPORTED;
    }
    let reservations =
        [RESERVATION_REGISTER, RESERVATION_REPORT, RESERVATION_ACQUIRE, RESERVATION_RELEASE];
    let data = [FLUSH, WRITE, READ, COMPARE, WRITE_ZEROES, DATASET];
    for opcode in data.into_iter().chain(reservations) {
        let writes = matches!(opcode, WRITE | WRITE_ZEROES | DATASET);
        page[1024 + usize::from(opcode) * 4] = SUPPORTED | if writes { CHANGES_DATA } else { 0 };
    }
    page
}

/// The ports (fabrics 5.3).
fn discovery(subsystem: &dyn Subsystem) -> Vec<u8> {
    let mut page = vec![0; RECORD];
    let mut count: u64 = 0;
    subsystem.portals(&mut |portal| {
        for kind in [Kind::Namespaces, Kind::Discovery] {
            page.extend(record(kind, portal, subsystem));
            count += 1;
        }
    });
    page[..8].copy_from_slice(&subsystem.version().to_le_bytes());
    page[8..16].copy_from_slice(&count.to_le_bytes());
    page
}

fn record(kind: Kind, portal: Portal, subsystem: &dyn Subsystem) -> [u8; RECORD] {
    let Portal { address, port } = portal;
    let mut record = [0; RECORD];
    let mut put = |at: usize, bytes: &[u8]| record[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &[3, if address.is_ipv4() { 1 } else { 2 }, kind as u8]); // TCP
    put(3, &[1 << 2]); // no secure channel; flow control can be disabled
    put(4, &port.to_le_bytes());
    put(6, &0xffff_u16.to_le_bytes()); // any controller
    put(8, &32_u16.to_le_bytes()); // most entries of an admin queue
    let name = ident::nqn(subsystem.cluster());
    if kind == Kind::Discovery {
        put(10, &[1 << 1 | 1]); // persistent connections; all ports report the same
        put(256, DISCOVERY_NQN.as_bytes());
    } else {
        put(256, name.as_bytes());
    }
    put(32, &[b' '; 32]);
    put(32, format!("{}", address.port()).as_bytes());
    put(512, &[b' '; 256]);
    put(512, format!("{}", address.ip()).as_bytes());
    record
}
