//! The first step of a command, which its opcode decides.

use super::table::Work;
use seam::Buf;

/// What a command does first.
#[derive(Debug)]
pub(crate) enum Step {
    /// It is done. Dwords 0 and 1 of the answer.
    Answer(u64),
    /// Send this to the host. Then it is done.
    Send(Buf),
    /// It goes on. It needs so many bytes of the host.
    Begin(Work, u32),
    /// It is answered when an event happens.
    Wait,
    /// It is done, and the queue with it.
    Leave,
}
