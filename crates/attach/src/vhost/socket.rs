//! Messages and file descriptors on a nonblocking unix socket.
//!
//! Invariant: a read never goes beyond one message, so the received file descriptors belong to that
//! message.

use anyhow::{Context, Result, bail, ensure};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use target::vhost::message::{BODY_MAX, REGIONS};
use target::vhost::{Head, Message};

/// The result of a check for a message.
#[derive(Debug)]
pub(crate) enum Received {
    /// A message, and its file descriptors.
    Message(Head, Message, Vec<OwnedFd>),
    /// No complete message yet.
    Nothing,
    /// The other side is gone.
    Closed,
}

/// A connected socket.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: OwnedFd,
    buffer: [u8; Head::LEN + BODY_MAX],
    have: usize,
    files: Vec<OwnedFd>,
}

impl Socket {
    pub(crate) fn new(stream: OwnedFd) -> Socket {
        Socket { stream, buffer: [0; Head::LEN + BODY_MAX], have: 0, files: Vec::new() }
    }

    /// Takes the next message.
    pub(crate) fn receive(&mut self) -> Result<Received> {
        loop {
            let head = self.buffer.first_chunk().filter(|_| self.have >= Head::LEN);
            let head = head.map(Head::parse).transpose().map_err(fault)?;
            let whole = Head::LEN + head.map_or(0, |head| head.len);
            if let Some(head) = head.filter(|_| self.have == whole) {
                self.have = 0;
                let files = std::mem::take(&mut self.files);
                let body = &self.buffer[Head::LEN..whole];
                let message = Message::parse(head.request, body, files.len()).map_err(fault)?;
                return Ok(Received::Message(head, message, files));
            }
            match self.fill(whole)? {
                None => return Ok(Received::Nothing),
                Some(0) => return Ok(Received::Closed),
                Some(_) => {}
            }
        }
    }

    /// Reads until the buffer has `until` bytes, or no more bytes are available. `None`: nothing
    /// was read.
    fn fill(&mut self, until: usize) -> Result<Option<usize>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(REGIONS))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut self.buffer[self.have..until])];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let got = match rustix::net::recvmsg(&self.stream, &mut parts, &mut beside, flags) {
            Ok(got) => got,
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => return Ok(Some(1)),
            Err(Errno::CONNRESET) => return Ok(Some(0)),
            Err(why) => return Err(why).context("can't read from the socket"),
        };
        for message in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                self.files.extend(files);
            }
        }
        let all = !got.flags.contains(ReturnFlags::CTRUNC) && self.files.len() <= REGIONS;
        ensure!(all, "more than {REGIONS} file descriptors with one message");
        self.have += got.bytes;
        Ok(Some(got.bytes))
    }

    /// Sends a message with a file descriptor.
    pub(crate) fn send(&self, bytes: &[u8], file: Option<BorrowedFd<'_>>) -> Result<()> {
        send(self.stream.as_fd(), bytes, file)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn fault(fault: target::vhost::Fault) -> anyhow::Error {
    anyhow::anyhow!("{fault}")
}

/// Sends a message at once, or fails: a peer that does not read its answers must not block us.
pub(crate) fn send(to: BorrowedFd<'_>, bytes: &[u8], file: Option<BorrowedFd<'_>>) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    let files = file.map(|file| [file]);
    if let Some(files) = &files {
        ensure!(beside.push(SendAncillaryMessage::ScmRights(files)), "no room for a descriptor");
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    loop {
        return match rustix::net::sendmsg(to, &[IoSlice::new(bytes)], &mut beside, flags) {
            Ok(len) if len == bytes.len() => Ok(()),
            Err(Errno::INTR) => continue,
            Ok(_) | Err(Errno::AGAIN) => bail!("it does not read its answers"),
            Err(why) => Err(why).context("can't write to the socket"),
        };
    }
}
