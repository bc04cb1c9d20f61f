//! The node that all scenarios run (a role with a ledger around it), and its protocol.

use super::check::{Ledger, Place};
use super::roles::Role;
use crate::effect::{Effect, Effects, Head};
use crate::event::Event;
use crate::framer::{FrameError, Framer, Framing};
use crate::node::{Node, Strangers};
use crate::{Buf, Port};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use base::{LinkId, Time};
use core::cell::Cell;

/// A node that plays a role in a scenario and records what the driver does wrong.
pub struct Probe {
    role: Box<dyn Role>,
    ledger: Ledger,
    place: Option<Place>,
    started: bool,
    /// The time that `wake_at` returned last.
    last_wake_at: Cell<Option<Time>>,
}

impl Probe {
    pub(super) fn new(role: Box<dyn Role>) -> Probe {
        Probe {
            role,
            ledger: Ledger::default(),
            place: None,
            started: false,
            last_wake_at: Cell::new(None),
        }
    }

    /// Tells the probe about the others. The harness calls it before any probe runs.
    pub fn meet(&mut self, place: Place) {
        self.place = Some(place);
    }

    /// Returns true if the role is finished. May be called between any two calls of the driver.
    pub fn is_done(&self) -> bool {
        self.started && self.role.is_done()
    }

    /// Returns all faults so far. Anything unfinished counts as a fault.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = self.ledger.faults.clone();
        if !self.is_done() {
            faults.push(format!("not done in time: {}", self.role.status()));
        } else {
            faults.extend(self.ledger.open_ends());
        }
        faults
    }
}

/// The tools of a role while it handles an event.
pub(super) struct Stage<'a> {
    pub(super) now: Time,
    pub(super) out: &'a mut Effects,
    pub(super) place: &'a Place,
    pub(super) ledger: &'a mut Ledger,
}

impl Stage<'_> {
    pub(super) fn check(&mut self, ok: bool, what: impl FnOnce() -> String) {
        self.ledger.check(ok, what);
    }

    pub(super) fn dial(&mut self, id: u64, peer: usize) {
        let to = self.place.peers[peer];
        self.out.push(Effect::Dial { dial: crate::DialId(id), to, port: Port::Ours });
    }

    /// Sends frame `seq` of a link with a body of `len` bytes, in one piece or in two.
    pub(super) fn send(&mut self, link: LinkId, seq: u32, len: usize) {
        self.send_in(0, link, seq, len);
    }

    /// Sends a frame to a side that cuts in this mode.
    pub(super) fn send_in(&mut self, mode: u8, link: LinkId, seq: u32, len: usize) {
        let head = head(mode, seq, len, self.now);
        let mut body = self.out.alloc(len);
        body.as_mut().iter_mut().enumerate().for_each(|(i, b)| *b = pattern(seq, i));
        if seq % 7 == 3 && len > 1 {
            let cut = (seq as usize * 37) % len;
            self.out.send(link, head, body.slice(0..cut));
            self.out.send(link, Head::EMPTY, body.slice(cut..len));
        } else {
            self.out.send(link, head, body);
        }
    }

    /// Sends the frame with number `n` of those that may overtake.
    pub(super) fn send_first(&mut self, link: LinkId, n: u32) {
        self.out.send_first(link, first(n));
    }

    /// Checks a frame of [`Stage::send_first`]; returns its number if the frame is correct.
    pub(super) fn verify_first(&mut self, link: LinkId, head: &[u8], body: &Buf) -> Option<u32> {
        let n = head.get(1..5).and_then(|n| n.try_into().ok()).map(u32::from_le_bytes);
        let n = n.filter(|n| head == first(*n).as_slice() && body.is_empty());
        self.check(n.is_some(), || format!("{link}: a damaged frame of those that may overtake"));
        n
    }

    /// Checks a frame that [`Stage::send`] sent as frame `seq`.
    pub(super) fn verify(&mut self, link: LinkId, seq: u32, head: &[u8], body: &Buf) {
        let Some(h) = parse(head) else {
            return self.ledger.fault(format!("{link}: a head of {} bytes", head.len()));
        };
        let (now, same_clock) = (self.now, self.place.same_clock);
        self.check(h.seq == seq, || format!("{link}: frame {} came instead of {seq}", h.seq));
        self.check(h.body as usize == body.len(), || {
            format!("{link}: a body of {} bytes", body.len())
        });
        self.check(head.len() == head_len(seq), || {
            format!("{link}: a head of {} bytes", head.len())
        });
        let wrong = body.iter().enumerate().find(|(i, b)| **b != pattern(h.seq, *i));
        self.check(wrong.is_none(), || format!("{link}: frame {seq} is damaged at {wrong:?}"));
        self.check(!same_clock || now >= h.stamp, || {
            format!("{link}: frame {seq} was sent at {:?}, and now is {now:?}", h.stamp)
        });
    }
}

/// Returns byte `i` of the body of frame `seq`.
fn pattern(seq: u32, i: usize) -> u8 {
    ((i as u32).wrapping_mul(0x9e37_79b1).wrapping_add(seq.wrapping_mul(0x85eb_ca6b)) >> 23) as u8
}

const MAGIC: u8 = 0xc7;
const SHORTEST: usize = 19;

/// First byte of a frame that may overtake. The constant below is its length in bytes.
const FIRST: u8 = 0xc8;
const FIRST_LEN: usize = 40;

fn first(n: u32) -> Head {
    let mut h = [n as u8; FIRST_LEN];
    h[0] = FIRST;
    h[1..5].copy_from_slice(&n.to_le_bytes());
    Head::new(&h)
}

/// Returns true for the head of a frame that may overtake.
pub(super) fn is_first(head: &[u8]) -> bool {
    head.first() == Some(&FIRST)
}

struct Parsed {
    seq: u32,
    body: u32,
    stamp: Time,
}

fn head_len(seq: u32) -> usize {
    SHORTEST + seq as usize % (Head::MAX - SHORTEST + 1)
}

/// Returns the head of frame `seq` for a side that cuts in this mode. Some scenarios announce a
/// longer body than they send.
pub(super) fn head(mode: u8, seq: u32, len: usize, now: Time) -> Head {
    let mut h = [seq as u8; Head::MAX];
    h[0] = MAGIC;
    h[18] = mode;
    h[1] = head_len(seq) as u8;
    h[2..6].copy_from_slice(&seq.to_le_bytes());
    h[6..10].copy_from_slice(&(len as u32).to_le_bytes());
    h[10..18].copy_from_slice(&now.0.to_le_bytes());
    Head::new(&h[..head_len(seq)])
}

fn parse(head: &[u8]) -> Option<Parsed> {
    let at = |from: usize| head.get(from..from + 4)?.try_into().ok().map(u32::from_le_bytes);
    let stamp = u64::from(at(10)?) | u64::from(at(14)?) << 32;
    Some(Parsed { seq: at(2)?, body: at(6)?, stamp: Time(stamp) })
}

/// Splits the streams of probes. Heads have many lengths; frames are numbered from 0, except those
/// that may overtake.
#[derive(Default)]
pub struct ProbeFramer {
    next: u32,
    mode: u32,
}

impl Framer for ProbeFramer {
    fn frame(&mut self, start: &[u8]) -> Result<Framing, FrameError> {
        match start.first() {
            None => return Ok(Framing::Need(1)),
            Some(&FIRST) if start.len() < FIRST_LEN => return Ok(Framing::Need(FIRST_LEN)),
            Some(&FIRST) => return Ok(Framing::Frame { head: FIRST_LEN, body: 0 }),
            Some(b) if *b != MAGIC => return Err(FrameError::BadMagic),
            Some(_) => {}
        }
        // The head states its length before it is complete: the driver has to wait for the rest.
        if start.len() < SHORTEST {
            return Ok(Framing::Need(SHORTEST));
        }
        let head = parse(start).ok_or(FrameError::BadHead)?;
        if head.seq != self.next {
            return Err(FrameError::BadHead); // called twice for one frame, or a frame is missing
        }
        if u32::from(start[18]) != self.mode {
            return Err(FrameError::BadHead); // cut too early or too late for its mode
        }
        self.next += 1;
        Ok(Framing::Frame { head: start[1] as usize, body: head.body as usize })
    }

    fn set_mode(&mut self, mode: u32) {
        self.mode = mode;
    }
}

impl Node for Probe {
    type Framer = ProbeFramer;

    fn framer(&mut self, port: Port) -> ProbeFramer {
        self.ledger.check(port == Port::Ours, || "a framer for a port that nobody uses".into());
        ProbeFramer::default()
    }

    fn strangers(&self, _: Port) -> Option<Strangers> {
        self.role.strangers()
    }

    fn on(&mut self, now: Time, event: Event<'_>, out: &mut Effects) {
        self.ledger.time(now);
        self.ledger.event(&event);
        let Some(place) = self.place.clone() else {
            return self.ledger.fault("the harness has not called meet".into());
        };
        let ticked = matches!(event, Event::Tick);
        if ticked {
            let due = self.last_wake_at.get();
            self.ledger.check(due.is_some_and(|t| t <= now), || {
                format!("a tick at {now:?}, asked for at {due:?}")
            });
        }
        let mut stage = Stage { now, out, place: &place, ledger: &mut self.ledger };
        if ticked && !core::mem::replace(&mut self.started, true) {
            self.role.start(&mut stage);
        } else {
            self.role.on(event, &mut stage);
        }
        self.ledger.effects(out);
    }

    fn flush(&mut self, now: Time, out: &mut Effects) {
        self.ledger.time(now);
        if let (Some(place), true) = (self.place.clone(), self.started) {
            self.role.flush(&mut Stage { now, out, place: &place, ledger: &mut self.ledger });
            self.ledger.effects(out);
        }
    }

    fn wake_at(&self) -> Option<Time> {
        let at = if self.started { self.role.wake_at() } else { Some(Time::ZERO) };
        self.last_wake_at.set(at);
        at
    }
}
