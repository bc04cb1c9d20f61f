//! The reasons why a block operation fails, and the answer to each.
//!
//! Invariant: a temporary failure never gets an answer that hosts turn into an I/O error at once.

use super::answer::{Answer, Status};
use super::sense::Sense;
use seam::BlockError;

/// Why a block operation failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The error of the client core.
    Block(BlockError),
    /// The right to serve this volume changed during the operation. Nothing was done.
    Fenced,
    /// The host's data did not arrive in order.
    Data,
}

impl From<BlockError> for Failure {
    fn from(error: BlockError) -> Failure {
        Failure::Block(error)
    }
}

impl Failure {
    /// Returns the answer of a command that has failed, without residual. `writes` says what the
    /// command did, and `lba` is the first logical block of the operation. After
    /// [`BlockError::NoSuchVolume`] the session ends.
    pub fn answer(&self, writes: bool, lba: u64) -> Answer {
        let sense = match self {
            Failure::Fenced => return Answer::bare(Status::Busy),
            Failure::Data => Sense::DATA_LOST,
            Failure::Block(error) => match error {
                BlockError::Miscompare(at) => Sense::MISCOMPARE.about(u64::from(*at)),
                BlockError::OutOfRange => Sense::OUT_OF_RANGE,
                BlockError::Misaligned | BlockError::TooBig => Sense::IN_CDB,
                BlockError::ReadOnly => Sense::WRITE_PROTECTED,
                BlockError::NoSuchVolume => Sense::NO_UNIT,
                BlockError::Full => Sense::NO_SPACE_YET,
                BlockError::Lost if writes => Sense::WRITE_LOST.about(lba),
                BlockError::Media if writes => Sense::WRITE_ERROR.about(lba),
                BlockError::Lost | BlockError::Media => Sense::READ_ERROR.about(lba),
                BlockError::Superseded | BlockError::Elsewhere => Sense::STANDBY,
                BlockError::TimedOut => Sense::NO_PRIMARY,
                BlockError::Reserved => return Answer::bare(Status::ReservationConflict),
                BlockError::Busy => return Answer::bare(Status::TaskSetFull),
                // The write won't take effect later (rule R8), so the host may repeat it.
                BlockError::Forgotten => return Answer::bare(Status::Busy),
            },
        };
        Answer::check(sense)
    }
}
