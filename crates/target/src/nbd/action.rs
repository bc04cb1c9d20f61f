//! The actions that a session asks its owner for.

use seam::{BlockRequest, Buf, Head};

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
    /// Execute a request, and answer with [`done`](super::Session::done).
    Request {
        /// Id of the request until then.
        tag: u64,
        /// The request.
        request: BlockRequest,
    },
    /// Fetch the present list of volumes, then call [`refreshed`](super::Session::refreshed): an
    /// answer depends on it, and a volume may have been created a moment ago.
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
