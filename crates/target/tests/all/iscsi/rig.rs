//! An initiator on one side and an owner on the other: feeds bytes through the framer into a
//! session, executes its actions on a volume in memory, and records what it sends and asks for.

use super::initiator::*;
use crate::shared::{Input, SIZE, check, disk, execute};
use base::{ClusterId, Limits, VolumeId};
use seam::{BlockError, BlockRequest, BufPool, Framer};
use std::cell::Cell;
use target::iscsi::{
    Closed, Credentials, IscsiFramer, Nexus, Opening, Portal, Session, Stranger, Target, Targets,
};
use target::scsi::{Format, Path, Unit};
use target::{Action, Cleared, Question};

pub(crate) const NAME: &str = "iqn.2026-11.io.github.gabion:1.7";
pub(crate) const HOST: &str = "iqn.1993-08.org.debian:01:host";
/// Our challenge is bytes 1 and following.
pub(crate) const SECRET: [u8; 33] = [9; 33];

/// The gateway's knowledge.
#[derive(Clone)]
pub(crate) struct Hosts {
    pub unit: Unit,
    pub others: Vec<String>,
    pub portals: Vec<Portal>,
    pub chap: Option<Credentials<'static>>,
    /// Hosts have secrets, and this one has none.
    pub strange: bool,
    pub sessions: Vec<Nexus>,
    pub closed: Option<Closed>,
    /// How often a target was named or looked for.
    pub visits: Cell<usize>,
}

impl Hosts {
    pub(crate) fn new() -> Hosts {
        let unit = Unit {
            cluster: ClusterId(1),
            volume: VolumeId(7),
            size: SIZE as u64,
            read_only: false,
            format: Format::Native512,
            transfer: 4 << 20,
            target: NAME.into(),
            port: 3,
            path: Path::Optimized,
            others: Vec::new(),
            asks: true,
        };
        Hosts {
            unit,
            others: Vec::new(),
            portals: vec![portal("10.0.0.1:3260", 3), portal("[::1]:3260", 4)],
            chap: None,
            strange: false,
            sessions: Vec::new(),
            closed: None,
            visits: Cell::new(0),
        }
    }
}

pub(crate) fn portal(address: &str, group: u16) -> Portal {
    Portal { address: address.parse().unwrap(), group }
}

impl Targets for Hosts {
    fn group(&self) -> u16 {
        self.unit.port
    }

    fn find(&self, _: &str, name: &str) -> Option<Target> {
        self.visits.set(self.visits.get() + 1);
        (name == NAME).then(|| Target { unit: self.unit.clone(), alias: "vol".into() })
    }

    fn each(&self, initiator: &str, visit: &mut dyn FnMut(&str)) {
        if initiator != HOST {
            return;
        }
        visit(NAME);
        self.others.iter().for_each(|name| visit(name));
        self.visits.set(self.visits.get() + 1 + self.others.len());
    }

    fn portals(&self, _: &str, visit: &mut dyn FnMut(Portal)) {
        self.portals.iter().copied().for_each(visit);
    }

    fn admits(&self, initiator: &str, _: &str) -> bool {
        initiator == HOST
    }

    fn credentials(&self, _: &str, _: Option<&str>) -> Result<Option<Credentials<'_>>, Stranger> {
        if self.strange { Err(Stranger) } else { Ok(self.chap) }
    }

    fn sessions(&self, visit: &mut dyn FnMut(&Nexus)) {
        self.sessions.iter().for_each(visit);
    }

    fn closed(&self, _: &str, _: Option<&str>) -> Option<Closed> {
        self.closed
    }
}

/// Actions of the session other than sends and requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Told {
    Withdraw(u64),
    Ask(u64, Question),
    Reinstate,
    Clear(Cleared),
    Refresh,
    Close(Option<&'static str>),
}

pub(crate) struct Rig {
    pub session: Session,
    pub input: Input<IscsiFramer>,
    pub pool: BufPool,
    pub hosts: Hosts,
    pub disk: Vec<u8>,
    /// Requests that are not done.
    pub asked: Vec<(u64, BlockRequest)>,
    pub told: Vec<Told>,
    /// Requests are done at once.
    pub serves: bool,
    /// The negotiated digests.
    pub digests: (bool, bool),
    pub cmd_sn: u32,
    sent: Vec<u8>,
    out: Vec<Action>,
}

/// The usual offers of an initiator.
pub(crate) const OFFERS: &[(&str, &str)] = &[
    ("HeaderDigest", "None"),
    ("DataDigest", "None"),
    ("InitialR2T", "No"),
    ("ImmediateData", "Yes"),
    ("MaxRecvDataSegmentLength", "65536"),
    ("MaxBurstLength", "16776192"),
    ("FirstBurstLength", "262144"),
];

impl Rig {
    /// Creates a connection before its login.
    pub(crate) fn new(limits: &Limits) -> Rig {
        Rig {
            session: Session::new(limits, Opening { tsih: 0x77, secret: SECRET }),
            input: Input::new(IscsiFramer::new(limits)),
            pool: BufPool::new(1 << 20),
            hosts: Hosts::new(),
            disk: disk(),
            asked: Vec::new(),
            told: Vec::new(),
            serves: true,
            digests: (false, false),
            cmd_sn: 100,
            sent: Vec::new(),
            out: Vec::new(),
        }
    }

    /// Creates a connection that is logged in, with these offers besides the usual ones. The unit
    /// attention of a new nexus was fetched.
    pub(crate) fn full(limits: &Limits, offers: &[(&str, &str)]) -> Rig {
        let mut rig = Rig::new(limits);
        rig.log_in(offers);
        rig.ask(Request::command(1, 0x80, 0, &[0; 16]));
        let answers = rig.answers();
        assert_eq!(answers[0].status(), (2, Some((6, 0x29, 0))), "a new nexus");
        rig
    }

    pub(crate) fn log_in(&mut self, offers: &[(&str, &str)]) {
        let names = [("InitiatorName", HOST), ("TargetName", NAME)];
        let kept = OFFERS.iter().filter(|o| !offers.iter().any(|other| other.0 == o.0));
        let all: Vec<_> = names.iter().chain(kept).chain(offers).copied().collect();
        self.send(Request::login(0x87, &all).u32(24, self.cmd_sn));
        let answers = self.answers();
        assert_eq!((answers.len(), answers[0].login_status()), (1, 0), "{:?}", self.told);
        assert_eq!(answers[0].bhs[1], 0x87);
        let agreed = |key| answers[0].value(key).as_deref() == Some("CRC32C");
        self.digests = (agreed("HeaderDigest"), agreed("DataDigest"));
        self.told.clear();
    }

    /// Sends a request that has a number of its own.
    pub(crate) fn ask(&mut self, request: Request) {
        let request = request.u32(24, self.cmd_sn);
        if request.bhs[0] & 0x40 == 0 {
            self.cmd_sn = self.cmd_sn.wrapping_add(1);
        }
        self.send(request);
    }

    /// Sends a PDU as it is.
    pub(crate) fn send(&mut self, request: Request) {
        self.feed(&request.bytes(self.digests));
    }

    /// Sends a command with data, and the rest of the data as the target asks for it.
    pub(crate) fn write(&mut self, itt: u32, cdb: &[u8], data: &[u8], immediate: usize) {
        let now = data.len().min(immediate);
        let command = Request::command(itt, 0xa0, data.len() as u32, cdb).data(&data[..now]);
        self.ask(command);
    }

    /// Answers an R2T in parts of `segment` bytes.
    pub(crate) fn give(&mut self, r2t: &Pdu, data: &[u8], segment: usize) {
        assert_eq!((r2t.opcode(), r2t.bhs[1]), (0x31, 0x80), "{r2t:?}");
        let (offset, len) = (r2t.u32(40) as usize, r2t.u32(44) as usize);
        let mut at = offset;
        for data_sn in 0.. {
            let end = (at + segment).min(offset + len);
            let last = end == offset + len;
            let part = &data[at..end];
            self.send(Request::data_out(r2t.itt(), r2t.u32(20), data_sn, at as u32, last, part));
            at = end;
            if last {
                break;
            }
        }
    }

    /// Sends bytes from the initiator.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.input.push(bytes);
        while !self.session.is_closed()
            && let Some((head, body)) = self.input.frame()
        {
            self.raw(&head, &body);
        }
    }

    /// Passes a frame that no framer has checked.
    pub(crate) fn raw(&mut self, head: &[u8], body: &[u8]) {
        let body = self.pool.copy(body);
        self.session.frame(head, body, &self.hosts, &self.pool, &mut self.out);
        self.act();
    }

    /// Returns the PDUs that the initiator received since the last call.
    pub(crate) fn answers(&mut self) -> Vec<Pdu> {
        let mut stream = std::mem::take(&mut self.sent);
        let digests = self.digests;
        std::iter::from_fn(|| Pdu::take(&mut stream, digests)).collect()
    }

    /// Returns the only one.
    pub(crate) fn answer(&mut self) -> Pdu {
        let mut answers = self.answers();
        assert_eq!(answers.len(), 1, "{answers:?}");
        answers.remove(0)
    }

    pub(crate) fn told(&mut self) -> Vec<Told> {
        std::mem::take(&mut self.told)
    }

    /// Returns true if the session has closed the connection because of the initiator.
    pub(crate) fn is_out(&self) -> bool {
        matches!(self.told.last(), Some(Told::Close(Some(_))))
    }

    /// Completes the request at `index`, as the volume in memory does.
    pub(crate) fn serve(&mut self, index: usize) {
        let (tag, request) = self.asked.remove(index);
        let result = execute(&mut self.disk, &request, &self.pool);
        drop(request);
        self.session.done(tag, result, &self.pool, &mut self.out);
        self.act();
    }

    /// Completes a request with an error.
    pub(crate) fn fail(&mut self, index: usize, error: BlockError) {
        let (tag, _) = self.asked.remove(index);
        self.session.done(tag, Err(error), &self.pool, &mut self.out);
        self.act();
    }

    /// Calls the session, and carries out its actions.
    pub(crate) fn call(
        &mut self,
        call: impl FnOnce(&mut Session, &Hosts, &BufPool, &mut Vec<Action>),
    ) {
        call(&mut self.session, &self.hosts, &self.pool, &mut self.out);
        self.act();
    }

    /// Withdraws the requests of a command, as the action asks.
    pub(crate) fn withdraw(&mut self, tag: u64) {
        self.asked.retain(|(of, _)| *of as u32 != tag as u32);
        self.call(|session, _, pool, out| session.withdrawn(tag, pool, out));
    }

    fn act(&mut self) {
        let mut refresh = false;
        for action in self.out.drain(..) {
            let closed = matches!(self.told.last(), Some(Told::Close(_)));
            assert!(!closed, "{action:?} after the connection was closed");
            match action {
                Action::Send { head, body } => {
                    assert!(!head.as_slice().is_empty());
                    self.sent.extend_from_slice(head.as_slice());
                    self.sent.extend_from_slice(&body);
                }
                Action::Request { tag, request } => {
                    check(&request);
                    self.asked.push((tag, request));
                }
                Action::Reframe { mode } => self.input.framer.set_mode(mode),
                Action::Refresh => refresh = true,
                Action::Withdraw { tag } => self.told.push(Told::Withdraw(tag)),
                Action::Ask { tag, volume, question } => {
                    assert_eq!(volume, VolumeId(7));
                    self.told.push(Told::Ask(tag, question));
                }
                Action::Reinstate => self.told.push(Told::Reinstate),
                Action::Clear { what } => self.told.push(Told::Clear(what)),
                Action::Close { why } => self.told.push(Told::Close(why)),
                Action::Pause | Action::Resume => panic!("reading never stops"),
            }
        }
        if refresh {
            if self.serves {
                self.call(|session, hosts, pool, out| session.refreshed(hosts, pool, out));
            } else {
                self.told.push(Told::Refresh);
            }
        }
        while self.serves && !self.asked.is_empty() {
            self.serve(0);
        }
    }
}
