//! The numbers of dials, which are the same for all purposes: each dial has another one.

use core::net::SocketAddr;
use seam::{DialId, Effect, Effects, Port};

/// The number of the next dial.
#[derive(Default)]
pub(super) struct Dials {
    pub next: u64,
}

impl Dials {
    /// Dials.
    pub(super) fn dial(&mut self, to: SocketAddr, out: &mut Effects) -> DialId {
        let dial = DialId(self.next);
        self.next += 1;
        out.push(Effect::Dial { dial, to, port: Port::Ours });
        dial
    }
}
