//! Hosts that use volumes through clients by iSCSI ([`iscsi`]) or NVMe/TCP ([`nvme`]): a node for
//! each host, which connects over two paths, sends the commands that it is told to, and connects
//! again when a path is gone. The owner ([`play`]) decides what becomes of the commands of a lost
//! path, as the multipath drivers of Linux would.

mod fence;
mod iscsi;
mod multipath;
mod nvme;
mod orders;
mod play;
#[cfg(test)]
mod testing;

pub use play::Initiator;

use crate::plan::HostKind;
use base::LinkId;
use seam::{Buf, Effects, Head};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// What a command does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Writes zeros; with `hole`, the space may be freed.
    Zero {
        /// The space may be freed.
        hole: bool,
    },
    /// Compares with the first half of the data, and writes the second half.
    Swap,
    /// Changes the reservations of the volume.
    Reserve(Reserve),
    /// Makes the path of this port group the one that the host uses.
    Activate(u16),
}

/// A change of the reservations of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reserve {
    /// The service action of PERSISTENT RESERVE OUT.
    pub action: u8,
    /// The type of the reservation.
    pub kind: u8,
    /// The host's key, and another one that the action needs.
    pub keys: [u64; 2],
}

/// A command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Command {
    /// Its name for the owner. No two commands of a host have the same.
    pub id: u32,
    /// What it does.
    pub what: What,
    /// The first sector.
    pub sector: u32,
    /// The number of sectors.
    pub sectors: u32,
    /// The data that it brings.
    pub data: Vec<u8>,
}

impl What {
    /// Returns the number of NVMe commands that do it.
    fn commands(self) -> usize {
        if self == What::Swap { 2 } else { 1 }
    }
}

impl Command {
    /// A change of reservations.
    pub fn reserve(id: u32, action: u8, kind: u8, keys: [u64; 2]) -> Command {
        let what = What::Reserve(Reserve { action, kind, keys });
        Command { id, what, sector: 0, sectors: 0, data: Vec::new() }
    }

    /// Makes the path of this port group the one that the host uses.
    pub fn activate(id: u32, group: u16) -> Command {
        Command { id, what: What::Activate(group), sector: 0, sectors: 0, data: Vec::new() }
    }
}

/// How a command ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Told {
    /// It is done, and this data was read.
    Done(Vec<u8>),
    /// It should be repeated. Parts of it may be done.
    Later,
    /// The same, as there is no space.
    Full,
    /// It should be repeated: the host is told something about the volume instead.
    Attention,
    /// A reservation is in the way.
    Conflict,
    /// Another gateway serves the host.
    Elsewhere,
    /// Data is lost or can't be read.
    Unreadable,
    /// The volume is not there.
    NoVolume,
    /// The volume is too short.
    OutOfRange,
    /// The data differs from what is expected, first in this byte, if the gateway says that.
    Differs(Option<u32>),
    /// The gateway said something else.
    Strange(String),
}

/// An order to a path.
#[derive(Debug)]
pub enum Order {
    /// Send this command.
    Send(Command),
    /// Close the connection.
    Close,
    /// Give the connection up without closing it, and connect again. By iSCSI the host uses the
    /// same session id: the gateway has to end the older session. By NVMe it is another controller.
    Again,
    /// Stop reading for this long.
    Deaf(Duration),
    /// Abort the oldest command that the gateway has.
    Abort,
}

/// An event on a path.
#[derive(Debug)]
pub enum Seen {
    /// Commands can be sent.
    LoggedIn,
    /// A command was answered.
    Answered(u32, Told),
    /// A command was aborted.
    Aborted(u32),
    /// A command was not aborted, and will be answered.
    Kept,
    /// The path is given up, and these commands are unanswered.
    Gone(Vec<u32>),
    /// The gateway broke the protocol.
    Wrong(String),
}

/// Orders and events by path, shared between the world's owner and the node.
#[derive(Default, Debug)]
pub struct Shared {
    /// Waiting orders in sequence.
    pub orders: VecDeque<(u8, Order)>,
    /// Events that the owner has not taken yet.
    pub seen: Vec<(u8, Seen)>,
    /// The links of each path over which commands can be sent.
    pub links: BTreeMap<u8, Vec<LinkId>>,
}

/// Returns the name of host number `i`.
pub(crate) fn host_name(kind: HostKind, i: u8) -> String {
    match kind {
        HostKind::Iscsi => format!("iqn.2026-11.sim:host{i}"),
        HostKind::Nvme => format!("nqn.2026-11.sim:host{i}"),
    }
}

/// Sends a PDU.
fn send(link: LinkId, head: &[u8], data: &[u8], out: &mut Effects) {
    let body = if data.is_empty() { Buf::EMPTY } else { out.copy(data) };
    out.send(link, Head::new(head), body);
}
