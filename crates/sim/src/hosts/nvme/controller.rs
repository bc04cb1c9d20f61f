//! A controller as its host sees it: the steps until commands can be sent, and the commands of the
//! admin queue after that.
//!
//! Invariants: one step is under way at a time. A target that breaks the protocol is reported.

use super::io::{Io, SUCCESS, Shape};
use super::pdu::{Entry, Host, Pdu, from_target, le16, le32};
use super::status::Status;
use crate::hosts::{Command, Seen};
use base::VolumeId;
use std::collections::BTreeMap;

/// Most entries of an I/O queue that a host asks for.
const ENTRIES: u16 = 32;
/// Entries of the admin queue. (Linux asks for 32, and the simulator's limits are smaller.)
const ADMIN_ENTRIES: u16 = 4;
/// Enable; entries of 64 and 16 bytes.
const ENABLE: u32 = 0x46_0001;
/// "Ready", in the status of a controller.
const READY: u32 = 1;
/// The controller has no place for a further host.
const BUSY: u16 = 0x181;
/// A queue with this id is still there.
const SEQUENCE: u16 = 0x400c;
/// The controller of an I/O queue is gone.
const INVALID: u16 = 0x4182;

/// One of the two links of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Queue {
    Admin,
    Io,
}

/// The consequence of an event.
#[derive(Debug)]
pub(super) enum Step {
    /// Send a PDU.
    Send(Queue, Pdu),
    /// Tell the owner.
    Tell(Seen),
    /// Make the link of the I/O queue.
    DialIo,
    /// Give the controller up, and connect again later.
    Leave,
}

/// A command of the admin queue, or Connect of the I/O queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ask {
    Connect,
    Capabilities,
    Enable,
    Status,
    Identify,
    OneQueue,
    KeepAlive,
    Abort,
}

/// The controller.
#[derive(Debug)]
pub(super) struct Controller {
    host: Host,
    volume: VolumeId,
    shape: Shape,
    cntlid: u16,
    cid: u16,
    /// Commands of the admin queue that are not answered.
    asked: BTreeMap<u16, Ask>,
    /// Bytes of the data of Identify.
    identified: Vec<u8>,
    segment: usize,
    /// None until commands can be sent.
    io: Option<Io>,
}

impl Controller {
    /// Creates the controller of a link that was just made. `flow`: the target reports the heads of
    /// queues.
    pub(super) fn new(host: Host, volume: VolumeId, flow: bool) -> Controller {
        let shape = Shape { entries: ADMIN_ENTRIES, flow, capsule: 0 };
        Controller {
            host,
            volume,
            shape,
            cntlid: 0,
            cid: 0,
            asked: BTreeMap::new(),
            identified: Vec::new(),
            segment: 0,
            io: None,
        }
    }

    /// Returns true if commands can be sent.
    pub(super) fn is_ready(&self) -> bool {
        self.io.is_some()
    }

    /// Returns the ids of all commands that are not answered.
    pub(super) fn unanswered(&self) -> Vec<u32> {
        self.io.as_ref().map_or(Vec::new(), Io::unanswered)
    }

    fn ask(&mut self, ask: Ask, entry: Entry, data: Vec<u8>, out: &mut Vec<Step>) {
        self.cid = self.cid.wrapping_add(1);
        self.asked.insert(self.cid, ask);
        out.push(Step::Send(Queue::Admin, Pdu::capsule(entry, self.cid, data)));
    }

    /// Sends a command.
    pub(super) fn command(&mut self, command: Command, out: &mut Vec<Step>) {
        let mut pdus = Vec::new();
        if let Some(io) = &mut self.io {
            io.command(command, &mut pdus);
        }
        out.extend(pdus.into_iter().map(|pdu| Step::Send(Queue::Io, pdu)));
    }

    /// Asks the target to abort the oldest command that it has.
    pub(super) fn abort(&mut self, out: &mut Vec<Step>) {
        let oldest = self.io.as_ref().and_then(Io::oldest);
        if let Some(cid) = oldest.filter(|_| !self.has_asked(Ask::Abort)) {
            self.ask(Ask::Abort, Entry::abort(cid), Vec::new(), out);
        }
    }

    /// Tells the target that the host is there.
    pub(super) fn keep_alive(&mut self, out: &mut Vec<Step>) {
        if !self.has_asked(Ask::KeepAlive) {
            self.ask(Ask::KeepAlive, Entry::keep_alive(), Vec::new(), out);
        }
    }

    fn has_asked(&self, ask: Ask) -> bool {
        self.asked.values().any(|of| *of == ask)
    }

    /// Handles a PDU of the target.
    pub(super) fn pdu(&mut self, queue: Queue, head: &[u8], data: &[u8], out: &mut Vec<Step>) {
        let result = match (queue, head[0], &mut self.io) {
            (_, from_target::SETUP, None) => self.set_up(queue, head, out),
            (Queue::Io, from_target::RESPONSE, None) => self.connected(head, out),
            (Queue::Io, _, Some(io)) => {
                let mut pdus = Vec::new();
                out.extend(io.pdu(head, data, &mut pdus).map(Step::Tell));
                out.extend(pdus.into_iter().map(|pdu| Step::Send(Queue::Io, pdu)));
                Ok(())
            }
            (Queue::Admin, from_target::DATA, _) => {
                self.identified.extend_from_slice(data);
                match head[1] & SUCCESS {
                    0 => Ok(()),
                    _ => self.answered((le16(head, 8), Status(0), 0), out),
                }
            }
            (Queue::Admin, from_target::RESPONSE, _) => {
                self.answered((le16(head, 20), Status::of(head), le32(head, 8)), out)
            }
            (_, kind, _) => Err(format!("a PDU of type {kind:#x} to {queue:?}: {head:x?}")),
        };
        if let Err(wrong) = result {
            out.push(Step::Tell(Seen::Wrong(wrong)));
        }
    }

    /// Sends Connect.
    fn set_up(&mut self, queue: Queue, head: &[u8], out: &mut Vec<Step>) -> Result<(), String> {
        self.segment = le32(head, 12) as usize;
        if self.segment < 4096 || le16(head, 8) != 0 || head[10..12] != [0, 0] {
            return Err(format!("an answer to the set-up that Linux refuses: {head:x?}"));
        }
        match queue {
            Queue::Admin => {
                let size = (ADMIN_ENTRIES, self.shape.flow);
                let (entry, data) = Entry::connect(&self.host, 0, None, size);
                self.ask(Ask::Connect, entry, data, out);
            }
            Queue::Io => {
                let size = (self.shape.entries, self.shape.flow);
                let (entry, data) = Entry::connect(&self.host, 1, Some(self.cntlid), size);
                out.push(Step::Send(Queue::Io, Pdu::capsule(entry, 0, data)));
            }
        }
        Ok(())
    }

    /// Handles the answer to Connect of the I/O queue.
    fn connected(&mut self, head: &[u8], out: &mut Vec<Step>) -> Result<(), String> {
        match Status::of(head).0 {
            0 => {
                self.io = Some(Io::new(self.volume, self.shape, self.segment));
                out.push(Step::Tell(Seen::LoggedIn));
            }
            SEQUENCE | INVALID => out.push(Step::Leave),
            status => return Err(format!("Connect of an I/O queue has failed: {status:#x}")),
        }
        Ok(())
    }

    /// Handles the answer to a command of the admin queue, with its dword 0.
    fn answered(
        &mut self,
        (cid, status, result): (u16, Status, u32),
        out: &mut Vec<Step>,
    ) -> Result<(), String> {
        let Some(ask) = self.asked.remove(&cid) else {
            return Err(format!("answers {cid:#x} of the admin queue, which nobody asked"));
        };
        if ask == Ask::Connect && status.0 == BUSY {
            out.push(Step::Leave);
            return Ok(());
        }
        if !status.is_success() {
            return Err(format!("{ask:?} has failed: {status:x?}"));
        }
        let (next, entry) = match ask {
            Ask::Connect => {
                self.cntlid = result as u16;
                (Ask::Capabilities, Entry::capabilities())
            }
            Ask::Capabilities => {
                self.shape.entries = (result as u16).saturating_add(1).min(ENTRIES);
                (Ask::Enable, Entry::configure(ENABLE))
            }
            Ask::Status if result & READY != 0 => (Ask::Identify, Entry::identify()),
            Ask::Enable | Ask::Status => (Ask::Status, Entry::status()),
            Ask::Identify => {
                let (own, room) = (self.identified.get(78..80), self.identified.get(1792..1796));
                let (Some(own), Some(room)) = (own, room) else {
                    return Err(format!("Identify has {} bytes", self.identified.len()));
                };
                self.shape.capsule = (16 * le32(room, 0) as usize).saturating_sub(64);
                if le16(own, 0) != self.cntlid {
                    return Err(format!("controller {} says that it is {own:x?}", self.cntlid));
                }
                (Ask::OneQueue, Entry::one_queue())
            }
            Ask::OneQueue => {
                out.push(Step::DialIo);
                return Ok(());
            }
            Ask::KeepAlive => return Ok(()),
            Ask::Abort if result & 1 == 1 => {
                out.push(Step::Tell(Seen::Kept));
                return Ok(());
            }
            // Its answer says that it was aborted.
            Ask::Abort => return Err("a command was aborted".into()),
        };
        self.ask(next, entry, Vec::new(), out);
        Ok(())
    }
}
