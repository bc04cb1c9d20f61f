//! Frames that announce a longer body than a process accepts from a stranger, or
//! from an accepted peer.

use crate::inbox::ProcState;
use crate::net::{Cargo, EndState};
use crate::world::{ProcId, World};
use base::Limits;
use seam::{Buf, Port};
use wire::{Header, Kind};

/// Where a header says how long the body is.
const BODY_LEN: usize = 12;

impl World {
    /// Sends this process the head of such a frame, with a valid checksum: from a stranger, or on
    /// the connection of an accepted peer.
    pub fn say_too_much(&mut self, to: ProcId, member: bool, limits: &Limits) {
        if self.procs[to.0].state == ProcState::Dead {
            return;
        }
        let most = if member { limits.frame_body } else { limits.stranger_body };
        let kinds = [Kind::Hello, Kind::Write, Kind::Reply, Kind::MapPage];
        let mut header = Header::new(*self.forge_prng.pick(&kinds));
        let len: u32 = *self.forge_prng.pick(&[most + 1, 2 * most, u32::MAX]);
        header.forge(BODY_LEN, &len.to_le_bytes());
        let head = wire::frame::seal(header);
        let name = self.procs[to.0].name.clone();
        self.trace.line(self.now, &name, || format!("is to get a body of {len} bytes"));
        if !member {
            return self.say_from_nowhere(to, vec![(head, Buf::EMPTY)]);
        }
        let Some((index, lane)) = self.some_lane(to) else { return };
        let at = self.travel();
        self.push_cargo(index, lane, at, Cargo::Data { head, body: Buf::EMPTY });
    }

    /// Picks a connection between accepted peers that leads to this process, and its lane
    /// in this direction.
    fn some_lane(&mut self, to: ProcId) -> Option<(u32, usize)> {
        let mut lanes = Vec::new();
        for (index, conn) in self.conns.iter().enumerate() {
            let Some(conn) = conn.as_ref().filter(|c| c.port == Port::Ours && !c.forged) else {
                continue;
            };
            let up = conn.ends.iter().all(|end| matches!(end.state, EndState::Up(_)));
            let sides = (0..2).filter(|side| up && conn.ends[*side].proc == to);
            lanes.extend(sides.map(|side| (index as u32, 1 - side)));
        }
        let turn = self.forge_prng.below(lanes.len().max(1) as u64) as usize;
        lanes.get(turn).copied()
    }
}
