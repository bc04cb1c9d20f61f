//! One connection of the floor: batches in, batches out, nothing in between.

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::TcpStream;

/// As long as Gabion's own.
pub const HEAD: usize = 128;
const INPUT: usize = 1 << 20;
/// Heads and payloads that one system call takes.
const GATHER: usize = 512;

/// A frame's head: what it is, how long its payload is, which request it belongs to, who began it.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    pub kind: u32,
    pub len: u32,
    pub slot: u32,
    pub from: u32,
}

impl Head {
    fn bytes(self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        for (place, n) in bytes.chunks_exact_mut(4).zip([self.kind, self.len, self.slot, self.from])
        {
            place.copy_from_slice(&n.to_le_bytes());
        }
        bytes
    }

    fn read(bytes: &[u8]) -> Head {
        let n = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        Head { kind: n(0), len: n(4), slot: n(8), from: n(12) }
    }
}

struct Frame {
    head: [u8; HEAD],
    /// Where the payload lies in the store.
    at: usize,
    len: usize,
}

/// A connection.
pub struct Stream {
    pub socket: TcpStream,
    input: Vec<u8>,
    start: usize,
    end: usize,
    queue: VecDeque<Frame>,
    /// Bytes of the first frame that are out already.
    sent: usize,
    /// Queued since the last flush.
    pub dirty: bool,
}

impl Stream {
    /// Takes over a connected socket; payloads are `block` bytes at most.
    pub fn new(socket: TcpStream, block: usize) -> std::io::Result<Stream> {
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        Ok(Stream {
            socket,
            input: vec![0; INPUT + 4 * block],
            start: 0,
            end: 0,
            queue: VecDeque::new(),
            sent: 0,
            dirty: false,
        })
    }

    /// Queues a frame whose payload is `store[at..at + head.len]` when it is sent.
    pub fn push(&mut self, head: Head, at: usize) {
        self.queue.push_back(Frame { head: head.bytes(), at, len: head.len as usize });
    }

    /// Sends what the socket takes; false when something is left.
    pub fn flush(&mut self, store: &[u8]) -> Result<bool, Errno> {
        while !self.queue.is_empty() {
            let mut parts = Vec::with_capacity(GATHER);
            let mut skip = self.sent;
            for frame in self.queue.iter().take(GATHER / 2) {
                for part in [&frame.head[..], &store[frame.at..frame.at + frame.len]] {
                    let rest = &part[skip.min(part.len())..];
                    skip -= part.len() - rest.len();
                    if !rest.is_empty() {
                        parts.push(IoSlice::new(rest));
                    }
                }
            }
            let mut none = SendAncillaryBuffer::default();
            match sendmsg(&self.socket, &parts, &mut none, SendFlags::NOSIGNAL) {
                Ok(n) => self.took(n),
                Err(Errno::AGAIN) => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    fn took(&mut self, n: usize) {
        self.sent += n;
        while let Some(len) = self.queue.front().map(|f| HEAD + f.len).filter(|l| *l <= self.sent) {
            self.sent -= len;
            self.queue.pop_front();
        }
    }

    /// Receives once; false when the other side is gone.
    pub fn fill(&mut self) -> Result<bool, Errno> {
        match recv(&self.socket, &mut self.input[self.end..], RecvFlags::empty()) {
            Ok((_, 0)) => Ok(false),
            Ok((_, n)) => {
                self.end += n;
                Ok(true)
            }
            Err(Errno::AGAIN) => Ok(true),
            Err(e) => Err(e),
        }
    }

    /// Hands the input out, so that whole frames can be taken from it while others are queued.
    pub fn take_input(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.input)
    }

    /// The next whole frame of the input that was taken: its head, and where its payload lies.
    pub fn next(&mut self, input: &[u8]) -> Option<(Head, std::ops::Range<usize>)> {
        let there = self.end - self.start;
        if there < HEAD {
            return None;
        }
        let head = Head::read(&input[self.start..]);
        let whole = HEAD + head.len as usize;
        if there < whole {
            return None;
        }
        let payload = self.start + HEAD..self.start + whole;
        self.start += whole;
        Some((head, payload))
    }

    /// Gives the input back.
    pub fn return_input(&mut self, mut input: Vec<u8>) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > INPUT / 2 {
            input.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        self.input = input;
    }
}
