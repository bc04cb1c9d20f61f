//! The log of an MDM, on one disk, in two areas that take turns.
//!
//! ```text
//! area 0 at 0, area 1 at 1 GiB (a sparse file has room for both; until format 3 it was at 1 TiB)
//!   + 0        header: magic "GABNMDM1", version, generation, image length, crc        4 KiB
//!   + 4 KiB    the same header once more                                               4 KiB
//!   + 8 KiB    image, padded to 4 KiB
//!   then       batches, each padded to 4 KiB:
//!              magic "GMLB", crc, crc before, length, generation, first number, count;
//!              then per record: length (4 bytes), bytes
//! ```
//!
//! The owner defines what images and records mean (`consensus::Image`, `consensus::Record`). This
//! file knows only that an image holds everything up to some point, and that records follow it.
//! Records are numbered from 1 in each area.
//!
//! **Batches.** Records are written and flushed in batches, one batch at a time. A batch is durable
//! once [`Log::done`] returns [`Progress::Durable`]. A batch never shares a 4 KiB block with
//! another one, so a torn write cannot damage an acknowledged batch. Its crc covers its header and,
//! through `crc before`, all batches before it.
//!
//! **Switching areas.** When the batches exceed the limit, an image goes into the other area: (1)
//! body, flush; (2) first header, flush; (3) second header, flush. After that, batches follow
//! there. So the body of a valid header is whole, and the newest generation with a valid header
//! counts. Recovery rewrites a missing header before it does anything else. So while a first header
//! is being written, the second one is whole (an older one, or zeros). If neither can be read and
//! the second is not zeros, both were damaged, and the MDM refuses to start. (An area that has data
//! only in its first 4 KiB counts as one that was being started, and is started again.)
//!
//! **A torn tail and damage.** The first invalid batch ends the log if nothing valid follows it in
//! this area: it was being written when the process died, and it was never acknowledged. If a later
//! batch of this generation is valid, an acknowledged batch is damaged. The MDM then refuses to
//! start, since it would otherwise forget decisions that others rely on. Damage to exactly the last
//! batch cannot be told from a torn write, and is treated as one.
//!
//! **Errors.** After a failed write or flush the content of the disk is unknown. The log stays in
//! [`Log::failed`] and accepts nothing more; a restart reads what is there.
//!
//! **What a restart reads may not be on the disk.** The file goes through the kernel's page cache.
//! When a write-back fails, `fdatasync` reports it once; from then on the pages read well, count as
//! clean, and are lost with the power. So recovery writes both headers of the newest area again,
//! one after the other, and the log wants a switch before it accepts anything else: what was read
//! becomes durable as an image in the other area. The owner of the log must not rely on what was
//! read before that.
//!
//! Sans I/O: [`Log::next`] returns the next disk operation, one at a time, and [`Log::done`] takes
//! its result.

mod area;
mod recover;

pub use area::{AREAS, BATCH_MAX, BLOCK, Batch, FORMAT, IMAGE_MAX, image_len};

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use area::{Header, write_batch};
use base::mutant::{self, Mutant};
use recover::Recovery;
use seam::DiskError;
use thiserror::Error;

/// The longest write or read of the log.
const CHUNK: usize = 1 << 20;

/// One thing to do with the disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Io {
    /// Read; what lies beyond the end reads as zeros.
    Read {
        /// Byte offset.
        at: u64,
        /// Bytes.
        len: u32,
    },
    /// Write. Offset and length are multiples of 4 KiB.
    Write {
        /// Byte offset.
        at: u64,
        /// The bytes.
        data: Vec<u8>,
    },
    /// Makes durable what was written.
    Flush,
}

/// The content of a log.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// The image; `None` if the disk is empty.
    pub image: Option<Vec<u8>>,
    /// The records after the image, in order.
    pub records: Vec<Vec<u8>>,
}

/// The result of an operation's end.
#[derive(Debug)]
pub enum Progress {
    /// There is more to do: call [`Log::next`].
    More,
    /// The log was read.
    Recovered(Box<Found>),
    /// The batch that was appended is durable.
    Durable,
    /// The image is durable, and the old area is free.
    Switched,
    /// The log cannot continue; see [`Log::failed`].
    Failed,
}

/// The reason why the log cannot continue.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum LogError {
    /// The disk failed.
    #[error(
        "the MDM's log could not be {0} ({1}): nothing more is accepted; \
         check the disk and the space on it, then start the MDM again"
    )]
    Disk(&'static str, Why),
    /// The file is neither empty nor a log.
    #[error("this file is not an MDM's log: name another one, or remove it if it is of no use")]
    Foreign,
    /// The log has the format of another build.
    #[error(
        "the MDM's log has format {0}, and this build reads format {FORMAT}: \
         run the build that wrote it; for a higher number that is a newer one"
    )]
    Version(u32),
    /// A header or image is damaged.
    #[error(
        "the MDM's log is damaged at byte {at} ({what}): restore the file from a copy; \
         starting without it would forget decisions that servers rely on"
    )]
    Damaged {
        /// Byte offset of the damage.
        at: u64,
        /// The damaged part.
        what: &'static str,
    },
    /// An image or record cannot be understood.
    #[error(
        "the MDM's log holds something that is unknown to this build ({what}): \
         run the build that wrote it, or a newer one"
    )]
    Unknown {
        /// The content that was found.
        what: String,
    },
}

/// Why a disk operation failed, for [`LogError::Disk`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Why(pub DiskError);

impl core::fmt::Display for Why {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self.0 {
            DiskError::OutOfRange => "the offset is beyond what the device takes",
            DiskError::NoSpace => "no space left",
            DiskError::Io | DiskError::Unsupported => "the device reports an error",
            DiskError::Corrupt { .. } | DiskError::BadBody => "a checksum does not match",
        })
    }
}

enum Mode {
    Recovering(Box<Recovery>),
    Idle,
    /// Writing a batch, then flushing.
    Appending,
    /// Writing an image and its headers.
    Switching,
    Failed(LogError),
}

/// The log.
pub struct Log {
    limit: u64,
    mode: Mode,
    todo: VecDeque<Io>,
    busy: Option<&'static str>,
    /// The area in use, its generation, where its batches begin, and where the next one goes.
    area: usize,
    generation: u64,
    start: u64,
    end: u64,
    /// The crc of the last batch, or of the image.
    chain: u32,
    /// The number of the next record.
    next_number: u64,
    /// True if what was read may be in the page cache only, so that a switch is due.
    unsure: bool,
}

impl Log {
    /// Returns a log that is to be read. An image is due after `limit` bytes of batches.
    pub fn new(limit: u64) -> Log {
        Log {
            limit,
            mode: Mode::Recovering(Box::new(Recovery::new())),
            todo: VecDeque::new(),
            busy: None,
            area: 0,
            generation: 0,
            start: 0,
            end: 0,
            chain: 0,
            next_number: 1,
            unsure: false,
        }
    }

    /// Returns the next operation; `None` while one is under way or when there is nothing to do.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<Io> {
        if self.busy.is_some() {
            return None;
        }
        let io = match &mut self.mode {
            Mode::Recovering(recovery) => recovery.next(),
            Mode::Failed(_) => None,
            _ => self.todo.pop_front(),
        }?;
        self.busy = Some(match io {
            Io::Read { .. } => "read",
            Io::Write { .. } => "written",
            Io::Flush => "flushed",
        });
        Some(io)
    }

    /// Takes the result of the operation; `data` is what it read.
    pub fn done(&mut self, result: Result<&[u8], DiskError>) -> Progress {
        let what = self.busy.take().expect("an operation was under way");
        let data = match result {
            Ok(data) => data,
            Err(_) if mutant::on(Mutant::MdmBelieveDisk) && !self.is_recovering() => &[],
            Err(why) => return self.fail(LogError::Disk(what, Why(why))),
        };
        match &mut self.mode {
            Mode::Recovering(recovery) => match recovery.read(data) {
                Ok(None) => Progress::More,
                Ok(Some(found)) => {
                    (self.area, self.generation) = (found.area, found.generation);
                    (self.start, self.end, self.chain) = (found.start, found.end, found.chain);
                    self.next_number = found.next;
                    self.unsure = found.generation > 0 && !mutant::on(Mutant::MdmTrustCache);
                    self.mode = Mode::Idle;
                    Progress::Recovered(Box::new(found.found))
                }
                Err(why) => self.fail(why),
            },
            Mode::Failed(_) => Progress::Failed,
            _ if !self.todo.is_empty() => Progress::More,
            Mode::Appending => {
                self.mode = Mode::Idle;
                Progress::Durable
            }
            _ => {
                self.mode = Mode::Idle;
                Progress::Switched
            }
        }
    }

    fn fail(&mut self, why: LogError) -> Progress {
        self.todo.clear();
        self.mode = Mode::Failed(why);
        Progress::Failed
    }

    /// Fails the log: what was read is not a log of this build. It accepts nothing more.
    pub fn reject(&mut self, what: impl Into<String>) {
        self.fail(LogError::Unknown { what: what.into() });
    }

    /// Returns true when [`Log::append`] or [`Log::switch`] may be called.
    pub fn is_idle(&self) -> bool {
        matches!(self.mode, Mode::Idle)
    }

    /// Returns true while the log is being read.
    pub fn is_recovering(&self) -> bool {
        matches!(self.mode, Mode::Recovering(_))
    }

    /// Returns the reason why the log cannot continue, if there is one.
    pub fn failed(&self) -> Option<&LogError> {
        match &self.mode {
            Mode::Failed(why) => Some(why),
            _ => None,
        }
    }

    /// Returns true when an image is due: before anything is appended to an empty disk, before the
    /// owner relies on what was read, and after `limit` bytes of batches.
    pub fn wants_switch(&self) -> bool {
        let full = self.generation == 0 || self.end - self.start >= self.limit;
        self.is_idle() && (self.unsure || full)
    }

    /// Appends a batch: its records, in order. Call it only when idle and when no switch is wanted.
    /// A batch holds at least one record and at most [`BATCH_MAX`] bytes ([`Batch`] counts them).
    pub fn append(&mut self, batch: Batch) {
        assert!(self.is_idle() && !self.wants_switch(), "a batch or an image is under way or due");
        assert!(self.todo.is_empty() && self.busy.is_none(), "the last batch is durable");
        assert!(!batch.is_empty(), "a batch has a record");
        let count = u64::from(batch.count());
        let (data, crc) = write_batch(batch, self.chain, self.generation, self.next_number);
        let len = data.len() as u64;
        self.todo.extend([Io::Write { at: self.end, data }, Io::Flush]);
        self.end += len;
        self.chain = crc;
        self.next_number += count;
        self.mode = Mode::Appending;
    }

    /// Writes an image into the other area and continues there. Call it only when idle; the image
    /// must contain everything that was appended.
    pub fn switch(&mut self, body: &[u8]) {
        assert!(self.is_idle(), "a batch or an image is under way");
        assert!(self.todo.is_empty() && self.busy.is_none(), "the last batch is durable");
        self.next_number = 1;
        self.unsure = false;
        assert!(body.len() as u64 <= IMAGE_MAX, "an image leaves its area room for batches");
        let in_first = self.generation > 0 && self.area == 0;
        self.area = usize::from(in_first);
        self.generation += 1;
        let header = Header::of(body, self.generation, self.limit);
        self.chain = header.body_crc;
        let base = AREAS[self.area];
        let mut at = base + 2 * BLOCK as u64;
        for part in body.chunks(CHUNK) {
            let mut data = part.to_vec();
            data.resize(part.len().next_multiple_of(BLOCK), 0);
            let len = data.len() as u64;
            self.todo.push_back(Io::Write { at, data });
            at += len;
        }
        (self.start, self.end) = (at, at);
        let block = header.to_block();
        let second = Io::Write { at: base + BLOCK as u64, data: block.clone() };
        self.todo.extend([
            Io::Flush,
            Io::Write { at: base, data: block },
            Io::Flush,
            second,
            Io::Flush,
        ]);
        self.mode = Mode::Switching;
    }
}
