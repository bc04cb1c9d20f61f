//! Turns the kernel's completions into events and further work.

use super::{ACCEPT_PAUSE, Accepting, Ready, Shard};
use crate::clock;
use crate::dial;
use crate::link::{Link, State};
use crate::net;
use crate::sys::{Done, Sys, Token, recv_now};
use base::Time;
use rustix::net::{Shutdown, shutdown};
use seam::{DialError, DialId, DownReason, Event, Node, Note, Port};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

/// Receives from one socket before the others get their turn.
const RECEIVES: usize = 4;

impl<N: Node, S: Sys, T: FnMut(usize, Time, Note)> Shard<N, S, T> {
    pub(super) fn completed(&mut self, now: &mut Time, done: Done) {
        match done.token {
            Token::Recv(i) => self.readable(now, i, done.result),
            Token::Send(i) => self.sent(*now, i, done.result),
            Token::Accept(i) => self.accepted(*now, i, done),
            Token::Connect(i) => self.connected(*now, i, done.result),
            Token::Disk(i) => self.file_done(*now, i, done.result),
            // Another thread asks the shard to look at its stop flag.
            Token::Wake => self.waker.clear(),
            Token::Cancel => {}
        }
    }

    pub(super) fn new_link(
        &mut self,
        now: Time,
        seat: u32,
        socket: OwnedFd,
        port: Port,
        dial: Option<DialId>,
    ) {
        net::set_up(&socket);
        if dial.is_none() {
            self.make_room(now, seat, port);
        }
        let (link, index) = self.links.next();
        if self.sys.watch(Token::Recv(index), socket.as_fd()).is_err() {
            // The kernel has no memory for the socket: treat it as a connection that broke at once.
            if let Some(dial) = dial {
                let failed = Ready::DialFailed(dial, DialError::Unreachable);
                self.ready.push_back((seat, failed));
            }
            return;
        }
        let framer = self.seats[seat as usize].node.framer(port);
        let mut new = Link::new(link, seat, socket, framer);
        let (at, from) = if dial.is_none() { new.addresses() } else { (None, None) };
        if dial.is_none() {
            new = self.take_stranger(now, port, new);
            new.unread = self.seats[seat as usize].bound_unread(port);
        }
        self.links.table.insert(new);
        self.links.to_receive.push(index);
        self.deliver(now, seat, Event::LinkUp { link, port, dial, at, from });
    }

    fn accepted(&mut self, now: Time, i: u32, done: Done) {
        match done.result {
            fd if fd >= 0 => {
                self.accept(i);
                // SAFETY: the kernel has just created this descriptor for us.
                let socket = unsafe { OwnedFd::from_raw_fd(fd) };
                let Accepting { seat, port, .. } = self.listeners[i as usize];
                self.new_link(now, seat, socket, port, None);
            }
            // The other side gave up before the accept.
            e if [libc::ECONNABORTED, libc::EINTR, libc::EAGAIN, libc::EPROTO].contains(&-e) => {
                self.accept(i);
            }
            e if net::is_exhausted(-e) => {
                let pause = self.no_descriptors(now, self.listeners[i as usize].seat);
                self.listeners[i as usize].retry_at = Some(now + pause);
            }
            _ => self.listeners[i as usize].retry_at = Some(now + ACCEPT_PAUSE),
        }
    }

    fn connected(&mut self, now: Time, index: u32, result: i32) {
        let Some(entry) = self.dials.remove(index) else { return };
        if entry.abandoned {
            return;
        }
        self.sys.forget(Token::Connect(index), entry.socket.as_fd());
        match result {
            0 if net::is_own_echo(&entry.socket) => {
                let why = DialError::Refused;
                self.deliver(now, entry.seat, Event::DialFailed { dial: entry.dial, why });
            }
            0 => self.new_link(now, entry.seat, entry.socket, entry.port, Some(entry.dial)),
            e => {
                let why = dial::why(-e);
                self.deliver(now, entry.seat, Event::DialFailed { dial: entry.dial, why });
            }
        }
    }

    /// Fails a dial that takes too long.
    pub(super) fn check_dial(&mut self, now: Time, index: u32) {
        let Some(entry) = self.dials.get_mut(index) else { return };
        if entry.abandoned || entry.until > now {
            return;
        }
        entry.abandoned = true;
        let (seat, dial) = (entry.seat, entry.dial);
        if self.sys.forget(Token::Connect(index), entry.socket.as_fd()) {
            self.dials.remove(index);
        }
        self.ready.push_back((seat, Ready::DialFailed(dial, DialError::Unreachable)));
    }

    /// Handles a socket that has input, or has ended.
    fn readable(&mut self, now: &mut Time, index: u32, result: i32) {
        let Some(link) = self.links.get_mut(index) else { return };
        link.input.awaited = false;
        let for_end = std::mem::take(&mut link.input.for_end);
        if link.state == State::Dead {
            return self.free_link(index);
        }
        if link.wants_end() {
            // The other side is gone and waits for no answer, so the rest of its data is not read.
            return match for_end && result >= 0 {
                true if result & i32::from(libc::POLLHUP | libc::POLLERR) == 0 => {
                    self.down(index, DownReason::Closed)
                }
                true => self.down(index, DownReason::Broken),
                false => self.links.to_receive.push(index),
            };
        }
        for _ in 0..RECEIVES {
            if !self.receive(now, index) {
                return;
            }
        }
    }

    /// Receives once and delivers complete frames. Returns true when there may be more data.
    fn receive(&mut self, now: &mut Time, index: u32) -> bool {
        let Some(link) = self.links.get_mut(index) else { return false };
        if !link.wants_input() {
            return false;
        }
        let mut parts = link.input.prepare(self.out.pool());
        // SAFETY: the parts are the input's own memory, which nothing else accesses meanwhile.
        let result = unsafe { recv_now(link.fd(), &mut parts) };
        link.input.drained = result.is_none();
        *now = clock::now();
        match result {
            Some(n) if n > 0 => {
                let full = link.input.received(n as usize);
                link.input.drained = !full;
                if link.state == State::Up {
                    self.cut(*now, index);
                } else {
                    link.input.discard();
                    self.links.to_receive.push(index);
                }
                return full;
            }
            None => {
                link.input.rest();
                self.links.to_receive.push(index);
            }
            Some(e) => self.stream_ended(*now, index, e),
        }
        false
    }

    /// Handles the end of the input: the other side has closed (0), or an error.
    fn stream_ended(&mut self, now: Time, index: u32, result: i32) {
        let Some(link) = self.links.get_mut(index) else { return };
        let orderly = result == 0 && !link.broken;
        link.ended = Some(if orderly { DownReason::Closed } else { DownReason::Broken });
        match link.state {
            State::Up => self.cut(now, index),
            // The other side sends no more, but may still read what is queued.
            State::Closing(_) if result == 0 => {}
            _ => self.kill(index),
        }
    }

    /// Delivers the complete frames in the buffer; then the end of the stream, if it has ended.
    pub(super) fn cut(&mut self, now: Time, index: u32) {
        loop {
            let Some(link) = self.links.get_mut(index) else { return };
            if link.state != State::Up || link.rests() {
                return;
            }
            let most = link.stranger.map_or(u32::MAX as usize, |s| s.body);
            match link.input.cut(&mut link.framer, self.out.pool(), most) {
                Ok(Some((head, body))) => {
                    if let Some(stranger) = &mut link.stranger {
                        stranger.until = None;
                    }
                    let (link, seat) = (link.id, link.seat);
                    let head = head.as_slice();
                    self.had_frames = true;
                    self.deliver(now, seat, Event::Frame { link, head, body });
                }
                Ok(None) => match link.ended {
                    Some(why) => return self.down(index, why),
                    None => {
                        link.input.rest();
                        return self.links.to_receive.push(index);
                    }
                },
                Err(why) => {
                    let (note, seat) = (Note::Garbage { link: link.id, why }, link.seat);
                    (self.on_note)(seat as usize, now, note);
                    return self.down(index, DownReason::Garbage);
                }
            }
        }
    }

    fn sent(&mut self, now: Time, index: u32, result: i32) {
        let Some(link) = self.links.get_mut(index) else { return };
        link.output.in_flight = false;
        if link.state == State::Dead {
            return self.free_link(index);
        }
        if self.took(index, result) {
            // The send was partial, or more was queued meanwhile. The rest goes out with this
            // batch.
            self.links.list_send(index);
            self.finish(now, index);
        }
    }

    /// Accounts for a send's result. Returns false when the link is broken.
    fn took(&mut self, index: u32, result: i32) -> bool {
        let Some(link) = self.links.get_mut(index) else { return false };
        match result {
            n if n >= 0 => {
                link.output.sent(n as usize);
                if link.unread.is_some() {
                    self.was_taken(index, n as u64);
                }
            }
            e if [libc::EINTR, libc::EAGAIN, libc::ENOBUFS].contains(&-e) => {}
            _ => {
                self.send_failed(index);
                return false;
            }
        }
        true
    }

    /// Handles a failed send. The socket may still hold data that the other side sent before,
    /// perhaps an explanation: it is read before the link goes down.
    fn send_failed(&mut self, index: u32) {
        let Some(link) = self.links.get_mut(index) else { return };
        if link.state != State::Up || link.rests() {
            return self.down(index, DownReason::Broken);
        }
        link.broken = true;
        // Makes the end follow the data in the socket, reliably and at once.
        let _ = shutdown(&*link, Shutdown::Both);
        self.links.to_receive.push(index);
    }

    /// Sends on each link that has queued data.
    pub(super) fn start_sends(&mut self, now: Time) {
        let mut list = std::mem::take(&mut self.links.to_send);
        for index in list.drain(..) {
            if let Some(link) = self.links.get_mut(index) {
                link.output.listed = false;
            }
            self.start_send(now, index);
        }
        self.links.to_send = list;
    }

    fn start_send(&mut self, now: Time, index: u32) {
        loop {
            let Some(link) = self.links.get_mut(index) else { return };
            if link.state == State::Dead || link.broken || link.output.in_flight {
                return;
            }
            let fd = link.fd();
            let Some(message) = link.output.prepare() else { break };
            // SAFETY: the link stays in the table until the completion clears `in_flight`, and
            // `Output` does not touch the memory of the message meanwhile.
            match unsafe { self.sys.send(index, fd, message) } {
                Some(result) => {
                    if !self.took(index, result) {
                        return;
                    }
                }
                None => {
                    link.output.in_flight = true;
                    return;
                }
            }
        }
        self.finish(now, index);
    }

    /// Shuts down the sending direction of a closed link whose queue is empty.
    pub(super) fn finish(&mut self, now: Time, index: u32) {
        let Some(link) = self.links.get_mut(index) else { return };
        if !matches!(link.state, State::Closing(_)) || !link.output.is_empty() {
            return;
        }
        // If data from the other side was not read, closing at once would discard data in transit.
        // So wait up to [`LINGER`] for the other side to close first.
        link.state = State::Finished(now + super::LINGER);
        if link.ended.is_some() || shutdown(&*link, Shutdown::Write).is_err() {
            self.kill(index);
        }
    }

    pub(super) fn start_receives(&mut self) {
        let mut list = std::mem::take(&mut self.links.to_receive);
        for index in list.drain(..) {
            let Some(link) = self.links.get_mut(index) else { continue };
            if link.input.awaited {
                continue;
            }
            if link.wants_input() {
                link.input.awaited = true;
                self.sys.await_input(index, link.fd(), link.input.drained);
            } else if link.wants_end() {
                (link.input.awaited, link.input.for_end) = (true, true);
                self.sys.await_end(index, link.fd());
            }
        }
        self.links.to_receive = list;
    }

    /// Ends a link. The node gets a `LinkDown` unless it has closed the link itself.
    pub(super) fn down(&mut self, index: u32, why: DownReason) {
        let Some(link) = self.links.get_mut(index) else { return };
        if link.state == State::Up {
            self.ready.push_back((link.seat, Ready::LinkDown(link.id, why)));
            if why == DownReason::Stuck {
                net::reset_on_close(&*link);
            }
        }
        self.kill(index);
    }

    /// Ends a link as soon as the kernel is done with it. It produces no more events.
    pub(super) fn kill(&mut self, index: u32) {
        let Some(link) = self.links.get_mut(index) else { return };
        if link.state == State::Dead {
            return;
        }
        link.state = State::Dead;
        if let Some(unread) = link.unread {
            self.seats[link.seat as usize].unread[unread.port.index()] -= link.output.queued;
        }
        if !link.is_quiet() {
            // Makes pending operations complete, whatever they wait for.
            let _ = shutdown(&*link, Shutdown::Both);
        }
        if self.sys.forget(Token::Recv(index), link.as_fd()) {
            (link.input.awaited, link.output.in_flight) = (false, false);
        }
        self.free_link(index);
    }

    /// Closes a dead link's socket and frees its memory, if the kernel uses neither.
    fn free_link(&mut self, index: u32) {
        let quiet = |l: &mut Link<_>| l.state == State::Dead && l.is_quiet();
        if self.links.get_mut(index).is_some_and(quiet)
            && let Some(link) = self.links.table.remove(index)
            && let Some(stranger) = link.stranger
        {
            self.seats[link.seat as usize].stranger_left(stranger);
        }
    }

    /// Handles a completion of a file operation, which ends or continues.
    fn file_done(&mut self, now: Time, index: u32, result: i32) {
        let done = self.files.done(&mut self.sys, index, result, &mut self.ready);
        if let Some((seat, file, result)) = done {
            self.deliver(now, seat, Event::DiskDone { op: file.op, result });
        }
    }
}

/// Closes a connection that was accepted too late.
pub(super) fn close_accepted(done: Done) {
    if let (Token::Accept(_), fd @ 0..) = (done.token, done.result) {
        // SAFETY: the kernel has just created this descriptor for us.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
    }
}
