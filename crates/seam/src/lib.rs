//! The seam: the interface between a *node*, which decides, and a *driver*, which executes.
//!
//! A [`Node`] consumes one [`Event`] at a time and emits [`Effect`]s. It never touches a clock,
//! socket, device or random source directly. Two drivers run the same nodes: `rt` on real hardware,
//! `sim` in virtual time under faults. [`contract`] has a driver's promises and their tests.
#![no_std]
extern crate alloc;

pub mod block;
pub mod buf;
pub mod contract;
pub mod effect;
pub mod event;
pub mod framer;
pub mod node;
pub mod note;
pub mod record;
pub mod unit_store;

pub use block::{BlockError, BlockKind, BlockRequest};
pub use buf::{Buf, BufPool};
pub use effect::{Effect, Effects, Head};
pub use event::{DialError, DiskError, DownReason, Event};
pub use framer::{FrameError, Framer, Framing};
pub use node::{Node, Strangers, UnsentLimits};
pub use note::Note;
pub use record::{
    Change, ClientWrite, ExecutedBlocks, Forgotten, Origin, ReplicaRecord, WriteMetadata,
};
pub use unit_store::{Finished, Job, Started, UnitStore, Walk};

/// The kind of peer on a link. The node provides the [`Framer`] for it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Port {
    /// Processes of the cluster, and the command line, in our own wire protocol.
    Ours,
    /// A block client, in the protocol of a target. The number names the protocol to the node:
    /// below [`Port::TARGETS`].
    Target(u8),
}

impl Port {
    /// The most protocols of targets.
    pub const TARGETS: u8 = 3;
    /// How many ports there are.
    pub const COUNT: usize = 1 + Port::TARGETS as usize;
    /// All ports, each at its index.
    pub const ALL: [Port; Port::COUNT] =
        [Port::Ours, Port::Target(0), Port::Target(1), Port::Target(2)];

    /// Returns its index in [`Port::ALL`].
    pub const fn index(self) -> usize {
        match self {
            Port::Ours => 0,
            Port::Target(n) => 1 + n as usize,
        }
    }
}

/// Id of a dial until it ends in [`Event::LinkUp`] or [`Event::DialFailed`]; chosen by the node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DialId(pub u64);

/// Id of a device operation until its [`Event::DiskDone`]; chosen by the node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DiskOp(pub u64);

/// One of the node's devices: its index in the driver's configuration.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DiskId(pub u32);

/// Id of a block request until its [`Effect::Reply`]; chosen by the caller.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);
