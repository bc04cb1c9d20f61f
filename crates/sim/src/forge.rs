//! Somebody who has a socket, hears what is said, and has no part in the cluster: it says hello in the name of
//! others, and nothing more.
//!
//! Its connections come from nowhere: what is sent back on them is lost, and nothing in the world breaks them.

use crate::inbox::ProcState;
use crate::net::{Cargo, Conn, End, EndState, Lane};
use crate::world::{ProcId, World};
use prost::Message;
use seam::{Buf, BufPool, Head, Port};
use std::fmt;
use wire::control::{Hello, Role};
use wire::header::HEADER;
use wire::{Header, Kind, control_frame};

/// Hellos that are remembered.
const REMEMBERED: usize = 64;

/// What is done to a hello that was overheard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forgery {
    /// It is said again as it was.
    Replay,
    /// It is of a later life.
    Life,
    /// It is of a later connection, with a newer map.
    Session,
}

impl Forgery {
    /// All kinds.
    pub const ALL: [Forgery; 3] = [Forgery::Replay, Forgery::Life, Forgery::Session];
}

impl fmt::Display for Forgery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Forgery::Replay => "replay",
            Forgery::Life => "life",
            Forgery::Session => "session",
        })
    }
}

impl World {
    /// A frame is sent to this process: somebody hears it.
    pub(crate) fn overhear(&mut self, to: ProcId, head: &Head, body: &[u8]) {
        if let Some(liar) = &mut self.liar {
            liar.hear(to, head, body);
        }
        let is_hello = head.as_slice().len() == HEADER
            && wire::parse(head.as_slice()).kind() == Some(Kind::Hello);
        if !is_hello {
            return;
        }
        let Ok(hello) = Hello::decode(body) else { return };
        if hello.id != 0 && matches!(hello.role(), Role::Sds | Role::Sdc) {
            self.overheard.push_back((to, hello));
            let surplus = self.overheard.len().saturating_sub(REMEMBERED);
            self.overheard.drain(..surplus);
        }
    }

    /// Says hello to this process in the name of somebody who has.
    pub fn forge(&mut self, to: ProcId, how: Forgery) {
        let heard: Vec<usize> =
            (0..self.overheard.len()).filter(|i| self.overheard[*i].0 == to).collect();
        if heard.is_empty() || self.procs[to.0].state == ProcState::Dead {
            return;
        }
        let mut hello = self.overheard[*self.forge_prng.pick(&heard)].1.clone();
        let bits = self.forge_prng.range(1, 30);
        let leap = 1 + self.forge_prng.below(1 << bits);
        match how {
            Forgery::Replay => {}
            Forgery::Life => (hello.incarnation, hello.map) = (hello.incarnation + leap, leap),
            Forgery::Session => {
                (hello.session, hello.map) = (hello.session + leap, hello.map + leap);
            }
        }
        let header = Header::new(Kind::Hello);
        let (head, body) = control_frame(header, &hello, &BufPool::new(0));
        let name = self.procs[to.0].name.clone();
        self.trace.line(self.now, &name, || format!("gets a forged hello: {hello:?}"));
        self.say_from_nowhere(to, vec![(head, body)]);
    }

    /// Somebody dials this process, and says this, or nothing.
    pub(crate) fn say_from_nowhere(&mut self, to: ProcId, frames: Vec<(Head, Buf)>) {
        let life = self.procs[to.0].life;
        let nowhere = End { state: EndState::Gone, ..End::new(to, life, None) };
        let mut lane = Lane::default();
        lane.push(self.now, Cargo::Up);
        for (head, body) in frames {
            lane.bytes += (head.as_slice().len() + body.len()) as u64;
            lane.push(self.now, Cargo::Data { head, body });
        }
        let conn = Conn {
            port: Port::Peer,
            ends: [nowhere, End::new(to, life, None)],
            lanes: [lane, Lane::default()],
            forged: true,
        };
        let index = self.conns.len() as u32;
        self.conns.push(Some(Box::new(conn)));
        self.arm(index, 0);
    }

    /// So many strangers dial this process, and say nothing.
    pub fn dial_idly(&mut self, to: ProcId, count: u32) {
        if self.procs[to.0].state != ProcState::Dead {
            (0..count).for_each(|_| self.say_from_nowhere(to, Vec::new()));
        }
    }
}
