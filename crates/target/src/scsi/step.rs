//! The steps of a session for a command.

use super::answer::Answer;
use super::command::Residual;
use super::failure::Failure;
use super::plan::Plan;
use crate::reserve::{Access, Change, Kind};
use seam::{BlockError, BlockKind};

/// A range that is transferred between host and volume in pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// Start of the range in the volume, in bytes. A multiple of 512.
    pub at: u64,
    /// Length of the range in bytes. A multiple of 512. Never 0.
    pub len: u32,
    /// Bytes on the wire. Equal to `len`, unless the host's buffer for a read does not end at a
    /// sector.
    pub moves: u32,
    /// The residual of the answer, unless no data is transferred to the host.
    pub residual: Residual,
    /// Bytes of a logical block.
    pub block: u32,
    /// True if the volume is written.
    pub writes: bool,
}

impl Transfer {
    /// Returns the answer when all pieces are done.
    pub fn done(&self) -> Answer {
        Answer::good().with(self.residual)
    }

    /// Returns the answer when the piece at `offset` of the transfer has failed. If several have
    /// failed, use the lowest offset: hosts assume that everything before it was transferred.
    pub fn failed(&self, failure: Failure, offset: u32) -> Answer {
        let block = (self.at + u64::from(offset)) / u64::from(self.block);
        failure.answer(self.writes, block).with(self.residual)
    }

    /// Returns the answer when the range could not be read: no data is sent to the host.
    pub fn unread(&self, failure: Failure) -> Answer {
        let beyond = if let Residual::Under(rest) = self.residual { rest } else { 0 };
        self.failed(failure, 0).with(Residual::of(self.moves + beyond, 0))
    }

    /// Compares a piece at `offset` that the host has `sent` with what the volume has there, for
    /// [`Step::Verify`]. Returns the answer of the whole command if they differ.
    pub fn compare(&self, offset: u32, sent: &[u8], stored: &[u8]) -> Option<Answer> {
        if sent.len() != stored.len() {
            return Some(self.failed(BlockError::Media.into(), offset));
        }
        let at = sent.iter().zip(stored).position(|(a, b)| a != b)?;
        Some(self.failed(BlockError::Miscompare(offset + at as u32).into(), offset))
    }
}

/// Data from the host that a command needs completely before it begins: a parameter list, the block
/// of WRITE SAME, both halves of COMPARE AND WRITE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gather {
    /// How many bytes: 1 to [`Gather::MAX`].
    pub len: u32,
    pub(super) then: Then,
}

impl Gather {
    /// The most bytes of one.
    pub const MAX: u32 = 8192;

    /// Returns what the command will do to the volume.
    pub(crate) fn needs(&self) -> Access {
        match self.then {
            Then::ModeSelect { .. } | Then::PersistOut { .. } | Then::SetPortGroups => {
                Access::of(BlockKind::Flush)
            }
            Then::Unmap | Then::WriteSame { .. } => Access::of(BlockKind::Write),
            Then::CompareWrite { .. } => Access::of(BlockKind::CompareWrite),
        }
    }
}

/// The command that the data belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Then {
    /// MODE SELECT; `ten` for the CDB of ten bytes.
    ModeSelect { ten: bool },
    /// PERSISTENT RESERVE OUT, its service action, and the type where it has one.
    PersistOut { action: u8, kind: Option<Kind> },
    /// SET TARGET PORT GROUPS.
    SetPortGroups,
    /// UNMAP.
    Unmap,
    /// WRITE SAME for this range of bytes.
    WriteSame { at: u64, len: u32, hole: bool },
    /// COMPARE AND WRITE for this range of bytes.
    CompareWrite { at: u64, len: u32 },
}

/// The parameters of PERSISTENT RESERVE IN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report {
    pub(super) what: What,
    /// The allocation length of the CDB.
    pub(super) allocation: u32,
    /// Bytes that the host has room for.
    pub(super) room: u32,
}

/// The service action of PERSISTENT RESERVE IN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum What {
    Keys,
    Reservation,
    FullStatus,
}

/// The session's next step for a command.
#[derive(Clone, Debug)]
pub enum Step {
    /// Send this; the command is over. If the host sends data for it nevertheless, drop the data.
    Answer(Answer),
    /// Read the range, send its first `moves` bytes, then answer with [`Transfer::done`]. If it
    /// can't be read, answer with [`Transfer::unread`].
    Read(Transfer),
    /// Receive `moves` bytes, write them piece by piece as they arrive, then answer with
    /// [`Transfer::done`], or with [`Transfer::failed`]. Further data of the host is dropped.
    Write(Transfer),
    /// Receive `moves` bytes. Read the range of each piece, and [`Transfer::compare`] the two. Then
    /// answer with [`Transfer::done`], or with [`Transfer::failed`].
    Verify(Transfer),
    /// Receive this many bytes, then call [`Device::gathered`](super::Device::gathered).
    Gather(Gather),
    /// Execute [`Plan::request`], pass its result to [`Plan::done`], and so on until there is an
    /// answer.
    Run(Plan),
    /// Ask the MDM to apply this to the volume's reservations, for the nexus of this session. Then
    /// call [`Device::reserved`](super::Device::reserved) with its answer.
    Reserve(Change),
    /// Get the volume's present reservations from the MDM, then call
    /// [`Device::report`](super::Device::report).
    Report(Report),
    /// Make the path of this session the one that the host uses. When no other gateway serves the
    /// host any more, answer with GOOD.
    Activate,
}
