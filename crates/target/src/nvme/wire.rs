//! The outgoing PDUs of a queue, with their digests and the head of the submission queue.
//!
//! Invariants:
//! - Each of the two digests is used in both directions if the host asked for it in its ICReq
//!   (transport 3.3.2.2), and else in none.
//! - The head of the submission queue advances with each answer. So the host never has more
//!   commands outstanding than the queue has entries. Without flow control it does not advance
//!   (fabrics 2.4.1).
//! - No action follows [`Action::Close`].

use super::framer::Fault;
use super::proto::*;
use super::status::Status;
use crate::Action;
use alloc::vec::Vec;
use base::crc::crc32c;
use seam::{Buf, BufPool, Head};

/// The state of the connection of one queue.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    /// Heads have a digest.
    pub(crate) header_digest: bool,
    /// Data has a digest.
    pub(crate) data_digest: bool,
    /// The alignment of data for the host, in bytes.
    align: usize,
    /// Entries of the submission queue, and its head; `None` without flow control.
    pub(crate) flow: Option<(u16, u16)>,
    /// `Action::Close` was emitted.
    closed: bool,
}

impl Wire {
    /// Returns true after [`Action::Close`] was emitted.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Advances the head of the submission queue by one answer, and returns it.
    fn advance(&mut self) -> u16 {
        let Some((entries, head)) = &mut self.flow else { return u16::MAX };
        *head = if *head + 1 >= *entries { 0 } else { *head + 1 };
        *head
    }
}

/// What a session needs in one call.
pub(crate) struct Turn<'a> {
    /// Its connection.
    pub(crate) wire: &'a mut Wire,
    /// Memory for answers.
    pub(crate) pool: &'a BufPool,
    /// The actions for the owner.
    pub(crate) out: &'a mut Vec<Action>,
}

/// A PDU's header of `N` bytes, which is built in place.
struct Pdu<const N: usize> {
    bytes: [u8; N],
}

impl<const N: usize> Pdu<N> {
    #[inline]
    fn new(kind: u8, flags: u8) -> Pdu<N> {
        let mut pdu = Pdu { bytes: [0; N] };
        (pdu.bytes[0], pdu.bytes[1], pdu.bytes[2]) = (kind, flags, N as u8);
        pdu
    }

    #[inline]
    fn put(mut self, at: usize, bytes: &[u8]) -> Pdu<N> {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    fn u8(self, at: usize, value: u8) -> Pdu<N> {
        self.put(at, &[value])
    }

    fn u16(self, at: usize, value: u16) -> Pdu<N> {
        self.put(at, &value.to_le_bytes())
    }

    fn u32(self, at: usize, value: u32) -> Pdu<N> {
        self.put(at, &value.to_le_bytes())
    }

    /// Ends the header: `behind` bytes follow a head of `len` bytes.
    #[inline]
    fn head(mut self, digest: bool, len: usize, behind: usize) -> Head {
        self.bytes[1] |= if digest { HDGSTF } else { 0 };
        self.bytes[4..8].copy_from_slice(&((len + behind) as u32).to_le_bytes());
        let mut head = Head::new(&self.bytes);
        if digest {
            head.push(&crc32c(&self.bytes).to_le_bytes());
        }
        if head.len() < len {
            head.push(&[0; Head::MAX][..len - head.len()]);
        }
        head
    }
}

impl Turn<'_> {
    /// Asks the owner for something.
    #[inline]
    pub(crate) fn ask(&mut self, action: Action) {
        if !self.wire.closed {
            self.out.push(action);
        }
    }

    /// Closes the connection.
    pub(crate) fn close(&mut self, why: Option<&'static str>) {
        self.ask(Action::Close { why });
        self.wire.closed = true;
    }

    /// Tells the host why its PDU is refused, and closes the connection.
    pub(crate) fn terminate(&mut self, fault: Fault, head: &[u8], why: &'static str) {
        let quoted = &head[..head.len().min(QUOTED)];
        let pdu = Pdu::<SHORT>::new(C2H_TERM, 0).u16(8, fault.error).u32(10, fault.field);
        let body = self.pool.copy(quoted);
        self.ask(Action::Send { head: pdu.head(false, SHORT, quoted.len()), body });
        self.close(Some(why));
    }

    /// Returns the bytes of a short header with its digest.
    fn short(&self) -> usize {
        SHORT + if self.wire.header_digest { DIGEST } else { 0 }
    }

    #[inline]
    fn send_short(&mut self, pdu: Pdu<SHORT>) {
        let head = pdu.head(self.wire.header_digest, self.short(), 0);
        self.ask(Action::Send { head, body: Buf::EMPTY });
    }

    /// Accepts the connection with an ICResp: data for the host is aligned to `align` bytes.
    pub(crate) fn set_up(&mut self, digests: (bool, bool), align: usize, h2c: u32) {
        let flags = u8::from(digests.0) | u8::from(digests.1) << 1;
        let pdu = Pdu::<SETUP>::new(ICRESP, 0).u8(11, flags).u32(12, h2c);
        self.ask(Action::Send { head: pdu.head(false, SETUP, 0), body: Buf::EMPTY });
        let wire = &mut *self.wire;
        (wire.header_digest, wire.data_digest, wire.align) = (digests.0, digests.1, align);
    }

    /// Answers a command of a queue, with dwords 0 and 1 of the answer.
    #[inline]
    pub(crate) fn answer(&mut self, qid: u16, cid: u16, status: Status, result: u64) {
        let head = self.wire.advance();
        let pdu = Pdu::new(CAPSULE_RESP, 0).put(8, &result.to_le_bytes()).u16(16, head);
        self.send_short(pdu.u16(18, qid).u16(20, cid).u16(22, status.0 << 1));
    }

    /// Sends all data of a command. With `ends`, the data PDU also reports success, and no answer
    /// follows.
    #[inline]
    pub(crate) fn data(&mut self, cid: u16, body: Buf, ends: bool) {
        let digest = self.wire.data_digest;
        let flags = LAST | if digest { DDGSTF } else { 0 } | if ends { SUCCESS } else { 0 };
        let head = self.short().next_multiple_of(self.wire.align.max(1));
        let behind = body.len() + if digest { DIGEST } else { 0 };
        let pdu = Pdu::<SHORT>::new(C2H_DATA, flags).u8(3, head as u8).u16(8, cid);
        let head = pdu.u32(16, body.len() as u32).head(self.wire.header_digest, head, behind);
        let trailer = digest.then(|| Head::new(&crc32c(&body).to_le_bytes()));
        self.ask(Action::Send { head, body });
        if let Some(head) = trailer {
            self.ask(Action::Send { head, body: Buf::EMPTY });
        }
    }

    /// Asks for all data of a command.
    pub(crate) fn r2t(&mut self, cid: u16, ttag: u16, len: u32) {
        self.send_short(Pdu::new(R2T, 0).u16(8, cid).u16(10, ttag).u32(16, len));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_of_the_queue_runs_round() {
        let mut wire = Wire { flow: Some((3, 0)), ..Wire::default() };
        assert_eq!([(); 4].map(|()| wire.advance()), [1, 2, 0, 1]);
        wire.flow = None;
        assert_eq!(wire.advance(), 0xffff);
    }
}
