//! What identifies a controller, and what a host asks for when it connects.

use alloc::string::String;

/// What a session gets when its connection begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opening {
    /// The id of the controller, if the link becomes an admin queue: 1 to 0xffef, and not that of
    /// another controller, also not of one that has just ended.
    pub cntlid: u16,
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
    /// True if it only tells of subsystems.
    pub discovery: bool,
    /// True if it takes I/O queues.
    pub ready: bool,
    /// True if its host understands delays before a repetition.
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
