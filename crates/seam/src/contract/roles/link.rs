//! Roles that test links, dials and time.

use super::Role;
use crate::contract::probe::{Stage, head};
use crate::effect::{Effect, Head};
use crate::event::{DialError, DownReason, Event};
use crate::{Buf, DialId, DiskId, DiskOp, Port};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use base::{LinkId, Time};
use core::time::Duration;

/// How long a role checks that no further event comes.
const WATCH: Duration = Duration::from_millis(100);

/// Dials, sends one frame and closes, many times; or plays the opposite side.
pub(in crate::contract) struct Churner {
    peer: Option<usize>,
    links: u64,
    begun: u64,
    ended: u64,
    got: BTreeMap<LinkId, u32>,
}

impl Churner {
    pub(in crate::contract) fn dialing(peer: usize, links: u64) -> Churner {
        Churner { peer: Some(peer), ..Churner::accepting(links) }
    }

    pub(in crate::contract) fn accepting(links: u64) -> Churner {
        Churner { peer: None, links, begun: 0, ended: 0, got: BTreeMap::new() }
    }

    fn dial(&mut self, stage: &mut Stage<'_>) {
        if let Some(peer) = self.peer
            && self.begun < self.links
        {
            stage.dial(self.begun, peer);
            self.begun += 1;
        }
    }
}

impl Role for Churner {
    fn start(&mut self, stage: &mut Stage<'_>) {
        (0..10).for_each(|_| self.dial(stage));
    }

    fn on(&mut self, event: Event<'_>, stage: &mut Stage<'_>) {
        match event {
            Event::LinkUp { link, dial: Some(_), .. } => {
                stage.send(link, 0, 3000);
                stage.out.push(Effect::Close { link });
                self.ended += 1;
                self.dial(stage);
            }
            Event::LinkUp { link, dial: None, .. } => {
                self.got.insert(link, 0);
            }
            Event::Frame { link, head, body } => {
                let n = self.got.entry(link).or_insert(0);
                stage.verify(link, *n, head, &body);
                *n += 1;
            }
            Event::LinkDown { link, why } => {
                let n = self.got.remove(&link);
                stage.check(n == Some(1), || format!("{link}: {n:?} frames of 1 before its end"));
                stage.check(why == DownReason::Closed, || format!("{link}: {why:?}"));
                self.ended += 1;
            }
            other => stage.check(false, || format!("unexpected: {other:?}")),
        }
    }

    fn is_done(&self) -> bool {
        self.ended == self.links
    }

    fn status(&self) -> String {
        format!("{} of {} links ended", self.ended, self.links)
    }
}

/// Dials, sends many frames after the first one arrives, and closes. Then no event may follow.
pub(in crate::contract) struct Closer {
    peer: usize,
    frames: u32,
    watch: Option<Time>,
    done: bool,
}

impl Closer {
    pub(in crate::contract) fn new(peer: usize, frames: u32) -> Closer {
        Closer { peer, frames, watch: None, done: false }
    }
}

impl Role for Closer {
    fn start(&mut self, stage: &mut Stage<'_>) {
        stage.dial(7, self.peer);
    }

    fn on(&mut self, event: Event<'_>, stage: &mut Stage<'_>) {
        match event {
            Event::LinkUp { .. } => {}
            Event::Frame { link, .. } => {
                stage.check(self.watch.is_none(), || "a frame after Close".into());
                (0..self.frames).for_each(|seq| stage.send(link, seq, 5000));
                stage.out.push(Effect::Close { link });
                // None of these has any effect on a closed link.
                stage.out.push(Effect::Pause { link });
                stage.send(link, self.frames, 10);
                stage.out.push(Effect::Resume { link });
                stage.out.push(Effect::Close { link });
                self.watch = Some(stage.now + WATCH);
            }
            Event::Tick => self.done = self.watch.is_some(),
            other => stage.check(false, || format!("unexpected: {other:?}")),
        }
    }

    fn wake_at(&self) -> Option<Time> {
        if self.done { None } else { self.watch }
    }

    fn is_done(&self) -> bool {
        self.done
    }

    fn status(&self) -> String {
        format!("closed: {}", self.watch.is_some())
    }
}

/// Sends frames at once on a link that comes up, and expects others until the link ends.
pub(in crate::contract) struct Teller {
    send: u32,
    want: u32,
    got: u32,
    ended: Option<DownReason>,
}

impl Teller {
    pub(in crate::contract) fn new(send: u32, want: u32) -> Teller {
        Teller { send, want, got: 0, ended: None }
    }
}

impl Role for Teller {
    fn on(&mut self, event: Event<'_>, stage: &mut Stage<'_>) {
        match event {
            Event::LinkUp { link, .. } => {
                (0..self.send).for_each(|seq| stage.send(link, seq, 4096))
            }
            Event::Frame { link, head, body } => {
                stage.verify(link, self.got, head, &body);
                self.got += 1;
            }
            Event::LinkDown { link, why } => {
                let (got, want) = (self.got, self.want);
                stage.check(got == want, || format!("{link} ended after {got} of {want} frames"));
                stage.check(why == DownReason::Closed, || format!("{link}: {why:?}"));
                stage.send(link, self.send, 10); // has no effect any more
                self.ended = Some(why);
            }
            other => stage.check(false, || format!("unexpected: {other:?}")),
        }
    }

    fn is_done(&self) -> bool {
        self.ended.is_some()
    }

    fn status(&self) -> String {
        format!("{} of {} frames", self.got, self.want)
    }
}

/// Sends five frames and then something that is not a frame; or plays the opposite side.
pub(in crate::contract) struct Torn {
    part: Part,
    /// True for a victim that does not read: it still gets the end of the link.
    pauses: bool,
    got: u32,
    done: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Half a frame, then the end. The value is the index of the peer.
    Half(usize),
    /// An invalid head. The value is the index of the peer.
    Garbage(usize),
    /// Expects five frames and a link that ends for this reason.
    Victim(DownReason),
}

impl Torn {
    fn new(part: Part) -> Torn {
        Torn { part, pauses: false, got: 0, done: false }
    }

    pub(in crate::contract) fn pausing(self) -> Torn {
        Torn { pauses: true, ..self }
    }

    pub(in crate::contract) fn half(peer: usize) -> Torn {
        Torn::new(Part::Half(peer))
    }

    pub(in crate::contract) fn garbage(peer: usize) -> Torn {
        Torn::new(Part::Garbage(peer))
    }

    pub(in crate::contract) fn victim(why: DownReason) -> Torn {
        Torn::new(Part::Victim(why))
    }
}

impl Role for Torn {
    fn start(&mut self, stage: &mut Stage<'_>) {
        if let Part::Half(peer) | Part::Garbage(peer) = self.part {
            stage.dial(1, peer);
        }
    }

    fn on(&mut self, event: Event<'_>, stage: &mut Stage<'_>) {
        match (event, self.part) {
            (Event::LinkUp { link, .. }, Part::Victim(_)) if self.pauses => {
                stage.out.push(Effect::Pause { link });
            }
            (Event::LinkUp { .. }, Part::Victim(_)) => {}
            (Event::LinkUp { link, .. }, part) => {
                (0..5).for_each(|seq| stage.send(link, seq, 1000));
                if let Part::Half(_) = part {
                    let body = stage.out.copy(&[0; 10]);
                    stage.out.send(link, head(0, 5, 100_000, stage.now), body);
                    stage.out.push(Effect::Close { link });
                    self.done = true;
                } else {
                    stage.out.send(link, Head::new(&[0xee; 40]), Buf::EMPTY);
                }
            }
            (Event::Frame { link, head, body }, Part::Victim(_)) => {
                stage.verify(link, self.got, head, &body);
                self.got += 1;
            }
            (Event::LinkDown { why, .. }, Part::Victim(wanted)) => {
                let (got, pauses) = (self.got, self.pauses);
                stage.check(got == 5 || pauses, || format!("{got} frames of 5 came"));
                stage.check(why == wanted, || format!("{why:?} instead of {wanted:?}"));
                self.done = true;
            }
            (Event::LinkDown { why, .. }, Part::Garbage(_)) => {
                let ok = matches!(why, DownReason::Closed | DownReason::Broken);
                stage.check(ok, || format!("unexpected: {why:?}"));
                self.done = true;
            }
            (other, _) => stage.check(false, || format!("unexpected: {other:?}")),
        }
    }

    fn is_done(&self) -> bool {
        self.done
    }

    fn status(&self) -> String {
        format!("{} frames", self.got)
    }
}

/// Dials an address where nothing listens.
pub(in crate::contract) struct Dialer {
    dials: u64,
    refused: u64,
}

impl Dialer {
    pub(in crate::contract) fn new(dials: u64) -> Dialer {
        Dialer { dials, refused: 0 }
    }
}

impl Role for Dialer {
    fn start(&mut self, stage: &mut Stage<'_>) {
        let to = stage.place.nobody;
        (0..self.dials)
            .for_each(|i| stage.out.push(Effect::Dial { dial: DialId(i), to, port: Port::Ours }));
    }

    fn on(&mut self, event: Event<'_>, stage: &mut Stage<'_>) {
        match event {
            Event::DialFailed { why: DialError::Refused, .. } => self.refused += 1,
            other => stage.check(false, || format!("unexpected: {other:?}")),
        }
    }

    fn is_done(&self) -> bool {
        self.refused == self.dials
    }

    fn status(&self) -> String {
        format!("{} of {} refused", self.refused, self.dials)
    }
}

/// Asks for ticks after various delays, on an idle driver or one that its device keeps busy. The
/// ledger of every probe checks that no tick is early.
pub(in crate::contract) struct Ticker {
    wake: Option<Time>,
    left: &'static [u64],
    busy: bool,
    reads: u64,
    reading: bool,
}

impl Ticker {
    pub(in crate::contract) fn new(busy: bool) -> Ticker {
        // In microseconds.
        let left = &[0, 1, 10, 99, 100, 999, 1001, 5000, 20_500, 60_000, 3, 0, 0];
        Ticker { wake: None, left, busy, reads: 0, reading: false }
    }

    fn read(&mut self, stage: &mut Stage<'_>) {
        self.reading = self.busy && !self.left.is_empty();
        if self.reading {
            self.reads += 1;
            let (op, disk) = (DiskOp(self.reads), DiskId(0));
            stage.out.push(Effect::Read { op, disk, at: 0, len: 512 });
        }
    }
}

impl Role for Ticker {
    fn start(&mut self, stage: &mut Stage<'_>) {
        self.wake = Some(stage.now);
        self.read(stage);
    }

    fn on(&mut self, event: Event<'_>, stage: &mut Stage<'_>) {
        match event {
            Event::Tick => {
                let due = self.wake.take();
                stage.check(due.is_some(), || "a tick that nobody asked for".into());
                let late = due.map(|t| stage.now.since(t));
                stage.check(late < Some(Duration::from_secs(5)), || {
                    format!("a tick late by {late:?}")
                });
                if let Some((us, left)) = self.left.split_first() {
                    self.wake = Some(stage.now + Duration::from_micros(*us));
                    self.left = left;
                }
            }
            Event::DiskDone { result: Ok(_), .. } => self.read(stage),
            other => stage.check(false, || format!("unexpected: {other:?}")),
        }
    }

    fn wake_at(&self) -> Option<Time> {
        self.wake
    }

    fn is_done(&self) -> bool {
        self.left.is_empty() && self.wake.is_none() && !self.reading
    }

    fn status(&self) -> String {
        format!("{} ticks left, next at {:?}", self.left.len(), self.wake)
    }
}

/// Sends to a peer that does not read, until the link ends as `Stuck`.
pub(in crate::contract) struct Flooder {
    peer: usize,
    queue: u64,
    link: Option<LinkId>,
    sent: u64,
    seq: u32,
    stuck: bool,
}

/// Bytes that a driver may have in flight besides its queue, in the buffers of the kernels.
const ON_THE_WAY: u64 = 64 << 20;

impl Flooder {
    pub(in crate::contract) fn new(peer: usize, queue: u64) -> Flooder {
        Flooder { peer, queue, link: None, sent: 0, seq: 0, stuck: false }
    }
}

impl Role for Flooder {
    fn start(&mut self, stage: &mut Stage<'_>) {
        stage.dial(1, self.peer);
    }

    fn on(&mut self, event: Event<'_>, stage: &mut Stage<'_>) {
        match event {
            Event::LinkUp { link, .. } => self.link = Some(link),
            Event::Tick => {
                let Some(link) = self.link else { return };
                stage.send(link, self.seq, 100_000);
                self.seq += 1;
                self.sent += 100_000;
                let (sent, most) = (self.sent, self.queue + ON_THE_WAY);
                stage.check(sent < most, || {
                    format!("{sent} bytes are queued for one who does not read")
                });
            }
            Event::LinkDown { link, why } => {
                let (sent, least) = (self.sent, self.queue);
                stage.check(why == DownReason::Stuck, || format!("{why:?}"));
                stage.check(sent >= least, || format!("stuck after {sent} of {least} bytes"));
                stage.send(link, self.seq, 10); // has no effect any more
                (self.stuck, self.link) = (true, None);
            }
            other => stage.check(false, || format!("unexpected: {other:?}")),
        }
    }

    fn wake_at(&self) -> Option<Time> {
        self.link.map(|_| Time::ZERO)
    }

    fn is_done(&self) -> bool {
        self.stuck
    }

    fn status(&self) -> String {
        format!("{} bytes sent", self.sent)
    }
}
