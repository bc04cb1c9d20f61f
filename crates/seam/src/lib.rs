//! The seam: what a *core* (it decides) and a *driver* (it executes) say to each other.
//!
//! A core is a [`Node`]: it consumes one [`Event`], emits [`Effect`]s, and touches no clock, socket,
//! device or random source of its own. Two drivers run the same nodes: `rt` on real hardware, `sim`
//! in virtual time under faults. [`contract`] says what a driver promises, and tests it.
#![no_std]
extern crate alloc;

pub mod block;
pub mod buf;
pub mod contract;
pub mod effect;
pub mod event;
pub mod forgotten;
pub mod framer;
pub mod journal;
pub mod node;
pub mod note;

pub use block::{BlockError, BlockKind, BlockRequest};
pub use buf::{Buf, BufPool};
pub use effect::{Effect, Effects, Head};
pub use event::{DialError, DiskError, DownReason, Event};
pub use forgotten::Forgotten;
pub use framer::{FrameError, Framer, Framing};
pub use journal::{
    Change, ClientWrite, ExecutedBlocks, Finished, GroupRecord, Job, Journal, Marks, Origin,
    Started, Walk,
};
pub use node::{Node, Strangers, Unsent};
pub use note::Note;

/// Which protocol a link speaks; the node hands out the [`Framer`] for it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Port {
    /// Our own wire protocol, between MDM, SDS, SDC and the command line.
    Peer,
    /// NBD, to a block client.
    Nbd,
}

/// Names one dial until it ended in [`Event::LinkUp`] or [`Event::DialFailed`]; chosen by the node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DialId(pub u64);

/// Names one device operation until its [`Event::DiskDone`]; chosen by the node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DiskOp(pub u64);

/// Which of the node's devices: its index in the driver's configuration.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DiskId(pub u32);

/// Names one block request until its [`Effect::Reply`]; chosen by the caller.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);
