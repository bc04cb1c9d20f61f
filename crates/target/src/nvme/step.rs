//! The first step of a command, which its opcode decides.

use super::table::Work;
use seam::Buf;

/// What a command does first.
#[derive(Debug)]
pub(crate) enum Step {
    /// The command is done. Contains dwords 0 and 1 of the answer.
    Answer(u64),
    /// Send this to the host. Then the command is done.
    Send(Buf),
    /// The command needs this many bytes from the host.
    Begin(Work, u32),
    /// The command is answered when an event happens.
    Wait,
    /// The command is answered.
    Answered,
    /// The command is done, and ends its queue.
    Leave,
}
