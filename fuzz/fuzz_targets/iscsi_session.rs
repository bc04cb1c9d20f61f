//! Arbitrary bytes as the stream of an iSCSI initiator, in any pieces, with any order of
//! completions.
//!
//! Checked: no panic; the framer keeps its contract and does not depend on the pieces; nothing
//! happens after a close; the limits hold; all memory is freed.
//!
//! Input: one byte for the mode, then a script of control bytes. Each is an event, or a command
//! that is nearly right, or it is followed by bytes of the stream. The content of the answers is
//! not checked here (`crates/target/tests/all/iscsi` does that).
#![no_main]

mod cut;

use base::time::Duration;
use base::{ClusterId, Limits, Time, VolumeId};
use cut::{Script, Step};
use libfuzzer_sys::fuzz_target;
use seam::{BlockError, BlockKind, BlockRequest, BufPool, Framer};
use target::iscsi::{
    Closed, Credentials, IscsiFramer, Nexus, Opening, Portal, Session, Stranger, Target, Targets,
};
use target::reserve::Table;
use target::scsi::{Format, Path, PortGroup, Unit};
use target::{Action, Asked, Cleared, Question};

/// Longest body of a frame.
const LONGEST: usize = 16 << 10;

const SIZE: u64 = 16 << 20;

struct Hosts {
    chap: bool,
    format: Format,
    /// The state of this host's path.
    path: Path,
    /// How many other gateways serve the volume.
    others: u16,
    /// Another gateway serves this host, and its address is known.
    elsewhere: bool,
}

impl Hosts {
    fn unit(&self) -> Unit {
        let path = if self.path == Path::Optimized { Path::Standby } else { Path::Optimized };
        Unit {
            cluster: ClusterId(1),
            volume: VolumeId(7),
            size: SIZE,
            read_only: false,
            format: self.format,
            transfer: Limits::TEST_MIN.scsi_transfer,
            target: "t".into(),
            port: 1,
            path: self.path,
            others: (2..2 + self.others).map(|port| PortGroup { port, path }).collect(),
            asks: true,
        }
    }
}

impl Targets for Hosts {
    fn find(&self, _: &str, name: &str) -> Option<Target> {
        (name == "t").then(|| Target { unit: self.unit(), alias: "vol".into() })
    }

    fn each(&self, _: &str, visit: &mut dyn FnMut(&str)) {
        (0..200).for_each(|_| visit("t"));
    }

    fn portals(&self, _: &str, visit: &mut dyn FnMut(Portal)) {
        visit(Portal { address: ([10, 0, 0, 1], 3260).into(), group: 1 });
    }

    fn admits(&self, initiator: &str, _: &str) -> bool {
        initiator != "x"
    }

    fn credentials(&self, _: &str, _: Option<&str>) -> Result<Option<Credentials<'_>>, Stranger> {
        let own = Some(("t", &b"othersecret1"[..]));
        Ok(self.chap.then_some(Credentials { user: "u", secret: b"secretsecret", own }))
    }

    fn sessions(&self, visit: &mut dyn FnMut(&Nexus)) {
        let (initiator, volume) = ("i".into(), Some(VolumeId(7)));
        visit(&Nexus { initiator, isid: [0; 6], tsih: 5, volume, cid: 0 });
    }

    fn closed(&self, _: &str, _: Option<&str>) -> Option<Closed> {
        let address = ([10, 0, 0, 2], 3260).into();
        self.elsewhere.then_some(Closed::Elsewhere(address))
    }
}

struct Owner {
    session: Session,
    framer: IscsiFramer,
    pool: BufPool,
    hosts: Hosts,
    out: Vec<Action>,
    asked: Vec<(u64, BlockRequest)>,
    questions: Vec<(u64, Question)>,
    withdrawing: Vec<u64>,
    clearing: bool,
    refreshing: bool,
    closed: bool,
    seconds: u64,
    /// The number of the next command, as the target has announced it.
    number: u32,
}

impl Owner {
    fn act(&mut self) {
        for action in self.out.drain(..) {
            assert!(!self.closed, "{action:?} after the close");
            match action {
                Action::Send { head, .. } => {
                    assert!(!head.as_slice().is_empty());
                    if let Some(number) = head.as_slice().get(28..32) {
                        self.number = u32::from_be_bytes(number.try_into().expect("four bytes"));
                    }
                }
                Action::Request { tag, request } => {
                    let end = request.at + u64::from(request.len);
                    assert!(end <= SIZE && end % 512 == 0 && request.at % 512 == 0);
                    assert_eq!(request.body.len(), request.kind.body_len(request.len));
                    self.asked.push((tag, request));
                }
                Action::Withdraw { tag } => {
                    self.asked.retain(|(of, _)| *of as u32 != tag as u32);
                    self.questions.retain(|(of, _)| *of as u32 != tag as u32);
                    self.withdrawing.push(tag);
                }
                Action::Ask { tag, question, .. } => self.questions.push((tag, question)),
                Action::Reframe { mode } => self.framer.set_mode(mode),
                Action::Clear { .. } => self.clearing = true,
                Action::Refresh => self.refreshing = true,
                Action::Reinstate => {}
                Action::Close { .. } => self.closed = true,
                Action::Pause | Action::Resume => panic!("reading never stops"),
            }
        }
        let limits = Limits::TEST_MIN;
        let (solicited, reading) = self.session.bytes();
        assert!(solicited <= limits.iscsi_solicited.into());
        assert!(reading <= u64::from(limits.scsi_transfer) * 2);
        assert!(self.session.in_flight() <= limits.iscsi_window as usize + 8);
        assert!(self.session.requests() <= limits.iscsi_requests + limits.iscsi_window + 8);
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
            (13, _) => Err(BlockError::NoSuchVolume),
            (11, _) => Err(BlockError::Elsewhere),
            (_, BlockKind::Read) => Ok(self.pool.zeroed(request.len as usize)),
            (12, BlockKind::CompareWrite) => Err(BlockError::Miscompare(request.len - 1)),
            (_, BlockKind::Extents) => {
                Ok(self.pool.copy(&vec![pick; request.len as usize / 4096 / 8 + 2]))
            }
            _ => Ok(seam::Buf::EMPTY),
        };
        drop(request);
        self.session.done(tag, result, &self.pool, &mut self.out);
        self.act();
    }

    /// The MDM answers a question, or nobody does.
    fn answer(&mut self, what: u8) {
        let Some((tag, question)) = self.questions.pop() else { return };
        let table = Table::default();
        let asked = match question {
            _ if what / 16 == 0 => Asked::Nobody,
            Question::Reserve(_) => Asked::Reserved(Ok(())),
            Question::Report => Asked::Table(&table),
            Question::Activate => Asked::Activated,
        };
        self.session.asked(tag, asked, &self.pool, &mut self.out);
        self.act();
    }

    /// The path of the host gets another state, or there are other gateways.
    fn moves(&mut self, what: u8) {
        if what & 0x10 != 0 {
            self.hosts.others = (self.hosts.others + 1) % 100;
        }
        self.hosts.path = if what & 0x20 == 0 { Path::Optimized } else { Path::Standby };
        self.session.changed(self.hosts.unit());
    }

    /// The host sends a command that is nearly right, which random bytes seldom are.
    fn command(&mut self, what: u8) {
        let (kind, detail) = (what % 8, what / 8);
        let block = self.hosts.format.block();
        let (cdb, data): (&[u8], Vec<u8>) = match kind {
            0 => (&[0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, 8], vec![0, 0, 0, 0, 0, 0, 0, 1 + detail / 4]),
            1 => (&[0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 2, 0], Vec::new()),
            2 => (&[0x28, 0, 0, 0, 0, detail, 0, 0, 8], Vec::new()),
            3 => (&[0x2a, 0, 0, 0, 0, detail, 0, 0, 1], vec![detail; block as usize]),
            4 => (&[0x5f, 0x06, 0, 0, 0, 0, 0, 0, 24], vec![detail; 24]),
            5 => (&[0x5e, 0x00, 0, 0, 0, 0, 0, 1, 0], Vec::new()),
            6 => (&[0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], vec![0; 2 * block as usize]),
            _ => (&[0], Vec::new()),
        };
        let mut head = [0; 48];
        (head[0], head[1]) = (0x01, if data.is_empty() { 0xc1 } else { 0xa1 });
        let carried = if detail & 2 == 0 { data } else { Vec::new() };
        let announced = match kind {
            2 => 8 * block,
            3 => block,
            0 | 4 | 6 if carried.is_empty() => 2 * block,
            1 | 5 => 0x100,
            _ => carried.len() as u32,
        };
        head[5..8].copy_from_slice(&(carried.len() as u32).to_be_bytes()[1..]);
        (head[16], head[19]) = (kind, detail);
        head[20..24].copy_from_slice(&announced.to_be_bytes());
        head[24..28].copy_from_slice(&self.number.to_be_bytes());
        head[32..32 + cdb.len()].copy_from_slice(cdb);
        self.frame(&head, &carried);
    }

    /// Something that is not a frame happens.
    fn happen(&mut self, what: u8) {
        let (session, pool, out) = (&mut self.session, &self.pool, &mut self.out);
        match what % 16 {
            0..7 => return self.done(what),
            7 if self.refreshing => {
                self.refreshing = false;
                session.refreshed(&self.hosts, pool, out);
            }
            8 | 9 => {
                if let Some(tag) = self.withdrawing.pop() {
                    session.withdrawn(tag, pool, out);
                }
            }
            10 => return self.answer(what),
            11 if self.clearing => {
                self.clearing = false;
                session.others_cleared(pool, out);
            }
            12 => session.cleared(Cleared::Unit, pool, out),
            13 => {
                self.seconds += u64::from(what / 16);
                let now = Time::ZERO + Duration::from_secs(self.seconds);
                session.tick(now, pool, out);
            }
            14 if what == 0x3e => session.shutdown(pool, out),
            14 if what == 0x4e => session.volume_gone(pool, out),
            14 => return self.moves(what),
            15 => self.asked.iter().take(1).for_each(|(tag, _)| session.waits(*tag)),
            _ => {}
        }
        self.act();
    }
}

/// Logs in.
fn enter(owner: &mut Owner, discovery: bool) {
    let text: &[u8] = if discovery {
        b"InitiatorName=i\0SessionType=Discovery\0"
    } else {
        b"InitiatorName=i\0TargetName=t\0InitialR2T=No\0\0"
    };
    let mut head = [0; 48];
    (head[0], head[1], head[7], head[13]) = (0x43, 0x87, text.len() as u8, 1);
    let trailer = text.len().wrapping_neg() & 3;
    owner.frame(&head, text);
    if trailer > 0 {
        owner.frame(&[0; 3][..trailer], b"");
    }
    owner.happen(7);
    assert!(owner.session.nexus().is_some());
}

fuzz_target!(|input: &[u8]| {
    let Some((&mode, script)) = input.split_first() else { return };
    let limits = Limits::TEST_MIN;
    let pool = BufPool::new(1 << 20);
    let format = if mode & 16 == 0 { Format::Native512 } else { Format::Native4k };
    let mut owner = Owner {
        session: Session::new(&limits, Opening { tsih: 1, secret: [7; 33] }),
        framer: IscsiFramer::new(&limits),
        pool: pool.clone(),
        hosts: Hosts {
            chap: mode & 7 == 1,
            format,
            path: if mode & 32 == 0 { Path::Optimized } else { Path::Standby },
            others: u16::from(mode >> 6),
            elsewhere: mode & 0x87 == 0x80,
        },
        out: Vec::new(),
        asked: Vec::new(),
        questions: Vec::new(),
        withdrawing: Vec::new(),
        clearing: false,
        refreshing: false,
        closed: false,
        seconds: 0,
        number: 0,
    };
    if mode & 7 > 1 {
        enter(&mut owner, mode & 7 == 2);
    }
    let mut script = Script(script);
    while let Some(step) = script.next(&mut owner.framer, LONGEST, |control| control < 128) {
        match step {
            Step::Event(control) if control & 64 == 0 => owner.happen(control),
            Step::Event(control) if owner.session.nexus().is_some() => {
                owner.command(control & 63);
            }
            Step::Event(_) => {}
            Step::Frame(head, body) => owner.frame(head, body),
        }
    }
    drop(owner);
    assert_eq!(pool.used(), 0);
});
