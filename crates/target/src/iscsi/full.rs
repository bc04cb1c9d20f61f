//! The full feature phase of a session: all requests except SCSI commands, their data and task
//! management.
//!
//! Invariants:
//! - Frames take effect in the order of arrival, and reading from the connection never stops: the
//!   command window bounds commands, R2Ts bound data, and [`BESIDE_WINDOW`] bounds immediate
//!   commands.
//! - A discovery session has no logical unit: it answers only text, NOP-Out and Logout.
//! - A rejected request changes nothing else. A gap in the sequence numbers, or data out of order,
//!   ends the connection, as error recovery level 0 requires.
//!
//! Commands are in `execute`, data in `data`, task management and logout in `manage`.

use super::keys::Params;
use super::login::Entry;
use super::manage::Managed;
use super::pdu::{Body, Common, Malformed, Pdu};
use super::places::Places;
use super::proto::*;
use super::reply::Reply;
use super::strays::Strays;
use super::targets::{Nexus, Targets};
use super::tasks::{Flow, Tasks};
use super::text::{Incoming, Outgoing, pairs};
use super::wire::{Order, Turn};
use crate::Action;
use crate::credit::Credit;
use crate::scsi::{Attention, Device, Step};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use base::time::Duration;
use base::{Limits, Time};
use seam::{BlockError, Buf};

/// Most immediate commands and task management requests that may be outstanding. The command window
/// does not count them.
pub(crate) const BESIDE_WINDOW: usize = 8;
/// Time without a PDU after which the initiator is pinged with a NOP-In. It must answer within the
/// same time.
const SILENCE: Duration = Duration::from_secs(30);
/// Time that an initiator has to log out after the request to do so. A process that stops waits
/// longer.
pub(crate) const LEAVE: Duration = Duration::from_secs(2);
/// The target transfer tag of an unfinished text, and of a ping.
const OUR_TAG: u32 = 1;
/// Most bytes of the answer to one text.
const TEXT_MAX: usize = 1 << 20;

/// The state of a session in full feature phase.
#[derive(Debug)]
pub(crate) struct Full {
    /// The host that has logged in.
    pub(crate) nexus: Nexus,
    /// The logical unit; `None` in a discovery session.
    pub(crate) device: Option<Device>,
    /// The negotiated settings.
    pub(crate) params: Params,
    /// Most bytes of an R2T.
    pub(crate) burst: u32,
    /// The outstanding commands.
    pub(crate) tasks: Tasks,
    /// Bounds the data that is requested from the initiator and from the volume.
    pub(crate) credit: Credit,
    /// Counts the commands' requests to the volume.
    pub(crate) places: Places,
    /// Commands that wait to ask the initiator for data.
    pub(crate) asking: VecDeque<u32>,
    /// Reads that wait to be executed.
    pub(crate) reading: VecDeque<u32>,
    /// Pieces of data to compare, which wait for the volume's data.
    pub(crate) comparing: BTreeMap<u64, Buf>,
    /// Outstanding task management requests.
    pub(crate) managed: Managed,
    /// Tags of commands that have ended and whose data may still arrive.
    pub(crate) strays: Strays,
    /// The last tick.
    pub(crate) now: Option<Time>,
    /// How long a command may wait for its turn.
    patience: Duration,
    /// The initiator was asked to log out. Its commands are not executed any more.
    pub(crate) leaving: bool,
    text: Text,
    /// The initiator has sent something since the last tick.
    heard: bool,
    /// When the initiator was last heard or pinged.
    since: Option<Time>,
    /// It was pinged, and has sent nothing since.
    pinged: bool,
}

/// Text requests.
#[derive(Debug)]
struct Text {
    most: usize,
    received: Incoming,
    answer: Outgoing,
    /// The request that waits for the list of volumes: its tag, and its final bit.
    waiting: Option<(u32, bool)>,
}

impl Full {
    /// Creates the state after a login.
    pub(crate) fn new(entry: Entry, limits: &Limits) -> Full {
        let most = limits.login_text as usize;
        let first = if entry.reinstates { Attention::NexusLoss } else { Attention::NewNexus };
        Full {
            nexus: entry.nexus,
            device: entry.target.map(|target| Device::new(target.unit, first)),
            // An initiator that offers no MaxBurstLength has agreed to 256 KiB (RFC 7143, 13.13).
            burst: entry.params.max_burst.min(limits.iscsi_max_burst),
            params: entry.params,
            tasks: Tasks::new(),
            credit: Credit::new(limits.iscsi_solicited.into(), u64::from(limits.scsi_transfer) * 2),
            places: Places::new(limits),
            asking: VecDeque::new(),
            reading: VecDeque::new(),
            comparing: BTreeMap::new(),
            managed: Managed::default(),
            strays: Strays::new(limits.iscsi_window as usize + BESIDE_WINDOW),
            now: None,
            patience: limits.target_patience,
            leaving: false,
            text: Text {
                most,
                received: Incoming::new(most),
                answer: Outgoing::default(),
                waiting: None,
            },
            heard: true,
            since: None,
            pinged: false,
        }
    }

    /// Handles a PDU with this head.
    pub(crate) fn pdu(
        &mut self,
        (head, pdu): (&[u8; BHS], Result<Pdu<'_>, Malformed>),
        data: Buf,
        targets: &dyn Targets,
        turn: &mut Turn<'_>,
    ) {
        self.heard = true;
        let Ok(Pdu { common, body }) = pdu else {
            return self.malformed(head, turn);
        };
        match body {
            Body::DataOut(out) if self.device.is_some() => {
                return self.data_out(&common, &out, data, turn);
            }
            Body::Snack => return reject(REJECT_SNACK, head, turn),
            Body::DataOut(_) => return reject(REJECT_PROTOCOL, head, turn),
            _ => {}
        }
        if !common.immediate {
            match turn.wire.take(common.cmd_sn) {
                Order::Take => {}
                Order::Drop => {
                    if matches!(body, Body::Command(command) if command.writes) {
                        self.strays.add(common.itt);
                    }
                    return;
                }
                Order::Gap => return turn.close(Some("left out a command's number")),
            }
        }
        match body {
            Body::Command(command) if self.device.is_some() => {
                if self.tasks.find(common.itt).is_some() {
                    return turn.close(Some("gave a command the tag of another one"));
                }
                if common.immediate && self.tasks.immediate() >= BESIDE_WINDOW {
                    self.strays.add(common.itt);
                    return reject(REJECT_IMMEDIATE, head, turn);
                }
                if !self.strays.is_empty() {
                    self.strays.forget(common.itt);
                }
                self.command(&common, &command, data, turn);
            }
            Body::Management(request) if self.device.is_some() => {
                self.manage(&common, &request, turn);
            }
            Body::NopOut { .. } => self.nop_out(&common, data, turn),
            Body::Text { more, ttt } => {
                let data = &data[..];
                self.text(&common, more, ttt, (head, data), targets, turn);
            }
            Body::Logout { reason, cid } => self.logout(&common, (reason, cid), head, turn),
            Body::Unknown => reject(REJECT_UNSUPPORTED, head, turn),
            _ => reject(REJECT_PROTOCOL, head, turn),
        }
    }

    /// Rejects a malformed PDU. Its command number counts nevertheless.
    pub(crate) fn malformed(&mut self, head: &[u8; BHS], turn: &mut Turn<'_>) {
        let opcode = head[0] & OPCODE;
        let numbered = head[0] & IMMEDIATE == 0 && opcode != DATA_OUT && opcode != SNACK;
        if numbered && turn.wire.take(be32(head, 24)) == Order::Gap {
            return turn.close(Some("left out a command's number"));
        }
        if opcode == SCSI_COMMAND {
            self.strays.add(be32(head, 16));
        }
        reject(REJECT_FIELD, head, turn);
    }

    fn nop_out(&mut self, common: &Common, data: Buf, turn: &mut Turn<'_>) {
        if common.itt == NO_TAG {
            return; // an answer to ours, or a sign of life that asks for none
        }
        let most = data.len().min(self.params.segment as usize);
        // A copy: the host may leave the answer unread, and its ping is a view of a larger buffer.
        let echo = turn.pool.copy(&data[..most]);
        turn.send_data(Reply::nop(common), echo);
    }

    // Text

    fn text(
        &mut self,
        common: &Common,
        more: bool,
        ttt: u32,
        (head, data): (&[u8; BHS], &[u8]),
        targets: &dyn Targets,
        turn: &mut Turn<'_>,
    ) {
        let text = &mut self.text;
        if text.waiting.is_some() || (ttt != NO_TAG && ttt != OUR_TAG) {
            return reject(REJECT_PROTOCOL, head, turn);
        }
        if ttt == NO_TAG {
            text.received.reset(text.most);
            text.answer.clear();
        }
        if text.received.add(data).is_err() {
            text.received.reset(text.most);
            return reject(REJECT_FIELD, head, turn);
        }
        if more {
            return turn.send(Reply::text(common.itt, Some(OUR_TAG)));
        }
        if !text.answer.is_sent() || (ttt == OUR_TAG && text.received.is_empty()) {
            return self.text_part(common.itt, common.last, turn);
        }
        text.waiting = Some((common.itt, common.last));
        if self.device.is_none() {
            return turn.ask(Action::Refresh);
        }
        self.refreshed(targets, turn);
    }

    /// Answers the text request that waits, from the volumes that exist now.
    pub(crate) fn refreshed(&mut self, targets: &dyn Targets, turn: &mut Turn<'_>) {
        let Some((itt, last)) = self.text.waiting.take() else { return };
        let text = self.text.received.take();
        let Ok(pairs) = pairs(&text) else {
            return turn.close(Some("sent a text that can't be read"));
        };
        let mut listed = false;
        for (key, value) in pairs {
            let most = 4 * self.text.most + if listed { TEXT_MAX } else { 0 };
            if self.text.answer.len() > most {
                return turn.close(Some("sent a text with too many keys"));
            }
            if key != "SendTargets" {
                self.text.answer.pair(key, "NotUnderstood");
            } else if core::mem::replace(&mut listed, true) {
                self.text.answer.pair(key, "Reject"); // one text costs one list
            } else {
                self.send_targets(value, targets);
            }
        }
        self.text_part(itt, last, turn);
    }

    /// Lists targets: in a discovery session those that the initiator may use, otherwise only the
    /// session's own. So no initiator learns the names of other hosts' volumes.
    fn send_targets(&mut self, which: &str, targets: &dyn Targets) {
        let (answer, initiator) = (&mut self.text.answer, &self.nexus.initiator);
        let mut list = |name: &str| {
            if answer.len() < TEXT_MAX {
                answer.pair("TargetName", name);
                targets.portals(name, &mut |portal| {
                    answer.pair("TargetAddress", &format!("{},{}", portal.address, portal.group));
                });
            }
        };
        match &self.device {
            Some(device) => {
                let own = &device.unit().target;
                if which == "All" || which.is_empty() || which == own {
                    list(own);
                }
            }
            None if which == "All" => targets.each(initiator, &mut list),
            None if targets.find(initiator, which).is_some()
                && targets.admits(initiator, which) =>
            {
                list(which);
            }
            None => {}
        }
    }

    /// Sends the next part of a text, as long as the initiator accepts, because some initiators
    /// don't fetch a second part.
    fn text_part(&mut self, itt: u32, last: bool, turn: &mut Turn<'_>) {
        let (part, more) = self.text.answer.part(self.params.segment as usize);
        let ttt = (more || !last).then_some(OUR_TAG);
        turn.send_small(Reply::text(itt, ttt), part);
        if !more {
            self.text.answer.clear();
        }
    }

    /// Visits the data that the session holds for commands. Returns the bytes that may be added:
    /// data that is being read, and data that the initiator is sending or was asked for.
    pub(crate) fn memory(&self, visit: &mut dyn FnMut(&Buf)) -> u64 {
        self.comparing.values().for_each(&mut *visit);
        let (_, mut bytes) = self.credit.used();
        for task in self.tasks.all() {
            visit(task.split.held());
            visit(&task.gathered);
            if let Step::Run(plan) = &task.step {
                plan.held().into_iter().for_each(&mut *visit);
            }
            if let Flow::Unsolicited(end) | Flow::Burst(end) = task.flow {
                bytes += u64::from(end.saturating_sub(task.received));
            }
        }
        bytes
    }

    // Time

    /// Ends commands that have waited too long. Pings a silent initiator, and closes the connection
    /// if it does not answer.
    pub(crate) fn tick(&mut self, now: Time, turn: &mut Turn<'_>) {
        self.now = Some(now);
        for handle in self.tasks.late(now, self.patience) {
            self.give_up(handle, BlockError::TimedOut, turn);
        }
        if core::mem::take(&mut self.heard) {
            (self.since, self.pinged) = (Some(now), false);
        }
        let since = *self.since.get_or_insert(now);
        if self.leaving && self.managed.leave_by(now) {
            return turn.close(None);
        }
        if now.since(since) < SILENCE {
            return;
        }
        if self.pinged {
            return turn.close(Some("gave no sign of life in 30 s"));
        }
        (self.since, self.pinged) = (Some(now), true);
        turn.send(Reply::ping(OUR_TAG));
    }
}

/// Rejects a PDU.
pub(crate) fn reject(reason: u8, head: &[u8; BHS], turn: &mut Turn<'_>) {
    turn.send_small(Reply::reject(reason), head);
}
