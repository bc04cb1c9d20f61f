//! Numbers the dials of an MDM. All purposes share one sequence, so no two dials have the same
//! number.

use core::net::SocketAddr;
use seam::{DialId, Effect, Effects, Port};

/// The number of the next dial.
#[derive(Default)]
pub(super) struct Dials {
    pub next: u64,
}

impl Dials {
    /// Dials this address, and returns the dial's number.
    pub(super) fn dial(&mut self, to: SocketAddr, out: &mut Effects) -> DialId {
        let dial = DialId(self.next);
        self.next += 1;
        out.push(Effect::Dial { dial, to, port: Port::Ours });
        dial
    }
}
