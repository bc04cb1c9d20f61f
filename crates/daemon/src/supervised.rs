//! A wrapper around a node: it tells the process when the node has a message or must end.
//!
//! Nodes can't log or exit. Beyond its notes, a node shows what it needs in its state. The wrapper
//! checks that state after each batch, on the shard's thread, and passes everything else through.

use base::Time;
use node::sds::Trouble;
use seam::{DiskError, Effects, Event, Node, Port, Strangers, UnitStore, UnsentLimits};
use store::durable::MountError;

/// The consequence of a node's state for its process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Tell this to people, once.
    Say(String),
    /// End the process, for this reason.
    End(String),
    /// End until the file system under its disk has space again.
    NoSpace(String),
}

/// A node whose state the process watches.
pub(crate) trait Watch {
    /// Returns what its state requires now.
    fn verdict(&self) -> Option<Verdict>;
}

/// A node, and the wrapper around it.
pub(crate) struct Supervised<N, F> {
    /// The node.
    pub node: N,
    last: Option<Verdict>,
    /// The node was asked to end, so its end is not reported.
    stopping: bool,
    tell: F,
}

impl<N: Node + Watch, F: FnMut(Verdict)> Supervised<N, F> {
    /// Watches a node.
    pub(crate) fn new(node: N, tell: F) -> Supervised<N, F> {
        Supervised { node, last: None, stopping: false, tell }
    }
}

impl<N: Node + Watch, F: FnMut(Verdict)> Node for Supervised<N, F> {
    type Framer = N::Framer;

    fn framer(&mut self, port: Port) -> N::Framer {
        self.node.framer(port)
    }

    fn strangers(&self, port: Port) -> Option<Strangers> {
        self.node.strangers(port)
    }

    fn unsent(&self, port: Port) -> Option<UnsentLimits> {
        self.node.unsent(port)
    }

    fn on(&mut self, now: Time, event: Event<'_>, out: &mut Effects) {
        self.node.on(now, event, out);
    }

    fn flush(&mut self, now: Time, out: &mut Effects) {
        self.node.flush(now, out);
        let verdict = self.node.verdict();
        if verdict.is_some() && verdict != self.last && !self.stopping {
            self.last = verdict.clone();
            verdict.into_iter().for_each(&mut self.tell);
        }
    }

    fn wake_at(&self) -> Option<Time> {
        self.node.wake_at()
    }

    fn stop(&mut self) {
        self.stopping = true;
        self.node.stop();
    }

    fn is_stopped(&self) -> bool {
        self.node.is_stopped()
    }
}

impl Watch for node::mdm::Mdm {
    fn verdict(&self) -> Option<Verdict> {
        let why = self.failed()?;
        Some(match self.lacks_space() {
            true => Verdict::NoSpace(why.to_owned()),
            false => Verdict::Say(format!("nothing can change any more: {why}")),
        })
    }
}

impl Watch for node::sds::Sds {
    fn verdict(&self) -> Option<Verdict> {
        let how = self.device().and_then(UnitStore::failed);
        if self.ended() && how == Some(DiskError::NoSpace) {
            return Some(Verdict::NoSpace(broken(DiskError::NoSpace).to_owned()));
        }
        let else_why = if self.failed() { UNRELIABLE } else { SUPERSEDED };
        let why = || how.map_or(else_why, broken).to_owned();
        self.ended().then(|| match self.trouble() {
            Some(trouble) => of_trouble(trouble),
            None => Verdict::End(why()),
        })
    }
}

/// Returns the verdict for a device that could not be opened, or that the MDM refuses.
fn of_trouble(trouble: &Trouble) -> Verdict {
    match trouble {
        Trouble::Device(MountError::Device { error: DiskError::NoSpace, .. }) => {
            Verdict::NoSpace(broken(DiskError::NoSpace).to_owned())
        }
        _ => Verdict::End(trouble.to_string()),
    }
}

const SUPERSEDED: &str = "it must end: a newer process serves in its name";
const UNRELIABLE: &str = "the device can't read what was just written to it, or bits change in \
                          this machine's memory: the messages before this one tell which, and \
                          perhaps `dmesg`. Start the server again when that is repaired; if the \
                          device stays like this, replace it: `gabion device add --replace`";

/// Says what to do about a device that failed to write or to flush.
fn broken(how: DiskError) -> &'static str {
    match how {
        DiskError::NoSpace => "the file system that the device lies on is full: make room",
        _ => {
            "the device failed to write or to flush: see `dmesg`. When it works again, start the \
             server again (while it runs for other devices: send it SIGHUP); else give it another \
             one: `gabion device add --replace`"
        }
    }
}

impl Watch for node::sdc::Sdc {
    fn verdict(&self) -> Option<Verdict> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_space_to_be_opened_or_formatted_waits_for_it() {
        let failed = |what, error| of_trouble(&Trouble::Device(MountError::Device { what, error }));
        for what in ["writing the first checkpoint", "the device, while it was formatted"] {
            let waits = Verdict::NoSpace(broken(DiskError::NoSpace).to_owned());
            assert_eq!(failed(what, DiskError::NoSpace), waits);
            assert!(matches!(failed(what, DiskError::Io), Verdict::End(_)));
        }
        assert!(matches!(of_trouble(&Trouble::Refused("no".into())), Verdict::End(_)));
    }
}
