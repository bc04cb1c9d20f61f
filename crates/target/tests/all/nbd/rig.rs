//! A client on one side and an owner on the other: feeds bytes through the framer into a session,
//! executes its actions, and records what it sends and asks for.

use crate::shared::Input;
use base::{ClusterId, Limits, VolumeId};
use seam::{BlockError, BlockRequest, Buf, BufPool};
use target::Action;
use target::nbd::proto::*;
use target::nbd::{Export, Exports, NbdFramer, Session};
use target::reserve::Access;

/// The cluster of all volumes.
pub(crate) const CLUSTER: ClusterId = ClusterId(0x0123_4567_89ab_cdef);

/// Volumes: id, size, read-only, name.
#[derive(Clone)]
pub(crate) struct Volumes(pub Vec<(u32, u64, bool, &'static str)>);

impl Exports for Volumes {
    fn find(&self, name: &[u8]) -> Option<Export<'_>> {
        let mut found = None;
        self.each(&mut |e| found = if e.name.as_bytes() == name { Some(e) } else { found });
        found
    }

    fn each<'a>(&'a self, visit: &mut dyn FnMut(Export<'a>)) {
        for &(id, size, read_only, name) in &self.0 {
            let (volume, access) = (VolumeId(id), Access::FULL);
            visit(Export { cluster: CLUSTER, volume, size, read_only, access, name });
        }
    }
}

/// Actions of the session other than sends and requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Told {
    Refresh,
    Pause,
    Resume,
    Close(Option<&'static str>),
}

pub(crate) struct Rig {
    pub session: Session,
    pub input: Input<NbdFramer>,
    pub pool: BufPool,
    pub volumes: Volumes,
    /// True if `Refresh` is answered at once.
    pub refreshes: bool,
    pub asked: Vec<(u64, BlockRequest)>,
    pub told: Vec<Told>,
    sent: Vec<u8>,
    out: Vec<Action>,
}

impl Rig {
    /// Creates a connection before its greeting, to a server with one volume `a` of 16 MiB.
    pub(crate) fn new(limits: &Limits) -> Rig {
        Rig {
            session: Session::new(limits),
            input: Input::new(NbdFramer::new(limits)),
            pool: BufPool::new(1 << 20),
            volumes: Volumes(vec![(7, 16 << 20, false, "a")]),
            refreshes: true,
            asked: Vec::new(),
            told: Vec::new(),
            sent: Vec::new(),
            out: Vec::new(),
        }
    }

    /// Creates a connection in option haggling.
    pub(crate) fn haggling() -> Rig {
        let mut rig = Rig::new(&Limits::SHIPPED);
        rig.greet();
        rig.feed(&[0, 0, 0, 3]);
        rig.sent();
        rig.told.clear();
        rig
    }

    /// Creates a connection in transmission with volume `a`; `structured` includes
    /// `base:allocation`.
    pub(crate) fn serving(structured: bool, limits: &Limits) -> Rig {
        let mut rig = Rig::new(limits);
        rig.greet();
        rig.feed(&[0, 0, 0, 3]);
        rig.serve(structured);
        rig
    }

    pub(crate) fn serve(&mut self, structured: bool) {
        if structured {
            self.feed(&option(NBD_OPT_STRUCTURED_REPLY, &[]));
            let data = meta(b"a", &[b"base:allocation"]);
            self.feed(&option(NBD_OPT_SET_META_CONTEXT, &data));
        }
        self.feed(&option(NBD_OPT_GO, &info(b"a", &[])));
        self.sent();
        self.told.clear();
        assert!(self.session.attached().is_some());
    }

    pub(crate) fn greet(&mut self) {
        self.session.greet(&mut self.out);
        self.act();
    }

    /// Returns the bytes that the client received since the last call.
    pub(crate) fn sent(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.sent)
    }

    pub(crate) fn told(&mut self) -> Vec<Told> {
        std::mem::take(&mut self.told)
    }

    /// Sends bytes from the client.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.input.push(bytes);
        while let Some((head, body)) = self.input.frame() {
            self.raw(&head, &body);
        }
    }

    /// Passes fresh exports to the session.
    pub(crate) fn refresh(&mut self) {
        let volumes = self.volumes.clone();
        self.session.refreshed(&volumes, &self.pool, &mut self.out);
        self.act();
    }

    /// Completes the oldest request.
    pub(crate) fn done(&mut self, result: Result<&[u8], BlockError>) {
        let (tag, _) = self.asked.remove(0);
        self.done_tag(tag, result);
    }

    pub(crate) fn done_tag(&mut self, tag: u64, result: Result<&[u8], BlockError>) {
        let result = result.map(|data| self.pool.copy(data));
        self.session.done(tag, result, &self.pool, &mut self.out);
        self.act();
    }

    pub(crate) fn waits(&mut self, tag: u64, most: u64) {
        self.session.waits(tag, most, &self.pool, &mut self.out);
        self.act();
    }

    pub(crate) fn shutdown(&mut self) {
        self.session.shutdown(&self.pool, &mut self.out);
        self.act();
    }

    /// Sends one request, and returns what the client receives before any completion.
    pub(crate) fn ask(&mut self, request: &[u8]) -> Vec<u8> {
        self.feed(request);
        self.sent()
    }

    /// Passes a frame that no framer has checked.
    pub(crate) fn raw(&mut self, head: &[u8], body: &[u8]) {
        let body = if body.is_empty() { Buf::EMPTY } else { self.pool.copy(body) };
        self.session.frame(head, body, &self.pool, &mut self.out);
        self.act();
    }

    fn act(&mut self) {
        let mut refresh = false;
        for action in self.out.drain(..) {
            assert!(
                !matches!(self.told.last(), Some(Told::Close(_))),
                "{action:?} after the connection was closed"
            );
            match action {
                Action::Send { head, body } => {
                    self.sent.extend_from_slice(head.as_slice());
                    self.sent.extend_from_slice(&body);
                }
                Action::Request { tag, request } => self.asked.push((tag, request)),
                Action::Refresh => {
                    self.told.push(Told::Refresh);
                    refresh = true;
                }
                Action::Pause => self.told.push(Told::Pause),
                Action::Resume => self.told.push(Told::Resume),
                Action::Withdraw { .. }
                | Action::Ask { .. }
                | Action::Reframe { .. }
                | Action::Reinstate
                | Action::Clear { .. } => panic!("NBD has nothing like {action:?}"),
                Action::Close { why } => self.told.push(Told::Close(why)),
            }
        }
        if refresh && self.refreshes {
            self.refresh();
        }
    }
}

/// Returns an option as a client sends it.
pub(crate) fn option(option: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT", &option.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
}

/// Returns the data of `NBD_OPT_INFO` and `NBD_OPT_GO`.
pub(crate) fn info(name: &[u8], wants: &[u16]) -> Vec<u8> {
    let mut data = [&(name.len() as u32).to_be_bytes()[..], name].concat();
    data.extend_from_slice(&(wants.len() as u16).to_be_bytes());
    wants.iter().for_each(|w| data.extend_from_slice(&w.to_be_bytes()));
    data
}

/// Returns the data of the two options on metadata contexts.
pub(crate) fn meta(name: &[u8], queries: &[&[u8]]) -> Vec<u8> {
    let mut data = [&(name.len() as u32).to_be_bytes()[..], name].concat();
    data.extend_from_slice(&(queries.len() as u32).to_be_bytes());
    for query in queries {
        data.extend_from_slice(&(query.len() as u32).to_be_bytes());
        data.extend_from_slice(query);
    }
    data
}

/// Returns a request as a client sends it; a write carries `len` times `w`.
pub(crate) fn request(flags: u16, command: u16, cookie: u64, at: u64, len: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
    bytes.extend_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(&command.to_be_bytes());
    bytes.extend_from_slice(&cookie.to_be_bytes());
    bytes.extend_from_slice(&at.to_be_bytes());
    bytes.extend_from_slice(&len.to_be_bytes());
    if command == NBD_CMD_WRITE {
        bytes.resize(bytes.len() + len as usize, b'w');
    }
    bytes
}

/// Returns the bytes of hexadecimal digits; spaces are ignored.
pub(crate) fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<u8> = digits.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    let digit = |d: u8| (d as char).to_digit(16).expect("a hexadecimal digit") as u8;
    digits.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// Returns a reply to an option.
pub(crate) fn option_reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let head = hex("0003e889045565a9");
    let len = (data.len() as u32).to_be_bytes();
    [&head[..], &option.to_be_bytes(), &kind.to_be_bytes(), &len, data].concat()
}

/// Returns the structured error chunk.
pub(crate) fn error_chunk(cookie: u64, error: u32, why: &str) -> Vec<u8> {
    let mut bytes = hex("668e33ef 0001 8001");
    bytes.extend_from_slice(&cookie.to_be_bytes());
    bytes.extend_from_slice(&(6 + why.len() as u32).to_be_bytes());
    bytes.extend_from_slice(&error.to_be_bytes());
    bytes.extend_from_slice(&(why.len() as u16).to_be_bytes());
    bytes.extend_from_slice(why.as_bytes());
    bytes
}

/// One reply in a server's stream in the transmission phase.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub cookie: u64,
    pub error: u32,
    pub len: usize,
}

/// Splits a server's stream into replies; `read_len` returns the length of a simple reply's data.
pub(crate) fn replies(mut bytes: &[u8], read_len: &dyn Fn(u64) -> usize) -> Vec<Reply> {
    let mut list = Vec::new();
    let u32_at = |b: &[u8], at: usize| u32::from_be_bytes(b[at..at + 4].try_into().unwrap());
    while !bytes.is_empty() {
        let magic = u32_at(bytes, 0);
        let cookie = u64::from_be_bytes(bytes[8..16].try_into().unwrap());
        let (error, head, len) = if magic == NBD_SIMPLE_REPLY_MAGIC {
            let error = u32_at(bytes, 4);
            (error, 16, if error == 0 { read_len(cookie) } else { 0 })
        } else {
            assert_eq!((magic, &bytes[4..6]), (NBD_STRUCTURED_REPLY_MAGIC, &[0u8, 1][..]));
            let failed = bytes[6] & 0x80 != 0;
            (if failed { u32_at(bytes, 20) } else { 0 }, 20, u32_at(bytes, 16) as usize)
        };
        list.push(Reply { cookie, error, len });
        bytes = &bytes[head + len..];
    }
    list
}
