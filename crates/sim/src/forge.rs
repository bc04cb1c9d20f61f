//! Forged hellos: a stranger with a socket that overhears frames, and sends hellos in the names of
//! other processes. It sends nothing else.
//!
//! Its connections have no real other end: frames sent back on them are lost, and no
//! fault breaks them.

use crate::inbox::ProcState;
use crate::net::{Cargo, Conn, End, EndState, Lane};
use crate::world::{ProcId, World};
use prost::Message;
use seam::{Buf, BufPool, Head, Port};
use std::fmt;
use wire::control::{Hello, Role};
use wire::header::HEADER;
use wire::{HANDSHAKE_VERSION, Header, Kind, control_frame};

/// Number of overheard hellos that are remembered.
const REMEMBERED: usize = 64;

/// Change to an overheard hello.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forgery {
    /// No change: the hello is repeated.
    Replay,
    /// A later incarnation.
    Life,
    /// A later session, and a newer map.
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
    /// Lets strangers overhear a frame that is sent to this process.
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

    /// Sends this process a hello in the name of a process that it has heard of.
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
        let (head, body) = control_frame(HANDSHAKE_VERSION, header, &hello, &BufPool::new(0));
        let name = self.procs[to.0].name.clone();
        self.trace.line(self.now, &name, || format!("gets a forged hello: {hello:?}"));
        self.say_from_nowhere(to, vec![(head, body)]);
    }

    /// Dials this process as a stranger, and sends these frames, or none.
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
            port: Port::Ours,
            ends: [nowhere, End::new(to, life, None)],
            lanes: [lane, Lane::default()],
            forged: true,
            at: None,
        };
        let index = self.conns.len() as u32;
        self.conns.push(Some(Box::new(conn)));
        self.arm(index, 0);
    }

    /// Dials this process as this many strangers that send nothing.
    pub fn dial_idly(&mut self, to: ProcId, count: u32) {
        if self.procs[to.0].state != ProcState::Dead {
            (0..count).for_each(|_| self.say_from_nowhere(to, Vec::new()));
        }
    }
}
