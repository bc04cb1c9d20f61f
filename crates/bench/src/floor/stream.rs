//! One connection of the floor: batches in, batches out, nothing in between.
//!
//! Payloads are taken out of the process's single receive buffer as they arrive, in pieces, and
//! copied into the store or discarded. So no connection has its own buffer, and received data is
//! still in the cache.

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::TcpStream;

/// Length of a head: the same as Gabion's.
pub(crate) const HEAD: usize = 128;
/// Heads and payloads per system call.
const GATHER: usize = 512;

/// The list of parts of the last system call, kept only to reuse its memory.
#[derive(Default)]
pub(crate) struct Gather(Vec<IoSlice<'static>>);

impl Gather {
    /// Returns an empty list whose elements may have a shorter lifetime.
    fn take<'a>(&mut self) -> Vec<IoSlice<'a>> {
        std::mem::take(&mut self.0)
    }

    /// Keeps the list's memory: collecting an empty list into a type of the same layout does not
    /// allocate.
    fn keep(&mut self, mut parts: Vec<IoSlice<'_>>) {
        parts.clear();
        self.0 = parts.into_iter().map(|_| IoSlice::new(&[])).collect();
    }
}

/// A frame's head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    /// Type of the frame.
    pub kind: u32,
    /// Length of its payload.
    pub len: u32,
    /// Request that it belongs to.
    pub slot: u32,
    /// Server that forwarded it.
    pub from: u32,
    /// Client's connection to that server.
    pub connection: u32,
}

impl Head {
    fn bytes(self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        let fields = [self.kind, self.len, self.slot, self.from, self.connection];
        for (place, n) in bytes.chunks_exact_mut(4).zip(fields) {
            place.copy_from_slice(&n.to_le_bytes());
        }
        bytes
    }

    fn read(bytes: &[u8]) -> Head {
        let n = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        Head { kind: n(0), len: n(4), slot: n(8), from: n(12), connection: n(16) }
    }
}

struct Frame {
    head: [u8; HEAD],
    /// Offset of the payload in the store.
    at: usize,
    len: usize,
}

/// The frame being received.
struct Incoming {
    head: [u8; HEAD],
    /// Bytes of the head that have arrived.
    have: usize,
    /// Once the head is complete: the head, the missing bytes of payload, and its offset in the
    /// store.
    body: Option<(Head, usize, Option<usize>)>,
}

/// A connection.
pub(crate) struct Stream {
    pub socket: TcpStream,
    /// The server in this process that it belongs to.
    pub owner: u32,
    incoming: Incoming,
    queue: VecDeque<Frame>,
    /// Bytes of the first frame that are already sent.
    sent: usize,
    /// Frames were queued since the last flush.
    pub dirty: bool,
}

impl Stream {
    /// Takes a connected socket.
    pub(crate) fn new(socket: TcpStream, owner: u32) -> std::io::Result<Stream> {
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        Ok(Stream {
            socket,
            owner,
            incoming: Incoming { head: [0; HEAD], have: 0, body: None },
            queue: VecDeque::new(),
            sent: 0,
            dirty: false,
        })
    }

    /// Queues a frame. Its payload is `store[at..at + head.len]` at the time of sending.
    pub(crate) fn push(&mut self, head: Head, at: usize) {
        self.queue.push_back(Frame { head: head.bytes(), at, len: head.len as usize });
    }

    /// Returns the number of unsent frames.
    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Sends what the socket takes. Returns false when something is left.
    pub(crate) fn flush(&mut self, store: &[u8], gather: &mut Gather) -> Result<bool, Errno> {
        while !self.queue.is_empty() {
            let mut parts = gather.take();
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
            let sent = sendmsg(&self.socket, &parts, &mut none, SendFlags::NOSIGNAL);
            gather.keep(parts);
            match sent {
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

    /// Takes the next frame out of received data; `None` when the rest of it has not arrived.
    /// `place` returns the payload's offset in the store, if the payload is kept.
    pub(crate) fn next(
        &mut self,
        input: &mut &[u8],
        store: &mut [u8],
        place: impl FnOnce(&Head) -> Option<usize>,
    ) -> Option<(Head, usize)> {
        let frame = &mut self.incoming;
        let (head, missing, to) = match frame.body.take() {
            Some(body) => body,
            None => {
                let n = input.len().min(HEAD - frame.have);
                frame.head[frame.have..frame.have + n].copy_from_slice(&input[..n]);
                *input = &input[n..];
                frame.have += n;
                if frame.have < HEAD {
                    return None;
                }
                frame.have = 0;
                let head = Head::read(&frame.head);
                (head, head.len as usize, place(&head))
            }
        };
        let n = input.len().min(missing);
        if let Some(at) = to {
            let from = at + head.len as usize - missing;
            store[from..from + n].copy_from_slice(&input[..n]);
        }
        *input = &input[n..];
        if n < missing {
            frame.body = Some((head, missing - n, to));
            return None;
        }
        Some((head, to.unwrap_or(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn frames_arrive_whole_however_they_are_cut() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut stream = Stream::new(socket, 0).unwrap();
        let head = |kind, len| Head { kind, len, slot: 9, from: 1, connection: 2 };
        let mut bytes = head(1, 5).bytes().to_vec();
        bytes.extend(b"hello");
        bytes.extend(head(2, 0).bytes());
        for cut in 1..bytes.len() {
            let (mut store, mut seen) = ([0; 16], Vec::new());
            for mut part in bytes.chunks(cut) {
                while let Some(frame) = stream.next(&mut part, &mut store, |_| Some(3)) {
                    seen.push(frame);
                }
            }
            assert_eq!(seen, [(head(1, 5), 3), (head(2, 0), 3)], "in pieces of {cut}");
            assert_eq!(&store[3..8], b"hello");
        }
    }
}
