//! Links between the processes of a cluster: the processes that are dialled, and the handshake.
//!
//! A [`Dialer`] keeps one connection. A [`Directory`] has one for each peer that a role needs, and
//! a [`MdmFinder`] has the one to the leading MDM. [`handshake`] is the same for all roles, the
//! command line and the simulator's administrator. [`session`] numbers the connections from one
//! process to another.
//!
//! None of them knows what a link is for, and none decides what a role thinks of its peer: a role
//! checks what only it can know, such as the age of the peer's map.

mod dialer;
mod directory;
mod finder;
pub mod handshake;
pub mod session;

pub use dialer::Dialer;
pub use directory::{Directory, Peer};
pub use finder::MdmFinder;
pub use handshake::{Answer, Callee, PeerId, Welcomed, hello, welcome};

use base::{Limits, Mutant, mutant};
use seam::{Effects, Strangers};
use wire::{Control, Header, PeerLink};

/// Returns the limits on links from peers whose hello has not been accepted.
pub fn strangers(limits: &Limits) -> Strangers {
    let any = mutant::on(Mutant::EndlessStrangers);
    let most = if any { u32::MAX } else { limits.strangers };
    Strangers { most, body: limits.stranger_body, patience: limits.hello_within }
}

/// Sends a control message in the version of the link.
pub fn send_control<M: Control>(link: PeerLink, message: &M, out: &mut Effects) {
    send_answer(link, Header::new(M::KIND), message, out);
}

/// Sends a control message whose header says `frame`, in the version of the link.
pub fn send_answer(
    link: PeerLink,
    frame: impl Into<Header>,
    message: &impl Control,
    out: &mut Effects,
) {
    let (head, body) = link.control(frame, message, out.pool());
    out.send(link.id, head, body);
}
