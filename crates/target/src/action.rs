//! The actions that a session asks its owner for.

use crate::reserve::{Change, Refusal, Table};
use base::VolumeId;
use seam::{BlockRequest, Buf, Head};

/// A question that only the MDM can answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Question {
    /// Apply this to the reservations of the volume, for the host of the session.
    Reserve(Change),
    /// Asks for the present reservations of the volume.
    Report,
    /// The host of the session wants to be served by this gateway.
    Activate,
}

/// The answer to a [`Question`].
#[derive(Clone, Copy, Debug)]
pub enum Asked<'a> {
    /// The change of reservations is confirmed, or refused.
    Reserved(Result<(), Refusal>),
    /// The present reservations.
    Table(&'a Table),
    /// This gateway serves the host now, and no other one does.
    Activated,
    /// There was no answer in time.
    Nobody,
}

/// The scope of a task management function that affects all hosts of a volume.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Cleared {
    /// Ends the commands.
    Tasks,
    /// Ends the commands, and resets the logical unit.
    Unit,
    /// Ends the commands, resets the logical unit, and closes the connections.
    Target,
}

/// A session's orders to its owner, to be carried out in this order.
#[derive(Debug)]
pub enum Action {
    /// Send this to the client.
    Send {
        /// The head, which is sent first.
        head: Head,
        /// The body, which is sent after the head.
        body: Buf,
    },
    /// Execute a request, and answer with the session's `done`.
    Request {
        /// The tag of the request until `done`.
        tag: u64,
        /// The request.
        request: BlockRequest,
    },
    /// Withdraw the requests and questions whose tags have the same low 32 bits as this one: none
    /// of them may take effect after a request that follows (rule R16). Then call the session's
    /// `withdrawn`. Don't call `done` for them. Not used by NBD.
    Withdraw {
        /// The tag of one of them.
        tag: u64,
    },
    /// Ask the MDM, then call the session's `asked`. Not used by NBD.
    Ask {
        /// The tag of the question until `asked`.
        tag: u64,
        /// The volume.
        volume: VolumeId,
        /// The question.
        question: Question,
    },
    /// Switch the framer to this mode, from the next frame on. Not used by NBD.
    Reframe {
        /// The mode, as the session's framer encodes it.
        mode: u32,
    },
    /// End the session that this client had before with the same id and volume, and close its link:
    /// it has logged in again. Not used by NBD.
    Reinstate,
    /// Call `cleared` of all other sessions of this volume. When the commands that they ended can't
    /// take effect any more, call this session's `others_cleared`. For NVMe: close the I/O queues
    /// of this session's controller, and then do the same. Not used by NBD.
    Clear {
        /// The scope.
        what: Cleared,
    },
    /// Fetch the current list of volumes, then call the session's `refreshed`: an answer depends on
    /// the list, and a volume may have been created a moment ago.
    Refresh,
    /// Stop reading from the client. Frames that have already arrived may still be delivered.
    Pause,
    /// Resume reading from the client.
    Resume,
    /// Close the connection after sending all queued data, and drop the session.
    Close {
        /// The client's error; `None` for an orderly end.
        why: Option<&'static str>,
    },
}
