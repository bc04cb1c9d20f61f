//! A stranger that lies: it has heard what members say, and says it again with other numbers, from
//! a connection of its own.
//!
//! It draws only lies that must not be believed, whatever else is true: it never has all that a
//! member is known by (`docs/internals/simulator.md`). What it says is well-formed: checksums fit.
//! What is sent back to it is lost.

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

/// How a stranger begins to lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lie {
    /// It says no hello.
    Mute,
    /// It says to be of another cluster.
    Cluster,
    /// It says to be a member in an earlier life.
    Past,
    /// It says to be a member in a life that nobody has given out.
    Future,
    /// To a server: it means another device. To an MDM: it says to be a member, and doesn't
    /// register.
    Guest,
    /// To an MDM: it says to be a server with a device that this one doesn't have. To a server: as
    /// `Guest`.
    Device,
    /// It says to be an MDM, with a secret or an office that nobody has drawn.
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

/// A frame.
type Frame = (Header, Vec<u8>);

/// What the stranger has heard, and what it draws from.
pub(crate) struct Liar {
    /// The newest frame of each kind to each process. Of hellos: of each role.
    heard: BTreeMap<(ProcId, u8, i32), Frame>,
    prng: Prng,
}

/// Who has all that a member says when it registers is the member: these are not said again as they
/// are.
const NEVER: [Kind; 3] = [Kind::Hello, Kind::Register, Kind::RegisterSdc];

impl Liar {
    pub fn new(prng: Prng) -> Liar {
        Liar { heard: BTreeMap::new(), prng }
    }

    /// A frame is sent to this process.
    pub fn hear(&mut self, to: ProcId, head: &Head, body: &[u8]) {
        if head.as_slice().len() != HEADER {
            return;
        }
        let header = wire::parse(head.as_slice());
        let role = match header.kind() {
            Some(Kind::Hello) => Hello::decode(body).map_or(0, |hello| hello.role),
            _ => 0,
        };
        self.heard.insert((to, header.kind, role), (header, body.to_vec()));
    }

    fn hello(&self, to: ProcId, role: Role) -> Option<Hello> {
        let (_, body) = self.heard.get(&(to, Kind::Hello as u8, role as i32))?;
        Hello::decode(&body[..]).ok()
    }

    /// The hello of a server or a client that this process has heard.
    fn members_hello(&mut self, to: ProcId) -> Option<Hello> {
        let roles = [Role::Sds, Role::Sdc];
        let mut all: Vec<Hello> = roles.into_iter().filter_map(|r| self.hello(to, r)).collect();
        all.retain(|hello| hello.id != 0 && hello.incarnation != 0);
        (!all.is_empty()).then(|| self.prng.pick(&all).clone())
    }

    /// Some frames that this process has heard, with other numbers.
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

    /// The frame with some other numbers, and some other bytes.
    fn altered(&mut self, (mut header, mut body): Frame) -> Frame {
        let r = &mut self.prng;
        for _ in 0..r.below(4) {
            let field = match r.below(10) {
                0 => &mut header.op,
                1 => &mut header.epoch,
                2 => &mut header.lsn,
                3 => &mut header.commit,
                4 => &mut header.seq,
                5 => &mut header.floor,
                6 => &mut header.incarnation,
                7 => &mut header.map,
                8 => &mut header.sent,
                _ => {
                    header.sdc = (r.below(8) as u32).into();
                    continue;
                }
            };
            let old = field.get();
            let leap = 1 << r.below(63);
            let new = [0, old.wrapping_sub(leap), old.wrapping_add(leap), u64::MAX];
            *field = (*r.pick(&new)).into();
        }
        if !body.is_empty() && r.chance(0.4) {
            let at = r.below(body.len() as u64) as usize;
            body[at] = r.below(256) as u8;
        }
        (header, body)
    }

    /// What the stranger says to a process; nothing if it has not heard enough. True: the process
    /// is an MDM.
    fn story(&mut self, to: ProcId, lie: Lie, mdm: bool) -> Vec<Frame> {
        if lie == Lie::Mute {
            return self.frames(to, None);
        }
        if lie == Lie::Mdm {
            return self.as_mdm(to, mdm);
        }
        let Some(mut hello) = self.members_hello(to) else { return Vec::new() };
        // No older session is in its way.
        hello.session += self.prng.range(1, 1000);
        let mut kind = None;
        match lie {
            Lie::Cluster => hello.cluster ^= 1 << self.prng.below(64),
            Lie::Past => hello.incarnation -= 1 + self.prng.below(hello.incarnation),
            // Far enough that nobody gets this life in the run.
            Lie::Future => hello.incarnation += 1 << self.prng.range(32, 62),
            Lie::Guest | Lie::Device if !mdm => hello.to = hello.to.wrapping_add(1000),
            Lie::Device => return self.with_device(to),
            _ => kind = Some(*self.prng.pick(&[Kind::Heartbeat, Kind::Proposal, Kind::MapPull])),
        }
        if lie == Lie::Cluster && hello.cluster == 0 {
            return Vec::new(); // it says that it doesn't know
        }
        let mut story = vec![self.hello_frame(&hello)];
        story.extend(self.frames(to, kind));
        story
    }

    fn hello_frame(&self, hello: &Hello) -> Frame {
        (Header::new(Kind::Hello), hello.encode_to_vec())
    }

    /// To an MDM: messages of the consensus that don't begin with its secret. To a server: "ask
    /// me".
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
            header.op = (header.op.get() ^ self.prng.next_u64()).into();
            story.push((header, body));
        }
        story
    }

    /// To an MDM: a server with a device that it doesn't have, or that says to have acted when
    /// nobody has.
    fn with_device(&mut self, to: ProcId) -> Vec<Frame> {
        let register = self.heard.get(&(to, Kind::Register as u8, 0));
        let register = register.and_then(|(_, body)| Register::decode(&body[..]).ok());
        let hello = self.hello(to, Role::Sds);
        let (Some(mut m), Some(mut hello)) = (register, hello) else { return Vec::new() };
        if m.device == 0 {
            return Vec::new(); // an empty device may come in another one's place
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
    /// Somebody listens from now on, who may lie later.
    pub fn expect_lies(&mut self, prng: Prng) {
        self.liar = Some(Liar::new(prng));
    }

    /// A stranger lies to this process. False when it has not heard enough.
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
    /// A stranger lies to this process, if it has heard enough.
    pub(crate) fn lie(&mut self, who: Who, lie: Lie) {
        if self.world.lie(self.proc(who), lie, matches!(who, Who::Mdm(_))) {
            self.marks.meet("sim: a stranger lied");
        }
    }
}
