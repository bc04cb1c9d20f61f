//! Carries out a node's effects: queues, starts or answers them. Does no I/O on connections.

use super::{LINGER, Ready, Shard};
use crate::dial::{DIAL_TIMEOUT, Dial};
use crate::disk::{self, Act, Begun};
use crate::link::{Output, Pinned, State};
use crate::net;
use crate::sys::{Sys, Token};
use base::{LinkId, Time};
use seam::Framer as _;
use seam::{DialError, DialId, DiskError, DiskId, DiskOp, DownReason, Effect, Node, Note, Port};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};

impl<N: Node, S: Sys, T: FnMut(usize, Time, Note)> Shard<N, S, T> {
    /// Carries out, in order, the effects that a node has emitted since the last call.
    pub(super) fn carry_out(&mut self, now: Time, seat: u32) {
        if self.out.is_empty() {
            return;
        }
        let mut effects = std::mem::take(&mut self.effects);
        self.out.swap(&mut effects);
        for effect in effects.drain(..) {
            self.apply(now, seat, effect);
        }
        self.effects = effects;
    }

    fn apply(&mut self, now: Time, seat: u32, effect: Effect) {
        match effect {
            Effect::Send { link, head, body } => self.queue(now, link, |out| out.push(&head, body)),
            Effect::SendFirst { link, head } => self.queue(now, link, |out| out.push_first(&head)),
            Effect::Dial { dial, to, port } => self.dial(now, seat, dial, to, port),
            Effect::Close { link } => self.close(now, link),
            Effect::Welcome { link } => self.welcome(link),
            Effect::Pause { link } => self.pause(link),
            Effect::Reframe { link, mode } => {
                if let Some((_, l)) = self.links.of(link) {
                    l.framer.set_mode(mode);
                }
            }
            Effect::Resume { link } => {
                if let Some((index, l)) = self.links.of(link)
                    && l.paused
                {
                    l.paused = false;
                    if l.input.for_end {
                        self.sys.recall(index);
                    }
                    self.ready.push_back((seat, Ready::Resumed(link)));
                }
            }
            Effect::Read { op, disk, at, len } => self.disk(seat, op, disk, Act::Read { at, len }),
            Effect::Write { op, disk, at, body, durable } => {
                self.disk(seat, op, disk, Act::Write { at, body, durable });
            }
            Effect::Flush { op, disk } => self.disk(seat, op, disk, Act::Flush),
            Effect::Punch { op, disk, at, len } => {
                self.disk(seat, op, disk, Act::Punch { at, len })
            }
            Effect::Reply { id, result } => self.answers.push((id, result)),
            Effect::Note(note) => (self.on_note)(seat as usize, now, note),
        }
    }

    /// Adds a frame to a link's queue. Closes the link as stuck when its queue is too long.
    fn queue(&mut self, now: Time, id: LinkId, push: impl FnOnce(&mut Output)) {
        let most = self.link_queue;
        let Some((index, link)) = self.links.of(id) else { return };
        if link.state != State::Up || link.broken {
            return;
        }
        let before = link.output.queued;
        push(&mut link.output);
        let queued = link.output.queued;
        if link.unread.is_some() {
            self.now_waits(now, index, queued - before);
        }
        if queued > most {
            return self.stuck(now, index);
        }
        self.links.list_send(index);
    }

    /// Closes a link whose other side does not read, and reports it.
    pub(super) fn stuck(&mut self, now: Time, index: u32) {
        let Some(link) = self.links.get_mut(index) else { return };
        let note = Note::Stuck { link: link.id, queued: link.output.queued, peer: link.peer() };
        (self.on_note)(link.seat as usize, now, note);
        self.down(index, DownReason::Stuck);
    }

    fn pause(&mut self, id: LinkId) {
        let Some((index, link)) = self.links.of(id) else { return };
        link.paused = true;
        if link.broken {
            return self.down(index, DownReason::Broken);
        }
        if let Some(why) = link.ended {
            return self.down(index, why);
        }
        self.links.to_receive.push(index);
    }

    fn close(&mut self, now: Time, id: LinkId) {
        let Some((index, link)) = self.links.of(id) else { return };
        if link.state != State::Up {
            return;
        }
        if link.broken {
            return self.kill(index);
        }
        let awaits_end = link.input.for_end;
        link.state = State::Closing(now + LINGER);
        link.input.discard();
        if awaits_end {
            self.sys.recall(index);
        }
        self.links.to_receive.push(index);
        self.links.closing.push(id);
        self.finish(now, index);
    }

    fn dial(&mut self, now: Time, seat: u32, dial: DialId, to: SocketAddr, port: Port) {
        let local = if self.local && port == Port::Ours {
            net::dial_local(to, S::NONBLOCKING)
        } else {
            None
        };
        if let Some(socket) = local {
            return self.ready.push_back((seat, Ready::Dialled(dial, port, socket)));
        }
        let socket = match net::dialing(to, S::NONBLOCKING) {
            Ok(socket) => socket,
            Err(e) => {
                if e.raw_os_error().is_some_and(net::is_exhausted) {
                    self.no_descriptors(now, seat);
                }
                let failed = Ready::DialFailed(dial, DialError::Unreachable);
                return self.ready.push_back((seat, failed));
            }
        };
        let fd = socket.as_raw_fd();
        let (until, address) = (now + DIAL_TIMEOUT, Pinned::new(to.into()));
        let entry = Dial { seat, dial, port, socket, address, until, abandoned: false };
        let index = self.dials.insert(entry);
        let Some(entry) = self.dials.get_mut(index) else { return };
        // Never fails: the epoll backend adds a dial only when it connects.
        let _ = self.sys.watch(Token::Connect(index), entry.socket.as_fd());
        // SAFETY: the address is pinned in its entry, which stays until the connect has completed.
        unsafe { self.sys.connect(index, fd, entry.address.as_ptr()) };
    }

    fn disk(&mut self, seat: u32, op: DiskOp, disk: DiskId, act: Act) {
        let Some(disk) = self.seats[seat as usize].disks.get_mut(disk.0 as usize) else {
            let none = Ready::DiskDone(op, Err(DiskError::OutOfRange));
            return self.ready.push_back((seat, none));
        };
        match disk::begin(disk, op, act, self.out.pool(), &mut self.zeros) {
            Begun::Ended(result) => self.ready.push_back((seat, Ready::DiskDone(op, result))),
            Begun::File(file) => self.files.add(&mut self.sys, seat, file, &mut self.ready),
        }
    }
}
