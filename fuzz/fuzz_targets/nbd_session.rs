//! Arbitrary bytes as the stream of an NBD client, in any pieces, with any order of completions.
//!
//! Checked: no panic; the framer keeps its contract and does not depend on the pieces; nothing
//! happens after a close; the limits hold; every request gets exactly one reply; all memory is
//! freed.
//!
//! Input: one byte for the mode, then a script of control bytes, each followed by bytes of the
//! stream. The content of the replies is not checked here
//! (`crates/target/tests/all/nbd` does that).
#![no_main]

mod cut;

use base::{ClusterId, Limits, VolumeId};
use cut::{Script, Step, cut};
use libfuzzer_sys::fuzz_target;
use seam::{BlockError, BlockKind, BlockRequest, BufPool};
use target::Action;
use target::nbd::{Export, Exports, NbdFramer, Session};
use target::reserve::Access;

/// Longest body of a frame.
const LONGEST: usize = 1 << 20;

struct Volumes(u8);

impl Exports for Volumes {
    fn find(&self, name: &[u8]) -> Option<Export<'_>> {
        let mut found = None;
        self.each(&mut |e| found = if e.name.as_bytes() == name { Some(e) } else { found });
        found
    }

    fn each<'a>(&'a self, visit: &mut dyn FnMut(Export<'a>)) {
        for (i, name) in ["a", "b"].into_iter().enumerate().take(self.0 as usize) {
            let (volume, size, access) = (VolumeId(i as u32 + 1), 16 << 20, Access::FULL);
            let (cluster, read_only) = (ClusterId(1), i == 1);
            visit(Export { cluster, volume, size, read_only, access, name });
        }
    }
}

struct Owner {
    session: Session,
    pool: BufPool,
    volumes: Volumes,
    limits: Limits,
    out: Vec<Action>,
    asked: Vec<(u64, BlockRequest)>,
    wants_refresh: bool,
    paused: bool,
    closed: bool,
    sends: usize,
}

impl Owner {
    fn act(&mut self) {
        for action in self.out.drain(..) {
            assert!(!self.closed, "{action:?} after the close");
            match action {
                Action::Send { head, body } => {
                    assert!(!head.as_slice().is_empty() || body.is_empty());
                    self.sends += 1;
                }
                Action::Request { tag, request } => {
                    let end = request.at + u64::from(request.len);
                    assert!(end <= 16 << 20 && end % 512 == 0 && request.at % 512 == 0);
                    assert_eq!(request.body.len(), request.kind.body_len(request.len));
                    self.asked.push((tag, request));
                }
                Action::Refresh => {
                    assert!(!self.wants_refresh);
                    self.wants_refresh = true;
                }
                Action::Pause => assert!(!std::mem::replace(&mut self.paused, true)),
                Action::Resume => assert!(std::mem::replace(&mut self.paused, false)),
                Action::Withdraw { .. }
                | Action::Ask { .. }
                | Action::Reframe { .. }
                | Action::Reinstate
                | Action::Clear { .. } => panic!("NBD has nothing like that"),
                Action::Close { .. } => self.closed = true,
            }
        }
        assert!(self.closed || self.session.in_flight() == self.asked.len());
        assert!(self.asked.len() <= self.limits.nbd_requests as usize);
    }

    fn frame(&mut self, head: &[u8], body: &[u8]) {
        let body = self.pool.copy(body);
        self.session.frame(head, body, &self.pool, &mut self.out);
        self.act();
    }

    fn refresh(&mut self) {
        self.wants_refresh = false;
        self.session.refreshed(&self.volumes, &self.pool, &mut self.out);
        self.act();
    }

    fn done(&mut self, pick: u8) {
        if self.asked.is_empty() {
            return;
        }
        let (tag, request) = self.asked.swap_remove(pick as usize % self.asked.len());
        let result = match (pick % 16, request.kind) {
            (15, _) => Err(BlockError::Lost),
            (14, _) => Ok(self.pool.zeroed(3)),
            (_, BlockKind::Read) => Ok(self.pool.alloc(request.len as usize)),
            (_, BlockKind::Extents) => {
                Ok(self.pool.copy(&vec![pick; request.len as usize / 4096 / 8 + 2]))
            }
            _ => Ok(seam::Buf::EMPTY),
        };
        drop(request);
        self.session.done(tag, result, &self.pool, &mut self.out);
        self.act();
    }
}

/// Brings the session to transmission, using all options of the negotiation.
fn enter(owner: &mut Owner, framer: &mut NbdFramer, structured: bool) {
    let option = |number: u8, data: &[u8]| {
        let lengths = [0, 0, 0, number, 0, 0, 0, data.len() as u8];
        [b"IHAVEOPT", &lengths[..], data].concat()
    };
    let mut stream = vec![0, 0, 0, 3];
    if structured {
        stream.extend(option(8, b""));
        stream.extend(option(10, b"\0\0\0\x01a\0\0\0\x01\0\0\0\x0fbase:allocation"));
    }
    stream.extend(option(7, b"\0\0\0\x01a\0\0"));
    while let Some((head, body)) = cut(framer, &stream, 128, LONGEST) {
        let frame: Vec<u8> = stream.drain(..head + body).collect();
        owner.frame(&frame[..head], &frame[head..]);
        if owner.wants_refresh {
            owner.refresh();
        }
    }
    assert!(owner.session.attached().is_some());
}

fuzz_target!(|input: &[u8]| {
    let Some((&mode, script)) = input.split_first() else { return };
    let limits = Limits::TEST_MIN;
    let mut framer = NbdFramer::new(&limits);
    let pool = BufPool::new(1 << 20);
    let mut owner = Owner {
        session: Session::new(&limits),
        pool: pool.clone(),
        volumes: Volumes(mode >> 6),
        limits,
        out: Vec::new(),
        asked: Vec::new(),
        wants_refresh: false,
        paused: false,
        closed: false,
        sends: 0,
    };
    owner.session.greet(&mut owner.out);
    owner.act();
    let serves = mode & 3 != 0 && mode >> 6 != 0;
    if serves {
        enter(&mut owner, &mut framer, mode & 1 != 0);
    }
    let (before, mut requests) = (owner.sends, 0);
    let mut script = Script(script);
    loop {
        let is_event = |control: u8| match control >> 6 {
            0 => true,
            1 => owner.wants_refresh || control == 0x7f,
            _ => false,
        };
        let Some(step) = script.next(&mut framer, LONGEST, is_event) else { break };
        match step {
            Step::Event(control) if control >> 6 == 0 => owner.done(control),
            Step::Event(_) if owner.wants_refresh => owner.refresh(),
            Step::Event(_) => {
                owner.session.shutdown(&owner.pool, &mut owner.out);
                owner.act();
            }
            Step::Frame(head, body) => {
                // Data after a client's DISC, or after the close, is not a request.
                let leaves = head.len() == 28 && head[6..8] == [0, 2];
                requests += usize::from(head.len() == 28 && !owner.closed && !leaves);
                owner.frame(head, body);
                if leaves {
                    break;
                }
            }
        }
    }
    while !owner.asked.is_empty() {
        owner.done(13);
    }
    if serves && !owner.closed {
        assert_eq!(owner.sends - before, requests, "one reply per request");
        assert!(!owner.paused);
    }
    drop(owner);
    assert_eq!(pool.used(), 0);
});
