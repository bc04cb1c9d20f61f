//! The identity of a controller, and the parameters of Connect.

use super::dhchap::Seed;
use alloc::string::String;

/// What a session gets when its connection begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opening {
    /// The id of the controller, if the link becomes an admin queue: 1 to 0xffef. No other
    /// controller has it, nor has one that ended recently.
    pub cntlid: u16,
    /// The source of its challenges.
    pub seed: Seed,
}

/// A controller, as other links see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Controller {
    /// Its id.
    pub cntlid: u16,
    /// The name of its host.
    pub host: String,
    /// The id of its host.
    pub host_id: [u8; 16],
    /// True for a discovery controller.
    pub discovery: bool,
    /// True if it accepts I/O queues.
    pub ready: bool,
    /// True if its host supports command retry delays.
    pub delays: bool,
}

/// What Connect asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    /// The queue's id; 0 is the admin queue.
    pub(crate) qid: u16,
    /// Entries of the submission queue, one less.
    pub(crate) size: u16,
    /// The attributes of the queue.
    pub(crate) attributes: u8,
    /// Keep-alive time-out in milliseconds.
    pub(crate) keep_alive: u32,
}
