//! Arbitrary bytes as the stream of an NVMe/TCP host, in any pieces, with any order of completions.
//!
//! Checked: no panic; the framer keeps its contract and does not depend on the pieces; nothing
//! happens after a close; the limits hold; all memory is freed.
//!
//! Input: one byte for the mode, then a script of control bytes. Each is an event, or a command
//! that is nearly right, or it is followed by bytes of the stream. The content of the answers is
//! not checked here (`crates/target/tests/all/nvme` does that).
#![no_main]

mod cut;

use base::time::Duration;
use base::{ClusterId, Limits, Time, VolumeId};
use cut::{Script, Step};
use hmac::{Hmac, Mac};
use libfuzzer_sys::fuzz_target;
use seam::{BlockError, BlockKind, BlockRequest, BufPool};
use sha2::Sha256;
use target::nvme::{
    Controller, Key, Keys, Namespace, NvmeFramer, Opening, Path, Portal, Seed, Session, Subsystem,
};
use target::reserve::{Access, Identity, Kind, Notice, Refusal, Registrant, Table};
use target::{Action, Asked, Question, ident};

/// Longest body of a frame: a capsule of an admin queue.
const LONGEST: usize = 8 << 10;

const SIZE: u64 = 16 << 20;
const CLUSTER: ClusterId = ClusterId(1);
/// The key of the host: 32 zeros, tied to no name.
const KEY: &str = "DHHC-1:00:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAACtVQoZ:";

struct Hosts {
    controller: Controller,
    namespaces: u32,
    version: u64,
    /// Another gateway serves the host of the first namespace.
    moved: bool,
    /// The key of the host, if it has one. We have the same.
    key: Option<Key>,
}

impl Hosts {
    fn at(&self, nsid: u32) -> Option<Namespace> {
        let elsewhere = nsid % 8 == 7 || (nsid == 1 && self.moved);
        let path = if elsewhere { Path::Inaccessible } else { Path::Optimized };
        let there = (1..=self.namespaces).contains(&nsid);
        let (volume, read_only) = (VolumeId(nsid), nsid % 4 == 3);
        let access = Access { read: true, write: nsid != 2 };
        there.then_some(Namespace { volume, size: SIZE, read_only, access, path })
    }
}

impl Subsystem for Hosts {
    fn cluster(&self) -> ClusterId {
        CLUSTER
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn namespace(&self, nsid: u32) -> Option<Namespace> {
        self.at(nsid)
    }

    fn next(&self, after: u32) -> Option<Namespace> {
        self.at(after.checked_add(1)?)
    }

    fn portals(&self, visit: &mut dyn FnMut(Portal)) {
        visit(Portal { address: ([10, 0, 0, 1], 4420).into(), port: 1 });
    }

    fn admits(&self, host: &str, _: &[u8; 16]) -> bool {
        host != "x"
    }

    fn keys(&self, _: &str) -> Option<Keys<'_>> {
        self.key.as_ref().map(|key| Keys { host: key, own: Some(key) })
    }

    fn is_busy(&self) -> bool {
        false
    }

    fn controller(&self, cntlid: u16) -> Option<&Controller> {
        (cntlid == 9).then_some(&self.controller)
    }

    fn has_queue(&self, _: u16, qid: u16) -> bool {
        qid == 2
    }
}

struct Owner {
    session: Session,
    framer: NvmeFramer,
    pool: BufPool,
    hosts: Hosts,
    out: Vec<Action>,
    asked: Vec<(u64, BlockRequest)>,
    questions: Vec<(u64, Question)>,
    clearing: bool,
    closed: bool,
    seconds: u64,
    /// The digests that the host has asked for: bit 0 of heads, bit 1 of data.
    digests: u8,
    /// The last message of an authentication that the host has fetched.
    heard: Vec<u8>,
}

impl Owner {
    fn act(&mut self) {
        for action in self.out.drain(..) {
            assert!(!self.closed, "{action:?} after the close");
            match action {
                Action::Send { head, body } => {
                    assert!(!head.as_slice().is_empty());
                    if self.hosts.key.is_some() && body.len() == FETCHED {
                        self.heard = body.to_vec();
                    }
                }
                Action::Request { tag, request } => {
                    let end = request.at + u64::from(request.len);
                    assert!(end <= SIZE && end % 512 == 0 && request.at % 512 == 0);
                    assert_eq!(request.body.len(), request.kind.body_len(request.len));
                    self.asked.push((tag, request));
                }
                Action::Clear { .. } => self.clearing = true,
                Action::Close { .. } => self.closed = true,
                Action::Ask { tag, question, .. } => self.questions.push((tag, question)),
                other => panic!("{other:?} is not for NVMe"),
            }
        }
        let limits = Limits::TEST_MIN;
        let (solicited, reading) = self.session.bytes();
        assert!(solicited <= limits.nvme_solicited.into());
        assert!(reading <= limits.nvme_solicited.into());
        assert!(self.session.requests() <= limits.nvme_requests);
        assert!(self.session.in_flight() <= limits.nvme_entries as usize);
        assert!(self.pool.used() <= 4 << 20, "{} bytes", self.pool.used());
    }

    fn frame(&mut self, head: &[u8], body: &[u8]) {
        let body = self.pool.copy(body);
        self.session.frame(head, body, &self.hosts, &self.pool, &mut self.out);
        self.act();
    }

    fn done(&mut self, pick: u8) {
        if self.asked.is_empty() {
            return;
        }
        let (tag, request) = self.asked.swap_remove(pick as usize % self.asked.len());
        let result = match (pick % 16, request.kind) {
            (15, _) => Err(BlockError::Lost),
            (14, BlockKind::Read) => Ok(self.pool.zeroed(3)),
            (13, _) => Err(BlockError::TimedOut),
            (12, BlockKind::CompareWrite) => Err(BlockError::Miscompare(7)),
            (11, _) => Err(BlockError::Elsewhere),
            (_, BlockKind::Read) => Ok(self.pool.zeroed(request.len as usize)),
            _ => Ok(seam::Buf::EMPTY),
        };
        drop(request);
        self.session.done(tag, result, &self.pool, &mut self.out);
        self.act();
    }

    /// The host sends a command that is nearly right, which random bytes seldom are: one about
    /// reservations, one of two that are fused, or another one with data.
    fn command(&mut self, what: u8) {
        let (kind, detail) = (what % 8, what / 8);
        let (opcode, flags, len) = match kind {
            0 => (0x0d, 0x40, 16),
            1 => (0x11, 0x40, 16),
            2 => (0x15, 0x40, 8),
            3 => (0x0e, 0x40, 128),
            4 => (0x05, 0x41, 512),
            5 => (0x01, 0x42, 512),
            6 => (0x05, 0x40, 512),
            _ => (0x01, 0x40, 512),
        };
        let carried = kind != 3 && detail & 1 == 0;
        let data = if carried { vec![1; len] } else { Vec::new() };
        let mut head = [0; 76];
        (head[8], head[9], head[10], head[12]) = (opcode, flags, what, 1);
        head[40..44].copy_from_slice(&(len as u32).to_le_bytes());
        head[47] = if carried { 0x01 } else { 0x5a };
        match kind {
            0..3 => (head[48], head[49]) = (detail / 2, 1 + detail % 8),
            3 => (head[48], head[52]) = (31, 1),
            _ => {}
        }
        self.capsule(head, &data);
    }

    /// The host sends a command of an admin queue that is nearly right: one about events, paths or
    /// reservations.
    fn admin_command(&mut self, what: u8) {
        let (kind, detail) = (what % 8, what / 8);
        let len = 512 << (detail & 3);
        let log = |page: u32| page | (len / 4 - 1) << 16;
        let (opcode, word10, word11, len) = match kind {
            0 => (0x0c, 0, 0, 0),
            1 => (0x02, log(0x0c), 0, len),
            2 => (0x02, log(0x04), 0, len),
            3 => (0x09, 0x0b, 0xffff >> detail, 0),
            4 => (0x06, u32::from(detail), 0, 4096),
            5 => (0x09 + (detail & 1), 0x82, u32::from(detail), 0),
            6 => (0x02, log(0x80), 0, len),
            _ => (0x08, 0, 0, 0),
        };
        let mut head = [0; 76];
        (head[8], head[9], head[10], head[12]) = (opcode, 0x40, what, 1);
        if detail == 7 {
            head[12..16].fill(0xff);
        }
        head[40..44].copy_from_slice(&len.to_le_bytes());
        head[47] = if len > 0 { 0x5a } else { 0 };
        head[48..52].copy_from_slice(&word10.to_le_bytes());
        head[52..56].copy_from_slice(&word11.to_le_bytes());
        self.capsule(head, &[]);
    }

    /// The host sends a capsule.
    fn capsule(&mut self, mut head: [u8; 76], data: &[u8]) {
        let with = self.digests & if data.is_empty() { 1 } else { 3 };
        (head[0], head[1], head[2]) = (4, with, 72);
        head[3] = if data.is_empty() { 0 } else { 72 };
        let head = &head[..if with & 1 == 0 { 72 } else { 76 }];
        self.frame(head, data);
        if with & 2 != 0 && !self.closed {
            self.frame(&base::crc::crc32c(data).to_le_bytes(), b"");
        }
    }

    /// The host sends or fetches a message of an authentication, which may be the right one.
    fn authenticate(&mut self, what: u8) {
        let (kind, detail) = (what % 8, what / 8);
        let message = |kind: u8, id: u8, rest: &[u8]| [&[kind, id, 0, 0, 7, 0][..], rest].concat();
        let data = match kind {
            0 | 1 => {
                let mut offer = [0; 66];
                (offer[1], offer[2], offer[4], offer[5]) = (1, 1, 1, 1);
                (offer[6], offer[36]) = (1 + detail % 3, kind);
                message(0, 0, &offer)
            }
            4 | 5 if self.heard.len() >= 48 => {
                let asks = kind - 4;
                let proof = self.proof();
                let head = [32, 0, asks, 0, 0, 0, asks, 0, 0, 0];
                let rest = [&head[..], &proof, &[detail; 32]].concat();
                message(1, 2, &rest)
            }
            6 => message(1, 4, &[0; 10]),
            7 if detail == 0 => message(0, 0xf0, &[1, 1]),
            7 => {
                let head = [32, 0, 0, 0, 0, 1, 0, 0, 0, 0];
                message(1, 2, &[&head[..], &[detail; 320]].concat())
            }
            _ => Vec::new(),
        };
        let fetches = data.is_empty();
        let len = if fetches && kind != 3 { FETCHED } else { data.len() } as u32;
        let mut head = [0; 76];
        (head[8], head[9], head[10], head[12]) = (0x7f, 0x40, what, 5 + u8::from(fetches));
        head[40..44].copy_from_slice(&len.to_le_bytes());
        head[47] = if fetches { 0x5a } else { 0x01 };
        head[49..52].copy_from_slice(&[1, 1, 0xe9]);
        head[52..56].copy_from_slice(&len.to_le_bytes());
        self.capsule(head, &data);
    }

    /// The right reply to the challenge that was fetched, if it is one for SHA-256 without a group.
    fn proof(&self) -> Vec<u8> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&[0; 32]).expect("any length");
        let names = (b"h", ident::nqn(CLUSTER));
        let challenge = (&self.heard[16..48], &self.heard[12..16]);
        for part in [challenge.0, challenge.1, &[7, 0, 0], b"HostHost", names.0, &[0]] {
            mac.update(part);
        }
        mac.update(names.1.as_bytes());
        mac.finalize().into_bytes().to_vec()
    }

    /// A question is answered.
    fn answer(&mut self, what: u8) {
        let Some((tag, question)) = self.questions.pop() else { return };
        let who = Identity::Nvme { host: [what; 16] };
        let one = Registrant { key: 1, who, holds: true, since: 0 };
        let reserved = Some(Kind::WriteExclusive);
        let table = Table { generation: 1, reserved, registrants: vec![one], since: 0 };
        let asked = match (what / 16, question) {
            (0, _) => Asked::Nobody,
            (1, Question::Reserve(_)) => Asked::Reserved(Err(Refusal::WrongKind)),
            (_, Question::Reserve(_)) => Asked::Reserved(Ok(())),
            (_, Question::Report) => Asked::Table(&table),
            (_, Question::Activate) => panic!("no command of NVMe asks for that"),
        };
        self.session.asked(tag, asked, &self.pool, &mut self.out);
        self.act();
    }

    /// Something that is not a frame happens.
    fn happen(&mut self, what: u8) {
        let (session, pool, out) = (&mut self.session, &self.pool, &mut self.out);
        match what % 16 {
            0..9 => return self.done(what),
            9 => {
                self.hosts.namespaces = u32::from(what) * 30;
                session.review(&self.hosts, pool, out);
            }
            10 => {
                self.hosts.version += u64::from(what > 32);
                self.hosts.moved ^= what < 48;
                session.review(&self.hosts, pool, out);
            }
            11 if self.clearing => {
                self.clearing = false;
                session.others_cleared();
            }
            12 => session.fenced(VolumeId(1), what > 32, pool, out),
            13 => {
                self.seconds += u64::from(what / 16);
                let now = Time::ZERO + Duration::from_secs(self.seconds);
                session.tick(now, pool, out);
            }
            14 => return self.answer(what),
            15 if what > 32 => session.notify(VolumeId(1), Notice::ReservationsReleased, pool, out),
            15 => {
                let left = Access { read: what > 16, write: false };
                session.reserved(VolumeId(1), left, pool, out);
            }
            _ => {}
        }
        self.act();
    }
}

/// Bytes that the host asks for when it fetches a message of an authentication.
const FETCHED: usize = 512;

/// Sets up a connection, and makes it a queue.
fn enter(owner: &mut Owner, qid: u8, discovery: bool, digests: u8) {
    let mut head = [0; 128];
    (head[2], head[4], head[11]) = (128, 128, digests);
    owner.frame(&head, b"");
    let mut data = [0; 1024];
    data[16..18].copy_from_slice(if qid > 0 { &[9, 0] } else { &[0xff, 0xff] });
    let name = match discovery {
        true => target::nvme::proto::DISCOVERY_NQN.to_string(),
        false => ident::nqn(CLUSTER),
    };
    data[256..256 + name.len()].copy_from_slice(name.as_bytes());
    data[512] = b'h';
    let mut head = [0; 76];
    (head[0], head[2], head[3]) = (4, 72, 72);
    (head[8], head[9], head[12]) = (0x7f, 0x40, 1);
    (head[41], head[47], head[50], head[52]) = (4, 1, qid, 7);
    head[1] = digests & 1;
    let len = if digests & 1 == 0 { 72 } else { 76 };
    if digests & 2 != 0 {
        head[1] |= 2;
        owner.frame(&head[..len], &data);
        owner.frame(&base::crc::crc32c(&data).to_le_bytes(), b"");
    } else {
        owner.frame(&head[..len], &data);
    }
    let has_key = owner.hosts.key.is_some() && !discovery;
    let is_queue = owner.session.controller().is_some() || owner.session.io_queue().is_some();
    assert_eq!(is_queue, !has_key);
    if qid == 0 && !has_key {
        // CC.EN
        let mut head = [0; 76];
        (head[0], head[1], head[2]) = (4, digests & 1, 72);
        (head[8], head[9], head[47], head[52]) = (0x7f, 0x40, 0x5a, 0x14);
        (head[56], head[58]) = (1, 0x46);
        owner.frame(&head[..len], b"");
        assert!(owner.session.controller().is_some_and(|controller| controller.ready));
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((&mode, script)) = input.split_first() else { return };
    let limits = Limits::TEST_MIN;
    let pool = BufPool::new(1 << 20);
    let digests = mode >> 4 & 3;
    let controller = Controller {
        cntlid: 9,
        host: "h".into(),
        host_id: [0; 16],
        discovery: false,
        ready: true,
        delays: mode & 64 != 0,
    };
    let key = (mode & 8 != 0).then(|| Key::parse(KEY).expect("a key"));
    let mut owner = Owner {
        session: Session::new(&limits, Opening { cntlid: 8, seed: Seed([9; 32]) }),
        framer: NvmeFramer::new(&limits),
        pool: pool.clone(),
        hosts: Hosts { controller, namespaces: 20, version: 1, moved: false, key },
        out: Vec::new(),
        asked: Vec::new(),
        questions: Vec::new(),
        clearing: false,
        closed: false,
        seconds: 0,
        digests,
        heard: Vec::new(),
    };
    match mode & 7 {
        0 => {}
        1 => enter(&mut owner, 0, true, digests),
        2 | 3 => enter(&mut owner, 0, false, digests),
        _ => enter(&mut owner, 1, false, digests),
    }
    let mut script = Script(script);
    while let Some(step) = script.next(&mut owner.framer, LONGEST, |control| control < 128) {
        match step {
            Step::Event(control) if control & 64 == 0 => owner.happen(control),
            Step::Event(control) if mode & 8 != 0 && control & 1 == 0 => {
                owner.authenticate(control >> 1 & 31);
            }
            Step::Event(control) if owner.session.controller().is_some() => {
                owner.admin_command(control & 63);
            }
            Step::Event(control) => owner.command(control & 63),
            Step::Frame(head, body) => owner.frame(head, body),
        }
    }
    drop(owner);
    assert_eq!(pool.used(), 0);
});
