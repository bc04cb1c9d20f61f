//! A host on one side and an owner on the other: feeds bytes through the framer into a session,
//! executes its actions on a volume in memory, and records what it sends and asks for.

use super::host::*;
use crate::shared::{Input, SIZE, check, disk, execute};
use base::{ClusterId, Limits, VolumeId};
use seam::{BlockError, BlockKind, BlockRequest, BufPool};
use std::collections::BTreeMap;
use target::nvme::{
    Controller, Key, Keys, Namespace, NvmeFramer, Opening, Path, Portal, Seed, Session, Subsystem,
};
use target::reserve::Access;
use target::{Action, Asked, Cleared, Question, ident};

pub(crate) const CLUSTER: ClusterId = ClusterId(0x0123_4567_89ab_cdef);
pub(crate) const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:host";
pub(crate) const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// All bytes of the id of [`HOST`].
pub(crate) const HOST_ID: u8 = 0x42;
pub(crate) const CNTLID: u16 = 0x205;

/// The gateway's knowledge.
#[derive(Clone)]
pub(crate) struct Hosts {
    pub namespaces: BTreeMap<u32, Namespace>,
    pub controller: Option<Controller>,
    pub queues: Vec<(u16, u16)>,
    pub busy: bool,
    pub version: u64,
    pub portals: Vec<Portal>,
    /// The key of [`HOST`], and ours.
    pub keys: Option<(Key, Option<Key>)>,
}

impl Hosts {
    fn new() -> Hosts {
        let mut hosts = Hosts {
            namespaces: BTreeMap::new(),
            controller: None,
            queues: Vec::new(),
            busy: false,
            version: 5,
            portals: vec![portal("10.0.0.1:4420", 1), portal("[::1]:8009", 127)],
            keys: None,
        };
        hosts.add(7, SIZE as u64);
        hosts
    }

    pub(crate) fn add(&mut self, id: u32, size: u64) {
        let volume = VolumeId(id);
        let (read_only, access, path) = (false, Access::FULL, Path::Optimized);
        let namespace = Namespace { volume, size, read_only, access, path };
        self.namespaces.insert(id, namespace);
    }

    /// Namespace 7.
    pub(crate) fn seven(&mut self) -> &mut Namespace {
        self.namespaces.get_mut(&7).unwrap()
    }
}

pub(crate) fn portal(address: &str, port: u16) -> Portal {
    Portal { address: address.parse().unwrap(), port }
}

impl Subsystem for Hosts {
    fn cluster(&self) -> ClusterId {
        CLUSTER
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn namespace(&self, nsid: u32) -> Option<Namespace> {
        self.namespaces.get(&nsid).copied()
    }

    fn next(&self, after: u32) -> Option<Namespace> {
        Some(*self.namespaces.range(after.checked_add(1)?..).next()?.1)
    }

    fn portals(&self, visit: &mut dyn FnMut(Portal)) {
        self.portals.iter().copied().for_each(visit);
    }

    fn admits(&self, host: &str, _: &[u8; 16]) -> bool {
        host == HOST
    }

    fn keys(&self, host: &str) -> Option<Keys<'_>> {
        let (key, own) = self.keys.as_ref().filter(|_| host == HOST)?;
        Some(Keys { host: key, own: own.as_ref() })
    }

    fn is_busy(&self) -> bool {
        self.busy
    }

    fn controller(&self, cntlid: u16) -> Option<&Controller> {
        self.controller.as_ref().filter(|controller| controller.cntlid == cntlid)
    }

    fn has_queue(&self, cntlid: u16, qid: u16) -> bool {
        self.queues.contains(&(cntlid, qid))
    }
}

/// Actions of the session other than sends and requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Told {
    Clear,
    Close(Option<&'static str>),
    /// A question about namespace 7, and its tag.
    Ask(u64, Question),
}

pub(crate) struct Rig {
    pub session: Session,
    pub input: Input<NvmeFramer>,
    pub pool: BufPool,
    pub hosts: Hosts,
    pub disk: Vec<u8>,
    /// Requests that are not done.
    pub asked: Vec<(u64, BlockRequest)>,
    pub told: Vec<Told>,
    /// Requests are done at once.
    pub serves: bool,
    pub digests: Digests,
    /// Data has to begin at a multiple of this.
    pub align: usize,
    /// Entries of a queue that asks for the most.
    pub entries: u16,
    sent: Vec<u8>,
    out: Vec<Action>,
}

/// Options of a connection.
#[derive(Clone, Copy, Default)]
pub(crate) struct Options {
    pub digests: Digests,
    /// HPDA.
    pub align: u8,
    /// No flow control of the submission queue.
    pub no_flow: bool,
}

impl Rig {
    /// Creates a connection that was just accepted.
    pub(crate) fn new(limits: &Limits) -> Rig {
        Rig {
            session: Session::new(limits, Opening { cntlid: CNTLID, seed: Seed([9; 32]) }),
            input: Input::new(NvmeFramer::new(limits)),
            pool: BufPool::new(1 << 20),
            hosts: Hosts::new(),
            disk: disk(),
            asked: Vec::new(),
            told: Vec::new(),
            serves: true,
            digests: (false, false),
            align: 4,
            entries: limits.nvme_entries as u16,
            sent: Vec::new(),
            out: Vec::new(),
        }
    }

    /// Creates a connection that is set up.
    pub(crate) fn set_up(limits: &Limits, options: Options) -> Rig {
        let mut rig = Rig::new(limits);
        rig.send(&Request::set_up(options.align, options.digests));
        rig.align = (usize::from(options.align) + 1) * 4;
        let answer = rig.answer();
        assert_eq!((answer.kind(), answer.header.len(), answer.u16(8)), (0x01, 128, 0));
        let flags = u8::from(options.digests.0) | u8::from(options.digests.1) << 1;
        assert_eq!(answer.header[10..12], [0, flags], "CPDA 0, and the digests as asked");
        assert_eq!(answer.u32(12), limits.nvme_h2c);
        rig.digests = options.digests;
        rig
    }

    /// Creates an admin queue whose controller is enabled.
    pub(crate) fn admin(limits: &Limits, options: Options) -> Rig {
        let mut rig = Rig::set_up(limits, options);
        assert_eq!(rig.connect(0, 0xffff, &ident::nqn(CLUSTER), options), (0, CNTLID.into()));
        rig.ask(&Command::property_set(2, 0x14, 0x0046_0001));
        assert_eq!(rig.answer().answer(), (2, 0, 0));
        rig
    }

    /// Creates an I/O queue.
    pub(crate) fn io(limits: &Limits, options: Options) -> Rig {
        let mut rig = Rig::set_up(limits, options);
        rig.hosts.controller = Some(controller());
        let result = rig.connect(1, CNTLID, &ident::nqn(CLUSTER), options);
        assert_eq!(result, (0, CNTLID.into()));
        rig
    }

    /// Connects with the most entries. Returns the status, and the result.
    pub(crate) fn connect(
        &mut self,
        qid: u16,
        cntlid: u16,
        subsystem: &str,
        options: Options,
    ) -> (u16, u32) {
        let data = connect_data(HOST_ID, cntlid, subsystem, HOST);
        let command = Command::connect(1, qid, self.entries - 1, 5000).carries(&data);
        self.ask(&command.put(46, &[u8::from(options.no_flow) << 2]));
        let (cid, status, result) = self.answer().answer();
        assert_eq!(cid, 1);
        (status, result)
    }

    /// Sends a command.
    pub(crate) fn ask(&mut self, command: &Command) {
        self.send(&command.request());
    }

    /// Sends a command. Returns the status and the result of its answer, which is the only PDU.
    pub(crate) fn result(&mut self, command: &Command) -> (u16, u32) {
        self.ask(command);
        let (cid, status, result) = self.answer().answer();
        assert_eq!(cid.to_le_bytes(), command.entry[2..4]);
        (status, result)
    }

    /// Sends a command that returns data. Returns the data.
    pub(crate) fn fetch(&mut self, command: &Command) -> Vec<u8> {
        self.ask(command);
        let [data, answer] = &self.answers()[..] else { panic!("no data of {command:?}") };
        assert_eq!((answer.answer().1, data.header[1] & 0x0c), (0, 4), "all of it, no success");
        assert_eq!((data.kind(), data.u32(12), data.u32(16)), (7, 0, data.data.len() as u32));
        assert_eq!(data.header[8..10], command.entry[2..4]);
        data.data.clone()
    }

    /// Sends a PDU.
    pub(crate) fn send(&mut self, request: &Request) {
        self.feed(&request.bytes(self.digests));
    }

    /// Answers an R2T in parts of `part` bytes.
    pub(crate) fn give(&mut self, r2t: &Pdu, data: &[u8], part: usize) {
        assert_eq!((r2t.kind(), r2t.u32(12)), (0x09, 0), "{r2t:?}");
        assert_eq!(r2t.u32(16) as usize, data.len(), "all data at once");
        for (i, bytes) in data.chunks(part).enumerate() {
            let last = (i + 1) * part >= data.len();
            self.send(&Request::host_data(r2t.ids(), (i * part) as u32, last, bytes));
        }
    }

    /// Sends bytes of the host.
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

    /// Returns the PDUs that the host received since the last call.
    pub(crate) fn answers(&mut self) -> Vec<Pdu> {
        let mut stream = std::mem::take(&mut self.sent);
        let (digests, align) = (self.digests, self.align);
        std::iter::from_fn(|| Pdu::take(&mut stream, digests, align)).collect()
    }

    /// Returns the only one.
    pub(crate) fn answer(&mut self) -> Pdu {
        let mut answers = self.answers();
        assert_eq!(answers.len(), 1, "{answers:?}, {:?}", self.told);
        answers.remove(0)
    }

    pub(crate) fn told(&mut self) -> Vec<Told> {
        std::mem::take(&mut self.told)
    }

    /// Asserts that the session has ended the link because of the host. Returns error and field.
    pub(crate) fn fault(&mut self) -> (u16, u32) {
        assert!(matches!(self.told.last(), Some(Told::Close(Some(_)))), "{:?}", self.told);
        self.answers().last().expect("a request to terminate").fault()
    }

    /// Completes the request at `index`, as the volume in memory does.
    pub(crate) fn serve(&mut self, index: usize) {
        let (tag, request) = self.asked.remove(index);
        let result = execute(&mut self.disk, &request, &self.pool);
        drop(request);
        self.session.done(tag, result, &self.pool, &mut self.out);
        self.act();
    }

    /// Returns the tag of the only question that the session has asked, and the question.
    pub(crate) fn question(&mut self) -> (u64, Question) {
        match self.told()[..] {
            [Told::Ask(tag, question)] => (tag, question),
            ref other => panic!("{other:?}"),
        }
    }

    /// Answers a question.
    pub(crate) fn reply(&mut self, tag: u64, asked: Asked<'_>) {
        self.call(|session, _, pool, out| session.asked(tag, asked, pool, out));
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

    /// Lets the session look for changes.
    pub(crate) fn review(&mut self) {
        self.call(|session, hosts, pool, out| session.review(hosts, pool, out));
    }

    /// Lets time pass until this second.
    pub(crate) fn tick(&mut self, second: u64) {
        let now = base::Time::ZERO + base::time::Duration::from_secs(second);
        self.call(|session, _, pool, out| session.tick(now, pool, out));
    }

    fn act(&mut self) {
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
                    let other = matches!(request.kind, BlockKind::Flush | BlockKind::Extents);
                    assert!(!other, "{request:?} is not for NVMe");
                    assert!(self.asked.iter().all(|(other, _)| *other != tag), "tags differ");
                    self.asked.push((tag, request));
                }
                Action::Clear { what } => {
                    assert_eq!(what, Cleared::Target);
                    self.told.push(Told::Clear);
                }
                Action::Close { why } => self.told.push(Told::Close(why)),
                Action::Ask { tag, volume, question } => {
                    assert!([7, 9].contains(&volume.0), "{volume:?} is no namespace");
                    self.told.push(Told::Ask(tag, question));
                }
                other => panic!("{other:?} is not for NVMe"),
            }
        }
        while self.serves && !self.asked.is_empty() {
            self.serve(0);
        }
    }
}

/// The controller of the host's admin queue, which is another link.
pub(crate) fn controller() -> Controller {
    Controller {
        cntlid: CNTLID,
        host: HOST.into(),
        host_id: [HOST_ID; 16],
        discovery: false,
        ready: true,
        delays: true,
    }
}
