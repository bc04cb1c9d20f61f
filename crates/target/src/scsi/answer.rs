//! The end of a command: status, sense data, data, residual.

use super::command::Residual;
use super::sense::Sense;
use seam::{Buf, BufPool};

/// A status code (SAM-5 5.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Status {
    /// The command is done.
    Good = 0x00,
    /// The command failed; sense data says why.
    CheckCondition = 0x02,
    /// The command can't be executed now; the host repeats it.
    Busy = 0x08,
    /// A reservation of another host does not allow the command.
    ReservationConflict = 0x18,
    /// There is no room for another command; the host repeats it.
    TaskSetFull = 0x28,
}

/// The end of a command. A session sends it and forgets the command.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status.
    pub status: Status,
    /// Sense data: with `CheckCondition` only, and always.
    pub sense: Option<Sense>,
    /// Data for the host: no more than it has room for.
    pub data: Buf,
    /// The residual of the command.
    pub residual: Residual,
}

impl Answer {
    /// Creates a `Good` answer without data.
    pub fn good() -> Answer {
        Answer::bare(Status::Good)
    }

    /// Creates an answer that is only a status. Not for `CheckCondition`.
    pub fn bare(status: Status) -> Answer {
        debug_assert!(status != Status::CheckCondition, "needs sense data");
        Answer { status, sense: None, data: Buf::EMPTY, residual: Residual::None }
    }

    /// Creates an answer for a command that failed.
    pub fn check(sense: Sense) -> Answer {
        let (status, sense) = (Status::CheckCondition, Some(sense));
        Answer { status, sense, data: Buf::EMPTY, residual: Residual::None }
    }

    /// Creates a `Good` answer with `data`, cut to what the host has room for.
    pub fn data(data: Buf, room: u32) -> Answer {
        let residual = Residual::of(room, data.len() as u64);
        let data = data.slice(0..data.len().min(room as usize));
        Answer { status: Status::Good, sense: None, data, residual }
    }

    /// Creates a `Good` answer with a copy of `data`, cut to the allocation length, then to what
    /// the host has room for.
    pub(super) fn copy(data: &[u8], allocation: usize, room: u32, pool: &BufPool) -> Answer {
        Answer::data(pool.copy(&data[..data.len().min(allocation)]), room)
    }

    /// Returns the same answer with this residual.
    pub fn with(self, residual: Residual) -> Answer {
        Answer { residual, ..self }
    }
}

impl From<Sense> for Answer {
    fn from(sense: Sense) -> Answer {
        Answer::check(sense)
    }
}
