//! Why a block operation failed, and what each failure is called.
//!
//! Invariant: what heals by itself never gets an answer of which hosts make an I/O error at once.

use super::answer::{Answer, Status};
use super::sense::Sense;
use seam::BlockError;

/// Why a block operation failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The client of the volume says so.
    Block(BlockError),
    /// The right to serve this volume changed under way. Nothing was done.
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
                BlockError::Superseded => Sense::STANDBY,
                BlockError::TimedOut => Sense::NO_PRIMARY,
                BlockError::Reserved => return Answer::bare(Status::ReservationConflict),
                BlockError::Busy => return Answer::bare(Status::TaskSetFull),
                // It won't be done later (rule R8), so the host may repeat it.
                BlockError::Forgotten => return Answer::bare(Status::Busy),
            },
        };
        Answer::check(sense)
    }
}
