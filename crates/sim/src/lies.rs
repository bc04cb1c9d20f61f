//! Lies: a stranger that overhears frames of accepted peers, and repeats them with other numbers on
//! its own connections.
//!
//! It draws only lies that must never be believed: it never has everything that identifies a peer
//! (`docs/internals/simulator.md`). Its frames are well-formed, and their checksums match. Frames
//! sent back to it are lost.

use crate::inbox::ProcState;
use crate::plan::Who;
use crate::stage::Stage;
use crate::world::{ProcId, World};
use base::Prng;
use prost::Message;
use seam::{Buf, BufPool, Head};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use wire::control::{Hello, Register, Role};
use wire::header::HEADER;
use wire::{Header, Kind};

/// How a stranger introduces itself before it lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lie {
    /// It sends no hello.
    Mute,
    /// Its hello names another cluster.
    Cluster,
    /// Its hello names a peer in an earlier incarnation.
    Past,
    /// Its hello names a peer in an incarnation that no MDM has given out.
    Future,
    /// To a server: its hello is meant for another device. To an MDM: its hello copies a peer's,
    /// and it does not register.
    Guest,
    /// To an MDM: it registers a server with a device that this server does not have. To a server:
    /// the same as `Guest`.
    Device,
    /// It pretends to be an MDM, with an invented secret or leadership number.
    Mdm,
}

const NAMES: [(Lie, &str); 7] = [
    (Lie::Mute, "mute"),
    (Lie::Cluster, "cluster"),
    (Lie::Past, "past"),
    (Lie::Future, "future"),
    (Lie::Guest, "guest"),
    (Lie::Device, "device"),
    (Lie::Mdm, "mdm"),
];

impl Lie {
    /// All kinds.
    pub const ALL: [Lie; 7] =
        [Lie::Mute, Lie::Cluster, Lie::Past, Lie::Future, Lie::Guest, Lie::Device, Lie::Mdm];
}

impl fmt::Display for Lie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAMES.iter().find(|(lie, _)| lie == self).expect("all are there").1)
    }
}

impl FromStr for Lie {
    type Err = anyhow::Error;
    fn from_str(s: &str) -> anyhow::Result<Lie> {
        let known = NAMES.iter().find(|(_, name)| *name == s);
        known.map(|(lie, _)| *lie).ok_or_else(|| anyhow::anyhow!("no lie is named {s:?}"))
    }
}

/// Where a message between MDMs has its secret.
const SECRET: usize = 24;

/// Header and body of a frame.
type Frame = (Header, Vec<u8>);

/// The stranger: its memory of frames, and its random numbers.
pub(crate) struct Liar {
    /// The newest frame of each kind to each process; for hellos, of each role.
    heard: BTreeMap<(ProcId, u8, i32), Frame>,
    prng: Prng,
}

/// Kinds that are never repeated unchanged: a stranger with everything that a peer sends when it
/// registers can't be told from the peer.
const NEVER: [Kind; 3] = [Kind::Hello, Kind::Register, Kind::RegisterSdc];

impl Liar {
    pub(crate) fn new(prng: Prng) -> Liar {
        Liar { heard: BTreeMap::new(), prng }
    }

    /// Remembers a frame that is sent to this process.
    pub(crate) fn hear(&mut self, to: ProcId, head: &Head, body: &[u8]) {
        if head.as_slice().len() != HEADER {
            return;
        }
        let header = *wire::parse(head.as_slice());
        let role = match header.kind() {
            Some(Kind::Hello) => Hello::decode(body).map_or(0, |hello| hello.role),
            _ => 0,
        };
        self.heard.insert((to, header.code(), role), (header, body.to_vec()));
    }

    fn hello(&self, to: ProcId, role: Role) -> Option<Hello> {
        let (_, body) = self.heard.get(&(to, Kind::Hello as u8, role as i32))?;
        Hello::decode(&body[..]).ok()
    }

    /// Picks the hello of a server or a client that was sent to this process.
    fn members_hello(&mut self, to: ProcId) -> Option<Hello> {
        let roles = [Role::Sds, Role::Sdc];
        let mut all: Vec<Hello> = roles.into_iter().filter_map(|r| self.hello(to, r)).collect();
        all.retain(|hello| hello.id != 0 && hello.incarnation != 0);
        (!all.is_empty()).then(|| self.prng.pick(&all).clone())
    }

    /// Picks some frames that were sent to this process, and changes numbers in them.
    fn frames(&mut self, to: ProcId, kind: Option<Kind>) -> Vec<Frame> {
        let never = |k: u8| NEVER.into_iter().any(|kind| kind as u8 == k);
        let fits = |k: u8| kind.map_or(!never(k), |kind| kind as u8 == k);
        let all = self.heard.iter().filter(|((who, k, _), _)| *who == to && fits(*k));
        let all: Vec<Frame> = all.map(|(_, frame)| frame.clone()).collect();
        let count = if all.is_empty() { 0 } else { self.prng.range(1, 6) };
        (0..count)
            .map(|_| self.prng.pick(&all).clone())
            .collect::<Vec<Frame>>()
            .into_iter()
            .map(|frame| self.altered(frame))
            .collect()
    }

    /// Changes some numbers and some bytes of a frame.
    fn altered(&mut self, (mut header, mut body): Frame) -> Frame {
        let r = &mut self.prng;
        for _ in 0..r.below(4) {
            let before = header;
            // Most kinds have a number of 8 bytes at most of these places.
            match r.below(10) {
                number @ 0..=8 => {
                    let at = [24, 40, 48, 56, 64, 72, 96, 104, 112][number as usize];
                    let old = header.raw(at);
                    let leap = 1 << r.below(63);
                    let new = [0, old.wrapping_sub(leap), old.wrapping_add(leap), u64::MAX];
                    header.forge(at, &r.pick(&new).to_le_bytes());
                }
                _ => header.forge(92, &(r.below(8) as u32).to_le_bytes()),
            }
            // Mostly without what its kind does not use, or nothing would get far.
            if wire::Frame::try_from(&header).is_err() && r.chance(0.8) {
                header = before;
            }
        }
        if !body.is_empty() && r.chance(0.4) {
            let at = r.below(body.len() as u64) as usize;
            body[at] = r.below(256) as u8;
        }
        (header, body)
    }

    /// Returns the frames of a lie to a process; none if the stranger has not heard enough. `mdm`
    /// is true if the process is an MDM.
    fn story(&mut self, to: ProcId, lie: Lie, mdm: bool) -> Vec<Frame> {
        if lie == Lie::Mute {
            return self.frames(to, None);
        }
        if lie == Lie::Mdm {
            return self.as_mdm(to, mdm);
        }
        let Some(mut hello) = self.members_hello(to) else { return Vec::new() };
        // A later session, so that no older one is in its way.
        hello.session += self.prng.range(1, 1000);
        let mut kind = None;
        match lie {
            Lie::Cluster => hello.cluster ^= 1 << self.prng.below(64),
            Lie::Past => hello.incarnation -= 1 + self.prng.below(hello.incarnation),
            // Too far ahead for any process to get this incarnation in the run.
            Lie::Future => hello.incarnation += 1 << self.prng.range(32, 62),
            Lie::Guest | Lie::Device if !mdm => hello.to = hello.to.wrapping_add(1000),
            Lie::Device => return self.with_device(to),
            _ => kind = Some(*self.prng.pick(&[Kind::Heartbeat, Kind::Proposal, Kind::MapPull])),
        }
        if lie == Lie::Cluster && hello.cluster == 0 {
            return Vec::new(); // 0 stands for an unknown cluster, which is allowed
        }
        let mut story = vec![self.hello_frame(&hello)];
        story.extend(self.frames(to, kind));
        story
    }

    fn hello_frame(&self, hello: &Hello) -> Frame {
        (Header::new(Kind::Hello), hello.encode_to_vec())
    }

    /// Returns frames of a false MDM. To an MDM: messages of the consensus with a wrong secret. To
    /// a server: a hello with an address to dial.
    fn as_mdm(&mut self, to: ProcId, mdm: bool) -> Vec<Frame> {
        let Some(mut hello) = self.hello(to, Role::Mdm) else { return Vec::new() };
        if !mdm {
            hello.incarnation = self.prng.next_u64();
            hello.address = format!("10.0.9.{}:7000", self.prng.below(3));
            return vec![self.hello_frame(&hello)];
        }
        hello.secret = self.prng.next_u64();
        let mut story = vec![self.hello_frame(&hello)];
        for (mut header, body) in self.frames(to, Some(Kind::Raft)) {
            let secret = header.raw(SECRET) ^ self.prng.next_u64();
            header.forge(SECRET, &secret.to_le_bytes());
            story.push((header, body));
        }
        story
    }

    /// Returns the registration of a false server with a device that it does not have, or whose
    /// epochs no group ever had.
    fn with_device(&mut self, to: ProcId) -> Vec<Frame> {
        let register = self.heard.get(&(to, Kind::Register as u8, 0));
        let register = register.and_then(|(_, body)| Register::decode(&body[..]).ok());
        let hello = self.hello(to, Role::Sds);
        let (Some(mut m), Some(mut hello)) = (register, hello) else { return Vec::new() };
        if m.device == 0 {
            return Vec::new(); // an empty device may take another one's place
        }
        (hello.id, hello.incarnation) = (0, 0);
        m.nonce = self.prng.next_u64();
        match self.prng.below(3) {
            0 => m.device = m.device.wrapping_add(1000),
            1 => m.store = self.prng.next_u64(),
            _ => m.acted = u64::MAX - self.prng.below(1000),
        }
        vec![self.hello_frame(&hello), (Header::new(Kind::Register), m.encode_to_vec())]
    }
}

impl World {
    /// Adds a stranger that listens from now on, and may lie later.
    pub fn expect_lies(&mut self, prng: Prng) {
        self.liar = Some(Liar::new(prng));
    }

    /// Sends a lie to this process. Returns false when the stranger has not heard enough.
    fn lie(&mut self, to: ProcId, lie: Lie, mdm: bool) -> bool {
        if self.procs[to.0].state == ProcState::Dead {
            return false;
        }
        let Some(liar) = &mut self.liar else { return false };
        let story = liar.story(to, lie, mdm);
        let name = self.procs[to.0].name.clone();
        let frames: Vec<(Head, Buf)> = story
            .iter()
            .map(|(header, body)| (wire::frame(*header, body), BufPool::new(0).copy(body)))
            .collect();
        self.trace.line(self.now, &name, || {
            let kinds: Vec<_> = story.iter().map(|(header, _)| header.kind()).collect();
            format!("hears a lie: {lie}, {kinds:?}")
        });
        let said = !frames.is_empty();
        self.say_from_nowhere(to, frames);
        said
    }
}

impl Stage {
    /// Sends a lie to this process, if the stranger has heard enough.
    pub(crate) fn lie(&mut self, who: Who, lie: Lie) {
        if self.world.lie(self.proc(who), lie, matches!(who, Who::Mdm(_))) {
            self.marks.meet("sim: a stranger lied");
        }
    }
}
