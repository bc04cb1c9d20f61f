//! A checked command, as its handler gets it.

use super::answer::Answer;
use super::attention::Attention;
use super::command::{Cdb, Residual};
use super::sense::Sense;
use super::step::{Gather, Step, Then};
use super::unit::Unit;
use seam::BufPool;

/// A command that has passed the checks of the device.
#[derive(Clone, Copy)]
pub(super) struct Checked<'a> {
    pub(super) cdb: Cdb<'a>,
    pub(super) reads: u32,
    pub(super) sends: u32,
    pub(super) unit: &'a Unit,
    /// False if the command addresses a logical unit that does not exist.
    pub(super) exists: bool,
    /// For REQUEST SENSE, the unit attention that it reports.
    pub(super) pending: Option<Attention>,
    pub(super) pool: &'a BufPool,
}

impl Checked<'_> {
    /// Answers with data: cut to the allocation length, then to what the host has room for.
    pub(super) fn data(&self, data: &[u8], allocation: usize) -> Step {
        Step::Answer(Answer::copy(data, allocation, self.reads, self.pool))
    }

    /// Returns the residual of a command without data. The host may have announced data
    /// nevertheless, in either direction.
    pub(super) fn nothing_moves(&self) -> Residual {
        Residual::of(self.sends.max(self.reads), 0)
    }

    /// Answers `Good` without data.
    pub(super) fn good(&self) -> Step {
        Step::Answer(Answer::good().with(self.nothing_moves()))
    }

    /// Asks for a parameter list of `len` bytes, which the host must have announced exactly. The
    /// longest lists have 8 KiB.
    pub(super) fn gather(&self, len: u32, then: Then) -> Result<Step, Answer> {
        if self.sends != len {
            let residual = Residual::of(self.sends, u64::from(len));
            return Err(Answer::check(Sense::WRONG_LENGTH).with(residual));
        }
        if len > Gather::MAX {
            return Err(Sense::LIST_LENGTH.into());
        }
        Ok(Step::Gather(Gather { len, then }))
    }
}
