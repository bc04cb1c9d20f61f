//! Operations of clients, and their answers.

use super::Malformed;
use super::layout::{Part, UnitRange, message, part};
use crate::header::{Header, Kind, Status};
use base::{DeviceId, Epoch, GroupId, MapVersion};
use seam::{Buf, BufPool, ClientWrite};

part! {
    /// The fields of every operation of a client.
    Request {
        /// The client's id for the operation. The answer carries the same.
        op: u64, @ 24;
        /// The group of the range.
        group: GroupId, @ 32;
        /// The group's epoch as the client knows it (rule R2).
        epoch: Epoch, @ 40;
        /// The range.
        range: UnitRange;
        /// The client, and its number for the operation. A server takes the client and its
        /// incarnation from the session, whatever is here.
        client: ClientWrite;
        /// The version of the client's map.
        map: MapVersion, @ 104;
        /// The generation of the volume's mapping that the request was sent under (rule R8).
        generation: u32, @ 120;
    }
}

message! {
    /// Client to primary: read the range.
    Read {
        /// The operation.
        request: Request;
    }
    flags {
        /// A server may have received this number before.
        retry: 4;
    }
    body: NONE
}

message! {
    /// Client to primary: write the body.
    Write {
        /// The operation.
        request: Request;
    }
    flags {
        /// A server may have received this number before.
        retry: 4;
    }
    body: SUMMED
}

message! {
    /// Client to primary: zero the range.
    Zero {
        /// The operation.
        request: Request;
    }
    flags {
        /// The space may be freed.
        hole: 1;
        /// A server may have received this number before.
        retry: 4;
    }
    body: NONE
}

message! {
    /// Client to primary: which blocks of the range hold data? The body of the answer has one bit
    /// per touched block.
    Extents {
        /// The operation.
        request: Request;
    }
    flags {
        /// A server may have received this number before.
        retry: 4;
    }
    body: NONE
}

message! {
    /// Client to primary: compare the range with the first half of the body, and write the second
    /// half if they are equal, both as one step (rule R17). The body has twice the length of the
    /// range, which lies in one block of 4 KiB.
    CompareWrite {
        /// The operation.
        request: Request;
    }
    flags {
        /// A server may have received this number before.
        retry: 4;
    }
    body: SUMMED
}

message! {
    /// Primary to client: the answer to an operation. With `Ok` the body has the data of a read, or
    /// the bits of `Extents`; with `Miscompare` the place of the first byte that differs, counted
    /// from the start of the range, as 4 bytes ([`Reply::miscompare_body`]).
    Reply {
        /// The result.
        status: Status, @ 20;
        /// The client's id for the operation.
        op: u64, @ 24;
        /// The group of the range.
        group: GroupId, @ 32;
        /// With `Stale`: the group's epoch as the server knows it; 0 if it knows none.
        epoch: Epoch, @ 40;
        /// With `Stale`: the device that leads in this epoch.
        leader: Option<DeviceId>, @ 88;
        /// The version of the server's map.
        map: MapVersion, @ 104;
    }
    flags {
        /// With `Full`: a part of the write is in the content already.
        part_done: 1;
    }
    body: DATA
}

impl Reply {
    /// Creates an answer without anything that only some results say.
    #[inline]
    pub fn new(op: u64, group: GroupId, status: Status, map: MapVersion) -> Reply {
        let (epoch, leader) = (Epoch(0), None);
        Reply { status, op, group, epoch, leader, map, part_done: false }
    }

    /// Returns the body of an answer with `Miscompare`: the byte at this offset is the first one
    /// that differs.
    pub fn miscompare_body(at: u32, pool: &BufPool) -> Buf {
        pool.copy(&at.to_le_bytes())
    }

    /// Returns the offset that such a body names; `None` if it has another length.
    pub fn miscompared_at(body: &[u8]) -> Option<u32> {
        body.try_into().map(u32::from_le_bytes).ok()
    }
}

/// An operation of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Io {
    /// Read.
    Read(Read),
    /// Write.
    Write(Write),
    /// Zero.
    Zero(Zero),
    /// Say which blocks hold data.
    Extents(Extents),
    /// Compare, and write.
    CompareWrite(CompareWrite),
}

impl Io {
    /// Returns what all operations have in common.
    #[inline]
    pub fn request(&self) -> &Request {
        match self {
            Io::Read(m) => &m.request,
            Io::Write(m) => &m.request,
            Io::Zero(m) => &m.request,
            Io::Extents(m) => &m.request,
            Io::CompareWrite(m) => &m.request,
        }
    }

    /// Returns what all operations have in common.
    #[inline]
    pub fn request_mut(&mut self) -> &mut Request {
        match self {
            Io::Read(m) => &mut m.request,
            Io::Write(m) => &mut m.request,
            Io::Zero(m) => &mut m.request,
            Io::Extents(m) => &mut m.request,
            Io::CompareWrite(m) => &mut m.request,
        }
    }

    /// Returns true if a server may have received the operation's number before.
    #[inline]
    pub fn is_retry(&self) -> bool {
        match self {
            Io::Read(m) => m.retry,
            Io::Write(m) => m.retry,
            Io::Zero(m) => m.retry,
            Io::Extents(m) => m.retry,
            Io::CompareWrite(m) => m.retry,
        }
    }

    /// Returns true if the operation changes the volume.
    #[inline]
    pub fn writes(&self) -> bool {
        matches!(self, Io::Write(_) | Io::Zero(_) | Io::CompareWrite(_))
    }

    /// Returns the length of the body that the operation has.
    #[inline]
    pub fn body_len(&self) -> usize {
        match self {
            Io::Write(m) => m.request.range.len as usize,
            Io::CompareWrite(m) => 2 * m.request.range.len as usize,
            Io::Read(_) | Io::Zero(_) | Io::Extents(_) => 0,
        }
    }

    /// Returns the operation of a frame; `None` if the frame is of another kind.
    #[inline]
    pub fn of(header: &Header) -> Option<Result<Io, Malformed>> {
        Some(match header.kind()? {
            Kind::Read => Read::try_from(header).map(Io::Read),
            Kind::Write => Write::try_from(header).map(Io::Write),
            Kind::Zero => Zero::try_from(header).map(Io::Zero),
            Kind::Extents => Extents::try_from(header).map(Io::Extents),
            Kind::CompareWrite => CompareWrite::try_from(header).map(Io::CompareWrite),
            _ => return None,
        })
    }
}

impl From<&Io> for Header {
    #[inline(always)]
    fn from(io: &Io) -> Header {
        // Each kind's own `into_header` would write a request four times on the data path.
        let (kind, flags) = match io {
            Io::Read(m) => (Kind::Read, m.flags()),
            Io::Write(m) => (Kind::Write, m.flags()),
            Io::Zero(m) => (Kind::Zero, m.flags()),
            Io::Extents(m) => (Kind::Extents, m.flags()),
            Io::CompareWrite(m) => (Kind::CompareWrite, m.flags()),
        };
        let mut header = Header::new(kind);
        header.flags = flags;
        io.request().put(&mut header);
        header
    }
}
