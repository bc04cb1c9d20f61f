//! The messages between the kernel and a FUSE file system, as far as a folder of volumes needs
//! them. Source: the kernel's `include/uapi/linux/fuse.h`, version 7.31 (Linux 5.4) and later.
//!
//! A request is a head of 40 bytes and arguments; a reply is a head of 16 bytes and a body. All
//! numbers have the machine's byte order. This module does no I/O.
//!
//! Invariant: no read leaves the message, whatever its length fields say.

/// Bytes of a request's head.
const HEAD: usize = 40;
/// Bytes of a write's arguments, which its data follows.
const WRITE_ARGS: usize = 40;
/// Bytes before the data of a write: the longest head of any request that has a long body.
pub(crate) const BEFORE_DATA: usize = HEAD + WRITE_ARGS;
/// Bytes of a reply's head.
pub(crate) const REPLY_HEAD: usize = 16;

/// The version of the interface that this file speaks.
const MAJOR: u32 = 7;
const MINOR: u32 = 31;

/// The kernel may have several reads of one file under way.
const ASYNC_READ: u32 = 1;
/// Writes may be longer than a page.
const BIG_WRITES: u32 = 1 << 5;
/// The kernel passes on asynchronous direct I/O without waiting for each request.
const ASYNC_DIO: u32 = 1 << 15;
/// The kernel uses the limit in [`Start::pages`]. Its own limit is 256.
const MAX_PAGES: u32 = 1 << 22;

/// The page cache is not used.
const FOPEN_DIRECT_IO: u32 = 1;
/// The kernel passes on writes to one file side by side.
const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

/// A change of attributes includes the size.
const FATTR_SIZE: u32 = 1 << 3;
/// The mode bits of a folder and of a file.
const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
/// Their types in the list of a folder.
const DT_FOLDER: u32 = 4;
const DT_FILE: u32 = 8;

/// Keep the size of the file (`fallocate(2)`).
const KEEP_SIZE: u32 = 1;
/// Free a range, which then reads as zeros.
const PUNCH_HOLE: u32 = 2;
/// Make a range read as zeros.
const ZERO_RANGE: u32 = 0x10;

/// The folder's inode.
pub(crate) const ROOT: u64 = 1;

/// How the kernel is to use this file system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    /// Longest read and write, in bytes.
    pub(crate) transfer: u32,
    /// Requests that the kernel passes on without a program that waits for them.
    pub(crate) background: u16,
}

impl Start {
    /// Pages of 4 KiB that the memory of one read or write may touch. Twice as many as it needs: a
    /// buffer may begin within a page, and the kernel cuts a request where it would touch too many,
    /// even within a sector.
    fn pages(self) -> u16 {
        (self.transfer / 4096 * 2) as u16
    }
}

/// What to do with a range of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Allocate {
    /// Make it read as zeros; with `hole`, its space is freed.
    Zero {
        /// Free the space.
        hole: bool,
    },
    /// An operation that volumes do not support.
    Other,
}

/// What a search in a file looks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wanted {
    /// The first byte that holds data.
    Data,
    /// The first byte that holds none.
    Hole,
}

/// What the kernel asks for. Offsets and lengths are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Call<'a> {
    /// The first request.
    Init { major: u32, minor: u32, flags: u32 },
    /// Find a file of the folder by its name.
    Lookup { name: &'a [u8] },
    /// The attributes of a file.
    Attributes,
    /// Change attributes; the new size, if that is among them.
    SetAttributes { size: Option<u64> },
    /// Open a file.
    Open { writes: bool },
    /// Close a file, once for each time that it was opened.
    Close,
    /// Read.
    Read { handle: u64, at: u64, len: u32 },
    /// Write.
    Write { handle: u64, at: u64, data: &'a [u8] },
    /// Zero or free a range.
    Allocate { handle: u64, at: u64, len: u64, how: Allocate },
    /// Search for data or a hole.
    Seek { handle: u64, at: u64, wanted: Wanted },
    /// Figures of the file system.
    Figures,
    /// Open the folder.
    OpenFolder,
    /// List the folder, from entry `from` on, in `len` bytes.
    List { from: u64, len: u32 },
    /// A request that needs no work: the answer is success.
    Nothing,
    /// A request without an answer.
    Silent,
    /// A request that would change the folder.
    Change,
    /// A request that a folder of volumes does not support.
    Unknown,
}

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Request<'a> {
    /// Its number, which the reply repeats.
    pub(crate) unique: u64,
    /// The inode that it is about.
    pub(crate) node: u64,
    /// What is asked for.
    pub(crate) call: Call<'a>,
}

/// Reads numbers from a message, one after the other. Beyond its end there are zeros, and
/// [`Fields::short`] says so.
struct Fields<'a> {
    rest: &'a [u8],
    short: bool,
}

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        match self.rest.split_first_chunk() {
            Some((taken, rest)) => {
                self.rest = rest;
                *taken
            }
            None => {
                self.short = true;
                [0; N]
            }
        }
    }

    fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.take())
    }

    /// The bytes up to the first zero.
    fn name(&mut self) -> &'a [u8] {
        let end = self.rest.iter().position(|b| *b == 0);
        self.short |= end.is_none();
        &self.rest[..end.unwrap_or(0)]
    }

    /// The next bytes.
    fn bytes(&mut self, len: u32) -> &'a [u8] {
        self.short |= self.rest.len() < len as usize;
        self.rest.get(..len as usize).unwrap_or_default()
    }
}

impl<'a> Request<'a> {
    /// Reads a request. `None`: the message is too short for its kind, which no kernel sends.
    pub(crate) fn parse(message: &'a [u8]) -> Option<Request<'a>> {
        let mut f = Fields { rest: message, short: false };
        let (_len, code, unique, node) = (f.u32(), f.u32(), f.u64(), f.u64());
        f.take::<16>(); // who asks
        let call = call(code, &mut f);
        (!f.short).then_some(Request { unique, node, call })
    }
}

// Long: one row per kind of request, as in the kernel's list of opcodes.
fn call<'a>(code: u32, f: &mut Fields<'a>) -> Call<'a> {
    match code {
        1 => Call::Lookup { name: f.name() },
        // FORGET, BATCH_FORGET: the numbers of inodes are those of volumes, so none is counted.
        2 | 42 => Call::Silent,
        3 => Call::Attributes,
        4 => {
            let (valid, _, _, size) = (f.u32(), f.u32(), f.u64(), f.u64());
            Call::SetAttributes { size: (valid & FATTR_SIZE != 0).then_some(size) }
        }
        // SYMLINK, MKNOD, MKDIR, UNLINK, RMDIR, RENAME, LINK, RENAME2: `gabion volume` does that.
        6 | 8..=13 | 45 => Call::Change,
        14 => Call::Open { writes: f.u32() & 3 != 0 },
        15 => {
            let (handle, at, len) = (f.u64(), f.u64(), f.u32());
            Call::Read { handle, at, len }
        }
        16 => {
            let (handle, at, len) = (f.u64(), f.u64(), f.u32());
            f.take::<20>(); // flags, the owner of a lock
            Call::Write { handle, at, data: f.bytes(len) }
        }
        17 => Call::Figures,
        18 => Call::Close,
        // RELEASEDIR, DESTROY.
        29 | 38 => Call::Nothing,
        26 => Call::Init { major: f.u32(), minor: f.u32(), flags: (f.u32(), f.u32()).1 },
        27 => Call::OpenFolder,
        28 => {
            let (_, from, len) = (f.u64(), f.u64(), f.u32());
            Call::List { from, len }
        }
        43 => {
            let (handle, at, len, mode) = (f.u64(), f.u64(), f.u64(), f.u32());
            let how = match mode {
                m if m == PUNCH_HOLE | KEEP_SIZE => Allocate::Zero { hole: true },
                m if m & !KEEP_SIZE == ZERO_RANGE => Allocate::Zero { hole: false },
                _ => Allocate::Other,
            };
            Call::Allocate { handle, at, len, how }
        }
        46 => {
            let (handle, at, whence) = (f.u64(), f.u64(), f.u32());
            match whence {
                3 => Call::Seek { handle, at, wanted: Wanted::Data },
                4 => Call::Seek { handle, at, wanted: Wanted::Hole },
                _ => Call::Unknown,
            }
        }
        // FSYNC and FLUSH are among these. After this answer the kernel sends no more of them, and
        // treats them as done. That is right: an answered write is durable (rule R7).
        _ => Call::Unknown,
    }
}

/// The attributes of a file or of the folder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Attributes {
    /// Its inode.
    pub(crate) node: u64,
    /// Bytes; 0 for the folder.
    pub(crate) size: u64,
    /// The permission bits.
    pub(crate) permissions: u32,
}

/// The body of a reply other than data.
#[derive(Clone, Debug, Default)]
pub(crate) struct Body(Vec<u8>);

impl Body {
    /// Creates an empty one.
    pub(crate) fn new() -> Body {
        Body::default()
    }

    /// Returns its bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn u16(mut self, value: u16) -> Body {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn u32(mut self, value: u32) -> Body {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Body {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn zeros(mut self, count: usize) -> Body {
        self.0.resize(self.0.len() + count, 0);
        self
    }

    fn attributes(self, of: Attributes) -> Body {
        let kind = if of.node == ROOT { FOLDER } else { FILE };
        let links = if of.node == ROOT { 2 } else { 1 };
        let body = self.u64(of.node).u64(of.size).u64(of.size / 512);
        let body = body.zeros(3 * 8 + 3 * 4); // times
        body.u32(kind | of.permissions).u32(links).zeros(3 * 4).u32(4096).zeros(4)
    }

    /// Answers the first request.
    pub(crate) fn of_init(start: Start, kernel: u32) -> Body {
        let flags = ASYNC_READ | BIG_WRITES | ASYNC_DIO | MAX_PAGES;
        let body = Body::new().u32(MAJOR).u32(MINOR).u32(start.transfer).u32(flags & kernel);
        let body = body.u16(start.background).u16(start.background / 4 * 3).u32(start.transfer);
        body.u32(1).u16(start.pages()).u16(0).zeros(8 * 4)
    }

    /// Answers a search by name. The kernel asks again next time: names and sizes may change.
    pub(crate) fn of_lookup(found: Attributes) -> Body {
        Body::new().u64(found.node).zeros(4 * 8).attributes(found)
    }

    /// Answers a question for attributes.
    pub(crate) fn of_attributes(found: Attributes) -> Body {
        Body::new().zeros(2 * 8).attributes(found)
    }

    /// Answers the opening of a file.
    pub(crate) fn of_open(handle: u64) -> Body {
        Body::new().u64(handle).u32(FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES).u32(0)
    }

    /// Answers the opening of the folder.
    pub(crate) fn of_open_folder() -> Body {
        Body::new().zeros(16)
    }

    /// Answers a search in a file.
    pub(crate) fn of_seek(at: u64) -> Body {
        Body::new().u64(at)
    }

    /// Answers a question for figures: blocks of 4 KiB in all volumes. The block size is what the
    /// kernel's loop driver takes for the granularity of discards.
    pub(crate) fn of_figures(blocks: u64, files: u64) -> Body {
        let body = Body::new().u64(blocks).zeros(2 * 8).u64(files).zeros(8);
        body.u32(4096).u32(255).u32(4096).zeros(7 * 4)
    }

    /// Adds an entry to the list of the folder, if it fits into `most` bytes. `next` is the number
    /// of the entry after it.
    pub(crate) fn entry(&mut self, most: u32, next: u64, node: u64, name: &[u8]) -> bool {
        let len = (24 + name.len()).next_multiple_of(8);
        if self.0.len() + len > most as usize {
            return false;
        }
        let kind = if node == ROOT { DT_FOLDER } else { DT_FILE };
        let end = self.0.len() + len;
        let mut body = std::mem::take(self).u64(node).u64(next).u32(name.len() as u32).u32(kind);
        body.0.extend(name);
        body.0.resize(end, 0);
        *self = body;
        true
    }
}

/// Returns the head of a reply with a body of this length. `error`: an errno, or 0.
pub(crate) fn reply_head(unique: u64, error: i32, len: usize) -> [u8; REPLY_HEAD] {
    assert!(error >= 0 && (error == 0 || len == 0), "an error has no body");
    let mut head = [0; REPLY_HEAD];
    head[..4].copy_from_slice(&((REPLY_HEAD + len) as u32).to_ne_bytes());
    head[4..8].copy_from_slice(&(-error).to_ne_bytes());
    head[8..].copy_from_slice(&unique.to_ne_bytes());
    head
}

/// Answers a write of this many bytes. Allocates nothing, because every write needs this.
pub(crate) fn written(len: u32) -> [u8; 8] {
    let mut body = [0; 8];
    body[..4].copy_from_slice(&len.to_ne_bytes());
    body
}

/// Returns true if the kernel speaks a version that this file understands.
pub(crate) fn understands(major: u32, minor: u32) -> bool {
    major == MAJOR && minor >= MINOR
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request as the kernel writes it.
    fn message(code: u32, node: u64, args: &[u8]) -> Vec<u8> {
        let mut bytes = ((HEAD + args.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend(code.to_ne_bytes());
        bytes.extend(77u64.to_ne_bytes());
        bytes.extend(node.to_ne_bytes());
        bytes.resize(HEAD, 9);
        bytes.extend(args);
        bytes
    }

    fn numbers(of: &[u64]) -> Vec<u8> {
        of.iter().flat_map(|n| n.to_ne_bytes()).collect()
    }

    #[test]
    fn requests_are_read_as_the_kernel_writes_them() {
        let read = message(15, 5, &numbers(&[3, 8192, 4096, 0, 0]));
        let call = Call::Read { handle: 3, at: 8192, len: 4096 };
        assert_eq!(Request::parse(&read), Some(Request { unique: 77, node: 5, call }));
        let mut args = numbers(&[3, 512, 6, 0, 0]);
        args.extend(b"gabion");
        let call = Call::Write { handle: 3, at: 512, data: b"gabion" };
        assert_eq!(Request::parse(&message(16, 5, &args)).unwrap().call, call);
        assert_eq!(message(16, 5, &args).len() - 6, BEFORE_DATA);
        let lookup = message(1, ROOT, b"vol1\0");
        assert_eq!(Request::parse(&lookup).unwrap().call, Call::Lookup { name: b"vol1" });
        let seek = message(46, 5, &numbers(&[3, 0, 4]));
        let call = Call::Seek { handle: 3, at: 0, wanted: Wanted::Hole };
        assert_eq!(Request::parse(&seek).unwrap().call, call);
    }

    #[test]
    fn only_what_keeps_the_size_zeroes_a_range() {
        let how = |mode: u64| {
            let bytes = message(43, 5, &numbers(&[3, 0, 4096, mode]));
            match Request::parse(&bytes).unwrap().call {
                Call::Allocate { how, .. } => how,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(how(3), Allocate::Zero { hole: true });
        assert_eq!([how(0x10), how(0x11)], [Allocate::Zero { hole: false }; 2]);
        assert_eq!([how(0), how(1), how(2), how(0x20)], [Allocate::Other; 4]);
    }

    #[test]
    fn a_message_that_is_cut_off_is_nothing() {
        let mut args = numbers(&[3, 512, 6, 0, 0]);
        args.extend(b"gabion");
        let whole = message(16, 5, &args);
        for len in 0..whole.len() {
            assert_eq!(Request::parse(&whole[..len]), None, "{len}");
        }
        assert_eq!(Request::parse(&message(1, ROOT, b"vol1")), None, "a name has an end");
    }

    #[test]
    fn replies_have_the_lengths_that_the_kernel_expects() {
        let found = Attributes { node: 5, size: 1 << 20, permissions: 0o600 };
        let start = Start { transfer: 1 << 19, background: 64 };
        for (body, len) in [
            (Body::of_init(start, u32::MAX), 64),
            (Body::of_lookup(found), 128),
            (Body::of_attributes(found), 104),
            (Body::of_open(1), 16),
            (Body::of_open_folder(), 16),
            (Body::of_seek(1), 8),
            (Body::of_figures(1, 1), 80),
        ] {
            assert_eq!(body.bytes().len(), len);
        }
        let mut list = Body::new();
        assert!(list.entry(100, 1, 5, b"vol1") && list.entry(100, 2, 6, b"vol22"));
        assert_eq!(list.bytes().len(), 64, "entries begin at multiples of 8");
        assert!(!list.entry(64, 3, 7, b"vol3"));
    }

    #[test]
    fn a_reply_says_its_length_its_error_and_its_request() {
        let head = reply_head(77, 5, 0);
        assert_eq!(head[..4], 16u32.to_ne_bytes());
        assert_eq!(head[4..8], (-5i32).to_ne_bytes());
        assert_eq!(head[8..], 77u64.to_ne_bytes());
        assert_eq!(reply_head(1, 0, 4096)[..4], 4112u32.to_ne_bytes());
        assert_eq!(written(4096)[..4], 4096u32.to_ne_bytes());
    }
}
