//! The actions that a session asks its owner for.

use crate::reserve::Change;
use seam::{BlockRequest, Buf, Head};

/// A question that only the MDM can answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Question {
    /// Apply this to the reservations of the volume, for the nexus of the session.
    Reserve(Change),
    /// What are the reservations of the volume now?
    Report,
}

/// How much a host ends, for all hosts of a volume.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Cleared {
    /// The commands.
    Tasks,
    /// The same, and the logical unit is reset.
    Unit,
    /// The same, and the connections are closed.
    Target,
}

/// What the session asks its owner to do, in the order given.
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
        /// Id of the request until then.
        tag: u64,
        /// The request.
        request: BlockRequest,
    },
    /// End the requests and questions whose tags have the same low 32 bits as this one: nothing of
    /// them may take effect after anything that is asked from now on (rule R16). Then call the
    /// session's `withdrawn`. No `done` for them follows. Not used by NBD.
    Withdraw {
        /// The tag of one of them.
        tag: u64,
    },
    /// Ask the MDM, then call the session's `asked`. Not used by NBD.
    Ask {
        /// Id of the question until then.
        tag: u64,
        /// The question.
        question: Question,
    },
    /// From the next frame on, the framer has this mode. Not used by NBD.
    Reframe {
        /// The mode, in the words of the session's framer.
        mode: u32,
    },
    /// End the session that this client had before with the same id and volume, and close its link:
    /// it has logged in again. Not used by NBD.
    Reinstate,
    /// Call `cleared` of all other sessions of this volume. When nothing of the commands that they
    /// ended can take effect any more, call this session's `others_cleared`. For NVMe: close the
    /// I/O queues of this session's controller, and so on. Not used by NBD.
    Clear {
        /// How much ends.
        what: Cleared,
    },
    /// Fetch the present list of volumes, then call the session's `refreshed`: an answer depends
    /// on it, and a volume may have been created a moment ago.
    Refresh,
    /// Stop reading from the client. Frames that have already arrived may still be delivered.
    Pause,
    /// Resume reading from the client.
    Resume,
    /// Close the connection after everything that was sent, and drop the session.
    Close {
        /// The client's error; `None` if the connection ends in order.
        why: Option<&'static str>,
    },
}
